//! Host paths that the caller protects from code, whatever their names.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Loader, Protection};

/// The maximum number of entries of a writable directory to search for code.
const MAX_ENTRIES: usize = 100_000;

/// A host path that code must not change, with its descendants, or those that a program loads.
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
    /// A directory from which a trusted program loads code. Other files in it may change.
    Code {
        /// The directory.
        #[serde(with = "bytes")]
        directory: PathBuf,
        /// The language of the program.
        loader: Loader,
    },
    /// A directory of a search path for programs: a new program of the system's name is protected. A relative one
    /// counts in every directory.
    SearchPath(#[serde(with = "bytes")] PathBuf),
    /// A configuration file of git for all repositories of the user, and what it names in a host directory. Its path may
    /// have symbolic links.
    GitConfig {
        /// The file.
        #[serde(with = "bytes")]
        file: PathBuf,
        /// The user's home directory, for paths with `~`.
        #[serde(with = "bytes")]
        home: PathBuf,
    },
    /// A path that host programs execute or obey, because a configuration names it. The caller can allow it as a
    /// protected name.
    Obeyed {
        /// The file or directory.
        #[serde(with = "bytes")]
        path: PathBuf,
        /// The reason.
        protection: Protection,
    },
    /// The target of a link at a protected name, which is protected as that name. The caller can allow it.
    Linked {
        /// The target.
        #[serde(with = "bytes")]
        path: PathBuf,
        /// The link.
        #[serde(with = "bytes")]
        link: PathBuf,
    },
}

impl ProtectedPath {
    /// The protected path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Trusted(path)
            | Self::Own(path)
            | Self::Code { directory: path, .. }
            | Self::SearchPath(path)
            | Self::GitConfig { file: path, .. }
            | Self::Obeyed { path, .. }
            | Self::Linked { path, .. } => path,
        }
    }

    /// This protection of another path.
    #[must_use]
    pub fn at(&self, path: PathBuf) -> Self {
        match self {
            Self::Trusted(_) => Self::Trusted(path),
            Self::Own(_) => Self::Own(path),
            Self::Code { loader, .. } => Self::Code { directory: path, loader: *loader },
            Self::SearchPath(_) => Self::SearchPath(path),
            Self::GitConfig { home, .. } => Self::GitConfig { file: path, home: home.clone() },
            Self::Obeyed { protection, .. } => Self::Obeyed { path, protection: *protection },
            Self::Linked { link, .. } => Self::Linked { path, link: link.clone() },
        }
    }

    /// Whether the sandbox hides the path in a host directory.
    pub fn is_hidden(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Whether the path is protected with everything beneath, and no one can allow it.
    pub fn is_whole(&self) -> bool {
        matches!(self, Self::Trusted(_) | Self::Own(_))
    }

    /// Whether the caller can allow changes, as of a protected name.
    pub fn is_allowable(&self) -> bool {
        matches!(self, Self::GitConfig { .. } | Self::Obeyed { .. } | Self::Linked { .. })
    }

    /// Whether the path exists in a host directory.
    pub fn is_in(&self, directory: &Path) -> bool {
        self.path().starts_with(directory) && self.path().symlink_metadata().is_ok()
    }

    /// Whether a host directory beneath a directory with code has files that the program loads.
    pub fn has_code_in(&self, directory: &Path) -> bool {
        match self {
            Self::Code { directory: code, loader } if directory.starts_with(code) => {
                has_code(directory, code, *loader)
            }
            _ => false,
        }
    }

    /// The reason why code must not change the path.
    pub fn protection(&self) -> Protection {
        match self {
            Self::Trusted(_) => Protection::Trusted,
            Self::Own(_) => Protection::Own,
            Self::Code { .. } => Protection::TrustedCode,
            Self::SearchPath(_) => Protection::SearchPath,
            Self::GitConfig { .. } => Protection::GitSetting,
            Self::Obeyed { protection, .. } => *protection,
            Self::Linked { .. } => Protection::Repository,
        }
    }
}

impl From<PathBuf> for ProtectedPath {
    fn from(path: PathBuf) -> Self {
        Self::Trusted(path)
    }
}

/// Whether a directory beneath one with code has files that a program loads; also if it is too large to search.
fn has_code(directory: &Path, code: &Path, loader: Loader) -> bool {
    let mut waiting = vec![directory.to_owned()];
    let mut count = 0;
    while let Some(above) = waiting.pop() {
        for entry in above.read_dir().into_iter().flatten().flatten() {
            let (path, is_directory) = (entry.path(), entry.file_type().is_ok_and(|kind| kind.is_dir()));
            count += 1;
            if count > MAX_ENTRIES {
                return true;
            }
            if is_directory {
                waiting.push(path);
            } else if path.strip_prefix(code).is_ok_and(|beneath| loader.may_load(beneath)) {
                return true;
            }
        }
    }
    false
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
