//! A private copy of a host directory, for several programs and file tools before anything is applied.
//!
//! The copy is stored in a layer. At its end, the entries that differ from the original become the layer's
//! `upper`, with whiteouts for deleted ones. Then it is a normal layer, to be applied, held or discarded. The
//! layer lists the copied entries, so that the copy of a killed process is recovered as a held layer.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::super::files::open_beneath;
use super::super::workspace::HostFolder;
use super::apply::failed;
use super::changes::{self, Kind};
use super::held::{self, HeldLayer, State};
use super::view::{identity, times};
use super::{DIRECTORY, Layer, UPPER, own_paths, path_of, temporary};
use crate::apply::{Applied, ApplyState, DenialReason};
use crate::{ApplyMode, DirectoryRules, Error, Level, Sandbox};

/// The directory of the copy.
pub(super) const COPY: &str = "copy";
/// The list of copied entries.
const BASELINE: &str = "baseline";
/// The changes, while they are collected.
const NEXT: &str = "next";
/// The maximum depth of copied directories.
const MAX_DEPTH: usize = 256;
/// The maximum size of all paths in a copy.
const MAX_PATH_BYTES: u64 = 256 << 20;

/// The copies of this process by device and inode, with their host directories.
static COPIES: Mutex<BTreeMap<(u64, u64), PathBuf>> = Mutex::new(BTreeMap::new());

fn copies() -> MutexGuard<'static, BTreeMap<(u64, u64), PathBuf>> {
    COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The host directory of a copy; none for any other directory.
pub(in super::super) fn original(stat: &Stat) -> Option<PathBuf> {
    copies().get(&(stat.st_dev, stat.st_ino)).cloned()
}

/// The host directory of the copy at a path.
pub(in super::super) fn original_of(path: &Path) -> Option<PathBuf> {
    original(&rustix::fs::stat(path).ok()?)
}

/// The original state of a path, in the finished copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    Directory {
        mode: u32,
    },
    /// A file or link: its inode in the copy, size, and the seconds and nanoseconds of its change time.
    Entry(u64, i64, i64, i64),
    /// It was not copied, and so never changes.
    Skipped,
}

impl Copied {
    fn entry(stat: &Stat) -> Self {
        let (inode, size, seconds, nanoseconds) = identity(stat);
        Self::Entry(inode, size, seconds, nanoseconds)
    }
}

/// Sorted: each path precedes its descendants.
type Baseline = BTreeMap<PathBuf, Copied>;

/// A copy in use by this process.
#[derive(Debug)]
pub(crate) struct StagedLayer {
    layer: Layer,
    /// The path of the copy.
    path: PathBuf,
    /// Its device and inode.
    key: (u64, u64),
    baseline: Baseline,
    mode: ApplyMode,
    rules: DirectoryRules,
    notes: Vec<String>,
    is_ended: bool,
}

impl Drop for StagedLayer {
    fn drop(&mut self) {
        if !self.is_ended && self.mode != ApplyMode::Discard {
            let _ = self.finish(ApplyMode::Hold);
        }
        copies().remove(&self.key);
    }
}

