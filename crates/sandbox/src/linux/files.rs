//! Transfers files between host and workspace.
//!
//! Every path is opened beneath an open directory without following links, because the program may have put
//! anything there.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use super::kernel::FileUser;
use super::layer::Overlay;
use super::temporary::TemporaryDirectory;
use crate::outcome::Content;
use crate::sandbox::check_file_name;
use crate::{Changes, Error, Limits, Reached, Report, SandboxArtifact, Source};

/// The maximum number of listed entries.
pub(super) const MAX_ENTRIES: usize = 20_000;
/// The maximum depth of listed directories.
const MAX_DEPTH: usize = 48;

/// Beneath the directory, without links and other file systems.
fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV
}

/// Opens a path beneath a directory.
pub(super) fn open_beneath(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    // `O_PATH` opens nothing that could become a terminal, and the kernel rejects the flag with it.
    let terminal = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | terminal;
    loop {
        match rustix::fs::openat2(directory, path, flags, mode, beneath()) {
            // The kernel may require a retry after a concurrent rename.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // `openat2` is missing before Linux 5.6, and older container filters block it.
            Err(Errno::NOSYS) => return open_by_parts(directory, path, flags, mode),
            Err(Errno::PERM) if !opens_beneath() => return open_by_parts(directory, path, flags, mode),
            other => return other,
        }
    }
}

/// Whether the kernel has `openat2`.
fn opens_beneath() -> bool {
    static ANSWER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ANSWER.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        rustix::fs::openat2(rustix::fs::CWD, "/", flags, Mode::empty(), ResolveFlags::empty()).is_ok()
    })
}

/// Emulates `openat2`: opens one component at a time in the directory before it.
///
/// No component may be a link or `..`, and all must be on the first directory's file system.
fn open_by_parts(
    directory: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    use std::path::Component;
    let own = rustix::fs::fstat(directory)?.st_dev;
    let same = |descriptor: OwnedFd| {
        let stat = rustix::fs::fstat(&descriptor)?;
        // `O_PATH` opens a link instead of failing.
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        if stat.st_dev == own { Ok(descriptor) } else { Err(Errno::XDEV) }
    };
    let mut parts: Vec<&OsStr> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
        }
    }
    let last = parts.pop().unwrap_or(OsStr::new("."));
    let through = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut parent: Option<OwnedFd> = None;
    for part in parts {
        let here = parent.as_ref().map_or(directory, |parent| parent.as_fd());
        parent = Some(same(rustix::fs::openat(here, part, through, Mode::empty())?)?);
    }
    let here = parent.as_ref().map_or(directory, |parent| parent.as_fd());
    same(rustix::fs::openat(here, last, flags, mode)?)
}

/// The workspace of a run, kept open for its artifacts.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) descriptor: OwnedFd,
    /// Removed with the last artifact.
    pub(super) _temporary: Option<TemporaryDirectory>,
    /// The host directory to which apply moves this one's files.
    pub(super) applied: Option<OwnedFd>,
    /// The layer that contains it, which ends with it.
    pub(super) layer: Mutex<Option<Overlay>>,
}

impl Directory {
    /// A workspace that removes nothing on drop.
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, _temporary: None, applied: None, layer: Mutex::new(None) }
    }

    /// Ties the end of a layer to this value.
    pub(super) fn keep(&self, layer: Overlay) {
        *self.layer.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(layer);
    }
}

/// The location of an artifact's content.
#[derive(Debug, Clone)]
pub(crate) struct Store(Arc<Directory>);

/// The owner of files that the host puts into a workspace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) user: u32,
    pub(super) group: u32,
}

