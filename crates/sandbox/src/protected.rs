//! Paths that host programs execute or obey unasked: one table of names and shapes.
//!
//! Apply, file tools, artifacts, transfers and hosted files ask one question: may untrusted content be
//! written to this path on the host? Names are compared without case, trailing dots and spaces, and invisible
//! characters, because file systems and programs ignore different ones. A shape is anything that git treats
//! as a repository, whatever its name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use serde::Serialize;

/// Why a path is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
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
    /// Configuration that package managers and toolchains read before any build.
    PackageManager,
    /// Instructions to an agent that existed before.
    Instructions,
    /// A file pinned by the operator's trust.
    Trusted,
    /// Code that a trusted target can load.
    TrustedCode,
    /// Settings, state, data or cache of Toolpost.
    Own,
}

impl Protection {
    /// The program that obeys the path, for a message: `git executes hooks and settings of a repository`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Repository => "git executes hooks and settings of a repository",
            Self::Credentials => "programs read credentials and access rules from it",
            Self::StartFile => "shells and interpreters execute it when they start",
            Self::Editor => "editors execute its settings",
            Self::Agent => "agents obey it and start what it names",
            Self::PackageManager => "package managers and toolchains obey it",
            Self::Instructions => "agents obey it",
            Self::Trusted => "a trusted file pins its content",
            Self::TrustedCode => "a trusted target loads code from its directory",
            Self::Own => "Toolpost keeps its own files there",
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.reason())
    }
}

/// How programs that a person starts use a changed file that is not protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Mark {
    /// Build tools and test runners execute it: `Makefile`, `package.json`, `build.rs`, `conftest.py`.
    Build,
    /// Agents read it as instructions: a new `CLAUDE.md`.
    Instructions,
    /// It is executable.
    Executable,
    /// It is a symbolic link out of the directory.
    LeadsOutside,
}

/// The kind of entry at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
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
    fn before(&self, path: &Path) -> Option<EntryKind>;
    /// The entry at a path after the change.
    fn after(&self, path: &Path) -> Option<EntryKind>;
}

/// A change of one path in an otherwise unchanged directory.
pub struct SingleChange<'a> {
    lookup: &'a dyn Fn(&Path) -> Option<EntryKind>,
    path: &'a Path,
    kind: Option<EntryKind>,
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
        kind: Option<EntryKind>,
        lookup: &'a dyn Fn(&Path) -> Option<EntryKind>,
    ) -> Self {
        Self { lookup, path, kind }
    }
}

impl ChangedTree for SingleChange<'_> {
    fn before(&self, path: &Path) -> Option<EntryKind> {
        (self.lookup)(path)
    }

    fn after(&self, path: &Path) -> Option<EntryKind> {
        // Missing parent directories are created with the entry.
        let folded =
            |path: &Path| path.components().map(|part| fold_os(part.as_os_str())).collect::<Vec<_>>();
        let (wanted, changed) = (folded(path), folded(self.path));
        if wanted == changed {
            return self.kind;
        }
        if self.kind.is_some() && changed.starts_with(&wanted) {
            return Some(EntryKind::Directory);
        }
        (self.lookup)(path)
    }
}

