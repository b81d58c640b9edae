//! `toolpost apply`, `discard` and `undo`: changes of runs in host directories.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use similar::TextDiff;
use toolpost_core::Timestamp;
use toolpost_sandbox::{Applied, ApplyState, HeldRun};

use crate::args::{HeldArgs, HeldRunArgs, UndoArgs};
use crate::config::paths;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::outcome::{count, whole_seconds};
use crate::port;
use crate::print::Printer;
use crate::style::{BAD, FAINT, GOOD, HINT, WARN, label, one_line, paint};

/// The maximum number of files with a diff; others are only named.
const MAX_SHOWN: usize = 200;
/// The maximum size of a file with a diff, in bytes.
const MAX_FILE: u64 = 256 << 10;
/// The maximum number of diff lines of a file.
const MAX_LINES: usize = 400;

/// The ID that stands for the last run in this directory.
const LAST: &str = "last";

pub(crate) fn apply(args: &HeldArgs, printer: &Printer) -> Result<Exit, Failure> {
    let Some(id) = &args.id else { return list(printer) };
    let run = held_run(id)?;
    let applied = run.apply(&args.allow_protected)?;
    report(&applied, printer)
}

pub(crate) fn discard(args: &HeldRunArgs, printer: &Printer) -> Result<Exit, Failure> {
    let run = held_run(&args.id)?;
    let id = run.id().to_owned();
    run.discard();
    if !printer.is_text() {
        printer.json(&json!({ "id": id, "state": "discarded" }))?;
    }
    printer.note(&format!("{} the changes of run {}", paint(GOOD, "discarded"), paint(HINT, id)));
    Ok(Exit::Ok)
}

pub(crate) fn undo(args: &UndoArgs, printer: &Printer) -> Result<Exit, Failure> {
    let layers = paths::layers();
    let id = match args.id.as_deref() {
        Some(id) if id != LAST => id.to_owned(),
        _ => {
            let hint = "Only the last run in a directory can be undone.";
            let last = last_run_here(HeldRun::can_undo, "changes to undo in", hint)?;
            last.run().unwrap_or_else(|| last.id()).to_owned()
        }
    };
    let undone = match HeldRun::undo_run(&id, layers.as_deref()) {
        Some(undone) => undone?,
        None => HeldRun::find(&id, layers.as_deref())?.undo()?,
    };
    if undone.changed > 0 {
        printer.note(&format!("reverted {}", count(undone.changed, "change")));
    }
    report(&undone, printer)
}

/// Finds a run by its ID, a prefix of it, or `last`.
fn held_run(id: &str) -> Result<HeldRun, Failure> {
    if id == LAST {
        last_run_here(
            HeldRun::is_waiting,
            "run holds changes of",
            "`toolpost apply` lists the runs with changes.",
        )
    } else {
        Ok(HeldRun::find(id, paths::layers().as_deref())?)
    }
}

/// The last run of this directory that fits.
fn last_run_here(fits: fn(&HeldRun) -> bool, what: &str, hint: &str) -> Result<HeldRun, Failure> {
    let here = here()?;
    let mut runs = HeldRun::all(paths::layers().as_deref()).into_iter();
    runs.find(|run| fits(run) && run.directory() == here)
        .ok_or_else(|| Failure::usage(format!("no {what} `{}`", here.display())).hint(hint))
}

fn here() -> Result<PathBuf, Failure> {
    std::env::current_dir()
        .and_then(|here| here.canonicalize())
        .map_err(|error| Failure::file("the working directory", Path::new("."), &error))
}

/// The IDs of runs since `since` that hold changes of a directory, newest first.
fn held_in(directory: &Path, since: SystemTime) -> Vec<String> {
    let runs = HeldRun::all(paths::layers().as_deref());
    // Runs start at a whole second.
    let is_recent = |run: &HeldRun| run.started() + Duration::from_secs(1) > since;
    let held = |run: &&HeldRun| run.is_waiting() && run.directory() == directory && is_recent(run);
    runs.iter().filter(held).map(|run| run.id().to_owned()).collect()
}

/// Warns of the last held changes of a directory; defaults to the working directory.
pub(crate) fn warn_of_held(directory: Option<&Path>, printer: &Printer) {
    let Some(directory) = directory.map(Path::to_owned).or_else(|| here().ok()) else { return };
    if let Some(id) = held_in(&directory, SystemTime::UNIX_EPOCH).first() {
        printer.warn(&format!(
            "changes of an earlier run are held: `toolpost apply {id}` or `toolpost discard {id}`"
        ));
    }
}