/// Creates a file beneath a directory, with its parent directories. Never overwrites.
pub(super) fn create(directory: BorrowedFd<'_>, name: &Path, owner: Option<Owner>) -> Result<OwnedFd, Errno> {
    let own = |descriptor: &OwnedFd| match owner {
        Some(owner) => {
            rustix::fs::fchown(descriptor, Some(Uid::from_raw(owner.user)), Some(Gid::from_raw(owner.group)))
        }
        None => Ok(()),
    };
    // A file system of a user namespace without root accepts files of its own users only.
    let _user = owner
        .filter(|_| is_of_a_namespace(directory))
        .map(|owner| FileUser::become_user(owner.user, owner.group));
    let mut parent: Option<OwnedFd> = None;
    let mut parts: Vec<&OsStr> = name.iter().collect();
    let last = parts.pop().ok_or(Errno::INVAL)?;
    for part in parts {
        let here = parent.as_ref().map_or(directory, |parent| parent.as_fd());
        let created = match rustix::fs::mkdirat(here, part, Mode::from_raw_mode(0o755)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error),
        };
        let next = open_beneath(here, Path::new(part), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        if created {
            own(&next)?;
        }
        parent = Some(next);
    }
    let here = parent.as_ref().map_or(directory, |parent| parent.as_fd());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let file = open_beneath(here, Path::new(last), flags, Mode::from_raw_mode(0o644))?;
    own(&file)?;
    Ok(file)
}

/// Whether root cannot create files in a directory, because its file system belongs to a user namespace.
fn is_of_a_namespace(directory: BorrowedFd<'_>) -> bool {
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    rustix::fs::openat(directory, ".", flags, Mode::from_raw_mode(0o600)).err() == Some(Errno::OVERFLOW)
}

/// Writes the uploads into the workspace.
pub(super) fn upload(
    directory: BorrowedFd<'_>,
    files: &[(String, Source)],
    limits: &Limits,
    owner: Option<Owner>,
) -> Result<(), Error> {
    for (name, source) in files {
        let fail = |action: &'static str, path: &Path, source: std::io::Error| Error::File {
            action,
            path: path.to_owned(),
            source,
        };
        let target = Path::new(name);
        let make =
            || create(directory, target, owner).map_err(|error| fail("create upload", target, error.into()));
        let too_large = |size: u64| Error::TooLarge {
            what: "upload",
            size,
            maximum: limits.workspace_bytes,
            hint: "raise the limit `workspace_bytes`",
        };
        match source {
            Source::Bytes(bytes) => {
                if bytes.len() as u64 > limits.workspace_bytes {
                    return Err(too_large(bytes.len() as u64));
                }
                std::fs::File::from(make()?)
                    .write_all(bytes)
                    .map_err(|error| fail("write upload", target, error))?;
            }
            Source::Path(path) => {
                let file = open_regular(path).map_err(|error| fail("read upload", path, error))?;
                let size = file.metadata().map_err(|error| fail("read upload", path, error))?.len();
                if size > limits.workspace_bytes {
                    return Err(too_large(size));
                }
                let mut target_file = std::fs::File::from(make()?);
                // A file that grows meanwhile is copied at its old size.
                let is_executable = is_executable(&file).map_err(|error| fail("read upload", path, error))?;
                std::io::copy(&mut file.take(size), &mut target_file)
                    .map_err(|error| fail("copy upload", path, error))?;
                if is_executable {
                    rustix::fs::fchmod(&target_file, Mode::from_raw_mode(0o755))
                        .map_err(|error| fail("copy upload", path, error.into()))?;
                }
            }
        }
    }
    Ok(())
}

/// Whether the owner of a file may execute it. A program with set-ID bits loses the right with them.
fn is_executable(file: &std::fs::File) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(file.metadata()?.mode() & 0o7100 == 0o100)
}

/// Opens a host file named by the operator. Rejects everything but regular files: a pipe would block.
pub fn open_regular(path: &Path) -> std::io::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(std::io::Error::other("it is not a regular file"))
}

/// The properties of a file that are compared between start and end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    size: i64,
    blocks: i64,
    inode: u64,
    modified: (i64, u64),
    changed: (i64, u64),
    pub(super) is_regular: bool,
}

impl Entry {
    pub(super) fn from_stat(stat: &rustix::fs::Stat) -> Self {
        Self {
            size: stat.st_size,
            blocks: stat.st_blocks,
            inode: stat.st_ino,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
            is_regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        }
    }

