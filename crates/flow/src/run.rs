//! Runs on this machine: how they begin, and stored ones.

mod answer;
mod cache;
mod driver;

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use toolpost_core::{
    BoxFuture, CallError, CallId, CallRecord, Caller, Cancellation, Clock, DocStore, Masks, Port, RunId,
    Scope, SystemClock, Timestamp, ToolError, Truncation, format_duration,
};
use toolpost_toolbox::Toolbox;

use self::driver::Driver;
use crate::event::{FlowEvent, VERSION};
use crate::journal::{FlowSummary, Journal, Stamped, ToolErrorText, Writer, writer};
use crate::machine::{Command, Machine};
use crate::names::Known;
use crate::outcome::{RunStatus, StepOutcome, StepStatus};
use crate::plan::Plan;
use crate::report::StepWait;

/// The default number of calls of a run at once.
const PARALLEL: usize = 64;
/// The possible loss in a crash of the process or the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The run is in memory alone and cannot be resumed.
    None,
    /// Events are stored while the run continues: a crash may repeat the last steps.
    Normal,
    /// A step's end is on the disk before the steps that need it begin: no ended step is repeated.
    #[default]
    Full,
}

impl std::str::FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "normal" => Ok(Self::Normal),
            "full" => Ok(Self::Full),
            _ => Err(format!("`{text}` is not a durability: expected none, normal or full")),
        }
    }
}

/// The display of a running run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum FlowProgress {
    /// An attempt of a call began.
    Started {
        /// The path of the step.
        step: Arc<str>,
        /// The tool.
        tool: Arc<str>,
        /// The number of the attempt, from 1.
        attempt: u32,
    },
    /// The call of an attempt ended.
    Called {
        /// The path of the step.
        step: Arc<str>,
        /// The record of the call.
        record: Arc<CallRecord>,
    },
    /// An attempt failed.
    AttemptFailed {
        /// The path of the step.
        step: Arc<str>,
        /// The reason.
        error: ToolError,
    },
    /// A step waits for a signal or an approval.
    Waiting {
        /// The path of the step.
        step: Arc<str>,
        /// The signal or the question.
        wait: StepWait,
    },
    /// A map began, or an item of it ended.
    Items {
        /// The path of the map.
        step: Arc<str>,
        /// The items that ended.
        ended: usize,
        /// All items.
        count: usize,
    },
    /// A step ended.
    Ended {
        /// The path of the step.
        step: Arc<str>,
        /// The way.
        status: StepStatus,
        /// Its output; null unless it succeeded.
        output: Arc<Value>,
        /// The reason of the failure.
        error: Option<ToolError>,
    },
}

impl std::fmt::Display for FlowProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Started { step, tool, .. } => write!(f, "{step}: {tool}"),
            Self::Called { step, record } => {
                write!(f, "{step}: {} took {}", record.tool, format_duration(record.duration))
            }
            Self::AttemptFailed { step, error } => write!(f, "{step}: {}", error.message()),
            Self::Waiting { step, wait: StepWait::Signal(name) } => write!(f, "{step} waits for {name}"),
            Self::Waiting { step, .. } => write!(f, "{step} waits for an approval"),
            Self::Items { step, ended, count } => write!(f, "{step}: {ended} of {count} items"),
            Self::Ended { step, status, .. } => write!(f, "{step} {}", status.as_str()),
        }
    }
}

/// Receives the progress of a run.
pub type ProgressSink = Arc<dyn Fn(&FlowProgress) + Send + Sync>;

/// A run that has ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FlowOutcome {
    /// The run.
    pub id: RunId,
    /// The end.
    pub status: RunStatus,
    /// The output of the plan; null unless it succeeded.
    pub output: Value,
    /// The reason of the failure or the cancellation.
    pub error: Option<ToolError>,
    /// The parts of the output that a limit truncated. Where the output is used as data, that is an error.
    pub truncated: Vec<Truncation>,
    /// The steps that succeeded.
    pub succeeded: u64,
    /// The steps that failed.
    pub failed: u64,
    /// The time of this process for the run.
    pub duration: Duration,
    steps: Option<StepResults>,
}

/// The results of the plan's own block.
#[derive(Clone)]
struct StepResults(Arc<Known>);

impl std::fmt::Debug for StepResults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepResults").field("steps", &self.0.results.len()).finish_non_exhaustive()
    }
}

impl FlowOutcome {
    /// The result of a step of the plan, without those in blocks. `None` for an unknown one, and unless
    /// [`FlowRun::keep_steps`] was set.
    pub fn step(&self, id: &str) -> Option<StepOutcome> {
        let known = &self.steps.as_ref()?.0;
        let result = known.results.get(known.block.position(id)?)?.get()?;
        let output = Arc::clone(&result.output.json);
        Some(StepOutcome { status: result.status, output, error: result.error.clone() })
    }
}

