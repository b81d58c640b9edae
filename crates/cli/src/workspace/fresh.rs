//! Fresh working folders: made, held while their command lives, and cleared away after one that was killed.

use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// How the names of working folders begin; six random letters and digits follow.
const PREFIX: &str = "toolpost-run-";
/// How the names of those begin that somebody was told to look into: nobody clears them away.
const KEPT: &str = "toolpost-kept-";
/// The working folder in it. The outer one is locked, because sandboxes lock the one that they work in.
const WORK: &str = "work";
/// How often another folder is made when somebody takes one away at once.
const ATTEMPTS: usize = 16;

/// A folder of one command, removed with everything in it when dropped.
pub(crate) struct Fresh {
    folder: TempDir,
    work: PathBuf,
    /// Locked as long as the command lives, however it ends.
    #[cfg(unix)]
    _held: std::fs::File,
}

impl Fresh {
    /// Makes one in the folder for temporary files.
    pub(super) fn make() -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX);
        // What is attached may be for nobody else's eyes.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
        for _ in 0..ATTEMPTS {
            let folder = builder.tempdir()?;
            #[cfg(unix)]
            let Some(held) = stale::hold(folder.path())? else { continue };
            let work = folder.path().join(WORK);
            let mut builder = std::fs::DirBuilder::new();
            #[cfg(unix)]
            std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
            builder.create(&work)?;
            return Ok(Self {
                folder,
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

    /// Lets the folder stay for a person, and says where it is.
    pub(super) fn keep(self) -> PathBuf {
        let path = self.folder.keep();
        let name = path.file_name().map(|name| name.to_string_lossy().replacen(PREFIX, KEPT, 1));
        let kept = path.with_file_name(name.unwrap_or_default());
        match std::fs::rename(&path, &kept) {
            Ok(()) => kept.join(WORK),
            Err(_) => self.work,
        }
    }
}

/// Removes working folders of commands that were killed, as far as that is done within half a second; the next command
/// goes on.
#[cfg(unix)]
pub(crate) fn clear_stale() {
    stale::clear();
}

#[cfg(not(unix))]
pub(crate) fn clear_stale() {}

#[cfg(unix)]
mod stale {
    use std::fs::{File, Metadata, OpenOptions, TryLockError};
    use std::io;
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::fs::OFlags;

    use super::{PREFIX, WORK};

    /// How long nothing must have come into a working folder or gone out of it, so that whoever killed the command can look at it.
    const STALE_AFTER: Duration = Duration::from_hours(1);
    /// How many entries of the folder for temporary files are looked at.
    const MOST_ENTRIES: usize = 65_536;
    /// How long a command that is done waits for it.
    const PATIENCE: Duration = Duration::from_millis(500);

    /// Holds a folder against those that clear away; `None` if one of them was faster.
    pub(super) fn hold(path: &Path) -> io::Result<Option<File>> {
        let held = open(path)?;
        match held.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(None),
            // Where nothing can be locked, nothing is cleared away.
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
            // It ends with the sender, or the process ends first.
            let _ = is_done.recv_timeout(PATIENCE);
        }
    }

    fn clear_in(parent: &Path) {
        let Ok(entries) = parent.read_dir() else { return };
        for entry in entries.take(MOST_ENTRIES).flatten() {
            let name = entry.file_name();
            let random = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
            let is_one =
                |random: &str| random.len() == 6 && random.chars().all(|c| c.is_ascii_alphanumeric());
            if random.is_some_and(is_one) {
                // What cannot be removed stays for the next time.
                let _ = clear_one(&entry.path());
            }
        }
    }

    fn clear_one(path: &Path) -> io::Result<()> {
        let held = open(path)?;
        let metadata = held.metadata()?;
        let is_ours =
            metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode() & 0o777 == 0o700;
        let is_past = |metadata: Metadata| {
            metadata.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age >= STALE_AFTER))
        };
        let is_old = is_past(metadata) && path.join(WORK).symlink_metadata().map_or(true, is_past);
        if is_ours && is_old && held.try_lock().is_ok() && is_at(&held, path) {
            // Follows no link, neither here nor below.
            std::fs::remove_dir_all(path)?;
        }
        Ok(())
    }

    fn open(path: &Path) -> io::Result<File> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
    }

    /// Whether a folder is still the one that has this name.
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

        /// A folder of this name with a file in it, as old as that.
        fn folder(parent: &Path, name: &str, age: Duration) -> PathBuf {
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
        fn only_old_folders_of_ours_that_nobody_holds_go_away() {
            let parent = tempfile::tempdir().unwrap();
            let old = 2 * STALE_AFTER;
            let make = |name: &str, age| folder(parent.path(), name, age);
            let stale = make("toolpost-run-abcDEF", old);
            let stay = [
                make("toolpost-run-young1", STALE_AFTER / 2),
                make("toolpost-run-held12", old),
                make("toolpost-run-open12", old),
                make("toolpost-run-mine", old),
                make("toolpost-kept-abcDEF", old),
                make("elsewhere", old),
            ];
            let held = hold(&stay[1]).unwrap().unwrap();
            fs::set_permissions(&stay[2], fs::Permissions::from_mode(0o755)).unwrap();
            symlink(&stay[5], parent.path().join("toolpost-run-link12")).unwrap();
            fs::write(parent.path().join("toolpost-run-file12"), "x").unwrap();
            clear_in(parent.path());
            assert!(!stale.exists());
            for path in &stay {
                assert!(path.join(WORK).join("file").exists(), "{}", path.display());
            }
            assert!(parent.path().join("toolpost-run-file12").exists());
            drop(held);
            clear_in(parent.path());
            assert!(!stay[1].exists());
            // One that is being cleared away is nobody's.
            let taken = open(&stay[2]).unwrap();
            taken.try_lock().unwrap();
            assert!(hold(&stay[2]).unwrap().is_none());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_another_name() {
        let fresh = Fresh::make().unwrap();
        std::fs::write(fresh.path().join("file"), "x").unwrap();
        let kept = fresh.keep();
        let outer = kept.parent().unwrap();
        assert!(outer.file_name().unwrap().to_str().unwrap().starts_with(KEPT), "{}", kept.display());
        assert!(kept.join("file").exists());
        std::fs::remove_dir_all(outer).unwrap();
    }
}
