//! A request as the body of the Messages API.

use std::borrow::Cow;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::fields::Fields;
use crate::{
    AssistantTurn, CacheLifetime, Effort, Item, ItemView, Media, MediaSource, ModelError, ModelId, Part,
    PromptCaching, RawJson, Request, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn,
};

/// The wire demands a limit of output tokens; this one every model can give.
const DEFAULT_MAX_TOKENS: u32 = 4_096;

/// A body, and what the caller's user should know about it.
#[derive(Debug)]
pub(super) struct Encoded<'a> {
    pub(super) body: Body<'a>,
    pub(super) notices: Vec<String>,
}

/// A body of the wire. The conversation, by far its largest part, is written once, straight to where it is sent from.
#[derive(Debug)]
pub(super) struct Body<'a> {
    before: Fields,
    /// `None` if the caller's options replace them.
    messages: Option<Vec<Message<'a>>>,
    after: Fields,
}

impl Body<'_> {
    /// The bytes to send.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let messages = self.messages.as_ref().map_or(0, Vec::len);
        let about = self.before.text_size() + messages * ABOUT_A_MESSAGE + self.after.text_size();
        let mut bytes = Vec::with_capacity(about);
        serde_json::to_writer(&mut bytes, self).map(|()| bytes)
    }
}

impl Serialize for Body<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, value) in self.before.iter() {
            map.serialize_entry(name, value)?;
        }
        if let Some(messages) = &self.messages {
            map.serialize_entry("messages", messages)?;
        }
        for (name, value) in self.after.iter() {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// The room that is made for a message before it is written, in bytes.
const ABOUT_A_MESSAGE: usize = 256;

/// The provider's name in a [`ModelId`].
pub(super) const PROVIDER: &str = "anthropic";

/// Writes the body. A feature that the wire lacks is an error.
pub(super) fn encode<'a>(
    model: &ModelId,
    request: &'a Request,
    stream: bool,
) -> Result<Encoded<'a>, ModelError> {
    let mut encoder = Encoder { notices: Vec::new() };
    let body = encoder.body(model, request, stream).map_err(|error| {
        ModelError::new(crate::ErrorKind::InvalidRequest, error.to_string()).with_model(model)
    })?;
    Ok(Encoded { body, notices: encoder.notices })
}

/// A message of the wire.
#[derive(Debug, Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

