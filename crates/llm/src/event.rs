//! What a model says while it answers.

use std::time::Duration;

use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::{Item, ModelError, RawJson, Response, Usage};

/// The events of one answer. It ends after [`ModelEvent::Done`] or the first error.
pub type ResponseStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// One event of an answer. Deltas are for showing; [`ModelEvent::Done`] alone is the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ModelEvent {
    /// More of a text.
    TextDelta {
        /// The item's position in the provider's answer.
        index: u64,
        /// The text to append.
        text: String,
    },
    /// More of the model's thinking.
    ThinkingDelta {
        /// The item's position in the provider's answer.
        index: u64,
        /// The text to append.
        text: String,
    },
    /// The start of a tool call (with an empty fragment) or more of its arguments.
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
    /// An item is complete. Items come in the answer's order.
    Item(Item),
    /// A call of a tool that the provider runs, or its result, is complete before the items in front of it: for showing.
    /// [`ModelEvent::Item`] delivers it again, in its place.
    Hosted(Item),
    /// The tokens used so far.
    Usage(Usage),
    /// Something that the caller's user should know, such as a setting that was not sent.
    Notice(String),
    /// An attempt failed; the next begins after a wait. No delta has been delivered before.
    Retrying {
        /// The number of the attempt that failed, from 1.
        attempt: u32,
        /// How long the wait is.
        after: Duration,
        /// Why the attempt failed.
        reason: String,
    },
    /// An attempt failed after its request may have reached the provider: nobody knows what it consumed
    /// ([`ErrorKind::may_be_billed`](crate::ErrorKind::may_be_billed)).
    Lost,
    /// The provider began the answer anew: every delta and item delivered before is void.
    Restarted,
    /// An event that this crate does not know, as it came.
    Unknown(RawJson),
    /// The answer. The last event.
    Done(Box<Response>),
}
