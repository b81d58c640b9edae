//! The log: off by default, on standard error or in a file.

use std::fmt;
use std::io::{self, Write};
use std::sync::Mutex;

use toolpost_core::{Event, LogLevel, without_userinfo};
use toolpost_sandbox::Outcome;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata, Subscriber, debug, info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets, filter_fn};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::Global;
use crate::args::values::LogFormat;
use crate::config::Config;
use crate::env;
use crate::failure::Failure;
use crate::regular_file;
use crate::style::harmless;

/// Starts the log. `--log` overrides the setting `log`, which overrides `-v`.
///
/// A server logs errors, because its callers get only the ID of an internal error.
pub(crate) fn start(
    global: &Global,
    config: &Config,
    format: LogFormat,
    is_server: bool,
) -> Result<(), Failure> {
    let requested = global.log.clone().or_else(|| config.settings.log.clone());
    let log_file = global.log_file.clone().or_else(|| config.settings.log_file.clone());
    let default = match (global.verbose, &log_file) {
        (0, None) if is_server => "error",
        (0, None) => "off",
        (0 | 1, _) => "info",
        (2, _) => "debug",
        _ => "trace",
    };
    let filter = requested.as_deref().unwrap_or(default);
    let filter = parse(filter).map_err(|problem| {
        Failure::usage(format!("invalid log filter `{filter}`: {problem}"))
            .hint("Levels are off, error, warn, info, debug and trace: `debug`, `toolpost::call=debug,warn`.")
    })?;
    if filter == Targets::new().with_default(LevelFilter::OFF) && log_file.is_none() {
        return Ok(());
    }
    let writer = match &log_file {
        None => BoxMakeWriter::new(|| Harmless(io::stderr())),
        Some(path) => {
            let file = regular_file::append(path);
            let file = file.map_err(|error| Failure::file("the log file", path, &error))?;
            BoxMakeWriter::new(Mutex::new(Harmless(file)))
        }
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false)
        // An error of the log goes to standard error, and ends the process if that is closed.
        .log_internal_errors(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let filters = filter_fn(is_no_message_dump).and_then(filter).and_then(ExceptDisconnects);
    tracing_subscriber::registry().with(lines).with(filters).init();
    Ok(())
}

/// Parses a filter. A word is a level, a target of Toolpost, or `TARGET=LEVEL`.
fn parse(filter: &str) -> Result<Targets, String> {
    let level = |name: &str| match LogLevel::from_name(name) {
        Some(LogLevel::Trace) => Ok(LevelFilter::TRACE),
        Some(LogLevel::Debug) => Ok(LevelFilter::DEBUG),
        Some(LogLevel::Info) => Ok(LevelFilter::INFO),
        Some(LogLevel::Warn) => Ok(LevelFilter::WARN),
        Some(LogLevel::Error) => Ok(LevelFilter::ERROR),
        None if name.eq_ignore_ascii_case("off") => Ok(LevelFilter::OFF),
        None => Err(format!("`{name}` is not a level")),
    };
    filter.split(',').map(str::trim).filter(|part| !part.is_empty()).try_fold(
        Targets::new(),
        |targets, part| {
            Ok(match part.split_once('=') {
                Some((target, name)) => targets.with_target(target, level(name)?),
                None if part.starts_with("toolpost") => targets.with_target(part, LevelFilter::TRACE),
                None => targets.with_default(level(part)?),
            })
        },
    )
}

/// Whether a line is not a dump of a whole message, which may have secrets.
fn is_no_message_dump(line: &Metadata<'_>) -> bool {
    let part = line.target().split("::").next().unwrap_or_default();
    *line.level() <= Level::WARN || !["rmcp", "tungstenite", "tokio_tungstenite"].contains(&part)
}

/// Discards errors that rmcp logs when a client disconnects with a pending answer.
struct ExceptDisconnects;

impl<S: Subscriber> Layer<S> for ExceptDisconnects {
    fn event_enabled(&self, event: &tracing::Event<'_>, _context: Context<'_, S>) -> bool {
        if event.metadata().target() != "rmcp::service" {
            return true;
        }
        let mut disconnect = Disconnect::default();
        event.record(&mut disconnect);
        !(disconnect.is_draining || disconnect.is_answering && disconnect.is_closed)
    }
}

/// Fields of a log line about a connection.
#[derive(Default)]
struct Disconnect {
    is_draining: bool,
    is_answering: bool,
    is_closed: bool,
}

impl Visit for Disconnect {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => {
                self.is_draining |= text == "failed to send pending response during drain";
                self.is_answering |= text == "fail to response message";
            }
            "error" => self.is_closed |= text == "channel closed",
            _ => {}
        }
    }
}

