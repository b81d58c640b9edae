//! Layers without a run: their records, and apply, discard and undo for them.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::files::open_beneath;
use super::super::lock::Locked;
use super::changes::{self, Kind};
use super::copy_place::CopyApart;
use super::record_key::RecordKey;
use super::reviewed::review;
use super::run_mark;
use super::undo::{Restored, undo};
use super::view::stat_of;
use super::{Instant, Overlay, UPPER, is_own, open_directory, parents, path_of, remove, staged, temporary};
use crate::apply::{Applied, ApplyState, VERSION};
use crate::error::newer_format;
use crate::{Changes, DirectoryRules, Error, ProtectedPath, Review, SandboxHint};

pub(super) const RECORD: &str = "layer.json";
/// The changes that apply made, for undo.
const DONE: &str = "done.json";
/// The largest record in bytes.
const MAX_RECORD: u64 = 64 << 20;

/// The state of a layer's run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    /// The program runs, or was killed with the host program.
    #[default]
    Running,
    /// Tools use a private copy, or their process was killed.
    Staged,
    /// The changes are held.
    Held,
    /// Apply is in progress. If the host program ends, the next one continues.
    Applying,
    /// The changes were applied; the layer has the old versions.
    Applied,
}

/// A path that apply changed, for undo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) path: Vec<u8>,
    /// The identity of the new entry: inode, size, and seconds and nanoseconds of its change time. None if
    /// deleted.
    pub(super) now: Option<Identity>,
    pub(super) was: Was,
    /// The number of the old version in the layer, if stored.
    pub(super) old: Option<u64>,
    pub(super) is_directory: bool,
    /// The identity of the replaced entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) before: Option<Identity>,
}

/// Inode, size, and seconds and nanoseconds of the change time.
pub(super) type Identity = (u64, i64, i64, i64);

/// The entry at a path before apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Was {
    Nothing,
    /// A directory, deleted after its content.
    Directory {
        mode: u32,
        user: u32,
        group: u32,
    },
    Entry,
    /// Equal content with another mode and time.
    Attributes {
        mode: u32,
        seconds: i64,
        nanoseconds: i64,
    },
}

/// The record of a layer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) v: u32,
    pub(super) id: String,
    /// The host directory, as bytes.
    pub(super) directory: Vec<u8>,
    pub(super) device: u64,
    pub(super) inode: u64,
    /// When the program started to see the host directory, by its file system's clock.
    pub(super) since: Instant,
    /// Seconds since 1970.
    pub(super) started: u64,
    pub(super) state: State,
    pub(super) held_because: Option<String>,
    /// Allowed protected paths.
    pub(super) allowed: Vec<Vec<u8>>,
    /// Host paths that the caller protects.
    pub(super) protected: Vec<ProtectedPath>,
    /// Is a private copy, whose changes are held or undone only as a whole.
    pub(super) of_copy: bool,
    /// The id of the run whose layers are undone together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) run: Option<String>,
    /// The private copy, if it does not lie in the layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) copy: Option<CopyApart>,
    /// The proof of the record without this field ([`RecordKey`]).
    pub(super) proof: String,
}

impl Record {
    /// Writes the record atomically, with its proof.
    pub(super) fn save(&self, directory: BorrowedFd<'_>, key: &RecordKey) -> io::Result<()> {
        let mut record = self.clone();
        record.v = VERSION;
        record.proof.clear();
        if record.started == 0 {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            record.started = now.as_secs();
        }
        record.proof = key.proof(&serde_json::to_vec(&record)?);
        replace(directory, RECORD, &serde_json::to_vec(&record)?)
    }

    fn load(directory: BorrowedFd<'_>, key: &RecordKey) -> io::Result<Self> {
        let mut record: Self = serde_json::from_slice(&read(directory, RECORD)?)?;
        if record.v != VERSION {
            return Err(io::Error::other("the record has another version"));
        }
        let proof = std::mem::take(&mut record.proof);
        // The text has only the fields that this program knows: one of a newer program makes the proof invalid.
        if !key.proves(&proof, &serde_json::to_vec(&record)?) {
            return Err(io::Error::other("the record has no valid proof"));
        }
        Ok(record)
    }
}

/// Stores the list of changes for undo.
pub(super) fn save_done(directory: BorrowedFd<'_>, done: &[Done]) -> io::Result<()> {
    replace(directory, DONE, &serde_json::to_vec(done)?)
}

/// The changes that earlier applies of a layer made.
pub(super) fn load_done(directory: BorrowedFd<'_>) -> Vec<Done> {
    read(directory, DONE).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}

/// Writes a file atomically.
pub(super) fn replace(directory: BorrowedFd<'_>, name: &str, content: &[u8]) -> io::Result<()> {
    let next = format!("{name}.next");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, &*next, flags, Mode::from_raw_mode(0o600))?;
    std::fs::File::from(file).write_all(content)?;
    Ok(rustix::fs::renameat(directory, &*next, directory, name)?)
}

