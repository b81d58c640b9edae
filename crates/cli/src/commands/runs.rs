//! `toolpost runs`

mod replay;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize as _;
use serde_json::{Value, json};
use toolpost_agent::{RunStats, RunSummary, Runs, StoredRun};
use toolpost_core::{Clock as _, SystemClock, Timestamp, format_duration};
use toolpost_llm::Recording;

use crate::args::RunsCommand;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::model::new_recording;
use crate::outcome::{count, usd, whole_seconds};
use crate::print::Printer;
use crate::progress::lines::failed;
use crate::store::{self, LazyStore};
use crate::style::{BAD, FAINT, GOOD, HINT, STRONG, WARN, harmless, label, one_line, paint, paragraph};
use crate::{env, process_identity};

pub(crate) fn run(command: &RunsCommand, config: &Config, printer: &Printer) -> Result<Exit, Failure> {
    let path = store::path(config)?;
    if !path.exists() {
        let what = format!("`{}` has no runs", path.display());
        return Err(Failure::new(Exit::Failed, "NOT_FOUND", what)
            .hint("`toolpost run`, `chat` and `call` store runs there; `--store FILE` names another file."));
    }
    let store = Arc::new(LazyStore::new(path));
    let calls = Runs::for_calls(store.clone()).with_secrets(env::scrubber().clone());
    let runs = Runs::new(store).with_secrets(env::scrubber().clone());
    let runtime = crate::runtime::start()?;
    let done = runtime.block_on(async {
        match command {
            RunsCommand::Ls { limit, since, all } => {
                let begin = since.map_or(Timestamp::default(), before_now);
                let mut every = runs.list_all(usize::MAX).await?;
                if *all {
                    every.extend(calls.list_all(usize::MAX).await?);
                    every.sort_by_key(|run| std::cmp::Reverse(run.started));
                }
                let is_listed = |run: &&RunSummary| (*all || run.parent.is_none()) && run.started >= begin;
                let listed = every.iter().filter(is_listed).take(*limit);
                list(&listed.cloned().collect::<Vec<_>>(), &ShortIds::new(&every), printer)
            }
            RunsCommand::Show { id } => {
                let (store, id) = find_any(&runs, &calls, id).await?;
                show(&store.load(id).await?, printer)
            }
            RunsCommand::Rm { ids } => remove(&runs, &calls, ids, printer).await,
            RunsCommand::Stats { since } => {
                let begin = since.map_or(Timestamp::default(), before_now);
                stats(&runs.stats(begin).await?, printer)
            }
            RunsCommand::Replay(args) => Box::pin(replay::replay(&runs, args, config, printer)).await,
            RunsCommand::Export { id, file } => export(&runs, id, file, printer).await,
        }
    });
    crate::runtime::end(runtime);
    done?;
    Ok(Exit::Ok)
}

/// The name of the newest run in the store, whatever its directory: a record has none.
const LAST: &str = "last";
/// The maximum number of printed paths of each kind of change.
const MAX_PATHS: usize = 20;

async fn find(runs: &Runs, start: &str) -> Result<toolpost_core::RunId, Failure> {
    if start == LAST
        && let Some(run) = runs.list(None, 1).await?.first()
    {
        return Ok(run.id);
    }
    runs.find(start).await.map_err(|error| Failure::from(error).hint("`toolpost runs ls` lists them."))
}

/// Finds a run, a call outside of runs, or the run of a call, with its store.
async fn find_any<'a>(
    runs: &'a Runs,
    calls: &'a Runs,
    start: &str,
) -> Result<(&'a Runs, toolpost_core::RunId), Failure> {
    match find_stored(runs, calls, start).await {
        Ok(found) => Ok(found),
        Err(failure) => match runs.find_call(start).await? {
            Some(run) => Ok((runs, run)),
            None => Err(failure),
        },
    }
}

/// A run or a call outside of runs, with its store.
async fn find_stored<'a>(
    runs: &'a Runs,
    calls: &'a Runs,
    start: &str,
) -> Result<(&'a Runs, toolpost_core::RunId), Failure> {
    match find(runs, start).await {
        Ok(run) => Ok((runs, run)),
        Err(failure) => calls.find(start).await.map(|call| (calls, call)).map_err(|_| failure),
    }
}

pub(super) fn before_now(time: Duration) -> Timestamp {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(SystemClock.timestamp().as_micros().saturating_sub(micros))
}

