//! The rule on fronts: no library names an option or a command of the command line in a text for a person.
//!
//! A text quotes an option: it stands in backticks, begins a phrase, or follows a sentence's first words. An argument of
//! a program is a literal of its own, and makes the option the crate's: texts of the same crate may name it.

use std::collections::{BTreeMap, BTreeSet};

use super::Complaint;
use crate::source::Source;
use crate::workspace::Workspace;

/// The crates that are fronts, or that only tests use.
const FRONTS: &[&str] = &["cli", "python", "compat", "testkit"];

/// String literals, each with the index of its first line.
type Literals = Vec<(usize, String)>;

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Complaint> {
    let mut crates: BTreeMap<&str, Vec<(&Source, Literals)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test_file()) {
        let Some((name, _)) = source.path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        if let Some(text) = workspace.text(&source.path).filter(|_| !FRONTS.contains(&name)) {
            crates.entry(name).or_default().push((source, literals(&text, source)));
        }
    }
    crates.values().flat_map(|files| complaints(files)).collect()
}

fn complaints(files: &[(&Source, Literals)]) -> Vec<Complaint> {
    let own: BTreeSet<&str> = files
        .iter()
        .flat_map(|(_, literals)| literals)
        .filter_map(|(_, literal)| argument(literal))
        .collect();
    let found = |(source, literals): &(&Source, Literals)| {
        let named = literals.iter().filter_map(|(line, literal)| {
            let named = names(literal).into_iter().find(|name| !own.contains(name))?;
            let action = "give the error a hint, which each front renders in its own terms";
            let found = format!("a library names `{named}` of the command line");
            Some(Complaint::new("fronts", &source.path, found, action).at(*line))
        });
        named.collect::<Vec<_>>()
    };
    files.iter().flat_map(found).collect()
}

/// The option of a literal that is an argument of a program, such as `--quiet` or `--cache={path}`.
fn argument(literal: &str) -> Option<&str> {
    let option = option(literal)?;
    matches!(literal[option.len()..].chars().next(), None | Some('=')).then_some(option)
}

/// The options and commands that a text for a person names.
fn names(literal: &str) -> Vec<&str> {
    let mut names = Vec::new();
    if argument(literal).is_some() {
        return names;
    }
    let is_sentence = literal.starts_with(char::is_uppercase);
    for (index, part) in literal.split('`').enumerate() {
        let is_quoted = index % 2 == 1;
        let is_command = |part: &&str| part.strip_prefix("toolpost ").is_some_and(|rest| !rest.is_empty());
        names.extend(Some(part).filter(|_| is_quoted).filter(is_command));
        if is_quoted || index == 0 {
            names.extend(option(part));
        }
        if !is_quoted && is_sentence {
            names.extend(part.split(' ').skip(1).filter_map(option));
        }
    }
    names
}

/// The option at the beginning of a text.
fn option(text: &str) -> Option<&str> {
    let name = text.strip_prefix("--").filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))?;
    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    Some(&text[..2 + end.unwrap_or(name.len())])
}

/// The string literals outside of tests and comments, each with the index of its first line. Lines that a `\` continues
/// are one.
fn literals(text: &str, source: &Source) -> Literals {
    let mut literals = Vec::new();
    let mut begun: Option<(usize, String)> = None;
    for (index, (raw, line)) in
        text.lines().zip(&source.lines).enumerate().filter(|(_, (_, line))| !line.in_test)
    {
        let code = raw.strip_suffix(line.comment.as_str()).unwrap_or(raw);
        let (first, before) = begun.take().unwrap_or((index, String::new()));
        let code = before + code.trim_start();
        match code.strip_suffix('\\') {
            Some(more) => begun = Some((first, more.to_owned())),
            None => literals.extend(quoted(&code).map(|literal| (first, literal))),
        }
    }
    literals
}

/// The string literals of a line, with their escapes.
fn quoted(code: &str) -> impl Iterator<Item = String> {
    let mut rest = code.chars();
    std::iter::from_fn(move || {
        rest.by_ref().find(|c| *c == '"')?;
        let mut literal = String::new();
        while let Some(c) = rest.next().filter(|c| *c != '"') {
            literal.push(c);
            literal.extend((c == '\\').then(|| rest.next()).flatten());
        }
        Some(literal)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<String> {
        let source = Source::new("crates/a/src/lib.rs", code);
        let files = [(&source, literals(code, &source))];
        complaints(&files).into_iter().map(|complaint| complaint.found).collect()
    }

    #[test]
    fn a_text_that_names_an_option_or_a_command_is_reported() {
        for (code, named) in [
            ("f(\"Allow it with `--allow-host NAME`.\");", "--allow-host"),
            ("f(\"run `toolpost doctor` first\");", "toolpost doctor"),
            ("f(\"Add --session to the command.\");", "--session"),
            ("f(format!(\"--allow-host {}\", host));", "--allow-host"),
            ("f(\"a long text that \\\n    ends with `--live`\");", "--live"),
        ] {
            assert_eq!(found(code), [format!("a library names `{named}` of the command line")], "{code}");
        }
    }

    #[test]
    fn arguments_of_programs_comments_and_tests_pass() {
        for code in [
            "run([\"pip\", \"--target\", \"--cache=/tmp\", \"--noCheck\"]);",
            "f(\"git fsck --no-full\"); // `--live`",
            "f(\"install it: `npm install --global typescript`\");",
            "#[cfg(test)]\nmod tests {\n    const A: &str = \"with `--live`\";\n}",
            // The crate parses the option itself.
            "match word { \"--session\" => f(\"Add `--session` to the command.\"), _ => {} }",
        ] {
            assert_eq!(found(code), Vec::<String>::new(), "{code}");
        }
    }
}
