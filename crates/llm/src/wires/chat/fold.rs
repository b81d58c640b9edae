//! Folds a Chat Completions stream into the equivalent body.

use std::collections::VecDeque;

use serde_json::value::{RawValue, to_raw_value};

use super::ANSWER_TOOL;
use super::body::{response_of, usage_of};
use super::chunk::{self, Choice, Chunk};
use super::error::error_in;
use super::message::{THINKING, THINKING_PARTS, generated_id, text_of_part, thinking_of};
use crate::fields::{self, Fields, Listed, Members};
use crate::wires::bounds;
use crate::wires::codec::Fold;
use crate::{ErrorKind, ModelError, ModelEvent, ModelId, RawJson, Response};

/// The indices of deltas: the wire has one text, one thinking and a list of calls.
const THINKING_INDEX: u64 = 0;
const TEXT_INDEX: u64 = 1;
const FIRST_CALL_INDEX: u64 = 2;

/// Maximum number of calls of an answer, and of call fragments of an event.
const MAX_CALLS: usize = 1_000;

/// Maximum number of elements of all lists of an answer, such as log probabilities.
const MAX_ELEMENTS: usize = 250_000;

/// An incomplete member of the message.
#[derive(Clone, Debug, PartialEq)]
enum Growing {
    /// Texts are appended.
    Text(String),
    /// Lists are appended.
    List(Vec<Piece>),
    /// Anything else is replaced.
    Whole(String),
}

impl Growing {
    /// Parses a member's value and subtracts its list elements from the remaining ones.
    fn new(value: &RawValue, elements_left: &mut usize) -> Result<Self, serde_json::Error> {
        Ok(match value.get().as_bytes().first() {
            Some(b'"') => match serde_json::from_str(value.get()) {
                Ok(text) => Self::Text(text),
                Err(_) => Self::Whole(value.get().to_owned()),
            },
            Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(value.get()) {
                Ok(list) => {
                    *elements_left = elements_left.checked_sub(list.len()).ok_or_else(|| {
                        limit_error(&format!("the answer's lists have more than {MAX_ELEMENTS} elements"))
                    })?;
                    Self::List(list.into_iter().map(Piece::from_raw).collect())
                }
                Err(_) => Self::Whole(value.get().to_owned()),
            },
            _ => Self::Whole(value.get().to_owned()),
        })
    }

    fn to_raw(&self) -> Result<Box<RawValue>, serde_json::Error> {
        match self {
            Self::Text(text) => to_raw_value(text),
            Self::List(list) => {
                let list = list.iter().map(Piece::to_raw).collect::<Result<Vec<_>, _>>()?;
                to_raw_value(&list)
            }
            Self::Whole(value) => RawValue::from_string(value.clone()),
        }
    }
}

/// The type of a thinking part, and its member with the thinking.
const THOUGHT: &str = "thinking";

/// Members of a part that are appended.
const APPENDED_MEMBERS: &[&str] = &["text", "summary", "data", "thinking"];

/// A part of a list, which later parts of the same type may continue.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    /// The unchanged part; empty after an append.
    raw: String,
    fields: Fields,
    kind: String,
    index: Option<u64>,
    /// The appended members.
    texts: Vec<(String, String)>,
    /// The parts of the thinking, a list of texts for some servers.
    thought: Option<Vec<Piece>>,
}

impl Piece {
    fn from_raw(raw: &RawValue) -> Self {
        let fields: Fields = serde_json::from_str(raw.get()).unwrap_or_default();
        let kind: String = fields.read("type").unwrap_or_default();
        Self {
            raw: raw.get().to_owned(),
            thought: (kind == THOUGHT).then(|| parts_of_thought(&fields)).flatten(),
            kind,
            index: fields.read("index"),
            fields,
            texts: Vec::new(),
        }
    }

    /// Whether the part is plain text.
    fn is_text(&self) -> bool {
        self.kind == "text" && self.fields.len() == 2 && self.fields.get("text").is_some()
    }

    /// Whether a later part continues this one: same index, or both plain text, or both thinking.
    fn is_continued_by(&self, later: &Self) -> bool {
        let is_known = |name: &str| ["type", THOUGHT, "closed"].contains(&name);
        let is_thought =
            |piece: &Self| piece.thought.is_some() && piece.fields.iter().all(|(name, _)| is_known(name));
        self.kind == later.kind
            && self.index == later.index
            && (self.index.is_some()
                || self.is_text() && later.is_text()
                || is_thought(self) && is_thought(later))
    }

