//! The state of a running call.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::Instant;

use toolpost_core::{Artifact, Call, CallRecord, Cancellation, Placement, ToolError};

use super::check::Secrets;
use super::commits::CallDocuments;
use super::queue::{Permits, ToolPermit};
use super::replay::Replay;
use crate::registry::Entry;
use crate::shared::Shared;

/// The maximum number of nested records in a record.
const MAX_CHILDREN: usize = 1024;

/// The clock of one attempt. It stops while a question is open.
#[derive(Default)]
pub(super) struct AttemptClock {
    pub(super) end: Option<Instant>,
    /// The number of open questions, and the time of the first.
    pub(super) paused: Option<(u32, Instant)>,
    /// Woken when the end of the attempt changes.
    pub(super) watcher: Option<Waker>,
}

/// The thread of a blocking tool.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Thread {
    /// No thread yet; one may start.
    #[default]
    Outside,
    /// A thread runs the tool.
    Inside,
    /// A thread runs the tool after the end of its call.
    Forgotten,
    /// No thread, and none may start.
    Shut,
}

/// The permits of a call. They are released at the end of the call and of its thread.
#[derive(Default)]
pub(super) struct Holding {
    /// At most a tool permit and a global one; empty during a pause.
    pub(super) permits: [Option<Permits>; 2],
    thread: Thread,
}

/// The nested records, answers and files of a call.
#[derive(Default)]
pub(super) struct Trail {
    pub(super) replay: Replay,
    /// Files that are delivered if the attempt succeeds.
    pub(super) staged: Vec<Artifact>,
    /// Delivered files.
    pub(super) published: Vec<Artifact>,
    children: Vec<Arc<CallRecord>>,
}

