//! What the errors of all wires have in common.

use crate::{ErrorKind, ModelError};

/// The longest message of a provider that is kept, in characters.
const LONGEST_MESSAGE: usize = 2_000;

/// The longest name of a provider for an error that is kept, in characters.
const LONGEST_CODE: usize = 100;

/// How much is shown of a body that is no error of the wire's, in characters.
const LONGEST_PAGE: usize = 200;

/// What a status means by itself.
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

/// An error in the provider's words, of bounded length. `code` is its name for it; empty if it gave none.
pub(super) fn error(kind: ErrorKind, status: Option<u16>, message: &str, code: &str) -> ModelError {
    let text = match message {
        "" => "the provider gave no reason".to_owned(),
        text => text.chars().take(LONGEST_MESSAGE).collect(),
    };
    let mut error = ModelError::new(kind, text);
    error.details.status = status;
    error.details.provider_code = (!code.is_empty()).then(|| code.chars().take(LONGEST_CODE).collect());
    error
}

/// The error of a body that is not what the wire's errors are. A gateway in between, most likely: its page is shown in
/// part.
pub(super) fn of_page(status: u16, text: &str) -> ModelError {
    let shown: String = text.trim().chars().take(LONGEST_PAGE).collect();
    let shown = if shown.is_empty() { "the answer has no text".to_owned() } else { shown };
    error(kind_of_status(status), Some(status), &shown, "")
}
