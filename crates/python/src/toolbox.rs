//! The toolbox of Python.

use std::collections::HashMap;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde_json::{Map, Value};
use toolpost::call::{Priority, Secret};
use toolpost::connection::Connection;
use toolpost::record::Event;
use toolpost::resources::{PromptSpec, ResourceSpec};
use toolpost::{Call, Caller, Tool, ToolError};

use crate::awaitable::Awaitable;
use crate::call_forms::{awaited, waited};
use crate::ctx::AppContext;
use crate::detached::Detached;
use crate::offered::Offered;
use crate::port::Callbacks;
use crate::reply::Reply;
use crate::serve::Settings;
use crate::state::StateDoc;
use crate::tool::{Function, PythonTool};
use crate::{bridge, convert, errors, exit, runtime};

/// The methods of Python objects that define a resource and a prompt.
const RESOURCE: &str = "resource_spec";
const PROMPT: &str = "prompt_spec";

/// A set of tools, and the one way to call them: checked, limited and recorded.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct Toolbox(pub(crate) Arc<Tools>);

/// A toolbox with its functions. All that use the toolbox hold it, so that the garbage collector knows when nothing
/// but the Python object does.
pub(crate) struct Tools {
    pub(crate) toolbox: Detached<toolpost::Toolbox>,
    /// Whether each call has a timeout that the application has set.
    has_timeout: bool,
    functions: Mutex<Vec<(String, Arc<Function>)>>,
    /// The toolboxes among its tools.
    added: Mutex<Vec<Arc<Tools>>>,
}

impl Deref for Tools {
    type Target = toolpost::Toolbox;

    fn deref(&self) -> &toolpost::Toolbox {
        &self.toolbox
    }
}

impl Tools {
    fn functions(&self) -> MutexGuard<'_, Vec<(String, Arc<Function>)>> {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Toolbox {
    /// A toolbox with the default settings.
    pub(crate) fn of_functions(functions: &Bound<'_, PyTuple>) -> PyResult<Self> {
        Self::new(functions, "toolpost", None, None, None, None)
    }

    fn add_toolbox(&self, py: Python<'_>, toolbox: &Arc<Tools>) -> PyResult<()> {
        let source = Arc::new(toolbox.toolbox.clone());
        runtime::wait(py, self.0.add_source(source))?.map_err(|error| errors::to_python(py, &error))?;
        // The garbage collector must not clear a toolbox whose tools are in use.
        self.0.added.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(toolbox));
        Ok(())
    }
}

#[pymethods]
impl Toolbox {
    #[new]
    #[pyo3(signature = (*tools, name = "toolpost", store = None, concurrency = None, timeout = None, on_event = None))]
    fn new(
        tools: &Bound<'_, PyTuple>,
        name: &str,
        store: Option<PathBuf>,
        concurrency: Option<usize>,
        timeout: Option<&Bound<'_, PyAny>>,
        on_event: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let py = tools.py();
        let timeout = timeout.map(|seconds| duration("timeout", seconds)).transpose()?;
        let mut builder = toolpost::Toolbox::builder().name(name).settings(|settings| {
            settings.concurrency = concurrency.unwrap_or(settings.concurrency);
            settings.timeout = timeout.unwrap_or(settings.timeout);
        });
        if let Some(path) = store {
            let store = py.detach(|| toolpost::Store::open(path));
            builder = builder.store(Arc::new(store.map_err(|error| errors::to_python(py, &error))?));
        }
        if let Some(on_event) = on_event {
            builder = builder.on_event(move |event| emit(&on_event, event));
        }
        let toolbox = builder.build().map_err(|error| invalid(&error))?;
        let toolbox = Self(Arc::new(Tools {
            toolbox: Detached::new(toolbox),
            has_timeout: timeout.is_some(),
            functions: Mutex::default(),
            added: Mutex::default(),
        }));
        toolbox.add(tools)?;
        Ok(toolbox)
    }

