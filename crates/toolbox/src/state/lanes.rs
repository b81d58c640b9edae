//! Exclusive access to parts of documents: one call at a time, in order of arrival.
//!
//! Two calls exclude each other if the part of one is equal to, or lies inside, the part of the other. The
//! [`WaitGraph`] detects deadlocks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use toolpost_core::{ToolError, pointers_overlap};

use crate::waits::{Lineage, Need, Resource, WaitGraph, Waiting};

/// Grants exclusive access to parts of documents.
#[derive(Clone, Default)]
pub(crate) struct Lanes {
    table: Arc<Mutex<Table>>,
    graph: WaitGraph,
}

#[derive(Default)]
struct Table {
    documents: HashMap<Arc<str>, Lane>,
    next_ticket: u64,
}

/// The holders and the queue of one document.
#[derive(Default)]
struct Lane {
    holders: Vec<Claim>,
    queue: VecDeque<Waiter>,
}

/// The claim of one call on parts of a document.
struct Claim {
    ticket: u64,
    pointers: Arc<[String]>,
}

struct Waiter {
    claim: Claim,
    wake: oneshot::Sender<()>,
    /// Held for its drop.
    _waiting: Option<Waiting>,
}

impl Claim {
    fn overlaps(&self, pointers: &[String]) -> bool {
        self.pointers.iter().any(|own| pointers.iter().any(|other| pointers_overlap(own, other)))
    }
}

impl Lane {
    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.holders.iter().chain(self.queue.iter().map(|waiter| &waiter.claim))
    }

    /// Admits all waiters without a conflict, in order of arrival.
    fn admit(&mut self) {
        for waiter in std::mem::take(&mut self.queue) {
            if self.claims().any(|other| other.overlaps(&waiter.claim.pointers)) {
                self.queue.push_back(waiter);
            } else if waiter.wake.send(()).is_ok() {
                self.holders.push(waiter.claim);
            }
        }
    }
}

/// Access to parts of a document, or a position in its queue. Dropping it releases either.
pub(crate) struct Held {
    lanes: Lanes,
    document: Arc<str>,
    ticket: u64,
    lineage: Lineage,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.lanes.lock();
        if let Some(call) = self.lineage.first() {
            self.lanes.graph.release(Resource::Position(self.ticket), *call);
        }
        let Some(lane) = table.documents.get_mut(&self.document) else { return };
        lane.holders.retain(|claim| claim.ticket != self.ticket);
        lane.queue.retain(|waiter| waiter.claim.ticket != self.ticket);
        lane.admit();
        if lane.holders.is_empty() && lane.queue.is_empty() {
            table.documents.remove(&self.document);
        }
    }
}