    /// The size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size.unsigned_abs()
    }
}

/// The files of a workspace, without directories.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) files: BTreeMap<PathBuf, Entry>,
    /// The reason why the list is incomplete.
    pub(super) left_out: Option<&'static str>,
}

impl Listing {
    /// Whether a new or changed file has at least this size.
    pub(super) fn has_file_of(&self, size: u64, changes: &Changes) -> bool {
        let mut files = changes.new.iter().chain(&changes.changed).filter_map(|path| self.files.get(path));
        files.any(|entry| entry.is_regular && entry.size.unsigned_abs() >= size)
    }
}

/// Lists the files beneath a directory, bounded in number and depth. Links are listed, not followed.
pub(super) fn list(root: BorrowedFd<'_>) -> Listing {
    let mut listing = Listing::default();
    let mut waiting = vec![(PathBuf::new(), 0usize)];
    let mut seen = 0usize;
    let mut buffer = Vec::with_capacity(8 << 10);
    while let Some((directory, depth)) = waiting.pop() {
        let place = if depth == 0 { Path::new(".") } else { &directory };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let descriptor = match open_beneath(root, place, flags, Mode::empty()) {
            Ok(descriptor) => descriptor,
            // A running program may delete directories.
            Err(Errno::NOENT) => continue,
            Err(_) => {
                listing.left_out = Some("opening a directory failed");
                continue;
            }
        };
        let mut entries = rustix::fs::RawDir::new(&descriptor, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { break };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            seen += 1;
            if seen > MAX_ENTRIES {
                listing.left_out = Some("there are more than 20,000 files and directories");
                return listing;
            }
            let path = directory.join(OsStr::from_bytes(name));
            let Ok(stat) = rustix::fs::statat(&descriptor, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            if kind == FileType::Directory {
                if depth + 1 < MAX_DEPTH {
                    waiting.push((path, depth + 1));
                } else {
                    listing.left_out = Some("directories are nested deeper than 48 levels");
                }
                continue;
            }
            listing.files.insert(path, Entry::from_stat(&stat));
        }
    }
    listing
}

/// The existing files of these names.
pub(super) fn listed<'a>(root: BorrowedFd<'_>, names: impl Iterator<Item = &'a String>) -> Listing {
    let entry = |name: &'a String| {
        let opened = open_beneath(root, Path::new(name), OFlags::PATH, Mode::empty()).ok()?;
        Some((PathBuf::from(name), Entry::from_stat(&rustix::fs::fstat(opened).ok()?)))
    };
    Listing { files: names.filter_map(entry).collect(), left_out: None }
}

/// A limit of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Over {
    Bytes,
    Inodes,
}

/// A workspace without kernel limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Measured<'a> {
    pub(super) directory: BorrowedFd<'a>,
    /// Its content before the program's start, which does not count.
    pub(super) before: Measure,
}

/// Whether workspaces without kernel limits exceed their limits together.
///
/// Uncountable entries count as too many: otherwise a program could hide files there. `deleted` is the size
/// of open files without a name.
pub(super) fn over(measured: &[Measured<'_>], limits: &Limits, deleted: u64) -> Option<Over> {
    let (mut bytes, mut entries, mut is_incomplete) = (deleted, 0u64, false);
    for Measured { directory, before } in measured {
        let found = measure(*directory, limits.workspace_inodes.saturating_add(before.entries));
        entries = entries.saturating_add(found.entries.saturating_sub(before.entries));
        bytes = bytes.saturating_add(found.bytes.saturating_sub(before.bytes));
        is_incomplete |= found.is_incomplete;
    }
    if entries > limits.workspace_inodes {
        return Some(Over::Inodes);
    }
    (is_incomplete || bytes > limits.workspace_bytes).then_some(Over::Bytes)
}

/// The limit that the changes in a layer exceed. Not measured where [`not_measurable`] says so.
pub(super) fn layer_over(upper: BorrowedFd<'_>, limits: &Limits) -> Option<Over> {
    let measured = [Measured { directory: upper, before: Measure::default() }];
    not_measurable(upper).is_none().then(|| over(&measured, limits, 0)).flatten()
}

/// The content of a directory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measure {
    bytes: u64,
    /// Files and directories.
    entries: u64,
    /// Whether something could not be counted.
    is_incomplete: bool,
}

