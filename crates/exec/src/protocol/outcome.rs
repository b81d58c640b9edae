//! Results: envelopes read back, and outputs as frames carry them.

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{Artifact, ArtifactData, Code, Content, Evidence, Output, Partial, ToolError, Usage};

/// Whether a value is an envelope of dialect 0.1: an object with a `status` that it knows.
pub fn is_envelope(value: &Value) -> bool {
    value.get("status").and_then(Value::as_str).is_some_and(|status| {
        match status {
            // A session ends with the status alone.
            "success" => true,
            "error" => value.get("error").is_some() || value.get("errors").is_some(),
            "partial" => value.get("result").is_some() || value.get("errors").is_some(),
            _ => false,
        }
    })
}

/// How many failures of a partial result are read.
const MAX_ERRORS: usize = 1024;

/// One `{"code","message","recoverable","suggestion"?,"context"?}`. A code that nobody knows is `DEPENDENCY`: the
/// program is what failed, and `INTERNAL` would hide what it says.
pub fn read_error(value: &Value) -> ToolError {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let message = text("message").unwrap_or("the tool failed and did not say why");
    let code = value.get("code").and_then(|code| Code::deserialize(code).ok()).unwrap_or(Code::Dependency);
    let mut error = ToolError::new(code, message).suggest_maybe(text("suggestion").map(str::to_owned));
    for (key, fact) in value.get("context").and_then(Value::as_object).into_iter().flatten() {
        error = error.with(key, fact.clone());
    }
    error
}

/// Reads an envelope, alone or as the last line of a stream.
///
/// A `result` that only wraps a value which is no object, as `{"result": 3}`, is read as the value when `unwrap` says so:
/// only programs that are known to wrap do.
///
/// # Errors
/// What the envelope tells; `DEPENDENCY` if it is none.
pub fn read_envelope(envelope: &Value, unwrap: bool) -> Result<Output, ToolError> {
    let result = || {
        let result = envelope.get("result").cloned().unwrap_or_default();
        match result {
            Value::Object(mut fields) if unwrap && fields.len() == 1 && fields.contains_key("result") => {
                fields.remove("result").unwrap_or_default()
            }
            other => other,
        }
    };
    let listed = || {
        let errors = envelope.get("errors").and_then(Value::as_array).into_iter().flatten();
        errors.take(MAX_ERRORS).map(read_error).collect::<Vec<_>>()
    };
    match envelope.get("status").and_then(Value::as_str) {
        Some("success") => Ok(Output::json(result())),
        Some("error") if envelope.get("error").is_some_and(Value::is_object) => {
            Err(read_error(envelope.get("error").unwrap_or(&Value::Null)))
        }
        // All of many things failed: the result says which.
        Some("error" | "partial") if envelope.get("errors").is_some_and(Value::is_array) => {
            let summary = envelope.get("summary");
            let succeeded = summary.and_then(|summary| summary.get("succeeded")).and_then(Value::as_u64);
            let partial =
                Partial { succeeded: usize::try_from(succeeded.unwrap_or(0)).unwrap_or(0), errors: listed() };
            Ok(Output::json(result()).with_partial(partial))
        }
        Some("error") => Err(ToolError::dependency("the tool failed and did not say why")),
        _ => Err(ToolError::dependency("the tool's answer is no envelope: it has no `status`")),
    }
}

/// A file on its way through a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArtifactFrame {
    /// Its name, a relative path without `..`.
    pub name: String,
    /// Such as `image/png`.
    pub media_type: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256 in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its bytes in base 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Where it lies, for a caller on the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl From<&Artifact> for ArtifactFrame {
    fn from(artifact: &Artifact) -> Self {
        let (data, path) = match &artifact.data {
            ArtifactData::Bytes(bytes) => {
                (Some(base64::engine::general_purpose::STANDARD.encode(bytes)), None)
            }
            ArtifactData::Path(path) => (None, Some(path.to_string_lossy().into_owned())),
            ArtifactData::Absent => (None, None),
        };
        Self {
            name: artifact.name.clone(),
            media_type: artifact.media_type.clone(),
            size: artifact.size,
            sha256: artifact.sha256.clone(),
            data,
            path,
        }
    }
}

impl ArtifactFrame {
    /// The file. Its name is as the other side gave it: whoever stores it checks it.
    ///
    /// # Errors
    /// `DEPENDENCY` if its bytes are no base 64.
    pub fn into_artifact(self) -> Result<Artifact, ToolError> {
        let data = match (self.data, self.path) {
            (Some(text), _) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| {
                    ToolError::dependency(format!("the artefact `{}` is no base 64: {error}", self.name))
                })?;
                ArtifactData::Bytes(bytes.into())
            }
            (None, Some(path)) => ArtifactData::Path(path.into()),
            (None, None) => ArtifactData::Absent,
        };
        let size = match &data {
            ArtifactData::Bytes(bytes) => bytes.len() as u64,
            _ => self.size,
        };
        Ok(Artifact { name: self.name, media_type: self.media_type, size, sha256: self.sha256, data })
    }
}

/// Everything of an [`Output`] that can leave the process; a payload cannot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputFrame {
    /// For the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Content>,
    /// The value that the output schema describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// Files that were made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactFrame>,
    /// Set when only some of many things were done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialFrame>,
    /// What the sandbox measured and enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Value>,
    /// What a model that the tool used has consumed. Taken from workers, which run the caller's own code; of any other
    /// program it is a claim, and is dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A [`Partial`] on its way through a frame.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartialFrame {
    /// How many were done.
    pub succeeded: usize,
    /// Why the others were not.
    pub errors: Vec<ToolError>,
}

impl From<&Output> for OutputFrame {
    fn from(output: &Output) -> Self {
        Self {
            content: output.content.clone(),
            structured: output.structured.clone(),
            artifacts: output.artifacts.iter().map(ArtifactFrame::from).collect(),
            partial: output
                .partial
                .as_ref()
                .map(|partial| PartialFrame { succeeded: partial.succeeded, errors: partial.errors.clone() }),
            sandbox: output.evidence.as_ref().and_then(|evidence| evidence.sandbox.clone()),
            usage: output.evidence.as_ref().and_then(|evidence| evidence.usage.clone()),
        }
    }
}

impl OutputFrame {
    /// The output.
    ///
    /// # Errors
    /// `DEPENDENCY` if an artefact cannot be read.
    pub fn into_output(self) -> Result<Output, ToolError> {
        let mut output = Output::default();
        output.content = self.content;
        output.structured = self.structured;
        output.artifacts =
            self.artifacts.into_iter().map(ArtifactFrame::into_artifact).collect::<Result<_, _>>()?;
        output.partial =
            self.partial.map(|partial| Partial { succeeded: partial.succeeded, errors: partial.errors });
        if self.sandbox.is_some() || self.usage.is_some() {
            output =
                output.with_evidence(Evidence { sandbox: self.sandbox, usage: self.usage, cost_usd: None });
        }
        Ok(output)
    }
}

/// What came of a request, in a frame: exactly one of the two.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answered<T> {
    /// It was done.
    Ok(T),
    /// It was not.
    Error(ToolError),
}

impl<T> Answered<T> {
    /// As a result.
    ///
    /// # Errors
    /// Those of the other side.
    pub fn into_result(self) -> Result<T, ToolError> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Error(error) => Err(error),
        }
    }
}

impl<T> From<Result<T, ToolError>> for Answered<T> {
    fn from(result: Result<T, ToolError>) -> Self {
        match result {
            Ok(value) => Self::Ok(value),
            Err(error) => Self::Error(error),
        }
    }
}
