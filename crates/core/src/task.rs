//! Calls that outlive the request that made them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{BoxFuture, Timestamp, ToolError};

/// Whether a call may outlive the request that made it: a server of tools then answers with the name of a task at once,
/// and its client comes back for the result. Where a client does not know tasks, a call is a call, except with
/// [`Only`](Self::Only).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskUse {
    /// When it takes longer than the server keeps a request open.
    #[default]
    WhenSlow,
    /// Always, where the client knows tasks.
    AtOnce,
    /// Always: a client that knows no tasks cannot call it.
    Only,
    /// Never.
    Never,
}

impl TaskUse {
    /// Whether it is what a tool has that says nothing of it.
    pub(crate) fn is_default(self) -> bool {
        self == Self::default()
    }
}

/// A task as a [`TaskStore`] keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptTask {
    /// Its name, which nobody can guess.
    pub id: String,
    /// When it need not be kept any more.
    pub until: Timestamp,
    /// What the server knows of it; of no meaning to the store.
    pub body: Value,
}

/// Where a server keeps its tasks, so that they outlive it. One server uses it at a time.
pub trait TaskStore: Send + Sync {
    /// Keeps a task in place of what was kept under its name. When this has answered it is kept for good.
    fn keep(&self, task: KeptTask) -> BoxFuture<'_, Result<(), ToolError>>;

    /// A task, if it is kept.
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<KeptTask>, ToolError>>;

    /// Forgets tasks. Unknown names are passed over.
    fn forget<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), ToolError>>;

    /// All that is kept, in the order of the names.
    fn all(&self) -> BoxFuture<'_, Result<Vec<KeptTask>, ToolError>>;
}
