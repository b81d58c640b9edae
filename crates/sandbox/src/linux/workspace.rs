//! A folder of the host as workspace: how the program gets it, and what in it stays protected.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, Timespec};
use rustix::io::Errno;

use super::files::{Owner, open_beneath};
use super::launch::c_string;
use super::repositories::{self, Repositories};
use super::steps::{Step, attribute};
use super::{Facts, identity};
use crate::{Error, PROTECTED_PATHS};

/// Placeholders of this process, by folder: how many runs use each, and which files were made.
static PLACEHOLDERS: Mutex<BTreeMap<(u64, u64), Placeholders>> = Mutex::new(BTreeMap::new());

/// The time of every placeholder: 1 January 1980, with a fraction of a second that nobody else has.
const MARK: Timespec = Timespec { tv_sec: 315_532_800, tv_nsec: 0x2C6F_6F6C };

const NO_EXTRAS: u64 = attribute::NO_SETUID | attribute::NO_DEVICES;

#[derive(Debug, Default)]
struct Placeholders {
    runs: usize,
    /// The path, its inode, and whether it is a folder.
    made: Vec<(&'static str, u64, bool)>,
}

/// A host folder that is open, checked, and protected while this lives.
#[derive(Debug)]
pub(super) struct HostFolder {
    path: PathBuf,
    descriptor: OwnedFd,
    stat: Stat,
    tree: Option<OwnedFd>,
    /// Protected paths that exist now: path and whether it is a folder.
    protected: Vec<(&'static str, bool)>,
    /// Repositories below the top.
    repositories: Repositories,
    guard: bool,
    read_only: bool,
}

fn refuse(path: &Path, reason: impl Into<String>) -> Error {
    Error::Workspace { path: path.to_owned(), reason: reason.into() }
}

impl HostFolder {
    /// Opens and checks a folder. With `masks` the protected paths that are missing get placeholders.
    pub(super) fn open(given: &Path, facts: &Facts, masks: bool) -> Result<Self, Error> {
        let mut folder = Self::find(given, facts, false)?;
        if masks {
            folder.remove_stale();
            folder.make_placeholders().map_err(|reason| refuse(given, reason))?;
            folder.repositories = repositories::find(folder.descriptor());
        }
        Ok(folder)
    }

    /// Opens and checks a folder that is only read: nothing in it needs protection.
    pub(super) fn open_read_only(given: &Path, facts: &Facts) -> Result<Self, Error> {
        Self::find(given, facts, true)
    }

    /// Opens and checks a folder for a program that runs as the host's user: nothing in it is protected.
    pub(super) fn open_shared(given: &Path) -> Result<Self, Error> {
        Self::find_folder(given, false)
    }

    fn find(given: &Path, facts: &Facts, read_only: bool) -> Result<Self, Error> {
        let mut folder = Self::find_folder(given, read_only)?;
        if facts.is_root() {
            folder.give_to_program(given, facts)?;
        }
        Ok(folder)
    }

