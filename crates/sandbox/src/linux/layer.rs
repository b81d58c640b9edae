//! The private layer over a host directory: it holds a program's writes until apply moves them.
//!
//! A layer is an overlay: the host directory below, read-only, and the layer's own directory above, which
//! takes all writes. It is on disk, if possible on the file system of the host directory, so that apply moves
//! files instead of copying them. Its directory is locked while a run uses it. An unlocked layer belongs to a
//! killed run, and can be applied or discarded later.
//!
//! Where no overlay is possible, a private copy of the host directory takes the writes. At its end the layer gets
//! the entries that differ.

mod apply;
mod baseline;
mod changes;
mod commits;
mod copy_place;
mod deletion;
mod entries;
mod held;
mod ignored;
mod live;
mod mass_deletion;
mod private_copy;
mod record_key;
mod reviewed;
mod run_mark;
mod seal;
mod staged;
mod unapplied;
mod undo;
mod view;

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::child_steps::{Step, attribute};
use super::files::{Entry, Listing, MAX_ENTRIES, Owner};
use super::launch::{self, c_string};
use super::lock::Locked;
use super::root::escape;
use super::temporary;

pub(super) use self::apply::name_of;
use self::changes::Kind;
pub(super) use self::changes::names;
use self::copy_place::CopyPlace;
pub(super) use self::copy_place::is_passable;
pub(crate) use self::held::{HeldLayer, all, all_unproven, find};
use self::held::{Record, State};
pub(crate) use self::live::LiveDirectory;
pub(super) use self::live::LiveLayer;
pub(super) use self::private_copy::{PrivateCopy, original, original_of};
use self::record_key::RecordKey;
pub(crate) use self::run_mark::{OldVersion, RunMark};
pub(crate) use self::staged::StagedLayer;
pub(crate) use self::undo::Restored;
use crate::repeat::MAX_REPEATED;
use crate::{Changes, DirectoryRules, Error, ProtectedPath, RunChanges, Sandbox};

/// The maximum number of attempts to create the directory for layers.
const MAX_ATTEMPTS: u32 = 8;
/// The directory of the program's writes.
const UPPER: &str = "upper";
/// The work directory of the overlay.
const WORK: &str = "work";
/// The mount point of the host directory, below the overlay.
const LOWER: &str = "lower";
/// The mount point of the overlay, before it is in the program's root.
const MERGED: &str = "merged";
/// The old versions of entries that apply replaced or deleted.
const OLD: &str = "old";

/// A file system time: seconds and nanoseconds.
type Instant = (i64, i64);

/// The changes of a program in its layer.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) changes: Changes,
    /// The files and links of the layer.
    pub(super) after: Listing,
}

/// A layer in use by this process.
#[derive(Debug)]
pub(super) struct Overlay {
    /// Its directory.
    path: PathBuf,
    /// A variant, open and locked.
    directory: Locked,
    upper: OwnedFd,
    record: Record,
    key: RecordKey,
    /// The host directory.
    host: OwnedFd,
    /// Whether dropping this value removes the layer.
    is_done: bool,
    /// The lock of a run that has the host directory alone.
    turn: Option<Locked>,
    /// Whether a conflict drops the changes, and the run is repeated.
    may_postpone: bool,
    /// The start of the run.
    started: std::time::Instant,
    /// The run that lists the changes.
    changes: Option<RunChanges>,
}

