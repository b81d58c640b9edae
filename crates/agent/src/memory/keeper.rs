//! What a run keeps of itself while it runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join;
use serde_json::{Map, Value};
use toolpost_core::{Code, RunId, RunRecord, ToolError};
use toolpost_llm::{CodeExecutionMeter, ExchangeSink, Model, Part, Recorder, Turn};

use super::conversation::{Conversation, Ended};
use super::runs::{RunLog, Runs, now};
use crate::spend::Spent;

/// The conversation and the store of runs that a run is kept in, if any. What cannot be kept does not end the run: its
/// record says so, once, and the next time it is tried again. Only a conversation that another run resumed is given up.
#[derive(Clone, Default)]
pub(crate) struct Keeper {
    conversation: Option<Conversation>,
    /// The edition of the conversation that the run goes on from.
    edition: u64,
    pub(crate) runs: Option<Runs>,
    run: Option<RunId>,
    log: Option<Arc<RunLog>>,
    /// Whether it was told that something could not be kept for now.
    has_told: bool,
}

impl Keeper {
    /// Keeps the run in a conversation, as it stands at an edition.
    pub(crate) fn hold(&mut self, conversation: &Conversation, edition: u64) {
        self.edition = edition;
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
                Arc::new(Recorder::with_sink(Arc::clone(model), Arc::clone(log) as Arc<dyn ExchangeSink>))
            }
            None => Arc::clone(model),
        }
    }

    /// What the next requests to providers carry, by provider.
    pub(crate) fn carry(&self) -> BTreeMap<String, Map<String, Value>> {
        self.conversation.as_ref().map(Conversation::provider_state).unwrap_or_default()
    }

    /// The time that the provider's code was billed for in the conversation so far.
    pub(crate) fn code_meter(&self) -> CodeExecutionMeter {
        self.conversation.as_ref().map(Conversation::code_meter).unwrap_or_default()
    }

    /// Takes over a run that waits, from a pause, with these turns and so many calls made; the error if somebody has gone
    /// on from it before, or with its conversation. Where neither is kept, that is not known.
    pub(crate) async fn claim(
        &mut self,
        pause: u32,
        again: bool,
        (turns, calls): (&[Turn], usize),
    ) -> Result<(), ToolError> {
        let claimed = self.try_claim(pause, again, (turns, calls)).await;
        if claimed.is_err() {
            // What is kept is somebody else's.
            (self.log, self.conversation) = (None, None);
        }
        claimed
    }

    async fn try_claim(
        &mut self,
        pause: u32,
        again: bool,
        (turns, calls): (&[Turn], usize),
    ) -> Result<(), ToolError> {
        let conversation = self.conversation.as_ref().zip(self.run);
        if let Some((conversation, run)) = conversation {
            conversation.check_waiting(run, turns).await?;
        }
        if let Some(log) = &self.log {
            log.claim(pause, again, calls).await?;
        }
        if let Some((conversation, run)) = conversation {
            self.edition = conversation.claim(self.edition, run).await?;
        }
        Ok(())
    }

    /// Keeps what came since the last time, and how far the run has come; the notice if that failed.
    pub(crate) async fn save(&mut self, turns: &[Turn], record: &RunRecord, spent: &Spent) -> Option<String> {
        if self.log.is_none() && self.conversation.is_none() {
            return None;
        }
        let log = self.log.clone();
        let save_run = async {
            match log {
                Some(log) => log.save(record, spent).await.map_err(Unkept::from),
                None => Ok(()),
            }
        };
        let add = self.add(|conversation, edition, run| conversation.add_turns(edition, run, turns));
        // At once, so that a store can write both to its disk together. Apart, since every run has room for this future,
        // and most are not kept.
        let (of_conversation, of_run) = Box::pin(join(add, save_run)).await;
        self.judge(of_conversation, of_run, false)
    }

    /// Keeps that a turn came in the place of others; the notice if that failed.
    pub(crate) async fn splice(&mut self, range: (usize, usize), turn: &Turn) -> Option<String> {
        let of_conversation =
            self.add(|conversation, edition, run| conversation.splice(edition, run, range, turn, None)).await;
        self.judge(of_conversation, Ok(()), false)
    }

    /// Keeps how it ended; the notice if that failed.
    pub(crate) async fn finish(&mut self, ended: &Ended<'_>) -> Option<String> {
        let mut of_conversation =
            self.add(|conversation, edition, _| conversation.finish(edition, ended)).await;
        if let Some(conversation) = self.conversation.as_ref().filter(|_| of_conversation.is_ok()) {
            of_conversation = conversation.touch().await.map_err(Unkept::from);
        }
        let of_run = match &self.log {
            Some(log) => log.finish(ended.record).await.map_err(Unkept::from),
            None => Ok(()),
        };
        self.judge(of_conversation, of_run, true)
    }

    /// Adds to the conversation, and writes all that was added to it so far.
    async fn add(
        &mut self,
        add: impl FnOnce(&Conversation, u64, RunId) -> Result<u64, ToolError>,
    ) -> Result<(), Unkept> {
        let Some((conversation, run)) = self.conversation.as_ref().zip(self.run) else { return Ok(()) };
        // What cannot be added now never can.
        self.edition =
            add(conversation, self.edition, run).map_err(|error| Unkept { error, for_ever: true })?;
        conversation.flush().await.map_err(Unkept::from)
    }

    /// The notice of what could not be kept, if that is new.
    fn judge(
        &mut self,
        of_conversation: Result<(), Unkept>,
        of_run: Result<(), Unkept>,
        is_end: bool,
    ) -> Option<String> {
        let is_lost = |unkept: &Unkept| unkept.for_ever;
        let lost = self.conversation.take_if(|_| of_conversation.as_ref().is_err_and(is_lost));
        if of_run.as_ref().is_err_and(|unkept| unkept.for_ever) {
            self.log = None;
        }
        let failed = [(of_conversation.err(), "in its conversation"), (of_run.err(), "among the runs")];
        let mut notices = Vec::new();
        for (unkept, place) in failed {
            let Some(Unkept { error, for_ever }) = unkept else { continue };
            if let Some(conversation) = lost.as_ref().filter(|_| error.code() == Code::Conflict) {
                let id = conversation.id();
                notices.push(format!(
                    "the conversation `{id}` no longer stores this run, because another run resumed it. Fork it with \
                     `--fork {id}`, or open it again with `--resume {id}`"
                ));
            } else if for_ever {
                notices.push(format!("the run is no longer stored {place}: {error}"));
            } else if is_end {
                notices.push(format!("the end of the run was not stored {place}: {error}"));
            } else if !std::mem::replace(&mut self.has_told, true) {
                notices.push(format!(
                    "the run was not stored {place} and is retried with the next write: {error}"
                ));
            }
        }
        (!notices.is_empty()).then(|| notices.join("; "))
    }
}

/// Why something could not be kept.
struct Unkept {
    error: ToolError,
    /// Whether it is of no use to try again.
    for_ever: bool,
}

impl From<ToolError> for Unkept {
    fn from(error: ToolError) -> Self {
        let for_ever = error.code() == Code::Conflict;
        Self { error, for_ever }
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
