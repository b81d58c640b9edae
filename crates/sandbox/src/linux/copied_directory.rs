//! A host directory that is copied to a remote backend, with changes copied back.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::{AsFd as _, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::files::{Entry, Listing, create, list, open_beneath};
use super::workspace::OpenedDirectory;
use crate::sandbox::check_file_name;
use crate::writer::{ChangeSet, MAX_ATTRIBUTES};
use crate::{DirectoryRules, Error, ProtectedEntryKind, ProtectionRule, Rejection, adds_git_driver};

/// The directory and its entries when it was opened.
#[derive(Debug)]
pub struct CopiedDirectory {
    directory: OpenedDirectory,
    before: Listing,
    rules: DirectoryRules,
}

impl CopiedDirectory {
    /// Opens and lists a directory. An incomplete list is an error, because only part of it would be copied.
    ///
    /// `rules` returns the rules of the directory's path without symbolic links.
    pub fn open(given: &Path, rules: impl FnOnce(&Path) -> DirectoryRules) -> Result<Self, Error> {
        let directory = OpenedDirectory::open_shared(given)?;
        let mut before = list(directory.descriptor());
        if let Some(reason) = before.left_out {
            let reason = format!("it cannot be copied as a whole, {reason}; use the backend `process`");
            return Err(Error::Workspace { path: given.to_owned(), reason });
        }
        let rules = rules(directory.path());
        before.files.retain(|path, _| !rules.hides(path));
        Ok(Self { directory, before, rules })
    }

