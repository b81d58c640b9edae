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

use super::backlog::Backlog;
use super::conversations::{ConversationSummary, Forked, remember_last};
use super::ledger::Ledger;
use crate::compaction::middle;
use crate::meter::Meter;
use crate::run_context::RunContext;
use crate::spend::Spent;
use crate::{Agent, RunLimits};

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
    backlog: Backlog<Head>,
    id: ScopeId,
    state: Mutex<State>,
}

/// All that was added, whether it is kept already or not.
struct State {
    turns: Vec<Turn>,
    /// Results for the calls of the last turn, for whoever goes on without the run that waits for them.
    open: Vec<ToolResult>,
    exchanges: Vec<Exchange>,
    /// How often something was added, as far as this handle and its clones know.
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
    /// What was consumed before the last run, if that one has waited: its figures come once more when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    before_waiting: Option<Box<Before>>,
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

fn count(usage: &mut Usage, (cost_usd, is_unknown): (&mut f64, &mut bool), spent: &Spent) {
    usage.add(&spent.usage);
    match spent.cost_usd {
        Some(cost) => *cost_usd += cost,
        None => *is_unknown = true,
    }
}

/// What a conversation had consumed before a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Before {
    run: RunId,
    usage: Usage,
    cost_usd: f64,
    cost_unknown: bool,
}

impl Head {
    /// Counts what was consumed by no run.
    fn spend(&mut self, spent: &Spent) {
        if let Some(before) = &mut self.before_waiting {
            count(&mut before.usage, (&mut before.cost_usd, &mut before.cost_unknown), spent);
        }
        count(&mut self.usage, (&mut self.cost_usd, &mut self.cost_unknown), spent);
    }

