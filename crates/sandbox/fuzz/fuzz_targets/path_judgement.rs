//! A change in a host directory is judged. A slow reference judges it from the whole path at once, with its own tables
//! for the words of this target: by lists of names, and by what the file system has.
//!
//! A second check needs no table: what is protected from a directory above is protected from the directory itself.

#![no_main]

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use toolpost_sandbox::{DirectoryRules, ProtectedEntryKind, ProtectedPath, Protection, SingleChange};

/// Names of entries, each with the name that a program may take it for.
const WORDS: [(&str, &str); 62] = [
    ("a", "a"),
    ("notes.md", "notes.md"),
    (".git", ".git"),
    (".GIT", ".git"),
    ("GIT~1", ".git"),
    (".git. ", ".git"),
    (".g\u{200b}it", ".git"),
    ("HEAD", "head"),
    ("head", "head"),
    ("objects", "objects"),
    ("refs", "refs"),
    ("commondir", "commondir"),
    ("config", "config"),
    ("hooks", "hooks"),
    ("info", "info"),
    ("packs", "packs"),
    ("alternates", "alternates"),
    ("index", "index"),
    ("sharedindex.1", "sharedindex.1"),
    ("modules", "modules"),
    ("worktrees", "worktrees"),
    (".claude", ".claude"),
    (".CLAUDE", ".claude"),
    (".cursor", ".cursor"),
    (".config", ".config"),
    (".Config", ".config"),
    ("fish", "fish"),
    ("git", "git"),
    ("toolpost", "toolpost"),
    ("config.toml", "config.toml"),
    (".cargo", ".cargo"),
    ("bin", "bin"),
    (".local", ".local"),
    ("share", "share"),
    ("state", "state"),
    (".bashrc", ".bashrc"),
    (".ba\u{17f}hrc", ".bashrc"),
    (".mcp.json::$DATA", ".mcp.json"),
    ("CLAUDE.md", "claude.md"),
    ("claude.MD", "claude.md"),
    (".vscode", ".vscode"),
    ("rust-toolchain.toml", "rust-toolchain.toml"),
    ("mise", "mise"),
    (".yarn", ".yarn"),
    ("releases", "releases"),
    ("b:c", "b"),
    (".\u{1e9e}h", ".ssh"),
    (".bashrc\u{1d173}", ".bashrc"),
    (".g\u{1bca1}it", ".git"),
    ("CLAUDE~1", "claude~1"),
    ("MISEPR~1.TOM", "misepr~1.tom"),
    ("mise.dev.toml", "mise.dev.toml"),
    (".jj", ".jj"),
    ("Repo", "repo"),
    (".venv", ".venv"),
    ("activate", "activate"),
    ("activate.fish", "activate.fish"),
    ("pyvenv.cfg", "pyvenv.cfg"),
    ("ls", "ls"),
    ("LS", "ls"),
    ("python3", "python3"),
    ("own-tool", "own-tool"),
];

/// Protected paths of these words.
const NAMES: [&str; 22] = [
    ".ssh",
    ".bashrc",
    ".claude",
    "claude~1",
    ".cursor",
    ".mcp.json",
    ".vscode",
    ".config/fish",
    ".config/git",
    ".config/toolpost",
    ".config/mise",
    ".local/bin",
    ".local/share/fish",
    ".local/share/mise/shims",
    ".local/share/toolpost",
    ".local/state/mise",
    ".local/state/toolpost",
    ".cargo/bin",
    "mise/config.toml",
    "mise.dev.toml",
    "misepr~1.tom",
    ".jj/repo/config.toml",
];
/// Names of these words that are protected if they exist.
const EXISTING: [&str; 3] = ["claude.md", "bin/activate", "bin/activate.fish"];
/// Entries that make git see a repository or that it obeys there, of these words.
const OF_REPOSITORY: [&str; 9] =
    ["head", "objects", "refs", "commondir", "config", "hooks", "info", "modules", "worktrees"];
/// Entries of a `.git` that code may change, of these words.
const DATA: [&str; 5] = ["objects", "refs", "index", "head", "sharedindex.1"];

/// A change of one path: the names above the base directory, and the kind of the new entry.
struct Change<'a> {
    base: &'a Path,
    names: Vec<&'static str>,
    /// The first of `names` that are the judged directory.
    inner: usize,
    kind: Option<ProtectedEntryKind>,
    /// Whether the judged directory counts as empty.
    is_empty: bool,
    judges_commits: bool,
}

fn canonical(name: &str) -> &str {
    WORDS.iter().find(|(word, _)| *word == name).map_or(name, |(_, canonical)| canonical)
}