/// Adds up the content of a directory of any depth. Opens directories from each other, so that no path gets
/// too long. Stops after one entry more than `max_entries`.
pub(super) fn measure(root: BorrowedFd<'_>, max_entries: u64) -> Measure {
    /// The maximum number of components of a path; fits into the kernel's limit.
    const STRIDE: usize = 12;
    /// The maximum number of directories kept open.
    const ANCHORS: usize = 128;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let mut measure = Measure::default();
    let mut waiting: Vec<(Option<Arc<OwnedFd>>, PathBuf, usize)> = vec![(None, PathBuf::from("."), 0)];
    let mut kept: Vec<std::sync::Weak<OwnedFd>> = Vec::new();
    let mut buffer = Vec::with_capacity(8 << 10);
    while let Some((anchor, directory, depth)) = waiting.pop() {
        let from = anchor.as_ref().map_or(root, |anchor| anchor.as_fd());
        let descriptor = match open_beneath(from, &directory, flags, Mode::empty()) {
            Ok(descriptor) => Arc::new(descriptor),
            // A running program may replace a directory by a whiteout, a file or a link.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(_) => {
                measure.is_incomplete = true;
                continue;
            }
        };
        let is_anchor = depth + 1 >= STRIDE;
        let mut inner = Vec::new();
        let mut entries = rustix::fs::RawDir::new(&*descriptor, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            measure.entries += 1;
            if measure.entries > max_entries {
                return measure;
            }
            let Ok(stat) = rustix::fs::statat(&*descriptor, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                inner.push(OsStr::from_bytes(name).to_owned());
            } else {
                measure.bytes =
                    measure.bytes.saturating_add(stat.st_blocks.unsigned_abs().saturating_mul(512));
            }
        }
        if is_anchor && !inner.is_empty() {
            kept.retain(|kept| kept.strong_count() > 0);
            if kept.len() >= ANCHORS {
                measure.is_incomplete = true;
                continue;
            }
            kept.push(Arc::downgrade(&descriptor));
            let anchored = inner.into_iter().map(|name| (Some(Arc::clone(&descriptor)), name.into(), 0));
            waiting.extend(anchored);
        } else {
            waiting.extend(inner.into_iter().map(|name| (anchor.clone(), directory.join(name), depth + 1)));
        }
    }
    measure
}

/// The reason why the host cannot measure a directory, if it cannot; checked before the program runs.
pub(super) fn not_measurable(root: BorrowedFd<'_>) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
    let error = open_beneath(root, Path::new("."), flags, Mode::empty()).err()?;
    Some(format!("the host cannot open its directory: {error}"))
}

/// The differences between two listings.
pub(super) fn compare(before: &Listing, after: &Listing) -> Changes {
    differences(&before.files, &after.files, after.left_out.is_none())
}

/// The differences between two sets of files. Deletions require a complete second set.
pub fn differences<E: PartialEq>(
    before: &BTreeMap<PathBuf, E>,
    after: &BTreeMap<PathBuf, E>,
    is_whole: bool,
) -> Changes {
    let mut changes = Changes::default();
    for (path, entry) in after {
        match before.get(path) {
            None => changes.new.push(path.clone()),
            Some(old) if old != entry => changes.changed.push(path.clone()),
            Some(_) => {}
        }
    }
    if is_whole {
        changes.deleted = before.keys().filter(|path| !after.contains_key(*path)).cloned().collect();
    }
    changes
}

/// Collects the artifacts among the changes. The program must be dead.
pub(super) fn collect(
    directory: Directory,
    changes: &Changes,
    after: &Listing,
    limits: &Limits,
    report: &mut Report,
) -> Vec<SandboxArtifact> {
    collect_in(&Arc::new(directory), changes, after, limits, report)
}

