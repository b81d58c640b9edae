//! Folds a stream of the Responses API into the equivalent body.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Dialect;
use super::error::{ErrorBody, error_of};
use super::view::{self, CUSTOM_INPUT, PARAGRAPH, kind_of};
use crate::fields::{Fields, Listed, MAX_VALUES, Members, Text};
use crate::json::JsonWriter;
use crate::offline::events::deltas_of;
use crate::wires::bounds;
use crate::wires::codec::Fold;
use crate::wires::counts::Counts;
use crate::{
    ErrorKind, Item, ItemView, ModelError, ModelEvent, ModelId, RawJson, Response, StopReason, TokenUsage,
};

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", default, borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    output_index: Option<u64>,
    #[serde(default)]
    content_index: Option<u64>,
    #[serde(default)]
    summary_index: Option<u64>,
    #[serde(default, borrow)]
    delta: Option<&'a RawValue>,
    #[serde(default, borrow)]
    item: Option<&'a RawValue>,
    #[serde(default, borrow)]
    annotation: Option<&'a RawValue>,
    #[serde(default, borrow)]
    response: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

/// The kind of text that a delta continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Output,
    Refusal,
    Summary,
    Thought,
}

/// A streamed part of a text.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    source: Source,
    index: u64,
    text: String,
    annotations: Vec<RawJson>,
}

/// An incomplete call of the caller's tool.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    id: String,
    name: String,
    /// Whether the arguments are free text.
    is_custom: bool,
    /// The arguments so far.
    arguments: String,
}

/// An item that has started, with its deltas.
///
/// The end of the item repeats everything. The deltas count only for servers that omit it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Slot {
    start: Option<RawJson>,
    parts: Vec<Part>,
    call: Option<Call>,
    item: Option<Item>,
}

/// The fold of one stream of the Responses API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResponseFold {
    dialect: Dialect,
    origin: ModelId,
    /// The items by position in the answer.
    slots: BTreeMap<u64, Slot>,
    /// The position of the latest item by the provider's index.
    positions: HashMap<u64, u64>,
    /// The position of the next item to deliver.
    next: u64,
    /// The answer after its end.
    response: Option<Box<Response>>,
}

impl ResponseFold {
    pub(super) fn new(dialect: Dialect, origin: ModelId) -> Self {
        Self { dialect, origin, slots: BTreeMap::new(), positions: HashMap::new(), next: 0, response: None }
    }

    fn protocol(&self, message: impl Into<String>) -> ModelError {
        ModelError::new(ErrorKind::Protocol, message).with_model(&self.origin)
    }

    /// The position of an event's item: by index, else the latest one.
    ///
    /// It starts a new item if that one is complete or missing, for servers that omit the start of items.
    fn position(&mut self, index: Option<u64>) -> u64 {
        let position = match index {
            Some(index) => self.positions.get(&index).copied(),
            None => self.slots.keys().next_back().copied(),
        };
        let is_open = |position: &u64| self.slots.get(position).is_some_and(|slot| slot.item.is_none());
        match position.filter(is_open) {
            Some(position) => position,
            None => self.start_item(index, Slot::default()),
        }
    }

    /// Starts an item at the provider's index, or after all others: some servers omit the index or repeat it.
    fn start_item(&mut self, index: Option<u64>, slot: Slot) -> u64 {
        let end = self.slots.keys().next_back().map_or(0, |last| last + 1);
        let is_free = |index: &u64| *index <= MAX_VALUES as u64 && !self.slots.contains_key(index);
        let position = index.filter(is_free).unwrap_or(end);
        self.slots.insert(position, slot);
        self.positions.insert(index.unwrap_or(position), position);
        position
    }

    fn slot(&mut self, position: u64) -> &mut Slot {
        self.slots.entry(position).or_default()
    }

