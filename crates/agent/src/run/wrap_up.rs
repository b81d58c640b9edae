//! The last answer of a run that came to a limit: without tools, it sums up.

use toolpost_llm::{Thinking, ToolChoice, Turn};

use super::{FROM_THE_PROGRAM, Running, calls};
use crate::RunStopReason;
use crate::results::wanted;

/// What the model is told before it sums up.
const INSTRUCTION: &str = "The run has to end now ({stop}). Call no tool. Say in a few sentences what was done, what was found, and what is missing.";

impl Running<'_> {
    /// Lets the model sum up, if the run came to one of its limits. Whatever goes wrong here leaves the run as it was.
    pub(super) async fn wrap_up(&mut self, stop: &RunStopReason) {
        let Some(wrap_up) = self.config.limits.wrap_up.clone() else { return };
        let has_done_nothing = self.record.tool_calls.is_empty() && self.record.response.is_empty();
        // Calls without results could not be sent.
        if !self.waiting.is_empty() {
            return;
        }
        // When those are at a limit that it was made from, nobody reads a summary.
        if self.budget.context().is_outer_used_up() {
            return;
        }
        // What came before may have cost anything.
        if self.budget.used_up() == Some(RunStopReason::UnknownCost) {
            return;
        }
        if !stop.may_wrap_up() || self.cancellation.is_cancelled() || has_done_nothing {
            return;
        }
        let mut request = self.request.clone();
        request
            .turns
            .push(Turn::user(format!("{FROM_THE_PROGRAM} {}", INSTRUCTION.replace("{stop}", stop.as_str()))));
        if !(request.tools.is_empty() && request.hosted_tools.is_empty()) {
            request.tool_choice = Some(ToolChoice::None);
        }
        let settings = &mut request.settings;
        let tokens =
            settings.max_output_tokens.map_or(wrap_up.output_tokens, |own| own.min(wrap_up.output_tokens));
        settings.max_output_tokens = Some(tokens);
        settings.output = None;
        // A budget of thinking must be less than what may be said at all.
        if matches!(settings.thinking, Some(Thinking::Budget(_))) {
            settings.thinking = None;
        }
        self.budget.extend(wrap_up.time);
        let Ok((answered, spent)) = self.answer_to(&request).await else {
            return self.note("the model could not be asked to sum up");
        };
        let wanted = wanted(&answered);
        // It was told to use no tool, so no code was run for it.
        self.tell_answer(&answered, &spent, wanted.len());
        let Ok(text) = self.guard_output(answered.text()).await else {
            return self.note("what the model summed up was not let through");
        };
        if text.trim().is_empty() {
            return self.note("the model was asked to sum up and said nothing");
        }
        if let Some(instruction) = request.turns.pop() {
            self.request.turns.push(instruction);
        }
        self.request.push_response(&answered);
        self.tell(calls::refuse(&wanted, stop.clone()));
        self.record.response = text;
        self.record.wrapped_up = true;
    }
}
