//! When a call's turn comes: per-tool and global concurrency, priorities, fairness among callers.
//!
//! One lock decides over all places, so that a call takes its tool's place and the global one together or waits with
//! neither: two calls can never each hold what the other needs. Only a nested call waits while its root holds
//! something; before it does, it is made sure that those it waits for do not wait for its root in turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use toolpost_core::{Call, CallId, Caller, RetryAdvice, ToolError};

use super::host::CallHost;
use super::run::sleep_until;
use crate::registry::Entry;
use crate::toolbox::Shared;

/// Decides whose turn it is.
#[derive(Clone)]
pub(crate) struct Scheduler(Arc<Mutex<State>>);

struct State {
    /// Free places among all calls.
    free: usize,
    /// How many may wait.
    room: usize,
    waiting: usize,
    lanes: [Lane; 4],
    next_ticket: u64,
    /// Who is running, by tool with limited concurrency.
    holders: HashMap<u64, Vec<Line>>,
    /// Nested calls that wait, and the tools that they wait for.
    waits: Vec<NestedWait>,
}

/// A call and those that it was made from, itself first.
pub(crate) type Line = Arc<[CallId]>;

struct NestedWait {
    ticket: u64,
    line: Line,
    tool: u64,
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
    needs: Needs,
    wake: oneshot::Sender<Places>,
}

/// A place of a tool with limited concurrency, and the call that it is for.
#[derive(Clone)]
pub(crate) struct ToolPlace {
    pub(crate) entry: Arc<Entry>,
    pub(crate) line: Line,
}

/// The places that a call asks for, all at once.
#[derive(Clone)]
pub(crate) struct Needs {
    tools: Vec<ToolPlace>,
    global: bool,
}

/// Places that are given back when this is dropped.
pub(crate) struct Places {
    scheduler: Scheduler,
    needs: Option<Needs>,
}

impl Drop for Places {
    fn drop(&mut self) {
        if let Some(needs) = self.needs.take() {
            self.scheduler.release(&needs);
        }
    }
}

impl Places {
    /// Divides the places into one for each tool and the global one.
    fn divide(mut self) -> Vec<Self> {
        let Some(needs) = self.needs.take() else { return Vec::new() };
        let part =
            |tools, global| Self { scheduler: self.scheduler.clone(), needs: Some(Needs { tools, global }) };
        let global = needs.global.then(|| part(Vec::new(), true));
        needs.tools.iter().map(|tool| part(vec![tool.clone()], false)).chain(global).collect()
    }

    /// Whether it is the place among all calls.
    pub(crate) fn is_global(&self) -> bool {
        self.needs.as_ref().is_some_and(|needs| needs.global)
    }

    /// Whether one of them is the place that this call has of its tool.
    pub(crate) fn is_of(&self, call: CallId) -> bool {
        let of_call = |tool: &ToolPlace| tool.line.first() == Some(&call);
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

    /// The next waiter for whom this is true; its caller is then the last in turn.
    fn take(&mut self, can_run: impl Fn(&Needs) -> bool) -> Option<Waiter> {
        for place in 0..self.turn.len() {
            let Some(caller) = self.turn.get(place).cloned() else { continue };
            let Some(queue) = self.waiting.get_mut(&caller) else { continue };
            let Some(index) = queue.iter().position(|waiter| can_run(&waiter.needs)) else { continue };
            let waiter = queue.remove(index);
            self.turn.remove(place);
            if queue.is_empty() {
                self.waiting.remove(&caller);
            } else {
                self.turn.push_back(caller);
            }
            return waiter;
        }
        None
    }

    fn forget(&mut self, caller: &Caller, ticket: u64) -> Option<Waiter> {
        let queue = self.waiting.get_mut(caller)?;
        let index = queue.iter().position(|waiter| waiter.ticket == ticket)?;
        let waiter = queue.remove(index);
        if queue.is_empty() {
            self.waiting.remove(caller);
            self.turn.retain(|waiting| waiting != caller);
        }
        waiter
    }

    /// The caller with the most waiters, and how many those are.
    fn greediest(&self) -> Option<(&Caller, usize)> {
        self.waiting.iter().map(|(caller, queue)| (caller, queue.len())).max_by_key(|(_, length)| *length)
    }
}

impl State {
    fn running(&self, entry: &Entry) -> usize {
        self.holders.get(&entry.id).map_or(0, Vec::len)
    }