/// A running call.
pub(crate) struct CallHost {
    pub(crate) toolbox: Arc<Shared>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) call: Arc<Call>,
    pub(super) parent: Option<Arc<CallHost>>,
    pub(super) holding: Mutex<Holding>,
    pub(super) clock: Mutex<AttemptClock>,
    /// Cancels the tool.
    pub(super) stop: Cancellation,
    /// The sensitive values of this call and its ancestors.
    pub(super) secrets: Secrets,
    /// Set at the end of the call; its `Ctx` fails afterwards.
    closed: AtomicBool,
    attempt: AtomicU32,
    trail: Mutex<Trail>,
    /// Whether the trail is in use; most calls have none.
    has_trail: AtomicBool,
    pub(super) dropped_notices: AtomicU64,
    /// The documents of the call.
    call_documents: OnceLock<Box<CallDocuments>>,
    /// Set if the result may depend on more than the arguments: on an answer, a file, or a document, here or in a nested
    /// call.
    uncacheable: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data is consistent after any panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CallHost {
    pub(super) fn new(
        toolbox: &Arc<Shared>,
        entry: &Arc<Entry>,
        call: Arc<Call>,
        permits: Permits,
        parent: Option<&Arc<CallHost>>,
        secrets: Secrets,
    ) -> Arc<Self> {
        // Only a thread needs the signal; an inline tool is not polled again.
        let stop = match entry.spec.policy.placement {
            Placement::Inline => call.cancellation.clone(),
            _ => call.cancellation.child(),
        };
        Arc::new(Self {
            toolbox: Arc::clone(toolbox),
            entry: Arc::clone(entry),
            call,
            parent: parent.cloned(),
            holding: Mutex::new(Holding { permits: [Some(permits), None], thread: Thread::Outside }),
            clock: Mutex::default(),
            stop,
            secrets,
            closed: AtomicBool::new(false),
            attempt: AtomicU32::new(0),
            trail: Mutex::default(),
            has_trail: AtomicBool::new(false),
            dropped_notices: AtomicU64::new(0),
            call_documents: OnceLock::new(),
            uncacheable: AtomicBool::new(false),
        })
    }

    /// This call and its ancestors, up to the root.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = &CallHost> {
        std::iter::successors(Some(self), |host| host.parent.as_deref())
    }

    /// The permits of its limits.
    pub(super) fn tool_permit(&self) -> Option<ToolPermit> {
        let lineage = || self.lineage().map(|host| host.call.id).collect();
        self.toolbox.scheduler.permit(&self.entry, &self.call, lineage)
    }

    /// Starts the clock of the next attempt.
    pub(super) fn begin_attempt(&self, end: Option<Instant>) {
        self.attempt.fetch_add(1, Ordering::Relaxed);
        let mut clock = lock(&self.clock);
        clock.end = end;
        clock.paused = None;
        drop(clock);
        if self.has_trail() {
            let mut trail = self.trail();
            trail.replay.rewind();
            trail.staged.clear();
        }
    }

    pub(super) fn call_documents(&self) -> &CallDocuments {
        self.call_documents.get_or_init(Box::default)
    }

    pub(super) fn existing_documents(&self) -> Option<&CallDocuments> {
        self.call_documents.get().map(|documents| &**documents)
    }

    pub(super) fn trail(&self) -> MutexGuard<'_, Trail> {
        self.has_trail.store(true, Ordering::Release);
        lock(&self.trail)
    }

    pub(super) fn has_trail(&self) -> bool {
        self.has_trail.load(Ordering::Acquire)
    }

    pub(super) fn attempts(&self) -> u32 {
        self.attempt.load(Ordering::Relaxed)
    }

    /// The end of the attempt, at the latest the call's deadline, which no question stops. A change wakes the waker.
    pub(super) fn watch_end(&self, watcher: &Waker) -> Option<Instant> {
        let mut clock = lock(&self.clock);
        match &mut clock.watcher {
            Some(known) => known.clone_from(watcher),
            empty => *empty = Some(watcher.clone()),
        }
        let end = if clock.paused.is_some() { None } else { clock.end };
        drop(clock);
        match (end, self.call.deadline) {
            (Some(end), Some(deadline)) => Some(end.min(deadline)),
            (end, deadline) => end.or(deadline),
        }
    }

    /// Registers the start of the tool's thread, if it may start.
    pub(super) fn thread_enters(&self) -> bool {
        let mut holding = lock(&self.holding);
        let may = holding.thread == Thread::Outside;
        if may {
            holding.thread = Thread::Inside;
        }
        may
    }

    /// Registers the end of the tool's thread.
    pub(super) fn thread_leaves(&self) {
        let mut holding = lock(&self.holding);
        let forgotten = holding.thread == Thread::Forgotten;
        holding.thread = if forgotten { Thread::Shut } else { Thread::Outside };
        drop(holding);
        if forgotten {
            self.release_permits();
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(lock(&self.holding).thread, Thread::Inside | Thread::Forgotten)
    }

    /// Ends the call. Cancels a running thread and discards its result. Releases the permits, at the latest at the end of
    /// the thread. Returns whether a thread still runs.
    pub(super) fn close(&self) -> bool {
        self.close_commits(|| self.closed.store(true, Ordering::Release));
        let mut holding = lock(&self.holding);
        let inside = matches!(holding.thread, Thread::Inside | Thread::Forgotten);
        holding.thread = if inside { Thread::Forgotten } else { Thread::Shut };
        let permits = if inside { Default::default() } else { std::mem::take(&mut holding.permits) };
        drop(holding);
        drop(permits);
        self.release_documents();
        if inside {
            self.stop.cancel();
        }
        inside
    }

    /// Releases all permits.
    pub(super) fn release_permits(&self) {
        let permits = std::mem::take(&mut lock(&self.holding).permits);
        drop(permits);
    }

    pub(crate) fn check_open(&self) -> Result<(), ToolError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(ToolError::cancelled("the caller no longer waits for this call"));
        }
        Ok(())
    }

    /// Whether the result may depend on more than the arguments.
    pub(super) fn is_uncacheable(&self) -> bool {
        self.uncacheable.load(Ordering::Relaxed)
    }

    /// Marks this call and its ancestors as uncacheable.
    pub(super) fn mark_uncacheable(&self) {
        for host in self.lineage() {
            host.uncacheable.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn add_child(&self, record: Arc<CallRecord>) {
        let children = &mut self.trail().children;
        if children.len() < MAX_CHILDREN {
            children.push(record);
        }
    }

    /// Takes the records of nested calls and the delivered files.
    pub(super) fn take_trail(&self) -> (Vec<Arc<CallRecord>>, Vec<Artifact>) {
        if !self.has_trail() {
            return Default::default();
        }
        let mut trail = self.trail();
        (std::mem::take(&mut trail.children), std::mem::take(&mut trail.published))
    }

    pub(super) fn dropped_notices(&self) -> u64 {
        self.dropped_notices.load(Ordering::Relaxed)
    }
}
