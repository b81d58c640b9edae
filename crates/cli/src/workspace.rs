//! Working directories of runs, and the store of their artifacts.

mod fresh;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use toolpost_sandbox::{Applied, Outcome, Rejection, SafeDirectory, Sandbox, StagedDirectory, WriteError};
use toolpost_tools::FileRoot;

use self::fresh::Fresh;
#[cfg(unix)]
pub(crate) use self::fresh::hold;
pub(crate) use self::fresh::{OUTPUTS, clear_stale};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::style::{label, one_line};

/// The maximum number of attached files, and of artifacts.
const MAX_FILES: usize = 10_000;
/// The maximum size of attached files, and of artifacts, in bytes.
const MAX_BYTES: u64 = 1 << 30;
/// The maximum number of listed rejected artifacts.
const MAX_REASONS: usize = 20;
/// The maximum depth of directory walks.
const MAX_DEPTH: usize = 32;

/// The working directory of a run.
pub(crate) enum Workspace {
    /// A fresh directory, removed on drop, with its initial entries.
    Fresh {
        directory: Fresh,
        attached: HashMap<PathBuf, (u64, SystemTime)>,
        /// Entries of attached directories that were not copied.
        left_out: Vec<PathBuf>,
    },
    /// A host directory.
    Existing(PathBuf),
    /// A private copy of a host directory.
    Staged(Box<StagedDirectory>),
}

impl Workspace {
    /// Opens a fresh directory with copies of the attachments, or a host directory.
    pub(crate) fn open(existing: Option<&Path>, attachments: &[PathBuf]) -> Result<Self, Failure> {
        if let Some(path) = existing {
            let path =
                path.canonicalize().map_err(|error| Failure::file("the working directory", path, &error))?;
            if !path.is_dir() {
                return Err(Failure::usage(format!(
                    "the working directory `{}` is not a directory",
                    path.display()
                )));
            }
            if let Some(attachment) = attachments.first() {
                let name = attachment.display();
                return Err(Failure::usage(format!("`{name}` cannot be attached to a host directory"))
                    .hint("Copy it there, or remove `--workdir` for a fresh directory."));
            }
            return Ok(Self::Existing(path));
        }
        let temporary = |error: io::Error| {
            Failure::file("the directory for temporary files", &std::env::temp_dir(), &error)
        };
        let directory = Fresh::make().map_err(temporary)?;
        let mut budget = Budget::default();
        let mut left_out = Vec::new();
        for attachment in attachments {
            left_out.extend(attach(attachment, directory.path(), &mut budget)?);
        }
        let Walked { files, directories, .. } = walk(directory.path())?;
        let entries = files.iter().map(|file| &file.name).chain(&directories).map(PathBuf::as_path);
        directory.give_to_programs(entries).map_err(temporary)?;
        let attached = files.into_iter().map(|file| (file.name, (file.size, file.modified))).collect();
        Ok(Self::Fresh { directory, attached, left_out })
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Fresh { directory, .. } => directory.path(),
            Self::Existing(path) => path,
            Self::Staged(staged) => staged.path(),
        }
    }

    /// The host directory, if any. A private copy has one too.
    pub(crate) fn host_directory(&self) -> Option<PathBuf> {
        match self {
            Self::Fresh { .. } => None,
            Self::Existing(path) => Some(path.clone()),
            Self::Staged(staged) => Some(staged.original()),
        }
    }

    /// Makes a private copy of a host directory; its changes are settled at the end.
    pub(crate) fn staged(self, sandbox: &Sandbox) -> Result<Self, Failure> {
        match self {
            Self::Existing(path) => Ok(Self::Staged(Box::new(StagedDirectory::copy(&path, sandbox)?))),
            other => Ok(other),
        }
    }

    /// Ends a private copy and returns its changes.
    pub(crate) fn finish(&mut self) -> Result<Option<Applied>, Failure> {
        let Self::Staged(staged) = self else { return Ok(None) };
        let original = Self::Existing(staged.original());
        match std::mem::replace(self, original) {
            Self::Staged(staged) => Ok(Some(staged.end()?)),
            _ => Ok(None),
        }
    }

    /// The root of file tools.
    pub(crate) fn root(&self) -> FileRoot {
        let root = FileRoot::new(self.path());
        match self {
            Self::Staged(staged) => root.copy_of(staged.original()),
            _ => root,
        }
    }

    /// Notes about leftovers of earlier runs.
    pub(crate) fn notes(&self) -> &[String] {
        match self {
            Self::Staged(staged) => staged.notes(),
            _ => &[],
        }
    }

    /// Keeps a fresh directory and returns its path.
    pub(crate) fn preserve(self) -> PathBuf {
        match self {
            Self::Fresh { directory, .. } => directory.preserve(),
            Self::Existing(path) => path,
            Self::Staged(staged) => staged.original(),
        }
    }

    /// The attached files in order.
    pub(crate) fn attached(&self) -> Vec<&Path> {
        let Self::Fresh { attached, .. } = self else { return Vec::new() };
        let mut names: Vec<&Path> = attached.keys().map(PathBuf::as_path).collect();
        names.sort_unstable();
        names
    }

    /// The warning about entries of attachments that were not copied.
    pub(crate) fn omissions(&self) -> Option<String> {
        if let Self::Staged(staged) = self {
            let left_out: Vec<PathBuf> = staged.not_copied().map(Path::to_owned).collect();
            let names = names_of(&left_out)?;
            return Some(format!(
                "not in the private copy: {names}; sockets, pipes, devices, mounts and unreadable files are omitted"
            ));
        }
        let Self::Fresh { left_out, .. } = self else { return None };
        let names = names_of(left_out)?;
        Some(format!(
            "not copied from attachments: {names}; links, pipes and files with several names are omitted"
        ))
    }

    /// New and changed files of a fresh directory, and other new entries; a host directory has none.
    pub(crate) fn new_files(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Failure> {
        let Self::Fresh { directory, attached, .. } = self else { return Ok(Default::default()) };
        let Walked { files, left_out, .. } = walk(directory.path())?;
        let made =
            files.into_iter().filter(|file| attached.get(&file.name) != Some(&(file.size, file.modified)));
        Ok((made.map(|file| file.name).collect(), left_out))
    }
}

