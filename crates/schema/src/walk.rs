//! The keywords with subschemas, and the schemas that apply to one value.

use serde_json::{Map, Value};

use crate::reference::resolve;

/// The part of a value that a subschema applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The value itself, as for `allOf`, `anyOf` and `not`.
    Whole,
    /// The member of this name.
    Member(&'a str),
    /// The members whose names match a pattern.
    MatchingMembers,
    /// The members that `properties` does not name.
    OtherMembers,
    /// The names of the members.
    Names,
    /// The element at this position.
    Element(usize),
    /// The elements after those of `prefixItems`.
    OtherElements,
    /// Any element, as for `contains`.
    AnyElement,
    /// Nothing: a definition applies where it is referenced.
    Definition,
}

/// The keywords that combine schemas for the same value.
const BRANCHES: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// The part of a keyword whose value is one schema.
fn of_one(keyword: &str) -> Option<Part<'static>> {
    Some(match keyword {
        "not" | "if" | "then" | "else" => Part::Whole,
        "additionalProperties" | "unevaluatedProperties" => Part::OtherMembers,
        "propertyNames" => Part::Names,
        "items" => Part::OtherElements,
        "contains" | "unevaluatedItems" | "additionalItems" => Part::AnyElement,
        _ => return None,
    })
}

/// The part of a schema in a list. A list in `items` is the older form of `prefixItems`.
fn of_listed(keyword: &str, position: usize) -> Option<Part<'static>> {
    match keyword {
        "prefixItems" | "items" => Some(Part::Element(position)),
        keyword => BRANCHES.contains(&keyword).then_some(Part::Whole),
    }
}

/// The part of a schema with a name.
fn of_named<'a>(keyword: &str, name: &'a str) -> Option<Part<'a>> {
    Some(match keyword {
        "properties" => Part::Member(name),
        "patternProperties" => Part::MatchingMembers,
        "dependentSchemas" | "dependencies" => Part::Whole,
        "$defs" | "definitions" => Part::Definition,
        _ => return None,
    })
}

/// The direct subschemas of a schema.
pub fn subschemas(schema: &Value) -> Vec<(Part<'_>, &Value)> {
    let mut found = Vec::new();
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        found.extend(of_one(keyword).filter(|_| !value.is_array()).map(|part| (part, value)));
        let listed = value.as_array().into_iter().flatten().enumerate();
        found.extend(listed.filter_map(|(position, schema)| Some((of_listed(keyword, position)?, schema))));
        let named = value.as_object().into_iter().flatten();
        found.extend(named.filter_map(|(name, schema)| Some((of_named(keyword, name)?, schema))));
    }
    found
}

/// The direct subschemas of a schema, to be changed.
pub fn subschemas_mut(schema: &mut Value) -> Vec<&mut Value> {
    let mut found = Vec::new();
    for (keyword, value) in schema.as_object_mut().into_iter().flatten() {
        if value.is_array() && of_listed(keyword, 0).is_some() {
            found.extend(value.as_array_mut().into_iter().flatten());
        } else if value.is_object() && of_named(keyword, "").is_some() {
            found.extend(value.as_object_mut().into_iter().flat_map(Map::values_mut));
        } else if of_one(keyword).is_some() {
            found.push(value);
        }
    }
    found
}

/// The schemas that may apply to a value: the given ones, the targets of their references, and their branches.
///
/// At most `max` schemas, each once. `not` and conditions are not branches.
pub fn applicable<'a>(
    schemas: impl IntoIterator<Item = &'a Value>,
    root: &'a Value,
    max: usize,
) -> Vec<&'a Map<String, Value>> {
    let mut all: Vec<&Map<String, Value>> = Vec::new();
    let mut pending: Vec<&Value> = schemas.into_iter().collect();
    pending.reverse();
    while let Some(schema) = pending.pop() {
        let Value::Object(schema) = schema else { continue };
        if all.len() == max {
            break;
        }
        if all.iter().any(|known| std::ptr::eq(*known, schema)) {
            continue;
        }
        all.push(schema);
        for keyword in BRANCHES {
            let branches = schema.get(keyword).and_then(Value::as_array).map(Vec::as_slice);
            pending.extend(branches.unwrap_or_default().iter().take(max).rev());
        }
        pending.extend(schema.get("$ref").and_then(Value::as_str).and_then(|to| resolve(root, to)));
    }
    all
}
