//! Masks secrets in stored text, in all their encodings.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::utf8_percent_encode;
use serde_json::{Value, json};
use toolpost_core::{Secret, hex};

use crate::http::client::UNRESERVED;
use crate::{HostedTool, Request};

/// The replacement of a secret, as in the text of [`Secret`].
const MASK: &str = "[secret]";

/// The minimum length of a secret or of its encoded form, in bytes. Shorter texts occur everywhere.
const MIN_SECRET: usize = 8;

/// Names of fields whose texts are secrets, in lower case, without `-` and `_`.
const SECRET_FIELDS: &[&str] = &[
    "accesstoken",
    "apikey",
    "apitoken",
    "authorization",
    "authorizationtoken",
    "authtoken",
    "bearertoken",
    "clientsecret",
    "cookie",
    "password",
    "privatekey",
    "proxyauthorization",
    "refreshtoken",
    "secret",
    "token",
    "xapikey",
    "xgoogapikey",
];

/// Masks secrets in text that is stored.
///
/// It finds a secret as plain text, in JSON (also nested), percent-encoded, in base64 of either alphabet at any offset, and
/// in hexadecimal.
#[derive(Clone, Default)]
pub struct Scrubber {
    /// The texts to mask, longest first.
    forms: Vec<String>,
}

impl Scrubber {
    /// A scrubber of these secrets. It ignores secrets of fewer than 8 bytes, such as the placeholder keys `x` or `ollama`.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let long = secrets.into_iter().filter(|secret| secret.expose().len() >= MIN_SECRET);
        let mut forms: Vec<String> = long.flat_map(|secret| forms(secret.expose())).collect();
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Self { forms }
    }

    /// Adds secrets.
    #[must_use]
    pub fn with_secrets(&self, secrets: impl IntoIterator<Item = Secret>) -> Self {
        let more = Self::new(secrets);
        if more.forms.is_empty() {
            return self.clone();
        }
        let mut forms = self.forms.clone();
        forms.extend(more.forms);
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Self { forms }
    }

    /// Adds the secrets of a request.
    ///
    /// These are the texts in its provider options and raw tools under names such as `authorization_token`, and headers.
    #[must_use]
    pub fn with_request_secrets(&self, request: &Request) -> Self {
        self.with_secrets(secrets_of(request))
    }

    /// Masks the secrets in a text.
    pub fn scrub(&self, mut text: String) -> String {
        for form in &self.forms {
            if text.contains(form.as_str()) {
                text = text.replace(form.as_str(), MASK);
            }
        }
        text
    }

    /// A scrubber of a text that arrives in pieces.
    pub fn stream(&self) -> StreamScrubber<'_> {
        StreamScrubber { scrubber: self, held: String::new() }
    }

    /// Classifies the beginning of a text, preferring the longest secret.
    fn start_of(&self, text: &str) -> Start {
        for form in &self.forms {
            if text.starts_with(form.as_str()) {
                return Start::Secret(form.len());
            }
            if form.starts_with(text) {
                return Start::Unknown;
            }
        }
        Start::Harmless
    }

    /// Masks the secrets in JSON text, in strings, names and numbers. Everything else stays the same, digit for digit.
    pub fn scrub_json(&self, json: &str) -> String {
        if self.forms.is_empty() {
            return json.to_owned();
        }
        let mut scrubbed = String::with_capacity(json.len());
        let mut rest = json;
        while let Some(first) = rest.chars().next() {
            let length = match first {
                '"' => string_length(rest),
                '-' | '0'..='9' => rest.find(|c| !is_of_number(c)).unwrap_or(rest.len()),
                _ => rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()).unwrap_or(rest.len()),
            };
            let (token, after) = rest.split_at(length);
            match first {
                '"' => self.scrub_string(token, &mut scrubbed),
                '-' | '0'..='9' if self.forms.iter().any(|form| form == token) => {
                    scrubbed.push_str(&Value::from(MASK).to_string());
                }
                _ => scrubbed.push_str(token),
            }
            rest = after;
        }
        scrubbed
    }

    /// Writes a JSON string with its secrets masked. A string without secrets stays the same.
    fn scrub_string(&self, token: &str, scrubbed: &mut String) {
        match serde_json::from_str::<String>(token) {
            Ok(text) if self.forms.iter().any(|form| text.contains(form.as_str())) => {
                scrubbed.push_str(&Value::from(self.scrub(text)).to_string());
            }
            Ok(_) => scrubbed.push_str(token),
            // Invalid JSON is scrubbed as text.
            Err(_) => scrubbed.push_str(&self.scrub(token.to_owned())),
        }
    }
}

