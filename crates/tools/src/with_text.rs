//! A structured result with its own text for a model.

use std::borrow::Cow;

use toolpost::__private::schemars::{JsonSchema, Schema, SchemaGenerator};
use toolpost::{Artifact, Evidence, IntoOutput, Output, ToolError, Truncation, WholeText};

/// A structured result with its own text for a model. The tool's output schema is that of the value.
#[derive(Clone, Debug)]
pub struct WithText<T> {
    /// The structured result.
    pub value: T,
    /// The text for a model.
    pub text: String,
    /// Files that the call created. Default: none.
    pub artifacts: Vec<Artifact>,
    /// Facts for the record. Default: none.
    pub evidence: Option<Evidence>,
    /// The parts that a limit truncated. Default: none.
    pub truncated: Vec<Truncation>,
    /// The whole output of a program, if the value has a part of it. Default: none.
    pub whole: Option<WholeText>,
}

impl<T> WithText<T> {
    /// Combines a value and its text.
    pub fn new(value: T, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { value, text, artifacts: Vec::new(), evidence: None, truncated: Vec::new(), whole: None }
    }
}

impl<T: serde::Serialize> IntoOutput for WithText<T> {
    fn into_output(self) -> Result<Output, ToolError> {
        let mut output = Output::from_serialize(&self.value)?;
        output = output.with_content(toolpost::Content::text(self.text));
        output.artifacts = self.artifacts;
        output.evidence = self.evidence.map(Box::new);
        output.truncated = self.truncated;
        output.whole = self.whole.map(Box::new);
        Ok(output)
    }
}

impl<T: JsonSchema> JsonSchema for WithText<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
