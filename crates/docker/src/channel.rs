//! The stream between host and first process of a container: our frames within the daemon's.
//!
//! Both are hostile input: frames are bounded, and every wait has a timeout.

use std::io::{self, Read as _, Write as _};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd as _, BorrowedFd};

use super::connection::Connection;
use super::error::DockerError;

/// The maximum size of a frame.
const MAX_FRAME: usize = 64 << 10;
/// The maximum size of queued output.
const MAX_QUEUED: usize = 1 << 20;

/// A frame: kind and content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) content: Vec<u8>,
}

impl Frame {
    /// The number at an index; `u64::MAX` means unknown.
    pub(super) fn number(&self, index: usize) -> u64 {
        let bytes = self.content.get(index * 8..index * 8 + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(u64::MAX, u64::from_le_bytes)
    }
}

/// The result of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Frame(Frame),
    /// The timeout, or another ready descriptor.
    Nothing,
    /// The container closed its side.
    End,
}

/// Removes the daemon's framing: eight bytes (stream, three zeros, size) before each piece.
#[derive(Debug, Default)]
struct Demultiplexer {
    header: Vec<u8>,
    left: usize,
    is_output: bool,
}

impl Demultiplexer {
    fn push(&mut self, mut bytes: &[u8], output: &mut Vec<u8>) -> Result<(), DockerError> {
        while !bytes.is_empty() {
            if self.left == 0 {
                let (first, rest) = bytes.split_at(bytes.len().min(8 - self.header.len()));
                self.header.extend_from_slice(first);
                bytes = rest;
                if let [stream, 0, 0, 0, size @ ..] = self.header.as_slice()
                    && let Ok(size) = <[u8; 4]>::try_from(size)
                {
                    self.left = u32::from_be_bytes(size) as usize;
                    self.is_output = *stream == 1;
                    self.header.clear();
                } else if self.header.len() == 8 {
                    return Err(DockerError::protocol("read from a container", "the stream is not framed"));
                }
                continue;
            }
            let (first, rest) = bytes.split_at(bytes.len().min(self.left));
            if self.is_output {
                output.extend_from_slice(first);
            }
            self.left -= first.len();
            bytes = rest;
        }
        Ok(())
    }
}

/// An open stream.
#[derive(Debug)]
pub(super) struct Channel {
    connection: Connection,
    demultiplexer: Demultiplexer,
    incoming: Vec<u8>,
    /// The number of consumed bytes.
    taken: usize,
    outgoing: Vec<u8>,
    ended: bool,
}

impl Channel {
    /// `first` is input that was already read.
    pub(super) fn new(connection: Connection, first: &[u8]) -> Result<Self, DockerError> {
        let fail = |source| DockerError::File { action: "use", path: "connection".into(), source };
        connection.set_timeout(None).map_err(fail)?;
        connection.set_nonblocking(true).map_err(fail)?;
        let (mut demultiplexer, mut incoming) = (Demultiplexer::default(), Vec::new());
        demultiplexer.push(first, &mut incoming)?;
        Ok(Self { connection, demultiplexer, incoming, taken: 0, outgoing: Vec::new(), ended: false })
    }

    /// Queues a frame.
    pub(super) fn send(&mut self, kind: u8, content: &[u8]) {
        self.outgoing.push(kind);
        self.outgoing.extend_from_slice(&(content.len() as u32).to_le_bytes());
        self.outgoing.extend_from_slice(content);
        self.write();
    }

    /// Whether the queue is full.
    pub(super) fn is_full(&self) -> bool {
        self.outgoing.len() > MAX_QUEUED
    }

