//! Captures output of any length in bounded memory.

use std::collections::VecDeque;

use super::value::{Bounded, ResultLine, value};
use crate::{Captured, Limits, Outcome, Program, Reached};

/// The output of a program as it arrives, in bounded memory: both streams and the value.
#[derive(Debug)]
pub struct OutputCapture {
    stdout: Capture,
    stderr: Capture,
    line: ResultLine,
    value: Bounded,
}

impl OutputCapture {
    /// Captures within the limits `stdout`, `stderr` and `value_bytes`.
    pub fn new(limits: &Limits) -> Self {
        Self {
            stdout: Capture::new(limits.stdout),
            stderr: Capture::new(limits.stderr),
            line: ResultLine::new(limits.value_bytes),
            value: Bounded::new(limits.value_bytes),
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
        self.value.push(bytes);
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
        let printed = || language.filter(|_| outcome.verdict.is_ok())?.printed_value(&outcome.stdout);
        if let Some(found) = value(&self.value, line.as_ref(), printed, language, report) {
            (outcome.value, outcome.value_printed) = (Some(found.value), found.is_printed);
        }
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
        captured.at_characters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_split_at_the_gap() {
        for character in ["é", "€", "😀"] {
            let text = character.repeat(100);
            let length = text.len() as u64;
            for limit in 20..40 {
                let mut capture = Capture::new(limit);
                text.as_bytes().chunks(7).for_each(|piece| capture.push(piece));
                for captured in [capture.finish(), Captured::keep(text.as_bytes(), limit)] {
                    let shown = captured.text();
                    assert!(!shown.contains('\u{fffd}'), "{character} {limit}: {shown}");
                    assert!(shown.contains(&format!("{} bytes dropped", captured.dropped)), "{shown}");
                    let left = (captured.head.len() + captured.tail.len()) as u64;
                    assert_eq!(left + captured.dropped, length);
                    assert!(left + 6 >= limit as u64, "{character} {limit}: {left}");
                }
            }
        }
        // Bytes of another encoding stay.
        let latin = [0xe9; 100];
        assert_eq!(Captured::keep(&latin, 20).head.len(), 10);
        let rest = [0xa9; 100];
        assert_eq!(Captured::keep(&rest, 20).tail.len(), 10);
    }

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
}