    fn open_item(
        &mut self,
        index: Option<u64>,
        item: &RawValue,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let raw = RawJson::from(item);
        let call = match view::item(self.dialect, raw.clone()).view() {
            // Only these calls of the caller's tools have streamed arguments.
            ItemView::ToolCall { id, name, .. } => {
                let is_custom = match &*kind_of(item.get()) {
                    "function_call" => Some(false),
                    "custom_tool_call" => Some(true),
                    _ => None,
                };
                is_custom.map(|is_custom| Call {
                    id: id.clone(),
                    name: name.clone(),
                    is_custom,
                    arguments: String::new(),
                })
            }
            _ => None,
        };
        if let Some(call) = &call {
            bounds::call(&call.id, &call.name).map_err(|what| self.protocol(what))?;
        }
        let started = call.clone();
        let position = self.start_item(index, Slot { start: Some(raw), call, ..Slot::default() });
        events.extend(started.map(|call| call.delta(position, String::new())));
        Ok(())
    }

    fn grow_text(
        &mut self,
        source: Source,
        event: &Event<'_>,
        data: &str,
        events: &mut VecDeque<ModelEvent>,
    ) {
        let Some(Text(text)) = read_text(event.delta) else {
            events.push_back(ModelEvent::unknown(data));
            return;
        };
        let position = self.position(event.output_index);
        let number = match source {
            Source::Summary => event.summary_index,
            _ => event.content_index,
        };
        let is_next_part = self.slot(position).grow(source, number.unwrap_or_default(), &text);
        let text = text.into_owned();
        events.push_back(match source {
            Source::Output | Source::Refusal => ModelEvent::TextDelta { index: position, text },
            Source::Summary | Source::Thought if is_next_part => {
                ModelEvent::ThinkingDelta { index: position, text: format!("{PARAGRAPH}{text}") }
            }
            Source::Summary | Source::Thought => ModelEvent::ThinkingDelta { index: position, text },
        });
    }

    fn grow_call(&mut self, event: &Event<'_>, data: &str, events: &mut VecDeque<ModelEvent>) {
        let text = read_text(event.delta);
        let position = self.position(event.output_index);
        // Arguments of a call without a start are in the end of its item.
        let (Some(Text(text)), Some(call)) = (text, &mut self.slot(position).call) else {
            events.push_back(ModelEvent::unknown(data));
            return;
        };
        if text.is_empty() {
            return;
        }
        let is_first = call.arguments.is_empty();
        call.arguments.push_str(&text);
        let fragment = match (call.is_custom, is_first) {
            (false, _) => text.into_owned(),
            (true, true) => format!("{{\"{CUSTOM_INPUT}\":\"{}", escaped(&text)),
            (true, false) => escaped(&text),
        };
        events.push_back(call.delta(position, fragment));
    }

    fn annotate(&mut self, event: &Event<'_>) {
        let position = self.position(event.output_index);
        let slot = self.slot(position);
        if let (Some(annotation), Some(part)) = (event.annotation, slot.parts.last_mut()) {
            part.annotations.push(annotation.into());
        }
    }

    fn close_item(&mut self, index: Option<u64>, raw: RawJson, events: &mut VecDeque<ModelEvent>) {
        let position = self.position(index);
        let raw = match self.slot(position).completed(&raw) {
            Some(completed) => completed,
            None => raw,
        };
        self.close(position, view::item(self.dialect, raw), events);
    }

    /// Completes an item, emits text that its deltas lacked, and delivers items in order.
    fn close(&mut self, position: u64, item: Item, events: &mut VecDeque<ModelEvent>) {
        let slot = self.slot(position);
        match (&slot.call, item.view()) {
            (Some(call), ItemView::ToolCall { arguments, .. }) => {
                if call.arguments.is_empty() {
                    let text = match arguments {
                        Ok(raw) => raw.get(),
                        Err(text) => text,
                    };
                    events.push_back(call.delta(position, text.to_owned()));
                } else if call.is_custom {
                    events.push_back(call.delta(position, "\"}".to_owned()));
                }
            }
            _ => events.extend(slot.missing_deltas(position, &item)),
        }
        let is_hosted =
            matches!(item.view(), ItemView::ServerToolCall { .. } | ItemView::ServerToolResult { .. });
        // The item contains everything from the deltas.
        *slot = Slot { item: Some(item.clone()), ..Slot::default() };
        self.deliver(events, false);
        if is_hosted && self.next <= position {
            events.push_back(ModelEvent::Hosted(item));
        }
    }

