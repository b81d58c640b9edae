//! Folds a stream of `GenerateContent` into the equivalent body.
//!
//! Every event is an answer with additional parts. Nothing marks the end: an answer is complete when the bytes end after a
//! finish reason. Hosted code execution has finish reasons in the middle of the stream.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::arguments::Arguments;
use super::body::{
    blocked, finish_reason, index_of, object, prompt_tokens, read_parts, response_of, usage_of,
};
use super::error::error_of;
use super::view::{Views, cite};
use crate::fields::{self, Fields, Listed, Members, Text};
use crate::offline::events::deltas_of;
use crate::wires::codec::Fold;
use crate::{ErrorKind, Item, ItemView, ModelError, ModelEvent, ModelId, RawJson, Response};

/// The member of a candidate with its log probabilities.
const PROBABILITIES: &str = "logprobsResult";

/// An event with text only, the most frequent case. Other events are parsed member by member.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MoreText<'a> {
    #[serde(borrow)]
    candidates: [TextCandidate<'a>; 1],
    #[serde(default, borrow)]
    usage_metadata: Option<&'a RawValue>,
    #[serde(default, borrow)]
    model_version: Option<&'a RawValue>,
    #[serde(default, borrow)]
    response_id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    create_time: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextCandidate<'a> {
    #[serde(borrow)]
    content: TextContent<'a>,
    #[serde(default)]
    index: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextContent<'a> {
    #[serde(borrow)]
    parts: [TextPart<'a>; 1],
    #[serde(default, borrow)]
    role: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextPart<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    #[serde(default)]
    thought: bool,
}

/// An open part.
#[derive(Clone, Debug, PartialEq)]
enum Open {
    /// Consecutive unsigned texts of one kind.
    Run { thought: bool, text: String },
    /// A function call with streamed arguments.
    Call(Box<Call>),
}

/// An incomplete function call.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    /// The members of the part except the call.
    part: Fields,
    /// The members of the call except the arguments.
    members: Fields,
    arguments: Arguments,
    id: String,
    name: String,
}

/// The log probabilities of an answer. Every event has the ones of its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
struct Probabilities {
    /// The values of each list, separated by commas.
    lists: Vec<(String, String)>,
    /// Other members, with their last values.
    others: Fields,
}

impl Probabilities {
    fn append(&mut self, later: &RawValue) {
        for (name, value) in Members::parse(later.get()).iter() {
            let list = value.get().strip_prefix('[').and_then(|text| text.strip_suffix(']')).map(str::trim);
            let Some(values) = list else {
                replace(&mut self.others, name, value);
                continue;
            };
            match self.lists.iter_mut().find(|(known, _)| known == name) {
                Some((_, ours)) if !ours.is_empty() && !values.is_empty() => {
                    ours.push(',');
                    ours.push_str(values);
                }
                Some((_, ours)) => ours.push_str(values),
                None => self.lists.push((name.to_owned(), values.to_owned())),
            }
        }
    }

    /// The joined member; `None` if no event had one.
    fn joined(&self) -> Result<Option<Fields>, serde_json::Error> {
        let mut fields = Fields::default();
        for (name, values) in &self.lists {
            fields.set(name, RawValue::from_string(format!("[{values}]"))?);
        }
        for (name, value) in self.others.iter() {
            fields.set(name, value.to_owned());
        }
        Ok((fields.len() > 0).then_some(fields))
    }
}

/// The fold of one stream of `GenerateContent`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GenerateFold {
    origin: ModelId,
    /// The last values of the answer's members except candidates and usage.
    answer: Fields,
    /// The last usage. Every event has one.
    usage: String,
    /// The members of the first candidate except its content.
    candidate: Fields,
    /// The metadata members that arrived in several events, by name.
    metadata: Vec<(String, Fields)>,
    /// The log probabilities.
    probabilities: Probabilities,
    /// The members of the content except the parts.
    content: Option<Fields>,
    views: Views,
    open: Option<Open>,
    items: Vec<Item>,
    /// The number of delivered items.
    delivered: usize,
    /// The number of items that were delivered or checked for early display.
    displayed: usize,
    /// Whether a finish reason has arrived.
    has_finished: bool,
    complete: bool,
}

