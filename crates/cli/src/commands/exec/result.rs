//! The result of a run, printed for people and programs.

use std::path::PathBuf;

use serde::Deserialize as _;
use serde_json::Value;
use toolpost_core::WideJson;
use toolpost_runtimes::Unmet;
use toolpost_sandbox::{Applied, Layer, Outcome, Program, Reached, Report, ResourceUsage, Verdict};

use super::advice;
use super::stream::Live;
use crate::args::{ExecArgs, Format};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::held_changes;
use crate::hints;
use crate::outcome::count;
use crate::print::Printer;
use crate::style::{self, FAINT, GOOD, HINT, WARN, harmless, paint};
use crate::verdict::{self, Ran};

/// The result of a run, here or in a session's holder.
#[derive(Debug)]
pub(super) struct ExecResult {
    verdict: Verdict,
    report: Report,
    usage: ResourceUsage,
    applied: Option<Applied>,
    outcome: Value,
    /// The stored path of each artifact; `None` for a rejected one.
    files: Vec<Option<String>>,
    /// The resource that the program lacked.
    hints: Vec<String>,
}

impl ExecResult {
    pub(super) fn new(outcome: &Outcome, files: &[Option<PathBuf>]) -> Result<Self, Failure> {
        let files = files.iter().map(|path| Some(path.as_ref()?.display().to_string())).collect();
        let outcome = serde_json::to_value(outcome);
        Self::read(outcome.map_err(|error| defect(&error))?, files)
    }

    /// Parses the JSON of an outcome.
    pub(super) fn read(outcome: Value, files: Vec<Option<String>>) -> Result<Self, Failure> {
        let verdict = Verdict::deserialize(&outcome["verdict"]).map_err(|error| defect(&error))?;
        let report = Report::deserialize(&outcome["report"]).map_err(|error| defect(&error))?;
        let usage = ResourceUsage::deserialize(&outcome["usage"]).map_err(|error| defect(&error))?;
        let applied = Option::deserialize(&outcome["applied"]).map_err(|error| defect(&error))?;
        Ok(Self { verdict, report, usage, applied, outcome, files, hints: Vec::new() })
    }

    /// Adds advice on what the program lacked.
    pub(super) fn advised(mut self, program: &Program, args: &ExecArgs) -> Self {
        let text = |stream: &str| self.outcome[stream]["text"].as_str().unwrap_or_default();
        let found = Unmet::find(program, text("stdout"), text("stderr"), &self.report);
        self.hints = advice::hints(&found, args);
        let events = self.report.egress.iter().flat_map(|log| &log.events);
        for hint in events.filter_map(|event| event.refused.as_ref()?.hint.as_ref()).map(hints::of_egress) {
            if !self.hints.contains(&hint) {
                self.hints.push(hint);
            }
        }
        self
    }

    /// Prints the result and returns the exit code.
    pub(super) fn close(
        &self,
        mut live: Live,
        trouble: Option<Failure>,
        printer: &Printer,
    ) -> Result<Exit, Failure> {
        live.finish();
        self.print(live, printer)?;
        let denied = || self.applied.as_ref().and_then(held_changes::denial).filter(|_| self.verdict.is_ok());
        let level = self.report.effective;
        let has_layer = [Layer::PrivateLayer, Layer::PrivateCopy].iter().any(|layer| self.report.has(*layer));
        let ran = if has_layer { Ran::Layer(level) } else { Ran::Exec(level) };
        let failed = trouble.or_else(denied).or_else(|| verdict::failure(&self.verdict, ran));
        match failed.or_else(|| self.truncation(printer.format)) {
            Some(failure) => {
                Err(self.hints.iter().fold(failure, |failure, hint| failure.hint(hint.as_str())))
            }
            None => {
                for hint in &self.hints {
                    printer.note(&format!("{} {hint}", paint(HINT, "hint:")));
                }
                Ok(Exit::Ok)
            }
        }
    }

