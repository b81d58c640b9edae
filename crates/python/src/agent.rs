//! Agents of Python.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyString, PyTuple, PyType};
use serde_json::{Value, json};
use toolpost::agent::{AgentBuilder, Dynamic, Run};
use toolpost::llm::{Effort, HostedTool, ModelSettings};
use toolpost::{Tool, ToolSpec};

use crate::answer::AnswerType;
use crate::awaitable::Awaitable;
use crate::conversation::Conversation;
use crate::ctx::CallContext;
use crate::detached::Detached;
use crate::model::model_of;
use crate::port::{Callback, Callbacks, function};
use crate::run::{RunEvents, Started, with_options};
use crate::toolbox::{Toolbox, duration};
use crate::{bridge, convert, hooks, runtime};

/// A model with tools. It is immutable, and can run many times at once.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct Agent {
    engine: Detached<toolpost::Agent>,
    name: Option<String>,
    description: Option<String>,
    answer: Option<Arc<AnswerType>>,
    approve: Option<Py<PyAny>>,
    on_event: Option<Arc<Callback>>,
    /// The toolbox, and the toolboxes and agents among its tools.
    parts: Vec<Py<PyAny>>,
}

#[pymethods]
impl Agent {
    #[new]
    #[pyo3(signature = (
        model, *, tools = None, system = None, answer = None, validate = None, max_repairs = None, max_iterations = None, max_tool_calls = None,
        max_tokens = None, max_cost_usd = None, max_time = None, max_parallel_tools = None, temperature = None,
        effort = None, max_output_tokens = None, hosted_tools = None, dynamic = None, core_tools = None,
        tool_timeout = None, approve = None, name = None, description = None, on_event = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        model: &Bound<'_, PyAny>,
        tools: Option<&Bound<'_, PyAny>>,
        system: Option<&Bound<'_, PyAny>>,
        answer: Option<&Bound<'_, PyAny>>,
        validate: Option<&Bound<'_, PyAny>>,
        max_repairs: Option<u32>,
        max_iterations: Option<u32>,
        max_tool_calls: Option<u32>,
        max_tokens: Option<u64>,
        max_cost_usd: Option<f64>,
        max_time: Option<&Bound<'_, PyAny>>,
        max_parallel_tools: Option<usize>,
        temperature: Option<f64>,
        effort: Option<&str>,
        max_output_tokens: Option<u32>,
        hosted_tools: Option<&Bound<'_, PyAny>>,
        dynamic: Option<&Bound<'_, PyAny>>,
        core_tools: Option<Vec<String>>,
        tool_timeout: Option<&Bound<'_, PyAny>>,
        approve: Option<Bound<'_, PyAny>>,
        name: Option<String>,
        description: Option<String>,
        on_event: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = model.py();
        let (toolbox, parts) = toolbox_of(py, tools)?;
        // An answer of the type `str` is the text.
        let answer = answer.filter(|answer| !answer.is(py.get_type::<PyString>()));
        let answer = answer.map(AnswerType::new).transpose()?.map(Arc::new);
        if let Some(approve) = &approve {
            Callbacks::default().set("approve", approve)?;
        }
        let effort = effort.map(effort_of).transpose()?;
        let settings = ModelSettings { temperature, effort, max_output_tokens, ..ModelSettings::default() };
        let builder = toolpost::Agent::builder(model_of(model)?, toolbox).settings(settings);
        let set = [
            system.map(system_of).transpose()?,
            validate.map(|function| validator_of(function, answer.clone())).transpose()?,
            max_repairs.map(|limit| set(move |agent| agent.max_repairs(limit))),
            answer.clone().map(|answer| set(move |agent| answer.require(agent))),
            hosted_tools.map(hosted_of).transpose()?,
            dynamic.map(dynamic_of).transpose()?,
            core_tools.map(|names| set(move |agent| agent.core_tools(names))),
            max_iterations.map(|limit| set(move |agent| agent.max_iterations(limit))),
            max_tool_calls.map(|limit| set(move |agent| agent.max_tool_calls(limit))),
            max_tokens.map(|limit| set(move |agent| agent.max_tokens(limit))),
            max_cost_usd.map(|limit| set(move |agent| agent.max_cost_usd(limit))),
            max_parallel_tools.map(|limit| set(move |agent| agent.max_parallel_tools(limit))),
            seconds("max_time", max_time)?.map(|limit| set(move |agent| agent.max_time(limit))),
            seconds("tool_timeout", tool_timeout)?.map(|limit| set(move |agent| agent.tool_timeout(limit))),
        ];
        let builder = set.into_iter().flatten().fold(builder, |builder, set| set(builder));
        Ok(Self {
            engine: Detached::new(builder.build()),
            name,
            description,
            answer,
            approve: approve.map(Bound::unbind),
            on_event: on_event.map(|function| Arc::new(Callback::new(function))),
            parts,
        })
    }

    /// Runs the agent on a prompt, and awaits the result.
    #[pyo3(signature = (prompt, *, conversation = None, **options))]
    fn run(
        slf: &Bound<'_, Self>,
        prompt: &str,
        conversation: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Awaitable> {
        let run = Awaitable::of_run(start(slf, prompt, conversation, options)?.finish());
        Ok(match &slf.get().name {
            Some(name) => run.named(format!("Agent.run of {name:?}")),
            None => run.named("Agent.run"),
        })
    }

    /// Runs the agent on a prompt, and waits for the result.
    #[pyo3(signature = (prompt, *, conversation = None, **options))]
    fn run_sync(
        slf: &Bound<'_, Self>,
        prompt: &str,
        conversation: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        runtime::wait(slf.py(), start(slf, prompt, conversation, options)?.finish())?
    }

    /// Runs the agent on a prompt while its events are read.
    #[pyo3(signature = (prompt, *, conversation = None, **options))]
    fn stream(
        slf: &Bound<'_, Self>,
        prompt: &str,
        conversation: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<RunEvents> {
        Ok(RunEvents::new(start(slf, prompt, conversation, options)?))
    }

    /// Returns the same agent with another model.
    fn with_model(&self, py: Python<'_>, model: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            engine: Detached::new(self.engine.with_model(model_of(model)?)),
            name: self.name.clone(),
            description: self.description.clone(),
            answer: self.answer.clone(),
            approve: self.approve.as_ref().map(|approve| approve.clone_ref(py)),
            on_event: self.on_event.clone(),
            parts: self.parts.iter().map(|part| part.clone_ref(py)).collect(),
        })
    }

    /// `Agent[Answer]`, for type checkers.
    #[classmethod]
    fn __class_getitem__<'py>(
        class: &Bound<'py, PyType>,
        item: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        bridge::generic_alias(class, item)
    }

    /// The name as a tool of another agent.
    #[getter]
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The description as a tool of another agent.
    #[getter]
    fn description(&self) -> Option<&str> {
        self.description.as_deref()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.parts.iter().chain(&self.approve).try_for_each(|part| visit.call(part))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", *self.engine)
    }
}

