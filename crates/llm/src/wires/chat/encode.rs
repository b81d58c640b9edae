//! Encodes a request as the body of Chat Completions.

use std::collections::HashMap;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::message::MessageBuilder;
use super::parts::{content_of, result_of};
use super::{ANSWER_TOOL, DESCRIPTION, STRUCTURED_OUTPUT};
use crate::catalog::ModelInfo;
use crate::fields::Fields;
use crate::json::JsonWriter;
use crate::options::merge_options;
use crate::schema::{SchemaTarget, lower};
use crate::wires::codec::Notices;
use crate::{
    AssistantTurn, ErrorKind, Feature, HostedTool, ItemView, ModelError, ModelId, ModelSettings,
    OutputFormat, PromptCaching, Request, Thinking, ToolChoice, ToolDefinition, Turn,
};

/// Maximum length of a call id that every server accepts, in bytes.
const MAX_CALL_ID: usize = 40;

/// Maximum length of a name of an answer's format, in characters.
const MAX_FORMAT_NAME: usize = 64;

/// Encodes the body, with notices for the user.
pub(super) fn encode(
    info: &ModelInfo,
    request: &Request,
    stream: bool,
) -> Result<(JsonWriter, Vec<String>), ModelError> {
    let model = &info.id;
    let mode = request.provider_options.get(STRUCTURED_OUTPUT).and_then(Value::as_str);
    let wants_schema = matches!(request.settings.output, Some(OutputFormat::Schema { .. }));
    let lacks_schemas = info.has(Feature::StructuredOutput) == Some(false);
    let mut encoder = Encoder {
        out: JsonWriter::for_turns(request.turns.len()),
        model,
        notices: Notices::default(),
        foreign_ids: HashMap::new(),
        uses_answer_tool: mode == Some("tool") || mode.is_none() && wants_schema && lacks_schemas,
    };
    encoder
        .body(request, stream)
        .map_err(|error| ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(model))?;
    Ok((encoder.out, encoder.notices.into_vec()))
}

/// Encodes a conversation as a list of messages, with notices about dropped items.
pub(crate) fn write_messages(
    model: &ModelId,
    system: Option<&str>,
    turns: &[Turn],
) -> Result<(JsonWriter, Vec<String>), serde_json::Error> {
    let mut encoder = Encoder {
        out: JsonWriter::for_turns(turns.len()),
        model,
        notices: Notices::default(),
        foreign_ids: HashMap::new(),
        uses_answer_tool: false,
    };
    encoder.out.piece("[");
    encoder.messages(system, turns)?;
    encoder.out.piece("]");
    Ok((encoder.out, encoder.notices.into_vec()))
}

struct Encoder<'a> {
    out: JsonWriter,
    model: &'a ModelId,
    notices: Notices,
    /// Replacements of other providers' call ids that are too long.
    foreign_ids: HashMap<String, String>,
    /// Whether the answer tool is used.
    uses_answer_tool: bool,
}

