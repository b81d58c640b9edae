//! Command-line flags, typed by the tool's schema.

use serde_json::{Map, Value};
use toolpost_core::{ToolError, ToolSpec, did_you_mean};

/// Maximum depth of followed references and alternatives.
const MAX_DEPTH: usize = 8;

/// The types that a schema allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds {
    pub(super) string: bool,
    pub(super) integer: bool,
    pub(super) number: bool,
    pub(super) boolean: bool,
    pub(super) array: bool,
    pub(super) object: bool,
    pub(super) null: bool,
}

impl Kinds {
    /// The schema names no type: parse JSON, else take text.
    pub(super) fn is_unknown(self) -> bool {
        self == Self { null: self.null, ..Self::default() }
    }

    /// Whether a flag needs no value.
    pub(super) fn is_switch(self) -> bool {
        self == Self { boolean: true, null: self.null, ..Self::default() }
    }

    fn takes(self, value: &Value) -> bool {
        match value {
            // Where a string is allowed, the word `null` is one.
            Value::Null => self.null && !self.string,
            Value::Bool(_) => self.boolean,
            Value::Number(number) => self.number || (self.integer && !number.is_f64()),
            Value::String(_) => self.string,
            Value::Array(_) => self.array,
            Value::Object(_) => self.object,
        }
    }
}

/// The target of a reference within the document.
fn target<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a Value> {
    let reference = schema.get("$ref")?.as_str()?;
    root.pointer(reference.strip_prefix('#')?)
}

fn collect(root: &Value, schema: &Value, depth: usize, kinds: &mut Kinds) {
    if depth > MAX_DEPTH {
        return;
    }
    let mut add = |name: &str| match name {
        "string" => kinds.string = true,
        "integer" => kinds.integer = true,
        "number" => kinds.number = true,
        "boolean" => kinds.boolean = true,
        "array" => kinds.array = true,
        "object" => kinds.object = true,
        "null" => kinds.null = true,
        _ => {}
    };
    match schema.get("type") {
        Some(Value::String(name)) => add(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).for_each(add),
        _ => {
            let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
            for value in values.chain(schema.get("const")) {
                match value {
                    Value::String(_) => kinds.string = true,
                    Value::Number(_) => kinds.number = true,
                    Value::Bool(_) => kinds.boolean = true,
                    _ => {}
                }
            }
        }
    }
    if let Some(target) = target(root, schema) {
        collect(root, target, depth + 1, kinds);
    }
    for keyword in ["anyOf", "oneOf", "allOf"] {
        for choice in schema.get(keyword).and_then(Value::as_array).into_iter().flatten() {
            collect(root, choice, depth + 1, kinds);
        }
    }
}

/// The types that a schema allows.
pub(super) fn kinds(root: &Value, schema: &Value) -> Kinds {
    let mut kinds = Kinds::default();
    collect(root, schema, 0, &mut kinds);
    kinds
}

/// The schema of the items of an array.
fn items<'a>(root: &'a Value, schema: &'a Value, depth: usize) -> Option<&'a Value> {
    if depth > MAX_DEPTH {
        return None;
    }
    let choices = ["anyOf", "oneOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array());
    schema
        .get("items")
        .or_else(|| items(root, target(root, schema)?, depth + 1))
        .or_else(|| choices.flatten().find_map(|choice| items(root, choice, depth + 1)))
}

/// Converts a text into a value of a parameter's type: a string, else JSON; for an array also a single item.
///
/// A text of the wrong type stays a string, so that validation reports it.
pub fn typed_argument(spec: &ToolSpec, name: &str, text: &str) -> Value {
    let root = spec.input_schema.as_value();
    let schema = root.get("properties").and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
    match kinds(root, schema) {
        kinds if kinds.array => match value(root, schema, text) {
            null @ Value::Null => null,
            _ => list(root, schema, text).into(),
        },
        _ => value(root, schema, text),
    }
}

/// Parses a JSON array, else one item.
fn list(root: &Value, schema: &Value, text: &str) -> Vec<Value> {
    match serde_json::from_str(text) {
        Ok(Value::Array(values)) => values,
        _ => vec![value(root, items(root, schema, 0).unwrap_or(&Value::Null), text)],
    }
}

/// Converts the value of a flag. A text of the wrong type stays a string, so that validation reports it.
fn value(root: &Value, schema: &Value, text: &str) -> Value {
    let kinds = kinds(root, schema);
    let parsed = || serde_json::from_str::<Value>(text).ok();
    if kinds.is_unknown() {
        return parsed().unwrap_or_else(|| text.into());
    }
    parsed().filter(|value| !value.is_string() && kinds.takes(value)).unwrap_or_else(|| text.into())
}

/// The flags of a command line.
pub(super) struct Flags<'a> {
    spec: &'a ToolSpec,
    values: Map<String, Value>,
}