fn read(directory: BorrowedFd<'_>, name: &str) -> io::Result<Vec<u8>> {
    let file = open_beneath(directory, Path::new(name), OFlags::RDONLY, Mode::empty())?;
    let mut content = Vec::new();
    std::fs::File::from(file).take(MAX_RECORD).read_to_end(&mut content)?;
    Ok(content)
}

/// Removes what a killed process left of a layer that it created or removed: a directory without a record.
fn remove_unfinished(path: &Path) {
    /// Longer than the creation of a layer takes.
    const MIN_AGE: Duration = Duration::from_mins(1);
    let is_named = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
        name.split('-').count() == 3 && name.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
    });
    let is_old = |found: &std::fs::Metadata| {
        found.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age > MIN_AGE))
    };
    if !is_named || !path.symlink_metadata().is_ok_and(|found| found.is_dir() && is_old(&found)) {
        return;
    }
    if let Ok(directory) = open_directory(path).and_then(Locked::now)
        && let Err(Errno::NOENT) = rustix::fs::statat(&directory, RECORD, AtFlags::SYMLINK_NOFOLLOW)
    {
        temporary::empty(directory.as_fd());
        let _ = std::fs::remove_dir(path);
    }
}

/// Removes a few useless layers: empty ones, and those whose host directory is gone.
pub(super) fn collect_garbage(chosen: Option<&Path>) {
    /// The maximum number of layers to check per directory.
    const MAX_CHECKS: usize = 4;
    for parent in parents(chosen).into_iter().filter(|parent| is_own(parent)) {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        for entry in entries.flatten().take(MAX_CHECKS) {
            run_mark::remove_stale(&entry.path());
            remove_unfinished(&entry.path());
            if let Ok(layer) = HeldLayer::open(&entry.path())
                && (layer.holds_nothing() || layer.is_of_no_use())
            {
                layer.remove();
            }
        }
    }
}

/// The directory name of a layer: layers of one host directory share a prefix.
pub(super) fn name(device: u64, inode: u64, id: &str) -> String {
    format!("{device:x}-{inode:x}-{id}")
}

/// A layer without a run, locked by this process.
#[derive(Debug)]
pub(crate) struct HeldLayer {
    path: PathBuf,
    pub(super) directory: Locked,
    pub(super) record: Record,
    key: RecordKey,
}

fn fail(id: &str, reason: impl Into<String>) -> Error {
    Error::HeldRun { id: id.to_owned(), reason: reason.into(), hint: None }
}

/// The maximum wait for a locked layer.
pub(super) const LOCKED_FOR: Duration = Duration::from_secs(2);

/// The time that changes are held for a missing host directory, which may come back.
const HELD_FOR: Duration = Duration::from_hours(24 * 30);

/// Lists the layers without a run, newest first. Removes empty ones and those whose directory is gone.
pub(crate) fn all(chosen: Option<&Path>) -> Vec<HeldLayer> {
    let is_useless = |layer: &HeldLayer| layer.holds_nothing() || layer.is_of_no_use();
    let (useless, rest): (Vec<_>, Vec<_>) = matching(chosen, "").into_iter().partition(is_useless);
    useless.into_iter().for_each(HeldLayer::remove);
    rest
}

/// The layers of one host directory.
pub(super) fn of_directory(chosen: Option<&Path>, device: u64, inode: u64) -> Vec<HeldLayer> {
    matching(chosen, &name(device, inode, ""))
}

fn matching(chosen: Option<&Path>, prefix: &str) -> Vec<HeldLayer> {
    let mut all = Vec::new();
    for path in paths(chosen) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(prefix)
            && let Ok(layer) = HeldLayer::open(&path)
        {
            match layer.record.state {
                State::Staged => all.extend(staged::recover(layer)),
                _ => all.push(layer),
            }
        }
    }
    // Several runs can start in one second.
    all.sort_by_key(|layer| std::cmp::Reverse((layer.record.started, layer.record.since)));
    all
}

