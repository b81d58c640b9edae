//! Paths in a directory that host programs execute or obey although their own names do not say so: a configuration or
//! a link at a protected name leads to them.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::governing::{Governing, obeyed};
use crate::host_file::{Kind, Links, entries};
use crate::protected::{is_rule_name, kind_at, names_beneath, protection};
use crate::{DirectoryRules, ProtectedEntryKind, ProtectedPath, SingleChange};

/// The maximum number of entries to search beneath a directory, nearest first.
const MAX_ENTRIES: usize = 20_000;
/// The maximum number of entries to search in the directories above it.
const MAX_ENTRIES_ABOVE: usize = 2_000;
/// The maximum depth of the search.
const MAX_DEPTH: usize = 16;
/// The maximum number of links.
const MAX_LINKS: usize = 1_000;
/// The maximum number of links to protected names that lead to each other.
const MAX_ROUNDS: usize = 4;
/// Directories of packages and builds, in which no host program looks for its settings.
const UNSEARCHED: [&str; 6] = ["node_modules", "target", ".venv", "venv", "__pycache__", ".tox"];

/// The paths in a directory, without symbolic links, that its repositories and links make host programs execute or
/// obey. `protected` has the user's configuration files ([`ProtectedPath::GitConfig`]).
pub(crate) fn obeyed_paths(directory: &Path, protected: &[ProtectedPath]) -> Vec<ProtectedPath> {
    let global: Vec<(&Path, &Path)> = protected
        .iter()
        .filter_map(|protected| match protected {
            ProtectedPath::GitConfig { file, home } => Some((file.as_path(), home.as_path())),
            _ => None,
        })
        .collect();
    let mut governing = Governing::above(directory, &global);
    let links = links(directory, &mut governing);
    let mut targets = Links::beneath(directory);
    let mut found = governing.into_found();
    let from_above = links_above(directory);
    found.extend(
        from_above
            .iter()
            .filter(|link| is_in_table(link))
            .flat_map(|link| linked(link, directory, &mut targets)),
    );
    follow(directory, links, &mut targets, &mut found);
    found.sort_unstable();
    found.dedup();
    found
}

/// Adds the targets of links that are protected, also of those that are so by another link or a configuration.
fn follow(directory: &Path, mut links: Vec<PathBuf>, targets: &mut Links, found: &mut Vec<ProtectedPath>) {
    for _ in 0..MAX_ROUNDS {
        if links.is_empty() {
            return;
        }
        let rules = DirectoryRules::new(directory, found.iter().cloned(), []);
        let before = links.len();
        links.retain(|link| {
            let lookup = |path: &Path| kind_at(&directory.join(path));
            let change = SingleChange::new(link, Some(ProtectedEntryKind::Link), &lookup);
            let Some(reason) = rules.protection(link, &change) else { return true };
            let path = directory.join(link);
            if is_in_table(&path) {
                found.extend(linked(&path, directory, targets));
            } else {
                let names = targets.names_of(&path).into_iter().filter(|name| is_beside(name, directory));
                found.extend(names.map(|name| obeyed(name, reason.kind)));
            }
            false
        });
        if links.len() == before {
            return;
        }
    }
}

/// Whether the table of names protects a link.
fn is_in_table(link: &Path) -> bool {
    // Without the root directory.
    let below = link.strip_prefix("/").unwrap_or(link);
    let lookup = |path: &Path| kind_at(&Path::new("/").join(path));
    protection(below, &SingleChange::new(below, Some(ProtectedEntryKind::Link), &lookup)).is_some()
}

/// The targets of a link, which are protected as the link's name.
fn linked(link: &Path, directory: &Path, targets: &mut Links) -> Vec<ProtectedPath> {
    let names = targets.names_of(link).into_iter().filter(|name| name != link && is_beside(name, directory));
    names.map(|path| ProtectedPath::Linked { path, link: link.to_owned() }).collect()
}

/// Whether a path is in a directory, or holds it.
fn is_beside(path: &Path, directory: &Path) -> bool {
    path.starts_with(directory) || directory.starts_with(path)
}

/// The links beneath a directory, relative, nearest first. Repositories on the way are read.
fn links(directory: &Path, governing: &mut Governing<'_>) -> Vec<PathBuf> {
    let mut links = Vec::new();
    let mut waiting = VecDeque::from([(PathBuf::new(), 0usize)]);
    let mut count = 0;
    while let Some((above, depth)) = waiting.pop_front() {
        let room = MAX_ENTRIES - count;
        for (name, kind) in entries(&directory.join(&above), room) {
            count += 1;
            let path = above.join(&name);
            // The top has been read with the directories above.
            if depth > 0 && name == ".git" {
                governing.git(&directory.join(&above));
            } else if depth > 0 && name == ".hg" {
                governing.mercurial(&directory.join(&above));
            }
            if kind == Kind::Link {
                links.push(path);
            } else if kind == Kind::Directory && depth < MAX_DEPTH && is_searched(&name) {
                waiting.push_back((path, depth + 1));
            }
        }
        if count >= MAX_ENTRIES || links.len() >= MAX_LINKS {
            return links;
        }
    }
    links
}

/// Whether links can be in a directory. Those of a repository are read with it.
fn is_searched(name: &OsStr) -> bool {
    name != ".git" && name != ".hg" && !UNSEARCHED.iter().any(|other| name == *other)
}

