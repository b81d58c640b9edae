//! Functions of the application that take part in runs: system prompts and checks of answers.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use serde_json::Value;
use toolpost::ToolError;
use toolpost::agent::{AnswerValidator, SystemPrompt};
use toolpost::call::Values;

use crate::answer::AnswerType;
use crate::ctx::AppContext;
use crate::driver::Driver;
use crate::port::Callback;
use crate::{bridge, convert, errors};

/// The context of a run: a `toolpost.Ctx` without a call.
fn context(py: Python<'_>, values: &Values) -> PyResult<Py<PyAny>> {
    let context = values.get::<AppContext>().map(|context| context.0.clone_ref(py));
    bridge::answers(py)?.getattr(intern!(py, "run_context"))?.call1((context,)).map(Bound::unbind)
}

/// The system prompt from a function of the context.
pub(crate) fn system(function: Callback) -> SystemPrompt {
    let function = Arc::new(function);
    Arc::new(move |values| {
        let function = Arc::clone(&function);
        Box::pin(async move {
            let returned = function.call(|py| Ok((context(py, &values)?,))).await;
            Python::attach(|py| returned.and_then(|text| text.extract(py)).map_err(|error| defect(py, error)))
        })
    })
}

/// The check of answers by a function of the context and the answer.
pub(crate) fn validator(function: Callback, answer: Option<Arc<AnswerType>>) -> AnswerValidator {
    let function = Arc::new(function);
    Arc::new(move |value, values| {
        let (function, answer) = (Arc::clone(&function), answer.clone());
        Box::pin(async move {
            let decode = |py: Python<'_>| match &answer {
                Some(answer) => answer.decode(py, &value),
                None => convert::to_python(py, &value).map(Bound::unbind),
            };
            let returned = function.call(|py| Ok((context(py, &values)?, decode(py)?))).await;
            Python::attach(|py| {
                returned.and_then(|returned| encoded(returned.bind(py))).map_err(|error| problem(py, error))
            })
            .map(|changed| changed.unwrap_or(value))
        })
    })
}

/// The returned answer as JSON; `None` for the unchanged one.
fn encoded(returned: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
    if returned.is_none() {
        return Ok(None);
    }
    let encode = bridge::author(returned.py())?.getattr(intern!(returned.py(), "encode"))?;
    convert::to_json(&encode.call1((returned,))?).map(Some)
}

/// The error that the model has to correct. Any other exception ends the run, and reaches the caller unchanged.
fn problem(py: Python<'_>, error: PyErr) -> String {
    let correction = bridge::answers(py)
        .and_then(|answers| answers.getattr(intern!(py, "correction"))?.call1((error.value(py),))?.extract());
    match correction {
        Ok(Some(text)) => text,
        Ok(None) | Err(_) => defect(py, error).message().to_owned(),
    }
}

/// Ends the run with an exception.
fn defect(py: Python<'_>, error: PyErr) -> ToolError {
    let failed = errors::from_python(py, error.clone_ref(py));
    if let Some(driver) = Driver::current() {
        driver.end_with(error);
    }
    failed
}
