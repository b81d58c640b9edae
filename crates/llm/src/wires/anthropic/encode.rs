//! A request as the body of the Messages API.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::catalog::ModelInfo;
use crate::json::JsonWriter;
use crate::options::merge_options;
use crate::wires::codec::Notices;
use crate::{
    AssistantTurn, CacheLifetime, Effort, HostedTool, Item, ItemView, Media, MediaSource, ModelError,
    ModelId, OutputFormat, Part, PromptCaching, Request, Settings, Thinking, ToolChoice, ToolDefinition,
    ToolResult, Turn,
};

/// The wire demands a limit of output tokens; this one every model can give.
const DEFAULT_MAX_TOKENS: u32 = 4_096;

/// The room that is made for a body without its turns, and for a turn, in bytes.
const ABOUT_A_BODY: usize = 1024;
const ABOUT_A_TURN: usize = 256;

/// Writes the body, and says what the caller's user should know about it. A feature that the wire lacks is an error.
pub(super) fn encode(
    info: &ModelInfo,
    request: &Request,
    stream: bool,
) -> Result<(JsonWriter, Vec<String>), ModelError> {
    let mut encoder = Encoder {
        out: JsonWriter::with_capacity(ABOUT_A_BODY + request.turns.len() * ABOUT_A_TURN),
        model: &info.id,
        role: "",
        last_block: None,
        notices: Notices::default(),
    };
    encoder.body(request, stream).map_err(|error| {
        ModelError::new(crate::ErrorKind::InvalidRequest, error.to_string()).with_model(&info.id)
    })?;
    Ok((encoder.out, encoder.notices.into_vec()))
}

struct Encoder<'a> {
    out: JsonWriter,
    model: &'a ModelId,
    /// The role of the message that is being written; empty before the first.
    role: &'static str,
    /// Where the last block of the conversation begins.
    last_block: Option<usize>,
    notices: Notices,
}

