//! `toolpost apply`, `discard` and `undo`: changes of runs in host directories.

mod review;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use toolpost_core::Timestamp;
use toolpost_sandbox::{Applied, ApplyState, DenialReason, Denied, HeldRun};

use self::review::Answer;
pub(crate) use self::review::review;

use crate::args::{HeldArgs, HeldRunArgs, UndoArgs};
use crate::config::paths;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::hints;
use crate::outcome::{count, whole_seconds};
use crate::print::Printer;
use crate::style::{FAINT, GOOD, HINT, WARN, label, one_line, paint};

/// The maximum number of hints of a failure.
const MAX_HINTS: usize = 3;

/// The ID that stands for the last run in this directory.
const LAST: &str = "last";

pub(crate) fn apply(args: &HeldArgs, printer: &Printer) -> Result<Exit, Failure> {
    let Some(id) = &args.id else { return list(printer) };
    let run = held_run(id)?;
    if args.review {
        match review::review_again(&run, &args.allow_protected, printer)? {
            Answer::Apply => {}
            Answer::Discard => return discard_run(run, printer),
            Answer::Hold => return Ok(Exit::Ok),
        }
    }
    let applied = run.apply(&args.allow_protected)?;
    report(&applied, printer)
}

pub(crate) fn discard(args: &HeldRunArgs, printer: &Printer) -> Result<Exit, Failure> {
    discard_run(held_run(&args.id)?, printer)
}

