//! Encodes a request as the body of the Messages API.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;
use toolpost_core::{Clock as _, SystemClock};

use super::container::{self, Container};
use super::{breakpoints, tools};
use crate::catalog::ModelInfo;
use crate::json::JsonWriter;
use crate::options::merge_options;
use crate::schema::{Lowered, SchemaTarget, StrictBudget, lower};
use crate::wires::codec::Notices;
use crate::wires::roles::Roles;
use crate::{
    AssistantTurn, CacheLifetime, ContextEdit, Effort, Item, ItemView, Media, MediaSource, ModelError,
    ModelId, OutputFormat, Part, PromptCaching, RawJson, Request, Thinking, ToolChoice, ToolDefinition,
    ToolResult, Turn,
};

/// The wire requires a limit of output tokens. Every model supports this one.
const DEFAULT_MAX_TOKENS: u32 = 4_096;

/// The minimum input tokens that trigger compaction.
const MIN_COMPACT_TOKENS: u64 = 50_000;

/// The instruction to answer with JSON: the wire has no JSON mode without a schema.
const ANSWER_WITH_JSON: &str = "Answer with one JSON value and nothing else: no explanation before or after it, and no code fence around it.";

/// Encodes the body, with notices for the user.
pub(super) fn encode(
    info: &ModelInfo,
    request: &Request,
    stream: bool,
) -> Result<(JsonWriter, Vec<String>), ModelError> {
    let (out, notices) = encode_with(info, request, stream, breakpoints::MAX_BREAKPOINTS)?;
    let Some(room) = breakpoints::remaining(out.as_bytes(), &request.settings.prompt_caching, &info.id)?
    else {
        return Ok((out, notices));
    };
    let (out, mut notices) = encode_with(info, request, stream, room)?;
    notices.push(format!(
        "the request has {} of at most {} cache breakpoints: fewer automatic breakpoints were set",
        breakpoints::MAX_BREAKPOINTS - room,
        breakpoints::MAX_BREAKPOINTS
    ));
    Ok((out, notices))
}

