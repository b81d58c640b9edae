//! Finds programs and interpreters, and the directories that they need.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::admission::Workspaces;
use super::python;
use crate::directory::is_dedicated;
use crate::language::Runner;
use crate::level::shorten;
use crate::{Error, Language, Need, Origin, SYSTEM_SEARCH_PATH, Shebang};

/// A found program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// The path to execute.
    pub(super) path: PathBuf,
    /// Paths to mount besides the system directories.
    pub(super) needs: Vec<Need>,
    /// The first arguments: the script, if the program is its interpreter.
    pub(super) first: Vec<OsString>,
}

impl Found {
    fn new(path: PathBuf, needs: Vec<Need>) -> Self {
        Self { path, needs, first: Vec::new() }
    }
}

/// Whether a program's name is a path.
fn is_path(name: &OsStr) -> bool {
    name.as_encoded_bytes().contains(&b'/')
}

/// Whether every level shows a path.
pub(super) fn is_system(path: &Path) -> bool {
    let shown = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/nix/store"];
    shown.iter().any(|directory| path.starts_with(directory))
}

/// The package directory beneath `/opt`.
fn package(path: &Path) -> Option<PathBuf> {
    let mut parts = path.strip_prefix("/opt").ok()?.components();
    let own = Path::new("/opt").join(parts.next()?);
    parts.next().is_some().then_some(own)
}

/// The reach of the user who runs the program.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    /// Whether a program beneath `/opt` is shown with its package.
    pub(super) with_package: bool,
    /// Whether directories must be open to everyone: without a private root the program becomes another user.
    pub(super) as_other_user: bool,
    /// Whether the level is a boundary, so that it matters who named a program.
    pub(super) is_confined: bool,
    /// The directories that code writes: a program found there widens nothing.
    pub(super) workspaces: Workspaces,
}

impl Reach {
    /// Who named what lies in a directory of the search path, which the operator set.
    fn origin_in(&self, directory: &Path) -> Origin {
        if self.workspaces.reach(directory) { Origin::Derived } else { Origin::Operator }
    }
}

/// The origin of what surrounds a program by the name that it was given.
fn around(origin: Origin) -> Origin {
    if origin == Origin::Operator { Origin::Around } else { origin }
}

/// The origin of a file to which the links of a name lead. Only the operator's own links are followed anywhere.
fn behind(origin: Origin) -> Origin {
    if origin == Origin::Operator { Origin::Operator } else { Origin::Derived }
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
}

/// Whether an unprivileged user can reach a path.
fn is_open_to_everyone(path: &Path) -> bool {
    let Ok(real) = path.canonicalize() else { return false };
    real.ancestors()
        .skip(1)
        .all(|directory| directory.metadata().is_ok_and(|metadata| metadata.mode() & 0o001 != 0))
        && real.metadata().is_ok_and(|metadata| metadata.mode() & 0o001 != 0)
}

fn is_elf(path: &Path) -> bool {
    let mut first = [0u8; 4];
    std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut first)).is_ok()
        && first == *b"\x7fELF"
}

/// The absolute directories of a search path.
pub(super) fn directories(search: &OsStr) -> impl Iterator<Item = PathBuf> {
    search
        .as_bytes()
        .split(|byte| *byte == b':')
        .filter(|directory| directory.starts_with(b"/"))
        .map(|directory| PathBuf::from(OsString::from_vec(directory.to_vec())))
}