    /// The failure for a truncated part of the output that a program reads as data. The events of `jsonl` have both
    /// streams in full.
    fn truncation(&self, format: Format) -> Option<Failure> {
        let parts: &[(&str, Reached)] = match format {
            Format::Text => &[],
            Format::Jsonl => &[("value", Reached::Value)],
            Format::Json => {
                &[("value", Reached::Value), ("stdout", Reached::Stdout), ("stderr", Reached::Stderr)]
            }
        };
        let (name, _) = parts.iter().find(|(_, reached)| self.report.reached.contains(reached))?;
        let message = format!("`{name}` is truncated: it exceeds the limit of the output");
        let hint = "`--max-output SIZE` raises the limit; a program can write large data to a file.";
        Some(Failure::new(Exit::Limit, "LIMIT", message).hint(hint))
    }

    /// Prints the value, the files, and the attested layers.
    fn print(&self, live: Live, printer: &Printer) -> Result<(), Failure> {
        match printer.format {
            Format::Json => return printer.foreign_json(&WideJson(&self.outcome)),
            Format::Jsonl => return live.end(&self.outcome, &self.files),
            Format::Text => {}
        }
        let value = &self.outcome["value"];
        if !value.is_null() && self.outcome["value_printed"] != true {
            live.value(&value_text(value), printer)?;
        }
        let made = self.artifact_lines();
        for line in made.iter().take(MAX_ARTIFACT_LINES) {
            printer.note(line);
        }
        if let Some(more @ 1..) = made.len().checked_sub(MAX_ARTIFACT_LINES) {
            printer.note(&format!("{} {more} more files; `--json` lists them", paint(GOOD, "made")));
        }
        for line in self.applied.as_ref().map_or(Vec::new(), held_changes::lines) {
            printer.note(&line);
        }
        printer.print_paths("shown:", &self.report.shown);
        printer.print_hidden("not shown:", &self.report.not_shown);
        for note in &self.report.notes {
            printer.note(&format!("{} {}", paint(FAINT, "note:"), style::one_line(note, 500)));
        }
        printer.note(&self.summary());
        Ok(())
    }

    /// One line per artifact with its path.
    fn artifact_lines(&self) -> Vec<String> {
        let denied: Vec<&str> = self
            .applied
            .iter()
            .flat_map(|applied| &applied.denied)
            .filter_map(|denied| denied.path.to_str())
            .collect();
        let mut lines = Vec::new();
        for (index, artifact) in self.outcome["artifacts"].as_array().into_iter().flatten().enumerate() {
            let path = artifact["path"].as_str().unwrap_or_default();
            let place = match self.files.get(index) {
                // A note covers it.
                Some(None) => continue,
                Some(Some(place)) => place.as_str(),
                None if denied.contains(&path) => continue,
                None => path,
            };
            let size = count(artifact["size"].as_u64().unwrap_or_default() as usize, "byte");
            lines.push(format!("{} {} ({size})", paint(GOOD, "made"), paint(HINT, harmless(place))));
        }
        lines
    }

    /// One line: the end of the run, and the attested layers.
    fn summary(&self) -> String {
        let report = &self.report;
        let ended = if self.verdict.is_ok() { paint(GOOD, "ok") } else { paint(WARN, "failed") };
        let mut facts =
            vec![format!("level {}{}", report.effective, if report.degraded { " (degraded)" } else { "" })];
        if report.backend != "process" {
            facts.push(report.backend.clone());
        }
        facts.push(format!("{} layers", report.layers.len()));
        facts.push(toolpost_core::format_duration(self.usage.wall));
        facts.extend(report.missing.iter().map(|missing| {
            let layer = serde_json::to_value(missing.layer).unwrap_or_default();
            format!("without {}", layer.as_str().unwrap_or_default())
        }));
        format!("{ended} {}", paint(FAINT, facts.join(" · ")))
    }
}

/// The maximum number of printed artifacts.
const MAX_ARTIFACT_LINES: usize = 20;

/// A value as text: strings and tables unchanged, anything else as JSON.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(fields) if fields.contains_key("shape") => {
            fields.get("text").and_then(Value::as_str).map_or_else(|| value.to_string(), str::to_owned)
        }
        value => WideJson(value).to_string(),
    }
}

fn defect(error: &serde_json::Error) -> Failure {
    Failure::new(Exit::Failed, "INTERNAL", format!("the outcome has no JSON: {error}"))
}