/// Names that are protected anywhere, with their descendants. Lower case.
const NAMES: &[(&str, Protection)] = &[
    (".ssh", Protection::Credentials),
    (".gnupg", Protection::Credentials),
    (".netrc", Protection::Credentials),
    (".pypirc", Protection::Credentials),
    (".git-credentials", Protection::Credentials),
    (".aws/config", Protection::Credentials),
    (".aws/credentials", Protection::Credentials),
    (".kube/config", Protection::Credentials),
    (".docker/config.json", Protection::Credentials),
    (".docker/cli-plugins", Protection::StartFile),
    (".profile", Protection::StartFile),
    (".bashrc", Protection::StartFile),
    (".bash_profile", Protection::StartFile),
    (".bash_login", Protection::StartFile),
    (".bash_logout", Protection::StartFile),
    (".bash_aliases", Protection::StartFile),
    (".bash_completion", Protection::StartFile),
    (".bash_completion.d", Protection::StartFile),
    (".zshrc", Protection::StartFile),
    (".zshenv", Protection::StartFile),
    (".zprofile", Protection::StartFile),
    (".zlogin", Protection::StartFile),
    (".zlogout", Protection::StartFile),
    (".oh-my-zsh", Protection::StartFile),
    (".kshrc", Protection::StartFile),
    (".mkshrc", Protection::StartFile),
    (".cshrc", Protection::StartFile),
    (".tcshrc", Protection::StartFile),
    (".login", Protection::StartFile),
    (".logout", Protection::StartFile),
    (".inputrc", Protection::StartFile),
    (".editrc", Protection::StartFile),
    (".xprofile", Protection::StartFile),
    (".xinitrc", Protection::StartFile),
    (".xsession", Protection::StartFile),
    (".xsessionrc", Protection::StartFile),
    (".pam_environment", Protection::StartFile),
    (".screenrc", Protection::StartFile),
    (".tmux.conf", Protection::StartFile),
    (".lessfilter", Protection::StartFile),
    (".lesskey", Protection::StartFile),
    (".gdbinit", Protection::StartFile),
    (".gdbearlyinit", Protection::StartFile),
    (".lldbinit", Protection::StartFile),
    (".pdbrc", Protection::StartFile),
    (".pdbrc.py", Protection::StartFile),
    (".pythonrc", Protection::StartFile),
    (".pythonrc.py", Protection::StartFile),
    (".pythonstartup", Protection::StartFile),
    (".ipython", Protection::StartFile),
    (".irbrc", Protection::StartFile),
    (".pryrc", Protection::StartFile),
    (".rdebugrc", Protection::StartFile),
    (".rprofile", Protection::StartFile),
    (".renviron", Protection::StartFile),
    (".sqliterc", Protection::StartFile),
    (".psqlrc", Protection::StartFile),
    (".my.cnf", Protection::StartFile),
    (".mylogin.cnf", Protection::StartFile),
    (".perltidyrc", Protection::StartFile),
    (".curlrc", Protection::StartFile),
    (".wgetrc", Protection::StartFile),
    (".local/bin", Protection::StartFile),
    (".envrc", Protection::StartFile),
    (".direnvrc", Protection::StartFile),
    (".direnv", Protection::StartFile),
    (".config/autostart", Protection::StartFile),
    (".config/direnv", Protection::StartFile),
    (".local/share/direnv", Protection::StartFile),
    (".config/environment.d", Protection::StartFile),
    (".config/fish", Protection::StartFile),
    (".config/systemd", Protection::StartFile),
    (".config/tmux", Protection::StartFile),
    (".gitconfig", Protection::Repository),
    (".gitmodules", Protection::Repository),
    (".config/git", Protection::Repository),
    (".hg/hgrc", Protection::Repository),
    (".hgrc", Protection::Repository),
    (".jj/repo/config.toml", Protection::Repository),
    (".config/jj", Protection::Repository),
    (".husky", Protection::Repository),
    (".pre-commit-config.yaml", Protection::Repository),
    (".pre-commit-config.yml", Protection::Repository),
    ("lefthook.yml", Protection::Repository),
    (".lefthook.yml", Protection::Repository),
    (".vscode", Protection::Editor),
    (".vscode-server", Protection::Editor),
    (".idea", Protection::Editor),
    (".fleet", Protection::Editor),
    (".zed", Protection::Editor),
    (".devcontainer", Protection::Editor),
    (".devcontainer.json", Protection::Editor),
    (".vim", Protection::Editor),
    (".vimrc", Protection::Editor),
    (".gvimrc", Protection::Editor),
    (".nvimrc", Protection::Editor),
    (".nvim.lua", Protection::Editor),
    (".exrc", Protection::Editor),
    (".config/nvim", Protection::Editor),
    (".config/vim", Protection::Editor),
    (".emacs", Protection::Editor),
    (".emacs.d", Protection::Editor),
    (".config/emacs", Protection::Editor),
    (".dir-locals.el", Protection::Editor),
    (".dir-locals-2.el", Protection::Editor),
    (".nanorc", Protection::Editor),
    (".sublime-project", Protection::Editor),
    (".cursor", Protection::Agent),
    (".gemini", Protection::Agent),
    (".codex", Protection::Agent),
    (".claude", Protection::Agent),
    (".claude.json", Protection::Agent),
    (".windsurf", Protection::Agent),
    (".continue", Protection::Agent),
    (".aider.conf.yml", Protection::Agent),
    (".kiro", Protection::Agent),
    (".opencode", Protection::Agent),
    ("opencode.json", Protection::Agent),
    (".mcp.json", Protection::Agent),
    ("toolpost.toml", Protection::Agent),
    (".config/toolpost", Protection::Agent),
    (".local/state/toolpost", Protection::Agent),
    (".local/share/toolpost", Protection::Agent),
    (".cache/toolpost", Protection::Agent),
    (".npmrc", Protection::PackageManager),
    (".yarnrc", Protection::PackageManager),
    (".yarnrc.yml", Protection::PackageManager),
    (".yarn/releases", Protection::PackageManager),
    (".yarn/plugins", Protection::PackageManager),
    (".pnpmfile.cjs", Protection::PackageManager),
    (".pnpmfile.mjs", Protection::PackageManager),
    ("bunfig.toml", Protection::PackageManager),
    (".bunfig.toml", Protection::PackageManager),
    ("pip.conf", Protection::PackageManager),
    ("pip.ini", Protection::PackageManager),
    (".pip", Protection::PackageManager),
    (".config/pip", Protection::PackageManager),
    (".pydistutils.cfg", Protection::PackageManager),
    (".config/uv", Protection::PackageManager),
    (".condarc", Protection::PackageManager),
    (".cargo/config", Protection::PackageManager),
    (".cargo/config.toml", Protection::PackageManager),
    (".cargo/bin", Protection::PackageManager),
    ("rust-toolchain", Protection::PackageManager),
    ("rust-toolchain.toml", Protection::PackageManager),
    (".mise.toml", Protection::PackageManager),
    ("mise.toml", Protection::PackageManager),
    (".mise.local.toml", Protection::PackageManager),
    ("mise.local.toml", Protection::PackageManager),
    (".mise", Protection::PackageManager),
    ("mise/config.toml", Protection::PackageManager),
    (".config/mise", Protection::PackageManager),
    (".config/mise.toml", Protection::PackageManager),
    (".rtx.toml", Protection::PackageManager),
    (".asdfrc", Protection::PackageManager),
    (".gemrc", Protection::PackageManager),
    (".bundle/config", Protection::PackageManager),
    (".m2/settings.xml", Protection::PackageManager),
    (".mvn/extensions.xml", Protection::PackageManager),
    (".mvn/jvm.config", Protection::PackageManager),
    (".mvn/maven.config", Protection::PackageManager),
    (".gradle/init.d", Protection::PackageManager),
    (".gradle/init.gradle", Protection::PackageManager),
    (".gradle/gradle.properties", Protection::PackageManager),
    (".bazelrc", Protection::PackageManager),
    (".config/composer", Protection::PackageManager),
];

