//! Stored runs: one document per run. Its value is the head, the events of its changes are those of the run.
//!
//! The process that runs a flow is the only writer of its document; a second one fails, because each change names the
//! version that it is based on. What comes from other processes is in a second document, the inbox.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use toolpost_core::{
    Change, Commit, Committed, DocStore, Document, Hint, Masks, Patch, RunId, Timestamp, ToolError, Write,
    newer_format,
};

use crate::event::{FlowEvent, VERSION};
use crate::outcome::{RunStatus, StepStatus};

/// The prefix of the documents of runs.
const RUNS: &str = "flows/";
/// The prefix of their inboxes.
const INBOXES: &str = "flow-inboxes/";
/// Bytes of events in one change. As JSON within JSON they may double, and a change has at most 2 MiB by default.
const PIECE: usize = 512 * 1024;
/// The number of the latest runs that a list examines.
const MAX_LISTED: usize = 10_000;
/// Changes that are read at once.
const PAGE: usize = 64;
/// Batches that wait for the writer.
const QUEUE: usize = 64;
/// Attempts to append to an inbox beside other processes.
const MAX_ATTEMPTS: usize = 50;

/// The figures of a stored run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FlowSummary {
    /// The version of the format.
    pub v: u8,
    /// The run.
    pub id: RunId,
    /// The name of the plan.
    pub name: String,
    /// The SHA-256 of the plan.
    pub hash: String,
    /// The end, if it has ended.
    pub status: RunStatus,
    /// The process that runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// When it began.
    pub started: Timestamp,
    /// When it ended, or when its last event was stored.
    pub updated: Timestamp,
    /// The number of stored events.
    pub events: u64,
    /// The steps that succeeded.
    pub succeeded: u64,
    /// The steps that failed.
    pub failed: u64,
    /// The names of the signals and the paths of the approvals that steps wait for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<String>,
    /// The reason of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ToolErrorText>,
    /// The version of the inbox whose messages are in the events.
    #[serde(default)]
    pub inbox: u64,
}

impl FlowSummary {
    /// Counts the end of a step.
    pub(crate) fn count(&mut self, status: StepStatus) {
        match status {
            StepStatus::Succeeded => self.succeeded += 1,
            StepStatus::Failed => self.failed += 1,
            _ => {}
        }
    }
}

/// The code and the message of an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolErrorText {
    /// The code, such as `DEPENDENCY`.
    pub code: String,
    /// The message.
    pub message: String,
    /// The step that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

impl ToolErrorText {
    /// The text of an error.
    pub fn from_error(error: &ToolError) -> Self {
        let step = error.context().get("step").and_then(Value::as_str).map(str::to_owned);
        Self { code: error.code().as_str().to_owned(), message: error.message().to_owned(), step }
    }
}

/// An event and its time.
pub(crate) type Stamped = (Timestamp, FlowEvent);

/// A message in an inbox.
pub(crate) struct Message {
    pub(crate) version: u64,
    /// The time at which it was stored.
    pub(crate) at: Timestamp,
    /// None for an event of another format.
    pub(crate) event: Option<FlowEvent>,
}

/// A piece of a batch of events. The text is JSON within JSON, so that numbers keep their digits.
#[derive(Serialize, Deserialize)]
struct Piece {
    v: u8,
    part: u32,
    #[serde(default)]
    more: bool,
    text: String,
}

/// The documents of runs in a store.
#[derive(Clone)]
pub(crate) struct Journal {
    store: Arc<dyn DocStore>,
    masks: Masks,
}

/// A run that this process writes.
pub(crate) struct Record {
    document: Document,
    pub(crate) head: FlowSummary,
}

impl Journal {
    pub(crate) fn new(store: Arc<dyn DocStore>, masks: Masks) -> Self {
        Self { store, masks }
    }

    /// Begins the document of a run.
    pub(crate) async fn create(&self, head: FlowSummary, events: &[Stamped]) -> Result<Record, ToolError> {
        let document = Document { id: format!("{RUNS}{}", head.id), version: 0, value: Arc::default() };
        let mut record = Record { document, head };
        self.append(&mut record, events).await?;
        Ok(record)
    }

