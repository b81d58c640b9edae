//! Runs on this machine: the driver of the scheduler.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use toolpost_core::{
    Answer, BoxFuture, Call, CallId, Caller, Cancellation, Clock, Code, DocStore, Masks, Port, Priority,
    Question, QuestionKind, RunId, Scope, SystemClock, Timestamp, ToolError,
};
use toolpost_toolbox::Toolbox;

use crate::event::{FlowEvent, VERSION};
use crate::journal::{Batch, FlowSummary, Journal, Stamped, ToolErrorText, writer};
use crate::machine::{Command, Ended, Machine, Task, Work};
use crate::outcome::{RunStatus, StepStatus};
use crate::plan::Plan;

/// The default number of calls of a run at once.
const PARALLEL: usize = 64;
/// The time between two looks at the inbox.
const LOOK: Duration = Duration::from_millis(200);
/// The time after which the start of a step is stored, if nothing else is.
const UNSEEN: Duration = Duration::from_millis(50);
/// The maximum number of events that are applied at once.
const BATCH: usize = 512;
/// The time in which stopped calls must end.
const GRACE: Duration = Duration::from_secs(10);

/// What a crash of the process or the machine may cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The run is in memory alone and cannot be resumed.
    None,
    /// Events are stored while the run goes on: a crash may repeat the last steps.
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
            _ => Err(format!("`{text}` is no durability: expected none, normal or full")),
        }
    }
}

/// What a run shows while it goes on.
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
    /// An attempt failed.
    AttemptFailed {
        /// The path of the step.
        step: Arc<str>,
        /// Why.
        error: ToolError,
    },
    /// A step waits for a signal or an approval.
    Waiting {
        /// The path of the step.
        step: Arc<str>,
        /// The name of the signal.
        signal: String,
        /// The question, if it waits for an approval.
        question: Option<String>,
    },
    /// A step ended.
    Ended {
        /// The path of the step.
        step: Arc<str>,
        /// How.
        status: StepStatus,
    },
}

impl std::fmt::Display for FlowProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Started { step, tool, .. } => write!(f, "{step}: {tool}"),
            Self::AttemptFailed { step, error } => write!(f, "{step}: {}", error.message()),
            Self::Waiting { step, signal, .. } => write!(f, "{step} waits for {signal}"),
            Self::Ended { step, status } => write!(f, "{step} {}", status.as_str()),
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
    /// How it ended.
    pub status: RunStatus,
    /// The output of the plan; null unless it succeeded.
    pub output: Value,
    /// Why it failed or was cancelled.
    pub error: Option<ToolError>,
    /// The steps that succeeded.
    pub succeeded: u64,
    /// The steps that failed.
    pub failed: u64,
    /// The time of this process for the run.
    pub duration: Duration,
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

    /// A run of a plan. Await it.
    pub fn run(&self, plan: impl Into<Arc<Plan>>, input: Value) -> FlowRun {
        FlowRun::new(self.clone(), Begin::New { plan: plan.into(), input })
    }

    /// Continues a stored run where it ended, with the plan that it began with. Await it.
    ///
    /// The process that ran it must have ended: whoever writes second fails with `CONFLICT`.
    pub fn resume(&self, id: RunId) -> FlowRun {
        FlowRun::new(self.clone(), Begin::Stored(id))
    }

    fn journal(&self) -> Result<Journal, ToolError> {
        let store = self.store.clone().ok_or_else(|| {
            ToolError::precondition("these runs are not stored").suggest("Give `Flows` a store.")
        })?;
        Ok(Journal::new(store, self.masks.clone()))
    }

    /// The latest stored runs, at most `limit`.
    ///
    /// # Errors
    /// `PRECONDITION` without a store, and errors of the store.
    pub async fn list(&self, limit: usize) -> Result<Vec<FlowSummary>, ToolError> {
        self.journal()?.list(limit).await
    }

    /// The only stored run whose id begins with a text; the latest one for `last`.
    ///
    /// # Errors
    /// `NOT_FOUND`, `INVALID_INPUT` for several runs, and errors of the store.
    pub async fn find(&self, start: &str) -> Result<RunId, ToolError> {
        self.journal()?.find(start).await
    }

    /// The figures of a stored run.
    ///
    /// # Errors
    /// `NOT_FOUND`, and errors of the store.
    pub async fn summary(&self, id: RunId) -> Result<FlowSummary, ToolError> {
        self.journal()?.summary(id).await
    }

    /// A stored run with its events.
    ///
    /// # Errors
    /// `NOT_FOUND`, and errors of the store.
    pub async fn load(&self, id: RunId) -> Result<StoredFlow, ToolError> {
        let (record, events) = self.journal()?.open(id).await?;
        let Replayed { machine, plan, input, .. } = replay(id, &events)?;
        let output = machine.ended().map(|ended| Value::clone(&ended.output)).unwrap_or_default();
        Ok(StoredFlow { summary: record.head, plan, input, output, events })
    }

    /// Sends a value to the step of a stored run that waits for this signal, now or later.
    ///
    /// # Errors
    /// `PRECONDITION` if the run has ended, `NOT_FOUND`, and errors of the store.
    pub async fn signal(&self, id: RunId, name: &str, value: Value) -> Result<(), ToolError> {
        self.send(id, FlowEvent::Signal { name: name.to_owned(), value }).await
    }

    /// Asks a stored run to end.
    ///
    /// # Errors
    /// `PRECONDITION` if the run has ended, `NOT_FOUND`, and errors of the store.
    pub async fn cancel(&self, id: RunId, reason: &str) -> Result<(), ToolError> {
        self.send(id, FlowEvent::CancelRequested { reason: reason.to_owned() }).await
    }

    async fn send(&self, id: RunId, event: FlowEvent) -> Result<(), ToolError> {
        let journal = self.journal()?;
        let summary = journal.summary(id).await?;
        if summary.status != RunStatus::Running {
            return Err(ToolError::precondition(format!(
                "the run has ended: it {}",
                summary.status.as_str()
            )));
        }
        journal.send(id, &event).await
    }

    /// Deletes a stored run. Returns whether it existed.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn delete(&self, id: RunId) -> Result<bool, ToolError> {
        self.journal()?.delete(id).await
    }
}

