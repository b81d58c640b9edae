//! One stored conversation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{
    Clock, Code, Document, RunId, RunRecord, ScopeId, SystemClock, Timestamp, ToolError, to_json,
};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{CodeExecutionMeter, ItemView, Part, ToolResult, Turn};

use super::backlog::Backlog;
use super::head::{ConversationSummary, Head, shortened};
use super::latest::set_latest;
use super::ledger::Ledger;
use crate::spend::Spent;

/// Bytes of JSON of all turns of a conversation, compacted ones included.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// A conversation that is persisted after every answer and every tool result. Clones are the same conversation.
///
/// One run at a time can continue it. Of two concurrent runs, in this process or in another, the second one can no longer
/// persist its turns, and its record has a notice. Fork the conversation for concurrent runs.
#[derive(Clone)]
pub struct Conversation(Arc<Inner>);

struct Inner {
    backlog: Backlog<Head>,
    id: ScopeId,
    state: Mutex<State>,
}

/// All turns, persisted or not.
struct State {
    turns: Vec<Turn>,
    /// Results for pending calls of the last turn, for a run that continues without resuming.
    open: Vec<ToolResult>,
    exchanges: Vec<Exchange>,
    /// The number of changes by this handle and its clones.
    edition: u64,
}

/// A prompt of a conversation with the turns that followed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exchange {
    /// The run that answered.
    pub run: RunId,
    /// When the prompt was persisted.
    pub at: Timestamp,
    /// The index of its first turn.
    pub first_turn: usize,
}

/// A change of a conversation.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// New turns, and results for pending calls of the last one.
    Turns {
        run: RunId,
        turns: Vec<Turn>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        open: Vec<ToolResult>,
    },
    /// Turns that replace others.
    Splice { run: RunId, from: usize, to: usize, turns: Vec<Turn> },
}

impl State {
    fn new() -> Self {
        Self { turns: Vec::new(), open: Vec::new(), exchanges: Vec::new(), edition: 0 }
    }

    fn add(&mut self, at: Timestamp, entry: Entry) {
        self.edition += 1;
        match entry {
            Entry::Turns { run, turns, open } => {
                // Results that complete the last turn belong to the prompt before.
                let completes = matches!(turns.first(), Some(Turn::ToolResults(_)));
                self.begin(run, at, self.turns.len() + usize::from(completes));
                self.turns.extend(turns);
                self.open = open;
            }
            Entry::Splice { run, from, to, turns } => {
                self.begin(run, at, self.turns.len());
                self.splice(from, to, turns);
            }
        }
    }

    /// Starts an exchange unless the run already has one.
    fn begin(&mut self, run: RunId, at: Timestamp, first_turn: usize) {
        if self.exchanges.last().is_none_or(|last| last.run != run) {
            self.exchanges.push(Exchange { run, at, first_turn });
        }
    }

    fn splice(&mut self, from: usize, to: usize, turns: Vec<Turn>) {
        let to = to.min(self.turns.len());
        let from = from.min(to);
        let after = from + turns.len();
        self.turns.splice(from..to, turns);
        for exchange in &mut self.exchanges {
            let first = exchange.first_turn;
            exchange.first_turn = match first {
                first if first >= to => first - to + after,
                first => first.min(from),
            };
        }
    }

    /// The turns, with a result for every call: a paused run leaves some calls without a result, a killed one all.
    fn complete_turns(&self) -> Vec<Turn> {
        let mut turns = self.turns.clone();
        let Some(Turn::Assistant(turn)) = turns.last() else { return turns };
        let calls = turn.items.iter().filter_map(|item| match item.view() {
            ItemView::ToolCall { id, name, .. } => Some((id, name)),
            _ => None,
        });
        let results: Vec<ToolResult> = calls
            .map(|(id, name)| {
                let known = self.open.iter().find(|result| result.call_id == *id);
                known.cloned().unwrap_or_else(|| ToolResult {
                    is_error: true,
                    ..ToolResult::text(
                        id,
                        name,
                        "The run was interrupted before the result was stored; the tool may have run.",
                    )
                })
            })
            .collect();
        if !results.is_empty() {
            turns.push(Turn::ToolResults(results));
        }
        turns
    }
}