impl GenerateFold {
    pub(super) fn new(origin: ModelId) -> Self {
        Self {
            origin,
            answer: Fields::default(),
            usage: String::new(),
            candidate: Fields::default(),
            metadata: Vec::new(),
            probabilities: Probabilities::default(),
            content: None,
            views: Views::default(),
            open: None,
            items: Vec::new(),
            delivered: 0,
            displayed: 0,
            has_finished: false,
            complete: false,
        }
    }

    fn protocol(&self, message: impl Into<String>) -> ModelError {
        ModelError::new(ErrorKind::Protocol, message).with_model(&self.origin)
    }

    fn more_text(
        &mut self,
        event: MoreText<'_>,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        if let Some(usage) = event.usage_metadata {
            self.set_usage(usage);
        }
        for (name, value) in [
            ("modelVersion", event.model_version),
            ("responseId", event.response_id),
            ("createTime", event.create_time),
        ] {
            if let Some(value) = value {
                replace(&mut self.answer, name, value);
            }
        }
        let [candidate] = event.candidates;
        let content = self.content.get_or_insert_default();
        if let Some(role) = candidate.content.role {
            replace(content, "role", role);
        }
        if let Some(index) = candidate.index.filter(|_| self.candidate.get("index").is_none()) {
            self.candidate.put("index", &index).map_err(|error| self.protocol(error.to_string()))?;
        }
        let [TextPart { text: Text(text), thought }] = candidate.content.parts;
        self.grow(text, thought, events)
    }

    fn set_usage(&mut self, usage: &RawValue) {
        self.usage.clear();
        self.usage.push_str(usage.get());
    }

    /// Appends to the open text, or starts one.
    fn grow(
        &mut self,
        more: Cow<'_, str>,
        is_thought: bool,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        match &mut self.open {
            Some(Open::Run { thought, text }) if *thought == is_thought => text.push_str(&more),
            _ => {
                self.close(events)?;
                self.open = Some(Open::Run { thought: is_thought, text: more.clone().into_owned() });
            }
        }
        if !more.is_empty() {
            let (index, text) = (self.items.len() as u64, more.into_owned());
            events.push_back(if is_thought {
                ModelEvent::ThinkingDelta { index, text }
            } else {
                ModelEvent::TextDelta { index, text }
            });
        }
        Ok(())
    }

    /// Decodes any event.
    fn take_event(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let event: Members<'_> = match serde_json::from_str(data) {
            Ok(event) => event,
            // Some gateways end every stream with `[DONE]`.
            Err(_) if data.trim() == "[DONE]" => return Ok(()),
            Err(error) => {
                return Err(self.protocol(format!("an event has invalid JSON: {error}")));
            }
        };
        if let Some(error) = event.get("error") {
            return Err(error_of(None, error).with_model(&self.origin));
        }
        if let Some(error) = blocked(event.get("promptFeedback")) {
            return Err(error.with_model(&self.origin));
        }
        let known =
            ["candidates", "usageMetadata", "modelVersion", "responseId", "promptFeedback", "createTime"];
        if !event.iter().any(|(name, _)| known.contains(&name)) {
            events.push_back(ModelEvent::unknown(data));
            return Ok(());
        }
        for (name, value) in event.iter() {
            match name {
                "candidates" => {}
                "usageMetadata" => self.set_usage(value),
                _ => replace(&mut self.answer, name, value),
            }
        }
        let candidates = event.get("candidates").map(RawValue::get).filter(|list| *list != "null");
        let candidates: Option<Listed<&RawValue>> = candidates
            .map(serde_json::from_str)
            .transpose()
            .map_err(|error| self.protocol(format!("the candidates: {error}")))?;
        for candidate in candidates.unwrap_or_default().0 {
            let members = object("a candidate", Some(candidate)).map_err(|what| self.protocol(what))?;
            if index_of(members.get("index")) == 0 {
                self.grow_candidate(&members, events)?;
            } else {
                events.push_back(ModelEvent::Unknown(candidate.into()));
            }
        }
        let probabilities = self.probabilities.lists.len() + self.probabilities.others.len();
        if self.answer.len().max(self.candidate.len()).max(probabilities) > fields::MAX_MEMBERS {
            return Err(self.protocol("the answer has too many members"));
        }
        Ok(())
    }

    fn grow_candidate(
        &mut self,
        members: &Members<'_>,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        for (name, value) in members.iter().filter(|(name, _)| *name != "content") {
            if name == PROBABILITIES {
                self.probabilities.append(value);
            } else if name.ends_with("Metadata") {
                self.merge_metadata(name, value)?;
            } else {
                replace(&mut self.candidate, name, value);
            }
        }
        self.has_finished |= !finish_reason(members.get("finishReason")).is_empty();
        let Some(content) = members.get("content") else { return Ok(()) };
        let content = object("the content", Some(content)).map_err(|what| self.protocol(what))?;
        let ours = self.content.get_or_insert_default();
        for (name, value) in content.iter().filter(|(name, _)| *name != "parts") {
            replace(ours, name, value);
        }
        if ours.len() > fields::MAX_MEMBERS {
            return Err(self.protocol("the content has too many members"));
        }
        let Listed(parts) = read_parts::<&RawValue>(&content).map_err(|what| self.protocol(what))?;
        for part in parts {
            self.part(part, events)?;
        }
        Ok(())
    }

    /// Merges metadata of several events, such as sources. Later members win.
    fn merge_metadata(&mut self, name: &str, value: &RawValue) -> Result<(), ModelError> {
        let known = self.metadata.iter().position(|(known, _)| known == name);
        let place = match (known, self.candidate.get(name)) {
            (Some(place), _) => place,
            (None, None) => {
                self.candidate.set(name, value.to_owned());
                return Ok(());
            }
            (None, Some(old)) if old.get() == value.get() => return Ok(()),
            (None, Some(old)) => {
                let merged = serde_json::from_str(old.get()).unwrap_or_default();
                self.metadata.push((name.to_owned(), merged));
                self.metadata.len() - 1
            }
        };
        let merged = &mut self.metadata[place].1;
        for (name, value) in Members::parse(value.get()).iter() {
            merged.set(name, value.to_owned());
        }
        if merged.len() > fields::MAX_MEMBERS {
            return Err(self.protocol(format!("`{name}` has too many members")));
        }
        Ok(())
    }

    fn part(&mut self, raw: &RawValue, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Ok(TextPart { text: Text(text), thought }) = serde_json::from_str(raw.get()) {
            return self.grow(text, thought, events);
        }
        let part = Members::parse(raw.get());
        let call: Option<Members<'_>> = part.read("functionCall");
        let Some(call) = call else { return self.complete_part(raw, events) };
        let continues = call.read::<bool>("willContinue").unwrap_or_default();
        let in_pieces = continues || call.get("partialArgs").is_some();
        match (call.read::<String>("name"), &self.open) {
            (None, Some(Open::Call(_))) => {}
            (Some(_), _) if !in_pieces => return self.complete_part(raw, events),
            (Some(name), _) => {
                self.close(events)?;
                self.begin_call(name, &part, &call, events);
            }
            // The end of a call without a start.
            (None, _) => {
                events.push_back(ModelEvent::Unknown(raw.into()));
                return Ok(());
            }
        }
        self.grow_call(&part, &call)
            .map_err(|what| self.protocol(format!("arguments of a function call: {what}")))?;
        if continues { Ok(()) } else { self.close(events) }
    }

    fn begin_call(
        &mut self,
        name: String,
        part: &Members<'_>,
        call: &Members<'_>,
        events: &mut VecDeque<ModelEvent>,
    ) {
        self.name_answer();
        let id =
            call.read::<String>("id").filter(|id| !id.is_empty()).unwrap_or_else(|| self.views.next_id());
        let index = self.items.len() as u64;
        events.push_back(ModelEvent::ToolCallDelta {
            index,
            id: id.clone(),
            name: name.clone(),
            fragment: String::new(),
        });
        // The call keeps its position among the members of the part.
        let mut growing = Fields::default();
        for (name, value) in part.iter() {
            growing.set(name, value.to_owned());
        }
        let (members, arguments) = (Fields::default(), Arguments::default());
        self.open = Some(Open::Call(Box::new(Call { part: growing, members, arguments, id, name })));
    }

    fn grow_call(&mut self, part: &Members<'_>, call: &Members<'_>) -> Result<(), String> {
        let Some(Open::Call(open)) = &mut self.open else { return Ok(()) };
        for (name, value) in part.iter().filter(|(name, _)| *name != "functionCall") {
            replace(&mut open.part, name, value);
        }
        for (name, value) in call.iter() {
            match name {
                "willContinue" => {}
                "partialArgs" => {
                    let pieces: Vec<Members<'_>> =
                        serde_json::from_str(value.get()).map_err(|error| error.to_string())?;
                    pieces.iter().try_for_each(|piece| open.arguments.take(piece))?;
                }
                "args" => {
                    let whole: Value =
                        serde_json::from_str(value.get()).map_err(|error| error.to_string())?;
                    if whole.as_object().is_some_and(|members| !members.is_empty()) {
                        open.arguments.set(whole);
                    }
                }
                _ => replace(&mut open.members, name, value),
            }
        }
        if open.part.len().max(open.members.len()) > fields::MAX_MEMBERS {
            return Err("too many members".to_owned());
        }
        Ok(())
    }

    /// Adds a complete part.
    fn complete_part(&mut self, raw: &RawValue, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        self.close(events)?;
        let index = self.items.len() as u64;
        let item = self.push(raw.into());
        match item.view() {
            ItemView::Text { text, .. } if !text.is_empty() => {
                events.push_back(ModelEvent::TextDelta { index, text: text.clone() });
            }
            ItemView::Thinking { text, .. } if !text.is_empty() => {
                events.push_back(ModelEvent::ThinkingDelta { index, text: text.clone() });
            }
            ItemView::ToolCall { .. } => events.extend(deltas_of(index, item)),
            _ => {}
        }
        self.deliver(events);
        Ok(())
    }

    /// Closes the open part.
    fn close(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        match self.open.take() {
            None => return Ok(()),
            Some(Open::Run { thought, text }) => {
                let mut part = Fields::default();
                let put = part
                    .put("text", &text)
                    .and_then(|()| if thought { part.put("thought", &true) } else { Ok(()) });
                let raw = put.and_then(|()| RawJson::from_value(&part));
                self.push(raw.map_err(|error| self.protocol(error.to_string()))?);
            }
            Some(Open::Call(open)) => {
                let Call { mut part, mut members, arguments, id, name } = *open;
                let arguments = arguments.finish();
                let put = members.put("args", &arguments).and_then(|()| part.put("functionCall", &members));
                let raw = put
                    .and_then(|()| RawJson::from_value(&part))
                    .map_err(|error| self.protocol(error.to_string()))?;
                let (index, fragment) = (self.items.len() as u64, arguments.get().to_owned());
                events.push_back(ModelEvent::ToolCallDelta { index, id, name, fragment });
                self.push(raw);
            }
        }
        self.deliver(events);
        Ok(())
    }

    fn push(&mut self, raw: RawJson) -> &Item {
        self.name_answer();
        let item = self.views.item(raw);
        let place = self.items.len();
        self.items.push(item);
        &self.items[place]
    }

    fn name_answer(&mut self) {
        if !self.views.is_named() {
            self.views.name_answer(self.answer.read("responseId"), prompt_tokens(&self.usage));
        }
    }

    /// Delivers the items up to the first text, whose sources arrive at the end.
    ///
    /// Items of hosted tools after it are displayed immediately.
    fn deliver(&mut self, events: &mut VecDeque<ModelEvent>) {
        while let Some(item) = self.items.get(self.delivered) {
            let may_change = matches!(item.view(), ItemView::Text { text, .. } if !text.is_empty());
            if may_change && !self.complete {
                break;
            }
            events.push_back(ModelEvent::Item(item.clone()));
            self.delivered += 1;
        }
        let waiting = self.items.get(self.displayed.max(self.delivered)..).unwrap_or_default();
        let is_hosted = |item: &&Item| {
            matches!(item.view(), ItemView::ServerToolCall { .. } | ItemView::ServerToolResult { .. })
        };
        events.extend(waiting.iter().filter(is_hosted).cloned().map(ModelEvent::Hosted));
        self.displayed = self.items.len();
    }
}

