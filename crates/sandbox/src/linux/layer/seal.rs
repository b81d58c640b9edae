//! Collects the changes of a private copy as the `upper` of a layer.
//!
//! The entries that differ from the baseline become entries of `upper`, with whiteouts for deleted ones. From
//! there, apply judges them as those of any layer.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::super::sparse;
use super::apply::failed;
use super::baseline::{Baseline, Copied, has_skipped};
use super::changes::{self, Kind, whiteout};
use super::view::{is_regular, times};
use super::{DIRECTORY, UPPER, temporary};
use crate::denial::DenialReason;

/// The changes, while they are collected.
pub(super) const NEXT: &str = "next";
/// The changes of a copy that a program still uses.
const PENDING: &str = "pending";

/// The entries of a copy that cannot become changes.
pub(super) type Denials = Vec<(PathBuf, DenialReason)>;

/// Moves the changes of a finished copy to `upper`.
///
/// If the process ends here, the next one continues.
pub(super) fn seal(
    layer: BorrowedFd<'_>,
    copy: BorrowedFd<'_>,
    mut baseline: Baseline,
) -> io::Result<Denials> {
    let next = rustix::fs::openat(layer, NEXT, DIRECTORY, Mode::empty())?;
    let mut upper = UpperBuilder::new(next.as_fd(), false);
    // Entries moved by an earlier process are no longer in the copy.
    for change in changes::list(next.as_fd()).list {
        if matches!(change.kind, Kind::Directory { .. }) {
            upper.made.insert(change.path);
        } else {
            baseline.remove(&change.path);
        }
    }
    let now = changes::list(copy);
    let denied = upper.fill(copy, &now, &mut baseline)?;
    rustix::fs::renameat(layer, NEXT, layer, UPPER)?;
    Ok(denied)
}

/// The changes of a copy that a program still uses.
pub(super) struct Collected {
    /// The copies of the changed entries.
    pub(super) upper: OwnedFd,
    pub(super) denied: Denials,
    /// The state of the copy with these changes.
    pub(super) baseline: Baseline,
}

/// Copies the changes of a copy. The copy stays as it is.
pub(super) fn collect(
    layer: BorrowedFd<'_>,
    copy: BorrowedFd<'_>,
    baseline: &Baseline,
) -> io::Result<Collected> {
    match rustix::fs::mkdirat(layer, PENDING, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let pending = rustix::fs::openat(layer, PENDING, DIRECTORY, Mode::empty())?;
    temporary::empty(pending.as_fd());
    let now = changes::list(copy);
    changes::restore_modes(copy, &now);
    let mut rest = baseline.clone();
    let denied = UpperBuilder::new(pending.as_fd(), true).fill(copy, &now, &mut rest)?;
    let mut next: Baseline = now.list.iter().map(|change| (change.path.clone(), state_of(change))).collect();
    let stays = |copied: &Copied| *copied == Copied::Skipped || now.left_out.is_some();
    for (path, copied) in baseline.iter().filter(|(_, copied)| stays(copied)) {
        next.entry(path.clone()).or_insert(*copied);
    }
    Ok(Collected { upper: pending, denied, baseline: next })
}

/// The state of a listed entry. One that changes while it is copied differs from this state, and is copied again.
fn state_of(change: &changes::Change) -> Copied {
    match change.kind {
        Kind::Directory { .. } => Copied::Directory { mode: change.stat.st_mode & 0o777 },
        _ => Copied::entry(&change.stat),
    }
}

/// Fills the future `upper`.
struct UpperBuilder<'a> {
    next: BorrowedFd<'a>,
    /// The created directories.
    made: BTreeSet<PathBuf>,
    /// The last opened directory.
    last: Option<(PathBuf, OwnedFd)>,
    /// Whether entries of the copy stay there.
    copies: bool,
}

impl<'a> UpperBuilder<'a> {
    fn new(next: BorrowedFd<'a>, copies: bool) -> Self {
        Self { next, made: BTreeSet::new(), last: None, copies }
    }

    /// Takes the entries of the copy that differ from the baseline, which has no other entries afterwards.
    fn fill(
        &mut self,
        copy: BorrowedFd<'_>,
        now: &changes::Changes,
        baseline: &mut Baseline,
    ) -> io::Result<Denials> {
        let mut denied = Denials::new();
        let mut blocked: Option<PathBuf> = None;
        for change in &now.list {
            let path = &change.path;
            if blocked.as_ref().is_some_and(|blocked| path.starts_with(blocked)) {
                continue;
            }
            let before = baseline.get(path).copied();
            let is_directory = matches!(change.kind, Kind::Directory { .. });
            if before == Some(Copied::Skipped) || !is_directory && has_skipped(baseline, path) {
                denied.push((path.clone(), failed(io::Error::other("it was missing from the private copy"))));
                blocked = Some(path.clone());
                continue;
            }
            match change.kind {
                Kind::Directory { .. } => {
                    if before != Some(Copied::Directory { mode: change.stat.st_mode & 0o777 }) {
                        self.directory(path)?;
                    }
                }
                Kind::File | Kind::Link if before == Some(Copied::entry(&change.stat)) => {}
                Kind::File | Kind::Link => self.take(copy, path)?,
                Kind::Deleted | Kind::Special => denied.push((path.clone(), DenialReason::Special)),
            }
            baseline.remove(path);
        }
        match now.left_out {
            // An entry that could not be listed is not deleted.
            Some(reason) => {
                let message = format!("the list of changes is incomplete, without deletions: {reason}");
                denied.push(("…".into(), failed(io::Error::other(message))));
            }
            None => self.delete(baseline)?,
        }
        self.set_modes(&now.list, baseline)?;
        Ok(denied)
    }

