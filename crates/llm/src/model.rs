//! What a model is.

use std::fmt;
use std::sync::Arc;

use futures_util::StreamExt as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use toolpost_core::Timestamp;

use crate::{
    BoxFuture, Cost, ErrorKind, ModelError, ModelEvent, ModelInfo, Request, Response, ResponseStream,
};

/// A provider and the name it gives to a model, written `anthropic/claude-sonnet-5-5`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelId {
    /// The wire's name: `anthropic`, `script`, `replay`.
    pub provider: String,
    /// The provider's name for the model, or the file's path.
    pub name: String,
}

impl ModelId {
    /// An id of a provider's name and a model's name.
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
        let (provider, name) = text
            .split_once('/')
            .ok_or_else(|| serde::de::Error::custom(format!("model id `{text}`: expected PROVIDER/NAME")))?;
        Ok(Self::new(provider, name))
    }
}

/// A model that answers requests. Dropping a stream or a future ends the exchange and closes its connection.
pub trait Model: Send + Sync + fmt::Debug {
    /// Which model this is.
    fn id(&self) -> &ModelId;

    /// What is known of the model; of a scripted one, that it costs nothing.
    fn info(&self) -> Option<&ModelInfo> {
        None
    }

    /// The models that may answer in its place, such as those of a [`FallbackModel`](crate::FallbackModel) after the
    /// first. Default: none.
    fn alternatives(&self) -> &[Arc<dyn Model>] {
        &[]
    }

    /// What an answer that this model gave at a time costs, at the service level that the answer names; `None` if its
    /// price is not known, or not how many tokens were used ([`Usage::incomplete`](crate::Usage::incomplete)).
    fn cost(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        self.info()?.cost_of(response, at)
    }

    /// Whether the model can take the request: a feature that it lacks is an error ([`ErrorKind::Unsupported`])
    /// before anything is sent. `stream` and `respond` call it themselves.
    fn check(&self, request: &Request) -> Result<(), ModelError>;

    /// Asks for an answer as a stream. The last item is [`ModelEvent::Done`] or an error, and then the stream ends.
    /// Nothing is sent before the stream is polled.
    fn stream(&self, request: &Request) -> ResponseStream;

    /// Asks for an answer as a whole. Models whose wire has a form without streaming use it: the first byte then
    /// comes when the answer is ready, so a long answer is better streamed.
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
