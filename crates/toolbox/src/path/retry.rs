//! Whether a failed attempt is repeated.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Output, Retry, RetryAdvice, ToolError, ToolSpec};

use super::host::{CallHost, enter_again, started};
use super::run::{attempt, now, time_allowed};

/// What a tool declares, with the default of idempotent ones.
pub(super) fn declared(spec: &ToolSpec) -> Retry {
    match &spec.policy.retry {
        Some(retry) => retry.clone(),
        None if spec.annotations.idempotent => Retry::default(),
        None => Retry::none(),
    }
}

/// What counts for this call: the tool's declaration, tightened by the call. For a tool of a source it says how often
/// the call may be sent again if it certainly did not start.
pub(super) fn plan(host: &CallHost) -> Retry {
    let mut plan = if host.entry.is_local() { declared(&host.entry.spec) } else { Retry::default() };
    if let Some(asked) = host.call.options.retries {
        plan.attempts = plan.attempts.min(asked);
    }
    plan
}

/// How long to wait before the next attempt; `None` if there is none.
fn wait(host: &CallHost, plan: &Retry, error: &ToolError) -> Option<Duration> {
    let made = host.attempts_in_round();
    if made > plan.attempts {
        return None;
    }
    let asked = match error.retry_advice() {
        Some(RetryAdvice::Never) => return None,
        // A tool of this process has started when it says anything: only a source can know that its call has not.
        Some(RetryAdvice::NotStarted(wait)) if !host.entry.is_local() => wait,
        // Only its source knows what a foreign tool has done: it makes the other attempts.
        _ if !host.entry.is_local() => return None,
        Some(RetryAdvice::After(wait) | RetryAdvice::NotStarted(wait)) => wait,
        _ if plan.on.contains(&error.code()) => Duration::ZERO,
        _ => return None,
    };
    // A longer wait is the caller's to decide on: the error tells it.
    if asked > plan.maximum {
        return None;
    }
    let doubled = plan.initial.saturating_mul(1 << (made.max(1) - 1).min(20)).min(plan.maximum);
    // Half to all of it, so that many callers do not come back at once.
    let jitter = RandomState::new().hash_one(made) % 512;
    let wait = (doubled / 2).saturating_add((doubled / 1024).saturating_mul(jitter as u32)).max(asked);
    let in_time = |deadline| now().checked_add(wait).is_some_and(|again| again < deadline);
    host.call.deadline.is_none_or(in_time).then_some(wait)
}

pub(crate) async fn attempts(host: &Arc<CallHost>) -> Result<Output, ToolError> {
    loop {
        // What the attempt before has begun by hand is done before the next one looks.
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
        // Others may use the places in the meantime.
        host.give_back();
        host.let_others_in();
        tokio::select! {
            () = Box::pin(tokio::time::sleep(wait)) => Box::pin(enter_again(host)).await?,
            () = host.call.cancellation.cancelled() => {
                return Err(ToolError::cancelled("the caller asked to stop between two attempts"));
            }
        }
    }
}