impl StagedLayer {
    pub(crate) fn create(directory: &Path, sandbox: &Sandbox) -> Result<Self, Error> {
        let folder = HostFolder::open_shared(directory)?;
        let fail = |error: io::Error| Error::Workspace {
            path: directory.to_owned(),
            reason: format!("creating the private copy failed: {error}"),
        };
        let chosen = sandbox.layers.as_deref();
        let stat = rustix::fs::fstat(folder.descriptor()).map_err(|error| fail(error.into()))?;
        let mut layer =
            Layer::create(folder.descriptor(), folder.path(), &stat, chosen, None).map_err(fail)?;
        if let Some(changes) = &sandbox.changes {
            layer.belong_to(changes).map_err(fail)?;
        }
        let mut notes = Vec::new();
        layer.attend_to_others(chosen, &mut notes);
        // The copy sees the host as of now: changes that were just recovered are no conflict.
        layer.begin_again()?;
        let limits = sandbox.limits_at(Level::Standard);
        let hidden =
            own_paths(sandbox).chain(sandbox.protected.iter().filter(|path| path.is_hidden()).cloned());
        let hidden = hidden.filter_map(|own| own.path().strip_prefix(folder.path()).map(Path::to_owned).ok());
        let mut copying = CopyState {
            hidden: hidden.collect(),
            is_root: rustix::process::geteuid().is_root(),
            max_bytes: limits.layer_bytes,
            max_entries: limits.layer_inodes,
            bytes: 0,
            path_bytes: 0,
            baseline: Baseline::new(),
        };
        let key = copying.copy(layer.host(), layer.directory.as_fd()).map_err(fail)?;
        let baseline = copying.baseline;
        let rules = layer.rules(sandbox);
        layer.admit(&rules);
        if sandbox.apply != ApplyMode::Discard {
            store(layer.directory.as_fd(), &baseline).map_err(fail)?;
            layer.record.state = State::Staged;
        }
        layer.save().map_err(fail)?;
        copies().insert(key, folder.path().to_owned());
        let path = layer.path.join(COPY);
        Ok(Self { layer, path, key, baseline, mode: sandbox.apply, rules, notes, is_ended: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn host_directory(&self) -> PathBuf {
        path_of(&self.layer.record.directory)
    }

    pub(crate) fn not_copied(&self) -> impl Iterator<Item = &Path> {
        let skipped = self.baseline.iter().filter(|(_, copied)| **copied == Copied::Skipped);
        skipped.map(|(path, _)| path.as_path())
    }

    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Ends the copy: applies, holds or discards its changes.
    pub(crate) fn end(mut self) -> Result<Applied, Error> {
        self.finish(self.mode)
    }

    fn finish(&mut self, mode: ApplyMode) -> Result<Applied, Error> {
        self.is_ended = true;
        if mode == ApplyMode::Discard {
            self.layer.is_done = true;
            return Ok(Applied::new(self.layer.id(), ApplyState::Discarded));
        }
        let baseline = std::mem::take(&mut self.baseline);
        let denied = seal(self.layer.directory.as_fd(), baseline).map_err(|error| self.layer.fail(error))?;
        self.layer.upper = rustix::fs::openat(&self.layer.directory, UPPER, DIRECTORY, Mode::empty())
            .map_err(|error| self.layer.fail(error))?;
        let mut applied = self.layer.end(mode, None, &self.rules)?;
        for (path, reason) in denied {
            applied.deny(&path, reason);
        }
        clear(self.layer.directory.as_fd());
        Ok(applied)
    }
}

/// Turns the copy of a killed process into a held layer; none if nothing changed.
pub(super) fn recover(mut held: HeldLayer) -> Option<HeldLayer> {
    let directory = held.directory.as_fd();
    if held.upper_is_empty() {
        // An unrecoverable copy stays, and the next command tries again.
        let baseline = load(directory).ok()?;
        seal(directory, baseline).ok()?;
    }
    if held.upper_is_empty() {
        held.discard();
        return None;
    }
    held.record.state = State::Held;
    held.save().ok()?;
    clear(held.directory.as_fd());
    Some(held)
}

/// Removes the copy and its list.
fn clear(directory: BorrowedFd<'_>) {
    if let Ok(copy) = rustix::fs::openat(directory, COPY, DIRECTORY, Mode::empty()) {
        temporary::empty(copy.as_fd());
    }
    let _ = rustix::fs::unlinkat(directory, COPY, AtFlags::REMOVEDIR);
    let _ = rustix::fs::unlinkat(directory, BASELINE, AtFlags::empty());
}

/// A directory that is being copied.
struct Open {
    /// Relative to the host directory.
    path: PathBuf,
    rest: std::vec::IntoIter<CString>,
    from: OwnedFd,
    to: OwnedFd,
    stat: Stat,
}

/// The state of a copy operation.
struct CopyState {
    /// The files of Toolpost, relative to the host directory. They are not copied.
    hidden: Vec<PathBuf>,
    is_root: bool,
    max_bytes: u64,
    max_entries: u64,
    bytes: u64,
    path_bytes: u64,
    baseline: Baseline,
}

impl CopyState {
    /// Copies a host directory into a layer. Returns the device and inode of the copy.
    fn copy(&mut self, host: BorrowedFd<'_>, layer: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
        // Check for whiteouts now: at the end it would be too late.
        rustix::fs::mkdirat(layer, NEXT, Mode::from_raw_mode(0o700))?;
        let probe = format!("{NEXT}/probe");
        whiteout(layer, OsStr::new(&probe))?;
        rustix::fs::unlinkat(layer, &*probe, AtFlags::empty())?;
        rustix::fs::mkdirat(layer, COPY, Mode::from_raw_mode(0o700))?;
        let to = rustix::fs::openat(layer, COPY, DIRECTORY, Mode::empty())?;
        let made = rustix::fs::fstat(&to)?;
        let from = open_beneath(host, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut open = vec![begin(PathBuf::new(), from, to, &mut buffer)?];
        loop {
            let depth = open.len();
            let Some(level) = open.last_mut() else { break };
            let Some(name) = level.rest.next() else {
                if let Some(level) = open.pop() {
                    self.settle(level.to.as_fd(), &level.stat)?;
                }
                continue;
            };
            if self.baseline.len() as u64 >= self.max_entries {
                return Err(too_large(&format!("{} entries", self.max_entries)));
            }
            let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
            self.path_bytes += path.as_os_str().len() as u64;
            if self.path_bytes > MAX_PATH_BYTES {
                return Err(too_large("256 MiB of paths"));
            }
            let copied = if self.hidden.contains(&path) {
                Ok((Copied::Skipped, None))
            } else {
                self.entry(level, &name)
            };
            match copied {
                Ok((copied, inner)) => {
                    if inner.is_some() && depth >= MAX_DEPTH {
                        return Err(io::Error::other(format!("directories nest deeper than {MAX_DEPTH}")));
                    }
                    self.baseline.insert(path.clone(), copied);
                    if let Some((from, to)) = inner {
                        open.push(begin(path, from, to, &mut buffer)?);
                    }
                }
                // It was deleted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok((made.st_dev, made.st_ino))
    }

    /// Copies an entry. A directory is only created; both sides are returned open.
    fn entry(&mut self, level: &Open, name: &CString) -> io::Result<(Copied, Option<(OwnedFd, OwnedFd)>)> {
        let (from, to) = (level.from.as_fd(), level.to.as_fd());
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let path = Path::new(OsStr::from_bytes(name.to_bytes()));
        let open = |flags: OFlags| open_beneath(from, path, flags, Mode::empty());
        let skips = |error: Errno| match error {
            // Unreadable, on another file system, or replaced by a link meanwhile.
            Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP => Ok((Copied::Skipped, None)),
            error => Err(error.into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let inner = match open(OFlags::RDONLY | OFlags::DIRECTORY) {
                    Ok(inner) => inner,
                    Err(error) => return skips(error),
                };
                rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700))?;
                let made = rustix::fs::openat(to, name, DIRECTORY, Mode::empty())?;
                Ok((Copied::Directory { mode: stat.st_mode & 0o777 }, Some((inner, made))))
            }
            FileType::RegularFile => match open(OFlags::RDONLY | OFlags::NONBLOCK) {
                Ok(source) => Ok((self.file(source, to, name)?, None)),
                Err(error) => skips(error),
            },
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&target, to, name)?;
                if self.is_root {
                    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
                    rustix::fs::chownat(to, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
                }
                rustix::fs::utimensat(to, name, &times(&stat), AtFlags::SYMLINK_NOFOLLOW)?;
                let made = rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW)?;
                Ok((Copied::entry(&made), None))
            }
            _ => Ok((Copied::Skipped, None)),
        }
    }

    fn file(&mut self, source: OwnedFd, to: BorrowedFd<'_>, name: &CString) -> io::Result<Copied> {
        let stat = rustix::fs::fstat(&source)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Copied::Skipped);
        }
        let size = stat.st_size.unsigned_abs();
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.max_bytes {
            return Err(too_large(&format!("{} MiB", self.max_bytes >> 20)));
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = rustix::fs::openat(to, name, flags, Mode::from_raw_mode(0o600))?;
        let mut target = std::fs::File::from(target);
        if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
            // A file that grows meanwhile is copied at its old size.
            io::copy(&mut io::Read::take(std::fs::File::from(source), size), &mut target)?;
        }
        self.settle(target.as_fd(), &stat)?;
        Ok(Copied::entry(&rustix::fs::fstat(&target)?))
    }

