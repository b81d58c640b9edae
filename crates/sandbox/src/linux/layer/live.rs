//! A layer under a running program: applied repeatedly, and refreshed from the host in between.
//!
//! With a private copy, each apply gets copies of the changed entries.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};

use super::super::files::{self, Listing, Owner, open_beneath};
use super::super::sparse;
use super::Overlay;
use super::apply::{Engine, lock};
use super::baseline::{Baseline, Copied};
use super::changes::{self, Change, Kind};
use super::commits;
use super::copy_place::CopyPlace;
use super::held::{self, Done, Identity, State};
use super::private_copy::{PrivateCopy, Registration};
use super::seal::{Denials, collect};
use super::unapplied::Unapplied;
use super::view::{identity, is_directory, stat_of, times};
use crate::apply::{Applied, ApplyState, MASS_DELETION, OVER_LIMIT};
use crate::denial::{DenialReason, Denied};
use crate::{ApplyMode, DirectoryRules, Error, Limits, ReviewDecision, Sandbox};

/// A layer whose program continues after an apply.
#[derive(Debug)]
pub(in super::super) struct LiveLayer {
    layer: Overlay,
    /// Changes of the workspace are those of the layer.
    limits: Limits,
    mode: ApplyMode,
    rules: DirectoryRules,
    /// The identities of entries that were applied or denied.
    settled: HashMap<PathBuf, Identity>,
    /// The host directory as the program sees it.
    seen: Listing,
    /// The changes that the host did not take, which are held at the end.
    unapplied: Unapplied,
    /// The applied changes of a run that is undone together.
    done: Vec<Done>,
    /// The held ones among the denied entries, and the files of commits that wait.
    failed: Vec<Denied>,
    /// The copy in which the program works, if there is no overlay.
    copy: Option<LiveCopy>,
}

/// The private copy of a running program.
#[derive(Debug)]
struct LiveCopy {
    place: CopyPlace,
    /// The copy as of the last apply.
    baseline: Baseline,
    /// The entries that cannot change and were reported.
    reported: HashSet<PathBuf>,
    _registration: Registration,
}

impl LiveLayer {
    pub(in super::super) fn new(layer: Overlay, sandbox: &Sandbox, limits: Limits) -> Self {
        let seen = files::list(layer.host());
        let (mode, rules) = (sandbox.apply, layer.rules(sandbox));
        Self {
            layer,
            limits,
            mode,
            rules,
            settled: HashMap::new(),
            seen,
            unapplied: Unapplied::default(),
            done: Vec::new(),
            failed: Vec::new(),
            copy: None,
        }
    }

    /// The layer of a program in a private copy.
    pub(in super::super) fn of_copy(copy: PrivateCopy, sandbox: &Sandbox, limits: Limits) -> Self {
        let PrivateCopy { layer, place, baseline, registration } = copy;
        let copy = LiveCopy { place, baseline, reported: HashSet::new(), _registration: registration };
        Self { copy: Some(copy), ..Self::new(layer, sandbox, limits) }
    }

    /// Gives the layer the changes of the copy. Returns the entries that cannot change, and the new baseline.
    fn collect(&mut self) -> Result<Option<(Denials, Baseline)>, Error> {
        let Some(copy) = &self.copy else { return Ok(None) };
        let collected = collect(self.layer.directory.as_fd(), copy.place.directory.as_fd(), &copy.baseline)
            .map_err(|error| self.layer.fail(error))?;
        self.layer.upper = collected.upper;
        let mut denied = collected.denied;
        denied.retain(|(path, _)| !copy.reported.contains(path));
        Ok(Some((denied, collected.baseline)))
    }

    /// Records that the changes of the copy were applied.
    fn settle_copy(&mut self, collected: Option<(Denials, Baseline)>, applied: &mut Applied) {
        let (Some(copy), Some((denied, baseline))) = (&mut self.copy, collected) else { return };
        copy.baseline = baseline;
        for (path, reason) in denied {
            applied.deny_unlisted(&path, reason, ReviewDecision::Denied);
            copy.reported.insert(path);
        }
    }

