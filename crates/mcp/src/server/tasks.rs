//! Calls that outlive their requests: the extension `io.modelcontextprotocol/tasks`.
//!
//! A call that runs on its own is here; what has ended is in the store, which a restarted server reads.

mod follow;
mod kept;
mod memory;

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
    Call, Cancellation, Clock as _, SystemClock, TaskRecord, TaskStore, Timestamp, ToolError, ToolSpec,
    format_duration,
};

pub(super) use self::follow::{Followed, Wanted};
use self::kept::Kept;
pub(super) use self::kept::{Again, Ended};
pub(super) use self::memory::MemoryTasks;
use super::calls::{Active, Step, Task, Tell, shown};
use super::handler::{Shared, caller_of, refusal};
use super::port::{Abilities, Asked, CallPort, Notice};
use super::{Limits, Principal};

/// How often tasks whose time is over are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a task that has just ended is there at least, if tasks live so long at all.
const GRACE: Duration = Duration::from_mins(5);
/// How often a call is begun at most, when the server is killed again and again.
const MAX_RUNS: u32 = 3;
/// The longest sentence about a task, in characters.
const MAX_MESSAGE: usize = 1_000;

/// The tasks of a server.
pub(super) struct Tasks {
    table: Mutex<Table>,
    store: Arc<dyn TaskStore>,
    places: usize,
    most_bytes: usize,
    ttl: Duration,
    poll: Duration,
    /// Grows with each change of any task.
    changes: watch::Sender<u64>,
    recovered: OnceCell<()>,
    sweeper: std::sync::OnceLock<Task<()>>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<String, Entry>,
    bytes: usize,
    changes: u64,
}

struct Entry {
    owner: Option<String>,
    until: Timestamp,
    /// What it takes in the store.
    bytes: usize,
    /// The change of the table that was its last.
    revision: u64,
    state: State,
}

enum State {
    Running(Box<Run>),
    /// What the store could not keep is here.
    Ended(Option<Box<Kept>>),
}

/// A call that runs on its own.
struct Run {
    kept: Kept,
    questions: Vec<Asked>,
    /// What questions were called before: a name means one question.
    used: HashSet<String>,
    stop: CancellationToken,
    why: Why,
    _driver: Task<()>,
}

/// Why a call is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Cancelled,
    TimeIsOver,
    ServerEnds,
}

/// Where a task comes from.
pub(super) struct Origin {
    pub(super) owner: Option<String>,
    pub(super) tool: String,
    pub(super) again: Option<Again>,
}

fn now() -> Timestamp {
    SystemClock.timestamp()
}

fn after(time: Timestamp, duration: Duration) -> Timestamp {
    let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(time.as_micros().saturating_add(micros))
}

/// Whether a tool takes no harm when a call is begun again by a server that has lost what belonged to conversations,
/// and whether what it is called with may be written down.
pub(super) fn can_run_again(spec: &ToolSpec) -> bool {
    let is_harmless = spec.annotations.idempotent || spec.annotations.read_only;
    let of_conversation = spec.state.iter().any(|state| state.id.contains("{scope}"));
    is_harmless && !of_conversation && spec.sensitive.is_empty()
}

fn unknown(id: &str) -> ErrorData {
    let message = format!("there is no task `{}`: its name is wrong, or its time is over", shown(id));
    ErrorData::invalid_params(message, None)
}

impl Table {
    fn of(&mut self, id: &str, principal: &Principal) -> Result<&mut Entry, ErrorData> {
        // To everybody else it is as if it did not exist.
        let is_theirs = |entry: &&mut Entry| entry.owner.as_deref() == principal.0.as_deref();
        self.entries.get_mut(id).filter(is_theirs).ok_or_else(|| unknown(id))
    }

    fn run(&mut self, id: &str) -> Option<&mut Run> {
        match &mut self.entries.get_mut(id)?.state {
            State::Running(run) => Some(run),
            State::Ended(_) => None,
        }
    }

    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Notes that a task is another one than it was.
    fn touch(&mut self, id: &str) -> u64 {
        self.changes += 1;
        let changes = self.changes;
        if let Some(entry) = self.entries.get_mut(id) {
            entry.revision = changes;
            if let State::Running(run) = &mut entry.state {
                run.kept.updated = now();
            }
        }
        changes
    }
}

