//! An executable: its identity, its manifest and its command line.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toolpost_core::{ToolError, hex};
use toolpost_sandbox::{Limits, Need, Origin, Sandbox, Shebang, Workspace, program_directories};

use super::settings::Settings;
use crate::protocol::dialect::Discovery;

/// The dialect of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Dialect {
    /// `TOOL {…}`.
    Original,
    /// A variant with this crate's extensions: arguments over standard input.
    Extended,
    /// `{"command":…,"params":…}`, the development line 0.2 of the first implementation.
    Command,
}

/// Detects changes of a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Stamp {
    /// Nanoseconds since 1970.
    modified: u128,
    size: u64,
    /// Device, inode and change time, which no program can set: detects a replacement with the same time and size.
    identity: (u64, u64, i64, i64),
    /// Hash of the names, times and sizes of the modules beside a script, which it may import.
    #[serde(default)]
    modules: u64,
}

/// Maximum number of files beside a script that are inspected.
const MAX_MODULES: usize = 1_000;

impl Stamp {
    pub(super) fn read(path: &Path) -> Result<Self, ToolError> {
        let wrong = |error: std::io::Error| {
            ToolError::dependency(format!("cannot inspect the program `{}`: {error}", path.display()))
        };
        let metadata = path.metadata().map_err(wrong)?;
        if !metadata.is_file() {
            return Err(ToolError::dependency(format!("`{}` is not a file", path.display())));
        }
        let modified = metadata.modified().map_err(wrong)?;
        let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        Ok(Self { modified, size: metadata.len(), identity: identity(&metadata), modules: modules(path) })
    }

    /// Whether the modules beside the program are unchanged.
    pub(super) fn has_modules_of(&self, other: &Self) -> bool {
        self.modules == other.modules
    }
}

/// A hash of the files beside a script with the same extension.
fn modules(path: &Path) -> u64 {
    let Some((parent, kind)) = path.parent().zip(path.extension()) else { return 0 };
    let entries = std::fs::read_dir(parent).into_iter().flatten().take(MAX_MODULES).flatten();
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

/// SHA-256 of a file in hexadecimal digits.
pub(super) fn digest(path: &Path) -> Result<String, ToolError> {
    let wrong = |error: std::io::Error| {
        ToolError::dependency(format!("cannot read the program `{}`: {error}", path.display()))
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

/// The manifest of a program and the state of its file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    pub(super) stamp: Stamp,
    pub(super) digest: String,
    pub(super) dialect: Dialect,
    pub(super) discovery: Discovery,
    /// Problems of its parts, by tool.
    pub(super) problems: Vec<(Option<String>, ToolError)>,
    /// Whether all queries succeeded.
    pub(super) is_complete: bool,
    /// Hash of the settings that may affect the manifest.
    pub(super) environment: String,
}

/// A discovered executable.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) origin: PathBuf,
    pub(super) path: PathBuf,
    pub(super) known: Known,
}

/// Whether a file runs in the Python interpreter.
pub(super) fn is_python(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "py")
}

/// The command line of a program.
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
    toolpost_sandbox::Program::operator_argv(line)
}

/// The interpreter of a `.py` file: the operator's, else that of its first line, else `python3`.
fn python(settings: &Settings, path: &Path) -> Vec<OsString> {
    if let Some(python) = &settings.python {
        return vec![python.clone()];
    }
    let named =
        Shebang::read(path).filter(|line| line.interpreter.is_absolute() && line.interpreter.is_file());
    named.map_or_else(
        || vec!["python3".into()],
        |line| {
            let arguments = line.arguments.into_iter().map(OsString::from);
            std::iter::once(line.interpreter.into_os_string()).chain(arguments).collect()
        },
    )
}

/// The sandbox for one process of a program.
pub(super) fn sandbox(settings: &Settings, path: &Path, wall: Duration, workspace: Workspace) -> Sandbox {
    let limits: Limits = settings.limits.clone().with_wall(wall.max(Duration::from_millis(1)));
    let mut sandbox = Sandbox::new().level(settings.level).limits(limits).workspace(
        match &settings.granted.grants().workdir {
            Some(directory) => settings.granted.workspace(directory.clone()),
            None => workspace,
        },
    );
    if let Some(search) = &settings.search_path {
        sandbox = sandbox.search_path(search.clone());
    }
    if let Some(home) = &settings.home {
        sandbox = sandbox.home(home);
    }
    if is_python(path) {
        let script = Need::new(path, Origin::Operator);
        sandbox = sandbox.needs([script]).env("PYTHONDONTWRITEBYTECODE", "1");
    }
    sandbox = sandbox.needs(program_directories(path));
    for readable in &settings.readable {
        sandbox = sandbox.read_only(readable);
    }
    for (name, value) in &settings.environment {
        sandbox = sandbox.env(name, value.clone());
    }
    settings.granted.apply(sandbox).protect(settings.protected.iter().cloned())
}

/// The start of a program's output for people, with control characters escaped.
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