/// A stored run with its plan and events.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoredFlow {
    /// The figures.
    pub summary: FlowSummary,
    /// The plan.
    pub plan: Arc<Plan>,
    /// The inputs.
    pub input: Value,
    /// The output, if the run succeeded.
    pub output: Value,
    /// The events in their order, with their times.
    pub events: Vec<(Timestamp, FlowEvent)>,
    /// The signals and requests that no process of the run has read, with the times at which they were stored.
    pub unread: Vec<(Timestamp, FlowEvent)>,
}

impl StoredFlow {
    fn new(summary: FlowSummary, events: Vec<Stamped>, unread: Vec<Stamped>) -> Result<Self, ToolError> {
        let Replayed { machine, plan, input, .. } = replay(summary.id, &events)?;
        let output = machine.ended().map(|ended| Value::clone(&ended.output)).unwrap_or_default();
        Ok(Self { summary, plan, input, output, events, unread })
    }

    /// The run that these events tell, the first of which is its start; for other drivers.
    ///
    /// # Errors
    /// `DEPENDENCY` if they are not those of a run.
    pub fn from_events(id: RunId, events: Vec<(Timestamp, FlowEvent)>) -> Result<Self, ToolError> {
        let Replayed { mut machine, plan, input, .. } = replay(id, &events)?;
        let at = |event: Option<&Stamped>| event.map_or(Timestamp::from_micros(0), |(at, _)| *at);
        let ended = machine.ended();
        let mut summary = FlowSummary {
            v: VERSION,
            id,
            name: plan.name.clone(),
            hash: plan.hash.clone(),
            status: ended.map_or(RunStatus::Running, |ended| ended.status),
            owner: None,
            started: at(events.first()),
            updated: at(events.last()),
            events: events.len() as u64,
            succeeded: 0,
            failed: 0,
            waiting: machine.awaited().map(str::to_owned).collect(),
            error: ended.and_then(|ended| ended.error.as_ref()).map(ToolErrorText::from_error),
            inbox: 0,
        };
        let output = ended.map(|ended| Value::clone(&ended.output)).unwrap_or_default();
        for change in machine.take_changes() {
            summary.count(change.status());
        }
        Ok(Self { summary, plan, input, output, events, unread: Vec::new() })
    }
}

/// Runs plans with the tools of a toolbox.
///
/// ```
/// # use std::sync::Arc;
/// # use serde_json::json;
/// # use toolpost_core::{Output, ParameterType, ToolSpec, tool_fn};
/// # use toolpost_flow::{Flows, Format, Plan, RunStatus};
/// # use toolpost_toolbox::Toolbox;
/// let spec = ToolSpec::new("shout", "Write a text in capitals.").parameter("text", ParameterType::String, "The text.");
/// let shout = tool_fn(spec, async |args, _ctx| Ok(Output::text(args.decode::<String>("text")?.to_uppercase())));
/// let plan = Plan::parse(
///     "input: { who: { type: string } }\nsteps:\n  - { tool: shout, with: { text: 'hello ${{ input.who }}' } }\n",
///     Format::Yaml,
/// )?;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let flows = Flows::new(Toolbox::builder().tool(shout).build()?);
/// let outcome = flows.run(plan, json!({ "who": "ann" })).await.unwrap();
/// assert_eq!((outcome.status, outcome.output), (RunStatus::Succeeded, json!("HELLO ANN")));
/// # Ok::<(), toolpost_core::SpecError>(()) }).unwrap();
/// # Ok::<(), toolpost_flow::PlanError>(())
/// ```
#[derive(Clone)]
pub struct Flows {
    toolbox: Toolbox,
    store: Option<Arc<dyn DocStore>>,
    masks: Masks,
    clock: Arc<dyn Clock>,
    owner: String,
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flows").field("stored", &self.store.is_some()).finish_non_exhaustive()
    }
}

impl Flows {
    /// Runs that are not stored.
    pub fn new(toolbox: Toolbox) -> Self {
        let owner = format!("process {}", std::process::id());
        Self { toolbox, store: None, masks: Masks::default(), clock: Arc::new(SystemClock), owner }
    }

    /// Stores the runs.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn DocStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Masks these secrets in all that is stored.
    #[must_use]
    pub fn masks(mut self, masks: Masks) -> Self {
        self.masks = masks;
        self
    }

