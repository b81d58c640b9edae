//! What the operator says about executables.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use toolpost_core::{Masks, Secret, StartCheck, hex};
use toolpost_sandbox::{Granted, Level, Limits};

use super::Executables;

/// What happens when two programs have a tool of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Collisions {
    /// The first keeps the name, and the other's tool is left out, with a [`Diagnostic`](super::Diagnostic).
    #[default]
    Refuse,
    /// Each of them gets the name of its program in front: `weather__forecast`.
    Prefix,
}

/// Where a program comes from.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) path: PathBuf,
    /// What all its names begin with.
    pub(super) prefix: Option<String>,
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) origins: Vec<Origin>,
    pub(super) folders: Vec<PathBuf>,
    pub(super) level: Level,
    pub(super) allow_degraded: bool,
    pub(super) limits: Limits,
    pub(super) timeout: Duration,
    pub(super) session_timeout: Duration,
    pub(super) discovery_timeout: Duration,
    pub(super) parallel: usize,
    pub(super) collisions: Collisions,
    pub(super) sampling: bool,
    pub(super) resident: bool,
    pub(super) python: Option<OsString>,
    pub(super) search_path: Option<OsString>,
    pub(super) readable: Vec<PathBuf>,
    pub(super) environment: Vec<(String, OsString)>,
    pub(super) cache: Option<PathBuf>,
    pub(super) protected: Vec<PathBuf>,
    pub(super) start_check: Option<StartCheck>,
    pub(super) granted: Granted,
    /// What is masked in all that programs print.
    pub(super) masks: Masks,
}

impl Settings {
    /// What decides how programs are run, as far as what they tell of themselves may depend on it: a hash.
    pub(super) fn environment(&self) -> String {
        let names: Vec<_> = self.environment.iter().map(|(name, _)| name).collect();
        let grants = self.granted.grants();
        let all = (self.level, &self.python, &self.search_path, &self.readable, names, grants);
        hex(Sha256::digest(format!("{all:?}")))
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The environment may hold secrets.
        f.debug_struct("Settings")
            .field("name", &self.name)
            .field("origins", &self.origins)
            .field("folders", &self.folders)
            .field("level", &self.level)
            .finish_non_exhaustive()
    }
}

/// How executables are found and run. Made by [`Executables::builder`], ended by [`discover`](Self::discover).
#[derive(Clone, Debug)]
pub struct ExecutablesBuilder(Settings);

impl ExecutablesBuilder {
    pub(super) fn new() -> Self {
        Self(Settings {
            name: "executables".to_owned(),
            origins: Vec::new(),
            folders: Vec::new(),
            level: Level::Standard,
            allow_degraded: false,
            limits: Limits::default(),
            timeout: Duration::from_mins(1),
            session_timeout: Duration::from_mins(30),
            discovery_timeout: Duration::from_secs(5),
            parallel: std::thread::available_parallelism().map_or(4, std::num::NonZero::get).max(4),
            collisions: Collisions::default(),
            sampling: true,
            resident: false,
            python: None,
            search_path: None,
            readable: Vec::new(),
            environment: Vec::new(),
            cache: None,
            protected: Vec::new(),
            start_check: None,
            granted: Granted::default(),
            masks: Masks::default(),
        })
    }

