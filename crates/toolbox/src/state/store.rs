//! Wrappers of a store: with a size limit, and for one call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolpost_core::{BoxFuture, Change, Commit, Committed, DocStore, Document, ToolError};

use crate::path::host::CallHost;
use crate::path::{estimate, json_size};

/// Sleeps before a retry.
pub(crate) fn sleep(time: Duration) -> BoxFuture<'static, ()> {
    Box::pin(tokio::time::sleep(time))
}

/// A store with a maximum size and depth of documents.
pub(crate) struct Limited {
    pub(crate) store: Arc<dyn DocStore>,
    /// In bytes, as JSON.
    pub(crate) limit: usize,
}

impl Limited {
    fn check(&self, commit: &Commit) -> Result<(), ToolError> {
        commit.check_depth()?;
        for write in &commit.writes {
            // The estimate can be too small by a constant factor, so larger documents are measured.
            let small = estimate(&write.value).saturating_mul(8) <= self.limit;
            if small || json_size(&*write.value, self.limit).is_some() {
                continue;
            }
            let size = json_size(&*write.value, usize::MAX).unwrap_or(usize::MAX);
            return Err(ToolError::limit(format!(
                "the document `{}` would have {size} bytes; the limit is {} bytes",
                write.id, self.limit
            ))
            .with("document", write.id.as_str())
            .with("size", size)
            .with("limit", self.limit)
            .suggest("Store less in it, or split it into several documents."));
        }
        Ok(())
    }
}

impl DocStore for Limited {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.store.load(id)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        match self.check(&commit) {
            Ok(()) => self.store.commit(commit),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
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

/// The store for a running tool. Its commits name the call, and commits after the end of the call fail.
pub(crate) struct OfCall {
    host: Arc<CallHost>,
    store: Arc<dyn DocStore>,
}

impl OfCall {
    pub(crate) fn new(host: Arc<CallHost>) -> Self {
        Self { store: host.documents(), host }
    }

    fn store(&self) -> &dyn DocStore {
        &*self.store
    }
}

impl DocStore for OfCall {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.store().load(id)
    }

    fn commit(&self, mut commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        let host = Arc::clone(&self.host);
        Box::pin(async move {
            host.check_open()?;
            if host.call.options.dry_run {
                return Err(ToolError::precondition("a dry run changes no document")
                    .suggest("Check `is_dry_run` before the change."));
            }
            for write in &commit.writes {
                host.check_not_in_transaction(&write.id)?;
            }
            explain(&host, &mut commit);
            let bases: Vec<(String, u64)> =
                commit.writes.iter().map(|write| (write.id.clone(), write.base)).collect();
            let documents = Arc::clone(&self.store);
            let noted = Arc::clone(&host);
            let work = async move {
                let committed = documents.commit(commit).await?;
                if let Committed::Done(versions) = &committed {
                    for ((document, before), after) in bases.into_iter().zip(versions) {
                        noted.note_versions(document, before, *after);
                    }
                }
                Ok(committed)
            };
            host.run_to_completion(Box::pin(work)).await
        })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.store().at(id, version)
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        self.store().log(id, after, limit)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        self.store().list(prefix, after, limit)
    }
}

/// Adds the call and its tool to a commit.
pub(super) fn explain(host: &CallHost, commit: &mut Commit) {
    commit.call = Some(host.call.id);
    commit.event.get_or_insert_with(|| json!({ "tool": &*host.entry.name, "caller": host.call.caller }));
}
