//! Compaction of a conversation that approaches the context window of the model.

use std::sync::Arc;

use toolpost_llm::{ErrorKind, Response};

use super::hosted_code::missing;
use super::{Interrupted, Running};
use crate::compaction::middle;
use crate::meter::Meter;

impl Running<'_> {
    /// Requests an answer, and compacts the conversation if it approaches or exceeds the context window.
    pub(super) async fn request_within_window(&mut self) -> Result<Response, Interrupted> {
        let ours = self.config.compaction.as_ref();
        let ours = ours.filter(|compaction| !compaction.is_by_provider_of(&*self.config.model));
        let Some(compaction) = ours else { return self.request_with_schema().await };
        if compaction.is_due(self.context_tokens, &*self.model) {
            Box::pin(self.compact()).await?;
        }
        let answer = match self.request_with_schema().await {
            Err(Interrupted { error: Some(error), .. }) if error.kind == ErrorKind::ContextTooLong => {
                if !Box::pin(self.compact()).await? {
                    return Err((*error).into());
                }
                self.request_answer().await?
            }
            answer => answer?,
        };
        self.context_tokens = answer.usage.total();
        Ok(answer)
    }

    /// Requests an answer. If the provider may have rejected the answer schema, requests it again: through a tool, then
    /// with the schema in the system prompt.
    async fn request_with_schema(&mut self) -> Result<Response, Interrupted> {
        loop {
            match self.request_answer().await {
                Err(Interrupted { error: Some(error), .. }) if self.may_reject_schema(&error) => {
                    let reason = format!("the provider may not support answer schemas ({error})");
                    if !self.request_schema_by_tool(&reason) {
                        self.describe_schema(&reason);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Replaces the middle of the conversation by a summary. Returns whether that succeeded.
    async fn compact(&mut self) -> Result<bool, Interrupted> {
        let Some(compaction) = self.config.compaction.as_ref().filter(|_| !self.has_summary_failed) else {
            return Ok(false);
        };
        self.context_tokens = 0;
        let Some((from, to)) = middle(&self.request.turns, compaction.keep_turns) else {
            self.note("the conversation approaches the context window, but a summary can replace nothing");
            return Ok(false);
        };
        let writer = match &compaction.model {
            Some(model) => self.run.persistence.recorded(model),
            None => Arc::clone(&self.model),
        };
        let window = compaction.window_of(&*writer);
        let turns = self.request.turns.get(from..to).unwrap_or_default();
        let mut meter = Meter::new(&self.budget.context, &writer, self.config.pricing.as_ref());
        let summary = self.unless_over(compaction.summary(&mut meter, turns, window)).await;
        if let Some(spent) = meter.finish() {
            self.emit_usage(writer.id().to_string(), &spent, 0);
        }
        let turn = match summary? {
            Ok(turn) => turn,
            Err(error) => {
                // Another attempt would cost as much.
                self.has_summary_failed = true;
                self.note(&format!("compaction failed and is off for this run: {error}"));
                return match self.budget.context.used_up() {
                    Some(stop) => Err(stop.into()),
                    None => Ok(false),
                };
            }
        };
        self.save().await;
        if let Some(notice) = self.run.persistence.splice((from, to), &turn).await {
            self.note(&notice);
        }
        self.request.turns.splice(from..to, [turn]);
        self.request.provider_state = missing(&self.run.provider_state, &self.request.turns);
        self.note(&format!("a summary replaced {} turns of the conversation", to - from));
        // The summary may have used up the limit.
        match self.budget.context.used_up() {
            Some(stop) => Err(stop.into()),
            None => Ok(true),
        }
    }
}
