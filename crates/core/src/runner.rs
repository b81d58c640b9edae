//! Where calls run that do not run in this process.

use std::sync::Arc;

use crate::{BoxFuture, Cancellation, Host, Output, ToolError, ToolSpec};

/// Runs the calls of tools whose placement is [`Placement::Worker`](crate::Placement::Worker) in other processes.
pub trait Runner: Send + Sync {
    /// Runs one attempt of the host's call, with arguments that fit the schema.
    ///
    /// When it is asked to stop, its answer comes after the process, and everything that the process started, is dead.
    /// Dropping the future kills them too, without waiting.
    ///
    /// # Errors
    /// Those of the tool; `DEPENDENCY` or `LIMIT` if the process died, and with it only this call; `PRECONDITION` if
    /// there can be no such process.
    fn run<'a>(
        &'a self,
        spec: &'a ToolSpec,
        host: Arc<dyn Host>,
        stop: Cancellation,
    ) -> BoxFuture<'a, Result<Output, ToolError>>;
}
