//! Decides which host paths a run shows, by who named them.
//!
//! A path that the operator named is shown. A path that a file, a link or an argument names could come from code
//! or a model: it is shown only if it lies in the workspace, a system directory, a granted path or a toolchain
//! root after all links are resolved. [`Admission::judge`] is the only way from a [`Need`] to a mount.

use std::cell::OnceCell;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::interpreter::{self, is_system};
use super::links::{self, Link};
use super::python;
use super::toolchain_roots::Toolchains;
use crate::{Need, Origin, Sandbox, Workspace};

/// The directories of a run that code writes. A path in them never widens what is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct Workspaces(Arc<[PathBuf]>);

impl Workspaces {
    /// The host directory of a sandbox and the original of a private copy, as given and with links resolved, and
    /// the directories that a program writes directly.
    pub(super) fn from_sandbox(sandbox: &Sandbox) -> Self {
        let own = match &sandbox.workspace {
            Workspace::Fresh => None,
            Workspace::Host(path) | Workspace::LiveHost(path) | Workspace::ReadOnlyHost(path) => Some(path),
        };
        let mut all = Vec::new();
        for path in own.into_iter().chain(&sandbox.read_write) {
            let real = path.canonicalize().ok();
            let original = real.as_deref().and_then(super::layer::original_of);
            let given = std::path::absolute(path).ok();
            all.extend([given, real, original].into_iter().flatten());
        }
        all.sort();
        all.dedup();
        Self(all.into())
    }

    /// Whether a path is beneath one of them, by its name.
    pub(super) fn contain(&self, path: &Path) -> bool {
        self.0.iter().any(|workspace| path.starts_with(workspace))
    }

    /// Whether code could have written a path: by its name, or after its links are resolved.
    pub(super) fn reach(&self, path: &Path) -> bool {
        !self.0.is_empty()
            && (self.contain(path) || path.canonicalize().is_ok_and(|real| self.contain(&real)))
    }
}

/// A host path that a run shows: resolved, open, with the links of its name.
#[derive(Debug)]
pub(super) struct Admitted {
    /// The path without links.
    pub(super) path: PathBuf,
    /// The links on the way to it.
    pub(super) links: Vec<Link>,
    /// The open file or directory at that path.
    pub(super) descriptor: OwnedFd,
}

/// The places of a run in which a derived path is shown.
#[derive(Debug)]
pub(super) struct Admission<'a> {
    workspaces: Workspaces,
    toolchains: Toolchains<'a>,
    /// Paths that the operator named, with links resolved.
    granted: Vec<PathBuf>,
    search_path: Option<&'a OsStr>,
    /// The Python installations of the operator's search path: the bare name shows them, too.
    searched: OnceCell<Vec<PathBuf>>,
    /// Derived paths that are not shown.
    hidden: Vec<PathBuf>,
}

/// The maximum number of hidden paths that an outcome names.
const MAX_HIDDEN: usize = 16;

impl<'a> Admission<'a> {
    pub(super) fn new(sandbox: &'a Sandbox, workspaces: Workspaces) -> Self {
        // In a workspace code could have made the granted name a link.
        let granted = sandbox.read_only.iter().filter(|path| !workspaces.contain(path));
        let granted = granted.filter_map(|path| path.canonicalize().ok()).collect();
        let toolchains = Toolchains::new(sandbox.home.as_deref());
        let search_path = sandbox.search_path.as_deref();
        Self { workspaces, toolchains, granted, search_path, searched: OnceCell::new(), hidden: Vec::new() }
    }

    /// The derived paths that are not shown, each once.
    pub(super) fn into_hidden(self) -> Vec<PathBuf> {
        self.hidden
    }

    /// Whether a path without links lies where derived paths are shown.
    pub(super) fn admits(&self, real: &Path) -> bool {
        is_system(real)
            || self.workspaces.contain(real)
            || self.granted.iter().any(|granted| real.starts_with(granted))
            || self.toolchains.admit(real, &self.workspaces)
            || self.searched().iter().any(|installation| real.starts_with(installation))
    }

    fn searched(&self) -> &[PathBuf] {
        self.searched.get_or_init(|| {
            let directories = self.search_path.into_iter().flat_map(interpreter::directories);
            directories
                .filter(|directory| !self.workspaces.reach(directory))
                .filter_map(|directory| {
                    interpreter::behind_launcher(&directory.join("python3"))?.canonicalize().ok()
                })
                .flat_map(|program| python::installation_of(&program))
                .filter(|installation| !self.workspaces.contain(installation))
                .collect()
        })
    }

    /// A path that the operator granted.
    ///
    /// # Errors
    /// It cannot be resolved or opened, or its name lies in the workspace and leads out of it.
    pub(super) fn granted(&mut self, path: &Path) -> std::io::Result<Vec<Admitted>> {
        let shown = self.judge(&Need::new(path, Origin::Operator))?;
        match self.hidden.last() {
            Some(real) if shown.is_empty() => Err(std::io::Error::other(format!(
                "a link in the workspace leads to `{}`; name that path itself",
                real.display()
            ))),
            _ => Ok(shown),
        }
    }

    /// The paths that a need shows: none, itself, or the parts of a toolchain that hold no credentials.
    ///
    /// Beneath the workspace code could have written every name, so each one counts as derived there.
    ///
    /// # Errors
    /// A path that the operator named cannot be resolved or opened. A derived one is then hidden.
    pub(super) fn judge(&mut self, need: &Need) -> std::io::Result<Vec<Admitted>> {
        let is_written = self.workspaces.contain(&need.path);
        let origin = if is_written { Origin::Derived } else { need.origin };
        let (real, links) = match links::follow(&need.path) {
            Ok(found) => found,
            Err(error) if need.origin == Origin::Operator => return Err(error),
            Err(_) => return Ok(Vec::new()),
        };
        let is_admitted = match origin {
            Origin::Operator => true,
            Origin::Around => {
                let is_link = links.iter().any(|(link, _)| *link == need.path);
                !is_link && !self.workspaces.contain(&real) || self.admits(&real)
            }
            Origin::Derived => self.admits(&real),
        };
        if !need.is_shown {
            if is_admitted && origin == Origin::Around {
                self.granted.push(real);
            }
            return Ok(Vec::new());
        }
        if !is_admitted {
            if self.hidden.len() < MAX_HIDDEN && !self.hidden.contains(&real) {
                self.hidden.push(real);
            }
            return Ok(Vec::new());
        }
        let (parts, inner) = match origin {
            Origin::Operator => (vec![real], Vec::new()),
            Origin::Around | Origin::Derived => self.toolchains.parts(real),
        };
        let mut links = Some([links, inner].concat());
        let mut shown = Vec::new();
        for path in parts {
            if origin == Origin::Around {
                // What a file names beneath it is shown with it.
                self.granted.push(path.clone());
            }
            match open(&path) {
                Ok(descriptor) => {
                    shown.push(Admitted { path, links: links.take().unwrap_or_default(), descriptor });
                }
                Err(error) if origin == Origin::Operator => return Err(error),
                Err(_) => {}
            }
        }
        Ok(shown)
    }
}

/// Opens a path that has no links any more: a link that appeared since then is an error.
fn open(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        // Before Linux 5.6: the check of the mounted inode remains.
        Err(rustix::io::Errno::NOSYS) => Ok(rustix::fs::open(path, flags, Mode::empty())?),
        other => Ok(other?),
    }
}
