//! The request: a level, limits, files and an environment, and the one call that runs a program under them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::level::shorten;
use crate::writer::{ChangeSet, lookup_beneath};
use crate::{
    ApplyMode, Backend, Build, BuildCache, Cancel, Egress, EntryKind, Environment, Error, Event, Host,
    Installed, Language, Level, Limits, Outcome, Processes, Program, Request, Running, Source, Stdin,
    Workspace, adds_git_driver, protection,
};

/// The folders in which programs are looked up unless [`Sandbox::search_path`] says otherwise, and `PATH` inside.
pub const SYSTEM_SEARCH_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// Code larger than this is refused: it should be a file of the workspace.
pub(crate) const MAXIMUM_CODE: u64 = 8 << 20;
/// Arguments and environment together; the kernel's own limit depends on the stack limit of the host.
const MAXIMUM_ARGUMENTS: u64 = 1 << 20;
/// One argument; the kernel's `MAX_ARG_STRLEN` less the end.
const MAXIMUM_ARGUMENT: u64 = (128 << 10) - 1;

/// Variables through which a caller could make the interpreter, the linker or git run something else.
const REFUSED_VARIABLES: [&str; 21] = [
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
const REFUSED_PREFIXES: [&str; 5] = ["LD_", "DYLD_", "PYTHON", "GIT_", "BASH_FUNC_"];
/// Variables of the `PYTHON` and `GIT_` families that only change what is printed or recorded.
const HARMLESS_VARIABLES: [&str; 8] = [
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONUTF8",
    "GIT_AUTHOR_NAME",
    "GIT_AUTHOR_EMAIL",
    "GIT_COMMITTER_NAME",
    "GIT_COMMITTER_EMAIL",
    "PYTHONDONTWRITEBYTECODE",
];

/// How a program is to be run. Start with [`Sandbox::new`], end with [`Sandbox::run`]; a value can be used for many
/// runs, also at the same time.
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
    /// The names of variables whose values are secrets.
    pub(crate) raw_variables: Vec<String>,
    pub(crate) search_path: Option<OsString>,
    pub(crate) host: Option<Host>,
    pub(crate) backend: Option<Arc<dyn Backend>>,
    pub(crate) build_limits: Option<Limits>,
    pub(crate) build_cache: Option<BuildCache>,
    pub(crate) egress: Option<Egress>,
    pub(crate) packages: Vec<Installed>,
    pub(crate) apply: ApplyMode,
    pub(crate) allowed: Vec<PathBuf>,
    pub(crate) layers: Option<PathBuf>,
    /// Host paths that apply never changes, with everything beneath: absolute, without symbolic links.
    pub(crate) protected: Vec<PathBuf>,
}

/// Variables of a program; debug output shows no value.
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

// A sandbox is only read; what a backend keeps of a run that panicked is the backend's own business.
impl std::panic::RefUnwindSafe for Sandbox {}
impl std::panic::UnwindSafe for Sandbox {}

impl Sandbox {
    /// The best level of this host, default limits, a fresh workspace, a clean environment, no input.
    pub fn new() -> Self {
        Self::default()
    }

    /// No confinement, for a program that the operator trusts as much as the host program: it sees the host as the host
    /// program does, with its user and rights. Limits hold, the environment is clean, and everything that the program
    /// started dies with it, and with the host program: by a process namespace where the host gives one, else by a
    /// cgroup or by following its descendants, and the report says how much of that was had
    /// ([`crate::Layer::TreeKill`]). [`Sandbox::read_only`] has no effect.
    pub fn unconfined() -> Self {
        Self::new().level(Level::Unconfined)
    }

    /// Requires a level. Without it the best available one is taken, and the report says which.
    #[must_use]
    pub fn level(mut self, level: Level) -> Self {
        self.level = Some(level);
        self
    }

    /// Whether a lower level may be given when the host cannot give the one that was named. Default no: then
    /// [`Error::LevelUnavailable`]. The report says what was given.
    #[must_use]
    pub fn allow_degraded(mut self, allow: bool) -> Self {
        self.allow_degraded = allow;
        self
    }

    /// Sets the limits, all of them. Without it those of the level hold ([`Limits::for_level`]).
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// The limits that hold when a level is given: those that were set, else the column of the level that was named,
    /// else that of the level that is given.
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

    /// Admits protected paths of a host directory, relative to it, with everything beneath: apply changes them like any
    /// other. Default none.
    #[must_use]
    pub fn allow_protected(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.allowed.extend(paths);
        self
    }

