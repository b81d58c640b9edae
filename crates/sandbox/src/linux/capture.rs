//! Captures output of any length in bounded memory.

use std::collections::VecDeque;

use crate::{Captured, Language, Limits, Outcome, Program, Reached, Report};

/// The output of a program as it arrives, in bounded memory: both streams and the value.
#[derive(Debug)]
pub struct OutputCapture {
    stdout: Capture,
    stderr: Capture,
    line: ResultLine,
    value: Vec<u8>,
    value_limit: usize,
    value_overflowed: bool,
}

impl OutputCapture {
    /// Captures within the limits `stdout`, `stderr` and `value_bytes`.
    pub fn new(limits: &Limits) -> Self {
        Self {
            stdout: Capture::new(limits.stdout),
            stderr: Capture::new(limits.stderr),
            line: ResultLine::new(limits.value_bytes),
            value: Vec::new(),
            value_limit: limits.value_bytes,
            value_overflowed: false,
        }
    }

    /// Adds standard output.
    pub fn stdout(&mut self, bytes: &[u8]) {
        self.stdout.push(bytes);
        self.line.push(bytes);
    }

    /// Adds standard error.
    pub fn stderr(&mut self, bytes: &[u8]) {
        self.stderr.push(bytes);
    }

    /// Adds a piece of the interpreter's value.
    pub fn value(&mut self, bytes: &[u8]) {
        if self.value.len() + bytes.len() <= self.value_limit {
            self.value.extend_from_slice(bytes);
        } else {
            self.value_overflowed = true;
        }
    }

    /// The bytes of both streams so far.
    pub fn total(&self) -> u64 {
        self.stdout.total() + self.stderr.total()
    }

    /// Sets streams and value of an outcome, and the limits that they reached. The verdict must be set.
    pub fn finish(self, program: &Program, outcome: &mut Outcome) {
        let language = match program {
            Program::Code { language, .. } => Some(*language),
            _ => None,
        };
        let line = self.line.finish();
        (outcome.stdout, outcome.stderr) = (self.stdout.finish(), self.stderr.finish());
        let report = &mut outcome.report;
        outcome.value = value(&self.value, self.value_overflowed, line.as_deref(), report)
            .or_else(|| language.filter(|_| outcome.verdict.is_ok())?.printed_value(&outcome.stdout));
        outcome.value_printed = outcome.value.is_some()
            && (is_value(line.as_deref()) || language.is_some_and(Language::prints_value));
        for (captured, reached) in [(&outcome.stdout, Reached::Stdout), (&outcome.stderr, Reached::Stderr)] {
            if captured.dropped > 0 {
                report.reached.push(reached);
            }
        }
    }
}

/// Captures the first and last bytes of a stream.
#[derive(Debug)]
pub(crate) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    head_limit: usize,
    tail_limit: usize,
    total: u64,
}

impl Capture {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            head: Vec::new(),
            tail: VecDeque::new(),
            head_limit: limit - limit / 2,
            tail_limit: limit / 2,
            total: 0,
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (first, rest) = bytes.split_at(bytes.len().min(self.head_limit - self.head.len()));
        self.head.extend_from_slice(first);
        // Of a block longer than the tail, only its end counts.
        let rest = rest.get(rest.len().saturating_sub(self.tail_limit)..).unwrap_or_default();
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_limit);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn finish(self) -> Captured {
        let captured_bytes = (self.head.len() + self.tail.len()) as u64;
        let mut captured =
            Captured { head: self.head, tail: Vec::new(), dropped: self.total - captured_bytes };
        if captured.dropped == 0 {
            captured.head.extend(self.tail);
        } else {
            captured.tail = self.tail.into();
        }
        captured
    }
}

/// Finds the last line `::result JSON` of a stream.
#[derive(Debug)]
pub(crate) struct ResultLine {
    line: Vec<u8>,
    limit: usize,
    overflowed: bool,
    found: Option<Vec<u8>>,
}

const PREFIX: &[u8] = b"::result ";

impl ResultLine {
    pub(crate) fn new(limit: usize) -> Self {
        Self { line: Vec::new(), limit: limit + PREFIX.len(), overflowed: false, found: None }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let mut pieces = bytes.split(|byte| *byte == b'\n');
        let last = pieces.next_back().unwrap_or_default();
        for piece in pieces {
            self.extend(piece);
            self.end_line();
        }
        self.extend(last);
    }

    fn extend(&mut self, piece: &[u8]) {
        // Drop a line that can no longer be a result.
        let overlap = self.line.len().min(PREFIX.len());
        let possible = self.line.get(..overlap) == PREFIX.get(..overlap);
        if self.overflowed || !possible || self.line.len() + piece.len() > self.limit {
            self.overflowed = true;
            return;
        }
        self.line.extend_from_slice(piece);
    }

    fn end_line(&mut self) {
        if !self.overflowed
            && let Some(text) = self.line.strip_prefix(PREFIX)
        {
            self.found = Some(text.to_vec());
        }
        self.line.clear();
        self.overflowed = false;
    }

    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        self.end_line();
        self.found
    }
}

/// Whether a result line is the value.
pub(crate) fn is_value(line: Option<&[u8]>) -> bool {
    line.is_some_and(|line| serde_json::from_slice::<serde::de::IgnoredAny>(line).is_ok())
}

/// The value: an explicit result line, else the interpreter's.
pub(crate) fn value(
    bytes: &[u8],
    overflowed: bool,
    line: Option<&[u8]>,
    report: &mut Report,
) -> Option<serde_json::Value> {
    if overflowed {
        report.reached.push(Reached::Value);
    }
    if let Some(line) = line {
        match serde_json::from_slice(line) {
            Ok(value) => return Some(value),
            Err(error) => report.notes.push(format!("the line `::result` is not JSON: {error}")),
        }
    }
    if bytes.is_empty() || overflowed {
        return None;
    }
    match serde_json::from_slice(bytes) {
        Ok(value) => Some(value),
        Err(error) => {
            report.notes.push(format!("the value is not JSON: {error}"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_tail_are_captured_and_the_rest_counted() {
        for chunk in [1, 3, 7, 1000] {
            let data: Vec<u8> = (0..1000u32).map(|number| (number % 251) as u8).collect();
            let mut capture = Capture::new(101);
            data.chunks(chunk).for_each(|piece| capture.push(piece));
            let captured = capture.finish();
            assert_eq!(captured.head, data[..51]);
            assert_eq!(captured.tail, data[950..]);
            assert_eq!(captured.dropped, 899);
            let mut whole = Capture::new(1000);
            data.chunks(chunk).for_each(|piece| whole.push(piece));
            let whole = whole.finish();
            assert_eq!((whole.head, whole.dropped), (data, 0));
        }
    }

    #[test]
    fn the_last_result_line_wins_however_it_is_cut() {
        let text = b"hello\n::result {\"a\": 1}\nx ::result 2\n::result [3]\nbye ::result 4";
        for chunk in 1..text.len() {
            let mut line = ResultLine::new(64);
            text.chunks(chunk).for_each(|piece| line.push(piece));
            assert_eq!(line.finish().unwrap(), b"[3]");
        }
        let mut line = ResultLine::new(8);
        line.push(b"::result 123456789012345678901234567890\n");
        assert_eq!(line.finish(), None);
        let mut line = ResultLine::new(8);
        line.push(b"::result 5");
        assert_eq!(line.finish().unwrap(), b"5");
    }
}
