//! Worker processes for tools with the placement `worker`, which run in another process of the same program.
//!
//! [`Workers`] is a [`Runner`]: it starts a bounded number of copies of the program, and runs one attempt at a time in
//! each. [`serve`] is the entry point of such a process; both sides exchange frames of resident mode. Policy, state
//! transactions, nested calls and the caller's port stay in the parent. A worker has the tool's code and the values
//! injected by type, and requests the rest.
//!
//! # Guarantees
//!
//! - When a caller gets a timeout, the worker and all its descendants are dead, whatever they did to their signals,
//!   sessions and process groups. Linux uses a PID namespace, else a cgroup, else tracks the descendants
//!   ([`toolpost_sandbox::Sandbox::unconfined`]).
//! - A worker that dies fails only its current call; the error names the signal or the limit.
//! - Workers die with their parent.
//! - A program without a worker entry is an error after at most [`WorkerSettings::start_timeout`], and is killed.
//!   [`MARKER`] in its environment keeps it from starting workers itself.
//!
//! The last 4 KiB of a worker's stderr are part of the error of the call that it dies in. Payloads of outputs cannot
//! leave a process and are lost.

mod frame;
mod pool;
mod process;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{BoxFuture, CallPath, Cancellation, Output, Runner, ToolError, ToolSpec};

use self::pool::Pool;
pub use self::serve::{FindTool, WorkerTools, serve};

/// The variable in a worker's environment that holds its program.
pub const MARKER: &str = "TOOLPOST_WORKER";

/// Settings of worker processes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerSettings {
    /// Program.
    pub program: PathBuf,
    /// Arguments. Default: none.
    pub arguments: Vec<OsString>,
    /// Environment in addition to [`MARKER`], `PATH`, `HOME`, `LANG` and `TMPDIR`. Variables that load other code, such as
    /// `LD_PRELOAD`, are ignored. Default: none.
    pub environment: Vec<(String, OsString)>,
    /// Working directory. Default: the root.
    pub directory: PathBuf,
    /// Maximum number of workers that run calls. Default: the number of processors.
    ///
    /// Further calls wait, and fail with `OVERLOADED` at their deadline. A nested call of a worker's call cannot wait,
    /// because it may wait for itself: for nested calls the maximum is four times as high, and a further one fails
    /// with `OVERLOADED` immediately.
    pub max: usize,
    /// After how long idle workers are stopped. Default: 60 s.
    pub idle_timeout: Duration,
    /// Timeout of a start. Default: 5 s.
    pub start_timeout: Duration,
    /// Memory of a worker and its descendants, in bytes, unless the tool's policy sets it. Default: 1 GiB.
    pub memory: u64,
}

impl WorkerSettings {
    /// Settings for workers of a program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: PathBuf::from("/"),
            max: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            idle_timeout: Duration::from_mins(1),
            start_timeout: Duration::from_secs(5),
            memory: 1 << 30,
        }
    }
}

/// A pool of worker processes. Clones share the pool.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Pool>);

impl Workers {
    /// Creates an empty pool, which starts workers on demand.
    pub fn new(settings: WorkerSettings) -> Self {
        Self(Arc::new(Pool::new(settings)))
    }

    /// Creates a pool that rejects every call with an error.
    pub fn unavailable(reason: ToolError) -> Self {
        Self(Arc::new(Pool::unavailable(reason)))
    }

    /// Number of workers, busy and idle.
    pub fn count(&self) -> usize {
        self.0.count()
    }
}

impl Runner for Workers {
    fn run<'a>(
        &'a self,
        spec: &'a ToolSpec,
        host: Arc<dyn CallPath>,
        stop: Cancellation,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(Arc::clone(&self.0).run(spec, host, stop))
    }
}
