//! Lists the writes of a program in its layer as changes of the host directory.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::super::files::open_beneath;

/// The maximum number of listed changes; the rest stays in the layer.
const MAX_CHANGES: usize = 1_000_000;
/// The maximum size of all listed paths.
const MAX_PATH_BYTES: usize = 256 << 20;
/// The maximum depth of listed directories.
const MAX_DEPTH: usize = 256;

/// The reason for incomplete lists that another apply does not complete.
pub(super) const TOO_DEEP: &str = "directories are nested deeper than 256 levels";

/// The target of a link that stands for a deleted entry. No program would use it: the name does not exist.
const DELETED: &str = "toolpost:deleted";

/// The attributes that mark an overlay directory as opaque, for root and for others.
const OPAQUE: [&CStr; 2] = [c"trusted.overlay.opaque", c"user.overlay.opaque"];

/// The new state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A directory. If opaque, it hides the host's directory of that name.
    Directory { opaque: bool },
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// Deleted.
    Deleted,
    /// A socket, a FIFO or a device, which apply never creates.
    Special,
}

/// A change in a layer.
#[derive(Debug)]
pub(super) struct Change {
    /// Relative to the directory.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) stat: Stat,
}

/// The changes of a layer, each directory before its content.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) list: Vec<Change>,
    /// The reason why the list is incomplete.
    pub(super) left_out: Option<&'static str>,
}

/// Whether a layer is empty.
pub(super) fn is_empty(upper: BorrowedFd<'_>) -> bool {
    let Ok(directory) =
        open_beneath(upper, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    else {
        return false;
    };
    let mut buffer = Vec::with_capacity(1 << 10);
    names(&directory, &mut buffer).is_empty()
}

/// The names in a directory, sorted.
pub(in super::super) fn names(directory: &OwnedFd, buffer: &mut Vec<u8>) -> Vec<CString> {
    let mut names = Vec::new();
    let mut entries = rustix::fs::RawDir::new(directory, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if name.to_bytes() != b"." && name.to_bytes() != b".." {
            names.push(name.to_owned());
        }
        if names.len() > MAX_CHANGES {
            break;
        }
    }
    names.sort_unstable();
    names
}

/// Lists the changes of a layer.
pub(super) fn list(upper: BorrowedFd<'_>) -> Changes {
    let mut changes = Changes::default();
    let mut buffer = Vec::with_capacity(32 << 10);
    let Ok(root) = open_beneath(upper, Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    else {
        changes.left_out = Some("opening the layer failed");
        return changes;
    };
    // One open directory per level, so that neither path length nor depth is a problem.
    let first = names(&root, &mut buffer).into_iter();
    let mut open = vec![(PathBuf::new(), first, root, false)];
    let mut path_bytes = 0;
    loop {
        let depth = open.len();
        let Some((below, rest, directory, is_hidden)) = open.last_mut() else { break };
        let Some(name) = rest.next() else {
            open.pop();
            continue;
        };
        if changes.list.len() >= MAX_CHANGES {
            changes.left_out = Some("there are more than 1,000,000");
            break;
        }
        path_bytes += below.as_os_str().len() + name.count_bytes() + 1;
        if path_bytes > MAX_PATH_BYTES {
            changes.left_out = Some("their paths take more than 256 MiB");
            break;
        }
        let path = below.join(OsStr::from_bytes(name.to_bytes()));
        let Ok(stat) = rustix::fs::statat(&*directory, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW) else {
            continue;
        };
        let mut inner = None;
        let is_hidden = *is_hidden;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let Ok(opened) = open_inner(directory.as_fd(), &name, &stat) else {
                    changes.left_out = Some("opening a directory failed");
                    continue;
                };
                // The kernel marks only the top one: what is below it hides the host's content, too.
                let opaque = is_hidden || is_opaque(&opened);
                if depth < MAX_DEPTH {
                    inner = Some(opened);
                } else {
                    changes.left_out = Some(TOO_DEEP);
                }
                Kind::Directory { opaque }
            }
            FileType::RegularFile => Kind::File,
            _ if is_whiteout(directory.as_fd(), &name, &stat) => Kind::Deleted,
            FileType::Symlink => Kind::Link,
            _ => Kind::Special,
        };
        if let Some(inner) = inner {
            let names = names(&inner, &mut buffer).into_iter();
            open.push((path.clone(), names, inner, kind == Kind::Directory { opaque: true }));
        }
        changes.list.push(Change { path, kind, stat });
    }
    changes
}