    /// Sets the directory that holds the private layers of host directories; it is created if missing, for this user
    /// alone. Default one in the directory for temporary files. A layer on the file system of its host directory is
    /// applied by moving files.
    #[must_use]
    pub fn layers(mut self, directory: impl Into<PathBuf>) -> Self {
        self.layers = Some(directory.into());
        self
    }

    /// Sets the folder in which the program starts: a relative path beneath the workspace, without `..`, that exists.
    /// Default the workspace itself. What the program sees stays the same.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<String>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Puts a file into the workspace before the start. The name is a relative path without `..`; folders are made;
    /// a file that exists is never overwritten, and no symbolic link is followed.
    #[must_use]
    pub fn file(mut self, name: impl Into<String>, source: Source) -> Self {
        self.files.push((name.into(), source));
        self
    }

    /// Sets a variable of the program's otherwise clean environment (`PATH`, `HOME`, `LANG`, `TMPDIR`). Variables
    /// that make an interpreter, the linker or git run something else are refused by name.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets the arguments of [`Program::Code`], which it finds where its language has them, such as `sys.argv[1:]`.
    /// Default none. [`Program::Argv`] has its own, and SQL in the SQLite shell takes none.
    #[must_use]
    pub fn arguments<T: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = T>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// Sets what the program reads from standard input. Default [`Stdin::Empty`].
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Self {
        self.stdin = stdin;
        self
    }

    /// Makes a file or folder of the host readable at its own path, with everything beneath. It cannot be written. Level
    /// `standard` needs it for what is not shown of `/etc` and `/opt`.
    #[must_use]
    pub fn read_only(mut self, path: impl Into<PathBuf>) -> Self {
        self.read_only.push(path.into());
        self
    }

    /// Makes a directory of the host writable at its own path, with everything beneath. The program writes to the directory
    /// itself, without a private layer; protected paths in it that exist stay read-only, as in [`Workspace::LiveHost`].
    #[must_use]
    pub fn read_write(mut self, path: impl Into<PathBuf>) -> Self {
        self.read_write.push(path.into());
        self
    }

    /// Sets a variable whose value is a secret. Its name is in [`crate::Report::raw_variables`] of the run.
    #[must_use]
    pub fn raw_variable(mut self, name: impl Into<String>, value: impl Into<OsString>) -> Self {
        let name = name.into();
        self.raw_variables.push(name.clone());
        self.env(name, value)
    }

    /// Protects files and directories of the host, each with everything beneath: no upload and nothing that a run hands
    /// back replaces one. The paths are absolute and without symbolic links; one that is missing is protected too.
    #[must_use]
    pub fn protect(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.protected.extend(paths);
        self
    }

    /// Sets where programs are looked up on the host, in the form of `PATH`. Default [`SYSTEM_SEARCH_PATH`]: this
    /// crate reads no environment. An interpreter found outside the system folders is bound with its installation.
    #[must_use]
    pub fn search_path(mut self, path: impl Into<OsString>) -> Self {
        self.search_path = Some(path.into());
        self
    }

    /// Sets the limits of building code in a compiled language, apart from those of running it. Default
    /// [`Limits::for_builds`].
    #[must_use]
    pub fn build_limits(mut self, limits: Limits) -> Self {
        self.build_limits = Some(limits);
        self
    }

    /// Keeps what was built in a folder of the host and takes it from there. Default none: code is built each time.
    #[must_use]
    pub fn build_cache(mut self, cache: BuildCache) -> Self {
        self.build_cache = Some(cache);
        self
    }

    /// Gives the program a way out of its network: an allowlist, held by a proxy of the run's own. Default none: from
    /// level `standard` upward a program reaches nothing at all.
    ///
    /// It needs a network namespace, or a container. Where the host gives none, and at the levels below `standard`, which have the
    /// host's network, a run is refused with [`Error::EgressUnavailable`], also with [`Sandbox::allow_degraded`].
    #[must_use]
    pub fn egress(mut self, egress: Egress) -> Self {
        self.egress = Some(egress);
        self
    }

    /// Lets code of the packages' language use them: they are shown read-only, and Python, JavaScript and TypeScript find
    /// them where they look for modules, before what the host has installed. Other programs are given nothing.
    #[must_use]
    pub fn requirements(mut self, packages: Installed) -> Self {
        self.packages.push(packages);
        self
    }