/// Encodes the body with at most this number of cache breakpoints besides the request's own.
fn encode_with(
    info: &ModelInfo,
    request: &Request,
    stream: bool,
    max_breakpoints: usize,
) -> Result<(JsonWriter, Vec<String>), ModelError> {
    let mut encoder = Encoder {
        out: JsonWriter::for_turns(request.turns.len()),
        info,
        model: &info.id,
        strict: StrictBudget::anthropic(),
        max_breakpoints,
        files: tools::files(request),
        roles: Roles::default(),
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
    info: &'a ModelInfo,
    model: &'a ModelId,
    /// The remaining budget of strict schemas.
    strict: StrictBudget,
    /// The number of cache breakpoints that may be set.
    max_breakpoints: usize,
    /// Files for the container, sent with the first user turn.
    files: Vec<&'a str>,
    roles: Roles,
    /// The start of the conversation's last block.
    last_block: Option<usize>,
    notices: Notices,
}

impl<'a> Encoder<'a> {
    fn body(&mut self, request: &'a Request, stream: bool) -> Result<(), serde_json::Error> {
        let settings = &request.settings;
        self.out.piece("{");
        self.out.text("model", &self.model.name);
        self.out.put("max_tokens", &max_tokens(settings.max_output_tokens, settings.thinking.as_ref()))?;
        let breakpoint = match &settings.prompt_caching {
            PromptCaching::Off => None,
            PromptCaching::Automatic | PromptCaching::AutomaticFor(_) if self.max_breakpoints == 0 => None,
            PromptCaching::Automatic => {
                self.out.json("cache_control", r#"{"type":"ephemeral"}"#);
                None
            }
            PromptCaching::AutomaticFor(lifetime) => {
                self.out.json("cache_control", cache_control(*lifetime));
                None
            }
            PromptCaching::Breakpoints(lifetime) => Some(cache_control(*lifetime)),
        };
        if stream {
            self.out.json("stream", "true");
        }
        let (answer_schema, instruction) = self.answer(settings.output.as_ref());
        let system = request.system.as_deref().filter(|text| !text.trim().is_empty());
        let system: Option<Cow<'_, str>> = match (system, instruction) {
            (Some(system), Some(instruction)) => Some(format!("{system}\n\n{instruction}").into()),
            (None, Some(instruction)) => Some(instruction.into()),
            (system, None) => system.map(Cow::Borrowed),
        };
        if let Some(system) = system.as_deref() {
            match breakpoint.filter(|_| self.max_breakpoints > 2) {
                None => self.out.text("system", system),
                Some(breakpoint) => {
                    self.out.json("system", r#"[{"type":"text","text":"#);
                    self.out.string(system);
                    self.out.json("cache_control", breakpoint);
                    self.out.piece("}]");
                }
            }
        }
        self.container(request);
        self.tools(request, breakpoint.filter(|_| self.max_breakpoints > 1))?;
        self.messages(&request.turns, breakpoint.filter(|_| self.max_breakpoints > 0))?;
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
            self.notices.add("`seed` was not sent: the Anthropic wire has no seed");
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
        self.output_config(settings.effort, answer_schema.as_ref());
        self.context_management(&request.context_edits)?;
        if !request.metadata.is_empty() {
            self.out.put("metadata", &request.metadata)?;
        }
        self.out.piece("}");
        if request.provider_options.is_empty() {
            return Ok(());
        }
        self.out.change(0, |body| merge_options(body, &request.provider_options))
    }

    /// Writes the container of the conversation's hosted code.
    fn container(&mut self, request: &Request) {
        if !tools::has_hosted(request) {
            return;
        }
        match container::of_request(request, &self.model.provider, SystemClock.timestamp()) {
            Container::None => {}
            // The id is merged with the caller's container options, such as skills.
            Container::Reused(id) if request.provider_options.contains_key("container") => {
                self.out.json("container", "{");
                self.out.text("id", id);
                self.out.piece("}");
            }
            Container::Reused(id) => self.out.text("container", id),
            Container::Expired { id, at } => self.notices.add(format!(
                "the container `{id}` of this conversation expired at {at}: hosted code starts in a new one, without its files"
            )),
        }
    }

    /// The answer's schema in the provider's dialect, or an instruction if the provider cannot enforce it.
    fn answer(&mut self, output: Option<&OutputFormat>) -> (Option<Value>, Option<String>) {
        match output {
            None => (None, None),
            Some(OutputFormat::Json) => {
                self.notices.add(
                    "the Anthropic wire has no JSON mode without a schema: an instruction asks for JSON",
                );
                (None, Some(ANSWER_WITH_JSON.to_owned()))
            }
            Some(OutputFormat::Schema { schema, .. }) => {
                let lowered = lowered(schema);
                match lowered.and_then(|lowered| self.strict.reserve_answer(&lowered).map(|()| lowered)) {
                    Ok(lowered) => {
                        self.report_unchecked("the answer's schema", &lowered.unchecked);
                        (Some(lowered.schema), None)
                    }
                    Err(reason) => {
                        self.notices.add(format!(
                            "the provider cannot enforce the answer's schema ({reason}): an instruction has the schema"
                        ));
                        (None, Some(format!("{ANSWER_WITH_JSON} It must match this JSON Schema: {schema}")))
                    }
                }
            }
        }
    }

    /// Reports the keywords of a schema that the provider does not check.
    fn report_unchecked(&mut self, of: &str, unchecked: &[String]) {
        if let Some((first, others)) = unchecked.split_first() {
            let more = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
            self.notices
                .add(format!("{of}: the provider does not check {first}{more}; the description has it"));
        }
    }

    fn output_config(&mut self, effort: Option<Effort>, schema: Option<&Value>) {
        if effort.is_none() && schema.is_none() {
            return;
        }
        self.out.json("output_config", "{");
        if let Some(mut effort) = effort {
            if effort == Effort::Minimal {
                self.notices.add("effort `minimal` was sent as `low`, the minimum of the Anthropic wire");
                effort = Effort::Low;
            }
            self.out.text("effort", effort.as_str());
        }
        if let Some(schema) = schema {
            self.out.json("format", r#"{"type":"json_schema","schema":"#);
            self.out.piece(&schema.to_string());
            self.out.piece("}");
        }
        self.out.piece("}");
    }

    /// Writes the context edits.
    fn context_management(&mut self, edits: &[ContextEdit]) -> Result<(), serde_json::Error> {
        if edits.is_empty() {
            return Ok(());
        }
        self.out.json("context_management", r#"{"edits":["#);
        for edit in edits {
            self.out.comma();
            self.out.piece("{");
            self.out.text("type", tools::edit_type(edit));
            let (ContextEdit::Compact { at_tokens } | ContextEdit::ClearToolResults { at_tokens, .. }) = edit;
            if let Some(tokens) = at_tokens {
                let min = if matches!(edit, ContextEdit::Compact { .. }) { MIN_COMPACT_TOKENS } else { 0 };
                if *tokens < min {
                    self.notices
                        .add(format!("`at_tokens` of `compact` was sent as {min}, the provider's minimum"));
                }
                self.out.json("trigger", r#"{"type":"input_tokens""#);
                self.out.put("value", &(*tokens).max(min))?;
                self.out.piece("}");
            }
            if let ContextEdit::ClearToolResults { keep: Some(keep), .. } = edit {
                self.out.json("keep", r#"{"type":"tool_uses""#);
                self.out.put("value", keep)?;
                self.out.piece("}");
            }
            self.out.piece("}");
        }
        self.out.piece("]}");
        Ok(())
    }

    fn tools(
        &mut self,
        request: &Request,
        breakpoint: Option<&'static str>,
    ) -> Result<(), serde_json::Error> {
        if !request.tools.is_empty() || !request.hosted_tools.is_empty() {
            self.out.json("tools", "[");
            for tool in &request.hosted_tools {
                // `check` has reported unsupported tools.
                let kind = tools::tool_type(self.info, tool, request).ok().flatten();
                tools::write(&mut self.out, tool, kind.as_deref())?;
            }
            // Deferred tools are not in the cached prompt and take no breakpoint.
            let last = request.tools.iter().rposition(|tool| !tool.deferred);
            for (index, definition) in request.tools.iter().enumerate() {
                self.tool(definition, breakpoint.filter(|_| last == Some(index)))?;
            }
            self.out.piece("]");
        }
        let serial = request.settings.parallel_tool_calls.map(|parallel| !parallel);
        let kind = match (&request.tool_choice, serial) {
            (None, None) => return Ok(()),
            // The provider rejects a tool choice without tools.
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
        breakpoint: Option<&'static str>,
    ) -> Result<(), serde_json::Error> {
        let ToolDefinition { name, description, input_schema, provider_options, .. } = definition;
        self.out.comma();
        let start = self.out.len();
        self.out.piece("{");
        self.out.text("name", name);
        self.out.text("description", description);
        let strict = definition.strict.then(|| {
            lowered(input_schema).and_then(|lowered| self.strict.reserve_tool(&lowered).map(|()| lowered))
        });
        match strict {
            Some(Ok(lowered)) => {
                self.out.json("input_schema", &lowered.schema.to_string());
                self.out.json("strict", "true");
                self.report_unchecked(&format!("the strict tool `{name}`"), &lowered.unchecked);
            }
            Some(Err(reason)) => {
                self.out.json("input_schema", input_schema.get());
                self.notices.add(format!("`strict` of the tool `{name}` was not sent: {reason}"));
            }
            None => self.out.json("input_schema", input_schema.get()),
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
        self.add_breakpoint(start, breakpoint)
    }

    /// Adds a cache breakpoint to the object from `start` on.
    fn add_breakpoint(
        &mut self,
        start: usize,
        breakpoint: Option<&'static str>,
    ) -> Result<(), serde_json::Error> {
        let Some(breakpoint) = breakpoint else { return Ok(()) };
        self.out.change(start, |object| {
            object.set("cache_control", RawValue::from_string(breakpoint.to_owned())?);
            Ok(())
        })
    }

    fn messages(
        &mut self,
        turns: &[Turn],
        breakpoint: Option<&'static str>,
    ) -> Result<(), serde_json::Error> {
        self.out.json("messages", "[");
        for turn in turns {
            match turn {
                Turn::User(parts) => {
                    self.parts("user", parts);
                    for file_id in std::mem::take(&mut self.files) {
                        self.begin_block("user");
                        write_container_file(&mut self.out, file_id);
                    }
                }
                Turn::System(parts) => self.parts("system", parts),
                Turn::Assistant(turn) => self.assistant(turn),
                Turn::ToolResults(results) => results.iter().for_each(|result| self.result(result)),
            }
        }
        if let Some(last) = self.last_block {
            self.add_breakpoint(last, breakpoint)?;
        }
        self.roles.end(&mut self.out);
        self.out.piece("]");
        Ok(())
    }

    /// Begins a block. Adjacent blocks of one role are one message, in which results come first.
    fn begin_block(&mut self, role: &'static str) {
        self.roles.begin(&mut self.out, role, "content");
        self.last_block = Some(self.out.len());
    }

    fn parts(&mut self, role: &'static str, parts: &[Part]) {
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
        let is_own = turn.origin.provider == self.model.provider;
        for item in &turn.items {
            // The provider sends empty text blocks but rejects them in requests. White space is valid besides other blocks.
            if let ItemView::Text { text, .. } = item.view()
                && (text.is_empty() || turn.items.len() == 1 && text.trim().is_empty())
            {
                continue;
            }
            if is_own {
                self.begin_block("assistant");
                self.out.piece(item.raw().get());
            } else {
                self.foreign(item, &turn.origin);
            }
        }
    }

    /// Converts an item of another provider. Items that only its provider can read are dropped.
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
            | ItemView::Other { .. } => self.notices.add_dropped_items(origin),
        }
    }
}

/// The reason why the provider cannot enforce the answer's schema, if it cannot.
pub(super) fn native_schema_obstacle(output: Option<&OutputFormat>) -> Option<String> {
    let Some(OutputFormat::Schema { schema, .. }) = output else { return None };
    lowered(schema).and_then(|lowered| StrictBudget::anthropic().reserve_answer(&lowered)).err()
}

/// Lowers a schema; an error if it is nested too deeply.
fn lowered(schema: &RawJson) -> Result<Lowered, String> {
    let schema = schema.to_value().map_err(|error| error.to_string())?;
    Ok(lower(&schema, SchemaTarget::AnthropicStrict))
}

/// Whether a part is an empty text, which the provider rejects.
fn is_blank(part: &Part) -> bool {
    matches!(part, Part::Text(text) if text.trim().is_empty())
}

fn write_part(out: &mut JsonWriter, part: &Part) {
    match part {
        Part::Text(text) => write_text(out, text),
        Part::Image(media) => write_media(out, "image", media),
        Part::Document(media) => write_media(out, "document", media),
        Part::ContainerFile { file_id } => write_container_file(out, file_id),
        Part::Raw(raw) => out.piece(raw.get()),
    }
}

fn write_container_file(out: &mut JsonWriter, file_id: &str) {
    out.piece(r#"{"type":"container_upload","file_id":"#);
    out.string(file_id);
    out.piece("}");
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

/// The limit of output tokens. A thinking budget without a limit leaves room for the answer.
fn max_tokens(limit: Option<u32>, thinking: Option<&Thinking>) -> u32 {
    match (limit, thinking) {
        (Some(limit), _) => limit,
        (None, Some(Thinking::Budget(tokens))) => tokens.saturating_add(DEFAULT_MAX_TOKENS),
        (None, _) => DEFAULT_MAX_TOKENS,
    }
}

fn cache_control(lifetime: CacheLifetime) -> &'static str {
    match lifetime {
        CacheLifetime::FiveMinutes => r#"{"type":"ephemeral","ttl":"5m"}"#,
        CacheLifetime::OneHour => r#"{"type":"ephemeral","ttl":"1h"}"#,
    }
}

/// A call id of letters, digits, `_` and `-`. Ids of other providers may have more characters.
fn call_id(id: &str) -> Cow<'_, str> {
    let is_allowed = |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-');
    if id.bytes().all(|byte| is_allowed(byte.into())) {
        return Cow::Borrowed(id);
    }
    id.chars().map(|character| if is_allowed(character) { character } else { '_' }).collect::<String>().into()
}