impl Encoder<'_> {
    fn body(&mut self, request: &Request, stream: bool) -> Result<(), serde_json::Error> {
        let settings = &request.settings;
        self.out.piece("{");
        self.out.text("model", &self.model.name);
        self.out.json("messages", "[");
        self.messages(request.system.as_deref(), &request.turns)?;
        self.out.piece("]");
        if stream {
            self.out.json("stream", "true");
            self.out.json("stream_options", r#"{"include_usage":true}"#);
        }
        self.tools(request)?;
        if !self.uses_answer_tool {
            self.format(settings.output.as_ref())?;
        }
        if let Some(limit) = settings.max_output_tokens {
            self.out.put(limit_name(&self.model.name), &limit)?;
        }
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
            self.out.put("stop", &settings.stop)?;
        }
        if let Some(value) = settings.seed {
            self.out.put("seed", &value)?;
        }
        self.effort(settings);
        if matches!(settings.prompt_caching, PromptCaching::AutomaticFor(_) | PromptCaching::Breakpoints(_)) {
            self.notices.add("the cache lifetime was not sent: the Chat Completions wire has none");
        }
        if !request.betas.is_empty() {
            self.notices.add("`betas` were not sent: the Chat Completions wire has no beta header");
        }
        self.metadata(&request.metadata)?;
        self.out.piece("}");
        let mut options = request.provider_options.clone();
        options.remove(STRUCTURED_OUTPUT);
        if options.is_empty() {
            return Ok(());
        }
        self.out.change(0, |body| merge_options(body, &options))
    }

    fn effort(&mut self, settings: &ModelSettings) {
        match (settings.effort, &settings.thinking) {
            (Some(effort), _) => self.out.text("reasoning_effort", effort.as_str()),
            (None, Some(Thinking::Off)) => self.out.text("reasoning_effort", "none"),
            (None, _) => {}
        }
        match settings.thinking {
            Some(Thinking::Budget(_)) => self.notices.add(
                "the thinking budget was not sent: the Chat Completions wire has none; set `effort` instead",
            ),
            Some(Thinking::Off) if settings.effort.is_some() => self
                .notices
                .add("`thinking` off was not sent: `effort` is set, and the Chat Completions wire has one field for both"),
            _ => {}
        }
    }

    fn metadata(&mut self, metadata: &Map<String, Value>) -> Result<(), serde_json::Error> {
        let mut rest = metadata.clone();
        if let Some(user) = rest.remove("user_id") {
            self.out.put("user", &user)?;
        }
        if !rest.is_empty() {
            self.out.put("metadata", &rest)?;
        }
        Ok(())
    }

    fn format(&mut self, output: Option<&OutputFormat>) -> Result<(), serde_json::Error> {
        match output {
            None => Ok(()),
            Some(OutputFormat::Json) => {
                self.out.json("response_format", r#"{"type":"json_object"}"#);
                Ok(())
            }
            Some(OutputFormat::Schema { name, schema }) => {
                let lowered = lower(&schema.to_value()?, self.schema_target());
                self.report_unchecked("the answer", &lowered.unchecked);
                let mut format = json!({"name": format_name(name), "schema": lowered.schema, "strict": true});
                if let Some(reason) = lowered.unsupported {
                    self.notices.add(format!("the answer's schema was sent without `strict`: {reason}"));
                    format["strict"] = Value::Bool(false);
                }
                self.out.put("response_format", &json!({"type": "json_schema", "json_schema": format}))
            }
        }
    }

    /// The schema dialect of the model. Routers put the model's vendor into its name and pass schemas on.
    fn schema_target(&self) -> SchemaTarget {
        let name = &self.model.name;
        let is_gemini = name.starts_with("google/")
            || name.rsplit('/').next().is_some_and(|name| name.starts_with("gemini"));
        if is_gemini { SchemaTarget::Gemini } else { SchemaTarget::OpenAiStrict }
    }

    fn report_unchecked(&mut self, what: &str, unchecked: &[String]) {
        if !unchecked.is_empty() {
            self.notices.add(format!(
                "the server does not check these keywords of the schema of {what}: {}",
                unchecked.join(", ")
            ));
        }
    }

    fn tools(&mut self, request: &Request) -> Result<(), serde_json::Error> {
        let mut tools: Vec<Box<RawValue>> = Vec::new();
        for tool in &request.hosted_tools {
            if let HostedTool::Raw(raw) = tool {
                tools.push(RawValue::from_string(raw.get().to_owned())?);
            }
        }
        for definition in request.tools.iter() {
            tools.push(self.tool(definition)?);
        }
        let mut choice = request.tool_choice.clone();
        if self.uses_answer_tool
            && let Some(output) = &request.settings.output
        {
            let schema = match output {
                OutputFormat::Schema { schema, .. } => schema.to_value()?,
                OutputFormat::Json => json!({"type": "object"}),
            };
            tools.push(to_raw_value(&json!({"type": "function", "function": {
                "name": ANSWER_TOOL,
                "description": DESCRIPTION,
                "parameters": schema
            }}))?);
            let alone = tools.len() == 1;
            choice = match choice {
                None | Some(ToolChoice::Auto | ToolChoice::Any) if !alone => Some(ToolChoice::Any),
                Some(ToolChoice::Tool(name)) => Some(ToolChoice::Tool(name)),
                _ => Some(ToolChoice::Tool(ANSWER_TOOL.to_owned())),
            };
        }
        let has_others = request.provider_options.contains_key("tools");
        if tools.is_empty() && !has_others {
            // Servers reject a tool choice without tools.
            return Ok(());
        }
        if !tools.is_empty() {
            self.out.put("tools", &tools)?;
        }
        match &choice {
            None => {}
            Some(ToolChoice::Auto) => self.out.text("tool_choice", "auto"),
            Some(ToolChoice::Any) => self.out.text("tool_choice", "required"),
            Some(ToolChoice::None) => self.out.text("tool_choice", "none"),
            Some(ToolChoice::Tool(name)) => {
                self.out.put("tool_choice", &json!({"type": "function", "function": {"name": name}}))?;
            }
        }
        if let Some(parallel) = request.settings.parallel_tool_calls {
            self.out.put("parallel_tool_calls", &parallel)?;
        }
        Ok(())
    }

    fn tool(&mut self, definition: &ToolDefinition) -> Result<Box<RawValue>, serde_json::Error> {
        let ToolDefinition { name, description, input_schema, provider_options, .. } = definition;
        let mut function = Fields::default();
        function.put("name", name)?;
        if !description.is_empty() {
            function.put("description", description)?;
        }
        if definition.strict {
            let lowered = lower(&input_schema.to_value()?, self.schema_target());
            self.report_unchecked(&format!("the tool `{name}`"), &lowered.unchecked);
            function.put("parameters", &lowered.schema)?;
            match lowered.unsupported {
                None => function.put("strict", &true)?,
                Some(reason) => {
                    self.notices.add(format!("the tool `{name}` was sent without `strict`: {reason}"));
                }
            }
        } else {
            function.put("parameters", input_schema)?;
        }
        for (name, value) in provider_options {
            function.put(name, value)?;
        }
        if definition.deferred {
            self.notices.add(format!(
                "the deferred tool `{name}` was sent directly: the Chat Completions wire has no tool search"
            ));
        }
        let mut tool = Fields::default();
        tool.put("type", "function")?;
        tool.put("function", &function)?;
        to_raw_value(&tool)
    }

    fn messages(&mut self, system: Option<&str>, turns: &[Turn]) -> Result<(), serde_json::Error> {
        if let Some(system) = system.filter(|text| !text.trim().is_empty()) {
            self.message("system", &to_raw_value(system)?);
        }
        for turn in turns {
            match turn {
                Turn::User(parts) | Turn::System(parts) => {
                    let role = if matches!(turn, Turn::System(_)) { "system" } else { "user" };
                    if let Some(content) = content_of(parts)? {
                        self.message(role, &content);
                    }
                }
                Turn::Assistant(turn) => self.assistant(turn)?,
                Turn::ToolResults(results) => {
                    let mut attachments = Vec::new();
                    for result in results {
                        let content = result_of(result, &mut attachments, &mut self.notices)?;
                        self.begin("tool");
                        let id = self.foreign_ids.get(&result.call_id).unwrap_or(&result.call_id);
                        self.out.text("tool_call_id", id);
                        self.out.json("content", content.get());
                        self.out.piece("}");
                    }
                    if let Some(content) = content_of(&attachments)? {
                        self.message("user", &content);
                    }
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, role: &'static str) {
        self.out.comma();
        self.out.piece("{");
        self.out.text("role", role);
    }

    fn message(&mut self, role: &'static str, content: &RawValue) {
        self.begin(role);
        self.out.json("content", content.get());
        self.out.piece("}");
    }

    fn assistant(&mut self, turn: &AssistantTurn) -> Result<(), serde_json::Error> {
        let is_own = turn.origin.provider == self.model.provider;
        let mut message = MessageBuilder::default();
        for item in &turn.items {
            if is_own {
                message.add(item)?;
                continue;
            }
            match item.view() {
                ItemView::Text { text, .. } => message.add_text(text)?,
                ItemView::ToolCall { id, name, arguments } => {
                    let arguments = match arguments {
                        Ok(raw) => raw.get(),
                        Err(text) => text,
                    };
                    let id = self.call_id(id);
                    message.add_call(&id, name, arguments)?;
                }
                ItemView::Thinking { .. }
                | ItemView::ServerToolCall { .. }
                | ItemView::ServerToolResult { .. }
                | ItemView::Other { .. } => self.notices.add_dropped_items(&turn.origin),
            }
        }
        let answered = std::mem::take(&mut message.answered);
        if let Some(message) = message.into_message()? {
            self.out.comma();
            self.out.piece(to_raw_value(&message)?.get());
        }
        // Every call needs a result, also a call of the answer tool.
        for id in answered {
            self.begin("tool");
            self.out.text("tool_call_id", &id);
            self.out.text("content", "The answer was received.");
            self.out.piece("}");
        }
        Ok(())
    }

    /// A short id for another provider's call, the same for the call and its result.
    fn call_id(&mut self, id: &str) -> String {
        if id.len() <= MAX_CALL_ID {
            return id.to_owned();
        }
        if let Some(known) = self.foreign_ids.get(id) {
            return known.clone();
        }
        let start: String = id.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        // The number distinguishes ids with the same beginning.
        let short = format!("call_{start}_{}", self.foreign_ids.len());
        self.foreign_ids.insert(id.to_owned(), short.clone());
        short
    }
}

/// The member that limits output tokens. OpenAI's reasoning models reject the older one.
fn limit_name(model: &str) -> &'static str {
    let name = model.rsplit('/').next().unwrap_or(model);
    let is_newer = ["gpt-5", "gpt-6", "o1", "o3", "o4"].iter().any(|start| name.starts_with(start));
    if is_newer { "max_completion_tokens" } else { "max_tokens" }
}

/// A format name of letters, digits, `_` and `-`.
fn format_name(name: &str) -> String {
    let name: String = name
        .chars()
        .take(MAX_FORMAT_NAME)
        .map(
            |letter| if letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-') { letter } else { '_' },
        )
        .collect();
    if name.is_empty() { "answer".to_owned() } else { name }
}