/// A variant from a directory that others use too.
pub(super) fn collect_in(
    directory: &Arc<Directory>,
    changes: &Changes,
    after: &Listing,
    limits: &Limits,
    report: &mut Report,
) -> Vec<SandboxArtifact> {
    let mut artifacts = Vec::new();
    let mut bytes = 0u64;
    for path in changes.new.iter().chain(&changes.changed) {
        let refusal = match after.files.get(path) {
            Some(entry) if !entry.is_regular => Err("it is not a regular file".into()),
            _ if artifacts.len() >= limits.artifacts => {
                Err(Unreturned::OverLimit(format!("the limit of {} files is reached", limits.artifacts)))
            }
            _ => examine(directory, path, limits.artifact_bytes.saturating_sub(bytes)),
        };
        match refusal {
            Ok(artifact) => {
                bytes += artifact.size;
                artifacts.push(artifact);
            }
            Err(unreturned) => {
                let reason = match unreturned {
                    Unreturned::OverLimit(reason) => {
                        mark(report, Reached::Artifacts);
                        reason
                    }
                    Unreturned::Unfit(reason) => reason,
                };
                report.add_unreturned(&path.to_string_lossy(), &reason);
            }
        }
    }
    report.end_unreturned();
    artifacts
}

fn mark(report: &mut Report, reached: Reached) {
    if !report.reached.contains(&reached) {
        report.reached.push(reached);
    }
}

/// The reason why a file is not an artifact.
enum Unreturned {
    OverLimit(String),
    Unfit(String),
}

impl From<&str> for Unreturned {
    fn from(reason: &str) -> Self {
        Self::Unfit(reason.to_owned())
    }
}

impl From<std::io::Error> for Unreturned {
    fn from(error: std::io::Error) -> Self {
        Self::Unfit(error.to_string())
    }
}

fn examine(directory: &Arc<Directory>, path: &Path, left: u64) -> Result<SandboxArtifact, Unreturned> {
    let name = path.to_str().ok_or("its name is not valid UTF-8")?;
    check_file_name(name).map_err(|error| Unreturned::Unfit(error.to_string()))?;
    let mut file = open_content(directory, path)?;
    let size = file.metadata()?.len();
    if size > left {
        let reason = format!("it has {size} bytes, {left} bytes are left of the limit");
        return Err(Unreturned::OverLimit(reason));
    }
    let mut first = Vec::new();
    let (sha256, read) = digest(&mut file, size, &mut |block| {
        if first.is_empty() {
            first.extend_from_slice(block.get(..block.len().min(16)).unwrap_or_default());
        }
    })?;
    if read != size {
        return Err("its size changed while it was read".into());
    }
    let media_type = crate::media::media_type(name, &first);
    let content = Content::Workspace(Store(Arc::clone(directory)));
    let is_executable = is_executable(&file)?;
    Ok(SandboxArtifact { path: name.to_owned(), size, sha256, media_type, is_executable, content })
}

/// Opens a regular file with only one link: a second one may be a host file.
pub(super) fn open_content(directory: &Directory, path: &Path) -> std::io::Result<std::fs::File> {
    open_content_in(directory.descriptor.as_fd(), path)
}

fn open_content_in(directory: BorrowedFd<'_>, path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::MetadataExt as _;
    let file = open_beneath(directory, path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    let file = std::fs::File::from(file);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    if metadata.nlink() != 1 {
        return Err(std::io::Error::other("it has several hard links"));
    }
    Ok(file)
}

/// Hashes at most `size` bytes. Returns the number of bytes, one more if the file is larger.
fn digest(
    file: &mut std::fs::File,
    size: u64,
    each: &mut dyn FnMut(&[u8]),
) -> std::io::Result<(String, u64)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 64 << 10];
    let mut total = 0u64;
    while total <= size {
        let wanted = usize::try_from(size + 1 - total).unwrap_or(usize::MAX).min(buffer.len());
        let block = buffer.get_mut(..wanted).unwrap_or_default();
        let read = match file.read(block) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let block = buffer.get(..read).unwrap_or_default();
        hash.update(block);
        each(block);
        total += read as u64;
    }
    Ok((crate::outcome::hex(&hash.finalize()), total))
}