    fn can_run(&self, needs: &Needs) -> bool {
        (!needs.global || self.free > 0)
            && needs
                .tools
                .iter()
                .all(|tool| tool.entry.limit.is_none_or(|limit| self.running(&tool.entry) < limit))
    }

    fn take(&mut self, needs: &Needs) {
        self.free -= usize::from(needs.global);
        for tool in &needs.tools {
            self.holders.entry(tool.entry.id).or_default().push(Arc::clone(&tool.line));
        }
    }

    /// Whether nobody who holds a place of this tool can end before the last call of this line does. Calls that were
    /// made side by side do not wait for each other.
    fn is_stuck(&self, tool: u64, line: &[CallId], seen: &mut Vec<u64>) -> bool {
        if seen.contains(&tool) {
            return true;
        }
        seen.push(tool);
        let holders = self.holders.get(&tool).map(Vec::as_slice).unwrap_or_default();
        !holders.is_empty()
            && holders.iter().filter_map(|holder| holder.first()).all(|holder| {
                let below = self.waits.iter().filter(|wait| wait.line.contains(holder));
                line.contains(holder) || below.into_iter().any(|wait| self.is_stuck(wait.tool, line, seen))
            })
    }

    /// Makes room for one waiter by sending another away: the newest of the greediest caller at the lowest priority,
    /// if that is a lower one, or the same and its caller greedier than this one.
    fn make_room(&mut self, call: &Call) -> bool {
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
        // Its sender goes with it, and that tells it.
        newest.and_then(|ticket| lane.forget(&caller, ticket)).is_some()
    }
}

impl Scheduler {
    pub(crate) fn new(places: usize, room: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: places.max(1),
            room,
            waiting: 0,
            lanes: Default::default(),
            next_ticket: 0,
            holders: HashMap::new(),
            waits: Vec::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self, needs: Needs) -> Places {
        Places { scheduler: self.clone(), needs: Some(needs) }
    }

    fn try_enter(&self, needs: Needs) -> Result<Places, Needs> {
        let mut state = self.lock();
        // Whoever waits could not run when the last place was given back, so nobody is overtaken here.
        if !state.can_run(&needs) {
            return Err(needs);
        }
        state.take(&needs);
        drop(state);
        Ok(self.places(needs))
    }

    /// Gives places back, and wakes everybody who can run now.
    fn release(&self, needs: &Needs) {
        let mut state = self.lock();
        state.free += usize::from(needs.global);
        for tool in &needs.tools {
            if let Some(holders) = state.holders.get_mut(&tool.entry.id) {
                if let Some(index) = holders.iter().position(|holder| holder.first() == tool.line.first()) {
                    holders.swap_remove(index);
                }
                if holders.is_empty() {
                    state.holders.remove(&tool.entry.id);
                }
            }
        }
        let mut woken = Vec::new();
        while state.waiting > 0 {
            let mut lanes = std::mem::take(&mut state.lanes);
            let next = lanes.iter_mut().rev().find_map(|lane| lane.take(|needs| state.can_run(needs)));
            state.lanes = lanes;
            let Some(waiter) = next else { break };
            state.waiting -= 1;
            state.take(&waiter.needs);
            woken.push(waiter);
        }
        drop(state);
        for waiter in woken {
            // If the waiter went away at this very moment, dropping the places passes them on.
            drop(waiter.wake.send(self.places(waiter.needs)));
        }
    }

