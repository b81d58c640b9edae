//! One run of an agent: the loop.
//!
//! [`Running::work`] is the whole loop, top to bottom; each longer stage is a module here.

mod ask;
mod budget;
mod calls;
mod compact;
mod guardrails;
mod hosted_code;
mod hosted_tools;
mod intent;
mod notices;
mod output;
mod repetition;
mod resume;
mod setup;
mod stream;
mod tool_choice;
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
use toolpost_llm::{
    CodeExecutionMeter, ErrorKind, Model, ModelError, Request, Response, StopReason as ModelStop, Turn,
};

use self::budget::{Budget, sleep_until};
use self::calls::CallResults;
pub use self::intent::ToolIntent;
use self::notices::Notices;
pub use self::output::{CallPayload, RunError, RunOutput, TypedOutput};
use self::repetition::{LoopDetector, Verdict};
use self::resume::Resumed;
pub use self::resume::{Decision, PendingCall, ResumeError, RunState};
pub use self::stream::RunStream;
use crate::answer_schema::AnswerSchema;
use crate::config::AgentConfig;
use crate::dynamic::Offer;
use crate::listeners::Listeners;
use crate::memory::{Ended, Persistence};
use crate::port::{CallingModel, ModelPort};
use crate::results::RequestedCall;
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
    /// The call that the run is nested in, and its depth.
    parent: Option<(CallId, u8)>,
    notices: Notices,
    /// The loaded tools at the start.
    tool_session: Option<ToolSession>,
    /// The metadata of usage events.
    usage_metadata: Map<String, Value>,
    persistence: Persistence,
    provider_state: ProviderState,
    /// Billed code execution time of the whole conversation.
    code_meter: CodeExecutionMeter,
    answer: Option<AnswerSchema>,
    /// The tools that the run may call; `None` for all.
    tools: Option<BTreeSet<String>>,
    until: Until,
    resumed: Option<Box<Resumed>>,
    outer: Option<Arc<RunContext>>,
    /// Whether the record of the outer run has the record of this one.
    is_adopted: bool,
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
        let adopter = self.outer.clone().filter(|_| self.is_adopted);
        let begun = now();
        let mut running = self.begin(&agent.0, begun);
        let ended = match running.claim().await {
            Ok(()) => running.work().await,
            Err(stop) => Err(stop.into()),
        };
        let Interrupted { stop, error } = ended.map_or_else(|interrupted| interrupted, Interrupted::from);
        running.wrap_up(&stop).await;
        let output = running.close(begun, stop, error).await;
        if let Some(adopter) = adopter {
            adopter.adopt(Arc::clone(&output.record));
        }
        output
    }

    /// Moves the state of the run to the heap, which keeps its future small.
    fn begin(mut self, config: &AgentConfig, begun: Instant) -> Box<Running<'_>> {
        let mut record = RunRecord::begin(self.id, config.model.id().to_string(), SystemClock.timestamp());
        record.parent = self.outer.as_ref().and_then(|outer| outer.run);
        let turns = std::mem::take(&mut self.turns);
        self.persistence.begin(&record, &turns);
        let model = self.persistence.recorded(&config.model);
        let mut provider_state = self.persistence.provider_state();
        provider_state.append(&mut self.provider_state);
        self.provider_state = provider_state;
        if self.code_meter.is_empty() {
            self.code_meter = self.persistence.code_meter();
        }
        let mut context = RunContext::new(&config.limits, self.outer.take());
        context.run = Some(self.id);
        if config.events.is_some() || config.on_usage.is_some() || self.events.is_some() {
            let listeners = Arc::make_mut(&mut context.listeners);
            listeners.add(config.events.as_ref(), config.on_usage.as_ref(), self.events.as_ref());
        }
        context.usage_metadata.clone_from(&self.usage_metadata);
        context.values = self.values.clone();
        context.runs.clone_from(&self.persistence.runs);
        context.team = Arc::clone(&self.team);
        let context = Arc::new(context);
        self.earlier.drain(..).for_each(|record| context.adopt(record));
        self.values.provide(Arc::clone(&context));
        self.values.provide(CallingModel(Arc::clone(&config.model)));
        let port_of = |model: Arc<dyn Model>| {
            let port = ModelPort::new(Arc::clone(&self.port), model);
            Arc::new(port.within(&context, &config.limits, config.pricing.clone()))
        };
        let finder = config.offering.finder().map(|model| port_of(self.persistence.recorded(model)));
        let request = Request {
            context_edits: config.context_edits(),
            provider_state: hosted_code::missing(&self.provider_state, &turns),
            ..config.request.clone()
        };
        hosted_code::collect(&mut self.provider_state, &turns);
        let mut running = Box::new(Running {
            config,
            port: port_of(Arc::clone(&model)),
            model,
            partial_text: String::new(),
            request: Request { turns, ..request },
            offer: Offer::new(&config.toolbox, &config.offering, finder),
            value: None,
            repairs: 0,
            latest_pause: 0,
            elapsed_before: self.resumed.as_ref().map(|resumed| resumed.elapsed()).unwrap_or_default(),
            pending: Vec::new(),
            continues_answer: false,
            has_text: false,
            payloads: Vec::new(),
            context_tokens: 0,
            has_summary_failed: false,
            listeners: Arc::clone(&context.listeners),
            budget: Budget::new(&config.limits, begun, context, self.deadline),
            detector: LoopDetector::default(),
            run: self,
            record,
        });
        if let Some(resumed) = running.run.resumed.take() {
            running.restore(&resumed, begun);
            running.run.resumed = Some(resumed);
        }
        running
    }
}

