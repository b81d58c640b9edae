//! HTTP/1.1 as far as the Docker Engine speaks it: one request per connection, bodies with a length, in chunks or to
//! the end, and the upgrade to a raw stream. Everything is bounded in size and time.

use std::io::{self, Read, Write as _};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::error::DockerError;
use super::host::DockerHost;

/// The status line and the headers together.
const LARGEST_HEAD: usize = 64 << 10;
/// An answer that is kept in memory.
const LARGEST_ANSWER: usize = 32 << 20;

/// What a request carries.
pub(super) enum Body<'a> {
    None,
    Json(&'a serde_json::Value),
    /// A tar archive of unknown length.
    Archive(&'a mut dyn Read),
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// The header `Api-Version`.
    pub(super) version: Option<String>,
}

/// One request and its answer; the answer's body is read as it comes.
struct Exchange<'a> {
    host: &'a DockerHost,
    action: &'a str,
    connection: Connection,
    deadline: Instant,
    limit: Duration,
    /// Read and not used yet.
    buffer: Vec<u8>,
}

/// How the body of an answer ends.
enum Extent {
    Length(u64),
    Chunks,
    End,
}

struct Head {
    status: u16,
    extent: Extent,
    version: Option<String>,
}

/// Sends a request and gives the answer with its body, whatever the status.
pub(super) fn request(
    host: &DockerHost,
    action: &str,
    method: &str,
    path: &str,
    body: Body<'_>,
    limit: Duration,
) -> Result<Answer, DockerError> {
    let mut content = Vec::new();
    let head = stream(host, action, method, path, body, limit, "", &mut |piece| {
        if content.len() + piece.len() > LARGEST_ANSWER {
            return Err(DockerError::protocol(action, "the answer is longer than 32 MiB"));
        }
        content.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(Answer { status: head.0, body: content, version: head.1 })
}

/// The same, with further headers, and with the body handed over in pieces. Gives the status and the version.
#[expect(clippy::too_many_arguments, reason = "one request in one call, from two places")]
pub(super) fn stream(
    host: &DockerHost,
    action: &str,
    method: &str,
    path: &str,
    body: Body<'_>,
    limit: Duration,
    headers: &str,
    each: &mut dyn FnMut(&[u8]) -> Result<(), DockerError>,
) -> Result<(u16, Option<String>), DockerError> {
    let mut exchange = Exchange::open(host, action, limit)?;
    exchange.send(method, path, body, &format!("Connection: close\r\n{headers}"))?;
    let head = exchange.head()?;
    if method != "HEAD" && !matches!(head.status, 204 | 304) {
        exchange.body(&head.extent, each)?;
    }
    Ok((head.status, head.version))
}

/// Turns a connection into a raw stream. Gives it with what was read beyond the headers, or the answer that refuses.
pub(super) fn upgrade(
    host: &DockerHost,
    action: &str,
    path: &str,
    limit: Duration,
) -> Result<Result<(Connection, Vec<u8>), Answer>, DockerError> {
    let mut exchange = Exchange::open(host, action, limit)?;
    exchange.send("POST", path, Body::None, "Connection: Upgrade\r\nUpgrade: tcp\r\n")?;
    let head = exchange.head()?;
    if head.status == 101 || head.status == 200 {
        return Ok(Ok((exchange.connection, exchange.buffer)));
    }
    let mut content = Vec::new();
    exchange.body(&head.extent, &mut |piece| {
        content.extend_from_slice(piece.get(..piece.len().min(LARGEST_HEAD)).unwrap_or_default());
        Ok(())
    })?;
    Ok(Err(Answer { status: head.status, body: content, version: None }))
}

impl<'a> Exchange<'a> {
    fn open(host: &'a DockerHost, action: &'a str, limit: Duration) -> Result<Self, DockerError> {
        let started = Instant::now();
        let connection =
            Connection::open(host, limit).map_err(|error| failure(host, action, limit, error))?;
        let deadline = started.checked_add(limit).unwrap_or(started);
        Ok(Self { host, action, connection, deadline, limit, buffer: Vec::new() })
    }

    fn fail(&self, error: io::Error) -> DockerError {
        failure(self.host, self.action, self.limit, error)
    }

    fn protocol(&self, reason: &str) -> DockerError {
        DockerError::protocol(self.action, reason)
    }

    /// Sets the time that is left, or fails when there is none.
    fn hurry(&self) -> Result<(), DockerError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.fail(io::ErrorKind::TimedOut.into()));
        }
        self.connection.set_timeout(Some(left)).map_err(|error| self.fail(error))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), DockerError> {
        self.hurry()?;
        let result = self.connection.write_all(bytes).and_then(|()| self.connection.flush());
        result.map_err(|error| self.fail(error))
    }

    fn send(&mut self, method: &str, path: &str, body: Body<'_>, extra: &str) -> Result<(), DockerError> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: docker\r\nUser-Agent: toolpost\r\n{extra}");
        match body {
            Body::None => {
                head.push_str("Content-Length: 0\r\n\r\n");
                self.write(head.as_bytes())
            }
            Body::Json(value) => {
                use std::fmt::Write as _;
                let text = value.to_string();
                let size = text.len();
                let _ =
                    write!(head, "Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n{text}");
                self.write(head.as_bytes())
            }
            Body::Archive(source) => {
                head.push_str("Content-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n\r\n");
                self.write(head.as_bytes())?;
                let mut block = vec![0u8; 256 << 10];
                loop {
                    let size = source.read(&mut block).map_err(|source| DockerError::File {
                        action: "read",
                        path: "archive".into(),
                        source,
                    })?;
                    let mut chunk = format!("{size:x}\r\n").into_bytes();
                    chunk.extend_from_slice(block.get(..size).unwrap_or_default());
                    chunk.extend_from_slice(b"\r\n");
                    if let Err(error) = self.write(&chunk) {
                        // A daemon that refuses early says why, and does not read on.
                        return if matches!(error, DockerError::Gone { .. }) { Ok(()) } else { Err(error) };
                    }
                    if size == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads more into the buffer; gives how much, 0 at the end.
    fn more(&mut self) -> Result<usize, DockerError> {
        let mut block = [0u8; 16 << 10];
        loop {
            self.hurry()?;
            match self.connection.read(&mut block) {
                Ok(size) => {
                    self.buffer.extend_from_slice(block.get(..size).unwrap_or_default());
                    return Ok(size);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Reads a line, without its end.
    fn line(&mut self, most: usize) -> Result<String, DockerError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return String::from_utf8(line).map_err(|_| self.protocol("a line is not text"));
            }
            if self.buffer.len() > most {
                return Err(self.protocol("a line is too long"));
            }
            if self.more()? == 0 {
                return Err(self.fail(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn head(&mut self) -> Result<Head, DockerError> {
        let first = self.line(LARGEST_HEAD)?;
        let status = first
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.get(2..5))
            .and_then(|digits| digits.parse::<u16>().ok())
            .filter(|status| (100..600).contains(status))
            .ok_or_else(|| self.protocol(&format!("`{first}` is no status line of HTTP/1.1")))?;
        let (mut extent, mut version) = (Extent::End, None);
        let mut total = first.len();
        loop {
            let line = self.line(LARGEST_HEAD)?;
            if line.is_empty() {
                break;
            }
            total += line.len();
            if total > LARGEST_HEAD {
                return Err(self.protocol("the headers are longer than 64 KiB"));
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(self.protocol("a header has no colon"));
            };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" if !matches!(extent, Extent::Chunks) => {
                    let length = value.parse().map_err(|_| self.protocol("the length is no number"))?;
                    extent = Extent::Length(length);
                }
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => extent = Extent::Chunks,
                "api-version" => version = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(Head { status, extent, version })
    }

    /// Hands over exactly `left` bytes.
    fn exactly(
        &mut self,
        mut left: u64,
        each: &mut dyn FnMut(&[u8]) -> Result<(), DockerError>,
    ) -> Result<(), DockerError> {
        while left > 0 {
            if self.buffer.is_empty() && self.more()? == 0 {
                return Err(self.fail(io::ErrorKind::UnexpectedEof.into()));
            }
            let size = usize::try_from(left).unwrap_or(usize::MAX).min(self.buffer.len());
            let piece: Vec<u8> = self.buffer.drain(..size).collect();
            each(&piece)?;
            left -= size as u64;
        }
        Ok(())
    }

    fn body(
        &mut self,
        extent: &Extent,
        each: &mut dyn FnMut(&[u8]) -> Result<(), DockerError>,
    ) -> Result<(), DockerError> {
        match extent {
            Extent::Length(length) => self.exactly(*length, each),
            Extent::Chunks => loop {
                let line = self.line(1024)?;
                let digits = line.split(';').next().unwrap_or_default().trim();
                let size =
                    u64::from_str_radix(digits, 16).map_err(|_| self.protocol("a chunk has no size"))?;
                if size == 0 {
                    return Ok(());
                }
                self.exactly(size, each)?;
                if !self.line(2)?.is_empty() {
                    return Err(self.protocol("a chunk is longer than it says"));
                }
            },
            Extent::End => loop {
                if !self.buffer.is_empty() {
                    each(&std::mem::take(&mut self.buffer))?;
                }
                if self.more()? == 0 {
                    return Ok(());
                }
            },
        }
    }
}

/// A broken connection, or one on which nothing came in time.
pub(super) fn failure(host: &DockerHost, action: &str, limit: Duration, error: io::Error) -> DockerError {
    let (host, action) = (host.to_string(), action.to_owned());
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return DockerError::Hangs { host, action, limit };
    }
    DockerError::Gone { host, action, source: error }
}