/// The beginning of a text that may continue.
enum Start {
    /// A secret of this many bytes.
    Secret(usize),
    /// The possible beginning of a secret.
    Unknown,
    Harmless,
}

/// Masks secrets in a text that arrives in pieces, also across pieces: see [`Scrubber::stream`].
pub struct StreamScrubber<'a> {
    scrubber: &'a Scrubber,
    /// The end of the text so far, which may be the beginning of a secret.
    held: String,
}

impl StreamScrubber<'_> {
    /// Adds a piece and returns the scrubbed text up to the possible beginning of a secret.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        let mut harmless = String::with_capacity(self.held.len());
        let mut rest = self.held.as_str();
        while let Some(first) = rest.chars().next() {
            let passed = match self.scrubber.start_of(rest) {
                Start::Unknown => break,
                Start::Secret(length) => {
                    harmless.push_str(MASK);
                    length
                }
                Start::Harmless => {
                    harmless.push(first);
                    first.len_utf8()
                }
            };
            rest = rest.get(passed..).unwrap_or_default();
        }
        self.held = rest.to_owned();
        harmless
    }

    /// Ends the text and returns the rest.
    pub fn finish(&mut self) -> String {
        // A shorter secret may be the beginning of a longer one.
        self.scrubber.scrub(std::mem::take(&mut self.held))
    }
}

impl fmt::Debug for StreamScrubber<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamScrubber").field("scrubber", self.scrubber).finish_non_exhaustive()
    }
}

/// Whether a character can be part of a number.
fn is_of_number(character: char) -> bool {
    matches!(character, '-' | '+' | '.' | 'e' | 'E' | '0'..='9')
}

/// The length of the JSON string at the beginning of a text, with its quotes, in bytes.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    let end = text.bytes().skip(1).position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 2)
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubber").field("forms", &self.forms.len()).finish()
    }
}

/// All encodings of a secret.
fn forms(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned()];
    let mut quoted = secret.to_owned();
    for _ in 0..3 {
        quoted = in_json(&quoted);
        forms.push(quoted.clone());
    }
    let mut encoded = vec![percent(secret), hex(secret), hex(secret).to_ascii_uppercase()];
    for offset in 0..3 {
        let mut bytes = vec![0; offset];
        bytes.extend_from_slice(secret.as_bytes());
        // The digits that depend on the secret only, not on the bytes around it.
        let (first, last) = ((offset * 8).div_ceil(6), bytes.len() * 8 / 6);
        for digits in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            encoded.extend(digits.get(first..last).map(str::to_owned));
        }
    }
    forms.extend(encoded.into_iter().filter(|form| form.len() >= MIN_SECRET));
    forms
}

/// A text as the content of a JSON string.
fn in_json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}

fn percent(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

/// The secrets of a request, by the names of its fields.
fn secrets_of(request: &Request) -> Vec<Secret> {
    let mut secrets = Vec::new();
    let tools = request.tools.iter().flat_map(|tool| tool.provider_options.iter());
    for (name, value) in request.provider_options.iter().chain(tools) {
        secrets_by_name(&json!({ name: value }), &mut secrets);
    }
    for tool in &request.hosted_tools {
        if let HostedTool::Raw(raw) = tool
            && let Ok(value) = raw.to_value()
        {
            secrets_by_name(&value, &mut secrets);
        }
    }
    secrets
}

/// Finds the texts of fields with names of secrets, at any depth.
fn secrets_by_name(value: &Value, found: &mut Vec<Secret>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| secrets_by_name(item, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                let name: String =
                    name.chars().filter(|c| !"-_".contains(*c)).collect::<String>().to_ascii_lowercase();
                match value {
                    Value::String(text) if SECRET_FIELDS.contains(&name.as_str()) => {
                        found.extend(secret(text));
                    }
                    // All headers are secrets.
                    Value::Object(headers) if name == "headers" => {
                        found.extend(headers.values().filter_map(Value::as_str).flat_map(secret));
                    }
                    _ => secrets_by_name(value, found),
                }
            }
        }
        _ => {}
    }
}

