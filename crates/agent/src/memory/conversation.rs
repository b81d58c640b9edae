//! One stored conversation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{
    CallError, Clock, Code, Document, RunId, RunRecord, ScopeId, SystemClock, Timestamp, ToolError, Usage,
    to_json,
};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{CodeExecutionMeter, ItemView, Part, ToolDefinition, ToolResult, Turn, call_secrets};

use super::log::{CallSecrets, Log, LogStore, VERSION, parse_head};
use crate::spend::Spent;

/// Bytes of JSON of all turns of a conversation, compacted ones included.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The replacement of a secret in stored text.
const MASK: &str = "[secret]";
/// Characters of a title.
const MAX_TITLE_CHARS: usize = 80;

/// A conversation that is persisted after every answer and every tool result. Clones are the same conversation.
///
/// One run at a time can continue it. Of two concurrent runs, in this process or in another, the second one can no longer
/// persist its turns, and its record has a notice. Fork the conversation for concurrent runs.
#[derive(Clone)]
pub struct Conversation(Arc<Inner>);

struct Inner {
    log: Log<Head>,
    id: ScopeId,
    state: Mutex<LoadedConversation>,
}

/// All turns, persisted or not.
#[derive(Default)]
struct LoadedConversation {
    turns: Vec<Turn>,
    /// Results for pending calls of the last turn, for a run that continues without resuming.
    open: Vec<ToolResult>,
    exchanges: Vec<Exchange>,
    /// The number of changes by this handle and its clones.
    edition: u64,
    secrets: CallSecrets,
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

/// The origin of a forked conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The original conversation.
    pub from: ScopeId,
    /// The number of copied prompts.
    pub prompts: usize,
}

/// A summary of a stored conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConversationSummary {
    /// The id.
    pub id: ScopeId,
    /// The beginning of the first prompt, of at most 80 characters.
    pub title: String,
    /// The directory or project that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The model of the latest answer; empty before the first answer.
    pub model: String,
    /// When it was created.
    pub created: Timestamp,
    /// When it was last changed.
    pub updated: Timestamp,
    /// The number of turns.
    pub turns: usize,
    /// The number of prompts.
    pub prompts: usize,
    /// Tokens used.
    pub usage: Usage,
    /// The cost in US dollars; absent if the cost of any run is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// The origin, if it is a fork.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<Forked>,
}

/// The stored head of a conversation: its summary, and what the next run inherits.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    v: u8,
    pub(super) summary: ConversationSummary,
    last_run: Option<RunId>,
    /// The spending before the last run, if that run paused: its own spending is counted again when it ends.
    before_pause: Option<(RunId, Spent)>,
    /// Provider state beyond the turns, by provider name, such as the id of a code container.
    provider_state: BTreeMap<String, Map<String, Value>>,
    /// The loaded tools.
    tool_session: Option<Value>,
    /// Billed code execution time, so that a reused container is not billed again.
    code_meter: CodeExecutionMeter,
    bytes: u64,
}

impl Head {
    pub(super) fn new(id: ScopeId, directory: Option<String>) -> Self {
        let now = SystemClock.timestamp();
        let summary = ConversationSummary {
            id,
            title: String::new(),
            directory,
            model: String::new(),
            created: now,
            updated: now,
            turns: 0,
            prompts: 0,
            usage: Usage::default(),
            cost_usd: Some(0.0),
            forked_from: None,
        };
        Self {
            v: VERSION,
            summary,
            last_run: None,
            before_pause: None,
            provider_state: BTreeMap::new(),
            tool_session: None,
            code_meter: CodeExecutionMeter::new(),
            bytes: 0,
        }
    }

    /// The head of a fork with so many prompts.
    pub(super) fn fork(self, id: ScopeId, prompts: usize) -> Self {
        let mut head = Self::new(id, self.summary.directory);
        head.summary.title = self.summary.title;
        head.summary.model = self.summary.model;
        head.summary.forked_from = Some(Forked { from: self.summary.id, prompts });
        let Self { provider_state, tool_session, code_meter, .. } = self;
        Self { provider_state, tool_session, code_meter, ..head }
    }

    fn spent(&self) -> Spent {
        Spent { usage: self.summary.usage.clone(), cost_usd: self.summary.cost_usd }
    }

    fn set_spent(&mut self, spent: Spent) {
        (self.summary.usage, self.summary.cost_usd) = (spent.usage, spent.cost_usd);
    }

