//! The directories of `PATH` that a host directory contains: a new program there must not replace one of the system.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{ChangedTree, ProtectedEntryKind, Protection, ProtectionRule, folded_parts, kind_at};

/// The directories of programs that a shell is expected to run.
const SYSTEM: [&str; 4] = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
/// Programs that each environment of Python has, also with a version.
const OF_ENVIRONMENT: [&str; 2] = ["python", "pip"];
/// The file that makes a directory an environment of Python.
const ENVIRONMENT: &str = "pyvenv.cfg";
const PATH: &str = "PATH";

/// Directories of a search path, as names from the root of the file system.
#[derive(Debug, Clone, Default)]
pub(crate) struct SearchPath {
    /// The names of the judged directory.
    names: Vec<String>,
    absolute: Vec<SearchPathEntry>,
    /// Entries that count in every directory, by their last names.
    relative: Vec<Vec<String>>,
}

/// An absolute entry of a search path.
#[derive(Debug, Clone)]
struct SearchPathEntry {
    names: Vec<String>,
    /// Is in an environment of Python, or in a directory that is missing and can become one. Code does not
    /// make an environment around existing programs.
    is_environment: bool,
}

impl SearchPathEntry {
    fn from_path(path: &Path) -> Self {
        let is_environment = path.parent().is_some_and(|environment| {
            kind_at(environment).is_none() || kind_at(&environment.join(ENVIRONMENT)).is_some()
        });
        Self { names: folded_parts(path), is_environment }
    }
}

impl SearchPath {
    /// The entries of this process's `PATH`, with and without symbolic links.
    pub(crate) fn of_process() -> &'static [PathBuf] {
        static ENTRIES: OnceLock<Vec<PathBuf>> = OnceLock::new();
        ENTRIES.get_or_init(|| {
            #[expect(
                clippy::disallowed_methods,
                reason = "the default of every caller judges the changes of code"
            )]
            let path = std::env::var_os(PATH).unwrap_or_default();
            let given: Vec<PathBuf> = std::env::split_paths(&path).collect();
            let real = given.iter().filter(|entry| entry.is_absolute());
            let real: Vec<PathBuf> = real.filter_map(|entry| entry.canonicalize().ok()).collect();
            given.into_iter().chain(real).collect()
        })
    }

    /// Whether an entry can be a directory beneath another.
    pub(crate) fn concerns(entry: &Path, directory: &Path) -> bool {
        !entry.is_absolute() || entry.starts_with(directory)
    }

    /// The entries that are, or are beneath, a directory without symbolic links.
    pub(crate) fn beneath<'a>(directory: &Path, entries: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut found = Self::default();
        for entry in entries.into_iter().filter(|entry| Self::concerns(entry, directory)) {
            if entry.is_absolute() {
                found.absolute.push(SearchPathEntry::from_path(entry));
            } else {
                found.relative.push(folded_parts(entry));
            }
        }
        if !found.absolute.is_empty() || !found.relative.is_empty() {
            found.names = folded_parts(directory);
        }
        found
    }

    fn has(&self, directory: &[String]) -> bool {
        self.absolute.iter().any(|entry| entry.names == directory)
            || self.relative.iter().any(|entry| directory.ends_with(entry))
    }

    /// The folded names of a path from the root on; none if the search path does not matter.
    fn names_of(&self, path: &Path) -> Option<Vec<String>> {
        let is_empty = self.absolute.is_empty() && self.relative.is_empty();
        (!is_empty).then(|| self.names.iter().cloned().chain(folded_parts(path)).collect())
    }

    /// Whether an entry at a relative path runs by name.
    pub(crate) fn runs(&self, path: &Path) -> bool {
        let names = self.names_of(path);
        names.as_deref().and_then(<[String]>::split_last).is_some_and(|(_, above)| self.has(above))
    }

    /// Judges a change of a relative path.
    pub(crate) fn protection(&self, path: &Path, tree: &dyn ChangedTree) -> Option<ProtectionRule> {
        let names = self.names_of(path)?;
        let after = tree.after(path)?;
        // A link in place of a directory of the search path, or of one above, leads to other programs.
        let is_begin = || {
            self.absolute.iter().any(|entry| entry.names.starts_with(&names))
                || self.relative.iter().any(|entry| {
                    (1..=entry.len())
                        .any(|length| entry.get(..length).is_some_and(|begin| names.ends_with(begin)))
                })
        };
        let denied = || Some(Protection::SearchPath.into());
        if after == ProtectedEntryKind::Link && is_begin() {
            return denied();
        }
        let (last, above) = names.split_last()?;
        let is_new = || tree.before(path).is_none_or(|before| before == ProtectedEntryKind::Directory);
        // The entries of the directory above as an environment.
        let is_in = |entry: &&SearchPathEntry| {
            entry.names.split_last().is_some_and(|(_, environment)| environment == above)
        };
        if last == ENVIRONMENT
            && self.absolute.iter().any(|entry| is_in(&entry) && !entry.is_environment)
            && is_new()
        {
            return denied();
        }
        let is_program =
            matches!(after, ProtectedEntryKind::File | ProtectedEntryKind::Link) && self.has(above);
        if !is_program || !is_new() || !is_of_system(path, last) {
            return None;
        }
        let is_version = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        let is_of_environment =
            OF_ENVIRONMENT.iter().filter_map(|name| last.strip_prefix(name)).any(is_version);
        if is_of_environment && self.in_environment(path, above, tree) { None } else { denied() }
    }

    /// Whether a program is in an environment, by its directory.
    fn in_environment(&self, path: &Path, directory: &[String], tree: &dyn ChangedTree) -> bool {
        // A relative entry counts in every directory, and code could make an environment of one.
        if !self.absolute.iter().any(|entry| entry.is_environment && entry.names == directory) {
            return false;
        }
        match path.parent().and_then(Path::parent) {
            Some(environment) => tree.after(&environment.join(ENVIRONMENT)).is_some(),
            // The judged directory is that of the programs, and existed.
            None => true,
        }
    }
}

