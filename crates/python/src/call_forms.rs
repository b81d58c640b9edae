//! The two forms of every call: `name` is awaited, `name_sync` waits.

use std::future::Future;

use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use serde_json::Value;
use toolpost::ToolError;

use crate::awaitable::Awaitable;
use crate::{convert, errors, runtime};

/// The result of a call as a Python object.
pub(crate) trait IntoPython: Send {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

impl IntoPython for () {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(py.None())
    }
}

impl IntoPython for u64 {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.into_py_any(py)
    }
}

impl IntoPython for Value {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        convert::to_python(py, &self).map(Bound::unbind)
    }
}

/// The form that an event loop awaits.
pub(crate) fn awaited<T: IntoPython, E: Into<ToolError>>(
    future: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Awaitable {
    Awaitable::of_tool(async move { finish(future.await) })
}

/// The form that a thread waits for.
pub(crate) fn waited<T: IntoPython, E: Into<ToolError> + Send>(
    py: Python<'_>,
    future: impl Future<Output = Result<T, E>> + Send,
) -> PyResult<Py<PyAny>> {
    finish(runtime::wait(py, future)?)
}

fn finish<T: IntoPython, E: Into<ToolError>>(result: Result<T, E>) -> PyResult<Py<PyAny>> {
    Python::attach(|py| match result {
        Ok(value) => value.into_python(py),
        Err(error) => Err(errors::to_python(py, &error.into())),
    })
}
