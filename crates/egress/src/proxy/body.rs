//! Bodies of HTTP/1.1 messages: decoded by their framing, and encoded again.

use std::io::{self, Read, Write};

use super::head::Framing;
use super::wire::Buffered;

/// The maximum length of a chunk-size line, and of all trailers, in bytes.
const MAX_LINE: usize = 256;
const MAX_TRAILERS: usize = 8 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkStage {
    /// This many bytes remain.
    Length(u64),
    /// The size of a chunk is next.
    Size,
    /// This many bytes of a chunk remain.
    Chunk(u64),
    UntilClose,
    Done,
}

/// Reads the body of one message and nothing after it.
#[derive(Debug)]
pub(super) struct Body<'a, R> {
    from: &'a mut Buffered<R>,
    state: ChunkStage,
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

impl<'a, R: Read> Body<'a, R> {
    pub(super) fn new(from: &'a mut Buffered<R>, framing: Framing) -> Self {
        let state = match framing {
            Framing::None | Framing::Length(0) => ChunkStage::Done,
            Framing::Length(length) => ChunkStage::Length(length),
            Framing::Chunked => ChunkStage::Size,
            Framing::UntilClose => ChunkStage::UntilClose,
        };
        Self { from, state }
    }

    /// Reads a line without its end.
    fn line(&mut self, longest: usize) -> io::Result<Vec<u8>> {
        loop {
            let held = self.from.held();
            let end = held.iter().position(|byte| *byte == b'\n');
            let line = held.get(..end.unwrap_or(held.len())).unwrap_or_default();
            if line.len() > longest + 1 {
                return Err(invalid("a line of its chunked body is too long"));
            }
            if end.is_some() {
                let line = line.to_vec();
                self.from.take(line.len() + 1);
                return match line.strip_suffix(b"\r") {
                    Some(line) if !line.iter().any(|byte| *byte < b' ' && *byte != b'\t') => {
                        Ok(line.to_vec())
                    }
                    _ => {
                        Err(invalid("a line of its chunked body has a control character or a bare line end"))
                    }
                };
            }
            if self.from.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn size(&mut self) -> io::Result<u64> {
        let line = self.line(MAX_LINE)?;
        // Chunk extensions are dropped.
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
        let digits = digits.trim_ascii_end();
        if !(1..=15).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(invalid("the size of a chunk is not a plain hexadecimal number"));
        }
        let text = std::str::from_utf8(digits).map_err(|_| invalid("the size of a chunk is not a number"))?;
        u64::from_str_radix(text, 16).map_err(|_| invalid("the size of a chunk is not a number"))
    }

    /// Reads and drops trailers up to their empty line.
    fn trailers(&mut self) -> io::Result<()> {
        let mut left = MAX_TRAILERS;
        loop {
            let line = self.line(MAX_TRAILERS)?;
            if line.is_empty() {
                return Ok(());
            }
            left = left
                .checked_sub(line.len() + 2)
                .ok_or_else(|| invalid("its trailers are larger than 8 KiB"))?;
        }
    }

    /// Returns up to `most` buffered bytes, or reads more first.
    fn some(&mut self, buffer: &mut [u8], most: u64) -> io::Result<usize> {
        if self.from.held().is_empty() && self.from.fill()? == 0 {
            return Ok(0);
        }
        let held = self.from.held();
        let size = held.len().min(buffer.len()).min(usize::try_from(most).unwrap_or(usize::MAX));
        if let (Some(place), Some(bytes)) = (buffer.get_mut(..size), held.get(..size)) {
            place.copy_from_slice(bytes);
        }
        self.from.take(size);
        Ok(size)
    }
}

impl<R: Read> Read for Body<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                ChunkStage::Done => return Ok(0),
                ChunkStage::UntilClose => return self.some(buffer, u64::MAX),
                ChunkStage::Size => match self.size()? {
                    0 => {
                        self.trailers()?;
                        self.state = ChunkStage::Done;
                    }
                    size => self.state = ChunkStage::Chunk(size),
                },
                ChunkStage::Length(left) => {
                    let size = self.some(buffer, left)?;
                    if size == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    let left = left - size as u64;
                    self.state = if left == 0 { ChunkStage::Done } else { ChunkStage::Length(left) };
                    return Ok(size);
                }
                ChunkStage::Chunk(left) => {
                    let size = self.some(buffer, left)?;
                    if size == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    let left = left - size as u64;
                    self.state = ChunkStage::Chunk(left);
                    if left == 0 {
                        if !self.line(0)?.is_empty() {
                            return Err(invalid("a chunk is longer than its size"));
                        }
                        self.state = ChunkStage::Size;
                    }
                    return Ok(size);
                }
            }
        }
    }
}

