//! The files that a trusted file references and that decide what runs, and with which rights.
//!
//! Scripted and recorded models are not among them: what a model answers decides nothing without a permission.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use toolpost_sandbox::Grants;

use super::keys::KEYS;
use super::{digest, dotenv, places};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::mcp::{self, files};
use crate::{agent_file, target};

/// The most files and directories that one trusted file pins.
const MAX_REFERENCES: usize = 256;
/// How many files lead from one to the next at most.
const MAX_DEPTH: usize = 16;
/// The settings that name files which decide what runs. The others name what Toolpost writes.
const DECISIVE: [&str; 5] =
    ["models.file", "models.ca_file", "egress_policy", "packages.certificate", "packages.find_links"];
/// Variables of other programs that do the same.
const DECISIVE_VARIABLES: [&str; 3] = ["SSL_CERT_FILE", "PIP_CERT", "PIP_FIND_LINKS"];
/// Options of launchers that name the directory of a program.
const DIRECTORY_OPTIONS: [&str; 5] = ["--directory", "--project", "--prefix", "--cwd", "-C"];
/// Files with these extensions are written by programs, and are none.
const DATA: [&str; 6] = ["db", "sqlite", "sqlite3", "log", "jsonl", "pid"];

/// What a trusted file references.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reference {
    /// A file that references no other.
    File(PathBuf),
    /// A file that may reference others.
    Description(PathBuf),
    /// A directory with everything beneath.
    Directory(PathBuf),
}

impl Reference {
    /// The path that is pinned: absolute, and without symbolic links as far as it exists.
    pub(crate) fn path(&self) -> PathBuf {
        let (Self::File(path) | Self::Description(path) | Self::Directory(path)) = self;
        settled(path)
    }

    /// The digest of what is there now.
    pub(super) fn digest(&self) -> Result<String, Failure> {
        let path = self.path();
        match self {
            Self::Directory(_) => digest::of_directory(&path),
            Self::File(_) | Self::Description(_) => {
                digest::of_file(&path).map_err(|error| Failure::file("the referenced file", &path, &error))
            }
        }
    }
}

/// A path that is absolute, and without symbolic links as far as it exists.
pub(crate) fn settled(path: &Path) -> PathBuf {
    let absolute = || std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| {
        let absolute = absolute();
        let parent = absolute.parent().and_then(|parent| parent.canonicalize().ok());
        match (parent, absolute.file_name()) {
            (Some(parent), Some(name)) => parent.join(name),
            _ => absolute,
        }
    })
}

/// The digests of everything that a file with this content references, and of what those reference in turn.
///
/// # Errors
/// There is more than may be pinned, or something that cannot be.
pub(super) fn closure(path: &Path, content: &[u8]) -> Result<BTreeMap<PathBuf, String>, Failure> {
    follow(path, references(path, content))
}

/// The digests of these references of a file, and of what those reference in turn.
pub(super) fn follow(root: &Path, first: Vec<Reference>) -> Result<BTreeMap<PathBuf, String>, Failure> {
    let mut closure = BTreeMap::new();
    let mut open: Vec<(Reference, usize)> = first.into_iter().map(|reference| (reference, 1)).collect();
    while let Some((reference, depth)) = open.pop() {
        let path = reference.path();
        if path == root || closure.contains_key(&path) {
            continue;
        }
        if path.to_str().is_none() {
            return Err(Failure::usage(format!("the path `{}` is not UTF-8", path.display()))
                .hint("Rename it: trust is kept by path, in a file of text."));
        }
        if closure.len() >= MAX_REFERENCES || depth > MAX_DEPTH {
            let bound = if depth > MAX_DEPTH {
                format!("{MAX_DEPTH} files that lead from one to the next")
            } else {
                format!("{MAX_REFERENCES} files")
            };
            let message = format!("`{}` references more than {bound}", root.display());
            return Err(Failure::new(Exit::Limit, "LIMIT", message).hint("Split it into several files."));
        }
        let content = match &reference {
            Reference::Description(_) => digest::read(&path).ok(),
            _ => None,
        };
        // What is followed is what was hashed.
        let own = match &content {
            Some(content) => {
                let next = references(&path, content);
                open.extend(next.into_iter().map(|reference| (reference, depth + 1)));
                digest::of_content(&path, content)
            }
            None => reference.digest()?,
        };
        closure.insert(path, own);
    }
    Ok(closure)
}

