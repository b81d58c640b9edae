//! `Sandbox`: a level, limits, files and an environment, and the calls that run a program under them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::level::shorten;
use crate::writer::{ChangeSet, lookup_beneath};
use crate::{
    ApplyMode, Backend, BackendRequest, Build, BuildCache, Cancel, DirectoryRules, Egress, Error,
    FoundLanguage, Host, Language, Level, Limits, Modules, Need, Outcome, Processes, Program,
    ProtectedEntryKind, ProtectedPath, Ready, Repeat, RunChanges, Running, SandboxEvent, Source, Stdin,
    Workspace, adds_git_driver,
};

/// The default search path for programs, and `PATH` inside the sandbox.
pub const SYSTEM_SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// The largest source code in bytes; more belongs into a file of the workspace.
pub(crate) const MAX_CODE_BYTES: u64 = 8 << 20;
/// The largest size of arguments and environment in bytes. The kernel's own limit depends on the stack limit.
const MAX_ARGUMENTS_BYTES: u64 = 1 << 20;
/// The longest argument: the kernel's `MAX_ARG_STRLEN` without the final NUL.
const MAX_ARGUMENT_BYTES: u64 = (128 << 10) - 1;

/// Variables with which a caller could redirect the interpreter, the linker or git to other code.
const REJECTED_VARIABLES: [&str; 21] = [
    "BASH_ENV",
    "ENV",
    "SHELLOPTS",
    "BASHOPTS",
    "PS4",
    "PROMPT_COMMAND",
    "IFS",
    "GCONV_PATH",
    "LOCPATH",
    "NLSPATH",
    "HOSTALIASES",
    "RES_OPTIONS",
    "GETCONF_DIR",
    "NODE_OPTIONS",
    "NODE_PATH",
    "PERL5OPT",
    "PERL5LIB",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "GLIBC_TUNABLES",
    "MALLOC_TRACE",
];
const REJECTED_PREFIXES: [&str; 5] = ["LD_", "DYLD_", "PYTHON", "GIT_", "BASH_FUNC_"];
/// The variable with which Python writes no byte code.
const NO_BYTECODE: &str = "PYTHONDONTWRITEBYTECODE";
/// Variables of the `PYTHON` and `GIT_` families that only change what a program prints or records.
const HARMLESS_VARIABLES: [&str; 8] = [
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMITTER_EMAIL",
    NO_BYTECODE,
];

/// The settings of a run. Start with [`Sandbox::new`], end with [`Sandbox::run`].
///
/// One value serves many runs, also at the same time.
#[derive(Debug, Clone, Default)]
pub struct Sandbox {
    pub(crate) level: Option<Level>,
    pub(crate) allow_degraded: bool,
    pub(crate) limits: Option<Limits>,
    pub(crate) workspace: Workspace,
    pub(crate) directory: Option<String>,
    pub(crate) files: Vec<(String, Source)>,
    pub(crate) environment: Variables,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) stdin: Stdin,
    pub(crate) read_only: Vec<PathBuf>,
    pub(crate) read_write: Vec<PathBuf>,
    /// The names of variables with secret values.
    pub(crate) raw_variables: Vec<String>,
    pub(crate) search_path: Option<OsString>,
    /// The operator's home directory.
    pub(crate) home: Option<PathBuf>,
    /// Host paths that a program needs, of any origin.
    pub(crate) needs: Vec<Need>,
    pub(crate) host: Option<Host>,
    pub(crate) backend: Option<Arc<dyn Backend>>,
    pub(crate) build_limits: Option<Limits>,
    pub(crate) build_cache: Option<BuildCache>,
    pub(crate) egress: Option<Egress>,
    pub(crate) modules: Vec<Modules>,
    pub(crate) apply: ApplyMode,
    pub(crate) allowed: Vec<PathBuf>,
    pub(crate) layers: Option<PathBuf>,
    pub(crate) repeat: Repeat,
    pub(crate) changes: Option<RunChanges>,
    /// Whether no other run applies changes of the host directory during this one.
    pub(crate) is_alone: bool,
    /// Host paths that apply never changes, with their descendants. They are absolute and contain no symbolic
    /// links.
    pub(crate) protected: Vec<ProtectedPath>,
}