    fn append(&mut self, later: Self) {
        self.raw.clear();
        let thought = match (&mut self.thought, later.thought) {
            (Some(ours), Some(thought)) => {
                for piece in thought {
                    match ours.last_mut() {
                        Some(open) if open.is_continued_by(&piece) => open.append(piece),
                        _ => ours.push(piece),
                    }
                }
                true
            }
            _ => false,
        };
        for (name, value) in later.fields.iter().filter(|(name, _)| !(thought && *name == THOUGHT)) {
            let text =
                APPENDED_MEMBERS.contains(&name).then(|| serde_json::from_str::<String>(value.get()).ok());
            let Some(text) = text.flatten() else {
                replace(&mut self.fields, name, value);
                continue;
            };
            if let Some((_, ours)) = self.texts.iter_mut().find(|(known, _)| known == name) {
                ours.push_str(&text);
            } else {
                let ours = self.fields.read::<String>(name).unwrap_or_default();
                self.texts.push((name.to_owned(), ours + &text));
            }
        }
    }

    fn to_raw(&self) -> Result<Box<RawValue>, serde_json::Error> {
        if !self.raw.is_empty() {
            return RawValue::from_string(self.raw.clone());
        }
        let mut fields = self.fields.clone();
        for (name, text) in &self.texts {
            fields.put(name, text)?;
        }
        if let Some(thought) = &self.thought {
            fields.put(THOUGHT, &thought.iter().map(Self::to_raw).collect::<Result<Vec<_>, _>>()?)?;
        }
        to_raw_value(&fields)
    }
}

/// The texts of a thinking part, if it has texts only.
fn parts_of_thought(fields: &Fields) -> Option<Vec<Piece>> {
    let parts: Vec<&RawValue> = serde_json::from_str(fields.get(THOUGHT)?.get()).ok()?;
    let parts: Vec<Piece> = parts.into_iter().map(Piece::from_raw).collect();
    parts.iter().all(Piece::is_text).then_some(parts)
}

/// Appends parts to a list.
fn append_all(list: &mut Vec<Piece>, later: Vec<Piece>) -> Result<(), serde_json::Error> {
    for piece in later {
        match list.last_mut() {
            Some(open) if open.is_continued_by(&piece) => {
                open.append(piece);
                if open.fields.len() > fields::MAX_MEMBERS {
                    return Err(limit_error("a part has too many members"));
                }
            }
            _ => list.push(piece),
        }
    }
    Ok(())
}

/// The error of JSON that exceeds a limit.
fn limit_error(what: &str) -> serde_json::Error {
    serde::de::Error::custom(what)
}

/// An incomplete call.
#[derive(Clone, Debug, Default, PartialEq)]
struct Call {
    /// The server's index, if any.
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// Whether the server sends the arguments as JSON, not as text.
    has_json_arguments: bool,
    /// The members of the call except `index` and `function`.
    members: Fields,
    /// The members of the function except `name` and `arguments`.
    function: Fields,
}

impl Call {
    fn finish(&self) -> Result<Box<RawValue>, serde_json::Error> {
        let mut function = Fields::default();
        if !self.name.is_empty() {
            function.put("name", &self.name)?;
        }
        for (name, value) in self.function.iter() {
            function.set(name, value.to_owned());
        }
        let has_function = function.len() > 0 || !self.arguments.is_empty();
        if self.has_json_arguments {
            function.set("arguments", RawValue::from_string(self.arguments.clone())?);
        } else {
            function.put("arguments", &self.arguments)?;
        }
        let mut call = self.members.clone();
        if has_function {
            call.put("function", &function)?;
        }
        to_raw_value(&call)
    }
}