    /// Names the source, for records. Default `executables`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Adds a program: an executable file, or a `.py` file, which is run by the interpreter.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.origins.push(Origin { path: path.into(), prefix: None });
        self
    }

    /// Adds a program whose tools and prompts all get a name in front: `PREFIX__NAME`.
    #[must_use]
    pub fn path_with_prefix(mut self, prefix: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.0.origins.push(Origin { path: path.into(), prefix: Some(prefix.into()) });
        self
    }

    /// Adds the programs of a folder, in the order of their names: executable files and `.py` files that lie directly in
    /// it and do not begin with a dot, at most 1,000. The folder is looked at anew by each
    /// [`refresh`](Executables::refresh).
    #[must_use]
    pub fn folder(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.folders.push(path.into());
        self
    }

    /// The level of the sandbox in which the programs run, for discovery too. Default [`Level::Standard`]. A call that
    /// names a stricter one gets that.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.0.level = level;
        self
    }

    /// Whether a lower level is taken when the host cannot give the one that was named. Default no: then a program is
    /// not run, and says why.
    #[must_use]
    pub fn allow_degraded(mut self, allow: bool) -> Self {
        self.0.allow_degraded = allow;
        self
    }

    /// The limits of one process: memory, processes, descriptors, file sizes. Its wall time is not used (see
    /// [`timeout`](Self::timeout)); [`Limits::output_total`] bounds what a call may print, at most 64 MiB of standard
    /// output and 16 MiB of standard error.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.0.limits = limits;
        self
    }

    /// How long a call may take. Default 1 min. The shortest of it, the call's own limit, the tool's policy and the
    /// call's deadline counts.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.0.timeout = timeout;
        self
    }

    /// How long a session may take, in which people answer. Default 30 min.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.0.session_timeout = timeout;
        self
    }

    /// How long a program may take to tell of its tools. Default 5 s.
    #[must_use]
    pub fn discovery_timeout(mut self, timeout: Duration) -> Self {
        self.0.discovery_timeout = timeout;
        self
    }

    /// How many programs are asked at the same time. Default: the processors of this machine, at least 4.
    #[must_use]
    pub fn parallel(mut self, programs: usize) -> Self {
        self.0.parallel = programs.max(1);
        self
    }

    /// What happens when two programs have a tool of the same name. Default [`Collisions::Refuse`].
    #[must_use]
    pub fn collisions(mut self, collisions: Collisions) -> Self {
        self.0.collisions = collisions;
        self
    }

    /// Whether programs may ask the caller's model for completions. Default yes. Without it a program that asks gets
    /// `PRECONDITION`, and the standard input of one-shot programs is empty, which helps those that read it to its end for
    /// no reason.
    #[must_use]
    pub fn sampling(mut self, sampling: bool) -> Self {
        self.0.sampling = sampling;
        self
    }

    /// Whether a program that offers it keeps its process for the next call of the same owner in the same folder, so that
    /// a call costs no start. Default no: a tool of such a process can remember things from call to call. A second call
    /// at the same time gets a process of its own; one that dies costs its call and is replaced. At most 8 processes
    /// wait; their wall time is not limited, but that of each call is.
    #[must_use]
    pub fn resident(mut self, resident: bool) -> Self {
        self.0.resident = resident;
        self
    }

    /// The interpreter of `.py` files: a name that is looked up, or a path. Default: the interpreter that the first
    /// line of the file names by its path, else `python3`.
    #[must_use]
    pub fn python(mut self, interpreter: impl Into<OsString>) -> Self {
        self.0.python = Some(interpreter.into());
        self
    }

    /// Where interpreters are looked up, in the form of `PATH`. Default [`toolpost_sandbox::SYSTEM_SEARCH_PATH`].
    #[must_use]
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.0.search_path = Some(path.into());
        self
    }

    /// A file or folder of the host that programs may read at its own path. A program reads its own directory, with the
    /// modules in it, without that, unless the directory is not its own
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

    /// The folder in which what programs tell of themselves is kept in the file `executables-v1.json`: by path, time of
    /// change and size, those of modules beside a script, and how programs are run. It is made if missing. Default none: then every start asks every program. A file that
    /// cannot be read is ignored and replaced.
    #[must_use]
    pub fn cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.cache = Some(folder.into());
        self
    }

    /// Protects files and directories of the host, each with everything beneath, from what runs hand back
    /// ([`toolpost_sandbox::Sandbox::protect`]).
    #[must_use]
    pub fn protect(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.0.protected.extend(paths);
        self
    }

    /// Sets a check that runs directly before each start of a program, for discovery too. Default none.
    #[must_use]
    pub fn start_check(mut self, check: StartCheck) -> Self {
        self.0.start_check = Some(check);
        self
    }

    /// Grants the programs paths, variables and hosts, for discovery too. A level and a working directory among the grants
    /// win over [`level`](Self::level) and the directory of a call. The values of variables are masked in all that the
    /// programs print. Default nothing.
    #[must_use]
    pub fn granted(mut self, granted: Granted) -> Self {
        self.0.masks = Masks::new(granted.values().map(Secret::new));
        self.0.granted = granted;
        self
    }

    /// Asks all programs what they have, at the same time, and gives the source. What is wrong with a program costs only
    /// that program: [`Executables::diagnostics`] says which and why. Needs a tokio runtime with time.
    pub async fn discover(mut self) -> Executables {
        self.0.level = self.0.granted.grants().level.unwrap_or(self.0.level);
        Executables::discovered(Arc::new(self.0)).await
    }
}
