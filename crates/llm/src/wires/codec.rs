//! What a model behind HTTP needs to know of its provider's wire.

use std::collections::VecDeque;
use std::fmt;

use crate::json::JsonWriter;
use crate::wires::AnyFold;
use crate::{Feature, ModelError, ModelEvent, Request, Response};

/// A provider's wire for one model: how a request is written, how an answer is read. No connection, no key.
pub(crate) trait Codec: Send + Sync + fmt::Debug {
    /// What the wire brings about in its own way for models that lack it, such as answers that fit a schema by way of
    /// a tool that must be called. The catalog refuses everything else that a model is known to lack.
    fn emulates(&self) -> &'static [Feature] {
        &[]
    }

    /// Why the wire's own form cannot hold the answer to the schema that the request has for it, if so.
    fn form_obstacle(&self, request: &Request) -> Option<String> {
        let _ = request;
        None
    }

    /// Whether the wire and the model can take the request. What they lack is an error before anything is sent.
    fn check(&self, request: &Request) -> Result<(), ModelError>;

    /// Writes a request.
    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError>;

    /// A new fold for one stream.
    fn fold(&self) -> AnyFold;

    /// Reads a whole body of a successful exchange.
    fn read_body(&self, body: &str) -> Result<Response, ModelError>;

    /// The error of an unsuccessful status and its body.
    fn read_error(&self, status: u16, body: &str) -> ModelError;
}

/// A request as it is sent.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// What stands behind the base URL, such as `/v1/messages`.
    pub(crate) path: String,
    /// Headers that the wire wants beyond the key and the content type.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// The body.
    pub(crate) body: JsonWriter,
    /// What the caller's user should know, such as settings that were not sent.
    pub(crate) notices: Vec<String>,
}

/// One stream on its way to a response.
pub(crate) trait Fold {
    /// Takes one event's data in and appends what it means to `events`. What comes after the answer is ignored.
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError>;

    /// Whether the event after this one may go on with a text of this one.
    fn goes_on(&self, data: &str) -> bool {
        let _ = data;
        true
    }

    /// Whether the provider has said that the answer is complete.
    fn is_complete(&self) -> bool;

    /// The bytes have ended: whether that was the end of the answer is what [`Fold::finish`] says.
    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let _ = events;
        Ok(())
    }

    /// How many items the answer has so far.
    fn count(&self) -> usize;

    /// The answer. An error if it is not complete.
    fn finish(&mut self) -> Result<Response, ModelError>;
}

/// What was not sent and why, each once.
#[derive(Debug, Default)]
pub(crate) struct Notices(Vec<String>);

impl Notices {
    pub(crate) fn add(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    pub(crate) fn into_vec(self) -> Vec<String> {
        self.0
    }
}
