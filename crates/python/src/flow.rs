//! Workflows of Python: plans, and their runs with the tools of a toolbox.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use toolpost::call::{Cancellation, RunId, Scope};
use toolpost::flow::{
    Durability, FlowOutcome, FlowProgress, FlowRun, Flows, Format, Plan, PlanProblem, StepWait,
};
use toolpost::{CallError, Caller, Store, ToolError};

use crate::awaitable::Awaitable;
use crate::job::notify;
use crate::port::callback;
use crate::toolbox::{Toolbox, Tools};
use crate::{bridge, convert, errors, runtime};

/// A workflow: steps that call tools, run code, wait, or hold other steps.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct Flow(Arc<Plan>);

/// A run that has not begun.
struct Run {
    tools: Arc<Tools>,
    begin: Begin,
    options: Options,
}

struct Options {
    store: Option<PathBuf>,
    durability: Durability,
    max_parallel: Option<usize>,
    working_dir: Option<PathBuf>,
    on_progress: Option<Py<PyAny>>,
    check: bool,
}

enum Begin {
    New(Arc<Plan>, Value),
    Stored(String),
}

impl Run {
    async fn result(self) -> PyResult<FlowResult> {
        let Options { store, durability, max_parallel, working_dir, on_progress, check } = self.options;
        let mut run = match begin(self.tools.toolbox.clone(), self.begin, store).await {
            Ok(run) => run.caller(Caller::new("python")).durability(durability),
            Err(error) => return Err(raised(&error)),
        };
        if let Some(calls) = max_parallel {
            run = run.max_parallel(calls);
        }
        if let Some(path) = working_dir {
            // Without an owner, documents have the names that they have without a scope.
            run = run.scope(Scope::new("").with_working_dir(path));
        }
        let failure = Arc::<Mutex<Option<PyErr>>>::default();
        if let Some(callback) = on_progress {
            run = observed(run, callback, Arc::clone(&failure));
        }
        let ended = run.await;
        if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        match ended {
            Ok(FlowOutcome { error: Some(error), .. }) if check => Err(raised(&error)),
            Ok(outcome) => Ok(FlowResult(outcome)),
            Err(error) => Err(raised(&error)),
        }
    }

    fn awaitable(self) -> Awaitable {
        Awaitable::of_run(async move {
            let result = self.result().await?;
            Python::attach(|py| result.into_py_any(py))
        })
    }
}

async fn begin(
    toolbox: toolpost::Toolbox,
    begin: Begin,
    store: Option<PathBuf>,
) -> Result<FlowRun, ToolError> {
    let flows = Flows::new(toolbox);
    let flows = match store {
        Some(path) => flows.store(Arc::new(spawn_blocking(|| Store::open(path)).await??)),
        None => flows,
    };
    Ok(match begin {
        Begin::New(plan, input) => flows.run(plan, input),
        Begin::Stored(id) => flows.resume(flows.find(&id).await?),
    })
}

/// Calls a function for each event of a run. Its exception cancels the run.
fn observed(run: FlowRun, callback: Py<PyAny>, failure: Arc<Mutex<Option<PyErr>>>) -> FlowRun {
    let (id, cancellation) = (run.id(), Cancellation::new());
    let token = cancellation.clone();
    run.cancellation(cancellation).on_progress(move |progress| {
        let event = event(id, progress);
        let called = notify(&callback, |py| (convert::to_python(py, &event)?,).into_pyobject(py));
        if let Err(error) = called {
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            token.cancel();
        }
    })
}

/// An event as data.
fn event(run: RunId, progress: &FlowProgress) -> Value {
    let mut event = match progress {
        FlowProgress::Started { step, tool, attempt } => {
            json!({ "kind": "started", "step": step, "tool": tool, "attempt": attempt })
        }
        FlowProgress::Called { step, record } => {
            json!({ "kind": "called", "step": step, "record": **record })
        }
        FlowProgress::AttemptFailed { step, error } => {
            json!({ "kind": "attempt_failed", "step": step, "error": error })
        }
        FlowProgress::Waiting { step, wait } => {
            let (signal, question) = match wait {
                StepWait::Approval(question) => (None, Some(question)),
                StepWait::Signal(name) => (Some(name), None),
                _ => (None, None),
            };
            json!({ "kind": "waiting", "step": step, "signal": signal, "question": question })
        }
        FlowProgress::Ended { step, status, output, error } => {
            json!({ "kind": "ended", "step": step, "status": status, "output": **output, "error": error })
        }
        other => json!({ "kind": "other", "message": other.to_string() }),
    };
    event["run"] = run.to_string().into();
    event
}

