//! Persistence of a run while it continues.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join;
use serde_json::{Map, Value};
use toolpost_core::{Code, RunId, RunRecord, ToolError};
use toolpost_llm::{CodeExecutionMeter, ExchangeSink, Model, Recorder, Request, Turn};

use super::conversation::{Conversation, Ended, prompt_text};
use super::runs::{RunLog, Runs};
use crate::spend::Spent;

/// Where a run is persisted: a conversation, a store of runs, both or none.
///
/// A failed write ends no run: one notice reports it, and the next write includes what is missing. Only after a conflict
/// or a full conversation is the run no longer persisted there.
#[derive(Clone, Default)]
pub(crate) struct Persistence {
    conversation: Option<Conversation>,
    /// The edition of the conversation that the run continues.
    edition: u64,
    pub(crate) runs: Option<Runs>,
    /// The options of the caller, which are stored with the run.
    pub(crate) options: Option<Value>,
    run: Option<RunId>,
    log: Option<Arc<RunLog>>,
    /// Whether a notice has reported a failed write.
    has_reported: bool,
}

/// An error of a write.
struct WriteError {
    error: ToolError,
    /// Whether a retry is useless.
    is_final: bool,
}

impl From<ToolError> for WriteError {
    fn from(error: ToolError) -> Self {
        let is_final = error.code() == Code::Conflict;
        Self { error, is_final }
    }
}

impl Persistence {
    /// Persists the run in a conversation, as of an edition.
    pub(crate) fn set_conversation(&mut self, conversation: &Conversation, edition: u64) {
        self.edition = edition;
        self.conversation = Some(conversation.clone());
    }

    /// Begins with the record of the run so far.
    pub(crate) fn begin(&mut self, record: &RunRecord, turns: &[Turn]) {
        self.run = Some(record.id);
        let conversation = self.conversation.as_ref().map(Conversation::id);
        self.log = self.runs.as_ref().map(|runs| {
            let prompt = turns.iter().rev().find_map(prompt_text).unwrap_or_default();
            Arc::new(RunLog::new(runs, record, &prompt, conversation, self.options.as_ref()))
        });
    }

    /// The model, with its exchanges stored if runs are.
    pub(crate) fn recorded(&self, model: &Arc<dyn Model>) -> Arc<dyn Model> {
        match &self.log {
            Some(log) => {
                Arc::new(Recorder::with_sink(Arc::clone(model), Arc::clone(log) as Arc<dyn ExchangeSink>))
            }
            None => Arc::clone(model),
        }
    }

    /// The provider state of the conversation, by provider name.
    pub(crate) fn provider_state(&self) -> BTreeMap<String, Map<String, Value>> {
        self.conversation.as_ref().map(Conversation::provider_state).unwrap_or_default()
    }

    /// Billed code execution time of the conversation.
    pub(crate) fn code_meter(&self) -> CodeExecutionMeter {
        self.conversation.as_ref().map(Conversation::code_meter).unwrap_or_default()
    }

    /// Claims a paused run, with its turns and the number of its calls.
    ///
    /// # Errors
    /// Another process resumed it from the same pause, or continued its conversation. Without a store that is unknown.
    pub(crate) async fn claim(
        &mut self,
        pause: u32,
        again: bool,
        (turns, calls): (&[Turn], usize),
    ) -> Result<(), ToolError> {
        let conversation = self.conversation.as_ref().zip(self.run);
        let claim = async {
            if let Some((conversation, run)) = conversation {
                conversation.check_paused(run, turns).await?;
            }
            if let Some(log) = &self.log {
                log.claim(pause, again, calls).await?;
            }
            match conversation {
                Some((conversation, run)) => conversation.claim(self.edition, run).await,
                None => Ok(self.edition),
            }
        };
        let claimed = claim.await;
        match claimed {
            Ok(edition) => self.edition = edition,
            // The stored run is that of the other process.
            Err(_) => (self.log, self.conversation) = (None, None),
        }
        claimed.map(drop)
    }

    /// Stores the new turns of a request, calls and figures. Returns a notice if that failed.
    pub(crate) async fn save(
        &mut self,
        request: &Request,
        record: &RunRecord,
        spent: &Spent,
    ) -> Option<String> {
        if self.log.is_none() && self.conversation.is_none() {
            return None;
        }
        let log = self.log.clone();
        let save_run = async {
            match log {
                Some(log) => log.save(record, spent).await.map_err(WriteError::from),
                None => Ok(()),
            }
        };
        let add = self.add(|conversation, edition, run| {
            conversation.add_turns(edition, run, &request.turns, &request.tools)
        });
        // Concurrent, so that a store can write both together. Boxed, since every run has room for this future.
        let (conversation, run) = Box::pin(join(add, save_run)).await;
        self.report(conversation, run, false)
    }

    /// Stores a summary that replaces turns. Returns a notice if that failed.
    pub(crate) async fn splice(&mut self, range: (usize, usize), turn: &Turn) -> Option<String> {
        let spliced =
            self.add(|conversation, edition, run| conversation.splice(edition, run, range, turn, None)).await;
        self.report(spliced, Ok(()), false)
    }

    /// Stores the end of the run. Returns a notice if that failed.
    pub(crate) async fn finish(&mut self, ended: &Ended<'_>) -> Option<String> {
        let conversation = self.add(|conversation, edition, _| conversation.finish(edition, ended)).await;
        let run = match &self.log {
            Some(log) => log.finish(ended.record).await.map_err(WriteError::from),
            None => Ok(()),
        };
        self.report(conversation, run, true)
    }

    /// Adds to the conversation, and writes all its pending changes.
    async fn add(
        &mut self,
        add: impl FnOnce(&Conversation, u64, RunId) -> Result<u64, ToolError>,
    ) -> Result<(), WriteError> {
        let Some((conversation, run)) = self.conversation.as_ref().zip(self.run) else { return Ok(()) };
        self.edition =
            add(conversation, self.edition, run).map_err(|error| WriteError { error, is_final: true })?;
        conversation.flush().await.map_err(|error| WriteError::from(error.into_inner()))
    }

    /// The notice of failed writes, if it is new. Gives up a place after a final error.
    fn report(
        &mut self,
        conversation: Result<(), WriteError>,
        run: Result<(), WriteError>,
        is_end: bool,
    ) -> Option<String> {
        let is_final =
            |written: &Result<(), WriteError>| written.as_ref().is_err_and(|failed| failed.is_final);
        let lost = self.conversation.take_if(|_| is_final(&conversation));
        self.log.take_if(|_| is_final(&run));
        let mut notices = Vec::new();
        for (failed, place) in [(conversation.err(), "in its conversation"), (run.err(), "among the runs")] {
            let Some(WriteError { error, is_final }) = failed else { continue };
            if let Some(conversation) = lost.as_ref().filter(|_| error.code() == Code::Conflict) {
                let id = conversation.id();
                notices.push(format!(
                    "the conversation `{id}` no longer stores this run, because another run resumed it: fork it, \
                     or open it again"
                ));
            } else if is_final {
                notices.push(format!("the run is no longer stored {place}: {error}"));
            } else if is_end {
                notices.push(format!("the end of the run was not stored {place}: {error}"));
            } else if !std::mem::replace(&mut self.has_reported, true) {
                notices.push(format!(
                    "the run was not stored {place} and is retried with the next write: {error}"
                ));
            }
        }
        (!notices.is_empty()).then(|| notices.join("; "))
    }
}
