//! One run of an agent: its options, its result, its events.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopAsyncIteration, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use toolpost::Call;
use toolpost::agent::{Run, RunError, RunOutput, RunStopReason, RunStream};
use toolpost::call::RunId;
use toolpost::error::Code;
use toolpost::record::Event;

use crate::answer::AnswerType;
use crate::awaitable::Awaitable;
use crate::conversation::{Conversation, messages};
use crate::detached::Detached;
use crate::driver::{Driver, Mode};
use crate::port::Callback;
use crate::running::PythonTask;
use crate::{bridge, convert, toolbox};

/// The keyword arguments of a run that mean the same as those of a call.
const OPTIONS: [&str; 9] =
    ["user", "metadata", "deadline", "context", "approve", "ask", "on_progress", "on_log", "on_artifact"];

/// Sets the options of a run: those of its calls, and its deadline.
pub(crate) fn with_options(run: Run, options: &Bound<'_, PyDict>) -> PyResult<Run> {
    for name in options.keys() {
        let name = name.extract::<String>()?;
        if !OPTIONS.contains(&name.as_str()) {
            let message = format!("run() got an unexpected keyword argument '{name}'");
            return Err(PyTypeError::new_err(message));
        }
    }
    let call: Call = toolbox::call(String::new(), None, Some(options))?;
    Ok(run
        .with_caller(call.caller)
        .with_port(call.port)
        .with_values(call.values)
        .with_usage_metadata(call.options.metadata.clone())
        .with_options(call.options)
        .with_deadline(call.deadline))
}

/// A run with what its result needs.
pub(crate) struct Started {
    pub(crate) run: Run,
    pub(crate) answer: Option<Arc<AnswerType>>,
    pub(crate) on_event: Option<Arc<Callback>>,
    /// The agent, whose functions the garbage collector must not clear during the run.
    pub(crate) agent: Py<PyAny>,
}

impl Started {
    /// The result of the run.
    pub(crate) async fn finish(self) -> PyResult<Py<PyAny>> {
        let Self { run, answer, on_event, agent } = self;
        let ended = match on_event {
            None => run.await,
            Some(on_event) => {
                let mut events = run.stream();
                while let Some(event) = events.next().await {
                    on_event.call(|py| Ok((event_to_python(py, &event)?.unbind(),))).await?;
                }
                events.finish().await
            }
        };
        Python::attach(|py| {
            drop(agent);
            let (result, error) = RunResult::new(py, ended, answer.as_deref())?;
            match error {
                Some(error) => Err(error),
                None => Ok(result.into_any()),
            }
        })
    }
}

/// An event as a dict with a `type`.
fn event_to_python<'py>(py: Python<'py>, event: &Event) -> PyResult<Bound<'py, PyAny>> {
    convert::to_python(py, &serde_json::to_value(event).unwrap_or_default())
}

/// The result of a run.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct RunResult {
    output: RunOutput,
    answer: Py<PyAny>,
}

impl RunResult {
    /// The result of a run, and the exception of a run without an answer.
    fn new(
        py: Python<'_>,
        ended: Result<RunOutput, RunError>,
        answer: Option<&AnswerType>,
    ) -> PyResult<(Py<Self>, Option<PyErr>)> {
        match ended {
            Ok(output) => {
                let answer = match (&output.value, answer) {
                    (Some(value), Some(answer)) => answer.decode(py, value)?,
                    (Some(value), None) => convert::to_python(py, value)?.unbind(),
                    _ => output.text().into_pyobject(py)?.into_any().unbind(),
                };
                Ok((Py::new(py, Self { output, answer })?, None))
            }
            Err(error) => {
                let (message, code) = (error.to_string(), code_of(error.stop()));
                let result = Py::new(py, Self { output: error.into_output(), answer: py.None() })?;
                let class = bridge::agent(py)?.getattr(intern!(py, "RunError"))?;
                let error = PyErr::from_value(class.call1((message, code.as_str(), &result))?);
                Ok((result, Some(error)))
            }
        }
    }

