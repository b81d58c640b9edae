//! The calls of a run that wait for a slot.

use std::collections::VecDeque;

use toolpost_core::Priority;

/// The time by which one priority goes before the next lower one, in milliseconds: as long as a call waits in a toolbox
/// until it rises.
pub(crate) const RISE: u64 = 30_000;
/// The number of priorities.
const LEVELS: usize = Priority::Critical as usize + 1;

/// Calls in the order of their times, which are later for lower priorities, then of their creation: none waits for ever.
///
/// One list per priority: the heap that it replaces paid for each level of a million calls.
#[derive(Debug)]
pub struct CallQueue<T> {
    levels: [VecDeque<Queued<T>>; LEVELS],
    number: u64,
}

#[derive(Debug)]
struct Queued<T> {
    time: u64,
    number: u64,
    item: T,
}

impl<T> Default for CallQueue<T> {
    fn default() -> Self {
        Self { levels: std::array::from_fn(|_| VecDeque::new()), number: 0 }
    }
}

impl<T> CallQueue<T> {
    /// Adds a call at a time, in milliseconds since 1970.
    pub fn push(&mut self, item: T, priority: Priority, now: u64) {
        self.number += 1;
        let below = (Priority::Critical as u64).saturating_sub(priority as u64);
        let time = now.saturating_add(below * RISE);
        if let Some(level) = self.levels.get_mut(priority as usize) {
            level.push_back(Queued { time, number: self.number, item });
        }
    }

    /// Takes the next call.
    pub fn pop(&mut self) -> Option<T> {
        let first = self.levels.iter_mut().filter(|level| !level.is_empty());
        let first = first.min_by_key(|level| level.front().map(|queued| (queued.time, queued.number)));
        first?.pop_front().map(|queued| queued.item)
    }

    /// Removes the calls that a driver need not make any more. Returns whether there were any.
    pub fn remove(&mut self, is_over: impl Fn(&T) -> bool) -> bool {
        let before = self.len();
        self.levels.iter_mut().for_each(|level| level.retain(|queued| !is_over(&queued.item)));
        self.len() < before
    }

    fn len(&self) -> usize {
        self.levels.iter().map(VecDeque::len).sum()
    }
}
