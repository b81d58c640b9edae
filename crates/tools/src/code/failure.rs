//! Conversion of sandbox errors.

use toolpost::{Suggestion, ToolError};
use toolpost_sandbox::{Applied, DenialReason, Error};

/// The error of a tool, with the sandbox's reason and hint.
pub(super) fn of_sandbox(error: Error) -> ToolError {
    let (message, hint) = (error.to_string(), error.hint());
    let failed = match &error {
        Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } | Error::CopyTooLarge { .. } => {
            ToolError::permission(message)
        }
        Error::UnknownLevel { .. } => ToolError::invalid_input(message).with("option", "level"),
        Error::UnknownLanguage { .. } => ToolError::invalid_input(message).with("pointer", "/language"),
        Error::ProgramNotFound { .. } => ToolError::not_found(message).with("pointer", "/argv/0"),
        Error::LanguageMissing { .. }
        | Error::ProgramNotStarted { .. }
        | Error::SessionEnded { .. }
        | Error::SessionRejected { .. }
        | Error::InvalidLimit { .. }
        | Error::Workspace { .. } => ToolError::precondition(message),
        Error::InvalidName { .. } => ToolError::invalid_input(message),
        Error::TooLarge { .. } => ToolError::limit(message),
        Error::Build { .. } | Error::File { .. } | Error::Setup { .. } => ToolError::dependency(message),
        _ => ToolError::internal(message),
    };
    failed.suggest_maybe(hint.as_ref().map(Suggestion::new)).caused_by(error)
}

/// The error of a run whose changes the host did not take: a conflict, or an error of the host. `what` ran.
pub(super) fn of_applied(applied: &Applied, what: &str) -> Option<ToolError> {
    let failure = applied.failure()?;
    let is_conflict = applied.denied.iter().any(|denied| denied.reason == DenialReason::Conflict);
    let make = if is_conflict { ToolError::conflict } else { ToolError::permission };
    let error = make(format!("{what} ran, but {failure}")).with("not_applied", applied.failed_count);
    let error = if applied.held_count > 0 { error.with("held_run", applied.id.clone()) } else { error };
    Some(if is_conflict {
        error.suggest("Read the files as they are now, then repeat what is missing.")
    } else {
        error.suggest_maybe(applied.failure_hint().as_ref().map(Suggestion::new))
    })
}
