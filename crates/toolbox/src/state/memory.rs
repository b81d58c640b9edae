//! The store of documents in memory.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use toolpost_core::{
    BoxFuture, Change, Clock, Commit, Committed, DocStore, Document, Patch, SystemClock, ToolError, Write,
    check_document_id,
};

use crate::path::estimate;

/// The maximum number of stored changes per document.
const MAX_HISTORY: usize = 256;
/// The maximum number of documents.
const MAX_DOCUMENTS: usize = 65_536;
/// The maximum estimated size of all documents and changes, in bytes of JSON.
const MAX_BYTES: usize = 256 << 20;

/// A document and its latest changes.
#[derive(Default)]
struct Stored {
    version: u64,
    value: Arc<Value>,
    /// The document before the first stored change.
    base: Arc<Value>,
    changes: VecDeque<Arc<Change>>,
    /// The estimated size of the value, in bytes of JSON.
    value_bytes: usize,
    /// The estimated size of the value, the base and the changes, in bytes of JSON.
    bytes: usize,
}

/// The result of one more change to a document.
struct Next {
    change: Arc<Change>,
    value: Arc<Value>,
    /// The new base, after the oldest changes are dropped.
    base: Option<Arc<Value>>,
    /// The number of dropped changes.
    too_many: usize,
    bytes: usize,
}

#[derive(Default)]
struct MemoryDocuments {
    documents: BTreeMap<String, Stored>,
    bytes: usize,
}

/// A store of documents in memory. It is the default store of a toolbox.
///
/// It stores at most 65,536 documents, 256 changes of each, and 256 MiB of JSON. It fails with `LIMIT` above.
pub struct MemoryStore {
    state: Mutex<MemoryDocuments>,
    history: usize,
    documents: usize,
    bytes: usize,
    clock: Arc<dyn Clock>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            history: MAX_HISTORY,
            documents: MAX_DOCUMENTS,
            bytes: MAX_BYTES,
            clock: Arc::new(SystemClock),
        }
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty store with a clock.
    pub(crate) fn of_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryDocuments> {
        // The data is consistent after any panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn commit_now(&self, commit: Commit) -> Result<Committed, ToolError> {
        commit.check_depth()?;
        let mut names = HashSet::new();
        for write in &commit.writes {
            check_document_id(&write.id)?;
            if !names.insert(write.id.as_str()) {
                return Err(ToolError::internal(format!(
                    "a commit writes the document `{}` twice",
                    write.id
                )));
            }
        }
        let mut state = self.lock();
        let written = commit.writes.iter().map(|write| (&write.id, write.base));
        let overtaken: Vec<Document> = written
            .chain(commit.reads.iter().map(|(id, version)| (id, *version)))
            .filter(|(id, version)| state.version(id) != *version)
            .map(|(id, _)| state.document(id))
            .collect();
        if !overtaken.is_empty() {
            return Ok(Committed::Conflict(overtaken));
        }
        let fresh = commit.writes.iter().filter(|write| write.base == 0).count();
        if state.documents.len() + fresh > self.documents {
            return Err(ToolError::limit(format!(
                "the store has the maximum of {} documents",
                self.documents
            )));
        }
        let at = self.clock.timestamp();
        // All changes are computed before any is stored, so that an error changes nothing.
        let mut made = Vec::with_capacity(commit.writes.len());
        let mut bytes = state.bytes;
        for Write { id, base, patch, value } in commit.writes {
            let change =
                Change { version: base + 1, at, call: commit.call, patch, event: commit.event.clone() };
            let next = state.next(&id, change, value, self.history)?;
            bytes = bytes + next.bytes - state.documents.get(&id).map_or(0, |before| before.bytes);
            made.push((id, next));
        }
        if bytes > self.bytes && bytes > state.bytes {
            return Err(ToolError::limit(format!(
                "the store has a maximum of {} bytes; this change would make it {bytes}",
                self.bytes
            )));
        }
        state.bytes = bytes;
        let versions = made.iter().map(|(_, next)| next.change.version).collect();
        for (id, next) in made {
            state.documents.entry(id).or_default().become_next(next);
        }
        Ok(Committed::Done(versions))
    }
}

