// Linux: every path is resolved by `openat2` beneath an open root, so that no change made meanwhile leads out of it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;
use rustix::rand::GetRandomFlags;
use toolpost::{Timestamp, ToolError, did_you_mean};
use toolpost_sandbox::{EntryKind as Standing, Rejection, adds_git_driver};

use super::root::is_trusted;
use super::{Asked, EntryKind, Folder, Found, ListingEntry, Writing, Written, at_path, megabytes, shown};

/// Links inside the root are followed for reading; none out of it, and none of the kernel's own kind.
const READING: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// No link at all is followed for writing: what was checked by its path is what is written.
const WRITING: ResolveFlags = READING.union(ResolveFlags::NO_SYMLINKS);
/// How often the kernel is asked again when a rename crossed the way of a path.
const MAX_ATTEMPTS: u32 = 128;
/// The most names that one listing reads from folders.
const MAX_NAMES: usize = 200_000;
/// The most names that are compared for a suggestion.
const MAX_COMPARED: usize = 1000;
/// The most directories that lie above a file: a path has at most 4,096 bytes, and a mount can add to it.
const MAX_DIRECTORIES: usize = 8192;
/// The most copies of earlier files that lie beside one file.
const MAX_BACKUPS: u32 = 1000;
/// The most of a `.gitattributes` that is read for its drivers, in bytes.
const MAX_ATTRIBUTES: u64 = 1 << 20;

/// Who creates a file.
static TURN: Mutex<()> = Mutex::new(());