impl Agent {
    fn as_tool(&self) -> PyResult<Arc<dyn Tool>> {
        match (&self.name, &self.description) {
            (Some(name), Some(description)) => {
                Ok(Arc::new(self.engine.as_tool(ToolSpec::new(name.as_str(), description.as_str()))))
            }
            _ => Err(PyValueError::new_err(
                "an agent among `tools` needs a name and a description; set `name` and `description`",
            )),
        }
    }
}

/// One setting of a builder.
type Set = Box<dyn FnOnce(AgentBuilder) -> AgentBuilder>;

fn set(set: impl FnOnce(AgentBuilder) -> AgentBuilder + 'static) -> Set {
    Box::new(set)
}

/// The system prompt: a text, or a function of the context.
fn system_of(system: &Bound<'_, PyAny>) -> PyResult<Set> {
    if let Ok(text) = system.extract::<String>() {
        return Ok(set(move |agent| agent.system(text)));
    }
    let system = hooks::system(function("system", system)?);
    Ok(set(move |agent| agent.dynamic_system(system)))
}

fn validator_of(validate: &Bound<'_, PyAny>, answer: Option<Arc<AnswerType>>) -> PyResult<Set> {
    let validator = hooks::validator(function("validate", validate)?, answer);
    Ok(set(move |agent| agent.validate_answer(validator)))
}

