//! A document, for whoever changes it by hand.

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
use crate::{BoxFuture, ToolError};

/// How to wait without blocking the thread.
pub type Sleep = fn(Duration) -> BoxFuture<'static, ()>;

/// One document of a store: read it, change it, look back.
///
/// A tool gets it from [`Ctx::state`](crate::Ctx::state), an application from its toolbox. A change is committed when
/// the method that makes it has returned, whatever becomes of the call; what is to stand or fall with the call is a
/// `#[state]` parameter.
#[derive(Clone)]
pub struct StateDoc {
    store: Arc<dyn DocStore>,
    id: String,
    conflict: StateConflict,
    sleep: Option<Sleep>,
}

impl StateDoc {
    /// A document of a store. Without [`with_sleep`](Self::with_sleep), a change is tried again without a wait.
    ///
    /// # Errors
    /// `INVALID_INPUT` if the name has not 1 to 256 bytes, or has control characters.
    pub fn new(store: Arc<dyn DocStore>, id: impl Into<String>) -> Result<Self, ToolError> {
        let id = id.into();
        check_document_id(&id)?;
        Ok(Self { store, id, conflict: StateConflict::default(), sleep: None })
    }

    /// Says how to wait between two tries.
    #[must_use]
    pub fn with_sleep(mut self, sleep: Sleep) -> Self {
        self.sleep = Some(sleep);
        self
    }

    /// Says what [`change`](Self::change) does when somebody else has changed the document in the meantime. There is
    /// nothing to merge with here: `merge` is as `error`.
    #[must_use]
    pub fn on_conflict(mut self, conflict: StateConflict) -> Self {
        self.conflict = conflict;
        self
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The newest version, with its number. Nothing that is done to it changes the document.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn get_snapshot(&self) -> Result<Document, ToolError> {
        self.store.load(&self.id).await
    }

    /// What it holds now; null if it was never written.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn state(&self) -> Result<Arc<Value>, ToolError> {
        Ok(self.get_snapshot().await?.value)
    }

    /// How many commits made it what it is now.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn version(&self) -> Result<u64, ToolError> {
        Ok(self.get_snapshot().await?.version)
    }

    /// What it holds now, as a value of its own; the default if it was never written.
    ///
    /// # Errors
    /// `INTERNAL` if it does not fit the type, and those of the store.
    pub async fn clone_state<T: DeserializeOwned + Default>(&self) -> Result<T, ToolError> {
        let document = self.get_snapshot().await?;
        if document.version == 0 {
            return Ok(T::default());
        }
        decode(&document.value, &StateAddress { document: document.id, pointer: String::new() })
    }

    /// Applies a change that was made from a version. If the document is newer by now, the change is carried over to
    /// it, unless somebody else has changed the same part. Returns the new version; a change of nothing makes none.
    ///
    /// # Errors
    /// `CONFLICT` if somebody else has changed the same part, `PRECONDITION` with the pointer if the change does not
    /// fit, `NOT_FOUND` if the store does not keep that version any more.
    pub async fn apply_changes(&self, base_version: u64, changes: &Patch) -> Result<u64, ToolError> {
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
            // Somebody else was faster, and then the change may still be apart from theirs.
            match self.commit(&newest, value).await? {
                Ok(version) => return Ok(version),
                Err(newest) => self.back_off(&mut conflicts, newest.version).await?,
            }
        }
    }

    /// Changes the document: the function gets what it holds (null if it was never written) and makes of it what it
    /// shall hold. If somebody else was faster, it is called again on what is there then, as the
    /// [policy](Self::on_conflict) says. Returns what the function returned, and the version that holds its change.
    ///
    /// # Errors
    /// The function's own, then nothing is changed; `CONFLICT` when somebody else was faster too often; `LIMIT` when
    /// the document would be too large.
    pub async fn change<T>(
        &self,
        mut change: impl FnMut(&mut Value) -> Result<T, ToolError>,
    ) -> Result<(T, u64), ToolError> {
        let mut conflicts = 0;
        let mut document = self.get_snapshot().await?;
        loop {
            let mut value = Value::clone(&document.value);
            let answer = change(&mut value)?;
            match self.commit(&document, value).await? {
                Ok(version) => return Ok((answer, version)),
                Err(newest) => {
                    if self.conflict.action != OnConflict::Retry {
                        return Err(state_conflict(&self.id, newest.version));
                    }
                    self.back_off(&mut conflicts, newest.version).await?;
                    document = self.get_snapshot().await?;
                }
            }
        }
    }

    /// Makes it hold a value, whatever it held. Its version grows by one, as with every change.
    ///
    /// # Errors
    /// `INTERNAL` with the JSON pointer of what has no JSON form, and those of [`change`](Self::change).
    pub async fn replace(&self, value: &(impl Serialize + ?Sized)) -> Result<u64, ToolError> {
        let new = to_json(value)?;
        let ((), version) = self
            .change(|value| {
                value.clone_from(&new);
                Ok(())
            })
            .await?;
        Ok(version)
    }

    /// The document as it was at a version.
    ///
    /// # Errors
    /// `NOT_FOUND` if it never had that version, or the store does not keep it any more.
    pub async fn at(&self, version: u64) -> Result<Document, ToolError> {
        if version == 0 {
            return Ok(Document { id: self.id.clone(), version, value: Arc::default() });
        }
        self.store.at(&self.id, version).await
    }

    /// The changes after a version, oldest first, at most `limit`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn log(&self, after: u64, limit: usize) -> Result<Vec<Change>, ToolError> {
        self.store.log(&self.id, after, limit).await
    }

    /// The change that leads from one version to another, in either direction.
    ///
    /// # Errors
    /// `NOT_FOUND` as [`at`](Self::at).
    pub async fn diff(&self, from: u64, to: u64) -> Result<Patch, ToolError> {
        let (from, to) = (self.at(from).await?, self.at(to).await?);
        Ok(Patch::diff(&from.value, &to.value))
    }

    /// Commits a value that was made of a document; the newest document if somebody else was faster.
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

/// The error of a change that somebody else has overtaken.
pub fn state_conflict(document: &str, version: u64) -> ToolError {
    ToolError::conflict(format!(
        "somebody else has changed the document `{document}` in the meantime: it is at version {version} now"
    ))
    .with("document", document)
    .with("version", version)
    .suggest("Read it again and repeat the call.")
}

impl fmt::Debug for StateDoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateDoc")
            .field("id", &self.id)
            .field("conflict", &self.conflict)
            .finish_non_exhaustive()
    }
}
