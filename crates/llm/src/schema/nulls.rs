//! `null` where a parameter could have been left out.

use serde_json::{Map, Value};

use super::limits::DEEPEST;
use super::reference::resolve;

/// The most schemas that are looked at for one place of a value: branches and references.
const MOST_CANDIDATES: usize = 64;

/// The most schemas that are looked at for all places.
const MOST_LOOKS: usize = 1_000_000;

/// Removes the members that are `null` where the schema lets them be left out and does not allow `null`.
///
/// That is what a provider gives back whose strict schemas have no parameters that may be left out. A `null` that
/// the schema allows stays, and so does one of a required property, for the check of the value to speak of. Values so
/// large that a million looks at schemas are not enough keep what is left of them.
///
/// ```
/// use serde_json::json;
/// use toolpost_llm::schema::without_nulls;
///
/// let schema = json!({"properties": {"a": {"type": "string"}, "b": {"type": ["string", "null"]}}});
/// assert_eq!(without_nulls(json!({"a": null, "b": null}), &schema), json!({"b": null}));
/// ```
pub fn without_nulls(value: Value, schema: &Value) -> Value {
    if !has_null_member(&value, 0) {
        return value;
    }
    let mut left = MOST_LOOKS;
    clean(value, &[schema], schema, 0, &mut left)
}

fn has_null_member(value: &Value, depth: usize) -> bool {
    depth <= DEEPEST
        && match value {
            Value::Object(members) => {
                members.values().any(|member| member.is_null() || has_null_member(member, depth + 1))
            }
            Value::Array(elements) => elements.iter().any(|element| has_null_member(element, depth + 1)),
            _ => false,
        }
}

/// `left` is how many more schemas may be looked at.
fn clean(value: Value, schemas: &[&Value], root: &Value, depth: usize, left: &mut usize) -> Value {
    let is_simple = !value.is_object() && !value.is_array();
    if is_simple || depth > DEEPEST || schemas.is_empty() || *left == 0 {
        return value;
    }
    let schemas = spread(schemas, root);
    // Each member has as many places as there are schemas.
    *left = left.saturating_sub(schemas.len() * (1 + size(&value)));
    match value {
        Value::Object(members) => {
            let mut kept = Map::with_capacity(members.len());
            for (name, member) in members {
                let places = places_of(&schemas, &name);
                if member.is_null() {
                    if may_go(&schemas, &name) && !places.iter().any(|place| allows_null(place, root)) {
                        continue;
                    }
                    kept.insert(name, member);
                } else {
                    kept.insert(name, clean(member, &places, root, depth + 1, left));
                }
            }
            Value::Object(kept)
        }
        Value::Array(elements) => {
            let cleaned = elements.into_iter().enumerate().map(|(position, element)| {
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
            Value::Array(cleaned.collect())
        }
        other => other,
    }
}

/// How many values are directly in one.
fn size(value: &Value) -> usize {
    match value {
        Value::Object(members) => members.len(),
        Value::Array(elements) => elements.len(),
        _ => 0,
    }
}

/// The schemas with what they refer to and all their branches.
fn spread<'a>(schemas: &[&'a Value], root: &'a Value) -> Vec<&'a Map<String, Value>> {
    let mut all: Vec<&Map<String, Value>> = Vec::new();
    let mut waiting: Vec<&Value> = schemas.to_vec();
    while let Some(schema) = waiting.pop() {
        let Value::Object(schema) = schema else { continue };
        if all.len() == MOST_CANDIDATES {
            break;
        }
        if all.iter().any(|known| std::ptr::eq(*known, schema)) {
            continue;
        }
        all.push(schema);
        waiting.extend(schema.get("$ref").and_then(Value::as_str).and_then(|to| resolve(root, to)));
        for keyword in ["allOf", "anyOf", "oneOf"] {
            waiting.extend(
                schema.get(keyword).and_then(Value::as_array).into_iter().flatten().take(MOST_CANDIDATES),
            );
        }
    }
    all
}

/// The schemas of a member.
fn places_of<'a>(schemas: &[&'a Map<String, Value>], name: &str) -> Vec<&'a Value> {
    schemas
        .iter()
        .filter_map(|schema| match schema.get("properties").and_then(|properties| properties.get(name)) {
            None => schema.get("additionalProperties").filter(|_| !schema.contains_key("patternProperties")),
            place => place,
        })
        .collect()
}

/// Whether a schema that knows the member lets it be left out.
fn may_go(schemas: &[&Map<String, Value>], name: &str) -> bool {
    schemas.iter().any(|schema| {
        let is_known = schema.get("properties").is_some_and(|properties| properties.get(name).is_some());
        let required = schema.get("required").and_then(Value::as_array);
        is_known && !required.is_some_and(|names| names.iter().any(|required| required == name))
    })
}

/// Whether a schema allows `null`; yes, where that would take too long to say.
fn allows_null(schema: &Value, root: &Value) -> bool {
    let mut left = MOST_CANDIDATES;
    allows(schema, root, &mut left)
}

/// `left` is how many more schemas may be looked at, so that branches of branches cannot take for ever.
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
        let mut branches = branches.iter().take(MOST_CANDIDATES);
        if keyword == "allOf" {
            branches.all(|branch| allows(branch, root, left))
        } else {
            branches.any(|branch| allows(branch, root, left))
        }
    })
}