/// The directories of all layers.
fn paths(chosen: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    parents(chosen)
        .into_iter()
        .filter(|parent| is_own(parent))
        .filter_map(|parent| std::fs::read_dir(parent).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
}

/// Finds a layer by its id or a unique prefix of it.
///
/// A layer is locked while its run continues, and for a moment by a child that another thread is starting, or by another
/// search: those are waited for.
pub(crate) fn find(id: &str, chosen: Option<&Path>) -> Result<HeldLayer, Error> {
    let end = std::time::Instant::now() + LOCKED_FOR;
    loop {
        let mut found: Vec<_> =
            all(chosen).into_iter().filter(|layer| !id.is_empty() && layer.id().starts_with(id)).collect();
        match (found.pop(), found.len()) {
            (Some(layer), 0) => return Ok(layer),
            (Some(_), _) => return Err(fail(id, "several run ids have this prefix; use a longer one")),
            (None, _) if let Some(reason) = with_id(id, chosen).find_map(|path| unproven(&path)) => {
                return Err(fail(id, reason));
            }
            (None, _) if is_there(id, chosen) && std::time::Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            (None, _) if is_there(id, chosen) => return Err(fail(id, "the run continues; wait for its end")),
            (None, _) => {
                let reason = "no run with this id has changes".to_owned();
                return Err(Error::HeldRun { id: id.to_owned(), reason, hint: Some(SandboxHint::ListHeld) });
            }
        }
    }
}

/// The layers with this id, locked or not.
fn with_id(id: &str, chosen: Option<&Path>) -> impl Iterator<Item = PathBuf> {
    let of_id = move |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()?.rsplit('-').next());
        !id.is_empty() && name.is_some_and(|name| name.starts_with(id))
    };
    paths(chosen).filter(of_id)
}

/// Whether a layer with this id exists, locked or not.
fn is_there(id: &str, chosen: Option<&Path>) -> bool {
    with_id(id, chosen).next().is_some()
}

/// The reasons for all layers that this program does not open.
pub(crate) fn all_unproven(chosen: Option<&Path>) -> Vec<String> {
    paths(chosen).filter_map(|path| unproven(&path)).collect()
}

/// The reason why this program does not open a layer: its format or its proof.
fn unproven(path: &Path) -> Option<String> {
    let directory = open_directory(path).ok()?;
    let text = read(directory.as_fd(), RECORD).ok()?;
    let record: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
    let found = record.as_ref().and_then(|record| record.get("v")?.as_u64());
    let files = format!("its files are in `{}`", path.join(UPPER).display());
    match found {
        Some(found) if found > VERSION.into() => Some(newer_format(found, VERSION)),
        Some(found) if found < VERSION.into() => {
            Some(format!("its record has format {found}, which has no proof; {files}"))
        }
        _ => match key_of(path).and_then(|key| Record::load(directory.as_fd(), &key)) {
            Ok(_) => None,
            Err(error) => Some(format!("{error}; {files}")),
        },
    }
}

/// The key of the directory that has a layer.
fn key_of(path: &Path) -> io::Result<RecordKey> {
    RecordKey::read(path.parent().unwrap_or(path))
}

