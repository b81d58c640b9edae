//! The rate limits of tools and of shared keys.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use toolpost_core::{Call, Rate, RetryAdvice, ToolError};

use super::clock::{now, sleep_until};

/// Limits the calls in any period of a given length. Waiting calls run in order of arrival; a cancelled one
/// uses nothing.
pub(crate) struct Pace {
    rate: Rate,
    /// The times of the latest calls. The holder of the lock is next.
    latest: tokio::sync::Mutex<VecDeque<Instant>>,
    waiting: AtomicUsize,
}

/// Counts a waiting call.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pace {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, latest: tokio::sync::Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    /// Waits until the call may run. An error contains the estimated delay.
    pub(super) async fn wait(&self, tool: &str, call: &Call, queue_limit: usize) -> Result<(), ToolError> {
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let too_slow = |wait: Duration| {
            ToolError::overloaded(format!(
                "`{tool}` allows {} calls in {:?}, and the call would start too late",
                self.rate.calls, self.rate.per
            ))
            .retry(RetryAdvice::NotStarted(wait))
            .suggest("Call it less often, or with a later deadline.")
        };
        // The calls ahead need at least this time.
        let least = self.rate.per.saturating_mul(ahead as u32 / self.rate.calls);
        if ahead > queue_limit
            || call
                .deadline
                .is_some_and(|deadline| now().checked_add(least).is_none_or(|turn| turn > deadline))
        {
            return Err(too_slow(least));
        }
        tokio::select! {
            result = self.next(call) => result.map_err(too_slow),
            () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller cancelled the call while it was queued")),
            () = sleep_until(call.deadline) => Err(too_slow(self.rate.per)),
        }
    }

    /// Whether a call counts in the period until now.
    fn is_limiting(&self) -> bool {
        let Ok(latest) = self.latest.try_lock() else { return true };
        latest.back().is_some_and(|last| now().saturating_duration_since(*last) < self.rate.per)
    }

    async fn next(&self, call: &Call) -> Result<(), Duration> {
        let mut latest = self.latest.lock().await;
        let start = now();
        let full = latest.len() >= self.rate.calls as usize;
        let turn = latest.front().filter(|_| full).and_then(|oldest| oldest.checked_add(self.rate.per));
        if let Some(turn) = turn.filter(|turn| *turn > start) {
            if call.deadline.is_some_and(|deadline| turn > deadline) {
                return Err(turn - start);
            }
            sleep_until(Some(turn)).await;
        }
        if full {
            latest.pop_front();
        }
        latest.push_back(now());
        Ok(())
    }
}

/// A key, and the calls and the period of its rate.
type Key = (Arc<str>, u32, Duration);

/// The rates that calls share, by their keys.
#[derive(Default)]
pub(crate) struct Paces(Mutex<HashMap<Key, Arc<Pace>>>);

impl Paces {
    pub(super) fn get(&self, key: &Arc<str>, rate: Rate) -> Arc<Pace> {
        /// The number of keys from which on those that limit no call any more are removed.
        const MANY: usize = 1_000;
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paces.len() >= MANY {
            paces.retain(|_, pace| Arc::strong_count(pace) > 1 || pace.is_limiting());
        }
        let key = (Arc::clone(key), rate.calls, rate.per);
        Arc::clone(paces.entry(key).or_insert_with(|| Arc::new(Pace::new(rate))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_never_exceeded_and_cancelled_calls_use_nothing() {
        let pace = Pace::new(Rate { calls: 2, per: Duration::from_secs(1) });
        let start = now();
        let call = Call::new("x", serde_json::json!({}));
        let mut times = Vec::new();
        for _ in 0..4 {
            pace.wait("x", &call, 10).await.unwrap();
            times.push((now() - start).as_secs());
        }
        for _ in 0..100 {
            let cancelled = tokio::time::timeout(Duration::from_millis(1), pace.wait("x", &call, 10)).await;
            assert!(cancelled.is_err());
        }
        pace.wait("x", &call, 10).await.unwrap();
        times.push((now() - start).as_secs());
        assert_eq!(times, [0, 0, 1, 1, 2]);
        assert_eq!(pace.waiting.load(Ordering::Relaxed), 0);
    }
}
