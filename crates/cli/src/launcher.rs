//! Launchers of Python projects: `uv run`, `poetry run` and pyenv's shims.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::env;
use crate::failure::Failure;
use crate::regular_file;

/// The maximum size of a `.python-version` file, in bytes.
const MAX_VERSION: u64 = 4 << 10;
/// Options of `uv run` without a value that an existing environment does not need.
const UV_FLAGS: [&str; 8] =
    ["--no-sync", "--frozen", "--locked", "--offline", "--quiet", "-q", "--no-dev", "--active"];

/// Resolves `uv run` and `poetry run` to the program of the project's environment; other commands stay.
///
/// # Errors
/// The project has no environment, or an option would install something.
pub(crate) fn resolve(command: Vec<OsString>, directory: &Path) -> Result<Vec<OsString>, Failure> {
    let words: Vec<&str> = command.iter().map_while(|word| word.to_str()).collect();
    if words.len() != command.len() {
        return Ok(command);
    }
    let launcher = Path::new(words.first().copied().unwrap_or_default()).file_name();
    match (launcher.and_then(OsStr::to_str), words.as_slice()) {
        (Some("uv"), [_, "run", rest @ ..]) => uv(rest, directory),
        (Some("poetry"), [_, "run", rest @ ..]) => {
            let environment = poetry_environment(directory).ok_or_else(|| {
                missing("poetry run", directory, "Run `poetry install` in the project first.")
            })?;
            within(&environment, rest, "poetry run")
        }
        _ => Ok(command),
    }
}

fn uv(words: &[&str], directory: &Path) -> Result<Vec<OsString>, Failure> {
    let mut rest = words;
    let mut directory = directory.to_owned();
    let mut is_module = false;
    while let [option, others @ ..] = rest
        && option.starts_with('-')
    {
        rest = match (*option, others) {
            ("--", others) => {
                rest = others;
                break;
            }
            ("--project" | "--directory", [project, others @ ..]) => {
                directory = directory.join(project);
                others
            }
            ("-m" | "--module", others) => {
                is_module = true;
                rest = others;
                break;
            }
            (flag, others) if UV_FLAGS.contains(&flag) => others,
            (other, _) => {
                return Err(Failure::usage(format!("unsupported: `uv run {other}`")).hint(
                    "Prepare the environment with `uv sync`, then name its program: `.venv/bin/python`.",
                ));
            }
        };
    }
    let named = env::get_os("UV_PROJECT_ENVIRONMENT").map(|path| directory.join(path));
    let environment = named
        .filter(|path| is_environment(path))
        .or_else(|| project_environment(&directory))
        .ok_or_else(|| missing("uv run", &directory, "Run `uv sync` in the project first."))?;
    let module = [&["python", "-m"][..], rest].concat();
    within(&environment, if is_module { &module } else { rest }, "uv run")
}

fn missing(launcher: &str, directory: &Path, hint: &str) -> Failure {
    Failure::usage(format!("`{launcher}` has no environment for `{}`", directory.display())).hint(hint)
}

fn is_environment(directory: &Path) -> bool {
    directory.join("pyvenv.cfg").is_file()
}

/// The `.venv` of the project of a directory.
fn project_environment(directory: &Path) -> Option<PathBuf> {
    let environments = directory.ancestors().map(|directory| directory.join(".venv"));
    environments.into_iter().find(|environment| is_environment(environment))
}

/// Poetry's environment: the active one, the project's, else the one named for the directory.
fn poetry_environment(directory: &Path) -> Option<PathBuf> {
    let active = env::get_os("VIRTUAL_ENV").map(PathBuf::from).filter(|path| is_environment(path));
    active.or_else(|| project_environment(directory)).or_else(|| {
        let project = directory.ancestors().find(|directory| directory.join("pyproject.toml").is_file())?;
        let caches = env::get_os("XDG_CACHE_HOME").map(PathBuf::from);
        let caches = caches.or_else(|| Some(PathBuf::from(env::get_os("HOME")?).join(".cache")))?;
        let all = env::get_os("POETRY_VIRTUALENVS_PATH").map(PathBuf::from);
        of_directory(&all.unwrap_or_else(|| caches.join("pypoetry/virtualenvs")), project)
    })
}

