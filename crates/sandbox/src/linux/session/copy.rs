//! Copies and removes entries in directories with hostile content.
//!
//! Links are not followed, only files, directories and links are copied, and everything is bounded.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::super::files::{Owner, open_beneath};
use super::super::sparse;

/// The maximum number of copied entries.
const MAX_ENTRIES: usize = 20_000;
/// The maximum depth of copied directories.
const MAX_DEPTH: usize = 48;

/// Removes a file or link, if it exists.
pub(super) fn remove(directory: BorrowedFd<'_>, path: &Path) {
    let (parent, name) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
    if parent.as_os_str().is_empty() {
        let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    } else if let Ok(parent) =
        open_beneath(directory, parent, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    {
        let _ = rustix::fs::unlinkat(&parent, name, AtFlags::empty());
    }
}

/// Copies a directory into an empty one. Entries that change meanwhile are copied in either state.
pub(super) fn tree(from: BorrowedFd<'_>, to: BorrowedFd<'_>, owner: Option<Owner>) -> Result<(), String> {
    let mut waiting = vec![(PathBuf::new(), 0usize)];
    let mut directories: Vec<(PathBuf, Stat)> = Vec::new();
    let mut seen = 0usize;
    let mut buffer = Vec::with_capacity(32 << 10);
    let open = |root: BorrowedFd<'_>, path: &Path| {
        let place = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        open_beneath(root, place, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK, Mode::empty())
    };
    while let Some((path, depth)) = waiting.pop() {
        let said = |error: Errno| format!("`{}`: {error}", crate::level::shorten(&path.to_string_lossy()));
        let source = match open(from, &path) {
            // It was removed meanwhile.
            Err(Errno::NOENT) => continue,
            other => other.map_err(said)?,
        };
        let target = open(to, &path).map_err(said)?;
        let mut entries = rustix::fs::RawDir::new(&source, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            seen += 1;
            if seen > MAX_ENTRIES {
                return Err("there are more than 20,000 files and directories".into());
            }
            let name = OsStr::from_bytes(name);
            match one(&source, &target, name, owner) {
                Ok(Some(stat)) if depth + 1 < MAX_DEPTH => {
                    waiting.push((path.join(name), depth + 1));
                    directories.push((path.join(name), stat));
                }
                Ok(Some(_)) => return Err("directories are nested deeper than 48 levels".into()),
                Ok(None) | Err(Errno::NOENT) => {}
                Err(error) => {
                    let name = crate::level::shorten(&path.join(name).to_string_lossy());
                    return Err(format!("`{name}`: {error}"));
                }
            }
        }
    }
    // Times and modes last and bottom-up: writing into a directory changes its time and may need its mode.
    for (path, stat) in directories.into_iter().rev() {
        if let Ok(directory) = open(to, &path) {
            finish(directory.as_fd(), &stat);
        }
    }
    Ok(())
}

/// Copies one entry. Returns the state of a directory whose content is still to be copied.
fn one(
    source: &OwnedFd,
    target: &OwnedFd,
    name: &OsStr,
    owner: Option<Owner>,
) -> Result<Option<Stat>, Errno> {
    let stat = rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let identity = owner.map(|owner| (Some(Uid::from_raw(owner.user)), Some(Gid::from_raw(owner.group))));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            rustix::fs::mkdirat(target, name, Mode::from_raw_mode(0o700))?;
            if let Some((user, group)) = identity {
                rustix::fs::chownat(target, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(Some(stat))
        }
        FileType::Symlink => {
            let link = rustix::fs::readlinkat(source, name, Vec::new())?;
            rustix::fs::symlinkat(link.as_c_str(), target, name)?;
            if let Some((user, group)) = identity {
                rustix::fs::chownat(target, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(None)
        }
        FileType::RegularFile => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let from = open_beneath(source.as_fd(), Path::new(name), flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&from)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Ok(None);
            }
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let to = open_beneath(target.as_fd(), Path::new(name), flags, Mode::from_raw_mode(0o600))?;
            let (from, to) = (File::from(from), File::from(to));
            sparse::copy(&from, &to, stat.st_size.unsigned_abs())
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            if let Some((user, group)) = identity {
                rustix::fs::fchown(&to, user, group)?;
            }
            finish(to.as_fd(), &stat);
            Ok(None)
        }
        // Pipes, sockets and devices are not copied.
        _ => Ok(None),
    }
}

/// Sets the mode and time of the original, without setuid and setgid bits.
fn finish(copy: BorrowedFd<'_>, stat: &Stat) {
    let time = |seconds: i64, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    };
    // Best effort.
    let _ = rustix::fs::futimens(copy, &times);
    let _ = rustix::fs::fchmod(copy, Mode::from_raw_mode(stat.st_mode & 0o777));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn entries_are_copied_and_links_are_not_followed() {
        use std::os::unix::fs::MetadataExt as _;
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let place = |name: &str| from.path().join(name);
        std::fs::create_dir_all(place("a/b")).unwrap();
        std::fs::write(place("a/b/text"), "hello").unwrap();
        std::fs::write(place("empty"), "").unwrap();
        std::os::unix::fs::symlink(outside.path(), place("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, place("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        let sparse = std::fs::File::create(place("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        std::os::unix::fs::FileExt::write_at(&sparse, b"end", (1 << 29) + 1).unwrap();

        tree(open(from.path()).as_fd(), open(to.path()).as_fd(), None).unwrap();
        let copy = |name: &str| to.path().join(name);
        assert_eq!(std::fs::read_to_string(copy("a/b/text")).unwrap(), "hello");
        assert_eq!(std::fs::metadata(copy("empty")).unwrap().len(), 0);
        assert_eq!(std::fs::read_link(copy("link")).unwrap(), outside.path());
        assert!(!copy("pipe").exists());
        let found = std::fs::metadata(copy("sparse")).unwrap();
        assert!(found.len() == 1 << 30 && found.blocks() < 100, "{found:?}");
        let mut end = [0u8; 3];
        let file = std::fs::File::open(copy("sparse")).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut end, (1 << 29) + 1).unwrap();
        assert_eq!(&end, b"end");
        let time = |path: &Path| std::fs::metadata(path).unwrap().mtime_nsec();
        assert_eq!(time(&place("a")), time(&copy("a")));
        remove(open(to.path()).as_fd(), Path::new("link/secret"));
        assert!(outside.path().join("secret").exists());
        crate::linux::temporary::empty(open(to.path()).as_fd());
        assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 0);
        assert!(outside.path().join("secret").exists());
    }

    #[test]
    fn too_deep_a_tree_is_rejected() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut deep = from.path().to_owned();
        for _ in 0..60 {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).unwrap();
        let reason = tree(open(from.path()).as_fd(), open(to.path()).as_fd(), None).unwrap_err();
        assert!(reason.contains("48 levels"), "{reason}");
    }
}