    /// Counts what a run has consumed, in the place of what it had when it waited.
    fn spend_in_all(&mut self, run: RunId, spent: &Spent, waits: bool) {
        match self.before_waiting.take() {
            Some(before) if before.run == run => {
                self.usage = before.usage;
                (self.cost_usd, self.cost_unknown) = (before.cost_usd, before.cost_unknown);
            }
            _ => {}
        }
        if waits {
            let (usage, cost_usd, cost_unknown) = (self.usage.clone(), self.cost_usd, self.cost_unknown);
            self.before_waiting = Some(Box::new(Before { run, usage, cost_usd, cost_unknown }));
        }
        count(&mut self.usage, (&mut self.cost_usd, &mut self.cost_unknown), spent);
    }

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
            before_waiting: None,
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
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// More turns, and results for the calls of the last one if its run waits.
    Turns {
        run: RunId,
        turns: Vec<Turn>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        open: Vec<ToolResult>,
    },
    /// Some turns took the place of others.
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
                // What mends the conversation is of the prompt before.
                let mending = matches!(turns.first(), Some(Turn::ToolResults(_)));
                self.begin(run, at, self.turns.len() + usize::from(mending));
                self.turns.extend(turns);
                self.open = open;
            }
            Entry::Splice { run, from, to, turns } => {
                self.begin(run, at, self.turns.len());
                self.splice(from, to, turns);
            }
        }
    }

    /// What comes now belongs to a run.
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

    /// The turns, every call of the last answer with a result: a run that waits has left it without some, and one that
    /// was cut off while its tools ran without any.
    fn mended(&self) -> Vec<Turn> {
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
                        "The run was cut off before the tool's result was kept; the tool may have run.",
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

    /// Reads one, as far as its first `prompts` prompts and their answers.
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
        // Nothing is left half done behind it.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name, which is also that of the scope that its calls belong to.
    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// Where it stands.
    pub fn summary(&self) -> ConversationSummary {
        ConversationSummary::of(self.0.id, &self.0.backlog.head())
    }

    /// All turns, every tool call with its result.
    pub fn turns(&self) -> Vec<Turn> {
        self.state().mended()
    }

    /// Its prompts, oldest first.
    pub fn exchanges(&self) -> Vec<Exchange> {
        self.state().exchanges.clone()
    }

    /// The tools that it has loaded.
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
        (state.mended(), state.edition)
    }

    /// Gives it another title, of at most 80 characters. Default: the beginning of the first prompt.
    ///
    /// # Errors
    /// `CONFLICT` if somebody else has gone on with the conversation, and those of the store: then it is written with what
    /// is kept next.
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

    /// Which edition this is: another one with everything that is added.
    pub(crate) fn edition(&self) -> u64 {
        self.state().edition
    }

    /// Takes the turns that came since the last time, to be kept with the next [`flush`](Self::flush). Returns the edition
    /// that the conversation is then.
    ///
    /// # Errors
    /// `CONFLICT` if somebody has added to the conversation since an edition, so that turns are only ever added to those
    /// that they follow; `LIMIT` if that is more than can be kept.
    pub(super) fn add_turns(&self, edition: u64, run: RunId, turns: &[Turn]) -> Result<u64, ToolError> {
        let mut state = self.still(edition)?;
        match turns.get(state.turns.len()..) {
            Some(new) if !new.is_empty() => {
                let entry = Entry::Turns { run, turns: new.to_vec(), open: Vec::new() };
                self.add(&mut state, entry, |_| ())
            }
            _ => Ok(edition),
        }
    }

    /// Puts turns in the place of others, in the same way.
    pub(super) fn splice(
        &self,
        edition: u64,
        run: RunId,
        range: (usize, usize),
        turn: &Turn,
        spent: Option<Spent>,
    ) -> Result<u64, ToolError> {
        let mut state = self.still(edition)?;
        let entry = Entry::Splice { run, from: range.0, to: range.1, turns: vec![turn.clone()] };
        self.add(&mut state, entry, move |head| spent.iter().for_each(|spent| head.spend(spent)))
    }

    /// Takes what is left of a run that is over, or that waits, in the same way.
    pub(super) fn finish(&self, edition: u64, ended: &Ended<'_>) -> Result<u64, ToolError> {
        let mut state = self.still(edition)?;
        let new = ended.turns.get(state.turns.len()..).unwrap_or_default();
        let run = ended.record.id;
        let entry = Entry::Turns { run, turns: new.to_vec(), open: ended.open.clone() };
        let spent = Spent { usage: ended.record.usage.clone(), cost_usd: ended.record.cost_usd };
        let session = ended.session.map(to_json).transpose()?;
        let (model, waits) = (ended.record.model.clone(), !ended.open.is_empty());
        let (carry, meter) = (ended.carry.clone(), ended.code_meter.clone().compacted());
        self.add(&mut state, entry, move |head| {
            head.model.clone_from(&model);
            head.spend_in_all(run, &spent, waits);
            for (provider, carry) in carry.iter().filter(|(_, carry)| !carry.is_empty()) {
                head.carry.entry(provider.clone()).or_default().extend(carry.clone());
            }
            head.code_meter.clone_from(&meter);
            if session.is_some() {
                head.tool_session.clone_from(&session);
            }
        })
    }

    /// Makes sure that a run that has waited is still what was added last.
    ///
    /// # Errors
    /// `CONFLICT` if it is not, and those of the store.
    pub(super) async fn check_waiting(&self, run: RunId, turns: &[Turn]) -> Result<(), ToolError> {
        {
            let state = self.state();
            let is_last = state.exchanges.last().is_none_or(|last| last.run == run);
            // A summary may have made it shorter since.
            let follows = match state.turns.last() {
                Some(kept) => match turns.get(state.turns.len() - 1) {
                    Some(turn) => self.as_kept(kept)? == self.as_kept(turn)?,
                    None => false,
                },
                None => true,
            };
            if !is_last || !follows {
                return Err(gone_on(run));
            }
        }
        self.0.backlog.check().await.map_err(|error| gone_on_if_conflict(error, run))
    }

    /// A turn as it is kept, without secrets; however its numbers are written.
    fn as_kept(&self, turn: &Turn) -> Result<Value, ToolError> {
        Ok(serde_json::from_str(&self.0.backlog.ledger().text(turn)?)?)
    }

    /// Takes over the conversation for a run that has waited: nobody else can add to what was there before. Returns the
    /// edition that the conversation is then.
    ///
    /// # Errors
    /// `CONFLICT` if somebody else was faster, and those of the store.
    pub(super) async fn claim(&self, edition: u64, run: RunId) -> Result<u64, ToolError> {
        let added = self.still(edition).and_then(|mut state| {
            self.add(&mut state, Entry::Turns { run, turns: Vec::new(), open: Vec::new() }, |_| ())
        });
        let claimed = match added {
            Ok(edition) => self.flush().await.map(|()| edition),
            Err(error) => Err(error),
        };
        claimed.map_err(|error| gone_on_if_conflict(error, run))
    }

    /// Writes what was added and is not written yet: because the store could not take it, or because nobody has waited for
    /// it, as for what a summary has cost that was given up.
    ///
    /// # Errors
    /// `CONFLICT` if somebody else has gone on with the conversation, and those of the store: then the next time goes on
    /// from there.
    pub async fn flush(&self) -> Result<(), ToolError> {
        self.0.backlog.flush(|_| ()).await
    }

    /// Says that it is the one of its folder that was used last.
    pub(super) async fn touch(&self) -> Result<(), ToolError> {
        match self.0.backlog.head().folder {
            Some(folder) => remember_last(self.0.backlog.ledger(), &folder, self.0.id).await,
            None => Ok(()),
        }
    }

    /// Makes it shorter now, as it would be when it comes near to the model's window: with the agent's
    /// [`Compaction`](crate::Compaction), or the default one. `None` if there was nothing that a summary could replace.
    /// What it consumes counts for the conversation, also if nothing comes of it; where nobody waits for its end,
    /// [`flush`](Self::flush) or the next run keeps that.
    ///
    /// # Errors
    /// `DEPENDENCY` if the model could not write the summary, `CONFLICT` if somebody has gone on with the conversation
    /// meanwhile, and those of the store: then the summary is written with what is kept next.
    pub async fn compact(&self, agent: &Agent) -> Result<Option<Compacted>, ToolError> {
        let compaction = agent.0.compaction.clone().unwrap_or_default();
        let (edition, turns) = {
            let state = self.state();
            (state.edition, state.mended())
        };
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
                .add_turns(edition, run, &turns)
                .and_then(|edition| self.splice(edition, run, (from, to), &turn, Some(spent.clone()))),
            Err(error) => Err(ToolError::dependency(format!("the summary could not be written: {error}"))),
        };
        paid.is_counted = added.is_ok();
        drop(paid);
        self.flush().await?;
        added?;
        Ok(Some(Compacted { turns: to - from, usage: spent.usage, cost_usd: spent.cost_usd }))
    }

    /// The state, if nobody has added anything since an edition.
    fn still(&self, edition: u64) -> Result<MutexGuard<'_, State>, ToolError> {
        let state = self.state();
        if state.edition == edition {
            return Ok(state);
        }
        Err(ToolError::conflict("another run has gone on with the conversation since this one began")
            .suggest("Fork the conversation for runs at the same time."))
    }

    /// Adds an entry, which changes the head in this way too. Returns the edition that the conversation is then.
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
        if bytes > MOST_BYTES {
            return Err(ToolError::limit(format!(
                "the conversation has {bytes} bytes with what is to be added, and at most {MOST_BYTES} are kept"
            ))
            .suggest("Begin a new one."));
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

    /// Keeps all of it under its name, for a conversation that is a copy of another.
    pub(super) async fn keep_copy(&self, exchanges: &[Exchange], turns: &[Turn]) -> Result<(), ToolError> {
        for (index, exchange) in exchanges.iter().enumerate() {
            let end = exchanges.get(index + 1).map_or(turns.len(), |next| next.first_turn);
            self.add_turns(self.edition(), exchange.run, turns.get(..end).unwrap_or(turns))?;
        }
        self.flush().await
    }
}