/// What a file with this content references itself. A content that cannot be read references nothing: it is an error
/// where it is used.
pub(crate) fn references(path: &Path, content: &[u8]) -> Vec<Reference> {
    let Ok(text) = std::str::from_utf8(content) else { return Vec::new() };
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let found = if name == places::PROJECT {
        of_settings(path, text)
    } else if name == ".env" {
        of_variables(folder, text)
    } else if files::is_known(path) {
        files::references(path, content)
    } else if target::is_description(name) {
        agent_file::references(path, text)
    } else {
        Vec::new()
    };
    found.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The references of a file with settings.
fn of_settings(path: &Path, text: &str) -> Vec<Reference> {
    let Ok(entries) = super::file::parse(text, path) else { return Vec::new() };
    let mut found: Vec<Reference> = entries
        .settings
        .iter()
        .flat_map(|(key, value, _)| of_setting(key.name, value, Path::new(""), path.parent()))
        .collect();
    let folder = path.parent();
    found.extend(entries.targets.values().flat_map(|(target, grants, _)| of_targets(target, folder, grants)));
    found
}

/// The references of a setting, whose paths are relative to a directory; `start` is where its servers work.
fn of_setting(name: &str, value: &Value, folder: &Path, start: Option<&Path>) -> Vec<Reference> {
    let texts = || value.as_array().into_iter().flatten().filter_map(Value::as_str);
    match (name, value.as_str()) {
        ("tools", _) => {
            let words = texts().flat_map(target::split);
            let words = words.map(|word| target::below(folder, word));
            words.flat_map(|word| of_target(&word, start, &Grants::default())).collect()
        }
        ("packages.find_links", Some(path)) => vec![Reference::Directory(folder.join(path))],
        (name, Some(path)) if DECISIVE.contains(&name) => vec![Reference::File(folder.join(path))],
        _ => Vec::new(),
    }
}

/// The references of a file with variables: those of settings, and those of other programs.
fn of_variables(folder: &Path, text: &str) -> Vec<Reference> {
    let Ok(variables) = dotenv::parse(text) else { return Vec::new() };
    let mut found = Vec::new();
    for (name, text) in variables {
        if let Some(key) = KEYS.iter().find(|key| key.variable == name) {
            let value = key.parse(&text).unwrap_or_default();
            found.extend(of_setting(key.name, &value, folder, Some(folder)));
        } else if DECISIVE_VARIABLES.contains(&name.as_str()) {
            let path = folder.join(text);
            let is_directory = path.is_dir();
            found.push(if is_directory { Reference::Directory(path) } else { Reference::File(path) });
        }
    }
    found
}

/// The references of a word that names one target or several.
pub(crate) fn of_targets(word: &str, folder: Option<&Path>, grants: &Grants) -> Vec<Reference> {
    target::split(word).into_iter().flat_map(|target| of_target(target, folder, grants)).collect()
}

/// The references of a target of a file in a directory. A program with variables is given secrets: its directory belongs
/// to it.
fn of_target(target: &str, folder: Option<&Path>, grants: &Grants) -> Vec<Reference> {
    if mcp::is_address(target) {
        return mcp::references(target, folder, grants);
    }
    if target::is_description(target) {
        return vec![Reference::Description(target.into())];
    }
    if !target.contains('/') {
        return Vec::new();
    }
    let own = own_directories(Path::new(target)).into_iter().map(Reference::Directory);
    let own = own.filter(|reference| !digest::is_system(&reference.path()));
    std::iter::once(Reference::File(target.into())).chain(own.filter(|_| !grants.env.is_empty())).collect()
}

/// The references of a command that starts in a directory, or in an empty one of its own: its program, its script and
/// other files that it names. A command with grants is given secrets: the directories of its program belong to it.
pub(crate) fn of_command(words: &[String], start: Option<&Path>, has_grants: bool) -> Vec<Reference> {
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> = start.map(Path::to_owned).into_iter().collect();
    let mut launched: Vec<PathBuf> = directories.clone();
    let mut script_found = false;
    for (index, word) in words.iter().enumerate() {
        let previous = index.checked_sub(1).and_then(|index| words.get(index));
        let (option, text) = match word.split_once('=') {
            Some((option, value)) if index > 0 && word.starts_with('-') => (Some(option), value),
            _ if index > 0 && word.starts_with('-') => continue,
            _ => (previous.map(String::as_str), word.as_str()),
        };
        if index == 0 && !text.contains('/') {
            continue;
        }
        let candidates = candidates(text, &directories);
        let Some(path) = candidates.iter().find(|path| path.exists()).or(candidates.first()).cloned() else {
            continue;
        };
        let is_launcher_option = option.is_some_and(|option| DIRECTORY_OPTIONS.contains(&option));
        if path.is_dir() {
            directories.push(path.clone());
            if is_launcher_option {
                launched.push(path);
            }
            continue;
        }
        let is_program = index == 0 || !script_found;
        // A file that would be run is missed as well; other words may be no paths at all.
        let is_missing_program = is_program && !path.exists() && looks_like_path(text);
        if path.is_file() && (is_program || !is_data(&path)) || is_missing_program {
            if is_program {
                launched.extend(own_directories(&path));
            }
            script_found |= index > 0;
            found.push(Reference::File(path));
        }
    }
    if has_grants {
        found.extend(launched.into_iter().map(Reference::Directory));
    }
    found.retain(|reference| !digest::is_system(&reference.path()));
    found
}

/// The paths that a word of a command can mean.
fn candidates(text: &str, directories: &[PathBuf]) -> Vec<PathBuf> {
    if text.is_empty() {
        return Vec::new();
    }
    if Path::new(text).is_absolute() {
        return vec![text.into()];
    }
    directories.iter().map(|directory| directory.join(text)).collect()
}

fn looks_like_path(text: &str) -> bool {
    !text.contains("://") && !text.starts_with('@') && (text.contains('/') || text.contains('.'))
}

fn is_data(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| DATA.contains(&extension))
}

