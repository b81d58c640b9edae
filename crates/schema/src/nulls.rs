//! Removes `null` for omitted optional parameters.

use serde_json::{Map, Value};

use crate::reference::resolve;
use crate::walk::applicable;

/// Maximum nesting of a value.
const MAX_DEPTH: usize = 64;

/// Maximum number of schemas that are visited for one part of a value: branches and references.
const MAX_CANDIDATES: usize = 64;

/// Maximum number of schemas that are visited for all parts.
const MAX_VISITS: usize = 1_000_000;

/// Removes members that are `null`, optional, and not nullable by the schema.
///
/// Strict providers return such members for omitted parameters. A `null` that the schema allows stays. The `null` of a
/// required property stays too, so that validation reports it. After a million visited schemas the rest stays unchanged.
///
/// ```
/// use serde_json::json;
/// use toolpost_schema::without_nulls;
///
/// let schema = json!({"properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}}});
/// assert_eq!(without_nulls(json!({"a": null, "b": null}), &schema), json!({"b": null}));
/// ```
pub fn without_nulls(value: Value, schema: &Value) -> Value {
    if !has_null_member(&value, 0) {
        return value;
    }
    let mut left = MAX_VISITS;
    clean(value, &[schema], schema, 0, &mut left)
}

fn has_null_member(value: &Value, depth: usize) -> bool {
    depth <= MAX_DEPTH
        && match value {
            Value::Object(members) => {
                members.values().any(|member| member.is_null() || has_null_member(member, depth + 1))
            }
            Value::Array(elements) => elements.iter().any(|element| has_null_member(element, depth + 1)),
            _ => false,
        }
}

/// `left` is the number of schemas that may still be visited.
fn clean(value: Value, schemas: &[&Value], root: &Value, depth: usize, left: &mut usize) -> Value {
    let is_simple = !value.is_object() && !value.is_array();
    if is_simple || depth > MAX_DEPTH || schemas.is_empty() || *left == 0 {
        return value;
    }
    let schemas = applicable(schemas.iter().copied(), root, MAX_CANDIDATES);
    // Every member is looked up in every schema.
    *left = left.saturating_sub(schemas.len() * (1 + size(&value)));
    match value {
        Value::Object(members) => {
            let mut cleaned = Map::with_capacity(members.len());
            for (name, member) in members {
                let places = places_of(&schemas, &name);
                if member.is_null() {
                    if is_optional(&schemas, &name) && !places.iter().any(|place| allows_null(place, root)) {
                        continue;
                    }
                    cleaned.insert(name, member);
                } else {
                    cleaned.insert(name, clean(member, &places, root, depth + 1, left));
                }
            }
            Value::Object(cleaned)
        }
        Value::Array(elements) => {
            let elements = elements.into_iter().enumerate().map(|(position, element)| {
                let places: Vec<&Value> = schemas
                    .iter()
                    .filter_map(|schema| {
                        match schema.get("prefixItems").and_then(|list| list.get(position)) {
                            None => schema.get("items"),
                            place => place,
                        }
                    })
                    .collect();
                clean(element, &places, root, depth + 1, left)
            });
            Value::Array(elements.collect())
        }
        other => other,
    }
}

/// The number of direct members or elements.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(members) => members.len(),
        Value::Array(elements) => elements.len(),
        _ => 0,
    }
}

/// The schemas that apply to a member.
fn places_of<'a>(schemas: &[&'a Map<String, Value>], name: &str) -> Vec<&'a Value> {
    schemas
        .iter()
        .filter_map(|schema| match schema.get("properties").and_then(|properties| properties.get(name)) {
            None => schema.get("additionalProperties").filter(|_| !schema.contains_key("patternProperties")),
            place => place,
        })
        .collect()
}

/// Whether a schema declares the member as optional.
fn is_optional(schemas: &[&Map<String, Value>], name: &str) -> bool {
    schemas.iter().any(|schema| {
        let is_known = schema.get("properties").is_some_and(|properties| properties.get(name).is_some());
        let required = schema.get("required").and_then(Value::as_array);
        is_known && !required.is_some_and(|names| names.iter().any(|required| required == name))
    })
}

