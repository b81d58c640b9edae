//! Records what apply does with each change, and judges without writing.
//!
//! A judging engine performs every step of apply up to the first write, and instead notes the entry that would be there
//! ([`Planned`]). Later steps see that entry, so they judge as they would after the write.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd};
use rustix::fs::{Access, AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::apply::{Engine, Step, failed, gone};
use super::changes::{self, Change, Kind};
use super::held::Record;
use super::unapplied::Unapplied;
use super::view::{is_directory, is_regular, kind_of, leads_outside};
use crate::denial::DenialReason;
use crate::protected::{Mark, ProtectedEntryKind};
use crate::review::{MAX_REVIEWED, Review, ReviewDecision, ReviewedChange, ReviewedEntry};
use crate::{DirectoryRules, Error};

/// The host's entries as apply would leave them; none for a deleted one.
#[derive(Debug, Default)]
pub(super) struct Planned(HashMap<PathBuf, Option<ProtectedEntryKind>>);

impl Planned {
    pub(super) fn insert(&mut self, path: &Path, entry: Option<ProtectedEntryKind>) {
        self.0.insert(path.to_owned(), entry);
    }

    /// The planned entry at a path. None if the host's own entry is there.
    #[expect(clippy::option_option, reason = "no plan, and a planned deletion, are two answers")]
    pub(super) fn at(&self, path: &Path) -> Option<Option<ProtectedEntryKind>> {
        if self.0.is_empty() {
            return None;
        }
        let (found, entry) = path.ancestors().find_map(|above| Some((above, self.0.get(above)?)))?;
        // A new directory has no other entries than planned ones.
        Some(if found == path { *entry } else { None })
    }
}

/// The result of a step on one change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The host's entry is already so.
    None,
    /// The path changed, with a number of entries beneath a deleted or replaced directory.
    Whole { beneath: usize },
    /// A directory stays, because entries beneath were denied.
    Partial,
}

/// The recorded changes. Their number is bounded, further ones are counted.
#[derive(Debug, Default)]
pub(super) struct Reviewed {
    applied: Vec<ReviewedChange>,
    denied: Vec<ReviewedChange>,
    applied_count: usize,
    denied_count: usize,
}

impl Reviewed {
    pub(super) fn add(&mut self, change: ReviewedChange) {
        let (list, count) = match change.decision {
            ReviewDecision::Applied => (&mut self.applied, &mut self.applied_count),
            _ => (&mut self.denied, &mut self.denied_count),
        };
        *count += 1;
        if list.len() < MAX_REVIEWED {
            list.push(change);
        }
    }

    /// The number of applied changes.
    pub(super) fn applied(&self) -> usize {
        self.applied_count
    }

    /// Drops the applied changes after the first `count`: a later change contains them.
    pub(super) fn drop_after(&mut self, count: usize) {
        self.applied.truncate(count);
        self.applied_count = count;
    }

    /// Takes the applied change of a path, which failed after all.
    pub(super) fn take(&mut self, path: &Path) -> Option<ReviewedChange> {
        let index = self.applied.iter().rposition(|change| change.path == path)?;
        self.applied_count -= 1;
        Some(self.applied.remove(index))
    }

    /// The review; `is_held` are the denied changes that another apply retries.
    pub(super) fn finish(self, is_held: impl Fn(&ReviewedChange) -> bool) -> Review {
        let (applied, denied) = (self.applied.len(), self.denied.len());
        let mut changes = self.applied;
        changes.extend(self.denied.into_iter().map(|change| {
            let decision = if is_held(&change) { ReviewDecision::Held } else { ReviewDecision::Denied };
            ReviewedChange { decision, ..change }
        }));
        Review {
            changes,
            more_applied: self.applied_count - applied,
            more_denied: self.denied_count - denied,
        }
    }
}

impl Unapplied {
    /// Whether another apply retries a denied change.
    fn holds(&self, change: &ReviewedChange) -> bool {
        let is_listed = || {
            self.deletions.contains(&change.path)
                || change.path.ancestors().any(|above| self.changes.contains(above))
        };
        change.reason != Some(DenialReason::Special) && is_listed()
    }
}

/// An entry of the host, or one of the layer with its target.
pub(super) fn entry_of(stat: &Stat, target: Option<PathBuf>, mode: u32) -> ReviewedEntry {
    let kind = kind_of(stat);
    ReviewedEntry {
        kind,
        mode: (kind != ProtectedEntryKind::Link).then_some(stat.st_mode & mode),
        size: is_regular(stat).then_some(stat.st_size.unsigned_abs()),
        target,
    }
}

/// The target of a link beneath a directory.
pub(super) fn target_of(root: BorrowedFd<'_>, path: &Path) -> Option<PathBuf> {
    let (above, name) = super::live::parent(root, path).ok()?;
    let target = rustix::fs::readlinkat(above, name, Vec::new()).ok()?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(target.to_bytes())))
}

