//! References of trusted files, and the files that a command names.

use std::path::{Path, PathBuf};

use toolpost_sandbox::{Grants, Host, Level, VariableGrant};

use crate::env;
use crate::target_grammar::words_of;

/// Options of launchers that name the directory of a program.
const DIRECTORY_OPTIONS: [&str; 5] = ["--directory", "--project", "--prefix", "--cwd", "-C"];
/// Extensions of files that programs write, which are not references.
const DATA: [&str; 6] = ["db", "sqlite", "sqlite3", "log", "jsonl", "pid"];

/// A reference of a trusted file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reference {
    /// A file without references.
    File(PathBuf),
    /// A file that may have references.
    Description(PathBuf),
    /// A directory with everything beneath.
    Directory(PathBuf),
}

impl Reference {
    /// The pinned path: absolute, with resolved symbolic links as far as it exists.
    pub(crate) fn path(&self) -> PathBuf {
        let (Self::File(path) | Self::Description(path) | Self::Directory(path)) = self;
        settled(path)
    }
}

/// An absolute path with resolved symbolic links as far as it exists.
pub(crate) fn settled(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = absolute.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match existing.and_then(|(above, real)| Some((absolute.strip_prefix(above).ok()?, real))) {
        Some((rest, real)) if !rest.as_os_str().is_empty() => real.join(rest),
        Some((_, real)) => real,
        None => absolute,
    }
}

/// A program or file that a trusted file names.
#[derive(Clone, Debug)]
pub(crate) enum Named {
    /// A file or directory.
    Reference(Reference),
    /// A tool program.
    Program {
        path: PathBuf,
        grants: Grants,
    },
    Command(Command),
}

/// A command that a trusted file names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Command {
    pub(crate) words: Vec<String>,
    /// The named working directory.
    pub(crate) named: Option<PathBuf>,
    /// The working directory without a named one.
    pub(crate) default: Option<PathBuf>,
    /// Whether the program has secrets: the directories of its program are pinned.
    pub(crate) has_grants: bool,
    /// Whether the program has any grant.
    pub(crate) is_granted: bool,
    /// Its variables.
    pub(crate) variables: Vec<(String, String)>,
}

impl Named {
    /// A file without references.
    pub(crate) fn file(path: PathBuf) -> Self {
        Self::Reference(Reference::File(path))
    }

    /// The files and directories to pin.
    pub(crate) fn references(&self) -> Vec<Reference> {
        match self {
            Self::Reference(reference) => vec![reference.clone()],
            // A program with variables has secrets: its directory is pinned.
            Self::Program { path, grants } => {
                let own = own_directories(path).into_iter().map(Reference::Directory);
                let own = own.filter(|reference| !is_system(&reference.path()));
                std::iter::once(Reference::File(path.clone()))
                    .chain(own.filter(|_| !grants.secrets.is_empty()))
                    .collect()
            }
            Self::Command(command) => of_server_command(
                &command.words,
                command.named.as_deref(),
                command.default.as_deref(),
                command.has_grants,
            ),
        }
    }
}

/// Whether grants reach more than a working directory, which every server of a project has.
pub(crate) fn is_granted(grants: &Grants) -> bool {
    let mut others = grants.clone();
    others.workdir = None;
    !others.is_empty()
}

/// The files of this host that a server's command names; it works in `default` without a granted directory.
pub(crate) fn of_server(target: &str, default: Option<&Path>, grants: &Grants) -> Vec<Reference> {
    server(target, default, grants).iter().flat_map(Named::references).collect()
}

/// The command of a server, which works in `default` without a granted directory.
pub(crate) fn server(target: &str, default: Option<&Path>, grants: &Grants) -> Option<Named> {
    let variable = |variable: &VariableGrant| Some((variable.name.clone(), env::variable(&variable.name)?));
    let command = Command {
        words: words_of(target)?,
        named: grants.workdir.clone(),
        default: default.map(Path::to_owned),
        has_grants: !grants.secrets.is_empty(),
        is_granted: is_granted(grants),
        variables: grants.secrets.iter().filter(|variable| variable.raw).filter_map(variable).collect(),
    };
    Some(Named::Command(command))
}

/// The files that a command names, for pins without whole directories.
fn of_server_command(
    words: &[String],
    named: Option<&Path>,
    default: Option<&Path>,
    has_grants: bool,
) -> Vec<Reference> {
    let found = of_command(words, named.or(default), has_grants);
    let default = default.filter(|_| named.is_none()).map(settled);
    found.into_iter().filter(|reference| default.as_ref() != Some(&reference.path())).collect()
}

/// The working directory of a server: its file's directory, else the current one. `None` where the host shows
/// neither.
pub(crate) fn working_directory(of_file: Option<&Path>) -> Option<PathBuf> {
    let has_layers = Host::probe().availability(Level::Strict).is_some_and(|level| level.available);
    let here = || std::env::current_dir().ok();
    let directory = of_file.map(Path::to_owned).or_else(here);
    directory.filter(|directory| has_layers && directory.parent().is_some())
}

/// The references of a command: its program, its script and other files in its arguments.
///
/// The command starts in a directory, or in an empty one. With grants it has secrets: the directories of its
/// program are pinned.
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
        // A missing program or script is pinned too; other words may be no paths.
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
    found.retain(|reference| !is_system(&reference.path()));
    found
}

/// The paths that a word of a command may mean.
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

/// The directories of a program: its Python environment or package, else its parent; also those of a link's
/// target.
pub(super) fn own_directories(path: &Path) -> Vec<PathBuf> {
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

/// Whether only the system's administrator and package manager write to the path.
pub(super) fn is_system(path: &Path) -> bool {
    const SYSTEM: [&str; 10] =
        ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/nix/store", "/proc", "/dev"];
    SYSTEM.iter().any(|system| path.starts_with(system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_references_its_program_and_its_scripts() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
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
