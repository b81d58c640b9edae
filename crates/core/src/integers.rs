//! Whole numbers such as `2.0` where a schema has integers.
//!
//! JSON Schema accepts `2.0` as an integer (2020-12, validation, 6.1.1), and models write it. Types of tools do not.

use serde_json::{Number, Value};

/// The maximum nesting of applied schemas.
const MAX_DEPTH: usize = 64;
/// The maximum number of schemas that apply to one value; further branches are ignored.
const MAX_APPLIED: usize = 64;
/// The maximum number of applications of a schema to a value and its parts, as in the check of arguments. The references
/// of a schema can multiply.
const MAX_APPLICATIONS: usize = 1_000_000;
/// The largest whole number that a float has exactly: 2^53.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// The value with integers in place of whole floats, where the schema has integers; `None` without such floats.
pub(crate) fn normalized(schema: &Value, value: &Value) -> Option<Value> {
    if !has_whole_float(value) {
        return None;
    }
    let mut changed = value.clone();
    let mut left = MAX_APPLICATIONS;
    normalize(schema, schema, &mut changed, 0, &mut left).then_some(changed)
}

fn has_whole_float(value: &Value) -> bool {
    match value {
        Value::Number(number) => whole(number).is_some(),
        Value::Array(items) => items.iter().any(has_whole_float),
        Value::Object(members) => members.values().any(has_whole_float),
        _ => false,
    }
}

/// The integer of a whole float.
fn whole(number: &Number) -> Option<i64> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    #[expect(clippy::cast_possible_truncation, reason = "it is whole and within the range")]
    (float.fract() == 0.0 && float.abs() <= MAX_EXACT).then_some(float as i64)
}

/// Changes a value in place. Returns whether anything changed.
fn normalize(root: &Value, schema: &Value, value: &mut Value, depth: usize, left: &mut usize) -> bool {
    if depth > MAX_DEPTH || *left == 0 {
        return false;
    }
    *left -= 1;
    let mut is_changed = false;
    match value {
        Value::Number(number) => {
            if let Some(integer) = whole(number)
                && accepts(root, schema) == Some(Accepted::Integer)
            {
                *value = integer.into();
                return true;
            }
        }
        Value::Array(items) => {
            for schema in applied(root, schema) {
                let first =
                    schema.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                for (index, item) in items.iter_mut().enumerate() {
                    if let Some(schema) = first.get(index).or_else(|| schema.get("items")) {
                        is_changed |= normalize(root, schema, item, depth + 1, left);
                    }
                }
            }
        }
        Value::Object(members) => {
            for schema in applied(root, schema) {
                for (name, member) in members.iter_mut() {
                    let named = schema.get("properties").and_then(|properties| properties.get(name));
                    if let Some(schema) = named.or_else(|| schema.get("additionalProperties")) {
                        is_changed |= normalize(root, schema, member, depth + 1, left);
                    }
                }
            }
        }
        _ => {}
    }
    is_changed
}

/// The numbers that a schema accepts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Accepted {
    Integer,
    Float,
}

/// The numbers that a schema accepts by its types and those of its branches; `None` if it names no numeric type.
fn accepts(root: &Value, schema: &Value) -> Option<Accepted> {
    let of_type = |name: &Value| match name.as_str() {
        Some("integer") => Some(Accepted::Integer),
        Some("number") => Some(Accepted::Float),
        _ => None,
    };
    let types = applied(root, schema).into_iter().filter_map(|schema| match schema.get("type")? {
        Value::Array(names) => names.iter().filter_map(of_type).max(),
        name => of_type(name),
    });
    types.max()
}

/// A schema, and all that it applies to the same value: references and branches.
fn applied<'a>(root: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    let mut all = vec![schema];
    let mut next = 0;
    // A reference to a schema above it ends here.
    while let Some(schema) = all.get(next).copied() {
        next += 1;
        let reference = schema.get("$ref").and_then(Value::as_str).and_then(|text| text.strip_prefix('#'));
        let branches =
            ["allOf", "anyOf", "oneOf"].iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
        for found in reference.and_then(|pointer| root.pointer(pointer)).into_iter().chain(branches) {
            if all.len() == MAX_APPLIED {
                return all;
            }
            if !all.iter().any(|known| std::ptr::eq(*known, found)) {
                all.push(found);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schema whose references multiply with each level, and one of many branches, end soon.
    #[test]
    fn a_hostile_schema_takes_bounded_time() {
        let again = json!({"items": {"$ref": "#"}});
        let doubling = json!({"anyOf": [again, again, again]});
        let deep = (0..60).fold(json!(2.0), |value, _| json!([value]));
        assert_eq!(normalized(&doubling, &deep), None);
        let branches = vec![json!({"properties": {"a": {"type": "integer"}}}); 100_000];
        let wide = json!({"anyOf": branches});
        assert_eq!(normalized(&wide, &json!({"a": 2.0})), Some(json!({"a": 2})));
    }

    #[test]
    fn whole_floats_are_integers_where_the_schema_has_integers() {
        let integer = json!({"type": "integer"});
        let nested = json!({
            "$defs": {"count": {"type": "integer"}, "tree": {
                "properties": {"n": {"$ref": "#/$defs/count"}, "below": {"items": {"$ref": "#/$defs/tree"}}}
            }},
            "$ref": "#/$defs/tree",
        });
        for (schema, value, expected) in [
            (integer.clone(), json!(2.0), Some("2")),
            (integer.clone(), json!(-3.0), Some("-3")),
            (integer.clone(), json!(2.5), None),
            (integer.clone(), json!(1e300), None),
            (integer.clone(), json!(2), None),
            (json!({"type": "number"}), json!(2.0), None),
            (json!({}), json!(2.0), None),
            (json!({"type": ["integer", "null"]}), json!(2.0), Some("2")),
            (json!({"type": ["integer", "number"]}), json!(2.0), None),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), json!(2.0), Some("2")),
            (json!({"anyOf": [{"type": "integer"}, {"type": "number"}]}), json!(2.0), None),
            (json!({"items": integer}), json!([1.0, 2, "x"]), Some("[1,2,\"x\"]")),
            (json!({"prefixItems": [{"type": "integer"}]}), json!([1.0, 2.0]), Some("[1,2.0]")),
            (
                json!({"properties": {"a": {"type": "integer"}}}),
                json!({"a": 1.0, "b": 2.0}),
                Some("{\"a\":1,\"b\":2.0}"),
            ),
            (json!({"additionalProperties": {"type": "integer"}}), json!({"b": 2.0}), Some("{\"b\":2}")),
            (nested, json!({"n": 1.0, "below": [{"n": 2.0}]}), Some("{\"below\":[{\"n\":2}],\"n\":1}")),
            (json!({"$ref": "#"}), json!(2.0), None),
            (json!({"allOf": [{"$ref": "#"}], "type": "integer"}), json!(2.0), Some("2")),
        ] {
            let found = normalized(&schema, &value).map(|value| {
                let sorted: std::collections::BTreeMap<String, Value>;
                match value {
                    Value::Object(members) => {
                        sorted = members.into_iter().collect();
                        json!(sorted).to_string()
                    }
                    value => value.to_string(),
                }
            });
            assert_eq!(found.as_deref(), expected, "{schema} {value}");
        }
    }
}