fn openat2(
    folder: impl AsFd,
    path: &str,
    flags: OFlags,
    mode: u32,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(mode);
    for _ in 0..MAX_ATTEMPTS {
        match rustix::fs::openat2(&folder, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens the folder of a call.
fn open_folder(folder: &Folder) -> Result<OwnedFd, ToolError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened =
        rustix::fs::open(&folder.root, flags, Mode::empty()).and_then(|root| match folder.beneath.to_str() {
            Some("") => Ok(root),
            Some(below) => openat2(&root, below, OFlags::PATH | OFlags::DIRECTORY, 0, WRITING),
            None => Err(Errno::ILSEQ),
        });
    opened.map_err(|errno| match errno {
        Errno::NOSYS | Errno::PERM => no_openat2(errno),
        errno => ToolError::precondition(format!(
            "the working folder `{}` cannot be opened: {errno}",
            folder.shown().display()
        ))
        .suggest("Make the folder, or give another working folder."),
    })
}

fn no_openat2(errno: Errno) -> ToolError {
    ToolError::precondition(format!(
        "the kernel does not let the file tools use `openat2`, which confines paths to a root: {errno}"
    ))
    .suggest("Use Linux 5.6 or later; in a container, allow the system call `openat2`.")
}

/// What an error of the kernel means for the path that a caller gave.
fn explain(errno: Errno, given: &str) -> ToolError {
    let name = shown(given);
    let invalid = |reason: &str| ToolError::invalid_path(format!("`{name}` {reason}"));
    let error = match errno {
        Errno::NOENT => invalid("does not exist"),
        Errno::XDEV => invalid("leads out of the working folder through a symbolic link")
            .suggest("Give the path of a file inside the working folder; links with an absolute target are not followed."),
        Errno::LOOP => invalid("leads through a symbolic link that is not followed")
            .suggest("Give the path that the link points to, if that lies in the working folder."),
        Errno::NOTDIR => invalid("goes on after a part that is not a folder"),
        Errno::ISDIR => invalid("is a folder"),
        Errno::NAMETOOLONG => invalid("is too long, or a name in it is"),
        Errno::ILSEQ => invalid("is not a name that this file system takes"),
        Errno::ACCESS | Errno::PERM => {
            ToolError::permission(format!("the file system does not permit this for `{name}`"))
                .suggest("Change the file's permissions, or use another path.")
        }
        Errno::ROFS => ToolError::permission(format!("`{name}` lies on a read-only file system"))
            .suggest("Use another folder."),
        Errno::NOSPC | Errno::DQUOT => ToolError::limit(format!("there is no room left for `{name}`"))
            .suggest("Delete files that are not needed, or write less."),
        Errno::FBIG => ToolError::limit(format!("`{name}` is larger than the file system takes")),
        Errno::AGAIN | Errno::BUSY | Errno::TXTBSY => {
            ToolError::conflict(format!("`{name}` is being changed by somebody else")).suggest("Try again.")
        }
        Errno::NOSYS => return no_openat2(errno),
        Errno::MFILE | Errno::NFILE => ToolError::overloaded("too many files are open on this machine"),
        errno => ToolError::dependency(format!("the file system failed for `{name}`: {errno}")),
    };
    at_path(error, given)
}

/// As [`explain`]; for a path that does not exist, names that resemble its missing part.
fn explain_missing(root: &OwnedFd, errno: Errno, relative: &str, given: &str) -> ToolError {
    let error = explain(errno, given);
    if errno != Errno::NOENT {
        return error;
    }
    let parts: Vec<&str> = relative.split('/').collect();
    for kept in (0..parts.len()).rev() {
        let parent = if kept == 0 { ".".to_owned() } else { parts[..kept].join("/") };
        let Ok(folder) = openat2(root, &parent, OFlags::RDONLY | OFlags::DIRECTORY, 0, READING) else {
            continue;
        };
        let names = names_in(&folder, true, MAX_COMPARED).map(|(names, _)| names).unwrap_or_default();
        let names: Vec<String> =
            names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let hint = did_you_mean(parts[kept], names.iter().map(String::as_str));
        return error.suggest(match hint {
            Some(hint) if kept == 0 => shown(&hint),
            Some(hint) => format!("{} It would lie in `{}`.", shown(&hint), shown(&parent)),
            None => "Use `list_directory` to see which files there are.".to_owned(),
        });
    }
    error
}

fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Refuses what is not a regular file.
fn check_regular(stat: &Stat, given: &str) -> Result<(), ToolError> {
    let (what, hint) = match kind_of(stat) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => ("a folder", "Use `list_directory` to see what is in it."),
        FileType::Symlink => ("a symbolic link", "Give the path that it points to."),
        FileType::Fifo => ("a pipe", "Only regular files are read and written."),
        FileType::Socket => ("a socket", "Only regular files are read and written."),
        _ => ("a device", "Only regular files are read and written."),
    };
    Err(at_path(ToolError::invalid_path(format!("`{}` is {what}: expected a file", shown(given))), given)
        .suggest(hint))
}

/// Reads a file of at most so many bytes.
pub(super) fn read(folder: &Folder, relative: &str, given: &str, maximum: u64) -> Result<Found, ToolError> {
    let root = open_folder(folder)?;
    let links = if folder.follows_links { READING } else { WRITING };
    // Looked at before it is opened: opening a pipe waits, and opening a device may do something.
    let look = openat2(&root, relative, OFlags::PATH, 0, links)
        .map_err(|errno| explain_missing(&root, errno, relative, given))?;
    let fail = |errno| explain(errno, given);
    check_regular(&rustix::fs::fstat(&look).map_err(fail)?, given)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat2(&root, relative, flags, 0, links).map_err(fail)?;
    let stat = rustix::fs::fstat(&file).map_err(fail)?;
    check_regular(&stat, given)?;
    let size = stat.st_size as u64;
    if size > maximum {
        return Err(too_large(given, size, maximum));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    File::from(file).take(maximum + 1).read_to_end(&mut bytes).map_err(|error| from_io(&error, given))?;
    if bytes.len() as u64 > maximum {
        return Err(too_large(given, bytes.len() as u64, maximum));
    }
    Ok(Found { bytes, size })
}

fn from_io(error: &std::io::Error, given: &str) -> ToolError {
    explain(Errno::from_io_error(error).unwrap_or(Errno::IO), given)
}

fn too_large(given: &str, size: u64, maximum: u64) -> ToolError {
    let message = format!(
        "`{}` has {}, and `max_size_mb` allows {}",
        shown(given),
        megabytes(size),
        megabytes(maximum)
    );
    at_path(ToolError::limit(message), given)
        .with("size", size)
        .suggest("Raise `max_size_mb` (at most 100), or run code that reads the file in pieces.")
}

/// Writes a file.
pub(super) fn write(
    folder: &Folder,
    relative: &str,
    given: &str,
    writing: &Writing<'_>,
) -> Result<Written, ToolError> {
    let root = open_folder(folder)?;
    let lookup = |path: &Path| lookup(&root, path);
    // One file is created at a time: two halves of a repository must not pass side by side.
    let is_new = lookup(Path::new(relative)).is_none();
    let _turn = is_new.then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner));
    folder.check_writable(relative, given, &lookup)?;
    let path = Path::new(relative);
    if adds_git_driver(path, || attributes(&root, relative), writing.bytes) && !folder.admits(path) {
        return Err(Folder::rejected(Rejection::GitDriver, given));
    }
    let (parent, name) = relative.rsplit_once('/').unwrap_or((".", relative));
    if writing.create_directories && parent != "." {
        create_directories(folder, &root, parent, given)?;
    }
    let parent = openat2(&root, parent, OFlags::RDONLY | OFlags::DIRECTORY, 0, WRITING).map_err(|errno| {
        let error = explain_missing(&root, errno, parent, given);
        if errno != Errno::NOENT {
            return error;
        }
        let message = format!("the folder of `{}` does not exist", shown(given));
        let hint = error.suggestion().filter(|hint| hint.starts_with("Did you mean")).unwrap_or_default();
        at_path(ToolError::invalid_path(message), given)
            .suggest(format!("Set `create_directories` to make it. {hint}").trim().to_owned())
    })?;
    let fail = |errno| explain(errno, given);
    if is_protected(&folder.host, &parent, name).map_err(fail)? {
        return Err(is_trusted(given));
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
    folder.take_room(given, copied.saturating_add(writing.bytes.len() as u64), created)?;
    let backup = match existing {
        Some(_) if writing.backup => Some(back_up(&parent, name, given)?),
        _ => None,
    };
    if writing.atomic {
        replace(&parent, name, existing.as_ref(), given, writing.bytes)?;
    } else {
        overwrite(&parent, name, existing.is_some(), given, writing.bytes)?;
    }
    // The name itself must survive a crash, too.
    rustix::fs::fsync(&parent).map_err(fail)?;
    Ok(Written { created: existing.is_none(), backup })
}

/// What stands at a path beneath the root. No link is followed, as for writing.
fn lookup(root: &OwnedFd, path: &Path) -> Option<Standing> {
    let look = openat2(root, path.to_str()?, OFlags::PATH | OFlags::NOFOLLOW, 0, WRITING).ok()?;
    Some(match kind_of(&rustix::fs::fstat(&look).ok()?) {
        FileType::RegularFile => Standing::File,
        FileType::Directory => Standing::Directory,
        FileType::Symlink => Standing::Link,
        _ => Standing::Special,
    })
}

/// The present content of a `.gitattributes`; empty if there is none that can be read.
fn attributes(root: &OwnedFd, relative: &str) -> Vec<u8> {
    let mut content = Vec::new();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    if let Ok(file) = openat2(root, relative, flags, 0, WRITING) {
        let _ = File::from(file).take(MAX_ATTRIBUTES).read_to_end(&mut content);
    }
    content
}

/// Whether a name in a directory is one of the host's protected paths, or lies beneath one. Files and directories are
/// compared, not their names: another spelling, a hard link, a mount or a parent that was renamed changes nothing.
fn is_protected(protected: &[PathBuf], parent: &OwnedFd, name: &str) -> Result<bool, Errno> {
    if protected.is_empty() {
        return Ok(false);
    }
    let same = |one: &Stat, other: &Stat| (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino);
    let found: Vec<Stat> = protected.iter().filter_map(|path| rustix::fs::stat(path).ok()).collect();
    let target = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    if target.is_some_and(|target| found.iter().any(|one| same(one, &target))) {
        return Ok(true);
    }
    let mut here = rustix::fs::fstat(parent)?;
    // A file that is missing, or that a link stands for, is known by its directory and its name.
    let is_named = |path: &PathBuf| {
        let is_name = path.file_name().is_some_and(|own| own.to_string_lossy().eq_ignore_ascii_case(name));
        let directory = path.parent().filter(|_| is_name).and_then(|parent| rustix::fs::stat(parent).ok());
        directory.is_some_and(|directory| same(&directory, &here))
    };
    if protected.iter().any(is_named) {
        return Ok(true);
    }
    let mut above = openat2(parent, ".", OFlags::PATH | OFlags::DIRECTORY, 0, WRITING)?;
    for _ in 0..MAX_DIRECTORIES {
        if found.iter().any(|one| same(one, &here)) {
            return Ok(true);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        above = match rustix::fs::openat(&above, "..", flags, Mode::empty()) {
            Ok(above) => above,
            // What lies above a directory that cannot be entered was not found by its path either.
            Err(Errno::ACCESS) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        let next = rustix::fs::fstat(&above)?;
        // The root is above itself.
        if same(&next, &here) {
            return Ok(false);
        }
        here = next;
    }
    Ok(true)
}

fn create_directories(work: &Folder, root: &OwnedFd, path: &str, given: &str) -> Result<(), ToolError> {
    let fail = |errno| explain(errno, given);
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut folder = openat2(root, ".", flags, 0, WRITING).map_err(fail)?;
    for part in path.split('/') {
        folder = match openat2(&folder, part, flags, 0, WRITING) {
            Ok(next) => next,
            Err(Errno::NOENT) => {
                work.take_room(given, 0, 1)?;
                match rustix::fs::mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(fail(errno)),
                }
                openat2(&folder, part, flags, 0, WRITING).map_err(fail)?
            }
            Err(errno) => return Err(fail(errno)),
        };
    }
    Ok(())
}

/// Opens a regular file of a folder; links, pipes and devices are refused without waiting.
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

/// Copies a file beside itself, under a name that nobody has.
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
    let message = format!("`{}` has {MAX_BACKUPS} copies of earlier versions already", shown(given));
    Err(at_path(ToolError::limit(message), given)
        .suggest("Set `create_backup` to false, or move the copies elsewhere."))
}

/// A new file that goes away again unless it is kept.
struct Unfinished<'a> {
    parent: &'a OwnedFd,
    name: String,
    file: File,
    keep: bool,
}

