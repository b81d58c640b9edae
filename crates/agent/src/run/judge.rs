//! What an answer means for the run.

use toolpost_llm::{Response, StopReason as ModelStop};

use super::Running;
use crate::RunStopReason;
use crate::results::Wanted;

/// What comes after an answer.
pub(super) enum Next {
    /// Nothing: it is the last one.
    Answer(RunStopReason),
    /// The provider wants to be asked again to go on.
    GoOn,
    /// Its calls are not made, and the run ends.
    Refuse(Vec<Wanted>, RunStopReason),
    /// Its calls are made.
    Call(Vec<Wanted>),
}

impl Running<'_> {
    /// Decides what comes after an answer.
    pub(super) fn judge(&self, response: &Response, wanted: Vec<Wanted>) -> Next {
        let said = after(&response.stop);
        match (said, self.budget.used_up()) {
            (Some(stop), _) if wanted.is_empty() => Next::Answer(stop),
            // The calls of an answer that was cut off or declined are not what the model meant to ask for.
            (Some(stop), _) if stop != RunStopReason::EndTurn => Next::Refuse(wanted, stop),
            (_, Some(limit)) => Next::Refuse(wanted, limit),
            (None, None) if wanted.is_empty() => Next::GoOn,
            _ => Next::Call(wanted),
        }
    }
}

/// What the model's own reason to stop means for a run without open tool calls; `None` if it wants to go on.
fn after(stop: &ModelStop) -> Option<RunStopReason> {
    Some(match stop {
        // A model that says "tool use" and calls none has nothing more to say.
        ModelStop::EndTurn | ModelStop::ToolUse => RunStopReason::EndTurn,
        ModelStop::StopSequence => RunStopReason::StopSequence,
        ModelStop::MaxTokens => RunStopReason::OutputTokens,
        ModelStop::Refusal => RunStopReason::Refusal,
        ModelStop::ContextWindow => RunStopReason::ContextWindow,
        ModelStop::Pause => return None,
        other => RunStopReason::Other(other.as_str().to_owned()),
    })
}
