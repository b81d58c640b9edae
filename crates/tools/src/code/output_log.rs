//! Output as it comes, line by line, for the caller's log.

use toolpost::{Ctx, LogLevel};
use toolpost_sandbox::Event;

/// A line longer than this is told in pieces, in bytes.
const MAX_LINE: usize = 8 << 10;
/// The most lines that are told of one run.
const MAX_LINES: u32 = 4096;
/// The most bytes that are told of one run.
const MAX_BYTES: usize = 1 << 20;

/// Standard output and error, each with the line that is not whole yet.
pub(super) struct OutputLog<'a> {
    ctx: &'a Ctx,
    open: [Vec<u8>; 2],
    lines_left: u32,
    bytes_left: usize,
}

impl<'a> OutputLog<'a> {
    pub(super) fn new(ctx: &'a Ctx) -> Self {
        Self { ctx, open: [Vec::new(), Vec::new()], lines_left: MAX_LINES, bytes_left: MAX_BYTES }
    }

    /// Takes a piece of output.
    pub(super) fn take(&mut self, event: Event<'_>) {
        let (stream, mut bytes) = match event {
            Event::Stdout(bytes) => (0, bytes),
            Event::Stderr(bytes) => (1, bytes),
            _ => return,
        };
        while self.lines_left > 0 && !bytes.is_empty() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let room = MAX_LINE - self.open[stream].len();
            let taken = end.unwrap_or(bytes.len()).min(room);
            self.open[stream].extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if bytes.first() == Some(&b'\n') {
                bytes = &bytes[1..];
                self.tell(stream);
            } else if self.open[stream].len() == MAX_LINE {
                self.tell(stream);
            }
        }
    }

    /// Tells what is left when the program has ended.
    pub(super) fn finish(mut self) {
        for stream in 0..2 {
            if !self.open[stream].is_empty() && self.lines_left > 0 {
                self.tell(stream);
            }
        }
    }

    fn tell(&mut self, stream: usize) {
        let line = std::mem::take(&mut self.open[stream]);
        self.lines_left -= 1;
        let Some(left) = self.bytes_left.checked_sub(line.len()).filter(|_| self.lines_left > 0) else {
            self.lines_left = 0;
            self.ctx.log(LogLevel::Info, "[more output follows; it is in the result]");
            return;
        };
        self.bytes_left = left;
        let level = if stream == 0 { LogLevel::Info } else { LogLevel::Warn };
        self.ctx.log(level, String::from_utf8_lossy(&line).trim_end_matches('\r'));
    }
}
