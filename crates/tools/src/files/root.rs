//! Which folder the file tools may see, and what a path in it may look like.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolpost::{Ctx, ToolError};
use toolpost_sandbox::{EntryKind, Rejection, SingleChange, protection};

use super::at_path;
use super::budget::{Budget, Room};

/// The longest path that is taken, in bytes: the kernel's `PATH_MAX`.
const MAX_PATH: usize = 4096;
/// The longest name in a path, in bytes: the kernel's `NAME_MAX`.
const MAX_NAME: usize = 255;
/// Where sandboxed code sees its working folder at level `strict`.
const WORKSPACE_INSIDE: &str = "/workspace";

/// The folder that file and code tools are confined to, given by the operator: `Toolbox::builder().provide(…)`.
///
/// Without one, the call's or the scope's working folder is the root. With both, the working folder must lie beneath
/// the root, and the tools are confined to the working folder.
#[derive(Clone, Debug)]
pub struct FileRoot {
    path: PathBuf,
    original: Option<PathBuf>,
    admitted: Vec<PathBuf>,
    host: Vec<PathBuf>,
    budget: Arc<Budget>,
}

impl FileRoot {
    /// How many bytes tools write, unless [`FileRoot::limits`] says otherwise: 4 GiB.
    pub const DEFAULT_BYTES: u64 = 4 << 30;
    /// How many files and folders tools create, unless [`FileRoot::limits`] says otherwise.
    pub const DEFAULT_ENTRIES: u64 = 500_000;

    /// A root that must exist when a tool is called.
    ///
    /// Protected paths ([`toolpost_sandbox::protection`]) are not written.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            original: None,
            admitted: Vec::new(),
            host: Vec::new(),
            budget: budget(Self::DEFAULT_BYTES, Self::DEFAULT_ENTRIES),
        }
    }

    /// Limits the bytes that tools write and the files and folders that they create; clones of the root share the count.
    /// Beyond, the folder is measured: a write fails with `LIMIT` if the folder would hold more than that.
    #[must_use]
    pub fn limits(mut self, bytes: u64, entries: u64) -> Self {
        self.budget = budget(bytes, entries);
        self
    }

    /// Allows writing these protected paths and what is beneath them.
    ///
    /// Each is relative to the root.
    #[must_use]
    pub fn allow_protected<P: Into<PathBuf>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.admitted.extend(paths.into_iter().map(Into::into));
        self
    }

    /// Protects files and directories of the host, each with everything beneath, under every name that leads to them:
    /// no file tool writes, replaces or makes one. The paths are absolute; one that is missing is protected too.
    #[must_use]
    pub fn protect(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        for path in paths {
            // A link and the file that it leads to are both protected.
            self.host.extend(path.canonicalize().ok().filter(|real| *real != path));
            self.host.push(path);
        }
        self
    }

    /// Names the directory that the root is a private copy of: its absolute paths mean those of the copy, and messages
    /// name it.
    #[must_use]
    pub fn copy_of(mut self, original: impl Into<PathBuf>) -> Self {
        self.original = Some(original.into());
        self
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory that callers name: the folder, or the one that it is a copy of.
    pub fn original(&self) -> &Path {
        self.original.as_deref().unwrap_or(&self.path)
    }
}

fn budget(bytes: u64, entries: u64) -> Arc<Budget> {
    Arc::new(Budget::new(Room { bytes, entries }))
}

/// The folder of one call.
#[derive(Debug)]
pub(crate) struct Folder {
    /// What the operator gave, without symbolic links.
    pub(super) root: PathBuf,
    /// What it is a copy of, if it is one.
    original: Option<PathBuf>,
    /// The working folder below it, empty when it is the root itself.
    pub(super) beneath: PathBuf,
    /// Whether reading follows links that stay inside.
    pub(super) follows_links: bool,
    /// Protected paths that may be written, relative to the root.
    admitted: Vec<PathBuf>,
    /// Files and directories of the host that are not written, by their absolute paths.
    pub(super) host: Vec<PathBuf>,
    budget: Arc<Budget>,
}

