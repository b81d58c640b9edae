//! Path parameters: their values stay beneath the working directory.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use toolpost_core::{Args, ToolError, escape_pointer};

use super::parameter::Parameter;
use super::template::Template;

/// Maximum number of symbolic links followed in a path, the same as the kernel's.
const MAX_LINKS: usize = 40;
/// Maximum length of a quoted path, in characters.
const MAX_QUOTE: usize = 120;

/// Rejects a path that leads out of the working directory. Without one, paths are relative to an empty directory.
///
/// `start` is the directory beneath it in which the program starts; its own parameters are relative to the working
/// directory. Links are followed in their current state; against later changes, the sandbox confines the program.
pub(super) fn check(
    parameters: &[Parameter],
    args: &Args,
    directory: Option<&Path>,
    start: Option<&Template>,
) -> Result<(), ToolError> {
    let paths: Vec<&Parameter> = parameters.iter().filter(|parameter| parameter.is_path).collect();
    if paths.is_empty() {
        return Ok(());
    }
    let root = directory.map(Path::canonicalize).transpose().map_err(|error| {
        let shown = directory.unwrap_or(Path::new(".")).display();
        ToolError::precondition(format!("the working directory `{shown}` cannot be opened: {error}"))
            .suggest("Create the directory, or name another one.")
    })?;
    let is_of_start = |parameter: &Parameter| {
        start.is_some_and(|start| start.parameters().any(|name| name == parameter.name))
    };
    for parameter in paths.iter().filter(|parameter| is_of_start(parameter)) {
        check_value(parameter, args, root.as_deref(), Path::new(""))?;
    }
    let within =
        start.and_then(|start| start.expand(parameters, args).into_iter().next()).unwrap_or_default();
    for parameter in paths {
        check_value(parameter, args, root.as_deref(), Path::new(&within))?;
    }
    Ok(())
}

/// Checks the paths of one parameter, relative to a base beneath the root.
fn check_value(
    parameter: &Parameter,
    args: &Args,
    root: Option<&Path>,
    base: &Path,
) -> Result<(), ToolError> {
    let pointer = format!("/{}", escape_pointer(&parameter.name));
    match parameter.value(args).as_deref() {
        Some(Value::String(path)) => check_path(path, &pointer, parameter, root, base),
        Some(Value::Array(items)) => items.iter().enumerate().try_for_each(|(index, item)| match item {
            Value::String(path) => check_path(path, &format!("{pointer}/{index}"), parameter, root, base),
            _ => Ok(()),
        }),
        _ => Ok(()),
    }
}

fn check_path(
    given: &str,
    pointer: &str,
    parameter: &Parameter,
    root: Option<&Path>,
    base: &Path,
) -> Result<(), ToolError> {
    let is_absolute = given.starts_with('/');
    let reason = match beneath(Path::new(given), root) {
        None => String::new(),
        Some(path) => {
            let path = if is_absolute { path } else { base.join(path) };
            match root.map_or(Ok(true), |root| stays_beneath(root, &path)) {
                Ok(true) => return Ok(()),
                Ok(false) => ", where a symbolic link leads out".to_owned(),
                Err(error) => format!(", where a symbolic link cannot be followed: {error}"),
            }
        }
    };
    let found = if parameter.is_sensitive { "[secret]".to_owned() } else { quote(given) };
    Err(ToolError::invalid_path(format!(
        "{pointer}: expected a path beneath the working directory, found `{found}`{reason}"
    ))
    .with("pointer", pointer)
    .suggest("Use a path relative to the working directory, without `..`."))
}

/// The path relative to the root; `None` if it is outside or has a part `..`.
fn beneath(given: &Path, root: Option<&Path>) -> Option<PathBuf> {
    let path = if given.is_absolute() { given.strip_prefix(root?).ok()? } else { given };
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    is_plain.then(|| path.to_owned())
}

/// Whether a relative path stays beneath a canonical root after following its links. A missing part counts as a
/// directory, so that a later link through it cannot lead out either.
fn stays_beneath(root: &Path, path: &Path) -> io::Result<bool> {
    let parts = |path: &Path| -> Vec<OsString> {
        path.components()
            .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
            .map(|part| part.as_os_str().to_owned())
            .rev()
            .collect()
    };
    let mut left = parts(path);
    let mut here = root.to_owned();
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            if here == root {
                return Ok(false);
            }
            here.pop();
            continue;
        }
        let next = here.join(part);
        let is_link = match next.symlink_metadata() {
            Ok(metadata) => metadata.is_symlink(),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                false
            }
            Err(error) => return Err(error),
        };
        if !is_link {
            here = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::other("there are too many"));
        }
        let target = next.read_link()?;
        if target.is_absolute() {
            let Ok(inner) = target.strip_prefix(root) else { return Ok(false) };
            root.clone_into(&mut here);
            left.extend(parts(inner));
        } else {
            left.extend(parts(&target));
        }
    }
    Ok(true)
}

/// A path for an error: escaped and truncated.
fn quote(path: &str) -> String {
    let mut short: String = path.chars().take(MAX_QUOTE).flat_map(char::escape_debug).collect();
    if path.chars().nth(MAX_QUOTE).is_some() {
        short.push('…');
    }
    short
}
