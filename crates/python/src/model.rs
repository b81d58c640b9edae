//! Models: hosted ones by name, scripts, recordings.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use serde_json::Value;
use toolpost::call::Secret;
use toolpost::llm::{self, ErrorKind, ModelError, ProviderAccess};

use crate::conversation::messages;
use crate::convert;
use crate::driver::Driver;
use crate::toolbox::duration;

/// A model by its name, such as `anthropic/claude-sonnet-5-5`, `script:FILE` or `replay:FILE`.
///
/// The API key and the base URL come from the environment, as `ANTHROPIC_API_KEY` and `ANTHROPIC_BASE_URL`.
#[pyclass(frozen, subclass, module = "toolpost")]
pub(crate) struct Model(Arc<dyn llm::Model>);

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (name, *, api_key = None, base_url = None, timeout = None, max_retries = None))]
    fn new(
        name: &str,
        api_key: Option<String>,
        base_url: Option<String>,
        timeout: Option<&Bound<'_, PyAny>>,
        max_retries: Option<u32>,
    ) -> PyResult<Self> {
        let access = ProviderAccess { key: api_key.map(Secret::new), base_url, ..ProviderAccess::default() };
        let timeout = timeout.map(|seconds| duration("timeout", seconds)).transpose()?;
        let model = llm::with_access(name, &access, |mut http| {
            http.total_timeout = timeout.unwrap_or(http.total_timeout);
            http.retry.max_retries = max_retries.unwrap_or(http.retry.max_retries);
            http
        });
        model.map(Self).map_err(|error| invalid(&error))
    }

    /// The provider and its name of the model.
    #[getter]
    fn name(&self) -> String {
        self.0.id().to_string()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        Ok(format!("{}({})", slf.get_type().name()?, slf.get().0.id()))
    }
}

/// The model of an argument: a name or a `Model`.
pub(crate) fn model_of(model: &Bound<'_, PyAny>) -> PyResult<Arc<dyn llm::Model>> {
    if let Ok(model) = model.cast::<Model>() {
        return Ok(Arc::clone(&model.get().0));
    }
    match model.extract::<&str>() {
        Ok(name) => Ok(Model::new(name, None, None, None, None)?.0),
        Err(_) => Err(PyTypeError::new_err(format!(
            "`model` must be a name such as \"anthropic/claude-sonnet-5-5\" or a Model, found {}",
            model.get_type().name()?
        ))),
    }
}

fn invalid(error: &ModelError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A model that plays turns instead of asking a provider, for tests.
///
/// A turn is a string, or a dict as in a script file: `text`, `calls`, `expect`, `stop`, `usage`. Instead of a list, a
/// function may return the next turn for the messages so far.
#[pyclass(frozen, extends = Model, module = "toolpost")]
pub(crate) struct ScriptModel;

#[pymethods]
impl ScriptModel {
    #[new]
    #[pyo3(signature = (turns, *, name = "script"))]
    fn new(turns: &Bound<'_, PyAny>, name: &str) -> PyResult<PyClassInitializer<Self>> {
        let model = if turns.is_callable() {
            let function = turns.clone().unbind();
            llm::ScriptModel::from_fn(name, move |request| turn(&function, &request.turns))
        } else {
            let turns =
                turns.try_iter()?.map(|turn| convert::to_json(&turn?)).collect::<PyResult<Vec<_>>>()?;
            llm::ScriptModel::from_turns(name, turns).map_err(|error| invalid(&error))?
        };
        Ok(PyClassInitializer::from(Model(Arc::new(model))).add_subclass(Self))
    }
}

/// The next turn from a function. Its exception ends the run, and reaches the caller unchanged.
fn turn(function: &Py<PyAny>, turns: &[llm::Turn]) -> Result<Value, ModelError> {
    Python::attach(|py| {
        let called = messages(py, turns).and_then(|messages| function.bind(py).call1((messages,)));
        called.and_then(|turn| convert::to_json(&turn)).map_err(|error| {
            let failed =
                ModelError::new(ErrorKind::Script, format!("the function of the script failed: {error}"));
            if let Some(driver) = Driver::current() {
                driver.end_with(error);
            }
            failed
        })
    })
}

/// A model that records its exchanges in a new file, for `replay:FILE`. API keys are masked.
#[pyclass(frozen, extends = Model, module = "toolpost")]
pub(crate) struct RecordingModel;

#[pymethods]
impl RecordingModel {
    #[new]
    fn new(model: &Bound<'_, PyAny>, file: PathBuf) -> PyResult<PyClassInitializer<Self>> {
        let model = model_of(model)?;
        // Conversations are private.
        let created = File::options().write(true).create_new(true).mode(0o600).open(&file);
        let writer = created.map_err(|error| {
            PyOSError::new_err((error.raw_os_error(), format!("cannot create the recording: {error}"), file))
        })?;
        let recorder = llm::Recorder::new(model, writer, llm::keys_from_env());
        Ok(PyClassInitializer::from(Model(Arc::new(recorder))).add_subclass(Self))
    }
}
