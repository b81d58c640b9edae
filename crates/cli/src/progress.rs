//! What a person sees while a run goes on, and what a program is told.

mod calls;
pub(crate) mod hosted;
mod masked;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use toolpost_agent::RunStopReason;
use toolpost_core::{
    CallRecord, Event, EventSink, LogLevel, LogLine, RunId, RunRecord, ToolError, format_duration,
};

pub(crate) use self::calls::Calls;
use self::masked::Masked;
use crate::args::Format;
use crate::print::Printer;
use crate::style::{BAD, FAINT, GOOD, HINT, STRONG, WARN, harmless, one_line, paint, paragraph};
use crate::terminal::Screen;
use crate::{env, logs};

/// How much of a value is shown on one line.
pub(crate) const WIDTH: usize = 100;

/// A sink for events: lines for a person on standard error, or JSON lines for a program on standard output.
pub(crate) fn sink(printer: &Printer) -> EventSink {
    sink_of(printer, None)
}

/// The same, with a terminal on which a person sees what is said while it is said.
pub(crate) fn sink_of(printer: &Printer, screen: Option<Arc<Screen>>) -> EventSink {
    let printer = printer.clone();
    let said = Mutex::new(Said::default());
    let masked = Masked::default();
    let inner = Inner::default();
    Arc::new(move |event: &Event| {
        logs::event(event);
        masked.pass(event, |event| match (printer.format, event) {
            (Format::Text, event) if inner.says(event) => {}
            // Files are put away when a run is over, so its command tells of the end.
            (Format::Jsonl, Event::RunFinished { .. }) | (Format::Json, _) => {}
            (Format::Jsonl, event) => {
                // A reader that went away is noticed at the end.
                let _ = printer.event(event);
            }
            (Format::Text, event) => match &screen {
                Some(screen) => screen.tell(event),
                None => tell(&printer, &said, event),
            },
        });
    })
}

/// A text of strangers on one line: harmless, of so many characters at most, and without the keys and tokens that are set.
pub(crate) fn told(text: &str, width: usize) -> String {
    one_line(&env::scrubber().scrub(text.to_owned()), width)
}

/// The runs of agents that are tools. What they say is the result of a call, and no answer to a person.
#[derive(Default)]
struct Inner(Mutex<HashSet<RunId>>);

impl Inner {
    /// Whether an event is one of their words.
    fn says(&self, event: &Event) -> bool {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::RunStarted { run, parent: Some(_), .. } => !runs.insert(*run),
            Event::RunFinished { record } => runs.remove(&record.id),
            Event::TextDelta { run, .. } | Event::TurnFinished { run, .. } => runs.contains(run),
            _ => false,
        }
    }
}

/// What was said and not printed, and the calls that run.
#[derive(Default)]
struct Said {
    spoken: String,
    calls: Calls,
}

fn tell(printer: &Printer, said: &Mutex<Said>, event: &Event) {
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    let Said { spoken, calls } = &mut *said;
    match event {
        Event::TextDelta { text, .. } => spoken.push_str(text),
        Event::TurnFinished { stop_reason, .. } => {
            let said = std::mem::take(spoken);
            // The last words are the result, and that goes to standard output.
            if stop_reason == "tool_use" && !said.trim().is_empty() {
                printer.note(&harmless(said.trim()));
            } else if !matches!(stop_reason.as_str(), "end_turn" | "stop_sequence") {
                *spoken = said;
            }
        }
        // Words that came to no answer are not lost.
        Event::RunFinished { record }
            if !record.success && !has_last_words(record) && !spoken.trim().is_empty() =>
        {
            printer.note(&harmless(spoken.trim()));
        }
        Event::Notice { message } => {
            printer.note(&format!("{} {}", paint(WARN, "note:"), paragraph(message)));
        }
        Event::HostedStarted { tool, input, .. } => {
            printer.note(&hosted::started(tool, input.as_deref()).join("\n"));
        }
        Event::HostedFinished { tool, output, .. } => {
            printer.note(&hosted::finished(tool, output).join("\n"));
        }
        Event::CallStarted { call, parent, tool, arguments } => {
            printer.note(&calls.started(*call, *parent, tool, arguments));
        }
        Event::CallProgress { call, progress } => {
            let percent = progress.percent.map(|percent| format!(" {percent:.0} %")).unwrap_or_default();
            let text = format!("{}{percent}", told(&progress.message, WIDTH));
            printer.note(&paint(FAINT, calls.within(*call, "…", &text)));
        }
        Event::CallLog { call, line } if is_told(printer, line) => {
            let style = if line.level >= LogLevel::Warn { WARN } else { FAINT };
            printer.note(&paint(style, calls.within(*call, "│", &told(&line.message, WIDTH))));
        }
        Event::CallRetry { call, attempt, error, wait_ms } => {
            printer.note(&calls.again(*call, *attempt, error, *wait_ms));
        }
        Event::CallFinished { record } => printer.note(&calls.finished(record)),
        _ => {}
    }
}

