//! The changes of this command to host directories: printed once, at its end, and undone together.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use toolpost_core::ChangedFiles;
use toolpost_sandbox::{ChangeSummary, RunChanges};

use crate::config::paths;
use crate::print::Printer;
use anstyle::Style;

use crate::style::{BAD, FAINT, GOOD, HINT, WARN, label, paint};

/// The maximum number of printed paths of each kind.
const MAX_PRINTED: usize = 8;

static CHANGES: Mutex<Option<RunChanges>> = Mutex::new(None);

fn changes() -> std::sync::MutexGuard<'static, Option<RunChanges>> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists the changes of this command from now on. On a host without private layers there is no list.
pub(crate) fn begin() {
    *changes() = RunChanges::begin(paths::layers().as_deref()).ok();
}

/// The list for tools and programs; none before [`begin`].
pub(crate) fn current() -> Option<RunChanges> {
    changes().clone()
}

/// The changes so far, for a record. None without changes.
pub(crate) fn recorded() -> Option<ChangedFiles> {
    let summary = current()?.summary();
    let texts = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect();
    let has_any = summary.count() > 0;
    (has_any || !summary.held.is_empty()).then(|| ChangedFiles {
        created: texts(&summary.created),
        changed: texts(&summary.changed),
        deleted: texts(&summary.deleted),
        more: summary.more,
        undo: (has_any && summary.can_undo).then(|| summary.id.clone()),
        held: summary.held,
    })
}

/// Ends the list and prints it.
pub(crate) fn end(printer: &Printer) {
    let Some(changes) = changes().take() else { return };
    for line in lines(&changes.summary()) {
        printer.note(&line);
    }
}

fn lines(summary: &ChangeSummary) -> Vec<String> {
    let kinds: [(&str, Style, &[PathBuf]); 3] = [
        ("created", GOOD, &summary.created),
        ("changed", WARN, &summary.changed),
        ("deleted", BAD, &summary.deleted),
    ];
    let mut lines: Vec<String> = kinds
        .iter()
        .filter(|(.., paths)| !paths.is_empty())
        .map(|(kind, role, paths)| format!("{} {}", paint(*role, kind), names(paths)))
        .collect();
    if summary.more > 0 {
        lines.push(format!("{} more changes", summary.more));
    }
    if !lines.is_empty() {
        let id = label(&summary.id);
        lines.push(if summary.can_undo {
            paint(FAINT, format!("`toolpost undo {id}` reverts the changes"))
        } else {
            paint(WARN, "some of these changes cannot be undone: their old versions were not stored")
        });
    }
    for id in &summary.held {
        let id = label(id);
        lines.push(format!(
            "{} changes of a program wait: `toolpost apply {id}` or `toolpost discard {id}`",
            paint(WARN, "held:")
        ));
    }
    lines
}

/// The first paths, relative to the working directory.
fn names(paths: &[PathBuf]) -> String {
    let here = std::env::current_dir().and_then(|here| here.canonicalize()).unwrap_or_default();
    let name = |path: &Path| {
        let shown = path.strip_prefix(&here).unwrap_or(path);
        paint(HINT, label(&shown.display().to_string()))
    };
    let shown: Vec<String> = paths.iter().take(MAX_PRINTED).map(|path| name(path)).collect();
    match paths.len().saturating_sub(MAX_PRINTED) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
