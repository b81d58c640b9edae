//! The folder that a run works in, and the folder that takes what it made.

mod fresh;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use toolpost_sandbox::{Applied, Outcome, Rejection, SafeDirectory, Sandbox, StagedDirectory, WriteError};
use toolpost_tools::FileRoot;

use self::fresh::Fresh;
pub(crate) use self::fresh::clear_stale;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::style::{label, one_line};

/// How many files are attached, or put away, at most.
const MAX_FILES: usize = 10_000;
/// How many bytes are attached, or put away, at most.
const MAX_BYTES: u64 = 1 << 30;
/// How many rejected artifacts are listed, at most.
const MAX_REASONS: usize = 20;
/// How deep folders are walked.
const MAX_DEPTH: usize = 32;

/// The folder that a run works in.
pub(crate) enum Workspace {
    /// One that goes away with this value; what lay in it at the start is known.
    Fresh {
        folder: Fresh,
        attached: HashMap<PathBuf, (u64, SystemTime)>,
        /// What attached folders have and was not copied.
        left_out: Vec<PathBuf>,
    },
    /// One of the operator's.
    Existing(PathBuf),
    /// A private copy of one of the operator's.
    Staged(Box<StagedDirectory>),
}

impl Workspace {
    /// A fresh folder with copies of the attachments, or an existing one as it is.
    pub(crate) fn open(existing: Option<&Path>, attachments: &[PathBuf]) -> Result<Self, Failure> {
        if let Some(path) = existing {
            let path =
                path.canonicalize().map_err(|error| Failure::file("the working folder", path, &error))?;
            if !path.is_dir() {
                return Err(Failure::usage(format!(
                    "the working folder `{}` is not a folder",
                    path.display()
                )));
            }
            if let Some(attachment) = attachments.first() {
                let name = attachment.display();
                return Err(Failure::usage(format!(
                    "`{name}` cannot be attached to a working folder of your own"
                ))
                .hint("Copy it there, or leave `--workdir` out: then the run gets a fresh folder."));
            }
            return Ok(Self::Existing(path));
        }
        let folder = Fresh::make().map_err(|error| {
            Failure::file("the folder for temporary files", &std::env::temp_dir(), &error)
        })?;
        let mut budget = Budget::default();
        let mut left_out = Vec::new();
        for attachment in attachments {
            left_out.extend(attach(attachment, folder.path(), &mut budget)?);
        }
        let files = walk(folder.path())?.files;
        let attached = files.into_iter().map(|file| (file.name, (file.size, file.modified))).collect();
        Ok(Self::Fresh { folder, attached, left_out })
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Fresh { folder, .. } => folder.path(),
            Self::Existing(path) => path,
            Self::Staged(staged) => staged.path(),
        }
    }

    /// A private copy of an existing folder, whose changes are settled at its end.
    pub(crate) fn staged(self, sandbox: &Sandbox) -> Result<Self, Failure> {
        match self {
            Self::Existing(path) => Ok(Self::Staged(Box::new(StagedDirectory::copy(&path, sandbox)?))),
            other => Ok(other),
        }
    }

    /// Ends a private copy, and says what became of its changes.
    pub(crate) fn end(&mut self) -> Result<Option<Applied>, Failure> {
        let Self::Staged(staged) = self else { return Ok(None) };
        let original = Self::Existing(staged.original());
        match std::mem::replace(self, original) {
            Self::Staged(staged) => Ok(Some(staged.end()?)),
            _ => Ok(None),
        }
    }

    /// Where file tools work.
    pub(crate) fn root(&self) -> FileRoot {
        let root = FileRoot::new(self.path());
        match self {
            Self::Staged(staged) => root.copy_of(staged.original()),
            _ => root,
        }
    }

    /// Remarks on what earlier runs have left.
    pub(crate) fn notes(&self) -> &[String] {
        match self {
            Self::Staged(staged) => staged.notes(),
            _ => &[],
        }
    }

    /// Lets a fresh folder stay, and says where the files are.
    pub(crate) fn keep(self) -> PathBuf {
        match self {
            Self::Fresh { folder, .. } => folder.keep(),
            Self::Existing(path) => path,
            Self::Staged(staged) => staged.original(),
        }
    }

    /// The files that were attached, in order of their names.
    pub(crate) fn attached(&self) -> Vec<&Path> {
        let Self::Fresh { attached, .. } = self else { return Vec::new() };
        let mut names: Vec<&Path> = attached.keys().map(PathBuf::as_path).collect();
        names.sort_unstable();
        names
    }

    /// What a person is told of attached folders that were not copied as a whole.
    pub(crate) fn left_out(&self) -> Option<String> {
        if let Self::Staged(staged) = self {
            let left_out: Vec<PathBuf> = staged.not_copied().map(Path::to_owned).collect();
            let names = names_of(&left_out)?;
            return Some(format!(
                "the private copy leaves out {names}: sockets, pipes, devices, other mounts and unreadable files"
            ));
        }
        let Self::Fresh { left_out, .. } = self else { return None };
        let names = names_of(left_out)?;
        Some(format!(
            "of what is attached, {names} stays behind: links, pipes and files with several names are not copied"
        ))
    }

    /// The files that were made or changed since the start, and what is there else and is no file of one name; nothing of
    /// an existing folder, where all stays.
    pub(crate) fn made(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>), Failure> {
        let Self::Fresh { folder, attached, .. } = self else { return Ok(Default::default()) };
        let Walked { files, left_out, .. } = walk(folder.path())?;
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
            let message =
                format!("with `{}` it would be more than {MAX_FILES} files or 1 GiB", path.display());
            return Err(Failure::new(Exit::Limit, "LIMIT", message).hint("Attach less, or use `--workdir`."));
        }
        Ok(())
    }
}