fn raised(error: &ToolError) -> PyErr {
    Python::attach(|py| errors::to_python(py, error))
}

fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The stored runs of a file.
async fn stored(store: PathBuf) -> Result<Flows, ToolError> {
    let store = spawn_blocking(|| Store::open(store)).await??;
    Ok(Flows::new(toolpost::Toolbox::builder().build()?).store(Arc::new(store)))
}

async fn approve(
    run: String,
    step: Option<String>,
    approved: bool,
    comment: Option<String>,
    store: PathBuf,
) -> PyResult<()> {
    let mut answer = json!({ "approved": approved });
    if let Some(comment) = comment {
        answer["comment"] = comment.into();
    }
    let sent = async {
        let flows = stored(store).await?;
        flows.answer(flows.find(&run).await?, step.as_deref(), answer).await
    };
    sent.await.map(drop).map_err(|error: CallError| raised(&error.into()))
}

async fn signal(run: String, name: String, value: Value, store: PathBuf) -> PyResult<()> {
    let sent = async {
        let flows = stored(store).await?;
        flows.signal(flows.find(&run).await?, &name, value).await
    };
    sent.await.map_err(|error: CallError| raised(&error.into()))
}

impl Options {
    fn new(
        store: Option<PathBuf>,
        durability: &str,
        max_parallel: Option<usize>,
        working_dir: Option<PathBuf>,
        on_progress: Option<Bound<'_, PyAny>>,
        check: bool,
    ) -> PyResult<Self> {
        let durability = durability.parse().map_err(PyValueError::new_err)?;
        Ok(Self {
            store,
            durability,
            max_parallel,
            working_dir: working_dir.map(std::path::absolute).transpose()?,
            on_progress: callback("on_progress", on_progress)?,
            check,
        })
    }
}

impl Flow {
    /// A run with the tools of a toolbox.
    fn begin(&self, toolbox: &Toolbox, input: Option<&Bound<'_, PyAny>>, options: Options) -> PyResult<Run> {
        let problems = self.0.check(&toolbox.0.specs());
        let errors = problems.iter().filter(|problem| !problem.is_warning).map(ToString::to_string);
        let errors: Vec<String> = errors.collect();
        if !errors.is_empty() {
            return Err(PyValueError::new_err(errors.join("\n")));
        }
        let input = input.map_or(Ok(Value::Null), convert::to_json)?;
        Ok(Run { tools: Arc::clone(&toolbox.0), begin: Begin::New(Arc::clone(&self.0), input), options })
    }
}

