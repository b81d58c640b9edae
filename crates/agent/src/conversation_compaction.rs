//! Compaction of a stored conversation on request.

use std::sync::Arc;

use toolpost_core::{CallError, ToolError, Usage};

use crate::compaction::middle;
use crate::meter::Meter;
use crate::run_context::RunContext;
use crate::spend::Spent;
use crate::{Agent, Conversation, RunLimits};

/// The result of compacting a conversation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Compacted {
    /// The number of turns that became a summary.
    pub turns: usize,
    /// Tokens used for the summary.
    pub usage: Usage,
    /// The cost of the summary in US dollars; `None` is unknown.
    pub cost_usd: Option<f64>,
}

impl Conversation {
    /// Compacts the conversation now, with the agent's [`Compaction`](crate::Compaction) or the default one.
    ///
    /// Returns `None` if a summary could replace nothing. The cost of the summary counts for the conversation even if the
    /// summary fails. If the future is dropped, [`flush`](Self::flush) or the next run persists that cost.
    ///
    /// # Errors
    /// `DEPENDENCY` if the model failed to write the summary, `CONFLICT` if another run changed the conversation meanwhile,
    /// and errors of the store: then the next write includes the summary.
    pub async fn compact(&self, agent: &Agent) -> Result<Option<Compacted>, CallError> {
        let compaction = agent.0.compaction.clone().unwrap_or_default();
        let (turns, edition) = self.turns_to_continue();
        let last = self.exchanges().last().map(|exchange| exchange.run);
        let Some(((from, to), run)) = middle(&turns, compaction.keep_turns).zip(last) else {
            return Ok(None);
        };
        let writer = compaction.model.as_ref().unwrap_or(&agent.0.model);
        let window = compaction.window_of(&**writer);
        let mut paid = Paid::by(self);
        let mut meter = Meter::new(&paid.context, writer, agent.0.pricing.as_ref());
        let summary = compaction.summary(&mut meter, turns.get(from..to).unwrap_or_default(), window).await;
        drop(meter);
        let spent = paid.context.spent();
        let added = match summary {
            Ok(turn) => self
                .add_turns(edition, run, &turns, &[])
                .and_then(|edition| self.splice(edition, run, (from, to), &turn, Some(&spent))),
            Err(error) => Err(ToolError::dependency(format!("the summary could not be written: {error}"))),
        };
        paid.is_counted = added.is_ok();
        drop(paid);
        self.flush().await?;
        added?;
        Ok(Some(Compacted { turns: to - from, usage: spent.usage, cost_usd: spent.cost_usd }))
    }
}

/// Counts spending outside of runs for a conversation, even if the future that spends it is dropped.
struct Paid<'a> {
    conversation: &'a Conversation,
    context: Arc<RunContext>,
    /// Whether another entry has counted it.
    is_counted: bool,
}

impl<'a> Paid<'a> {
    fn by(conversation: &'a Conversation) -> Self {
        let context = Arc::new(RunContext::new(&RunLimits::default(), None));
        Self { conversation, context, is_counted: false }
    }
}

impl Drop for Paid<'_> {
    fn drop(&mut self) {
        let spent = self.context.spent();
        if !self.is_counted && spent != Spent::default() {
            self.conversation.spend(&spent);
        }
    }
}