    /// Delivers the complete items up to the first incomplete one, or all of them at the end.
    ///
    /// An empty position may still get an item.
    fn deliver(&mut self, events: &mut VecDeque<ModelEvent>, has_ended: bool) {
        while let Some((position, slot)) = self.slots.range(self.next..).next()
            && (has_ended || *position == self.next)
            && let Some(item) = &slot.item
        {
            events.push_back(ModelEvent::Item(item.clone()));
            self.next = position + 1;
        }
    }

    /// Completes the answer with the provider's final response.
    fn end_response(&mut self, raw: &RawValue, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let mut members: Members<'_> = serde_json::from_str(raw.get())
            .map_err(|error| self.protocol(format!("the response: expected an object: {error}")))?;
        if let Some(error) = failure_of(&members) {
            return Err(error.with_model(&self.origin));
        }
        let Listed(output) = members.read::<Listed<&RawValue>>("output").unwrap_or_default();
        let started: Vec<u64> = self.slots.keys().copied().collect();
        for (number, raw) in output.iter().enumerate() {
            let position = match started.get(number) {
                Some(position) => *position,
                None => self.start_item(None, Slot::default()),
            };
            if self.slot(position).item.is_none() {
                self.close(position, view::item(self.dialect, (*raw).into()), events);
            }
        }
        for position in started.into_iter().skip(output.len()) {
            let slot = self.slot(position);
            if slot.item.is_none() {
                let raw = slot.build().map_err(|error| self.protocol(error.to_string()))?;
                self.close(position, view::item(self.dialect, raw), events);
            }
        }
        self.deliver(events, true);
        let items: Vec<Item> =
            std::mem::take(&mut self.slots).into_values().filter_map(|slot| slot.item).collect();
        // The end of the stream encrypts thinking again. The delivered items are the answer.
        let is_same = items.len() == output.len()
            && items.iter().zip(&output).all(|(item, raw)| item.raw().get() == raw.get());
        let rewritten;
        let whole = if is_same {
            RawJson::from(raw)
        } else {
            rewritten = RawJson::from_value(&items.iter().map(Item::raw).collect::<Vec<_>>())
                .map_err(|error| self.protocol(error.to_string()))?;
            let output = serde_json::from_str(rewritten.get())
                .map_err(|error: serde_json::Error| self.protocol(error.to_string()))?;
            members.set("output", output);
            RawJson::from_value(&members).map_err(|error| self.protocol(error.to_string()))?
        };
        let response = response_of(&self.origin, &members, items, whole);
        events.push_back(ModelEvent::Usage(response.usage.clone()));
        self.response = Some(Box::new(response));
        Ok(())
    }
}

impl Call {
    fn delta(&self, position: u64, fragment: String) -> ModelEvent {
        ModelEvent::ToolCallDelta { index: position, id: self.id.clone(), name: self.name.clone(), fragment }
    }
}

impl Slot {
    /// Appends to a part. True if it starts a further part.
    fn grow(&mut self, source: Source, index: u64, text: &str) -> bool {
        if let Some(part) = self.parts.last_mut()
            && (part.source, part.index) == (source, index)
        {
            part.text.push_str(text);
            return false;
        }
        let is_further = !self.parts.is_empty();
        self.parts.push(Part { source, index, text: text.to_owned(), annotations: Vec::new() });
        is_further
    }

    /// The deltas that a complete item lacked: some servers omit the last ones, or all.
    fn missing_deltas(&self, position: u64, item: &Item) -> Vec<ModelEvent> {
        if self.parts.is_empty() {
            return deltas_of(position, item);
        }
        let rest = |text: &str, separator: &str| {
            let parts: Vec<&str> = self.parts.iter().map(|part| part.text.as_str()).collect();
            let rest = text.strip_prefix(&parts.join(separator)).unwrap_or_default();
            Some(rest.to_owned()).filter(|rest| !rest.is_empty())
        };
        let delta = match item.view() {
            ItemView::Text { text, .. } => {
                rest(text, "").map(|text| ModelEvent::TextDelta { index: position, text })
            }
            ItemView::Thinking { text, .. } => {
                rest(text, PARAGRAPH).map(|text| ModelEvent::ThinkingDelta { index: position, text })
            }
            _ => None,
        };
        delta.into_iter().collect()
    }

    /// Builds the item from its deltas, for servers that omit its end.
    fn build(&self) -> Result<RawJson, serde_json::Error> {
        self.build_from(match &self.start {
            Some(start) => serde_json::from_str(start.get()).unwrap_or_default(),
            None => Fields::default(),
        })
    }

