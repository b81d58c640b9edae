//! Steps of apply on single entries: exchange, comparison, copies of old versions.

use std::io::{self, Read as _};
use std::path::Path;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::super::{launch, sparse};
use super::apply::failed;
use super::view::{is_regular, version};
use crate::denial::DenialReason;

/// The largest old version that is copied to another file system for undo.
const MAX_OLD_COPY: u64 = 16 << 20;

/// Moves a prepared entry to its path, if the expected entry is still there.
///
/// Returns whether that entry now has the prepared one's name.
pub(super) fn exchange(
    from: BorrowedFd<'_>,
    ready: &std::ffi::OsStr,
    parent: BorrowedFd<'_>,
    name: &std::ffi::OsStr,
    expected: Option<&Stat>,
) -> Result<bool, DenialReason> {
    let rename = |flags: RenameFlags| rustix::fs::renameat_with(from, ready, parent, name, flags);
    let flags = if expected.is_some() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
    match rename(flags) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::EXIST) => return Err(DenialReason::Conflict),
        // A file system without rename flags; the check was a moment ago.
        Err(Errno::INVAL) => return rename(RenameFlags::empty()).map(|()| false).map_err(failed),
        Err(error) => return Err(failed(error)),
    }
    let Some(expected) = expected else { return Ok(false) };
    let replaced = rustix::fs::statat(from, ready, AtFlags::SYMLINK_NOFOLLOW);
    if replaced.is_ok_and(|replaced| version(&replaced) == version(expected)) {
        return Ok(true);
    }
    // The host wrote another entry between check and exchange. Move it back; if that fails, it stays under
    // the prepared name.
    match rename(RenameFlags::EXCHANGE).or_else(|_| rename(RenameFlags::NOREPLACE)) {
        Ok(()) => Err(DenialReason::Conflict),
        Err(error) => {
            let message = format!("the host's version is now `{}`: {error}", ready.display());
            Err(failed(io::Error::other(message)))
        }
    }
}

/// Opens the same file again, at its start.
pub(super) fn open_again(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let own = launch::duplicate(file)?;
    rustix::fs::seek(&own, rustix::fs::SeekFrom::Start(0))?;
    Ok(own)
}

pub(super) fn same_content(one: &mut std::fs::File, other: &mut std::fs::File) -> io::Result<bool> {
    use std::io::{Seek as _, SeekFrom};
    let (mut left, mut right) = (vec![0u8; 64 << 10], vec![0u8; 64 << 10]);
    one.seek(SeekFrom::Start(0))?;
    loop {
        let count = one.read(&mut left)?;
        if count == 0 {
            one.seek(SeekFrom::Start(0))?;
            return Ok(other.read(&mut right)? == 0);
        }
        let (Some(left), Some(right)) = (left.get(..count), right.get_mut(..count)) else { return Ok(false) };
        if other.read_exact(right).is_err() || left != right {
            one.seek(SeekFrom::Start(0))?;
            return Ok(false);
        }
    }
}

/// Copies an old version into the layer, if it is a small regular file.
pub(super) fn copy_old(
    from: BorrowedFd<'_>,
    name: &std::ffi::OsStr,
    stat: &Stat,
    old: BorrowedFd<'_>,
    number: u64,
) -> bool {
    if !is_regular(stat) || stat.st_size as u64 > MAX_OLD_COPY {
        return false;
    }
    let copied = (|| -> io::Result<()> {
        let file = open_beneath(from, Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
        let target = open_beneath(old, Path::new(&number.to_string()), flags, mode)?;
        sparse::copy(&std::fs::File::from(file), &std::fs::File::from(target), stat.st_size as u64)
    })();
    copied.is_ok()
}
