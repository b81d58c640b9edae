//! The next request contains an answer as the provider wrote it.
//!
//! The recording has the provider's items. [`Dialect::expected`] lists intended changes; everything else must be equal.

use std::collections::BTreeMap;

use serde_json::Value;
use toolpost_llm::{ModelId, Request, Response, Turn};

use super::{Dialect, differences, value};

/// The counts of answers in next requests.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Answers with items.
    pub(crate) answers: usize,
    /// Their items.
    pub(crate) items: usize,
    /// The intended changes by reason.
    pub(crate) changes: BTreeMap<String, usize>,
}

/// Compares the items of a recorded answer with those of the next request.
pub(crate) fn check(
    dialect: &dyn Dialect,
    model: &ModelId,
    essence: &Value,
    response: &Response,
    counts: &mut Counts,
) -> Result<(), String> {
    let said = dialect.items(essence);
    if said.is_empty() && response.items.is_empty() {
        return Ok(());
    }
    counts.answers += 1;
    counts.items += said.len();
    let mut changes = Vec::new();
    let expected = dialect.expected(essence, &mut changes);
    for change in changes {
        *counts.changes.entry(change).or_default() += 1;
    }
    let wrong = wrong(dialect, &expected, &sent(dialect, model, response)?);
    if wrong.is_empty() { Ok(()) } else { Err(format!("what goes back:\n{}", wrong.join("\n"))) }
}

/// The items of an answer in the next request.
pub(crate) fn sent(
    dialect: &dyn Dialect,
    model: &ModelId,
    response: &Response,
) -> Result<Vec<Value>, String> {
    let mut request = Request::new("before");
    request.turns.push(Turn::Assistant(response.to_turn()));
    request.turns.push(Turn::user("behind"));
    let body = dialect.wire().write_body(model, &request, false).map_err(|error| error.to_string())?;
    Ok(dialect.sent(&value(&body)))
}

/// One line for each difference between the sent and the expected items.
pub(crate) fn wrong(dialect: &dyn Dialect, expected: &[Value], sent: &[Value]) -> Vec<String> {
    let of = |items: &[Value]| Value::from(items.iter().map(|item| dialect.piece(item)).collect::<Vec<_>>());
    let mut lines = Vec::new();
    differences(&of(expected), &of(sent), "", &mut lines);
    lines
}
