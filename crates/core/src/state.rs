//! Versioned documents: what tools keep from one call to the next.

mod address;
mod conflict;
mod doc;
mod encode;
mod handle;
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
pub(crate) use self::handle::new_handle;
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
    /// The call that made the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallId>,
    /// Why, for whoever reads the history: stored with each change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Value>,
}

/// What became of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Committed {
    /// All is stored. The new versions, in the order of the writes.
    Done(Vec<u64>),
    /// Nothing is stored: these documents have a newer version than the change was made from.
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

    /// Stores changes, if every base is still the newest version.
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
}
