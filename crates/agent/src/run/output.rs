//! The output of a run, and the error of a run without an answer.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{CallId, Payload, RunRecord};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{CodeExecutionMeter, ModelError, Turn};

use super::RunState;
use crate::RunStopReason;

/// The output of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunOutput {
    /// The reason why the run ended.
    pub stop: RunStopReason,
    /// The record of the run: usage, cost, tool calls, notices.
    pub record: Arc<RunRecord>,
    /// The conversation, with a result for every tool call.
    pub turns: Vec<Turn>,
    /// The error of the model, if it failed.
    pub error: Option<ModelError>,
    /// The loaded tools of the conversation, if its agent loads tools; for the next run of the conversation.
    pub tool_session: Option<ToolSession>,
    /// Provider state beyond the turns, by provider name, such as a container id.
    ///
    /// For the next run of the conversation: [`Run::with_provider_state`](crate::Run::with_provider_state).
    pub provider_state: BTreeMap<String, Map<String, Value>>,
    /// Billed time of the provider's code execution, for the whole conversation.
    pub(crate) code_meter: CodeExecutionMeter,
    /// Payloads of tools, which only the application gets, in the order of the model's calls.
    ///
    /// They are values of this process and not part of a [`RunState`]: a resumed run has only those of its own calls.
    pub payloads: Vec<CallPayload>,
    /// The answer as a value, if it had to match a schema and does.
    pub value: Option<Value>,
    /// The state to resume from, if calls await a decision.
    pub state: Option<RunState>,
    /// The team member that takes over the conversation.
    pub(crate) handoff: Option<usize>,
}

/// The payload of a tool result, which only the application gets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallPayload {
    /// The call.
    pub call: CallId,
    /// The tool's name.
    pub tool: Arc<str>,
    /// The value.
    pub payload: Payload,
}

impl RunOutput {
    /// The text of the answer.
    pub fn text(&self) -> &str {
        &self.record.response
    }

    /// This output, or an error if the run has neither an answer nor a requested pause.
    ///
    /// # Errors
    /// The run stopped at a limit, failed, was blocked or cancelled.
    pub fn into_result(self) -> Result<Self, RunError> {
        if self.stop.is_answer() || self.stop.is_pause() { Ok(self) } else { Err(RunError::new(self)) }
    }
}

/// The typed answer of a run.
#[derive(Debug)]
#[non_exhaustive]
pub struct TypedOutput<T> {
    /// The answer.
    pub value: T,
    /// The run.
    pub output: RunOutput,
}

/// The error of a run that ended without an answer. It keeps the whole [`RunOutput`].
#[derive(Clone, Debug)]
pub struct RunError(Box<RunOutput>);

impl RunError {
    pub(crate) fn new(output: RunOutput) -> Self {
        Self(Box::new(output))
    }

    /// The reason why the run ended.
    pub fn stop(&self) -> &RunStopReason {
        &self.0.stop
    }

    /// The output of the run: its record, its conversation, a last answer if it reached a limit.
    pub fn output(&self) -> &RunOutput {
        &self.0
    }

    /// The output of the run.
    pub fn into_output(self) -> RunOutput {
        *self.0
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stop = &self.0.stop;
        match (&self.0.error, stop) {
            (Some(error), _) => write!(f, "the run stopped ({stop}): {error}"),
            (None, RunStopReason::Guardrail(reason) | RunStopReason::NotClaimed(reason)) => {
                write!(f, "the run stopped ({stop}): {reason}")
            }
            (None, stop) if stop.is_limit() => {
                write!(
                    f,
                    "the run reached its limit ({stop}) before an answer; raise the limit or ask for less"
                )
            }
            (None, stop) => write!(f, "the run stopped ({stop}) without an answer"),
        }
    }
}

impl Error for RunError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.error.as_ref().map(|error| error as _)
    }
}