    pub(crate) fn conversation(&self) -> Conversation {
        Conversation::new(&self.output)
    }

    /// The answer as JSON; `None` without one.
    fn answer_as_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.output.value {
            Some(value) => convert::to_python(py, value),
            None => convert::to_python(py, &convert::to_json(self.answer.bind(py))?),
        }
    }
}

/// The code of a run without an answer, as of an agent that is a tool.
fn code_of(stop: &RunStopReason) -> Code {
    match stop {
        RunStopReason::Cancelled => Code::Cancelled,
        stop if stop.is_limit() => Code::Limit,
        _ => Code::Dependency,
    }
}

#[pymethods]
impl RunResult {
    /// `RunResult[Answer]`, for type checkers.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        bridge::generic_alias(class, item)
    }

    /// The answer: a value of the agent's `answer` type, else the text. None if the run has no answer.
    #[getter]
    fn answer(&self, py: Python<'_>) -> Py<PyAny> {
        self.answer.clone_ref(py)
    }

    /// The text of the answer; without one, the model's last text.
    #[getter]
    fn text(&self) -> &str {
        self.output.text()
    }

    /// The reason why the run ended, such as `end_turn` or `max_iterations`.
    #[getter]
    fn stop_reason(&self) -> &str {
        self.output.stop.as_str()
    }

    /// Whether the run has an answer.
    #[getter]
    fn success(&self) -> bool {
        self.output.record.success
    }

    /// The tokens of the run and of nested agents.
    #[getter]
    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &serde_json::to_value(&self.output.record.usage).unwrap_or_default())
    }

    /// The cost in US dollars; None if unknown.
    #[getter]
    fn cost_usd(&self) -> Option<f64> {
        self.output.record.cost_usd
    }

    /// The records of the tool calls, in the order of the calls.
    #[getter]
    fn calls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &serde_json::to_value(&self.output.record.tool_calls).unwrap_or_default())
    }

    /// The messages of the conversation, as `conversation.messages`.
    #[getter]
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyList>> {
        messages(py, &self.output.turns)
    }

    /// The conversation, for the next run.
    #[getter(conversation)]
    fn get_conversation(&self) -> Conversation {
        self.conversation()
    }

    /// The record of the run, as stored: its id, times, calls, usage, notices and nested runs.
    #[getter]
    fn record<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &serde_json::to_value(&*self.output.record).unwrap_or_default())
    }

    fn __repr__(&self) -> String {
        let text: String = self.output.text().chars().take(200).collect();
        format!("RunResult({:?}, {text:?})", self.output.stop.as_str())
    }
}

/// The events of a run: an asynchronous iterator of dicts with a `type`.
///
/// The run advances only while an event is awaited. Dropping or closing the iterator, or cancelling an await, ends the
/// run.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct RunEvents {
    events: Arc<Events>,
    /// The driver of all awaits, with the tasks of tools that outlive one.
    driver: OnceLock<Arc<Driver>>,
}

struct Events {
    run: RunId,
    answer: Option<Arc<AnswerType>>,
    state: Mutex<AgentRunStage>,
    result: OnceLock<Py<RunResult>>,
    /// As in [`Started`].
    _agent: Py<PyAny>,
}

enum AgentRunStage {
    Ready(Box<RunStream>),
    /// An await has the stream.
    Reading,
    /// The run ended without an answer.
    Failed(PyErr),
    Ended,
}

/// The stream of one await. Dropping it before the next event ends the run.
struct Reading<'a> {
    events: &'a Events,
    stream: Option<Box<RunStream>>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if self.stream.take().is_some() {
            self.events.set(AgentRunStage::Ended);
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(Detached::new(std::mem::replace(state, AgentRunStage::Ended)));
    }
}

