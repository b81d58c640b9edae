//! One run of an agent: the loop.
//!
//! [`Running::work`] is the whole of it, top to bottom; each stage that needs more than a few lines is a module here.

mod answer;
mod ask;
mod budget;
mod calls;
mod choice;
mod guard;
mod hosted_code;
mod hosted_tools;
mod intent;
mod judge;
mod notices;
mod outcome;
mod pause;
mod repetition;
mod setup;
mod shorten;
mod wrap_up;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolpost_core::{
    CallId, CallOptions, Caller, Cancellation, Clock, Event, Port, RunId, RunRecord, Scope, SystemClock,
    Values,
};
use toolpost_llm::{CodeExecutionMeter, ErrorKind, Model, ModelError, Request, Turn};
use toolpost_toolbox::ToolSession;

pub(crate) use self::answer::AnswerForm;
pub use self::answer::{Answer, NoAnswer};
pub(crate) use self::budget::Spent;
use self::budget::{Budget, sleep_until};
use self::calls::Made;
pub use self::intent::ToolIntent;
use self::judge::Next;
use self::notices::Notices;
pub use self::outcome::{CallPayload, Outcome};
use self::pause::Resumed;
pub use self::pause::{Decision, ResumeError, RunState, WaitingCall};
use self::repetition::{Verdict, Watch};
pub use self::wrap_up::WrapUp;
use crate::agent::Parts;
use crate::dynamic::Offer;
use crate::family::{Family, Listeners};
use crate::memory::{Ended, Keeper};
use crate::port::ModelPort;
use crate::{Agent, CallingModel, StopReason};

/// One run, before it has begun: who it is for and how it is stopped.
#[must_use = "a run does nothing until `finish`"]
pub struct Run {
    agent: Agent,
    id: RunId,
    turns: Vec<Turn>,
    caller: Caller,
    scope: Scope,
    port: Arc<dyn Port>,
    values: Values,
    cancellation: Cancellation,
    options: CallOptions,
    parent: Option<(CallId, u8)>,
    notices: Notices,
    tool_session: Option<ToolSession>,
    usage_metadata: Map<String, Value>,
    keeper: Keeper,
    carry: Carry,
    /// The time that the provider's code was billed for before, where no conversation is kept that knows it.
    code_meter: CodeExecutionMeter,
    answer: Option<AnswerForm>,
    pauses: bool,
    tools: Option<BTreeSet<String>>,
    until: Until,
    resumed: Option<Box<Resumed>>,
    outer: Option<Arc<Family>>,
    team: Arc<[String]>,
    /// The records of those who had the conversation before.
    earlier: Vec<Arc<RunRecord>>,
    deadline: Option<Instant>,
}

/// What the next requests of a conversation carry to providers beyond its turns, by the provider's name: the id of the
/// container that its code ran in, for one.
type Carry = BTreeMap<String, Map<String, Value>>;

/// How far a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// To an answer.
    Answer,
    /// To the first calls, which are not made.
    Intent,
    /// Until the calls that wait are made.
    Calls,
}

/// How what the model is told begins that neither its user nor a tool has said.
const FROM_THE_PROGRAM: &str = "[This is from the program that runs you, not from the user.]";

