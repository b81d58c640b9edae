//! Folds a stream of the Messages API into the equivalent body.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};

use super::error::{ErrorBody, error_of};
use super::view::{item, wrapped_input};
use crate::fields::{self, Fields, Listed, MAX_VALUES, Members, Text};
use crate::offline::events::deltas_of;
use crate::wires::bounds;
use crate::wires::codec::Fold;
use crate::wires::counts::Counts;
use crate::{
    ErrorKind, Item, ItemView, ModelError, ModelEvent, ModelId, RawJson, Response, StopReason, TokenUsage,
};

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    index: u64,
    #[serde(default, borrow)]
    message: Option<&'a RawValue>,
    #[serde(default, borrow)]
    content_block: Option<&'a RawValue>,
    #[serde(default, borrow)]
    delta: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    text: Option<Text<'a>>,
    #[serde(default, borrow)]
    thinking: Option<Text<'a>>,
    #[serde(default, borrow)]
    signature: Option<Text<'a>>,
    #[serde(default, borrow)]
    partial_json: Option<Text<'a>>,
    #[serde(default, borrow)]
    citation: Option<&'a RawValue>,
}

/// An open block: its start, and the text appended to its members.
#[derive(Clone, Debug, PartialEq)]
struct Block {
    /// The block's position in the content, in order of the starts.
    position: usize,
    start: Fields,
    /// The id and name of a tool call.
    call: Option<(String, String)>,
    text: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    input: String,
    citations: Vec<RawJson>,
    /// Members that a delta replaces, such as the text of a compaction.
    members: Fields,
}

/// The fold of one stream of the Messages API.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MessageFold {
    origin: ModelId,
    /// The message so far; `None` before its start.
    message: Option<Fields>,
    /// The parsed usage of the message, if it is current.
    usage: Option<TokenUsage>,
    /// The open blocks by index. Boxed, because map nodes reserve space for several values.
    open: BTreeMap<u64, Box<Block>>,
    /// The items of all blocks in order; `None` for an open block.
    items: Vec<Option<Item>>,
    /// The number of delivered items.
    delivered: usize,
    complete: bool,
}

impl MessageFold {
    pub(super) fn new(origin: ModelId) -> Self {
        Self {
            origin,
            message: None,
            usage: None,
            open: BTreeMap::new(),
            items: Vec::new(),
            delivered: 0,
            complete: false,
        }
    }

    fn protocol(&self, message: impl Into<String>) -> ModelError {
        ModelError::new(ErrorKind::Protocol, message).with_model(&self.origin)
    }

    fn start(&mut self, message: &RawValue, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let fields: Fields = serde_json::from_str(message.get())
            .map_err(|error| self.protocol(format!("message_start: expected a message object: {error}")))?;
        // A gateway may repeat the start, or switch to a second answer after it lost the first one.
        if !self.items.is_empty() {
            self.open.clear();
            self.items.clear();
            self.delivered = 0;
            events.push_back(ModelEvent::Restarted);
        }
        // Calls by hosted code arrive complete, in the start of a message.
        for (index, raw) in (0..).zip(fields.read::<Listed<RawJson>>("content").unwrap_or_default().0) {
            let item = item(raw);
            events.extend(deltas_of(index, &item));
            self.items.push(Some(item));
        }
        self.deliver(events);
        self.message = Some(fields);
        self.usage = None;
        Ok(())
    }

    fn open_block(
        &mut self,
        index: u64,
        block: &RawValue,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        if self.message.is_none() {
            return Err(self.protocol("content_block_start came before message_start"));
        }
        let start: Fields = serde_json::from_str(block.get())
            .map_err(|error| self.protocol(format!("content block {index}: expected an object: {error}")))?;
        // Some gateways use the same index for every block: the previous one is then complete.
        if self.open.contains_key(&index) {
            self.close_block(index, events)?;
        }
        let kind: String = start.read("type").unwrap_or_default();
        let call = (kind == "tool_use").then(|| {
            (start.read::<String>("id").unwrap_or_default(), start.read::<String>("name").unwrap_or_default())
        });
        if let Some((id, name)) = call.clone() {
            bounds::call(&id, &name).map_err(|what| self.protocol(what))?;
            events.push_back(ModelEvent::ToolCallDelta { index, id, name, fragment: String::new() });
        }
        // Some servers send a short text complete in the start.
        let text_of = |name: &str| start.read::<String>(name).filter(|text| !text.is_empty());
        let delta = match kind.as_str() {
            "text" => text_of("text").map(|text| ModelEvent::TextDelta { index, text }),
            "thinking" => text_of("thinking").map(|text| ModelEvent::ThinkingDelta { index, text }),
            _ => None,
        };
        events.extend(delta);
        let block = Block {
            position: self.items.len(),
            start,
            call,
            text: None,
            thinking: None,
            signature: None,
            input: String::new(),
            citations: Vec::new(),
            members: Fields::default(),
        };
        self.items.push(None);
        self.open.insert(index, Box::new(block));
        Ok(())
    }

