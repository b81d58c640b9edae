//! Cancellation of running work.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Default)]
struct Shared {
    requested: AtomicBool,
    waiting: Mutex<Waiting>,
    parent: Option<Cancellation>,
}

#[derive(Default)]
struct Waiting {
    next_key: u64,
    wakers: Vec<(u64, Waker)>,
}

/// A cancellation token, shared by the side that cancels and the side that works.
///
/// Cancellation is final. A parent cancels its [`child`](Self::child)ren; a child never cancels its parent.
/// [`Cancellation::never`] allocates nothing and cannot be cancelled.
#[derive(Clone, Default)]
pub struct Cancellation(Option<Arc<Shared>>);

impl Cancellation {
    /// A new token.
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// A token that cannot be cancelled.
    pub const fn never() -> Self {
        Self(None)
    }

    /// A token that `self` also cancels.
    #[must_use]
    pub fn child(&self) -> Self {
        Self(Some(Arc::new(Shared { parent: self.0.is_some().then(|| self.clone()), ..Shared::default() })))
    }

    /// Cancels the token. Returns false for [`Cancellation::never`].
    pub fn cancel(&self) -> bool {
        let Some(shared) = &self.0 else { return false };
        shared.requested.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut shared.lock().wakers);
        for (_, waker) in wakers {
            waker.wake();
        }
        true
    }

    /// Whether the token is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| {
            shared.requested.load(Ordering::Acquire) || shared.parent.as_ref().is_some_and(Self::is_cancelled)
        })
    }

    /// Waits for the cancellation; forever if none comes.
    pub fn cancelled(&self) -> Cancelled {
        Cancelled { token: self.clone(), keys: Vec::new() }
    }

    /// This token and its ancestors.
    fn lineage(&self) -> impl Iterator<Item = &Arc<Shared>> {
        std::iter::successors(self.0.as_ref(), |shared| {
            shared.parent.as_ref().and_then(|parent| parent.0.as_ref())
        })
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        // A panic cannot leave a list of wakers half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancellation").field("cancelled", &self.is_cancelled()).finish()
    }
}

/// The future of [`Cancellation::cancelled`].
#[derive(Debug)]
pub struct Cancelled {
    token: Cancellation,
    /// Our key in the waiting list of each token of the lineage, in its order.
    keys: Vec<u64>,
}

impl Future for Cancelled {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.token.is_cancelled() {
            return Poll::Ready(());
        }
        let mut keys = std::mem::take(&mut self.keys);
        for (index, shared) in self.token.lineage().enumerate() {
            let mut waiting = shared.lock();
            let known = keys.get(index).copied();
            match waiting.wakers.iter_mut().find(|(key, _)| Some(*key) == known) {
                Some((_, waker)) => waker.clone_from(context.waker()),
                None => {
                    let key = waiting.next_key;
                    waiting.next_key += 1;
                    waiting.wakers.push((key, context.waker().clone()));
                    if let Some(slot) = keys.get_mut(index) { *slot = key } else { keys.push(key) }
                }
            }
        }
        self.keys = keys;
        // The token may have been cancelled before the registration.
        if self.token.is_cancelled() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        for (shared, key) in self.token.lineage().zip(&self.keys) {
            shared.lock().wakers.retain(|(candidate, _)| candidate != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(future: &mut Cancelled) -> Poll<()> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_child_stops_with_its_parent_only() {
        let parent = Cancellation::new();
        let (first, second) = (parent.child(), parent.child());
        let mut waiting = second.cancelled();
        assert_eq!(poll(&mut waiting), Poll::Pending);
        first.cancel();
        assert!(first.is_cancelled() && !parent.is_cancelled() && !second.is_cancelled());
        parent.cancel();
        assert_eq!(poll(&mut waiting), Poll::Ready(()));
    }

    #[test]
    fn a_dropped_wait_leaves_nothing_behind() {
        let token = Cancellation::new();
        let child = token.child();
        for _ in 0..3 {
            let mut waiting = child.cancelled();
            assert_eq!(poll(&mut waiting), Poll::Pending);
            assert_eq!(poll(&mut waiting), Poll::Pending);
        }
        assert!(token.lineage().chain(child.lineage()).all(|shared| shared.lock().wakers.is_empty()));
    }

    #[test]
    fn never_cannot_be_cancelled() {
        assert!(!Cancellation::never().cancel());
        assert!(Cancellation::never().child().cancel());
    }
}
