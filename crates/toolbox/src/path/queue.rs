//! The scheduler: permits per tool and for all calls, priorities, fairness among callers.
//!
//! One lock covers all permits. A call takes its tool's permit and the global one together, or waits with neither. Only
//! a nested call waits while its ancestors hold permits; the [`WaitGraph`] then detects deadlocks.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use toolpost_core::{Call, CallId, CallLimit, Caller, RetryAdvice, ToolError};

use super::clock::{now, sleep_until};
use crate::registry::Entry;
use crate::waits::{Lineage, Need, Resource, WaitGraph, Waiting};

/// The time after which a waiting call rises by one priority.
const RISE: Duration = Duration::from_secs(30);
/// The time between two looks for calls that rise.
const LOOK: Duration = Duration::from_secs(1);

/// Grants permits to calls.
#[derive(Clone)]
pub(crate) struct Scheduler {
    state: Arc<Mutex<QueueState>>,
    /// Random, so that no caller can construct two keys with one hash.
    hasher: RandomState,
}

struct QueueState {
    /// The free global permits.
    free: usize,
    /// The maximum number of waiting calls.
    queue_limit: usize,
    waiting: usize,
    lanes: [Lane; 5],
    next_ticket: u64,
    next_look: Instant,
    graph: WaitGraph,
}

/// The waiting calls of one priority.
#[derive(Default)]
struct Lane {
    /// The callers with waiting calls; the next one to serve is first.
    turn: VecDeque<Caller>,
    waiting: HashMap<Caller, VecDeque<Waiter>>,
}

struct Waiter {
    ticket: u64,
    /// When it came to its lane.
    since: Instant,
    needs: Needs,
    wake: oneshot::Sender<Permits>,
    /// Held for their drop.
    _waits: Vec<Waiting>,
}

/// The permits of one call with limited concurrency: that of its tool and of the limit that it shares.
#[derive(Clone)]
pub(crate) struct ToolPermit {
    pub(crate) entry: Arc<Entry>,
    /// The shared limit, and the hash of its key.
    pub(crate) shared: Option<(Arc<CallLimit>, u64)>,
    /// The call and its ancestors.
    pub(crate) lineage: Lineage,
}

impl ToolPermit {
    /// The parameters of the call, the limits, and their names.
    fn resources(&self) -> impl Iterator<Item = (Resource, usize, &str)> {
        let of_tool =
            self.entry.limit.map(|limit| (Resource::Permits(self.entry.id), limit, &*self.entry.name));
        let shared = self
            .shared
            .as_ref()
            .and_then(|(limit, hash)| Some((Resource::Shared(*hash), limit.concurrency?, &*limit.key)));
        of_tool.into_iter().chain(shared)
    }
}

/// The permits that a call needs, all at once.
#[derive(Clone)]
pub(crate) struct Needs {
    pub(super) tools: Vec<ToolPermit>,
    pub(super) global: bool,
}

/// Permits of a call. Dropping them releases them.
pub(crate) struct Permits {
    scheduler: Scheduler,
    needs: Option<Needs>,
}

impl Drop for Permits {
    fn drop(&mut self) {
        if let Some(needs) = self.needs.take() {
            self.scheduler.release(&needs);
        }
    }
}

impl Permits {
    /// Splits the permits into one for each tool and the global one.
    pub(super) fn split(mut self) -> Vec<Self> {
        let Some(needs) = self.needs.take() else { return Vec::new() };
        let part =
            |tools, global| Self { scheduler: self.scheduler.clone(), needs: Some(Needs { tools, global }) };
        let global = needs.global.then(|| part(Vec::new(), true));
        needs.tools.iter().map(|tool| part(vec![tool.clone()], false)).chain(global).collect()
    }

    /// Whether they include the global permit.
    pub(crate) fn is_global(&self) -> bool {
        self.needs.as_ref().is_some_and(|needs| needs.global)
    }