    /// Adds tools: functions, `@tool` functions, objects with `@tool` methods, modules, lists of these, toolboxes.
    #[pyo3(signature = (*tools))]
    fn add(&self, tools: &Bound<'_, PyTuple>) -> PyResult<()> {
        let py = tools.py();
        let mut others = Vec::new();
        for item in tools {
            if let Ok(toolbox) = item.cast::<Self>() {
                self.add_toolbox(py, &toolbox.get().0)?;
            } else {
                others.push(item);
            }
        }
        let collected = bridge::tools(py)?.getattr(intern!(py, "tools_of"))?.call1((others,))?;
        for tool in collected.try_iter()? {
            let tool = tool?;
            if tool.hasattr(RESOURCE)? {
                let mut resource = Offered::<ResourceSpec>::new(&tool, RESOURCE)?;
                let function = resource.tool.spec().name.clone();
                resource.spec.name.get_or_insert(function);
                self.0.add_resource(resource).map_err(|error| invalid(&error))?;
                continue;
            }
            if tool.hasattr(PROMPT)? {
                let prompt = Offered::<PromptSpec>::new(&tool, PROMPT)?;
                self.0.add_prompt(prompt).map_err(|error| invalid(&error))?;
                continue;
            }
            let tool = PythonTool::new(&tool)?;
            let function = (tool.spec().name.clone(), tool.function());
            self.0.add(Arc::new(tool) as Arc<dyn Tool>).map_err(|error| invalid(&error))?;
            self.0.functions().push(function);
        }
        Ok(())
    }

