//! Where output goes, and in which form.

use std::io::{self, IsTerminal as _, Write};
use std::path::PathBuf;

use anstream::stream::RawStream;
use anstream::{AutoStream, ColorChoice};
use serde::Serialize;
use toolpost_core::{Clock as _, SystemClock, Timestamp};

use crate::args::{Color, Format};
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::style::{self, paint};

/// An event with the time at which it is printed.
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
    /// Whether output is coloured; `None` means on a terminal.
    color: Option<bool>,
    pub(crate) quiet: bool,
    pub(crate) verbose: u8,
}

impl Printer {
    pub(crate) fn new(format: Format, color: Color) -> Self {
        let mut printer = Self { format, color: None, quiet: false, verbose: 0 };
        printer.look(format, color);
        printer
    }

    /// Sets in which form and colours it prints.
    pub(crate) fn look(&mut self, format: Format, color: Color) {
        let term = env::get("TERM");
        let plain = env::get("NO_COLOR").is_some() || term.as_deref() == Some("dumb");
        let forced = env::get("CLICOLOR_FORCE").is_some_and(|value| value != "0");
        self.format = format;
        self.color = match color {
            Color::Always => Some(true),
            Color::Never => Some(false),
            Color::Auto if plain => Some(false),
            Color::Auto if forced => Some(true),
            // A terminal that says nothing of itself may know no colours.
            Color::Auto => term.is_none().then_some(false),
        };
    }

    /// A stream that keeps colours or drops them.
    fn stream<S: RawStream>(&self, raw: S) -> AutoStream<S> {
        let coloured = self.color.unwrap_or_else(|| raw.is_terminal());
        AutoStream::new(raw, if coloured { ColorChoice::Always } else { ColorChoice::Never })
    }

    /// Whether standard output is coloured.
    pub(crate) fn is_coloured(&self) -> bool {
        self.color.unwrap_or_else(|| io::stdout().is_terminal())
    }

    /// Whether the terminal says that its cursor can be moved.
    pub(crate) fn moves_cursor() -> bool {
        env::get("TERM").is_some_and(|term| term != "dumb")
    }

    /// Whether output is for people.
    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// Prints a result.
    ///
    /// # Errors
    /// Never for a reader that went away: then the command ends well, as one expects of `… | head`.
    pub(crate) fn result(&self, text: &str) -> Result<(), Failure> {
        let mut out = self.stream(io::stdout().lock());
        let newline = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        settle(write!(out, "{text}{newline}").and_then(|()| out.flush()))
    }

    /// Prints text of strangers as a result: harmless on a terminal, untouched elsewhere.
    pub(crate) fn foreign_result(&self, text: &str) -> Result<(), Failure> {
        if io::stdout().is_terminal() {
            self.result(&style::harmless(text))
        } else {
            raw(text.as_bytes(), true)
        }
    }

    /// Prints a result as JSON: on several lines for a person at a terminal, else on one.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        let many_lines = self.format == Format::Json && io::stdout().is_terminal();
        let text =
            if many_lines { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        let text = text.map_err(|error| Failure::new(Exit::Failed, "INTERNAL", error.to_string()))?;
        let text = env::scrubber().scrub_json(&text);
        if io::stdout().is_terminal() {
            // JSON escapes the old control characters itself, but not the others.
            return raw(style::harmless(&text).as_bytes(), true);
        }
        raw(text.as_bytes(), true)
    }

    /// Prints an event as one line of JSON, with the time.
    pub(crate) fn event(&self, event: &impl Serialize) -> Result<(), Failure> {
        self.json(&stamped(event))
    }

    /// Tells a person something beside the result. A program finds it in the record.
    pub(crate) fn note(&self, text: &str) {
        if self.is_text() && !self.quiet {
            self.say(text);
        }
    }

    /// Warns a person of something that did not stop the command.
    pub(crate) fn warn(&self, text: &str) {
        self.note(&format!("{} {}", paint(style::WARN, "warning:"), style::paragraph(text)));
    }

    /// Prints the paths of the host that a program sees, with `-v`.
    pub(crate) fn shown(&self, what: &str, paths: &[PathBuf]) {
        for path in paths.iter().filter(|_| self.verbose > 0) {
            let path = style::one_line(&path.display().to_string(), 500);
            self.note(&format!("{} {path}", paint(style::FAINT, what)));
        }
    }

    /// Writes to standard error, whatever `--quiet` says.
    pub(crate) fn say(&self, text: &str) {
        let mut err = self.stream(io::stderr().lock());
        // Without a reader there is no one to report to.
        let _ = writeln!(err, "{}", env::scrubber().scrub(text.to_owned()));
    }

    /// Asks on standard error.
    pub(crate) fn prompt(&self, text: &str) -> io::Result<()> {
        let mut err = self.stream(io::stderr().lock());
        write!(err, "{text}")?;
        err.flush()
    }

    /// Tells what went wrong, as one line of JSON where a program reads.
    pub(crate) fn failure(&self, failure: &Failure) -> Exit {
        if !self.is_text() {
            self.say(&env::scrubber().scrub_json(&failure.to_json().to_string()));
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
        self.say(&lines.join("\n"));
        failure.exit
    }
}

/// Prints a value as one line of JSON, whatever the form of the result.
pub(crate) fn line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(Exit::Failed, "INTERNAL", error.to_string()))?;
    let text = env::scrubber().scrub_json(&text);
    let text = if io::stdout().is_terminal() { style::harmless(&text) } else { text };
    raw(text.as_bytes(), true)
}

/// The same for an event, with the time.
pub(crate) fn event_line(event: &impl Serialize) -> Result<(), Failure> {
    line(&stamped(event))
}

/// Writes bytes to standard output as they are.
pub(crate) fn raw(bytes: &[u8], newline: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let ends = bytes.is_empty() || bytes.last() == Some(&b'\n');
    let end: &[u8] = if newline && !ends { b"\n" } else { b"" };
    settle(out.write_all(bytes).and_then(|()| out.write_all(end)).and_then(|()| out.flush()))
}

/// A reader that went away has what it wanted.
fn settle(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::of_machine("standard output", &error))
        }
        _ => Ok(()),
    }
}
