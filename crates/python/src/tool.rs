//! Tools in Python.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use toolpost::extend::{Args, BoxFuture};
use toolpost::policy::Placement;
use toolpost::{Ctx, Tool, ToolError, ToolSpec};

use crate::driver::{Driver, Mode};
use crate::output::output;
use crate::{bridge, convert, ctx, errors, exit};

/// A function of Python with its definition.
pub(crate) struct PythonTool {
    function: Arc<Function>,
    /// The caller, for a call on another thread.
    caller: Option<Origin>,
}

/// What a call on another thread has of its caller: the driver and the context variables.
struct Origin {
    driver: Arc<Driver>,
    context: Py<PyAny>,
}

impl Origin {
    fn current() -> Option<Self> {
        let driver = Driver::current()?;
        let context = exit::attach(|py| bridge::copy_context(py).map(Bound::unbind))?.ok()?;
        Some(Self { driver, context })
    }
}

/// The function behind a tool.
pub(crate) struct Function {
    spec: Arc<ToolSpec>,
    call: Py<PyAny>,
    /// Converts JSON arguments into the declared types; absent if JSON types are all it declares.
    decode: Option<Py<PyAny>>,
    /// The parameter that gets the context.
    ctx: Option<Py<PyString>>,
    is_async: bool,
    /// Whether the author chose the placement.
    has_placement: bool,
}

impl PythonTool {
    /// The tool of a `toolpost.author.Tool`.
    ///
    /// # Errors
    /// The exception of its annotations; `ValueError` for an invalid definition.
    pub(crate) fn new(tool: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tool.py();
        let spec = convert::to_json(&tool.call_method0(intern!(py, "spec"))?)?;
        let policy = spec.get("policy");
        let declares = |name: &str| policy.is_some_and(|policy| policy.get(name).is_some());
        // Only a thread of its own lets a blocking function time out.
        let has_placement = declares("placement") || declares("timeout");
        let mut spec: ToolSpec = serde_json::from_value(spec)
            .map_err(|error| PyValueError::new_err(format!("invalid definition of {tool}: {error}")))?;
        let is_async: bool = tool.getattr(intern!(py, "is_async"))?.extract()?;
        if declared_timeout_of_sync(&spec, is_async) {
            spec.policy.placement = Placement::Blocking;
        }
        let needs_decode: bool = tool.getattr(intern!(py, "needs_decode"))?.extract()?;
        let decode = if needs_decode { Some(tool.getattr(intern!(py, "decode"))?.unbind()) } else { None };
        let ctx: Option<Bound<'_, PyString>> = tool.getattr(intern!(py, "ctx_param"))?.extract()?;
        let function = Function {
            spec: Arc::new(spec),
            call: tool.getattr(intern!(py, "fn"))?.unbind(),
            decode,
            ctx: ctx.map(Bound::unbind),
            is_async,
            has_placement,
        };
        Ok(Self { function: Arc::new(function), caller: None })
    }

    pub(crate) fn function(&self) -> Arc<Function> {
        Arc::clone(&self.function)
    }
}

fn declared_timeout_of_sync(spec: &ToolSpec, is_async: bool) -> bool {
    !is_async && spec.policy.timeout.is_some() && spec.policy.placement == Placement::Inline
}

impl Tool for PythonTool {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::clone(&self.function.spec)
    }

    fn on_thread(&self) -> Option<Arc<dyn Tool>> {
        if self.function.is_async {
            return None;
        }
        let is_blocking = self.function.spec.policy.placement == Placement::Blocking;
        let driver = Driver::current();
        // A thread that waits for the call may as well run the function. An event loop may not.
        let has_free_thread = driver
            .as_ref()
            .is_some_and(|driver| matches!(driver.mode(), Mode::Thread { is_parallel: false, .. }));
        if !is_blocking && (self.function.has_placement || has_free_thread) {
            return None;
        }
        if driver.is_some_and(|driver| driver.is_ending()) {
            return None;
        }
        Some(Arc::new(Self { function: Arc::clone(&self.function), caller: Origin::current() }))
    }

    fn call<'a>(
        &'a self,
        args: &'a Args,
        ctx: &'a Ctx,
    ) -> BoxFuture<'a, Result<toolpost::Output, ToolError>> {
        if !self.function.is_async {
            // The boxed future is ready: the function runs at its first poll.
            return Box::pin(async move {
                unless_ending().await;
                let inside = exit::enter();
                let answer = exit::attach(|py| {
                    let (returned, driver) = match &self.caller {
                        Some(Origin { driver, context }) => {
                            let call = || self.function.call(py, args, ctx, Some(context));
                            (driver.run_on_thread(call), Some(Arc::clone(driver)))
                        }
                        None => (self.function.call(py, args, ctx, None), Driver::current()),
                    };
                    Function::answer(py, returned, driver.as_deref())
                })
                .unwrap_or_else(|| Err(ToolError::cancelled("the interpreter exits")));
                drop(inside);
                unless_ending().await;
                answer
            });
        }
        Box::pin(async move {
            unless_ending().await;
            let running = Python::attach(|py| Running::start(py, &self.function, args, ctx))?;
            let returned = running.await;
            let answer = Python::attach(|py| Function::answer(py, returned, Driver::current().as_deref()));
            unless_ending().await;
            answer
        })
    }
}

