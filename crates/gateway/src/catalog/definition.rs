//! Tool definitions for models: their form, their size in tokens, and their compact form.

use std::borrow::Cow;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};
use toolpost_core::ToolSpec;
use toolpost_schema::subschemas_mut;

/// The estimated characters per token.
const CHARACTERS_PER_TOKEN: f64 = 4.0;

/// Removes the descriptions and defaults of subschemas. The schema accepts the same values, and its own
/// description stays.
pub fn compact_schema(schema: &Value) -> Value {
    let mut schema = schema.clone();
    strip_parts(&mut schema);
    schema
}

fn strip_parts(schema: &mut Value) {
    subschemas_mut(schema).into_iter().for_each(strip);
}

fn strip(part: &mut Value) {
    if let Some(part) = part.as_object_mut() {
        part.shift_remove("description");
        part.shift_remove("default");
    }
    strip_parts(part);
}

fn schema_of(spec: &ToolSpec, compact: bool) -> Cow<'_, Value> {
    let schema = spec.input_schema.as_value();
    if compact { Cow::Owned(compact_schema(schema)) } else { Cow::Borrowed(schema) }
}

/// The definition for a model: `{"type": "function", "function": {"name", "description", "parameters"}}`.
pub fn definition(spec: &ToolSpec, compact: bool) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": spec.name,
            "description": spec.description,
            "parameters": schema_of(spec, compact),
        },
    })
}

/// The estimated tokens of a definition, at least 1: a quarter of the characters of its compact JSON, with
/// everything beyond ASCII escaped.
pub fn definition_tokens(spec: &ToolSpec, compact: bool) -> u64 {
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        description: &'a str,
        parameters: &'a Value,
    }
    #[derive(Serialize)]
    struct Definition<'a> {
        r#type: &'static str,
        function: Function<'a>,
    }
    let parameters = schema_of(spec, compact);
    let function = Function { name: &spec.name, description: &spec.description, parameters: &parameters };
    let mut counter = EscapedLength(0);
    // Counting cannot fail, and a schema is JSON.
    let _ = serde_json::to_writer(&mut counter, &Definition { r#type: "function", function });
    ((counter.0 as f64 / CHARACTERS_PER_TOKEN + 0.5) as u64).max(1)
}

/// Counts characters of JSON with everything beyond ASCII escaped.
struct EscapedLength(u64);

impl Write for EscapedLength {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let length = piece.iter().map(|byte| match byte {
            0..=0x7e => 1,
            // `\u007f`, and the first byte of a character with one escape.
            0x7f | 0xc0..=0xef => 6,
            // The first byte of a character with two escapes.
            0xf0.. => 12,
            0x80..=0xbf => 0,
        });
        self.0 += length.sum::<u64>();
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_schemas_lose_descriptions_and_defaults_but_not_parameters_with_these_names() {
        let schema = json!({
            "type": "object",
            "description": "The whole.",
            "properties": {
                "description": { "type": "string", "description": "A text.", "default": "x" },
                "default": { "type": "array", "items": { "type": "integer", "description": "One.", "default": 1 } },
                "nested": { "anyOf": [{ "$ref": "#/$defs/It", "description": "d" }], "default": { "default": 1 } },
                "choice": { "const": { "description": "a value" } },
            },
            "$defs": { "It": { "type": "object", "description": "d", "properties": { "a": { "default": 1 } } } },
        });
        assert_eq!(
            compact_schema(&schema),
            json!({
                "type": "object",
                "description": "The whole.",
                "properties": {
                    "description": { "type": "string" },
                    "default": { "type": "array", "items": { "type": "integer" } },
                    "nested": { "anyOf": [{ "$ref": "#/$defs/It" }] },
                    "choice": { "const": { "description": "a value" } },
                },
                "$defs": { "It": { "type": "object", "properties": { "a": {} } } },
            })
        );
        assert_eq!(compact_schema(&json!(true)), json!(true));
    }

    #[test]
    fn characters_beyond_ascii_count_as_their_escapes() {
        let tokens = |description: &str| definition_tokens(&ToolSpec::new("t", description), false);
        let (plain, two, four) = (tokens(""), tokens(&"ä".repeat(40)), tokens(&"🦀".repeat(40)));
        assert_eq!((two - plain, four - plain), (60, 120));
        assert_eq!(tokens(&"x".repeat(400)) - plain, 100);
    }
}
