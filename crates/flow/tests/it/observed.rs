//! A store whose commits a test observes, and stops where a process is killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use toolpost_core::{BoxFuture, Change, Commit, Committed, DocStore, Document, ToolError};

/// Told the number of a commit, from 1, and whether it is done. Says whether the process stops there for ever.
type Observer = Box<dyn Fn(u64, bool) -> bool + Send + Sync>;

pub(crate) struct Observed {
    inner: Arc<dyn DocStore>,
    commits: AtomicU64,
    observer: Observer,
}

impl Observed {
    pub(crate) fn new(
        inner: Arc<dyn DocStore>,
        observer: impl Fn(u64, bool) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, commits: AtomicU64::new(0), observer: Box::new(observer) })
    }

    /// The number of commits that began.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    async fn observe(&self, number: u64, is_done: bool) {
        if (self.observer)(number, is_done) {
            std::future::pending::<()>().await;
        }
    }
}

impl DocStore for Observed {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.inner.load(id)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(async move {
            let number = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
            self.observe(number, false).await;
            let done = self.inner.commit(commit).await;
            self.observe(number, true).await;
            done
        })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.inner.at(id, version)
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        self.inner.log(id, after, limit)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        self.inner.list(prefix, after, limit)
    }
}