/// Whether a schema allows `null`. True if the schema is too large to decide.
fn allows_null(schema: &Value, root: &Value) -> bool {
    let mut left = MAX_CANDIDATES;
    allows(schema, root, &mut left)
}

/// `left` is the number of schemas that may still be visited.
fn allows(schema: &Value, root: &Value, left: &mut usize) -> bool {
    let Value::Object(schema) = schema else { return schema != &Value::Bool(false) };
    let Some(fewer) = left.checked_sub(1) else { return true };
    *left = fewer;
    let has_type = match schema.get("type") {
        Some(Value::String(name)) => name == "null",
        Some(Value::Array(names)) => names.iter().any(|name| name == "null"),
        _ => true,
    };
    if !has_type
        || !schema.get("const").is_none_or(Value::is_null)
        || !schema.get("enum").and_then(Value::as_array).is_none_or(|values| values.contains(&Value::Null))
    {
        return false;
    }
    let target = schema.get("$ref").and_then(Value::as_str).and_then(|to| resolve(root, to));
    if target.is_some_and(|target| !allows(target, root, left)) {
        return false;
    }
    ["anyOf", "oneOf", "allOf"].into_iter().all(|keyword| {
        let Some(branches) = schema.get(keyword).and_then(Value::as_array) else { return true };
        let mut branches = branches.iter().take(MAX_CANDIDATES);
        if keyword == "allOf" {
            branches.all(|branch| allows(branch, root, left))
        } else {
            branches.any(|branch| allows(branch, root, left))
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_disallowed_nulls_are_removed() {
        let schema = json!({
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "free": {},
                "none": {"type": ["integer", "null"]},
                "listed": {"enum": ["a", null]},
                "named": {"$ref": "#/$defs/Text"},
                "either": {"anyOf": [{"type": "object", "properties": {"x": {"type": "string"}}}, {"type": "null"}]},
                "must": {"type": "string"},
                "rows": {"type": "array", "items": {"$ref": "#"}},
                "pair": {"prefixItems": [{"properties": {"a": {"type": "string"}}}], "items": {"properties": {"b": {"type": "string"}}}}
            },
            "required": ["must"],
            "$defs": {"Text": {"allOf": [{"type": "string"}, {}]}}
        });
        for (value, expected) in [
            (json!({"text": null, "other": null}), json!({"other": null})),
            (
                json!({"free": null, "none": null, "listed": null}),
                json!({"free": null, "none": null, "listed": null}),
            ),
            (json!({"named": null}), json!({})),
            (json!({"either": null}), json!({"either": null})),
            (json!({"either": {"x": null}}), json!({"either": {}})),
            (json!({"must": null}), json!({"must": null})),
            (
                json!({"rows": [{"text": null}, null, {"rows": [{"text": null}]}]}),
                json!({"rows": [{}, null, {"rows": [{}]}]}),
            ),
            (
                json!({"pair": [{"a": null, "b": null}, {"a": null, "b": null}]}),
                json!({"pair": [{"b": null}, {"a": null}]}),
            ),
            (json!(null), json!(null)),
            (json!([null]), json!([null])),
        ] {
            assert_eq!(without_nulls(value.clone(), &schema), expected, "{value}");
        }
        // Nested branches and cyclic references end.
        let mut branches = json!({"$ref": "#"});
        for _ in 0..40 {
            branches = json!({"anyOf": [branches, branches.get("x"), {"$ref": "#"}], "properties": {"a": {"$ref": "#"}}});
        }
        without_nulls(json!({"a": {"a": {"a": null}}}), &branches);
        // Many values with many branches end too: the rest stays unchanged.
        let branch = json!({"properties": {"a": {"type": "string"}}});
        let schema = json!({"items": {"anyOf": vec![branch; 60]}});
        let began = std::time::Instant::now();
        let cleaned = without_nulls(json!(vec![json!({"a": null}); 100_000]), &schema);
        assert_eq!(cleaned[0], json!({}));
        assert_eq!(cleaned[99_999], json!({"a": null}));
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
