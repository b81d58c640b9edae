//! Encodes a request as the body of `GenerateContent`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::is_modern;
use super::schemas::{GeminiSchema, Schemas};
use super::view::provider_id;
use crate::catalog::ModelInfo;
use crate::json::JsonWriter;
use crate::options::merge_options;
use crate::wires::codec::Notices;
use crate::wires::roles::Roles;
use crate::{
    AssistantTurn, Effort, ErrorKind, HostedTool, Item, ItemView, Media, MediaSource, ModelError, ModelId,
    ModelSettings, OutputFormat, Part, PromptCaching, RawJson, Request, Thinking, ToolChoice, ToolDefinition,
    ToolResult, Turn,
};

/// The placeholder for the signature of another model's call: the documented text
/// `skip_thought_signature_validator`, in base64.
const NO_SIGNATURE: &str = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=";

/// The key for arguments that are not a JSON object.
const NOT_JSON: &str = "INVALID_JSON";

/// The base URL of uploaded files. The wire requires the whole URL; ids are its end.
const FILES: &str = "https://generativelanguage.googleapis.com/v1beta/";

/// Encodes the body, with notices for the user.
pub(super) fn encode(
    info: &ModelInfo,
    schemas: &Schemas,
    request: &Request,
) -> Result<(JsonWriter, Vec<String>), ModelError> {
    let mut encoder = Encoder {
        out: JsonWriter::for_turns(request.turns.len()),
        model: &info.id,
        schemas,
        is_modern: is_modern(&info.id.name),
        roles: Roles::default(),
        has_call: false,
        notices: Notices::default(),
    };
    encoder.body(request).map_err(|error| {
        ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(&info.id)
    })?;
    Ok((encoder.out, encoder.notices.into_vec()))
}

struct Encoder<'a> {
    out: JsonWriter,
    model: &'a ModelId,
    schemas: &'a Schemas,
    /// Whether the model is Gemini 3 or later.
    is_modern: bool,
    roles: Roles,
    /// Whether the current content has a function call. The first one must be signed.
    has_call: bool,
    notices: Notices,
}

