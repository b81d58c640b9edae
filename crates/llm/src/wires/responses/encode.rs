//! Encodes a request as the body of the Responses API.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use serde_json::Value;

use super::view::kind_of;
use super::{Dialect, hosted, is_reasoning_model};
use crate::catalog::ModelInfo;
use crate::fields::Members;
use crate::json::JsonWriter;
use crate::options::merge_options;
use crate::schema::{SchemaTarget, lower};
use crate::wires::codec::Notices;
use crate::{
    AssistantTurn, ContextEdit, Feature, HostedTool, Item, ItemView, Media, MediaSource, ModelError, ModelId,
    ModelSettings, OutputFormat, Part, PromptCaching, RawJson, Request, Thinking, ToolChoice, ToolDefinition,
    ToolResult, Turn,
};

/// Maximum length of a call id of the wire, in characters.
const MAX_CALL_ID: usize = 64;

/// The part of each text that counts for the prompt cache key, in bytes.
const MAX_KEY_PART: usize = 4096;

/// The initial value of the FNV-1a hash.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;

/// Encodes the body, with notices for the user.
pub(super) fn encode(
    dialect: Dialect,
    info: &ModelInfo,
    is_own: bool,
    request: &Request,
    stream: bool,
) -> Result<(JsonWriter, Vec<String>), ModelError> {
    let mut encoder = Encoder {
        out: JsonWriter::for_turns(request.turns.len()),
        dialect,
        model: &info.id,
        is_own,
        is_reasoning: info.has(Feature::Reasoning).unwrap_or_else(|| is_reasoning_model(&info.id.name)),
        // With `store`, the provider knows its items by their ids.
        is_stored: request.provider_options.get("store").is_some_and(|store| *store == true),
        special_calls: HashMap::new(),
        unusual_ids: HashSet::new(),
        notices: Notices::default(),
    };
    encoder.body(request, stream).map_err(|error| {
        ModelError::new(crate::ErrorKind::InvalidRequest, error.to_string()).with_model(&info.id)
    })?;
    Ok((encoder.out, encoder.notices.into_vec()))
}

/// The form of a call's result that differs from a plain function's.
struct SpecialCall<'a> {
    kind: Cow<'a, str>,
    /// The hosted program that made the call, which the result must name.
    caller: Option<&'a str>,
}

struct Encoder<'a> {
    out: JsonWriter,
    dialect: Dialect,
    model: &'a ModelId,
    /// Whether the server is the provider itself.
    is_own: bool,
    /// Whether the model reasons.
    is_reasoning: bool,
    is_stored: bool,
    special_calls: HashMap<&'a str, SpecialCall<'a>>,
    /// Unusual ids of the provider's own calls, which stay unchanged.
    unusual_ids: HashSet<&'a str>,
    notices: Notices,
}

impl<'a> Encoder<'a> {
    fn body(&mut self, request: &'a Request, stream: bool) -> Result<(), serde_json::Error> {
        self.out.piece("{");
        self.out.text("model", &self.model.name);
        // Requests contain the whole conversation, so the provider stores nothing.
        self.out.json("store", "false");
        self.include(request);
        if stream {
            self.out.json("stream", "true");
        }
        let system = request.system.as_deref().filter(|text| !text.trim().is_empty());
        if let (Some(system), Dialect::OpenAi) = (system, self.dialect) {
            self.out.text("instructions", system);
        }
        self.tools(request)?;
        self.input(system, &request.turns)?;
        // Gateways reject the key and have their own routing.
        if self.is_own && request.settings.prompt_caching != PromptCaching::Off {
            self.out.text("prompt_cache_key", &cache_key(request));
        }
        self.settings(&request.settings)?;
        self.context_management(&request.context_edits)?;
        self.metadata(request);
        if !request.betas.is_empty() && self.dialect == Dialect::Xai {
            self.notices.add("`betas` were not sent: the xAI wire has no beta header");
        }
        self.out.piece("}");
        if request.provider_options.is_empty() {
            return Ok(());
        }
        self.out.change(0, |body| merge_options(body, &request.provider_options))
    }

