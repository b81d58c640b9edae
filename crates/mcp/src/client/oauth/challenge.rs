//! Parses `WWW-Authenticate` headers (RFC 9110, section 11.6.1).

use super::words;

/// The longest header that is parsed, in bytes.
const MAX_HEADER: usize = 8 << 10;
/// The most schemes and parameters that are parsed.
const MAX_PARTS: usize = 64;

/// A `Bearer` or `DPoP` challenge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::client) struct Challenge {
    /// Whether the status is 403: the token lacks scopes.
    pub(in crate::client) is_forbidden: bool,
    /// The URL of the server's metadata.
    pub(super) resource_metadata: Option<String>,
    /// The required scopes.
    pub(super) scopes: Vec<String>,
    pub(super) error: Option<String>,
}

impl Challenge {
    /// The challenge in a header; empty if the header has none.
    pub(in crate::client) fn read(header: &str, is_forbidden: bool) -> Self {
        let mut found = Self { is_forbidden, ..Self::default() };
        let mut is_for_token = false;
        for part in parts(header.get(..MAX_HEADER).unwrap_or(header)).into_iter().take(MAX_PARTS) {
            match part {
                Part::Scheme(scheme) => {
                    is_for_token =
                        scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("dpop");
                }
                Part::Parameter(name, value) if is_for_token => match name.to_ascii_lowercase().as_str() {
                    "resource_metadata" => {
                        found.resource_metadata.get_or_insert(value);
                    }
                    "scope" if found.scopes.is_empty() => found.scopes = words(&value),
                    "error" => {
                        found.error.get_or_insert(value);
                    }
                    _ => {}
                },
                Part::Parameter(..) => {}
            }
        }
        found
    }

    /// Whether a token with more scopes helps.
    pub(super) fn wants_scopes(&self) -> bool {
        self.is_forbidden && self.error.as_deref().is_none_or(|error| error == "insufficient_scope")
    }

    /// Whether the server requires a nonce in the proof.
    pub(super) fn wants_nonce(&self) -> bool {
        self.error.as_deref() == Some("use_dpop_nonce")
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Scheme(String),
    Parameter(String, String),
}

/// The schemes and parameters of a header, in their order.
fn parts(header: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=', '"']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            // A stray quote or equals sign.
            let mut letters = rest.chars();
            if letters.next().is_none() {
                return parts;
            }
            rest = letters.as_str();
            continue;
        }
        let value = after.trim_start_matches([' ', '\t']).strip_prefix('=');
        match value.map(|value| value.trim_start_matches([' ', '\t'])) {
            // `==` ends token68 credentials, which have no parameters.
            Some(value) if !value.starts_with('=') => {
                let (text, after) = match value.strip_prefix('"') {
                    Some(quoted) => unquoted(quoted),
                    None => {
                        let end = value.find([' ', '\t', ',']).unwrap_or(value.len());
                        let (text, after) = value.split_at(end);
                        (text.to_owned(), after)
                    }
                };
                parts.push(Part::Parameter(word.to_owned(), text));
                rest = after;
            }
            _ => {
                parts.push(Part::Scheme(word.to_owned()));
                rest = after;
            }
        }
        if parts.len() > MAX_PARTS {
            return parts;
        }
    }
}

/// A quoted string without its quotes, and the rest.
fn unquoted(text: &str) -> (String, &str) {
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => break,
            '\\' => plain.extend(letters.next()),
            letter => plain.push(letter),
        }
    }
    (plain, letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(header: &str) -> (Option<String>, String, Option<String>) {
        let Challenge { resource_metadata, scopes, error, .. } = Challenge::read(header, false);
        (resource_metadata, scopes.join(" "), error)
    }

    #[test]
    fn challenges_parse() {
        let some = |text: &str| Some(text.to_owned());
        for (header, expected) in [
            ("", (None, String::new(), None)),
            ("Bearer", (None, String::new(), None)),
            (
                "Bearer error=\"invalid_token\", resource_metadata=\"https://a.example/x\"",
                (some("https://a.example/x"), String::new(), some("invalid_token")),
            ),
            (
                "Basic realm=\"a, Bearer scope=\\\"no\\\"\", bearer scope = \"a b\" , error=x",
                (None, "a b".to_owned(), some("x")),
            ),
            ("Basic abc==, DPoP scope=a", (None, "a".to_owned(), None)),
            ("Basic scope=\"no\"", (None, String::new(), None)),
            ("Bearer scope=\"never closed", (None, "never closed".to_owned(), None)),
            ("=\"=\",,=, Bearer scope=a", (None, "a".to_owned(), None)),
        ] {
            assert_eq!(read(header), expected, "{header}");
        }
    }

    #[test]
    fn a_hostile_header_neither_hangs_nor_overflows_the_parser() {
        let tokens = ["Bearer", " ", ",", "=", "\"", "\\", "scope", "a", "é", "\t", "resource_metadata"];
        // A sample of all texts of up to five of these.
        let mut texts = vec![String::new()];
        for _ in 0..5 {
            texts = texts
                .iter()
                .flat_map(|text| tokens.iter().map(move |token| format!("{text}{token}")))
                .collect();
            for text in texts.iter().step_by(7) {
                let found = Challenge::read(text, true);
                assert!(found.scopes.iter().all(|scope| !scope.contains([' ', '"', '\\'])), "{text}");
            }
        }
        let long = format!("Bearer {}", "scope=a,".repeat(100_000));
        assert_eq!(read(&long).1, "a");
    }
}
