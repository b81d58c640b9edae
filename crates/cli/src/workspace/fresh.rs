//! Fresh working directories: created, locked, and removed after a killed command.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use toolpost_sandbox::OwnDirectory;

/// The prefix of fresh directories; six random letters and digits follow.
const PREFIX: &str = "toolpost-run-";
/// The prefix of directories for whole outputs, which are cleaned up alike.
pub(crate) const OUTPUTS: &str = "toolpost-outputs-";
/// The prefix of preserved directories, which are never cleaned up.
const KEPT: &str = "toolpost-preserved-";
/// The working directory inside. The parent is locked, because sandboxes lock the inner one.
const WORK: &str = "work";
/// The number of attempts to create a directory.
const ATTEMPTS: usize = 16;

/// A directory of one command, removed on drop.
pub(crate) struct Fresh {
    /// Programs may write to it directly. This ends before the directory.
    _own: OwnDirectory,
    directory: TempDir,
    work: PathBuf,
    /// The lock, which ends with the process.
    #[cfg(unix)]
    _held: std::fs::File,
}

impl Fresh {
    /// Creates a directory in the directory for temporary files.
    pub(super) fn make() -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX);
        // Attachments may be private.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
        for _ in 0..ATTEMPTS {
            let directory = builder.tempdir()?;
            #[cfg(unix)]
            let Some(held) = stale::hold(directory.path())? else { continue };
            let work = directory.path().join(WORK);
            let mut builder = std::fs::DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(&work)?;
            return Ok(Self {
                _own: OwnDirectory::mark(&work)?,
                directory,
                work,
                #[cfg(unix)]
                _held: held,
            });
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.work
    }

    /// Gives the directory and these entries to the user of sandboxed programs, if this process is root. The file
    /// system need not map identities then.
    #[cfg(unix)]
    pub(super) fn give_to_programs<'a>(&self, entries: impl Iterator<Item = &'a Path>) -> io::Result<()> {
        let Some(user) = toolpost_sandbox::program_user() else { return Ok(()) };
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(self.directory.path(), mode)?;
        for path in entries.map(|entry| self.work.join(entry)).chain([self.work.clone()]) {
            std::os::unix::fs::lchown(path, Some(user), Some(user))?;
        }
        Ok(())
    }

    #[cfg(not(unix))]
    pub(super) fn give_to_programs<'a>(&self, _entries: impl Iterator<Item = &'a Path>) -> io::Result<()> {
        Ok(())
    }

    /// Preserves the directory and returns its path.
    pub(super) fn preserve(self) -> PathBuf {
        let path = self.directory.keep();
        let name = path.file_name().map(|name| name.to_string_lossy().replacen(PREFIX, KEPT, 1));
        let preserved = path.with_file_name(name.unwrap_or_default());
        match std::fs::rename(&path, &preserved) {
            Ok(()) => preserved.join(WORK),
            Err(_) => self.work,
        }
    }
}

/// Removes directories of killed commands for at most half a second; the next command continues.
#[cfg(unix)]
pub(crate) fn clear_stale() {
    stale::clear();
}

#[cfg(not(unix))]
pub(crate) fn clear_stale() {}

#[cfg(unix)]
pub(crate) use stale::hold;

#[cfg(unix)]
mod stale {
    use std::fs::{File, Metadata, OpenOptions, TryLockError};
    use std::io;
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::OFlags;

    use super::{OUTPUTS, PREFIX, WORK};

    /// The age after which a directory is removed, so that a person can still inspect it.
    const STALE_AFTER: Duration = Duration::from_hours(1);
    /// The maximum number of scanned entries.
    const MAX_ENTRIES: usize = 65_536;
    /// The time that a finished command waits for the cleanup.
    const PATIENCE: Duration = Duration::from_millis(500);

    /// Locks a directory against the cleanup; `None` if a cleanup was faster.
    pub(crate) fn hold(path: &Path) -> io::Result<Option<File>> {
        let held = open(path)?;
        match held.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            // Without locks there is no cleanup.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        Ok(is_at(&held, path).then_some(held))
    }

