//! Reads regular files of bounded size.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a file of at most `max_bytes` bytes.
///
/// A pipe or device is rejected before it is opened: opening a pipe blocks, and a device may have no end.
pub(crate) fn read(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let opened = path.metadata().and_then(|metadata| {
        if metadata.is_file() { File::open(path) } else { Err(io::Error::other("not a regular file")) }
    });
    let file =
        opened.map_err(|error| io::Error::new(error.kind(), format!("cannot open the file: {error}")))?;
    let mut bytes = Vec::new();
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max_bytes {
        let message = format!("the file is larger than {max_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}
