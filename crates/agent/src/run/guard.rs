//! Guardrails are asked.

use std::sync::Arc;

use toolpost_core::{CallId, Event, ToolError};
use toolpost_llm::{Part, Turn};

use super::{Interrupted, Running, sleep_until};
use crate::results::Wanted;
use crate::{CallVerdict, Guardrail, RunStopReason, TextVerdict};

impl Running<'_> {
    /// Looks at what the user has said last.
    pub(super) async fn guard_input(&mut self) -> Result<(), Interrupted> {
        if self.config.guardrails.is_empty() {
            return Ok(());
        }
        let Some(Turn::User(mut parts)) = self.request.turns.pop_if(|turn| matches!(turn, Turn::User(_)))
        else {
            return Ok(());
        };
        let mut said = Ok(());
        for part in &mut parts {
            if let Part::Text(text) = part {
                match self.guard_text(text, |guardrail, text| guardrail.input(text)).await {
                    Ok(Some(replaced)) => *text = replaced,
                    Ok(None) => {}
                    Err(stop) => said = Err(stop.into()),
                }
            }
        }
        // What is blocked is no part of the conversation.
        if said.is_ok() {
            self.request.turns.push(Turn::User(parts));
        }
        said
    }

    /// Looks at what an answer says, and gives what may be shown.
    pub(super) async fn guard_output(&mut self, text: String) -> Result<String, Interrupted> {
        if !self.withholds_text() || text.is_empty() {
            return Ok(text);
        }
        let shown = self.guard_text(&text, |guardrail, text| guardrail.output(text)).await?.unwrap_or(text);
        self.emit(|running| Event::TextDelta { run: running.record.id, text: shown.clone() });
        Ok(shown)
    }

    /// Whether somebody must see a text before it is shown.
    pub(super) fn withholds_text(&self) -> bool {
        self.config.guardrails.iter().any(|guardrail| guardrail.looks_at_output())
    }

    /// Looks at a call. `Err(Ok(_))` is a refusal that the model is told of, `Err(Err(_))` the end of the run.
    pub(super) async fn guard_call(
        &mut self,
        wanted: &mut Wanted,
    ) -> Result<Option<ToolError>, RunStopReason> {
        for guardrail in &self.config.guardrails {
            let verdict = self.unless_over(guardrail.call(&wanted.name, &wanted.arguments)).await?;
            match verdict {
                CallVerdict::Allow => {}
                CallVerdict::Replace(arguments) => {
                    wanted.arguments = Arc::new(arguments);
                    wanted.arguments_error = None;
                }
                CallVerdict::Refuse(reason) => {
                    let reason = format!("the call was not made: {reason}");
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

    /// Waits for something, but not beyond the run's own time.
    async fn unless_over<T>(&self, future: impl Future<Output = T>) -> Result<T, RunStopReason> {
        tokio::select! {
            biased;
            () = self.cancellation.cancelled() => Err(RunStopReason::Cancelled),
            () = sleep_until(self.budget.deadline()) => Err(RunStopReason::MaxTime),
            done = future => Ok(done),
        }
    }
}

fn blocked(guardrail: &dyn Guardrail, reason: &str) -> RunStopReason {
    RunStopReason::Guardrail(format!("{}: {reason}", guardrail.name()))
}