    /// The directory of the program's writes.
    pub(in super::super) fn upper(&self) -> Result<OwnedFd, Error> {
        super::launch::duplicate(self.layer.upper()).map_err(|error| self.layer.fail(error))
    }

    /// Applies the changes since the last call. None if nothing is applied now.
    pub(in super::super) fn apply(&mut self) -> Result<Option<Applied>, Error> {
        if self.mode != ApplyMode::Now {
            return Ok(None);
        }
        let collected = self.collect()?;
        let mut changes = changes::list(self.layer.upper());
        self.unsettle_commits(&changes.list);
        let mut blocked: Option<PathBuf> = None;
        changes.list.retain(|change| {
            if blocked.as_ref().is_some_and(|blocked| change.path.starts_with(blocked)) {
                return false;
            }
            let is_settled = self.settled.get(&change.path) == Some(&identity(&change.stat));
            // A denied directory is settled with its content.
            if is_settled && matches!(change.kind, Kind::Directory { .. }) {
                blocked = Some(change.path.clone());
            }
            !is_settled
        });
        let changes = changes.list;
        if changes.iter().all(|change| matches!(change.kind, Kind::Directory { opaque: false }))
            && changes.iter().all(|change| self.exists(&change.path))
            && collected.as_ref().is_none_or(|(denied, _)| denied.is_empty())
        {
            return Ok(None);
        }
        if files::layer_over(self.layer.upper(), &self.limits).is_some() {
            let held = Applied::new(self.layer.id(), ApplyState::Held);
            return Ok(Some(Applied { held_because: Some(OVER_LIMIT), ..held }));
        }
        let (mut applied, unapplied) = {
            let _lock = lock(self.layer.host()).map_err(|error| self.layer.fail(error))?;
            let mut engine = Engine::new(&self.layer, &self.rules).map_err(|error| self.layer.fail(error))?;
            // The program may have files open, so the host gets copies.
            engine.copies_only();
            let is_listed = self.layer.changes.is_some();
            engine.follow(std::mem::take(&mut self.done));
            if !self.layer.record.of_copy && engine.deletes_much(&changes) {
                let held = Applied::new(self.layer.id(), ApplyState::Held);
                return Ok(Some(Applied { held_because: Some(MASS_DELETION), ..held }));
            }
            engine.withhold(commits::judge(self.layer.parts(), &self.rules, &changes, true));
            for change in &changes {
                engine.change(change);
            }
            engine.finish();
            let is_held = self.copy.is_none() && engine.holds_denied(false);
            let (applied, unapplied, done) = engine.into_parts(is_held);
            self.layer.list_changes(&done);
            if is_listed {
                self.done = done;
            }
            (applied, unapplied)
        };
        self.keep_failed(&changes, &applied, unapplied);
        applied.held_count = self.unapplied.changes.len();
        // The baseline of a copy has the same purpose.
        let unsettled = if self.copy.is_some() { &[][..] } else { &changes };
        for change in unsettled {
            let is_denied = || {
                applied
                    .denied
                    .iter()
                    .any(|denied| denied.path == change.path && denied.reason != DenialReason::Conflict)
            };
            if !matches!(change.kind, Kind::Directory { .. }) || is_denied() {
                self.settle(&change.path);
            }
        }
        let waiting = self.waiting_in_copy();
        self.settle_copy(collected, &mut applied);
        // The next apply, or the end, gets them again.
        if let Some(copy) = &mut self.copy {
            for (path, copied) in waiting {
                match copied {
                    Some(copied) => copy.baseline.insert(path, copied),
                    None => copy.baseline.remove(&path),
                };
            }
        }
        self.layer.begin_again()?;
        self.seen = files::list(self.layer.host());
        Ok(Some(applied))
    }

