//! Host paths that a program needs, and who named them.

use std::path::{Path, PathBuf};

/// Who named a host path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The operator named this path. It is shown.
    Operator,
    /// It surrounds a program that the operator named: its environment, its installation, its package. It is shown
    /// unless its last component is a link.
    Around,
    /// A file, a link or an argument names it, and code or a model could have written that. It is shown only in the
    /// workspace, in system directories, in granted paths and in toolchain roots.
    Derived,
}

/// A host path that a program needs besides the system directories.
///
/// Whatever its origin, a path beneath the workspace counts as [`Origin::Derived`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    pub(crate) path: PathBuf,
    pub(crate) origin: Origin,
    /// False for a directory in which derived paths are shown, but not the directory itself.
    pub(crate) is_shown: bool,
}

impl Need {
    /// A path and who named it.
    pub fn new(path: impl Into<PathBuf>, origin: Origin) -> Self {
        Self { path: path.into(), origin, is_shown: true }
    }

    /// A directory around a program: the paths beneath it that its files name are shown, the directory itself is not.
    pub(crate) fn project(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), origin: Origin::Around, is_shown: false }
    }

    /// The path, with its links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
