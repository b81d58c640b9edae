//! When a call's turn comes: per-tool and global concurrency, priorities, fairness among callers, rates.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use toolpost_core::{Call, Caller, Priority, Rate, RetryAdvice, ToolError};

use super::host::Nesting;
use super::run::{now, sleep_until};
use crate::registry::Entry;
use crate::toolbox::Shared;

/// Lets so many through at once; the others wait, by priority, and within one priority each caller in turn.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Mutex<GateState>>);

struct GateState {
    free: usize,
    lanes: [Lane; 4],
    next_ticket: u64,
}

/// Those who wait at one priority.
#[derive(Default)]
struct Lane {
    /// Callers who have somebody waiting, whose turn is next first.
    turn: VecDeque<Caller>,
    waiting: HashMap<Caller, VecDeque<Waiter>>,
}

struct Waiter {
    ticket: u64,
    wake: oneshot::Sender<Permit>,
}

/// A place that is given back when this is dropped.
pub(crate) struct Permit(Gate);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Lane {
    fn push(&mut self, caller: &Caller, waiter: Waiter) {
        let queue = self.waiting.entry(caller.clone()).or_default();
        if queue.is_empty() {
            self.turn.push_back(caller.clone());
        }
        queue.push_back(waiter);
    }

    fn pop(&mut self) -> Option<Waiter> {
        let caller = self.turn.pop_front()?;
        let queue = self.waiting.get_mut(&caller)?;
        let waiter = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&caller);
        } else {
            self.turn.push_back(caller);
        }
        waiter
    }

    fn forget(&mut self, caller: &Caller, ticket: u64) {
        let Some(queue) = self.waiting.get_mut(caller) else { return };
        queue.retain(|waiter| waiter.ticket != ticket);
        if queue.is_empty() {
            self.waiting.remove(caller);
            self.turn.retain(|waiting| waiting != caller);
        }
    }
}

impl Gate {
    pub(crate) fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(GateState {
            free: limit.max(1),
            lanes: Default::default(),
            next_ticket: 0,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if one is free and nobody waits.
    pub(crate) fn try_enter(&self) -> Option<Permit> {
        let mut state = self.lock();
        let nobody_waits = state.lanes.iter().all(|lane| lane.turn.is_empty());
        if state.free == 0 || !nobody_waits {
            return None;
        }
        state.free -= 1;
        drop(state);
        Some(Permit(self.clone()))
    }

    fn release(&self) {
        let mut state = self.lock();
        let next = state.lanes.iter_mut().rev().find_map(Lane::pop);
        if next.is_none() {
            state.free += 1;
        }
        drop(state);
        if let Some(waiter) = next {
            // If the waiter went away at this very moment, dropping the permit passes the place on.
            drop(waiter.wake.send(Permit(self.clone())));
        }
    }

    /// Waits for a place.
    pub(crate) async fn enter(&self, priority: Priority, caller: &Caller) -> Permit {
        loop {
            let (receiver, leave) = {
                let mut state = self.lock();
                let nobody_waits = state.lanes.iter().all(|lane| lane.turn.is_empty());
                if state.free > 0 && nobody_waits {
                    state.free -= 1;
                    drop(state);
                    return Permit(self.clone());
                }
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                let (wake, receiver) = oneshot::channel();
                state.lanes[priority as usize].push(caller, Waiter { ticket, wake });
                (receiver, Leave { gate: self, priority, caller, ticket })
            };
            let permit = receiver.await;
            drop(leave);
            if let Ok(permit) = permit {
                return permit;
            }
        }
    }
}

/// Takes a waiter out of the line when its future is dropped.
struct Leave<'a> {
    gate: &'a Gate,
    priority: Priority,
    caller: &'a Caller,
    ticket: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.gate.lock().lanes[self.priority as usize].forget(self.caller, self.ticket);
    }
}

/// At most so many calls in any stretch of time of a given length.
pub(crate) struct Pace {
    rate: Rate,
    /// When the latest calls were, or will be, let through.
    slots: Mutex<VecDeque<Instant>>,
}

