//! Masks secrets in stored text, in all their encodings.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use percent_encoding::utf8_percent_encode;
use serde_json::{Value, json};
use toolpost_core::{Secret, hex, is_secret_name};

use crate::http::client::UNRESERVED;
use crate::{HostedTool, Item, ItemView, Request, Response, ToolDefinition, Turn};

/// The replacement of a secret, as in the text of [`Secret`].
const MASK: &str = "[secret]";

/// The minimum length of a secret or of its encoded form, in bytes. Shorter texts occur everywhere.
const MIN_SECRET: usize = 8;

/// Masks secrets in text that is stored.
///
/// It finds a secret as plain text, in JSON (also nested), percent-encoded, in base64 of either alphabet at any offset, and
/// in hexadecimal.
///
/// Clones share their secrets: one that [learns](Scrubber::learn) a secret masks it in all of them.
#[derive(Clone, Default)]
pub struct Scrubber(Arc<RwLock<Arc<Forms>>>);

/// The texts to mask.
#[derive(Default)]
struct Forms {
    /// Longest first.
    texts: Vec<String>,
    /// The first bytes of the texts, sorted.
    begins: Vec<u8>,
}

impl Scrubber {
    /// A scrubber of these secrets. It ignores secrets of fewer than 8 bytes, such as the placeholder keys `x` or `ollama`.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        Self::default().with_secrets(secrets)
    }

    fn forms(&self) -> Arc<Forms> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds secrets to this scrubber and its clones.
    pub fn learn(&self, secrets: impl IntoIterator<Item = Secret>) {
        let more = forms_of(secrets);
        if !more.is_empty() {
            let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
            *known = Arc::new(known.with(more));
        }
    }

    /// A scrubber with these secrets besides its own. It has what its own learned before.
    #[must_use]
    pub fn with_secrets(&self, secrets: impl IntoIterator<Item = Secret>) -> Self {
        let more = forms_of(secrets);
        if more.is_empty() {
            return self.clone();
        }
        Self(Arc::new(RwLock::new(Arc::new(self.forms().with(more)))))
    }

    /// Adds the secrets of a request and of its answer.
    ///
    /// These are the texts in provider options and raw tools under names such as `authorization_token`, headers, and the
    /// secrets in the arguments of tool calls: see [`call_secrets`].
    #[must_use]
    pub fn with_exchange_secrets(&self, request: &Request, answer: Option<&Response>) -> Self {
        let turns = request.turns.iter().flat_map(Turn::items);
        let items = turns.chain(answer.into_iter().flat_map(|answer| answer.items.iter()));
        self.with_secrets(secrets_of(request).into_iter().chain(call_secrets(&request.tools, items)))
    }

    /// Masks the secrets in a text.
    pub fn scrub(&self, text: String) -> String {
        self.forms().scrub(text)
    }

    /// A scrubber of a text that arrives in pieces.
    pub fn stream(&self) -> StreamScrubber<'_> {
        StreamScrubber { scrubber: self, held: Vec::new() }
    }

    /// Masks the secrets in JSON text, in strings, names and numbers. Everything else stays the same, digit for digit.
    pub fn scrub_json(&self, json: &str) -> String {
        let forms = self.forms();
        if forms.texts.is_empty() {
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
                '"' => forms.scrub_string(token, &mut scrubbed),
                '-' | '0'..='9' if forms.texts.iter().any(|form| form == token) => {
                    scrubbed.push_str(&Value::from(MASK).to_string());
                }
                _ => scrubbed.push_str(token),
            }
            rest = after;
        }
        scrubbed
    }
}

impl From<Vec<Secret>> for Scrubber {
    fn from(secrets: Vec<Secret>) -> Self {
        Self::new(secrets)
    }
}

/// The forms of secrets of at least 8 bytes.
fn forms_of(secrets: impl IntoIterator<Item = Secret>) -> Vec<String> {
    let long = secrets.into_iter().filter(|secret| secret.expose().len() >= MIN_SECRET);
    long.flat_map(|secret| forms(secret.expose())).collect()
}

impl Forms {
    /// These forms and more.
    fn with(&self, more: Vec<String>) -> Self {
        let mut texts = more;
        texts.extend_from_slice(&self.texts);
        texts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        let mut begins: Vec<u8> = texts.iter().filter_map(|text| text.bytes().next()).collect();
        begins.sort_unstable();
        begins.dedup();
        Self { texts, begins }
    }

    fn scrub(&self, mut text: String) -> String {
        for form in &self.texts {
            if text.contains(form.as_str()) {
                text = text.replace(form.as_str(), MASK);
            }
        }
        text
    }

