//! The reply to a call.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;
use serde_json::json;
use toolpost::output::{Artifact, ArtifactData};
use toolpost::record::CallRecord;

use crate::convert;

/// The reply to a call: its output and its record.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct Reply {
    output: toolpost::Output,
    record: Arc<CallRecord>,
}

impl Reply {
    pub(crate) fn new(output: toolpost::Output, record: Arc<CallRecord>) -> Self {
        Self { output, record }
    }
}

/// An artifact as a dict with `name`, `media_type`, `size`, and `data` or `path`.
pub(crate) fn artifact_to_python<'py>(py: Python<'py>, artifact: &Artifact) -> PyResult<Bound<'py, PyAny>> {
    let dict = convert::to_python(py, &serde_json::to_value(artifact).unwrap_or_default())?;
    match &artifact.data {
        ArtifactData::Bytes(bytes) => dict.set_item("data", &**bytes)?,
        ArtifactData::Path(path) => dict.set_item("path", path)?,
        ArtifactData::Absent => {}
    }
    Ok(dict)
}

#[pymethods]
impl Reply {
    /// The structured value, or else the text; None if the tool returned nothing.
    #[getter]
    fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &self.output.result_value())
    }

    /// The text that a model gets.
    #[getter]
    fn text(&self) -> String {
        self.output.to_text().into_owned()
    }

    /// The content blocks, as in MCP: dicts with a `type`.
    #[getter]
    fn content<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let content = serde_json::to_value(&self.output.content).unwrap_or_default();
        convert::to_python(py, &content)
    }

    /// The counts of a partial success: a dict with `succeeded` and `errors`; None for a whole one.
    #[getter]
    fn partial<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(partial) = &self.output.partial else { return Ok(None) };
        let partial = json!({ "succeeded": partial.succeeded, "errors": partial.errors });
        convert::to_python(py, &partial).map(Some)
    }

    /// The artifacts: dicts with `name`, `media_type`, `size`, and `data` or `path`.
    #[getter]
    fn artifacts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for artifact in &self.output.artifacts {
            list.append(artifact_to_python(py, artifact)?)?;
        }
        Ok(list)
    }

    /// The record of the call, as stored: its id, times, attempts, usage and nested calls.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &serde_json::to_value(&*self.record).unwrap_or_default())
    }

    fn __repr__(&self) -> String {
        let value = self.output.result_value().to_string();
        let short: String = value.chars().take(200).collect();
        let more = if short.len() < value.len() { "…" } else { "" };
        format!("Reply({short}{more})")
    }

    fn __str__(&self) -> String {
        self.text()
    }
}