/// Restores the modes of directories that the list had to open.
pub(super) fn restore_modes(upper: BorrowedFd<'_>, changes: &Changes) {
    for change in changes.list.iter().rev() {
        let mode = change.stat.st_mode & 0o777;
        if matches!(change.kind, Kind::Directory { .. }) && mode & 0o700 != 0o700 {
            let opened = open_beneath(upper, &change.path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
            let _ = opened.and_then(|opened| rustix::fs::fchmod(opened, Mode::from_raw_mode(mode)));
        }
    }
}

/// Creates the entry that stands for a deleted one: a whiteout of the kernel, else a link.
pub(super) fn whiteout(directory: BorrowedFd<'_>, name: &OsStr) -> Result<(), Errno> {
    match rustix::fs::mknodat(directory, name, FileType::CharacterDevice, Mode::empty(), 0) {
        // An overlay file system, as in containers, has no whiteouts of others.
        Err(Errno::PERM) => rustix::fs::symlinkat(DELETED, directory, name),
        made => made,
    }
}

/// Whether an entry stands for a deleted one. A program can make such a link, which then deletes what it could delete
/// itself.
pub(super) fn is_whiteout(directory: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> bool {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => stat.st_rdev == 0,
        FileType::Symlink if stat.st_size.unsigned_abs() == DELETED.len() as u64 => {
            rustix::fs::readlinkat(directory, name, Vec::new())
                .is_ok_and(|target| target.to_bytes() == DELETED.as_bytes())
        }
        _ => false,
    }
}

/// Opens a directory of the layer. The program may have removed its owner's permissions; apply restores them.
fn open_inner(directory: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> Result<OwnedFd, Errno> {
    if stat.st_mode & 0o700 != 0o700 {
        // By descriptor: a running program may replace it by a link at any time.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(directory, name, flags, Mode::empty())?;
        if rustix::fs::fstat(&found)?.st_ino != stat.st_ino {
            return Err(Errno::NOENT);
        }
        let path = format!("/proc/self/fd/{}", found.as_raw_fd());
        rustix::fs::chmod(path, Mode::from_raw_mode(stat.st_mode & 0o777 | 0o700))?;
    }
    rustix::fs::openat(directory, name, super::DIRECTORY, Mode::empty())
}

pub(super) fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0u8; 8];
    matches!(rustix::fs::fgetxattr(directory, opaque(), &mut value), Ok(1)) && value[0] == b'y'
}

/// Lets a directory of the layer no longer hide the host's directory of that name.
pub(super) fn clear_opaque(directory: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fremovexattr(directory, opaque())
}

fn opaque() -> &'static CStr {
    let [of_root, of_user] = OPAQUE;
    // In root's layer the `user.` attribute comes from the program or the host and has no meaning.
    if rustix::process::geteuid().is_root() { of_root } else { of_user }
}

/// Removes overlay attributes, and those that the program set, from a file that leaves the layer.
pub(super) fn remove_attributes(file: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut list = vec![0u8; 64 << 10];
    let length = match rustix::fs::flistxattr(file, &mut list) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(error),
    };
    for name in list.get(..length).unwrap_or_default().split(|byte| *byte == 0) {
        // Labels of the host's security modules stay.
        if (name.starts_with(b"user.")
            || name.starts_with(b"trusted.")
            || name.starts_with(b"system.posix_acl")
            || name == b"security.capability")
            && let Ok(name) = CString::new(name)
        {
            rustix::fs::fremovexattr(file, name.as_c_str())?;
        }
    }
    Ok(())
}
