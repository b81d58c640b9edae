//! A value that a schema allows.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Number, Value, json};

use super::Detail;
use super::pattern::matching;

/// From which level on only what must be there is made: a schema may contain itself.
const DEEP: usize = 6;
/// From which level on nothing is made: a schema that must contain itself has no value.
const DEEPEST: usize = 32;
/// How many references are followed one after another.
const MOST_REFERENCES: usize = 16;
/// How many elements a list gets at most, and properties an object that wants more than are described.
const MOST_ELEMENTS: usize = 100;
/// How many characters a text gets at most.
const LONGEST: usize = 10_000;
/// How many values are made in all.
const MOST_VALUES: usize = 10_000;
/// How much of schemas is copied in all: values, characters of texts, parts of what patterns match.
const MOST_COPIED: usize = 4_000_000;

/// A value that the schema allows. Where a schema asks for what this knows nothing of, the value may not fit.
pub(super) fn generate(schema: &Value, detail: Detail) -> Value {
    Maker { root: schema, detail, left: Cell::new(MOST_VALUES), copies: Cell::new(MOST_COPIED) }
        .value(schema, 0, 0)
}

struct Maker<'a> {
    root: &'a Value,
    detail: Detail,
    /// How many values may still be made, and schemas looked at.
    left: Cell<usize>,
    /// How much of schemas may still be copied.
    copies: Cell<usize>,
}

