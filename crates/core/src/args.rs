//! The arguments of a call, after they were checked.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::ToolError;

/// Up to how many arguments are searched one by one.
const FEW: usize = 16;

/// The arguments of a call: a JSON object that fits the tool's input schema.
#[derive(Clone, Debug, PartialEq)]
pub struct Args(Arc<Value>);

impl Args {
    /// Wraps a JSON value. The call path does this after the check; tests may do it at will.
    pub fn new(value: impl Into<Arc<Value>>) -> Self {
        Self(value.into())
    }

    /// The whole object.
    pub fn as_value(&self) -> &Value {
        &self.0
    }

    /// One argument, undecoded.
    pub fn get(&self, name: &str) -> Option<&Value> {
        match &*self.0 {
            // Among few, comparing is faster than hashing.
            Value::Object(map) if map.len() <= FEW => {
                map.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
            }
            value => value.get(name),
        }
    }

    /// One argument, decoded; `null` and absence are the same to an `Option`.
    ///
    /// # Errors
    /// `MISSING_PARAM` or `INVALID_INPUT`, with the argument's JSON pointer.
    pub fn decode<T: DeserializeOwned>(&self, name: &str) -> Result<T, ToolError> {
        let value = self.get(name).unwrap_or(&Value::Null);
        T::deserialize(value).map_err(|error| {
            if self.get(name).is_none() {
                ToolError::missing_param(format!("the argument `{name}` is missing"))
            } else {
                // The reason may quote the value, and that may be secret.
                let reason = error.to_string();
                let quoted = value.as_str().filter(|text| !text.is_empty());
                let reason = quoted.map_or(reason.clone(), |text| reason.replace(text, "…"));
                ToolError::invalid_input(format!("the argument `{name}` does not fit: {reason}"))
            }
            .with("pointer", format!("/{name}"))
        })
    }

    /// All arguments, decoded into one value.
    ///
    /// # Errors
    /// `INVALID_INPUT`.
    pub fn decode_all<T: DeserializeOwned>(&self) -> Result<T, ToolError> {
        T::deserialize(self.as_value())
            .map_err(|error| ToolError::invalid_input(format!("the arguments do not fit: {error}")))
    }
}

impl From<Value> for Args {
    fn from(value: Value) -> Self {
        Self(Arc::new(value))
    }
}
