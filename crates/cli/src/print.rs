//! Prints results, notes and failures.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use serde::Serialize;
use serde_json::{Value, json};
use toolpost_core::{Clock as _, SystemClock, Timestamp};

use crate::args::values::{Color, Format};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::style::{self, paint};

/// An event with the current time.
pub(crate) fn stamped<T>(event: &T) -> Stamped<'_, T> {
    Stamped { event, timestamp: SystemClock.timestamp() }
}

/// An event with a time.
#[derive(Serialize)]
pub(crate) struct Stamped<'a, T> {
    #[serde(flatten)]
    event: &'a T,
    timestamp: Timestamp,
}

/// Prints results to standard output and everything else to standard error.
#[derive(Clone, Debug)]
pub(crate) struct Printer {
    pub(crate) format: Format,
    /// Whether output has colors; `None` means on a terminal.
    color: Option<bool>,
    pub(crate) quiet: bool,
    pub(crate) verbose: u8,
}

impl Printer {
    pub(crate) fn new(format: Format, color: Color) -> Self {
        let mut printer = Self { format, color: None, quiet: false, verbose: 0 };
        printer.set_style(format, color);
        printer
    }

    /// Sets the format and the colors.
    pub(crate) fn set_style(&mut self, format: Format, color: Color) {
        let term = env::get("TERM");
        let plain = env::get("NO_COLOR").is_some() || term.as_deref() == Some("dumb");
        let forced = env::get("CLICOLOR_FORCE").is_some_and(|value| value != "0");
        self.format = format;
        self.color = match color {
            Color::Always => Some(true),
            Color::Never => Some(false),
            Color::Auto if plain => Some(false),
            Color::Auto if forced => Some(true),
            // A terminal without TERM may have no colors.
            Color::Auto => term.is_none().then_some(false),
        };
    }

    /// A stream that keeps or strips colors.
    fn stream<S: RawStream>(&self, raw: S) -> AutoStream<S> {
        let coloured = self.color.unwrap_or_else(|| raw.is_terminal());
        AutoStream::new(raw, if coloured { ColorChoice::Always } else { ColorChoice::Never })
    }

    /// Whether standard output has colors.
    pub(crate) fn is_coloured(&self) -> bool {
        self.colors(&io::stdout())
    }

    /// Whether a stream has colors.
    pub(crate) fn colors(&self, stream: &impl io::IsTerminal) -> bool {
        self.color.unwrap_or_else(|| stream.is_terminal())
    }

    /// Whether the terminal can move its cursor.
    pub(crate) fn moves_cursor() -> bool {
        env::get("TERM").is_some_and(|term| term != "dumb")
    }

    /// Whether the format is text.
    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// Prints a result.
    ///
    /// # Errors
    /// Writing fails. A broken pipe is no error, as in `… | head`.
    pub(crate) fn result(&self, text: &str) -> Result<(), Failure> {
        let mut out = self.stream(io::stdout().lock());
        let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        settle(write!(out, "{text}{newline}").and_then(|()| out.flush()))
    }

    /// Prints untrusted text as a result: escaped on a terminal, unchanged elsewhere.
    pub(crate) fn foreign_result(&self, text: &str) -> Result<(), Failure> {
        if io::stdout().is_terminal() {
            self.result(&style::harmless(text))
        } else {
            raw(text.as_bytes(), true)
        }
    }

    /// Prints a result as JSON: indented on a terminal, else on one line.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let many_lines = self.format == Format::Json && io::stdout().is_terminal();
        let text =
            if many_lines { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        let text = text.map_err(|error| Failure::new(Exit::Failed, "INTERNAL", error.to_string()))?;
        let text = env::scrubber().scrub_json(&text);
        if io::stdout().is_terminal() {
            // JSON escapes C0 control characters, but not the others.
            return raw(style::harmless(&text).as_bytes(), true);
        }
        raw(text.as_bytes(), true)
    }

