//! Who may work on a part of a document now: one call at a time, in the order of their coming.
//!
//! Two calls stand in each other's way when one's part is the other's or lies in it. Whoever waits holds its places, and
//! perhaps other documents; before it waits it is made sure that those it waits for do not wait for it in turn.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use toolpost_core::{CallId, ToolError, pointers_overlap};

/// Decides who works on which part of which document.
#[derive(Clone, Default)]
pub(crate) struct Lanes(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    documents: HashMap<Arc<str>, Lane>,
    next_ticket: u64,
}

/// Those who work on one document and those who wait for it, in the order of their coming.
#[derive(Default)]
struct Lane {
    holders: Vec<Stand>,
    waiting: VecDeque<(Stand, oneshot::Sender<()>)>,
}

/// One call at one document.
struct Stand {
    ticket: u64,
    /// The call and those that it was made from, innermost first.
    lineage: Arc<[CallId]>,
    pointers: Arc<[String]>,
}

impl Stand {
    fn overlaps(&self, pointers: &[String]) -> bool {
        self.pointers.iter().any(|own| pointers.iter().any(|other| pointers_overlap(own, other)))
    }

    fn call(&self) -> Option<CallId> {
        self.lineage.first().copied()
    }
}

impl Lane {
    /// Lets everybody in whom nobody stands in the way of, in the order of their coming.
    fn admit(&mut self) {
        let mut still_waiting: VecDeque<(Stand, oneshot::Sender<()>)> = VecDeque::new();
        for (stand, wake) in std::mem::take(&mut self.waiting) {
            let mut before = self.holders.iter().chain(still_waiting.iter().map(|(stand, _)| stand));
            if before.any(|other| other.overlaps(&stand.pointers)) {
                still_waiting.push_back((stand, wake));
            } else if wake.send(()).is_ok() {
                self.holders.push(stand);
            }
        }
        self.waiting = still_waiting;
    }
}

impl Table {
    /// Whether somebody who stands in the way of this one waits for one of these calls.
    fn is_stuck(
        &self,
        document: &str,
        pointers: &[String],
        until: u64,
        lineage: &[CallId],
        seen: &mut Vec<u64>,
    ) -> bool {
        let Some(lane) = self.documents.get(document) else { return false };
        let ahead = lane.waiting.iter().map(|(stand, _)| stand).filter(|stand| stand.ticket < until);
        let in_the_way: Vec<&Stand> =
            lane.holders.iter().chain(ahead).filter(|stand| stand.overlaps(pointers)).collect();
        in_the_way.into_iter().any(|stand| {
            let Some(call) = stand.call() else { return false };
            if lineage.contains(&call) {
                return true;
            }
            if seen.contains(&stand.ticket) {
                return false;
            }
            seen.push(stand.ticket);
            // It goes on when nothing that was made from it waits any more.
            self.documents.iter().any(|(name, lane)| {
                lane.waiting
                    .iter()
                    .map(|(waiter, _)| waiter)
                    .filter(|waiter| waiter.lineage.contains(&call))
                    .any(|waiter| self.is_stuck(name, &waiter.pointers, waiter.ticket, lineage, seen))
            })
        })
    }
}

/// The right to work on parts of a document; given back when dropped, also while it is waited for.
pub(crate) struct Held {
    lanes: Lanes,
    document: Arc<str>,
    ticket: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut table = self.lanes.lock();
        let Some(lane) = table.documents.get_mut(&self.document) else { return };
        lane.holders.retain(|stand| stand.ticket != self.ticket);
        lane.waiting.retain(|(stand, _)| stand.ticket != self.ticket);
        lane.admit();
        if lane.holders.is_empty() && lane.waiting.is_empty() {
            table.documents.remove(&self.document);
        }
    }
}

impl Lanes {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing is left half done behind it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else works on these parts of a document. `holds` says whether the call has entered others
    /// already.
    ///
    /// # Errors
    /// `PRECONDITION` if it would wait for itself.
    pub(crate) async fn enter(
        &self,
        document: &str,
        pointers: Arc<[String]>,
        lineage: Arc<[CallId]>,
        holds: bool,
    ) -> Result<Held, ToolError> {
        let (held, woken) = {
            let mut table = self.lock();
            let ticket = table.next_ticket;
            table.next_ticket += 1;
            // Nobody can wait for the last in line, unless it or those above it hold something.
            let awaited = holds || lineage.len() > 1;
            if awaited && table.is_stuck(document, &pointers, ticket, &lineage, &mut Vec::new()) {
                return Err(ToolError::precondition(format!(
                    "the document `{document}` is being changed by a call that waits for this one"
                ))
                .with("document", document)
                .suggest(
                    "Let the two tools work on different parts of it, or pass the value as an argument.",
                ));
            }
            let name: Arc<str> = document.into();
            let lane = table.documents.entry(Arc::clone(&name)).or_default();
            let (wake, woken) = oneshot::channel();
            lane.waiting.push_back((Stand { ticket, lineage, pointers }, wake));
            lane.admit();
            (Held { lanes: self.clone(), document: name, ticket }, woken)
        };
        // The sender lives until this one is let in, or leaves.
        woken.await.map_err(|_| ToolError::internal("somebody else left the line in this call's name"))?;
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use toolpost_core::Code;

    type Entering = std::pin::Pin<Box<dyn Future<Output = Result<Held, ToolError>>>>;

    fn enter(lanes: &Lanes, document: &'static str, pointer: &str, lineage: &[CallId]) -> Entering {
        let (lanes, pointers, lineage) = (lanes.clone(), Arc::from([pointer.to_owned()]), lineage.into());
        let mut entering: Entering =
            Box::pin(async move { lanes.enter(document, pointers, lineage, true).await });
        // It stands in line from the first poll on.
        if let Some(result) = (&mut entering).now_or_never() {
            return Box::pin(std::future::ready(result));
        }
        entering
    }

    fn ids<const N: usize>() -> [CallId; N] {
        std::array::from_fn(|_| CallId::new())
    }

    #[test]
    fn parts_that_lie_in_each_other_wait_and_others_do_not() {
        let lanes = Lanes::default();
        let [a, b, c, d] = ids();
        let first = enter(&lanes, "x", "/a", &[a]).now_or_never().unwrap().unwrap();
        let mut second = enter(&lanes, "x", "/a/b", &[b]);
        let mut all = enter(&lanes, "x", "", &[c]);
        let apart = enter(&lanes, "x", "/c", &[d]);
        assert!((&mut second).now_or_never().is_none() && (&mut all).now_or_never().is_none());
        // It came after one who waits for everything, and is not let past.
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
    fn whoever_leaves_the_line_lets_others_pass() {
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
    fn a_call_never_waits_for_one_that_waits_for_it() {
        let lanes = Lanes::default();
        let [a, b, child_of_a, child_of_b, other] = ids();
        let _of_a = enter(&lanes, "x", "", &[a]).now_or_never().unwrap().unwrap();
        let _of_b = enter(&lanes, "y", "", &[b]).now_or_never().unwrap().unwrap();
        // A nested call on what its caller works on.
        let error = enter(&lanes, "x", "/p", &[child_of_a, a]).now_or_never().unwrap().err().unwrap();
        assert_eq!(error.code(), Code::Precondition);
        // Two callers whose nested calls want what the other has.
        let _waiting = enter(&lanes, "y", "/p", &[child_of_a, a]);
        let error = enter(&lanes, "x", "", &[child_of_b, b]).now_or_never().unwrap().err().unwrap();
        assert_eq!(error.code(), Code::Precondition);
        // Somebody else may wait.
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
