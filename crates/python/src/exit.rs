//! The exit of the interpreter while daemon threads are inside tools.
//!
//! A thread that the interpreter ends inside a tool would unwind through Rust, which aborts the process. The exit
//! therefore interrupts these threads first, and threads that wait stay where they are.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::ThreadId;

use pyo3::prelude::*;

/// The number of calls and tools that a thread is inside.
#[derive(Default)]
struct Visitor {
    /// The identity of `threading.get_ident`; 0 until it is known.
    thread: AtomicU64,
    depth: AtomicUsize,
}

static VISITORS: Mutex<Vec<Weak<Visitor>>> = Mutex::new(Vec::new());
/// The thread that ends the interpreter.
static LAST: OnceLock<ThreadId> = OnceLock::new();

thread_local! {
    static OWN: RefCell<Option<Arc<Visitor>>> = const { RefCell::new(None) };
}

/// The stay of this thread inside a call or a tool.
pub(crate) struct Inside(Arc<Visitor>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.depth.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Counts this thread, which is not attached, as inside a call. Stops it for good if another thread is ending the
/// interpreter.
pub(crate) fn enter() -> Inside {
    loop {
        match try_enter() {
            Some(inside) => return inside,
            None => stop_if_exiting(),
        }
    }
}

/// Attaches this thread to the interpreter, unless another thread is ending it.
pub(crate) fn attach<T>(work: impl for<'py> FnOnce(Python<'py>) -> T) -> Option<T> {
    let _inside = try_enter()?;
    Python::try_attach(|py| undisturbed(py, work))
}

/// Runs Python code while an exception may pass, as in destructors. The exception remains set.
fn undisturbed<T>(py: Python<'_>, work: impl for<'py> FnOnce(Python<'py>) -> T) -> T {
    let raised = PyErr::take(py);
    let value = work(py);
    if let Some(raised) = raised {
        raised.restore(py);
    }
    value
}

fn try_enter() -> Option<Inside> {
    let visitor = OWN.with_borrow_mut(|own| Arc::clone(own.get_or_insert_with(registered)));
    // Before the check, so that the exit either sees this thread or is seen by it.
    visitor.depth.fetch_add(1, Ordering::SeqCst);
    let inside = Inside(visitor);
    if is_exiting() {
        return None;
    }
    if inside.0.thread.load(Ordering::Relaxed) == 0 {
        let get = |py: Python<'_>| py.import("_thread")?.call_method0("get_ident")?.extract::<u64>();
        let ident = Python::try_attach(|py| undisturbed(py, get));
        inside.0.thread.store(ident.and_then(Result::ok).unwrap_or(0), Ordering::Relaxed);
    }
    Some(inside)
}

fn registered() -> Arc<Visitor> {
    let visitor = Arc::<Visitor>::default();
    let mut visitors = VISITORS.lock().unwrap_or_else(PoisonError::into_inner);
    visitors.retain(|visitor| visitor.strong_count() > 0);
    visitors.push(Arc::downgrade(&visitor));
    visitor
}

/// Forgets the threads of the parent process, which are inside of calls there.
pub(crate) fn reset_after_fork() {
    if let Ok(mut visitors) = VISITORS.try_lock() {
        visitors.clear();
        OWN.with_borrow(|own| visitors.extend(own.iter().map(Arc::downgrade)));
    }
}

/// Whether another thread is ending the interpreter: this one may not attach to it again.
pub(crate) fn is_exiting() -> bool {
    LAST.get().is_some_and(|last| *last != std::thread::current().id())
}

/// Stops this thread for good if another one is ending the interpreter: the process ends without this thread.
pub(crate) fn stop_if_exiting() {
    while is_exiting() {
        std::thread::park();
    }
}

/// Marks the exit, and returns the threads that are inside calls; 0 for one whose identity is unknown.
#[pyfunction]
pub(crate) fn begin_exit() -> Vec<u64> {
    LAST.get_or_init(|| std::thread::current().id());
    let visitors = VISITORS.lock().unwrap_or_else(PoisonError::into_inner);
    let inside =
        visitors.iter().filter_map(Weak::upgrade).filter(|visitor| visitor.depth.load(Ordering::SeqCst) > 0);
    inside.map(|visitor| visitor.thread.load(Ordering::Relaxed)).collect()
}
