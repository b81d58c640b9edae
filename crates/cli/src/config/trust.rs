//! Trusted files: pinned by content, with everything that they reference.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toolpost_core::{StartCheck, newer_format};

use super::closure::{closure, digest_of, follow};
use super::digest;
use super::paths;
use super::reference::{Reference, settled};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::grants;
use crate::mcp::entries;
use crate::regular_file::{self, FormatVersion};
use crate::target_grammar::is_description;
use crate::toml_text::toml_value;

/// The version of the list of trusted files.
pub(crate) const VERSION: u32 = 2;

/// The trust in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TrustState {
    /// Trusted: the file and its references have the pinned contents.
    Trusted,
    /// The file, or one that it references, has changed.
    Changed(PathBuf),
    /// Not trusted.
    Unknown,
}

impl TrustState {
    /// The reason why a file is not trusted, to print after its name.
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

/// The stored pins.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pins {
    v: u32,
    /// The pin of each file, by absolute path.
    files: BTreeMap<PathBuf, Pin>,
}

/// The pin of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "StoredPin")]
pub(crate) struct Pin {
    /// The SHA-256 of its content.
    pub(crate) sha256: String,
    /// The digests of its references, by absolute path. Format 1 has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    references: Option<BTreeMap<PathBuf, String>>,
    /// The grants of its targets, as `toolpost trust` printed them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) grants: Vec<String>,
}

/// A pin in every format.
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
    /// The digests of the references, by path.
    pub(crate) fn references(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.references.iter().flatten().map(|(path, digest)| (path.as_path(), digest.as_str()))
    }

    /// The digest of a path: the file itself or a reference.
    fn digest(&self, root: &Path, path: &Path) -> Option<&str> {
        if root == path {
            return Some(&self.sha256);
        }
        self.references.as_ref()?.get(path).map(String::as_str)
    }
}

impl Pins {
    /// Reads the pins; a missing file has none.
    pub(crate) fn load() -> Result<Self, Failure> {
        let Some(path) = paths::trust() else { return Ok(Self::default()) };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(Failure::file("the list of trusted files", &path, &error)),
        };
        let wrong = |why: String| {
            Failure::usage(format!("the list of trusted files `{}` is invalid: {why}", path.display()))
                .hint("Remove it, and trust your files again.")
        };
        let FormatVersion { v } = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        if v > VERSION {
            let subject = format_args!("the list of trusted files `{}`", path.display());
            return Err(newer_format(subject, v.into(), VERSION.into()).into());
        }
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// The trust in a file; an unreadable one is not trusted.
    pub(crate) fn standing(&self, path: &Path) -> TrustState {
        match digest::read(path) {
            Ok(content) => self.standing_of(path, &content),
            Err(_) => TrustState::Unknown,
        }
    }

    /// The trust in a file with this content.
    pub(crate) fn standing_of(&self, path: &Path, content: &[u8]) -> TrustState {
        self.judge(path, content).0
    }

    /// The trust in a file with this content, and the digests of its references if it is trusted.
    pub(crate) fn judge(&self, path: &Path, content: &[u8]) -> (TrustState, BTreeMap<PathBuf, String>) {
        self.judge_by(path, content, || closure(&settled(path), content))
    }

    /// The trust in a file with this content, if only these references are used.
    pub(crate) fn standing_for(&self, path: &Path, content: &[u8], used: &[Reference]) -> TrustState {
        self.judge_by(path, content, || follow(&settled(path), used.to_vec())).0
    }

    fn judge_by(
        &self,
        path: &Path,
        content: &[u8],
        closure: impl Fn() -> Result<BTreeMap<PathBuf, String>, Failure>,
    ) -> (TrustState, BTreeMap<PathBuf, String>) {
        let none = BTreeMap::new;
        let Ok(path) = path.canonicalize() else { return (TrustState::Unknown, none()) };
        let own = digest::of_content(&path, content);
        let mut standing = TrustState::Unknown;
        let mut found = None;
        for (root, pin) in &self.files {
            let Some(pinned) = pin.digest(root, &path) else { continue };
            if pinned != own {
                standing = TrustState::Changed(path.clone());
                continue;
            }
            // A file that cannot be pinned any more has changed.
            let Ok(closure) = found.get_or_insert_with(&closure) else {
                return (TrustState::Changed(path), none());
            };
            let changed = closure.iter().find(|(path, now)| pin.digest(root, path) != Some(now.as_str()));
            match changed {
                None => return (TrustState::Trusted, std::mem::take(closure)),
                Some((changed, _)) => standing = TrustState::Changed(changed.clone()),
            }
        }
        (standing, none())
    }

