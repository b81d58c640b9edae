//! Ctrl-C, and the other signals that ask to end: the first asks the work to stop, the second ends the command.

use std::io;
use std::time::Duration;

use toolpost_core::Cancellation;

use crate::exit::Exit;
use crate::failure::Failure;

/// Watches for Ctrl-C, SIGTERM and SIGHUP from now on. To be called within the runtime, before anything is started.
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
struct Interrupts([tokio::signal::unix::Signal; 3]);

#[cfg(unix)]
fn interrupts() -> io::Result<Interrupts> {
    use tokio::signal::unix::{SignalKind, signal};
    let [interrupt, terminate, hang_up] =
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    Ok(Interrupts([interrupt?, terminate?, hang_up?]))
}

#[cfg(unix)]
impl Interrupts {
    async fn recv(&mut self) -> Option<()> {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            received = interrupt.recv() => received,
            received = terminate.recv() => received,
            received = hang_up.recv() => received,
        }
    }
}

#[cfg(windows)]
fn interrupts() -> io::Result<tokio::signal::windows::CtrlC> {
    tokio::signal::windows::ctrl_c()
}
