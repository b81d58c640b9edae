// Linux: `openat2` resolves every path beneath an open root, so that no concurrent change leads out of it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use toolpost::{Timestamp, ToolError, did_you_mean};
use toolpost_sandbox::{ProtectedEntryKind as Standing, Rejection, adds_git_driver};

use super::protected_files::{is_protected, is_trusted_code};
use super::root::{is_hidden, rejected_code, rejected_trusted};
use super::{
    Directory, EntryKind, FileContent, ListOptions, ListingEntry, Write, Written, at_path, megabytes, shown,
};

/// Reads follow links inside the root, but no link out of it and no magic link.
const READING: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// Writes follow no link, so that the checked path is the written one.
const WRITING: ResolveFlags = READING.union(ResolveFlags::NO_SYMLINKS);
/// Maximum number of retries after a concurrent rename.
const MAX_ATTEMPTS: u32 = 128;
/// Maximum number of names that a listing reads.
const MAX_NAMES: usize = 200_000;
/// Maximum number of names compared for a suggestion.
const MAX_COMPARED: usize = 1000;
/// Maximum number of backups of a file.
const MAX_BACKUPS: u32 = 1000;
/// Maximum size of a `.gitattributes` that is scanned for drivers, in bytes.
const MAX_ATTRIBUTES: u64 = 1 << 20;

/// Serializes the creation of files.
static CREATION: Mutex<()> = Mutex::new(());

fn openat2(
    directory: impl AsFd,
    path: &str,
    flags: OFlags,
    mode: u32,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(mode);
    for _ in 0..MAX_ATTEMPTS {
        match rustix::fs::openat2(&directory, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens the directory of a call.
fn open_directory(directory: &Directory) -> Result<OwnedFd, ToolError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&directory.root, flags, Mode::empty()).and_then(|root| {
        match directory.beneath.to_str() {
            Some("") => Ok(root),
            Some(below) => openat2(&root, below, OFlags::PATH | OFlags::DIRECTORY, 0, WRITING),
            None => Err(Errno::ILSEQ),
        }
    });
    opened.map_err(|errno| match errno {
        Errno::NOSYS | Errno::PERM => no_openat2(errno),
        errno => ToolError::precondition(format!(
            "cannot open the working directory `{}`: {errno}",
            directory.shown().display()
        ))
        .suggest("Create the directory, or use another working directory."),
    })
}

fn no_openat2(errno: Errno) -> ToolError {
    ToolError::precondition(format!("the kernel blocks `openat2`, which the file tools need: {errno}"))
        .suggest("Use Linux 5.6 or later; in a container, allow the system call `openat2`.")
}

/// Converts an error of the kernel for a path.
fn explain(errno: Errno, given: &str) -> ToolError {
    let name = shown(given);
    let invalid = |reason: &str| ToolError::invalid_path(format!("`{name}` {reason}"));
    let error = match errno {
        Errno::NOENT => invalid("does not exist"),
        Errno::XDEV => invalid("leads out of the working directory through a symbolic link").suggest(
            "Use a path inside the working directory; links with an absolute target are not followed.",
        ),
        Errno::LOOP => invalid("contains a symbolic link that is not followed")
            .suggest("Use the path of the link's target, if it is in the working directory."),
        Errno::NOTDIR => invalid("continues after a part that is not a directory"),
        Errno::ISDIR => invalid("is a directory"),
        Errno::NAMETOOLONG => invalid("or a name in it is too long"),
        Errno::ILSEQ => invalid("is not a valid name on this file system"),
        Errno::ACCESS | Errno::PERM => {
            ToolError::permission(format!("the file system denies access to `{name}`"))
                .suggest("Change the file's permissions, or use another path.")
        }
        Errno::ROFS => ToolError::permission(format!("`{name}` is on a read-only file system"))
            .suggest("Use another directory."),
        Errno::NOSPC | Errno::DQUOT => ToolError::limit(format!("no disk space is left for `{name}`"))
            .suggest("Delete unneeded files, or write less."),
        Errno::FBIG => ToolError::limit(format!("`{name}` exceeds the file system's maximum size")),
        Errno::AGAIN | Errno::BUSY | Errno::TXTBSY => {
            ToolError::conflict(format!("another process is changing `{name}`")).suggest("Try again.")
        }
        Errno::NOSYS => return no_openat2(errno),
        Errno::MFILE | Errno::NFILE => ToolError::overloaded("too many files are open on this machine"),
        errno => ToolError::dependency(format!("the file system failed for `{name}`: {errno}")),
    };
    at_path(error, given)
}

/// Like [`explain`]; for a missing path, also suggests similar names.
fn explain_missing(root: &OwnedFd, errno: Errno, relative: &str, given: &str) -> ToolError {
    let error = explain(errno, given);
    if errno != Errno::NOENT {
        return error;
    }
    let near = similar(root, relative);
    error.suggest(near.unwrap_or_else(|| "Use `list_directory` to list the files.".to_owned()))
}

/// The nearest name to a missing path, as a sentence.
fn similar(root: &OwnedFd, relative: &str) -> Option<String> {
    let parts: Vec<&str> = relative.split('/').collect();
    for kept in (0..parts.len()).rev() {
        let parent = if kept == 0 { ".".to_owned() } else { parts[..kept].join("/") };
        let Ok(directory) = openat2(root, &parent, OFlags::RDONLY | OFlags::DIRECTORY, 0, READING) else {
            continue;
        };
        let names = names_in(&directory, true, MAX_COMPARED).map(|(names, _)| names).unwrap_or_default();
        let names: Vec<String> =
            names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let hint = shown(&did_you_mean(parts[kept], names.iter().map(String::as_str))?);
        return Some(if kept == 0 { hint } else { format!("{hint} It would be in `{}`.", shown(&parent)) });
    }
    None
}

fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Rejects anything but a regular file.
fn check_regular(stat: &Stat, given: &str) -> Result<(), ToolError> {
    let (what, hint) = match kind_of(stat) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => ("a directory", "Use `list_directory` to list it."),
        FileType::Symlink => ("a symbolic link", "Use the path of its target."),
        FileType::Fifo => ("a pipe", "Only regular files can be read and written."),
        FileType::Socket => ("a socket", "Only regular files can be read and written."),
        _ => ("a device", "Only regular files can be read and written."),
    };
    Err(at_path(ToolError::invalid_path(format!("`{}` is {what}; expected a file", shown(given))), given)
        .suggest(hint))
}