    /// Checks that a trusted file pins the content of each path.
    fn check(&self, references: &[Reference]) -> Result<(), Failure> {
        for reference in references {
            let (path, now) = (reference.path(), digest_of(reference)?);
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

    /// Pins the current content of a file and its references; returns its path and pin.
    pub(crate) fn add(&mut self, path: &Path) -> Result<(PathBuf, Pin), Failure> {
        let absolute = path.canonicalize().map_err(|error| Failure::file("the file", path, &error))?;
        if absolute.to_str().is_none() {
            return Err(Failure::usage(format!("the path `{}` is not UTF-8", absolute.display()))
                .hint("Rename the file: trust is stored by path in a text file."));
        }
        let content = digest::read(&absolute).map_err(|error| Failure::file("the file", path, &error))?;
        let references = closure(&absolute, &content)?;
        let mut grants = target_grants(&absolute, &content);
        grants.extend(evaluated_values(&absolute, &content, &references));
        let references = Some(references);
        let pin = Pin { sha256: digest::of_content(&absolute, &content), references, grants };
        self.files.insert(absolute.clone(), pin.clone());
        Ok((absolute, pin))
    }

    /// Revokes the trust in a file; false if it was not trusted.
    pub(crate) fn remove(&mut self, path: &Path) -> bool {
        let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
        absolute.is_ok_and(|path| self.files.remove(&path).is_some())
    }

    /// The trusted files with their pins.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Path, &Pin)> {
        self.files.iter().map(|(path, pin)| (path.as_path(), pin))
    }

    /// All pinned paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.iter()
            .flat_map(|(path, pin)| std::iter::once(path).chain(pin.references().map(|(path, _)| path)))
    }

    /// Stores the pins atomically.
    pub(crate) fn save(&mut self) -> Result<(), Failure> {
        let path = paths::trust().ok_or_else(paths::no_home)?;
        let wrong = |error: &io::Error| Failure::file("the list of trusted files", &path, error);
        self.v = VERSION;
        let text = serde_json::to_string_pretty(self).map_err(|error| {
            Failure::new(Exit::Failed, "INTERNAL", format!("the list of trusted files: {error}"))
        })?;
        regular_file::replace(&path, &text).map_err(|error| wrong(&error))
    }
}

/// The targets of a trusted file with their grants, for `toolpost trust`.
fn target_grants(path: &Path, content: &[u8]) -> Vec<String> {
    let servers = entries::described(path, content);
    if !servers.is_empty() {
        return servers;
    }
    let Ok(text) = std::str::from_utf8(content) else { return Vec::new() };
    let directory = path.parent().unwrap_or(Path::new("."));
    let Ok(file) = toml_value(text) else { return Vec::new() };
    let mut lines = Vec::new();
    let mut add = |name: &str, target: &str, value: Option<&Value>| {
        let grants = value.and_then(|value| grants::read(value, directory).ok()).unwrap_or_default();
        lines.extend(grants::lines_of(name, target, &grants));
    };
    if let Some(program) = file.get("program").and_then(Value::as_str) {
        add(program, "", file.get(grants::KEY));
    }
    for upstream in file.get("upstreams").and_then(Value::as_array).into_iter().flatten() {
        let text = |key: &str| upstream.get(key).and_then(Value::as_str).unwrap_or_default();
        add(text("name"), text("target"), upstream.get(grants::KEY));
    }
    for (name, entry) in file.get("targets").and_then(Value::as_object).into_iter().flatten() {
        let target = entry.get("target").and_then(Value::as_str);
        add(name, target.unwrap_or_default(), entry.get(grants::KEY));
    }
    lines
}

/// The steps of a plan and of the plans that a file references that run values as code, for `toolpost trust`.
fn evaluated_values(path: &Path, content: &[u8], references: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let lines = |path: &Path, content: &[u8], of: &str| -> Vec<String> {
        let text = std::str::from_utf8(content).unwrap_or_default();
        let steps = toolpost_flow::evaluated_steps(text, toolpost_flow::Format::of_path(path));
        steps.iter().map(|(step, what)| format!("{of}step `{step}` runs values as code ({what})")).collect()
    };
    let is_plan = |path: &Path| path.to_str().is_some_and(is_description);
    let mut all = if is_plan(path) { lines(path, content, "") } else { Vec::new() };
    for (reference, pinned) in references.iter().filter(|(path, _)| is_plan(path)) {
        // Only what is pinned is shown.
        let content = digest::read(reference).ok();
        let content = content.filter(|content| digest::of_content(reference, content) == *pinned);
        let name = reference.file_name().unwrap_or_default().to_string_lossy();
        all.extend(content.iter().flat_map(|content| lines(reference, content, &format!("`{name}`: "))));
    }
    all
}

/// A check of references of a trusted file; `None` without references.
///
/// Each check reads the list again, so a running command sees new trust.
pub(crate) fn start_check(references: Vec<Reference>) -> Option<StartCheck> {
    let is_empty = references.is_empty();
    let check =
        move || Pins::load().and_then(|pins| pins.check(&references)).map_err(Failure::into_tool_error);
    (!is_empty).then(|| StartCheck::new(check))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trust_shows_what_each_target_reaches() {
        let shown = |text: &str| target_grants(Path::new("/p/x.toml"), text.as_bytes()).join("\n");
        assert_eq!(
            shown("kind = \"command\"\nprogram = \"p\"\n[grants]\nsecrets = [{ name = \"K\", raw = true }]"),
            "p: gets the value of `K` (raw)"
        );
        assert_eq!(
            shown(
                "kind = \"gateway\"\n[[upstreams]]\nname = \"a\"\ntarget = \"stdio:npx -y @s/p@1\"\n\
                 grants = { allow_hosts = [\"a.example\"], writable = [\"out\"] }\n[[upstreams]]\nname = \"b\"\ntarget = \"./b\""
            ),
            "a: installs @s/p@1 without scripts\na: reaches a.example\na: writes `/p/out`"
        );
        assert_eq!(
            shown(
                "[targets]\nc = \"./c\"\nd = { target = \"stdio:uvx d\", grants = { install_scripts = true } }"
            ),
            "d: installs d with scripts\nd: runs scripts of packages while they are installed"
        );
    }
}
