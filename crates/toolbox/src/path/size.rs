//! The size of values as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

/// Counts the written bytes up to a limit.
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

/// The size of a value as JSON, or `None` above the limit.
pub(crate) fn json_size(value: &impl Serialize, limit: usize) -> Option<usize> {
    let mut counter = Counter { bytes: 0, limit };
    serde_json::to_writer(&mut counter, value).is_ok().then_some(counter.bytes)
}

/// Estimates the size of a value as JSON: a number counts eight bytes, and no text has escapes.
pub(crate) fn estimate(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| estimate(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => {
            map.iter().map(|(key, value)| key.len() + estimate(value) + 4).sum::<usize>() + 2
        }
    }
}
