//! Paused runs: their state, and how they resume.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{Approval, CallId, RunId, RunRecord, ToolError, newer_format};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{CodeExecutionMeter, ToolResult, Turn};

use super::budget::Counted;
use super::calls::{CallResults, Plan, PlannedCall};
use super::repetition::LoopDetector;
use super::{ProviderState, Run, Running, now};
use crate::results::RequestedCall;
use crate::{Agent, RunStopReason};

/// The version of the format of a state.
const VERSION: u8 = 1;

/// The state of a paused run, which another process can resume. It serializes to JSON.
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
    /// The record of the run so far.
    record: RunRecord,
    /// The number of this pause, from 1.
    pause: u32,
    turns: Vec<Turn>,
    /// The calls of the last answer, in the model's order.
    calls: Vec<PendingCall>,
    counted: Counted,
    elapsed: Duration,
    detector: LoopDetector,
    repairs: u32,
    /// Provider state beyond the turns, by provider name.
    #[serde(default, skip_serializing_if = "ProviderState::is_empty")]
    provider_state: ProviderState,
    /// Billed code execution time.
    #[serde(default, skip_serializing_if = "CodeExecutionMeter::is_empty")]
    code_meter: CodeExecutionMeter,
    tool_session: Option<ToolSession>,
    /// The tools that the run may call; `None` for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tools: Option<BTreeSet<String>>,
    usage_metadata: Map<String, Value>,
}

/// A call of a paused run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PendingCall {
    /// The id, which a decision names.
    pub id: CallId,
    /// The id that the model gave it.
    pub call_id: String,
    /// The tool.
    pub tool: String,
    /// The arguments; the model's text if they are invalid JSON.
    pub arguments: Value,
    /// The parse error of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_error: Option<String>,
    /// The result, if the call ran or was rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ToolResult>,
}

/// The decision about a pending call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Decision {
    /// The call runs, unless a guardrail rejects it now.
    Approve,
    /// The call runs with these arguments, unless a guardrail rejects them.
    Edit(Value),
    /// The call does not run, and the model reads the reason.
    Deny(String),
}

/// The error of [`Agent::resume`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeError(String);

impl fmt::Display for ResumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ResumeError {}

impl RunState {
    /// The version of this format.
    pub const FORMAT: u8 = VERSION;

    /// The run.
    pub fn run(&self) -> RunId {
        self.record.id
    }

    /// The calls that await a decision, in the model's order.
    pub fn pending_calls(&self) -> impl Iterator<Item = &PendingCall> {
        self.calls.iter().filter(|call| call.result.is_none())
    }

    /// The conversation, up to the answer with the pending calls.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// A result for each call of the last answer, for a conversation that continues without the run.
    pub(super) fn results(&self) -> Vec<ToolResult> {
        let results = self.calls.iter().map(|call| {
            call.result.clone().unwrap_or_else(|| ToolResult {
                is_error: true,
                ..ToolResult::text(
                    &call.call_id,
                    &call.tool,
                    "The call did not run: another message came before a decision.",
                )
            })
        });
        results.collect()
    }
}

/// A state with its decisions.
pub(super) struct Resumed {
    state: RunState,
    decisions: HashMap<CallId, Decision>,
    /// Whether a second resume is allowed.
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
        if state.v > VERSION {
            let error = newer_format("the state of the run", state.v.into(), VERSION.into());
            return Err(ResumeError(format!("{}; use the newer program that wrote it", error.message())));
        }
        if state.v != VERSION {
            return Err(ResumeError(format!(
                "the state of the run has version {}, expected {VERSION}; resume it with the version that wrote it",
                state.v
            )));
        }
        let decisions: HashMap<_, _> = decisions.into_iter().collect();
        if let Some(id) = decisions.keys().find(|id| !state.pending_calls().any(|call| call.id == **id)) {
            return Err(ResumeError(format!("the run {} has no pending call {id}", state.record.id)));
        }
        let mut run = agent.run_turns(state.turns.clone()).with_id(state.record.id);
        run.tool_session.clone_from(&state.tool_session);
        run.tools.clone_from(&state.tools);
        run.provider_state.clone_from(&state.provider_state);
        run.code_meter.clone_from(&state.code_meter);
        run.usage_metadata.clone_from(&state.usage_metadata);
        run.resumed = Some(Box::new(Resumed { state, decisions, again: false }));
        Ok(run)
    }

    /// Resumes even if the same state was resumed before; its calls then run again. Defaults to false.
    ///
    /// No effect on a run that is not resumed or not stored.
    pub fn allow_second_resume(mut self) -> Self {
        if let Some(resumed) = &mut self.resumed {
            resumed.again = true;
        }
        self
    }
}

