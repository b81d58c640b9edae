//! Bounded reads of regular files, and atomic writes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// The format version of a JSON file, which is checked before the rest is parsed.
#[derive(serde::Deserialize)]
pub(crate) struct FormatVersion {
    pub(crate) v: u32,
}

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
pub(crate) fn read_text(path: &Path, max: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = open(path)?.take(max + 1).read_to_string(&mut text);
    if text.len() as u64 > max {
        let message = format!("it is larger than {} MiB", max >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    read.map(|_| text)
}

/// Replaces a file atomically, readable for its owner alone. Creates its directory.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = directory_of(path);
    std::fs::create_dir_all(directory)?;
    // A temporary file is readable for its owner alone.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// The directory of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_and_large_files_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        std::fs::write(&path, vec![b'x'; 1 + (1 << 20)]).unwrap();
        assert_eq!(read_text(&path, 1 << 20).unwrap_err().to_string(), "it is larger than 1 MiB");
        assert_eq!(read_text(&path, 2 << 20).unwrap().len(), 1 + (1 << 20));
        assert_eq!(
            read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string(),
            "it is no regular file"
        );
        assert_eq!(read_text(directory.path(), 1 << 20).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
