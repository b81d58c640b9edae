//! Whether the arguments are what the tool asks for.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};
use toolpost_core::{Call, Output, ToolError};

use crate::registry::Entry;
use crate::toolbox::Shared;

/// Counts bytes up to a limit.
struct Counter {
    bytes: usize,
    limit: usize,
}

impl Write for Counter {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        self.bytes = self.bytes.saturating_add(piece.len());
        if self.bytes > self.limit { Err(io::ErrorKind::StorageFull.into()) } else { Ok(piece.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The size of a value as JSON; `None` if it is over the limit.
pub(super) fn json_size(value: &impl Serialize, limit: usize) -> Option<usize> {
    let mut counter = Counter { bytes: 0, limit };
    serde_json::to_writer(&mut counter, value).is_ok().then_some(counter.bytes)
}

/// About how many bytes a value has as JSON, without writing it: numbers count as eight, nothing is escaped.
fn estimate(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| estimate(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() + estimate(value) + 4).sum::<usize>() + 2
        }
    }
}

/// About how large the arguments are.
pub(super) fn size(arguments: &Value, limit: usize) -> Result<usize, ToolError> {
    let size = estimate(arguments);
    (size <= limit).then_some(size).ok_or_else(|| {
        ToolError::limit(format!("the arguments are larger than {limit} bytes"))
            .suggest("Give large data as a file and pass its path.")
    })
}

pub(super) fn may_nest(toolbox: &Shared, call: &Call) -> Result<(), ToolError> {
    let limit = toolbox.settings().depth;
    if call.depth > limit {
        return Err(ToolError::limit(format!("calls nest at most {limit} deep, and this would be one more"))
            .suggest("Check whether two tools call each other for ever."));
    }
    if let Some(scope) = &call.scope {
        scope.count_call()?;
    }
    Ok(())
}

/// Checks the arguments against the compiled schema; a value that is injected can never be among them.
pub(super) fn arguments(entry: &Entry, call: &Call) -> Result<(), ToolError> {
    for name in &entry.spec.injected {
        if call.arguments.get(name).is_some() {
            return Err(ToolError::invalid_input(format!(
                "`{name}` is given by the application and cannot be an argument"
            ))
            .with("pointer", format!("/{name}"))
            .suggest(format!("Leave `{name}` out.")));
        }
    }
    // The schema of a foreign tool is checked where the tool lives.
    if !entry.is_local() {
        return Ok(());
    }
    if !call.arguments.is_object() {
        return Err(ToolError::invalid_input("the arguments must be a JSON object").with("pointer", ""));
    }
    entry.spec.input_schema.check(&call.arguments)
}

/// The answer of a call that was only to be checked.
pub(super) fn dry_run(entry: &Entry, call: &Call) -> Output {
    Output::json(json!({
        "dry_run": true,
        "would_execute": { "tool": &*entry.name, "arguments": masked(entry, &call.arguments) },
    }))
}

/// The arguments with the sensitive ones masked.
pub(super) fn masked(entry: &Entry, arguments: &Value) -> Value {
    let mut arguments = arguments.clone();
    for name in &entry.spec.sensitive {
        if let Some(value) = arguments.get_mut(name) {
            *value = "[secret]".into();
        }
    }
    arguments
}