    fn grow(
        &mut self,
        index: u64,
        data: &str,
        raw: &RawValue,
        events: &mut VecDeque<ModelEvent>,
    ) -> Result<(), ModelError> {
        let delta: Delta<'_> = serde_json::from_str(raw.get())
            .map_err(|error| self.protocol(format!("delta of content block {index}: {error}")))?;
        let Some(block) = self.open.get_mut(&index) else {
            return Err(
                self.protocol(format!("a delta arrived for content block {index}, which is not open"))
            );
        };
        // A borrowed name is cloned for free.
        let kind = delta.kind.clone();
        match (&*kind, delta) {
            ("text_delta", Delta { text: Some(Text(text)), .. }) => {
                append(&mut block.text, &text, &block.start, "text");
                events.push_back(ModelEvent::TextDelta { index, text: text.into_owned() });
            }
            ("thinking_delta", Delta { thinking: Some(Text(text)), .. }) => {
                append(&mut block.thinking, &text, &block.start, "thinking");
                events.push_back(ModelEvent::ThinkingDelta { index, text: text.into_owned() });
            }
            ("signature_delta", Delta { signature: Some(Text(text)), .. }) => {
                // A signature arrives complete: a second one replaces the first, as in the official client.
                block.signature = Some(text.into_owned());
            }
            ("input_json_delta", Delta { partial_json: Some(Text(text)), .. }) => {
                block.input.push_str(&text);
                if let Some((id, name)) = block.call.as_ref().filter(|_| !text.is_empty()).cloned() {
                    events.push_back(ModelEvent::ToolCallDelta {
                        index,
                        id,
                        name,
                        fragment: text.into_owned(),
                    });
                }
            }
            ("citations_delta", Delta { citation: Some(citation), .. }) => {
                block.citations.push(citation.into());
            }
            ("compaction_delta", _) => match serde_json::from_str::<Fields>(raw.get()) {
                Ok(fields) => {
                    for (name, value) in fields.iter().filter(|(name, _)| *name != "type") {
                        block.members.set(name, value.to_owned());
                    }
                    if block.members.len() > fields::MAX_MEMBERS {
                        let message = format!("content block {index} has too many members");
                        return Err(self.protocol(message));
                    }
                }
                Err(_) => events.push_back(ModelEvent::unknown(data)),
            },
            _ => events.push_back(ModelEvent::unknown(data)),
        }
        Ok(())
    }

    fn close_block(&mut self, index: u64, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let Some(block) = self.open.remove(&index) else {
            return Err(self.protocol(format!("content block {index} ended but was not open")));
        };
        // The arguments of a call may arrive complete in its start.
        if let Some((id, name)) = block.call.as_ref().filter(|_| block.input.is_empty()).cloned()
            && let Some(input) = block.start.get("input").filter(|input| input.get() != "{}")
        {
            events.push_back(ModelEvent::ToolCallDelta { index, id, name, fragment: input.get().to_owned() });
        }
        let position = block.position;
        let item =
            block.finish().map_err(|error| self.protocol(format!("content block {index}: {error}")))?;
        let is_hosted =
            matches!(item.view(), ItemView::ServerToolCall { .. } | ItemView::ServerToolResult { .. });
        self.items[position] = Some(item.clone());
        self.deliver(events);
        if is_hosted && self.delivered <= position {
            events.push_back(ModelEvent::Hosted(item));
        }
        Ok(())
    }

    /// Delivers the complete items up to the first open block.
    fn deliver(&mut self, events: &mut VecDeque<ModelEvent>) {
        while let Some(Some(item)) = self.items.get(self.delivered) {
            events.push_back(ModelEvent::Item(item.clone()));
            self.delivered += 1;
        }
    }

