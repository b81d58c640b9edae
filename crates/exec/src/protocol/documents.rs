//! A document store in another process.

use serde::de::DeserializeOwned;
use toolpost_core::{BoxFuture, Change, Commit, Committed, DocStore, Document, ToolError};

use super::frame::StateRequest;

/// A connection to the process with the documents.
pub(crate) trait StateLink: Send + Sync {
    /// Sends a request and waits for the answer.
    fn state<'a, T: DeserializeOwned + Send + 'a>(
        &'a self,
        request: StateRequest,
    ) -> BoxFuture<'a, Result<T, ToolError>>;
}

/// The document store at the other end of a connection.
pub(crate) struct FrameStore<L>(pub(crate) L);

impl<L: StateLink> DocStore for FrameStore<L> {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.0.state(StateRequest::Load { document: id.to_owned() })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        self.0.state(StateRequest::Commit(commit))
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.0.state(StateRequest::At { document: id.to_owned(), version })
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        self.0.state(StateRequest::Log { document: id.to_owned(), after, limit })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.0.state(StateRequest::List { prefix, after, limit })
    }
}
