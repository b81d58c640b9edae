//! Heads of HTTP/1.1 messages, parsed strictly: ambiguous ones are rejected.

use std::io::{self, Read};

use super::wire::Buffered;

/// The maximum size of a head in bytes, and of headers in it.
const MAX_SIZE: usize = 64 << 10;
const MAX_HEADERS: usize = 128;

/// The reason why a head is rejected.
#[derive(Debug)]
pub(super) enum HeadError {
    /// The connection ended or timed out. `clean` if no byte of a head arrived.
    Closed { clean: bool, error: io::Error },
    /// It is invalid, as the end of a sentence.
    Invalid(&'static str),
}

/// The first line and the headers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The three parts of the first line; the last one of a response may contain spaces.
    pub(super) first: [String; 3],
    /// Names as written, and values without surrounding space.
    pub(super) headers: Vec<(String, String)>,
}

/// The end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    None,
    Length(u64),
    Chunked,
    /// A response without a length ends with its connection.
    UntilClose,
}

impl Head {
    /// Reads a head up to its empty line.
    pub(super) fn read<R: Read>(from: &mut Buffered<R>) -> Result<Self, HeadError> {
        let mut searched = 0;
        loop {
            let held = from.held();
            if let Some(end) = find_end(held, searched) {
                let parsed = Self::parse(held.get(..end).unwrap_or_default()).map_err(HeadError::Invalid)?;
                from.take(end + 4);
                return Ok(parsed);
            }
            if held.len() > MAX_SIZE {
                return Err(HeadError::Invalid("its head is larger than 64 KiB"));
            }
            // With bare line feeds the expected end would never come.
            if held.windows(2).any(|pair| pair == b"\n\n") {
                return Err(HeadError::Invalid("its lines end in a line feed alone"));
            }
            searched = held.len().saturating_sub(3);
            match from.fill() {
                Ok(0) => {
                    let clean = from.held().is_empty();
                    return Err(HeadError::Closed { clean, error: io::ErrorKind::UnexpectedEof.into() });
                }
                Ok(_) => {}
                Err(error) => return Err(HeadError::Closed { clean: from.held().is_empty(), error }),
            }
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > MAX_SIZE {
            return Err("its head is larger than 64 KiB");
        }
        let mut lines = Vec::new();
        let mut rest = bytes;
        loop {
            let end = rest.windows(2).position(|pair| pair == b"\r\n");
            let line = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
            if line.iter().any(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f) {
                return Err("its head has a control character or a bare line end");
            }
            lines.push(line);
            match end {
                Some(end) => rest = rest.get(end + 2..).unwrap_or_default(),
                None => break,
            }
        }
        let (first, headers) = lines.split_first().ok_or("it is empty")?;
        if headers.len() > MAX_HEADERS {
            return Err("it has more than 128 headers");
        }
        let first = std::str::from_utf8(first).map_err(|_| "its first line is not ASCII")?;
        let mut parts = first.splitn(3, ' ');
        let mut part = || parts.next().unwrap_or_default().to_owned();
        let first = [part(), part(), part()];
        let headers = headers.iter().map(|line| header(line)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { first, headers })
    }

    /// The values of a header (lower-case name).
    pub(super) fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(own, _)| own.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Whether a list header has an element.
    pub(super) fn lists(&self, name: &str, element: &str) -> bool {
        self.values(name)
            .flat_map(|value| value.split(','))
            .any(|own| own.trim().eq_ignore_ascii_case(element))
    }

    /// The framing of the body. Ambiguous headers are rejected.
    pub(super) fn framing(&self) -> Result<Option<Framing>, &'static str> {
        let mut lengths = self.values("content-length");
        let mut codings = self.values("transfer-encoding");
        let (length, coding) = (lengths.next(), codings.next());
        if lengths.next().is_some() || codings.next().is_some() {
            return Err("it says more than once how its body ends");
        }
        match (length, coding) {
            (Some(_), Some(_)) => Err("it has both Content-Length and Transfer-Encoding"),
            (None, Some(coding)) if coding.eq_ignore_ascii_case("chunked") => Ok(Some(Framing::Chunked)),
            (None, Some(_)) => Err("its Transfer-Encoding is not `chunked`"),
            (Some(length), None) => {
                if !(1..=18).contains(&length.len()) || !length.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err("its Content-Length is not a plain number");
                }
                let length = length.parse().map_err(|_| "its Content-Length is not a plain number")?;
                Ok(Some(if length == 0 { Framing::None } else { Framing::Length(length) }))
            }
            (None, None) => Ok(None),
        }
    }

    /// The end-to-end headers, without those that `Connection` lists.
    pub(super) fn end_to_end(&self) -> impl Iterator<Item = &(String, String)> {
        const HOP_BY_HOP: [&str; 10] = [
            "connection",
            "keep-alive",
            "proxy-connection",
            "proxy-authenticate",
            "proxy-authorization",
            "te",
            "trailer",
            "transfer-encoding",
            "content-length",
            "upgrade",
        ];
        self.headers.iter().filter(|(name, _)| {
            !HOP_BY_HOP.iter().any(|own| name.eq_ignore_ascii_case(own)) && !self.lists("connection", name)
        })
    }
}

