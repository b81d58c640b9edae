//! One executable: what it is, whether it is still the same, and how it is started.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toolpost_core::{ToolError, format_duration, hex};
use toolpost_sandbox::{Error, Limits, Sandbox, Shebang, Verdict, Workspace, program_directories};

use super::settings::{Origin, Settings};
use crate::protocol::dialect::Discovery;

/// Which lines a program understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Dialect {
    /// `TOOL {…}`.
    Original,
    /// The same, with the additions of this crate: arguments over standard input.
    Extended,
    /// `{"command":…,"params":…}`, as the development line 0.2 of the first implementation has it.
    Command,
}

/// What tells whether a file is still the one that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Stamp {
    /// Nanoseconds since 1970.
    modified: u128,
    size: u64,
    /// The file itself, and when anything of it was last changed, which nobody can set: so a file that was replaced by
    /// one of the same time and size is found out.
    identity: (u64, u64, i64, i64),
    /// A hash of names, times and sizes of the modules beside a script, which it may import.
    #[serde(default)]
    modules: u64,
}

/// The most files beside a script that are looked at.
const MAX_MODULES: usize = 1_000;

impl Stamp {
    pub(super) fn of(path: &Path) -> Result<Self, ToolError> {
        let wrong = |error: std::io::Error| {
            ToolError::dependency(format!("the program `{}` cannot be looked at: {error}", path.display()))
        };
        let metadata = path.metadata().map_err(wrong)?;
        if !metadata.is_file() {
            return Err(ToolError::dependency(format!("`{}` is no file", path.display())));
        }
        let modified = metadata.modified().map_err(wrong)?;
        let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Ok(Self { modified, size: metadata.len(), identity: identity(&metadata), modules: modules(path) })
    }

    /// Whether the modules beside the program are those of another time.
    pub(super) fn has_modules_of(&self, other: &Self) -> bool {
        self.modules == other.modules
    }
}

/// Changes when a module beside a script does: a file with the same extension.
fn modules(path: &Path) -> u64 {
    let Some((folder, kind)) = path.parent().zip(path.extension()) else { return 0 };
    let entries = std::fs::read_dir(folder).into_iter().flatten().take(MAX_MODULES).flatten();
    let mut files: Vec<_> = entries
        .filter(|entry| entry.path().extension() == Some(kind) && entry.path() != path)
        .filter_map(|entry| {
            let metadata = entry.path().metadata().ok()?;
            Some((entry.file_name(), metadata.modified().ok()?, metadata.len()))
        })
        .collect();
    if files.is_empty() {
        return 0;
    }
    files.sort();
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish()
}

#[cfg(unix)]
fn identity(metadata: &std::fs::Metadata) -> (u64, u64, i64, i64) {
    use std::os::unix::fs::MetadataExt as _;
    (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn identity(_metadata: &std::fs::Metadata) -> (u64, u64, i64, i64) {
    (0, 0, 0, 0)
}

/// The SHA-256 of a file, in hexadecimal digits.
pub(super) fn digest(path: &Path) -> Result<String, ToolError> {
    let wrong = |error: std::io::Error| {
        ToolError::dependency(format!("the program `{}` cannot be read: {error}", path.display()))
    };
    let mut file = std::fs::File::open(path).map_err(wrong)?;
    let mut hasher = Sha256::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let read = file.read(&mut piece).map_err(wrong)?;
        if read == 0 {
            break;
        }
        hasher.update(piece.get(..read).unwrap_or_default());
    }
    Ok(hex(hasher.finalize()))
}

/// What a program has told of itself, and what it was then.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) stamp: Stamp,
    pub(super) digest: String,
    pub(super) dialect: Dialect,
    pub(super) discovery: Discovery,
    /// What was wrong with parts of it, by tool.
    pub(super) problems: Vec<(Option<String>, ToolError)>,
    /// Whether another question might give more.
    pub(super) is_whole: bool,
    /// How it was run when it was asked.
    pub(super) environment: String,
}

/// An executable that has told of itself.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) origin: Origin,
    pub(super) path: PathBuf,
    pub(super) known: Known,
}

/// Whether a file is run by the interpreter.
pub(super) fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

/// The program and its first arguments.
pub(super) fn command_line<'a>(
    settings: &Settings,
    path: &Path,
    arguments: impl IntoIterator<Item = &'a str>,
) -> toolpost_sandbox::Program {
    let mut line: Vec<OsString> = Vec::new();
    if is_python(path) {
        line.extend(python(settings, path));
    }
    line.push(path.as_os_str().to_owned());
    line.extend(arguments.into_iter().map(Into::into));
    toolpost_sandbox::Program::argv(line)
}

