//! What a run keeps of itself while it runs.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolpost_core::{RunId, RunRecord, ToolError};
use toolpost_llm::{CodeExecutionMeter, ExchangeSink, Model, Part, Recorder, Turn};
use toolpost_toolbox::ToolSession;

use super::conversation::Conversation;
use super::runs::{RunLog, Runs, now};
use crate::run::Spent;

/// The conversation and the store of runs that a run is kept in, if any. What cannot be kept does not end the run: its
/// record says so, once.
#[derive(Clone, Default)]
pub(crate) struct Keeper {
    conversation: Option<Conversation>,
    /// The edition of the conversation that the run goes on from.
    edition: u64,
    pub(crate) runs: Option<Runs>,
    run: Option<RunId>,
    log: Option<Arc<RunLog>>,
    has_failed: bool,
}

impl Keeper {
    /// Keeps the run in a conversation, as it stands now.
    pub(crate) fn hold(&mut self, conversation: &Conversation) {
        self.edition = conversation.edition();
        self.conversation = Some(conversation.clone());
    }

    /// Begins to keep a run: what listens to its models, if somebody does.
    pub(crate) fn begin(&mut self, run: RunId, parent: Option<RunId>, model: &dyn Model, turns: &[Turn]) {
        self.run = Some(run);
        let Some(runs) = &self.runs else { return };
        let log = RunLog::new(runs.clone(), run, model.id().to_string(), now());
        log.begin(prompt(turns), parent, self.conversation.as_ref().map(Conversation::id));
        self.log = Some(Arc::new(log));
    }

    /// A model whose exchanges are kept.
    pub(crate) fn listen(&self, model: &Arc<dyn Model>) -> Arc<dyn Model> {
        match &self.log {
            Some(log) => {
                Arc::new(Recorder::tell(Arc::clone(model), Arc::clone(log) as Arc<dyn ExchangeSink>))
            }
            None => Arc::clone(model),
        }
    }

    /// What the next request to a provider carries.
    pub(crate) fn carry(&self, provider: &str) -> Map<String, Value> {
        self.conversation.as_ref().map(|conversation| conversation.carry(provider)).unwrap_or_default()
    }

    /// The time that the provider's code was billed for in the conversation so far.
    pub(crate) fn code_meter(&self) -> CodeExecutionMeter {
        self.conversation.as_ref().map(Conversation::code_meter).unwrap_or_default()
    }

    /// Keeps that time with the conversation, when the run's end is kept.
    pub(crate) fn keep_code_meter(&self, meter: CodeExecutionMeter) {
        if let Some(conversation) = &self.conversation {
            conversation.set_code_meter(meter);
        }
    }

    /// Takes over a run that waits, from a pause and with so many calls made; the error if somebody has gone on from it
    /// before. Where runs are not kept, that is not known.
    pub(crate) async fn claim(&mut self, pause: u32, again: bool, calls: usize) -> Result<(), ToolError> {
        let Some(log) = &self.log else { return Ok(()) };
        let claimed = log.claim(pause, again, calls).await;
        if claimed.is_err() {
            // What is kept is somebody else's.
            (self.log, self.conversation) = (None, None);
        }
        claimed
    }

    /// Keeps what came since the last time, and how far the run has come; the notice if that failed.
    pub(crate) async fn save(&mut self, turns: &[Turn], record: &RunRecord, spent: Spent) -> Option<String> {
        let (conversation, log, run) = (self.conversation.clone(), self.log.clone(), self.run?);
        let work = async {
            if let Some(conversation) = conversation {
                conversation.is_still(self.edition)?;
                conversation.save(run, turns).await?;
                self.edition = conversation.edition();
            }
            match log {
                Some(log) => log.save(record, spent).await,
                None => Ok(()),
            }
        };
        let done = work.await;
        self.notice(done)
    }

    /// Keeps that turns came in the place of others; the notice if that failed.
    pub(crate) async fn splice(&mut self, from: usize, to: usize, turns: &[Turn]) -> Option<String> {
        let (conversation, run) = (self.conversation.clone()?, self.run?);
        let work = async {
            conversation.is_still(self.edition)?;
            conversation.splice(run, from, to, turns).await?;
            self.edition = conversation.edition();
            Ok(())
        };
        let done = work.await;
        self.notice(done)
    }

    /// Keeps how it ended; the notice if that failed.
    pub(crate) async fn finish(
        &mut self,
        record: &RunRecord,
        turns: &[Turn],
        carry: &Map<String, Value>,
        session: Option<&ToolSession>,
    ) -> Option<String> {
        let (conversation, log) = (self.conversation.take(), self.log.take());
        let work = async {
            if let Some(conversation) = conversation.filter(|_| !self.has_failed) {
                conversation.is_still(self.edition)?;
                conversation.finish(record, turns, carry, session).await?;
                conversation.touch().await?;
            }
            match log {
                Some(log) => log.finish(record).await,
                None => Ok(()),
            }
        };
        let done = work.await;
        self.notice(done)
    }

    fn notice(&mut self, done: Result<(), ToolError>) -> Option<String> {
        let error = done.err()?;
        let is_first = !std::mem::replace(&mut self.has_failed, true);
        is_first.then(|| format!("the run is no longer kept: {error}"))
    }
}

/// The text of the latest prompt.
fn prompt(turns: &[Turn]) -> &str {
    let prompt = turns.iter().rev().find_map(|turn| match turn {
        Turn::User(parts) => parts.iter().find_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        }),
        _ => None,
    });
    prompt.unwrap_or_default()
}
