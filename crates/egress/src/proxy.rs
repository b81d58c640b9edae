//! The proxy of a run, on the host: one accepting thread, and one per connection.

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

/// The stack size of a connection's thread: only a TLS handshake needs much.
const STACK: usize = 512 << 10;
/// The time for sent bytes to arrive after the program's end.
const DRAIN: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_hours(1);

/// A proxy that waits for a listening socket, with its placeholders.
#[derive(Debug)]
pub struct PreparedProxy {
    egress: Egress,
    vault: Vault,
}

impl PreparedProxy {
    /// Creates the placeholders. Fails if the system has no random numbers.
    pub fn new(egress: &Egress) -> io::Result<Self> {
        Ok(Self {
            egress: egress.clone(),
            vault: Vault::new(&egress.secrets, egress.upstream_authorization.as_ref())?,
        })
    }

    /// The variables that point a program to the proxy at an address.
    pub fn variables(&self, address: SocketAddr) -> Vec<(String, String)> {
        let proxy = format!("http://{address}");
        let fixed = PROXY_VARIABLES
            .into_iter()
            .map(|name| (name.to_owned(), proxy.clone()))
            .chain(NO_PROXY_VARIABLES.into_iter().map(|name| (name.to_owned(), String::new())))
            .chain([(NODE_VARIABLE.to_owned(), "1".to_owned())]);
        fixed.chain(self.vault.variables()).collect()
    }

    /// Starts accepting. `bytes` limits both directions together, in addition to the allowlist's limits.
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

    /// Starts a proxy for connections that the caller accepts at the address, for [`EgressProxy::take`].
    pub fn wait(self, address: SocketAddr, bytes: Option<u64>) -> io::Result<EgressProxy> {
        let stop = Arc::new(Stop::new()?);
        let variables = self.variables(address);
        let shared = Arc::new(Shared::new(self.egress, self.vault, stop, bytes));
        let freed = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok(EgressProxy { shared, thread: None, taken: Mutex::default(), freed, address, variables })
    }
}

/// A proxy on the caller's listening socket, for programs confined by other means, for example in a
/// container.
///
/// A sandbox starts its own proxy. Dropping it closes every connection and waits for its threads.
#[derive(Debug)]
pub struct EgressProxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The threads of connections that were handed over.
    taken: Mutex<Vec<JoinHandle<()>>>,
    freed: Arc<OwnedFd>,
    address: SocketAddr,
    variables: Vec<(String, String)>,
}

impl EgressProxy {
    /// Serves an allowlist on a listening socket.
    pub fn start(egress: &Egress, listener: TcpListener) -> Result<Self, crate::Error> {
        egress.check()?;
        PreparedProxy::new(egress).and_then(|armed| armed.start(listener, None)).map_err(crate::Error::Start)
    }

    /// The listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The variables that point a program to it, with the placeholders of its secrets.
    pub fn variables(&self) -> &[(String, String)] {
        &self.variables
    }

    /// The traffic so far.
    pub fn log(&self) -> EgressLog {
        self.shared.summary()
    }

    /// Drains sent bytes for at most a quarter of a second, closes every connection, waits for the threads
    /// and returns the log.
    pub fn finish(mut self) -> EgressLog {
        let until = Instant::now() + DRAIN;
        while self.shared.active.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end();
        self.shared.summary()
    }

    /// Serves a connection, given one end of it. Returns it if the limit of connections is reached.
    pub fn take(&self, stream: std::os::unix::net::UnixStream) -> Result<(), std::os::unix::net::UnixStream> {
        let most = u64::from(self.shared.egress.policy.limits.connections_at_once);
        if self.shared.active.load(Ordering::SeqCst) >= most {
            return Err(stream);
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|thread| !thread.is_finished());
        // Any bidirectional stream works.
        taken.extend(serve(&self.shared, &self.freed, TcpStream::from(OwnedFd::from(stream))));
        Ok(())
    }

    fn end(&mut self) {
        self.shared.stop.set();
        let taken = std::mem::take(&mut *self.taken.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in self.thread.take().into_iter().chain(taken) {
            // A connection's own thread has caught its panic.
            let _ = thread.join();
        }
    }
}

impl Drop for EgressProxy {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection in progress. Dropping it frees its slot.
struct Served(Arc<Shared>, Arc<OwnedFd>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::SeqCst);
        let _ = rustix::io::write(&*self.1, &1u64.to_ne_bytes());
    }
}

/// Serves a connection in a thread, unless the limit is reached.
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

/// Accepts until the end of the run, and waits for the threads.
fn accept(shared: &Arc<Shared>, listener: &TcpListener, freed: &Arc<OwnedFd>) {
    let most = u64::from(shared.egress.policy.limits.connections_at_once);
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    loop {
        threads.retain(|thread| !thread.is_finished());
        // Connections beyond the limit wait in the kernel's queue.
        let is_full = shared.active.load(Ordering::SeqCst) >= most;
        let source = if is_full { freed.as_fd() } else { listener.as_fd() };
        match shared.stop.wait(&mut [(source, PollFlags::IN)], MAX_WAIT) {
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
            // For example out of descriptors: others may be closed soon.
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
    let message = "the run has reached its limit of connections".to_owned();
    let trouble = Trouble::Refused { status: 429, rule: "limit_connections", message, hint: None };
    let _ = stream.set_nonblocking(true);
    // It fits into the buffer of a fresh connection.
    let _ = (&*stream).write_all(&serve::page(&trouble, true));
}
