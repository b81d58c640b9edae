//! Splits an answer's message into items, and joins them again.
//!
//! An item's JSON is a part of the message: `{"content": …}`, `{"tool_calls": [one]}`, or any other member. Empty members
//! (`null`, an empty list) belong to the first item. The joined parts equal the message, except for `role` and for
//! generated call ids.

use serde_json::value::{RawValue, to_raw_value};

use super::ANSWER_TOOL;
use crate::fields::{Fields, Listed, Members};
use crate::{Citation, Item, ItemView, RawJson};

/// Members with thinking as text, by precedence. Servers with several members repeat the text.
pub(super) const THINKING: &[&str] = &["reasoning_content", "reasoning", "thinking", "reasoning_text"];

/// The member with thinking as a list of parts, some signed or encrypted.
pub(super) const THINKING_PARTS: &str = "reasoning_details";

/// Members that belong to the thinking.
const WITH_THINKING: &[&str] = &["reasoning_details", "reasoning_signature", "thinking_blocks"];

/// Splits a message into items. Calls without id get one with `answer_id`.
pub(crate) fn items_of(message: &Fields, answer_id: &str) -> Result<Vec<Item>, serde_json::Error> {
    let mut empty_members = Fields::default();
    let mut thinking = Fields::default();
    let (mut content, mut calls, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (name, value) in message.iter() {
        match name {
            "role" => {}
            // Annotations belong to the text.
            "annotations" => empty_members.set(name, value.to_owned()),
            _ if is_empty_value(value) => empty_members.set(name, value.to_owned()),
            _ if THINKING.contains(&name) || WITH_THINKING.contains(&name) => {
                thinking.set(name, value.to_owned());
            }
            "content" => content = content_items(value)?,
            "tool_calls" => match serde_json::from_str::<Listed<&RawValue>>(value.get()) {
                Ok(Listed(list)) => {
                    for (number, call) in list.into_iter().enumerate() {
                        calls.push(call_item(call, &generated_id(answer_id, number))?);
                    }
                }
                Err(_) => others.push(other(name, value)?),
            },
            _ => others.push(other(name, value)?),
        }
    }
    let mut items = Vec::new();
    if thinking.len() > 0 {
        items.push(thinking_item(&thinking)?);
    }
    if let Some(citations) = message.get("annotations").filter(|value| !is_empty_value(value))
        && let Some((ItemView::Text { citations: ours, .. }, _)) = content.first_mut()
    {
        *ours = citations_of(citations);
    }
    let parts = content.into_iter().chain(others).chain(calls);
    for (view, fields) in parts {
        items.push(Item::new(view, RawJson::from_value(&fields)?));
    }
    // Empty members belong to the first item.
    if empty_members.len() > 0
        && let Some(first) = items.first_mut()
    {
        let mut fields: Fields = serde_json::from_str(first.raw().get())?;
        for (name, value) in empty_members.iter() {
            fields.set(name, value.to_owned());
        }
        *first = Item::new(first.view().clone(), RawJson::from_value(&fields)?);
    }
    Ok(items)
}

fn is_empty_value(value: &RawValue) -> bool {
    matches!(value.get(), "null" | "\"\"" | "[]" | "{}")
}

fn other(name: &str, value: &RawValue) -> Result<(ItemView, Fields), serde_json::Error> {
    let mut fields = Fields::default();
    fields.put(name, value)?;
    Ok((ItemView::Other { kind: name.chars().take(100).collect() }, fields))
}

fn content_items(value: &RawValue) -> Result<Vec<(ItemView, Fields)>, serde_json::Error> {
    let wrapped = |value: &RawValue| -> Result<Fields, serde_json::Error> {
        let mut fields = Fields::default();
        fields.put("content", value)?;
        Ok(fields)
    };
    if let Ok(text) = serde_json::from_str::<String>(value.get()) {
        return Ok(vec![(ItemView::Text { text, citations: Vec::new() }, wrapped(value)?)]);
    }
    let Ok(Listed(parts)) = serde_json::from_str::<Listed<&RawValue>>(value.get()) else {
        return Ok(vec![(ItemView::Other { kind: "content".to_owned() }, wrapped(value)?)]);
    };
    let mut items = Vec::new();
    for part in parts {
        let fields: Members<'_> = serde_json::from_str(part.get()).unwrap_or_default();
        let kind = fields.read::<String>("type").unwrap_or_default();
        let view = match kind.as_str() {
            "text" | "output_text" => {
                ItemView::Text { text: fields.read("text").unwrap_or_default(), citations: Vec::new() }
            }
            "thinking" | "reasoning" => ItemView::Thinking {
                text: thinking_of(&fields),
                has_signature: fields.get("signature").is_some_and(|value| !is_empty_value(value)),
            },
            _ => ItemView::Other { kind },
        };
        items.push((view, wrapped(&to_raw_value(&[part])?)?));
    }
    Ok(items)
}

/// The thinking of a content part: a text, or a list of text parts.
pub(super) fn thinking_of(part: &Members<'_>) -> String {
    let text = ["thinking", "text", "reasoning"].into_iter().find_map(|name| part.read::<String>(name));
    text.unwrap_or_else(|| {
        let parts = part.read::<Vec<Members<'_>>>("thinking").unwrap_or_default();
        parts.iter().filter_map(|part| part.read::<String>("text")).collect()
    })
}

fn thinking_item(fields: &Fields) -> Result<Item, serde_json::Error> {
    let text = THINKING.iter().find_map(|name| fields.read::<String>(name).filter(|text| !text.is_empty()));
    let parts: Vec<Members<'_>> =
        fields.get(THINKING_PARTS).and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default();
    let text = text.unwrap_or_else(|| parts.iter().map(text_of_part).collect());
    let is_signed = |part: &Members<'_>| {
        ["signature", "data"].iter().any(|name| part.get(name).is_some_and(|value| !is_empty_value(value)))
    };
    let has_signature = parts.iter().any(is_signed)
        || ["reasoning_signature", "thinking_blocks"].iter().any(|name| fields.get(name).is_some());
    Ok(Item::new(ItemView::Thinking { text, has_signature }, RawJson::from_value(fields)?))
}

