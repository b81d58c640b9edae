//! What a model is asked.

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
    /// Instructions that stand above the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The conversation so far.
    pub turns: Vec<Turn>,
    /// The tools that the model may call, in the order that it sees.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tools: Arc<[ToolDefinition]>,
    /// Which of them it may or must call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Tools that the provider itself runs. A provider that lacks one refuses the request before it is sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosted_tools: Vec<HostedTool>,
    /// How to answer.
    pub settings: Settings,
    /// What the provider does with a conversation that gets long. One that cannot refuses the request before it is sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context_edits: Vec<ContextEdit>,
    /// Fields of the provider's own body. Objects are merged with the ones that this crate writes, lists of
    /// `tools` are appended to, any other value replaces. The model, the conversation and `stream` are not among them: a
    /// request that has them here is refused.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub provider_options: Map<String, Value>,
    /// Names of provider features that are not yet general, sent as the provider's beta header. A provider without one
    /// refuses the request before it is sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub betas: Vec<String>,
    /// What the provider may know about the request, such as a pseudonymous `user_id`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// What is carried on to providers, by their names, of answers that are not among the turns any more. See
    /// [`AssistantTurn::carry`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub carry: BTreeMap<String, Map<String, Value>>,
}

impl Request {
    /// A request of one user's text.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self { turns: vec![Turn::user(prompt)], ..Self::default() }
    }

    /// Appends an answer as a turn, with what later requests carry on from it: a container's id, for one.
    pub fn push_response(&mut self, response: &Response) {
        self.turns.push(Turn::Assistant(response.to_turn()));
    }

    /// What the latest answer of a provider that has something of this name left to carry on. See
    /// [`AssistantTurn::carry`].
    pub fn carried(&self, provider: &str, name: &str) -> Option<&Value> {
        let of_answers = self.turns.iter().rev().find_map(|turn| match turn {
            Turn::Assistant(turn) if turn.origin.provider == provider => turn.carry.get(name),
            _ => None,
        });
        of_answers.or_else(|| self.carry.get(provider)?.get(name))
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
    /// What the user said.
    User(Vec<Part>),
    /// Instructions that come in the midst of the conversation. Not every provider takes them.
    System(Vec<Part>),
    /// What a model said.
    Assistant(AssistantTurn),
    /// What the called tools returned.
    ToolResults(Vec<ToolResult>),
}

impl Turn {
    /// A user's turn of one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User(vec![Part::text(text)])
    }
}

/// What a model said, with the model whose wire the items are of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AssistantTurn {
    /// The model that said it. Items of another provider are converted: text and tool calls remain, thinking goes.
    pub origin: ModelId,
    /// The items in the model's order.
    pub items: Vec<Item>,
    /// What later requests to the same provider carry on from this answer, such as the container that its hosted code
    /// ran in, with the time at which it ends. The wire decides what of it still holds.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub carry: Map<String, Value>,
}

impl AssistantTurn {
    /// A turn of a model's items, with nothing to carry on.
    pub fn new(origin: ModelId, items: Vec<Item>) -> Self {
        Self { origin, items, carry: Map::new() }
    }
}

/// A part of a user's turn or of a tool's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text(String),
    /// A picture.
    Image(Media),
    /// A document, such as a PDF file or plain text.
    Document(Media),
    /// A file that was uploaded to the provider, put into the container of its hosted tools. Another provider is told in a
    /// text that it does not have the file, once the turn has an answer.
    ContainerFile {
        /// The provider's id of the file.
        file_id: String,
    },
    /// A part in the provider's own JSON, sent as it is.
    Raw(RawJson),
}

impl Part {
    /// A text part.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

/// A picture or document and where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Media {
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// Where the bytes are.
    pub source: MediaSource,
    /// A document's title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl Media {
    /// Bytes that are sent with the request.
    pub fn from_bytes(media_type: impl Into<String>, bytes: &[u8]) -> Self {
        let encoded = base64::engine::general_purpose::STANDARD.encode(bytes);
        Self { media_type: media_type.into(), source: MediaSource::Base64(encoded.into()), title: None }
    }

