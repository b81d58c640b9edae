//! The host's half of a container's egress: forwards connections between its first process and the run's
//! proxy.
//!
//! The container is hostile: it may send only within its window, and counts and sizes are bounded.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fd::{AsFd as _, BorrowedFd};

use super::channel::{Channel, Frame};
use super::error::DockerError;
use toolpost_egress::EgressProxy;
use toolpost_egress::PreparedProxy;
use toolpost_sandbox::{Egress, EgressLog, Error, Limits};

/// The port inside, as wide as in a frame.
pub(super) const PORT: u64 = toolpost_egress::PORT as u64;
/// The maximum of unacknowledged bytes per direction of a connection; the first process has the same value.
const WINDOW: usize = 64 << 10;
/// The size of a piece.
const PIECE: usize = 16 << 10;
/// The maximum number of connections: twice that of the first process, whose ended connections may still be
/// open here.
const MAX_CONNECTIONS: usize = 128;
/// The delay before a connection is offered to the proxy again.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// The host's end of a connection.
#[derive(Debug)]
struct End {
    socket: UnixStream,
    /// The proxy's end, until it is accepted.
    offered: Option<UnixStream>,
    /// Bytes from the container for the proxy.
    waiting: Vec<u8>,
    /// The number of bytes that the container accepts.
    window: usize,
    /// The program ended its direction, and the proxy knows.
    program_ended: bool,
    is_forwarded: bool,
    /// The proxy ended its direction, and the container knows.
    proxy_ended: bool,
}

impl End {
    /// Writes as much to the proxy as it accepts at once. Returns the number of bytes.
    fn write(&mut self) -> io::Result<usize> {
        let mut sum = 0;
        while !self.waiting.is_empty() {
            match self.socket.write(&self.waiting) {
                Ok(size) => {
                    self.waiting.drain(..size);
                    sum += size;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if self.program_ended && self.waiting.is_empty() && !self.is_forwarded {
            self.is_forwarded = true;
            // The only error is that it is closed already.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(sum)
    }

    fn is_over(&self) -> bool {
        self.is_forwarded && self.proxy_ended
    }
}

/// A container's connections with their proxy.
#[derive(Debug)]
pub(super) struct Tunnel {
    proxy: EgressProxy,
    ends: BTreeMap<u64, End>,
}

fn frame_of(number: u64, content: &[u8]) -> Vec<u8> {
    [&number.to_le_bytes(), content].concat()
}

impl Tunnel {
    pub(super) fn new(egress: &Egress, limits: &Limits) -> Result<Self, Error> {
        let address = (Ipv4Addr::LOCALHOST, toolpost_egress::PORT).into();
        let proxy = PreparedProxy::new(egress)
            .and_then(|armed| armed.wait(address, limits.network_bytes))
            .map_err(|source| Error::Setup { step: "start egress proxy", source })?;
        Ok(Self { proxy, ends: BTreeMap::new() })
    }

    /// The variables that point programs to the proxy.
    pub(super) fn variables(&self) -> &[(String, String)] {
        self.proxy.variables()
    }

    /// Processes a frame if it belongs to the tunnel.
    pub(super) fn take(&mut self, frame: &Frame, channel: &mut Channel) -> Result<bool, DockerError> {
        let number = frame.number(0);
        match frame.kind {
            b'k' => {
                let pair = UnixStream::pair()
                    .and_then(|(ours, theirs)| ours.set_nonblocking(true).map(|()| (ours, theirs)));
                match pair {
                    Ok((socket, theirs)) if self.ends.len() < MAX_CONNECTIONS => {
                        let end = End {
                            socket,
                            offered: self.proxy.take(theirs).err(),
                            waiting: Vec::new(),
                            window: WINDOW,
                            program_ended: false,
                            is_forwarded: false,
                            proxy_ended: false,
                        };
                        self.ends.insert(number, end);
                    }
                    // The program sees a broken connection.
                    _ => channel.send(b'J', &frame_of(number, &[])),
                }
            }
            b'w' => {
                let bytes = frame.content.get(8..).unwrap_or_default();
                if let Some(end) = self.ends.get_mut(&number) {
                    if end.waiting.len() + bytes.len() > WINDOW {
                        let reason = "it exceeds its egress window";
                        return Err(DockerError::protocol("read from a container", reason));
                    }
                    end.waiting.extend_from_slice(bytes);
                    self.write(number, channel);
                }
            }
            b'm' => {
                if let Some(end) = self.ends.get_mut(&number) {
                    let size = usize::try_from(frame.number(1)).unwrap_or(usize::MAX);
                    end.window = end.window.saturating_add(size).min(WINDOW);
                    self.read(number, channel);
                }
            }
            b'q' => {
                if let Some(end) = self.ends.get_mut(&number) {
                    end.program_ended = true;
                    self.write(number, channel);
                }
            }
            b'j' => {
                self.ends.remove(&number);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn write(&mut self, number: u64, channel: &mut Channel) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        match end.write() {
            Ok(0) => {}
            Ok(size) => channel.send(b'M', &frame_of(number, &(size as u64).to_le_bytes())),
            Err(_) => {
                channel.send(b'J', &frame_of(number, &[]));
                self.ends.remove(&number);
                return;
            }
        }
        if end.is_over() {
            self.ends.remove(&number);
        }
    }

    /// Forwards the proxy's output as far as the container accepts it.
    fn read(&mut self, number: u64, channel: &mut Channel) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        let mut block = [0u8; PIECE];
        while end.window > 0 && !end.proxy_ended && !channel.is_full() {
            let most = end.window.min(PIECE);
            match end.socket.read(block.get_mut(..most).unwrap_or_default()) {
                Ok(0) => {
                    end.proxy_ended = true;
                    channel.send(b'Q', &frame_of(number, &[]));
                }
                Ok(size) => {
                    end.window -= size;
                    channel.send(b'W', &frame_of(number, block.get(..size).unwrap_or_default()));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    channel.send(b'J', &frame_of(number, &[]));
                    self.ends.remove(&number);
                    return;
                }
            }
        }
        if end.is_over() {
            self.ends.remove(&number);
        }
    }

    /// Does all work that needs no wait.
    pub(super) fn pump(&mut self, channel: &mut Channel) {
        let numbers: Vec<u64> = self.ends.keys().copied().collect();
        for number in numbers {
            if let Some(end) = self.ends.get_mut(&number)
                && let Some(offered) = end.offered.take()
            {
                end.offered = self.proxy.take(offered).err();
            }
            self.write(number, channel);
            self.read(number, channel);
        }
    }

    /// Adds the descriptors to poll. While the container's queue is full, nothing is read.
    pub(super) fn waits<'a>(&'a self, is_full: bool, others: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        for end in self.ends.values() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, end.window > 0 && !end.proxy_ended && !is_full);
            flags.set(PollFlags::OUT, !end.waiting.is_empty());
            // A closed descriptor without requested events would wake the poll repeatedly.
            if !flags.is_empty() {
                others.push((end.socket.as_fd(), flags));
            }
        }
    }

    /// The time of the next work without a descriptor event.
    pub(super) fn soon(&self) -> Option<Instant> {
        self.ends.values().any(|end| end.offered.is_some()).then(|| Instant::now() + RETRY_DELAY)
    }

    /// Closes everything and returns the log.
    pub(super) fn finish(mut self) -> EgressLog {
        // Bytes handed to the proxy are still sent; the answer is not read.
        self.ends.values().for_each(|end| drop(end.socket.shutdown(Shutdown::Write)));
        let ends = std::mem::take(&mut self.ends);
        let log = self.proxy.finish();
        drop(ends);
        log
    }
}