fn file_error(action: &'static str, path: &Path, source: std::io::Error) -> Error {
    Error::File { action, path: path.to_owned(), source }
}

pub(crate) fn read_artifact(artifact: &SandboxArtifact, store: &Store) -> Result<Vec<u8>, Error> {
    let path = Path::new(&artifact.path);
    let fail = |source| file_error("read artifact", path, source);
    let places = store.0.applied.iter().chain([&store.0.descriptor]);
    let mut missing = None;
    for place in places {
        let mut file = match open_content_in(place.as_fd(), path) {
            Ok(file) => file,
            Err(error) => {
                missing = Some(error);
                continue;
            }
        };
        missing = None;
        let mut content = Vec::with_capacity(usize::try_from(artifact.size).unwrap_or(0));
        let (sha256, _) =
            digest(&mut file, artifact.size, &mut |block| content.extend_from_slice(block)).map_err(fail)?;
        if sha256 == artifact.sha256 {
            return Ok(content);
        }
    }
    if let Some(error) = missing {
        return Err(fail(error));
    }
    Err(fail(std::io::Error::other("its content changed after the run")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn uploads_neither_overwrite_nor_follow_links() {
        let outside = tempfile::tempdir().unwrap();
        let inside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        std::fs::write(inside.path().join("taken"), "old").unwrap();
        let directory = open(inside.path());
        let upload = |name: &str| {
            let files = [(name.to_owned(), Source::Bytes(b"new".to_vec()))];
            super::upload(directory.as_fd(), &files, &Limits::default(), None)
        };
        assert!(upload("link/x").is_err());
        assert!(upload("link").is_err());
        assert!(upload("taken").is_err());
        assert_eq!(std::fs::read(inside.path().join("taken")).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
        upload("a/b/c.txt").unwrap();
        assert_eq!(std::fs::read(inside.path().join("a/b/c.txt")).unwrap(), b"new");
        let pipe = inside.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let files = [("p".to_owned(), Source::Path(pipe))];
        assert!(super::upload(directory.as_fd(), &files, &Limits::default(), None).is_err());
    }

    #[test]
    fn a_kernel_without_the_call_is_held_beneath_the_directory_as_well() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "host").unwrap();
        let inside = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(inside.path().join("a/b")).unwrap();
        std::fs::write(inside.path().join("a/b/file"), "own").unwrap();
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), inside.path().join("a/last")).unwrap();
        let directory = open(inside.path());
        let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        for (path, flags, expected) in [
            ("a/b/file", read, Ok(())),
            (".", read | OFlags::DIRECTORY, Ok(())),
            ("a/./b", read | OFlags::DIRECTORY, Ok(())),
            ("link/secret", read, Err(Errno::NOTDIR)),
            ("a/last", read, Err(Errno::LOOP)),
            ("a/last", read | OFlags::PATH, Err(Errno::LOOP)),
            ("a/../../secret", read, Err(Errno::XDEV)),
            ("/etc/passwd", read, Err(Errno::XDEV)),
            ("a/missing", read, Err(Errno::NOENT)),
        ] {
            let found = open_by_parts(directory.as_fd(), Path::new(path), flags, Mode::empty()).map(|_| ());
            assert_eq!(found, expected, "{path}");
        }
        // Another file system is mounted beneath it.
        let root = open(Path::new("/"));
        let found = open_by_parts(root.as_fd(), Path::new("proc/self/status"), read, Mode::empty());
        assert_eq!(found.map(|_| ()), Err(Errno::XDEV));
        let make = read | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mode = Mode::from_raw_mode(0o644);
        assert!(open_by_parts(directory.as_fd(), Path::new("a/new"), make, mode).is_ok());
        assert_eq!(
            open_by_parts(directory.as_fd(), Path::new("a/last"), make, mode).map(|_| ()),
            Err(Errno::EXIST)
        );
    }

    #[test]
    fn only_plain_files_come_back_and_nothing_is_overwritten() {
        let secret = tempfile::NamedTempFile::new().unwrap();
        let inside = tempfile::tempdir().unwrap();
        let before = list(open(inside.path()).as_fd());
        let place = |name: &str| inside.path().join(name);
        std::fs::write(place("plot.png"), b"\x89PNG\r\n\x1a\n123").unwrap();
        std::fs::create_dir(place("d")).unwrap();
        std::fs::write(place("d/table.csv"), "a,b\n").unwrap();
        std::os::unix::fs::symlink(secret.path(), place("link")).unwrap();
        std::fs::write(place("one"), "x").unwrap();
        std::fs::hard_link(place("one"), place("two")).unwrap();
        std::fs::write(place("-rf"), "x").unwrap();
        std::fs::write(place("line\nbreak"), "x").unwrap();
        std::fs::File::create(place("sparse")).unwrap().set_len(1 << 40).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, place("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();

        let after = list(open(inside.path()).as_fd());
        let changes = compare(&before, &after);
        assert_eq!(changes.new.len(), 9, "{changes:?}");
        let mut report = crate::Report::new("process", None, crate::Level::Strict);
        let directory = Directory::new(open(inside.path()));
        let artifacts = collect(directory, &changes, &after, &Limits::default(), &mut report);
        let names: Vec<_> = artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
        assert_eq!(names, ["d/table.csv", "plot.png"], "{:?}", report.notes);
        assert_eq!(artifacts[0].media_type, "text/csv");
        assert_eq!(artifacts[1].media_type, "image/png");
        assert_eq!(artifacts[0].sha256, "5be08c9684a1d25efcee09318204824278b08bbfb4aef973ffefd0b9d7478313");
        assert_eq!(report.notes.len(), 7, "{:?}", report.notes);
        assert_eq!(report.reached, [Reached::Artifacts]);

        std::fs::write(place("plot.png"), "changed").unwrap();
        assert!(artifacts[1].read().is_err());
    }

    #[test]
    fn listing_is_bounded_in_depth() {
        let directory = tempfile::tempdir().unwrap();
        let mut deep = directory.path().to_owned();
        for _ in 0..60 {
            deep.push("d");
        }
        std::fs::create_dir_all(&deep).unwrap();
        assert!(list(open(directory.path()).as_fd()).left_out.is_some());
    }

    #[test]
    fn what_is_nested_deep_is_measured() {
        let directory = tempfile::tempdir().unwrap();
        let name = "d".repeat(200);
        let mut at = open(directory.path());
        for _ in 0..700 {
            rustix::fs::mkdirat(&at, &*name, Mode::from_raw_mode(0o755)).unwrap();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            at = rustix::fs::openat(&at, &*name, flags, Mode::empty()).unwrap();
        }
        let before = measure(open(directory.path()).as_fd(), 1_000);
        assert!(!before.is_incomplete && before.entries == 700, "{before:?}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&at, "file", flags, Mode::from_raw_mode(0o600)).unwrap();
        rustix::io::write(&file, &vec![1u8; 100_000]).unwrap();
        let after = measure(open(directory.path()).as_fd(), 1_000);
        assert!(after.bytes >= 100_000 && after.entries == 701, "{after:?}");
        let root = open(directory.path());
        let judge =
            |limits: &Limits, before| over(&[Measured { directory: root.as_fd(), before }], limits, 0);
        let nothing = Measure::default();
        assert_eq!(judge(&Limits::default(), nothing), None);
        let small = Limits::default().with_workspace_bytes(50_000);
        assert_eq!(judge(&small, nothing), Some(Over::Bytes));
        assert_eq!(judge(&small, after), None, "what was there does not count");
        let few = Limits::default().with_workspace_inodes(100);
        assert_eq!(judge(&few, nothing), Some(Over::Inodes));
        assert_eq!(judge(&few, before), None, "one file is new");
    }
}
