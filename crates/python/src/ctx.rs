//! The context of a call, for its tool.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use serde_json::Value;
use toolpost::Ctx;
use toolpost::output::Artifact;
use toolpost::port::{LogLevel, Question, SampleRequest};

use crate::awaitable::Awaitable;
use crate::state::StateDoc;
use crate::twin::{awaited, waited};
use crate::{bridge, convert, errors};

/// The context of a call, behind `toolpost.Ctx`.
#[pyclass(frozen, module = "toolpost._engine")]
pub(crate) struct CallContext(Ctx);

/// The context as a `toolpost.Ctx`.
pub(crate) fn to_python<'py>(py: Python<'py>, ctx: &Ctx) -> PyResult<Bound<'py, PyAny>> {
    bridge::helpers(py)?.getattr(intern!(py, "context"))?.call1((CallContext(ctx.clone()),))
}

fn question(message: String, schema: Option<&Bound<'_, PyAny>>) -> PyResult<Question> {
    Ok(match schema {
        Some(schema) => Question::with_schema(message, convert::to_json(schema)?),
        None => Question::text(message),
    })
}

fn request(request: &Bound<'_, PyAny>) -> PyResult<SampleRequest> {
    serde_json::from_value(convert::to_json(request)?)
        .map_err(|error| PyValueError::new_err(format!("invalid sample request: {error}")))
}

fn arguments(arguments: Option<&Bound<'_, PyAny>>) -> PyResult<Value> {
    arguments.map_or_else(|| Ok(Value::Object(serde_json::Map::new())), convert::to_json)
}

#[pymethods]
impl CallContext {
    #[getter]
    fn id(&self) -> String {
        self.0.id().to_string()
    }

    #[getter]
    fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    #[getter]
    fn depth(&self) -> u8 {
        self.0.depth()
    }

    #[getter]
    fn user(&self) -> Option<&str> {
        self.0.caller().identity.as_deref()
    }

    #[getter]
    fn remaining(&self) -> Option<f64> {
        self.0.remaining().map(|remaining| remaining.as_secs_f64())
    }

    #[getter]
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    #[getter]
    fn idempotency_key(&self) -> Option<&str> {
        self.0.idempotency_key()
    }

    #[getter]
    fn is_verbose(&self) -> bool {
        self.0.is_verbose()
    }

    #[getter]
    fn is_dry_run(&self) -> bool {
        self.0.is_dry_run()
    }

    #[getter]
    fn working_dir(&self) -> Option<PathBuf> {
        self.0.working_dir().map(Into::into)
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(convert::map_to_python(py, self.0.metadata())?.into_any())
    }

    fn progress(&self, py: Python<'_>, message: String, percent: Option<f64>) {
        py.detach(|| self.0.progress(message, percent));
    }

    fn log(&self, py: Python<'_>, level: &str, message: String) -> PyResult<()> {
        let level: LogLevel = serde_json::from_value(level.into()).map_err(|_| {
            PyValueError::new_err(format!("unknown log level `{level}`; use debug, info, warn or error"))
        })?;
        py.detach(|| self.0.log(level, message));
        Ok(())
    }

    fn ask(&self, message: String, schema: Option<&Bound<'_, PyAny>>) -> PyResult<Awaitable> {
        let (ctx, question) = (self.0.clone(), question(message, schema)?);
        Ok(awaited(async move { ctx.ask(question).await }))
    }

    fn ask_sync(
        &self,
        py: Python<'_>,
        message: String,
        schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        waited(py, self.0.ask(question(message, schema)?))
    }

    fn sample(&self, fields: &Bound<'_, PyAny>) -> PyResult<Awaitable> {
        let (ctx, request) = (self.0.clone(), request(fields)?);
        Ok(awaited(async move { ctx.sample(request).await }))
    }

    fn sample_sync(&self, py: Python<'_>, fields: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        waited(py, self.0.sample(request(fields)?))
    }

    fn artifact(&self, name: String, media_type: String, data: &[u8]) -> Awaitable {
        let (ctx, artifact) = (self.0.clone(), Artifact::from_bytes(name, media_type, data));
        awaited(async move { ctx.artifact(artifact).await })
    }

    fn artifact_sync(
        &self,
        py: Python<'_>,
        name: String,
        media_type: String,
        data: &[u8],
    ) -> PyResult<Py<PyAny>> {
        waited(py, self.0.artifact(Artifact::from_bytes(name, media_type, data)))
    }

    fn call(&self, tool: String, args: Option<&Bound<'_, PyAny>>) -> PyResult<Awaitable> {
        let (ctx, args) = (self.0.clone(), arguments(args)?);
        Ok(awaited(async move { ctx.call(tool, args).await }))
    }

    fn call_sync(
        &self,
        py: Python<'_>,
        tool: String,
        args: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        waited(py, self.0.call(tool, arguments(args)?))
    }

    fn state(&self, py: Python<'_>, id: &str) -> PyResult<StateDoc> {
        self.0.state(id).map(StateDoc).map_err(|error| errors::to_python(py, &error))
    }
}