    /// Sets how stored runs name this process. Default: its number.
    #[must_use]
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    /// Sets the clock of events, waits and time limits. Default: the system clock.
    ///
    /// The time of day counts when a run begins or is resumed, and never goes behind the events of the run. From then on
    /// the monotonic clock counts, so that a change of the time of day neither ends nor delays a wait.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// A run of a plan. Await it.
    pub fn run(&self, plan: impl Into<Arc<Plan>>, input: Value) -> FlowRun {
        FlowRun::new(self.clone(), Begin::New { plan: plan.into(), input })
    }

    /// Continues a stored run where it ended, with the plan that it began with. Await it.
    ///
    /// The process that ran it must have ended: of two writers the second fails with `CONFLICT`.
    pub fn resume(&self, id: RunId) -> FlowRun {
        FlowRun::new(self.clone(), Begin::Stored(id))
    }

    fn journal(&self) -> Result<Journal, ToolError> {
        let store = self.store.clone().ok_or_else(|| {
            ToolError::precondition("these runs are not stored").suggest("Give `Flows` a store.")
        })?;
        Ok(Journal::new(store, self.masks.clone()))
    }

    /// Lists the stored runs that match, the latest first, at most `limit`. Examines the latest 10,000.
    ///
    /// # Errors
    /// `PRECONDITION` without a store, and errors of the store.
    pub async fn list(
        &self,
        matches: impl Fn(&FlowSummary) -> bool,
        limit: usize,
    ) -> Result<Vec<FlowSummary>, CallError> {
        Ok(self.journal()?.list(matches, limit).await?)
    }

    /// Lists all stored runs, like [`list`](Self::list).
    ///
    /// # Errors
    /// Errors of [`list`](Self::list).
    pub async fn list_all(&self, limit: usize) -> Result<Vec<FlowSummary>, CallError> {
        self.list(|_| true, limit).await
    }

    /// The only stored run whose id begins with a text; the latest one for `last`.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_INPUT` for several runs, and errors of the store.
    pub async fn find(&self, start: &str) -> Result<RunId, CallError> {
        Ok(self.journal()?.find(start).await?)
    }

    /// The figures of a stored run.
    ///
    /// # Errors
    /// `NOT_FOUND`, and errors of the store.
    pub async fn summary(&self, id: RunId) -> Result<FlowSummary, CallError> {
        Ok(self.journal()?.summary(id).await?)
    }

    /// A stored run with its events.
    ///
    /// # Errors
    /// `NOT_FOUND`, and errors of the store.
    pub async fn load(&self, id: RunId) -> Result<StoredFlow, CallError> {
        let journal = self.journal()?;
        let (record, events) = journal.open(id).await?;
        let (unread, _) = journal.unread(&record.head).await?;
        Ok(StoredFlow::new(record.head, events, unread)?)
    }

    /// The events of a stored run.
    pub(crate) async fn events(&self, id: RunId) -> Result<Vec<Stamped>, ToolError> {
        Ok(self.journal()?.open(id).await?.1)
    }

    /// Sends a value to the step of a stored run that waits for this signal, now or later.
    ///
    /// # Errors
    /// Errors of [`StoredFlow::check_signal`], `NOT_FOUND`, and errors of the store.
    pub async fn signal(&self, id: RunId, name: &str, value: Value) -> Result<(), CallError> {
        let make = |summary, events, unread| {
            let run = StoredFlow::new(summary, events, unread)?;
            run.check_signal(name)?;
            Ok((FlowEvent::Signal { name: name.to_owned(), value: value.clone() }, ()))
        };
        Ok(self.journal()?.send_checked(id, make).await?)
    }

    /// Answers the approval of a step of a stored run, as [`StoredFlow::approval`] finds it. Returns the step.
    ///
    /// # Errors
    /// Errors of [`StoredFlow::approval`], `NOT_FOUND`, and errors of the store.
    pub async fn answer(&self, id: RunId, step: Option<&str>, answer: Value) -> Result<String, CallError> {
        let make = |summary, events, unread| {
            let run = StoredFlow::new(summary, events, unread)?;
            let step = run.approval(step, self.clock.timestamp())?;
            Ok((run.answer(&step, answer.clone()), step))
        };
        Ok(self.journal()?.send_checked(id, make).await?)
    }

    /// Asks a stored run to end.
    ///
    /// # Errors
    /// `PRECONDITION` if the run has ended, `NOT_FOUND`, and errors of the store.
    pub async fn cancel(&self, id: RunId, reason: &str) -> Result<(), CallError> {
        Ok(self.send(id, FlowEvent::CancelRequested { reason: reason.to_owned() }).await?)
    }

