//! Calls in other processes.

use std::sync::Arc;

use crate::{BoxFuture, CallPath, Cancellation, Output, ToolError, ToolSpec};

/// Runs calls of tools with [`Placement::Worker`](crate::Placement::Worker) in other processes.
pub trait Runner: Send + Sync {
    /// Runs one attempt of the host's call with validated arguments.
    ///
    /// After a cancellation, the future completes when the process and its children are dead. Dropping the future kills
    /// them without waiting.
    ///
    /// # Errors
    /// Errors of the tool; `DEPENDENCY` or `LIMIT` if the process died, which affects this call only; `PRECONDITION` if
    /// the process cannot start.
    fn run<'a>(
        &'a self,
        spec: &'a ToolSpec,
        host: Arc<dyn CallPath>,
        stop: Cancellation,
    ) -> BoxFuture<'a, Result<Output, ToolError>>;
}