    /// `@toolbox.tool`: `toolpost.tool`, then `add`.
    #[pyo3(signature = (*arguments, **options))]
    fn tool<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        registered(slf, "tool", arguments, options)
    }

    /// `@toolbox.resource(…)`: `toolpost.resource`, then `add`.
    #[pyo3(signature = (*arguments, **options))]
    fn resource<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        registered(slf, "resource", arguments, options)
    }

    /// `@toolbox.prompt`: `toolpost.prompt`, then `add`.
    #[pyo3(signature = (*arguments, **options))]
    fn prompt<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        registered(slf, "prompt", arguments, options)
    }

    /// Removes a tool, and returns whether it existed. Running calls continue.
    fn remove(&self, name: &str) -> bool {
        let removed: Vec<_> = self.0.functions().extract_if(.., |(known, _)| known == name).collect();
        drop(removed);
        self.0.remove(name)
    }

    /// The definitions of all tools, in the order of registration.
    #[getter]
    fn specs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_python(py, &serde_json::to_value(self.0.specs()).unwrap_or_default())
    }

    /// Calls a tool, and awaits its reply.
    #[pyo3(signature = (tool, arguments = None, /, **options))]
    fn call(
        &self,
        tool: String,
        arguments: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Awaitable> {
        let name = format!("Toolbox.call({tool:?})");
        let (toolbox, call) = (self.0.clone(), call(tool, arguments, options)?);
        let called = Awaitable::of_tool(async move {
            let reply = toolbox.call(call).await;
            Python::attach(|py| reply_or_error(py, reply)?.into_py_any(py))
        });
        Ok(called.named(name))
    }

    /// Calls a tool, and waits for its reply.
    #[pyo3(signature = (tool, arguments = None, /, **options))]
    fn call_sync(
        &self,
        py: Python<'_>,
        tool: String,
        arguments: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Reply> {
        let call = call(tool, arguments, options)?;
        // A function on this thread could not be left at its limit.
        let is_limited = self.0.has_timeout || call.options.timeout.is_some() || call.deadline.is_some();
        let wait = if is_limited { runtime::wait_for_run } else { runtime::wait };
        reply_or_error(py, wait(py, self.0.call(call))?)
    }

    /// Reads a resource, and awaits its value.
    fn read(&self, uri: String) -> Awaitable {
        let tools = Arc::clone(&self.0);
        awaited(async move { tools.read_resource(&uri).await.map(|read| read.result_value()) })
            .named("Toolbox.read")
    }

    /// Reads a resource, and waits for its value.
    fn read_sync(&self, py: Python<'_>, uri: &str) -> PyResult<Py<PyAny>> {
        waited(py, async { self.0.read_resource(uri).await.map(|read| read.result_value()) })
    }

    /// Renders a prompt, and awaits its value.
    #[pyo3(signature = (name, arguments = None))]
    fn render(&self, name: String, arguments: Option<&Bound<'_, PyAny>>) -> PyResult<Awaitable> {
        let (tools, arguments) = (Arc::clone(&self.0), object(arguments)?);
        Ok(awaited(async move {
            tools.render_prompt(&name, &arguments).await.map(|prompt| prompt.result_value())
        })
        .named("Toolbox.render"))
    }

    /// Renders a prompt, and waits for its value.
    #[pyo3(signature = (name, arguments = None))]
    fn render_sync(
        &self,
        py: Python<'_>,
        name: &str,
        arguments: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let arguments = object(arguments)?;
        waited(py, async { self.0.render_prompt(name, &arguments).await.map(|prompt| prompt.result_value()) })
    }

    /// Adds the tools of a target: a URL, `stdio:COMMAND`, a path, `command:NAME` or `builtin`.
    #[pyo3(signature = (target, *, token = None, env = None, level = None, calls = Vec::new()))]
    fn connect(
        &self,
        target: String,
        token: Option<String>,
        env: Option<HashMap<String, OsString>>,
        level: Option<&str>,
        calls: Vec<String>,
    ) -> PyResult<Awaitable> {
        let (toolbox, connection) = (self.0.clone(), connection(target, token, env, level, calls)?);
        Ok(awaited(async move { add_target(&toolbox, connection).await }).named("Toolbox.connect"))
    }

    /// Adds the tools of a target, and waits for them.
    #[pyo3(signature = (target, *, token = None, env = None, level = None, calls = Vec::new()))]
    fn connect_sync(
        &self,
        py: Python<'_>,
        target: String,
        token: Option<String>,
        env: Option<HashMap<String, OsString>>,
        level: Option<&str>,
        calls: Vec<String>,
    ) -> PyResult<Py<PyAny>> {
        let connection = connection(target, token, env, level, calls)?;
        waited(py, add_target(&self.0, connection))
    }

    /// Serves the tools over MCP until the client disconnects or the await is cancelled.
    #[pyo3(signature = (**options))]
    fn serve(&self, options: Option<&Bound<'_, PyDict>>) -> PyResult<Awaitable> {
        let (tools, settings) = (Arc::clone(&self.0), Settings::new(options)?);
        let served = async move { settings.serve(Arc::new(tools.toolbox.clone())).await };
        Ok(awaited(served).named("Toolbox.serve"))
    }

    /// Serves the tools over MCP until the client disconnects or a signal ends the program.
    #[pyo3(signature = (**options))]
    fn serve_sync(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let settings = Settings::new(options)?;
        waited(py, settings.serve(Arc::new(self.0.toolbox.clone())))
    }

    /// A document of the tools, by its full name.
    fn state(&self, py: Python<'_>, document: &str) -> PyResult<StateDoc> {
        self.0.state(document).map(StateDoc::new).map_err(|error| errors::to_python(py, &error))
    }

    /// The records of the latest calls, oldest first.
    #[getter]
    fn records<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let records = self.0.records();
        let records: Vec<_> =
            records.iter().map(|record| serde_json::to_value(&**record).unwrap_or_default()).collect();
        convert::to_python(py, &Value::Array(records))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // A running call, a server or an agent needs the functions.
        if Arc::strong_count(&self.0) > 1 {
            return Ok(());
        }
        let Ok(functions) = self.0.functions.try_lock() else { return Ok(()) };
        functions.iter().try_for_each(|(_, function)| Function::traverse(function, &visit))
    }

    fn __clear__(&self) {
        let functions = std::mem::take(&mut *self.0.functions());
        for (name, _) in functions {
            self.0.remove(&name);
        }
    }

    fn __len__(&self) -> usize {
        self.0.specs().len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.0.spec(name).is_some()
    }

    fn __repr__(&self) -> String {
        let names: Vec<String> = self.0.specs().iter().take(20).map(|spec| spec.name.clone()).collect();
        format!("Toolbox({})", names.join(", "))
    }
}

/// The result of a decorator of `toolpost`, whose function the toolbox gets.
fn registered<'py>(
    toolbox: &Bound<'py, Toolbox>,
    decorator: &str,
    arguments: &Bound<'py, PyTuple>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = toolbox.py();
    let decorated = bridge::author(py)?.getattr(decorator)?.call(arguments, options)?;
    bridge::tools(py)?.call_method1(intern!(py, "registered"), (toolbox, decorated))
}

