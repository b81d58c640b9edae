//! Coroutines of calls on the event loop of another thread. One wakeup starts all that wait.

use std::cell::RefCell;
use std::io::{Read as _, Write as _};
use std::mem::take;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::IntoPyDict as _;

use crate::slot::{Ended, Slot};
use crate::{bridge, exit};

/// The coroutines that wait for their event loop.
pub(crate) struct Inbox {
    /// None: no event loop reads them.
    waiting: Mutex<Option<Vec<Start>>>,
    /// The event loop reads the other end. A byte needs no interpreter, as `call_soon_threadsafe` does.
    bell: UnixStream,
    /// The number of calls that block the event loop: a coroutine on it may use `call_sync`.
    blocked: AtomicUsize,
}

/// A coroutine to start.
pub(crate) struct Start {
    pub(crate) work: Work,
    /// The context variables; those of the event loop by default.
    pub(crate) context: Option<Py<PyAny>>,
    pub(crate) slot: Arc<dyn Slot>,
}

/// A call that returns a coroutine.
pub(crate) type BoxedCall = Box<dyn Fn(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

pub(crate) enum Work {
    /// The call of an async function, which the event loop makes.
    Call(BoxedCall),
    Coroutine(Py<PyAny>),
}

impl Work {
    pub(crate) fn coroutine(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Call(call) => call(py),
            Self::Coroutine(coroutine) => Ok(coroutine.clone_ref(py)),
        }
    }
}

/// The inboxes of the event loops in the background.
static BACKGROUND: Mutex<Vec<Arc<Inbox>>> = Mutex::new(Vec::new());

thread_local! {
    /// The inbox of the event loop that this thread runs in the background.
    static OWN: RefCell<Option<Arc<Inbox>>> = const { RefCell::new(None) };
}

/// The time in which a call blocks an event loop in the background: coroutines of other calls run on another one.
pub(crate) struct Blocking(Arc<Inbox>);

