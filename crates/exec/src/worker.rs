//! Worker processes: tools with the placement `worker` run in another process of the same program.
//!
//! [`Workers`] is a [`Runner`]: it starts the program again, a few times at most, and gives each process one attempt
//! after another. [`serve`] is what such a process does instead of its own work; the frames between the two are those
//! of resident mode. Policy, state transactions, nested calls and everything that the caller can do stay where the call
//! came from; a process has the tool's code and the values that are injected by type, and asks for the rest.
//!
//! # What is guaranteed
//!
//! - When a call is told that its time is over, its process is dead, and so is everything that the process started,
//!   whatever it did to its signals, sessions and process groups. On Linux that is a process namespace, else a cgroup,
//!   else following the descendants ([`toolpost_sandbox::Sandbox::unconfined`]).
//! - A process that dies costs the call that it ran and nothing else: the error names the signal or the limit.
//! - The processes die with the one that started them.
//! - A program that does not know that it is a worker is one error, after at most [`Settings::start`], and is dead then.
//!   [`MARKER`] in its environment tells it not to start workers in its turn.
//!
//! What a worker prints to standard error is kept, the last 4 KiB, for the error of a call that it dies in. The payload
//! of an output cannot leave a process, and is lost.

mod frame;
mod pool;
mod process;
mod serve;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use toolpost_core::{BoxFuture, Cancellation, Host, Output, Runner, ToolError, ToolSpec};

use self::pool::Pool;
pub use self::serve::{FindTool, Work, serve};

/// The variable in a worker's environment that tells of what program it is one.
pub const MARKER: &str = "TOOLPOST_WORKER";

/// How workers are started, and how many.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The program.
    pub program: PathBuf,
    /// Its arguments. Default: none.
    pub arguments: Vec<OsString>,
    /// Its environment besides [`MARKER`], `PATH`, `HOME`, `LANG` and `TMPDIR`. Variables that make a program load other
    /// code, such as `LD_PRELOAD`, are left out. Default: none.
    pub environment: Vec<(String, OsString)>,
    /// The folder that it starts in. Default: the root.
    pub folder: PathBuf,
    /// How many run calls at once. Further calls wait, and are `OVERLOADED` if their time ends before they have begun.
    /// A call that is nested in one which a worker runs does not wait, as it could be for itself: with such calls there
    /// are at most four times as many, and one beyond that is `OVERLOADED` at once. Default: as many as there are
    /// processors.
    pub most: usize,
    /// How many stay when there is nothing to do. Default: 0.
    pub least: usize,
    /// After how long without work the others are ended. Default: 60 s.
    pub idle: Duration,
    /// How long one may take until it is ready. Default: 5 s.
    pub start: Duration,
    /// The memory of one, with everything that it starts, in bytes, where a tool's policy does not say. Default: 1 GiB.
    pub memory: u64,
}

impl Settings {
    /// Workers of a program.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            folder: PathBuf::from("/"),
            most: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            least: 0,
            idle: Duration::from_mins(1),
            start: Duration::from_secs(5),
            memory: 1 << 30,
        }
    }
}

/// The processes that run the calls of tools with the placement `worker`. A clone is the same set.
#[derive(Clone, Debug)]
pub struct Workers(Arc<Pool>);

impl Workers {
    /// None yet: they are started when they are needed.
    pub fn new(settings: Settings) -> Self {
        Self(Arc::new(Pool::new(settings)))
    }

    /// None at all: every call is refused with this error.
    pub fn none(reason: ToolError) -> Self {
        Self(Arc::new(Pool::none(reason)))
    }

    /// How many processes there are now, working ones and idle ones.
    pub fn count(&self) -> usize {
        self.0.count()
    }
}

impl Runner for Workers {
    fn run<'a>(
        &'a self,
        spec: &'a ToolSpec,
        host: Arc<dyn Host>,
        stop: Cancellation,
    ) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(Arc::clone(&self.0).run(spec, host, stop))
    }
}