impl Encoder<'_> {
    fn body(&mut self, request: &Request) -> Result<(), serde_json::Error> {
        self.out.piece("{");
        if let Some(system) = request.system.as_deref().filter(|text| !text.trim().is_empty()) {
            self.out.json("systemInstruction", r#"{"parts":[{"text":"#);
            self.out.string(system);
            self.out.piece("}]}");
        }
        self.contents(&request.turns)?;
        self.tools(request)?;
        self.tool_config(request);
        self.generation_config(&request.settings)?;
        if !matches!(request.settings.prompt_caching, PromptCaching::Off | PromptCaching::Automatic) {
            self.notices.add("the cache lifetime was not sent: use the provider option `cachedContent`");
        }
        self.out.piece("}");
        if request.provider_options.is_empty() {
            return Ok(());
        }
        self.out.change(0, |body| merge_options(body, &request.provider_options))
    }

    fn generation_config(&mut self, settings: &ModelSettings) -> Result<(), serde_json::Error> {
        let mut out = JsonWriter::for_turns(0);
        out.piece("{");
        if let Some(limit) = settings.max_output_tokens {
            out.put("maxOutputTokens", &limit)?;
        }
        if let Some(value) = settings.temperature {
            out.put("temperature", &value)?;
        }
        if let Some(value) = settings.top_p {
            out.put("topP", &value)?;
        }
        if let Some(value) = settings.top_k {
            out.put("topK", &value)?;
        }
        if !settings.stop.is_empty() {
            out.put("stopSequences", &settings.stop)?;
        }
        if let Some(seed) = settings.seed {
            out.put("seed", &seed)?;
        }
        match &settings.output {
            None => {}
            Some(OutputFormat::Json) => out.text("responseMimeType", "application/json"),
            Some(OutputFormat::Schema { name, schema }) => {
                out.text("responseMimeType", "application/json");
                let schema = self.schema(name, schema);
                out.json("responseJsonSchema", &schema.json);
            }
        }
        if let Some(thinking) = self.thinking(settings)? {
            out.json("thinkingConfig", thinking.get());
        }
        if settings.parallel_tool_calls == Some(false) {
            self.notices
                .add("`parallel_tool_calls` was not sent: the Gemini wire cannot forbid parallel calls");
        }
        out.piece("}");
        if out.len() > 2 {
            self.out.json("generationConfig", out.into_raw()?.get());
        }
        Ok(())
    }

    /// The thinking configuration: a budget before Gemini 3, a level from Gemini 3 on.
    fn thinking(&mut self, settings: &ModelSettings) -> Result<Option<RawJson>, serde_json::Error> {
        let ModelSettings { thinking, effort, .. } = settings;
        let level = self.level(thinking.as_ref(), *effort);
        let mut out = JsonWriter::with_capacity(64);
        out.piece("{");
        match (thinking, level) {
            (_, Some(level)) => {
                if let Some(Thinking::Budget(_)) = thinking {
                    self.notices
                        .add("the thinking budget was not sent: `effort` is set, and the Gemini wire accepts one of them");
                }
                out.text("thinkingLevel", level);
            }
            (Some(Thinking::Off), None) => out.json("thinkingBudget", "0"),
            (Some(Thinking::Budget(tokens)), None) => out.put("thinkingBudget", tokens)?,
            // From Gemini 3 on, adaptive thinking is the default.
            (Some(Thinking::Adaptive), None) if !self.is_modern => out.json("thinkingBudget", "-1"),
            (Some(Thinking::Adaptive) | None, None) => {}
        }
        if matches!(thinking, Some(Thinking::Adaptive | Thinking::Budget(_))) {
            out.json("includeThoughts", "true");
        }
        out.piece("}");
        if out.len() > 2 { out.into_raw().map(Some) } else { Ok(None) }
    }

    fn level(&mut self, thinking: Option<&Thinking>, effort: Option<Effort>) -> Option<&'static str> {
        if thinking == Some(&Thinking::Off) {
            if effort.is_some() {
                self.notices.add("`effort` was not sent: thinking is off");
            }
            if self.is_modern {
                self.notices.add("thinking was set to `minimal`: it cannot be off from Gemini 3 on");
            }
            return self.is_modern.then_some("minimal");
        }
        let effort = effort?;
        if !self.is_modern {
            self.notices.add("`effort` was not sent: models before Gemini 3 have a thinking budget instead");
            return None;
        }
        Some(match effort {
            Effort::Minimal | Effort::Low | Effort::Medium | Effort::High => effort.as_str(),
            Effort::Xhigh | Effort::Max => {
                let word = effort.as_str();
                self.notices
                    .add(format!("effort `{word}` was sent as `high`, the maximum of the Gemini wire"));
                Effort::High.as_str()
            }
        })
    }

    fn tools(&mut self, request: &Request) -> Result<(), serde_json::Error> {
        if request.tools.is_empty() && request.hosted_tools.is_empty() {
            return Ok(());
        }
        self.out.json("tools", "[");
        if !request.tools.is_empty() {
            self.out.piece(r#"{"functionDeclarations":["#);
            for definition in request.tools.iter() {
                self.tool(definition)?;
            }
            self.out.piece("]}");
        }
        for tool in &request.hosted_tools {
            self.hosted(tool)?;
        }
        self.out.piece("]");
        Ok(())
    }

    fn tool(&mut self, definition: &ToolDefinition) -> Result<(), serde_json::Error> {
        let ToolDefinition { name, description, input_schema, provider_options, .. } = definition;
        self.out.comma();
        let start = self.out.len();
        self.out.piece("{");
        self.out.text("name", name);
        self.out.text("description", description);
        let schema = self.schema(name, input_schema);
        self.out.json("parametersJsonSchema", &schema.json);
        self.out.piece("}");
        if definition.deferred {
            self.notices.add("deferred tools were sent directly: the Gemini wire has no tool search");
        }
        if provider_options.is_empty() {
            return Ok(());
        }
        self.out
            .change(start, |tool| provider_options.iter().try_for_each(|(name, value)| tool.put(name, value)))
    }

    fn schema(&mut self, name: &str, schema: &RawJson) -> Arc<GeminiSchema> {
        let sent = self.schemas.get(schema);
        if let Some(reason) = &sent.unsupported {
            self.notices.add(format!("the schema of `{name}` was sent as an open object: {reason}"));
        }
        sent
    }

    fn hosted(&mut self, tool: &HostedTool) -> Result<(), serde_json::Error> {
        self.out.comma();
        match tool {
            HostedTool::WebSearch { max_uses, .. } | HostedTool::WebFetch { max_uses, .. } => {
                if max_uses.is_some() {
                    let name = tool.name();
                    self.notices
                        .add(format!("`max_uses` of `{name}` was not sent: the Gemini wire has no limit"));
                }
                let is_search = matches!(tool, HostedTool::WebSearch { .. });
                self.out.piece(if is_search { r#"{"googleSearch":{}}"# } else { r#"{"urlContext":{}}"# });
            }
            HostedTool::FileSearch { stores, max_results } => {
                self.out.piece(r#"{"fileSearch":{"#);
                self.out.put("fileSearchStoreNames", stores)?;
                if let Some(count) = max_results {
                    self.out.put("topK", count)?;
                }
                self.out.piece("}}");
            }
            HostedTool::CodeExecution { version, .. } => {
                if let Some(version) = version {
                    self.notices.add(format!(
                        "version `{version}` of `code_execution` was not sent: the Gemini wire has no versions"
                    ));
                }
                self.out.piece(r#"{"codeExecution":{}}"#);
            }
            HostedTool::Raw(raw) => self.out.piece(raw.get()),
            // `check` rejects these.
            HostedTool::ToolSearch { .. } | HostedTool::XSearch { .. } => {}
        }
        Ok(())
    }

    fn tool_config(&mut self, request: &Request) {
        let mode = match &request.tool_choice {
            None | Some(ToolChoice::Auto) if request.tools.iter().any(|tool| tool.strict) => {
                Some("VALIDATED")
            }
            None => None,
            Some(ToolChoice::Auto) => Some("AUTO"),
            Some(ToolChoice::Any | ToolChoice::Tool(_)) => Some("ANY"),
            Some(ToolChoice::None) => Some("NONE"),
        };
        // Hosted tools together with functions require this setting.
        let combines = self.is_modern && !request.tools.is_empty() && !request.hosted_tools.is_empty();
        if mode.is_none() && !combines {
            return;
        }
        self.out.json("toolConfig", "{");
        if let Some(mode) = mode {
            self.out.json("functionCallingConfig", "{");
            self.out.text("mode", mode);
            if let Some(ToolChoice::Tool(name)) = &request.tool_choice {
                self.out.json("allowedFunctionNames", "[");
                self.out.string(name);
                self.out.piece("]");
            }
            self.out.piece("}");
        }
        if combines {
            self.out.json("includeServerSideToolInvocations", "true");
        }
        self.out.piece("}");
    }

    fn contents(&mut self, turns: &[Turn]) -> Result<(), serde_json::Error> {
        self.out.json("contents", "[");
        for turn in turns {
            match turn {
                Turn::User(parts) => self.parts(parts),
                Turn::System(parts) => {
                    self.notices.add(
                        "system turns within the conversation were sent as user turns: the Gemini wire has none",
                    );
                    self.parts(parts);
                }
                Turn::Assistant(turn) => self.assistant(turn)?,
                Turn::ToolResults(results) => self.results(results),
            }
        }
        self.roles.end(&mut self.out);
        self.out.piece("]");
        Ok(())
    }

    /// Begins a part. Adjacent parts of one role are one content.
    fn begin_part(&mut self, role: &'static str) {
        if self.roles.begin(&mut self.out, role, "parts") {
            self.has_call = false;
        }
    }

    fn parts(&mut self, parts: &[Part]) {
        for part in parts {
            self.part(part);
        }
    }

    fn part(&mut self, part: &Part) {
        match part {
            Part::Text(text) if text.trim().is_empty() => {}
            Part::Text(text) => {
                self.begin_part("user");
                self.text(text);
            }
            Part::Image(media) | Part::Document(media) => {
                self.begin_part("user");
                self.media(media);
            }
            Part::Raw(raw) => {
                self.begin_part("user");
                self.out.piece(raw.get());
            }
            // `check` rejects it.
            Part::ContainerFile { .. } => {}
        }
    }

    fn text(&mut self, text: &str) {
        self.out.piece(r#"{"text":"#);
        self.out.string(text);
        self.out.piece("}");
    }

    fn media(&mut self, media: &Media) {
        if media.title.is_some() {
            self.notices.add("document titles were not sent: the Gemini wire has none");
        }
        let start = match &media.source {
            MediaSource::Base64(_) | MediaSource::Text(_) => r#"{"inlineData":{"#,
            MediaSource::Url(_) | MediaSource::FileId(_) => r#"{"fileData":{"#,
        };
        self.out.piece(start);
        if !media.media_type.is_empty() {
            self.out.text("mimeType", &media.media_type);
        }
        match &media.source {
            MediaSource::Base64(data) => self.out.text("data", data),
            MediaSource::Text(text) => self.out.text("data", &STANDARD.encode(text.as_bytes())),
            MediaSource::FileId(id) if id.starts_with("files/") => {
                self.out.text("fileUri", &format!("{FILES}{id}"));
            }
            MediaSource::Url(address) | MediaSource::FileId(address) => self.out.text("fileUri", address),
        }
        self.out.piece("}}");
    }

    /// Writes the results of calls together. Media that a result cannot contain follow after all results.
    fn results(&mut self, results: &[ToolResult]) {
        let is_nested = |part: &Part| match part {
            Part::Text(_) => true,
            Part::Image(media) | Part::Document(media) => {
                self.is_modern && matches!(media.source, MediaSource::Base64(_) | MediaSource::Text(_))
            }
            Part::ContainerFile { .. } | Part::Raw(_) => false,
        };
        let outside: Vec<&Part> =
            results.iter().flat_map(|result| &result.content).filter(|part| !is_nested(part)).collect();
        let nested: Vec<Vec<&Part>> = results
            .iter()
            .map(|result| result.content.iter().filter(|part| is_nested(part)).collect())
            .collect();
        for (result, parts) in results.iter().zip(nested) {
            self.begin_part("user");
            self.out.piece(r#"{"functionResponse":{"#);
            if let Some(id) = provider_id(&result.call_id) {
                self.out.text("id", id);
            }
            self.out.text("name", &result.name);
            self.out.json("response", "{");
            self.out.text(if result.is_error { "error" } else { "output" }, &result.joined_text());
            self.out.piece("}");
            let media: Vec<&Media> = parts
                .into_iter()
                .filter_map(|part| match part {
                    Part::Image(media) | Part::Document(media) => Some(media),
                    _ => None,
                })
                .collect();
            if !media.is_empty() {
                self.out.json("parts", "[");
                for media in media {
                    self.out.comma();
                    self.media(media);
                }
                self.out.piece("]");
            }
            self.out.piece("}}");
        }
        for part in outside {
            self.part(part);
        }
    }

    fn assistant(&mut self, turn: &AssistantTurn) -> Result<(), serde_json::Error> {
        let is_own = turn.origin.provider == self.model.provider;
        for item in &turn.items {
            // The provider sends empty texts but rejects them in requests.
            if matches!(item.view(), ItemView::Text { text, .. } if text.is_empty()) {
                continue;
            }
            if is_own {
                self.own(item, &turn.origin)?;
            } else {
                self.foreign(item, &turn.origin);
            }
        }
        Ok(())
    }

    fn own(&mut self, item: &Item, origin: &ModelId) -> Result<(), serde_json::Error> {
        self.begin_part("model");
        let start = self.out.len();
        self.out.piece(item.raw().get());
        if !matches!(item.view(), ItemView::ToolCall { .. }) || std::mem::replace(&mut self.has_call, true) {
            return Ok(());
        }
        // An older model may have signed nothing, but this one requires a signature. Its own items stay unchanged.
        if !self.is_modern || origin.name == self.model.name {
            return Ok(());
        }
        let mut is_added = false;
        self.out.change(start, |part| {
            is_added = part.get("thoughtSignature").is_none();
            if is_added { part.put("thoughtSignature", NO_SIGNATURE) } else { Ok(()) }
        })?;
        if is_added {
            self.unsigned(origin);
        }
        Ok(())
    }

    fn unsigned(&mut self, origin: &ModelId) {
        self.notices.add(format!("calls of {origin} have no thought signature: a placeholder was sent"));
    }

    /// Converts an item of another provider. Items that only its provider can read are dropped.
    fn foreign(&mut self, item: &Item, origin: &ModelId) {
        match item.view() {
            ItemView::Text { text, .. } => {
                self.begin_part("model");
                self.text(text);
            }
            ItemView::ToolCall { id, name, arguments } => {
                self.begin_part("model");
                self.out.piece(r#"{"functionCall":{"#);
                if let Some(id) = provider_id(id) {
                    self.out.text("id", id);
                }
                self.out.text("name", name);
                self.out.name("args");
                match arguments {
                    Ok(raw) if raw.get().starts_with('{') => self.out.piece(raw.get()),
                    Ok(raw) => self.wrapped(raw.get()),
                    Err(text) => self.wrapped(text),
                }
                self.out.piece("}");
                if self.is_modern && !std::mem::replace(&mut self.has_call, true) {
                    self.out.text("thoughtSignature", NO_SIGNATURE);
                    self.unsigned(origin);
                }
                self.out.piece("}");
            }
            ItemView::Thinking { .. }
            | ItemView::ServerToolCall { .. }
            | ItemView::ServerToolResult { .. }
            | ItemView::Other { .. } => self.notices.add_dropped_items(origin),
        }
    }

    /// Wraps arguments that are not an object.
    fn wrapped(&mut self, text: &str) {
        self.out.piece("{");
        self.out.text(NOT_JSON, text);
        self.out.piece("}");
    }
}
