//! What the HTTP exchange needs to know of a provider's wire.

use std::collections::VecDeque;
use std::fmt;

use crate::{ModelError, ModelEvent, Response};

/// A provider's wire, seen from the exchange.
pub(crate) trait Wire: Send + Sync + fmt::Debug {
    /// A new fold for one stream.
    fn fold(&self) -> Box<dyn Fold>;

    /// Reads a whole body of a successful exchange.
    fn read_body(&self, body: &str) -> Result<Response, ModelError>;

    /// The error of an unsuccessful status and its body.
    fn read_error(&self, status: u16, body: &str) -> ModelError;
}

/// One stream on its way to a response.
pub(crate) trait Fold: Send {
    /// Takes one event's data in and appends what it means to `events`. What comes after the answer is ignored.
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError>;

    /// Whether the provider has said that the answer is complete.
    fn is_complete(&self) -> bool;

    /// The answer. An error if it is not complete.
    fn finish(&mut self) -> Result<Response, ModelError>;
}