    /// Keeps the changes that broke no rule for the end, until a later version of them is applied.
    fn keep_failed(&mut self, changes: &[Change], applied: &Applied, unapplied: Unapplied) {
        for change in changes {
            self.unapplied.changes.remove(&change.path);
            self.failed.retain(|denied| denied.path != change.path);
        }
        let has_commits = !unapplied.repositories.is_empty();
        if self.copy.is_some() {
            // Other changes of a copy continue from the host's version.
            self.unapplied = unapplied;
            let repositories = &self.unapplied.repositories;
            let is_waiting = |path: &PathBuf| repositories.iter().any(|git| path.starts_with(git));
            self.unapplied.changes.retain(is_waiting);
            return;
        }
        if self.layer.record.of_copy || unapplied.failed == 0 && !has_commits {
            return;
        }
        self.unapplied.failed += unapplied.failed;
        self.unapplied.changes.extend(unapplied.changes);
        self.unapplied.repositories.extend(unapplied.repositories);
        let is_kept = |denied: &&Denied| denied.reason.is_by_host() || is_committed(denied);
        self.failed.extend(applied.denied.iter().filter(is_kept).cloned());
    }

    /// Judges the commits of a repository again that the program changed after they were held.
    fn unsettle_commits(&mut self, changes: &[Change]) {
        let is_new = |git: &PathBuf| {
            let mut own = changes.iter().filter(|change| change.path.starts_with(git));
            own.any(|change| self.settled.get(&change.path) != Some(&identity(&change.stat)))
        };
        let repositories = self.unapplied.repositories.clone();
        for git in repositories.iter().filter(|git| is_new(git)).collect::<Vec<_>>() {
            let waiting = &self.unapplied.changes;
            self.settled.retain(|path, _| !(path.starts_with(git) && waiting.contains(path)));
            self.unapplied.repositories.remove(git);
            self.failed.retain(|denied| !is_committed(denied) && denied.path != *git);
        }
    }

    /// The entries of commits that wait, as they were in the copy before.
    fn waiting_in_copy(&self) -> Vec<(PathBuf, Option<Copied>)> {
        let Some(copy) = &self.copy else { return Vec::new() };
        let waiting = self.unapplied.changes.iter();
        waiting.map(|path| (path.clone(), copy.baseline.get(path).copied())).collect()
    }

    fn exists(&self, path: &Path) -> bool {
        stat_of(self.layer.host(), path).is_ok_and(|stat| stat.is_some())
    }

    fn settle(&mut self, path: &Path) {
        if let Some(copy) = &mut self.copy {
            return copy.settle(path);
        }
        match stat_of(self.layer.upper(), path) {
            Ok(Some(stat)) => {
                self.settled.insert(path.to_owned(), identity(&stat));
            }
            _ => {
                self.settled.remove(path);
            }
        }
    }

    /// Copies the host's changes by others into `merged`, the directory as the program sees it.
    ///
    /// Changes of the program that are not yet applied stay.
    pub(in super::super) fn refresh(&mut self, merged: BorrowedFd<'_>, owner: Option<Owner>) {
        let now = files::list(self.layer.host());
        let changes = files::compare(&self.seen, &now);
        for path in changes.new.iter().chain(&changes.changed) {
            if self.is_own(path) {
                continue;
            }
            if show(self.layer.host(), merged, path, owner).is_ok() {
                self.settle(path);
            }
        }
        for path in &changes.deleted {
            if !self.is_own(path) {
                let _ = remove(merged, path);
                self.settle(path);
            }
        }
        if !changes.new.is_empty() || !changes.changed.is_empty() || !changes.deleted.is_empty() {
            let _ = self.layer.begin_again();
        }
        self.seen = now;
    }

    /// Whether a path has a change that is not yet applied.
    fn is_own(&self, path: &Path) -> bool {
        if let Some(copy) = &self.copy {
            return copy.is_changed(path);
        }
        match stat_of(self.layer.upper(), path) {
            Ok(Some(stat)) => self.settled.get(path) != Some(&identity(&stat)),
            _ => false,
        }
    }

