//! Stored runs: their records, and the exchanges with their models.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{
    CallError, CallRecord, Code, DocStore, Document, Hint, RunId, RunRecord, ScopeId, Timestamp, ToolError,
    Usage,
};
use toolpost_llm::{
    ErrorKind, ExchangeSink, ModelError, ModelId, RawJson, Request, Response, Scrubber, Turn, call_secrets,
};

use super::conversation::{one_line, prompt_text};
use super::log::{CallSecrets, Log, LogStore, MAX_LISTED, VERSION, new_change, parse_head};
use crate::spend::Spent;

/// The prefix of runs.
const RUNS: &str = "runs/";
/// The prefix of single calls.
const CALLS: &str = "calls/";
/// Runs that are searched for a call, the latest first.
const MAX_SEARCHED: usize = 100;
/// Runs that a store keeps; the oldest are deleted.
const MAX_RUNS: usize = 1_000;
/// Bytes of JSON that are stored of one run.
const MAX_BYTES: u64 = 64 * 1024 * 1024;
/// The stop reason of a successful call.
const CALLED: &str = "called";
/// Runs that are deleted at once.
const MAX_DELETED: usize = 100;

/// The stored runs: their records, and the exchanges with their models, which a replay uses.
///
/// A store keeps the latest 1,000 runs.
#[derive(Clone)]
pub struct Runs {
    store: LogStore,
    prefix: &'static str,
    process: Option<Arc<str>>,
}

/// A summary of a stored run. Figures of an unfinished run are those of its last write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunSummary {
    /// The version of this format.
    pub v: u8,
    /// The run.
    pub id: RunId,
    /// The parent run, if an agent that is a tool started this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<RunId>,
    /// The beginning of its prompt.
    pub title: String,
    /// The model, such as `anthropic/claude-opus-5`.
    pub model: String,
    /// The conversation of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ScopeId>,
    /// When the run started.
    pub started: Timestamp,
    /// The stop reason; absent while the run continues, and if its process was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// The process of the run ([`Runs::with_process`]); absent once the run ended.
    ///
    /// If the process does not exist any more, the run was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The number of its resumed pauses.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed: u32,
    /// Whether the run finished with an answer.
    pub success: bool,
    /// Number of model requests.
    pub iterations: u32,
    /// Number of tool calls.
    pub tool_calls: usize,
    /// Number of failed tool calls; absent in runs that were stored before it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_calls: Option<usize>,
    /// Usage of the models.
    pub usage: Usage,
    /// Cost in US dollars; absent means unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Duration in milliseconds.
    #[serde(default)]
    pub duration_ms: f64,
    /// Duration in seconds.
    pub execution_time: f64,
    /// Number of stored exchanges with models.
    pub exchanges: usize,
    /// Whether exchanges are missing because the run exceeds 64 MiB.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_incomplete: bool,
    /// Stored bytes of JSON.
    pub bytes: u64,
}

impl RunSummary {
    /// Updates the figures of a run that continues.
    fn update(&mut self, record: &RunRecord, spent: &Spent) {
        self.iterations = record.iterations;
        self.tool_calls = record.tool_calls.len();
        self.failed_calls = Some(record.tool_calls.iter().filter(|call| call.error.is_some()).count());
        self.usage.clone_from(&spent.usage);
        self.cost_usd = spent.cost_usd.filter(|_| record.iterations > 0);
    }

    /// Sets the figures of a run that ended.
    fn finish(&mut self, record: &RunRecord) {
        let spent = Spent { usage: record.usage.clone(), cost_usd: record.cost_usd };
        self.update(record, &spent);
        self.cost_usd = record.cost_usd;
        self.model.clone_from(&record.model);
        self.stop_reason = Some(record.stop_reason.clone());
        self.process = None;
        self.success = record.success;
        self.duration_ms = record.duration_ms;
        self.execution_time = record.execution_time;
    }
}