/// Finds the program of an argument list.
///
/// `origin` says who named a path; a name is searched for in the operator's search path.
pub(super) fn program(
    name: &OsStr,
    search: Option<&OsStr>,
    reach: &Reach,
    origin: Origin,
) -> Result<Found, Error> {
    let not_found =
        |reason: String| Error::ProgramNotFound { program: shorten(&name.to_string_lossy()), reason };
    if is_path(name) {
        let path = Path::new(name);
        if !path.is_absolute() {
            // A path relative to the workspace may be an upload, or be created by the run.
            return Ok(Found::new(path.to_owned(), Vec::new()));
        }
        if path.starts_with(super::plan::WORKSPACE) {
            return Ok(Found::new(path.to_owned(), Vec::new()));
        }
        if !is_executable(path) {
            if path.is_file() {
                return Err(Error::NotExecutable { program: path.display().to_string() });
            }
            return Err(not_found("there is no file at this path".into()));
        }
        let origin = if reach.workspaces.contain(path) { Origin::Derived } else { origin };
        // Inside, a launcher would not find its version manager.
        let launched = if is_launcher(path) { launched(path, search, reach, origin) } else { None };
        return Ok(launched.unwrap_or_else(|| found(path, search, reach, origin)));
    }
    let search = search.unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    directories(search)
        .map(|directory| (directory.join(name), directory))
        .filter(|(candidate, _)| is_executable(candidate))
        .find_map(|(candidate, directory)| {
            let origin = reach.origin_in(&directory);
            // Inside, a launcher would not find its version manager.
            if is_launcher(&candidate) {
                return launched(&candidate, Some(search), reach, origin);
            }
            let is_open = !reach.as_other_user || is_open_to_everyone(&candidate);
            is_open.then(|| found(&candidate, Some(search), reach, origin))
        })
        .ok_or_else(|| not_found(format!("no executable of this name in {}", search.to_string_lossy())))
}

/// The program behind a version manager's launcher.
fn launched(launcher: &Path, search: Option<&OsStr>, reach: &Reach, origin: Origin) -> Option<Found> {
    let program = behind_launcher(launcher)?;
    if is_elf(&program) {
        return installed(launcher, reach, origin);
    }
    (!reach.as_other_user || is_open_to_everyone(&program)).then(|| found(&program, search, reach, origin))
}

/// Resolves a program outside the system directories: its own file and link target, or a script's
/// interpreter.
fn found(path: &Path, search: Option<&OsStr>, reach: &Reach, origin: Origin) -> Found {
    let mut found = binary(path, reach, origin);
    if is_elf(path) {
        return found;
    }
    found.needs.extend(packages(path, origin));
    match Shebang::read(path).and_then(|line| interpreter_of(path, line, search, reach, origin)) {
        None => found,
        Some((mut interpreter, arguments)) => {
            interpreter.needs.extend(found.needs);
            interpreter.first = arguments;
            interpreter.first.push(found.path.into_os_string());
            interpreter
        }
    }
}

/// Resolves a binary with the files of its installation or environment.
fn binary(path: &Path, reach: &Reach, origin: Origin) -> Found {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    if let Some(environment) = python::environment(path) {
        let needs = environment_needs(environment, path, origin);
        return Found::new(path.to_owned(), needs);
    }
    let installation = python::installation_of(&real).into_iter();
    let mut needs: Vec<Need> = installation.map(|path| Need::new(path, around(behind(origin)))).collect();
    if !is_system(&real) {
        let package = if reach.with_package { package(&real) } else { None };
        if origin == Origin::Around {
            needs.push(Need::new(path, origin));
        }
        needs.push(match package {
            Some(package) => Need::new(package, around(behind(origin))),
            None => Need::new(&real, behind(origin)),
        });
    }
    // Inside, a link outside the system directories is missing; its target is shown.
    let path = if is_system(path) { path.to_owned() } else { real };
    Found::new(path, needs)
}

/// The paths of a virtual environment: itself, as its program was named, and what its files and links name.
fn environment_needs(environment: PathBuf, program: &Path, origin: Origin) -> Vec<Need> {
    let named = python::named_by(&environment, program);
    let mut needs = Vec::new();
    // The sources of its own project, where the operator named it.
    if origin != Origin::Derived {
        needs.extend(python::project_of(&environment).map(Need::project));
    }
    needs.push(Need::new(environment, around(origin)));
    needs.extend(named.into_iter().map(|path| Need::new(path, Origin::Derived)));
    needs.push(Need::new(program, around(origin)));
    needs
}

