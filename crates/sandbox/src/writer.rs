//! Writes files with untrusted names into a host directory.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::protected::{SearchPath, fold, names_git_driver};
use crate::{ChangedTree, ProtectedEntryKind, Protection, ProtectionRule, SingleChange, protection};

/// The highest number for a taken name.
const MAX_NUMBER: u32 = 1000;
/// The largest `.gitattributes` to judge, in bytes; git ignores those above 100 MiB.
pub(crate) const MAX_ATTRIBUTES: u64 = 1 << 20;

/// Serializes checks and creations: two halves of a repository must not be checked concurrently.
static TURN: Mutex<()> = Mutex::new(());

/// The reason why a file name or content is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// Programs of the host execute or obey the path.
    Protected(ProtectionRule),
    /// A `.gitattributes` that names a filter, diff or merge driver.
    GitDriver,
    /// The name is empty, absolute, contains `..` or a control character.
    Name,
}

impl fmt::Display for Rejection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protected(rule) => write!(formatter, "the path is protected, {rule}"),
            Self::GitDriver => formatter.write_str("git executes the driver that the file names"),
            Self::Name => formatter.write_str("the name is not a relative path of printable characters"),
        }
    }
}

/// The reason why a file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The name or content is rejected.
    #[error("{0}")]
    Rejected(Rejection),
    /// The file system returned an error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Rejection> for WriteError {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

/// A host directory that takes files with untrusted names.
///
/// Links below the directory are not followed, and nothing is overwritten: a taken name gets a number
/// (`plot-1.png`). [`protection`] judges each file together with the existing entries, so that a repository
/// cannot be assembled file by file.
#[derive(Debug)]
pub struct SafeDirectory {
    path: PathBuf,
    root: platform::Directory,
    search_path: SearchPath,
}

impl SafeDirectory {
    /// Opens a directory and creates it if missing.
    ///
    /// The path itself may contain links: the operator chose it.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        std::fs::create_dir_all(&path)?;
        let root = platform::Directory::open(&path)?;
        let entries = SearchPath::of_process().iter().map(PathBuf::as_path);
        let search_path = SearchPath::beneath(&path.canonicalize()?, entries);
        Ok(Self { path, root, search_path })
    }

    /// Writes a new file and returns its path.
    pub fn write(&self, name: &Path, content: &mut dyn Read) -> Result<PathBuf, WriteError> {
        self.write_with(name, content, false)
    }

    /// A variant for a file that its owner may execute.
    pub(crate) fn write_with(
        &self,
        name: &Path,
        content: &mut dyn Read,
        is_executable: bool,
    ) -> Result<PathBuf, WriteError> {
        if !is_attributes(name) {
            let (mut file, path) = self.create_judged(name, is_executable)?;
            io::copy(content, &mut file)?;
            return Ok(path);
        }
        let mut attributes = Vec::new();
        content.take(MAX_ATTRIBUTES + 1).read_to_end(&mut attributes)?;
        if attributes.len() as u64 > MAX_ATTRIBUTES || names_git_driver(&attributes) {
            return Err(Rejection::GitDriver.into());
        }
        let (mut file, path) = self.create_judged(name, false)?;
        file.write_all(&attributes)?;
        Ok(path)
    }

    /// Creates an empty file to fill later.
    ///
    /// A `.gitattributes` is rejected, because its content must be judged.
    pub fn create(&self, name: &Path) -> Result<(File, PathBuf), WriteError> {
        if is_attributes(name) {
            return Err(Rejection::GitDriver.into());
        }
        self.create_judged(name, false)
    }

    fn create_judged(&self, name: &Path, is_executable: bool) -> Result<(File, PathBuf), WriteError> {
        check_name(name)?;
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let lookup = |path: &Path| self.root.lookup(path);
        for number in 0..MAX_NUMBER {
            let candidate = numbered(name, number);
            let change = SingleChange::new(&candidate, Some(ProtectedEntryKind::File), &lookup);
            let by_name = || self.search_path.protection(&candidate, &change);
            match protection(&candidate, &change).or_else(by_name) {
                None => {}
                // Existing instructions stay unchanged, and this name is taken.
                Some(rule) if rule.kind == Protection::Instructions => continue,
                Some(rule) => return Err(Rejection::Protected(rule).into()),
            }
            match self.root.create(&candidate, is_executable) {
                Ok(file) => return Ok((file, self.path.join(candidate))),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists).into())
    }
}

