//! Structured output through a forced tool call.
//!
//! If a provider or model has no native structured output, the request gets an answer tool whose arguments are the answer.
//! The call becomes text again, so that callers do not notice. Each request uses native structured output, else a forced
//! call of the answer tool, else instructions of the wire or the caller.
//!
//! The provider option `"structured_output"` overrides this: `"tool"` uses the answer tool, `"native"` never does. The
//! option is not sent.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::codec::{Codec, Encoded};
use super::{AnyFold, Wire};
use crate::catalog::ModelInfo;
use crate::fields::Members;
use crate::{
    ErrorKind, Feature, Item, ItemView, ModelError, ModelEvent, OutputFormat, RawJson, Request, Response,
    StopReason, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn,
};

/// The tool whose arguments are the answer.
pub(crate) const ANSWER_TOOL: &str = "toolpost_answer";

/// The tool of an answer that is not an object. The argument [`VALUE`] has the answer.
const VALUE_TOOL: &str = "toolpost_answer_value";

/// The parameter with such an answer.
const VALUE: &str = "answer";

/// The tool's description.
pub(crate) const DESCRIPTION: &str = "Gives the final answer. Call it once, with the whole answer.";

/// The provider option that selects the method.
pub(crate) const STRUCTURED_OUTPUT: &str = "structured_output";

/// A codec that adds the answer tool to another one.
#[derive(Debug)]
pub(super) struct AnswerToolCodec {
    inner: Arc<dyn Codec>,
    wire: Wire,
    info: Arc<ModelInfo>,
}

impl AnswerToolCodec {
    pub(super) fn new(inner: Arc<dyn Codec>, wire: Wire, info: Arc<ModelInfo>) -> Self {
        Self { inner, wire, info }
    }

    fn can_force(&self) -> bool {
        [Feature::Tools, Feature::ForcedToolChoice]
            .iter()
            .all(|feature| self.info.has(*feature) != Some(false))
    }

    /// The answer tool and the reason for it; `None` if it is not used.
    fn tool_for(&self, request: &Request) -> Option<(String, ToolDefinition)> {
        let Some(OutputFormat::Schema { schema, .. }) = &request.settings.output else { return None };
        let reason = match request.provider_options.get(STRUCTURED_OUTPUT).and_then(Value::as_str) {
            Some("tool") => "as requested".to_owned(),
            Some(_) => return None,
            None if self.info.has(Feature::StructuredOutput) == Some(false) => {
                format!("{} has no native structured output", self.info.id.name)
            }
            None => self.inner.native_schema_obstacle(request)?,
        };
        // Thinking with a budget excludes forced tool calls.
        if !self.can_force() || matches!(request.settings.thinking, Some(Thinking::Budget(_))) {
            return None;
        }
        Some((reason, definition(&schema.to_value().ok()?)?))
    }

    /// The request with the answer tool, and a notice.
    fn adapted<'a>(&self, request: &'a Request) -> (Cow<'a, Request>, Option<String>) {
        let tool = self.tool_for(request);
        let has_option = request.provider_options.contains_key(STRUCTURED_OUTPUT);
        let answers = text_item(self.wire, "").is_none() && has_answer_calls(request);
        if tool.is_none() && !has_option && !answers {
            return (Cow::Borrowed(request), None);
        }
        let mut request = request.clone();
        request.provider_options.remove(STRUCTURED_OUTPUT);
        if answers {
            answer_calls(&mut request.turns);
        }
        let notice = tool.map(|(reason, tool)| {
            let is_alone = request.tools.is_empty() && request.hosted_tools.is_empty();
            request.tool_choice = match request.tool_choice.take() {
                Some(ToolChoice::Tool(name)) => Some(ToolChoice::Tool(name)),
                None | Some(ToolChoice::Auto | ToolChoice::Any) if !is_alone => Some(ToolChoice::Any),
                _ => Some(ToolChoice::Tool(tool.name.clone())),
            };
            request.tools = request.tools.iter().cloned().chain([tool]).collect();
            request.settings.output = None;
            format!("structured output uses a forced tool call: {reason}")
        });
        (Cow::Owned(request), notice)
    }
}

