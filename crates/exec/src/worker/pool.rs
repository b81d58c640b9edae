//! The pool of worker processes, and one attempt in one of them.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use toolpost_core::{
    BoxFuture, Call, CallId, CallPath, Cancellation, Output, RetryAdvice, ToolError, ToolSpec,
    format_duration,
};

use super::WorkerSettings;
use super::frame::{Order, OrderFrame, Report, StatePart};
use super::process::{Counted, Worker};
use crate::protocol::frame::{CallFacts, CallerMessage, StateRequest, ToolMessage};
use crate::protocol::outcome::{Answered, OutputFrame};

/// The maximum of workers with nested calls, as a multiple of the configured maximum.
const NESTED_FACTOR: usize = 4;
/// A waiting call with less time to its deadline is not started.
const MIN_TIME: Duration = Duration::from_millis(20);
/// Retry advice for a rejected call.
const RETRY_AFTER: Duration = Duration::from_millis(100);
/// Maximum number of late lines of an idle worker.
const MAX_LATE_LINES: usize = 64;

#[derive(Debug)]
pub(super) struct Pool {
    /// The settings, or why there are no workers.
    settings: Result<WorkerSettings, ToolError>,
    idle: Mutex<Idle>,
    permits: Arc<Semaphore>,
    /// Additional permits for calls that must not wait.
    nested_permits: Arc<Semaphore>,
    /// The calls with a permit.
    holders: Mutex<HashSet<CallId>>,
    count: Arc<AtomicUsize>,
}

/// The idle workers.
#[derive(Debug, Default)]
struct Idle {
    /// Workers with the start of their idle time; the latest is last.
    workers: VecDeque<(Instant, Worker)>,
    /// Stops workers that are idle for too long; present while there are idle workers.
    reaper: Option<JoinHandle<()>>,
}

