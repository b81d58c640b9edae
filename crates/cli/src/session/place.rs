//! Where sessions are found: one socket each, in a folder that only this user can enter.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::config::places;
use crate::failure::Failure;

/// The longest path of a socket that the system takes.
const MAX_PATH: usize = 107;

/// The folder, made if it is not there.
///
/// # Errors
/// If there is no place for it, or others can enter it: a socket in it could then be a stranger's.
pub(crate) fn folder() -> Result<PathBuf, Failure> {
    let folder = places::sessions().ok_or_else(places::no_home)?;
    let wrong = |error: &io::Error| Failure::file("the folder of the sessions", &folder, error);
    if let Some(above) = folder.parent() {
        std::fs::create_dir_all(above).map_err(|error| wrong(&error))?;
    }
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(wrong(&error)),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder).map_err(|error| wrong(&error))?;
    // What a process owns in /proc is its own.
    let own = std::fs::metadata("/proc/self").map_err(|error| wrong(&error))?.uid();
    if !found.is_dir() || found.uid() != own || found.mode() & 0o077 != 0 {
        return Err(Failure::usage(format!(
            "the folder of the sessions `{}` must be a folder of this user that nobody else can enter",
            folder.display()
        ))
        .hint("Remove it, or set XDG_RUNTIME_DIR to a folder of your own."));
    }
    Ok(folder)
}

/// The socket of a session.
///
/// # Errors
/// If the name cannot be one, or the path would be too long.
pub(crate) fn socket(folder: &Path, id: &str) -> Result<PathBuf, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if id.is_empty() || id.len() > 64 || !id.bytes().all(fits) {
        let shown: String = id.chars().take(80).collect();
        return Err(Failure::usage(format!("`{shown}` cannot be the name of a session"))
            .hint("A name has 1 to 64 letters, digits, `-` and `_`."));
    }
    let path = folder.join(format!("{id}.sock"));
    if path.as_os_str().len() > MAX_PATH {
        return Err(Failure::usage(format!(
            "the path of the session's socket is too long: `{}`",
            path.display()
        ))
        .hint("Set XDG_RUNTIME_DIR to a folder with a short path."));
    }
    Ok(path)
}

/// Keeps other commands from starting a session until the file is dropped.
pub(crate) fn lock(folder: &Path) -> Result<File, Failure> {
    let path = folder.join("lock");
    let open = || {
        let file = File::options().create(true).append(true).open(&path)?;
        file.lock()?;
        Ok(file)
    };
    open().map_err(|error: io::Error| Failure::file("the lock of the sessions", &path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_else() {
        let folder = Path::new("/run/user/1/toolpost");
        assert_eq!(socket(folder, "a-B_9").unwrap(), folder.join("a-B_9.sock"));
        for name in ["", ".", "..", "a/b", "../a", "a b", "a\0", "ä", &"a".repeat(65)] {
            assert!(socket(folder, name).is_err(), "{name:?}");
        }
        assert!(socket(&folder.join("x".repeat(100)), "a").is_err());
    }
}
