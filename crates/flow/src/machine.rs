//! The scheduler: a pure state machine. It takes events and gives commands; it does no I/O and has no clock.
//!
//! Equal events in equal order give equal commands, so a stored run continues where it ended. An instance of a
//! block is a [`Scope`]; a step of a scope is started when all steps that it needs have ended. What ends a scope ends the
//! step that opened it, up to the run. An agenda takes the place of recursion.

mod call;
mod limit;
mod map;
mod scope;
#[cfg(test)]
mod simulation;
mod wait;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{CallLimit, Priority, RunId, Timestamp, ToolError, Truncation};

use self::scope::{Instances, Key, Owner, Place, Scope, State, Stop, Undo};
use self::wait::Channel;
pub(crate) use self::wait::wait_time;
use crate::evaluation::ValuePlace;
use crate::event::FlowEvent;
use crate::names::{Known, Names, Shared, Variable};
use crate::outcome::{RunStatus, StepResult, StepStatus};
use crate::plan::types::{Action, Block, BlockOutput, FailurePolicy, OnError, Plan, Step};
use crate::plan::uses;
use crate::report::StepWait;

/// The maximum number of items of a map.
const MAX_ITEMS: usize = 10_000_000;
/// The maximum number of awaited signals that others see.
const MAX_SHOWN: usize = 1_000;

/// The next action of a driver.
#[derive(Debug)]
pub enum Command {
    /// Runs an attempt of a step, and reports its end.
    Run(Box<Work>),
    /// Stops a step, and reports its end.
    Stop {
        /// The path of the step.
        step: Arc<str>,
    },
    /// A step waits for a signal or an approval.
    Await {
        /// The path of the step.
        step: Arc<str>,
        /// The signal or the question.
        wait: StepWait,
        /// The end of the wait, in milliseconds since 1970.
        until: Option<u64>,
    },
    /// A step waits no longer.
    Answered {
        /// The path of the step.
        step: Arc<str>,
    },
    /// A map began, or an item of it ended. For progress.
    Items {
        /// The path of the map.
        step: Arc<str>,
        /// The items that ended.
        ended: usize,
        /// All items.
        count: usize,
    },
    /// The run has ended.
    End,
}

/// One attempt.
#[derive(Debug)]
pub struct Work {
    /// The path of the step.
    pub step: Arc<str>,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// The fix.
    pub task: Task,
    /// The earliest start, in milliseconds since 1970.
    pub not_before: u64,
    /// The limit of the attempt.
    pub timeout: Option<Duration>,
    /// The priority of the call.
    pub priority: Priority,
}

/// The work of an attempt.
#[derive(Debug)]
pub enum Task {
    /// A call of a tool.
    Call {
        /// The tool.
        tool: Arc<str>,
        /// Its arguments.
        arguments: Arc<Value>,
        /// The arguments that come from expressions, unless they may run as code.
        values: Arc<[ValuePlace]>,
        /// Whether the failure of the program that the tool runs is a failure.
        is_program: bool,
        /// JSON pointers of the parts of its output that the plan uses as data, which must be whole.
        uses: Arc<[String]>,
        /// Its call; none for the usual one.
        settings: Option<Box<AttemptSettings>>,
    },
    /// Nothing but the wait.
    Wait,
}

/// A kind of call.
#[derive(Debug, Default)]
pub struct AttemptSettings {
    /// The workers that make it, in a cluster.
    pub pool: Option<Arc<str>>,
    /// A limit that it shares.
    pub limit: Option<Arc<CallLimit>>,
    /// The longest time without progress.
    pub heartbeat: Option<Duration>,
    pub(crate) cache: Option<Caching>,
}

/// When an earlier output stands for a call.
#[derive(Clone, Debug)]
pub(crate) struct Caching {
    pub(crate) ttl: Duration,
    /// The files that the output depends on.
    pub(crate) files: Vec<String>,
}

/// The end of a run.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The status.
    pub status: RunStatus,
    /// The output of the plan; null unless it succeeded.
    pub output: Arc<Value>,
    /// The reason of the failure or the cancellation.
    pub error: Option<ToolError>,
    /// The parts of the output that a limit truncated.
    pub truncated: Vec<Truncation>,
}

