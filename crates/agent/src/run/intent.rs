//! Tool intents: the calls that a model requests, without running them.

use toolpost_core::CallId;

use super::{Decision, PendingCall, ResumeError, Run, RunOutput, RunState, Until};
use crate::Agent;

/// The calls that a model requests.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolIntent {
    /// The run: one request to the model. Its stop reason is [`ToolIntent`](crate::RunStopReason::ToolIntent), or another
    /// one if the model calls no tool.
    pub output: RunOutput,
}

impl ToolIntent {
    /// The text beside the calls.
    pub fn text(&self) -> &str {
        self.output.text()
    }

    /// The calls, with parsed arguments or a parse error.
    pub fn tool_calls(&self) -> impl Iterator<Item = &PendingCall> {
        self.output.state.iter().flat_map(RunState::pending_calls)
    }
}

impl Agent {
    /// Sends one request to the model and returns its tool calls. Runs no tool.
    pub async fn generate_tool_intent(&self, prompt: impl Into<String>) -> ToolIntent {
        self.run(prompt).generate_tool_intent().await
    }

    /// Runs the approved calls of an intent, as they are or with other arguments.
    ///
    /// The results are the last turn of [`RunOutput::turns`]; the stop reason is
    /// [`ToolsCalled`](crate::RunStopReason::ToolsCalled). Calls without a decision are denied. To continue with the
    /// model, use [`Agent::resume`].
    ///
    /// # Errors
    /// A decision names no call of the intent.
    pub async fn execute_tool_intents(
        &self,
        intent: &ToolIntent,
        decisions: impl IntoIterator<Item = (CallId, Decision)>,
    ) -> Result<RunOutput, ResumeError> {
        let Some(state) = intent.output.state.clone() else { return Ok(intent.output.clone()) };
        Ok(self.resume(state, decisions)?.execute_tool_intents().await)
    }
}

impl Run {
    /// Sends one request to the model and returns its tool calls. Runs no tool.
    pub async fn generate_tool_intent(mut self) -> ToolIntent {
        self.until = Until::Intent;
        ToolIntent { output: self.finish().await }
    }

    /// Runs the pending calls of a resumed run ([`Agent::resume`]) and stops. Calls without a decision are denied.
    pub async fn execute_tool_intents(mut self) -> RunOutput {
        self.until = Until::Calls;
        self.finish().await
    }
}
