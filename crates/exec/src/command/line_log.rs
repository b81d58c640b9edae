//! Output as it comes, line by line, for the caller's log.

use toolpost_core::{Ctx, LogLevel, Secret};
use toolpost_sandbox::Event;

/// A line longer than this is told in pieces, in bytes.
const MAX_LINE: usize = 4 << 10;
/// The most that is looked at of one run, in bytes.
const MAX_BYTES: usize = 256 << 10;

/// Tells a program's output to the caller while it runs: standard output as information, errors as warnings.
pub(super) struct LineLog<'a> {
    ctx: &'a Ctx,
    secrets: &'a [Secret],
    open: [Vec<u8>; 2],
    /// Bytes that are still looked at.
    left: usize,
    is_over: bool,
}

impl<'a> LineLog<'a> {
    pub(super) fn new(ctx: &'a Ctx, secrets: &'a [Secret]) -> Self {
        Self { ctx, secrets, open: [Vec::new(), Vec::new()], left: MAX_BYTES, is_over: false }
    }

    /// Takes a piece of output.
    pub(super) fn take(&mut self, event: Event<'_>) {
        let (stream, bytes) = match event {
            Event::Stdout(bytes) => (0, bytes),
            Event::Stderr(bytes) => (1, bytes),
            _ => return,
        };
        // What is not told is not looked at either: a program may print for ever.
        let (bytes, is_all) = match bytes.get(..self.left) {
            Some(beginning) => (beginning, beginning.len() == bytes.len()),
            None => (bytes, true),
        };
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            // What does not fit into a line is left out: the log shows how far the program is, the result has it all.
            let room = MAX_LINE - self.open[stream].len();
            self.open[stream].extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.tell(stream);
            }
        }
        self.left -= bytes.len();
        if !is_all && !self.is_over {
            self.is_over = true;
            self.ctx.log(LogLevel::Info, "[more output follows; it is in the result]");
        }
    }

    /// Tells what is left when the program has ended.
    pub(super) fn finish(mut self) {
        self.tell(0);
        self.tell(1);
    }

    fn tell(&mut self, stream: usize) {
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
