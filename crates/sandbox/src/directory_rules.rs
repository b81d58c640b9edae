//! The rules of one host directory: which of its paths code must not change.

use std::path::{Path, PathBuf};

use crate::obeyed::obeyed_paths;
use crate::protected::{
    ChangedTree, Mark, ProtectedEntryKind, Protection, ProtectionRule, SearchPath, folded_parts, kind_at,
    mark_of, protection, starts_a_rule,
};
use crate::{Loader, ProtectedPath, SingleChange};

/// Directories of agents with checkouts in `worktrees`, which are ordinary projects. Lower case.
const WORKTREE_PARENTS: [&str; 3] = [".claude", ".codex", ".cursor"];

/// Judges changes of a host directory by relative path and by absolute path.
#[derive(Debug, Clone, Default)]
pub struct DirectoryRules {
    /// Protected paths that may change, relative to the directory.
    allowed: Vec<PathBuf>,
    protected: Vec<ProtectedPath>,
    /// The reason why nothing in the directory may change.
    whole: Option<Protection>,
    /// The folded names of protected paths beneath the directory.
    beneath: Vec<(Vec<String>, Protection)>,
    /// The reason for which nothing may change unless the operator allows it.
    whole_obeyed: Option<Protection>,
    /// As `beneath`, of paths that the operator can allow.
    obeyed: Vec<(Vec<String>, Protection)>,
    code: Vec<CodeRule>,
    /// The end of the directory's own path, if a protected name can begin there, and the names of links.
    outer: Vec<Outer>,
    search_path: SearchPath,
}

/// Another name of the directory, or of a part of it: the path above, or the path of a link.
#[derive(Debug, Clone)]
struct Outer {
    /// The name, split before its first part that can begin a protected path.
    above: PathBuf,
    names: PathBuf,
    /// The part, relative; empty for the directory itself.
    inner: PathBuf,
    folded_inner: Vec<String>,
    /// The rule for a link in the place of a directory above the part.
    reason: ProtectionRule,
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
    /// `protected` paths. The `PATH` of this process counts beside each [`ProtectedPath::SearchPath`].
    pub fn new(
        directory: &Path,
        protected: impl IntoIterator<Item = ProtectedPath>,
        allowed: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        let mut protected: Vec<_> = protected.into_iter().collect();
        let entries = SearchPath::of_process().iter().filter(|entry| SearchPath::concerns(entry, directory));
        // Recorded, for an apply by another process.
        protected.extend(entries.cloned().map(ProtectedPath::SearchPath));
        let entries = protected.iter().filter(|one| matches!(one, ProtectedPath::SearchPath(_)));
        let mut rules = Self {
            // `Path::components` drops `.`.
            allowed: allowed.into_iter().map(|path| path.components().filter(is_name).collect()).collect(),
            outer: Outer::new(directory, PathBuf::new()).into_iter().collect(),
            search_path: SearchPath::beneath(directory, entries.map(ProtectedPath::path)),
            ..Self::default()
        };
        for one in &protected {
            match one {
                ProtectedPath::SearchPath(_) => {}
                ProtectedPath::Code { .. } => rules.code.extend(CodeRule::new(one, directory)),
                ProtectedPath::Linked { path, link } => {
                    rules.outer.extend(Outer::of_link(link, path, directory));
                }
                one => {
                    let (whole, beneath) = if one.is_allowable() {
                        (&mut rules.whole_obeyed, &mut rules.obeyed)
                    } else {
                        (&mut rules.whole, &mut rules.beneath)
                    };
                    if directory.starts_with(one.path()) {
                        whole.get_or_insert(one.protection());
                    } else if let Ok(path) = one.path().strip_prefix(directory) {
                        beneath.push((folded_parts(path), one.protection()));
                    }
                }
            }
        }
        Self { protected, ..rules }
    }

