//! The place of a task's result, which an event loop fills.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;

use crate::exit;

/// The result of a task, for the event loop that runs it.
pub(crate) trait Slot: Send + Sync {
    fn is_dropped(&self) -> bool;
    /// The running task. Returns whether the call still wants it.
    fn started(&self, task: Py<PyAny>) -> bool;
    fn end(&self, py: Python<'_>, returned: PyResult<Py<PyAny>>);
}

/// The callback of a task's end.
#[pyclass(frozen)]
pub(crate) struct Ended(Arc<dyn Slot>);

impl Ended {
    pub(crate) fn watch(task: &Bound<'_, PyAny>, slot: &Arc<dyn Slot>) -> PyResult<()> {
        let py = task.py();
        task.call_method1(intern!(py, "add_done_callback"), (Self(Arc::clone(slot)),))?;
        if !slot.started(task.clone().unbind()) {
            task.call_method0(intern!(py, "cancel"))?;
        }
        Ok(())
    }
}

#[pymethods]
impl Ended {
    fn __call__(&self, task: &Bound<'_, PyAny>) {
        exit::attach(|py| self.0.end(py, task.call_method0(intern!(py, "result")).map(Bound::unbind)));
    }
}
