//! Rebuilds recorded requests with Toolpost's types.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use toolpost_llm::{Part, Request, Turn};
use toolpost_testkit::recordings::Interaction;

use super::{Dialect, differences, model_of, unharmed, value};

/// The allowed differences between a recorded request and Toolpost's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allowed {
    /// Members of objects.
    rules: Vec<Rule>,
    /// Single requests.
    exceptions: Vec<Exception>,
}

/// A member of one side only, in any object of a type.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// The provider.
    provider: String,
    /// The `type` of the object; `request` for the body, `message` for an object with a role.
    of: String,
    /// The member's name.
    member: String,
    /// The side with the member.
    side: Side,
    /// Only with this value.
    #[serde(default, deserialize_with = "even_null")]
    value: Option<Value>,
    /// The reason why it differs.
    reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Side {
    /// Toolpost may send it where the recorded client does not.
    Ours,
    /// Toolpost always sends it.
    AlwaysOurs,
    /// The recorded client may send it where Toolpost does not.
    Theirs,
}

fn even_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// A single request that differs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    /// A part of the file's path.
    place: String,
    /// The reason why it differs.
    reason: String,
}

impl Allowed {
    /// Whether a rule covers a place in Toolpost's body, such as `request.store changed`.
    pub(crate) fn is_ours(&self, dialect: &dyn Dialect, place: &str) -> bool {
        self.rules.iter().filter(|rule| rule.provider == dialect.provider()).any(|rule| {
            let Some((_, rest)) = place.split_once(&format!(".{}", rule.member)) else { return false };
            match rule.side {
                Side::Ours => true,
                Side::AlwaysOurs => rest != " dropped",
                Side::Theirs => false,
            }
        })
    }
}

/// The committed list of differences.
pub(crate) fn allowed() -> Allowed {
    serde_json::from_str(include_str!("../../data/fidelity.json")).expect("tests/data/fidelity.json parses")
}

/// The counts of requests.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Rebuilt requests.
    pub(crate) built: usize,
    /// Rebuilt requests that equal the recorded ones under the rules.
    pub(crate) equal: usize,
    /// Rebuilt requests without raw parts and provider options.
    pub(crate) typed: usize,
    /// Requests that the provider rejected and Toolpost's types cannot express.
    pub(crate) refused: usize,
    /// The exceptions by reason.
    pub(crate) exceptions: BTreeMap<String, usize>,
    /// The applied rules with their counts.
    pub(crate) rules: BTreeMap<String, usize>,
}

/// Rebuilds a recorded request and compares both.
pub(crate) fn check(
    dialect: &dyn Dialect,
    allowed: &Allowed,
    place: &str,
    interaction: &Interaction,
    counts: &mut Counts,
) -> Result<(), String> {
    // Toolpost's types need not express a rejected request.
    if interaction.status >= 400 {
        let look = || check_built(dialect, allowed, place, interaction, &mut Counts::default());
        match unharmed(look) {
            Ok(()) => check_built(dialect, allowed, place, interaction, counts)?,
            Err(_) => counts.refused += 1,
        }
        return Ok(());
    }
    check_built(dialect, allowed, place, interaction, counts)
}

fn check_built(
    dialect: &dyn Dialect,
    allowed: &Allowed,
    place: &str,
    interaction: &Interaction,
    counts: &mut Counts,
) -> Result<(), String> {
    let Some((body, request, ours)) = built(dialect, interaction)? else { return Ok(()) };
    counts.built += 1;
    let saved = serde_json::to_string(&request).map_err(|error| error.to_string())?;
    let saved: Request = serde_json::from_str(&saved).map_err(|error| error.to_string())?;
    if saved != request {
        return Err("saving changes the request".into());
    }
    counts.typed += usize::from(is_typed(&request));
    let mut used = Vec::new();
    let wrong = wrong(dialect, allowed, body, &ours, &mut used);
    for rule in used {
        *counts.rules.entry(rule).or_default() += 1;
    }
    if wrong.is_empty() {
        counts.equal += 1;
        return Ok(());
    }
    match allowed.exceptions.iter().find(|exception| place.contains(&exception.place)) {
        Some(exception) => {
            *counts.exceptions.entry(exception.reason.clone()).or_default() += 1;
            Ok(())
        }
        None => Err(format!("the request:\n{}", wrong.join("\n"))),
    }
}

