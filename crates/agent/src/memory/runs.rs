//! The runs that are kept: their records, and what their models were asked and answered.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{
    CallRecord, Clock, Code, DocStore, Document, RunId, RunRecord, ScopeId, Secret, SystemClock, Timestamp,
    ToolError, Usage,
};
use toolpost_llm::{
    ErrorKind, ExchangeSink, ModelError, ModelId, Part, RawJson, Request, Response, Scrubber, Turn,
};

use super::backlog::Backlog;
use super::head::shortened;
use super::ledger::{Ledger, MAX_LISTED};
use crate::spend::Spent;

/// The version of the format of a head.
const VERSION: u8 = 1;
/// Where runs are stored, by their names.
const RUNS: &str = "runs/";
/// Where single calls are stored.
const CALLS: &str = "calls/";
/// How many runs are searched for a call, the youngest first.
const MAX_SEARCHED: usize = 100;
/// How many runs are kept unless set.
const MAX_RUNS: usize = 1_000;
/// The most bytes of JSON that are kept of one run.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The stop reason of a call that did not fail.
const CALLED: &str = "called";
/// How many runs too many are removed at once, at most.
const MAX_REMOVED: usize = 100;

/// The runs of a store: their records, and all that their models were asked and answered, so that a run can be played
/// again.
#[derive(Clone)]
pub struct Runs {
    ledger: Ledger,
    prefix: &'static str,
    most: usize,
    holder: Option<Arc<str>>,
}

/// Where a run stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunSummary {
    /// The version of this format.
    pub v: u8,
    /// The run.
    pub id: RunId,
    /// The run that it was made from, by an agent that is a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The beginning of its prompt.
    pub title: String,
    /// The model, such as `anthropic/claude-opus-5`.
    pub model: String,
    /// The conversation that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ScopeId>,
    /// When it began.
    pub started: Timestamp,
    /// Why it stopped; absent while it runs, and for ever if its process was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Who works on it, as [`Runs::with_holder`] has it; absent when it is over. If that process is no more, the run was
    /// interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// How many of its pauses were gone on from.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed: u32,
    /// Whether it reached an answer.
    pub success: bool,
    /// How often the model was asked; of a run that is not over, when it was kept last, as in the next four.
    pub iterations: u32,
    /// How many tools were called.
    pub tool_calls: usize,
    /// What it consumed.
    pub usage: Usage,
    /// What it cost in US dollars; absent is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// How long it took, in milliseconds.
    #[serde(default)]
    pub duration_ms: f64,
    /// The same in seconds.
    pub execution_time: f64,
    /// How many exchanges with models are kept.
    pub exchanges: usize,
    /// Whether exchanges are missing: all of them had more than 64 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_incomplete: bool,
    /// How many bytes of JSON are kept.
    pub bytes: u64,
}

/// A run that is kept.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StoredRun {
    /// Where it stands.
    pub summary: RunSummary,
    /// What its model was asked first, as text; absent if no exchange is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// Its record, as it was when it ended or waited last; absent if it did neither.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Value>,
    /// The records of its calls that came after that: all calls that had ended before its process was killed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Figures over many runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunStats {
    /// How many there are.
    pub runs: usize,
    /// How many reached an answer.
    pub succeeded: usize,
    /// How many have not ended: they still run, or were killed.
    pub unfinished: usize,
    /// How often models were asked.
    pub iterations: u64,
    /// How many tools were called.
    pub tool_calls: usize,
    /// What they consumed.
    pub usage: Usage,
    /// What those cost whose cost is known, in US dollars.
    pub known_cost_usd: f64,
    /// How many ended whose cost is not known.
    pub unknown_costs: usize,
    /// How long they took together, in milliseconds.
    pub duration_ms: f64,
    /// The same in seconds.
    pub execution_time: f64,
    /// How many ended for each reason.
    pub stop_reasons: BTreeMap<String, usize>,
    /// The same figures for each model.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, RunStats>,
}

