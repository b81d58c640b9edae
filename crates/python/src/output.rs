//! Results of tools in Python.

use pyo3::intern;
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use toolpost::output::{Artifact, Content, Partial};
use toolpost::{Output, ToolError};

use crate::{bridge, convert, errors};

/// The JSON of a `toolpost.Output`.
#[derive(Deserialize)]
struct Fields {
    #[serde(default)]
    content: Vec<Content>,
    #[serde(default)]
    structured: Option<Value>,
    #[serde(default)]
    artifacts: Vec<ArtifactFields>,
    #[serde(default)]
    partial: Option<PartialFields>,
}

/// The JSON of a `toolpost.Artifact`.
#[derive(Deserialize)]
pub(crate) struct ArtifactFields {
    name: String,
    media_type: String,
    data: String,
}

#[derive(Deserialize)]
struct PartialFields {
    succeeded: usize,
    errors: Vec<ToolError>,
}

impl ArtifactFields {
    pub(crate) fn decode(self) -> Result<Artifact, ToolError> {
        let bytes = base64::engine::Engine::decode(&base64::engine::general_purpose::STANDARD, self.data)?;
        Ok(Artifact::from_bytes(self.name, self.media_type, bytes))
    }
}

/// The output of a call whose function returned a value: a `toolpost.Output`, or any value with a JSON form.
pub(crate) fn output(value: &Bound<'_, PyAny>) -> PyResult<Output> {
    let py = value.py();
    if !value.is_instance(&bridge::author(py)?.getattr(intern!(py, "Output"))?)? {
        return Ok(Output::json(convert::to_json(value)?));
    }
    let fields = convert::to_json(&value.call_method0(intern!(py, "to_dict"))?)?;
    let built = serde_json::from_value::<Fields>(fields).map_err(ToolError::from).and_then(build);
    built.map_err(|error| errors::to_python(py, &error))
}

fn build(fields: Fields) -> Result<Output, ToolError> {
    let mut output = Output::default();
    output.content = fields.content;
    output.structured = fields.structured;
    output.artifacts = fields.artifacts.into_iter().map(ArtifactFields::decode).collect::<Result<_, _>>()?;
    output.partial =
        fields.partial.map(|partial| Partial { succeeded: partial.succeeded, errors: partial.errors });
    Ok(output)
}