    fn find_folder(given: &Path, read_only: bool) -> Result<Self, Error> {
        let path = given.canonicalize().map_err(|error| refuse(given, error.to_string()))?;
        if path == Path::new("/")
            || path.starts_with("/proc")
            || path.starts_with("/sys")
            || path.starts_with("/dev")
        {
            return Err(refuse(given, "the root and the kernel's own folders are never handed over"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| refuse(given, error.to_string()))?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| refuse(given, error.to_string()))?;
        Ok(Self {
            path,
            descriptor,
            stat,
            tree: None,
            protected: Vec::new(),
            repositories: Repositories::default(),
            guard: false,
            read_only,
        })
    }

    /// The host is root and the program is not: the folder's files must become the program's.
    fn give_to_program(&mut self, given: &Path, facts: &Facts) -> Result<(), Error> {
        if facts.namespaces.is_ok() {
            match identity::mapped_tree(
                self.descriptor.as_fd(),
                self.owner(),
                facts.unprivileged,
                self.read_only,
            ) {
                Ok(tree) => {
                    self.tree = Some(tree);
                    return Ok(());
                }
                Err(error) if !self.is_open_to_all() => {
                    return Err(refuse(
                        given,
                        format!(
                            "the program runs as user {} and the file system cannot map identities ({error}); use a \
                             folder on another file system, or run as the ordinary user who owns it",
                            facts.unprivileged
                        ),
                    ));
                }
                Err(_) => {}
            }
        }
        if self.is_open_to_all() {
            return Ok(());
        }
        Err(refuse(
            given,
            format!(
                "without mount namespaces the program runs as user {}, who cannot {} there; run as the ordinary \
                 user who owns it",
                facts.unprivileged,
                if self.read_only { "read" } else { "write" }
            ),
        ))
    }

    /// Whether any user can do there what the program shall.
    fn is_open_to_all(&self) -> bool {
        let needed = if self.read_only { 0o005 } else { 0o003 };
        self.stat.st_mode & needed == needed
    }

    /// Whether the program can only read it.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Who owns the folder, and so what is put into it.
    pub(super) fn owner(&self) -> Owner {
        Owner { user: self.stat.st_uid, group: self.stat.st_gid }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn key(&self) -> (u64, u64) {
        (self.stat.st_dev, self.stat.st_ino)
    }

    fn kind(&self, path: &str) -> Result<Option<FileType>, String> {
        match rustix::fs::statat(&self.descriptor, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(format!("`{path}`: {error}")),
        }
    }

    /// Why some repositories below the top may be unprotected.
    pub(super) fn missed(&self) -> Option<&'static str> {
        self.repositories.missed
    }

    /// Removes placeholders of a host program that was killed. They are known by their time, which no other program
    /// gives, and by being empty; and they are nobody's only if no other run uses the folder.
    fn remove_stale(&self) {
        if rustix::fs::flock(&self.descriptor, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        for path in PROTECTED_PATHS.into_iter().chain([".git"]) {
            let Ok(stat) = rustix::fs::statat(&self.descriptor, path, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if (stat.st_mtime, u64::from(stat.st_mtime_nsec as u32)) != (MARK.tv_sec, MARK.tv_nsec as u64) {
                continue;
            }
            let flags = match FileType::from_raw_mode(stat.st_mode) {
                // One that is not empty stays.
                FileType::Directory => AtFlags::REMOVEDIR,
                FileType::RegularFile if stat.st_size <= 2 => AtFlags::empty(),
                _ => continue,
            };
            let _ = rustix::fs::unlinkat(&self.descriptor, path, flags);
        }
        let _ = rustix::fs::flock(&self.descriptor, FlockOperation::Unlock);
    }

    fn make_placeholders(&mut self) -> Result<(), String> {
        // Other processes that use the folder hold the same lock; the last one may remove placeholders.
        let _ = rustix::fs::flock(&self.descriptor, FlockOperation::LockShared);
        let mut all = PLACEHOLDERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let entry = all.entry(self.key()).or_default();
        entry.runs += 1;
        self.guard = true;
        let git = self.kind(".git")?;
        for path in PROTECTED_PATHS {
            let in_git = path.starts_with(".git/");
            if in_git && git != Some(FileType::Directory) {
                continue;
            }
            let is_folder = match self.kind(path)? {
                Some(FileType::Directory) => true,
                Some(FileType::RegularFile) => false,
                Some(FileType::Symlink) => {
                    return Err(format!(
                        "`{path}` is a symbolic link and could not be protected; replace it by a file"
                    ));
                }
                Some(_) => return Err(format!("`{path}` is neither a file nor a folder")),
                None => self.make(path, &mut entry.made)?,
            };
            self.protected.push((path, is_folder));
        }
        match git {
            Some(FileType::Directory) => {}
            // A file that points to a repository elsewhere.
            Some(FileType::RegularFile) => self.protected.push((".git", false)),
            Some(_) => return Err("`.git` is neither a file nor a folder".into()),
            None => {
                self.make(".git", &mut entry.made)?;
                self.protected.push((".git", true));
            }
        }
        Ok(())
    }

    /// Makes an empty placeholder and gives whether it is a folder.
    fn make(&self, path: &'static str, made: &mut Vec<(&'static str, u64, bool)>) -> Result<bool, String> {
        let is_folder = matches!(
            path,
            ".git" | ".git/hooks" | ".git/modules" | ".claude" | ".codex" | ".vscode" | ".idea"
        );
        let fail = |error: Errno| format!("placeholder `{path}`: {error}");
        if is_folder {
            rustix::fs::mkdirat(&self.descriptor, path, Mode::from_raw_mode(0o755)).map_err(fail)?;
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let file = open_beneath(self.descriptor(), Path::new(path), flags, Mode::from_raw_mode(0o644))
                .map_err(fail)?;
            // Git takes this file for a pointer to the common folder; an empty one would be an error.
            if path == ".git/commondir" {
                rustix::io::write(&file, b".\n").map_err(fail)?;
            }
        }
        let times = rustix::fs::Timestamps { last_access: MARK, last_modification: MARK };
        // Where the file system cannot keep it, a placeholder that is left behind stays.
        let _ = rustix::fs::utimensat(&self.descriptor, path, &times, AtFlags::SYMLINK_NOFOLLOW);
        let stat = rustix::fs::statat(&self.descriptor, path, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
        made.push((path, stat.st_ino, is_folder));
        Ok(is_folder)
    }

    /// Adds the steps that show the folder at a place of the private root, with its protected paths read-only.
    pub(super) fn plan(
        &mut self,
        target: &Path,
        under_old: &dyn Fn(&Path) -> CString,
        steps: &mut Vec<Step>,
    ) {
        let place = |inner: &Path| c_string(inner.as_os_str().as_bytes());
        match self.tree.take() {
            Some(tree) => steps.push(Step::Attach { tree, target: place(target) }),
            None => steps.push(Step::Bind {
                source: under_old(&self.path),
                target: place(target),
                attributes: self.attributes(),
            }),
        }
        self.protect(target, steps);
    }

    fn attributes(&self) -> u64 {
        NO_EXTRAS | if self.read_only { attribute::READ_ONLY } else { 0 }
    }

    /// Adds the steps of another process that show the folder in a mount namespace which it has the right to change.
    pub(super) fn plan_for(&mut self, mounts: OwnedFd, target: &Path, steps: &mut Vec<Step>) {
        let place = |inner: &Path| c_string(inner.as_os_str().as_bytes());
        match self.tree.take() {
            Some(tree) => steps
                .extend([Step::EnterMounts(Arc::new(mounts)), Step::Attach { tree, target: place(target) }]),
            None => steps.push(Step::Carry {
                source: place(&self.path),
                attributes: self.attributes(),
                mounts,
                target: place(target),
            }),
        }
        self.protect(target, steps);
    }

    /// Adds the steps that make sure of the folder and make its protected paths read-only.
    fn protect(&self, target: &Path, steps: &mut Vec<Step>) {
        let place = |inner: &Path| c_string(inner.as_os_str().as_bytes());
        let no_extras = NO_EXTRAS;
        steps.push(Step::Verify { path: place(target), device: self.stat.st_dev, inode: self.stat.st_ino });
        let git = target.join(".git");
        if self.protected.iter().any(|(path, _)| path.starts_with(".git/")) {
            // A mount point cannot be renamed, and so not replaced with what it contains.
            steps.push(Step::Bind { source: place(&git), target: place(&git), attributes: no_extras });
        }
        for folder in repositories::above(&self.repositories.found) {
            let inner = place(&target.join(folder));
            steps.push(Step::Bind { source: inner.clone(), target: inner, attributes: no_extras });
        }
        for found in &self.repositories.found {
            let inner = place(&target.join(&found.path));
            steps.push(Step::Bind {
                source: inner.clone(),
                target: inner.clone(),
                attributes: no_extras | attribute::READ_ONLY,
            });
            // Another run in the same folder may have put something else there meanwhile.
            steps.push(Step::Verify { path: inner, device: found.device, inode: found.inode });
        }
        for (path, _) in &self.protected {
            let inner = place(&target.join(path));
            steps.push(Step::Bind {
                source: inner.clone(),
                target: inner,
                attributes: no_extras | attribute::READ_ONLY,
            });
        }
    }
}

impl HostFolder {
    /// The placeholder files that stand in the folder now: no file of anybody's, and no part of a listing.
    pub(super) fn placeholders(&self) -> Vec<&'static str> {
        let all = PLACEHOLDERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let made = all.get(&self.key()).map(|entry| entry.made.as_slice()).unwrap_or_default();
        made.iter().filter(|(.., is_folder)| !is_folder).map(|(path, ..)| *path).collect()
    }
}

impl Drop for HostFolder {
    fn drop(&mut self) {
        if !self.guard {
            return;
        }
        let key = self.key();
        let mut all = PLACEHOLDERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(entry) = all.get_mut(&key) else { return };
        entry.runs -= 1;
        if entry.runs > 0 {
            return;
        }
        // A run of another process may still rely on a placeholder; then it stays.
        let alone = rustix::fs::flock(&self.descriptor, FlockOperation::NonBlockingLockExclusive).is_ok();
        let made = all.remove(&key).map(|entry| entry.made).unwrap_or_default();
        if !alone {
            return;
        }
        for (path, inode, is_folder) in made.into_iter().rev() {
            let Ok(stat) = rustix::fs::statat(&self.descriptor, path, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let untouched = stat.st_ino == inode && (is_folder || stat.st_size <= 2);
            if untouched {
                let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                // A folder that is not empty stays: somebody else put something there.
                let _ = rustix::fs::unlinkat(&self.descriptor, path, flags);
            }
        }
    }
}
