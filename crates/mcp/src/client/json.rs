//! Parses JSON of servers: repairs texts that common serializers write although JSON does not have them.

use std::fmt::{self, Write as _};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::convert::inward::shortened;

/// The byte order mark in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Numbers that JSON does not have, longest first.
const NON_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// A parsed value, and a sentence for each kind of loss.
#[derive(Debug, PartialEq)]
pub(super) struct Parsed {
    pub(super) value: Value,
    pub(super) losses: Vec<String>,
}

impl From<Value> for Parsed {
    fn from(value: Value) -> Self {
        Self { value, losses: Vec::new() }
    }
}

/// Parses one value. Repairs the text only if it is not JSON.
///
/// # Errors
/// The repaired text is not JSON.
pub(super) fn parse(bytes: &[u8]) -> Result<Parsed, serde_json::Error> {
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    if let Ok(parsed) = parse_exactly(bytes) {
        return Ok(parsed);
    }
    let text = String::from_utf8_lossy(bytes);
    let is_utf8 = matches!(text, std::borrow::Cow::Borrowed(_));
    let repaired = Repaired::from_text(&text);
    let mut parsed = parse_exactly(repaired.text.as_bytes())?;
    for (is_lost, loss) in [
        (!is_utf8, "bytes that are not UTF-8 were replaced by U+FFFD"),
        (repaired.has_surrogate, "unpaired surrogates were replaced by U+FFFD"),
        (repaired.has_non_number, "NaN and infinite numbers were replaced by null"),
    ] {
        if is_lost {
            parsed.losses.push(loss.to_owned());
        }
    }
    Ok(parsed)
}

fn parse_exactly(bytes: &[u8]) -> Result<Parsed, serde_json::Error> {
    let mut twice = None;
    let mut parser = serde_json::Deserializer::from_slice(bytes);
    let value = Members(&mut twice).deserialize(&mut parser)?;
    parser.end()?;
    let losses = twice.into_iter().map(|key: String| {
        format!("the member `{}` occurs twice; the last one is used", shortened(&key, 80))
    });
    Ok(Parsed { value, losses: losses.collect() })
}

/// Builds a value and finds the first member that occurs twice with different values.
struct Members<'a>(&'a mut Option<String>);

impl<'de> DeserializeSeed<'de> for Members<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Members<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Members(self.0))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value = members.next_value_seed(Members(self.0))?;
            if let Some(first) = fields.get(&key)
                && *first != value
            {
                self.0.get_or_insert_with(|| key.clone());
            }
            fields.insert(key, value);
        }
        Ok(Value::Object(fields))
    }
}

/// A text in which each fault that a serializer is known for is replaced.
#[derive(Default)]
struct Repaired {
    text: String,
    has_surrogate: bool,
    has_non_number: bool,
}

impl Repaired {
    fn from_text(text: &str) -> Self {
        let mut repaired = Self { text: String::with_capacity(text.len()), ..Self::default() };
        let mut rest = text;
        let mut in_string = false;
        while let Some(letter) = rest.chars().next() {
            let width = match letter {
                '"' => {
                    in_string = !in_string;
                    repaired.text.push('"');
                    1
                }
                '\\' if in_string => repaired.escape(rest),
                letter if in_string && letter < ' ' => {
                    // Writing to a string cannot fail.
                    let _ = write!(repaired.text, "\\u{:04x}", u32::from(letter));
                    1
                }
                _ if in_string => repaired.copy(letter),
                letter => match NON_NUMBERS.iter().find(|word| rest.starts_with(**word)) {
                    Some(word) => {
                        repaired.text += "null";
                        repaired.has_non_number = true;
                        word.len()
                    }
                    None => repaired.copy(letter),
                },
            };
            rest = rest.get(width..).unwrap_or_default();
        }
        repaired
    }

    fn copy(&mut self, letter: char) -> usize {
        self.text.push(letter);
        letter.len_utf8()
    }

    /// Copies an escape and returns its length.
    fn escape(&mut self, rest: &str) -> usize {
        let mut take = |length: usize| {
            self.text += rest.get(..length).unwrap_or_default();
            length
        };
        match rest.as_bytes().get(1) {
            Some(b'u') => match (half(rest), rest.get(6..).and_then(half)) {
                (None, _) if rest.get(2..6).is_some_and(is_hex) => take(6),
                (Some(Half::High), Some(Half::Low)) => take(12),
                (Some(_), _) => {
                    self.text += "\\ufffd";
                    self.has_surrogate = true;
                    6
                }
                (None, _) => {
                    self.text += "\\\\";
                    1
                }
            },
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => take(2),
            // Not an escape of JSON: the backslash itself.
            _ => {
                self.text += "\\\\";
                1
            }
        }
    }
}

fn is_hex(digits: &str) -> bool {
    digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// A half of a surrogate pair.
enum Half {
    High,
    Low,
}

/// The surrogate that a text begins with.
fn half(text: &str) -> Option<Half> {
    let digits = text.strip_prefix("\\u")?.get(..4).filter(|digits| is_hex(digits))?;
    match u16::from_str_radix(digits, 16).ok()? {
        0xD800..=0xDBFF => Some(Half::High),
        0xDC00..=0xDFFF => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_text_that_is_almost_json_is_repaired_and_each_loss_named() {
        for (text, value, loss) in [
            (br#"{"a":1}"#.as_slice(), json!({ "a": 1 }), ""),
            (b"\xef\xbb\xbf{\"a\":1}", json!({ "a": 1 }), ""),
            (b"[\"caf\xe9\"]", json!(["caf\u{fffd}"]), "not UTF-8"),
            (br#"["a\ud83d b"]"#, json!(["a\u{fffd} b"]), "surrogates"),
            (br#"["\ude00","\ud83d\ude00"]"#, json!(["\u{fffd}", "😀"]), "surrogates"),
            (br#"["\\ud83d"]"#, json!(["\\ud83d"]), ""),
            (br#"{"n":NaN,"i":-Infinity,"s":"NaN"}"#, json!({ "n": null, "i": null, "s": "NaN" }), "NaN"),
            (b"[\"a\tb\x01\"]", json!(["a\tb\u{1}"]), ""),
            (br#"["C:\x\u12"]"#, json!(["C:\\x\\u12"]), ""),
            (br#"{"a":1,"a":2}"#, json!({ "a": 2 }), "`a` occurs twice"),
            (br#"{"a":{"b":[1]},"a":{"b":[1]}}"#, json!({ "a": { "b": [1] } }), ""),
            (b"[1e400,-0.0,18446744073709551615]", json!(null), "error"),
        ] {
            let shown = String::from_utf8_lossy(text);
            match parse(text) {
                Ok(parsed) => {
                    assert_eq!(parsed.value, value, "{shown}");
                    let losses = parsed.losses.join(" ");
                    assert!(
                        losses.contains(loss) && losses.is_empty() == loss.is_empty(),
                        "{shown}: {losses}"
                    );
                }
                Err(error) => assert_eq!(loss, "error", "{shown}: {error}"),
            }
        }
        for text in ["", "{", "[1] [2]", "<html>", "{'a': 1}", "\"", "\"\\", "\"\\u", "[1,]"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