/// Judges all changes of a layer as a later apply would.
pub(super) fn review(
    parts: [BorrowedFd<'_>; 3],
    record: &Record,
    rules: &DirectoryRules,
) -> Result<Review, Error> {
    let [_, _, upper] = parts;
    let changes = changes::list(upper);
    let fail = |error: std::io::Error| Error::HeldRun {
        id: record.id.clone(),
        reason: error.to_string(),
        hint: None,
    };
    let mut engine = Engine::from_parts(parts, record, rules).map_err(fail)?;
    engine.only_judges();
    engine.perform(&changes);
    let is_held = engine.holds_denied(true);
    let review = engine.into_parts(is_held).0.review;
    changes::restore_modes(upper, &changes);
    Ok(review)
}

impl Engine<'_> {
    /// The new entry of a change as apply writes it.
    pub(super) fn entry_after(&self, change: &Change) -> Option<ReviewedEntry> {
        let target = || target_of(self.upper, &change.path);
        match change.kind {
            Kind::Deleted => None,
            // Set-user-ID, set-group-ID and sticky bits stay behind.
            Kind::Link => Some(entry_of(&change.stat, target(), 0o777)),
            _ => Some(entry_of(&change.stat, None, 0o777)),
        }
    }

    /// The host's entry.
    pub(super) fn entry_before(&self, path: &Path, stat: &Stat) -> ReviewedEntry {
        let target = || target_of(self.host, path);
        let target = if kind_of(stat) == ProtectedEntryKind::Link { target() } else { None };
        entry_of(stat, target, 0o7777)
    }

    /// Whether the engine writes nothing.
    pub(super) fn is_judging(&self) -> bool {
        self.planned.is_some()
    }

    /// Plans an entry instead of writing it. An error foresees the host's answer.
    pub(super) fn plan(&mut self, path: &Path, entry: Option<ProtectedEntryKind>) -> Step {
        let is_in_new = self.planned.as_ref().is_some_and(|planned| {
            path.parent().is_some_and(|above| planned.at(above) == Some(Some(ProtectedEntryKind::Directory)))
        });
        if !is_in_new {
            let (parent, _) = self.parent(path).map_err(gone)?;
            may(parent, Path::new("."), Access::WRITE_OK | Access::EXEC_OK)?;
        }
        self.applied.changed += 1;
        if let Some(planned) = &mut self.planned {
            planned.insert(path, entry);
        }
        Ok(())
    }

    /// Plans the removal of a host entry.
    pub(super) fn plan_removal(&mut self, path: &Path, stat: &Stat) -> Step {
        // Moving a directory changes its entry `..`.
        if is_directory(stat) && self.is_one_mount {
            let (parent, name) = self.parent(path).map_err(gone)?;
            may(parent, Path::new(name), Access::WRITE_OK)?;
        }
        self.plan(path, None)
    }

    /// Foresees whether this user may set the mode of a host entry.
    pub(super) fn may_set_mode(&self, stat: &Stat) -> Step {
        let is_owner = self.is_root || stat.st_uid == rustix::process::geteuid().as_raw();
        if is_owner { Ok(()) } else { Err(failed(Errno::PERM)) }
    }

    /// Whether denied changes stay in the layer for another apply.
    pub(super) fn holds_denied(&self, is_forced: bool) -> bool {
        let is_denied = is_forced && !self.unapplied.changes.is_empty();
        let has_commits = !self.unapplied.repositories.is_empty();
        !self.record.of_copy && (self.unapplied.failed > 0 || has_commits || is_denied)
    }

    /// Records the decision on each change.
    pub(super) fn settle(&mut self, is_held: bool) {
        let unapplied = &self.unapplied;
        let reviewed = std::mem::take(&mut self.reviewed);
        self.applied.review = reviewed.finish(|change| is_held && unapplied.holds(change));
    }

    /// Opens a file of the layer, which a program may have made unreadable for its owner.
    pub(super) fn open_source(
        &self,
        source: BorrowedFd<'_>,
        name: &std::ffi::OsStr,
        mode: u32,
    ) -> Result<rustix::fd::OwnedFd, DenialReason> {
        let set = |mode| rustix::fs::chmodat(source, name, Mode::from_raw_mode(mode), AtFlags::empty());
        // Attributes are removed from a file that is moved.
        let needed = if self.is_one_mount { 0o600 } else { 0o400 };
        let is_closed = !self.is_root && mode & needed != needed;
        if is_closed {
            set(mode | 0o600).map_err(failed)?;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let opened = open_beneath(source, Path::new(name), flags, Mode::empty()).map_err(failed);
        // Another apply reads the mode from the layer.
        if is_closed && self.is_judging() {
            let _ = set(mode);
        }
        opened
    }
}

/// The use of the new entry of a change by other programs.
pub(super) fn marks(rules: &DirectoryRules, change: &Change, after: &ReviewedEntry) -> Vec<Mark> {
    let path = &change.path;
    let by_name = matches!(change.kind, Kind::File | Kind::Link).then(|| rules.mark(path)).flatten();
    let by_name = by_name.map(|(mark, _)| mark);
    let is_executable = change.kind == Kind::File && change.stat.st_mode & 0o111 != 0;
    let is_outside = after.target.as_ref().is_some_and(|target| leads_outside(path, target));
    let marks =
        [by_name, is_executable.then_some(Mark::Executable), is_outside.then_some(Mark::LeadsOutside)];
    marks.into_iter().flatten().collect()
}

/// Foresees whether the host lets this user change an entry.
fn may(directory: BorrowedFd<'_>, name: &Path, access: Access) -> Step {
    match rustix::fs::accessat(directory.as_fd(), name, access, AtFlags::EACCESS) {
        Err(error @ (Errno::ACCESS | Errno::PERM | Errno::ROFS)) => Err(failed(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
