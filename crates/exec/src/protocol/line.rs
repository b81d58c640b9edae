//! Lines of bounded length out of bytes.

use std::collections::VecDeque;
use std::io::{self, Read};

/// The longest line that is read, in bytes: the largest arguments that a toolbox takes by default, and an artefact of the
/// same size in base 64.
pub const MAX_LINE: usize = 32 * 1024 * 1024;

/// How much is read at once.
const PIECE: usize = 16 * 1024;

/// One line of the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// The line, without its end.
    Whole(Vec<u8>),
    /// The line was longer than allowed, and what came of it was thrown away. The next one is read as usual.
    TooLong {
        /// Its first bytes, at most 256, to find out whose it was.
        start: Vec<u8>,
    },
}

/// How much of a line that is too long is kept.
const KEPT: usize = 256;

/// Cuts bytes into lines, however they are split. It never holds more than one line of the allowed length and what was
/// fed last.
#[derive(Debug)]
pub struct LineBuffer {
    limit: usize,
    partial: Vec<u8>,
    overflowed: bool,
    ready: VecDeque<Line>,
}

impl Default for LineBuffer {
    fn default() -> Self {
        Self::new(MAX_LINE)
    }
}

impl LineBuffer {
    /// With the longest line that is allowed, in bytes. [`MAX_LINE`] is the default.
    pub fn new(limit: usize) -> Self {
        Self { limit, partial: Vec::new(), overflowed: false, ready: VecDeque::new() }
    }

    /// Takes bytes in.
    pub fn feed(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            self.extend(line);
            self.end_line();
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.overflowed {
            return;
        }
        if self.partial.len() + bytes.len() > self.limit {
            let room = KEPT.saturating_sub(self.partial.len()).min(bytes.len());
            self.partial.extend_from_slice(bytes.get(..room).unwrap_or_default());
            self.partial.truncate(KEPT);
            self.partial.shrink_to_fit();
            self.overflowed = true;
            return;
        }
        self.partial.extend_from_slice(bytes);
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.partial);
        if std::mem::take(&mut self.overflowed) {
            self.ready.push_back(Line::TooLong { start: line });
            return;
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        self.ready.push_back(Line::Whole(line));
    }

    /// The next whole line, if there is one.
    pub fn next_line(&mut self) -> Option<Line> {
        self.ready.pop_front()
    }

    /// What is left when no more bytes come: a last line without an end.
    pub fn finish(&mut self) -> Option<Line> {
        if let Some(line) = self.next_line() {
            return Some(line);
        }
        if self.partial.is_empty() && !self.overflowed {
            return None;
        }
        self.end_line();
        self.next_line()
    }
}

/// Reads lines from a stream that blocks.
#[derive(Debug)]
pub struct LineReader<R> {
    input: R,
    buffer: LineBuffer,
    ended: bool,
}

impl<R: Read> LineReader<R> {
    /// Reads lines of at most `limit` bytes.
    pub fn new(input: R, limit: usize) -> Self {
        Self { input, buffer: LineBuffer::new(limit), ended: false }
    }

    /// The next line; `None` when the other side has ended.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn next_line(&mut self) -> io::Result<Option<Line>> {
        loop {
            if let Some(line) = self.buffer.next_line() {
                return Ok(Some(line));
            }
            if self.ended {
                return Ok(self.buffer.finish());
            }
            let mut piece = [0; PIECE];
            match self.input.read(&mut piece) {
                Ok(0) => self.ended = true,
                Ok(read) => self.buffer.feed(piece.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(limit: usize, pieces: &[&str]) -> Vec<Line> {
        let mut buffer = LineBuffer::new(limit);
        for piece in pieces {
            buffer.feed(piece.as_bytes());
        }
        std::iter::from_fn(|| buffer.finish()).collect()
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_are_split() {
        let text = "one\ntwo\r\n\nlast";
        let expected = vec![whole("one"), whole("two"), whole(""), whole("last")];
        assert_eq!(lines(10, &[text]), expected);
        let pieces: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(lines(10, &pieces.iter().map(String::as_str).collect::<Vec<_>>()), expected);
        assert_eq!(lines(10, &["done\n"]), [whole("done")]);
        assert!(lines(10, &[]).is_empty());
    }

    #[test]
    fn a_long_line_costs_only_itself() {
        let long = "x".repeat(1000);
        let found = lines(10, &["a\n", &long, &long, "\nb\n"]);
        assert_eq!(found, [whole("a"), Line::TooLong { start: vec![b'x'; KEPT] }, whole("b")]);
        // At the limit it is whole, one byte above it is not, also at the very end.
        assert_eq!(lines(3, &["abc\n"]), [whole("abc")]);
        assert_eq!(lines(3, &["abcd"]), [Line::TooLong { start: b"abcd".to_vec() }]);
    }

    #[test]
    fn a_reader_ends_after_the_last_line() {
        let mut reader = LineReader::new("a\nb".as_bytes(), 10);
        assert_eq!(reader.next_line().unwrap(), Some(whole("a")));
        assert_eq!(reader.next_line().unwrap(), Some(whole("b")));
        assert_eq!(reader.next_line().unwrap(), None);
        assert_eq!(reader.next_line().unwrap(), None);
    }
}