    /// Whether they include the tool permit of this call.
    pub(crate) fn is_of(&self, call: CallId) -> bool {
        let of_call = |tool: &ToolPermit| tool.lineage.first() == Some(&call);
        self.needs.as_ref().is_some_and(|needs| needs.tools.iter().any(of_call))
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

    /// Removes the next waiter that can run. Its caller becomes the last in turn.
    fn take(&mut self, can_run: impl Fn(&Needs) -> bool) -> Option<Waiter> {
        for position in 0..self.turn.len() {
            let Some(caller) = self.turn.get(position).cloned() else { continue };
            let Some(queue) = self.waiting.get_mut(&caller) else { continue };
            let Some(index) = queue.iter().position(|waiter| can_run(&waiter.needs)) else { continue };
            let waiter = queue.remove(index);
            self.turn.remove(position);
            if queue.is_empty() {
                self.waiting.remove(&caller);
            } else {
                self.turn.push_back(caller);
            }
            return waiter;
        }
        None
    }

    /// Removes the waiters that came at a time or before.
    fn take_older(&mut self, time: Option<Instant>) -> Vec<(Caller, Waiter)> {
        let Some(time) = time else { return Vec::new() };
        let mut taken = Vec::new();
        for (caller, queue) in &mut self.waiting {
            while queue.front().is_some_and(|waiter| waiter.since <= time) {
                taken.extend(queue.pop_front().map(|waiter| (caller.clone(), waiter)));
            }
        }
        self.waiting.retain(|_, queue| !queue.is_empty());
        self.turn.retain(|caller| self.waiting.contains_key(caller));
        taken.sort_by_key(|(_, waiter)| waiter.ticket);
        taken
    }

    fn remove(&mut self, caller: &Caller, ticket: u64) -> Option<Waiter> {
        let queue = self.waiting.get_mut(caller)?;
        let index = queue.iter().position(|waiter| waiter.ticket == ticket)?;
        let waiter = queue.remove(index);
        if queue.is_empty() {
            self.waiting.remove(caller);
            self.turn.retain(|waiting| waiting != caller);
        }
        waiter
    }

    /// The caller with the most waiting calls, and their number.
    fn greediest(&self) -> Option<(&Caller, usize)> {
        self.waiting.iter().map(|(caller, queue)| (caller, queue.len())).max_by_key(|(_, length)| *length)
    }
}

impl QueueState {
    fn can_run(&self, needs: &Needs) -> bool {
        (!needs.global || self.free > 0)
            && needs
                .tools
                .iter()
                .flat_map(ToolPermit::resources)
                .all(|(resource, limit, _)| self.graph.count(resource) < limit)
    }

    fn take(&mut self, needs: &Needs) {
        self.free -= usize::from(needs.global);
        for tool in &needs.tools {
            if let Some(call) = tool.lineage.first() {
                tool.resources().for_each(|(resource, ..)| self.graph.hold(resource, *call));
            }
        }
    }

    /// Records what a call waits for. A nested call that is not yet running must not wait for itself.
    fn record_waits(&self, needs: &Needs, is_running: bool) -> Result<Vec<Waiting>, ToolError> {
        let resources = needs
            .tools
            .iter()
            .flat_map(|tool| tool.resources().map(|(resource, _, name)| (resource, name, &tool.lineage)));
        let waits = resources.map(|(resource, name, lineage)| {
            let need = Need::Any(resource);
            if needs.global || is_running {
                return Ok(self.graph.wait(lineage, need));
            }
            self.graph.try_wait(lineage, need).ok_or_else(|| {
                ToolError::precondition(format!(
                    "all permits of `{name}` are held by calls that wait for this one"
                ))
                .suggest("Raise its concurrency, or do not call it from within itself.")
            })
        });
        waits.collect()
    }

    /// Lets calls that have waited for long rise, so that no stream of urgent calls keeps them out.
    fn age(&mut self) {
        let now = now();
        if self.waiting == 0 || now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        for level in 1..self.lanes.len() {
            let (lower, upper) = self.lanes.split_at_mut(level);
            let (Some(lower), Some(upper)) = (lower.last_mut(), upper.first_mut()) else { return };
            for (caller, mut waiter) in lower.take_older(now.checked_sub(RISE)) {
                waiter.since += RISE;
                upper.push(&caller, waiter);
            }
        }
    }

    /// Evicts one waiter in favor of this call: the newest of the greediest caller at the lowest priority. That priority
    /// must be lower than the call's; or the same, if that caller has more waiting calls.
    fn evict(&mut self, call: &Call) -> bool {
        let priority = call.priority as usize;
        let Some(lowest) = self.lanes.iter().position(|lane| !lane.turn.is_empty()) else { return false };
        let Some(lane) = self.lanes.get_mut(lowest) else { return false };
        let own = lane.waiting.get(&call.caller).map_or(0, VecDeque::len);
        let Some((caller, most)) = lane.greediest() else { return false };
        if lowest > priority || (lowest == priority && most <= own + 1) {
            return false;
        }
        let caller = caller.clone();
        let newest = lane.waiting.get(&caller).and_then(VecDeque::back).map(|waiter| waiter.ticket);
        // Dropping its sender wakes it with an error.
        newest.and_then(|ticket| lane.remove(&caller, ticket)).is_some()
    }
}

impl Scheduler {
    pub(crate) fn new(permits: usize, queue_limit: usize, graph: WaitGraph) -> Self {
        let state = QueueState {
            free: permits.max(1),
            queue_limit,
            waiting: 0,
            lanes: Default::default(),
            next_ticket: 0,
            next_look: now(),
            graph,
        };
        Self { state: Arc::new(Mutex::new(state)), hasher: RandomState::new() }
    }

