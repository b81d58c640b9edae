//! The rules of one host directory: which of its paths code must not change.

use std::path::{Path, PathBuf};

use crate::ProtectedPath;
use crate::protected::{
    ChangedTree, EntryKind, Protection, folded_parts, kind_at, protection, starts_a_rule,
};

/// Directories of agents with checkouts in `worktrees`, which are ordinary projects. Lower case.
const WORKTREE_PARENTS: [&str; 3] = [".claude", ".codex", ".cursor"];

/// Judges changes of a host directory by relative path and by absolute path.
#[derive(Debug, Clone, Default)]
pub struct DirectoryRules {
    /// Protected paths that may change, relative to the directory.
    allowed: Vec<PathBuf>,
    protected: Vec<ProtectedPath>,
    /// Why nothing in the directory may change.
    whole: Option<Protection>,
    /// The folded names of protected paths beneath the directory.
    beneath: Vec<(Vec<String>, Protection)>,
    /// The end of the directory's own path, if a protected name can begin there.
    outer: Option<Outer>,
}

/// A directory's path, split before its first name that can begin a protected path.
#[derive(Debug, Clone)]
struct Outer {
    above: PathBuf,
    names: PathBuf,
}

impl DirectoryRules {
    /// The rules of a directory. Its path is absolute and without symbolic links.
    ///
    /// `allowed` are protected names that may change, relative to the directory; `.` allows all. They do not allow
    /// `protected` paths.
    pub fn new(
        directory: &Path,
        protected: impl IntoIterator<Item = ProtectedPath>,
        allowed: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        let protected: Vec<_> = protected.into_iter().collect();
        let whole = protected
            .iter()
            .find(|protected| directory.starts_with(protected.path()))
            .map(ProtectedPath::protection);
        let beneath = protected
            .iter()
            .filter_map(|protected| {
                let path = protected.path().strip_prefix(directory).ok()?;
                Some((folded_parts(path), protected.protection()))
            })
            .collect();
        // `Path::components` drops `.`.
        let allowed = allowed.into_iter().map(|path| path.components().filter(is_name).collect()).collect();
        Self { allowed, protected, whole, beneath, outer: Outer::of(directory) }
    }

    /// The protected names that may change.
    pub fn allowed(&self) -> &[PathBuf] {
        &self.allowed
    }

    /// The protected paths.
    pub fn protected(&self) -> &[ProtectedPath] {
        &self.protected
    }

    /// Whether the operator allows changes of a protected name.
    pub fn admits(&self, path: &Path) -> bool {
        self.allowed.iter().any(|allowed| path.starts_with(allowed))
    }

    /// Whether the sandbox hides a relative path.
    pub fn hides(&self, path: &Path) -> bool {
        let parts = folded_parts(path);
        self.beneath.iter().any(|(own, protection)| *protection == Protection::Own && parts.starts_with(own))
    }

    /// Whether the directory itself is protected.
    pub fn protects_all(&self) -> Option<Protection> {
        self.whole.or_else(|| {
            let outer = self.outer.as_ref().filter(|_| !self.admits(Path::new("")))?;
            // Any new name: in a repository, git reads some and ignores others.
            let probe = Path::new("toolpost-probe");
            outer.protection(probe, &Nothing)
        })
    }

    /// Returns why code must not change a relative path.
    ///
    /// A change is a new entry, other content, other attributes or a deletion.
    pub fn protection(&self, path: &Path, tree: &dyn ChangedTree) -> Option<Protection> {
        self.whole.or_else(|| self.of_protected(path, tree)).or_else(|| {
            if self.admits(path) {
                return None;
            }
            let outer = || self.outer.as_ref().and_then(|outer| outer.protection(path, tree));
            protection(path, tree).or_else(outer)
        })
    }

    /// Why a path is, is beneath, or leads to a protected path.
    fn of_protected(&self, path: &Path, tree: &dyn ChangedTree) -> Option<Protection> {
        if self.beneath.is_empty() {
            return None;
        }
        let parts = folded_parts(path);
        self.beneath.iter().find_map(|(protected, reason)| {
            let is_on_the_way = || {
                // A link in place of a directory above would lead elsewhere.
                protected.starts_with(&parts)
                    && tree.after(path).is_some_and(|kind| kind != EntryKind::Directory)
            };
            (parts.starts_with(protected) || is_on_the_way()).then_some(*reason)
        })
    }
}

fn is_name(part: &std::path::Component<'_>) -> bool {
    matches!(part, std::path::Component::Normal(_))
}

impl Outer {
    fn of(directory: &Path) -> Option<Self> {
        let folded = folded_parts(directory);
        let parents = folded.windows(2).rposition(|names| {
            names.first().is_some_and(|name| WORKTREE_PARENTS.contains(&name.as_str()))
                && names.last().is_some_and(|name| name == "worktrees")
        });
        let begin = parents.map_or(0, |parent| parent + 2);
        let start =
            (begin..folded.len()).find(|index| folded.get(*index).is_some_and(|name| starts_a_rule(name)))?;
        let mut names = directory.components().filter(is_name);
        let above = Path::new("/").join(names.by_ref().take(start).collect::<PathBuf>());
        Some(Self { above, names: names.collect() })
    }

    fn protection(&self, path: &Path, tree: &dyn ChangedTree) -> Option<Protection> {
        protection(&self.names.join(path), &Within { outer: self, tree })
    }
}

/// A directory's tree, seen from above the directory.
struct Within<'a> {
    outer: &'a Outer,
    tree: &'a dyn ChangedTree,
}

