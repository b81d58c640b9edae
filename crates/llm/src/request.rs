//! Requests to models.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Date, Item, ModelId, RawJson, Response};

/// A request, the same for every provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// The system instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation so far.
    pub turns: Vec<Turn>,
    /// The tools that the model may call, in order.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tools: Arc<[ToolDefinition]>,
    /// Which tools the model may or must call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// The hosted tools. An unsupported one is an error before the request is sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosted_tools: Vec<HostedTool>,
    /// The settings of the answer.
    pub settings: ModelSettings,
    /// Context edits by the provider. An unsupported one is an error before the request is sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context_edits: Vec<ContextEdit>,
    /// Additional fields of the provider's body.
    ///
    /// Objects are merged, `tools` are appended, and other values replace. The model, the conversation and `stream` are
    /// reserved: such an option is an error.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub provider_options: Map<String, Value>,
    /// Beta features for the provider's beta header. They are an error for a provider without one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub betas: Vec<String>,
    /// Metadata for the provider, such as a pseudonymous `user_id`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Provider state of answers that are no longer among the turns, by provider.
    ///
    /// See [`AssistantTurn::provider_state`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub provider_state: BTreeMap<String, Map<String, Value>>,
}

impl Request {
    /// A request with one user turn.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self { turns: vec![Turn::user(prompt)], ..Self::default() }
    }

    /// Appends an answer as a turn, with its provider state.
    pub fn push_response(&mut self, response: &Response) {
        self.turns.push(Turn::Assistant(response.to_turn()));
    }

    /// The latest provider state of this name. See [`AssistantTurn::provider_state`].
    pub fn provider_state(&self, provider: &str, name: &str) -> Option<&Value> {
        let latest = self.turns.iter().rev().find_map(|turn| match turn {
            Turn::Assistant(turn) if turn.origin.provider == provider => turn.provider_state.get(name),
            _ => None,
        });
        latest.or_else(|| self.provider_state.get(provider)?.get(name))
    }

    /// The tool results of the conversation, oldest first.
    pub fn tool_results(&self) -> impl DoubleEndedIterator<Item = &ToolResult> {
        self.turns.iter().flat_map(|turn| match turn {
            Turn::ToolResults(results) => results.as_slice(),
            _ => &[],
        })
    }
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Turn {
    /// A turn of the user.
    User(Vec<Part>),
    /// Instructions within the conversation, which not every provider supports.
    System(Vec<Part>),
    /// An answer of a model.
    Assistant(AssistantTurn),
    /// The results of tool calls.
    ToolResults(Vec<ToolResult>),
}

impl Turn {
    /// A user turn of one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User(vec![Part::text(text)])
    }

    /// The items of an answer; none for other turns.
    pub fn items(&self) -> &[Item] {
        match self {
            Self::Assistant(turn) => &turn.items,
            _ => &[],
        }
    }
}

/// An answer of a model, with the model whose wire the items use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssistantTurn {
    /// The model of the answer. For another provider, text and tool calls are converted and thinking is dropped.
    pub origin: ModelId,
    /// The items in order.
    pub items: Vec<Item>,
    /// State for later requests to the same provider, such as the container of hosted code and its expiry time.
    ///
    /// The wire decides what is still valid.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_state: Map<String, Value>,
}

impl AssistantTurn {
    /// A turn of a model's items, without provider state.
    pub fn new(origin: ModelId, items: Vec<Item>) -> Self {
        Self { origin, items, provider_state: Map::new() }
    }
}

/// A part of a user turn or of a tool result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text(String),
    /// An image.
    Image(Media),
    /// A document, such as a PDF file or plain text.
    Document(Media),
    /// An uploaded file for the container of hosted tools.
    ///
    /// For another provider, a text replaces the file once the turn has an answer.
    ContainerFile {
        /// The provider's id of the file.
        file_id: String,
    },
    /// A part in the provider's JSON, sent unchanged.
    Raw(RawJson),
}

impl Part {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

/// An image or document and its source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Media {
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// The source of the bytes.
    pub source: MediaSource,
    /// The title of a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl Media {
    /// Media sent with the request.
    pub fn from_bytes(media_type: impl Into<String>, bytes: &[u8]) -> Self {
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        Self { media_type: media_type.into(), source: MediaSource::Base64(encoded.into()), title: None }
    }

    /// Media that the provider fetches.
    pub fn from_url(media_type: impl Into<String>, url: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), source: MediaSource::Url(url.into()), title: None }
    }

    /// A file in the provider's storage.
    pub fn from_file_id(media_type: impl Into<String>, id: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), source: MediaSource::FileId(id.into()), title: None }
    }
}

