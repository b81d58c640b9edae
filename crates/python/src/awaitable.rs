//! Awaitable calls, polled by the event loop that awaits them.

use std::borrow::Cow;
use std::ffi::CString;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;

use pyo3::exceptions::{PyRuntimeError, PyRuntimeWarning, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use tokio::runtime::Handle;

use crate::detached::Detached;
use crate::driver::{Driver, Mode};
use crate::{bridge, exit, runtime};

type Pending = Pin<Box<dyn Future<Output = PyResult<Py<PyAny>>> + Send>>;

/// A call that an event loop awaits. It starts at the first await and can be awaited once.
#[pyclass(module = "toolpost")]
pub(crate) struct Awaitable {
    /// Never locked: the mutex only lets threads share the object.
    future: Option<Detached<Mutex<Pending>>>,
    /// Whether the call runs several tools at once.
    is_parallel: bool,
    driver: Option<Arc<Driver>>,
    wakeup: Arc<Wakeup>,
    /// The exception of a cancelled call, whose tasks still end.
    leaving: Option<(PyErr, Vec<Py<PyAny>>)>,
    /// The name in the warning if the call never starts.
    unstarted: Option<Cow<'static, str>>,
}

impl Awaitable {
    /// The call of one tool.
    pub(crate) fn of_tool(future: impl Future<Output = PyResult<Py<PyAny>>> + Send + 'static) -> Self {
        Self::new(Box::pin(future), false)
    }

    /// A run, whose tools each get a task.
    pub(crate) fn of_run(future: impl Future<Output = PyResult<Py<PyAny>>> + Send + 'static) -> Self {
        Self::new(Box::pin(future), true)
    }

    /// A part of a run that several awaits drive.
    pub(crate) fn of_part(
        driver: Arc<Driver>,
        future: impl Future<Output = PyResult<Py<PyAny>>> + Send + 'static,
    ) -> Self {
        let mut part = Self::of_run(future);
        part.driver = Some(driver);
        part
    }

    fn new(future: Pending, is_parallel: bool) -> Self {
        Self {
            future: Some(Detached::new(Mutex::new(future))),
            is_parallel,
            driver: None,
            wakeup: Arc::default(),
            leaving: None,
            unstarted: None,
        }
    }

    /// Warns with this name if the call is never awaited, as for a coroutine.
    pub(crate) fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.unstarted = Some(name.into());
        self
    }

    /// One step of the awaiting task: the future that it shall wait for, or the end as an exception.
    fn step(&mut self, py: Python<'_>, thrown: Option<PyErr>) -> PyResult<Py<PyAny>> {
        self.unstarted = None;
        if self.leaving.is_some() {
            return self.leave(py);
        }
        let driver = self.driver(py)?;
        if let Some(error) = thrown
            && !(error.matches(py, bridge::cancelled_error(py)?)? && cancel_awaited(py, &driver)?)
        {
            return self.begin_to_leave(py, &driver, error);
        }
        let Some(future) = &mut self.future else {
            return Err(PyRuntimeError::new_err("the call has ended: it cannot be awaited twice"));
        };
        let handle = runtime::handle()?;
        let wakeup = &self.wakeup;
        wakeup.rest();
        let future = future.get_mut().unwrap_or_else(PoisonError::into_inner);
        let polled = py.detach(|| {
            let _entered = handle.enter();
            let waker = Waker::from(Arc::clone(wakeup));
            driver.poll(|| future.as_mut().poll(&mut Context::from_waker(&waker)))
        });
        if let Some(error) = driver.take_fatal() {
            return self.begin_to_leave(py, &driver, error);
        }
        match polled {
            Poll::Ready(result) => {
                self.future = None;
                Err(PyStopIteration::new_err((result?,)))
            }
            Poll::Pending => wakeup.sleep(py),
        }
    }

    fn driver(&mut self, py: Python<'_>) -> PyResult<Arc<Driver>> {
        if let Some(driver) = &self.driver {
            return Ok(Arc::clone(driver));
        }
        let event_loop = bridge::running_loop(py)?.unbind();
        let mode = if self.is_parallel { Mode::Tasks(event_loop) } else { Mode::Task(event_loop) };
        Ok(Arc::clone(self.driver.insert(Driver::new(mode))))
    }

    /// Drops the call. Inside of the runtime, so that a server hears of the cancellation.
    fn drop_future(&mut self) {
        let Some(future) = self.future.take() else { return };
        let handle = runtime::started();
        let _entered = handle.as_ref().map(Handle::enter);
        drop(future);
    }

    /// Stops the call, whose tools cancel their tasks.
    fn begin_to_leave(&mut self, py: Python<'_>, driver: &Arc<Driver>, error: PyErr) -> PyResult<Py<PyAny>> {
        let future = self.future.take();
        let handle = runtime::handle()?;
        py.detach(|| {
            let _entered = handle.enter();
            driver.poll(|| drop(future));
        });
        self.leaving = Some((error, driver.take_tasks()));
        self.leave(py)
    }

    /// Waits for the tasks of a stopped call, then raises its exception.
    fn leave(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some((error, mut tasks)) = self.leaving.take() else {
            return Err(PyRuntimeError::new_err("the call has ended"));
        };
        while let Some(task) = tasks.pop() {
            if !task.call_method0(py, intern!(py, "done"))?.is_truthy(py)? {
                // What `Task.__await__` does.
                task.setattr(py, intern!(py, "_asyncio_future_blocking"), true)?;
                let waiting = task.clone_ref(py);
                tasks.push(task);
                self.leaving = Some((error, tasks));
                return Ok(waiting);
            }
        }
        Err(error)
    }
}

