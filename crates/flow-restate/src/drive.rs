//! The driver of a run: obeys the machine by durable operations, and gives it what the journal says.
//!
//! On a replay the same operations are created in the same order, and their ends arrive in the order of the journal.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use restate_sdk::context::macro_support::SealedDurableFuture;
use restate_sdk::context::{CallFuture, DurableFuture, RequestTarget};
use restate_sdk::prelude::*;
use restate_sdk_shared_core::NotificationHandle;
use serde_json::Value;
use toolpost_core::{BoxFuture, Clock as _, RunId, SystemClock, Timestamp, ToolError};
use toolpost_flow::driver::{CallQueue, Command, Machine, Task, Work};
use toolpost_flow::{FlowEvent, FlowSummary, Plan, StepStatus, StoredFlow, ToolErrorText};

use crate::object::{ALL, RUNS};
use crate::wire::{Attempt, AttemptEnd, End, Message, Start, VERSION, millis, pool_service};
use crate::worker::DEFAULT_POOL;

/// The name of the signal that carries the messages of clients.
pub(crate) const INBOX: &str = "inbox";
/// The time in which a stopped call must end; then the run no longer waits for it.
const GRACE: Duration = Duration::from_secs(10);

/// The first version in which workers check the values of calls.
const CHECKED_VALUES: u8 = 2;

/// Events with their times.
pub(crate) type Batch = Vec<(Timestamp, FlowEvent)>;

/// The key of a batch of events in the state of the workflow.
pub(crate) fn batch_key(number: u64) -> String {
    format!("events/{number:010}")
}

/// A durable future other than a call.
type Durable<'a> = Pin<Box<dyn DurableFuture<Output = Result<Option<Message>, TerminalError>> + Send + 'a>>;

/// The meaning of a durable future's end.
enum Wait {
    /// A client sent a message.
    Message,
    /// A step's own wait is over.
    Step(Arc<str>),
    /// A call's delay is over.
    Delay(Box<Work>),
    /// A step waits for a signal no longer.
    Signal(Arc<str>),
    /// A stopped call did not end.
    Grace(Arc<str>),
}

/// A durable future and what its end means.
struct Pending<'a> {
    wait: Wait,
    /// The end of a timer, in milliseconds since 1970.
    due: u64,
    future: Durable<'a>,
}

/// A call of a worker. It hides the type of the future, which has no name.
trait Calling: Send {
    fn handle(&self) -> NotificationHandle;
    fn invocation(&self) -> BoxFuture<'_, Result<InvocationHandle, TerminalError>>;
    fn end<'a>(self: Box<Self>) -> BoxFuture<'a, Result<AttemptEnd, TerminalError>>
    where
        Self: 'a;
}

impl<C: CallFuture<Response = Json<AttemptEnd>> + Send> Calling for C {
    fn handle(&self) -> NotificationHandle {
        SealedDurableFuture::handle(self)
    }

    fn invocation(&self) -> BoxFuture<'_, Result<InvocationHandle, TerminalError>> {
        Box::pin(self.invocation_handle())
    }

    fn end<'a>(self: Box<Self>) -> BoxFuture<'a, Result<AttemptEnd, TerminalError>>
    where
        Self: 'a,
    {
        Box::pin(async move { (*self).await.map(Json::into_inner) })
    }
}

/// A call in flight.
struct InFlight<'a> {
    step: Arc<str>,
    call: Box<dyn Calling + 'a>,
}