/// A content block or a tool of the wire. The whole conversation is written for every request, so that a block is made
/// only where what is kept of it does not say it already.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Block<'a> {
    Kept(&'a RawJson),
    Made(RawJson),
    Text(TextBlock<'a>),
    Result(ResultBlock<'a>),
    Tool(ToolBlock<'a>),
}

/// A text of the wire.
#[derive(Debug, Serialize)]
struct TextBlock<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// A tool's result of the wire.
#[derive(Debug, Serialize)]
struct ResultBlock<'a> {
    r#type: &'static str,
    tool_use_id: Cow<'a, str>,
    content: Vec<Block<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    is_error: Option<bool>,
}

/// A tool of the wire, without options of its own.
#[derive(Debug, Serialize)]
struct ToolBlock<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawJson,
}

struct Encoder {
    notices: Vec<String>,
}

impl Encoder {
    fn notice(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notices.contains(&text) {
            self.notices.push(text);
        }
    }

    fn body<'a>(
        &mut self,
        model: &ModelId,
        request: &'a Request,
        stream: bool,
    ) -> Result<Body<'a>, serde_json::Error> {
        let settings = &request.settings;
        let mut body = Fields::default();
        body.put("model", &model.name)?;
        body.put("max_tokens", &max_tokens(settings.max_output_tokens, settings.thinking.as_ref()))?;
        let marks = match &settings.prompt_caching {
            PromptCaching::Off => None,
            PromptCaching::Automatic => {
                body.put("cache_control", &json!({"type": "ephemeral"}))?;
                None
            }
            PromptCaching::AutomaticFor(lifetime) => {
                body.put("cache_control", &lasting(*lifetime))?;
                None
            }
            PromptCaching::Marks(lifetime) => Some(lasting(*lifetime)),
        };
        if stream {
            body.put("stream", &true)?;
        }
        if let Some(system) = request.system.as_deref().filter(|text| !text.trim().is_empty()) {
            match &marks {
                None => body.put("system", system)?,
                Some(mark) => {
                    body.put("system", &json!([{"type": "text", "text": system, "cache_control": mark}]))?;
                }
            }
        }
        tools(&mut body, request, marks.as_ref())?;
        let messages = Some(self.messages(&request.turns, marks.as_ref())?);
        let before = std::mem::take(&mut body);
        if let Some(value) = settings.temperature {
            body.put("temperature", &value)?;
        }
        if let Some(value) = settings.top_p {
            body.put("top_p", &value)?;
        }
        if let Some(value) = settings.top_k {
            body.put("top_k", &value)?;
        }
        if !settings.stop.is_empty() {
            body.put("stop_sequences", &settings.stop)?;
        }
        if settings.seed.is_some() {
            self.notice("`seed` was not sent: the Anthropic wire has no seeds");
        }
        match &settings.thinking {
            None => {}
            Some(Thinking::Off) => body.put("thinking", &json!({"type": "disabled"}))?,
            Some(Thinking::Adaptive) => body.put("thinking", &json!({"type": "adaptive"}))?,
            Some(Thinking::Budget(tokens)) => {
                body.put("thinking", &json!({"type": "enabled", "budget_tokens": tokens}))?;
            }
        }
        self.output_config(&mut body, request)?;
        if !request.metadata.is_empty() {
            body.put("metadata", &request.metadata)?;
        }
        let mut body = Body { before, messages, after: body };
        merge_options(&mut body, &request.provider_options)?;
        Ok(body)
    }

    fn output_config(&mut self, body: &mut Fields, request: &Request) -> Result<(), serde_json::Error> {
        let mut config = Fields::default();
        if let Some(effort) = request.settings.effort {
            let effort = if effort == Effort::Minimal {
                self.notice("effort `minimal` was sent as `low`, the least that the Anthropic wire knows");
                Effort::Low
            } else {
                effort
            };
            config.put("effort", effort.as_str())?;
        }
        if let Some(schema) = &request.settings.output_schema {
            let mut format = Fields::default();
            format.put("type", "json_schema")?;
            format.set("schema", schema.clone());
            config.put("format", &format)?;
        }
        if config.len() > 0 { body.put("output_config", &config) } else { Ok(()) }
    }

    fn messages<'a>(
        &mut self,
        turns: &'a [Turn],
        mark: Option<&Value>,
    ) -> Result<Vec<Message<'a>>, serde_json::Error> {
        // Neighbours of one role are one message: results must stand right behind the calls, and in front.
        let mut messages: Vec<Message<'a>> = Vec::with_capacity(turns.len());
        for turn in turns {
            let (role, blocks) = match turn {
                Turn::User(parts) => ("user", part_blocks(parts)?),
                Turn::System(parts) => ("system", part_blocks(parts)?),
                Turn::Assistant(turn) => ("assistant", self.assistant(turn)?),
                Turn::ToolResults(results) => ("user", result_blocks(results)?),
            };
            match messages.last_mut() {
                _ if blocks.is_empty() => {}
                Some(last) if last.role == role => last.content.extend(blocks),
                _ => messages.push(Message { role, content: blocks }),
            }
        }
        if let (Some(message), Some(mark)) = (messages.last_mut(), mark)
            && let Some(last) = message.content.last_mut()
        {
            let mut block: Fields = RawJson::of(last)?.read()?;
            block.put("cache_control", mark)?;
            *last = Block::Made(RawJson::of(&block)?);
        }
        Ok(messages)
    }

    fn assistant<'a>(&mut self, turn: &'a AssistantTurn) -> Result<Vec<Block<'a>>, serde_json::Error> {
        let mut blocks = Vec::with_capacity(turn.items.len());
        for item in &turn.items {
            if turn.origin.provider == PROVIDER {
                // The provider itself sends text blocks without text, and refuses them when they come back.
                if !matches!(item.view(), ItemView::Text { text } if text.trim().is_empty()) {
                    blocks.push(Block::Kept(item.raw()));
                }
            } else if let Some(block) = self.foreign(item, &turn.origin)? {
                blocks.push(Block::Made(block));
            }
        }
        Ok(blocks)
    }

    /// An item of another provider: what it means is kept, what only its provider can read is not.
    fn foreign(&mut self, item: &Item, origin: &ModelId) -> Result<Option<RawJson>, serde_json::Error> {
        let block = match item.view() {
            ItemView::Text { text } if text.trim().is_empty() => return Ok(None),
            ItemView::Text { text } => json!({"type": "text", "text": text}),
            ItemView::ToolCall { id, name, arguments } => {
                let mut block = Fields::default();
                block.put("type", "tool_use")?;
                block.put("id", &call_id(id))?;
                block.put("name", name)?;
                let input = match arguments {
                    Ok(raw) if raw.get().starts_with('{') => raw.clone(),
                    Ok(raw) => super::view::wrapped_input(raw.get()),
                    Err(text) => super::view::wrapped_input(text),
                };
                block.set("input", input);
                return RawJson::of(&block).map(Some);
            }
            ItemView::Thinking { .. }
            | ItemView::ServerToolCall { .. }
            | ItemView::ServerToolResult { .. }
            | ItemView::Other { .. } => {
                self.notice(format!(
                    "thinking and hosted tools' items of {origin} were left out: only {} can read them",
                    origin.provider
                ));
                return Ok(None);
            }
        };
        RawJson::of(&block).map(Some)
    }
}

