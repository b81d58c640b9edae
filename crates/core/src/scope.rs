//! Scopes: runs and conversations.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{ScopeId, ToolError};

/// A run or a conversation: its owner, its working directory and its quota of calls.
///
/// Cheap to clone; all clones are the same scope.
#[derive(Clone, Debug)]
pub struct Scope(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: ScopeId,
    owner: String,
    working_dir: Option<PathBuf>,
    max_calls: Option<u64>,
    calls: AtomicU64,
    owned: Owned,
}

/// Values that live as long as the scope, one per type.
#[derive(Clone, Default)]
struct Owned(Arc<Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>>);

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").finish_non_exhaustive()
    }
}

impl Scope {
    /// A new scope. The owner is a user name, a client id, or another name that the front knows.
    pub fn new(owner: impl Into<String>) -> Self {
        Self(Arc::new(Inner {
            id: ScopeId::new(),
            owner: owner.into(),
            working_dir: None,
            max_calls: None,
            calls: AtomicU64::new(0),
            owned: Owned::default(),
        }))
    }

    fn change(self, change: impl FnOnce(&mut Inner)) -> Self {
        let old = &self.0;
        let mut inner = Inner {
            id: old.id,
            owner: old.owner.clone(),
            working_dir: old.working_dir.clone(),
            max_calls: old.max_calls,
            calls: AtomicU64::new(old.calls.load(Ordering::Relaxed)),
            owned: old.owned.clone(),
        };
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// Sets the id, for a scope from another process.
    #[must_use]
    pub fn with_id(self, id: ScopeId) -> Self {
        self.change(|inner| inner.id = id)
    }

    /// Sets the working directory of its tools. Call it before the first call.
    #[must_use]
    pub fn with_working_dir(self, path: impl Into<PathBuf>) -> Self {
        self.change(|inner| inner.working_dir = Some(path.into()))
    }

    /// Sets the maximum number of calls, nested ones included. Call it before the first call.
    #[must_use]
    pub fn with_max_calls(self, calls: u64) -> Self {
        self.change(|inner| inner.max_calls = Some(calls))
    }

    /// The scope's id.
    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// The scope's owner.
    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// The working directory of its tools.
    pub fn working_dir(&self) -> Option<&std::path::Path> {
        self.0.working_dir.as_deref()
    }

    /// The scope's value of a type, created on first use, such as its live sessions by name.
    ///
    /// All calls of the scope share it, and the last clone of the scope drops it.
    pub fn own<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut owned = self.0.owned.0.lock().unwrap_or_else(PoisonError::into_inner);
        let held = owned.get(&TypeId::of::<T>()).cloned().and_then(|value| value.downcast().ok());
        held.unwrap_or_else(|| {
            let value = Arc::new(make());
            owned.insert(TypeId::of::<T>(), Arc::clone(&value) as Arc<dyn Any + Send + Sync>);
            value
        })
    }

    /// Counts one call against the quota.
    ///
    /// # Errors
    /// `LIMIT` when the quota is exhausted.
    pub fn count_call(&self) -> Result<(), ToolError> {
        let before = self.0.calls.fetch_add(1, Ordering::Relaxed);
        match self.0.max_calls {
            Some(limit) if before >= limit => {
                Err(ToolError::limit(format!("this run reached its limit of {limit} calls"))
                    .suggest("Raise the limit, or answer with the results so far."))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_a_scopes_values_and_the_last_drops_them() {
        let scope = Scope::new("ada");
        let first = scope.own(|| Mutex::new(1));
        *first.lock().unwrap() = 2;
        let clone = scope.clone().with_id(ScopeId::new());
        assert_eq!(*clone.own(|| Mutex::new(7)).lock().unwrap(), 2);
        assert_eq!(*Scope::new("ada").own(|| Mutex::new(7)).lock().unwrap(), 7);
        let watched = Arc::downgrade(&first);
        drop((first, scope));
        assert!(watched.upgrade().is_some());
        drop(clone);
        assert!(watched.upgrade().is_none());
    }
}
