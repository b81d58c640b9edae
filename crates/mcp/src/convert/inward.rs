//! Converts MCP tools, results, errors, resources and prompts of servers.

mod blocks;
mod initialize;
mod notes;
mod results;

use rmcp::model::{ErrorCode, ErrorData};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use toolpost_core::{
    Annotations, Approval, PromptSpec, ResourceSpec, Schema, ToolError, ToolSpec, check_tool_name, hex,
};

pub(crate) use self::initialize::initialized;
pub(crate) use self::notes::Notes;
pub(crate) use self::results::{read, rendered, result};

use self::blocks::{last_part, plain, repair_details, repair_listed};
use super::FORWARDED;

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

/// A converted tool.
#[derive(Debug)]
pub(crate) struct Converted {
    pub(crate) spec: ToolSpec,
    /// The name at the server.
    pub(crate) original: String,
    /// The parts of the definition that are ignored.
    pub(crate) problems: Vec<String>,
}

/// Converts a tool.
///
/// # Errors
/// The reason why the tool is skipped.
pub(crate) fn tool(tool: Value, server: &str) -> Result<Converted, String> {
    let mut fields = definition(tool)?;
    let original = named(&mut fields)?;
    if original.is_empty() || original.chars().count() > 256 || original.contains(char::is_control) {
        return Err("its name is empty, longer than 256 characters, or has control characters".to_owned());
    }
    let mut notes = Notes::default();
    let mut schema = |kind: &str, notes: &mut Notes| match fields.shift_remove(&format!("{kind}Schema")) {
        None | Some(Value::Null) => Ok::<_, String>(None),
        Some(mut schema @ Value::Object(_)) => {
            check_schema(&schema).map_err(|why| format!("its {kind} schema {why}"))?;
            drop_external_refs(&mut schema);
            let (schema, dropped) = Schema::new(schema).repaired();
            if !dropped.is_empty() {
                let dropped = shortened(&dropped.join("`, `"), 500);
                notes.add(format!("ignored invalid keywords of its {kind} schema: `{dropped}`"));
            }
            Ok(Some(schema.as_value().clone()))
        }
        Some(other) => {
            notes.add(format!("ignored its {kind} schema {}", shortened(&other.to_string(), 200)));
            Ok(None)
        }
    };
    let mut input = schema("input", &mut notes)?.unwrap_or_else(|| json!({}));
    let output = schema("output", &mut notes)?;
    match input.get("type").and_then(Value::as_str) {
        Some("object") => {}
        None => input["type"] = "object".into(),
        Some(other) => return Err(format!("its input schema is of type `{other}`, expected `object`")),
    }
    repair_listed(&mut fields, "the definition", &mut notes);
    let hints = match fields.get("annotations") {
        None | Some(Value::Null) => None,
        Some(Value::Object(hints)) => Some(hints.clone()),
        Some(other) => {
            notes.add(format!("ignored its annotations {}", shortened(&other.to_string(), 200)));
            fields.shift_remove("annotations");
            None
        }
    };
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let title = text(fields.get("title")).or_else(|| text(hints.as_ref()?.get("title")));
    let title = title.map(|title| shortened(&title, MAX_SHORT));
    let own = fields.shift_remove("description").map(|own| plain(&own).trim().to_owned());
    let description = match own.filter(|text| !text.is_empty()) {
        Some(text) => shortened(&text, MAX_DESCRIPTION),
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
    let hint = |name: &str, notes: &mut Notes| match hints.as_ref()?.get(name)? {
        Value::Bool(hint) => Some(*hint),
        Value::Null => None,
        Value::String(text) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Some(false),
        other => {
            notes.add(format!("ignored `{name}` {}", shortened(&other.to_string(), 80)));
            None
        }
    };
    let read_only = hint("readOnlyHint", &mut notes) == Some(true);
    spec.annotations = Annotations {
        read_only,
        // A missing hint does not make a tool destructive.
        destructive: hint("destructiveHint", &mut notes) == Some(true) && !read_only,
        idempotent: hint("idempotentHint", &mut notes) == Some(true),
        open_world: hint("openWorldHint", &mut notes) != Some(false),
    };
    if spec.annotations.destructive {
        spec.policy.approval = Some(Approval::Ask);
    }
    fields.shift_remove("title");
    if hints.is_none_or(|hints| has_only_defaults(hints, &spec)) {
        fields.shift_remove("annotations");
    }
    spec.meta = meta(fields, &mut notes);
    if spec.name != original {
        spec.meta.insert(ORIGINAL.to_owned(), original.as_str().into());
    }
    Ok(Converted { spec, original, problems: notes.into_sentences() })
}

/// Whether the spec says all that the hints of a server say.
fn has_only_defaults(mut hints: Map<String, Value>, spec: &ToolSpec) -> bool {
    let declared = spec.annotations;
    hints.retain(|key, value| match key.as_str() {
        "title" => value.as_str() != spec.title.as_deref(),
        "readOnlyHint" => *value != declared.read_only,
        // Without the hint, clients expect a destructive tool.
        "destructiveHint" => !(*value == true && (declared.destructive || declared.read_only)),
        "idempotentHint" => *value != declared.idempotent,
        "openWorldHint" => *value != declared.open_world || *value == false,
        _ => true,
    });
    hints.is_empty()
}

/// The members of a definition.
fn definition(value: Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(mut fields) => {
            fields.retain(|_, value| !value.is_null());
            Ok(fields)
        }
        other => Err(format!("expected an object, found {}", shortened(&other.to_string(), 200))),
    }
}

