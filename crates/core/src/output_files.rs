//! Files for outputs that exceed the limit of a model.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use crate::hex;

/// A directory for whole outputs of which a model gets a part. `read_file` and code read them.
///
/// Provide it to a toolbox: `Toolbox::builder().provide(files)`. Clones share the directory and its quota.
#[derive(Clone, Debug)]
pub struct OutputFiles {
    directory: PathBuf,
    stored_bytes: Arc<AtomicU64>,
}

impl OutputFiles {
    /// The maximum size of all files of a directory: 256 MiB.
    pub const MAX_BYTES: u64 = 256 << 20;

    /// Stores files in an existing directory that only this user can read.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), stored_bytes: Arc::default() }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Stores the whole text of an output, and returns the path of its file. Equal texts have one file.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] if the files would exceed [`OutputFiles::MAX_BYTES`], or the error of the write.
    pub fn store(&self, text: &str) -> io::Result<PathBuf> {
        let digest = hex(Sha256::digest(text));
        let path = self.directory.join(format!("{}.txt", digest.get(..16).unwrap_or(&digest)));
        let size = text.len() as u64;
        let before = self.stored_bytes.fetch_add(size, Ordering::Relaxed);
        let stored = if before.saturating_add(size) > Self::MAX_BYTES {
            Err(io::Error::new(io::ErrorKind::QuotaExceeded, "the output files of the run reached 256 MiB"))
        } else {
            create(&path, text)
        };
        if let Err(error) = stored {
            self.stored_bytes.fetch_sub(size, Ordering::Relaxed);
            if error.kind() != io::ErrorKind::AlreadyExists {
                return Err(error);
            }
        }
        Ok(path)
    }
}

fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(text.as_bytes()).inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })
}

/// The whole text of an output, of which the content has a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeText {
    /// The text, or its beginning.
    pub text: String,
    /// The size of the whole text, in bytes.
    pub size: u64,
}