    /// Appends events and stores the head.
    ///
    /// # Errors
    /// `CONFLICT` if another process has written, and errors of the store.
    pub(crate) async fn append(&self, record: &mut Record, events: &[Stamped]) -> Result<(), ToolError> {
        record.head.events += events.len() as u64;
        if let Some(error) = &mut record.head.error {
            error.message = self.masks.text(&error.message);
        }
        let text = self.text(events)?;
        let mut rest = text.as_str();
        for part in 0.. {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE));
            rest = after;
            let more = !rest.is_empty();
            // The head counts the events once they are complete.
            let value =
                if more { mark(&record.document.value, part) } else { serde_json::to_value(&record.head)? };
            let piece = Piece { v: VERSION, part, more, text: piece.to_owned() };
            record.document = self.commit(&record.document, value, json!(piece)).await?;
            if !more {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The text of events. Secrets are masked in values only: names and numbers are what a resumed run needs.
    fn text(&self, events: &[Stamped]) -> Result<String, ToolError> {
        if self.masks.is_empty() {
            return Ok(serde_json::to_string(events)?);
        }
        let mut events = serde_json::to_value(events)?;
        for event in events.as_array_mut().into_iter().flatten() {
            self.mask(event.get_mut(1));
        }
        Ok(events.to_string())
    }

    /// Masks the values of an event. The members of a plan keep their names.
    fn mask(&self, event: Option<&mut Value>) {
        fn mask(masks: &Masks, value: &mut Value, has_data: bool) {
            match value {
                Value::String(text) => *text = masks.text(text),
                Value::Array(items) => items.iter_mut().for_each(|item| mask(masks, item, has_data)),
                Value::Object(members) => {
                    for (name, mut member) in std::mem::take(members) {
                        mask(masks, &mut member, has_data);
                        members.insert(if has_data { masks.text(&name) } else { name }, member);
                    }
                }
                _ => {}
            }
        }
        let members = event.and_then(Value::as_object_mut).into_iter().flatten();
        for (name, value) in members {
            match name.as_str() {
                "plan" => mask(&self.masks, value, false),
                "input" | "output" | "error" | "value" | "answer" | "reason" => {
                    mask(&self.masks, value, true);
                }
                _ => {}
            }
        }
    }

    async fn commit(&self, document: &Document, value: Value, event: Value) -> Result<Document, ToolError> {
        let patch = Patch::diff(&document.value, &value).to_value();
        let value = Arc::new(value);
        let write =
            Write { id: document.id.clone(), base: document.version, patch, value: Arc::clone(&value) };
        let commit = Commit { writes: vec![write], event: Some(event), ..Commit::default() };
        match self.store.commit(commit).await? {
            Committed::Done(versions) => {
                let version = versions.first().copied().unwrap_or(document.version + 1);
                Ok(Document { id: document.id.clone(), version, value })
            }
            Committed::Conflict(_) => Err(ToolError::conflict("another process continues this run")
                .suggest(Hint::ShowFlowRun { run: document.id.trim_start_matches(RUNS).to_owned() })),
        }
    }

    /// The summary of a run.
    pub(crate) async fn summary(&self, id: RunId) -> Result<FlowSummary, ToolError> {
        let document = self.store.load(&format!("{RUNS}{id}")).await?;
        head_of(&document)
    }

    /// Reads a run with its events.
    pub(crate) async fn open(&self, id: RunId) -> Result<(Record, Vec<Stamped>), ToolError> {
        let document = self.store.load(&format!("{RUNS}{id}")).await?;
        let head = head_of(&document)?;
        let mut events: Vec<Stamped> = Vec::new();
        let (mut text, mut next, mut after) = (String::new(), 0, 0);
        while after < document.version {
            let count = PAGE.min(usize::try_from(document.version - after).unwrap_or(PAGE));
            let changes = self.store.log(&document.id, after, count).await?;
            if changes.is_empty() {
                return Err(invalid(&document.id, "its history is incomplete"));
            }
            for change in changes {
                after = change.version;
                let piece: Piece = change
                    .event
                    .and_then(|event| serde_json::from_value(event).ok())
                    .ok_or_else(|| invalid(&document.id, "an event has another format"))?;
                if piece.v > VERSION {
                    return Err(newer(&document.id, piece.v.into()));
                }
                if piece.part == 0 {
                    text.clear();
                } else if piece.part != next {
                    return Err(invalid(&document.id, "an event lacks a part"));
                }
                next = piece.part + 1;
                text.push_str(&piece.text);
                if !piece.more {
                    let batch: Vec<Stamped> = serde_json::from_str(&text)
                        .map_err(|error| invalid(&document.id, &error.to_string()))?;
                    events.extend(batch);
                }
            }
        }
        Ok((Record { document, head }, events))
    }

    /// The latest runs that match, at most `limit`, among the latest [`MAX_LISTED`].
    pub(crate) async fn list(
        &self,
        matches: impl Fn(&FlowSummary) -> bool,
        limit: usize,
    ) -> Result<Vec<FlowSummary>, ToolError> {
        // The oldest come first.
        let mut names: VecDeque<String> = VecDeque::new();
        loop {
            let page = self.store.list(RUNS, names.back().map(String::as_str), 1_000).await?;
            if page.is_empty() {
                break;
            }
            names.extend(page.into_iter().map(|(name, _)| name));
            let old = names.len().saturating_sub(MAX_LISTED);
            names.drain(..old);
        }
        let mut found = Vec::new();
        for name in names.iter().rev() {
            if found.len() >= limit {
                break;
            }
            found.extend(head_of(&self.store.load(name).await?).ok().filter(&matches));
        }
        Ok(found)
    }

    /// The only run whose id begins with a text, or the latest one for `last`.
    pub(crate) async fn find(&self, start: &str) -> Result<RunId, ToolError> {
        let unknown =
            || ToolError::not_found(format!("there is no run `{start}`")).suggest(Hint::ListFlowRuns);
        if start == "last" {
            return self.list(|_| true, 1).await?.first().map(|run| run.id).ok_or_else(unknown);
        }
        let start = start.trim().to_ascii_lowercase();
        if start.is_empty() || !start.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(unknown());
        }
        match self.store.list(&format!("{RUNS}{start}"), None, 2).await?.as_slice() {
            [(name, _)] => name.trim_start_matches(RUNS).parse().map_err(|_| unknown()),
            [] => Err(unknown()),
            _ => Err(ToolError::invalid_input(format!("several runs begin with `{start}`"))
                .suggest("Give more characters of the id.")),
        }
    }

