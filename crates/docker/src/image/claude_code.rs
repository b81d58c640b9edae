//! The image with Claude Code: the native program of its npm package, and its libraries.

use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha512};

use super::{Commands, file};
use crate::error::DockerError;

/// The version of Claude Code in the image.
pub const CLAUDE_CODE_VERSION: &str = "2.1.330";
/// The path of the program in the image.
pub const CLAUDE_CODE_PROGRAM: &str = "/usr/local/bin/claude";

const PACKAGE: &str = "@anthropic-ai/claude-code-linux-x64";
/// The archive name of `npm pack`, before the version.
const ARCHIVE: &str = "anthropic-ai-claude-code-linux-x64";
/// The SHA-512 of the package, as published by the registry.
const DIGEST: &str = "f469fe57b0ed27c3359f3b4ff42783565f60dd1b6b7a923bace153c8f4519d97\
                      bc0facde6c81ca982ecebc16aeb9cb803f45f493ce520cdfcb3d56728ec19ecd";
/// The dynamic loader, which lists a program's libraries.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
/// The shell for Claude Code's command tool, if this machine has it; it supports only this and `zsh`.
const SHELL: &str = "/bin/bash";
/// The maximum number of libraries.
const MAX_LIBRARIES: usize = 64;

/// Adds the program and its libraries to a root with a shell.
pub(super) fn fill(
    root: &Path,
    commands: &Commands<'_>,
    progress: &mut dyn FnMut(&str),
) -> Result<(), DockerError> {
    if std::env::consts::ARCH != "x86_64" || !Path::new(LOADER).is_file() {
        return Err(DockerError::Unsupported {
            what: "the recipe `claude-code`".into(),
            reason: format!("its libraries need an x86-64 machine with glibc (`{LOADER}`)"),
        });
    }
    progress(&format!("fetching Claude Code {CLAUDE_CODE_VERSION} with `npm`"));
    // Beside the root, in the same temporary directory.
    let place = root.parent().unwrap_or(root);
    let text = |path: &Path| path.display().to_string();
    commands.run(
        "npm",
        &[
            "pack".into(),
            "--silent".into(),
            "--cache".into(),
            text(&place.join("cache")),
            "--pack-destination".into(),
            text(place),
            format!("{PACKAGE}@{CLAUDE_CODE_VERSION}"),
        ],
    )?;
    let archive = place.join(format!("{ARCHIVE}-{CLAUDE_CODE_VERSION}.tgz"));
    check(&archive)?;
    let directory = place.join("unpacked");
    make(&directory)?;
    commands.run(
        "tar",
        &["-xzf".into(), text(&archive), "-C".into(), text(&directory), "--no-same-owner".into()],
    )?;
    let program = directory.join("package/claude");
    let target = root.join(CLAUDE_CODE_PROGRAM.trim_start_matches('/'));
    make(target.parent().unwrap_or(root))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
        .and_then(|()| std::fs::rename(&program, &target))
        .map_err(|source| file("unpack", &program, source))?;
    progress("adding the shell and libraries");
    let shell = Path::new(SHELL);
    if shell.is_file() {
        copy(shell, root)?;
    }
    for program in [target.as_path(), shell].into_iter().filter(|program| program.is_file()) {
        // The loader only maps the program and runs nothing of it.
        let list = commands.run(LOADER, &["--list".into(), text(program)])?;
        libraries(&list)?.iter().try_for_each(|library| copy(library, root))?;
    }
    Ok(())
}

/// Copies a file of this machine to the same path in the root.
fn copy(from: &Path, root: &Path) -> Result<(), DockerError> {
    let target = root.join(from.strip_prefix("/").unwrap_or(from));
    make(target.parent().unwrap_or(root))?;
    // Otherwise the copy would follow a busybox link and overwrite the busybox.
    let _ = std::fs::remove_file(&target);
    std::fs::copy(from, &target).map(drop).map_err(|source| file("copy", from, source))
}

fn make(directory: &Path) -> Result<(), DockerError> {
    std::fs::create_dir_all(directory).map_err(|source| file("create directory", directory, source))
}

/// Verifies the archive's digest.
fn check(archive: &Path) -> Result<(), DockerError> {
    let fail = |source| file("read", archive, source);
    let mut content = std::fs::File::open(archive).map_err(fail)?;
    let mut hash = Sha512::new();
    let mut block = vec![0u8; 1 << 20];
    loop {
        match content.read(&mut block).map_err(fail)? {
            0 => break,
            size => hash.update(block.get(..size).unwrap_or_default()),
        }
    }
    let found = crate::hex(&hash.finalize());
    if found == DIGEST {
        return Ok(());
    }
    let reason = format!("its SHA-512 is {found}, expected {DIGEST}; another package was delivered");
    Err(fail(io::Error::other(reason)))
}

/// Parses the loader's list, the loader included: `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`.
fn libraries(list: &str) -> Result<Vec<PathBuf>, DockerError> {
    let mut paths = Vec::new();
    for line in list.lines() {
        let named = line.split_once("=>").map_or(line, |(_, path)| path);
        let path = named.split(" (").next().unwrap_or_default().trim();
        if line.contains("not found") {
            let what = format!("a library of Claude Code: `{}`", line.trim());
            return Err(DockerError::Unsupported { what, reason: "this machine lacks it".into() });
        }
        if path.starts_with('/') && paths.len() < MAX_LIBRARIES {
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_parsed_from_the_loader() {
        let list =
            "\tlinux-vdso.so.1 (0x00007f)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x01)\n\t/lib64/ld.so.2 (0x02)\n";
        let paths: Vec<PathBuf> = ["/lib/x/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from).into();
        assert_eq!(libraries(list).unwrap(), paths);
        assert!(libraries("\tlibx.so => not found\n").is_err());
    }

    #[test]
    fn another_archive_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("a.tgz");
        std::fs::write(&archive, "other").unwrap();
        assert!(check(&archive).unwrap_err().to_string().contains("expected f469fe57"));
    }
}
