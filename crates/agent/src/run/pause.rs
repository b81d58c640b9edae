//! Runs that wait for a person: their whole state can be written down, and read by another process.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{Approval, CallId, CallRecord, RunId, RunRecord, Timestamp, ToolError};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{CodeExecutionMeter, ToolResult, Turn};

use super::budget::Counted;
use super::calls::{Fate, Made, Planned};
use super::repetition::Watch;
use super::{ProviderState, Run, Running, now};
use crate::results::Wanted;
use crate::{Agent, RunStopReason};

/// The version of the format of a state.
const VERSION: u8 = 1;

/// A run that waits: all state to resume it in another process, as JSON.
///
/// The state excludes the agent: the resuming agent provides its model, tools, limits and instructions. It excludes keys
/// and injected values too, so the resuming application sets the caller ([`Run::with_caller`]) and the scope
/// ([`Run::with_scope`]) again. The state includes what the model wrote, with the arguments of its calls.
///
/// A resumed run that ends before its first call has a state again, whatever ended it.
///
/// A state is resumed once. Its calls then run once, under the ids that they have here, which are also their
/// idempotency keys. A stored run ([`Run::persist_to`]) enforces this across processes: a second resume ends with
/// [`RunStopReason::NotClaimed`] before any call. The same holds after a process that was killed, since its calls may
/// have run ([`Run::allow_second_resume`]), and in a stored conversation that has a newer prompt: there the calls have
/// results that report that they did not run. A run that is not stored runs its calls once per resume.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunState {
    /// The version of this format.
    v: u8,
    /// The run.
    run: RunId,
    /// Which of its pauses it is, from 1.
    #[serde(default = "first_pause")]
    pause: u32,
    started: Timestamp,
    turns: Vec<Turn>,
    /// The calls of the last answer, in the model's order.
    calls: Vec<PendingCall>,
    counted: Counted,
    elapsed: Duration,
    response: String,
    tools_used: Vec<String>,
    tool_calls: Vec<Arc<CallRecord>>,
    notices: Vec<String>,
    watch: Watch,
    repairs: u32,
    /// What the conversation carries to providers beyond its turns, such as a container.
    #[serde(default, skip_serializing_if = "ProviderState::is_empty")]
    carry: ProviderState,
    /// The time that the provider's code was billed for.
    #[serde(default, skip_serializing_if = "CodeExecutionMeter::is_empty")]
    code_meter: CodeExecutionMeter,
    /// The records of runs that were made from it.
    #[serde(default)]
    children: Vec<Arc<RunRecord>>,
    tool_session: Option<ToolSession>,
    /// The tools that the run may use, if not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tools: Option<BTreeSet<String>>,
    usage_metadata: Map<String, Value>,
}

/// States that do not say which pause it is are of a run that waited once.
fn first_pause() -> u32 {
    1
}

/// A call of a run that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PendingCall {
    /// Its name here, by which it is decided about.
    pub id: CallId,
    /// The model's id of it.
    pub call_id: String,
    /// The tool.
    pub tool: String,
    /// The arguments; the model's text where they are not JSON.
    pub arguments: Value,
    /// Why the arguments could not be read, when they could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_error: Option<String>,
    /// What came of it, when it was made already or refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ToolResult>,
}

/// What becomes of a call that waits.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decision {
    /// It is made, unless a guardrail says no now.
    Approve,
    /// It is made with these arguments, unless a guardrail says no to them.
    Edit(Value),
    /// It is not made, and the model is told why.
    Deny(String),
}

/// Why a run cannot be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeError(String);

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ResumeError {}

impl RunState {
    /// The run.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The calls that wait for a decision, in the model's order.
    pub fn pending_calls(&self) -> impl Iterator<Item = &PendingCall> {
        self.calls.iter().filter(|call| call.result.is_none())
    }

