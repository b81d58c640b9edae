//! A host directory as workspace: how the program gets it, and which paths stay protected.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::child_steps::{Step, attribute};
use super::files::Owner;
use super::launch::c_string;
use super::layer::{self, Overlay};
use super::lent_directory::LentDirectory;
use super::repositories::{self, Repositories};
use super::root::path as c_path;
use super::{Facts, identity};
use crate::protected::{kind_at, names_beneath};
use crate::{DirectoryRules, Error, ProtectedEntryKind, Sandbox};

/// Paths directly in a live host directory that host programs execute or obey. Existing ones are read-only
/// inside.
///
/// The program can create missing ones; only a private layer prevents that.
const LIVE_PROTECTED: [&str; 15] = [
    ".git/hooks",
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/modules",
    ".claude",
    ".codex",
    ".vscode",
    ".idea",
    ".mcp.json",
    ".bashrc",
    ".envrc",
    ".gitmodules",
    "CLAUDE.md",
    "AGENTS.md",
];

const NO_EXTRAS: u64 = attribute::NO_SETUID | attribute::NO_DEVICES;

/// An open and checked host directory, protected while this value lives.
#[derive(Debug)]
pub(super) struct OpenedDirectory {
    path: PathBuf,
    descriptor: OwnedFd,
    stat: Stat,
    tree: Option<OwnedFd>,
    /// Existing protected paths of a live directory, and whether each is a directory.
    protected: Vec<(&'static str, bool)>,
    /// Existing paths of a live directory that a configuration or a link names, relative.
    obeyed: Vec<PathBuf>,
    /// Existing files and directories of Toolpost, and whether each is a directory. They are hidden.
    hidden: Vec<(PathBuf, bool)>,
    /// Repositories below the top level.
    repositories: Repositories,
    read_only: bool,
    is_root: bool,
    /// The private layer; none if the program writes to the directory itself.
    layer: Option<Overlay>,
    /// The host directory, if this one is a private copy of it.
    original: Option<PathBuf>,
    /// The directory of root that belongs to the program's user for the time of the run.
    lent: Option<LentDirectory>,
}

/// A host directory for a program.
#[expect(clippy::large_enum_variant, reason = "there is one for each run, and it is not moved about")]
pub(super) enum Opened {
    /// Behind a layer.
    Layered(OpenedDirectory),
    /// No layer is possible, for this reason.
    Unlayered(String),
}

/// The existing files of Toolpost.
pub(super) fn hidden(sandbox: &Sandbox) -> Vec<PathBuf> {
    let own = sandbox.protected.iter().filter(|path| path.is_hidden()).cloned();
    // A mount would follow a link. The target of a link in the caller's list is in the list, too.
    let is_real = |path: &PathBuf| path.canonicalize().is_ok_and(|real| real == *path);
    let mut all: Vec<PathBuf> =
        layer::own_paths(sandbox).chain(own).map(|own| own.path().to_owned()).filter(is_real).collect();
    all.sort_unstable();
    all.dedup_by(|path, above| path.starts_with(above));
    all
}

/// The hidden paths beneath a directory, relative to it, and whether each is a directory.
pub(super) fn hidden_beneath(directory: &Path, hidden: &[PathBuf]) -> Vec<(PathBuf, bool)> {
    let beneath = hidden.iter().filter(|path| *path != directory);
    beneath.filter_map(|path| Some((path.strip_prefix(directory).ok()?.to_owned(), path.is_dir()))).collect()
}

/// The step that hides a file or directory.
pub(super) fn hide(target: &Path, is_directory: bool) -> Step {
    let target = c_string(target.as_os_str().as_bytes());
    if is_directory {
        Step::Mount {
            kind: c"tmpfs",
            target,
            options: c_string("size=4k,nr_inodes=1,mode=555"),
            flags: MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV,
        }
    } else {
        Step::Bind { source: c_string("/dev/null"), target, attributes: NO_EXTRAS | attribute::READ_ONLY }
    }
}

fn refuse(path: &Path, reason: impl Into<String>) -> Error {
    Error::Workspace { path: path.to_owned(), reason: reason.into() }
}

impl OpenedDirectory {
    /// Opens and checks a directory behind a private layer. `owner` is the program's user, if it differs.
    pub(super) fn open(
        given: &Path,
        facts: &Facts,
        sandbox: &Sandbox,
        owner: Option<Owner>,
    ) -> Result<Opened, Error> {
        if let Err(refusal) = &facts.namespaces {
            return Ok(Opened::Unlayered(format!("this host denies namespaces ({refusal})")));
        }
        if let Err(reason) = Self::check_layer(given, sandbox) {
            return Ok(Opened::Unlayered(reason));
        }
        let mut directory = Self::find(given, facts, false)?;
        directory.find_hidden(sandbox);
        let chosen = sandbox.layers.as_deref();
        let mut layer =
            Overlay::create(directory.descriptor(), &directory.path, &directory.stat, chosen, owner)
                .map_err(|error| refuse(given, format!("creating its private layer failed: {error}")))?;
        layer.begin_run(sandbox).map_err(|error| {
            refuse(given, format!("storing the record of its private layer failed: {error}"))
        })?;
        directory.layer = Some(layer);
        Ok(Opened::Layered(directory))
    }