/// The environment of Poetry that is named `NAME-HASH-pyVERSION` for a directory.
fn of_directory(environments: &Path, project: &Path) -> Option<PathBuf> {
    let project = project.canonicalize().ok()?;
    let part = format!("-{}-py", hash(project.as_os_str().as_encoded_bytes()));
    let mut found: Vec<PathBuf> = environments
        .read_dir()
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().contains(&part))
        .map(|entry| entry.path())
        .filter(|path| is_environment(path))
        .collect();
    found.sort();
    found.pop()
}

/// The first eight letters of a SHA-256 in URL-safe Base64.
fn hash(text: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits = Sha256::digest(text).iter().take(6).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
    let letters = (0..8).rev().map(|place| (bits >> (6 * place)) & 63);
    letters.filter_map(|letter| ALPHABET.get(letter as usize)).map(|letter| char::from(*letter)).collect()
}

/// A command in an environment: a program of it, or a script for its interpreter.
fn within(environment: &Path, words: &[&str], launcher: &str) -> Result<Vec<OsString>, Failure> {
    let Some((first, rest)) = words.split_first() else {
        return Err(Failure::usage(format!("`{launcher}` names no command")));
    };
    let programs = environment.join("bin");
    let own = programs.join(first);
    let mut command = Vec::new();
    if Path::new(first).extension().is_some_and(|kind| kind == "py") {
        command.extend([programs.join("python").into(), OsString::from(first)]);
    } else if !first.contains('/') && own.is_file() {
        command.push(own.into());
    } else {
        command.push(first.into());
    }
    command.extend(rest.iter().map(OsString::from));
    Ok(command)
}

/// `PATH`, with the versions of pyenv for this directory before pyenv's shims.
pub(crate) fn search_path() -> Option<OsString> {
    let path = env::get_os("PATH")?;
    let version = env::get("PYENV_VERSION");
    let directory = std::env::current_dir().unwrap_or_default();
    Some(with_versions(&path, version.as_deref(), &directory))
}

fn with_versions(path: &OsStr, version: Option<&str>, directory: &Path) -> OsString {
    let of_file = || {
        let files = directory.ancestors().map(|directory| directory.join(".python-version"));
        regular_file::read_text(&files.into_iter().find(|file| file.is_file())?, MAX_VERSION).ok()
    };
    let entries: Vec<PathBuf> = std::env::split_paths(path).collect();
    let is_shims = |entry: &Path| entry.ends_with("shims") && entry.with_file_name("versions").is_dir();
    if !entries.iter().any(|entry| is_shims(entry)) {
        return path.to_owned();
    }
    let Some(chosen) = version.map(str::to_owned).or_else(of_file) else { return path.to_owned() };
    let mut all = Vec::new();
    for entry in entries {
        if is_shims(&entry) {
            let versions = entry.with_file_name("versions");
            let names = chosen.split([':', '\n', ' ']).map(str::trim);
            all.extend(names.filter_map(|name| installation(&versions, name)));
        }
        all.push(entry);
    }
    std::env::join_paths(all).unwrap_or_else(|_| path.to_owned())
}