    /// Counts spending outside of runs.
    fn spend(&mut self, spent: &Spent) {
        if let Some((_, before)) = &mut self.before_pause {
            before.add(spent);
        }
        let mut sum = self.spent();
        sum.add(spent);
        self.set_spent(sum);
    }

    /// Counts the spending of a run, replacing what the run had spent when it paused.
    fn spend_for_run(&mut self, run: RunId, spent: &Spent, is_paused: bool) {
        let mut sum = match self.before_pause.take() {
            Some((paused, before)) if paused == run => before,
            _ => self.spent(),
        };
        self.before_pause = is_paused.then(|| (run, sum.clone()));
        sum.add(spent);
        self.set_spent(sum);
    }
}

/// A change of a conversation.
#[derive(Serialize, Deserialize)]
struct ConversationEntry {
    run: RunId,
    /// New turns.
    turns: Vec<Turn>,
    /// The range of turns that the new ones replace; without a range they are appended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    replaces: Option<(usize, usize)>,
    /// Results for pending calls of the last turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    open: Vec<ToolResult>,
}

impl LoadedConversation {
    fn add(&mut self, at: Timestamp, entry: ConversationEntry) {
        self.edition += 1;
        // Results that complete the last turn belong to the prompt before.
        let completes = entry.replaces.is_none() && matches!(entry.turns.first(), Some(Turn::ToolResults(_)));
        if self.is_new(entry.run) {
            let first_turn = self.turns.len() + usize::from(completes);
            self.exchanges.push(Exchange { run: entry.run, at, first_turn });
        }
        match entry.replaces {
            Some(range) => self.splice(range, entry.turns),
            None => {
                self.turns.extend(entry.turns);
                self.open = entry.open;
            }
        }
    }

    /// Whether a run begins a new exchange.
    fn is_new(&self, run: RunId) -> bool {
        self.exchanges.last().is_none_or(|last| last.run != run)
    }

