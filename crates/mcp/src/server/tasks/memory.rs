//! The default task store, in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use toolpost_core::{BoxFuture, KeptTask, TaskStore, ToolError};

/// A task store in memory.
#[derive(Default)]
pub(in crate::server) struct MemoryTasks(Mutex<BTreeMap<String, KeptTask>>);

impl MemoryTasks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, KeptTask>> {
        // The table is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskStore for MemoryTasks {
    fn keep(&self, task: KeptTask) -> BoxFuture<'_, Result<(), ToolError>> {
        self.lock().insert(task.id.clone(), task);
        Box::pin(async { Ok(()) })
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeptTask>, ToolError>> {
        let found = self.lock().get(id).cloned();
        Box::pin(async { Ok(found) })
    }

    fn forget<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), ToolError>> {
        let mut tasks = self.lock();
        for id in ids {
            tasks.remove(id);
        }
        drop(tasks);
        Box::pin(async { Ok(()) })
    }

    fn all(&self) -> BoxFuture<'_, Result<Vec<KeptTask>, ToolError>> {
        let all = self.lock().values().cloned().collect();
        Box::pin(async { Ok(all) })
    }
}
