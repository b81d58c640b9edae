//! The root directory of the file tools, and valid paths in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost::{Ctx, Hint, OutputFiles, Suggestion, ToolError};
use toolpost_sandbox::{
    DirectoryRules, ProtectedEntryKind, ProtectedPath, Protection, ProtectionRule, Rejection, RunChanges,
    SandboxHint, SingleChange,
};

use super::at_path;
use super::budget::{Budget, Room};

/// Maximum length of a path, in bytes: the kernel's `PATH_MAX`.
const MAX_PATH: usize = 4096;
/// Maximum length of a name, in bytes: the kernel's `NAME_MAX`.
const MAX_NAME: usize = 255;
/// Path of the working directory inside the sandbox at level `strict`.
const WORKSPACE_INSIDE: &str = "/workspace";

/// The directory that confines file and code tools, provided by the operator: `Toolbox::builder().provide(…)`.
///
/// Without one, the working directory of the call or its scope is the root. With both, the working directory must be
/// beneath the root, and confines the tools.
#[derive(Clone, Debug)]
pub struct FileRoot {
    path: PathBuf,
    original: Option<PathBuf>,
    admitted: Vec<PathBuf>,
    protected: Vec<ProtectedPath>,
    is_divided: bool,
    changes: Option<RunChanges>,
    budget: Arc<Budget>,
}

impl FileRoot {
    /// Default maximum of written bytes: 4 GiB.
    pub const DEFAULT_BYTES: u64 = 4 << 30;
    /// Default maximum of created files and directories.
    pub const DEFAULT_ENTRIES: u64 = 500_000;

    /// Creates a root, which must exist when a tool is called.
    ///
    /// Protected paths ([`toolpost_sandbox::protection`]) are not written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            original: None,
            admitted: Vec::new(),
            protected: Vec::new(),
            is_divided: false,
            changes: None,
            budget: budget(Self::DEFAULT_BYTES, Self::DEFAULT_ENTRIES),
        }
    }

    /// Limits the bytes that tools write and the files and directories that they create. Clones share the count.
    ///
    /// After that many writes, the directory is measured, and a write fails with `LIMIT` if the directory would exceed
    /// the limits.
    #[must_use]
    pub fn limits(mut self, bytes: u64, entries: u64) -> Self {
        self.budget = budget(bytes, entries);
        self
    }

    /// Allows writes to protected paths and everything beneath them. The paths are relative to the root.
    #[must_use]
    pub fn allow_protected<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.admitted.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Protects files and directories of the host, with everything beneath, under all of their names.
    ///
    /// The paths are absolute, and may be missing. In a directory of [`ProtectedPath::Code`], only files that its program
    /// loads are protected. [`FileRoot::allow_protected`] allows none of them.
    #[must_use]
    pub fn protect(mut self, paths: impl IntoIterator<Item = impl Into<ProtectedPath>>) -> Self {
        for protected in paths.into_iter().map(Into::into) {
            // Protect both a link and its target.
            let real = protected.path().canonicalize().ok().filter(|real| real != protected.path());
            self.protected.extend(real.map(|real| protected.at(real)));
            self.protected.push(protected);
        }
        self
    }

    /// Sets the directory that the root is a private copy of. Callers use its absolute paths, and messages name it.
    #[must_use]
    pub fn copy_of(mut self, original: impl Into<PathBuf>) -> Self {
        self.original = Some(original.into());
        self
    }

    /// Lists written files with the changes of a run, which are undone together. Default none. A copy is not listed.
    #[must_use]
    pub fn run_changes(mut self, changes: RunChanges) -> Self {
        self.changes = Some(changes);
        self
    }

    /// Requires a working directory beneath the root for each call, such as that of one client of a server. Paths of
    /// [`allow_protected`](Self::allow_protected) are then relative to it. The limits are for all together.
    #[must_use]
    pub fn divided(mut self) -> Self {
        self.is_divided = true;
        self
    }

    /// The root directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that callers name: the root, or the original of a copy.
    pub fn original(&self) -> &Path {
        self.original.as_deref().unwrap_or(&self.path)
    }
}

fn budget(bytes: u64, entries: u64) -> Arc<Budget> {
    Arc::new(Budget::new(Room { bytes, entries }))
}