impl Lanes {
    pub(crate) fn new(graph: WaitGraph) -> Self {
        Self { table: Arc::default(), graph }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is consistent after any panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for exclusive access to parts of a document. `holds` says whether the call holds anything that others may
    /// wait for.
    ///
    /// # Errors
    /// `PRECONDITION` if the call would wait for itself.
    pub(crate) async fn enter(
        &self,
        document: &str,
        pointers: Arc<[String]>,
        lineage: Lineage,
        holds: bool,
    ) -> Result<Held, ToolError> {
        let (held, woken) = {
            let mut table = self.lock();
            let ticket = table.next_ticket;
            table.next_ticket += 1;
            let name: Arc<str> = document.into();
            let lane = table.documents.entry(Arc::clone(&name)).or_default();
            let conflicts = lane.claims().filter(|claim| claim.overlaps(&pointers));
            let ahead: Vec<Resource> = conflicts.map(|claim| Resource::Position(claim.ticket)).collect();
            let waiting = if ahead.is_empty() {
                None
            } else if holds || lineage.len() > 1 {
                let waiting = self.graph.try_wait(&lineage, Need::All(ahead));
                Some(waiting.ok_or_else(|| deadlock(document))?)
            } else {
                // No call waits for a root call that holds nothing.
                Some(self.graph.wait(&lineage, Need::All(ahead)))
            };
            let (wake, woken) = oneshot::channel();
            lane.queue.push_back(Waiter { claim: Claim { ticket, pointers }, wake, _waiting: waiting });
            lane.admit();
            if let Some(call) = lineage.first() {
                self.graph.hold(Resource::Position(ticket), *call);
            }
            (Held { lanes: self.clone(), document: name, ticket, lineage }, woken)
        };
        // The sender lives until the call is admitted or leaves the queue.
        woken.await.map_err(|_| ToolError::internal("a queued call lost its position"))?;
        Ok(held)
    }
}

fn deadlock(document: &str) -> ToolError {
    ToolError::precondition(format!("the document `{document}` is locked by a call that waits for this one"))
        .with("document", document)
        .suggest("Let the two tools change different parts, or pass the value as an argument.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use toolpost_core::{CallId, Code};

    type Entering = std::pin::Pin<Box<dyn Future<Output = Result<Held, ToolError>>>>;

    fn enter(lanes: &Lanes, document: &'static str, pointer: &str, lineage: &[CallId]) -> Entering {
        let (lanes, pointers, lineage) = (lanes.clone(), Arc::from([pointer.to_owned()]), lineage.into());
        let mut entering: Entering =
            Box::pin(async move { lanes.enter(document, pointers, lineage, true).await });
        // The first poll enters the queue.
        if let Some(result) = (&mut entering).now_or_never() {
            return Box::pin(std::future::ready(result));
        }
        entering
    }

    fn ids<const N: usize>() -> [CallId; N] {
        std::array::from_fn(|_| CallId::new())
    }

    #[test]
    fn overlapping_parts_wait_and_others_do_not() {
        let lanes = Lanes::default();
        let [a, b, c, d] = ids();
        let first = enter(&lanes, "x", "/a", &[a]).now_or_never().unwrap().unwrap();
        let mut second = enter(&lanes, "x", "/a/b", &[b]);
        let mut all = enter(&lanes, "x", "", &[c]);
        let apart = enter(&lanes, "x", "/c", &[d]);
        assert!((&mut second).now_or_never().is_none() && (&mut all).now_or_never().is_none());
        // It arrived after a waiter for the whole document and does not overtake it.
        let mut apart = apart;
        assert!((&mut apart).now_or_never().is_none());
        enter(&lanes, "y", "/a", &[d]).now_or_never().unwrap().unwrap();
        drop(first);
        let second = second.now_or_never().unwrap().unwrap();
        assert!((&mut all).now_or_never().is_none());
        drop(second);
        let all = all.now_or_never().unwrap().unwrap();
        assert!((&mut apart).now_or_never().is_none());
        drop(all);
        drop(apart.now_or_never().unwrap().unwrap());
        assert!(lanes.lock().documents.is_empty());
    }

    #[test]
    fn a_call_that_leaves_the_queue_unblocks_others() {
        let lanes = Lanes::default();
        let [a, b, c] = ids();
        let first = enter(&lanes, "x", "/a", &[a]).now_or_never().unwrap().unwrap();
        let all = enter(&lanes, "x", "", &[b]);
        let apart = enter(&lanes, "x", "/c", &[c]);
        drop(all);
        drop(apart.now_or_never().unwrap().unwrap());
        drop(first);
        assert!(lanes.lock().documents.is_empty());
    }

    #[test]
    fn a_deadlock_is_an_error() {
        let lanes = Lanes::default();
        let [a, b, child_of_a, child_of_b, other] = ids();
        let _of_a = enter(&lanes, "x", "", &[a]).now_or_never().unwrap().unwrap();
        let _of_b = enter(&lanes, "y", "", &[b]).now_or_never().unwrap().unwrap();
        // A nested call on the document of its caller.
        let error = enter(&lanes, "x", "/p", &[child_of_a, a]).now_or_never().unwrap().err().unwrap();
        assert_eq!(error.code(), Code::Precondition);
        // Two calls whose nested calls need the other's document.
        let _waiting = enter(&lanes, "y", "/p", &[child_of_a, a]);
        let error = enter(&lanes, "x", "", &[child_of_b, b]).now_or_never().unwrap().err().unwrap();
        assert_eq!(error.code(), Code::Precondition);
        // An unrelated call may wait.
        assert!(enter(&lanes, "x", "", &[other]).now_or_never().is_none());
    }

    #[test]
    fn two_calls_of_one_parent_take_turns() {
        let lanes = Lanes::default();
        let [parent, one, other] = ids();
        let first = enter(&lanes, "x", "", &[one, parent]).now_or_never().unwrap().unwrap();
        let second = enter(&lanes, "x", "", &[other, parent]);
        drop(first);
        second.now_or_never().unwrap().unwrap();
    }
}
