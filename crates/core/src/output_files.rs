//! Files for outputs that exceed the limit of a model.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Stores whole outputs of which a model gets a part.
pub trait OutputStore: Send + Sync {
    /// The directory of the files, which only this user can read.
    fn directory(&self) -> &Path;

    /// Stores the whole text of an output, and returns the path of its file.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] if the files would be too large, or the error of the write.
    fn store(&self, text: &str) -> io::Result<PathBuf>;
}

/// The files for whole outputs. `read_file` and code read them.
///
/// Provide it to a toolbox: `Toolbox::builder().provide(OutputFiles::new(store))`. Clones share the store.
#[derive(Clone)]
pub struct OutputFiles(Arc<dyn OutputStore>);

impl OutputFiles {
    /// Wraps a store.
    pub fn new(store: impl OutputStore + 'static) -> Self {
        Self(Arc::new(store))
    }

    /// The directory of the files.
    pub fn directory(&self) -> &Path {
        self.0.directory()
    }

    /// Stores the whole text of an output, and returns the path of its file.
    ///
    /// # Errors
    /// As [`OutputStore::store`].
    pub fn store(&self, text: &str) -> io::Result<PathBuf> {
        self.0.store(text)
    }
}

impl fmt::Debug for OutputFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OutputFiles").field(&self.directory()).finish()
    }
}

/// The whole text of an output, of which the content has a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeText {
    /// The text, or its beginning.
    pub text: String,
    /// The size of the whole text, in bytes.
    pub size: u64,
}
