//! Running coroutines of tools and callbacks.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;
use toolpost::Ctx;
use toolpost::extend::Args;

use crate::driver::{Driver, Mode};
use crate::inbox::{Inbox, Start, Work};
use crate::slot::{Ended, Slot};
use crate::tool::Function;
use crate::{bridge, convert, exit};

/// Converts what a coroutine returned or raised, on the thread that ran it.
pub(crate) type Convert<T> = fn(Python<'_>, PyResult<Py<PyAny>>, Option<&Driver>) -> T;

/// A running coroutine of a tool or a callback.
pub(crate) struct PythonTask<T> {
    driver: Option<Arc<Driver>>,
    convert: Convert<T>,
    state: RunStage<T>,
}

enum RunStage<T> {
    /// The task that awaits the call runs the coroutine, which waits for a future.
    Inline {
        coroutine: Py<PyAny>,
        waiting: Option<Py<PyAny>>,
        event_loop: Py<PyAny>,
    },
    /// A task of an event loop runs it.
    Task(Arc<Shared<T>>),
    Ended,
}

impl<T: Send + 'static> PythonTask<T> {
    pub(crate) fn start(
        function: &Arc<Function>,
        args: &Args,
        ctx: &Ctx,
        convert: Convert<T>,
    ) -> PyResult<Self> {
        let driver = Driver::current();
        if let Some(Mode::Task(event_loop)) = driver.as_deref().map(Driver::mode)
            && ctx.depth() == 0
        {
            let state = Python::attach(|py| {
                let coroutine = function.call(py, args, ctx, None)?;
                PyResult::Ok(RunStage::Inline {
                    coroutine,
                    waiting: None,
                    event_loop: event_loop.clone_ref(py),
                })
            })?;
            return Ok(Self { driver, convert, state });
        }
        let (function, args, ctx) = (Arc::clone(function), args.clone(), ctx.clone());
        let call = Work::Call(Box::new(move |py| function.call(py, &args, &ctx, None)));
        Self::spawn(driver, call, None, convert)
    }

    /// Runs a coroutine in a task of its own; that of a thread's call on the given event loop, or else in the background.
    fn spawn(
        driver: Option<Arc<Driver>>,
        work: Work,
        thread_loop: Option<Py<PyAny>>,
        convert: Convert<T>,
    ) -> PyResult<Self> {
        let shared = Shared::new(driver.clone(), convert);
        let slot: Arc<dyn Slot> = Arc::<Shared<T>>::clone(&shared);
        match (driver.as_deref().map(Driver::mode), thread_loop) {
            (Some(Mode::Task(event_loop) | Mode::Tasks(event_loop)), _) => {
                Python::attach(|py| Start { work, context: None, slot }.begin(py, event_loop.bind(py)))?;
            }
            (Some(Mode::Remote(watched)), _) => watched.inbox.submit(Start { work, context: None, slot })?,
            (_, Some(event_loop)) => Python::attach(|py| {
                let coroutine = work.coroutine(py)?;
                let helpers = bridge::helpers(py)?;
                let guarded = helpers.getattr(intern!(py, "Guarded"))?.call1((coroutine,))?;
                let task = helpers.call_method1(intern!(py, "submit"), (guarded, event_loop))?;
                Ended::watch(&task, &slot)
            })?,
            (mode, None) => {
                let context = match mode {
                    // The threads of the runtime have no context variables.
                    Some(Mode::Thread { .. }) => {
                        Some(Python::attach(|py| bridge::copy_context(py).map(Bound::unbind))?)
                    }
                    _ => None,
                };
                Inbox::background()?.submit(Start { work, context, slot })?;
            }
        }
        Ok(Self { driver, convert, state: RunStage::Task(shared) })
    }
}

impl PythonTask<PyResult<Py<PyAny>>> {
    /// Runs the coroutine of a callback, where a thread's call has its caller: on the event loop that awaits it.
    pub(crate) fn of_callback(py: Python<'_>, coroutine: Py<PyAny>) -> PyResult<Self> {
        let driver = Driver::current();
        let caller = match driver.as_deref().map(Driver::mode) {
            Some(Mode::Thread { caller: Some(event_loop), .. }) => Some(event_loop.clone_ref(py)),
            _ => None,
        };
        Self::spawn(driver, Work::Coroutine(coroutine), caller, |_, returned, _| returned)
    }