/// The text of a part of `reasoning_details`.
pub(super) fn text_of_part(part: &Members<'_>) -> String {
    ["text", "summary"].into_iter().find_map(|name| part.read(name)).unwrap_or_default()
}

fn call_item(call: &RawValue, id: &str) -> Result<(ItemView, Fields), serde_json::Error> {
    let mut fields: Fields = serde_json::from_str(call.get()).unwrap_or_default();
    let function: Fields = fields.read("function").unwrap_or_default();
    let name = function.read::<String>("name").unwrap_or_default();
    if fields.len() == 0 || name.is_empty() {
        let kind = fields.read::<String>("type").unwrap_or_else(|| "tool_calls".to_owned());
        let mut wrapper = Fields::default();
        wrapper.put("tool_calls", &[call])?;
        return Ok((ItemView::Other { kind }, wrapper));
    }
    let own = fields.read::<String>("id").filter(|id| !id.is_empty());
    if own.is_none() {
        fields.put("id", id)?;
    }
    let mut wrapper = Fields::default();
    wrapper.put("tool_calls", &[&fields])?;
    let arguments = arguments_of(&function);
    if name == ANSWER_TOOL {
        let text = match arguments {
            Ok(raw) => raw.get().to_owned(),
            Err(text) => text,
        };
        return Ok((ItemView::Text { text, citations: Vec::new() }, wrapper));
    }
    let id = own.unwrap_or_else(|| id.to_owned());
    Ok((ItemView::ToolCall { id, name, arguments }, wrapper))
}

/// Parses the arguments: JSON as text. Some servers send JSON directly, or nothing for no arguments.
fn arguments_of(function: &Fields) -> Result<RawJson, String> {
    let Some(value) = function.get("arguments") else { return Ok(empty()) };
    match serde_json::from_str::<String>(value.get()) {
        Ok(text) if matches!(text.trim(), "" | "null") => Ok(empty()),
        Ok(text) => RawJson::parse(text.clone()).map_err(|_| text),
        Err(_) if value.get() == "null" => Ok(empty()),
        Err(_) => Ok(RawJson::from(value)),
    }
}

fn empty() -> RawJson {
    RawJson::from(&serde_json::Value::Object(serde_json::Map::new()))
}

fn citations_of(annotations: &RawValue) -> Vec<Citation> {
    let list: Vec<Members<'_>> = serde_json::from_str(annotations.get()).unwrap_or_default();
    let citations = list.iter().filter_map(|one| {
        let inner: Members<'_> = one.read("url_citation")?;
        Some(Citation { url: inner.read("url"), title: inner.read("title"), file: None })
    });
    citations.collect()
}

/// The number of trailing characters of an id that are scanned.
const MAX_TAIL: usize = 64;

