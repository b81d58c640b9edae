//! A host directory under a layer: the entries before and after apply.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::changes;
use super::reviewed::Planned;
use crate::protected::{ChangedTree, ProtectedEntryKind};

/// A host directory under a layer.
pub(super) struct View<'a> {
    pub(super) host: BorrowedFd<'a>,
    pub(super) upper: BorrowedFd<'a>,
    /// Cached answers of [`View::after`], which files of one directory request repeatedly.
    pub(super) after: &'a After,
    /// The entries that an engine without writes would have written.
    pub(super) planned: Option<&'a Planned>,
}

/// Answers of [`View::after`].
pub(super) type After = RefCell<HashMap<PathBuf, Option<ProtectedEntryKind>>>;

/// The maximum number of cached answers.
const MAX_AFTER: usize = 10_000;

/// The layer's entry at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerEntry {
    Entry(ProtectedEntryKind),
    /// A whiteout hides the host's entry.
    Whiteout,
}

impl ChangedTree for View<'_> {
    fn before(&self, path: &Path) -> Option<ProtectedEntryKind> {
        if let Some(planned) = self.planned.and_then(|planned| planned.at(path)) {
            return planned;
        }
        stat_of(self.host, path).ok().flatten().map(|stat| kind_of(&stat))
    }

    fn after(&self, path: &Path) -> Option<ProtectedEntryKind> {
        if let Some(known) = self.after.borrow().get(path) {
            return *known;
        }
        let found = self.look(path);
        let mut after = self.after.borrow_mut();
        if after.len() >= MAX_AFTER {
            after.clear();
        }
        after.insert(path.to_owned(), found);
        found
    }

    fn judges_commits(&self) -> bool {
        true
    }
}

impl View<'_> {
    fn look(&self, path: &Path) -> Option<ProtectedEntryKind> {
        let mut above = PathBuf::new();
        for part in path {
            above.push(part);
            match lstat(self.upper, &above) {
                Some(LayerEntry::Entry(kind)) if above == path => return Some(kind),
                Some(LayerEntry::Entry(ProtectedEntryKind::Directory)) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                    let opened = open_beneath(self.upper, &above, flags, Mode::empty());
                    if opened.is_ok_and(|opened| changes::is_opaque(&opened)) {
                        return match lstat(self.upper, path) {
                            Some(LayerEntry::Entry(kind)) => Some(kind),
                            _ => None,
                        };
                    }
                }
                None => break,
                // Hidden, or not a directory: no descendants.
                Some(_) => return None,
            }
        }
        self.before(path)
    }
}

pub(super) fn lstat(upper: BorrowedFd<'_>, path: &Path) -> Option<LayerEntry> {
    let stat = stat_of(upper, path).ok().flatten()?;
    let is_whiteout = || {
        let (above, name) = super::live::parent(upper, path).ok()?;
        let name = CString::new(name.as_bytes()).ok()?;
        Some(changes::is_whiteout(above.as_fd(), &name, &stat))
    };
    // Most entries need no other call.
    let can_be = matches!(kind_of(&stat), ProtectedEntryKind::Link | ProtectedEntryKind::Special);
    Some(if can_be && is_whiteout() == Some(true) {
        LayerEntry::Whiteout
    } else {
        LayerEntry::Entry(kind_of(&stat))
    })
}

/// The entry at a path beneath a directory, without following links.
pub(super) fn stat_of(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Stat>> {
    let Some(name) = path.file_name() else { return Ok(None) };
    let above = path.parent().unwrap_or(Path::new(""));
    let stat = if above == Path::new("") {
        rustix::fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW)
    } else {
        open_beneath(root, above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
            .and_then(|parent| rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW))
    };
    match stat {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether files can be moved from one directory to another.
///
/// The kernel moves none between mounts, also of one file system: a container has its project and its state on two.
/// Without the number of a mount (`fdinfo` of proc(5)) the answer is no. Nor does an overlay file system move
/// directories of its lower layers, such as those of an image.
pub(super) fn is_one_mount(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    if rustix::fs::fstatfs(other).is_ok_and(|found| found.f_type == super::OVERLAY) {
        return false;
    }
    let mount = |directory: BorrowedFd<'_>| {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok())
    };
    mount(one).is_some_and(|found| Some(found) == mount(other))
}

pub(super) fn kind_of(stat: &Stat) -> ProtectedEntryKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => ProtectedEntryKind::File,
        FileType::Directory => ProtectedEntryKind::Directory,
        FileType::Symlink => ProtectedEntryKind::Link,
        _ => ProtectedEntryKind::Special,
    }
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    kind_of(stat) == ProtectedEntryKind::Directory
}

pub(super) fn is_regular(stat: &Stat) -> bool {
    kind_of(stat) == ProtectedEntryKind::File
}

/// Whether the target of a link is outside the directory.
pub(super) fn leads_outside(path: &Path, target: &Path) -> bool {
    use std::path::Component;
    if target.is_absolute() {
        return true;
    }
    let mut depth = path.components().count().saturating_sub(1) as i64;
    target.components().any(|part| {
        depth += match part {
            Component::ParentDir => -1,
            Component::Normal(_) => 1,
            _ => 0,
        };
        depth < 0
    })
}

pub(super) fn identity(stat: &Stat) -> (u64, i64, i64, i64) {
    (stat.st_ino, stat.st_size, stat.st_ctime, stat.st_ctime_nsec as i64)
}

/// The properties of a file that a rename preserves.
pub(super) fn version(stat: &Stat) -> (u64, i64, i64, i64) {
    (stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec as i64)
}

/// Mode and time.
pub(super) fn attributes_of(stat: &Stat) -> (u32, i64, i64) {
    (stat.st_mode & 0o777, stat.st_mtime, stat.st_mtime_nsec as i64)
}

pub(super) fn times(stat: &Stat) -> rustix::fs::Timestamps {
    let at = |seconds: i64, nanoseconds: u64| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as i64 };
    rustix::fs::Timestamps {
        last_access: at(stat.st_atime, stat.st_atime_nsec),
        last_modification: at(stat.st_mtime, stat.st_mtime_nsec),
    }
}
