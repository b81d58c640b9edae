//! The static binaries, and what is checked of them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Target;
use crate::Result;
use crate::command::Task;
use crate::workspace::Workspace;

/// The maximum size of a binary in bytes.
const MAX_SIZE: usize = 30_000_000;

/// A command of Cargo for another platform, with zig as C compiler and linker.
pub fn zigbuild(root: &Path, arguments: &[&str]) -> Task {
    let bin = root.join(".dev/python-env/bin");
    let path = format!("{}:{}", bin.display(), env::var("PATH").unwrap_or_default());
    let program = bin.join("cargo-zigbuild").display().to_string();
    Task::new(&program, arguments).directory(root).variable("PATH", &path)
}

/// Builds the static binary of a platform in the profile `release`.
pub fn binary(workspace: &Workspace, target: Target) -> Result<PathBuf> {
    let root = &workspace.root;
    let prefixes = [(root.clone(), "/toolpost"), (cargo_home()?.join("registry/src"), "/registry")];
    // Panic messages and assertions in C name their file.
    let flags = |option: &str, separator: &str| {
        let flags = prefixes.iter().map(|(from, to)| format!("{option}={}={to}", from.display()));
        flags.collect::<Vec<_>>().join(separator)
    };
    let mut command = zigbuild(root, &["zigbuild", "--locked", "--release", "--target", &target.triple()])
        .argument("--package=toolpost-cli")
        .argument("--bin=toolpost")
        .variable("CARGO_ENCODED_RUSTFLAGS", &flags("--remap-path-prefix", "\u{1f}"))
        .variable("CFLAGS", &flags("-ffile-prefix-map", " "))
        .limit(Duration::from_hours(1));
    // `toolpost --version --json` prints it. A checkout without Git has none.
    let head = Task::new("git", &["rev-parse", "HEAD"]).directory(root).capture()?;
    if head.success {
        command = command.variable("TOOLPOST_COMMIT", head.text.trim());
    }
    if !command.show()? {
        return Err(format!("`{}` failed", command.line()));
    }
    Ok(workspace.target.join(target.triple()).join("release/toolpost"))
}

fn cargo_home() -> Result<PathBuf> {
    let set = env::var("CARGO_HOME").map(PathBuf::from);
    set.or_else(|_| env::var("HOME").map(|home| Path::new(&home).join(".cargo")))
        .map_err(|_| "HOME is not set; set it".to_owned())
}

/// Fails if the binary is too large, loads libraries, or has a path of the machine that built it.
pub fn check(binary: &Path, root: &Path) -> Result<()> {
    let bytes = fs::read(binary).map_err(|error| format!("cannot read {}: {error}", binary.display()))?;
    let name = binary.display();
    if bytes.len() > MAX_SIZE {
        return Err(format!("{name} has {} bytes; the maximum is {MAX_SIZE}", bytes.len()));
    }
    if has_interpreter(&bytes).ok_or_else(|| format!("{name} is not a 64-bit ELF file"))? {
        return Err(format!("{name} is not static"));
    }
    let home = cargo_home()?;
    for path in [root, &home] {
        let path = path.display().to_string();
        if bytes.windows(path.len()).any(|window| window == path.as_bytes()) {
            return Err(format!("{name} has the path {path}"));
        }
    }
    Ok(())
}

/// Whether a 64-bit little-endian ELF file names a program that loads its libraries.
fn has_interpreter(bytes: &[u8]) -> Option<bool> {
    const INTERPRETER: u64 = 3;
    let number = |at: usize, size: usize| {
        let bytes = bytes.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (headers, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let types: Option<Vec<u64>> =
        (0..count).map(|index| number(usize::try_from(headers + index * size).ok()?, 4)).collect();
    Some(types?.contains(&INTERPRETER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_loads_libraries_is_found() {
        let own = env::current_exe().unwrap();
        assert_eq!(has_interpreter(&fs::read(own).unwrap()), Some(true));
        assert_eq!(has_interpreter(b"#!/bin/sh\n"), None);
    }
}