    /// Removes the layer of a program that did not start.
    pub(in super::super) fn discard(mut self) {
        self.layer.is_done = true;
    }

    /// Ends the layer after the program's death.
    pub(in super::super) fn end(mut self) -> Result<Applied, Error> {
        if self.mode != ApplyMode::Now {
            let mode = self.mode;
            return self.end_as(mode, None);
        }
        match self.apply()? {
            Some(Applied { state: ApplyState::Held, held_because, .. }) => {
                self.end_as(ApplyMode::Hold, held_because)
            }
            applied => {
                let mut last = applied.unwrap_or_else(|| Applied::new(self.layer.id(), ApplyState::Applied));
                self.layer.is_done = self.done.is_empty() || self.layer.record.of_copy;
                if !self.layer.is_done {
                    last.can_undo = true;
                    self.layer.end_other_undo();
                    let directory = self.layer.directory.as_fd();
                    held::save_done(directory, &self.done).map_err(|error| self.layer.fail(error))?;
                    self.layer.record.state = State::Applied;
                    self.layer.save().map_err(|error| self.layer.fail(error))?;
                }
                if self.unapplied.changes.is_empty() {
                    return Ok(last);
                }
                self.layer.is_done = false;
                if self.copy.is_some() {
                    last.held_count = self.unapplied.changes.len();
                    self.end_as(ApplyMode::Hold, None)?;
                    return Ok(last);
                }
                self.hold_failed(last)
            }
        }
    }

    /// Holds the changes that the host did not take, and reports those of all applies.
    fn hold_failed(&mut self, mut applied: Applied) -> Result<Applied, Error> {
        self.unapplied.retain(self.layer.upper(), &changes::list(self.layer.upper()).list);
        self.layer.hold(None, &self.rules)?;
        applied.held_count = self.unapplied.changes.len();
        for denied in std::mem::take(&mut self.failed) {
            if applied.denied.iter().all(|known| known.path != denied.path) {
                applied.failed_count += usize::from(denied.reason.is_by_host());
                applied.deny_unlisted(&denied.path, denied.reason, ReviewDecision::Held);
            }
        }
        Ok(applied)
    }
    fn end_as(mut self, mode: ApplyMode, because: Option<&'static str>) -> Result<Applied, Error> {
        let denied = match self.copy.take() {
            Some(copy) if mode != ApplyMode::Discard => self.layer.seal(&copy.place, copy.baseline)?,
            _ => Denials::new(),
        };
        let mut applied = self.layer.end(mode, because, &self.rules)?;
        for (path, reason) in denied {
            applied.deny_unlisted(&path, reason, ReviewDecision::Denied);
        }
        Ok(applied)
    }
}

fn is_committed(denied: &Denied) -> bool {
    matches!(denied.reason, DenialReason::Committed(_))
}

impl LiveCopy {
    /// The current entry at a path.
    fn entry(&self, path: &Path) -> Option<Copied> {
        let stat = stat_of(self.place.directory.as_fd(), path).ok().flatten()?;
        Some(if is_directory(&stat) {
            Copied::Directory { mode: stat.st_mode & 0o777 }
        } else {
            Copied::entry(&stat)
        })
    }

    /// Whether a path has a change that is not yet applied.
    fn is_changed(&self, path: &Path) -> bool {
        self.baseline.get(path) != self.entry(path).as_ref()
    }

    /// Takes the current entry as the host's, with the directories above.
    fn settle(&mut self, path: &Path) {
        match self.entry(path) {
            Some(entry) => {
                self.baseline.insert(path.to_owned(), entry);
            }
            None => {
                self.baseline.remove(path);
            }
        }
        for above in path.ancestors().skip(1).filter(|above| *above != Path::new("")) {
            if !self.baseline.contains_key(above)
                && let Some(entry) = self.entry(above)
            {
                self.baseline.insert(above.to_owned(), entry);
            }
        }
    }
}

