//! Converts results of calls, read resources and rendered prompts, part by part.

use serde_json::{Map, Value, json};
use toolpost_core::{Code, Content, Output, Partial, ToolError};

use super::blocks::{Blocks, known_blocks, plain, repair_details};
use super::notes::Notes;
use super::{MAX_DESCRIPTION, MAX_ERROR, MAX_META, shortened};
use crate::convert::{ERROR, STATUS};

/// Members of results that the protocol has for all methods.
const COMMON: [&str; 4] = ["resultType", "ttlMs", "cacheScope", "_meta"];

/// Converts the result of a call.
///
/// # Errors
/// The error of a failed call.
pub(crate) fn result(result: Value, mut notes: Notes, server: &str) -> Result<Output, ToolError> {
    let mut blocks = Blocks::default();
    let mut fields = match result {
        Value::Object(fields) => fields,
        Value::Null => {
            return Err(ToolError::dependency(format!(
                "the server `{server}` returned null instead of a result"
            )));
        }
        content => {
            blocks.add_all(content, &mut notes);
            return Ok(blocks.finish(Map::new(), &notes));
        }
    };
    repair_details(&mut fields, "the result", &mut notes);
    let is_failed = is_error(fields.shift_remove("isError"), &mut notes);
    let structured = fields.shift_remove("structuredContent").filter(|value| !value.is_null());
    let content = fields.shift_remove("content");
    // The result of the version 2024-10-07.
    let older = fields.shift_remove("toolResult");
    let meta = match fields.shift_remove("_meta") {
        Some(Value::Object(meta)) => meta,
        _ => Map::new(),
    };
    fields.retain(|key, value| !COMMON.contains(&key.as_str()) && !value.is_null());
    let is_bare = content.is_none() && structured.is_none() && older.is_none();
    blocks.add_all(content.unwrap_or_default(), &mut notes);
    if let Some(older) = older {
        blocks.output.content.push(Content::text(plain(&older)));
    }
    blocks.output.structured = structured;
    if is_bare && !fields.is_empty() {
        blocks.output.content.push(Content::text(json!(fields).to_string()));
        notes.add("the result has no `content`; all of it is shown");
    } else if !fields.is_empty() {
        notes.add(format!("the result also has {}", json!(fields)));
    }
    let own_error = meta.get(ERROR).cloned();
    let is_partial = meta.get(STATUS).and_then(Value::as_str) == Some("partial");
    let mut members = Map::new();
    if !meta.is_empty() {
        members.insert("_meta".to_owned(), meta.into());
    }
    let mut output = blocks.finish(members, &notes);
    if is_failed {
        return Err(failed(output, own_error, server));
    }
    if is_partial {
        let error = ToolError::dependency(format!("the server `{server}` reported a partial result"));
        output.partial = Some(Partial { succeeded: 1, errors: vec![error] });
    }
    Ok(output)
}

/// Whether a result is an error, in any spelling.
fn is_error(value: Option<Value>, notes: &mut Notes) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") || text == "1" => true,
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") || text.is_empty() || text == "0" => {
            false
        }
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(other) => {
            let found = shortened(&other.to_string(), 80);
            notes.add(format!("`isError` is {found}; the result is treated as a success"));
            false
        }
    }
}

/// The error of a failed call. The text of a foreign server becomes the message.
fn failed(output: Output, own: Option<Value>, server: &str) -> ToolError {
    if let Some(error) = own.and_then(|error| serde_json::from_value::<ToolError>(error).ok()) {
        return error.map_text(|text| shortened(text, MAX_ERROR), MAX_META);
    }
    let text = shortened(output.to_text().trim(), MAX_ERROR);
    let is_media = |content: &&Content| matches!(content, Content::Image { .. } | Content::Audio { .. });
    let media = output.content.iter().filter(is_media).count();
    let message = match (text.as_str(), media) {
        ("", 0) => format!("a tool of the server `{server}` failed without a message"),
        ("", media) => {
            format!("a tool of the server `{server}` failed with {media} images or sounds as its message")
        }
        (_, 0) => text,
        (_, media) => format!("{text} [and {media} images or sounds]"),
    };
    ToolError::new(Code::Precondition, message).with("tool_failed", true).with_failed_output(output)
}