impl Tasks {
    pub(super) fn new(store: Option<Arc<dyn TaskStore>>, limits: &Limits) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::default(),
            store: store.unwrap_or_else(|| Arc::new(MemoryTasks::default())),
            places: limits.tasks,
            most_bytes: limits.task_bytes,
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

    /// How many run, and how many there are in all.
    pub(super) fn count(&self) -> (usize, usize) {
        let table = self.lock();
        let running = table.entries.values().filter(|entry| matches!(entry.state, State::Running(_)));
        (running.count(), table.entries.len())
    }

    fn changed(&self, id: &str) {
        let changes = self.lock().touch(id);
        self.changes.send_replace(changes);
    }

    /// The last change of a task, if it is theirs.
    fn revision(&self, id: &str, principal: &Principal) -> Option<u64> {
        self.lock().of(id, principal).ok().map(|entry| entry.revision)
    }

    /// Makes a task of a call, on behalf of a request: if that is gone before it is told, so is the task.
    ///
    /// # Errors
    /// There is no place, or the store cannot keep it: the call comes back.
    pub(super) async fn adopt(
        self: &Arc<Self>,
        active: Active,
        origin: Origin,
    ) -> Result<WireTask, Option<Box<(Active, ToolError)>>> {
        let (tell, told) = oneshot::channel();
        let tasks = Arc::clone(self);
        tokio::spawn(async move {
            let created = tasks.create(active, origin).await;
            if let Err(Ok(unheard)) = tell.send(created) {
                tasks.forget(&[unheard.task_id]).await;
            }
        });
        match told.await {
            Ok(created) => created.map_err(Some),
            Err(_) => Err(None),
        }
    }

    async fn create(
        self: &Arc<Self>,
        active: Active,
        origin: Origin,
    ) -> Result<WireTask, Box<(Active, ToolError)>> {
        let id = match toolpost_core::random_hex(16) {
            Ok(id) => id,
            Err(error) => return Err(Box::new((active, error))),
        };
        let created = now();
        let Origin { owner, tool, again } = origin;
        let kept = Kept { owner, tool, created, updated: created, message: None, ended: None, again };
        self.begin(id, after(created, self.ttl), kept, active).await
    }

    /// Keeps a task and runs its call.
    async fn begin(
        self: &Arc<Self>,
        id: String,
        until: Timestamp,
        kept: Kept,
        active: Active,
    ) -> Result<WireTask, Box<(Active, ToolError)>> {
        let body = match serde_json::to_value(&kept) {
            Ok(body) => body,
            Err(error) => return Err(Box::new((active, error.into()))),
        };
        let bytes = body.to_string().len();
        let wire = kept.task(&id, until, self.poll);
        let (go, gone) = oneshot::channel();
        let stop = CancellationToken::new();
        // It begins when it is kept; until then a request for it finds it all the same.
        let driver = drive(Arc::downgrade(self), id.clone(), gone, stop.clone());
        let run = Run {
            stop,
            why: Why::ServerEnds,
            questions: Vec::new(),
            used: HashSet::new(),
            _driver: Task::spawn(driver),
            kept,
        };
        {
            let mut table = self.lock();
            let most = self.places;
            let (has_place, fits) =
                (table.entries.len() < most, table.bytes.saturating_add(bytes) <= self.most_bytes);
            if !has_place || !fits {
                drop(table);
                let error = if has_place {
                    ToolError::overloaded(format!("tasks take {} bytes already", self.most_bytes))
                } else {
                    ToolError::overloaded(format!("there are {most} tasks already"))
                };
                return Err(Box::new((active, error)));
            }
            table.bytes += bytes;
            let owner = run.kept.owner.clone();
            let state = State::Running(Box::new(run));
            table.entries.insert(id.clone(), Entry { owner, until, bytes, revision: 1, state });
        }
        if let Err(error) = self.store.put(TaskRecord { id: id.clone(), until, body }).await {
            let gone = self.lock().remove(&id);
            drop(gone);
            return Err(Box::new((active, error)));
        }
        active.on_its_own();
        // Nobody takes it if the task was removed meanwhile; then the call ends here.
        let _ = go.send(active);
        self.changed(&id);
        Ok(wire)
    }

