//! The file that keeps the state of tools.

use std::path::PathBuf;
use std::sync::OnceLock;

use toolpost_core::{BoxFuture, Change, Commit, Committed, DocStore, Document, ToolError};
use toolpost_store::Store;

use crate::config::{Config, places};
use crate::failure::Failure;

/// Where it is.
pub(crate) fn path(config: &Config) -> Result<PathBuf, Failure> {
    config.path("store").or_else(places::store).ok_or_else(places::no_home)
}

/// The store, opened by the first tool that keeps something: most commands keep nothing, and make no file.
pub(crate) struct LazyStore {
    path: PathBuf,
    store: OnceLock<Result<Store, ToolError>>,
}

impl LazyStore {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, store: OnceLock::new() }
    }

    fn open(&self) -> Result<&Store, ToolError> {
        self.store.get_or_init(|| Store::open(&self.path)).as_ref().map_err(Clone::clone)
    }
}

impl DocStore for LazyStore {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move { self.open()?.load(id).await })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(async move { self.open()?.commit(commit).await })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move { self.open()?.at(id, version).await })
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        Box::pin(async move { self.open()?.log(id, after, limit).await })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        Box::pin(async move { self.open()?.list(prefix, after, limit).await })
    }
}