    /// Stands in line.
    fn stand<'a>(
        &'a self,
        call: &'a Call,
        needs: Needs,
        must_get_in: bool,
    ) -> Result<Standing<'a>, ToolError> {
        let mut state = self.lock();
        if !needs.global && !must_get_in {
            let stuck =
                needs.tools.iter().find(|tool| state.is_stuck(tool.entry.id, &tool.line, &mut Vec::new()));
            if let Some(ToolPlace { entry, .. }) = stuck {
                let name = &entry.name;
                return Err(ToolError::precondition(format!(
                    "`{name}` would wait for itself: all its places are held by calls that wait for this one"
                ))
                .suggest("Raise its concurrency, or do not call it from within itself."));
            }
        }
        if state.waiting >= state.room && !must_get_in {
            if state.make_room(call) {
                state.waiting -= 1;
            } else {
                return Err(overloaded(state.room));
            }
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting += 1;
        if !needs.global {
            let waits = needs.tools.iter().map(|tool| NestedWait {
                ticket,
                line: Arc::clone(&tool.line),
                tool: tool.entry.id,
            });
            state.waits.extend(waits);
        }
        let (wake, woken) = oneshot::channel();
        let lane = call.priority as usize;
        if let Some(lane) = state.lanes.get_mut(lane) {
            lane.push(&call.caller, Waiter { ticket, needs, wake });
        }
        drop(state);
        Ok(Standing { scheduler: self, call, ticket, woken: Some(woken) })
    }
}

fn overloaded(room: usize) -> ToolError {
    ToolError::overloaded(format!("{room} calls are waiting already"))
        .retry(RetryAdvice::NotStarted(Duration::from_millis(100)))
        .suggest("Wait a moment and call again.")
}

/// Somebody in line; leaves it when dropped.
struct Standing<'a> {
    scheduler: &'a Scheduler,
    call: &'a Call,
    ticket: u64,
    woken: Option<oneshot::Receiver<Places>>,
}

impl Standing<'_> {
    async fn turn(mut self) -> Result<Places, ToolError> {
        let Some(woken) = self.woken.as_mut() else {
            return Err(ToolError::internal("somebody waited twice"));
        };
        let places = tokio::select! {
            biased;
            places = woken => places.map_err(|_| {
                ToolError::overloaded("the call had to give up its place in the queue to a more urgent one")
                    .retry(RetryAdvice::NotStarted(Duration::from_millis(100)))
                    .suggest("Wait a moment and call again.")
            }),
            () = self.call.cancellation.cancelled() => {
                Err(ToolError::cancelled("the caller asked to stop while the call waited"))
            }
            () = sleep_until(self.call.deadline) => {
                Err(ToolError::timeout("the deadline passed while the call waited for its turn")
                    .retry(RetryAdvice::NotStarted(Duration::ZERO)))
            }
        };
        places
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        let mut state = self.scheduler.lock();
        let lane = state.lanes.get_mut(self.call.priority as usize);
        if lane.is_some_and(|lane| lane.forget(&self.call.caller, self.ticket).is_some()) {
            state.waiting -= 1;
        }
        state.waits.retain(|wait| wait.ticket != self.ticket);
    }
}

/// Waits until it is the call's turn: it gets its tool's place and, if it is nobody's child, a global one.
pub(super) async fn enter(
    toolbox: &Shared,
    entry: &Arc<Entry>,
    call: &Call,
    parent: Option<&Arc<CallHost>>,
) -> (Result<Places, ToolError>, Duration) {
    if call.cancellation.is_cancelled() {
        return (Err(ToolError::cancelled("the caller asked to stop")), Duration::ZERO);
    }
    let place = entry.limit.map(|_| {
        let above = parent.into_iter().flat_map(|parent| parent.lineage()).map(|host| host.call.id);
        ToolPlace { entry: Arc::clone(entry), line: std::iter::once(call.id).chain(above).collect() }
    });
    let needs = Needs { tools: place.into_iter().collect(), global: parent.is_none() };
    // The common case: nobody waits.
    let needs = match &entry.pace {
        None => match toolbox.scheduler.try_enter(needs) {
            Ok(places) => return (Ok(places), Duration::ZERO),
            Err(needs) => needs,
        },
        Some(_) => needs,
    };
    let since = toolbox.config.clock.instant();
    let places = Box::pin(in_line(toolbox, entry, call, needs)).await;
    (places, toolbox.config.clock.instant().saturating_duration_since(since))
}

