//! Text that must not be seen.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// What stands where a secret was.
pub(crate) const MASK: &str = "[secret]";

/// A key, a token or a password: shown as `[secret]` by every formatter and serialiser.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Takes the text in; white space around it (a final newline of a file) is removed.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().trim().into())
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
}