/// The programs of a version, which may be a prefix: `3.12` is the latest `3.12.x`.
fn installation(versions: &Path, name: &str) -> Option<PathBuf> {
    if name.is_empty() || name.contains('/') || name == ".." || name == "." {
        return None;
    }
    let programs = |name: &str| Some(versions.join(name).join("bin")).filter(|programs| programs.is_dir());
    programs(name).or_else(|| {
        let patch = |entry: &std::fs::DirEntry| {
            let entry = entry.file_name().into_string().ok()?;
            entry.strip_prefix(name)?.strip_prefix('.')?.parse::<u32>().ok()
        };
        let latest = versions.read_dir().ok()?.flatten().filter_map(|entry| patch(&entry)).max()?;
        programs(&format!("{name}.{latest}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
    }

    #[test]
    fn a_launched_command_is_a_program_of_the_environment() {
        let directory = tempfile::tempdir().unwrap();
        let project = directory.path().join("project");
        for name in [".venv/pyvenv.cfg", ".venv/bin/python", ".venv/bin/pytest", "deep/x", "pyproject.toml"] {
            file(&project.join(name));
        }
        let resolved = |line: &str, directory: &Path| {
            let words = line.split(' ').map(OsString::from).collect();
            let words = resolve(words, directory).map_err(|failure| failure.message)?;
            let root = format!("{}/", project.display());
            let text: Vec<_> = words.iter().map(|word| word.to_string_lossy().replace(&root, "")).collect();
            Ok::<_, String>(text.join(" "))
        };
        let deep = project.join("deep");
        for (line, expected) in [
            ("uv run app.py --x", ".venv/bin/python app.py --x"),
            ("uv run --frozen --no-sync pytest -q", ".venv/bin/pytest -q"),
            ("/opt/bin/uv run -- python app.py", ".venv/bin/python app.py"),
            ("uv run -m http.server", ".venv/bin/python -m http.server"),
            ("uv run ls", "ls"),
            ("poetry run python app.py", ".venv/bin/python app.py"),
            ("uv sync", "uv sync"),
            ("python run app.py", "python run app.py"),
        ] {
            assert_eq!(resolved(line, &deep).as_deref(), Ok(expected), "{line}");
        }
        let moved = format!("uv run --project {} app.py", project.display());
        assert_eq!(resolved(&moved, directory.path()).as_deref(), Ok(".venv/bin/python app.py"));
        for (line, directory, expected) in [
            ("uv run --with rich app.py", deep.as_path(), "unsupported: `uv run --with`"),
            ("uv run app.py", directory.path(), "has no environment"),
            ("poetry run app.py", directory.path(), "has no environment"),
            ("uv run", deep.as_path(), "names no command"),
        ] {
            assert!(resolved(line, directory).unwrap_err().contains(expected), "{line}");
        }
    }

    #[test]
    fn an_environment_of_poetry_is_named_for_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        // From `base64.urlsafe_b64encode(hashlib.sha256(b"/srv/project").digest())[:8]`.
        assert_eq!(hash(b"/srv/project"), "Tz-R9rC0");
        let environment = root.join(format!("all/app-{}-py3.12", hash(root.to_str().unwrap().as_bytes())));
        assert_eq!(of_directory(&root.join("all"), &root), None);
        file(&environment.join("pyvenv.cfg"));
        file(&root.join("all/app-AAAAAAAA-py3.12/pyvenv.cfg"));
        assert_eq!(of_directory(&root.join("all"), &root), Some(environment));
    }

    #[test]
    fn pyenv_takes_the_version_that_a_directory_names() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        for name in ["versions/3.12.9/bin/x", "versions/3.12.10/bin/x", "versions/own/bin/x", "shims/python3"]
        {
            file(&root.join(name));
        }
        file(&root.join("work/deep/x"));
        let path = format!("/bin:{}/shims", root.display());
        let chosen = |version: Option<&str>| {
            let found = with_versions(OsStr::new(&path), version, &root.join("work/deep"));
            found.to_str().unwrap().replace(root.to_str().unwrap(), "R")
        };
        assert_eq!(chosen(None), "/bin:R/shims");
        std::fs::write(root.join("work/.python-version"), "own\n3.12\n").unwrap();
        assert_eq!(chosen(None), "/bin:R/versions/own/bin:R/versions/3.12.10/bin:R/shims");
        assert_eq!(chosen(Some("3.12.9")), "/bin:R/versions/3.12.9/bin:R/shims");
        for none in ["../versions/own", "..", "4.0", ""] {
            assert_eq!(chosen(Some(none)), "/bin:R/shims", "{none}");
        }
        assert_eq!(with_versions(OsStr::new("/bin"), Some("own"), root), "/bin");
    }
}