    /// Prints a list: a line per item as text and as JSON Lines, one object with `key` as JSON.
    pub(crate) fn list<T>(
        &self,
        key: &str,
        items: &[T],
        to_json: impl Fn(&T) -> Value,
        to_text: impl Fn(&T) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.json(&json!({ key: items.iter().map(to_json).collect::<Vec<_>>() })),
            Format::Jsonl => items.iter().try_for_each(|item| self.json(&to_json(item))),
            Format::Text => self.result(&items.iter().map(to_text).collect::<Vec<_>>().join("\n")),
        }
    }

    /// Prints an event with the time as one JSON line.
    pub(crate) fn event(&self, event: &impl Serialize) -> Result<(), Failure> {
        self.json(&stamped(event))
    }

    /// Prints a note on stderr, in text format only.
    pub(crate) fn note(&self, text: &str) {
        if self.is_text() && !self.quiet {
            self.write_stderr(text);
        }
    }

    /// Prints a warning on stderr, in text format only.
    pub(crate) fn warn(&self, text: &str) {
        self.note(&format!("{} {}", paint(style::WARN, "warning:"), style::paragraph(text)));
    }

    /// Prints the host paths that a program sees, with `-v`.
    pub(crate) fn print_paths(&self, what: &str, paths: &[PathBuf]) {
        for path in paths.iter().filter(|_| self.verbose > 0) {
            let path = style::one_line(&path.display().to_string(), 500);
            self.note(&format!("{} {path}", paint(style::FAINT, what)));
        }
    }

    /// Prints the host paths that files of a program name and that are not shown, with the option that shows them.
    pub(crate) fn print_hidden(&self, what: &str, paths: &[PathBuf]) {
        for path in paths {
            let path = style::one_line(&path.display().to_string(), 500);
            self.note(&format!("{} {path}; `--readable PATH` shows it", paint(style::FAINT, what)));
        }
    }

    /// Writes to standard error, also with `--quiet`.
    pub(crate) fn write_stderr(&self, text: &str) {
        let mut err = self.stream(io::stderr().lock());
        // A broken stderr has no reader to report to.
        let _ = writeln!(err, "{}", env::scrubber().scrub(text.to_owned()));
    }

    /// Prints a prompt on standard error.
    pub(crate) fn prompt(&self, text: &str) -> io::Result<()> {
        let mut err = self.stream(io::stderr().lock());
        write!(err, "{text}")?;
        err.flush()
    }

    /// Prints a failure: text for people, else one JSON line.
    pub(crate) fn failure(&self, failure: &Failure) -> Exit {
        if !self.is_text() {
            self.write_stderr(&env::scrubber().scrub_json(&failure.to_json().to_string()));
            return failure.exit;
        }
        let mut lines =
            vec![format!("{} {}", paint(style::BAD, "error:"), style::paragraph(&failure.message))];
        lines.extend(failure.causes.iter().map(|cause| format!("  caused by: {}", style::paragraph(cause))));
        lines.extend(
            failure
                .hints
                .iter()
                .map(|hint| format!("{} {}", paint(style::HINT, "hint:"), style::paragraph(hint))),
        );
        self.write_stderr(&lines.join("\n"));
        failure.exit
    }

    /// Prints an error of clap; help and version are results.
    pub(crate) fn clap_error(&self, error: &clap::Error) -> Exit {
        let text = error.render().ansi().to_string();
        if !error.use_stderr() {
            return match self.result(&text) {
                Ok(()) => Exit::Ok,
                Err(failure) => self.failure(&failure),
            };
        }
        if self.is_text() {
            self.write_stderr(text.trim_end());
            return Exit::Usage;
        }
        self.failure(&error.into())
    }
}

/// Prints a value as one JSON line in every format.
pub(crate) fn line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(Exit::Failed, "INTERNAL", error.to_string()))?;
    let text = env::scrubber().scrub_json(&text);
    let text = if io::stdout().is_terminal() { style::harmless(&text) } else { text };
    raw(text.as_bytes(), true)
}

/// Prints an event with the time as one JSON line in every format.
pub(crate) fn event_line(event: &impl Serialize) -> Result<(), Failure> {
    line(&stamped(event))
}

/// Writes bytes to standard output unchanged.
pub(crate) fn raw(bytes: &[u8], newline: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let ends = bytes.is_empty() || bytes.last() == Some(&b'\n');
    let end: &[u8] = if newline && !ends { b"\n" } else { b"" };
    settle(out.write_all(bytes).and_then(|()| out.write_all(end)).and_then(|()| out.flush()))
}

/// Ignores a broken pipe.
fn settle(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::of_machine("standard output", &error))
        }
        _ => Ok(()),
    }
}
