//! Reading files of scripts and recordings.

use std::io::Read as _;
use std::path::Path;

use crate::{ErrorKind, ModelError};

/// Reads a text file of at most `largest` bytes.
pub(crate) fn read_text(path: &Path, largest: usize) -> Result<String, ModelError> {
    let wrong = |what: String| ModelError::new(ErrorKind::Script, format!("{}: {what}", path.display()));
    let file = std::fs::File::open(path).map_err(|error| wrong(format!("cannot be opened: {error}")))?;
    let mut bytes = Vec::new();
    file.take(largest as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| wrong(format!("cannot be read: {error}")))?;
    if bytes.len() > largest {
        return Err(wrong(format!("the file is too large. Expected at most {largest} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| wrong("expected UTF-8 text".to_owned()))
}
