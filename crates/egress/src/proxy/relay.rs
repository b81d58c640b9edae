//! Relays bytes in both directions between program and server, with half-closed ends.

use std::io;
use std::net::Shutdown;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fd::AsFd as _;

use super::serve::Client;
use super::shared::{Entry, Shared, Trouble, Way};
use super::wire::Wire;

/// The maximum of buffered bytes per direction.
const BLOCK: usize = 16 << 10;

/// One direction.
struct Pipe {
    waiting: Vec<u8>,
    /// The source has ended.
    ended: bool,
    /// The end was forwarded.
    is_forwarded: bool,
}

impl Pipe {
    fn new(waiting: Vec<u8>) -> Self {
        Self { waiting, ended: false, is_forwarded: false }
    }

    /// The poll events at the reading and the writing end.
    fn wants(&self) -> (PollFlags, PollFlags) {
        let read = if !self.ended && self.waiting.is_empty() { PollFlags::IN } else { PollFlags::empty() };
        let write = if self.waiting.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        (read, write)
    }

    fn read(&mut self, from: &Wire) -> io::Result<usize> {
        self.waiting.resize(BLOCK, 0);
        let result = from.read_now(&mut self.waiting);
        self.waiting.truncate(*result.as_ref().unwrap_or(&0));
        match result {
            Ok(0) => self.ended = true,
            Err(error) if is_later(&error) => {}
            other => return other,
        }
        Ok(self.waiting.len())
    }

    fn write(&mut self, to: &Wire) -> io::Result<()> {
        match to.write_now(&self.waiting) {
            Ok(size) => {
                self.waiting.drain(..size);
                Ok(())
            }
            Err(error) if is_later(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Forwards the end of the source.
    fn finish(&mut self, to: &Wire) {
        if self.ended && self.waiting.is_empty() && !self.is_forwarded {
            to.shutdown(Shutdown::Write);
            self.is_forwarded = true;
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Relays until both sides have ended, one fails, the idle time is over, or a limit is reached.
pub(super) fn relay(
    shared: &Shared,
    entry: &mut Entry<'_>,
    client: &mut Client,
    server: &Wire,
) -> Result<(), Trouble> {
    let idle = Duration::from_millis(shared.egress.policy.limits.idle_timeout_ms);
    let held = client.held().to_vec();
    client.take(held.len());
    entry.spend(Way::Up, held.len())?;
    let client = &client.inner;
    let (mut up, mut down) = (Pipe::new(held), Pipe::new(Vec::new()));
    while !(up.is_forwarded && down.is_forwarded) {
        let (client_read, server_write) = up.wants();
        let (server_read, client_write) = down.wants();
        let (at_client, at_server) = (client_read | client_write, server_read | server_write);
        // A closed side without requested events would wake the poll repeatedly.
        let sides = [(client.as_fd(), at_client), (server.as_fd(), at_server)];
        let mut wanted: Vec<_> = sides.into_iter().filter(|(_, flags)| !flags.is_empty()).collect();
        match shared.stop.wait(&mut wanted, idle) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                return Err(Trouble::failed(504, "the connection reached the idle timeout"));
            }
            Err(_) => return Err(Trouble::Gone),
        }
        let mut found = wanted.iter().map(|(_, flags)| *flags);
        let mut next = |asked: PollFlags| {
            if asked.is_empty() { PollFlags::empty() } else { found.next().unwrap_or(PollFlags::empty()) }
        };
        let (at_client, at_server) = (next(at_client), next(at_server));
        // A closed side shows as the end or an error of the requested read or write.
        let over = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        let moved = |error: io::Error| Trouble::new(&error, "the connection");
        if !client_read.is_empty() && at_client.intersects(PollFlags::IN | over) {
            let size = up.read(client).map_err(|_| Trouble::Gone)?;
            entry.spend(Way::Up, size)?;
        }
        if !server_read.is_empty() && at_server.intersects(PollFlags::IN | over) {
            let size = down.read(server).map_err(moved)?;
            entry.spend(Way::Down, size)?;
        }
        if !server_write.is_empty() && at_server.intersects(PollFlags::OUT | over) {
            up.write(server).map_err(moved)?;
        }
        if !client_write.is_empty() && at_client.intersects(PollFlags::OUT | over) {
            down.write(client).map_err(|_| Trouble::Gone)?;
        }
        up.finish(server);
        down.finish(client);
    }
    Ok(())
}
