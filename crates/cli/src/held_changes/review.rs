//! The review of held changes: its text and its prompt.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use serde_json::json;
use similar::TextDiff;
use toolpost_sandbox::{
    Applied, ApplyState, ChangeKind, HeldRun, Mark, ProtectedEntryKind, Review, ReviewDecision,
    ReviewedChange, ReviewedEntry,
};

use super::changes;
use crate::config::paths;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::hints;
use crate::outcome::count;
use crate::port;
use crate::print::Printer;
use crate::style::{BAD, FAINT, GOOD, HINT, WARN, label, one_line, paint};

/// The maximum number of files with a diff; others are only named.
const MAX_SHOWN: usize = 200;
/// The maximum size of a file with a diff, in bytes.
const MAX_FILE: u64 = 256 << 10;
/// The maximum number of diff lines of a file.
const MAX_LINES: usize = 400;
/// The maximum number of repeated prompts after an unknown answer; after them the changes stay held.
const MAX_UNKNOWN_ANSWERS: u32 = 3;
/// The maximum number of paths that a line of marks names.
const MAX_MARKED: usize = 3;

const EXPLANATION: &str = "  `yes` applies the changes that the review lists first, `no` discards all changes, `later` or an empty line holds them.\n";

/// Shows the held changes of a run and applies them after a yes.
pub(crate) fn review(held: Applied, allowed: &[PathBuf], printer: &Printer) -> Result<Applied, Failure> {
    let run = HeldRun::find(&held.id, paths::layers().as_deref())?;
    if !printer.is_text() {
        return Ok(held);
    }
    let mut review = run.review(allowed)?;
    // Changes that could not be held are not in the layer.
    review.changes.extend(unheld(&held).cloned());
    printer.write_stderr(&text(&run, &review));
    if !io::stdin().is_terminal() {
        return Ok(held);
    }
    match ask(printer) {
        Ok(Answer::Apply) => {
            let mut applied = run.apply(allowed)?;
            applied.review.changes.extend(unheld(&held).cloned());
            applied.denied.splice(0..0, held.denied);
            applied.denied_count += held.denied_count;
            Ok(applied)
        }
        Ok(Answer::Discard) => {
            run.discard();
            Ok(discarded(held))
        }
        Ok(Answer::Hold) => Ok(held),
        Err(failure) => {
            if failure.exit == Exit::Interrupted {
                run.discard();
            }
            Err(failure)
        }
    }
}

/// Prints the changes of a held run, and asks if it can. As JSON, or without a terminal, the changes stay held.
pub(super) fn review_again(run: &HeldRun, allowed: &[PathBuf], printer: &Printer) -> Result<Answer, Failure> {
    let review = run.review(allowed)?;
    if !printer.is_text() {
        printer.json(&json!({ "id": run.id(), "review": review }))?;
        return Ok(Answer::Hold);
    }
    printer.result(text(run, &review).trim_end())?;
    if io::stdin().is_terminal() { ask(printer) } else { Ok(Answer::Hold) }
}

/// The denied changes that are not in the layer.
fn unheld(held: &Applied) -> impl Iterator<Item = &ReviewedChange> {
    let is_unheld = |change: &&ReviewedChange| held.denied.iter().any(|denied| denied.path == change.path);
    held.review.changes.iter().filter(is_unheld)
}

fn discarded(mut held: Applied) -> Applied {
    held.state = ApplyState::Discarded;
    held
}

pub(super) enum Answer {
    Apply,
    Discard,
    Hold,
}

/// Asks until the answer is known.
fn ask(printer: &Printer) -> Result<Answer, Failure> {
    let prompt = format!("{} yes / no / later? ", paint(WARN, "Apply these changes?"));
    printer.write_stderr(&prompt);
    for _ in 0..=MAX_UNKNOWN_ANSWERS {
        let (answer, is_interrupted) = crate::runtime::cancellable(|cancel| {
            let answer = port::read_line(|| cancel.is_cancelled());
            (answer, cancel.is_cancelled())
        })?;
        if is_interrupted {
            return Err(Failure::new(
                Exit::Interrupted,
                "CANCELLED",
                "the review was interrupted: no change was applied",
            ));
        }
        let answer = answer.map_err(|error| Failure::file("the answer", Path::new("-"), &error))?;
        match answer.to_lowercase().as_str() {
            "y" | "yes" => return Ok(Answer::Apply),
            "n" | "no" => return Ok(Answer::Discard),
            "" | "l" | "later" => return Ok(Answer::Hold),
            _ => printer.write_stderr(&format!("{EXPLANATION}{prompt}")),
        }
    }
    Ok(Answer::Hold)
}