/// The end of an id, as part of another id.
fn tail(id: &str) -> String {
    // The scan starts at the end, because ids have no maximum length.
    let letters: Vec<char> =
        id.chars().rev().take(MAX_TAIL).filter(char::is_ascii_alphanumeric).take(12).collect();
    letters.into_iter().rev().collect()
}

/// The generated id of a call without one.
pub(super) fn generated_id(answer_id: &str, number: usize) -> String {
    format!("call_{}_{number}", tail(answer_id))
}

/// A message that is joined from its items.
#[derive(Debug, Default)]
pub(super) struct MessageBuilder {
    members: Fields,
    content: Option<Content>,
    calls: Vec<Box<RawValue>>,
    /// The ids of the answer tool's calls, which get no result.
    pub(super) answered: Vec<String>,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Box<RawValue>>),
}

impl MessageBuilder {
    /// Adds an item of this wire.
    pub(super) fn add(&mut self, item: &Item) -> Result<(), serde_json::Error> {
        let fields: Fields = serde_json::from_str(item.raw().get())?;
        for (name, value) in fields.iter() {
            match name {
                "content" => self.add_content(value)?,
                "tool_calls" if !is_empty_value(value) => {
                    let calls: Vec<Box<RawValue>> = serde_json::from_str(value.get())?;
                    if matches!(item.view(), ItemView::Text { .. }) {
                        let ids = calls.iter().filter_map(|call| {
                            serde_json::from_str::<Fields>(call.get()).ok()?.read::<String>("id")
                        });
                        self.answered.extend(ids);
                    }
                    self.calls.extend(calls);
                }
                _ => self.members.set(name, value.to_owned()),
            }
        }
        Ok(())
    }

    fn add_content(&mut self, value: &RawValue) -> Result<(), serde_json::Error> {
        if value.get() == "null" {
            if self.content.is_none() {
                self.members.set("content", value.to_owned());
            }
            return Ok(());
        }
        if let Ok(text) = serde_json::from_str::<String>(value.get()) {
            return self.add_text(&text);
        }
        let parts: Vec<Box<RawValue>> = match serde_json::from_str(value.get()) {
            Ok(parts) => parts,
            Err(_) => vec![value.to_owned()],
        };
        match &mut self.content {
            Some(Content::Parts(ours)) => ours.extend(parts),
            Some(Content::Text(text)) => {
                let mut all = vec![text_part(text)?];
                all.extend(parts);
                self.content = Some(Content::Parts(all));
            }
            None => self.content = Some(Content::Parts(parts)),
        }
        Ok(())
    }

    /// Adds text.
    pub(super) fn add_text(&mut self, text: &str) -> Result<(), serde_json::Error> {
        match &mut self.content {
            Some(Content::Text(ours)) => ours.push_str(text),
            Some(Content::Parts(parts)) => parts.push(text_part(text)?),
            None => self.content = Some(Content::Text(text.to_owned())),
        }
        Ok(())
    }

    /// Adds a call of another wire.
    pub(super) fn add_call(
        &mut self,
        id: &str,
        name: &str,
        arguments: &str,
    ) -> Result<(), serde_json::Error> {
        let call = serde_json::json!({
            "id": id,
            "type": "function",
            "function": {"name": name, "arguments": arguments}
        });
        self.calls.push(to_raw_value(&call)?);
        Ok(())
    }

    /// The members of the message, `role` first; `None` if it is empty.
    pub(super) fn into_message(self) -> Result<Option<Fields>, serde_json::Error> {
        let Self { members, content, calls, .. } = self;
        if members.len() == 0 && content.is_none() && calls.is_empty() {
            return Ok(None);
        }
        let mut message = Fields::default();
        message.put("role", "assistant")?;
        match &content {
            Some(Content::Text(text)) => message.put("content", text)?,
            Some(Content::Parts(parts)) => message.put("content", parts)?,
            // Servers require the member if there is no call.
            None if calls.is_empty() => message.put("content", "")?,
            None => {}
        }
        for (name, value) in members.iter() {
            if name != "content" || content.is_none() && !calls.is_empty() {
                message.set(name, value.to_owned());
            }
        }
        if !calls.is_empty() {
            message.put("tool_calls", &calls)?;
        }
        Ok(Some(message))
    }
}

fn text_part(text: &str) -> Result<Box<RawValue>, serde_json::Error> {
    to_raw_value(&serde_json::json!({"type": "text", "text": text}))
}
