//! Compares the items that recorded clients sent back with the provider's items and Toolpost's.
//!
//! Where both differ, Toolpost's item must equal the provider's.

use std::collections::BTreeMap;

use serde_json::Value;
use toolpost_llm::{Request, Response, Turn};
use toolpost_testkit::recordings::{Interaction, Recording};

use super::{Dialect, Unit, answered, differences, kind_of, model_of, value};

/// The counts of items in recorded next requests.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Items of recorded next requests.
    pub(crate) items: usize,
    /// Items that equal Toolpost's.
    pub(crate) equal: usize,
    /// The client's changes by place.
    pub(crate) changes: BTreeMap<String, usize>,
}

/// Compares each answer in a later request of the file with Toolpost's next request.
pub(crate) fn check(dialect: &dyn Dialect, recording: &Recording, counts: &mut Counts) -> Result<(), String> {
    let units = |interaction: &Interaction| dialect.units(interaction.request.as_ref()?.body.as_ref()?);
    let mut wrong = Vec::new();
    for (number, interaction) in recording.interactions.iter().enumerate() {
        let Some(sent) = units(interaction) else { continue };
        let Some((essence, response)) = answered(dialect, interaction) else { continue };
        // A background response is incomplete.
        if response.items.is_empty() {
            continue;
        }
        let later = recording.interactions[number + 1..].iter().filter_map(units);
        let Some(next) = later.into_iter().find_map(|units| continuation(&sent, units)) else { continue };
        let mut said = models(dialect, &dialect.request_with(dialect.items(&essence)))?;
        said.extend(models(dialect, &dialect.request_with(dialect.expected(&essence, &mut Vec::new())))?);
        let ours = given_back(dialect, interaction, &response)?;
        let place = format!("{}#{}", recording.path, number + 1);
        wrong.extend(compare(&place, &next, &ours, &said, counts));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The items of an answer in Toolpost's next request.
fn given_back(
    dialect: &dyn Dialect,
    interaction: &Interaction,
    response: &Response,
) -> Result<Vec<Value>, String> {
    let mut request = Request::new("before");
    request.turns.push(Turn::Assistant(response.to_turn()));
    request.turns.push(Turn::user("behind"));
    if let Some(body) = interaction.request.as_ref().and_then(|request| request.body.as_ref()) {
        dialect.prepare(&mut request, body);
    }
    let body = dialect.wire().write_body(&model_of(dialect, interaction), &request, false);
    models(dialect, &value(&body.map_err(|error| error.to_string())?))
}

/// The model's items in a request.
fn models(dialect: &dyn Dialect, body: &Value) -> Result<Vec<Value>, String> {
    let units = dialect.units(body).ok_or("the conversation of Toolpost's request is incomplete")?;
    Ok(units.into_iter().filter(|unit| unit.is_models).map(|unit| unit.value).collect())
}

/// The model's last items of one conversation, if the other conversation continues it.
fn continuation(sent: &[Unit], next: Vec<Unit>) -> Option<Vec<Value>> {
    if next.len() <= sent.len() || next[..sent.len()] != *sent {
        return None;
    }
    let said = next.into_iter().skip(sent.len()).take_while(|unit| unit.is_models).map(|unit| unit.value);
    let said: Vec<Value> = said.collect();
    (!said.is_empty()).then_some(said)
}

/// Counts the client's changes, and returns a line for each item that equals neither the client's nor the provider's.
fn compare(
    place: &str,
    recorded: &[Value],
    ours: &[Value],
    said: &[Value],
    counts: &mut Counts,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (index, (recorded, ours)) in aligned(recorded, ours).into_iter().enumerate() {
        counts.items += 1;
        if recorded == ours {
            counts.equal += 1;
            continue;
        }
        let changes = match (recorded, ours) {
            (Some(recorded), Some(ours)) if said.contains(ours) => changed(recorded, ours),
            (None, Some(ours)) if said.contains(ours) => {
                vec![format!("`{}`: omits the item", kind_of(ours))]
            }
            // The round-trip check covers the items that Toolpost omits.
            (Some(recorded), None) => vec![format!("`{}`: sends an item that we do not", kind_of(recorded))],
            (recorded, ours) => {
                let mut lines =
                    vec![format!("{place}, item {}: neither the client's nor the provider's", index + 1)];
                let nothing = Value::from("(nothing)");
                differences(recorded.unwrap_or(&nothing), ours.unwrap_or(&nothing), "", &mut lines);
                wrong.push(lines.join("\n"));
                continue;
            }
        };
        for change in changes {
            *counts.changes.entry(change).or_default() += 1;
        }
    }
    wrong
}

/// The changed places of an item, each with the kind of change.
fn changed(recorded: &Value, ours: &Value) -> Vec<String> {
    fn walk(recorded: &Value, ours: &Value, at: &str, found: &mut Vec<String>) {
        match (recorded, ours) {
            (Value::Object(recorded), Value::Object(ours)) => {
                for name in ours.keys().chain(recorded.keys().filter(|name| !ours.contains_key(*name))) {
                    let at = format!("{at}{}{name}", if at.is_empty() { "" } else { "." });
                    match (recorded.get(name), ours.get(name)) {
                        (Some(recorded), Some(ours)) => walk(recorded, ours, &at, found),
                        (None, _) => found.push(format!("drops `{at}`")),
                        (_, None) => found.push(format!("adds `{at}`")),
                    }
                }
            }
            (Value::Array(recorded), Value::Array(ours)) if recorded.len() == ours.len() => {
                for (recorded, ours) in recorded.iter().zip(ours) {
                    walk(recorded, ours, at, found);
                }
            }
            _ if recorded == ours => {}
            _ => found.push(format!("changes `{at}`")),
        }
    }
    let mut found = Vec::new();
    walk(recorded, ours, "", &mut found);
    found.sort();
    found.dedup();
    found.into_iter().map(|change| format!("`{}`: {change}", kind_of(ours))).collect()
}

/// Aligns both lists, where one may lack items of the other.
fn aligned<'a>(recorded: &'a [Value], ours: &'a [Value]) -> Vec<(Option<&'a Value>, Option<&'a Value>)> {
    let (mut recorded, mut ours, mut pairs) =
        (recorded.iter().peekable(), ours.iter().peekable(), Vec::new());
    loop {
        let (left, right) = (recorded.len(), ours.len());
        match (recorded.peek(), ours.peek()) {
            (None, None) => return pairs,
            (Some(a), Some(b)) if left < right && kind_of(a) != kind_of(b) => pairs.push((None, ours.next())),
            (Some(a), Some(b)) if left > right && kind_of(a) != kind_of(b) => {
                pairs.push((recorded.next(), None));
            }
            _ => pairs.push((recorded.next(), ours.next())),
        }
    }
}
