//! Calls that outlive their requests: the MCP extension `io.modelcontextprotocol/tasks`.
//!
//! Running calls live in this table. Results live in the task store, which survives a restart.

mod follow;
mod memory;
mod record;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use rmcp::ErrorData;
use rmcp::model::{DetailedTask, Task as WireTask};
use serde_json::Value;
use tokio::sync::{OnceCell, oneshot, watch};
use tokio_util::sync::CancellationToken;
use toolpost_core::{
    Call, Cancellation, TaskRecord, TaskStore, Timestamp, ToolError, ToolSpec, format_duration,
};

pub(super) use self::follow::{FollowedTasks, TaskFilter};
pub(super) use self::memory::MemoryTasks;
pub(super) use self::record::{Rerun, TaskBody};
use self::record::{TaskEnd, now};
use super::calls::{Active, NoticeSink, Step, Task, shown};
use super::handler::{Shared, caller_of, rpc_error};
use super::port::{Abilities, CallPort, Notice, PendingQuestion};
use super::{Principal, ServerLimits};

/// The interval of the search for expired tasks.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum lifetime of a result, if the TTL of tasks is not shorter.
const MIN_RESULT_TTL: Duration = Duration::from_mins(5);
/// The most runs of a call across restarts.
const MAX_RUNS: u32 = 3;
/// The longest status message of a task, in characters.
const MAX_MESSAGE: usize = 1_000;

/// The tasks of a server.
pub(super) struct Tasks {
    table: Mutex<Table>,
    store: Arc<dyn TaskStore>,
    capacity: usize,
    max_bytes: usize,
    ttl: Duration,
    poll: Duration,
    /// Increments with each change of any task.
    changes: watch::Sender<u64>,
    recovered: OnceCell<()>,
    sweeper: std::sync::OnceLock<Task<()>>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<String, TaskEntry>,
    bytes: usize,
    changes: u64,
}

struct TaskEntry {
    owner: Option<String>,
    until: Timestamp,
    /// The size in the store.
    bytes: usize,
    /// The table's change count at the last change of this task.
    revision: u64,
    state: TaskStage,
}

enum TaskStage {
    Running(Box<Run>),
    /// Holds the record if the store failed to save it.
    Ended(Option<Box<TaskBody>>),
}

/// A running task.
struct Run {
    record: TaskBody,
    questions: Vec<PendingQuestion>,
    /// Used question keys: each key names one question.
    used_keys: HashSet<String>,
    stop: CancellationToken,
    stop_reason: StopReason,
    _driver: Task<()>,
}

/// The reason why a task is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopReason {
    Cancelled,
    Expired,
    ServerStopped,
}

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(time.as_micros().saturating_add(micros))
}

/// Whether an interrupted call of a tool may run again after a restart, and its arguments may be stored.
pub(super) fn is_rerunnable(spec: &ToolSpec) -> bool {
    let is_repeatable = spec.annotations.idempotent || spec.annotations.read_only;
    let has_conversation_state = spec.state.iter().any(|state| state.id.contains("{scope}"));
    is_repeatable && !has_conversation_state && spec.sensitive.is_empty()
}

fn unknown(id: &str) -> ErrorData {
    let message = format!("unknown or expired task `{}`", shown(id));
    ErrorData::invalid_params(message, None)
}

impl Table {
    fn entry(&mut self, id: &str, principal: &Principal) -> Result<&mut TaskEntry, ErrorData> {
        // Tasks of other clients look unknown.
        let is_owned = |entry: &&mut TaskEntry| entry.owner.as_deref() == principal.key();
        self.entries.get_mut(id).filter(is_owned).ok_or_else(|| unknown(id))
    }

    fn run(&mut self, id: &str) -> Option<&mut Run> {
        match &mut self.entries.get_mut(id)?.state {
            TaskStage::Running(run) => Some(run),
            TaskStage::Ended(_) => None,
        }
    }

