//! What a model said goes back in the next request as it came.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use toolpost_llm::{Request, Turn};
use toolpost_testkit::recordings::{Answer, Interaction, Recording};

use super::{Dialect, Unit, differences, fold, model_of};

/// A member that recorded clients leave out or add, wherever it stands in an object of a type. What we have is the
/// provider's own word, which another check holds against the answer: a rule cannot hide a loss of ours there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The provider whose traffic it is about.
    pub(crate) provider: String,
    /// The `type` of the object; empty for objects without one, `*` for all.
    pub(crate) of: String,
    /// The member's name.
    pub(crate) member: String,
    /// Only with this value.
    #[serde(default, deserialize_with = "even_null")]
    pub(crate) value: Option<Value>,
    /// Whether both may have it with different values, as redacted ids.
    #[serde(default)]
    pub(crate) differs: bool,
    /// Whether it is the recorded client alone that may lack it.
    #[serde(default)]
    pub(crate) ours_alone: bool,
    /// Whether both may have it as texts that are the same JSON.
    #[serde(default)]
    pub(crate) same_json: bool,
    /// Why it may differ.
    pub(crate) reason: String,
}

impl Rule {
    fn lets(&self, recorded: &Value, ours: &Value) -> bool {
        let parsed = |value: &Value| serde_json::from_str::<Value>(value.as_str()?).ok();
        self.differs || self.same_json && parsed(recorded).is_some_and(|json| Some(json) == parsed(ours))
    }
}

fn even_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// An item that recorded clients change as they like, on purpose or by their own loss.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exception {
    /// A part of the file's path.
    pub(crate) place: String,
    /// Why it differs.
    pub(crate) reason: String,
    /// Whether the recorded client changes it on purpose: it is then no item that goes back, and is not counted as one.
    #[serde(default)]
    pub(crate) on_purpose: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allowed {
    pub(crate) assistant_rules: Vec<Rule>,
    pub(crate) assistant_exceptions: Vec<Exception>,
    pub(crate) request_rules: Vec<Rule>,
    pub(crate) request_exceptions: Vec<Exception>,
}

/// What may differ.
pub(crate) fn allowed() -> Allowed {
    serde_json::from_str(include_str!("../../data/fidelity.json"))
        .expect("the list of differences can be read")
}

/// What was counted of items that went back.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Items that stand in a recorded next request.
    pub(crate) items: usize,
    /// Of them, equal without any rule.
    pub(crate) verbatim: usize,
    /// Of them, equal once the members of the rules are away.
    pub(crate) equal: usize,
    /// The others, by reason.
    pub(crate) exceptions: BTreeMap<String, usize>,
    /// The others that nobody has explained.
    pub(crate) unexplained: Vec<String>,
    /// The rules that were needed, with how often.
    pub(crate) rules: BTreeMap<String, usize>,
}

/// Brings two values together where a rule says that one of them may lack a member, and notes which rules were needed.
/// A member that both have is never left out, unless the rule is about its value.
pub(crate) fn reconcile(rules: &[&Rule], recorded: &mut Value, ours: &mut Value, used: &mut Vec<String>) {
    match (recorded, ours) {
        (Value::Array(recorded), Value::Array(ours)) => {
            for (recorded, ours) in recorded.iter_mut().zip(ours) {
                reconcile(rules, recorded, ours, used);
            }
        }
        (Value::Object(recorded), Value::Object(ours)) => {
            let kind = ours.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
            for rule in rules.iter().filter(|rule| rule.of == "*" || rule.of == kind) {
                let fits = |found: &Value| rule.value.as_ref().is_none_or(|expected| expected == found);
                match (recorded.get(&rule.member), ours.get(&rule.member)) {
                    (None, Some(found)) if !rule.same_json && fits(found) => ours.shift_remove(&rule.member),
                    (Some(found), None) if !rule.same_json && !rule.ours_alone && fits(found) => {
                        recorded.shift_remove(&rule.member)
                    }
                    (Some(a), Some(b)) if a != b && rule.lets(a, b) => {
                        ours.shift_remove(&rule.member);
                        recorded.shift_remove(&rule.member)
                    }
                    _ => continue,
                };
                used.push(format!("`{}` of `{}`: {}", rule.member, rule.of, rule.reason));
            }
            for (name, recorded) in recorded.iter_mut() {
                if let Some(ours) = ours.get_mut(name) {
                    reconcile(rules, recorded, ours, used);
                }
            }
        }
        _ => {}
    }
}

