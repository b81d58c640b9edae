//! The caller's side of calls and runs: functions of the application.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString, PyTuple};
use tokio::task::spawn_blocking;
use toolpost::ToolError;
use toolpost::call::CallId;
use toolpost::extend::BoxFuture;
use toolpost::output::Artifact;
use toolpost::port::{
    Answer, Delivery, LogLine, NoPort, Port, Progress, Question, QuestionKind, Sample, SampleRequest,
};

use crate::driver::{Driver, Mode};
use crate::reply::artifact_to_python;
use crate::running::PythonTask;
use crate::{bridge, convert, errors, exit};

/// A function of the application, plain or async.
pub(crate) struct Callback(Py<PyAny>);

impl Callback {
    pub(crate) fn new(function: &Bound<'_, PyAny>) -> Self {
        Self(function.clone().unbind())
    }

    /// Calls the function, and awaits its coroutine on the event loop of the caller.
    pub(crate) async fn call<A>(
        &self,
        arguments: impl FnOnce(Python<'_>) -> PyResult<A> + Send,
    ) -> PyResult<Py<PyAny>>
    where
        A: for<'a> pyo3::call::PyCallArgs<'a>,
    {
        let returned = Python::attach(|py| self.0.bind(py).call1(arguments(py)?).map(Bound::unbind));
        awaited(returned?).await
    }

    /// Calls a function that may wait for a person or a model. A plain one runs on a thread, as a sync tool does.
    async fn ask(
        &self,
        arguments: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyTuple>> + Send,
    ) -> PyResult<Py<PyAny>> {
        let driver = Driver::current();
        // A thread that waits for the call may as well run the function. An event loop may not.
        let mode = driver.as_deref().map(Driver::mode);
        let has_free_thread = matches!(mode, Some(Mode::Thread { is_parallel: false, .. }));
        let (arguments, context) = Python::attach(|py| {
            let is_here = has_free_thread || bridge::is_async(self.0.bind(py))?;
            let context = (!is_here).then(|| bridge::copy_context(py)).transpose()?;
            let arguments = arguments(py)?;
            if context.is_none() {
                return PyResult::Ok((arguments.unbind(), None));
            }
            let mut words = vec![self.0.bind(py).clone()];
            words.extend(arguments);
            Ok((PyTuple::new(py, words)?.unbind(), context.map(Bound::unbind)))
        })?;
        let Some(context) = context else { return self.call(|_| Ok(arguments)).await };
        let work = move || {
            let _inside = exit::enter();
            exit::attach(|py| {
                let call = || context.call_method1(py, intern!(py, "run"), arguments);
                match &driver {
                    Some(driver) => driver.run_on_thread(call),
                    None => call(),
                }
            })
        };
        match spawn_blocking(work).await {
            Ok(Some(returned)) => awaited(returned?).await,
            Ok(None) => Err(PyRuntimeError::new_err("the interpreter exits")),
            Err(error) => Err(PyRuntimeError::new_err(error.to_string())),
        }
    }
}

/// Awaits the coroutine of a function on the event loop of the caller. Any other value is the result.
async fn awaited(returned: Py<PyAny>) -> PyResult<Py<PyAny>> {
    let running = Python::attach(|py| {
        if bridge::is_coroutine(returned.bind(py))? {
            return PythonTask::of_callback(py, returned).map(Err);
        }
        Ok(Ok(returned))
    });
    match running? {
        Ok(value) => Ok(value),
        Err(running) => running.await,
    }
}

/// The decision on calls that need approval.
enum Approve {
    Always(bool),
    Ask(Callback),
}

impl Approve {
    fn new(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.cast::<PyString>() {
            return match text.to_str()? {
                "allow" => Ok(Self::Always(true)),
                "deny" => Ok(Self::Always(false)),
                other => Err(PyValueError::new_err(format!(
                    "`approve` must be \"allow\", \"deny\" or a function, found {other:?}"
                ))),
            };
        }
        Ok(Self::Ask(function("approve", value)?))
    }
}

/// The functions of the application for one call or run.
#[derive(Default)]
pub(crate) struct Callbacks {
    approve: Option<Approve>,
    ask: Option<Callback>,
    sample: Option<Callback>,
    on_progress: Option<Callback>,
    on_log: Option<Callback>,
    on_artifact: Option<Callback>,
}

pub(crate) fn function(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Callback> {
    if value.is_callable() {
        return Ok(Callback::new(value));
    }
    Err(PyTypeError::new_err(format!("`{name}` must be a function, found {}", convert::type_name(value))))
}

/// A function among keyword arguments.
pub(crate) fn callback(name: &str, value: Option<Bound<'_, PyAny>>) -> PyResult<Option<Py<PyAny>>> {
    value.map(|value| Ok(function(name, &value)?.0)).transpose()
}

/// A function that is called in the middle of other work, and must return at once.
pub(crate) fn plain_function(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Callback> {
    if bridge::is_async(value)? {
        return Err(PyTypeError::new_err(format!("`{name}` must be a plain function, found an async one")));
    }
    function(name, value)
}

impl Callbacks {
    /// Sets the function of a keyword argument; returns whether the argument is one.
    pub(crate) fn set(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        match name {
            "approve" => self.approve = Some(Approve::new(value)?),
            "ask" => self.ask = Some(function(name, value)?),
            "sample" => self.sample = Some(function(name, value)?),
            "on_progress" => self.on_progress = Some(plain_function(name, value)?),
            "on_log" => self.on_log = Some(plain_function(name, value)?),
            "on_artifact" => self.on_artifact = Some(function(name, value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The port of these functions, if there are any.
    pub(crate) fn into_port(self) -> Option<Arc<dyn Port>> {
        let Self { approve, ask, sample, on_progress, on_log, on_artifact } = &self;
        let is_empty = approve.is_none()
            && [ask, sample, on_progress, on_log, on_artifact].into_iter().all(Option::is_none);
        (!is_empty).then(|| Arc::new(PythonPort(self)) as Arc<dyn Port>)
    }
}

/// The port of an application in Python.
struct PythonPort(Callbacks);

/// The error of a callback as the error of its call.
pub(crate) fn failed(error: PyErr) -> ToolError {
    Python::attach(|py| errors::from_raised(py, error, Driver::current().as_deref()))
}

/// Calls a function that must return at once. An exception is printed, as of other callbacks without a caller.
fn notify<A>(callback: &Callback, arguments: impl FnOnce(Python<'_>) -> PyResult<A>) -> Delivery
where
    A: for<'a> pyo3::call::PyCallArgs<'a>,
{
    exit::attach(|py| {
        let function = callback.0.bind(py);
        if let Err(error) = arguments(py).and_then(|arguments| function.call1(arguments)) {
            match Driver::current().or_else(Driver::of_caller) {
                Some(driver) if errors::is_fatal(py, &error) => driver.end_with(error),
                _ => error.write_unraisable(py, Some(function)),
            }
        }
    });
    Delivery::Delivered
}

impl Port for PythonPort {
    fn progress(&self, _call: CallId, progress: Progress) -> Delivery {
        match &self.0.on_progress {
            Some(callback) => notify(callback, |_| Ok((progress.message, progress.percent))),
            None => Delivery::Dropped,
        }
    }

    fn log(&self, _call: CallId, line: LogLine) -> Delivery {
        let Some(callback) = &self.0.on_log else { return Delivery::Dropped };
        let level = serde_json::to_value(line.level).unwrap_or_default();
        notify(callback, |py| Ok((convert::to_python(py, &level)?.unbind(), line.message)))
    }

    fn takes_artifacts(&self) -> bool {
        self.0.on_artifact.is_some()
    }

    fn artifact(&self, call: CallId, artifact: Artifact) -> BoxFuture<'_, Result<(), ToolError>> {
        let Some(callback) = &self.0.on_artifact else { return NO_PORT.artifact(call, artifact) };
        Box::pin(async move {
            let taken = callback.call(move |py| Ok((artifact_to_python(py, &artifact)?.unbind(),))).await;
            taken.map(drop).map_err(failed)
        })
    }

    fn ask<'a>(&'a self, call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        match (&question.kind, &self.0) {
            (QuestionKind::Approval { .. }, Callbacks { approve: Some(Approve::Always(allow)), .. }) => {
                Box::pin(async { Ok(decision(*allow)) })
            }
            (
                QuestionKind::Approval { tool, arguments },
                Callbacks { approve: Some(Approve::Ask(callback)), .. },
            ) => Box::pin(async move {
                let decided = callback
                    .ask(|py| (tool, convert::to_python(py, arguments)?).into_pyobject(py))
                    .await
                    .and_then(|decided| Python::attach(|py| allowed(decided.bind(py))));
                decided.map(decision).map_err(failed)
            }),
            (QuestionKind::Input { schema }, Callbacks { ask: Some(callback), .. }) => Box::pin(async move {
                let schema = schema.clone().unwrap_or_default();
                let answer = callback
                    .ask(|py| (&question.message, convert::to_python(py, &schema)?).into_pyobject(py))
                    .await
                    .and_then(|answer| Python::attach(|py| convert::to_json(answer.bind(py))));
                match answer.map_err(failed)? {
                    serde_json::Value::Null => Ok(Answer::Declined),
                    value => Ok(Answer::Given { value }),
                }
            }),
            _ => NO_PORT.ask(call, question),
        }
    }

    fn sample<'a>(
        &'a self,
        call: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        let Some(callback) = &self.0.sample else { return NO_PORT.sample(call, request) };
        Box::pin(async move {
            let fields = serde_json::to_value(request).unwrap_or_default();
            let sampled = callback
                .ask(|py| (convert::to_python(py, &fields)?,).into_pyobject(py))
                .await
                .and_then(|content| Python::attach(|py| content.extract(py)));
            sampled.map(|content| Sample { content, usage: None }).map_err(failed)
        })
    }
}

const NO_PORT: &NoPort = &NoPort;

fn decision(allow: bool) -> Answer {
    if allow { Answer::Given { value: true.into() } } else { Answer::Declined }
}

/// The decision of a function: nothing but a bool counts, so that no forgotten `await` approves a call.
fn allowed(decided: &Bound<'_, PyAny>) -> PyResult<bool> {
    match decided.cast::<PyBool>() {
        Ok(decided) => Ok(decided.is_true()),
        Err(_) => Err(PyTypeError::new_err(format!(
            "`approve` must return True or False, found {}",
            convert::type_name(decided)
        ))),
    }
}