    /// Uses the Python of an environment, with everything that is installed there: its programs come first in the search
    /// path ([`Sandbox::search_path`], which must be set before).
    #[must_use]
    pub fn environment(mut self, environment: &Environment) -> Self {
        let mut search = environment.programs().into_os_string();
        search.push(":");
        search.push(self.search_path.as_deref().unwrap_or(SYSTEM_SEARCH_PATH.as_ref()));
        self.search_path = Some(search);
        self
    }

    /// Uses other facts about the host than [`Host::probe`] found, for tests of poor hosts. Facts that claim more
    /// than the host has end in [`Error::Setup`], never in a weaker sandbox.
    #[doc(hidden)]
    #[must_use]
    pub fn host(mut self, host: Host) -> Self {
        self.host = Some(host);
        self
    }

    /// Sets who runs the program. Default [`Processes`].
    #[must_use]
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Runs a program to its end and gives back what it did. Blocks; [`Cancel`] ends it from another thread.
    /// `on_event` gets output while it comes and slows the program down if it is slow.
    pub fn run(
        &self,
        program: &Program,
        cancel: &Cancel,
        on_event: &mut dyn FnMut(Event<'_>),
    ) -> Result<Outcome, Error> {
        let backend = self.checked_backend(program)?;
        let mut outcome = backend.run(&Request::new(self, program, cancel), on_event)?;
        outcome.report.raw_variables.clone_from(&self.raw_variables);
        if outcome.report.backend.is_empty() {
            backend.name().clone_into(&mut outcome.report.backend);
        }
        Ok(outcome)
    }

    /// Who runs the program, which it can as far as shows before.
    fn checked_backend(&self, program: &Program) -> Result<&dyn Backend, Error> {
        self.check(program)?;
        let backend: &dyn Backend = self.backend.as_deref().unwrap_or(&Processes);
        if self.egress.is_some() && !backend.serves_egress() {
            return Err(Error::EgressUnavailable {
                reason: format!("the backend `{}` cannot hold an allowlist of hosts", backend.name()),
                fix: "use the backend `process`, or run without a network".into(),
            });
        }
        if let Some(path) = self.read_write.first().filter(|_| !backend.serves_writable()) {
            let reason = format!("the backend `{}` makes no directory of the host writable", backend.name());
            return Err(Error::Workspace { path: path.clone(), reason });
        }
        Ok(backend)
    }

    /// Starts a program whose standard streams are live, at the same levels and under the same limits as
    /// [`Sandbox::run`], wall time included. What the caller reads itself is not captured: [`Limits::stdout`],
    /// [`Limits::stderr`] and [`Limits::output_total`] have no effect, and the workspace is not looked through. With
    /// [`Sandbox::stdin`] the program gets that input, and there is none to write to.
    ///
    /// Errors that show before the program's first process exists come from here, others (a step of the set-up, a
    /// program that the kernel does not start) from [`Running::wait`], after streams that end at once.
    pub fn start(&self, program: &Program) -> Result<Running, Error> {
        self.checked_backend(program)?;
        let (sandbox, program) = (self.clone(), program.clone());
        Running::start(move |cancel, streams| {
            let backend: &dyn Backend = sandbox.backend.as_deref().unwrap_or(&Processes);
            let mut outcome = backend.start(&Request::new(&sandbox, &program, cancel), streams)?;
            outcome.report.raw_variables.clone_from(&sandbox.raw_variables);
            Ok(outcome)
        })
    }

    /// Builds code of a compiled language in a sandbox of its own, on this host, so that it can run more than once.
    /// [`Sandbox::run`] does the same when it gets such code. Code that needs no build comes back as it is.
    pub fn build(&self, program: &Program, cancel: &Cancel) -> Result<Build, Error> {
        self.check(program)?;
        let built = crate::platform::build(self, program, cancel)?;
        Ok(built.unwrap_or_else(|| Build::Ready { program: program.clone(), notes: Vec::new() }))
    }

    fn check(&self, program: &Program) -> Result<(), Error> {
        self.check_settings()?;
        if let (Program::Code { language: Language::Sqlite, .. }, [first, ..]) = (program, &*self.arguments) {
            return Err(refused("argument", &first.to_string_lossy(), "code in sqlite takes no arguments"));
        }
        let size = check_arguments(&self.arguments, self.environment_size())?;
        check_program(program, size)
    }

    /// The bytes that the caller's variables take in the memory of a program, each with its pointer.
    fn environment_size(&self) -> u64 {
        self.environment.iter().map(|(name, value)| (name.len() + value.len()) as u64 + 10).sum()
    }

    /// Whether the limits, file names and variables are acceptable; every start looks at the same.
    pub fn check_settings(&self) -> Result<(), Error> {
        if let Some(limits) = &self.limits {
            limits.check()?;
        }
        self.build_limits.iter().try_for_each(Limits::check)?;
        self.check_files()?;
        self.check_environment()?;
        self.check_egress()
    }

    /// Whether the allowlist is acceptable, and no variable has two values.
    fn check_egress(&self) -> Result<(), Error> {
        let Some(egress) = &self.egress else { return Ok(()) };
        egress.check()?;
        for placeholder in egress.placeholders() {
            check_variable(placeholder.variable())?;
        }
        for name in egress.variables() {
            if self.environment.iter().any(|(own, _)| own == name) {
                return Err(refused(
                    "variable",
                    name,
                    "the way out of the network sets it (`Sandbox::egress`)",
                ));
            }
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), Error> {
        if let Some(directory) = &self.directory {
            check_file_name(directory)?;
        }
        if let (Workspace::ReadOnlyHost(path), false) = (&self.workspace, self.files.is_empty()) {
            let reason = "files cannot be put into a read-only folder".into();
            return Err(Error::Workspace { path: path.clone(), reason });
        }
        for (index, (name, _)) in self.files.iter().enumerate() {
            check_file_name(name)?;
            let folded = name.to_lowercase();
            // A name may come from a model; what the program may not write, an upload may not either.
            if let Workspace::Host(host) | Workspace::LiveHost(host) = &self.workspace
                && self.protects(host, &folded)
            {
                return Err(refused("file name", name, "it is a protected path of the host directory"));
            }
            if self.files[..index].iter().any(|(other, _)| other.to_lowercase() == folded) {
                return Err(refused(
                    "file name",
                    name,
                    "two uploads have this name, at most differing in case",
                ));
            }
        }
        self.check_protected()
    }

    /// Rejects uploads into a host directory that its programs would obey: a name may come from a model.
    fn check_protected(&self) -> Result<(), Error> {
        let Workspace::Host(directory) = &self.workspace else { return Ok(()) };
        let lookup = |path: &Path| lookup_beneath(directory, path);
        let uploads = self.files.iter().map(|(name, _)| (PathBuf::from(name), Some(EntryKind::File)));
        let changes = ChangeSet::new(&lookup, uploads);
        for (name, source) in &self.files {
            if let Some(protection) = protection(Path::new(name), &changes) {
                return Err(refused("file name", name, &format!("the path is protected, {protection}")));
            }
            let adds_driver = match source {
                Source::Bytes(bytes) => adds_git_driver(Path::new(name), Vec::new, bytes),
                // The operator's own file.
                Source::Path(_) => false,
            };
            if adds_driver {
                return Err(refused("file name", name, "git executes the driver that the file names"));
            }
        }
        Ok(())
    }

    /// Whether an upload, named in lower case, would land at a path of [`Sandbox::protect`] or beneath one.
    fn protects(&self, host: &Path, folded: &str) -> bool {
        // A working directory that does not exist is an error of its own.
        let host = host.canonicalize().unwrap_or_else(|_| host.to_owned());
        self.protected.iter().filter_map(|path| path.strip_prefix(&host).ok()).any(|path| {
            let path = path.to_string_lossy().to_lowercase();
            Path::new(folded).starts_with(&path) || Path::new(&path).starts_with(folded)
        })
    }

    fn check_environment(&self) -> Result<(), Error> {
        for (name, value) in self.environment.iter() {
            check_variable(name)?;
            let bytes = value.as_encoded_bytes();
            if bytes.contains(&0) {
                return Err(refused("variable", name, "its value has a NUL byte"));
            }
            let hint = "hand it over in a file or by standard input";
            check_size("variable", (name.len() + bytes.len()) as u64 + 1, MAXIMUM_ARGUMENT, hint)?;
            if name == "PATH"
                && bytes
                    .split(|byte| *byte == b':')
                    .any(|folder| !folder.starts_with(b"/") || has_dots(folder))
            {
                return Err(refused(
                    "variable",
                    name,
                    "every folder in it must be absolute and without `..`",
                ));
            }
        }
        let hint = "hand large values over in a file or by standard input";
        check_size("environment", self.environment_size(), MAXIMUM_ARGUMENTS, hint)
    }
}

/// The rules for the name of a variable.
pub(crate) fn check_variable(name: &str) -> Result<(), Error> {
    let valid = !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if !valid {
        return Err(refused("variable", name, "a name has letters, digits and underscores"));
    }
    if is_refused(name) {
        return Err(refused("variable", name, "it can make a program run other code than was asked for"));
    }
    Ok(())
}

fn has_dots(folder: &[u8]) -> bool {
    folder.split(|byte| *byte == b'/').any(|part| part == b".." || part == b".")
}

fn is_refused(name: &str) -> bool {
    !HARMLESS_VARIABLES.contains(&name)
        && (REFUSED_VARIABLES.contains(&name)
            || REFUSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)))
}

