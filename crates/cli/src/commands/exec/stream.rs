//! Prints the output of a program while it runs.

use std::io;

use serde_json::{Value, json};
use toolpost_core::WideJson;
use toolpost_llm::StreamScrubber;
use toolpost_sandbox::SandboxEvent;

use crate::args::Format;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::print::{self, Printer, Stream};

/// Prints output for people, as JSON Lines for `jsonl`, and not at all for `json`, whose outcome has it. Secrets are
/// masked; everything else is unchanged, but escaped on a terminal.
pub(super) struct Live {
    format: Format,
    pieces: [Pieces; 2],
    is_closed: bool,
    /// The write error of standard output, except a broken pipe.
    trouble: Option<io::Error>,
    /// Whether a value would start a line.
    is_at_line_start: bool,
}

impl Live {
    pub(super) fn new(printer: &Printer) -> Self {
        Self {
            format: printer.format,
            pieces: [Pieces::new(), Pieces::new()],
            is_closed: false,
            trouble: None,
            is_at_line_start: true,
        }
    }

    /// Fails with the write error of standard output.
    pub(super) fn closed(self) -> Result<Exit, Failure> {
        self.trouble.map_or(Ok(Exit::Ok), |error| Err(Failure::of_machine("standard output", &error)))
    }

    /// Prints what may have been the beginning of a secret.
    pub(super) fn finish(&mut self) {
        if self.format != Format::Text {
            return;
        }
        for (stream, pieces) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&mut self.pieces) {
            let rest = pieces.rest();
            if !rest.is_empty() {
                let written = stream.write_foreign(rest.as_bytes());
                if stream == Stream::Stdout {
                    self.is_closed |= written.is_err();
                }
            }
        }
    }

    /// Prints a value after the output, on a line of its own.
    pub(super) fn value(&self, text: &str, printer: &Printer) -> Result<(), Failure> {
        if !self.is_at_line_start {
            print::raw(b"\n", false)?;
        }
        printer.foreign_result(text)
    }

    /// Whether standard output is closed, so that the program can stop.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Handles an event of the sandbox.
    pub(super) fn event(&mut self, event: SandboxEvent<'_>) {
        match event {
            SandboxEvent::Stdout(bytes) => self.take(Stream::Stdout, bytes),
            SandboxEvent::Stderr(bytes) => self.take(Stream::Stderr, bytes),
            _ => {}
        }
    }

    /// Handles a piece of output.
    pub(super) fn take(&mut self, stream: Stream, bytes: &[u8]) {
        let pieces = &mut self.pieces[stream as usize];
        let written = match (self.format, stream) {
            (Format::Json, _) => Ok(()),
            (Format::Jsonl, _) => match pieces.text(bytes) {
                text if text.is_empty() => Ok(()),
                text => print::write_event_line(&json!({ "type": stream.name(), "text": text })),
            },
            (Format::Text, Stream::Stdout) => {
                self.is_at_line_start = bytes.last().map_or(self.is_at_line_start, |last| *last == b'\n');
                pieces.pass_on(bytes, stream)
            }
            (Format::Text, Stream::Stderr) => {
                // A broken stderr has no reader to report to.
                let _ = pieces.pass_on(bytes, stream);
                Ok(())
            }
        };
        self.note(written);
    }

    /// Closes the output after a failed write; a broken pipe is not an error.
    fn note(&mut self, written: io::Result<()>) {
        let Err(error) = written else { return };
        self.is_closed = true;
        if error.kind() != io::ErrorKind::BrokenPipe {
            self.trouble.get_or_insert(error);
        }
    }

    /// Prints the start event; `what` has its fields.
    pub(super) fn start(&mut self, what: Value) {
        if self.format == Format::Jsonl {
            let mut line = json!({ "type": "start" });
            if let (Some(line), Value::Object(what)) = (line.as_object_mut(), what) {
                line.extend(what);
            }
            self.note(print::write_event_line(&line));
        }
    }

    /// Prints the artifacts and the end. `files` are the stored paths.
    pub(super) fn end(mut self, outcome: &Value, files: &[Option<String>]) -> Result<(), Failure> {
        if self.format != Format::Jsonl {
            return Ok(());
        }
        for (stream, pieces) in [Stream::Stdout, Stream::Stderr].into_iter().zip(&mut self.pieces) {
            let rest = pieces.rest();
            if !rest.is_empty() {
                print::event_line(&json!({ "type": stream.name(), "text": rest }))?;
            }
        }
        let artifacts = outcome.get("artifacts").and_then(Value::as_array).into_iter().flatten();
        for (index, artifact) in artifacts.enumerate() {
            let mut line = artifact.clone();
            line["type"] = "artifact".into();
            if let Some(Some(file)) = files.get(index) {
                line["file"] = file.as_str().into();
            }
            print::event_line(&line)?;
        }
        print::event_line(&WideJson(&json!({ "type": "end", "outcome": outcome })))
    }
}

/// A stream without its secrets, with an incomplete character.
struct Pieces {
    secrets: StreamScrubber<'static>,
    /// The first bytes of an incomplete character.
    begun: Vec<u8>,
}

impl Pieces {
    fn new() -> Self {
        Self { secrets: env::scrubber().stream(), begun: Vec::new() }
    }

    /// Writes a piece of output, escaped on a terminal.
    fn pass_on(&mut self, bytes: &[u8], target: Stream) -> io::Result<()> {
        if target.is_terminal() {
            return target.write_foreign(self.text(bytes).as_bytes());
        }
        target.write_foreign(&self.secrets.push_bytes(bytes))
    }

    /// The piece as text, without an incomplete last character.
    fn text(&mut self, bytes: &[u8]) -> String {
        self.begun.extend(self.secrets.push_bytes(bytes));
        let whole = match self.begun.utf8_chunks().last() {
            Some(last) if is_begun(last.invalid()) => self.begun.len() - last.invalid().len(),
            _ => self.begun.len(),
        };
        let rest = self.begun.split_off(whole);
        String::from_utf8_lossy(&std::mem::replace(&mut self.begun, rest)).into_owned()
    }

    /// The rest of the text, with the bytes of a character that was never completed.
    fn rest(&mut self) -> String {
        let mut rest = std::mem::take(&mut self.begun);
        rest.extend_from_slice(self.secrets.finish().as_bytes());
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Whether further bytes could complete a character.
fn is_begun(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_may_come_in_pieces() {
        let mut pieces = Pieces::new();
        let come = [&b"a\xe2\x82"[..], b"\xac", b"\xff\xc3", b"x\xf0"];
        assert_eq!(come.map(|piece| pieces.text(piece)), ["a", "€", "\u{fffd}", "\u{fffd}x"]);
        assert_eq!(pieces.rest(), "\u{fffd}");
        assert_eq!(pieces.rest(), "");
    }
}