/// The review as text: first the changes that apply writes, then the others.
fn text(run: &HeldRun, review: &Review) -> String {
    let mut text = String::new();
    let written = review.with(ReviewDecision::Applied).count() + review.more_applied;
    let _ = match written {
        0 => writeln!(text, "apply writes no change"),
        _ => writeln!(text, "apply writes {}:", changes(written)),
    };
    let mut shown = 0;
    for change in review.with(ReviewDecision::Applied) {
        let _ = writeln!(text, "{}", line(change));
        shown += 1;
        if shown <= MAX_SHOWN {
            text.push_str(&difference(run, change));
        }
    }
    if review.more_applied > 0 {
        let _ = writeln!(text, "and {} more", review.more_applied);
    }
    for decision in [ReviewDecision::Held, ReviewDecision::Denied] {
        for change in review.with(decision) {
            let _ = writeln!(text, "{}", denied_line(change));
        }
    }
    if review.more_denied > 0 {
        let _ = writeln!(text, "{} {} more", paint(WARN, "not applied:"), review.more_denied);
    }
    let hint = |change: &ReviewedChange| change.reason.as_ref()?.hint();
    let mut hints: Vec<String> =
        review.changes.iter().filter_map(hint).map(|hint| hints::of_sandbox(&hint)).collect();
    hints.sort_unstable();
    hints.dedup();
    for hint in hints {
        let _ = writeln!(text, "{} {hint}", paint(HINT, "hint:"));
    }
    text
}

/// A change that apply writes: its sign, its path and what else a person must know.
fn line(change: &ReviewedChange) -> String {
    let (sign, role) = match change.kind {
        ChangeKind::Created => ('+', GOOD),
        ChangeKind::Deleted => ('-', BAD),
        _ => ('~', WARN),
    };
    let facts = facts(change);
    let facts = if facts.is_empty() { facts } else { format!("  ({facts})") };
    format!("{} {}{facts}", paint(role, sign), label(&change.path.to_string_lossy()))
}

/// A change that apply does not write, with the reason.
fn denied_line(change: &ReviewedChange) -> String {
    let title = if change.decision == ReviewDecision::Held { "held:" } else { "denied:" };
    let reason = one_line(change.message.as_deref().unwrap_or_default(), 200);
    let facts = facts_without_protection(change).join("; ");
    let facts = if facts.is_empty() { facts } else { format!("; {facts}") };
    let path = label(&change.path.to_string_lossy());
    format!("{} {} ({reason}{facts})", paint(WARN, title), paint(HINT, path))
}

fn facts(change: &ReviewedChange) -> String {
    let mut facts = facts_without_protection(change);
    facts.extend(change.protection.map(|protection| format!("protected, and allowed: {protection}")));
    facts.join("; ")
}

/// Kinds, targets, modes and marks, where they differ from those of an ordinary file.
fn facts_without_protection(change: &ReviewedChange) -> Vec<String> {
    let mut facts = Vec::new();
    let after = change.after.as_ref();
    if let Some(entry) = after {
        facts.extend(named(entry));
    }
    match (&change.before, change.kind) {
        (Some(before), ChangeKind::Deleted) => {
            facts.extend(named(before).map(|name| format!("{name}{}", beneath(change))));
        }
        (Some(before), ChangeKind::Replaced) => {
            let name = named(before).unwrap_or_else(|| "a file".to_owned());
            facts.push(format!("instead of {name}{}", beneath(change)));
        }
        (Some(before), _) if before.target != after.and_then(|after| after.target.clone()) => {
            facts.extend(named(before).map(|name| format!("before: {name}")));
        }
        _ => {}
    }
    let modes = [change.before.as_ref(), after].map(|entry| entry.and_then(|entry| entry.mode));
    match modes {
        [Some(before), Some(after)] if before != after && change.kind == ChangeKind::Changed => {
            facts.push(format!("mode {before:04o} to {after:04o}"));
        }
        _ => {}
    }
    facts.extend(change.marks.iter().map(|mark| of_mark(*mark)));
    facts
}

