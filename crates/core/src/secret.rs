//! Text that must not be seen.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::Value;

/// What stands where a secret was.
pub(crate) const MASK: &str = "[secret]";

/// A piece of a secret is masked by itself if it is longer than this, in bytes: a shorter one stands in every text.
const SHORT: usize = 4;

/// The most pieces of one argument that are masked by themselves.
const MAX_PIECES: usize = 1_000;

/// A key, a token or a password: shown as `[secret]` by every formatter and serialiser.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Takes the text in; white space around it (a final newline of a file) is removed.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().into())
    }

    /// What must not be seen of a sensitive argument, the longest first: its whole text, the texts and numbers within a
    /// list or an object, and each line of a text with several that is longer than 4 bytes. Of one argument at most
    /// 1,000 such pieces are told, besides the whole. Nothing for null, true and false, and for an empty text.
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
            .filter(|line| line.len() > SHORT)
            .take(MAX_PIECES)
            .map(str::to_owned)
            .collect();
        pieces.extend(lines);
        pieces.retain(|text| !text.trim().is_empty());
        pieces.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        pieces.dedup();
        pieces.into_iter().map(Self::new).collect()
    }

    /// The text itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `text` with every occurrence of the secret masked, as it is and as it stands inside a JSON string.
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

/// Several secrets that are masked together. Default none.
#[derive(Clone, Debug, Default)]
pub struct Masks(Arc<[Secret]>);

impl Masks {
    /// Masks these secrets. An empty one is left out.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut all: Vec<Secret> = secrets.into_iter().filter(|secret| !secret.expose().is_empty()).collect();
        // A longer one may contain a shorter one.
        all.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Self(all.into())
    }

    /// Whether there is nothing to mask.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A text with every secret masked.
    pub fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| secret.scrub(&text))
    }

    /// The same for bytes. Those that hold no secret stay as they are, text or not.
    pub fn bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        if self.is_empty() {
            return bytes;
        }
        let text = String::from_utf8_lossy(&bytes);
        let masked = self.text(&text);
        if masked == *text { bytes } else { masked.into_bytes() }
    }

    /// The same for the end of a longer output: a secret whose beginning is missing is dropped with what stands before it.
    pub fn tail(&self, bytes: Vec<u8>) -> Vec<u8> {
        let longest = self.0.first().map_or(0, |secret| secret.expose().len());
        let mut masked = self.bytes(bytes);
        masked.drain(..longest.saturating_sub(1).min(masked.len()));
        masked
    }
}

/// The texts within a value, and the numbers that are no short ones.
fn leaves(value: &Value, found: &mut Vec<String>) {
    if found.len() > MAX_PIECES {
        return;
    }
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Number(number) => found.extend(Some(number.to_string()).filter(|text| text.len() > SHORT)),
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