    /// The rules of a directory of the host, with the paths that its repositories and links make host programs execute
    /// or obey. They are read here, before a change is judged.
    pub fn of_host(
        directory: &Path,
        protected: impl IntoIterator<Item = ProtectedPath>,
        allowed: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        let mut protected: Vec<_> = protected.into_iter().collect();
        protected.extend(obeyed_paths(directory, &protected));
        Self::new(directory, protected, allowed)
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
    pub fn protects_all(&self) -> Option<ProtectionRule> {
        self.whole.map(Into::into).or_else(|| {
            if self.admits(Path::new("")) {
                return None;
            }
            // Any new name: in a repository, git reads some and ignores others.
            let probe = Path::new("toolpost-probe");
            let mut outer = self.outer.iter();
            self.whole_obeyed
                .map(Into::into)
                .or_else(|| outer.find_map(|outer| outer.protection(probe, &Nothing)))
        })
    }

    /// Returns the rule that protects a relative path from code.
    ///
    /// A change is a new entry, other content, other attributes or a deletion.
    pub fn protection(&self, path: &Path, tree: &dyn ChangedTree) -> Option<ProtectionRule> {
        let by_name = || if self.admits(path) { None } else { self.by_name(path, tree) };
        self.whole.or_else(|| self.of_protected(path, tree)).map(Into::into).or_else(by_name)
    }

    /// Returns the rule that protects a path that the operator allows.
    pub(crate) fn allowed_protection(&self, path: &Path, tree: &dyn ChangedTree) -> Option<ProtectionRule> {
        if self.admits(path) { self.by_name(path, tree) } else { None }
    }

    /// The rule that protects a name, also one that the operator allows.
    fn by_name(&self, path: &Path, tree: &dyn ChangedTree) -> Option<ProtectionRule> {
        let obeyed = || self.whole_obeyed.or_else(|| self.of_obeyed(path, tree)).map(Into::into);
        let outer = || self.outer.iter().find_map(|outer| outer.protection(path, tree));
        let on_path = || self.search_path.protection(path, tree);
        protection(path, tree).or_else(obeyed).or_else(outer).or_else(on_path)
    }

    /// The use of a changed file by other programs, and the path with this mark: a directory for everything beneath.
    pub fn mark<'a>(&self, path: &'a Path) -> Option<(Mark, &'a Path)> {
        if self.search_path.runs(path) {
            return Some((Mark::SearchPath, path));
        }
        let (mark, length) = mark_of(path)?;
        let above = path.components().count().saturating_sub(length);
        path.ancestors().nth(above).map(|path| (mark, path))
    }

    /// The reason why a path is, is beneath, or leads to a protected path.
    fn of_protected(&self, path: &Path, tree: &dyn ChangedTree) -> Option<Protection> {
        if self.beneath.is_empty() && self.code.is_empty() {
            return None;
        }
        let parts = folded_parts(path);
        if self.code.iter().any(|rule| rule.denies(path, &parts, tree)) {
            return Some(Protection::TrustedCode);
        }
        find(&self.beneath, &parts, path, tree)
    }

    /// The reason if a path is, is beneath, or leads to a path that host programs execute or obey.
    fn of_obeyed(&self, path: &Path, tree: &dyn ChangedTree) -> Option<Protection> {
        if self.obeyed.is_empty() {
            return None;
        }
        find(&self.obeyed, &folded_parts(path), path, tree)
    }
}

/// The reason of the first protected path that is, is above, or is beneath a path.
fn find(
    protected: &[(Vec<String>, Protection)],
    parts: &[String],
    path: &Path,
    tree: &dyn ChangedTree,
) -> Option<Protection> {
    let found = protected.iter().find(|(protected, _)| {
        parts.starts_with(protected) || protected.starts_with(parts) && is_not_directory(path, tree)
    });
    found.map(|(_, reason)| *reason)
}

/// Whether a link or a file takes the place of a directory: it would lead elsewhere.
fn is_not_directory(path: &Path, tree: &dyn ChangedTree) -> bool {
    tree.after(path).is_some_and(|kind| kind != ProtectedEntryKind::Directory)
}

impl CodeRule {
    fn new(protected: &ProtectedPath, directory: &Path) -> Option<Self> {
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
            return self.below.starts_with(parts) && is_not_directory(path, tree);
        };
        let beneath = [self.above.as_slice(), own].concat();
        let is =
            |kind: Option<ProtectedEntryKind>| kind.is_some_and(|kind| kind != ProtectedEntryKind::Directory);
        if self.loader.loads(&beneath) {
            return is(tree.after(path)) || is(tree.before(path));
        }
        let (before, after) = (tree.before(path), tree.after(path));
        let is_link = [before, after].contains(&Some(ProtectedEntryKind::Link));
        let follows = || own.last().is_some_and(|name| self.loader.follows(name));
        is_link && (before == Some(ProtectedEntryKind::Directory) || follows())
    }
}

fn is_name(part: &std::path::Component<'_>) -> bool {
    matches!(part, std::path::Component::Normal(_))
}