    /// Applies a `message_delta`: stop reason, usage and other members.
    fn update(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        let delta: Members<'_> =
            serde_json::from_str(data).map_err(|error| self.protocol(format!("message_delta: {error}")))?;
        let Some(mut message) = self.message.take() else {
            return Err(self.protocol("message_delta came before message_start"));
        };
        for (name, value) in delta.iter() {
            match name {
                "type" => {}
                "delta" => {
                    for (name, value) in Members::parse(value.get()).iter() {
                        message.set(name, value.to_owned());
                    }
                }
                "usage" => {
                    // The start has the input and the end the output. Later values win.
                    let mut usage: Members<'_> = message.read("usage").unwrap_or_default();
                    let later = Members::parse(value.get());
                    for (name, value) in later.iter() {
                        if value.get() != "null" || usage.get(name).is_none() {
                            usage.set(name, value);
                        }
                    }
                    let usage = to_raw_value(&usage).map_err(|error| self.protocol(error.to_string()))?;
                    bounds::usage(&usage).map_err(|what| self.protocol(what))?;
                    message.set("usage", usage);
                }
                _ => message.set(name, value.to_owned()),
            }
        }
        if message.len() > fields::MAX_MEMBERS {
            return Err(self.protocol("the message has too many members"));
        }
        self.usage = delta.get("usage").map(|_| usage_of(&message));
        events.extend(self.usage.clone().map(ModelEvent::Usage));
        self.message = Some(message);
        Ok(())
    }
}

