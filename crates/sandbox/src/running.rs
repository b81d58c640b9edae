//! A program that runs, with its input and output in the caller's hands.

use std::io::{PipeReader, PipeWriter};
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use crate::platform::LiveDirectory;
use crate::{Applied, Cancel, Error, Outcome};

/// The caller's ends of a program's standard streams.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// None if the sandbox was given what the program reads.
    pub(crate) stdin: Option<PipeWriter>,
    pub(crate) stdout: PipeReader,
    pub(crate) stderr: PipeReader,
    /// The container that the program runs in, if it runs in one.
    pub(crate) container: Option<String>,
    /// The host directory of the program, if it sees one through a private layer.
    pub(crate) directory: LiveDirectory,
    /// What the program sees of the host, beyond what every program sees.
    pub(crate) shown: Vec<PathBuf>,
}

/// Where a [`crate::Backend`] hands over the streams of a program that it has started.
#[derive(Debug)]
pub struct LiveStreams<'a>(pub(crate) &'a SyncSender<Pipes>);

impl LiveStreams<'_> {
    /// Hands over the caller's ends: what the program reads, unless the sandbox was given it ([`crate::Sandbox::stdin`]),
    /// what it writes, and the id of its container, if there is one.
    pub fn hand_over(
        self,
        stdin: Option<PipeWriter>,
        stdout: PipeReader,
        stderr: PipeReader,
        container: Option<String>,
    ) {
        // Nobody waits for them only if the caller is gone, and then the run is cancelled.
        let directory = LiveDirectory::default();
        let shown = Vec::new();
        let _ = self.0.send(Pipes { stdin, stdout, stderr, container, directory, shown });
    }
}

/// A program that [`crate::Sandbox::start`] has started. Dropping it kills everything that the program started and
/// waits until it is dead, which takes a few milliseconds.
///
/// The streams are pipes that block: they implement [`std::io::Read`] and [`std::io::Write`] and turn into
/// [`std::os::fd::OwnedFd`] for who wants to poll them. Nothing else of the host holds their other ends, so that the end
/// of a stream is the end of everything in the sandbox that could write to it. A program whose output nobody reads
/// stands still when its pipe is full.
#[derive(Debug)]
pub struct Running {
    pipes: Option<(PipeReader, PipeReader)>,
    stdin: Option<PipeWriter>,
    container: Option<String>,
    directory: LiveDirectory,
    shown: Vec<PathBuf>,
    cancel: Cancel,
    supervisor: Option<JoinHandle<Result<Outcome, Error>>>,
}

impl Running {
    pub(crate) fn start(
        run: impl FnOnce(&Cancel, LiveStreams<'_>) -> Result<Outcome, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let cancel = Cancel::new();
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let theirs = cancel.clone();
        // The first process of a sandbox dies with the thread that made it: it gets one that lives as long as it does.
        let supervisor = std::thread::Builder::new()
            .name("sandbox".into())
            .spawn(move || {
                let sender = sender;
                run(&theirs, LiveStreams(&sender))
            })
            .map_err(|source| Error::Setup { step: "start a thread", source })?;
        let supervisor = Some(supervisor);
        let directory = LiveDirectory::default();
        let (pipes, stdin, container, shown) = (None, None, None, Vec::new());
        let mut running = Self { pipes, stdin, container, directory, shown, cancel, supervisor };
        if let Ok(Pipes { stdin, stdout, stderr, container, directory, shown }) = receiver.recv() {
            running.directory = directory;
            running.shown = shown;
            running.stdin = stdin;
            running.container = container;
            running.pipes = Some((stdout, stderr));
            return Ok(running);
        }
        // It ended before it started anything, and says why.
        match running.join() {
            Err(error) => Err(error),
            Ok(_) => Err(lost()),
        }
    }

    /// The program's standard input, once. Dropping it is the end of the input. None, too, if the sandbox was given the
    /// input ([`crate::Sandbox::stdin`]).
    pub fn take_stdin(&mut self) -> Option<PipeWriter> {
        self.stdin.take()
    }

    /// The program's standard output and standard error, once.
    pub fn take_output(&mut self) -> Option<(PipeReader, PipeReader)> {
        self.pipes.take()
    }

    /// The id of the container that the program runs in, if a backend runs it in one.
    pub fn container(&self) -> Option<&str> {
        self.container.as_deref()
    }

    /// What the program sees of the host, as [`crate::Report::shown`] has it. Other backends than processes of this host
    /// show it in their report alone.
    pub fn shown(&self) -> &[PathBuf] {
        &self.shown
    }

    /// A handle to the host directory that the program works in, from any thread.
    pub fn host_directory(&self) -> HostDirectory {
        HostDirectory(self.directory.clone())
    }

    /// A handle that kills everything that the program started, from any thread.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Whether everything is dead and [`Running::wait`] gives its answer at once.
    pub fn is_finished(&self) -> bool {
        self.supervisor.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the input and waits until the program, and everything that it started, is dead. Streams that were not taken
    /// are closed first. The outcome has no captured output, no value, no files and no changes.
    pub fn wait(mut self) -> Result<Outcome, Error> {
        self.stdin = None;
        self.pipes = None;
        self.join()
    }

    fn join(&mut self) -> Result<Outcome, Error> {
        let supervisor = self.supervisor.take().ok_or_else(lost)?;
        supervisor.join().map_err(|_| lost())?
    }
}

/// The host directory of a program that goes on running ([`crate::Workspace::Host`]): its changes are applied at the end
/// of each request, and what others change is shown before the next. Without a private layer both do nothing.
#[derive(Debug, Clone)]
pub struct HostDirectory(LiveDirectory);

impl HostDirectory {
    /// Applies what the program changed since the last time. None where nothing changed, or changes are not applied now
    /// ([`crate::ApplyMode`]).
    pub fn apply(&self) -> Result<Option<Applied>, Error> {
        self.0.apply()
    }

    /// Shows the program what others changed in the directory.
    pub fn refresh(&self) {
        self.0.refresh();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.supervisor.is_some() {
            self.cancel.cancel();
            // The outcome of what nobody waits for.
            let _ = self.join();
        }
    }
}

/// The supervising thread gave no answer: only a defect of this crate can be the reason.
fn lost() -> Error {
    Error::Setup { step: "supervise", source: std::io::Error::other("the supervising thread ended early") }
}
