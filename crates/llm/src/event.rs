//! The events of a model's answer.

use std::time::Duration;

use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::{Item, ModelError, RawJson, Response, TokenUsage};

/// The stream of an answer's events. It ends after [`ModelEvent::Done`] or the first error.
pub type ResponseStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// One event of an answer. Deltas are for display; [`ModelEvent::Done`] has the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelEvent {
    /// A piece of a text.
    TextDelta {
        /// The item's position in the provider's answer.
        index: u64,
        /// The text to append.
        text: String,
    },
    /// A piece of the model's thinking.
    ThinkingDelta {
        /// The item's position in the provider's answer.
        index: u64,
        /// The text to append.
        text: String,
    },
    /// The start of a tool call, with an empty fragment, or a piece of its arguments.
    ToolCallDelta {
        /// The item's position in the provider's answer.
        index: u64,
        /// The provider's id of the call.
        id: String,
        /// The tool's name.
        name: String,
        /// The JSON text to append to the arguments.
        fragment: String,
    },
    /// A complete item. Items arrive in the answer's order.
    Item(Item),
    /// A complete call or result of a hosted tool, before the items that precede it, for display.
    ///
    /// [`ModelEvent::Item`] delivers it again in order.
    Hosted(Item),
    /// The tokens used so far.
    Usage(TokenUsage),
    /// A notice for the user, such as a setting that was not sent.
    Notice(String),
    /// An attempt failed, and the next one starts after a wait. No delta was delivered before.
    Retrying {
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        /// The wait before the next attempt.
        after: Duration,
        /// The reason why the attempt failed.
        reason: String,
    },
    /// An attempt failed, but the provider may bill it: its usage is unknown.
    ///
    /// See [`ErrorKind::may_be_billed`](crate::ErrorKind::may_be_billed).
    Lost,
    /// The provider restarted the answer: all earlier deltas and items are void.
    Restarted,
    /// An unknown event, unchanged.
    Unknown(RawJson),
    /// The answer. The last event.
    Done(Box<Response>),
}

impl ModelEvent {
    /// An unknown event.
    pub(crate) fn unknown(data: &str) -> Self {
        Self::Unknown(RawJson::parse(data).unwrap_or_else(|_| (&serde_json::Value::from(data)).into()))
    }
}
