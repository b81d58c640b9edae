//! Random names and kinds of files from programs. Artifacts have harmless names, stay in the export
//! directory, and keep their bytes, also as an archive.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use toolpost_sandbox::{Host, Language, Level, Program, Sandbox};

use super::fuzz::{Random, for_a_while};
use crate::support::{quick, run};

/// Pieces of names as Python bytes.
const PIECES: &[&str] = &[
    "a",
    "B",
    "..",
    ".",
    "-",
    " ",
    "CON",
    "nul",
    ".txt",
    "\\xc3\\xa9",
    "e\\xcc\\x81",
    "\\xff\\xfe",
    "\\n",
    "\\r",
    "\\x1b[2J",
    "\\xe2\\x80\\xae",
    "\\xe2\\x80\\x8b",
    "\\\\",
    "%2e",
    "~",
    "$HOME",
    "`id`",
    ":",
    "*",
    "COM1",
    "\\x7f",
    "/",
    "/",
    "x' * 60 + b'y",
];

/// Code that creates a file, with its name as `n`.
const KINDS: &[&str] = &[
    "open(n, 'wb').write(n)",
    "open(n, 'wb').write(b'PK\\x03\\x04' + n)",
    "os.symlink('/etc/passwd', n)",
    "os.symlink('..', n)",
    "os.mkfifo(n)",
    "os.link(b'good', n)",
    "os.makedirs(n)",
    "open(n, 'wb').truncate(1 << 28)",
    "os.chmod(n, 0)",
    "socket.socket(socket.AF_UNIX).bind(n)",
];

/// A program that creates some files; failures are skipped.
fn program(random: &mut Random) -> String {
    let mut code = "import os, socket\nopen('good', 'w').write('good')\n".to_owned();
    for _ in 0..12 {
        let name: String = (0..=random.below(5)).map(|_| random.pick(PIECES)).collect();
        let kind = random.pick(KINDS);
        let _ = write!(
            code,
            "n = b'{name}'\ntry:\n    if os.path.dirname(n) and b'..' not in n and not n.startswith(b'/'): os.makedirs(os.path.dirname(n), exist_ok=True)\n    {kind}\nexcept (OSError, ValueError): pass\n"
        );
    }
    code
}

/// The files beneath a directory, with their content.
fn below(directory: &std::path::Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                waiting.push(entry.path());
                continue;
            }
            assert!(kind.is_file(), "{entry:?}");
            let path = entry.path();
            let name = path.strip_prefix(directory).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, std::fs::read(path).unwrap());
        }
    }
    found
}

#[test]
fn artifacts_are_harmless_and_complete_for_any_name() {
    let available = Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available);
    let level = if available { Level::Strict } else { Level::Standard };
    let sandbox = Sandbox::new().level(level).limits(quick().with_artifacts(100));
    for_a_while("names of artefacts", |random| {
        let code = program(random);
        let outcome = run(&sandbox, &Program::code(Language::Python, code.clone())).unwrap();
        let outer = tempfile::tempdir().unwrap();
        let target = outer.path().join("target");
        std::fs::create_dir(&target).unwrap();
        let result = outcome.export(&target);
        let beside: Vec<_> = std::fs::read_dir(outer.path()).unwrap().flatten().collect();
        assert_eq!(beside.len(), 1, "{beside:?} {code}");
        let found = below(&target);
        // On a host without case a name may be a file here and a directory there: then the export returns an
        // error.
        let written = result.as_ref().map(|written| written.iter().flatten().count());
        assert!(written.is_err() || written.is_ok_and(|count| found.len() == count), "{found:?} {code}");
        for (index, artifact) in outcome.artifacts.iter().enumerate() {
            let name = &artifact.path;
            let harmless = name
                .split('/')
                .all(|part| !matches!(part, "" | "." | "..") && part.len() <= 255 && !part.starts_with('-'))
                && !name.contains(['\\', '\0', '\n', '\r', '\u{1b}', '\u{202e}', '\u{200b}', '\u{7f}']);
            assert!(harmless, "{name:?} came back from {code}");
            let content = artifact.read().unwrap();
            assert_eq!(content.len() as u64, artifact.size);
            if result.as_ref().is_ok_and(|written| written[index].is_ok()) {
                assert_eq!(found.get(name.as_bytes()), Some(&content), "{name:?} {code}");
            }
        }
    });
}
