//! `toolpost flow ls` and `toolpost flow show`

mod steps;

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Clock as _, RunId, SystemClock, Timestamp, WideJson, format_duration};
use toolpost_flow::{FlowEvent, FlowSummary, Flows, RunStatus, StoredFlow};

use crate::args::FlowLsArgs;
use crate::commands::runs::before_now;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::Printer;
use crate::process_identity;
use crate::style::{BAD, FAINT, GOOD, HINT, STRONG, WARN, harmless, one_line, paint, paragraph};

/// The state of a run: how it ended, or `running`, `waiting`, `interrupted` or `unknown`.
pub(super) fn state(run: &FlowSummary) -> &'static str {
    if run.status != RunStatus::Running {
        return run.status.as_str();
    }
    // The owner is a cluster or a process.
    let is_alive =
        |owner: &str| if owner.contains("://") { Some(true) } else { process_identity::is_alive(owner) };
    match run.owner.as_deref().and_then(is_alive) {
        Some(true) if run.waiting.is_empty() => "running",
        Some(true) => "waiting",
        Some(false) => "interrupted",
        None => "unknown",
    }
}

fn sign(run: &FlowSummary) -> String {
    match state(run) {
        "succeeded" => paint(GOOD, "✓"),
        state @ ("running" | "waiting") => paint(WARN, format!("… {state}")),
        other => format!("{} {other}", paint(BAD, "✗")),
    }
}

fn to_json(run: &FlowSummary) -> Value {
    let mut value = json!(run);
    value["state"] = state(run).into();
    value
}

/// The time between two times, for people.
fn elapsed(from: Timestamp, to: Timestamp) -> String {
    format_duration(Duration::from_micros(to.as_micros().saturating_sub(from.as_micros())))
}

/// The filter of `flow ls`.
pub(super) fn filter(args: &FlowLsArgs) -> impl Fn(&FlowSummary) -> bool {
    let begin = args.since.map_or(Timestamp::default(), before_now);
    let (status, name) = (args.status.clone(), args.name.clone());
    move |run| {
        run.started >= begin
            && name.as_ref().is_none_or(|name| *name == run.name)
            && status.as_ref().is_none_or(|status| status == state(run))
    }
}

pub(super) fn list(runs: &[FlowSummary], printer: &Printer) -> Result<Exit, Failure> {
    printer.list("runs", runs, to_json, |run| {
        let failed = if run.failed > 0 { format!(", {} failed", run.failed) } else { String::new() };
        let waits = match run.waiting.as_slice() {
            [] => String::new(),
            names => format!(", waits for {}", one_line(&names.join(", "), 60)),
        };
        let time = elapsed(run.started, run.updated);
        let facts = format!("{} steps{failed}{waits} · {time}", run.succeeded);
        let id = paint(HINT, run.id.to_string());
        format!("{id}  {}  {}  {}", sign(run), one_line(&run.name, 60), paint(FAINT, &facts))
    })?;
    Ok(Exit::Ok)
}

pub(super) async fn show(flows: &Flows, start: &str, printer: &Printer) -> Result<Exit, Failure> {
    let id: RunId = flows.find(start).await?;
    print(flows.load(id).await?, printer)
}

pub(super) fn print(run: StoredFlow, printer: &Printer) -> Result<Exit, Failure> {
    if printer.is_text() {
        printer.result(&page(&run, printer.verbose > 0).join("\n"))?;
    } else {
        let log = run.events.iter().skip(1).map(|(at, event)| {
            let mut value = json!(event);
            value["at"] = json!(at);
            value
        });
        let log: Vec<Value> = log.collect();
        let mut value = to_json(&run.summary);
        let reports: Vec<Value> = run.steps().iter().map(steps::to_json).collect();
        for (name, member) in [
            ("steps", reports.into()),
            ("input", run.input),
            ("output", run.output),
            ("log", log.into()),
            ("plan", run.plan.source().clone()),
        ] {
            value[name] = member;
        }
        printer.foreign_json(&WideJson(&value))?;
    }
    Ok(Exit::Ok)
}

fn page(run: &StoredFlow, is_verbose: bool) -> Vec<String> {
    let summary = &run.summary;
    let row = |name: &str, text: &str| format!("{}  {text}", paint(FAINT, format!("{name:<9}")));
    let mut lines = vec![
        format!("{} {}", paint(STRONG, one_line(&summary.name, 60)), sign(summary)),
        row("run", &summary.id.to_string()),
        row("plan", &summary.hash),
        row("time", &format!("{} from {}", elapsed(summary.started, summary.updated), summary.started)),
        row("input", &one_line(&run.input.to_string(), 200)),
    ];
    lines.extend(summary.error.iter().map(|error| {
        let step = error.step.as_ref().map(|step| format!("step `{step}`: ")).unwrap_or_default();
        row("error", &format!("{step}{}: {}", error.code, paragraph(&error.message)))
    }));
    lines.extend(summary.waiting.iter().map(|name| row("waits for", &one_line(name, 100))));
    let message = |(_, event): &(Timestamp, FlowEvent)| match event {
        FlowEvent::Signal { name, value } => Some(("signal", one_line(&format!("{name} {value}"), 200))),
        FlowEvent::Answered { step, answer } => Some(("answer", one_line(&format!("{step} {answer}"), 200))),
        _ => None,
    };
    lines.extend(run.events.iter().filter_map(message).map(|(kind, text)| row(kind, &text)));
    let unread = run.unread.iter().filter_map(message);
    lines.extend(unread.map(|(kind, text)| row("pending", &format!("{kind} {text}"))));
    let is_active = matches!(state(summary), "running" | "waiting");
    let now = if is_active { SystemClock.timestamp() } else { summary.updated };
    steps::add(&run.steps(), 0, now, is_verbose, &mut lines);
    match &run.output {
        Value::Null => {}
        Value::String(text) => lines.extend([String::new(), harmless(text)]),
        value => {
            let text = serde_json::to_string_pretty(&WideJson(value)).unwrap_or_default();
            lines.extend([String::new(), harmless(&text)]);
        }
    }
    lines
}