/// A stored run.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StoredRun {
    /// The summary.
    pub summary: RunSummary,
    /// The options of its caller ([`Run::with_stored_options`](crate::Run::with_stored_options)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Value>,
    /// The system prompt of its first request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The text of its prompt; absent if no exchange is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The texts of its models, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<StoredText>,
    /// Its record when it ended or last paused; absent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Value>,
    /// The records of later calls: all calls that ended before the process was killed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Value>,
}

/// The text of one answer of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StoredText {
    /// When the answer was stored.
    pub at: Timestamp,
    /// The text.
    pub text: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Figures over many runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunStats {
    /// Number of runs.
    pub runs: usize,
    /// Runs with an answer.
    pub succeeded: usize,
    /// Runs that continue or were killed.
    pub unfinished: usize,
    /// Number of model requests.
    pub iterations: u64,
    /// Number of tool calls.
    pub tool_calls: usize,
    /// Number of failed tool calls, of runs that counted them.
    pub failed_calls: usize,
    /// The part of successful calls, from 0 to 1, of runs that counted failures; absent without calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_success_rate: Option<f64>,
    /// Number of calls of runs that counted failures.
    #[serde(skip)]
    counted_calls: usize,
    /// Usage of the models.
    pub usage: Usage,
    /// The cost of all runs whose cost is known, in US dollars.
    pub known_cost_usd: f64,
    /// Finished runs whose cost is unknown.
    pub unknown_costs: usize,
    /// Total duration in milliseconds.
    pub duration_ms: f64,
    /// Total duration in seconds.
    pub execution_time: f64,
    /// Number of runs by stop reason.
    pub stop_reasons: BTreeMap<String, usize>,
    /// The figures by model.
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
        if let Some(failed) = run.failed_calls {
            self.failed_calls += failed;
            self.counted_calls += run.tool_calls;
        }
        if self.counted_calls > 0 {
            self.call_success_rate = Some(1.0 - self.failed_calls as f64 / self.counted_calls as f64);
        }
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

/// An entry of a stored run.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RunEntry {
    /// The options of the caller, before all others.
    Options(RawJson),
    /// An exchange with a model.
    Exchange(Box<StoredExchange>),
    /// Records of calls.
    Calls(Vec<RawJson>),
    /// The record of the run.
    Record(RawJson),
}

/// The ids of the child runs in a record.
#[derive(Default, Deserialize)]
struct Children {
    #[serde(default)]
    children: Vec<Child>,
}

#[derive(Deserialize)]
struct Child {
    id: String,
}

/// An exchange, as the difference to the one before.
#[derive(Serialize, Deserialize)]
struct StoredExchange {
    model: ModelId,
    /// The request without its turns, if it differs from the one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request: Option<Request>,
    /// The number of leading turns that are those of the request before.
    #[serde(default)]
    same_turns: usize,
    /// The other turns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    turns: Vec<Turn>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<Response>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<ModelError>,
}

impl Runs {
    /// The runs of a store.
    pub fn new(store: Arc<dyn DocStore>) -> Self {
        Self { store: LogStore::new(store), prefix: RUNS, process: None }
    }

    /// The single calls of a store, apart from its runs.
    ///
    /// Each is a run without a model, with the id of its call ([`add_call`](Self::add_call)).
    pub fn for_calls(store: Arc<dyn DocStore>) -> Self {
        Self { prefix: CALLS, ..Self::new(store) }
    }

    /// Masks these secrets in everything stored from now on. Defaults to none.
    ///
    /// Secrets in the provider options of a request and [in tool calls](call_secrets) are always masked.
    #[must_use]
    pub fn with_secrets(self, secrets: impl Into<Scrubber>) -> Self {
        Self { store: self.store.with_secrets(secrets), ..self }
    }

    /// Names the process of new runs, to tell an interrupted run from one that continues. Defaults to none.
    #[must_use]
    pub fn with_process(mut self, process: impl Into<Arc<str>>) -> Self {
        self.process = Some(process.into());
        self
    }

    /// The id of the only run with this prefix.
    ///
    /// # Errors
    /// `NOT_FOUND` for no match, `INVALID_INPUT` for several, and errors of the store.
    pub async fn find(&self, start: &str) -> Result<RunId, CallError> {
        let found = self.store.find(self.prefix, start, "run").await?;
        Ok(found.parse().map_err(|error: String| ToolError::internal(error))?)
    }

