//! The `Backend` trait: where a program runs. The default is [`Processes`].

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use crate::host::LevelAvailability;
use crate::platform::Output;
use crate::{
    ApplyMode, BuildCache, Cancel, DirectoryRules, Egress, Error, Host, Level, Limits, LiveStreams, Modules,
    Outcome, Program, ProtectedPath, Sandbox, SandboxEvent, Source, Stdin, Workspace,
};

/// Runs programs for [`Sandbox::run`] and [`Sandbox::start`].
///
/// One value serves many runs, also at the same time. The limits, names, variables and program of a request
/// are already checked ([`Sandbox::check_settings`]). A backend must keep these promises of [`Sandbox::run`]:
///
/// - A required level is provided, or the run fails with [`Error::LevelUnavailable`]. A lower level is
///   allowed only with [`BackendRequest::allow_degraded`], and then [`crate::Report::degraded`] is set.
/// - Each limit is enforced, or the request is rejected, or [`crate::Report::missing`] names the limit.
/// - [`crate::Report::layers`] lists a layer only if it was active in this run.
/// - When a run returns, everything that the program started is dead. It returns within [`Limits::wall`] and
///   a bounded time for start and end, and soon after [`Cancel::cancel`].
///
/// Build the result with [`crate::Outcome::new`], [`crate::Report::new`], [`crate::Captured::keep`] and
/// [`crate::SandboxArtifact::from_bytes`].
pub trait Backend: fmt::Debug + Send + Sync {
    /// A stable name of one word, for example `process`, for [`crate::Report::backend`].
    fn name(&self) -> &'static str;

    /// Whether the backend supports a level, else the reason and the fix.
    fn availability(&self, level: Level) -> LevelAvailability;

    /// Whether the backend enforces [`BackendRequest::egress`]. Default no.
    ///
    /// Without support, a request with an allowlist fails with [`Error::EgressUnavailable`].
    fn serves_egress(&self) -> bool {
        false
    }

    /// Whether the backend supports writable host directories ([`Sandbox::read_write`]). Default no.
    ///
    /// Without support, a request that names one is rejected.
    fn serves_writable(&self) -> bool {
        false
    }

    /// Runs the program to its end. `on_event` receives output as it arrives.
    fn run(
        &self,
        request: &BackendRequest<'_>,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error>;

    /// Starts the program for [`Sandbox::start`], hands over its streams and waits until everything is dead.
    ///
    /// The default returns an error.
    fn start(&self, request: &BackendRequest<'_>, streams: LiveStreams<'_>) -> Result<Outcome, Error> {
        let _ = (request, streams);
        let reason = "it gives no live streams; use the backend `process`";
        Err(Error::Backend { backend: self.name(), source: reason.into(), hint: None })
    }
}

/// A run: the settings of a sandbox, a program, and the handle that cancels the run.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct BackendRequest<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) program: &'a Program,
    pub(crate) cancel: &'a Cancel,
}

impl<'a> BackendRequest<'a> {
    /// Creates the request of a run, unchecked ([`Sandbox::check_settings`]).
    pub fn new(sandbox: &'a Sandbox, program: &'a Program, cancel: &'a Cancel) -> Self {
        Self { sandbox, program, cancel }
    }

    /// The program.
    pub fn program(&self) -> &'a Program {
        self.program
    }

    /// The handle that cancels the run from another thread.
    pub fn cancel(&self) -> &'a Cancel {
        self.cancel
    }

    /// The required level; none means the best available.
    pub fn level(&self) -> Option<Level> {
        self.sandbox.level
    }

    /// Whether a lower level than the required one is allowed.
    pub fn allow_degraded(&self) -> bool {
        self.sandbox.allow_degraded
    }

    /// The limits in force at a level ([`crate::Sandbox::limits_at`]).
    pub fn limits(&self, given: Level) -> Limits {
        self.sandbox.limits_at(given)
    }

    /// The workspace.
    pub fn workspace(&self) -> &'a Workspace {
        &self.sandbox.workspace
    }

    /// The start directory relative to the workspace; none means the workspace.
    pub fn directory(&self) -> Option<&'a str> {
        self.sandbox.directory.as_deref()
    }

    /// The files to put into the workspace first: relative names and content.
    pub fn files(&self) -> &'a [(String, Source)] {
        &self.sandbox.files
    }

    /// The variables to add to the clean environment.
    pub fn environment(&self) -> &'a [(String, OsString)] {
        &self.sandbox.environment
    }

    /// The arguments of code. [`Program::Argv`] has its own.
    pub fn arguments(&self) -> &'a [OsString] {
        &self.sandbox.arguments
    }

    /// The standard input.
    pub fn stdin(&self) -> &'a Stdin {
        &self.sandbox.stdin
    }

    /// The readable host files and directories, at their own paths.
    pub fn read_only(&self) -> &'a [PathBuf] {
        &self.sandbox.read_only
    }

    /// The shown host files and directories: those that the operator granted, and those that the program needs, as
    /// far as their origin allows it.
    ///
    /// # Errors
    /// [`Error::File`] if a granted path cannot be shown.
    pub fn shown(&self) -> Result<Vec<PathBuf>, Error> {
        crate::platform::shown(self.sandbox)
    }

    /// The egress allowlist; none means no network.
    pub fn egress(&self) -> Option<&'a Egress> {
        self.sandbox.egress.as_ref()
    }

    /// The installed packages for the code. A backend without support rejects the request.
    pub fn modules(&self) -> &'a [Modules] {
        &self.sandbox.modules
    }

    /// Whether changes of a host directory are applied at the end of the run.
    pub fn apply_mode(&self) -> ApplyMode {
        self.sandbox.apply
    }

    /// The files and directories of Toolpost, which no sandbox shows.
    pub fn hidden(&self) -> impl Iterator<Item = &'a Path> {
        let protected: &'a [ProtectedPath] = &self.sandbox.protected;
        protected.iter().filter(|protected| protected.is_hidden()).map(ProtectedPath::path)
    }

    /// The rules of a host directory, without symbolic links.
    pub fn directory_rules(&self, directory: &Path) -> DirectoryRules {
        DirectoryRules::of_host(
            directory,
            self.sandbox.protected.iter().cloned(),
            self.sandbox.allowed.iter().cloned(),
        )
    }

    /// The protected paths that apply may change all the same.
    pub fn allowed_protected(&self) -> &'a [PathBuf] {
        &self.sandbox.allowed
    }

    /// The limits of a build of compiled code.
    pub fn build_limits(&self) -> Limits {
        self.sandbox.build_limits.clone().unwrap_or_else(Limits::for_builds)
    }

    /// The cache of built programs, on Linux.
    pub fn build_cache(&self) -> Option<&'a BuildCache> {
        self.sandbox.build_cache.as_ref()
    }

    /// The search path for programs, in the form of `PATH`; none means [`crate::SYSTEM_SEARCH_PATH`].
    pub fn search_path(&self) -> Option<&'a OsStr> {
        self.sandbox.search_path.as_deref()
    }
}

/// The default backend, named `process`: confined processes of this host.
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

    fn run(
        &self,
        request: &BackendRequest<'_>,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        crate::platform::run(request.sandbox, request.program, request.cancel, Output::Captured(on_event))
    }

    fn start(&self, request: &BackendRequest<'_>, streams: LiveStreams<'_>) -> Result<Outcome, Error> {
        crate::platform::run(request.sandbox, request.program, request.cancel, Output::Live(streams.0))
    }
}