/// A step that ended, for progress.
#[derive(Clone, Debug)]
pub struct StepEnd {
    /// The path of the step.
    pub step: Arc<str>,
    pub(crate) result: Arc<StepResult>,
}

impl StepEnd {
    /// The end of the step.
    pub fn status(&self) -> StepStatus {
        self.result.status
    }
}

/// An event that does not fit the run.
#[derive(Debug, PartialEq, Eq)]
pub struct Unexpected(pub String);

/// One thing to do within the machine.
#[derive(Debug)]
enum Agenda {
    /// Starts what a scope can start.
    Continue(Key),
    /// Ends a step.
    Finish(Place, Arc<StepResult>),
    /// Ends a scope, all of whose steps have ended.
    Close(Key),
    /// Begins the next instance of a map, or ends it.
    NextItem(Place),
    /// Undoes the last step that succeeded, or ends the run.
    NextUndo,
}

/// A run of a plan.
pub struct Machine {
    plan: Arc<Plan>,
    run: RunId,
    /// The version of the format in which the run began.
    format: u8,
    instances: Instances,
    /// The steps that a driver works on, by path.
    working: HashMap<Arc<str>, Place>,
    /// The steps that wait for a signal or an approval.
    waiting: BTreeMap<Channel, VecDeque<Place>>,
    /// Signals that came early.
    signals: BTreeMap<Channel, VecDeque<Value>>,
    early_signals: usize,
    agenda: VecDeque<Agenda>,
    commands: Vec<Command>,
    changes: Vec<StepEnd>,
    /// Steps to undo if the run fails.
    undo: Vec<Undo>,
    /// The end of the run that waits for the undoing.
    ending: Option<Ended>,
    /// Whether an end was requested, and why.
    cancelled: Option<String>,
    ended: Option<Ended>,
    /// The parts of outputs that a limit truncated, with the paths of their steps.
    truncated: Vec<(String, Truncation)>,
    /// The results of the plan's own block.
    root: Option<Arc<Known>>,
    /// The time of the event in work, in milliseconds since 1970.
    now: u64,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine").field("run", &self.run).field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Machine {
    /// A run that starts at a time. Its inputs are those of [`Plan::complete`], and its format that of its
    /// [`FlowEvent::RunStarted`], which is [`FlowEvent::FORMAT`] for a new run.
    pub fn new(plan: &Arc<Plan>, run: RunId, input: Value, now: Timestamp, format: u8) -> Self {
        let mut machine = Self {
            run,
            format,
            instances: Instances::default(),
            working: HashMap::new(),
            waiting: BTreeMap::new(),
            signals: BTreeMap::new(),
            early_signals: 0,
            agenda: VecDeque::new(),
            commands: Vec::new(),
            changes: Vec::new(),
            undo: Vec::new(),
            ending: None,
            cancelled: None,
            ended: None,
            truncated: Vec::new(),
            root: None,
            now: now.as_micros() / 1_000,
            plan: Arc::clone(plan),
        };
        let variables = vec![
            ("input".into(), Shared::new(Arc::new(input))),
            ("run".into(), Shared::new(Arc::new(json!({ "id": run.to_string() })))),
        ];
        let root = machine.open(&plan.body, variables, None, Owner::Run, "".into());
        machine.root = machine.instances.get(root).map(|scope| Arc::clone(&scope.known));
        machine.begin_run_limit(root);
        machine.work();
        machine
    }

    /// The commands since the last call.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    /// The steps that ended since the last call.
    pub fn take_changes(&mut self) -> Vec<StepEnd> {
        std::mem::take(&mut self.changes)
    }

    /// A variant of [`Machine::take_commands`], at the end of a list: neither list is allocated again.
    pub(crate) fn move_commands(&mut self, list: &mut Vec<Command>) {
        list.append(&mut self.commands);
    }

