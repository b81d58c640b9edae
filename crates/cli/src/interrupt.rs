//! Ctrl-C: the first asks the work to stop, the second ends the command.

use std::io;
use std::time::Duration;

use toolpost_core::Cancellation;

use crate::exit::Exit;
use crate::failure::Failure;

/// Watches for Ctrl-C from now on. To be called within the runtime, before anything is started.
///
/// The first one cancels: tools and sandboxes stop, the record is written. The second one does not wait for that;
/// what runs in a sandbox dies with this process all the same.
#[expect(clippy::exit, clippy::disallowed_methods, reason = "the second Ctrl-C must not wait for anything")]
pub(crate) fn watch() -> Result<Cancellation, Failure> {
    let mut interrupts = interrupts().map_err(|error| Failure::of_machine("the watch for Ctrl-C", &error))?;
    let cancellation = Cancellation::new();
    let asked = cancellation.clone();
    tokio::spawn(async move {
        if interrupts.recv().await.is_none() {
            return;
        }
        asked.cancel();
        // A second one at once would often be the same key held down.
        let held = tokio::time::sleep(Duration::from_millis(50));
        tokio::pin!(held);
        loop {
            tokio::select! {
                biased;
                () = &mut held, if !held.is_elapsed() => {}
                interrupt = interrupts.recv() => match interrupt {
                    Some(()) if held.is_elapsed() => std::process::exit(Exit::Interrupted.number().into()),
                    Some(()) => {}
                    None => return,
                },
            }
        }
    });
    Ok(cancellation)
}

#[cfg(unix)]
fn interrupts() -> io::Result<tokio::signal::unix::Signal> {
    tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
}

#[cfg(windows)]
fn interrupts() -> io::Result<tokio::signal::windows::CtrlC> {
    tokio::signal::windows::ctrl_c()
}
