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
        /// Where the provider says that it is from, and files that it names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        citations: Vec<Citation>,
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
        /// What the tool was given, as JSON, if the provider says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<RawJson>,
        /// What came of it, where the provider puts both into one item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Box<HostedOutput>>,
    },
    /// The result of a tool that the provider ran.
    ServerToolResult {
        /// The id of the call.
        call_id: String,
        /// The provider's name for the kind of result.
        kind: String,
        /// What came of it.
        output: Box<HostedOutput>,
    },
    /// Something else.
    Other {
        /// The provider's name for it.
        kind: String,
    },
}

/// Where a text is from, or a file that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Citation {
    /// The address, of something on the web.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The title of the page or document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The file, of something that the provider keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FileRef>,
}

/// A file that the provider keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct FileRef {
    /// The provider's id.
    pub id: String,
    /// The name, if the provider says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The container that it lies in, if it lies in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// What came of a tool that the provider ran, as far as it can be shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostedOutput {
    /// Whether the tool failed.
    pub is_error: bool,
    /// The provider's code of the failure, such as `execution_time_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// What code wrote to standard output, or what else there is to read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// What code wrote to standard error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    /// The status that a program ended with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_code: Option<i64>,
    /// Files that were made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRef>,
    /// Pages that were found or read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Citation>,
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

    /// A text that is of no provider's wire: each takes it as text.
    pub fn of_text(text: impl Into<String>) -> Self {
        let text = text.into();
        let raw = RawJson::from(&serde_json::json!({ "type": "text", "text": text }));
        Self { view: ItemView::Text { text, citations: Vec::new() }, raw }
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
