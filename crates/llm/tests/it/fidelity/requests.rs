//! A recorded request can be built through our types.

use std::collections::BTreeMap;

use toolpost_llm::{Part, Request, Turn};
use toolpost_testkit::recordings::Recording;

use super::history::{Rule, allowed, reconcile};
use super::{Dialect, differences, model_of, value};

/// What was counted of requests.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests that were built.
    pub(crate) built: usize,
    /// Of them, equal to the recorded ones once the rules are applied.
    pub(crate) equal: usize,
    /// Of them, built without raw parts and the provider's own options.
    pub(crate) typed: usize,
    /// The others, by reason.
    pub(crate) exceptions: BTreeMap<String, usize>,
    /// The others that nobody has explained.
    pub(crate) unexplained: Vec<String>,
    /// The rules that were needed, with how often.
    pub(crate) rules: BTreeMap<String, usize>,
}

/// Builds every request of a file and holds it against the recorded one.
pub(crate) fn check(dialect: &dyn Dialect, recording: &Recording, counts: &mut Counts) {
    let allowed = allowed();
    let rules: Vec<&Rule> =
        allowed.request_rules.iter().filter(|rule| rule.provider == dialect.provider()).collect();
    for (number, interaction) in recording.interactions.iter().enumerate() {
        let Some(body) = interaction.request.as_ref().and_then(|request| request.body.as_ref()) else {
            continue;
        };
        let place = format!("{}#{}", recording.path, number + 1);
        // Of traffic that nobody has looked at, a form that the tests cannot read is no mistake of ours.
        let request = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dialect.request(body))) {
            Ok(Some(request)) => request,
            Ok(None) => continue,
            Err(_) => {
                counts.unexplained.push(format!("{place}: the tests cannot read this request"));
                continue;
            }
        };
        counts.built += 1;
        let saved = serde_json::to_string(&request).expect("a request can be saved");
        let saved: Request = serde_json::from_str(&saved).expect("a saved request can be read");
        assert_eq!(saved, request, "{place}: saving changes the request");
        counts.typed += usize::from(is_typed(&request));
        let stream = body["stream"] == true;
        let mut wrong = Vec::new();
        match dialect.wire().write_body(&model_of(dialect, interaction), &request, stream) {
            Err(error) => wrong.push(format!("  {error}")),
            Ok(ours) => {
                let (mut ours, mut recorded) = (dialect.normal(&value(&ours)), dialect.normal(body));
                let mut used = Vec::new();
                reconcile(&rules, &mut recorded, &mut ours, &mut used);
                for rule in used {
                    *counts.rules.entry(rule).or_default() += 1;
                }
                differences(&recorded, &ours, "", &mut wrong);
            }
        }
        if wrong.is_empty() {
            counts.equal += 1;
            continue;
        }
        match allowed.request_exceptions.iter().find(|exception| place.contains(&exception.place)) {
            Some(exception) => *counts.exceptions.entry(exception.reason.clone()).or_default() += 1,
            None => counts.unexplained.push(format!("{place}\n{}", wrong.join("\n"))),
        }
    }
}

/// Whether a request needs nothing of the provider's own JSON.
fn is_typed(request: &Request) -> bool {
    let is_raw = |part: &Part| matches!(part, Part::Raw(_));
    let has_raw = request.turns.iter().any(|turn| match turn {
        Turn::User(parts) | Turn::System(parts) => parts.iter().any(is_raw),
        Turn::ToolResults(results) => results.iter().any(|result| result.content.iter().any(is_raw)),
        _ => false,
    });
    !has_raw && request.provider_options.is_empty()
}