    /// The reason why a directory has no private layer. One that cannot be used at all has another error.
    pub(super) fn check_layer(given: &Path, sandbox: &Sandbox) -> Result<(), String> {
        let Ok(found) = Self::find_directory(given, false) else { return Ok(()) };
        let chosen = sandbox.layers.as_deref();
        layer::check_overlays(&found.path, found.stat.st_dev, chosen).map_err(|error| error.to_string())
    }

    /// Opens a directory that this process created for the program, which writes to it. It needs no protection.
    pub(super) fn open_own(given: &Path, facts: &Facts) -> Result<Self, Error> {
        Self::find(given, facts, false)
    }

    /// Opens and checks a directory that the program writes to itself. With namespaces, existing protected paths
    /// are read-only.
    pub(super) fn open_live(given: &Path, facts: &Facts, sandbox: &Sandbox) -> Result<Self, Error> {
        let mut directory = Self::find_directory(given, false)?;
        if facts.is_root() && facts.namespaces.is_err() && !directory.is_open_to(facts.unprivileged) {
            directory.lend(given, facts, sandbox)?;
        } else if facts.is_root() {
            directory.give_to_program(given, facts)?;
        }
        if facts.namespaces.is_ok() {
            directory.find_hidden(sandbox);
            directory.find_protected().map_err(|reason| refuse(given, reason))?;
            directory.find_obeyed(sandbox);
            directory.repositories = repositories::find(directory.descriptor());
        }
        Ok(directory)
    }

    /// Opens and checks a read-only directory, which needs no protection.
    pub(super) fn open_read_only(given: &Path, facts: &Facts, sandbox: &Sandbox) -> Result<Self, Error> {
        let mut directory = Self::find(given, facts, true)?;
        directory.find_hidden(sandbox);
        Ok(directory)
    }

    /// Opens and checks a directory for a program that runs as the host's user, without protection.
    pub(super) fn open_shared(given: &Path) -> Result<Self, Error> {
        Self::find_directory(given, false)
    }

    fn find(given: &Path, facts: &Facts, read_only: bool) -> Result<Self, Error> {
        let mut directory = Self::find_directory(given, read_only)?;
        if facts.is_root() {
            directory.give_to_program(given, facts)?;
        }
        Ok(directory)
    }

