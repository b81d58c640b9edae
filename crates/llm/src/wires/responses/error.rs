//! Decodes the errors of the Responses API.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::Members;
use crate::wires::failure::{Kinds, error, error_of_page, kind_of_code, kind_of_message, kind_of_status};
use crate::{ErrorKind, ModelError};

/// An error of the provider.
#[derive(Debug, Default)]
pub(super) struct ErrorBody {
    code: String,
    kind: String,
    message: String,
}

impl ErrorBody {
    /// Reads an error in any form: an object under `error`, flat members, or a text under `error` with a code.
    pub(super) fn read(members: &Members<'_>) -> Self {
        if let Some(inner) = members.read::<Members<'_>>("error") {
            return Self::read(&inner);
        }
        let text = |name: &str| match members.get(name).map(RawValue::get) {
            None | Some("null") => String::new(),
            Some(raw) => {
                serde_json::from_str::<Cow<'_, str>>(raw).map_or_else(|_| raw.to_owned(), Cow::into_owned)
            }
        };
        let message = ["message", "error", "detail"].into_iter().map(text).find(|text| !text.is_empty());
        let kind = text("type");
        Self {
            code: text("code"),
            // In an event, this is the type of the event.
            kind: if kind == "error" { String::new() } else { kind },
            message: message.unwrap_or_default(),
        }
    }

    /// Whether the error has no content.
    pub(super) fn is_empty(&self) -> bool {
        self.code.is_empty() && self.kind.is_empty() && self.message.is_empty()
    }
}

/// Decodes the error of an unsuccessful answer.
pub(in crate::wires) fn read_error(status: u16, text: &str) -> ModelError {
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        request_id: Option<String>,
    }
    let body = serde_json::from_str::<Members<'_>>(text).ok().map(|members| ErrorBody::read(&members));
    let Some(body) = body.filter(|body| !body.is_empty()) else { return error_of_page(status, text) };
    let mut error = error_of(Some(status), &body);
    error.details.request_id = serde_json::from_str::<Body>(text).ok().and_then(|body| body.request_id);
    error
}

/// Converts the provider's error, with the status if there is one.
pub(super) fn error_of(status: Option<u16>, body: &ErrorBody) -> ModelError {
    let kind = kind_of(body).or_else(|| status.map(kind_of_status)).unwrap_or(ErrorKind::Protocol);
    let code = if body.code.is_empty() { &body.kind } else { &body.code };
    error(kind, status, &body.message, code)
}

/// Errors that only their message distinguishes.
const MESSAGES: Kinds = &[
    (ErrorKind::ContextTooLong, &["maximum context length", "context window", "maximum prompt length"]),
    (ErrorKind::Auth, &["incorrect api key", "invalid api key"]),
    (ErrorKind::NotFound, &["model not found", "model does not exist"]),
    (
        ErrorKind::Billing,
        &["run out of credits", "available credits", "exceeded your current quota", "spending limit"],
    ),
];

/// The error kind. The message precedes the code, and the code precedes the type.
fn kind_of(body: &ErrorBody) -> Option<ErrorKind> {
    kind_of_message(&body.message, MESSAGES)
        .or_else(|| kind_of_code(&body.code))
        .or_else(|| kind_of_code(&body.kind))
        .or_else(|| {
            let is_invalid = [&body.code, &body.kind].into_iter().any(|name| name == "invalid_request_error");
            is_invalid.then_some(ErrorKind::InvalidRequest)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_from_the_code_then_the_type_then_the_status() {
        for (status, text, kind) in [
            (
                401,
                r#"{"error":{"code":"invalid_api_key","message":"no","type":"invalid_request_error"}}"#,
                ErrorKind::Auth,
            ),
            (
                400,
                r#"{"error":{"code":"model_not_found","message":"x","type":"invalid_request_error"}}"#,
                ErrorKind::NotFound,
            ),
            (400, r#"{"code":"invalid-argument","error":"Model not found: grok-x"}"#, ErrorKind::NotFound),
            (
                400,
                r#"{"code":"invalid-argument","error":"Incorrect API key provided: xa***"}"#,
                ErrorKind::Auth,
            ),
            (403, r#"{"code":"x","error":"Your team has used all available credits"}"#, ErrorKind::Billing),
            (400, r#"{"error":{"code":"context_length_exceeded","message":"x"}}"#, ErrorKind::ContextTooLong),
            (
                400,
                r#"{"error":"This model's maximum prompt length is 131072 but the request contains 2"}"#,
                ErrorKind::ContextTooLong,
            ),
            (
                429,
                r#"{"error":{"code":"insufficient_quota","message":"x","type":"insufficient_quota"}}"#,
                ErrorKind::Billing,
            ),
            (
                429,
                r#"{"error":{"code":"rate_limit_exceeded","message":"x","type":"tokens"}}"#,
                ErrorKind::RateLimited { retry_after: None },
            ),
            (500, r#"{"error":{"code":null,"message":"x","type":"server_error"}}"#, ErrorKind::Overloaded),
            (
                400,
                r#"{"error":{"code":"invalid_prompt","message":"x","type":"invalid_request_error"}}"#,
                ErrorKind::Refused,
            ),
            (
                400,
                r#"{"error":{"code":"decimal_below_min_value","message":"x","type":"invalid_request_error"}}"#,
                ErrorKind::InvalidRequest,
            ),
            (503, r#"{"error":{"code":"brand_new","message":"x"}}"#, ErrorKind::Overloaded),
            (418, r#"{"detail":"short and stout"}"#, ErrorKind::InvalidRequest),
        ] {
            let error = read_error(status, text);
            assert_eq!(error.kind, kind, "{text}");
            assert_eq!(error.details.status, Some(status));
            assert!(!error.message.is_empty());
        }
    }

    #[test]
    fn numeric_codes_and_foreign_bodies_are_reported() {
        let error =
            read_error(400, r#"{"error":{"code":77,"message":"x","request_id":"r"},"request_id":"req_1"}"#);
        assert_eq!(error.details.provider_code.as_deref(), Some("77"));
        assert_eq!(error.details.request_id.as_deref(), Some("req_1"));
        assert_eq!(read_error(401, "{}").message, "{}");
    }
}