impl Fold for MessageFold {
    fn take(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ModelError> {
        if self.complete {
            return Ok(());
        }
        let event: Event<'_> = serde_json::from_str(data)
            .map_err(|error| self.protocol(format!("an event has invalid JSON: {error}")))?;
        let kind = event.kind.clone();
        match (&*kind, event) {
            ("content_block_delta", Event { index, delta: Some(delta), .. }) => {
                self.grow(index, data, delta, events)
            }
            ("content_block_start", Event { index, content_block: Some(block), .. }) => {
                self.open_block(index, block, events)
            }
            ("content_block_stop", Event { index, .. }) => self.close_block(index, events),
            ("message_start", Event { message: Some(message), .. }) => self.start(message, events),
            ("message_delta", _) => self.update(data, events),
            ("message_stop", _) => {
                if self.message.is_none() {
                    return Err(self.protocol("message_stop came before message_start"));
                }
                let open: Vec<u64> = self.open.keys().copied().collect();
                for index in open {
                    self.close_block(index, events)?;
                }
                self.complete = true;
                Ok(())
            }
            ("ping", _) => Ok(()),
            ("error", Event { error: Some(error), .. }) => {
                let body: ErrorBody = serde_json::from_str(error.get()).unwrap_or_default();
                Err(error_of(None, &body).with_model(&self.origin))
            }
            _ => {
                events.push_back(ModelEvent::unknown(data));
                Ok(())
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn count(&self) -> usize {
        self.items.len()
    }

    fn finish(&mut self) -> Result<Response, ModelError> {
        let message = self.message.take().filter(|_| self.complete);
        let Some(mut message) = message else {
            return Err(self.protocol("the stream ended before the message was complete"));
        };
        let items: Vec<Item> = std::mem::take(&mut self.items).into_iter().flatten().collect();
        let content: Vec<&RawJson> = items.iter().map(Item::raw).collect();
        message.put("content", &content).map_err(|error| self.protocol(error.to_string()))?;
        let raw = RawJson::from_value(&message).map_err(|error| self.protocol(error.to_string()))?;
        let usage = self.usage.take().unwrap_or_else(|| usage_of(&message));
        Ok(response_of(&self.origin, &message, items, usage, raw))
    }
}

impl Block {
    fn finish(mut self) -> Result<Item, serde_json::Error> {
        for (name, value) in [("text", self.text), ("thinking", self.thinking), ("signature", self.signature)]
        {
            if let Some(value) = value {
                self.start.put(name, &value)?;
            }
        }
        if !self.citations.is_empty() {
            let mut citations: Vec<RawJson> = self.start.read("citations").unwrap_or_default();
            citations.append(&mut self.citations);
            self.start.put("citations", &citations)?;
        }
        for (name, value) in self.members.iter() {
            self.start.set(name, value.to_owned());
        }
        if !self.input.is_empty() {
            let input = match serde_json::from_str::<&RawValue>(&self.input) {
                Ok(raw) if raw.get().starts_with('{') => raw.to_owned(),
                _ => to_raw_value(&wrapped_input(&self.input))?,
            };
            self.start.set("input", input);
        }
        RawJson::from_value(&self.start).map(item)
    }
}

/// Appends to a member, which starts with the value of the block's start.
fn append(member: &mut Option<String>, text: &str, start: &Fields, name: &str) {
    member.get_or_insert_with(|| start.read(name).unwrap_or_default()).push_str(text);
}

/// Decodes a complete message.
pub(super) fn read_message(origin: &ModelId, body: &str) -> Result<Response, ModelError> {
    let protocol = |text: String| ModelError::new(ErrorKind::Protocol, text).with_model(origin);
    let message: Fields = serde_json::from_str(body)
        .map_err(|error| protocol(format!("the body has invalid JSON: {error}")))?;
    match message.read::<String>("type").as_deref() {
        Some("error") => {
            let body: ErrorBody = message.read("error").unwrap_or_default();
            return Err(error_of(None, &body).with_model(origin));
        }
        Some("message") => {}
        other => {
            let found = other.map_or_else(|| "none".to_owned(), |kind| format!("`{kind}`"));
            return Err(protocol(format!("the body's type: expected `message`, found {found}")));
        }
    }
    let Some(Listed(content)) = message.read::<Listed<RawJson>>("content") else {
        return Err(protocol(format!("the message's content: expected a list of at most {MAX_VALUES}")));
    };
    let raw = RawJson::parse(body).map_err(|error| protocol(error.to_string()))?;
    let items = content.into_iter().map(item).collect();
    Ok(response_of(origin, &message, items, usage_of(&message), raw))
}

fn response_of(
    origin: &ModelId,
    message: &Fields,
    items: Vec<Item>,
    usage: TokenUsage,
    raw: RawJson,
) -> Response {
    let stop = message.read::<String>("stop_reason");
    let stop = match stop.as_deref() {
        Some("pause_turn") => StopReason::Pause,
        Some("model_context_window_exceeded") => StopReason::ContextWindow,
        Some(reason) => StopReason::from(reason),
        // Calls need results even without a stop reason.
        None if items.iter().any(|item| matches!(item.view(), ItemView::ToolCall { .. })) => {
            StopReason::ToolUse
        }
        None => StopReason::Other(String::new()),
    };
    let details: Members<'_> = message.read("stop_details").unwrap_or_default();
    let stop_detail = message
        .read::<String>("stop_sequence")
        .or_else(|| details.read("explanation"))
        .or_else(|| details.read("category"));
    Response {
        id: message.read("id").unwrap_or_default(),
        model: message.read("model").unwrap_or_else(|| origin.name.clone()),
        origin: origin.clone(),
        items,
        stop,
        stop_detail,
        usage,
        provider_state: super::container::provider_state(message),
        notices: Vec::new(),
        raw,
    }
}

fn usage_of(message: &Fields) -> TokenUsage {
    let usage: Members<'_> = message.read("usage").unwrap_or_default();
    let mut counts = Counts::default();
    let details = counts.part(&usage, "output_tokens_details");
    let writes = counts.part(&usage, "cache_creation");
    // The provider's summary is billed, but not part of the sums.
    let summaries: Vec<Members<'_>> = counts
        .parts(&usage, "iterations")
        .into_iter()
        .filter(|one| one.read::<String>("type").is_some_and(|kind| kind == "compaction"))
        .collect();
    let [input, output, cache_read, cache_write] = [
        ("input_tokens", true),
        ("output_tokens", true),
        ("cache_read_input_tokens", false),
        ("cache_creation_input_tokens", false),
    ]
    .map(|(name, is_required)| {
        let own =
            if is_required { Some(counts.required(&usage, name)) } else { counts.optional(&usage, name) };
        let of = summaries.iter().map(|one| counts.optional(one, name).unwrap_or_default());
        of.fold(own.unwrap_or_default(), u64::saturating_add)
    });
    TokenUsage {
        input,
        output,
        cache_read,
        cache_write,
        cache_write_1h: counts.optional(&writes, "ephemeral_1h_input_tokens").unwrap_or_default(),
        reasoning: counts.optional(&details, "thinking_tokens"),
        hosted: counts.uses(&usage, "server_tool_use"),
        incomplete: counts.incomplete,
        raw: message.get("usage").map(RawJson::from),
    }
}
