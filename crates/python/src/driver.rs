//! The Python side of one outermost call: how its coroutines run, and the exception that ends it.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::LocalKey;

use pyo3::prelude::*;

use crate::exit;
use crate::inbox::Watched;

/// The event loop of coroutines of tools during a call.
pub(crate) enum Mode {
    /// A thread waits for the call: coroutines of tools run on the background event loop. Those of callbacks run on the
    /// event loop that awaits the call whose tool the thread runs.
    Thread {
        /// That event loop.
        caller: Option<Py<PyAny>>,
        /// Whether the call runs several tools at once: then functions run on other threads.
        is_parallel: bool,
    },
    /// An event loop awaits one tool: the awaiting task runs its coroutine.
    Task(Py<PyAny>),
    /// An event loop awaits several tools at once: each coroutine runs in a task of its own.
    Tasks(Py<PyAny>),
    /// Threads of the runtime poll calls of other processes, for an event loop that awaits the server.
    Remote(Watched),
}

impl Mode {
    /// The event loop that awaits the call in the thread that polls it.
    pub(crate) fn event_loop(&self) -> Option<&Py<PyAny>> {
        match self {
            Self::Task(event_loop) | Self::Tasks(event_loop) => Some(event_loop),
            Self::Thread { .. } | Self::Remote(_) => None,
        }
    }
}

/// The state of an outermost call that its tools reach while they are polled.
pub(crate) struct Driver {
    mode: Mode,
    state: Mutex<CoroutineState>,
}

#[derive(Default)]
struct CoroutineState {
    fatal: Option<PyErr>,
    /// The future that the coroutine of a tool waits for.
    awaited: Option<Py<PyAny>>,
    /// Tasks that must end before a cancelled call returns.
    tasks: Vec<Py<PyAny>>,
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Driver>>> = const { RefCell::new(None) };
    /// The driver of the call whose tool this thread runs.
    static CALLER: RefCell<Option<Arc<Driver>>> = const { RefCell::new(None) };
}

impl Driver {
    pub(crate) fn new(mode: Mode) -> Arc<Self> {
        Arc::new(Self { mode, state: Mutex::default() })
    }

    pub(crate) fn mode(&self) -> &Mode {
        &self.mode
    }

    /// The driver of the call that this thread is polling.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// The driver of the call whose tool this thread runs.
    pub(crate) fn of_caller() -> Option<Arc<Self>> {
        CALLER.with_borrow(Clone::clone)
    }

    /// The driver of a call for which this thread waits.
    pub(crate) fn of_thread(is_parallel: bool) -> Arc<Self> {
        let caller = CALLER.with_borrow(|caller| match caller.as_deref().map(Self::mode)? {
            Mode::Task(event_loop) | Mode::Tasks(event_loop) => exit::attach(|py| event_loop.clone_ref(py)),
            Mode::Remote(watched) => exit::attach(|py| watched.event_loop().clone_ref(py)),
            Mode::Thread { .. } => None,
        });
        Self::new(Mode::Thread { caller, is_parallel })
    }

    /// Polls with this driver as the current one.
    pub(crate) fn poll<T>(self: &Arc<Self>, poll: impl FnOnce() -> T) -> T {
        let _inside = exit::enter();
        self.set_in(&CURRENT, poll)
    }

    /// Runs a tool of this driver's call on a thread of its own.
    pub(crate) fn run_on_thread<T>(self: &Arc<Self>, tool: impl FnOnce() -> T) -> T {
        self.set_in(&CALLER, tool)
    }

    fn set_in<T>(
        self: &Arc<Self>,
        place: &'static LocalKey<RefCell<Option<Arc<Self>>>>,
        work: impl FnOnce() -> T,
    ) -> T {
        struct Restore(&'static LocalKey<RefCell<Option<Arc<Driver>>>>, Option<Arc<Driver>>);
        impl Drop for Restore {
            fn drop(&mut self) {
                self.0.set(self.1.take());
            }
        }
        let _restore = Restore(place, place.replace(Some(Arc::clone(self))));
        work()
    }

    fn lock(&self) -> MutexGuard<'_, CoroutineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the call with an exception; the first one counts.
    pub(crate) fn end_with(&self, error: PyErr) {
        let mut state = self.lock();
        if state.fatal.is_none() {
            state.fatal = Some(error);
        } else {
            // The destructor of the exception may run Python code.
            drop(state);
        }
    }

    /// Whether an exception ends the call: no tool may start. A call of another process never ends those of others.
    pub(crate) fn is_ending(&self) -> bool {
        !matches!(self.mode, Mode::Remote(_)) && self.lock().fatal.is_some()
    }

    pub(crate) fn take_fatal(&self) -> Option<PyErr> {
        self.lock().fatal.take()
    }

    /// Sets the future that the coroutine of the one tool waits for.
    pub(crate) fn set_awaited(&self, future: Option<Py<PyAny>>) {
        let old = std::mem::replace(&mut self.lock().awaited, future);
        drop(old);
    }

    pub(crate) fn awaited(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.lock().awaited.as_ref().map(|future| future.clone_ref(py))
    }

    pub(crate) fn add_task(&self, task: Py<PyAny>) {
        self.lock().tasks.push(task);
    }

    pub(crate) fn take_tasks(&self) -> Vec<Py<PyAny>> {
        std::mem::take(&mut self.lock().tasks)
    }
}
