//! Paths that host programs execute or obey unasked: one table of names and shapes.
//!
//! Apply, file tools, artifacts, transfers and hosted files ask one question: may untrusted content be
//! written to this path on the host? Names are compared without case, trailing dots and spaces, and invisible
//! characters, because file systems and programs ignore different ones. A shape is anything that git treats
//! as a repository, whatever its name.

mod fold;
mod index;
mod search_path;
mod table;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use fold::ShortName;
use index::{Index, Pattern};
use table::{Row, Verdict};

pub(crate) use fold::fold;
pub(crate) use search_path::SearchPath;

/// The reason why a path is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Protection {
    /// Git executes the hooks and settings of a repository.
    Repository,
    /// Keys and credentials: `.ssh`, `.gnupg`, `.netrc` and others.
    Credentials,
    /// Start files of shells, readline, debuggers and interpreters.
    StartFile,
    /// Settings of an editor or a development container.
    Editor,
    /// Settings of an agent, and MCP servers that it starts.
    Agent,
    /// A directory of `PATH`: its programs run by name.
    SearchPath,
    /// Instructions to an agent that existed before.
    Instructions,
    /// A directory with hooks that git's configuration names.
    HooksPath,
    /// A file that git's configuration includes or names, and that git obeys.
    GitSetting,
    /// A program or script that git's configuration names.
    GitProgram,
    /// A file that Mercurial's configuration names.
    Mercurial,
    /// A file pinned by the operator's trust.
    Trusted,
    /// Code that a trusted target can load.
    TrustedCode,
    /// Settings, state, data or cache of Toolpost.
    Own,
}

/// The rule that protects a path: its kind, and the program that obeys the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ProtectionRule {
    /// The kind.
    pub kind: Protection,
    /// The program: `direnv`.
    pub program: &'static str,
    /// The rest of the sentence: `executes it when a shell enters the directory`.
    pub does: &'static str,
}

impl From<Protection> for ProtectionRule {
    fn from(kind: Protection) -> Self {
        let (program, does) = match kind {
            Protection::Repository => ("git", "executes hooks and settings of a repository"),
            Protection::Credentials => ("programs", "read credentials and access rules from it"),
            Protection::StartFile => ("shells and interpreters", "execute it when they start"),
            Protection::Editor => ("editors", "execute its settings"),
            Protection::Agent => ("agents", "obey it and start what it names"),
            Protection::SearchPath => ("the shell", "runs it instead of the system's program of this name"),
            Protection::Instructions => ("agents", "obey it"),
            Protection::HooksPath => ("git", "executes hooks in it: `core.hooksPath` names it"),
            Protection::GitSetting => ("git", "obeys it: its configuration names it"),
            Protection::GitProgram => ("git", "executes it: its configuration names it"),
            Protection::Mercurial => ("Mercurial", "executes or obeys it: its configuration names it"),
            Protection::Trusted => ("a trusted file", "pins its content"),
            Protection::TrustedCode => ("a trusted target", "loads code from its directory"),
            Protection::Own => ("Toolpost", "keeps its own files there"),
        };
        Self { kind, program, does }
    }
}

impl ProtectionRule {
    fn new(row: &Row, kind: Protection) -> Self {
        Self { kind, program: row.program, does: row.does }
    }
}

impl fmt::Display for ProtectionRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.program, self.does)
    }
}

/// The kind alone: a message has the sentence.
impl Serialize for ProtectionRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.kind.serialize(serializer)
    }
}

/// With the general sentence of its kind.
impl<'de> Deserialize<'de> for ProtectionRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Protection::deserialize(deserializer).map(Into::into)
    }
}

/// The use of a changed, unprotected file by programs that a person starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mark {
    /// Build tools and test runners execute it: `Makefile`, `package.json`, `build.rs`, `conftest.py`.
    Build,
    /// Package and version managers obey it: `.npmrc`, `.tool-versions`, what `.venv` contains.
    Packages,
    /// Linters and formatters obey it: `.eslintrc.js`, `.pylintrc`.
    Linter,
    /// Interpreters and programs read it when they start: `.env`, `pyvenv.cfg`, `.pth` files.
    Environment,
    /// It is in a directory of `PATH`: it runs by name.
    SearchPath,
    /// Agents read it as instructions: a new `CLAUDE.md`.
    Instructions,
    /// It is executable.
    Executable,
    /// It is a symbolic link out of the directory.
    LeadsOutside,
}

