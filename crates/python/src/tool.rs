//! Tools in Python.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use toolpost::agent::CallingModel;
use toolpost::error::Code;
use toolpost::extend::{Args, BoxFuture};
use toolpost::policy::Placement;
use toolpost::{Ctx, Tool, ToolError, ToolSpec};

use crate::driver::{Driver, Mode};
use crate::output::output;
use crate::running::PythonTask;
use crate::{bridge, convert, ctx, errors, exit};

/// A function of Python with its definition.
pub(crate) struct PythonTool {
    function: Arc<Function>,
    /// The caller, for a call on another thread.
    caller: Option<Origin>,
}

/// The caller's context of a call on another thread: the driver and the context variables.
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

    /// Reports an unexpected exception in a run: the model gets no details, and the run may still succeed.
    fn report_bug(&self, answer: &Result<toolpost::Output, ToolError>, ctx: &Ctx) {
        let Err(error) = answer else { return };
        if error.code() != Code::Internal || ctx.inject::<CallingModel>().is_err() {
            return;
        }
        let caller = self.caller.as_ref().map(|origin| Arc::clone(&origin.driver));
        let driver = caller.or_else(Driver::current);
        errors::report_bug(&self.function.spec.name, error, driver.as_deref());
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
                self.report_bug(&answer, ctx);
                drop(inside);
                unless_ending().await;
                answer
            });
        }
        Box::pin(async move {
            unless_ending().await;
            let answer = match PythonTask::start(&self.function, args, ctx, Function::answer) {
                Ok(running) => running.await,
                Err(error) => Python::attach(|py| Err(errors::from_python(py, error))),
            };
            self.report_bug(&answer, ctx);
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
    pub(crate) fn call(
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
