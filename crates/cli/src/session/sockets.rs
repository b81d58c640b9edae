//! Sockets of sessions, in a directory of this user alone.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::config::paths;
use crate::failure::Failure;

/// The system's maximum length of a socket path.
const MAX_PATH: usize = 107;

/// The directory, created if needed.
///
/// # Errors
/// There is no place for it, or other users can enter it and could replace a socket.
pub(crate) fn directory() -> Result<PathBuf, Failure> {
    let directory = paths::sessions().ok_or_else(paths::no_home)?;
    let wrong = |error: &io::Error| Failure::file("the sessions' directory", &directory, error);
    if let Some(above) = directory.parent() {
        crate::regular_file::create_directory(above).map_err(|error| wrong(&error))?;
    }
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(wrong(&error)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&directory).map_err(|error| wrong(&error))?;
    // Entries of a process in /proc have its owner.
    let own = std::fs::metadata("/proc/self").map_err(|error| wrong(&error))?.uid();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "the sessions' directory `{}` must belong to this user alone",
            directory.display()
        ))
        .hint("Remove it, or set XDG_RUNTIME_DIR to a directory of yours."));
    }
    Ok(directory)
}

/// The socket of a session.
///
/// # Errors
/// The name is invalid, or the path is too long.
pub(crate) fn socket(directory: &Path, id: &str) -> Result<PathBuf, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > 64 || !id.bytes().all(fits) {
        let shown: String = id.chars().take(80).collect();
        return Err(Failure::usage(format!("invalid session name `{shown}`"))
            .hint("A name has 1 to 64 letters, digits, `-` and `_`."));
    }
    let path = directory.join(format!("{id}.sock"));
    if path.as_os_str().len() > MAX_PATH {
        return Err(Failure::usage(format!(
            "the path of the session's socket is too long: `{}`",
            path.display()
        ))
        .hint("Set XDG_RUNTIME_DIR to a directory with a short path."));
    }
    Ok(path)
}

/// Locks the start of sessions until the file is dropped.
pub(crate) fn lock(directory: &Path) -> Result<File, Failure> {
    let path = directory.join("lock");
    let open = || {
        let file = File::options().create(true).append(true).open(&path)?;
        file.lock()?;
        Ok(file)
    };
    open().map_err(|error: io::Error| Failure::file("the sessions' lock", &path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_name_is_rejected() {
        let directory = Path::new("/run/user/1/toolpost");
        assert_eq!(socket(directory, "a-B_9").unwrap(), directory.join("a-B_9.sock"));
        for name in ["", ".", "..", "a/b", "../a", "a b", "a\0", "ä", &"a".repeat(65)] {
            assert!(socket(directory, name).is_err(), "{name:?}");
        }
        assert!(socket(&directory.join("x".repeat(100)), "a").is_err());
    }
}