impl Change<'_> {
    fn of_host(&self, names: &[&str]) -> Option<ProtectedEntryKind> {
        if self.is_empty && names.len() > self.inner {
            return None;
        }
        let path = names.iter().fold(self.base.to_owned(), |path, name| path.join(name));
        kind(&path)
    }

    fn after(&self, names: &[&str]) -> Option<ProtectedEntryKind> {
        let is_outside = names.len() <= self.inner || names[..self.inner] != self.names[..self.inner];
        if self.is_empty || is_outside {
            return self.of_host(names);
        }
        let is_prefix = names.iter().zip(&self.names).all(|(one, two)| canonical(one) == canonical(two));
        match names.len().cmp(&self.names.len()) {
            std::cmp::Ordering::Equal if is_prefix => self.kind,
            std::cmp::Ordering::Less if is_prefix && self.kind.is_some() => Some(ProtectedEntryKind::Directory),
            _ => self.of_host(names),
        }
    }

    /// Whether the names from an index on are a repository without `.git` there.
    fn is_bare(&self, index: usize, at: &dyn Fn(&[&str]) -> Option<ProtectedEntryKind>) -> bool {
        let has = |name: &'static str| at(&[&self.names[..index], &[name]].concat()).is_some();
        has("HEAD") && (has("commondir") || has("objects") && has("refs"))
    }

    /// Whether the path is protected, if names begin to count at an index.
    fn is_protected(&self, begin: usize) -> bool {
        let names: Vec<&str> = self.names.iter().map(|name| canonical(name)).collect();
        let (before, after) = (|path: &[&str]| self.of_host(path), |path: &[&str]| self.after(path));
        let all = self.names.len();
        let is_bare = |index: usize| self.is_bare(index, &before) || self.is_bare(index, &after);
        // In a repository only its own rules hold.
        let repository = (begin..all).find(|index| {
            names[*index] == ".git" || OF_REPOSITORY.contains(&names[*index]) && is_bare(*index)
        });
        let end = repository.map_or(all, |index| if names[index] == ".git" { index } else { index + 1 });
        let is_link = self.after(&self.names) == Some(ProtectedEntryKind::Link);
        let is_named = (begin..end).any(|index| {
            NAMES.iter().any(|pattern| {
                let pattern: Vec<&str> = pattern.split('/').collect();
                let found = &names[index..];
                found.starts_with(&pattern) || pattern.starts_with(found) && is_link
            })
        });
        let is_existing = (begin..end).any(|index| {
            EXISTING.iter().any(|pattern| {
                let pattern: Vec<&str> = pattern.split('/').collect();
                names[index..].starts_with(&pattern) && before(&self.names).is_some()
            })
        });
        // A file in place of the directory.
        let is_other = |kind: Option<ProtectedEntryKind>| kind.is_some_and(|kind| kind != ProtectedEntryKind::Directory);
        let is_pointer = names.ends_with(&[".jj", "repo"])
            && all >= 2
            && (begin..end).contains(&(all - 2))
            && (is_other(before(&self.names)) || is_other(after(&self.names)));
        is_named
            || is_existing
            || is_pointer
            || repository.is_some_and(|index| self.breaks_repository(index, &names))
    }

    /// Whether a search path protects the path. Entries are relative to the base, or count in every directory.
    fn is_planted(&self, absolute: &[Vec<&'static str>], relative: &[Vec<&'static str>]) -> bool {
        let fold = |names: &[&'static str]| names.iter().map(|name| canonical(name)).collect::<Vec<&str>>();
        let entries: Vec<_> =
            absolute.iter().filter(|entry| entry.starts_with(&self.names[..self.inner])).collect();
        let names = fold(&self.names);
        let Some(after) = self.after(&self.names) else { return false };
        let leads = || {
            entries.iter().any(|entry| fold(entry).starts_with(&names))
                || relative.iter().any(|entry| {
                    (1..=entry.len()).any(|length| names.ends_with(&fold(entry)[..length]))
                })
        };
        if after == ProtectedEntryKind::Link && leads() {
            return true;
        }
        let is_environment = |entry: &[&'static str]| {
            let above = &entry[..entry.len() - 1];
            self.of_disk(above).is_none() || self.of_disk(&[above, &["pyvenv.cfg"]].concat()).is_some()
        };
        let (last, above) = names.split_last().unwrap();
        let is_new = self.of_host(&self.names).is_none_or(|kind| kind == ProtectedEntryKind::Directory);
        if *last == "pyvenv.cfg"
            && is_new
            && entries.iter().any(|entry| fold(entry)[..entry.len() - 1] == *above && !is_environment(entry))
        {
            return true;
        }
        let is_there = entries.iter().any(|entry| fold(entry) == above)
            || relative.iter().any(|entry| above.ends_with(&fold(entry)));
        let given = self.names.last().unwrap();
        let is_system = *last == "toolpost"
            || ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].iter().any(|directory| {
                [given, last].iter().any(|name| kind(&Path::new(directory).join(name)).is_some())
            });
        if !is_there || !is_new || !is_system || !matches!(after, ProtectedEntryKind::File | ProtectedEntryKind::Link) {
            return false;
        }
        let own = self.names.len() - self.inner;
        let has_file = || {
            let environment = &self.names[..self.names.len() - 2];
            self.after(&[environment, &["pyvenv.cfg"]].concat()).is_some()
        };
        let is_of_environment = *last == "python3"
            && entries.iter().any(|entry| fold(entry) == above && is_environment(entry))
            && (own == 1 || has_file());
        !is_of_environment
    }

    /// The entry of the file system.
    fn of_disk(&self, names: &[&str]) -> Option<ProtectedEntryKind> {
        kind(&joined(self.base, names))
    }

    fn breaks_repository(&self, index: usize, names: &[&str]) -> bool {
        let is_data = |rest: &[&str]| match rest {
            _ if !self.judges_commits => false,
            ["objects", "info"] => true,
            ["objects", "info", name, ..] => *name == "packs",
            [name, ..] => DATA.contains(name),
            [] => false,
        };
        if names[index] != ".git" {
            let existed = self.is_bare(index, &|path| self.of_host(path));
            return !existed || !is_data(&names[index..]);
        }
        let git = &self.names[..=index];
        let existed = self.of_host(git) == Some(ProtectedEntryKind::Directory);
        if index + 1 == names.len() {
            return !existed || self.after(git) != Some(ProtectedEntryKind::Directory);
        }
        !existed || !is_data(&names[index + 1..]) || self.after(&self.names) == Some(ProtectedEntryKind::Link)
    }
}