    /// The permits that a call needs from limits; none without any.
    pub(super) fn permit(
        &self,
        entry: &Arc<Entry>,
        call: &Call,
        lineage: impl FnOnce() -> Lineage,
    ) -> Option<ToolPermit> {
        let limit = call.limit.as_ref().filter(|limit| limit.concurrency.is_some());
        if limit.is_none() && entry.limit.is_none() {
            return None;
        }
        let shared = limit.map(|limit| (Arc::clone(limit), self.hasher.hash_one(&limit.key)));
        Some(ToolPermit { entry: Arc::clone(entry), shared, lineage: lineage() })
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permits(&self, needs: Needs) -> Permits {
        Permits { scheduler: self.clone(), needs: Some(needs) }
    }

    /// Takes permits without waiting, or returns the needs.
    pub(super) fn try_acquire(&self, needs: Needs) -> Result<Permits, Needs> {
        let mut state = self.lock();
        // No waiting call could run at the last release, so this call overtakes none.
        if !state.can_run(&needs) {
            return Err(needs);
        }
        state.take(&needs);
        drop(state);
        Ok(self.permits(needs))
    }

    /// Releases permits.
    fn release(&self, needs: &Needs) {
        let mut state = self.lock();
        state.free += usize::from(needs.global);
        for tool in &needs.tools {
            if let Some(call) = tool.lineage.first() {
                tool.resources().for_each(|(resource, ..)| state.graph.release(resource, *call));
            }
        }
        self.grant(state);
    }

    /// Wakes each waiter that can run now.
    fn grant(&self, mut state: MutexGuard<'_, QueueState>) {
        let mut woken = Vec::new();
        state.age();
        while state.waiting > 0 {
            let mut lanes = std::mem::take(&mut state.lanes);
            let next = lanes.iter_mut().rev().find_map(|lane| lane.take(|needs| state.can_run(needs)));
            state.lanes = lanes;
            let Some(waiter) = next else { break };
            state.waiting -= 1;
            state.take(&waiter.needs);
            let Waiter { needs, wake, .. } = waiter;
            woken.push((needs, wake));
        }
        drop(state);
        for (needs, wake) in woken {
            // If the waiter has just left, dropping the permits passes them on.
            drop(wake.send(self.permits(needs)));
        }
    }

    /// Adds a call to the queue. The limit of the queue does not apply to a call that is running already.
    pub(super) fn enqueue<'a>(
        &'a self,
        call: &'a Call,
        needs: Needs,
        is_running: bool,
    ) -> Result<Queued<'a>, ToolError> {
        let mut state = self.lock();
        let waits = state.record_waits(&needs, is_running)?;
        if state.waiting >= state.queue_limit && !is_running {
            if state.evict(call) {
                state.waiting -= 1;
            } else {
                return Err(overloaded(state.queue_limit));
            }
        }
        // Calls that have risen are before this one.
        state.age();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting += 1;
        let (wake, woken) = oneshot::channel();
        let lane = call.priority as usize;
        if let Some(lane) = state.lanes.get_mut(lane) {
            lane.push(&call.caller, Waiter { ticket, since: now(), needs, wake, _waits: waits });
        }
        // The permits may have become free since the call tried to take them.
        self.grant(state);
        Ok(Queued { scheduler: self, call, ticket, woken })
    }
}

fn overloaded(queue_limit: usize) -> ToolError {
    ToolError::overloaded(format!("the queue is full: {queue_limit} calls are waiting"))
        .retry(RetryAdvice::NotStarted(Duration::from_millis(100)))
        .suggest("Wait a moment and call again.")
}

/// A position in the queue. Dropping it leaves the queue.
pub(super) struct Queued<'a> {
    scheduler: &'a Scheduler,
    call: &'a Call,
    ticket: u64,
    woken: oneshot::Receiver<Permits>,
}