impl RunStats {
    /// Adds a run.
    fn add(&mut self, run: &RunSummary) {
        self.runs += 1;
        self.succeeded += usize::from(run.success);
        self.iterations += u64::from(run.iterations);
        self.tool_calls += run.tool_calls;
        self.usage.add(&run.usage);
        self.duration_ms += run.execution_time * 1000.0;
        self.execution_time += run.execution_time;
        match &run.stop_reason {
            Some(reason) => *self.stop_reasons.entry(reason.clone()).or_default() += 1,
            None => self.unfinished += 1,
        }
        match run.cost_usd {
            Some(cost) => self.known_cost_usd += cost,
            None => self.unknown_costs += usize::from(run.stop_reason.is_some()),
        }
    }
}

/// What was added to what is kept of a run.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Entry {
    /// A model was asked.
    Exchange(Box<StoredExchange>),
    /// Calls were made.
    Calls(Vec<RawJson>),
    /// The run is over.
    Record(RawJson),
}

/// A record, as far as the runs go that were made from it.
#[derive(Default, Deserialize)]
struct Relatives {
    #[serde(default)]
    children: Vec<Relative>,
}

#[derive(Deserialize)]
struct Relative {
    id: String,
}

/// An exchange, as what is new in it.
#[derive(Serialize, Deserialize)]
struct StoredExchange {
    model: ModelId,
    /// The request without its turns, if it differs from the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<Request>,
    /// How many turns are those of the request before.
    #[serde(default)]
    same_turns: usize,
    /// The others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    turns: Vec<Turn>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<Response>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ModelError>,
}

impl Runs {
    /// The runs that a store keeps.
    pub fn new(store: Arc<dyn DocStore>) -> Self {
        Self { ledger: Ledger::new(store, Arc::default()), prefix: RUNS, most: MAX_RUNS, holder: None }
    }

    /// The calls of a store that no run made, apart from its runs: each is a run without a model that has the id of its
    /// call ([`keep_call`](Self::keep_call)).
    pub fn of_calls(store: Arc<dyn DocStore>) -> Self {
        Self { prefix: CALLS, ..Self::new(store) }
    }

    /// Masks these secrets in all that is kept from now on. Default: none. What a request itself calls a secret, in its
    /// provider options, is always masked.
    #[must_use]
    pub fn with_secrets(self, secrets: Vec<Secret>) -> Self {
        Self { ledger: self.ledger.with_scrubber(Arc::new(Scrubber::new(secrets))), ..self }
    }

    /// How many runs are kept; when there are more, the oldest go. Default: 1,000.
    #[must_use]
    pub fn with_most(mut self, runs: usize) -> Self {
        self.most = runs;
        self
    }

    /// Says who works on the runs that begin from now on, in words of the caller's own: a process, for one. So whoever
    /// looks at them can tell a run that goes on from one whose process was killed. Default: nobody.
    #[must_use]
    pub fn with_holder(mut self, holder: impl Into<Arc<str>>) -> Self {
        self.holder = Some(holder.into());
        self
    }

    /// The id of the one run whose id begins so.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is none, `INVALID_INPUT` if there are several, and those of the store.
    pub async fn find(&self, start: &str) -> Result<RunId, ToolError> {
        let found = self.ledger.find(self.prefix, start, "run").await?;
        found.parse().map_err(|error: String| ToolError::internal(error))
    }