impl Unfinished<'_> {
    /// Gives it the owner and permissions of the file that it stands for, and brings it to the disk.
    fn finish(&self, like: Option<&Stat>) -> Result<(), Errno> {
        if let Some(like) = like {
            let own = rustix::fs::fstat(&self.file)?;
            if (own.st_uid, own.st_gid) != (like.st_uid, like.st_gid) {
                let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
                match rustix::fs::fchown(&self.file, Some(owner), Some(group)) {
                    // Only an administrator gives files away; for others the file is theirs from now on.
                    Ok(()) | Err(Errno::PERM | Errno::INVAL) => {}
                    Err(errno) => return Err(errno),
                }
            }
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(like.st_mode & 0o777))?;
        }
        rustix::fs::fsync(&self.file)
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.keep {
            // Nothing can be done about a file that cannot be removed, and the error that led here is told.
            let _ = rustix::fs::unlinkat(self.parent, &self.name, AtFlags::empty());
        }
    }
}

/// Writes a new file under a name that nobody can know, and gives it the name of the old one.
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
            ToolError::conflict(format!("somebody else made `{}` at the same time", shown(given))),
            given,
        )
        .suggest("Read it, then decide whether to write it again.")),
        Err(errno) => Err(fail(errno)),
    }
}

/// Gives a file a name, unless somebody has that name.
fn name_new(parent: &OwnedFd, temporary: &str, name: &str) -> Result<(), Errno> {
    match rustix::fs::renameat_with(parent, temporary, parent, name, RenameFlags::NOREPLACE) {
        // Not every file system can; a hard link does not replace either.
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(parent, temporary, parent, name, AtFlags::empty())?;
            rustix::fs::unlinkat(parent, temporary, AtFlags::empty())
        }
        result => result,
    }
}

