//! The Restate service of a pool: calls tools for the steps of runs.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use restate_sdk::discovery::ServiceName;
use restate_sdk::endpoint::{ContextInternal, Error};
use restate_sdk::prelude::*;
use restate_sdk::service::macro_support::{ServiceBoxFuture, service_definition};
use restate_sdk::service::{Discoverable as _, Service};
use serde_json::Value;
use tokio::sync::Semaphore;
use toolpost_core::{Call, Caller, Cancellation, Clock as _, Masks, Scope, SystemClock, ToolError};
use toolpost_flow::FlowEvent;
use toolpost_flow::driver;
use toolpost_toolbox::Toolbox;

use crate::wire::{Attempt, AttemptEnd, VERSION, pool_service};

/// The maximum number of calls that a worker admits to the queue of its toolbox. The others wait outside it.
pub(crate) const MAX_ADMITTED: usize = 1_000;
/// The maximum size of an output in bytes: half of a message of Restate, which has more than the output.
const MAX_OUTPUT: usize = 16 << 20;
/// The longest call: less than the inactivity timeout, after which Restate would suspend the call.
const MAX_CALL: Duration = Duration::from_hours(23);

/// The tools and settings of a worker's calls.
pub(crate) struct Tools {
    pub(crate) toolbox: Toolbox,
    pub(crate) caller: Caller,
    pub(crate) scope: Option<Scope>,
    pub(crate) masks: Masks,
    pub(crate) admitted: Semaphore,
}

/// The handlers of a pool.
struct Pool(Arc<Tools>);

// A lost worker or server is noticed by the connection, not by this timeout.
#[restate_sdk::service(
    name = "ToolpostPool",
    inactivity_timeout = "1 day",
    journal_retention = "0s",
    ingress_private,
    invocation_retry_policy(
        initial_interval = "100ms",
        max_interval = "2s",
        factor = 2.0,
        max_attempts = 1000000
    )
)]
impl Pool {
    /// Makes an attempt of a step.
    ///
    /// The end of the call is journaled: an invocation that is repeated makes the call again only without it.
    #[handler]
    async fn call(&self, ctx: Context<'_>, Json(attempt): Json<Attempt>) -> HandlerResult<Json<AttemptEnd>> {
        let (token, has_ended) = (Cancellation::new(), Arc::new(AtomicBool::new(false)));
        let (tools, own_token, own_end) = (Arc::clone(&self.0), token.clone(), Arc::clone(&has_ended));
        let mut attempting = pin!(ctx.run(move || async move {
            let event = tools.attempt(attempt, own_token).await;
            own_end.store(true, Ordering::Relaxed);
            Ok(Json(AttemptEnd { at: SystemClock.timestamp(), event }))
        }));
        // Nothing sends this signal: waiting for it fails when the invocation is cancelled.
        let mut stopped = pin!(ctx.signal::<()>("stop"));
        let end = poll_fn(|task| {
            if let Poll::Ready(end) = attempting.as_mut().poll(task) {
                return Poll::Ready(end);
            }
            // After the call, its journal entry needs all that Restate sends. On a replay the entry ends the first poll,
            // since nothing else may wait before it.
            let may_stop = !token.is_cancelled() && !has_ended.load(Ordering::Relaxed);
            if may_stop && stopped.as_mut().poll(task).is_ready() {
                token.cancel();
            }
            Poll::Pending
        });
        Ok(end.await?)
    }
}

