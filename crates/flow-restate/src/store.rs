//! The state of tools in Restate: a store of documents for the toolboxes of workers.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolpost_core::{BoxFuture, Change, Commit, Committed, DocStore, Document, Patch, ToolError};

use crate::client::Cluster;
use crate::object::{ALL, Filter, INDEX, Range, STATE, Version};

/// The limit of a request.
const REQUEST: Duration = Duration::from_secs(30);

/// A store of documents in a cluster. All workers that use it share the state of their tools.
///
/// A document is a Restate object, so its commits have one order. One commit changes one document and reads no other:
/// objects have no transactions of several. The latest 1,000 changes of a document are stored.
#[derive(Clone, Debug)]
pub struct ClusterStore(Cluster);

impl ClusterStore {
    /// The documents of a cluster.
    pub fn new(cluster: Cluster) -> Self {
        Self(cluster)
    }

    async fn ask<Body: Serialize + ?Sized, Answer: DeserializeOwned>(
        &self,
        object: &str,
        key: &str,
        handler: &str,
        body: Option<&Body>,
    ) -> Result<Answer, ToolError> {
        let key = utf8_percent_encode(key, NON_ALPHANUMERIC);
        self.0.request(Method::POST, &format!("{object}/{key}/{handler}"), body, Some(REQUEST)).await
    }

    async fn version(&self, id: &str, handler: &str) -> Result<Version, ToolError> {
        self.ask(STATE, id, handler, None::<&()>).await
    }

    async fn changes(&self, id: &str, after: u64, limit: usize) -> Result<Vec<Change>, ToolError> {
        self.ask(STATE, id, "changes", Some(&Range { after, limit })).await
    }
}

impl DocStore for ClusterStore {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move {
            let Version { version, value } = self.version(id, "load").await?;
            Ok(Document { id: id.to_owned(), version, value: value.into() })
        })
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(async move {
            let write = match (commit.writes.as_slice(), commit.reads.as_slice()) {
                ([], _) => return Ok(Committed::Done(Vec::new())),
                ([write], []) => write.clone(),
                _ => {
                    let message = "a commit on a cluster changes one document and reads no other";
                    return Err(ToolError::precondition(message).suggest("Put the values into one document."));
                }
            };
            commit.check_depth()?;
            let newer: Option<Document> = self.ask(STATE, &write.id, "commit", Some(&commit)).await?;
            Ok(match newer {
                None => Committed::Done(vec![write.base + 1]),
                Some(newer) => Committed::Conflict(vec![newer]),
            })
        })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        Box::pin(async move {
            let missing = || ToolError::not_found(format!("the document `{id}` has no version {version}"));
            let base = self.version(id, "base").await?;
            let count = version.checked_sub(base.version).filter(|_| version > 0).ok_or_else(missing)?;
            let changes =
                self.changes(id, base.version, usize::try_from(count).unwrap_or(usize::MAX)).await?;
            if changes.len() as u64 != count {
                return Err(missing());
            }
            let value = changes
                .iter()
                .try_fold(base.value, |value, change| Patch::parse(&change.patch)?.apply(&value))?;
            Ok(Document { id: id.to_owned(), version, value: value.into() })
        })
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        Box::pin(self.changes(id, after, limit))
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        Box::pin(async move {
            let filter = Filter { prefix: prefix.to_owned(), after: after.map(str::to_owned), limit };
            let ids: Vec<String> = self.ask(INDEX, ALL, "list", Some(&filter)).await?;
            let mut found = Vec::with_capacity(ids.len());
            for id in ids {
                let version = self.version(&id, "load").await?.version;
                found.push((id, version));
            }
            Ok(found)
        })
    }

    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, ToolError>> {
        Box::pin(self.ask(STATE, id, "forget", None::<&()>))
    }
}