/// The fold of one Chat Completions stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatFold {
    origin: ModelId,
    /// The members of the body except `choices`.
    completion: Fields,
    /// The members of the first choice except the message.
    choice: Fields,
    /// The members of the choice's `logprobs`.
    probabilities: Vec<(String, Growing)>,
    /// Whether a chunk has arrived.
    has_started: bool,
    message: Vec<(String, Growing)>,
    calls: Vec<Call>,
    /// The number of call fragments in the current event.
    fragments: usize,
    /// The number of list elements that may still be added.
    elements_left: usize,
    /// The member that is shown as thinking. Servers with several members repeat the text.
    thinking: Option<String>,
    response: Option<Response>,
    complete: bool,
}

impl ChatFold {
    pub(super) fn new(origin: ModelId) -> Self {
        Self {
            origin,
            completion: Fields::default(),
            choice: Fields::default(),
            probabilities: Vec::new(),
            has_started: false,
            message: Vec::new(),
            calls: Vec::new(),
            fragments: 0,
            elements_left: MAX_ELEMENTS,
            thinking: None,
            response: None,
            complete: false,
        }
    }

    fn protocol(&self, message: impl Into<String>) -> ModelError {
        ModelError::new(ErrorKind::Protocol, message).with_model(&self.origin)
    }

    fn chunk(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let chunk = chunk::read(data).map_err(|error| self.protocol(error))?;
        let Chunk { members: chunk, inner: choices } = chunk;
        let failed = chunk.get("error").is_some_and(|error| error.get() != "null");
        let Some(choices) = choices.filter(|_| !failed) else {
            if let Some(error) = error_in(data) {
                return Err(error.with_model(&self.origin));
            }
            events.push_back(ModelEvent::unknown(data));
            return Ok(());
        };
        self.has_started = true;
        self.fragments = 0;
        for (name, value) in chunk.iter() {
            match name {
                // `obfuscation` is padding of the event.
                "choices" | "obfuscation" => {}
                "object" => {
                    if self.completion.get("object").is_none() {
                        self.completion
                            .put("object", "chat.completion")
                            .map_err(|error| self.protocol(error.to_string()))?;
                    }
                }
                "id" => {
                    bounds::answer_id(value).map_err(|what| self.protocol(what))?;
                    // The first id counts: call ids contain it, and some servers change it per event.
                    if self.completion.read::<String>(name).is_none_or(|id| id.is_empty()) {
                        replace(&mut self.completion, name, value);
                    }
                }
                "usage" | "x_groq" => {
                    bounds::usage(value).map_err(|what| self.protocol(what))?;
                    if replace(&mut self.completion, name, value) && value.get() != "null" {
                        let usage = usage_of(&self.completion);
                        if usage.raw.is_some() {
                            events.push_back(ModelEvent::Usage(usage));
                        }
                    }
                }
                _ => {
                    replace(&mut self.completion, name, value);
                }
            }
        }
        if self.completion.len() > fields::MAX_MEMBERS {
            return Err(self.protocol("the answer has too many members"));
        }
        for choice in choices.0 {
            if choice.members.read::<u64>("index").unwrap_or_default() > 0 {
                // Only the first choice is the answer.
                events.push_back(ModelEvent::unknown(data));
                continue;
            }
            self.choice(&choice, events)?;
        }
        Ok(())
    }

