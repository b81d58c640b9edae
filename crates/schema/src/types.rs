//! The types that a schema allows.

use serde_json::{Map, Value};

use crate::walk::applicable;

/// Maximum number of schemas that are visited for one parameter: branches and references.
const MAX_CANDIDATES: usize = 64;

/// The types that a schema and its branches name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types {
    /// Strings.
    pub string: bool,
    /// Whole numbers.
    pub integer: bool,
    /// Numbers.
    pub number: bool,
    /// `true` and `false`.
    pub boolean: bool,
    /// Lists.
    pub array: bool,
    /// Objects.
    pub object: bool,
    /// `null`.
    pub null: bool,
}

impl Types {
    /// The types that a schema names, implies, or references.
    pub fn new(schema: &Value, root: &Value) -> Self {
        let mut types = Self::default();
        for name in applicable([schema], root, MAX_CANDIDATES).into_iter().flat_map(type_names) {
            match name {
                "string" => types.string = true,
                "integer" => types.integer = true,
                "number" => types.number = true,
                "boolean" => types.boolean = true,
                "array" => types.array = true,
                "object" => types.object = true,
                "null" => types.null = true,
                _ => {}
            }
        }
        types
    }

    /// Whether the schema names no type beside `null`.
    pub fn is_unknown(self) -> bool {
        self == Self { null: self.null, ..Self::default() }
    }

    /// Whether the schema allows booleans only, perhaps with `null`.
    pub fn is_boolean(self) -> bool {
        self == Self { boolean: true, null: self.null, ..Self::default() }
    }

    /// Whether the schema allows the value's type. A schema for strings takes the text `null` as a string.
    pub(crate) fn takes(self, value: &Value) -> bool {
        match value {
            Value::Null => self.null && !self.string,
            Value::Bool(_) => self.boolean,
            Value::Number(number) => self.number || (self.integer && !number.is_f64()),
            Value::String(_) => self.string,
            Value::Array(_) => self.array,
            Value::Object(_) => self.object,
        }
    }
}

/// The schema of an array's elements.
pub(crate) fn items<'a>(schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    applicable([schema], root, MAX_CANDIDATES).into_iter().find_map(|schema| schema.get("items"))
}

/// The types that a schema names or implies, without its branches; empty for any type.
pub fn type_names<'a>(schema: &'a Map<String, Value>) -> Vec<&'a str> {
    let mut types: Vec<&str> = Vec::new();
    let mut add = |name: &'a str| {
        if !types.contains(&name) {
            types.push(name);
        }
    };
    let has = |names: &[&str]| names.iter().any(|name| schema.contains_key(*name));
    match (schema.get("type"), schema.get("const"), schema.get("enum")) {
        (Some(Value::String(name)), ..) => add(plain_type(name)),
        (Some(Value::Array(names)), ..) => {
            names.iter().filter_map(Value::as_str).take(TYPES.len()).map(plain_type).for_each(add);
        }
        _ if has(&["properties", "additionalProperties", "patternProperties"]) => add("object"),
        _ if has(&["items", "prefixItems"]) => add("array"),
        (_, Some(value), _) => add(type_name(value)),
        (.., Some(Value::Array(values))) => values.iter().for_each(|value| add(type_name(value))),
        _ => {}
    }
    types
}

/// The types of JSON Schema.
const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

/// A type's name in JSON Schema. Gemini's clients write it in upper case.
fn plain_type(name: &str) -> &str {
    TYPES.into_iter().find(|plain| plain.eq_ignore_ascii_case(name)).unwrap_or(name)
}

/// The JSON Schema type of a value.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
