//! The output of a tool.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{Status, ToolError, Truncation, Usage, WholeText};

/// One content block for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// An image.
    Image {
        /// The media type, such as `image/png`.
        media_type: String,
        /// The bytes in base64.
        data: String,
    },
    /// Audio.
    Audio {
        /// The media type, such as `audio/wav`.
        media_type: String,
        /// The bytes in base64.
        data: String,
    },
    /// A resource with a URI.
    Resource {
        /// The URI.
        uri: String,
        /// The media type, such as `text/plain`.
        media_type: String,
        /// Its embedded text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
    },
    /// A JSON value.
    Json {
        /// The value.
        value: Value,
    },
}

impl Content {
    /// A text block.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }

    /// An image block.
    pub fn image(media_type: impl Into<String>, bytes: &[u8]) -> Self {
        Self::Image {
            media_type: media_type.into(),
            data: base64::engine::general_purpose::STANDARD.encode(bytes),
        }
    }
}

/// The bytes of an artifact, or their path.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum ArtifactData {
    /// The bytes.
    Bytes(Arc<[u8]>),
    /// A file on the operator's machine.
    Path(PathBuf),
    /// No data, as in a record.
    #[default]
    Absent,
}

impl fmt::Debug for ArtifactData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Absent => f.write_str("absent"),
        }
    }
}

/// A file that a call creates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// Its name, a relative path without `..`.
    pub name: String,
    /// Its media type, such as `image/png`.
    pub media_type: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256 in hexadecimal digits, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its data. Never sent to a model, never in a record.
    #[serde(skip)]
    pub data: ArtifactData,
}

impl Artifact {
    /// The artifact without its bytes, as a record stores it.
    #[must_use]
    pub fn without_data(self) -> Self {
        Self { data: ArtifactData::Absent, ..self }
    }

    /// Creates an artifact from bytes.
    pub fn from_bytes(
        name: impl Into<String>,
        media_type: impl Into<String>,
        bytes: impl Into<Arc<[u8]>>,
    ) -> Self {
        let bytes = bytes.into();
        Self {
            name: name.into(),
            media_type: media_type.into(),
            size: bytes.len() as u64,
            sha256: None,
            data: ArtifactData::Bytes(bytes),
        }
    }
}

/// A value for the application only: never sent to a model, never written to a record.
#[derive(Clone)]
pub struct Payload(Arc<dyn Any + Send + Sync>);

impl Payload {
    /// Wraps any value.
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Arc::new(value))
    }

    /// The value, if it has this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.0).downcast().ok()
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Payload(..)")
    }
}

/// The counts of a partial success.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Partial {
    /// The number of items that succeeded.
    pub succeeded: usize,
    /// The errors of the other items.
    pub errors: Vec<ToolError>,
}

impl Partial {
    /// Success if nothing failed, error if nothing succeeded, else partial.
    pub fn status(&self) -> Status {
        match (self.succeeded, self.errors.len()) {
            (_, 0) => Status::Success,
            (0, _) => Status::Error,
            _ => Status::Partial,
        }
    }
}

/// Members of a foreign result for which [`Output`] has no field. A server of the same protocol forwards them; neither a
/// model nor a record gets them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forwarded {
    /// The members of the whole result.
    pub members: Map<String, Value>,
    /// The members of single blocks.
    pub blocks: Vec<ForwardedBlock>,
}

/// Members of a foreign content block for which [`Content`] has no field.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ForwardedBlock {
    /// The position of the block in [`Output::content`].
    pub position: usize,
    /// The URI of a resource whose [`Content`] is an image or audio.
    pub uri: Option<String>,
    /// The bytes of a resource in base64, if its [`Content`] has no bytes.
    pub data: Option<String>,
    /// The other members.
    pub members: Map<String, Value>,
}

/// Facts for the record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Measurements and limits of the sandbox.
    pub sandbox: Option<Value>,
    /// Usage of a model that the tool called.
    pub usage: Option<Usage>,
    /// Cost of that model in US dollars, if known.
    pub cost_usd: Option<f64>,
}

/// The output of a tool. Most tools return a plain value instead.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Output {
    /// Content for the model. If empty, the model gets the structured value.
    pub content: Vec<Content>,
    /// The value that the output schema describes.
    pub structured: Option<Value>,
    /// A value for the application only.
    pub payload: Option<Payload>,
    /// Files that the call created.
    pub artifacts: Vec<Artifact>,
    /// Set if only some of several items succeeded.
    pub partial: Option<Partial>,
    /// The parts that a limit truncated.
    pub truncated: Vec<Truncation>,
    /// The whole text, if `content` has a part of it. A toolbox stores it in a file for the model ([`crate::OutputFiles`]).
    pub whole: Option<Box<WholeText>>,
    /// Facts for the record.
    pub evidence: Option<Box<Evidence>>,
    /// Members of a foreign result, for servers that forward it.
    pub forwarded: Option<Box<Forwarded>>,
}