    /// The runs, the youngest first, at most `limit`; those of a conversation, if one is named. Runs that were made from
    /// others are not among them. Of more than 5,000 runs the oldest are passed over.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list(
        &self,
        conversation: Option<ScopeId>,
        limit: usize,
    ) -> Result<Vec<RunSummary>, ToolError> {
        let is_of = |run: &RunSummary| conversation.is_none() || run.conversation == conversation;
        self.list_where(|run| run.parent.is_none() && is_of(run), limit).await
    }

    /// All runs, those among them that were made from others; else as [`list`](Self::list).
    ///
    /// # Errors
    /// Those of the store.
    pub async fn list_all(&self, limit: usize) -> Result<Vec<RunSummary>, ToolError> {
        self.list_where(|_| true, limit).await
    }

    /// The runs that were made from a run and are kept, the oldest first: also of one that has not ended, whose record
    /// does not name them yet.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn children(&self, id: RunId) -> Result<Vec<RunSummary>, ToolError> {
        let mut found = self.list_where(|run| run.parent == Some(id), usize::MAX).await?;
        found.reverse();
        Ok(found)
    }

    async fn list_where(
        &self,
        is_wanted: impl Fn(&RunSummary) -> bool,
        limit: usize,
    ) -> Result<Vec<RunSummary>, ToolError> {
        let mut found = Vec::new();
        for name in self.ledger.names(self.prefix, MAX_LISTED).await? {
            if found.len() >= limit {
                break;
            }
            let Some(document) = self.ledger.head(&name).await? else { continue };
            // One that cannot be read must not hide the others.
            let Ok(summary) = read_head(&document) else { continue };
            if is_wanted(&summary) {
                found.push(summary);
            }
        }
        Ok(found)
    }

    /// Figures over the runs that began at a time or later. What a run has spent that was made from another stands in that
    /// one's figures, and is not counted twice.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn stats(&self, since: Timestamp) -> Result<RunStats, ToolError> {
        let mut stats = RunStats::default();
        let counts = |run: &&RunSummary| run.started >= since;
        for run in self.list(None, usize::MAX).await?.iter().filter(counts) {
            stats.add(run);
            stats.models.entry(run.model.clone()).or_default().add(run);
        }
        Ok(stats)
    }

    /// A run by its id.
    ///
    /// # Errors
    /// `NOT_FOUND` if it is not kept, `DEPENDENCY` if it cannot be read, and those of the store.
    pub async fn load(&self, id: RunId) -> Result<StoredRun, ToolError> {
        let document = self.document(id).await?;
        let (mut prompt, mut record, mut calls) = (None, None, Vec::new());
        self.ledger
            .read(&document.id, document.version, |_, entry: Entry| {
                match entry {
                    Entry::Record(raw) => {
                        record = raw.to_value().ok();
                        // They are in it.
                        calls.clear();
                    }
                    Entry::Calls(new) => calls.extend(new.iter().filter_map(|raw| raw.to_value().ok())),
                    Entry::Exchange(exchange) => {
                        prompt = prompt.take().or_else(|| last_prompt(&exchange.turns));
                    }
                }
                true
            })
            .await?;
        Ok(StoredRun { summary: read_head(&document)?, prompt, record, calls })
    }

    /// Tells of all exchanges of a run in their order, as they were when it ran, and then of those of the runs that were
    /// made from it: into a [`Recording`](toolpost_llm::Recording), for one, which then is a test that a `replay:` model
    /// plays. Of a run that was killed, and of those that were made from it, that is what had ended. Returns how many there
    /// were.
    ///
    /// # Errors
    /// `NOT_FOUND` if the run is not kept, `PRECONDITION` if exchanges of it are missing or there are none, and those of
    /// the store and of the sink.
    pub async fn export(&self, id: RunId, sink: &dyn ExchangeSink) -> Result<usize, ToolError> {
        let refused = |what: &str| {
            ToolError::precondition(format!(
                "the run `{id}` cannot be played again: of what its models were asked, {what}"
            ))
            .suggest("Run it again with `--record FILE`.")
        };
        let (mut told, mut open, mut seen) = (0, vec![self.document(id).await?], HashSet::from([id]));
        while let Some(document) = open.pop() {
            let head = read_head(&document)?;
            if head.is_incomplete {
                return Err(refused("not all were kept"));
            }
            let (own, mut children) = self.export_one(&document, sink).await?;
            if head.stop_reason.is_none() {
                // Its record, which would name them, is not there, or of the time when it waited.
                children.extend(self.children(head.id).await?.iter().map(|child| child.id));
            }
            if told + own == 0 {
                return Err(refused("none were kept"));
            }
            told += own;
            for child in children.into_iter().rev().filter(|child| seen.insert(*child)) {
                let document = self.ledger.head(&self.name(child)).await?;
                open.push(document.ok_or_else(|| refused("those of an agent that it called are not there"))?);
            }
        }
        Ok(told)
    }

    /// Tells of the exchanges of one run; how many there were, and which runs were made from it.
    async fn export_one(
        &self,
        document: &Document,
        sink: &dyn ExchangeSink,
    ) -> Result<(usize, Vec<RunId>), ToolError> {
        let mut children = Vec::new();
        let mut request = Request::default();
        let (mut told, mut failed) = (0, None);
        self.ledger
            .read(&document.id, document.version, |_, entry: Entry| {
                let exchange = match entry {
                    Entry::Exchange(exchange) => exchange,
                    Entry::Record(record) => {
                        let context: Relatives = record.read().unwrap_or_default();
                        // One that waited has a record of each part.
                        children.extend(
                            context.children.iter().filter_map(|child| child.id.parse::<RunId>().ok()),
                        );
                        return true;
                    }
                    Entry::Calls(_) => return true,
                };
                let mut turns = std::mem::take(&mut request.turns);
                if let Some(rest) = exchange.request {
                    request = rest;
                }
                turns.truncate(exchange.same_turns);
                turns.extend(exchange.turns);
                request.turns = turns;
                let answer = match (&exchange.response, &exchange.error) {
                    (Some(response), _) => Ok(response),
                    (None, Some(error)) => Err(error),
                    (None, None) => return true,
                };
                failed = sink.exchange(&exchange.model, &request, answer).err();
                told += usize::from(failed.is_none());
                failed.is_none()
            })
            .await?;
        match failed {
            Some(error) => Err(ToolError::dependency(error.to_string())),
            None => Ok((told, children)),
        }
    }

    /// Keeps the record of a run whose models were not ours to listen to.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn keep(
        &self,
        record: &RunRecord,
        prompt: &str,
        conversation: Option<ScopeId>,
    ) -> Result<(), ToolError> {
        let log = RunLog::new(self.clone(), record.id, record.model.clone(), record.started);
        log.begin(prompt, record.parent, conversation);
        log.finish(record).await
    }

    /// Puts a record in the place of the one that is kept, of a run that is over or waits: with files that came after it,
    /// for one.
    ///
    /// # Errors
    /// `NOT_FOUND` if the run is not kept, `CONFLICT` if another process resumes it, and those of the store.
    pub async fn amend(&self, record: &RunRecord) -> Result<(), ToolError> {
        let document = self.document(record.id).await?;
        let mut head = read_head(&document)?;
        if head.stop_reason.is_none() {
            return Err(ToolError::conflict(format!("the run `{}` is not over", record.id))
                .suggest("Put its record in place when it is."));
        }
        let text = self.ledger.text(&Entry::Record(RawJson::of(record)?))?;
        head.bytes = head.bytes.saturating_add(text.len() as u64);
        self.ledger.append(document, &head, &text).await.map(drop)
    }

    /// Removes a run for good. Returns whether there was one.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn delete(&self, id: RunId) -> Result<bool, ToolError> {
        self.ledger.forget(&self.name(id)).await
    }

    /// Stores the record of a call that no run made.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn keep_call(&self, call: &Arc<CallRecord>) -> Result<(), ToolError> {
        // Both kinds of ids have one form.
        let id = call.id.to_string().parse().map_err(|error: String| ToolError::internal(error))?;
        let mut record = RunRecord::begin(id, String::new(), call.started);
        record.success = call.error.is_none();
        record.stop_reason = call.error.as_ref().map_or(CALLED, |error| error.code().as_str()).to_owned();
        record.error = call.error.as_ref().map(serde_json::to_value).transpose()?;
        record.duration_ms = call.duration.as_secs_f64() * 1000.0;
        record.execution_time = call.duration.as_secs_f64();
        record.tools_used = vec![call.tool.to_string()];
        record.usage = call.usage.clone().unwrap_or_default();
        record.cost_usd = call.cost_usd;
        record.artifacts.clone_from(&call.artifacts);
        record.tool_calls = vec![Arc::clone(call)];
        let arguments = call.arguments.as_deref().map(ToString::to_string).unwrap_or_default();
        self.keep(&record, &format!("{} {arguments}", call.tool), None).await
    }

    /// The run that made the call whose id begins so; of many runs, only the youngest are searched.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn find_call(&self, start: &str) -> Result<Option<RunId>, ToolError> {
        let start = start.trim().to_ascii_lowercase();
        if start.is_empty() {
            return Ok(None);
        }
        for run in self.list_where(|run| run.tool_calls > 0, MAX_SEARCHED).await? {
            let stored = self.load(run.id).await?;
            let of_record = stored.record.as_ref().and_then(|record| record["tool_calls"].as_array());
            let mut calls = of_record.into_iter().flatten().chain(&stored.calls);
            if calls.any(|call| has_call(call, &start)) {
                return Ok(Some(run.id));
            }
        }
        Ok(None)
    }

    fn name(&self, id: RunId) -> String {
        format!("{}{id}", self.prefix)
    }

    async fn document(&self, id: RunId) -> Result<Document, ToolError> {
        self.ledger.head(&self.name(id)).await?.ok_or_else(|| {
            ToolError::not_found(format!("the run `{id}` is not kept"))
                .suggest("List the runs that are kept.")
        })
    }

    /// Removes the oldest of those that are too many.
    async fn prune(&self) -> Result<(), ToolError> {
        let looked_at = self.most.saturating_add(MAX_REMOVED).max(MAX_LISTED);
        let names = self.ledger.names(self.prefix, looked_at).await?;
        for name in names.iter().skip(self.most).rev().take(MAX_REMOVED) {
            self.ledger.forget(name).await?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runs").field("most", &self.most).finish_non_exhaustive()
    }
}

