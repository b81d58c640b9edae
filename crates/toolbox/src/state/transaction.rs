//! The state of one call: loaded before an attempt, committed after its success.
//!
//! A change is committed if no other call has changed the parts that the tool saw. Calls of this process on one part
//! take turns; the store decides between processes. Changes to other parts of the document are not a conflict: the change
//! is rebased on the newer version.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use toolpost_core::{
    Commit, Committed, Document, OnConflict, Output, StateAddress, StateConflict, StateView, ToolError,
    Write, format_duration, pointers_overlap, state_conflict,
};

use super::lanes::Held;
use super::store::explain;
use crate::path::host::{CallHost, lock};
use crate::path::sleep_until;
use crate::registry::Target;
use crate::waits::Lineage;

/// The maximum number of rebases of one change; then `OVERLOADED`.
const MAX_REBASES: u32 = 1000;

/// The documents of a call with state.
pub(crate) struct Transaction {
    parts: Vec<Part>,
    /// The changed documents, sorted and distinct, with the parts that the call sees.
    lanes: Vec<(String, Arc<[String]>)>,
    /// The call and its ancestors, innermost first.
    lineage: Lineage,
    state: Mutex<TransactionState>,
}

/// The part of a document that one `#[state]` parameter sees.
struct Part {
    address: StateAddress,
    writes: bool,
    existing: bool,
}

#[derive(Default)]
struct TransactionState {
    /// The documents at the start of the attempt, by name.
    documents: BTreeMap<String, Document>,
    /// The new values of the parts, by parameter.
    changes: BTreeMap<usize, Value>,
    held: Vec<Held>,
}

/// The changes to commit.
struct Change {
    transaction: Arc<Transaction>,
    documents: BTreeMap<String, Document>,
    changes: BTreeMap<usize, Value>,
    /// Exclusive access until the end of the commit, even if the call is dropped.
    held: Vec<Held>,
}

/// The outcome of a commit.
enum Outcome {
    Done,
    /// Another call has changed these parameters; with the current document.
    Overtaken(Change, Vec<usize>, Document),
}

impl Transaction {
    /// Finds the documents of a call.
    fn from_host(host: &CallHost) -> Result<Self, ToolError> {
        let spec = &host.entry.spec;
        let mut parts: Vec<Part> = Vec::with_capacity(spec.state.len());
        for state in &spec.state {
            let address = state.resolve(&host.call, &spec.input_schema)?;
            let clash = parts.iter().find(|other| {
                other.address.document == address.document
                    && (other.writes && state.writes)
                    && pointers_overlap(&other.address.pointer, &address.pointer)
            });
            if clash.is_some() {
                return Err(ToolError::invalid_input(format!(
                    "the arguments name the same part of the document `{}` twice",
                    address.document
                ))
                .with("document", address.document)
                .suggest("Name two different parts."));
            }
            parts.push(Part { address, writes: state.writes, existing: state.existing });
        }
        let mut lanes: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for part in parts.iter().filter(|part| part.writes) {
            lanes.entry(part.address.document.clone()).or_default();
        }
        for part in &parts {
            if let Some(pointers) = lanes.get_mut(&part.address.document) {
                pointers.push(part.address.pointer.clone());
            }
        }
        Ok(Self {
            parts,
            lanes: lanes.into_iter().map(|(document, pointers)| (document, pointers.into())).collect(),
            lineage: host.lineage().map(|host| host.call.id).collect(),
            state: Mutex::default(),
        })
    }

    /// The value of the parameter at this index.
    pub(crate) fn view(&self, index: usize) -> Result<StateView, ToolError> {
        let part = self.part(index)?;
        let state = lock(&self.state);
        let document = state.documents.get(&part.address.document);
        let document =
            document.ok_or_else(|| ToolError::internal("a state was read before it was loaded"))?;
        Ok(StateView::new(part.address.clone(), document))
    }

    /// Sets the new value of the parameter at this index.
    pub(crate) fn set(&self, index: usize, value: Value) -> Result<(), ToolError> {
        if !self.part(index)?.writes {
            return Err(ToolError::internal(format!("the state {index} of this tool is read-only")));
        }
        lock(&self.state).changes.insert(index, value);
        Ok(())
    }

    /// Changes a document.
    pub(crate) fn changes(&self, document: &str) -> bool {
        self.parts.iter().any(|part| part.writes && part.address.document == document)
    }

    fn part(&self, index: usize) -> Result<&Part, ToolError> {
        self.parts.get(index).ok_or_else(|| ToolError::internal(format!("this tool has no state {index}")))
    }

    /// Releases the documents while this call waits. If other calls change the parts that the tool saw, it runs again.
    pub(crate) fn release_documents(&self) {
        let held = std::mem::take(&mut lock(&self.state).held);
        drop(held);
    }