/// Reads a file of at most `max` bytes.
pub(super) fn read(
    directory: &Directory,
    relative: &str,
    given: &str,
    max: u64,
) -> Result<FileContent, ToolError> {
    let root = open_directory(directory)?;
    let links = if directory.follows_links { READING } else { WRITING };
    // Check before opening: opening a pipe blocks, and opening a device may have effects.
    let look = openat2(&root, relative, OFlags::PATH, 0, links)
        .map_err(|errno| explain_missing(&root, errno, relative, given))?;
    let fail = |errno| explain(errno, given);
    check_regular(&rustix::fs::fstat(&look).map_err(fail)?, given)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat2(&root, relative, flags, 0, links).map_err(fail)?;
    let stat = rustix::fs::fstat(&file).map_err(fail)?;
    check_regular(&stat, given)?;
    check_visible(directory, &file, given)?;
    let size = stat.st_size as u64;
    if size > max {
        return Err(too_large(given, size, max));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    File::from(file).take(max + 1).read_to_end(&mut bytes).map_err(|error| from_io(&error, given))?;
    if bytes.len() as u64 > max {
        return Err(too_large(given, bytes.len() as u64, max));
    }
    Ok(FileContent { bytes, size })
}

/// Rejects an open file or directory that is, or is beneath, a hidden path of the host.
fn check_visible(directory: &Directory, opened: &OwnedFd, given: &str) -> Result<(), ToolError> {
    let mut hidden = directory.hidden().peekable();
    if hidden.peek().is_none() {
        return Ok(());
    }
    let fail = |errno| explain(errno, given);
    let stat = rustix::fs::fstat(opened).map_err(fail)?;
    // The kernel names the opened file itself, whatever links and mounts led there.
    let link =
        rustix::fs::readlink(format!("/proc/self/fd/{}", opened.as_raw_fd()), Vec::new()).map_err(fail)?;
    let real = Path::new(std::ffi::OsStr::from_bytes(link.as_bytes()));
    let is_it =
        |path: &Path| real.starts_with(path) || rustix::fs::stat(path).is_ok_and(|one| same(&one, &stat));
    if hidden.any(is_it) { Err(is_hidden(given)) } else { Ok(()) }
}

fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn from_io(error: &std::io::Error, given: &str) -> ToolError {
    explain(Errno::from_io_error(error).unwrap_or(Errno::IO), given)
}

fn too_large(given: &str, size: u64, max: u64) -> ToolError {
    let message =
        format!("`{}` has {}; `max_size_mb` allows {}", shown(given), megabytes(size), megabytes(max));
    at_path(ToolError::limit(message), given)
        .with("size", size)
        .suggest("Raise `max_size_mb` (at most 100), or run code that reads the file in parts.")
}

/// Writes a file.
pub(super) fn write(
    directory: &Directory,
    relative: &str,
    given: &str,
    writing: &Write<'_>,
) -> Result<Written, ToolError> {
    let root = open_directory(directory)?;
    let lookup = |path: &Path| lookup(&root, path);
    // Creations are serialized, so that the parts of a Git repository cannot be created concurrently.
    let is_new = lookup(Path::new(relative)).is_none();
    let _guard = is_new.then(|| CREATION.lock().unwrap_or_else(PoisonError::into_inner));
    directory.check_writable(relative, given, &lookup)?;
    let path = Path::new(relative);
    if adds_git_driver(path, || attributes(&root, relative), writing.bytes) && !directory.admits(path) {
        return Err(Directory::rejected(Rejection::GitDriver, given));
    }
    let recorded = directory.changes.as_ref().map(|changes| changes.writing(&directory.path(), path));
    let (parent, name) = relative.rsplit_once('/').unwrap_or((".", relative));
    if writing.create_directories && parent != "." {
        create_directories(directory, &root, parent, given)?;
    }
    let parent = openat2(&root, parent, OFlags::RDONLY | OFlags::DIRECTORY, 0, WRITING).map_err(|errno| {
        if errno != Errno::NOENT {
            return explain(errno, given);
        }
        let message = format!("the parent directory of `{}` does not exist", shown(given));
        let hint = similar(&root, parent).unwrap_or_default();
        at_path(ToolError::invalid_path(message), given)
            .suggest(format!("Set `create_directories` to create it. {hint}").trim().to_owned())
    })?;
    let fail = |errno| explain(errno, given);
    if is_protected(&directory.protected, &parent, name).map_err(fail)? {
        return Err(rejected_trusted(given));
    }
    if is_trusted_code(&directory.protected, &parent, &directory.path().join(path)).map_err(fail)? {
        return Err(rejected_code(given));
    }
    let existing = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(stat),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(fail(errno)),
    };
    if let Some(stat) = &existing {
        check_regular(stat, given)?;
    }
    let copied = existing.as_ref().filter(|_| writing.backup).map_or(0, |stat| stat.st_size as u64);
    let created = u64::from(existing.is_none() || writing.backup);
    directory.take_room(given, copied.saturating_add(writing.bytes.len() as u64), created)?;
    let backup = match existing {
        Some(_) if writing.backup => Some(back_up(&parent, name, given)?),
        _ => None,
    };
    if writing.atomic {
        replace(&parent, name, existing.as_ref(), given, writing.bytes)?;
    } else {
        overwrite(&parent, name, existing.is_some(), given, writing.bytes)?;
    }
    if let Some(recorded) = recorded {
        recorded.written(existing.is_some());
    }
    // Sync the directory as well, so that the name survives a crash.
    rustix::fs::fsync(&parent).map_err(fail)?;
    Ok(Written { created: existing.is_none(), backup })
}