/// Whether git reads a path as attributes.
fn is_attributes(path: &Path) -> bool {
    path.file_name().is_some_and(|name| fold(&name.to_string_lossy()) == ".gitattributes")
}

/// Whether new content adds a driver that git executes.
///
/// Only a `.gitattributes` can. `before` returns its present content, empty if there is none.
pub fn adds_git_driver(path: &Path, before: impl FnOnce() -> Vec<u8>, after: &[u8]) -> bool {
    if !is_attributes(path) || !names_git_driver(after) {
        return false;
    }
    let before = before();
    let known: HashSet<&[u8]> = before.split(|byte| *byte == b'\n').collect();
    after.split(|byte| *byte == b'\n').any(|line| names_git_driver(line) && !known.contains(line))
}

fn check_name(name: &Path) -> Result<(), Rejection> {
    let is_plain = name.components().all(|part| matches!(part, Component::Normal(_)));
    let has_control = name.to_string_lossy().chars().any(char::is_control);
    if is_plain && !has_control && !name.as_os_str().is_empty() { Ok(()) } else { Err(Rejection::Name) }
}

fn numbered(name: &Path, number: u32) -> PathBuf {
    let Some(file) = name.file_name().filter(|_| number > 0) else { return name.to_owned() };
    // Compare bytes: a name need not be valid UTF-8.
    let stem = name.file_stem().unwrap_or(file);
    let mut numbered = stem.to_owned();
    numbered.push(format!("-{number}"));
    if let Some(extension) = name.extension() {
        numbered.push(".");
        numbered.push(extension);
    }
    name.with_file_name(numbered)
}

/// Several changes of an otherwise unchanged directory.
pub(crate) struct ChangeSet<'a> {
    lookup: &'a dyn Fn(&Path) -> Option<ProtectedEntryKind>,
    /// Changes by folded names; none is a deletion.
    changed: BTreeMap<Vec<String>, Option<ProtectedEntryKind>>,
}

impl<'a> ChangeSet<'a> {
    /// `lookup` returns the current entry at a relative path.
    pub(crate) fn new(
        lookup: &'a dyn Fn(&Path) -> Option<ProtectedEntryKind>,
        changed: impl IntoIterator<Item = (PathBuf, Option<ProtectedEntryKind>)>,
    ) -> Self {
        let changed = changed.into_iter().map(|(path, kind)| (folded(&path), kind)).collect();
        Self { lookup, changed }
    }
}

impl ChangedTree for ChangeSet<'_> {
    fn before(&self, path: &Path) -> Option<ProtectedEntryKind> {
        (self.lookup)(path)
    }

    fn after(&self, path: &Path) -> Option<ProtectedEntryKind> {
        let wanted = folded(path);
        if let Some(kind) = self.changed.get(&wanted) {
            return *kind;
        }
        let mut beneath =
            self.changed.range(wanted.clone()..).take_while(|(path, _)| path.starts_with(&wanted));
        if beneath.any(|(_, kind)| kind.is_some()) {
            return Some(ProtectedEntryKind::Directory);
        }
        (self.lookup)(path)
    }
}

fn folded(path: &Path) -> Vec<String> {
    path.components().map(|part| fold(&part.as_os_str().to_string_lossy()).into_owned()).collect()
}

/// The current entry at a path beneath a directory; none behind a link or a missing directory.
pub(crate) fn lookup_beneath(directory: &Path, path: &Path) -> Option<ProtectedEntryKind> {
    platform::Directory::open(directory).ok()?.lookup(path)
}

#[cfg(unix)]
mod platform {
    use std::ffi::OsStr;
    use std::fs::File;
    use std::io;
    use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
    use std::path::Path;

    use rustix::fs::{AtFlags, FileType, Mode, OFlags};
    use rustix::io::Errno;

    use crate::ProtectedEntryKind;

    /// An open directory. Paths beneath it are opened component by component, without following links.
    #[derive(Debug)]
    pub(super) struct Directory(OwnedFd);

    impl Directory {
        pub(super) fn open(path: &Path) -> io::Result<Self> {
            Ok(Self(File::open(path)?.into()))
        }

        pub(super) fn lookup(&self, path: &Path) -> Option<ProtectedEntryKind> {
            let parent = self.parent(path, false).ok()?;
            let parent = parent.as_ref().map_or(self.0.as_fd(), |parent| parent.as_fd());
            let stat = rustix::fs::statat(parent, path.file_name()?, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some(match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => ProtectedEntryKind::File,
                FileType::Directory => ProtectedEntryKind::Directory,
                FileType::Symlink => ProtectedEntryKind::Link,
                _ => ProtectedEntryKind::Special,
            })
        }

