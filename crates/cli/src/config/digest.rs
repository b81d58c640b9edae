//! Digests that trust pins: of a file, and of a directory tree.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use toolpost_core::hex;

use super::reference::is_system;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mcp::entries;
use crate::regular_file;

/// The maximum size of a pinned file, in bytes.
pub(super) const MAX_FILE: u64 = 256 << 20;
/// The maximum size of a trusted file, in bytes: people must be able to read it.
pub(super) const MAX_TRUSTED: u64 = 16 << 20;
/// The maximum number of entries of a program directory.
const MAX_ENTRIES: usize = 10_000;
/// The maximum size of a program directory, in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// The maximum depth of a program directory.
const MAX_DEPTH: usize = 64;
/// The digest of a missing file, so that a new file is a change.
pub(super) const MISSING: &str = "missing";

/// The SHA-256 of a content in hexadecimal; of a client's configuration, that of its servers alone.
pub(super) fn of_content(path: &Path, content: &[u8]) -> String {
    hex(Sha256::digest(entries::pinned(path, content)))
}

/// The digest of a file, or [`MISSING`].
pub(super) fn of_file(path: &Path) -> io::Result<String> {
    if entries::is_known(path) {
        return match read(path) {
            Ok(content) => Ok(of_content(path, &content)),
            Err(error) if is_missing(&error) => Ok(MISSING.to_owned()),
            Err(error) => Err(error),
        };
    }
    let file = match regular_file::open(path) {
        Ok(file) => file,
        Err(error) if is_missing(&error) => return Ok(MISSING.to_owned()),
        Err(error) => return Err(error),
    };
    let mut hash = Sha256::new();
    update(&mut hash, file, MAX_FILE)?;
    Ok(hex(hash.finalize()))
}

/// The content of a file that may have references.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    regular_file::open(path)?.take(MAX_TRUSTED + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_TRUSTED {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 16 MiB"));
    }
    Ok(content)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Hashes a file up to a maximum size and returns its size.
fn update(hash: &mut Sha256, file: File, largest: u64) -> io::Result<u64> {
    let mut file = file.take(largest + 1);
    let mut buffer = vec![0; 64 << 10];
    let mut size = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(size);
        }
        size += read as u64;
        if size > largest {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        hash.update(buffer.get(..read).unwrap_or_default());
    }
}

/// The digest of a directory tree: names, kinds, executable bits, contents; without `.git`.
///
/// Compiled caches such as `__pycache__` count, because interpreters run them instead of the source.
///
/// # Errors
/// The directory is beyond the maxima, or has an entry that cannot be pinned.
pub(super) fn of_directory(directory: &Path) -> Result<String, Failure> {
    let mut tree = Tree { hash: Sha256::new(), root: directory, entries: 0, bytes: 0 };
    match directory.metadata() {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(tree.reject(directory, "is not a directory")),
        Err(error) if is_missing(&error) => return Ok(MISSING.to_owned()),
        Err(error) => return Err(Failure::file("the program directory", directory, &error)),
    }
    tree.walk(directory, 0)?;
    Ok(format!("tree:{}", hex(tree.hash.finalize())))
}

struct Tree<'a> {
    hash: Sha256,
    root: &'a Path,
    entries: usize,
    bytes: u64,
}

impl Tree<'_> {
    fn walk(&mut self, directory: &Path, depth: usize) -> Result<(), Failure> {
        if depth > MAX_DEPTH {
            return Err(self.reject(directory, "is more than 64 directories deep"));
        }
        let wrong = |error: &io::Error| Failure::file("the program directory", directory, error);
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(directory).map_err(|error| wrong(&error))? {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(self.too_large("10,000 files"));
            }
            paths.push(entry.map_err(|error| wrong(&error))?.path());
        }
        paths.sort();
        for path in paths.iter().filter(|path| path.file_name().is_none_or(|name| name != ".git")) {
            let wrong = |error: io::Error| Failure::file("the program's file", path, &error);
            let metadata = path.symlink_metadata().map_err(wrong)?;
            let name = path.strip_prefix(self.root).unwrap_or(path).as_os_str();
            if metadata.is_dir() {
                self.add(b'd', name.as_encoded_bytes());
                self.walk(path, depth + 1)?;
            } else if metadata.is_symlink() {
                let target = fs::read_link(path).map_err(wrong)?;
                self.add(b'l', name.as_encoded_bytes());
                self.add(b't', target.as_os_str().as_encoded_bytes());
                self.link(path)?;
            } else {
                let kind = if is_executable(&metadata) { b'x' } else { b'f' };
                self.add(kind, name.as_encoded_bytes());
                self.file(path)?;
            }
        }
        self.add(b'e', b"");
        Ok(())
    }

    /// Hashes a record: kind, length, bytes. Different trees have different records.
    fn add(&mut self, kind: u8, bytes: &[u8]) {
        self.hash.update([kind]);
        self.hash.update((bytes.len() as u64).to_le_bytes());
        self.hash.update(bytes);
    }

    /// Hashes the target of a link like a file of the directory.
    fn link(&mut self, path: &Path) -> Result<(), Failure> {
        let Ok(target) = path.canonicalize() else { return Ok(()) };
        if is_system(&target) {
            return Ok(());
        }
        if target.is_file() {
            return self.file(path);
        }
        let root = self.root.canonicalize().unwrap_or_else(|_| self.root.to_owned());
        if target.starts_with(root) { Ok(()) } else { Err(self.reject(path, "links to another directory")) }
    }

    fn file(&mut self, path: &Path) -> Result<(), Failure> {
        let wrong = |error: io::Error| Failure::file("the program's file", path, &error);
        let file = regular_file::open(path).map_err(wrong)?;
        let mut own = Sha256::new();
        let read = update(&mut own, file, MAX_BYTES - self.bytes);
        let size = match read {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                return Err(self.too_large("256 MiB"));
            }
            read => read.map_err(wrong)?,
        };
        self.bytes += size;
        self.add(b'c', &own.finalize());
        Ok(())
    }

    fn too_large(&self, bound: &str) -> Failure {
        let message = format!("the program directory `{}` has more than {bound}", self.root.display());
        Failure::new(Exit::Limit, "LIMIT", message)
            .hint("Move the program to a directory of its own: the whole directory is pinned.")
    }

    fn reject(&self, path: &Path, why: &str) -> Failure {
        let root = self.root.display();
        Failure::usage(format!("`{}` of the program directory `{root}` {why}", path.display()))
            .hint("Move the program to a directory of its own, with everything that it needs.")
    }
}

