//! Secrets that must not be seen in what is kept, however they are written.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use toolpost_core::{Secret, hex};

use crate::{HostedTool, Request};

/// What stands where a secret was; the same that [`Secret`] shows.
const MASK: &str = "[secret]";

/// An encoded form that is shorter is not looked for: it stands in every text. In bytes.
const SHORT: usize = 8;

/// Names of fields whose texts are secrets whoever wrote them, in lower case, without `-` and `_`.
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

/// Masks secrets in text that is to be kept: as they are, as they stand in JSON (also in JSON within JSON), in addresses
/// (percent-encoded), in base64 of either alphabet wherever they begin, and in hexadecimal digits.
#[derive(Clone, Default)]
pub struct Scrubber {
    /// What is masked, the longest first.
    forms: Vec<String>,
}

impl Scrubber {
    /// A scrubber of these secrets; empty ones are passed over.
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut forms: Vec<String> = secrets.into_iter().flat_map(|secret| forms(secret.expose())).collect();
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Self { forms }
    }

    /// The same with further secrets.
    #[must_use]
    pub fn and(&self, secrets: impl IntoIterator<Item = Secret>) -> Self {
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

    /// The same with what a request itself says is secret: texts that its provider options, or its tools in the provider's
    /// JSON, have under names such as `authorization_token`, or as headers.
    #[must_use]
    pub fn and_of(&self, request: &Request) -> Self {
        self.and(secrets_of(request))
    }

    /// The text without the secrets.
    pub fn scrub(&self, mut text: String) -> String {
        for form in &self.forms {
            if text.contains(form.as_str()) {
                text = text.replace(form.as_str(), MASK);
            }
        }
        text
    }
}

impl fmt::Debug for Scrubber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrubber").field("forms", &self.forms.len()).finish()
    }
}

/// All ways in which a secret is looked for.
fn forms(secret: &str) -> Vec<String> {
    if secret.is_empty() {
        return Vec::new();
    }
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
        // The digits that the secret alone decides, whatever stands before and after it.
        let (first, last) = ((offset * 8).div_ceil(6), bytes.len() * 8 / 6);
        for digits in [STANDARD_NO_PAD.encode(&bytes), URL_SAFE_NO_PAD.encode(&bytes)] {
            encoded.extend(digits.get(first..last).map(str::to_owned));
        }
    }
    forms.extend(encoded.into_iter().filter(|form| form.len() >= SHORT));
    forms
}

/// A text as it stands between the quotes of a JSON string.
fn in_json(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted.get(1..quoted.len() - 1).unwrap_or_default().to_owned()
}

fn percent(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push('%');
            encoded.push_str(&hex([byte]).to_ascii_uppercase());
        }
    }
    encoded
}

/// What a request has that is secret by its name.
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

/// The texts of fields that are secrets by their names, wherever they lie in a value.
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
                    // What stands in headers is nobody's business.
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

/// A secret and, of `Bearer …`, what comes after the scheme. A short text is no secret that could be masked everywhere.
fn secret(text: &str) -> Vec<Secret> {
    let bare = text.split_once(' ').map(|(_, bare)| bare);
    let texts = std::iter::once(text).chain(bare);
    texts.filter(|text| text.trim().len() >= SHORT && *text != MASK).map(Secret::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::STANDARD;

    #[test]
    fn a_secret_is_found_however_it_is_written() {
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
    fn fields_are_secret_by_their_names() {
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
