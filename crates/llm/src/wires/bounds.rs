//! What of a stream must be short, because it is repeated with every later event.

use serde_json::value::RawValue;

/// The longest name of a tool that a stream may call, in bytes. Each piece of the call's arguments is delivered with it.
const LONGEST_NAME: usize = 1024;

/// The longest id of a call, in bytes: some gateways keep the signature of the model's thinking in it.
const LONGEST_ID: usize = 16 * 1024;

/// The longest record of usage, in bytes: it is delivered each time that it changes.
const LONGEST_USAGE: usize = 64 * 1024;

/// The longest id of an answer whose calls may get theirs from it, in bytes.
const LONGEST_ANSWER_ID: usize = 1024;

/// What is wrong with a call that is about to grow, if anything is.
pub(crate) fn call(id: &str, name: &str) -> Result<(), String> {
    for (what, text, most) in [("id", id, LONGEST_ID), ("name", name, LONGEST_NAME)] {
        if text.len() > most {
            return Err(format!(
                "the {what} of a tool call: expected at most {most} bytes, found {}",
                text.len()
            ));
        }
    }
    Ok(())
}

/// What is wrong with the id of an answer, if anything is.
pub(crate) fn answer_id(id: &RawValue) -> Result<(), String> {
    match id.get().len() {
        0..=LONGEST_ANSWER_ID => Ok(()),
        found => Err(format!("the answer's id: expected at most {LONGEST_ANSWER_ID} bytes, found {found}")),
    }
}

/// What is wrong with a record of usage that is about to be delivered, if anything is.
pub(crate) fn usage(record: &RawValue) -> Result<(), String> {
    match record.get().len() {
        0..=LONGEST_USAGE => Ok(()),
        found => Err(format!("the usage: expected at most {LONGEST_USAGE} bytes, found {found}")),
    }
}
