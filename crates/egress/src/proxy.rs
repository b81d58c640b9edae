//! The proxy of one run, on the host's side: a thread that accepts, and one for each connection.

mod body;
mod dial;
mod forward;
mod head;
mod hello;
mod relay;
mod serve;
mod shared;
mod socks;
mod text;
#[cfg(feature = "tls")]
mod tls;
mod upstream;
mod vault;
mod wire;

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFlags, eventfd};
use rustix::fd::{AsFd as _, OwnedFd};

use super::{Egress, EgressLog, NO_PROXY_VARIABLES, NODE_VARIABLE, PROXY_VARIABLES};
use shared::{Shared, Trouble};
use vault::Vault;
use wire::Stop;

/// The stack of one connection's thread: nothing large is on it, but a TLS handshake.
const STACK: usize = 512 << 10;
/// How long what a program has sent may be on its way after the program's end.
const DRAIN: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// A proxy that is ready for a listening socket: its placeholders are made.
#[derive(Debug)]
pub struct PreparedProxy {
    egress: Egress,
    vault: Vault,
}

impl PreparedProxy {
    /// Makes the placeholders. Fails if the system has no random bytes.
    pub fn new(egress: &Egress) -> io::Result<Self> {
        Ok(Self { egress: egress.clone(), vault: Vault::new(&egress.secrets)? })
    }

    /// The variables of a program that finds the proxy at an address.
    pub fn variables(&self, address: SocketAddr) -> Vec<(String, String)> {
        let proxy = format!("http://{address}");
        let fixed = PROXY_VARIABLES
            .into_iter()
            .map(|name| (name.to_owned(), proxy.clone()))
            .chain(NO_PROXY_VARIABLES.into_iter().map(|name| (name.to_owned(), String::new())))
            .chain([(NODE_VARIABLE.to_owned(), "1".to_owned())]);
        fixed.chain(self.vault.variables()).collect()
    }

    /// Starts to accept. `bytes` limits both directions together, besides the limits of the allowlist.
    pub fn start(self, listener: TcpListener, bytes: Option<u64>) -> io::Result<EgressProxy> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let mut proxy = self.wait(address, bytes)?;
        let (own, freed) = (Arc::clone(&proxy.shared), Arc::clone(&proxy.freed));
        let thread = std::thread::Builder::new()
            .name("toolpost-egress".into())
            .stack_size(STACK)
            .spawn(move || accept(&own, &listener, &freed))?;
        proxy.thread = Some(thread);
        Ok(proxy)
    }

    /// Waits for connections that somebody else accepts at the address, for [`EgressProxy::take`].
    pub fn wait(self, address: SocketAddr, bytes: Option<u64>) -> io::Result<EgressProxy> {
        let stop = Arc::new(Stop::new()?);
        let variables = self.variables(address);
        let shared = Arc::new(Shared::new(self.egress, self.vault, stop, bytes));
        let freed = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(EgressProxy { shared, thread: None, taken: Mutex::default(), freed, address, variables })
    }
}

/// A proxy on a listening socket of the caller's own, for programs that are confined by other means than this crate's
/// processes, for example in a container. A sandbox starts its own.
///
/// Dropped, it closes every connection and waits for its threads.
#[derive(Debug)]
pub struct EgressProxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The threads of connections that were handed over one by one.
    taken: Mutex<Vec<JoinHandle<()>>>,
    freed: Arc<OwnedFd>,
    address: SocketAddr,
    variables: Vec<(String, String)>,
}

impl EgressProxy {
    /// Serves an allowlist on a socket that listens.
    pub fn start(egress: &Egress, listener: TcpListener) -> Result<Self, crate::Error> {
        egress.check()?;
        PreparedProxy::new(egress).and_then(|armed| armed.start(listener, None)).map_err(crate::Error::Start)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The variables that lead a program to it, with the placeholders of its secrets.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// What went through it so far.
    pub fn log(&self) -> EgressLog {
        self.shared.summary()
    }

    /// Lets what was sent go on its way for at most a quarter of a second, closes every connection, waits for its
    /// threads, and gives what went through it.
    pub fn finish(mut self) -> EgressLog {
        let until = Instant::now() + DRAIN;
        while self.shared.active.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end();
        self.shared.summary()
    }

    /// Serves a connection, of which this is one end; gives it back while there are as many as there may be.
    pub fn take(&self, stream: std::os::unix::net::UnixStream) -> Result<(), std::os::unix::net::UnixStream> {
        let most = u64::from(self.shared.egress.policy.limits.connections_at_once);
        if self.shared.active.load(Ordering::SeqCst) >= most {
            return Err(stream);
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|thread| !thread.is_finished());
        // A stream in both directions is all that is asked of it.
        taken.extend(serve(&self.shared, &self.freed, TcpStream::from(OwnedFd::from(stream))));
        Ok(())
    }

    fn end(&mut self) {
        self.shared.stop.set();
        let taken = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in self.thread.take().into_iter().chain(taken) {
            // A panic of a connection was caught by its own thread.
            let _ = thread.join();
        }
    }
}

impl Drop for EgressProxy {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection that is being served; dropped, it makes room for another one.
struct Served(Arc<Shared>, Arc<OwnedFd>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
        let _ = rustix::io::write(&*self.1, &1u64.to_ne_bytes());
    }
}

/// Serves a connection in a thread of its own, unless there were too many of them.
fn serve(shared: &Arc<Shared>, freed: &Arc<OwnedFd>, stream: TcpStream) -> Option<JoinHandle<()>> {
    if shared.connections.fetch_add(1, Ordering::Relaxed) >= shared.egress.policy.limits.connections {
        refuse(shared, &stream);
        return None;
    }
    shared.active.fetch_add(1, Ordering::SeqCst);
    let served = Served(Arc::clone(shared), Arc::clone(freed));
    let own = Arc::clone(shared);
    let thread =
        std::thread::Builder::new().name("toolpost-egress".into()).stack_size(STACK).spawn(move || {
            let _served = served;
            serve::connection(&own, stream);
        });
    // Without a thread the connection is closed, which the program sees.
    thread.ok()
}

/// Accepts until the end of the run, and waits for every connection's thread.
fn accept(shared: &Arc<Shared>, listener: &TcpListener, freed: &Arc<OwnedFd>) {
    let most = u64::from(shared.egress.policy.limits.connections_at_once);
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    loop {
        threads.retain(|thread| !thread.is_finished());
        // Those beyond the limit wait in the kernel's queue.
        let is_full = shared.active.load(Ordering::SeqCst) >= most;
        let source = if is_full { freed.as_fd() } else { listener.as_fd() };
        match shared.stop.wait(&mut [(source, PollFlags::IN)], LONGEST_WAIT) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            Err(_) => break,
        }
        if is_full {
            let mut count = [0u8; 8];
            let _ = rustix::io::read(&**freed, &mut count);
            continue;
        }
        match listener.accept() {
            Ok((stream, _)) => threads.extend(serve(shared, freed, stream)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Out of descriptors, for example: others may be given back soon.
            Err(_) => {
                if shared.stop.sleep(Duration::from_millis(10)).is_err() {
                    break;
                }
            }
        }
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn refuse(shared: &Shared, stream: &TcpStream) {
    shared.connection_refused();
    let message = "the run has made as many connections as it may".to_owned();
    let trouble = Trouble::Refused { status: 429, rule: "limit_connections", message, option: None };
    let _ = stream.set_nonblocking(true);
    // It fits into the buffer of a fresh connection.
    let _ = (&*stream).write_all(&serve::page(&trouble, true));
}