impl Maker<'_> {
    /// A value of a schema at a level. `variant` makes different ones, where the schema allows them.
    fn value(&self, schema: &Value, level: usize, variant: usize) -> Value {
        if level > DEEPEST || self.is_over() {
            return Value::Null;
        }
        let Some(schema) = self.flat(schema, level, 0) else { return json!("text") };
        if let Some(value) = schema.get("const") {
            return value.clone();
        }
        if let Some(Value::Array(values)) = schema.get("enum") {
            let fitting: Vec<&Value> = values.iter().filter(|value| has_type(&schema, value)).collect();
            let values = if fitting.is_empty() { values.iter().collect() } else { fitting };
            return values.get(variant % values.len().max(1)).copied().cloned().unwrap_or_default();
        }
        match kind(&schema) {
            "object" => self.object(&schema, level),
            "array" => self.array(&schema, level),
            "integer" => number(&schema, true, variant),
            "number" => number(&schema, false, variant),
            "boolean" => json!(variant.is_multiple_of(2)),
            "null" => Value::Null,
            _ => json!(text(&schema, variant, &self.copies)),
        }
    }

    /// Counts one step; whether there have been as many as may be.
    fn is_over(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        left == 0
    }

    /// Counts what is copied; whether it is not too much.
    fn may_copy(&self, value: &Value) -> bool {
        let mut waiting = vec![value];
        while let Some(value) = waiting.pop() {
            let size = match value {
                Value::String(text) => 1 + text.len(),
                Value::Array(elements) => {
                    waiting.extend(elements);
                    1
                }
                Value::Object(members) => {
                    waiting.extend(members.values());
                    1 + members.keys().map(String::len).sum::<usize>()
                }
                _ => 1,
            };
            let Some(fewer) = self.copies.get().checked_sub(size) else {
                self.copies.set(0);
                return false;
            };
            self.copies.set(fewer);
        }
        true
    }

    /// A schema with what it refers to and what it is made of; `None` if it allows anything.
    fn flat(&self, schema: &Value, level: usize, references: usize) -> Option<Map<String, Value>> {
        let schema = schema.as_object()?;
        let mut flat = Map::new();
        for (name, value) in schema {
            // Definitions are found from the root.
            let is_told = matches!(
                name.as_str(),
                "$ref" | "allOf" | "anyOf" | "oneOf" | "$defs" | "definitions" | "description" | "examples"
            );
            if !is_told && self.may_copy(value) {
                flat.insert(name.clone(), value.clone());
            }
        }
        if references >= MOST_REFERENCES || self.is_over() {
            return Some(flat);
        }
        if let Some(referred) =
            schema.get("$ref").and_then(Value::as_str).and_then(|name| self.referred(name))
        {
            merge(&mut flat, self.flat(referred, level, references + 1).unwrap_or_default());
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            merge(&mut flat, self.flat(part, level, references + 1).unwrap_or_default());
        }
        for name in ["anyOf", "oneOf"] {
            let Some(choices) = schema.get(name).and_then(Value::as_array) else { continue };
            // Deep down the simplest will do, so that a schema that contains itself comes to an end.
            let is_null = |choice: &&Value| choice.get("type").is_some_and(|kind| kind == "null");
            let has_more =
                |choice: &&Value| choice.get("$ref").is_some() || choice.get("properties").is_some();
            let simple =
                choices.iter().find(is_null).or_else(|| choices.iter().find(|choice| !has_more(choice)));
            let telling = choices.iter().find(|choice| !is_null(choice) && **choice != Value::Bool(false));
            let chosen = if level >= DEEP { simple.or(telling) } else { telling.or(simple) };
            if let Some(chosen) = chosen {
                merge(&mut flat, self.flat(chosen, level, references + 1).unwrap_or_default());
            }
        }
        Some(flat)
    }

    /// What a local reference names.
    fn referred(&self, name: &str) -> Option<&Value> {
        match name.strip_prefix('#')? {
            "" => Some(self.root),
            pointer => self.root.pointer(pointer),
        }
    }

    fn object(&self, schema: &Map<String, Value>, level: usize) -> Value {
        let nothing = Map::new();
        let described = schema.get("properties").and_then(Value::as_object).unwrap_or(&nothing);
        let required = names(schema.get("required"));
        let needed: HashSet<&str> = required.iter().copied().collect();
        let mut missing = needed.len();
        let all = self.detail == Detail::All && level < DEEP;
        let most = size(schema, "maxProperties").unwrap_or(usize::MAX);
        let mut made = Map::new();
        for (name, property) in described {
            let is_needed = needed.contains(name.as_str());
            missing -= usize::from(is_needed);
            let has_room = made.len() + missing < most;
            if is_needed || (all && has_room && *property != Value::Bool(false)) {
                made.insert(name.clone(), self.value(property, level + 1, 0));
            }
        }
        let others = schema.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let depending = schema.get("dependentRequired").and_then(Value::as_object).into_iter().flatten();
        let depended: Vec<&str> = depending
            .filter(|(name, _)| made.contains_key(*name))
            .flat_map(|(_, needed)| names(Some(needed)))
            .collect();
        for name in required.into_iter().chain(depended) {
            if !made.contains_key(name) {
                let property = described.get(name).unwrap_or(&others);
                let value = self.value(property, level + 1, 0);
                made.insert(name.to_owned(), value);
            }
        }
        let least = size(schema, "minProperties").unwrap_or(0).min(MOST_ELEMENTS);
        let optional = described.iter().filter(|(name, _)| !made.contains_key(*name)).collect::<Vec<_>>();
        for (name, property) in optional {
            if made.len() >= least {
                break;
            }
            made.insert(name.clone(), self.value(property, level + 1, 0));
        }
        let mut number = 0;
        while made.len() < least && others != Value::Bool(false) {
            number += 1;
            let value = self.value(&others, level + 1, 0);
            made.entry(format!("key{number}")).or_insert(value);
        }
        Value::Object(made)
    }

    fn array(&self, schema: &Map<String, Value>, level: usize) -> Value {
        let fixed = schema.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default();
        let items = schema.get("items").cloned().unwrap_or(Value::Bool(true));
        let most = size(schema, "maxItems").unwrap_or(MOST_ELEMENTS).min(MOST_ELEMENTS);
        let wanted = if self.detail == Detail::All && level < DEEP { fixed.len().max(1) } else { 0 };
        let contained = schema.get("contains").cloned();
        let least = size(schema, "minItems").unwrap_or(0).max(usize::from(contained.is_some()));
        let count = wanted.max(least).min(most);
        let differ = schema.get("uniqueItems") == Some(&Value::Bool(true));
        let mut made: Vec<Value> = Vec::new();
        // As many tries as could be needed until all are different.
        for variant in 0..count * 4 {
            let place = made.len();
            if place == count {
                break;
            }
            let element = match (&contained, fixed.get(place)) {
                (Some(contained), None) if place == fixed.len() => contained,
                (_, Some(fixed)) => fixed,
                _ => &items,
            };
            // What nothing may be of has no elements.
            if *element == Value::Bool(false) {
                break;
            }
            let value = self.value(element, level + 1, if differ { variant } else { 0 });
            if !differ || !made.contains(&value) {
                made.push(value);
            }
        }
        Value::Array(made)
    }
}

/// Adds to a schema what another one asks for beyond it.
fn merge(into: &mut Map<String, Value>, more: Map<String, Value>) {
    for (name, value) in more {
        match (name.as_str(), into.get_mut(&name), value) {
            (_, None, value) => {
                into.insert(name, value);
            }
            ("properties", Some(Value::Object(ours)), Value::Object(theirs)) => {
                for (name, property) in theirs {
                    match ours.get_mut(&name) {
                        Some(Value::Object(mine)) => {
                            if let Value::Object(property) = property {
                                merge(mine, property);
                            }
                        }
                        Some(_) => {}
                        None => {
                            ours.insert(name, property);
                        }
                    }
                }
            }
            ("required", Some(Value::Array(ours)), Value::Array(theirs)) => ours.extend(theirs),
            ("enum", Some(Value::Array(ours)), Value::Array(theirs)) => {
                let theirs: HashSet<Value> = theirs.into_iter().collect();
                ours.retain(|value| theirs.contains(value));
            }
            (
                "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties",
                Some(ours),
                theirs,
            ) if theirs.as_f64() > ours.as_f64() => {
                *ours = theirs;
            }
            (
                "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties",
                Some(ours),
                theirs,
            ) if theirs.as_f64() < ours.as_f64() => {
                *ours = theirs;
            }
            _ => {}
        }
    }
}