/// The first of these names, and how many more there are; nothing of none.
pub(crate) fn names_of(paths: &[PathBuf]) -> Option<String> {
    const MOST: usize = 5;
    let shown =
        paths.iter().take(MOST).map(|path| format!("`{}`", one_line(&path.display().to_string(), 100)));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match paths.len() {
        0 => None,
        count if count > MOST => Some(format!("{shown} and {} more", count - MOST)),
        _ => Some(shown),
    }
}

/// Copies a file or a folder of the operator's into the fresh folder, and says what of it was not copied.
fn attach(source: &Path, folder: &Path, budget: &mut Budget) -> Result<Vec<PathBuf>, Failure> {
    let wrong = |error: io::Error| Failure::file("the attachment", source, &error);
    let resolved = source.canonicalize().map_err(wrong)?;
    let name = resolved.file_name().ok_or_else(|| wrong(io::Error::other("it has no name")))?;
    let target = folder.join(name);
    if target.exists() {
        let message = format!("two attachments have the name `{}`", Path::new(name).display());
        return Err(Failure::usage(message).hint("Rename one of them, or attach a folder that holds both."));
    }
    if resolved.is_dir() {
        let Walked { files, folders, left_out } = walk(&resolved)?;
        for below in folders {
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
        return Err(wrong(io::Error::other("it is neither a file nor a folder")));
    }
    budget.take(source, size.len())?;
    copy(&resolved, &target).map_err(wrong)?;
    Ok(Vec::new())
}

/// Copies a regular file to a place where nothing is yet, with the time at which it was changed: what lists the folder
/// says the same of every copy.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create_new(true).open(to)?;
    let source = File::open(from)?;
    let modified = source.metadata()?.modified()?;
    io::copy(&mut source.take(MAX_BYTES), &mut target)?;
    target.set_modified(modified)
}

/// What is in a folder.
#[derive(Default)]
struct Walked {
    /// The regular files of one name, in order.
    files: Vec<Found>,
    /// The folders, itself included: each after the one that it is in.
    folders: Vec<PathBuf>,
    /// What else there is, in order: links, pipes, files with several names, folders that are too deep.
    left_out: Vec<PathBuf>,
}

struct Found {
    /// The path below the folder.
    name: PathBuf,
    size: u64,
    modified: SystemTime,
}

/// What is in a folder. Links are not followed: they may lead anywhere. A file with a second name is left out: the other
/// one may be a secret of the host.
fn walk(folder: &Path) -> Result<Walked, Failure> {
    let mut walked = Walked::default();
    let mut open = vec![(PathBuf::new(), 0)];
    while let Some((below, depth)) = open.pop() {
        let here = folder.join(&below);
        let wrong = |error: io::Error| Failure::file("the folder", &here, &error);
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
                let message = format!("`{}` holds more than {MAX_FILES} files", folder.display());
                return Err(Failure::new(Exit::Limit, "LIMIT", message));
            }
        }
        walked.folders.push(below);
    }
    walked.files.sort_by(|a, b| a.name.cmp(&b.name));
    walked.left_out.sort();
    Ok(walked)
}

impl Walked {
    fn count(&self) -> usize {
        self.files.len() + self.folders.len() + self.left_out.len()
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

/// The directory that takes the files of a run. It is created with the first file; see [`SafeDirectory`].
#[derive(Clone, Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    pub(crate) fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    pub(crate) fn put_bytes(&self, name: &str, mut bytes: &[u8]) -> Result<PathBuf, Failure> {
        self.put(name, &mut bytes)
    }

    pub(crate) fn put_file(&self, name: &str, from: &Path) -> Result<PathBuf, Failure> {
        let wrong = |error: io::Error| Failure::file("the artefact", from, &error);
        let metadata = fs::symlink_metadata(from).map_err(wrong)?;
        if !metadata.is_file() {
            return Err(wrong(io::Error::other("it is not a regular file")));
        }
        if metadata.len() > MAX_BYTES {
            return Err(wrong(io::Error::other("it is larger than 1 GiB")));
        }
        self.put(name, &mut File::open(from).map_err(wrong)?.take(MAX_BYTES))
    }

