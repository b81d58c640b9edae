//! The last answer of a run at its limit: a summary without tool calls.

use std::time::Duration;

use toolpost_llm::{Thinking, ToolChoice, Turn};

use super::{FROM_THE_PROGRAM, Running, calls};
use crate::RunStopReason;
use crate::results::requested_calls;

/// Output tokens of the summary.
const MAX_TOKENS: u32 = 1024;
/// Time for the summary, beyond the time limit of the run.
const TIME: Duration = Duration::from_secs(30);
/// The request for the summary.
const INSTRUCTION: &str = "The run has to end now ({stop}). Call no tool. Summarize the work done, the findings and the open tasks in a few sentences.";

impl Running<'_> {
    /// Requests a summary if the run reached a limit. A failure leaves the run unchanged.
    pub(super) async fn wrap_up(&mut self, stop: &RunStopReason) {
        let has_done_nothing = self.record.tool_calls.is_empty() && self.record.response.is_empty();
        // A request must have a result for every call.
        let has_pending = !self.pending.is_empty();
        // A caller at its limit reads no summary, and an unknown cost may exceed any limit.
        let is_over = self.budget.context.is_outer_used_up()
            || self.budget.context.used_up() == Some(RunStopReason::UnknownCost);
        let is_cancelled = self.run.cancellation.is_cancelled();
        if !self.config.limits.wrap_up
            || !stop.may_wrap_up()
            || has_pending
            || is_over
            || is_cancelled
            || has_done_nothing
        {
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
        let tokens = settings.max_output_tokens.map_or(MAX_TOKENS, |own| own.min(MAX_TOKENS));
        settings.max_output_tokens = Some(tokens);
        settings.output = None;
        // The thinking budget must be below the output limit.
        if matches!(settings.thinking, Some(Thinking::Budget(_))) {
            settings.thinking = None;
        }
        self.budget.extend(TIME);
        let Ok((answered, spent)) = self.answer_to(&request).await else {
            return self.note("the request for a summary failed");
        };
        let calls = requested_calls(&answered);
        // Without tools, the provider ran no code.
        self.emit_answer(&answered, &spent, calls.len());
        let Ok(text) = self.guard_output(answered.text()).await else {
            return self.note("a guardrail blocked the summary");
        };
        if text.trim().is_empty() {
            return self.note("the summary is empty");
        }
        if let Some(instruction) = request.turns.pop() {
            self.request.turns.push(instruction);
        }
        self.request.push_response(&answered);
        self.add_results(calls::reject(&calls, stop.clone()));
        self.record.response = text;
        self.record.wrapped_up = true;
    }
}
