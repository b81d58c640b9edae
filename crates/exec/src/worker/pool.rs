//! The processes that there are, and one attempt in one of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use toolpost_core::{BoxFuture, Call, Cancellation, Host, Output, ToolError, ToolSpec};

use super::Settings;
use super::frame::{Order, OrderFrame, Report, Seen};
use super::process::{Counted, Worker};
use crate::protocol::frame::{CallFacts, CallerMessage, CallerName, ScopeName, StateRequest, ToolMessage};
use crate::protocol::outcome::{Answered, OutputFrame};

#[derive(Debug)]
pub(super) struct Pool {
    /// Or why there are none.
    settings: Result<Settings, ToolError>,
    /// With the time since when they have nothing to do; the latest at the end.
    idle: Mutex<VecDeque<(Instant, Worker)>>,
    places: Arc<Semaphore>,
    count: Arc<AtomicUsize>,
}

impl Pool {
    pub(super) fn new(settings: Settings) -> Self {
        let places = Arc::new(Semaphore::new(settings.most.max(1)));
        Self { settings: Ok(settings), idle: Mutex::default(), places, count: Arc::default() }
    }

    pub(super) fn none(reason: ToolError) -> Self {
        let places = Arc::new(Semaphore::new(0));
        Self { settings: Err(reason), idle: Mutex::default(), places, count: Arc::default() }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(Instant, Worker)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
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
        // A nested call may be one that a worker waits for: it must not wait for that worker's place.
        let _place = if host.call().depth == 0 {
            tokio::select! {
                place = Arc::clone(&self.places).acquire_owned() => Some(place?),
                () = stop.cancelled() => return Err(stopped()),
            }
        } else {
            None
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
        let mut idle = self.idle();
        let place = idle.iter().rposition(|(_, worker)| worker.memory == memory)?;
        idle.remove(place).map(|(_, worker)| worker)
    }

    fn give_back(self: &Arc<Self>, settings: &Settings, worker: Worker) {
        let mut idle = self.idle();
        idle.push_back((Instant::now(), worker));
        // Nested calls may have needed more than there shall be.
        let excess = idle.len().saturating_sub(settings.most.max(1));
        let surplus: Vec<_> = idle.drain(..excess).collect();
        drop(idle);
        drop(surplus);
        let (pool, wait, least) = (Arc::downgrade(self), settings.idle, settings.least);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(pool) = pool.upgrade() {
                pool.reap(wait, least);
            }
        });
    }

    /// Ends those that had nothing to do for too long.
    fn reap(&self, wait: Duration, least: usize) {
        let mut idle = self.idle();
        let over = idle.iter().take_while(|(since, _)| since.elapsed() >= wait).count();
        let over = over.min(idle.len().saturating_sub(least));
        let ended: Vec<_> = idle.drain(..over).collect();
        drop(idle);
        drop(ended);
    }
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
        call: Some(call.id.to_string()),
        parent: call.parent.map(|id| id.to_string()),
        depth: call.depth,
        caller: Some(CallerName {
            front: call.caller.front.to_string(),
            identity: call.caller.identity.as_ref().map(ToString::to_string),
        }),
        scope: call
            .scope
            .as_ref()
            .map(|scope| ScopeName { id: scope.id().to_string(), owner: scope.owner().to_owned() }),
        deadline_ms: host
            .deadline()
            .map(|end| end.saturating_duration_since(Instant::now()).as_millis() as u64),
        idempotency_key: call.idempotency_key.clone(),
        priority: call.priority,
        dry_run: call.options.dry_run,
        verbose: call.options.verbose,
        level: call.options.level.clone(),
        working_dir: working_dir.map(|path| path.to_string_lossy().into_owned()),
        metadata: call.options.metadata.clone(),
        values,
        ..CallFacts::default()
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
            Report::Tool(message) => match *message {
                ToolMessage::Progress(progress) => host.progress(progress),
                ToolMessage::Log(line) => host.log(line),
                ToolMessage::Result { outcome, .. } => {
                    return Ended::Answered(outcome.into_result().and_then(OutputFrame::into_output));
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
