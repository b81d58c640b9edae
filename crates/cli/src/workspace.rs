//! The folder that a run works in, and the folder that takes what it made.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::TempDir;

use crate::exit::Exit;
use crate::failure::Failure;

/// How many files are attached, or put away, at most.
const MAX_FILES: usize = 10_000;
/// How many bytes are attached, or put away, at most.
const MAX_BYTES: u64 = 1 << 30;
/// How deep folders are walked.
const MAX_DEPTH: usize = 32;

/// The folder that a run works in.
pub(crate) enum Workspace {
    /// One that goes away with this value; what lay in it at the start is known.
    Fresh { folder: TempDir, attached: HashMap<PathBuf, (u64, SystemTime)> },
    /// One of the operator's.
    Existing(PathBuf),
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
        let mut builder = tempfile::Builder::new();
        builder.prefix("toolpost-run-");
        // What is attached may be for nobody else's eyes.
        #[cfg(unix)]
        builder.permissions(private());
        let folder = builder.tempdir().map_err(|error| {
            Failure::file("the folder for temporary files", &std::env::temp_dir(), &error)
        })?;
        let mut budget = Budget::default();
        for attachment in attachments {
            attach(attachment, folder.path(), &mut budget)?;
        }
        let attached =
            walk(folder.path())?.into_iter().map(|file| (file.name, (file.size, file.modified))).collect();
        Ok(Self::Fresh { folder, attached })
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Fresh { folder, .. } => folder.path(),
            Self::Existing(path) => path,
        }
    }

    /// Lets a fresh folder stay, and says where the files are.
    pub(crate) fn keep(self) -> PathBuf {
        match self {
            Self::Fresh { folder, .. } => folder.keep(),
            Self::Existing(path) => path,
        }
    }

    /// The files that were attached, in order of their names.
    pub(crate) fn attached(&self) -> Vec<&Path> {
        let Self::Fresh { attached, .. } = self else { return Vec::new() };
        let mut names: Vec<&Path> = attached.keys().map(PathBuf::as_path).collect();
        names.sort_unstable();
        names
    }

    /// The files that were made or changed since the start; none of an existing folder, where they stay.
    pub(crate) fn made(&self) -> Result<Vec<PathBuf>, Failure> {
        let Self::Fresh { folder, attached } = self else { return Ok(Vec::new()) };
        let files = walk(folder.path())?;
        let made =
            files.into_iter().filter(|file| attached.get(&file.name) != Some(&(file.size, file.modified)));
        Ok(made.map(|file| file.name).collect())
    }
}

#[cfg(unix)]
fn private() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o700)
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

/// Copies a file or a folder of the operator's into the fresh folder.
fn attach(source: &Path, folder: &Path, budget: &mut Budget) -> Result<(), Failure> {
    let wrong = |error: io::Error| Failure::file("the attachment", source, &error);
    let resolved = source.canonicalize().map_err(wrong)?;
    let name = resolved.file_name().ok_or_else(|| wrong(io::Error::other("it has no name")))?;
    let target = folder.join(name);
    if target.exists() {
        let message = format!("two attachments have the name `{}`", Path::new(name).display());
        return Err(Failure::usage(message).hint("Rename one of them, or attach a folder that holds both."));
    }
    if resolved.is_dir() {
        for file in walk(&resolved)? {
            let to = target.join(&file.name);
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(wrong)?;
            }
            budget.take(&file.name, file.size)?;
            copy(&resolved.join(&file.name), &to).map_err(wrong)?;
        }
        return Ok(());
    }
    let size = resolved.metadata().map_err(wrong)?;
    if !size.is_file() {
        return Err(wrong(io::Error::other("it is neither a file nor a folder")));
    }
    budget.take(source, size.len())?;
    copy(&resolved, &target).map_err(wrong)
}

/// Copies a regular file to a place where nothing is yet.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut target = OpenOptions::new().write(true).create_new(true).open(to)?;
    io::copy(&mut File::open(from)?.take(MAX_BYTES), &mut target)?;
    Ok(())
}

struct Found {
    /// The path below the folder.
    name: PathBuf,
    size: u64,
    modified: SystemTime,
}

/// The regular files of a folder, in order of their names. Links are not followed: they may lead anywhere. A file
/// with a second name is left out: the other one may be a secret of the host.
fn walk(folder: &Path) -> Result<Vec<Found>, Failure> {
    let mut found = Vec::new();
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
                found.push(Found { name, size: metadata.len(), modified });
            }
            if found.len() + open.len() > MAX_FILES {
                let message = format!("`{}` holds more than {MAX_FILES} files", folder.display());
                return Err(Failure::new(Exit::Limit, "LIMIT", message));
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
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

/// The folder that takes what a run made. It is made when the first file comes, and nothing in it is overwritten.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    folder: PathBuf,
}

impl Store {
    pub(crate) fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    pub(crate) fn put_bytes(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, Failure> {
        let (path, mut file) = self.create(Path::new(name))?;
        file.write_all(bytes).map_err(|error| Failure::file("the artefact", &path, &error))?;
        Ok(path)
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
        let (path, mut file) = self.create(Path::new(name))?;
        io::copy(&mut File::open(from).map_err(wrong)?.take(MAX_BYTES), &mut file).map_err(wrong)?;
        Ok(path)
    }

    /// A new file of this name, or of the name with a number.
    fn create(&self, name: &Path) -> Result<(PathBuf, File), Failure> {
        let plain = name.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !plain || name.as_os_str().is_empty() {
            return Err(Failure::usage(format!("`{}` is not a name for an artefact", name.display())));
        }
        let wanted = self.folder.join(name);
        if let Some(parent) = wanted.parent() {
            fs::create_dir_all(parent)
                .map_err(|error| Failure::file("the folder for artefacts", parent, &error))?;
        }
        let stem = wanted.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let extension = wanted.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
        for number in 0..1000 {
            let path = match number {
                0 => wanted.clone(),
                _ => wanted
                    .with_file_name(format!("{stem}-{number}{}", extension.as_deref().unwrap_or_default())),
            };
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Failure::file("the artefact", &path, &error)),
            }
        }
        Err(Failure::usage(format!("there are a thousand files named like `{}` already", wanted.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_overwritten_and_nothing_leaves_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("out"));
        assert!(store.put_bytes("a/b.txt", b"1").unwrap().ends_with("out/a/b.txt"));
        assert!(store.put_bytes("a/b.txt", b"2").unwrap().ends_with("out/a/b-1.txt"));
        for name in ["../x", "/x", "a/../x", "", "."] {
            assert!(store.put_bytes(name, b"").is_err(), "{name}");
        }
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
        assert_eq!(workspace.made().unwrap(), Vec::<PathBuf>::new());
        fs::write(workspace.path().join("plot.png"), "x").unwrap();
        fs::write(workspace.path().join("data.csv"), "changed").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", workspace.path().join("link")).unwrap();
        assert_eq!(workspace.made().unwrap(), [PathBuf::from("data.csv"), PathBuf::from("plot.png")]);
        assert!(Workspace::open(None, &[attachment.clone(), attachment]).is_err());
    }
}