/// Writes into the file itself.
fn overwrite(parent: &OwnedFd, name: &str, exists: bool, given: &str, bytes: &[u8]) -> Result<(), ToolError> {
    let fail = |errno| explain(errno, given);
    let mut file = if exists {
        let (file, stat) = open_regular(parent, name, OFlags::WRONLY, given)?;
        if stat.st_nlink > 1 {
            let message = format!(
                "`{}` has {} names (hard links), and writing into it would change all of them",
                shown(given),
                stat.st_nlink
            );
            return Err(at_path(ToolError::permission(message), given)
                .suggest("Leave `atomic` at true: that gives this name a file of its own."));
        }
        rustix::fs::ftruncate(&file, 0).map_err(fail)?;
        file
    } else {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        File::from(openat2(parent, name, flags, 0o666, WRITING).map_err(fail)?)
    };
    file.write_all(bytes).map_err(|error| from_io(&error, given))?;
    rustix::fs::fsync(&file).map_err(fail)
}

/// The names in a folder, sorted, and whether there are more than were read.
fn names_in(folder: &OwnedFd, include_hidden: bool, maximum: usize) -> Result<(Vec<Vec<u8>>, bool), Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." || (name.starts_with(b".") && !include_hidden) {
            continue;
        }
        if names.len() == maximum {
            names.sort_unstable();
            return Ok((names, true));
        }
        names.push(name.to_vec());
    }
    names.sort_unstable();
    Ok((names, false))
}