/// The type that is made of those that a schema allows: what it describes, if it names none.
fn kind(schema: &Map<String, Value>) -> &str {
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

/// Whether a value is of a type that the schema allows.
fn has_type(schema: &Map<String, Value>, value: &Value) -> bool {
    let of = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let allows = |kind: &Value| kind == of || (of == "number" && kind == "integer");
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
        // An integer that is a multiple of a fraction is one of a multiple of it.
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

fn text(schema: &Map<String, Value>, variant: usize, steps: &Cell<usize>) -> String {
    let least = size(schema, "minLength").unwrap_or(0).min(LONGEST);
    let most = size(schema, "maxLength").unwrap_or(LONGEST);
    if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && let Some(text) = matching(pattern, least, most, variant, steps)
    {
        return text;
    }
    if let Some(text) =
        schema.get("format").and_then(Value::as_str).and_then(|format| of_format(format, variant))
    {
        return text;
    }
    let mut text = if variant == 0 { "text".to_owned() } else { format!("{variant}text") };
    let length = text.chars().count();
    text.extend(std::iter::repeat_n('x', least.saturating_sub(length)));
    text.chars().take(most).collect()
}

fn of_format(format: &str, variant: usize) -> Option<String> {
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
    use proptest::prelude::*;
    use toolpost_core::Schema;

    use super::*;

    fn check(schema: &Value) {
        for detail in [Detail::All, Detail::Required] {
            let value = generate(schema, detail);
            let problems = Schema::new(schema.clone()).problems(&value).unwrap();
            assert!(problems.is_empty(), "{schema}\n{value}\n{problems:?}");
            assert_eq!(generate(schema, detail), value, "the same every time");
        }
    }

    #[test]
    fn hostile_schemas_end_soon() {
        let many = |count: usize, schema: &Value| -> Value {
            (0..count).map(|number| (format!("p{number}"), schema.clone())).collect::<Map<_, _>>().into()
        };
        let names: Vec<String> = (0..10_000).map(|number| format!("p{number}")).collect();
        let began = std::time::Instant::now();
        for schema in [
            // What is copied with each reference, compared with each other, or tried again and again.
            json!({"properties": many(2_000, &json!({"$ref": "#/$defs/a"})), "$defs": {"a": {"default": "x".repeat(1_000_000)}}}),
            json!({"properties": many(30, &json!({"$ref": "#"})), "default": many(20_000, &json!(1))}),
            json!({"properties": many(10_000, &json!({"type": "null"})), "required": names}),
            json!({"allOf": [{"enum": names}, {"enum": names}]}),
            json!({"properties": many(5_000, &json!({"pattern": "(a{1000}){15}", "minLength": 1_000, "maxLength": 1_001}))}),
        ] {
            generate(&schema, Detail::All);
        }
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    }

    #[test]
    fn schemas_of_tools_get_what_they_ask_for() {
        let of = |schema: Value| generate(&schema, Detail::All);
        let object = json!({
            "type": "object", "additionalProperties": false, "required": ["city"],
            "properties": {
                "city": { "type": "string", "minLength": 6 }, "days": { "type": "integer", "minimum": 3, "maximum": 14 },
                "unit": { "enum": ["c", "f"] }, "at": { "type": ["null", "string"], "format": "date-time" },
                "code": { "type": "string", "pattern": "^[A-Z]{2}-\\d+$" },
            },
        });
        assert_eq!(
            of(object.clone()),
            json!({ "city": "textxx", "days": 3, "unit": "c", "at": "2026-01-02T03:04:00Z", "code": "AA-0" })
        );
        assert_eq!(generate(&object, Detail::Required), json!({ "city": "textxx" }));
        assert_eq!(of(json!({ "type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1 })), json!(0.5));
        assert_eq!(of(json!(true)), json!("text"));
    }

    #[test]
    fn schemas_that_refer_are_followed_and_those_that_contain_themselves_end() {
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
        // No value fits these; what counts is that they end.
        generate(
            &json!({ "type": "object", "required": ["x"], "properties": { "x": { "$ref": "#" } } }),
            Detail::All,
        );
        generate(&json!({ "$ref": "#" }), Detail::All);
        generate(&json!({ "allOf": vec![json!({ "$ref": "#" }); 20] }), Detail::All);
        generate(&json!({ "type": "array", "minItems": 1e18, "items": { "$ref": "#" } }), Detail::All);
    }

    #[test]
    fn parts_are_put_together() {
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

    /// Schemas of the kinds that are supported, each of which has a value.
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
        fn what_is_made_fits_the_schema(schema in schemas()) {
            check(&schema);
        }
    }
}
