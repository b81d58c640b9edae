//! Reads the fields of an object and rejects unknown ones.

use serde_json::{Map, Value};
use toolpost_core::{ToolError, did_you_mean};

/// The fields of one object.
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The JSON pointer of the object.
    place: String,
    known: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub(super) fn new(value: &'a Value, place: impl Into<String>) -> Result<Self, ToolError> {
        let place = place.into();
        match value {
            Value::Object(map) => Ok(Self { map, place, known: Vec::new() }),
            other => Err(ToolError::invalid_input(format!(
                "{}: expected an object, found {}",
                if place.is_empty() { "the description" } else { &place },
                kind(other)
            ))
            .with("pointer", place)),
        }
    }

    /// The JSON pointer of a field.
    pub(super) fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.place)
    }

    /// An error about a field.
    pub(super) fn wrong(&self, name: &str, message: impl std::fmt::Display) -> ToolError {
        let place = self.place(name);
        ToolError::invalid_input(format!("{place}: {message}")).with("pointer", place)
    }

    /// A field, unless it is missing or `null`.
    pub(super) fn any(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &mut self,
        name: &'static str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ToolError> {
        let Some(value) = self.any(name) else { return Ok(None) };
        let wrong = || self.wrong(name, format!("expected {expected}, found {}", kind(value)));
        read(value).ok_or_else(wrong).map(Some)
    }

    pub(super) fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, ToolError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(super) fn required_text(&mut self, name: &'static str) -> Result<&'a str, ToolError> {
        let found = self.text(name)?;
        found.ok_or_else(|| {
            let place = self.place(name);
            ToolError::missing_param(format!("{place} is missing")).with("pointer", place)
        })
    }

    /// A string that is one of these choices, or the default.
    pub(super) fn choice(
        &mut self,
        name: &'static str,
        choices: &[&'static str],
        default: &'static str,
    ) -> Result<&'static str, ToolError> {
        let Some(found) = self.text(name)? else { return Ok(default) };
        choices.iter().find(|choice| **choice == found).copied().ok_or_else(|| {
            let shown: String = found.chars().take(80).collect();
            self.wrong(name, format!("expected one of {}, found `{shown}`", choices.join(", ")))
                .suggest_maybe(did_you_mean(found, choices.iter().copied()))
        })
    }

    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, ToolError> {
        Ok(self.typed(name, "a boolean", Value::as_bool)?.unwrap_or(default))
    }

    pub(super) fn whole(&mut self, name: &'static str) -> Result<Option<u64>, ToolError> {
        self.typed(name, "an integer of at least 0", Value::as_u64)
    }

    pub(super) fn number(&mut self, name: &'static str) -> Result<Option<&'a Value>, ToolError> {
        self.typed(name, "a number", |value| value.is_number().then_some(value))
    }

    /// A number above 0.
    pub(super) fn positive(&mut self, name: &'static str) -> Result<Option<f64>, ToolError> {
        self.typed(name, "a number above 0", |value| value.as_f64().filter(|number| *number > 0.0))
    }

    pub(super) fn list(&mut self, name: &'static str) -> Result<&'a [Value], ToolError> {
        let found = self.typed(name, "an array", Value::as_array)?;
        Ok(found.map(Vec::as_slice).unwrap_or_default())
    }

    pub(super) fn object(&mut self, name: &'static str) -> Result<Option<&'a Map<String, Value>>, ToolError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A list of strings.
    pub(super) fn texts(&mut self, name: &'static str) -> Result<Vec<String>, ToolError> {
        let items = self.list(name)?.iter().enumerate();
        items
            .map(|(index, item)| {
                item.as_str().map(ToOwned::to_owned).ok_or_else(|| {
                    self.wrong(&format!("{name}/{index}"), format!("expected a string, found {}", kind(item)))
                })
            })
            .collect()
    }

    /// Rejects the fields that were not read.
    pub(super) fn finish(self) -> Result<(), ToolError> {
        let Some(unknown) = self.map.keys().find(|name| !self.known.contains(&name.as_str())) else {
            return Ok(());
        };
        let shown: String = unknown.chars().take(80).collect();
        let hint = did_you_mean(unknown, self.known.iter().copied());
        let error = self.wrong(&shown, "unknown field");
        Err(error.suggest(hint.unwrap_or_else(|| format!("Known fields: {}.", self.known.join(", ")))))
    }
}

/// The JSON type of a value, with its article.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
