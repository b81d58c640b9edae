//! A private copy of a host directory with its layer.
//!
//! Programs and tools work in the copy. At the end its changes become the layer's `upper`, and the layer is like any
//! other: applied, held or discarded. The layer lists the copied entries, so that the copy of a killed process is
//! recovered as a held layer.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::super::files::{Owner, open_beneath};
use super::super::workspace::OpenedDirectory;
use super::baseline::{self, Baseline, Copied, MAX_PATH_BYTES};
use super::changes;
use super::copy_place::CopyPlace;
use super::held::State;
use super::seal::{self, Denials, NEXT};
use super::view::times;
use super::{DIRECTORY, Overlay, UPPER, own_paths};
use crate::{ApplyMode, Error, Level, Sandbox, SandboxHint};

/// The maximum depth of copied directories.
const MAX_DEPTH: usize = 256;

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

/// Lists a copy in [`COPIES`] as long as it lives.
#[derive(Debug)]
pub(super) struct Registration((u64, u64));

impl Drop for Registration {
    fn drop(&mut self) {
        copies().remove(&self.0);
    }
}

/// A private copy in use by this process. If it is dropped, the next command holds its changes.
#[derive(Debug)]
pub(in super::super) struct PrivateCopy {
    pub(super) layer: Overlay,
    pub(super) place: CopyPlace,
    pub(super) baseline: Baseline,
    pub(super) registration: Registration,
}

impl PrivateCopy {
    /// Copies a host directory. `program` is the user who works in the copy, if it is another one than this process.
    ///
    /// `hint` is the alternative to a copy that is too large.
    pub(in super::super) fn create(
        path: &Path,
        sandbox: &Sandbox,
        program: Option<Owner>,
        hint: &SandboxHint,
        notes: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let directory = OpenedDirectory::open_shared(path)?;
        let fail = |error: io::Error| {
            let is_too_large = matches!(error.get_ref(), Some(inner) if inner.is::<TooLarge>());
            let path = path.to_owned();
            if is_too_large {
                return Error::CopyTooLarge { path, reason: error.to_string(), hint: hint.clone() };
            }
            Error::Workspace { path, reason: format!("creating the private copy failed: {error}") }
        };
        let chosen = sandbox.layers.as_deref();
        let stat = rustix::fs::fstat(directory.descriptor()).map_err(|error| fail(error.into()))?;
        let mut layer =
            Overlay::of_copy(directory.descriptor(), directory.path(), &stat, chosen).map_err(fail)?;
        layer.attend_to_others(chosen, notes);
        // The copy sees the host as of now: changes that were just recovered are not a conflict.
        layer.begin_again()?;
        layer.begin_run(sandbox).map_err(fail)?;
        rustix::fs::mkdirat(&layer.directory, NEXT, Mode::from_raw_mode(0o700))
            .map_err(|error| fail(error.into()))?;
        let place = match program {
            None => CopyPlace::within(layer.directory.as_fd(), &layer.path),
            Some(_) => CopyPlace::apart(directory.path()),
        };
        let place = place.map_err(fail)?;
        if place.apart.is_some() {
            // A killed process leaves a directory that the next one finds.
            layer.record.copy.clone_from(&place.apart);
            layer.save().map_err(fail)?;
        }
        let limits = sandbox.limits_at(Level::Standard);
        let hidden =
            own_paths(sandbox).chain(sandbox.protected.iter().filter(|path| path.is_hidden()).cloned());
        let hidden =
            hidden.filter_map(|own| own.path().strip_prefix(directory.path()).map(Path::to_owned).ok());
        let is_root = rustix::process::geteuid().is_root();
        let mut copying = CopyState {
            hidden: hidden.collect(),
            owners: is_root.then(|| Owners { host: directory.owner(), program }),
            max_bytes: limits.layer_bytes,
            max_entries: limits.layer_inodes,
            bytes: 0,
            path_bytes: 0,
            baseline: Baseline::new(),
        };
        let to = super::launch::duplicate(place.directory.as_fd()).map_err(fail)?;
        copying.copy(layer.host(), to).map_err(fail)?;
        if place.apart.is_some() {
            // Others could reach it.
            rustix::fs::fchmod(&place.directory, Mode::from_raw_mode(0o700))
                .map_err(|error| fail(error.into()))?;
        }
        let baseline = copying.baseline;
        let rules = layer.rules(sandbox);
        layer.admit(&rules);
        if sandbox.apply != ApplyMode::Discard {
            baseline::store(layer.directory.as_fd(), &baseline).map_err(fail)?;
            layer.record.state = State::Staged;
        }
        layer.save().map_err(fail)?;
        let made = rustix::fs::fstat(&place.directory).map_err(|error| fail(error.into()))?;
        let key = (made.st_dev, made.st_ino);
        copies().insert(key, directory.path().to_owned());
        Ok(Self { layer, place, baseline, registration: Registration(key) })
    }

