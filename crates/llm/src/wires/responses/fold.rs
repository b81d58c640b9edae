//! The stream of the Responses API, folded to the body that it would have been.

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
    ErrorKind, Item, ItemView, ModelError, ModelEvent, ModelId, RawJson, Response, StopReason, Usage,
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

/// Whose text a delta is more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Output,
    Refusal,
    Summary,
    Thought,
}

/// A part of a text that came in deltas.
#[derive(Clone, Debug, PartialEq)]
struct Part {
    source: Source,
    index: u64,
    text: String,
    annotations: Vec<RawJson>,
}

/// A call of the caller's tool that is still growing.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    id: String,
    name: String,
    /// Whether the arguments are free text.
    is_custom: bool,
    /// What came of the arguments.
    arguments: String,
}

/// An item that has begun, and what its deltas said. The end of the item says everything again, so the deltas count only
/// where a server leaves it out.
#[derive(Clone, Debug, Default, PartialEq)]
struct Slot {
    start: Option<RawJson>,
    parts: Vec<Part>,
    call: Option<Call>,
    item: Option<Item>,
}

/// One stream of the Responses API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResponseFold {
    dialect: Dialect,
    origin: ModelId,
    /// The items by their places in the answer.
    slots: BTreeMap<u64, Slot>,
    /// The place of the latest item that an index of the provider names.
    places: HashMap<u64, u64>,
    /// The place of the next item to deliver.
    next: u64,
    /// The answer, once the provider has said that it is complete.
    response: Option<Box<Response>>,
}

impl ResponseFold {
    pub(super) fn new(dialect: Dialect, origin: ModelId) -> Self {
        Self { dialect, origin, slots: BTreeMap::new(), places: HashMap::new(), next: 0, response: None }
    }

    fn protocol(&self, message: impl Into<String>) -> ModelError {
        ModelError::new(ErrorKind::Protocol, message).with_model(&self.origin)
    }

    /// The place of the item that an event is about: the one that was named, else the latest. A new one if that is
    /// complete already or none has begun, which servers do that leave out the start of items.
    fn place(&mut self, index: Option<u64>) -> u64 {
        let place = match index {
            Some(index) => self.places.get(&index).copied(),
            None => self.slots.keys().next_back().copied(),
        };
        let is_open = |place: &u64| self.slots.get(place).is_some_and(|slot| slot.item.is_none());
        match place.filter(is_open) {
            Some(place) => place,
            None => self.begin(index, Slot::default()),
        }
    }

    /// Begins an item at the place that the provider names, or behind all others: servers leave the index out, and some
    /// give every item the same.
    fn begin(&mut self, index: Option<u64>, slot: Slot) -> u64 {
        let behind = self.slots.keys().next_back().map_or(0, |last| last + 1);
        let is_free = |index: &u64| *index <= MAX_VALUES as u64 && !self.slots.contains_key(index);
        let place = index.filter(is_free).unwrap_or(behind);
        self.slots.insert(place, slot);
        self.places.insert(index.unwrap_or(place), place);
        place
    }

    fn slot(&mut self, place: u64) -> &mut Slot {
        self.slots.entry(place).or_default()
    }

