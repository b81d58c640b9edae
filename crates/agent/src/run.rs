//! One run of an agent: the loop.
//!
//! [`Running::work`] is the whole of it, top to bottom; each stage that needs more than a few lines is a module here.

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
mod output;
mod pause;
mod repetition;
mod setup;
mod shorten;
mod stream;
mod typed;
mod wrap_up;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolpost_core::{
    CallId, CallOptions, Caller, Cancellation, Clock, Event, EventSink, Port, RunId, RunRecord, Scope,
    SystemClock, Values,
};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{CodeExecutionMeter, ErrorKind, Model, ModelError, Request, Turn};

use self::budget::{Budget, sleep_until};
use self::calls::Made;
pub use self::intent::ToolIntent;
use self::judge::Next;
use self::notices::Notices;
pub use self::output::{CallPayload, RunError, RunOutput, TypedOutput};
use self::pause::Resumed;
pub use self::pause::{Decision, PendingCall, ResumeError, RunState};
use self::repetition::{Verdict, Watch};
pub use self::stream::RunStream;
use crate::answer_schema::AnswerSchema;
use crate::config::AgentConfig;
use crate::dynamic::Offer;
use crate::listeners::Listeners;
use crate::memory::{Ended, Keeper};
use crate::port::{CallingModel, ModelPort};
use crate::run_context::RunContext;
use crate::{Agent, RunStopReason};

/// One run of an agent. Awaiting it runs the agent and yields a [`RunOutput`] or a [`RunError`].
///
/// [`Agent::run`], [`Agent::run_turns`], [`Agent::resume`] and [`Conversation::run`](crate::Conversation::run) start
/// one.
#[must_use = "a run does nothing until it is awaited"]
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
    carry: ProviderState,
    /// Billed code execution time of earlier runs, if no stored conversation has it.
    code_meter: CodeExecutionMeter,
    answer: Option<AnswerSchema>,
    pauses: bool,
    tools: Option<BTreeSet<String>>,
    until: Until,
    resumed: Option<Box<Resumed>>,
    outer: Option<Arc<RunContext>>,
    team: Arc<[String]>,
    /// The records of earlier team members.
    earlier: Vec<Arc<RunRecord>>,
    deadline: Option<Instant>,
    /// The sink of the stream.
    events: Option<EventSink>,
}

/// Provider state beyond the turns of a conversation, by provider name, such as the id of a code container.
type ProviderState = BTreeMap<String, Map<String, Value>>;

/// Where a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// At an answer.
    Answer,
    /// Before the first tool calls.
    Intent,
    /// After the pending calls.
    Calls,
}

/// The prefix of messages to the model that are from neither the user nor a tool.
const FROM_THE_PROGRAM: &str = "[This is from the program that runs you, not from the user.]";