    /// The conversation, up to the answer whose calls wait.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// A result for each call of the last answer, for a conversation that goes on without the run: what came of those that
    /// were made, and of the others that they were not.
    pub(super) fn results(&self) -> Vec<ToolResult> {
        let results = self.calls.iter().map(|call| {
            call.result.clone().unwrap_or_else(|| ToolResult {
                is_error: true,
                ..ToolResult::text(
                    &call.call_id,
                    &call.tool,
                    "The call was not carried out: it waited for a decision, and another message came first.",
                )
            })
        });
        results.collect()
    }
}

/// What a run goes on from.
pub(super) struct Resumed {
    state: RunState,
    decisions: HashMap<CallId, Decision>,
    /// Whether it goes on although somebody has before.
    again: bool,
}

impl Resumed {
    pub(super) fn elapsed(&self) -> Duration {
        self.state.elapsed
    }
}

impl Run {
    pub(super) fn resumed(
        agent: &Agent,
        state: RunState,
        decisions: impl IntoIterator<Item = (CallId, Decision)>,
    ) -> Result<Self, ResumeError> {
        if state.v != VERSION {
            return Err(ResumeError(format!(
                "the run's state has version {}: expected {VERSION}; resume it with the version that wrote it",
                state.v
            )));
        }
        let decisions: HashMap<_, _> = decisions.into_iter().collect();
        if let Some(id) = decisions.keys().find(|id| !state.pending_calls().any(|call| call.id == **id)) {
            return Err(ResumeError(format!("no call {id} waits in run {}", state.run)));
        }
        let mut run = agent.run_turns(state.turns.clone()).with_id(state.run);
        run.tool_session.clone_from(&state.tool_session);
        run.tools.clone_from(&state.tools);
        run.carry.clone_from(&state.carry);
        run.code_meter.clone_from(&state.code_meter);
        run.usage_metadata.clone_from(&state.usage_metadata);
        run.resumed = Some(Box::new(Resumed { state, decisions, again: false }));
        Ok(run)
    }

    /// Goes on although somebody has gone on from the same state before: what its calls do is then done once more.
    /// Default: no. Without effect on a run that does not go on from a state, or is not kept.
    pub fn allow_second_resume(mut self) -> Self {
        if let Some(resumed) = &mut self.resumed {
            resumed.again = true;
        }
        self
    }

    /// Stops before calls that need approval, with a state to go on from ([`RunOutput::state`](crate::RunOutput::state)),
    /// instead of asking while the run goes on. Only calls of the model itself: a tool that calls another has somebody
    /// asked, or is denied. Default: as the agent says.
    pub fn pausing_for_approval(mut self, pauses: bool) -> Self {
        self.pauses = pauses;
        self
    }
}

