//! Values of command-line flags and other texts, typed by a schema.

use serde_json::Value;

use crate::types::{Types, items};

/// Converts a text into a value of the schema's type: a string, else JSON; for an array also a single element.
///
/// A text of the wrong type stays a string, so that validation reports it. `root` is the document of the references.
///
/// ```
/// use serde_json::json;
/// use toolpost_schema::value_of_text;
///
/// let schema = json!({"type": "array", "items": {"type": "integer"}});
/// assert_eq!(value_of_text(&schema, &schema, "5"), json!([5]));
/// ```
pub fn value_of_text(schema: &Value, root: &Value, text: &str) -> Value {
    let types = Types::new(schema, root);
    let value = simple(types, text);
    if !types.array || value.is_null() || value.is_array() {
        return value;
    }
    let any = Value::Null;
    let element = items(schema, root).unwrap_or(&any);
    vec![simple(Types::new(element, root), text)].into()
}

fn simple(types: Types, text: &str) -> Value {
    let parsed = || serde_json::from_str::<Value>(text).ok();
    if types.is_unknown() {
        return parsed().unwrap_or_else(|| text.into());
    }
    parsed().filter(|value| !value.is_string() && types.takes(value)).unwrap_or_else(|| text.into())
}