/// The end of a run without an answer.
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

/// A run in progress.
struct Running<'a> {
    config: &'a AgentConfig,
    run: Run,
    /// The model, with its exchanges stored if the run is.
    model: Arc<dyn Model>,
    /// The text of an unfinished answer.
    partial_text: String,
    request: Request,
    offer: Offer<'a>,
    port: Arc<ModelPort>,
    /// The answer as a value, if it matches the schema.
    value: Option<Value>,
    /// The number of requests to the model to correct its answer.
    repairs: u32,
    /// The time that the resumed run worked before its pause.
    elapsed_before: Duration,
    /// The number of pauses.
    latest_pause: u32,
    /// The calls of the last answer, if some of them are pending.
    pending: Vec<PendingCall>,
    /// Whether the next answer continues an answer that the provider paused.
    continues_answer: bool,
    /// Whether the latest answer has text, with the parts that it continues.
    has_text: bool,
    payloads: Vec<CallPayload>,
    /// The tokens of the conversation with the latest answer.
    context_tokens: u64,
    /// Whether a summary failed: the run requests no other.
    has_summary_failed: bool,
    budget: Budget,
    detector: LoopDetector,
    listeners: Arc<Listeners>,
    record: RunRecord,
}

/// The step after an answer.
enum Next {
    /// The run ends with this answer.
    Answer(RunStopReason),
    /// The provider paused its answer and continues it after another request.
    Continue,
    /// The calls do not run, and the run ends.
    Reject(Vec<RequestedCall>, RunStopReason),
    /// The calls run.
    Call(Vec<RequestedCall>),
}

