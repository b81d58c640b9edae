//! Secrets in arguments: fields and header lines with names of secrets, and users and passwords of URLs.

use std::borrow::Cow;

use serde_json::Value;

use crate::Secret;
use crate::secret::MASK;

/// Names of secret fields, in lower case without `-` and `_`, sorted.
const SECRET_NAMES: [&str; 32] = [
    "accesskey",
    "accesstoken",
    "apikey",
    "apisecret",
    "apitoken",
    "authorization",
    "authorizationtoken",
    "authtoken",
    "bearertoken",
    "clientsecret",
    "cookie",
    "credential",
    "credentials",
    "idtoken",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "privatetoken",
    "proxyauthorization",
    "refreshtoken",
    "secret",
    "secretaccesskey",
    "secretkey",
    "sessiontoken",
    "setcookie",
    "token",
    "xaccesstoken",
    "xapikey",
    "xapitoken",
    "xauthtoken",
    "xgoogapikey",
];

/// The maximum length of a secret name, separators included.
const MAX_NAME: usize = 32;
/// The maximum number of secrets that one set of arguments has.
const MAX_NAMED: usize = 100;

/// Parts of the names of secret headers and parameters of requests.
const SECRET_PARTS: [&str; 12] = [
    "auth",
    "cookie",
    "token",
    "secret",
    "password",
    "passwd",
    "credential",
    "apikey",
    "api-key",
    "api_key",
    "session",
    "signature",
];

/// Names of fields with the headers or parameters of a request.
const REQUEST_FIELDS: [&str; 3] = ["headers", "params", "query"];

/// Whether a header or a parameter of a request is secret: a wider rule than that of fields.
pub fn is_secret_parameter(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // Such as `x-functions-key`, `ocp-apim-subscription-key` and the `sig` of a signed URL.
    name.ends_with("key") || name.ends_with("sig") || SECRET_PARTS.iter().any(|part| name.contains(part))
}

/// Whether a field with this name is secret, such as `Authorization`, `api_key` and `password`.
pub fn is_secret_name(name: &str) -> bool {
    if name.len() > MAX_NAME {
        return false;
    }
    let mut bytes = [0u8; MAX_NAME];
    let mut length = 0;
    for byte in name.bytes().filter(|byte| !matches!(byte, b'-' | b'_')) {
        bytes[length] = byte.to_ascii_lowercase();
        length += 1;
    }
    SECRET_NAMES.binary_search_by(|known| known.as_bytes().cmp(&bytes[..length])).is_ok()
}

/// A text whose URLs have `[secret]` in place of user and password, such as `https://[secret]@host/`.
pub fn without_userinfo(text: &str) -> Cow<'_, str> {
    masked(text, &secret_ranges(text, false))
}

/// A text with `[secret]` in place of ranges.
fn masked<'a>(text: &'a str, ranges: &[(usize, usize)]) -> Cow<'a, str> {
    if ranges.is_empty() {
        return text.into();
    }
    let (mut masked, mut copied) = (String::new(), 0);
    for (from, to) in ranges {
        masked.push_str(&text[copied..*from]);
        masked.push_str(MASK);
        copied = *to;
    }
    masked.push_str(&text[copied..]);
    masked.into()
}

/// The ranges of users and passwords in the URLs of a text, and of secret parameters if they count too.
fn secret_ranges(text: &str, with_parameters: bool) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut at = 0;
    let is_outside = |c: char| c.is_whitespace() || c.is_control() || "\\\"'`<>".contains(c);
    while let Some(found) = text[at..].find("://") {
        let from = at + found + "://".len();
        let url = &text[from..];
        let url = &url[..url.find(is_outside).unwrap_or(url.len())];
        let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
        let user = authority.rfind('@').filter(|length| *length > 0 && authority[..*length] != *MASK);
        ranges.extend(user.map(|length| (from, from + length)));
        at = from + authority.len();
        if let Some(query) = url.find('?').filter(|_| with_parameters) {
            let end = url.find('#').unwrap_or(url.len()).max(query);
            let mut begin = query + 1;
            for pair in url.get(begin..end).unwrap_or_default().split('&') {
                if let Some((name, value)) = pair.split_once('=')
                    && is_secret_parameter(name)
                    && !value.is_empty()
                    && value != MASK
                {
                    ranges.push((from + begin + name.len() + 1, from + begin + pair.len()));
                }
                begin += pair.len() + 1;
            }
            at = from + end;
        }
    }
    ranges
}

