//! Where programs and interpreters are, and which folders they need to run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::language::Runner;
use crate::level::shorten;
use crate::{Error, Language, SYSTEM_SEARCH_PATH};

/// A program that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The path by which it is started.
    pub(super) path: PathBuf,
    /// What must be visible besides the system folders.
    pub(super) needs: Vec<PathBuf>,
}

/// Whether a program's name is a path rather than a name to look up.
fn is_path(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}

/// Whether a path lies in what every level shows.
fn is_system(path: &Path, etc_and_opt: bool) -> bool {
    let shown = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];
    shown.iter().any(|folder| path.starts_with(folder))
        || (etc_and_opt && ["/etc", "/opt"].iter().any(|folder| path.starts_with(folder)))
}

/// Who will run the program, as far as finding it is concerned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reach {
    /// Whether `/etc` and `/opt` are shown anyway.
    pub(super) etc_and_opt: bool,
    /// Without a private root: folders must be open to everyone, because the program becomes another user.
    pub(super) as_stranger: bool,
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
}

/// Whether a user without rights reaches a path.
fn is_open_to_everyone(path: &Path) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    real.ancestors()
        .skip(1)
        .all(|folder| folder.metadata().is_ok_and(|metadata| metadata.mode() & 0o001 != 0))
        && real.metadata().is_ok_and(|metadata| metadata.mode() & 0o001 != 0)
}

fn is_elf(path: &Path) -> bool {
    let mut first = [0u8; 4];
    std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut first)).is_ok()
        && first == *b"\x7fELF"
}

/// The folders of a search path, absolute ones only.
fn folders(search: &OsStr) -> impl Iterator<Item = PathBuf> {
    search
        .as_bytes()
        .split(|byte| *byte == b':')
        .filter(|folder| folder.starts_with(b"/"))
        .map(|folder| PathBuf::from(OsString::from_vec(folder.to_vec())))
}

/// Finds the program of an argument list.
pub(super) fn program(name: &OsStr, search: Option<&OsStr>, reach: Reach) -> Result<Found, Error> {
    let not_found =
        |reason: String| Error::ProgramNotFound { program: shorten(&name.to_string_lossy()), reason };
    if is_path(name) {
        let path = Path::new(name);
        if !path.is_absolute() {
            // A path relative to the workspace: it may be an upload, or not exist before the run.
            return Ok(Found { path: path.to_owned(), needs: Vec::new() });
        }
        if path.starts_with(super::plan::WORKSPACE) {
            return Ok(Found { path: path.to_owned(), needs: Vec::new() });
        }
        if !is_executable(path) {
            if path.is_file() {
                return Err(Error::NotExecutable { program: path.display().to_string() });
            }
            return Err(not_found("there is no file at this path".into()));
        }
        return Ok(found(path, reach));
    }
    let search = search.unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    folders(search)
        .map(|folder| folder.join(name))
        .filter(|candidate| is_executable(candidate))
        .find_map(|candidate| {
            // A launcher would not find its version manager inside.
            if is_launcher(&candidate) {
                return installed(&candidate, reach);
            }
            (!reach.as_stranger || is_open_to_everyone(&candidate)).then(|| found(&candidate, reach))
        })
        .ok_or_else(|| not_found(format!("no executable of this name in {}", search.to_string_lossy())))
}

/// A program outside the system folders needs its own file, and what it points to.
fn found(path: &Path, reach: Reach) -> Found {
    let mut needs = Vec::new();
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if !is_system(&real, reach.etc_and_opt) {
        needs.push(real.clone());
    }
    // A link outside the system folders does not exist inside; what it points to does.
    let path = if is_system(path, reach.etc_and_opt) { path.to_owned() } else { real };
    Found { path, needs }
}

/// Finds the interpreter of a language: the first of its programs that is anywhere in the search path.
pub(super) fn interpreter(
    language: Language,
    search: Option<&OsStr>,
    reach: Reach,
) -> Result<(Found, &'static Runner), Error> {
    let searched = search.unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    for runner in language.runners() {
        if runner.since.is_some() || !matches!(runner.way, crate::language::Way::Interpret { .. }) {
            continue;
        }
        for candidate in folders(searched).map(|folder| folder.join(runner.program)) {
            if !is_executable(&candidate) {
                continue;
            }
            if let Some(found) = installed(&candidate, reach) {
                return Ok((found, runner));
            }
        }
    }
    Err(missing(language, searched))
}

/// The error of a language that no program here runs.
pub(super) fn missing(language: Language, searched: &OsStr) -> Error {
    Error::LanguageMissing {
        language,
        program: language.program_names(),
        searched: searched.to_string_lossy().into_owned(),
        hint: language.install_hint(),
    }
}

