//! Prints results, notes and failures.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};
use toolpost_core::{Clock as _, SystemClock, Timestamp, without_userinfo};

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

    /// Whether a stream has colors.
    pub(crate) fn colors(&self, stream: Stream) -> bool {
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

    /// A text of this command as a stream gets it: without secrets, escaped, with or without styles.
    fn text(&self, stream: Stream, text: &str) -> String {
        let text = env::scrubber().scrub(without_userinfo(text).into_owned());
        style::shown(&text, self.colors(stream))
    }

    /// Prints a result.
    ///
    /// # Errors
    /// Writing fails. A broken pipe is not an error, as in `… | head`.
    pub(crate) fn result(&self, text: &str) -> Result<(), Failure> {
        raw(self.text(Stream::Stdout, text).as_bytes(), !text.is_empty())
    }

    /// Prints untrusted text as a result: escaped on a terminal, unchanged elsewhere.
    #[expect(clippy::unused_self, reason = "all output goes through a printer")]
    pub(crate) fn foreign_result(&self, text: &str) -> Result<(), Failure> {
        let text = env::scrubber().scrub(text.to_owned());
        let text = if Stream::Stdout.is_terminal() { style::harmless(&text) } else { text };
        raw(text.as_bytes(), true)
    }

    /// Prints a result as JSON: indented on a terminal, else on one line. Its URLs have no user and no password.
    pub(crate) fn json(&self, value: &impl Serialize) -> Result<(), Failure> {
        raw_json(&without_userinfo(&self.json_text(value)?))
    }

    /// Prints untrusted content as JSON, with its URLs as they are.
    pub(crate) fn foreign_json(&self, value: &impl Serialize) -> Result<(), Failure> {
        raw_json(&self.json_text(value)?)
    }

    fn json_text(&self, value: &impl Serialize) -> Result<String, Failure> {
        let many_lines = self.format == Format::Json && Stream::Stdout.is_terminal();
        let text =
            if many_lines { serde_json::to_string_pretty(value) } else { serde_json::to_string(value) };
        text.map_err(|error| Failure::new(Exit::Failed, "INTERNAL", error.to_string()))
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
        self.foreign_json(&stamped(event))
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
        // A broken stderr has no reader to report to.
        let _ = Stream::Stderr.write(format!("{}\n", self.text(Stream::Stderr, text)).as_bytes());
    }

    /// Prints a prompt on standard error.
    pub(crate) fn prompt(&self, text: &str) -> io::Result<()> {
        Stream::Stderr.write(self.text(Stream::Stderr, text).as_bytes())
    }

    /// Prints a failure: text for people, else one JSON line.
    pub(crate) fn failure(&self, failure: &Failure) -> Exit {
        if !self.is_text() {
            let text = failure.to_json().to_string();
            let text = env::scrubber().scrub_json(&without_userinfo(&text));
            // A broken stderr has no reader to report to.
            let _ = Stream::Stderr.write_foreign((text + "\n").as_bytes());
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
        // An error quotes arguments, whose escape sequences would look like styles.
        let is_harmless = |word: std::ffi::OsString| {
            let word = word.to_string_lossy();
            style::label(&word) == *word
        };
        let text = if std::env::args_os().all(is_harmless) {
            style::trusted(error.render().ansi())
        } else {
            error.render().to_string()
        };
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

/// One of the two output streams. Nothing else of this command writes to them, except the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }

    pub(crate) fn is_terminal(self) -> bool {
        match self {
            Self::Stdout => io::stdout().is_terminal(),
            Self::Stderr => io::stderr().is_terminal(),
        }
    }

    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Self::Stderr => io::stderr().lock().write_all(bytes),
        }
    }

    /// Writes output of a program: escaped on a terminal, unchanged elsewhere. Secrets are masked before.
    pub(crate) fn write_foreign(self, bytes: &[u8]) -> io::Result<()> {
        if self.is_terminal() {
            return self.write(style::harmless(&String::from_utf8_lossy(bytes)).as_bytes());
        }
        self.write(bytes)
    }

    /// Erases as many rows of a terminal as `erased`, and writes text there.
    pub(crate) fn draw(self, erased: usize, text: &str, coloured: bool) {
        let mut drawn = if erased > 0 { format!("\x1b[{erased}A\r\x1b[J") } else { String::new() };
        drawn.push_str(&style::shown(&env::scrubber().scrub(text.to_owned()), coloured));
        // A broken terminal has no reader to report to.
        let _ = self.write(drawn.as_bytes());
    }
}

/// Prints a value as one JSON line in every format.
pub(crate) fn line(value: &impl Serialize) -> Result<(), Failure> {
    settle(write_line(value))
}

/// Prints an event with the time as one JSON line in every format.
pub(crate) fn event_line(event: &impl Serialize) -> Result<(), Failure> {
    settle(write_event_line(event))
}

/// A variant of [`event_line`], with the error of a broken pipe.
pub(crate) fn write_event_line(event: &impl Serialize) -> io::Result<()> {
    write_line(&stamped(event))
}

fn write_line(value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value).map_err(io::Error::other)?;
    Stream::Stdout.write(printed_json(&text).as_bytes())
}

fn raw_json(text: &str) -> Result<(), Failure> {
    settle(Stream::Stdout.write(printed_json(text).as_bytes()))
}

/// JSON text without secrets, with a line feed. JSON escapes C0 control characters, but not the others.
fn printed_json(text: &str) -> String {
    let text = env::scrubber().scrub_json(text) + "\n";
    if Stream::Stdout.is_terminal() { style::harmless(&text) } else { text }
}

/// Writes bytes to standard output unchanged.
pub(crate) fn raw(bytes: &[u8], newline: bool) -> Result<(), Failure> {
    let ends = bytes.is_empty() || bytes.last() == Some(&b'\n');
    settle(if newline && !ends {
        Stream::Stdout.write(&[bytes, b"\n"].concat())
    } else {
        Stream::Stdout.write(bytes)
    })
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
