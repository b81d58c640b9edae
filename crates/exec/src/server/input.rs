//! The arguments of a call as a person or a program gives them.

use std::io::Read;
use std::path::Path;

use serde_json::Value;
use toolpost_core::ToolError;

/// The largest arguments from standard input or a file, in bytes.
const LIMIT: u64 = 16 * 1024 * 1024;

/// Reads a text to its end, at most 16 MiB of it.
pub(super) fn read_bounded(stream: impl Read, name: &str) -> Result<String, ToolError> {
    let mut text = String::new();
    stream
        .take(LIMIT + 1)
        .read_to_string(&mut text)
        .map_err(|error| ToolError::invalid_input(format!("{name} cannot be read as text: {error}")))?;
    if text.len() as u64 > LIMIT {
        return Err(ToolError::invalid_input(format!("{name} is larger than 16 MiB"))
            .suggest("Give large data as a file and pass its path as an argument."));
    }
    Ok(text)
}

/// The text of a file.
pub(super) fn file(path: &str) -> Result<String, ToolError> {
    let wrong =
        |error: std::io::Error| ToolError::invalid_path(format!("the file `{path}` cannot be read: {error}"));
    let file = std::fs::File::open(Path::new(path)).map_err(wrong)?;
    if file.metadata().map_err(wrong)?.is_dir() {
        return Err(ToolError::invalid_path(format!("`{path}` is a folder: expected a file with JSON")));
    }
    read_bounded(file, &format!("the file `{path}`"))
}

/// A JSON object from its text; an empty text is an empty object.
pub(super) fn object(text: &str) -> Result<Value, ToolError> {
    if text.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| {
        ToolError::invalid_input(format!("the arguments are no JSON: {error}"))
            .suggest("Give one JSON object, such as '{\"name\": \"value\"}', or flags, such as --name value.")
    })?;
    if value.is_object() {
        return Ok(value);
    }
    Err(ToolError::invalid_input("the arguments are JSON but no object: expected `{…}`"))
}
