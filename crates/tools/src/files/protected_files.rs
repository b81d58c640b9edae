//! Protected files of the host by identity, under all of their names.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;
use toolpost_sandbox::{Loader, ProtectedPath};

/// Maximum number of parents of a file: a path has at most 4,096 bytes, and a mount can add to it.
const MAX_DIRECTORIES: usize = 8192;

/// Whether two names have one file.
fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Whether a name in a directory is, or is beneath, one of the host's protected paths.
///
/// Compares files by identity, so that spellings, hard links, mounts and renamed parents do not matter.
pub(super) fn is_protected(protected: &[ProtectedPath], parent: &OwnedFd, name: &str) -> Result<bool, Errno> {
    let paths = || protected.iter().filter(|one| one.is_whole()).map(ProtectedPath::path);
    let found: Vec<Stat> = paths().filter_map(|path| rustix::fs::stat(path).ok()).collect();
    let target = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).ok();
    if target.is_some_and(|target| found.iter().any(|one| is_same(one, &target))) {
        return Ok(true);
    }
    let here = rustix::fs::fstat(parent)?;
    // A missing file, or one behind a link, is identified by its directory and its name.
    let is_named = |path: &Path| {
        let is_name = path.file_name().is_some_and(|own| own.to_string_lossy().eq_ignore_ascii_case(name));
        let directory = path.parent().filter(|_| is_name).and_then(|parent| rustix::fs::stat(parent).ok());
        directory.is_some_and(|directory| is_same(&directory, &here))
    };
    if paths().any(is_named) {
        return Ok(true);
    }
    if found.is_empty() {
        return Ok(false);
    }
    above(parent, |_, here| found.iter().any(|one| is_same(one, here)))
}

/// Whether a trusted program can load a file, by the identity of its directories.
///
/// A write to one of several hard links replaces that name alone, or is rejected.
pub(super) fn is_trusted_code(
    protected: &[ProtectedPath],
    parent: &OwnedFd,
    path: &Path,
) -> Result<bool, Errno> {
    let code: Vec<(&Path, Loader, Stat)> = protected
        .iter()
        .filter_map(|one| match one {
            ProtectedPath::Code { directory, loader } => {
                Some((directory.as_path(), *loader, rustix::fs::stat(directory).ok()?))
            }
            _ => None,
        })
        .collect();
    if code.is_empty() {
        return Ok(false);
    }
    let names: Vec<&OsStr> = path.iter().collect();
    let loads = |depth: usize, here: &Stat| {
        let beneath: PathBuf = names.iter().skip(names.len().saturating_sub(depth + 1)).collect();
        code.iter().any(|(_, loader, stat)| is_same(stat, here) && loader.may_load(&beneath))
    };
    above(parent, loads)
}

/// Whether a directory or one above fits, with the number of names between. A path that is too deep fits.
fn above(start: &OwnedFd, mut fits: impl FnMut(usize, &Stat) -> bool) -> Result<bool, Errno> {
    let mut here = rustix::fs::fstat(start)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above = rustix::fs::openat(start, ".", flags, Mode::empty())?;
    for depth in 0..MAX_DIRECTORIES {
        if fits(depth, &here) {
            return Ok(true);
        }
        above = match rustix::fs::openat(&above, "..", flags, Mode::empty()) {
            Ok(above) => above,
            // A parent that cannot be entered cannot be a protected path's parent.
            Err(Errno::ACCESS) => return Ok(false),
            Err(errno) => return Err(errno),
        };
        let next = rustix::fs::fstat(&above)?;
        // The root is its own parent.
        if is_same(&next, &here) {
            return Ok(false);
        }
        here = next;
    }
    Ok(true)
}