fn kind(path: &Path) -> Option<ProtectedEntryKind> {
    let found = path.symlink_metadata().ok()?.file_type();
    Some(match (found.is_symlink(), found.is_dir()) {
        (true, _) => ProtectedEntryKind::Link,
        (_, true) => ProtectedEntryKind::Directory,
        _ => ProtectedEntryKind::File,
    })
}

/// The bytes of an input, then zeros.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> usize {
        self.0.next().copied().map_or(0, usize::from)
    }

    fn names(&mut self, least: usize, most: usize) -> Vec<&'static str> {
        let count = least + self.next() % (most - least + 1);
        (0..count).map(|_| WORDS[self.next() % WORDS.len()].0).collect()
    }
}

fn joined(base: &Path, names: &[&str]) -> PathBuf {
    names.iter().fold(base.to_owned(), |path, name| path.join(name))
}

thread_local! {
    static ROOT: RefCell<tempfile::TempDir> =
        RefCell::new(tempfile::Builder::new().prefix("fuzz").tempdir_in("/dev/shm").unwrap());
}

fuzz_target!(|input: &[u8]| {
    let mut bytes = Bytes(input.iter());
    ROOT.with_borrow(|root| {
        let base = root.path().canonicalize().unwrap().join("x");
        let _ = std::fs::remove_dir_all(&base);
        let (outer, path) = (bytes.names(0, 4), bytes.names(1, 4));
        let directory = joined(&base, &outer);
        std::fs::create_dir_all(&directory).unwrap();
        // Entries beside the path and the directory, and a few of a repository.
        for _ in 0..bytes.next() % 10 {
            let way = bytes.next();
            let mut names = [&outer[..], &path].concat();
            names.truncate(way % (names.len() + 1));
            names.extend(bytes.names(1, 2));
            let entry = joined(&base, &names);
            let _ = std::fs::create_dir_all(entry.parent().unwrap());
            if entry.symlink_metadata().is_ok() {
                continue;
            }
            let _ = match bytes.next() % 4 {
                0 => std::fs::write(&entry, ""),
                1 => std::os::unix::fs::symlink("nowhere", &entry),
                _ => std::fs::create_dir(&entry),
            };
        }
        let kinds = [Some(ProtectedEntryKind::File), Some(ProtectedEntryKind::Directory), Some(ProtectedEntryKind::Link), None];
        let kind_after = kinds[bytes.next() % 4];
        let judges_commits = bytes.next() % 3 > 0;
        let change = Change {
            base: &base,
            names: [&outer[..], &path].concat(),
            inner: outer.len(),
            kind: kind_after,
            is_empty: false,
            judges_commits,
        };
        let allowed: Vec<PathBuf> = match bytes.next() % 6 {
            0 => vec![".".into()],
            1 => vec![joined(Path::new(""), &path[..1 + bytes.next() % path.len()])],
            2 => vec![joined(Path::new("."), &bytes.names(1, 2))],
            _ => Vec::new(),
        };
        let protected: Vec<Vec<&str>> = match bytes.next() % 4 {
            0 => vec![change.names[..1 + bytes.next() % change.names.len()].to_vec()],
            1 => vec![[&outer[..], &bytes.names(1, 3)].concat()],
            _ => Vec::new(),
        };
        let mut absolute: Vec<Vec<&str>> = Vec::new();
        let mut relative: Vec<Vec<&str>> = Vec::new();
        match bytes.next() % 6 {
            0 => absolute.push(change.names[..1 + bytes.next() % change.names.len()].to_vec()),
            1 => absolute.push([&outer[..], &bytes.names(1, 3)].concat()),
            2 => relative.push(bytes.names(1, 2)),
            3 => relative.push(change.names[change.names.len() - 1..].to_vec()),
            4 if change.names.len() > 1 => absolute.push(change.names[..change.names.len() - 1].to_vec()),
            _ => {}
        }
        let own = protected.iter().map(|names| ProtectedPath::Own(joined(&base, names)));
        let entries = absolute.iter().map(|names| joined(&base, names));
        let entries = entries.chain(relative.iter().map(|names| joined(Path::new(""), names)));
        let own = own.chain(entries.map(ProtectedPath::SearchPath));
        let rules = DirectoryRules::new(&directory, own, allowed.clone());
        let judged = joined(Path::new(""), &path);
        let lookup = |path: &Path| kind(&directory.join(path));
        let tree = SingleChange::new(&judged, kind_after, &lookup).with_judged_commits(judges_commits);
        let found = rules.protection(&judged, &tree);

        // The worktrees of agents are projects of their own.
        let parents = (2..=outer.len()).rfind(|end| {
            [".claude", ".codex", ".cursor"].contains(&canonical(outer[end - 2])) && outer[end - 1] == "worktrees"
        });
        let begin = parents.unwrap_or(0);
        let folded: Vec<&str> = change.names.iter().map(|name| canonical(name)).collect();
        let is_own = protected.iter().any(|own| {
            let is_beneath = own.len() > outer.len() || own[..] == outer[..own.len()];
            let own: Vec<&str> = own.iter().map(|name| canonical(name)).collect();
            let on_the_way = own.starts_with(&folded)
                && change.after(&change.names).is_some_and(|kind| kind != ProtectedEntryKind::Directory);
            is_beneath && (folded.starts_with(&own) || on_the_way)
        });
        let is_allowed = allowed.iter().any(|allowed| {
            let allowed: Vec<_> = allowed.components().filter(|part| part.as_os_str() != ".").collect();
            judged.components().collect::<Vec<_>>().starts_with(&allowed)
        });
        let is_named = change.is_protected(outer.len()) || change.is_protected(begin);
        assert_eq!(
            found.is_some(),
            is_own || !is_allowed && (is_named || change.is_planted(&absolute, &relative)),
            "{judged:?} in {directory:?} becomes {kind_after:?}: {found:?}; own {protected:?}, allowed {allowed:?}, \
             search path {absolute:?} {relative:?}"
        );
        assert_eq!(found.is_some_and(|rule| rule.kind == Protection::Own), is_own, "{judged:?} in {directory:?} becomes {kind_after:?}: own {protected:?}");

        // As a whole.
        let probe = Change { names: [&outer[..], &["toolpost-probe"]].concat(), is_empty: true, judges_commits: true, base: &base, ..change };
        let is_all = protected.iter().any(|own| outer.starts_with(own));
        let is_open = allowed.iter().any(|allowed| allowed == Path::new("."));
        let expected = is_all || !is_open && probe.is_protected(begin);
        assert_eq!(rules.protects_all().is_some(), expected, "{directory:?}");

        // From the directory above, unless another rule holds there: in worktrees, and in the data of a repository.
        let is_data = |name: &str| OF_REPOSITORY.contains(&canonical(name));
        if let Some((last, above)) = outer.split_last()
            && !above.iter().any(|name| canonical(name) == ".git")
            && !outer.iter().any(|name| is_data(name))
        {
            let parent = joined(&base, above);
            let relative_above = Path::new(last).join(&judged);
            let lookup = |path: &Path| kind(&parent.join(path));
            let tree = SingleChange::new(&relative_above, kind_after, &lookup).with_judged_commits(judges_commits);
            let from_above = DirectoryRules::new(&parent, [], []).protection(&relative_above, &tree);
            let own_tree = |path: &Path| kind(&directory.join(path));
            let here = DirectoryRules::new(&directory, [], [])
                .protection(&judged, &SingleChange::new(&judged, kind_after, &own_tree).with_judged_commits(judges_commits));
            assert!(here.is_some() || from_above.is_none(), "{relative_above:?} in {parent:?}: {from_above:?}");
        }
    });
});