impl Encoder<'_> {
    fn body(&mut self, request: &Request, stream: bool) -> Result<(), serde_json::Error> {
        let settings = &request.settings;
        self.out.piece("{");
        self.out.text("model", &self.model.name);
        self.out.put("max_tokens", &max_tokens(settings.max_output_tokens, settings.thinking.as_ref()))?;
        let mark = match &settings.prompt_caching {
            PromptCaching::Off => None,
            PromptCaching::Automatic => {
                self.out.json("cache_control", r#"{"type":"ephemeral"}"#);
                None
            }
            PromptCaching::AutomaticFor(lifetime) => {
                self.out.json("cache_control", lasting(*lifetime));
                None
            }
            PromptCaching::Marks(lifetime) => Some(lasting(*lifetime)),
        };
        if stream {
            self.out.json("stream", "true");
        }
        if let Some(system) = request.system.as_deref().filter(|text| !text.trim().is_empty()) {
            match mark {
                None => self.out.text("system", system),
                Some(mark) => {
                    self.out.json("system", r#"[{"type":"text","text":"#);
                    self.out.string(system);
                    self.out.json("cache_control", mark);
                    self.out.piece("}]");
                }
            }
        }
        self.tools(request, mark)?;
        self.messages(&request.turns, mark)?;
        if let Some(value) = settings.temperature {
            self.out.put("temperature", &value)?;
        }
        if let Some(value) = settings.top_p {
            self.out.put("top_p", &value)?;
        }
        if let Some(value) = settings.top_k {
            self.out.put("top_k", &value)?;
        }
        if !settings.stop.is_empty() {
            self.out.put("stop_sequences", &settings.stop)?;
        }
        if settings.seed.is_some() {
            self.notices.add("`seed` was not sent: the Anthropic wire has no seeds");
        }
        match &settings.thinking {
            None => {}
            Some(Thinking::Off) => self.out.json("thinking", r#"{"type":"disabled"}"#),
            Some(Thinking::Adaptive) => self.out.json("thinking", r#"{"type":"adaptive"}"#),
            Some(Thinking::Budget(tokens)) => {
                self.out.json("thinking", r#"{"type":"enabled""#);
                self.out.put("budget_tokens", tokens)?;
                self.out.piece("}");
            }
        }
        self.output_config(request);
        if !request.metadata.is_empty() {
            self.out.put("metadata", &request.metadata)?;
        }
        self.out.piece("}");
        if request.provider_options.is_empty() {
            return Ok(());
        }
        self.out.change(0, |body| merge_options(body, &request.provider_options))
    }

    fn output_config(&mut self, request: &Request) {
        let Settings { effort, output, .. } = &request.settings;
        let schema = match output {
            Some(OutputFormat::Schema { schema, .. }) => Some(schema),
            _ => None,
        };
        if effort.is_none() && schema.is_none() {
            return;
        }
        self.out.json("output_config", "{");
        if let Some(mut effort) = *effort {
            if effort == Effort::Minimal {
                self.notices
                    .add("effort `minimal` was sent as `low`, the least that the Anthropic wire knows");
                effort = Effort::Low;
            }
            self.out.text("effort", effort.as_str());
        }
        if let Some(schema) = schema {
            self.out.json("format", r#"{"type":"json_schema","schema":"#);
            self.out.piece(schema.get());
            self.out.piece("}");
        }
        self.out.piece("}");
    }

    fn tools(&mut self, request: &Request, mark: Option<&'static str>) -> Result<(), serde_json::Error> {
        if !request.tools.is_empty() || !request.hosted_tools.is_empty() {
            self.out.json("tools", "[");
            for tool in &request.hosted_tools {
                if let HostedTool::Raw(raw) = tool {
                    self.out.comma();
                    self.out.piece(raw.get());
                }
            }
            if let Some((last, others)) = request.tools.split_last() {
                for definition in others {
                    self.tool(definition, None)?;
                }
                self.tool(last, mark)?;
            }
            self.out.piece("]");
        }
        let serial = request.settings.parallel_tool_calls.map(|parallel| !parallel);
        let kind = match (&request.tool_choice, serial) {
            (None, None) => return Ok(()),
            // Without tools there is nothing to choose from, and the provider refuses a choice.
            (None, Some(_)) if request.tools.is_empty() => return Ok(()),
            (None | Some(ToolChoice::Auto), _) => "auto",
            (Some(ToolChoice::Any), _) => "any",
            (Some(ToolChoice::None), _) => "none",
            (Some(ToolChoice::Tool(_)), _) => "tool",
        };
        self.out.json("tool_choice", "{");
        self.out.text("type", kind);
        if let Some(ToolChoice::Tool(name)) = &request.tool_choice {
            self.out.text("name", name);
        }
        if let Some(serial) = serial.filter(|_| request.tool_choice != Some(ToolChoice::None)) {
            self.out.put("disable_parallel_tool_use", &serial)?;
        }
        self.out.piece("}");
        Ok(())
    }

    fn tool(
        &mut self,
        definition: &ToolDefinition,
        mark: Option<&'static str>,
    ) -> Result<(), serde_json::Error> {
        let ToolDefinition { name, description, input_schema, provider_options, .. } = definition;
        self.out.comma();
        let start = self.out.len();
        self.out.piece("{");
        self.out.text("name", name);
        self.out.text("description", description);
        self.out.json("input_schema", input_schema.get());
        if definition.strict {
            self.out.json("strict", "true");
        }
        if definition.deferred {
            self.out.json("defer_loading", "true");
        }
        self.out.piece("}");
        if !provider_options.is_empty() {
            self.out.change(start, |tool| {
                provider_options.iter().try_for_each(|(name, value)| tool.put(name, value))
            })?;
        }
        self.mark(start, mark)
    }

    /// Marks the object from `start` on as the end of what the provider should keep.
    fn mark(&mut self, start: usize, mark: Option<&'static str>) -> Result<(), serde_json::Error> {
        let Some(mark) = mark else { return Ok(()) };
        self.out.change(start, |object| {
            object.set("cache_control", RawValue::from_string(mark.to_owned())?);
            Ok(())
        })
    }

    fn messages(&mut self, turns: &[Turn], mark: Option<&'static str>) -> Result<(), serde_json::Error> {
        self.out.json("messages", "[");
        for turn in turns {
            match turn {
                Turn::User(parts) => self.said("user", parts),
                Turn::System(parts) => self.said("system", parts),
                Turn::Assistant(turn) => self.assistant(turn),
                Turn::ToolResults(results) => results.iter().for_each(|result| self.result(result)),
            }
        }
        if let Some(last) = self.last_block {
            self.mark(last, mark)?;
            self.out.piece("]}");
        }
        self.out.piece("]");
        Ok(())
    }

    /// Begins a block. Neighbours of one role are one message: results must stand right behind the calls, and in front.
    fn begin_block(&mut self, role: &'static str) {
        if self.role != role {
            if !self.role.is_empty() {
                self.out.piece("]}");
            }
            self.role = role;
            self.out.comma();
            self.out.piece(r#"{"role":""#);
            self.out.piece(role);
            self.out.piece(r#"","content":["#);
        }
        self.out.comma();
        self.last_block = Some(self.out.len());
    }

    fn said(&mut self, role: &'static str, parts: &[Part]) {
        for part in parts.iter().filter(|part| !is_blank(part)) {
            self.begin_block(role);
            write_part(&mut self.out, part);
        }
    }

    fn result(&mut self, result: &ToolResult) {
        self.begin_block("user");
        self.out.piece(r#"{"type":"tool_result","tool_use_id":"#);
        self.out.string(&call_id(&result.call_id));
        self.out.json("content", "[");
        for part in result.content.iter().filter(|part| !is_blank(part)) {
            self.out.comma();
            write_part(&mut self.out, part);
        }
        self.out.piece(if result.is_error { r#"],"is_error":true}"# } else { "]}" });
    }

    fn assistant(&mut self, turn: &AssistantTurn) {
        let is_ours = turn.origin.provider == self.model.provider;
        for item in &turn.items {
            // The provider itself sends text blocks without text, and refuses them when they come back.
            if matches!(item.view(), ItemView::Text { text, .. } if text.trim().is_empty()) {
                continue;
            }
            if is_ours {
                self.begin_block("assistant");
                self.out.piece(item.raw().get());
            } else {
                self.foreign(item, &turn.origin);
            }
        }
    }

    /// An item of another provider: what it means is kept, what only its provider can read is not.
    fn foreign(&mut self, item: &Item, origin: &ModelId) {
        match item.view() {
            ItemView::Text { text, .. } => {
                self.begin_block("assistant");
                write_text(&mut self.out, text);
            }
            ItemView::ToolCall { id, name, arguments } => {
                self.begin_block("assistant");
                self.out.piece(r#"{"type":"tool_use","id":"#);
                self.out.string(&call_id(id));
                self.out.text("name", name);
                match arguments {
                    Ok(raw) if raw.get().starts_with('{') => self.out.json("input", raw.get()),
                    Ok(raw) => self.out.json("input", super::view::wrapped_input(raw.get()).get()),
                    Err(text) => self.out.json("input", super::view::wrapped_input(text).get()),
                }
                self.out.piece("}");
            }
            ItemView::Thinking { .. }
            | ItemView::ServerToolCall { .. }
            | ItemView::ServerToolResult { .. }
            | ItemView::Other { .. } => self.notices.add(format!(
                "thinking and hosted tools' items of {origin} were left out: only {} can read them",
                origin.provider
            )),
        }
    }
}

/// Whether a part is a text without any text, which the provider refuses.
fn is_blank(part: &Part) -> bool {
    matches!(part, Part::Text(text) if text.trim().is_empty())
}

fn write_part(out: &mut JsonWriter, part: &Part) {
    match part {
        Part::Text(text) => write_text(out, text),
        Part::Image(media) => write_media(out, "image", media),
        Part::Document(media) => write_media(out, "document", media),
        Part::ContainerFile { file_id } => {
            out.piece(r#"{"type":"container_upload","file_id":"#);
            out.string(file_id);
            out.piece("}");
        }
        Part::Raw(raw) => out.piece(raw.get()),
    }
}

fn write_text(out: &mut JsonWriter, text: &str) {
    out.piece(r#"{"type":"text","text":"#);
    out.string(text);
    out.piece("}");
}

fn write_media(out: &mut JsonWriter, block: &'static str, media: &Media) {
    out.piece("{");
    out.text("type", block);
    out.json("source", "{");
    let (kind, name, value) = match &media.source {
        MediaSource::Base64(data) => ("base64", "data", &**data),
        MediaSource::Text(text) => ("text", "data", &**text),
        MediaSource::Url(url) => ("url", "url", url.as_str()),
        MediaSource::FileId(id) => ("file", "file_id", id.as_str()),
    };
    out.text("type", kind);
    if name == "data" {
        out.text("media_type", &media.media_type);
    }
    out.text(name, value);
    out.piece("}");
    if let Some(title) = media.title.as_ref().filter(|_| block == "document") {
        out.text("title", title);
    }
    out.piece("}");
}

/// With a thinking budget and without a limit there must be room for an answer beyond the thinking.
fn max_tokens(limit: Option<u32>, thinking: Option<&Thinking>) -> u32 {
    match (limit, thinking) {
        (Some(limit), _) => limit,
        (None, Some(Thinking::Budget(tokens))) => tokens.saturating_add(DEFAULT_MAX_TOKENS),
        (None, _) => DEFAULT_MAX_TOKENS,
    }
}

fn lasting(lifetime: CacheLifetime) -> &'static str {
    match lifetime {
        CacheLifetime::FiveMinutes => r#"{"type":"ephemeral","ttl":"5m"}"#,
        CacheLifetime::OneHour => r#"{"type":"ephemeral","ttl":"1h"}"#,
    }
}

/// The wire takes letters, digits, `_` and `-` in ids; ids of other providers may have more.
fn call_id(id: &str) -> Cow<'_, str> {
    let fits = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if id.bytes().all(|byte| fits(byte.into())) {
        return Cow::Borrowed(id);
    }
    id.chars().map(|character| if fits(character) { character } else { '_' }).collect::<String>().into()
}
