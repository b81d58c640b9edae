//! Languages of programs, by the name of the interpreter, the extension, and the first bytes.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use toolpost_sandbox::Loader;

use crate::regular_file;

/// The kernel reads at most this many bytes of a script.
const MAX_LINE: u64 = 256;

/// The maximum number of bytes of a native program that are searched for paths of libraries.
const MAX_PROGRAM: u64 = 8 << 20;

/// Interpreters and programs that load modules of their working directory, without the digits of a version.
const INTERPRETERS: [(&str, Loader); 50] = [
    ("python", Loader::Python),
    ("pypy", Loader::Python),
    ("ipython", Loader::Python),
    ("uvicorn", Loader::Python),
    ("gunicorn", Loader::Python),
    ("hypercorn", Loader::Python),
    ("flask", Loader::Python),
    ("fastapi", Loader::Python),
    ("fastmcp", Loader::Python),
    ("mcp", Loader::Python),
    ("celery", Loader::Python),
    ("pytest", Loader::Python),
    ("streamlit", Loader::Python),
    ("node", Loader::Node),
    ("nodejs", Loader::Node),
    ("deno", Loader::Node),
    ("bun", Loader::Node),
    ("tsx", Loader::Node),
    ("ts-node", Loader::Node),
    ("ruby", Loader::Ruby),
    ("jruby", Loader::Ruby),
    ("irb", Loader::Ruby),
    ("rake", Loader::Ruby),
    ("bundle", Loader::Ruby),
    ("rackup", Loader::Ruby),
    ("perl", Loader::Perl),
    ("plackup", Loader::Perl),
    ("php", Loader::Php),
    ("java", Loader::Java),
    ("jshell", Loader::Java),
    ("kotlin", Loader::Java),
    ("scala", Loader::Java),
    ("groovy", Loader::Java),
    ("sh", Loader::Shell),
    ("bash", Loader::Shell),
    ("dash", Loader::Shell),
    ("ash", Loader::Shell),
    ("zsh", Loader::Shell),
    ("ksh", Loader::Shell),
    ("mksh", Loader::Shell),
    ("fish", Loader::Shell),
    ("busybox", Loader::Shell),
    ("pwsh", Loader::Shell),
    ("lua", Loader::Native),
    ("luajit", Loader::Native),
    ("guile", Loader::Native),
    ("tclsh", Loader::Native),
    ("Rscript", Loader::Native),
    ("julia", Loader::Native),
    ("elixir", Loader::Native),
];

/// Programs that start what files of their working directory name.
const RUNNERS: [&str; 31] = [
    "make", "gmake", "just", "task", "npm", "pnpm", "yarn", "bunx", "corepack", "cargo", "go", "gradle",
    "gradlew", "mvn", "mvnw", "ant", "dotnet", "tox", "nox", "hatch", "pdm", "pipenv", "rye", "pixi",
    "poetry", "composer", "mix", "lein", "sbt", "stack", "mise",
];

/// The language that an interpreter runs.
pub(super) fn of_interpreter(name: &str) -> Option<Loader> {
    let plain = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    INTERPRETERS.iter().find(|(known, _)| *known == plain).map(|(_, loader)| *loader)
}

/// Whether a program starts what files of its working directory name.
pub(super) fn is_runner(name: &str) -> bool {
    RUNNERS.contains(&name)
}

/// The language of a source file, by its extension.
pub(super) fn of_extension(path: &Path) -> Option<Loader> {
    Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "py" | "pyc" | "pyz" | "pyw" => Loader::Python,
        "js" | "cjs" | "mjs" | "ts" | "cts" | "mts" | "jsx" | "tsx" => Loader::Node,
        "rb" | "ru" | "rake" => Loader::Ruby,
        "pl" | "pm" | "t" | "psgi" => Loader::Perl,
        "php" | "phtml" | "phar" => Loader::Php,
        "jar" | "java" | "class" | "war" | "kts" | "groovy" => Loader::Java,
        "sh" | "bash" | "zsh" | "ksh" | "fish" => Loader::Shell,
        "so" | "lua" | "r" | "jl" | "exs" => Loader::Native,
        _ => return None,
    })
}

/// The language of a program and the words of its first line. `None` if the file is missing.
pub(super) fn of_program(path: &Path) -> Option<(Loader, Vec<String>)> {
    let mut start = Vec::new();
    regular_file::open(path).ok()?.take(MAX_LINE).read_to_end(&mut start).ok()?;
    if start.starts_with(b"\x7fELF") {
        return Some((Loader::Native, Vec::new()));
    }
    let line = start.strip_prefix(b"#!").and_then(|rest| rest.split(|byte| *byte == b'\n').next());
    let line = line.map(String::from_utf8_lossy).unwrap_or_default();
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let named = words.iter().find_map(|word| of_interpreter(word.rsplit('/').next().unwrap_or(word)));
    Some((of_extension(path).or(named).unwrap_or(Loader::Any), words))
}

/// The directories of libraries that a native program names relative to its own: `$ORIGIN/../lib`.
pub(super) fn library_directories(program: &Path) -> Vec<PathBuf> {
    let mut content = Vec::new();
    let read = regular_file::open(program).and_then(|file| file.take(MAX_PROGRAM).read_to_end(&mut content));
    let (Ok(_), Some(own)) = (read, program.parent()) else { return Vec::new() };
    // The table of strings of a program separates them by NUL.
    let texts =
        content.split(|byte| *byte == 0).filter(|text| text.first() == Some(&b'$') || text.contains(&b':'));
    let paths = texts.filter_map(|text| std::str::from_utf8(text).ok()).flat_map(|text| text.split(':'));
    let beneath = |path: &str| {
        let rest = path.strip_prefix("$ORIGIN").or_else(|| path.strip_prefix("${ORIGIN}"))?;
        let mut directory = own.to_owned();
        for part in rest.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if part == ".." {
                directory.pop();
            } else {
                directory.push(part);
            }
        }
        Some(directory)
    };
    paths.filter_map(beneath).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_of_a_program_is_detected() {
        let directory = tempfile::tempdir().unwrap();
        for (name, content, expected) in [
            ("a.py", "", Loader::Python),
            ("a", "#!/usr/bin/env python3\n", Loader::Python),
            ("b", "#!/usr/bin/env -S -i X=1 python3.12 -u\n", Loader::Python),
            ("c", "#!/opt/x/bin/node\n", Loader::Node),
            ("d", "#!/bin/sh -e\n", Loader::Shell),
            ("e", "\x7fELF", Loader::Native),
            ("f", "#!/opt/own/interpreter\n", Loader::Any),
            ("g", "text", Loader::Any),
        ] {
            let path = directory.path().join(name);
            std::fs::write(&path, content).unwrap();
            assert_eq!(of_program(&path).unwrap().0, expected, "{name}");
        }
        let native = directory.path().join("bin/e");
        std::fs::create_dir(directory.path().join("bin")).unwrap();
        std::fs::write(&native, b"\x7fELF\0a\0/usr/lib:$ORIGIN/../deps/./x:${ORIGIN}\0b\0$HOME\0").unwrap();
        assert_eq!(library_directories(&native), ["deps/x", "bin"].map(|path| directory.path().join(path)));
        assert_eq!(of_program(&directory.path().join("missing")), None);
        assert_eq!(of_interpreter("php8.2"), Some(Loader::Php));
        assert_eq!(of_interpreter("git"), None);
    }
}