/// The value of a header line with a secret name, such as `Authorization: Bearer …`.
fn header_value(text: &str) -> Option<&str> {
    let head = text.as_bytes().get(..text.len().min(MAX_NAME + 1))?;
    let colon = head.iter().position(|byte| *byte == b':')?;
    let (name, value) = (text.get(..colon)?, text.get(colon + 1..)?);
    (is_secret_name(name) && !value.starts_with("//") && !value.trim().is_empty()).then(|| value.trim())
}

/// The secret value of an object that names it: `{ "name": "Authorization", "value": … }`.
fn is_named_value(fields: &serde_json::Map<String, Value>) -> bool {
    let name = ["name", "key", "header"].iter().find_map(|key| fields.get(*key)?.as_str());
    name.is_some_and(is_secret_name) && fields.contains_key("value")
}

impl Secret {
    /// The secrets in arguments that no schema declares: fields and header lines with secret names, at any depth, and
    /// users, passwords and secret parameters of URLs. Of `Bearer …`, the part after the scheme is a secret too. At most
    /// 100.
    pub fn named_in(arguments: &Value) -> Vec<Self> {
        let mut found = Vec::new();
        collect(arguments, false, &mut found);
        found.truncate(MAX_NAMED);
        found
    }
}

/// Whether a field is secret. The headers and parameters of a request have a wider rule.
fn is_secret_field(name: &str, is_of_request: bool) -> bool {
    is_secret_name(name) || (is_of_request && is_secret_parameter(name))
}

/// Whether a field has the headers or parameters of a request.
fn is_request_field(name: &str) -> bool {
    REQUEST_FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field))
}

fn collect(value: &Value, is_of_request: bool, found: &mut Vec<Secret>) {
    if found.len() >= MAX_NAMED {
        return;
    }
    match value {
        Value::String(text) => {
            if let Some(value) = header_value(text) {
                add(value, found);
            }
            for (from, to) in secret_ranges(text, true) {
                let secret = &text[from..to];
                // Of a user and a password, the password.
                let password = secret.split_once(':').filter(|_| text[to..].starts_with('@'));
                let password = password.map(|(_, password)| password).filter(|text| !text.is_empty());
                found.push(Secret::new(password.unwrap_or(secret)));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, is_of_request, found)),
        Value::Object(fields) => {
            let is_named = is_named_value(fields);
            for (name, value) in fields {
                if is_secret_field(name, is_of_request) || (is_named && name == "value") {
                    for secret in Secret::of_argument(value) {
                        add(secret.expose(), found);
                    }
                } else {
                    collect(value, is_request_field(name), found);
                }
            }
        }
        _ => {}
    }
}

/// Adds a value, and its part after a scheme such as `Bearer`, which may occur alone elsewhere.
fn add(text: &str, found: &mut Vec<Secret>) {
    found.push(Secret::new(text));
    if let Some((_, bare)) = text.trim().split_once(' ').filter(|(_, bare)| !bare.trim().is_empty()) {
        found.push(Secret::new(bare));
    }
}

/// Masks what [`Secret::named_in`] finds, where it stands.
pub fn mask_named(arguments: &mut Value) {
    mask(arguments, false);
}

