//! Decodes the errors of Chat Completions servers, in all their formats.

use serde_json::Value;

use crate::wires::failure::{Kinds, error, error_of_page, kind_of_code, kind_of_message, kind_of_status};
use crate::{ErrorKind, ModelError};

/// An error of a server.
#[derive(Debug, Default)]
struct ServerError {
    /// The values of `code` and `type`.
    codes: Vec<String>,
    /// A status number that some servers use as the code.
    status: Option<u16>,
    message: String,
}

/// Decodes the error of an unsuccessful answer.
pub(in crate::wires) fn read_error(status: u16, text: &str) -> ModelError {
    let error = serde_json::from_str::<Value>(text).ok().and_then(|body| read_body(&body));
    error.map_or_else(|| error_of_page(status, text), |error| error_of(Some(status), &error))
}

/// Decodes an error inside a successful answer or an event.
pub(super) fn error_in(body: &str) -> Option<ModelError> {
    let body: Value = serde_json::from_str(body).ok()?;
    let body = body.as_object()?;
    let is_error = body.get("error").is_some_and(|error| !error.is_null())
        || body.get("object").is_some_and(|object| object == "error");
    if !is_error {
        return None;
    }
    Some(error_of(None, &read_body(&Value::Object(body.clone())).unwrap_or_default()))
}

/// Reads an error: nested, flat, a text, a list, or under `detail`.
fn read_body(body: &Value) -> Option<ServerError> {
    let body = match body {
        Value::Array(list) => list.first()?,
        other => other,
    };
    let error = match (body.get("error"), body.get("detail")) {
        (Some(Value::Null) | None, Some(detail)) => detail,
        (Some(Value::Null) | None, None) => body,
        (Some(error), _) => error,
    };
    if let Value::String(text) = error {
        return Some(ServerError { message: text.clone(), ..ServerError::default() });
    }
    if let Value::Array(list) = error {
        let texts: Vec<&str> =
            list.iter().take(10).filter_map(|one| one.get("msg").and_then(Value::as_str)).collect();
        return Some(ServerError { message: texts.join("; "), ..ServerError::default() });
    }
    let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
    let mut message = text("message").or_else(|| text("error")).unwrap_or_default();
    // A router passes on the error of the server behind it.
    if let Some(raw) = error.pointer("/metadata/raw").and_then(Value::as_str) {
        message = format!("{message}: {raw}");
    }
    let codes: Vec<String> = ["code", "type", "status"].into_iter().filter_map(text).collect();
    if message.is_empty() && codes.is_empty() {
        return None;
    }
    let number = ["code", "status"].into_iter().find_map(|name| error.get(name).and_then(Value::as_u64));
    let status =
        number.and_then(|number| u16::try_from(number).ok()).filter(|status| (400..600).contains(status));
    Some(ServerError { codes, status, message })
}

fn error_of(status: Option<u16>, server: &ServerError) -> ModelError {
    let kind = kind_of(server)
        .or_else(|| server.status.or(status).map(kind_of_status))
        .unwrap_or(ErrorKind::Protocol);
    let name = server.codes.first().cloned().or_else(|| server.status.map(|status| status.to_string()));
    error(kind, status, &server.message, &name.unwrap_or_default())
}

/// Errors that only their message distinguishes.
const MESSAGES: Kinds = &[(
    ErrorKind::ContextTooLong,
    &["context length", "context window", "context size", "maximum context", "prompt is too long"],
)];

fn kind_of(server: &ServerError) -> Option<ErrorKind> {
    kind_of_message(&server.message, MESSAGES)
        .or_else(|| server.codes.iter().find_map(|code| kind_of_code(code)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_every_format_are_decoded() {
        for (status, text, kind, message, code) in [
            (
                400,
                r#"{"error":{"message":"maximum context length is 9","type":"invalid_request_error","code":null}}"#,
                ErrorKind::ContextTooLong,
                "maximum context length is 9",
                Some("invalid_request_error"),
            ),
            (
                429,
                r#"{"error":{"message":"m","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                ErrorKind::Billing,
                "m",
                Some("insufficient_quota"),
            ),
            (
                404,
                r#"{"object":"error","message":"no such model","type":"NotFoundError","code":404}"#,
                ErrorKind::NotFound,
                "no such model",
                Some("NotFoundError"),
            ),
            (500, r#"{"error":"llama runner stopped"}"#, ErrorKind::Overloaded, "llama runner stopped", None),
            (
                502,
                r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"slow down"}}}"#,
                ErrorKind::RateLimited { retry_after: None },
                "Provider returned error: slow down",
                Some("429"),
            ),
            (
                400,
                r#"[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]"#,
                ErrorKind::InvalidRequest,
                "bad",
                Some("INVALID_ARGUMENT"),
            ),
            (
                422,
                r#"{"detail":[{"msg":"field required"}]}"#,
                ErrorKind::InvalidRequest,
                "field required",
                None,
            ),
            (401, r#"{"detail":"who are you"}"#, ErrorKind::Auth, "who are you", None),
            (500, "{}", ErrorKind::Overloaded, "{}", None),
        ] {
            let error = read_error(status, text);
            assert_eq!((error.kind, error.message.as_str()), (kind, message), "{text}");
            assert_eq!(error.details.provider_code.as_deref(), code, "{text}");
            assert_eq!(error.details.status, Some(status));
        }
    }

    #[test]
    fn an_error_in_a_successful_answer_is_found() {
        let error = error_in(r#"{"error":{"message":"busy","code":503},"choices":[]}"#).unwrap();
        assert_eq!(error.kind, ErrorKind::Overloaded);
        assert_eq!(error_in(r#"{"object":"error","message":"x"}"#).unwrap().kind, ErrorKind::Protocol);
        for success in [r#"{"choices":[],"error":null}"#, r#"{"object":"chat.completion"}"#, "7", "x"] {
            assert!(error_in(success).is_none(), "{success}");
        }
    }
}