/// Hints on the changes of a directory that runs since `since` hold.
pub(crate) fn hints(directory: &Path, since: SystemTime) -> Vec<String> {
    let hint = |id: &String| {
        format!("The changes of the directory are held: `toolpost apply {id}` or `toolpost discard {id}`.")
    };
    held_in(directory, since).iter().map(hint).collect()
}

fn to_json(applied: &Applied) -> Result<Value, Failure> {
    serde_json::to_value(applied)
        .map_err(|error| Failure::new(Exit::Failed, "INTERNAL", format!("the result has no JSON: {error}")))
}

/// Prints the changes, conflicts and rejected paths.
fn report(applied: &Applied, printer: &Printer) -> Result<Exit, Failure> {
    let value = to_json(applied)?;
    if !printer.is_text() {
        printer.json(&value)?;
    }
    for line in lines(&value) {
        printer.note(&line);
    }
    Ok(if is_denied(&value) || failed(&value) > 0 { Exit::Denied } else { Exit::Ok })
}

/// The number of changes that the host did not take.
fn failed(applied: &Value) -> u64 {
    applied["failed_count"].as_u64().unwrap_or_default()
}

/// Whether protection blocked every change.
fn is_denied(applied: &Value) -> bool {
    applied["changed"] == 0 && applied["denied_count"].as_u64().is_some_and(|count| count > 0)
}

/// The failure of a run whose changes were all denied, or that lost a change to a conflict or an error of the host.
pub(crate) fn denial(applied: &Value) -> Option<Failure> {
    let denied = || applied["denied"].as_array().into_iter().flatten();
    let has_conflict = denied().any(|one| one["reason"]["kind"] == "conflict");
    let is_held = applied["held_count"].as_u64().is_some_and(|count| count > 0);
    let hint = if failed(applied) > 0 {
        match (has_conflict, is_held) {
            (true, true) => {
                "The directory changed during the run. Move your version, then apply the held changes."
            }
            (true, false) => "The directory changed during the run. Repeat the run.",
            (false, true) => "Fix the cause that the note names, then apply the held changes.",
            (false, false) => "Fix the cause that the note names, then repeat the run.",
        }
    } else if denied().any(is_allowable) {
        "Allow a path with `--allow-protected PATH`."
    } else if denied().all(|one| one["reason"]["detail"] == "own") {
        "Toolpost keeps its own files there; choose other paths."
    } else {
        "Edit the files on the host; then trust the file of the target again with `toolpost trust`."
    };
    let (code, message) = match failed(applied) {
        0 if is_denied(applied) => {
            ("PROTECTED", "every change of the working directory was denied".to_owned())
        }
        0 => return None,
        number => {
            let changes = changes(number);
            let verb = if number == 1 { "was" } else { "were" };
            let code = if has_conflict { "CONFLICT" } else { "NOT_APPLIED" };
            (code, format!("{changes} of the working directory {verb} not applied"))
        }
    };
    Some(Failure::new(Exit::Denied, code, message).hint(hint))
}

/// Whether `--allow-protected` allows a denied path: not files that trust pins, and code of trusted targets.
fn is_allowable(denied: &Value) -> bool {
    let fixed = ["trusted", "trusted_code", "own"].iter().any(|kind| denied["reason"]["detail"] == *kind);
    match denied["reason"]["kind"].as_str() {
        Some("protected") => !fixed,
        kind => kind == Some("git_driver"),
    }
}

/// The text of an apply from its JSON; empty without changes.
pub(crate) fn lines(applied: &Value) -> Vec<String> {
    let text = |field: &str| applied[field].as_str().unwrap_or_default().to_owned();
    let number = |field: &str| applied[field].as_u64().unwrap_or_default();
    let (id, state, because) = (label(&text("id")), text("state"), text("held_because"));
    let mut lines = Vec::new();
    if state == "held" {
        let because = if because.is_empty() { because } else { format!(" because {because}") };
        lines.push(format!(
            "{} changes are held{because}: `toolpost apply {id}` or `toolpost discard {id}`",
            paint(WARN, "held:")
        ));
    } else if number("changed") > 0 && applied["can_undo"] == true {
        let changed = changes(number("changed"));
        let object = object(number("changed"));
        lines.push(paint(FAINT, format!("applied {changed}; `toolpost undo {id}` reverts {object}")));
    }
    let denied = applied["denied"].as_array().map(Vec::as_slice).unwrap_or_default();
    for one in denied {
        let path = label(one["path"].as_str().unwrap_or_default());
        let reason = one["message"].as_str().unwrap_or_default();
        lines.push(format!(
            "{} {} ({})",
            paint(WARN, "not applied:"),
            paint(HINT, path),
            one_line(reason, 200)
        ));
    }
    let more = number("denied_count").saturating_sub(denied.len() as u64);
    if more > 0 {
        lines.push(format!("{} {more} more", paint(WARN, "not applied:")));
    }
    let held = number("held_count");
    if held > 0 {
        let has = |kinds: &[&str]| {
            denied.iter().any(|one| kinds.contains(&one["reason"]["kind"].as_str().unwrap_or_default()))
        };
        let option = if denied.iter().any(is_allowable) { " --allow-protected PATH" } else { "" };
        let conflict = if has(&["conflict"]) { " after you move your version" } else { "" };
        lines.push(format!(
            "{} {}; `toolpost apply {id}{option}` retries{conflict}, `toolpost discard {id}` drops {}",
            paint(WARN, "held:"),
            changes(held),
            object(held)
        ));
    }
    lines
}