#[derive(Default)]
struct Budget {
    files: usize,
    bytes: u64,
}

impl Budget {
    fn take(&mut self, path: &Path, bytes: u64) -> Result<(), Failure> {
        self.files += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.files > MAX_FILES || self.bytes > MAX_BYTES {
            let message = format!("with `{}` there are more than {MAX_FILES} files or 1 GiB", path.display());
            return Err(Failure::new(Exit::Limit, "LIMIT", message).hint("Attach less, or use `--workdir`."));
        }
        Ok(())
    }
}

/// The first of these names and the number of the others.
pub(crate) fn names_of(paths: &[PathBuf]) -> Option<String> {
    const MAX_NAMES: usize = 5;
    let shown =
        paths.iter().take(MAX_NAMES).map(|path| format!("`{}`", one_line(&path.display().to_string(), 100)));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match paths.len() {
        0 => None,
        count if count > MAX_NAMES => Some(format!("{shown} and {} more", count - MAX_NAMES)),
        _ => Some(shown),
    }
}

/// Copies a file or directory into the fresh directory; returns what was not copied.
fn attach(source: &Path, directory: &Path, budget: &mut Budget) -> Result<Vec<PathBuf>, Failure> {
    let wrong = |error: io::Error| Failure::file("the attachment", source, &error);
    let resolved = source.canonicalize().map_err(wrong)?;
    let name = resolved.file_name().ok_or_else(|| wrong(io::Error::other("it has no name")))?;
    let target = directory.join(name);
    if target.exists() {
        let message = format!("two attachments have the name `{}`", Path::new(name).display());
        return Err(Failure::usage(message).hint("Rename one, or attach a directory that holds both."));
    }
    if resolved.is_dir() {
        let Walked { files, directories, left_out } = walk(&resolved)?;
        for below in directories {
            fs::create_dir_all(target.join(below)).map_err(wrong)?;
        }
        for file in files {
            budget.take(&file.name, file.size)?;
            copy(&resolved.join(&file.name), &target.join(&file.name)).map_err(wrong)?;
        }
        return Ok(left_out.into_iter().map(|below| Path::new(name).join(below)).collect());
    }
    let size = resolved.metadata().map_err(wrong)?;
    if !size.is_file() {
        return Err(wrong(io::Error::other("it is neither a file nor a directory")));
    }
    budget.take(source, size.len())?;
    copy(&resolved, &target).map_err(wrong)?;
    Ok(Vec::new())
}

/// Copies a regular file to a new path with its modification time, so that listings of copies are equal.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create_new(true).open(to)?;
    let source = File::open(from)?;
    let modified = source.metadata()?.modified()?;
    io::copy(&mut source.take(MAX_BYTES), &mut target)?;
    target.set_modified(modified)
}