/// The kind of entry at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProtectedEntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A socket, a FIFO or a device.
    Special,
}

/// A host directory before and after a change. Paths are relative; links are not followed.
pub trait ChangedTree {
    /// The entry at a path before the change.
    fn before(&self, path: &Path) -> Option<ProtectedEntryKind>;
    /// The entry at a path after the change.
    fn after(&self, path: &Path) -> Option<ProtectedEntryKind>;

    /// Whether new commits and the index are judged by their content. Only then may objects, references and the index
    /// of a repository change.
    fn judges_commits(&self) -> bool {
        false
    }
}

/// A change of one path in an otherwise unchanged directory.
pub struct SingleChange<'a> {
    lookup: &'a dyn Fn(&Path) -> Option<ProtectedEntryKind>,
    path: &'a Path,
    kind: Option<ProtectedEntryKind>,
    judges_commits: bool,
}

impl fmt::Debug for SingleChange<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SingleChange").field("path", &self.path).field("kind", &self.kind).finish()
    }
}

impl<'a> SingleChange<'a> {
    /// `lookup` returns the current entry at a relative path; `kind` is the new entry at `path`, none if
    /// deleted.
    pub fn new(
        path: &'a Path,
        kind: Option<ProtectedEntryKind>,
        lookup: &'a dyn Fn(&Path) -> Option<ProtectedEntryKind>,
    ) -> Self {
        Self { lookup, path, kind, judges_commits: false }
    }

    /// Sets [`ChangedTree::judges_commits`].
    #[must_use]
    pub fn with_judged_commits(self, judges_commits: bool) -> Self {
        Self { judges_commits, ..self }
    }
}

impl ChangedTree for SingleChange<'_> {
    fn before(&self, path: &Path) -> Option<ProtectedEntryKind> {
        (self.lookup)(path)
    }

    fn after(&self, path: &Path) -> Option<ProtectedEntryKind> {
        // Missing parent directories are created with the entry.
        let folded = |path: &Path| {
            path.components().map(|part| fold_os(part.as_os_str()).into_owned()).collect::<Vec<_>>()
        };
        let (wanted, changed) = (folded(path), folded(self.path));
        if wanted == changed {
            return self.kind;
        }
        if self.kind.is_some() && changed.starts_with(&wanted) {
            return Some(ProtectedEntryKind::Directory);
        }
        (self.lookup)(path)
    }

    fn judges_commits(&self) -> bool {
        self.judges_commits
    }
}

/// Entries by which git detects a repository, and those that it obeys there. Lower case.
const REPOSITORY: [&str; 16] = [
    "head",
    "objects",
    "refs",
    "commondir",
    "gitdir",
    "config",
    "config.worktree",
    "hooks",
    "info",
    "modules",
    "worktrees",
    "packed-refs",
    "rebase-merge",
    "rebase-apply",
    "sequencer",
    "fsmonitor--daemon.ipc",
];

/// First components that code may change in an existing `.git`. Lower case.
const GIT_DATA: [&str; 21] = [
    "objects",
    "refs",
    "logs",
    "index",
    "index.lock",
    "head",
    "head.lock",
    "orig_head",
    "fetch_head",
    "merge_head",
    "merge_msg",
    "merge_mode",
    "merge_rr",
    "cherry_pick_head",
    "revert_head",
    "auto_merge",
    "commit_editmsg",
    "squash_msg",
    "tag_editmsg",
    "packed-refs",
    "shallow",
];

/// The entry at a path of the host. Its last name is not followed.
pub(crate) fn kind_at(path: &Path) -> Option<ProtectedEntryKind> {
    let kind = std::fs::symlink_metadata(path).ok()?.file_type();
    Some(match () {
        () if kind.is_symlink() => ProtectedEntryKind::Link,
        () if kind.is_dir() => ProtectedEntryKind::Directory,
        () if kind.is_file() => ProtectedEntryKind::File,
        () => ProtectedEntryKind::Special,
    })
}

/// The folded names of a path.
pub(crate) fn folded_parts(path: &Path) -> Vec<String> {
    parts_of(path).into_iter().map(|part| part.folded.into_owned()).collect()
}

fn parts_of(path: &Path) -> Vec<Part<'_>> {
    let part = |component| match component {
        Component::Normal(name) => Some(Part::from_name(name)),
        _ => None,
    };
    path.components().filter_map(part).collect()
}