/// Files with instructions to agents. Lower case.
const INSTRUCTIONS: [&str; 9] = [
    "claude.md",
    "claude.local.md",
    "agents.md",
    "agents.override.md",
    "gemini.md",
    ".cursorrules",
    ".windsurfrules",
    ".clinerules",
    "copilot-instructions.md",
];

/// Files that build tools and test runners execute. Lower case.
const BUILD: [&str; 31] = [
    "makefile",
    "gnumakefile",
    "justfile",
    ".justfile",
    "taskfile.yml",
    "rakefile",
    "gemfile",
    "cmakelists.txt",
    "meson.build",
    "build.ninja",
    "build.rs",
    "cargo.toml",
    "package.json",
    "setup.py",
    "setup.cfg",
    "pyproject.toml",
    "conftest.py",
    "sitecustomize.py",
    "usercustomize.py",
    "noxfile.py",
    "tox.ini",
    "tasks.py",
    "build.gradle",
    "build.gradle.kts",
    "settings.gradle",
    "gradlew",
    "pom.xml",
    "mvnw",
    "dockerfile",
    "compose.yaml",
    "docker-compose.yml",
];

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

/// Folds a name as the most forgiving file system and program do.
pub(crate) fn fold(name: &str) -> Cow<'_, str> {
    let plain = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'));
    if plain && !name.ends_with('.') {
        return Cow::Borrowed(name);
    }
    let visible = name.chars().filter(|letter| !is_ignorable(*letter));
    // Via upper case: the long s and the Kelvin sign have no lower case of their own.
    let lower: String = visible.flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    // On NTFS a colon begins a stream name.
    let base = lower.split_once(':').map_or(lower.as_str(), |(base, _)| base);
    let trimmed = base.trim_end_matches(['.', ' ']);
    // Short names of `.git`.
    if let Some(number) = trimmed.strip_prefix("git~")
        && number.len() == 1
        && number.bytes().all(|byte| byte.is_ascii_digit())
    {
        return Cow::Borrowed(".git");
    }
    Cow::Owned(if trimmed.is_empty() { lower.clone() } else { trimmed.to_owned() })
}

