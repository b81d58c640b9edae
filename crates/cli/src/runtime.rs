//! The asynchronous runtime of a command, and work that Ctrl-C cancels.

use std::time::Duration;

use toolpost_sandbox::Cancel;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::interrupt;

/// The asynchronous runtime of a command.
pub(crate) fn start() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| Failure::of_machine("the threads of the command", &error))
}

/// Runs blocking work that Ctrl-C cancels.
pub(crate) fn cancellable<T>(work: impl FnOnce(&Cancel) -> T) -> Result<T, Failure> {
    let cancel = Cancel::new();
    let watched = cancel.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::of_machine("the watch for Ctrl-C", &error))?;
    let interrupted = {
        let _entered = runtime.enter();
        interrupt::watch()?
    };
    let watch = move || {
        runtime.block_on(async {
            interrupted.cancelled().await;
            watched.cancel();
            // A second signal ends the command.
            std::future::pending::<()>().await;
        });
    };
    let watch = std::thread::Builder::new().name("signals".to_owned()).spawn(watch);
    watch.map_err(|error| Failure::of_machine("the watch for Ctrl-C", &error))?;
    Ok(work(&cancel))
}

/// Runs an installation that Ctrl-C cancels.
pub(crate) fn installing<T>(
    work: impl FnOnce(&Cancel) -> Result<T, toolpost_sandbox::Error>,
    explained: impl FnOnce(toolpost_sandbox::Error) -> Failure,
) -> Result<T, Failure> {
    let (made, was_stopped) = cancellable(|cancel| (work(cancel), cancel.is_cancelled()))?;
    made.map_err(|error| {
        if was_stopped {
            return Failure::new(
                Exit::Interrupted,
                "CANCELLED",
                "the installation was cancelled; nothing was installed",
            );
        }
        explained(error)
    })
}

/// Ends the runtime. Cancelled work gets five seconds to remove its sandboxes.
pub(crate) fn end(runtime: tokio::runtime::Runtime) {
    runtime.shutdown_timeout(Duration::from_secs(5));
}