#[cfg(unix)]
fn is_executable(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_metadata: &fs::Metadata) -> bool {
    false
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn every_change_beneath_a_directory_changes_its_digest() {
        type Change = fn(&Path) -> io::Result<()>;
        let changes: [(&str, Change); 8] = [
            ("content", |root| fs::write(root.join("lib/helper.py"), "b")),
            ("new file", |root| fs::write(root.join("lib/new.py"), "")),
            ("removed file", |root| fs::remove_file(root.join("lib/helper.py"))),
            ("renamed file", |root| fs::rename(root.join("main.py"), root.join("mainn.py"))),
            ("executable bit", |root| {
                fs::set_permissions(root.join("main.py"), fs::Permissions::from_mode(0o755))
            }),
            ("empty directory", |root| fs::create_dir(root.join("more"))),
            ("compiled cache", |root| {
                fs::create_dir(root.join("__pycache__"))?;
                fs::write(root.join("__pycache__/main.cpython-313.pyc"), "evil")
            }),
            ("link", |root| std::os::unix::fs::symlink("main.py", root.join("link.py"))),
        ];
        for (name, change) in changes {
            let directory = tempfile::tempdir().unwrap();
            fs::create_dir_all(directory.path().join("lib")).unwrap();
            fs::create_dir(directory.path().join(".git")).unwrap();
            fs::write(directory.path().join("main.py"), "a").unwrap();
            fs::write(directory.path().join("lib/helper.py"), "a").unwrap();
            let before = of_directory(directory.path()).unwrap();
            fs::write(directory.path().join(".git/index"), "x").unwrap();
            assert_eq!(of_directory(directory.path()).unwrap(), before, "{name}");
            change(directory.path()).unwrap();
            assert_ne!(of_directory(directory.path()).unwrap(), before, "{name}");
        }
    }

    #[test]
    fn the_target_of_a_link_counts_and_a_directory_elsewhere_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(directory.path().join("other")).unwrap();
        fs::create_dir(&root).unwrap();
        fs::write(directory.path().join("shared.py"), "a").unwrap();
        std::os::unix::fs::symlink("../shared.py", root.join("shared.py")).unwrap();
        let before = of_directory(&root).unwrap();
        fs::write(directory.path().join("shared.py"), "b").unwrap();
        assert_ne!(of_directory(&root).unwrap(), before);
        std::os::unix::fs::symlink("../other", root.join("other")).unwrap();
        assert!(of_directory(&root).unwrap_err().message.contains("links to another directory"));
    }

    #[test]
    fn a_directory_beyond_its_bounds_is_rejected_with_the_fix() {
        let directory = tempfile::tempdir().unwrap();
        let large = File::create(directory.path().join("large")).unwrap();
        large.set_len(MAX_BYTES + 1).unwrap();
        let failure = of_directory(directory.path()).unwrap_err();
        assert!(failure.message.contains("more than 256 MiB"), "{failure:?}");
        fs::remove_file(directory.path().join("large")).unwrap();
        for number in 0..=MAX_ENTRIES {
            File::create(directory.path().join(number.to_string())).unwrap();
        }
        let failure = of_directory(directory.path()).unwrap_err();
        assert!(failure.message.contains("more than 10,000 files"), "{failure:?}");
        assert!(failure.hints[0].contains("directory of its own"), "{failure:?}");
    }
}