fn find_end(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    rest.windows(4).position(|four| four == b"\r\n\r\n").map(|at| from + at)
}

pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn header(line: &[u8]) -> Result<(String, String), &'static str> {
    if line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
        return Err("a header is folded over two lines");
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or("a header has no colon")?;
    let (name, value) = line.split_at(colon);
    let name = std::str::from_utf8(name).map_err(|_| "the name of a header has a character that none has")?;
    if !is_token(name) {
        return Err("the name of a header has a character that none has");
    }
    let value = std::str::from_utf8(value.get(1..).unwrap_or_default())
        .map_err(|_| "the value of a header is not UTF-8")?;
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Head, HeadError> {
        Head::read(&mut Buffered::new(bytes))
    }

    #[test]
    fn a_head_is_read_in_parts() {
        struct OneByOne<'a>(&'a [u8]);
        impl Read for OneByOne<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
                buffer[0] = *first;
                self.0 = rest;
                Ok(1)
            }
        }
        let text = b"GET http://a/ HTTP/1.1\r\nHost:  a \r\nX: 1\r\nx: 2, three\r\n\r\nbody";
        let mut from = Buffered::new(OneByOne(text));
        let head = Head::read(&mut from).unwrap();
        assert_eq!(head.first, ["GET", "http://a/", "HTTP/1.1"]);
        assert_eq!(head.values("host").collect::<Vec<_>>(), ["a"]);
        assert_eq!(head.values("x").collect::<Vec<_>>(), ["1", "2, three"]);
        assert!(head.lists("x", "THREE") && !head.lists("x", "thr"));
        assert_eq!(from.exactly(4).unwrap(), b"body");
    }

    #[test]
    fn ambiguous_heads_are_rejected() {
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(129));
        let large = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(70_000));
        let endless = vec![b'x'; 100_000];
        let rows: &[(&[u8], &str)] = &[
            (b"GET / HTTP/1.1\nHost: a\n\n", "line feed"),
            (b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", "bare line end"),
            (b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", "bare line end"),
            (b"GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", "control"),
            (b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n", "control"),
            (b"GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n", "folded"),
            (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", "name of a header"),
            (b"GET / HTTP/1.1\r\n: a\r\n\r\n", "name of a header"),
            (b"GET / HTTP/1.1\r\nHost\r\n\r\n", "no colon"),
            (b"GET / HTTP/1.1\r\nH\xc3\xb6st: a\r\n\r\n", "name of a header"),
            (b"GET / HTTP/1.1\r\nX: \xff\r\n\r\n", "UTF-8"),
            (many.as_bytes(), "128 headers"),
            (large.as_bytes(), "64 KiB"),
            (&endless, "64 KiB"),
        ];
        for (bytes, expected) in rows {
            match read(bytes) {
                Err(HeadError::Invalid(found)) => {
                    assert!(found.contains(expected), "{found}, expected {expected}");
                }
                other => panic!("{}: {other:?}", bytes.get(..40).unwrap_or(bytes).escape_ascii()),
            }
        }
        assert!(matches!(read(b""), Err(HeadError::Closed { clean: true, .. })));
        assert!(matches!(read(b"GET"), Err(HeadError::Closed { clean: false, .. })));
    }

    #[test]
    fn ambiguous_framing_is_rejected() {
        let framing = |headers: &str| {
            read(format!("POST / HTTP/1.1\r\n{headers}\r\n\r\n").as_bytes()).unwrap().framing()
        };
        assert_eq!(framing("X: y"), Ok(None));
        assert_eq!(framing("Content-Length: 0"), Ok(Some(Framing::None)));
        assert_eq!(framing("content-length: 5"), Ok(Some(Framing::Length(5))));
        assert_eq!(framing("Transfer-Encoding: Chunked"), Ok(Some(Framing::Chunked)));
        for wrong in [
            "Content-Length: 5\r\nContent-Length: 5",
            "Content-Length: 5\r\nContent-Length: 6",
            "Content-Length: 5, 5",
            "Content-Length: 5\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: chunked, identity",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding:",
            "Content-Length: +5",
            "Content-Length: -1",
            "Content-Length: 0x5",
            "Content-Length:",
            "Content-Length: 9999999999999999999",
        ] {
            assert!(framing(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hop_by_hop_headers_are_dropped() {
        let head = read(
            b"GET / HTTP/1.1\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nProxy-Authorization: Basic x\r\nTE: trailers\r\nUpgrade: h2c\r\nAccept: */*\r\n\r\n",
        )
        .unwrap();
        let left: Vec<_> = head.end_to_end().map(|(name, _)| name.as_str()).collect();
        assert_eq!(left, ["Accept"]);
    }
}