/// The shortest unique prefixes of IDs.
struct ShortIds(Vec<String>);

impl ShortIds {
    /// The minimum length of a shown prefix.
    const MIN: usize = 8;

    fn new(runs: &[RunSummary]) -> Self {
        let mut ids: Vec<String> = runs.iter().map(|run| run.id.to_string()).collect();
        ids.sort();
        Self(ids)
    }

    fn short<'a>(&self, id: &'a str) -> &'a str {
        let at = self.0.partition_point(|other| other.as_str() < id);
        let same = |other: &String| id.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
        let before = at.checked_sub(1).and_then(|at| self.0.get(at)).map_or(0, same);
        let after = self.0.get(at + 1).map_or(0, same);
        id.get(..(before.max(after) + 1).max(Self::MIN)).unwrap_or(id)
    }
}

fn list(runs: &[RunSummary], ids: &ShortIds, printer: &Printer) -> Result<(), Failure> {
    let described = |run: &RunSummary| {
        let mut value = summary_json(run);
        value["short_id"] = ids.short(&run.id.to_string()).into();
        value
    };
    let id = |run: &RunSummary| ids.short(&run.id.to_string()).to_owned();
    let width = runs.iter().map(|run| id(run).len()).max().unwrap_or_default();
    printer.list("runs", runs, described, |run| line(run, &format!("{:<width$}", id(run))))
}

fn line(run: &RunSummary, id: &str) -> String {
    format!(
        "{}  {}  {}  {}",
        paint(HINT, id),
        sign(run),
        one_line(&run.title, 60),
        paint(FAINT, facts(run).join(" · "))
    )
}

/// Removes runs, unless one is still running.
async fn remove(runs: &Runs, calls: &Runs, ids: &[String], printer: &Printer) -> Result<(), Failure> {
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        let (store, id) = find_stored(runs, calls, id).await?;
        let run = store.load(id).await?.summary;
        if state(&run) == "running" {
            let message = format!("the run `{}` is running", run.id);
            return Err(Failure::new(Exit::Failed, "CONFLICT", message).hint("Stop it first with Ctrl-C."));
        }
        if !found.iter().any(|(_, known)| *known == run.id) {
            found.push((store, run.id));
        }
    }
    for (store, id) in &found {
        store.delete(*id).await?;
        printer.note(&format!("{} {id}", paint(GOOD, "removed")));
    }
    if !printer.is_text() {
        let ids: Vec<_> = found.iter().map(|(_, id)| id).collect();
        printer.json(&json!({ "removed": ids }))?;
    }
    Ok(())
}

/// A run as JSON.
fn summary_json(run: &RunSummary) -> Value {
    let mut value = json!(run);
    value["state"] = state(run).into();
    value
}

/// The state of a run: finished, running, or interrupted.
fn state(run: &RunSummary) -> &'static str {
    if run.stop_reason.is_some() {
        return "ended";
    }
    match run.process.as_deref().and_then(process_identity::is_alive) {
        Some(true) => "running",
        Some(false) => "interrupted",
        None => "unknown",
    }
}

/// The end of a run as text.
fn sign(run: &RunSummary) -> String {
    match (&run.stop_reason, run.success, state(run)) {
        (_, true, _) => paint(GOOD, "✓"),
        (Some(reason), false, _) => format!("{} {}", paint(BAD, "✗"), one_line(reason, 40)),
        (None, false, "running") => paint(WARN, "… running"),
        (None, false, "interrupted") => format!("{} interrupted", paint(BAD, "✗")),
        (None, false, _) => paint(WARN, "… not ended"),
    }
}

fn facts(run: &RunSummary) -> Vec<String> {
    let mut facts = match run.model.as_str() {
        // A call outside of runs.
        "" => Vec::new(),
        // A workflow.
        model if run.iterations == 0 && run.success => vec![one_line(model, 60)],
        model => vec![one_line(model, 60), count(run.iterations as usize, "turn")],
    };
    facts.push(count(run.tool_calls, "tool call"));
    if run.usage.total_tokens() > 0 {
        facts.push(format!("{} tokens in, {} out", run.usage.input_tokens, run.usage.output_tokens));
    }
    facts.extend(run.cost_usd.filter(|cost| *cost > 0.0 || run.success).map(usd));
    if run.stop_reason.is_some() {
        facts.push(format_duration(Duration::try_from_secs_f64(run.execution_time).unwrap_or_default()));
    }
    facts.push(whole_seconds(run.started));
    facts.extend(run.parent.map(|parent| format!("part of {parent}")));
    facts
}

