//! The rules of one host directory: which of its paths code must not change.

use std::path::{Path, PathBuf};

use crate::protected::{
    ChangedTree, EntryKind, Protection, folded_parts, kind_at, protection, starts_a_rule,
};
use crate::{Loader, ProtectedPath};

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
    code: Vec<CodeRule>,
    /// The end of the directory's own path, if a protected name can begin there.
    outer: Option<Outer>,
}

/// A directory's path, split before its first name that can begin a protected path.
#[derive(Debug, Clone)]
struct Outer {
    above: PathBuf,
    names: PathBuf,
}

/// A directory from which a trusted program loads code, relative to the judged directory.
#[derive(Debug, Clone)]
struct CodeRule {
    loader: Loader,
    /// The folded names from the code directory to the judged one, if that is beneath.
    above: Vec<String>,
    /// The folded names from the judged directory to the code directory, if that is beneath.
    below: Vec<String>,
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
        let (code, whole_paths): (Vec<_>, Vec<_>) =
            protected.iter().partition(|protected| matches!(protected, ProtectedPath::Code { .. }));
        let code = code.into_iter().filter_map(|protected| CodeRule::of(protected, directory)).collect();
        let whole = whole_paths
            .iter()
            .find(|protected| directory.starts_with(protected.path()))
            .map(|protected| protected.protection());
        let beneath = whole_paths
            .iter()
            .filter_map(|protected| {
                let path = protected.path().strip_prefix(directory).ok()?;
                Some((folded_parts(path), protected.protection()))
            })
            .collect();
        // `Path::components` drops `.`.
        let allowed = allowed.into_iter().map(|path| path.components().filter(is_name).collect()).collect();
        Self { allowed, whole, beneath, code, outer: Outer::of(directory), protected }
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
        if self.beneath.is_empty() && self.code.is_empty() {
            return None;
        }
        let parts = folded_parts(path);
        if self.code.iter().any(|rule| rule.denies(path, &parts, tree)) {
            return Some(Protection::TrustedCode);
        }
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

impl CodeRule {
    fn of(protected: &ProtectedPath, directory: &Path) -> Option<Self> {
        let ProtectedPath::Code { directory: code, loader } = protected else { return None };
        let between = |path: &Path, base: &Path| path.strip_prefix(base).ok().map(folded_parts);
        let (above, below) = (between(directory, code), between(code, directory));
        (above.is_some() || below.is_some()).then(|| Self {
            loader: *loader,
            above: above.unwrap_or_default(),
            below: below.unwrap_or_default(),
        })
    }

    /// Whether a change affects what the program loads. A directory alone loads nothing.
    fn denies(&self, path: &Path, parts: &[String], tree: &dyn ChangedTree) -> bool {
        let Some(own) = parts.strip_prefix(self.below.as_slice()).filter(|own| !own.is_empty()) else {
            // A link in place of the code directory, or of one above, would lead elsewhere.
            return self.below.starts_with(parts)
                && tree.after(path).is_some_and(|kind| kind != EntryKind::Directory);
        };
        let beneath = [self.above.as_slice(), own].concat();
        let is = |kind: Option<EntryKind>| kind.is_some_and(|kind| kind != EntryKind::Directory);
        if self.loader.loads(&beneath) {
            return is(tree.after(path)) || is(tree.before(path));
        }
        let (before, after) = (tree.before(path), tree.after(path));
        let is_link = [before, after].contains(&Some(EntryKind::Link));
        let follows = || own.last().is_some_and(|name| self.loader.follows(name));
        is_link && (before == Some(EntryKind::Directory) || follows())
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
    fn code_of_a_trusted_program_stays_and_other_files_change() {
        use EntryKind::{Directory, File, Link};
        const CODE: Option<Protection> = Some(Protection::TrustedCode);
        let rule = |directory: &str, loader| ProtectedPath::Code { directory: directory.into(), loader };
        let python = [rule("/h/p/src", Loader::Python)];
        let any = [rule("/h/p/src", Loader::Any)];
        for (rules, directory, path, before, after, expected) in [
            (&python, "/h/p", "src/helper.py", Some(File), Some(File), CODE),
            (&python, "/h/p", "SRC/Helper.PY", None, Some(File), CODE),
            (&python, "/h/p", "src/helper.py", Some(File), None, CODE),
            // The program would import another module of this name.
            (&python, "/h/p", "src/json.py", None, Some(File), CODE),
            (&python, "/h/p", "src/json.py", Some(File), Some(Directory), CODE),
            (&python, "/h/p", "src/a/__pycache__/b.pyc", None, Some(File), CODE),
            (&python, "/h/p", "src/helper", None, Some(Directory), None),
            (&python, "/h/p", "src/helper", Some(Directory), None, None),
            (&python, "/h/p", "src/helper", None, Some(Link), CODE),
            (&python, "/h/p", "src/helper", Some(Link), None, CODE),
            (&python, "/h/p", "src/data.csv", None, Some(Link), None),
            (&python, "/h/p", "src/data.csv", Some(Directory), Some(Link), CODE),
            (&python, "/h/p", "src/data.csv", None, Some(File), None),
            (&python, "/h/p", "src/app.js", None, Some(File), None),
            (&python, "/h/p", "src", Some(Directory), Some(Link), CODE),
            (&python, "/h/p", "src", Some(Directory), Some(File), CODE),
            (&python, "/h/p", "src", Some(Directory), Some(Directory), None),
            (&python, "/h/p", "helper.py", None, Some(File), None),
            (&python, "/h", "p", Some(Directory), Some(Link), CODE),
            (&python, "/h/p/src", "helper.py", None, Some(File), CODE),
            (&python, "/h/p/src/a/b", "helper.py", None, Some(File), CODE),
            (&python, "/h/p/src/a/b", "notes.md", None, Some(File), None),
            (&python, "/h/p/other", "helper.py", None, Some(File), None),
            (&any, "/h/p", "src/data.csv", None, Some(File), CODE),
            (&any, "/h/p", "src/data", None, Some(Directory), None),
        ] {
            let rules = DirectoryRules::new(Path::new(directory), rules.iter().cloned(), [".".into()]);
            let lookup = |_: &Path| before;
            let path = Path::new(path);
            let found = rules.protection(path, &crate::SingleChange::new(path, after, &lookup));
            assert_eq!(found, expected, "{directory} {path:?} {before:?} {after:?}");
            assert_eq!(rules.protects_all(), None);
        }
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