/// The ends of protected names whose beginning is the end of a directory's path: `fish` in `.config`.
///
/// Without names that have a `*`.
pub(crate) fn names_beneath(directory: &Path) -> Vec<&'static str> {
    let directory = folded_parts(directory);
    let end = |pattern: &'static str| {
        let mut splits = pattern.match_indices('/');
        let found = splits.find(|(at, _)| {
            let begin: Vec<&str> = pattern.get(..*at).unwrap_or_default().split('/').collect();
            directory.iter().rev().zip(begin.iter().rev()).filter(|(one, other)| one == *other).count()
                == begin.len()
        });
        found.and_then(|(at, _)| pattern.get(at + 1..))
    };
    let denied = table::DENIED.iter().filter(|row| matches!(row.verdict, Verdict::Denied(_)));
    denied.map(|row| row.pattern).filter(|pattern| !pattern.contains('*')).filter_map(end).collect()
}

/// Whether a protected path can begin with a folded name.
pub(crate) fn starts_a_rule(name: &str) -> bool {
    let part = [Part::from_name(OsStr::new(name))];
    let begins = Index::denied().candidates(&part[0]).any(|row| row.matching(&part) > 0);
    name == ".git" || begins || REPOSITORY.contains(&name)
}

/// Whether a protected path can begin with a name.
pub(crate) fn is_rule_name(name: &OsStr) -> bool {
    starts_a_rule(&fold_os(name))
}

/// Whether code may change an entry of a `.git`.
pub(crate) fn is_git_data_name(name: &OsStr) -> bool {
    GIT_DATA.contains(&&*fold_os(name))
}

pub(crate) fn fold_os(name: &OsStr) -> Cow<'_, str> {
    match name.to_string_lossy() {
        Cow::Borrowed(name) => fold(name),
        Cow::Owned(name) => Cow::Owned(fold(&name).into_owned()),
    }
}

/// Returns the rule that protects a path of a host directory from code.
///
/// `path` is relative to the directory. A change is a new entry, other content, other attributes or a
/// deletion.
pub fn protection(path: &Path, tree: &dyn ChangedTree) -> Option<ProtectionRule> {
    let parts = parts_of(path);
    let mut directory = PathBuf::new();
    for (index, part) in parts.iter().enumerate() {
        let rest = parts.get(index + 1..).unwrap_or_default();
        if part.folded == ".git" {
            return in_repository(&directory.join(part.name), rest, tree).map(Into::into);
        }
        let here = parts.get(index..).unwrap_or_default();
        let found = Index::denied().candidates(part).find_map(|row| judge(row, here, path, tree));
        if found.is_some() {
            return found;
        }
        if REPOSITORY.contains(&&*part.folded)
            && let Some(found) = bare_repository(&directory, part, rest, tree)
        {
            return found.map(Into::into);
        }
        directory.push(part.name);
    }
    None
}

/// Judges a path whose names from one on are `here` by a row of the table.
fn judge(
    pattern: &Pattern,
    here: &[Part<'_>],
    path: &Path,
    tree: &dyn ChangedTree,
) -> Option<ProtectionRule> {
    let matching = pattern.matching(here);
    let (is_whole, is_exact) = (matching == pattern.length(), matching == here.len());
    let is_denied = |kind: Protection| Some(ProtectionRule::new(pattern.row, kind));
    match pattern.row.verdict {
        Verdict::Denied(kind) if is_whole => is_denied(kind),
        Verdict::DirectoryOnly(kind) if is_whole && is_exact => {
            let is_other = |found: Option<ProtectedEntryKind>| {
                found.is_some_and(|kind| kind != ProtectedEntryKind::Directory)
            };
            (is_other(tree.before(path)) || is_other(tree.after(path))).then(|| is_denied(kind)).flatten()
        }
        Verdict::NewOnly(kind, _) if is_whole => tree.before(path).and_then(|_| is_denied(kind)),
        // A link on the way could lead to a directory that has the rest.
        Verdict::Denied(kind) | Verdict::DirectoryOnly(kind) if is_exact && matching > 0 => {
            (tree.after(path) == Some(ProtectedEntryKind::Link)).then(|| is_denied(kind)).flatten()
        }
        _ => None,
    }
}

#[derive(Debug, Clone)]
struct Part<'a> {
    name: &'a OsStr,
    folded: Cow<'a, str>,
    has_tilde: bool,
}

