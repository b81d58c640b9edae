//! The page of file formats: the properties of each schema.

use std::fmt::Write as _;

use serde_json::Value;

use super::{begin, table};
use crate::commands::schema::SCHEMAS;

pub(super) fn page() -> String {
    let mut page = begin(
        "File formats",
        "`toolpost schema NAME` prints the JSON Schema of a format, for editors and validators. Later versions only \
         add fields.",
    );
    for (name, meaning, text) in SCHEMAS {
        let schema: Value = serde_json::from_str(text).unwrap();
        // Writing to a string cannot fail.
        let _ = write!(page, "## {name}\n\n`toolpost schema {name}`: {meaning}.\n\n");
        properties(&mut page, &schema);
        for (name, schema) in schema["$defs"].as_object().into_iter().flatten() {
            if schema["properties"].is_object() {
                let _ = write!(page, "**{name}**\n\n");
                properties(&mut page, schema);
            }
        }
        for schema in schema["oneOf"].as_array().into_iter().flatten() {
            if let Some(name) = schema["properties"]["type"]["const"].as_str() {
                let _ = write!(page, "**`\"type\": \"{name}\"`**\n\n");
                properties(&mut page, schema);
            }
        }
    }
    page.trim_end().to_owned() + "\n"
}

fn properties(page: &mut String, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let rows = properties.iter().map(|(name, schema)| {
        let required = if required.contains(&name.as_str()) { "yes" } else { "" };
        let description = schema["description"].as_str().unwrap_or_default();
        vec![name.clone(), kind(schema), required.to_owned(), description.to_owned()]
    });
    table(page, &["field", "type", "required", "meaning"], &rows.collect::<Vec<_>>());
}

/// The type of a value, in short.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema["$ref"].as_str() {
        return reference.rsplit('/').next().unwrap_or(reference).to_owned();
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
    }
    for word in ["anyOf", "oneOf"] {
        if let Some(schemas) = schema[word].as_array() {
            let mut kinds: Vec<String> = schemas.iter().map(kind).collect();
            kinds.dedup();
            return kinds.join(" or ");
        }
    }
    match &schema["type"] {
        Value::String(name) if name == "array" => format!("list of {}", kind(&schema["items"])),
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    }
}