    /// A task that ends.
    pub(crate) fn of_task(py: Python<'_>, task: &Py<PyAny>) -> PyResult<Self> {
        let convert: Convert<_> = |_, returned, _| returned;
        let shared = Shared::new(None, convert);
        let slot: Arc<dyn Slot> = Arc::<Shared<_>>::clone(&shared);
        Ended::watch(task.bind(py), &slot)?;
        Ok(Self { driver: None, convert, state: RunStage::Task(shared) })
    }
}

/// Where a task puts its result.
struct Shared<T> {
    driver: Option<Arc<Driver>>,
    convert: Convert<T>,
    result: Mutex<Pending<T>>,
}

enum Pending<T> {
    Running {
        waker: Option<Waker>,
        task: Option<Py<PyAny>>,
    },
    Done(T),
    /// The result was taken, or the call was dropped.
    Closed,
}

impl<T> Shared<T> {
    fn new(driver: Option<Arc<Driver>>, convert: Convert<T>) -> Arc<Self> {
        Arc::new(Self { driver, convert, result: Mutex::new(Pending::Running { waker: None, task: None }) })
    }

    fn lock(&self) -> MutexGuard<'_, Pending<T>> {
        self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, waker: &Waker) -> Poll<T> {
        let mut result = self.lock();
        match &mut *result {
            Pending::Running { waker: known, .. } => {
                known.get_or_insert_with(|| waker.clone()).clone_from(waker);
                Poll::Pending
            }
            Pending::Done(_) => match std::mem::replace(&mut *result, Pending::Closed) {
                Pending::Done(value) => Poll::Ready(value),
                _ => Poll::Pending,
            },
            Pending::Closed => Poll::Pending,
        }
    }
}

impl<T: Send> Slot for Shared<T> {
    fn is_dropped(&self) -> bool {
        matches!(*self.lock(), Pending::Closed)
    }

    fn started(&self, started: Py<PyAny>) -> bool {
        match &mut *self.lock() {
            Pending::Running { task, .. } => {
                *task = Some(started);
                true
            }
            Pending::Done(_) => true,
            Pending::Closed => false,
        }
    }

    fn end(&self, py: Python<'_>, returned: PyResult<Py<PyAny>>) {
        if self.is_dropped() {
            return;
        }
        let value =
            (self.convert)(py, returned.map_err(|error| unguarded(py, error)), self.driver.as_deref());
        let mut result = self.lock();
        let old = if matches!(*result, Pending::Closed) {
            Pending::Done(value)
        } else {
            std::mem::replace(&mut *result, Pending::Done(value))
        };
        drop(result);
        if let Pending::Running { waker: Some(waker), .. } = old {
            // Wakers take locks of Rust.
            py.detach(|| waker.wake());
        }
    }
}

/// The exception that a guarded coroutine raised.
fn unguarded(py: Python<'_>, error: PyErr) -> PyErr {
    let carried = || -> PyResult<Option<Bound<'_, PyAny>>> {
        let class = bridge::helpers(py)?.getattr(intern!(py, "Fatal"))?;
        let value = error.value(py);
        if value.get_type().is(&class) { value.getattr(intern!(py, "error")).map(Some) } else { Ok(None) }
    };
    match carried() {
        Ok(Some(exception)) => PyErr::from_value(exception),
        Ok(None) => error,
        Err(failure) => failure,
    }
}

/// A callback that wakes a future.
#[pyclass(frozen)]
struct Alarm(Mutex<Option<Waker>>);

#[pymethods]
impl Alarm {
    fn __call__(&self, py: Python<'_>, ended: &Bound<'_, PyAny>) {
        let _ = ended;
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Wakers take locks of Rust.
        py.detach(|| waker.map(Waker::wake));
    }
}

