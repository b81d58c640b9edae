//! Mock outputs, from the tool's examples or its output schema.

use serde_json::{Map, Value, json};
use toolpost_core::{Output, ToolSpec};
use toolpost_schema::resolve;

/// The maximum depth of a generated value. Schemas may be recursive.
const MAX_DEPTH: usize = 16;

pub(super) fn answer(spec: &ToolSpec, arguments: &Value) -> Output {
    let examples =
        || spec.examples.iter().filter_map(|example| Some((&example.args, example.output.as_ref()?)));
    let same = examples().find(|(args, _)| *args == arguments).or_else(|| examples().next());
    match (same, &spec.output_schema) {
        (Some((_, output)), _) => Output::json(output.clone()),
        (None, Some(schema)) => Output::json(sample(schema.as_value(), schema.as_value(), 0)),
        (None, None) => Output::text(format!("Mocked execution for tool '{}'.", spec.name)),
    }
}

/// Generates a simple value for a schema from its keywords.
fn sample(schema: &Value, root: &Value, depth: usize) -> Value {
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|path| resolve(root, path)) {
        return sample(target, root, depth + 1);
    }
    for keyword in ["const", "default"] {
        if let Some(value) = schema.get(keyword) {
            return value.clone();
        }
    }
    for keyword in ["examples", "enum"] {
        if let Some(value) = schema.get(keyword).and_then(|values| values.get(0)) {
            return value.clone();
        }
    }
    for keyword in ["anyOf", "oneOf", "allOf"] {
        if let Some(first) = schema.get(keyword).and_then(|schemas| schemas.get(0)) {
            return sample(first, root, depth + 1);
        }
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        kind => kind.and_then(Value::as_str),
    };
    match kind {
        Some("string") => text(schema).into(),
        Some("integer") => whole(schema).into(),
        Some("number") => schema.get("minimum").cloned().unwrap_or_else(|| json!(0.0)),
        Some("boolean") => false.into(),
        Some("array") => {
            let items = schema.get("items").unwrap_or(&Value::Null);
            let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0).min(100);
            (0..least).map(|_| sample(items, root, depth + 1)).collect()
        }
        Some("object") => {
            let properties = schema.get("properties").and_then(Value::as_object);
            let filled: Map<String, Value> = properties
                .into_iter()
                .flatten()
                .map(|(name, schema)| (name.clone(), sample(schema, root, depth + 1)))
                .collect();
            filled.into()
        }
        _ => Value::Null,
    }
}

fn text(schema: &Value) -> String {
    let text = match schema.get("format").and_then(Value::as_str) {
        Some("date-time") => "2026-01-01T00:00:00Z",
        Some("date") => "2026-01-01",
        Some("email") => "name@example.com",
        Some("uri") => "https://example.com/",
        Some("uuid") => "00000000-0000-4000-8000-000000000000",
        Some("json") => "null",
        Some("base64") => "",
        _ => "mock",
    };
    let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0).min(1000) as usize;
    format!("{text:m<least$}")
}

fn whole(schema: &Value) -> i64 {
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_f64).map(|limit| limit as i64);
    match (number("minimum"), number("exclusiveMinimum"), number("maximum")) {
        (Some(least), ..) => least,
        (_, Some(below), _) => below + 1,
        (_, _, Some(most)) => most.min(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolpost_core::Schema;

    #[test]
    fn mock_values_match_their_schema() {
        let schemas = [
            json!({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"$ref": "#/$defs/B"}},
                "required": ["a", "b"], "$defs": {"B": {"enum": ["x", "y"]}}}),
            json!({"type": "array", "items": {"type": "string", "minLength": 9}, "minItems": 2}),
            json!({"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]}),
            json!({"type": ["number", "null"], "minimum": 1.5}),
        ];
        for schema in schemas {
            let value = sample(&schema, &schema, 0);
            assert!(Schema::new(schema.clone()).is_valid(&value).unwrap(), "{schema} {value}");
        }
        let endless = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
        assert!(sample(&endless, &endless, 0).is_object());
    }
}
