//! Ctrl-C and other termination signals: the first cancels the work, the second ends the command.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use toolpost_core::Cancellation;

use crate::exit::Exit;
use crate::failure::Failure;

/// Watches for Ctrl-C, SIGTERM and SIGHUP. Needs a runtime; call before starting work.
///
/// The first signal cancels: tools and sandboxes stop, and the record is written. The second ends the command
/// at once; sandboxed programs die with this process.
pub(crate) fn watch() -> Result<Cancellation, Failure> {
    watch_with(false, |_| {})
}

/// A variant; `leave` runs before a signal ends the command, and learns whether it is a termination signal.
///
/// Work that `is_resumable` is not cancelled by SIGTERM and SIGHUP: they end the command at once, and a restart of the
/// machine loses nothing.
#[expect(clippy::exit, clippy::disallowed_methods, reason = "the second Ctrl-C must not wait for anything")]
pub(crate) fn watch_with(
    is_resumable: bool,
    leave: impl Fn(bool) + Send + 'static,
) -> Result<Cancellation, Failure> {
    let mut interrupts = interrupts().map_err(|error| Failure::of_machine("the Ctrl-C handler", &error))?;
    let cancellation = Cancellation::new();
    let asked = cancellation.clone();
    tokio::spawn(async move {
        let Some(is_termination) = interrupts.next().await else { return };
        if is_termination && is_resumable {
            leave(true);
            std::process::exit(Exit::Interrupted.number().into())
        }
        asked.cancel();
        // An immediate second one is often the same key held down.
        let held = tokio::time::sleep(Duration::from_millis(50));
        tokio::pin!(held);
        loop {
            tokio::select! {
                biased;
                () = &mut held, if !held.is_elapsed() => {}
                interrupt = interrupts.recv() => match interrupt {
                    Some(()) if held.is_elapsed() => {
                        leave(false);
                        std::process::exit(Exit::Interrupted.number().into())
                    }
                    Some(()) => {}
                    None => return,
                },
            }
        }
    });
    Ok(cancellation)
}

/// Watches for signals in a chat: Ctrl-C stops only the current turn.
pub(crate) struct Turns(Arc<Mutex<Conversation>>);

#[derive(Default)]
struct Conversation {
    /// The cancellation of the current turn.
    turn: Option<Cancellation>,
    /// Whether the chat ends after the turn.
    ends: bool,
}

impl Turns {
    /// Starts to watch. Needs a runtime. A termination signal ends the command at once between turns, and so
    /// does a second one during a turn.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let mut interrupts =
            interrupts().map_err(|error| Failure::of_machine("the Ctrl-C handler", &error))?;
        let looks = terminal::TerminalMode::now();
        let conversation = Arc::new(Mutex::new(Conversation::default()));
        let watched = Arc::clone(&conversation);
        tokio::spawn(async move {
            while let Some(asks_to_end) = interrupts.next().await {
                let mut conversation = watched.lock().unwrap_or_else(PoisonError::into_inner);
                conversation.ends |= asks_to_end;
                match &conversation.turn {
                    Some(turn) if !turn.is_cancelled() => {
                        turn.cancel();
                    }
                    None if !asks_to_end => {}
                    // Restores the terminal mode that the line editor changed.
                    _ => {
                        looks.restore();
                        leave();
                    }
                }
            }
        });
        Ok(Self(conversation))
    }

    fn conversation(&self) -> MutexGuard<'_, Conversation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a turn and returns its cancellation.
    pub(crate) fn begin(&self) -> Cancellation {
        let turn = Cancellation::new();
        self.conversation().turn = Some(turn.clone());
        turn
    }

    /// Ends the turn; true if the chat ends with it.
    pub(crate) fn end(&self) -> bool {
        let mut conversation = self.conversation();
        conversation.turn = None;
        conversation.ends
    }
}

/// Awaits a future until cancellation drops it.
pub(crate) async fn unless<T>(
    stop: &Cancellation,
    what: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        () = stop.cancelled() => {
            Err(Failure::new(Exit::Interrupted, "CANCELLED", format!("{what} was stopped")))
        }
        done = work => done,
    }
}

#[expect(clippy::exit, clippy::disallowed_methods, reason = "a second signal ends the command at once")]
fn leave() -> ! {
    std::process::exit(Exit::Interrupted.number().into())
}

/// The terminal mode.
#[cfg(unix)]
mod terminal {
    use rustix::stdio::stdin;
    use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

    pub(super) struct TerminalMode(Option<Termios>);

    impl TerminalMode {
        pub(super) fn now() -> Self {
            Self(tcgetattr(stdin()).ok())
        }

        pub(super) fn restore(&self) {
            if let Some(looks) = &self.0 {
                // The terminal may be gone.
                let _ = tcsetattr(stdin(), OptionalActions::Now, looks);
            }
        }
    }
}

#[cfg(not(unix))]
mod terminal {
    pub(super) struct TerminalMode;

    impl TerminalMode {
        pub(super) fn now() -> Self {
            Self
        }

        pub(super) fn restore(&self) {}
    }
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
    /// Waits for the next signal; true for a termination signal.
    async fn next(&mut self) -> Option<bool> {
        let [interrupt, terminate, hang_up] = &mut self.0;
        tokio::select! {
            received = interrupt.recv() => received.map(|()| false),
            received = terminate.recv() => received.map(|()| true),
            received = hang_up.recv() => received.map(|()| true),
        }
    }

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
struct Interrupts(tokio::signal::windows::CtrlC);

#[cfg(windows)]
fn interrupts() -> io::Result<Interrupts> {
    tokio::signal::windows::ctrl_c().map(Interrupts)
}

#[cfg(windows)]
impl Interrupts {
    async fn next(&mut self) -> Option<bool> {
        self.0.recv().await.map(|()| false)
    }

    async fn recv(&mut self) -> Option<()> {
        self.0.recv().await
    }
}
