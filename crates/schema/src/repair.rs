//! Drops the invalid keywords of a schema, so that one of them does not lose the others.

use serde_json::{Map, Value, json};

use crate::check::Schema;
use crate::reference::resolve;

/// The types of JSON Schema.
const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
/// The deepest level whose keywords are repaired.
const MAX_DEPTH: usize = 100;
/// The most keywords of one schema that are compiled alone; further ones are dropped.
const MAX_COMPILED: usize = 1_000;
/// The most dropped keywords that are named.
const MAX_NAMED: usize = 50;

/// A schema without its invalid keywords, and the pointers of those that were dropped.
///
/// A keyword whose value is null is absent. Keywords of older drafts get their new form: a boolean `exclusiveMinimum`
/// applies to `minimum`, and a list in `items` is `prefixItems`. A valid schema stays as it is. If the rest is invalid,
/// only the names, types and descriptions of its properties stay; if that is invalid too, nothing changes.
pub fn repaired(schema: Value) -> (Value, Vec<String>) {
    if is_valid(&schema) || !schema.is_object() {
        return (schema, Vec::new());
    }
    let mut whole = schema.clone();
    let mut repair = Repair { root: &schema, dropped: Vec::new(), compiled: 0 };
    repair.schema(&mut whole, "", 0);
    let mut dropped = repair.dropped;
    if is_valid(&whole) {
        return (whole, dropped);
    }
    let bare = bare(&whole);
    if is_valid(&bare) {
        dropped.push("all other keywords".to_owned());
        return (bare, dropped);
    }
    (schema, Vec::new())
}

fn is_valid(schema: &Value) -> bool {
    Schema::new(schema.clone()).defect().is_none()
}

/// An object with the names, types and descriptions of the properties.
fn bare(schema: &Value) -> Value {
    let own = |property: &Value| {
        let known = ["type", "description"]
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), property.get(*key)?.clone())));
        Value::Object(known.collect())
    };
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let properties: Map<String, Value> =
        properties.map(|(name, property)| (name.clone(), own(property))).collect();
    let required = schema.get("required").cloned().unwrap_or_else(|| json!([]));
    json!({ "type": "object", "properties": properties, "required": required })
}

/// The verdict on a keyword.
enum Verdict {
    Good,
    Bad,
    /// Nothing is lost without it.
    Absent,
}

struct Repair<'a> {
    root: &'a Value,
    dropped: Vec<String>,
    compiled: usize,
}

