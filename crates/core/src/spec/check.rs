//! Consistency of the keywords, defaults and examples of a tool's parameters.

use serde_json::{Map, Value, json};

use super::ToolSpec;
use crate::Schema;

/// Keywords and the types that they constrain.
const KEYWORDS: [(&[&str], &[&str]); 4] = [
    (&["minimum", "maximum"], &["integer", "number"]),
    (&["minLength", "maxLength", "pattern"], &["string"]),
    (&["minItems", "maxItems"], &["array"]),
    (&["minProperties", "maxProperties"], &["object"]),
];

/// Pairs of a lower and an upper limit.
const LIMITS: [(&str, &str); 4] = [
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
];

/// The reason why the parameters are invalid.
pub(super) fn invalid_reason(spec: &ToolSpec) -> Option<String> {
    let schema = spec.input_schema.as_value();
    let definitions = schema.get("$defs");
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    properties
        .filter_map(|(name, property)| Some((name, property.as_object()?)))
        .find_map(|(name, property)| parameter(name, property, definitions))
        .or_else(|| {
            let examples = spec.examples.iter().enumerate();
            let mut unclear = examples.filter(|(_, example)| !call_obviously_matches(schema, &example.args));
            unclear.find_map(|(index, example)| {
                mismatch(&spec.input_schema, &example.args)
                    .map(|reason| format!("example {} does not match its parameters: {reason}", index + 1))
            })
        })
}

fn parameter(name: &str, property: &Map<String, Value>, definitions: Option<&Value>) -> Option<String> {
    let types: Vec<&str> = match property.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for (keywords, of) in KEYWORDS {
        let idle = keywords.iter().find(|keyword| property.contains_key(**keyword));
        if let Some(keyword) =
            idle.filter(|_| !types.is_empty() && !types.iter().any(|kind| of.contains(kind)))
        {
            let (of, types) = (of.join(" or "), types.join(" or "));
            return Some(format!(
                "`{keyword}` of parameter `{name}` has no effect: its type is {types}, but `{keyword}` limits {of}"
            ));
        }
    }
    let number = |keyword: &str| property.get(keyword).and_then(Value::as_f64);
    for (least, most) in LIMITS {
        if let (Some(low), Some(high)) = (number(least), number(most))
            && low > high
        {
            return Some(format!(
                "no value fits parameter `{name}`: `{least}` {low} is above `{most}` {high}"
            ));
        }
    }
    if let Some(pattern) = property.get("pattern") {
        // Compiled alone: the whole schema is compiled when the tool is first called.
        let alone = Schema::new(json!({ "type": "string", "pattern": pattern }));
        if let Err(error) = alone.is_valid(&Value::Null) {
            return Some(format!(
                "the pattern {pattern} of parameter `{name}` is invalid: {}",
                error.message()
            ));
        }
    }
    let default = property.get("default").map(|value| ("the default", value));
    let examples = property.get("examples").and_then(Value::as_array).into_iter().flatten();
    let values = default.into_iter().chain(examples.map(|value| ("an example", value)));
    for (what, value) in values.filter(|(_, value)| !obviously_matches(property, value)) {
        let mut alone = property.clone();
        if let Some(definitions) = definitions {
            alone.insert("$defs".to_owned(), definitions.clone());
        }
        if let Some(reason) = mismatch(&Schema::new(Value::Object(alone)), value) {
            return Some(format!("{what} of parameter `{name}` is invalid: {reason}"));
        }
    }
    None
}

/// The first mismatch between a value and a schema.
fn mismatch(schema: &Schema, value: &Value) -> Option<String> {
    match schema.problems(value) {
        Ok(problems) => problems.first().map(|problem| {
            if problem.missing.is_some() || !problem.pointer.is_empty() {
                problem.to_string()
            } else {
                format!("expected {}, found {}", problem.expected, problem.found)
            }
        }),
        Err(error) => Some(error.message().to_owned()),
    }
}

/// Whether a value matches by common keywords alone. Most do, and compilation dominates the cost of registration.
fn obviously_matches(property: &Map<String, Value>, value: &Value) -> bool {
    property.iter().all(|(keyword, limit)| match keyword.as_str() {
        "description" | "title" | "default" | "examples" => true,
        "type" => match limit {
            Value::Array(kinds) => kinds.iter().any(|kind| is_of_type(kind, value)),
            kind => is_of_type(kind, value),
        },
        "minimum" => value.as_f64().zip(limit.as_f64()).is_some_and(|(number, least)| number >= least),
        "maximum" => value.as_f64().zip(limit.as_f64()).is_some_and(|(number, most)| number <= most),
        "minLength" => length(value).zip(limit.as_u64()).is_some_and(|(length, least)| length >= least),
        "maxLength" => length(value).zip(limit.as_u64()).is_some_and(|(length, most)| length <= most),
        "minItems" => items(value).zip(limit.as_u64()).is_some_and(|(items, least)| items >= least),
        "maxItems" => items(value).zip(limit.as_u64()).is_some_and(|(items, most)| items <= most),
        "enum" => limit.as_array().is_some_and(|values| values.contains(value)),
        // A format constrains strings only.
        "format" => match value {
            Value::String(text) => {
                limit.as_str().and_then(|format| toolpost_schema::matches_own_format(format, text))
                    == Some(true)
            }
            _ => limit.is_string(),
        },
        "items" => value.as_array().into_iter().flatten().all(|item| part_obviously_matches(limit, item)),
        // `properties` is not handled here, so this applies to every member.
        "additionalProperties" => {
            value.as_object().into_iter().flatten().all(|(_, member)| part_obviously_matches(limit, member))
        }
        _ => false,
    })
}