    /// Removes tasks, running or not.
    async fn forget(&self, ids: &[String]) {
        let gone: Vec<_> = {
            let mut table = self.lock();
            ids.iter().filter_map(|id| table.remove(id)).collect()
        };
        drop(gone);
        if let Err(error) = self.store.forget(ids).await {
            tracing::warn!("tasks whose time is over are still kept: {error}");
        }
    }

    /// Notes what a running call asks.
    fn ask(&self, id: &str, questions: Vec<Asked>) {
        {
            let mut table = self.lock();
            let Some(run) = table.run(id) else { return };
            for mut asked in questions {
                let name = asked.key.clone();
                let mut count = 1;
                while !run.used.insert(asked.key.clone()) {
                    count += 1;
                    asked.key = format!("{name}-{count}");
                }
                run.questions.push(asked);
            }
        }
        self.changed(id);
    }

    /// A task as it is now.
    ///
    /// # Errors
    /// There is none of theirs under that name.
    pub(super) async fn get(&self, id: &str, principal: &Principal) -> Result<DetailedTask, ErrorData> {
        let (until, unkept) = {
            let mut table = self.lock();
            let entry = table.of(id, principal)?;
            match &entry.state {
                State::Running(run) => {
                    let open = run.questions.iter().map(|asked| (asked.key.clone(), asked.request.clone()));
                    return Ok(run.kept.detail(id, entry.until, self.poll, open.collect()));
                }
                State::Ended(unkept) => (entry.until, unkept.clone()),
            }
        };
        let kept = match unkept {
            Some(kept) => *kept,
            None => {
                let found = self.store.load(id).await.map_err(|error| refusal(&error))?;
                let body = found.ok_or_else(|| unknown(id))?.body;
                serde_json::from_value(body).map_err(|error| {
                    ErrorData::internal_error(
                        format!("what is kept of the task cannot be read: {error}"),
                        None,
                    )
                })?
            }
        };
        Ok(kept.detail(id, until, self.poll, BTreeMap::new().into_iter().collect()))
    }

    /// Answers questions of a task. Answers to what is not asked, or not any more, are passed over.
    ///
    /// # Errors
    /// There is none of theirs under that name, or an answer has the wrong form.
    pub(super) fn update(
        &self,
        id: &str,
        principal: &Principal,
        mut answers: BTreeMap<String, Value>,
    ) -> Result<(), ErrorData> {
        let answered = {
            let mut table = self.lock();
            let entry = table.of(id, principal)?;
            let State::Running(run) = &mut entry.state else { return Ok(()) };
            let wrong = |asked: &&Asked| answers.get(&asked.key).is_some_and(|answer| !asked.fits(answer));
            if let Some(asked) = run.questions.iter().find(wrong) {
                let message =
                    format!("the response `{}` does not have the form of an answer", shown(&asked.key));
                return Err(ErrorData::invalid_params(message, None));
            }
            let (answered, open) = std::mem::take(&mut run.questions)
                .into_iter()
                .partition::<Vec<_>, _>(|asked| answers.contains_key(&asked.key));
            run.questions = open;
            answered
        };
        if answered.is_empty() {
            return Ok(());
        }
        for asked in answered {
            if let Some(answer) = answers.remove(&asked.key) {
                asked.answer(Ok(answer));
            }
        }
        self.changed(id);
        Ok(())
    }

    /// Stops a task, if it still runs.
    ///
    /// # Errors
    /// There is none of theirs under that name.
    pub(super) fn cancel(&self, id: &str, principal: &Principal) -> Result<(), ErrorData> {
        let mut table = self.lock();
        if let State::Running(run) = &mut table.of(id, principal)?.state {
            run.halt(Why::Cancelled);
        }
        Ok(())
    }

    /// Stops the tasks that wait for an answer, or all, because the server ends.
    pub(super) fn end(&self, only_waiting: bool) {
        for entry in self.lock().entries.values_mut() {
            if let State::Running(run) = &mut entry.state
                && (!only_waiting || !run.questions.is_empty())
            {
                run.halt(Why::ServerEnds);
            }
        }
    }

