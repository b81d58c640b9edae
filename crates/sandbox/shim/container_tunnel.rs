//! Egress from a container without network: listens on the container's loopback address, and forwards each
//! connection in frames to the host, where the run's proxy serves it.
//!
//! From the host: `N` listens (the port), `W` is data for a connection (its number, the bytes), `M`
//! acknowledges bytes (number, count), `Q` ends a direction (number), `J` reports a broken connection
//! (number). To the host: `p` reports the listener (the error, or 0), `k` a new connection (number), and `w`,
//! `m`, `q`, `j` are the counterparts. Neither side has more than [`WINDOW`] unacknowledged bytes.

use crate::bare::{call, exit, number};
use crate::system::*;
use crate::{PIECE, send, send_numbers, take_number};

/// The maximum number of connections; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 64;
/// The maximum of unacknowledged bytes per direction of a connection.
const WINDOW: usize = 64 << 10;
/// The number of poll entries that this module needs.
pub(crate) const WAITING: usize = MAX_CONNECTIONS + 1;

const READABLE: i16 = 1;
const WRITABLE: i16 = 4;

struct Connection {
    /// -1 if unused.
    descriptor: isize,
    number: u64,
    /// The number of bytes that the host accepts.
    window: usize,
    /// The host's data in `buffer[from..to]`, until the program reads it.
    buffer: Option<&'static mut [u8]>,
    from: usize,
    to: usize,
    /// The program ended its direction; the host ended its; the program knows.
    program_ended: bool,
    host_ended: bool,
    told: bool,
}

impl Connection {
    const NONE: Self = Self {
        descriptor: -1,
        number: 0,
        window: 0,
        buffer: None,
        from: 0,
        to: 0,
        program_ended: false,
        host_ended: false,
        told: false,
    };

    fn free(&mut self) {
        close(self.descriptor);
        self.descriptor = -1;
    }

    /// Reports a broken connection to the host.
    fn broken(&mut self) {
        send_numbers(b'j', &[self.number]);
        self.free();
    }

    /// Writes as much to the program as it accepts at once.
    fn write(&mut self) {
        if let Some(buffer) = &self.buffer
            && self.from < self.to
        {
            let waiting = &buffer[self.from..self.to];
            let size =
                call(number::WRITE, [self.descriptor as usize, waiting.as_ptr() as usize, waiting.len()]);
            if size > 0 {
                self.from += size as usize;
                send_numbers(b'm', &[self.number, size as u64]);
            } else if size != -11 && size != -4 {
                self.broken();
                return;
            }
        }
        if self.from == self.to && self.host_ended && !self.told {
            call(number::SHUTDOWN, [self.descriptor as usize, 1]);
            self.told = true;
        }
        self.end();
    }

    /// Forwards data of the program.
    fn read(&mut self, frame: &mut [u8]) {
        let most = self.window.min(PIECE - 8);
        let size = read(self.descriptor, &mut frame[13..13 + most]);
        if size > 0 {
            self.window -= size as usize;
            frame[5..13].copy_from_slice(&self.number.to_le_bytes());
            send(b'w', frame, 8 + size as usize);
        } else if size == 0 {
            self.program_ended = true;
            send_numbers(b'q', &[self.number]);
            self.end();
        } else if size != -11 && size != -4 {
            self.broken();
        }
    }

    fn end(&mut self) {
        if self.program_ended && self.told {
            self.free();
        }
    }

    fn waits(&self) -> i16 {
        let reads = if self.window > 0 && !self.program_ended { READABLE } else { 0 };
        let writes = if self.from < self.to { WRITABLE } else { 0 };
        reads | writes
    }
}

/// The listener and its connections.
pub(crate) struct Tunnel {
    listener: isize,
    connections: [Connection; MAX_CONNECTIONS],
    last: u64,
}

