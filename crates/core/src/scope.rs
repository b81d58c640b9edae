//! What belongs to one run or one conversation.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{ScopeId, ToolError};

/// A run or a conversation that calls belong to: who owns it, where it works, how much it may do.
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

/// What lives as long as the scope, one value of each type.
#[derive(Clone, Default)]
struct Owned(Arc<Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>>);

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").finish_non_exhaustive()
    }
}

impl Scope {
    /// A new scope of an owner: a user name, a client id, or whatever the front knows.
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

    /// The same with the id that it has elsewhere: a call that comes from another process belongs to the same scope here.
    #[must_use]
    pub fn with_id(self, id: ScopeId) -> Self {
        self.change(|inner| inner.id = id)
    }

    /// Sets the folder that its tools work in. To be called before the first call.
    #[must_use]
    pub fn with_working_dir(self, path: impl Into<PathBuf>) -> Self {
        self.change(|inner| inner.working_dir = Some(path.into()))
    }

    /// Sets how many calls may be made in it, nested ones included. To be called before the first call.
    #[must_use]
    pub fn with_max_calls(self, calls: u64) -> Self {
        self.change(|inner| inner.max_calls = Some(calls))
    }

    /// Its name.
    pub fn id(&self) -> ScopeId {
        self.0.id
    }

    /// Whose it is.
    pub fn owner(&self) -> &str {
        &self.0.owner
    }

    /// The folder that its tools work in.
    pub fn working_dir(&self) -> Option<&std::path::Path> {
        self.0.working_dir.as_deref()
    }

    /// The scope's own value of a type, made if it has none yet: what its calls share and no other scope gets, such as
    /// live sessions by their names. It is dropped with the last clone of the scope.
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
    /// `LIMIT` when the quota is used up.
    pub fn count_call(&self) -> Result<(), ToolError> {
        let before = self.0.calls.fetch_add(1, Ordering::Relaxed);
        match self.0.max_calls {
            Some(limit) if before >= limit => {
                Err(ToolError::limit(format!("this run may make {limit} calls, and all are made"))
                    .suggest("Raise the limit on calls, or answer with what there is."))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_scope_owns_is_shared_by_its_clones_and_goes_with_the_last() {
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