impl Running<'_> {
    /// The loop: request an answer, run its calls, add the results, repeat.
    async fn work(&mut self) -> Result<RunStopReason, Interrupted> {
        if let Err(interrupted) = self.prepare().await {
            self.restore_pending();
            return Err(interrupted);
        }
        let mut results = match self.run.resumed.take() {
            Some(resumed) => Box::pin(self.resume_calls(*resumed)).await,
            None => CallResults::default(),
        };
        loop {
            if let Some(stop) = self.add_results(results) {
                return Err(stop.into());
            }
            if self.budget.context.handoff().is_some() {
                return Ok(RunStopReason::Handoff);
            }
            self.detect_loop()?;
            self.save().await;
            self.budget.admit()?;
            let response = self.request_within_window().await?;
            let text = self.guard_output(response.text()).await?;
            let calls = self.add_answer(&response, &text);
            if !calls.is_empty() {
                // Tools have effects: the request is stored even if the process dies while they run.
                self.save().await;
            }
            results = match self.next_step(&response, calls) {
                Next::Answer(stop) => match self.accept(stop).await? {
                    Some(stop) => return Ok(stop),
                    None => CallResults::default(),
                },
                Next::Continue => CallResults::default(),
                Next::Reject(calls, stop) => calls::reject(&calls, stop),
                Next::Call(calls) => self.call_tools(calls).await,
            };
        }
    }

    /// Decides the step after an answer.
    fn next_step(&self, response: &Response, calls: Vec<RequestedCall>) -> Next {
        match (stop_of(&response.stop), self.budget.context.used_up()) {
            (Some(stop), _) if calls.is_empty() => Next::Answer(stop),
            // A truncated or refused answer may have truncated calls.
            (Some(stop), _) if stop != RunStopReason::EndTurn => Next::Reject(calls, stop),
            (_, Some(limit)) => Next::Reject(calls, limit),
            (None, None) if calls.is_empty() => Next::Continue,
            _ => Next::Call(calls),
        }
    }

    /// Warns the model of a detected loop, and ends the run if the loop continues.
    fn detect_loop(&mut self) -> Result<(), RunStopReason> {
        let threshold = self.config.limits.repetition;
        if threshold == 0 {
            return Ok(());
        }
        match self.detector.judge(threshold) {
            Verdict::Continue => {}
            Verdict::Stop(stop) => return Err(stop),
            Verdict::Warn(warning) => {
                self.note(&format!("detected loop: {warning}"));
                // A paused answer must go back unchanged.
                if !matches!(self.request.turns.last(), Some(Turn::Assistant(_))) {
                    self.request.turns.push(Turn::user(format!("{FROM_THE_PROGRAM} {warning}")));
                }
            }
        }
        Ok(())
    }

    /// Completes and stores the record, and makes the output.
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
            tools: &self.request.tools,
            open: state.as_deref().map(RunState::results).unwrap_or_default(),
            provider_state: &self.run.provider_state,
            code_meter: &self.run.code_meter,
            session: self.offer.session(),
        };
        if let Some(notice) = self.run.persistence.finish(&ended).await {
            self.run.notices.add(notices::truncate(&notice));
        }
        let Self { run, listeners, value, mut record, request, offer, payloads, budget, .. } = *self;
        record.notices = run.notices.into_vec();
        let record = Arc::new(record);
        let finished = Event::RunFinished { record: Arc::clone(&record) };
        listeners.events.iter().for_each(|sink| sink(&finished));
        RunOutput {
            stop,
            record,
            turns: request.turns,
            error: error.map(|error| *error),
            tool_session: offer.session().cloned(),
            provider_state: run.provider_state,
            code_meter: run.code_meter,
            payloads,
            value,
            state: state.map(|state| *state),
            handoff: budget.context.handoff(),
        }
    }

    /// Sets the end of the run and its figures in the record.
    fn finish_record(&mut self, begun: Instant, stop: &RunStopReason, error: Option<&ModelError>) {
        let execution_time = self.elapsed(begun);
        let context = &self.budget.context;
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
        record.notices = self.run.notices.as_slice().to_vec();
    }

    /// Persists new turns, calls and figures.
    async fn save(&mut self) {
        let spent = self.budget.context.spent();
        if let Some(notice) = self.run.persistence.save(&self.request, &self.record, &spent).await {
            self.note(&notice);
        }
    }

    /// Emits a notice and adds it to the record.
    fn note(&mut self, message: &str) {
        let message = notices::truncate(message);
        self.emit(|_| Event::Notice { message: message.clone() });
        self.run.notices.add(message);
    }

    fn emit(&self, event: impl FnOnce(&Self) -> Event) {
        if !self.listeners.events.is_empty() {
            let event = event(self);
            self.listeners.events.iter().for_each(|sink| sink(&event));
        }
    }
}

/// The stop reason of the run for that of an answer without calls; `None` if the provider continues the answer.
fn stop_of(stop: &ModelStop) -> Option<RunStopReason> {
    Some(match stop {
        // A model that stops for tools and calls none has finished.
        ModelStop::EndTurn | ModelStop::ToolUse => RunStopReason::EndTurn,
        ModelStop::StopSequence => RunStopReason::StopSequence,
        ModelStop::MaxTokens => RunStopReason::OutputTokens,
        ModelStop::Refusal => RunStopReason::Refusal,
        ModelStop::ContextWindow => RunStopReason::ContextWindow,
        ModelStop::Pause => return None,
        other => RunStopReason::Other(other.as_str().to_owned()),
    })
}
