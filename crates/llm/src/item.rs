//! One piece of what a model said.

use serde::{Deserialize, Serialize};

use crate::RawJson;

/// What an item is, as far as this crate understands it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ItemView {
    /// Text for the user.
    Text {
        /// The text.
        text: String,
    },
    /// The model's thinking.
    Thinking {
        /// The text; empty if the provider keeps it to itself.
        text: String,
        /// Whether the provider signed or encrypted it, so that it can be checked when it comes back.
        has_signature: bool,
    },
    /// A call of one of the caller's tools.
    ToolCall {
        /// The provider's id of the call, which the result must name.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments as JSON; `Err` has the text if the model did not produce JSON.
        arguments: Result<RawJson, String>,
    },
    /// A call of a tool that the provider runs.
    ServerToolCall {
        /// The provider's id of the call.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// The result of a tool that the provider ran.
    ServerToolResult {
        /// The id of the call.
        call_id: String,
        /// The provider's name for the kind of result.
        kind: String,
        /// Whether the tool failed.
        is_error: bool,
    },
    /// Something else.
    Other {
        /// The provider's name for it.
        kind: String,
    },
}

/// One piece of an answer: what it means, and the provider's own JSON, which goes back unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    view: ItemView,
    raw: RawJson,
}

impl Item {
    /// An item of its view and its JSON.
    pub(crate) fn new(view: ItemView, raw: RawJson) -> Self {
        Self { view, raw }
    }

    /// What the item is.
    pub fn view(&self) -> &ItemView {
        &self.view
    }

    /// The provider's own JSON.
    pub fn raw(&self) -> &RawJson {
        &self.raw
    }
}
