//! Live output of a program, line by line, in the caller's log.

use toolpost_core::{Ctx, LogLevel, Secret};
use toolpost_sandbox::Event;

/// Maximum length of a logged line, in bytes.
const MAX_LINE: usize = 4 << 10;
/// Maximum output per run that is logged, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// Logs a program's output: standard output as information, stderr as warnings.
pub(super) struct LineLog<'a> {
    ctx: &'a Ctx,
    secrets: &'a [Secret],
    open: [Vec<u8>; 2],
    /// Bytes that may still be logged.
    left: usize,
    is_over: bool,
}

impl<'a> LineLog<'a> {
    pub(super) fn new(ctx: &'a Ctx, secrets: &'a [Secret]) -> Self {
        Self { ctx, secrets, open: [Vec::new(), Vec::new()], left: MAX_BYTES, is_over: false }
    }

    /// Processes a piece of output.
    pub(super) fn take(&mut self, event: Event<'_>) {
        let (stream, bytes) = match event {
            Event::Stdout(bytes) => (0, bytes),
            Event::Stderr(bytes) => (1, bytes),
            _ => return,
        };
        // Output beyond the maximum is skipped without a scan: a program may print forever.
        let (bytes, is_all) = match bytes.get(..self.left) {
            Some(beginning) => (beginning, beginning.len() == bytes.len()),
            None => (bytes, true),
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            // A longer line is truncated: the result has all of it.
            let room = MAX_LINE - self.open[stream].len();
            self.open[stream].extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.flush(stream);
            }
        }
        self.left -= bytes.len();
        if !is_all && !self.is_over {
            self.is_over = true;
            self.ctx.log(LogLevel::Info, "[further output is only in the result]");
        }
    }

    /// Logs unfinished lines at the end of the program.
    pub(super) fn finish(mut self) {
        self.flush(0);
        self.flush(1);
    }

    fn flush(&mut self, stream: usize) {
        let bytes = std::mem::take(&mut self.open[stream]);
        let line = String::from_utf8_lossy(&bytes);
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() {
            return;
        }
        let level = if stream == 0 { LogLevel::Info } else { LogLevel::Warn };
        let line = self.secrets.iter().fold(line.to_owned(), |line, secret| secret.scrub(&line));
        self.ctx.log(level, line);
    }
}
