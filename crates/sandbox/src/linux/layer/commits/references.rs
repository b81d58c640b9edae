//! Reads the references of a repository as the host has them, and as the changes of a layer move them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags};

use super::super::super::files::open_beneath;
use super::super::apply::{entries, name_of};
use super::super::view::{LayerEntry, View, lstat};
use crate::protected::{ChangedTree as _, folded_parts};

/// The largest file of references, logs or index entries that is read, in bytes.
const MAX_FILE: u64 = 64 << 20;
/// The maximum number of branches in files of their own.
const MAX_BRANCHES: usize = 10_000;
/// The maximum number of references that lead from one to another.
const MAX_LINKS: usize = 5;

/// A repository of the host with the changes of a layer.
pub(super) struct Repository<'a> {
    pub(super) view: &'a View<'a>,
    /// The directory of git's data, relative to the host directory.
    pub(super) git: PathBuf,
}

/// An id in hexadecimal digits.
pub(super) type Id = String;

/// The commits to which references move.
#[derive(Debug, Default)]
pub(super) struct Moves {
    pub(super) all: BTreeSet<Id>,
    /// Moves of remote-tracking branches, by their names.
    pub(super) remote: BTreeMap<PathBuf, Id>,
    /// The current commit afterwards.
    pub(super) head: Option<Id>,
}

/// The reason for which moves cannot be judged.
pub(super) type Reason = String;

enum Reference {
    Id(Id),
    Symbolic(PathBuf),
}

impl Repository<'_> {
    fn host(&self) -> BorrowedFd<'_> {
        self.view.host
    }

    /// The content of a file of the host's repository.
    pub(super) fn before(&self, name: &Path) -> Result<Option<Vec<u8>>, Reason> {
        read(self.host(), &self.git.join(name)).map_err(|error| failed(name, &error))
    }

    /// The content of a file with the changes.
    pub(super) fn after(&self, name: &Path) -> Result<Option<Vec<u8>>, Reason> {
        let path = self.git.join(name);
        let content = match lstat(self.view.upper, &path) {
            Some(LayerEntry::Entry(_)) => read(self.view.upper, &path),
            _ if self.view.after(&path).is_none() => Ok(None),
            _ => read(self.host(), &path),
        };
        content.map_err(|error| failed(name, &error))
    }
}

fn failed(name: &Path, error: &io::Error) -> Reason {
    format!("reading `{}` failed: {error}", name.display())
}

/// Reads a file of bounded size beneath a directory.
pub(super) fn read(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match open_beneath(root, path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Ok(None);
    }
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(io::Error::other("it is not a regular file of at most 64 MiB"));
    }
    let mut content = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut content)?;
    Ok(Some(content))
}

/// The id at the start of a text.
fn id(text: &[u8]) -> Option<Id> {
    let length = text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let is_end = text.get(length).is_none_or(u8::is_ascii_whitespace);
    let is_id = is_end && [40, 64].contains(&length);
    is_id.then(|| String::from_utf8_lossy(text.get(..length).unwrap_or_default()).to_lowercase())
}

fn is_zero(id: &str) -> bool {
    id.bytes().all(|digit| digit == b'0')
}

fn parse(content: &[u8]) -> Option<Reference> {
    match content.strip_prefix(b"ref:") {
        Some(name) => {
            let path = Path::new(OsStr::from_bytes(name.trim_ascii()));
            let is_plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            is_plain.then(|| Reference::Symbolic(path.to_owned()))
        }
        None => id(content).map(Reference::Id),
    }
}

/// The lines of `packed-refs`.
fn packed(content: Option<Vec<u8>>) -> BTreeMap<PathBuf, Id> {
    let content = content.unwrap_or_default();
    let lines = content.split(|byte| *byte == b'\n');
    let entry = |line: &[u8]| {
        let id = id(line)?;
        let name = line.get(id.len() + 1..)?.trim_ascii_end();
        Some((PathBuf::from(OsStr::from_bytes(name)), id))
    };
    lines.filter_map(entry).collect()
}

/// The ids in a text.
fn ids(text: &[u8]) -> BTreeSet<Id> {
    let words = text.split(|byte| !byte.is_ascii_hexdigit());
    words.filter_map(id).filter(|id| !is_zero(id)).collect()
}

/// The ids in `FETCH_HEAD` that `git pull` merges.
fn merged_ids(text: &[u8]) -> BTreeSet<Id> {
    let lines = text.split(|byte| *byte == b'\n');
    let is_other = |id: &Id, line: &[u8]| {
        line.get(id.len()..).is_some_and(|rest| rest.starts_with(b"\tnot-for-merge\t"))
    };
    lines.filter_map(|line| id(line).filter(|id| !is_other(id, line))).collect()
}

