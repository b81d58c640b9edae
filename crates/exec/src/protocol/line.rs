//! Lines of bounded length from a byte stream.

use std::collections::VecDeque;
use std::io::{self, Read};

/// Maximum length of a line, in bytes: the largest arguments that a toolbox accepts by default, or an artifact of 16 MiB
/// in base64 with its frame.
pub const MAX_LINE: usize = 32 * 1024 * 1024;

/// The number of bytes of one read.
const PIECE: usize = 16 * 1024;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A complete line without its end.
    Whole(Vec<u8>),
    /// A line above the maximum length, dropped except for its start. The next line is read as usual.
    TooLong {
        /// Its first bytes, at most 256, to find its id.
        start: Vec<u8>,
    },
}

/// Retained start of a line that is too long, in bytes.
const MAX_START: usize = 256;

/// Splits bytes into lines. It holds at most one line of the maximum length and the last input.
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
    /// Creates a buffer with a maximum line length in bytes, by default [`MAX_LINE`].
    pub fn new(limit: usize) -> Self {
        Self { limit, partial: Vec::new(), overflowed: false, ready: VecDeque::new() }
    }

    /// Adds bytes.
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
            let room = MAX_START.saturating_sub(self.partial.len()).min(bytes.len());
            self.partial.extend_from_slice(bytes.get(..room).unwrap_or_default());
            self.partial.truncate(MAX_START);
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

    /// The next complete line.
    pub fn next_line(&mut self) -> Option<Line> {
        self.ready.pop_front()
    }

    /// The next line at the end of the input, including a last one without a line end.
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

/// Reads lines from a blocking stream.
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

    /// The next line; `None` at the end of the input.
    ///
    /// # Errors
    /// Errors of the stream.
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
    fn a_long_line_affects_only_itself() {
        let long = "x".repeat(1000);
        let found = lines(10, &["a\n", &long, &long, "\nb\n"]);
        assert_eq!(found, [whole("a"), Line::TooLong { start: vec![b'x'; MAX_START] }, whole("b")]);
        // A line at the limit is complete, one byte more is not, even at the end of the input.
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
