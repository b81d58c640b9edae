//! A handle for manual reads and changes of a document.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::view::decode;
use super::{
    Change, Commit, Committed, DocStore, Document, OnConflict, Patch, StateAddress, StateConflict, Write,
    check_document_id, to_json,
};
use crate::id::random;
use crate::{BoxFuture, CallError, ToolError};

/// An async sleep function.
pub type Sleep = fn(Duration) -> BoxFuture<'static, ()>;

/// One document of a store: read it, change it, inspect its history.
///
/// A tool gets it from [`Ctx::state`](crate::Ctx::state), an application from its toolbox. Each change commits
/// immediately, whatever the outcome of the call. For a change that commits with the call, use a `#[state]` parameter.
#[derive(Clone)]
pub struct StateDoc {
    store: Arc<dyn DocStore>,
    id: String,
    conflict: StateConflict,
    sleep: Option<Sleep>,
}

impl StateDoc {
    /// Opens a document of a store. Without [`with_sleep`](Self::with_sleep), retries do not wait.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the id does not have 1 to 256 bytes, or has control characters.
    pub fn new(store: Arc<dyn DocStore>, id: impl Into<String>) -> Result<Self, CallError> {
        let id = id.into();
        check_document_id(&id)?;
        Ok(Self { store, id, conflict: StateConflict::default(), sleep: None })
    }

    /// Sets the sleep between retries.
    #[must_use]
    pub fn with_sleep(mut self, sleep: Sleep) -> Self {
        self.sleep = Some(sleep);
        self
    }

    /// Sets the conflict policy of [`change`](Self::change). `merge` acts like `error` here.
    #[must_use]
    pub fn on_conflict(mut self, conflict: StateConflict) -> Self {
        self.conflict = conflict;
        self
    }

