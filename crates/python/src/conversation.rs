//! The conversation of a run, for the next one.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use toolpost::agent::{Run, RunOutput};
use toolpost::llm::{AssistantTurn, ItemView, Part, ToolResult, Turn};

use crate::convert;
use crate::run::RunResult;

/// The messages so far, for the next run: `agent.run(prompt, conversation=result.conversation)`.
///
/// It has everything that providers sent, so a run with the same provider continues without a loss.
#[pyclass(frozen, module = "toolpost")]
#[derive(Clone)]
pub(crate) struct Conversation(Arc<Past>);

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Past {
    turns: Vec<Turn>,
    /// Provider state beyond the turns, by provider name, such as the id of a code container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    provider_state: BTreeMap<String, Map<String, Value>>,
}

impl Conversation {
    pub(crate) fn new(output: &RunOutput) -> Self {
        let (turns, provider_state) = (output.turns.clone(), output.provider_state.clone());
        Self(Arc::new(Past { turns, provider_state }))
    }

    /// The conversation of an argument: a `Conversation`, or the result of a run.
    ///
    /// # Errors
    /// `TypeError` for anything else.
    pub(crate) fn from_argument(argument: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(conversation) = argument.cast::<Self>() {
            return Ok(conversation.get().clone());
        }
        if let Ok(result) = argument.cast::<RunResult>() {
            return Ok(result.get().conversation());
        }
        Err(PyTypeError::new_err(format!(
            "`conversation` must be a Conversation, found {}; use `result.conversation`",
            argument.get_type().name()?
        )))
    }

    /// The run of a prompt that continues the conversation.
    pub(crate) fn run(self, agent: &toolpost::Agent, prompt: &str) -> Run {
        let Past { mut turns, provider_state } = Arc::unwrap_or_clone(self.0);
        turns.push(Turn::user(prompt));
        agent.run_turns(turns).with_provider_state(provider_state)
    }
}

#[pymethods]
impl Conversation {
    /// The messages as dicts with `role` and `text`. An assistant's has `calls`, a tool's `tool`, `value` and `is_error`.
    ///
    /// It is a view: `to_json` has everything.
    #[getter]
    fn messages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        messages(py, &self.0.turns)
    }

    /// The whole conversation as JSON, to store it.
    fn to_json(&self) -> PyResult<String> {
        serde_json::to_string(&*self.0).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// A conversation from its JSON.
    #[staticmethod]
    fn from_json(text: &str) -> PyResult<Self> {
        let past = serde_json::from_str(text);
        past.map(|past| Self(Arc::new(past)))
            .map_err(|error| PyValueError::new_err(format!("the text is not a stored conversation: {error}")))
    }

    fn __len__(&self) -> usize {
        self.0.turns.len()
    }

    fn __repr__(&self) -> String {
        format!("Conversation({} turns)", self.0.turns.len())
    }
}

/// The messages of turns.
pub(crate) fn messages<'py>(py: Python<'py>, turns: &[Turn]) -> PyResult<Bound<'py, PyList>> {
    let messages = PyList::empty(py);
    for turn in turns {
        match turn {
            Turn::User(parts) => messages.append(message(py, "user", &text_of(parts))?)?,
            Turn::System(parts) => messages.append(message(py, "system", &text_of(parts))?)?,
            Turn::Assistant(turn) => messages.append(assistant(py, turn)?)?,
            Turn::ToolResults(results) => {
                for result in results {
                    messages.append(tool_result(py, result)?)?;
                }
            }
            _ => {}
        }
    }
    Ok(messages)
}

fn message<'py>(py: Python<'py>, role: &str, text: &str) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item(intern!(py, "role"), role)?;
    dict.set_item(intern!(py, "text"), text)?;
    Ok(dict)
}

fn assistant<'py>(py: Python<'py>, turn: &AssistantTurn) -> PyResult<Bound<'py, PyDict>> {
    let (mut text, calls) = (String::new(), PyList::empty(py));
    for item in &turn.items {
        match item.view() {
            ItemView::Text { text: part, .. } => text.push_str(part),
            ItemView::ToolCall { id, name, arguments } => {
                let call = PyDict::new(py);
                call.set_item(intern!(py, "id"), id)?;
                call.set_item(intern!(py, "tool"), name)?;
                let arguments = match arguments {
                    Ok(raw) => raw.to_value().unwrap_or_default(),
                    Err(invalid) => Value::String(invalid.clone()),
                };
                call.set_item(intern!(py, "args"), convert::to_python(py, &arguments)?)?;
                calls.append(call)?;
            }
            _ => {}
        }
    }
    let message = message(py, "assistant", &text)?;
    message.set_item(intern!(py, "calls"), calls)?;
    Ok(message)
}

fn tool_result<'py>(py: Python<'py>, result: &ToolResult) -> PyResult<Bound<'py, PyDict>> {
    let message = message(py, "tool", &result.joined_text())?;
    message.set_item(intern!(py, "tool"), &result.name)?;
    message.set_item(intern!(py, "call_id"), &result.call_id)?;
    let value = result.structured.as_ref().map(|value| convert::to_python(py, value)).transpose()?;
    message.set_item(intern!(py, "value"), value)?;
    message.set_item(intern!(py, "is_error"), result.is_error)?;
    Ok(message)
}

/// The text parts, joined by line breaks.
fn text_of(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