    /// Deletes a run. Returns whether it existed.
    pub(crate) async fn delete(&self, id: RunId) -> Result<bool, ToolError> {
        self.store.forget(&format!("{INBOXES}{id}")).await?;
        self.store.forget(&format!("{RUNS}{id}")).await
    }

    /// Puts an event into the inbox of a run, for the process that runs it.
    pub(crate) async fn send(&self, id: RunId, event: &FlowEvent) -> Result<(), ToolError> {
        for _ in 0..MAX_ATTEMPTS {
            let document = self.store.load(&format!("{INBOXES}{id}")).await?;
            if self.put(&document, event).await? {
                return Ok(());
            }
        }
        Err(busy_inbox())
    }

    /// Puts an event into the inbox of a run if its last message has this version. Returns whether it did.
    async fn send_after(&self, id: RunId, last: u64, event: &FlowEvent) -> Result<bool, ToolError> {
        let document = self.store.load(&format!("{INBOXES}{id}")).await?;
        if document.version != last {
            return Ok(false);
        }
        self.put(&document, event).await
    }

    /// Appends an event to an inbox. Returns false if another process wrote first.
    async fn put(&self, inbox: &Document, event: &FlowEvent) -> Result<bool, ToolError> {
        let mut event = serde_json::to_value(event)?;
        self.mask(Some(&mut event));
        let value = json!({ "v": VERSION, "messages": inbox.version + 1 });
        match self.commit(inbox, value, event).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == toolpost_core::Code::Conflict => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends what a function makes of the run and of the messages that no process has read.
    ///
    /// The function runs again if another process sends a message meanwhile, so that of two answers one is rejected.
    pub(crate) async fn send_checked<T>(
        &self,
        id: RunId,
        make: impl Fn(FlowSummary, Vec<Stamped>, Vec<Stamped>) -> Result<(FlowEvent, T), ToolError>,
    ) -> Result<T, ToolError> {
        for _ in 0..MAX_ATTEMPTS {
            let (record, events) = self.open(id).await?;
            let (unread, last) = self.unread(&record.head).await?;
            let (event, value) = make(record.head, events, unread)?;
            if self.send_after(id, last, &event).await? {
                return Ok(value);
            }
        }
        Err(busy_inbox())
    }

    /// The messages that the run has not read, and the version of the last one.
    pub(crate) async fn unread(&self, head: &FlowSummary) -> Result<(Vec<Stamped>, u64), ToolError> {
        let (mut unread, mut last) = (Vec::new(), head.inbox);
        loop {
            let messages = self.received(head.id, last).await?;
            let Some(end) = messages.last() else { return Ok((unread, last)) };
            last = end.version;
            unread.extend(messages.into_iter().filter_map(|message| Some((message.at, message.event?))));
        }
    }

    /// The first messages in the inbox after a version.
    pub(crate) async fn received(&self, id: RunId, after: u64) -> Result<Vec<Message>, ToolError> {
        let name = format!("{INBOXES}{id}");
        if self.store.load(&name).await?.version <= after {
            return Ok(Vec::new());
        }
        let changes = self.store.log(&name, after, PAGE).await?;
        let message = |change: Change| {
            let event = change.event.and_then(|event| serde_json::from_value(event).ok());
            Message { version: change.version, at: change.at, event }
        };
        Ok(changes.into_iter().map(message).collect())
    }
}

fn busy_inbox() -> ToolError {
    ToolError::overloaded("other processes write to this run's inbox all the time")
}

/// A value that differs, for a change that only has a piece of events.
fn mark(value: &Value, part: u32) -> Value {
    let mut value = value.clone();
    match &mut value {
        Value::Object(members) => {
            members.insert("part".to_owned(), part.into());
            value
        }
        _ => json!({ "part": part }),
    }
}

fn head_of(document: &Document) -> Result<FlowSummary, ToolError> {
    if document.version == 0 {
        return Err(ToolError::not_found(format!(
            "there is no run `{}`",
            document.id.trim_start_matches(RUNS)
        )));
    }
    let version = document.value.get("v").and_then(Value::as_u64).unwrap_or_default();
    if version > u64::from(VERSION) {
        return Err(newer(&document.id, version));
    }
    FlowSummary::deserialize(&*document.value).map_err(|error| invalid(&document.id, &error.to_string()))
}

fn newer(id: &str, found: u64) -> ToolError {
    newer_format(format_args!("the stored run `{}`", id.trim_start_matches(RUNS)), found, VERSION.into())
}

fn invalid(id: &str, problem: &str) -> ToolError {
    ToolError::dependency(format!("the stored run `{}` is invalid: {problem}", id.trim_start_matches(RUNS)))
        .suggest("Use the program that wrote it, or delete it.")
}

/// A message of a run to its writer.
pub(crate) struct Batch {
    pub(crate) events: Vec<Stamped>,
    /// Changes the head.
    pub(crate) head: FlowSummary,
    /// Told when the events are stored.
    pub(crate) stored: Option<oneshot::Sender<Result<(), ToolError>>>,
}

/// The writer of a run: all waiting batches become one change. After an error it writes no more.
pub(crate) struct Writer {
    sender: mpsc::Sender<Batch>,
    failure: Arc<OnceLock<ToolError>>,
}

impl Writer {
    pub(crate) async fn send(&self, batch: Batch) -> Result<(), ToolError> {
        self.sender.send(batch).await.map_err(|_| self.failure())
    }

