//! Which files of strangers the operator trusts: pinned by their content, with everything that they reference.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toolpost_core::StartCheck;

use super::closure::{Reference, closure, follow, settled};
use super::digest;
use crate::config::places;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::grants;

/// The largest file that can be trusted, in bytes: a person is to have read it.
pub(super) const MAX_SIZE: u64 = 16 << 20;
/// The version of the list of trusted files.
const VERSION: u32 = 2;

/// Whether a file is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// With exactly this content, and everything that it references with the content that it has now.
    Trusted,
    /// This file, itself or one that it references, has another content than was trusted.
    Changed(PathBuf),
    /// Not at all.
    Unknown,
}

impl Standing {
    /// Why a file is not trusted, after its name.
    pub(crate) fn reason(&self, path: &Path) -> String {
        match self {
            Self::Changed(changed) if *changed != settled(path) => {
                format!("references `{}`, which has changed since it was trusted", changed.display())
            }
            Self::Changed(_) => "has changed since it was trusted".to_owned(),
            Self::Trusted | Self::Unknown => "is not trusted".to_owned(),
        }
    }
}

/// The pins, as they are stored.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pins {
    v: u32,
    /// The pin of each file, by its absolute path.
    files: BTreeMap<PathBuf, Pin>,
}

/// What is pinned of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "StoredPin")]
pub(crate) struct Pin {
    /// The SHA-256 of its content.
    pub(crate) sha256: String,
    /// The digest of everything that it references, by absolute path. Absent in pins of format 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    references: Option<BTreeMap<PathBuf, String>>,
    /// What its targets reach, as it was shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) grants: Vec<String>,
}

/// A pin in each format that was ever written.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredPin {
    /// Format 1.
    Digest(String),
    /// Format 2.
    Whole {
        sha256: String,
        references: Option<BTreeMap<PathBuf, String>>,
        #[serde(default)]
        grants: Vec<String>,
    },
}

impl From<StoredPin> for Pin {
    fn from(stored: StoredPin) -> Self {
        match stored {
            StoredPin::Digest(sha256) => Self { sha256, references: None, grants: Vec::new() },
            StoredPin::Whole { sha256, references, grants } => Self { sha256, references, grants },
        }
    }
}

impl Pin {
    /// The digests of what the file references, by path.
    pub(crate) fn references(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.references.iter().flatten().map(|(path, digest)| (path.as_path(), digest.as_str()))
    }

    /// The digest of a path, which is the file itself or one that it references.
    fn digest(&self, root: &Path, path: &Path) -> Option<&str> {
        if root == path {
            return Some(&self.sha256);
        }
        self.references.as_ref()?.get(path).map(String::as_str)
    }
}

