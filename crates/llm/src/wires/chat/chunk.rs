//! Parses one event of a Chat Completions stream.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::{Listed, Members, Named, With};

/// An event, with its choices.
pub(super) type Chunk<'a> = With<'a, Listed<Choice<'a>>>;

/// A choice, with the delta of its message.
pub(super) type Choice<'a> = With<'a, Delta<'a>>;

/// The delta of a choice's message.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct Delta<'a>(#[serde(borrow)] pub(super) Members<'a>);

impl Named for Listed<Choice<'_>> {
    const NAME: &'static str = "choices";
}

impl Named for Delta<'_> {
    const NAME: &'static str = "delta";
}

/// Parses an event in one pass, unless it is invalid. The error names the invalid part.
pub(super) fn read(data: &str) -> Result<Chunk<'_>, String> {
    serde_json::from_str(data).or_else(|_: serde_json::Error| read_parts(data))
}

/// Parses an event part by part. An event with an error may have choices of any form.
fn read_parts(data: &str) -> Result<Chunk<'_>, String> {
    let wrong = |error: serde_json::Error| format!("an event has invalid JSON: {error}");
    let members: Members<'_> = serde_json::from_str(data).map_err(wrong)?;
    let has_failed = members.get("error").is_some_and(|error| error.get() != "null");
    let Some(choices) = members.get("choices").filter(|_| !has_failed) else {
        return Ok(With { members, inner: None });
    };
    let choices: Option<Listed<&RawValue>> = serde_json::from_str(choices.get()).map_err(wrong)?;
    let mut read = Vec::new();
    for choice in choices.unwrap_or_default().0 {
        let members: Members<'_> =
            serde_json::from_str(choice.get()).map_err(|error| format!("a choice: {error}"))?;
        let delta = members.get("delta").map(|delta| serde_json::from_str::<Option<Delta<'_>>>(delta.get()));
        let delta = delta.transpose().map_err(|error| format!("a delta: {error}"))?;
        read.push(With { inner: delta.map(Option::unwrap_or_default), members });
    }
    Ok(With { members, inner: Some(Listed(read)) })
}