/// The time of the runtime, which a test can pause.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Run {
    /// Runs to the end and returns the output for every stop reason. Awaiting the run is the same with a `Result`.
    ///
    /// To stop it, use its cancellation instead of dropping it: then the record is complete.
    pub async fn finish(self) -> RunOutput {
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

    /// Moves the state of the run to the heap, which keeps its future small.
    fn begin(mut self, config: &AgentConfig, begun: Instant) -> Box<Running<'_>> {
        let parent = self.outer.as_ref().and_then(|outer| outer.run);
        self.keeper.begin(self.id, parent, &*config.model, &self.turns);
        let model = self.keeper.listen(&config.model);
        let mut carry = self.keeper.carry();
        carry.extend(self.carry);
        let left_out = hosted_code::left_out(&carry, &self.turns);
        hosted_code::gather(&mut carry, &self.turns);
        let code_meter = Some(self.code_meter).filter(|meter| !meter.is_empty());
        let code_meter = code_meter.unwrap_or_else(|| self.keeper.code_meter());
        let outer = self.outer.take();
        let mut context = RunContext::new(&config.limits, outer);
        context.run = Some(self.id);
        if config.events.is_some() || config.on_usage.is_some() || self.events.is_some() {
            let listeners = Arc::make_mut(&mut context.listeners);
            listeners.add(config.events.as_ref(), config.on_usage.as_ref(), self.events.as_ref());
        }
        context.usage_metadata.clone_from(&self.usage_metadata);
        let context = Arc::new(context.with_shared(
            self.values.clone(),
            self.keeper.runs.clone(),
            Arc::clone(&self.team),
        ));
        self.earlier.into_iter().for_each(|record| context.adopt(record));
        self.values.provide(Arc::clone(&context));
        self.values.provide(CallingModel(Arc::clone(&config.model)));
        let listeners = Arc::clone(&context.listeners);
        let mut record = RunRecord::begin(self.id, config.model.id().to_string(), SystemClock.timestamp());
        record.parent = parent;
        let port_of = |model: Arc<dyn Model>| {
            let port = ModelPort::new(Arc::clone(&self.port), model).with_pricing(config.pricing.clone());
            Arc::new(port.within(&context, &config.limits))
        };
        let finder = config.offering.finder().map(|model| port_of(self.keeper.listen(model)));
        let port = port_of(Arc::clone(&model));
        let mut running = Box::new(Running {
            config,
            model,
            keeper: self.keeper,
            said: String::new(),
            carry,
            request: Request {
                system: config.system.clone(),
                turns: self.turns,
                settings: config.settings.clone(),
                tool_choice: config.tool_choice.clone(),
                provider_options: config.provider_options.clone(),
                betas: config.betas.clone(),
                metadata: config.metadata.clone(),
                hosted_tools: config.hosted_tools.clone(),
                context_edits: config.context_edits(),
                provider_state: left_out,
                ..Request::default()
            },
            offer: Offer::new(&config.toolbox, &config.offering, finder),
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
            budget: Budget::new(&config.limits, begun, context, self.deadline),
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
    stop: RunStopReason,
    error: Option<Box<ModelError>>,
}

impl From<RunStopReason> for Interrupted {
    fn from(stop: RunStopReason) -> Self {
        Self { stop, error: None }
    }
}

impl From<ModelError> for Interrupted {
    fn from(error: ModelError) -> Self {
        let stop = match error.kind {
            ErrorKind::Refused => RunStopReason::Refusal,
            ErrorKind::ContextTooLong => RunStopReason::ContextWindow,
            _ => RunStopReason::ModelError,
        };
        Self { stop, error: Some(Box::new(error)) }
    }
}

/// A run while it runs.
struct Running<'a> {
    config: &'a AgentConfig,
    /// The model, listened to where its exchanges are kept.
    model: Arc<dyn Model>,
    /// What is kept while it runs.
    keeper: Keeper,
    /// What the model has said of the answer that is not whole yet.
    said: String,
    /// What the next requests carry to providers.
    carry: ProviderState,
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
    answer: Option<AnswerSchema>,
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
    waiting: Vec<PendingCall>,
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
    async fn work(&mut self) -> Result<RunStopReason, Interrupted> {
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
            if self.budget.context().handoff().is_some() {
                return Ok(RunStopReason::Handoff);
            }
            self.look_for_repetition()?;
            self.save().await;
            self.budget.admit()?;
            let response = self.ask_within_window().await?;
            let said = self.guard_output(response.text()).await?;
            let wanted = self.keep(&response, &said);
            if !wanted.is_empty() {
                // Tools have effects: the request is stored even if the process dies while they run.
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
    fn look_for_repetition(&mut self) -> Result<(), RunStopReason> {
        let threshold = self.config.limits.repetition;
        if threshold == 0 {
            return Ok(());
        }
        match self.watch.judge(threshold) {
            Verdict::Fine => {}
            Verdict::Stop(stop) => return Err(stop),
            Verdict::Warn(warning) => {
                self.note(&format!("detected loop: {warning}"));
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
        stop: RunStopReason,
        error: Option<Box<ModelError>>,
    ) -> RunOutput {
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
        RunOutput {
            stop,
            record,
            turns: request.turns,
            error: error.map(|error| *error),
            tool_session: offer.into_session(),
            provider_state: carry,
            code_meter,
            payloads,
            value,
            state: state.map(|state| *state),
            handoff: budget.context().handoff(),
        }
    }

    /// Writes into the record how it ended and what it took.
    fn finish_record(&mut self, begun: Instant, stop: &RunStopReason, error: Option<&ModelError>) {
        let execution_time = self.elapsed(begun);
        let context = self.budget.context();
        let spent = context.spent();
        let record = &mut self.record;
        record.children = context.take_children();
        record.usage = spent.usage;
        record.cost_usd = spent.cost_usd;
        record.success = stop.is_answer();
        stop.as_str().clone_into(&mut record.stop_reason);
        record.set_duration(execution_time);
        record.error = error
            .map(|error| json!({ "kind": error.kind.as_str(), "message": error.to_string(), "hint": error.hint() }));
        if let RunStopReason::Guardrail(reason) | RunStopReason::NotClaimed(reason) = stop {
            record.error = Some(json!({ "kind": stop.as_str(), "message": reason }));
        }
        record.notices = self.notices.as_slice().to_vec();
    }

    /// Keeps what is new of the conversation, where it is kept.
    async fn save(&mut self) {
        let spent = self.budget.context().spent();
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