    /// Copies owner, mode and times from the host's entry.
    fn settle(&self, made: BorrowedFd<'_>, stat: &Stat) -> io::Result<()> {
        if self.is_root {
            rustix::fs::fchown(made, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
        }
        rustix::fs::fchmod(made, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        Ok(rustix::fs::futimens(made, &times(stat))?)
    }
}

fn too_large(limit: &str) -> io::Error {
    io::Error::other(format!(
        "it exceeds {limit}; omit `--review` and `--discard`, or choose a smaller directory"
    ))
}

fn begin(path: PathBuf, from: OwnedFd, to: OwnedFd, buffer: &mut Vec<u8>) -> io::Result<Open> {
    let stat = rustix::fs::fstat(&from)?;
    let rest = changes::names(&from, buffer).into_iter();
    Ok(Open { path, rest, from, to, stat })
}

pub(super) fn whiteout(directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0)
}

/// Writes the list of copied entries.
fn store(directory: BorrowedFd<'_>, baseline: &Baseline) -> io::Result<()> {
    let mut content = Vec::new();
    for (path, copied) in baseline {
        let numbers = match copied {
            Copied::Directory { mode } => format!("d {mode} "),
            Copied::Entry(inode, size, seconds, nanoseconds) => {
                format!("e {} {size} {seconds} {nanoseconds} ", inode.cast_signed())
            }
            Copied::Skipped => "s ".to_owned(),
        };
        content.extend_from_slice(numbers.as_bytes());
        content.extend_from_slice(path.as_os_str().as_bytes());
        // Paths contain no NUL.
        content.push(0);
    }
    held::replace(directory, BASELINE, &content)
}

/// Reads the list of copied entries.
fn load(directory: BorrowedFd<'_>) -> io::Result<Baseline> {
    /// The metadata of a path is shorter than all of the paths.
    const MAX_LIST: u64 = 2 * MAX_PATH_BYTES;
    let file = open_beneath(directory, Path::new(BASELINE), OFlags::RDONLY, Mode::empty())?;
    let mut content = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(std::fs::File::from(file), MAX_LIST), &mut content)?;
    let rows = content.split(|byte| *byte == 0).filter(|row| !row.is_empty());
    rows.map(|row| parse(row).ok_or_else(|| io::ErrorKind::InvalidData.into())).collect()
}

