//! The whole outputs of which a model got a part: files of this command, removed at its end.

use std::io;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;
use toolpost_core::OutputFiles;
use toolpost_tools::OutputDirectory;

use crate::workspace::OUTPUTS;

static OPEN: Mutex<Option<Open>> = Mutex::new(None);

struct Open {
    files: OutputFiles,
    /// Removed on drop.
    _directory: TempDir,
    /// The lock against the cleanup of another command.
    #[cfg(unix)]
    _held: Option<std::fs::File>,
}

/// Stores whole outputs until the value is dropped. Without a directory for temporary files, outputs are only truncated.
pub(crate) fn begin() -> Stored {
    store_in(private(tempfile::Builder::new().prefix(OUTPUTS)).tempdir())
}

/// Stores the whole outputs of a replay: in the directory that the recorded requests name, if it is free.
pub(crate) fn begin_like(recorded: &str) -> Stored {
    let named = recorded.split_once(OUTPUTS).map(|(_, rest)| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(rest.len());
        format!("{OUTPUTS}{}", &rest[..end.min(16)])
    });
    match named.map(|name| private(tempfile::Builder::new().prefix(&name).rand_bytes(0)).tempdir()) {
        Some(Ok(directory)) => store_in(Ok(directory)),
        Some(Err(_)) | None => begin(),
    }
}

/// Lets only this user read the directory.
fn private<'b, 'p, 's>(builder: &'b mut tempfile::Builder<'p, 's>) -> &'b mut tempfile::Builder<'p, 's> {
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder
}

fn store_in(created: io::Result<TempDir>) -> Stored {
    let opened = created.and_then(|directory| {
        let path = directory.path().canonicalize()?;
        Ok(Open {
            #[cfg(unix)]
            _held: crate::workspace::hold(&path)?,
            files: OutputFiles::new(OutputDirectory::new(path)),
            _directory: directory,
        })
    });
    *open() = opened.ok();
    Stored
}

/// The files for toolboxes; none before [`begin`].
pub(crate) fn current() -> Option<OutputFiles> {
    open().as_ref().map(|open| open.files.clone())
}

fn open() -> std::sync::MutexGuard<'static, Option<Open>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the files when dropped.
#[must_use]
pub(crate) struct Stored;

impl Drop for Stored {
    fn drop(&mut self) {
        drop(open().take());
    }
}