/// How a run begins.
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

    async fn drive(self) -> Result<FlowOutcome, ToolError> {
        let begun = Instant::now();
        let now = self.flows.clock.timestamp();
        let (machine, commands, journal, head) = match &self.begin {
            Begin::New { plan, input } => self.begin_new(Arc::clone(plan), input.clone(), now).await?,
            Begin::Stored(id) => self.begin_stored(*id, now).await?,
        };
        let mut driver = Driver {
            run: &self,
            machine,
            queue: BinaryHeap::new(),
            in_flight: FuturesUnordered::new(),
            active: 0,
            number: 0,
            stops: HashMap::new(),
            waits: HashMap::new(),
            events: Vec::new(),
            journal,
            head,
            is_cancelled: false,
        };
        driver.obey(commands);
        let ended = driver.work().await?;
        Ok(FlowOutcome {
            id: self.id,
            status: ended.status,
            output: Arc::unwrap_or_clone(ended.output),
            error: ended.error,
            succeeded: driver.head.succeeded,
            failed: driver.head.failed,
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
                Some(Stored { sender: writer(journal.clone(), record), journal })
            }
        };
        let mut machine = Machine::new(plan, self.id, input, now);
        let commands = machine.take_commands();
        Ok((machine, commands, journal, head))
    }

    async fn begin_stored(&self, id: RunId, now: Timestamp) -> Result<Begun, ToolError> {
        let journal = self.flows.journal()?;
        let (mut record, events) = journal.open(id).await?;
        if record.head.status != RunStatus::Running {
            let status = record.head.status.as_str();
            return Err(ToolError::precondition(format!("the run has ended: it {status}")));
        }
        let Replayed { mut machine, commands, .. } = replay(id, &events)?;
        record.head.owner = Some(self.flows.owner.clone());
        record.head.updated = now;
        let resumed = FlowEvent::Resumed { owner: self.flows.owner.clone() };
        // From here the process that ran it before can write no more.
        journal.append(&mut record, &[(now, resumed)]).await?;
        let head = record.head.clone();
        let _ = machine.take_changes();
        let stored = Stored { sender: writer(journal.clone(), record), journal };
        Ok((machine, commands, Some(stored), head))
    }
}

impl std::fmt::Debug for FlowRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FlowRun").field("id", &self.id).finish_non_exhaustive()
    }
}

impl IntoFuture for FlowRun {
    type Output = Result<FlowOutcome, ToolError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.drive())
    }
}

type Begun = (Machine, Vec<Command>, Option<Stored>, FlowSummary);

