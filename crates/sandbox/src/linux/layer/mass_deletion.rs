//! Detects changes that delete more than a person would expect.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::super::files::open_beneath;
use super::apply::{Engine, entries, name_of};
use super::changes::{Change, Kind};
use super::unapplied::is_product;
use super::view::{LayerEntry, is_directory, lstat, stat_of};
use crate::apply::MAX_DELETED;

/// The number of files that a run may delete without being held when none would remain.
const MAX_WHOLE: usize = 20;

impl Engine<'_> {
    /// Whether the changes delete more than a person would expect.
    pub(super) fn deletes_much(&mut self, list: &[Change]) -> bool {
        let mut count = 0usize;
        for change in list {
            if is_product(&change.path) {
                continue;
            }
            match change.kind {
                Kind::Deleted => count += self.files_beneath(&change.path, false),
                Kind::Directory { opaque: true } => {
                    count += self.files_beneath(&change.path, true);
                }
                _ => {}
            }
            if count > MAX_DELETED {
                return true;
            }
        }
        let Ok(top) =
            open_beneath(self.host, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
        else {
            return false;
        };
        let deleted: std::collections::HashSet<&Path> = list
            .iter()
            .filter(|change| change.kind == Kind::Deleted)
            .map(|change| change.path.as_path())
            .collect();
        let names: Vec<_> = entries(&top).into_iter().filter(|name| name.to_bytes() != b".git").collect();
        count > MAX_WHOLE
            && names
                .iter()
                .all(|name| deleted.contains(Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()))))
    }

    /// Counts the host files beneath a path, up to one more than the limit. With `uncovered`, those in the
    /// layer do not count.
    fn files_beneath(&self, path: &Path, uncovered: bool) -> usize {
        let mut count = 0;
        let mut waiting = vec![path.to_owned()];
        while let Some(below) = waiting.pop() {
            if count > MAX_DELETED || is_product(&below) {
                continue;
            }
            match stat_of(self.host, &below) {
                Ok(Some(stat)) if is_directory(&stat) => {
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                    if let Ok(directory) = open_beneath(self.host, &below, flags, Mode::empty()) {
                        waiting.extend(entries(&directory).iter().map(|name| below.join(name_of(name))));
                    }
                }
                Ok(Some(_)) => {
                    let covered = uncovered
                        && lstat(self.upper, &below).is_some_and(|kind| kind != LayerEntry::Whiteout);
                    count += usize::from(!covered);
                }
                _ => {}
            }
        }
        count
    }
}
