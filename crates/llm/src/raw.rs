//! JSON values that keep their text.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::surrogates;

/// A JSON value as text. It preserves every digit and the order of keys. Cheap to clone.
///
/// Line breaks between tokens are removed, so that the text fits on one line. An unpaired surrogate (`\ud83d`) becomes
/// the replacement character.
#[derive(Clone)]
pub struct RawJson(Arc<RawValue>);

impl RawJson {
    /// Parses JSON text. Fails unless it is exactly one value.
    pub fn parse(text: impl Into<String>) -> Result<Self, serde_json::Error> {
        RawValue::from_string(text.into()).map(Self::from)
    }

    /// Serializes a value.
    pub fn from_value(value: &(impl Serialize + ?Sized)) -> Result<Self, serde_json::Error> {
        serde_json::value::to_raw_value(value).map(Self::from)
    }

    /// The JSON text.
    pub fn get(&self) -> &str {
        self.0.get()
    }

    /// Deserializes the value. Fails at another shape or at more than 128 levels.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.get())
    }

    /// Converts to a [`Value`], which rounds integers beyond 64 bits.
    pub fn to_value(&self) -> Result<Value, serde_json::Error> {
        self.read()
    }
}

impl From<Box<RawValue>> for RawJson {
    fn from(raw: Box<RawValue>) -> Self {
        if let Cow::Owned(text) = surrogates::replaced(raw.get())
            && let Ok(whole) = RawValue::from_string(text)
        {
            return Self::from(whole);
        }
        // A fold over all bytes is vectorized, an early exit is not.
        let has_breaks = raw.get().bytes().fold(false, |has, byte| has | matches!(byte, b'\n' | b'\r'));
        if has_breaks && let Ok(one_line) = RawValue::from_string(without_white_space(raw.get())) {
            return Self(one_line.into());
        }
        Self(raw.into())
    }
}

impl From<&RawValue> for RawJson {
    fn from(raw: &RawValue) -> Self {
        Self::from(raw.to_owned())
    }
}

impl From<&Value> for RawJson {
    fn from(value: &Value) -> Self {
        // A `Value` always serializes.
        Self::from_value(value).unwrap_or_else(|_| Self(RawValue::NULL.to_owned().into()))
    }
}

/// Equal text or equal value. The order of keys and white space do not count; `1` and `1.0` differ.
impl PartialEq for RawJson {
    fn eq(&self, other: &Self) -> bool {
        if self.get() == other.get() {
            return true;
        }
        matches!((self.to_value(), other.to_value()), (Ok(a), Ok(b)) if a == b)
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl fmt::Display for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.get())
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<RawValue>::deserialize(deserializer).map(Self::from)
    }
}

/// Removes the white space between tokens.
fn without_white_space(json: &str) -> String {
    let mut compact = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for character in json.chars() {
        if in_string {
            if escaped {
                escaped = false;
            } else if character == '\\' {
                escaped = true;
            } else if character == '"' {
                in_string = false;
            }
        } else if character.is_ascii_whitespace() {
            continue;
        } else if character == '"' {
            in_string = true;
        }
        compact.push(character);
    }
    compact
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_key_order_are_preserved() {
        let text = r#"{"z":1.0,"a":123456789012345678901234567890,"e":1e400,"s":"\u0041 \" x"}"#;
        let raw = RawJson::parse(text).unwrap();
        assert_eq!(serde_json::to_string(&raw).unwrap(), text);
        let copy: RawJson = serde_json::from_str(&serde_json::to_string(&raw).unwrap()).unwrap();
        assert_eq!(copy.get(), text);
    }

    #[test]
    fn line_breaks_between_tokens_are_removed() {
        let raw = RawJson::parse("{\n \"a b\" : [1,\r\n 2 ], \"c\": \"x \\\" \\n y\"}\n").unwrap();
        assert_eq!(raw.get(), r#"{"a b":[1,2],"c":"x \" \n y"}"#);
    }

    #[test]
    fn unpaired_surrogates_are_replaced() {
        let raw = RawJson::parse(r#"{"a":"x\ud83d"}"#).unwrap();
        assert_eq!(raw.to_value().unwrap(), serde_json::json!({"a": "x\u{fffd}"}));
    }

    #[test]
    fn equality_is_by_value() {
        let of = |text: &str| RawJson::parse(text).unwrap();
        assert_eq!(of(r#"{"a":1,"b":2}"#), of(r#"{"b": 2, "a": 1}"#));
        assert_ne!(of("1"), of("1.0"));
        assert!(RawJson::parse("1 2").is_err());
    }

    #[test]
    fn deep_nesting_does_not_overflow() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let raw = RawJson::parse(deep.clone()).unwrap();
        assert_eq!(raw.get(), deep);
        assert!(raw.to_value().is_err());
    }
}