#[pymethods]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
impl Flow {
    /// Builds a plan, with the members of a file.
    #[new]
    #[pyo3(signature = (
        name, steps, *, input = None, output = None, description = None, tools = None, timeout = None,
        failure = None, max_parallel = None,
    ))]
    fn new(
        py: Python<'_>,
        name: &str,
        steps: &Bound<'_, PyAny>,
        input: Option<Bound<'_, PyAny>>,
        output: Option<Bound<'_, PyAny>>,
        description: Option<Bound<'_, PyAny>>,
        tools: Option<Bound<'_, PyAny>>,
        timeout: Option<Bound<'_, PyAny>>,
        failure: Option<Bound<'_, PyAny>>,
        max_parallel: Option<usize>,
    ) -> PyResult<Self> {
        let members = PyDict::new(py);
        members.set_item("output", output)?;
        members.set_item("description", description)?;
        members.set_item("tools", tools)?;
        members.set_item("failure", failure)?;
        members.set_item("max_parallel", max_parallel)?;
        let plan = bridge::flow(py)?.call_method("plan", (name, steps, input, timeout), Some(&members))?;
        Plan::from_value(&convert::to_json(&plan)?).map(|plan| Self(Arc::new(plan))).map_err(invalid)
    }

    /// Reads a plan in YAML, TOML or JSON, with its sub-flows.
    #[staticmethod]
    fn from_file(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(move || Plan::read(&path)).map(|plan| Self(Arc::new(plan))).map_err(invalid)
    }

    /// Parses a plan in YAML or JSON.
    #[staticmethod]
    fn from_yaml(text: &str) -> PyResult<Self> {
        Plan::parse(text, Format::Yaml).map(|plan| Self(Arc::new(plan))).map_err(invalid)
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The members of the plan, as in a file.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &Value::from(self.0.as_ref()))
    }

    /// The SHA-256 of the plan's data.
    #[getter]
    fn hash(&self) -> &str {
        self.0.hash()
    }

    /// Checks the calls of tools against a toolbox: unknown tools, and arguments of a wrong type.
    fn check(&self, toolbox: &Toolbox) -> Vec<FlowProblem> {
        self.0.check(&toolbox.0.specs()).into_iter().map(FlowProblem).collect()
    }

    /// Runs the plan, and awaits its result. A cancelled await stops the run; a stored run can be resumed.
    #[pyo3(signature = (
        toolbox, input = None, *, store = None, durability = "full", max_parallel = None, working_dir = None,
        on_progress = None,
        check = true,
    ))]
    fn run(
        &self,
        toolbox: &Toolbox,
        input: Option<&Bound<'_, PyAny>>,
        store: Option<PathBuf>,
        durability: &str,
        max_parallel: Option<usize>,
        working_dir: Option<PathBuf>,
        on_progress: Option<Bound<'_, PyAny>>,
        check: bool,
    ) -> PyResult<Awaitable> {
        let options = Options::new(store, durability, max_parallel, working_dir, on_progress, check)?;
        Ok(self.begin(toolbox, input, options)?.awaitable().named("Flow.run"))
    }

    /// Runs the plan, and waits for its result.
    #[pyo3(signature = (
        toolbox, input = None, *, store = None, durability = "full", max_parallel = None, working_dir = None,
        on_progress = None,
        check = true,
    ))]
    fn run_sync(
        &self,
        py: Python<'_>,
        toolbox: &Toolbox,
        input: Option<&Bound<'_, PyAny>>,
        store: Option<PathBuf>,
        durability: &str,
        max_parallel: Option<usize>,
        working_dir: Option<PathBuf>,
        on_progress: Option<Bound<'_, PyAny>>,
        check: bool,
    ) -> PyResult<FlowResult> {
        let options = Options::new(store, durability, max_parallel, working_dir, on_progress, check)?;
        runtime::wait_for_run(py, self.begin(toolbox, input, options)?.result())?
    }

    /// Resumes a stored run with the plan that it began with: its id, the start of its id, or "last".
    #[staticmethod]
    #[pyo3(signature = (
        run, toolbox, *, store, durability = "full", max_parallel = None, working_dir = None,
        on_progress = None, check = true,
    ))]
    fn resume(
        run: String,
        toolbox: &Toolbox,
        store: PathBuf,
        durability: &str,
        max_parallel: Option<usize>,
        working_dir: Option<PathBuf>,
        on_progress: Option<Bound<'_, PyAny>>,
        check: bool,
    ) -> PyResult<Awaitable> {
        let options = Options::new(Some(store), durability, max_parallel, working_dir, on_progress, check)?;
        Ok(Run { tools: Arc::clone(&toolbox.0), begin: Begin::Stored(run), options }
            .awaitable()
            .named("Flow.resume"))
    }

    /// Resumes a stored run, and waits for its result.
    #[staticmethod]
    #[pyo3(signature = (
        run, toolbox, *, store, durability = "full", max_parallel = None, working_dir = None,
        on_progress = None, check = true,
    ))]
    fn resume_sync(
        py: Python<'_>,
        run: String,
        toolbox: &Toolbox,
        store: PathBuf,
        durability: &str,
        max_parallel: Option<usize>,
        working_dir: Option<PathBuf>,
        on_progress: Option<Bound<'_, PyAny>>,
        check: bool,
    ) -> PyResult<FlowResult> {
        let options = Options::new(Some(store), durability, max_parallel, working_dir, on_progress, check)?;
        let run = Run { tools: Arc::clone(&toolbox.0), begin: Begin::Stored(run), options };
        runtime::wait_for_run(py, run.result())?
    }

    /// Sends a value to the step of a stored run that waits for a signal.
    #[staticmethod]
    #[pyo3(signature = (run, name, value = None, *, store))]
    fn signal(
        run: String,
        name: String,
        value: Option<&Bound<'_, PyAny>>,
        store: PathBuf,
    ) -> PyResult<Awaitable> {
        let value = value.map_or(Ok(Value::Null), convert::to_json)?;
        Ok(Awaitable::of_run(async move {
            signal(run, name, value, store).await?;
            Ok(convert::none())
        })
        .named("Flow.signal"))
    }

    /// Sends a value to the step of a stored run that waits for a signal.
    #[staticmethod]
    #[pyo3(signature = (run, name, value = None, *, store))]
    fn signal_sync(
        py: Python<'_>,
        run: String,
        name: String,
        value: Option<&Bound<'_, PyAny>>,
        store: PathBuf,
    ) -> PyResult<()> {
        let value = value.map_or(Ok(Value::Null), convert::to_json)?;
        runtime::wait(py, signal(run, name, value, store))?
    }

    /// Answers the approval of a step of a stored run: approves it, or denies it.
    #[staticmethod]
    #[pyo3(signature = (run, step = None, *, approved = true, comment = None, store))]
    fn approve(
        run: String,
        step: Option<String>,
        approved: bool,
        comment: Option<String>,
        store: PathBuf,
    ) -> Awaitable {
        Awaitable::of_run(async move {
            approve(run, step, approved, comment, store).await?;
            Ok(convert::none())
        })
        .named("Flow.approve")
    }

    /// Answers the approval of a step of a stored run.
    #[staticmethod]
    #[pyo3(signature = (run, step = None, *, approved = true, comment = None, store))]
    fn approve_sync(
        py: Python<'_>,
        run: String,
        step: Option<String>,
        approved: bool,
        comment: Option<String>,
        store: PathBuf,
    ) -> PyResult<()> {
        runtime::wait(py, approve(run, step, approved, comment, store))?
    }

    fn __repr__(&self) -> String {
        format!("Flow({:?}, {} steps)", self.0.name(), self.0.step_count())
    }
}