/// Notes that a call blocks this thread, until the drop.
pub(crate) fn block_this_thread() -> Option<Blocking> {
    let inbox = OWN.with_borrow(Clone::clone)?;
    inbox.blocked.fetch_add(1, Ordering::Relaxed);
    Some(Blocking(inbox))
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.0.blocked.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inbox {
    /// The inbox of an event loop in the background: the first that no call blocks, or that of a new one.
    ///
    /// # Errors
    /// `OSError` if the process has no file descriptor or thread left.
    pub(crate) fn background() -> PyResult<Arc<Self>> {
        let free = |all: &[Arc<Self>]| {
            all.iter().find(|inbox| inbox.blocked.load(Ordering::Relaxed) == 0).map(Arc::clone)
        };
        if let Some(inbox) = free(&background()) {
            return Ok(inbox);
        }
        let (inbox, reader) = Self::new(true)?;
        Python::attach(|py| {
            let helpers = bridge::helpers(py)?;
            {
                // Another thread may have been faster.
                let mut all = background();
                if let Some(inbox) = free(&all) {
                    return Ok(inbox);
                }
                all.push(Arc::clone(&inbox));
            }
            let started = || {
                let event_loop = helpers.call_method0(intern!(py, "background"))?;
                let watch = helpers.getattr(intern!(py, "watch"))?;
                let file = reader.bell.as_raw_fd();
                let arguments = (watch, &event_loop, file, reader);
                event_loop.call_method1(intern!(py, "call_soon_threadsafe"), arguments)
            };
            match started() {
                Ok(_) => Ok(inbox),
                Err(error) => {
                    inbox.close(py, &error);
                    Err(error)
                }
            }
        })
    }

    /// Ends what other threads have submitted to an inbox whose event loop did not start.
    fn close(self: &Arc<Self>, py: Python<'_>, error: &PyErr) {
        background().retain(|other| !Arc::ptr_eq(other, self));
        let waiting = self.lock().take();
        for start in waiting.into_iter().flatten() {
            start.slot.end(py, Err(error.clone_ref(py)));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Start>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inbox of an event loop, which must be that of this thread.
    ///
    /// # Errors
    /// `OSError` if the process has no file descriptor left; `NotImplementedError` if the event loop reads no files.
    pub(crate) fn of_loop(event_loop: &Bound<'_, PyAny>) -> PyResult<Watched> {
        let py = event_loop.py();
        let (inbox, reader) = Self::new(false)?;
        let file = reader.bell.as_raw_fd();
        bridge::helpers(py)?.call_method1(intern!(py, "watch"), (event_loop, file, reader))?;
        Ok(Watched { inbox, event_loop: event_loop.clone().unbind(), file })
    }

    fn new(is_background: bool) -> PyResult<(Arc<Self>, Reader)> {
        let (bell, reader) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let waiting = Mutex::new(Some(Vec::new()));
        let inbox = Arc::new(Self { waiting, bell, blocked: AtomicUsize::new(0) });
        Ok((Arc::clone(&inbox), Reader { inbox, bell: reader, is_background }))
    }

    /// # Errors
    /// `RuntimeError` if the event loop did not start.
    pub(crate) fn submit(&self, start: Start) -> PyResult<()> {
        let mut inbox = self.lock();
        let Some(waiting) = &mut *inbox else {
            return Err(PyRuntimeError::new_err(
                "the event loop in the background did not start; call again",
            ));
        };
        let is_first = waiting.is_empty();
        waiting.push(start);
        drop(inbox);
        if is_first {
            // A full pipe has bytes that wake the event loop as well.
            let _ = (&self.bell).write(&[0]);
        }
        Ok(())
    }
}

fn background() -> MutexGuard<'static, Vec<Arc<Inbox>>> {
    BACKGROUND.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Forgets the event loops of the parent process.
pub(crate) fn reset_after_fork() {
    if let Ok(mut background) = BACKGROUND.try_lock() {
        std::mem::forget(take(&mut *background));
    }
    OWN.with_borrow_mut(|own| std::mem::forget(own.take()));
}

/// The inbox of an event loop that reads it until the drop.
pub(crate) struct Watched {
    pub(crate) inbox: Arc<Inbox>,
    event_loop: Py<PyAny>,
    file: i32,
}

impl Watched {
    pub(crate) fn event_loop(&self) -> &Py<PyAny> {
        &self.event_loop
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        exit::attach(|py| {
            let event_loop = self.event_loop.bind(py);
            let stop = event_loop.getattr(intern!(py, "remove_reader"))?;
            // A closed event loop reads nothing.
            event_loop.call_method1(intern!(py, "call_soon_threadsafe"), (stop, self.file)).map(drop)
        });
    }
}

/// Starts the coroutines of an inbox, on its event loop.
#[pyclass(frozen)]
struct Reader {
    inbox: Arc<Inbox>,
    bell: UnixStream,
    is_background: bool,
}

#[pymethods]
impl Reader {
    fn __call__(&self) -> PyResult<()> {
        // At its exit the interpreter starts nothing.
        exit::attach(|py| self.start_all(py)).unwrap_or(Ok(()))
    }
}

impl Reader {
    fn start_all(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_background {
            OWN.with_borrow_mut(|own| {
                own.get_or_insert_with(|| Arc::clone(&self.inbox));
            });
        }
        // Before the inbox is emptied: what comes later rings again.
        let _ = (&self.bell).read(&mut [0; 64]);
        let waiting = self.inbox.lock().as_mut().map(take).unwrap_or_default();
        let event_loop = bridge::running_loop(py)?;
        for start in waiting.iter().filter(|start| !start.slot.is_dropped()) {
            if let Err(error) = start.begin(py, &event_loop) {
                start.slot.end(py, Err(error));
            }
        }
        // The last reference to a call may wait for the thread of its store.
        py.detach(|| drop(waiting));
        Ok(())
    }
}

impl Start {
    /// Starts the task, on the event loop of this thread.
    pub(crate) fn begin(&self, py: Python<'_>, event_loop: &Bound<'_, PyAny>) -> PyResult<()> {
        let coroutine = self.work.coroutine(py)?;
        let guarded = bridge::helpers(py)?.getattr(intern!(py, "Guarded"))?.call1((coroutine,))?;
        let task = match &self.context {
            Some(context) => {
                let options = [("context", context)].into_py_dict(py)?;
                event_loop.call_method(intern!(py, "create_task"), (guarded,), Some(&options))?
            }
            None => event_loop.call_method1(intern!(py, "create_task"), (guarded,))?,
        };
        Ended::watch(&task, &self.slot)
    }
}