fn changes(number: u64) -> String {
    count(usize::try_from(number).unwrap_or(usize::MAX), "change")
}

fn object(number: u64) -> &'static str {
    if number == 1 { "it" } else { "them" }
}

/// The id that undoes applied changes, or applies held ones.
fn undo_id(run: &HeldRun) -> &str {
    run.run().filter(|_| !run.is_waiting()).unwrap_or_else(|| run.id())
}

/// Lists the runs with held changes or an undo. As text, those of this directory are first.
fn list(printer: &Printer) -> Result<Exit, Failure> {
    let mut runs = HeldRun::all(paths::layers().as_deref());
    for reason in HeldRun::unproven(paths::layers().as_deref()) {
        printer.warn(&format!("the changes of a run are not listed: {reason}"));
    }
    // The programs of one run are undone together.
    let mut listed = std::collections::HashSet::new();
    runs.retain(|run| run.is_waiting() || listed.insert(undo_id(run).to_owned()));
    if !printer.is_text() {
        let all: Vec<Value> = runs
            .iter()
            .map(|run| {
                let started = run.started().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                json!({
                    "id": undo_id(run), "directory": run.directory(), "started": started.as_secs(),
                    "state": if run.is_waiting() { "held" } else { "applied" },
                })
            })
            .collect();
        printer.json(&json!({ "runs": all }))?;
        return Ok(Exit::Ok);
    }
    if runs.is_empty() {
        printer.note("no run has changes");
    }
    // A removed directory has no runs.
    let here = here().unwrap_or_default();
    runs.sort_by_key(|run| (run.directory() != here, !run.is_waiting()));
    let lines: Vec<String> = runs
        .iter()
        .map(|run| {
            let state = if run.is_waiting() { paint(WARN, "(held)") } else { paint(FAINT, "(applied)") };
            let started = run.started().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let started =
                whole_seconds(Timestamp::from_micros(started.as_micros().try_into().unwrap_or_default()));
            let directory = run.directory();
            format!(
                "{}  {started}  {}  {state}",
                paint(HINT, undo_id(run)),
                label(&directory.to_string_lossy())
            )
        })
        .collect();
    printer.result(&lines.join("\n"))?;
    if !runs.is_empty() {
        let held = runs.iter().filter(|run| run.is_waiting()).count();
        printer
            .note(&format!("{held} held, {} applied; those of this directory are first", runs.len() - held));
    }
    Ok(Exit::Ok)
}

/// Shows the held changes of a run and applies them after a yes.
pub(crate) fn review(held: Applied, allowed: &[PathBuf], printer: &Printer) -> Result<Applied, Failure> {
    let run = HeldRun::find(&held.id, paths::layers().as_deref())?;
    if !printer.is_text() {
        return Ok(held);
    }
    printer.write_stderr(&difference(&run));
    if !io::stdin().is_terminal() {
        return Ok(held);
    }
    printer.write_stderr(&format!("{} yes / no / later? ", paint(WARN, "Apply these changes?")));
    let (answer, is_interrupted) = crate::runtime::cancellable(|cancel| {
        let answer = port::read_line(|| cancel.is_cancelled());
        (answer, cancel.is_cancelled())
    })?;
    if is_interrupted {
        run.discard();
        return Err(Failure::new(
            Exit::Interrupted,
            "CANCELLED",
            "the review was interrupted: no change was applied",
        ));
    }
    let answer = answer.map_err(|error| Failure::file("the answer", Path::new("-"), &error))?;
    match answer.to_lowercase().as_str() {
        "y" | "yes" => Ok(run.apply(allowed)?),
        "n" | "no" => {
            run.discard();
            let mut discarded = held;
            discarded.state = ApplyState::Discarded;
            Ok(discarded)
        }
        _ => Ok(held),
    }
}

