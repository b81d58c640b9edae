//! Converts MCP tools, results, errors, resources and prompts of servers.

use base64::Engine as _;
use rmcp::model::{
    CallToolResult, ContentBlock, ErrorCode, ErrorData, GetPromptResult, MetaObject, Prompt,
    ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Tool,
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use toolpost_core::{
    Annotations, Approval, Artifact, Code, Content, Output, Partial, PromptSpec, ResourceSpec, ToolError,
    ToolSpec, check_tool_name, hex,
};

use super::{ERROR, STATUS};

/// The meta key of a spec for the original tool name at the server.
pub(crate) const ORIGINAL: &str = "mcp_name";

/// The longest tool name.
const MAX_NAME: usize = 64;
/// The longest description, in characters; longer ones are truncated.
const MAX_DESCRIPTION: usize = 16_000;
/// The longest title, media type or URI, in characters.
const MAX_SHORT: usize = 2_000;
/// The largest `_meta` of one item, in bytes of JSON; larger ones are dropped.
const MAX_META: usize = 16 << 10;
/// The longest error, in characters.
const MAX_ERROR: usize = 8_000;
/// The nesting depth of a schema; tools with deeper ones are skipped.
const MAX_SCHEMA_DEPTH: usize = 64;
/// The largest schema, in bytes of JSON; tools with larger ones are skipped.
const MAX_SCHEMA_BYTES: usize = 256 << 10;
/// The most arguments of one prompt.
const MAX_ARGUMENTS: usize = 200;

/// Truncates a text to a number of characters.
pub(crate) fn shortened(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// A valid tool name for a foreign name: the name itself, or a stable derived name with a hash so that two
/// foreign names never collide.
pub(crate) fn tool_name(original: &str) -> String {
    if check_tool_name(original).is_ok() {
        return original.to_owned();
    }
    let digest = hex(Sha256::digest(original.as_bytes()));
    let tail = digest.get(..8).unwrap_or_default();
    let mut name = String::new();
    for letter in original.chars().take(MAX_NAME) {
        match letter {
            letter if letter.is_ascii_alphanumeric() || letter == '-' => name.push(letter),
            _ if name.ends_with('_') => {}
            _ => name.push('_'),
        }
    }
    if !name.starts_with(|first: char| first.is_ascii_alphabetic()) {
        name.insert_str(0, if name.starts_with('_') { "t" } else { "t_" });
    }
    name.truncate(MAX_NAME - 1 - tail.len());
    format!("{}_{tail}", name.trim_end_matches('_'))
}

/// Converts a tool. Returns the spec and the original name.
///
/// # Errors
/// The reason why the tool is skipped.
pub(crate) fn tool(tool: Tool, server: &str) -> Result<(ToolSpec, String), String> {
    let original = tool.name.into_owned();
    if original.is_empty() || original.chars().count() > 256 || original.contains(char::is_control) {
        return Err("its name is empty, longer than 256 characters, or has control characters".to_owned());
    }
    let checked = |kind: &str, schema: &Map<String, Value>| {
        let mut schema = Value::Object(schema.clone());
        check_schema(&schema).map_err(|why| format!("its {kind} schema {why}"))?;
        drop_external_refs(&mut schema);
        Ok::<_, String>(schema)
    };
    let mut input = checked("input", &tool.input_schema)?;
    match input.get("type").and_then(Value::as_str) {
        Some("object") => {}
        None => input["type"] = "object".into(),
        Some(other) => return Err(format!("its input schema is of type `{other}`, expected `object`")),
    }
    let output = tool.output_schema.map(|schema| checked("output", &schema)).transpose()?;
    let title = tool.title.or_else(|| tool.annotations.as_ref()?.title.clone());
    let title = title.map(|title| shortened(&title, MAX_SHORT));
    let own = tool.description.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let description = match own {
        Some(text) => shortened(text, MAX_DESCRIPTION),
        None => match &title {
            Some(title) => title.clone(),
            None => format!("A tool of the server `{server}` without a description."),
        },
    };
    let mut spec = ToolSpec::new(tool_name(&original), description).input(input);
    if let Some(schema) = output {
        spec = spec.output(schema);
    }
    spec.title = title;
    if let Some(hints) = tool.annotations {
        spec.annotations = Annotations {
            read_only: hints.read_only_hint == Some(true),
            // A missing hint does not make a tool destructive.
            destructive: hints.destructive_hint == Some(true) && hints.read_only_hint != Some(true),
            idempotent: hints.idempotent_hint == Some(true),
            open_world: hints.open_world_hint != Some(false),
        };
    } else {
        spec.annotations.open_world = true;
    }
    if spec.annotations.destructive {
        spec.policy.approval = Some(Approval::Ask);
    }
    spec.meta = meta(tool.meta);
    if spec.name != original {
        spec.meta.insert(ORIGINAL.to_owned(), original.as_str().into());
    }
    Ok((spec, original))
}

/// The `_meta` entries with a prefix, as MCP requires.
fn meta(meta: Option<MetaObject>) -> Map<String, Value> {
    let fields = meta.map(|meta| meta.0).unwrap_or_default();
    let known: Map<String, Value> = fields.into_iter().filter(|(key, _)| key.contains('/')).collect();
    if serde_json::to_string(&known).map_or(0, |text| text.len()) > MAX_META { Map::new() } else { known }
}

fn check_schema(schema: &Value) -> Result<(), String> {
    if depth(schema) > MAX_SCHEMA_DEPTH {
        return Err(format!("is nested more than {MAX_SCHEMA_DEPTH} deep"));
    }
    let size = serde_json::to_string(schema).map_or(usize::MAX, |text| text.len());
    if size > MAX_SCHEMA_BYTES {
        return Err(format!("has {size} bytes, more than the limit of {MAX_SCHEMA_BYTES}"));
    }
    Ok(())
}

/// The nesting depth of a value. The parser bounds the recursion.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Removes references to external documents: nothing is ever fetched for a schema.
fn drop_external_refs(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(drop_external_refs),
        Value::Object(fields) => {
            for key in ["$ref", "$dynamicRef"] {
                let is_foreign =
                    fields.get(key).and_then(Value::as_str).is_some_and(|address| !address.starts_with('#'));
                if is_foreign && let Some(Value::String(address)) = fields.shift_remove(key) {
                    let comment = format!("The external reference {} was removed.", shortened(&address, 200));
                    fields.insert("$comment".to_owned(), comment.into());
                }
            }
            fields.values_mut().for_each(drop_external_refs);
        }
        _ => {}
    }
}

/// Converts the result of a call.
pub(crate) fn result(result: CallToolResult, server: &str) -> Result<Output, ToolError> {
    if result.is_error == Some(true) {
        return Err(failed(&result, server));
    }
    let mut output = contents(result.content);
    output.structured = result.structured_content.filter(|value| !value.is_null());
    let status = result.meta.as_ref().and_then(|meta| meta.0.get(STATUS)).and_then(Value::as_str);
    if status == Some("partial") {
        let error = ToolError::dependency(format!("the server `{server}` reported a partial result"));
        output.partial = Some(Partial { succeeded: 1, errors: vec![error] });
    }
    Ok(output)
}

/// The error of a failed call. The text of a foreign server becomes the message.
fn failed(result: &CallToolResult, server: &str) -> ToolError {
    let sent = result.meta.as_ref().and_then(|meta| meta.0.get(ERROR));
    if let Some(error) = sent.and_then(|error| serde_json::from_value::<ToolError>(error.clone()).ok()) {
        return error.map_text(|text| shortened(text, MAX_ERROR), MAX_META);
    }
    let texts: Vec<&str> = result
        .content
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Text(text) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    let text = shortened(texts.join("\n").trim(), MAX_ERROR);
    let message = match (text.as_str(), &result.structured_content) {
        ("", Some(value)) => shortened(&value.to_string(), MAX_ERROR),
        ("", None) => format!("a tool of the server `{server}` failed without a message"),
        _ => text,
    };
    ToolError::new(Code::Precondition, message).with("tool_failed", true)
}

/// Converts content blocks.
fn contents(blocks: Vec<ContentBlock>) -> Output {
    let mut output = Output::default();
    for block in blocks {
        match block {
            ContentBlock::Text(text) => output.content.push(Content::text(text.text)),
            ContentBlock::Image(image) => output.content.push(Content::Image {
                media_type: shortened(&image.mime_type, MAX_SHORT),
                data: image.data,
            }),
            ContentBlock::Audio(audio) => output.content.push(Content::Audio {
                media_type: shortened(&audio.mime_type, MAX_SHORT),
                data: audio.data,
            }),
            ContentBlock::Resource(embedded) => resource_contents(embedded.resource, &mut output),
            ContentBlock::ResourceLink(link) => output.content.push(Content::Resource {
                uri: link.uri,
                media_type: link.mime_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
                text: None,
            }),
            other => {
                let value = serde_json::to_value(other).unwrap_or_default();
                output.content.push(Content::Json { value });
            }
        }
    }
    output
}

/// Converts resource contents: text and media become content, other data becomes an artifact.
fn resource_contents(resource: ResourceContents, output: &mut Output) {
    match resource {
        ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
            let media_type = mime_type.unwrap_or_else(|| "text/plain".to_owned());
            output.content.push(Content::Resource { uri, media_type, text: Some(text) });
        }
        ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
            let media_type = mime_type.unwrap_or_else(|| "application/octet-stream".to_owned());
            match media_type.split('/').next() {
                Some("image") => output.content.push(Content::Image { media_type, data: blob }),
                Some("audio") => output.content.push(Content::Audio { media_type, data: blob }),
                _ => {
                    if let Ok(bytes) = base64::engine::general_purpose::STANDARD.decode(&blob) {
                        let name = file_name(&uri, output.artifacts.len());
                        output.artifacts.push(Artifact::from_bytes(name, media_type.clone(), bytes));
                    }
                    output.content.push(Content::Resource { uri, media_type, text: None });
                }
            }
        }
        _ => {}
    }
}

