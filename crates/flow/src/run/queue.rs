//! The calls of a run that wait for a slot.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use toolpost_core::Priority;

/// The time by which one priority goes before the next lower one, in milliseconds: as long as a call waits in a toolbox
/// until it rises.
pub(crate) const RISE: u64 = 30_000;

/// Calls in the order of their times, which are later for lower priorities, then of their creation: none waits for ever.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Queued<T>>,
    number: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { heap: BinaryHeap::new(), number: 0 }
    }

    /// Adds a call at a time, in milliseconds since 1970.
    pub(crate) fn push(&mut self, item: T, priority: Priority, now: u64) {
        self.number += 1;
        let levels = (Priority::Critical as u64).saturating_sub(priority as u64);
        let time = now.saturating_add(levels * RISE);
        self.heap.push(Queued { time, number: self.number, item });
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.heap.pop().map(|queued| queued.item)
    }
}

#[derive(Debug)]
struct Queued<T> {
    time: u64,
    number: u64,
    item: T,
}

impl<T> PartialEq for Queued<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Queued<T> {}

impl<T> PartialOrd for Queued<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Queued<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.number).cmp(&(self.time, self.number))
    }
}