/// Converts the result of reading a resource with this URI.
///
/// # Errors
/// The server returned nothing.
pub(crate) fn read(result: Value, mut notes: Notes, uri: &str, server: &str) -> Result<Output, ToolError> {
    let mut blocks = Blocks::default();
    let mut fields = match result {
        Value::Object(fields) => fields,
        Value::Null => {
            return Err(ToolError::dependency(format!("the server `{server}` returned no contents")));
        }
        contents => Map::from_iter([("contents".to_owned(), contents)]),
    };
    repair_details(&mut fields, "the result", &mut notes);
    let contents = match (fields.shift_remove("contents"), fields.shift_remove("content")) {
        (Some(contents), None) => contents,
        // `content` is the member of the results of calls.
        (None, Some(content)) => content,
        (Some(contents), Some(content)) => {
            fields.insert("content".to_owned(), content);
            contents
        }
        // The item itself.
        (None, None) if fields.contains_key("text") || fields.contains_key("blob") => {
            Value::Object(std::mem::take(&mut fields))
        }
        (None, None) => {
            let found = shortened(&json!(fields).to_string(), MAX_ERROR);
            return Err(ToolError::dependency(format!(
                "the server `{server}` returned a result without `contents`: {found}"
            )));
        }
    };
    match contents {
        Value::Array(items) => items.into_iter().for_each(|item| blocks.add_contents(item, uri, &mut notes)),
        item => blocks.add_contents(item, uri, &mut notes),
    }
    let members = fields.shift_remove("_meta").map(|meta| ("_meta".to_owned(), meta)).into_iter().collect();
    add_others(fields, &mut notes);
    Ok(blocks.finish(members, &notes))
}

/// Notes the members of a result that are not used.
fn add_others(mut fields: Map<String, Value>, notes: &mut Notes) {
    fields.retain(|key, value| !COMMON.contains(&key.as_str()) && !value.is_null());
    if !fields.is_empty() {
        notes.add(format!("the result also has {}", json!(fields)));
    }
}

/// Converts a rendered prompt: messages as structured value, texts as content.
///
/// # Errors
/// The server returned no messages.
pub(crate) fn rendered(result: Value, mut notes: Notes, server: &str) -> Result<Output, ToolError> {
    let mut fields = match result {
        Value::Object(fields) => fields,
        Value::Null => {
            return Err(ToolError::dependency(format!("the server `{server}` returned no messages")));
        }
        messages => Map::from_iter([("messages".to_owned(), messages)]),
    };
    repair_details(&mut fields, "the result", &mut notes);
    let items = match fields.shift_remove("messages") {
        Some(Value::Array(items)) => items,
        Some(Value::Null) | None => {
            let found = shortened(&json!(fields).to_string(), MAX_ERROR);
            return Err(ToolError::dependency(format!(
                "the server `{server}` returned a prompt without messages: {found}"
            )));
        }
        Some(item) => vec![item],
    };
    let description = fields.shift_remove("description").filter(|text| !text.is_null());
    let members = fields.shift_remove("_meta").map(|meta| ("_meta".to_owned(), meta)).into_iter().collect();
    add_others(fields, &mut notes);
    let mut blocks = Blocks::default();
    let mut messages = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("message {}", index + 1);
        let (role, content) = message(item, &place, &mut notes);
        let content = match content {
            Value::Array(blocks) => blocks,
            block => vec![block],
        };
        for block in content {
            for block in known_blocks(block, &place, &mut notes) {
                messages.push(json!({ "role": role, "content": block }));
                blocks.add_known(block);
            }
        }
    }
    let mut value = json!({ "messages": messages });
    if let Some(description) = description {
        value["description"] = shortened(&plain(&description), MAX_DESCRIPTION).into();
    }
    notes.log("a rendered prompt");
    let mut output = blocks.finish(members, &notes);
    output.structured = Some(value);
    Ok(output)
}

