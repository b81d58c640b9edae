//! The processes that there are, and one attempt in one of them.

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
    BoxFuture, Call, CallId, Cancellation, Host, Output, RetryAdvice, ToolError, ToolSpec, format_duration,
};

use super::Settings;
use super::frame::{Order, OrderFrame, Report, Seen};
use super::process::{Counted, Worker};
use crate::protocol::frame::{CallFacts, CallerMessage, StateRequest, ToolMessage};
use crate::protocol::outcome::{Answered, OutputFrame};

/// How many times as many as there shall be there are at most, with those of nested calls.
const CAP: usize = 4;
/// With less time left than this, a call that waits for a process is not begun any more.
const LEAST_TIME: Duration = Duration::from_millis(20);
/// When a call that was refused may try again.
const AGAIN: Duration = Duration::from_millis(100);
/// How many lines a process that has nothing to do may have said since it answered.
const LATE: usize = 64;

#[derive(Debug)]
pub(super) struct Pool {
    /// Or why there are none.
    settings: Result<Settings, ToolError>,
    idle: Mutex<Idle>,
    places: Arc<Semaphore>,
    /// Further places, for calls that must not wait.
    extra: Arc<Semaphore>,
    /// The calls that hold a place.
    holders: Mutex<HashSet<CallId>>,
    count: Arc<AtomicUsize>,
}

/// What has nothing to do.
#[derive(Debug, Default)]
struct Idle {
    /// With the time since when; the latest at the end.
    workers: VecDeque<(Instant, Worker)>,
    /// Ends those that had nothing to do for too long. There is one as long as there are such.
    reaper: Option<JoinHandle<()>>,
}

/// The right to use one process.
#[derive(Debug)]
struct Place<'a> {
    pool: &'a Pool,
    holder: CallId,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.pool.holders().remove(&self.holder);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    pub(super) fn new(settings: Settings) -> Self {
        let most = settings.most.clamp(1, Semaphore::MAX_PERMITS / CAP);
        Self::with(Ok(settings), most)
    }

    pub(super) fn none(reason: ToolError) -> Self {
        Self::with(Err(reason), 0)
    }

    fn with(settings: Result<Settings, ToolError>, most: usize) -> Self {
        Self {
            settings,
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(most)),
            extra: Arc::new(Semaphore::new(most * (CAP - 1))),
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

    /// Whether a call above this one may hold a place, so that this one must not wait for a place.
    fn may_be_waited_for(&self, call: &Call) -> bool {
        match call.depth {
            0 => false,
            // The depth alone proves nothing: it may have come in over a wire.
            1 => call.parent.is_some_and(|parent| self.holders().contains(&parent)),
            // Nobody can tell who stands further above.
            _ => true,
        }
    }

    /// A place for a call, as soon as there is one.
    async fn place(&self, settings: &Settings, host: &dyn Host) -> Result<Place<'_>, ToolError> {
        let call = host.call();
        let permit = if self.may_be_waited_for(call) {
            let places = [&self.places, &self.extra];
            places.into_iter().find_map(|places| Arc::clone(places).try_acquire_owned().ok()).ok_or_else(|| {
                let most = settings.most.max(1);
                ToolError::overloaded(format!(
                    "no worker process is free for the nested call of `{}`: at most {most} run calls, and with \
                     nested calls {}",
                    call.tool,
                    most.saturating_mul(CAP)
                ))
                .suggest("Make fewer nested calls at once, or let the program have more workers (`most`).")
            })
        } else {
            let begun = Instant::now();
            let end = host.deadline().and_then(|end| end.checked_sub(LEAST_TIME));
            let late = async {
                match end {
                    Some(end) => tokio::time::sleep_until(end.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                place = Arc::clone(&self.places).acquire_owned() => Ok(place?),
                () = late => Err(ToolError::overloaded(format!(
                    "no worker process was free for `{}` within {}: {} may run calls at once",
                    call.tool,
                    format_duration(begun.elapsed()),
                    settings.most.max(1)
                ))
                .suggest("Call again later, or let the program have more workers (`most`).")),
            }
        };
        let permit = permit.map_err(|error| error.retry(RetryAdvice::NotStarted(AGAIN)))?;
        self.holders().insert(call.id);
        Ok(Place { pool: self, holder: call.id, _permit: permit })
    }

    /// One attempt.
    pub(super) async fn run(
        self: Arc<Self>,
        spec: &ToolSpec,
        host: Arc<dyn Host>,
        stop: Cancellation,
    ) -> Result<Output, ToolError> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let stopped = || ToolError::cancelled("the call was stopped");
        let _place = tokio::select! {
            place = self.place(settings, &*host) => place?,
            () = stop.cancelled() => return Err(stopped()),
        };
        let memory = spec.policy.memory.unwrap_or(settings.memory);
        let ready = self.take(memory);
        let mut worker = match ready {
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
                self.give_back(settings, worker);
                result
            }
            Ended::Died => Err(worker.end().await),
        }
    }

    /// One that has nothing to do: the one that worked last, whose memory is still warm.
    fn take(&self, memory: u64) -> Option<Worker> {
        loop {
            let mut idle = lock(&self.idle);
            let place = idle.workers.iter().rposition(|(_, worker)| worker.memory == memory)?;
            let (_, worker) = idle.workers.remove(place)?;
            drop(idle);
            if is_well(&worker) {
                return Some(worker);
            }
        }
    }

    fn give_back(self: &Arc<Self>, settings: &Settings, worker: Worker) {
        let mut idle = lock(&self.idle);
        idle.workers.push_back((Instant::now(), worker));
        // Nested calls may have needed more than there shall be.
        let excess = idle.workers.len().saturating_sub(settings.most.max(1));
        let surplus: Vec<_> = idle.workers.drain(..excess).collect();
        // The one that there was may have ended with its runtime.
        if idle.reaper.as_ref().is_none_or(JoinHandle::is_finished) {
            let (pool, wait, least) = (Arc::downgrade(self), settings.idle, settings.least);
            idle.reaper = Some(tokio::spawn(async move {
                let mut next = wait;
                loop {
                    tokio::time::sleep(next).await;
                    let Some(pool) = pool.upgrade() else { return };
                    match pool.reap(wait, least) {
                        Some(wait) => next = wait,
                        None => return,
                    }
                }
            }));
        }
        drop(idle);
        drop(surplus);
    }

    /// Ends those that had nothing to do for too long, and tells when to look again; `None` if there is no need.
    fn reap(&self, wait: Duration, least: usize) -> Option<Duration> {
        let mut idle = lock(&self.idle);
        let over = idle.workers.iter().take_while(|(since, _)| since.elapsed() >= wait).count();
        let over = over.min(idle.workers.len().saturating_sub(least));
        let ended: Vec<_> = idle.workers.drain(..over).collect();
        let next = match idle.workers.front() {
            Some((since, _)) if idle.workers.len() > least => Some(wait.saturating_sub(since.elapsed())),
            _ => {
                idle.reaper = None;
                None
            }
        };
        drop(idle);
        drop(ended);
        next
    }
}

