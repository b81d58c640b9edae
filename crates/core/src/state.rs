//! Versioned documents: the state of tools.

mod address;
mod conflict;
mod doc;
mod encode;
mod patch;
mod pointer;
mod view;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::address::resolve_id;
pub use self::address::{StateAddress, StateSpec, check_document_id};
pub use self::conflict::{OnConflict, StateConflict};
pub use self::doc::{Sleep, StateDoc, state_conflict};
pub use self::encode::to_json;
pub use self::patch::Patch;
pub use self::pointer::{check_pointer, escape_pointer, pointers_overlap};
pub use self::view::{StateValue, StateView};
use crate::{BoxFuture, CallId, Timestamp, ToolError};

/// A document at one version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The document's id.
    pub id: String,
    /// Number of commits; 0 if there are none.
    pub version: u64,
    /// Its value; null before the first commit.
    pub value: Arc<Value>,
}

/// One document of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// The document's id.
    pub id: String,
    /// The version that the change is based on, which must be the latest.
    pub base: u64,
    /// The change, as a JSON Patch (RFC 6902) of the base.
    pub patch: Value,
    /// The document after the change.
    pub value: Arc<Value>,
}

/// An atomic change of one or more documents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The changed documents, each once.
    pub writes: Vec<Write>,
    /// Other documents that the change depends on, with the versions read, which must be the latest. Without a write,
    /// nothing is checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<(String, u64)>,
    /// The call that makes the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// The reason, stored with each change in the history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
}

/// Maximum nesting depth of a document. JSON parsers reject 128, and frames and records add a few levels.
const MAX_LEVELS: usize = 100;

impl Commit {
    /// Checks that the commit is not nested too deeply to be parsed again.
    ///
    /// # Errors
    /// `LIMIT` if a document, a change or the event has more than 100 levels of arrays and objects.
    pub fn check_depth(&self) -> Result<(), ToolError> {
        let too_deep = |what: String| {
            Err(ToolError::limit(format!("{what} has more than {MAX_LEVELS} levels of arrays and objects"))
                .with("limit", MAX_LEVELS)
                .suggest("Flatten it, or store the parts in separate documents."))
        };
        for write in &self.writes {
            if is_deeper(&write.value, MAX_LEVELS) {
                return too_deep(format!("the document `{}`", write.id));
            }
            // A patch is an array of objects that contain values.
            if is_deeper(&write.patch, MAX_LEVELS + 2) {
                return too_deep(format!("the change of the document `{}`", write.id));
            }
        }
        match &self.event {
            Some(event) if is_deeper(event, MAX_LEVELS) => too_deep("the event of a commit".into()),
            _ => Ok(()),
        }
    }
}

/// Whether a value has more levels; stops at the first that does.
fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|item| is_deeper(item, levels - 1)),
        _ => false,
    }
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Committed {
    /// All changes are stored. The new versions, in the order of the writes.
    Done(Vec<u64>),
    /// Nothing is stored: these documents, written or read, have newer versions.
    Conflict(Vec<Document>),
}

/// One change in a document's history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The new version.
    pub version: u64,
    /// Commit time.
    pub at: Timestamp,
    /// The call that made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// The change, as a JSON Patch of the previous version.
    pub patch: Value,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
}

/// A store of versioned documents. Several processes may share one.
///
/// A commit answered with [`Committed::Done`] is as durable as the store.
pub trait DocStore: Send + Sync {
    /// The latest version of a document; version 0 and null if the document does not exist.
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>>;

    /// Commits changes if all written and read versions are the latest.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>>;

    /// A document at a version, from 1.
    ///
    /// # Errors
    /// `NOT_FOUND` if the version does not exist or was removed from the history.
    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>>;

    /// The changes after a version, oldest first, at most `limit`.
    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>>;

    /// Ids and versions of documents with an id prefix, sorted by id, at most `limit`, after an id.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>>;

    /// Removes a document with its history, for an owner's data. Returns whether the document existed.
    ///
    /// # Errors
    /// `PRECONDITION` from an append-only store, which is the default.
    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, ToolError>> {
        let error = ToolError::precondition(format!("this store cannot remove the document `{id}`"));
        Box::pin(std::future::ready(Err(error)))
    }
}
