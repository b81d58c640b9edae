//! Shared error handling of the wires.

use crate::{ErrorKind, ModelError};

/// The longest message of a provider, in characters.
pub(super) const MAX_MESSAGE: usize = 2_000;

/// The longest error code of a provider, in characters.
pub(super) const MAX_CODE: usize = 100;

/// The longest excerpt of a body that is not an error of the wire, in characters.
const MAX_EXCERPT: usize = 200;

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
