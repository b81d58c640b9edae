//! A structured result beside the text that a model reads.

use std::borrow::Cow;

use toolpost::__private::schemars::{JsonSchema, Schema, SchemaGenerator};
use toolpost::{Artifact, Evidence, IntoOutput, Output, ToolError};

/// A structured result, and a text that says the same to a model. The tool's output schema is that of the value.
#[derive(Clone, Debug)]
pub struct WithText<T> {
    /// What the output schema describes.
    pub value: T,
    /// What a model reads.
    pub text: String,
    /// Files that were made. Default none.
    pub artifacts: Vec<Artifact>,
    /// Facts for the record. Default none.
    pub evidence: Option<Evidence>,
}

impl<T> WithText<T> {
    /// A value and its text.
    pub fn new(value: T, text: impl Into<String>) -> Self {
        Self { value, text: text.into(), artifacts: Vec::new(), evidence: None }
    }
}

impl<T: serde::Serialize> IntoOutput for WithText<T> {
    fn into_output(self) -> Result<Output, ToolError> {
        let mut output = Output::from_serialize(&self.value)?;
        output = output.with_content(toolpost::Content::text(self.text));
        output.artifacts = self.artifacts;
        output.evidence = self.evidence.map(Box::new);
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
