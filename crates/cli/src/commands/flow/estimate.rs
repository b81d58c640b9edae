//! Estimates of a plan from its past runs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use toolpost_core::format_duration;
use toolpost_flow::{Estimate, Flows, Plan};
use toolpost_toolbox::Toolbox;

use crate::config::Config;
use crate::print::Printer;
use crate::store::{self, LazyStore};
use crate::style::harmless;

/// The figures of past runs; a plan is checked without them, too.
pub(super) async fn from_runs(plan: &Plan, config: &Config, printer: &Printer) -> Option<Estimate> {
    let path = store::path(config).ok().filter(|path| path.exists())?;
    let flows = Flows::new(Toolbox::builder().build().ok()?).store(Arc::new(LazyStore::new(path)));
    flows.estimate(plan).await.unwrap_or_else(|error| {
        printer.warn(&format!("cannot read past runs: {}", error.message()));
        None
    })
}

/// The plan as text, with the figures.
pub(super) fn page(title: &str, plan: &Plan, past: Option<&Estimate>) -> String {
    let Some(past) = past else { return format!("{title}\n{}", harmless(&plan.to_text())) };
    let mut facts = vec![format!("past runs: {}", past.runs)];
    for (name, time) in [("p50", past.p50), ("p90", past.p90)] {
        facts.extend(time.map(|time| format!("{name} {}", format_duration(time))));
    }
    if past.failed > 0 {
        facts.push(format!("{} failed", past.failed));
    }
    if !past.is_same_plan {
        facts.push("of an earlier plan".to_owned());
    }
    let steps = plan.to_text_with(&|path| {
        let step = past.steps.get(path)?;
        Some(format!("p50 {}", format_duration(step.p50)))
    });
    format!("{title}\n{}\n{}", facts.join(", "), harmless(&steps))
}

/// The figures as JSON.
pub(super) fn to_json(past: &Estimate) -> Value {
    let milliseconds = |time: Duration| time.as_micros() as f64 / 1e3;
    let steps: Map<String, Value> = past
        .steps
        .iter()
        .map(|(step, past)| (step.clone(), json!({ "p50_ms": milliseconds(past.p50), "runs": past.runs })))
        .collect();
    json!({
        "runs": past.runs, "same_plan": past.is_same_plan,
        "success_rate": (past.runs - past.failed) as f64 / past.runs as f64,
        "duration_ms": { "p50": past.p50.map(milliseconds), "p90": past.p90.map(milliseconds) },
        "steps": steps,
    })
}