    async fn send(&self, id: RunId, event: FlowEvent) -> Result<(), ToolError> {
        let journal = self.journal()?;
        let summary = journal.summary(id).await?;
        if summary.status != RunStatus::Running {
            return Err(ToolError::precondition(format!("the run has ended ({})", summary.status.as_str())));
        }
        journal.send(id, &event).await
    }

    /// Deletes a stored run. Returns whether it existed.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn delete(&self, id: RunId) -> Result<bool, CallError> {
        Ok(self.journal()?.delete(id).await?)
    }
}

/// The beginning of a run.
enum Begin {
    New { plan: Arc<Plan>, input: Value },
    Stored(RunId),
}

/// A run that has not begun. Await it.
#[must_use = "a run begins when it is awaited"]
pub struct FlowRun {
    flows: Flows,
    begin: Begin,
    id: RunId,
    durability: Durability,
    max_parallel: usize,
    progress: Option<ProgressSink>,
    cancellation: Cancellation,
    caller: Caller,
    scope: Option<Scope>,
    port: Option<Arc<dyn Port>>,
    parent: Option<(CallId, u8)>,
    keeps_steps: bool,
}

impl FlowRun {
    fn new(flows: Flows, begin: Begin) -> Self {
        let durability = if flows.store.is_some() { Durability::Full } else { Durability::None };
        let id = match &begin {
            Begin::New { .. } => RunId::new(),
            Begin::Stored(id) => *id,
        };
        Self {
            flows,
            begin,
            id,
            durability,
            max_parallel: PARALLEL,
            progress: None,
            cancellation: Cancellation::never(),
            caller: Caller::new("flow"),
            scope: None,
            port: None,
            parent: None,
            keeps_steps: false,
        }
    }

    /// The id of the run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Sets the durability. Default: full with a store, else none.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = if self.flows.store.is_some() { durability } else { Durability::None };
        self
    }

    /// Sets the number of calls at once. Default: 64.
    pub fn max_parallel(mut self, calls: usize) -> Self {
        self.max_parallel = calls.max(1);
        self
    }

    /// Sets who receives the progress.
    pub fn on_progress(mut self, sink: impl Fn(&FlowProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(sink));
        self
    }

    /// Ends the run when the token is cancelled: its calls are stopped, and what it did is undone as the plan says.
    pub fn cancellation(mut self, cancellation: Cancellation) -> Self {
        self.cancellation = cancellation;
        self
    }

    /// Sets the caller of the steps' calls.
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Sets the scope of the steps' calls, with the working directory.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Sets the port of the steps' calls.
    pub fn port(mut self, port: Arc<dyn Port>) -> Self {
        self.port = Some(port);
        self
    }

    /// Makes the steps' calls nested calls of a call at a depth.
    pub fn parent(mut self, call: CallId, depth: u8) -> Self {
        self.parent = Some((call, depth));
        self
    }

    /// Keeps the results of the plan's own steps for [`FlowOutcome::step`]. Default: only the output of the plan.
    pub fn keep_steps(mut self) -> Self {
        self.keeps_steps = true;
        self
    }

    async fn drive(self) -> Result<FlowOutcome, ToolError> {
        let begun = Instant::now();
        let now = self.flows.clock.timestamp();
        let (machine, commands, journal, head) = match &self.begin {
            Begin::New { plan, input } => self.begin_new(Arc::clone(plan), input.clone(), now).await?,
            Begin::Stored(id) => self.begin_stored(*id, now).await?,
        };
        let mut driver = Driver::new(&self, machine, journal, head);
        driver.report();
        match &self.begin {
            Begin::New { .. } => driver.obey(commands, driver.now()),
            Begin::Stored(_) => driver.resume(commands).await?,
        }
        let ended = driver.work().await?;
        let steps = if self.keeps_steps { driver.results().map(StepResults) } else { None };
        let (succeeded, failed) = (driver.head.succeeded, driver.head.failed);
        // Its machine shares the output, which is else copied.
        drop(driver);
        Ok(FlowOutcome {
            id: self.id,
            status: ended.status,
            output: Arc::unwrap_or_clone(ended.output),
            error: ended.error,
            truncated: ended.truncated,
            succeeded,
            failed,
            steps,
            duration: begun.elapsed(),
        })
    }

    async fn begin_new(&self, plan: Arc<Plan>, input: Value, now: Timestamp) -> Result<Begun, ToolError> {
        let input = plan.complete(input)?;
        let head = FlowSummary {
            v: VERSION,
            id: self.id,
            name: plan.name.clone(),
            hash: plan.hash.clone(),
            status: RunStatus::Running,
            owner: Some(self.flows.owner.clone()),
            started: now,
            updated: now,
            events: 0,
            succeeded: 0,
            failed: 0,
            waiting: Vec::new(),
            error: None,
            inbox: 0,
        };
        let journal = match self.durability {
            Durability::None => None,
            Durability::Normal | Durability::Full => {
                let journal = self.flows.journal()?;
                let (source, hash) = (plan.source.clone(), plan.hash.clone());
                let first = FlowEvent::RunStarted { v: VERSION, plan: source, hash, input: input.clone() };
                let record = journal.create(head.clone(), &[(now, first)]).await?;
                Some(Stored { writer: writer(journal.clone(), record), journal })
            }
        };
        let mut machine = Machine::new(&plan, self.id, input, now, VERSION);
        let commands = machine.take_commands();
        Ok((machine, commands, journal, head))
    }

    async fn begin_stored(&self, id: RunId, now: Timestamp) -> Result<Begun, ToolError> {
        let journal = self.flows.journal()?;
        let (mut record, events) = journal.open(id).await?;
        if record.head.status != RunStatus::Running {
            let status = record.head.status.as_str();
            return Err(ToolError::precondition(format!("the run has ended ({status})")));
        }
        let Replayed { mut machine, commands, .. } = replay(id, &events)?;
        record.head.owner = Some(self.flows.owner.clone());
        let now = now.max(record.head.updated);
        record.head.updated = now;
        let resumed = FlowEvent::Resumed { owner: self.flows.owner.clone() };
        // From here the process that ran it before can write no more.
        journal.append(&mut record, &[(now, resumed)]).await?;
        let mut head = record.head.clone();
        (head.succeeded, head.failed) = (0, 0);
        for change in machine.take_changes() {
            head.count(change.result.status);
        }
        let stored = Stored { writer: writer(journal.clone(), record), journal };
        Ok((machine, commands, Some(stored), head))
    }
}

