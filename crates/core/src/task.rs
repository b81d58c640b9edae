//! Calls that outlive their requests.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{BoxFuture, Timestamp, ToolError};

/// Whether a call may outlive its request: the server returns a task id, and the client fetches the result later.
///
/// For a client without task support, a call blocks its request, except with [`Only`](Self::Only).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskUse {
    /// If the call takes longer than the server keeps a request open.
    #[default]
    WhenSlow,
    /// Always, if the client supports tasks.
    AtOnce,
    /// Always; a client without task support cannot call the tool.
    Only,
    /// Never.
    Never,
}

impl TaskUse {
    /// Whether this is the default.
    pub(crate) fn is_default(self) -> bool {
        self == Self::default()
    }
}

/// A record in a [`TaskStore`].
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRecord {
    /// Unguessable id.
    pub id: String,
    /// Expiry.
    pub until: Timestamp,
    /// The server's own data, opaque to the store.
    pub body: Value,
}

/// Persists a server's tasks across restarts. One server uses a store at a time.
pub trait TaskStore: Send + Sync {
    /// Stores a task, replacing one with its id. The answer means that it is durable.
    fn put(&self, task: TaskRecord) -> BoxFuture<'_, Result<(), ToolError>>;

    /// The task with an id.
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<TaskRecord>, ToolError>>;

    /// Removes tasks. Unknown ids are ignored.
    fn forget<'a>(&'a self, ids: &'a [String]) -> BoxFuture<'a, Result<(), ToolError>>;

    /// All tasks, sorted by id.
    fn all(&self) -> BoxFuture<'_, Result<Vec<TaskRecord>, ToolError>>;
}
