//! Worker processes: this program, started again to run some of its tools.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use toolpost_core::ToolError;
use toolpost_exec::server;
use toolpost_exec::worker::{MARKER, Settings, Work, Workers, serve};
use tracing::level_filters::LevelFilter;

use crate::IntoToolbox;

/// The argument that a worker is started with.
const ARGUMENT: &str = "--toolpost-worker";
/// The exit status of a worker whose toolbox cannot be put together.
const MISCONFIGURED: i32 = 2;

/// Whether this program would know that it is a worker.
static ENTERED: AtomicBool = AtomicBool::new(false);

/// Lets this program be its own worker. Call it first in `main`, before anything else runs; [`main`](crate::main) does it
/// by itself.
///
/// In a process that was started as a worker it builds the toolbox, runs what it is given, and never returns. In any
/// other it returns at once, and [`workers`] can be used from then on. `build` makes the same toolbox in both.
///
/// ```no_run
/// use toolpost::{Toolbox, tool, worker_entry, workers};
///
/// /// The sum of all numbers up to one.
/// #[tool(cpu_bound)]
/// fn sum(up_to: u64) -> u64 {
///     (0..=up_to).sum()
/// }
///
/// fn build() -> toolpost::Builder {
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
        #[expect(clippy::disallowed_methods, clippy::exit, reason = "a worker has nothing else to do")]
        std::process::exit(status);
    }
}

fn work<T: IntoToolbox>(build: impl Fn() -> T) -> i32 {
    // Before anything can print or read.
    let output: Box<dyn Write + Send> = match server::own_output() {
        Ok(output) => Box::new(output),
        Err(_) => Box::new(std::io::stdout()),
    };
    let input: Box<dyn Read + Send> = match server::own_input() {
        Ok(input) => Box::new(input),
        Err(_) => Box::new(std::io::stdin()),
    };
    // Errors of tools go to the process that started it.
    crate::program::log::start(crate::environment::log().as_deref(), LevelFilter::OFF);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let toolbox = {
        // As in any other process: a build may make a runtime of its own.
        let _entered = runtime.enter();
        build().into_toolbox()
    };
    let status = match toolbox {
        Ok(toolbox) => {
            let values = toolbox.values().clone();
            let work = Work { tool: Box::new(move |name| toolbox.own_tool(name)), values };
            runtime.block_on(serve(work, input, output));
            0
        }
        Err(error) => failed(&error.to_string()),
    };
    // Who started it has gone: nobody waits for a tool that is still busy.
    runtime.shutdown_background();
    status
}

fn failed(reason: &str) -> i32 {
    // Nobody is left to tell if this cannot be written.
    let _ = writeln!(std::io::stderr(), "error: {reason}");
    MISCONFIGURED
}

/// The workers of this program, with the defaults of [`Settings`]: for
/// [`Builder::runner`](crate::Builder::runner). None is started before a tool needs it.
///
/// They start in the folder and with the environment that this process has now, without the variables that make a
/// program load other code.
pub fn workers() -> Workers {
    workers_with(|_| {})
}

/// The workers of this program, with other settings.
pub fn workers_with(change: impl FnOnce(&mut Settings)) -> Workers {
    let refused = |what: &str, next: &str| {
        Workers::none(ToolError::precondition(format!("there are no worker processes: {what}")).suggest(next))
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            let next = "Start the program by its path.";
            return refused(&format!("nobody can tell where this program lies ({error})"), next);
        }
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "the entry of a worker stands where the command line stands"
    )]
    let marker = std::env::var_os(MARKER);
    if marker.is_some_and(|marker| marker == program) {
        return refused("this is one itself", "Call the tool from the process that started it.");
    }
    if !ENTERED.load(Ordering::Acquire) {
        return refused(
            "this program would not know that it is one",
            "Call `toolpost::worker_entry(build)` first in `main`, before the toolbox is built.",
        );
    }
    let mut settings = Settings::new(program);
    settings.arguments = vec![ARGUMENT.into()];
    settings.environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name != MARKER)
        .collect();
    if let Ok(folder) = std::env::current_dir() {
        settings.folder = folder;
    }
    change(&mut settings);
    Workers::new(settings)
}