fn refused(what: &'static str, name: &str, reason: &str) -> Error {
    Error::InvalidName { what, name: shorten(name), reason: reason.into() }
}

/// The rules for a name that crosses between host and workspace, in either direction.
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
        "it has a backslash, which separates folders on other systems"
    } else if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        "a part of it is empty, `.` or `..`"
    } else if name.split('/').any(|part| part.len() > 255) {
        "a part of it is longer than 255 bytes"
    } else if name.split('/').any(|part| part.starts_with('-')) {
        "a part of it begins with `-` and would be taken for an option"
    } else if name.split('/').any(is_device) {
        "a part of it is a device name on other systems"
    } else {
        return Ok(());
    };
    Err(refused("file name", name, reason))
}

/// Characters that make two different names look the same or reverse their reading direction.
pub(crate) fn is_invisible(letter: char) -> bool {
    matches!(letter,
        // The soft hyphen, fillers, and a separator of vowels.
        '\u{ad}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}'
        // Marks without a width, separators of lines, and what directs reading.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        // Tags: a whole text can be written with them.
        | '\u{e0000}'..='\u{e007f}')
}

fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).to_ascii_uppercase();
    matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        || (stem.len() == 4
            && (stem.starts_with("COM") || stem.starts_with("LPT"))
            && stem.ends_with(|digit: char| digit.is_ascii_digit()))
}

