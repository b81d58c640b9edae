//! The default task store, in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use toolpost_core::{BoxFuture, TaskRecord, TaskStore, ToolError};

/// A task store in memory.
#[derive(Default)]
pub(in crate::server) struct MemoryTasks(Mutex<BTreeMap<String, TaskRecord>>);

impl MemoryTasks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, TaskRecord>> {
        // The table is whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskStore for MemoryTasks {
    fn put(&self, task: TaskRecord) -> BoxFuture<'_, Result<(), ToolError>> {
        self.lock().insert(task.id.clone(), task);
        Box::pin(async { Ok(()) })
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<TaskRecord>, ToolError>> {
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

    fn all(&self) -> BoxFuture<'_, Result<Vec<TaskRecord>, ToolError>> {
        let all = self.lock().values().cloned().collect();
        Box::pin(async { Ok(all) })
    }
}
