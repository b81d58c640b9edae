//! Host paths that the caller protects from code, whatever their names.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Protection;

/// A host path that code must not change, with its descendants.
///
/// The path is absolute, without symbolic links, and may be missing. Stored as bytes: a path need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProtectedPath {
    /// A file or directory that decides what runs, such as a trusted file.
    Trusted(#[serde(with = "bytes")] PathBuf),
    /// Settings, state, data or cache of Toolpost. The sandbox hides them in a host directory.
    Own(#[serde(with = "bytes")] PathBuf),
}

impl ProtectedPath {
    /// The protected path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Trusted(path) | Self::Own(path) => path,
        }
    }

    /// The same protection of another path.
    #[must_use]
    pub fn at(&self, path: PathBuf) -> Self {
        match self {
            Self::Trusted(_) => Self::Trusted(path),
            Self::Own(_) => Self::Own(path),
        }
    }

    /// Whether the sandbox hides the path in a host directory.
    pub fn is_hidden(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Why code must not change the path.
    pub fn protection(&self) -> Protection {
        match self {
            Self::Trusted(_) => Protection::Trusted,
            Self::Own(_) => Protection::Own,
        }
    }
}

impl From<PathBuf> for ProtectedPath {
    fn from(path: PathBuf) -> Self {
        Self::Trusted(path)
    }
}

/// Paths as bytes.
mod bytes {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_encoded_bytes().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        #[cfg(unix)]
        let path = std::os::unix::ffi::OsStringExt::from_vec(bytes);
        #[cfg(not(unix))]
        let path = OsString::from(String::from_utf8(bytes).map_err(serde::de::Error::custom)?);
        let path: OsString = path;
        Ok(path.into())
    }
}