fn show(run: &StoredRun, printer: &Printer) -> Result<(), Failure> {
    if !printer.is_text() {
        return printer.foreign_json(&json!({
            "summary": summary_json(&run.summary),
            "options": run.options,
            "system": run.system,
            "prompt": run.prompt,
            "texts": run.texts,
            "record": run.record,
            "calls": run.calls,
        }));
    }
    let summary = &run.summary;
    let mut lines = vec![format!("{} {}", paint(STRONG, one_line(&summary.title, 80)), sign(summary))];
    lines.push(paint(FAINT, facts(summary).join(" · ")));
    if let Some(conversation) = summary.conversation {
        lines.push(paint(FAINT, format!("conversation {conversation}")));
    }
    lines.extend(run.options.iter().flat_map(options));
    for (mark, text) in [("system:", &run.system), (">", &run.prompt)] {
        let text = text.as_deref().map(harmless).unwrap_or_default();
        lines.extend(text.lines().map(|line| paint(FAINT, format!("{mark} {line}"))));
    }
    let record = run.record.as_ref();
    let response = record.and_then(|record| record["response"].as_str()).unwrap_or_default();
    // The last text is mostly the answer.
    let is_answer = run.texts.last().is_some_and(|last| last.text.trim() == response.trim());
    let mut texts = run.texts.iter().take(run.texts.len() - usize::from(is_answer)).peekable();
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let calls = record.and_then(|record| record["tool_calls"].as_array()).into_iter().flatten();
    for call in calls.chain(&run.calls) {
        let started = call.get("started").and_then(|at| Timestamp::deserialize(at).ok());
        while let Some(text) = texts.next_if(|text| started.is_none_or(|started| text.at <= started)) {
            lines.push(harmless(text.text.trim()));
        }
        let verdict = call.pointer("/sandbox/verdict/kind").and_then(Value::as_str).and_then(failed);
        // The same marks as in the live lines: the call may succeed and its code fail.
        let (mark, verdict) = match (call.get("error").is_some_and(Value::is_object), verdict) {
            (true, _) => (paint(BAD, "✗"), String::new()),
            (false, Some(verdict)) => (paint(WARN, "!"), format!("{verdict} ")),
            (false, None) => (paint(GOOD, "✓"), String::new()),
        };
        let arguments = call.get("arguments").map(ToString::to_string).unwrap_or_default();
        lines.push(format!(
            "{mark} {} {verdict}{} {}",
            paint(STRONG, one_line(&text(call.get("tool")), 64)),
            paint(FAINT, one_line(&arguments, 100)),
            paint(FAINT, timing(call, summary.started))
        ));
        lines.extend(failure(call));
    }
    lines.extend(texts.map(|text| harmless(text.text.trim())));
    let files = record.and_then(|record| record["artifacts"].as_array()).into_iter().flatten();
    for file in files {
        let size = count(file["size"].as_u64().unwrap_or_default() as usize, "byte");
        let name = paint(HINT, one_line(&text(file.get("name")), 200));
        lines.push(format!("{} {name} ({size})", paint(GOOD, "made")));
    }
    lines.extend(changes(record));
    // A call outside of runs has its error in the call's lines.
    let record = record.filter(|_| !summary.model.is_empty());
    if let Some(message) = record.and_then(|record| record.get("error")?.get("message")?.as_str()) {
        lines.push(format!("{} {}", paint(BAD, "error:"), one_line(message, 400)));
    }
    lines.push(harmless(response));
    printer.result(&lines.join("\n"))
}

/// The stored options of a run, one a line.
fn options(options: &Value) -> Vec<String> {
    let options = options.as_object().into_iter().flatten();
    // The system prompt has its own lines.
    let options = options.filter(|(name, _)| *name != "system_prompt");
    options.map(|(name, value)| paint(FAINT, one_line(&format!("{name}: {value}"), 200))).collect()
}