impl Tunnel {
    pub(crate) const fn new() -> Self {
        Self { listener: -1, connections: [const { Connection::NONE }; MAX_CONNECTIONS], last: 0 }
    }

    /// Listens on a port of the container's loopback address.
    pub(crate) fn listen(&mut self, port: u16) {
        let socket = high(call(number::SOCKET, [2, 1 | CLOEXEC | NONBLOCK, 0]));
        let [first, second] = port.to_be_bytes();
        let address: [u8; 16] = [2, 0, first, second, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut error = socket;
        if socket >= 0 {
            error = call(number::BIND, [socket as usize, address.as_ptr() as usize, address.len()]);
        }
        if error >= 0 {
            error = call(number::LISTEN, [socket as usize, 128]);
        }
        if error < 0 {
            close(socket);
            send_numbers(b'p', &[(-error) as u64]);
            return;
        }
        self.listener = socket;
        send_numbers(b'p', &[0]);
    }

    /// Adds the descriptors to poll.
    pub(crate) fn waits(&self, waiting: &mut [PollFd]) {
        if self.listener >= 0 && self.connections.iter().any(|connection| connection.descriptor < 0) {
            waiting[0] = PollFd { descriptor: self.listener as i32, events: READABLE, returned: 0 };
        }
        for (entry, connection) in waiting[1..].iter_mut().zip(&self.connections) {
            let events = connection.waits();
            // A closed descriptor without requested events would wake the poll repeatedly.
            if connection.descriptor >= 0 && events != 0 {
                *entry = PollFd { descriptor: connection.descriptor as i32, events, returned: 0 };
            }
        }
    }

    /// Does all work that needs no wait.
    pub(crate) fn serve(&mut self, waiting: &[PollFd], frame: &mut [u8]) {
        for (entry, connection) in waiting[1..].iter().zip(&mut self.connections) {
            if entry.returned == 0 {
                continue;
            }
            if entry.events & WRITABLE != 0 {
                connection.write();
            }
            if entry.events & READABLE != 0 && connection.descriptor >= 0 {
                connection.read(frame);
            }
        }
        if waiting[0].returned != 0 {
            self.accept();
        }
    }

    fn accept(&mut self) {
        for connection in self.connections.iter_mut().filter(|connection| connection.descriptor < 0) {
            let accepted = call(number::ACCEPT4, [self.listener as usize, 0, 0, CLOEXEC | NONBLOCK]);
            if accepted < 0 {
                return;
            }
            let descriptor = high(accepted);
            let on = 1i32;
            // The sender has batched the data; more delay would not help.
            call(number::SETSOCKOPT, [descriptor as usize, 6, 1, &raw const on as usize, 4]);
            self.last += 1;
            let buffer = connection.buffer.take();
            *connection = Connection { descriptor, number: self.last, window: WINDOW, buffer, ..Connection::NONE };
            send_numbers(b'k', &[self.last]);
        }
    }

    /// Processes a frame for a connection. A closed one is not an error: frames can cross.
    pub(crate) fn take(&mut self, kind: u8, mut content: &[u8]) {
        let number = take_number(&mut content);
        let mut all = self.connections.iter_mut();
        let Some(connection) = all.find(|one| one.descriptor >= 0 && one.number == number) else { return };
        match kind {
            b'W' => {
                let buffer = connection.buffer.get_or_insert_with(|| memory(WINDOW));
                if connection.to + content.len() > WINDOW {
                    buffer.copy_within(connection.from..connection.to, 0);
                    (connection.from, connection.to) = (0, connection.to - connection.from);
                }
                if connection.to + content.len() > WINDOW {
                    exit(11);
                }
                buffer[connection.to..connection.to + content.len()].copy_from_slice(content);
                connection.to += content.len();
                connection.write();
            }
            b'M' => connection.window += take_number(&mut content) as usize,
            b'Q' => {
                connection.host_ended = true;
                connection.write();
            }
            _ => connection.free(),
        }
    }
}