impl Pins {
    /// Reads what is trusted. Nothing is, if there is no such file.
    pub(crate) fn load() -> Result<Self, Failure> {
        let Some(path) = places::trust() else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::file("the list of trusted files", &path, &error)),
        };
        let wrong = |why: String| {
            Failure::usage(format!("the list of trusted files `{}` cannot be read: {why}", path.display()))
                .hint("Remove it, and trust again what you still trust.")
        };
        let pins: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if pins.v > VERSION {
            return Err(wrong(format!("its format is {}, expected at most {VERSION}", pins.v)));
        }
        Ok(pins)
    }

    /// How a file stands. What cannot be read is not trusted.
    pub(crate) fn standing(&self, path: &Path) -> Standing {
        match digest::read(path) {
            Ok(content) => self.standing_of(path, &content),
            Err(_) => Standing::Unknown,
        }
    }

    /// How this content of a file stands.
    pub(crate) fn standing_of(&self, path: &Path, content: &[u8]) -> Standing {
        self.judge(path, content).0
    }

    /// How this content of a file stands; if it is trusted, also the digests of everything that it references.
    pub(crate) fn judge(&self, path: &Path, content: &[u8]) -> (Standing, BTreeMap<PathBuf, String>) {
        self.judge_by(path, content, || closure(&settled(path), content))
    }

    /// How this content of a file stands, if only these of its references are used.
    pub(crate) fn standing_for(&self, path: &Path, content: &[u8], used: &[Reference]) -> Standing {
        self.judge_by(path, content, || follow(&settled(path), used.to_vec())).0
    }

    fn judge_by(
        &self,
        path: &Path,
        content: &[u8],
        closure: impl Fn() -> Result<BTreeMap<PathBuf, String>, Failure>,
    ) -> (Standing, BTreeMap<PathBuf, String>) {
        let none = BTreeMap::new;
        let Ok(path) = path.canonicalize() else { return (Standing::Unknown, none()) };
        let own = digest::of_content(&path, content);
        let mut standing = Standing::Unknown;
        let mut found = None;
        for (root, pin) in &self.files {
            let Some(pinned) = pin.digest(root, &path) else { continue };
            if pinned != own {
                standing = Standing::Changed(path.clone());
                continue;
            }
            // What cannot be pinned any more has changed.
            let Ok(closure) = found.get_or_insert_with(&closure) else {
                return (Standing::Changed(path), none());
            };
            let changed = closure.iter().find(|(path, now)| pin.digest(root, path) != Some(now.as_str()));
            match changed {
                None => return (Standing::Trusted, std::mem::take(closure)),
                Some((changed, _)) => standing = Standing::Changed(changed.clone()),
            }
        }
        (standing, none())
    }

    /// Checks that each of these has a content that some trusted file pins.
    fn check(&self, references: &[Reference]) -> Result<(), Failure> {
        for reference in references {
            let (path, now) = (reference.path(), reference.digest()?);
            let mut roots = self.files.iter().filter(|(root, pin)| pin.digest(root, &path).is_some());
            let first = roots.clone().next().map(|(root, _)| root.clone());
            if roots.any(|(root, pin)| pin.digest(root, &path) == Some(now.as_str())) {
                continue;
            }
            let message =
                format!("`{}` has changed since it was trusted, and is not started", path.display());
            let trust = first.unwrap_or(path);
            return Err(Failure::new(Exit::Denied, "PERMISSION", message)
                .hint(format!("Read it; then `toolpost trust {}`.", trust.display())));
        }
        Ok(())
    }

    /// Pins a file and everything that it references, with the contents that they have now; gives its path and its pin.
    pub(crate) fn add(&mut self, path: &Path) -> Result<(PathBuf, Pin), Failure> {
        let absolute = path.canonicalize().map_err(|error| Failure::file("the file", path, &error))?;
        if absolute.to_str().is_none() {
            return Err(Failure::usage(format!("the path `{}` is not UTF-8", absolute.display()))
                .hint("Rename it: trust is kept by path, in a file of text."));
        }
        let content = digest::read(&absolute).map_err(|error| Failure::file("the file", path, &error))?;
        let references = Some(closure(&absolute, &content)?);
        let grants = grants::described(&absolute, &content);
        let pin = Pin { sha256: digest::of_content(&absolute, &content), references, grants };
        self.files.insert(absolute.clone(), pin.clone());
        Ok((absolute, pin))
    }

    /// Trusts a file no more; says whether it was.
    pub(crate) fn remove(&mut self, path: &Path) -> bool {
        let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
        absolute.is_ok_and(|path| self.files.remove(&path).is_some())
    }

    /// What is trusted: path and pin.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &Pin)> {
        self.files.iter().map(|(path, pin)| (path.as_path(), pin))
    }

    /// Every path that is pinned.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.iter()
            .flat_map(|(path, pin)| std::iter::once(path).chain(pin.references().map(|(path, _)| path)))
    }

    /// Stores them, in one step.
    pub(crate) fn save(&mut self) -> Result<(), Failure> {
        let path = places::trust().ok_or_else(places::no_home)?;
        let wrong = |error: &io::Error| Failure::file("the list of trusted files", &path, error);
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| wrong(&error))?;
        self.v = VERSION;
        let text = serde_json::to_string_pretty(self).map_err(|error| {
            Failure::new(Exit::Failed, "INTERNAL", format!("the list of trusted files: {error}"))
        })?;
        // Readable for its owner alone, which is what a temporary file is.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(|error| wrong(&error))?;
        file.write_all(text.as_bytes()).map_err(|error| wrong(&error))?;
        file.persist(&path).map_err(|error| wrong(&error.error))?;
        Ok(())
    }
}

/// A check that these references of a trusted file are what was trusted; none if there is nothing to check. The list of
/// trusted files is read each time: a command that runs on sees what the operator trusts meanwhile.
pub(crate) fn start_check(references: Vec<Reference>) -> Option<StartCheck> {
    let is_empty = references.is_empty();
    let check = move || Pins::load().and_then(|pins| pins.check(&references)).map_err(Failure::told);
    (!is_empty).then(|| StartCheck::new(check))
}
