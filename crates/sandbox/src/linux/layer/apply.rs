//! Apply: moves the checked changes of a layer to the host directory.
//!
//! Each change is judged with the directory as it would be afterwards. A host entry is replaced or deleted
//! only if it did not change since the program started to see it. Files are moved within a mount, else copied. Each path changes atomically, and its old version stays in the layer. An interrupted apply
//! can be repeated: moved entries are no longer in the layer, and copied ones are equal. Denied changes can stay
//! in the layer for another apply.

use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::super::lock::Locked;
use super::super::sparse;
use super::changes::{self, Change, Changes, Kind};
use super::commits::{self, JudgedRepository, LayerParts};
use super::entries::{copy_old, exchange, open_again, same_content};
use super::held::{self, Done, Record, State, Was};
use super::reviewed::{Effect, Planned, Reviewed, marks, review};
use super::unapplied::{Unapplied, is_product};
use super::view::{
    After, View, attributes_of, identity, is_directory, is_one_mount, is_regular, stat_of, times,
};
use super::{OLD, Overlay, run_mark};
use crate::apply::{Applied, ApplyState, MASS_DELETION, MAX_NAMED};
use crate::denial::DenialReason;
use crate::protected::{ChangedTree as _, ProtectedEntryKind};
use crate::review::ReviewedChange;
use crate::run_changes::PathChange;
use crate::writer::MAX_ATTRIBUTES;
use crate::{ApplyMode, DirectoryRules, Error, adds_git_driver};

/// The time to wait for other applies in the same directory, and for runs that have it alone.
const MAX_WAIT: Duration = Duration::from_mins(2);
/// The maximum number of changes that undo can revert.
const MAX_UNDO: usize = 100_000;
/// Larger files count as changed without a comparison.
const MAX_COMPARED: i64 = 1 << 30;

impl Overlay {
    /// Ends the layer of a finished run: applies, holds or discards its changes.
    pub(in super::super) fn end(
        &mut self,
        mode: ApplyMode,
        held_because: Option<&'static str>,
        rules: &DirectoryRules,
    ) -> Result<Applied, Error> {
        match mode {
            ApplyMode::Discard => {
                self.is_done = true;
                Ok(Applied::new(self.id(), ApplyState::Discarded))
            }
            ApplyMode::Now if held_because.is_none() || self.record.of_copy => self.apply(rules, false),
            _ if changes::is_empty(self.upper()) => {
                self.is_done = true;
                Ok(Applied::new(self.id(), ApplyState::Applied))
            }
            _ => self.hold(held_because, rules),
        }
    }

    pub(super) fn fail(&self, error: impl Into<io::Error>) -> Error {
        Error::HeldRun { id: self.record.id.clone(), reason: error.into().to_string(), hint: None }
    }

    /// Records the paths that the operator allows and pins.
    pub(super) fn admit(&mut self, rules: &DirectoryRules) {
        let bytes = |path: &PathBuf| path.as_os_str().as_bytes().to_vec();
        self.record.allowed = rules.allowed().iter().map(bytes).collect();
        self.record.protected = rules.protected().to_vec();
    }

    pub(super) fn hold(
        &mut self,
        because: Option<&'static str>,
        rules: &DirectoryRules,
    ) -> Result<Applied, Error> {
        self.admit(rules);
        self.record.state = State::Held;
        self.record.held_because = because.map(ToOwned::to_owned);
        self.save().map_err(|error| self.fail(error))?;
        if let Some(changes) = self.changes.as_ref().filter(|_| !self.record.of_copy) {
            changes.hold(self.id());
        }
        let parts = [self.directory.as_fd(), self.host.as_fd(), self.upper.as_fd()];
        let mut review = review(parts, &self.record, rules)?;
        review.truncate(MAX_NAMED);
        Ok(Applied { held_because: because, review, ..Applied::new(self.id(), ApplyState::Held) })
    }

