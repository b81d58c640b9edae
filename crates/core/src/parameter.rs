//! Names of parameter types and their JSON Schemas.

use std::str::FromStr;

use serde_json::{Map, Value, json};

/// A parameter type by its common name.
///
/// | name | JSON Schema |
/// |---|---|
/// | `string` `integer` `number` `boolean` `array` `object` `null` | the type of that name |
/// | `any` | no restriction |
/// | `file` | a string: a non-empty path without a NUL character |
/// | `url` | a string with format `uri` |
/// | `email` `uuid` | a string of that format |
/// | `datetime` | a string with format `date-time` (RFC 3339) |
/// | `json` | a string that parses as JSON |
/// | `base64` | a string in base64 |
/// | `code` | a string without a NUL character |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParameterType {
    /// `string`.
    String,
    /// `integer`.
    Integer,
    /// `number`.
    Number,
    /// `boolean`.
    Boolean,
    /// `array`.
    Array,
    /// `object`.
    Object,
    /// `null`.
    Null,
    /// `any`.
    Any,
    /// `file`: a path.
    File,
    /// `url`.
    Url,
    /// `email`.
    Email,
    /// `uuid`.
    Uuid,
    /// `datetime`: RFC 3339.
    DateTime,
    /// `json`: JSON as text.
    Json,
    /// `base64`.
    Base64,
    /// `code`: source text.
    Code,
}

/// Name, type, and the format of a string type.
const TABLE: [(&str, ParameterType, Option<&str>); 16] = [
    ("string", ParameterType::String, None),
    ("integer", ParameterType::Integer, None),
    ("number", ParameterType::Number, None),
    ("boolean", ParameterType::Boolean, None),
    ("array", ParameterType::Array, None),
    ("object", ParameterType::Object, None),
    ("null", ParameterType::Null, None),
    ("any", ParameterType::Any, None),
    ("file", ParameterType::File, Some("file")),
    ("url", ParameterType::Url, Some("uri")),
    ("email", ParameterType::Email, Some("email")),
    ("uuid", ParameterType::Uuid, Some("uuid")),
    ("datetime", ParameterType::DateTime, Some("date-time")),
    ("json", ParameterType::Json, Some("json")),
    ("base64", ParameterType::Base64, Some("base64")),
    ("code", ParameterType::Code, Some("code")),
];

impl ParameterType {
    /// The common name.
    pub fn name(self) -> &'static str {
        TABLE.iter().find(|(_, kind, _)| *kind == self).map_or("any", |(name, ..)| name)
    }

    /// The JSON Schema of the type.
    pub fn schema(self) -> Value {
        match TABLE.iter().find(|(_, kind, _)| *kind == self) {
            None | Some((_, Self::Any, _)) => json!({}),
            Some((_, _, Some(format))) => json!({ "type": "string", "format": format }),
            Some((name, ..)) => json!({ "type": name }),
        }
    }

    /// The JSON Schema format for a common or standard name: `url` is `uri`, `datetime` is `date-time`.
    pub fn format_for(name: &str) -> &str {
        TABLE.iter().find(|(known, ..)| *known == name).and_then(|(.., format)| *format).unwrap_or(name)
    }
}

impl FromStr for ParameterType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        TABLE.iter().find(|(name, ..)| *name == text).map(|(_, kind, _)| *kind).ok_or_else(|| {
            let names = TABLE.map(|(name, ..)| name);
            let hint = crate::did_you_mean(text, names).unwrap_or_default();
            format!("`{text}` is not a parameter type; expected one of {}. {hint}", names.join(", "))
        })
    }
}

/// The kind of a value, for messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The schema of an object with these properties: name, schema, and whether the property is required.
///
/// A closed object allows no other properties.
pub fn object_schema<'a>(
    parameters: impl IntoIterator<Item = (&'a str, &'a Value, bool)>,
    is_closed: bool,
) -> Map<String, Value> {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, schema, is_required) in parameters {
        properties.insert(name.to_owned(), schema.clone());
        if is_required {
            required.push(Value::from(name));
        }
    }
    let mut schema = Map::new();
    schema.insert("type".into(), "object".into());
    schema.insert("properties".into(), properties.into());
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
    if is_closed {
        schema.insert("additionalProperties".into(), false.into());
    }
    schema
}
