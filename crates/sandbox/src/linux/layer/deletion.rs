//! Deletes host entries, as far as the rules allow it.

use std::path::Path;

use rustix::fd::AsFd as _;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Stat};

use super::super::files::open_beneath;
use super::apply::{Engine, Step, entries, failed, gone, name_of};
use super::entries::copy_old;
use super::held::Was;
use super::reviewed::Effect;
use super::view::{LayerEntry, is_directory, lstat};
use crate::denial::DenialReason;
use crate::review::{ReviewedChange, ReviewedEntry};

impl Engine<'_> {
    /// Records the deletion of a host entry with a number of entries beneath.
    fn record_deletion(&mut self, path: &Path, before: Option<ReviewedEntry>, beneath: usize) {
        self.reviewed.add(ReviewedChange { beneath, ..ReviewedChange::new(path, before, None, None) });
    }

    /// Deletes what an opaque directory hides.
    pub(super) fn delete_rest(&mut self, path: &Path) -> Result<(), DenialReason> {
        let host =
            open_beneath(self.host, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(gone)?;
        for name in entries(&host) {
            let inner = path.join(name_of(&name));
            let covered = lstat(self.upper, &inner).is_some_and(|kind| kind != LayerEntry::Whiteout);
            let denied_count = self.applied.denied_count;
            if !covered {
                self.delete_inner(&inner);
            }
            if self.applied.denied_count > denied_count {
                self.unapplied.deletions.push(inner);
            }
        }
        Ok(())
    }

    /// Deletes an entry of a host directory, or denies that.
    fn delete_inner(&mut self, path: &Path) -> Effect {
        let there = self.host_stat(path).ok().flatten();
        let before = there.map(|there| self.entry_before(path, &there));
        match self.delete(path) {
            Ok(Effect::Whole { beneath }) => {
                self.record_deletion(path, before, beneath);
                Effect::Whole { beneath }
            }
            Ok(effect) => effect,
            Err(reason) => {
                self.deny(ReviewedChange::new(path, before, None, Some(reason.clone())), reason);
                Effect::Partial
            }
        }
    }

    /// Deletes a host entry with its descendants. Protected ones stay, with the directories above them.
    pub(super) fn delete(&mut self, path: &Path) -> Result<Effect, DenialReason> {
        let Some(stat) = self.host_stat(path).map_err(failed)? else { return Ok(Effect::None) };
        if let Some(reason) = self.denial(path) {
            return Err(reason);
        }
        if !is_directory(&stat) {
            if self.is_changed(&stat) {
                return Err(DenialReason::Conflict);
            }
            self.move_away(path, &stat)?;
            return Ok(Effect::Whole { beneath: 0 });
        }
        if self.is_one_mount
            && let Some(beneath) = self.free(path)
        {
            self.move_away(path, &stat)?;
            return Ok(Effect::Whole { beneath });
        }
        let host =
            open_beneath(self.host, path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(gone)?;
        let (recorded, mut is_empty, mut all) = (self.reviewed.applied(), true, 0);
        for name in entries(&host) {
            match self.delete_inner(&path.join(name_of(&name))) {
                Effect::None => {}
                Effect::Whole { beneath } => all += beneath + 1,
                Effect::Partial => is_empty = false,
            }
        }
        // The cached directory may be the deleted one.
        self.last = None;
        if !is_empty {
            return Ok(Effect::Partial);
        }
        if self.is_judging() {
            self.plan(path, None)?;
        } else {
            let (parent, name) = self.parent(path).map_err(gone)?;
            rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(failed)?;
            let was = Was::Directory { mode: stat.st_mode & 0o777, user: stat.st_uid, group: stat.st_gid };
            self.note(path, was, None, Some(&stat));
        }
        self.reviewed.drop_after(recorded);
        Ok(Effect::Whole { beneath: all })
    }

    /// The number of entries beneath a host directory, if all of them may be deleted.
    fn free(&self, path: &Path) -> Option<usize> {
        let (mut waiting, mut all) = (vec![path.to_owned()], 0);
        while let Some(below) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let directory = open_beneath(self.host, &below, flags, Mode::empty()).ok()?;
            for name in entries(&directory) {
                let inner = below.join(name_of(&name));
                let stat = rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                if self.denial(&inner).is_some() || !is_directory(&stat) && self.is_changed(&stat) {
                    return None;
                }
                all += 1;
                if is_directory(&stat) {
                    waiting.push(inner);
                }
            }
        }
        Some(all)
    }

    /// Removes a host entry, into the layer if possible.
    fn move_away(&mut self, path: &Path, stat: &Stat) -> Step {
        if self.is_judging() {
            return self.plan_removal(path, stat);
        }
        let number = self.next_old();
        let (old, is_one_mount) =
            (super::super::launch::duplicate(self.old.as_fd()).map_err(failed)?, self.is_one_mount);
        self.last = None;
        let (parent, name) = self.parent(path).map_err(gone)?;
        if is_one_mount {
            rustix::fs::renameat_with(parent, name, &old, &*number.to_string(), RenameFlags::NOREPLACE)
                .map_err(failed)?;
            let moved =
                rustix::fs::statat(&old, &*number.to_string(), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            if moved.st_ino != stat.st_ino {
                let _ = rustix::fs::renameat_with(
                    &old,
                    &*number.to_string(),
                    parent,
                    name,
                    RenameFlags::NOREPLACE,
                );
                return Err(DenialReason::Conflict);
            }
            self.note(path, Was::Entry, Some(number), Some(stat));
            return Ok(());
        }
        let has_old = copy_old(parent, name, stat, old.as_fd(), number);
        rustix::fs::unlinkat(parent, name, AtFlags::empty()).map_err(failed)?;
        self.note(path, Was::Entry, has_old.then_some(number), Some(stat));
        Ok(())
    }
}
