//! The driver of one run: does what the machine says, and tells it what happened.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use toolpost_core::{
    Answer, BoxFuture, Call, CallId, CallRecord, Cancellation, Question, QuestionKind, Reply, Timestamp,
    ToolError,
};

use super::cache::StepCache;
use super::{Durability, FlowProgress, FlowRun, Stored};
use crate::driver::{self, CallQueue};
use crate::event::FlowEvent;
use crate::journal::{Batch, FlowSummary, Message, Stamped, ToolErrorText};
use crate::machine::{Command, Ended, Machine, StepEnd, Task, Work};
use crate::names::Known;
use crate::report::StepWait;

/// The time between two looks at the inbox.
const LOOK: Duration = Duration::from_millis(200);
/// The time after which the start of a step is stored, if nothing else is.
const UNSEEN: Duration = Duration::from_millis(50);
/// The maximum number of events that are applied at once.
const BATCH: usize = 512;
/// The time in which stopped calls must end.
const GRACE: Duration = Duration::from_secs(10);
/// The result of a driver's future.
enum Done {
    /// A call ended.
    Called {
        event: FlowEvent,
        /// None if an earlier output stood for the call.
        record: Option<Arc<CallRecord>>,
    },
    /// A wait ended.
    Waited(FlowEvent),
    /// The delay of a call is over.
    Due(Box<Work>),
    /// A person answered, or the question failed.
    Asked { step: Arc<str>, answer: Result<Value, ToolError> },
}

/// A step that waits for a signal or an approval.
struct Wait {
    until: Option<u64>,
}