/// Runs a plan to its end.
pub(crate) async fn run(
    ctx: &WorkflowContext<'_>,
    run: RunId,
    start: Start,
    began: Timestamp,
) -> Result<End, HandlerError> {
    let invalid = |message: String| HandlerError::from(TerminalError::new_with_code(400, message));
    let format = start.v;
    if format > VERSION {
        return Err(invalid(format!("the run has format {format}, and this worker format {VERSION}")));
    }
    let plan = Arc::new(Plan::of_run(&start.plan).map_err(|error| invalid(error.to_string()))?);
    let input = plan.complete(start.input).map_err(|error| invalid(error.to_string()))?;
    let first = FlowEvent::RunStarted {
        v: format,
        plan: plan.source().clone(),
        hash: plan.hash().to_owned(),
        input: input.clone(),
    };
    let mut summary = StoredFlow::from_events(run, vec![(began, first.clone())])
        .map_err(|error| invalid(error.to_string()))?
        .summary;
    let list = |summary: &FlowSummary| {
        if start.is_listed {
            let target = RequestTarget::object(RUNS, ALL, "put");
            ctx.request::<_, ()>(target, Json(summary.clone())).send();
        }
    };
    list(&summary);
    let mut driver = Driver {
        ctx,
        run,
        format,
        checks_outputs: start.checks_outputs,
        shows_first: start.is_listed,
        machine: Machine::new(&plan, run, input, began, format),
        plan,
        now: began,
        max_parallel: start.max_parallel.max(1),
        queue: CallQueue::default(),
        calls: Vec::new(),
        pending: Vec::new(),
        waits: HashSet::new(),
        signals: HashMap::new(),
        events: VecDeque::new(),
        shown: vec![(began, first)],
        batches: 0,
        succeeded: 0,
        failed: 0,
    };
    let end = driver.work().await?;
    summary.status = end.status;
    summary.updated = driver.now;
    (summary.succeeded, summary.failed) = (end.succeeded, end.failed);
    summary.error = end.error.as_ref().map(ToolErrorText::from_error);
    list(&summary);
    Ok(end)
}

struct Driver<'a, 'b> {
    ctx: &'a WorkflowContext<'b>,
    run: RunId,
    /// The version in which the run began. Its calls have it, so that a replay gives the same calls.
    format: u8,
    /// Whether its calls have what the plan uses of outputs.
    checks_outputs: bool,
    /// Whether readers see the start of a step before its call. False for runs of earlier versions.
    shows_first: bool,
    plan: Arc<Plan>,
    machine: Machine,
    /// The time of the last event.
    now: Timestamp,
    max_parallel: usize,
    /// Calls that wait for others to end.
    queue: CallQueue<Box<Work>>,
    calls: Vec<InFlight<'b>>,
    pending: Vec<Pending<'b>>,
    /// The steps that wait for a signal.
    waits: HashSet<Arc<str>>,
    /// The signals that clients sent, by name.
    signals: HashMap<String, usize>,
    /// Events that are not applied yet.
    events: VecDeque<(Timestamp, FlowEvent)>,
    /// Events that readers do not see yet.
    shown: Batch,
    batches: u64,
    succeeded: u64,
    failed: u64,
}

impl Driver<'_, '_> {
    async fn work(&mut self) -> Result<End, TerminalError> {
        self.listen();
        loop {
            for command in self.machine.take_commands() {
                self.obey(command).await?;
            }
            self.start();
            if let Some(ended) = self.machine.ended().cloned() {
                self.show();
                return Ok(End {
                    status: ended.status,
                    output: ended.output,
                    error: ended.error,
                    truncated: ended.truncated,
                    succeeded: self.succeeded,
                    failed: self.failed,
                });
            }
            if self.events.is_empty() {
                self.show();
                self.next().await?;
            }
            if let Some((at, event)) = self.events.pop_front() {
                self.apply(at, event);
            }
        }
    }

    /// The time after a delay, in milliseconds since 1970.
    fn after(&self, delay: Duration) -> u64 {
        (self.now.as_micros() / 1_000).saturating_add(millis(delay))
    }

    /// Listens for the next message.
    fn listen(&mut self) {
        let message = self.ctx.signal::<Json<Message>>(INBOX).map_ok(|message| Some(message.into_inner()));
        self.pending.push(Pending { wait: Wait::Message, due: 0, future: Box::pin(message) });
    }

    /// Begins a timer. Restate stores its end, so the clock of a replay does not matter.
    fn sleep(&mut self, wait: Wait, due: u64) {
        let rest = due.saturating_sub(SystemClock.timestamp().as_micros() / 1_000);
        let timer = self.ctx.sleep(Duration::from_millis(rest)).map_ok(|()| None);
        self.pending.push(Pending { wait, due, future: Box::pin(timer) });
    }

    fn push(&mut self, event: FlowEvent) {
        self.events.push_back((self.now, event));
    }