/// `environment` is the size of the variables, which share the kernel's limit with the arguments.
pub(crate) fn check_program(program: &Program, environment: u64) -> Result<(), Error> {
    match program {
        Program::Argv(arguments) => {
            if arguments.first().is_none_or(|first| first.is_empty()) {
                return Err(refused("program", "", "the argument list is empty"));
            }
            check_arguments(arguments, environment).map(drop)
        }
        // Its code was checked before it was built.
        Program::Ready(_) => Ok(()),
        Program::Code { source, .. } => {
            check_size("code", source.len() as u64, MAXIMUM_CODE, "upload large data as a file")?;
            match source.find('\0') {
                None => Ok(()),
                Some(place) => Err(refused("code", "", &format!("it has a NUL byte at offset {place}"))),
            }
        }
    }
}

/// Checks a list of arguments, and gives its size together with what shares the kernel's limit.
fn check_arguments(arguments: &[OsString], beside: u64) -> Result<u64, Error> {
    const HINT: &str = "hand it over in a file or by standard input";
    let mut total = beside;
    for argument in arguments {
        let size = argument.len() as u64;
        if argument.as_encoded_bytes().contains(&0) {
            return Err(refused("argument", &argument.to_string_lossy(), "it has a NUL byte"));
        }
        check_size("argument", size, MAXIMUM_ARGUMENT, HINT)?;
        total += size + 9;
    }
    check_size("argument list with the environment", total, MAXIMUM_ARGUMENTS, HINT)?;
    Ok(total)
}

fn check_size(what: &'static str, size: u64, maximum: u64, hint: &'static str) -> Result<(), Error> {
    if size > maximum {
        return Err(Error::TooLarge { what, size, maximum, hint });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_file_names_are_refused() {
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
    fn variables_that_redirect_programs_are_refused() {
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
    fn uploads_may_not_reach_protected_paths_of_a_host_folder() {
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
    fn uploads_may_not_reach_what_the_caller_protects() {
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
    fn uploads_may_not_collide_by_case() {
        let sandbox =
            Sandbox::new().file("a.txt", Source::Bytes(vec![])).file("A.TXT", Source::Bytes(vec![]));
        assert!(sandbox.check_files().is_err());
    }

    #[test]
    fn programs_that_cannot_be_handed_over_are_refused() {
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
