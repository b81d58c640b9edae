//! Secrets in requests.

use reqwest::Url;
use serde_json::Value;
pub(super) use toolpost::is_secret_parameter;

/// A URL without user, password and secret parameters.
pub(crate) fn without_credentials(url: &Url) -> String {
    let mut url = url.clone();
    // Cannot fail for a URL with a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    if url.query_pairs().any(|(name, _)| is_secret_parameter(&name)) {
        let pairs: Vec<(String, String)> = url
            .query_pairs()
            .map(|(name, value)| {
                let value = if is_secret_parameter(&name) { "[secret]".into() } else { value };
                (name.into_owned(), value.into_owned())
            })
            .collect();
        url.query_pairs_mut().clear().extend_pairs(pairs);
    }
    url.to_string()
}

/// The secrets in the arguments of a request, as written there.
pub(super) fn of_arguments(arguments: &Value) -> Vec<String> {
    let mut secrets = Vec::new();
    if let Some(text) = arguments.get("url").and_then(Value::as_str) {
        of_url(text, &mut secrets);
    }
    for part in ["headers", "params"] {
        let entries = arguments.get(part).and_then(Value::as_object).into_iter().flatten();
        for (_, value) in entries.filter(|(name, _)| is_secret_parameter(name)) {
            match value {
                Value::String(text) => of_value(text, &mut secrets),
                Value::Array(items) => {
                    items.iter().filter_map(Value::as_str).for_each(|text| of_value(text, &mut secrets));
                }
                Value::Number(number) => secrets.push(number.to_string()),
                _ => {}
            }
        }
    }
    secrets.retain(|secret| !secret.trim().is_empty());
    secrets
}

/// Adds a value, and its part after a scheme such as `Bearer`, which may occur alone elsewhere.
fn of_value(text: &str, secrets: &mut Vec<String>) {
    secrets.push(text.to_owned());
    if let Some((_, credentials)) = text.trim().split_once(' ') {
        secrets.push(credentials.trim().to_owned());
    }
}

/// Adds the secrets of a URL without decoding, as they occur in messages and records.
fn of_url(text: &str, secrets: &mut Vec<String>) {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    if let Some((user, _)) = authority.rsplit_once('@') {
        match user.split_once(':') {
            Some((_, password)) if !password.is_empty() => secrets.push(password.to_owned()),
            // A user without a password is a token, as on many Git hosts.
            _ => secrets.push(user.trim_end_matches(':').to_owned()),
        }
    }
    let query = rest.split_once('?').map(|(_, query)| query.split('#').next().unwrap_or_default());
    for pair in query.into_iter().flat_map(|query| query.split('&')) {
        if let Some((_, value)) = pair.split_once('=').filter(|(name, _)| is_secret_parameter(name)) {
            secrets.push(value.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_of_arguments_are_found() {
        let arguments = json!({
            "url": "https://anna:pa55@host.example/a?q=1&access_token=t0k#f",
            "headers": { "Authorization": "Bearer abc.def", "X-API-Key": "k3y", "Accept": "text/plain" },
            "params": { "api_key": ["p1"], "page": 2 },
        });
        let mut found = of_arguments(&arguments);
        found.sort();
        assert_eq!(found, ["Bearer abc.def", "abc.def", "k3y", "p1", "pa55", "t0k"]);
        assert_eq!(of_arguments(&json!({ "url": "https://ghp_123@host.example/" })), ["ghp_123"]);
        assert!(of_arguments(&json!({ "url": "https://host.example/a@b?x=1" })).is_empty());
    }

    #[test]
    fn keys_and_signatures_are_secret() {
        for name in ["x-functions-key", "Ocp-Apim-Subscription-Key", "sig", "X-Sig", "key", "X-Amz-Signature"]
        {
            assert!(is_secret_parameter(name), "{name}");
        }
        for name in ["accept", "x-trace", "keyword", "design", "q"] {
            assert!(!is_secret_parameter(name), "{name}");
        }
    }

    #[test]
    fn a_url_is_shown_without_secrets() {
        let url = Url::parse("https://anna:pa55@host.example/a?q=1&token=t0k").unwrap();
        assert_eq!(without_credentials(&url), "https://host.example/a?q=1&token=%5Bsecret%5D");
        let url = Url::parse("https://host.example/a?q=a+b%20c").unwrap();
        assert_eq!(without_credentials(&url), "https://host.example/a?q=a+b%20c");
    }
}