/// Whether a run that came to a limit has said something all the same: a sum, or an answer that was cut off. Its command
/// prints that as the result.
pub(crate) fn has_last_words(record: &RunRecord) -> bool {
    record.wrapped_up || record.stop_reason == RunStopReason::OutputTokens.as_str()
}

/// The longest name of a tool that is shown: a model may have made it up.
pub(crate) const NAME: usize = 64;

/// That a call begins.
pub(crate) fn started(name: &str, arguments: &Value) -> String {
    let call = format!("{} {}", paint(HINT, "→"), paint(STRONG, name));
    match brief(arguments) {
        arguments if arguments.is_empty() => call,
        arguments => format!("{call} {}", paint(FAINT, arguments)),
    }
}

/// That a call is made again.
fn again(name: &str, attempt: u32, error: &ToolError, wait_ms: u64) -> String {
    let why = told(error.message(), WIDTH);
    let wait = format_duration(Duration::from_millis(wait_ms));
    paint(WARN, format!("  {name}attempt {attempt} failed ({why}); again in {wait}"))
}

/// Whether a line that a tool logs is shown.
pub(crate) fn is_told(printer: &Printer, line: &LogLine) -> bool {
    printer.verbose > 0 || line.level >= LogLevel::Info
}

/// The arguments of a call, on one line.
fn brief(arguments: &Value) -> String {
    let Some(map) = arguments.as_object() else { return told(&arguments.to_string(), WIDTH) };
    let pairs: Vec<String> = map
        .iter()
        .map(|(key, value)| match value {
            Value::String(text) if text.contains('\n') => format!("{key}=({} lines)", text.lines().count()),
            Value::String(text) => format!("{key}={text}"),
            other => format!("{key}={other}"),
        })
        .collect();
    told(&pairs.join(" "), WIDTH)
}

/// How a call ended.
pub(crate) fn finished(name: &str, record: &CallRecord) -> String {
    let took = format_duration(record.duration);
    let name = paint(STRONG, name);
    match &record.error {
        Some(error) => {
            let why = format!("{}: {}", error.code(), error.message());
            let why = told(&why, 2 * WIDTH);
            format!("{} {name} {why} {}", paint(BAD, "✗"), paint(FAINT, format!("({took})")))
        }
        None => {
            let mut facts = vec![took, format!("{} bytes", record.content_bytes)];
            facts.extend(sandbox(record));
            if record.cached {
                facts.push("cached".into());
            }
            let facts = paint(FAINT, format!("({})", facts.join(", ")));
            // The tool has done its work; the code that it ran may have failed all the same.
            match failed(record) {
                Some(how) => format!("{} {name} {how} {facts}", paint(WARN, "!")),
                None => format!("{} {name} {facts}", paint(GOOD, "✓")),
            }
        }
    }
}

/// How code ended that did not end well.
fn failed(record: &CallRecord) -> Option<String> {
    let kind = record.sandbox.as_ref()?.get("verdict")?.get("kind")?.as_str()?;
    (kind != "ok").then(|| told(kind, NAME))
}

/// What the sandbox attests, in a few words.
fn sandbox(record: &CallRecord) -> Option<String> {
    let report = record.sandbox.as_ref()?.get("report")?;
    let level = report.get("effective")?.as_str()?;
    let layers = report.get("layers")?.as_array()?.len();
    Some(format!("sandbox {level}, {layers} layers"))
}