impl Codec for AnswerToolCodec {
    fn emulates(&self) -> &'static [Feature] {
        if self.can_force() { &[Feature::StructuredOutput] } else { &[] }
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let unsupported =
            |message: String| Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        check_option(request).or_else(unsupported)?;
        let (adapted, _) = self.adapted(request);
        if matches!(adapted.settings.output, Some(OutputFormat::Schema { .. }))
            && self.info.has(Feature::StructuredOutput) == Some(false)
        {
            return unsupported(format!(
                "`{}` has no native structured output, and this request allows no forced tool call: \
                 use local definitions in the schema, and no thinking budget",
                self.info.id.name
            ));
        }
        self.inner.check(&adapted)
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (adapted, notice) = self.adapted(request);
        let mut encoded = self.inner.encode(&adapted, stream)?;
        encoded.notices.extend(notice);
        Ok(encoded)
    }

    fn fold(&self) -> AnyFold {
        self.inner.fold()
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        let mut response = self.inner.read_body(body)?;
        convert_answer(&mut response, self.wire);
        Ok(response)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        self.inner.read_error(status, body)
    }
}

/// Checks the option, and that no tool of the caller has the name of the answer tool.
pub(crate) fn check_option(request: &Request) -> Result<(), String> {
    if let Some(mode) = request.provider_options.get(STRUCTURED_OUTPUT)
        && !matches!(mode.as_str(), Some("tool" | "native"))
    {
        return Err(format!(
            "provider option `{STRUCTURED_OUTPUT}`: expected `tool` or `native`, found {mode}"
        ));
    }
    match request.tools.iter().find(|tool| is_answer(&tool.name)) {
        Some(tool) => Err(format!("the tool name `{}` is reserved for structured output", tool.name)),
        None => Ok(()),
    }
}

fn is_answer(name: &str) -> bool {
    matches!(name, ANSWER_TOOL | VALUE_TOOL)
}

/// The answer tool for a schema. `None` if the schema cannot be nested in another one.
fn definition(schema: &Value) -> Option<ToolDefinition> {
    if is_object(schema) {
        return Some(ToolDefinition::new(ANSWER_TOOL, DESCRIPTION, schema));
    }
    let mut outer = Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("required".to_owned(), json!([VALUE])),
        ("additionalProperties".to_owned(), json!(false)),
    ]);
    let mut inner = schema.clone();
    if let Value::Object(inner) = &mut inner {
        // References start at the root: only those to definitions stay valid.
        for definitions in ["$defs", "definitions"] {
            outer.extend(inner.remove_entry(definitions));
        }
        if !has_definition_references_only(schema) {
            return None;
        }
    }
    outer.insert("properties".to_owned(), json!({ VALUE: inner }));
    Some(ToolDefinition::new(VALUE_TOOL, DESCRIPTION, &Value::Object(outer)))
}

/// Whether the schema allows objects only, as for a tool's arguments.
pub(super) fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
        && !["anyOf", "oneOf", "allOf", "$ref"].iter().any(|keyword| schema.get(*keyword).is_some())
}

/// Whether all references of a schema point to its definitions.
fn has_definition_references_only(schema: &Value) -> bool {
    let mut pending = vec![schema];
    while let Some(value) = pending.pop() {
        match value {
            Value::Object(members) => {
                let reference = members.get("$ref").and_then(Value::as_str);
                if reference
                    .is_some_and(|to| !to.starts_with("#/$defs/") && !to.starts_with("#/definitions/"))
                {
                    return false;
                }
                pending.extend(members.values());
            }
            Value::Array(elements) => pending.extend(elements),
            _ => {}
        }
    }
    true
}

/// The text of an answer in the arguments of the tool.
fn text_of(name: &str, arguments: &Result<RawJson, String>) -> String {
    match arguments {
        Ok(raw) => {
            let value = serde_json::from_str::<Members<'_>>(raw.get()).ok();
            let inner = value.as_ref().filter(|_| name == VALUE_TOOL).and_then(|members| members.get(VALUE));
            inner.map_or_else(|| raw.get().to_owned(), |inner| inner.get().to_owned())
        }
        Err(text) => text.clone(),
    }
}

/// A wire's JSON of a text. `None` if the call must stay a call: OpenAI rejects reasoning without its call.
fn text_item(wire: Wire, text: &str) -> Option<RawJson> {
    match wire {
        Wire::Messages => Some(RawJson::from(&json!({"type": "text", "text": text}))),
        Wire::GenerateContent => Some(RawJson::from(&json!({"text": text}))),
        _ => None,
    }
}