/// A program of an installation, which needs the libraries of it. Nothing if nobody inside could run it.
fn installed(candidate: &Path, reach: Reach) -> Option<Found> {
    let real = behind_launcher(candidate)?;
    if reach.as_stranger && !is_open_to_everyone(&real) {
        return None;
    }
    let resolved = real.canonicalize().ok()?;
    if is_system(&resolved, reach.etc_and_opt) {
        let path = if is_system(candidate, reach.etc_and_opt) { candidate.to_owned() } else { resolved };
        return Some(Found { path, needs: Vec::new() });
    }
    // An installation is `PREFIX/bin/PROGRAM` with its libraries beside `bin`.
    let prefix = resolved.parent().filter(|folder| folder.ends_with("bin")).and_then(Path::parent);
    let mut needs = vec![prefix.map_or_else(|| resolved.clone(), Path::to_owned)];
    // A virtual environment lives in one folder and borrows from another.
    let environment = real.parent().and_then(Path::parent);
    if let Some(environment) = environment
        && environment.join("pyvenv.cfg").is_file()
        && let Ok(environment) = environment.canonicalize()
    {
        let inside = environment.join("bin").join(real.file_name().unwrap_or_default());
        needs.push(environment);
        return Some(Found { path: inside, needs });
    }
    Some(Found { path: resolved, needs })
}

/// Whether a file is a launcher of a version manager.
fn is_launcher(candidate: &Path) -> bool {
    let shims = candidate.parent().filter(|folder| folder.ends_with("shims"));
    shims.and_then(Path::parent).is_some_and(|root| root.join("versions").is_dir()) && !is_elf(candidate)
}

/// Version managers put a script in the search path that picks an installation. The script is not run: the folder
/// next to it says which installation is the default. Gives nothing if that cannot be told.
fn behind_launcher(candidate: &Path) -> Option<PathBuf> {
    if is_elf(candidate) {
        return Some(candidate.to_owned());
    }
    let shims = candidate.parent().filter(|folder| folder.ends_with("shims"))?;
    let root = shims.parent()?;
    let chosen = std::fs::read_to_string(root.join("version")).ok()?;
    chosen
        .split_whitespace()
        .filter(|version| !version.contains('/') && *version != "..")
        .map(|version| {
            root.join("versions").join(version).join("bin").join(candidate.file_name().unwrap_or_default())
        })
        .find(|program| is_executable(program) && is_elf(program))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const EVERYWHERE: Reach = Reach { etc_and_opt: false, as_stranger: false };

    fn executable(path: &Path, content: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_launcher_script_is_resolved_without_running_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o700)).unwrap();
        executable(&root.join("shims/python3"), b"#!/bin/sh\nexit 1\n");
        executable(&root.join("versions/3.11.7/bin/python3"), b"\x7fELF");
        std::fs::write(root.join("version"), "3.11.7\n").unwrap();
        let search = root.join("shims").into_os_string();
        let (found, _) = interpreter(Language::Python, Some(&search), EVERYWHERE).unwrap();
        assert_eq!(found.path, root.join("versions/3.11.7/bin/python3"));
        assert_eq!(found.needs, [root.join("versions/3.11.7")]);
        let by_name = program(OsStr::new("python3"), Some(&search), EVERYWHERE).unwrap();
        assert_eq!((by_name.path, by_name.needs), (found.path, found.needs));
        // Which installation is meant must be told; otherwise the next folder has its turn.
        executable(&root.join("shims/ls"), b"#!/bin/sh\nexit 127\n");
        let then = OsString::from(format!("{}:/usr/bin:/bin", root.join("shims").display()));
        let ls = program(OsStr::new("ls"), Some(&then), EVERYWHERE).unwrap();
        assert!(!ls.path.starts_with(&root), "{ls:?}");
        let stranger = Reach { as_stranger: true, ..EVERYWHERE };
        assert!(program(OsStr::new("python3"), Some(&search), stranger).is_err());
        assert!(interpreter(Language::Python, Some(&search), stranger).is_err(), "the folder is private");
    }

    #[test]
    fn a_missing_interpreter_says_where_and_how() {
        let error =
            interpreter(Language::Bash, Some(OsStr::new("/nowhere:relative")), EVERYWHERE).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere") && text.contains("apt-get install"), "{text}");
    }

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let found = program(OsStr::new("ls"), None, EVERYWHERE).unwrap();
        assert!(found.path.ends_with("ls") && found.needs.is_empty());
        assert!(program(OsStr::new("no-such-program-here"), None, EVERYWHERE).is_err());
        let error = program(OsStr::new("/etc/passwd"), None, EVERYWHERE).unwrap_err();
        assert_eq!(error.to_string(), "program `/etc/passwd` is not executable");
        assert!(error.hint().unwrap().contains("`chmod +x /etc/passwd`"), "{error:?}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("tool");
        executable(&path, b"#!/bin/sh\n");
        assert_eq!(program(path.as_os_str(), None, EVERYWHERE).unwrap().needs, [path]);
    }
}