/// Writes a part of a body.
pub(super) fn write_part(to: &mut dyn Write, part: &[u8], chunked: bool) -> io::Result<()> {
    if !chunked {
        return to.write_all(part);
    }
    if part.is_empty() {
        // An empty chunk would end the body.
        return Ok(());
    }
    let mut framed = format!("{:x}\r\n", part.len()).into_bytes();
    framed.extend_from_slice(part);
    framed.extend_from_slice(b"\r\n");
    to.write_all(&framed)
}

/// Writes the end of a body.
pub(super) fn write_end(to: &mut dyn Write, chunked: bool) -> io::Result<()> {
    if chunked {
        to.write_all(b"0\r\n\r\n")?;
    }
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], framing: Framing) -> (Result<Vec<u8>, String>, Vec<u8>) {
        let mut from = Buffered::new(bytes);
        let mut out = Vec::new();
        let result = Body::new(&mut from, framing).read_to_end(&mut out);
        let mut rest = Vec::new();
        while from.fill().unwrap() > 0 {}
        rest.extend_from_slice(from.held());
        (result.map(|_| out).map_err(|error| error.to_string()), rest)
    }

    #[test]
    fn a_body_ends_by_its_framing() {
        type Row<'a> = (&'a [u8], Framing, &'a [u8], &'a [u8]);
        let rows: &[Row<'_>] = &[
            (b"", Framing::None, b"", b""),
            (b"next", Framing::None, b"", b"next"),
            (b"12345next", Framing::Length(5), b"12345", b"next"),
            (b"5\r\n12345\r\n0\r\n\r\nnext", Framing::Chunked, b"12345", b"next"),
            (b"2;x=y\r\n12\r\n3 \r\n345\r\n0\r\nTrailer: x\r\n\r\nnext", Framing::Chunked, b"12345", b"next"),
            (b"00000A\r\n1234567890\r\n0\r\n\r\n", Framing::Chunked, b"1234567890", b""),
            (b"all", Framing::UntilClose, b"all", b""),
        ];
        for (bytes, framing, body, rest) in rows {
            let found = read(bytes, *framing);
            assert_eq!(found, (Ok(body.to_vec()), rest.to_vec()), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn ambiguous_bodies_are_rejected() {
        let long = [b"1;".to_vec(), vec![b'x'; 300], b"\r\n1\r\n0\r\n\r\n".to_vec()].concat();
        let trailers = [b"0\r\n".to_vec(), b"A: b\r\n".repeat(2000), b"\r\n".to_vec()].concat();
        let rows: &[(&[u8], &str)] = &[
            (b"5\n12345\n0\n\n", "bare line end"),
            (b"5\r\n12345", "end of file"),
            (b"5\r\n1234567\r\n0\r\n\r\n", "too long"),
            (b"0x5\r\n12345\r\n0\r\n\r\n", "hexadecimal"),
            (b"+5\r\n12345\r\n0\r\n\r\n", "hexadecimal"),
            (b"-1\r\n\r\n", "hexadecimal"),
            (b"\r\n12345\r\n", "hexadecimal"),
            (b"ffffffffffffffffff\r\n", "hexadecimal"),
            (b"5;a\rb\r\n12345\r\n0\r\n\r\n", "control"),
            (b"0\r\nA: b\n\r\n", "bare line end"),
            (&long, "too long"),
            (&trailers, "8 KiB"),
        ];
        for (bytes, expected) in rows {
            let (found, _) = read(bytes, Framing::Chunked);
            assert!(found.as_ref().is_err_and(|error| error.contains(expected)), "{expected}: {found:?}");
        }
        assert!(read(b"123", Framing::Length(5)).0.is_err());
    }

    #[test]
    fn written_parts_can_be_read_again() {
        let mut out = Vec::new();
        for part in [&b"12"[..], b"", b"3456789abcdef0123"] {
            write_part(&mut out, part, true).unwrap();
        }
        write_end(&mut out, true).unwrap();
        assert_eq!(read(&out, Framing::Chunked).0.unwrap(), b"123456789abcdef0123");
    }
}