/// The interpreter of a script and its arguments, where the kernel inside would find another one.
///
/// The script's first line names it, or the operator's search path has it. One beneath the script's own directory
/// surrounds the script.
fn interpreter_of(
    script: &Path,
    line: Shebang,
    search: Option<&OsStr>,
    reach: &Reach,
    origin: Origin,
) -> Option<(Found, Vec<OsString>)> {
    let of_path = |path: &Path, origin: Origin| {
        if reach.as_other_user && !is_open_to_everyone(path) {
            None
        } else if is_launcher(path) {
            installed(path, reach, origin)
        } else {
            is_elf(path).then(|| binary(path, reach, origin))
        }
    };
    let arguments = line.arguments.into_iter().map(OsString::from).collect();
    if line.interpreter.is_absolute() {
        let own = script.parent().filter(|own| is_dedicated(own) && line.interpreter.starts_with(own));
        let is_plain = !line.interpreter.components().any(|part| part == std::path::Component::ParentDir);
        let origin = if own.is_some() && is_plain { around(origin) } else { Origin::Derived };
        let found = of_path(&line.interpreter, origin).filter(|_| is_executable(&line.interpreter))?;
        return (!found.needs.is_empty()).then_some((found, arguments));
    }
    let search = search.unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    let candidates = directories(search).map(|directory| (directory.join(&line.interpreter), directory));
    let found = candidates
        .filter(|(path, _)| is_executable(path))
        .find_map(|(path, directory)| of_path(&path, reach.origin_in(&directory)))?;
    Some((found, arguments))
}

/// The packages that a program of a Node.js package reads: all that it was installed with, or its own if
/// linked.
fn packages(path: &Path, origin: Origin) -> Vec<Need> {
    let all = |path: &Path| {
        path.ancestors().filter(|directory| directory.ends_with("node_modules")).last().map(Path::to_owned)
    };
    let Ok(real) = path.canonicalize() else { return Vec::new() };
    let (named, installed) = (all(path), all(&real));
    let is_linked = named.is_some() && installed.is_none();
    let own = || real.ancestors().find(|directory| directory.join("package.json").is_file());
    let own =
        if is_linked { own().filter(|directory| is_dedicated(directory)).map(Path::to_owned) } else { None };
    let named = named.map(|directory| Need::new(directory, around(origin)));
    let behind =
        installed.into_iter().chain(own).map(|directory| Need::new(directory, around(behind(origin))));
    named.into_iter().chain(behind).filter(|need| !is_system(need.path())).collect()
}