pub(super) struct Driver<'a> {
    run: &'a FlowRun,
    machine: Machine,
    queue: CallQueue<Box<Work>>,
    /// The queued calls that begin no more.
    stopped: HashSet<Arc<str>>,
    in_flight: FuturesUnordered<BoxFuture<'static, Done>>,
    /// The calls in flight.
    active: usize,
    /// The tokens of what is delayed or in flight.
    stops: HashMap<Arc<str>, Cancellation>,
    waits: HashMap<Arc<str>, Wait>,
    /// Events that are not applied yet.
    events: Vec<Stamped>,
    journal: Option<Stored>,
    pub(super) head: FlowSummary,
    /// The time at which the driver began, by both clocks.
    begun: (Timestamp, Instant),
    is_cancelled: bool,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        run: &'a FlowRun,
        machine: Machine,
        journal: Option<Stored>,
        head: FlowSummary,
    ) -> Self {
        Self {
            run,
            machine,
            queue: CallQueue::default(),
            stopped: HashSet::new(),
            in_flight: FuturesUnordered::new(),
            active: 0,
            stops: HashMap::new(),
            waits: HashMap::new(),
            events: Vec::new(),
            journal,
            begun: (head.updated, run.flows.clock.instant()),
            head,
            is_cancelled: false,
        }
    }

    /// The results of the plan's own steps.
    pub(super) fn results(&self) -> Option<Arc<Known>> {
        self.machine.root().cloned()
    }

    fn show(&self, progress: &FlowProgress) {
        if let Some(sink) = &self.run.progress {
            sink(progress);
        }
    }

    fn push(&mut self, event: FlowEvent) {
        self.events.push((self.now(), event));
    }

    /// The time of events. A change of the time of day during the run does not change it.
    pub(super) fn now(&self) -> Timestamp {
        let (begun, instant) = self.begun;
        let elapsed = self.run.flows.clock.instant().saturating_duration_since(instant);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        Timestamp::from_micros(begun.as_micros().saturating_add(micros))
    }

    fn now_ms(&self) -> u64 {
        self.now().as_micros() / 1_000
    }

    /// Takes the commands of the machine at a time.
    pub(super) fn obey(&mut self, commands: impl IntoIterator<Item = Command>, now: Timestamp) {
        let now = now.as_micros() / 1_000;
        for command in commands {
            match command {
                Command::Run(work) => self.prepare(work, now),
                Command::Stop { step } => self.stop(&step),
                Command::Await { step, wait, until } => {
                    self.waits.insert(Arc::clone(&step), Wait { until });
                    self.show(&FlowProgress::Waiting { step: Arc::clone(&step), wait: wait.clone() });
                    self.ask(step, wait);
                }
                Command::Answered { step } => {
                    self.waits.remove(&step);
                    self.stops.remove(&step).map(|token| token.cancel());
                }
                Command::Items { step, ended, count } => {
                    self.show(&FlowProgress::Items { step, ended, count });
                }
                Command::End => {}
            }
        }
    }

    /// Takes the commands of a stored run. What other processes sent counts first: an answered step asks no more.
    pub(super) async fn resume(&mut self, commands: Vec<Command>) -> Result<(), ToolError> {
        let (waits, others): (Vec<_>, Vec<_>) =
            commands.into_iter().partition(|command| matches!(command, Command::Await { .. }));
        for command in &waits {
            if let Command::Await { step, until, .. } = command {
                self.waits.insert(Arc::clone(step), Wait { until: *until });
            }
        }
        self.obey(others, self.now());
        if !waits.is_empty() {
            // If two processes resume the run at once, the first one fails before an answer starts a step.
            tokio::time::sleep(LOOK).await;
            self.receive().await?;
            self.expire(self.now_ms()).await?;
        }
        if !self.has_only_starts() {
            self.apply().await?;
        }
        let open: Vec<Command> = waits
            .into_iter()
            .filter(|command| matches!(command, Command::Await { step, .. } if self.waits.contains_key(step)))
            .collect();
        self.obey(open, self.now());
        Ok(())
    }

    fn prepare(&mut self, work: Box<Work>, now: u64) {
        let delay = Duration::from_millis(work.not_before.saturating_sub(now));
        if matches!(work.task, Task::Call { .. }) && delay.is_zero() {
            return self.enqueue(work, now);
        }
        let token = Cancellation::new();
        self.stops.insert(Arc::clone(&work.step), token.clone());
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
                    truncated: Vec::new(),
                }),
            }
        }));
    }

    fn enqueue(&mut self, work: Box<Work>, now: u64) {
        let priority = work.priority;
        self.queue.push(work, priority, now);
    }

    fn stop(&mut self, step: &Arc<str>) {
        if self.waits.remove(step).is_some() {
            self.stops.remove(step).map(|token| token.cancel());
            self.push(FlowEvent::StepCancelled { step: step.to_string() });
        } else if let Some(token) = self.stops.get(step) {
            token.cancel();
        } else {
            self.stopped.insert(Arc::clone(step));
        }
    }

    /// Starts queued calls up to the limit.
    fn start(&mut self) {
        while self.active < self.run.max_parallel
            && let Some(work) = self.queue.pop()
        {
            if !self.stopped.is_empty() && self.stopped.remove(&work.step) {
                self.push(FlowEvent::StepCancelled { step: work.step.to_string() });
                continue;
            }
            let Task::Call { tool, .. } = &work.task else { continue };
            let step = Arc::clone(&work.step);
            if self.run.progress.is_some() {
                let (step, tool) = (Arc::clone(&step), Arc::clone(tool));
                self.show(&FlowProgress::Started { step, tool, attempt: work.attempt });
            }
            if self.journal.is_some() {
                self.push(FlowEvent::StepStarted { step: step.to_string(), attempt: work.attempt });
            }
            let token = Cancellation::new();
            let Some(call) = self.call(&work, token.clone()) else { continue };
            self.stops.insert(Arc::clone(&step), token.clone());
            let toolbox = self.run.flows.toolbox.clone();
            self.active += 1;
            let Task::Call { tool, arguments, values, is_program, uses, settings } = work.task else {
                continue;
            };
            if settings.is_none() && values.is_empty() {
                self.in_flight.push(Box::pin(async move {
                    let Reply { result, record, .. } = toolbox.call(call).await;
                    let event = driver::attempt_event(&step, result, is_program, &uses, token.is_cancelled());
                    Done::Called { event, record: Some(record) }
                }));
                continue;
            }
            let settings = settings.unwrap_or_default();
            let heartbeat = settings.heartbeat;
            let cache = settings.cache.and_then(|cache| StepCache::new(&self.run.flows, &call, cache));
            self.in_flight.push(Box::pin(async move {
                let checked = driver::check_values(&toolbox, &tool, &arguments, is_program, &values).await;
                if let Err(error) = checked {
                    return cached(&step, Err(error));
                }
                let mut key = None;
                if let Some(cache) = &cache {
                    match cache.key().await {
                        Ok(found) => match cache.get(&found).await {
                            Some(output) => return cached(&step, Ok(output)),
                            None => key = Some(found),
                        },
                        Err(error) => return cached(&step, Err(error)),
                    }
                }
                let Reply { result, record, .. } = driver::reply(&toolbox, call, heartbeat).await;
                let event = driver::attempt_event(&step, result, is_program, &uses, token.is_cancelled());
                // A later step may use what this one does not.
                if let FlowEvent::StepSucceeded { output, truncated, .. } = &event
                    && truncated.is_empty()
                    && let (Some(cache), Some(key)) = (&cache, &key)
                {
                    cache.put(key, output).await;
                }
                Done::Called { event, record: Some(record) }
            }));
        }
    }

    fn call(&self, work: &Work, token: Cancellation) -> Option<Call> {
        let mut call = driver::call(self.run.id, work)?;
        call.caller = self.run.caller.clone();
        call.cancellation = token;
        if let Some((parent, depth)) = self.run.parent {
            call.parent = Some(parent);
            call.depth = depth.saturating_add(1);
        }
        call.scope.clone_from(&self.run.scope);
        if let Some(port) = &self.run.port {
            call.port = Arc::clone(port);
        }
        Some(call)
    }

    /// Works until the run has ended.
    pub(super) async fn work(&mut self) -> Result<Ended, ToolError> {
        let mut looked = Instant::now();
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
            self.check(&mut looked).await?;
            if !self.has_only_starts() {
                self.apply().await?;
            }
        }
    }

    /// Looks at the cancellation, the waits and the inbox.
    async fn check(&mut self, looked: &mut Instant) -> Result<(), ToolError> {
        if self.run.cancellation.is_cancelled() && !self.is_cancelled {
            self.request_end("the caller cancelled it");
        }
        // An answer from before the end of a wait counts, also if it is read after the end.
        if looked.elapsed() >= LOOK || self.has_late_waits(self.now_ms()) {
            *looked = Instant::now();
            self.receive().await?;
        }
        self.expire(self.now_ms()).await
    }

    /// Whether no event changes anything.
    fn has_only_starts(&self) -> bool {
        self.events.iter().all(|(_, event)| matches!(event, FlowEvent::StepStarted { .. }))
    }

    /// Whether starts are not stored that others should see by now.
    fn has_late_starts(&self) -> bool {
        let now = self.now().as_micros();
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
        let has_inbox = self.journal.is_some() || !self.waits.is_empty();
        let rest = LOOK.saturating_sub(looked.elapsed());
        let rest = if self.events.is_empty() { rest } else { rest.min(UNSEEN) };
        let cancelled = async {
            if self.is_cancelled {
                std::future::pending::<()>().await;
            } else {
                self.run.cancellation.cancelled().await;
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
            Done::Due(work) => {
                let token = self.stops.remove(&work.step);
                if !token.is_some_and(|token| token.is_cancelled()) {
                    return self.enqueue(work, self.now_ms());
                }
                FlowEvent::StepCancelled { step: work.step.to_string() }
            }
            Done::Asked { step, answer } => return self.answered(&step, answer),
            Done::Called { event, record } => {
                self.active -= 1;
                if let (Some(step), Some(record)) =
                    (event.step().filter(|_| self.run.progress.is_some()), record)
                {
                    self.show(&FlowProgress::Called { step: step.into(), record });
                }
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

    /// Asks the person behind the port. Without one, a stored run waits for its inbox, and another one cannot continue.
    fn ask(&mut self, step: Arc<str>, wait: StepWait) {
        let (port, message) = match wait {
            StepWait::Approval(question) => (self.run.port.clone(), question),
            _ => (None, String::new()),
        };
        let call = self.run.parent.map_or_else(CallId::new, |(call, _)| call);
        let tool = step.to_string();
        let token = Cancellation::new();
        self.stops.insert(Arc::clone(&step), token.clone());
        self.in_flight.push(Box::pin(async move {
            let Some(port) = port else {
                let error = ToolError::precondition("a run that is not stored cannot receive a signal");
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

    fn answered(&mut self, step: &Arc<str>, answer: Result<Value, ToolError>) {
        if !self.waits.contains_key(step) {
            return;
        }
        match answer {
            Ok(answer) => {
                self.waits.remove(step);
                self.push(FlowEvent::Answered { step: step.to_string(), answer });
            }
            Err(_) if self.journal.is_some() => {}
            Err(error) => {
                self.waits.remove(step);
                self.stops.remove(step);
                self.push(FlowEvent::StepFailed { step: step.to_string(), error });
            }
        }
    }

    fn has_late_waits(&self, now: u64) -> bool {
        self.waits.values().any(|wait| wait.until.is_some_and(|until| until <= now))
    }

    /// Fails the waits that are over at a time, in milliseconds since 1970.
    async fn expire(&mut self, now: u64) -> Result<(), ToolError> {
        if !self.has_late_waits(now) {
            return Ok(());
        }
        // The answers from before that time end their waits.
        if !self.has_only_starts() {
            self.apply().await?;
        }
        let late: Vec<Arc<str>> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.until.is_some_and(|until| until <= now))
            .map(|(step, _)| Arc::clone(step))
            .collect();
        for step in late {
            self.waits.remove(&step);
            self.stops.remove(&step).map(|token| token.cancel());
            let error = ToolError::timeout("no answer in time");
            self.push(FlowEvent::StepFailed { step: step.to_string(), error });
        }
        Ok(())
    }

    /// Takes what other processes sent. The time of a message, not that of its reading, decides which waits it ends.
    async fn receive(&mut self) -> Result<(), ToolError> {
        loop {
            let Some(stored) = &self.journal else { return Ok(()) };
            let messages = stored.journal.received(self.run.id, self.head.inbox).await?;
            if messages.is_empty() {
                return Ok(());
            }
            for Message { version, at, event } in messages {
                // No message is from the future; only a time of day that was changed says so.
                let at = at.min(self.now()).as_micros() / 1_000;
                self.expire(at.saturating_sub(1)).await?;
                // From here the message is stored with the version.
                self.head.inbox = version;
                match event {
                    Some(event @ (FlowEvent::Signal { .. } | FlowEvent::Answered { .. })) => self.push(event),
                    Some(FlowEvent::CancelRequested { reason }) => self.request_end(&reason),
                    // Only this process decides how steps end.
                    _ => {}
                }
            }
        }
    }

    /// Stores the events, and applies them.
    async fn apply(&mut self) -> Result<(), ToolError> {
        let events = std::mem::take(&mut self.events);
        let events = self.store(events, self.run.durability == Durability::Full).await?;
        let mut commands = Vec::new();
        for (at, event) in events {
            if let Err(unexpected) = self.machine.apply(event, at) {
                tracing::warn!(run = %self.run.id, "an event does not fit: {}", unexpected.0);
            }
            // One event at a time, so that what is shown has the order of what happened.
            self.report();
            self.machine.move_commands(&mut commands);
            self.obey(commands.drain(..), at);
        }
        Ok(())
    }

    /// Counts and shows the steps that ended. Some end when the run begins, such as skipped ones.
    pub(super) fn report(&mut self) {
        for change in self.machine.drain_changes() {
            self.head.count(change.result.status);
            if let Some(sink) = &self.run.progress {
                sink(&change.into());
            }
        }
    }

    /// Gives events to the writer, waits until they are on the disk if asked to, and gives them back.
    async fn store(&mut self, events: Vec<Stamped>, waits: bool) -> Result<Vec<Stamped>, ToolError> {
        let Some(stored) = &self.journal else { return Ok(events) };
        self.head.updated = self.now();
        self.head.waiting = self.machine.awaited().map(str::to_owned).collect();
        let (sender, receiver) = oneshot::channel();
        let batch =
            Batch { events: events.clone(), head: self.head.clone(), stored: waits.then_some(sender) };
        stored.writer.send(batch).await?;
        if waits {
            receiver.await.map_err(|_| stored.writer.failure())??;
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
        self.head.updated = self.now();
        self.head.owner = None;
        self.head.waiting = Vec::new();
        self.head.error = ended.error.as_ref().map(ToolErrorText::from_error);
        let (sender, receiver) = oneshot::channel();
        let batch = Batch { events: Vec::new(), head: self.head.clone(), stored: Some(sender) };
        stored.writer.send(batch).await?;
        receiver.await.map_err(|_| stored.writer.failure())?
    }
}

impl From<StepEnd> for FlowProgress {
    fn from(StepEnd { step, result }: StepEnd) -> Self {
        let output = Arc::clone(&result.output.json);
        Self::Ended { step, status: result.status, output, error: result.error.clone() }
    }
}

/// The end of a step without a call, as an event.
fn cached(step: &str, result: Result<Value, ToolError>) -> Done {
    let step = step.to_owned();
    let event = match result {
        Ok(output) => FlowEvent::StepSucceeded { step, output, truncated: Vec::new() },
        Err(error) => FlowEvent::StepFailed { step, error },
    };
    Done::Called { event, record: None }
}