impl Running<'_> {
    /// Whether a call has to wait for a person.
    pub(super) fn must_wait(&self, wanted: &Wanted) -> bool {
        self.pauses
            && !self.options.mock
            && !self.options.dry_run
            && self.config.toolbox.approval(&wanted.name) == Some(Approval::Ask)
    }

    /// Makes sure that nobody else goes on from the same state, as far as a store can say.
    pub(super) async fn claim(&mut self) -> Result<(), RunStopReason> {
        let Some(resumed) = &self.resumed else { return Ok(()) };
        let state = &resumed.state;
        let kept = (state.turns.as_slice(), state.tool_calls.len());
        self.keeper.claim(state.pause, resumed.again, kept).await.map_err(|error| {
            let hint = error.suggestion().map(|hint| format!(". {hint}")).unwrap_or_default();
            RunStopReason::NotClaimed(format!("{}{hint}", error.message()))
        })
    }

    /// What a resumed run has done so far.
    pub(super) fn restore(&mut self, resumed: &Resumed, begun: Instant) {
        let state = &resumed.state;
        self.budget.restore(&state.counted, begun, state.elapsed);
        state.children.iter().for_each(|child| self.budget.context().adopt(Arc::clone(child)));
        let record = &mut self.record;
        record.started = state.started;
        record.iterations = state.counted.iterations;
        record.response.clone_from(&state.response);
        record.tools_used.clone_from(&state.tools_used);
        record.tool_calls.clone_from(&state.tool_calls);
        self.record.artifacts =
            state.tool_calls.iter().flat_map(|call| call.artifacts.iter().cloned()).collect();
        state.notices.iter().for_each(|notice| self.notices.add(notice.clone()));
        self.watch = state.watch.clone();
        self.repairs = state.repairs;
        self.latest_pause = state.pause;
        // It has made its first call.
        self.release_choice();
    }

    /// Takes up the calls of a resumed run.
    pub(super) async fn take_up(&mut self, resumed: Resumed) -> Made {
        let Resumed { state, mut decisions, .. } = resumed;
        let mut planned = Vec::with_capacity(state.calls.len());
        for call in state.calls {
            let mut wanted = Wanted {
                id: call.call_id,
                name: call.tool,
                arguments: Arc::new(call.arguments),
                arguments_error: call.arguments_error,
            };
            let fate = match (call.result, decisions.remove(&call.id)) {
                (Some(result), _) => Fate::Done(result),
                (None, Some(Decision::Approve)) => self.fate_of(&mut wanted, Fate::Approved).await,
                (None, Some(Decision::Edit(arguments))) => {
                    wanted.arguments = Arc::new(arguments);
                    wanted.arguments_error = None;
                    self.fate_of(&mut wanted, Fate::Approved).await
                }
                (None, Some(Decision::Deny(reason))) => Fate::Refused(ToolError::permission(format!(
                    "the call was not made: somebody was asked and said no: {reason}"
                ))),
                (None, None) => Fate::Waits,
            };
            planned.push(Planned { id: call.id, wanted, fate });
        }
        self.carry_out(planned).await
    }

    /// Lets the calls wait on of a run that came to its end before any of them was made: there is a state to go on from
    /// again.
    pub(super) fn wait_on(&mut self) {
        if let Some(resumed) = self.resumed.take() {
            self.waiting = resumed.state.calls;
        }
    }

    /// Keeps the calls of an answer of which some wait.
    pub(super) fn wait_for(&mut self, calls: Vec<(Planned, Option<ToolResult>)>) -> Made {
        let waiting = calls.into_iter().map(|(planned, result)| PendingCall {
            id: planned.id,
            call_id: planned.wanted.id,
            tool: planned.wanted.name,
            arguments: Value::clone(&planned.wanted.arguments),
            arguments_error: planned.wanted.arguments_error,
            result,
        });
        self.waiting = waiting.collect();
        let stop = if self.until == super::Until::Intent {
            RunStopReason::ToolIntent
        } else {
            RunStopReason::ApprovalNeeded
        };
        Made { results: Vec::new(), stop: Some(stop) }
    }

    /// The state to go on from, if calls wait.
    pub(super) fn state(&mut self, begun: Instant) -> Option<RunState> {
        if self.waiting.is_empty() {
            return None;
        }
        Some(RunState {
            v: VERSION,
            run: self.record.id,
            pause: self.latest_pause + 1,
            started: self.record.started,
            turns: self.request.turns.clone(),
            calls: std::mem::take(&mut self.waiting),
            counted: self.budget.counted(),
            elapsed: self.elapsed(begun),
            response: self.record.response.clone(),
            tools_used: self.record.tools_used.clone(),
            tool_calls: self.record.tool_calls.clone(),
            notices: self.notices.as_slice().to_vec(),
            watch: self.watch.clone(),
            repairs: self.repairs,
            carry: self.carry.clone(),
            code_meter: self.code_meter.clone().compacted(),
            children: self.budget.context().children(),
            // Without an offer the run still has the session that it came with.
            tool_session: self.offer.session().or(self.tool_session.as_ref()).cloned(),
            tools: self.tools.clone(),
            usage_metadata: self.usage_metadata.clone(),
        })
    }

    /// How long the run has worked, without the time in which it waited for a person.
    pub(super) fn elapsed(&self, begun: Instant) -> Duration {
        now().saturating_duration_since(begun).saturating_add(self.elapsed_before)
    }
}
