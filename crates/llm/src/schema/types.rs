//! The branches of a schema, and schemas that also allow `null`.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

type Object = Map<String, Value>;

/// Whether a schema has no reference and no branches, so that a type can be added.
pub(super) fn is_plain(schema: &Object) -> bool {
    !["$ref", "allOf", "anyOf", "oneOf"].iter().any(|name| schema.contains_key(*name))
}

/// Whether types and constants show that no value matches two of the branches.
pub(super) fn are_exclusive(branches: &[Value]) -> bool {
    let mut marks: Vec<HashMap<String, Value>> = Vec::new();
    for branch in branches {
        let Value::Object(branch) = branch else { return false };
        marks.push(marks_of(branch));
    }
    // One mark that all branches have, with a different value in each.
    let Some(first) = marks.first() else { return true };
    first.keys().any(|name| {
        let mut values = HashSet::new();
        marks.iter().all(|marks| marks.get(name).is_some_and(|value| values.insert(value)))
    })
}

/// The type of a schema, its constant, and the constants of its properties.
fn marks_of(schema: &Object) -> HashMap<String, Value> {
    let only = |schema: &Object| -> Option<Value> {
        let listed = schema.get("enum").and_then(Value::as_array).map(Vec::as_slice);
        match (schema.get("const"), listed) {
            (Some(value), _) | (_, Some([value])) => Some(value.clone()),
            _ => None,
        }
    };
    let mut marks = HashMap::new();
    marks.extend(only(schema).map(|value| (String::new(), value)));
    match schema.get("type") {
        // Every integer is also a number.
        Some(Value::String(name)) if name == "integer" => {
            marks.insert("type".to_owned(), json!("number"));
        }
        Some(name @ Value::String(_)) => {
            marks.insert("type".to_owned(), name.clone());
        }
        _ => {}
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        if let Some(value) = property.as_object().and_then(only) {
            marks.insert(format!("/{name}"), value);
        }
    }
    marks
}

/// The schema, extended by `null`.
pub(super) fn or_null(mut schema: Value) -> Value {
    let no_value = json!({"type": "null"});
    let Value::Object(fields) = &mut schema else { return schema };
    let has_values = fields.contains_key("enum") || fields.contains_key("const");
    match fields.get_mut("type") {
        Some(Value::String(name)) if name == "null" => return schema,
        Some(Value::String(name)) if !has_values => {
            let name = std::mem::take(name);
            fields.insert("type".to_owned(), json!([name, "null"]));
            return schema;
        }
        Some(Value::Array(names)) if !has_values => {
            if !names.iter().any(|name| name == "null") {
                names.push(json!("null"));
            }
            return schema;
        }
        Some(Value::Array(names)) if names.iter().any(|name| name == "null") => {
            let listed = fields.get("enum").and_then(Value::as_array);
            if listed.is_some_and(|values| values.contains(&Value::Null)) {
                return schema;
            }
        }
        Some(_) => {}
        None => {
            if let Some(Value::Array(branches)) = fields.get_mut("anyOf") {
                if !branches.contains(&no_value) {
                    branches.push(no_value);
                }
                return schema;
            }
        }
    }
    let description = fields.remove("description");
    let mut union = json!({"anyOf": [schema, no_value]});
    if let Some(description) = description {
        union["description"] = description;
    }
    union
}
