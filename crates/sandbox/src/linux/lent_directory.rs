//! A live directory of root for a program of another user, where no mount maps identities.
//!
//! For the time of the run, the program's user owns the entries of the directory's owner. A list in the directory for
//! layers names the owner, so that the next run returns what a killed one left.

use std::ffi::CString;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::files::{Owner, open_beneath};
use super::layer;

/// The maximum depth of directories.
const MAX_DEPTH: usize = 256;
/// The maximum number of entries.
const MAX_ENTRIES: usize = 500_000;
/// The mode bits that a change of owner would remove.
const SET_IDENTITY: u32 = libc::S_ISUID | libc::S_ISGID;

/// A directory whose entries belong to the program's user. Dropping it returns them, after the last run there.
#[derive(Debug)]
pub(super) struct LentDirectory {
    directory: OwnedFd,
    owner: Owner,
    program: Owner,
    /// The record of the owner, locked as long as a run uses the directory.
    record: std::fs::File,
    path: PathBuf,
}

impl LentDirectory {
    /// Lends a directory with what belongs to its owner. `records` is the directory for records.
    pub(super) fn lend(
        directory: BorrowedFd<'_>,
        stat: &Stat,
        program: Owner,
        records: &Path,
    ) -> io::Result<Self> {
        let path = records.join(format!("lent-{:x}-{:x}", stat.st_dev, stat.st_ino));
        let changes = lock(records)?;
        let mut record = open(&path)?;
        let mut text = String::new();
        (&mut record).take(64).read_to_string(&mut text)?;
        // Other runs may use the directory, too.
        rustix::fs::flock(&record, FlockOperation::LockShared)?;
        let owner = match text.split_once(' ').map(|(user, group)| (user.parse(), group.trim().parse())) {
            // Another run has the directory, or a killed one had it.
            Some((Ok(user), Ok(group))) => Owner { user, group },
            _ => {
                let owner = Owner { user: stat.st_uid, group: stat.st_gid };
                record.write_all(format!("{} {}\n", owner.user, owner.group).as_bytes())?;
                owner
            }
        };
        let lent = Self { directory: super::launch::duplicate(directory)?, owner, program, record, path };
        let walked = walk(lent.directory.as_fd(), &mut |entry, found| {
            // A second name may lie elsewhere.
            let is_alone =
                found.st_nlink == 1 || FileType::from_raw_mode(found.st_mode) == FileType::Directory;
            if found.st_uid == owner.user && is_alone && found.st_mode & SET_IDENTITY == 0 {
                give(entry, Some(program.user), None)?;
            }
            Ok(())
        });
        // What follows a failure returns the directory, and locks again.
        drop(changes);
        walked.map(|()| lent)
    }

    fn end(&self) -> io::Result<()> {
        let _changes = lock(self.path.parent().unwrap_or(&self.path))?;
        match rustix::fs::flock(&self.record, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => return Ok(()),
            locked => locked?,
        }
        let (owner, program) = (self.owner, self.program);
        walk(self.directory.as_fd(), &mut |entry, found| {
            let user = (found.st_uid == program.user).then_some(owner.user);
            let group = (found.st_gid == program.group).then_some(owner.group);
            if user.is_some() || group.is_some() { give(entry, user, group) } else { Ok(()) }
        })?;
        std::fs::remove_file(&self.path)
    }
}

impl Drop for LentDirectory {
    fn drop(&mut self) {
        // If it fails, the record stays for the next run.
        let _ = self.end();
        // A process that another thread has just started may have a duplicate of the descriptor.
        let _ = rustix::fs::flock(&self.record, FlockOperation::Unlock);
    }
}

/// Waits until no other process lends or returns a directory.
fn lock(records: &Path) -> io::Result<std::fs::File> {
    let file = open(&records.join("lent.lock"))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

fn open(path: &Path) -> io::Result<std::fs::File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?.into())
}