    /// Applies the changes. Holds a mass deletion unless `is_forced`.
    pub(super) fn apply(&mut self, rules: &DirectoryRules, is_forced: bool) -> Result<Applied, Error> {
        let changes = changes::list(self.upper());
        let earlier = held::load_done(self.directory.as_fd());
        if changes.list.is_empty() && earlier.is_empty() {
            self.is_done = true;
            return Ok(Applied::new(self.id(), ApplyState::Applied));
        }
        let _lock = match self.turn.take() {
            Some(turn) => Some(turn),
            None => lock(self.host.as_fd()).map_err(|error| self.fail(error))?,
        };
        let mut engine = Engine::new(self, rules).map_err(|error| self.fail(error))?;
        if self.may_postpone && engine.conflicts(&changes.list) {
            self.is_done = true;
            let discarded = Applied::new(self.id(), ApplyState::Discarded);
            return Ok(Applied { is_postponed: true, ..discarded });
        }
        if !is_forced && !self.record.of_copy && engine.deletes_much(&changes.list) {
            return self.hold(Some(MASS_DELETION), rules);
        }
        drop(engine);
        self.admit(rules);
        self.record.state = State::Applying;
        self.save().map_err(|error| self.fail(error))?;
        let mut engine = Engine::new(self, rules).map_err(|error| self.fail(error))?;
        engine.is_resumed = is_forced;
        let earlier_count = earlier.len();
        engine.follow(earlier);
        engine.perform(&changes);
        // A private copy ends with its process. An ordinary run reports protected paths, and drops them.
        let is_held = engine.holds_denied(is_forced);
        let (mut applied, unapplied, done) = engine.into_parts(is_held);
        self.list_changes(done.get(earlier_count..).unwrap_or_default());
        applied.can_undo = !done.is_empty() && done.len() <= MAX_UNDO && !self.record.of_copy;
        // Denied entries stay readable as long as the outcome.
        self.is_done = !applied.can_undo && !is_held;
        if applied.can_undo {
            if done.len() > earlier_count {
                self.end_other_undo();
            }
            held::save_done(self.directory.as_fd(), &done).map_err(|error| self.fail(error))?;
        }
        if is_held {
            if let Some(changes) = &self.changes {
                changes.hold(self.id());
            }
            applied.held_count = unapplied.changes.len();
            unapplied.retain(self.upper(), &changes.list);
        }
        if !self.is_done {
            self.record.state = if is_held { State::Held } else { State::Applied };
            self.record.held_because = None;
            self.save().map_err(|error| self.fail(error))?;
        }
        Ok(applied)
    }

    /// Removes the old versions of earlier runs in the same directory: only the last run can be undone, and runs that go
    /// on.
    pub(super) fn end_other_undo(&self) {
        for layer in held::of_directory(self.path.parent(), self.record.device, self.record.inode) {
            let run = layer.run().filter(|run| {
                self.record.run.as_deref() == Some(*run) || run_mark::is_active(run, self.path.parent())
            });
            if !layer.is_waiting() && run.is_none() {
                layer.remove();
            }
        }
    }

    /// Adds the changes of an apply to those of the run.
    pub(super) fn list_changes(&self, done: &[Done]) {
        let Some(changes) = &self.changes else { return };
        // The changes of a private copy are listed when they reach the original.
        if self.record.of_copy {
            return;
        }
        let directory = super::path_of(&self.record.directory);
        let can_undo = done.len() <= MAX_UNDO;
        // What build tools write again would hide the rest. Undo reverts it too.
        let listed = done.iter().filter(|done| !is_product(&super::path_of(&done.path)));
        changes.add(listed.map(|done| PathChange {
            path: directory.join(super::path_of(&done.path)),
            was_there: done.was != Was::Nothing,
            is_there: done.now.is_some(),
            can_undo: can_undo && (done.old.is_some() || done.was != Was::Entry),
        }));
    }

    /// Finishes or removes layers of killed runs in the same directory, and adds notes on held ones.
    pub(in super::super) fn attend_to_others(&self, chosen: Option<&Path>, notes: &mut Vec<String>) {
        held::collect_garbage(chosen);
        for layer in held::of_directory(chosen, self.record.device, self.record.inode) {
            let id = layer.id().to_owned();
            if layer.holds_nothing() {
                layer.remove();
            } else if layer.is_half_applied() {
                match layer.apply(&[]) {
                    Ok(applied) => {
                        notes.push(format!(
                            "run {id} was killed during apply; the remaining {} entries are applied now",
                            applied.changed
                        ));
                        notes.extend((applied.held_count > 0).then(|| held_note(&id)));
                    }
                    Err(error) => notes.push(format!("run {id} was killed during apply: {error}")),
                }
            } else if layer.is_waiting() {
                notes.push(held_note(&id));
            }
        }
    }
}

fn held_note(id: &str) -> String {
    format!("changes of run {id} in this directory are held: apply or discard them")
}

