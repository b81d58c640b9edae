//! Stored data of upstreams: approved definitions and cached manifests.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toolpost_core::{ToolError, hex, newer_format};
use toolpost_gateway::{ManifestStore, Pin, PinStore, SourceManifest};

use crate::config::paths;
use crate::regular_file::{self, FormatVersion};

/// The maximum size of a file, in bytes.
const MAX_SIZE: u64 = 64 << 20;
/// The version of the file.
pub(crate) const VERSION: u32 = 1;

/// The approved definitions of all gateways, in one file.
#[derive(Debug)]
pub(super) struct FilePins {
    /// The gateway, which separates pins of different gateways.
    gateway: String,
}

/// The stored pins.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Stored {
    v: u32,
    /// By gateway path and upstream, then by tool.
    upstreams: BTreeMap<String, BTreeMap<String, Pin>>,
}

impl FilePins {
    pub(super) fn new(gateway: &Path) -> Self {
        let absolute = gateway.canonicalize().unwrap_or_else(|_| gateway.to_owned());
        Self { gateway: absolute.display().to_string() }
    }

    fn key(&self, upstream: &str) -> String {
        format!("{}#{upstream}", self.gateway)
    }
}

fn path() -> Result<PathBuf, ToolError> {
    paths::pins().ok_or_else(|| {
        ToolError::precondition("there is no home directory for approved definitions").suggest("Set HOME.")
    })
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> ToolError {
    ToolError::precondition(format!("the approved definitions `{}` are unusable: {error}", path.display()))
        .suggest("Remove the file, and approve your tools again.")
}

fn read(path: &Path) -> Result<Stored, ToolError> {
    let text = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stored::default()),
        Err(error) => return Err(wrong(path, &error)),
        Ok(metadata) if metadata.len() > MAX_SIZE => return Err(wrong(path, &"it is larger than 64 MiB")),
        Ok(_) => std::fs::read_to_string(path).map_err(|error| wrong(path, &error))?,
    };
    let FormatVersion { v } = serde_json::from_str(&text).map_err(|error| wrong(path, &error))?;
    if v > VERSION {
        let subject = format_args!("the file of approved definitions `{}`", path.display());
        return Err(newer_format(subject, v.into(), VERSION.into()));
    }
    serde_json::from_str(&text).map_err(|error| wrong(path, &error))
}

/// The lock around reading and storing, against other processes.
fn lock(path: &Path) -> io::Result<File> {
    let directory = path.parent().unwrap_or(Path::new("."));
    regular_file::create_directory(directory)?;
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(path.with_extension("lock"))?;
    file.lock()?;
    Ok(file)
}

impl PinStore for FilePins {
    fn load(&self, source: &str) -> Result<BTreeMap<String, Pin>, ToolError> {
        Ok(read(&path()?)?.upstreams.remove(&self.key(source)).unwrap_or_default())
    }

    fn put(&self, source: &str, pins: &BTreeMap<String, Pin>) -> Result<(), ToolError> {
        let path = path()?;
        let _others_wait = lock(&path).map_err(|error| wrong(&path, &error))?;
        let mut stored = read(&path)?;
        stored.v = VERSION;
        stored.upstreams.entry(self.key(source)).or_default().extend(pins.clone());
        let text = serde_json::to_string_pretty(&stored).map_err(|error| wrong(&path, &error))?;
        regular_file::replace(&path, &text).map_err(|error| wrong(&path, &error))
    }

    fn generation(&self) -> u64 {
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let stamp = path().ok().and_then(|path| path.metadata().ok());
        // The inode distinguishes files of the same clock tick.
        stamp.map_or(0, |stamp| KEY.hash_one((stamp.modified().ok(), stamp.len(), inode(&stamp))))
    }
}

#[cfg(unix)]
fn inode(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_metadata: &std::fs::Metadata) -> u64 {
    0
}

/// Cached manifests of lazy upstreams, by target and working directory.
#[derive(Debug)]
pub(super) struct FileManifests {
    directory: PathBuf,
}

impl Default for FileManifests {
    fn default() -> Self {
        Self { directory: std::env::current_dir().unwrap_or_default() }
    }
}

impl FileManifests {
    fn path(&self, digest: &str) -> Option<PathBuf> {
        let mut hasher = Sha256::new();
        hasher.update(self.directory.as_os_str().as_encoded_bytes());
        hasher.update([0]);
        hasher.update(digest);
        let name = format!("{}.json", hex(hasher.finalize()));
        paths::cache().map(|cache| cache.join("manifests").join(name))
    }
}

impl ManifestStore for FileManifests {
    fn load(&self, digest: &str) -> Option<SourceManifest> {
        let path = self.path(digest)?;
        if path.metadata().ok()?.len() > MAX_SIZE {
            return None;
        }
        serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()
    }

    fn save(&self, digest: &str, value: &SourceManifest) {
        let Some(path) = self.path(digest) else { return };
        let stored = serde_json::to_string(value)
            .map_err(io::Error::from)
            .and_then(|text| regular_file::replace(&path, &text));
        if let Err(error) = stored {
            tracing::warn!("the manifest `{}` was not cached: {error}", path.display());
        }
    }
}
