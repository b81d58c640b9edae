//! Imports and exports conversations as Chat Completions messages, `[{"role": …}, …]`.
//!
//! ```
//! use serde_json::json;
//! use toolpost_llm::messages;
//!
//! # fn main() -> Result<(), toolpost_llm::ModelError> {
//! let messages = json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello."}]);
//! let imported = messages::import(&messages)?;
//! assert_eq!(imported.system.as_deref(), Some("Be kind."));
//! let exported = messages::export(imported.system.as_deref(), &imported.turns)?;
//! assert_eq!(exported.messages, messages);
//! # Ok(())
//! # }
//! ```

use serde_json::Value;

use crate::fields::Fields;
use crate::wires::chat::{items_of, write_messages};
use crate::{
    AssistantTurn, ErrorKind, ItemView, Media, MediaSource, ModelError, ModelId, Part, RawJson, ToolResult,
    Turn,
};

/// The provider of imported messages.
const PROVIDER: &str = "openai-compatible";

/// An imported conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The instructions: the texts of the leading system messages.
    pub system: Option<String>,
    /// The turns.
    pub turns: Vec<Turn>,
}

/// An exported conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Exported {
    /// The list of messages.
    pub messages: Value,
    /// Items that the format cannot represent, such as a provider's thinking.
    pub dropped: Vec<String>,
}

/// Exports a conversation as messages.
///
/// Texts and tool calls of any provider are exported. Items in a provider's private format are dropped and reported. An
/// item that is not valid JSON of its wire is an error.
pub fn export(system: Option<&str>, turns: &[Turn]) -> Result<Exported, ModelError> {
    let model = ModelId::new(PROVIDER, "messages");
    let invalid = |error: serde_json::Error| ModelError::new(ErrorKind::InvalidRequest, error.to_string());
    let (out, dropped) = write_messages(&model, system, turns).map_err(invalid)?;
    let messages = out.into_raw().and_then(|raw| raw.to_value()).map_err(invalid)?;
    Ok(Exported { messages, dropped })
}

/// Imports messages as a conversation. The error names an invalid message.
///
/// Unknown members of the assistant's messages are preserved for servers of the same wire. Tool results get the names of
/// their calls. A result without a call is an error, because no provider accepts it.
pub fn import(messages: &Value) -> Result<Imported, ModelError> {
    let wrong = |what: String| ModelError::new(ErrorKind::InvalidRequest, what);
    let Value::Array(list) = messages else {
        return Err(wrong("messages: expected a list of messages".to_owned()));
    };
    let mut turns: Vec<Turn> = Vec::new();
    let mut system: Vec<String> = Vec::new();
    let mut calls: std::collections::HashMap<String, String> = std::collections::HashMap::new();
    for (number, message) in list.iter().enumerate() {
        let at = |what: String| wrong(format!("messages[{number}]: {what}"));
        let content = &message["content"];
        match message["role"].as_str() {
            Some("system" | "developer") => {
                let parts = parts_of(content).map_err(at)?;
                match texts_of(&parts) {
                    Some(text) if turns.is_empty() => system.push(text),
                    _ => turns.push(Turn::System(parts)),
                }
            }
            Some("user") => turns.push(Turn::User(parts_of(content).map_err(at)?)),
            Some("assistant") => {
                let fields: Fields =
                    serde_json::from_str(&message.to_string()).map_err(|error| at(error.to_string()))?;
                let items = items_of(&fields, &number.to_string()).map_err(|error| at(error.to_string()))?;
                for item in &items {
                    if let ItemView::ToolCall { id, name, .. } = item.view() {
                        calls.insert(id.clone(), name.clone());
                    }
                }
                turns.push(Turn::Assistant(AssistantTurn {
                    origin: ModelId::new(PROVIDER, "messages"),
                    items,
                    provider_state: serde_json::Map::new(),
                }));
            }
            Some("tool") => {
                let id = message["tool_call_id"]
                    .as_str()
                    .ok_or_else(|| at("`tool_call_id`: expected the id of a call".to_owned()))?;
                let name = calls
                    .get(id)
                    .ok_or_else(|| at(format!("no earlier message has a call with the id `{id}`")))?;
                let result = ToolResult {
                    call_id: id.to_owned(),
                    name: name.clone(),
                    content: parts_of(content).map_err(at)?,
                    structured: None,
                    is_error: false,
                };
                match turns.last_mut() {
                    Some(Turn::ToolResults(results)) => results.push(result),
                    _ => turns.push(Turn::ToolResults(vec![result])),
                }
            }
            Some(other) => {
                return Err(at(format!(
                    "`role`: expected system, developer, user, assistant or tool, found `{other}`"
                )));
            }
            None => return Err(at("`role`: expected a text".to_owned())),
        }
    }
    let system = (!system.is_empty()).then(|| system.join("\n\n"));
    Ok(Imported { system, turns })
}

fn texts_of(parts: &[Part]) -> Option<String> {
    let texts: Option<Vec<&str>> = parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    texts.map(|texts| texts.join("\n"))
}

fn parts_of(content: &Value) -> Result<Vec<Part>, String> {
    match content {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![Part::text(text)]),
        Value::Array(parts) => parts.iter().map(part_of).collect(),
        _ => Err("`content`: expected a text or a list of parts".to_owned()),
    }
}

