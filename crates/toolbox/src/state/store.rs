//! The store as others may use it: with a limit on documents, and within a call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolpost_core::{BoxFuture, Change, Commit, Committed, DocStore, Document, ToolError};

use crate::path::host::CallHost;
use crate::path::{estimate, json_size};

/// Waits, for whoever tries again.
pub(crate) fn sleep(time: Duration) -> BoxFuture<'static, ()> {
    Box::pin(tokio::time::sleep(time))
}

/// A store that takes no document above a size, and none that could not be read again.
pub(crate) struct Limited {
    pub(crate) store: Arc<dyn DocStore>,
    /// In bytes, as JSON.
    pub(crate) limit: usize,
}

impl Limited {
    fn check(&self, commit: &Commit) -> Result<(), ToolError> {
        commit.check_depth()?;
        for write in &commit.writes {
            // The estimate counts numbers as eight bytes and escapes as one: only what it calls small is small.
            let small = estimate(&write.value).saturating_mul(8) <= self.limit;
            if small || json_size(&*write.value, self.limit).is_some() {
                continue;
            }
            let size = json_size(&*write.value, usize::MAX).unwrap_or(usize::MAX);
            return Err(ToolError::limit(format!(
                "the document `{}` would have {size} bytes, and the limit is {} bytes",
                write.id, self.limit
            ))
            .with("document", write.id.as_str())
            .with("size", size)
            .with("limit", self.limit)
            .suggest("Keep less in it, or divide it into several documents."));
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

/// The store as a running tool sees it: what it commits bears the call's name, and nothing is committed any more when
/// the call is over.
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
                return Err(ToolError::precondition("this is a dry run, which changes no document")
                    .suggest("Look at `is_dry_run` before changing one."));
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

/// Says in a commit which call makes it, and why.
pub(super) fn explain(host: &CallHost, commit: &mut Commit) {
    commit.call = Some(host.call.id);
    commit.event.get_or_insert_with(|| json!({ "tool": &*host.entry.name, "caller": host.call.caller }));
}
