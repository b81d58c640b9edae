//! The rules on single Rust files and on text: size, words that have a place, attributes, unsafe code, paths.

use super::Complaint;
use super::tables::{
    ALLOW_FILES, FILE_LIMIT, HOME_DIRECTORIES, LONG_FILES, MACHINE_DIRECTORIES, MACHINE_DIRECTORY_FILES,
    UNFINISHED_MARKS, UNSAFE_DIRECTORIES, WORDS, Word,
};
use crate::source::{Source, find_word};
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for source in sources {
        complaints.extend(size(source));
        complaints.extend(attributes(source));
        complaints.extend(unsafe_code(source));
        complaints.extend(marks(source));
        for word in WORDS {
            complaints.extend(words(source, word));
        }
    }
    for path in &workspace.files {
        if let Some(text) = workspace.text(path) {
            complaints.extend(machine_directories(path, &text));
            complaints.extend(conflicts(path, &text));
        }
    }
    complaints
}

fn begins(path: &str, rows: &[(&str, &str)]) -> bool {
    rows.iter().any(|(beginning, _)| path.starts_with(beginning))
}

fn size(source: &Source) -> Option<Complaint> {
    let lines = source.code_lines();
    let listed = LONG_FILES.iter().any(|(path, _)| *path == source.path);
    (lines > FILE_LIMIT && !listed).then(|| {
        Complaint::new(
            "file-size",
            &source.path,
            format!("{lines} lines of code, expected at most {FILE_LIMIT}"),
            "split it by what its parts know",
        )
    })
}

fn attributes(source: &Source) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for attribute in &source.attributes {
        let text = attribute.text.as_str();
        let complain = |rule, found: &str, action: &str| {
            Complaint::new(rule, &source.path, found, action).at(attribute.line)
        };
        let lint = ["#[", "#![", ",", "("].iter().any(|before| text.contains(&format!("{before}allow(")));
        let expected =
            ["#[", "#![", ",", "("].iter().any(|before| text.contains(&format!("{before}expect(")));
        if lint && !begins(&source.path, ALLOW_FILES) {
            complaints.push(complain(
                "no-allow",
                "an `allow` attribute",
                "mend the code, or say `#[expect(lint, reason = \"…\")]`",
            ));
        }
        if expected && !text.contains("reason=") {
            complaints.push(complain(
                "expect-reason",
                "an `expect` without a reason",
                "add `reason = \"…\"`",
            ));
        }
        if (lint || expected) && find_word(text, "missing_docs").is_some() {
            complaints.push(complain(
                "documented",
                "the lint `missing_docs` is switched off",
                "document every public item",
            ));
        }
        if text == "#[ignore]" || text.starts_with("#[ignore=") {
            complaints.push(complain(
                "no-ignore",
                "an ignored test",
                "let it print `SKIP <name>: <reason>` and return where the machine cannot run it",
            ));
        }
    }
    complaints
}

fn unsafe_code(source: &Source) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let allowed = begins(&source.path, UNSAFE_DIRECTORIES);
    for (index, line) in source.lines.iter().enumerate() {
        let Some(at) = find_word(&line.code, "unsafe") else { continue };
        if !allowed {
            complaints.push(
                Complaint::new(
                    "unsafe",
                    &source.path,
                    "unsafe code outside the sandbox crate",
                    "move it there behind a safe function, or do without it",
                )
                .at(index),
            );
            continue;
        }
        let rest = line.code[at + "unsafe".len()..].trim_start();
        let opens_block = rest.starts_with('{') || rest.starts_with("impl") || rest.is_empty();
        if opens_block && !explained(source, index) {
            complaints.push(
                Complaint::new(
                    "safety-comment",
                    &source.path,
                    "an unsafe block without a SAFETY comment before it",
                    "name the condition and why it holds: `// SAFETY: …`",
                )
                .at(index),
            );
        }
    }
    complaints
}

/// Whether a SAFETY comment stands on the line, or above it up to the end of the statement before.
fn explained(source: &Source, index: usize) -> bool {
    if source.lines[index].comment.contains("SAFETY:") {
        return true;
    }
    for line in source.lines[..index].iter().rev() {
        if line.comment.contains("SAFETY:") {
            return true;
        }
        let code = line.code.trim_end();
        if code.ends_with([';', '{', '}']) || (code.is_empty() && line.comment.is_empty()) {
            return false;
        }
    }
    false
}

fn marks(source: &Source) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    if source.path.starts_with("xtask/src/tidy/") {
        return complaints;
    }
    for (index, line) in source.lines.iter().enumerate() {
        for mark in UNFINISHED_MARKS {
            if find_word(&line.comment, mark).is_some() {
                complaints.push(
                    Complaint::new(
                        "unfinished",
                        &source.path,
                        format!("a comment says `{mark}`"),
                        "finish it, or say as a limit what is not done",
                    )
                    .at(index),
                );
            }
        }
    }
    complaints
}

fn words(source: &Source, rule: &Word) -> Vec<Complaint> {
    let free = !source.path.starts_with(rule.within)
        || (rule.free_in_tests && source.is_test_file())
        || source.path.ends_with("build.rs")
        || begins(&source.path, rule.allowed);
    if free {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        if rule.free_in_tests && line.in_test {
            continue;
        }
        if let Some(word) = rule.words.iter().find(|word| find_word(&line.code, word).is_some()) {
            complaints.push(
                Complaint::new(rule.rule, &source.path, format!("`{word}` has no place here"), rule.action)
                    .at(index),
            );
        }
    }
    complaints
}

fn machine_directories(path: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let allowed = |directory: &str| {
        MACHINE_DIRECTORY_FILES
            .iter()
            .any(|(file, named, _)| path.starts_with(file) && (named.is_empty() || *named == directory))
    };
    for (index, line) in text.lines().enumerate() {
        let directories = MACHINE_DIRECTORIES.iter().filter(|directory| begins_path(line, directory, false));
        let homes = HOME_DIRECTORIES.iter().filter(|directory| begins_path(line, directory, true));
        for directory in directories.chain(homes).filter(|directory| !allowed(directory)) {
            complaints.push(
                Complaint::new(
                    "machine-path",
                    path,
                    format!("a path of a machine, below `{directory}`"),
                    "use a path below the checkout or a temporary directory; where it is the subject, add a row to MACHINE_DIRECTORY_FILES",
                )
                .at(index),
            );
        }
    }
    complaints
}

/// The markers of a merge where two sides changed the same lines.
fn conflicts(path: &str, text: &str) -> Vec<Complaint> {
    let is_mark = |line: &str| ["<<<<<<< ", ">>>>>>> "].iter().any(|mark| line.starts_with(mark));
    let marks = text.lines().enumerate().filter(|(_, line)| is_mark(line));
    let complaint = |(index, _)| {
        let found = "the mark of a merge that nobody has finished".to_owned();
        Complaint::new("merge", path, found, "keep what is right of both sides, and remove the marks")
            .at(index)
    };
    marks.map(complaint).collect()
}

/// Whether an absolute path in `line` begins with `directory`. With `named`, a name must follow.
fn begins_path(line: &str, directory: &str, named: bool) -> bool {
    line.match_indices(directory).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let inner = before.is_some_and(|c| c.is_alphanumeric() || "_-.~}>*)/".contains(c));
        let after = line[at + directory.len()..].chars().next();
        !inner && (!named || after.is_some_and(|c| c.is_ascii_alphanumeric()))
    })
}