/// The runtime's time, so that a test can stop it.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Run {
    /// Runs until there is an answer or a limit. To stop it, use its cancellation: then the record is whole.
    pub async fn finish(self) -> Outcome {
        let agent = self.agent.clone();
        let begun = now();
        let mut running = self.begin(&agent.0, begun);
        let ended = match running.claim().await {
            Ok(()) => running.work().await,
            Err(stop) => Err(stop.into()),
        };
        let Interrupted { stop, error } = ended.map_or_else(|interrupted| interrupted, Interrupted::from);
        running.wrap_up(&stop).await;
        running.close(begun, stop, error).await
    }

    /// All that a run has while it runs, on the heap: a hundred runs are a hundred futures, which stay small.
    fn begin(mut self, parts: &Parts, begun: Instant) -> Box<Running<'_>> {
        let parent = self.outer.as_ref().and_then(|outer| outer.run);
        self.keeper.begin(self.id, parent, &*parts.model, &self.turns);
        let model = self.keeper.listen(&parts.model);
        let mut carry = self.keeper.carry();
        carry.extend(self.carry);
        let left_out = hosted_code::left_out(&carry, &self.turns);
        hosted_code::gather(&mut carry, &self.turns);
        let code_meter = Some(self.code_meter).filter(|meter| !meter.is_empty());
        let code_meter = code_meter.unwrap_or_else(|| self.keeper.code_meter());
        let outer = self.outer.take();
        let mut family = Family::new(&parts.limits, outer);
        family.run = Some(self.id);
        if parts.events.is_some() || parts.on_usage.is_some() {
            let own = family.listeners.and(parts.events.as_ref(), parts.on_usage.as_ref());
            family.listeners = Arc::new(own);
        }
        family.usage_metadata.clone_from(&self.usage_metadata);
        let family =
            Arc::new(family.with(self.values.clone(), self.keeper.runs.clone(), Arc::clone(&self.team)));
        self.earlier.into_iter().for_each(|record| family.adopt(record));
        self.values.provide(Arc::clone(&family));
        self.values.provide(CallingModel(Arc::clone(&parts.model)));
        let listeners = Arc::clone(&family.listeners);
        let mut record = RunRecord::begin(self.id, parts.model.id().to_string(), SystemClock.timestamp());
        record.parent = parent;
        let port_of = |model: Arc<dyn Model>| {
            let port = ModelPort::new(Arc::clone(&self.port), model).with_pricing(parts.pricing.clone());
            Arc::new(port.within(&family, &parts.limits))
        };
        let finder = parts.offering.finder().map(|model| port_of(self.keeper.listen(model)));
        let port = port_of(Arc::clone(&model));
        let mut running = Box::new(Running {
            parts,
            model,
            keeper: self.keeper,
            said: String::new(),
            carry,
            request: Request {
                system: parts.system.clone(),
                turns: self.turns,
                settings: parts.settings.clone(),
                tool_choice: parts.tool_choice.clone(),
                provider_options: parts.provider_options.clone(),
                betas: parts.betas.clone(),
                metadata: parts.metadata.clone(),
                hosted_tools: parts.hosted_tools.clone(),
                context_edits: parts.context_edits(),
                provider_state: left_out,
                ..Request::default()
            },
            offer: Offer::new(&parts.toolbox, &parts.offering, finder),
            tool_session: self.tool_session,
            port,
            caller: self.caller,
            scope: self.scope,
            values: self.values,
            cancellation: self.cancellation,
            options: self.options,
            parent: self.parent,
            usage_metadata: self.usage_metadata,
            answer: self.answer,
            value: None,
            repairs: 0,
            pauses: self.pauses,
            tools: self.tools,
            until: self.until,
            latest_pause: 0,
            elapsed_before: self.resumed.as_ref().map(|resumed| resumed.elapsed()).unwrap_or_default(),
            resumed: self.resumed,
            waiting: Vec::new(),
            goes_on: false,
            has_said: false,
            payloads: Vec::new(),
            context_tokens: 0,
            code_meter,
            is_summary_lost: false,
            budget: Budget::new(&parts.limits, begun, family, self.deadline),
            watch: Watch::default(),
            notices: self.notices,
            listeners,
            record,
        });
        if let Some(resumed) = running.resumed.take() {
            running.restore(&resumed, begun);
            running.resumed = Some(resumed);
        }
        running
    }
}

/// What ends a run other than the model's last word.
struct Interrupted {
    stop: StopReason,
    error: Option<Box<ModelError>>,
}

impl From<StopReason> for Interrupted {
    fn from(stop: StopReason) -> Self {
        Self { stop, error: None }
    }
}

impl From<ModelError> for Interrupted {
    fn from(error: ModelError) -> Self {
        let stop = match error.kind {
            ErrorKind::Refused => StopReason::Refusal,
            ErrorKind::ContextTooLong => StopReason::ContextWindow,
            _ => StopReason::ModelError,
        };
        Self { stop, error: Some(Box::new(error)) }
    }
}

/// A run while it runs.
struct Running<'a> {
    parts: &'a Parts,
    /// The model, listened to where its exchanges are kept.
    model: Arc<dyn Model>,
    /// What is kept while it runs.
    keeper: Keeper,
    /// What the model has said of the answer that is not whole yet.
    said: String,
    /// What the next requests carry to providers.
    carry: Carry,
    request: Request,
    offer: Offer<'a>,
    /// What the offer begins with.
    tool_session: Option<ToolSession>,
    port: Arc<ModelPort>,
    caller: Caller,
    scope: Scope,
    values: Values,
    cancellation: Cancellation,
    options: CallOptions,
    parent: Option<(CallId, u8)>,
    /// What every event of usage carries.
    usage_metadata: Map<String, Value>,
    /// What the answer must be, the value that it is, and how often the model was told that it is not.
    answer: Option<AnswerForm>,
    value: Option<Value>,
    repairs: u32,
    /// Whether calls that need approval end the run, with a state to go on from.
    pauses: bool,
    /// The tools that may be used, if not all.
    tools: Option<BTreeSet<String>>,
    until: Until,
    /// What the run goes on from, and how long it had worked then.
    resumed: Option<Box<Resumed>>,
    elapsed_before: Duration,
    /// How often it has waited for somebody.
    latest_pause: u32,
    /// The calls of the last answer, if some of them wait for somebody.
    waiting: Vec<WaitingCall>,
    /// Whether the next answer goes on where a pause was made.
    goes_on: bool,
    /// Whether the latest answer has said something, with the pieces that it goes on from.
    has_said: bool,
    payloads: Vec<CallPayload>,
    /// How many tokens the conversation had with the latest answer.
    context_tokens: u64,
    /// Whether a summary came to nothing: it is not asked for again.
    is_summary_lost: bool,
    /// The time that the provider's code is billed for, of the whole conversation.
    code_meter: CodeExecutionMeter,
    budget: Budget,
    watch: Watch,
    notices: Notices,
    /// Who is told of what happens.
    listeners: Arc<Listeners>,
    record: RunRecord,
}