impl Repair<'_> {
    fn drop(&mut self, place: &str) {
        if self.dropped.len() < MAX_NAMED {
            self.dropped.push(place.to_owned());
        }
    }

    /// Whether a keyword alone is a valid schema.
    fn compiles(&mut self, key: &str, value: &Value) -> bool {
        self.compiled += 1;
        self.compiled <= MAX_COMPILED && is_valid(&json!({ (key): value }))
    }

    /// Repairs a schema. Anything but an object or a boolean becomes a schema that accepts everything.
    fn schema(&mut self, schema: &mut Value, place: &str, depth: usize) {
        let fields = match schema {
            Value::Object(fields) if depth < MAX_DEPTH => fields,
            Value::Bool(_) => return,
            other => {
                if !other.is_null() {
                    self.drop(place);
                }
                *other = json!({});
                return;
            }
        };
        upgrade(fields);
        for key in fields.keys().cloned().collect::<Vec<_>>() {
            let place = format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
            let Some(value) = fields.get_mut(&key) else { continue };
            match self.keyword(&key, value, &place, depth) {
                Verdict::Good => {}
                Verdict::Absent => drop(fields.shift_remove(&key)),
                Verdict::Bad => {
                    fields.shift_remove(&key);
                    self.drop(&place);
                }
            }
        }
    }

    fn keyword(&mut self, key: &str, value: &mut Value, place: &str, depth: usize) -> Verdict {
        let is_free = matches!(key, "const" | "default");
        if value.is_null() && !is_free {
            return Verdict::Absent;
        }
        let good = match key {
            "type" => is_type(value),
            "enum" | "examples" => value.is_array(),
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => value.is_number(),
            "multipleOf" => value.as_f64().is_some_and(|number| number > 0.0),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
            | "minContains" | "maxContains" => is_count(value),
            "pattern" => value.is_string() && self.compiles(key, value),
            "uniqueItems" | "deprecated" | "readOnly" | "writeOnly" => value.is_boolean(),
            "title" | "description" | "$comment" | "format" | "contentEncoding" | "contentMediaType" => {
                value.is_string()
            }
            "$schema" | "$id" | "$anchor" | "$dynamicAnchor" | "$vocabulary" | "dependencies" => {
                self.compiles(key, value)
            }
            "$ref" | "$dynamicRef" => {
                value.as_str().is_some_and(|to| to.starts_with('#') && resolve(self.root, to).is_some())
            }
            "required" => is_names(value),
            "dependentRequired" => {
                value.as_object().is_some_and(|lists| lists.values().all(|list| is_names(&mut list.clone())))
            }
            "properties" | "$defs" | "definitions" | "dependentSchemas" => {
                let Value::Object(named) = value else { return Verdict::Bad };
                for (name, schema) in named {
                    let name = name.replace('~', "~0").replace('/', "~1");
                    self.schema(schema, &format!("{place}/{name}"), depth + 1);
                }
                true
            }
            "patternProperties" => {
                let Value::Object(named) = value else { return Verdict::Bad };
                for name in named.keys().cloned().collect::<Vec<_>>() {
                    if !self.compiles("pattern", &json!(name)) {
                        named.shift_remove(&name);
                        self.drop(&format!("{place}/{name}"));
                    }
                }
                for (name, schema) in named {
                    self.schema(schema, &format!("{place}/{name}"), depth + 1);
                }
                true
            }
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => {
                let Value::Array(schemas) = value else { return Verdict::Bad };
                for (position, schema) in schemas.iter_mut().enumerate() {
                    self.schema(schema, &format!("{place}/{position}"), depth + 1);
                }
                !schemas.is_empty()
            }
            "not"
            | "if"
            | "then"
            | "else"
            | "items"
            | "contains"
            | "additionalProperties"
            | "propertyNames"
            | "unevaluatedProperties"
            | "unevaluatedItems" => {
                if !value.is_object() && !value.is_boolean() {
                    return Verdict::Bad;
                }
                self.schema(value, place, depth + 1);
                true
            }
            // Not a keyword of JSON Schema.
            _ => true,
        };
        if good { Verdict::Good } else { Verdict::Bad }
    }
}

/// Rewrites keywords of older drafts.
fn upgrade(fields: &mut Map<String, Value>) {
    for (bound, exclusive) in [("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")] {
        match fields.get(exclusive) {
            Some(Value::Bool(true)) if fields.get(bound).is_some_and(Value::is_number) => {
                if let Some(value) = fields.shift_remove(bound) {
                    fields.insert(exclusive.to_owned(), value);
                }
            }
            Some(Value::Bool(_)) => drop(fields.shift_remove(exclusive)),
            _ => {}
        }
    }
    if let (Some(Value::Array(_)), None) = (fields.get("items"), fields.get("prefixItems"))
        && let Some(items) = fields.shift_remove("items")
    {
        fields.insert("prefixItems".to_owned(), items);
    }
}

/// Whether the value of `type` is valid. Unknown types of a list are removed.
fn is_type(value: &mut Value) -> bool {
    let is_known = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(names) => {
            let mut seen = Vec::new();
            names.retain(|name| {
                let is_new = is_known(name) && !seen.contains(name);
                seen.push(name.clone());
                is_new
            });
            !names.is_empty()
        }
        name => is_known(name),
    }
}

fn is_count(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number >= 0.0 && number.fract() == 0.0)
}

