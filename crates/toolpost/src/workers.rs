//! Worker processes: this program, started again to run some of its tools.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use toolpost_core::ToolError;
use toolpost_exec::server;
pub use toolpost_exec::worker::Workers;
use toolpost_exec::worker::{MARKER, WorkerSettings, WorkerTools, serve};
use tracing::level_filters::LevelFilter;

use crate::program::IntoToolbox;

/// The argument that a worker is started with.
const ARGUMENT: &str = "--toolpost-worker";
/// The exit code of a worker whose toolbox fails to build.
const MISCONFIGURED: i32 = 2;

/// Whether `worker_entry` was called in this process.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Runs this process as a worker if it was started as one.
///
/// Call it first in `main`; [`main`](crate::main) calls it itself. In a worker process it builds the toolbox, runs the
/// calls that it receives, and never returns. In any other process it returns at once and enables [`workers`]. `build`
/// must build the same toolbox in both.
///
/// ```no_run
/// use toolpost::toolbox::ToolboxBuilder;
/// use toolpost::{Toolbox, tool, worker_entry, workers};
///
/// /// Sum the numbers up to a limit.
/// #[tool(cpu_bound)]
/// fn sum(up_to: u64) -> u64 {
///     (0..=up_to).sum()
/// }
///
/// fn build() -> ToolboxBuilder {
///     Toolbox::builder().tool(sum).runner(workers())
/// }
///
/// fn main() {
///     worker_entry(build);
///     let toolbox = build().build();
///     // …
/// }
/// ```
pub fn worker_entry<T: IntoToolbox>(build: impl Fn() -> T) {
    ENTERED.store(true, Ordering::Release);
    if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
        let status = work(build);
        #[expect(clippy::disallowed_methods, clippy::exit, reason = "a worker process ends here")]
        std::process::exit(status);
    }
}

fn work<T: IntoToolbox>(build: impl Fn() -> T) -> i32 {
    // Take the streams before any other code can print or read.
    let output: Box<dyn Write + Send> = match server::own_output() {
        Ok(output) => Box::new(output),
        Err(_) => Box::new(std::io::stdout()),
    };
    let input: Box<dyn Read + Send> = match server::own_input() {
        Ok(input) => Box::new(input),
        Err(_) => Box::new(std::io::stdin()),
    };
    // The parent process logs the errors of tools.
    crate::program::log::start(crate::environment::log().as_deref(), LevelFilter::OFF);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let toolbox = {
        // `build` may create a runtime of its own.
        let _entered = runtime.enter();
        build().into_toolbox()
    };
    let status = match toolbox {
        Ok(toolbox) => {
            let values = toolbox.values().clone();
            let work = WorkerTools { tool: Box::new(move |name| toolbox.own_tool(name)), values };
            runtime.block_on(serve(work, input, output));
            0
        }
        Err(error) => failed(&error.to_string()),
    };
    // The parent has closed the connection, so no caller waits for a running tool.
    runtime.shutdown_background();
    status
}

fn failed(reason: &str) -> i32 {
    // Standard error is the last resort.
    let _ = writeln!(std::io::stderr(), "error: {reason}");
    MISCONFIGURED
}

/// The worker processes of this program, for
/// [`ToolboxBuilder::runner`](crate::toolbox::ToolboxBuilder::runner). A worker starts when a tool first needs it.
///
/// Workers inherit the working directory and the environment of this process, without the variables that make a program
/// load other code.
pub fn workers() -> Workers {
    let unavailable = |reason: &str, fix: &str| {
        Workers::unavailable(
            ToolError::precondition(format!("worker processes are unavailable: {reason}")).suggest(fix),
        )
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            let fix = "Start the program by its path.";
            return unavailable(&format!("cannot determine the current executable ({error})"), fix);
        }
    };
    #[expect(clippy::disallowed_methods, reason = "an entry point of a program, like the command line")]
    let marker = std::env::var_os(MARKER);
    if marker.is_some_and(|marker| marker == program) {
        return unavailable(
            "this process is a worker",
            "Call the tool from the process that started the worker.",
        );
    }
    if !ENTERED.load(Ordering::Acquire) {
        return unavailable(
            "`worker_entry` was not called",
            "Call `toolpost::worker_entry(build)` first in `main`, before the toolbox is built.",
        );
    }
    let mut settings = WorkerSettings::new(program);
    settings.arguments = vec![ARGUMENT.into()];
    settings.environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name != MARKER)
        .collect();
    if let Ok(directory) = std::env::current_dir() {
        settings.directory = directory;
    }
    Workers::new(settings)
}
