//! Views of the content blocks of the Messages API.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::Members;
use crate::{Citation, FileRef, HostedOutput, Item, ItemView, RawJson};

/// The key for arguments that are not a JSON object, as the provider documents it.
const NOT_JSON: &str = "INVALID_JSON";

/// The input of a tool call with incomplete arguments or arguments that are not an object.
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
    #[serde(default, borrow)]
    citations: Option<&'a RawValue>,
}

/// Reads a string member.
fn string(raw: Option<&RawValue>) -> Option<String> {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok())
}

fn view(raw: &str) -> ItemView {
    let Ok(block) = serde_json::from_str::<Block<'_>>(raw) else {
        return ItemView::Other { kind: String::new() };
    };
    known(&block).unwrap_or_else(|| ItemView::Other { kind: block.kind.clone().into_owned() })
}

/// The view of a known block type; `None` for an unknown type or shape.
fn known(block: &Block<'_>) -> Option<ItemView> {
    Some(match &*block.kind {
        "text" => ItemView::Text { text: string(block.text)?, citations: citations(block.citations) },
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
        "server_tool_use" | "mcp_tool_use" => ItemView::ServerToolCall {
            id: string(block.id)?,
            name: string(block.name)?,
            input: block.input.map(RawJson::from),
            output: None,
        },
        kind if kind.ends_with("_tool_result") => ItemView::ServerToolResult {
            call_id: string(block.tool_use_id)?,
            kind: kind.to_owned(),
            output: Box::new(output(block)),
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

/// Reads the citations of a text.
fn citations(raw: Option<&RawValue>) -> Vec<Citation> {
    let list: Vec<Members<'_>> = raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
    let citation = |members: &Members<'_>| Citation {
        url: members.read("url").or_else(|| members.read("source")),
        title: members.read("title").or_else(|| members.read("document_title")),
        file: members.read::<String>("file_id").map(|id| FileRef { id, ..FileRef::default() }),
    };
    list.iter().map(citation).collect()
}

/// Reads the output of a hosted tool: an object, or a list of pages or blocks.
fn output(block: &Block<'_>) -> HostedOutput {
    let mut output = HostedOutput {
        is_error: block.is_error.is_some_and(|raw| raw.get() == "true"),
        ..HostedOutput::default()
    };
    let Some(content) = block.content.map(RawValue::get) else { return output };
    if let Ok(members) = serde_json::from_str::<Members<'_>>(content) {
        take_members(&mut output, &members);
    } else if let Ok(list) = serde_json::from_str::<Vec<Members<'_>>>(content) {
        for members in &list {
            take_members(&mut output, members);
        }
    } else if let Ok(text) = serde_json::from_str(content) {
        output.text = text;
    }
    output
}

fn take_members(output: &mut HostedOutput, members: &Members<'_>) {
    let kind: String = members.read("type").unwrap_or_default();
    output.is_error |= kind.ends_with("_error");
    output.error_code = output.error_code.take().or_else(|| members.read("error_code"));
    for name in ["stdout", "text", "error_message"] {
        output.text.push_str(&members.read::<String>(name).unwrap_or_default());
    }
    // The text editor's change of a file.
    if let Some(lines) = members.read::<Vec<String>>("lines") {
        output.text.push_str(&lines.join("\n"));
    }
    if let Some(is_update) = members.read::<bool>("is_file_update") {
        output.text.push_str(if is_update { "The file was replaced." } else { "The file was created." });
    }
    let tools: Vec<Members<'_>> = members.read("tool_references").unwrap_or_default();
    let found: Vec<String> = tools.iter().filter_map(|tool| tool.read("tool_name")).collect();
    output.text.push_str(&found.join("\n"));
    output.stderr.push_str(&members.read::<String>("stderr").unwrap_or_default());
    output.return_code = members.read("return_code").or(output.return_code);
    if let Some(url) = members.read::<String>("url") {
        // The title of a fetched page is in its document.
        let document: Option<Members<'_>> = members.read("content");
        let title = members.read("title").or_else(|| document.and_then(|document| document.read("title")));
        output.sources.push(Citation { url: Some(url), title, file: None });
    }
    let files: Vec<Members<'_>> = members.read("content").unwrap_or_default();
    let ids = files.iter().chain([members]).filter_map(|file| file.read::<String>("file_id"));
    output.files.extend(ids.map(|id| FileRef { id, ..FileRef::default() }));
    if let Some(text) = members.read::<String>("content") {
        output.text.push_str(&text);
    }
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
            ItemView::Text { text: "a".into(), citations: Vec::new() }
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
                output: Box::new(HostedOutput { is_error: true, ..HostedOutput::default() })
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
    fn unknown_blocks_become_other() {
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