/// Lists a folder: the entries, and whether there are more.
pub(super) fn list(
    folder: &Folder,
    relative: &str,
    given: &str,
    asked: &Asked<'_>,
) -> Result<(Vec<ListingEntry>, bool), ToolError> {
    let root = open_folder(folder)?;
    let look = openat2(&root, relative, OFlags::PATH, 0, READING)
        .map_err(|errno| explain_missing(&root, errno, relative, given))?;
    let fail = |errno| explain(errno, given);
    if kind_of(&rustix::fs::fstat(&look).map_err(fail)?) != FileType::Directory {
        let message = format!("`{}` is not a folder", shown(given));
        return Err(at_path(ToolError::invalid_path(message), given)
            .suggest("Use `read_file` for a file, or list the folder that it lies in."));
    }
    let opened = openat2(&root, relative, OFlags::RDONLY | OFlags::DIRECTORY, 0, READING).map_err(fail)?;
    let prefix = if relative == "." { String::new() } else { format!("{relative}/") };
    let mut walk =
        Walk { asked, base: prefix.len(), entries: Vec::new(), names_left: MAX_NAMES, truncated: false };
    walk.folder(&opened, &prefix, 1).map_err(|stop| match stop {
        Stop::Failed(errno) => fail(errno),
        Stop::Cancelled => ToolError::cancelled("the caller asked to stop"),
    })?;
    Ok((walk.entries, walk.truncated))
}

enum Stop {
    Failed(Errno),
    Cancelled,
}

