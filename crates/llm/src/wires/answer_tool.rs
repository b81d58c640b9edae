//! Answers that fit a schema, by way of a tool that must be called.
//!
//! Where a provider or a model has no form of its own for a schema, the request gets one more tool, whose arguments are
//! the answer, and the model must call a tool. What comes back is the text of the answer again, so that nobody else
//! knows of it. The order for each request: the provider's own form, else this tool where the model can be made to call
//! one, else what the wire or the caller says in the instructions.
//!
//! The provider option `"structured_output"` decides otherwise: `"tool"` asks by the tool, `"native"` never does. It is
//! not sent.

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

/// The tool of an answer that is no object: it stands in the arguments as [`VALUE`].
const VALUE_TOOL: &str = "toolpost_answer_value";

/// The parameter of such an answer.
const VALUE: &str = "answer";

/// What the model reads of the tool.
pub(crate) const DESCRIPTION: &str = "Gives the final answer. Call it once, with the whole answer.";

/// The provider option that decides.
pub(crate) const STRUCTURED_OUTPUT: &str = "structured_output";

/// A wire whose answers may come by way of the tool.
#[derive(Debug)]
pub(super) struct ByAnswerTool {
    inner: Arc<dyn Codec>,
    wire: Wire,
    info: Arc<ModelInfo>,
}

impl ByAnswerTool {
    pub(super) fn new(inner: Arc<dyn Codec>, wire: Wire, info: Arc<ModelInfo>) -> Self {
        Self { inner, wire, info }
    }

    fn can_force(&self) -> bool {
        [Feature::Tools, Feature::ForcedToolChoice]
            .iter()
            .all(|feature| self.info.has(*feature) != Some(false))
    }

    /// Why the answer comes by way of the tool, and the tool; `None` if it does not.
    fn tool_for(&self, request: &Request) -> Option<(String, ToolDefinition)> {
        let Some(OutputFormat::Schema { schema, .. }) = &request.settings.output else { return None };
        let reason = match request.provider_options.get(STRUCTURED_OUTPUT).and_then(Value::as_str) {
            Some("tool") => "it was asked for".to_owned(),
            Some(_) => return None,
            None if self.info.has(Feature::StructuredOutput) == Some(false) => {
                format!("{} has no schemas for answers", self.info.id.name)
            }
            None => self.inner.native_schema_obstacle(request)?,
        };
        // Whoever thinks with a budget calls no tool that it must call.
        if !self.can_force() || matches!(request.settings.thinking, Some(Thinking::Budget(_))) {
            return None;
        }
        Some((reason, definition(&schema.to_value().ok()?)?))
    }

    /// The request as the wire takes it, and what the caller's user should know.
    fn asked<'a>(&self, request: &'a Request) -> (Cow<'a, Request>, Option<String>) {
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
            format!("the answer comes by way of a tool that must be called: {reason}")
        });
        (Cow::Owned(request), notice)
    }
}

impl Codec for ByAnswerTool {
    fn emulates(&self) -> &'static [Feature] {
        if self.can_force() { &[Feature::StructuredOutput] } else { &[] }
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let refused =
            |message: String| Err(ModelError::new(ErrorKind::Unsupported, message).with_model(&self.info.id));
        check_option(request).or_else(refused)?;
        let (asked, _) = self.asked(request);
        if matches!(asked.settings.output, Some(OutputFormat::Schema { .. }))
            && self.info.has(Feature::StructuredOutput) == Some(false)
        {
            return refused(format!(
                "`{}` has no schemas for answers, and cannot be made to call a tool with this request: a schema within \
                 a tool needs references of its own definitions alone, and thinking without a budget",
                self.info.id.name
            ));
        }
        self.inner.check(&asked)
    }

    fn encode(&self, request: &Request, stream: bool) -> Result<Encoded, ModelError> {
        let (asked, notice) = self.asked(request);
        let mut encoded = self.inner.encode(&asked, stream)?;
        encoded.notices.extend(notice);
        Ok(encoded)
    }

    fn fold(&self) -> AnyFold {
        self.inner.fold()
    }

    fn read_body(&self, body: &str) -> Result<Response, ModelError> {
        let mut response = self.inner.read_body(body)?;
        take_answer(&mut response, self.wire);
        Ok(response)
    }

    fn read_error(&self, status: u16, body: &str) -> ModelError {
        self.inner.read_error(status, body)
    }
}