    fn splice(&mut self, (from, to): (usize, usize), turns: Vec<Turn>) {
        let to = to.min(self.turns.len());
        let from = from.min(to);
        let after = from + turns.len();
        self.turns.splice(from..to, turns);
        for exchange in &mut self.exchanges {
            let first = exchange.first_turn;
            exchange.first_turn = if first >= to { first - to + after } else { first.min(from) };
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
    /// A conversation that is not stored yet.
    pub(super) fn new(store: LogStore, name: String, head: Head) -> Self {
        let document = Document { id: name, version: 0, value: Arc::default() };
        Self::from_state(store, document, head, LoadedConversation::default())
    }

    fn from_state(store: LogStore, document: Document, head: Head, state: LoadedConversation) -> Self {
        let id = head.summary.id;
        Self(Arc::new(Inner { log: Log::new(store, document, head), id, state: Mutex::new(state) }))
    }

    /// Reads a conversation, up to its first `prompts` prompts and their answers.
    pub(super) async fn read(store: LogStore, document: Document, prompts: usize) -> Result<Self, ToolError> {
        let (head, mut state) = (parse_head(&document)?, LoadedConversation::default());
        store
            .read(&document, |at, entry: ConversationEntry| {
                let is_past = state.is_new(entry.run) && state.exchanges.len() == prompts;
                if !is_past {
                    state.add(at, entry);
                }
                !is_past
            })
            .await?;
        Ok(Self::from_state(store, document, head, state))
    }

    fn state(&self) -> MutexGuard<'_, LoadedConversation> {
        // No panic leaves a partial change.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id, which is also the scope of its tool calls.
    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// A summary: title, figures, times.
    pub fn summary(&self) -> ConversationSummary {
        self.0.log.head().summary
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
        serde_json::from_value(self.0.log.head().tool_session?).ok()
    }

    /// Provider state beyond the turns, by provider name, such as the id of a code container.
    pub fn provider_state(&self) -> BTreeMap<String, Map<String, Value>> {
        self.0.log.head().provider_state
    }

    pub(super) fn code_meter(&self) -> CodeExecutionMeter {
        self.0.log.head().code_meter
    }

    /// The turns to continue from, and their edition.
    pub(crate) fn turns_to_continue(&self) -> (Vec<Turn>, u64) {
        let state = self.state();
        (state.complete_turns(), state.edition)
    }

    /// Counts spending outside of runs.
    pub(crate) fn spend(&self, spent: &Spent) {
        self.0.log.update(|head| head.spend(spent));
    }

    /// The edition, which every change increments.
    pub(crate) fn edition(&self) -> u64 {
        self.state().edition
    }

    /// Adds the turns since the last change; the next [`flush`](Self::flush) persists them. Returns the new edition.
    ///
    /// `tools` declare the sensitive arguments of the turns' calls.
    ///
    /// # Errors
    /// `CONFLICT` if the conversation changed since the edition, `LIMIT` if it would exceed its maximum size.
    pub(crate) fn add_turns(
        &self,
        edition: u64,
        run: RunId,
        turns: &[Turn],
        tools: &[ToolDefinition],
    ) -> Result<u64, ToolError> {
        let mut state = self.state_at(edition)?;
        match turns.get(state.turns.len()..) {
            Some(new) if !new.is_empty() => {
                state.secrets.add(call_secrets(tools, new.iter().flat_map(Turn::items)));
                let entry = ConversationEntry { run, turns: new.to_vec(), replaces: None, open: Vec::new() };
                self.add(&mut state, entry, |_| ())
            }
            _ => Ok(edition),
        }
    }

    /// Replaces a range of turns and counts spending, in the same way.
    pub(crate) fn splice(
        &self,
        edition: u64,
        run: RunId,
        range: (usize, usize),
        turn: &Turn,
        spent: Option<&Spent>,
    ) -> Result<u64, ToolError> {
        let mut state = self.state_at(edition)?;
        let entry =
            ConversationEntry { run, turns: vec![turn.clone()], replaces: Some(range), open: Vec::new() };
        self.add(&mut state, entry, |head| spent.into_iter().for_each(|spent| head.spend(spent)))
    }

    /// Adds the remaining turns and the figures of a run that ended or paused, in the same way.
    pub(super) fn finish(&self, edition: u64, ended: &Ended<'_>) -> Result<u64, ToolError> {
        let mut state = self.state_at(edition)?;
        let record = ended.record;
        let turns = ended.turns.get(state.turns.len()..).unwrap_or_default().to_vec();
        state.secrets.add(call_secrets(ended.tools, turns.iter().flat_map(Turn::items)));
        let entry = ConversationEntry { run: record.id, turns, replaces: None, open: ended.open.clone() };
        let spent = Spent { usage: record.usage.clone(), cost_usd: record.cost_usd };
        let session = ended.session.map(to_json).transpose()?;
        self.add(&mut state, entry, |head| {
            head.summary.model.clone_from(&record.model);
            head.spend_for_run(record.id, &spent, !ended.open.is_empty());
            for (provider, values) in ended.provider_state.iter().filter(|(_, values)| !values.is_empty()) {
                head.provider_state.entry(provider.clone()).or_default().extend(values.clone());
            }
            head.code_meter = ended.code_meter.clone().compacted();
            if session.is_some() {
                head.tool_session = session;
            }
        })
    }

    /// Checks that a paused run is still the latest change.
    ///
    /// # Errors
    /// `CONFLICT` if it is not, and errors of the store.
    pub(super) async fn check_paused(&self, run: RunId, turns: &[Turn]) -> Result<(), ToolError> {
        {
            let state = self.state();
            let is_last = state.exchanges.last().is_none_or(|last| last.run == run);
            // A summary may have replaced turns since.
            let follows = match state.turns.last() {
                Some(stored) => match turns.get(state.turns.len() - 1) {
                    Some(turn) => is_stored_form(&self.as_stored(stored)?, &self.as_stored(turn)?),
                    None => false,
                },
                None => true,
            };
            if !is_last || !follows {
                return Err(superseded(run));
            }
        }
        self.0.log.check().await.map_err(|error| superseded_if_conflict(error, run))
    }

    /// A turn as stored: without secrets, with normalized numbers.
    fn as_stored(&self, turn: &Turn) -> Result<Value, ToolError> {
        Ok(serde_json::from_str(&self.0.log.store().text(turn)?)?)
    }

    /// Claims the conversation for a resumed run, so that no other run can continue the same turns. Returns the new edition.
    ///
    /// # Errors
    /// `CONFLICT` if another run was faster, and errors of the store.
    pub(super) async fn claim(&self, edition: u64, run: RunId) -> Result<u64, ToolError> {
        let entry = ConversationEntry { run, turns: Vec::new(), replaces: None, open: Vec::new() };
        let added = self.state_at(edition).and_then(|mut state| self.add(&mut state, entry, |_| ()));
        let claimed = match added {
            Ok(edition) => self.flush().await.map(|()| edition).map_err(ToolError::from),
            Err(error) => Err(error),
        };
        claimed.map_err(|error| superseded_if_conflict(error, run))
    }

    /// Writes pending changes: those that the store rejected, and those of dropped futures.
    ///
    /// # Errors
    /// `CONFLICT` if another run changed the conversation, and errors of the store: then the next call continues there.
    pub async fn flush(&self) -> Result<(), CallError> {
        Ok(self.0.log.flush().await?)
    }

    /// The state, if it did not change since an edition.
    fn state_at(&self, edition: u64) -> Result<MutexGuard<'_, LoadedConversation>, ToolError> {
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
        state: &mut LoadedConversation,
        entry: ConversationEntry,
        change: impl FnOnce(&mut Head),
    ) -> Result<u64, ToolError> {
        let log = &self.0.log;
        let text = state.secrets.text(log.store(), &entry)?;
        let bytes = log.head().bytes.saturating_add(text.len() as u64);
        if bytes > MAX_BYTES {
            return Err(ToolError::limit(format!(
                "the conversation would have {bytes} bytes; the maximum is {MAX_BYTES}"
            ))
            .suggest("Start a new conversation."));
        }
        let title = entry.turns.iter().find_map(prompt_text).unwrap_or_default();
        let (run, now) = (entry.run, SystemClock.timestamp());
        state.add(now, entry);
        log.append(text, |head| {
            head.bytes = bytes;
            let summary = &mut head.summary;
            summary.turns = state.turns.len();
            summary.prompts += usize::from(head.last_run.replace(run) != Some(run));
            summary.updated = now;
            if summary.title.is_empty() {
                summary.title = one_line(&log.store().scrubber().scrub(title));
            }
            change(head);
        });
        Ok(state.edition)
    }

    /// Persists all exchanges of a forked conversation.
    pub(super) async fn persist_copy(&self, exchanges: &[Exchange], turns: &[Turn]) -> Result<(), ToolError> {
        for (index, exchange) in exchanges.iter().enumerate() {
            let end = exchanges.get(index + 1).map_or(turns.len(), |next| next.first_turn);
            self.add_turns(self.edition(), exchange.run, turns.get(..end).unwrap_or(turns), &[])?;
        }
        Ok(self.flush().await?)
    }
}

/// Whether a stored value is another one, of which secrets were masked.
fn is_stored_form(stored: &Value, value: &Value) -> bool {
    match (stored, value) {
        (Value::String(stored), _) if stored == MASK => !value.is_object() && !value.is_array(),
        (Value::String(stored), Value::String(text)) => {
            let parts: Vec<&str> = stored.split(MASK).collect();
            let [first, between @ .., last] = parts.as_slice() else { return stored == text };
            let Some(mut rest) = text.strip_prefix(first) else { return false };
            for part in between {
                match rest.split_once(part) {
                    Some((_, after)) => rest = after,
                    None => return false,
                }
            }
            rest.ends_with(last)
        }
        (Value::Array(stored), Value::Array(items)) => {
            stored.len() == items.len()
                && stored.iter().zip(items).all(|(stored, item)| is_stored_form(stored, item))
        }
        (Value::Object(stored), Value::Object(fields)) => {
            let has = |(name, stored): (&String, &Value)| {
                fields.get(name).is_some_and(|value| is_stored_form(stored, value))
            };
            stored.len() == fields.len() && stored.iter().all(has)
        }
        (stored, value) => stored == value,
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
    /// The tools of the run.
    pub(crate) tools: &'a [ToolDefinition],
    /// Results for pending calls of the last turn, for a run that continues without resuming.
    pub(crate) open: Vec<ToolResult>,
    /// Provider state beyond the turns, by provider name.
    pub(crate) provider_state: &'a BTreeMap<String, Map<String, Value>>,
    /// Billed code execution time of the conversation.
    pub(crate) code_meter: &'a CodeExecutionMeter,
    pub(crate) session: Option<&'a ToolSession>,
}

/// The text of a prompt; `None` for other turns and for prompts without text.
pub(super) fn prompt_text(turn: &Turn) -> Option<String> {
    let Turn::User(parts) = turn else { return None };
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    Some(texts.collect::<Vec<_>>().join("\n")).filter(|text| !text.trim().is_empty())
}

/// A title: one line of bounded length, without control characters. Mask secrets first: a part of one is not detected.
pub(super) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().take(MAX_TITLE_CHARS).collect::<Vec<_>>().join(" ");
    let visible = words.chars().filter(|character| !character.is_control());
    let mut title: String = visible.clone().take(MAX_TITLE_CHARS).collect();
    if visible.count() > MAX_TITLE_CHARS {
        title.pop();
        title.push('…');
    }
    title
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Conversation").field(&self.summary()).finish()
    }
}