/// The directory of a call.
#[derive(Debug)]
pub(crate) struct Directory {
    /// The operator's root, without symbolic links.
    pub(super) root: PathBuf,
    /// The original, if the root is a copy.
    original: Option<PathBuf>,
    /// The working directory relative to the root; empty for the root itself.
    pub(super) beneath: PathBuf,
    /// Whether reads follow links inside the root.
    pub(super) follows_links: bool,
    /// Protected paths that may be written, relative to the root, or to the working directory in a divided root.
    admitted: Vec<PathBuf>,
    is_divided: bool,
    /// Paths of the host that are not written.
    pub(super) protected: Vec<ProtectedPath>,
    /// The run that lists written files.
    pub(super) changes: Option<RunChanges>,
    budget: Arc<Budget>,
}

impl Directory {
    /// The directory of a call; `None` if there is none.
    pub(crate) fn find(ctx: &Ctx) -> Result<Option<Self>, ToolError> {
        let root = ctx.inject::<FileRoot>().ok();
        let (root, working) = match (root, ctx.working_dir()) {
            (None, None) => return Ok(None),
            (None, Some(working)) => (FileRoot::new(working), None),
            (Some(root), working) => ((*root).clone(), working),
        };
        let path = real(&root.path)?;
        let beneath = match working {
            None => PathBuf::new(),
            Some(working) => real(working)?.strip_prefix(&path).map(Path::to_owned).map_err(|_| {
                ToolError::permission(format!(
                    "the working directory `{}` is not beneath the root `{}`",
                    working.display(),
                    path.display()
                ))
                .suggest("Use a working directory beneath the root, or provide another `FileRoot`.")
            })?,
        };
        let FileRoot { original, admitted, protected, is_divided, changes, budget, .. } = root;
        let changes = changes.filter(|_| original.is_none());
        if is_divided && beneath.as_os_str().is_empty() {
            return Err(ToolError::precondition("the call has no working directory of its own"));
        }
        Ok(Some(Self {
            root: path,
            original,
            beneath,
            follows_links: true,
            admitted,
            is_divided,
            protected,
            changes,
            budget,
        }))
    }

    /// A root without links.
    pub(super) fn strict(root: &FileRoot) -> Result<Self, ToolError> {
        Ok(Self {
            root: real(&root.path)?,
            original: root.original.clone(),
            beneath: PathBuf::new(),
            follows_links: false,
            admitted: root.admitted.clone(),
            is_divided: false,
            protected: root.protected.clone(),
            changes: root.changes.clone().filter(|_| root.original.is_none()),
            budget: Arc::clone(&root.budget),
        })
    }

    /// The directory of a call that needs one.
    pub(crate) fn from_ctx(ctx: &Ctx) -> Result<Self, ToolError> {
        Self::find(ctx)?.ok_or_else(|| {
            ToolError::precondition("the call has neither a working directory nor a root")
                .suggest(Hint::SetWorkingDirectory)
        })
    }

    /// The directory of a path to read: that of the output files, or that of the call.
    pub(super) fn read_by(ctx: &Ctx, path: &str) -> Result<Self, ToolError> {
        match ctx.inject::<OutputFiles>() {
            Ok(files) if Path::new(path).starts_with(files.directory()) => {
                Self::strict(&FileRoot::new(files.directory()))
            }
            _ => Self::from_ctx(ctx),
        }
    }

