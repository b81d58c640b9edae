//! `Cancel`: ends runs from another thread.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::platform::Flag;

/// Ends runs from another thread. Clones share one state, and a cancellation is permanent.
///
/// A run that starts with a cancelled handle ends at once with [`crate::Verdict::Cancelled`].
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    pub(crate) flag: Arc<Flag>,
}

impl Cancel {
    /// Creates an unused handle.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every run that uses this handle and kills everything that it started. Callable from any thread.
    pub fn cancel(&self) {
        self.flag.set();
    }

    /// Whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.flag.is_set()
    }

    /// A descriptor that is readable once cancelled, for polling; none if the system gave none.
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.flag.descriptor()
    }

    /// Creates a waker that cancels when `is_wanted` returns true.
    ///
    /// Poll a future with it once and keep the future until the run is over; no thread has to wait. Wakers
    /// can wake spuriously, so `is_wanted` is checked each time.
    pub fn waker(&self, is_wanted: impl Fn() -> bool + Send + Sync + 'static) -> Waker {
        Waker::from(Arc::new(OnWake { cancel: self.clone(), is_wanted }))
    }
}

/// Cancels on wake if `is_wanted` returns true.
struct OnWake<F> {
    cancel: Cancel,
    is_wanted: F,
}

impl<F: Fn() -> bool + Send + Sync + 'static> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        if (self.is_wanted)() {
            self.cancel.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_waker_cancels_only_if_wanted() {
        let (cancel, wanted) = (Cancel::new(), Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&wanted);
        let waker = cancel.waker(move || asked.load(Ordering::SeqCst));
        waker.wake_by_ref();
        assert!(!cancel.is_cancelled());
        wanted.store(true, Ordering::SeqCst);
        waker.wake();
        assert!(cancel.is_cancelled());
    }
}