impl Output {
    /// A text for the model.
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: vec![Content::text(text)], ..Self::default() }
    }

    /// A JSON value for the model.
    pub fn json(value: Value) -> Self {
        Self { structured: (!value.is_null()).then_some(value), ..Self::default() }
    }

    /// A serializable value, which the model gets as JSON.
    ///
    /// # Errors
    /// `INTERNAL` if JSON cannot represent the value.
    pub fn from_serialize(value: &impl Serialize) -> Result<Self, ToolError> {
        let value = serde_json::to_value(value).map_err(|error| {
            ToolError::internal(format!("JSON cannot represent the result: {error}")).caused_by(error)
        })?;
        Ok(Self::json(value))
    }

    /// Adds content for the model.
    #[must_use]
    pub fn with_content(mut self, content: Content) -> Self {
        self.content.push(content);
        self
    }

    /// Sets the value that the output schema describes.
    #[must_use]
    pub fn with_structured(mut self, value: Value) -> Self {
        self.structured = Some(value);
        self
    }

    /// Sets the value for the application.
    #[must_use]
    pub fn with_payload<T: Any + Send + Sync>(mut self, value: T) -> Self {
        self.payload = Some(Payload::new(value));
        self
    }

    /// Adds a file.
    #[must_use]
    pub fn with_artifact(mut self, artifact: Artifact) -> Self {
        self.artifacts.push(artifact);
        self
    }

    /// Adds facts for the record.
    #[must_use]
    pub fn with_evidence(mut self, evidence: Evidence) -> Self {
        self.evidence = Some(Box::new(evidence));
        self
    }

    /// Marks the output as a partial success.
    #[must_use]
    pub fn with_partial(mut self, partial: Partial) -> Self {
        self.partial = Some(partial);
        self
    }

    /// Adds parts that a limit truncated.
    #[must_use]
    pub fn with_truncated(mut self, parts: impl IntoIterator<Item = Truncation>) -> Self {
        self.truncated.extend(parts);
        self
    }

    /// The output for a program that uses it as data.
    ///
    /// # Errors
    /// `LIMIT` if a limit truncated a part.
    pub fn whole(self) -> Result<Self, ToolError> {
        match self.truncated.first() {
            None => Ok(self),
            Some(part) => Err(part.to_error()),
        }
    }

    /// The status of the call.
    pub fn status(&self) -> Status {
        self.partial.as_ref().map_or(Status::Success, Partial::status)
    }

    /// The text for a model: the text blocks, or the structured value as JSON.
    pub fn to_text(&self) -> Cow<'_, str> {
        if self.content.is_empty() {
            return match &self.structured {
                None => Cow::Borrowed(""),
                Some(Value::String(text)) => Cow::Borrowed(text),
                Some(value) => Cow::Owned(value.to_string()),
            };
        }
        if let [Content::Text { text }] = self.content.as_slice() {
            return Cow::Borrowed(text);
        }
        let pieces: Vec<Cow<'_, str>> = self
            .content
            .iter()
            .filter_map(|content| match content {
                Content::Text { text } | Content::Resource { text: Some(text), .. } => {
                    Some(text.as_str().into())
                }
                Content::Json { value } => Some(value.to_string().into()),
                Content::Resource { uri, .. } => Some(uri.as_str().into()),
                Content::Image { .. } | Content::Audio { .. } => None,
            })
            .collect();
        Cow::Owned(pieces.join("\n"))
    }

    /// The structured value, or the text for the model.
    pub fn result_value(&self) -> Value {
        match &self.structured {
            Some(value) => value.clone(),
            None if self.content.is_empty() => Value::Null,
            None => Value::String(self.to_text().into_owned()),
        }
    }
}

/// A return type of a tool function: an [`Output`], or any serializable value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a tool",
    label = "has no JSON form",
    note = "put `#[toolpost::data]` on the type, or return `toolpost::Output`"
)]
pub trait IntoOutput {
    /// Converts the value into an output.
    ///
    /// # Errors
    /// `INTERNAL` if JSON cannot represent the value.
    fn into_output(self) -> Result<Output, ToolError>;
}

#[diagnostic::do_not_recommend]
impl<T: Serialize> IntoOutput for T {
    fn into_output(self) -> Result<Output, ToolError> {
        Output::from_serialize(&self)
    }
}

impl IntoOutput for Output {
    fn into_output(self) -> Result<Output, ToolError> {
        Ok(self)
    }
}

impl Serialize for Payload {
    /// Writes `true`: a payload is never serialized.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_model_reads_content_or_the_value() {
        assert_eq!(Output::json(json!({"a": 1})).to_text(), r#"{"a":1}"#);
        assert_eq!(Output::json(json!("hi")).to_text(), "hi");
        assert_eq!(Output::text("seen").with_structured(json!(1)).to_text(), "seen");
        assert_eq!(().into_output().unwrap().to_text(), "");
        let two = Output::text("a").with_content(Content::Json { value: json!([1]) });
        assert_eq!(two.to_text(), "a\n[1]");
    }

    #[test]
    fn a_payload_is_only_for_who_knows_its_type() {
        let output = Output::text("done").with_payload(vec![1_u8, 2]);
        assert_eq!(output.payload.as_ref().unwrap().get::<Vec<u8>>().unwrap().as_slice(), [1, 2]);
        assert!(output.payload.as_ref().unwrap().get::<String>().is_none());
        assert!(!format!("{output:?}").contains('2'));
    }

    #[test]
    fn a_value_without_json_form_is_an_internal_error() {
        let map = std::collections::HashMap::from([(vec![1_u8], 1)]);
        assert_eq!(map.into_output().unwrap_err().code(), crate::Code::Internal);
    }
}