impl<'a> Flags<'a> {
    pub(super) fn new(spec: &'a ToolSpec) -> Self {
        Self { spec, values: Map::new() }
    }

    fn properties(&self) -> Option<&'a Map<String, Value>> {
        self.spec.input_schema.as_value().get("properties")?.as_object()
    }

    /// The parameter of a flag and its schema: `--max-items` is `max_items`.
    pub(super) fn find(&self, flag: &str) -> Option<(&'a str, &'a Value)> {
        let properties = self.properties()?;
        let plain = flag.replace('-', "_");
        let found = properties.get_key_value(flag).or_else(|| properties.get_key_value(plain.as_str()));
        found.map(|(name, schema)| (name.as_str(), schema))
    }

    /// The types of a parameter.
    pub(super) fn kinds(&self, schema: &Value) -> Kinds {
        kinds(self.spec.input_schema.as_value(), schema)
    }

    /// Whether the schema allows undeclared parameters.
    pub(super) fn takes_any(&self) -> bool {
        !matches!(
            self.spec.input_schema.as_value().get("additionalProperties"),
            Some(Value::Bool(false) | Value::Object(_))
        )
    }

    /// The error for an unknown flag.
    pub(super) fn unknown(&self, flag: &str) -> ToolError {
        let known: Vec<String> =
            self.properties().into_iter().flat_map(Map::keys).map(|name| name.replace('_', "-")).collect();
        let suggestion = did_you_mean(flag, known.iter().map(String::as_str))
            .map_or_else(|| format!("See `{} --help`.", self.spec.name), |text| text.replace(" `", " `--"));
        ToolError::invalid_input(format!("`{}` has no flag `--{flag}`", self.spec.name))
            .suggest(suggestion)
            .with("flag", format!("--{flag}"))
    }

    /// Adds a value. An array grows with each; any other flag is given once.
    pub(super) fn give(&mut self, name: &str, schema: &Value, text: &str) -> Result<(), ToolError> {
        let root = self.spec.input_schema.as_value();
        if self.kinds(schema).array {
            let more = list(root, schema, text);
            match self.values.get_mut(name) {
                Some(Value::Array(values)) => values.extend(more),
                _ => drop(self.values.insert(name.to_owned(), more.into())),
            }
            return Ok(());
        }
        self.once(name, value(root, schema, text))
    }

    /// Sets a flag without a value.
    pub(super) fn switch(&mut self, name: &str, on: bool) -> Result<(), ToolError> {
        self.once(name, on.into())
    }

    fn once(&mut self, name: &str, value: Value) -> Result<(), ToolError> {
        if self.values.insert(name.to_owned(), value).is_none() {
            return Ok(());
        }
        Err(ToolError::invalid_input(format!("`--{}` is given twice", name.replace('_', "-")))
            .with("pointer", format!("/{name}"))
            .suggest("Give it once; only arrays take several values."))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn into_value(self) -> Value {
        self.values.into()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_text_gets_the_schemas_type() {
        let spec = ToolSpec::new("look", "Look.").input(json!({
            "type": "object",
            "properties": {
                "text": { "type": ["string", "null"] },
                "days": { "type": ["integer", "null"] },
                "names": { "type": "array", "items": { "type": "string" } },
                "mode": { "enum": ["1", "fast"] },
                "either": { "anyOf": [{ "type": "boolean" }, { "type": "string" }] },
                "any": {}
            }
        }));
        for (name, text, expected) in [
            ("text", "5", json!("5")),
            ("text", "null", json!("null")),
            ("days", "5", json!(5)),
            ("days", "null", json!(null)),
            ("days", "many", json!("many")),
            ("names", "5", json!(["5"])),
            ("names", "[\"a\", \"b\"]", json!(["a", "b"])),
            ("mode", "1", json!("1")),
            ("either", "true", json!(true)),
            ("either", "maybe", json!("maybe")),
            ("any", "[1]", json!([1])),
            ("unknown", "x", json!("x")),
        ] {
            assert_eq!(typed_argument(&spec, name, text), expected, "{name}={text}");
        }
    }
}