    /// The hidden paths of the host.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &Path> {
        self.protected.iter().filter(|protected| protected.is_hidden()).map(ProtectedPath::path)
    }

    /// Its path on the host.
    pub(crate) fn path(&self) -> PathBuf {
        self.root.join(&self.beneath)
    }

    /// The path that callers use for it.
    pub(super) fn shown(&self) -> PathBuf {
        let top = self.original.as_ref().unwrap_or(&self.root);
        // Drops a trailing separator.
        top.join(&self.beneath).components().collect()
    }

    /// Validates a caller's path and makes it relative; the directory itself is `.`.
    ///
    /// The kernel checks symbolic links when the path is opened.
    pub(super) fn relative(&self, given: &str) -> Result<String, ToolError> {
        let invalid = |message: String| at_path(ToolError::invalid_path(message), given);
        if given.is_empty() {
            return Err(invalid(
                "the path is empty; expected a path relative to the working directory".into(),
            ));
        }
        if let Some(place) = given.find('\0') {
            return Err(invalid(format!("the path `{}` has a NUL character at byte {place}", shown(given))));
        }
        if given.len() > MAX_PATH {
            return Err(invalid(format!(
                "the path has {} bytes; the maximum is {MAX_PATH}: `{}`",
                given.len(),
                shown(given)
            )));
        }
        let below = if given.starts_with('/') { self.strip_root(given)? } else { Path::new(given) };
        let mut parts = Vec::new();
        for part in below.to_str().unwrap_or_default().split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    return Err(invalid(format!("the path `{}` contains `..`", shown(given)))
                        .suggest("Use a path relative to the working directory, without `..`."));
                }
                part if part.len() > MAX_NAME => {
                    return Err(invalid(format!(
                        "a name in the path has {} bytes; the maximum is {MAX_NAME}: `{}`",
                        part.len(),
                        shown(part)
                    )));
                }
                part => parts.push(part),
            }
        }
        Ok(if parts.is_empty() { ".".into() } else { parts.join("/") })
    }

    fn strip_root<'a>(&self, given: &'a str) -> Result<&'a Path, ToolError> {
        let own = self.shown();
        Path::new(given).strip_prefix(&own).map_err(|_| {
            let inside = Path::new(given).strip_prefix(WORKSPACE_INSIDE).ok();
            let hint = match inside {
                Some(below) => format!(
                    "`{WORKSPACE_INSIDE}` is the working directory inside the sandbox: here it is `{}`.",
                    shown(if below.as_os_str().is_empty() { "." } else { below.to_str().unwrap_or(".") })
                ),
                None => "Use a path relative to the working directory.".to_owned(),
            };
            let message =
                format!("the path `{}` is outside the working directory `{}`", shown(given), own.display());
            at_path(ToolError::invalid_path(message), given).suggest(hint)
        })
    }

    /// Reserves room for bytes and new entries before a write.
    pub(super) fn take_room(&self, given: &str, bytes: u64, entries: u64) -> Result<(), ToolError> {
        self.budget.take(&self.root, given, Room { bytes, entries })
    }

    /// Rejects a relative path that other programs would execute. `lookup` returns the current kind of a path.
    pub(super) fn check_writable(
        &self,
        relative: &str,
        given: &str,
        lookup: &dyn Fn(&Path) -> Option<ProtectedEntryKind>,
    ) -> Result<(), ToolError> {
        if relative.chars().any(char::is_control) {
            let message = format!("the path `{}` has a control character", shown(given));
            return Err(at_path(ToolError::invalid_path(message), given)
                .suggest("Choose a name without control characters."));
        }
        let path = Path::new(relative);
        let change = SingleChange::new(path, Some(ProtectedEntryKind::File), lookup);
        let other = self.protected.iter().filter(|one| !one.is_whole() && !is_code(one)).cloned();
        let rules = DirectoryRules::of_host(&self.shown(), other, []);
        if let Some(rule) = rules.protection(path, &change).filter(|_| !self.admits(path)) {
            return Err(Self::rejected(Rejection::Protected(rule), given));
        }
        // A private copy has protected paths of its own, and those of its original.
        let code = || self.protected.iter().filter(|protected| is_code(protected)).cloned();
        let is_code = |directory: &Path| {
            DirectoryRules::new(directory, code(), [PathBuf::from(".")]).protection(path, &change).is_some()
        };
        if is_code(&self.path()) || is_code(&self.shown()) {
            return Err(rejected_code(given));
        }
        self.check_protected(relative, given)
    }

    /// Whether the operator allows a protected path.
    pub(super) fn admits(&self, relative: &Path) -> bool {
        let path = if self.is_divided { relative.to_owned() } else { self.beneath.join(relative) };
        self.admitted.iter().any(|admitted| path.starts_with(admitted))
    }

    /// The error of a protected path.
    pub(super) fn rejected(rejection: Rejection, given: &str) -> ToolError {
        let message = format!("`{}` cannot be written: {rejection}", shown(given));
        let error = at_path(ToolError::permission(message), given);
        if rejection.is_allowable() {
            let text = "Write another file. The operator can allow this path.";
            return error.suggest(Suggestion::with_hint(text, &SandboxHint::AllowProtected));
        }
        error.suggest("Write another file.")
    }
}

