//! Ending a run from another thread.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::platform::Flag;

/// Ends runs from another thread. Clones share one state; once cancelled it stays so, and a run that starts with it
/// ends at once with [`crate::Verdict::Cancelled`].
#[derive(Debug, Clone, Default)]
pub struct Cancel {
    pub(crate) flag: Arc<Flag>,
}

impl Cancel {
    /// A handle that nobody has used yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends every run that uses this handle: everything that it started is killed. May be called from any thread.
    pub fn cancel(&self) {
        self.flag.set();
    }

    /// Whether [`Cancel::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.flag.is_set()
    }

    /// A waker that ends the runs, for who hears of the wish to stop by a future: poll it once with this waker, and keep
    /// it until the run is over; no thread has to wait for it. A waker may be woken for nothing, so that each time
    /// `is_wanted` is asked.
    pub fn waker(&self, is_wanted: impl Fn() -> bool + Send + Sync + 'static) -> Waker {
        Waker::from(Arc::new(OnWake { cancel: self.clone(), is_wanted }))
    }
}

/// Cancels when it is woken and that is wanted.
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
    fn a_waker_cancels_only_when_that_is_wanted() {
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