impl Pace {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { rate, slots: Mutex::default() }
    }

    /// Reserves the next slot that is not after `latest`; else says how long it would take.
    fn reserve(&self, now: Instant, latest: Option<Instant>) -> Result<Instant, Duration> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let full = slots.len() >= self.rate.calls as usize;
        let slot = match slots.front() {
            Some(oldest) if full => (*oldest + self.rate.per).max(now),
            _ => now,
        };
        if latest.is_some_and(|latest| slot > latest) {
            return Err(slot - now);
        }
        if full {
            slots.pop_front();
        }
        slots.push_back(slot);
        Ok(slot)
    }
}

/// What a running call holds. It is given up while the call waits for an answer.
#[derive(Default)]
pub(crate) struct Permits {
    /// Its place among the calls of its tool.
    pub(crate) tool: Held,
    /// Its place among all calls; nested calls share their root's.
    pub(crate) global: Arc<Held>,
    /// How long it waited for them.
    pub(crate) waited: Duration,
}

impl Permits {
    fn at_once(tool: Option<Permit>, global: Arc<Held>) -> Self {
        Self { tool: Held::new(tool), global, waited: Duration::ZERO }
    }
}

/// A permit that can be put down and taken up again.
#[derive(Default)]
pub(crate) struct Held(Mutex<Option<Permit>>);

impl Held {
    fn new(permit: Option<Permit>) -> Self {
        Self(Mutex::new(permit))
    }

    /// Gives the place to somebody else. Returns whether there was one.
    pub(crate) fn put_down(&self) -> bool {
        let permit = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        permit.is_some()
    }

    /// Puts a place back that was put down before.
    pub(crate) fn put_back(&self, permit: Option<Permit>) {
        let _surplus = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), permit);
    }

    pub(crate) async fn take_up(&self, gate: &Gate, call: &Call) {
        let permit = gate.enter(call.priority, &call.caller).await;
        // If two took it up at once, the second place goes back at the end of this statement.
        let _surplus = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(permit);
    }
}

/// Counts those who wait, and refuses when there are too many.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn join(toolbox: &'a Shared) -> Result<Self, ToolError> {
        let limit = toolbox.settings().queue as u64;
        if toolbox.waiting.fetch_add(1, Ordering::Relaxed) >= limit {
            toolbox.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(ToolError::overloaded(format!("{limit} calls are waiting already"))
                .retry(RetryAdvice::NotStarted(Duration::from_millis(100)))
                .suggest("Wait a moment and call again."));
        }
        Ok(Self(toolbox))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until it is the call's turn.
pub(super) async fn enter(
    toolbox: &Shared,
    entry: &Arc<Entry>,
    call: &Call,
    nesting: Option<&Nesting>,
) -> Result<Permits, ToolError> {
    if call.cancellation.is_cancelled() {
        return Err(ToolError::cancelled("the caller asked to stop"));
    }
    // The common case: nobody waits, nothing is allocated.
    if entry.pace.is_none() {
        let tool = entry.gate.as_ref().map(Gate::try_enter);
        if !matches!(tool, Some(None)) {
            let global = if nesting.is_some() { None } else { Some(toolbox.gate.try_enter()) };
            match global {
                None => return Ok(Permits::at_once(tool.flatten(), global_of(nesting))),
                Some(Some(permit)) => {
                    return Ok(Permits::at_once(tool.flatten(), Arc::new(Held::new(Some(permit)))));
                }
                Some(None) => {}
            }
        }
    }
    let _waiting = Waiting::join(toolbox)?;
    let since = toolbox.config.clock.instant();
    tokio::select! {
        permits = wait(toolbox, entry, call, nesting) => permits.map(|permits| Permits {
            waited: toolbox.config.clock.instant().saturating_duration_since(since),
            ..permits
        }),
        () = call.cancellation.cancelled() => Err(ToolError::cancelled("the caller asked to stop while the call waited")),
        () = sleep_until(call.deadline) => Err(ToolError::timeout("the deadline passed while the call waited for its turn")
            .retry(RetryAdvice::NotStarted(Duration::ZERO))),
    }
}