impl Function {
    /// Shows the garbage collector the objects of a function that only its toolbox has.
    pub(crate) fn traverse(function: &Arc<Self>, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        // One reference is the registry's, one the toolbox's list.
        if Arc::strong_count(function) > 2 {
            return Ok(());
        }
        visit.call(&function.call)?;
        visit.call(&function.decode)?;
        visit.call(&function.ctx)
    }

    /// Calls the function: its result, or its coroutine.
    fn call(
        &self,
        py: Python<'_>,
        args: &Args,
        ctx: &Ctx,
        context: Option<&Py<PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let mut arguments = match args.as_value().as_object() {
            Some(map) => convert::map_to_python(py, map)?,
            None => PyDict::new(py),
        };
        if let Some(decode) = &self.decode {
            arguments = decode.bind(py).call1((arguments,))?.cast_into()?;
        }
        if let Some(name) = &self.ctx {
            arguments.set_item(name.bind(py), ctx::to_python(py, ctx)?)?;
        }
        match context {
            Some(context) => {
                context.bind(py).call_method(intern!(py, "run"), (self.call.bind(py),), Some(&arguments))
            }
            None => self.call.bind(py).call((), Some(&arguments)),
        }
        .map(Bound::unbind)
    }

    /// The result of a function as the output of its call.
    fn answer(
        py: Python<'_>,
        returned: PyResult<Py<PyAny>>,
        driver: Option<&Driver>,
    ) -> Result<toolpost::Output, ToolError> {
        returned
            .and_then(|value| output(value.bind(py)))
            .map_err(|error| errors::from_raised(py, error, driver))
    }
}

/// Waits forever once an exception ends the outermost call, which then drops its tools.
async fn unless_ending() {
    if Driver::current().is_some_and(|driver| driver.is_ending()) {
        std::future::pending::<()>().await;
    }
}

/// A running coroutine of a tool or a callback.
pub(crate) struct Running {
    driver: Option<Arc<Driver>>,
    state: State,
}

enum State {
    /// The task that awaits the call runs the coroutine, which waits for a future.
    Inline {
        coroutine: Py<PyAny>,
        waiting: Option<Py<PyAny>>,
        event_loop: Py<PyAny>,
    },
    /// A task or a background loop runs it.
    Task {
        task: Py<PyAny>,
        alarm: Arc<Mutex<Option<Waker>>>,
    },
    Ended,
}

impl Running {
    fn start(py: Python<'_>, function: &Function, args: &Args, ctx: &Ctx) -> Result<Self, ToolError> {
        let coroutine = match function.call(py, args, ctx, None) {
            Ok(coroutine) => coroutine,
            Err(error) => return Err(errors::from_python(py, error)),
        };
        let driver = Driver::current();
        if let Some(Mode::Task(event_loop)) = driver.as_deref().map(Driver::mode)
            && ctx.depth() == 0
        {
            let event_loop = event_loop.clone_ref(py);
            return Ok(Self { driver, state: State::Inline { coroutine, waiting: None, event_loop } });
        }
        Self::spawn(py, driver, coroutine, None).map_err(|error| errors::from_python(py, error))
    }

    /// Runs the coroutine of a callback, where a thread's call has its caller: on the event loop that awaits it.
    pub(crate) fn of_callback(py: Python<'_>, coroutine: Py<PyAny>) -> PyResult<Self> {
        let driver = Driver::current();
        let caller = match driver.as_deref().map(Driver::mode) {
            Some(Mode::Thread { caller: Some(event_loop), .. }) => Some(event_loop.clone_ref(py)),
            _ => None,
        };
        Self::spawn(py, driver, coroutine, caller)
    }

    /// Runs a coroutine in a task of its own; that of a thread's call on the given event loop, or else in the background.
    fn spawn(
        py: Python<'_>,
        driver: Option<Arc<Driver>>,
        coroutine: Py<PyAny>,
        thread_loop: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let helpers = bridge::helpers(py)?;
        let guarded = helpers.getattr(intern!(py, "Guarded"))?.call1((coroutine,))?;
        let task = match driver.as_deref().map(Driver::mode) {
            Some(Mode::Task(event_loop) | Mode::Tasks(event_loop)) => {
                event_loop.bind(py).call_method1(intern!(py, "create_task"), (guarded,))?
            }
            Some(Mode::Remote(event_loop)) => {
                helpers.call_method1(intern!(py, "submit"), (guarded, event_loop))?
            }
            Some(Mode::Thread { .. }) | None => {
                helpers.call_method1(intern!(py, "submit"), (guarded, thread_loop))?
            }
        };
        Ok(Self { driver, state: watched(py, task.unbind())? })
    }