/// A defect of a plan.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct FlowProblem(PlanProblem);

#[pymethods]
impl FlowProblem {
    /// The line in the file; 0 without one.
    #[getter]
    fn line(&self) -> usize {
        self.0.at.line
    }

    #[getter]
    fn column(&self) -> usize {
        self.0.at.column
    }

    /// The id of the step; empty for the plan itself.
    #[getter]
    fn step(&self) -> &str {
        &self.0.step
    }

    #[getter]
    fn message(&self) -> &str {
        &self.0.message
    }

    /// The fix.
    #[getter]
    fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }

    /// Whether the plan runs all the same.
    #[getter]
    fn is_warning(&self) -> bool {
        self.0.is_warning
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("FlowProblem({:?})", self.0.to_string())
    }
}

/// The result of a run.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct FlowResult(FlowOutcome);

#[pymethods]
impl FlowResult {
    /// The id of the run.
    #[getter]
    fn id(&self) -> String {
        self.0.id.to_string()
    }

    /// "succeeded", "failed" or "cancelled".
    #[getter]
    fn status(&self) -> &'static str {
        self.0.status.as_str()
    }

    /// The output of the plan; None unless the run succeeded.
    #[getter]
    fn output<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &self.0.output)
    }

    /// The `ToolError` of a failed or cancelled run.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.error.as_ref().map(|error| errors::to_python(py, error).into_value(py).into_any())
    }

    /// The number of steps that succeeded.
    #[getter]
    fn succeeded(&self) -> u64 {
        self.0.succeeded
    }

    /// The number of steps that failed.
    #[getter]
    fn failed(&self) -> u64 {
        self.0.failed
    }

    /// The seconds of this process for the run.
    #[getter]
    fn duration(&self) -> f64 {
        self.0.duration.as_secs_f64()
    }

    fn __repr__(&self) -> String {
        let Self(FlowOutcome { status, succeeded, failed, .. }) = self;
        format!("FlowResult({}, {succeeded} steps succeeded, {failed} failed)", status.as_str())
    }
}
