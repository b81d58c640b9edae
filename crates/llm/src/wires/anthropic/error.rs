//! The errors of the Messages API.

use serde::Deserialize;

use crate::wires::failure::{error, error_of_page, kind_of_status};
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
pub(super) fn read_error(status: u16, text: &str) -> ModelError {
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

fn kind_of_name(body: &ErrorBody) -> Option<ErrorKind> {
    let message = body.message.to_lowercase();
    let mentions = |words: &[&str]| words.iter().any(|word| message.contains(word));
    Some(match body.kind.as_str() {
        // A full context window and an empty account have no code of their own, only a message.
        "invalid_request_error" if mentions(&["prompt is too long", "context limit", "context window"]) => {
            ErrorKind::ContextTooLong
        }
        "invalid_request_error" if mentions(&["credit balance"]) => ErrorKind::Billing,
        "invalid_request_error" => ErrorKind::InvalidRequest,
        "authentication_error" | "permission_error" => ErrorKind::Auth,
        "billing_error" => ErrorKind::Billing,
        "not_found_error" => ErrorKind::NotFound,
        "request_too_large" => ErrorKind::ContextTooLong,
        "rate_limit_error" => ErrorKind::RateLimited { retry_after: None },
        "overloaded_error" | "api_error" | "timeout_error" => ErrorKind::Overloaded,
        _ => return None,
    })
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
        assert_eq!(
            kind(400, "invalid_request_error", "prompt is too long: 9 tokens"),
            ErrorKind::ContextTooLong
        );
        assert_eq!(kind(400, "invalid_request_error", "Your credit balance is too low"), ErrorKind::Billing);
        assert_eq!(kind(400, "invalid_request_error", "temperature: range"), ErrorKind::InvalidRequest);
        assert_eq!(kind(403, "permission_error", "no"), ErrorKind::Auth);
        assert_eq!(kind(529, "overloaded_error", "Overloaded"), ErrorKind::Overloaded);
        assert_eq!(kind(500, "brand_new_error", "x"), ErrorKind::Overloaded);
        assert_eq!(kind(418, "brand_new_error", "x"), ErrorKind::InvalidRequest);
    }

    #[test]
    fn a_gateway_page_is_excerpted() {
        let error = read_error(502, &format!("<html>{}", "x".repeat(9_000)));
        assert_eq!(error.kind, ErrorKind::Overloaded);
        assert!(error.message.starts_with("<html>x") && error.message.len() == 200);
        assert_eq!(read_error(401, "").message, "the answer is empty");
    }
}