/// Holds each answer that a later request of the file gives back against what we would give back.
pub(crate) fn check(dialect: &dyn Dialect, recording: &Recording, counts: &mut Counts) {
    let allowed = allowed();
    let rules: Vec<&Rule> =
        allowed.assistant_rules.iter().filter(|rule| rule.provider == dialect.provider()).collect();
    let units = |interaction: &Interaction| dialect.units(interaction.request.as_ref()?.body.as_ref()?);
    for (number, interaction) in recording.interactions.iter().enumerate() {
        let Some(sent) = units(interaction) else { continue };
        let Some(ours) = given_back(dialect, interaction) else { continue };
        let later = recording.interactions[number + 1..].iter().filter_map(units);
        let Some(next) = later.into_iter().find_map(|units| continuation(&sent, units)) else { continue };
        let place = format!("{}#{}", recording.path, number + 1);
        compare(&rules, &allowed.assistant_exceptions, &place, &next, &ours, counts);
    }
}

/// What we would send back of an answer.
fn given_back(dialect: &dyn Dialect, interaction: &Interaction) -> Option<Vec<Value>> {
    let model = model_of(dialect, interaction);
    let response = match &interaction.answer {
        _ if interaction.status >= 400 => return None,
        Answer::Body(text) => dialect.wire().read_body(&model, interaction.status, text).ok()?,
        Answer::Stream(text) => fold(dialect, &model, [text.as_bytes()]).ok()?.0,
    };
    // An answer in the background is not there yet.
    if response.items.is_empty() {
        return None;
    }
    let mut request = Request::new("before");
    request.turns.push(Turn::Assistant(response.to_turn()));
    request.turns.push(Turn::user("behind"));
    if let Some(body) = interaction.request.as_ref().and_then(|request| request.body.as_ref()) {
        dialect.prepare(&mut request, body);
    }
    let body = dialect.wire().write_body(&model, &request, false).expect("an answer can be given back");
    let units = dialect.units(&super::value(&body)).expect("our own request has its conversation");
    Some(units.into_iter().filter(|unit| unit.is_models).map(|unit| unit.value).collect())
}

/// What the model said at the end of one conversation, if the other one goes on from it.
fn continuation(sent: &[Unit], next: Vec<Unit>) -> Option<Vec<Value>> {
    if next.len() <= sent.len() || next[..sent.len()] != *sent {
        return None;
    }
    let said = next.into_iter().skip(sent.len()).take_while(|unit| unit.is_models).map(|unit| unit.value);
    let said: Vec<Value> = said.collect();
    (!said.is_empty()).then_some(said)
}

fn compare(
    rules: &[&Rule],
    exceptions: &[Exception],
    place: &str,
    recorded: &[Value],
    ours: &[Value],
    counts: &mut Counts,
) {
    let nothing = Value::from("(nothing)");
    let pairs = aligned(recorded, ours);
    counts.items += pairs.len();
    let (mut wrong, mut used) = (Vec::new(), Vec::new());
    for (index, (recorded, ours)) in pairs.into_iter().enumerate() {
        let mut recorded = recorded.unwrap_or(&nothing).clone();
        let mut ours = ours.unwrap_or(&nothing).clone();
        counts.verbatim += usize::from(recorded == ours);
        reconcile(rules, &mut recorded, &mut ours, &mut used);
        if recorded == ours {
            counts.equal += 1;
            continue;
        }
        let mut lines = vec![format!("{place}, item {}", index + 1)];
        differences(&recorded, &ours, "", &mut lines);
        wrong.push(lines.join("\n"));
    }
    for rule in used {
        *counts.rules.entry(rule).or_default() += 1;
    }
    if wrong.is_empty() {
        return;
    }
    match exceptions.iter().find(|exception| place.contains(&exception.place)) {
        Some(exception) => {
            *counts.exceptions.entry(exception.reason.clone()).or_default() += wrong.len();
            if exception.on_purpose {
                counts.items -= wrong.len();
            }
        }
        None => counts.unexplained.extend(wrong),
    }
}

/// Both lists side by side, of which one may lack items of the other.
fn aligned<'a>(recorded: &'a [Value], ours: &'a [Value]) -> Vec<(Option<&'a Value>, Option<&'a Value>)> {
    let (mut recorded, mut ours, mut pairs) =
        (recorded.iter().peekable(), ours.iter().peekable(), Vec::new());
    loop {
        let (left, right) = (recorded.len(), ours.len());
        match (recorded.peek(), ours.peek()) {
            (None, None) => return pairs,
            (Some(a), Some(b)) if left < right && a["type"] != b["type"] => pairs.push((None, ours.next())),
            (Some(a), Some(b)) if left > right && a["type"] != b["type"] => {
                pairs.push((recorded.next(), None));
            }
            _ => pairs.push((recorded.next(), ours.next())),
        }
    }
}