    fn find_directory(given: &Path, read_only: bool) -> Result<Self, Error> {
        let path = given.canonicalize().map_err(|error| refuse(given, error.to_string()))?;
        if path == Path::new("/")
            || path.starts_with("/proc")
            || path.starts_with("/sys")
            || path.starts_with("/dev")
        {
            return Err(refuse(given, "`/` and the kernel's directories cannot be a workspace"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| refuse(given, error.to_string()))?;
        let stat = rustix::fs::fstat(&descriptor).map_err(|error| refuse(given, error.to_string()))?;
        Ok(Self {
            original: layer::original(&stat),
            lent: None,
            path,
            descriptor,
            stat,
            tree: None,
            protected: Vec::new(),
            obeyed: Vec::new(),
            hidden: Vec::new(),
            repositories: Repositories::default(),
            read_only,
            is_root: rustix::process::geteuid().is_root(),
            layer: None,
        })
    }

    /// Maps ownership: the host is root and the program is not, so the directory's files must become the
    /// program's.
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
                Err(error) if !self.is_open_to(facts.unprivileged) => {
                    return Err(refuse(
                        given,
                        format!(
                            "the program runs as user {} and the file system cannot map identities ({error}); use a \
                             directory on another file system, or run as the ordinary user who owns it",
                            facts.unprivileged
                        ),
                    ));
                }
                Err(_) => {}
            }
        }
        if self.is_open_to(facts.unprivileged) {
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

    /// Lends the directory to the program's user.
    fn lend(&mut self, given: &Path, facts: &Facts, sandbox: &Sandbox) -> Result<(), Error> {
        if !self.path.parent().is_some_and(layer::is_passable) {
            let reason = format!(
                "without mount namespaces the program runs as user {}, who cannot reach it; use another directory, \
                 or run as the ordinary user who owns it",
                facts.unprivileged
            );
            return Err(refuse(given, reason));
        }
        let program = Owner { user: facts.unprivileged, group: facts.unprivileged };
        let lent = layer::records(sandbox.layers.as_deref())
            .and_then(|records| LentDirectory::lend(self.descriptor.as_fd(), &self.stat, program, &records))
            .map_err(|error| refuse(given, format!("lending it to the program's user failed: {error}")))?;
        self.lent = Some(lent);
        self.stat = rustix::fs::fstat(&self.descriptor).map_err(|error| refuse(given, error.to_string()))?;
        Ok(())
    }

    /// Whether the program's user owns a directory of root for the time of the run.
    pub(super) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Whether the program's user has the access that it needs: as the owner, or as any user.
    fn is_open_to(&self, program: u32) -> bool {
        let needed = if self.read_only { 0o005 } else { 0o003 };
        self.stat.st_uid == program || self.stat.st_mode & needed == needed
    }

    /// Whether the program can only read it.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The directory's owner, who also owns uploads.
    pub(super) fn owner(&self) -> Owner {
        Owner { user: self.stat.st_uid, group: self.stat.st_gid }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path that the program sees where host paths are unchanged. A private copy has the path of its
    /// original.
    pub(super) fn shown(&self) -> PathBuf {
        self.original.clone().unwrap_or_else(|| self.path.clone())
    }

    /// The host directory, if this one is a private copy of it.
    pub(super) fn original(&self) -> Option<&Path> {
        self.original.as_deref()
    }

    /// The host directory of a private copy, if the program may read it at its own path without a mount namespace:
    /// its user reaches it, and nothing in it is hidden.
    pub(super) fn readable_original(&self, sandbox: &Sandbox, facts: &Facts) -> Option<PathBuf> {
        let original = self.original.as_ref()?;
        let is_reachable = !facts.is_root() || original.parent().is_some_and(layer::is_passable);
        let is_free = hidden_beneath(original, &hidden(sandbox)).is_empty();
        (is_reachable && is_free).then(|| original.clone())
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn kind(&self, path: &str) -> Result<Option<FileType>, String> {
        match rustix::fs::statat(&self.descriptor, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(format!("`{path}`: {error}")),
        }
    }

    /// The reason why repositories below the top level may be unprotected.
    pub(super) fn missed(&self) -> Option<&'static str> {
        self.repositories.missed
    }

    /// Finds the existing files of Toolpost beneath the directory.
    fn find_hidden(&mut self, sandbox: &Sandbox) {
        self.hidden = hidden_beneath(&self.path, &hidden(sandbox));
    }

    /// Finds the existing paths that host programs execute or obey because a configuration or a link names them.
    fn find_obeyed(&mut self, sandbox: &Sandbox) {
        let (protected, allowed) = (sandbox.protected.iter().cloned(), sandbox.allowed.iter().cloned());
        let rules = DirectoryRules::of_host(&self.path, protected, allowed);
        let named = rules.protected().iter().filter(|protected| protected.is_allowable());
        let beneath = named.filter_map(|protected| protected.path().strip_prefix(&self.path).ok());
        let is_shown = |path: &Path| {
            let is_own = self.protected.iter().any(|(own, _)| path.starts_with(own));
            // A repository has its own rules, and the target of a link is another path.
            let kind = kind_at(&self.path.join(path));
            let is_kind = matches!(kind, Some(ProtectedEntryKind::File | ProtectedEntryKind::Directory));
            is_kind && !is_own && !rules.admits(path) && path.iter().all(|name| name != ".git")
        };
        let found = beneath.filter(|path| !path.as_os_str().is_empty() && is_shown(path));
        let mut found: Vec<PathBuf> = found.map(Path::to_owned).collect();
        // The upper one first: the lower one is read-only with it.
        found.sort_unstable();
        found.dedup_by(|lower, upper| lower.starts_with(upper));
        self.obeyed = found;
    }

    /// Whether an absolute path is hidden.
    pub(super) fn hides(&self, path: &Path) -> bool {
        path.strip_prefix(&self.path)
            .is_ok_and(|path| self.hidden.iter().any(|(hidden, _)| path.starts_with(hidden)))
    }

    /// Adds the steps that hide the files of Toolpost.
    fn hide(&self, target: &Path, steps: &mut Vec<Step>) {
        steps.extend(self.hidden.iter().map(|(path, is_directory)| hide(&target.join(path), *is_directory)));
    }

    /// Finds the existing protected paths.
    fn find_protected(&mut self) -> Result<(), String> {
        for path in LIVE_PROTECTED.into_iter().chain(names_beneath(&self.path)) {
            let is_directory = match self.kind(path)? {
                Some(FileType::Directory) => true,
                Some(FileType::RegularFile) => false,
                Some(FileType::Symlink) => {
                    return Err(format!(
                        "`{path}` is a symbolic link, which cannot be protected; replace it by a file"
                    ));
                }
                Some(_) => return Err(format!("`{path}` is neither a file nor a directory")),
                None => continue,
            };
            self.protected.push((path, is_directory));
        }
        match self.kind(".git")? {
            // A file that points to a repository elsewhere.
            Some(FileType::RegularFile) => self.protected.push((".git", false)),
            Some(FileType::Directory) | None => {}
            Some(_) => return Err("`.git` is neither a file nor a directory".into()),
        }
        Ok(())
    }

    /// The private layer.
    pub(super) fn layer(&self) -> Option<&Overlay> {
        self.layer.as_ref()
    }

    /// Takes the layer for a program that continues after an apply.
    pub(super) fn take_layer(&mut self) -> Option<Overlay> {
        self.layer.take()
    }

    /// Takes the layer for good; nothing else stays protected.
    pub(super) fn into_layer(self) -> Option<Overlay> {
        self.layer
    }

    /// Adds the steps that mount the directory in the private root, with its protected paths read-only.
    pub(super) fn plan(
        &mut self,
        target: &Path,
        under_old: &dyn Fn(&Path) -> CString,
        steps: &mut Vec<Step>,
    ) {
        let place = |inner: &Path| c_string(inner.as_os_str().as_bytes());
        let tree = self.tree.take();
        if let Some(layer) = &self.layer {
            let source = layer.mount(tree, &self.path, self.is_root, under_old, steps);
            steps.push(Step::Bind { source, target: place(target), attributes: NO_EXTRAS });
            self.hide(target, steps);
            return;
        }
        match tree {
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

    /// Adds a helper's steps that mount the directory in another mount namespace.
    pub(super) fn plan_for(&mut self, mounts: OwnedFd, target: &Path, steps: &mut Vec<Step>) {
        let place = |inner: &Path| c_string(inner.as_os_str().as_bytes());
        let tree = self.tree.take();
        if let Some(layer) = &self.layer {
            if self.is_root {
                // The layer is assembled in a copy of the host's mounts.
                steps.push(Step::Unshare(libc::CLONE_NEWNS));
            }
            steps.push(Step::PrivateMounts);
            let source = layer.mount(tree, &self.path, self.is_root, &|path| c_path(path), steps);
            steps.push(Step::Carry { source, attributes: NO_EXTRAS, mounts, target: place(target) });
            self.hide(target, steps);
            return;
        }
        match tree {
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

    /// Adds the steps that verify the directory and make its protected paths read-only.
    fn protect(&self, target: &Path, steps: &mut Vec<Step>) {
        let place = |inner: &Path| c_string(inner.as_os_str().as_bytes());
        let no_extras = NO_EXTRAS;
        steps.push(Step::Verify { path: place(target), device: self.stat.st_dev, inode: self.stat.st_ino });
        let git = target.join(".git");
        if self.protected.iter().any(|(path, _)| path.starts_with(".git/")) {
            // A mount point cannot be renamed, and so its content cannot be replaced.
            steps.push(Step::Bind { source: place(&git), target: place(&git), attributes: no_extras });
        }
        let below = self.repositories.found.iter().map(|found| &found.path).chain(&self.obeyed);
        for directory in repositories::above(below) {
            let inner = place(&target.join(directory));
            steps.push(Step::Bind { source: inner.clone(), target: inner, attributes: no_extras });
        }
        for found in &self.repositories.found {
            let inner = place(&target.join(&found.path));
            steps.push(Step::Bind {
                source: inner.clone(),
                target: inner.clone(),
                attributes: no_extras | attribute::READ_ONLY,
            });
            // Another run in the same directory may have replaced it meanwhile.
            steps.push(Step::Verify { path: inner, device: found.device, inode: found.inode });
        }
        let obeyed = self.obeyed.iter().map(PathBuf::as_path);
        for path in self.protected.iter().map(|(path, _)| Path::new(path)).chain(obeyed) {
            let inner = place(&target.join(path));
            steps.push(Step::Bind {
                source: inner.clone(),
                target: inner,
                attributes: no_extras | attribute::READ_ONLY,
            });
        }
        self.hide(target, steps);
    }
}