/// The source of a [`Media`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource {
    /// Standard base64 with padding.
    Base64(Arc<str>),
    /// Plain text.
    Text(Arc<str>),
    /// A URL that the provider can reach.
    Url(String),
    /// The id of a file in the provider's storage.
    ///
    /// For another provider, a text replaces the file once the turn has an answer.
    FileId(String),
}

/// The result of a tool call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The id of the call.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// The content for the model.
    pub content: Vec<Part>,
    /// The structured result for scripted models. It is never sent to a provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub structured: Option<Value>,
    /// Whether the call failed.
    #[serde(default)]
    pub is_error: bool,
}

impl ToolResult {
    /// A result of one text.
    pub fn text(call_id: impl Into<String>, name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            call_id: call_id.into(),
            name: name.into(),
            content: vec![Part::text(text)],
            structured: None,
            is_error: false,
        }
    }

    /// The text parts, joined by line breaks.
    pub fn joined_text(&self) -> String {
        let texts = self.content.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// The tool's name.
    pub name: String,
    /// The tool's purpose and when to use it.
    pub description: String,
    /// The JSON Schema of the arguments, an object.
    pub input_schema: RawJson,
    /// Whether the provider must enforce the schema. Default: no.
    ///
    /// The wire sends a copy of the schema in the provider's dialect. Optional arguments may then be `null`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Whether the model finds the tool only by tool search: [`HostedTool::ToolSearch`] or the caller's. Default: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deferred: bool,
    /// Additional fields of the provider's definition, such as `allowed_callers`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_options: Map<String, Value>,
    /// The arguments that recordings and stored runs mask. Not part of a recorded request.
    #[serde(skip)]
    pub sensitive: Vec<String>,
}

impl ToolDefinition {
    /// A definition with a name, a description and a JSON Schema.
    pub fn new(name: impl Into<String>, description: impl Into<String>, input_schema: &Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input_schema: input_schema.into(),
            strict: false,
            deferred: false,
            provider_options: Map::new(),
            sensitive: Vec::new(),
        }
    }
}

/// A hosted tool, which the provider runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostedTool {
    /// Searches the web.
    WebSearch {
        /// The maximum searches per answer. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_uses: Option<u32>,
        /// The domains to search. Default: all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allowed_domains: Vec<String>,
        /// The domains not to search. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocked_domains: Vec<String>,
    },
    /// Fetches web pages.
    WebFetch {
        /// The maximum pages per answer. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_uses: Option<u32>,
        /// The domains to fetch from. Default: all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allowed_domains: Vec<String>,
        /// The domains not to fetch from. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocked_domains: Vec<String>,
    },
    /// Searches posts on X (xAI only).
    XSearch {
        /// The accounts to search, without `@`; at most 10, and not together with `blocked_handles`. Default: all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allowed_handles: Vec<String>,
        /// The accounts not to search, without `@`; at most 10. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocked_handles: Vec<String>,
        /// The first day of posts to search. Default: the oldest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_date: Option<Date>,
        /// The last day of posts to search. Default: today.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_date: Option<Date>,
        /// Whether the model sees images in posts. Default: no.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        images: bool,
        /// Whether the model sees videos in posts. Default: no.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        videos: bool,
    },
    /// Searches files in stores of the provider.
    ///
    /// These are OpenAI's vector stores, Gemini's file search stores and xAI's collections.
    FileSearch {
        /// The provider's ids of the stores.
        stores: Vec<String>,
        /// The maximum results. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_results: Option<u32>,
    },
    /// Runs code in the provider's sandbox.
    CodeExecution {
        /// The version of the tool, such as `code_execution_20250825`. Default: the model's newest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        /// The provider's ids of uploaded files for the sandbox. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        file_ids: Vec<String>,
    },
    /// Searches the deferred tools of the request. The model sees found tools from then on.
    ToolSearch {
        /// The version of the tool, such as `tool_search_tool_regex_20251119`. Default: search by words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    /// A tool in the provider's JSON, sent unchanged.
    Raw(RawJson),
}

impl HostedTool {
    /// The tool's name in errors and records: `web_search`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::WebSearch { .. } => "web_search",
            Self::WebFetch { .. } => "web_fetch",
            Self::XSearch { .. } => "x_search",
            Self::FileSearch { .. } => "file_search",
            Self::CodeExecution { .. } => "code_execution",
            Self::ToolSearch { .. } => "tool_search",
            Self::Raw(_) => "raw",
        }
    }
}

