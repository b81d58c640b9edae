//! Shared error handling of the wires.

use crate::{ErrorKind, ModelError};

/// Maximum length of a provider's message, in characters.
pub(super) const MAX_MESSAGE: usize = 2_000;

/// Maximum length of a provider's error code, in characters.
pub(super) const MAX_CODE: usize = 100;

/// Maximum length of an excerpt of a foreign body, in characters.
const MAX_EXCERPT: usize = 200;

/// Texts and the error kind of an error that contains one of them.
pub(super) type Kinds = &'static [(ErrorKind, &'static [&'static str])];

/// The error codes and types of all providers, in lower case.
const CODES: Kinds = &[
    (
        ErrorKind::Auth,
        &[
            "invalid_api_key",
            "authentication_error",
            "permission_error",
            "permission_denied",
            "unauthenticated",
            "missing_scope",
            "model_not_allowed",
            "unsupported_country_region_territory",
        ],
    ),
    (
        ErrorKind::NotFound,
        &["model_not_found", "not_found_error", "not_found", "notfounderror", "previous_response_not_found"],
    ),
    (
        ErrorKind::ContextTooLong,
        &[
            "context_length_exceeded",
            "exceed_context_size_error",
            "string_above_max_length",
            "request_too_large",
        ],
    ),
    (
        ErrorKind::Billing,
        &[
            "insufficient_quota",
            "insufficient_balance",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
        ],
    ),
    (
        ErrorKind::RateLimited { retry_after: None },
        &[
            "rate_limit_exceeded",
            "rate_limit_error",
            "requests",
            "tokens",
            "too_many_requests",
            "resource_exhausted",
        ],
    ),
    (
        ErrorKind::Overloaded,
        &[
            "server_error",
            "server_is_overloaded",
            "overloaded_error",
            "engine_overloaded",
            "internal_server_error",
            "internalservererror",
            "service_unavailable",
            "unavailable_error",
            "unavailable",
            "api_error",
            "timeout_error",
            "vector_store_timeout",
            "slow_down",
        ],
    ),
    (
        ErrorKind::Refused,
        &[
            "content_filter",
            "content_policy_violation",
            "image_content_policy_violation",
            "moderation_blocked",
            "invalid_prompt",
            "bio_policy",
            "misalignment_policy_violation",
            "cyber_policy",
        ],
    ),
];

/// The error kind of a provider's code or type.
pub(super) fn kind_of_code(code: &str) -> Option<ErrorKind> {
    let code = code.to_ascii_lowercase();
    CODES.iter().find(|(_, codes)| codes.contains(&code.as_str())).map(|(kind, _)| kind.clone())
}

/// The error kind of a message, for errors without a code of their own.
pub(super) fn kind_of_message(message: &str, kinds: Kinds) -> Option<ErrorKind> {
    let message = message.to_lowercase();
    let is_named = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    kinds.iter().find(|(_, texts)| is_named(texts)).map(|(kind, _)| kind.clone())
}

/// The error kind of an HTTP status.
pub(super) fn kind_of_status(status: u16) -> ErrorKind {
    match status {
        401 | 403 => ErrorKind::Auth,
        402 => ErrorKind::Billing,
        404 => ErrorKind::NotFound,
        413 => ErrorKind::ContextTooLong,
        429 => ErrorKind::RateLimited { retry_after: None },
        408 | 409 | 499 | 500.. => ErrorKind::Overloaded,
        400.. => ErrorKind::InvalidRequest,
        _ => ErrorKind::Protocol,
    }
}

/// An error with the provider's message and code, truncated. `code` is empty if there is none.
pub(super) fn error(kind: ErrorKind, status: Option<u16>, message: &str, code: &str) -> ModelError {
    let text = match message {
        "" => "the provider gave no reason".to_owned(),
        text => text.chars().take(MAX_MESSAGE).collect(),
    };
    let mut error = ModelError::new(kind, text);
    error.details.status = status;
    error.details.provider_code = (!code.is_empty()).then(|| code.chars().take(MAX_CODE).collect());
    error
}

/// The error of a body that is not an error of the wire, such as a gateway's page.
pub(super) fn error_of_page(status: u16, text: &str) -> ModelError {
    let shown: String = text.trim().chars().take(MAX_EXCERPT).collect();
    let shown = if shown.is_empty() { "the answer is empty".to_owned() } else { shown };
    error(kind_of_status(status), Some(status), &shown, "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wires::{anthropic, chat, gemini, responses};

    #[test]
    fn every_wire_excerpts_a_gateway_page() {
        for read_error in [
            anthropic::error::read_error,
            chat::error::read_error,
            gemini::error::read_error,
            responses::error::read_error,
        ] {
            let error = read_error(502, &format!("<html>{}", "x".repeat(9_000)));
            assert_eq!(error.kind, ErrorKind::Overloaded);
            assert!(error.message.starts_with("<html>x") && error.message.len() == MAX_EXCERPT);
            assert_eq!(read_error(401, "").message, "the answer is empty");
        }
    }
}