/// That the option is one of its words, and that no tool of the caller has the name of the answer's.
pub(crate) fn check_option(request: &Request) -> Result<(), String> {
    if let Some(mode) = request.provider_options.get(STRUCTURED_OUTPUT)
        && !matches!(mode.as_str(), Some("tool" | "native"))
    {
        return Err(format!(
            "provider option `{STRUCTURED_OUTPUT}`: expected `tool` or `native`, found {mode}"
        ));
    }
    match request.tools.iter().find(|tool| is_answer(&tool.name)) {
        Some(tool) => {
            Err(format!("a tool called `{}`: this name is that of answers that fit a schema", tool.name))
        }
        None => Ok(()),
    }
}

fn is_answer(name: &str) -> bool {
    matches!(name, ANSWER_TOOL | VALUE_TOOL)
}

/// The tool for a schema. `None` if the schema cannot stand within another one.
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
        // References count from the root: to what else there is of the schema they would no longer lead.
        for definitions in ["$defs", "definitions"] {
            outer.extend(inner.remove_entry(definitions));
        }
        if !leads_to_definitions(schema) {
            return None;
        }
    }
    outer.insert("properties".to_owned(), json!({ VALUE: inner }));
    Some(ToolDefinition::new(VALUE_TOOL, DESCRIPTION, &Value::Object(outer)))
}

/// Whether only objects fit, so that the schema can be that of a tool's arguments.
pub(super) fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
        && !["anyOf", "oneOf", "allOf", "$ref"].iter().any(|keyword| schema.get(*keyword).is_some())
}

/// Whether all references of a schema lead to its definitions.
fn leads_to_definitions(schema: &Value) -> bool {
    let mut waiting = vec![schema];
    while let Some(value) = waiting.pop() {
        match value {
            Value::Object(members) => {
                let reference = members.get("$ref").and_then(Value::as_str);
                if reference
                    .is_some_and(|to| !to.starts_with("#/$defs/") && !to.starts_with("#/definitions/"))
                {
                    return false;
                }
                waiting.extend(members.values());
            }
            Value::Array(elements) => waiting.extend(elements),
            _ => {}
        }
    }
    true
}

/// The text of an answer that came as the arguments of the tool.
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

/// A wire's JSON of an answer's text. `None` where a call that was the answer stays a call: OpenAI refuses reasoning
/// whose call is not there.
fn text_item(wire: Wire, text: &str) -> Option<RawJson> {
    match wire {
        Wire::Messages => Some(RawJson::from(&json!({"type": "text", "text": text}))),
        Wire::GenerateContent => Some(RawJson::from(&json!({"text": text}))),
        _ => None,
    }
}

/// The item of an answer, if this is one.
fn answer_item(item: &Item, wire: Wire) -> Option<Item> {
    let ItemView::ToolCall { name, arguments, .. } = item.view() else { return None };
    let text = is_answer(name).then(|| text_of(name, arguments))?;
    let raw = text_item(wire, &text).unwrap_or_else(|| item.raw().clone());
    Some(Item::new(ItemView::Text { text, citations: Vec::new() }, raw))
}

/// Makes text of the calls that are the answer.
pub(super) fn take_answer(response: &mut Response, wire: Wire) {
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

/// The same for events from a position on.
pub(super) fn take_events(events: &mut VecDeque<ModelEvent>, from: usize, wire: Wire) {
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
            // What the value stands in is no part of the text: it is shown when it is there.
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

/// The call that an item is which is shown as text, if it is one of the answer's tool.
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

/// Gives results to the calls that were the answer: nobody else will, and every call must have one.
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