    /// Adds the texts of the deltas to an item whose end lacks them. `None` if it has texts.
    fn completed(&self, end: &RawJson) -> Option<RawJson> {
        if self.parts.is_empty() {
            return None;
        }
        let fields: Fields = serde_json::from_str(end.get()).ok()?;
        let has = |name: &str| fields.get(name).is_some_and(|value| value.get() != "null");
        let is_message = fields.read::<String>("type").is_none_or(|kind| kind == "message");
        (is_message && !has("content")).then(|| self.build_from(fields).ok()).flatten()
    }

    fn build_from(&self, mut fields: Fields) -> Result<RawJson, serde_json::Error> {
        let texts = |is_included: fn(Source) -> bool| {
            let mut out = JsonWriter::with_capacity(64);
            out.piece("[");
            for part in self.parts.iter().filter(|part| is_included(part.source)) {
                let (kind, name) = match part.source {
                    Source::Output => ("output_text", "text"),
                    Source::Refusal => ("refusal", "refusal"),
                    Source::Summary => ("summary_text", "text"),
                    Source::Thought => ("reasoning_text", "text"),
                };
                out.comma();
                out.piece("{");
                out.text("type", kind);
                out.text(name, &part.text);
                if part.source == Source::Output {
                    out.put("annotations", &part.annotations)?;
                }
                out.piece("}");
            }
            out.piece("]");
            out.into_raw()
        };
        let has = |source: Source| self.parts.iter().any(|part| part.source == source);
        if has(Source::Output) || has(Source::Refusal) {
            if fields.get("type").is_none() {
                fields.put("type", "message")?;
                fields.put("role", "assistant")?;
            }
            let content = texts(|source| matches!(source, Source::Output | Source::Refusal))?;
            fields.put("content", &content)?;
        } else if has(Source::Summary) || has(Source::Thought) {
            if fields.get("type").is_none() {
                fields.put("type", "reasoning")?;
            }
            fields.put("summary", &texts(|source| source == Source::Summary)?)?;
            if has(Source::Thought) {
                fields.put("content", &texts(|source| source == Source::Thought)?)?;
            }
        }
        if let Some(call) = self.call.as_ref().filter(|call| !call.arguments.is_empty()) {
            fields.put(if call.is_custom { "input" } else { "arguments" }, &call.arguments)?;
        }
        RawJson::from_value(&fields)
    }
}

impl Fold for ResponseFold {
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.response.is_some() || data == "[DONE]" {
            return Ok(());
        }
        let event: Event<'_> = match serde_json::from_str(data) {
            Ok(event) => event,
            Err(error) => return self.unexpected_shape(data, &error, events),
        };
        match &*event.kind {
            "response.output_text.delta" => self.grow_text(Source::Output, &event, data, events),
            "response.reasoning_summary_text.delta" => self.grow_text(Source::Summary, &event, data, events),
            "response.reasoning_text.delta" => self.grow_text(Source::Thought, &event, data, events),
            "response.refusal.delta" => self.grow_text(Source::Refusal, &event, data, events),
            "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" => {
                self.grow_call(&event, data, events);
            }
            "response.output_text.annotation.added" => self.annotate(&event),
            "response.output_item.added" if event.item.is_some() => {
                if let Some(item) = event.item {
                    self.open_item(event.output_index, item, events)?;
                }
            }
            "response.output_item.done" if event.item.is_some() => {
                if let Some(item) = event.item {
                    self.close_item(event.output_index, item.into(), events);
                }
            }
            // A gateway may restart after it lost the first source.
            "response.created" if !self.slots.is_empty() => {
                self.slots.clear();
                self.positions.clear();
                self.next = 0;
                events.push_back(ModelEvent::Restarted);
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                let Some(response) = event.response else {
                    return Err(self.protocol(format!("`{}` has no response", event.kind)));
                };
                self.end_response(response, events)?;
            }
            "error" => return Err(self.error(data)),
            "" if event.error.is_some() => return Err(self.error(data)),
            kind if is_progress(kind) => {}
            _ => events.push_back(ModelEvent::unknown(data)),
        }
        Ok(())
    }

    /// Only deltas are continued by later events.
    fn may_continue(&self, data: &str) -> bool {
        kind_of(data).ends_with(".delta")
    }

    fn is_complete(&self) -> bool {
        self.response.is_some()
    }

    fn count(&self) -> usize {
        self.slots.len()
    }

    fn finish(&mut self) -> Result<Response, ModelError> {
        let response = self.response.take();
        response
            .map(|response| *response)
            .ok_or_else(|| self.protocol("the stream ended before the answer was complete"))
    }
}