async fn in_line(toolbox: &Shared, entry: &Entry, call: &Call, needs: Needs) -> Result<Places, ToolError> {
    if let Some(pace) = &entry.pace {
        pace.wait(&entry.name, call, toolbox.settings().queue).await?;
    }
    match toolbox.scheduler.try_enter(needs) {
        Ok(places) => Ok(places),
        Err(needs) => toolbox.scheduler.stand(call, needs, false)?.turn().await,
    }
}

/// Takes places up again that calls of one chain had put down. They are in already: the queue's bound does not count.
pub(super) async fn enter_again(
    toolbox: &Shared,
    call: &Call,
    tools: Vec<ToolPlace>,
    global: bool,
) -> Result<Vec<Places>, ToolError> {
    if tools.is_empty() && !global {
        return Ok(Vec::new());
    }
    let places = match toolbox.scheduler.try_enter(Needs { tools, global }) {
        Ok(places) => places,
        Err(needs) => toolbox.scheduler.stand(call, needs, true)?.turn().await?,
    };
    Ok(places.divide())
}

/// The same without waiting, where there is no way to wait; what is not free is done without.
pub(super) fn try_again(toolbox: &Shared, tools: Vec<ToolPlace>, global: bool) -> Vec<Places> {
    let places = toolbox.scheduler.try_enter(Needs { tools, global });
    places.map(Places::divide).unwrap_or_default()
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
        let scheduler = Scheduler::new(1, 100);
        let held = scheduler.try_enter(needs()).ok().unwrap();
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
                let places = scheduler.stand(&call, needs(), false).unwrap().turn().await.unwrap();
                order.lock().unwrap().push(name);
                drop(places);
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

    #[tokio::test]
    async fn who_leaves_the_line_is_forgotten() {
        let scheduler = Scheduler::new(1, 100);
        let held = scheduler.try_enter(needs()).ok().unwrap();
        let call = call("a", Priority::Normal);
        for _ in 0..3 {
            let turn = scheduler.stand(&call, needs(), false).unwrap().turn();
            assert!(tokio::time::timeout(Duration::from_millis(1), turn).await.is_err());
        }
        let state = scheduler.lock();
        assert!(state.lanes.iter().all(|lane| lane.turn.is_empty() && lane.waiting.is_empty()));
        assert_eq!(state.waiting, 0);
        drop(state);
        drop(held);
        assert!(scheduler.try_enter(needs()).is_ok());
    }

    #[tokio::test]
    async fn a_full_queue_makes_room_for_the_modest_and_the_urgent() {
        let scheduler = Scheduler::new(1, 3);
        let _held = scheduler.try_enter(needs()).ok().unwrap();
        let (greedy, modest) = (call("greedy", Priority::Normal), call("modest", Priority::Normal));
        let (urgent, idle) = (call("greedy", Priority::High), call("idle", Priority::Low));
        let lines: Vec<_> = (0..3).map(|_| scheduler.stand(&greedy, needs(), false).unwrap()).collect();
        assert!(scheduler.stand(&greedy, needs(), false).is_err());
        assert!(scheduler.stand(&idle, needs(), false).is_err());
        let modest = scheduler.stand(&modest, needs(), false).unwrap();
        let urgent = scheduler.stand(&urgent, needs(), false).unwrap();
        let mut sent_away = 0;
        for line in lines {
            let turn = tokio::time::timeout(Duration::from_millis(1), line.turn()).await;
            sent_away += usize::from(turn.is_ok_and(|turn| turn.is_err()));
        }
        assert_eq!(sent_away, 2);
        drop((modest, urgent));
        assert_eq!(scheduler.lock().waiting, 0);
    }
}
