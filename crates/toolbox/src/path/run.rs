//! One attempt: the tool at its placement, with a timeout and cancellation.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Sleep;
use toolpost_core::{
    Args, BoxFuture, Call, Ctx, Output, Placement, RetryAdvice, Timeout, Tool, ToolError, ToolSource,
    format_duration,
};

use super::call_path::{SourcePort, started};
use super::clock::now;
use super::host::CallHost;
use super::{mock, retry};
use crate::registry::Target;

/// The time that a cancelled blocking tool may take to end before its caller gets the error.
const GRACE: Duration = Duration::from_millis(500);

/// The time that a killed worker process may take to end before its caller gets the error.
const KILL: Duration = Duration::from_secs(5);

/// The timeout of one attempt, from the policy, the call's options and the toolbox.
pub(super) fn time_allowed(host: &CallHost) -> Option<Duration> {
    let own = match host.entry.spec.policy.timeout {
        Some(Timeout::After(limit)) => Some(limit),
        Some(Timeout::Never) => None,
        None => Some(host.toolbox.settings().timeout),
    };
    let policy = if host.entry.is_local() {
        own
    } else {
        // A source makes its own retries, so it gets the time of all of them.
        let plan = retry::declared(&host.entry.spec);
        own.map(|limit| {
            limit.saturating_mul(plan.attempts + 1) + plan.maximum * plan.attempts + Duration::from_secs(1)
        })
    };
    match (policy, host.call.options.timeout) {
        (Some(policy), Some(asked)) => Some(policy.min(asked)),
        (policy, asked) => policy.or(asked),
    }
}

pub(super) async fn attempt(host: &Arc<CallHost>) -> Result<Output, ToolError> {
    let allowed = time_allowed(host);
    let end = allowed.and_then(|allowed| now().checked_add(allowed));
    host.begin_attempt(end);
    if host.call.options.mock {
        return Box::pin(mocked(host, allowed)).await;
    }
    match &host.entry.target {
        Target::Source(source) => Box::pin(remote(host, source, allowed)).await,
        Target::Local(_) if host.entry.spec.policy.placement == Placement::Worker => {
            Box::pin(worker(host, allowed)).await
        }
        Target::Local(tool) => {
            let is_blocking = host.entry.spec.policy.placement == Placement::Blocking;
            if let Some(tool) = tool.on_thread().or_else(|| is_blocking.then(|| Arc::clone(tool))) {
                return Box::pin(blocking(host, tool, allowed)).await;
            }
            let ctx = Ctx::from_host(Arc::clone(host) as Arc<dyn toolpost_core::CallPath>);
            let args = Args::new(Arc::clone(&host.call.arguments));
            guarded(host, || tool.call(&args, &ctx), allowed).await?
        }
    }
}

/// A mock output: the tool's own, or one from its spec.
async fn mocked(host: &Arc<CallHost>, allowed: Option<Duration>) -> Result<Output, ToolError> {
    let Target::Local(tool) = &host.entry.target else {
        return Ok(mock::answer(&host.entry.spec, &host.call.arguments));
    };
    let ctx = Ctx::from_host(Arc::clone(host) as Arc<dyn toolpost_core::CallPath>);
    let args = Args::new(Arc::clone(&host.call.arguments));
    let begin = || {
        tool.mock(&args, &ctx)
            .unwrap_or_else(|| Box::pin(async { Ok(mock::answer(&host.entry.spec, &host.call.arguments)) }))
    };
    guarded(host, begin, allowed).await?
}

/// A call of a source. Its record becomes a child.
async fn remote(
    host: &Arc<CallHost>,
    source: &Arc<dyn ToolSource>,
    allowed: Option<Duration>,
) -> Result<Output, ToolError> {
    let mut call = Call::clone(&host.call);
    // This toolbox has handled approval and quota.
    call.approved = true;
    // Questions of the source go through this call, so that its clock stops.
    call.port = Arc::new(SourcePort(Arc::clone(host)));
    // This toolbox emits the events of the call.
    call.events = None;
    let reply = guarded(host, || source.call(call), allowed).await?;
    let not_started = reply.record.attempts == 0;
    host.add_child(host.secrets.record(&reply.record));
    // The record shows whether the call started.
    reply.result.map_err(|error| if not_started { error } else { started(error) })
}