    async fn obey(&mut self, command: Command) -> Result<(), TerminalError> {
        match command {
            Command::Run(work) => {
                let due = work.not_before;
                match work.task {
                    Task::Wait => self.sleep(Wait::Step(work.step), due),
                    Task::Call { .. } if due > self.after(Duration::ZERO) => {
                        self.sleep(Wait::Delay(work), due);
                    }
                    Task::Call { .. } => self.enqueue(work),
                }
            }
            Command::Stop { step } => self.stop(&step).await?,
            Command::Await { step, until, .. } => {
                self.waits.insert(Arc::clone(&step));
                if let Some(until) = until {
                    self.sleep(Wait::Signal(step), until);
                }
            }
            Command::Answered { step } => _ = self.answered(&step),
            Command::Items { .. } | Command::End => {}
        }
        Ok(())
    }

    fn enqueue(&mut self, work: Box<Work>) {
        let priority = work.priority;
        self.queue.push(work, priority, self.after(Duration::ZERO));
    }

    /// A step waits for a signal no longer.
    fn answered(&mut self, step: &str) -> bool {
        self.pending.retain(|pending| !matches!(&pending.wait, Wait::Signal(own) if **own == *step));
        self.waits.remove(step)
    }

    /// Stops a step. What has not begun ends at once; a call in flight is cancelled, and ends by itself.
    async fn stop(&mut self, step: &Arc<str>) -> Result<(), TerminalError> {
        let is_in_flight = match self.invocation(step) {
            Some(invocation) => {
                invocation.await?.cancel();
                true
            }
            None => false,
        };
        if is_in_flight {
            self.sleep(Wait::Grace(Arc::clone(step)), self.after(GRACE));
            return Ok(());
        }
        let was_queued = self.queue.remove(|work| work.step == *step);
        let before = self.pending.len();
        self.pending.retain(|pending| match &pending.wait {
            Wait::Step(own) => own != step,
            Wait::Delay(work) => work.step != *step,
            _ => true,
        });
        if self.answered(step) || was_queued || before != self.pending.len() {
            self.push(FlowEvent::StepCancelled { step: step.to_string() });
        }
        Ok(())
    }

