//! A connection to the daemon over a Unix socket, TCP or TLS. Every wait has a timeout.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::host::DockerHost;

/// A bidirectional byte stream.
#[derive(Debug)]
pub(super) enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<super::tls::Encrypted>),
}

impl Connection {
    /// Connects within a time limit.
    pub(super) fn open(host: &DockerHost, limit: Duration) -> io::Result<Self> {
        match host {
            DockerHost::Unix(path) => unix(path, limit).map(Self::Unix),
            DockerHost::Tcp { host, port } => tcp(host, *port, limit).map(Self::Tcp),
            #[cfg(feature = "tls")]
            DockerHost::Tls { host, port, certificates } => {
                let stream = tcp(host, *port, limit)?;
                super::tls::Encrypted::new(stream, host, certificates).map(|inner| Self::Tls(Box::new(inner)))
            }
            #[cfg(not(feature = "tls"))]
            DockerHost::Tls { .. } => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this build has no TLS; build it with the feature `tls`",
            )),
        }
    }

    /// Sets the timeout of a read or write; none waits forever.
    pub(super) fn set_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        // Zero is invalid; the wait is over then.
        let limit = limit.map(|limit| limit.max(Duration::from_millis(1)));
        match self {
            Self::Unix(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(limit)?;
                stream.set_write_timeout(limit)
            }
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                stream.socket().set_read_timeout(limit)?;
                stream.socket().set_write_timeout(limit)
            }
        }
    }

    /// Makes reads and writes return [`io::ErrorKind::WouldBlock`] instead of waiting.
    pub(super) fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_nonblocking(on),
            Self::Tcp(stream) => stream.set_nonblocking(on),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.socket().set_nonblocking(on),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(stream) => stream.as_fd(),
            Self::Tcp(stream) => stream.as_fd(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.socket().as_fd(),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(bytes),
            Self::Tcp(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.flush(),
            Self::Tcp(stream) => stream.flush(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.flush(),
        }
    }
}

/// Connects to a Unix socket with a timeout: a hung daemon leaves its queue full.
fn unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let started = Instant::now();
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if started.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn tcp(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