/// A file name for a URI: its last path segment, sanitized.
fn file_name(uri: &str, index: usize) -> String {
    let last = uri.rsplit(['/', ':', '\\']).next().unwrap_or_default();
    let plain: String = last
        .chars()
        .filter(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_'))
        .take(100)
        .collect();
    let plain = plain.trim_start_matches('.');
    if plain.is_empty() { format!("resource-{}", index + 1) } else { format!("{}-{plain}", index + 1) }
}

/// Converts the result of reading a resource.
pub(crate) fn read(result: ReadResourceResult) -> Output {
    let mut output = Output::default();
    for contents in result.contents {
        resource_contents(contents, &mut output);
    }
    output
}

/// Converts a rendered prompt: messages as structured value, texts as content.
pub(crate) fn rendered(result: GetPromptResult) -> Result<Output, ToolError> {
    let mut value = json!({ "messages": serde_json::to_value(&result.messages)? });
    if let Some(description) = &result.description {
        value["description"] = shortened(description, MAX_DESCRIPTION).into();
    }
    let blocks = result.messages.into_iter().map(|message| message.content).collect();
    let mut output = contents(blocks);
    output.structured = Some(value);
    Ok(output)
}

/// Converts a resource.
pub(crate) fn resource(resource: Resource) -> Result<ResourceSpec, String> {
    let summary = resource.description.or(resource.title).unwrap_or(resource.name);
    resource_spec(&resource.uri, &summary, resource.mime_type, resource.meta)
}

/// Converts a resource template.
pub(crate) fn template(template: ResourceTemplate) -> Result<ResourceSpec, String> {
    let summary = template.description.or(template.title).unwrap_or(template.name);
    resource_spec(&template.uri_template, &summary, template.mime_type, template.meta)
}

fn resource_spec(
    uri: &str,
    summary: &str,
    mime_type: Option<String>,
    facts: Option<MetaObject>,
) -> Result<ResourceSpec, String> {
    let mut spec = ResourceSpec::new(uri.parse()?, shortened(summary, MAX_DESCRIPTION));
    spec.mime_types = mime_type.map(|name| shortened(&name, MAX_SHORT)).into_iter().collect();
    spec.meta = meta(facts);
    Ok(spec)
}

/// Converts a prompt.
pub(crate) fn prompt(prompt: Prompt) -> PromptSpec {
    let summary = prompt.description.or(prompt.title).unwrap_or_default();
    let mut spec = PromptSpec::new(shortened(&prompt.name, MAX_SHORT), shortened(&summary, MAX_DESCRIPTION));
    for argument in prompt.arguments.into_iter().flatten().take(MAX_ARGUMENTS) {
        let description = argument.description.or(argument.title).unwrap_or_default();
        let is_optional = argument.required != Some(true);
        spec = spec.argument(
            shortened(&argument.name, MAX_SHORT),
            shortened(&description, MAX_DESCRIPTION),
            is_optional,
        );
    }
    spec.meta = meta(prompt.meta);
    spec
}

/// Converts a JSON-RPC error.
pub(crate) fn error(error: &ErrorData, server: &str) -> ToolError {
    let text = shortened(error.message.trim(), MAX_ERROR);
    let message = format!("the server `{server}`: {text}");
    let is_limit = error.data.as_ref().is_some_and(|data| data.get("limit") == Some(&Value::Bool(true)));
    let made = match error.code {
        ErrorCode::INVALID_PARAMS | ErrorCode::INVALID_REQUEST => ToolError::invalid_input(message),
        ErrorCode::METHOD_NOT_FOUND | ErrorCode::RESOURCE_NOT_FOUND => ToolError::not_found(message),
        // -32042: the user must open a URL first.
        ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY | ErrorCode(-32042) => ToolError::precondition(message),
        ErrorCode::PARSE_ERROR if is_limit => ToolError::limit(message),
        _ => ToolError::dependency(message),
    };
    let made = made.with("json_rpc_code", error.code.0);
    match &error.data {
        Some(data) if serde_json::to_string(data).map_or(0, |text| text.len()) <= MAX_META => {
            made.with("data", data.clone())
        }
        _ => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(value: Value) -> Result<(ToolSpec, String), String> {
        tool(serde_json::from_value(value).unwrap(), "srv")
    }

    #[test]
    fn foreign_names_are_mapped_stably_and_without_collisions() {
        let long = "x".repeat(100);
        let mut seen = std::collections::HashSet::new();
        for name in ["a.b", "a/b", "a b", "a__b.", "1st", "ünï", "_x", "", ".", long.as_str()] {
            let mapped = tool_name(name);
            assert!(check_tool_name(&mapped).is_ok(), "{name} → {mapped}");
            assert_eq!(mapped, tool_name(name));
            assert!(seen.insert(mapped.clone()), "{mapped}");
        }
        assert_eq!(tool_name("read_file"), "read_file");
        assert!(tool_name("a.b").starts_with("a_b_"));
        let (spec, original) = made(json!({ "name": "fs.read", "inputSchema": {} })).unwrap();
        assert_eq!((original.as_str(), &spec.meta[ORIGINAL]), ("fs.read", &json!("fs.read")));
        spec.check().unwrap();
    }

    #[test]
    fn a_tool_keeps_its_metadata() {
        let (spec, _) = made(json!({
            "name": "wipe", "title": "Wipe", "description": " Wipe it. ",
            "inputSchema": { "type": "object", "properties": { "x": { "$ref": "#/$defs/X" } }, "$defs": { "X": { "type": "integer" } } },
            "outputSchema": { "type": "array" },
            "annotations": { "destructiveHint": true, "idempotentHint": true, "openWorldHint": false },
            "_meta": { "anthropic/alwaysLoad": true, "odd": 1 },
        }))
        .unwrap();
        assert_eq!((spec.title.as_deref(), spec.description.as_str()), (Some("Wipe"), "Wipe it."));
        assert_eq!(spec.input_schema.as_value()["properties"]["x"], json!({ "$ref": "#/$defs/X" }));
        assert_eq!(spec.output_schema.as_ref().unwrap().as_value(), &json!({ "type": "array" }));
        let expected =
            Annotations { read_only: false, destructive: true, idempotent: true, open_world: false };
        assert_eq!(spec.annotations, expected);
        assert_eq!(spec.policy.approval, Some(Approval::Ask));
        assert_eq!(Value::Object(spec.meta.clone()), json!({ "anthropic/alwaysLoad": true }));
        let (plain, _) = made(json!({ "name": "plain", "inputSchema": {} })).unwrap();
        assert_eq!(plain.policy.approval, None);
        assert!(plain.annotations.open_world && !plain.annotations.destructive);
        assert!(plain.description.contains("`srv`"));
    }

    #[test]
    fn external_references_are_removed() {
        let (spec, _) = made(json!({ "name": "a", "inputSchema": { "type": "object", "properties": {
            "x": { "$ref": "http://127.0.0.1:1/x.json", "description": "X" },
            "y": { "anyOf": [{ "$ref": "other.json#/y" }, { "$ref": "#" }] },
        } } }))
        .unwrap();
        let schema = spec.input_schema.as_value();
        assert_eq!(schema["properties"]["x"]["description"], "X");
        assert_eq!(schema["properties"]["y"]["anyOf"][1], json!({ "$ref": "#" }));
        assert!(
            !schema.to_string().contains("\"$ref\":\"http")
                && !schema.to_string().contains("\"$ref\":\"other")
        );
        assert!(spec.input_schema.is_valid(&json!({ "x": 1, "y": {} })).unwrap());
    }

    #[test]
    fn schemas_beyond_the_limits_are_rejected_with_the_reason() {
        let mut deep = json!({});
        for _ in 0..=MAX_SCHEMA_DEPTH {
            deep = json!({ "not": deep });
        }
        for (schema, why) in [
            (deep, "more than 64 deep"),
            (json!({ "description": "x".repeat(MAX_SCHEMA_BYTES) }), "more than the limit of 262144"),
            (json!({ "type": "array" }), "expected `object`"),
        ] {
            let error = made(json!({ "name": "a", "inputSchema": schema })).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert!(made(json!({ "name": "", "inputSchema": {} })).unwrap_err().contains("name"));
    }

    #[test]
    fn content_of_every_kind_is_converted() {
        let sent: CallToolResult = serde_json::from_value(json!({
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
        let output = result(sent, "srv").unwrap();
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

    #[test]
    fn a_toolpost_error_keeps_all_fields_and_a_foreign_error_its_text() {
        let sent = ToolError::conflict("taken").suggest("Wait.").with("by", "ada");
        let ours: CallToolResult = serde_json::from_value(json!({
            "content": [{ "type": "text", "text": "CONFLICT: taken" }], "isError": true,
            "_meta": { ERROR: serde_json::to_value(&sent).unwrap() },
        }))
        .unwrap();
        assert_eq!(result(ours, "srv").unwrap_err(), sent);
        let other: CallToolResult = serde_json::from_value(
            json!({ "content": [{ "type": "text", "text": "no such city" }], "isError": true }),
        )
        .unwrap();
        let error = result(other, "srv").unwrap_err();
        assert_eq!((error.code(), error.message()), (Code::Precondition, "no such city"));
        let silent: CallToolResult =
            serde_json::from_value(json!({ "content": [], "isError": true })).unwrap();
        assert!(result(silent, "srv").unwrap_err().message().contains("without a message"));
    }
}