impl Folder {
    /// The folder of a call; `None` when nobody gave one.
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
                    "the working folder `{}` does not lie beneath the root `{}`",
                    working.display(),
                    path.display()
                ))
                .suggest("Call with a working folder beneath the root, or provide another `FileRoot`.")
            })?,
        };
        let FileRoot { original, admitted, host, budget, .. } = root;
        Ok(Some(Self { root: path, original, beneath, follows_links: true, admitted, host, budget }))
    }

    /// A root itself, in which no link is followed.
    pub(super) fn strict(root: &FileRoot) -> Result<Self, ToolError> {
        Ok(Self {
            root: real(&root.path)?,
            original: root.original.clone(),
            beneath: PathBuf::new(),
            follows_links: false,
            admitted: root.admitted.clone(),
            host: root.host.clone(),
            budget: Arc::clone(&root.budget),
        })
    }

    /// The folder of a call that cannot do without.
    pub(crate) fn of(ctx: &Ctx) -> Result<Self, ToolError> {
        Self::find(ctx)?.ok_or_else(|| {
            ToolError::precondition(
                "there is no folder to work in: the call has no working folder and no root",
            )
            .suggest(
                "Give the call or its scope a `working_dir` (`--workdir DIR` on the command line), \
                     or provide a `FileRoot` to the toolbox.",
            )
        })
    }

    /// Its path on the host.
    pub(crate) fn path(&self) -> PathBuf {
        self.root.join(&self.beneath)
    }

    /// The path by which callers name it.
    pub(super) fn shown(&self) -> PathBuf {
        let top = self.original.as_ref().unwrap_or(&self.root);
        // Without a separator at the end.
        top.join(&self.beneath).components().collect()
    }

    /// Checks a path that a caller gave and makes it relative to the folder; the folder itself is `.`. Symbolic links
    /// are not looked at: that is for the kernel, when the path is opened.
    pub(super) fn relative(&self, given: &str) -> Result<String, ToolError> {
        let refuse = |message: String| at_path(ToolError::invalid_path(message), given);
        if given.is_empty() {
            return Err(refuse("the path is empty: expected a path relative to the working folder".into()));
        }
        if let Some(place) = given.find('\0') {
            return Err(refuse(format!("the path `{}` has a NUL character at byte {place}", shown(given))));
        }
        if given.len() > MAX_PATH {
            return Err(refuse(format!(
                "the path has {} bytes, expected at most {MAX_PATH}: `{}`",
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
                    return Err(refuse(format!("the path `{}` has a part `..`", shown(given)))
                        .suggest("Give the path from the working folder downwards, without `..`."));
                }
                part if part.len() > MAX_NAME => {
                    return Err(refuse(format!(
                        "a name in the path has {} bytes, expected at most {MAX_NAME}: `{}`",
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
                    "`{WORKSPACE_INSIDE}` is the working folder as sandboxed code sees it: here it is `{}`.",
                    shown(if below.as_os_str().is_empty() { "." } else { below.to_str().unwrap_or(".") })
                ),
                None => "Give a path relative to the working folder.".to_owned(),
            };
            let message =
                format!("the path `{}` lies outside the working folder `{}`", shown(given), own.display());
            at_path(ToolError::invalid_path(message), given).suggest(hint)
        })
    }

    /// Takes room for bytes, and for a number of new files and folders, before they are written.
    pub(super) fn take_room(&self, given: &str, bytes: u64, entries: u64) -> Result<(), ToolError> {
        self.budget.take(&self.root, given, Room { bytes, entries })
    }

    /// Rejects a relative path that other programs would execute or obey. `lookup` returns what stands at a path now.
    pub(super) fn check_writable(
        &self,
        relative: &str,
        given: &str,
        lookup: &dyn Fn(&Path) -> Option<EntryKind>,
    ) -> Result<(), ToolError> {
        if relative.chars().any(char::is_control) {
            let message = format!("the path `{}` has a control character", shown(given));
            return Err(at_path(ToolError::invalid_path(message), given)
                .suggest("Choose a name of printable characters."));
        }
        let path = Path::new(relative);
        let change = SingleChange::new(path, Some(EntryKind::File), lookup);
        match protection(path, &change).filter(|_| !self.admits(path)) {
            None => self.check_host(relative, given),
            Some(protection) => Err(Self::rejected(Rejection::Protected(protection), given)),
        }
    }

    /// Whether the operator admits a protected path.
    pub(super) fn admits(&self, relative: &Path) -> bool {
        let path = self.beneath.join(relative);
        self.admitted.iter().any(|admitted| path.starts_with(admitted))
    }

    /// The error of a protected path.
    pub(super) fn rejected(rejection: Rejection, given: &str) -> ToolError {
        let message = format!("`{}` is not written: {rejection}", shown(given));
        at_path(ToolError::permission(message), given)
            .suggest("Write another file. The operator can allow this path with `FileRoot::allow_protected`.")
    }
}

impl Folder {
    /// Rejects a relative path that is a protected path of the host by its name, lies beneath one, or above one that is
    /// missing, where a directory would be made.
    fn check_host(&self, relative: &str, given: &str) -> Result<(), ToolError> {
        let wanted = folded(&self.path().join(relative));
        let is_protected = |path: &PathBuf| {
            let path = folded(path);
            wanted.starts_with(&path) || path.starts_with(&wanted)
        };
        match self.host.iter().find(|path| is_protected(path)) {
            None => Ok(()),
            Some(_) => Err(is_trusted(given)),
        }
    }
}

/// A path by which names that differ only in case, or in dots and spaces at their end, are the same.
fn folded(path: &Path) -> PathBuf {
    let part = |part: &std::ffi::OsStr| part.to_string_lossy().trim_end_matches(['.', ' ']).to_lowercase();
    path.iter().map(part).collect()
}

/// Why a path that the operator trusts is not written.
pub(super) fn is_trusted(given: &str) -> ToolError {
    let message = format!("`{}` is not written: the operator protects this path", shown(given));
    at_path(ToolError::permission(message), given)
        .suggest("Write another file; only the operator changes files that decide what runs.")
}

/// A folder of the operator's, without symbolic links.
fn real(path: &Path) -> Result<PathBuf, ToolError> {
    let refuse = |reason: String| {
        ToolError::precondition(format!("the working folder `{}` cannot be used: {reason}", path.display()))
            .suggest("Make the folder, or give another working folder.")
    };
    let real = std::fs::canonicalize(path).map_err(|error| refuse(error.to_string()))?;
    if real.is_dir() { Ok(real) } else { Err(refuse("it is not a folder".into())) }
}

/// A text of a caller's for a message: escaped and shortened.
pub(crate) fn shown(text: &str) -> String {
    const MAXIMUM: usize = 120;
    let mut short: String = text.chars().take(MAXIMUM).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAXIMUM).is_some() {
        short.push('…');
    }
    short.replace("\\'", "'").replace("\\\"", "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> Folder {
        Folder {
            root: "/srv/data".into(),
            original: None,
            beneath: "run".into(),
            follows_links: true,
            admitted: Vec::new(),
            host: Vec::new(),
            budget: budget(0, 0),
        }
    }

    #[test]
    fn paths_become_relative_or_are_refused() {
        let folder = folder();
        for (given, relative) in [
            ("a.txt", "a.txt"),
            ("./a//b/", "a/b"),
            (".", "."),
            ("/srv/data/run/a", "a"),
            ("/srv/data/run", "."),
            ("..a", "..a"),
        ] {
            assert_eq!(folder.relative(given).unwrap(), relative, "{given}");
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
            let error = folder.relative(given).unwrap_err();
            assert_eq!(error.code(), toolpost::Code::InvalidPath, "{given}");
            assert!(error.message().len() < 400, "{error}");
        }
        let error = folder.relative("/workspace/plots/a.png").unwrap_err();
        assert!(error.suggestion().unwrap().contains("`plots/a.png`"), "{error}");
    }
}
