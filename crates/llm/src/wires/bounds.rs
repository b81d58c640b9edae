//! Limits on parts of a stream that later events repeat.

use serde_json::value::RawValue;

/// Maximum length of a tool name of a call, in bytes. Every delta of the call repeats it.
const MAX_NAME: usize = 1024;

/// Maximum length of an id of a call, in bytes. Some gateways put a thinking signature into it.
const MAX_ID: usize = 16 * 1024;

/// Maximum length of a usage record, in bytes. Every change delivers it again.
const MAX_USAGE: usize = 64 * 1024;

/// Maximum length of an id of an answer, in bytes. Generated call ids contain it.
const MAX_ANSWER_ID: usize = 1024;

/// Checks the id and name of a call.
pub(crate) fn call(id: &str, name: &str) -> Result<(), String> {
    for (what, text, most) in [("id", id, MAX_ID), ("name", name, MAX_NAME)] {
        if text.len() > most {
            return Err(format!(
                "the {what} of a tool call: expected at most {most} bytes, found {}",
                text.len()
            ));
        }
    }
    Ok(())
}

/// Checks the id of an answer.
pub(crate) fn answer_id(id: &RawValue) -> Result<(), String> {
    match id.get().len() {
        0..=MAX_ANSWER_ID => Ok(()),
        found => Err(format!("the answer's id: expected at most {MAX_ANSWER_ID} bytes, found {found}")),
    }
}

/// Checks a usage record.
pub(crate) fn usage(record: &RawValue) -> Result<(), String> {
    match record.get().len() {
        0..=MAX_USAGE => Ok(()),
        found => Err(format!("the usage: expected at most {MAX_USAGE} bytes, found {found}")),
    }
}
