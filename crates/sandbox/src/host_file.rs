//! Bounded reads of files of the host, and links that lead from one path to another.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

#[cfg(unix)]
use rustix::fs::{Mode, OFlags};

/// The flags of each opened file and directory.
#[cfg(unix)]
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The maximum size of a file with one line, in bytes.
const MAX_LINE: u64 = 8192;

/// The kernel's limit of links on the way to a file.
const MAX_LINKS: usize = 40;

/// The size of the first read, in bytes. Few configurations are larger.
const FIRST_READ: usize = 4 << 10;

/// The content of a file.
#[derive(Debug)]
pub(crate) enum Content {
    /// All of it.
    Whole(Vec<u8>),
    /// The file is larger than the maximum.
    TooLarge,
    /// It is missing or not readable.
    Unreadable,
}

/// Reads a file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> Content {
    open(path).map_or(Content::Unreadable, |file| read_open(file, max))
}

fn read_open(mut file: File, max: u64) -> Content {
    let mut first = [0; FIRST_READ];
    let Ok(length) = file.read(&mut first) else { return Content::Unreadable };
    let mut content = first.get(..length).unwrap_or_default().to_vec();
    // A shorter read than possible is the end of a regular file.
    if length == FIRST_READ {
        let rest = (max + 1).saturating_sub(length as u64);
        if file.take(rest).read_to_end(&mut content).is_err() {
            return Content::Unreadable;
        }
    }
    if content.len() as u64 > max { Content::TooLarge } else { Content::Whole(content) }
}

/// Reads a small file, such as one with a path.
pub(crate) fn read_line(path: &Path) -> Option<Vec<u8>> {
    line(read(path, MAX_LINE))
}

fn line(content: Content) -> Option<Vec<u8>> {
    let Content::Whole(mut content) = content else { return None };
    while content.last().is_some_and(u8::is_ascii_whitespace) {
        content.pop();
    }
    Some(content)
}

/// Opens a file. A FIFO does not block, and has no content.
#[cfg(unix)]
fn open(path: &Path) -> Option<File> {
    rustix::fs::open(path, FLAGS, Mode::empty()).ok().map(File::from)
}

#[cfg(not(unix))]
fn open(path: &Path) -> Option<File> {
    File::open(path).ok()
}

/// The kind of a directory's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    Link,
    Other,
}

/// An open directory. The kernel finds its entries without the path to it.
#[cfg(target_os = "linux")]
pub(crate) struct Directory(OwnedFd);

#[cfg(target_os = "linux")]
impl Directory {
    /// None if it cannot be read.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        rustix::fs::open(path, FLAGS | OFlags::DIRECTORY, Mode::empty()).ok().map(Self)
    }

    /// Opens a directory in it, also behind a link.
    pub(crate) fn open_in(&self, name: &OsStr) -> Option<Self> {
        rustix::fs::openat(&self.0, name, FLAGS | OFlags::DIRECTORY, Mode::empty()).ok().map(Self)
    }

    /// Reads a file in it of at most `max` bytes.
    pub(crate) fn read(&self, name: &str, max: u64) -> Content {
        let file = rustix::fs::openat(&self.0, name, FLAGS, Mode::empty());
        file.map_or(Content::Unreadable, |file| read_open(file.into(), max))
    }

    /// Visits the entries, at most `max`. A second visit has none.
    pub(crate) fn visit(&self, max: usize, visit: &mut dyn FnMut(&OsStr, Kind)) {
        use std::mem::MaybeUninit;
        use std::os::unix::ffi::OsStrExt as _;

        use rustix::fs::{AtFlags, FileType, RawDir};
        let mut buffer = [MaybeUninit::uninit(); 8 << 10];
        let mut read = RawDir::new(&self.0, &mut buffer);
        let mut count = 0;
        while let Some(Ok(entry)) = read.next() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if count >= max {
                break;
            }
            count += 1;
            let kind = match entry.file_type() {
                // Some file systems do not have it in the directory.
                FileType::Unknown => rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode)),
                kind => kind,
            };
            let kind = match kind {
                FileType::Directory => Kind::Directory,
                FileType::Symlink => Kind::Link,
                _ => Kind::Other,
            };
            visit(OsStr::from_bytes(name.to_bytes()), kind);
        }
    }
}

/// A directory by its path.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Directory(PathBuf);

#[cfg(not(target_os = "linux"))]
impl Directory {
    pub(crate) fn open(path: &Path) -> Option<Self> {
        path.read_dir().ok().map(|_| Self(path.to_owned()))
    }

    pub(crate) fn open_in(&self, name: &OsStr) -> Option<Self> {
        Self::open(&self.0.join(name))
    }

    pub(crate) fn read(&self, name: &str, max: u64) -> Content {
        read(&self.0.join(name), max)
    }

    pub(crate) fn visit(&self, max: usize, visit: &mut dyn FnMut(&OsStr, Kind)) {
        let kind = |entry: &std::fs::DirEntry| match entry.file_type() {
            Ok(kind) if kind.is_symlink() => Kind::Link,
            Ok(kind) if kind.is_dir() => Kind::Directory,
            _ => Kind::Other,
        };
        let Ok(entries) = self.0.read_dir() else { return };
        entries.flatten().take(max).for_each(|entry| visit(&entry.file_name(), kind(&entry)));
    }
}