impl Conversation {
    pub(super) fn begin(ledger: Ledger, id: ScopeId, name: String, head: Head) -> Self {
        let document = Document { id: name, version: 0, value: Arc::default() };
        Self::of(ledger, id, document, head, State::new())
    }

    fn of(ledger: Ledger, id: ScopeId, document: Document, head: Head, state: State) -> Self {
        let backlog = Backlog::new(ledger, document, head, Head::read);
        Self(Arc::new(Inner { backlog, id, state: Mutex::new(state) }))
    }

    /// Reads a conversation, up to its first `prompts` prompts and their answers.
    pub(super) async fn read(
        ledger: Ledger,
        id: ScopeId,
        document: Document,
        prompts: usize,
    ) -> Result<Self, ToolError> {
        let (head, mut state) = (Head::read(&document)?, State::new());
        ledger
            .read(&document.id, document.version, |at, entry: Entry| {
                let (Entry::Turns { run, .. } | Entry::Splice { run, .. }) = &entry;
                let is_new = state.exchanges.last().is_none_or(|last| last.run != *run);
                if is_new && state.exchanges.len() == prompts {
                    return false;
                }
                state.add(at, entry);
                true
            })
            .await?;
        Ok(Self::of(ledger, id, document, head, state))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No panic leaves a partial change.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id, which is also the scope of its tool calls.
    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// A summary: title, figures, times.
    pub fn summary(&self) -> ConversationSummary {
        ConversationSummary::of(self.0.id, &self.0.backlog.head())
    }

    /// All turns, with a result for every tool call.
    pub fn turns(&self) -> Vec<Turn> {
        self.state().complete_turns()
    }

    /// The prompts, oldest first.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.state().exchanges.clone()
    }

    /// The loaded tools.
    pub fn tool_session(&self) -> Option<ToolSession> {
        let session = self.0.backlog.head().tool_session?;
        serde_json::from_value(session).ok()
    }

    /// Provider state beyond the turns, by provider name, such as the id of a code container.
    pub fn provider_state(&self) -> BTreeMap<String, Map<String, Value>> {
        self.0.backlog.head().carry
    }

    pub(super) fn code_meter(&self) -> CodeExecutionMeter {
        self.0.backlog.head().code_meter
    }

    /// The turns to continue from, and the edition that they are of.
    pub(crate) fn turns_to_continue(&self) -> (Vec<Turn>, u64) {
        let state = self.state();
        (state.complete_turns(), state.edition)
    }

    /// Sets the title, of at most 80 characters. Defaults to the beginning of the first prompt.
    ///
    /// # Errors
    /// `CONFLICT` if another run changed the conversation, and errors of the store: then the next write includes the title.
    pub async fn set_title(&self, title: &str) -> Result<(), ToolError> {
        let backlog = &self.0.backlog;
        let title = shortened(&backlog.ledger().scrubber().scrub(title.to_owned()));
        if backlog.is_new() {
            backlog.prepare(|head| head.title = title);
            return Ok(());
        }
        let now = SystemClock.timestamp();
        backlog.push(None, move |head| {
            head.title.clone_from(&title);
            head.updated = now;
        });
        self.flush().await
    }

    /// Counts spending outside of runs.
    pub(crate) fn spend(&self, spent: Spent) {
        self.0.backlog.push(None, move |head| head.spend(&spent));
    }

    /// The edition, which every change increments.
    pub(crate) fn edition(&self) -> u64 {
        self.state().edition
    }

    /// Adds the turns since the last change; the next [`flush`](Self::flush) persists them. Returns the new edition.
    ///
    /// # Errors
    /// `CONFLICT` if the conversation changed since the edition, `LIMIT` if it would exceed its maximum size.
    pub(crate) fn add_turns(&self, edition: u64, run: RunId, turns: &[Turn]) -> Result<u64, ToolError> {
        let mut state = self.state_at(edition)?;
        match turns.get(state.turns.len()..) {
            Some(new) if !new.is_empty() => {
                let entry = Entry::Turns { run, turns: new.to_vec(), open: Vec::new() };
                self.add(&mut state, entry, |_| ())
            }
            _ => Ok(edition),
        }
    }

