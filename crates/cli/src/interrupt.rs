//! Ctrl-C: the first asks the work to stop, the second ends the command.

use std::time::Duration;

use toolpost_core::Cancellation;

use crate::exit::Exit;

/// Watches for Ctrl-C from now on. To be called within the runtime.
///
/// The first one cancels: tools and sandboxes stop, the record is written. The second one does not wait for that;
/// what runs in a sandbox dies with this process all the same.
#[expect(clippy::exit, clippy::disallowed_methods, reason = "the second Ctrl-C must not wait for anything")]
pub(crate) fn watch() -> Cancellation {
    let cancellation = Cancellation::new();
    let asked = cancellation.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_err() {
            return;
        }
        asked.cancel();
        // A second one at once would often be the same key held down.
        tokio::time::sleep(Duration::from_millis(50)).await;
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(Exit::Interrupted.number().into());
        }
    });
    cancellation
}
