//! The interface of a wire: encodes requests and decodes answers.

use std::collections::VecDeque;
use std::fmt;

use crate::json::JsonWriter;
use crate::wires::AnyFold;
use crate::{Feature, ModelError, ModelEvent, ModelId, Request, Response};

/// A provider's wire for one model, without connection and API key.
pub(crate) trait Codec: Send + Sync + fmt::Debug {
    /// The features that the wire emulates, such as structured output through a forced tool call.
    fn emulates(&self) -> &'static [Feature] {
        &[]
    }

    /// The reason why the wire cannot enforce the answer's schema natively, if it cannot.
    fn native_schema_obstacle(&self, request: &Request) -> Option<String> {
        let _ = request;
        None
    }

    /// Checks that the wire and the model support the request.
    fn check(&self, request: &Request) -> Result<(), ModelError>;

    /// Encodes a request.
    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError>;

    /// A new fold for one stream.
    fn fold(&self) -> AnyFold;

    /// Decodes the body of a successful answer.
    fn read_body(&self, body: &str) -> Result<Response, ModelError>;

    /// Decodes the error of an unsuccessful answer.
    fn read_error(&self, status: u16, body: &str) -> ModelError;
}

/// An encoded request.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The path after the base URL, such as `/v1/messages`.
    pub(crate) path: String,
    /// The wire's headers besides the API key and the content type.
    pub(crate) headers: Vec<(&'static str, String)>,
    /// The body.
    pub(crate) body: JsonWriter,
    /// Notices for the user, such as settings that were not sent.
    pub(crate) notices: Vec<String>,
}

/// Folds the events of a stream into a response.
pub(crate) trait Fold {
    /// Decodes one event and appends the resulting events. Data after the answer is ignored.
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError>;

    /// Whether the next event may continue a text of this one.
    fn may_continue(&self, data: &str) -> bool {
        let _ = data;
        true
    }

    /// Whether the answer is complete.
    fn is_complete(&self) -> bool;

    /// Handles the end of the bytes. [`Fold::finish`] tells whether the answer is complete.
    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let _ = events;
        Ok(())
    }

    /// The number of items so far.
    fn count(&self) -> usize;

    /// The answer. An incomplete answer is an error.
    fn finish(&mut self) -> Result<Response, ModelError>;
}

/// Distinct notices about an encoded request.
#[derive(Debug, Default)]
pub(crate) struct Notices(Vec<String>);

impl Notices {
    pub(crate) fn add(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    /// Reports items that another provider cannot read.
    pub(crate) fn add_dropped_items(&mut self, origin: &ModelId) {
        self.add(format!(
            "thinking and hosted tool items of {origin} were dropped: only {} can read them",
            origin.provider
        ));
    }

    pub(crate) fn into_vec(self) -> Vec<String> {
        self.0
    }
}