    /// Replaces turns, in the same way.
    pub(crate) fn splice(
        &self,
        edition: u64,
        run: RunId,
        range: (usize, usize),
        turn: &Turn,
        spent: Option<Spent>,
    ) -> Result<u64, ToolError> {
        let mut state = self.state_at(edition)?;
        let entry = Entry::Splice { run, from: range.0, to: range.1, turns: vec![turn.clone()] };
        self.add(&mut state, entry, move |head| spent.iter().for_each(|spent| head.spend(spent)))
    }

    /// Adds the remaining turns and the figures of a run that ended or paused, in the same way.
    pub(super) fn finish(&self, edition: u64, ended: &Ended<'_>) -> Result<u64, ToolError> {
        let mut state = self.state_at(edition)?;
        let new = ended.turns.get(state.turns.len()..).unwrap_or_default();
        let run = ended.record.id;
        let entry = Entry::Turns { run, turns: new.to_vec(), open: ended.open.clone() };
        let spent = Spent { usage: ended.record.usage.clone(), cost_usd: ended.record.cost_usd };
        let session = ended.session.map(to_json).transpose()?;
        let (model, is_paused) = (ended.record.model.clone(), !ended.open.is_empty());
        let (carry, meter) = (ended.carry.clone(), ended.code_meter.clone().compacted());
        self.add(&mut state, entry, move |head| {
            head.model.clone_from(&model);
            head.spend_for_run(run, &spent, is_paused);
            for (provider, carry) in carry.iter().filter(|(_, carry)| !carry.is_empty()) {
                head.carry.entry(provider.clone()).or_default().extend(carry.clone());
            }
            head.code_meter.clone_from(&meter);
            if session.is_some() {
                head.tool_session.clone_from(&session);
            }
        })
    }

    /// Checks that a paused run is still the latest change.
    ///
    /// # Errors
    /// `CONFLICT` if it is not, and errors of the store.
    pub(super) async fn check_waiting(&self, run: RunId, turns: &[Turn]) -> Result<(), ToolError> {
        {
            let state = self.state();
            let is_last = state.exchanges.last().is_none_or(|last| last.run == run);
            // A summary may have replaced turns since.
            let follows = match state.turns.last() {
                Some(stored) => match turns.get(state.turns.len() - 1) {
                    Some(turn) => self.as_stored(stored)? == self.as_stored(turn)?,
                    None => false,
                },
                None => true,
            };
            if !is_last || !follows {
                return Err(superseded(run));
            }
        }
        self.0.backlog.check().await.map_err(|error| superseded_if_conflict(error, run))
    }

    /// A turn as stored: without secrets, with normalized numbers.
    fn as_stored(&self, turn: &Turn) -> Result<Value, ToolError> {
        Ok(serde_json::from_str(&self.0.backlog.ledger().text(turn)?)?)
    }

    /// Claims the conversation for a resumed run, so that no other run can continue the same turns. Returns the new edition.
    ///
    /// # Errors
    /// `CONFLICT` if another run was faster, and errors of the store.
    pub(super) async fn claim(&self, edition: u64, run: RunId) -> Result<u64, ToolError> {
        let added = self.state_at(edition).and_then(|mut state| {
            self.add(&mut state, Entry::Turns { run, turns: Vec::new(), open: Vec::new() }, |_| ())
        });
        let claimed = match added {
            Ok(edition) => self.flush().await.map(|()| edition),
            Err(error) => Err(error),
        };
        claimed.map_err(|error| superseded_if_conflict(error, run))
    }

    /// Writes pending changes: those that the store rejected, and those of dropped futures.
    ///
    /// # Errors
    /// `CONFLICT` if another run changed the conversation, and errors of the store: then the next call continues there.
    pub async fn flush(&self) -> Result<(), ToolError> {
        self.0.backlog.flush(|_| ()).await
    }

