//! How much the file tools write into a folder.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use toolpost::ToolError;

use super::{at_path, megabytes, shown};

/// Bytes, and files and folders.
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

    /// Whether more than this is beyond a limit, in what it adds to.
    fn is_beyond(self, limit: Self, more: Self) -> bool {
        (more.bytes > 0 && self.bytes > limit.bytes) || (more.entries > 0 && self.entries > limit.entries)
    }
}

/// What the file tools may write, and what they have written. Nothing is given back when a file is replaced or removed;
/// instead, the folder is measured when the sum exceeds the limit.
#[derive(Debug)]
pub(super) struct Budget {
    limit: Room,
    used: Mutex<Room>,
}

impl Budget {
    pub(super) fn new(limit: Room) -> Self {
        Self { limit, used: Mutex::default() }
    }

    /// Takes room for what is about to be written.
    ///
    /// # Errors
    /// `LIMIT` if the folder has no room for it.
    pub(super) fn take(&self, folder: &Path, given: &str, more: Room) -> Result<(), ToolError> {
        // A sum is whole after any panic.
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |used: Room| used.and(more).is_beyond(self.limit, more);
        let before = if is_full(*used) { measure(folder, is_full) } else { Some(*used) };
        let Some(before) = before else {
            let limit = if used.bytes.saturating_add(more.bytes) > self.limit.bytes {
                megabytes(self.limit.bytes)
            } else {
                format!("{} files and folders", self.limit.entries)
            };
            let message = format!("`{}` would take the working folder beyond {limit}", shown(given));
            return Err(at_path(ToolError::limit(message), given)
                .with("limit_bytes", self.limit.bytes)
                .with("limit_entries", self.limit.entries)
                .suggest("Delete files that are not needed, or write less."));
        };
        *used = before.and(more);
        Ok(())
    }
}

/// What a folder holds on the disk; `None` as soon as that is too much. Links are not followed, and what cannot be read
/// counts as nothing.
fn measure(folder: &Path, is_full: impl Fn(Room) -> bool) -> Option<Room> {
    let mut found = Room::default();
    if is_full(found) {
        return None;
    }
    let mut open = vec![folder.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
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

/// The bytes that a file takes on the disk: a sparse file takes fewer than it has.
#[cfg(unix)]
fn stored(metadata: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    metadata.blocks().saturating_mul(512)
}

#[cfg(not(unix))]
fn stored(metadata: &std::fs::Metadata) -> u64 {
    metadata.len()
}
