//! Resolves names and connects, with timeouts and until the end of the run.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fd::AsFd as _;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::super::Resolve;
use super::wire::Stop;

/// The maximum number of concurrent lookups of this process; the system's resolver cannot be interrupted.
const MAX_LOOKUPS: usize = 16;
static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
/// The maximum number of addresses to try.
const MAX_TRIES: usize = 4;
/// The maximum number of addresses per name.
const MAX_ADDRESSES: usize = 64;

/// A lookup in progress.
struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        let taken = LOOKUPS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
            (count < MAX_LOOKUPS).then(|| count + 1)
        });
        // Construct the slot only if it was taken: dropping it frees a slot.
        taken.ok().map(|_| Self)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        LOOKUPS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Resolves a name on a separate thread, which is abandoned on a timeout.
pub(super) fn resolve(
    resolver: &Arc<dyn Resolve>,
    name: &str,
    time: Duration,
    stop: &Stop,
) -> io::Result<Vec<IpAddr>> {
    let deadline = Instant::now() + time;
    let turn = loop {
        if let Some(turn) = Turn::take() {
            break turn;
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stop.sleep(Duration::from_millis(5))?;
    };
    let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let place: Arc<Mutex<Option<io::Result<Vec<IpAddr>>>>> = Arc::default();
    let (resolver, owned) = (Arc::clone(resolver), name.to_owned());
    let (its_done, its_place) = (Arc::clone(&done), Arc::clone(&place));
    let thread = std::thread::Builder::new().name("toolpost-resolve".into()).spawn(move || {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| resolver.resolve(&owned)))
            .unwrap_or_else(|_| Err(io::Error::other("the resolver panicked")));
        *its_place.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
        drop(turn);
        let _ = rustix::io::write(&its_done, &1u64.to_ne_bytes());
    })?;
    let rest = deadline.saturating_duration_since(Instant::now());
    stop.wait(&mut [(done.as_fd(), PollFlags::IN)], rest)?;
    // It has nothing more to do.
    let _ = thread.join();
    let found = place.lock().unwrap_or_else(PoisonError::into_inner).take();
    let found = found.unwrap_or_else(|| Err(io::Error::other("no answer")))?;
    if found.len() > MAX_ADDRESSES {
        return Err(io::Error::other(format!("the name has {} addresses", found.len())));
    }
    Ok(found)
}

/// Connects to the first address that answers.
pub(super) fn connect(addresses: &[SocketAddr], time: Duration, stop: &Stop) -> io::Result<TcpStream> {
    let deadline = Instant::now() + time;
    let tries = addresses.len().clamp(1, MAX_TRIES);
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (index, address) in addresses.iter().take(MAX_TRIES).enumerate() {
        let rest = deadline.saturating_duration_since(Instant::now());
        match connect_to(address, rest / (tries - index) as u32, stop) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn connect_to(address: &SocketAddr, time: Duration, stop: &Stop) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            stop.wait(&mut [(socket.as_fd(), PollFlags::OUT)], time)?;
            rustix::net::sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(TcpStream::from(socket))
}
