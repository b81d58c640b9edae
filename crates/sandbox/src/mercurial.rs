//! Files in a work tree of Mercurial that its configuration names.
//!
//! Format: hgrc(5). Read are `hgrc` and `hgrc-not-shared` of the repository, that of a shared repository
//! (`sharedpath`), and included files. Every path that a value names counts, except in `[paths]`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::command_paths::command_paths;
use crate::governing::MAX_CONFIG;
use crate::host_file::{Content, path_from, read, read_line};

/// The maximum number of files to read, and the maximum depth of includes.
const MAX_FILES: usize = 64;
/// The maximum number of paths.
const MAX_PATHS: usize = 4096;
/// Files of a shared repository that Mercurial obeys.
const SHARED: [&str; 4] = ["hgrc", "hgrc-not-shared", "requires", "sharedpath"];

/// The paths that the repository of a work tree names. They may be missing.
pub(crate) fn named_paths(top: &Path) -> Vec<PathBuf> {
    let own = top.join(".hg");
    if !own.is_dir() {
        return Vec::new();
    }
    let mut repository = Repository { top, paths: Vec::new(), read: HashSet::new() };
    let shared = read_line(&own.join("sharedpath")).map(|path| own.join(path_from(&path)));
    if let Some(shared) = &shared {
        repository.paths.extend(SHARED.map(|name| shared.join(name)));
        repository.read(&shared.join("hgrc"));
    }
    for name in ["hgrc", "hgrc-not-shared"] {
        // A link in place of the file.
        repository.paths.push(own.join(name));
        repository.read(&own.join(name));
    }
    repository.paths
}

struct Repository<'a> {
    top: &'a Path,
    paths: Vec<PathBuf>,
    read: HashSet<PathBuf>,
}

impl Repository<'_> {
    fn read(&mut self, file: &Path) {
        if self.read.len() >= MAX_FILES || !self.read.insert(file.to_owned()) {
            return;
        }
        let Content::Whole(content) = read(file, MAX_CONFIG) else { return };
        let beside = file.parent().unwrap_or(self.top);
        let mut is_list_of_paths = false;
        for line in content.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end) {
            if line.starts_with(b"[") {
                is_list_of_paths = line.starts_with(b"[paths]");
            } else if let Some(path) = line.strip_prefix(b"%include") {
                let path = beside.join(path_from(path.trim_ascii()));
                self.paths.push(path.clone());
                self.read(&path);
            } else if !is_list_of_paths && !line.starts_with(b"#") && !line.starts_with(b";") {
                // The line of a value, or one that continues it.
                let is_continued = line.first().is_some_and(u8::is_ascii_whitespace);
                let value = match line.iter().position(|byte| *byte == b'=') {
                    Some(at) if !is_continued => line.get(at + 1..).unwrap_or_default(),
                    _ => line,
                };
                self.value(value.trim_ascii(), beside);
            }
        }
    }

    /// Adds the paths of a value: of an extension, `!` and an extension, `python:file:function`, or a command.
    fn value(&mut self, value: &[u8], beside: &Path) {
        let value = value.strip_prefix(b"!").unwrap_or(value);
        let value = value.strip_prefix(b"python:").unwrap_or(value);
        let file = value.rsplit(|byte| *byte == b':').next_back().unwrap_or(value);
        let paths = [value, file].map(ToOwned::to_owned).into_iter().filter(|path| path.contains(&b'/'));
        let named = command_paths(value).into_iter().filter(|found| found.is_certain).map(|found| found.path);
        for path in paths.chain(named) {
            if self.paths.len() >= MAX_PATHS {
                return;
            }
            let path = path_from(&path);
            let is_file = |path: &PathBuf| !path.is_dir();
            self.paths.extend([self.top, beside].map(|base| base.join(&path)).into_iter().filter(is_file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hooks_extensions_and_includes_are_found() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        let write = |path: &str, content: &str| {
            std::fs::create_dir_all(top.join(path).parent().unwrap()).unwrap();
            std::fs::write(top.join(path), content).unwrap();
        };
        write(
            ".hg/hgrc",
            "[paths]\ndefault = ../elsewhere\n[hooks]\nupdate = tools/check.sh\ncommit = python:tools/a.py:run\n\
             [extensions]\nx = tools/x.py\n[alias]\ny = !sh ./y.sh\n%include ../team.hgrc\n",
        );
        write("team.hgrc", "[hooks]\nincoming.a =\n   sh tools/b.sh\n");
        write(".hg/sharedpath", "../store/.hg\n");
        let found = named_paths(top);
        for path in [
            "tools/check.sh",
            "tools/a.py",
            "tools/x.py",
            "./y.sh",
            ".hg/../team.hgrc",
            "tools/b.sh",
            ".hg/../store/.hg/hgrc",
        ] {
            assert!(found.contains(&top.join(path)), "{path}: {found:?}");
        }
        assert!(!found.contains(&top.join("../elsewhere")));
        assert_eq!(named_paths(&top.join("team.hgrc")), Vec::<PathBuf>::new());
    }
}
