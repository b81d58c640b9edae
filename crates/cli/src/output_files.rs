//! The whole outputs of which a model got a part: files of this command, removed at its end.

use std::io;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;
use toolpost_core::OutputFiles;
use toolpost_tools::OutputDirectory;

/// The start of the name of the directory.
const PREFIX: &str = "toolpost-outputs-";

static DIRECTORY: Mutex<Option<(TempDir, OutputFiles)>> = Mutex::new(None);

/// Stores whole outputs until the value is dropped. Without a directory for temporary files, outputs are only truncated.
pub(crate) fn begin() -> Stored {
    store_in(tempfile::Builder::new().prefix(PREFIX).tempdir())
}

/// The same for a replay: in the directory that the recorded requests name, if it is free.
pub(crate) fn begin_like(recorded: &str) -> Stored {
    let named = recorded.split_once(PREFIX).map(|(_, rest)| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
        format!("{PREFIX}{}", &rest[..end.min(16)])
    });
    match named.map(|name| tempfile::Builder::new().prefix(&name).rand_bytes(0).tempdir()) {
        Some(Ok(directory)) => store_in(Ok(directory)),
        Some(Err(_)) | None => begin(),
    }
}

fn store_in(created: io::Result<TempDir>) -> Stored {
    let opened = created.and_then(|created| {
        Ok((OutputFiles::new(OutputDirectory::new(created.path().canonicalize()?)), created))
    });
    *directory() = opened.ok().map(|(files, created)| (created, files));
    Stored
}

/// The files for toolboxes; none before [`begin`].
pub(crate) fn current() -> Option<OutputFiles> {
    directory().as_ref().map(|(_, files)| files.clone())
}

fn directory() -> std::sync::MutexGuard<'static, Option<(TempDir, OutputFiles)>> {
    DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the files when dropped.
#[must_use]
pub(crate) struct Stored;

impl Drop for Stored {
    fn drop(&mut self) {
        drop(directory().take());
    }
}