fn part_of(part: &Value) -> Result<Part, String> {
    let members = part.as_object().ok_or_else(|| "a part of `content`: expected an object".to_owned())?;
    let is_plain = |name: &str, inner: &str| {
        members.len() == 2
            && part[name].as_object().is_some_and(|value| value.len() == 1 && value.contains_key(inner))
    };
    Ok(match part["type"].as_str() {
        Some("text") if members.len() == 2 && part["text"].is_string() => {
            Part::text(part["text"].as_str().unwrap_or_default())
        }
        Some("image_url") if is_plain("image_url", "url") => {
            match part["image_url"]["url"].as_str().and_then(media_of) {
                Some(media) => Part::Image(media),
                None => Part::Raw(RawJson::from(part)),
            }
        }
        Some("file") if is_plain("file", "file_id") => match part["file"]["file_id"].as_str() {
            Some(id) => Part::Document(Media::from_file_id("application/octet-stream", id)),
            None => Part::Raw(RawJson::from(part)),
        },
        Some("file") if members.len() == 2 => {
            let data = part["file"]["file_data"].as_str().and_then(media_of);
            let name = part["file"]["filename"].as_str().map(str::to_owned);
            match (data, name) {
                (Some(media @ Media { source: MediaSource::Base64(_), .. }), name @ Some(_)) => {
                    Part::Document(Media { title: name, ..media })
                }
                _ => Part::Raw(RawJson::from(part)),
            }
        }
        _ => Part::Raw(RawJson::from(part)),
    })
}

/// The media of a URL, with the bytes of a `data:` URL.
fn media_of(address: &str) -> Option<Media> {
    let Some(rest) = address.strip_prefix("data:") else {
        return Some(Media::from_url("image/*", address));
    };
    let (kind, data) = rest.split_once(";base64,")?;
    Some(Media { media_type: kind.to_owned(), source: MediaSource::Base64(data.into()), title: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Item;

    #[test]
    fn messages_survive_import_and_export() {
        let given = json!([
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [
                {"type": "text", "text": "See?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
            ]},
            {"role": "assistant", "content": null, "reasoning_content": "Hm.", "x": {"y": [1.0]}, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"a\": 1}"}},
                {"id": "c2", "type": "function", "function": {"name": "look", "arguments": "{"}, "extra": 1}
            ]},
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
            {"role": "system", "content": "Hurry."},
            {"role": "assistant", "content": "Seen."}
        ]);
        let read = import(&given).unwrap();
        let Turn::ToolResults(results) = &read.turns[2] else { panic!("no results") };
        assert_eq!((results.len(), results[1].name.as_str()), (2, "look"));
        let raw = read.turns.iter().map(|turn| match turn {
            Turn::User(parts) => parts.iter().filter(|part| matches!(part, Part::Raw(_))).count(),
            _ => 0,
        });
        assert_eq!(raw.sum::<usize>(), 2, "an image with a detail, and the audio");
        let written = export(read.system.as_deref(), &read.turns).unwrap();
        assert_eq!(written.messages, given);
        assert_eq!(written.dropped, Vec::<String>::new());
    }

    #[test]
    fn dropped_items_are_reported() {
        let origin = ModelId::new("anthropic", "claude-x");
        let long = "toolu_".to_owned() + &"x".repeat(60);
        let item = |view: ItemView| Item::new(view, RawJson::from(&json!({"type": "anthropic"})));
        let call = |id: &str| ItemView::ToolCall {
            id: id.to_owned(),
            name: "look".to_owned(),
            arguments: Ok(RawJson::from(&json!({}))),
        };
        let turns = [
            Turn::Assistant(AssistantTurn {
                provider_state: serde_json::Map::new(),
                origin,
                items: vec![
                    item(ItemView::Thinking { text: "secret".to_owned(), has_signature: true }),
                    item(ItemView::Text { text: "Look.".to_owned(), citations: Vec::new() }),
                    item(call("toolu_1")),
                    item(call(&long)),
                ],
            }),
            Turn::ToolResults(vec![
                ToolResult::text("toolu_1", "look", "a"),
                ToolResult::text(&long, "look", "b"),
            ]),
        ];
        let written = export(None, &turns).unwrap();
        let messages = written.messages.as_array().unwrap();
        assert_eq!(messages[0]["content"], "Look.");
        assert!(!written.messages.to_string().contains("secret"));
        assert_eq!(messages[0]["tool_calls"][0]["id"], messages[1]["tool_call_id"]);
        let short = messages[2]["tool_call_id"].as_str().unwrap();
        assert!(short.len() <= 40);
        assert_eq!(messages[0]["tool_calls"][1]["id"], short);
        assert!(written.dropped[0].contains("anthropic/claude-x"), "{:?}", written.dropped);
    }

    #[test]
    fn the_error_names_an_invalid_message() {
        for (messages, expected) in [
            (json!({}), "expected a list"),
            (json!([{"role": "user", "content": 7}]), "messages[0]: `content`"),
            (json!([{"role": "user", "content": "x"}, {"role": "guest"}]), "messages[1]: `role`"),
            (json!(["x"]), "messages[0]: `role`"),
            (json!([{"role": "tool", "tool_call_id": "c9", "content": ""}]), "no earlier message"),
            (json!([{"role": "tool", "content": ""}]), "`tool_call_id`"),
            (json!([{"role": "user", "content": ["x"]}]), "a part of `content`"),
        ] {
            let error = import(&messages).unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidRequest);
            assert!(error.message.contains(expected), "{error}");
        }
    }
}