impl<'a> Part<'a> {
    fn from_name(name: &'a OsStr) -> Self {
        let folded = fold_os(name);
        Self { name, has_tilde: folded.contains('~'), folded }
    }

    /// The name as a short name of another.
    fn short(&self) -> Option<ShortName<'_>> {
        self.has_tilde.then(|| ShortName::from_name(&self.folded)).flatten()
    }
}

/// Judges a path in or at a `.git`.
fn in_repository(git: &Path, rest: &[Part<'_>], tree: &dyn ChangedTree) -> Option<Protection> {
    let existed = tree.before(git) == Some(ProtectedEntryKind::Directory);
    let Some(first) = rest.first() else {
        // Attributes of the directory itself may change, as with any directory.
        let stays = existed && tree.after(git) == Some(ProtectedEntryKind::Directory);
        return (!stays).then_some(Protection::Repository);
    };
    if !existed || !tree.judges_commits() || !is_git_data(first, rest) {
        return Some(Protection::Repository);
    }
    let mut path = git.to_owned();
    path.extend(rest.iter().map(|part| part.name));
    // Git follows links in its own directory.
    (tree.after(&path) == Some(ProtectedEntryKind::Link)).then_some(Protection::Repository)
}

fn is_git_data(first: &Part<'_>, rest: &[Part<'_>]) -> bool {
    let further: Vec<&str> = rest.iter().skip(1).map(|part| &*part.folded).collect();
    match &*first.folded {
        // Files that name other repositories' object directories.
        "objects" => {
            further.first().is_none_or(|name| *name != "info")
                || matches!(
                    further.as_slice(),
                    ["info"] | ["info", "packs" | "commit-graph" | "commit-graphs", ..]
                )
        }
        name => GIT_DATA.contains(&name) || name.starts_with("sharedindex."),
    }
}

