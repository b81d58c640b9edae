//! The host's half of the way out of a container: what its first process carries over the stream, the run's proxy serves.
//!
//! The container is hostile: it may send only what was granted, and counts and sizes have bounds.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fd::{AsFd as _, BorrowedFd};

use super::channel::{Channel, Frame};
use super::error::DockerError;
use crate::{Egress, EgressLog, EgressProxy, Error, Limits};
use toolpost_egress::PreparedProxy;

/// The port inside, as wide as a frame carries it.
pub(super) const PORT: u64 = toolpost_egress::PORT as u64;
/// What may be on its way in one direction of one connection; the first process knows the same number.
const WINDOW: usize = 64 << 10;
/// What is sent at once.
const PIECE: usize = 16 << 10;
/// Connections at a time: twice as many as the first process carries, which may have ended what has not ended here.
const MOST: usize = 128;
/// How soon a connection that the proxy could not take is offered again.
const SOON: Duration = Duration::from_millis(10);

/// The host's end of a connection.
#[derive(Debug)]
struct End {
    socket: UnixStream,
    /// The proxy's end, until it takes it.
    offered: Option<UnixStream>,
    /// What came from the container and the proxy has not taken.
    waiting: Vec<u8>,
    /// How many bytes the container still takes.
    window: usize,
    /// The program sends no more, and the proxy was told so.
    program_ended: bool,
    told: bool,
    /// The proxy sends no more, and the container was told so.
    proxy_ended: bool,
}

impl End {
    /// Gives the proxy what it takes at once, and says how much that was.
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
        if self.program_ended && self.waiting.is_empty() && !self.told {
            self.told = true;
            // The only error is that it is closed already.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(sum)
    }

    fn is_over(&self) -> bool {
        self.told && self.proxy_ended
    }
}

/// The connections of a container, and the proxy that serves them.
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

    /// The variables that lead a program to it.
    pub(super) fn variables(&self) -> &[(String, String)] {
        self.proxy.variables()
    }

    /// Takes a frame in if it belongs here.
    pub(super) fn take(&mut self, frame: &Frame, channel: &mut Channel) -> Result<bool, DockerError> {
        let number = frame.number(0);
        match frame.kind {
            b'k' => {
                let made = UnixStream::pair()
                    .and_then(|(ours, theirs)| ours.set_nonblocking(true).map(|()| (ours, theirs)));
                match made {
                    Ok((socket, theirs)) if self.ends.len() < MOST => {
                        let end = End {
                            socket,
                            offered: self.proxy.take(theirs).err(),
                            waiting: Vec::new(),
                            window: WINDOW,
                            program_ended: false,
                            told: false,
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
                        let reason = "it sends more through the way out than was granted";
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

    /// Hands on what the proxy has, as far as the container takes it.
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

    /// Does what can be done without waiting.
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

    /// Adds what is waited for. While so much waits to be sent to the container nothing more is read.
    pub(super) fn waits<'a>(&'a self, is_full: bool, others: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        for end in self.ends.values() {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, end.window > 0 && !end.proxy_ended && !is_full);
            flags.set(PollFlags::OUT, !end.waiting.is_empty());
            // One of which nothing is wanted would wake the wait again and again when it is gone.
            if !flags.is_empty() {
                others.push((end.socket.as_fd(), flags));
            }
        }
    }

    /// When there is something to do that no descriptor tells of.
    pub(super) fn soon(&self) -> Option<Instant> {
        self.ends.values().any(|end| end.offered.is_some()).then(|| Instant::now() + SOON)
    }

    /// Closes everything and gives what went through it.
    pub(super) fn finish(mut self) -> EgressLog {
        // What was handed to the proxy goes on its way; nobody is left to hear an answer.
        self.ends.values().for_each(|end| drop(end.socket.shutdown(Shutdown::Write)));
        let ends = std::mem::take(&mut self.ends);
        let log = self.proxy.finish();
        drop(ends);
        log
    }
}