/// The text of the last question among turns.
fn last_prompt(turns: &[Turn]) -> Option<String> {
    let parts = turns.iter().rev().find_map(|turn| match turn {
        Turn::User(parts) => Some(parts),
        _ => None,
    })?;
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    Some(texts.collect::<Vec<_>>().join("\n"))
}

/// Whether a record is that of a call whose id begins so, or of one that made it.
fn has_call(record: &Value, start: &str) -> bool {
    let children = record["children"].as_array().into_iter().flatten();
    record["id"].as_str().is_some_and(|id| id.starts_with(start))
        || children.into_iter().any(|child| has_call(child, start))
}

fn read_head(document: &Document) -> Result<RunSummary, ToolError> {
    match RunSummary::deserialize(&*document.value).map_err(|error| error.to_string()) {
        Ok(head) if head.v == VERSION => Ok(head),
        Ok(head) => Err(format!("v: expected {VERSION}, found {}", head.v)),
        Err(error) => Err(error),
    }
    .map_err(|what| {
        ToolError::new(Code::Dependency, format!("`{}` cannot be read: {what}", document.id))
            .suggest("It is damaged, or a newer program wrote it: delete it, or use that program.")
    })
}

/// Keeps one run while it runs.
pub(super) struct RunLog {
    runs: Runs,
    backlog: Backlog<RunSummary>,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    /// The request of the latest exchange.
    latest: Request,
    /// How many calls are kept.
    calls: usize,
    /// Whether exchanges are dropped for lack of room.
    is_full: bool,
}