/// The entry at a path of the host. Its last name is not followed.
pub(crate) fn kind_at(path: &Path) -> Option<EntryKind> {
    let kind = std::fs::symlink_metadata(path).ok()?.file_type();
    Some(match () {
        () if kind.is_symlink() => EntryKind::Link,
        () if kind.is_dir() => EntryKind::Directory,
        () if kind.is_file() => EntryKind::File,
        () => EntryKind::Special,
    })
}

/// The folded names of a path.
pub(crate) fn folded_parts(path: &Path) -> Vec<String> {
    let name = |part| match part {
        Component::Normal(name) => Some(fold_os(name)),
        _ => None,
    };
    path.components().filter_map(name).collect()
}

/// The ends of protected names whose beginning is the end of a directory's path: `fish` in `.config`.
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
    NAMES.iter().filter_map(|(pattern, _)| end(pattern)).collect()
}

/// Whether a protected path can begin with a folded name.
pub(crate) fn starts_a_rule(name: &str) -> bool {
    name == ".git" || rules().contains_key(name) || REPOSITORY.contains(&name)
}

fn fold_os(name: &std::ffi::OsStr) -> String {
    fold(&name.to_string_lossy()).into_owned()
}

/// Characters without a glyph, which some file systems ignore and no reader sees.
pub(crate) fn is_ignorable(letter: char) -> bool {
    matches!(letter,
        '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}'
        | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
        | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}' | '\u{FFF0}'..='\u{FFF8}'
        | '\u{E0000}'..='\u{E0FFF}')
}

/// The rules by their first component: the other components and the reason.
type Rules = HashMap<&'static str, Vec<(Vec<&'static str>, Protection)>>;

fn rules() -> &'static Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    RULES.get_or_init(|| {
        let mut rules = Rules::new();
        for (pattern, protection) in NAMES {
            let mut parts = pattern.split('/');
            let first = parts.next().unwrap_or_default();
            rules.entry(first).or_default().push((parts.collect(), *protection));
        }
        rules
    })
}

/// Returns why code must not change a path of a host directory.
///
/// `path` is relative to the directory. A change is a new entry, other content, other attributes or a
/// deletion.
pub fn protection(path: &Path, tree: &dyn ChangedTree) -> Option<Protection> {
    let parts: Vec<Part<'_>> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(Part { name, folded: fold_os(name) }),
            _ => None,
        })
        .collect();
    let mut directory = PathBuf::new();
    for (index, part) in parts.iter().enumerate() {
        let rest = parts.get(index + 1..).unwrap_or_default();
        let is_last = rest.is_empty();
        if part.folded == ".git" {
            return in_repository(&directory.join(part.name), rest, tree);
        }
        for (further, protection) in rules().get(part.folded.as_str()).into_iter().flatten() {
            let matching = further.iter().zip(rest).take_while(|(name, part)| **name == part.folded).count();
            if matching == further.len() {
                return Some(*protection);
            }
            // A link on the way could lead to a directory that has the rest.
            if matching == rest.len() && tree.after(path).is_some_and(|kind| kind == EntryKind::Link) {
                return Some(*protection);
            }
        }
        if REPOSITORY.contains(&part.folded.as_str())
            && let Some(found) = bare_repository(&directory, part, rest, tree)
        {
            return found;
        }
        if is_last && INSTRUCTIONS.contains(&part.folded.as_str()) && tree.before(path).is_some() {
            return Some(Protection::Instructions);
        }
        directory.push(part.name);
    }
    None
}

struct Part<'a> {
    name: &'a std::ffi::OsStr,
    folded: String,
}