/// Finds the first program for a language in the search path that is new enough.
pub(super) fn interpreter(
    language: Language,
    search: Option<&OsStr>,
    reach: &Reach,
    is_new_enough: &dyn Fn(&Found, &'static Runner) -> bool,
) -> Result<(Found, &'static Runner), Error> {
    let searched = search.unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    for runner in language.runners() {
        for directory in directories(searched) {
            let candidate = directory.join(runner.program);
            if !is_executable(&candidate) {
                continue;
            }
            let origin = reach.origin_in(&directory);
            let found =
                installed(&candidate, reach, origin).or_else(|| script(&candidate, search, reach, origin));
            if let Some(found) = found
                && (runner.since.is_none() || is_new_enough(&found, runner))
            {
                return Ok((found, runner));
            }
        }
    }
    Err(missing(language, searched))
}

/// The error of a language without a program on this host.
pub(super) fn missing(language: Language, searched: &OsStr) -> Error {
    Error::LanguageMissing {
        language,
        program: language.program_names(),
        searched: searched.to_string_lossy().into_owned(),
        hint: language.install_hint(),
    }
}

/// Resolves a program of an installation with its libraries. None if no user inside could run it.
fn installed(candidate: &Path, reach: &Reach, origin: Origin) -> Option<Found> {
    let real = behind_launcher(candidate).filter(|real| is_elf(real))?;
    if reach.as_other_user && !is_open_to_everyone(&real) {
        return None;
    }
    let resolved = real.canonicalize().ok()?;
    // An installation is `PREFIX/bin/PROGRAM` with its libraries beside `bin`.
    let prefix = resolved.parent().filter(|directory| directory.ends_with("bin")).and_then(Path::parent);
    let is_shown = is_system(&resolved);
    // A virtual environment is one directory that references others, the installation among them.
    if let Some(environment) = python::environment(&real) {
        return Some(Found::new(real.clone(), environment_needs(environment, &real, origin)));
    }
    let needs = match prefix {
        // Code cannot write to system directories, so their links are the operator's.
        Some(prefix) if is_shown => {
            settings(prefix).into_iter().map(|path| Need::new(path, Origin::Operator)).collect()
        }
        None if is_shown => Vec::new(),
        Some(prefix) if is_dedicated(prefix) => vec![Need::new(prefix, around(behind(origin)))],
        _ => {
            let installation = python::installation_of(&resolved).into_iter();
            let mut needs: Vec<Need> =
                installation.map(|path| Need::new(path, around(behind(origin)))).collect();
            needs.push(Need::new(&resolved, behind(origin)));
            needs
        }
    };
    let is_kept = is_shown && is_system(candidate);
    Some(Found::new(if is_kept { candidate.to_owned() } else { resolved }, needs))
}

/// The directories in `/etc` with an installation's settings, to which its links `conf` and `lib` point, as
/// in Java packages. Not for `/usr` itself.
fn settings(prefix: &Path) -> Vec<PathBuf> {
    const MAX_ENTRIES: usize = 256;
    if ["/usr", "/usr/local", "/"].iter().any(|system| prefix == Path::new(system)) {
        return Vec::new();
    }
    let mut directories: Vec<PathBuf> = ["conf", "lib"]
        .into_iter()
        .filter_map(|directory| prefix.join(directory).read_dir().ok())
        .flat_map(|entries| entries.take(MAX_ENTRIES).flatten())
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|target| {
            let inner = target.strip_prefix("/etc").ok()?.components().next()?;
            let inner = matches!(inner, std::path::Component::Normal(_)).then_some(inner)?;
            let directory = Path::new("/etc").join(inner);
            directory.is_dir().then_some(directory)
        })
        .collect();
    directories.sort();
    directories.dedup();
    directories
}

/// Finds `npm`.
pub(super) fn package_manager(search: Option<&OsStr>, reach: &Reach) -> Result<Found, Error> {
    let searched = search.unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    directories(searched)
        .map(|directory| (directory.join("npm"), directory))
        .filter(|(candidate, _)| is_executable(candidate))
        .find_map(|(candidate, directory)| script(&candidate, search, reach, reach.origin_in(&directory)))
        .ok_or_else(|| Error::ProgramNotFound {
            program: "npm".into(),
            reason: format!(
                "it is not in {}; install it, for example `apt-get install npm`",
                searched.to_string_lossy()
            ),
        })
}

/// A script of a Node.js package, run by `node` itself: its first line would search for `node` inside.
fn script(candidate: &Path, search: Option<&OsStr>, reach: &Reach, origin: Origin) -> Option<Found> {
    let real = candidate.canonicalize().ok()?;
    let mut start = [0u8; 64];
    let length =
        std::fs::File::open(&real).and_then(|mut file| std::io::Read::read(&mut file, &mut start)).ok()?;
    let line = start[..length].split(|byte| *byte == b'\n').next()?;
    if !line.starts_with(b"#!") || !line.ends_with(b"node") {
        return None;
    }
    let is_shown = is_system(&real);
    let packages = real.ancestors().filter(|directory| directory.ends_with("node_modules")).last();
    if !is_shown && packages.is_none() {
        return None;
    }
    if reach.as_other_user && !is_open_to_everyone(&real) {
        return None;
    }
    let searched = search.unwrap_or(OsStr::new(SYSTEM_SEARCH_PATH));
    let mut node = directories(searched)
        .map(|directory| (directory.join("node"), directory))
        .filter(|(node, _)| is_executable(node))
        .find_map(|(node, directory)| installed(&node, reach, reach.origin_in(&directory)))?;
    node.needs.extend(packages.filter(|_| !is_shown).map(|path| Need::new(path, around(behind(origin)))));
    node.first = vec![real.into_os_string()];
    Some(node)
}

