//! The wait graph: which calls hold permits and documents, and which calls wait for them.
//!
//! The permits of tools ([`Scheduler`](crate::path::queue::Scheduler)) and the documents
//! ([`Lanes`](crate::state::lanes::Lanes)) register here. So a deadlock across both is found as well, when its last
//! call is about to wait.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolpost_core::CallId;

/// A call and its ancestors, the call first.
pub(crate) type Lineage = Arc<[CallId]>;

/// Something that calls hold and wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Resource {
    /// The permits of a tool, by the id of its entry.
    Permits(u64),
    /// The permits of a shared limit, by the hash of its key.
    Shared(u64),
    /// A position in the queue of a document, by its ticket.
    Position(u64),
}

/// The resources that a waiting call needs.
pub(crate) enum Need {
    /// One holder must release the resource.
    Any(Resource),
    /// All holders must release all of the resources.
    All(Vec<Resource>),
}

/// The wait graph of a toolbox. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct WaitGraph(Arc<Mutex<Graph>>);

#[derive(Default)]
struct Graph {
    holders: HashMap<Resource, Vec<CallId>>,
    waits: HashMap<u64, Wait>,
    next_id: u64,
}

struct Wait {
    lineage: Lineage,
    need: Need,
}

impl Need {
    fn resources(&self) -> &[Resource] {
        match self {
            Self::Any(resource) => std::slice::from_ref(resource),
            Self::All(resources) => resources,
        }
    }
}

impl Graph {
    fn holders(&self, resource: Resource) -> &[CallId] {
        self.holders.get(&resource).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether a need is met once every call that is not blocked has ended.
    fn is_met(&self, need: &Need, is_blocked: impl Fn(&CallId) -> bool) -> bool {
        match need {
            Need::Any(resource) => {
                let holders = self.holders(*resource);
                holders.is_empty() || !holders.iter().all(is_blocked)
            }
            Need::All(resources) => {
                !resources.iter().flat_map(|resource| self.holders(*resource)).any(is_blocked)
            }
        }
    }

    /// Whether a call of this lineage would wait for itself. Calls of the lineage cannot end before the wait does; a
    /// holder with a waiting descendant ends only after that wait.
    fn is_deadlock(&self, lineage: &[CallId], need: &Need) -> bool {
        let mut stuck: HashMap<u64, &Wait> = HashMap::new();
        let mut seen = HashSet::new();
        let holders_of = |need: &Need| -> Vec<CallId> {
            need.resources().iter().flat_map(|resource| self.holders(*resource)).copied().collect()
        };
        let mut holders = holders_of(need);
        while let Some(holder) = holders.pop() {
            if lineage.contains(&holder) || !seen.insert(holder) {
                continue;
            }
            for (id, wait) in self.waits.iter().filter(|(_, wait)| wait.lineage.contains(&holder)) {
                if stuck.insert(*id, wait).is_none() {
                    holders.extend(holders_of(&wait.need));
                }
            }
        }
        // Remove waits that will end until none is left that will.
        loop {
            let is_blocked = |call: &CallId| {
                lineage.contains(call) || stuck.values().any(|wait| wait.lineage.contains(call))
            };
            if self.is_met(need, is_blocked) {
                return false;
            }
            let ending: Vec<u64> = stuck
                .iter()
                .filter(|(_, wait)| self.is_met(&wait.need, is_blocked))
                .map(|(id, _)| *id)
                .collect();
            if ending.is_empty() {
                return true;
            }
            stuck.retain(|id, _| !ending.contains(id));
        }
    }
}

impl WaitGraph {
    fn lock(&self) -> MutexGuard<'_, Graph> {
        // The tables are consistent after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a call holds a resource.
    pub(crate) fn hold(&self, resource: Resource, call: CallId) {
        self.lock().holders.entry(resource).or_default().push(call);
    }

    /// Records that a call has released a resource.
    pub(crate) fn release(&self, resource: Resource, call: CallId) {
        let mut graph = self.lock();
        let Some(holders) = graph.holders.get_mut(&resource) else { return };
        if let Some(index) = holders.iter().position(|holder| *holder == call) {
            holders.swap_remove(index);
        }
        if holders.is_empty() {
            graph.holders.remove(&resource);
        }
    }

    /// The number of calls that hold a resource.
    pub(crate) fn count(&self, resource: Resource) -> usize {
        self.lock().holders(resource).len()
    }

    /// Records that a call waits, until the guard is dropped.
    pub(crate) fn wait(&self, lineage: &Lineage, need: Need) -> Waiting {
        self.insert(&mut self.lock(), lineage, need)
    }

    /// A permit, or `None` if the call would wait for itself.
    pub(crate) fn try_wait(&self, lineage: &Lineage, need: Need) -> Option<Waiting> {
        let mut graph = self.lock();
        (!graph.is_deadlock(lineage, &need)).then(|| self.insert(&mut graph, lineage, need))
    }

    fn insert(&self, graph: &mut Graph, lineage: &Lineage, need: Need) -> Waiting {
        let id = graph.next_id;
        graph.next_id += 1;
        graph.waits.insert(id, Wait { lineage: Arc::clone(lineage), need });
        Waiting { graph: self.clone(), id }
    }
}

/// A recorded wait.
pub(crate) struct Waiting {
    graph: WaitGraph,
    id: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.graph.lock().waits.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids<const N: usize>() -> [CallId; N] {
        std::array::from_fn(|_| CallId::new())
    }

    #[test]
    fn a_deadlock_across_permits_and_documents_is_found() {
        let graph = WaitGraph::default();
        let [a, b, child_of_a, child_of_b, other] = ids();
        let (permits, position) = (Resource::Permits(7), Resource::Position(1));
        graph.hold(position, a);
        graph.hold(permits, b);
        let waiting = graph.try_wait(&Arc::from([child_of_b, b]), Need::All(vec![position])).unwrap();
        let lineage: Lineage = Arc::from([child_of_a, a]);
        assert!(graph.try_wait(&lineage, Need::Any(permits)).is_none());
        // An unrelated call may wait, and so may this one once a second permit is held by a call that will end.
        assert!(graph.try_wait(&Arc::from([other]), Need::Any(permits)).is_some());
        graph.hold(permits, other);
        assert!(graph.try_wait(&lineage, Need::Any(permits)).is_some());
        graph.release(permits, other);
        drop(waiting);
        assert!(graph.try_wait(&lineage, Need::Any(permits)).is_some());
        assert!(graph.lock().waits.is_empty());
    }

    #[test]
    fn all_permits_in_one_cycle_are_a_deadlock() {
        let graph = WaitGraph::default();
        let [one, other, child_of_one, child_of_other] = ids();
        let permits = Resource::Permits(7);
        graph.hold(permits, one);
        graph.hold(permits, other);
        let _waiting = graph.try_wait(&Arc::from([child_of_one, one]), Need::Any(permits)).unwrap();
        assert!(graph.try_wait(&Arc::from([child_of_other, other]), Need::Any(permits)).is_none());
    }
}
