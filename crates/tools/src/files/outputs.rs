//! A directory for whole outputs of which a model gets a part.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};
use toolpost::{OutputStore, hex};

/// A directory for whole outputs: `Toolbox::builder().provide(OutputFiles::new(OutputDirectory::new(path)))`.
///
/// The name of a file is the digest of its text, so that a replay has the same names.
#[derive(Debug)]
pub struct OutputDirectory {
    path: PathBuf,
    stored_bytes: AtomicU64,
}

impl OutputDirectory {
    /// The maximum size of all files: 256 MiB.
    pub const MAX_BYTES: u64 = 256 << 20;

    /// Stores files in an existing directory that only this user can read.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), stored_bytes: AtomicU64::new(0) }
    }
}

impl OutputStore for OutputDirectory {
    fn directory(&self) -> &Path {
        &self.path
    }

    /// Equal texts have one file.
    fn store(&self, text: &str) -> io::Result<PathBuf> {
        let digest = hex(Sha256::digest(text));
        let path = self.path.join(format!("{}.txt", digest.get(..16).unwrap_or(&digest)));
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