/// Escapes untrusted text in the log and masks secrets.
struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    /// Writes the whole buffer: a log line comes in one piece.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = env::scrubber().scrub(String::from_utf8_lossy(bytes).into_owned());
        self.0.write_all(harmless(&without_userinfo(&line)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The log target of runs.
const RUN: &str = "toolpost::run";
/// The log target of calls.
const CALL: &str = "toolpost::call";

/// The log target of sandboxes.
const SANDBOX: &str = "toolpost::sandbox";

/// Logs the end of a sandbox.
pub(crate) fn sandbox(outcome: &Outcome) {
    let (report, usage) = (&outcome.report, &outcome.usage);
    let (level, backend, verdict) = (report.effective, &report.backend, &outcome.verdict);
    let milliseconds = usage.wall.as_millis();
    debug!(target: SANDBOX, %level, backend, layers = ?report.layers, ?verdict, milliseconds, "sandbox ended");
}

/// Logs an event: steps of a run as `info`, details as `debug`. The log has no texts and results, and masks
/// secrets in arguments.
pub(crate) fn event(event: &Event) {
    match event {
        Event::RunStarted { run, model, tools, .. } => {
            info!(target: RUN, %run, model, tools = tools.join(","), "run started");
        }
        Event::TurnStarted { run, iteration } => debug!(target: RUN, %run, iteration, "model requested"),
        Event::TurnFinished { run, iteration, stop_reason, usage } => {
            let (input, output) = (usage.input_tokens, usage.output_tokens);
            info!(target: RUN, %run, iteration, stop_reason, input, output, "model answered");
        }
        Event::HostedStarted { run, id, tool, .. } => {
            debug!(target: CALL, %run, id, tool, "hosted tool started");
        }
        Event::HostedFinished { run, id, tool, .. } => {
            debug!(target: CALL, %run, id, tool, "hosted tool finished");
        }
        Event::CallStarted { call, tool, arguments, .. } => {
            debug!(target: CALL, %call, %tool, %arguments, "call started");
        }
        Event::CallRetry { call, attempt, error, wait_ms } => {
            warn!(target: CALL, %call, attempt, %error, wait_ms, "call retried");
        }
        Event::CallFinished { record } => {
            let code = record.error.as_ref().map(toolpost_core::ToolError::code);
            let (call, tool, milliseconds) = (record.id, &record.tool, record.duration.as_millis());
            info!(target: CALL, %call, %tool, code = code.map(tracing::field::display), milliseconds, "call finished");
            let text = |pointer: &str| record.sandbox.as_ref()?.pointer(pointer)?.as_str();
            if let Some(level) = text("/report/effective") {
                let verdict = text("/verdict/kind");
                debug!(target: SANDBOX, %call, %tool, level, verdict, "sandbox ended");
            }
        }
        Event::Notice { message } => warn!(target: RUN, "{message}"),
        Event::RunFinished { record } => {
            let (stop_reason, turns) = (&record.stop_reason, record.iterations);
            info!(target: RUN, run = %record.id, stop_reason, turns, "run finished");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_filter_is_accepted_or_rejected() {
        for (text, level) in [
            ("warning", LevelFilter::WARN),
            ("WARNING", LevelFilter::WARN),
            ("critical", LevelFilter::ERROR),
            ("Debug", LevelFilter::DEBUG),
            ("off", LevelFilter::OFF),
        ] {
            assert_eq!(parse(text), Ok(Targets::new().with_default(level)), "{text}");
        }
        let call = Targets::new().with_target("toolpost::call", LevelFilter::DEBUG);
        assert_eq!(parse("toolpost::call=debug,WARNING"), Ok(call.with_default(LevelFilter::WARN)));
        for text in ["loud", "toolpost::call=loud", "debug,nonsense", "="] {
            assert!(parse(text).unwrap_err().contains("is not a level"), "{text}");
        }
    }
}