/// An edit of a long conversation by the provider, before the model sees it.
///
/// Requests still contain the whole conversation. The provider's replacement is an item of its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContextEdit {
    /// Replaces earlier turns by a summary.
    Compact {
        /// The input tokens that trigger the edit. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_tokens: Option<u64>,
    },
    /// Removes old tool results.
    ClearToolResults {
        /// The input tokens that trigger the edit. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_tokens: Option<u64>,
        /// The number of latest calls that keep their results. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep: Option<u32>,
    },
}

impl ContextEdit {
    /// The name in errors: `compact`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Compact { .. } => "compact",
            Self::ClearToolResults { .. } => "clear_tool_results",
        }
    }
}

/// Which tools the model may or must call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The model must call a tool.
    Any,
    /// The model must not call a tool.
    None,
    /// The model must call this tool.
    Tool(String),
}

/// The settings of an answer. Unset values are not sent, except where a wire requires a limit of output tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelSettings {
    /// The limit of output tokens. Default: the provider's; 4,096 for Anthropic, which requires a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
    /// The sampling temperature. Newer models do not support it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Top-p: samples from the most probable tokens with this total probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Top-k: samples from this number of most probable tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// The stop sequences. The Responses API of OpenAI and xAI has none: they are dropped with a notice.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// The sampling seed. A wire without seeds drops it with a notice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether and how much the model thinks first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// The effort of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Whether parallel tool calls are allowed. Default: the provider's, usually yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// The format of the answer's text. Default: free text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputFormat>,
    /// The prompt caching of the provider. Default: automatic.
    pub prompt_caching: PromptCaching,
}

/// The format of an answer's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputFormat {
    /// Any JSON. A wire without a JSON mode adds an instruction, with a notice.
    Json,
    /// JSON that matches a schema.
    Schema {
        /// The name of the format, for providers that require one.
        name: String,
        /// The JSON Schema. Each wire sends it in the provider's dialect.
        schema: RawJson,
    },
}

impl OutputFormat {
    /// The format of a schema, with the name `answer`.
    pub fn schema(schema: &Value) -> Self {
        Self::Schema { name: "answer".to_owned(), schema: schema.into() }
    }
}

/// Whether and how much a model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Thinking {
    /// No thinking.
    Off,
    /// The model decides.
    Adaptive,
    /// A budget in tokens.
    Budget(u32),
}

/// The effort of an answer. An unsupported level is replaced by the nearest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Effort {
    /// Minimal effort.
    Minimal,
    /// Low effort.
    Low,
    /// Medium effort.
    Medium,
    /// High effort.
    High,
    /// Very high effort.
    Xhigh,
    /// Maximal effort.
    Max,
}

impl Effort {
    /// Every level, lowest first.
    pub const ALL: &[Self] = &[Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max];

    /// The level's name on the wires.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Xhigh => "xhigh",
            Self::Max => "max",
        }
    }
}

/// The prompt caching of a provider for later requests with the same beginning.
///
/// It applies to wires that leave the choice to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PromptCaching {
    /// No caching is requested.
    Off,
    /// The provider chooses the cached prefix, with its default lifetime.
    #[default]
    Automatic,
    /// The provider chooses the cached prefix, with this lifetime.
    AutomaticFor(CacheLifetime),
    /// Breakpoints after the tools, the instructions and the last turn.
    Breakpoints(CacheLifetime),
}

/// The lifetime of a cached prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CacheLifetime {
    /// Five minutes.
    #[serde(rename = "5m")]
    FiveMinutes,
    /// One hour.
    #[serde(rename = "1h")]
    OneHour,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_serialization() {
        let raw = RawJson::parse(r#"{"type":"new","n":1.0,"big":123456789012345678901234567890}"#).unwrap();
        let mut request = Request::new("hello");
        request.turns.push(Turn::Assistant(AssistantTurn {
            origin: ModelId::new("anthropic", "claude-x"),
            items: vec![Item::new(crate::ItemView::Other { kind: "new".into() }, raw.clone())],
            provider_state: serde_json::json!({"container": {"id": "c"}}).as_object().unwrap().clone(),
        }));
        request.turns.push(Turn::ToolResults(vec![ToolResult::text("1", "look", "seen")]));
        request.tools =
            vec![ToolDefinition::new("look", "Looks.", &serde_json::json!({"type": "object"}))].into();
        request.settings.prompt_caching = PromptCaching::AutomaticFor(CacheLifetime::OneHour);
        let saved = serde_json::to_string(&request).unwrap();
        let read: Request = serde_json::from_str(&saved).unwrap();
        assert_eq!(read, request);
        let Turn::Assistant(turn) = &read.turns[1] else { panic!("not an assistant turn") };
        assert_eq!(turn.items[0].raw().get(), raw.get());
        assert_eq!(read.tool_results().next().unwrap().joined_text(), "seen");
    }
}