impl Directory {
    /// Reads a small file in it.
    pub(crate) fn read_line(&self, name: &str) -> Option<Vec<u8>> {
        line(self.read(name, MAX_LINE))
    }

    /// The entries, at most `max`. A second call has none.
    pub(crate) fn entries(&self, max: usize) -> Vec<(OsString, Kind)> {
        let mut found = Vec::new();
        self.visit(max, &mut |name, kind| found.push((name.to_owned(), kind)));
        found
    }
}

/// A path in the bytes of a file.
pub(crate) fn path_from(bytes: &[u8]) -> PathBuf {
    #[cfg(unix)]
    let text: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(bytes);
    #[cfg(not(unix))]
    let text = String::from_utf8_lossy(bytes).into_owned();
    PathBuf::from(text)
}

/// The entries of a directory, at most `max`; none if it cannot be read.
pub(crate) fn entries(path: &Path, max: usize) -> Vec<(OsString, Kind)> {
    Directory::open(path).map_or_else(Vec::new, |directory| directory.entries(max))
}

/// Follows links, and remembers which paths are none.
#[derive(Debug, Default)]
pub(crate) struct Links {
    plain: HashSet<PathBuf>,
}

impl Links {
    /// Follows links beneath a directory whose path has none.
    pub(crate) fn beneath(directory: &Path) -> Self {
        Self { plain: directory.ancestors().map(Path::to_owned).collect() }
    }

    /// The names under which the kernel finds an absolute path: the path itself, and one for each link on the way. The
    /// last one has no links. A missing end is part of each name.
    pub(crate) fn names_of(&mut self, path: &Path) -> Vec<PathBuf> {
        let mut names = Vec::new();
        let mut rest: Vec<OsString> = Vec::new();
        push(&mut rest, path);
        let mut walked = root_of(path);
        let mut links = 0;
        names.push(joined(&walked, &rest));
        while let Some(part) = rest.pop() {
            if part == ".." {
                walked.pop();
                continue;
            }
            walked.push(&part);
            if self.plain.contains(&walked) {
                continue;
            }
            let Ok(target) = std::fs::read_link(&walked) else {
                self.plain.insert(walked.clone());
                continue;
            };
            links += 1;
            if links > MAX_LINKS {
                break;
            }
            walked.pop();
            if target.is_absolute() {
                walked = root_of(&target);
            }
            push(&mut rest, &target);
            names.push(joined(&walked, &rest));
        }
        names.push(walked);
        names.dedup();
        names
    }

    /// The path without links.
    pub(crate) fn real(&mut self, path: &Path) -> PathBuf {
        self.names_of(path).pop().unwrap_or_default()
    }
}

/// A path without `.` and `..`, as if it had no links.
pub(crate) fn lexical(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    push(&mut rest, path);
    joined(&root_of(path), &rest)
}

fn root_of(path: &Path) -> PathBuf {
    path.components().take_while(|part| matches!(part, Component::Prefix(_) | Component::RootDir)).collect()
}

/// Pushes the names of a path on a stack, the first on top.
fn push(stack: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    stack.extend(parts);
}

/// A directory and the names of a stack, without `..`.
fn joined(directory: &Path, stack: &[OsString]) -> PathBuf {
    let mut path = directory.to_owned();
    for part in stack.iter().rev() {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn each_link_on_the_way_is_a_name() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("tools/ai")).unwrap();
        symlink("tools/ai", root.join("ai")).unwrap();
        symlink("ai/claude", root.join(".claude")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let names = Links::default().names_of(&root.join(".claude/a"));
        assert_eq!(names, [".claude/a", "ai/claude/a", "tools/ai/claude/a"].map(|name| root.join(name)));
        let names = Links::default().names_of(&root.join("x/../tools/./b"));
        assert_eq!(names, [root.join("tools/b")]);
        assert!(Links::default().names_of(&root.join("loop")).len() <= MAX_LINKS + 2);
    }

    #[test]
    fn files_of_bounded_size_are_read() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        std::fs::write(&path, "path \n").unwrap();
        assert_eq!(read_line(&path).unwrap(), b"path");
        assert!(matches!(read(&path, 3), Content::TooLarge));
        assert!(matches!(read(place.path(), 3), Content::Unreadable));
        // Its size is unknown.
        assert!(
            matches!(read(Path::new("/proc/self/status"), 1 << 20), Content::Whole(text) if text.len() > 9)
        );
        let fifo = place.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(read(&fifo, 3), Content::Whole(content) if content.is_empty()));
        std::fs::write(&path, vec![b'a'; FIRST_READ + 5]).unwrap();
        assert!(matches!(read(&path, 1 << 20), Content::Whole(content) if content.len() == FIRST_READ + 5));
        assert!(matches!(read(&path, FIRST_READ as u64 + 4), Content::TooLarge));
    }
}