/// Whether a file is a version manager's launcher.
fn is_launcher(candidate: &Path) -> bool {
    if is_rustup(candidate) {
        return true;
    }
    let shims = candidate.parent().filter(|directory| directory.ends_with("shims"));
    shims.and_then(Path::parent).is_some_and(|root| root.join("versions").is_dir()) && !is_elf(candidate)
}

/// Finds the default installation of a version manager beside its launcher script, which is not run. None if
/// unclear.
pub(super) fn behind_launcher(candidate: &Path) -> Option<PathBuf> {
    if is_rustup(candidate) {
        return behind_rustup(candidate);
    }
    if is_elf(candidate) {
        return Some(candidate.to_owned());
    }
    let shims = candidate.parent().filter(|directory| directory.ends_with("shims"))?;
    let root = shims.parent()?;
    let chosen = std::fs::read_to_string(root.join("version")).ok()?;
    chosen
        .split_whitespace()
        .filter(|version| !version.contains('/') && *version != "..")
        .map(|version| {
            root.join("versions").join(version).join("bin").join(candidate.file_name().unwrap_or_default())
        })
        .find(|program| is_executable(program))
}

/// Whether a file is rustup: all of its programs are one file under several names.
fn is_rustup(candidate: &Path) -> bool {
    let real = candidate.canonicalize().unwrap_or_default();
    real.file_name() == Some(OsStr::new("rustup")) && candidate.file_name() != real.file_name()
}