/// The links at protected names in the directories above one: `~/.bashrc -> dotfiles/bashrc`.
fn links_above(directory: &Path) -> Vec<PathBuf> {
    let mut links = Vec::new();
    let mut count = 0;
    for top in directory.ancestors().skip(1) {
        let mut waiting = VecDeque::from([(top.to_owned(), 0usize)]);
        while let Some((above, depth)) = waiting.pop_front() {
            for (name, kind) in entries(&above, MAX_ENTRIES_ABOVE - count) {
                count += 1;
                if depth == 0 && !is_rule_name(&name) {
                    continue;
                }
                let path = above.join(&name);
                if kind == Kind::Link {
                    links.push(path);
                } else if kind == Kind::Directory
                    && depth < MAX_DEPTH
                    && is_searched(&name)
                    // Checkouts of agents are ordinary projects, and the search has the directory itself already.
                    && name != "worktrees"
                    && !directory.starts_with(&path)
                    && is_on_the_way(&path, top)
                {
                    waiting.push_back((path, depth + 1));
                }
            }
        }
    }
    links
}

/// Whether a directory is protected with its content, or some of its content is.
fn is_on_the_way(path: &Path, top: &Path) -> bool {
    let Ok(below) = path.strip_prefix(top) else { return false };
    let probe = below.join("toolpost-probe");
    let lookup = |_: &Path| None;
    let is_protected =
        || protection(&probe, &SingleChange::new(&probe, Some(ProtectedEntryKind::File), &lookup)).is_some();
    !names_beneath(below).is_empty() || is_protected()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fmt::Write as _;
    use std::fs;
    use std::time::Duration;

    use super::*;
    use crate::Protection;

    /// The maximum processor time: of an optimized build, and of one without optimization.
    const MAX_TIME: Duration = Duration::from_millis(if cfg!(debug_assertions) { 15 } else { 3 });
    const INCLUDES: usize = 50;
    const MODULES: usize = 100;

    #[expect(clippy::unwrap_used, reason = "a helper of tests")]
    fn write(path: PathBuf, content: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// The processor time of this thread.
    fn used() -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    #[test]
    fn a_large_repository_is_read_in_bounded_time() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap().join("p");
        let mut config = String::from("[core]\n\trepositoryformatversion = 0\n\thooksPath = .githooks\n");
        for index in 0..INCLUDES {
            write!(config, "[include]\n\tpath = ../team/{index}\n").unwrap();
            write(top.join(format!("team/{index}")), "[filter \"x\"]\n\tclean = sh tools/clean.sh\n");
        }
        for index in 0..MODULES {
            let git = top.join(format!(".git/modules/lib/m{index}"));
            write!(
                config,
                "[submodule \"lib/m{index}\"]\n\turl = https://h.invalid/m{index}\n\tactive = true\n"
            )
            .unwrap();
            write(git.join("HEAD"), "ref: refs/heads/main\n");
            let own = format!(
                "[core]\n\tbare = false\n\tworktree = ../../../../lib/m{index}\n[remote \"origin\"]\n\turl = x\n"
            );
            write(git.join("config"), &own);
            for hook in ["pre-commit", "pre-push", "commit-msg", "update"] {
                write(git.join(format!("hooks/{hook}.sample")), "");
            }
            for name in ["objects/info", "refs/heads", "logs/HEAD", "index", "packed-refs", "description"] {
                write(git.join(name).join("x"), "");
            }
            write(
                top.join(format!("lib/m{index}/.git")),
                &format!("gitdir: ../../.git/modules/lib/m{index}\n"),
            );
            write(top.join(format!("lib/m{index}/src/a.c")), "");
        }
        // A submodule names a program.
        write(
            top.join(".git/modules/lib/m7/config"),
            "[core]\n\tworktree = ../../../../lib/m7\n\tfsmonitor = tools/f\n",
        );
        write(top.join(".git/config"), &config);
        write(top.join(".git/HEAD"), "");
        let least = |read: &mut dyn FnMut()| {
            let time = || {
                let before = used();
                read();
                used().saturating_sub(before)
            };
            std::iter::repeat_with(time).take(20).min().unwrap()
        };
        let repositories = least(&mut || drop(Governing::above(&top, &[])));
        let mut found = Vec::new();
        let all = least(&mut || found = obeyed_paths(&top, &[]));
        println!(
            "{INCLUDES} includes, {MODULES} submodules: {repositories:?} of processor time, {all:?} with links"
        );
        assert!(found.contains(&obeyed(top.join("team/49"), Protection::GitSetting)));
        assert!(found.contains(&obeyed(top.join("tools/clean.sh"), Protection::GitProgram)));
        assert!(found.contains(&obeyed(top.join("lib/m7/tools/f"), Protection::GitProgram)));
        assert!(repositories <= MAX_TIME, "{repositories:?}");
    }

    #[test]
    fn a_configuration_that_cannot_be_read_whole_protects_all() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        for (content, is_whole) in [
            ("a\n".repeat(10), false),
            ("#\n".repeat(3 << 20), true),
            (format!("[core]\n{}", "pager = a\n".repeat(60_000)), true),
        ] {
            write(top.join(".git/config"), &content);
            let whole = obeyed(top.clone(), Protection::GitSetting);
            assert_eq!(obeyed_paths(&top, &[]).contains(&whole), is_whole, "{} bytes", content.len());
        }
        // A file that includes itself.
        write(top.join(".git/config"), &"[include]\npath = config\n".repeat(3));
        assert!(obeyed_paths(&top, &[]).len() < 10);
    }
}