fn mask(value: &mut Value, is_of_request: bool) {
    match value {
        Value::String(text) => {
            if let Some(value) = header_value(text) {
                let kept = text.len() - text.trim_end().len() + value.len();
                text.truncate(text.len() - kept);
                text.push_str(MASK);
            } else if let Cow::Owned(masked) = masked(text, &secret_ranges(text, true)) {
                *text = masked;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| mask(item, is_of_request)),
        Value::Object(fields) => {
            let is_named = is_named_value(fields);
            for (name, value) in fields {
                let is_secret = is_secret_field(name, is_of_request) || (is_named && name == "value");
                match value {
                    Value::Null | Value::Bool(_) => {}
                    value if is_secret => *value = MASK.into(),
                    value => mask(value, is_request_field(name)),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_secrets_have_no_case_and_no_separators() {
        assert!(SECRET_NAMES.is_sorted());
        for name in SECRET_NAMES {
            assert!(is_secret_name(name) && is_secret_name(&name.to_uppercase()), "{name}");
        }
        for name in ["Authorization", "X-API-Key", "api_key", "access-token", "Set-Cookie", "--password"] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in
            ["author", "max_tokens", "tokens", "key", "passwords-of-a-whole-company-in-one-list", "", "é"]
        {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn named_secrets_are_found_and_masked_where_they_stand() {
        let rows = [
            (
                json!({ "Authorization": "Bearer abc" }),
                vec!["Bearer abc", "abc"],
                json!({ "Authorization": MASK }),
            ),
            (
                json!({ "headers": { "X-Api-Key": 12345, "x-functions-key": "f", "Accept": "text/plain" }, "x-functions-key": "g" }),
                vec!["12345", "f"],
                json!({ "headers": { "X-Api-Key": MASK, "x-functions-key": MASK, "Accept": "text/plain" }, "x-functions-key": "g" }),
            ),
            (
                json!({ "url": "https://h.example/a?q=1&access_token=t0k&page=2#x?token=no" }),
                vec!["t0k"],
                json!({ "url": "https://h.example/a?q=1&access_token=[secret]&page=2#x?token=no" }),
            ),
            (
                json!({ "headers": [{ "name": "authorization", "value": "Basic x" }, { "name": "accept", "value": "y" }] }),
                vec!["Basic x", "x"],
                json!({ "headers": [{ "name": "authorization", "value": MASK }, { "name": "accept", "value": "y" }] }),
            ),
            (
                json!({ "argv": ["curl", "-H", "Authorization:  Bearer abc ", "https://u:pw@h.example/p?q"] }),
                vec!["Bearer abc", "abc", "pw"],
                json!({ "argv": ["curl", "-H", "Authorization:  [secret]", "https://[secret]@h.example/p?q"] }),
            ),
            (
                json!({ "secret": { "a": "one", "b": ["two"] } }),
                vec![r#"{"a":"one","b":["two"]}"#, "one", "two"],
                json!({ "secret": MASK }),
            ),
            (json!({ "password": null, "token": true }), vec![], json!({ "password": null, "token": true })),
            (
                json!({ "author": "Jane Austen", "url": "https://h.example/a@b", "text": "token://x" }),
                vec![],
                json!({ "author": "Jane Austen", "url": "https://h.example/a@b", "text": "token://x" }),
            ),
        ];
        for (arguments, secrets, masked) in rows {
            let mut found: Vec<String> =
                Secret::named_in(&arguments).iter().map(|secret| secret.expose().to_owned()).collect();
            found.sort();
            let mut expected = secrets;
            expected.sort_unstable();
            assert_eq!(found, expected, "{arguments}");
            let mut shown = arguments.clone();
            mask_named(&mut shown);
            assert_eq!(shown, masked, "{arguments}");
            mask_named(&mut shown);
            assert_eq!(shown, masked, "masking twice changes nothing");
        }
    }

    #[test]
    fn many_named_secrets_are_masked_where_they_stand_and_the_first_are_collected() {
        let mut arguments: Value =
            (0..100_000).map(|at| json!({ "token": format!("secret-{at}") })).collect();
        assert_eq!(Secret::named_in(&arguments).len(), MAX_NAMED);
        mask_named(&mut arguments);
        assert!(!arguments.to_string().contains("secret-"));
    }

    #[test]
    fn users_and_passwords_of_urls_are_masked() {
        for (text, expected) in [
            ("https://u:p@h/", "https://[secret]@h/"),
            ("a ssh://git@h and ws://a:b@c:1?x@y.", "a ssh://[secret]@h and ws://[secret]@c:1?x@y."),
            ("http://a@b@c/d@e", "http://[secret]@c/d@e"),
            ("`http://u:p@h` \"http://u:p@h\"", "`http://[secret]@h` \"http://[secret]@h\""),
            ("https://h/u:p@x", "https://h/u:p@x"),
            ("http://@h http://[secret]@h ://", "http://@h http://[secret]@h ://"),
            ("mail me@h.example", "mail me@h.example"),
            ("https://h/?token=stays", "https://h/?token=stays"),
        ] {
            assert_eq!(without_userinfo(text), expected);
        }
    }
}
