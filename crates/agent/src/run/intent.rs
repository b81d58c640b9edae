//! What a model would call, without calling it; and the calls that somebody has chosen.

use toolpost_core::CallId;

use super::{Decision, Outcome, ResumeError, Run, RunState, Until, WaitingCall};
use crate::Agent;

/// What a model would call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolIntent {
    /// The run so far: one question to the model. Its stop reason is
    /// [`ToolIntent`](crate::StopReason::ToolIntent), or that of a run that needs no tools.
    pub outcome: Outcome,
}

impl ToolIntent {
    /// What the model says besides.
    pub fn text(&self) -> &str {
        self.outcome.text()
    }

    /// The calls, with their arguments read, or why they could not be.
    pub fn tool_calls(&self) -> impl Iterator<Item = &WaitingCall> {
        self.outcome.state.iter().flat_map(RunState::waiting)
    }
}

impl Agent {
    /// Asks the model once, and tells what it would call. Nothing is called.
    pub async fn generate_tool_intent(&self, prompt: impl Into<String>) -> ToolIntent {
        Run::new(self, prompt).generate_tool_intent().await
    }

    /// Makes the calls of an intent that are chosen, as they are or with other arguments, and hands their results over
    /// as the last turn of [`Outcome::turns`]; the stop reason is [`ToolsCalled`](crate::StopReason::ToolsCalled). Calls
    /// that are not named are refused. To go on with the model right away, use [`Run::resume`].
    ///
    /// # Errors
    /// When a decision names no call of the intent.
    pub async fn execute_tool_intents(
        &self,
        intent: &ToolIntent,
        decisions: impl IntoIterator<Item = (CallId, Decision)>,
    ) -> Result<Outcome, ResumeError> {
        let Some(state) = intent.outcome.state.clone() else { return Ok(intent.outcome.clone()) };
        Ok(Run::resume(self, state, decisions)?.execute_tool_intents().await)
    }
}

impl Run {
    /// Asks the model once, and tells what it would call. Nothing is called.
    pub async fn generate_tool_intent(mut self) -> ToolIntent {
        self.until = Until::Intent;
        ToolIntent { outcome: self.finish().await }
    }

    /// Makes the calls that a run waits with ([`Run::resume`]), and stops there. Calls that nothing was decided about
    /// are refused.
    pub async fn execute_tool_intents(mut self) -> Outcome {
        self.until = Until::Calls;
        self.finish().await
    }
}