/// The role and the content of a message.
fn message(item: Value, place: &str, notes: &mut Notes) -> (&'static str, Value) {
    let mut fields = match item {
        Value::Object(fields) if fields.contains_key("content") => fields,
        // A block without a message around it.
        block => return ("user", block),
    };
    let role = match fields.shift_remove("role") {
        Some(Value::String(role)) if role.eq_ignore_ascii_case("assistant") => "assistant",
        Some(Value::String(role)) if role.eq_ignore_ascii_case("user") => "user",
        None | Some(Value::Null) => {
            notes.add(format!("{place} has no role; `user` is assumed"));
            "user"
        }
        Some(other) => {
            let role = shortened(&plain(&other), 80);
            notes.add(format!("{place} has the unknown role `{role}`; `user` is assumed"));
            "user"
        }
    };
    let content = fields.shift_remove("content").unwrap_or_default();
    fields.retain(|_, value| !value.is_null());
    if !fields.is_empty() {
        notes.add(format!("{place} also has {}", json!(fields)));
    }
    (role, content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: Value) -> Result<Output, ToolError> {
        result(value, Notes::default(), "srv")
    }

    /// The text of the content of a call.
    fn text(value: Value) -> String {
        of(value).map_or_else(
            |error| format!("error: {}", error.message()),
            |output| output.to_text().into_owned(),
        )
    }

    #[test]
    fn content_of_every_kind_is_converted() {
        let output = of(json!({
            "content": [
                { "type": "text", "text": "t" },
                { "type": "image", "data": "AA==", "mimeType": "image/png" },
                { "type": "audio", "data": "AA==", "mimeType": "audio/wav" },
                { "type": "resource_link", "uri": "x://l", "name": "l" },
                { "type": "resource", "resource": { "uri": "x://t", "mimeType": "text/css", "text": "css" } },
                { "type": "resource", "resource": { "uri": "x://i", "mimeType": "image/gif", "blob": "AA==" } },
                { "type": "resource", "resource": { "uri": "x://../b/.data.bin", "blob": "AQI=" } },
            ],
            "structuredContent": [1],
        }))
        .unwrap();
        let kinds: Vec<String> = output
            .content
            .iter()
            .map(|c| serde_json::to_value(c).unwrap()["type"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(kinds, ["text", "image", "audio", "resource", "resource", "image", "resource"]);
        assert_eq!(output.structured, Some(json!([1])));
        let [artifact] = output.artifacts.as_slice() else { panic!("{:?}", output.artifacts) };
        assert_eq!((artifact.name.as_str(), artifact.size), ("1-data.bin", 2));
    }

    /// One block in each form, and the text that a model gets.
    #[test]
    fn a_deviating_block_is_used_or_shown_with_a_note() {
        let note = |text: &str, note: &str| format!("{text}\n[note: content block 1 {note}]");
        let unknown = |kind: &str| format!("has the unknown type `{kind}` and is shown as text");
        let video = r#"{"type":"video","uri":"x://v"}"#;
        let table = [
            (json!("t"), "t".to_owned()),
            (json!(5), "5".to_owned()),
            (json!(["a"]), r#"["a"]"#.to_owned()),
            (json!({ "type": "text", "text": 5 }), "5".to_owned()),
            (json!({ "type": "text", "text": { "a": [1] } }), r#"{"a":[1]}"#.to_owned()),
            (json!({ "type": "text", "text": null }), String::new()),
            (json!({ "type": "TEXT", "text": "t" }), "t".to_owned()),
            (json!({ "text": "t" }), "t".to_owned()),
            (json!({ "type": null, "text": "t" }), "t".to_owned()),
            (json!({ "type": "text", "text": "t", "annotations": null, "_meta": null }), "t".to_owned()),
            (json!({ "type": "text", "text": "t", "_meta": [] }), "t".to_owned()),
            (json!({ "type": "text", "text": "t", "annotations": { "audience": "user" } }), "t".to_owned()),
            (json!({ "type": "text", "text": "t", "annotations": { "priority": "0.5" } }), "t".to_owned()),
            (json!({ "type": "error", "text": "no" }), note("no", &unknown("error"))),
            (json!({ "type": "video", "uri": "x://v" }), note(video, &unknown("video"))),
            (json!({ "type": 3, "text": "t" }), note("t", &unknown("3"))),
            (json!({ "a": 1 }), note(r#"{"a":1}"#, "has no type and is shown as JSON")),
            (
                json!({ "type": "text", "text": "t", "annotations": { "priority": "high" } }),
                "t\n[note: content block 1: dropped the invalid `priority` \"high\"]".to_owned(),
            ),
            (
                json!({ "type": "text", "text": "t", "annotations": { "audience": ["user", "admin"] } }),
                "t\n[note: content block 1: dropped the unknown roles [\"admin\"] of `audience`]".to_owned(),
            ),
            (
                json!({ "type": "text", "text": "t", "annotations": [1], "_meta": "m" }),
                "t\n[note: content block 1: dropped the invalid `_meta` \"m\"]\n\
                 [note: content block 1: dropped the invalid `annotations` [1]]"
                    .to_owned(),
            ),
            (json!({ "type": "resource_link", "uri": "x://y" }), "x://y".to_owned()),
            (json!({ "type": "resourceLink", "uri": "x://y", "name": null, "title": 7 }), "x://y".to_owned()),
            (json!({ "type": "resource_link", "uri": "x://y", "name": "y", "size": 12.0 }), "x://y".to_owned()),
            (json!({ "type": "resource_link", "uri": "x://y", "name": "y", "size": "12" }), "x://y".to_owned()),
            (
                json!({ "type": "resource_link", "uri": "x://y", "name": "y", "size": -1 }),
                "x://y\n[note: content block 1: dropped the invalid `size` -1]".to_owned(),
            ),
            (
                json!({ "type": "resource_link", "uri": "x://y", "name": "y", "icons": "i.png" }),
                "x://y\n[note: content block 1: dropped the invalid `icons` \"i.png\"]".to_owned(),
            ),
            (
                json!({ "type": "resource_link", "name": "y" }),
                note(r#"{"type":"resource_link","name":"y"}"#, "is invalid and shown as JSON"),
            ),
            (json!({ "type": "resource", "resource": { "uri": "x://y", "text": "t" } }), "t".to_owned()),
            (json!({ "type": "resource", "uri": "x://y", "text": "t" }), "t".to_owned()),
            (json!({ "type": "resource", "resource": { "uri": "x://y", "text": { "a": 1 } } }), r#"{"a":1}"#.to_owned()),
            (json!({ "type": "resource", "resource": { "uri": "x://y", "blob": "AQI=", "text": "t" } }), "t\nx://y".to_owned()),
            (
                json!({ "type": "resource", "resource": { "uri": "x://y", "blob": "not base64" } }),
                "not base64\n[note: content block 1: the bytes are not base64 and are shown as text]".to_owned(),
            ),
            (
                json!({ "type": "resource", "resource": { "text": "t" } }),
                "t\n[note: content block 1: the resource has no `uri`]".to_owned(),
            ),
            (
                json!({ "type": "resource", "resource": "x://y" }),
                "\n[note: content block 1: the resource has neither text nor bytes]".to_owned(),
            ),
            (
                json!({ "type": "image", "data": "AA==" }),
                "[note: content block 1 is of the type `image` and has no `mimeType`]".to_owned(),
            ),
            (json!({ "type": "image", "data": "iVBORw0KGgoAAA" }), String::new()),
            (json!({ "type": "image", "data": "AA==", "mime_type": "image/png" }), String::new()),
            (
                json!({ "type": "image", "mimeType": "image/png" }),
                "[note: content block 1 is of the type `image` and has no data: {\"type\":\"image\",\"mimeType\":\"image/png\"}]"
                    .to_owned(),
            ),
        ];
        for (block, expected) in table {
            let shown = block.to_string();
            assert_eq!(text(json!({ "content": [block] })), expected, "{shown}");
        }
        let media = |block: Value| of(json!({ "content": [block] })).unwrap().content;
        let png = |data: &str| Content::Image { media_type: "image/png".to_owned(), data: data.to_owned() };
        assert_eq!(media(json!({ "type": "image", "data": "iVBORw0KGgoAAA" })), [png("iVBORw0KGgoAAA")]);
        assert_eq!(media(json!({ "type": "image", "data": "data:image/png;base64,AA==" })), [png("AA==")]);
        assert_eq!(media(json!({ "data": "AA==", "mime_type": "image/png" })), [png("AA==")]);
    }

    #[test]
    fn a_deviating_result_is_used_or_shown_with_a_note() {
        let t = json!([{ "type": "text", "text": "t" }]);
        for (result, expected) in [
            (json!({ "content": "t" }), "t"),
            (json!({ "content": { "type": "text", "text": "t" } }), "t"),
            (json!({ "content": ["t", null] }), "t"),
            (json!({ "content": null, "structuredContent": { "a": 1 } }), r#"{"a":1}"#),
            (json!({ "toolResult": "t" }), "t"),
            (json!({ "toolResult": { "a": 1 } }), r#"{"a":1}"#),
            (json!("t"), "t"),
            (json!([{ "type": "text", "text": "t" }]), "t"),
            (
                json!({ "answer": "t" }),
                "{\"answer\":\"t\"}\n[note: the result has no `content`; all of it is shown]",
            ),
            (json!({ "content": t, "took": 5 }), "t\n[note: the result also has {\"took\":5}]"),
            (json!({ "content": t, "_meta": [] }), "t"),
            (
                json!({ "content": t, "_meta": "m" }),
                "t\n[note: the result: dropped the invalid `_meta` \"m\"]",
            ),
            (json!({ "content": t, "isError": "false" }), "t"),
            (json!({ "content": t, "isError": 0 }), "t"),
            (json!({ "content": t, "isError": null }), "t"),
            (
                json!({ "content": t, "isError": "no" }),
                "t\n[note: `isError` is \"no\"; the result is treated as a success]",
            ),
            (json!({ "content": t, "isError": "true" }), "error: t"),
            (json!({ "content": t, "isError": 1 }), "error: t"),
            (json!({ "content": "t", "isError": true }), "error: t"),
            (
                json!({ "content": [{ "type": "error", "text": "t" }], "isError": true }),
                "error: t\n[note: content block 1 has the unknown type `error` and is shown as text]",
            ),
            (json!({ "structuredContent": { "a": 1 }, "isError": true }), r#"error: {"a":1}"#),
            (json!(null), "error: the server `srv` returned null instead of a result"),
        ] {
            let shown = result.to_string();
            assert_eq!(text(result), expected, "{shown}");
        }
        let many: Vec<Value> = (0..100).map(|index| json!({ "type": format!("t{index}") })).collect();
        let text = text(json!({ "content": many }));
        assert!(text.ends_with("[note: 90 further notes are omitted]"), "{text}");
    }

    #[test]
    fn a_deviating_prompt_is_rendered() {
        let text = |text: &str| json!({ "type": "text", "text": text });
        let user = |content: Value| json!([{ "role": "user", "content": content }]);
        for (messages, expected, noted) in [
            (json!([{ "role": "user", "content": text("t") }]), user(text("t")), ""),
            (json!([{ "role": "user", "content": "t" }]), user(text("t")), ""),
            (json!({ "role": "user", "content": "t" }), user(text("t")), ""),
            (json!("t"), user(text("t")), ""),
            (json!([{ "role": "User", "content": [text("t")] }]), user(text("t")), ""),
            (json!([{ "role": "system", "content": "t" }]), user(text("t")), "unknown role `system`"),
            (json!([{ "content": text("t") }]), user(text("t")), "no role"),
            (json!([text("t")]), user(text("t")), ""),
            (
                json!([{ "role": "assistant", "content": [text("a"), text("b")], "name": "n" }]),
                json!([{ "role": "assistant", "content": text("a") }, { "role": "assistant", "content": text("b") }]),
                "also has",
            ),
            (
                json!([{ "role": "user", "content": { "type": "video", "uri": "x://v" } }]),
                user(text(r#"{"type":"video","uri":"x://v"}"#)),
                "unknown type `video`",
            ),
        ] {
            let shown = messages.to_string();
            let output = rendered(json!({ "messages": messages }), Notes::default(), "srv").unwrap();
            assert_eq!(output.structured.as_ref().unwrap()["messages"], expected, "{shown}");
            let text = output.to_text();
            assert!(text.contains(noted) && text.contains("[note") != noted.is_empty(), "{shown}: {text}");
        }
        let missing = rendered(json!({ "prompt": "t" }), Notes::default(), "srv").unwrap_err();
        assert!(missing.message().contains(r#"{"prompt":"t"}"#), "{missing}");
    }

    #[test]
    fn deviating_contents_are_read() {
        for (result, expected) in [
            (json!({ "contents": [{ "uri": "x://a", "text": "t" }] }), "t"),
            (json!({ "contents": { "uri": "x://a", "text": "t" } }), "t"),
            (json!({ "contents": "t" }), "t"),
            (json!({ "contents": ["t"] }), "t"),
            (json!({ "content": [{ "text": "t" }] }), "t"),
            (json!({ "uri": "x://a", "text": "t" }), "t"),
            (json!([{ "text": "t", "mimeType": null }]), "t"),
            (json!({ "contents": [{ "uri": "x://a", "text": { "a": 1 }, "_meta": [] }] }), r#"{"a":1}"#),
            (json!({ "contents": [{ "uri": "x://a", "blob": "AQI=" }] }), "x://a"),
            (
                json!({ "contents": [{ "uri": "x://a" }] }),
                "\n[note: item 1 of the contents: the resource has neither text nor bytes]",
            ),
        ] {
            let shown = result.to_string();
            let output = read(result, Notes::default(), "x://a", "srv").unwrap();
            assert_eq!(output.to_text(), expected, "{shown}");
        }
        let error = read(json!({ "data": 1 }), Notes::default(), "x://a", "srv").unwrap_err();
        assert!(error.message().contains(r#"{"data":1}"#), "{error}");
    }

    #[test]
    fn a_toolpost_error_keeps_all_fields_and_a_foreign_error_its_text() {
        let sent = ToolError::conflict("taken").suggest("Wait.").with("by", "ada");
        let ours = json!({
            "content": [{ "type": "text", "text": "CONFLICT: taken" }], "isError": true,
            "_meta": { ERROR: serde_json::to_value(&sent).unwrap() },
        });
        assert_eq!(of(ours).unwrap_err(), sent);
        let error = of(json!({ "content": [{ "type": "text", "text": "no such city" }], "isError": true }))
            .unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::Precondition, "no such city"));
        let silent = of(json!({ "content": [], "isError": true })).unwrap_err();
        assert!(silent.message().contains("without a message"));
    }
}