/// A secret, and the part after the scheme of `Bearer …`. A short text is not masked.
fn secret(text: &str) -> Vec<Secret> {
    let bare = text.split_once(' ').map(|(_, bare)| bare);
    let texts = std::iter::once(text).chain(bare);
    texts.filter(|text| text.trim().len() >= MIN_SECRET && *text != MASK).map(Secret::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn a_secret_is_masked_in_every_encoding() {
        let secret = "sk-\"canary\\é/7+?Z";
        let scrubber = Scrubber::new([Secret::new(secret), Secret::new("")]);
        let within =
            |levels: usize| (0..levels).fold(format!("a {secret} b"), |text, _| json!(text).to_string());
        let mut texts: Vec<String> = (0..4).map(within).collect();
        texts.push(percent(secret));
        texts.push(hex(secret));
        for before in ["", "x", "xy", "user:"] {
            let text = format!("{before}{secret} and more");
            texts.push(STANDARD.encode(&text));
            texts.push(URL_SAFE_NO_PAD.encode(&text));
        }
        for text in texts {
            let masked = scrubber.scrub(format!("<{text}>"));
            assert!(masked.contains(MASK), "{text}");
            assert!(!masked.contains("canary") && masked.ends_with('>'), "{masked}");
        }
        assert_eq!(scrubber.scrub("canary".into()), "canary");
        assert_eq!(format!("{scrubber:?}").find("canary"), None);
    }

    #[test]
    fn a_secret_is_masked_across_pieces() {
        let scrubber = Scrubber::new(["sk-canary-ü1", "sk-canary-ü1-longer", "87654321"].map(Secret::new));
        for source in [
            "a sk-canary-ü1 b",
            "sk-canary-ü1-longer",
            "sk-canary-ü1-long",
            "sk-sk-canary-ü1sk-canary-ü1sk",
            "sk-canary-ü",
            "8876543218765432",
            "no secret",
            "",
        ] {
            let whole = scrubber.scrub(source.to_owned());
            let characters: Vec<char> = source.chars().collect();
            for size in 1..=characters.len().max(1) {
                let mut text = scrubber.stream();
                let mut shown = String::new();
                for piece in characters.chunks(size) {
                    shown += &text.push(&piece.iter().collect::<String>());
                    assert!(!shown.contains("canary-ü1") && text.held.len() < 80, "{shown}");
                }
                shown += &text.finish();
                assert_eq!((shown, text.finish()), (whole.clone(), String::new()), "{source} by {size}");
            }
        }
        let mut text = scrubber.stream();
        assert_eq!(text.push("what is harmless comes at once, s"), "what is harmless comes at once, ");
        assert_eq!(text.push("o "), "so ");
        assert_eq!(text.push("sk-canary"), "");
        assert!(!format!("{text:?}").contains("canary"));
    }

    #[test]
    fn json_changes_only_where_secrets_are() {
        let scrubber = Scrubber::new(["key-\"ü\\1234", "87654321"].map(Secret::new));
        for (json, expected) in [
            (r#"{"a":1.50,"b":[-2e+05,null,true],"c":"x\u0041\/"}"#, None),
            (r#"{"n":876543210,"m":1.87654321,"e":"é\"","t":""}"#, None),
            (r#"["key-\"ü\\1234"]"#, Some(r#"["[secret]"]"#)),
            (r#"["a key-\u0022\u00fc\u005c1234 b\n"]"#, Some(r#"["a [secret] b\n"]"#)),
            (r#"{"key-\"ü\\1234":1.0}"#, Some(r#"{"[secret]":1.0}"#)),
            (r#"{"n": 87654321, "s": "87654321"}"#, Some(r#"{"n": "[secret]", "s": "[secret]"}"#)),
            (r#""{\"deep\":\"key-\\\"ü\\\\1234\"}""#, Some(r#""{\"deep\":\"[secret]\"}""#)),
            ("87654321", Some(r#""[secret]""#)),
            ("no JSON: \"87654321", Some("no JSON: \"[secret]")),
            ("", None),
        ] {
            assert_eq!(scrubber.scrub_json(json), expected.unwrap_or(json), "{json}");
        }
    }

    #[test]
    fn short_secrets_are_ignored() {
        let scrubber = Scrubber::new(["x", "1", "ollama", "seven-7"].map(Secret::new));
        let json = r#"{"text":"x 1","origin":"ollama/llama3","n":1,"s":"seven-7"}"#;
        assert_eq!((scrubber.scrub_json(json), scrubber.scrub(json.into())), (json.into(), json.into()));
        assert_eq!(Scrubber::new([Secret::new("eight-88")]).scrub("an eight-88".into()), "an [secret]");
    }

    #[test]
    fn field_names_mark_secrets() {
        let value = json!({
            "mcp_servers": [{ "authorization_token": "token-of-the-server", "name": "a name that is long" }],
            "extra": { "headers": { "X-Any": "header-value-1" }, "Api-Key": "key-value-22", "password": "short" },
            "authorization": "Bearer bearer-value-3", "max_tokens": "not a secret",
        });
        let mut found = Vec::new();
        secrets_by_name(&value, &mut found);
        let found: Vec<&str> = found.iter().map(Secret::expose).collect();
        assert_eq!(
            found,
            [
                "token-of-the-server",
                "header-value-1",
                "key-value-22",
                "Bearer bearer-value-3",
                "bearer-value-3"
            ]
        );
    }
}