/// Whether the system has a program of this name, or Toolpost is meant.
fn is_of_system(path: &Path, folded: &str) -> bool {
    let given = path.file_name().unwrap_or_default();
    let has = |directory: &&str| {
        let directory = Path::new(directory);
        kind_at(&directory.join(given)).is_some() || kind_at(&directory.join(folded)).is_some()
    };
    folded == "toolpost" || SYSTEM.iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SingleChange;

    /// The judgement of a new or changed program; the host has `before`.
    fn judged(entry: &str, directory: &str, path: &str, after: ProtectedEntryKind, before: &[&str]) -> bool {
        let search_path = SearchPath::beneath(Path::new(directory), [Path::new(entry)]);
        let lookup = |path: &Path| {
            let is_there = before.iter().any(|known| Path::new(known) == path);
            let is_above = before.iter().any(|known| Path::new(known).starts_with(path));
            let kind = if is_there { ProtectedEntryKind::File } else { ProtectedEntryKind::Directory };
            is_above.then_some(kind)
        };
        let path = Path::new(path);
        search_path.protection(path, &SingleChange::new(path, Some(after), &lookup)).is_some()
    }

    #[test]
    fn new_programs_of_the_system_are_denied() {
        use ProtectedEntryKind::{Directory, File, Link};
        for (entry, directory, path, after, before, expected) in [
            ("/p/bin", "/p", "bin/ls", File, &[][..], true),
            ("/p/bin", "/p", "BIN/LS", File, &[], true),
            ("/p/bin", "/p", "bin/ls", Link, &[], true),
            ("/p/bin", "/p", "bin/toolpost", File, &[], true),
            ("/p/bin", "/p", "bin/ls", Directory, &[], false),
            ("/p/bin", "/p", "bin/own-tool", File, &[], false),
            ("/p/bin", "/p", "bin/ls", File, &["bin/ls"], false),
            // A directory of the name becomes a program.
            ("/p/bin", "/p", "bin/ls", File, &["bin/ls/x"], true),
            ("/p/bin", "/p", "bin/sub/ls", File, &[], false),
            ("/p/bin", "/p", "other/ls", File, &[], false),
            ("/p/bin", "/p/bin", "ls", File, &[], true),
            ("/p/bin", "/p/bin/sub", "ls", File, &[], false),
            ("/p/bin", "/q", "bin/ls", File, &[], false),
            // A link on the way.
            ("/p/bin", "/p", "bin", Link, &[], true),
            ("/p/a/bin", "/p", "a", Link, &[], true),
            ("/p/a/bin", "/p", "a", Directory, &[], false),
            ("/p/a/bin", "/p", "b", Link, &[], false),
            // Relative entries count in every directory.
            ("node_modules/.bin", "/p", "a/node_modules/.bin/ls", File, &[], true),
            ("./bin", "/p", "a/bin/ls", File, &[], true),
            ("../bin", "/p", "bin/ls", File, &[], true),
            ("bin", "/p/bin", "ls", File, &[], true),
            ("bin", "/p", "a/bin", Link, &[], true),
            ("bin", "/p", "a/ls", File, &[], false),
            (".", "/p", "a/ls", File, &[], true),
            ("", "/p", "ls", File, &[], true),
        ] {
            assert_eq!(judged(entry, directory, path, after, before), expected, "{entry} {directory} {path}");
        }
    }

    #[test]
    fn an_environment_has_its_python_and_none_is_made_around_programs() {
        use ProtectedEntryKind::{File, Link};
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        for name in ["env/bin", "old/bin", "bin"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::fs::write(root.join("env/pyvenv.cfg"), "").unwrap();
        let has_python = kind_at(Path::new("/usr/bin/python3")).is_some();
        let entries = ["env/bin", "old/bin", "bin", "new/bin"].map(|name| root.join(name));
        for (directory, path, kind, created, expected) in [
            ("", "env/bin/python3", Link, None, false),
            ("", "env/bin/pip3", File, None, false),
            ("", "env/bin/sh", File, None, true),
            ("env", "bin/python3", Link, None, false),
            ("env/bin", "python3", Link, None, false),
            ("", "old/bin/python3", File, Some("old/pyvenv.cfg"), has_python),
            ("", "old/pyvenv.cfg", File, None, true),
            ("", "pyvenv.cfg", File, None, true),
            ("", "other/pyvenv.cfg", File, None, false),
            ("", "env/pyvenv.cfg", File, None, false),
            ("", "bin/python3", File, None, has_python),
            ("", "new/bin/python3", File, Some("new/pyvenv.cfg"), false),
            ("", "new/bin/python3", File, None, has_python),
            ("", "new/pyvenv.cfg", File, None, false),
        ] {
            let directory = root.join(directory).components().collect::<PathBuf>();
            let search_path = SearchPath::beneath(&directory, entries.iter().map(PathBuf::as_path));
            let lookup = |path: &Path| {
                let is_created = created.is_some_and(|created| Path::new(created) == path);
                is_created.then_some(File).or_else(|| kind_at(&directory.join(path)))
            };
            let path = Path::new(path);
            let found = search_path.protection(path, &SingleChange::new(path, Some(kind), &lookup));
            assert_eq!(found.is_some(), expected, "{} in {}", path.display(), directory.display());
        }
    }

    #[test]
    fn programs_of_the_search_path_are_marked() {
        let search_path = SearchPath::beneath(Path::new("/p"), ["/p/bin", "tools"].map(Path::new));
        for (path, expected) in
            [("bin/x", true), ("bin/sub/x", false), ("a/tools/x", true), ("x", false), ("bin", false)]
        {
            assert_eq!(search_path.runs(Path::new(path)), expected, "{path}");
        }
    }
}