/// Removes the name of a definition.
fn named(fields: &mut Map<String, Value>) -> Result<String, String> {
    match fields.shift_remove("name") {
        Some(Value::String(name)) => Ok(name),
        Some(Value::Number(name)) => Ok(name.to_string()),
        _ => Err("its name is missing or not a text".to_owned()),
    }
}

/// The meta of a definition: the `_meta` entries with a prefix, and under [`FORWARDED`] all members that the definition
/// has no field for.
fn meta(mut fields: Map<String, Value>, notes: &mut Notes) -> Map<String, Value> {
    let own = match fields.shift_remove("_meta") {
        Some(Value::Object(own)) => own,
        None => Map::new(),
        Some(other) => {
            if other != json!([]) {
                notes.add(format!("ignored its `_meta` {}", shortened(&other.to_string(), 200)));
            }
            Map::new()
        }
    };
    let (mut known, plain): (Map<_, _>, Map<_, _>) = own.into_iter().partition(|(key, _)| key.contains('/'));
    if !plain.is_empty() {
        fields.insert("_meta".to_owned(), plain.into());
    }
    if !fields.is_empty() {
        known.insert(FORWARDED.to_owned(), fields.into());
    }
    let size = serde_json::to_string(&known).map_or(0, |text| text.len());
    if size > MAX_META {
        notes.add(format!("ignored metadata of {size} bytes, more than the limit of {MAX_META}"));
        return Map::new();
    }
    known
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

/// A converted item of a list, and the parts of it that are ignored.
type Item<T> = Result<(T, Vec<String>), String>;

/// Converts a resource.
pub(crate) fn resource(resource: Value) -> Item<ResourceSpec> {
    resource_spec(resource, "uri")
}

/// Converts a resource template.
pub(crate) fn template(template: Value) -> Item<ResourceSpec> {
    resource_spec(template, "uriTemplate")
}

fn resource_spec(value: Value, address: &str) -> Item<ResourceSpec> {
    let mut notes = Notes::default();
    let mut fields = definition(value)?;
    let Some(Value::String(uri)) = fields.shift_remove(address) else {
        return Err(format!("its `{address}` is missing or not a text"));
    };
    repair_listed(&mut fields, "the definition", &mut notes);
    repair_details(&mut fields, "the definition", &mut notes);
    let name = fields.shift_remove("name").map_or_else(|| last_part(&uri).to_owned(), |name| plain(&name));
    let text = |key: &str| fields.get(key).and_then(Value::as_str).map(str::to_owned);
    let (title, own) = (text("title"), text("description"));
    // Without a description, the title or the name is the summary.
    if own.as_ref() != Some(&name) && own != title {
        fields.shift_remove("description");
    }
    let summary = own.or(title).unwrap_or_else(|| name.clone());
    let mut spec = ResourceSpec::new(uri.parse()?, shortened(&summary, MAX_DESCRIPTION));
    spec.name = Some(shortened(&name, MAX_SHORT));
    if let Some(Value::String(media_type)) = fields.shift_remove("mimeType") {
        spec.mime_types = vec![shortened(&media_type, MAX_SHORT)];
    }
    // A template may have no parameters that a pattern knows, and a plain URI may have braces.
    let is_template = address == "uriTemplate";
    if is_template != spec.uri_pattern.parameters().next().is_some() {
        fields.insert("uriTemplate".to_owned(), is_template.into());
    }
    spec.meta = meta(fields, &mut notes);
    Ok((spec, notes.into_sentences()))
}

/// Converts a prompt.
pub(crate) fn prompt(prompt: Value) -> Item<PromptSpec> {
    let mut notes = Notes::default();
    let mut fields = definition(prompt)?;
    let name = named(&mut fields)?;
    repair_listed(&mut fields, "the definition", &mut notes);
    let text = |fields: &Map<String, Value>, key: &str| fields.get(key).map(plain);
    let (title, own) = (text(&fields, "title"), text(&fields, "description"));
    if own != title {
        fields.shift_remove("description");
    }
    let summary = own.or(title).unwrap_or_default();
    let mut spec = PromptSpec::new(shortened(&name, MAX_SHORT), shortened(&summary, MAX_DESCRIPTION));
    let arguments = match fields.shift_remove("arguments") {
        Some(Value::Array(arguments)) => arguments,
        None => Vec::new(),
        Some(other) => {
            notes.add(format!("ignored its arguments {}", shortened(&other.to_string(), 200)));
            Vec::new()
        }
    };
    if arguments.len() > MAX_ARGUMENTS {
        notes.add(format!("ignored the arguments after the first {MAX_ARGUMENTS}"));
    }
    let mut titles = Map::new();
    for argument in arguments.into_iter().take(MAX_ARGUMENTS) {
        let mut argument = match argument {
            Value::String(name) => Map::from_iter([("name".to_owned(), name.into())]),
            argument => definition(argument).map_err(|why| format!("an argument: {why}"))?,
        };
        let Ok(name) = named(&mut argument) else {
            notes.add(format!("ignored the argument {}", shortened(&json!(argument).to_string(), 200)));
            continue;
        };
        let name = shortened(&name, MAX_SHORT);
        let description =
            text(&argument, "description").or_else(|| text(&argument, "title")).unwrap_or_default();
        let is_optional =
            !matches!(argument.get("required"), Some(required) if *required == true || *required == "true");
        spec = spec.argument(name.as_str(), shortened(&description, MAX_DESCRIPTION), is_optional);
        if let Some(title) = argument.shift_remove("title") {
            titles.insert(name, plain(&title).into());
        }
    }
    if !titles.is_empty() {
        fields.insert("argumentTitles".to_owned(), titles.into());
    }
    spec.meta = meta(fields, &mut notes);
    Ok((spec, notes.into_sentences()))
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
        tool(value, "srv").map(|made| (made.spec, made.original))
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
        let hints = json!({ "destructiveHint": true, "idempotentHint": true, "openWorldHint": false });
        let expected =
            json!({ "anthropic/alwaysLoad": true, "mcp": { "annotations": hints, "_meta": { "odd": 1 } } });
        assert_eq!(Value::Object(spec.meta.clone()), expected);
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
}
