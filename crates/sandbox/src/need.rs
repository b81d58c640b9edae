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
}

impl Need {
    /// A path and who named it.
    pub fn new(path: impl Into<PathBuf>, origin: Origin) -> Self {
        Self { path: path.into(), origin }
    }

    /// The path, with its links.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