fn parse(row: &[u8]) -> Option<(PathBuf, Copied)> {
    let count = match row.first()? {
        b'd' => 2,
        b'e' => 5,
        _ => 1,
    };
    let mut parts = row.splitn(count + 1, |byte| *byte == b' ');
    let _kind = parts.next()?;
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<i64>().ok();
    let copied = match count {
        2 => Copied::Directory { mode: u32::try_from(number()?).ok()? },
        5 => Copied::Entry(number()?.cast_unsigned(), number()?, number()?, number()?),
        _ => Copied::Skipped,
    };
    Some((path_of(parts.next()?), copied))
}

/// Moves entries that differ from the baseline to `upper`. Returns those that cannot change.
///
/// If the process ends here, the next one continues.
fn seal(directory: BorrowedFd<'_>, mut baseline: Baseline) -> io::Result<Vec<(PathBuf, DenialReason)>> {
    let copy = rustix::fs::openat(directory, COPY, DIRECTORY, Mode::empty())?;
    let next = rustix::fs::openat(directory, NEXT, DIRECTORY, Mode::empty())?;
    let mut sealing = UpperBuilder { next: next.as_fd(), made: BTreeSet::new(), last: None };
    let mut denied = Vec::new();
    // Entries moved by an earlier process are no longer in the copy.
    for change in changes::list(next.as_fd()).list {
        if matches!(change.kind, Kind::Directory { .. }) {
            sealing.made.insert(change.path);
        } else {
            baseline.remove(&change.path);
        }
    }
    let now = changes::list(copy.as_fd());
    let mut blocked: Option<PathBuf> = None;
    for change in &now.list {
        let path = &change.path;
        if blocked.as_ref().is_some_and(|blocked| path.starts_with(blocked)) {
            continue;
        }
        let before = baseline.get(path).copied();
        let is_directory = matches!(change.kind, Kind::Directory { .. });
        if before == Some(Copied::Skipped) || !is_directory && has_skipped(&baseline, path) {
            denied.push((path.clone(), failed(io::Error::other("it was missing from the private copy"))));
            blocked = Some(path.clone());
            continue;
        }
        match change.kind {
            Kind::Directory { .. } => {
                if before != Some(Copied::Directory { mode: change.stat.st_mode & 0o777 }) {
                    sealing.directory(path)?;
                }
            }
            Kind::File | Kind::Link if before == Some(Copied::entry(&change.stat)) => {}
            Kind::File | Kind::Link => sealing.take(copy.as_fd(), path)?,
            Kind::Deleted | Kind::Special => denied.push((path.clone(), DenialReason::Special)),
        }
        baseline.remove(path);
    }
    match now.left_out {
        // An entry that could not be listed is not deleted.
        Some(reason) => {
            let message = format!("the list of changes is incomplete, without deletions: {reason}");
            denied.push(("…".into(), failed(io::Error::other(message))));
        }
        None => sealing.delete(&baseline)?,
    }
    sealing.set_modes(&now.list, &baseline)?;
    rustix::fs::renameat(directory, NEXT, directory, UPPER)?;
    Ok(denied)
}