impl<T> Future for PythonTask<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        let polled = match &mut this.state {
            RunStage::Task(shared) => shared.poll(context.waker()),
            RunStage::Inline { coroutine, waiting, .. } => Python::attach(|py| {
                let driver = this.driver.as_deref();
                match step(py, coroutine, waiting, driver, context.waker()) {
                    Ok(None) => Poll::Pending,
                    Ok(Some(value)) => Poll::Ready((this.convert)(py, Ok(value), driver)),
                    Err(error) => Poll::Ready((this.convert)(py, Err(error), driver)),
                }
            }),
            RunStage::Ended => Poll::Pending,
        };
        if polled.is_ready() {
            this.state = RunStage::Ended;
        }
        polled
    }
}

/// One step of a coroutine in the awaiting task: its result, if it has ended.
fn step(
    py: Python<'_>,
    coroutine: &Py<PyAny>,
    waiting: &mut Option<Py<PyAny>>,
    driver: Option<&Driver>,
    waker: &Waker,
) -> PyResult<Option<Py<PyAny>>> {
    let mut sent = match waiting.take() {
        Some(future) if !future.call_method0(py, intern!(py, "done"))?.is_truthy(py)? => {
            *waiting = Some(future);
            return Ok(None);
        }
        Some(future) => {
            if let Some(driver) = driver {
                driver.set_awaited(None);
            }
            // What the event loop does with the future of a task: its exception arises at the await.
            match future.call_method0(py, intern!(py, "result")) {
                Ok(_) => coroutine.call_method1(py, intern!(py, "send"), (py.None(),)),
                Err(error) => coroutine.call_method1(py, intern!(py, "throw"), (error,)),
            }
        }
        None => coroutine.call_method1(py, intern!(py, "send"), (py.None(),)),
    };
    loop {
        let yielded = match sent {
            Ok(yielded) => yielded,
            Err(error) if error.is_instance_of::<PyStopIteration>(py) => {
                return error.value(py).getattr(intern!(py, "value")).map(|value| Some(value.unbind()));
            }
            Err(error) => return Err(error),
        };
        if yielded.is_none(py) {
            waker.wake_by_ref();
            return Ok(None);
        }
        let alarm = Alarm(Mutex::new(Some(waker.clone())));
        if yielded.call_method1(py, intern!(py, "add_done_callback"), (alarm,)).is_err() {
            let found = convert::type_name(yielded.bind(py));
            let error = PyRuntimeError::new_err(format!(
                "the tool awaits a `{found}`, which is not an asyncio future"
            ));
            sent = coroutine.call_method1(py, intern!(py, "throw"), (error,));
            continue;
        }
        yielded.setattr(py, intern!(py, "_asyncio_future_blocking"), false)?;
        if let Some(driver) = driver {
            driver.set_awaited(Some(yielded.clone_ref(py)));
        }
        *waiting = Some(yielded);
        return Ok(None);
    }
}

impl<T> Drop for PythonTask<T> {
    /// Cancels a coroutine that has not ended. The call returns after its end if an event loop awaits it.
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, RunStage::Ended);
        let running = match &state {
            RunStage::Ended => return,
            RunStage::Inline { .. } => None,
            RunStage::Task(shared) => {
                // A destructor of a result may run Python code, so it runs without the lock.
                let old = std::mem::replace(&mut *shared.lock(), Pending::Closed);
                // A task that has not started never starts.
                let Pending::Running { task: Some(task), .. } = old else { return };
                Some(task)
            }
        };
        exit::attach(|py| {
            let helpers = bridge::helpers(py)?;
            let task = match state {
                RunStage::Inline { coroutine, waiting, event_loop } => {
                    helpers.call_method1(intern!(py, "abandon"), (coroutine, waiting, event_loop))
                }
                _ => helpers.call_method1(intern!(py, "cancel"), (running,)),
            };
            if let Some(driver) = &self.driver {
                driver.set_awaited(None);
                if let Ok(task) = task
                    && !task.is_none()
                {
                    driver.add_task(task.unbind());
                }
            }
            PyResult::Ok(())
        });
    }
}
