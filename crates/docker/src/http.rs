//! A minimal HTTP/1.1 client for the Docker Engine.
//!
//! One request per connection; bodies with length, chunked or to the end; upgrades to a raw stream.
//! Everything is bounded in size and time.

use std::io::{self, Read, Write as _};
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::error::DockerError;
use super::host::DockerHost;

/// The maximum size of status line and headers.
const MAX_HEAD: usize = 64 << 10;
/// The maximum size of an answer in memory.
const MAX_ANSWER: usize = 32 << 20;

/// The body of a request.
pub(super) enum Body<'a> {
    None,
    Json(&'a serde_json::Value),
    /// A tar archive of unknown length.
    Archive(&'a mut dyn Read),
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// The header `Api-Version`.
    pub(super) version: Option<String>,
}

/// A request and its answer, whose body is streamed.
struct Exchange<'a> {
    host: &'a DockerHost,
    action: &'a str,
    connection: Connection,
    deadline: Instant,
    limit: Duration,
    /// Bytes that were read but not consumed.
    buffer: Vec<u8>,
}

/// The rule for the end of a body.
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

/// Sends a request and returns the answer with its body, whatever the status.
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
        if content.len() + piece.len() > MAX_ANSWER {
            return Err(DockerError::protocol(action, "the answer is longer than 32 MiB"));
        }
        content.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(Answer { status: head.0, body: content, version: head.1 })
}

/// A variant with more headers, streaming the body in pieces. Returns the status and the version.
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

/// Upgrades a connection to a raw stream. Returns it with bytes read past the headers, or the rejecting
/// answer.
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
        content.extend_from_slice(piece.get(..piece.len().min(MAX_HEAD)).unwrap_or_default());
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

    /// Sets the remaining time, or fails if it is over.
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
                        // A daemon that rejects early sends its reason and stops reading.
                        return if matches!(error, DockerError::Unreachable { .. }) {
                            Ok(())
                        } else {
                            Err(error)
                        };
                    }
                    if size == 0 {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads more into the buffer. Returns the number of bytes, 0 at the end.
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

    /// Reads a line without its end.
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
        let first = self.line(MAX_HEAD)?;
        let status = first
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.get(2..5))
            .and_then(|digits| digits.parse::<u16>().ok())
            .filter(|status| (100..600).contains(status))
            .ok_or_else(|| self.protocol(&format!("`{first}` is not an HTTP/1.1 status line")))?;
        let (mut extent, mut version) = (Extent::End, None);
        let mut total = first.len();
        loop {
            let line = self.line(MAX_HEAD)?;
            if line.is_empty() {
                break;
            }
            total += line.len();
            if total > MAX_HEAD {
                return Err(self.protocol("the headers are longer than 64 KiB"));
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(self.protocol("a header has no colon"));
            };
            let value = value.trim();
            match name.to_ascii_lowercase().as_str() {
                "content-length" if !matches!(extent, Extent::Chunks) => {
                    let length = value.parse().map_err(|_| self.protocol("the length is not a number"))?;
                    extent = Extent::Length(length);
                }
                "transfer-encoding" if value.eq_ignore_ascii_case("chunked") => extent = Extent::Chunks,
                "api-version" => version = Some(value.to_owned()),
                _ => {}
            }
        }
        Ok(Head { status, extent, version })
    }

    /// Streams exactly `left` bytes.
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
                    return Err(self.protocol("a chunk exceeds its size"));
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

/// The error of a broken connection or a timeout.
pub(super) fn failure(host: &DockerHost, action: &str, limit: Duration, error: io::Error) -> DockerError {
    let (host, action) = (host.to_string(), action.to_owned());
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return DockerError::Timeout { host, action, limit };
    }
    DockerError::Unreachable { host, action, source: error }
}
