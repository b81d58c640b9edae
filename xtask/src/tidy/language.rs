//! The rule on words: phrases and beginnings of constants that have a shorter, more precise term.
//!
//! Only phrases are listed; single ordinary words are a matter of review. STYLE.md has the glossary for readers.

use super::Complaint;
use crate::source::Source;
use crate::workspace::{Workspace, has_extension};

/// A phrase that text and comments do not use.
struct Phrase {
    /// The words, in lower case. They match whole words in any case.
    words: &'static str,
    /// The term to use instead.
    instead: &'static str,
    /// A sentence that breaks the rule.
    fails: &'static str,
    /// The same sentence in plain words.
    passes: &'static str,
}

const fn phrase(
    words: &'static str,
    instead: &'static str,
    fails: &'static str,
    passes: &'static str,
) -> Phrase {
    Phrase { words, instead, fails, passes }
}

const PHRASES: &[Phrase] = &[
    phrase("go on with", "resume", "To go on with a run, name it.", "To resume a run, name it."),
    phrase("goes on with", "resumes", "The agent goes on with the run.", "The agent resumes the run."),
    phrase("gone on with", "resumed", "A run is gone on with once.", "A run is resumed once."),
    phrase("of strangers", "untrusted", "Output of strangers is masked.", "Untrusted output is masked."),
    phrase("who asks", "caller", "The answer depends on who asks.", "The answer depends on the caller."),
    phrase("way out", "egress", "The proxy is the only way out.", "The proxy is the only egress."),
    phrase("may go out", "egress allowlist", "Hosts that may go out.", "The egress allowlist."),
    phrase("kept ready", "prewarmed, idle", "Workers are kept ready.", "Idle workers are prewarmed."),
    phrase("made ahead", "prewarmed, pre-forked", "A worker made ahead.", "A pre-forked worker."),
    phrase(
        "made again",
        "reconnected, retried, rebuilt",
        "The connection is made again.",
        "The client reconnects.",
    ),
    phrase("what it costs", "price, cost, estimate", "It reports what it costs.", "It reports the cost."),
    phrase("signed word", "signed token", "A signed word names the user.", "A signed token names the user."),
    phrase("what was called", "call, tool", "It logs what was called.", "It logs the call."),
    phrase("what is asked", "request, call", "It checks what is asked.", "It checks the request."),
    phrase("what was asked", "request, question", "It repeats what was asked.", "It repeats the request."),
    phrase("one json value a line", "JSON Lines", "Prints one JSON value a line.", "Prints JSON Lines."),
    phrase(
        "unless said otherwise",
        "defaults to",
        "It is text unless said otherwise.",
        "It defaults to text.",
    ),
    phrase("in the midst", "during", "It ends in the midst of a call.", "It ends during a call."),
    phrase(
        "is left out",
        "is omitted, is dropped",
        "An empty field is left out.",
        "An empty field is omitted.",
    ),
    phrase(
        "are left out",
        "are omitted, are dropped",
        "Empty fields are left out.",
        "Empty fields are omitted.",
    ),
    phrase("mended", "fixed", "The defect is mended.", "The defect is fixed."),
    phrase("handed back", "applied, returned", "Changes are handed back.", "Changes are applied."),
    phrase("takes up", "resumes", "A call takes up the first one.", "A call resumes the first one."),
    phrase("goes on", "continues, is used", "The run goes on.", "The run continues."),
    phrase("go on", "continue", "The calls go on without it.", "The calls continue without it."),
    phrase("a folder", "a directory", "It needs a folder.", "It needs a directory."),
    phrase("the folder", "the directory", "It reads the folder.", "It reads the directory."),
];

/// The extensions of files with text of ours.
const PROSE: &[&str] = &["md", "rs", "toml", "py", "pyi", "ts"];

/// First words of a doc comment that are not its noun or verb.
const OPENERS: &[&str] = &["What ", "How ", "Why ", "Those ", "The same ", "Whether it ", "Such "];

/// Beginnings of constants, and the beginning for each.
const CONSTANTS: &[(&str, &str)] = &[
    ("MOST_", "MAX_"),
    ("LONGEST_", "MAX_"),
    ("LARGEST_", "MAX_"),
    ("MAXIMUM_", "MAX_"),
    ("LEAST_", "MIN_"),
];

