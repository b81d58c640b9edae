//! Directories that this process created for programs.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The directories by device and inode.
static OWN: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

fn own() -> MutexGuard<'static, BTreeSet<(u64, u64)>> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Marks a directory that this process created for programs, as long as this value lives.
///
/// It needs no protection from them. Where no private layer is possible, programs with this directory as
/// [`crate::Workspace::Host`] write to it directly.
#[derive(Debug)]
pub struct OwnDirectory((u64, u64));

impl OwnDirectory {
    /// Marks a directory. It must have been created by this process, and belong to [`crate::program_user`].
    ///
    /// # Errors
    /// The directory does not exist.
    pub fn mark(path: &Path) -> io::Result<Self> {
        let stat = rustix::fs::stat(path)?;
        let key = (stat.st_dev, stat.st_ino);
        own().insert(key);
        Ok(Self(key))
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        own().remove(&self.0);
    }
}

/// Whether this process created the directory at a path for programs.
pub(super) fn is_own(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| own().contains(&(stat.st_dev, stat.st_ino)))
}
