//! Conversion of sandbox errors.

use toolpost::ToolError;
use toolpost_sandbox::Error;

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
    failed.suggest_maybe(hint).caused_by(error)
}
