//! The files of a directory that git ignores, by the `.gitignore` files in it.
//!
//! Format: gitignore(5). Files of git's own configuration (`core.excludesFile`, `.git/info/exclude`) are not read.

use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use rustix::fd::BorrowedFd;
use rustix::fs::{Mode, OFlags};

use super::super::files::open_beneath;

/// The largest `.gitignore` that is read, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// The maximum number of rules in one of them.
const MAX_RULES: usize = 500;

/// The maximum number of `*` in a pattern: each one can multiply the time of a match.
const MAX_STARS: usize = 8;

/// As git matches: `*` does not match `/`.
const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// The rules of a directory tree, read when they are needed.
#[derive(Debug)]
pub(super) struct Ignored<'a> {
    host: BorrowedFd<'a>,
    /// By the directory of the `.gitignore`.
    rules: HashMap<PathBuf, Vec<Rule>>,
}

#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    is_negated: bool,
    is_for_directories: bool,
    /// Is for paths relative to its directory; otherwise for names at any depth.
    is_anchored: bool,
}

impl<'a> Ignored<'a> {
    pub(super) fn new(host: BorrowedFd<'a>) -> Self {
        Self { host, rules: HashMap::new() }
    }

    /// Whether a path is ignored, if the directories above it are not.
    pub(super) fn holds(&mut self, path: &Path, is_directory: bool) -> bool {
        // The innermost file decides, and in it the last rule.
        for place in path.ancestors().skip(1) {
            let Ok(relative) = path.strip_prefix(place) else { continue };
            let rules = self.rules_of(place);
            if let Some(rule) = rules.iter().rev().find(|rule| rule.is_for(relative, is_directory)) {
                return !rule.is_negated;
            }
        }
        false
    }

    fn rules_of(&mut self, place: &Path) -> &[Rule] {
        let host = self.host;
        self.rules.entry(place.to_owned()).or_insert_with(|| {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let Ok(file) = open_beneath(host, &place.join(".gitignore"), flags, Mode::empty()) else {
                return Vec::new();
            };
            let mut text = Vec::new();
            match std::fs::File::from(file).take(MAX_BYTES).read_to_end(&mut text) {
                Ok(_) => parse(&String::from_utf8_lossy(&text)),
                Err(_) => Vec::new(),
            }
        })
    }
}

fn parse(text: &str) -> Vec<Rule> {
    text.lines().take(MAX_RULES).filter_map(Rule::parse).collect()
}

impl Rule {
    /// Parses a line. None for an empty line, a comment, and an invalid or costly pattern.
    fn parse(line: &str) -> Option<Self> {
        let line = if line.ends_with("\\ ") { line } else { line.trim_end() };
        if line.is_empty() || line.starts_with('#') || line.matches('*').count() > MAX_STARS {
            return None;
        }
        let (is_negated, line) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => {
                (false, line.strip_prefix('\\').filter(|rest| rest.starts_with(['#', '!'])).unwrap_or(line))
            }
        };
        let (is_for_directories, line) = match line.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let is_anchored = line.contains('/');
        let pattern = Pattern::new(line.strip_prefix('/').unwrap_or(line)).ok()?;
        Some(Self { pattern, is_negated, is_for_directories, is_anchored })
    }

    fn is_for(&self, relative: &Path, is_directory: bool) -> bool {
        if self.is_for_directories && !is_directory {
            return false;
        }
        let text = match relative.file_name() {
            Some(name) if !self.is_anchored => Path::new(name),
            _ => relative,
        };
        text.to_str().is_some_and(|text| self.pattern.matches_with(text, OPTIONS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_ignore_as_git_does() {
        let rows = [
            ("*.o", "a.o", false, true),
            ("*.o", "deep/a.o", false, true),
            ("/a.o", "deep/a.o", false, false),
            ("/a.o", "a.o", false, true),
            ("out/", "out", false, false),
            ("out/", "out", true, true),
            ("a/*.c", "a/b.c", false, true),
            ("a/*.c", "a/b/c.c", false, false),
            ("a/**/c", "a/x/y/c", false, true),
            ("**/logs", "x/logs", true, true),
            ("*.o\n!keep.o", "keep.o", false, false),
            ("# a.o", "a.o", false, false),
            ("\\#a", "#a", false, true),
            ("data[0-9]", "data7", false, true),
            ("[", "[", false, false),
            ("", "a", false, false),
        ];
        for (text, path, is_directory, expected) in rows {
            let found = parse(text)
                .iter()
                .rev()
                .find(|rule| rule.is_for(Path::new(path), is_directory))
                .map(|rule| !rule.is_negated);
            assert_eq!(found.unwrap_or(false), expected, "{text:?} {path}");
        }
    }
}
