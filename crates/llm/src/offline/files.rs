//! Reads files of scripts and recordings.

use std::path::Path;

use crate::{ErrorKind, ModelError, regular_file};

/// Reads a text file of at most `max_bytes` bytes.
pub(crate) fn read_text(path: &Path, max_bytes: usize) -> Result<String, ModelError> {
    let wrong = |what: String| ModelError::new(ErrorKind::Script, format!("{}: {what}", path.display()));
    let bytes = regular_file::read(path, max_bytes).map_err(|error| wrong(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| wrong("expected UTF-8 text".to_owned()))
}
