//! A file cache of manifests.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::program::Known;

/// Version of the file format.
const VERSION: u32 = 1;
/// Name of the file in the cache directory.
const NAME: &str = "executables-v1.json";
/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of cached programs.
const MAX_PROGRAMS: usize = 10_000;

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    v: u32,
    programs: BTreeMap<String, Known>,
}

/// The cached manifests.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
    programs: BTreeMap<String, Known>,
    changed: bool,
}

impl Cache {
    /// Reads the file. A missing, corrupt, too large or outdated file is an empty cache.
    pub(super) fn open(directory: &Path) -> Self {
        let path = directory.join(NAME);
        let programs = read(&path).unwrap_or_default();
        Self { path, programs, changed: false }
    }

    /// The manifest of the program at a path.
    pub(super) fn get(&self, path: &Path) -> Option<&Known> {
        self.programs.get(path.to_str()?)
    }

    pub(super) fn put(&mut self, path: &Path, known: &Known) {
        let Some(key) = path.to_str() else { return };
        if self.programs.contains_key(key) || self.programs.len() < MAX_PROGRAMS {
            self.programs.insert(key.to_owned(), known.clone());
            self.changed = true;
        }
    }

    /// Writes a changed cache atomically.
    pub(super) fn save(&mut self) -> std::io::Result<()> {
        if !self.changed {
            return Ok(());
        }
        self.programs.retain(|path, _| Path::new(path).exists());
        let file = File { v: VERSION, programs: std::mem::take(&mut self.programs) };
        let text = serde_json::to_vec(&file)?;
        self.programs = file.programs;
        if text.len() as u64 > MAX_BYTES {
            return Err(std::io::Error::other("the manifests have more than 64 MiB"));
        }
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&temporary, text)?;
        let renamed = std::fs::rename(&temporary, &self.path);
        if renamed.is_err() {
            // Ignored: the file is useless either way.
            let _ = std::fs::remove_file(&temporary);
        }
        self.changed = renamed.is_err();
        renamed
    }
}

fn read(path: &Path) -> Option<BTreeMap<String, Known>> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(MAX_BYTES + 1).read_to_end(&mut text).ok()?;
    if text.len() as u64 > MAX_BYTES {
        return None;
    }
    let file: File = serde_json::from_slice(&text).ok()?;
    (file.v == VERSION).then_some(file.programs)
}
