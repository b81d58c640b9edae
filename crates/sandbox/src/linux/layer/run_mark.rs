//! A run whose layers are undone together, and the layers of its file tools.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fd::AsFd as _;
use rustix::fs::{FlockOperation, Mode, OFlags, Stat};

use super::super::files::open_beneath;
use super::super::lock::Locked;
use super::entries::copy_old;
use super::held::{self, Done, State, Was};
use super::live::parent;
use super::view::{identity, is_directory, is_regular, stat_of};
use super::{OLD, Overlay, own_directory, parents};
use crate::Error;

/// The name of the mark of a run, in a directory for layers.
fn name(id: &str) -> String {
    format!("run-{id}")
}

/// The mark of a run that continues: a locked file, from the first change to the end of the run.
#[derive(Debug)]
pub(crate) struct RunMark {
    id: String,
    chosen: Option<PathBuf>,
    /// Its path and the file with the lock.
    file: Mutex<Option<(PathBuf, Locked)>>,
}

impl RunMark {
    pub(crate) fn create(chosen: Option<&Path>) -> Result<Self, Error> {
        let id = super::fresh_id().map_err(|source| Error::Setup { step: "mark the run", source })?;
        Ok(Self { id, chosen: chosen.map(Path::to_owned), file: Mutex::new(None) })
    }

    /// Sets the mark. Other runs then remove no old version of this one.
    pub(crate) fn set(&self) -> io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.is_some() {
            return Ok(());
        }
        let place = parents(self.chosen.as_deref()).into_iter().next().ok_or(io::ErrorKind::NotFound)?;
        let path = own_directory(&place)?.join(name(&self.id));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))?;
        *file = Some((path, Locked::within(made, held::LOCKED_FOR)?));
        Ok(())
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Stores the old version of a file; none if that fails.
    pub(crate) fn writing(&self, directory: &Path, file: &Path) -> Option<OldVersion> {
        OldVersion::store(self, directory, file).ok()
    }
}

impl Drop for RunMark {
    fn drop(&mut self) {
        if let Some((path, _)) = self.file.get_mut().unwrap_or_else(PoisonError::into_inner) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Whether a run continues.
pub(super) fn is_active(id: &str, chosen: Option<&Path>) -> bool {
    parents(chosen).into_iter().any(|place| is_locked(&place.join(name(id))) == Some(true))
}

/// Whether the mark at a path is locked; none without a mark.
fn is_locked(path: &Path) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    Some(rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// Removes the mark of a killed run.
pub(super) fn remove_stale(path: &Path) {
    let is_mark = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"run-"));
    if is_mark && is_locked(path) == Some(false) {
        let _ = std::fs::remove_file(path);
    }
}

/// The layer of a file tool: it holds no change, but the old version of the written file.
#[derive(Debug)]
pub(crate) struct OldVersion {
    layer: Overlay,
    path: PathBuf,
    before: Option<Stat>,
    /// The number of the old version.
    old: Option<u64>,
    /// The directories above the file that are missing, the outermost first.
    missing: Vec<PathBuf>,
}

impl OldVersion {
    fn store(mark: &RunMark, directory: &Path, file: &Path) -> io::Result<Self> {
        mark.set()?;
        let host = super::open_directory(directory)?;
        let stat = rustix::fs::fstat(&host)?;
        let directory = directory.canonicalize()?;
        let mut layer = Overlay::of_copy(host.as_fd(), &directory, &stat, mark.chosen.as_deref())?;
        layer.record.run = Some(mark.id.clone());
        let before = stat_of(host.as_fd(), file)?;
        let mut old = None;
        if let Some(before) = before.as_ref().filter(|before| is_regular(before)) {
            rustix::fs::mkdirat(&layer.directory, OLD, Mode::from_raw_mode(0o700))?;
            let place = open_beneath(
                layer.directory.as_fd(),
                Path::new(OLD),
                OFlags::RDONLY | OFlags::DIRECTORY,
                Mode::empty(),
            )?;
            let (above, name) = parent(host.as_fd(), file)?;
            old = copy_old(above.as_fd(), &name, before, place.as_fd(), 1).then_some(1);
        }
        let above = file.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        let is_missing = |above: &&Path| matches!(stat_of(host.as_fd(), above), Ok(None));
        let mut missing: Vec<PathBuf> = above.take_while(is_missing).map(Path::to_owned).collect();
        missing.reverse();
        Ok(Self { layer, path: file.to_owned(), before, old, missing })
    }

    /// Keeps the old version of the written file. Returns whether undo can restore it.
    pub(crate) fn keep(mut self) -> bool {
        let host = self.layer.host.as_fd();
        let made = |path: &Path, before: Option<&Stat>, old: Option<u64>| {
            let now = stat_of(host, path).ok().flatten();
            Done {
                path: std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec(),
                now: now.as_ref().map(identity),
                was: if before.is_some() { Was::Entry } else { Was::Nothing },
                old,
                is_directory: now.as_ref().is_some_and(is_directory),
                before: before.map(identity),
            }
        };
        let mut done: Vec<Done> = self.missing.iter().map(|path| made(path, None, None)).collect();
        done.push(made(&self.path, self.before.as_ref(), self.old));
        self.layer.record.state = State::Applied;
        let kept = held::save_done(self.layer.directory.as_fd(), &done).and_then(|()| self.layer.save());
        if kept.is_ok() {
            self.layer.end_other_undo();
        }
        kept.is_ok() && (self.before.is_none() || self.old.is_some())
    }
}