    /// The copy's path.
    pub(in super::super) fn path(&self) -> &Path {
        &self.place.path
    }

    /// The open copy.
    pub(in super::super) fn directory(&self) -> BorrowedFd<'_> {
        self.place.directory.as_fd()
    }

    /// Removes the copy of a program that did not start.
    pub(in super::super) fn discard(mut self) {
        self.layer.is_done = true;
    }

    /// Turns the changes into those of a layer. Returns those that cannot change, too. No program may still run in it.
    pub(in super::super) fn seal(self) -> Result<(Overlay, Denials), Error> {
        let Self { mut layer, place, baseline, registration: _registration } = self;
        let denied = layer.seal(&place, baseline)?;
        Ok((layer, denied))
    }
}

impl Overlay {
    /// Moves the changes of its copy to `upper`, and removes the copy.
    pub(super) fn seal(&mut self, place: &CopyPlace, baseline: Baseline) -> Result<Denials, Error> {
        let directory = self.directory.as_fd();
        let denied =
            seal::seal(directory, place.directory.as_fd(), baseline).map_err(|error| self.fail(error))?;
        self.upper = rustix::fs::openat(&self.directory, UPPER, DIRECTORY, Mode::empty())
            .map_err(|error| self.fail(error))?;
        // If this process ends here, the changes are held.
        self.record.state = State::Held;
        self.save().map_err(|error| self.fail(error))?;
        clear(&mut self.record, self.directory.as_fd());
        Ok(denied)
    }
}

/// Removes the copy and its list.
pub(super) fn clear(record: &mut super::Record, directory: BorrowedFd<'_>) {
    CopyPlace::remove(directory, record.copy.as_ref());
    record.copy = None;
    let _ = rustix::fs::unlinkat(directory, baseline::BASELINE, AtFlags::empty());
}

/// The owners of the entries of a copy.
struct Owners {
    /// The owner of the host directory.
    host: Owner,
    /// Who gets the entries of that owner.
    program: Option<Owner>,
}

impl Owners {
    /// The entries of others stay theirs, as in a mount with mapped identities.
    fn owner(&self, stat: &Stat) -> (Uid, Gid) {
        let (mut user, mut group) = (stat.st_uid, stat.st_gid);
        if let Some(program) = &self.program {
            if user == self.host.user {
                user = program.user;
            }
            if group == self.host.group {
                group = program.group;
            }
        }
        (Uid::from_raw(user), Gid::from_raw(group))
    }
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
    /// The owner of each entry, if this process is root.
    owners: Option<Owners>,
    max_bytes: u64,
    max_entries: u64,
    bytes: u64,
    path_bytes: u64,
    baseline: Baseline,
}

impl CopyState {
    /// Copies a host directory.
    fn copy(&mut self, host: BorrowedFd<'_>, to: OwnedFd) -> io::Result<()> {
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
                return Err(too_large(format!("{} entries", self.max_entries)));
            }
            let path = level.path.join(OsStr::from_bytes(name.to_bytes()));
            self.path_bytes += path.as_os_str().len() as u64;
            if self.path_bytes > MAX_PATH_BYTES {
                return Err(too_large("256 MiB of paths".to_owned()));
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
        Ok(())
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
                if let Some(owners) = &self.owners {
                    let (user, group) = owners.owner(&stat);
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
            return Err(too_large(format!("{} MiB", self.max_bytes >> 20)));
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
        if let Some(owners) = &self.owners {
            let (user, group) = owners.owner(stat);
            rustix::fs::fchown(made, Some(user), Some(group))?;
        }
        rustix::fs::fchmod(made, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        Ok(rustix::fs::futimens(made, &times(stat))?)
    }
}

/// The copy would exceed a limit.
#[derive(Debug, thiserror::Error)]
#[error("it exceeds {0}")]
struct TooLarge(String);

fn too_large(limit: String) -> io::Error {
    io::Error::other(TooLarge(limit))
}

fn begin(path: PathBuf, from: OwnedFd, to: OwnedFd, buffer: &mut Vec<u8>) -> io::Result<Open> {
    let stat = rustix::fs::fstat(&from)?;
    let rest = changes::names(&from, buffer).into_iter();
    Ok(Open { path, rest, from, to, stat })
}
