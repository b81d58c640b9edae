//! The types of answers.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use serde_json::Value;
use toolpost::agent::AgentBuilder;

use crate::driver::Driver;
use crate::{bridge, convert};

/// The declared type of an answer.
pub(crate) struct AnswerType {
    schema: Value,
    /// Converts a value of the schema into the type; absent for a JSON Schema.
    decode: Option<Py<PyAny>>,
}

impl AnswerType {
    /// A JSON Schema, a model of pydantic, a dataclass or another annotated type.
    pub(crate) fn new(declared: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = declared.py();
        let answer_type = bridge::answers(py)?.getattr(intern!(py, "answer_type"))?;
        let (schema, decode): (Bound<'_, PyAny>, Option<Py<PyAny>>) =
            answer_type.call1((declared,))?.extract()?;
        Ok(Self { schema: convert::to_json(&schema)?, decode })
    }

    pub(crate) fn decode(&self, py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
        let value = convert::to_python(py, value)?;
        match &self.decode {
            Some(decode) => decode.call1(py, (value,)),
            None => Ok(value.unbind()),
        }
    }

    /// Requires answers of the type. The model corrects a value that the type rejects.
    pub(crate) fn require(self: &Arc<Self>, builder: AgentBuilder) -> AgentBuilder {
        let answer = Arc::clone(self);
        builder.checked_answer_schema(self.schema.clone(), move |value| answer.check(value))
    }

    fn check(&self, value: &Value) -> Result<(), String> {
        if self.decode.is_none() {
            return Ok(());
        }
        Python::attach(|py| match self.decode(py, value) {
            Ok(_) => Ok(()),
            Err(error) => {
                let message = error.value(py).to_string();
                let is_mismatch =
                    error.is_instance_of::<PyValueError>(py) || error.is_instance_of::<PyTypeError>(py);
                // Any other exception is a defect of the type, which no model can correct.
                if let Some(driver) = Driver::current().filter(|_| !is_mismatch) {
                    driver.end_with(error);
                }
                Err(message)
            }
        })
    }
}