fn tools(body: &mut Fields, request: &Request, mark: Option<&Value>) -> Result<(), serde_json::Error> {
    if !request.tools.is_empty() {
        let last = request.tools.len() - 1;
        let tools = request.tools.iter().enumerate();
        let tools = tools.map(|(index, definition)| tool(definition, mark.filter(|_| index == last)));
        body.put("tools", &tools.collect::<Result<Vec<_>, _>>()?)?;
    }
    let serial = request.settings.parallel_tool_calls.map(|parallel| !parallel);
    let choice = match (&request.tool_choice, serial) {
        (None, None) => return Ok(()),
        // Without tools there is nothing to choose from, and the provider refuses a choice.
        (None, Some(_)) if request.tools.is_empty() => return Ok(()),
        (None | Some(ToolChoice::Auto), _) => json!({"type": "auto"}),
        (Some(ToolChoice::Any), _) => json!({"type": "any"}),
        (Some(ToolChoice::None), _) => json!({"type": "none"}),
        (Some(ToolChoice::Tool(name)), _) => json!({"type": "tool", "name": name}),
    };
    let mut choice: Fields = RawJson::of(&choice)?.read()?;
    if let Some(serial) = serial.filter(|_| request.tool_choice != Some(ToolChoice::None)) {
        choice.put("disable_parallel_tool_use", &serial)?;
    }
    body.put("tool_choice", &choice)
}

fn result_blocks(results: &[ToolResult]) -> Result<Vec<Block<'_>>, serde_json::Error> {
    results
        .iter()
        .map(|result| {
            Ok(Block::Result(ResultBlock {
                r#type: "tool_result",
                tool_use_id: call_id(&result.call_id),
                content: part_blocks(&result.content)?,
                is_error: result.is_error.then_some(true),
            }))
        })
        .collect()
}

