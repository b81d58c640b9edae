//! One conversation that is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost_core::{
    Clock, Code, Document, RunId, RunRecord, ScopeId, SystemClock, Timestamp, ToolError, Usage, to_json,
};
use toolpost_llm::{CodeExecutionMeter, ItemView, Part, ToolResult, Turn};
use toolpost_toolbox::ToolSession;

use super::conversations::{ConversationSummary, Forked, remember_last};
use super::ledger::Ledger;
use crate::compact::middle;
use crate::family::Family;
use crate::meter::Meter;
use crate::{Agent, Limits, Run};

/// The version of the format of a head.
pub(super) const VERSION: u8 = 1;
/// The most bytes of JSON that all turns of a conversation have together, those that were compacted included.
const MOST_BYTES: u64 = 64 * 1024 * 1024;
/// How long a title is, in characters.
const TITLE: usize = 80;

/// A conversation that is kept after every answer and after every tool's result. Cheap to clone; clones are the same
/// conversation.
///
/// One run at a time goes on with it. When two do, in this process or in another, whoever comes second can no longer save
/// what it adds, and its record says so: fork the conversation instead.
#[derive(Clone)]
pub struct Conversation(Arc<Inner>);

struct Inner {
    ledger: Ledger,
    id: ScopeId,
    state: Mutex<State>,
}

struct State {
    document: Document,
    head: Head,
    turns: Vec<Turn>,
    exchanges: Vec<Exchange>,
    /// How many of the turns are kept: those behind them mend what a killed process left.
    saved: usize,
    /// How often something was kept by this handle and its clones.
    edition: u64,
}

/// A prompt of a conversation and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exchange {
    /// The run that answered.
    pub run: RunId,
    /// When the prompt was kept.
    pub at: Timestamp,
    /// Where it begins, as an index of the turns.
    pub first_turn: usize,
}

/// What making a conversation shorter has done.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Compacted {
    /// How many turns became a summary.
    pub turns: usize,
    /// What writing it consumed.
    pub usage: Usage,
    /// What that cost in US dollars; `None` is unknown.
    pub cost_usd: Option<f64>,
}

/// Where a conversation stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) v: u8,
    pub(super) title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) folder: Option<String>,
    pub(super) model: String,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    pub(super) turns: usize,
    pub(super) prompts: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) last_run: Option<RunId>,
    pub(super) usage: Usage,
    pub(super) cost_usd: f64,
    /// Whether the cost of some run is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) cost_unknown: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) forked_from: Option<Forked>,
    /// What the next request to a provider carries, by provider: the id of a container, for one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) carry: BTreeMap<String, Map<String, Value>>,
    /// The tools that the conversation has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tool_session: Option<Value>,
    /// For how long containers have run code, so that one that is gone on in is not billed anew.
    #[serde(default, skip_serializing_if = "CodeExecutionMeter::is_empty")]
    pub(super) code_meter: CodeExecutionMeter,
    pub(super) bytes: u64,
}

impl Head {
    pub(super) fn new(title: Option<&str>, folder: Option<String>) -> Self {
        let now = SystemClock.timestamp();
        Self {
            v: VERSION,
            title: title.map(shortened).unwrap_or_default(),
            folder,
            model: String::new(),
            created: now,
            updated: now,
            turns: 0,
            prompts: 0,
            last_run: None,
            usage: Usage::default(),
            cost_usd: 0.0,
            cost_unknown: false,
            forked_from: None,
            carry: BTreeMap::new(),
            tool_session: None,
            code_meter: CodeExecutionMeter::new(),
            bytes: 0,
        }
    }

    /// Reads the head of a conversation.
    pub(super) fn read(document: &Document) -> Result<Self, ToolError> {
        let head = Self::deserialize(&*document.value).map_err(|error| error.to_string());
        match head {
            Ok(head) if head.v == VERSION => Ok(head),
            Ok(head) => Err(format!("v: expected {VERSION}, found {}", head.v)),
            Err(error) => Err(error),
        }
        .map_err(|what| {
            ToolError::new(Code::Dependency, format!("`{}` cannot be read: {what}", document.id))
                .suggest("It is damaged, or a newer program wrote it: delete it, or use that program.")
        })
    }
}

/// What was added to a conversation.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// More turns.
    Turns { run: RunId, turns: Vec<Turn> },
    /// Some turns took the place of others.
    Splice { run: RunId, from: usize, to: usize, turns: Vec<Turn> },
}

