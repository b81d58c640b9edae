//! Empty network namespaces, made ahead of time.
//!
//! A network namespace is the dearest part of a sandbox: 0.3 to 0.4 ms of the kernel's time at each start. Sharing one
//! among runs would be cheaper still, but then the runs would see the names of each other's sockets in
//! `/proc/self/net`. So every run gets one of its own, and when the host program is root a thread makes the next ones
//! while the run goes on. An ordinary user's run makes its own at the clone, because it must belong to the run's user
//! namespace.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// How many wait for a run: as many as runs start at once on a small machine.
const READY: usize = 4;

#[derive(Debug)]
struct Stock {
    ready: Mutex<Vec<OwnedFd>>,
    taken: Condvar,
}

/// A namespace if one is ready. The first call starts the thread that makes them.
pub(super) fn take() -> Option<OwnedFd> {
    static STOCK: OnceLock<Option<&'static Stock>> = OnceLock::new();
    let stock = (*STOCK.get_or_init(start))?;
    let namespace = stock.ready.lock().unwrap_or_else(PoisonError::into_inner).pop();
    stock.taken.notify_one();
    namespace
}

fn start() -> Option<&'static Stock> {
    let stock: &'static Stock =
        Box::leak(Box::new(Stock { ready: Mutex::new(Vec::new()), taken: Condvar::new() }));
    // Without the thread every run makes its own.
    std::thread::Builder::new()
        .name("toolpost-network".into())
        .stack_size(64 << 10)
        .spawn(move || fill(stock))
        .ok()
        .map(|_| stock)
}

fn fill(stock: &Stock) {
    loop {
        let mut ready = stock.ready.lock().unwrap_or_else(PoisonError::into_inner);
        while ready.len() >= READY {
            ready = stock.taken.wait(ready).unwrap_or_else(PoisonError::into_inner);
        }
        drop(ready);
        // Refused: the runs will make their own, and learn the reason.
        let Some(namespace) = make() else { return };
        stock.ready.lock().unwrap_or_else(PoisonError::into_inner).push(namespace);
    }
}

/// Moves this thread, and no other, into a new namespace and opens it.
fn make() -> Option<OwnedFd> {
    // SAFETY: a network namespace belongs to the thread; this one does nothing else.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return None;
    }
    let own = rustix::fs::open(c"/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .ok()?;
    super::launch::high(own).ok()
}
