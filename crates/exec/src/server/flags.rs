//! Command-line flags, typed by the tool's schema.

use serde_json::{Map, Value};
use toolpost_core::{ToolError, ToolSpec, did_you_mean};
use toolpost_schema::{Types, value_of_text};

/// Converts a text into a value of a parameter's type: a string, else JSON; for an array also a single item.
///
/// A text of the wrong type stays a string, so that validation reports it.
pub fn typed_argument(spec: &ToolSpec, name: &str, text: &str) -> Value {
    let root = spec.input_schema.as_value();
    let schema = root.get("properties").and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
    value_of_text(schema, root, text)
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
    pub(super) fn types(&self, schema: &Value) -> Types {
        Types::new(schema, self.spec.input_schema.as_value())
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
        let value = value_of_text(schema, self.spec.input_schema.as_value(), text);
        let is_array = self.types(schema).array;
        match (self.values.get_mut(name), value) {
            (Some(Value::Array(values)), Value::Array(more)) if is_array => {
                values.extend(more);
                Ok(())
            }
            (_, value) => self.once(name, value),
        }
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