fn global_of(nesting: Option<&Nesting>) -> Arc<Held> {
    nesting.map(|nesting| Arc::clone(&nesting.global)).unwrap_or_default()
}

async fn wait(
    toolbox: &Shared,
    entry: &Arc<Entry>,
    call: &Call,
    nesting: Option<&Nesting>,
) -> Result<Permits, ToolError> {
    if let Some(pace) = &entry.pace {
        let now = now();
        let slot = pace.reserve(now, call.deadline).map_err(|wait| {
            ToolError::overloaded(format!(
                "`{}` may be called {} times in {:?}, and its turn would come after the deadline",
                entry.name, pace.rate.calls, pace.rate.per
            ))
            .retry(RetryAdvice::NotStarted(wait))
            .suggest("Call it less often, or give it more time.")
        })?;
        if slot > now {
            tokio::time::sleep_until(slot.into()).await;
        }
    }
    // The tool's place first: whoever waits for it must not hold one that others could use.
    let tool = match &entry.gate {
        None => None,
        Some(gate) => match gate.try_enter() {
            Some(permit) => Some(permit),
            None if nesting.is_some_and(|nesting| nesting.holds(entry)) => {
                return Err(ToolError::precondition(format!(
                    "`{}` would wait for itself: it was called from within itself, and its concurrency is limited",
                    entry.name
                ))
                .suggest("Raise its concurrency, or do not call it from within itself."));
            }
            None => Some(gate.enter(call.priority, &call.caller).await),
        },
    };
    let global = match nesting {
        Some(nesting) => Arc::clone(&nesting.global),
        None => Arc::new(Held::new(Some(toolbox.gate.enter(call.priority, &call.caller).await))),
    };
    Ok(Permits { tool: Held::new(tool), global, waited: Duration::ZERO })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn priority_goes_first_and_callers_take_turns() {
        let gate = Gate::new(1);
        let held = gate.try_enter().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        let entries = [
            ("a1", "a", Priority::Normal),
            ("a2", "a", Priority::Normal),
            ("a3", "a", Priority::Normal),
            ("b1", "b", Priority::Normal),
            ("c1", "c", Priority::High),
        ];
        for (name, caller, priority) in entries {
            let (gate, order) = (gate.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let permit = gate.enter(priority, &Caller::new("test").with_identity(caller)).await;
                order.lock().unwrap().push(name);
                drop(permit);
            }));
            tokio::task::yield_now().await;
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["c1", "a1", "b1", "a2", "a3"]);
        assert_eq!(gate.lock().free, 1);
    }

    #[tokio::test]
    async fn who_leaves_the_line_is_forgotten() {
        let gate = Gate::new(1);
        let held = gate.try_enter().unwrap();
        let caller = Caller::new("test");
        for _ in 0..3 {
            let waiting =
                tokio::time::timeout(Duration::from_millis(1), gate.enter(Priority::Normal, &caller)).await;
            assert!(waiting.is_err());
        }
        assert!(gate.lock().lanes.iter().all(|lane| lane.turn.is_empty() && lane.waiting.is_empty()));
        drop(held);
        assert!(gate.try_enter().is_some());
    }

    #[test]
    fn a_pace_never_lets_more_through_than_it_says() {
        let pace = Pace::new(Rate { calls: 2, per: Duration::from_secs(1) });
        let now = Instant::now();
        let slots: Vec<Instant> = (0..5).map(|_| pace.reserve(now, None).unwrap()).collect();
        let second = Duration::from_secs(1);
        assert_eq!(slots, [now, now, now + second, now + second, now + 2 * second]);
        assert_eq!(pace.reserve(now, Some(now)), Err(2 * second));
    }
}