    fn choice(&mut self, choice: &Choice<'_>, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if let Some(delta) = &choice.inner {
            self.delta(&delta.0, events).map_err(|error| match error {
                Failure::Json(error) => self.protocol(format!("a delta: {error}")),
                Failure::Model(error) => error,
            })?;
        }
        for (name, value) in choice.members.iter() {
            match name {
                // Some servers repeat the whole message with the last delta.
                "message" | "delta" => {}
                "logprobs" => self
                    .add_probabilities(value)
                    .map_err(|error| self.protocol(format!("the probabilities: {error}")))?,
                _ => {
                    replace(&mut self.choice, name, value);
                }
            }
        }
        if self.choice.len() > fields::MAX_MEMBERS {
            return Err(self.protocol("a choice has too many members"));
        }
        Ok(())
    }

    /// Appends log probabilities.
    fn add_probabilities(&mut self, value: &RawValue) -> Result<(), serde_json::Error> {
        let Ok(Some(later)) = serde_json::from_str::<Option<Fields>>(value.get()) else {
            replace(&mut self.choice, "logprobs", value);
            return Ok(());
        };
        for (name, list) in later.iter() {
            let known = self.probabilities.iter_mut().find(|(known, _)| known == name);
            match (known, Growing::new(list, &mut self.elements_left)?) {
                (Some((_, Growing::List(ours))), Growing::List(later)) => ours.extend(later),
                (Some(_), Growing::Whole(_)) => {}
                (Some((_, ours)), later) => *ours = later,
                (None, new) => self.probabilities.push((name.to_owned(), new)),
            }
        }
        self.probabilities.truncate(fields::MAX_MEMBERS);
        Ok(())
    }

    fn delta(&mut self, delta: &Members<'_>, events: &mut VecDeque<ModelEvent>) -> Result<(), Failure> {
        for (name, value) in delta.iter() {
            match name {
                "tool_calls" => {
                    let calls: Option<Listed<Members<'_>>> = serde_json::from_str(value.get())?;
                    for call in calls.unwrap_or_default().0 {
                        self.grow_call(&call, events)?;
                    }
                }
                "role" => {
                    if self.member("role").is_none() {
                        let role = Growing::new(value, &mut self.elements_left)?;
                        self.message.push(("role".to_owned(), role));
                    }
                }
                "content" => self.grow_content(value, events)?,
                // Routing members of the delta are not part of the message.
                "index" | "channel" => {}
                _ => {
                    let text = self.grow(name, value)?;
                    if let Some(text) = text {
                        self.think(name, text, events);
                    } else if name == THINKING_PARTS && value.get() != "[]" {
                        let parts: Vec<Members<'_>> = serde_json::from_str(value.get()).unwrap_or_default();
                        let text: String = parts.iter().map(text_of_part).collect();
                        // A text member in the same delta takes precedence.
                        if !THINKING
                            .iter()
                            .any(|name| delta.get(name).is_some_and(|value| value.get() != "null"))
                        {
                            self.think(THINKING_PARTS, text, events);
                        }
                    }
                }
            }
        }
        if self.message.len() > fields::MAX_MEMBERS {
            return Err(Failure::Model(self.protocol("the message has too many members")));
        }
        Ok(())
    }

    fn member(&mut self, name: &str) -> Option<&mut Growing> {
        self.message.iter_mut().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    /// Emits thinking, of one member only.
    fn think(&mut self, name: &str, text: String, events: &mut VecDeque<ModelEvent>) {
        if text.is_empty() || !(THINKING.contains(&name) || name == THINKING_PARTS) {
            return;
        }
        if self.thinking.get_or_insert_with(|| name.to_owned()) == name {
            events.push_back(ModelEvent::ThinkingDelta { index: THINKING_INDEX, text });
        }
    }

    /// Appends to a member. Returns the text if it was text.
    fn grow(&mut self, name: &str, value: &RawValue) -> Result<Option<String>, serde_json::Error> {
        let new = Growing::new(value, &mut self.elements_left)?;
        let Some(ours) = self.member(name) else {
            let text = match &new {
                Growing::Text(text) => Some(text.clone()),
                _ => None,
            };
            self.message.push((name.to_owned(), new));
            return Ok(text);
        };
        if value.get() == "null" {
            return Ok(None);
        }
        match (ours, new) {
            (Growing::Text(ours), Growing::Text(text)) => {
                ours.push_str(&text);
                Ok(Some(text))
            }
            (Growing::List(ours), Growing::List(list)) => {
                append_all(ours, list)?;
                Ok(None)
            }
            (ours, new) => {
                let text = match &new {
                    Growing::Text(text) => Some(text.clone()),
                    _ => None,
                };
                *ours = new;
                Ok(text)
            }
        }
    }

    /// Appends to the content: a text, or a list of parts for some servers.
    fn grow_content(
        &mut self,
        value: &RawValue,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), serde_json::Error> {
        if value.get().starts_with('[') {
            let parts: Vec<Members<'_>> = serde_json::from_str(value.get()).unwrap_or_default();
            for part in &parts {
                let kind = part.read::<String>("type").unwrap_or_default();
                match kind.as_str() {
                    "text" | "output_text" => events.extend(
                        part.read::<String>("text")
                            .filter(|text| !text.is_empty())
                            .map(|text| ModelEvent::TextDelta { index: TEXT_INDEX, text }),
                    ),
                    "thinking" | "reasoning" => {
                        let text = thinking_of(part);
                        if !text.is_empty() {
                            events.push_back(ModelEvent::ThinkingDelta { index: THINKING_INDEX, text });
                        }
                    }
                    _ => {}
                }
            }
            if let Some(ours @ Growing::Text(_)) = self.member("content") {
                let text = ours.to_raw()?;
                *ours = Growing::List(match text.get() {
                    "\"\"" => Vec::new(),
                    _ => vec![text_piece(&text)?],
                });
            }
            self.grow("content", value)?;
            return Ok(());
        }
        if let Some(Growing::List(ours)) = self.member("content") {
            if let Ok(text) = serde_json::from_str::<String>(value.get())
                && !text.is_empty()
            {
                append_all(ours, vec![text_piece(value)?])?;
                events.push_back(ModelEvent::TextDelta { index: TEXT_INDEX, text });
            }
            return Ok(());
        }
        if let Some(text) = self.grow("content", value)?.filter(|text| !text.is_empty()) {
            events.push_back(ModelEvent::TextDelta { index: TEXT_INDEX, text });
        }
        Ok(())
    }

    /// The call of a fragment: by index, else by id, else the last one.
    ///
    /// Another id starts a new call, because some servers use the same index for all calls.
    fn find_call(&self, fragment: &Members<'_>, id: Option<&str>) -> Option<usize> {
        let index = fragment.read::<u64>("index");
        let place = match (index, id) {
            (Some(index), _) => self.calls.iter().rposition(|call| call.index == Some(index))?,
            (None, Some(id)) => return self.calls.iter().rposition(|call| call.id == id),
            (None, None) => {
                let starts_anew = fragment
                    .read::<Members<'_>>("function")
                    .and_then(|function| function.read::<String>("name"))
                    .is_some_and(|name| !name.is_empty());
                if starts_anew {
                    return None;
                }
                self.calls.len().checked_sub(1)?
            }
        };
        let known = &self.calls[place].id;
        (known.is_empty() || id.is_none_or(|id| id == known)).then_some(place)
    }

    fn grow_call(
        &mut self,
        fragment: &Members<'_>,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), Failure> {
        self.fragments += 1;
        if self.fragments > MAX_CALLS {
            let message = format!("an event has more than {MAX_CALLS} call fragments");
            return Err(Failure::Model(self.protocol(message)));
        }
        let id = fragment.read::<String>("id").filter(|id| !id.is_empty());
        let place = match self.find_call(fragment, id.as_deref()) {
            Some(place) => place,
            None if self.calls.len() == MAX_CALLS => {
                return Err(Failure::Model(
                    self.protocol(format!("the answer has more than {MAX_CALLS} calls")),
                ));
            }
            None => {
                self.calls.push(Call { index: fragment.read("index"), ..Call::default() });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[place];
        let is_new = call.name.is_empty();
        let mut appended = String::new();
        for (name, value) in fragment.iter() {
            match name {
                "index" => {}
                "function" => {
                    let function: Option<Members<'_>> = serde_json::from_str(value.get())?;
                    for (name, value) in function.unwrap_or_default().iter() {
                        match name {
                            "arguments" if value.get() == "null" => {}
                            "arguments" => match serde_json::from_str::<String>(value.get()) {
                                Ok(text) => appended.push_str(&text),
                                Err(_) => {
                                    call.has_json_arguments = true;
                                    appended.push_str(value.get());
                                }
                            },
                            "name" => {
                                let text: Option<String> = serde_json::from_str(value.get())?;
                                let text = text.unwrap_or_default();
                                // Servers send the name once, with every fragment, or in pieces.
                                if call.name != text {
                                    call.name.push_str(&text);
                                }
                            }
                            _ => {
                                replace(&mut call.function, name, value);
                            }
                        }
                    }
                }
                "id" => {
                    if let Some(id) = &id {
                        call.id.clone_from(id);
                        call.members.put("id", id)?;
                    }
                }
                _ => {
                    replace(&mut call.members, name, value);
                }
            }
        }
        if call.has_json_arguments && !call.arguments.is_empty() && !appended.is_empty() {
            // JSON arguments are replaced, not appended.
            call.arguments.clear();
        }
        call.arguments.push_str(&appended);
        if call.members.len().max(call.function.len()) > fields::MAX_MEMBERS {
            return Err(Failure::Model(self.protocol("a call has too many members")));
        }
        if let Err(what) = bounds::call(&call.id, &call.name) {
            return Err(Failure::Model(self.protocol(what)));
        }
        let call = &self.calls[place];
        if call.name.is_empty() {
            return Ok(());
        }
        if call.name == ANSWER_TOOL {
            if !appended.is_empty() {
                events.push_back(ModelEvent::TextDelta { index: TEXT_INDEX, text: appended });
            }
            return Ok(());
        }
        let index = FIRST_CALL_INDEX + place as u64;
        let id = match call.id.as_str() {
            "" => {
                let answer: Option<String> = self.completion.read("id");
                generated_id(&answer.unwrap_or_default(), place)
            }
            id => id.to_owned(),
        };
        let name = call.name.clone();
        if is_new {
            events.push_back(ModelEvent::ToolCallDelta {
                index,
                id: id.clone(),
                name: name.clone(),
                fragment: String::new(),
            });
        }
        if !appended.is_empty() {
            events.push_back(ModelEvent::ToolCallDelta { index, id, name, fragment: appended });
        }
        Ok(())
    }

    /// Completes the answer.
    fn close(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if !self.has_started {
            return Err(self.protocol("the stream ended before the answer started"));
        }
        let response = self.build().map_err(|error| self.protocol(error.to_string()))?;
        events.extend(response.items.iter().cloned().map(ModelEvent::Item));
        self.response = Some(response);
        self.complete = true;
        Ok(())
    }

    fn build(&mut self) -> Result<Response, serde_json::Error> {
        let mut message = Fields::default();
        message.put("role", "assistant")?;
        for (name, value) in &self.message {
            message.set(name, value.to_raw()?);
        }
        if !self.calls.is_empty() {
            let calls = self.calls.iter().map(Call::finish).collect::<Result<Vec<_>, _>>()?;
            message.put("tool_calls", &calls)?;
        }
        let mut choice = Fields::default();
        choice.put("index", &0)?;
        choice.put("message", &message)?;
        for (name, value) in self.choice.iter() {
            choice.set(name, value.to_owned());
        }
        if !self.probabilities.is_empty() {
            let mut probabilities = Fields::default();
            for (name, value) in &self.probabilities {
                probabilities.set(name, value.to_raw()?);
            }
            choice.put("logprobs", &probabilities)?;
        }
        let mut completion = std::mem::take(&mut self.completion);
        completion.put("choices", &[&choice])?;
        let raw = RawJson::from_value(&completion)?;
        response_of(&self.origin, &completion, &choice, &message, raw)
    }
}

impl Fold for ChatFold {
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.complete {
            return Ok(());
        }
        if data.trim() == "[DONE]" {
            return self.close(events);
        }
        self.chunk(data, events)
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    /// Completes the answer: some servers end after the finish reason, without `[DONE]`.
    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let has_reason = self.choice.get("finish_reason").is_some_and(|reason| reason.get() != "null");
        if self.complete || !has_reason { Ok(()) } else { self.close(events) }
    }

    fn count(&self) -> usize {
        let parts = self.message.iter().map(|(_, value)| match value {
            Growing::List(list) => list.len(),
            Growing::Text(_) | Growing::Whole(_) => 1,
        });
        self.calls.len() + parts.sum::<usize>()
    }

    fn finish(&mut self) -> Result<Response, ModelError> {
        match self.response.take() {
            Some(response) => Ok(response),
            None => Err(self.protocol("the stream ended before the answer was complete")),
        }
    }
}

/// An error of a delta.
enum Failure {
    Json(serde_json::Error),
    Model(ModelError),
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

/// A text part of the content.
fn text_piece(text: &RawValue) -> Result<Piece, serde_json::Error> {
    let mut fields = Fields::default();
    fields.put("type", "text")?;
    fields.put("text", text)?;
    Ok(Piece::from_raw(&to_raw_value(&fields)?))
}

/// Replaces a member; `null` replaces nothing. True if it changed.
fn replace(fields: &mut Fields, name: &str, value: &RawValue) -> bool {
    match fields.get(name) {
        Some(ours) if ours.get() == value.get() || value.get() == "null" => false,
        _ => {
            fields.set(name, value.to_owned());
            true
        }
    }
}
