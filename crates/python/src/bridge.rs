//! Modules and functions of Python that the engine uses, each imported once.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

fn module<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyModule>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyModule>> {
    Ok(cell.get_or_try_init(py, || py.import(name).map(Bound::unbind))?.bind(py))
}

/// `toolpost.author`: schemas, conversions, exceptions.
pub(crate) fn author(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    module(py, &MODULE, "toolpost.author")
}

/// `toolpost._tools`: tools and contexts.
pub(crate) fn tools(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    module(py, &MODULE, "toolpost._tools")
}

/// `toolpost._bridge`: event loops. It imports asyncio.
pub(crate) fn helpers(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    module(py, &MODULE, "toolpost._bridge")
}

/// `toolpost.agent`: the exception of runs.
pub(crate) fn agent(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    module(py, &MODULE, "toolpost.agent")
}

/// `toolpost._answers`: the types of answers.
pub(crate) fn answers(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    module(py, &MODULE, "toolpost._answers")
}

/// `toolpost.flow`: the steps of plans.
pub(crate) fn flow(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    module(py, &MODULE, "toolpost.flow")
}

/// `toolpost._notebook`: what notebooks show.
pub(crate) fn notebook(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    module(py, &MODULE, "toolpost._notebook")
}

/// `Class[item]`, whose call creates an instance of the class.
pub(crate) fn generic_alias<'py>(
    class: &Bound<'py, PyType>,
    item: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(class.py(), "types", "GenericAlias")?.call1((class, item))
}

/// Whether an object is a coroutine.
pub(crate) fn is_coroutine(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FUNCTION.import(object.py(), "asyncio", "iscoroutine")?.call1((object,))?.extract()
}

/// Whether a function is async.
pub(crate) fn is_async(function: &Bound<'_, PyAny>) -> PyResult<bool> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FUNCTION.import(function.py(), "inspect", "iscoroutinefunction")?.call1((function,))?.extract()
}

/// `contextvars.copy_context()`.
pub(crate) fn copy_context(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FUNCTION.import(py, "contextvars", "copy_context")?.call0()
}

/// The running event loop of this thread.
///
/// # Errors
/// `RuntimeError` if there is none.
pub(crate) fn running_loop(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static FUNCTION: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    FUNCTION.import(py, "asyncio", "get_running_loop")?.call0().map_err(|_| {
        PyRuntimeError::new_err(
            "no asyncio event loop runs in this thread; use the form with `_sync` instead",
        )
    })
}

/// `asyncio.CancelledError`.
pub(crate) fn cancelled_error(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "asyncio", "CancelledError")
}