    /// A task that ends.
    pub(crate) fn of_task(py: Python<'_>, task: Py<PyAny>) -> PyResult<Self> {
        Ok(Self { driver: None, state: watched(py, task)? })
    }
}

/// A task whose end wakes its future.
fn watched(py: Python<'_>, task: Py<PyAny>) -> PyResult<State> {
    let alarm = Arc::<Mutex<Option<Waker>>>::default();
    task.call_method1(py, intern!(py, "add_done_callback"), (Alarm(Arc::clone(&alarm)),))?;
    Ok(State::Task { task, alarm })
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
struct Alarm(Arc<Mutex<Option<Waker>>>);

#[pymethods]
impl Alarm {
    fn __call__(&self, py: Python<'_>, ended: &Bound<'_, PyAny>) {
        let _ = ended;
        let waker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Wakers take locks of Rust.
        py.detach(|| waker.map(Waker::wake));
    }
}

impl Future for Running {
    type Output = PyResult<Py<PyAny>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::Task { alarm, .. } = &this.state {
            *alarm.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        }
        let polled = Python::attach(|py| this.step(py, context.waker()));
        match polled {
            Ok(None) => Poll::Pending,
            Ok(Some(value)) => {
                this.state = State::Ended;
                Poll::Ready(Ok(value))
            }
            Err(error) => {
                this.state = State::Ended;
                Poll::Ready(Err(error))
            }
        }
    }
}

impl Running {
    /// The result, if the coroutine has ended.
    fn step(&mut self, py: Python<'_>, waker: &Waker) -> PyResult<Option<Py<PyAny>>> {
        match &mut self.state {
            State::Task { task, .. } => {
                if !task.call_method0(py, intern!(py, "done"))?.is_truthy(py)? {
                    return Ok(None);
                }
                task.call_method0(py, intern!(py, "result")).map(Some).map_err(|error| unguarded(py, error))
            }
            State::Inline { coroutine, waiting, .. } => {
                let mut sent = match waiting.take() {
                    Some(future) if !future.call_method0(py, intern!(py, "done"))?.is_truthy(py)? => {
                        *waiting = Some(future);
                        return Ok(None);
                    }
                    Some(future) => {
                        if let Some(driver) = &self.driver {
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
                            let value = error.value(py).getattr(intern!(py, "value"))?;
                            return Ok(Some(value.unbind()));
                        }
                        Err(error) => return Err(error),
                    };
                    if yielded.is_none(py) {
                        waker.wake_by_ref();
                        return Ok(None);
                    }
                    let alarm = Alarm(Arc::new(Mutex::new(Some(waker.clone()))));
                    if yielded.call_method1(py, intern!(py, "add_done_callback"), (alarm,)).is_err() {
                        let found = convert::type_name(yielded.bind(py));
                        let error = PyRuntimeError::new_err(format!(
                            "the tool awaits a `{found}`, which is no asyncio future"
                        ));
                        sent = coroutine.call_method1(py, intern!(py, "throw"), (error,));
                        continue;
                    }
                    yielded.setattr(py, intern!(py, "_asyncio_future_blocking"), false)?;
                    if let Some(driver) = &self.driver {
                        driver.set_awaited(Some(yielded.clone_ref(py)));
                    }
                    *waiting = Some(yielded);
                    return Ok(None);
                }
            }
            State::Ended => Err(PyRuntimeError::new_err("the tool has ended")),
        }
    }
}

impl Drop for Running {
    /// Cancels a coroutine that has not ended. The call returns after its end if an event loop awaits it.
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Ended);
        if matches!(state, State::Ended) {
            return;
        }
        exit::attach(|py| {
            let task = match state {
                State::Task { task, .. } => bridge::helpers(py)
                    .and_then(|helpers| helpers.call_method1(intern!(py, "cancel"), (task,))),
                State::Inline { coroutine, waiting, event_loop } => bridge::helpers(py).and_then(|helpers| {
                    helpers.call_method1(intern!(py, "abandon"), (coroutine, waiting, event_loop))
                }),
                State::Ended => return,
            };
            if let Some(driver) = &self.driver {
                driver.set_awaited(None);
                if let Ok(task) = task
                    && !task.is_none()
                {
                    driver.add_task(task.unbind());
                }
            }
        });
    }
}