fn discard_run(run: HeldRun, printer: &Printer) -> Result<Exit, Failure> {
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
pub(crate) fn held_hints(directory: &Path, since: SystemTime) -> Vec<String> {
    let hint = |id: &String| {
        format!("The changes of the directory are held: `toolpost apply {id}` or `toolpost discard {id}`.")
    };
    held_in(directory, since).iter().map(hint).collect()
}

/// Prints the changes, conflicts and rejected paths.
fn report(applied: &Applied, printer: &Printer) -> Result<Exit, Failure> {
    if !printer.is_text() {
        let value = serde_json::to_value(applied).map_err(|error| {
            Failure::new(Exit::Failed, "INTERNAL", format!("the result has no JSON: {error}"))
        })?;
        printer.json(&value)?;
    }
    for line in lines(applied) {
        printer.note(&line);
    }
    let is_denied = is_denied(applied) || applied.failed_count > 0;
    // The line on held changes has the way on, except for errors of the host.
    let by_host = hints(applied).filter(|_| applied.failed_count > 0);
    for hint in by_host.take(MAX_HINTS) {
        printer.note(&format!("{} {hint}", paint(HINT, "hint:")));
    }
    Ok(if is_denied { Exit::Denied } else { Exit::Ok })
}

/// Whether protection blocked every change.
fn is_denied(applied: &Applied) -> bool {
    applied.changed == 0 && applied.denied_count > 0
}

/// The hints for the causes, each once. Lost changes come before denied ones.
fn hints(applied: &Applied) -> impl Iterator<Item = String> {
    let is_lost = applied.failed_count > 0;
    let counts = move |denied: &&Denied| !is_lost || denied.reason.is_by_host();
    let mut hints: Vec<String> = Vec::new();
    for hint in applied.denied.iter().filter(counts).filter_map(Denied::hint) {
        let hint = hints::of_sandbox(&hint);
        if !hints.contains(&hint) {
            hints.push(hint);
        }
    }
    hints.into_iter()
}

/// The failure of a run whose changes were all denied, or that lost a change to a conflict or an error of the host.
pub(crate) fn denial(applied: &Applied) -> Option<Failure> {
    let (code, message) = match applied.failed_count {
        0 if is_denied(applied) => {
            ("PROTECTED", "every change of the working directory was denied".to_owned())
        }
        0 => return None,
        number => {
            let has_conflict = applied.denied.iter().any(|denied| denied.reason == DenialReason::Conflict);
            let verb = if number == 1 { "was" } else { "were" };
            let code = if has_conflict { "CONFLICT" } else { "NOT_APPLIED" };
            (code, format!("{} of the working directory {verb} not applied", changes(number)))
        }
    };
    let failure = Failure::new(Exit::Denied, code, message);
    Some(hints(applied).take(MAX_HINTS).fold(failure, Failure::hint))
}

/// The text of an apply; empty without changes.
pub(crate) fn lines(applied: &Applied) -> Vec<String> {
    let id = label(&applied.id);
    let mut lines = Vec::new();
    if applied.state == ApplyState::Held {
        let because = applied.held_because.map_or(String::new(), |because| format!(" because {because}"));
        lines.push(format!(
            "{} changes are held{because}: `toolpost apply {id}` or `toolpost discard {id}`",
            paint(WARN, "held:")
        ));
    } else if applied.changed > 0 && applied.can_undo {
        let (changed, object) = (changes(applied.changed), object(applied.changed));
        lines.push(paint(FAINT, format!("applied {changed}; `toolpost undo {id}` reverts {object}")));
    }
    if applied.state == ApplyState::Applied {
        lines.extend(review::mark_lines(applied));
    }
    for one in &applied.denied {
        lines.push(format!(
            "{} {} ({})",
            paint(WARN, "not applied:"),
            paint(HINT, label(&one.path.to_string_lossy())),
            one_line(&one.message, 200)
        ));
    }
    let more = applied.denied_count.saturating_sub(applied.denied.len());
    if more > 0 {
        lines.push(format!("{} {more} more", paint(WARN, "not applied:")));
    }
    let held = applied.held_count;
    if held > 0 {
        let has = |fits: &dyn Fn(&DenialReason) -> bool| applied.denied.iter().any(|one| fits(&one.reason));
        let option = if has(&DenialReason::is_allowable) { " --allow-protected PATH" } else { "" };
        let is_conflict = has(&|reason| *reason == DenialReason::Conflict);
        let conflict = if is_conflict { " after you move your version" } else { "" };
        lines.push(format!(
            "{} {}; `toolpost apply {id}{option}` retries{conflict}, `toolpost discard {id}` drops {}",
            paint(WARN, "held:"),
            changes(held),
            object(held)
        ));
    }
    lines
}

fn changes(number: usize) -> String {
    count(number, "change")
}

fn object(number: usize) -> &'static str {
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
        applied = review(applied, allowed, printer)?;
    }
    for line in lines(&applied) {
        printer.note(&line);
    }
    denial(&applied).filter(|_| applied.state == ApplyState::Applied).map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind of a reason and its detail.
    type Kind = (&'static str, Option<&'static str>);
    /// Denied kinds, the numbers of lost and held changes, and the hints.
    type Row = (&'static [Kind], usize, usize, Option<&'static str>);

    /// An outcome with denied paths of these kinds, as another process prints it.
    fn applied(denied: &[Kind], failed: usize, held: usize, changed: usize) -> Applied {
        let denied: Vec<Value> = denied
            .iter()
            .map(|(kind, detail)| {
                let mut reason = json!({ "kind": kind, "detail": detail });
                if detail.is_none() {
                    reason = json!({ "kind": kind });
                }
                let read: DenialReason = serde_json::from_value(reason.clone()).unwrap();
                json!({ "path": "x", "reason": reason, "message": "", "hint": read.hint().map(|hint| hint.to_string()) })
            })
            .collect();
        let value = json!({
            "id": "0", "state": "applied", "held_because": null, "changed": changed, "denied_count": denied.len(),
            "denied": denied, "failed_count": failed, "held_count": held, "marked": [], "can_undo": false,
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_denial_has_the_hint_of_its_cause() {
        const ALLOW: &str = "Allow a path with `--allow-protected PATH`.";
        const TRUST: &str =
            "Edit the files on the host; then trust the file of the target again with `toolpost trust`.";
        const CONFLICT: &str = "The directory changed during the run: move the host's version, then apply again or repeat the run.";
        let rows: [Row; 10] = [
            (&[], 0, 0, None),
            (&[("conflict", None), ("conflict", None)], 2, 0, Some(CONFLICT)),
            (&[("conflict", None), ("protected", Some("editor"))], 1, 1, Some(CONFLICT)),
            (&[("protected", Some("editor"))], 0, 0, Some(ALLOW)),
            (&[("git_driver", None)], 0, 0, Some(ALLOW)),
            (&[("protected", Some("trusted"))], 0, 0, Some(TRUST)),
            (
                &[("protected", Some("own"))],
                0,
                0,
                Some("Toolpost keeps its own files there; choose other paths."),
            ),
            (&[("special", None)], 0, 0, Some("")),
            (&[("committed", Some("editor"))], 0, 5, Some(ALLOW)),
            (&[("failed", Some("an error")), ("protected", Some("editor"))], 1, 1, Some("")),
        ];
        for (denied, failed, held, expected) in rows {
            let applied = applied(denied, failed, held, 0);
            let hint = denial(&applied).map(|failure| failure.hints.join(" "));
            assert_eq!(hint.as_deref(), expected, "{denied:?}");
            let suggests = lines(&applied).concat().contains("--allow-protected");
            let is_allowable = applied.denied.iter().any(|denied| denied.reason.is_allowable());
            assert_eq!(suggests, is_allowable && held > 0, "{denied:?}");
        }
    }

    #[test]
    fn a_lost_change_is_a_failure_beside_applied_ones() {
        let failure = denial(&applied(&[("conflict", None)], 1, 0, 3)).unwrap();
        assert_eq!(failure.exit, Exit::Denied);
    }
}