/// The stored side of a run.
struct Stored {
    sender: mpsc::Sender<Batch>,
    journal: Journal,
}

/// A machine after the events of a stored run.
struct Replayed {
    machine: Machine,
    plan: Arc<Plan>,
    input: Value,
    /// What a driver has to do now.
    commands: Vec<Command>,
}

/// Applies stored events to a new machine.
fn replay(id: RunId, events: &[Stamped]) -> Result<Replayed, ToolError> {
    let damaged =
        |problem: String| ToolError::dependency(format!("the stored run `{id}` is invalid: {problem}"));
    let Some((at, FlowEvent::RunStarted { plan, input, .. })) = events.first() else {
        return Err(damaged("it has no start".to_owned()));
    };
    let plan = Arc::new(Plan::from_value(plan).map_err(|error| damaged(error.to_string()))?);
    let mut machine = Machine::new(Arc::clone(&plan), id, input.clone(), *at);
    let mut commands = machine.take_commands();
    for (at, event) in events.iter().skip(1) {
        machine.apply(event.clone(), *at).map_err(|unexpected| damaged(unexpected.0))?;
        commands.extend(machine.take_commands());
    }
    // The last command of each step that still runs.
    let mut last: HashMap<Arc<str>, usize> = HashMap::new();
    let mut stopped = Vec::new();
    for (index, command) in commands.iter().enumerate() {
        match command {
            Command::Run(work) => _ = last.insert(Arc::clone(&work.step), index),
            Command::Await { step, .. } => _ = last.insert(Arc::clone(step), index),
            Command::Stop { step } => stopped.push(Arc::clone(step)),
            Command::Answered { .. } | Command::End => {}
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
            Command::Stop { .. } | Command::Answered { .. } => false,
        }
    });
    commands.extend(
        stopped.into_iter().filter(|step| machine.is_working(step)).map(|step| Command::Stop { step }),
    );
    Ok(Replayed { machine, input: input.clone(), plan, commands })
}

/// A call in the order of its priority, then of its creation.
struct Queued {
    priority: Priority,
    number: u64,
    work: Box<Work>,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> Ordering {
        self.priority.cmp(&other.priority).then_with(|| other.number.cmp(&self.number))
    }
}

/// What a future of the driver says.
enum Done {
    /// A call ended.
    Called(FlowEvent),
    /// A wait ended.
    Waited(FlowEvent),
    /// The delay of a call is over.
    Due(Box<Work>),
    /// A person answered, or nobody can be asked.
    Asked { step: Arc<str>, answer: Result<Value, ToolError> },
}

/// A step that waits for a signal.
struct Wait {
    until: Option<u64>,
}

struct Driver<'a> {
    run: &'a FlowRun,
    machine: Machine,
    queue: BinaryHeap<Queued>,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
    /// The calls in flight.
    active: usize,
    number: u64,
    /// The tokens of what is queued, delayed or in flight.
    stops: HashMap<Arc<str>, Cancellation>,
    waits: HashMap<Arc<str>, Wait>,
    /// Events that are not applied yet.
    events: Vec<Stamped>,
    journal: Option<Stored>,
    head: FlowSummary,
    is_cancelled: bool,
}