/// The kind of the file at a path beneath the root. No link is followed.
fn lookup(root: &OwnedFd, path: &Path) -> Option<Standing> {
    let look = openat2(root, path.to_str()?, OFlags::PATH | OFlags::NOFOLLOW, 0, WRITING).ok()?;
    Some(match kind_of(&rustix::fs::fstat(&look).ok()?) {
        FileType::RegularFile => Standing::File,
        FileType::Directory => Standing::Directory,
        FileType::Symlink => Standing::Link,
        _ => Standing::Special,
    })
}

/// The current content of a `.gitattributes`; empty if it is missing or unreadable.
fn attributes(root: &OwnedFd, relative: &str) -> Vec<u8> {
    let mut content = Vec::new();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    if let Ok(file) = openat2(root, relative, flags, 0, WRITING) {
        let _ = File::from(file).take(MAX_ATTRIBUTES).read_to_end(&mut content);
    }
    content
}

fn create_directories(work: &Directory, root: &OwnedFd, path: &str, given: &str) -> Result<(), ToolError> {
    let fail = |errno| explain(errno, given);
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut directory = openat2(root, ".", flags, 0, WRITING).map_err(fail)?;
    for part in path.split('/') {
        directory = match openat2(&directory, part, flags, 0, WRITING) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                work.take_room(given, 0, 1)?;
                let made = match rustix::fs::mkdirat(&directory, part, Mode::from_raw_mode(0o777)) {
                    Ok(()) => true,
                    Err(Errno::EXIST) => false,
                    Err(errno) => return Err(fail(errno)),
                };
                let next = openat2(&directory, part, flags, 0, WRITING).map_err(fail)?;
                if made {
                    inherit_owner(&next, &directory).map_err(fail)?;
                }
                next
            }
            Err(errno) => return Err(fail(errno)),
        };
    }
    Ok(())
}

