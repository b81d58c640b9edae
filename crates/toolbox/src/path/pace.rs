//! How often a tool may be called.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use toolpost_core::{Call, Rate, RetryAdvice, ToolError};

use super::run::{now, sleep_until};

/// At most so many calls in any stretch of time of a given length. Those who wait do so in the order of their coming;
/// who goes away has used nothing.
pub(crate) struct Pace {
    rate: Rate,
    /// When the latest calls were let through. Whoever holds the lock is the next.
    latest: tokio::sync::Mutex<VecDeque<Instant>>,
    waiting: AtomicUsize,
}

/// Counts one who waits.
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

    /// Waits for the call's turn; an error says how long that would have taken.
    pub(super) async fn wait(&self, tool: &str, call: &Call, room: usize) -> Result<(), ToolError> {
        let ahead = self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let too_slow = |wait: Duration| {
            ToolError::overloaded(format!(
                "`{tool}` may be called {} times in {:?}, and its turn would come too late",
                self.rate.calls, self.rate.per
            ))
            .retry(RetryAdvice::NotStarted(wait))
            .suggest("Call it less often, or give it more time.")
        };
        // Those ahead need at least this long.
        let least = self.rate.per.saturating_mul(ahead as u32 / self.rate.calls);
        if ahead > room
            || call
                .deadline
                .is_some_and(|deadline| now().checked_add(least).is_none_or(|turn| turn > deadline))
        {
            return Err(too_slow(least));
        }
        tokio::select! {
            result = self.next(call) => result.map_err(too_slow),
            () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller asked to stop while the call waited")),
            () = sleep_until(call.deadline) => Err(too_slow(self.rate.per)),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pace_never_lets_more_through_and_the_impatient_use_nothing() {
        let pace = Pace::new(Rate { calls: 2, per: Duration::from_secs(1) });
        let start = now();
        let call = Call::new("x", serde_json::json!({}));
        let mut times = Vec::new();
        for _ in 0..4 {
            pace.wait("x", &call, 10).await.unwrap();
            times.push((now() - start).as_secs());
        }
        for _ in 0..100 {
            let impatient = tokio::time::timeout(Duration::from_millis(1), pace.wait("x", &call, 10)).await;
            assert!(impatient.is_err());
        }
        pace.wait("x", &call, 10).await.unwrap();
        times.push((now() - start).as_secs());
        assert_eq!(times, [0, 0, 1, 1, 2]);
        assert_eq!(pace.waiting.load(Ordering::Relaxed), 0);
    }
}