    /// Something that the provider fetches itself.
    pub fn from_url(media_type: impl Into<String>, url: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), source: MediaSource::Url(url.into()), title: None }
    }

    /// A file that was uploaded to the provider before.
    pub fn from_file_id(media_type: impl Into<String>, id: impl Into<String>) -> Self {
        Self { media_type: media_type.into(), source: MediaSource::FileId(id.into()), title: None }
    }
}

/// Where the bytes of a [`Media`] are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MediaSource {
    /// Here, in standard base64 with padding.
    Base64(Arc<str>),
    /// Here, as plain text.
    Text(Arc<str>),
    /// At an address that the provider can reach.
    Url(String),
    /// With the provider, under this id. Another provider is told in a text that it does not have the file, once the turn
    /// has an answer.
    FileId(String),
}

/// What a tool returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The id of the call.
    pub call_id: String,
    /// The tool's name.
    pub name: String,
    /// What the model sees.
    pub content: Vec<Part>,
    /// The same as data, for scripted models; it is never sent to a provider.
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
    /// The name by which the model calls it.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// The JSON Schema of its arguments, an object.
    pub input_schema: RawJson,
    /// Whether the provider must keep the arguments to the schema. The wire then sends a copy of the schema that the
    /// provider takes; what it gives back for a parameter that the schema leaves optional may be `null`. Default: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Whether the model finds the tool by the provider's own search, [`HostedTool::ToolSearch`] or one of the caller's,
    /// instead of seeing it from the start. Default: no.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deferred: bool,
    /// Further fields of the provider's definition, such as `allowed_callers`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_options: Map<String, Value>,
}

impl ToolDefinition {
    /// A definition of a name, a description and a JSON Schema.
    pub fn new(name: impl Into<String>, description: impl Into<String>, input_schema: &Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            input_schema: input_schema.into(),
            strict: false,
            deferred: false,
            provider_options: Map::new(),
        }
    }
}

/// A tool that the provider runs itself. Each wire says it in its own way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HostedTool {
    /// Searches the web.
    WebSearch {
        /// The most searches in one answer. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_uses: Option<u32>,
        /// The only domains to search. Default: all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allowed_domains: Vec<String>,
        /// Domains not to search. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocked_domains: Vec<String>,
    },
    /// Reads pages of the web.
    WebFetch {
        /// The most pages in one answer. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_uses: Option<u32>,
        /// The only domains to read from. Default: all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allowed_domains: Vec<String>,
        /// Domains not to read from. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocked_domains: Vec<String>,
    },
    /// Searches posts on X. xAI alone has it.
    XSearch {
        /// The only accounts whose posts to search, without `@`; at most 10, and not beside `blocked_handles`. Default:
        /// all.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        allowed_handles: Vec<String>,
        /// Accounts whose posts not to search, without `@`; at most 10. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        blocked_handles: Vec<String>,
        /// The first day of posts to search. Default: the oldest.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_date: Option<Date>,
        /// The last day of posts to search. Default: today.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_date: Option<Date>,
        /// Whether the model looks at pictures in posts. Default: no.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        images: bool,
        /// Whether the model looks at videos in posts. Default: no.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        videos: bool,
    },
    /// Searches files that were put into the provider's stores: vector stores of OpenAI, file search stores of Gemini,
    /// collections of xAI.
    FileSearch {
        /// The stores, by the provider's ids.
        stores: Vec<String>,
        /// The most results. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        max_results: Option<u32>,
    },
    /// Runs code in the provider's sandbox.
    CodeExecution {
        /// The provider's version of the tool, such as `code_execution_20250825`. Default: the newest that the model
        /// takes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
        /// Uploaded files to put into the sandbox, by the provider's ids, where that belongs to the tool. Default: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        file_ids: Vec<String>,
    },
    /// Searches the tools of the request that are deferred; what it finds, the model sees from then on.
    ToolSearch {
        /// The provider's version of the tool, such as `tool_search_tool_regex_20251119`. Default: the one that searches
        /// by words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        version: Option<String>,
    },
    /// A tool in the provider's own JSON, sent as it is.
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