    /// Notes how a call ended, for good before anybody is told of it.
    async fn settle(&self, id: &str, ended: Option<Ended>) {
        let (body, until, kept, is_begun_again) = {
            let mut table = self.lock();
            let (bytes, most) = (table.bytes, self.most_bytes);
            let Some(entry) = table.entries.get_mut(id) else { return };
            let State::Running(run) = &mut entry.state else { return };
            let is_begun_again = ended.is_none() && run.why == Why::ServerEnds && run.kept.again.is_some();
            let mut kept = run.kept.clone();
            kept.updated = now();
            kept.again = None;
            kept.message = None;
            kept.ended = Some(ended.unwrap_or_else(|| match run.why {
                Why::Cancelled => Ended::Cancelled,
                Why::TimeIsOver => Ended::broken_off(&ToolError::timeout(format!(
                    "the task did not end within the {} that it had",
                    format_duration(self.ttl)
                ))),
                Why::ServerEnds => Ended::broken_off(&interrupted("was stopped")),
            }));
            let others = bytes - entry.bytes;
            let mut body = serde_json::to_value(&kept).unwrap_or_default();
            let mut size = body.to_string().len();
            if others.saturating_add(size) > most {
                kept.ended = Some(Ended::broken_off(&ToolError::limit(format!(
                    "the result of {size} bytes is not kept: all tasks together may take {most}"
                ))));
                body = serde_json::to_value(&kept).unwrap_or_default();
                size = body.to_string().len();
            }
            entry.bytes = size;
            entry.until = entry.until.max(after(kept.updated, self.ttl.min(GRACE)));
            let until = entry.until;
            table.bytes = others + size;
            (body, until, kept, is_begun_again)
        };
        let written = if is_begun_again {
            // What is kept says how to run it again, which the next server does.
            Err(())
        } else {
            self.store.put(TaskRecord { id: id.to_owned(), until, body }).await.map_err(|error| {
                tracing::warn!("the end of a task is known only until the server ends: {error}");
            })
        };
        let run = {
            let mut table = self.lock();
            table.entries.get_mut(id).map(|entry| {
                let state = State::Ended(written.is_err().then(|| Box::new(kept)));
                std::mem::replace(&mut entry.state, state)
            })
        };
        if run.is_none() && written.is_ok() {
            // It was forgotten meanwhile.
            self.forget(&[id.to_owned()]).await;
        }
        self.changed(id);
        drop(run);
    }

    /// Ends tasks whose time is over.
    async fn sweep(&self) {
        let time = now();
        let over: Vec<String> = {
            let mut table = self.lock();
            let mut over = Vec::new();
            for (id, entry) in &mut table.entries {
                match &mut entry.state {
                    _ if entry.until > time => {}
                    State::Running(run) => run.halt(Why::TimeIsOver),
                    State::Ended(_) => over.push(id.clone()),
                }
            }
            over
        };
        if !over.is_empty() {
            self.forget(&over).await;
        }
    }

    /// Takes up what a server before this one has left, once, and looks after the time of tasks from now on.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn recover(shared: &Arc<Shared>) -> Result<(), ToolError> {
        let tasks = &shared.tasks;
        if tasks.places == 0 {
            return Ok(());
        }
        tasks
            .recovered
            .get_or_try_init(|| async {
                let mut over = Vec::new();
                for TaskRecord { id, until, body } in tasks.store.all().await? {
                    match serde_json::from_value::<Kept>(body) {
                        Ok(kept) if until > now() => tasks.take_up(shared, id, until, kept).await,
                        Ok(_) => over.push(id),
                        Err(error) => {
                            tracing::warn!("what is kept of a task cannot be read, and is removed: {error}");
                            over.push(id);
                        }
                    }
                }
                if !over.is_empty() {
                    tasks.store.forget(&over).await?;
                }
                Ok::<_, ToolError>(())
            })
            .await?;
        let weak = Arc::downgrade(tasks);
        tasks.sweeper.get_or_init(|| {
            Task::spawn(async move {
                loop {
                    tokio::time::sleep(SWEEP).await;
                    let Some(tasks) = weak.upgrade() else { return };
                    tasks.sweep().await;
                }
            })
        });
        Ok(())
    }

    /// Takes up one task: its result, its call once more, or that there is neither.
    async fn take_up(self: &Arc<Self>, shared: &Arc<Shared>, id: String, until: Timestamp, mut kept: Kept) {
        if kept.ended.is_none()
            && let Some(again) = &mut kept.again
            && again.runs < MAX_RUNS
            && shared.has_harmless(&kept.tool).await
        {
            again.runs += 1;
            let principal = Principal(kept.owner.as_deref().map(Arc::from));
            let active = shared.call_again(&principal, &kept.tool, &again.arguments, again.abilities());
            tracing::info!(tool = kept.tool, "a task that was interrupted is run again");
            match self.begin(id.clone(), until, kept.clone(), active).await {
                Ok(_) => return,
                Err(failed) => tracing::warn!("an interrupted task cannot be run again: {}", failed.1),
            }
        }
        let mut unkept = None;
        if kept.ended.is_none() {
            kept.again = None;
            kept.updated = now();
            kept.ended = Some(Ended::broken_off(&interrupted("ended")));
            let body = serde_json::to_value(&kept).unwrap_or_default();
            if let Err(error) = self.store.put(TaskRecord { id: id.clone(), until, body }).await {
                tracing::warn!("that a task was interrupted is not kept: {error}");
                unkept = Some(Box::new(kept.clone()));
            }
        }
        let bytes = serde_json::to_string(&kept).map_or(0, |text| text.len());
        let mut table = self.lock();
        table.bytes += bytes;
        table.changes += 1;
        let revision = table.changes;
        let state = State::Ended(unkept);
        table.entries.insert(id, Entry { owner: kept.owner, until, bytes, revision, state });
    }
}