    fn remove(&mut self, id: &str) -> Option<TaskEntry> {
        let entry = self.entries.remove(id)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Records a change of a task.
    fn touch(&mut self, id: &str) -> u64 {
        self.changes += 1;
        let changes = self.changes;
        if let Some(entry) = self.entries.get_mut(id) {
            entry.revision = changes;
            if let TaskStage::Running(run) = &mut entry.state {
                run.record.updated = now();
            }
        }
        changes
    }
}

impl Tasks {
    pub(super) fn new(store: Option<Arc<dyn TaskStore>>, limits: &ServerLimits) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            store: store.unwrap_or_else(|| Arc::new(MemoryTasks::default())),
            capacity: limits.tasks,
            max_bytes: limits.task_bytes,
            ttl: limits.task_ttl,
            poll: limits.task_poll,
            changes: watch::Sender::new(0),
            recovered: OnceCell::new(),
            sweeper: std::sync::OnceLock::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // A table is whole after any panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of running tasks and of all tasks.
    pub(super) fn count(&self) -> (usize, usize) {
        let table = self.lock();
        let running = table.entries.values().filter(|entry| matches!(entry.state, TaskStage::Running(_)));
        (running.count(), table.entries.len())
    }

    fn changed(&self, id: &str) {
        let changes = self.lock().touch(id);
        self.changes.send_replace(changes);
    }

    /// The last change of a task, if the client owns it.
    fn revision(&self, id: &str, principal: &Principal) -> Option<u64> {
        self.lock().entry(id, principal).ok().map(|entry| entry.revision)
    }

    /// Turns a call into a task. If the request is dropped before it learns the id, the task is removed.
    ///
    /// # Errors
    /// The table is full or the store fails: the call is returned.
    pub(super) async fn adopt(
        self: &Arc<Self>,
        active: Active,
        record: TaskBody,
    ) -> Result<WireTask, Option<Box<(Active, ToolError)>>> {
        let (sender, receiver) = oneshot::channel();
        let tasks = Arc::clone(self);
        tokio::spawn(async move {
            let until = after(record.created, tasks.ttl);
            let created = match toolpost_core::random_hex(16) {
                Ok(id) => tasks.begin(id, until, record, active).await,
                Err(error) => Err(Box::new((active, error))),
            };
            if let Err(Ok(orphan)) = sender.send(created) {
                tasks.remove(&[orphan.task_id]).await;
            }
        });
        match receiver.await {
            Ok(created) => created.map_err(Some),
            Err(_) => Err(None),
        }
    }

    /// Stores a task and runs its call.
    async fn begin(
        self: &Arc<Self>,
        id: String,
        until: Timestamp,
        record: TaskBody,
        active: Active,
    ) -> Result<WireTask, Box<(Active, ToolError)>> {
        let (body, bytes) = record.stored();
        let wire = record.task(&id, until, self.poll);
        let (start, started) = oneshot::channel();
        let stop = CancellationToken::new();
        // The call starts once the task is stored; the table has the task from now on.
        let driver = drive(Arc::downgrade(self), id.clone(), started, stop.clone());
        let run = Run {
            stop,
            stop_reason: StopReason::ServerStopped,
            questions: Vec::new(),
            used_keys: HashSet::new(),
            _driver: Task::spawn(driver),
            record,
        };
        {
            let mut table = self.lock();
            let max = self.capacity;
            let has_room = table.entries.len() < max;
            if !has_room || table.bytes.saturating_add(bytes) > self.max_bytes {
                drop(table);
                let error = if has_room {
                    ToolError::overloaded(format!("all tasks together reach {} bytes", self.max_bytes))
                } else {
                    ToolError::overloaded(format!("too many tasks: at most {max}"))
                };
                return Err(Box::new((active, error)));
            }
            table.bytes += bytes;
            let owner = run.record.owner.clone();
            let state = TaskStage::Running(Box::new(run));
            table.entries.insert(id.clone(), TaskEntry { owner, until, bytes, revision: 1, state });
        }
        if let Err(error) = self.store.put(TaskRecord { id: id.clone(), until, body }).await {
            // Dropped outside the lock.
            let removed = self.lock().remove(&id);
            drop(removed);
            return Err(Box::new((active, error)));
        }
        active.detach();
        // The driver is gone if the task was removed meanwhile; then the call ends here.
        let _ = start.send(active);
        self.changed(&id);
        Ok(wire)
    }

    /// Removes tasks, running or not.
    async fn remove(&self, ids: &[String]) {
        // Dropped outside the lock.
        let removed: Vec<_> = {
            let mut table = self.lock();
            ids.iter().filter_map(|id| table.remove(id)).collect()
        };
        drop(removed);
        if let Err(error) = self.store.forget(ids).await {
            tracing::warn!("cannot remove expired tasks from the store: {error}");
        }
    }

