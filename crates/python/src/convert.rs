//! JSON values to and from Python objects.

use pyo3::exceptions::{PyOverflowError, PyRecursionError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};

use toolpost::output::wide_integer;

use crate::bridge;

/// Maximum depth of a value, as of JSON texts.
const MAX_DEPTH: u8 = 127;

/// A JSON value as `None`, `bool`, `int`, `float`, `str`, `list` or `dict`.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Number(number) => number_to_python(py, number)?,
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items {
                list.append(to_python(py, item)?)?;
            }
            list.into_any()
        }
        Value::Object(map) => {
            match wide_integer(value).and_then(|digits| py.get_type::<PyInt>().call1((digits,)).ok()) {
                Some(integer) => integer,
                None => map_to_python(py, map)?.into_any(),
            }
        }
    })
}

pub(crate) fn map_to_python<'py>(py: Python<'py>, map: &Map<String, Value>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, value) in map {
        dict.set_item(key, to_python(py, value)?)?;
    }
    Ok(dict)
}

fn number_to_python<'py>(py: Python<'py>, number: &Number) -> PyResult<Bound<'py, PyAny>> {
    if let Some(value) = number.as_i64() {
        return Ok(value.into_pyobject(py)?.into_any());
    }
    if let Some(value) = number.as_u64() {
        return Ok(value.into_pyobject(py)?.into_any());
    }
    Ok(PyFloat::new(py, number.as_f64().unwrap_or(f64::NAN)).into_any())
}

/// A Python object as a JSON value. `toolpost.author.encode` converts dataclasses, models, enums, dates and the like.
///
/// # Errors
/// `TypeError`, `OverflowError` or `ToolError` if JSON cannot represent the object.
pub(crate) fn to_json(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    at_depth(object, 0)
}

fn at_depth(object: &Bound<'_, PyAny>, depth: u8) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(PyRecursionError::new_err(format!("the value has more than {MAX_DEPTH} levels")));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(text) = object.cast_exact::<PyString>() {
        return Ok(Value::String(text.to_str()?.to_owned()));
    }
    if let Ok(value) = object.cast_exact::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if object.is_exact_instance_of::<PyInt>() {
        return integer(object);
    }
    if let Ok(value) = object.cast_exact::<PyFloat>() {
        // As `toolpost.author.encode`: JSON has neither NaN nor infinity.
        return Ok(Number::from_f64(value.value()).map_or(Value::Null, Value::Number));
    }
    if let Ok(dict) = object.cast_exact::<PyDict>() {
        let mut map = Map::with_capacity(dict.len());
        for (key, value) in dict {
            map.insert(key_text(&key)?, at_depth(&value, depth + 1)?);
        }
        return Ok(Value::Object(map));
    }
    if let Ok(list) = object.cast_exact::<PyList>() {
        return list.iter().map(|item| at_depth(&item, depth + 1)).collect::<PyResult<_>>().map(Value::Array);
    }
    if let Ok(tuple) = object.cast_exact::<PyTuple>() {
        return tuple
            .iter()
            .map(|item| at_depth(&item, depth + 1))
            .collect::<PyResult<_>>()
            .map(Value::Array);
    }
    let encoded = bridge::author(object.py())?.call_method1("encode", (object,))?;
    if encoded.is(object) {
        return Err(not_json(object));
    }
    at_depth(&encoded, depth + 1)
}

fn integer(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    if let Ok(value) = object.extract::<i64>() {
        return Ok(Value::from(value));
    }
    object
        .extract::<u64>()
        .map(Value::from)
        .map_err(|_| PyOverflowError::new_err("an integer exceeds 64 bits; send it as a string"))
}

fn key_text(key: &Bound<'_, PyAny>) -> PyResult<String> {
    if let Ok(text) = key.cast::<PyString>() {
        return Ok(text.to_str()?.to_owned());
    }
    let encoding = bridge::author(key.py())?.getattr(intern!(key.py(), "_encoding"))?;
    encoding.call_method1(intern!(key.py(), "_encode_key"), (key,))?.extract()
}

/// The name of an object's type, for messages.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "?".to_owned(), |name| name.to_string())
}

fn not_json(object: &Bound<'_, PyAny>) -> PyErr {
    let name = type_name(object);
    PyTypeError::new_err(format!(
        "JSON cannot represent `{name}`; return a dict, a dataclass or a model instead"
    ))
}

/// `None`.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method is not general over lifetimes")]
pub(crate) fn none() -> Py<PyAny> {
    Python::attach(|py| py.None())
}