/// Judges a path in or at a `.git`.
fn in_repository(git: &Path, rest: &[Part<'_>], tree: &dyn ChangedTree) -> Option<Protection> {
    let existed = tree.before(git) == Some(EntryKind::Directory);
    let Some(first) = rest.first() else {
        // Attributes of the directory itself may change, as with any directory.
        let stays = existed && tree.after(git) == Some(EntryKind::Directory);
        return (!stays).then_some(Protection::Repository);
    };
    if !existed || !is_git_data(first, rest) {
        return Some(Protection::Repository);
    }
    let mut path = git.to_owned();
    path.extend(rest.iter().map(|part| part.name));
    // Git follows links in its own directory.
    (tree.after(&path) == Some(EntryKind::Link)).then_some(Protection::Repository)
}

fn is_git_data(first: &Part<'_>, rest: &[Part<'_>]) -> bool {
    let further: Vec<&str> = rest.iter().skip(1).map(|part| part.folded.as_str()).collect();
    match first.folded.as_str() {
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
    let has = |at: &dyn Fn(&Path) -> Option<EntryKind>, name: &str| at(&directory.join(name)).is_some();
    let is_repository = |at: &dyn Fn(&Path) -> Option<EntryKind>| {
        has(at, "HEAD") && (has(at, "objects") && has(at, "refs") || has(at, "commondir"))
    };
    if is_repository(&|path| tree.before(path)) {
        let mut all = vec![Part { name: first.name, folded: first.folded.clone() }];
        all.extend(rest.iter().map(|part| Part { name: part.name, folded: part.folded.clone() }));
        return Some((!is_git_data(first, &all)).then_some(Protection::Repository));
    }
    is_repository(&|path| tree.after(path)).then_some(Some(Protection::Repository))
}

/// How other programs use an unprotected file, by its name.
pub fn mark(path: &Path) -> Option<Mark> {
    let name = fold_os(path.file_name()?);
    if INSTRUCTIONS.contains(&name.as_str()) {
        return Some(Mark::Instructions);
    }
    let in_bin = path.parent().is_some_and(|parent| parent.ends_with("node_modules/.bin"));
    let has_extension =
        |wanted: &str| name.rsplit_once('.').is_some_and(|(_, extension)| extension == wanted);
    let is_build = BUILD.contains(&name.as_str()) || in_bin || has_extension("pth") || has_extension("mk");
    is_build.then_some(Mark::Build)
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

    const HOST: [(&str, EntryKind); 12] = [
        (".git", EntryKind::Directory),
        (".git/HEAD", EntryKind::File),
        (".git/objects", EntryKind::Directory),
        (".git/refs", EntryKind::Directory),
        ("CLAUDE.md", EntryKind::File),
        ("half", EntryKind::Directory),
        ("half/HEAD", EntryKind::File),
        ("half/objects", EntryKind::Directory),
        ("bare.git", EntryKind::Directory),
        ("bare.git/HEAD", EntryKind::File),
        ("bare.git/objects", EntryKind::Directory),
        ("bare.git/refs", EntryKind::Directory),
    ];

    fn of(path: &str, kind: Option<EntryKind>) -> Option<Protection> {
        let lookup =
            |path: &Path| HOST.iter().find(|(known, _)| Path::new(known) == path).map(|(_, kind)| *kind);
        protection(Path::new(path), &SingleChange::new(Path::new(path), kind, &lookup))
    }

    #[test]
    fn one_table_answers_for_names_and_shapes() {
        use EntryKind::{Directory, File, Link};
        use Protection::{Agent, Credentials, Editor, Instructions, PackageManager, Repository, StartFile};
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
            (".cargo/config.toml", File, Some(PackageManager)),
            (".cargo", Directory, None),
            (".cargo", Link, Some(PackageManager)),
            (".cargo/registry/x", File, None),
            ("sub/rust-toolchain.toml", File, Some(PackageManager)),
            ("CLAUDE.md", File, Some(Instructions)),
            ("sub/CLAUDE.md", File, None),
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

    #[test]
    fn every_rule_is_folded() {
        for (pattern, _) in NAMES {
            for part in pattern.split('/') {
                assert_eq!(fold(part), part, "{pattern}");
            }
            assert!(of(pattern, Some(EntryKind::File)).is_some(), "{pattern}");
        }
        for name in INSTRUCTIONS.iter().chain(&BUILD).chain(&REPOSITORY).chain(&GIT_DATA) {
            assert_eq!(fold(name), *name);
        }
    }

    #[test]
    fn marks_and_drivers_are_found() {
        assert_eq!(mark(Path::new("a/Makefile")), Some(Mark::Build));
        assert_eq!(mark(Path::new("node_modules/.bin/tsc")), Some(Mark::Build));
        assert_eq!(mark(Path::new("AGENTS.md")), Some(Mark::Instructions));
        assert_eq!(mark(Path::new("a/main.rs")), None);
        assert!(names_git_driver(b"*.png filter=evil\n"));
        assert!(names_git_driver(b"\x0c#* filter=evil\n"));
        assert!(!names_git_driver(b"# x filter=evil\n*.png binary -text\n"));
    }
}