    /// The document's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// A copy of the latest version.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn get_snapshot(&self) -> Result<Document, CallError> {
        Ok(self.store.load(&self.id).await?)
    }

    /// The latest value; null before the first commit.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn state(&self) -> Result<Arc<Value>, CallError> {
        Ok(self.get_snapshot().await?.value)
    }

    /// The latest version number.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn version(&self) -> Result<u64, CallError> {
        Ok(self.get_snapshot().await?.version)
    }

    /// The latest value, decoded; the type's default before the first commit.
    ///
    /// # Errors
    /// `INTERNAL` if the value does not fit the type, and those of the store.
    pub async fn clone_state<T: DeserializeOwned + Default>(&self) -> Result<T, CallError> {
        let document = self.get_snapshot().await?;
        if document.version == 0 {
            return Ok(T::default());
        }
        Ok(decode(&document.value, &StateAddress { document: document.id, pointer: String::new() })?)
    }

    /// Applies a patch of a version, rebased onto the latest version. Returns the new version; an empty patch creates none.
    ///
    /// # Errors
    /// `CONFLICT` if another writer changed the same part, `PRECONDITION` with the pointer if the patch does not apply,
    /// `NOT_FOUND` if the base version was removed.
    pub async fn apply_changes(&self, base_version: u64, changes: &Patch) -> Result<u64, CallError> {
        let base = self.at(base_version).await?;
        let mut conflicts = 0;
        loop {
            let newest = self.get_snapshot().await?;
            let value = if newest.version == base.version {
                changes.apply(&newest.value)
            } else {
                changes.rebase(&base.value, &newest.value)
            };
            let value = value.map_err(|error| error.with("document", self.id.as_str()))?;
            // Another writer was faster; the next iteration tries to rebase.
            match self.commit(&newest, value).await? {
                Ok(version) => return Ok(version),
                Err(newest) => self.back_off(&mut conflicts, newest.version).await?,
            }
        }
    }

    /// Changes the document with a function of its value (null before the first commit).
    ///
    /// After a conflict, the function runs again on the latest value, as the [policy](Self::on_conflict) says. Returns the
    /// function's result and the version with its change.
    ///
    /// # Errors
    /// Errors of the function, which changes nothing then; `CONFLICT` after too many retries; `LIMIT` if the document is too
    /// large.
    pub async fn change<T>(
        &self,
        mut change: impl FnMut(&mut Value) -> Result<T, ToolError>,
    ) -> Result<(T, u64), CallError> {
        let mut conflicts = 0;
        let mut document = self.get_snapshot().await?;
        loop {
            let mut value = Value::clone(&document.value);
            let answer = change(&mut value)?;
            match self.commit(&document, value).await? {
                Ok(version) => return Ok((answer, version)),
                Err(newest) => {
                    if self.conflict.action != OnConflict::Retry {
                        return Err(state_conflict(&self.id, newest.version).into());
                    }
                    self.back_off(&mut conflicts, newest.version).await?;
                    document = self.get_snapshot().await?;
                }
            }
        }
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// `INTERNAL` with the JSON pointer of a value that JSON cannot represent, and those of [`change`](Self::change).
    pub async fn replace(&self, value: &(impl Serialize + ?Sized)) -> Result<u64, CallError> {
        let new = to_json(value)?;
        let ((), version) = self
            .change(|value| {
                value.clone_from(&new);
                Ok(())
            })
            .await?;
        Ok(version)
    }

    /// The document at a version.
    ///
    /// # Errors
    /// `NOT_FOUND` if the version does not exist or was removed from the history.
    pub async fn at(&self, version: u64) -> Result<Document, CallError> {
        if version == 0 {
            return Ok(Document { id: self.id.clone(), version, value: Arc::default() });
        }
        Ok(self.store.at(&self.id, version).await?)
    }

    /// The changes after a version, oldest first, at most `limit`.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn log(&self, after: u64, limit: usize) -> Result<Vec<Change>, CallError> {
        Ok(self.store.log(&self.id, after, limit).await?)
    }

    /// The patch from one version to another, in either direction.
    ///
    /// # Errors
    /// `NOT_FOUND` as [`at`](Self::at).
    pub async fn diff(&self, from: u64, to: u64) -> Result<Patch, CallError> {
        let (from, to) = (self.at(from).await?, self.at(to).await?);
        Ok(Patch::diff(&from.value, &to.value))
    }

    /// Commits a new value; returns the latest document after a conflict.
    async fn commit(&self, base: &Document, value: Value) -> Result<Result<u64, Document>, ToolError> {
        let patch = Patch::diff(&base.value, &value);
        if patch.is_empty() {
            return Ok(Ok(base.version));
        }
        let write = Write {
            id: self.id.clone(),
            base: base.version,
            patch: patch.to_value(),
            value: Arc::new(value),
        };
        match self.store.commit(Commit { writes: vec![write], ..Commit::default() }).await? {
            Committed::Done(versions) => Ok(Ok(versions.first().copied().unwrap_or(base.version + 1))),
            Committed::Conflict(newest) => Ok(Err(newest.into_iter().next().unwrap_or_else(|| base.clone()))),
        }
    }

    async fn back_off(&self, conflicts: &mut u32, version: u64) -> Result<(), ToolError> {
        *conflicts += 1;
        if *conflicts > self.conflict.max_retries {
            return Err(state_conflict(&self.id, version));
        }
        if let Some(sleep) = self.sleep {
            sleep(self.conflict.delay(*conflicts, random())).await;
        }
        Ok(())
    }
}

/// The error of a change after another writer's commit.
pub fn state_conflict(document: &str, version: u64) -> ToolError {
    ToolError::conflict(format!(
        "another writer changed the document `{document}`; its version is now {version}"
    ))
    .with("document", document)
    .with("version", version)
    .suggest("Read the document again and repeat the call.")
}

impl fmt::Debug for StateDoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateDoc")
            .field("id", &self.id)
            .field("conflict", &self.conflict)
            .finish_non_exhaustive()
    }
}