fn seconds(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<std::time::Duration>> {
    value.map(|seconds| duration(name, seconds)).transpose()
}

/// Tools that the provider runs: their names, or dicts of a name and its options.
fn hosted_of(tools: &Bound<'_, PyAny>) -> PyResult<Set> {
    let tools: Vec<HostedTool> = tools
        .try_iter()?
        .map(|tool| {
            let tool = match convert::to_json(&tool?)? {
                Value::String(name) => json!({ name: {} }),
                options => options,
            };
            serde_json::from_value(tool).map_err(|error| {
                PyValueError::new_err(format!("`hosted_tools` has an invalid tool: {error}"))
            })
        })
        .collect::<PyResult<_>>()?;
    Ok(set(move |agent| agent.hosted_tools(tools)))
}

/// The search for tools that are loaded on demand.
fn dynamic_of(how: &Bound<'_, PyAny>) -> PyResult<Set> {
    let dynamic = match how.extract::<&str>() {
        Ok("native") => Dynamic::Native,
        Ok("browse") => Dynamic::Browse,
        _ if how.is_instance_of::<PyBool>() => how.extract::<bool>()?.into(),
        _ => Dynamic::Find(model_of(how)?),
    };
    Ok(set(move |agent| agent.dynamic(dynamic)))
}

fn effort_of(name: &str) -> PyResult<Effort> {
    Effort::ALL.iter().copied().find(|effort| effort.as_str() == name).ok_or_else(|| {
        let names: Vec<_> = Effort::ALL.iter().map(|effort| effort.as_str()).collect();
        PyValueError::new_err(format!("`effort` must be one of {}; found {name}", names.join(", ")))
    })
}

/// The toolbox of an agent, and its parts.
///
/// A single `Toolbox` is used itself. Among other tools, its tools keep their definitions, and calls go through it.
fn toolbox_of(
    py: Python<'_>,
    tools: Option<&Bound<'_, PyAny>>,
) -> PyResult<(toolpost::Toolbox, Vec<Py<PyAny>>)> {
    let (mut agents, mut others) = (Vec::new(), Vec::new());
    match tools {
        None => {}
        Some(tools) if tools.is_instance_of::<Toolbox>() => others.push(tools.clone()),
        Some(tools) => {
            for item in tools.try_iter()? {
                let item = item?;
                if let Ok(agent) = item.cast::<Agent>() {
                    agents.push(agent.clone().unbind());
                } else {
                    others.push(item);
                }
            }
        }
    }
    if let ([only], true) = (others.as_slice(), agents.is_empty())
        && let Ok(toolbox) = only.cast::<Toolbox>()
    {
        return Ok((toolpost::Toolbox::clone(&toolbox.get().0.toolbox), vec![only.clone().unbind()]));
    }
    let own = Toolbox::of_functions(&PyTuple::new(py, others)?)?;
    let toolbox = toolpost::Toolbox::clone(&own.0.toolbox);
    let invalid = |error: toolpost::spec::SpecError| PyValueError::new_err(error.to_string());
    for agent in &agents {
        toolbox.add(agent.get().as_tool()?).map_err(invalid)?;
    }
    let own = Py::new(py, own)?.into_any();
    Ok((toolbox, std::iter::once(own).chain(agents.into_iter().map(Py::into_any)).collect()))
}

/// The run of a tool that has a context: the caller of the tool decides and limits.
fn within_call(run: Run, parent: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<Run> {
    let call = parent.getattr_opt(intern!(parent.py(), "_call"))?;
    let Some(Ok(call)) = call.as_ref().map(|call| call.cast::<CallContext>()) else {
        return Err(PyTypeError::new_err(format!(
            "`parent` must be the Ctx of a running tool, found {}",
            parent.get_type().name()?
        )));
    };
    let own = PyDict::new(parent.py());
    for (name, value) in options {
        match name.extract::<&str>()? {
            "parent" => {}
            "context" => own.set_item(name, value)?,
            other => {
                return Err(PyTypeError::new_err(format!(
                    "`{other}` has no effect beside `parent`: the caller of the tool decides"
                )));
            }
        }
    }
    Ok(with_options(run, &own)?.within_call(&call.get().0))
}

/// A run of a prompt with the options of the caller.
fn start(
    agent: &Bound<'_, Agent>,
    prompt: &str,
    conversation: Option<&Bound<'_, PyAny>>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Started> {
    let (py, own) = (agent.py(), agent.get());
    let options = options.map(PyDictMethods::copy).transpose()?;
    let options = options.unwrap_or_else(|| PyDict::new(py));
    let parent = options.get_item("parent")?.filter(|parent| !parent.is_none());
    let run = match conversation {
        Some(conversation) => Conversation::from_argument(conversation)?.run(&own.engine, prompt),
        None => own.engine.run(prompt),
    };
    if parent.is_none() && options.contains("parent")? {
        options.del_item("parent")?;
    }
    let run = match parent {
        Some(parent) => within_call(run, &parent, &options)?,
        None => {
            if let (Some(approve), false) = (&own.approve, options.contains("approve")?) {
                options.set_item("approve", approve)?;
            }
            with_options(run, &options)?
        }
    };
    Ok(Started {
        run,
        answer: own.answer.clone(),
        on_event: own.on_event.clone(),
        agent: agent.clone().into_any().unbind(),
    })
}
