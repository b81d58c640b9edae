//! The operator's settings for executables.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use toolpost_core::{Masks, Secret, StartCheck, hex};
use toolpost_sandbox::{Granted, Level, Limits, ProtectedPath};

use super::Executables;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) origins: Vec<PathBuf>,
    pub(super) directories: Vec<PathBuf>,
    pub(super) level: Level,
    pub(super) limits: Limits,
    pub(super) timeout: Duration,
    pub(super) session_timeout: Duration,
    pub(super) discovery_timeout: Duration,
    pub(super) sampling: bool,
    pub(super) calls: Vec<String>,
    pub(super) resident: bool,
    pub(super) python: Option<OsString>,
    pub(super) search_path: Option<OsString>,
    pub(super) home: Option<PathBuf>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) environment: Vec<(String, OsString)>,
    pub(super) cache: Option<PathBuf>,
    pub(super) protected: Vec<ProtectedPath>,
    pub(super) start_check: Option<StartCheck>,
    pub(super) granted: Granted,
    /// Secrets to mask in all output of programs.
    pub(super) masks: Masks,
}

impl Settings {
    /// A hash of the settings that may affect a program's manifest.
    pub(super) fn environment(&self) -> String {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        let grants = self.granted.grants();
        let all = (self.level, &self.python, &self.search_path, &self.home, &self.readable, names, grants);
        hex(Sha256::digest(format!("{all:?}")))
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The environment may hold secrets.
        f.debug_struct("Settings")
            .field("name", &self.name)
            .field("origins", &self.origins)
            .field("directories", &self.directories)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

/// Settings for executables. Created by [`Executables::builder`], used by [`discover`](Self::discover).
#[derive(Clone, Debug)]
pub struct ExecutablesBuilder(Settings);

impl ExecutablesBuilder {
    pub(super) fn new() -> Self {
        Self(Settings {
            name: "executables".to_owned(),
            origins: Vec::new(),
            directories: Vec::new(),
            level: Level::Standard,
            limits: Limits::default(),
            timeout: Duration::from_mins(1),
            session_timeout: Duration::from_mins(30),
            discovery_timeout: Duration::from_secs(5),
            sampling: true,
            calls: Vec::new(),
            resident: false,
            python: None,
            search_path: None,
            home: None,
            readable: Vec::new(),
            environment: Vec::new(),
            cache: None,
            protected: Vec::new(),
            start_check: None,
            granted: Granted::default(),
            masks: Masks::default(),
        })
    }

    /// Sets the source's name, for records. Default: `executables`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Adds a program: an executable file, or a `.py` file, which runs in the interpreter.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.origins.push(path.into());
        self
    }

    /// Adds the programs of a directory, sorted by name: executable and `.py` files without a leading dot, at most 1,000.
    ///
    /// Each [`refresh`](Executables::refresh) reads the directory again.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.directories.push(path.into());
        self
    }

    /// Sets the sandbox level, for discovery too. Default: [`Level::Standard`]. A call may request a stricter one.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.0.level = level;
        self
    }

    /// Sets the limits of a process: memory, processes, descriptors, file sizes.
    ///
    /// Its wall time is unused, see [`timeout`](Self::timeout). [`Limits::output_total`] bounds the output of a call, at
    /// most 64 MiB of standard output and 16 MiB of stderr.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.0.limits = limits;
        self
    }

    /// Sets the timeout of a call. Default: 1 min. The call's own timeout, its deadline and the tool's policy may be
    /// shorter.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// Sets the timeout of a session, in which people answer. Default: 30 min.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.0.session_timeout = timeout;
        self
    }

    /// Sets the timeout of a discovery. Default: 5 s.
    #[must_use]
    pub fn discovery_timeout(mut self, timeout: Duration) -> Self {
        self.0.discovery_timeout = timeout;
        self
    }

    /// Whether programs may sample the caller's model. Default: yes.
    ///
    /// Without it, sampling fails with `PRECONDITION`, and one-shot programs get an empty standard input, so that
    /// programs that read it to the end do not hang.
    #[must_use]
    pub fn sampling(mut self, sampling: bool) -> Self {
        self.0.sampling = sampling;
        self
    }

    /// Sets the tools of the caller that resident programs may call. Default: none.
    ///
    /// The toolbox of the call checks, limits and records them as nested calls of a tool in this process.
    #[must_use]
    pub fn calls<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.0.calls = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Whether a program that supports it keeps its process for calls of the same owner, directory and level. Default: no.
    ///
    /// A call then costs no process start, but a tool can remember data between calls. Concurrent calls get processes of
    /// their own, and a process that dies is replaced. At most 8 processes stay idle. Only calls have timeouts.
    #[must_use]
    pub fn resident(mut self, resident: bool) -> Self {
        self.0.resident = resident;
        self
    }

    /// Sets the interpreter of `.py` files: a name or a path. Default: the interpreter that the file's first line names
    /// by path, else `python3`.
    #[must_use]
    pub fn python(mut self, interpreter: impl Into<OsString>) -> Self {
        self.0.python = Some(interpreter.into());
        self
    }

    /// Sets the search path for interpreters, like `PATH`. Default: [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    #[must_use]
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.0.search_path = Some(path.into());
        self
    }

    /// Sets the home directory whose toolchains programs may use ([`toolpost_sandbox::Sandbox::home`]). Default: none.
    #[must_use]
    pub fn home(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.home = Some(directory.into());
        self
    }

    /// Lets programs read a file or directory of the host.
    ///
    /// A program can always read its own directory, except a shared one
    /// ([`program_directories`](toolpost_sandbox::program_directories)).
    #[must_use]
    pub fn readable(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.readable.push(path.into());
        self
    }

    /// Sets a variable of the programs' otherwise clean environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.0.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the directory of the manifest cache, the file `executables-v1.json`. Default: no cache.
    ///
    /// The key is the path, time and size of a program and of the modules beside a script, with the settings that affect
    /// it. The directory is created if missing; an invalid file is replaced.
    #[must_use]
    pub fn cache(mut self, directory: impl Into<PathBuf>) -> Self {
        self.0.cache = Some(directory.into());
        self
    }

    /// Protects files and directories of the host from changes by runs ([`toolpost_sandbox::Sandbox::protect`]).
    #[must_use]
    pub fn protect(mut self, paths: impl IntoIterator<Item = impl Into<ProtectedPath>>) -> Self {
        self.0.protected.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Sets a check that runs directly before each start of a program, for discovery too. Default: none.
    #[must_use]
    pub fn start_check(mut self, check: StartCheck) -> Self {
        self.0.start_check = Some(check);
        self
    }

    /// Grants the programs paths, variables and hosts, for discovery too. Default: nothing.
    ///
    /// A granted level and working directory override [`level`](Self::level) and a call's directory. Granted variables are
    /// masked in all output.
    #[must_use]
    pub fn granted(mut self, granted: Granted) -> Self {
        self.0.masks = Masks::new(granted.values().map(Secret::new));
        self.0.granted = granted;
        self
    }

    /// Discovers all programs in parallel and returns the source. Needs a tokio runtime with time.
    ///
    /// A problem of a program affects that program only; see [`Executables::diagnostics`].
    pub async fn discover(mut self) -> Executables {
        self.0.level = self.0.granted.grants().level.unwrap_or(self.0.level);
        Executables::discovered(Arc::new(self.0)).await
    }
}