impl MemoryDocuments {
    fn version(&self, id: &str) -> u64 {
        self.documents.get(id).map_or(0, |stored| stored.version)
    }

    fn document(&self, id: &str) -> Document {
        match self.documents.get(id) {
            Some(stored) => {
                Document { id: id.into(), version: stored.version, value: Arc::clone(&stored.value) }
            }
            None => Document { id: id.into(), version: 0, value: Arc::default() },
        }
    }

    /// Computes one more change to a document.
    fn next(&self, id: &str, change: Change, value: Arc<Value>, history: usize) -> Result<Next, ToolError> {
        // A new document counts the size of its base, which is subtracted when the base is dropped.
        let empty = Stored { bytes: estimate(&Value::Null), ..Stored::default() };
        let before = self.documents.get(id).unwrap_or(&empty);
        let mut bytes = before.bytes - before.value_bytes + estimate(&value) + change_bytes(&change);
        let too_many = (before.changes.len() + 1).saturating_sub(history);
        let forgotten: Vec<&Change> =
            before.changes.iter().map(|stored| &**stored).chain([&change]).take(too_many).collect();
        let base = if forgotten.is_empty() {
            None
        } else {
            let base = Patch::replay(&before.base, forgotten.iter().map(|change| &change.patch))?;
            bytes += estimate(&base);
            bytes -=
                estimate(&before.base) + forgotten.iter().map(|change| change_bytes(change)).sum::<usize>();
            Some(Arc::new(base))
        };
        Ok(Next { change: Arc::new(change), value, base, too_many, bytes })
    }
}

impl Stored {
    fn become_next(&mut self, next: Next) {
        self.version = next.change.version;
        self.value_bytes = estimate(&next.value);
        self.value = next.value;
        self.bytes = next.bytes;
        self.changes.push_back(next.change);
        if let Some(base) = next.base {
            self.base = base;
            self.changes.drain(..next.too_many);
        }
    }
}

fn change_bytes(change: &Change) -> usize {
    estimate(&change.patch) + change.event.as_ref().map_or(0, estimate)
}

