//! Resources and prompts in Python.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::de::DeserializeOwned;
use toolpost::extend::{Args, BoxFuture};
use toolpost::resources::{Prompt, PromptSpec, Resource, ResourceSpec};
use toolpost::spec::SpecError;
use toolpost::{Ctx, Output, Tool, ToolError, ToolSpec};

use crate::convert;
use crate::tool::PythonTool;

/// A function with the definition of its resource or prompt.
pub(crate) struct Offered<Spec> {
    pub(crate) tool: PythonTool,
    pub(crate) spec: Spec,
}

impl<Spec: DeserializeOwned> Offered<Spec> {
    /// The resource or prompt of an object whose method has that name.
    ///
    /// # Errors
    /// The exception of the method; `ValueError` for an invalid definition.
    pub(crate) fn new(object: &Bound<'_, PyAny>, method: &str) -> PyResult<Self> {
        let spec = convert::to_json(&object.call_method0(method)?)?;
        let spec = serde_json::from_value(spec)
            .map_err(|error| PyValueError::new_err(format!("invalid definition of {object}: {error}")))?;
        Ok(Self { tool: PythonTool::new(object)?, spec })
    }
}

impl<Spec: Send + Sync> Tool for Offered<Spec> {
    fn spec(&self) -> Arc<ToolSpec> {
        self.tool.spec()
    }

    fn on_thread(&self) -> Option<Arc<dyn Tool>> {
        self.tool.on_thread()
    }

    fn call<'a>(&'a self, args: &'a Args, ctx: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        self.tool.call(args, ctx)
    }
}

impl Resource for Offered<ResourceSpec> {
    fn resource_spec(&self) -> Result<ResourceSpec, SpecError> {
        Ok(self.spec.clone())
    }
}

impl Prompt for Offered<PromptSpec> {
    fn prompt_spec(&self) -> PromptSpec {
        self.spec.clone()
    }
}
