//! Undo: takes back what the last run in a directory changed.

use std::path::Path;

use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::super::sparse;
use super::apply::{Step, failed, gone, identity, lock};
use super::held::{Done, Was};
use super::view::stat_of;
use super::{OLD, path_of};
use crate::apply::{Applied, ApplyState, DenialReason};

/// Takes back what was applied, the last change first.
pub(super) fn undo(id: &str, done: &[Done], layer: BorrowedFd<'_>, host: BorrowedFd<'_>) -> Applied {
    let mut applied = Applied::new(id, ApplyState::Applied);
    let Ok(old) = rustix::fs::openat(layer, OLD, super::DIRECTORY, Mode::empty()) else { return applied };
    let Ok(_lock) = lock(host) else { return applied };
    for done in done.iter().rev() {
        let path = path_of(&done.path);
        match undo_one(done, &path, old.as_fd(), host) {
            Ok(()) => applied.changed += 1,
            Err(reason) => applied.deny(&path, reason),
        }
    }
    applied
}

fn undo_one(done: &Done, path: &Path, old: BorrowedFd<'_>, host: BorrowedFd<'_>) -> Step {
    let name = path.file_name().ok_or(DenialReason::Conflict)?;
    let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    let parent =
        open_beneath(host, above, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(gone)?;
    let there = stat_of(host, path).map_err(failed)?;
    // The time of a directory changes with what is in it.
    let is_ours = match (&there, done.now) {
        (Some(stat), Some(now)) if done.is_directory => stat.st_ino == now.0,
        (Some(stat), Some(now)) => identity(stat) == now,
        (None, None) => true,
        _ => false,
    };
    if !is_ours {
        return Err(DenialReason::Conflict);
    }
    let Some(number) = done.old.map(|number| number.to_string()) else {
        return match (done.now, done.was) {
            (Some(_), Was::Nothing) if done.is_directory => {
                rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(failed)
            }
            (Some(_), Was::Nothing) => rustix::fs::unlinkat(&parent, name, AtFlags::empty()).map_err(failed),
            (None, Was::Directory) => {
                rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)).map_err(failed)
            }
            _ => Err(DenialReason::Failed("its old version was not stored".into())),
        };
    };
    match rustix::fs::renameat(old, &*number, &parent, name) {
        Err(Errno::XDEV) => {}
        other => return other.map_err(failed),
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = open_beneath(old, Path::new(&number), flags, Mode::empty()).map_err(failed)?;
    let file = std::fs::File::from(file);
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let target =
        open_beneath(parent.as_fd(), Path::new(name), flags, Mode::from_raw_mode(0o644)).map_err(failed)?;
    let target = std::fs::File::from(target);
    sparse::copy(&file, &target, stat.st_size as u64).map_err(failed)?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(failed)
}