    /// Prepares an attempt: waits for exclusive access, and loads the documents.
    pub(crate) async fn begin(&self, host: &CallHost, most: Duration) -> Result<(), ToolError> {
        let (held, documents) = tokio::select! {
            biased;
            ready = async { Ok::<_, ToolError>((self.take_turn(host).await?, self.load(host).await?)) } => ready?,
            () = host.call.cancellation.cancelled() => {
                return Err(ToolError::cancelled("the caller cancelled the call while other calls changed the document"));
            }
            () = sleep_until(host.call.deadline) => {
                return Err(ToolError::timeout("the deadline passed while other calls changed the document"));
            }
            () = tokio::time::sleep(most) => {
                return Err(ToolError::overloaded(format!(
                    "other calls have changed the document for {}", format_duration(most)
                ))
                .suggest("Wait a moment and call again."));
            }
        };
        let mut state = lock(&self.state);
        state.held.extend(held);
        state.documents = documents;
        state.changes.clear();
        Ok(())
    }

    /// Acquires exclusive access, unless the call has it.
    async fn take_turn(&self, host: &CallHost) -> Result<Vec<Held>, ToolError> {
        let mut held = Vec::new();
        if lock(&self.state).held.is_empty() {
            for (document, pointers) in &self.lanes {
                let (pointers, lineage) = (Arc::clone(pointers), Arc::clone(&self.lineage));
                let holds = !held.is_empty() || host.entry.limit.is_some();
                held.push(host.toolbox.lanes.enter(document, pointers, lineage, holds).await?);
            }
        }
        Ok(held)
    }

    async fn load(&self, host: &CallHost) -> Result<BTreeMap<String, Document>, ToolError> {
        let mut documents = BTreeMap::new();
        for Part { address, existing, .. } in &self.parts {
            let name = &address.document;
            if !documents.contains_key(name) {
                documents.insert(name.clone(), host.documents().load(name).await?);
            }
            if *existing && documents.get(name).is_none_or(|document: &Document| document.version == 0) {
                // A missing document and a document of another owner give the same error.
                let given = name.rsplit('/').next().unwrap_or_default();
                return Err(ToolError::not_found(format!("unknown document `{given}`"))
                    .suggest("Use a document name of this caller."));
            }
        }
        Ok(documents)
    }

    /// The changes of the attempt.
    fn take_change(self: &Arc<Self>) -> Change {
        let mut state = lock(&self.state);
        Change {
            transaction: Arc::clone(self),
            documents: std::mem::take(&mut state.documents),
            changes: std::mem::take(&mut state.changes),
            held: std::mem::take(&mut state.held),
        }
    }
}

impl Change {
    /// The parameters that see a part of a document.
    fn parts<'a>(&'a self, document: &'a str) -> impl Iterator<Item = (usize, &'a Part)> {
        let parts = self.transaction.parts.iter().enumerate();
        parts.filter(move |(_, part)| part.address.document == document)
    }

    /// Commits the changes. Rebases them while other calls change only other parts.
    async fn commit(mut self, host: &Arc<CallHost>) -> Result<Outcome, ToolError> {
        for _ in 0..MAX_REBASES {
            let mut commit = Commit { writes: self.writes()?, ..Commit::default() };
            if commit.writes.is_empty() {
                self.note(host, &[]);
                return Ok(Outcome::Done);
            }
            let written: Vec<String> = commit.writes.iter().map(|write| write.id.clone()).collect();
            // Parts that the tool only read are inputs of the change too.
            let seen = self.documents.values().filter(|document| !written.contains(&document.id));
            commit.reads = seen.map(|document| (document.id.clone(), document.version)).collect();
            explain(host, &mut commit);
            match host.documents().commit(commit).await? {
                Committed::Done(versions) => {
                    let made: Vec<(String, u64)> = written.into_iter().zip(versions).collect();
                    self.note(host, &made);
                    return Ok(Outcome::Done);
                }
                Committed::Conflict(newer) => {
                    for newest in newer {
                        let Some(base) = self.documents.get(&newest.id) else { continue };
                        let touched = self.parts(&newest.id).filter(|(_, part)| {
                            let pointer = &part.address.pointer;
                            base.get(pointer) != newest.get(pointer)
                        });
                        let touched: Vec<usize> = touched.map(|(index, _)| index).collect();
                        if !touched.is_empty() {
                            return Ok(Outcome::Overtaken(self, touched, newest));
                        }
                        self.documents.insert(newest.id.clone(), newest);
                    }
                }
            }
        }
        Err(ToolError::overloaded("other calls change the document too often for this change")
            .suggest("Wait a moment and call again."))
    }

    /// The changed documents with their new values.
    fn writes(&self) -> Result<Vec<Write>, ToolError> {
        let mut writes = Vec::new();
        for document in self.documents.values() {
            let changed = self.parts(&document.id).filter_map(|(index, part)| {
                Some((part.address.pointer.as_str(), self.changes.get(&index)?.clone()))
            });
            let (value, patch) = document.with_values(changed)?;
            if !patch.is_empty() {
                let (id, base, patch) = (document.id.clone(), document.version, patch.to_value());
                writes.push(Write { id, base, patch, value });
            }
        }
        Ok(writes)
    }

    /// Records the versions that the call has read and written.
    fn note(&self, host: &CallHost, made: &[(String, u64)]) {
        for document in self.documents.values() {
            let after =
                made.iter().find(|(id, _)| *id == document.id).map_or(document.version, |(_, after)| *after);
            host.note_versions(document.id.clone(), document.version, after);
        }
    }

    /// Whether the changes of these parameters can be merged with those of another call. A parameter that was only read
    /// is stale and cannot.
    fn can_merge(&self, touched: &[usize]) -> bool {
        let written = |index: &usize| {
            self.transaction.parts.get(*index).is_some_and(|part| part.writes)
                && self.changes.contains_key(index)
        };
        touched.iter().all(written)
    }

    /// Merges this change with that of another call, for each parameter that both have changed.
    fn merge(&mut self, host: &CallHost, touched: &[usize], newest: Document) -> Result<(), ToolError> {
        let Target::Local(tool) = &host.entry.target else {
            return Err(ToolError::internal("a source's tool has no local state"));
        };
        let base = self.documents.get(&newest.id);
        let mut merged = Vec::new();
        for (index, part) in self.parts(&newest.id).filter(|(index, _)| touched.contains(index)) {
            let Some(mine) = self.changes.get(&index) else { continue };
            let pointer = &part.address.pointer;
            let before = base.and_then(|base| base.get(pointer));
            merged.push((index, tool.merge_state(before, mine, newest.get(pointer))?));
        }
        self.changes.extend(merged);
        self.documents.insert(newest.id.clone(), newest);
        Ok(())
    }
}