    fn open_item(
        &mut self,
        index: Option<u64>,
        item: &RawValue,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let raw = RawJson::from(item);
        let call = match view::item(self.dialect, raw.clone()).view() {
            // Of the calls that the caller runs only these have arguments that grow.
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
        let begun = call.clone();
        let place = self.begin(index, Slot { start: Some(raw), call, ..Slot::default() });
        events.extend(begun.map(|call| call.delta(place, String::new())));
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
        let place = self.place(event.output_index);
        let number = match source {
            Source::Summary => event.summary_index,
            _ => event.content_index,
        };
        let begins = self.slot(place).grow(source, number.unwrap_or_default(), &text);
        let text = text.into_owned();
        events.push_back(match source {
            Source::Output | Source::Refusal => ModelEvent::TextDelta { index: place, text },
            Source::Summary | Source::Thought if begins => {
                ModelEvent::ThinkingDelta { index: place, text: format!("{PARAGRAPH}{text}") }
            }
            Source::Summary | Source::Thought => ModelEvent::ThinkingDelta { index: place, text },
        });
    }

    fn grow_call(&mut self, event: &Event<'_>, data: &str, events: &mut VecDeque<ModelEvent>) {
        let text = read_text(event.delta);
        let place = self.place(event.output_index);
        // Arguments of a call that no one has begun cannot be shown: its end will say them.
        let (Some(Text(text)), Some(call)) = (text, &mut self.slot(place).call) else {
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
        events.push_back(call.delta(place, fragment));
    }

    fn annotate(&mut self, event: &Event<'_>) {
        let place = self.place(event.output_index);
        let slot = self.slot(place);
        if let (Some(annotation), Some(part)) = (event.annotation, slot.parts.last_mut()) {
            part.annotations.push(annotation.into());
        }
    }

    fn close_item(&mut self, index: Option<u64>, raw: RawJson, events: &mut VecDeque<ModelEvent>) {
        let place = self.place(index);
        let raw = match self.slot(place).whole(&raw) {
            Some(whole) => whole,
            None => raw,
        };
        self.close(place, view::item(self.dialect, raw), events);
    }

    /// Completes an item, shows what its deltas have not shown, and delivers what is in turn.
    fn close(&mut self, place: u64, item: Item, events: &mut VecDeque<ModelEvent>) {
        let slot = self.slot(place);
        match (&slot.call, item.view()) {
            (Some(call), ItemView::ToolCall { arguments, .. }) => {
                if call.arguments.is_empty() {
                    let text = match arguments {
                        Ok(raw) => raw.get(),
                        Err(text) => text,
                    };
                    events.push_back(call.delta(place, text.to_owned()));
                } else if call.is_custom {
                    events.push_back(call.delta(place, "\"}".to_owned()));
                }
            }
            _ => events.extend(slot.undeltas_of(place, &item)),
        }
        let is_hosted =
            matches!(item.view(), ItemView::ServerToolCall { .. } | ItemView::ServerToolResult { .. });
        // The item says everything that the deltas said.
        *slot = Slot { item: Some(item.clone()), ..Slot::default() };
        self.deliver(events, false);
        if is_hosted && self.next <= place {
            events.push_back(ModelEvent::Hosted(item));
        }
    }

    /// Delivers the items that are complete up to the first that is not, or all of them. A place at which no item has begun
    /// may still get one.
    fn deliver(&mut self, events: &mut VecDeque<ModelEvent>, has_ended: bool) {
        while let Some((place, slot)) = self.slots.range(self.next..).next()
            && (has_ended || *place == self.next)
            && let Some(item) = &slot.item
        {
            events.push_back(ModelEvent::Item(item.clone()));
            self.next = place + 1;
        }
    }

    /// Takes the answer in as the provider has it at the end.
    fn end_response(&mut self, raw: &RawValue, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let mut members: Members<'_> = serde_json::from_str(raw.get())
            .map_err(|error| self.protocol(format!("the response: expected an object: {error}")))?;
        if let Some(error) = failure_of(&members) {
            return Err(error.with_model(&self.origin));
        }
        let Listed(output) = members.read::<Listed<&RawValue>>("output").unwrap_or_default();
        let begun: Vec<u64> = self.slots.keys().copied().collect();
        for (number, raw) in output.iter().enumerate() {
            let place = match begun.get(number) {
                Some(place) => *place,
                None => self.begin(None, Slot::default()),
            };
            if self.slot(place).item.is_none() {
                self.close(place, view::item(self.dialect, (*raw).into()), events);
            }
        }
        for place in begun.into_iter().skip(output.len()) {
            let slot = self.slot(place);
            if slot.item.is_none() {
                let raw = slot.built().map_err(|error| self.protocol(error.to_string()))?;
                self.close(place, view::item(self.dialect, raw), events);
            }
        }
        self.deliver(events, true);
        let items: Vec<Item> =
            std::mem::take(&mut self.slots).into_values().filter_map(|slot| slot.item).collect();
        // Encrypted thinking is encrypted anew for the end of the stream. What was delivered is the answer.
        let is_same = items.len() == output.len()
            && items.iter().zip(&output).all(|(item, raw)| item.raw().get() == raw.get());
        let rewritten;
        let whole = if is_same {
            RawJson::from(raw)
        } else {
            rewritten = RawJson::of(&items.iter().map(Item::raw).collect::<Vec<_>>())
                .map_err(|error| self.protocol(error.to_string()))?;
            let output = serde_json::from_str(rewritten.get())
                .map_err(|error: serde_json::Error| self.protocol(error.to_string()))?;
            members.set("output", output);
            RawJson::of(&members).map_err(|error| self.protocol(error.to_string()))?
        };
        let response = response_of(&self.origin, &members, items, whole);
        events.push_back(ModelEvent::Usage(response.usage.clone()));
        self.response = Some(Box::new(response));
        Ok(())
    }
}

impl Call {
    fn delta(&self, place: u64, fragment: String) -> ModelEvent {
        ModelEvent::ToolCallDelta { index: place, id: self.id.clone(), name: self.name.clone(), fragment }
    }
}

impl Slot {
    /// Appends to a part, and says whether a further one of the model's thinking begins with it.
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

    /// What of a complete item its deltas have not shown: some servers leave out the last ones, or all.
    fn undeltas_of(&self, place: u64, item: &Item) -> Vec<ModelEvent> {
        if self.parts.is_empty() {
            return deltas_of(place, item);
        }
        let rest = |text: &str, separator: &str| {
            let parts: Vec<&str> = self.parts.iter().map(|part| part.text.as_str()).collect();
            let rest = text.strip_prefix(&parts.join(separator)).unwrap_or_default();
            Some(rest.to_owned()).filter(|rest| !rest.is_empty())
        };
        let delta = match item.view() {
            ItemView::Text { text, .. } => {
                rest(text, "").map(|text| ModelEvent::TextDelta { index: place, text })
            }
            ItemView::Thinking { text, .. } => {
                rest(text, PARAGRAPH).map(|text| ModelEvent::ThinkingDelta { index: place, text })
            }
            _ => None,
        };
        delta.into_iter().collect()
    }

    /// The item of what the deltas said, for servers that never say it whole.
    fn built(&self) -> Result<RawJson, serde_json::Error> {
        self.built_on(match &self.start {
            Some(start) => serde_json::from_str(start.get()).unwrap_or_default(),
            None => Fields::default(),
        })
    }

    /// The item that its end leaves without the texts that its deltas had: with them. `None` if it has its own.
    fn whole(&self, end: &RawJson) -> Option<RawJson> {
        if self.parts.is_empty() {
            return None;
        }
        let fields: Fields = serde_json::from_str(end.get()).ok()?;
        let has = |name: &str| fields.get(name).is_some_and(|value| value.get() != "null");
        let is_message = fields.read::<String>("type").is_none_or(|kind| kind == "message");
        (is_message && !has("content")).then(|| self.built_on(fields).ok()).flatten()
    }

    fn built_on(&self, mut fields: Fields) -> Result<RawJson, serde_json::Error> {
        let texts = |is_wanted: fn(Source) -> bool| {
            let mut out = JsonWriter::with_capacity(64);
            out.piece("[");
            for part in self.parts.iter().filter(|part| is_wanted(part.source)) {
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
        RawJson::of(&fields)
    }
}

impl Fold for ResponseFold {
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.response.is_some() || data == "[DONE]" {
            return Ok(());
        }
        let event: Event<'_> = match serde_json::from_str(data) {
            Ok(event) => event,
            Err(error) => return self.odd(data, &error, events),
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
            // A gateway may begin anew after it lost the first source.
            "response.created" if !self.slots.is_empty() => {
                self.slots.clear();
                self.places.clear();
                self.next = 0;
                events.push_back(ModelEvent::Restarted);
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                let Some(response) = event.response else {
                    return Err(self.protocol(format!("`{}` came without a response", event.kind)));
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

    /// All other events say a text as a whole, and none needs to come behind the last one.
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
            .ok_or_else(|| self.protocol("the stream was cut before the end of the response"))
    }
}

impl ResponseFold {
    fn error(&self, data: &str) -> ModelError {
        let members: Members<'_> = serde_json::from_str(data).unwrap_or_default();
        error_of(None, &ErrorBody::read(&members)).with_model(&self.origin)
    }

    /// An event that is not of the shape of the known ones: an unknown one may have any, as long as it is an object.
    fn odd(
        &self,
        data: &str,
        error: &serde_json::Error,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let kind = kind_of(data);
        if kind.is_empty() || is_known(&kind) {
            return Err(self.protocol(format!("an event is not the JSON that was expected: {error}")));
        }
        events.push_back(ModelEvent::unknown(data));
        Ok(())
    }
}

/// Whether an event is one that the fold looks into.
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

/// Whether an event tells of progress alone: what it says, the end of its item or of the answer says again.
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

/// A text as it stands inside a JSON string.
fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Reads a response that came as a whole.
pub(super) fn read_response(dialect: Dialect, origin: &ModelId, body: &str) -> Result<Response, ModelError> {
    let protocol = |text: String| ModelError::new(ErrorKind::Protocol, text).with_model(origin);
    let members: Members<'_> = serde_json::from_str(body)
        .map_err(|error| protocol(format!("the body is not the JSON object that was expected: {error}")))?;
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

/// The error that a response has instead of an answer.
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
        // Old answers have the first form; servers that only look alike may have none.
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
    // What waits for the caller's word is not a call, and not the end either.
    let waits =
        |item: &&Item| matches!(item.view(), ItemView::Other { kind } if kind == "mcp_approval_request");
    if items.iter().any(|item| waits(&item)) {
        return (StopReason::Other("mcp_approval_request".to_owned()), None);
    }
    match items.iter().rev().find_map(refusal) {
        Some(refusal) => (StopReason::Refusal, Some(refusal)),
        None => (StopReason::EndTurn, None),
    }
}

/// What a message says in place of an answer.
fn refusal(item: &Item) -> Option<String> {
    if !matches!(item.view(), ItemView::Text { .. }) || !item.raw().get().contains("\"refusal\"") {
        return None;
    }
    let members: Members<'_> = serde_json::from_str(item.raw().get()).ok()?;
    let parts: Vec<Members<'_>> = members.read("content")?;
    parts.iter().find_map(|part| part.read::<String>("refusal"))
}

fn usage_of(response: &Members<'_>, items: &[Item]) -> Usage {
    let usage: Members<'_> = response.read("usage").unwrap_or_default();
    let mut counts = Counts::default();
    let input_details = counts.part(&usage, "input_tokens_details");
    let output_details = counts.part(&usage, "output_tokens_details");
    let cache_read = counts.optional(&input_details, "cached_tokens").unwrap_or_default();
    let cache_write = counts.optional(&input_details, "cache_write_tokens").unwrap_or_default();
    let input = counts.needed(&usage, "input_tokens");
    let mut hosted = counts.uses(&usage, "server_side_tool_usage_details");
    if hosted.is_empty() {
        // Where the provider does not count its tools' calls, they are counted here in the same words.
        for item in items.iter().filter(|item| matches!(item.view(), ItemView::ServerToolCall { .. })) {
            let kind = kind_of(item.raw().get());
            let plural = if kind.ends_with('s') { "" } else { "s" };
            *hosted.entry(format!("{kind}{plural}")).or_default() += 1;
        }
    }
    Usage {
        // The provider counts cached tokens as input tokens too.
        input: input.saturating_sub(cache_read).saturating_sub(cache_write),
        output: counts.needed(&usage, "output_tokens"),
        cache_read,
        cache_write,
        // The provider keeps prompts for other times than an hour.
        cache_write_1h: 0,
        reasoning: counts.optional(&output_details, "reasoning_tokens"),
        hosted,
        incomplete: counts.incomplete,
        raw: response.get("usage").filter(|usage| usage.get() != "null").map(RawJson::from),
    }
}
