//! Merges provider options into a body.

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::fields::Fields;

/// Merges options: objects are merged, `tools` are appended, other values replace.
pub(crate) fn merge_options(
    body: &mut Fields,
    options: &Map<String, Value>,
) -> Result<(), serde_json::Error> {
    for (name, value) in options {
        let merged = match (body.get(name), value) {
            (Some(ours), Value::Object(_)) if ours.get().starts_with('{') => {
                let mut ours: Value = serde_json::from_str(ours.get())?;
                merge(&mut ours, value);
                to_raw_value(&ours)?
            }
            (Some(ours), Value::Array(theirs)) if name == "tools" => {
                let mut tools: Vec<Box<RawValue>> = serde_json::from_str(ours.get())?;
                for tool in theirs {
                    tools.push(to_raw_value(tool)?);
                }
                to_raw_value(&tools)?
            }
            _ => to_raw_value(value)?,
        };
        body.set(name, merged);
    }
    Ok(())
}

fn merge(ours: &mut Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (name, value) in theirs {
                merge(ours.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (ours, theirs) => *ours = theirs.clone(),
    }
}