/// Variables of a program. Debug output hides the values.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Variables(Vec<(String, OsString)>);

impl std::ops::Deref for Variables {
    type Target = Vec<(String, OsString)>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for Variables {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl std::fmt::Debug for Variables {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

// `Sandbox` is never modified by a run. A backend handles its own state after a panic.
impl std::panic::RefUnwindSafe for Sandbox {}
impl std::panic::UnwindSafe for Sandbox {}

impl Sandbox {
    /// Uses the best level of this host, default limits, a fresh workspace, a clean environment and no input.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs a program without confinement. Only for programs as trusted as the host program.
    ///
    /// The program has the host program's user and rights. Limits hold and the environment is clean.
    /// Everything that the program started dies with it and with the host program. That uses a process
    /// namespace where the host has one, else a cgroup, else a search for its descendants; the report shows
    /// which ([`crate::Layer::TreeKill`]). [`Sandbox::read_only`] has no effect.
    pub fn unconfined() -> Self {
        Self::new().level(Level::Unconfined)
    }

    /// Requires a level. Defaults to the best available one, which the report names.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// Allows a lower level than the required one. Default no.
    ///
    /// Without it, a host that lacks the level returns [`Error::LevelUnavailable`]. The report names the
    /// level that was used.
    #[must_use]
    pub fn allow_degraded(mut self, allow: bool) -> Self {
        self.allow_degraded = allow;
        self
    }

    /// Sets all limits. Defaults to those of the level ([`Limits::for_level`]).
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// A sandbox with only the level, host and search path of this one.
    #[must_use]
    pub fn same_host(&self) -> Self {
        Self {
            level: self.level,
            allow_degraded: self.allow_degraded,
            host: self.host.clone(),
            search_path: self.search_path.clone(),
            home: self.home.clone(),
            ..Self::new()
        }
    }

    /// The limits that the caller set.
    pub fn own_limits(&self) -> Option<&Limits> {
        self.limits.as_ref()
    }

    /// The egress allowlist that the caller set.
    pub fn own_egress(&self) -> Option<&Egress> {
        self.egress.as_ref()
    }

    /// Finds the program that runs or builds a language, and its version.
    ///
    /// The query of the version runs in a sandbox of the same level and host with small limits. It is cached until
    /// the program changes.
    ///
    /// # Errors
    /// [`Error::LanguageMissing`] if the search path has none, [`Error::ProgramNotFound`] if it does not run.
    pub fn find_language(&self, language: Language) -> Result<FoundLanguage, Error> {
        crate::platform::find_language(language, self)
    }

    /// Finds the installer of a language's packages, without arguments: Python itself, or `npm`.
    ///
    /// The text identifies the interpreter: its path, version, time and size.
    ///
    /// # Errors
    /// Errors of [`Sandbox::find_language`].
    pub fn find_installer(&self, language: Language) -> Result<(Ready, String), Error> {
        crate::platform::find_installer(language, self)
    }

    /// Returns the limits in force when a run gets the level `given`.
    ///
    /// These are the limits that the caller set, else those of the required level, else those of `given`.
    pub fn limits_at(&self, given: Level) -> Limits {
        self.limits.clone().unwrap_or_else(|| Limits::for_level(self.level.unwrap_or(given)))
    }

    /// Sets the workspace. Default [`Workspace::Fresh`].
    #[must_use]
    pub fn workspace(mut self, workspace: Workspace) -> Self {
        self.workspace = workspace;
        self
    }

    /// Sets when the changes of a run in [`Workspace::Host`] reach the host directory. Default [`ApplyMode::Now`].
    #[must_use]
    pub fn apply(mut self, mode: ApplyMode) -> Self {
        self.apply = mode;
        self
    }

    /// Allows apply to change these protected paths of a host directory, with their descendants. Default
    /// none.
    ///
    /// Paths are relative to the host directory.
    #[must_use]
    pub fn allow_protected(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.allowed.extend(paths);
        self
    }

    /// Sets the directory for the private layers of host directories.
    ///
    /// It is created if missing, for this user alone. Defaults to a directory in the directory for temporary
    /// files. If it is on the file system of the host directory, apply moves files instead of copying them.
    #[must_use]
    pub fn layers(mut self, directory: impl Into<PathBuf>) -> Self {
        self.layers = Some(directory.into());
        self
    }

    /// Lists the changes of host directories with those of a run, which are undone together. Default none: each run can
    /// be undone until the next one in its directory.
    #[must_use]
    pub fn run_changes(mut self, changes: RunChanges) -> Self {
        self.changes = Some(changes);
        self
    }

    /// Sets whether [`Sandbox::run`] repeats a program whose changes conflict with those of another run. Default
    /// [`Repeat::Never`].
    #[must_use]
    pub fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = repeat;
        self
    }

    /// Sets the directory in which the program starts. Defaults to the workspace.
    ///
    /// It is an existing path relative to the workspace, without `..`. It does not change which files the
    /// program sees.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Puts a file into the workspace before the start.
    ///
    /// The name is a relative path without `..`; missing directories are created. An existing file is never
    /// overwritten, and symbolic links are not followed.
    #[must_use]
    pub fn file(mut self, name: impl Into<String>, source: Source) -> Self {
        self.files.push((name.into(), source));
        self
    }

    /// Sets a variable in the otherwise clean environment (`PATH`, `HOME`, `LANG`, `TMPDIR`).
    ///
    /// Variables that redirect an interpreter, the linker or git to other code are rejected by name.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the arguments of [`Program::Code`], for example `sys.argv[1:]` in Python. Default none.
    ///
    /// [`Program::Argv`] has its own arguments. The SQLite shell takes none.
    #[must_use]
    pub fn arguments<T: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the program's standard input. Default [`Stdin::Empty`].
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Makes a host file or directory readable at its own path, with its descendants.
    ///
    /// Level `standard` needs it for most of `/etc` and `/opt`.
    #[must_use]
    pub fn read_only(mut self, path: impl Into<PathBuf>) -> Self {
        self.read_only.push(path.into());
        self
    }

    /// Makes host paths readable that a program needs, as far as their origin allows it.
    ///
    /// [`crate::Report::not_shown`] lists the others.
    #[must_use]
    pub fn needs(mut self, needs: impl IntoIterator<Item = Need>) -> Self {
        self.needs.extend(needs);
        self
    }

    /// Sets the home directory of the operator, whose toolchains programs may use. Default none.
    ///
    /// A virtual environment of the workspace names its interpreter: it is shown if the interpreter lies in a system
    /// directory or a known toolchain root, such as `~/.pyenv/versions`. Credentials beside it are never shown.
    #[must_use]
    pub fn home(mut self, directory: impl Into<PathBuf>) -> Self {
        self.home = Some(directory.into());
        self
    }

    /// Makes a host directory writable at its own path, with its descendants.
    ///
    /// The program writes to the directory itself, without a private layer. Existing protected paths stay
    /// read-only, as in [`Workspace::LiveHost`].
    #[must_use]
    pub fn read_write(mut self, path: impl Into<PathBuf>) -> Self {
        self.read_write.push(path.into());
        self
    }

    /// Sets a variable whose value is a secret. [`crate::Report::raw_variables`] lists its name.
    #[must_use]
    pub fn raw_variable(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        let name = name.into();
        self.raw_variables.push(name.clone());
        self.env(name, value)
    }

    /// Protects host files and directories, with their descendants.
    ///
    /// No upload and no artifact replaces them. Paths are absolute and contain no symbolic links. A missing
    /// path is protected too.
    #[must_use]
    pub fn protect(mut self, paths: impl IntoIterator<Item = impl Into<ProtectedPath>>) -> Self {
        let begin = self.protected.len();
        self.protected.extend(paths.into_iter().map(Into::into));
        let mut new = self.protected.iter().skip(begin);
        // Python programs would write caches beside protected modules, and each one would be a denied change.
        if new.any(|one| matches!(one, ProtectedPath::Code { .. }))
            && self.environment.iter().all(|(name, _)| name != NO_BYTECODE)
        {
            return self.env(NO_BYTECODE, "1");
        }
        self
    }

    /// Sets the search path for programs on the host, in the form of `PATH`. Default [`SYSTEM_SEARCH_PATH`].
    ///
    /// This crate reads the environment's `PATH` only to judge changes ([`crate::DirectoryRules`]). An interpreter outside the system directories is mounted with its
    /// installation.
    #[must_use]
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.search_path = Some(path.into());
        self
    }

    /// Sets the limits of a build, separate from those of the run. Default [`Limits::for_builds`].
    #[must_use]
    pub fn build_limits(mut self, limits: Limits) -> Self {
        self.build_limits = Some(limits);
        self
    }

    /// Caches built programs in a host directory. Default none: each run builds its code.
    #[must_use]
    pub fn build_cache(mut self, cache: BuildCache) -> Self {
        self.build_cache = Some(cache);
        self
    }

    /// Gives the program network access to an egress allowlist, which a proxy enforces. Default none.
    ///
    /// Without it, a program has no network from level `standard` upward.
    ///
    /// It needs a network namespace or a container. Where the host lacks one, and at levels below `standard`,
    /// a run returns [`Error::EgressUnavailable`], also with [`Sandbox::allow_degraded`].
    #[must_use]
    pub fn egress(mut self, egress: Egress) -> Self {
        self.egress = Some(egress);
        self
    }

    /// Makes installed packages importable for code in their language.
    ///
    /// They are mounted read-only. Python, JavaScript and TypeScript find them before the packages of the
    /// host. Other programs do not see them.
    #[must_use]
    pub fn modules(mut self, modules: impl Into<Modules>) -> Self {
        self.modules.push(modules.into());
        self
    }

    /// Puts a host directory first in the search path, so set [`Sandbox::search_path`] before.
    ///
    /// With the programs of a virtual environment, Python has all of its packages.
    #[must_use]
    pub fn search_first(mut self, directory: impl Into<OsString>) -> Self {
        let mut search = directory.into();
        search.push(":");
        search.push(self.search_path.as_deref().unwrap_or(SYSTEM_SEARCH_PATH.as_ref()));
        self.search_path = Some(search);
        self
    }

    /// Replaces the facts of [`Host::probe`], for tests of hosts with fewer features.
    ///
    /// Facts that claim more than the host has end in [`Error::Setup`], never in a weaker sandbox.
    #[doc(hidden)]
    #[must_use]
    pub fn host(mut self, host: Host) -> Self {
        self.host = Some(host);
        self
    }

    /// Sets the backend that runs the program. Default [`Processes`].
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Runs a program to its end and returns its outcome. Blocks.
    ///
    /// [`Cancel`] ends the run from another thread. `on_event` receives output as it arrives; a slow callback
    /// slows the program down.
    pub fn run(
        &self,
        program: &Program,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(SandboxEvent<'_>),
    ) -> Result<Outcome, Error> {
        let backend = self.checked_backend(program)?;
        let mut outcome = backend.run(&BackendRequest::new(self, program, cancel), on_event)?;
        if outcome.applied.as_ref().is_some_and(|applied| applied.is_postponed) {
            let alone = Self { repeat: Repeat::Never, is_alone: true, ..self.clone() };
            outcome = backend.run(&BackendRequest::new(&alone, program, cancel), on_event)?;
        }
        outcome.report.raw_variables.clone_from(&self.raw_variables);
        if outcome.report.backend.is_empty() {
            backend.name().clone_into(&mut outcome.report.backend);
        }
        Ok(outcome)
    }

    /// Returns the backend if it supports this request.
    fn checked_backend(&self, program: &Program) -> Result<&dyn Backend, Error> {
        self.check(program)?;
        let backend: &dyn Backend = self.backend.as_deref().unwrap_or(&Processes);
        if self.egress.is_some() && !backend.serves_egress() {
            return Err(Error::EgressUnavailable {
                reason: format!("the backend `{}` does not support an egress allowlist", backend.name()),
                fix: "use the backend `process`, or run without `egress`".into(),
            });
        }
        if let Some(path) = self.read_write.first().filter(|_| !backend.serves_writable()) {
            let reason = format!("the backend `{}` makes no directory of the host writable", backend.name());
            return Err(Error::Workspace { path: path.clone(), reason });
        }
        Ok(backend)
    }

    /// Starts a program with live standard streams, at the same levels and limits as [`Sandbox::run`].
    ///
    /// The wall-time limit holds too. The caller reads the streams, so [`Limits::stdout`], [`Limits::stderr`]
    /// and [`Limits::output_total`] have no effect. Changes of the workspace are not listed. With
    /// [`Sandbox::stdin`] the program reads that input and the caller gets no stdin stream.
    ///
    /// Errors before the program's first process come from here. Later errors, such as a failed set-up step,
    /// come from [`Running::wait`] after both streams have ended.
    pub fn start(&self, program: &Program) -> Result<Running, Error> {
        self.checked_backend(program)?;
        let (sandbox, program) = (self.clone(), program.clone());
        Running::start(move |cancel, streams| {
            let backend: &dyn Backend = sandbox.backend.as_deref().unwrap_or(&Processes);
            let mut outcome = backend.start(&BackendRequest::new(&sandbox, &program, cancel), streams)?;
            outcome.report.raw_variables.clone_from(&sandbox.raw_variables);
            Ok(outcome)
        })
    }

    /// Builds code of a compiled language in its own sandbox on this host, for several runs.
    ///
    /// [`Sandbox::run`] builds such code too. Code that needs no build is returned unchanged.
    pub fn build(&self, program: &Program, cancel: &Cancel) -> Result<Build, Error> {
        self.check(program)?;
        let built = crate::platform::build(self, program, cancel)?;
        Ok(built.unwrap_or_else(|| Build::Ready { program: program.clone(), notes: Vec::new() }))
    }

    fn check(&self, program: &Program) -> Result<(), Error> {
        self.check_settings()?;
        if let (Program::Code { language: Language::Sqlite, .. }, [first, ..]) = (program, &*self.arguments) {
            return Err(invalid_name(
                "argument",
                &first.to_string_lossy(),
                "code in sqlite takes no arguments",
            ));
        }
        let size = check_arguments(&self.arguments, self.environment_size())?;
        check_program(program, size)
    }

    /// The size of the caller's variables in the program's memory, pointers included.
    fn environment_size(&self) -> u64 {
        self.environment.iter().map(|(name, value)| (name.len() + value.len()) as u64 + 10).sum()
    }

    /// Checks limits, file names and variables. Every start does the same check.
    pub fn check_settings(&self) -> Result<(), Error> {
        if let Some(limits) = &self.limits {
            limits.check()?;
        }
        self.build_limits.iter().try_for_each(Limits::check)?;
        self.check_files()?;
        self.check_environment()?;
        self.check_egress()
    }

    /// Checks the egress allowlist, and that no variable is set twice.
    fn check_egress(&self) -> Result<(), Error> {
        let Some(egress) = &self.egress else { return Ok(()) };
        egress.check()?;
        for placeholder in egress.placeholders() {
            check_variable(placeholder.variable())?;
        }
        for name in egress.variables() {
            if self.environment.iter().any(|(own, _)| own == name) {
                return Err(invalid_name("variable", name, "the egress proxy sets it (`Sandbox::egress`)"));
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), Error> {
        if let Some(directory) = &self.directory {
            check_file_name(directory)?;
        }
        if let (Workspace::ReadOnlyHost(path), false) = (&self.workspace, self.files.is_empty()) {
            let reason = "files cannot be put into a read-only directory".into();
            return Err(Error::Workspace { path: path.clone(), reason });
        }
        for (index, (name, _)) in self.files.iter().enumerate() {
            check_file_name(name)?;
            let folded = name.to_lowercase();
            // A model may choose the name: an upload must not write where the program must not.
            if let Workspace::Host(host) | Workspace::LiveHost(host) = &self.workspace
                && self.protects(host, &folded)
            {
                return Err(invalid_name("file name", name, "it is a protected path of the host directory"));
            }
            if self.files[..index].iter().any(|(other, _)| other.to_lowercase() == folded) {
                return Err(invalid_name("file name", name, "two uploads have this name, ignoring case"));
            }
        }
        self.check_protected()
    }

    /// Rejects uploads into a host directory that host programs would execute or obey.
    fn check_protected(&self) -> Result<(), Error> {
        let Workspace::Host(directory) = &self.workspace else { return Ok(()) };
        let protected = self.protected.iter().filter(|protected| !protected.is_whole()).cloned();
        let rules = DirectoryRules::of_host(&real(directory), protected, []);
        let lookup = |path: &Path| lookup_beneath(directory, path);
        let uploads =
            self.files.iter().map(|(name, _)| (PathBuf::from(name), Some(ProtectedEntryKind::File)));
        let changes = ChangeSet::new(&lookup, uploads);
        for (name, source) in &self.files {
            if let Some(rule) = rules.protection(Path::new(name), &changes) {
                return Err(invalid_name("file name", name, &format!("the path is protected, {rule}")));
            }
            let adds_driver = match source {
                Source::Bytes(bytes) => adds_git_driver(Path::new(name), Vec::new, bytes),
                // The operator's own file.
                Source::Path(_) => false,
            };
            if adds_driver {
                return Err(invalid_name("file name", name, "git executes the driver that the file names"));
            }
        }
        Ok(())
    }

    /// Whether an upload's case-folded name is at or beneath a path of [`Sandbox::protect`].
    fn protects(&self, host: &Path, folded: &str) -> bool {
        let host = real(host);
        let whole = self.protected.iter().filter(|protected| protected.is_whole());
        whole.filter_map(|protected| protected.path().strip_prefix(&host).ok()).any(|path| {
            let path = path.to_string_lossy().to_lowercase();
            Path::new(folded).starts_with(&path) || Path::new(&path).starts_with(folded)
        })
    }

    fn check_environment(&self) -> Result<(), Error> {
        for (name, value) in self.environment.iter() {
            check_variable(name)?;
            let bytes = value.as_encoded_bytes();
            if bytes.contains(&0) {
                return Err(invalid_name("variable", name, "its value has a NUL byte"));
            }
            let hint = "pass it in a file or on standard input";
            check_size("variable", (name.len() + bytes.len()) as u64 + 1, MAX_ARGUMENT_BYTES, hint)?;
            if name == "PATH"
                && bytes
                    .split(|byte| *byte == b':')
                    .any(|directory| !directory.starts_with(b"/") || has_dots(directory))
            {
                return Err(invalid_name(
                    "variable",
                    name,
                    "each directory in it must be absolute and without `..`",
                ));
            }
        }
        let hint = "pass large values in a file or on standard input";
        check_size("environment", self.environment_size(), MAX_ARGUMENTS_BYTES, hint)
    }
}

/// Checks the name of a variable.
pub(crate) fn check_variable(name: &str) -> Result<(), Error> {
    let valid = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if !valid {
        return Err(invalid_name("variable", name, "a name has letters, digits and underscores"));
    }
    if is_rejected(name) {
        return Err(invalid_name("variable", name, "it can redirect a program to other code"));
    }
    Ok(())
}

fn has_dots(directory: &[u8]) -> bool {
    directory.split(|byte| *byte == b'/').any(|part| part == b".." || part == b".")
}

fn is_rejected(name: &str) -> bool {
    !HARMLESS_VARIABLES.contains(&name)
        && (REJECTED_VARIABLES.contains(&name)
            || REJECTED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

fn invalid_name(what: &'static str, name: &str, reason: &str) -> Error {
    Error::InvalidName { what, name: shorten(name), reason: reason.into() }
}

/// Checks a file name that crosses between host and workspace.
pub(crate) fn check_file_name(name: &str) -> Result<(), Error> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.starts_with('/') {
        "it must be relative to the workspace"
    } else if name.len() > 1024 {
        "it is longer than 1,024 bytes"
    } else if name.chars().any(|letter| letter.is_control() || is_invisible(letter)) {
        "it has a control or invisible character"
    } else if name.contains('\\') {
        "it has a backslash, a path separator on other systems"
    } else if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        "a component is empty, `.` or `..`"
    } else if name.split('/').any(|part| part.len() > 255) {
        "a component is longer than 255 bytes"
    } else if name.split('/').any(|part| part.starts_with('-')) {
        "a component begins with `-`, like an option"
    } else if name.split('/').any(is_device) {
        "a component is a device name on other systems"
    } else {
        return Ok(());
    };
    Err(invalid_name("file name", name, reason))
}

/// Characters that make two different names look the same or reverse their reading direction.
pub(crate) fn is_invisible(letter: char) -> bool {
    matches!(letter,
        // The soft hyphen, fillers and the Mongolian vowel separator.
        '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
        // Zero-width characters, line separators and direction marks.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        // Tags, which can encode a whole text.
        | '\u{e0000}'..='\u{e007f}')
}

fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).to_ascii_uppercase();
    matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || (stem.len() == 4
            && (stem.starts_with("COM") || stem.starts_with("LPT"))
            && stem.ends_with(|digit: char| digit.is_ascii_digit()))
}

/// Checks a program. `environment` is the size of its variables, which share the kernel's limit with the
/// arguments.
pub(crate) fn check_program(program: &Program, environment: u64) -> Result<(), Error> {
    match program {
        Program::Argv(arguments) => {
            if arguments.first().is_none_or(|first| first.is_empty()) {
                return Err(invalid_name("program", "", "the argument list is empty"));
            }
            check_arguments(arguments, environment).map(drop)
        }
        // `build` checked the code.
        Program::Ready(_) => Ok(()),
        Program::Code { source, .. } => {
            check_size("code", source.len() as u64, MAX_CODE_BYTES, "upload large data as a file")?;
            match source.find('\0') {
                None => Ok(()),
                Some(place) => Err(invalid_name("code", "", &format!("it has a NUL byte at offset {place}"))),
            }
        }
    }
}

/// Checks arguments and returns their size plus `beside`, which shares the kernel's limit.
fn check_arguments(arguments: &[OsString], beside: u64) -> Result<u64, Error> {
    const HINT: &str = "pass it in a file or on standard input";
    let mut total = beside;
    for argument in arguments {
        let size = argument.len() as u64;
        if argument.as_encoded_bytes().contains(&0) {
            return Err(invalid_name("argument", &argument.to_string_lossy(), "it has a NUL byte"));
        }
        check_size("argument", size, MAX_ARGUMENT_BYTES, HINT)?;
        total += size + 9;
    }
    check_size("argument list with the environment", total, MAX_ARGUMENTS_BYTES, HINT)?;
    Ok(total)
}

fn check_size(what: &'static str, size: u64, maximum: u64, hint: &'static str) -> Result<(), Error> {
    if size > maximum {
        return Err(Error::TooLarge { what, size, maximum, hint });
    }
    Ok(())
}

/// The path without links. A missing working directory is a separate error.
fn real(directory: &Path) -> PathBuf {
    directory.canonicalize().unwrap_or_else(|_| directory.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_file_names_are_rejected() {
        let long = "a".repeat(256);
        let deep = "a/".repeat(600);
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a//b",
            "./a",
            "a\0b",
            "a\nb",
            "-rf",
            "d/-x",
            "CON",
            "aux.txt",
            "lpt1",
            "a\\b",
            "x\u{202e}gnp.exe",
            "x\u{2028}y",
            "x\u{e0041}",
            "\u{1b}[2J",
            &long,
            &deep,
        ] {
            assert!(check_file_name(name).is_err(), "{name:?}");
        }
        for name in ["data.csv", "a/b/c.txt", "résumé.pdf", ".hidden", "console.log", "with space"] {
            check_file_name(name).unwrap();
        }
    }

    #[test]
    fn variables_that_redirect_programs_are_rejected() {
        for name in [
            "LD_PRELOAD",
            "PYTHONSTARTUP",
            "PYTHONPATH",
            "NODE_OPTIONS",
            "BASH_ENV",
            "GIT_SSH_COMMAND",
            "A=B",
            "",
            "1A",
        ] {
            let sandbox = Sandbox::new().env(name, "x");
            assert!(sandbox.check_environment().is_err(), "{name}");
        }
        for path in [".:/bin", "/bin:", "bin", "/usr/../tmp", "/bin::/usr/bin"] {
            assert!(Sandbox::new().env("PATH", path).check_environment().is_err(), "{path}");
        }
        assert!(matches!(
            Sandbox::new().env("A", "x".repeat(200_000)).check_environment().unwrap_err(),
            Error::TooLarge { what: "variable", .. }
        ));
        let many = (0..40)
            .fold(Sandbox::new(), |sandbox, number| sandbox.env(format!("A{number}"), "x".repeat(100_000)));
        assert!(matches!(many.check_environment().unwrap_err(), Error::TooLarge { what: "environment", .. }));
        for name in ["TOKEN", "GIT_AUTHOR_NAME", "PYTHONHASHSEED", "_x"] {
            Sandbox::new().env(name, "x").check_environment().unwrap();
        }
        Sandbox::new().env("PATH", "/opt/bin:/bin").check_environment().unwrap();
    }

    #[test]
    fn uploads_cannot_reach_protected_paths() {
        for name in
            [".git/hooks/pre-commit", ".GIT/config", ".git", ".bashrc", ".claude/settings.json", ".mcp.json"]
        {
            let sandbox = Sandbox::new().file(name, Source::Bytes(vec![]));
            sandbox.check_files().unwrap();
            let sandbox = sandbox.workspace(Workspace::Host("/x".into()));
            assert!(sandbox.check_files().is_err(), "{name}");
        }
        let sandbox = Sandbox::new().workspace(Workspace::Host("/x".into()));
        sandbox
            .file("CLAUDE.md.txt", Source::Bytes(vec![]))
            .file(".github/x", Source::Bytes(vec![]))
            .check_files()
            .unwrap();
    }

    #[test]
    fn uploads_cannot_reach_paths_that_the_caller_protects() {
        let protected = ["/x/way.toml", "/x/server", "/other"].map(PathBuf::from);
        let sandbox = Sandbox::new().workspace(Workspace::Host("/x".into())).protect(protected);
        for (name, is_accepted) in [
            ("way.toml", false),
            ("Way.TOML", false),
            ("way.toml/a", false),
            ("server", false),
            ("server/lib/a.py", false),
            ("way.toml.txt", true),
            ("servers/a.py", true),
            ("other", true),
        ] {
            let upload = sandbox.clone().file(name, Source::Bytes(vec![]));
            assert_eq!(upload.check_files().is_ok(), is_accepted, "{name}");
            upload.workspace(Workspace::Fresh).check_files().unwrap();
        }
    }

    #[test]
    fn uploads_cannot_differ_only_in_case() {
        let sandbox =
            Sandbox::new().file("a.txt", Source::Bytes(vec![])).file("A.TXT", Source::Bytes(vec![]));
        assert!(sandbox.check_files().is_err());
    }

    #[test]
    fn invalid_programs_are_rejected() {
        let code = |text: String| check_program(&Program::code(Language::Python, text), 0);
        assert!(matches!(code("a".repeat(9 << 20)).unwrap_err(), Error::TooLarge { what: "code", .. }));
        assert!(code("a\0b".into()).unwrap_err().to_string().contains("offset 1"));
        assert!(matches!(
            check_program(&Program::argv(["true".to_owned(), "x".repeat(200_000)]), 0),
            Err(Error::TooLarge { .. })
        ));
        assert!(check_program(&Program::argv(vec!["x".repeat(100_000); 20]), 0).is_err());
        assert!(check_program(&Program::argv(["a"]), 2 << 20).is_err(), "variables share the kernel's limit");
        assert!(check_program(&Program::argv(["a\0"]), 0).is_err());
        assert!(check_program(&Program::argv(Vec::<String>::new()), 0).is_err());
    }
}