/// The entries of a directory tree.
#[derive(Default)]
struct Walked {
    /// Regular files with one name, in order.
    files: Vec<Found>,
    /// Directories, parents first.
    directories: Vec<PathBuf>,
    /// Other entries in order: links, pipes, files with several names, deep directories.
    left_out: Vec<PathBuf>,
}

struct Found {
    /// The path below the root.
    name: PathBuf,
    size: u64,
    modified: SystemTime,
}

/// Walks a directory tree without links. A file with a second name is skipped, because it may be a secret of
/// the host.
fn walk(directory: &Path) -> Result<Walked, Failure> {
    let mut walked = Walked::default();
    let mut open = vec![(PathBuf::new(), 0)];
    while let Some((below, depth)) = open.pop() {
        let here = directory.join(&below);
        let wrong = |error: io::Error| Failure::file("the directory", &here, &error);
        for entry in fs::read_dir(&here).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let name = below.join(entry.file_name());
            let metadata = entry.metadata().map_err(wrong)?;
            if metadata.is_dir() && depth < MAX_DEPTH {
                open.push((name, depth + 1));
            } else if metadata.is_file() && has_one_name(&metadata) {
                let modified = metadata.modified().map_err(wrong)?;
                walked.files.push(Found { name, size: metadata.len(), modified });
            } else {
                walked.left_out.push(name);
            }
            if walked.count() + open.len() > MAX_FILES {
                let message = format!("`{}` has more than {MAX_FILES} files", directory.display());
                return Err(Failure::new(Exit::Limit, "LIMIT", message));
            }
        }
        walked.directories.push(below);
    }
    walked.files.sort_by(|a, b| a.name.cmp(&b.name));
    walked.left_out.sort();
    Ok(walked)
}

impl Walked {
    fn count(&self) -> usize {
        self.files.len() + self.directories.len() + self.left_out.len()
    }
}

#[cfg(unix)]
fn has_one_name(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    metadata.nlink() == 1
}

#[cfg(not(unix))]
fn has_one_name(_metadata: &fs::Metadata) -> bool {
    true
}

/// The artifact directory of a run, created with the first file; see [`SafeDirectory`].
#[derive(Clone, Debug)]
pub(crate) struct Store {
    directory: PathBuf,
}

impl Store {
    pub(crate) fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    pub(crate) fn store_bytes(&self, name: &str, mut bytes: &[u8]) -> Result<PathBuf, Failure> {
        self.write(name, &mut bytes)
    }

    pub(crate) fn store_file(&self, name: &str, from: &Path) -> Result<PathBuf, Failure> {
        let wrong = |error: io::Error| Failure::file("the artifact", from, &error);
        let metadata = fs::symlink_metadata(from).map_err(wrong)?;
        if !metadata.is_file() {
            return Err(wrong(io::Error::other("it is not a regular file")));
        }
        if metadata.len() > MAX_BYTES {
            return Err(wrong(io::Error::other("it is larger than 1 GiB")));
        }
        self.write(name, &mut File::open(from).map_err(wrong)?.take(MAX_BYTES))
    }

    /// Creates a file for a download, with a number if the name is taken.
    pub(crate) fn create(&self, name: &str) -> io::Result<(File, PathBuf)> {
        let name = visible_name(name);
        SafeDirectory::open(&self.directory)?.create(Path::new(&name)).map_err(|error| match error {
            WriteError::Io(error) => error,
            rejection => io::Error::new(io::ErrorKind::PermissionDenied, rejection.to_string()),
        })
    }

    fn write(&self, name: &str, content: &mut dyn Read) -> Result<PathBuf, Failure> {
        let name = &*visible_name(name);
        let target_path = self.directory.join(name);
        let directory = SafeDirectory::open(&self.directory)
            .map_err(|error| Failure::file("the artifact directory", &self.directory, &error))?;
        directory.write(Path::new(name), content).map_err(|error| match error {
            WriteError::Io(error) => Failure::file("the artifact", &target_path, &error),
            WriteError::Rejected(Rejection::Name) => {
                Failure::usage(format!("invalid artifact name `{}`", one_line(name, 100)))
            }
            rejection => Failure::new(Exit::Denied, "PROTECTED", rejected(name, &rejection)),
        })
    }
}

/// A safe file name: `_` replaces control and hidden characters.
fn visible_name(name: &str) -> String {
    name.chars().zip(label(name).chars()).map(|(own, shown)| if own == shown { own } else { '_' }).collect()
}

/// A sentence about a rejected artifact.
fn rejected(name: &str, reason: &dyn std::fmt::Display) -> String {
    format!("`{}` was not written: {reason}", one_line(name, 100))
}