/// The permit of a call to use one worker.
#[derive(Debug)]
struct Permit<'a> {
    pool: &'a Pool,
    holder: CallId,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.pool.holders().remove(&self.holder);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn new(settings: WorkerSettings) -> Self {
        let max = settings.max.clamp(1, Semaphore::MAX_PERMITS / NESTED_FACTOR);
        Self::with(Ok(settings), max)
    }

    pub(super) fn unavailable(reason: ToolError) -> Self {
        Self::with(Err(reason), 0)
    }

    fn with(settings: Result<WorkerSettings, ToolError>, max: usize) -> Self {
        Self {
            settings,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(max)),
            nested_permits: Arc::new(Semaphore::new(max * (NESTED_FACTOR - 1))),
            holders: Mutex::default(),
            count: Arc::default(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn holders(&self) -> MutexGuard<'_, HashSet<CallId>> {
        lock(&self.holders)
    }

    /// Whether an ancestor of this call may hold a permit, so that this call must not wait for one.
    fn has_waiting_ancestor(&self, call: &Call) -> bool {
        match call.depth {
            0 => false,
            // The depth alone is not proof: it may come from a wire.
            1 => call.parent.is_some_and(|parent| self.holders().contains(&parent)),
            // Ancestors beyond the parent are unknown.
            _ => true,
        }
    }

    /// Waits for a permit.
    async fn permit(&self, settings: &WorkerSettings, host: &dyn CallPath) -> Result<Permit<'_>, ToolError> {
        let call = host.call();
        let permit = if self.has_waiting_ancestor(call) {
            let permits = [&self.permits, &self.nested_permits];
            permits.into_iter().find_map(|permits| Arc::clone(permits).try_acquire_owned().ok()).ok_or_else(
                || {
                    ToolError::overloaded(format!(
                        "no worker process is free for the nested call of `{}` (maximum: {})",
                        call.tool,
                        settings.max.max(1).saturating_mul(NESTED_FACTOR)
                    ))
                    .suggest("Make fewer nested calls at once, or raise the maximum of workers (`max`).")
                },
            )
        } else {
            let started = Instant::now();
            let end = host.deadline().and_then(|end| end.checked_sub(MIN_TIME));
            let late = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                permit = Arc::clone(&self.permits).acquire_owned() => Ok(permit?),
                () = late => Err(ToolError::overloaded(format!(
                        "no worker process was free for `{}` within {} (maximum: {})",
                        call.tool,
                        format_duration(started.elapsed()),
                        settings.max.max(1)
                    ))
                    .suggest("Retry later, or raise the maximum of workers (`max`).")),
            }
        };
        let permit = permit.map_err(|error| error.retry(RetryAdvice::NotStarted(RETRY_AFTER)))?;
        self.holders().insert(call.id);
        Ok(Permit { pool: self, holder: call.id, _slot: permit })
    }

    /// Runs one attempt.
    pub(super) async fn run(
        self: Arc<Self>,
        spec: &ToolSpec,
        host: Arc<dyn CallPath>,
        stop: Cancellation,
    ) -> Result<Output, ToolError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let stopped = || ToolError::cancelled("the call was cancelled");
        let _permit = tokio::select! {
            permit = self.permit(settings, &*host) => permit?,
            () = stop.cancelled() => return Err(stopped()),
        };
        let memory = spec.policy.memory.unwrap_or(settings.memory);
        loop {
            let idle = self.take(memory);
            let was_idle = idle.is_some();
            let mut worker = match idle {
                Some(worker) => worker,
                None => tokio::select! {
                    started = Worker::start(settings, memory, Counted::new(&self.count)) => started?,
                    () = stop.cancelled() => return Err(stopped()),
                },
            };
            let order = order(spec, &*host)?;
            let ended = tokio::select! {
                ended = attempt(&mut worker, order, &host) => ended,
                () = stop.cancelled() => {
                    worker.kill().await;
                    return Err(stopped());
                }
            };
            match ended {
                Ended::Answered(result) => {
                    self.put(settings, worker);
                    return result;
                }
                // It had died while it was idle, and nothing of the call has begun.
                Ended::Died if was_idle && !worker.has_received().await => {}
                Ended::Died => return Err(worker.end().await),
            }
        }
    }

    /// Takes the idle worker that ran last, whose memory is still warm.
    fn take(&self, memory: u64) -> Option<Worker> {
        loop {
            let mut idle = lock(&self.idle);
            let place = idle.workers.iter().rposition(|(_, worker)| worker.memory == memory)?;
            let (_, worker) = idle.workers.remove(place)?;
            drop(idle);
            if is_idle(&worker) {
                return Some(worker);
            }
        }
    }

    fn put(self: &Arc<Self>, settings: &WorkerSettings, worker: Worker) {
        let mut idle = lock(&self.idle);
        idle.workers.push_back((Instant::now(), worker));
        // Nested calls may have started more workers than the maximum.
        let excess = idle.workers.len().saturating_sub(settings.max.max(1));
        let surplus: Vec<_> = idle.workers.drain(..excess).collect();
        // The previous reaper may have ended with its runtime.
        if idle.reaper.as_ref().is_none_or(JoinHandle::is_finished) {
            let (pool, wait) = (Arc::downgrade(self), settings.idle_timeout);
            idle.reaper = Some(tokio::spawn(async move {
                let mut next = wait;
                loop {
                    tokio::time::sleep(next).await;
                    let Some(pool) = pool.upgrade() else { return };
                    match pool.reap(wait) {
                        Some(wait) => next = wait,
                        None => return,
                    }
                }
            }));
        }
        drop(idle);
        drop(surplus);
    }

    /// Stops workers that are idle for too long. Returns the time to the next check; `None` if none is needed.
    fn reap(&self, wait: Duration) -> Option<Duration> {
        let mut idle = lock(&self.idle);
        let over = idle.workers.iter().take_while(|(since, _)| since.elapsed() >= wait).count();
        let ended: Vec<_> = idle.workers.drain(..over).collect();
        let next = idle.workers.front().map(|(since, _)| wait.saturating_sub(since.elapsed()));
        if next.is_none() {
            idle.reaper = None;
        }
        drop(idle);
        drop(ended);
        next
    }
}

/// Whether an idle worker still waits for work.
fn is_idle(worker: &Worker) -> bool {
    for _ in 0..MAX_LATE_LINES {
        match worker.next_report().now_or_never() {
            None => return true,
            // It exited, or its output is invalid.
            Some(None) => return false,
            // Late output of an earlier attempt is ignored.
            Some(Some(_)) => {}
        }
    }
    false
}

/// The end of an attempt.
#[expect(clippy::large_enum_variant, reason = "a call has one")]
enum Ended {
    /// The tool answered.
    Answered(Result<Output, ToolError>),
    /// The process died.
    Died,
}

/// The frame that starts an attempt.
fn order(spec: &ToolSpec, host: &dyn CallPath) -> Result<Order, ToolError> {
    let call = host.call();
    let state = (0..spec.state.len())
        .map(|index| host.state(index).map(|view| StatePart::from(&view)))
        .collect::<Result<_, _>>()?;
    Ok(Order::Attempt {
        tool: spec.name.clone(),
        arguments: Value::clone(&call.arguments),
        attempt: host.attempt(),
        state,
        facts: Box::new(facts(spec, call, host)),
    })
}

