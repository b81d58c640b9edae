//! Integers beyond 64 bits in JSON values, which would round them as numbers.

use std::fmt;

use serde::ser::{Error as _, Serialize, SerializeMap as _, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

/// The digits of an integer beyond 64 bits: a value `{"type": "int", "text": DIGITS}`.
///
/// Code in a sandbox returns such integers in this form.
pub fn wide_integer(value: &Value) -> Option<&str> {
    let members = value.as_object().filter(|members| members.len() == 2)?;
    let text =
        members.get("text")?.as_str().filter(|_| members.get("type").is_some_and(|kind| kind == "int"))?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    let is_wide = digits.len() >= 19 && text.parse::<i64>().is_err() && text.parse::<u64>().is_err();
    (is_integer && is_wide).then_some(text)
}

/// A JSON value whose integers beyond 64 bits serialize as JSON numbers, for readers that keep their digits.
#[derive(Clone, Copy, Debug)]
pub struct WideJson<'a>(pub &'a Value);

impl Serialize for WideJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Array(items) => serializer.collect_seq(items.iter().map(WideJson)),
            Value::Object(members) => match wide_integer(self.0) {
                Some(digits) => {
                    RawValue::from_string(digits.to_owned()).map_err(S::Error::custom)?.serialize(serializer)
                }
                None => {
                    let mut map = serializer.serialize_map(Some(members.len()))?;
                    members
                        .iter()
                        .try_for_each(|(name, value)| map.serialize_entry(name, &WideJson(value)))?;
                    map.end()
                }
            },
            plain => plain.serialize(serializer),
        }
    }
}

impl fmt::Display for WideJson<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn integers_beyond_64_bits_serialize_as_numbers_and_nothing_else_changes() {
        let wide = |text: &str| json!({ "type": "int", "text": text });
        for (value, expected) in [
            (wide("18446744073709551616"), "18446744073709551616"),
            (wide("-9223372036854775809"), "-9223372036854775809"),
            (
                json!({ "a": [wide("100000000000000000000"), 1.5, null] }),
                r#"{"a":[100000000000000000000,1.5,null]}"#,
            ),
            (wide("18446744073709551615"), r#"{"type":"int","text":"18446744073709551615"}"#),
            (wide("018446744073709551616"), r#"{"type":"int","text":"018446744073709551616"}"#),
            (wide("0x1000000000000000000000"), r#"{"type":"int","text":"0x1000000000000000000000"}"#),
            (wide("--9223372036854775809"), r#"{"type":"int","text":"--9223372036854775809"}"#),
            (wide(""), r#"{"type":"int","text":""}"#),
            (
                json!({ "type": "str", "text": "18446744073709551616" }),
                r#"{"type":"str","text":"18446744073709551616"}"#,
            ),
            (
                json!({ "type": "int", "text": "18446744073709551616", "size": 1 }),
                r#"{"type":"int","text":"18446744073709551616","size":1}"#,
            ),
        ] {
            assert_eq!(WideJson(&value).to_string(), expected);
        }
    }
}
