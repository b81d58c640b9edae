//! Results: parsed envelopes, and outputs in frames.

use base64::Engine as _;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use toolpost_core::{
    Artifact, ArtifactData, Code, Content, Evidence, Hint, Output, Partial, RetryAdvice, Suggestion,
    ToolError, Truncation, Usage,
};

/// Whether a value is an envelope of dialect 0.1: an object with a known `status`.
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

/// Maximum number of errors parsed from a partial result.
const MAX_ERRORS: usize = 1024;

/// Parses `{"code","message","recoverable","suggestion"?,"hint"?,"context"?}`. An unknown code becomes `DEPENDENCY`, since the
/// program failed and `INTERNAL` would hide its message.
pub fn read_error(value: &Value) -> ToolError {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let message = text("message").unwrap_or("the tool failed without a message");
    let code = value.get("code").and_then(|code| Code::deserialize(code).ok()).unwrap_or(Code::Dependency);
    // The text of a known hint is not in the terms of the program's command line.
    let hint = value.get("hint").and_then(|hint| Hint::deserialize(hint).ok()).map(Suggestion::from);
    let mut error = ToolError::new(code, message)
        .suggest_maybe(hint.or_else(|| text("suggestion").map(Suggestion::from)));
    for (key, fact) in value.get("context").and_then(Value::as_object).into_iter().flatten() {
        error = error.with(key, fact.clone());
    }
    error
}

/// Parses an envelope, alone or as the last line of a stream.
///
/// With `unwrap`, a wrapped value such as `{"result": 3}` is unwrapped, for programs that are known to wrap.
///
/// # Errors
/// The envelope's error; `DEPENDENCY` if it is invalid.
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
        // All items failed: the result names them.
        Some("error" | "partial") if envelope.get("errors").is_some_and(Value::is_array) => {
            let summary = envelope.get("summary");
            let succeeded = summary.and_then(|summary| summary.get("succeeded")).and_then(Value::as_u64);
            let partial =
                Partial { succeeded: usize::try_from(succeeded.unwrap_or(0)).unwrap_or(0), errors: listed() };
            Ok(Output::json(result()).with_partial(partial))
        }
        Some("error") => Err(ToolError::dependency("the tool failed without a message")),
        _ => Err(ToolError::dependency("the tool's answer is not an envelope: it has no `status`")),
    }
}

/// A file in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArtifactFrame {
    /// Name, a relative path without `..`.
    pub name: String,
    /// Media type, such as `image/png`.
    pub media_type: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Bytes in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Path, for a caller on the same machine.
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
    /// Converts the frame into an artifact. The name is unchecked.
    ///
    /// # Errors
    /// `DEPENDENCY` if the bytes are not valid base64.
    pub fn into_artifact(self) -> Result<Artifact, ToolError> {
        let data = match (self.data, self.path) {
            (Some(text), _) => {
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).map_err(|error| {
                    ToolError::dependency(format!(
                        "the artifact `{}` is not valid base64: {error}",
                        self.name
                    ))
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

/// An [`Output`] in a frame, without its payload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputFrame {
    /// Content for the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub content: Vec<Content>,
    /// The structured value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// Files that the call created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<ArtifactFrame>,
    /// Set if only some of several items succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partial: Option<PartialFrame>,
    /// The parts that a limit truncated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub truncated: Vec<Truncation>,
    /// Measurements and limits of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Value>,
    /// Usage of a model that the tool called. Accepted from workers, which run the caller's own code; ignored from other
    /// programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A [`Partial`] in a frame.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartialFrame {
    /// The number of items that succeeded.
    pub succeeded: usize,
    /// The errors of the other items.
    #[serde(serialize_with = "write_errors")]
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
            truncated: output.truncated.clone(),
            sandbox: output.evidence.as_ref().and_then(|evidence| evidence.sandbox.clone()),
            usage: output.evidence.as_ref().and_then(|evidence| evidence.usage.clone()),
        }
    }
}

impl OutputFrame {
    /// Converts the frame into an output.
    ///
    /// # Errors
    /// `DEPENDENCY` if an artifact is invalid.
    pub fn into_output(self) -> Result<Output, ToolError> {
        let mut output = Output::default();
        output.content = self.content;
        output.structured = self.structured;
        output.truncated = self.truncated;
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

/// The outcome of a request, in a frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answered<T> {
    /// Success.
    Ok(T),
    /// Failure.
    #[serde(serialize_with = "write_error")]
    Error(ToolError),
}

/// Writes an error with durations in milliseconds. The JSON of records has other durations, and frames accept both.
pub(super) fn write_error<S: Serializer>(error: &ToolError, serializer: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(error).map_err(S::Error::custom)?;
    let (name, wait) = match error.retry_advice() {
        Some(RetryAdvice::After(wait)) => ("after_ms", wait),
        Some(RetryAdvice::NotStarted(wait)) => ("not_started_ms", wait),
        _ => return value.serialize(serializer),
    };
    value["retry"] = json!({ name: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX) });
    value.serialize(serializer)
}

fn write_errors<S: Serializer>(errors: &[ToolError], serializer: S) -> Result<S::Ok, S::Error> {
    /// An error of a list.
    #[derive(Serialize)]
    struct Listed<'a>(#[serde(serialize_with = "write_error")] &'a ToolError);
    serializer.collect_seq(errors.iter().map(Listed))
}

impl<T> Answered<T> {
    /// Converts the outcome into a result.
    ///
    /// # Errors
    /// Errors of the other side.
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