fn interrupted(what: &str) -> ToolError {
    ToolError::dependency(format!(
        "interrupted: the server {what} while the call ran, and whether it took effect is not known"
    ))
    .suggest("Look whether it took effect before it is made again.")
}

impl Run {
    fn halt(&mut self, why: Why) {
        // The first reason counts.
        if !self.stop.is_cancelled() {
            self.why = why;
            self.questions.clear();
            self.stop.cancel();
        }
    }
}

/// Runs a call to its end.
async fn drive(tasks: Weak<Tasks>, id: String, begun: oneshot::Receiver<Active>, halted: CancellationToken) {
    let Ok(mut active) = begun.await else { return };
    let mut teller = Status { tasks: Weak::clone(&tasks), id: id.clone() };
    let ended = loop {
        let step = AssertUnwindSafe(active.step(&mut teller, None)).catch_unwind();
        let step = tokio::select! {
            biased;
            () = halted.cancelled() => break None,
            step = step => step,
        };
        match step {
            Ok(Step::Done(result)) => break Some(Ended::of(result)),
            Ok(Step::Asked(questions)) => match tasks.upgrade() {
                Some(tasks) => tasks.ask(&id, questions),
                None => return,
            },
            Ok(Step::Slow) => {}
            Err(_) => break Some(Ended::broken_off(&ToolError::internal("the call broke inside"))),
        }
    };
    drop(active);
    if let Some(tasks) = tasks.upgrade() {
        // Apart from this task, which ends with the entry that is settled.
        tokio::spawn(async move { tasks.settle(&id, ended).await });
    }
}

impl Shared {
    /// Whether a tool is there that takes no harm when a call is begun again.
    async fn has_harmless(&self, tool: &str) -> bool {
        let listing = self.listings.current(&*self.source).await;
        listing.is_ok_and(|listing| listing.spec(tool).is_some_and(|spec| can_run_again(spec)))
    }

    /// The call of an interrupted task, once more.
    fn call_again(
        &self,
        principal: &Principal,
        tool: &str,
        arguments: &Value,
        abilities: Abilities,
    ) -> Active {
        let port = Arc::new(CallPort::new(abilities, BTreeMap::new()));
        let call = Call::new(tool, arguments.clone())
            .with_caller(caller_of(principal))
            .with_scope(self.scope_of(principal))
            .with_cancellation(Cancellation::new())
            .with_port(Arc::clone(&port) as _);
        let (source, calls, id) = (Arc::clone(&self.source), Arc::clone(&self.calls), call.id);
        let future = async move {
            // After a restart many begin at once: here they wait for one another.
            let _permit = calls.acquire_owned().await;
            source.call(call).await.result.map_err(|error| error.public(id))
        };
        Active::new(Box::pin(future), port)
    }
}

/// What a call tells becomes what is said of its task.
struct Status {
    tasks: Weak<Tasks>,
    id: String,
}

impl Tell for Status {
    async fn tell(&mut self, notices: VecDeque<Notice>) {
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
            run.kept.message = Some(text.chars().take(MAX_MESSAGE).collect());
        }
        tasks.changed(&self.id);
    }
}