impl Within<'_> {
    fn at(&self, path: &Path, inside: impl FnOnce(&Path) -> Option<EntryKind>) -> Option<EntryKind> {
        match path.strip_prefix(&self.outer.names) {
            // The directory and those above.
            _ if self.outer.names.starts_with(path) => Some(EntryKind::Directory),
            Ok(path) => inside(path),
            Err(_) => kind_at(&self.outer.above.join(path)),
        }
    }
}

impl ChangedTree for Within<'_> {
    fn before(&self, path: &Path) -> Option<EntryKind> {
        self.at(path, |path| self.tree.before(path))
    }

    fn after(&self, path: &Path) -> Option<EntryKind> {
        self.at(path, |path| self.tree.after(path))
    }
}

/// A directory without entries.
struct Nothing;

impl ChangedTree for Nothing {
    fn before(&self, _path: &Path) -> Option<EntryKind> {
        None
    }

    fn after(&self, _path: &Path) -> Option<EntryKind> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(directory: &str, path: &str, rules: &[ProtectedPath], allowed: &[&str]) -> Option<Protection> {
        let allowed = allowed.iter().map(PathBuf::from);
        let rules = DirectoryRules::new(Path::new(directory), rules.iter().cloned(), allowed);
        let path = Path::new(path);
        rules.protection(path, &crate::SingleChange::new(path, Some(EntryKind::File), &|_| None))
    }

    #[test]
    fn the_path_of_the_directory_counts() {
        use Protection::{Agent, Editor, Repository, StartFile};
        for (directory, path, expected) in [
            ("/home/ada", "notes.md", None),
            ("/home/ada/.config", "notes.md", None),
            ("/home/ada/.config", "fish/config.fish", Some(StartFile)),
            ("/home/ada/.config/fish", "conf.d/a.fish", Some(StartFile)),
            ("/home/ada/.config/systemd/user", "a.service", Some(StartFile)),
            ("/home/ada/.config", "toolpost/config.toml", Some(Agent)),
            ("/home/ada/.local", "bin/ls", Some(StartFile)),
            ("/home/ada/.local/bin", "ls", Some(StartFile)),
            ("/home/ada/.local/lib", "x", None),
            ("/home/ada/p/.git", "hooks/pre-commit", Some(Repository)),
            ("/home/ada/p/.git", "config", Some(Repository)),
            ("/home/ada/p/.git", "objects/ab/cdef", None),
            ("/home/ada/p/.git/hooks", "pre-commit", Some(Repository)),
            ("/home/ada/p/.git/objects", "ab/cdef", None),
            ("/home/ada/p/.vscode", "tasks.json", Some(Editor)),
            ("/home/ada/p/.CLAUDE", "settings.json", Some(Agent)),
            ("/home/ada/p/.cargo", "config.toml", Some(Protection::PackageManager)),
            ("/home/ada/p/.cargo", "registry/x", None),
            ("/home/ada/p/.claude/worktrees/a", "src/main.rs", None),
            ("/home/ada/p/.claude/worktrees/a", ".claude/settings.json", Some(Agent)),
            ("/home/ada/p/.claude/worktrees/a/.git", "config", Some(Repository)),
            ("/home/ada/.cursor/worktrees/p/x", "src/main.rs", None),
            ("/home/ada/.cursor/extensions", "x.js", Some(Agent)),
            ("/srv/objects", "x", None),
        ] {
            assert_eq!(judged(directory, path, &[], &[]), expected, "{directory} {path}");
        }
        assert_eq!(judged("/home/ada/p/.vscode", "tasks.json", &[], &["."]), None);
        assert_eq!(judged("/home/ada/p/.vscode", "tasks.json", &[], &["tasks.json"]), None);
        let all = |directory: &str| DirectoryRules::new(Path::new(directory), [], []).protects_all();
        assert_eq!(all("/home/ada/p/.git"), Some(Repository));
        assert_eq!(all("/home/ada/.config"), None);
        assert_eq!(all("/home/ada/.config/fish"), Some(StartFile));
    }

    #[test]
    fn a_bare_repository_above_the_directory_counts() {
        let place = tempfile::tempdir().unwrap();
        let real = place.path().canonicalize().unwrap();
        for name in ["objects", "refs", "hooks"] {
            std::fs::create_dir(real.join(name)).unwrap();
        }
        let hooks = real.join("hooks");
        assert_eq!(judged(hooks.to_str().unwrap(), "update", &[], &[]), None);
        std::fs::write(real.join("HEAD"), "").unwrap();
        assert_eq!(judged(hooks.to_str().unwrap(), "update", &[], &[]), Some(Protection::Repository));
    }

    #[test]
    fn protected_paths_hold_at_any_name_and_are_not_allowed() {
        let own =
            [ProtectedPath::Own("/h/.config/toolpost".into()), ProtectedPath::Trusted("/h/p/a.py".into())];
        for (directory, path, expected) in [
            ("/h", ".config/toolpost/config.toml", Some(Protection::Own)),
            ("/h", ".CONFIG/toolpost/config.toml", Some(Protection::Own)),
            // Here a file takes the place of the directory.
            ("/h", ".config", Some(Protection::Own)),
            ("/h", ".config/other", None),
            ("/h", "p/a.py", Some(Protection::Trusted)),
            ("/h", "p/b.py", None),
            ("/h/.config/toolpost/x", "y", Some(Protection::Own)),
            ("/other", "y", None),
        ] {
            assert_eq!(judged(directory, path, &own, &["."]), expected, "{directory} {path}");
        }
    }
}