impl ResponseFold {
    fn error(&self, data: &str) -> ModelError {
        let members: Members<'_> = serde_json::from_str(data).unwrap_or_default();
        error_of(None, &ErrorBody::read(&members)).with_model(&self.origin)
    }

    /// Handles an event of unexpected shape. Unknown events may have any shape of an object.
    fn unexpected_shape(
        &self,
        data: &str,
        error: &serde_json::Error,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let kind = kind_of(data);
        if kind.is_empty() || is_known(&kind) {
            return Err(self.protocol(format!("an event has invalid JSON: {error}")));
        }
        events.push_back(ModelEvent::unknown(data));
        Ok(())
    }
}

/// Whether the fold decodes an event type.
fn is_known(kind: &str) -> bool {
    kind == "error"
        || [
            "response.output_text.",
            "response.output_item.",
            "response.reasoning_",
            "response.refusal.",
            "response.function_call_arguments.",
            "response.custom_tool_call_input.",
            "response.created",
            "response.completed",
            "response.incomplete",
            "response.failed",
            "response.cancelled",
        ]
        .iter()
        .any(|start| kind.starts_with(start))
}

/// Whether an event reports progress only, which the end of its item or of the answer repeats.
fn is_progress(kind: &str) -> bool {
    if matches!(kind, "keepalive" | "ping") {
        return true;
    }
    let Some(rest) = kind.strip_prefix("response.") else { return false };
    matches!(
        rest,
        "created"
            | "queued"
            | "in_progress"
            | "content_part.added"
            | "content_part.done"
            | "output_text.done"
            | "refusal.done"
            | "reasoning_text.done"
            | "reasoning_summary_text.done"
            | "reasoning_summary_part.added"
            | "reasoning_summary_part.done"
            | "function_call_arguments.done"
            | "custom_tool_call_input.done"
    ) || [
        "web_search_call.",
        "x_search_call.",
        "file_search_call.",
        "code_interpreter_call.",
        "code_interpreter_call_code.",
        "image_generation_call.",
        "mcp_call.",
        "mcp_call_arguments.",
        "mcp_list_tools.",
        "shell_call_command.",
        "shell_call_output_content.",
        "apply_patch_call_operation_diff.",
        "compaction.",
    ]
    .iter()
    .any(|start| rest.starts_with(start))
}

fn read_text(raw: Option<&RawValue>) -> Option<Text<'_>> {
    serde_json::from_str(raw?.get()).ok()
}

/// A text as the content of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Decodes a complete response.
pub(super) fn read_response(dialect: Dialect, origin: &ModelId, body: &str) -> Result<Response, ModelError> {
    let protocol = |text: String| ModelError::new(ErrorKind::Protocol, text).with_model(origin);
    let members: Members<'_> = serde_json::from_str(body)
        .map_err(|error| protocol(format!("the body has invalid JSON: {error}")))?;
    if let Some(error) = failure_of(&members) {
        return Err(error.with_model(origin));
    }
    match members.read::<Text<'_>>("object") {
        Some(Text(kind)) if kind != "response" => {
            return Err(protocol(format!("the body's object: expected `response`, found `{kind}`")));
        }
        _ => {}
    }
    let Some(Listed(output)) = members.read::<Listed<RawJson>>("output") else {
        return Err(protocol(format!("the response's output: expected a list of at most {MAX_VALUES}")));
    };
    let raw = RawJson::parse(body).map_err(|error| protocol(error.to_string()))?;
    let items = output.into_iter().map(|raw| view::item(dialect, raw)).collect();
    Ok(response_of(origin, &members, items, raw))
}

