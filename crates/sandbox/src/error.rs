//! Errors of starting a run and of handing over its files.

use std::path::{Path, PathBuf};

use crate::sandbox::is_invisible;
use crate::{Language, Level, SandboxHint};

/// An error of starting a run or of handing over its files.
///
/// Errors of the sandbox itself. Actions of the program are never an error but a [`crate::Verdict`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host does not support the required level.
    #[error("level `{level}` is unavailable: {reason}; {fix}")]
    LevelUnavailable {
        /// The level.
        level: Level,
        /// The missing part.
        reason: String,
        /// The fix.
        fix: String,
    },
    /// Nothing on this host can enforce the egress allowlist.
    #[error("egress is unavailable: {reason}; {fix}")]
    EgressUnavailable {
        /// The missing part.
        reason: String,
        /// The fix.
        fix: String,
    },
    /// The level is unknown.
    #[error("unknown level `{name}`{}; levels are {}", did_you_mean(*suggestion), Level::NAMES.join(", "))]
    UnknownLevel {
        /// The name.
        name: String,
        /// The nearest level.
        suggestion: Option<&'static str>,
    },
    /// The language is unknown.
    #[error("unknown language `{name}`{}; languages are {}", did_you_mean(*suggestion), Language::names())]
    UnknownLanguage {
        /// The name.
        name: String,
        /// The nearest language.
        suggestion: Option<&'static str>,
    },
    /// No program for the language is installed where the sandbox can use it.
    #[error("no {program} for {language} in {searched}; {hint}")]
    LanguageMissing {
        /// The language.
        language: Language,
        /// The names of the programs, in backticks.
        program: String,
        /// The searched directories.
        searched: String,
        /// The installation.
        hint: &'static str,
    },
    /// The build failed without an outcome: the streams were to be live, or the compiler left no file.
    #[error("building the {language} code failed: {reason}")]
    Build {
        /// The language.
        language: Language,
        /// The compiler's verdict and its first messages.
        reason: String,
    },
    /// A package could not be installed.
    #[error("installing package `{package}` failed: {reason}")]
    Requirement {
        /// The package, or several if the installer does not name one.
        package: String,
        /// The installer's message, shortened.
        reason: String,
    },
    /// The program does not exist.
    #[error("program `{program}` not found: {reason}")]
    ProgramNotFound {
        /// The name.
        program: String,
        /// The searched directories, or why it cannot be used.
        reason: String,
    },
    /// The program exists but is not executable.
    #[error("program `{program}` is not executable")]
    NotExecutable {
        /// The path of the program.
        program: String,
    },
    /// The program exists but the kernel did not start it.
    #[error("program `{program}` did not start: {source}")]
    ProgramNotStarted {
        /// The path of the program.
        program: String,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// A limit is invalid.
    #[error("limit `{name}` is {value}, expected {expected}")]
    InvalidLimit {
        /// The limit.
        name: &'static str,
        /// The value.
        value: String,
        /// The expected value.
        expected: String,
    },
    /// A file name, a variable name or an argument is rejected.
    #[error("{what} `{name}` is not allowed: {reason}")]
    InvalidName {
        /// The kind of name.
        what: &'static str,
        /// The name, shortened and escaped.
        name: String,
        /// The broken rule.
        reason: String,
    },
    /// Code, arguments or input exceed their maximum size.
    #[error("{what} has {size} bytes, at most {maximum} are allowed; {hint}")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The maximum in bytes.
        maximum: u64,
        /// The alternative.
        hint: &'static str,
    },
    /// The session has ended.
    #[error("the session has ended: {reason}")]
    SessionEnded {
        /// The cause.
        reason: String,
    },
    /// The session does not support this action, or not now.
    #[error("{action} is not possible: {reason}")]
    SessionRejected {
        /// The action, for example `forking`.
        action: &'static str,
        /// The reason.
        reason: String,
        /// The alternative.
        hint: &'static str,
    },
    /// Writing or reading a saved session failed.
    #[error("saved session `{}`: {reason}", path.display())]
    SavedSession {
        /// The directory or file.
        path: PathBuf,
        /// The problem, and the expected state.
        reason: String,
    },
    /// The changes of a run cannot be applied, discarded or undone.
    #[error("changes of run `{id}`: {reason}")]
    HeldRun {
        /// The given id, or the run's.
        id: String,
        /// The reason.
        reason: String,
        /// The fix.
        hint: Option<SandboxHint>,
    },
    /// No host is allowed for a placeholder.
    #[error("granted variable `{name}` is not allowed: its placeholder needs an allowed host")]
    PlaceholderWithoutHost {
        /// The variable.
        name: String,
    },
    /// The workspace directory cannot be used.
    #[error("workspace `{}` cannot be used: {reason}", shown(path))]
    Workspace {
        /// The directory.
        path: PathBuf,
        /// The reason and the fix.
        reason: String,
    },
    /// The workspace directory is too large for a private copy, which this host or the request needs.
    #[error("`{}` is too large for a private copy: {reason}", shown(path))]
    CopyTooLarge {
        /// The directory.
        path: PathBuf,
        /// The exceeded limit.
        reason: String,
        /// The alternative.
        hint: SandboxHint,
    },
    /// Reading or writing a host file failed.
    #[error("{action} `{}`: {source}", shown(path))]
    File {
        /// The action, for example `read upload`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Another backend than [`crate::Processes`] failed. The Docker backend's source is a `DockerError`.
    #[error("{source}")]
    Backend {
        /// The name of the backend.
        backend: &'static str,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// The fix.
        hint: Option<SandboxHint>,
    },
    /// The pool is at its limit. Nothing ran.
    #[error("the pool is busy: {running} running, {waiting} waiting, {reason}")]
    Overloaded {
        /// The number of current runs.
        running: usize,
        /// The number of queued requests.
        waiting: usize,
        /// The reached limit.
        reason: String,
    },
    /// Setting up the sandbox failed on a host that claimed support.
    #[error("sandbox set-up failed at `{step}`: {source}")]
    Setup {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
}

impl Error {
    /// The fix, if it is not part of the message.
    pub fn hint(&self) -> Option<SandboxHint> {
        Some(match self {
            Self::LevelUnavailable { .. } => SandboxHint::ChooseLevel,
            Self::Setup { .. } => SandboxHint::CheckHost,
            Self::Overloaded { .. } => SandboxHint::other(
                "try again later, or raise `max_concurrency`, `queue` or `queue_timeout` of the pool",
            ),
            Self::ProgramNotFound { .. } => SandboxHint::ShowProgram,
            Self::ProgramNotStarted { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                SandboxHint::ShowInterpreter
            }
            Self::NotExecutable { program } => {
                SandboxHint::other(format!("make it executable: `chmod +x {program}`"))
            }
            Self::LanguageMissing { hint, .. } | Self::SessionRejected { hint, .. } => {
                SandboxHint::other(*hint)
            }
            Self::CopyTooLarge { hint, .. } => hint.clone(),
            Self::SessionEnded { .. } => SandboxHint::other(
                "start a new session or restore a saved one; `SessionLimits` has the limits",
            ),
            Self::PlaceholderWithoutHost { name } => SandboxHint::AllowPlaceholder { name: name.clone() },
            Self::HeldRun { hint, .. } | Self::Backend { hint, .. } => return hint.clone(),
            _ => return None,
        })
    }
}

/// Escapes a path for a terminal: names from archives or models can contain control characters.
fn shown(path: &Path) -> String {
    path.to_string_lossy()
        .chars()
        .map(|letter| match letter {
            _ if letter.is_control() || is_invisible(letter) => letter.escape_unicode().to_string(),
            _ => letter.to_string(),
        })
        .collect()
}

/// The suggestion in a message about an unknown name.
fn did_you_mean(suggestion: Option<&'static str>) -> String {
    suggestion.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

impl From<toolpost_egress::Error> for Error {
    fn from(error: toolpost_egress::Error) -> Self {
        match error {
            toolpost_egress::Error::InvalidLimit { name, value, expected } => {
                Self::InvalidLimit { name, value, expected }
            }
            toolpost_egress::Error::InvalidName { what, name, reason } => {
                Self::InvalidName { what, name, reason }
            }
            toolpost_egress::Error::Start(source) => Self::Setup { step: "start egress proxy", source },
            other => Self::Setup { step: "start egress proxy", source: std::io::Error::other(other) },
        }
    }
}

/// The reason for stored data with a newer format than this program supports.
pub(crate) fn newer_format(found: impl std::fmt::Display, known: u32) -> String {
    format!(
        "it has format {found}, but this program supports formats up to {known}; use the newer program that wrote it"
    )
}