impl Directory {
    /// Rejects a path that is, is beneath, or is a missing parent of one of the host's protected paths.
    fn check_protected(&self, relative: &str, given: &str) -> Result<(), ToolError> {
        let target = folded(&self.path().join(relative));
        let is_protected = |protected: &ProtectedPath| {
            let path = folded(protected.path());
            target.starts_with(&path) || path.starts_with(&target)
        };
        let mut paths = self.protected.iter().filter(|protected| protected.is_whole());
        if paths.any(is_protected) { Err(rejected_trusted(given)) } else { Ok(()) }
    }
}

/// Folds names that differ only in case, or in trailing dots and spaces.
fn folded(path: &Path) -> PathBuf {
    let part = |part: &std::ffi::OsStr| part.to_string_lossy().trim_end_matches(['.', ' ']).to_lowercase();
    path.iter().map(part).collect()
}

/// The error for a path that the sandbox hides.
pub(super) fn is_hidden(given: &str) -> ToolError {
    let message = format!("`{}` cannot be read: Toolpost keeps its own files there", shown(given));
    at_path(ToolError::permission(message), given).suggest("Read another file.")
}

/// The error for a path that the operator protects.
pub(super) fn rejected_trusted(given: &str) -> ToolError {
    let message = format!("`{}` cannot be written: the operator protects this path", shown(given));
    at_path(ToolError::permission(message), given)
        .suggest("Write another file; only the operator changes files that decide what runs.")
}

/// Whether a protected path is a directory with code, in which other files may change.
fn is_code(protected: &ProtectedPath) -> bool {
    matches!(protected, ProtectedPath::Code { .. })
}

/// The error for a file that a trusted target can load as code.
pub(super) fn rejected_code(given: &str) -> ToolError {
    let reason = ProtectionRule::from(Protection::TrustedCode);
    let message = format!("`{}` cannot be written: {reason}", shown(given));
    at_path(ToolError::permission(message), given).suggest(
        "Write another file. The operator can edit this one on the host, and trust the target again.",
    )
}

/// Resolves an operator's directory.
fn real(path: &Path) -> Result<PathBuf, ToolError> {
    let invalid = |reason: String| {
        ToolError::precondition(format!("cannot use the working directory `{}`: {reason}", path.display()))
            .suggest("Create the directory, or use another working directory.")
    };
    let real = std::fs::canonicalize(path).map_err(|error| invalid(error.to_string()))?;
    if real.is_dir() { Ok(real) } else { Err(invalid("it is not a directory".into())) }
}

/// A caller's text for a message: escaped and truncated.
pub(crate) fn shown(text: &str) -> String {
    const MAX_SHOWN: usize = 120;
    let mut short: String = text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        short.push('…');
    }
    short.replace("\\'", "'").replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        Directory {
            root: "/srv/data".into(),
            original: None,
            beneath: "run".into(),
            follows_links: true,
            admitted: Vec::new(),
            is_divided: false,
            protected: Vec::new(),
            changes: None,
            budget: budget(0, 0),
        }
    }

    #[test]
    fn paths_become_relative_or_are_rejected() {
        let directory = directory();
        for (given, relative) in [
            ("a.txt", "a.txt"),
            ("./a//b/", "a/b"),
            (".", "."),
            ("/srv/data/run/a", "a"),
            ("/srv/data/run", "."),
            ("..a", "..a"),
        ] {
            assert_eq!(directory.relative(given).unwrap(), relative, "{given}");
        }
        let long_name = "n".repeat(256);
        let long_path = "a/".repeat(3000);
        for given in [
            "",
            "..",
            "a/../b",
            "/etc/passwd",
            "/srv/data",
            "/srv/data/runner",
            "a\0b",
            &long_name,
            &long_path,
        ] {
            let error = directory.relative(given).unwrap_err();
            assert_eq!(error.code(), toolpost::Code::InvalidPath, "{given}");
            assert!(error.message().len() < 400, "{error}");
        }
        let error = directory.relative("/workspace/plots/a.png").unwrap_err();
        assert!(error.suggestion().unwrap().contains("`plots/a.png`"), "{error}");
    }
}