/// Serializes applies of one directory, also across processes.
pub(super) fn lock(host: BorrowedFd<'_>) -> io::Result<Option<Locked>> {
    // Open separately: a lock belongs to the open file, and threads must exclude each other too.
    let own = open_beneath(host, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    match Locked::within(own, MAX_WAIT) {
        Ok(locked) => Ok(Some(locked)),
        // A file system without locks has one writer.
        Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(Errno::AGAIN) => Err(io::Error::other("another run is applying changes there")),
        Err(error) => Err(error.into()),
    }
}

/// The state of an apply.
pub(super) struct Engine<'a> {
    pub(super) host: BorrowedFd<'a>,
    pub(super) upper: BorrowedFd<'a>,
    pub(super) old: OwnedFd,
    pub(super) record: &'a Record,
    pub(super) rules: &'a DirectoryRules,
    /// Whether files can be moved from the layer to the host: both are in one mount.
    pub(super) is_one_mount: bool,
    /// Whether an earlier apply of this layer may have written the same files.
    is_resumed: bool,
    pub(super) is_root: bool,
    pub(super) applied: Applied,
    pub(super) reviewed: Reviewed,
    /// The entries that an engine without writes would have written.
    pub(super) planned: Option<Planned>,
    done: Vec<Done>,
    /// The number of changes in `done` that an earlier apply of this layer made.
    earlier: usize,
    pub(super) unapplied: Unapplied,
    /// The last opened directory: consecutive changes often share it.
    pub(super) last: Option<(PathBuf, OwnedFd)>,
    /// A denied directory: its descendants are skipped for the same reason.
    blocked: Option<(PathBuf, DenialReason)>,
    /// Modes of directories, set after their content.
    modes: Vec<(PathBuf, u32)>,
    /// The repositories with changed data.
    repositories: Vec<JudgedRepository>,
    copies: usize,
    /// The number of the next old version.
    olds: u64,
    after: After,
}

/// The result of a step of apply.
pub(super) type Step = Result<(), DenialReason>;

pub(super) fn failed(error: impl Into<io::Error>) -> DenialReason {
    DenialReason::Failed(error.into().into())
}

impl<'a> Engine<'a> {
    /// Copies files even where they could be moved.
    pub(super) fn copies_only(&mut self) {
        self.is_one_mount = false;
    }

    /// Judges, and writes nothing.
    pub(super) fn only_judges(&mut self) {
        self.is_resumed = true;
        self.planned = Some(Planned::default());
    }

    /// The outcome; `is_held` if denied changes stay in the layer.
    pub(super) fn into_parts(mut self, is_held: bool) -> (Applied, Unapplied, Vec<Done>) {
        self.settle(is_held);
        if !self.is_judging() {
            self.applied.review.truncate(MAX_NAMED);
        }
        self.applied.failed_count = self.unapplied.failed;
        (self.applied, self.unapplied, self.done)
    }

    pub(super) fn new(layer: &'a Overlay, rules: &'a DirectoryRules) -> io::Result<Self> {
        let parts = [layer.directory.as_fd(), layer.host.as_fd(), layer.upper.as_fd()];
        Self::from_parts(parts, &layer.record, rules)
    }