    /// A new file for a download, under the name or the name with a number.
    pub(crate) fn create(&self, name: &str) -> io::Result<(File, PathBuf)> {
        let name = visible_name(name);
        SafeDirectory::open(&self.folder)?.create(Path::new(&name)).map_err(|error| match error {
            WriteError::Io(error) => error,
            rejection => io::Error::new(io::ErrorKind::PermissionDenied, rejection.to_string()),
        })
    }

    fn put(&self, name: &str, content: &mut dyn Read) -> Result<PathBuf, Failure> {
        let name = &*visible_name(name);
        let wanted = self.folder.join(name);
        let directory = SafeDirectory::open(&self.folder)
            .map_err(|error| Failure::file("the folder for artefacts", &self.folder, &error))?;
        directory.write(Path::new(name), content).map_err(|error| match error {
            WriteError::Io(error) => Failure::file("the artefact", &wanted, &error),
            WriteError::Rejected(Rejection::Name) => {
                Failure::usage(format!("`{}` is not a name for an artefact", one_line(name, 100)))
            }
            rejection => Failure::new(Exit::Denied, "PROTECTED", rejected(name, &rejection)),
        })
    }
}

/// A file name in which a terminal obeys nothing and a person sees everything: `_` stands for other characters.
fn visible_name(name: &str) -> String {
    name.chars().zip(label(name).chars()).map(|(own, shown)| if own == shown { own } else { '_' }).collect()
}

/// A sentence about an artifact that was not written.
fn rejected(name: &str, reason: &dyn std::fmt::Display) -> String {
    format!("`{}` was not written: {reason}", one_line(name, 100))
}

/// The failure of a run whose artifacts were all rejected.
pub(crate) fn all_rejected(reasons: &[String]) -> Failure {
    let failure = Failure::new(Exit::Denied, "PROTECTED", "every artifact was rejected")
        .hint("Let the program write them under other names, or in another directory.");
    reasons.iter().take(MAX_REASONS).fold(failure, Failure::cause)
}

/// Exports the artifacts of a run, and notes in its report which were rejected. Returns the path of each.
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
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("out"));
        assert!(store.put_bytes("a/b.txt", b"1").unwrap().ends_with("out/a/b.txt"));
        assert!(store.put_bytes("a/b.txt", b"2").unwrap().ends_with("out/a/b-1.txt"));
        for name in ["../x", "/x", "a/../x", "", "."] {
            assert_eq!(store.put_bytes(name, b"").unwrap_err().exit, Exit::Usage, "{name}");
        }
        for name in [".git/config", ".bashrc", ".gitattributes"] {
            let failure = store.put_bytes(name, b"* filter=evil").unwrap_err();
            assert_eq!((failure.exit, &*failure.code), (Exit::Denied, "PROTECTED"), "{failure:?}");
            assert!(failure.message.contains(name), "{failure:?}");
            assert!(name == ".gitattributes" || store.create(name).is_err());
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_is_attached_is_as_it_was_and_what_is_left_out_is_told() {
        let outside = tempfile::tempdir().unwrap();
        let folder = outside.path().join("in");
        fs::create_dir_all(folder.join("empty")).unwrap();
        fs::write(folder.join("a.txt"), "a").unwrap();
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        File::options().write(true).open(folder.join("a.txt")).unwrap().set_modified(time).unwrap();
        for number in 0..7 {
            std::os::unix::fs::symlink("/etc/passwd", folder.join(format!("l{number}"))).unwrap();
        }
        let workspace = Workspace::open(None, std::slice::from_ref(&folder)).unwrap();
        assert!(workspace.path().join("in/empty").is_dir());
        let modified = fs::metadata(workspace.path().join("in/a.txt")).unwrap().modified().unwrap();
        assert_eq!(modified, time);
        let told = workspace.left_out().unwrap();
        assert!(told.contains("`in/l0`, ") && told.contains("`in/l4` and 2 more"), "{told}");
        assert!(Workspace::open(None, &[folder.join("a.txt")]).unwrap().left_out().is_none());
    }

    #[cfg(unix)]
    #[test]
    fn a_fresh_folder_is_for_its_owner_alone() {
        use std::os::unix::fs::MetadataExt as _;
        let workspace = Workspace::open(None, &[]).unwrap();
        assert_eq!(fs::metadata(workspace.path()).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn made_files_are_told_from_attached_ones() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("data.csv"), "a,b\n").unwrap();
        let attachment = outside.path().join("data.csv");
        let workspace = Workspace::open(None, std::slice::from_ref(&attachment)).unwrap();
        assert_eq!(workspace.made().unwrap(), Default::default());
        fs::write(workspace.path().join("plot.png"), "x").unwrap();
        fs::write(workspace.path().join("data.csv"), "changed").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", workspace.path().join("link")).unwrap();
        let made = ["data.csv", "plot.png"].map(PathBuf::from).to_vec();
        assert_eq!(workspace.made().unwrap(), (made, vec![PathBuf::from("link")]));
        assert!(Workspace::open(None, &[attachment.clone(), attachment]).is_err());
    }
}