        /// Creates a file where none exists, with its parent directories.
        pub(super) fn create(&self, path: &Path, is_executable: bool) -> io::Result<File> {
            let parent = self.parent(path, true)?;
            let parent = parent.as_ref().map_or(self.0.as_fd(), |parent| parent.as_fd());
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let name = path.file_name().ok_or(Errno::INVAL)?;
            let mode = Mode::from_raw_mode(if is_executable { 0o777 } else { 0o666 });
            Ok(rustix::fs::openat(parent, name, flags, mode)?.into())
        }

        fn parent(&self, path: &Path, create: bool) -> io::Result<Option<OwnedFd>> {
            let mut parent: Option<OwnedFd> = None;
            for name in path.parent().into_iter().flat_map(Path::iter) {
                let here = parent.as_ref().map_or(self.0.as_fd(), |parent| parent.as_fd());
                parent = Some(enter(here, name, create)?);
            }
            Ok(parent)
        }
    }

    fn enter(here: BorrowedFd<'_>, name: &OsStr, create: bool) -> io::Result<OwnedFd> {
        if create {
            match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(here, name, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP | Errno::NOTDIR => {
                io::Error::other(format!("`{}` is a link or not a directory", name.display()))
            }
            errno => errno.into(),
        })
    }
}

#[cfg(not(unix))]
mod platform {
    use std::fs::{self, File, OpenOptions};
    use std::io;
    use std::path::{Path, PathBuf};

    use crate::ProtectedEntryKind;

    /// A directory by its path.
    #[derive(Debug)]
    pub(super) struct Directory(PathBuf);

    impl Directory {
        pub(super) fn open(path: &Path) -> io::Result<Self> {
            Ok(Self(path.to_owned()))
        }

        pub(super) fn lookup(&self, path: &Path) -> Option<ProtectedEntryKind> {
            let kind = fs::symlink_metadata(self.0.join(path)).ok()?.file_type();
            Some(match kind {
                kind if kind.is_symlink() => ProtectedEntryKind::Link,
                kind if kind.is_dir() => ProtectedEntryKind::Directory,
                kind if kind.is_file() => ProtectedEntryKind::File,
                _ => ProtectedEntryKind::Special,
            })
        }

        /// Creates a file where none exists, with its parent directories.
        pub(super) fn create(&self, path: &Path, _is_executable: bool) -> io::Result<File> {
            let mut place = self.0.clone();
            for name in path.parent().into_iter().flat_map(Path::iter) {
                place.push(name);
                match fs::symlink_metadata(&place) {
                    Ok(metadata) if metadata.is_dir() => {}
                    Ok(_) => {
                        let name = place.display();
                        return Err(io::Error::other(format!("`{name}` is a link or not a directory")));
                    }
                    Err(_) => fs::create_dir(&place)?,
                }
            }
            OpenOptions::new().write(true).create_new(true).open(self.0.join(path))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &SafeDirectory, name: &str, content: &str) -> Result<PathBuf, WriteError> {
        directory.write(Path::new(name), &mut content.as_bytes())
    }