fn facts(spec: &ToolSpec, call: &Call, host: &dyn CallPath) -> CallFacts {
    let named = spec.injected.iter().filter_map(|name| {
        let value = call.values.get_named(name).or_else(|| host.values().get_named(name))?;
        Some((name.clone(), value.clone()))
    });
    let values: Map<String, Value> = named.collect();
    let working_dir = call
        .options
        .working_dir
        .as_deref()
        .or_else(|| call.scope.as_ref().and_then(|scope| scope.working_dir()));
    CallFacts {
        deadline_ms: host
            .deadline()
            .map(|end| end.saturating_duration_since(Instant::now()).as_millis() as u64),
        level: call.options.level.clone(),
        working_dir: working_dir.map(|path| path.to_string_lossy().into_owned()),
        values,
        ..CallFacts::from_call(call)
    }
}

/// Runs an attempt in a worker, and serves its requests until it answers.
async fn attempt(worker: &mut Worker, order: Order, host: &Arc<dyn CallPath>) -> Ended {
    let id = worker.next;
    worker.next += 1;
    if let Err(error) = worker.send(&OrderFrame::new(id, order)).await {
        return Ended::Answered(Err(error));
    }
    let mut requests: FuturesUnordered<BoxFuture<'_, (u64, Answered<Value>)>> = FuturesUnordered::new();
    let mut error_causes = Vec::new();
    loop {
        let report = tokio::select! {
            report = worker.next_report() => report,
            Some((request, answer)) = requests.next() => {
                let answer = OrderFrame::new(id, Order::Caller(CallerMessage::Answer { request, answer }));
                if let Err(error) = worker.send(&answer).await {
                    let answer = CallerMessage::Answer { request, answer: Answered::Error(error) };
                    // An error always fits.
                    let _ = worker.send(&OrderFrame::new(id, Order::Caller(answer))).await;
                }
                continue;
            }
        };
        let Some(report) = report else { return Ended::Died };
        // Late output of an earlier attempt is ignored.
        if report.id != id {
            continue;
        }
        match report.message {
            Report::SetState { index, value } => {
                if let Err(error) = host.set_state(index, value) {
                    return Ended::Answered(Err(error));
                }
            }
            Report::Causes { causes } => error_causes = causes,
            Report::Tool(message) => match *message {
                ToolMessage::Progress(progress) => host.progress(progress),
                ToolMessage::Log(line) => host.log(line),
                ToolMessage::Result { outcome, .. } => {
                    let result = outcome.into_result().map_err(|error| error.with_causes(error_causes));
                    return Ended::Answered(result.and_then(OutputFrame::into_output));
                }
                question => match answer(question, host) {
                    Some(answer) => requests.push(answer),
                    None => return Ended::Died,
                },
            },
        }
    }
}

/// Serves a request of a worker; `None` if the message is not a request.
fn answer(
    question: ToolMessage,
    host: &Arc<dyn CallPath>,
) -> Option<BoxFuture<'static, (u64, Answered<Value>)>> {
    let host = Arc::clone(host);
    let (request, answer): (u64, BoxFuture<'static, Result<Value, ToolError>>) = match question {
        ToolMessage::Artifact { request, artifact } => {
            (request, Box::pin(async move { Ok(json!(host.artifact(artifact.into_artifact()?).await?)) }))
        }
        ToolMessage::Ask { request, question } => {
            (request, Box::pin(async move { Ok(json!(host.ask(question).await?)) }))
        }
        ToolMessage::Sample { request, prompt } => {
            (request, Box::pin(async move { Ok(json!(host.sample(prompt).await?)) }))
        }
        ToolMessage::Nested { request, tool, arguments } => (
            request,
            Box::pin(async move {
                let call = host.call().nested(tool, arguments);
                let output = host.nested(call).await.result?;
                Ok(json!(OutputFrame::from(&output)))
            }),
        ),
        ToolMessage::State { request, state } => (request, Box::pin(documents(state, host))),
        _ => return None,
    };
    Some(Box::pin(async move { (request, answer.await.into()) }))
}

async fn documents(request: StateRequest, host: Arc<dyn CallPath>) -> Result<Value, ToolError> {
    let (store, _) = host.documents()?;
    Ok(match request {
        StateRequest::Load { document } => json!(store.load(&document).await?),
        StateRequest::Commit(commit) => json!(store.commit(commit).await?),
        StateRequest::At { document, version } => json!(store.at(&document, version).await?),
        StateRequest::Log { document, after, limit } => json!(store.log(&document, after, limit).await?),
        StateRequest::List { prefix, after, limit } => {
            json!(store.list(&prefix, after.as_deref(), limit).await?)
        }
    })
}