/// A recorded body, the rebuilt request, and its body; `None` without a body of this kind.
pub(crate) fn built<'a>(
    dialect: &dyn Dialect,
    interaction: &'a Interaction,
) -> Result<Option<(&'a Value, Request, Value)>, String> {
    let Some(body) = interaction.request.as_ref().and_then(|request| request.body.as_ref()) else {
        return Ok(None);
    };
    let Some(request) = dialect.request(body) else { return Ok(None) };
    let ours = dialect.wire().write_body(&model_of(dialect, interaction), &request, body["stream"] == true);
    let ours = ours.map_err(|error| format!("the request: {error}"))?;
    let ours = value(&ours);
    Ok(Some((body, request, ours)))
}

/// One line for each difference that no rule allows.
pub(crate) fn wrong(
    dialect: &dyn Dialect,
    allowed: &Allowed,
    recorded: &Value,
    ours: &Value,
    used: &mut Vec<String>,
) -> Vec<String> {
    let rules: Vec<&Rule> = allowed.rules.iter().filter(|rule| rule.provider == dialect.provider()).collect();
    let (mut recorded, mut ours) = (dialect.normal(recorded), dialect.normal(ours));
    let mut wrong = Vec::new();
    reconcile(&rules, true, &mut recorded, &mut ours, used, &mut wrong);
    differences(&recorded, &ours, "", &mut wrong);
    wrong
}

/// Removes the members that a rule allows on one side only, and notes the applied rules. Members of both sides stay.
fn reconcile(
    rules: &[&Rule],
    is_root: bool,
    recorded: &mut Value,
    ours: &mut Value,
    used: &mut Vec<String>,
    wrong: &mut Vec<String>,
) {
    match (recorded, ours) {
        (Value::Array(recorded), Value::Array(ours)) => {
            for (recorded, ours) in recorded.iter_mut().zip(ours) {
                reconcile(rules, false, recorded, ours, used, wrong);
            }
        }
        (Value::Object(recorded), Value::Object(ours)) => {
            let kind = recorded.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
            let kind = match kind.as_str() {
                _ if is_root => "request",
                "" if recorded.contains_key("role") => "message",
                kind => kind,
            };
            for rule in rules.iter().filter(|rule| rule.of == kind) {
                let fits = |found: &Value| rule.value.as_ref().is_none_or(|expected| expected == found);
                match (recorded.get(&rule.member), ours.get(&rule.member), rule.side) {
                    (None, Some(found), Side::Ours | Side::AlwaysOurs) if fits(found) => {
                        ours.shift_remove(&rule.member);
                    }
                    (Some(found), None, Side::Theirs) if fits(found) => {
                        recorded.shift_remove(&rule.member);
                    }
                    (None, None, Side::AlwaysOurs) => {
                        wrong.push(format!("  `{}` of `{}` is not there", rule.member, rule.of));
                        continue;
                    }
                    _ => continue,
                }
                used.push(format!("`{}` of `{}`: {}", rule.member, rule.of, rule.reason));
            }
            for (name, recorded) in recorded.iter_mut() {
                if let Some(ours) = ours.get_mut(name) {
                    reconcile(rules, false, recorded, ours, used, wrong);
                }
            }
        }
        _ => {}
    }
}

/// Whether a request has no raw JSON of the provider.
fn is_typed(request: &Request) -> bool {
    let is_raw = |part: &Part| matches!(part, Part::Raw(_));
    let has_raw = request.turns.iter().any(|turn| match turn {
        Turn::User(parts) | Turn::System(parts) => parts.iter().any(is_raw),
        Turn::ToolResults(results) => results.iter().any(|result| result.content.iter().any(is_raw)),
        _ => false,
    });
    !has_raw && request.provider_options.is_empty()
}