struct Walk<'a> {
    asked: &'a Asked<'a>,
    /// How many bytes of a path stand before its part below the listed folder.
    base: usize,
    entries: Vec<ListingEntry>,
    names_left: usize,
    truncated: bool,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &OwnedFd, prefix: &str, depth: u32) -> Result<(), Stop> {
        let (names, more) =
            names_in(folder, self.asked.include_hidden, self.names_left).map_err(Stop::Failed)?;
        self.names_left -= names.len();
        self.truncated |= more;
        for name in names {
            if (self.asked.is_cancelled)() {
                return Err(Stop::Cancelled);
            }
            let stat = match rustix::fs::statat(folder, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // It went away since its name was read.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(Stop::Failed(errno)),
            };
            let path = format!("{prefix}{}", String::from_utf8_lossy(&name));
            let kind = match kind_of(&stat) {
                FileType::RegularFile => EntryKind::File,
                FileType::Directory => EntryKind::Directory,
                FileType::Symlink => EntryKind::Symlink,
                _ => EntryKind::Special,
            };
            let below = path.get(self.base..).unwrap_or_default();
            let mut position = None;
            if self.asked.pattern.is_none_or(|pattern| pattern.matches(below)) {
                if self.entries.len() == self.asked.max_entries {
                    self.truncated = true;
                    return Ok(());
                }
                position = Some(self.entries.len());
                self.entries.push(ListingEntry {
                    path: path.clone(),
                    kind,
                    size: if kind == EntryKind::File { stat.st_size as u64 } else { 0 },
                    modified: modified(&stat),
                    target: (kind == EntryKind::Symlink).then(|| target_of(folder, &name)),
                    note: None,
                });
            }
            if kind == EntryKind::Directory && depth < self.asked.max_depth {
                let note = self.below(folder, &name, &path, depth)?;
                if let (Some(note), Some(entry)) = (note, position.and_then(|at| self.entries.get_mut(at))) {
                    entry.note = Some(note);
                }
                if self.entries.len() == self.asked.max_entries && self.truncated {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Lists a folder in a folder; gives the reason if it cannot be listed.
    fn below(
        &mut self,
        folder: &OwnedFd,
        name: &[u8],
        path: &str,
        depth: u32,
    ) -> Result<Option<String>, Stop> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // One name, and no link: there is nothing to be led astray by.
        match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(next) => self.folder(&next, &format!("{path}/"), depth + 1).map(|()| None),
            Err(Errno::ACCESS | Errno::PERM) => {
                Ok(Some("not listed: the file system does not permit it".into()))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                Ok(Some("not listed: it was replaced meanwhile".into()))
            }
            Err(errno) => Err(Stop::Failed(errno)),
        }
    }
}

fn target_of(folder: &OwnedFd, name: &[u8]) -> String {
    match rustix::fs::readlinkat(folder, name, Vec::new()) {
        Ok(target) => target.to_string_lossy().into_owned(),
        Err(errno) => format!("[not readable: {errno}]"),
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

    fn open(folder: &std::path::Path) -> OwnedFd {
        rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    #[test]
    fn a_name_that_appears_meanwhile_is_not_overwritten_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "of somebody else").unwrap();
        let error = replace(&open(folder.path()), "a", None, "a", b"mine").unwrap_err();
        assert_eq!(error.code(), toolpost::Code::Conflict);
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a"]);
        assert_eq!(std::fs::read(folder.path().join("a")).unwrap(), b"of somebody else");
    }

    #[test]
    fn more_names_than_are_read_are_said() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["c", "a", "b", ".h"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names = |hidden, maximum| names_in(&open(folder.path()), hidden, maximum).unwrap();
        assert_eq!(names(false, 3), (vec![b"a".to_vec(), b"b".to_vec(), b"c".to_vec()], false));
        let (some, more) = names(true, 3);
        assert_eq!((some.len(), more), (3, true));
    }
}
