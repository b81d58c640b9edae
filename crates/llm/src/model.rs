//! The model trait.

use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use toolpost_core::Timestamp;

use crate::{
    BoxFuture, Cost, ErrorKind, ModelError, ModelEvent, ModelInfo, Request, Response, ResponseStream,
};

/// A provider and its name of a model, written `anthropic/claude-sonnet-5-5`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId {
    /// The provider's name: `anthropic`, `script`, `replay`.
    pub provider: String,
    /// The provider's name of the model, or the path of a file.
    pub name: String,
}

impl ModelId {
    /// The id of a provider's model.
    pub fn new(provider: impl Into<String>, name: impl Into<String>) -> Self {
        Self { provider: provider.into(), name: name.into() }
    }
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.name)
    }
}

impl Serialize for ModelId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ModelId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let (provider, name) = text.split_once('/').ok_or_else(|| {
            serde::de::Error::custom(format!("invalid model id `{text}`: expected PROVIDER/NAME"))
        })?;
        Ok(Self::new(provider, name))
    }
}

/// A model that answers requests. Dropping a stream or future cancels the request and closes its connection.
pub trait Model: Send + Sync + fmt::Debug {
    /// The model's id.
    fn id(&self) -> &ModelId;

    /// The model's catalog data, if any.
    fn info(&self) -> Option<&ModelInfo> {
        None
    }

    /// The fallbacks, such as those of a [`FallbackModel`](crate::FallbackModel). Default: none.
    fn alternatives(&self) -> &[Arc<dyn Model>] {
        &[]
    }

    /// The cost of this model's answer at a time, in the service tier that the answer reports.
    ///
    /// `None` if the price is unknown or the usage [incomplete](crate::TokenUsage::incomplete).
    fn cost(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        self.info()?.cost_of(response, at)
    }

    /// Checks that the model supports the request. `stream` and `respond` call it before they send anything.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] names the unsupported feature.
    fn check(&self, request: &Request) -> Result<(), ModelError>;

    /// Requests an answer as a stream, whose last item is [`ModelEvent::Done`] or an error.
    ///
    /// Nothing is sent before the first poll.
    fn stream(&self, request: &Request) -> ResponseStream;

    /// Requests a complete answer, without streaming if the wire supports that.
    ///
    /// Without streaming, the first byte arrives when the answer is complete. Stream long answers.
    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move {
            let mut events = self.stream(request);
            while let Some(event) = events.next().await {
                if let ModelEvent::Done(response) = event? {
                    return Ok(*response);
                }
            }
            Err(ModelError::new(ErrorKind::Protocol, "the stream ended without an answer")
                .with_model(self.id()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_written_as_provider_and_name() {
        let id = ModelId::new("openai-compatible", "org/model");
        assert_eq!(id.to_string(), "openai-compatible/org/model");
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<ModelId>(&text).unwrap(), id);
        assert!(
            serde_json::from_str::<ModelId>("\"bare\"").unwrap_err().to_string().contains("PROVIDER/NAME")
        );
    }
}
