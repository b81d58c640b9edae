//! The exit of the interpreter while daemon threads are inside tools.
//!
//! A thread that the interpreter ends inside a tool would unwind through Rust, which aborts the process. The exit
//! therefore interrupts these threads first, and threads that wait stay where they are.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use pyo3::prelude::*;

/// How many functions of tools a thread is inside.
struct Visitor {
    /// The identity of `threading.get_ident`.
    thread: u64,
    depth: AtomicUsize,
}

static VISITORS: Mutex<Vec<Weak<Visitor>>> = Mutex::new(Vec::new());
static IS_EXITING: AtomicBool = AtomicBool::new(false);

thread_local! {
    static OWN: RefCell<Option<Arc<Visitor>>> = const { RefCell::new(None) };
}

/// The stay of this thread inside the function of a tool.
pub(crate) struct Inside(Option<Arc<Visitor>>);

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(visitor) = &self.0 {
            visitor.depth.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

pub(crate) fn enter() -> Inside {
    let visitor = OWN.with_borrow_mut(|own| {
        if own.is_none() {
            *own = registered();
        }
        own.clone()
    });
    if let Some(visitor) = &visitor {
        visitor.depth.fetch_add(1, Ordering::AcqRel);
    }
    Inside(visitor)
}

fn registered() -> Option<Arc<Visitor>> {
    let thread =
        Python::try_attach(|py| py.import("_thread")?.call_method0("get_ident")?.extract::<u64>())?.ok()?;
    let visitor = Arc::new(Visitor { thread, depth: AtomicUsize::new(0) });
    let mut visitors = VISITORS.lock().unwrap_or_else(PoisonError::into_inner);
    visitors.retain(|visitor| visitor.strong_count() > 0);
    visitors.push(Arc::downgrade(&visitor));
    Some(visitor)
}

/// Whether the interpreter is about to end: no thread may attach to it again.
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(Ordering::Acquire)
}

/// Marks the exit, and returns the threads that are inside tools.
#[pyfunction]
pub(crate) fn begin_exit() -> Vec<u64> {
    IS_EXITING.store(true, Ordering::Release);
    let visitors = VISITORS.lock().unwrap_or_else(PoisonError::into_inner);
    let inside =
        visitors.iter().filter_map(Weak::upgrade).filter(|visitor| visitor.depth.load(Ordering::Acquire) > 0);
    inside.map(|visitor| visitor.thread).collect()
}