    /// The regular files with their sizes.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let regular = self.before.files.iter().filter(|(_, entry)| entry.is_regular);
        regular.map(|(path, entry)| (path.clone(), entry.size())).collect()
    }

    /// The number of entries that are neither files nor directories, and so are not copied.
    pub fn others(&self) -> usize {
        self.before.files.values().filter(|entry| !entry.is_regular).count()
    }

    /// Whether a file existed when the directory was opened.
    pub fn had(&self, path: &Path) -> bool {
        self.before.files.contains_key(path)
    }

    /// Opens a file, and returns whether it is executable. One with several hard links is rejected: it may be
    /// a host secret.
    pub fn read(&self, path: &Path) -> io::Result<(File, bool)> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = File::from(open_beneath(self.directory.descriptor(), path, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.nlink() != 1 {
            return Err(io::Error::other("it is not a regular file with one link"));
        }
        Ok((file, metadata.mode() & 0o100 != 0))
    }

    /// The protected paths among changes; none as kind is a deletion.
    ///
    /// Pass all changes of a run together: a repository may come in parts.
    pub fn protected(
        &self,
        changes: impl IntoIterator<Item = (PathBuf, Option<ProtectedEntryKind>)>,
    ) -> BTreeMap<PathBuf, ProtectionRule> {
        let changes: Vec<_> = changes.into_iter().collect();
        let lookup = |path: &Path| self.lookup(path);
        let tree = ChangeSet::new(&lookup, changes.iter().cloned());
        changes
            .into_iter()
            .filter_map(|(path, _)| Some((path.clone(), self.rules.protection(&path, &tree)?)))
            .collect()
    }

    /// The host's current entry at a path. Links are not followed.
    fn lookup(&self, path: &Path) -> Option<ProtectedEntryKind> {
        let parent = self.parent(path).ok()?;
        let stat = rustix::fs::statat(&parent, path.file_name()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => ProtectedEntryKind::File,
            FileType::Directory => ProtectedEntryKind::Directory,
            FileType::Symlink => ProtectedEntryKind::Link,
            _ => ProtectedEntryKind::Special,
        })
    }

    /// Writes a new or changed file, owned by the directory's owner.
    ///
    /// The caller must check [`crate::protection`] for the path first.
    ///
    /// # Errors
    /// The reason: its name, a git driver in it, or a change by another process.
    pub fn write(&self, path: &Path, content: &[u8], is_executable: bool) -> Result<(), String> {
        if adds_git_driver(path, || self.attributes(path), content) {
            return Err(Rejection::GitDriver.to_string());
        }
        let mode = self.check(path)?.unwrap_or(if is_executable { 0o755 } else { 0o644 });
        let text = |error: Errno| error.to_string();
        let mut random = [0u8; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(text)?;
        let temporary = path.with_file_name(format!(".toolpost-{:016x}", u64::from_ne_bytes(random)));
        let owner = rustix::process::geteuid().is_root().then(|| self.directory.owner());
        let file = create(self.directory.descriptor(), &temporary, owner).map_err(text)?;
        let written = (|| {
            let mut file = File::from(file);
            file.write_all(content)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
            let parent = self.parent(path)?;
            let (Some(from), Some(to)) = (temporary.file_name(), path.file_name()) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            Ok::<_, io::Error>(rustix::fs::renameat(&parent, from, &parent, to)?)
        })();
        written.map_err(|error| {
            if let (Ok(parent), Some(name)) = (self.parent(path), temporary.file_name()) {
                let _ = rustix::fs::unlinkat(&parent, name, AtFlags::empty());
            }
            error.to_string()
        })
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// As [`CopiedDirectory::write`].
    pub fn remove(&self, path: &Path) -> Result<(), String> {
        self.check(path)?;
        let parent = self.parent(path).map_err(|error| error.to_string())?;
        let Some(name) = path.file_name() else { return Err("it has no name".into()) };
        rustix::fs::unlinkat(&parent, name, AtFlags::empty()).map_err(|error| error.to_string())
    }

    /// The current content of a `.gitattributes`; empty if there is no readable one.
    fn attributes(&self, path: &Path) -> Vec<u8> {
        let mut content = Vec::new();
        if let Ok((file, _)) = self.read(path) {
            let _ = file.take(MAX_ATTRIBUTES).read_to_end(&mut content);
        }
        content
    }

    fn parent(&self, path: &Path) -> Result<OwnedFd, Errno> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        open_beneath(self.directory.descriptor(), parent, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    /// Whether a path may be written, and the mode of an existing file.
    fn check(&self, path: &Path) -> Result<Option<u32>, String> {
        let name = path.to_str().ok_or("its name is not valid UTF-8")?;
        check_file_name(name).map_err(|error| error.to_string())?;
        let found = match self.parent(path) {
            Ok(parent) => {
                let last = path.file_name().unwrap_or_default();
                match rustix::fs::statat(parent.as_fd(), last, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => Some(stat),
                    Err(Errno::NOENT) => None,
                    Err(error) => return Err(error.to_string()),
                }
            }
            Err(Errno::NOENT) => None,
            Err(error) => return Err(error.to_string()),
        };
        let is_as_it_was = found.as_ref().map(Entry::from_stat).as_ref() == self.before.files.get(path);
        if !is_as_it_was {
            return Err("it changed on the host meanwhile".into());
        }
        match self.before.files.get(path) {
            Some(entry) if !entry.is_regular => Err("on the host it is not a regular file".into()),
            _ => Ok(found.map(|stat| stat.st_mode & 0o777)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    #[test]
    fn only_changes_are_copied_back() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("secret"), "secret").unwrap();
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("a/.git")).unwrap();
        for (name, content) in
            [("a/one", "1"), ("two", "2"), ("three", "3"), ("raced", "4"), ("a/.git/config", "x")]
        {
            std::fs::write(at(name), content).unwrap();
        }
        std::fs::set_permissions(at("two"), std::fs::Permissions::from_mode(0o750)).unwrap();
        symlink(outside.path().join("secret"), at("link")).unwrap();
        std::fs::hard_link(at("three"), at("second-name")).unwrap();
        let none = |path: &Path| DirectoryRules::new(path, [], []);
        let directory = CopiedDirectory::open(place.path(), none).unwrap();
        assert_eq!((directory.files().len(), directory.others()), (6, 1));
        assert!(
            directory.read(Path::new("two")).unwrap().1 && !directory.read(Path::new("a/one")).unwrap().1
        );
        assert!(directory.read(Path::new("three")).is_err(), "it has two names");

        let write = |name: &str, executable: bool| directory.write(Path::new(name), b"new", executable);
        write("two", false).unwrap();
        write("b/c/made", true).unwrap();
        directory.remove(Path::new("a/one")).unwrap();
        let mode = |name: &str| std::fs::metadata(at(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("two"), mode("b/c/made")), (0o750, 0o755));
        assert_eq!(std::fs::read(at("two")).unwrap(), b"new");
        assert!(!at("a/one").exists());
        std::fs::write(at("raced"), "by somebody else").unwrap();
        std::fs::write(at("appeared"), "by somebody else").unwrap();
        symlink(outside.path(), at("way-out")).unwrap();
        for name in ["raced", "appeared", "link", "../x", "way-out/secret", "-rf"] {
            assert!(write(name, false).is_err(), "{name}");
            assert!(directory.remove(Path::new(name)).is_err(), "{name}");
        }
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read(at("raced")).unwrap(), b"by somebody else");
        let left: Vec<_> =
            std::fs::read_dir(place.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".toolpost-")), "{left:?}");
        assert!(
            CopiedDirectory::open(Path::new("/"), none).is_err()
                && CopiedDirectory::open(Path::new("/proc"), none).is_err()
        );
    }
}