/// Opens a regular file of a directory; rejects links, pipes and devices without blocking.
fn open_regular(
    parent: &OwnedFd,
    name: &str,
    access: OFlags,
    given: &str,
) -> Result<(File, Stat), ToolError> {
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat2(parent, name, flags, 0, WRITING).map_err(|errno| explain(errno, given))?;
    let stat = rustix::fs::fstat(&file).map_err(|errno| explain(errno, given))?;
    check_regular(&stat, given)?;
    Ok((File::from(file), stat))
}

/// Copies a file beside itself, under an unused name.
fn back_up(parent: &OwnedFd, name: &str, given: &str) -> Result<String, ToolError> {
    let (mut source, stat) = open_regular(parent, name, OFlags::RDONLY, given)?;
    for number in 0..MAX_BACKUPS {
        let copy = if number == 0 { format!("{name}.backup") } else { format!("{name}.backup-{number}") };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let target = match openat2(parent, &copy, flags, 0o600, WRITING) {
            Ok(target) => target,
            Err(Errno::EXIST) => continue,
            Err(errno) => return Err(explain(errno, &copy)),
        };
        let mut target = Unfinished { parent, name: copy, file: File::from(target), keep: false };
        std::io::copy(&mut source, &mut target.file).map_err(|error| from_io(&error, &target.name))?;
        target.finish(Some(&stat)).map_err(|errno| explain(errno, &target.name))?;
        target.keep = true;
        return Ok(target.name.clone());
    }
    let message = format!("`{}` already has {MAX_BACKUPS} backups", shown(given));
    Err(at_path(ToolError::limit(message), given)
        .suggest("Set `create_backup` to false, or move the backups elsewhere."))
}

/// A new file that is removed on drop unless `keep` is set.
struct Unfinished<'a> {
    parent: &'a OwnedFd,
    name: String,
    file: File,
    keep: bool,
}

impl Unfinished<'_> {
    /// Copies owner and permissions from the replaced file, and syncs.
    fn finish(&self, like: Option<&Stat>) -> Result<(), Errno> {
        match like {
            Some(like) => {
                set_owner(&self.file, like)?;
                rustix::fs::fchmod(&self.file, Mode::from_raw_mode(like.st_mode & 0o777))?;
            }
            None => inherit_owner(&self.file, self.parent)?,
        }
        rustix::fs::fsync(&self.file)
    }
}

/// Gives a new entry the owner of its directory, if the caller is root: sandboxed programs are not.
fn inherit_owner(new: impl AsFd, directory: &OwnedFd) -> Result<(), Errno> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    set_owner(new, &rustix::fs::fstat(directory)?)
}