/// Whether a process that had nothing to do still waits for work.
fn is_well(worker: &Worker) -> bool {
    for _ in 0..LATE {
        match worker.next_report().now_or_never() {
            None => return true,
            // It has ended, or talks nonsense.
            Some(None) => return false,
            // What a task of an earlier attempt still had to say is for nobody.
            Some(Some(_)) => {}
        }
    }
    false
}

/// How an attempt ended.
enum Ended {
    /// The tool said so.
    Answered(Result<Output, ToolError>),
    /// The process says nothing more.
    Died,
}

/// What a worker is told of a call.
fn order(spec: &ToolSpec, host: &dyn Host) -> Result<Order, ToolError> {
    let call = host.call();
    let state = (0..spec.state.len())
        .map(|index| host.state(index).map(|view| Seen::from(&view)))
        .collect::<Result<_, _>>()?;
    Ok(Order::Attempt {
        tool: spec.name.clone(),
        arguments: Value::clone(&call.arguments),
        attempt: host.attempt(),
        state,
        facts: Box::new(facts(spec, call, host)),
    })
}

fn facts(spec: &ToolSpec, call: &Call, host: &dyn Host) -> CallFacts {
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
        ..CallFacts::of(call)
    }
}

/// Gives a worker its attempt, and does for it what it asks for until it answers.
async fn attempt(worker: &mut Worker, order: Order, host: &Arc<dyn Host>) -> Ended {
    let id = worker.next;
    worker.next += 1;
    if let Err(error) = worker.send(&OrderFrame::new(id, order)).await {
        return Ended::Answered(Err(error));
    }
    let mut asked: FuturesUnordered<BoxFuture<'_, (u64, Answered<Value>)>> = FuturesUnordered::new();
    let mut of_error = Vec::new();
    loop {
        let report = tokio::select! {
            report = worker.next_report() => report,
            Some((request, answer)) = asked.next() => {
                let answer = OrderFrame::new(id, Order::Caller(CallerMessage::Answer { request, answer }));
                if let Err(error) = worker.send(&answer).await {
                    let answer = CallerMessage::Answer { request, answer: Answered::Error(error) };
                    // An error is never too large.
                    let _ = worker.send(&OrderFrame::new(id, Order::Caller(answer))).await;
                }
                continue;
            }
        };
        let Some(report) = report else { return Ended::Died };
        // What a task of an earlier attempt still has to say is for nobody.
        if report.id != id {
            continue;
        }
        match report.message {
            Report::Keep { index, value } => {
                if let Err(error) = host.set_state(index, value) {
                    return Ended::Answered(Err(error));
                }
            }
            Report::Causes { causes } => of_error = causes,
            Report::Tool(message) => match *message {
                ToolMessage::Progress(progress) => host.progress(progress),
                ToolMessage::Log(line) => host.log(line),
                ToolMessage::Result { outcome, .. } => {
                    let result = outcome.into_result().map_err(|error| error.with_causes(of_error));
                    return Ended::Answered(result.and_then(OutputFrame::into_output));
                }
                question => match answer(question, host) {
                    Some(answer) => asked.push(answer),
                    None => return Ended::Died,
                },
            },
        }
    }
}

/// The answer to a question of a worker; `None` if it is no question.
fn answer(question: ToolMessage, host: &Arc<dyn Host>) -> Option<BoxFuture<'static, (u64, Answered<Value>)>> {
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

async fn documents(request: StateRequest, host: Arc<dyn Host>) -> Result<Value, ToolError> {
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