/// The kind of an entry, if it is not an ordinary file, and its target.
fn named(entry: &ReviewedEntry) -> Option<String> {
    Some(match entry.kind {
        ProtectedEntryKind::Directory => "a directory".to_owned(),
        ProtectedEntryKind::Link => {
            let target = entry.target.as_deref().unwrap_or(Path::new("?"));
            format!("a link to {}", label(&target.to_string_lossy()))
        }
        _ => return None,
    })
}

fn beneath(change: &ReviewedChange) -> String {
    match change.beneath {
        0 => String::new(),
        1 => " with 1 entry".to_owned(),
        number => format!(" with {number} entries"),
    }
}

/// A mark in words.
fn of_mark(mark: Mark) -> String {
    match mark {
        Mark::Build => "build tools execute it".to_owned(),
        Mark::Instructions => "agents obey it".to_owned(),
        Mark::Executable => "executable".to_owned(),
        Mark::LeadsOutside => "leads outside the directory".to_owned(),
        // The name in JSON.
        other => serde_json::to_value(other)
            .ok()
            .and_then(|name| Some(name.as_str()?.replace('_', " ")))
            .unwrap_or_default(),
    }
}

/// One line for each mark of applied changes, with the first paths.
pub(super) fn mark_lines(applied: &Applied) -> Vec<String> {
    let mut by_mark: Vec<(String, Vec<String>)> = Vec::new();
    let mut add = |name: String, path: &Path| {
        let path = label(&path.to_string_lossy());
        match by_mark.iter_mut().find(|(known, _)| *known == name) {
            Some((_, paths)) => paths.push(path),
            None => by_mark.push((name, vec![path])),
        }
    };
    for change in applied.review.with(ReviewDecision::Applied) {
        for mark in &change.marks {
            add(of_mark(*mark), &change.path);
        }
        if let Some(protection) = change.protection {
            add(format!("protected, and allowed: {protection}"), &change.path);
        }
    }
    let of = |(name, paths): (String, Vec<String>)| {
        let first: Vec<String> = paths.iter().take(MAX_MARKED).map(|path| paint(HINT, path)).collect();
        let more = match paths.len().saturating_sub(MAX_MARKED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{} {}{more} ({name})", paint(WARN, "marked:"), first.join(", "))
    };
    by_mark.into_iter().map(of).collect()
}

/// The difference of a file's contents with escaped control characters; empty for other entries.
fn difference(run: &HeldRun, change: &ReviewedChange) -> String {
    let is_file = |entry: &Option<ReviewedEntry>| {
        entry.as_ref().is_some_and(|entry| entry.kind == ProtectedEntryKind::File)
    };
    if !is_file(&change.after) {
        return String::new();
    }
    let before =
        if is_file(&change.before) { read(&run.directory().join(&change.path)) } else { Some(Vec::new()) };
    let (Some(before), Some(after)) = (before, run.content(&change.path, MAX_FILE)) else {
        return String::new();
    };
    if [&before, &after].iter().any(|content| content.len() as u64 >= MAX_FILE || content.contains(&0)) {
        let size = change.after.as_ref().and_then(|entry| entry.size).unwrap_or_default();
        let size = count(usize::try_from(size).unwrap_or(usize::MAX), "byte");
        return format!("  {}\n", paint(FAINT, format!("(binary or large, {size})")));
    }
    let (before, after) = (String::from_utf8_lossy(&before), String::from_utf8_lossy(&after));
    let diff = TextDiff::from_lines(&*before, &*after);
    let mut text = String::new();
    for line in diff.unified_diff().context_radius(2).to_string().lines().take(MAX_LINES) {
        let role = match line.chars().next() {
            Some('+') => GOOD,
            Some('-') => BAD,
            _ => FAINT,
        };
        let _ = writeln!(text, "  {}", paint(role, one_line(line, 400)));
    }
    text
}

/// The content of a regular file of bounded size, without following a link.
fn read(path: &Path) -> Option<Vec<u8>> {
    if !std::fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let mut content = Vec::new();
    crate::regular_file::open(path).ok()?.take(MAX_FILE).read_to_end(&mut content).ok()?;
    Some(content)
}