    /// The engine of a layer's directory, its host directory and the directory of the program's writes.
    pub(super) fn from_parts(
        [directory, host, upper]: [BorrowedFd<'a>; 3],
        record: &'a Record,
        rules: &'a DirectoryRules,
    ) -> io::Result<Self> {
        match rustix::fs::mkdirat(directory, OLD, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let old = rustix::fs::openat(directory, OLD, super::DIRECTORY, Mode::empty())?;
        let is_one_mount = is_one_mount(old.as_fd(), host);
        Ok(Self {
            host,
            upper,
            old,
            record,
            rules,
            is_one_mount,
            is_resumed: false,
            is_root: rustix::process::geteuid().is_root(),
            applied: Applied::new(&record.id, ApplyState::Applied),
            reviewed: Reviewed::default(),
            planned: None,
            done: Vec::new(),
            earlier: 0,
            unapplied: Unapplied::default(),
            last: None,
            blocked: None,
            modes: Vec::new(),
            repositories: Vec::new(),
            copies: 0,
            olds: 0,
            after: After::default(),
        })
    }

    /// Continues after an earlier apply of this layer, whose old versions and list of changes stay.
    pub(super) fn follow(&mut self, earlier: Vec<Done>) {
        let numbers = entries(&self.old);
        self.olds = numbers.iter().filter_map(|name| name.to_str().ok()?.parse().ok()).max().unwrap_or(0);
        self.earlier = earlier.len();
        self.done = earlier;
    }

    pub(super) fn deny(&mut self, change: ReviewedChange, reason: DenialReason) {
        self.unapplied.deny(&change.path, &reason);
        self.applied.deny(&change.path, reason);
        self.reviewed.add(change);
    }

    fn view(&self) -> View<'_> {
        let planned = self.planned.as_ref();
        View { host: self.host, upper: self.upper, after: &self.after, planned }
    }

    /// Applies or judges all changes.
    pub(super) fn perform(&mut self, changes: &Changes) {
        let layer = LayerParts { record: self.record, host: self.host, upper: self.upper };
        self.withhold(commits::judge(layer, self.rules, &changes.list, false));
        for change in &changes.list {
            self.change(change);
        }
        self.finish();
        if let Some(reason) = changes.left_out {
            let path = Path::new("…");
            let denial = failed(io::Error::other(format!("some changes were not applied: {reason}")));
            let change = ReviewedChange::new(path, None, None, Some(denial.clone()));
            if reason == changes::TOO_DEEP {
                self.applied.deny(path, denial);
                self.reviewed.add(change);
            } else {
                self.deny(change, denial);
                self.unapplied.changes.insert(path.to_owned());
            }
        }
    }

    /// Whether a host entry changed since the program saw it.
    pub(super) fn is_changed(&self, stat: &Stat) -> bool {
        (stat.st_ctime, stat.st_ctime_nsec as i64) > self.record.since
    }

    /// Whether an equal file of the host conflicts with that of the layer: both were written during the run.
    ///
    /// Two runs that append the same text to one version have equal files, up to their times.
    fn is_conflict(&self, there: &Stat, stat: &Stat) -> bool {
        self.is_changed(there) && (stat.st_mtime, stat.st_mtime_nsec as i64) >= self.record.since
    }

    /// Whether the host changed a file that the changes replace or delete. Build directories do not count.
    fn conflicts(&mut self, changes: &[Change]) -> bool {
        changes.iter().any(|change| {
            let is_entry = matches!(change.kind, Kind::File | Kind::Link | Kind::Deleted);
            let is_candidate = is_entry && !is_product(&change.path) && self.denial(&change.path).is_none();
            let there = is_candidate.then(|| self.host_stat(&change.path).ok().flatten()).flatten();
            there.is_some_and(|there| {
                let is_equal = change.kind == Kind::File
                    && there.st_size == change.stat.st_size
                    && attributes_of(&there) == attributes_of(&change.stat);
                // An equal file that is older than the run is a copy of the same original.
                let is_copy = is_equal && !self.is_conflict(&there, &change.stat);
                !is_directory(&there) && self.is_changed(&there) && !is_copy
            })
        })
    }

    /// The reason why a path must not change.
    pub(super) fn denial(&self, path: &Path) -> Option<DenialReason> {
        self.rules.protection(path, &self.view()).map(DenialReason::Protected)
    }

    /// Lets changes of repositories wait.
    pub(super) fn withhold(&mut self, repositories: Vec<JudgedRepository>) {
        for (path, reason) in repositories.iter().flat_map(|judged| &judged.denied) {
            self.deny(ReviewedChange::new(path, None, None, Some(reason.clone())), reason.clone());
        }
        self.repositories = repositories;
    }

    pub(super) fn change(&mut self, change: &Change) {
        let repository = self.repositories.iter().find(|repository| repository.has(&change.path));
        if let Some(repository) = repository.filter(|_| self.denial(&change.path).is_none()) {
            if repository.withholds(&change.path) {
                let reason = repository.denied.first().map(|(_, reason)| reason.clone());
                self.unapplied.changes.insert(change.path.clone());
                self.unapplied.repositories.insert(repository.git.clone());
                let there = self.host_stat(&change.path).ok().flatten();
                let before = there.as_ref().map(|there| self.entry_before(&change.path, there));
                self.reviewed.add(ReviewedChange::new(
                    &change.path,
                    before,
                    self.entry_after(change),
                    reason,
                ));
                return;
            }
            if change.kind == Kind::File && repository.is_cache(&change.path) {
                // Git makes it again. One of the host's own stays.
                let _ = self.delete(&change.path);
                return;
            }
        }
        let denied_count = self.applied.denied_count;
        self.try_change(change);
        // Also a deletion that left a descendant. Apply never creates a special file.
        if self.applied.denied_count > denied_count && change.kind != Kind::Special {
            self.unapplied.changes.insert(change.path.clone());
        }
    }

    fn try_change(&mut self, change: &Change) {
        let Change { path, kind, stat } = change;
        let there = self.host_stat(path).ok().flatten();
        let before = there.as_ref().map(|there| self.entry_before(path, there));
        let after = self.entry_after(change);
        let of = |reason| ReviewedChange::new(path, before.clone(), after.clone(), reason);
        if let Some((blocked, reason)) = &self.blocked
            && path.starts_with(blocked)
        {
            let is_special = *kind == Kind::Special;
            let denied = of(Some(if is_special { DenialReason::Special } else { reason.clone() }));
            self.applied.denied_count += 1;
            return self.reviewed.add(denied);
        }
        let allowed = self.rules.allowed_protection(path, &self.view());
        let step = match self.denial(path) {
            // Its changed descendants are judged separately.
            Some(reason)
                if *kind == (Kind::Directory { opaque: false })
                    && self.view().before(path) == Some(ProtectedEntryKind::Directory) =>
            {
                if there.is_some_and(|there| (there.st_mode ^ stat.st_mode) & 0o777 != 0) {
                    self.deny(of(Some(reason.clone())), reason);
                }
                return;
            }
            // Written again without a change, as installers do.
            Some(_) if *kind == Kind::File && self.is_unchanged(path, stat) => return,
            Some(reason) => Err(reason),
            None => match kind {
                Kind::Directory { opaque } => self.directory(path, *opaque, stat),
                Kind::File | Kind::Link => self.put(path, *kind, stat),
                Kind::Deleted => self.delete(path),
                Kind::Special => Err(DenialReason::Special),
            },
        };
        match step {
            Ok(effect) => {
                if *kind == (Kind::Directory { opaque: true }) {
                    self.unapplied.cleared.push(path.clone());
                }
                let Effect::Whole { beneath } = effect else { return };
                let marks = after.as_ref().map_or(Vec::new(), |after| marks(self.rules, change, after));
                for mark in &marks {
                    // One entry for a directory of packages.
                    let marked = self.rules.mark(path).filter(|(by_rule, _)| by_rule == mark);
                    self.applied.mark(marked.map_or(path, |(_, marked)| marked), *mark);
                }
                self.reviewed.add(ReviewedChange { beneath, protection: allowed, marks, ..of(None) });
            }
            Err(reason) => {
                if matches!(kind, Kind::Directory { .. }) {
                    self.blocked = Some((path.clone(), reason.clone()));
                }
                let denied = of(Some(reason.clone()));
                let marks = after.as_ref().map_or(Vec::new(), |after| marks(self.rules, change, after));
                self.deny(ReviewedChange { marks, ..denied }, reason);
            }
        }
    }

    /// Opens the parent directory of a path on the host, and returns the last component.
    pub(super) fn parent<'p>(&mut self, path: &'p Path) -> io::Result<(BorrowedFd<'_>, &'p std::ffi::OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        if !matches!(&self.last, Some((known, _)) if known == directory) {
            let place = if directory == Path::new("") { Path::new(".") } else { directory };
            let opened = open_beneath(self.host, place, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            self.last = Some((directory.to_owned(), opened));
        }
        match &self.last {
            Some((_, opened)) => Ok((opened.as_fd(), name)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn host_stat(&mut self, path: &Path) -> io::Result<Option<Stat>> {
        if self.planned.as_ref().is_some_and(|planned| planned.at(path).is_some()) {
            return Ok(None);
        }
        let (parent, name) = match self.parent(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Records a change with the new entry's identity.
    pub(super) fn note(&mut self, path: &Path, was: Was, old: Option<u64>, before: Option<&Stat>) {
        self.applied.changed += 1;
        if self.done.len() > MAX_UNDO {
            return;
        }
        let stat = self.host_stat(path).ok().flatten();
        self.done.push(Done {
            path: path.as_os_str().as_bytes().to_vec(),
            now: stat.as_ref().map(identity),
            was,
            old,
            is_directory: stat.is_some_and(|stat| is_directory(&stat)),
            before: before.map(identity),
        });
    }

    pub(super) fn next_old(&mut self) -> u64 {
        self.olds += 1;
        self.olds
    }

    fn directory(&mut self, path: &Path, opaque: bool, stat: &Stat) -> Result<Effect, DenialReason> {
        let existing = self.host_stat(path).map_err(failed)?;
        let mode = stat.st_mode & 0o777;
        match existing {
            Some(there) if is_directory(&there) => {
                if opaque {
                    self.delete_rest(path)?;
                }
                if there.st_mode & 0o777 == mode {
                    return Ok(Effect::None);
                }
                self.modes.push((path.to_owned(), mode));
                self.applied.changed += 1;
                return Ok(Effect::Whole { beneath: 0 });
            }
            Some(_) => drop(self.delete(path)?),
            None => {}
        }
        if self.is_judging() {
            self.plan(path, Some(ProtectedEntryKind::Directory))?;
            return Ok(Effect::Whole { beneath: 0 });
        }
        let owner = self.owner_above(path);
        let (parent, name) = self.parent(path).map_err(gone)?;
        rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)).map_err(failed)?;
        if let Some((user, group)) = owner {
            rustix::fs::chownat(parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(failed)?;
        }
        self.modes.push((path.to_owned(), mode));
        self.note(path, Was::Nothing, None, None);
        Ok(Effect::Whole { beneath: 0 })
    }

    /// Sets the owner of new entries in a directory, if root.
    fn owner_above(&mut self, path: &Path) -> Option<(Uid, Gid)> {
        if !self.is_root {
            return None;
        }
        let (parent, _) = self.parent(path).ok()?;
        let stat = rustix::fs::fstat(parent).ok()?;
        Some((Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)))
    }

    /// Moves a file or link of the layer to its path.
    fn put(&mut self, path: &Path, kind: Kind, stat: &Stat) -> Result<Effect, DenialReason> {
        let above = path.parent().unwrap_or(Path::new(""));
        let name = path.file_name().ok_or_else(|| failed(io::Error::from(io::ErrorKind::InvalidInput)))?;
        let place = if above == Path::new("") { Path::new(".") } else { above };
        let source = open_beneath(self.upper, place, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
            .map_err(failed)?;
        let mode = stat.st_mode & 0o777;
        let file = match kind {
            Kind::File => Some(self.open_source(source.as_fd(), name, mode)?),
            _ => None,
        };
        if self.planned.as_ref().is_none_or(|planned| planned.at(above).is_none()) {
            self.parent(path).map_err(gone)?;
        }
        let mut whole = Effect::Whole { beneath: 0 };
        let mut existing = self.host_stat(path).map_err(failed)?;
        if crate::protected::fold(&name.to_string_lossy()) == ".gitattributes" && !self.rules.admits(path) {
            self.judge_attributes(path, file.as_ref(), stat)?;
        }
        match &existing {
            Some(there) if is_directory(there) => {
                whole = self.delete(path)?;
                if whole == Effect::Partial {
                    return Err(DenialReason::NotEmpty);
                }
                existing = self.host_stat(path).map_err(failed)?;
                if existing.is_some() {
                    return Err(DenialReason::Conflict);
                }
            }
            Some(there) => {
                let is_same = is_regular(there)
                    && there.st_size == stat.st_size
                    && stat.st_size <= MAX_COMPARED
                    && file.as_ref().is_some_and(|file| self.is_same(path, file));
                let is_equal = is_same && attributes_of(there) == attributes_of(stat);
                if is_equal && (self.is_resumed || !self.is_conflict(there, stat)) {
                    return Ok(Effect::None);
                }
                if self.is_changed(there) {
                    return Err(DenialReason::Conflict);
                }
                // Hard links may be outside of the directory: they keep the existing file.
                if is_same && there.st_nlink == 1 {
                    self.attributes(path, stat, there)?;
                    return Ok(whole);
                }
            }
            None => {}
        }
        if self.is_judging() {
            let entry = if kind == Kind::File { ProtectedEntryKind::File } else { ProtectedEntryKind::Link };
            self.plan(path, Some(entry))?;
            return Ok(whole);
        }
        let owner = match &existing {
            Some(there) if self.is_root => Some((Uid::from_raw(there.st_uid), Gid::from_raw(there.st_gid))),
            _ => self.owner_above(path),
        };
        if self.is_one_mount {
            if let Some(file) = &file {
                changes::remove_attributes(file.as_fd()).map_err(failed)?;
                if let Some((user, group)) = owner {
                    rustix::fs::fchown(file, Some(user), Some(group)).map_err(failed)?;
                }
                rustix::fs::fchmod(file, Mode::from_raw_mode(mode)).map_err(failed)?;
            } else if let Some((user, group)) = owner {
                rustix::fs::chownat(&source, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(failed)?;
            }
            self.swap(path, source.as_fd(), name, existing.as_ref())?;
        } else {
            self.copy(path, source.as_fd(), file, stat, owner, existing.as_ref())?;
        }
        Ok(whole)
    }

    /// Copies a file or link to a temporary name in the same directory, then moves it atomically.
    fn copy(
        &mut self,
        path: &Path,
        source: BorrowedFd<'_>,
        file: Option<OwnedFd>,
        stat: &Stat,
        owner: Option<(Uid, Gid)>,
        existing: Option<&Stat>,
    ) -> Step {
        self.copies += 1;
        let beside = format!(".toolpost-{}-{}", self.record.id, self.copies);
        let (parent, name) = self.parent(path).map_err(gone)?;
        let parent = super::launch::duplicate(parent).map_err(failed)?;
        let made = (|| -> io::Result<()> {
            let Some(file) = file else {
                let target = rustix::fs::readlinkat(source, name, Vec::new())?;
                rustix::fs::symlinkat(&target, &parent, &*beside)?;
                if let Some((user, group)) = owner {
                    rustix::fs::chownat(
                        &parent,
                        &*beside,
                        Some(user),
                        Some(group),
                        AtFlags::SYMLINK_NOFOLLOW,
                    )?;
                }
                return Ok(());
            };
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let target = open_beneath(parent.as_fd(), Path::new(&beside), flags, Mode::from_raw_mode(0o600))?;
            let target = std::fs::File::from(target);
            let file = std::fs::File::from(file);
            sparse::copy(&file, &target, stat.st_size as u64)?;
            // A running program can replace what was judged.
            let is_judged = self.repositories.iter().any(|repository| repository.has(path));
            if is_judged && identity(&rustix::fs::fstat(&file)?) != identity(stat) {
                return Err(io::Error::other("it changed during apply"));
            }
            if let Some((user, group)) = owner {
                rustix::fs::fchown(&target, Some(user), Some(group))?;
            }
            rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o777))?;
            Ok(rustix::fs::futimens(&target, &times(stat))?)
        })();
        let own =
            || rustix::fs::statat(&parent, &*beside, AtFlags::SYMLINK_NOFOLLOW).map(|stat| stat.st_ino).ok();
        let copied = own();
        let step = match made {
            Ok(()) => self.swap(path, parent.as_fd(), std::ffi::OsStr::new(&beside), existing),
            Err(error) => Err(failed(error)),
        };
        // Never remove an entry that the exchange took from the host.
        if step.is_err() && own() == copied {
            let _ = rustix::fs::unlinkat(&parent, &*beside, AtFlags::empty());
        }
        step
    }

    /// Moves a prepared entry to its path, and the existing one into the layer.
    fn swap(
        &mut self,
        path: &Path,
        from: BorrowedFd<'_>,
        ready: &std::ffi::OsStr,
        existing: Option<&Stat>,
    ) -> Step {
        let number = self.next_old();
        let (old, is_one_mount) =
            (super::launch::duplicate(self.old.as_fd()).map_err(failed)?, self.is_one_mount);
        let (parent, name) = self.parent(path).map_err(gone)?;
        let has_replaced = exchange(from, ready, parent, name, existing)?;
        let Some(existing) = existing else {
            self.note(path, Was::Nothing, None, None);
            return Ok(());
        };
        if !has_replaced {
            self.note(path, Was::Entry, None, Some(existing));
            return Ok(());
        }
        let has_old = if is_one_mount {
            rustix::fs::renameat(from, ready, &old, &*number.to_string()).is_ok()
        } else {
            let has_old = copy_old(from, ready, existing, old.as_fd(), number);
            rustix::fs::unlinkat(from, ready, AtFlags::empty()).map_err(failed)?;
            has_old
        };
        self.note(path, Was::Entry, has_old.then_some(number), Some(existing));
        Ok(())
    }

    /// Sets mode and time of a file with equal content.
    fn attributes(&mut self, path: &Path, stat: &Stat, there: &Stat) -> Step {
        if self.is_judging() {
            self.may_set_mode(there)?;
            self.applied.changed += 1;
            return Ok(());
        }
        let (parent, name) = self.parent(path).map_err(gone)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = open_beneath(parent, Path::new(name), flags, Mode::empty()).map_err(failed)?;
        if rustix::fs::fstat(&file).map_err(failed)?.st_ino != there.st_ino {
            return Err(DenialReason::Conflict);
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(failed)?;
        rustix::fs::futimens(&file, &times(stat)).map_err(failed)?;
        let (mode, seconds, nanoseconds) = attributes_of(there);
        self.note(path, Was::Attributes { mode, seconds, nanoseconds }, None, Some(there));
        Ok(())
    }

    /// Whether the host's file has equal content.
    fn is_same(&mut self, path: &Path, file: &OwnedFd) -> bool {
        let Ok((parent, name)) = self.parent(path) else { return false };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let Ok(there) = open_beneath(parent, Path::new(name), flags, Mode::empty()) else { return false };
        let Ok(file) = super::launch::duplicate(file.as_fd()) else { return false };
        let same = same_content(&mut std::fs::File::from(file), &mut std::fs::File::from(there));
        same.unwrap_or(false)
    }

    /// Whether a file of the layer has the mode and content of the host's.
    fn is_unchanged(&mut self, path: &Path, stat: &Stat) -> bool {
        let is_candidate = |there: Stat| {
            let is_alike = there.st_size == stat.st_size && there.st_mode & 0o777 == stat.st_mode & 0o777;
            is_regular(&there) && is_alike && stat.st_size <= MAX_COMPARED
        };
        self.host_stat(path).ok().flatten().is_some_and(is_candidate)
            && open_beneath(self.upper, path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
                .is_ok_and(|file| self.is_same(path, &file))
    }

    /// Rejects a `.gitattributes` that adds a driver.
    fn judge_attributes(&mut self, path: &Path, file: Option<&OwnedFd>, stat: &Stat) -> Step {
        let (Some(file), true) = (file, stat.st_size as u64 <= MAX_ATTRIBUTES) else {
            return Err(DenialReason::GitDriver);
        };
        let read = |file: OwnedFd| {
            let mut content = Vec::new();
            std::fs::File::from(file).take(MAX_ATTRIBUTES).read_to_end(&mut content).map(|_| content)
        };
        let new = open_again(file.as_fd()).and_then(read).map_err(failed)?;
        // A planned directory has no old file.
        let old = self.parent(path).and_then(|(parent, name)| {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            read(open_beneath(parent, Path::new(name), flags, Mode::empty())?)
        });
        let old = old.unwrap_or_default();
        if adds_git_driver(path, || old, &new) { Err(DenialReason::GitDriver) } else { Ok(()) }
    }

    /// Sets the modes of directories, bottom-up.
    pub(super) fn finish(&mut self) {
        for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
            if let Err(reason) = self.set_mode(&path, mode) {
                let known = self.reviewed.take(&path);
                let (before, after) = known.map_or((None, None), |known| (known.before, known.after));
                self.deny(ReviewedChange::new(&path, before, after, Some(reason.clone())), reason);
                self.unapplied.changes.insert(path);
            }
        }
        for done in self.done.iter_mut().skip(self.earlier) {
            if done.is_directory
                && let Ok(Some(stat)) = stat_of(self.host, &super::path_of(&done.path))
            {
                done.now = Some(identity(&stat));
            }
        }
    }
}

impl Engine<'_> {
    /// Sets the mode of a host directory, or foresees the host's answer.
    fn set_mode(&mut self, path: &Path, mode: u32) -> Step {
        let there = if self.is_judging() { self.host_stat(path).map_err(failed)? } else { None };
        if self.is_judging() && there.is_none() {
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let directory = open_beneath(self.host, path, flags, Mode::empty()).map_err(failed)?;
        match there {
            Some(there) => self.may_set_mode(&there),
            None => rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode)).map_err(failed),
        }
    }
}

/// The error for a change whose directory was removed or replaced on the host.
pub(super) fn gone(error: impl Into<io::Error>) -> DenialReason {
    let error = error.into();
    let is_other = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()));
    if is_other { DenialReason::Conflict } else { failed(error) }
}

pub(in super::super) fn name_of(name: &std::ffi::CStr) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()))
}

/// The names in a directory.
pub(super) fn entries(directory: &OwnedFd) -> Vec<std::ffi::CString> {
    changes::names(directory, &mut Vec::with_capacity(32 << 10))
}