    /// Lists runs of one conversation or of all, the latest first, at most `limit`. Omits child runs.
    ///
    /// Lists the latest 5,000 only.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list(
        &self,
        conversation: Option<ScopeId>,
        limit: usize,
    ) -> Result<Vec<RunSummary>, CallError> {
        let matches = |run: &RunSummary| {
            run.parent.is_none() && (conversation.is_none() || run.conversation == conversation)
        };
        Ok(self.store.heads(self.prefix, matches, limit).await?)
    }

    /// Lists all runs, child runs included, like [`list`](Self::list).
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn list_all(&self, limit: usize) -> Result<Vec<RunSummary>, CallError> {
        Ok(self.store.heads(self.prefix, |_: &RunSummary| true, limit).await?)
    }

    /// Lists the child runs of a run, the oldest first, also while the run continues.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn children(&self, id: RunId) -> Result<Vec<RunSummary>, CallError> {
        let is_child = |run: &RunSummary| run.parent == Some(id);
        let mut found = self.store.heads(self.prefix, is_child, usize::MAX).await?;
        found.reverse();
        Ok(found)
    }

    /// Figures over the runs that started at a time or later. Spending of a child run counts once, in its parent.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn stats(&self, since: Timestamp) -> Result<RunStats, CallError> {
        let mut stats = RunStats::default();
        for run in self.list(None, usize::MAX).await?.iter().filter(|run| run.started >= since) {
            stats.add(run);
            stats.models.entry(run.model.clone()).or_default().add(run);
        }
        Ok(stats)
    }

    /// Loads a run.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown id, `DEPENDENCY` for an invalid document, and errors of the store.
    pub async fn load(&self, id: RunId) -> Result<StoredRun, CallError> {
        let document = self.document(id).await?;
        let mut run = StoredRun {
            summary: parse_head(&document)?,
            options: None,
            system: None,
            prompt: None,
            texts: Vec::new(),
            record: None,
            calls: Vec::new(),
        };
        self.store
            .read(&document, |at, entry: RunEntry| {
                match entry {
                    RunEntry::Options(raw) => run.options = raw.to_value().ok(),
                    RunEntry::Record(raw) => {
                        run.record = raw.to_value().ok();
                        // The record has them.
                        run.calls.clear();
                    }
                    RunEntry::Calls(new) => {
                        run.calls.extend(new.iter().filter_map(|raw| raw.to_value().ok()));
                    }
                    RunEntry::Exchange(exchange) => {
                        let prompt = || exchange.turns.iter().rev().find_map(prompt_text);
                        run.prompt = run.prompt.take().or_else(prompt);
                        let system = exchange.request.and_then(|request| request.system);
                        run.system = run.system.take().or(system);
                        let text = exchange.response.map(|response| response.text());
                        let text = text.filter(|text| !text.trim().is_empty());
                        run.texts.extend(text.map(|text| StoredText { at, text }));
                    }
                }
                true
            })
            .await?;
        Ok(run)
    }

    /// The options of a run's caller ([`Run::with_stored_options`](crate::Run::with_stored_options)), if they are stored.
    ///
    /// # Errors
    /// Errors of [`load`](Self::load).
    pub async fn options(&self, id: RunId) -> Result<Option<Value>, ToolError> {
        let document = self.document(id).await?;
        let mut options = None;
        self.store
            .read(&document, |_, entry: RunEntry| {
                if let RunEntry::Options(raw) = entry {
                    options = raw.to_value().ok();
                }
                false
            })
            .await?;
        Ok(options)
    }

    /// Sends the exchanges of a run and of its child runs to a sink, in order. Returns their number.
    ///
    /// A [`Recording`](toolpost_llm::Recording) as the sink makes a file that a `replay:` model plays. A killed run has the
    /// exchanges that had ended.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown id, `PRECONDITION` if exchanges are missing, and errors of the store and of the sink.
    pub async fn export(&self, id: RunId, sink: &dyn ExchangeSink) -> Result<usize, CallError> {
        let missing = |problem: &str| {
            ToolError::precondition(format!("cannot replay the run `{id}`: {problem}"))
                .suggest(Hint::RecordRun)
        };
        let (mut count, mut open, mut seen) = (0, vec![self.document(id).await?], HashSet::from([id]));
        while let Some(document) = open.pop() {
            let head: RunSummary = parse_head(&document)?;
            if head.is_incomplete {
                return Err(missing("its stored exchanges are incomplete").into());
            }
            let (own, mut children) = self.export_one(&document, sink).await?;
            if head.stop_reason.is_none() {
                // Its record is missing, or is that of a pause.
                children.extend(self.children(head.id).await?.iter().map(|child| child.id));
            }
            count += own;
            if count == 0 {
                return Err(missing("it has no stored exchanges").into());
            }
            for child in children.into_iter().rev().filter(|child| seen.insert(*child)) {
                let document = self.store.load(&self.name(child)).await?;
                open.push(document.ok_or_else(|| missing("the exchanges of a child run are missing"))?);
            }
        }
        Ok(count)
    }

    /// Exports the exchanges of one run. Returns their number and the child runs.
    async fn export_one(
        &self,
        document: &Document,
        sink: &dyn ExchangeSink,
    ) -> Result<(usize, Vec<RunId>), ToolError> {
        let mut children = Vec::new();
        let mut request = Request::default();
        let (mut count, mut failed) = (0, None);
        self.store
            .read(document, |_, entry: RunEntry| {
                let exchange = match entry {
                    RunEntry::Exchange(exchange) => exchange,
                    RunEntry::Record(record) => {
                        // A resumed run has a record of each part.
                        let record: Children = record.read().unwrap_or_default();
                        children.extend(
                            record.children.iter().filter_map(|child| child.id.parse::<RunId>().ok()),
                        );
                        return true;
                    }
                    RunEntry::Options(_) | RunEntry::Calls(_) => return true,
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
                count += usize::from(failed.is_none());
                failed.is_none()
            })
            .await?;
        match failed {
            Some(error) => Err(ToolError::dependency(error.to_string())),
            None => Ok((count, children)),
        }
    }

    /// Stores the record of a run whose exchanges another program made.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn add(
        &self,
        record: &RunRecord,
        prompt: &str,
        conversation: Option<ScopeId>,
    ) -> Result<(), ToolError> {
        RunLog::new(self, record, prompt, conversation, None).finish(record).await
    }

    /// Replaces the record of a run that ended or paused, for example to add later files.
    ///
    /// # Errors
    /// `NOT_FOUND` for an unknown id, `CONFLICT` while the run continues, and errors of the store.
    pub async fn amend(&self, record: &RunRecord) -> Result<(), CallError> {
        let document = self.document(record.id).await?;
        let mut head: RunSummary = parse_head(&document)?;
        if head.stop_reason.is_none() {
            return Err(ToolError::conflict(format!("the run `{}` has not ended", record.id))
                .suggest("Replace its record after the end.")
                .into());
        }
        let text =
            self.store.text(&RunEntry::Record(RawJson::from_value(record).map_err(ToolError::from)?))?;
        head.bytes = head.bytes.saturating_add(text.len() as u64);
        self.store.write(document, &head, &new_change(), Some(&text)).await?;
        Ok(())
    }

    /// Deletes a run and its history. Returns whether it existed.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn delete(&self, id: RunId) -> Result<bool, CallError> {
        Ok(self.store.delete(&self.name(id)).await?)
    }

    /// Stores the record of a call outside of runs.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn add_call(&self, call: &Arc<CallRecord>) -> Result<(), CallError> {
        // Ids of calls and of runs have the same form.
        let id = call.id.to_string().parse().map_err(|error: String| ToolError::internal(error))?;
        let mut record = RunRecord::begin(id, String::new(), call.started);
        record.success = call.error.is_none();
        record.stop_reason = call.error.as_ref().map_or(CALLED, |error| error.code().as_str()).to_owned();
        record.error = call.error.as_ref().map(serde_json::to_value).transpose().map_err(ToolError::from)?;
        record.set_duration(call.duration);
        record.tools_used = vec![call.tool.to_string()];
        record.usage = call.usage.clone().unwrap_or_default();
        record.cost_usd = call.cost_usd;
        record.artifacts.clone_from(&call.artifacts);
        record.tool_calls = vec![Arc::clone(call)];
        let arguments = call.arguments.as_deref().map(ToString::to_string).unwrap_or_default();
        Ok(self.add(&record, &format!("{} {arguments}", call.tool), None).await?)
    }

    /// The run of the call whose id begins with `start`. Searches the latest 100 runs with calls.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn find_call(&self, start: &str) -> Result<Option<RunId>, CallError> {
        let start = start.trim().to_ascii_lowercase();
        if start.is_empty() {
            return Ok(None);
        }
        let has_calls = |run: &RunSummary| run.tool_calls > 0;
        for run in self.store.heads(self.prefix, has_calls, MAX_SEARCHED).await? {
            let stored = self.load(run.id).await?;
            let recorded = stored.record.as_ref().and_then(|record| record["tool_calls"].as_array());
            let mut calls = recorded.into_iter().flatten().chain(&stored.calls);
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
        self.store.load(&self.name(id)).await?.ok_or_else(|| {
            ToolError::not_found(format!("unknown run `{id}`")).suggest("List the stored runs.")
        })
    }

    /// Deletes the oldest runs beyond the maximum.
    async fn prune(&self) -> Result<(), ToolError> {
        let names = self.store.names(self.prefix, MAX_LISTED).await?;
        for name in names.iter().skip(MAX_RUNS).rev().take(MAX_DELETED) {
            self.store.delete(name).await?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Runs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runs").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Whether the id of a call, or of a call below it, begins with `start`.
fn has_call(record: &Value, start: &str) -> bool {
    let children = record["children"].as_array().into_iter().flatten();
    record["id"].as_str().is_some_and(|id| id.starts_with(start))
        || children.into_iter().any(|child| has_call(child, start))
}

/// Stores one run while it continues.
pub(super) struct RunLog {
    runs: Runs,
    log: Log<RunSummary>,
    state: Mutex<LogState>,
}

#[derive(Default)]
struct LogState {
    /// The request of the latest exchange.
    latest: Request,
    /// The number of stored calls.
    calls: usize,
    secrets: CallSecrets,
}

impl RunLog {
    /// The log of a run whose record so far is given.
    pub(super) fn new(
        runs: &Runs,
        record: &RunRecord,
        prompt: &str,
        conversation: Option<ScopeId>,
        options: Option<&Value>,
    ) -> Self {
        let head = RunSummary {
            v: VERSION,
            id: record.id,
            parent: record.parent,
            title: one_line(&runs.store.scrubber().scrub(prompt.to_owned())),
            model: record.model.clone(),
            conversation,
            started: record.started,
            stop_reason: None,
            process: runs.process.as_deref().map(str::to_owned),
            resumed: 0,
            success: false,
            iterations: 0,
            tool_calls: 0,
            failed_calls: None,
            usage: Usage::default(),
            cost_usd: None,
            duration_ms: 0.0,
            execution_time: 0.0,
            exchanges: 0,
            is_incomplete: false,
            bytes: 0,
        };
        let document = Document { id: runs.name(record.id), version: 0, value: Arc::default() };
        let log = Log::new(runs.store.clone(), document, head);
        let run = Self { runs: runs.clone(), log, state: Mutex::default() };
        // A JSON value is always JSON text.
        let options = options.and_then(|options| RawJson::from_value(options).ok()).map(RunEntry::Options);
        if let Some(text) = options.and_then(|options| run.text(&options).ok()) {
            run.append(text, |_| ());
        }
        run
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        // No panic leaves a partial change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a paused run with so many calls: afterwards no other process can resume from this pause.
    pub(super) async fn claim(&self, pause: u32, again: bool, calls: usize) -> Result<(), ToolError> {
        let mut head = self.log.head();
        let id = head.id;
        let name = self.runs.name(id);
        let document = match self.runs.store.load(&name).await? {
            Some(document) => {
                let process = head.process.take();
                head = RunSummary { process, stop_reason: None, success: false, ..parse_head(&document)? };
                document
            }
            None => Document { id: name, version: 0, value: Arc::default() },
        };
        let claimed = || {
            ToolError::conflict(format!("the run `{id}` was resumed before from the same state"))
                .suggest("Resume its latest state, or use `Run::allow_second_resume` to run its calls again.")
        };
        if head.resumed >= pause && !again {
            return Err(claimed());
        }
        head.resumed = head.resumed.max(pause);
        let document = match self.runs.store.write(document, &head, &new_change(), None).await {
            Err(error) if error.code() == Code::Conflict => return Err(claimed()),
            written => written?,
        };
        self.log.restart(document, head);
        self.state().calls = calls;
        Ok(())
    }

    /// Stores new calls and the figures.
    pub(super) async fn save(&self, record: &RunRecord, spent: &Spent) -> Result<(), ToolError> {
        let stored = std::mem::replace(&mut self.state().calls, record.tool_calls.len());
        let calls = record.tool_calls.get(stored..).unwrap_or_default();
        if !calls.is_empty() {
            let raw = calls.iter().map(RawJson::from_value).collect::<Result<Vec<_>, _>>()?;
            // Without room for them, the final record still has them.
            let text = self.text(&RunEntry::Calls(raw))?;
            self.append(text, |_| ());
        }
        self.log.update(|head| head.update(record, spent));
        self.log.flush().await
    }

    /// The stored text of an entry.
    fn text(&self, entry: &RunEntry) -> Result<String, ToolError> {
        self.state().secrets.text(&self.runs.store, entry)
    }

    /// Appends an entry if there is room. Returns whether there was.
    fn append(&self, text: String, change: impl FnOnce(&mut RunSummary)) -> bool {
        let bytes = self.log.head().bytes + text.len() as u64;
        if bytes > MAX_BYTES {
            return false;
        }
        self.log.append(text, |head| {
            head.bytes = bytes;
            change(head);
        });
        true
    }

    /// Stores the record.
    pub(super) async fn finish(&self, record: &RunRecord) -> Result<(), ToolError> {
        let text = self.text(&RunEntry::Record(RawJson::from_value(record)?))?;
        let length = text.len() as u64;
        self.log.append(text, |head| {
            head.bytes += length;
            head.finish(record);
        });
        self.log.flush().await?;
        self.runs.prune().await
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
        if self.log.head().is_incomplete {
            return Ok(());
        }
        let same_turns =
            state.latest.turns.iter().zip(&request.turns).take_while(|(before, now)| before == now).count();
        let mut turns = std::mem::take(&mut state.latest.turns);
        let rest = Request { turns: Vec::new(), ..request.clone() };
        let is_new = rest != state.latest;
        let exchange = StoredExchange {
            model: model.clone(),
            request: is_new.then(|| rest.clone()),
            same_turns,
            turns: request.turns.get(same_turns..).unwrap_or_default().to_vec(),
            response: answer.ok().cloned(),
            error: answer.err().cloned(),
        };
        let items = exchange.turns.iter().flat_map(Turn::items);
        let answered = exchange.response.iter().flat_map(|answer| answer.items.iter());
        state.secrets.add(call_secrets(&request.tools, items.chain(answered)));
        let scrubber = state.secrets.scrubber(&self.runs.store).with_exchange_secrets(&rest, None);
        turns.truncate(same_turns);
        turns.extend_from_slice(&exchange.turns);
        state.latest = rest;
        state.latest.turns = turns;
        let text = serde_json::to_string(&RunEntry::Exchange(Box::new(exchange))).map_err(|error| {
            ModelError::new(ErrorKind::InvalidRequest, error.to_string()).with_model(model)
        })?;
        let text = scrubber.scrub_json(&text);
        if !self.append(text, |head| head.exchanges += 1) {
            self.log.update(|head| head.is_incomplete = true);
        }
        Ok(())
    }
}
