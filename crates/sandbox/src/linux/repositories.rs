//! Finds git repositories beneath a host directory and shows them read-only, because host programs execute
//! their hooks and settings.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::files::open_beneath;

/// The maximum number of entries to search. Deeper repositories stay unprotected, as the report notes.
const MAX_ENTRIES: usize = 100_000;
/// The maximum depth.
const MAX_DEPTH: usize = 16;
/// The maximum number of protected repositories; each costs some mounts.
const MAX_REPOSITORIES: usize = 64;

/// A `.git` below the top level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Repository {
    /// The path of the `.git`, relative to the directory.
    pub(super) path: PathBuf,
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// The found repositories.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Repositories {
    pub(super) found: Vec<Repository>,
    /// The reason why some may be missing.
    pub(super) missed: Option<&'static str>,
}

/// Searches for `.git` below the top level, nearest first. Links are not followed.
pub(super) fn find(root: BorrowedFd<'_>) -> Repositories {
    let mut repositories = Repositories::default();
    let mut waiting = VecDeque::from([(PathBuf::new(), 0usize)]);
    let mut seen = 0usize;
    let mut buffer = Vec::with_capacity(8 << 10);
    while let Some((directory, depth)) = waiting.pop_front() {
        let place = if depth == 0 { Path::new(".") } else { &directory };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let Ok(descriptor) = open_beneath(root, place, flags, Mode::empty()) else {
            repositories.missed = Some("opening a directory failed");
            continue;
        };
        let mut entries = rustix::fs::RawDir::new(&descriptor, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            let bytes = name.to_bytes();
            if bytes == b"." || bytes == b".." {
                continue;
            }
            seen += 1;
            if seen > MAX_ENTRIES {
                repositories.missed = Some("it has more than 100,000 entries");
                return repositories;
            }
            let is_git = bytes == b".git";
            let kind = entry.file_type();
            if !is_git && kind != FileType::Directory && kind != FileType::Unknown {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&descriptor, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let path = directory.join(OsStr::from_bytes(bytes));
            match FileType::from_raw_mode(stat.st_mode) {
                // The top level has its own rules.
                _ if is_git && depth == 0 => {}
                FileType::Directory | FileType::RegularFile if is_git => {
                    if repositories.found.len() == MAX_REPOSITORIES {
                        repositories.missed = Some("it has more than 64 repositories");
                        return repositories;
                    }
                    repositories.found.push(Repository { path, device: stat.st_dev, inode: stat.st_ino });
                }
                _ if is_git => repositories.missed = Some("a `.git` is neither a file nor a directory"),
                FileType::Directory if depth < MAX_DEPTH => waiting.push_back((path, depth + 1)),
                FileType::Directory => repositories.missed = Some("it is deeper than 16 directories"),
                _ => {}
            }
        }
    }
    repositories
}

/// The directories above paths, unique and top-down. A mount point cannot be renamed, so nothing can replace what is
/// beneath.
pub(super) fn above<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> = Vec::new();
    for path in paths {
        let above: Vec<&Path> = path.ancestors().skip(1).filter(|above| *above != Path::new("")).collect();
        for directory in above.into_iter().rev() {
            if !directories.iter().any(|known| known == directory) {
                directories.push(directory.to_owned());
            }
        }
    }
    directories.sort();
    directories
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd as _;

    #[test]
    fn repositories_are_found_below_the_top_and_not_through_links() {
        let directory = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(directory.path().join(path)).unwrap();
        for path in [".git/hooks", "a/.git", "a/b/c/.git", "other"] {
            make(path);
        }
        std::fs::write(directory.path().join("other/.git"), "gitdir: ../x\n").unwrap();
        std::os::unix::fs::symlink("a", directory.path().join("link")).unwrap();
        let root = std::fs::File::open(directory.path()).unwrap();
        let found = find(root.as_fd());
        let mut paths: Vec<_> = found.found.iter().map(|found| found.path.display().to_string()).collect();
        paths.sort();
        assert_eq!(paths, ["a/.git", "a/b/c/.git", "other/.git"]);
        assert_eq!(found.missed, None);
        let above: Vec<_> = above(found.found.iter().map(|found| &found.path))
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        assert_eq!(above, ["a", "a/b", "a/b/c", "other"]);
        make("d/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16/17/18/.git");
        assert!(find(root.as_fd()).missed.unwrap().contains("deeper"));
    }
}
