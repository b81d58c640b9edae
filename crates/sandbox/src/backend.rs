//! Who runs a program: this host's processes by default, or what else implements [`Backend`].

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use crate::host::LevelAvailability;
use crate::platform::Output;
use crate::{
    Cancel, Egress, Error, Event, Host, Installed, Level, Limits, LiveStreams, Outcome, Program, Sandbox,
    Source, Stdin, Workspace,
};

/// Runs programs for [`Sandbox::run`] and [`Sandbox::start`]. One value serves many runs, also at the same time.
///
/// The request was checked before: limits, names, variables and the program are acceptable
/// ([`Sandbox::check_settings`]). A backend keeps the promises of [`Sandbox::run`] itself:
///
/// - A level that was named is given or refused with [`Error::LevelUnavailable`]; a lower one only where
///   [`Request::allow_degraded`] says so, and then [`crate::Report::degraded`] is set.
/// - Each limit is enforced, or the request is refused, or [`crate::Report::missing`] says which one is not.
/// - A layer is in [`crate::Report::layers`] only if it held for this very run.
/// - When it returns, everything that the program started is dead; it returns within [`Limits::wall`] and a bounded time
///   for starting and ending, and soon after [`Cancel::cancel`].
///
/// [`crate::Outcome::new`], [`crate::Report::new`], [`crate::Captured::keep`] and [`crate::Artifact::from_bytes`] make
/// what it gives back.
pub trait Backend: fmt::Debug + Send + Sync {
    /// A stable name of one word, for example `process`. It ends in [`crate::Report::backend`].
    fn name(&self) -> &'static str;

    /// Whether it can give a level, and otherwise why not and what to do.
    fn availability(&self, level: Level) -> LevelAvailability;

    /// Whether it holds the allowlist of [`Request::egress`]. Default no: then a request that has one is refused with
    /// [`Error::EgressUnavailable`] before it gets here.
    fn serves_egress(&self) -> bool {
        false
    }

    /// Whether it makes directories of the host writable ([`Sandbox::read_write`]). Default no: then a request that names
    /// one is rejected before it gets here.
    fn serves_writable(&self) -> bool {
        false
    }

    /// Runs the program to its end. `on_event` gets output while it comes.
    fn run(&self, request: &Request<'_>, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, Error>;

    /// Starts the program for [`Sandbox::start`], hands over its streams, and waits until everything is dead. Default: it
    /// is refused.
    fn start(&self, request: &Request<'_>, streams: LiveStreams<'_>) -> Result<Outcome, Error> {
        let _ = (request, streams);
        let reason = "it gives no live streams; use the backend `process`";
        Err(Error::Backend { backend: self.name(), source: reason.into() })
    }
}

/// What is run: the settings of a sandbox, a program, and the handle that ends it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Request<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) program: &'a Program,
    pub(crate) cancel: &'a Cancel,
}

impl<'a> Request<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox, program: &'a Program, cancel: &'a Cancel) -> Self {
        Self { sandbox, program, cancel }
    }

    /// The program.
    pub fn program(&self) -> &'a Program {
        self.program
    }

    /// The handle that ends the run from another thread.
    pub fn cancel(&self) -> &'a Cancel {
        self.cancel
    }

    /// The level that was named; none means the best available.
    pub fn level(&self) -> Option<Level> {
        self.sandbox.level
    }

    /// Whether a lower level than the named one may be given.
    pub fn allow_degraded(&self) -> bool {
        self.sandbox.allow_degraded
    }

    /// The limits that hold when this level is given ([`crate::Sandbox::limits_at`]).
    pub fn limits(&self, given: Level) -> Limits {
        self.sandbox.limits_at(given)
    }

    /// Where the program works.
    pub fn workspace(&self) -> &'a Workspace {
        &self.sandbox.workspace
    }

    /// The folder beneath the workspace in which the program starts; none is the workspace itself.
    pub fn directory(&self) -> Option<&'a str> {
        self.sandbox.directory.as_deref()
    }

    /// The files that are put into the workspace first: names relative to it, and their content.
    pub fn files(&self) -> &'a [(String, Source)] {
        &self.sandbox.files
    }

    /// The variables that are added to the clean environment.
    pub fn environment(&self) -> &'a [(String, OsString)] {
        &self.sandbox.environment
    }

    /// The arguments of code; a program has its own.
    pub fn arguments(&self) -> &'a [OsString] {
        &self.sandbox.arguments
    }

    /// What the program reads from standard input.
    pub fn stdin(&self) -> &'a Stdin {
        &self.sandbox.stdin
    }

    /// Files and folders of the host that the program can read at their own paths.
    pub fn read_only(&self) -> &'a [PathBuf] {
        &self.sandbox.read_only
    }

    /// What the program may reach on the network; none is nothing at all.
    pub fn egress(&self) -> Option<&'a Egress> {
        self.sandbox.egress.as_ref()
    }

    /// Packages that were installed for the code. A backend that does not show them refuses such a request.
    pub fn packages(&self) -> &'a [Installed] {
        &self.sandbox.packages
    }

    /// Where programs are looked up, in the form of `PATH`; none is [`crate::SYSTEM_SEARCH_PATH`].
    pub fn search_path(&self) -> Option<&'a OsStr> {
        self.sandbox.search_path.as_deref()
    }
}

/// The default backend: processes of this host, each confined by its kernel. Its name is `process`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processes;

impl Backend for Processes {
    fn name(&self) -> &'static str {
        "process"
    }

    fn availability(&self, level: Level) -> LevelAvailability {
        Host::probe().facts.availability(level)
    }

    fn serves_egress(&self) -> bool {
        true
    }

    fn serves_writable(&self) -> bool {
        true
    }

    fn run(&self, request: &Request<'_>, on_event: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, Error> {
        crate::platform::run(request.sandbox, request.program, request.cancel, Output::Captured(on_event))
    }

    fn start(&self, request: &Request<'_>, streams: LiveStreams<'_>) -> Result<Outcome, Error> {
        crate::platform::run(request.sandbox, request.program, request.cancel, Output::Live(streams.0))
    }
}
