//! Secrets and their masking.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::Value;

/// Replaces a secret in a text.
pub(crate) const MASK: &str = "[secret]";

/// A line or number of a secret is masked by itself if it is longer than this, in bytes: shorter ones are common.
const MIN_PIECE: usize = 4;

/// Maximum number of separately masked pieces of one argument.
const MAX_PIECES: usize = 1_000;

/// A key, token or password. Every formatter and serializer writes `[secret]`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a text without its surrounding white space, such as a file's final newline.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().into())
    }

    /// The secrets in a sensitive argument, longest first.
    ///
    /// They are the whole text, the strings and numbers of a list or an object, and lines longer than 4 bytes, at most
    /// 1,000 of these pieces. Null, booleans and empty texts contain none.
    pub fn of_argument(value: &Value) -> Vec<Self> {
        let mut pieces: Vec<String> = Vec::new();
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::String(text) => pieces.push(text.clone()),
            Value::Number(_) => pieces.push(value.to_string()),
            Value::Array(_) | Value::Object(_) => {
                pieces.push(value.to_string());
                leaves(value, &mut pieces);
            }
        }
        let lines: Vec<String> = pieces
            .iter()
            .flat_map(|text| text.lines())
            .map(str::trim)
            .filter(|line| line.len() > MIN_PIECE)
            .take(MAX_PIECES)
            .map(str::to_owned)
            .collect();
        pieces.extend(lines);
        pieces.retain(|text| !text.trim().is_empty());
        pieces.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        pieces.dedup();
        pieces.into_iter().map(Self::new).collect()
    }

    /// The text, for the code that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Masks the secret in a text, both plain and as part of a JSON string.
    pub fn scrub(&self, text: &str) -> String {
        if self.0.is_empty() {
            return text.to_owned();
        }
        let scrubbed = text.replace(&*self.0, MASK);
        let quoted = serde_json::Value::from(&*self.0).to_string();
        let inner = &quoted[1..quoted.len() - 1];
        if inner == &*self.0 { scrubbed } else { scrubbed.replace(inner, MASK) }
    }
}

/// Several secrets that are masked together. Default: none.
#[derive(Clone, Debug, Default)]
pub struct Masks(Arc<[Secret]>);

impl Masks {
    /// Masks these secrets; empty ones are ignored.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut all: Vec<Secret> = secrets.into_iter().filter(|secret| !secret.expose().is_empty()).collect();
        // A longer one may contain a shorter one.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Self(all.into())
    }

    /// Whether there are no secrets.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Masks every secret in a text.
    pub fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text))
    }

    /// The secrets, longest first.
    pub fn as_slice(&self) -> &[Secret] {
        &self.0
    }

    /// Masks every secret in all texts of a value, names of fields included.
    pub fn value(&self, value: Value) -> Value {
        match value {
            _ if self.is_empty() => value,
            Value::String(text) => self.text(&text).into(),
            Value::Array(items) => items.into_iter().map(|item| self.value(item)).collect(),
            Value::Object(fields) => {
                fields.into_iter().map(|(name, item)| (self.text(&name), self.value(item))).collect()
            }
            other => other,
        }
    }

    /// Masks every secret in bytes. Bytes without a secret stay unchanged, even if they are not UTF-8.
    pub fn bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        if self.is_empty() {
            return bytes;
        }
        let text = String::from_utf8_lossy(&bytes);
        let masked = self.text(&text);
        if masked == *text { bytes } else { masked.into_bytes() }
    }

    /// Masks the end of a longer output, and drops a start that may be the rest of a secret.
    pub fn tail(&self, bytes: Vec<u8>) -> Vec<u8> {
        let longest = self.0.first().map_or(0, |secret| secret.expose().len());
        let mut masked = self.bytes(bytes);
        masked.drain(..longest.saturating_sub(1).min(masked.len()));
        masked
    }
}

/// Collects the strings of a value, and its numbers longer than [`MIN_PIECE`].
fn leaves(value: &Value, found: &mut Vec<String>) {
    if found.len() > MAX_PIECES {
        return;
    }
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Number(number) => found.extend(Some(number.to_string()).filter(|text| text.len() > MIN_PIECE)),
        Value::Array(items) => items.iter().for_each(|item| leaves(item, found)),
        Value::Object(fields) => fields.values().for_each(|item| leaves(item, found)),
        Value::Null | Value::Bool(_) => {}
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_masked_wherever_it_is_written() {
        let secret = Secret::new("sk-\"7\n");
        assert_eq!(secret.expose(), "sk-\"7");
        assert_eq!(format!("{secret} {secret:?}"), "[secret] [secret]");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"[secret]\"");
        assert_eq!(secret.scrub("a sk-\"7 b sk-\\\"7"), "a [secret] b [secret]");
        assert_eq!(Secret::new("").scrub("abc"), "abc");
    }

    #[test]
    fn several_secrets_are_masked_the_longest_first() {
        let masks = Masks::new(["hunter2", "", "hunter2-and-more"].map(Secret::new));
        assert_eq!(masks.text("hunter2 hunter2-and-more"), "[secret] [secret]");
        assert_eq!(masks.bytes(vec![0xff, b'a']), [0xff, b'a']);
        assert_eq!(masks.bytes(b"\xffhunter2".to_vec()), "\u{fffd}[secret]".as_bytes());
        assert_eq!(masks.tail(b"er2-and-more, then hunter2".to_vec()), b"hen [secret]");
        assert_eq!(Masks::default().tail(b"text".to_vec()), b"text");
        let value =
            serde_json::json!({ "hunter2": ["a hunter2", 1, null], "b": { "c": "hunter2-and-more" } });
        let masked = serde_json::json!({ "[secret]": ["a [secret]", 1, null], "b": { "c": "[secret]" } });
        assert_eq!(masks.value(value.clone()), masked);
        assert_eq!(Masks::default().value(value.clone()), value);
    }

    #[test]
    fn the_pieces_of_an_argument_are_secret_too() {
        let texts = |value: serde_json::Value| -> Vec<String> {
            Secret::of_argument(&value).iter().map(|secret| secret.expose().to_owned()).collect()
        };
        assert_eq!(texts("BEGIN\nfirst line\nab\n".into()), ["BEGIN\nfirst line\nab", "first line", "BEGIN"]);
        let value =
            serde_json::json!({ "user": "ada", "keys": ["k1", "multi\r\nline-2"], "pin": 123_456, "n": 7 });
        let whole = value.to_string();
        assert_eq!(
            texts(value),
            [whole.as_str(), "multi\r\nline-2", "123456", "line-2", "multi", "ada", "k1"]
        );
        assert_eq!(texts(serde_json::json!(7)), ["7"]);
        for nothing in [serde_json::json!(null), true.into(), " \n".into()] {
            assert!(texts(nothing).is_empty());
        }
        let many: Vec<String> = (0..100_000).map(|line| format!("line {line}")).collect();
        assert_eq!(texts(many.join("\n").into()).len(), MAX_PIECES + 1);
    }
}