/// Runs a tool with state: makes attempts until one succeeds and its changes are committed.
///
/// `attempts` makes the attempts of one round.
pub(crate) async fn run(
    host: &Arc<CallHost>,
    attempts: impl AsyncFn(&Arc<CallHost>) -> Result<Output, ToolError>,
) -> Result<Output, ToolError> {
    let transaction = Arc::new(Transaction::from_host(host)?);
    host.begin_transaction(&transaction);
    let policy = host.entry.spec.policy.conflict.clone().unwrap_or_default();
    let mut conflicts = 0;
    loop {
        host.begin_round();
        let output = attempts(host).await?;
        if host.call.options.dry_run {
            return Ok(output);
        }
        let mut change = transaction.take_change();
        loop {
            match commit(host, change).await? {
                Outcome::Done => return Ok(output),
                Outcome::Overtaken(overtaken, touched, newest) => {
                    conflicts += 1;
                    if policy.action == OnConflict::Error || conflicts > policy.max_retries {
                        return Err(overtaken_for_good(&newest, conflicts, &policy));
                    }
                    change = overtaken;
                    let merges = policy.action == OnConflict::Merge && change.can_merge(&touched);
                    if merges {
                        change.merge(host, &touched, newest)?;
                    }
                    wait(host, &policy, conflicts).await?;
                    if !merges {
                        lock(&transaction.state).held = std::mem::take(&mut change.held);
                        break;
                    }
                }
            }
        }
    }
}

/// Commits the changes of an attempt. A running commit cannot be cancelled.
async fn commit(host: &Arc<CallHost>, change: Change) -> Result<Outcome, ToolError> {
    if change.changes.is_empty() {
        change.note(host, &[]);
        return Ok(Outcome::Done);
    }
    let of_call = Arc::clone(host);
    host.run_to_completion(Box::pin(async move { change.commit(&of_call).await })).await
}

fn overtaken_for_good(newest: &Document, conflicts: u32, policy: &StateConflict) -> ToolError {
    let error = state_conflict(&newest.id, newest.version).with("conflicts", conflicts);
    match policy.action {
        OnConflict::Error => error,
        OnConflict::Retry | OnConflict::Merge => error.with("max_retries", policy.max_retries),
    }
}

async fn wait(host: &CallHost, policy: &StateConflict, conflicts: u32) -> Result<(), ToolError> {
    let delay = policy.delay(conflicts, RandomState::new().hash_one(conflicts));
    tokio::select! {
        () = tokio::time::sleep(delay) => Ok(()),
        () = host.call.cancellation.cancelled() => {
            Err(ToolError::cancelled("the caller cancelled the call between two attempts"))
        }
        () = sleep_until(host.call.deadline) => {
            Err(ToolError::timeout("the deadline passed while other calls changed the document"))
        }
    }
}