/// Changes of a run in directories of the host.
fn changes(record: Option<&Value>) -> Vec<String> {
    let Some(changes) = record.and_then(|record| record.get("changes")) else { return Vec::new() };
    let paths = |kind: &str| changes[kind].as_array().into_iter().flatten().filter_map(Value::as_str);
    let line = |(kind, role)| {
        let named: Vec<String> =
            paths(kind).take(MAX_PATHS).map(|path| paint(HINT, one_line(path, 200))).collect();
        let more = match paths(kind).count().saturating_sub(MAX_PATHS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!named.is_empty()).then(|| format!("{} {}{more}", paint(role, kind), named.join(", ")))
    };
    let kinds = [("created", GOOD), ("changed", WARN), ("deleted", BAD)];
    let held =
        paths("held").map(|id| format!("{} `toolpost apply {}`", paint(WARN, "held:"), one_line(id, 40)));
    kinds.into_iter().filter_map(line).chain(held).collect()
}

/// Adds the error of a call, its causes, and the end of its program's stderr.
fn failure(call: &Value) -> Vec<String> {
    let Some(error) = call.get("error").filter(|error| error.is_object()) else { return Vec::new() };
    let text = |value: &Value| paragraph(value.as_str().unwrap_or_default());
    let mut lines = vec![format!("  {} {}", paint(BAD, text(&error["code"])), text(&error["message"]))];
    let causes = call["causes"].as_array().into_iter().flatten();
    let causes = causes.filter(|cause| **cause != error["message"]);
    lines.extend(causes.map(|cause| format!("  caused by: {}", text(cause))));
    if let Some(stderr) = error["context"]["stderr"].as_str().filter(|stderr| !stderr.is_empty()) {
        lines.push(format!("  stderr: {}", paragraph(stderr)));
    }
    lines
}

/// The start of a call within its run, and its duration.
fn timing(call: &Value, begun: Timestamp) -> String {
    let time = |ms: f64| format_duration(Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default());
    let started = call.get("started").and_then(|at| Timestamp::deserialize(at).ok());
    let offset = started.map(|at| at.as_micros().saturating_sub(begun.as_micros()) as f64 / 1000.0);
    let took = call.get("duration_ms").and_then(Value::as_f64);
    match (offset, took) {
        (Some(offset), Some(took)) => format!("({}, after {})", time(took), time(offset)),
        (None, Some(took)) => format!("({})", time(took)),
        _ => String::new(),
    }
}

fn stats(stats: &RunStats, printer: &Printer) -> Result<(), Failure> {
    if !printer.is_text() {
        return printer.json(stats);
    }
    let mut lines = vec![figures("all", stats)];
    lines.extend(stats.models.iter().map(|(model, stats)| figures(model, stats)));
    for (reason, runs) in &stats.stop_reasons {
        lines.push(paint(FAINT, format!("{} ended with {}", count(*runs, "run"), one_line(reason, 60))));
    }
    printer.result(&lines.join("\n"))
}

fn figures(name: &str, stats: &RunStats) -> String {
    let mut facts = vec![
        format!("{}, {} succeeded", count(stats.runs, "run"), stats.succeeded),
        match stats.call_success_rate {
            Some(rate) => {
                let percent = (rate * 1000.0).round() / 10.0;
                format!("{}, {percent} % succeeded", count(stats.tool_calls, "tool call"))
            }
            None => count(stats.tool_calls, "tool call"),
        },
        format!("{} tokens in, {} out", stats.usage.input_tokens, stats.usage.output_tokens),
        usd(stats.known_cost_usd),
    ];
    if stats.unknown_costs > 0 {
        facts.push(format!("{} of unknown cost", stats.unknown_costs));
    }
    if stats.unfinished > 0 {
        facts.push(format!("{} not ended", stats.unfinished));
    }
    format!("{}  {}", paint(STRONG, one_line(name, 60)), facts.join(" · "))
}

/// Exports a run as a recording for `replay:FILE`.
async fn export(runs: &Runs, id: &str, file: &Path, printer: &Printer) -> Result<(), Failure> {
    let id = find(runs, id).await?;
    let opened = new_recording(file)?;
    let described = match runs.export(id, &Recording::new(opened, env::scrubber().clone())).await {
        Ok(described) => described,
        Err(error) => {
            // A partial recording is removed.
            let _ = std::fs::remove_file(file);
            return Err(error.into());
        }
    };
    if !printer.is_text() {
        return printer.json(&json!({ "run": id, "file": file, "exchanges": described }));
    }
    printer.note(&format!(
        "{} in {}: `--model replay:{}` replays it",
        count(described, "exchange"),
        paint(HINT, label(&file.display().to_string())),
        label(&file.display().to_string())
    ));
    Ok(())
}