impl Running<'_> {
    /// Whether a call pauses the run for approval.
    pub(super) fn needs_approval(&self, request: &RequestedCall) -> bool {
        self.config.pauses
            && !self.run.options.mock
            && !self.run.options.dry_run
            && self.config.toolbox.approval(&request.name) == Some(Approval::Ask)
    }

    /// Claims the state, so that no other process resumes it from the same store.
    pub(super) async fn claim(&mut self) -> Result<(), RunStopReason> {
        let Some(resumed) = &self.run.resumed else { return Ok(()) };
        let state = &resumed.state;
        let stored = (state.turns.as_slice(), state.record.tool_calls.len());
        self.run.persistence.claim(state.pause, resumed.again, stored).await.map_err(|error| {
            let hint = error.suggestion().map(|hint| format!(". {hint}")).unwrap_or_default();
            RunStopReason::NotClaimed(format!("{}{hint}", error.message()))
        })
    }

    /// Restores the counts and the record of a resumed run.
    pub(super) fn restore(&mut self, resumed: &Resumed, begun: Instant) {
        let state = &resumed.state;
        self.budget.restore(&state.counted, begun, state.elapsed);
        let mut record = state.record.clone();
        record.iterations = state.counted.iterations;
        record.parent = self.record.parent;
        record.model.clone_from(&self.record.model);
        record.children.drain(..).for_each(|child| self.budget.context.adopt(child));
        record.notices.drain(..).for_each(|notice| self.run.notices.add(notice));
        self.record = record;
        self.detector = state.detector.clone();
        self.repairs = state.repairs;
        self.latest_pause = state.pause;
        // The required call was the first one.
        self.release_choice();
    }

    /// Runs the pending calls of a resumed run by their decisions.
    pub(super) async fn resume_calls(&mut self, resumed: Resumed) -> CallResults {
        let Resumed { state, mut decisions, .. } = resumed;
        let mut planned = Vec::with_capacity(state.calls.len());
        for call in state.calls {
            let mut request = RequestedCall {
                id: call.call_id,
                name: call.tool,
                arguments: Arc::new(call.arguments),
                arguments_error: call.arguments_error,
            };
            let plan = match (call.result, decisions.remove(&call.id)) {
                (Some(result), _) => Plan::Done(result),
                (None, Some(Decision::Approve)) => self.check_call(&mut request, Plan::RunApproved).await,
                (None, Some(Decision::Edit(arguments))) => {
                    request.arguments = Arc::new(arguments);
                    request.arguments_error = None;
                    self.check_call(&mut request, Plan::RunApproved).await
                }
                (None, Some(Decision::Deny(reason))) => {
                    Plan::Reject(ToolError::permission(format!("the call was denied: {reason}")))
                }
                (None, None) => Plan::Pending,
            };
            planned.push(PlannedCall { id: call.id, request, plan });
        }
        self.run_calls(planned).await
    }

    /// Restores the pending calls of a run that ended before any of them ran, so that it can be resumed again.
    pub(super) fn restore_pending(&mut self) {
        if let Some(resumed) = self.run.resumed.take() {
            self.pending = resumed.state.calls;
        }
    }

    /// Pauses the run at an answer with pending calls.
    pub(super) fn pause(&mut self, calls: Vec<(PlannedCall, Option<ToolResult>)>) -> CallResults {
        let pending = calls.into_iter().map(|(planned, result)| PendingCall {
            id: planned.id,
            call_id: planned.request.id,
            tool: planned.request.name,
            arguments: Value::clone(&planned.request.arguments),
            arguments_error: planned.request.arguments_error,
            result,
        });
        self.pending = pending.collect();
        let stop = if self.run.until == super::Until::Intent {
            RunStopReason::ToolIntent
        } else {
            RunStopReason::ApprovalNeeded
        };
        CallResults { results: Vec::new(), stop: Some(stop) }
    }

    /// The state to resume from, if calls are pending.
    pub(super) fn state(&mut self, begun: Instant) -> Option<RunState> {
        if self.pending.is_empty() {
            return None;
        }
        let mut record = self.record.clone();
        record.children = self.budget.context.children();
        record.notices = self.run.notices.as_slice().to_vec();
        Some(RunState {
            v: VERSION,
            record,
            pause: self.latest_pause + 1,
            turns: self.request.turns.clone(),
            calls: std::mem::take(&mut self.pending),
            counted: self.budget.counted(),
            elapsed: self.elapsed(begun),
            detector: self.detector.clone(),
            repairs: self.repairs,
            provider_state: self.run.provider_state.clone(),
            code_meter: self.run.code_meter.clone().compacted(),
            // Before the tools are listed, the session is that of the start.
            tool_session: self.offer.session().or(self.run.tool_session.as_ref()).cloned(),
            tools: self.run.tools.clone(),
            usage_metadata: self.run.usage_metadata.clone(),
        })
    }

    /// The working time of the run, without its pauses.
    pub(super) fn elapsed(&self, begun: Instant) -> Duration {
        now().saturating_duration_since(begun).saturating_add(self.elapsed_before)
    }
}
