//! The paths that the operator allows and pins in a host directory.

use std::path::{Path, PathBuf};

use crate::Sandbox;

/// The paths that the operator allows and pins.
#[derive(Debug, Clone, Default)]
pub(crate) struct PathRules {
    /// Protected paths that may change, relative to the directory.
    pub(super) allowed: Vec<PathBuf>,
    /// Host paths that must not change, absolute.
    pub(super) pinned: Vec<PathBuf>,
}

impl PathRules {
    pub(in super::super) fn of(sandbox: &Sandbox) -> Self {
        Self::new(sandbox.protected.iter().cloned(), &sandbox.allowed)
    }

    pub(crate) fn new(pinned: impl IntoIterator<Item = PathBuf>, allowed: &[PathBuf]) -> Self {
        Self { allowed: allowed.to_vec(), pinned: pinned.into_iter().collect() }
    }

    pub(super) fn allow(&mut self, more: impl IntoIterator<Item = PathBuf>) {
        self.allowed.extend(more);
    }

    pub(super) fn admits(&self, path: &Path) -> bool {
        self.allowed.iter().any(|allowed| path.starts_with(allowed))
    }

    /// Whether a path is pinned or beneath a pinned one.
    pub(super) fn pins(&self, root: &Path, path: &Path) -> bool {
        !self.pinned.is_empty() && {
            let absolute = root.join(path);
            self.pinned.iter().any(|pinned| absolute.starts_with(pinned))
        }
    }
}
