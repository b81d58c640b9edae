//! The errors of the Messages API.

use serde::Deserialize;

use crate::wires::failure::{Kinds, error, error_of_page, kind_of_code, kind_of_message, kind_of_status};
use crate::{ErrorKind, ModelError};

/// The member `error`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ErrorBody {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    message: String,
}

/// Decodes the error of an unsuccessful answer.
pub(in crate::wires) fn read_error(status: u16, text: &str) -> ModelError {
    #[derive(Deserialize)]
    struct Body {
        error: ErrorBody,
        #[serde(default)]
        request_id: Option<String>,
    }
    if let Ok(body) = serde_json::from_str::<Body>(text) {
        let mut error = error_of(Some(status), &body.error);
        error.details.request_id = body.request_id;
        return error;
    }
    error_of_page(status, text)
}

/// Converts the provider's error, with the status if there is one.
pub(super) fn error_of(status: Option<u16>, body: &ErrorBody) -> ModelError {
    let kind = kind_of_name(body).or_else(|| status.map(kind_of_status)).unwrap_or(ErrorKind::Protocol);
    error(kind, status, &body.message, &body.kind)
}

/// Invalid requests without a code of their own.
const INVALID_REQUESTS: Kinds = &[
    (ErrorKind::ContextTooLong, &["prompt is too long", "context limit", "context window"]),
    (ErrorKind::Billing, &["credit balance"]),
];

fn kind_of_name(body: &ErrorBody) -> Option<ErrorKind> {
    match body.kind.as_str() {
        "invalid_request_error" => {
            kind_of_message(&body.message, INVALID_REQUESTS).or(Some(ErrorKind::InvalidRequest))
        }
        name => kind_of_code(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_from_the_name_and_then_from_the_status() {
        let kind = |status: u16, name: &str, message: &str| {
            let text =
                serde_json::json!({"type": "error", "error": {"type": name, "message": message}}).to_string();
            read_error(status, &text).kind
        };
        for (status, name, message, expected) in [
            (400, "invalid_request_error", "prompt is too long: 9 tokens", ErrorKind::ContextTooLong),
            (400, "invalid_request_error", "Your credit balance is too low", ErrorKind::Billing),
            (400, "invalid_request_error", "temperature: range", ErrorKind::InvalidRequest),
            (403, "permission_error", "no", ErrorKind::Auth),
            (529, "overloaded_error", "Overloaded", ErrorKind::Overloaded),
            (500, "brand_new_error", "x", ErrorKind::Overloaded),
            (418, "brand_new_error", "x", ErrorKind::InvalidRequest),
        ] {
            assert_eq!(kind(status, name, message), expected, "{name} {message}");
        }
    }
}