    /// The parent directory of an entry, created if missing, and its name.
    fn place<'p>(&mut self, path: &'p Path) -> io::Result<(BorrowedFd<'_>, &'p OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let above = path.parent().unwrap_or(Path::new(""));
        if !matches!(&self.last, Some((known, _)) if known == above) {
            let mut here = super::super::launch::duplicate(self.next)?;
            let mut below = PathBuf::new();
            for part in above {
                match rustix::fs::mkdirat(&here, part, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                here = rustix::fs::openat(&here, part, DIRECTORY, Mode::empty())?;
                below.push(part);
                self.made.insert(below.clone());
            }
            self.last = Some((above.to_owned(), here));
        }
        match &self.last {
            Some((_, here)) => Ok((here.as_fd(), name)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let (here, name) = self.place(path)?;
        match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.made.insert(path.to_owned());
        Ok(())
    }

    /// Takes a file or link of the copy.
    fn take(&mut self, copy: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
        let copies = self.copies;
        let from = match open_beneath(copy, above, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
            // A running program removed it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if copies => return Ok(()),
            from => from?,
        };
        let (here, name) = self.place(path)?;
        if !copies {
            match rustix::fs::renameat(&from, name, here, name) {
                // The copy is on another mount.
                Err(Errno::XDEV) => {}
                moved => return Ok(moved?),
            }
        }
        match copy_entry(from.as_fd(), name, here) {
            Err(error) if copies && error.kind() == io::ErrorKind::NotFound => return Ok(()),
            result => result?,
        }
        if !copies {
            rustix::fs::unlinkat(&from, name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Records the rest of the baseline as deleted.
    fn delete(&mut self, baseline: &Baseline) -> io::Result<()> {
        let mut settled: Option<&Path> = None;
        for (path, copied) in baseline {
            if settled.is_some_and(|settled| path.starts_with(settled)) {
                continue;
            }
            match copied {
                Copied::Skipped => settled = Some(path),
                // The directory stays, for its entries that were not copied.
                Copied::Directory { .. } if has_skipped(baseline, path) => {}
                _ => {
                    settled = Some(path);
                    let placed = self.place(path).and_then(|(here, name)| Ok(whiteout(here, name)?));
                    match placed.map_err(|error| (error.kind(), error)) {
                        // A file replaced one of its parent directories.
                        Ok(()) | Err((io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists, _)) => {}
                        Err((_, error)) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
                        Err((_, error)) => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }

    /// Sets the modes of the directories as in the copy, bottom-up.
    fn set_modes(&self, list: &[changes::Change], baseline: &Baseline) -> io::Result<()> {
        let in_copy: BTreeMap<&Path, u32> = list
            .iter()
            .filter(|change| self.made.contains(&change.path))
            .map(|change| (change.path.as_path(), change.stat.st_mode & 0o777))
            .collect();
        for path in self.made.iter().rev() {
            let mode = in_copy.get(path.as_path()).copied().or(match baseline.get(path) {
                Some(Copied::Directory { mode }) => Some(*mode),
                _ => None,
            });
            if let Some(mode) = mode {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let opened = open_beneath(self.next, path, flags, Mode::empty())?;
                rustix::fs::fchmod(&opened, Mode::from_raw_mode(mode))?;
            }
        }
        Ok(())
    }
}

/// Copies a file or link with its owner, mode and times.
fn copy_entry(from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>) -> io::Result<()> {
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    match rustix::fs::unlinkat(to, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let is_root = rustix::process::geteuid().is_root();
    let (user, group) = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
    if !is_regular(&stat) {
        let target = rustix::fs::readlinkat(from, name, Vec::new())?;
        rustix::fs::symlinkat(&target, to, name)?;
        if is_root {
            rustix::fs::chownat(to, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        return Ok(rustix::fs::utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?);
    }
    let source = open_beneath(from, Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let stat: Stat = rustix::fs::fstat(&source)?;
    if !is_regular(&stat) {
        return Err(io::ErrorKind::NotFound.into());
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = File::from(rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?);
    if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        sparse::copy(&File::from(source), &target, stat.st_size.unsigned_abs())?;
    }
    if is_root {
        rustix::fs::fchown(&target, user, group)?;
    }
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    Ok(rustix::fs::futimens(&target, &times(&stat))?)
}