    pub(super) fn clear() {
        let (done, is_done) = mpsc::channel::<()>();
        let cleared = std::thread::Builder::new().spawn(move || {
            clear_in(&std::env::temp_dir());
            drop(done);
        });
        if cleared.is_ok() {
            // The thread ends with the sender or the process.
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }

    fn clear_in(parent: &Path) {
        let Ok(entries) = parent.read_dir() else { return };
        for entry in entries.take(MAX_ENTRIES).flatten() {
            let name = entry.file_name();
            let random = name
                .to_str()
                .and_then(|name| [PREFIX, OUTPUTS].iter().find_map(|prefix| name.strip_prefix(prefix)));
            let is_one =
                |random: &str| random.len() == 6 && random.chars().all(|c| c.is_ascii_alphanumeric());
            if random.is_some_and(is_one) {
                // A failed removal is repeated by the next command.
                let _ = clear_one(&entry.path());
            }
        }
    }

    fn clear_one(path: &Path) -> io::Result<()> {
        let held = open(path)?;
        let metadata = held.metadata()?;
        let is_ours =
            metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o766 == 0o700;
        let is_past = |metadata: Metadata| {
            metadata.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= STALE_AFTER))
        };
        let is_old = is_past(metadata) && path.join(WORK).symlink_metadata().map_or(true, is_past);
        if is_ours && is_old && held.try_lock().is_ok() && is_at(&held, path) {
            // Follows no links.
            std::fs::remove_dir_all(path)?;
        }
        Ok(())
    }

    fn open(path: &Path) -> io::Result<File> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
    }

    /// Whether a directory still has this name.
    fn is_at(held: &File, path: &Path) -> bool {
        let same = |found: Metadata| Some((found.dev(), found.ino()));
        let here = held.metadata().ok().and_then(same);
        here.is_some() && here == path.symlink_metadata().ok().and_then(same)
    }

    #[cfg(test)]
    mod tests {
        use std::fs;
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        use std::path::PathBuf;
        use std::time::SystemTime;

        use super::*;

        /// Creates a directory of this name with a file of this age.
        fn directory(parent: &Path, name: &str, age: Duration) -> PathBuf {
            let path = parent.join(name);
            let work = path.join(WORK);
            fs::create_dir_all(&work).unwrap();
            fs::write(work.join("file"), "x").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            open(&work).unwrap().set_modified(SystemTime::now() - age).unwrap();
            open(&path).unwrap().set_modified(SystemTime::now() - 2 * STALE_AFTER).unwrap();
            path
        }

        #[test]
        fn only_old_unlocked_directories_are_removed() {
            let parent = tempfile::tempdir().unwrap();
            let old = 2 * STALE_AFTER;
            let make = |name: &str, age| directory(parent.path(), name, age);
            let stale = [make("toolpost-run-abcDEF", old), make("toolpost-outputs-abcDEF", old)];
            let stay = [
                make("toolpost-run-young1", STALE_AFTER / 2),
                make("toolpost-run-held12", old),
                make("toolpost-run-open12", old),
                make("toolpost-run-mine", old),
                make("toolpost-preserved-abcDEF", old),
                make("elsewhere", old),
            ];
            let held = hold(&stay[1]).unwrap().unwrap();
            fs::set_permissions(&stay[2], fs::Permissions::from_mode(0o755)).unwrap();
            symlink(&stay[5], parent.path().join("toolpost-run-link12")).unwrap();
            fs::write(parent.path().join("toolpost-run-file12"), "x").unwrap();
            clear_in(parent.path());
            assert!(stale.iter().all(|path| !path.exists()));
            for path in &stay {
                assert!(path.join(WORK).join("file").exists(), "{}", path.display());
            }
            assert!(parent.path().join("toolpost-run-file12").exists());
            drop(held);
            clear_in(parent.path());
            assert!(!stay[1].exists());
            // A directory under cleanup has no owner.
            let taken = open(&stay[2]).unwrap();
            taken.try_lock().unwrap();
            assert!(hold(&stay[2]).unwrap().is_none());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_directory_of_root_belongs_to_sandboxed_programs() {
        use std::os::unix::fs::MetadataExt as _;
        let fresh = Fresh::make().unwrap();
        std::fs::write(fresh.path().join("file"), "x").unwrap();
        fresh.give_to_programs([Path::new("file")].into_iter()).unwrap();
        let own = fresh.directory.path().metadata().unwrap().uid();
        let expected = toolpost_sandbox::program_user().unwrap_or(own);
        for path in [fresh.path().to_owned(), fresh.path().join("file")] {
            assert_eq!(path.metadata().unwrap().uid(), expected, "{}", path.display());
        }
    }

    #[test]
    fn a_preserved_directory_is_renamed() {
        let fresh = Fresh::make().unwrap();
        std::fs::write(fresh.path().join("file"), "x").unwrap();
        let preserved = fresh.preserve();
        let outer = preserved.parent().unwrap();
        assert!(outer.file_name().unwrap().to_str().unwrap().starts_with(KEPT), "{}", preserved.display());
        assert!(preserved.join("file").exists());
        std::fs::remove_dir_all(outer).unwrap();
    }
}
