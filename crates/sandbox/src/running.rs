//! `Running`: a started program with live standard streams.

use std::io::{PipeReader, PipeWriter};
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use crate::platform::LiveDirectory;
use crate::{Applied, Cancel, Error, Outcome};

/// The caller's ends of the standard streams.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// None if the sandbox has a fixed input.
    pub(crate) stdin: Option<PipeWriter>,
    pub(crate) stdout: PipeReader,
    pub(crate) stderr: PipeReader,
    /// The id of the program's container, if any.
    pub(crate) container: Option<String>,
    /// The host directory behind the program's private layer, if any.
    pub(crate) directory: LiveDirectory,
    /// The mounted host paths, besides those of every program.
    pub(crate) shown: Vec<PathBuf>,
    pub(crate) not_shown: Vec<PathBuf>,
}

/// Receives the streams of a started program from a [`crate::Backend`].
#[derive(Debug)]
pub struct LiveStreams<'a>(pub(crate) &'a SyncSender<Pipes>);

impl LiveStreams<'_> {
    /// Hands over the caller's ends of the streams, and the container id if there is one.
    ///
    /// `stdin` is none if the sandbox has a fixed input ([`crate::Sandbox::stdin`]).
    pub fn hand_over(
        self,
        stdin: Option<PipeWriter>,
        stdout: PipeReader,
        stderr: PipeReader,
        container: Option<String>,
    ) {
        // The receiver is gone only if the caller is gone, and then the run is cancelled.
        let directory = LiveDirectory::default();
        let (shown, not_shown) = (Vec::new(), Vec::new());
        let _ = self.0.send(Pipes { stdin, stdout, stderr, container, directory, shown, not_shown });
    }
}

/// A program started by [`crate::Sandbox::start`]. Dropping it kills everything that the program started.
///
/// The drop waits until all of it is dead, for a few milliseconds.
///
/// The streams are blocking pipes. They implement [`std::io::Read`] and [`std::io::Write`] and convert into
/// [`std::os::fd::OwnedFd`] for polling. The host holds no other copy of their far ends: a stream ends when
/// nothing in the sandbox can write to it. A program blocks when its pipe is full, so read its output.
#[derive(Debug)]
pub struct Running {
    pipes: Option<(PipeReader, PipeReader)>,
    stdin: Option<PipeWriter>,
    container: Option<String>,
    directory: LiveDirectory,
    shown: Vec<PathBuf>,
    not_shown: Vec<PathBuf>,
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
        // The first process of a sandbox dies with the thread that started it, so it gets its own thread.
        let supervisor = std::thread::Builder::new()
            .name("sandbox".into())
            .spawn(move || {
                let sender = sender;
                run(&theirs, LiveStreams(&sender))
            })
            .map_err(|source| Error::Setup { step: "start a thread", source })?;
        let supervisor = Some(supervisor);
        let directory = LiveDirectory::default();
        let (pipes, stdin, container) = (None, None, None);
        let (shown, not_shown) = (Vec::new(), Vec::new());
        let mut running = Self { pipes, stdin, container, directory, shown, not_shown, cancel, supervisor };
        if let Ok(Pipes { stdin, stdout, stderr, container, directory, shown, not_shown }) = receiver.recv() {
            running.directory = directory;
            running.shown = shown;
            running.not_shown = not_shown;
            running.stdin = stdin;
            running.container = container;
            running.pipes = Some((stdout, stderr));
            return Ok(running);
        }
        // The run ended before its start; its result has the reason.
        match running.join() {
            Err(error) => Err(error),
            Ok(_) => Err(lost()),
        }
    }

    /// Takes the program's standard input, once. Dropping it ends the input.
    ///
    /// None if the sandbox has a fixed input ([`crate::Sandbox::stdin`]).
    pub fn take_stdin(&mut self) -> Option<PipeWriter> {
        self.stdin.take()
    }

    /// Takes the program's standard output and standard error, once.
    pub fn take_output(&mut self) -> Option<(PipeReader, PipeReader)> {
        self.pipes.take()
    }

    /// The id of the program's container, if a backend uses one.
    pub fn container(&self) -> Option<&str> {
        self.container.as_deref()
    }

    /// The mounted host paths, as in [`crate::Report::shown`]. Other backends list them only in their report.
    pub fn shown(&self) -> &[PathBuf] {
        &self.shown
    }

    /// The host paths that files of the program name and that are not shown, as in [`crate::Report::not_shown`].
    pub fn not_shown(&self) -> &[PathBuf] {
        &self.not_shown
    }

    /// A handle to the program's host directory, for any thread.
    pub fn host_directory(&self) -> HostDirectory {
        HostDirectory(self.directory.clone())
    }

    /// A handle that kills everything that the program started, for any thread.
    pub fn cancel(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Whether everything is dead and [`Running::wait`] returns at once.
    pub fn is_finished(&self) -> bool {
        self.supervisor.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the input and waits until the program and everything that it started is dead.
    ///
    /// Streams that were not taken are closed first. The outcome has no captured output, value, files or
    /// changes.
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

/// The host directory of a running program ([`crate::Workspace::Host`]).
///
/// Apply its changes at the end of each request, and refresh it before the next. Both have no effect without
/// a private layer.
#[derive(Debug, Clone)]
pub struct HostDirectory(LiveDirectory);

impl HostDirectory {
    /// Applies the changes since the last call.
    ///
    /// None if nothing changed, or if [`crate::ApplyMode`] is not `Now`.
    pub fn apply(&self) -> Result<Option<Applied>, Error> {
        self.0.apply()
    }

    /// Shows the program the changes of others in the directory.
    pub fn refresh(&self) {
        self.0.refresh();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.supervisor.is_some() {
            self.cancel.cancel();
            // Nothing reads the outcome of a dropped program.
            let _ = self.join();
        }
    }
}

/// The supervising thread ended without a result: a defect of this crate.
fn lost() -> Error {
    Error::Setup { step: "supervise", source: std::io::Error::other("the supervising thread ended early") }
}
