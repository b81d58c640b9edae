//! A workspace in a temporary host directory, for hosts without mount namespaces.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::files::{Owner, open_beneath};

/// A directory with an unguessable name, removed with its content on drop.
#[derive(Debug)]
pub(super) struct TemporaryDirectory {
    path: PathBuf,
    descriptor: OwnedFd,
}

impl TemporaryDirectory {
    /// Creates a directory that only its owner can enter.
    pub(super) fn create(owner: Option<Owner>) -> io::Result<Self> {
        let parent = std::env::temp_dir().canonicalize()?;
        for _ in 0..16 {
            let mut random = [0u8; 8];
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
            let name = format!("toolpost-{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
            let path = parent.join(name);
            match rustix::fs::mkdir(&path, Mode::from_raw_mode(0o700)) {
                Err(Errno::EXIST) => continue,
                other => other?,
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let descriptor = rustix::fs::open(&path, flags, Mode::empty())?;
            if let Some(owner) = owner {
                use rustix::fs::{Gid, Uid};
                rustix::fs::fchown(
                    &descriptor,
                    Some(Uid::from_raw(owner.user)),
                    Some(Gid::from_raw(owner.group)),
                )?;
            }
            return Ok(Self { path, descriptor });
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        empty(self.descriptor.as_fd());
        // The name of a leftover shows its origin.
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Removes everything in a directory. A program may nest directories deeper than any path or stack allows, so
/// each subdirectory is moved to the top before it is emptied: the work is never more than one level deep.
pub(super) fn empty(directory: BorrowedFd<'_>) {
    let mut number = 0u64;
    let mut buffer = Vec::with_capacity(32 << 10);
    // Each round removes at least one entry, or ends.
    loop {
        let before = number;
        let mut removed = false;
        let Ok(reader) =
            open_beneath(directory, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        else {
            return;
        };
        let mut names = Vec::new();
        let mut entries = rustix::fs::RawDir::new(&reader, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name();
            if name.to_bytes() != b"." && name.to_bytes() != b".." {
                names.push(name.to_owned());
            }
            if names.len() >= 4096 {
                break;
            }
        }
        for name in &names {
            if rustix::fs::unlinkat(directory, name, AtFlags::empty()).is_ok()
                || rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR).is_ok()
            {
                removed = true;
                continue;
            }
            let is_directory = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
            if !is_directory {
                continue;
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // The program is dead, and may have removed its owner's permissions.
            let _ = rustix::fs::chmodat(directory, name, Mode::from_raw_mode(0o700), AtFlags::empty());
            let Ok(inner) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { continue };
            let _ = rustix::fs::fchmod(&inner, Mode::from_raw_mode(0o700));
            number += lift(&inner, directory, number);
            if rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR).is_ok() {
                removed = true;
            }
        }
        if names.is_empty() || (!removed && number == before) {
            return;
        }
    }
}

/// Removes the files of a directory and moves its subdirectories up. Returns their number.
fn lift(inner: &OwnedFd, top: BorrowedFd<'_>, first: u64) -> u64 {
    let mut moved = 0;
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = rustix::fs::RawDir::new(inner, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => rustix::fs::statat(inner, name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            kind => kind == FileType::Directory,
        };
        if is_directory {
            // A directory without permissions cannot be moved either.
            let _ = rustix::fs::chmodat(inner, name, Mode::from_raw_mode(0o700), AtFlags::empty());
            if rustix::fs::renameat(inner, name, top, format!(".toolpost-{}", first + moved)).is_ok() {
                moved += 1;
            }
        } else {
            let _ = rustix::fs::unlinkat(inner, name, AtFlags::empty());
        }
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_nested_ten_thousand_deep_is_removed() {
        let directory = TemporaryDirectory::create(None).unwrap();
        let path = directory.path().to_owned();
        let mut here = rustix::io::dup(directory.descriptor()).unwrap();
        for level in 0..10_000 {
            rustix::fs::mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
            if level % 100 == 0 {
                let flags = OFlags::WRONLY | OFlags::CREATE;
                rustix::fs::openat(&here, "file", flags, Mode::from_raw_mode(0o600)).unwrap();
            }
            here = rustix::fs::openat(&here, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        }
        drop(directory);
        assert!(!path.exists());
    }
}
