//! Why a run could not be started or its files not be handed over.

use std::path::{Path, PathBuf};

use crate::sandbox::is_invisible;
use crate::{Language, Level};

/// Why a run could not be started, or its files could not be handed over. What the program itself did is never an
/// error but a [`crate::Verdict`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host cannot give the level that was asked for.
    #[error("level `{level}` is not available: {reason}; {fix}")]
    LevelUnavailable {
        /// The level.
        level: Level,
        /// What is missing.
        reason: String,
        /// What to do about it.
        fix: String,
    },
    /// A way out of the network was asked for, and nothing would hold its allowlist.
    #[error("egress is not available: {reason}; {fix}")]
    EgressUnavailable {
        /// What is missing.
        reason: String,
        /// What to do about it.
        fix: String,
    },
    /// There is no such level.
    #[error("unknown level `{name}`{}; levels are {}", did_you_mean(*suggestion), Level::NAMES.join(", "))]
    UnknownLevel {
        /// The name that was given.
        name: String,
        /// The level that was probably meant.
        suggestion: Option<&'static str>,
    },
    /// There is no such language.
    #[error("unknown language `{name}`{}; languages are {}", did_you_mean(*suggestion), Language::names())]
    UnknownLanguage {
        /// The name that was given.
        name: String,
        /// The language that was probably meant.
        suggestion: Option<&'static str>,
    },
    /// The program that runs the language is not on this host, or not where the code may reach it.
    #[error("no {program} for {language} in {searched}; {hint}")]
    LanguageMissing {
        /// The language.
        language: Language,
        /// The programs that were looked for, in backticks.
        program: String,
        /// The folders that were searched.
        searched: String,
        /// How to get it.
        hint: &'static str,
    },
    /// Code could not be built, and there is no outcome to tell it by: the streams were to be live, or the compiler left
    /// nothing behind.
    #[error("the code in {language} was not built: {reason}")]
    Build {
        /// The language.
        language: Language,
        /// The compiler's verdict and the beginning of its messages.
        reason: String,
    },
    /// A package could not be installed.
    #[error("package `{package}` could not be installed: {reason}")]
    Requirement {
        /// The package; several when the installer does not say which one.
        package: String,
        /// What the installer says, shortened.
        reason: String,
    },
    /// The program does not exist.
    #[error("program `{program}` not found: {reason}")]
    ProgramNotFound {
        /// The name that was given.
        program: String,
        /// Where it was looked for, or why it cannot be used.
        reason: String,
    },
    /// There is a file, and it may not be executed.
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
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// A limit makes no sense.
    #[error("limit `{name}` is {value}, expected {expected}")]
    InvalidLimit {
        /// The limit.
        name: &'static str,
        /// The value that was given.
        value: String,
        /// What was expected.
        expected: String,
    },
    /// A file name, a variable name or an argument is not acceptable.
    #[error("{what} `{name}` is not allowed: {reason}")]
    InvalidName {
        /// What it names.
        what: &'static str,
        /// The name that was given, shortened and escaped.
        name: String,
        /// Which rule it breaks.
        reason: String,
    },
    /// Code, arguments or input are larger than what can be handed over.
    #[error("{what} has {size} bytes, at most {maximum} are taken; {hint}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size in bytes.
        size: u64,
        /// The most that is taken, in bytes.
        maximum: u64,
        /// What to do instead.
        hint: &'static str,
    },
    /// The session has ended.
    #[error("the session has ended: {reason}")]
    SessionEnded {
        /// What ended it.
        reason: String,
    },
    /// A session cannot do this, or not now.
    #[error("{action} is not possible: {reason}")]
    SessionRefused {
        /// What was asked for, for example `fork`.
        action: &'static str,
        /// Why not.
        reason: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// A saved session cannot be written or read.
    #[error("saved session `{}`: {reason}", path.display())]
    Saved {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong with it, and what was expected.
        reason: String,
    },
    /// The changes of a run in a host directory cannot be applied, discarded or taken back.
    #[error("changes of run `{id}`: {reason}")]
    HeldRun {
        /// The identifier that was given, or the run's.
        id: String,
        /// Why not.
        reason: String,
    },
    /// The folder that was given as workspace cannot be used.
    #[error("workspace `{}` cannot be used: {reason}", shown(path))]
    Workspace {
        /// The folder.
        path: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// A file could not be read or written on the host.
    #[error("{action} `{}`: {source}", shown(path))]
    File {
        /// What was tried, for example `read upload`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Another backend than this host's processes could not run the program. What the source is, is its own matter; the
    /// Docker backend puts a `DockerError` there.
    #[error("{source}")]
    Backend {
        /// The name of the backend.
        backend: &'static str,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// More was asked of a pool at one time than it takes. Nothing was run.
    #[error("the pool is busy: {running} runs go on, {waiting} wait, and {reason}")]
    Overloaded {
        /// How many runs go on.
        running: usize,
        /// How many requests wait for their turn.
        waiting: usize,
        /// Which bound was met.
        reason: String,
    },
    /// The sandbox could not be set up although the host seemed able to.
    #[error("sandbox set-up failed at `{step}`: {source}")]
    Setup {
        /// The step that failed.
        step: &'static str,
        /// The kernel's reason.
        source: std::io::Error,
    },
}

impl Error {
    /// What to do next, where that is not part of the message.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::LevelUnavailable { .. } => {
                Some("`toolpost doctor` lists what this host can give; `toolpost exec --allow-degraded` takes the next lower level".into())
            }
            Self::Setup { .. } => Some("`toolpost doctor` shows which parts of the sandbox work on this host".into()),
            Self::Overloaded { .. } => {
                Some("try again later, or raise `most`, `queue` or `wait_limit` of the pool".into())
            }
            Self::ProgramNotFound { .. } => {
                Some("give an absolute path, or make the folder visible to the sandbox".into())
            }
            Self::ProgramNotStarted { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Some(
                "if the program exists, show its interpreter and libraries: `Sandbox::read_only`, or `readable` in \
                 a description"
                    .into(),
            ),
            Self::NotExecutable { program } => Some(format!("make it executable: `chmod +x {program}`")),
            Self::LanguageMissing { hint, .. } | Self::SessionRefused { hint, .. } => Some((*hint).into()),
            Self::SessionEnded { .. } => {
                Some("start a new session, or restore a saved one; a limit can be raised in `SessionLimits`".into())
            }
            _ => None,
        }
    }
}

/// A path as a terminal may show it: a name that came from an archive or a model can hold escapes.
fn shown(path: &Path) -> String {
    path.to_string_lossy()
        .chars()
        .map(|letter| match letter {
            _ if letter.is_control() || is_invisible(letter) => letter.escape_unicode().to_string(),
            _ => letter.to_string(),
        })
        .collect()
}

/// The end of a message about a name that is not known.
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
