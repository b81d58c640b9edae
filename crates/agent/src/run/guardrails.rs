//! The checks of the guardrails.

use std::sync::Arc;

use toolpost_core::{CallId, Event, ToolError};
use toolpost_llm::{Part, Turn};

use super::{Interrupted, Running, sleep_until};
use crate::results::RequestedCall;
use crate::{CallVerdict, Guardrail, RunStopReason, TextVerdict};

impl Running<'_> {
    /// Checks the latest user turn.
    pub(super) async fn guard_input(&mut self) -> Result<(), Interrupted> {
        if self.config.guardrails.is_empty() {
            return Ok(());
        }
        let Some(Turn::User(mut parts)) = self.request.turns.pop_if(|turn| matches!(turn, Turn::User(_)))
        else {
            return Ok(());
        };
        let mut checked = Ok(());
        for part in &mut parts {
            if let Part::Text(text) = part {
                match self.guard_text(text, |guardrail, text| guardrail.input(text)).await {
                    Ok(Some(replaced)) => *text = replaced,
                    Ok(None) => {}
                    Err(stop) => checked = Err(stop.into()),
                }
            }
        }
        // A blocked prompt is not part of the conversation.
        if checked.is_ok() {
            self.request.turns.push(Turn::User(parts));
        }
        checked
    }

    /// Checks the text of an answer. Returns the text to show.
    pub(super) async fn guard_output(&mut self, text: String) -> Result<String, Interrupted> {
        if !self.withholds_text() || text.is_empty() {
            return Ok(text);
        }
        let shown = self.guard_text(&text, |guardrail, text| guardrail.output(text)).await?.unwrap_or(text);
        self.emit(|running| Event::TextDelta { run: running.record.id, text: shown.clone() });
        Ok(shown)
    }

    /// Whether a guardrail checks text before it is shown.
    pub(super) fn withholds_text(&self) -> bool {
        self.config.guardrails.iter().any(|guardrail| guardrail.looks_at_output())
    }

    /// Checks a call. `Ok(Some(_))` is an error for the model, `Err(_)` ends the run.
    pub(super) async fn guard_call(
        &mut self,
        request: &mut RequestedCall,
    ) -> Result<Option<ToolError>, RunStopReason> {
        for guardrail in &self.config.guardrails {
            let verdict = self.unless_over(guardrail.call(&request.name, &request.arguments)).await?;
            match verdict {
                CallVerdict::Allow => {}
                CallVerdict::Replace(arguments) => {
                    request.arguments = Arc::new(arguments);
                    request.arguments_error = None;
                }
                CallVerdict::Refuse(reason) => {
                    let reason = format!("the call did not run: {reason}");
                    return Ok(Some(
                        ToolError::permission(reason).with("rule", guardrail.name()).public(CallId::new()),
                    ));
                }
                CallVerdict::Block(reason) => return Err(blocked(&**guardrail, &reason)),
            }
        }
        Ok(None)
    }

    async fn guard_text<'g>(
        &'g self,
        text: &str,
        ask: impl for<'a> Fn(&'a dyn Guardrail, &'a str) -> toolpost_core::BoxFuture<'a, TextVerdict>,
    ) -> Result<Option<String>, RunStopReason> {
        let mut replaced: Option<String> = None;
        for guardrail in &self.config.guardrails {
            let verdict = self.unless_over(ask(&**guardrail, replaced.as_deref().unwrap_or(text))).await?;
            match verdict {
                TextVerdict::Allow => {}
                TextVerdict::Replace(text) => replaced = Some(text),
                TextVerdict::Block(reason) => return Err(blocked(&**guardrail, &reason)),
            }
        }
        Ok(replaced)
    }

    /// Awaits a future until the run is cancelled or reaches its deadline.
    pub(super) async fn unless_over<T>(&self, future: impl Future<Output = T>) -> Result<T, RunStopReason> {
        tokio::select! {
            biased;
            () = self.run.cancellation.cancelled() => Err(RunStopReason::Cancelled),
            () = sleep_until(self.budget.deadline()) => Err(RunStopReason::MaxTime),
            done = future => Ok(done),
        }
    }
}

fn blocked(guardrail: &dyn Guardrail, reason: &str) -> RunStopReason {
    RunStopReason::Guardrail(format!("{}: {reason}", guardrail.name()))
}
