//! Retries of failed attempts.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Output, Retry, RetryAdvice, ToolError, ToolSpec};

use super::call_path::{reacquire, started};
use super::clock::now;
use super::host::CallHost;
use super::run::{attempt, time_allowed};

/// The retries that a tool declares, or the default of an idempotent tool.
pub(super) fn declared(spec: &ToolSpec) -> Retry {
    match &spec.policy.retry {
        Some(retry) => retry.clone(),
        None if spec.annotations.idempotent => Retry::default(),
        None => Retry::none(),
    }
}

/// The retries of this call: the tool's declaration, limited by the call. For a tool of a source, how often a
/// call that did not start is sent again.
pub(super) fn plan(host: &CallHost) -> Retry {
    let mut plan = if host.entry.is_local() { declared(&host.entry.spec) } else { Retry::default() };
    if let Some(asked) = host.call.options.retries {
        plan.attempts = plan.attempts.min(asked);
    }
    plan
}

/// The delay before the next attempt, or `None` for no further attempt.
fn wait(host: &CallHost, plan: &Retry, error: &ToolError) -> Option<Duration> {
    let attempts_made = host.attempts_in_round();
    if attempts_made > plan.attempts {
        return None;
    }
    let asked = match error.retry_advice() {
        Some(RetryAdvice::Never) => return None,
        // A local tool that returns an error has started. Only a source can report that its call did not
        // start.
        Some(RetryAdvice::NotStarted(wait)) if !host.entry.is_local() => wait,
        // The source makes the other retries of its tools.
        _ if !host.entry.is_local() => return None,
        Some(RetryAdvice::After(wait) | RetryAdvice::NotStarted(wait)) => wait,
        // A program that fails with the same arguments again fails the same way, unless the tool declares retries.
        _ if error.is_program_failure() && host.entry.spec.policy.retry.is_none() => return None,
        _ if plan.on.contains(&error.code()) => Duration::ZERO,
        _ => return None,
    };
    // The caller decides on a longer delay, which the error contains.
    if asked > plan.maximum {
        return None;
    }
    let doubled = plan.initial.saturating_mul(1 << (attempts_made.max(1) - 1).min(20)).min(plan.maximum);
    // Jitter between half the delay and all of it, so that callers do not retry at once.
    let jitter = RandomState::new().hash_one(attempts_made) % 512;
    let wait = (doubled / 2).saturating_add((doubled / 1024).saturating_mul(jitter as u32)).max(asked);
    let in_time = |deadline| now().checked_add(wait).is_some_and(|again| again < deadline);
    host.call.deadline.is_none_or(in_time).then_some(wait)
}

pub(crate) async fn attempts(host: &Arc<CallHost>) -> Result<Output, ToolError> {
    loop {
        // Commits of the previous attempt end before the next one reads.
        if host.is_committing() {
            Box::pin(host.commits_ended()).await;
        }
        if let Some(transaction) = host.transaction() {
            let most = time_allowed(host).unwrap_or(host.toolbox.settings().timeout);
            Box::pin(transaction.begin(host, most)).await?;
        }
        let error = match attempt(host).await {
            Ok(output) => return Ok(output),
            Err(error) if host.entry.is_local() => started(error),
            Err(error) => error,
        };
        let plan = plan(host);
        let Some(wait) = wait(host, &plan, &error) else {
            return Err(error);
        };
        host.emit_retry(&error, wait);
        // Other calls may use the permits meanwhile.
        host.release_permits();
        host.release_documents();
        tokio::select! {
            () = Box::pin(tokio::time::sleep(wait)) => Box::pin(reacquire(host)).await?,
            () = host.call.cancellation.cancelled() => {
                return Err(ToolError::cancelled("the caller cancelled the call between two attempts"));
            }
        }
    }
}