/// Whether a value is a list of names. Further occurrences of a name are removed.
fn is_names(value: &mut Value) -> bool {
    let Value::Array(names) = value else { return false };
    if !names.iter().all(Value::is_string) {
        return false;
    }
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_keyword_loses_itself_alone() {
        let city = json!({ "type": "string" });
        let object = |city: Value| json!({ "type": "object", "properties": { "city": city, "day": { "type": "string" } } });
        let with = |key: &str, value: Value| {
            let mut schema = object(city.clone());
            schema[key] = value;
            schema
        };
        let property = |key: &str, value: Value| object(json!({ "type": "string", (key): value }));
        let whole = object(city.clone());
        for (schema, expected, dropped) in [
            (whole.clone(), whole.clone(), ""),
            (with("required", json!(["city"])), with("required", json!(["city"])), ""),
            (with("required", Value::Null), whole.clone(), ""),
            (with("required", json!(true)), whole.clone(), "/required"),
            (with("required", json!(["city", "city"])), with("required", json!(["city"])), ""),
            (with("required", json!(["city", 5])), whole.clone(), "/required"),
            (with("description", Value::Null), whole.clone(), ""),
            (with("$schema", json!(5)), whole.clone(), "/$schema"),
            (
                with("$schema", json!("http://json-schema.org/draft-07/schema#")),
                with("$schema", json!("http://json-schema.org/draft-07/schema#")),
                "",
            ),
            (with("anyOf", json!([])), whole.clone(), "/anyOf"),
            (with("additionalProperties", json!("no")), whole.clone(), "/additionalProperties"),
            (with("dependentRequired", json!({ "city": "day" })), whole.clone(), "/dependentRequired"),
            (property("description", Value::Null), whole.clone(), ""),
            (property("enum", Value::Null), whole.clone(), ""),
            (property("enum", json!("a")), whole.clone(), "/properties/city/enum"),
            (property("required", json!(true)), whole.clone(), "/properties/city/required"),
            (property("pattern", json!("^a\\Z")), whole.clone(), "/properties/city/pattern"),
            (property("pattern", json!("(")), whole.clone(), "/properties/city/pattern"),
            (property("minLength", json!(-1)), whole.clone(), "/properties/city/minLength"),
            (property("minLength", json!("1")), whole.clone(), "/properties/city/minLength"),
            (property("multipleOf", json!(0)), whole.clone(), "/properties/city/multipleOf"),
            (property("default", Value::Null), property("default", Value::Null), ""),
            (property("x-order", json!([1])), property("x-order", json!([1])), ""),
            (object(json!({ "type": "any" })), object(json!({})), "/properties/city/type"),
            (object(json!({ "type": [] })), object(json!({})), "/properties/city/type"),
            (
                object(json!({ "type": ["string", "any", "string"] })),
                object(json!({ "type": ["string"] })),
                "",
            ),
            (object(json!("string")), object(json!({})), "/properties/city"),
            (object(Value::Null), object(json!({})), ""),
            (object(json!({ "$ref": "#/components/X" })), object(json!({})), "/properties/city/$ref"),
            (
                object(json!({ "$ref": "#/properties/day" })),
                object(json!({ "$ref": "#/properties/day" })),
                "",
            ),
            (
                object(json!({ "minimum": 0, "exclusiveMinimum": true })),
                object(json!({ "exclusiveMinimum": 0 })),
                "",
            ),
            (object(json!({ "maximum": 9, "exclusiveMaximum": false })), object(json!({ "maximum": 9 })), ""),
            (
                object(json!({ "type": "array", "items": [{ "type": "string" }, { "type": "any" }] })),
                object(json!({ "type": "array", "prefixItems": [{ "type": "string" }, {}] })),
                "/properties/city/prefixItems/1/type",
            ),
            (
                object(json!({ "patternProperties": { "(": {}, "^a": { "type": "text" } } })),
                object(json!({ "patternProperties": { "^a": {} } })),
                "/properties/city/patternProperties/(, /properties/city/patternProperties/^a/type",
            ),
        ] {
            let shown = schema.to_string();
            let (found, names) = repaired(schema);
            assert_eq!((&found, names.join(", ").as_str()), (&expected, dropped), "{shown}");
            assert!(is_valid(&found), "{shown}");
        }
    }

    #[test]
    fn a_schema_that_no_repair_makes_valid_keeps_its_parameters_or_stays() {
        // References that multiply have no bound.
        let level = |next: usize| json!({ "allOf": vec![json!({ "$ref": format!("#/$defs/l{next}") }); 20] });
        let levels: Map<String, Value> =
            (0..20).map(|index| (format!("l{index}"), level(index + 1))).collect();
        let mut schema = json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/l0", "description": "A." } }, "$defs": levels });
        schema["$defs"]["l20"] = json!({});
        if !is_valid(&schema) {
            let (found, dropped) = repaired(schema);
            assert_eq!(found["properties"]["a"], json!({ "description": "A." }));
            assert_eq!(dropped, ["all other keywords"]);
        }
        for schema in [json!(true), json!(5), json!([])] {
            assert_eq!(repaired(schema.clone()), (schema, Vec::new()));
        }
        let mut deep = json!({ "type": "any" });
        for _ in 0..120 {
            deep = json!({ "properties": { "a": deep } });
        }
        repaired(deep);
    }
}