    fn write(&mut self) {
        while !self.outgoing.is_empty() && !self.ended {
            match self.connection.write(&self.outgoing) {
                Ok(size) => {
                    self.outgoing.drain(..size);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.ended = true,
            }
        }
        // An encrypted connection buffers too; the rest goes out with the next write.
        let _ = self.connection.flush();
    }

    /// Reads available input.
    fn read(&mut self) -> Result<(), DockerError> {
        let mut block = [0u8; 16 << 10];
        while !self.ended && self.incoming.len() - self.taken <= MAX_FRAME {
            match self.connection.read(&mut block) {
                Ok(0) => self.ended = true,
                Ok(size) => {
                    if self.taken > 0 {
                        self.incoming.drain(..self.taken);
                        self.taken = 0;
                    }
                    let piece = block.get(..size).unwrap_or_default();
                    self.demultiplexer.push(piece, &mut self.incoming)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.ended = true,
            }
        }
        Ok(())
    }

    /// Takes a complete frame, if there is one.
    fn take(&mut self) -> Result<Option<Frame>, DockerError> {
        let waiting = self.incoming.get(self.taken..).unwrap_or_default();
        let Some((&[kind, a, b, c, d], rest)) = waiting.split_first_chunk::<5>() else { return Ok(None) };
        let size = u32::from_le_bytes([a, b, c, d]) as usize;
        if size > MAX_FRAME {
            return Err(DockerError::protocol("read from a container", "a frame is too long"));
        }
        let Some(content) = rest.get(..size) else { return Ok(None) };
        let frame = Frame { kind, content: content.to_vec() };
        self.taken += 5 + size;
        Ok(Some(frame))
    }

    /// Waits for a frame until a time, another ready descriptor, or (if `eager`) room in the queue.
    pub(super) fn wait(
        &mut self,
        until: Option<Instant>,
        others: &[(BorrowedFd<'_>, PollFlags)],
        eager: bool,
    ) -> Result<Waited, DockerError> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Waited::Frame(frame));
            }
            self.write();
            self.read()?;
            if let Some(frame) = self.take()? {
                return Ok(Waited::Frame(frame));
            }
            if self.ended {
                return Ok(Waited::End);
            }
            if eager && !self.is_full() {
                return Ok(Waited::Nothing);
            }
            let left = until
                .map_or(Duration::from_hours(1), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Waited::Nothing);
            }
            let flags = if self.outgoing.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
            let mut waiting = vec![PollFd::from_borrowed_fd(self.connection.as_fd(), flags)];
            waiting.extend(others.iter().map(|(other, flags)| PollFd::from_borrowed_fd(*other, *flags)));
            let timeout = Timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            // An interrupted wait is repeated.
            let _ = poll(&mut waiting, Some(&timeout));
            if waiting.iter().skip(1).any(|other| !other.revents().is_empty()) {
                return Ok(Waited::Nothing);
            }
        }
    }

    /// Whether the far side is open, without waiting.
    pub(super) fn is_open(&mut self) -> bool {
        self.read().is_ok() && !self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn framed(bytes: &[u8], stream: u8) -> Vec<u8> {
        let mut all = vec![stream, 0, 0, 0];
        all.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        all.extend_from_slice(bytes);
        all
    }

    #[test]
    fn frames_are_decoded_from_any_pieces() {
        let inner = [b"o\x03\0\0\0abc".as_slice(), b"x\x08\0\0\0\x01\0\0\0\0\0\0\0"].concat();
        let mut all = framed(&inner[..4], 1);
        all.extend(framed(b"noise on the error stream", 2));
        all.extend(framed(&inner[4..], 1));
        for piece in 1..all.len() {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let mut channel = Channel::new(Connection::Unix(theirs), &[]).unwrap();
            let mut frames = Vec::new();
            for part in all.chunks(piece) {
                ours.write_all(part).unwrap();
                while let Waited::Frame(frame) = channel.wait(Some(Instant::now()), &[], false).unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(frames.len(), 2);
            assert_eq!((frames[0].kind, frames[0].content.as_slice()), (b'o', b"abc".as_slice()));
            assert_eq!((frames[1].number(0), frames[1].number(1)), (1, u64::MAX));
            drop(ours);
            assert_eq!(channel.wait(None, &[], false).unwrap(), Waited::End);
        }
    }

    #[test]
    fn invalid_frames_are_errors_without_allocation() {
        for bytes in [framed(b"o\xff\xff\xff\x7f", 1), b"HTTP/1.1 200 OK\r\n".to_vec()] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let mut channel = Channel::new(Connection::Unix(theirs), &[]).unwrap();
            ours.write_all(&bytes).unwrap();
            let until = Some(Instant::now() + Duration::from_secs(5));
            assert!(matches!(channel.wait(until, &[], false), Err(DockerError::Protocol { .. })));
        }
    }
}