impl Events {
    fn lock(&self) -> MutexGuard<'_, AgentRunStage> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: AgentRunStage) {
        let old = std::mem::replace(&mut *self.lock(), state);
        drop(old);
    }

    /// Takes the stream.
    ///
    /// # Errors
    /// The exception that the await raises instead of an event.
    fn take(&self) -> PyResult<Reading<'_>> {
        let state = std::mem::replace(&mut *self.lock(), AgentRunStage::Reading);
        match state {
            AgentRunStage::Ready(stream) => return Ok(Reading { events: self, stream: Some(stream) }),
            AgentRunStage::Reading => {
                return Err(PyRuntimeError::new_err("the events of a run have one reader at a time"));
            }
            AgentRunStage::Failed(error) => {
                self.set(AgentRunStage::Ended);
                return Err(error);
            }
            AgentRunStage::Ended => self.set(AgentRunStage::Ended),
        }
        Err(PyStopAsyncIteration::new_err(()))
    }

    async fn next(&self) -> PyResult<Py<PyAny>> {
        let mut reading = self.take()?;
        let Some(stream) = reading.stream.as_mut() else { return Err(PyStopAsyncIteration::new_err(())) };
        let Some(event) = stream.next().await else { return Err(PyStopAsyncIteration::new_err(())) };
        let Some(stream) = reading.stream.take() else { return Err(PyStopAsyncIteration::new_err(())) };
        if !matches!(&event, Event::RunFinished { record } if record.id == self.run) {
            self.set(AgentRunStage::Ready(stream));
            return Python::attach(|py| event_to_python(py, &event).map(Bound::unbind));
        }
        let ended = stream.finish().await;
        Python::attach(|py| {
            let finished = event_to_python(py, &event)?;
            let (result, error) = RunResult::new(py, ended, self.answer.as_deref())?;
            finished.set_item(intern!(py, "answer"), result.get().answer_as_json(py)?)?;
            let _ = self.result.set(result);
            self.set(error.map_or(AgentRunStage::Ended, AgentRunStage::Failed));
            Ok(finished.unbind())
        })
    }
}

impl RunEvents {
    pub(crate) fn new(started: Started) -> Self {
        let Started { run, answer, agent, .. } = started;
        let events = Events {
            run: run.id(),
            answer,
            state: Mutex::new(AgentRunStage::Ready(Box::new(run.stream()))),
            result: OnceLock::new(),
            _agent: agent,
        };
        Self { events: Arc::new(events), driver: OnceLock::new() }
    }

    fn part<F>(&self, py: Python<'_>, part: impl FnOnce(Arc<Events>, Arc<Driver>) -> F) -> PyResult<Awaitable>
    where
        F: Future<Output = PyResult<Py<PyAny>>> + Send + 'static,
    {
        let event_loop = bridge::running_loop(py)?.unbind();
        let driver = Driver::new(Mode::Tasks(event_loop));
        let driver = Arc::clone(self.driver.get_or_init(|| driver));
        let future = part(Arc::clone(&self.events), Arc::clone(&driver));
        Ok(Awaitable::of_part(driver, future))
    }
}

#[pymethods]
impl RunEvents {
    fn __aiter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __anext__(&self, py: Python<'_>) -> PyResult<Awaitable> {
        self.part(py, |events, _| async move { events.next().await })
    }

    /// The result of the run, after its last event; before it, `None`.
    #[getter]
    fn result(&self, py: Python<'_>) -> Option<Py<RunResult>> {
        self.events.result.get().map(|result| result.clone_ref(py))
    }

    /// Ends the run, and waits for the tasks of its tools.
    fn aclose(&self, py: Python<'_>) -> PyResult<Awaitable> {
        self.part(py, |events, driver| async move {
            events.set(AgentRunStage::Ended);
            for task in driver.take_tasks() {
                // The task was cancelled, and no caller reads its result.
                let _ = Python::attach(|py| PythonTask::of_task(py, &task))?.await;
            }
            Ok(convert::none())
        })
    }

    fn __aenter__(slf: Bound<'_, Self>) -> Awaitable {
        let events = slf.unbind();
        Awaitable::of_run(async move { Ok(events.into_any()) })
    }

    #[pyo3(signature = (*exception))]
    fn __aexit__(&self, py: Python<'_>, exception: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<Awaitable> {
        let _ = exception;
        self.aclose(py)
    }
}
