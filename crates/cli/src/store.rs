//! The database of documents, runs and conversations.

use std::path::PathBuf;

use tokio::sync::OnceCell;
use toolpost_core::{BoxFuture, Change, Commit, Committed, DocStore, Document, ToolError};
use toolpost_store::Store;

use crate::config::{Config, paths};
use crate::failure::Failure;

/// The path of the database.
pub(crate) fn path(config: &Config) -> Result<PathBuf, Failure> {
    config.settings.store.clone().or_else(paths::store).ok_or_else(paths::no_home)
}

/// A store that opens its file on first use, so that most commands create none.
pub(crate) struct LazyStore {
    path: PathBuf,
    only_reads: bool,
    store: OnceCell<Store>,
}

impl LazyStore {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, only_reads: false, store: OnceCell::new() }
    }

    /// A store for commands that only read, also a file that this user cannot write.
    pub(crate) fn for_reading(path: PathBuf) -> Self {
        Self { only_reads: true, ..Self::new(path) }
    }

    /// Opens the store before its first use, which reports an error.
    pub(crate) async fn warm(&self) {
        let _ = self.open().await;
    }

    /// Checks that the store opens.
    pub(crate) async fn check(&self) -> Result<(), ToolError> {
        self.open().await.map(drop)
    }

    /// Opens the store; a failed attempt is repeated by the next call.
    async fn open(&self) -> Result<&Store, ToolError> {
        let open = || async {
            let (path, only_reads) = (self.path.clone(), self.only_reads);
            let open = move || match Store::open(&path) {
                Err(error) if only_reads => Store::options().read_only().open(&path).map_err(|_| error),
                opened => opened,
            };
            Ok(tokio::task::spawn_blocking(open).await??)
        };
        self.store.get_or_try_init(open).await
    }
}

impl DocStore for LazyStore {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move { self.open().await?.load(id).await })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(async move { self.open().await?.commit(commit).await })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move { self.open().await?.at(id, version).await })
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        Box::pin(async move { self.open().await?.log(id, after, limit).await })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        Box::pin(async move { self.open().await?.list(prefix, after, limit).await })
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, ToolError>> {
        Box::pin(async move { self.open().await?.forget(id).await })
    }
}
