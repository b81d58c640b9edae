//! Reading files of scripts and recordings.

use std::path::Path;

use crate::{ErrorKind, ModelError, regular_file};

/// Reads a text file of at most `largest` bytes.
pub(crate) fn read_text(path: &Path, largest: usize) -> Result<String, ModelError> {
    let wrong = |what: String| ModelError::new(ErrorKind::Script, format!("{}: {what}", path.display()));
    let bytes = regular_file::read(path, largest).map_err(|error| wrong(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| wrong("expected UTF-8 text".to_owned()))
}
