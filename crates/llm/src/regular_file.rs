//! Reading files that the operator names: bounded, and without waiting for anybody.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a file of at most `largest` bytes. A pipe or a device is refused before it is opened: whoever opens a pipe waits
/// for somebody who writes to it, and a device may have no end.
pub(crate) fn read(path: &Path, largest: usize) -> io::Result<Vec<u8>> {
    let opened = path.metadata().and_then(|metadata| {
        if metadata.is_file() { File::open(path) } else { Err(io::Error::other("it is no regular file")) }
    });
    let file = opened.map_err(|error| io::Error::new(error.kind(), format!("cannot be opened: {error}")))?;
    let mut bytes = Vec::new();
    file.take(largest as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > largest {
        let message = format!("the file is too large. Expected at most {largest} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}
