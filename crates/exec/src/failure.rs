//! Errors and verdicts of the sandbox as errors of a call.

use std::time::Duration;

use toolpost_core::{Output, Partial, Suggestion, ToolError, format_duration};
use toolpost_sandbox::{Applied, DenialReason, Error, Verdict};

/// The maximum number of denied paths that a partial result names.
const MAX_DENIED: usize = 10;

/// The reason why a process could not start.
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
    converted.suggest_maybe(hint.as_ref().map(Suggestion::new)).caused_by(error)
}

/// The output of a run with the state of its changes: an error if the host did not take them, a partial success if a
/// rule denied some.
pub(crate) fn with_applied(
    output: Output,
    applied: Option<&Applied>,
    what: &str,
) -> Result<Output, ToolError> {
    let Some(applied) = applied else { return Ok(output) };
    if let Some(failure) = applied.failure() {
        let is_conflict = applied.denied.iter().any(|denied| denied.reason == DenialReason::Conflict);
        let make = if is_conflict { ToolError::conflict } else { ToolError::permission };
        let error = make(format!("{what} ran, but {failure}")).with("not_applied", applied.failed_count);
        let error = if applied.held_count > 0 { error.with("held_run", applied.id.clone()) } else { error };
        let error = match &output.structured {
            Some(result) => error.with("result", result.clone()),
            None => error.with("result", output.to_text()),
        };
        if is_conflict {
            return Err(error.suggest("Read the files as they are now, then repeat what is missing."));
        }
        return Err(error.suggest_maybe(applied.failure_hint().as_ref().map(Suggestion::new)));
    }
    let error = |message: String| ToolError::permission(message);
    let mut errors: Vec<ToolError> = applied
        .denied
        .iter()
        .take(MAX_DENIED)
        .map(|denied| {
            error(format!("`{}` was not applied: {}", denied.path.display(), denied.message))
                .suggest_maybe(denied.hint().as_ref().map(Suggestion::new))
        })
        .collect();
    let more = applied.denied_count.saturating_sub(errors.len());
    if more > 0 {
        errors.push(error(format!("{more} more paths were not applied")));
    }
    if let Some(because) = applied.held_because {
        errors.push(
            error(format!("the changes of {what} are held, because {because}"))
                .with("held_run", applied.id.clone()),
        );
    }
    Ok(match output.partial {
        None if !errors.is_empty() => output.with_partial(Partial { succeeded: 1, errors }),
        _ => output,
    })
}

/// The reason why a process gave no answer; `None` if it exited with status 0.
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
