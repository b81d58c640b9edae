//! Undo: reverts the changes of the last run in a directory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};

use super::super::files::open_beneath;
use super::super::sparse;
use super::apply::{Step, failed, gone, lock};
use super::entries::exchange;
use super::held::{Done, Identity, Was};
use super::view::{identity, is_one_mount, stat_of, times};
use super::{OLD, path_of};
use crate::apply::{Applied, ApplyState};
use crate::denial::DenialReason;

/// The entries that undo restored, which are the new entries of earlier changes. A moved file has another change time.
///
/// By the inode of the host directory and the path: the identity of the entry as restored, and as it was replaced.
pub(crate) type Restored = HashMap<(u64, PathBuf), (Identity, Option<Identity>)>;

/// Reverts applied changes, the last one first.
pub(super) fn undo(
    id: &str,
    done: &[Done],
    layer: BorrowedFd<'_>,
    host: BorrowedFd<'_>,
    restored: &mut Restored,
) -> io::Result<Applied> {
    let inode = rustix::fs::fstat(host)?.st_ino;
    let mut applied = Applied::new(id, ApplyState::Applied);
    // A new file has no old version.
    let old = rustix::fs::openat(layer, OLD, super::DIRECTORY, Mode::empty());
    let old = old.or_else(|_| super::super::launch::duplicate(layer))?;
    let _lock = lock(host)?;
    for done in done.iter().rev() {
        let path = path_of(&done.path);
        let key = (inode, path.clone());
        let known = restored.get(&key).filter(|(_, replaced)| *replaced == done.now);
        match undo_one(done, &path, old.as_fd(), host, known.map(|(now, _)| *now)) {
            Ok(()) => {
                applied.changed += 1;
                match stat_of(host, &path) {
                    Ok(Some(stat)) => restored.insert(key, (identity(&stat), done.before)),
                    _ => restored.remove(&key),
                };
            }
            Err(reason) => applied.deny(&path, reason),
        }
    }
    Ok(applied)
}

/// `restored` is the identity of the entry that undo restored there, if it is the new entry of this change.
fn undo_one(
    done: &Done,
    path: &Path,
    old: BorrowedFd<'_>,
    host: BorrowedFd<'_>,
    restored: Option<Identity>,
) -> Step {
    let name = path.file_name().ok_or(DenialReason::Conflict)?;
    let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    let parent =
        open_beneath(host, above, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(gone)?;
    let there = stat_of(host, path).map_err(failed)?;
    // The time of a directory changes with its content.
    let is_ours = match (&there, done.now) {
        (Some(stat), Some(now)) if done.is_directory => stat.st_ino == now.0,
        (Some(stat), Some(now)) => identity(stat) == now || restored == Some(identity(stat)),
        (None, None) => true,
        _ => false,
    };
    if !is_ours {
        return Err(DenialReason::Conflict);
    }
    if let Some(number) = done.old {
        return put_back(old, &number.to_string(), parent.as_fd(), name, there.as_ref());
    }
    match (&there, done.was) {
        (Some(_), Was::Nothing) => {
            let flags = if done.is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            rustix::fs::unlinkat(&parent, name, flags).map_err(failed)
        }
        (None, Was::Directory { mode, user, group }) => {
            rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700)).map_err(failed)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let made = open_beneath(parent.as_fd(), Path::new(name), flags, Mode::empty()).map_err(failed)?;
            set_owner(made.as_fd(), user, group).map_err(failed)?;
            rustix::fs::fchmod(&made, Mode::from_raw_mode(mode | 0o700)).map_err(failed)
        }
        (Some(_), Was::Attributes { mode, seconds, nanoseconds }) => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let file = open_beneath(parent.as_fd(), Path::new(name), flags, Mode::empty()).map_err(failed)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).map_err(failed)?;
            let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::futimens(&file, &times).map_err(failed)
        }
        _ => Err(failed(io::Error::other("its old version was not stored"))),
    }
}

/// Restores an old version, if the current entry is still `there`.
fn put_back(
    old: BorrowedFd<'_>,
    number: &str,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    there: Option<&Stat>,
) -> Step {
    if is_one_mount(old, parent) {
        return exchange(old, number.as_ref(), parent, name, there).map(drop);
    }
    let beside = format!(".toolpost-undo-{}-{number}", std::process::id());
    let step = copy(old, number, parent, &beside).map_err(failed);
    let inode =
        || rustix::fs::statat(parent, &*beside, AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_ino).ok();
    let copied = inode();
    let step = step.and_then(|()| exchange(parent, beside.as_ref(), parent, name, there));
    // Remove the reverted version or the copy, never what the host wrote meanwhile.
    if step.is_ok() || inode() == copied {
        let _ = rustix::fs::unlinkat(parent, &*beside, AtFlags::empty());
    }
    step.map(drop)
}

/// Copies an old version to another mount.
fn copy(old: BorrowedFd<'_>, number: &str, parent: BorrowedFd<'_>, beside: &str) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let file = std::fs::File::from(open_beneath(old, Path::new(number), flags, Mode::empty())?);
    let stat = rustix::fs::fstat(&file)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let target = open_beneath(parent, Path::new(beside), flags, Mode::from_raw_mode(0o600))?;
    let target = std::fs::File::from(target);
    sparse::copy(&file, &target, stat.st_size as u64)?;
    set_owner(target.as_fd(), stat.st_uid, stat.st_gid)?;
    rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o777))?;
    Ok(rustix::fs::futimens(&target, &times(&stat))?)
}

/// Restores an entry's owner, which only root can.
fn set_owner(file: BorrowedFd<'_>, user: u32, group: u32) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Ok(rustix::fs::fchown(file, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)))?)
}
