//! The budget of the file tools for writes into a directory.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use toolpost::ToolError;

use super::{at_path, megabytes, shown};

/// Bytes, and a number of files and directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) bytes: u64,
    pub(super) entries: u64,
}

impl Room {
    fn and(self, more: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(more.bytes),
            entries: self.entries.saturating_add(more.entries),
        }
    }

    /// Whether the increased parts are beyond a limit.
    fn is_beyond(self, limit: Self, more: Self) -> bool {
        (more.bytes > 0 && self.bytes > limit.bytes) || (more.entries > 0 && self.entries > limit.entries)
    }
}

/// Limits and counts the writes of the file tools. Replaced and removed files are not subtracted; once the count exceeds
/// the limit, the directory is measured.
#[derive(Debug)]
pub(super) struct Budget {
    limit: Room,
    used: Mutex<Room>,
}

impl Budget {
    pub(super) fn new(limit: Room) -> Self {
        Self { limit, used: Mutex::default() }
    }

    /// Reserves room for a write.
    ///
    /// # Errors
    /// `LIMIT` if the directory is full.
    pub(super) fn take(&self, directory: &Path, given: &str, more: Room) -> Result<(), ToolError> {
        // A panic cannot leave the count half changed.
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |used: Room| used.and(more).is_beyond(self.limit, more);
        let before = if is_full(*used) { measure(directory, is_full) } else { Some(*used) };
        let Some(before) = before else {
            let limit = if used.bytes.saturating_add(more.bytes) > self.limit.bytes {
                megabytes(self.limit.bytes)
            } else {
                format!("{} files and directories", self.limit.entries)
            };
            let message = format!("`{}` would exceed the working directory's limit of {limit}", shown(given));
            return Err(at_path(ToolError::limit(message), given)
                .with("limit_bytes", self.limit.bytes)
                .with("limit_entries", self.limit.entries)
                .suggest("Delete unneeded files, or write less."));
        };
        *used = before.and(more);
        Ok(())
    }
}

/// Measures a directory on disk; `None` as soon as it is full. Links are not followed, unreadable entries are ignored.
fn measure(directory: &Path, is_full: impl Fn(Room) -> bool) -> Option<Room> {
    let mut found = Room::default();
    if is_full(found) {
        return None;
    }
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                open.push(entry.path());
            }
            found = found.and(Room { bytes: stored(&metadata), entries: 1 });
            if is_full(found) {
                return None;
            }
        }
    }
    Some(found)
}

/// The bytes of a file on disk, fewer than its length for a sparse file.
#[cfg(unix)]
fn stored(metadata: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    metadata.blocks().saturating_mul(512)
}

#[cfg(not(unix))]
fn stored(metadata: &std::fs::Metadata) -> u64 {
    metadata.len()
}