/// The error of a failed response.
fn failure_of(response: &Members<'_>) -> Option<ModelError> {
    let has_error = response.get("error").is_some_and(|error| error.get() != "null");
    let status: Option<Text<'_>> = response.read("status");
    let has_failed = status.is_some_and(|Text(status)| status == "failed");
    (has_error || has_failed).then(|| {
        let body = response.read::<Members<'_>>("error").map(|error| ErrorBody::read(&error));
        error_of(None, &body.unwrap_or_else(|| ErrorBody::read(response)))
    })
}

fn response_of(origin: &ModelId, response: &Members<'_>, items: Vec<Item>, raw: RawJson) -> Response {
    let (stop, stop_detail) = stop_of(response, &items);
    Response {
        id: response.read("id").unwrap_or_default(),
        model: response.read("model").unwrap_or_else(|| origin.name.clone()),
        origin: origin.clone(),
        usage: usage_of(response, &items),
        items,
        stop,
        stop_detail,
        provider_state: serde_json::Map::new(),
        notices: Vec::new(),
        raw,
    }
}

fn stop_of(response: &Members<'_>, items: &[Item]) -> (StopReason, Option<String>) {
    let status: String = response.read("status").unwrap_or_default();
    match status.as_str() {
        // Old answers have the first form, and compatible servers may omit the status.
        "complete" | "completed" | "" => {}
        "incomplete" => {
            let details: Members<'_> = response.read("incomplete_details").unwrap_or_default();
            let reason: String = details.read("reason").unwrap_or_default();
            return match reason.as_str() {
                "max_output_tokens" | "max_tokens" => (StopReason::MaxTokens, None),
                "content_filter" => (StopReason::Refusal, Some(reason)),
                _ => (StopReason::Other(reason), None),
            };
        }
        _ => return (StopReason::Other(status), None),
    }
    if items.iter().any(|item| matches!(item.view(), ItemView::ToolCall { .. })) {
        return (StopReason::ToolUse, None);
    }
    // A pending approval is neither a call nor the end of the turn.
    let is_pending =
        |item: &&Item| matches!(item.view(), ItemView::Other { kind } if kind == "mcp_approval_request");
    if items.iter().any(|item| is_pending(&item)) {
        return (StopReason::Other("mcp_approval_request".to_owned()), None);
    }
    match items.iter().rev().find_map(refusal) {
        Some(refusal) => (StopReason::Refusal, Some(refusal)),
        None => (StopReason::EndTurn, None),
    }
}

/// The refusal in a message.
fn refusal(item: &Item) -> Option<String> {
    if !matches!(item.view(), ItemView::Text { .. }) || !item.raw().get().contains("\"refusal\"") {
        return None;
    }
    let members: Members<'_> = serde_json::from_str(item.raw().get()).ok()?;
    let parts: Vec<Members<'_>> = members.read("content")?;
    parts.iter().find_map(|part| part.read::<String>("refusal"))
}

fn usage_of(response: &Members<'_>, items: &[Item]) -> TokenUsage {
    let usage: Members<'_> = response.read("usage").unwrap_or_default();
    let mut counts = Counts::default();
    let input_details = counts.part(&usage, "input_tokens_details");
    let output_details = counts.part(&usage, "output_tokens_details");
    let cache_read = counts.optional(&input_details, "cached_tokens").unwrap_or_default();
    let cache_write = counts.optional(&input_details, "cache_write_tokens").unwrap_or_default();
    let input = counts.required(&usage, "input_tokens");
    let mut hosted = counts.uses(&usage, "server_side_tool_usage_details");
    if hosted.is_empty() {
        // Calls of hosted tools are counted here if the provider does not count them.
        for item in items.iter().filter(|item| matches!(item.view(), ItemView::ServerToolCall { .. })) {
            let kind = kind_of(item.raw().get());
            let plural = if kind.ends_with('s') { "" } else { "s" };
            *hosted.entry(format!("{kind}{plural}")).or_default() += 1;
        }
    }
    TokenUsage {
        // The provider counts cached tokens as input.
        input: input.saturating_sub(cache_read).saturating_sub(cache_write),
        output: counts.required(&usage, "output_tokens"),
        cache_read,
        cache_write,
        // The provider has no cache lifetime of one hour.
        cache_write_1h: 0,
        reasoning: counts.optional(&output_details, "reasoning_tokens"),
        hosted,
        incomplete: counts.incomplete,
        raw: response.get("usage").filter(|usage| usage.get() != "null").map(RawJson::from),
    }
}
