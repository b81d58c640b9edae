//! Errors of calls as exceptions, and exceptions as errors of calls.

use std::error::Error;
use std::fmt;

use pyo3::exceptions::{PyBaseException, PyException, PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;
use serde_json::Value;
use toolpost::ToolError;
use toolpost::error::{Code, RetryAdvice};

use crate::driver::Driver;
use crate::{bridge, convert, exit, hints};

/// An exception as the cause of an error.
struct Raised(PyErr);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Error for Raised {}

/// Whether an exception ends the outermost call instead of a tool: all that are not `Exception`.
pub(crate) fn is_fatal(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py)
        || error.is_instance_of::<PyKeyboardInterrupt>(py)
        || error.is_instance_of::<PySystemExit>(py)
}

/// The exception of a tool or a callback as the error of a call. A fatal one ends the outermost call.
pub(crate) fn from_raised(py: Python<'_>, error: PyErr, driver: Option<&Driver>) -> ToolError {
    match driver {
        Some(driver) if is_fatal(py, &error) => {
            let cancelled = ToolError::cancelled(error.to_string());
            driver.end_with(error);
            cancelled
        }
        _ => from_python(py, error),
    }
}

/// The exception of a tool as the error of its call. `toolpost.ToolError` keeps its code; any other one is `INTERNAL`.
pub(crate) fn from_python(py: Python<'_>, error: PyErr) -> ToolError {
    let value = error.value(py);
    let known = bridge::author(py).and_then(|author| author.getattr("ToolError"));
    if known.is_ok_and(|class| value.is_instance(&class).unwrap_or(false)) {
        let fields = value.call_method0("to_dict").and_then(|fields| convert::to_json(&fields));
        if let Ok(fields) = fields
            && let Ok(converted) = serde_json::from_value::<ToolError>(fields)
        {
            return converted.caused_by(Raised(error));
        }
    }
    ToolError::internal(error.to_string()).retry(RetryAdvice::Never).caused_by(Raised(error))
}

/// The error of a call as `toolpost.ToolError`. An exception of a Python tool is its `__cause__`.
pub(crate) fn to_python(py: Python<'_>, error: &ToolError) -> PyErr {
    let raised = error.cause().and_then(|cause| cause.downcast_ref::<Raised>());
    let built = || -> PyResult<PyErr> {
        let mut fields = serde_json::to_value(error).unwrap_or(Value::Null);
        if error.code() == Code::Internal && raised.is_none() {
            fields["causes"] = error.causes().into();
        }
        fields["suggestion"] = hints::of_error(error).into();
        let fields = convert::to_python(py, &fields)?;
        let class = bridge::author(py)?.getattr("ToolError")?;
        let exception = PyErr::from_value(class.call_method1("from_dict", (fields,))?);
        if let Some(raised) = raised {
            exception.set_cause(py, Some(raised.0.clone_ref(py)));
        }
        Ok(exception)
    };
    // An exception of this very class passes unchanged, with its traceback.
    if let Some(raised) = raised
        && error.code() != Code::Internal
    {
        return raised.0.clone_ref(py);
    }
    built().unwrap_or_else(|failure| failure)
}

/// An exception with its traceback, which it lacks before Python 3.12 until it is raised.
fn with_traceback(py: Python<'_>, error: &PyErr) -> Py<PyBaseException> {
    error.clone_ref(py).into_value(py)
}

/// Reports an unexpected exception of a tool in a run of an agent. Under the pytest plugin, it ends the run.
pub(crate) fn report_bug(tool: &str, error: &ToolError, driver: Option<&Driver>) {
    let Some(raised) = error.cause().and_then(|cause| cause.downcast_ref::<Raised>()) else { return };
    exit::attach(|py| {
        let reported = bridge::tools(py)
            .and_then(|helpers| helpers.call_method1("report_bug", (tool, with_traceback(py, &raised.0))))
            .and_then(|ends| ends.is_truthy());
        match (reported, driver) {
            (Ok(true), Some(driver)) => driver.end_with(raised.0.clone_ref(py)),
            (Ok(_), _) => {}
            (Err(failure), _) => failure.write_unraisable(py, None),
        }
    });
}

/// Logs an error of a served tool, with the traceback of its exception.
pub(crate) fn log(tool: &str, error: &ToolError) {
    exit::attach(|py| {
        let raised = error.cause().and_then(|cause| cause.downcast_ref::<Raised>());
        let exception = raised.map(|raised| with_traceback(py, &raised.0));
        let logged = bridge::tools(py)
            .and_then(|helpers| helpers.call_method1("log_failure", (tool, error.to_string(), exception)));
        if let Err(failure) = logged {
            failure.write_unraisable(py, None);
        }
    });
}
