//! TOML text as JSON values.

use serde_json::Value;
use toml_edit::{Document, Item};

/// The JSON of a TOML value; a date becomes a string.
pub(crate) fn json(item: &Item) -> Value {
    fn value(found: &toml_edit::Value) -> Value {
        match found {
            toml_edit::Value::String(text) => text.value().as_str().into(),
            toml_edit::Value::Integer(number) => (*number.value()).into(),
            toml_edit::Value::Float(number) => (*number.value()).into(),
            toml_edit::Value::Boolean(flag) => (*flag.value()).into(),
            toml_edit::Value::Datetime(time) => time.value().to_string().into(),
            toml_edit::Value::Array(items) => items.iter().map(value).collect(),
            toml_edit::Value::InlineTable(table) => {
                Value::Object(table.iter().map(|(name, item)| (name.to_owned(), value(item))).collect())
            }
        }
    }
    match item {
        Item::Value(found) => value(found),
        Item::None => Value::Null,
        Item::Table(table) => {
            Value::Object(table.iter().map(|(name, item)| (name.to_owned(), json(item))).collect())
        }
        Item::ArrayOfTables(tables) => tables
            .iter()
            .map(|table| {
                Value::Object(table.iter().map(|(name, item)| (name.to_owned(), json(item))).collect())
            })
            .collect(),
    }
}

/// Parses a TOML file as one value.
///
/// # Errors
/// The line and the problem.
pub(crate) fn toml_value(text: &str) -> Result<Value, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    Ok(json(document.as_item()))
}

/// Parses a TOML file as entries with lines.
///
/// # Errors
/// The line and the problem.
pub(crate) fn toml_entries(text: &str) -> Result<Vec<(String, Value, usize)>, String> {
    let document = Document::parse(text).map_err(|error| error.to_string())?;
    let entry = |(name, item): (&str, &Item)| {
        let key = document.as_table().key(name).and_then(toml_edit::Key::span);
        let start = key.or_else(|| item.span()).map_or(0, |span| span.start);
        let line = text.get(..start).map_or(0, |before| before.matches('\n').count() + 1);
        (name.to_owned(), json(item), line)
    };
    Ok(document.as_table().iter().map(entry).collect())
}
