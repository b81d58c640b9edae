//! Format versions of stored data.

use std::fmt::Display;

use crate::{Code, ToolError};

/// The error for stored data with a newer format than this program supports.
///
/// `subject` names the data, such as "the store `state.db`". The caller leaves the data unchanged.
pub fn newer_format(subject: impl Display, found: u64, known: u64) -> ToolError {
    ToolError::new(
        Code::Precondition,
        format!("{subject} has format {found}, but this program supports formats up to {known}"),
    )
    .suggest("Use the newer program that wrote it.")
    .with("found", found)
    .with("known", known)
}
