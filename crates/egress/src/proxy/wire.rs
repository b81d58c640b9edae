//! Sockets whose waits have a timeout and end with the run.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// The end of the run, which wakes every wait.
#[derive(Debug)]
pub(super) struct Stop(OwnedFd);

impl Stop {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Wakes every wait permanently: the event is never read.
    pub(super) fn set(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(super) fn is_set(&self) -> bool {
        self.wait(&mut [], Duration::ZERO)
            .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionAborted)
    }

    /// Sleeps, at most until the end of the run.
    pub(super) fn sleep(&self, time: Duration) -> io::Result<()> {
        match self.wait(&mut [], time) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
            other => other,
        }
    }

    /// Waits until a descriptor is ready. `TimedOut` on timeout, `ConnectionAborted` at the end of the run.
    pub(super) fn wait(&self, wanted: &mut [(BorrowedFd<'_>, PollFlags)], time: Duration) -> io::Result<()> {
        let deadline = Instant::now().checked_add(time);
        loop {
            let mut waiting = vec![PollFd::new(&self.0, PollFlags::IN)];
            waiting.extend(
                wanted.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)),
            );
            let rest = deadline.map_or(time, |deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = Timespec {
                tv_sec: rest.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: rest.subsec_nanos().into(),
            };
            let count = match poll(&mut waiting, Some(&timeout)) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            if !waiting[0].revents().is_empty() {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the run has ended"));
            }
            if count == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            for (entry, found) in wanted.iter_mut().zip(waiting.iter().skip(1)) {
                entry.1 = found.revents();
            }
            return Ok(());
        }
    }
}

/// A connection whose reads and writes time out.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    stop: Arc<Stop>,
    /// The timeout of one read or write.
    idle: Duration,
    /// The deadline of all of them.
    deadline: Option<Instant>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, stop: Arc<Stop>, idle: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        // The sender has batched relayed data; more delay would not help.
        let _ = stream.set_nodelay(true);
        Ok(Self { stream, stop, idle, deadline: None })
    }

    /// Sets or removes the deadline.
    pub(super) fn until(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    pub(super) fn shutdown(&self, how: std::net::Shutdown) {
        // The only error is that it is closed already.
        let _ = self.stream.shutdown(how);
    }

    pub(super) fn peer(&self) -> io::Result<std::net::SocketAddr> {
        self.stream.peer_addr()
    }

    /// Reads available bytes without waiting.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.stream).read(buffer)
    }

    /// Writes what fits without waiting.
    pub(super) fn write_now(&self, buffer: &[u8]) -> io::Result<usize> {
        (&self.stream).write(buffer)
    }

    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        let time = self
            .deadline
            .map_or(self.idle, |deadline| self.idle.min(deadline.saturating_duration_since(Instant::now())));
        self.stop.wait(&mut [(self.stream.as_fd(), flags)], time)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // A peer that always has more must not hide the deadline.
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match (&self.stream).read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(size) if self.stop.is_set() && size > 0 => {
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the run has ended"));
                }
                other => return other,
            }
        }
    }
}

impl Write for Wire {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        loop {
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match (&self.stream).write(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::OUT)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader with lookahead.
#[derive(Debug)]
pub(super) struct Buffered<R> {
    pub(super) inner: R,
    buffer: Vec<u8>,
    at: usize,
}

const BLOCK: usize = 16 << 10;

impl<R: Read> Buffered<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, buffer: Vec::new(), at: 0 }
    }

    /// The bytes that were read but not consumed.
    pub(super) fn held(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    pub(super) fn take(&mut self, count: usize) {
        self.at = (self.at + count).min(self.buffer.len());
        if self.at == self.buffer.len() {
            self.buffer.clear();
            self.at = 0;
        }
    }

    /// Reads more into the buffer. Returns the number of bytes; 0 is the end.
    pub(super) fn fill(&mut self) -> io::Result<usize> {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        let before = self.buffer.len();
        self.buffer.resize(before + BLOCK, 0);
        let result = self.inner.read(self.buffer.get_mut(before..).unwrap_or_default());
        self.buffer.truncate(before + result.as_ref().copied().unwrap_or(0));
        result
    }

    /// Consumes exactly `count` bytes; an earlier end is an error.
    pub(super) fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.held().len() < count {
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let bytes = self.held().get(..count).unwrap_or_default().to_vec();
        self.take(count);
        Ok(bytes)
    }
}