    /// A variant of [`Machine::take_changes`], without a new list.
    pub(crate) fn drain_changes(&mut self) -> std::vec::Drain<'_, StepEnd> {
        self.changes.drain(..)
    }

    /// The end of the run.
    pub fn ended(&self) -> Option<&Ended> {
        self.ended.as_ref()
    }

    /// The results of the plan's own block.
    pub(crate) fn root(&self) -> Option<&Arc<Known>> {
        self.root.as_ref()
    }

    /// Whether a driver works on a step.
    pub(crate) fn is_working(&self, step: &str) -> bool {
        self.working.contains_key(step)
    }

    /// The names of the signals and the paths of the approvals that steps wait for, the first thousand.
    pub fn awaited(&self) -> impl Iterator<Item = &str> {
        self.waiting.keys().take(MAX_SHOWN).map(Channel::name)
    }

    /// Applies an event of a time.
    ///
    /// # Errors
    /// The event is not one of this run now. The run is unchanged.
    pub fn apply(&mut self, event: FlowEvent, at: Timestamp) -> Result<(), Unexpected> {
        self.now = at.as_micros() / 1_000;
        // They change nothing, and may be stored after the end.
        if matches!(event, FlowEvent::StepStarted { .. } | FlowEvent::Resumed { .. }) {
            return Ok(());
        }
        if self.ended.is_some() {
            return Err(Unexpected("the run has ended".to_owned()));
        }
        match event {
            FlowEvent::RunStarted { .. } => return Err(Unexpected("the run has started already".to_owned())),
            FlowEvent::StepStarted { .. } | FlowEvent::Resumed { .. } => {}
            FlowEvent::StepSucceeded { step, .. } if Self::is_limit(&step) => {
                let place = self.worked_on(&step)?;
                self.limit_reached(place);
            }
            FlowEvent::StepCancelled { step } if Self::is_limit(&step) => {
                self.worked_on(&step)?;
            }
            FlowEvent::StepSucceeded { step, output, truncated } => {
                let place = self.worked_on(&step)?;
                self.truncated.extend(truncated.into_iter().map(|part| (step.clone(), part)));
                self.finish(place, StepStatus::Succeeded, Arc::new(output), None);
            }
            FlowEvent::StepFailed { step, error } => {
                let place = self.worked_on(&step)?;
                self.attempt_failed(place, &step, &error);
            }
            FlowEvent::StepCancelled { step } => {
                let place = self.worked_on(&step)?;
                self.finish(place, StepStatus::Cancelled, Arc::default(), None);
            }
            FlowEvent::Signal { name, value } => self.signal(Channel::Signal(name), value)?,
            FlowEvent::Answered { step, answer } => self.answer(&step, answer)?,
            FlowEvent::CancelRequested { reason } => self.cancel(reason),
        }
        self.work();
        Ok(())
    }

    fn worked_on(&mut self, step: &str) -> Result<Place, Unexpected> {
        let place = self.working.remove(step);
        place.ok_or_else(|| Unexpected(format!("the step `{step}` is not running")))
    }

    /// Does what the agenda has, until only the outside can continue.
    fn work(&mut self) {
        while let Some(next) = self.agenda.pop_front() {
            match next {
                Agenda::Continue(key) => self.proceed(key),
                Agenda::Finish(place, result) => self.end_step(place, &result),
                Agenda::Close(key) => self.close(key),
                Agenda::NextItem(place) => self.next_item(place),
                Agenda::NextUndo => self.next_undo(),
            }
        }
    }

    fn open(
        &mut self,
        block: &Arc<Block>,
        variables: Vec<Variable>,
        outer: Option<Arc<Known>>,
        owner: Owner,
        path: Arc<str>,
    ) -> Key {
        let known = Known::new(block, variables, outer);
        let key = self.instances.add(Scope::new(known, owner, path));
        self.agenda.push_back(Agenda::Continue(key));
        key
    }

    fn finish(&mut self, place: Place, status: StepStatus, output: Arc<Value>, error: Option<ToolError>) {
        self.agenda.push_back(Agenda::Finish(place, StepResult::new(status, output, error)));
    }

    /// Starts the ready steps of a scope, as many as its limit allows.
    fn proceed(&mut self, key: Key) {
        loop {
            let Some(scope) = self.instances.get_mut(key) else { return };
            if scope.active >= scope.known.block.max_parallel {
                return;
            }
            let Some(step) = scope.ready.pop_front() else { return };
            scope.active += 1;
            if let Some(state) = scope.states.get_mut(step) {
                *state = State::Begun;
            }
            self.begin(Place { scope: key, step });
        }
    }

    fn names(&self, place: Place) -> Option<Names> {
        let scope = self.instances.get(place.scope)?;
        let names = Names::from_known(&scope.known);
        Some(match self.previous(place) {
            Some(value) => names.with("previous", value),
            None => names,
        })
    }

    /// In a pipeline, the output of the step before.
    fn previous(&self, place: Place) -> Option<Arc<Shared>> {
        let known = &self.instances.get(place.scope)?.known;
        if !known.block.is_pipeline {
            return None;
        }
        let before = place.step.checked_sub(1).and_then(|before| known.results.get(before)?.get());
        Some(before.map_or_else(|| Shared::new(Arc::default()), |result| Arc::clone(&result.output)))
    }

    /// The variables that a block within a step has.
    fn variables(&self, place: Place) -> Vec<Variable> {
        self.previous(place).map(|value| ("previous".into(), value)).into_iter().collect()
    }

    fn step(&self, place: Place) -> Option<(Arc<Block>, Arc<str>)> {
        let scope = self.instances.get(place.scope)?;
        let block = Arc::clone(&scope.known.block);
        let id = &block.steps.get(place.step)?.id;
        Some((Arc::clone(&block), scope.path_of(id)))
    }

    /// Begins a step.
    fn begin(&mut self, place: Place) {
        let (Some((block, path)), Some(names)) = (self.step(place), self.names(place)) else { return };
        let Some(step) = block.steps.get(place.step) else { return };
        match step.when.as_ref().map(|when| when.is_true(&names)) {
            Some(Ok(false)) => return self.finish(place, StepStatus::Skipped, Arc::default(), None),
            Some(Err(reason)) => return self.step_failed(place, ToolError::invalid_input(reason)),
            Some(Ok(true)) | None => {}
        }
        if let Err(error) = self.act(place, step, &path, &names) {
            self.step_failed(place, error);
        }
    }

    fn act(&mut self, place: Place, step: &Step, path: &Arc<str>, names: &Names) -> Result<(), ToolError> {
        let invalid = ToolError::invalid_input;
        let known = self.instances.get(place.scope).map(|scope| Arc::clone(&scope.known));
        match &step.action {
            Action::Tool { .. } => {
                let task = self.task(step, names).map_err(invalid)?;
                self.run(place, step, path, task, 1, Duration::ZERO);
            }
            Action::Wait(template) => {
                let value = template.value(names).map_err(invalid)?;
                let time = wait_time(&value, self.now).map_err(invalid)?;
                self.run(place, step, path, Task::Wait, 1, time);
            }
            Action::Signal(template) => match template.value(names).map_err(invalid)? {
                Value::String(signal) if !signal.is_empty() => {
                    let channel = Channel::Signal(signal.clone());
                    self.wait_for(place, step, path, channel, StepWait::Signal(signal));
                }
                other => return Err(invalid(format!("the name of a signal is a text, not `{other}`"))),
            },
            Action::Approve(template) => {
                let question = match template.value(names).map_err(invalid)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                self.wait_for(place, step, path, self.approval(path), StepWait::Approval(question));
            }
            Action::Group(body) => {
                let variables = self.variables(place);
                let key = self.open(body, variables, known, Owner::Group(place), Arc::clone(path));
                self.set(place, State::Inside(key));
            }
            Action::Map { list, .. } => {
                let items = match list.value(names).map_err(invalid)? {
                    Value::Array(items) if items.len() <= MAX_ITEMS => items,
                    Value::Array(items) => {
                        return Err(ToolError::limit(format!(
                            "the list has {} items; a map takes {MAX_ITEMS}",
                            items.len()
                        )));
                    }
                    other => return Err(invalid(format!("`map` needs a list, not {}", short(&other)))),
                };
                self.set(place, State::Map(Box::new(scope::MapState::new(items))));
                self.agenda.push_back(Agenda::NextItem(place));
            }
            Action::Loop { body, .. } => {
                self.iterate(place, body, path, known, 0, Shared::new(Arc::default()));
            }
            Action::Flow { plan, input } => {
                let input = plan.complete(input.value(names).map_err(invalid)?)?;
                let run = known.as_ref().and_then(|known| known.variable("run"));
                let mut variables = vec![("input".into(), Shared::new(Arc::new(input)))];
                variables.extend(run.map(|run| ("run".into(), run)));
                let key = self.open(&plan.body, variables, None, Owner::Group(place), Arc::clone(path));
                self.set(place, State::Inside(key));
            }
        }
        self.begin_limit(place, step, path);
        Ok(())
    }

    fn run(&mut self, place: Place, step: &Step, path: &Arc<str>, task: Task, attempt: u32, delay: Duration) {
        self.working.insert(Arc::clone(path), place);
        self.set(place, State::Working { attempt });
        self.commands.push(Command::Run(Box::new(Work {
            step: Arc::clone(path),
            attempt,
            task,
            not_before: self.after(delay),
            timeout: step.timeout,
            priority: step.priority,
        })));
    }

    /// The time after a delay, in milliseconds since 1970.
    fn after(&self, delay: Duration) -> u64 {
        self.now.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
    }

    fn set(&mut self, place: Place, state: State) {
        if let Some(scope) = self.instances.get_mut(place.scope)
            && let Some(own) = scope.states.get_mut(place.step)
        {
            *own = state;
        }
    }

    /// The end of a failed attempt: another attempt, or the step's failure.
    fn attempt_failed(&mut self, place: Place, path: &str, error: &ToolError) {
        let Some((block, path)) = self.step(place).filter(|(_, own)| **own == *path) else { return };
        let Some(step) = block.steps.get(place.step) else { return };
        let scope = self.instances.get(place.scope);
        let state = scope.and_then(|scope| scope.states.get(place.step));
        let attempt = match state {
            Some(State::Working { attempt }) => *attempt,
            // A wait has one attempt.
            _ => {
                self.forget_wait(place);
                return self.step_failed(place, error.clone());
            }
        };
        let is_stopping = scope.is_some_and(|scope| scope.stopping.is_some());
        let key = format!("{} {path}", self.run);
        match step.retry.delay(error, attempt, &key) {
            Some(delay) if !is_stopping => {
                let Some(names) = self.names(place) else { return };
                match self.task(step, &names) {
                    Ok(task) => self.run(place, step, &path, task, attempt + 1, delay),
                    Err(reason) => self.step_failed(place, ToolError::invalid_input(reason)),
                }
            }
            _ => self.step_failed(place, error.clone()),
        }
    }

    /// The final failure of a step: its handler, or its end.
    fn step_failed(&mut self, place: Place, error: ToolError) {
        let Some((block, path)) = self.step(place) else { return };
        let Some(step) = block.steps.get(place.step) else { return };
        let scope = self.instances.get(place.scope);
        let known = scope.map(|scope| Arc::clone(&scope.known));
        let is_stopping = scope.is_some_and(|scope| scope.stopping.is_some());
        let is_handling = scope
            .and_then(|scope| scope.states.get(place.step))
            .is_some_and(|state| matches!(state, State::Handling { .. }));
        if let (OnError::Handle(handler), false, false) = (&step.on_error, is_stopping, is_handling) {
            let value = json!({ "code": error.code().as_str(), "message": error.message() });
            let mut variables = self.variables(place);
            variables.push(("error".into(), Shared::new(Arc::new(value))));
            let path = format!("{path}:error").into();
            let key = self.open(handler, variables, known, Owner::Handler(place), path);
            self.set(place, State::Handling { scope: key });
            return;
        }
        self.finish(place, StepStatus::Failed, Arc::default(), Some(error));
    }

    /// Ends a step: counts it, frees what waits for it, and applies the failure policy.
    fn end_step(&mut self, place: Place, result: &Arc<StepResult>) {
        let Some((block, path)) = self.step(place) else { return };
        let Some(step) = block.steps.get(place.step) else { return };
        self.forget_wait(place);
        self.end_limit(step, &path);
        let mut variables = if step.undo.is_some() { self.variables(place) } else { Vec::new() };
        let is_undoing = self.ending.is_some();
        let Some(scope) = self.instances.get_mut(place.scope) else { return };
        if scope.known.results.get(place.step).is_none_or(|slot| slot.set(Arc::clone(result)).is_err()) {
            return;
        }
        let was_active = scope.states.get(place.step).is_some_and(|state| !matches!(state, State::Pending));
        if let Some(state) = scope.states.get_mut(place.step) {
            *state = State::Ended;
        }
        if was_active {
            scope.active = scope.active.saturating_sub(1);
        }
        scope.open = scope.open.saturating_sub(1);
        let is_tolerated = matches!(step.on_error, OnError::Continue);
        let is_hard_failure = result.status == StepStatus::Failed && !is_tolerated;
        match result.status {
            StepStatus::Succeeded => {
                scope.succeeded += 1;
                scope.first.get_or_insert(place.step);
                // What undoes is not undone.
                if let Some(undo) = step.undo.as_ref().filter(|_| !is_undoing) {
                    variables.push(("output".into(), Arc::clone(&result.output)));
                    self.undo.push(Undo {
                        block: Arc::clone(undo),
                        known: Arc::clone(&scope.known),
                        variables,
                        path: format!("{path}:undo").into(),
                    });
                }
            }
            StepStatus::Failed if is_hard_failure => {
                scope.failed += 1;
                if scope.error.is_none() {
                    scope.error = result.error.as_ref().map(|error| at_step(&path, error));
                }
            }
            _ => {}
        }
        let passes_failure = is_hard_failure || result.status == StepStatus::Blocked;
        let mut blocked = Vec::new();
        for next in &step.needed_by {
            let Some(missing) = scope.missing.get_mut(*next) else { continue };
            *missing = missing.saturating_sub(1);
            let is_pending = scope.states.get(*next).is_some_and(|state| matches!(state, State::Pending));
            if let (true, Some(flag)) = (passes_failure, scope.blocked.get_mut(*next)) {
                *flag = true;
            }
            if *missing > 0 || !is_pending || scope.stopping.is_some() {
                continue;
            }
            if scope.blocked.get(*next) == Some(&true) {
                blocked.push(*next);
            } else {
                scope.make_ready(*next);
            }
        }
        let (open, succeeded, failure) = (scope.open, scope.succeeded, block.failure);
        let is_first_failure = is_hard_failure && scope.stopping.is_none();
        let quorum_is_lost = |count: usize| succeeded + open < count;
        let is_over = match failure {
            FailurePolicy::FailFast => is_first_failure,
            FailurePolicy::Quorum(count) => {
                scope.stopping.is_none() && (succeeded >= count || quorum_is_lost(count)) && open > 0
            }
            FailurePolicy::Continue => false,
        };
        self.changes.push(StepEnd { step: path, result: Arc::clone(result) });
        for step in blocked {
            let place = Place { step, ..place };
            self.finish(place, StepStatus::Blocked, Arc::default(), None);
        }
        if is_over {
            self.stop(place.scope, Stop::Own);
        }
        let next = if open == 0 { Agenda::Close(place.scope) } else { Agenda::Continue(place.scope) };
        self.agenda.push_back(next);
    }

    /// Stops a scope: what has not started never does, and what runs is asked to end.
    fn stop(&mut self, key: Key, reason: Stop) {
        let mut keys = vec![(key, reason)];
        while let Some((key, reason)) = keys.pop() {
            let Some(scope) = self.instances.get_mut(key) else { continue };
            if scope.stopping.is_some() {
                continue;
            }
            scope.stopping = Some(reason);
            scope.ready.clear();
            let block = Arc::clone(&scope.known.block);
            for (step, state) in scope.states.iter().enumerate() {
                let place = Place { scope: key, step };
                match state {
                    State::Pending => {
                        let result = StepResult::new(StepStatus::Cancelled, Arc::default(), None);
                        self.agenda.push_back(Agenda::Finish(place, result));
                    }
                    State::Working { .. } | State::Waiting { .. } => {
                        if let Some(step) = block.steps.get(step) {
                            self.commands.push(Command::Stop { step: scope.path_of(&step.id) });
                        }
                    }
                    State::Inside(inner) | State::Handling { scope: inner } => {
                        keys.push((*inner, Stop::Outside));
                    }
                    State::Map(map) => keys.extend(map.running.iter().map(|key| (*key, Stop::Outside))),
                    // Its end is on the agenda.
                    State::Begun | State::Ended => {}
                }
            }
        }
    }

    fn cancel(&mut self, reason: String) {
        if self.cancelled.is_none() {
            self.cancelled = Some(reason);
            if let Some(root) = self.instances.root() {
                self.stop(root, Stop::Outside);
            }
        }
    }

    /// The result of a scope whose steps have all ended.
    fn result(scope: &Scope) -> Result<Arc<Value>, ToolError> {
        let block = &scope.known.block;
        let is_enough = match block.failure {
            FailurePolicy::FailFast | FailurePolicy::Continue => scope.failed == 0,
            FailurePolicy::Quorum(count) => scope.succeeded >= count,
        } && !scope.is_late;
        if !is_enough {
            let error = scope.error.clone().unwrap_or_else(|| ToolError::dependency("no step succeeded"));
            return Err(match (block.failure, scope.failed) {
                (FailurePolicy::Quorum(count), _) => {
                    error.with("quorum", format!("{} of {count}", scope.succeeded))
                }
                (_, 0 | 1) => error,
                (_, failed) => error.with("failed_steps", failed),
            });
        }
        let output = |step: usize| {
            let result = scope.known.results.get(step).and_then(|slot| slot.get());
            result.map(|result| Arc::clone(&result.output.json)).unwrap_or_default()
        };
        match &block.output {
            BlockOutput::Last => Ok(output(block.steps.len() - 1)),
            BlockOutput::First => Ok(scope.first.map(output).unwrap_or_default()),
            BlockOutput::All => {
                let all = block.steps.iter().enumerate();
                let all = all.map(|(index, step)| (step.id.to_string(), Value::clone(&output(index))));
                Ok(Arc::new(Value::Object(all.collect())))
            }
            BlockOutput::Template(template) => template
                .shared(&Names::from_known(&scope.known))
                .map_err(|reason| ToolError::invalid_input(format!("`output`: {reason}"))),
        }
    }

    /// Ends a scope, and tells its owner.
    fn close(&mut self, key: Key) {
        let Some(scope) = self.instances.remove(key) else { return };
        let is_cancelled = scope.stopping == Some(Stop::Outside)
            && scope.error.is_none()
            && !matches!(scope.known.block.failure, FailurePolicy::Quorum(count) if scope.succeeded >= count);
        let result = if is_cancelled { Err(None) } else { Self::result(&scope).map_err(Some) };
        match scope.owner {
            Owner::Run => self.root_closed(result),
            Owner::Group(place) => match result {
                Ok(output) => self.group_closed(place, &scope, output),
                Err(Some(error)) => self.step_failed(place, error),
                Err(None) => self.finish(place, StepStatus::Cancelled, Arc::default(), None),
            },
            Owner::Handler(place) => match result {
                Ok(output) => self.finish(place, StepStatus::Succeeded, output, None),
                Err(Some(error)) => self.finish(place, StepStatus::Failed, Arc::default(), Some(error)),
                Err(None) => self.finish(place, StepStatus::Cancelled, Arc::default(), None),
            },
            Owner::Item { place, index } => self.item_closed(place, key, index, result),
            Owner::Undo => {
                if let (Err(Some(error)), Some(ending)) = (result, &mut self.ending) {
                    let text = format!("compensation failed: {error}");
                    ending.error = ending.error.take().map(|own| own.with("compensation", text));
                }
                self.agenda.push_back(Agenda::NextUndo);
            }
        }
    }

    /// The end of a group's or a sub-flow's instance, or of one iteration of a loop.
    fn group_closed(&mut self, place: Place, scope: &Scope, output: Arc<Value>) {
        let Some((block, path)) = self.step(place) else { return };
        let Some(step) = block.steps.get(place.step) else { return };
        let Action::Loop { until, max, body } = &step.action else {
            return self.finish(place, StepStatus::Succeeded, output, None);
        };
        let index = scope.known.variable("index").and_then(|index| index.json.as_u64()).unwrap_or_default();
        let done = until.as_ref().map(|until| until.is_true(&Names::from_known(&scope.known)));
        let is_last = index + 1 >= u64::from(*max);
        match done {
            Some(Err(reason)) => {
                self.step_failed(place, ToolError::invalid_input(format!("`until`: {reason}")));
            }
            Some(Ok(true)) => self.finish(place, StepStatus::Succeeded, output, None),
            None if is_last => self.finish(place, StepStatus::Succeeded, output, None),
            Some(Ok(false)) if is_last => {
                let message = format!("`until` was false after {max} iterations");
                self.step_failed(place, ToolError::limit(message));
            }
            _ => {
                let known = self.instances.get(place.scope).map(|scope| Arc::clone(&scope.known));
                let is_stopping =
                    self.instances.get(place.scope).is_none_or(|scope| scope.stopping.is_some());
                if is_stopping {
                    return self.finish(place, StepStatus::Cancelled, Arc::default(), None);
                }
                self.iterate(place, body, &path, known, index + 1, Shared::new(output));
            }
        }
    }

    fn iterate(
        &mut self,
        place: Place,
        body: &Arc<Block>,
        path: &Arc<str>,
        known: Option<Arc<Known>>,
        index: u64,
        previous: Arc<Shared>,
    ) {
        let variables =
            vec![("index".into(), Shared::new(Arc::new(index.into()))), ("previous".into(), previous)];
        let path = format!("{path}[{index}]").into();
        let key = self.open(body, variables, known, Owner::Group(place), path);
        self.set(place, State::Inside(key));
    }

    /// The end of the plan's own block.
    fn root_closed(&mut self, result: Result<Arc<Value>, Option<ToolError>>) {
        let ended = match (result, &self.cancelled) {
            (_, Some(reason)) => Ended {
                status: RunStatus::Cancelled,
                output: Arc::default(),
                error: Some(ToolError::cancelled(reason.clone())),
                truncated: Vec::new(),
            },
            (Ok(output), None) => {
                let truncated = self.truncated_output();
                Ended { status: RunStatus::Succeeded, output, error: None, truncated }
            }
            (Err(error), None) => {
                Ended { status: RunStatus::Failed, output: Arc::default(), error, truncated: Vec::new() }
            }
        };
        if ended.status == RunStatus::Succeeded {
            self.undo.clear();
        }
        self.ending = Some(ended);
        self.agenda.push_back(Agenda::NextUndo);
    }

    /// The truncated parts of the output of the plan.
    fn truncated_output(&mut self) -> Vec<Truncation> {
        let parts = std::mem::take(&mut self.truncated).into_iter();
        let given = parts.filter(|(path, _)| uses::is_given(&self.plan.body, path));
        given
            .map(|(path, mut part)| {
                // Within a block, the output is that of more steps.
                if path.contains(['.', '[', ':']) {
                    part.pointer.clear();
                }
                part
            })
            .collect()
    }

    fn next_undo(&mut self) {
        match self.undo.pop() {
            Some(Undo { block, known, variables, path }) => {
                self.open(&block, variables, Some(known), Owner::Undo, path);
            }
            None => {
                if let Some(ended) = self.ending.take() {
                    self.ended = Some(ended);
                    self.commands.push(Command::End);
                }
            }
        }
    }
}

/// The error of a step, for the block around it.
fn at_step(path: &str, error: &ToolError) -> ToolError {
    if error.context().contains_key("step") { error.clone() } else { error.clone().with("step", path) }
}

/// A value for a message.
fn short(value: &Value) -> String {
    const MAX: usize = 60;
    let text = value.to_string();
    if text.chars().count() > MAX {
        format!("`{}…`", text.chars().take(MAX).collect::<String>())
    } else {
        format!("`{text}`")
    }
}
