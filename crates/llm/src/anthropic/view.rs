//! What a content block of the Messages API means.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Item, ItemView, RawJson};

/// The key under which the provider wants arguments that are not a JSON object: its documentation asks for a valid
/// object around the text.
const NOT_JSON: &str = "INVALID_JSON";

/// The input of a tool call whose arguments the model did not finish, or did not write as a JSON object.
pub(super) fn wrapped_input(text: &str) -> RawJson {
    (&serde_json::json!({ NOT_JSON: text })).into()
}

/// The item of a content block.
pub(super) fn item(raw: RawJson) -> Item {
    Item::new(view(raw.get()), raw)
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(default, borrow)]
    text: Option<&'a RawValue>,
    #[serde(default, borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(default, borrow)]
    signature: Option<&'a RawValue>,
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    name: Option<&'a RawValue>,
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tool_use_id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    is_error: Option<&'a RawValue>,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
}

/// A member that should be a string.
fn string(raw: Option<&RawValue>) -> Option<String> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}

fn view(raw: &str) -> ItemView {
    let Ok(block) = serde_json::from_str::<Block<'_>>(raw) else {
        return ItemView::Other { kind: String::new() };
    };
    known(&block).unwrap_or_else(|| ItemView::Other { kind: block.kind.clone().into_owned() })
}

/// `None` if the kind is unknown, or known but of another shape.
fn known(block: &Block<'_>) -> Option<ItemView> {
    Some(match &*block.kind {
        "text" => ItemView::Text { text: string(block.text)? },
        "thinking" => ItemView::Thinking {
            text: string(block.thinking)?,
            has_signature: string(block.signature).is_some_and(|signature| !signature.is_empty()),
        },
        "redacted_thinking" => ItemView::Thinking { text: String::new(), has_signature: true },
        "tool_use" => ItemView::ToolCall {
            id: string(block.id)?,
            name: string(block.name)?,
            arguments: arguments(block.input?),
        },
        "server_tool_use" | "mcp_tool_use" => {
            ItemView::ServerToolCall { id: string(block.id)?, name: string(block.name)? }
        }
        kind if kind.ends_with("_tool_result") => ItemView::ServerToolResult {
            call_id: string(block.tool_use_id)?,
            kind: kind.to_owned(),
            is_error: failed(block),
        },
        _ => return None,
    })
}

fn arguments(input: &RawValue) -> Result<RawJson, String> {
    if let Some(rest) = input.get().strip_prefix('{')
        && rest.trim_start().starts_with("\"INVALID_JSON\"")
        && let Ok(map) = serde_json::from_str::<std::collections::HashMap<String, String>>(input.get())
        && let (1, Some(text)) = (map.len(), map.get(NOT_JSON))
    {
        return Err(text.clone());
    }
    Ok(input.into())
}

/// Whether a hosted tool failed: its result says so itself, or its content is of an error type.
fn failed(block: &Block<'_>) -> bool {
    #[derive(Deserialize)]
    struct Content {
        #[serde(rename = "type")]
        kind: String,
    }
    let said = block.is_error.is_some_and(|raw| raw.get() == "true");
    let content = block.content.and_then(|raw| serde_json::from_str::<Content>(raw.get()).ok());
    said || content.is_some_and(|content| content.kind.ends_with("_error"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_of(text: &str) -> ItemView {
        item(RawJson::parse(text).unwrap()).view().clone()
    }

    #[test]
    fn known_blocks_have_their_view() {
        assert_eq!(
            view_of(r#"{"type":"text","text":"a","citations":null}"#),
            ItemView::Text { text: "a".into() }
        );
        assert_eq!(
            view_of(r#"{"type":"thinking","thinking":"","signature":"s"}"#),
            ItemView::Thinking { text: String::new(), has_signature: true }
        );
        assert_eq!(
            view_of(
                r#"{"type":"web_search_tool_result","tool_use_id":"1","content":{"type":"web_search_tool_result_error"}}"#
            ),
            ItemView::ServerToolResult {
                call_id: "1".into(),
                kind: "web_search_tool_result".into(),
                is_error: true
            }
        );
    }

    #[test]
    fn arguments_keep_every_digit() {
        let ItemView::ToolCall { arguments, .. } = view_of(
            r#"{"type":"tool_use","id":"1","name":"t","input":{"x":1.0,"y":123456789012345678901234567890}}"#,
        ) else {
            panic!("not a tool call")
        };
        assert_eq!(arguments.unwrap().get(), r#"{"x":1.0,"y":123456789012345678901234567890}"#);
    }

    #[test]
    fn arguments_that_are_not_json_are_text() {
        let raw =
            format!(r#"{{"type":"tool_use","id":"1","name":"t","input":{}}}"#, wrapped_input("{\"a\": \"b"));
        let ItemView::ToolCall { arguments, .. } = view_of(&raw) else { panic!("not a tool call") };
        assert_eq!(arguments, Err("{\"a\": \"b".into()));
    }

    #[test]
    fn anything_else_is_kept_as_other() {
        for (text, kind) in [
            (r#"{"type":"hologram","x":1}"#, "hologram"),
            (r#"{"type":"text","text":7}"#, "text"),
            (r#"{"type":"tool_use","id":"1"}"#, "tool_use"),
            ("7", ""),
            ("{}", ""),
        ] {
            assert_eq!(view_of(text), ItemView::Other { kind: kind.into() }, "{text}");
        }
    }
}