fn part_blocks(parts: &[Part]) -> Result<Vec<Block<'_>>, serde_json::Error> {
    let mut blocks = Vec::with_capacity(parts.len());
    for part in parts {
        blocks.push(match part {
            Part::Text(text) if text.trim().is_empty() => continue,
            Part::Text(text) => Block::Text(TextBlock { r#type: "text", text }),
            Part::Image(media) => Block::Made(media_block("image", media)?),
            Part::Document(media) => Block::Made(media_block("document", media)?),
            Part::ContainerFile { file_id } => {
                Block::Made((&json!({"type": "container_upload", "file_id": file_id})).into())
            }
            Part::Raw(raw) => Block::Kept(raw),
        });
    }
    Ok(blocks)
}

/// With a thinking budget and without a limit there must be room for an answer beyond the thinking.
fn max_tokens(limit: Option<u32>, thinking: Option<&Thinking>) -> u32 {
    match (limit, thinking) {
        (Some(limit), _) => limit,
        (None, Some(Thinking::Budget(tokens))) => tokens.saturating_add(DEFAULT_MAX_TOKENS),
        (None, _) => DEFAULT_MAX_TOKENS,
    }
}

fn lasting(lifetime: CacheLifetime) -> Value {
    let ttl = match lifetime {
        CacheLifetime::FiveMinutes => "5m",
        CacheLifetime::OneHour => "1h",
    };
    json!({"type": "ephemeral", "ttl": ttl})
}

/// The wire takes letters, digits, `_` and `-` in ids; ids of other providers may have more.
fn call_id(id: &str) -> Cow<'_, str> {
    let fits = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if id.bytes().all(|byte| fits(byte.into())) {
        return Cow::Borrowed(id);
    }
    id.chars().map(|character| if fits(character) { character } else { '_' }).collect::<String>().into()
}

fn tool<'a>(definition: &'a ToolDefinition, mark: Option<&Value>) -> Result<Block<'a>, serde_json::Error> {
    let ToolDefinition { name, description, input_schema, provider_options } = definition;
    let tool = ToolBlock { name, description, input_schema };
    if provider_options.is_empty() && mark.is_none() {
        return Ok(Block::Tool(tool));
    }
    let mut tool: Fields = RawJson::of(&tool)?.read()?;
    for (name, value) in provider_options {
        tool.put(name, value)?;
    }
    if let Some(mark) = mark {
        tool.put("cache_control", mark)?;
    }
    RawJson::of(&tool).map(Block::Made)
}

fn media_block(kind: &str, media: &Media) -> Result<RawJson, serde_json::Error> {
    let media_type = &media.media_type;
    let source = match &media.source {
        MediaSource::Base64(data) => json!({"type": "base64", "media_type": media_type, "data": data}),
        MediaSource::Text(text) => json!({"type": "text", "media_type": media_type, "data": text}),
        MediaSource::Url(url) => json!({"type": "url", "url": url}),
        MediaSource::FileId(id) => json!({"type": "file", "file_id": id}),
    };
    let mut block = Fields::default();
    block.put("type", kind)?;
    block.put("source", &source)?;
    if let Some(title) = media.title.as_ref().filter(|_| kind == "document") {
        block.put("title", title)?;
    }
    RawJson::of(&block)
}

/// Objects merge, `tools` are appended, anything else replaces.
fn merge_options(body: &mut Body<'_>, options: &Map<String, Value>) -> Result<(), serde_json::Error> {
    for (name, value) in options {
        if name == "messages" {
            body.messages = None;
            body.before.set(name, value.into());
            continue;
        }
        let in_front = body.before.get(name).is_some();
        let body = if in_front { &mut body.before } else { &mut body.after };
        let merged = match (body.get(name), value) {
            (Some(ours), Value::Object(_)) if ours.get().starts_with('{') => {
                let mut ours = ours.to_value()?;
                merge(&mut ours, value);
                RawJson::of(&ours)?
            }
            (Some(ours), Value::Array(theirs)) if name == "tools" => {
                let mut tools: Vec<RawJson> = ours.read()?;
                tools.extend(theirs.iter().map(RawJson::from));
                RawJson::of(&tools)?
            }
            _ => value.into(),
        };
        body.set(name, merged);
    }
    Ok(())
}

fn merge(ours: &mut Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (name, value) in theirs {
                merge(ours.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (ours, theirs) => *ours = theirs.clone(),
    }
}
