//! Protected files of the host by identity, under all of their names.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use toolpost_sandbox::{Loader, ProtectedPath};

use super::root::is_code;

/// Maximum number of parents of a file: a path has at most 4,096 bytes, and a mount can add to it.
const MAX_DIRECTORIES: usize = 8192;
/// Maximum number of entries of a directory with code to search for another name of a file.
const MAX_ENTRIES: usize = 200_000;

/// Whether two names have one file.
fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Whether a name in a directory is, or is beneath, one of the host's protected paths.
///
/// Compares files by identity, so that spellings, hard links, mounts and renamed parents do not matter.
pub(super) fn is_protected(protected: &[ProtectedPath], parent: &OwnedFd, name: &str) -> Result<bool, Errno> {
    let paths = || protected.iter().filter(|one| !is_code(one)).map(ProtectedPath::path);
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
    Ok(!found.is_empty() && above(parent, |_, here| found.iter().any(|one| is_same(one, here)))?.is_some())
}

/// Whether a trusted program can load a file, by the identity of its directories and of the file.
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
    if above(parent, loads)?.is_some() {
        return Ok(true);
    }
    // Another name of the file can be in a directory with code.
    match rustix::fs::statat(parent, path.file_name().unwrap_or_default(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_nlink > 1 && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {
            Ok(code.iter().any(|(directory, loader, _)| has_file(directory, *loader, &stat)))
        }
        _ => Ok(false),
    }
}

/// Whether a directory has a name of a file that a program can load; also if it is too large to search.
fn has_file(directory: &Path, loader: Loader, file: &Stat) -> bool {
    let mut waiting = vec![directory.to_owned()];
    let mut count = 0;
    while let Some(above) = waiting.pop() {
        for entry in above.read_dir().into_iter().flatten().flatten() {
            count += 1;
            if count > MAX_ENTRIES {
                return true;
            }
            let (path, kind) = (entry.path(), entry.file_type());
            match kind {
                Ok(kind) if kind.is_dir() => waiting.push(path),
                Ok(kind) if kind.is_file() => {
                    let is_loaded = loader.may_load(path.strip_prefix(directory).unwrap_or(&path));
                    if is_loaded && rustix::fs::stat(&path).is_ok_and(|stat| is_same(&stat, file)) {
                        return true;
                    }
                }
                _ => {}
            }
        }
    }
    false
}

/// The number of the first directory from a directory upwards that fits: 0 is the directory itself.
///
/// A path that is too deep fits.
fn above(start: &OwnedFd, mut fits: impl FnMut(usize, &Stat) -> bool) -> Result<Option<usize>, Errno> {
    let mut here = rustix::fs::fstat(start)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut above = rustix::fs::openat(start, ".", flags, Mode::empty())?;
    for depth in 0..MAX_DIRECTORIES {
        if fits(depth, &here) {
            return Ok(Some(depth));
        }
        above = match rustix::fs::openat(&above, "..", flags, Mode::empty()) {
            Ok(above) => above,
            // A parent that cannot be entered cannot be a protected path's parent.
            Err(Errno::ACCESS) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let next = rustix::fs::fstat(&above)?;
        // The root is its own parent.
        if is_same(&next, &here) {
            return Ok(None);
        }
        here = next;
    }
    Ok(Some(MAX_DIRECTORIES))
}