/// What runs a `.py` file: what the operator named, else the interpreter of its first line, else `python3`.
fn python(settings: &Settings, path: &Path) -> Vec<OsString> {
    if let Some(python) = &settings.python {
        return vec![python.clone()];
    }
    let named = Shebang::of(path).filter(|line| line.interpreter.is_absolute() && line.interpreter.is_file());
    named.map_or_else(
        || vec!["python3".into()],
        |line| {
            let arguments = line.arguments.into_iter().map(OsString::from);
            std::iter::once(line.interpreter.into_os_string()).chain(arguments).collect()
        },
    )
}

/// The sandbox of one process of a program.
pub(super) fn sandbox(settings: &Settings, path: &Path, wall: Duration, workspace: Workspace) -> Sandbox {
    let limits: Limits = settings.limits.clone().with_wall(wall.max(Duration::from_millis(1)));
    let mut sandbox = Sandbox::new()
        .level(settings.level)
        .allow_degraded(settings.allow_degraded)
        .limits(limits)
        .workspace(match &settings.granted.grants().workdir {
            Some(directory) => Workspace::Host(directory.clone()),
            None => workspace,
        });
    if let Some(search) = &settings.search_path {
        sandbox = sandbox.search_path(search.clone());
    }
    if is_python(path) {
        sandbox = sandbox.read_only(path).env("PYTHONDONTWRITEBYTECODE", "1");
    }
    for folder in program_directories(path) {
        sandbox = sandbox.read_only(folder);
    }
    for readable in &settings.readable {
        sandbox = sandbox.read_only(readable);
    }
    for (name, value) in &settings.environment {
        sandbox = sandbox.env(name, value.clone());
    }
    settings.granted.apply(sandbox).protect(settings.protected.iter().cloned())
}

/// Why a program could not be started.
pub(super) fn of_sandbox(error: Error) -> ToolError {
    let message = error.to_string();
    let hint = error.hint();
    let made = match &error {
        Error::LevelUnavailable { .. } | Error::EgressUnavailable { .. } => ToolError::permission(message),
        Error::TooLarge { .. } => ToolError::limit(message),
        Error::Workspace { .. } => ToolError::precondition(message),
        _ => ToolError::dependency(message),
    };
    made.suggest_maybe(hint).caused_by(error)
}

/// Why a program gave no answer, by how it ended. `None` if it exited with status 0.
pub(super) fn of_verdict(verdict: &Verdict, what: &str) -> Option<ToolError> {
    let millis = |millis: &u64| format_duration(Duration::from_millis(*millis));
    Some(match verdict {
        Verdict::Ok => return None,
        Verdict::Exit { code } => {
            ToolError::dependency(format!("{what} ended with status {code}")).with("exit_code", *code)
        }
        Verdict::Signal { signal } => {
            ToolError::dependency(format!("{what} was ended by signal {signal}")).with("signal", *signal)
        }
        Verdict::Timeout { limit_ms } => {
            ToolError::timeout(format!("{what} was not done within {}", millis(limit_ms)))
        }
        Verdict::Cpu { limit_ms } => {
            ToolError::timeout(format!("{what} used up its {} of processor time", millis(limit_ms)))
        }
        Verdict::Memory { limit } => {
            ToolError::limit(format!("{what} needed more than its {} MiB of memory", limit >> 20))
        }
        Verdict::Processes { limit } => {
            ToolError::limit(format!("{what} wanted more than its {limit} processes"))
        }
        Verdict::Disk { limit } => ToolError::limit(format!("{what} filled its {} MiB of disk", limit >> 20)),
        Verdict::Output { limit } => {
            ToolError::limit(format!("{what} printed more than {} MiB", limit >> 20))
        }
        Verdict::Denied { rule } => ToolError::permission(format!("{what} was ended by the sandbox: {rule}")),
        Verdict::Cancelled => ToolError::cancelled(format!("{what} was stopped")),
        other => ToolError::dependency(format!("{what} ended: {other:?}")),
    })
}

/// The beginning of what a program printed, for a person: control characters are escaped.
pub(super) fn excerpt(bytes: &[u8], limit: usize) -> String {
    let text = String::from_utf8_lossy(bytes.get(..bytes.len().min(limit * 4)).unwrap_or_default());
    let mut shown: String = text
        .chars()
        .take(limit)
        .flat_map(|letter| {
            let is_plain = letter == '\n' || !letter.is_control();
            let escaped = (!is_plain).then(|| letter.escape_default());
            is_plain.then_some(letter).into_iter().chain(escaped.into_iter().flatten())
        })
        .collect();
    if text.chars().nth(limit).is_some() {
        shown.push('…');
    }
    shown
}