/// Sets the owner of an open entry.
fn give(entry: BorrowedFd<'_>, user: Option<u32>, group: Option<u32>) -> io::Result<()> {
    let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
    Ok(rustix::fs::chownat(entry, "", user, group, AtFlags::EMPTY_PATH)?)
}

/// Visits a directory and everything beneath it on its file system, without following links.
fn walk(
    root: BorrowedFd<'_>,
    visit: &mut dyn FnMut(BorrowedFd<'_>, &Stat) -> io::Result<()>,
) -> io::Result<()> {
    visit(root, &rustix::fs::fstat(root)?)?;
    let mut count = 0usize;
    let mut buffer = Vec::with_capacity(32 << 10);
    let first = open_beneath(root, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let names = layer::names(&first, &mut buffer).into_iter();
    let mut open: Vec<(OwnedFd, std::vec::IntoIter<CString>)> = vec![(first, names)];
    while let Some((directory, names)) = open.last_mut() {
        let Some(name) = names.next() else {
            open.pop();
            continue;
        };
        count += 1;
        if count > MAX_ENTRIES {
            return Err(io::Error::other(format!("it has more than {MAX_ENTRIES} entries")));
        }
        let path = super::layer::name_of(&name);
        let entry = match open_beneath(directory.as_fd(), path, OFlags::PATH, Mode::empty()) {
            Ok(entry) => entry,
            // Deleted meanwhile, or on another file system.
            Err(Errno::NOENT | Errno::XDEV) => continue,
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&entry)?;
        visit(entry.as_fd(), &stat)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && open.len() < MAX_DEPTH {
            let inner = open_beneath(
                entry.as_fd(),
                Path::new("."),
                OFlags::RDONLY | OFlags::DIRECTORY,
                Mode::empty(),
            )?;
            let names = layer::names(&inner, &mut buffer).into_iter();
            open.push((inner, names));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};

    #[test]
    fn a_directory_is_lent_and_returned_also_after_a_kill() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP a_directory_is_lent_and_returned_also_after_a_kill: only root changes owners");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join("work").join(name);
        let records = place.path().join("records");
        fs::create_dir_all(at("inner")).unwrap();
        fs::create_dir(&records).unwrap();
        let outside = place.path().join("outside");
        for path in [at("own"), at("inner/own"), at("other"), at("setuid"), outside.clone()] {
            fs::write(path, "x").unwrap();
        }
        chown(at("other"), Some(1234), Some(1234)).unwrap();
        fs::set_permissions(at("setuid"), std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
        fs::hard_link(&outside, at("linked")).unwrap();
        symlink(&outside, at("link")).unwrap();
        let user = |name: &str| fs::symlink_metadata(at(name)).unwrap().uid();
        let owners = || ["", "own", "inner", "inner/own", "link", "other", "setuid", "linked"].map(user);
        let program = Owner { user: 4321, group: 4321 };
        let lend = || {
            let directory = fs::File::open(at("")).unwrap();
            let stat = rustix::fs::fstat(&directory).unwrap();
            LentDirectory::lend(directory.as_fd(), &stat, program, &records).unwrap()
        };
        let before = [0, 0, 0, 0, 0, 1234, 0, 0];
        let given = [4321, 4321, 4321, 4321, 4321, 1234, 0, 0];
        assert_eq!(owners(), before);
        let first = lend();
        assert_eq!(owners(), given);
        let second = lend();
        drop(first);
        assert_eq!(owners(), given, "another run has it");
        fs::write(at("new"), "x").unwrap();
        chown(at("new"), Some(4321), Some(4321)).unwrap();
        drop(second);
        assert_eq!((owners(), user("new")), (before, 0));
        assert_eq!(fs::read_dir(&records).unwrap().count(), 1, "the lock");
        // A killed run.
        let killed = lend();
        rustix::fs::flock(&killed.record, FlockOperation::Unlock).unwrap();
        std::mem::forget(killed);
        assert_eq!(owners(), given);
        drop(lend());
        assert_eq!(owners(), before);
        assert_eq!(fs::metadata(at("setuid")).unwrap().mode() & 0o7777, 0o4755);
    }
}
