//! What programs told of themselves, kept in a file.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::program::Known;

/// The version of the file.
const VERSION: u32 = 1;
/// The file in the operator's folder.
const NAME: &str = "executables-v1.json";
/// The largest file that is read or written, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// The most programs that are kept.
const MAX_PROGRAMS: usize = 10_000;

#[derive(Debug, Default, Serialize, Deserialize)]
struct File {
    v: u32,
    programs: BTreeMap<String, Known>,
}

/// The file as it was read, and what is new.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
    programs: BTreeMap<String, Known>,
    changed: bool,
}

impl Cache {
    /// Reads the file. One that is missing, corrupted, too large or of another version is an empty one.
    pub(super) fn open(folder: &Path) -> Self {
        let path = folder.join(NAME);
        let programs = read(&path).unwrap_or_default();
        Self { path, programs, changed: false }
    }

    /// What the program at a path told when it was last asked.
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

    /// Writes what is new, in one step, so that nobody ever reads half a file.
    pub(super) fn save(&mut self) -> std::io::Result<()> {
        if !self.changed {
            return Ok(());
        }
        self.programs.retain(|path, _| Path::new(path).exists());
        let file = File { v: VERSION, programs: std::mem::take(&mut self.programs) };
        let text = serde_json::to_vec(&file)?;
        self.programs = file.programs;
        if text.len() as u64 > MAX_BYTES {
            return Err(std::io::Error::other("what programs tell of themselves is more than 64 MiB"));
        }
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&temporary, text)?;
        let renamed = std::fs::rename(&temporary, &self.path);
        if renamed.is_err() {
            // Nothing of it is of use.
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
