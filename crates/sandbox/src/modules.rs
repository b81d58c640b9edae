//! Packages that code can import.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Language;

/// Packages in a host directory for code in one language, for [`crate::Sandbox::modules`].
#[derive(Debug, Clone)]
pub struct Modules {
    language: Language,
    directory: PathBuf,
    search: PathBuf,
    _lock: Arc<File>,
}

impl Modules {
    /// Packages for a language, in `search` beneath `directory`.
    ///
    /// A run mounts `directory` read-only at its own path. `lock` stays open as long as the value, so that a lock
    /// on it keeps the packages from being deleted.
    pub fn new(language: Language, directory: PathBuf, search: PathBuf, lock: Arc<File>) -> Self {
        Self { language, directory, search, _lock: lock }
    }

    /// The directory to mount.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory in which imports are searched for.
    pub fn search(&self) -> &Path {
        &self.search
    }

    /// Whether code in a language can import them.
    #[cfg_attr(
        any(not(target_os = "linux"), toolpost_simulate_other_host),
        expect(dead_code, reason = "only the Linux side reads it")
    )]
    pub(crate) fn serves(&self, language: Language) -> bool {
        self.language == language
            || (self.language == Language::JavaScript && language == Language::TypeScript)
    }
}
