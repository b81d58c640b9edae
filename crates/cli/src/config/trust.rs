//! Which files of strangers the operator trusts: pinned by their content.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::config::places;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mcp::files;

/// The largest file that can be trusted, in bytes: a person is to have read it.
const MAX_SIZE: u64 = 16 << 20;

/// Whether a file is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// With exactly this content.
    Trusted,
    /// With another content than it has now.
    Changed,
    /// Not at all.
    Unknown,
}

/// The pins, as they are stored.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pins {
    v: u32,
    /// The hash of each file, by its absolute path.
    files: BTreeMap<PathBuf, String>,
}

impl Pins {
    /// Reads what is trusted. Nothing is, if there is no such file.
    pub(crate) fn load() -> Result<Self, Failure> {
        let Some(path) = places::trust() else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::file("the list of trusted files", &path, &error)),
        };
        serde_json::from_str(&text).map_err(|error| {
            Failure::usage(format!("the list of trusted files `{}` cannot be read: {error}", path.display()))
                .hint("Remove it, and trust again what you still trust.")
        })
    }

    /// How a file stands. What cannot be read is not trusted.
    pub(crate) fn standing(&self, path: &Path) -> Standing {
        match read(path) {
            Ok(content) => self.standing_of(path, &content),
            Err(_) => Standing::Unknown,
        }
    }

    /// How this content of a file stands.
    pub(crate) fn standing_of(&self, path: &Path, content: &[u8]) -> Standing {
        let Ok(path) = path.canonicalize() else { return Standing::Unknown };
        match self.files.get(&path) {
            Some(pinned) if *pinned == hash(&files::pinned(&path, content)) => Standing::Trusted,
            Some(_) => Standing::Changed,
            None => Standing::Unknown,
        }
    }

    /// Pins a file with the content that it has now; gives its path and its hash.
    pub(crate) fn add(&mut self, path: &Path) -> Result<(PathBuf, String), Failure> {
        let absolute = path.canonicalize().map_err(|error| Failure::file("the file", path, &error))?;
        if absolute.to_str().is_none() {
            return Err(Failure::usage(format!("the path `{}` is not UTF-8", absolute.display()))
                .hint("Rename it: trust is kept by path, in a file of text."));
        }
        let content = read(&absolute).map_err(|error| Failure::file("the file", path, &error))?;
        let hash = hash(&files::pinned(&absolute, &content));
        self.files.insert(absolute.clone(), hash.clone());
        Ok((absolute, hash))
    }

    /// Trusts a file no more; says whether it was.
    pub(crate) fn remove(&mut self, path: &Path) -> bool {
        let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
        absolute.is_ok_and(|path| self.files.remove(&path).is_some())
    }

    /// What is trusted: path and hash.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.files.iter().map(|(path, hash)| (path.as_path(), hash.as_str()))
    }

    /// Stores them, in one step.
    pub(crate) fn save(&mut self) -> Result<(), Failure> {
        let path = places::trust().ok_or_else(places::no_home)?;
        let wrong = |error: &io::Error| Failure::file("the list of trusted files", &path, error);
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| wrong(&error))?;
        self.v = 1;
        let text = serde_json::to_string_pretty(self).map_err(|error| {
            Failure::new(Exit::Failed, "INTERNAL", format!("the list of trusted files: {error}"))
        })?;
        // Readable for its owner alone, which is what a temporary file is.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| wrong(&error))?;
        file.write_all(text.as_bytes()).map_err(|error| wrong(&error))?;
        file.persist(&path).map_err(|error| wrong(&error.error))?;
        Ok(())
    }
}

/// The content of a regular file of bounded size.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = path.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "expected a regular file"));
    }
    if metadata.len() > MAX_SIZE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 16 MiB"));
    }
    std::fs::read(path)
}

/// The SHA-256 of a content, in hexadecimal digits.
fn hash(content: &[u8]) -> String {
    toolpost_core::hex(Sha256::digest(content))
}