/// The text item of an answer tool's call.
fn answer_item(item: &Item, wire: Wire) -> Option<Item> {
    let ItemView::ToolCall { name, arguments, .. } = item.view() else { return None };
    let text = is_answer(name).then(|| text_of(name, arguments))?;
    let raw = text_item(wire, &text).unwrap_or_else(|| item.raw().clone());
    Some(Item::new(ItemView::Text { text, citations: Vec::new() }, raw))
}

/// Converts the calls of the answer tool into text.
pub(super) fn convert_answer(response: &mut Response, wire: Wire) {
    let mut has_answer = false;
    for item in &mut response.items {
        if let Some(answer) = answer_item(item, wire) {
            (*item, has_answer) = (answer, true);
        }
    }
    if has_answer && response.stop == StopReason::ToolUse && response.tool_calls().next().is_none() {
        response.stop = StopReason::EndTurn;
    }
}

/// Converts the events from a position on.
pub(super) fn convert_events(events: &mut VecDeque<ModelEvent>, from: usize, wire: Wire) {
    let is_of_answer = |event: &ModelEvent| match event {
        ModelEvent::ToolCallDelta { name, .. } => is_answer(name),
        ModelEvent::Item(item) => matches!(item.view(), ItemView::ToolCall { name, .. } if is_answer(name)),
        _ => false,
    };
    if !events.range(from..).any(is_of_answer) {
        return;
    }
    for event in events.split_off(from) {
        match event {
            // The wrapper object is not part of the text, so the value is shown when it is complete.
            ModelEvent::ToolCallDelta { name, .. } if name == VALUE_TOOL => {}
            ModelEvent::ToolCallDelta { index, name, fragment, .. } if name == ANSWER_TOOL => {
                if !fragment.is_empty() {
                    events.push_back(ModelEvent::TextDelta { index, text: fragment });
                }
            }
            ModelEvent::Item(item) => match answer_item(&item, wire) {
                Some(answer) => {
                    let is_value =
                        matches!(item.view(), ItemView::ToolCall { name, .. } if name == VALUE_TOOL);
                    if let (true, ItemView::Text { text, .. }) = (is_value, answer.view()) {
                        events.push_back(ModelEvent::TextDelta { index: 0, text: text.clone() });
                    }
                    events.push_back(ModelEvent::Item(answer));
                }
                None => events.push_back(ModelEvent::Item(item)),
            },
            event => events.push_back(event),
        }
    }
}

/// The id and name of the answer tool's call behind a text item.
fn call_of(item: &Item) -> Option<(String, String)> {
    if !matches!(item.view(), ItemView::Text { .. }) || !item.raw().get().contains(ANSWER_TOOL) {
        return None;
    }
    let members: Members<'_> = serde_json::from_str(item.raw().get()).ok()?;
    let name: String = members.read("name")?;
    is_answer(&name).then_some((members.read("call_id")?, name))
}

fn has_answer_calls(request: &Request) -> bool {
    request.turns.iter().any(|turn| match turn {
        Turn::Assistant(turn) => turn.items.iter().any(|item| call_of(item).is_some()),
        _ => false,
    })
}

/// Adds results for the calls of the answer tool, because every call needs one.
fn answer_calls(turns: &mut Vec<Turn>) {
    let mut answered = Vec::with_capacity(turns.len() + 1);
    let mut due: Vec<ToolResult> = Vec::new();
    for turn in turns.drain(..) {
        if !due.is_empty() && !matches!(turn, Turn::ToolResults(_)) {
            answered.push(Turn::ToolResults(std::mem::take(&mut due)));
        }
        match turn {
            Turn::ToolResults(results) => {
                due.extend(results);
                answered.push(Turn::ToolResults(std::mem::take(&mut due)));
            }
            Turn::Assistant(turn) => {
                let calls = turn.items.iter().filter_map(call_of);
                due =
                    calls.map(|(id, name)| ToolResult::text(id, name, "The answer was received.")).collect();
                answered.push(Turn::Assistant(turn));
            }
            other => answered.push(other),
        }
    }
    if !due.is_empty() {
        answered.push(Turn::ToolResults(due));
    }
    *turns = answered;
}