/// A tool that blocks a thread. After the timeout it is cancelled, and its caller does not wait.
async fn blocking(
    host: &Arc<CallHost>,
    tool: Arc<dyn Tool>,
    allowed: Option<Duration>,
) -> Result<Output, ToolError> {
    let inner = Arc::clone(host);
    let mut thread = tokio::task::spawn_blocking(move || {
        // The call may have ended before a thread was free.
        if !inner.thread_enters() {
            return Err(ToolError::cancelled("the call has already ended"));
        }
        let ctx = Ctx::from_host(Arc::clone(&inner) as Arc<dyn toolpost_core::CallPath>);
        let args = Args::new(Arc::clone(&inner.call.arguments));
        let result = catch_unwind(AssertUnwindSafe(|| ctx.wait(tool.call(&args, &ctx))));
        inner.thread_leaves();
        result.unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
    });
    match guarded(host, || Box::pin(&mut thread), allowed).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(ToolError::internal("the runtime shut down before the tool ended")),
        Err(error) => {
            host.close();
            // A tool that checks for cancellation ends before its caller gets the error.
            let _ = tokio::time::timeout(GRACE, &mut thread).await;
            Err(error.with("still_running", host.is_running()).retry(RetryAdvice::Never))
        }
    }
}

/// A tool in a worker process. After the timeout the process is killed before the caller gets the error.
async fn worker(host: &Arc<CallHost>, allowed: Option<Duration>) -> Result<Output, ToolError> {
    let Some(runner) = &host.toolbox.config.runner else {
        return Err(ToolError::internal("a worker tool was registered without a runner"));
    };
    let stop = host.call.cancellation.child();
    let as_host = Arc::clone(host) as Arc<dyn toolpost_core::CallPath>;
    let mut attempt = runner.run(&host.entry.spec, as_host, stop.clone());
    match guarded(host, || Box::pin(&mut attempt), allowed).await {
        Ok(result) => result,
        Err(error) => {
            stop.cancel();
            // The kernel may delay the end of a process that waits for a device.
            let dead = tokio::time::timeout(KILL, &mut attempt).await.is_ok();
            Err(if dead { error } else { error.with("still_running", true) })
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> ToolError {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    ToolError::internal(format!("the tool panicked: {message}")).retry(RetryAdvice::Never)
}

/// Polls a future until it is done, its timeout passes, or the call is cancelled. A panic becomes an error.
async fn guarded<'a, T>(
    host: &CallHost,
    begin: impl FnOnce() -> BoxFuture<'a, T>,
    allowed: Option<Duration>,
) -> Result<T, ToolError> {
    let mut future = catch_unwind(AssertUnwindSafe(begin)).map_err(|panic| panicked(panic.as_ref()))?;
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    let mut cancelled = None;
    poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Ready(value)) => return Poll::Ready(Ok(value)),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Err(panicked(panic.as_ref()))),
        }
        let cancelled = cancelled.get_or_insert_with(|| host.call.cancellation.cancelled());
        if cancelled.poll_unpin(context).is_ready() {
            return Poll::Ready(Err(ToolError::cancelled("the caller cancelled the call")));
        }
        loop {
            let Some(end) = host.watch_end(context.waker()) else { return Poll::Pending };
            if end <= now() {
                return Poll::Ready(Err(too_slow(host, allowed)));
            }
            let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end.into())));
            if timer.deadline().into_std() != end {
                timer.as_mut().reset(end.into());
            }
            if timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    })
    .await
}

fn too_slow(host: &CallHost, allowed: Option<Duration>) -> ToolError {
    let name = &host.entry.name;
    if host.call.deadline.is_some_and(|deadline| deadline <= now()) {
        return ToolError::timeout(format!("the deadline passed while `{name}` ran"))
            .retry(RetryAdvice::Never);
    }
    let allowed = allowed.map(format_duration).unwrap_or_default();
    ToolError::timeout(format!("`{name}` did not finish within {allowed}"))
        .suggest("Ask for less at once, or raise the tool's timeout.")
}
