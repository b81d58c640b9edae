//! An answer's message: taken apart into items, put together again.
//!
//! An item's raw JSON is a part of the message: `{"content": …}`, `{"tool_calls": [one]}`, or whatever other member
//! says something. Members that say nothing (`null`, an empty list) ride with the first item. Together the parts are
//! the message again, member for member, but for `role` and for an id where a server gave a call none.

use serde_json::value::{RawValue, to_raw_value};

use super::ANSWER_TOOL;
use crate::fields::{Fields, Listed, Members};
use crate::{Citation, Item, ItemView, RawJson};

/// Members that hold the model's thinking as text, the one that counts first. Servers that send several repeat
/// themselves.
pub(super) const THINKING: &[&str] = &["reasoning_content", "reasoning", "thinking", "reasoning_text"];

/// The member that holds thinking as a list of parts, some of them signed or encrypted.
pub(super) const THINKING_PARTS: &str = "reasoning_details";

/// Members that belong to the thinking as soon as there is any.
const WITH_THINKING: &[&str] = &["reasoning_details", "reasoning_signature", "thinking_blocks"];

/// The items of a message. `answer_id` makes ids for calls that have none.
pub(crate) fn items_of(message: &Fields, answer_id: &str) -> Result<Vec<Item>, serde_json::Error> {
    let mut silent = Fields::default();
    let mut thinking = Fields::default();
    let (mut content, mut calls, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (name, value) in message.iter() {
        match name {
            "role" => {}
            // What was cited stands beside the text, and is part of it here.
            "annotations" => silent.set(name, value.to_owned()),
            _ if says_nothing(value) => silent.set(name, value.to_owned()),
            _ if THINKING.contains(&name) || WITH_THINKING.contains(&name) => {
                thinking.set(name, value.to_owned());
            }
            "content" => content = content_items(value)?,
            "tool_calls" => match serde_json::from_str::<Listed<&RawValue>>(value.get()) {
                Ok(Listed(list)) => {
                    for (number, call) in list.into_iter().enumerate() {
                        calls.push(call_item(call, &made_id(answer_id, number))?);
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
    if let Some(citations) = message.get("annotations").filter(|value| !says_nothing(value))
        && let Some((ItemView::Text { citations: ours, .. }, _)) = content.first_mut()
    {
        *ours = citations_of(citations);
    }
    let parts = content.into_iter().chain(others).chain(calls);
    for (view, fields) in parts {
        items.push(Item::new(view, RawJson::of(&fields)?));
    }
    // Members without a word ride along.
    if silent.len() > 0
        && let Some(first) = items.first_mut()
    {
        let mut fields: Fields = serde_json::from_str(first.raw().get())?;
        for (name, value) in silent.iter() {
            fields.set(name, value.to_owned());
        }
        *first = Item::new(first.view().clone(), RawJson::of(&fields)?);
    }
    Ok(items)
}

fn says_nothing(value: &RawValue) -> bool {
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
                text: thought_in(&fields),
                has_signature: fields.get("signature").is_some_and(|value| !says_nothing(value)),
            },
            _ => ItemView::Other { kind },
        };
        items.push((view, wrapped(&to_raw_value(&[part])?)?));
    }
    Ok(items)
}

/// The thinking of a part of the content: a text, or a list of text parts.
pub(super) fn thought_in(part: &Members<'_>) -> String {
    let text = ["thinking", "text", "reasoning"].into_iter().find_map(|name| part.read::<String>(name));
    text.unwrap_or_else(|| {
        let parts = part.read::<Vec<Members<'_>>>("thinking").unwrap_or_default();
        parts.iter().filter_map(|part| part.read::<String>("text")).collect()
    })
}

fn thinking_item(fields: &Fields) -> Result<Item, serde_json::Error> {
    let said = THINKING.iter().find_map(|name| fields.read::<String>(name).filter(|text| !text.is_empty()));
    let parts: Vec<Members<'_>> =
        fields.get(THINKING_PARTS).and_then(|list| serde_json::from_str(list.get()).ok()).unwrap_or_default();
    let text = said.unwrap_or_else(|| parts.iter().map(text_of_part).collect());
    let is_signed = |part: &Members<'_>| {
        ["signature", "data"].iter().any(|name| part.get(name).is_some_and(|value| !says_nothing(value)))
    };
    let has_signature = parts.iter().any(is_signed)
        || ["reasoning_signature", "thinking_blocks"].iter().any(|name| fields.get(name).is_some());
    Ok(Item::new(ItemView::Thinking { text, has_signature }, RawJson::of(fields)?))
}

/// What a part of `reasoning_details` says.
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

/// The arguments are JSON as text; some servers send them as the JSON itself, or nothing for no arguments.
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
    let cited = list.iter().filter_map(|one| {
        let inner: Members<'_> = one.read("url_citation")?;
        Some(Citation { url: inner.read("url"), title: inner.read("title"), file: None })
    });
    cited.collect()
}

/// How much of an id is looked at for its end, in characters.
const LONGEST_TAIL: usize = 64;

/// The end of an id, short enough to stand in another one.
fn tail(id: &str) -> String {
    // From the back, because each call of the answer asks, and nobody bounds how long an id is.
    let letters: Vec<char> =
        id.chars().rev().take(LONGEST_TAIL).filter(char::is_ascii_alphanumeric).take(12).collect();
    letters.into_iter().rev().collect()
}

/// The id of a call that a server gave none.
pub(super) fn made_id(answer_id: &str, number: usize) -> String {
    format!("call_{}_{number}", tail(answer_id))
}

/// A message that is put together from the parts of its items.
#[derive(Debug, Default)]
pub(super) struct Joined {
    members: Fields,
    content: Option<Content>,
    calls: Vec<Box<RawValue>>,
    /// The ids of calls that were the answer itself: nobody will answer them.
    pub(super) answered: Vec<String>,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Box<RawValue>>),
}

impl Joined {
    /// Adds the parts of an item of this wire.
    pub(super) fn add(&mut self, item: &Item) -> Result<(), serde_json::Error> {
        let fields: Fields = serde_json::from_str(item.raw().get())?;
        for (name, value) in fields.iter() {
            match name {
                "content" => self.add_content(value)?,
                "tool_calls" if !says_nothing(value) => {
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

    /// The members of the message, `role` first; `None` if it says nothing.
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
            // Servers want the member where there is no call.
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
