//! Generates a value that matches a schema.

use std::collections::HashSet;

use serde_json::{Map, Number, Value, json};

use crate::budget::Budget;
use crate::merge::Merger;
use crate::pattern::matching_text;
use crate::types::type_name;

/// The level from which on only required members are generated: a schema may be recursive.
const OPTIONAL_DEPTH: usize = 6;
/// The level from which on `null` is generated: a schema that requires itself has no value.
const MAX_DEPTH: usize = 32;
/// Maximum number of nested unions that are resolved for one value.
const MAX_UNIONS: usize = 16;
/// Maximum number of elements, and of generated undeclared properties.
const MAX_ELEMENTS: usize = 100;
/// Maximum length of a text, in characters.
const MAX_TEXT_CHARS: usize = 10_000;
/// Maximum number of values in all.
const MAX_VALUES: usize = 10_000;
/// Maximum number of copied schema values and bytes, and of written pattern parts.
const MAX_COPIED: usize = 4_000_000;

/// Which properties of a schema are generated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaDetail {
    /// All properties.
    #[default]
    All,
    /// Required properties only.
    Required,
}

impl SchemaDetail {
    /// The lower-case name, as in the model names `schema:all` and `schema:required`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Required => "required",
        }
    }
}

/// A value that matches the schema. If the schema uses an unsupported keyword, the value may not match.
pub fn generate(schema: &Value, detail: SchemaDetail) -> Value {
    let merger = Merger::new(schema, Budget::new(MAX_COPIED, MAX_COPIED));
    Generator { merger, detail, values_left: MAX_VALUES, pattern_steps: MAX_COPIED }.value(schema, 0, 0)
}

struct Generator<'a> {
    merger: Merger<'a>,
    detail: SchemaDetail,
    /// The number of values that may still be generated.
    values_left: usize,
    /// The number of pattern parts that may still be written.
    pattern_steps: usize,
}

