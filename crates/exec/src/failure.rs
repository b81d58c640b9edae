//! Errors and verdicts of the sandbox as errors of a call.

use std::time::Duration;

use toolpost_core::{ToolError, format_duration};
use toolpost_sandbox::{Error, Verdict};

/// Why a process could not start.
pub(crate) fn of_sandbox(error: Error) -> ToolError {
    let (message, hint) = (error.to_string(), error.hint());
    let converted = match &error {
        Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } | Error::CopyTooLarge { .. } => {
            ToolError::permission(message)
        }
        Error::InvalidName { .. } => ToolError::invalid_input(message),
        Error::TooLarge { .. } => ToolError::limit(message),
        Error::InvalidLimit { .. } | Error::Workspace { .. } => ToolError::precondition(message),
        _ => ToolError::dependency(message),
    };
    converted.suggest_maybe(hint).caused_by(error)
}

/// Why a process gave no answer; `None` if it exited with status 0.
pub(crate) fn of_verdict(verdict: &Verdict, what: &str) -> Option<ToolError> {
    let time = |millis: &u64| format_duration(Duration::from_millis(*millis));
    Some(match verdict {
        Verdict::Ok => return None,
        Verdict::Exit { code } => {
            ToolError::dependency(format!("{what} exited with status {code}")).with("exit_code", *code)
        }
        Verdict::Signal { signal } => {
            ToolError::dependency(format!("{what} was killed by signal {signal}")).with("signal", *signal)
        }
        Verdict::Timeout { limit_ms } => {
            ToolError::timeout(format!("{what} timed out after {}", time(limit_ms)))
        }
        Verdict::Cpu { limit_ms } => {
            ToolError::timeout(format!("{what} exceeded its limit of {} CPU time", time(limit_ms)))
        }
        Verdict::Memory { limit } => {
            ToolError::limit(format!("{what} exceeded its limit of {} memory", size(*limit)))
        }
        Verdict::Processes { limit } => {
            ToolError::limit(format!("{what} exceeded its limit of {limit} processes"))
        }
        Verdict::Disk { limit } => {
            ToolError::limit(format!("{what} exceeded its limit of {} disk space", size(*limit)))
        }
        Verdict::Output { limit } => ToolError::limit(format!("{what} printed more than {}", size(*limit))),
        Verdict::Denied { rule } => ToolError::permission(format!("the sandbox blocked {what}: {rule}")),
        Verdict::Cancelled => ToolError::cancelled(format!("the caller cancelled {what}")),
        other => ToolError::dependency(format!("{what} ended: {other:?}")),
    })
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}
