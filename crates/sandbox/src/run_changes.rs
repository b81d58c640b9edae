//! The changes of one run to host directories: listed at its end, and undone together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;

use crate::Error;

/// The maximum number of listed paths; the others are counted.
const MAX_PATHS: usize = 100_000;

/// The changes of several programs and file tools of one run.
///
/// Programs report to it by [`crate::Sandbox::run_changes`], file tools by [`RunChanges::writing`]. While this value
/// lives, no other run removes its old versions; [`crate::HeldRun::undo_run`] reverts all changes. Clones share them.
#[derive(Debug, Clone)]
pub struct RunChanges(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    mark: crate::platform::RunMark,
    paths: Mutex<Paths>,
}

#[derive(Debug, Default)]
struct Paths {
    /// Whether an entry was and is at a path.
    entries: BTreeMap<PathBuf, (bool, bool)>,
    more: usize,
    /// The number of changes without an old version.
    not_undoable: usize,
    held: Vec<String>,
}

/// Entries that a run created, changed and deleted, without those that it reverted itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ChangeSummary {
    /// The id for undo.
    pub id: String,
    /// New files and directories.
    pub created: Vec<PathBuf>,
    /// Changed files.
    pub changed: Vec<PathBuf>,
    /// Deleted files and directories.
    pub deleted: Vec<PathBuf>,
    /// The number of further changes, beyond 100,000 paths.
    pub more: usize,
    /// Whether undo restores all of it.
    pub can_undo: bool,
    /// The ids of programs whose changes are held ([`crate::HeldRun::apply`]).
    pub held: Vec<String>,
}

impl ChangeSummary {
    /// The number of changes.
    pub fn count(&self) -> usize {
        self.created.len() + self.changed.len() + self.deleted.len() + self.more
    }
}

/// A change of a path, for the summary.
#[derive(Debug)]
pub(crate) struct PathChange {
    pub(crate) path: PathBuf,
    pub(crate) was_there: bool,
    pub(crate) is_there: bool,
    pub(crate) can_undo: bool,
}

impl RunChanges {
    /// Begins a run. `layers` is the directory of [`crate::Sandbox::layers`], if set.
    ///
    /// # Errors
    /// [`Error::Setup`] without random numbers, and where private layers are unsupported.
    pub fn begin(layers: Option<&Path>) -> Result<Self, Error> {
        let mark = crate::platform::RunMark::create(layers)?;
        Ok(Self(Arc::new(Inner { mark, paths: Mutex::default() })))
    }

    /// The id of the run: eight hexadecimal digits.
    pub fn id(&self) -> &str {
        self.0.mark.id()
    }

    /// Stores the old version of a file that a file tool is about to write. `directory` is its host directory.
    ///
    /// Without an old version, such as on a host without private layers, the change is listed and cannot be undone.
    pub fn writing(&self, directory: &Path, file: &Path) -> WritingFile {
        WritingFile {
            changes: self.clone(),
            old: self.0.mark.writing(directory, file),
            path: directory.join(file),
        }
    }

    /// Keeps the old versions of this run from now on.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side has layers")
    )]
    pub(crate) fn mark(&self) -> std::io::Result<()> {
        self.0.mark.set()
    }

    pub(crate) fn add(&self, changes: impl IntoIterator<Item = PathChange>) {
        let mut paths = self.0.paths.lock().unwrap_or_else(PoisonError::into_inner);
        for PathChange { path, was_there, is_there, can_undo } in changes {
            paths.not_undoable += usize::from(!can_undo);
            let is_full = paths.entries.len() >= MAX_PATHS;
            match paths.entries.get_mut(&path) {
                Some(entry) => entry.1 = is_there,
                None if is_full => paths.more += 1,
                None => {
                    paths.entries.insert(path, (was_there, is_there));
                }
            }
        }
    }

    pub(crate) fn hold(&self, id: &str) {
        let mut paths = self.0.paths.lock().unwrap_or_else(PoisonError::into_inner);
        if paths.held.len() < MAX_PATHS && !paths.held.iter().any(|held| held == id) {
            paths.held.push(id.to_owned());
        }
    }

    /// All changes so far.
    pub fn summary(&self) -> ChangeSummary {
        let paths = self.0.paths.lock().unwrap_or_else(PoisonError::into_inner);
        let mut summary = ChangeSummary {
            id: self.id().to_owned(),
            more: paths.more,
            can_undo: paths.not_undoable == 0,
            held: paths.held.clone(),
            ..ChangeSummary::default()
        };
        for (path, entry) in &paths.entries {
            match entry {
                (false, true) => summary.created.push(path.clone()),
                (true, true) => summary.changed.push(path.clone()),
                (true, false) => summary.deleted.push(path.clone()),
                (false, false) => {}
            }
        }
        summary
    }
}

/// A file that a file tool writes, from [`RunChanges::writing`] to [`WritingFile::written`].
#[derive(Debug)]
#[must_use]
pub struct WritingFile {
    changes: RunChanges,
    old: Option<crate::platform::OldVersion>,
    path: PathBuf,
}

impl WritingFile {
    /// Records that the file was written. `was_there` tells whether it existed before.
    pub fn written(self, was_there: bool) {
        let can_undo = self.old.is_some_and(crate::platform::OldVersion::keep);
        self.changes.add([PathChange { path: self.path, was_there, is_there: true, can_undo }]);
    }
}