impl Tools {
    async fn attempt(&self, attempt: Attempt, token: Cancellation) -> FlowEvent {
        let Attempt {
            v,
            step,
            tool,
            arguments,
            values,
            is_program,
            uses,
            timeout_ms,
            heartbeat_ms,
            limit,
            priority,
            key,
        } = attempt;
        if v > VERSION {
            let message = format!("the step has format {v}, and this worker format {VERSION}");
            let error = ToolError::precondition(message).suggest("Run the same version on all workers.");
            return FlowEvent::StepFailed { step, error };
        }
        let checked = driver::check_values(&self.toolbox, &tool, &arguments, is_program, &values).await;
        if let Err(error) = checked {
            return FlowEvent::StepFailed { step, error };
        }
        let _admitted = tokio::select! {
            admitted = self.admitted.acquire() => admitted,
            () = token.cancelled() => return FlowEvent::StepCancelled { step },
        };
        let mut call = Call::new(&*tool, arguments)
            .with_caller(self.caller.clone())
            .with_cancellation(token.clone())
            .with_priority(priority)
            .with_idempotency_key(key);
        call.options.whole_output = true;
        call.options.timeout = timeout_ms.map(|limit| Duration::from_millis(limit).min(MAX_CALL));
        call.limit = limit;
        if let Some(scope) = &self.scope {
            call = call.with_scope(scope.clone());
        }
        let heartbeat = heartbeat_ms.map(Duration::from_millis);
        let result = driver::reply(&self.toolbox, call, heartbeat).await.result;
        let event = driver::attempt_event(&step, result, is_program, &uses, token.is_cancelled());
        let mut event = within_message(event);
        if !self.masks.is_empty() {
            match &mut event {
                FlowEvent::StepSucceeded { output, .. } => mask(&self.masks, output),
                FlowEvent::StepFailed { error, .. } => {
                    *error = error.clone().map_text(|text| self.masks.text(text), usize::MAX);
                }
                _ => {}
            }
        }
        event
    }
}

/// The event of an attempt. An output that is too large for a message fails, since Restate would repeat the call.
fn within_message(event: FlowEvent) -> FlowEvent {
    match event {
        FlowEvent::StepSucceeded { step, output, .. } if json_size(&output) > MAX_OUTPUT => {
            let message =
                format!("the output has more than {} MiB, the limit of a cluster", MAX_OUTPUT >> 20);
            let error =
                ToolError::limit(message).suggest("Write large data to a file, and hand on its path.");
            FlowEvent::StepFailed { step, error }
        }
        event => event,
    }
}

/// The size of the JSON of a value, in bytes.
fn json_size(value: &Value) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Masks secrets in the texts and names of a value.
fn mask(masks: &Masks, value: &mut Value) {
    match value {
        Value::String(text) => *text = masks.text(text),
        Value::Array(items) => items.iter_mut().for_each(|item| mask(masks, item)),
        Value::Object(members) => {
            for (name, mut member) in std::mem::take(members) {
                mask(masks, &mut member);
                members.insert(masks.text(&name), member);
            }
        }
        _ => {}
    }
}

/// The service of one pool. The macro of the SDK knows names of services in code only, so this one is built by hand.
struct PoolService(Arc<Pool>);

impl Service for PoolService {
    type Future = ServiceBoxFuture;

    fn handle(&self, ctx: ContextInternal) -> Self::Future {
        let pool = Arc::clone(&self.0);
        Box::pin(async move {
            if ctx.handler_name() != "call" {
                return Err(Error::unknown_handler(ctx.service_name(), ctx.handler_name()));
            }
            let (attempt, metadata) = ctx.input().await;
            let end = pool.call((&ctx, metadata).into(), attempt).await;
            ctx.handle_handler_result(end);
            ctx.end();
            Ok(())
        })
    }
}

/// The service of a pool, or what its name should be.
pub(crate) fn service(tools: &Arc<Tools>, name: &str) -> Result<ServiceDefinition, String> {
    const MAX_NAME: usize = 64;
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_valid) {
        return Err(format!("the pool `{name}` needs another name: expected letters, digits, `_` and `-`"));
    }
    let mut discovery = Pool::discover();
    discovery.name = ServiceName::try_from(pool_service(name)).map_err(|error| error.to_string())?;
    let pool = Arc::new(Pool(Arc::clone(tools)));
    Ok(service_definition(PoolService(pool), discovery))
}
