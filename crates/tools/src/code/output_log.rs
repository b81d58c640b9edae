//! Live output of a run, line by line, in the caller's log.

use toolpost::{Ctx, LogLevel};
use toolpost_sandbox::Event;

/// A longer line is logged in pieces, in bytes.
const MAX_LINE: usize = 8 << 10;
/// Maximum number of logged lines per run.
const MAX_LINES: u32 = 4096;
/// Maximum logged output per run, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Standard output and stderr, each with its unfinished line.
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

    /// Processes a piece of output.
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
                self.log_line(stream);
            } else if self.open[stream].len() == MAX_LINE {
                self.log_line(stream);
            }
        }
    }

    /// Logs unfinished lines at the end of the program.
    pub(super) fn finish(mut self) {
        for stream in 0..2 {
            if !self.open[stream].is_empty() && self.lines_left > 0 {
                self.log_line(stream);
            }
        }
    }

    fn log_line(&mut self, stream: usize) {
        let line = std::mem::take(&mut self.open[stream]);
        self.lines_left -= 1;
        let Some(left) = self.bytes_left.checked_sub(line.len()).filter(|_| self.lines_left > 0) else {
            self.lines_left = 0;
            self.ctx.log(LogLevel::Info, "[further output is only in the result]");
            return;
        };
        self.bytes_left = left;
        let level = if stream == 0 { LogLevel::Info } else { LogLevel::Warn };
        self.ctx.log(level, String::from_utf8_lossy(&line).trim_end_matches('\r'));
    }
}