/// A change that the provider makes to what the model sees of a long conversation. What is sent stays whole, and what the
/// provider puts in its place goes back with the answer that it came with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ContextEdit {
    /// A summary takes the place of what was said before.
    Compact {
        /// From how many tokens of input on. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_tokens: Option<u64>,
    },
    /// Old results of tools are left out.
    ClearToolResults {
        /// From how many tokens of input on. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        at_tokens: Option<u64>,
        /// How many of the latest calls keep their results. Default: the provider's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keep: Option<u32>,
    },
}

impl ContextEdit {
    /// The change's name in errors: `compact`.
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
    /// It must call a tool.
    Any,
    /// It must not call a tool.
    None,
    /// It must call this tool.
    Tool(String),
}

/// How a model should answer. What is not set is not sent, but for the limit of output tokens where a wire demands
/// one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// The most tokens to answer with. Default: the provider's, 4,096 on the Anthropic wire, which demands a value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
    /// The randomness of sampling. Newer models refuse it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Sample only from the most probable tokens of this total probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Sample only from this many most probable tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// Texts that end the answer. A wire without them, that of OpenAI and xAI, leaves them out with a notice: the answer
    /// may then go on behind them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// The seed of sampling. A wire without seeds leaves it out with a notice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether and how much the model thinks first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking: Option<Thinking>,
    /// How much effort the model spends on the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// Whether the model may call several tools at once. Default: the provider's, usually yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_tool_calls: Option<bool>,
    /// What the answer's text must be, where it is not free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<OutputFormat>,
    /// What the provider should keep for the next request. Default: automatic.
    pub prompt_caching: PromptCaching,
}

/// What an answer's text must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputFormat {
    /// Some JSON. A wire without a form for it tells the model so in the instructions, with a notice.
    Json,
    /// JSON that fits a schema.
    Schema {
        /// What the answer is called, for providers that want a name.
        name: String,
        /// The JSON Schema, as the caller has it; each wire sends what its provider takes of it.
        schema: RawJson,
    },
}

impl OutputFormat {
    /// The format of a schema, called `answer`.
    pub fn schema(schema: &Value) -> Self {
        Self::Schema { name: "answer".to_owned(), schema: schema.into() }
    }
}

/// Whether and how much a model thinks before it answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Thinking {
    /// It does not think.
    Off,
    /// It decides itself.
    Adaptive,
    /// At most this many tokens.
    Budget(u32),
}

/// How much effort a model spends. Not every model knows every level; the provider refuses what it does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Effort {
    /// As little as possible.
    Minimal,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    High,
    /// Very much.
    Xhigh,
    /// As much as possible.
    Max,
}

impl Effort {
    /// Every level, the least first.
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

/// What a provider keeps of a request, so that the next one with the same beginning is cheaper. It applies where
/// the wire leaves the choice to the caller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PromptCaching {
    /// Nothing is asked for.
    Off,
    /// The provider finds the longest beginning worth keeping, for its default time.
    #[default]
    Automatic,
    /// The same, for this long.
    AutomaticFor(CacheLifetime),
    /// Marks after the tools, the instructions and the last turn.
    Marks(CacheLifetime),
}

/// How long a provider keeps a prompt.
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
    fn a_request_survives_being_saved() {
        let raw = RawJson::parse(r#"{"type":"new","n":1.0,"big":123456789012345678901234567890}"#).unwrap();
        let mut request = Request::new("hello");
        request.turns.push(Turn::Assistant(AssistantTurn {
            origin: ModelId::new("anthropic", "claude-x"),
            items: vec![Item::new(crate::ItemView::Other { kind: "new".into() }, raw.clone())],
            carry: serde_json::json!({"container": {"id": "c"}}).as_object().unwrap().clone(),
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