fn set_owner(file: impl AsFd, like: &Stat) -> Result<(), Errno> {
    let own = rustix::fs::fstat(&file)?;
    if (own.st_uid, own.st_gid) == (like.st_uid, like.st_gid) {
        return Ok(());
    }
    let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
    // The descriptor of a directory is opened for its path alone.
    match rustix::fs::chownat(&file, "", Some(owner), Some(group), AtFlags::EMPTY_PATH) {
        // Only root can change owners; otherwise the file becomes the caller's.
        Ok(()) | Err(Errno::PERM | Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.keep {
            // Ignored: the error that led here is reported.
            let _ = rustix::fs::unlinkat(self.parent, &self.name, AtFlags::empty());
        }
    }
}

/// Writes a new file under an unguessable name, and renames it over the old one.
fn replace(
    parent: &OwnedFd,
    name: &str,
    existing: Option<&Stat>,
    given: &str,
    bytes: &[u8],
) -> Result<(), ToolError> {
    let fail = |errno| explain(errno, given);
    let mut random = [0_u8; 16];
    rustix::rand::getrandom(&mut random, GetRandomFlags::empty()).map_err(fail)?;
    let temporary = format!(".toolpost-{:032x}.tmp", u128::from_ne_bytes(random));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mode = if existing.is_some() { 0o600 } else { 0o666 };
    let file = openat2(parent, &temporary, flags, mode, WRITING).map_err(fail)?;
    let mut new = Unfinished { parent, name: temporary, file: File::from(file), keep: false };
    new.file.write_all(bytes).map_err(|error| from_io(&error, given))?;
    new.finish(existing).map_err(fail)?;
    let renamed = if existing.is_some() {
        rustix::fs::renameat(parent, &new.name, parent, name)
    } else {
        name_new(parent, &new.name, name)
    };
    match renamed {
        Ok(()) => {
            new.keep = true;
            Ok(())
        }
        Err(Errno::EXIST) => Err(at_path(
            ToolError::conflict(format!("another process created `{}` at the same time", shown(given))),
            given,
        )
        .suggest("Read it before you write it again.")),
        Err(errno) => Err(fail(errno)),
    }
}

/// Renames a file without replacing another one.
fn name_new(parent: &OwnedFd, temporary: &str, name: &str) -> Result<(), Errno> {
    match rustix::fs::renameat_with(parent, temporary, parent, name, RenameFlags::NOREPLACE) {
        // Some file systems lack NOREPLACE; a hard link does not replace either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(parent, temporary, parent, name, AtFlags::empty())?;
            rustix::fs::unlinkat(parent, temporary, AtFlags::empty())
        }
        result => result,
    }
}

/// Overwrites the file in place.
fn overwrite(parent: &OwnedFd, name: &str, exists: bool, given: &str, bytes: &[u8]) -> Result<(), ToolError> {
    let fail = |errno| explain(errno, given);
    let mut file = if exists {
        let (file, stat) = open_regular(parent, name, OFlags::WRONLY, given)?;
        if stat.st_nlink > 1 {
            let message = format!(
                "`{}` has {} hard links, and an in-place write would change all of them",
                shown(given),
                stat.st_nlink
            );
            return Err(at_path(ToolError::permission(message), given)
                .suggest("Leave `atomic` at true, which replaces only this name."));
        }
        rustix::fs::ftruncate(&file, 0).map_err(fail)?;
        file
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let new = openat2(parent, name, flags, 0o666, WRITING).map_err(fail)?;
        inherit_owner(&new, parent).map_err(fail)?;
        File::from(new)
    };
    file.write_all(bytes).map_err(|error| from_io(&error, given))?;
    rustix::fs::fsync(&file).map_err(fail)
}

/// The sorted names in a directory, and whether there are more than `max`.
fn names_in(directory: &OwnedFd, include_hidden: bool, max: usize) -> Result<(Vec<Vec<u8>>, bool), Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." || (name.starts_with(b".") && !include_hidden) {
            continue;
        }
        if names.len() == max {
            names.sort_unstable();
            return Ok((names, true));
        }
        names.push(name.to_vec());
    }
    names.sort_unstable();
    Ok((names, false))
}

/// Lists a directory: the entries, and whether the list is truncated.
pub(super) fn list(
    directory: &Directory,
    relative: &str,
    given: &str,
    options: &ListOptions<'_>,
) -> Result<(Vec<ListingEntry>, bool), ToolError> {
    let root = open_directory(directory)?;
    let look = openat2(&root, relative, OFlags::PATH, 0, READING)
        .map_err(|errno| explain_missing(&root, errno, relative, given))?;
    let fail = |errno| explain(errno, given);
    if kind_of(&rustix::fs::fstat(&look).map_err(fail)?) != FileType::Directory {
        let message = format!("`{}` is not a directory", shown(given));
        return Err(at_path(ToolError::invalid_path(message), given)
            .suggest("Use `read_file` for a file, or list its parent directory."));
    }
    let opened = openat2(&root, relative, OFlags::RDONLY | OFlags::DIRECTORY, 0, READING).map_err(fail)?;
    check_visible(directory, &opened, given)?;
    let prefix = if relative == "." { String::new() } else { format!("{relative}/") };
    let hidden = directory.hidden().filter_map(|path| rustix::fs::stat(path).ok()).collect();
    let mut walk = Walk {
        options,
        hidden,
        base: prefix.len(),
        entries: Vec::new(),
        names_left: MAX_NAMES,
        truncated: false,
    };
    walk.directory(&opened, &prefix, 1).map_err(|stop| match stop {
        Stop::Failed(errno) => fail(errno),
        Stop::Cancelled => ToolError::cancelled("the caller cancelled the listing"),
    })?;
    Ok((walk.entries, walk.truncated))
}