impl DocStore for MemoryStore {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move {
            check_document_id(id)?;
            Ok(self.lock().document(id))
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(async move { self.commit_now(commit) })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move {
            let (base, changes) = {
                let state = self.lock();
                let stored = state.documents.get(id);
                let oldest = stored.map_or(0, |stored| stored.version - stored.changes.len() as u64);
                let Some(stored) =
                    stored.filter(|stored| (oldest.max(1)..=stored.version).contains(&version))
                else {
                    let newest = stored.map_or(0, |stored| stored.version);
                    return Err(ToolError::not_found(format!(
                        "unknown version {version} of the document `{id}`: it has {oldest} to {newest}"
                    )));
                };
                if version == stored.version {
                    return Ok(state.document(id));
                }
                let changes: Vec<_> =
                    stored.changes.iter().take((version - oldest) as usize).cloned().collect();
                (Arc::clone(&stored.base), changes)
            };
            let value = Patch::replay(&base, changes.iter().map(|change| &change.patch))?;
            Ok(Document { id: id.to_owned(), version, value: Arc::new(value) })
        })
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        Box::pin(async move {
            let state = self.lock();
            let changes = state.documents.get(id).map(|stored| stored.changes.iter()).into_iter().flatten();
            Ok(changes
                .filter(|change| change.version > after)
                .take(limit)
                .map(|change| Change::clone(change))
                .collect())
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        Box::pin(async move {
            let state = self.lock();
            let start = match after.filter(|after| *after >= prefix) {
                Some(after) => Bound::Excluded(after),
                None => Bound::Included(prefix),
            };
            let named = state.documents.range::<str, _>((start, Bound::Unbounded));
            let named = named.take_while(|(id, _)| id.starts_with(prefix)).take(limit);
            Ok(named.map(|(id, stored)| (id.clone(), stored.version)).collect())
        })
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, ToolError>> {
        Box::pin(async move {
            let mut state = self.lock();
            let gone = state.documents.remove(id);
            state.bytes -= gone.as_ref().map_or(0, |stored| stored.bytes);
            Ok(gone.is_some())
        })
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("MemoryStore")
            .field("documents", &state.documents.len())
            .field("bytes", &state.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use serde_json::json;
    use toolpost_core::Code;

    /// Polls a future of the store, which never waits.
    fn now<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().unwrap()
    }

    fn write(store: &MemoryStore, id: &str, base: u64, value: Value) -> Result<Committed, ToolError> {
        let before = now(store.load(id))?;
        let patch = Patch::diff(&before.value, &value).to_value();
        let write = Write { id: id.into(), base, patch, value: Arc::new(value) };
        now(store.commit(Commit { writes: vec![write], event: Some(json!("why")), ..Commit::default() }))
    }

    fn filled(history: usize, versions: u64) -> MemoryStore {
        let store = MemoryStore { history, ..MemoryStore::new() };
        for version in 0..versions {
            write(&store, "d", version, json!({"n": version + 1, "same": [1, 2, 3]})).unwrap();
        }
        store
    }

    #[test]
    fn a_forgotten_document_starts_at_version_zero() {
        let store = filled(256, 5);
        assert!(now(store.forget("d")).unwrap() && !now(store.forget("d")).unwrap());
        assert_eq!((now(store.load("d")).unwrap().version, store.lock().bytes), (0, 0));
        assert!(now(store.log("d", 0, 9)).unwrap().is_empty());
        assert_eq!(write(&store, "d", 0, json!(1)).unwrap(), Committed::Done(vec![1]));
    }

    #[test]
    fn a_commit_on_a_stale_base_is_a_conflict() {
        let store = filled(9, 2);
        let Committed::Conflict(newest) = write(&store, "d", 1, json!(0)).unwrap() else { panic!("stored") };
        assert_eq!((newest[0].version, newest[0].get("/n")), (2, Some(&json!(2))));
        assert_eq!(now(store.load("d")).unwrap(), newest[0]);
    }

    #[test]
    fn a_commit_of_several_documents_is_atomic() {
        let store = filled(9, 1);
        let part =
            |id: &str, base| Write { id: id.into(), base, patch: json!([]), value: Arc::new(json!(7)) };
        let commit = |writes| now(store.commit(Commit { writes, ..Commit::default() }));
        assert!(matches!(commit(vec![part("e", 0), part("d", 0)]).unwrap(), Committed::Conflict(_)));
        assert_eq!(now(store.load("e")).unwrap().version, 0);
        assert_eq!(commit(vec![part("e", 0), part("d", 1)]).unwrap(), Committed::Done(vec![1, 2]));
        assert_eq!(commit(vec![part("e", 1), part("e", 1)]).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn the_history_is_bounded() {
        for history in [0, 1, 3, 100] {
            let store = filled(history, 10);
            for version in 1..=10 {
                let found = now(store.at("d", version));
                if version + history as u64 >= 10 {
                    assert_eq!(found.unwrap().get("/n"), Some(&json!(version)));
                } else {
                    assert_eq!(found.unwrap_err().code(), Code::NotFound);
                }
            }
            assert_eq!(now(store.at("d", 11)).unwrap_err().code(), Code::NotFound);
            let log = now(store.log("d", 0, 100)).unwrap();
            assert_eq!(log.len(), history.min(10));
            assert!(log.iter().all(|change| change.event == Some(json!("why"))));
        }
        let store = filled(100, 10);
        let log = now(store.log("d", 7, 2)).unwrap();
        assert_eq!(log.iter().map(|change| change.version).collect::<Vec<_>>(), [8, 9]);
    }

    #[test]
    fn memory_is_bounded_in_documents_and_bytes() {
        let store = MemoryStore { documents: 1, ..MemoryStore::new() };
        write(&store, "a", 0, json!(1)).unwrap();
        assert_eq!(write(&store, "b", 0, json!(1)).unwrap_err().code(), Code::Limit);
        write(&store, "a", 1, json!(2)).unwrap();

        let store = MemoryStore { bytes: 10_000, history: 2, ..MemoryStore::new() };
        let text = "x".repeat(2000);
        for version in 0..50 {
            write(&store, "a", version, json!(format!("{text}{version}"))).unwrap();
        }
        assert!(store.lock().bytes < 10_000);
        assert_eq!(write(&store, "b", 0, json!("y".repeat(9000))).unwrap_err().code(), Code::Limit);
        assert_eq!(now(store.load("b")).unwrap().version, 0);
        // A change that makes the document smaller is always accepted.
        write(&store, "a", 50, json!(0)).unwrap();
    }

    #[test]
    fn a_stale_read_is_a_conflict() {
        let store = filled(9, 2);
        let part = || Write { id: "e".into(), base: 0, patch: json!([]), value: Arc::new(json!(7)) };
        let commit = |id: &str, version| {
            now(store.commit(Commit {
                writes: vec![part()],
                reads: vec![(id.into(), version)],
                ..Commit::default()
            }))
            .unwrap()
        };
        let newest = now(store.load("d")).unwrap();
        assert_eq!(commit("d", 1), Committed::Conflict(vec![newest]));
        assert!(matches!(commit("never", 1), Committed::Conflict(_)));
        assert_eq!(now(store.load("e")).unwrap().version, 0);
        assert_eq!(commit("d", 2), Committed::Done(vec![1]));
    }

    #[test]
    fn the_counted_size_is_the_stored_size() {
        for history in [0, 1, 3] {
            let store = MemoryStore { history, ..MemoryStore::new() };
            for version in 0..5 {
                // `[]` and `""` are smaller than the initial `null`.
                write(&store, "d", version, if version % 2 == 0 { json!([]) } else { json!("") }).unwrap();
            }
            let state = store.lock();
            let stored = &state.documents["d"];
            let changes: usize = stored.changes.iter().map(|change| change_bytes(change)).sum();
            let counted = estimate(&stored.value) + estimate(&stored.base) + changes;
            assert_eq!((state.bytes, stored.bytes), (counted, counted), "{history}");
        }
    }

    #[test]
    fn deeply_nested_documents_are_rejected() {
        let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!([value]));
        let store = MemoryStore::new();
        write(&store, "d", 0, nested(100)).unwrap();
        assert_eq!(write(&store, "d", 1, nested(101)).unwrap_err().code(), Code::Limit);
        let change = |patch, event| {
            let write = Write { id: "d".into(), base: 1, patch, value: Arc::new(json!(1)) };
            now(store.commit(Commit { writes: vec![write], event, ..Commit::default() }))
        };
        let put = |levels| json!([{"op": "test", "path": "", "value": nested(levels)}]);
        assert_eq!(change(put(101), None).unwrap_err().code(), Code::Limit);
        assert_eq!(change(put(100), Some(nested(101))).unwrap_err().code(), Code::Limit);
        assert_eq!(now(store.load("d")).unwrap().version, 1);
        change(put(100), Some(nested(100))).unwrap();
    }

    #[test]
    fn documents_are_listed_by_name() {
        let store = MemoryStore::new();
        for id in ["b/1", "a", "b/2", "b", "c", "b/3"] {
            write(&store, id, 0, json!(1)).unwrap();
        }
        let list = |prefix, after, limit| {
            let found = now(store.list(prefix, after, limit)).unwrap();
            found.into_iter().map(|(id, _)| id).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(list("b/", None, 9), "b/1 b/2 b/3");
        assert_eq!(list("b/", Some("b/1"), 1), "b/2");
        assert_eq!(list("b/", Some("a"), 1), "b/1");
        assert_eq!(list("", None, 2), "a b");
        assert_eq!(list("b/", Some("c"), 9), "");
    }
}