/// The failure of a run whose artifacts were all rejected.
pub(crate) fn all_rejected(reasons: &[String]) -> Failure {
    let failure = Failure::new(Exit::Denied, "PROTECTED", "all artifacts were rejected")
        .hint("Let the program write other names, or to another directory.");
    reasons.iter().take(MAX_REASONS).fold(failure, Failure::cause)
}

/// Exports the artifacts of a run and notes rejected ones in its report. Returns the path of each.
pub(crate) fn export(outcome: &mut Outcome, directory: &Path) -> (Vec<Option<PathBuf>>, Option<Failure>) {
    let exported = match outcome.export(directory) {
        Ok(exported) => exported,
        Err(error) => return (Vec::new(), Some(error.into())),
    };
    let results = outcome.artifacts.iter().zip(&exported);
    let reasons: Vec<String> = results
        .filter_map(|(artifact, result)| Some(rejected(&artifact.path, result.as_ref().err()?)))
        .collect();
    let is_nothing_left = !reasons.is_empty() && reasons.len() == exported.len();
    let failure = is_nothing_left.then(|| all_rejected(&reasons));
    let more = reasons.len().saturating_sub(MAX_REASONS);
    outcome.report.notes.extend(reasons.into_iter().take(MAX_REASONS));
    if more > 0 {
        outcome.report.notes.push(format!("{more} more artifacts were not written"));
    }
    (exported.into_iter().map(Result::ok).collect(), failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_stay_in_their_directory_and_off_protected_paths() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().join("out"));
        assert!(store.store_bytes("a/b.txt", b"1").unwrap().ends_with("out/a/b.txt"));
        assert!(store.store_bytes("a/b.txt", b"2").unwrap().ends_with("out/a/b-1.txt"));
        for name in ["../x", "/x", "a/../x", "", "."] {
            assert_eq!(store.store_bytes(name, b"").unwrap_err().exit, Exit::Usage, "{name}");
        }
        for name in [".git/config", ".bashrc", ".gitattributes"] {
            let failure = store.store_bytes(name, b"* filter=evil").unwrap_err();
            assert_eq!((failure.exit, &*failure.code), (Exit::Denied, "PROTECTED"), "{failure:?}");
            assert!(failure.message.contains(name), "{failure:?}");
            assert!(name == ".gitattributes" || store.create(name).is_err());
        }
    }

    #[cfg(unix)]
    #[test]
    fn attachments_are_copied_and_omissions_reported() {
        let outside = tempfile::tempdir().unwrap();
        let directory = outside.path().join("in");
        fs::create_dir_all(directory.join("empty")).unwrap();
        fs::write(directory.join("a.txt"), "a").unwrap();
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        File::options().write(true).open(directory.join("a.txt")).unwrap().set_modified(time).unwrap();
        for number in 0..7 {
            std::os::unix::fs::symlink("/etc/passwd", directory.join(format!("l{number}"))).unwrap();
        }
        let workspace = Workspace::open(None, std::slice::from_ref(&directory)).unwrap();
        assert!(workspace.path().join("in/empty").is_dir());
        let modified = fs::metadata(workspace.path().join("in/a.txt")).unwrap().modified().unwrap();
        assert_eq!(modified, time);
        let notice = workspace.omissions().unwrap();
        assert!(notice.contains("`in/l0`, ") && notice.contains("`in/l4` and 2 more"), "{notice}");
        assert!(Workspace::open(None, &[directory.join("a.txt")]).unwrap().omissions().is_none());
    }

    #[cfg(unix)]
    #[test]
    fn a_fresh_directory_is_private() {
        use std::os::unix::fs::MetadataExt as _;
        let workspace = Workspace::open(None, &[]).unwrap();
        assert_eq!(fs::metadata(workspace.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn new_files_are_distinguished_from_attachments() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("data.csv"), "a,b\n").unwrap();
        let attachment = outside.path().join("data.csv");
        let workspace = Workspace::open(None, std::slice::from_ref(&attachment)).unwrap();
        assert_eq!(workspace.new_files().unwrap(), Default::default());
        fs::write(workspace.path().join("plot.png"), "x").unwrap();
        fs::write(workspace.path().join("data.csv"), "changed").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", workspace.path().join("link")).unwrap();
        let made = ["data.csv", "plot.png"].map(PathBuf::from).to_vec();
        assert_eq!(workspace.new_files().unwrap(), (made, vec![PathBuf::from("link")]));
        assert!(Workspace::open(None, &[attachment.clone(), attachment]).is_err());
    }
}
