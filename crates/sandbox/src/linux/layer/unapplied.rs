//! The changes that apply denied and that stay in the layer for another apply.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::changes::{self, Change, Kind, whiteout};
use super::live::parent;
use crate::denial::DenialReason;

/// Build directories: programs write, delete and create their content again.
const BUILD_DIRECTORIES: [&str; 12] = [
    "node_modules",
    "target",
    ".venv",
    "venv",
    "__pycache__",
    "dist",
    "build",
    ".next",
    ".tox",
    ".cache",
    ".pytest_cache",
    ".mypy_cache",
];

/// Whether a path is in a build directory.
pub(super) fn is_product(path: &Path) -> bool {
    path.iter().any(|part| BUILD_DIRECTORIES.iter().any(|product| part == OsStr::new(product)))
}

/// The denied changes of an apply.
#[derive(Debug, Default)]
pub(super) struct Unapplied {
    /// The paths of the changes.
    pub(super) changes: HashSet<PathBuf>,
    /// The opaque directories whose host content was deleted, except for `deletions`.
    pub(super) cleared: Vec<PathBuf>,
    /// The host entries in `cleared` that stayed.
    pub(super) deletions: Vec<PathBuf>,
    /// The directories of repositories whose commits wait.
    pub(super) repositories: HashSet<PathBuf>,
    /// The number of changes that broke no rule, outside of build directories: dropping them would lose data.
    pub(super) failed: usize,
}

impl Unapplied {
    pub(super) fn deny(&mut self, path: &Path, reason: &DenialReason) {
        self.failed += usize::from(reason.is_by_host() && !is_product(path));
    }

    /// Removes all other changes from the layer: another apply must not judge them again.
    pub(super) fn retain(&self, upper: BorrowedFd<'_>, all: &[Change]) {
        // The opaque directories have content by now that must not be deleted.
        let is_listed = self.deletions.iter().all(|path| match parent(upper, path) {
            Ok((above, name)) => matches!(whiteout(above.as_fd(), &name), Ok(()) | Err(Errno::EXIST)),
            Err(_) => false,
        });
        for path in self.cleared.iter().filter(|_| is_listed) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let opened = open_beneath(upper, path, flags, Mode::empty());
            let _ = opened.and_then(|opened| changes::clear_opaque(&opened));
        }
        for change in all.iter().rev().filter(|change| !self.changes.contains(&change.path)) {
            let is_directory = matches!(change.kind, Kind::Directory { .. });
            // Fails for directories with changes.
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            if let Ok((above, name)) = parent(upper, &change.path) {
                let _ = rustix::fs::unlinkat(above, name, flags);
            }
        }
    }
}