/// The record's notice about held changes.
pub(crate) fn notice(applied: &Applied) -> Option<String> {
    let id = &applied.id;
    (applied.state == ApplyState::Held).then(|| {
        format!(
            "the changes of the working directory are held: `toolpost apply {id}` or `toolpost discard {id}`"
        )
    })
}

/// Settles the changes of an agent's private copy. Held ones are reviewed unless the run was interrupted.
pub(crate) fn settle(
    ended: Option<Applied>,
    allowed: &[PathBuf],
    is_interrupted: bool,
    printer: &Printer,
) -> Result<(), Failure> {
    let Some(mut applied) = ended else { return Ok(()) };
    if applied.state == ApplyState::Held && !is_interrupted {
        let first = applied.clone();
        applied = review(applied, allowed, printer)?;
        if applied.state == ApplyState::Applied {
            // Changes that could not be held were not applied either.
            applied.denied.splice(0..0, first.denied);
            applied.denied_count += first.denied_count;
        }
    }
    let value = to_json(&applied)?;
    for line in lines(&value) {
        printer.note(&line);
    }
    denial(&value).filter(|_| applied.state == ApplyState::Applied).map_or(Ok(()), Err)
}

/// The changes as a unified diff with escaped control characters.
fn difference(run: &HeldRun) -> String {
    let changes = run.changes();
    let mut text = String::new();
    let all = changes
        .new
        .iter()
        .map(|path| (path, '+'))
        .chain(changes.changed.iter().map(|path| (path, '~')))
        .chain(changes.deleted.iter().map(|path| (path, '-')));
    for (number, (path, sign)) in all.enumerate() {
        let role = match sign {
            '+' => GOOD,
            '-' => BAD,
            _ => WARN,
        };
        let _ = writeln!(text, "{} {}", paint(role, sign), label(&path.to_string_lossy()));
        if number >= MAX_SHOWN || sign == '-' {
            continue;
        }
        let before = if sign == '~' { read(&run.directory().join(path)) } else { Some(Vec::new()) };
        let (Some(before), Some(after)) = (before, run.content(path, MAX_FILE)) else { continue };
        if [&before, &after].iter().any(|content| content.len() as u64 >= MAX_FILE || content.contains(&0)) {
            let _ = writeln!(text, "  {}", paint(FAINT, "(binary or large)"));
            continue;
        }
        let (before, after) = (String::from_utf8_lossy(&before), String::from_utf8_lossy(&after));
        let diff = TextDiff::from_lines(&*before, &*after);
        for line in diff.unified_diff().context_radius(2).to_string().lines().take(MAX_LINES) {
            let role = match line.chars().next() {
                Some('+') => GOOD,
                Some('-') => BAD,
                _ => FAINT,
            };
            let _ = writeln!(text, "  {}", paint(role, one_line(line, 400)));
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_names_the_way_on() {
        let hint = |kinds: &[&str], failed: usize, held: usize| {
            let denied: Vec<Value> = kinds.iter().map(|kind| json!({ "reason": { "kind": kind } })).collect();
            let applied = json!({
                "changed": 0, "denied_count": kinds.len(), "denied": denied, "failed_count": failed, "held_count": held,
            });
            denial(&applied).map(|failure| failure.hints.join(" "))
        };
        let rows = [
            (&[][..], 0, 0, None),
            (&["conflict", "conflict"], 2, 0, Some("The directory changed during the run. Repeat the run.")),
            (
                &["conflict", "protected"],
                1,
                1,
                Some("The directory changed during the run. Move your version, then apply the held changes."),
            ),
            (&["protected"], 0, 0, Some("Allow a path with `--allow-protected PATH`.")),
            (&["failed"], 1, 1, Some("Fix the cause that the note names, then apply the held changes.")),
        ];
        for (kinds, failed, held, expected) in rows {
            assert_eq!(hint(kinds, failed, held).as_deref(), expected, "{kinds:?}");
        }
    }

    #[test]
    fn a_lost_change_is_a_failure_beside_applied_ones() {
        let applied = json!({ "changed": 3, "denied_count": 1, "failed_count": 1, "denied": [{ "reason": { "kind": "conflict" } }] });
        let failure = denial(&applied).unwrap();
        assert_eq!(failure.exit, Exit::Denied);
    }
}
