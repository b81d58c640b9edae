//! Versioned documents: what tools keep from one call to the next.

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
    /// Its name.
    pub id: String,
    /// How many commits made it what it is; 0 if none did.
    pub version: u64,
    /// What it holds; null if nothing was ever committed.
    pub value: Arc<Value>,
}

/// One document of a commit: what it was made from and what it shall become.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Write {
    /// The document's name.
    pub id: String,
    /// The version that the change was made from: it must still be the newest.
    pub base: u64,
    /// The change, as a JSON Patch (RFC 6902) of the base.
    pub patch: Value,
    /// The document after the change.
    pub value: Arc<Value>,
}

/// What is committed at once: all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The changed documents, each once.
    pub writes: Vec<Write>,
    /// Other documents that the changes were made from, with the version that was read: it must still be the newest.
    /// Without a write nothing is checked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<(String, u64)>,
    /// The call that made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// Why, for whoever reads the history: stored with each change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
}

/// How many lists and objects may lie in each other in a document. Whoever reads JSON text back refuses 128, and what is
/// sent or stored lies in a few more.
const MOST_LEVELS: usize = 100;

impl Commit {
    /// Whether it can be read again: a store refuses what is nested too deeply, before it keeps it.
    ///
    /// # Errors
    /// `LIMIT` if a document, a change or the event has more than 100 levels of lists and objects.
    pub fn check_depth(&self) -> Result<(), ToolError> {
        let too_deep = |what: String| {
            Err(ToolError::limit(format!("{what} has more than {MOST_LEVELS} levels of lists and objects"))
                .with("limit", MOST_LEVELS)
                .suggest("Make it flatter, or keep the parts in documents of their own."))
        };
        for write in &self.writes {
            if is_deeper(&write.value, MOST_LEVELS) {
                return too_deep(format!("the document `{}`", write.id));
            }
            // A patch is a list of objects, with values in them.
            if is_deeper(&write.patch, MOST_LEVELS + 2) {
                return too_deep(format!("the change of the document `{}`", write.id));
            }
        }
        match &self.event {
            Some(event) if is_deeper(event, MOST_LEVELS) => too_deep("the event of a commit".into()),
            _ => Ok(()),
        }
    }
}

/// Goes no deeper than it has to.
fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|item| is_deeper(item, levels - 1)),
        _ => false,
    }
}

/// What became of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Committed {
    /// All is stored. The new versions, in the order of the writes.
    Done(Vec<u64>),
    /// Nothing is stored: these documents, written or read, have another version than the change was made from.
    Conflict(Vec<Document>),
}

/// One change of a document, as the history keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The version that it made.
    pub version: u64,
    /// When it was committed.
    pub at: Timestamp,
    /// The call that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// The change, as a JSON Patch of the version before.
    pub patch: Value,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
}

/// Where documents are kept. Several processes may share one.
///
/// A commit that was answered with [`Committed::Done`] is durable as far as the store is.
pub trait DocStore: Send + Sync {
    /// The newest version of a document; version 0 and null if there is none.
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>>;

    /// Stores changes, if every base and every version that was read is still the newest.
    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>>;

    /// A document as it was at a version, from 1.
    ///
    /// # Errors
    /// `NOT_FOUND` if it never had that version, or the store does not keep it any more.
    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>>;

    /// The changes after a version, oldest first, at most `limit`.
    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>>;

    /// The documents whose name begins so, by name, without their values, at most `limit`, after a name.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>>;

    /// Removes a document with its whole history, for data whose owner wants it gone. Returns whether there was one.
    ///
    /// # Errors
    /// `PRECONDITION` from a store that keeps everything; that is the default.
    fn forget<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<bool, ToolError>> {
        let error = ToolError::precondition(format!("the document `{id}` stays: this store removes nothing"));
        Box::pin(std::future::ready(Err(error)))
    }
}