impl Generator<'_> {
    /// A value of a schema at a level. `variant` selects among several values.
    fn value(&mut self, schema: &Value, level: usize, variant: usize) -> Value {
        if level > MAX_DEPTH || self.values_left == 0 {
            return Value::Null;
        }
        self.values_left -= 1;
        let Some(schema) = self.flatten(schema, level) else { return json!("text") };
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            let matching: Vec<&Value> = values.iter().filter(|value| has_type(&schema, value)).collect();
            let values = if matching.is_empty() { values.iter().collect() } else { matching };
            return values.get(variant % values.len().max(1)).copied().cloned().unwrap_or_default();
        }
        match preferred_type(&schema) {
            "object" => self.object(&schema, level),
            "array" => self.array(&schema, level),
            "integer" => number(&schema, true, variant),
            "number" => number(&schema, false, variant),
            "boolean" => json!(variant.is_multiple_of(2)),
            "null" => Value::Null,
            _ => json!(text(&schema, variant, &mut self.pattern_steps)),
        }
    }

    /// The schema with its references, `allOf` and one branch of each union merged; `None` if it allows any value.
    fn flatten(&mut self, schema: &Value, level: usize) -> Option<Map<String, Value>> {
        let mut merged = Map::new();
        // After a contradiction or an exhausted budget, the keywords that were merged so far count.
        let _ = self.merger.merge(&mut merged, schema.as_object()?);
        for _ in 0..MAX_UNIONS {
            let conflicts = std::mem::take(&mut self.merger.conflicts).into_iter();
            let conflicts = conflicts.filter(|(name, _)| matches!(name.as_str(), "anyOf" | "oneOf"));
            let mut unions: Vec<Value> = conflicts.map(|(_, branches)| branches).collect();
            unions.extend(["anyOf", "oneOf"].into_iter().filter_map(|name| merged.remove(name)));
            if unions.is_empty() {
                break;
            }
            for branches in &unions {
                let branch = branches.as_array().and_then(|branches| choose_branch(branches, level));
                if let Some(branch) = branch.and_then(Value::as_object) {
                    let _ = self.merger.merge(&mut merged, branch);
                }
            }
        }
        Some(merged)
    }

    fn object(&mut self, schema: &Map<String, Value>, level: usize) -> Value {
        let nothing = Map::new();
        let described = schema.get("properties").and_then(Value::as_object).unwrap_or(&nothing);
        let required = names(schema.get("required"));
        let needed: HashSet<&str> = required.iter().copied().collect();
        let mut missing = needed.len();
        let all = self.detail == SchemaDetail::All && level < OPTIONAL_DEPTH;
        let most = size(schema, "maxProperties").unwrap_or(usize::MAX);
        let mut generated = Map::new();
        for (name, property) in described {
            let is_needed = needed.contains(name.as_str());
            missing -= usize::from(is_needed);
            let has_room = generated.len() + missing < most;
            if is_needed || (all && has_room && *property != Value::Bool(false)) {
                generated.insert(name.clone(), self.value(property, level + 1, 0));
            }
        }
        let others = schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let depending = schema.get("dependentRequired").and_then(Value::as_object).into_iter().flatten();
        let depended: Vec<&str> = depending
            .filter(|(name, _)| generated.contains_key(*name))
            .flat_map(|(_, needed)| names(Some(needed)))
            .collect();
        for name in required.into_iter().chain(depended) {
            if !generated.contains_key(name) {
                let property = described.get(name).unwrap_or(&others);
                let value = self.value(property, level + 1, 0);
                generated.insert(name.to_owned(), value);
            }
        }
        let least = size(schema, "minProperties").unwrap_or(0).min(MAX_ELEMENTS);
        let optional =
            described.iter().filter(|(name, _)| !generated.contains_key(*name)).collect::<Vec<_>>();
        for (name, property) in optional {
            if generated.len() >= least {
                break;
            }
            generated.insert(name.clone(), self.value(property, level + 1, 0));
        }
        let mut number = 0;
        while generated.len() < least && others != Value::Bool(false) {
            number += 1;
            let value = self.value(&others, level + 1, 0);
            generated.entry(format!("key{number}")).or_insert(value);
        }
        Value::Object(generated)
    }

    fn array(&mut self, schema: &Map<String, Value>, level: usize) -> Value {
        let fixed = schema.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default();
        let items = schema.get("items").cloned().unwrap_or(Value::Bool(true));
        let most = size(schema, "maxItems").unwrap_or(MAX_ELEMENTS).min(MAX_ELEMENTS);
        let wanted =
            if self.detail == SchemaDetail::All && level < OPTIONAL_DEPTH { fixed.len().max(1) } else { 0 };
        let contained = schema.get("contains").cloned();
        let least = size(schema, "minItems").unwrap_or(0).max(usize::from(contained.is_some()));
        let count = wanted.max(least).min(most);
        let differ = schema.get("uniqueItems") == Some(&Value::Bool(true));
        let mut generated: Vec<Value> = Vec::new();
        // Distinct elements may take several variants.
        for variant in 0..count * 4 {
            let position = generated.len();
            if position == count {
                break;
            }
            let element = match (&contained, fixed.get(position)) {
                (Some(contained), None) if position == fixed.len() => contained,
                (_, Some(fixed)) => fixed,
                _ => &items,
            };
            // The schema `false` allows no element.
            if *element == Value::Bool(false) {
                break;
            }
            let value = self.value(element, level + 1, if differ { variant } else { 0 });
            if !differ || !generated.contains(&value) {
                generated.push(value);
            }
        }
        Value::Array(generated)
    }
}

/// The branch of a union to generate. Deep down it is the simplest one, so that a recursive schema ends.
fn choose_branch(branches: &[Value], level: usize) -> Option<&Value> {
    let is_null = |branch: &&Value| branch.get("type").is_some_and(|kind| kind == "null");
    let is_nested = |branch: &&Value| branch.get("$ref").is_some() || branch.get("properties").is_some();
    let simple = branches.iter().find(is_null).or_else(|| branches.iter().find(|branch| !is_nested(branch)));
    let detailed = branches.iter().find(|branch| !is_null(branch) && **branch != Value::Bool(false));
    if level >= OPTIONAL_DEPTH { simple.or(detailed) } else { detailed.or(simple) }
}