    /// The invocation of the call of a step in flight.
    fn invocation(&self, step: &str) -> Option<BoxFuture<'_, Result<InvocationHandle, TerminalError>>> {
        self.calls.iter().find(|own| *own.step == *step).map(|own| own.call.invocation())
    }

    /// Starts queued calls up to the limit.
    fn start(&mut self) {
        let mut started = Vec::new();
        while self.calls.len() + started.len() < self.max_parallel
            && let Some(work) = self.queue.pop()
        {
            let (step, attempt) = (work.step.to_string(), work.attempt);
            self.shown.push((self.now, FlowEvent::StepStarted { step, attempt }));
            started.push(work);
        }
        // Restate executes nothing after a call of a pool without a worker, so the events precede the calls.
        if self.shows_first && !started.is_empty() {
            self.show();
        }
        for work in started {
            let Work { step, task, timeout, priority, .. } = *work;
            let Task::Call { tool, arguments, values, is_program, uses, settings } = task else { continue };
            let settings = settings.unwrap_or_default();
            let attempt = Attempt {
                v: self.format,
                step: step.to_string(),
                tool: tool.to_string(),
                arguments,
                values: if self.format < CHECKED_VALUES { Arc::default() } else { values },
                is_program,
                uses: if self.checks_outputs { uses } else { Arc::default() },
                timeout_ms: timeout.map(millis),
                heartbeat_ms: settings.heartbeat.map(millis),
                limit: settings.limit,
                priority,
                key: format!("{}/{step}", self.run),
            };
            let target = RequestTarget::service(
                pool_service(settings.pool.as_deref().unwrap_or(DEFAULT_POOL)),
                "call",
            );
            let call = self.ctx.request::<_, Json<AttemptEnd>>(target, Json(attempt)).call();
            let call = Box::new(call);
            self.calls.push(InFlight { step, call });
        }
    }

    /// Waits for the next end of a durable operation.
    async fn next(&mut self) -> Result<(), TerminalError> {
        let Some(first) = self.pending.first() else { return Ok(()) };
        let handles: Vec<_> = self
            .calls
            .iter()
            .map(|own| own.call.handle())
            .chain(self.pending.iter().map(|own| own.future.handle()))
            .collect();
        let Ok(place) = first.future.inner_context().select(handles).await else {
            let reason = "Restate cancelled the invocation of the run".to_owned();
            self.push(FlowEvent::CancelRequested { reason });
            return Ok(());
        };
        if place < self.calls.len() {
            let InFlight { step, call } = self.calls.swap_remove(place);
            let end = call.end().await;
            self.call_ended(&step, end);
        } else {
            let Pending { wait, due, future } = self.pending.swap_remove(place - self.calls.len());
            let message = future.await?;
            self.wait_ended(wait, due, message);
        }
        Ok(())
    }

    /// A time that never goes back: the clocks of workers differ.
    fn at(&mut self, at: Timestamp) -> Timestamp {
        self.now = self.now.max(at);
        self.now
    }

    fn call_ended(&mut self, step: &Arc<str>, end: Result<AttemptEnd, TerminalError>) {
        self.pending.retain(|pending| !matches!(&pending.wait, Wait::Grace(own) if own == step));
        let (at, event) = match end {
            Ok(AttemptEnd { at, event }) if event.step() == Some(&**step) => (at, event),
            Ok(_) => {
                let error = ToolError::internal("the worker answered for another step");
                (self.now, FlowEvent::StepFailed { step: step.to_string(), error })
            }
            // Restate cancelled the call before it began, or an operator killed it.
            Err(error) if error.code() == 409 => {
                (self.now, FlowEvent::StepCancelled { step: step.to_string() })
            }
            Err(error) => {
                let error = ToolError::dependency(format!("Restate ended the call: {}", error.message()));
                (self.now, FlowEvent::StepFailed { step: step.to_string(), error })
            }
        };
        let at = self.at(at);
        self.events.push_back((at, event));
    }

    fn wait_ended(&mut self, wait: Wait, due: u64, message: Option<Message>) {
        let at = self.at(Timestamp::from_micros(due.saturating_mul(1_000)));
        let event = match wait {
            Wait::Message => {
                self.listen();
                let Some(Message { at, event, reply }) = message else { return };
                self.at(at);
                let is_taken = self.counts(&event);
                if let Some(reply) = reply {
                    self.ctx.resolve_awakeable(&reply, Json(is_taken));
                    if !is_taken {
                        return;
                    }
                }
                event
            }
            Wait::Step(step) => FlowEvent::StepSucceeded {
                step: step.to_string(),
                output: Value::Null,
                truncated: Vec::new(),
            },
            Wait::Delay(work) => return self.enqueue(work),
            Wait::Signal(step) => {
                self.waits.remove(&step);
                FlowEvent::StepFailed {
                    step: step.to_string(),
                    error: ToolError::timeout("no answer in time"),
                }
            }
            Wait::Grace(step) => {
                self.calls.retain(|own| own.step != step);
                FlowEvent::StepCancelled { step: step.to_string() }
            }
        };
        self.events.push_back((at.max(self.now), event));
    }

    /// Counts a signal. False if all steps that wait for its name have their values.
    fn counts(&mut self, event: &FlowEvent) -> bool {
        let FlowEvent::Signal { name, .. } = event else { return true };
        let count = self.signals.entry(name.clone()).or_default();
        let is_taken = *count < self.plan.max_signals(name);
        *count += usize::from(is_taken);
        is_taken
    }

    fn apply(&mut self, at: Timestamp, event: FlowEvent) {
        self.shown.push((at, event.clone()));
        if let Err(unexpected) = self.machine.apply(event, at) {
            tracing::warn!(run = %self.run, "an event does not fit: {}", unexpected.0);
        }
        for change in self.machine.take_changes() {
            match change.status() {
                StepStatus::Succeeded => self.succeeded += 1,
                StepStatus::Failed => self.failed += 1,
                _ => {}
            }
        }
    }

    /// Lets readers see the events so far.
    fn show(&mut self) {
        if !self.shown.is_empty() {
            self.ctx.set(&batch_key(self.batches), Json(std::mem::take(&mut self.shown)));
            self.batches += 1;
        }
    }
}