    #[test]
    fn nothing_is_overwritten_and_numbers_go_before_the_extension() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("AGENTS.md"), "of the operator").unwrap();
        let directory = SafeDirectory::open(place.path().join(".")).unwrap();
        for (name, expected) in [
            ("a/b.tar.gz", "a/b.tar.gz"),
            ("a/b.tar.gz", "a/b.tar-1.gz"),
            (".hidden", ".hidden"),
            (".hidden", ".hidden-1"),
            ("plain", "plain"),
            ("plain", "plain-1"),
            ("AGENTS.md", "AGENTS-1.md"),
            ("sub/AGENTS.md", "sub/AGENTS.md"),
            ("-rf", "-rf"),
        ] {
            assert_eq!(write(&directory, name, "x").unwrap(), place.path().join(expected), "{name}");
        }
        assert_eq!(std::fs::read(place.path().join("AGENTS.md")).unwrap(), b"of the operator");
        for name in ["../x", "/x", "a/../x", "", ".", "a\nb", "a\u{1b}[2Jb"] {
            let error = write(&directory, name, "x").unwrap_err();
            assert!(matches!(error, WriteError::Rejected(Rejection::Name)), "{name:?} {error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn no_link_below_the_directory_is_followed() {
        use std::os::unix::fs::symlink;
        let place = tempfile::tempdir().unwrap();
        let [out, outside] = ["out", "outside"].map(|name| place.path().join(name));
        std::fs::create_dir(&out).unwrap();
        std::fs::create_dir(&outside).unwrap();
        symlink(&outside, out.join("d")).unwrap();
        symlink(outside.join("f"), out.join("f")).unwrap();
        symlink(&out, place.path().join("named")).unwrap();
        let directory = SafeDirectory::open(place.path().join("named")).unwrap();
        for name in ["d/g", "d/e/g"] {
            let error = write(&directory, name, "x").unwrap_err().to_string();
            assert!(error.contains("`d` is a link"), "{error}");
        }
        assert!(write(&directory, "f", "x").unwrap().ends_with("f-1"));
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    }

    #[test]
    fn protected_paths_are_not_written() {
        for (before, names, written) in [
            (
                &[][..],
                &[".git/config", ".git/hooks/pre-commit", ".git", "new/.git", "n/.GIT/HEAD"][..],
                &[][..],
            ),
            (
                &[],
                &[".ssh/authorized_keys", ".bashrc", ".claude/settings.json", ".mcp.json", ".BashRC."],
                &[],
            ),
            (&[], &["HEAD", "config", "objects/x", "refs/heads/x"], &["HEAD", "config", "objects/x"]),
            (&[], &["b/refs/x", "b/HEAD", "b/objects/x"], &["b/refs/x", "b/HEAD"]),
            (&["half/HEAD", "half/objects/x"], &["half/refs/x", "half/commondir", "half/y"], &["half/y"]),
            (&["c/HEAD", "c/objects/x", "c/refs/x"], &["c/config", "c/hooks/update"], &[]),
            (&[".bashrc"], &[".bashrc"], &[]),
        ] {
            let place = tempfile::tempdir().unwrap();
            let directory = SafeDirectory::open(place.path()).unwrap();
            for name in before {
                let path = place.path().join(name);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "host").unwrap();
            }
            let found: Vec<_> = names.iter().filter(|name| write(&directory, name, "x").is_ok()).collect();
            assert_eq!(found, written.iter().collect::<Vec<_>>(), "{names:?}");
        }
    }

    #[test]
    fn attributes_are_judged_by_their_content() {
        let place = tempfile::tempdir().unwrap();
        let directory = SafeDirectory::open(place.path()).unwrap();
        for content in ["* filter=evil\n", "a text\n*.c diff=evil", "[attr]m merge=evil"] {
            let error = write(&directory, "a/.gitattributes", content).unwrap_err();
            assert!(matches!(error, WriteError::Rejected(Rejection::GitDriver)), "{error}");
        }
        assert!(directory.create(Path::new(".GitAttributes")).is_err());
        assert!(write(&directory, ".gitattributes", "*.png binary\n").is_ok());
        let path = Path::new("a/.gitattributes");
        for (path, before, after, expected) in [
            (path, "", "* filter=evil", true),
            (path, "*.bin filter=lfs\n", "*.bin filter=lfs\n*.c text\n", false),
            (path, "*.bin filter=lfs\n", "*.bin filter=lfs\n* filter=lfs\n", true),
            (Path::new("a/notes"), "", "* filter=evil", false),
        ] {
            let before = || before.as_bytes().to_vec();
            assert_eq!(adds_git_driver(path, before, after.as_bytes()), expected, "{after}");
        }
    }

    #[test]
    fn changes_are_judged_together() {
        let lookup = |path: &Path| (path == Path::new("half/HEAD")).then_some(ProtectedEntryKind::File);
        let changed = ["half/objects/x", "half/refs/x", "gone"];
        let kind = |name: &str| (name != "gone").then_some(ProtectedEntryKind::File);
        let set = ChangeSet::new(&lookup, changed.map(|name| (name.into(), kind(name))));
        assert_eq!(set.after(Path::new("half/Refs")), Some(ProtectedEntryKind::Directory));
        assert_eq!(set.after(Path::new("gone")), None);
        for name in ["half/objects/x", "half/refs/x"] {
            let found = protection(Path::new(name), &set).map(|rule| rule.kind);
            assert_eq!(found, Some(Protection::Repository), "{name}");
        }
    }
}