impl HeldLayer {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let directory = Locked::now(open_directory(path)?)?;
        let stat = rustix::fs::fstat(&directory)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it belongs to another user"));
        }
        let key = key_of(path)?;
        let record = Record::load(directory.as_fd(), &key)?;
        // A record proves its own directory alone.
        let own = name(record.device, record.inode, &record.id);
        if path.file_name() != Some(std::ffi::OsStr::new(&own)) {
            return Err(io::Error::other("the record is that of another directory"));
        }
        Ok(Self { path: path.to_owned(), directory, record, key })
    }

    pub(crate) fn id(&self) -> &str {
        &self.record.id
    }

    pub(crate) fn host_directory(&self) -> PathBuf {
        path_of(&self.record.directory)
    }

    pub(crate) fn started(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.record.started)
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.record.state != State::Applied
    }

    /// Whether changes were applied and can be undone, even if others are still held.
    pub(crate) fn can_undo(&self) -> bool {
        match self.record.state {
            State::Applied => true,
            State::Held => rustix::fs::statat(&self.directory, DONE, AtFlags::SYMLINK_NOFOLLOW).is_ok(),
            _ => false,
        }
    }

    pub(super) fn is_half_applied(&self) -> bool {
        self.record.state == State::Applying
    }

    /// Whether a killed run had changed nothing.
    pub(super) fn holds_nothing(&self) -> bool {
        self.record.state == State::Running && self.upper_is_empty()
    }

    pub(super) fn upper_is_empty(&self) -> bool {
        self.upper().is_ok_and(|upper| changes::is_empty(upper.as_fd()))
    }

    /// Whether its host directory is gone, so that its changes can no longer be undone or, after a time,
    /// applied. A private copy ends with its process.
    fn is_of_no_use(&self) -> bool {
        let is_old = || self.started().elapsed().is_ok_and(|age| age > HELD_FOR);
        self.record.of_copy || (!self.is_waiting() || is_old()) && self.host().is_err()
    }

    fn upper(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.directory, UPPER, super::DIRECTORY, Mode::empty())?)
    }

    fn host(&self) -> Result<OwnedFd, Error> {
        let path = self.host_directory();
        let gone = || fail(self.id(), format!("`{}` is no longer the directory of the run", path.display()));
        let host = open_directory(&path).map_err(|_| gone())?;
        let stat = rustix::fs::fstat(&host).map_err(|_| gone())?;
        if (stat.st_dev, stat.st_ino) == (self.record.device, self.record.inode) {
            Ok(host)
        } else {
            Err(gone())
        }
    }

    pub(crate) fn changes(&self) -> Changes {
        let mut changes = Changes::default();
        let (Ok(upper), Ok(host)) = (self.upper(), self.host()) else { return changes };
        for change in changes::list(upper.as_fd()).list {
            let is_there = stat_of(host.as_fd(), &change.path).is_ok_and(|found| found.is_some());
            match (change.kind, is_there) {
                (Kind::Directory { .. } | Kind::Special, _) | (Kind::Deleted, false) => {}
                (Kind::Deleted, true) => changes.deleted.push(change.path),
                (_, true) => changes.changed.push(change.path),
                (_, false) => changes.new.push(change.path),
            }
        }
        changes
    }

    pub(crate) fn content(&self, path: &Path, limit: u64) -> Option<Vec<u8>> {
        let upper = self.upper().ok()?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = std::fs::File::from(open_beneath(upper.as_fd(), path, flags, Mode::empty()).ok()?);
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let mut content = Vec::new();
        file.take(limit).read_to_end(&mut content).ok()?;
        Some(content)
    }

    /// Judges the changes as [`HeldLayer::apply`] would now.
    pub(crate) fn review(&self, allowed: &[PathBuf]) -> Result<Review, Error> {
        let host = self.host()?;
        let upper = self.upper().map_err(|error| fail(self.id(), error.to_string()))?;
        let parts = [self.directory.as_fd(), host.as_fd(), upper.as_fd()];
        review(parts, &self.record, &self.rules(allowed))
    }

    fn rules(&self, allowed: &[PathBuf]) -> DirectoryRules {
        let recorded = self.record.allowed.iter().map(|path| path_of(path));
        let protected = self.record.protected.iter().cloned();
        DirectoryRules::of_host(&self.host_directory(), protected, recorded.chain(allowed.iter().cloned()))
    }

    pub(crate) fn apply(self, allowed: &[PathBuf]) -> Result<Applied, Error> {
        if !self.is_waiting() {
            return Err(fail(self.id(), "its changes are already applied"));
        }
        let host = self.host()?;
        let id = self.record.id.clone();
        let upper = self.upper().map_err(|error| fail(&id, error.to_string()))?;
        let rules = self.rules(allowed);
        let mut layer = Overlay {
            path: self.path,
            directory: self.directory,
            upper,
            record: self.record,
            key: self.key,
            host,
            is_done: false,
            turn: None,
            may_postpone: false,
            started: std::time::Instant::now(),
            changes: None,
        };
        layer.apply(&rules, true)
    }

    pub(super) fn save(&self) -> io::Result<()> {
        self.record.save(self.directory.as_fd(), &self.key)
    }

    /// Discards the held changes. Applied ones can still be undone.
    pub(crate) fn discard(mut self) {
        if self.is_waiting() && self.can_undo() {
            self.record.state = State::Applied;
            if self.save().is_ok() {
                if let Ok(upper) = self.upper() {
                    temporary::empty(upper.as_fd());
                }
                return;
            }
        }
        self.remove();
    }

    /// Removes the layer.
    pub(super) fn remove(self) {
        remove(&self.path, self.directory.as_fd(), &self.record);
    }

    /// The id of the run whose layers are undone together.
    pub(crate) fn run(&self) -> Option<&str> {
        self.record.run.as_deref()
    }

    /// Undoes the applied changes. `restored` has what undoing later layers restored.
    pub(crate) fn undo(self, restored: &mut Restored) -> Result<Applied, Error> {
        if !self.can_undo() {
            return Err(Error::HeldRun {
                id: self.id().to_owned(),
                reason: "its changes are not applied".into(),
                hint: Some(SandboxHint::DiscardHeld),
            });
        }
        let host = self.host()?;
        let done: Vec<Done> = read(self.directory.as_fd(), DONE)
            .and_then(|text| Ok(serde_json::from_slice(&text)?))
            .map_err(|error| fail(self.id(), format!("reading its list of changes failed: {error}")))?;
        let mut applied = undo(&self.record.id, &done, self.directory.as_fd(), host.as_fd(), restored)
            .map_err(|error| fail(self.id(), error.to_string()))?;
        // The layer keeps the old versions of entries that could not be restored.
        if self.is_waiting() {
            let Changes { new, changed, deleted } = self.changes();
            applied.held_count = new.len() + changed.len() + deleted.len();
        }
        if applied.denied_count == 0 {
            if self.is_waiting() {
                let _ = rustix::fs::unlinkat(&self.directory, DONE, AtFlags::empty());
            } else {
                self.remove();
            }
        }
        Ok(Applied { state: ApplyState::Discarded, ..applied })
    }
}
