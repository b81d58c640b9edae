//! Live output of a process, line by line, in the log of a call.

use crate::{Ctx, LogLevel, Secret, WholeText, without_begun_character};

/// Maximum length of a logged line, in bytes.
const MAX_LINE: usize = 4 << 10;
/// Maximum number of logged lines per process.
const MAX_LINES: u32 = 4096;
/// Maximum logged output per process, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Maximum size of a whole output for a model, in bytes.
const MAX_WHOLE: usize = 16 << 20;

/// Logs the output of a process line by line, without its secrets.
///
/// A line is logged up to 4 KiB, a process up to 1 MiB and 4,096 lines. Each level has its own unfinished line. If the
/// caller stores whole outputs ([`Ctx::output_files`]), the log collects up to 16 MiB.
#[derive(Debug)]
pub struct OutputLog<'a> {
    ctx: &'a Ctx,
    secrets: &'a [Secret],
    open: Vec<(LogLevel, Vec<u8>)>,
    lines_left: u32,
    bytes_left: usize,
    whole: Option<Vec<u8>>,
    written: u64,
}

impl<'a> OutputLog<'a> {
    /// Creates a log that masks these secrets.
    pub fn new(ctx: &'a Ctx, secrets: &'a [Secret]) -> Self {
        let whole = ctx.output_files().is_some().then(Vec::new);
        let (lines_left, bytes_left) = (MAX_LINES, MAX_BYTES);
        Self { ctx, secrets, open: Vec::new(), lines_left, bytes_left, whole, written: 0 }
    }

    /// Logs the complete lines of a piece of output.
    pub fn write(&mut self, level: LogLevel, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        if let Some(whole) = &mut self.whole {
            whole.extend_from_slice(&bytes[..bytes.len().min(MAX_WHOLE - whole.len())]);
        }
        // Output beyond the maximum is skipped without a scan: a process may print forever.
        if self.lines_left == 0 {
            return;
        }
        let piece = bytes.get(..self.bytes_left).unwrap_or(bytes);
        self.bytes_left -= piece.len();
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let index = self.open.iter().position(|(known, _)| *known == level).unwrap_or_else(|| {
                self.open.push((level, Vec::new()));
                self.open.len() - 1
            });
            let line = &mut self.open[index].1;
            // One more byte says whether the line is longer.
            let room = MAX_LINE + 1 - line.len();
            line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                let line = std::mem::take(line);
                self.log(level, &line);
            }
        }
        if piece.len() < bytes.len() {
            self.end();
        }
    }

    /// Logs unfinished lines at the end of the process. Returns the collected output, without its secrets.
    ///
    /// `size` is the size of the process's output if the result has a part of it; otherwise nothing is returned. The log
    /// may have the output of an earlier attempt before it.
    pub fn finish(mut self, size: Option<u64>) -> Option<WholeText> {
        for (level, line) in std::mem::take(&mut self.open) {
            self.log(level, &line);
        }
        let (size, mut whole) = (size?, self.whole.take()?);
        let is_partial = self.written > whole.len() as u64;
        if is_partial {
            // The end may be the beginning of a secret.
            let longest = self.secrets.iter().map(|secret| secret.expose().len()).max().unwrap_or_default();
            whole.truncate(without_begun_character(&whole[..whole.len().saturating_sub(longest)]).len());
        }
        let earlier = usize::try_from(self.written.saturating_sub(size)).unwrap_or(usize::MAX);
        whole.drain(..earlier.min(whole.len()));
        let text = String::from_utf8_lossy(&whole).into_owned();
        let text = self.secrets.iter().fold(text, |text, secret| secret.scrub(&text));
        Some(WholeText { size: if is_partial { size } else { text.len() as u64 }, text })
    }

    fn log(&mut self, level: LogLevel, line: &[u8]) {
        let is_truncated = line.len() > MAX_LINE && !line.ends_with(b"\n");
        let line = if is_truncated { without_begun_character(&line[..MAX_LINE]) } else { line };
        let line = String::from_utf8_lossy(line) + if is_truncated { " […]" } else { "" };
        let line = line.trim_end_matches(['\n', '\r']);
        if line.is_empty() || self.lines_left == 0 {
            return;
        }
        if self.lines_left == 1 {
            return self.end();
        }
        self.lines_left -= 1;
        self.ctx.log(level, self.secrets.iter().fold(line.to_owned(), |line, secret| secret.scrub(&line)));
    }

    fn end(&mut self) {
        if self.lines_left > 0 {
            self.lines_left = 0;
            self.ctx.log(LogLevel::Info, "[further output is only in the result]");
        }
    }
}
