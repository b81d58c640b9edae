//! Runs that the table of plans cannot say: inputs, limits, priorities and many items.

use std::future::IntoFuture as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::Cancellation;
use toolpost_flow::{FlowOutcome, RunStatus, StepStatus};

use crate::tools::{Ledger, flows, plan};

fn run(steps: &str, input: Value) -> (FlowOutcome, Ledger) {
    let (flows, ledger) = flows();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(flows.run(plan(steps), input).into_future()).unwrap();
    (outcome, ledger)
}

#[test]
fn a_run_that_is_not_stored_cannot_be_approved() {
    let (outcome, _) = run("steps: [{ id: ok, approve: 'Go?' }]", Value::Null);
    assert_eq!(outcome.status, RunStatus::Failed);
    assert!(outcome.error.unwrap().message().contains("not stored"));
}

#[test]
fn inputs_are_checked_and_completed() {
    let steps = "input: { n: { type: integer }, more: { type: integer, default: 2 } }
steps: [{ id: s, tool: echo, with: { value: '${{ input.n * input.more }}' } }]";
    assert_eq!(run(steps, json!({ "n": 3 })).0.output, json!(6));
    let (flows, _) = flows();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for input in [json!({}), json!({ "n": "x" }), json!({ "n": 1, "other": 2 }), json!([1])] {
        let error = runtime.block_on(flows.run(plan(steps), input.clone()).into_future()).unwrap_err();
        assert!(error.is_recoverable(), "{input}: {error}");
    }
}

#[test]
fn a_cancelled_run_stops_its_calls_and_undoes_what_it_did() {
    let (flows, ledger) = flows();
    let steps = "steps:
      - { id: a, tool: effect, with: { value: a }, compensate: [{ id: u, tool: effect, with: { value: undo a } }] }
      - { id: b, needs: a, tool: sleep, with: { ms: 60000, name: b } }
      - { id: w, needs: a, wait: 1h }";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let token = Cancellation::new();
    let begun = Instant::now();
    let outcome = runtime.block_on(async {
        let run = flows.run(plan(steps), Value::Null).cancellation(token.clone());
        let cancel = async {
            while !ledger.entries().contains(&"b begins".to_owned()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            token.cancel();
        };
        tokio::join!(run.into_future(), cancel).0.unwrap()
    });
    assert_eq!(outcome.status, RunStatus::Cancelled);
    assert_eq!(ledger.entries(), ["a", "b begins", "b is stopped", "undo a"]);
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn calls_with_a_higher_priority_begin_first() {
    let (flows, ledger) = flows();
    let steps = "steps:
      - { id: a, tool: effect, with: { value: normal } }
      - { id: b, tool: effect, with: { value: low }, priority: low }
      - { id: c, tool: effect, with: { value: critical }, priority: critical }
      - { id: d, tool: effect, with: { value: high }, priority: high }
      - { id: e, tool: effect, with: { value: background }, priority: background }";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(flows.run(plan(steps), Value::Null).max_parallel(1).into_future()).unwrap();
    assert_eq!(ledger.entries(), ["critical", "high", "normal", "low", "background"]);
}

/// A thousand tasks on two slots: none fails because others wait.
#[test]
fn many_items_on_few_slots_all_succeed() {
    let (flows, _) = flows();
    let steps = "steps:
      - id: each
        map: '${{ range(1000) | list }}'
        max_parallel: 1000
        steps: [{ id: e, tool: echo, with: { value: '${{ item }}' } }]";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome =
        runtime.block_on(flows.run(plan(steps), Value::Null).max_parallel(2).into_future()).unwrap();
    assert_eq!(outcome.succeeded, 1001, "{:?}", outcome.error);
    assert_eq!(outcome.output.as_array().unwrap().len(), 1000);
}

#[test]
fn an_outcome_has_the_results_of_the_steps() {
    let steps = "failure: continue
steps:
  - { id: a, tool: echo, with: { value: [1, 2] } }
  - { id: b, tool: fail, with: { message: broken } }
  - { id: c, needs: b, tool: echo, with: { value: 1 } }
  - { id: d, when: false, tool: echo, with: { value: 1 } }
  - { id: e, parallel: [{ id: inner, tool: echo, with: { value: 2 } }] }";
    assert!(run(steps, json!({})).0.step("a").is_none());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let execution = flows().0.run(plan(steps), json!({})).keep_steps();
    let outcome = runtime.block_on(execution.into_future()).unwrap();
    let of = |id: &str| {
        outcome.step(id).map(|step| {
            let error = step.error.map(|error| error.message().to_owned());
            (step.status, Value::clone(&step.output), error)
        })
    };
    assert_eq!(of("a"), Some((StepStatus::Succeeded, json!([1, 2]), None)));
    assert_eq!(of("b"), Some((StepStatus::Failed, Value::Null, Some("broken".to_owned()))));
    assert_eq!(of("c"), Some((StepStatus::Blocked, Value::Null, None)));
    assert_eq!(of("d"), Some((StepStatus::Skipped, Value::Null, None)));
    assert_eq!(of("e"), Some((StepStatus::Succeeded, json!({ "inner": 2 }), None)));
    assert_eq!(of("inner"), None);
}