/// Judges a path in a directory that git treats, or would treat, as a repository without `.git`.
///
/// The outer `None` means that the directory is not a repository.
#[expect(
    clippy::option_option,
    reason = "no repository, and a repository whose path may change, are two answers"
)]
fn bare_repository(
    directory: &Path,
    first: &Part<'_>,
    rest: &[Part<'_>],
    tree: &dyn ChangedTree,
) -> Option<Option<Protection>> {
    let has =
        |at: &dyn Fn(&Path) -> Option<ProtectedEntryKind>, name: &str| at(&directory.join(name)).is_some();
    let is_repository = |at: &dyn Fn(&Path) -> Option<ProtectedEntryKind>| {
        has(at, "HEAD") && (has(at, "objects") && has(at, "refs") || has(at, "commondir"))
    };
    if is_repository(&|path| tree.before(path)) {
        let all: Vec<_> = std::iter::once(first).chain(rest).cloned().collect();
        let is_data = tree.judges_commits() && is_git_data(first, &all);
        return Some((!is_data).then_some(Protection::Repository));
    }
    is_repository(&|path| tree.after(path)).then_some(Some(Protection::Repository))
}

/// The use of an unprotected file by other programs, by its name.
pub fn mark(path: &Path) -> Option<Mark> {
    mark_of(path).map(|(mark, _)| mark)
}

/// The mark of an unprotected file, and the number of leading names of its path that have the mark.
pub(crate) fn mark_of(path: &Path) -> Option<(Mark, usize)> {
    let parts = parts_of(path);
    // The first directory that has one mark for everything beneath, with the number of names before.
    let mut whole: Option<(Mark, usize, usize)> = None;
    for (index, part) in parts.iter().enumerate() {
        let here = parts.get(index..).unwrap_or_default();
        let is_match = |row: &&Pattern| row.matching(here) == row.length();
        for row in Index::marked().candidates(part).filter(is_match) {
            match row.row.verdict {
                Verdict::Contents(mark) if whole.is_none() => {
                    whole = Some((mark, index, index + row.length()));
                }
                Verdict::Marked(mark) | Verdict::NewOnly(_, mark)
                    if mark == Mark::Environment
                        || whole.is_none_or(|(_, begin, _)| begin == index && row.length() > 1) =>
                {
                    return Some((mark, parts.len()));
                }
                _ => {}
            }
        }
    }
    whole.map(|(mark, _, length)| (mark, length))
}

/// Whether a `.gitattributes` makes git execute a driver.
pub(crate) fn names_git_driver(content: &[u8]) -> bool {
    String::from_utf8_lossy(content).lines().any(|line| {
        // Git skips these blanks before a comment, and no others.
        let line = line.trim_start_matches([' ', '\t', '\r']);
        !line.starts_with('#')
            && line.split_whitespace().skip(1).any(|attribute| {
                ["filter=", "diff=", "merge="].iter().any(|driver| attribute.starts_with(driver))
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: [(&str, ProtectedEntryKind); 13] = [
        (".git", ProtectedEntryKind::Directory),
        (".git/HEAD", ProtectedEntryKind::File),
        (".git/objects", ProtectedEntryKind::Directory),
        (".git/refs", ProtectedEntryKind::Directory),
        ("CLAUDE.md", ProtectedEntryKind::File),
        (".venv/bin/activate", ProtectedEntryKind::File),
        ("half", ProtectedEntryKind::Directory),
        ("half/HEAD", ProtectedEntryKind::File),
        ("half/objects", ProtectedEntryKind::Directory),
        ("bare.git", ProtectedEntryKind::Directory),
        ("bare.git/HEAD", ProtectedEntryKind::File),
        ("bare.git/objects", ProtectedEntryKind::Directory),
        ("bare.git/refs", ProtectedEntryKind::Directory),
    ];

    fn of(path: &str, kind: Option<ProtectedEntryKind>) -> Option<Protection> {
        let lookup =
            |path: &Path| HOST.iter().find(|(known, _)| Path::new(known) == path).map(|(_, kind)| *kind);
        let path = Path::new(path);
        let judged = |judges_commits| {
            let change = SingleChange::new(path, kind, &lookup).with_judged_commits(judges_commits);
            protection(path, &change).map(|rule| rule.kind)
        };
        let found = judged(true);
        // Without a judgement of commits, everything in a repository is protected.
        let in_repository =
            (path.starts_with(".git") || path.starts_with("bare.git")) && path != Path::new(".git");
        let expected = if in_repository { Some(Protection::Repository) } else { found };
        assert_eq!(judged(false), expected, "{path:?}");
        found
    }

    #[test]
    fn one_table_answers_for_names_and_shapes() {
        use ProtectedEntryKind::{Directory, File, Link};
        use Protection::{Agent, Credentials, Editor, Instructions, Repository, StartFile};
        for (path, kind, expected) in [
            ("notes.md", File, None),
            ("src/main.rs", File, None),
            (".ssh/authorized_keys", File, Some(Credentials)),
            ("a/b/.BashRC", File, Some(StartFile)),
            (".bashrc.", File, Some(StartFile)),
            (".bash\u{200B}rc", File, Some(StartFile)),
            (".ba\u{17F}hrc", File, Some(StartFile)),
            (".vscode/settings.json", File, Some(Editor)),
            (".claude", Link, Some(Agent)),
            (".mcp.json::$DATA", File, Some(Agent)),
            (".cargo/bin/cargo", File, Some(StartFile)),
            (".cargo", Directory, None),
            (".cargo", Link, Some(Credentials)),
            (".cargo/config.toml", File, None),
            ("CLAUDE.md", File, Some(Instructions)),
            ("claude.md/x", File, None),
            ("sub/CLAUDE.md", File, None),
            ("CLAUDE~1/settings.json", File, Some(Agent)),
            ("MISEPR~1.TOM", File, Some(StartFile)),
            (".venv/bin/activate", File, Some(StartFile)),
            (".venv/bin/activate.fish", File, None),
            (".jj/repo", File, Some(Repository)),
            (".jj/repo", Link, Some(Repository)),
            (".jj/repo", Directory, None),
            (".jj/repo/store/x", File, None),
            (".jj", Link, Some(Repository)),
            (".local/lib/python3.11/site-packages/x.pth", File, Some(StartFile)),
            ("lib/python3.11/site-packages/x.pth", File, None),
            (".git/config", File, Some(Repository)),
            (".git/hooks/pre-commit", File, Some(Repository)),
            (".git/rebase-merge/git-rebase-todo", File, Some(Repository)),
            (".git/info/attributes", File, Some(Repository)),
            (".git/objects/info/alternates", File, Some(Repository)),
            (".git/unknown", File, Some(Repository)),
            (".git/objects/ab/cdef", File, None),
            (".git/index", File, None),
            (".git/HEAD", File, None),
            (".git/HEAD", Link, Some(Repository)),
            (".git/refs/heads/x", File, None),
            (".git", Directory, None),
            (".git", Link, Some(Repository)),
            ("GIT~1/config", File, Some(Repository)),
            ("new/.git", File, Some(Repository)),
            ("new/.git/HEAD", File, Some(Repository)),
            ("new/.GIT/HEAD", File, Some(Repository)),
            ("half/refs", Directory, Some(Repository)),
            ("half/refs/heads/x", File, Some(Repository)),
            ("half/commondir", File, Some(Repository)),
            ("half/config", File, None),
            ("bare.git/config", File, Some(Repository)),
            ("bare.git/hooks/update", File, Some(Repository)),
            ("bare.git/objects/ab/cdef", File, None),
            ("new/HEAD", File, None),
            ("refs/heads/x", File, None),
        ] {
            assert_eq!(of(path, Some(kind)), expected, "{path}");
        }
        assert_eq!(of(".git", None), Some(Repository));
        assert_eq!(of(".bashrc", None), Some(StartFile));
        assert_eq!(of("half/HEAD", None), None);
    }

    /// A path that a pattern matches.
    fn sample(pattern: &str) -> String {
        pattern.replace('*', "q")
    }

    fn rows() -> impl Iterator<Item = &'static Row> {
        table::DENIED.iter().chain(table::MARKED)
    }

    fn matches(index: &Index, row: &Row, path: &str) -> bool {
        let parts = parts_of(Path::new(path));
        let is_row = |found: &Pattern, from: usize| {
            std::ptr::eq(found.row, row) && found.matching(&parts[from..]) == found.length()
        };
        (0..parts.len()).any(|from| index.candidates(&parts[from]).any(|found| is_row(found, from)))
    }

    #[test]
    fn every_row_is_one_sentence_with_a_source() {
        let mut patterns = std::collections::HashSet::new();
        for Row { pattern, program, does, source, .. } in rows() {
            assert!(patterns.insert(pattern), "{pattern} twice");
            assert!(![program, does, source].iter().any(|text| text.is_empty()), "{pattern}");
            assert!(!does.ends_with('.') && source.len() > 4, "{pattern}");
            for part in pattern.split('/') {
                assert!(part.matches('*').count() <= 1, "{pattern}");
                assert_eq!(fold(&sample(part)), sample(part), "{pattern}");
            }
        }
        for name in REPOSITORY.iter().chain(&GIT_DATA) {
            assert_eq!(fold(name), *name);
        }
    }

    #[test]
    fn every_row_matches_its_names_and_no_others() {
        for row in rows() {
            let index = if matches!(row.verdict, Verdict::Marked(_) | Verdict::Contents(_)) {
                Index::marked()
            } else {
                Index::denied()
            };
            let path = sample(row.pattern);
            for spelling in [
                path.clone(),
                path.to_uppercase(),
                format!("a/b/{path}"),
                format!("{path}/x/y"),
                format!("{path}."),
                format!("{path}\u{200B}"),
                format!("{path}::$DATA"),
            ] {
                assert!(matches(index, row, &spelling), "{spelling}");
            }
            // The short name of the first name, if it has one.
            let (first, rest) = path.split_once('/').map_or((&*path, ""), |(first, rest)| (first, rest));
            let visible = first.trim_start_matches('.');
            let (base, extension) = visible.rsplit_once('.').unwrap_or((visible, ""));
            let short =
                |text: &str, length: usize| text.replace(['.', ' '], "").chars().take(length).collect();
            let (stem, extension): (String, String) = (short(base, 6), short(extension, 3));
            let dot = if extension.is_empty() { "" } else { "." };
            let spelling = format!("{stem}~1{dot}{extension}/{rest}");
            if visible != first || base.len() > 8 || extension.len() > 3 {
                let found = matches(index, row, &spelling);
                assert!(found || first == ".git" || spelling.starts_with("git~"), "{spelling} {path}");
            }
            let mut others = vec![format!("q{path}"), path.replacen('/', "/q/", 1)];
            others.extend((!row.pattern.ends_with('*')).then(|| format!("{path}q")));
            for other in others.iter().filter(|other| **other != path && !row.pattern.starts_with('*')) {
                assert!(!matches(index, row, other), "{other}");
            }
        }
    }

    #[test]
    fn every_row_denies_or_marks() {
        use ProtectedEntryKind::{Directory, File, Link};
        let nothing = |_: &Path| None;
        let there = |_: &Path| Some(File);
        let judged = |path: &str, kind, lookup: &dyn Fn(&Path) -> Option<ProtectedEntryKind>| {
            protection(Path::new(path), &SingleChange::new(Path::new(path), kind, lookup))
        };
        for row in rows() {
            let path = sample(row.pattern);
            let is_named = |found: Option<ProtectionRule>| {
                let found = found.unwrap_or_else(|| panic!("{path}"));
                let program = rows().find(|row| row.program == found.program && row.does == found.does);
                assert_eq!(found.to_string(), format!("{} {}", found.program, found.does));
                assert!(program.is_some(), "{path}: {found}");
                true
            };
            match row.verdict {
                Verdict::Denied(_) => {
                    assert!(is_named(judged(&path, Some(File), &nothing)));
                    assert!(is_named(judged(&path, Some(Directory), &nothing)));
                    assert!(is_named(judged(&path, None, &there)));
                    for above in Path::new(&path).ancestors().skip(1).filter(|above| above.iter().count() > 0)
                    {
                        assert!(is_named(judged(above.to_str().unwrap(), Some(Link), &nothing)));
                    }
                }
                Verdict::DirectoryOnly(_) => {
                    assert!(is_named(judged(&path, Some(File), &nothing)));
                    assert_eq!(judged(&path, Some(Directory), &nothing), None, "{path}");
                }
                Verdict::NewOnly(_, mark) => {
                    assert!(is_named(judged(&path, Some(File), &there)));
                    assert!(is_named(judged(&path, None, &there)));
                    assert_eq!(judged(&path, Some(File), &nothing), None, "{path}");
                    assert_eq!(super::mark(Path::new(&path)), Some(mark), "{path}");
                }
                Verdict::Marked(mark) | Verdict::Contents(mark) => {
                    assert_eq!(judged(&path, Some(File), &nothing), None, "{path}");
                    assert_eq!(super::mark(Path::new(&path)), Some(mark), "{path}");
                }
            }
        }
    }

    #[test]
    fn everyday_files_are_not_denied() {
        for path in [
            "src/main.rs",
            ".gitignore",
            ".editorconfig",
            ".github/dependabot.yml",
            ".config/nextest.toml",
            "docs/.nojekyll",
            "bin/run",
            "scripts/build.sh",
            "mise/notes.md",
            "lefthook/readme",
            "config.toml",
            ".venv/bin/python",
            ".venv/bin/pip3.12",
            "node_modules/.bin/tsc",
            ".cache/x",
            ".local/share/x",
            "agents/main.py",
            ".cargo/registry/x",
            ".aider.chat.history.md",
            ".zshhistory",
            "startup.py",
        ] {
            assert_eq!(of(path, Some(ProtectedEntryKind::File)), None, "{path}");
        }
    }

    #[test]
    fn marks_and_drivers_are_found() {
        assert_eq!(mark(Path::new("a/Makefile")), Some(Mark::Build));
        assert_eq!(mark(Path::new("node_modules/.bin/tsc")), Some(Mark::Build));
        assert_eq!(mark(Path::new("AGENTS.md")), Some(Mark::Instructions));
        assert_eq!(mark(Path::new("a/main.rs")), None);
        for (path, expected) in [
            ("node_modules/a/package.json", Some((Mark::Packages, 1))),
            ("a/node_modules/b/node_modules/.bin/c", Some((Mark::Packages, 2))),
            ("a/node_modules/.bin/c", Some((Mark::Build, 4))),
            (".venv/lib/python3.12/site-packages/a/b.py", Some((Mark::Packages, 1))),
            (".venv/lib/python3.12/site-packages/z.pth", Some((Mark::Environment, 5))),
            (".venv/pyvenv.cfg", Some((Mark::Environment, 2))),
            (".venv/bin/activate", Some((Mark::Environment, 3))),
            (".venv/bin/python", Some((Mark::Packages, 1))),
            (".yarn/cache/a.zip", Some((Mark::Packages, 1))),
            ("eslint.config.js", Some((Mark::Linter, 1))),
            ("vite.config.ts", Some((Mark::Build, 1))),
            ("src/main.rs", None),
        ] {
            assert_eq!(mark_of(Path::new(path)), expected, "{path}");
        }
        assert!(names_git_driver(b"*.png filter=evil\n"));
        assert!(names_git_driver(b"\x0c#* filter=evil\n"));
        assert!(!names_git_driver(b"# x filter=evil\n*.png binary -text\n"));
    }
}