/// Arguments as a JSON object.
fn object(arguments: Option<&Bound<'_, PyAny>>) -> PyResult<Map<String, Value>> {
    match arguments.map_or_else(|| Ok(Value::Object(Map::new())), convert::to_json)? {
        Value::Object(arguments) => Ok(arguments),
        _ => Err(PyTypeError::new_err("the arguments must be a dict")),
    }
}

fn connection(
    target: String,
    token: Option<String>,
    env: Option<HashMap<String, OsString>>,
    level: Option<&str>,
    calls: Vec<String>,
) -> PyResult<Connection> {
    let mut connection = Connection::new(target).calls(calls);
    if let Some(token) = token {
        connection = connection.token(Secret::new(token));
    }
    if let Some(level) = level {
        connection = connection.level(level.parse().map_err(|error| invalid(&error))?);
    }
    for (name, value) in env.into_iter().flatten() {
        connection = connection.env(name, value);
    }
    Ok(connection)
}

/// Passes an event to a function of Python. An exception is printed, as of other callbacks without a caller.
fn emit(function: &Py<PyAny>, event: &Event) {
    exit::attach(|py| {
        let event = convert::to_python(py, &serde_json::to_value(event).unwrap_or_default());
        if let Err(error) = event.and_then(|event| function.call1(py, (event,))) {
            error.write_unraisable(py, Some(function.bind(py)));
        }
    });
}

async fn add_target(toolbox: &toolpost::Toolbox, connection: Connection) -> Result<(), ToolError> {
    Ok(toolbox.add_source(connection.open().await?).await?)
}

fn invalid(error: &impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn reply_or_error(py: Python<'_>, reply: toolpost::call::Reply) -> PyResult<Reply> {
    match reply.result {
        Ok(output) => Ok(Reply::new(output, reply.record)),
        Err(error) => Err(errors::to_python(py, &error)),
    }
}

/// The call of a tool, from arguments and the keyword arguments of its options.
pub(crate) fn call(
    tool: String,
    arguments: Option<&Bound<'_, PyAny>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Call> {
    let arguments = arguments.map_or_else(|| Ok(Value::Object(Map::new())), convert::to_json)?;
    let mut call = Call::new(tool, arguments).with_caller(Caller::new("python"));
    let Some(options) = options else { return Ok(call) };
    let mut callbacks = Callbacks::default();
    for (name, value) in options {
        if value.is_none() {
            continue;
        }
        match name.extract::<&str>()? {
            "timeout" => call.options.timeout = Some(duration("timeout", &value)?),
            "deadline" => call.deadline = Instant::now().checked_add(duration("deadline", &value)?),
            "retries" => call.options.retries = Some(value.extract()?),
            "priority" => call.priority = priority(&value)?,
            "idempotency_key" => call.idempotency_key = Some(value.extract()?),
            "user" => call.caller = call.caller.with_identity(value.extract::<&str>()?),
            "metadata" => match convert::to_json(&value)? {
                Value::Object(metadata) => call.options.metadata = metadata,
                _ => return Err(PyTypeError::new_err("`metadata` must be a dict")),
            },
            "level" => call.options.level = Some(value.extract()?),
            "working_dir" => call.options.working_dir = Some(value.extract()?),
            "no_cache" => call.options.no_cache = value.extract()?,
            "dry_run" => call.options.dry_run = value.extract()?,
            "validate" => call.options.validate = value.extract()?,
            "mock" => call.options.mock = value.extract()?,
            "context" => call.values.provide(AppContext(value.unbind())),
            name if callbacks.set(name, &value)? => {}
            other => {
                return Err(PyTypeError::new_err(format!(
                    "call() got an unexpected keyword argument '{other}'"
                )));
            }
        }
    }
    Ok(match callbacks.into_port() {
        Some(port) => call.with_port(port),
        None => call,
    })
}

fn priority(name: &Bound<'_, PyAny>) -> PyResult<Priority> {
    name.extract::<&str>()?.parse().map_err(PyValueError::new_err)
}

/// Seconds as a duration.
pub(crate) fn duration(name: &str, seconds: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds: f64 = seconds.extract()?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("`{name}` must be a number of seconds, found {seconds}")))
}