impl Queued<'_> {
    /// Waits until the permits are granted.
    pub(super) async fn wait(mut self) -> Result<Permits, ToolError> {
        tokio::select! {
            biased;
            permits = &mut self.woken => permits.map_err(|_| {
                ToolError::overloaded("the queue is full, and another call has precedence over this one")
                    .retry(RetryAdvice::NotStarted(Duration::from_millis(100)))
                    .suggest("Wait a moment and call again.")
            }),
            () = self.call.cancellation.cancelled() => {
                Err(ToolError::cancelled("the caller cancelled the call while it was queued"))
            }
            () = sleep_until(self.call.deadline) => {
                Err(ToolError::timeout("the deadline passed while the call was queued")
                    .retry(RetryAdvice::NotStarted(Duration::ZERO)))
            }
        }
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let mut state = self.scheduler.lock();
        // It may have risen.
        let mut lanes = state.lanes.iter_mut().skip(self.call.priority as usize);
        if lanes.any(|lane| lane.remove(&self.call.caller, self.ticket).is_some()) {
            state.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolpost_core::Priority;

    fn needs() -> Needs {
        Needs { tools: Vec::new(), global: true }
    }

    fn call(caller: &'static str, priority: Priority) -> Call {
        Call::new("x", serde_json::json!({}))
            .with_caller(Caller::new("test").with_identity(caller))
            .with_priority(priority)
    }

    #[tokio::test]
    async fn priority_goes_first_and_callers_take_turns() {
        let scheduler = Scheduler::new(1, 100, WaitGraph::default());
        let held = scheduler.try_acquire(needs()).ok().unwrap();
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
            let (scheduler, order) = (scheduler.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let call = call(caller, priority);
                let permits = scheduler.enqueue(&call, needs(), false).unwrap().wait().await.unwrap();
                order.lock().unwrap().push(name);
                drop(permits);
            }));
            tokio::task::yield_now().await;
        }
        drop(held);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), ["c1", "a1", "b1", "a2", "a3"]);
        let state = scheduler.lock();
        assert_eq!((state.free, state.waiting), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_waits_for_long_goes_before_urgent_ones() {
        let scheduler = Scheduler::new(1, 100, WaitGraph::default());
        let held = scheduler.try_acquire(needs()).ok().unwrap();
        let idle = call("a", Priority::Background);
        let idle = scheduler.enqueue(&idle, needs(), false).unwrap();
        tokio::time::advance(RISE * 4 + LOOK).await;
        let urgent = call("b", Priority::Critical);
        let urgent = scheduler.enqueue(&urgent, needs(), false).unwrap();
        drop(held);
        let first = idle.wait().await.unwrap();
        assert!(scheduler.try_acquire(needs()).is_err());
        drop(first);
        drop(urgent.wait().await.unwrap());
        let (leaves, low) = (call("a", Priority::Low), call("a", Priority::Low));
        let _held = scheduler.try_acquire(needs()).ok().unwrap();
        let leaves = scheduler.enqueue(&leaves, needs(), false).unwrap();
        tokio::time::advance(RISE + LOOK).await;
        let low = scheduler.enqueue(&low, needs(), false).unwrap();
        drop((leaves, low));
        assert_eq!(scheduler.lock().waiting, 0);
    }

    #[tokio::test]
    async fn a_call_that_leaves_the_queue_is_removed() {
        let scheduler = Scheduler::new(1, 100, WaitGraph::default());
        let held = scheduler.try_acquire(needs()).ok().unwrap();
        let call = call("a", Priority::Normal);
        for _ in 0..3 {
            let queued = scheduler.enqueue(&call, needs(), false).unwrap().wait();
            assert!(tokio::time::timeout(Duration::from_millis(1), queued).await.is_err());
        }
        let state = scheduler.lock();
        assert!(state.lanes.iter().all(|lane| lane.turn.is_empty() && lane.waiting.is_empty()));
        assert_eq!(state.waiting, 0);
        drop(state);
        drop(held);
        assert!(scheduler.try_acquire(needs()).is_ok());
    }

    #[tokio::test]
    async fn a_full_queue_evicts_calls_of_the_greediest_caller_and_of_lower_priority() {
        let scheduler = Scheduler::new(1, 3, WaitGraph::default());
        let _held = scheduler.try_acquire(needs()).ok().unwrap();
        let (greedy, modest) = (call("greedy", Priority::Normal), call("modest", Priority::Normal));
        let (urgent, idle) = (call("greedy", Priority::High), call("idle", Priority::Low));
        let lines: Vec<_> = (0..3).map(|_| scheduler.enqueue(&greedy, needs(), false).unwrap()).collect();
        assert!(scheduler.enqueue(&greedy, needs(), false).is_err());
        assert!(scheduler.enqueue(&idle, needs(), false).is_err());
        let modest = scheduler.enqueue(&modest, needs(), false).unwrap();
        let urgent = scheduler.enqueue(&urgent, needs(), false).unwrap();
        let mut evicted = 0;
        for line in lines {
            let turn = tokio::time::timeout(Duration::from_millis(1), line.wait()).await;
            evicted += usize::from(turn.is_ok_and(|turn| turn.is_err()));
        }
        assert_eq!(evicted, 2);
        drop((modest, urgent));
        assert_eq!(scheduler.lock().waiting, 0);
    }
}