    /// Adds the questions of a running call.
    fn ask(&self, id: &str, questions: Vec<PendingQuestion>) {
        {
            let mut table = self.lock();
            let Some(run) = table.run(id) else { return };
            for mut question in questions {
                let name = question.key.clone();
                let mut count = 1;
                while !run.used_keys.insert(question.key.clone()) {
                    count += 1;
                    question.key = format!("{name}-{count}");
                }
                run.questions.push(question);
            }
        }
        self.changed(id);
    }

    /// The current state of a task.
    ///
    /// # Errors
    /// The task is unknown to this client.
    pub(super) async fn get(&self, id: &str, principal: &Principal) -> Result<DetailedTask, ErrorData> {
        let (until, unsaved) = {
            let mut table = self.lock();
            let entry = table.entry(id, principal)?;
            match &entry.state {
                TaskStage::Running(run) => {
                    let open =
                        run.questions.iter().map(|question| (question.key.clone(), question.request.clone()));
                    return Ok(run.record.detail(id, entry.until, self.poll, open.collect()));
                }
                TaskStage::Ended(unsaved) => (entry.until, unsaved.clone()),
            }
        };
        let record = match unsaved {
            Some(record) => *record,
            None => {
                let found = self.store.load(id).await.map_err(|error| rpc_error(&error))?;
                let body = found.ok_or_else(|| unknown(id))?.body;
                serde_json::from_value(body).map_err(|error| {
                    ErrorData::internal_error(format!("the stored task is invalid: {error}"), None)
                })?
            }
        };
        Ok(record.detail(id, until, self.poll, BTreeMap::new()))
    }

    /// Answers questions of a task. Unknown and duplicate answers are ignored.
    ///
    /// # Errors
    /// The task is unknown to this client, or an answer is malformed.
    pub(super) fn update(
        &self,
        id: &str,
        principal: &Principal,
        mut answers: BTreeMap<String, Value>,
    ) -> Result<(), ErrorData> {
        let answered = {
            let mut table = self.lock();
            let entry = table.entry(id, principal)?;
            let TaskStage::Running(run) = &mut entry.state else { return Ok(()) };
            let is_malformed = |question: &&PendingQuestion| {
                answers.get(&question.key).is_some_and(|answer| !question.fits(answer))
            };
            if let Some(question) = run.questions.iter().find(is_malformed) {
                let message = format!("the response `{}` is malformed", shown(&question.key));
                return Err(ErrorData::invalid_params(message, None));
            }
            let (answered, open) = std::mem::take(&mut run.questions)
                .into_iter()
                .partition::<Vec<_>, _>(|question| answers.contains_key(&question.key));
            run.questions = open;
            answered
        };
        if answered.is_empty() {
            return Ok(());
        }
        for question in answered {
            if let Some(answer) = answers.remove(&question.key) {
                question.answer(Ok(answer));
            }
        }
        self.changed(id);
        Ok(())
    }

    /// Cancels a task if it still runs.
    ///
    /// # Errors
    /// The task is unknown to this client.
    pub(super) fn cancel(&self, id: &str, principal: &Principal) -> Result<(), ErrorData> {
        let mut table = self.lock();
        if let TaskStage::Running(run) = &mut table.entry(id, principal)?.state {
            run.stop(StopReason::Cancelled);
        }
        Ok(())
    }

    /// Stops all tasks, or only those with open questions, because the server stops.
    pub(super) fn end(&self, only_waiting: bool) {
        for entry in self.lock().entries.values_mut() {
            if let TaskStage::Running(run) = &mut entry.state
                && (!only_waiting || !run.questions.is_empty())
            {
                run.stop(StopReason::ServerStopped);
            }
        }
    }

