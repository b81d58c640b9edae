//! The validated arguments of a call.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ToolError;

/// Up to this many arguments, a linear search is faster than hashing.
const MAX_LINEAR: usize = 16;

/// The arguments of a call: a JSON object that fits the tool's input schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Args(Arc<Value>);

impl Args {
    /// Wraps a JSON value. The call path does this after validation; tests may do so at any time.
    pub fn new(value: impl Into<Arc<Value>>) -> Self {
        Self(value.into())
    }

    /// The whole object.
    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// One argument as JSON.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match &*self.0 {
            Value::Object(map) if map.len() <= MAX_LINEAR => {
                map.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
            }
            value => value.get(name),
        }
    }

    /// One argument, decoded. For an `Option`, `null` and absence are the same.
    ///
    /// # Errors
    /// `MISSING_PARAM` or `INVALID_INPUT`, with the argument's JSON pointer.
    pub fn decode<T: DeserializeOwned>(&self, name: &str) -> Result<T, ToolError> {
        let value = self.get(name).unwrap_or(&Value::Null);
        T::deserialize(value).map_err(|error| {
            if self.get(name).is_none() {
                ToolError::missing_param(format!("the argument `{name}` is missing"))
            } else {
                // The message may quote the value, which may be secret.
                let reason = error.to_string();
                let quoted = value.as_str().filter(|text| !text.is_empty());
                let reason = quoted.map_or(reason.clone(), |text| reason.replace(text, "…"));
                ToolError::invalid_input(format!("argument `{name}` is invalid: {reason}"))
            }
            .with("pointer", format!("/{name}"))
        })
    }

    /// All arguments, decoded into one type.
    ///
    /// # Errors
    /// `INVALID_INPUT`.
    pub fn decode_all<T: DeserializeOwned>(&self) -> Result<T, ToolError> {
        T::deserialize(self.as_value())
            .map_err(|error| ToolError::invalid_input(format!("invalid arguments: {error}")))
    }
}

impl From<Value> for Args {
    fn from(value: Value) -> Self {
        Self(Arc::new(value))
    }
}