fn gone_on(run: RunId) -> ToolError {
    ToolError::conflict(format!(
        "the conversation was gone on with since the run `{run}` waits: its calls are answered for there, as not carried out"
    ))
    .suggest("Say it again as a new prompt. On its own, without the conversation, the run can still be gone on with.")
}

fn gone_on_if_conflict(error: ToolError, run: RunId) -> ToolError {
    if error.code() == Code::Conflict { gone_on(run) } else { error }
}

/// What is spent for a conversation by no run. It counts there, also if nobody waits for what it was spent for.
struct Paid<'a> {
    conversation: &'a Conversation,
    context: Arc<RunContext>,
    /// Whether it came with something else.
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
            self.conversation.0.backlog.push(None, move |head| head.spend(&spent));
        }
    }
}

/// What a run leaves that is over, or that waits.
pub(crate) struct Ended<'a> {
    pub(crate) record: &'a RunRecord,
    pub(crate) turns: &'a [Turn],
    /// Results for the calls of the last turn, for whoever goes on without the run; none if it does not wait.
    pub(crate) open: Vec<ToolResult>,
    /// What the next requests to providers carry, by provider.
    pub(crate) carry: &'a BTreeMap<String, Map<String, Value>>,
    /// The time that the providers' code was billed for in the conversation.
    pub(crate) code_meter: &'a CodeExecutionMeter,
    pub(crate) session: Option<&'a ToolSession>,
}

/// The beginning of the first prompt, without secrets: a part of one would not be known for it.
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
            .field("head", &self.0.backlog.head())
            .finish_non_exhaustive()
    }
}
