//! The parts of a run's output that a limit truncated.

use serde_json::Value;
use toolpost::Truncation;
use toolpost_sandbox::{Captured, Outcome, Reached};

/// The truncated parts of the result of a run.
pub(super) fn parts(outcome: &Outcome) -> Vec<Truncation> {
    let stream = |pointer: &str, captured: &Captured| {
        let returned = (captured.head.len() + captured.tail.len()) as u64;
        (captured.dropped > 0)
            .then(|| Truncation::bytes(pointer, Some(returned + captured.dropped), returned))
    };
    let has_reached = |limit: Reached| outcome.report.reached.contains(&limit);
    let value = has_reached(Reached::Value).then(|| {
        let member = |name: &str| outcome.value.as_ref().and_then(|value| value.get(name));
        let text = member("text").and_then(Value::as_str).unwrap_or_default();
        Truncation::bytes("/value", member("size").and_then(Value::as_u64), text.len() as u64)
    });
    let artifacts = has_reached(Reached::Artifacts)
        .then(|| Truncation::items("/artifacts", outcome.artifacts.len() as u64));
    let streams = [stream("/stdout", &outcome.stdout), stream("/stderr", &outcome.stderr)];
    streams.into_iter().chain([value, artifacts]).flatten().collect()
}
