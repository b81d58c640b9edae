//! The conversation is made shorter when it comes near to the model's window.

use std::sync::Arc;

use toolpost_llm::{ErrorKind, Response};

use super::hosted_code::left_out;
use super::{Interrupted, Running, sleep_until};
use crate::RunStopReason;
use crate::compaction::middle;
use crate::meter::Meter;

impl Running<'_> {
    /// Asks the model, with a shorter conversation if this one is near to its window or too long for it.
    pub(super) async fn ask_within_window(&mut self) -> Result<Response, Interrupted> {
        let ours = self.config.compaction.as_ref();
        let ours = ours.filter(|compaction| !compaction.is_by_provider_of(&*self.config.model));
        let Some(compaction) = ours else { return self.ask_in_form().await };
        if compaction.is_due(self.context_tokens, &*self.model) {
            Box::pin(self.shorten()).await?;
        }
        let answer = match self.ask_in_form().await {
            Err(Interrupted { error: Some(error), .. }) if error.kind == ErrorKind::ContextTooLong => {
                if !Box::pin(self.shorten()).await? {
                    return Err((*error).into());
                }
                self.ask().await?
            }
            answer => answer?,
        };
        self.context_tokens = answer.usage.total();
        Ok(answer)
    }

    /// Asks the model; once more by way of a tool, and once more with the form in the instructions, if the form may be
    /// why it refuses the question.
    async fn ask_in_form(&mut self) -> Result<Response, Interrupted> {
        loop {
            match self.ask().await {
                Err(Interrupted { error: Some(error), .. }) if self.may_reject_schema(&error) => {
                    let reason = format!("the provider may take no schemas for answers ({error})");
                    if !self.request_schema_by_tool(&reason) {
                        self.describe_schema(&reason);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Puts a summary in the place of the middle of the conversation; whether that could be done.
    async fn shorten(&mut self) -> Result<bool, Interrupted> {
        let Some(compaction) = self.config.compaction.as_ref().filter(|_| !self.is_summary_lost) else {
            return Ok(false);
        };
        self.context_tokens = 0;
        let Some((from, to)) = middle(&self.request.turns, compaction.keep_turns) else {
            self.note("the conversation is near to the model's window, and has nothing that a summary could replace");
            return Ok(false);
        };
        let writer = match &compaction.model {
            Some(model) => self.keeper.listen(model),
            None => Arc::clone(&self.model),
        };
        let window = compaction.window_of(&*writer);
        let turns = self.request.turns.get(from..to).unwrap_or_default();
        let mut meter = Meter::new(self.budget.context(), &writer, self.config.pricing.as_ref());
        let summary = tokio::select! {
            biased;
            () = self.cancellation.cancelled() => Err(Interrupted::from(RunStopReason::Cancelled)),
            () = sleep_until(self.budget.deadline()) => Err(RunStopReason::MaxTime.into()),
            summary = compaction.summary(&mut meter, turns, window) => Ok(summary),
        };
        if let Some(spent) = meter.finish() {
            self.tell_usage(writer.id().to_string(), &spent, 0);
        }
        let turn = match summary? {
            Ok(turn) => turn,
            Err(error) => {
                // The next one would be paid for as well.
                self.is_summary_lost = true;
                self.note(&format!(
                    "the conversation could not be made shorter, and that is not tried again: {error}"
                ));
                return match self.budget.used_up() {
                    Some(stop) => Err(stop.into()),
                    None => Ok(false),
                };
            }
        };
        self.save().await;
        if let Some(notice) = self.keeper.splice((from, to), &turn).await {
            self.note(&notice);
        }
        self.request.turns.splice(from..to, [turn]);
        self.request.provider_state = left_out(&self.carry, &self.request.turns);
        self.note(&format!("a summary has taken the place of {} turns of the conversation", to - from));
        // What the summary cost may have been the rest.
        match self.budget.used_up() {
            Some(stop) => Err(stop.into()),
            None => Ok(true),
        }
    }
}