    /// Writes `include`: optional parts of the answer.
    fn include(&mut self, request: &Request) {
        let mut names = Vec::new();
        // Later requests need the encrypted thinking. Models without reasoning reject this.
        if self.dialect == Dialect::Xai || self.is_reasoning {
            names.push("reasoning.encrypted_content");
        }
        if self.dialect == Dialect::OpenAi {
            for tool in &request.hosted_tools {
                names.push(match tool {
                    HostedTool::CodeExecution { .. } => "code_interpreter_call.outputs",
                    HostedTool::WebSearch { .. } => "web_search_call.action.sources",
                    HostedTool::FileSearch { .. } => "file_search_call.results",
                    _ => continue,
                });
            }
        }
        if names.is_empty() {
            return;
        }
        self.out.json("include", "[");
        for name in names {
            self.out.comma();
            self.out.string(name);
        }
        self.out.piece("]");
    }

    fn settings(&mut self, settings: &ModelSettings) -> Result<(), serde_json::Error> {
        if let Some(value) = settings.max_output_tokens {
            self.out.put("max_output_tokens", &value)?;
        }
        self.sampling(settings)?;
        self.reasoning(settings);
        if let Some(parallel) = settings.parallel_tool_calls {
            self.out.put("parallel_tool_calls", &parallel)?;
        }
        match &settings.output {
            None => {}
            Some(OutputFormat::Json) => self.out.json("text", r#"{"format":{"type":"json_object"}}"#),
            Some(OutputFormat::Schema { name, schema }) => {
                self.out.json("text", r#"{"format":{"type":"json_schema""#);
                self.out.text("name", name);
                self.schema("schema", schema, "the answer", true)?;
                self.out.piece("}}");
            }
        }
        match settings.prompt_caching {
            PromptCaching::Off | PromptCaching::Automatic => {}
            PromptCaching::AutomaticFor(_) => {
                self.notices.add("the cache lifetime was not sent: the provider chooses it");
            }
            PromptCaching::Breakpoints(_) => {
                self.notices.add("cache breakpoints were not sent: the provider chooses them");
            }
        }
        Ok(())
    }

    /// Writes the context edits. The wire has compaction only.
    fn context_management(&mut self, edits: &[ContextEdit]) -> Result<(), serde_json::Error> {
        let Some(ContextEdit::Compact { at_tokens }) = edits.first() else { return Ok(()) };
        self.out.json("context_management", r#"[{"type":"compaction""#);
        if let Some(tokens) = at_tokens {
            self.out.put("compact_threshold", tokens)?;
        }
        self.out.piece("}]");
        Ok(())
    }

    fn sampling(&mut self, settings: &ModelSettings) -> Result<(), serde_json::Error> {
        // OpenAI's reasoning models reject sampling parameters.
        let can_sample =
            self.dialect == Dialect::Xai || !self.is_reasoning || settings.thinking == Some(Thinking::Off);
        for (name, value) in [("temperature", settings.temperature), ("top_p", settings.top_p)] {
            match value {
                Some(value) if can_sample => self.out.put(name, &value)?,
                Some(_) => {
                    self.notices.add(format!("`{name}` was not sent: reasoning models do not support it"));
                }
                None => {}
            }
        }
        if settings.top_k.is_some() {
            self.notices.add("`top_k` was not sent: the Responses wire has none");
        }
        if !settings.stop.is_empty() {
            self.notices.add("`stop` was not sent: the Responses wire has no stop sequences");
        }
        if settings.seed.is_some() {
            self.notices.add("`seed` was not sent: the Responses wire has no seed");
        }
        Ok(())
    }

    fn reasoning(&mut self, settings: &ModelSettings) {
        let mut effort = settings.effort.map(crate::Effort::as_str);
        let mut summary = None;
        match settings.thinking {
            None => {}
            Some(Thinking::Off) if self.dialect == Dialect::OpenAi && !self.is_reasoning => {}
            Some(Thinking::Off) => {
                if effort.is_some() {
                    self.notices.add("`effort` was not sent: thinking is off");
                }
                effort = Some("none");
            }
            // A request for thinking includes its summary.
            Some(Thinking::Adaptive) => summary = Some("auto"),
            Some(Thinking::Budget(_)) => {
                summary = Some("auto");
                self.notices.add("the thinking budget was not sent: the Responses wire has `effort` instead");
            }
        }
        if effort.is_none() && summary.is_none() {
            return;
        }
        self.out.json("reasoning", "{");
        if let Some(effort) = effort {
            self.out.text("effort", effort);
        }
        if let Some(summary) = summary {
            self.out.text("summary", summary);
        }
        self.out.piece("}");
    }

    fn metadata(&mut self, request: &Request) {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let user = match self.dialect {
            Dialect::OpenAi => "safety_identifier",
            Dialect::Xai => "user",
        };
        if let Some(id) = request.metadata.get("user_id") {
            self.out.text(user, &text(id));
        }
        let mut others = request.metadata.iter().filter(|(name, _)| *name != "user_id").peekable();
        if others.peek().is_none() {
            return;
        }
        self.out.json("metadata", "{");
        for (name, value) in others {
            self.out.comma();
            self.out.string(name);
            self.out.piece(":");
            self.out.string(&text(value));
        }
        self.out.piece("}");
    }

    fn tools(&mut self, request: &Request) -> Result<(), serde_json::Error> {
        if !request.tools.is_empty() || !request.hosted_tools.is_empty() {
            self.out.json("tools", "[");
            for tool in &request.hosted_tools {
                hosted::write(&mut self.out, self.dialect, tool, request, &mut self.notices)?;
            }
            for definition in request.tools.iter() {
                self.tool(definition)?;
            }
            let has_search = |tool: &HostedTool| match tool {
                HostedTool::ToolSearch { .. } => true,
                HostedTool::Raw(raw) => kind_of(raw.get()) == "tool_search",
                _ => false,
            };
            if request.tools.iter().any(|tool| tool.deferred)
                && self.dialect == Dialect::OpenAi
                && !request.hosted_tools.iter().any(has_search)
            {
                self.out.comma();
                self.out.piece(r#"{"type":"tool_search"}"#);
            }
            self.out.piece("]");
        }
        match &request.tool_choice {
            None => {}
            Some(ToolChoice::Auto) => self.out.json("tool_choice", r#""auto""#),
            Some(ToolChoice::Any) => self.out.json("tool_choice", r#""required""#),
            Some(ToolChoice::None) => self.out.json("tool_choice", r#""none""#),
            Some(ToolChoice::Tool(name)) => {
                let of_caller = request.tools.iter().find(|tool| tool.name == *name);
                let hosted = request.hosted_tools.iter().find_map(|tool| {
                    let kind = match tool {
                        HostedTool::Raw(raw) => kind_of(raw.get()),
                        tool => Cow::Borrowed(hosted::kind(tool)?),
                    };
                    (kind == *name || tool.name() == name).then_some(kind)
                });
                self.out.json("tool_choice", "{");
                match hosted.filter(|_| of_caller.is_none()) {
                    Some(kind) => self.out.text("type", &kind),
                    None => {
                        self.out.text(
                            "type",
                            if of_caller.is_some_and(is_custom) { "custom" } else { "function" },
                        );
                        self.out.text("name", name);
                    }
                }
                self.out.piece("}");
            }
        }
        Ok(())
    }

    fn tool(&mut self, definition: &ToolDefinition) -> Result<(), serde_json::Error> {
        let ToolDefinition { name, description, input_schema, provider_options, .. } = definition;
        self.out.comma();
        let start = self.out.len();
        self.out.piece("{");
        if is_custom(definition) {
            self.out.text("type", "custom");
            self.out.text("name", name);
            self.out.text("description", description);
        } else {
            self.out.text("type", "function");
            self.out.text("name", name);
            self.out.text("description", description);
            self.schema("parameters", input_schema, name, definition.strict)?;
        }
        if definition.deferred {
            match self.dialect {
                Dialect::OpenAi => self.out.json("defer_loading", "true"),
                Dialect::Xai => {
                    self.notices.add("deferred tools were sent directly: the xAI wire has no tool search");
                }
            }
        }
        self.out.piece("}");
        if provider_options.is_empty() {
            return Ok(());
        }
        self.out
            .change(start, |tool| provider_options.iter().try_for_each(|(name, value)| tool.put(name, value)))
    }

    /// Writes a schema and the member `strict`, which defaults to true. A strict schema is lowered.
    fn schema(
        &mut self,
        member: &'static str,
        schema: &RawJson,
        owner: &str,
        is_strict: bool,
    ) -> Result<(), serde_json::Error> {
        if !is_strict {
            self.out.json(member, schema.get());
            self.out.json("strict", "false");
            return Ok(());
        }
        let lowered = lower(&schema.to_value()?, SchemaTarget::OpenAiStrict);
        if let Some(reason) = &lowered.unsupported {
            self.notices.add(format!("the schema of {owner} was sent without `strict`: {reason}"));
            self.out.json(member, schema.get());
            self.out.json("strict", "false");
            return Ok(());
        }
        self.out.put(member, &lowered.schema)?;
        self.out.json("strict", "true");
        Ok(())
    }

    fn input(&mut self, system: Option<&str>, turns: &'a [Turn]) -> Result<(), serde_json::Error> {
        // A stored prompt of the provider has its own input.
        if system.is_none() && !has_input(self.dialect, turns) {
            return Ok(());
        }
        self.out.json("input", "[");
        match (system, self.dialect) {
            (Some(system), Dialect::Xai) => {
                self.out.piece(r#"{"type":"message","role":"system","content":"#);
                self.out.string(system);
                self.out.piece("}");
            }
            // The provider rejects instructions without input, but accepts an empty text.
            (Some(_), Dialect::OpenAi) if !has_input(self.dialect, turns) => {
                self.out.piece(r#"{"type":"message","role":"user","content":["#);
                write_text(&mut self.out, "input_text", "");
                self.out.piece("]}");
            }
            _ => {}
        }
        for turn in turns {
            match turn {
                Turn::User(parts) => self.message("user", parts),
                Turn::System(parts) => {
                    let role = match self.dialect {
                        Dialect::OpenAi => "developer",
                        Dialect::Xai => "system",
                    };
                    self.message(role, parts);
                }
                Turn::Assistant(turn) => self.assistant(turn)?,
                Turn::ToolResults(results) => results.iter().for_each(|result| self.result(result)),
            }
        }
        self.out.piece("]");
        Ok(())
    }

    fn message(&mut self, role: &'static str, parts: &[Part]) {
        let mut is_open = false;
        let dialect = self.dialect;
        for part in parts.iter().filter(|part| !is_omitted(dialect, part)) {
            self.out.comma();
            if !std::mem::replace(&mut is_open, true) {
                self.out.piece(r#"{"type":"message","role":""#);
                self.out.piece(role);
                self.out.piece(r#"","content":["#);
            }
            write_part(&mut self.out, part);
        }
        if is_open {
            self.out.piece("]}");
        }
    }

    fn assistant(&mut self, turn: &'a AssistantTurn) -> Result<(), serde_json::Error> {
        let is_own = turn.origin.provider == self.model.provider;
        let mut has_lost_thinking = false;
        for item in &turn.items {
            if !is_own {
                self.foreign(item, &turn.origin);
                continue;
            }
            if self.is_lost(item) {
                has_lost_thinking = true;
                self.notices
                    .add("thinking without its encrypted form was dropped: the provider cannot read it");
                continue;
            }
            self.record_call(item);
            self.out.comma();
            let start = self.out.len();
            self.out.piece(item.raw().get());
            if has_lost_thinking {
                // With the id, the provider would notice the missing thinking.
                self.out.change(start, |item| {
                    item.remove("id");
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Whether an item is thinking that only a stored answer would contain.
    fn is_lost(&self, item: &Item) -> bool {
        if self.is_stored || self.dialect != Dialect::OpenAi {
            return false;
        }
        let ItemView::Thinking { has_signature: false, .. } = item.view() else { return false };
        let members: Members<'_> = serde_json::from_str(item.raw().get()).unwrap_or_default();
        let content: Vec<Members<'_>> = members.read("content").unwrap_or_default();
        content.is_empty()
    }

    /// Records the result form of a call of our provider.
    fn record_call(&mut self, item: &'a Item) {
        let ItemView::ToolCall { id, .. } = item.view() else { return };
        if !is_valid_id(id) {
            self.unusual_ids.insert(id);
        }
        let raw = item.raw().get();
        // The fast path: nearly all calls are plain functions.
        if raw.contains("\"function_call\"") && !raw.contains("\"caller\"") {
            return;
        }
        let members: Members<'a> = serde_json::from_str(raw).unwrap_or_default();
        let caller = members.get("caller").map(serde_json::value::RawValue::get);
        let special = SpecialCall { kind: kind_of(raw), caller: caller.filter(|caller| *caller != "null") };
        self.special_calls.insert(id, special);
    }

    fn result(&mut self, result: &ToolResult) {
        let special = self.special_calls.get(result.call_id.as_str());
        let kind = special.map_or("function_call", |special| &*special.kind);
        let id = if self.unusual_ids.contains(result.call_id.as_str()) {
            Cow::Borrowed(result.call_id.as_str())
        } else {
            call_id(&result.call_id)
        };
        self.out.comma();
        self.out.piece(r#"{"type":""#);
        self.out.piece(match kind {
            "custom_tool_call" => "custom_tool_call_output",
            "shell_call" => "shell_call_output",
            "apply_patch_call" => "apply_patch_call_output",
            _ => "function_call_output",
        });
        self.out.piece("\"");
        self.out.text("call_id", &id);
        if let Some(caller) = special.and_then(|special| special.caller) {
            self.out.json("caller", caller);
        }
        match kind {
            "shell_call" => {
                let (stdout, stderr) = (result.joined_text(), String::new());
                let (stdout, stderr) = if result.is_error { (stderr, stdout) } else { (stdout, stderr) };
                self.out.json("output", "[{");
                self.out.text("stdout", &stdout);
                self.out.text("stderr", &stderr);
                let outcome = format!(r#"{{"type":"exit","exit_code":{}}}"#, i32::from(result.is_error));
                self.out.json("outcome", &outcome);
                self.out.piece("}]");
            }
            "apply_patch_call" => {
                self.out.text("status", if result.is_error { "failed" } else { "completed" });
                self.out.text("output", &result.joined_text());
            }
            _ => self.output(result),
        }
        self.out.piece("}");
    }

    /// Writes a function's output: a text, or a list of parts. The wire has no error flag, so the text marks failures.
    fn output(&mut self, result: &ToolResult) {
        if result.content.iter().all(|part| matches!(part, Part::Text(_))) {
            let text = result.joined_text();
            let text = if result.is_error { error_text(&text) } else { Cow::Borrowed(text.as_str()) };
            self.out.text("output", &text);
            return;
        }
        self.out.json("output", "[");
        if result.is_error && !result.content.iter().any(|part| matches!(part, Part::Text(_))) {
            write_text(&mut self.out, "input_text", &error_text(""));
        }
        let mut is_first = true;
        for part in result.content.iter().filter(|part| !is_blank(part)) {
            self.out.comma();
            match part {
                Part::Text(text) if result.is_error && is_first => {
                    write_text(&mut self.out, "input_text", &error_text(text));
                }
                part => write_part(&mut self.out, part),
            }
            is_first &= !matches!(part, Part::Text(_));
        }
        self.out.piece("]");
    }

    /// Converts an item of another provider. Items that only its provider can read are dropped.
    fn foreign(&mut self, item: &Item, origin: &ModelId) {
        match item.view() {
            ItemView::Text { text, .. } => {
                if text.trim().is_empty() {
                    return;
                }
                self.out.comma();
                self.out.piece(r#"{"type":"message","role":"assistant","content":"#);
                self.out.string(text);
                self.out.piece("}");
            }
            ItemView::ToolCall { id, name, arguments } => {
                self.out.comma();
                self.out.piece(r#"{"type":"function_call","call_id":"#);
                self.out.string(&call_id(id));
                self.out.text("name", name);
                match arguments {
                    Ok(raw) => self.out.text("arguments", raw.get()),
                    Err(text) => self.out.text("arguments", text),
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

/// Whether a tool takes free text instead of JSON, by its provider options.
fn is_custom(definition: &ToolDefinition) -> bool {
    definition.provider_options.get("type").is_some_and(|kind| kind == "custom")
}

/// Whether a part is an empty text.
fn is_blank(part: &Part) -> bool {
    matches!(part, Part::Text(text) if text.trim().is_empty())
}

/// Whether a part is omitted from the input: an empty text, or a file that belongs to a hosted tool.
fn is_omitted(dialect: Dialect, part: &Part) -> bool {
    is_blank(part) || (matches!(part, Part::ContainerFile { .. }) && dialect == Dialect::OpenAi)
}

/// Whether a conversation has any input.
fn has_input(dialect: Dialect, turns: &[Turn]) -> bool {
    turns.iter().any(|turn| match turn {
        Turn::User(parts) | Turn::System(parts) => parts.iter().any(|part| !is_omitted(dialect, part)),
        Turn::Assistant(turn) => !turn.items.is_empty(),
        Turn::ToolResults(results) => !results.is_empty(),
    })
}

/// The text of a failure, marked as an error.
fn error_text(text: &str) -> Cow<'_, str> {
    match text.trim_start().get(..5) {
        Some(start) if start.eq_ignore_ascii_case("error") => Cow::Borrowed(text),
        _ if text.trim().is_empty() => Cow::Borrowed("Error"),
        _ => Cow::Owned(format!("Error: {text}")),
    }
}

fn write_part(out: &mut JsonWriter, part: &Part) {
    match part {
        Part::Text(text) => write_text(out, "input_text", text),
        Part::Image(media) => {
            out.piece(r#"{"type":"input_image","detail":"auto""#);
            match &media.source {
                MediaSource::Url(url) => out.text("image_url", url),
                MediaSource::FileId(id) => out.text("file_id", id),
                MediaSource::Base64(data) => write_data(out, "image_url", &media.media_type, data),
                MediaSource::Text(text) => {
                    write_data(out, "image_url", &media.media_type, &encoded(text));
                }
            }
            out.piece("}");
        }
        Part::Document(media) => write_document(out, media),
        Part::ContainerFile { file_id } => {
            out.piece(r#"{"type":"input_file","file_id":"#);
            out.string(file_id);
            out.piece("}");
        }
        Part::Raw(raw) => out.piece(raw.get()),
    }
}

fn write_text(out: &mut JsonWriter, kind: &'static str, text: &str) {
    out.piece(r#"{"type":""#);
    out.piece(kind);
    out.piece(r#"","text":"#);
    out.string(text);
    out.piece("}");
}

fn write_document(out: &mut JsonWriter, media: &Media) {
    match &media.source {
        // A text document is sent as text.
        MediaSource::Text(text) => {
            let titled = media.title.as_ref().map(|title| format!("{title}\n\n{text}"));
            write_text(out, "input_text", titled.as_deref().unwrap_or(text));
            return;
        }
        MediaSource::Url(url) => {
            out.piece(r#"{"type":"input_file""#);
            out.text("file_url", url);
        }
        MediaSource::FileId(id) => {
            out.piece(r#"{"type":"input_file""#);
            out.text("file_id", id);
        }
        MediaSource::Base64(data) => {
            out.piece(r#"{"type":"input_file""#);
            let ending = media.media_type.rsplit(['/', '+']).next().unwrap_or_default();
            let ending = if ending == "plain" { "txt" } else { ending };
            match &media.title {
                Some(title) => out.text("filename", title),
                None => out.text("filename", &format!("document.{ending}")),
            }
            write_data(out, "file_data", &media.media_type, data);
        }
    }
    out.piece("}");
}

/// Writes bytes as a `data:` URL.
fn write_data(out: &mut JsonWriter, name: &'static str, media_type: &str, data: &str) {
    out.text(name, &format!("data:{media_type};base64,{data}"));
}

fn encoded(text: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Whether the wire accepts a call id.
fn is_valid_id(id: &str) -> bool {
    (1..=MAX_CALL_ID).contains(&id.len())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// A valid call id. An invalid id of another provider is shortened, with a hash that keeps it unique.
fn call_id(id: &str) -> Cow<'_, str> {
    if is_valid_id(id) {
        return Cow::Borrowed(id);
    }
    let hash = hash(FNV_OFFSET, id.as_bytes());
    let start: String = id
        .chars()
        .filter(|character| character.is_ascii_alphanumeric() || matches!(character, '_' | '-'))
        .take(MAX_CALL_ID - 17)
        .collect();
    let start = if start.is_empty() { "call".to_owned() } else { start };
    Cow::Owned(format!("{start}_{hash:016x}"))
}

/// The prompt cache key, by which the provider routes requests with the same beginning to the same cache.
///
/// It depends only on parts that stay the same during a conversation.
fn cache_key(request: &Request) -> String {
    let mut key = hash(FNV_OFFSET, head(request.system.as_deref().unwrap_or_default()));
    for tool in request.tools.iter() {
        key = hash(key, tool.name.as_bytes());
    }
    if let Some(Turn::User(parts) | Turn::System(parts)) = request.turns.first() {
        for part in parts {
            let text = match part {
                Part::Text(text) => text.as_str(),
                Part::ContainerFile { file_id } => file_id.as_str(),
                Part::Raw(raw) => raw.get(),
                Part::Image(media) | Part::Document(media) => match &media.source {
                    MediaSource::Base64(text) | MediaSource::Text(text) => &**text,
                    MediaSource::Url(text) | MediaSource::FileId(text) => text.as_str(),
                },
            };
            key = hash(key, head(text));
        }
    }
    format!("toolpost-{key:016x}")
}

/// The part of a text that counts for the key.
fn head(text: &str) -> &[u8] {
    &text.as_bytes()[..text.len().min(MAX_KEY_PART)]
}

/// FNV-1a, which is stable across machines and processes.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_ids_are_valid_and_unique() {
        for id in ["call_1", "toolu_01-x", &"x".repeat(64)] {
            assert_eq!(call_id(id), id);
        }
        let odd =
            ["a.b", "a:b", "", "functions.look:0", "ü", &"x".repeat(65), &"x".repeat(66), &"é".repeat(500)];
        let mapped: HashSet<String> = odd.iter().map(|id| call_id(id).into_owned()).collect();
        assert_eq!(mapped.len(), odd.len());
        assert!(mapped.iter().all(|id| is_valid_id(id)), "{mapped:?}");
    }

    #[test]
    fn failures_are_marked_once() {
        assert_eq!(error_text("no such file"), "Error: no such file");
        assert_eq!(error_text("error: no"), "error: no");
        assert_eq!(error_text(" "), "Error");
        assert_eq!(error_text("éééé"), "Error: éééé");
    }
}
