//! The directory of a private copy: in its layer, or where another user reaches it.
//!
//! A layer lies in a directory that only this user can enter. Without a mount namespace, root's programs run as
//! another user, so their copies lie apart. The record of the layer names such a copy, for the end of a killed run.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::super::temporary;
use super::{DIRECTORY, is_in_memory, open_directory, path_of};

/// The directory of a copy in its layer.
const COPY: &str = "copy";
/// The prefix of a copy apart from its layer; 16 random hexadecimal digits follow.
const PREFIX: &str = "toolpost-copy-";

/// A copy apart from its layer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CopyApart {
    /// Its path, as bytes.
    path: Vec<u8>,
    device: u64,
    inode: u64,
}

/// The open directory of a copy.
#[derive(Debug)]
pub(super) struct CopyPlace {
    pub(super) path: PathBuf,
    pub(super) directory: OwnedFd,
    pub(super) apart: Option<CopyApart>,
}

impl CopyPlace {
    /// Creates the directory in a layer.
    pub(super) fn within(layer: BorrowedFd<'_>, path: &Path) -> io::Result<Self> {
        rustix::fs::mkdirat(layer, COPY, Mode::from_raw_mode(0o700))?;
        let directory = rustix::fs::openat(layer, COPY, DIRECTORY, Mode::empty())?;
        Ok(Self { path: path.join(COPY), directory, apart: None })
    }

    /// Creates the directory where every user can reach it, but not in `host`. Its owner is not set.
    pub(super) fn apart(host: &Path) -> io::Result<Self> {
        let mut random = [0u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("{PREFIX}{:016x}", u64::from_ne_bytes(random));
        let mut failure = io::Error::other("no directory for temporary files can be reached by other users");
        for parent in parents(host) {
            let path = parent.join(&name);
            match rustix::fs::mkdir(&path, Mode::from_raw_mode(0o700)) {
                Ok(()) => {}
                Err(error) => {
                    failure = error.into();
                    continue;
                }
            }
            let directory = open_directory(&path)?;
            let stat = rustix::fs::fstat(&directory)?;
            let apart = CopyApart {
                path: path.as_os_str().as_bytes().to_vec(),
                device: stat.st_dev,
                inode: stat.st_ino,
            };
            return Ok(Self { path, directory, apart: Some(apart) });
        }
        Err(failure)
    }

    /// Opens the copy of a layer.
    pub(super) fn open(layer: BorrowedFd<'_>, apart: Option<&CopyApart>) -> io::Result<OwnedFd> {
        match apart {
            None => Ok(rustix::fs::openat(layer, COPY, DIRECTORY, Mode::empty())?),
            Some(apart) => apart.open(),
        }
    }

    /// Removes the copy of a layer.
    pub(super) fn remove(layer: BorrowedFd<'_>, apart: Option<&CopyApart>) {
        if let Ok(copy) = Self::open(layer, apart) {
            temporary::empty(copy.as_fd());
            let _ = match apart {
                None => rustix::fs::unlinkat(layer, COPY, AtFlags::REMOVEDIR),
                Some(apart) => rustix::fs::rmdir(path_of(&apart.path)),
            };
        }
    }
}

impl CopyApart {
    fn open(&self) -> io::Result<OwnedFd> {
        let path = path_of(&self.path);
        let is_one = path.file_name().is_some_and(|name| name.as_bytes().starts_with(PREFIX.as_bytes()));
        let directory = open_directory(&path)?;
        let stat = rustix::fs::fstat(&directory)?;
        if is_one && (stat.st_dev, stat.st_ino) == (self.device, self.inode) {
            Ok(directory)
        } else {
            // Another directory has its name by now.
            Err(Errno::NOENT.into())
        }
    }
}

/// The directories for copies, those on disk first.
fn parents(host: &Path) -> Vec<PathBuf> {
    let all = [std::env::temp_dir(), PathBuf::from("/var/tmp"), PathBuf::from("/tmp")];
    let mut found: Vec<PathBuf> = Vec::new();
    for parent in all.iter().filter_map(|parent| parent.canonicalize().ok()) {
        if is_passable(&parent) && !parent.starts_with(host) && !found.contains(&parent) {
            found.push(parent);
        }
    }
    found.sort_by_key(|parent| is_in_memory(parent));
    found
}

/// Whether every user can reach what lies in a directory.
pub(in super::super) fn is_passable(directory: &Path) -> bool {
    directory
        .ancestors()
        .filter(|directory| *directory != OsStr::new(""))
        .all(|directory| directory.metadata().is_ok_and(|metadata| metadata.mode() & 0o001 != 0))
}