/// The layer of a program with live streams, from its mount to its end.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveDirectory(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Debug, Default)]
enum Stage {
    /// There is no layer, or the program has ended.
    #[default]
    Absent,
    /// The program starts, and may be faster than the host.
    Starting,
    Mounted(Box<Mounted>),
}

#[derive(Debug)]
struct Mounted {
    layer: LiveLayer,
    /// The directory as the program sees it.
    merged: OwnedFd,
    owner: Option<Owner>,
}

/// The last apply of a program's changes.
pub(in super::super) struct LastApply<'a> {
    _lock: MutexGuard<'a, Stage>,
}

impl LiveDirectory {
    /// The longest time from the start of a program to its layer.
    const MAX_START: Duration = Duration::from_secs(5);

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a layer.
    pub(in super::super) fn expect(&self) {
        *self.lock() = Stage::Starting;
    }

    pub(in super::super) fn begin(&self, layer: LiveLayer, merged: OwnedFd, owner: Option<Owner>) {
        *self.lock() = Stage::Mounted(Box::new(Mounted { layer, merged, owner }));
        self.0.changed.notify_all();
    }

    /// Takes the layer after the program's death. Until the second value is dropped, an apply of the caller waits: it
    /// must find what the program wrote last.
    pub(in super::super) fn take(&self) -> (Option<LiveLayer>, LastApply<'_>) {
        let mut stage = self.lock();
        let layer = match std::mem::take(&mut *stage) {
            Stage::Mounted(mounted) => Some(mounted.layer),
            Stage::Absent | Stage::Starting => None,
        };
        self.0.changed.notify_all();
        (layer, LastApply { _lock: stage })
    }

    pub(crate) fn apply(&self) -> Result<Option<Applied>, Error> {
        let is_starting = |stage: &mut Stage| matches!(stage, Stage::Starting);
        let waited = self.0.changed.wait_timeout_while(self.lock(), Self::MAX_START, is_starting);
        match &mut *waited.unwrap_or_else(PoisonError::into_inner).0 {
            Stage::Mounted(mounted) => mounted.layer.apply(),
            Stage::Absent | Stage::Starting => Ok(None),
        }
    }

    pub(crate) fn refresh(&self) {
        if let Stage::Mounted(mounted) = &mut *self.lock() {
            let Mounted { layer, merged, owner } = &mut **mounted;
            layer.refresh(merged.as_fd(), *owner);
        }
    }
}

/// Copies a host entry into the directory as the program sees it.
fn show(host: BorrowedFd<'_>, merged: BorrowedFd<'_>, path: &Path, owner: Option<Owner>) -> io::Result<()> {
    use rustix::fs::FileType;
    let Some(stat) = stat_of(host, path)? else { return Ok(()) };
    let _ = remove(merged, path);
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let source = open_beneath(host, path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
            let file = files::create(merged, path, owner)?;
            let target = std::fs::File::from(file);
            sparse::copy(&std::fs::File::from(source), &target, stat.st_size as u64)?;
            rustix::fs::fchmod(&target, Mode::from_raw_mode(stat.st_mode & 0o777))?;
            Ok(rustix::fs::futimens(&target, &times(&stat))?)
        }
        FileType::Symlink => {
            let (from, name) = parent(host, path)?;
            let target = rustix::fs::readlinkat(&from, name, Vec::new())?;
            let (to, name) = parent(merged, path)?;
            rustix::fs::symlinkat(&target, &to, &name)?;
            if let Some(owner) = owner {
                let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
                rustix::fs::chownat(&to, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

pub(super) fn parent(root: BorrowedFd<'_>, path: &Path) -> io::Result<(OwnedFd, std::ffi::OsString)> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
    let opened = open_beneath(root, above, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    Ok((opened, name))
}

fn remove(merged: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let (directory, name) = parent(merged, path)?;
    Ok(rustix::fs::unlinkat(directory.as_fd(), name, AtFlags::empty())?)
}