    /// The reason why it writes no more.
    pub(crate) fn failure(&self) -> ToolError {
        let unknown = || ToolError::internal("the writer of the run has ended");
        self.failure.get().cloned().unwrap_or_else(unknown)
    }
}

/// Starts the writer of a run.
pub(crate) fn writer(journal: Journal, mut record: Record) -> Writer {
    let (sender, mut receiver) = mpsc::channel::<Batch>(QUEUE);
    let failure = Arc::new(OnceLock::new());
    let told = Arc::clone(&failure);
    tokio::spawn(async move {
        while let Some(first) = receiver.recv().await {
            let mut events = first.events;
            let mut head = first.head;
            let mut waiting: Vec<_> = first.stored.into_iter().collect();
            while let Ok(more) = receiver.try_recv() {
                events.extend(more.events);
                head = more.head;
                waiting.extend(more.stored);
            }
            record.head = FlowSummary { events: record.head.events, ..head };
            let done = journal.append(&mut record, &events).await;
            let failure = done.as_ref().err().cloned();
            if let Some(error) = &failure {
                let _ = told.set(error.clone());
            }
            for waiting in waiting {
                // The run may have ended.
                let _ = waiting.send(done.clone());
            }
            if failure.is_some() {
                break;
            }
        }
    });
    Writer { sender, failure }
}