impl Driver<'_> {
    fn show(&self, progress: &FlowProgress) {
        if let Some(sink) = &self.run.progress {
            sink(progress);
        }
    }

    fn push(&mut self, event: FlowEvent) {
        self.events.push((self.run.flows.clock.timestamp(), event));
    }

    fn now_ms(&self) -> u64 {
        self.run.flows.clock.timestamp().as_micros() / 1_000
    }

    /// Takes the commands of the machine.
    fn obey(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Run(work) => self.prepare(work),
                Command::Stop { step } => self.stop(step),
                Command::Await { step, signal, question, until } => {
                    self.waits.insert(Arc::clone(&step), Wait { until });
                    let asks = (step.clone(), question.clone());
                    self.show(&FlowProgress::Waiting { step, signal, question });
                    self.ask(asks.0, asks.1);
                }
                Command::Answered { step } => {
                    self.waits.remove(&step);
                    self.stops.remove(&step).map(|token| token.cancel());
                }
                Command::End => {}
            }
        }
    }

    fn prepare(&mut self, work: Box<Work>) {
        let token = Cancellation::new();
        self.stops.insert(Arc::clone(&work.step), token.clone());
        let delay = Duration::from_millis(work.not_before.saturating_sub(self.now_ms()));
        if matches!(work.task, Task::Call { .. }) && delay.is_zero() {
            return self.enqueue(work);
        }
        self.in_flight.push(Box::pin(async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = token.cancelled() => {
                    return Done::Waited(FlowEvent::StepCancelled { step: work.step.to_string() });
                }
            }
            match work.task {
                Task::Call { .. } => Done::Due(work),
                Task::Wait => Done::Waited(FlowEvent::StepSucceeded {
                    step: work.step.to_string(),
                    output: Value::Null,
                }),
            }
        }));
    }

    fn enqueue(&mut self, work: Box<Work>) {
        self.number += 1;
        self.queue.push(Queued { priority: work.priority, number: self.number, work });
    }

    fn stop(&mut self, step: Arc<str>) {
        if let Some(token) = self.stops.get(&step) {
            token.cancel();
        }
        if self.waits.remove(&step).is_some() {
            self.stops.remove(&step);
            self.push(FlowEvent::StepCancelled { step: step.to_string() });
        }
    }

    /// Starts queued calls up to the limit.
    fn start(&mut self) {
        while self.active < self.run.max_parallel
            && let Some(Queued { work, .. }) = self.queue.pop()
        {
            let Some(token) = self.stops.get(&work.step).cloned() else { continue };
            if token.is_cancelled() {
                self.stops.remove(&work.step);
                self.push(FlowEvent::StepCancelled { step: work.step.to_string() });
                continue;
            }
            let Work { step, attempt, task: Task::Call { tool, arguments }, timeout, priority, .. } = *work
            else {
                continue;
            };
            if self.run.progress.is_some() {
                let (step, tool) = (Arc::clone(&step), Arc::clone(&tool));
                self.show(&FlowProgress::Started { step, tool, attempt });
            }
            if self.journal.is_some() {
                self.push(FlowEvent::StepStarted { step: step.to_string(), attempt });
            }
            let call = self.call(&step, &tool, arguments, timeout, priority, token.clone());
            let toolbox = self.run.flows.toolbox.clone();
            self.active += 1;
            self.in_flight.push(Box::pin(async move {
                let reply = toolbox.call(call).await;
                let step = step.to_string();
                Done::Called(match reply.result {
                    Ok(output) => FlowEvent::StepSucceeded { step, output: output.result_value() },
                    Err(error) if error.code() == Code::Cancelled && token.is_cancelled() => {
                        FlowEvent::StepCancelled { step }
                    }
                    Err(error) => FlowEvent::StepFailed { step, error },
                })
            }));
        }
    }

    fn call(
        &self,
        step: &str,
        tool: &str,
        arguments: Arc<Value>,
        timeout: Option<Duration>,
        priority: Priority,
        token: Cancellation,
    ) -> Call {
        let mut call = Call::new(tool, arguments).with_caller(self.run.caller.clone());
        if let Some((parent, depth)) = self.run.parent {
            call.parent = Some(parent);
            call.depth = depth.saturating_add(1);
        }
        call.options.timeout = timeout;
        call = call
            .with_priority(priority)
            .with_cancellation(token)
            .with_idempotency_key(format!("{}/{step}", self.run.id));
        if let Some(scope) = &self.run.scope {
            call = call.with_scope(scope.clone());
        }
        if let Some(port) = &self.run.port {
            call = call.with_port(Arc::clone(port));
        }
        call
    }

    /// Works until the run has ended.
    async fn work(&mut self) -> Result<Ended, ToolError> {
        let mut looked = Instant::now();
        let timeout = self.machine.plan_timeout();
        loop {
            self.start();
            if let Some(ended) = self.machine.ended().cloned() {
                self.finish(&ended).await?;
                return Ok(ended);
            }
            if self.has_only_starts() {
                if self.has_new_waits() || self.has_late_starts() {
                    // Others see what runs, and what the run waits for.
                    let events = std::mem::take(&mut self.events);
                    self.store(events, false).await?;
                }
                self.wait(looked).await;
            }
            self.check(&mut looked, timeout).await?;
            if !self.has_only_starts() {
                self.apply().await?;
            }
        }
    }

    /// Looks at the cancellation, the time limits and the inbox.
    async fn check(&mut self, looked: &mut Instant, timeout: Option<Duration>) -> Result<(), ToolError> {
        if self.run.cancellation.is_cancelled() && !self.is_cancelled {
            self.request_end("the caller cancelled it");
        }
        if let Some(timeout) = timeout.filter(|_| !self.is_cancelled) {
            let age = self.now_ms().saturating_sub(self.head.started.as_micros() / 1_000);
            if u128::from(age) >= timeout.as_millis() {
                self.request_end("it took longer than its `timeout`");
            }
        }
        self.expire();
        if looked.elapsed() >= LOOK {
            *looked = Instant::now();
            self.receive().await?;
        }
        Ok(())
    }

    /// Whether no event changes anything.
    fn has_only_starts(&self) -> bool {
        self.events.iter().all(|(_, event)| matches!(event, FlowEvent::StepStarted { .. }))
    }

    /// Whether starts are not stored that others should see by now.
    fn has_late_starts(&self) -> bool {
        let now = self.run.flows.clock.timestamp().as_micros();
        let first = self.events.first().map_or(now, |(at, _)| at.as_micros());
        u128::from(now.saturating_sub(first)) >= UNSEEN.as_micros()
    }

    fn has_new_waits(&self) -> bool {
        self.journal.is_some() && !self.machine.awaited().eq(self.head.waiting.iter().map(String::as_str))
    }

    fn request_end(&mut self, reason: &str) {
        self.is_cancelled = true;
        self.push(FlowEvent::CancelRequested { reason: reason.to_owned() });
    }

    /// Waits for the next end of a call, the next look at the inbox, or the cancellation; takes all that is ready.
    async fn wait(&mut self, looked: Instant) {
        let has_inbox =
            self.journal.is_some() || !self.waits.is_empty() || self.machine.plan_timeout().is_some();
        let rest = LOOK.saturating_sub(looked.elapsed());
        let rest = if self.events.is_empty() { rest } else { rest.min(UNSEEN) };
        let cancelled = async {
            if self.is_cancelled {
                std::future::pending().await
            } else {
                self.run.cancellation.cancelled().await
            }
        };
        let look =
            async { if has_inbox { tokio::time::sleep(rest).await } else { std::future::pending().await } };
        let first = tokio::select! {
            biased;
            Some(done) = self.in_flight.next() => Some(done),
            () = cancelled => None,
            () = look => None,
        };
        let mut next = first;
        let mut taken = 0;
        while let Some(done) = next {
            self.take(done);
            taken += 1;
            next = if taken < BATCH { self.in_flight.next().now_or_never().flatten() } else { None };
        }
    }

    fn take(&mut self, done: Done) {
        let event = match done {
            Done::Due(work) => return self.enqueue(work),
            Done::Asked { step, answer } => return self.answered(step, answer),
            Done::Called(event) => {
                self.active -= 1;
                event
            }
            Done::Waited(event) => event,
        };
        match &event {
            FlowEvent::StepSucceeded { step, .. } | FlowEvent::StepCancelled { step } => {
                self.stops.remove(step.as_str());
            }
            FlowEvent::StepFailed { step, error } => {
                self.stops.remove(step.as_str());
                self.show(&FlowProgress::AttemptFailed { step: step.as_str().into(), error: error.clone() });
            }
            _ => {}
        }
        self.push(event);
    }

    /// Asks the person behind the port. Without one, a stored run waits for its inbox, and another one cannot go on.
    fn ask(&mut self, step: Arc<str>, question: Option<String>) {
        let port = self.run.port.clone().filter(|_| question.is_some());
        let call = self.run.parent.map_or_else(CallId::new, |(call, _)| call);
        let (message, tool) = (question.unwrap_or_default(), step.to_string());
        let token = Cancellation::new();
        self.stops.insert(Arc::clone(&step), token.clone());
        self.in_flight.push(Box::pin(async move {
            let Some(port) = port else {
                let error = ToolError::precondition("nobody can send a signal to a run that is not stored");
                return Done::Asked { step, answer: Err(error) };
            };
            let kind = QuestionKind::Approval { tool, arguments: Value::Null };
            let question = Question { message, kind, name: None };
            let answer = tokio::select! {
                answer = port.ask(call, &question) => answer.map(|answer| match answer {
                    Answer::Given { value } => json!({ "approved": value != Value::Bool(false) }),
                    Answer::Declined => json!({ "approved": false }),
                }),
                () = token.cancelled() => Err(ToolError::cancelled("the step waits no longer")),
            };
            Done::Asked { step, answer }
        }));
    }

    fn answered(&mut self, step: Arc<str>, answer: Result<Value, ToolError>) {
        if !self.waits.contains_key(&step) {
            return;
        }
        match answer {
            // The signal of an approval has the name of its step.
            Ok(value) => self.push(FlowEvent::Signal { name: step.to_string(), value }),
            Err(_) if self.journal.is_some() => {}
            Err(error) => {
                self.waits.remove(&step);
                self.stops.remove(&step);
                self.push(FlowEvent::StepFailed { step: step.to_string(), error });
            }
        }
    }

    /// Fails the waits whose time is over.
    fn expire(&mut self) {
        let now = self.now_ms();
        let late: Vec<Arc<str>> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.until.is_some_and(|until| until <= now))
            .map(|(step, _)| Arc::clone(step))
            .collect();
        for step in late {
            self.waits.remove(&step);
            self.stops.remove(&step).map(|token| token.cancel());
            let error = ToolError::timeout("nobody answered in time");
            self.push(FlowEvent::StepFailed { step: step.to_string(), error });
        }
    }

    /// Takes what other processes sent.
    async fn receive(&mut self) -> Result<(), ToolError> {
        let Some(stored) = &self.journal else { return Ok(()) };
        let (events, version) = stored.journal.received(self.run.id, self.head.inbox).await?;
        self.head.inbox = version;
        for event in events {
            match &event {
                FlowEvent::Signal { .. } => self.push(event),
                FlowEvent::CancelRequested { reason } => {
                    let reason = reason.clone();
                    self.request_end(&reason);
                }
                // Nobody else decides how steps end.
                _ => {}
            }
        }
        Ok(())
    }

    /// Stores the events, and applies them.
    async fn apply(&mut self) -> Result<(), ToolError> {
        let events = std::mem::take(&mut self.events);
        let events = self.store(events, self.run.durability == Durability::Full).await?;
        for (at, event) in events {
            if let Err(unexpected) = self.machine.apply(event, at) {
                tracing::warn!(run = %self.run.id, "an event does not fit: {}", unexpected.0);
            }
        }
        for change in self.machine.take_changes() {
            match change.status {
                StepStatus::Succeeded => self.head.succeeded += 1,
                StepStatus::Failed => self.head.failed += 1,
                _ => {}
            }
            if self.run.progress.is_some() {
                self.show(&FlowProgress::Ended { step: change.step, status: change.status });
            }
        }
        let commands = self.machine.take_commands();
        self.obey(commands);
        Ok(())
    }

    /// Gives events to the writer, waits until they are on the disk if asked to, and gives them back.
    async fn store(&mut self, events: Vec<Stamped>, waits: bool) -> Result<Vec<Stamped>, ToolError> {
        let Some(stored) = &self.journal else { return Ok(events) };
        self.head.updated = self.run.flows.clock.timestamp();
        self.head.waiting = self.machine.awaited().map(str::to_owned).collect();
        let (sender, receiver) = oneshot::channel();
        let batch =
            Batch { events: events.clone(), head: self.head.clone(), stored: waits.then_some(sender) };
        let gone = || ToolError::internal("the writer of the run has ended");
        if stored.sender.send(batch).await.is_err() {
            return Err(gone());
        }
        if waits {
            receiver.await.map_err(|_| gone())??;
        }
        Ok(events)
    }

    /// Stores the end, after all that came before.
    async fn finish(&mut self, ended: &Ended) -> Result<(), ToolError> {
        // A driver that leaves calls behind would let them act after the end.
        let until = Instant::now() + GRACE;
        while !self.in_flight.is_empty() && Instant::now() < until {
            self.stops.values().for_each(|token| _ = token.cancel());
            if tokio::time::timeout(GRACE, self.in_flight.next()).await.is_err() {
                break;
            }
        }
        let Some(stored) = self.journal.take() else { return Ok(()) };
        self.head.status = ended.status;
        self.head.updated = self.run.flows.clock.timestamp();
        self.head.owner = None;
        self.head.waiting = Vec::new();
        self.head.error = ended.error.as_ref().map(ToolErrorText::of);
        let (sender, receiver) = oneshot::channel();
        let batch = Batch { events: Vec::new(), head: self.head.clone(), stored: Some(sender) };
        let gone = |_| ToolError::internal("the writer of the run has ended");
        stored
            .sender
            .send(batch)
            .await
            .map_err(|_| ToolError::internal("the writer of the run has ended"))?;
        receiver.await.map_err(gone)?
    }
}