    /// Writes a JSON string with its secrets masked. A string without secrets stays the same.
    fn scrub_string(&self, token: &str, scrubbed: &mut String) {
        match serde_json::from_str::<String>(token) {
            Ok(text) if self.texts.iter().any(|form| text.contains(form.as_str())) => {
                scrubbed.push_str(&Value::from(self.scrub(text)).to_string());
            }
            Ok(_) => scrubbed.push_str(token),
            // Invalid JSON is scrubbed as text.
            Err(_) => scrubbed.push_str(&self.scrub(token.to_owned())),
        }
    }

    /// Classifies the beginning of a text, preferring the longest secret.
    fn start_of(&self, text: &[u8]) -> Start {
        if text.first().is_none_or(|first| self.begins.binary_search(first).is_err()) {
            return Start::Harmless;
        }
        for form in &self.texts {
            if text.starts_with(form.as_bytes()) {
                return Start::Secret(form.len());
            }
            if form.as_bytes().starts_with(text) {
                return Start::Unknown;
            }
        }
        Start::Harmless
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
    held: Vec<u8>,
}

impl StreamScrubber<'_> {
    /// Adds a piece and returns the scrubbed text up to the possible beginning of a secret.
    pub fn push(&mut self, piece: &str) -> String {
        let scrubbed = self.push_bytes(piece.as_bytes());
        String::from_utf8_lossy(&scrubbed).into_owned()
    }

    /// Adds a piece of bytes, in the same way. Bytes that are not UTF-8 stay the same.
    pub fn push_bytes(&mut self, piece: &[u8]) -> Vec<u8> {
        let forms = self.scrubber.forms();
        self.held.extend_from_slice(piece);
        let mut harmless = Vec::with_capacity(self.held.len());
        let mut rest = self.held.as_slice();
        while let Some((first, after)) = rest.split_first() {
            match forms.start_of(rest) {
                Start::Unknown => break,
                Start::Secret(length) => {
                    harmless.extend_from_slice(MASK.as_bytes());
                    rest = rest.get(length..).unwrap_or_default();
                }
                Start::Harmless => {
                    harmless.push(*first);
                    rest = after;
                }
            }
        }
        self.held = rest.to_vec();
        harmless
    }

    /// Ends the text and returns the rest.
    pub fn finish(&mut self) -> String {
        // A shorter secret may be the beginning of a longer one.
        let rest = std::mem::take(&mut self.held);
        self.scrubber.scrub(String::from_utf8_lossy(&rest).into_owned())
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
        f.debug_struct("Scrubber").field("forms", &self.forms().texts.len()).finish()
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

/// The secrets in the arguments of tool calls, as call records mask them: the sensitive arguments of known tools, and
/// those of [`Secret::named_in`].
pub fn call_secrets<'a>(tools: &[ToolDefinition], items: impl IntoIterator<Item = &'a Item>) -> Vec<Secret> {
    let mut found = Vec::new();
    for item in items {
        let ItemView::ToolCall { name, arguments: Ok(arguments), .. } = item.view() else { continue };
        let Ok(arguments) = arguments.to_value() else { continue };
        let tool = tools.iter().find(|tool| tool.name == *name);
        let declared =
            tool.iter().flat_map(|tool| tool.sensitive.iter()).filter_map(|name| arguments.get(name));
        found.extend(declared.flat_map(Secret::of_argument));
        found.extend(Secret::named_in(&arguments));
    }
    // A call of an earlier run may be masked already.
    found.retain(|secret| secret.expose() != MASK);
    found
}

/// Finds the texts of fields with names of secrets, at any depth.
fn secrets_by_name(value: &Value, found: &mut Vec<Secret>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| secrets_by_name(item, found)),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if is_secret_name(name) => found.extend(secret(text)),
                    // All headers are secrets.
                    Value::Object(headers) if name.eq_ignore_ascii_case("headers") => {
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
        let mut bytes = scrubber.stream();
        let pieces =
            [&b"\xff sk-can"[..], b"ary-\xc3", b"\xbc1 \xfe", b"sk-c"].map(|piece| bytes.push_bytes(piece));
        assert_eq!(pieces, [&b"\xff "[..], b"", b"[secret] \xfe", b""]);
        assert_eq!(bytes.finish(), "sk-c");
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
    fn a_learned_secret_is_masked_by_all_clones_and_open_streams() {
        let scrubber = Scrubber::new([Secret::new("first-secret")]);
        let (clone, own) = (scrubber.clone(), scrubber.with_secrets([Secret::new("own-secret")]));
        let mut open = clone.stream();
        scrubber.learn([Secret::new("later-secret"), Secret::new("short")]);
        let text = "first-secret own-secret later-secret short";
        assert_eq!(clone.scrub(text.into()), "[secret] own-secret [secret] short");
        assert_eq!(own.scrub(text.into()), "[secret] [secret] later-secret short");
        assert_eq!(open.push("later-secret."), "[secret].");
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