/// Whether a path or a descendant was not copied.
fn has_skipped(baseline: &Baseline, path: &Path) -> bool {
    let at_or_beneath = baseline.range(path.to_owned()..).take_while(|(inner, _)| inner.starts_with(path));
    at_or_beneath.into_iter().any(|(_, copied)| *copied == Copied::Skipped)
}

/// Fills the future `upper`.
struct UpperBuilder<'a> {
    next: BorrowedFd<'a>,
    /// The created directories.
    made: BTreeSet<PathBuf>,
    /// The last opened directory.
    last: Option<(PathBuf, OwnedFd)>,
}

impl UpperBuilder<'_> {
    /// The parent directory of an entry, created if missing, and its name.
    fn place<'p>(&mut self, path: &'p Path) -> io::Result<(BorrowedFd<'_>, &'p OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let above = path.parent().unwrap_or(Path::new(""));
        if !matches!(&self.last, Some((known, _)) if known == above) {
            let mut here = super::launch::duplicate(self.next)?;
            let mut below = PathBuf::new();
            for part in above {
                match rustix::fs::mkdirat(&here, part, Mode::from_raw_mode(0o700)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                here = rustix::fs::openat(&here, part, DIRECTORY, Mode::empty())?;
                below.push(part);
                self.made.insert(below.clone());
            }
            self.last = Some((above.to_owned(), here));
        }
        match &self.last {
            Some((_, here)) => Ok((here.as_fd(), name)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let (here, name) = self.place(path)?;
        match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        self.made.insert(path.to_owned());
        Ok(())
    }

    /// Moves a file or link of the copy.
    fn take(&mut self, copy: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        let above = path.parent().filter(|above| *above != Path::new("")).unwrap_or(Path::new("."));
        let from = open_beneath(copy, above, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let (here, name) = self.place(path)?;
        Ok(rustix::fs::renameat(&from, name, here, name)?)
    }

    /// Records the rest of the baseline as deleted.
    fn delete(&mut self, baseline: &Baseline) -> io::Result<()> {
        let mut settled: Option<&Path> = None;
        for (path, copied) in baseline {
            if settled.is_some_and(|settled| path.starts_with(settled)) {
                continue;
            }
            match copied {
                Copied::Skipped => settled = Some(path),
                // The directory stays, for its entries that were not copied.
                Copied::Directory { .. } if has_skipped(baseline, path) => {}
                _ => {
                    settled = Some(path);
                    let placed = self.place(path).and_then(|(here, name)| Ok(whiteout(here, name)?));
                    match placed.map_err(|error| (error.kind(), error)) {
                        // A file replaced one of its parent directories.
                        Ok(()) | Err((io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists, _)) => {}
                        Err((_, error)) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
                        Err((_, error)) => return Err(error),
                    }
                }
            }
        }
        Ok(())
    }

    /// Sets the modes of the directories as in the copy, bottom-up.
    fn set_modes(&self, list: &[changes::Change], baseline: &Baseline) -> io::Result<()> {
        let in_copy: BTreeMap<&Path, u32> = list
            .iter()
            .filter(|change| self.made.contains(&change.path))
            .map(|change| (change.path.as_path(), change.stat.st_mode & 0o777))
            .collect();
        for path in self.made.iter().rev() {
            let mode = in_copy.get(path.as_path()).copied().or(match baseline.get(path) {
                Some(Copied::Directory { mode }) => Some(*mode),
                _ => None,
            });
            if let Some(mode) = mode {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let opened = open_beneath(self.next, path, flags, Mode::empty())?;
                rustix::fs::fchmod(&opened, Mode::from_raw_mode(mode))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HeldRun, Limits};
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    struct Bench {
        place: tempfile::TempDir,
        sandbox: Sandbox,
    }

    impl Bench {
        /// A host directory with an entry of each kind.
        fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            let sandbox = Sandbox::new().layers(place.path().join("layers")).apply(ApplyMode::Hold);
            let bench = Self { place, sandbox };
            for name in
                ["same", "changed", "gone", "a/in", "a/b/deep", "whole/x", "part/x", "to-dir", "to-file/x"]
            {
                fs::create_dir_all(bench.host(name).parent().unwrap()).unwrap();
                fs::write(bench.host(name), name).unwrap();
            }
            fs::set_permissions(bench.host("same"), fs::Permissions::from_mode(0o4755)).unwrap();
            fs::hard_link(bench.host("same"), bench.host("second")).unwrap();
            symlink("same", bench.host("link")).unwrap();
            std::os::unix::net::UnixListener::bind(bench.host("part/socket")).unwrap();
            bench
        }

        fn host(&self, name: &str) -> PathBuf {
            self.place.path().join("host").join(name)
        }

        fn copy(&self) -> StagedLayer {
            StagedLayer::create(&self.host(""), &self.sandbox).unwrap()
        }

        /// Whether all layers are removed.
        fn is_empty(&self) -> bool {
            let entries = fs::read_dir(self.place.path().join("layers")).into_iter().flatten().flatten();
            entries.filter(|entry| entry.path().is_dir()).count() == 0
        }

        fn held(&self) -> Vec<HeldRun> {
            HeldRun::all(self.sandbox.layers.as_deref())
                .into_iter()
                .filter(|run| run.directory() == self.host("").canonicalize().unwrap())
                .collect()
        }

        /// The content of the host directory by path.
        fn tree(&self) -> Vec<String> {
            let mut all = Vec::new();
            let mut open = vec![PathBuf::new()];
            while let Some(below) = open.pop() {
                for entry in fs::read_dir(self.host("").join(&below)).unwrap().flatten() {
                    let name = below.join(entry.file_name());
                    if entry.file_type().unwrap().is_dir() {
                        open.push(name.clone());
                        all.push(format!("{}/", name.display()));
                    } else {
                        let content = fs::read_to_string(entry.path()).unwrap_or_default();
                        all.push(format!("{}={content}", name.display()));
                    }
                }
            }
            all.sort();
            all
        }
    }

    fn work(copy: &Path) {
        fs::write(copy.join("changed"), "new content").unwrap();
        fs::remove_file(copy.join("gone")).unwrap();
        fs::create_dir_all(copy.join("new/below")).unwrap();
        fs::write(copy.join("new/below/file"), "made").unwrap();
        fs::remove_dir_all(copy.join("whole")).unwrap();
        fs::remove_dir_all(copy.join("part")).unwrap();
        fs::remove_file(copy.join("to-dir")).unwrap();
        fs::create_dir(copy.join("to-dir")).unwrap();
        fs::write(copy.join("to-dir/y"), "y").unwrap();
        fs::remove_dir_all(copy.join("to-file")).unwrap();
        fs::write(copy.join("to-file"), "file").unwrap();
        fs::rename(copy.join("a/b"), copy.join("moved")).unwrap();
    }

    const WORKED: [&str; 16] = [
        "a/",
        "a/in=a/in",
        "changed=new content",
        "link=same",
        "moved/",
        "moved/deep=a/b/deep",
        "new/",
        "new/below/",
        "new/below/file=made",
        "part/",
        "part/socket=",
        "same=same",
        "second=same",
        "to-dir/",
        "to-dir/y=y",
        "to-file=file",
    ];

    #[test]
    fn the_copy_is_like_its_original_and_leaves_out_sockets() {
        let bench = Bench::new();
        let copy = bench.copy();
        for name in ["same", "second", "a", "a/b/deep", "link"] {
            let [was, is] =
                [bench.host(name), copy.path().join(name)].map(|path| fs::symlink_metadata(path).unwrap());
            assert_eq!((is.mtime(), is.mtime_nsec()), (was.mtime(), was.mtime_nsec()), "{name}");
            assert_eq!(is.mode() & 0o777, was.mode() & 0o777, "{name}");
            assert_eq!(
                (is.uid(), is.gid(), is.file_type()),
                (was.uid(), was.gid(), was.file_type()),
                "{name}"
            );
        }
        assert_eq!(fs::symlink_metadata(copy.path().join("same")).unwrap().mode() & 0o7000, 0);
        assert_eq!(fs::read_to_string(copy.path().join("link")).unwrap(), "same");
        assert_eq!(copy.not_copied().collect::<Vec<_>>(), [Path::new("part/socket")]);
        let outer = fs::symlink_metadata(copy.path().parent().unwrap()).unwrap();
        assert_eq!(outer.mode() & 0o777, 0o700);
        // Nothing changed, so no layer remains.
        let ended = copy.end().unwrap();
        assert_eq!((ended.state, ended.changed), (ApplyState::Applied, 0));
        assert!(bench.held().is_empty());
        assert!(bench.is_empty());
    }

    #[test]
    fn changes_are_held_applied_and_taken_back() {
        let bench = Bench::new();
        let before = bench.tree();
        let copy = bench.copy();
        work(copy.path());
        let ended = copy.end().unwrap();
        assert_eq!((ended.state, ended.denied_count), (ApplyState::Held, 0), "{ended:?}");
        assert_eq!(bench.tree(), before);
        let held = bench.held().pop().unwrap();
        assert_eq!(held.id(), ended.id);
        let applied = held.apply(&[]).unwrap();
        assert_eq!(applied.denied, [], "{applied:?}");
        assert_eq!(bench.tree(), WORKED);
        bench.held().pop().unwrap().undo().unwrap();
        assert_eq!(bench.tree(), before);
    }

    #[test]
    fn changes_can_be_applied_at_once_or_discarded() {
        let mut bench = Bench::new();
        let before = bench.tree();
        bench.sandbox = bench.sandbox.apply(ApplyMode::Discard);
        let copy = bench.copy();
        work(copy.path());
        assert_eq!(copy.end().unwrap().state, ApplyState::Discarded);
        assert_eq!(bench.tree(), before);
        assert!(bench.held().is_empty());
        bench.sandbox = bench.sandbox.apply(ApplyMode::Now);
        let copy = bench.copy();
        work(copy.path());
        assert_eq!(copy.end().unwrap().state, ApplyState::Applied);
        assert_eq!(bench.tree(), WORKED);
    }

    #[test]
    fn what_the_host_changed_meanwhile_is_a_conflict_and_the_rest_is_applied() {
        let bench = Bench::new();
        let copy = bench.copy();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(bench.host("changed"), "of the host").unwrap();
        fs::write(bench.host("same"), "of the host").unwrap();
        fs::write(bench.host("whole/later"), "of the host").unwrap();
        fs::remove_file(bench.host("a/in")).unwrap();
        work(copy.path());
        copy.end().unwrap();
        let applied = bench.held().pop().unwrap().apply(&[]).unwrap();
        let denied: Vec<_> =
            applied.denied.iter().map(|denied| (denied.path.to_str().unwrap(), &denied.reason)).collect();
        assert_eq!(denied, [("changed", &DenialReason::Conflict), ("whole/later", &DenialReason::Conflict)]);
        for (name, content) in [
            ("changed", "of the host"),
            ("same", "of the host"),
            ("whole/later", "of the host"),
            ("new/below/file", "made"),
        ] {
            assert_eq!(fs::read_to_string(bench.host(name)).unwrap(), content);
        }
        assert!(!bench.host("a/in").exists() && !bench.host("gone").exists());
    }

    #[test]
    fn what_was_not_copied_never_changes() {
        let bench = Bench::new();
        let copy = bench.copy();
        fs::write(copy.path().join("part/socket"), "a file").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, copy.path().join("pipe"), FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        fs::write(copy.path().join("new"), "new").unwrap();
        let ended = copy.end().unwrap();
        let denied: Vec<_> = ended.denied.iter().map(|denied| denied.path.to_str().unwrap()).collect();
        assert_eq!(denied, ["part/socket", "pipe"]);
        let before = bench.tree().len();
        bench.held().pop().unwrap().apply(&[]).unwrap();
        assert_eq!(bench.tree().len(), before + 1);
    }

    #[test]
    fn the_copy_of_a_killed_process_is_held_and_one_without_changes_goes_away() {
        for (moves, changes) in [(false, true), (true, true), (false, false)] {
            let bench = Bench::new();
            let mut copy = bench.copy();
            if changes {
                work(copy.path());
            }
            if moves {
                // Simulates a kill while the changes are collected.
                let layer = copy.path().parent().unwrap().join(NEXT);
                fs::create_dir_all(layer.join("new/below")).unwrap();
                fs::rename(copy.path().join("new/below/file"), layer.join("new/below/file")).unwrap();
                fs::rename(copy.path().join("changed"), layer.join("changed")).unwrap();
            }
            copy.is_ended = true;
            drop(copy);
            let mut held = bench.held();
            assert_eq!(held.len(), usize::from(changes));
            match held.pop() {
                Some(held) => {
                    assert_eq!(held.apply(&[]).unwrap().denied, []);
                    assert_eq!(bench.tree(), WORKED);
                }
                None => assert!(bench.is_empty()),
            }
        }
        // Also for an end that fails or panics.
        let bench = Bench::new();
        let copy = bench.copy();
        work(copy.path());
        drop(copy);
        assert!(bench.held().pop().unwrap().is_waiting());
        // A copy whose changes would be discarded.
        let mut bench = Bench::new();
        bench.sandbox = bench.sandbox.apply(ApplyMode::Discard);
        let mut copy = bench.copy();
        work(copy.path());
        copy.is_ended = true;
        drop(copy);
        assert!(bench.held().is_empty());
        assert!(bench.is_empty());
    }

    #[test]
    fn a_directory_that_is_too_large_is_not_copied() {
        for (limits, limit) in [
            (Limits::default().with_layer_bytes(20), "0 MiB"),
            (Limits::default().with_layer_inodes(5), "5 entries"),
        ] {
            let bench = Bench::new();
            let error =
                StagedLayer::create(&bench.host(""), &bench.sandbox.clone().limits(limits)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(limit) && text.contains("omit `--review`"), "{text}");
            assert!(bench.is_empty());
        }
    }

    #[test]
    fn directories_without_rights_come_back_with_their_mode() {
        let bench = Bench::new();
        let copy = bench.copy();
        fs::write(copy.path().join("a/new"), "x").unwrap();
        fs::set_permissions(copy.path().join("a"), fs::Permissions::from_mode(0o500)).unwrap();
        copy.end().unwrap();
        bench.held().pop().unwrap().apply(&[]).unwrap();
        assert_eq!(fs::metadata(bench.host("a")).unwrap().mode() & 0o777, 0o500);
        assert_eq!(fs::read_to_string(bench.host("a/new")).unwrap(), "x");
        fs::set_permissions(bench.host("a"), fs::Permissions::from_mode(0o700)).unwrap();
    }
}