/// The directory for records of this user: the first one for layers that can be created.
pub(super) fn records(chosen: Option<&Path>) -> io::Result<PathBuf> {
    let mut failure = io::Error::from(io::ErrorKind::NotFound);
    for candidate in parents(chosen) {
        match own_directory(&candidate) {
            Ok(directory) => return Ok(directory),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// The type of overlay file systems, which the kernel does not stack a layer on (`OVERLAYFS_SUPER_MAGIC`).
const OVERLAY: rustix::fs::FsWord = 0x794c_7630;
/// The type of file systems in memory (`TMPFS_MAGIC`).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// The kind of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerKind {
    /// The program writes to an overlay.
    Overlay,
    /// The program writes to a private copy.
    Copy,
}

/// Whether overlays are possible in the directory for the layers of a host directory.
///
/// # Errors
/// The reason.
pub(super) fn check_overlays(host: &Path, device: u64, chosen: Option<&Path>) -> io::Result<()> {
    let parent = parent(host, device, chosen, LayerKind::Overlay)?;
    if rustix::fs::statfs(&parent)?.f_type == OVERLAY {
        let place = parent.display();
        return Err(io::Error::other(format!("{place} is on an overlay file system; put it on a volume")));
    }
    Ok(())
}

impl Overlay {
    /// Creates a layer for a host directory. `owner` is the program's user, if it differs.
    pub(super) fn create(
        host: BorrowedFd<'_>,
        path: &Path,
        stat: &Stat,
        chosen: Option<&Path>,
        owner: Option<Owner>,
    ) -> io::Result<Self> {
        check_overlays(path, stat.st_dev, chosen)?;
        Self::create_kind(host, path, stat, chosen, owner, LayerKind::Overlay)
    }

    /// Creates the layer of a private copy, which needs no overlay.
    fn of_copy(host: BorrowedFd<'_>, path: &Path, stat: &Stat, chosen: Option<&Path>) -> io::Result<Self> {
        Self::create_kind(host, path, stat, chosen, None, LayerKind::Copy)
    }

    fn create_kind(
        host: BorrowedFd<'_>,
        path: &Path,
        stat: &Stat,
        chosen: Option<&Path>,
        owner: Option<Owner>,
        kind: LayerKind,
    ) -> io::Result<Self> {
        let id = fresh_id()?;
        let mut attempts = 0;
        let (place, key) = loop {
            let parent = parent(path, stat.st_dev, chosen, kind)?;
            let place = parent.join(held::name(stat.st_dev, stat.st_ino, &id));
            let key = match RecordKey::open(&parent) {
                Ok(key) => key,
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < MAX_ATTEMPTS => {
                    attempts += 1;
                    continue;
                }
                Err(error) => return Err(error),
            };
            match rustix::fs::mkdir(&place, Mode::from_raw_mode(0o700)) {
                Ok(()) => break (place, key),
                // Another process removed the directory with its last layer.
                Err(Errno::NOENT) if attempts < MAX_ATTEMPTS => attempts += 1,
                Err(error) => return Err(error.into()),
            }
        };
        // A search of another process may lock it for a moment.
        let directory = Locked::within(open_directory(&place)?, held::LOCKED_FOR)?;
        let make = |name: &str, mode: u32| rustix::fs::mkdirat(&directory, name, Mode::from_raw_mode(mode));
        for name in [WORK, LOWER, MERGED] {
            make(name, 0o700)?;
        }
        make(UPPER, 0o700)?;
        let upper = rustix::fs::openat(&directory, UPPER, DIRECTORY, Mode::empty())?;
        if let Some(owner) = owner {
            let (user, group) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
            rustix::fs::fchown(&upper, Some(user), Some(group))?;
        }
        // The program's root gets the mode of this directory.
        rustix::fs::fchmod(&upper, Mode::from_raw_mode(stat.st_mode & 0o777))?;
        let begun = rustix::fs::fstat(&upper)?;
        let record = Record {
            id,
            directory: path.as_os_str().as_bytes().to_vec(),
            device: stat.st_dev,
            inode: stat.st_ino,
            since: (begun.st_ctime, begun.st_ctime_nsec as i64),
            state: State::Running,
            of_copy: original(stat).is_some(),
            ..Record::default()
        };
        record.save(directory.as_fd(), &key)?;
        Ok(Self {
            path: place,
            directory,
            upper,
            record,
            key,
            host: launch::duplicate(host)?,
            is_done: false,
            turn: None,
            may_postpone: false,
            started: std::time::Instant::now(),
            changes: None,
        })
    }

    /// Lists the changes with those of the sandbox's run, and waits if the program has the directory alone.
    pub(super) fn begin_run(&mut self, sandbox: &Sandbox) -> io::Result<()> {
        if let Some(changes) = &sandbox.changes {
            changes.mark()?;
            self.record.run = Some(changes.id().to_owned());
            self.changes = Some(changes.clone());
            self.save()?;
        }
        if sandbox.is_alone {
            self.take_turn().map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Waits for the applies of other runs, and prevents more of them until the end of this run.
    fn take_turn(&mut self) -> Result<(), Error> {
        self.turn = apply::lock(self.host.as_fd()).map_err(|error| self.fail(error))?;
        self.begin_again()
    }

    /// Drops all changes at the end of a short run if one of them conflicts ([`crate::Repeat`]).
    pub(super) fn postpone_on_conflict(&mut self) {
        self.may_postpone = self.started.elapsed() <= MAX_REPEATED;
    }

    /// The rules of the host directory. A private copy has those of its original.
    pub(super) fn rules(&self, sandbox: &Sandbox) -> DirectoryRules {
        let directory = path_of(&self.record.directory);
        let original = rustix::fs::fstat(&self.host).ok().and_then(|stat| original(&stat));
        let original = original.unwrap_or_else(|| directory.clone());
        let protected =
            sandbox.protected.iter().map(|protected| match protected.path().strip_prefix(&directory) {
                Ok(below) => protected.at(original.join(below)),
                Err(_) => protected.clone(),
            });
        DirectoryRules::of_host(
            &original,
            protected.chain(own_paths(sandbox)),
            sandbox.allowed.iter().cloned(),
        )
    }

    /// The rules of the host directory for the present changes. Without changes nothing of the host is read.
    pub(super) fn rules_of_changes(&self, sandbox: &Sandbox) -> DirectoryRules {
        if changes::is_empty(self.upper()) { DirectoryRules::default() } else { self.rules(sandbox) }
    }

    /// The directory of the program's writes.
    pub(super) fn upper(&self) -> BorrowedFd<'_> {
        self.upper.as_fd()
    }

    /// The host directory.
    pub(super) fn host(&self) -> BorrowedFd<'_> {
        self.host.as_fd()
    }

    /// The changes of the program, for its outcome.
    pub(super) fn listed(&self) -> Listed {
        let all = changes::list(self.upper());
        let mut listed = Listed::default();
        listed.after.left_out = all.left_out;
        for change in all.list {
            if listed.after.files.len() >= MAX_ENTRIES {
                listed.after.left_out = Some("there are more than 20,000 files and directories");
                break;
            }
            if matches!(change.kind, Kind::Directory { .. }) {
                continue;
            }
            let is_there = view::stat_of(self.host.as_fd(), &change.path).is_ok_and(|found| found.is_some());
            match (change.kind, is_there) {
                (Kind::Deleted, false) => continue,
                (Kind::Deleted, true) => {
                    listed.changes.deleted.push(change.path);
                    continue;
                }
                (_, true) => listed.changes.changed.push(change.path.clone()),
                (_, false) => listed.changes.new.push(change.path.clone()),
            }
            listed.after.files.insert(change.path, Entry::from_stat(&change.stat));
        }
        listed
    }

    fn save(&self) -> io::Result<()> {
        self.record.save(self.directory.as_fd(), &self.key)
    }

    /// Records that the program sees the host directory from now on.
    fn begin_again(&mut self) -> Result<(), Error> {
        // The changes of a copy are in its list.
        if self.record.state != State::Staged {
            self.record.state = State::Running;
        }
        self.save().map_err(|error| self.fail(error))?;
        let stat = rustix::fs::statat(&self.directory, held::RECORD, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| self.fail(std::io::Error::from(error)))?;
        self.record.since = (stat.st_ctime, stat.st_ctime_nsec as i64);
        Ok(())
    }

    /// The id for commands.
    pub(super) fn id(&self) -> &str {
        &self.record.id
    }

    /// The steps that mount the host directory with the layer over it; returns the mount point.
    ///
    /// `source` is the host directory's path in the layer, `within` the path of the host's files for the
    /// process that performs the steps.
    pub(super) fn mount(
        &self,
        tree: Option<OwnedFd>,
        host: &Path,
        as_root: bool,
        within: &dyn Fn(&Path) -> CString,
        steps: &mut Vec<Step>,
    ) -> CString {
        let at = |name: &str| within(&self.path.join(name));
        let lower = at(LOWER);
        match tree {
            Some(tree) => steps.push(Step::Attach { tree, target: lower.clone() }),
            None => steps.push(Step::Bind {
                source: within(host),
                target: lower.clone(),
                attributes: attribute::READ_ONLY | attribute::NO_SETUID | attribute::NO_DEVICES,
            }),
        }
        steps.push(Step::Verify {
            path: lower.clone(),
            device: self.record.device,
            inode: self.record.inode,
        });
        let mut options = Vec::new();
        for (name, path) in [("lowerdir", &lower), ("upperdir", &at(UPPER)), ("workdir", &at(WORK))] {
            options.extend_from_slice(name.as_bytes());
            options.push(b'=');
            options.extend_from_slice(&escape(Path::new(OsStr::from_bytes(path.as_bytes()))));
            options.push(b',');
        }
        // Renaming a host directory fails with `EXDEV`, upon which programs copy. Overlay attributes that
        // others wrote into the host directory are ignored.
        options.extend_from_slice(b"redirect_dir=nofollow,metacopy=off,index=off,xino=off");
        if !as_root {
            options.extend_from_slice(b",userxattr");
        }
        let merged = at(MERGED);
        steps.push(Step::Mount {
            kind: c"overlay",
            target: merged.clone(),
            options: c_string(options),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        });
        merged
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if self.is_done || self.record.state == State::Running && changes::is_empty(self.upper()) {
            remove(&self.path, self.directory.as_fd(), &self.record);
        }
    }
}

/// Flags for opening the parts of a layer.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, DIRECTORY, Mode::empty())
}

/// Removes a layer with its content and its copy. The directory above stays with its key.
fn remove(path: &Path, directory: BorrowedFd<'_>, record: &Record) {
    CopyPlace::remove(directory, record.copy.as_ref());
    // Killed meanwhile, this process leaves no record of changes that are gone.
    let _ = rustix::fs::unlinkat(directory, held::RECORD, AtFlags::empty());
    temporary::empty(directory);
    let _ = std::fs::remove_dir(path);
}

/// A new unique id: eight hexadecimal digits.
fn fresh_id() -> io::Result<String> {
    let mut random = [0u8; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:08x}", u32::from_ne_bytes(random)))
}

/// The candidate directories for layers, the best first.
fn parents(chosen: Option<&Path>) -> Vec<PathBuf> {
    let name = format!("toolpost-layers-{}", rustix::process::geteuid().as_raw());
    let mut all: Vec<PathBuf> = chosen.map(Path::to_owned).into_iter().collect();
    for parent in [std::env::temp_dir(), PathBuf::from("/var/tmp")] {
        let place = parent.join(&name);
        if !all.contains(&place) {
            all.push(place);
        }
    }
    all
}

/// Creates the missing directories for layers beneath a directory that code writes to, with their keys: code could
/// create both.
pub(super) fn create_record_keys(directory: &Path, sandbox: &Sandbox) -> io::Result<()> {
    for own in own_paths(sandbox).filter(|own| own.path().starts_with(directory)) {
        RecordKey::open(&own_directory(own.path())?)?;
    }
    Ok(())
}

/// The directories for layers, with the keys of their records.
pub(super) fn own_paths(sandbox: &Sandbox) -> impl Iterator<Item = ProtectedPath> {
    let chosen = sandbox.layers.as_deref();
    let real = |path: PathBuf| {
        let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
        parent.zip(path.file_name()).map(|(parent, name)| parent.join(name)).unwrap_or(path)
    };
    parents(chosen).into_iter().map(real).map(ProtectedPath::Own)
}

/// Finds the directory for the layer of a host directory: on the same file system, else on another disk. A copy can
/// also be in a container's own file system, and at worst in memory.
fn parent(host: &Path, device: u64, chosen: Option<&Path>, kind: LayerKind) -> io::Result<PathBuf> {
    let (mut second, mut last) = (None, None);
    let mut failure = None;
    for candidate in parents(chosen) {
        let candidate = match own_directory(&candidate) {
            Ok(candidate) => candidate,
            Err(error) => {
                failure = Some(error);
                continue;
            }
        };
        // A layer must not be inside the directory that it covers.
        if candidate.starts_with(host) {
            continue;
        }
        if rustix::fs::stat(&candidate).is_ok_and(|stat| stat.st_dev == device) {
            return Ok(candidate);
        }
        let is_copy = kind == LayerKind::Copy;
        if second.is_none() && (carries_a_layer(&candidate) || is_copy && !is_in_memory(&candidate)) {
            second = Some(candidate);
        } else if is_copy {
            last.get_or_insert(candidate);
        }
    }
    second.or(last).ok_or_else(|| {
        failure.unwrap_or_else(|| io::Error::other("no directory on disk supports its private layer"))
    })
}

/// Whether the file system is on disk.
///
/// One in memory would use the host's memory, and an overlay cannot be the upper layer of another.
fn carries_a_layer(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|kind| ![TMPFS, OVERLAY].contains(&kind.f_type))
}

/// Whether the file system of a path is in memory.
fn is_in_memory(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|kind| kind.f_type == TMPFS)
}

/// Opens a directory of this user alone, and creates it if missing.
fn own_directory(path: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    match std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if !is_own(path) {
        return Err(io::Error::other(format!("`{}` belongs to another user", path.display())));
    }
    path.canonicalize()
}

/// Whether a directory belongs to this user and is writable for no other. Layers are read only from such
/// directories, because their records are trusted.
fn is_own(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
        is_own && found.mode() & 0o022 == 0
    })
}

/// The path in a record's bytes.
fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes.to_vec()))
}