impl Running<'_> {
    /// The loop: ask, judge, call, tell, ask again.
    async fn work(&mut self) -> Result<StopReason, Interrupted> {
        if let Err(interrupted) = self.open().await {
            self.wait_on();
            return Err(interrupted);
        }
        let mut made = match self.resumed.take() {
            Some(resumed) => Box::pin(self.take_up(*resumed)).await,
            None => Made::default(),
        };
        loop {
            if let Some(stop) = self.tell(made) {
                return Err(stop.into());
            }
            if self.budget.family().handoff().is_some() {
                return Ok(StopReason::Handoff);
            }
            self.look_for_repetition()?;
            self.save().await;
            self.budget.admit()?;
            let response = self.ask_within_window().await?;
            let said = self.guard_output(response.text()).await?;
            let wanted = self.keep(&response, &said);
            if !wanted.is_empty() {
                // Tools have effects: what was asked for is known, also if the process dies while they run.
                self.save().await;
            }
            made = match self.judge(&response, wanted) {
                Next::Answer(stop) => match self.accept(stop) {
                    Some(stop) => return Ok(stop),
                    None => Made::default(),
                },
                Next::GoOn => Made::default(),
                Next::Refuse(wanted, stop) => calls::refuse(&wanted, stop),
                Next::Call(wanted) => self.call_tools(wanted).await,
            };
        }
    }

    /// Tells the model when it repeats itself, and ends the run when it goes on.
    fn look_for_repetition(&mut self) -> Result<(), StopReason> {
        let threshold = self.parts.limits.repetition;
        if threshold == 0 {
            return Ok(());
        }
        match self.watch.judge(threshold) {
            Verdict::Fine => {}
            Verdict::Stop(stop) => return Err(stop),
            Verdict::Warn(warning) => {
                self.note(&format!("the model repeats itself: {warning}"));
                // What is paused must be sent back as it is.
                if !matches!(self.request.turns.last(), Some(Turn::Assistant(_))) {
                    self.request.turns.push(Turn::user(format!("{FROM_THE_PROGRAM} {warning}")));
                }
            }
        }
        Ok(())
    }

    /// The record and what else is handed over.
    async fn close(
        mut self: Box<Self>,
        begun: Instant,
        stop: StopReason,
        error: Option<Box<ModelError>>,
    ) -> Outcome {
        let state = self.state(begun).map(Box::new);
        self.finish_record(begun, &stop, error.as_deref());
        let ended = Ended {
            record: &self.record,
            turns: &self.request.turns,
            open: state.as_deref().map(RunState::results).unwrap_or_default(),
            carry: &self.carry,
            code_meter: &self.code_meter,
            session: self.offer.session(),
        };
        if let Some(notice) = self.keeper.finish(&ended).await {
            self.notices.add(notices::shortened(&notice));
        }
        let Self {
            listeners,
            value,
            mut record,
            request,
            offer,
            payloads,
            notices,
            budget,
            carry,
            code_meter,
            ..
        } = *self;
        record.notices = notices.into_vec();
        let record = Arc::new(record);
        let finished = Event::RunFinished { record: Arc::clone(&record) };
        listeners.events.iter().for_each(|sink| sink(&finished));
        Outcome {
            stop,
            record,
            turns: request.turns,
            error: error.map(|error| *error),
            tool_session: offer.into_session(),
            carry,
            code_meter,
            payloads,
            value,
            state: state.map(|state| *state),
            handoff: budget.family().handoff(),
        }
    }

    /// Writes into the record how it ended and what it took.
    fn finish_record(&mut self, begun: Instant, stop: &StopReason, error: Option<&ModelError>) {
        let execution_time = self.elapsed(begun);
        let family = self.budget.family();
        let spent = family.spent();
        let record = &mut self.record;
        record.children = family.take_children();
        record.usage = spent.usage;
        record.cost_usd = spent.cost_usd;
        record.success = stop.is_answer();
        stop.as_str().clone_into(&mut record.stop_reason);
        record.set_duration(execution_time);
        record.error = error
            .map(|error| json!({ "kind": error.kind.as_str(), "message": error.to_string(), "hint": error.hint() }));
        if let StopReason::Guardrail(reason) | StopReason::NotClaimed(reason) = stop {
            record.error = Some(json!({ "kind": stop.as_str(), "message": reason }));
        }
        record.notices = self.notices.as_slice().to_vec();
    }

    /// Keeps what is new of the conversation, where it is kept.
    async fn save(&mut self) {
        let spent = self.budget.family().spent();
        if let Some(notice) = self.keeper.save(&self.request.turns, &self.record, &spent).await {
            self.note(&notice);
        }
    }

    /// Passes a notice on, and keeps it for the record.
    fn note(&mut self, message: &str) {
        let message = notices::shortened(message);
        self.emit(|_| Event::Notice { message: message.clone() });
        self.notices.add(message);
    }

    fn emit(&self, event: impl FnOnce(&Self) -> Event) {
        if !self.listeners.events.is_empty() {
            let event = event(self);
            self.listeners.events.iter().for_each(|sink| sink(&event));
        }
    }
}