/// The directories of a program: its environment of Python or its package, else the one that it lies in; also those of
/// the file that a link leads to.
fn own_directories(path: &Path) -> Vec<PathBuf> {
    let own = |path: &Path| {
        let parent = path.parent()?;
        let package = parent.ancestors().take(3).find(|directory| {
            ["pyvenv.cfg", "package.json"].iter().any(|name| directory.join(name).is_file())
        });
        Some(package.unwrap_or(parent).to_owned())
    };
    let real = path.canonicalize().ok();
    own(path).into_iter().chain(real.and_then(|real| own(&real))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys::Kind;

    #[test]
    fn every_setting_with_a_path_decides_what_runs_or_is_written_by_toolpost() {
        const WRITTEN: [&str; 3] = ["artifacts", "store", "log_file"];
        for key in KEYS.iter().filter(|key| key.kind == Kind::Path) {
            let (decides, is_written) = (DECISIVE.contains(&key.name), WRITTEN.contains(&key.name));
            assert!(decides != is_written, "`{}`", key.name);
            assert_eq!(of_setting(key.name, &"x".into(), Path::new("/p"), None).is_empty(), is_written);
        }
    }

    #[test]
    fn a_command_references_its_program_and_its_scripts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("srv")).unwrap();
        for name in ["srv/main.py", "srv/settings.json", "srv/data.db", "run.sh"] {
            std::fs::write(root.join(name), "").unwrap();
        }
        let shown = |line: &str, start: Option<&str>, has_grants: bool| {
            let line = line.replace("DIR", root.to_str().unwrap());
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let start = start.map(|start| root.join(start));
            let mut found: Vec<String> = of_command(&words, start.as_deref(), has_grants)
                .iter()
                .map(|reference| {
                    let kind = if matches!(reference, Reference::Directory(_)) { "/" } else { "" };
                    format!("{}{kind}", reference.path().strip_prefix(&root).unwrap().display())
                })
                .collect();
            found.sort();
            found.dedup();
            found.join(" ")
        };
        for (line, start, has_grants, expected) in [
            ("python3 -m http.server", None, true, ""),
            ("/usr/bin/env true", None, true, ""),
            ("DIR/run.sh", None, false, "run.sh"),
            ("DIR/missing", None, false, "missing"),
            ("python3 DIR/srv/main.py --db DIR/srv/data.db", None, false, "srv/main.py"),
            (
                "python3 DIR/srv/main.py --config=DIR/srv/settings.json",
                None,
                true,
                "srv/ srv/main.py srv/settings.json",
            ),
            ("python3 main.py", None, false, ""),
            ("python3 main.py", Some("srv"), false, "srv/main.py"),
            ("python3 -m pkg", Some("srv"), true, "srv/"),
            ("npx -y @scope/server DIR/srv", None, true, ""),
            ("uv --directory DIR/srv run main.py", None, true, "srv/ srv/main.py"),
        ] {
            assert_eq!(shown(line, start, has_grants), expected, "{line}");
        }
    }
}
