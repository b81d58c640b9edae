//! Documents of a toolbox.

use pyo3::prelude::*;
use serde_json::{Value, json};
use toolpost::ToolError;

use crate::awaitable::Awaitable;
use crate::call_forms::{awaited, waited};
use crate::detached::Detached;
use crate::driver::Driver;
use crate::{convert, errors};

/// One document of a store: read it, change it, inspect its history. Each change commits immediately.
#[pyclass(frozen, module = "toolpost")]
pub(crate) struct StateDoc(Detached<toolpost::state::StateDoc>);

impl StateDoc {
    pub(crate) fn new(document: toolpost::state::StateDoc) -> Self {
        Self(Detached::new(document))
    }
}

async fn get(document: toolpost::state::StateDoc) -> Result<Value, ToolError> {
    Ok(Value::clone(&*document.state().await?))
}

async fn update(document: toolpost::state::StateDoc, function: Py<PyAny>) -> Result<Value, ToolError> {
    let change = |value: &mut Value| {
        Python::attach(|py| {
            let changed = convert::to_python(py, value)
                .and_then(|current| function.call1(py, (current,)))
                .and_then(|changed| convert::to_json(changed.bind(py)));
            changed
                .map(|changed| value.clone_from(&changed))
                .map_err(|error| errors::from_raised(py, error, Driver::current().as_deref()))?;
            Ok(value.clone())
        })
    };
    Ok(document.change(change).await.map(|(value, _)| value)?)
}

async fn log(document: toolpost::state::StateDoc, after: u64, limit: usize) -> Result<Value, ToolError> {
    let changes = document.log(after, limit).await?;
    let to_json = |change: &toolpost::state::Change| json!({ "version": change.version, "at": change.at, "call": change.call, "patch": change.patch });
    Ok(changes.iter().map(to_json).collect())
}

async fn at(document: toolpost::state::StateDoc, version: u64) -> Result<Value, ToolError> {
    Ok(Value::clone(&document.at(version).await?.value))
}

#[pymethods]
impl StateDoc {
    /// The document's id.
    #[getter]
    fn id(&self) -> &str {
        self.0.id()
    }

    /// The latest value; None before the first commit.
    fn get(&self) -> Awaitable {
        awaited(get(self.0.clone())).named("StateDoc.get")
    }

    fn get_sync(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        waited(py, get(self.0.clone()))
    }

    /// The number of commits.
    fn version(&self) -> Awaitable {
        let document = self.0.clone();
        awaited(async move { document.version().await }).named("StateDoc.version")
    }

    fn version_sync(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        waited(py, self.0.version())
    }

    /// Replaces the value, and returns the new version.
    fn set(&self, value: &Bound<'_, PyAny>) -> PyResult<Awaitable> {
        let (document, value) = (self.0.clone(), convert::to_json(value)?);
        Ok(awaited(async move { document.replace(&value).await }).named("StateDoc.set"))
    }

    fn set_sync(&self, value: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let json = convert::to_json(value)?;
        waited(value.py(), self.0.replace(&json))
    }

    /// Replaces the value with the result of a function of it. After a conflict, the function runs again.
    fn update(&self, function: Py<PyAny>) -> Awaitable {
        awaited(update(self.0.clone(), function)).named("StateDoc.update")
    }

    fn update_sync(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<Py<PyAny>> {
        waited(py, update(self.0.clone(), function))
    }

    /// The value at a version, from 1.
    fn at(&self, version: u64) -> Awaitable {
        awaited(at(self.0.clone(), version)).named("StateDoc.at")
    }

    fn at_sync(&self, py: Python<'_>, version: u64) -> PyResult<Py<PyAny>> {
        waited(py, at(self.0.clone(), version))
    }

    /// The changes after a version, oldest first.
    #[pyo3(signature = (after = 0, limit = 100))]
    fn log(&self, after: u64, limit: usize) -> Awaitable {
        awaited(log(self.0.clone(), after, limit)).named("StateDoc.log")
    }

    #[pyo3(signature = (after = 0, limit = 100))]
    fn log_sync(&self, py: Python<'_>, after: u64, limit: usize) -> PyResult<Py<PyAny>> {
        waited(py, log(self.0.clone(), after, limit))
    }

    fn __repr__(&self) -> String {
        format!("StateDoc({:?})", self.0.id())
    }
}
