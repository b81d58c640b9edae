//! The own files of a server, which none of its tools reaches.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use toolpost_tools::FileRoot;

use super::{Config, paths};
use crate::failure::Failure;
use crate::style::label;

/// The most symbolic links that a path passes.
const MAX_LINKS: usize = 40;

/// A server that this command runs.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// The directory of its tools.
    root: FileRoot,
    own: Vec<OwnFile>,
}

/// A file or directory of a server.
#[derive(Clone, Debug)]
pub(crate) struct OwnFile {
    name: &'static str,
    path: PathBuf,
    /// The entries that opening the path passes, the last of them without links.
    entries: Vec<PathBuf>,
}

impl Service {
    /// A server whose tools work in a directory.
    pub(crate) fn new(root: FileRoot) -> Self {
        Self { root, own: Vec::new() }
    }

    /// Adds a file or directory of the server.
    #[must_use]
    pub(crate) fn own(mut self, name: &'static str, path: Option<impl Into<PathBuf>>) -> Self {
        self.own.extend(path.map(|path| {
            let path = path.into();
            let entries = entries(&path);
            OwnFile { name, path, entries }
        }));
        self
    }

    /// Adds the directories of settings, state, data and cache.
    #[must_use]
    pub(crate) fn own_directories(self) -> Self {
        paths::own().into_iter().fold(self, |service, (name, path)| service.own(name, Some(path)))
    }

    /// Rejects a root that has own files.
    pub(crate) fn check_root(&self) -> Result<(), Failure> {
        let root = self.root.path();
        match self.own.iter().find(|own| own.is_reached_from(root)) {
            None => Ok(()),
            Some(own) => Err(Failure::usage(format!("tools can reach {own} in `{}`", shown(root)))
                .hint("Move it, or name another directory with `--workdir DIR`.")),
        }
    }
}

impl std::fmt::Display for OwnFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} `{}`", self.name, shown(&self.path))
    }
}

impl OwnFile {
    /// Whether a directory or file is, has or is in this one, or has a link on its path.
    fn is_reached_from(&self, path: &Path) -> bool {
        let passed = entries(path);
        let (Some(path), Some(own)) = (passed.last(), self.entries.last()) else { return true };
        let is_below = |entry: &PathBuf| entry != path && entry.starts_with(path);
        path.starts_with(own) || self.entries.iter().any(is_below)
    }
}

impl Config {
    /// The settings of a command that runs a server.
    pub(crate) fn serving(&self, service: Service) -> Self {
        Self { service: Some(Arc::new(service)), ..self.clone() }
    }

    /// The root of all tools, if the command runs a server.
    pub(crate) fn tool_root(&self) -> Option<FileRoot> {
        Some(self.service.as_ref()?.root.clone())
    }

    /// Rejects a path that a target gets, if it leads to own files of the server.
    pub(crate) fn check_reach(&self, target: &str, path: &Path) -> Result<(), Failure> {
        let mut own = self.service.iter().flat_map(|service| &service.own);
        match own.find(|own| own.is_reached_from(path)) {
            None => Ok(()),
            Some(own) => {
                let (target, path) = (label(target), shown(path));
                Err(Failure::usage(format!("`{target}` can reach {own} in `{path}`")).hint(
                    "Grant another directory (`--target-workdir`, `--readable`, `--writable`), or move it.",
                ))
            }
        }
    }
}

fn shown(path: &Path) -> String {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    label(&path.display().to_string())
}

/// The entries that opening a path passes, which may be missing. A change of one leads elsewhere; the last one has no
/// links.
fn entries(path: &Path) -> Vec<PathBuf> {
    // The directory of a file in the working directory has an empty path.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parts = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut open, mut here, mut links) = (parts(&absolute), PathBuf::new(), 0);
    let mut entries = Vec::new();
    while let Some(part) = open.pop() {
        match Path::new(&part).components().next() {
            Some(Component::ParentDir) => {
                here.pop();
            }
            Some(Component::Normal(name)) => {
                here.push(name);
                if links < MAX_LINKS
                    && let Ok(target) = here.read_link()
                {
                    links += 1;
                    entries.push(here.clone());
                    here.pop();
                    open.extend(parts(&target));
                    continue;
                }
            }
            _ => here.push(&part),
        }
        entries.push(here.clone());
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with links: `work` is the root of tools, `state` is another directory.
    #[cfg(unix)]
    fn world() -> (tempfile::TempDir, PathBuf) {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in ["work/inner", "state", "worker"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for (link, target) in [
            ("to-work", "work"),
            ("to-state", "state"),
            ("work/to-state", "../state"),
            ("through-work", "work/to-state"),
            ("to-missing", "work/missing/x"),
            ("absolute", root.join("work").to_str().unwrap()),
            ("state/up", ".."),
            ("circle", "circle"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        (directory, root)
    }

    #[cfg(unix)]
    #[test]
    fn own_files_are_found_through_links_and_missing_directories() {
        let (_directory, root) = world();
        for (own, is_reached) in [
            ("state/tasks.db", false),
            ("worker/tasks.db", false),
            ("worK/tasks.db", false),
            ("tasks.db", false),
            ("to-state/tasks.db", false),
            ("missing/a/tasks.db", false),
            ("work/../state/tasks.db", false),
            ("circle/tasks.db", false),
            ("work", true),
            ("work/tasks.db", true),
            ("work/inner/tasks.db", true),
            ("work/missing/a/b.db", true),
            ("state/../work/tasks.db", true),
            ("to-work/tasks.db", true),
            ("to-work/missing/tasks.db", true),
            ("absolute/tasks.db", true),
            ("to-missing", true),
            ("to-missing/tasks.db", true),
            ("state/up/work/tasks.db", true),
            // Code could change the link, so that the next start opens another file.
            ("work/to-state/tasks.db", true),
            ("through-work/tasks.db", true),
        ] {
            for work in ["work", "to-work", "absolute", "work/inner/.."] {
                let service = Service::new(FileRoot::new(root.join(work))).own("it", Some(root.join(own)));
                assert_eq!(service.check_root().is_err(), is_reached, "{own} from {work}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_root_within_an_own_directory_is_rejected() {
        let (_directory, root) = world();
        for (work, is_reached) in [
            ("state", true),
            ("state/inner", true),
            ("to-state/inner", true),
            ("work", true),
            ("work/to-state", true),
            ("state2", false),
            ("worker", false),
            ("work/inner", false),
        ] {
            let service = Service::new(FileRoot::new(root.join(work))).own("it", Some(root.join("state")));
            // `work` has a link to the directory, which it does not have itself.
            let expected = is_reached && work != "work";
            assert_eq!(service.check_root().is_err(), expected, "{work}");
        }
    }
}
