//! Results of a run of tests: counts, failures, and the skips that tests print.

use std::collections::BTreeMap;
use std::fmt;

/// The maximum length of the reason of a failure, in characters.
const MAX_REASON: usize = 1_500;

/// The result of the steps so far.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// The number of tests, documentation tests, examples and steps that passed. A test that printed a skip is not among them.
    pub passed: usize,
    /// The names of what failed, each with the reason where the report has one.
    pub failed: Vec<String>,
    /// The skipped parts by name, with the reason.
    pub skipped: BTreeMap<String, String>,
}

impl Tally {
    /// Notes a skip. The same name counts once.
    pub fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.entry(name.to_owned()).or_insert_with(|| reason.to_owned());
    }

    /// Adds what one test program reported, where `good` says whether the program itself ended well. A program that
    /// failed without a failed test (it did not compile, it was ended), or that ran nothing, is a failure.
    pub fn add_run(&mut self, name: &str, run: Self, good: bool) {
        if !good && run.failed.is_empty() {
            self.failed.push(name.to_owned());
        } else if good && run.passed == 0 && run.skipped.is_empty() && name == "tests" {
            self.failed.push(format!("{name}: not one was run"));
        }
        self.passed += run.passed;
        self.failed.extend(run.failed);
        for (skip, reason) in &run.skipped {
            self.skip(skip, reason);
        }
    }

    /// Adds what a `JUnit` report of nextest says.
    pub fn add_junit(&mut self, xml: &str) {
        for case in xml.split("<testcase ").skip(1) {
            // A case without output closes itself.
            let head = case.split('>').next().unwrap_or_default();
            let body =
                if head.ends_with('/') { head } else { case.split("</testcase>").next().unwrap_or(case) };
            let name = format!("{} {}", attribute(head, "classname"), attribute(head, "name"));
            if body.contains("<failure") || body.contains("<error") {
                self.failed.push(match failure(body) {
                    reason if reason.is_empty() => name,
                    reason => format!("{name}: {reason}"),
                });
                continue;
            }
            // A report of pytest.
            if let Some((_, skipped)) = body.split_once("<skipped") {
                self.skip(&name, &attribute(skipped, "message"));
                continue;
            }
            let skips: Vec<(String, String)> =
                body.lines().filter_map(|line| skip_line(&unescape(line))).collect();
            if skips.is_empty() {
                self.passed += 1;
            }
            for (skip, reason) in skips {
                self.skip(&skip, &reason);
            }
        }
    }

    /// Adds what Rust's own test programs print.
    pub fn add_libtest(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(counts) = line.strip_prefix("test result: ") {
                self.passed += number_before(counts, " passed");
            } else if let Some(name) =
                line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED"))
            {
                self.failed.push(name.to_owned());
            } else if let Some(name) =
                line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... ignored"))
            {
                self.skip(name, "marked as ignored");
            } else if let Some((name, reason)) = skip_line(line) {
                self.skip(&name, &reason);
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, reason) in &self.skipped {
            writeln!(f, "SKIP {name}: {reason}")?;
        }
        for name in &self.failed {
            writeln!(f, "FAIL {name}")?;
        }
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        writeln!(f, "{} passed, {failed} failed, {skipped} skipped", self.passed)
    }
}

/// The message of a failed test, in one line: a log that keeps only its end has the reason too.
fn failure(body: &str) -> String {
    let said = body.split_once("<failure").and_then(|(_, rest)| rest.split_once('>'));
    let text = said.and_then(|(_, rest)| rest.split("</failure>").next()).unwrap_or_default();
    let text = unescape(text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" | ").chars().take(MAX_REASON).collect()
}

/// A line `SKIP <name>: <reason>`, also where a test program has begun the line, or a tag stands before it.
fn skip_line(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let at = line.find("SKIP ")?;
    let before = &line[..at];
    if !(before.is_empty() || before.ends_with('>') || before.ends_with("... ")) {
        return None;
    }
    let rest = line[at + "SKIP ".len()..].split("</system-").next().unwrap_or_default();
    let (name, reason) = rest.split_once(": ")?;
    (!name.is_empty() && !reason.trim().is_empty()).then(|| (name.to_owned(), reason.trim().to_owned()))
}

fn attribute(head: &str, name: &str) -> String {
    let begin = format!("{name}=\"");
    head.match_indices(&begin)
        .find(|(at, _)| *at == 0 || head[..*at].ends_with(' '))
        .and_then(|(at, _)| head[at + begin.len()..].split('"').next())
        .map(unescape)
        .unwrap_or_default()
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&#13;", "")
        .replace("&#xD;", "")
        .replace("&amp;", "&")
}

fn number_before(text: &str, word: &str) -> usize {
    text.find(word)
        .and_then(|at| text[..at].rsplit(|c: char| !c.is_ascii_digit()).next())
        .and_then(|digits| digits.parse().ok())
        .unwrap_or_default()
}