impl RunLog {
    pub(super) fn new(runs: Runs, id: RunId, model: String, started: Timestamp) -> Self {
        let head = RunSummary {
            v: VERSION,
            id,
            parent: None,
            title: String::new(),
            model,
            conversation: None,
            started,
            stop_reason: None,
            holder: runs.holder.as_deref().map(str::to_owned),
            resumed: 0,
            success: false,
            iterations: 0,
            tool_calls: 0,
            usage: Usage::default(),
            cost_usd: None,
            duration_ms: 0.0,
            execution_time: 0.0,
            exchanges: 0,
            is_incomplete: false,
            bytes: 0,
        };
        let document = Document { id: runs.name(id), version: 0, value: Arc::default() };
        let backlog = Backlog::new(runs.ledger.clone(), document, head, read_head);
        Self { runs, backlog, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        // Nothing is left half done behind it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, prompt: &str, parent: Option<RunId>, conversation: Option<ScopeId>) {
        // A part of a secret would not be known for it.
        let title = shortened(&self.runs.ledger.scrubber().scrub(prompt.to_owned()));
        self.backlog.prepare(|head| {
            head.parent = parent;
            head.title = title;
            head.conversation = conversation;
        });
    }

    /// Takes over a run that waits with so many calls made: from this pause nobody else goes on then, unless told to.
    pub(super) async fn claim(&self, pause: u32, again: bool, calls: usize) -> Result<(), ToolError> {
        let mut head = self.backlog.head();
        let id = head.id;
        let document = match self.runs.ledger.head(&self.runs.name(id)).await? {
            Some(document) => {
                let holder = head.holder.take();
                head = RunSummary { holder, stop_reason: None, success: false, ..read_head(&document)? };
                document
            }
            None => Document { id: self.runs.name(id), version: 0, value: Arc::default() },
        };
        let already = || {
            ToolError::new(Code::Conflict, format!("the run `{id}` was resumed before from the same state"))
                .suggest("Go on from the state that it gave then; `Run::allow_second_resume` goes on all the same, and makes its calls once more.")
        };
        if head.resumed >= pause && !again {
            return Err(already());
        }
        head.resumed = head.resumed.max(pause);
        let document = match self.runs.ledger.replace(document, &head).await {
            Err(error) if error.code() == Code::Conflict => return Err(already()),
            committed => committed?,
        };
        self.backlog.restart(document, head);
        self.state().calls = calls;
        Ok(())
    }

    /// Keeps how far the run has come.
    pub(super) async fn save(&self, record: &RunRecord, spent: &Spent) -> Result<(), ToolError> {
        if self.backlog.is_new() {
            // A run that is killed during its first answer was there all the same.
            self.backlog.push(None, |_| ());
        }
        let made = self.state().calls;
        let calls = record.tool_calls.get(made..).unwrap_or_default();
        if !calls.is_empty() {
            let raw = calls.iter().map(RawJson::of).collect::<Result<Vec<_>, _>>()?;
            let text = self.runs.ledger.text(&Entry::Calls(raw))?;
            let length = text.len() as u64;
            self.state().calls = record.tool_calls.len();
            // The record that comes at the end has them in any case.
            if self.backlog.head().bytes + length <= MAX_BYTES {
                self.backlog.push(Some(text), move |head| head.bytes += length);
            }
        }
        self.flush(|head| {
            head.iterations = record.iterations;
            head.tool_calls = record.tool_calls.len();
            head.usage.clone_from(&spent.usage);
            head.cost_usd = spent.cost_usd.filter(|_| record.iterations > 0);
        })
        .await
    }

    /// Writes what waits.
    async fn flush(&self, besides: impl Fn(&mut RunSummary)) -> Result<(), ToolError> {
        let is_full = self.state().is_full;
        let flushed = self.backlog.flush(|head| {
            head.is_incomplete |= is_full;
            besides(head);
        });
        flushed.await
    }

    /// Keeps the record.
    pub(super) async fn finish(&self, record: &RunRecord) -> Result<(), ToolError> {
        let text = self.runs.ledger.text(&Entry::Record(RawJson::of(record)?))?;
        let length = text.len() as u64;
        let end = RunEnd::of(record);
        self.backlog.push(Some(text), move |head| {
            head.bytes += length;
            end.tell(head);
        });
        self.flush(|_| ()).await?;
        self.runs.prune().await
    }
}

/// What the summary of a run has of its record.
struct RunEnd {
    model: String,
    stop_reason: String,
    success: bool,
    iterations: u32,
    tool_calls: usize,
    usage: Usage,
    cost_usd: Option<f64>,
    duration_ms: f64,
    execution_time: f64,
}

impl RunEnd {
    fn of(record: &RunRecord) -> Self {
        Self {
            model: record.model.clone(),
            stop_reason: record.stop_reason.clone(),
            success: record.success,
            iterations: record.iterations,
            tool_calls: record.tool_calls.len(),
            usage: record.usage.clone(),
            cost_usd: record.cost_usd,
            duration_ms: record.duration_ms,
            execution_time: record.execution_time,
        }
    }