/// The toolchain in rustup's settings file, which is in its directory.
fn behind_rustup(candidate: &Path) -> Option<PathBuf> {
    const MAX_BYTES: u64 = 64 << 10;
    let real = candidate.canonicalize().ok()?;
    let home = real.parent()?.parent()?.parent()?;
    ["rustup", ".rustup"].into_iter().map(|name| home.join(name)).find_map(|root| {
        let file = std::fs::File::open(root.join("settings.toml")).ok()?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::Read::take(file, MAX_BYTES), &mut text).ok()?;
        let line = text.lines().find_map(|line| line.trim().strip_prefix("default_toolchain"))?;
        let name = line.trim().strip_prefix('=')?.trim().trim_matches(['"', '\'']);
        if name.is_empty() || name.contains('/') || name == ".." {
            return None;
        }
        let program = root.join("toolchains").join(name).join("bin").join(candidate.file_name()?);
        (is_executable(&program) && is_elf(&program)).then_some(program)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn everywhere() -> Reach {
        Reach {
            with_package: false,
            as_other_user: false,
            is_confined: true,
            workspaces: Workspaces::default(),
        }
    }

    fn paths(needs: &[Need]) -> Vec<&Path> {
        needs.iter().map(Need::path).collect()
    }

    fn executable(path: &Path, content: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_launcher_script_is_resolved_without_running_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o700)).unwrap();
        executable(&root.join("shims/python3"), b"#!/bin/sh\nexit 1\n");
        executable(&root.join("versions/3.11.7/bin/python3"), b"\x7fELF");
        std::fs::write(root.join("version"), "3.11.7\n").unwrap();
        let search = root.join("shims").into_os_string();
        let (found, _) = interpreter(Language::Python, Some(&search), &everywhere(), &|_, _| true).unwrap();
        assert_eq!(found.path, root.join("versions/3.11.7/bin/python3"));
        assert_eq!(paths(&found.needs), [root.join("versions/3.11.7")]);
        let by_name = program(OsStr::new("python3"), Some(&search), &everywhere(), Origin::Operator).unwrap();
        assert_eq!((by_name.path, by_name.needs), (found.path, found.needs));
        // The installation must be unambiguous; otherwise the next directory is searched.
        executable(&root.join("shims/ls"), b"#!/bin/sh\nexit 127\n");
        let then = OsString::from(format!("{}:/usr/bin:/bin", root.join("shims").display()));
        let ls = program(OsStr::new("ls"), Some(&then), &everywhere(), Origin::Operator).unwrap();
        assert!(!ls.path.starts_with(&root), "{ls:?}");
        let stranger = Reach { as_other_user: true, ..everywhere() };
        assert!(program(OsStr::new("python3"), Some(&search), &stranger, Origin::Operator).is_err());
        assert!(
            interpreter(Language::Python, Some(&search), &stranger, &|_, _| true).is_err(),
            "the directory is private"
        );
    }

    #[test]
    fn rustup_is_resolved_by_its_settings_without_running_it() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        executable(&root.join(".cargo/bin/rustup"), b"\x7fELF");
        std::os::unix::fs::symlink("rustup", root.join(".cargo/bin/rustc")).unwrap();
        executable(&root.join(".rustup/toolchains/stable-x/bin/rustc"), b"\x7fELF");
        let search = root.join(".cargo/bin").into_os_string();
        let find = || interpreter(Language::Rust, Some(&search), &everywhere(), &|_, _| true);
        for (text, is_found) in [
            ("version = \"12\"\ndefault_toolchain = \"stable-x\"\n", true),
            ("default_toolchain = \"../stable-x\"\n", false),
            ("default_toolchain = \"other\"\n", false),
        ] {
            std::fs::write(root.join(".rustup/settings.toml"), text).unwrap();
            let path = find().map(|(found, _)| found.path);
            let expected = root.join(".rustup/toolchains/stable-x/bin/rustc");
            assert_eq!(path.ok(), is_found.then_some(expected), "{text}");
        }
    }

    #[test]
    fn a_script_of_a_package_is_run_by_node_and_shown_with_its_packages() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        executable(&root.join("node_modules/typescript/bin/tsc"), b"#!/usr/bin/env node\n");
        executable(&root.join("runtime/bin/node"), b"\x7fELF");
        std::fs::create_dir_all(root.join("node_modules/.bin")).unwrap();
        std::os::unix::fs::symlink("../typescript/bin/tsc", root.join("node_modules/.bin/tsc")).unwrap();
        let search = format!("{0}/node_modules/.bin:{0}/runtime/bin", root.display());
        // The runtime is too old to run the code itself.
        let (found, runner) =
            interpreter(Language::TypeScript, Some(OsStr::new(&search)), &everywhere(), &|_, runner| {
                runner.program == "tsc"
            })
            .unwrap();
        assert_eq!(runner.program, "tsc");
        assert_eq!(found.path, root.join("runtime/bin/node"));
        assert_eq!(found.first, [root.join("node_modules/typescript/bin/tsc")]);
        assert_eq!(paths(&found.needs), [root.join("runtime"), root.join("node_modules")]);
    }

    #[test]
    fn a_missing_interpreter_says_where_and_how() {
        let error =
            interpreter(Language::Bash, Some(OsStr::new("/nowhere:relative")), &everywhere(), &|_, _| true)
                .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere") && text.contains("apt-get install"), "{text}");
    }

    #[test]
    fn a_package_is_a_directory_beneath_opt() {
        for (path, expected) in [
            ("/opt/tool/bin/run", Some("/opt/tool")),
            ("/opt/vendor/product/1.2/run", Some("/opt/vendor")),
            ("/opt/run", None),
            ("/opt", None),
            ("/optional/tool/run", None),
            ("/usr/opt/tool/run", None),
        ] {
            assert_eq!(package(Path::new(path)).as_deref(), expected.map(Path::new), "{path}");
        }
    }

    #[test]
    fn programs_are_found_by_name_and_by_path() {
        let found = program(OsStr::new("ls"), None, &everywhere(), Origin::Operator).unwrap();
        assert!(found.path.ends_with("ls") && found.needs.is_empty());
        assert!(program(OsStr::new("no-such-program-here"), None, &everywhere(), Origin::Operator).is_err());
        let error = program(OsStr::new("/etc/passwd"), None, &everywhere(), Origin::Operator).unwrap_err();
        assert_eq!(error.to_string(), "program `/etc/passwd` is not executable");
        assert!(error.hint().unwrap().to_string().contains("`chmod +x /etc/passwd`"), "{error:?}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap().join("tool");
        executable(&path, b"#!/bin/sh\n");
        assert_eq!(
            paths(&program(path.as_os_str(), None, &everywhere(), Origin::Operator).unwrap().needs),
            [&path]
        );
    }
}