/// The same, to be written.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum NewEntry<'a> {
    Turns { run: RunId, turns: &'a [Turn] },
    Splice { run: RunId, from: usize, to: usize, turns: &'a [Turn] },
}

impl State {
    fn add(&mut self, at: Timestamp, entry: Entry) {
        match entry {
            Entry::Turns { run, turns } => {
                self.begin(run, at);
                self.turns.extend(turns);
            }
            Entry::Splice { run, from, to, turns } => {
                self.begin(run, at);
                self.splice(from, to, turns);
            }
        }
    }

    /// What comes now belongs to a run.
    fn begin(&mut self, run: RunId, at: Timestamp) {
        if self.exchanges.last().is_none_or(|last| last.run != run) {
            self.exchanges.push(Exchange { run, at, first_turn: self.turns.len() });
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

    /// Gives every call of the last answer a result: a process that was killed while its tools ran left it without.
    fn mend(&mut self) {
        let Some(Turn::Assistant(turn)) = self.turns.last() else { return };
        let open = turn.items.iter().filter_map(|item| match item.view() {
            ItemView::ToolCall { id, name, .. } => Some((id, name)),
            _ => None,
        });
        let results: Vec<ToolResult> = open
            .map(|(id, name)| ToolResult {
                is_error: true,
                ..ToolResult::text(
                    id,
                    name,
                    "The process ended before the tool's result was kept; the tool may have run.",
                )
            })
            .collect();
        if !results.is_empty() {
            self.turns.push(Turn::ToolResults(results));
        }
    }
}

impl Conversation {
    pub(super) fn begin(ledger: Ledger, id: ScopeId, name: String, head: Head) -> Self {
        let document = Document { id: name, version: 0, value: Arc::default() };
        let state = State { document, head, turns: Vec::new(), exchanges: Vec::new(), saved: 0, edition: 0 };
        Self(Arc::new(Inner { ledger, id, state: Mutex::new(state) }))
    }

    /// Reads one, as far as its first `prompts` prompts and their answers.
    pub(super) async fn read(
        ledger: Ledger,
        id: ScopeId,
        document: Document,
        prompts: usize,
    ) -> Result<Self, ToolError> {
        let (head, name, version) = (Head::read(&document)?, document.id.clone(), document.version);
        let mut state =
            State { document, head, turns: Vec::new(), exchanges: Vec::new(), saved: 0, edition: 0 };
        ledger
            .read(&name, version, |at, entry: Entry| {
                let (Entry::Turns { run, .. } | Entry::Splice { run, .. }) = &entry;
                let is_new = state.exchanges.last().is_none_or(|last| last.run != *run);
                if is_new && state.exchanges.len() == prompts {
                    return false;
                }
                state.add(at, entry);
                true
            })
            .await?;
        state.saved = state.turns.len();
        state.mend();
        Ok(Self(Arc::new(Inner { ledger, id, state: Mutex::new(state) })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half done behind it.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name, which is also that of the scope that its calls belong to.
    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// Where it stands.
    pub fn summary(&self) -> ConversationSummary {
        ConversationSummary::of(self.0.id, &self.state().head)
    }

    /// All turns, every tool call with its result.
    pub fn turns(&self) -> Vec<Turn> {
        self.state().turns.clone()
    }

    /// Its prompts, oldest first.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.state().exchanges.clone()
    }

    /// The tools that it has loaded.
    pub fn tool_session(&self) -> Option<ToolSession> {
        let session = self.state().head.tool_session.clone()?;
        serde_json::from_value(session).ok()
    }

    /// What the next request to a provider carries, such as the id of the container that its code ran in.
    pub fn carry(&self, provider: &str) -> Map<String, Value> {
        self.state().head.carry.get(provider).cloned().unwrap_or_default()
    }

    pub(super) fn code_meter(&self) -> CodeExecutionMeter {
        self.state().head.code_meter.clone()
    }

    /// Says for how long code has run with providers. It is kept with the next thing that is.
    pub(super) fn set_code_meter(&self, meter: CodeExecutionMeter) {
        self.state().head.code_meter = meter.condensed();
    }

    /// A run that goes on with a prompt. It is kept while it runs.
    pub fn run(&self, agent: &Agent, prompt: impl Into<String>) -> Run {
        self.run_turn(agent, Turn::user(prompt))
    }

    /// A run that goes on with a turn: a prompt with pictures, for one. It is kept while it runs.
    pub fn run_turn(&self, agent: &Agent, turn: Turn) -> Run {
        let mut turns = self.turns();
        turns.push(turn);
        let run = Run::from_turns(agent, turns).with_conversation(self);
        match self.tool_session() {
            Some(session) => run.with_tool_session(session),
            None => run,
        }
    }

    /// Gives it another title, of at most 80 characters. Default: the beginning of the first prompt.
    ///
    /// # Errors
    /// `CONFLICT` if somebody else has changed the conversation, and those of the store.
    pub async fn set_title(&self, title: &str) -> Result<(), ToolError> {
        let (document, mut head) = {
            let mut state = self.state();
            state.head.title = shortened(title);
            (state.document.clone(), state.head.clone())
        };
        if document.version == 0 {
            return Ok(());
        }
        head.updated = SystemClock.timestamp();
        let document = self.0.ledger.commit(document, to_json(&head)?, None).await?;
        self.state().document = document;
        Ok(())
    }

    /// Which edition this is: another one with everything that is kept.
    pub(super) fn edition(&self) -> u64 {
        self.state().edition
    }

    /// That nobody has kept anything since an edition, so that turns are only ever added to those that they follow.
    pub(super) fn is_still(&self, edition: u64) -> Result<(), ToolError> {
        if self.edition() == edition {
            return Ok(());
        }
        Err(ToolError::conflict("another run has gone on with the conversation since this one began")
            .suggest("Fork the conversation for runs at the same time."))
    }

    /// Keeps the turns that came since the last time.
    pub(super) async fn save(&self, run: RunId, turns: &[Turn]) -> Result<(), ToolError> {
        if self.state().saved >= turns.len() {
            return Ok(());
        }
        self.save_with(run, turns, None).await
    }

    async fn save_with(&self, run: RunId, turns: &[Turn], over: Option<Over<'_>>) -> Result<(), ToolError> {
        let saved = self.state().saved;
        let new = turns.get(saved..).unwrap_or_default();
        self.append(run, &NewEntry::Turns { run, turns: new }, over).await?;
        let mut state = self.state();
        state.begin(run, SystemClock.timestamp());
        // What was mended is there already.
        let there = state.turns.len();
        state.turns.extend_from_slice(turns.get(there..).unwrap_or_default());
        state.saved = state.turns.len();
        Ok(())
    }

    /// Says that it is the one of its folder that was used last.
    pub(super) async fn touch(&self) -> Result<(), ToolError> {
        let folder = self.state().head.folder.clone();
        match folder {
            Some(folder) => remember_last(&self.0.ledger, &folder, self.0.id).await,
            None => Ok(()),
        }
    }

    /// Puts turns in the place of others, all of which are kept.
    pub(super) async fn splice(
        &self,
        run: RunId,
        from: usize,
        to: usize,
        turns: &[Turn],
    ) -> Result<(), ToolError> {
        self.append(run, &NewEntry::Splice { run, from, to, turns }, None).await?;
        let mut state = self.state();
        state.begin(run, SystemClock.timestamp());
        state.splice(from, to, turns.to_vec());
        state.saved = state.turns.len();
        Ok(())
    }

    /// Makes it shorter now, as it would be when it comes near to the model's window: with the agent's
    /// [`Compaction`](crate::Compaction), or the default one. `None` if there was nothing that a summary could replace.
    ///
    /// # Errors
    /// `DEPENDENCY` if the model could not write the summary, and those of the store.
    pub async fn compact(&self, agent: &Agent) -> Result<Option<Compacted>, ToolError> {
        let compaction = agent.0.compaction.clone().unwrap_or_default();
        let turns = self.turns();
        let last = self.exchanges().last().map(|exchange| exchange.run);
        let Some(((from, to), run)) = middle(&turns, compaction.keep_turns).zip(last) else {
            return Ok(None);
        };
        let writer = compaction.model.as_ref().unwrap_or(&agent.0.model);
        let window = compaction.window_of(&**writer);
        // It belongs to no run.
        let family = Arc::new(Family::new(&Limits::default(), None));
        let mut meter = Meter::new(&family, writer, agent.0.pricing.as_ref());
        let turn = compaction
            .summary(&mut meter, turns.get(from..to).unwrap_or_default(), window)
            .await
            .map_err(|error| ToolError::dependency(format!("the summary could not be written: {error}")))?;
        self.save(run, &turns).await?;
        self.splice(run, from, to, &[turn]).await?;
        let spent = family.spent();
        Ok(Some(Compacted { turns: to - from, usage: spent.usage, cost_usd: spent.cost_usd }))
    }

    /// Counts a run that is over.
    pub(super) async fn finish(
        &self,
        record: &RunRecord,
        turns: &[Turn],
        carry: &Map<String, Value>,
        session: Option<&ToolSession>,
    ) -> Result<(), ToolError> {
        let over = Over { record, carry, session: session.map(to_json).transpose()? };
        self.save_with(record.id, turns, Some(over)).await
    }

    async fn append(
        &self,
        run: RunId,
        entry: &NewEntry<'_>,
        over: Option<Over<'_>>,
    ) -> Result<(), ToolError> {
        let text = self.0.ledger.text(entry)?;
        let (document, mut head) = {
            let state = self.state();
            (state.document.clone(), state.head.clone())
        };
        head.bytes = head.bytes.saturating_add(text.len() as u64);
        if head.bytes > MOST_BYTES {
            return Err(ToolError::limit(format!(
                "the conversation has {} bytes with what is to be added, and at most {MOST_BYTES} are kept",
                head.bytes
            ))
            .suggest("Begin a new one."));
        }
        let new = match entry {
            NewEntry::Turns { turns, .. } => {
                head.turns = self.state().saved + turns.len();
                *turns
            }
            NewEntry::Splice { from, to, turns, .. } => {
                head.turns = head.turns.saturating_sub(to - from) + turns.len();
                &[]
            }
        };
        if head.last_run.replace(run) != Some(run) {
            head.prompts += 1;
        }
        if head.title.is_empty() {
            head.title = self
                .0
                .ledger
                .text(&title(new))
                .ok()
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default();
        }
        head.updated = SystemClock.timestamp();
        if let Some(over) = over {
            over.count(&mut head);
        }
        let document = self.0.ledger.append(document, &head, &text).await?;
        let mut state = self.state();
        state.document = document;
        state.head = head;
        state.edition += 1;
        Ok(())
    }

    /// Keeps all of it under its name, for a conversation that is a copy of another.
    pub(super) async fn keep_copy(&self, exchanges: &[Exchange], turns: &[Turn]) -> Result<(), ToolError> {
        for (index, exchange) in exchanges.iter().enumerate() {
            let end = exchanges.get(index + 1).map_or(turns.len(), |next| next.first_turn);
            self.save(exchange.run, turns.get(..end).unwrap_or(turns)).await?;
        }
        Ok(())
    }
}

/// What a run that is over has changed.
struct Over<'a> {
    record: &'a RunRecord,
    carry: &'a Map<String, Value>,
    session: Option<Value>,
}

impl Over<'_> {
    fn count(self, head: &mut Head) {
        head.model.clone_from(&self.record.model);
        head.usage.add(&self.record.usage);
        match self.record.cost_usd {
            Some(cost) => head.cost_usd += cost,
            None => head.cost_unknown = true,
        }
        if let Some((provider, _)) = self.record.model.split_once('/')
            && !self.carry.is_empty()
        {
            head.carry.entry(provider.to_owned()).or_default().extend(self.carry.clone());
        }
        if self.session.is_some() {
            head.tool_session = self.session;
        }
    }
}

/// The beginning of the first prompt.
fn title(turns: &[Turn]) -> String {
    let texts = turns.iter().filter_map(|turn| match turn {
        Turn::User(parts) => parts.iter().find_map(|part| match part {
            Part::Text(text) if !text.trim().is_empty() => Some(text.as_str()),
            _ => None,
        }),
        _ => None,
    });
    texts.into_iter().next().map(shortened).unwrap_or_default()
}

/// One line of bounded length, without what a terminal would take for a command.
pub(super) fn shortened(text: &str) -> String {
    let words = text.split_whitespace().take(TITLE).collect::<Vec<_>>().join(" ");
    let visible = words.chars().filter(|character| !character.is_control());
    let mut title: String = visible.clone().take(TITLE).collect();
    if visible.count() > TITLE {
        title.pop();
        title.push('…');
    }
    title
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("id", &self.0.id)
            .field("head", &self.state().head)
            .finish_non_exhaustive()
    }
}
