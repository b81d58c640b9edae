//! Ctrl-C, and the other signals that ask to end: the first asks the work to stop, the second ends the command.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Watches for the same signals in a conversation: Ctrl-C stops the turn that goes on, and nothing else.
pub(crate) struct Turns(Arc<Mutex<Conversation>>);

#[derive(Default)]
struct Conversation {
    /// How the turn that goes on is stopped.
    turn: Option<Cancellation>,
    /// Whether the conversation ends after it.
    ends: bool,
}

impl Turns {
    /// Watches from now on. To be called within the runtime. A signal that asks to end ends the command at once while
    /// nothing goes on; and so does the second of any of them while a turn goes on.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let mut interrupts =
            interrupts().map_err(|error| Failure::of_machine("the watch for Ctrl-C", &error))?;
        let looks = terminal::Looks::now();
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
                    // The line editor has the terminal, which must not stay as that needs it.
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

    /// Begins a turn, and says how it is stopped.
    pub(crate) fn begin(&self) -> Cancellation {
        let turn = Cancellation::new();
        self.conversation().turn = Some(turn.clone());
        turn
    }

    /// Ends the turn; whether the conversation ends with it.
    pub(crate) fn end(&self) -> bool {
        let mut conversation = self.conversation();
        conversation.turn = None;
        conversation.ends
    }
}

/// Waits for something until somebody asks to stop: then what was waited for is given up.
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

#[expect(clippy::exit, clippy::disallowed_methods, reason = "who asks twice must not wait for anything")]
fn leave() -> ! {
    std::process::exit(Exit::Interrupted.number().into())
}

/// How the terminal is set up.
#[cfg(unix)]
mod terminal {
    use rustix::stdio::stdin;
    use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

    pub(super) struct Looks(Option<Termios>);

    impl Looks {
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
    pub(super) struct Looks;

    impl Looks {
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
    /// Waits for the next one; whether it asks to end.
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