    fn tell(&self, head: &mut RunSummary) {
        head.model.clone_from(&self.model);
        head.stop_reason = Some(self.stop_reason.clone());
        head.holder = None;
        head.success = self.success;
        head.iterations = self.iterations;
        head.tool_calls = self.tool_calls;
        head.usage.clone_from(&self.usage);
        head.cost_usd = self.cost_usd;
        head.duration_ms = self.duration_ms;
        head.execution_time = self.execution_time;
    }
}

impl ExchangeSink for RunLog {
    fn exchange(
        &self,
        model: &ModelId,
        request: &Request,
        answer: Result<&Response, &ModelError>,
    ) -> Result<(), ModelError> {
        let mut state = self.state();
        if state.is_full {
            return Ok(());
        }
        let same_turns =
            state.latest.turns.iter().zip(&request.turns).take_while(|(before, now)| before == now).count();
        let without_turns = |request: &Request, turns: Vec<Turn>| Request {
            system: request.system.clone(),
            turns,
            tools: Arc::clone(&request.tools),
            tool_choice: request.tool_choice.clone(),
            hosted_tools: request.hosted_tools.clone(),
            settings: request.settings.clone(),
            context_edits: request.context_edits.clone(),
            provider_options: request.provider_options.clone(),
            betas: request.betas.clone(),
            metadata: request.metadata.clone(),
            provider_state: request.provider_state.clone(),
        };
        let mut turns = std::mem::take(&mut state.latest.turns);
        let rest = without_turns(request, Vec::new());
        let is_new = rest != state.latest;
        let exchange = StoredExchange {
            model: model.clone(),
            request: is_new.then(|| rest.clone()),
            same_turns,
            turns: request.turns.get(same_turns..).unwrap_or_default().to_vec(),
            response: answer.ok().cloned(),
            error: answer.err().cloned(),
        };
        turns.truncate(same_turns);
        turns.extend_from_slice(&exchange.turns);
        state.latest = rest;
        state.latest.turns = turns;
        let text = serde_json::to_string(&Entry::Exchange(Box::new(exchange))).map_err(|error| {
            ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(model)
        })?;
        let text = self.runs.ledger.scrubber().with_request_secrets(request).scrub_json(&text);
        let length = text.len() as u64;
        if self.backlog.head().bytes + length > MAX_BYTES {
            state.is_full = true;
            return Ok(());
        }
        self.backlog.push(Some(text), move |head| {
            head.bytes += length;
            head.exchanges += 1;
        });
        Ok(())
    }
}

/// When a run that is told of only at its end has begun.
pub(super) fn now() -> Timestamp {
    SystemClock.timestamp()
}
