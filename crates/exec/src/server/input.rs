//! Arguments of a call from standard input, a file or a command line.

use std::io::Read;
use std::path::Path;

use serde_json::Value;
use toolpost_core::ToolError;

/// Maximum size of arguments, in bytes.
const MAX_INPUT: u64 = 16 * 1024 * 1024;

/// Reads a text of at most 16 MiB.
pub(super) fn read_bounded(stream: impl Read, name: &str) -> Result<String, ToolError> {
    let mut text = String::new();
    stream
        .take(MAX_INPUT + 1)
        .read_to_string(&mut text)
        .map_err(|error| ToolError::invalid_input(format!("cannot read {name} as text: {error}")))?;
    if text.len() as u64 > MAX_INPUT {
        return Err(ToolError::invalid_input(format!("{name} is larger than 16 MiB"))
            .suggest("Write large data to a file and pass its path as an argument."));
    }
    Ok(text)
}

/// The content of a file.
pub(super) fn file(path: &str) -> Result<String, ToolError> {
    let invalid =
        |error: std::io::Error| ToolError::invalid_path(format!("cannot read the file `{path}`: {error}"));
    let file = std::fs::File::open(Path::new(path)).map_err(invalid)?;
    if file.metadata().map_err(invalid)?.is_dir() {
        return Err(ToolError::invalid_path(format!("`{path}` is a directory; expected a JSON file")));
    }
    read_bounded(file, &format!("the file `{path}`"))
}

/// Parses a JSON object; an empty text is an empty object.
pub(super) fn object(text: &str) -> Result<Value, ToolError> {
    if text.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| {
        ToolError::invalid_input(format!("the arguments are not valid JSON: {error}"))
            .suggest("Give one JSON object, such as '{\"name\": \"value\"}', or flags, such as --name value.")
    })?;
    if value.is_object() {
        return Ok(value);
    }
    Err(ToolError::invalid_input("the arguments are not a JSON object; expected `{…}`"))
}