/// Cancels what the coroutine of the tool waits for, so that the exception arises there.
fn cancel_awaited(py: Python<'_>, driver: &Driver) -> PyResult<bool> {
    match driver.awaited(py) {
        Some(future) => future.call_method0(py, intern!(py, "cancel"))?.is_truthy(py),
        None => Ok(false),
    }
}

#[pymethods]
impl Awaitable {
    fn __await__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.step(py, None)
    }

    /// One step, as of a coroutine.
    fn send(&mut self, py: Python<'_>, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let _ = value;
        self.step(py, None)
    }

    /// Raises an exception in the call, as in a coroutine.
    #[pyo3(signature = (kind, value = None, traceback = None))]
    fn throw(
        &mut self,
        py: Python<'_>,
        kind: Bound<'_, PyAny>,
        value: Option<Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let _ = traceback;
        let exception = match value {
            Some(value) => value,
            None if kind.is_instance_of::<pyo3::types::PyType>() => kind.call0()?,
            None => kind,
        };
        self.step(py, Some(PyErr::from_value(exception)))
    }

    /// Stops the call, as of a coroutine.
    fn close(&mut self) {
        self.unstarted = None;
        self.drop_future();
    }
}

impl Drop for Awaitable {
    fn drop(&mut self) {
        if let Some(name) = self.unstarted.take() {
            exit::attach(|py| warn_unstarted(py, &name));
        }
        self.drop_future();
    }
}

/// The warning of Python for a coroutine that was never awaited.
fn warn_unstarted(py: Python<'_>, name: &str) {
    let text = format!("coroutine '{}' was never awaited", name.replace('\0', ""));
    let warned = CString::new(text)
        .map_err(PyErr::from)
        .and_then(|text| PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1));
    // A filter makes it an exception, which cannot pass a destructor.
    if let Err(error) = warned {
        error.write_unraisable(py, None);
    }
}

/// The alarm of an awaiting task.
#[derive(Default)]
struct Wakeup {
    is_woken: AtomicBool,
    sleeper: Mutex<Option<Sleeper>>,
}

struct Sleeper {
    event_loop: Py<PyAny>,
    future: Py<PyAny>,
    thread: ThreadId,
}

impl Wakeup {
    fn take(&self) -> Option<Sleeper> {
        self.sleeper.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn rest(&self) {
        self.is_woken.store(false, Ordering::Release);
        self.take();
    }

    /// A future that the next wakeup resolves; `None` lets other tasks of the loop run first.
    fn sleep(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if self.is_woken.load(Ordering::Acquire) {
            return Ok(py.None());
        }
        let event_loop = bridge::running_loop(py)?;
        let future = event_loop.call_method0(intern!(py, "create_future"))?;
        // What `Future.__await__` does.
        future.setattr(intern!(py, "_asyncio_future_blocking"), true)?;
        let sleeper = Sleeper {
            event_loop: event_loop.unbind(),
            future: future.clone().unbind(),
            thread: std::thread::current().id(),
        };
        *self.sleeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(sleeper);
        // The wakeup may have come before the sleeper.
        if self.is_woken.load(Ordering::Acquire) && self.take().is_some() {
            return Ok(py.None());
        }
        Ok(future.unbind())
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        let Some(sleeper) = self.take() else { return };
        if sleeper.thread == std::thread::current().id() || Handle::try_current().is_ok() {
            return sleeper.wake();
        }
        // A thread that holds the interpreter may wait for the end of this one, such as a store's writer.
        if let Ok(handle) = runtime::handle() {
            handle.spawn(async { sleeper.wake() });
        }
    }
}

impl Sleeper {
    fn wake(self) {
        // At its exit the interpreter runs no event loop.
        exit::attach(|py| {
            // A closed loop has no task to wake.
            let _ = self.resolve(py);
        });
    }

    fn resolve(self, py: Python<'_>) -> PyResult<()> {
        let resolve = bridge::helpers(py)?.getattr(intern!(py, "resolve"))?;
        if self.thread == std::thread::current().id() {
            resolve.call1((self.future,))?;
        } else {
            self.event_loop.call_method1(py, intern!(py, "call_soon_threadsafe"), (resolve, self.future))?;
        }
        Ok(())
    }
}
