//! State that outlives a call.

mod conflicts;
mod direct;
mod transactions;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost::{
    BoxFuture, Call, Caller, Change, Commit, Committed, DocStore, Document, Patch, Reply, StateVersions,
    ToolError, Write,
};
use toolpost_toolbox::{MemoryStore, Toolbox};

/// A store as if shared with another process, which can commit first.
pub(super) struct Shared {
    store: MemoryStore,
    /// The number of commits before which the other process commits, with its pointer and value.
    intrusions: Mutex<(u32, String, Value)>,
    pub(super) commits: AtomicU32,
    /// Commits wait for this gate, if any.
    gate: Option<tokio::sync::Semaphore>,
}

impl Shared {
    pub(super) fn new() -> Arc<Self> {
        Self::with(0, "", json!(null))
    }

    /// Lets the other process commit before each of this many commits.
    pub(super) fn with(times: u32, pointer: &str, value: Value) -> Arc<Self> {
        let intrusions = Mutex::new((times, pointer.to_owned(), value));
        Arc::new(Self { store: MemoryStore::new(), intrusions, commits: AtomicU32::new(0), gate: None })
    }

    /// Blocks commits until the gate opens.
    pub(super) fn gated() -> Arc<Self> {
        let gate = Some(tokio::sync::Semaphore::new(0));
        Arc::new(Self {
            store: MemoryStore::new(),
            intrusions: Mutex::default(),
            commits: AtomicU32::new(0),
            gate,
        })
    }

    pub(super) fn open(&self) {
        self.gate.as_ref().unwrap().add_permits(1000);
    }

    /// Writes a value as another process would. A number is added to the current one.
    pub(super) async fn intrude(&self, document: &str, pointer: &str, value: &Value) {
        let base = self.store.load(document).await.unwrap();
        let value = match (value, base.get(pointer).and_then(Value::as_i64)) {
            (Value::Number(more), Some(there)) => json!(there + more.as_i64().unwrap()),
            _ => value.clone(),
        };
        let (value, patch) = base.with_values([(pointer, value)]).unwrap();
        let write = Write { id: document.into(), base: base.version, patch: patch.to_value(), value };
        let committed = self.store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap();
        assert!(matches!(committed, Committed::Done(_)));
    }

    pub(super) async fn value(&self, document: &str) -> Value {
        Value::clone(&self.store.load(document).await.unwrap().value)
    }

    pub(super) async fn version(&self, document: &str) -> u64 {
        self.store.load(document).await.unwrap().version
    }
}

impl DocStore for Shared {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            self.store.load(id).await
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(async move {
            self.commits.fetch_add(1, Ordering::SeqCst);
            if let Some(gate) = &self.gate {
                gate.acquire().await.unwrap().forget();
            }
            tokio::task::yield_now().await;
            let intrusion = {
                let mut intrusions = self.intrusions.lock().unwrap();
                let due = intrusions.0 > 0;
                intrusions.0 = intrusions.0.saturating_sub(1);
                due.then(|| (intrusions.1.clone(), intrusions.2.clone()))
            };
            if let Some((pointer, value)) = intrusion {
                self.intrude(&commit.writes[0].id, &pointer, &value).await;
            }
            self.store.commit(commit).await
        })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.store.at(id, version)
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        self.store.log(id, after, limit)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        self.store.list(prefix, after, limit)
    }
}

/// A call with an identity.
pub(super) fn by(identity: &str, tool: &str, arguments: Value) -> Call {
    Call::new(tool, arguments).with_caller(Caller::new("test").with_identity(identity))
}

pub(super) fn versions(document: &str, before: u64, after: u64) -> Vec<StateVersions> {
    vec![StateVersions { document: document.into(), before, after }]
}

/// Runs calls concurrently on tasks, distributed over several toolboxes.
pub(super) async fn at_once(toolboxes: &[Toolbox], calls: impl IntoIterator<Item = Call>) -> Vec<Reply> {
    let tasks: Vec<_> = calls
        .into_iter()
        .enumerate()
        .map(|(index, call)| {
            let toolbox = toolboxes[index % toolboxes.len()].clone();
            tokio::spawn(async move { toolbox.call(call).await })
        })
        .collect();
    let mut replies = Vec::new();
    for task in tasks {
        replies.push(task.await.unwrap());
    }
    replies
}

/// Checks that the replayed history of a document equals its value.
pub(super) async fn history_is_whole(store: &dyn DocStore, document: &str) {
    let newest = store.load(document).await.unwrap();
    let log = store.log(document, 0, usize::MAX).await.unwrap();
    let numbers: Vec<u64> = log.iter().map(|change| change.version).collect();
    assert_eq!(numbers, (1..=newest.version).collect::<Vec<_>>());
    let replayed = Patch::replay(&Value::Null, log.iter().map(|change| &change.patch)).unwrap();
    assert_eq!(replayed, *newest.value);
}

pub(super) type Counts = BTreeMap<String, i64>;
