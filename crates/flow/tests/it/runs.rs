//! One table of plans: how each ends, what it gives, and what it did.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::Cancellation;
use toolpost_flow::{FlowOutcome, RunStatus, StepStatus};

use crate::tools::{Ledger, flows, plan};

struct Case {
    name: &'static str,
    steps: &'static str,
    /// The output, or a part of the error.
    expected: Result<Value, &'static str>,
    /// What the ledger has, in order; parallel entries are sorted.
    effects: &'static [&'static str],
}

fn run(steps: &str, input: Value) -> (FlowOutcome, Ledger) {
    let (flows, ledger) = flows();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(flows.run(plan(steps), input).into_future()).unwrap();
    (outcome, ledger)
}

use std::future::IntoFuture as _;

#[test]
fn each_plan_ends_as_its_row_says() {
    for Case { name, steps, expected, effects } in cases() {
        let (outcome, ledger) = run(steps, json!({}));
        match expected {
            Ok(output) => {
                assert_eq!(outcome.status, RunStatus::Succeeded, "{name}: {:?}", outcome.error);
                assert_eq!(outcome.output, output, "{name}");
            }
            Err(part) => {
                assert_eq!(outcome.status, RunStatus::Failed, "{name}: {}", outcome.output);
                let error = outcome.error.unwrap();
                let text = format!("{error} {}", Value::Object(error.context().clone()));
                assert!(text.contains(part), "{name}: {text}");
            }
        }
        assert_eq!(ledger.entries(), effects, "{name}");
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            name: "a quorum that skipped and tolerated steps cannot reach fails its block",
            steps: "steps:
              - id: two
                failure: { quorum: 2 }
                parallel:
                  - { id: a, when: false, tool: echo, with: { value: 1 } }
                  - { id: b, tool: fail, on_error: continue }
                  - { id: c, tool: sleep, with: { ms: 20000, name: c } }
              - { id: after, needs: two, tool: effect, with: { value: after } }",
            expected: Err("no step succeeded"),
            effects: &["attempt 1 of ", "c begins", "c is stopped"],
        },
        Case {
            name: "a map that was stopped is not undone",
            steps: "steps:
              - id: m
                map: [1, 2]
                steps: [{ id: s, tool: sleep, with: { ms: 20000, name: s } }]
                compensate: [{ id: u, tool: effect, with: { value: undone } }]
              - { id: w, wait: 50ms }
              - { id: f, needs: w, tool: fail }",
            expected: Err("it failed"),
            effects: &["s begins", "s begins", "attempt 1 of ", "s is stopped", "s is stopped"],
        },
        Case {
            name: "what undoes is not undone",
            steps: "steps:
              - id: pay
                tool: effect
                with: { value: pay }
                compensate:
                  - id: refund
                    tool: effect
                    with: { value: refund }
                    compensate: [{ id: again, tool: effect, with: { value: pay again } }]
              - { id: f, needs: pay, tool: fail }",
            expected: Err("it failed"),
            effects: &["pay", "attempt 1 of ", "refund"],
        },
        Case {
            name: "blocks within a step of a pipeline read the output before it",
            steps: "steps:
              - id: l
                loop: { max: 1 }
                steps:
                  - id: p
                    pipeline:
                      - { id: a, tool: echo, with: { value: [1, 2] } }
                      - id: m
                        map: '${{ previous }}'
                        steps: [{ id: e, tool: echo, with: { value: '${{ [item, previous] }}' } }]
                        compensate: [{ id: u, tool: effect, with: { value: 'undo ${{ previous }} ${{ output | length }}' } }]
                      - { id: f, tool: fail, on_error: [{ id: h, tool: echo, with: { value: '${{ previous }}' } }] }
              - { id: last, needs: l, tool: fail, with: { message: 'out ${{ steps.l.output }}' } }",
            expected: Err("[[1,[1,2]],[2,[1,2]]]"),
            effects: &["attempt 1 of ", "attempt 2 of ", "undo [1,2] 2"],
        },
        Case {
            name: "references order the steps, and values keep their types",
            steps: "steps:
              - { id: sum, tool: echo, with: { value: '${{ steps.a.output + steps.b.output }}' } }
              - { id: a, tool: echo, with: { value: 2 } }
              - { id: b, tool: echo, with: { value: '${{ steps.a.output * 3 }}' } }
              - { id: last, tool: echo, with: { value: { sum: '${{ steps.sum.output }}', text: 'is ${{ steps.sum.output }}' } } }",
            expected: Ok(json!({ "sum": 8, "text": "is 8" })),
            effects: &[],
        },
        Case {
            name: "a plan has an output of its own",
            steps: "output: { first: '${{ steps.a.output }}', status: '${{ steps.b.status }}' }
steps:
              - { id: a, tool: echo, with: { value: 1 } }
              - { id: b, tool: echo, with: { value: 2 }, when: 'steps.a.output > 1' }",
            expected: Ok(json!({ "first": 1, "status": "skipped" })),
            effects: &[],
        },
        Case {
            name: "needs order steps without references",
            steps: "steps:
              - { id: c, tool: effect, with: { value: c }, needs: [b] }
              - { id: b, tool: effect, with: { value: b }, needs: a }
              - { id: a, tool: effect, with: { value: a } }",
            expected: Ok(json!("a")),
            effects: &["a", "b", "c"],
        },
        Case {
            name: "what needs a skipped step runs",
            steps: "steps:
              - { id: a, tool: effect, with: { value: a }, when: false }
              - { id: b, tool: effect, with: { value: '${{ steps.a.output is none }}' } }",
            expected: Ok(json!(true)),
            effects: &["true"],
        },
        Case {
            name: "the first failure ends the run",
            steps: "steps:
              - { id: a, tool: fail, with: { message: broken } }
              - { id: b, tool: effect, with: { value: '${{ steps.a.output }}' } }
              - { id: c, tool: sleep, with: { ms: 60000, name: c } }",
            expected: Err("broken"),
            effects: &["attempt 1 of ", "c begins", "c is stopped"],
        },
        Case {
            name: "with continue the others run, and the run fails in the end",
            steps: "failure: continue
steps:
              - { id: a, tool: fail, with: { message: broken } }
              - { id: b, tool: effect, with: { value: '${{ steps.a.output }}' } }
              - { id: c, tool: effect, with: { value: c } }",
            expected: Err("\"step\":\"a\""),
            effects: &["attempt 1 of ", "c"],
        },
        Case {
            name: "a tolerated failure can be read",
            steps: "steps:
              - { id: a, tool: fail, with: { message: broken }, on_error: continue }
              - { id: b, tool: echo, with: { value: '${{ steps.a.status }}: ${{ steps.a.error.message }}' } }",
            expected: Ok(json!("failed: broken")),
            effects: &["attempt 1 of "],
        },
        Case {
            name: "a handler's output is the step's",
            steps: "steps:
              - id: a
                tool: fail
                with: { message: broken }
                on_error:
                  - { id: note, tool: effect, with: { value: 'handled ${{ error.message }}' } }
              - { id: b, tool: echo, with: { value: '${{ steps.a.output }}' } }",
            expected: Ok(json!("handled broken")),
            effects: &["attempt 1 of ", "handled broken"],
        },
        Case {
            name: "a handler that fails is the step's failure",
            steps: "steps:
              - id: a
                tool: fail
                with: { message: first }
                on_error: [{ id: h, tool: fail, with: { message: second } }]",
            expected: Err("second"),
            effects: &["attempt 1 of ", "attempt 2 of "],
        },
        Case {
            name: "an attempt is repeated as often as the plan says",
            steps: "steps:
              - { id: a, tool: fail, with: { times: 2, name: a }, retry: { max: 2, initial: 1ms } }",
            expected: Ok(json!(3)),
            effects: &["attempt 1 of a", "attempt 2 of a", "attempt 3 of a"],
        },
        Case {
            name: "a final failure is not repeated",
            steps: "steps:
              - { id: a, tool: fail, with: { name: a }, retry: { max: 5, initial: 1ms, on: [TIMEOUT] } }",
            expected: Err("it failed"),
            effects: &["attempt 1 of a"],
        },
        Case {
            name: "an attempt has a time limit",
            steps: "steps:
              - { id: a, tool: sleep, with: { ms: 60000, name: a }, timeout: 20ms }",
            expected: Err("TIMEOUT"),
            effects: &["a begins"],
        },
        Case {
            name: "a block has a time limit",
            steps: "steps:
              - id: late
                timeout: 40ms
                sequential:
                  - { id: a, tool: sleep, with: { ms: 5, name: a } }
                  - { id: b, tool: sleep, with: { ms: 60000, name: b } }
                  - { id: c, tool: effect, with: { value: c } }
                on_error: [{ id: note, tool: echo, with: { value: '${{ error.code }}: ${{ error.message }}' } }]",
            expected: Ok(json!("TIMEOUT: the steps took longer than their `timeout`")),
            effects: &["a begins", "a ends", "b begins", "b is stopped"],
        },
        Case {
            name: "a sub-flow has a time limit, also with failures that it tolerates",
            steps: "steps:
              - id: late
                timeout: 40ms
                flow: { failure: continue, steps: [{ id: s, tool: sleep, with: { ms: 60000, name: s } }] }",
            expected: Err("the steps took longer than their `timeout`"),
            effects: &["s begins", "s is stopped"],
        },
        Case {
            name: "a block that ends in time is not stopped",
            steps: "steps:
              - { id: quick, timeout: 20ms, parallel: [{ id: a, tool: echo, with: { value: 1 } }] }
              - { id: after, needs: quick, tool: sleep, with: { ms: 60, name: after } }
              - { id: again, needs: after, timeout: 20ms, race: [{ id: a, tool: echo, with: { value: 2 } }] }",
            expected: Ok(json!(2)),
            effects: &["after begins", "after ends"],
        },
        Case {
            name: "a map gives a list in the order of its items",
            steps: "steps:
              - id: each
                map: [3, 1, 2]
                as: n
                steps:
                  - { id: wait, tool: sleep, with: { ms: '${{ n * 5 }}' } }
                  - { id: out, tool: echo, needs: wait, with: { value: '${{ [index, n] }}' } }
              - { id: last, tool: echo, with: { value: '${{ steps.each.output }}' } }",
            expected: Ok(json!([[0, 3], [1, 1], [2, 2]])),
            effects: &[" begins", " begins", " begins", " ends", " ends", " ends"],
        },
        Case {
            name: "a map over nothing gives nothing",
            steps: "steps:
              - { id: each, map: [], steps: [{ tool: echo, with: { value: 1 } }] }",
            expected: Ok(json!([])),
            effects: &[],
        },
        Case {
            name: "a map needs a list",
            steps: "steps:
              - { id: a, tool: echo, with: { value: 5 } }
              - { id: each, map: '${{ steps.a.output }}', steps: [{ tool: echo, with: { value: 1 } }] }",
            expected: Err("`map` needs a list, not `5`"),
            effects: &[],
        },
        Case {
            name: "a map runs one item after another if it must",
            steps: "steps:
              - id: each
                map: [a, b]
                max_parallel: 1
                steps: [{ id: s, tool: sleep, with: { ms: 5, name: '${{ item }}' } }]",
            expected: Ok(json!(["a", "b"])),
            effects: &["a begins", "a ends", "b begins", "b ends"],
        },
        Case {
            name: "a map fails with its first item",
            steps: "steps:
              - id: each
                map: [1, 2, 3]
                max_parallel: 1
                steps:
                  - { id: f, tool: fail, when: item == 2, with: { message: two } }
                  - { id: e, tool: effect, needs: f, with: { value: '${{ item }}' } }",
            expected: Err("\"step\":\"each[1]"),
            effects: &["1", "attempt 1 of "],
        },
        Case {
            name: "a quorum is enough, and the missing items are null",
            steps: "steps:
              - id: each
                map: [1, 2, 3]
                max_parallel: 1
                failure: { quorum: 1 }
                steps:
                  - { id: f, tool: fail, when: item == 1, with: { message: one } }
                  - { id: e, tool: effect, needs: f, with: { value: '${{ item }}' } }",
            expected: Ok(json!([null, 2, null])),
            effects: &["attempt 1 of ", "2"],
        },
        Case {
            name: "a lost quorum is a failure",
            steps: "steps:
              - id: each
                map: [1, 2]
                failure: { quorum: 2 }
                steps: [{ id: f, tool: fail, when: item == 1, with: { message: one } }]",
            expected: Err("one"),
            effects: &["attempt 1 of "],
        },
        Case {
            name: "a race ends with the first success and stops the others",
            steps: "steps:
              - id: best
                race:
                  - { id: slow, tool: sleep, with: { ms: 60000, name: slow } }
                  - { id: bad, tool: fail }
                  - { id: fast, tool: sleep, with: { ms: 10, name: fast } }
              - { id: last, tool: echo, with: { value: '${{ steps.best.output }}' } }",
            expected: Ok(json!("fast")),
            effects: &["slow begins", "attempt 1 of ", "fast begins", "fast ends", "slow is stopped"],
        },
        Case {
            name: "a parallel block gives all outputs by id",
            steps: "steps:
              - { id: both, parallel: [{ id: a, tool: echo, with: { value: 1 } }, { id: b, tool: echo, with: { value: 2 } }] }",
            expected: Ok(json!({ "a": 1, "b": 2 })),
            effects: &[],
        },
        Case {
            name: "a sequence runs in its order",
            steps: "steps:
              - id: all
                sequential:
                  - { id: a, tool: sleep, with: { ms: 5, name: a } }
                  - { id: b, tool: effect, with: { value: b } }",
            expected: Ok(json!("b")),
            effects: &["a begins", "a ends", "b"],
        },
        Case {
            name: "a pipeline hands each output on",
            steps: "steps:
              - id: all
                pipeline:
                  - { id: a, tool: echo, with: { value: 1 } }
                  - { id: b, tool: echo, with: { value: '${{ previous + 1 }}' } }
                  - { id: c, tool: echo, with: { value: '${{ previous * 10 }}' } }",
            expected: Ok(json!(20)),
            effects: &[],
        },
        Case {
            name: "a loop ends when its condition holds",
            steps: "steps:
              - id: again
                loop: { until: 'steps.n.output >= 3', max: 10 }
                steps: [{ id: n, tool: effect, with: { value: '${{ index + 1 }}' } }]",
            expected: Ok(json!(3)),
            effects: &["1", "2", "3"],
        },
        Case {
            name: "a loop knows the output of the iteration before",
            steps: "steps:
              - id: again
                loop: { max: 4 }
                steps: [{ id: n, tool: echo, with: { value: '${{ (previous or 1) * 2 }}' } }]",
            expected: Ok(json!(16)),
            effects: &[],
        },
        Case {
            name: "a loop that does not end fails",
            steps: "steps:
              - { id: again, loop: { until: 'false', max: 2 }, steps: [{ id: n, tool: echo, with: { value: 1 } }] }",
            expected: Err("after 2 iterations"),
            effects: &[],
        },
        Case {
            name: "a sub-flow has inputs of its own",
            steps: "steps:
              - { id: a, tool: echo, with: { value: 4 } }
              - id: sub
                flow:
                  input: { n: { type: integer }, more: { type: integer, default: 1 } }
                  steps: [{ id: s, tool: echo, with: { value: '${{ input.n + input.more }}' } }]
                with: { n: '${{ steps.a.output }}' }",
            expected: Ok(json!(5)),
            effects: &[],
        },
        Case {
            name: "inputs of a sub-flow are checked",
            steps: "steps:
              - id: sub
                flow: { input: { n: { type: integer } }, steps: [{ id: s, tool: echo, with: { value: '${{ input.n }}' } }] }
                with: { n: text }",
            expected: Err("INVALID_INPUT"),
            effects: &[],
        },
        Case {
            name: "what is done is undone in the reverse order if the run fails",
            steps: "steps:
              - id: a
                tool: effect
                with: { value: book }
                compensate: [{ id: u, tool: effect, with: { value: 'cancel ${{ output }}' } }]
              - id: b
                needs: a
                tool: effect
                with: { value: pay }
                compensate: [{ id: u, tool: effect, with: { value: 'refund ${{ steps.a.output }}' } }]
              - { id: c, needs: b, tool: fail, with: { message: sold out } }",
            expected: Err("sold out"),
            effects: &["book", "pay", "attempt 1 of ", "refund book", "cancel book"],
        },
        Case {
            name: "nothing is undone after a success",
            steps: "steps:
              - { id: a, tool: effect, with: { value: a }, compensate: [{ id: u, tool: effect, with: { value: u } }] }",
            expected: Ok(json!("a")),
            effects: &["a"],
        },
        Case {
            name: "an undoing that fails does not hide the failure",
            steps: "steps:
              - { id: a, tool: effect, with: { value: a }, compensate: [{ id: u, tool: fail, with: { message: stuck } }] }
              - { id: b, needs: a, tool: fail, with: { message: first } }",
            expected: Err("compensation failed: DEPENDENCY: stuck"),
            effects: &["a", "attempt 1 of ", "attempt 2 of "],
        },
        Case {
            name: "an expression that fails is the step's failure",
            steps: "steps:
              - { id: a, tool: echo, with: { value: { x: 1 } } }
              - { id: b, tool: echo, with: { value: '${{ steps.a.output.y }}' } }",
            expected: Err("there is no `y`"),
            effects: &[],
        },
        Case {
            name: "a wait passes",
            steps: "steps:
              - { id: w, wait: 20ms }
              - { id: past, wait: '2001-01-01T00:00:00Z', needs: w }
              - { id: e, tool: effect, needs: past, with: { value: after } }",
            expected: Ok(json!("after")),
            effects: &["after"],
        },
        Case {
            name: "blocks nest, and inner steps read outer ones",
            steps: "steps:
              - { id: n, tool: echo, with: { value: [1, 2] } }
              - id: outer
                map: '${{ steps.n.output }}'
                as: a
                steps:
                  - id: inner
                    map: '${{ steps.n.output }}'
                    as: b
                    steps: [{ id: p, tool: echo, with: { value: '${{ a * 10 + b }}' } }]",
            expected: Ok(json!([[11, 12], [21, 22]])),
            effects: &[],
        },
        Case {
            name: "a block runs as many steps at once as it may",
            steps: "max_parallel: 1
steps:
              - { id: a, tool: sleep, with: { ms: 5, name: a } }
              - { id: b, tool: sleep, with: { ms: 5, name: b } }",
            expected: Ok(json!("b")),
            effects: &["a begins", "a ends", "b begins", "b ends"],
        },
        Case {
            name: "a run that is not stored cannot be approved",
            steps: "steps: [{ id: ok, approve: 'Go?' }]",
            expected: Err("not stored"),
            effects: &[],
        },
        Case {
            name: "an unknown tool is the step's failure",
            steps: "steps: [{ id: a, tool: ech, with: { value: 1 } }]",
            expected: Err("ech"),
            effects: &[],
        },
    ]
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
fn a_run_has_a_time_limit() {
    let (outcome, _) = run("timeout: 100ms\nsteps: [{ id: w, wait: 1h }]", Value::Null);
    assert_eq!(outcome.status, RunStatus::Cancelled);
    assert!(outcome.error.unwrap().message().contains("timeout"));
}

#[test]
fn calls_with_a_higher_priority_begin_first() {
    let (flows, ledger) = flows();
    let steps = "steps:
      - { id: a, tool: effect, with: { value: normal } }
      - { id: b, tool: effect, with: { value: low }, priority: low }
      - { id: c, tool: effect, with: { value: critical }, priority: critical }
      - { id: d, tool: effect, with: { value: high }, priority: high }";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(flows.run(plan(steps), Value::Null).max_parallel(1).into_future()).unwrap();
    assert_eq!(ledger.entries(), ["critical", "high", "normal", "low"]);
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