    /// Marks it as the latest conversation of its directory.
    pub(super) async fn touch(&self) -> Result<(), ToolError> {
        match self.0.backlog.head().folder {
            Some(folder) => set_latest(self.0.backlog.ledger(), &folder, self.0.id).await,
            None => Ok(()),
        }
    }

    /// The state, if it did not change since an edition.
    fn state_at(&self, edition: u64) -> Result<MutexGuard<'_, State>, ToolError> {
        let state = self.state();
        if state.edition == edition {
            return Ok(state);
        }
        Err(ToolError::conflict("another run changed the conversation since this one began")
            .suggest("Fork the conversation for concurrent runs."))
    }

    /// Adds an entry and changes the head. Returns the new edition.
    fn add(
        &self,
        state: &mut State,
        entry: Entry,
        over: impl Fn(&mut Head) + Send + Sync + 'static,
    ) -> Result<u64, ToolError> {
        let backlog = &self.0.backlog;
        let text = backlog.ledger().text(&entry)?;
        let length = text.len() as u64;
        let bytes = backlog.head().bytes.saturating_add(length);
        if bytes > MAX_BYTES {
            return Err(ToolError::limit(format!(
                "the conversation would have {bytes} bytes; the maximum is {MAX_BYTES}"
            ))
            .suggest("Start a new conversation."));
        }
        let title = match &entry {
            Entry::Turns { turns, .. } => title(turns, backlog.ledger()),
            Entry::Splice { .. } => String::new(),
        };
        let (Entry::Turns { run, .. } | Entry::Splice { run, .. }) = &entry;
        let (run, now) = (*run, SystemClock.timestamp());
        state.add(now, entry);
        let turns = state.turns.len();
        backlog.push(Some(text), move |head| {
            head.bytes = head.bytes.saturating_add(length);
            head.turns = turns;
            if head.last_run.replace(run) != Some(run) {
                head.prompts += 1;
            }
            if head.title.is_empty() {
                head.title.clone_from(&title);
            }
            head.updated = now;
            over(head);
        });
        Ok(state.edition)
    }

    /// Persists all exchanges of a forked conversation.
    pub(super) async fn persist_copy(&self, exchanges: &[Exchange], turns: &[Turn]) -> Result<(), ToolError> {
        for (index, exchange) in exchanges.iter().enumerate() {
            let end = exchanges.get(index + 1).map_or(turns.len(), |next| next.first_turn);
            self.add_turns(self.edition(), exchange.run, turns.get(..end).unwrap_or(turns))?;
        }
        self.flush().await
    }
}

fn superseded(run: RunId) -> ToolError {
    ToolError::conflict(format!(
        "the conversation continued after the run `{run}` paused: its pending calls did not run"
    ))
    .suggest("Send the request as a new prompt, or resume the run without the conversation.")
}

fn superseded_if_conflict(error: ToolError, run: RunId) -> ToolError {
    if error.code() == Code::Conflict { superseded(run) } else { error }
}

/// The result of a run that ended or paused.
pub(crate) struct Ended<'a> {
    pub(crate) record: &'a RunRecord,
    pub(crate) turns: &'a [Turn],
    /// Results for pending calls of the last turn, for a run that continues without resuming.
    pub(crate) open: Vec<ToolResult>,
    /// Provider state beyond the turns, by provider name.
    pub(crate) carry: &'a BTreeMap<String, Map<String, Value>>,
    /// Billed code execution time of the conversation.
    pub(crate) code_meter: &'a CodeExecutionMeter,
    pub(crate) session: Option<&'a ToolSession>,
}

/// The beginning of the first prompt. Secrets are masked before truncation, since a part of a secret is not detected.
fn title(turns: &[Turn], ledger: &Ledger) -> String {
    let texts = turns.iter().filter_map(|turn| match turn {
        Turn::User(parts) => parts.iter().find_map(|part| match part {
            Part::Text(text) if !text.trim().is_empty() => Some(text.as_str()),
            _ => None,
        }),
        _ => None,
    });
    let text = texts.into_iter().next().unwrap_or_default();
    shortened(&ledger.scrubber().scrub(text.to_owned()))
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("id", &self.0.id)
            .field("head", &self.0.backlog.head())
            .finish_non_exhaustive()
    }
}