/// The first type of a schema that is not `null`, or the type that its keywords imply.
fn preferred_type(schema: &Map<String, Value>) -> &str {
    match schema.get("type") {
        Some(Value::String(kind)) => kind,
        Some(Value::Array(kinds)) => {
            let mut kinds = kinds.iter().filter_map(Value::as_str);
            let first = kinds.next().unwrap_or("null");
            if first == "null" { kinds.next().unwrap_or("null") } else { first }
        }
        _ => {
            let has = |names: &[&str]| names.iter().any(|name| schema.contains_key(*name));
            if has(&["properties", "required", "additionalProperties", "minProperties"]) {
                "object"
            } else if has(&["items", "prefixItems", "minItems", "contains"]) {
                "array"
            } else if has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
                "number"
            } else {
                "string"
            }
        }
    }
}

/// Whether the schema allows the value's type.
fn has_type(schema: &Map<String, Value>, value: &Value) -> bool {
    let name = type_name(value);
    let allows = |kind: &Value| {
        kind == name || (name == "integer" && kind == "number") || (name == "number" && kind == "integer")
    };
    match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(allows),
        Some(kind) => allows(kind),
        None => true,
    }
}

fn names(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn size(schema: &Map<String, Value>, name: &str) -> Option<usize> {
    let size = schema.get(name)?;
    size.as_u64()
        .or_else(|| size.as_f64().map(|size| size as u64))
        .and_then(|size| usize::try_from(size).ok())
}

fn number(schema: &Map<String, Value>, is_integer: bool, variant: usize) -> Value {
    let bound = |name: &str| schema.get(name).and_then(Value::as_f64);
    let step = bound("multipleOf").filter(|step| *step > 0.0);
    let unit = match (step, is_integer) {
        // The smallest multiple of the step that is an integer.
        (Some(step), true) => {
            (1..=100_u32).map(|times| step * f64::from(times)).find(|unit| unit.fract() == 0.0)
        }
        (step, false) => step,
        (None, true) => Some(1.0),
    };
    let least = match (bound("minimum"), bound("exclusiveMinimum")) {
        (minimum, Some(above)) if minimum.is_none_or(|minimum| minimum <= above) => Some((above, true)),
        (minimum, _) => minimum.map(|minimum| (minimum, false)),
    };
    let most = match (bound("maximum"), bound("exclusiveMaximum")) {
        (maximum, Some(below)) if maximum.is_none_or(|maximum| maximum >= below) => Some((below, true)),
        (maximum, _) => maximum.map(|maximum| (maximum, false)),
    };
    let allowed = |value: f64| {
        least.is_none_or(|(bound, is_out)| if is_out { value > bound } else { value >= bound })
            && most.is_none_or(|(bound, is_out)| if is_out { value < bound } else { value <= bound })
    };
    let whole = |value: f64, up: bool| match unit {
        Some(unit) if up => (value / unit).ceil() * unit,
        Some(unit) => (value / unit).floor() * unit,
        None => value,
    };
    let stride = unit.unwrap_or(1.0);
    let low = least.map(|(bound, _)| whole(bound, true));
    let high = most.map(|(bound, _)| whole(bound, false));
    let between = least.zip(most).map(|((low, _), (high, _))| low + (high - low) / 2.0);
    let distance = stride * variant as f64;
    let candidates = [
        low.map(|low| low + distance),
        low.map(|low| low + stride + distance),
        high.map(|high| high - distance),
        high.map(|high| high - stride - distance),
        between.filter(|_| unit.is_none()).map(|middle| middle / (variant + 1) as f64),
        between.filter(|_| unit.is_none()),
    ];
    let simple = whole(1.0, true) + distance;
    let chosen = std::iter::once(Some(simple)).chain(candidates).flatten().find(|value| allowed(*value));
    let value = chosen.or(low).or(high).unwrap_or(1.0);
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return json!(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

fn text(schema: &Map<String, Value>, variant: usize, steps: &mut usize) -> String {
    let least = size(schema, "minLength").unwrap_or(0).min(MAX_TEXT_CHARS);
    let most = size(schema, "maxLength").unwrap_or(MAX_TEXT_CHARS);
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Some(text) = matching_text(pattern, least, most, variant, steps)
    {
        return text;
    }
    if let Some(text) =
        schema.get("format").and_then(Value::as_str).and_then(|format| formatted(format, variant))
    {
        return text;
    }
    let mut text = if variant == 0 { "text".to_owned() } else { format!("{variant}text") };
    let length = text.chars().count();
    text.extend(std::iter::repeat_n('x', least.saturating_sub(length)));
    text.chars().take(most).collect()
}

fn formatted(format: &str, variant: usize) -> Option<String> {
    let digit = variant % 10;
    Some(match format {
        "date-time" => format!("2026-01-02T03:04:0{digit}Z"),
        "date" => format!("2026-01-1{digit}"),
        "time" => format!("03:04:0{digit}Z"),
        "duration" => format!("PT{}S", variant + 1),
        "email" | "idn-email" => format!("ada{variant}@example.com"),
        "hostname" | "idn-hostname" => format!("host{variant}.example.com"),
        "ipv4" => format!("192.0.2.{}", variant % 256),
        "ipv6" => format!("2001:db8::{:x}", variant % 65_536),
        "uri" | "iri" | "url" => format!("https://example.com/{variant}"),
        "uri-reference" | "iri-reference" | "json-pointer" => format!("/{variant}"),
        "uuid" => format!("00000000-0000-4000-8000-{variant:012x}"),
        "regex" => format!("a{{{}}}", variant + 1),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use crate::Schema;
    use proptest::prelude::*;

    use super::*;

    fn check(schema: &Value) {
        for detail in [SchemaDetail::All, SchemaDetail::Required] {
            let value = generate(schema, detail);
            let problems = Schema::new(schema.clone()).problems(&value).unwrap();
            assert!(problems.is_empty(), "{schema}\n{value}\n{problems:?}");
            assert_eq!(generate(schema, detail), value, "the same every time");
        }
    }

    #[test]
    fn hostile_schemas_end_early() {
        let many = |count: usize, schema: &Value| -> Value {
            (0..count).map(|number| (format!("p{number}"), schema.clone())).collect::<Map<_, _>>().into()
        };
        let names: Vec<String> = (0..10_000).map(|number| format!("p{number}")).collect();
        let began = std::time::Instant::now();
        for schema in [
            // Copies per reference, quadratic comparisons, repeated attempts.
            json!({"properties": many(2_000, &json!({"$ref": "#/$defs/a"})), "$defs": {"a": {"default": "x".repeat(1_000_000)}}}),
            json!({"properties": many(30, &json!({"$ref": "#"})), "default": many(20_000, &json!(1))}),
            json!({"properties": many(10_000, &json!({"type": "null"})), "required": names}),
            json!({"allOf": [{"enum": names}, {"enum": names}]}),
            json!({"properties": many(5_000, &json!({"pattern": "(a{1000}){15}", "minLength": 1_000, "maxLength": 1_001}))}),
        ] {
            generate(&schema, SchemaDetail::All);
        }
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    }

    #[test]
    fn tool_schemas_get_matching_arguments() {
        let all = |schema: Value| generate(&schema, SchemaDetail::All);
        let object = json!({
            "type": "object", "additionalProperties": false, "required": ["city"],
            "properties": {
                "city": { "type": "string", "minLength": 6 }, "days": { "type": "integer", "minimum": 3, "maximum": 14 },
                "unit": { "enum": ["c", "f"] }, "at": { "type": ["null", "string"], "format": "date-time" },
                "code": { "type": "string", "pattern": "^[A-Z]{2}-\\d+$" },
            },
        });
        assert_eq!(
            all(object.clone()),
            json!({ "city": "textxx", "days": 3, "unit": "c", "at": "2026-01-02T03:04:00Z", "code": "AA-0" })
        );
        assert_eq!(generate(&object, SchemaDetail::Required), json!({ "city": "textxx" }));
        assert_eq!(
            all(json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 })),
            json!(0.5)
        );
        assert_eq!(all(json!(true)), json!("text"));
    }

    #[test]
    fn references_are_followed_and_recursion_ends() {
        let tree = json!({
            "$ref": "#/$defs/node",
            "$defs": { "node": {
                "type": "object", "required": ["name", "kids", "next"], "additionalProperties": false,
                "properties": {
                    "name": { "const": "n" }, "kids": { "type": "array", "items": { "$ref": "#/$defs/node" } },
                    "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] },
                },
            } },
        });
        check(&tree);
        // No value matches these schemas; generation must still end.
        generate(
            &json!({ "type": "object", "required": ["x"], "properties": { "x": { "$ref": "#" } } }),
            SchemaDetail::All,
        );
        generate(&json!({ "$ref": "#" }), SchemaDetail::All);
        generate(&json!({ "allOf": vec![json!({ "$ref": "#" }); 20] }), SchemaDetail::All);
        generate(&json!({ "type": "array", "minItems": 1e18, "items": { "$ref": "#" } }), SchemaDetail::All);
    }

    #[test]
    fn combined_schemas_get_matching_values() {
        for schema in [
            json!({ "allOf": [{ "type": "integer", "minimum": 2 }, { "minimum": 5, "multipleOf": 4 }] }),
            json!({ "oneOf": [{ "type": "null" }, { "type": "object", "required": ["a"], "properties": { "a": { "type": "boolean" } } }] }),
            json!({ "type": "array", "prefixItems": [{ "const": 1 }, { "type": "string" }], "items": false }),
            json!({ "type": "array", "contains": { "const": 7 }, "items": { "type": "integer" }, "minItems": 3 }),
            json!({ "type": "object", "minProperties": 3, "additionalProperties": { "type": "integer" } }),
            json!({ "type": "object", "properties": { "a": {}, "b": {} }, "dependentRequired": { "a": ["b", "c"] } }),
            json!({ "type": "array", "uniqueItems": true, "minItems": 3, "items": { "enum": [1, 2, 3] } }),
            json!({ "type": "object", "maxProperties": 1, "required": ["b"], "properties": { "a": {}, "b": {} } }),
        ] {
            check(&schema);
        }
    }

    /// Supported schemas, each of which has a value.
    fn schemas() -> impl Strategy<Value = Value> {
        let integers = (-50_i64..50, 0_i64..50, 1_i64..4).prop_map(|(low, width, step)| {
            json!({ "type": "integer", "minimum": low, "maximum": low + width + step, "multipleOf": step })
        });
        let numbers = (-5.0..5.0_f64, 0.1..5.0_f64).prop_map(
            |(low, width)| json!({ "type": "number", "exclusiveMinimum": low, "maximum": low + width }),
        );
        let texts = (0_usize..20, 0_usize..20).prop_map(
            |(least, more)| json!({ "type": "string", "minLength": least, "maxLength": least + more }),
        );
        let patterns = proptest::sample::select(vec![
            "^[a-z]{3}$",
            "^(x|y)+$",
            r"^\d{2,5}$",
            r"^[^\s]+@[a-z]+\.(com|org)$",
            "[A-F0-9]+",
            "^$",
        ])
        .prop_map(|pattern| json!({ "type": "string", "pattern": pattern }));
        let enums = proptest::collection::vec(any::<i8>(), 1..4).prop_map(|values| json!({ "enum": values }));
        let leaf = prop_oneof![
            integers,
            numbers,
            texts,
            patterns,
            enums,
            Just(json!({ "type": "boolean" })),
            Just(json!({ "type": ["null", "integer"] })),
            Just(json!({})),
            Just(json!({ "const": { "a": [1, null] } })),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let objects = proptest::collection::btree_map(proptest::sample::select(vec!["a", "b", "c", "d"]), (inner.clone(), any::<bool>()), 0..4).prop_map(
                |properties| {
                    let required: Vec<&&str> =
                        properties.iter().filter(|(_, (_, needed))| *needed).map(|(name, _)| name).collect();
                    let described: Map<String, Value> =
                        properties.iter().map(|(name, (schema, _))| ((*name).to_owned(), schema.clone())).collect();
                    json!({ "type": "object", "properties": described, "required": required, "additionalProperties": false })
                },
            );
            let arrays = (inner.clone(), 0_usize..4, 0_usize..4).prop_map(|(items, least, more)| {
                json!({ "type": "array", "items": items, "minItems": least, "maxItems": least + more })
            });
            let choices = proptest::collection::vec(inner.clone(), 1..3).prop_map(|of| json!({ "anyOf": of }));
            let referring = inner.prop_map(|of| json!({ "allOf": [of], "description": "d" }));
            prop_oneof![objects, arrays, choices, referring]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

        #[test]
        fn a_generated_value_matches_its_schema(schema in schemas()) {
            check(&schema);
        }
    }
}