/// Whether a part of a value obviously matches.
fn part_obviously_matches(schema: &Value, part: &Value) -> bool {
    match schema {
        Value::Bool(is_any) => *is_any,
        Value::Object(keywords) => obviously_matches(keywords, part),
        _ => false,
    }
}

/// Whether all arguments of a call obviously match.
fn call_obviously_matches(schema: &Value, args: &Value) -> bool {
    let (Some(schema), Some(args)) = (schema.as_object(), args.as_object()) else { return false };
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return false };
    let known = |name: &String, value| {
        properties
            .get(name)
            .and_then(Value::as_object)
            .is_some_and(|property| obviously_matches(property, value))
    };
    args.iter().all(|(name, value)| known(name, value))
        && schema.iter().all(|(keyword, limit)| match keyword.as_str() {
            "type" | "properties" | "additionalProperties" | "description" | "title" | "$defs" => true,
            "required" => limit.as_array().is_some_and(|names| {
                names.iter().all(|name| name.as_str().is_some_and(|name| args.contains_key(name)))
            }),
            _ => false,
        })
}

fn items(value: &Value) -> Option<u64> {
    value.as_array().map(|items| items.len() as u64)
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

fn is_of_type(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap_or_default() {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(property: &Value) -> ToolSpec {
        ToolSpec::new("a", "A.").input(json!({
            "type": "object",
            "properties": { "x": property },
            "$defs": { "Small": { "type": "integer", "maximum": 3 } }
        }))
    }

    #[test]
    fn contradictions_are_rejected_by_name() {
        for (property, expected) in [
            (
                json!({"type": "integer", "maximum": 14, "default": 20}),
                "the default of parameter `x` is invalid: expected at most 14, found 20",
            ),
            (
                json!({"type": "string", "default": 1}),
                "the default of parameter `x` is invalid: expected string, found integer (1)",
            ),
            (
                json!({"type": "string", "minLength": 2, "examples": ["ab", "a"]}),
                "an example of parameter `x` is invalid: expected at least 2 characters, found \"a\"",
            ),
            (json!({"type": "string", "format": "email", "default": "nobody"}), "in the format `email`"),
            (json!({"type": "string", "enum": ["a"], "default": "b"}), "expected one of a, found \"b\""),
            (json!({"type": "string", "format": "code", "default": "\0"}), "in the format `code`"),
            (json!({"type": "array", "minItems": 2, "default": ["a"]}), "found [\"a\"]"),
            (json!({"type": "array", "maxItems": 0, "default": ["a"]}), "found [\"a\"]"),
            (
                json!({"type": "array", "items": {"type": "string"}, "default": ["a", 1]}),
                "expected string, found",
            ),
            (
                json!({"additionalProperties": {"type": "number"}, "default": {"a": "b"}}),
                "expected number, found",
            ),
            (json!({"additionalProperties": false, "default": {"a": 1}}), "is invalid: expected"),
            (json!({"$ref": "#/$defs/Small", "default": 4}), "expected at most 3, found 4"),
            (json!({"type": "string", "pattern": "("}), "the pattern \"(\" of parameter `x` is invalid"),
            (json!({"type": "integer", "minLength": 1}), "`minLength` of parameter `x` has no effect"),
            (json!({"type": "string", "maximum": 1}), "`maximum` of parameter `x` has no effect"),
            (json!({"type": ["array", "null"], "pattern": "a"}), "its type is array or null"),
            (json!({"type": "integer", "minimum": 2, "maximum": 1}), "`minimum` 2 is above `maximum` 1"),
        ] {
            let error = spec(&property).check().unwrap_err();
            assert!(error.message.contains(expected), "{property}: {error}");
        }
    }

    #[test]
    fn consistent_parameters_are_accepted() {
        for property in [
            json!({"type": "integer", "minimum": 1, "maximum": 14, "default": 14, "examples": [1]}),
            json!({"type": "integer", "default": 1.0}),
            json!({"type": ["string", "null"], "enum": ["a", null], "default": null}),
            json!({"type": "string", "pattern": "^a+:$", "format": "uri", "examples": ["aaa:"]}),
            json!({"$ref": "#/$defs/Small", "default": 3, "maximum": 5}),
            json!({"default": "anything"}),
            json!({"type": "integer", "format": "int32", "default": 1}),
            json!({"type": "string", "format": "code", "default": "1 + 1"}),
            json!({"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}, "default": ["a"]}),
            json!({"type": ["object", "null"], "additionalProperties": {"type": "number"}, "default": {"a": 1}}),
            json!({"type": ["object", "null"], "additionalProperties": {"type": "number"}, "default": null}),
            json!({}),
            json!(true),
        ] {
            assert_eq!(spec(&property).check(), Ok(()), "{property}");
        }
    }

    #[test]
    fn examples_of_calls_must_fit() {
        let spec = spec(&json!({"type": "integer"}));
        assert_eq!(spec.clone().example(json!({"x": 1}), None).check(), Ok(()));
        let strict = spec.clone().input(json!({
            "type": "object",
            "properties": { "x": { "type": "integer" } },
            "required": ["x"],
            "additionalProperties": false
        }));
        assert_eq!(strict.clone().example(json!({"x": 1}), None).check(), Ok(()));
        for (args, expected) in [(json!({}), "`x` is missing"), (json!({"x": 1, "y": 2}), "`y`")] {
            let error = strict.clone().example(args, None).check().unwrap_err();
            assert!(error.message.contains(expected), "{error}");
        }
        for args in [json!({"x": "one"}), json!(null), json!([])] {
            let error = spec.clone().example(json!({"x": 1}), None).example(args, None).check().unwrap_err();
            assert!(error.message.starts_with("example 2 does not match its parameters"), "{error}");
        }
    }
}
