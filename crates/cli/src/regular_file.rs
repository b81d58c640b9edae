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
        return Err(io::Error::other("it is not a regular file"));
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
///
/// The owner stays: a file of a user that root replaces is the user's.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let directory = directory_of(path);
    create_directory(directory)?;
    // A temporary file is readable for its owner alone.
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(text.as_bytes())?;
    #[cfg(unix)]
    if let Ok(before) = std::fs::symlink_metadata(path) {
        use std::os::unix::fs::MetadataExt as _;
        let own = file.as_file().metadata()?;
        if before.is_file() && before.uid() != own.uid() {
            // Only root may.
            let _ = std::os::unix::fs::fchown(file.as_file(), Some(before.uid()), Some(before.gid()));
        }
    }
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Creates a directory for this user alone, with missing parents.
pub(crate) fn create_directory(directory: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(directory)
}

/// Opens a file to append to it, or creates it. It creates no file through a symbolic link.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.append(true);
    match options.clone().create_new(true).open(path) {
        // Any entry with this name exists, also a dangling link, which the second attempt does not fill.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        result => result,
    }
}

/// The directory of a file.
pub(crate) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_replaced_file_and_new_directories_are_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/toolpost/file");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        for text in ["one", "two"] {
            replace(&path, text).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        }
    }

    /// For root only, who alone can give files away.
    #[cfg(unix)]
    #[test]
    fn a_file_that_root_replaces_keeps_its_owner() {
        use std::os::unix::fs::{MetadataExt as _, chown};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        replace(&path, "one").unwrap();
        if chown(&path, Some(1001), Some(1001)).is_err() {
            println!("SKIP a_file_that_root_replaces_keeps_its_owner: not root");
            return;
        }
        replace(&path, "two").unwrap();
        let now = path.metadata().unwrap();
        assert_eq!((now.uid(), now.gid(), now.mode() & 0o777), (1001, 1001, 0o600));
    }

    #[cfg(unix)]
    #[test]
    fn appending_creates_no_file_through_a_link() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("file"), "a").unwrap();
        std::fs::create_dir(path("directory")).unwrap();
        for (link, target) in [("to-file", "file"), ("to-nothing", "nothing"), ("to-link", "to-nothing")] {
            symlink(path(target), path(link)).unwrap();
        }
        symlink("/dev/null", path("to-device")).unwrap();
        for (name, is_opened) in [
            ("new", true),
            ("file", true),
            ("to-file", true),
            ("to-device", true),
            ("to-nothing", false),
            ("to-link", false),
            ("directory", false),
        ] {
            let opened = append(&path(name));
            assert_eq!(opened.is_ok(), is_opened, "{name}: {opened:?}");
            assert!(opened.is_err() || opened.unwrap().write_all(b"b").is_ok(), "{name}");
        }
        assert!(!path("nothing").exists());
        assert_eq!(std::fs::read_to_string(path("file")).unwrap(), "abb");
    }

    #[test]
    fn endless_and_large_files_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("large");
        std::fs::write(&path, vec![b'x'; 1 + (1 << 20)]).unwrap();
        assert_eq!(read_text(&path, 1 << 20).unwrap_err().to_string(), "it is larger than 1 MiB");
        assert_eq!(read_text(&path, 2 << 20).unwrap().len(), 1 + (1 << 20));
        assert_eq!(
            read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string(),
            "it is not a regular file"
        );
        assert_eq!(read_text(directory.path(), 1 << 20).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }
}