    /// Records the end of a call, in the store before any client sees it.
    async fn finish(&self, id: &str, end: Option<TaskEnd>) {
        let (body, until, record, reruns) = {
            let mut table = self.lock();
            let (bytes, max) = (table.bytes, self.max_bytes);
            let Some(entry) = table.entries.get_mut(id) else { return };
            let TaskStage::Running(run) = &mut entry.state else { return };
            let reruns =
                end.is_none() && run.stop_reason == StopReason::ServerStopped && run.record.rerun.is_some();
            let mut record = run.record.clone();
            record.updated = now();
            record.rerun = None;
            record.message = None;
            record.end = Some(end.unwrap_or_else(|| match run.stop_reason {
                StopReason::Cancelled => TaskEnd::Cancelled,
                StopReason::Expired => TaskEnd::interrupted(&ToolError::timeout(format!(
                    "the task timed out after {}",
                    format_duration(self.ttl)
                ))),
                StopReason::ServerStopped => TaskEnd::interrupted(&interrupted("was stopped")),
            }));
            let others = bytes - entry.bytes;
            let (mut body, mut size) = record.stored();
            if others.saturating_add(size) > max {
                record.end = Some(TaskEnd::interrupted(&ToolError::limit(format!(
                    "the result of {size} bytes exceeds the limit of {max} for all tasks"
                ))));
                (body, size) = record.stored();
            }
            entry.bytes = size;
            entry.until = entry.until.max(after(record.updated, self.ttl.min(MIN_RESULT_TTL)));
            let until = entry.until;
            table.bytes = others + size;
            (body, until, record, reruns)
        };
        let saved = if reruns {
            // The stored record tells the next server to run the call again.
            Err(())
        } else {
            self.store.put(TaskRecord { id: id.to_owned(), until, body }).await.map_err(|error| {
                tracing::warn!("the result of a task is not stored and is lost on a restart: {error}");
            })
        };
        let run = {
            let mut table = self.lock();
            table.entries.get_mut(id).map(|entry| {
                let state = TaskStage::Ended(saved.is_err().then(|| Box::new(record)));
                std::mem::replace(&mut entry.state, state)
            })
        };
        if run.is_none() && saved.is_ok() {
            // The task was removed meanwhile.
            self.remove(&[id.to_owned()]).await;
        }
        self.changed(id);
        drop(run);
    }

    /// Stops expired tasks and removes expired results.
    async fn sweep(&self) {
        let time = now();
        let expired: Vec<String> = {
            let mut table = self.lock();
            let mut expired = Vec::new();
            for (id, entry) in &mut table.entries {
                match &mut entry.state {
                    _ if entry.until > time => {}
                    TaskStage::Running(run) => run.stop(StopReason::Expired),
                    TaskStage::Ended(_) => expired.push(id.clone()),
                }
            }
            expired
        };
        if !expired.is_empty() {
            self.remove(&expired).await;
        }
    }

    /// Recovers the tasks of a previous server, once, and starts the sweeper.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn recover(shared: &Arc<Shared>) -> Result<(), ToolError> {
        let tasks = &shared.tasks;
        if tasks.capacity == 0 {
            return Ok(());
        }
        tasks
            .recovered
            .get_or_try_init(|| async {
                let mut expired = Vec::new();
                for TaskRecord { id, until, body } in tasks.store.all().await? {
                    match serde_json::from_value::<TaskBody>(body) {
                        Ok(record) if until > now() => tasks.restore(shared, id, until, record).await,
                        Ok(_) => expired.push(id),
                        Err(error) => {
                            tracing::warn!("removed an invalid task from the store: {error}");
                            expired.push(id);
                        }
                    }
                }
                if !expired.is_empty() {
                    tasks.store.forget(&expired).await?;
                }
                Ok::<_, ToolError>(())
            })
            .await?;
        let weak = Arc::downgrade(tasks);
        tasks.sweeper.get_or_init(|| {
            Task::spawn(async move {
                loop {
                    tokio::time::sleep(SWEEP_INTERVAL).await;
                    let Some(tasks) = weak.upgrade() else { return };
                    tasks.sweep().await;
                }
            })
        });
        Ok(())
    }

    /// Restores one task: its result, or a rerun of its call, or an error.
    async fn restore(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        id: String,
        until: Timestamp,
        mut record: TaskBody,
    ) {
        if record.end.is_none()
            && let Some(rerun) = &mut record.rerun
            && rerun.runs < MAX_RUNS
            && let Some(principal) = shared.guard.principal(record.owner.as_deref(), record.client.as_deref())
            && shared.has_rerunnable(&record.tool).await
        {
            rerun.runs += 1;
            record.client = principal.name().map(str::to_owned);
            let active = shared.rerun(&principal, &record.tool, &rerun.arguments, rerun.abilities());
            tracing::info!(tool = record.tool, "running an interrupted task again");
            match self.begin(id.clone(), until, record.clone(), active).await {
                Ok(_) => return,
                Err(failed) => tracing::warn!("cannot run an interrupted task again: {}", failed.1),
            }
        }
        let mut unsaved = None;
        if record.end.is_none() {
            record.rerun = None;
            record.updated = now();
            record.end = Some(TaskEnd::interrupted(&interrupted("exited")));
            let (body, _) = record.stored();
            if let Err(error) = self.store.put(TaskRecord { id: id.clone(), until, body }).await {
                tracing::warn!("cannot store the end of an interrupted task: {error}");
                unsaved = Some(Box::new(record.clone()));
            }
        }
        let (_, bytes) = record.stored();
        let mut table = self.lock();
        table.bytes += bytes;
        table.changes += 1;
        let revision = table.changes;
        let state = TaskStage::Ended(unsaved);
        table.entries.insert(id, TaskEntry { owner: record.owner, until, bytes, revision, state });
    }
}

