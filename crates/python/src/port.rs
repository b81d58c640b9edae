//! The caller's side of calls and runs: functions of the application.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use toolpost::ToolError;
use toolpost::call::CallId;
use toolpost::extend::BoxFuture;
use toolpost::output::Artifact;
use toolpost::port::{
    Answer, Delivery, LogLine, NoPort, Port, Progress, Question, QuestionKind, Sample, SampleRequest,
};

use crate::driver::Driver;
use crate::reply::artifact_to_python;
use crate::running::Running;
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
        let called = Python::attach(|py| {
            let returned = self.0.bind(py).call1(arguments(py)?)?;
            if bridge::is_coroutine(&returned)? {
                return Running::of_callback(py, returned.unbind()).map(Err);
            }
            Ok(Ok(returned.unbind()))
        });
        match called? {
            Ok(value) => Ok(value),
            Err(running) => running.await,
        }
    }
}

/// How calls that need approval are decided.
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
fn plain_function(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Callback> {
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
                    .call(|py| Ok((tool.clone(), convert::to_python(py, arguments)?.unbind())))
                    .await
                    .and_then(|decided| Python::attach(|py| allowed(decided.bind(py))));
                decided.map(decision).map_err(failed)
            }),
            (QuestionKind::Input { schema }, Callbacks { ask: Some(callback), .. }) => Box::pin(async move {
                let schema = schema.clone().unwrap_or_default();
                let answer = callback
                    .call(|py| Ok((question.message.clone(), convert::to_python(py, &schema)?.unbind())))
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
                .call(|py| Ok((convert::to_python(py, &fields)?.unbind(),)))
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
