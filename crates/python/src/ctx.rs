//! The context of a call, for its tool.

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use toolpost::port::{LogLine, Progress, Question, SampleRequest};
use toolpost::{Ctx, ToolError};

use crate::awaitable::Awaitable;
use crate::call_forms::{awaited, waited};
use crate::output::ArtifactFields;
use crate::state::StateDoc;
use crate::{bridge, convert, errors};

/// The engine's half of a `toolpost.Ctx`: facts, and requests as in the executable protocol.
#[pyclass(frozen, module = "toolpost._engine")]
pub(crate) struct CallContext(pub(crate) Ctx);

/// An object of the application for tools.
pub(crate) struct AppContext(pub(crate) Py<PyAny>);

/// The context as a `toolpost.Ctx`.
pub(crate) fn to_python<'py>(py: Python<'py>, ctx: &Ctx) -> PyResult<Bound<'py, PyAny>> {
    bridge::tools(py)?.getattr(intern!(py, "Context"))?.call1((CallContext(ctx.clone()),))
}

/// A request of a tool to its caller.
enum HostRequest {
    Ask(Question),
    Sample(SampleRequest),
    Artifact(ArtifactFields),
    Nested(Nested),
}

#[derive(Deserialize)]
struct Nested {
    tool: String,
    arguments: Value,
}

impl HostRequest {
    fn new(verb: &str, mut body: Value) -> PyResult<Self> {
        Ok(match verb {
            "ask" => Self::Ask(decode(body["question"].take())?),
            "sample" => Self::Sample(decode(body["prompt"].take())?),
            "artifact" => Self::Artifact(decode(body["artifact"].take())?),
            "nested" => Self::Nested(decode(body)?),
            _ => return Err(PyValueError::new_err(format!("unknown request `{verb}`"))),
        })
    }

    async fn send(self, ctx: Ctx) -> Result<Value, ToolError> {
        Ok(match self {
            Self::Ask(question) => json!(ctx.ask(question).await?),
            Self::Sample(request) => json!(ctx.sample(request).await?),
            Self::Artifact(artifact) => {
                ctx.artifact(artifact.decode()?).await?;
                Value::Null
            }
            Self::Nested(Nested { tool, arguments }) => output_json(&ctx.call(tool, arguments).await?),
        })
    }
}

fn output_json(output: &toolpost::Output) -> Value {
    json!({ "content": output.content, "structured": output.structured })
}

fn decode<T: DeserializeOwned>(body: Value) -> PyResult<T> {
    serde_json::from_value(body).map_err(|error| PyValueError::new_err(format!("invalid request: {error}")))
}

#[pymethods]
impl CallContext {
    #[getter]
    fn attempt(&self) -> u32 {
        self.0.attempt()
    }

    #[getter]
    fn remaining(&self) -> Option<f64> {
        self.0.remaining().map(|remaining| remaining.as_secs_f64())
    }

    #[getter]
    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// The object that the application gave the call or the run as `context`.
    #[getter]
    fn context(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.inject::<AppContext>().ok().map(|context| context.0.clone_ref(py))
    }

    /// The facts of the call, with the names of the executable protocol.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ctx = &self.0;
        let scope = ctx.scope().map(|scope| json!({ "id": scope.id(), "owner": scope.owner() }));
        let facts = json!({
            "call": ctx.id(), "depth": ctx.depth(), "caller": ctx.caller(), "scope": scope,
            "idempotency_key": ctx.idempotency_key(), "verbose": ctx.is_verbose(), "dry_run": ctx.is_dry_run(),
            "working_dir": ctx.working_dir(), "level": ctx.level(), "metadata": ctx.metadata(),
        });
        convert::to_python(py, &facts)
    }

    fn progress(&self, body: &Bound<'_, PyAny>) -> PyResult<()> {
        let Progress { message, percent, .. } = decode(convert::to_json(body)?)?;
        body.py().detach(|| self.0.progress(message, percent));
        Ok(())
    }

    fn log(&self, body: &Bound<'_, PyAny>) -> PyResult<()> {
        let LogLine { level, message } = decode(convert::to_json(body)?)?;
        body.py().detach(|| self.0.log(level, message));
        Ok(())
    }

    fn request(&self, verb: &str, body: &Bound<'_, PyAny>) -> PyResult<Awaitable> {
        Ok(awaited(HostRequest::new(verb, convert::to_json(body)?)?.send(self.0.clone())))
    }

    fn request_sync(&self, verb: &str, body: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        waited(body.py(), HostRequest::new(verb, convert::to_json(body)?)?.send(self.0.clone()))
    }

    fn state(&self, py: Python<'_>, id: &str) -> PyResult<StateDoc> {
        self.0.state(id).map(StateDoc::new).map_err(|error| errors::to_python(py, &error))
    }
}