impl Fold for GenerateFold {
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.complete {
            return Ok(());
        }
        match serde_json::from_str::<MoreText<'_>>(data) {
            Ok(event) if matches!(event.candidates[0].index, None | Some(0)) => self.more_text(event, events),
            _ => self.take_event(data, events),
        }
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.complete || !self.has_finished {
            return Ok(());
        }
        self.close(events)?;
        self.complete = true;
        if !self.usage.is_empty() {
            let usage = RawValue::from_string(std::mem::take(&mut self.usage));
            self.answer.set("usageMetadata", usage.map_err(|error| self.protocol(error.to_string()))?);
        }
        for (name, merged) in std::mem::take(&mut self.metadata) {
            self.candidate.put(&name, &merged).map_err(|error| self.protocol(error.to_string()))?;
        }
        cite(&mut self.items, &self.candidate);
        self.deliver(events);
        events.push_back(ModelEvent::Usage(usage_of(&self.answer, &self.candidate)));
        Ok(())
    }

    fn count(&self) -> usize {
        self.items.len()
    }

    fn finish(&mut self) -> Result<Response, ModelError> {
        if !self.complete {
            return Err(self.protocol("the stream ended before the answer was complete"));
        }
        let items = std::mem::take(&mut self.items);
        let raw = self.body(&items).map_err(|error| self.protocol(error.to_string()))?;
        Ok(response_of(&self.origin, &self.answer, &self.candidate, items, raw))
    }
}

impl GenerateFold {
    /// The body that is equivalent to the stream.
    fn body(&mut self, items: &[Item]) -> Result<RawJson, serde_json::Error> {
        let mut candidate = Fields::default();
        if let Some(mut content) = self.content.take() {
            if !items.is_empty() {
                let parts: Vec<&RawJson> = items.iter().map(Item::raw).collect();
                content.put("parts", &parts)?;
            }
            candidate.put("content", &content)?;
        }
        for (name, value) in self.candidate.iter() {
            candidate.set(name, value.to_owned());
        }
        if let Some(probabilities) = self.probabilities.joined()? {
            candidate.put(PROBABILITIES, &probabilities)?;
        }
        let mut body = Fields::default();
        body.put("candidates", &[candidate])?;
        for (name, value) in self.answer.iter() {
            body.set(name, value.to_owned());
        }
        RawJson::from_value(&body)
    }
}

/// Sets a member to its last value.
fn replace(fields: &mut Fields, name: &str, value: &RawValue) {
    if fields.get(name).is_none_or(|old| old.get() != value.get()) {
        fields.set(name, value.to_owned());
    }
}