/// Files whose words are not ours, or that quote the words of this rule.
const EXEMPT: &[(&str, &str)] = &[
    ("xtask/src/tidy/language.rs", "the phrases"),
    ("STYLE.md", "the glossary"),
    ("docs/attacks.md", "generated from the names of tests"),
];

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let is_exempt = |path: &str| EXEMPT.iter().any(|(exempt, _)| path.starts_with(exempt));
    for path in &workspace.files {
        let is_prose = PROSE.iter().any(|extension| has_extension(path, extension));
        if let Some(text) = workspace.text(path).filter(|_| is_prose && !is_exempt(path)) {
            complaints.extend(phrases(path, &text));
        }
    }
    for source in sources.iter().filter(|source| !is_exempt(&source.path)) {
        complaints.extend(names(source));
        if let Some(text) = workspace.text(&source.path) {
            complaints.extend(openings(&source.path, &text));
        }
    }
    complaints
}

fn phrases(path: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for Phrase { words, instead, fails, passes } in found(line) {
            let action = format!("write {instead}: not `{fails}`, but `{passes}`");
            complaints.push(Complaint::new("language", path, format!("`{words}`"), action).at(index));
        }
        if is_negation(line) {
            let action = "write `is not a …`".to_owned();
            complaints.push(Complaint::new("language", path, "`is no …`".to_owned(), action).at(index));
        }
    }
    complaints
}

fn found(line: &str) -> impl Iterator<Item = &'static Phrase> {
    let line = line.to_lowercase();
    PHRASES.iter().filter(move |row| crate::source::find_word(&line, row.words).is_some())
}

/// Whether a line has `x is no number` instead of `x is not a number`.
fn is_negation(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(4).any(|words| {
        let [before, verb, no, after] = words else { return false };
        matches!(*verb, "is" | "are")
            && *no == "no"
            && *after != "longer"
            && !before.to_ascii_lowercase().ends_with("there")
    })
}

/// Doc comments that open with a pronoun or an adverb.
fn openings(path: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    let mut is_inside = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start);
        let opener = doc.and_then(|doc| OPENERS.iter().find(|opener| doc.starts_with(**opener)));
        if let Some(opener) = opener.filter(|_| !is_inside) {
            let found = format!("a doc comment opens with `{}`", opener.trim_end());
            let action = "open it with a noun or a verb".to_owned();
            complaints.push(Complaint::new("language", path, found, action).at(index));
        }
        // A heading and an empty line begin anew.
        is_inside = doc.is_some_and(|doc| !doc.is_empty() && !doc.starts_with('#'));
    }
    complaints
}

fn names(source: &Source) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in source.lines.iter().enumerate() {
        for name in
            line.code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
        {
            if let Some(instead) = better(name) {
                let action = format!("name it with {instead}");
                complaints.push(
                    Complaint::new("language", &source.path, format!("the name `{name}`"), action).at(index),
                );
            }
        }
    }
    complaints
}

/// The beginning to use instead of this name's.
fn better(name: &str) -> Option<&'static str> {
    CONSTANTS.iter().find(|(beginning, _)| name.starts_with(beginning)).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phrase_fails_and_its_plain_form_passes() {
        for row in PHRASES {
            let phrases = |text| found(text).map(|row| row.words).collect::<Vec<_>>();
            assert!(phrases(row.fails).contains(&row.words), "`{}` in `{}`", row.words, row.fails);
            assert_eq!(phrases(row.passes), [""; 0], "`{}`", row.passes);
        }
    }

    #[test]
    fn negations_and_openings() {
        for (line, expected) in [
            ("`x` is no number", true),
            ("`x` is not a number", false),
            ("`x` is no longer a number", false),
            ("err(\"there is no number\")", false),
        ] {
            assert_eq!(is_negation(line), expected, "{line}");
        }
        for (text, expected) in [
            ("/// What a step does.", 1),
            ("/// The action of a step.", 0),
            ("/// The name of the file.\n/// What follows is its content.", 0),
            ("/// Reads.\n///\n/// # Errors\n/// Those of `read`.", 1),
            ("// Why it is so.", 0),
        ] {
            assert_eq!(openings("a.rs", text).len(), expected, "{text}");
        }
    }

    #[test]
    fn beginnings_of_constants() {
        let rows = [
            ("MOST_BYTES", Some("MAX_")),
            ("LONGEST_NAME", Some("MAX_")),
            ("ALMOST_ALL", None),
            ("MAX_BYTES", None),
        ];
        for (name, expected) in rows {
            assert_eq!(better(name), expected, "{name}");
        }
    }
}