impl Outer {
    /// The name of a path for a part of the judged directory.
    fn new(name: &Path, inner: PathBuf) -> Option<Self> {
        let folded = folded_parts(name);
        let parents = folded.windows(2).rposition(|names| {
            names.first().is_some_and(|name| WORKTREE_PARENTS.contains(&name.as_str()))
                && names.last().is_some_and(|name| name == "worktrees")
        });
        let begin = parents.map_or(0, |parent| parent + 2);
        let start =
            (begin..folded.len()).find(|index| folded.get(*index).is_some_and(|name| starts_a_rule(name)))?;
        let mut names = name.components().filter(is_name);
        let above = Path::new("/").join(names.by_ref().take(start).collect::<PathBuf>());
        let names: PathBuf = names.collect();
        let lookup = |path: &Path| kind_at(&above.join(path));
        let reason = protection(&names, &SingleChange::new(&names, Some(ProtectedEntryKind::Link), &lookup));
        let reason = reason.unwrap_or_else(|| Protection::Repository.into());
        Some(Self { folded_inner: folded_parts(&inner), above, names, inner, reason })
    }

    /// The name of a link for its target in the judged directory, or for the directory in its target.
    fn of_link(link: &Path, target: &Path, directory: &Path) -> Option<Self> {
        match (target.strip_prefix(directory), directory.strip_prefix(target)) {
            (Ok(inner), _) => Self::new(link, inner.to_owned()),
            (_, Ok(rest)) => Self::new(&link.join(rest), PathBuf::new()),
            _ => None,
        }
    }

    fn protection(&self, path: &Path, tree: &dyn ChangedTree) -> Option<ProtectionRule> {
        if self.folded_inner.is_empty() {
            return protection(&self.names.join(path), &Within { outer: self, tree });
        }
        let parts = folded_parts(path);
        if !parts.starts_with(&self.folded_inner) {
            let is_above = self.folded_inner.starts_with(&parts);
            return (is_above && is_not_directory(path, tree)).then_some(self.reason);
        }
        let rest: PathBuf = path.components().filter(is_name).skip(self.folded_inner.len()).collect();
        // `join` of an empty path would add a separator.
        let name = if rest.as_os_str().is_empty() { self.names.clone() } else { self.names.join(rest) };
        protection(&name, &Within { outer: self, tree })
    }
}

/// A directory's tree under another name.
struct Within<'a> {
    outer: &'a Outer,
    tree: &'a dyn ChangedTree,
}

impl Within<'_> {
    fn at(
        &self,
        path: &Path,
        inside: impl FnOnce(&Path) -> Option<ProtectedEntryKind>,
    ) -> Option<ProtectedEntryKind> {
        let Outer { names, inner, .. } = self.outer;
        let is_whole = inner.as_os_str().is_empty();
        match path.strip_prefix(names) {
            // The directory and those above.
            _ if names.starts_with(path) && (is_whole || names != path) => {
                Some(ProtectedEntryKind::Directory)
            }
            Ok(path) if path.as_os_str().is_empty() => inside(inner),
            Ok(path) => inside(&inner.join(path)),
            Err(_) => kind_at(&self.outer.above.join(path)),
        }
    }
}

impl ChangedTree for Within<'_> {
    fn before(&self, path: &Path) -> Option<ProtectedEntryKind> {
        self.at(path, |path| self.tree.before(path))
    }

    fn after(&self, path: &Path) -> Option<ProtectedEntryKind> {
        self.at(path, |path| self.tree.after(path))
    }

    fn judges_commits(&self) -> bool {
        self.tree.judges_commits()
    }
}

/// A directory without entries.
struct Nothing;

impl ChangedTree for Nothing {
    fn before(&self, _path: &Path) -> Option<ProtectedEntryKind> {
        None
    }

    fn after(&self, _path: &Path) -> Option<ProtectedEntryKind> {
        None
    }

    /// A directory is protected as a whole only if it is so for every change.
    fn judges_commits(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(directory: &str, path: &str, rules: &[ProtectedPath], allowed: &[&str]) -> Option<Protection> {
        let allowed = allowed.iter().map(PathBuf::from);
        let rules = DirectoryRules::new(Path::new(directory), rules.iter().cloned(), allowed);
        let path = Path::new(path);
        let change = crate::SingleChange::new(path, Some(ProtectedEntryKind::File), &|_| None)
            .with_judged_commits(true);
        rules.protection(path, &change).map(|rule| rule.kind)
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
            ("/home/ada/p/.cargo", "bin/cargo", Some(StartFile)),
            ("/home/ada/p/.cargo", "config.toml", None),
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
        let all = |directory: &str| {
            DirectoryRules::new(Path::new(directory), [], []).protects_all().map(|rule| rule.kind)
        };
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
        use ProtectedEntryKind::{Directory, File, Link};
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
            let found = found.map(|rule| rule.kind);
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
