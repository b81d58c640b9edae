//! Prewarmed empty network namespaces.
//!
//! A network namespace is the most expensive part of a sandbox: 0.3 to 0.4 ms of kernel time per start. Runs
//! cannot share one, because they would see each other's sockets in `/proc/self/net`. If the host program is
//! root, a thread creates the next ones while a run is in progress. An ordinary user's run creates its own at
//! the clone, because it must belong to the run's user namespace.

use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// The number of prewarmed namespaces: the concurrent starts of a small machine.
const PREWARMED: usize = 4;

#[derive(Debug)]
struct Cache {
    ready: Mutex<Vec<OwnedFd>>,
    taken: Condvar,
}

/// Takes a namespace if one is ready. The first call starts the thread.
pub(super) fn take() -> Option<OwnedFd> {
    static CACHE: OnceLock<Option<&'static Cache>> = OnceLock::new();
    let cache = (*CACHE.get_or_init(start))?;
    let namespace = cache.ready.lock().unwrap_or_else(PoisonError::into_inner).pop();
    cache.taken.notify_one();
    namespace
}

fn start() -> Option<&'static Cache> {
    let cache: &'static Cache =
        Box::leak(Box::new(Cache { ready: Mutex::new(Vec::new()), taken: Condvar::new() }));
    // Without the thread every run creates its own.
    std::thread::Builder::new()
        .name("toolpost-network".into())
        .stack_size(64 << 10)
        .spawn(move || fill(cache))
        .ok()
        .map(|_| cache)
}

fn fill(cache: &Cache) {
    loop {
        let mut ready = cache.ready.lock().unwrap_or_else(PoisonError::into_inner);
        while ready.len() >= PREWARMED {
            ready = cache.taken.wait(ready).unwrap_or_else(PoisonError::into_inner);
        }
        drop(ready);
        // Denied: runs create their own, and report the reason.
        let Some(namespace) = make() else { return };
        cache.ready.lock().unwrap_or_else(PoisonError::into_inner).push(namespace);
    }
}

/// Moves only this thread into a new namespace and opens it.
fn make() -> Option<OwnedFd> {
    // SAFETY: a network namespace belongs to the thread; this one does nothing else.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return None;
    }
    let own = rustix::fs::open(c"/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .ok()?;
    super::launch::high(own).ok()
}