/// The references before the changes.
pub(super) struct Old<'a> {
    repository: &'a Repository<'a>,
    packed: BTreeMap<PathBuf, Id>,
    pub(super) head: Option<Id>,
    /// The tips of local branches, which were the user's before the run.
    pub(super) tips: HashSet<Id>,
}

impl<'a> Old<'a> {
    pub(super) fn read(repository: &'a Repository<'a>) -> Result<Self, Reason> {
        let packed = packed(repository.before(Path::new("packed-refs"))?);
        let mut old = Self { repository, packed, head: None, tips: HashSet::new() };
        old.head = old.value(Path::new("HEAD"))?;
        let branches = old.packed.iter().filter(|(name, _)| name.starts_with("refs/heads"));
        old.tips = branches.map(|(_, id)| id.clone()).chain(old.head.clone()).collect();
        let mut waiting = vec![PathBuf::from("refs/heads")];
        let mut count = 0;
        while let Some(name) = waiting.pop() {
            let path = repository.git.join(&name);
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            if let Ok(directory) = open_beneath(repository.host(), &path, flags, Mode::empty()) {
                waiting.extend(entries(&directory).iter().map(|inner| name.join(name_of(inner))));
            } else if let Ok(Some(id)) = old.value(&name) {
                old.tips.insert(id);
            }
            count += 1;
            if count > MAX_BRANCHES {
                break;
            }
        }
        Ok(old)
    }

    /// The id that a reference leads to.
    fn value(&self, name: &Path) -> Result<Option<Id>, Reason> {
        follow(name, &self.packed, &|name| self.repository.before(name))
    }

    /// The moves by changed files, relative to the repository.
    pub(super) fn moves(&self, changed: &[&Path]) -> Result<Moves, Reason> {
        let packed = packed(self.repository.after(Path::new("packed-refs"))?);
        let read = |name: &Path| self.repository.after(name);
        let head = follow(Path::new("HEAD"), &packed, &read)?;
        let mut moves = Moves { head, ..Moves::default() };
        for name in changed {
            let parts = folded_parts(name);
            match parts.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                // Also lines that another file hides: it can be removed later.
                ["packed-refs"] => {
                    for (name, id) in packed.iter().filter(|(name, id)| self.packed.get(*name) != Some(id)) {
                        self.add(name, id.clone(), &mut moves)?;
                    }
                }
                ["refs", ..] if name.extension() != Some(OsStr::new("lock")) => {
                    let exists = self.repository.after(name)?.is_some();
                    if let Some(id) = follow(name, &packed, &read)?.filter(|_| exists) {
                        self.add(name, id, &mut moves)?;
                    }
                }
                ["head"] => moves.all.extend(follow(name, &packed, &read)?),
                ["fetch_head"] => moves.all.extend(merged_ids(&read(name)?.unwrap_or_default())),
                // Of the log of HEAD, `git checkout -` reads ids; of that of stashes, `git stash pop`.
                ["orig_head" | "merge_head" | "cherry_pick_head" | "revert_head"]
                | ["logs", "head"]
                | ["logs", "refs", "stash"] => {
                    let old = ids(&self.repository.before(name)?.unwrap_or_default());
                    moves.all.extend(ids(&read(name)?.unwrap_or_default()).difference(&old).cloned());
                }
                _ => {}
            }
        }
        moves.all.retain(|id| !self.tips.contains(id));
        Ok(moves)
    }

    /// Adds the move of a named reference.
    fn add(&self, name: &Path, id: Id, moves: &mut Moves) -> Result<(), Reason> {
        let old = self.value(name).unwrap_or_default();
        if old.as_ref() == Some(&id) || self.tips.contains(&id) {
            return Ok(());
        }
        let parts = folded_parts(name);
        match parts.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            ["refs", "remotes", ..] if name.to_str().is_some() => {
                moves.remote.insert(name.to_owned(), id);
            }
            ["refs", "replace", ..] => {
                return Err(format!("`{}` replaces an object by another", name.display()));
            }
            // A user who checks out a new tag names the tag.
            ["refs", "tags", ..] if old.is_none() => {}
            ["refs", "heads" | "tags" | "stash" | "remotes", ..] => {
                moves.all.insert(id);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Reads a file of a repository.
type ReadFile<'a> = dyn Fn(&Path) -> Result<Option<Vec<u8>>, Reason> + 'a;

/// Follows a reference to an id.
fn follow(name: &Path, packed: &BTreeMap<PathBuf, Id>, read: &ReadFile<'_>) -> Result<Option<Id>, Reason> {
    let mut name = name.to_owned();
    for _ in 0..MAX_LINKS {
        match read(&name)? {
            None => return Ok(packed.get(&name).cloned()),
            Some(content) => match parse(&content) {
                Some(Reference::Id(id)) => return Ok(Some(id)),
                Some(Reference::Symbolic(next)) => name = next,
                None => return Err(format!("`{}` is not a reference", name.display())),
            },
        }
    }
    Err(format!("`{}` leads to too many references", name.display()))
}
