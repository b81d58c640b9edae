//! Waiting for a call's permits and for its tool's rate limit.

use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{Call, ToolError};

use super::host::CallHost;
use super::pace::Pace;
use super::queue::{Needs, Permits, ToolPermit};
use crate::registry::Entry;
use crate::shared::Shared;

/// Waits for the tool's permit and, for a root call, a global permit. Also returns the time in the queue.
pub(super) async fn acquire(
    toolbox: &Shared,
    entry: &Arc<Entry>,
    call: &Call,
    parent: Option<&Arc<CallHost>>,
) -> (Result<Permits, ToolError>, Duration) {
    if call.cancellation.is_cancelled() {
        return (Err(ToolError::cancelled("the caller cancelled the call")), Duration::ZERO);
    }
    let permit = toolbox.scheduler.permit(entry, call, || {
        let ancestors = parent.into_iter().flat_map(|parent| parent.lineage()).map(|host| host.call.id);
        std::iter::once(call.id).chain(ancestors).collect()
    });
    let needs = Needs { tools: permit.into_iter().collect(), global: parent.is_none() };
    let has_pace = entry.pace.is_some() || call.limit.as_ref().is_some_and(|limit| limit.rate.is_some());
    // The common case: no wait.
    let needs = if has_pace {
        needs
    } else {
        match toolbox.scheduler.try_acquire(needs) {
            Ok(permits) => return (Ok(permits), Duration::ZERO),
            Err(needs) => needs,
        }
    };
    let since = toolbox.config.clock.instant();
    let permits = Box::pin(queued(toolbox, entry, call, needs)).await;
    (permits, toolbox.config.clock.instant().saturating_duration_since(since))
}

async fn queued(toolbox: &Shared, entry: &Entry, call: &Call, needs: Needs) -> Result<Permits, ToolError> {
    if let Some(pace) = &entry.pace {
        pace.wait(&entry.name, call, toolbox.settings().queue).await?;
    }
    if let Some(limit) = &call.limit
        && let Some(rate) = limit.rate
    {
        let pace: Arc<Pace> = toolbox.paces.get(&limit.key, rate);
        pace.wait(&limit.key, call, toolbox.settings().queue).await?;
    }
    match toolbox.scheduler.try_acquire(needs) {
        Ok(permits) => Ok(permits),
        Err(needs) => toolbox.scheduler.enqueue(call, needs, false)?.wait().await,
    }
}

/// Takes permits again that running calls of one lineage had released.
pub(super) async fn reacquire(
    toolbox: &Shared,
    call: &Call,
    tools: Vec<ToolPermit>,
    global: bool,
) -> Result<Vec<Permits>, ToolError> {
    if tools.is_empty() && !global {
        return Ok(Vec::new());
    }
    let permits = match toolbox.scheduler.try_acquire(Needs { tools, global }) {
        Ok(permits) => permits,
        Err(needs) => toolbox.scheduler.enqueue(call, needs, true)?.wait().await?,
    };
    Ok(permits.split())
}

/// A variant without waiting. If one permit is not free, the calls continue without any.
pub(super) fn try_reacquire(toolbox: &Shared, tools: Vec<ToolPermit>, global: bool) -> Vec<Permits> {
    let permits = toolbox.scheduler.try_acquire(Needs { tools, global });
    permits.map(Permits::split).unwrap_or_default()
}