impl std::fmt::Debug for FlowRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowRun").field("id", &self.id).finish_non_exhaustive()
    }
}

impl IntoFuture for FlowRun {
    type Output = Result<FlowOutcome, CallError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(self.drive().await?) })
    }
}

type Begun = (Machine, Vec<Command>, Option<Stored>, FlowSummary);

/// The stored side of a run.
struct Stored {
    writer: Writer,
    journal: Journal,
}

/// A machine after the events of a stored run.
struct Replayed {
    machine: Machine,
    plan: Arc<Plan>,
    input: Value,
    /// The due commands of a driver.
    commands: Vec<Command>,
}

/// Applies stored events to a new machine.
fn replay(id: RunId, events: &[Stamped]) -> Result<Replayed, ToolError> {
    let damaged =
        |problem: String| ToolError::dependency(format!("the stored run `{id}` is invalid: {problem}"));
    let Some((at, FlowEvent::RunStarted { v, plan, input, .. })) = events.first() else {
        return Err(damaged("it has no start".to_owned()));
    };
    let plan = Arc::new(Plan::of_run(plan).map_err(|error| damaged(error.to_string()))?);
    let mut machine = Machine::new(&plan, id, input.clone(), *at, *v);
    let mut commands = machine.take_commands();
    for (at, event) in events.iter().skip(1) {
        // The process that stored it ignored it as well.
        if let Err(unexpected) = machine.apply(event.clone(), *at) {
            tracing::warn!(run = %id, "a stored event does not fit: {}", unexpected.0);
        }
        let new = machine.take_commands();
        commands.extend(new.into_iter().filter(|command| !matches!(command, Command::Items { .. })));
    }
    // The last command of each step that still runs.
    let mut last: HashMap<Arc<str>, usize> = HashMap::new();
    let mut stopped = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        match command {
            Command::Run(work) => _ = last.insert(Arc::clone(&work.step), index),
            Command::Await { step, .. } => _ = last.insert(Arc::clone(step), index),
            Command::Stop { step } => stopped.push(Arc::clone(step)),
            Command::Answered { .. } | Command::Items { .. } | Command::End => {}
        }
    }
    let mut index = 0;
    commands.retain(|command| {
        let own = index;
        index += 1;
        match command {
            Command::Run(work) => last.get(&work.step) == Some(&own) && machine.is_working(&work.step),
            Command::Await { step, .. } => last.get(step) == Some(&own) && machine.is_working(step),
            Command::End => true,
            Command::Stop { .. } | Command::Answered { .. } | Command::Items { .. } => false,
        }
    });
    commands.extend(
        stopped.into_iter().filter(|step| machine.is_working(step)).map(|step| Command::Stop { step }),
    );
    commands.extend(machine.open_maps());
    Ok(Replayed { machine, input: input.clone(), plan, commands })
}
