//! The items of a model's answer.

use serde::{Deserialize, Serialize};

use crate::RawJson;

/// The typed view of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ItemView {
    /// Text for the user.
    Text {
        /// The text.
        text: String,
        /// The cited sources and files.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        citations: Vec<Citation>,
    },
    /// The model's thinking.
    Thinking {
        /// The text; empty if the provider hides it.
        text: String,
        /// Whether the provider signed or encrypted the thinking to verify it in later requests.
        has_signature: bool,
    },
    /// A call of one of the caller's tools.
    ToolCall {
        /// The provider's id of the call, which the result must have.
        id: String,
        /// The tool's name.
        name: String,
        /// The arguments as JSON; `Err` has the text of invalid JSON.
        arguments: Result<RawJson, String>,
    },
    /// A call of a hosted tool.
    ServerToolCall {
        /// The provider's id of the call.
        id: String,
        /// The tool's name.
        name: String,
        /// The input of the tool as JSON, if known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input: Option<RawJson>,
        /// The output, if the provider combines call and output in one item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        output: Option<Box<HostedOutput>>,
    },
    /// The result of a hosted tool.
    ServerToolResult {
        /// The id of the call.
        call_id: String,
        /// The provider's name of the result type.
        kind: String,
        /// The output.
        output: Box<HostedOutput>,
    },
    /// Any other item.
    Other {
        /// The provider's name of the item type.
        kind: String,
    },
}

/// A source or file that a text cites.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Citation {
    /// The URL of a web page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The title of the page or document.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The file in the provider's storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<FileRef>,
}

/// A reference to a file in the provider's storage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct FileRef {
    /// The provider's id.
    pub id: String,
    /// The name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The container of the file, if it is in one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// The output of a hosted tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostedOutput {
    /// Whether the tool failed.
    pub is_error: bool,
    /// The provider's error code, such as `execution_time_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The standard output of code, or any other text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The standard error of code.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
    /// The exit status of a program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub return_code: Option<i64>,
    /// The output files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileRef>,
    /// The pages that were found or fetched.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Citation>,
}

/// One item of an answer: a typed view, and the provider's JSON, which later requests send unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    view: ItemView,
    raw: RawJson,
}

impl Item {
    /// An item with its view and JSON.
    pub(crate) fn new(view: ItemView, raw: RawJson) -> Self {
        Self { view, raw }
    }

    /// A text item that every wire accepts.
    pub fn from_text(text: impl Into<String>) -> Self {
        let text = text.into();
        let raw = RawJson::from(&serde_json::json!({ "type": "text", "text": text }));
        Self { view: ItemView::Text { text, citations: Vec::new() }, raw }
    }

    /// The typed view.
    pub fn view(&self) -> &ItemView {
        &self.view
    }

    /// The provider's JSON.
    pub fn raw(&self) -> &RawJson {
        &self.raw
    }
}