enum Stop {
    Failed(Errno),
    Cancelled,
}

struct Walk<'a> {
    options: &'a ListOptions<'a>,
    /// Entries that are not listed.
    hidden: Vec<Stat>,
    /// Length of the path prefix above the listed directory, in bytes.
    base: usize,
    entries: Vec<ListingEntry>,
    names_left: usize,
    truncated: bool,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &OwnedFd, prefix: &str, depth: u32) -> Result<(), Stop> {
        let (names, more) =
            names_in(directory, self.options.include_hidden, self.names_left).map_err(Stop::Failed)?;
        self.names_left -= names.len();
        self.truncated |= more;
        for name in names {
            if (self.options.is_cancelled)() {
                return Err(Stop::Cancelled);
            }
            let stat = match rustix::fs::statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // It was removed after its name was read.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(Stop::Failed(errno)),
            };
            if self.hidden.iter().any(|hidden| same(hidden, &stat)) {
                continue;
            }
            let path = format!("{prefix}{}", String::from_utf8_lossy(&name));
            let kind = match kind_of(&stat) {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Directory,
                FileType::Symlink => EntryKind::Symlink,
                _ => EntryKind::Special,
            };
            let below = path.get(self.base..).unwrap_or_default();
            let mut position = None;
            if self.options.pattern.is_none_or(|pattern| pattern.matches(below)) {
                if self.entries.len() == self.options.max_entries {
                    self.truncated = true;
                    return Ok(());
                }
                position = Some(self.entries.len());
                self.entries.push(ListingEntry {
                    path: path.clone(),
                    kind,
                    size: if kind == EntryKind::File { stat.st_size as u64 } else { 0 },
                    modified: modified(&stat),
                    target: (kind == EntryKind::Symlink).then(|| target_of(directory, &name)),
                    note: None,
                });
            }
            if kind == EntryKind::Directory && depth < self.options.max_depth {
                let note = self.below(directory, &name, &path, depth)?;
                if let (Some(note), Some(entry)) = (note, position.and_then(|at| self.entries.get_mut(at))) {
                    entry.note = Some(note);
                }
                if self.entries.len() == self.options.max_entries && self.truncated {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Lists a subdirectory; returns the reason if it cannot be listed.
    fn below(
        &mut self,
        directory: &OwnedFd,
        name: &[u8],
        path: &str,
        depth: u32,
    ) -> Result<Option<String>, Stop> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Safe with `openat`: a single name without following links.
        match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(next) => self.directory(&next, &format!("{path}/"), depth + 1).map(|()| None),
            Err(Errno::ACCESS | Errno::PERM) => Ok(Some("not listed: the file system denies access".into())),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                Ok(Some("not listed: it was replaced concurrently".into()))
            }
            Err(errno) => Err(Stop::Failed(errno)),
        }
    }
}

fn target_of(directory: &OwnedFd, name: &[u8]) -> String {
    match rustix::fs::readlinkat(directory, name, Vec::new()) {
        Ok(target) => target.to_string_lossy().into_owned(),
        Err(errno) => format!("[unreadable: {errno}]"),
    }
}

fn modified(stat: &Stat) -> String {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let since = Duration::new(seconds, stat.st_mtime_nsec as u32);
    Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(directory: &std::path::Path) -> OwnedFd {
        rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn a_concurrently_created_file_is_not_overwritten_and_no_temporary_file_remains() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a"), "of another process").unwrap();
        let error = replace(&open(directory.path()), "a", None, "a", b"mine").unwrap_err();
        assert_eq!(error.code(), toolpost::Code::Conflict);
        let names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a"]);
        assert_eq!(std::fs::read(directory.path().join("a")).unwrap(), b"of another process");
    }

    #[test]
    fn truncated_names_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["c", "a", "b", ".h"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let names = |hidden, maximum| names_in(&open(directory.path()), hidden, maximum).unwrap();
        assert_eq!(names(false, 3), (vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()], false));
        let (some, more) = names(true, 3);
        assert_eq!((some.len(), more), (3, true));
    }
}
