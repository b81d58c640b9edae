//! Bounded reads of regular files that a command names.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Opens a regular file. It rejects pipes, which block, and devices, which may be endless.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let metadata = path.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(path)
}

/// Reads a text of at most `max` bytes.
pub(crate) fn read_text(path: &Path, largest: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = open(path)?.take(largest + 1).read_to_string(&mut text);
    if text.len() as u64 > largest {
        let message = format!("it is larger than {} MiB", largest >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    read.map(|_| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_and_large_files_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        std::fs::write(&path, vec![b'x'; 1 + (1 << 20)]).unwrap();
        assert_eq!(read_text(&path, 1 << 20).unwrap_err().to_string(), "it is larger than 1 MiB");
        assert_eq!(read_text(&path, 2 << 20).unwrap().len(), 1 + (1 << 20));
        assert_eq!(
            read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string(),
            "it is no regular file"
        );
        assert_eq!(read_text(folder.path(), 1 << 20).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