fn interrupted(what: &str) -> ToolError {
    ToolError::dependency(format!(
        "interrupted: the server {what} during the call, which may have had an effect"
    ))
    .suggest("Check for an effect before you repeat the call.")
}

impl Run {
    fn stop(&mut self, reason: StopReason) {
        // The first reason counts.
        if !self.stop.is_cancelled() {
            self.stop_reason = reason;
            self.questions.clear();
            self.stop.cancel();
        }
    }
}

/// Runs a call to its end.
async fn drive(
    tasks: Weak<Tasks>,
    id: String,
    started: oneshot::Receiver<Active>,
    stopped: CancellationToken,
) {
    let Ok(mut active) = started.await else { return };
    let mut sink = StatusSink { tasks: Weak::clone(&tasks), id: id.clone() };
    let end = loop {
        let step = AssertUnwindSafe(active.step(&mut sink, None)).catch_unwind();
        let step = tokio::select! {
            biased;
            () = stopped.cancelled() => break None,
            step = step => step,
        };
        match step {
            Ok(Step::Done(result)) => break Some(TaskEnd::from_result(result)),
            Ok(Step::Asked(questions)) => match tasks.upgrade() {
                Some(tasks) => tasks.ask(&id, questions),
                None => return,
            },
            Ok(Step::Slow) => {}
            Err(_) => break Some(TaskEnd::interrupted(&ToolError::internal("the call panicked"))),
        }
    };
    drop(active);
    if let Some(tasks) = tasks.upgrade() {
        // A separate tokio task: this one is aborted with its entry.
        tokio::spawn(async move { tasks.finish(&id, end).await });
    }
}

impl Shared {
    /// Whether the source has this tool and its calls may run again.
    async fn has_rerunnable(&self, tool: &str) -> bool {
        let listing = self.listings.current(&*self.source).await;
        listing.is_ok_and(|listing| listing.spec(tool).is_some_and(|spec| is_rerunnable(spec)))
    }

    /// Starts the call of an interrupted task again.
    fn rerun(&self, principal: &Principal, tool: &str, arguments: &Value, abilities: Abilities) -> Active {
        let port = Arc::new(CallPort::new(abilities, BTreeMap::new()));
        let call = Call::new(tool, arguments.clone())
            .with_caller(caller_of(principal))
            .with_scope(self.scope_of(principal))
            .with_cancellation(Cancellation::new())
            .with_port(Arc::clone(&port) as _);
        let (source, calls, id) = (Arc::clone(&self.source), Arc::clone(&self.calls), call.id);
        let future = async move {
            // Many tasks start at once after a restart, so they queue here.
            let _permit = calls.acquire_owned().await;
            source.call(call).await.result.map_err(|error| error.public(id))
        };
        Active::new(Box::pin(future), port)
    }
}

/// Turns progress of a call into the status message of its task.
struct StatusSink {
    tasks: Weak<Tasks>,
    id: String,
}

impl NoticeSink for StatusSink {
    async fn send_all(&mut self, notices: VecDeque<Notice>) {
        let last = notices.into_iter().rev().find_map(|notice| match notice {
            Notice::Progress(progress) => Some(progress),
            Notice::Log(_) => None,
        });
        let (Some(progress), Some(tasks)) = (last, self.tasks.upgrade()) else { return };
        let text = match (progress.percent, progress.message) {
            (Some(percent), message) if message.is_empty() => format!("{percent} %"),
            (_, message) => message,
        };
        if let Some(run) = tasks.lock().run(&self.id) {
            run.record.message = Some(text.chars().take(MAX_MESSAGE).collect());
        }
        tasks.changed(&self.id);
    }
}
