//! Tests of the calls of steps: limits that they share, progress, and stored outputs.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::{
    Code, Ctx, DocStore, Masks, Output, ParameterType, Scope, Secret, ToolError, ToolSpec, tool_fn,
};
use toolpost_flow::{FlowOutcome, Flows, Format, Plan, RunStatus};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::tools::{Ledger, plan, toolbox};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn run(steps: &str) -> (FlowOutcome, Ledger) {
    let ledger = Ledger::default();
    let outcome = block_on(Flows::new(toolbox(&ledger)).run(plan(steps), Value::Null).into_future());
    (outcome.unwrap(), ledger)
}

#[test]
fn steps_share_a_limit_by_its_key() {
    let (_, ledger) = run("steps:
      - { id: a, tool: sleep, with: { ms: 20, name: a }, limit: { key: database, concurrency: 1 } }
      - { id: b, tool: sleep, with: { ms: 20, name: b }, limit: { key: database, concurrency: 1 } }
      - { id: other, tool: sleep, with: { ms: 1, name: c }, limit: { key: other, concurrency: 1 } }");
    let entries = ledger.entries();
    let place = |entry: &str| entries.iter().position(|own| own == entry).unwrap();
    assert!(place("a ends") < place("b begins"), "{entries:?}");
    assert!(place("c ends") < place("a ends"), "{entries:?}");
    // The key of a map's step is the same for all items, and may name the item.
    let map = |limit: &str| {
        let steps = format!(
            "steps:
      - id: each
        map: [x, x, y, y]
        steps: [{{ id: s, tool: sleep, with: {{ ms: 20, name: '${{{{ item }}}}' }}, limit: {limit} }}]"
        );
        let entries = run(&steps).1.entries();
        let mut most = 0;
        for index in 0..entries.len() {
            let so_far = &entries[..=index];
            let begun = so_far.iter().filter(|entry| entry.ends_with("begins")).count();
            most = most.max(begun - so_far.iter().filter(|entry| entry.ends_with("ends")).count());
        }
        most
    };
    assert_eq!(map("{ concurrency: 1 }"), 1);
    assert_eq!(map("{ concurrency: 3 }"), 3);
    assert_eq!(map("{ key: 'name ${{ item }}', concurrency: 1 }"), 2);
}

#[test]
fn steps_share_a_rate() {
    let begun = Instant::now();
    let (outcome, _) = run("steps:
      - id: each
        map: [1, 2, 3, 4, 5]
        steps: [{ tool: echo, with: { value: '${{ item }}' }, limit: { rate: 2/100ms } }]");
    assert_eq!(outcome.status, RunStatus::Succeeded);
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
}

#[test]
fn a_call_without_progress_is_stopped() {
    let spec =
        ToolSpec::new("work", "Work.").parameter("steps", ParameterType::Integer, "Reports of progress.");
    let stopped = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&stopped);
    let work = tool_fn(spec, move |args: toolpost_core::Args, ctx: Ctx| {
        let own = Arc::clone(&own);
        async move {
            for step in 0..args.decode::<u32>("steps")? {
                ctx.progress(format!("step {step}"), None);
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_mins(1)) => {}
                () = ctx.cancelled() => {
                    own.fetch_add(1, Ordering::Relaxed);
                    return Err(ToolError::cancelled("stopped"));
                }
            }
            Ok(Output::text("late"))
        }
    });
    let flows = Flows::new(Toolbox::builder().tool(work).build().unwrap());
    let begun = Instant::now();
    let steps = "steps: [{ id: w, tool: work, with: { steps: 4 }, heartbeat: 200ms }]";
    let outcome = block_on(flows.run(plan(steps), Value::Null).into_future()).unwrap();
    let error = outcome.error.unwrap();
    assert_eq!(
        (error.code(), error.message()),
        (Code::Timeout, "it showed no progress for 200 ms, its `heartbeat`")
    );
    assert_eq!(stopped.load(Ordering::Relaxed), 1);
    // Progress counts.
    assert!((Duration::from_millis(240)..Duration::from_secs(30)).contains(&begun.elapsed()));
}

/// `count` returns how often it was called, and its argument.
fn counting() -> (Toolbox, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&calls);
    let spec = ToolSpec::new("count", "Count.").parameter("value", ParameterType::Any, "Anything.");
    let count = tool_fn(spec, move |args: toolpost_core::Args, _: Ctx| {
        let own = Arc::clone(&own);
        async move {
            let calls = own.fetch_add(1, Ordering::Relaxed) + 1;
            Ok(Output::json(json!([calls, args.get("value")])))
        }
    });
    (Toolbox::builder().tool(count).build().unwrap(), calls)
}

#[test]
fn an_output_stands_for_the_same_call_later() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("data.csv"), "1").unwrap();
    let (toolbox, _) = counting();
    let store: Arc<dyn DocStore> = Arc::new(MemoryStore::default());
    let flows =
        Flows::new(toolbox.clone()).store(Arc::clone(&store)).masks(Masks::new([Secret::new("hidden")]));
    let output_of = |flows: &Flows, cache: &str, value: &str| {
        let steps = format!("steps: [{{ id: c, tool: count, with: {{ value: {value} }}, cache: {cache} }}]");
        let run =
            flows.run(plan(&steps), Value::Null).scope(Scope::new("test").with_working_dir(directory.path()));
        let outcome = block_on(run.into_future()).unwrap();
        outcome.error.map_or(outcome.output[0].clone(), |error| json!(error.message()))
    };
    let files = "{ ttl: 1h, files: [data.csv] }";
    assert_eq!(output_of(&flows, files, "1"), 1);
    assert_eq!(output_of(&flows, files, "1"), 1);
    assert_eq!(output_of(&flows, files, "2"), 2, "other arguments");
    std::fs::write(directory.path().join("data.csv"), "2").unwrap();
    assert_eq!(output_of(&flows, files, "1"), 3, "another file");
    assert_eq!(output_of(&flows, "1h", "1"), 4, "no file");
    assert_eq!(output_of(&flows, "1h", "1"), 4);
    assert_eq!(output_of(&flows, "50ms", "3"), 5);
    std::thread::sleep(Duration::from_millis(60));
    assert_eq!(output_of(&flows, "50ms", "3"), 6, "too old");
    assert_eq!(output_of(&flows, "1h", "hidden"), 7);
    assert_eq!(output_of(&flows, "1h", "hidden"), 8, "a secret is not kept");
    let memory = Flows::new(toolbox);
    assert_eq!(output_of(&memory, "1h", "1"), 9, "nothing is kept without a store");
    assert_eq!(output_of(&memory, "1h", "1"), 10);
    let missing = output_of(&flows, "{ ttl: 1h, files: [nope] }", "1");
    assert!(missing.as_str().unwrap().contains("`cache`, cannot be read"), "{missing}");
    let directory = output_of(&flows, "{ ttl: 1h, files: [.] }", "1");
    assert!(directory.as_str().unwrap().contains("not a regular file"), "{directory}");
}

#[test]
fn old_outputs_leave_the_store() {
    const RUNS: usize = 60;
    let store: Arc<dyn DocStore> = Arc::new(MemoryStore::default());
    let flows = Flows::new(counting().0).store(Arc::clone(&store));
    block_on(async {
        for value in 0..RUNS {
            let steps = format!("steps: [{{ id: c, tool: count, with: {{ value: {value} }}, cache: 1ms }}]");
            flows.run(plan(&steps), Value::Null).into_future().await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let kept = store.list("flow-cache/", None, RUNS).await.unwrap().len();
        assert!(kept < RUNS / 3, "{kept}");
    });
}

#[test]
fn a_record_has_the_pool_of_its_call() {
    let ledger = Ledger::default();
    let toolbox = toolbox(&ledger);
    let flows = Flows::new(toolbox.clone());
    let steps = "steps: [{ tool: echo, with: { value: 1 }, pool: gpu }]";
    block_on(flows.run(plan(steps), Value::Null).into_future()).unwrap();
    assert_eq!(toolbox.records().last().unwrap().metadata["pool"], "gpu");
}

#[test]
fn settings_of_calls_are_checked() {
    for (step, expected) in [
        ("wait: 1s, heartbeat: 1s", "are for calls"),
        ("parallel: [{ tool: x }], pool: gpu", "are for calls"),
        ("tool: x, pool: 'a b'", "the name of a `pool`"),
        ("tool: x, limit: {}", "`limit` has `concurrency`, such as 2, or `rate`, such as 10/m"),
        ("tool: x, limit: { rate: fast }", "`fast` is not a rate"),
        ("tool: x, limit: { concurrency: 0 }", "`concurrency` is a whole number from 1"),
        ("tool: x, cache: { files: [a] }", "`cache` has `ttl`"),
        ("tool: x, cache: soon", "`cache` is a duration"),
        ("tool: x, limit: { key: '${{ nope }}', rate: 1/s }", "there is no `nope` here"),
        ("wait: 1s, timeout: 2s", "a `wait` has no `timeout`"),
        ("tool: x, priority: lowest", "expected background, low, normal, high or critical"),
    ] {
        let text = format!("steps:\n  - {{ id: a, {step} }}\n");
        let error = Plan::parse(&text, Format::Yaml).unwrap_err().to_string();
        assert!(error.contains(expected) && error.starts_with("2:"), "{step}: {error}");
    }
    // A key orders steps as other expressions do.
    let ordered = plan(
        "steps:
      - { id: b, tool: echo, with: { value: 1 }, limit: { key: '${{ steps.a.output }}', concurrency: 1 } }
      - { id: a, tool: echo, with: { value: 1 } }",
    );
    assert!(ordered.to_text().contains("b: echo, after a"), "{}", ordered.to_text());
}

#[test]
fn runs_and_blocks_of_each_kind_have_time_limits() {
    let begun = Instant::now();
    let (outcome, ledger) = run("timeout: 100ms
steps:
  - { id: a, tool: effect, with: { value: a }, compensate: [{ tool: effect, with: { value: undo } }] }
  - { id: b, needs: a, tool: sleep, with: { ms: 60000, name: b } }");
    let error = outcome.error.unwrap();
    assert_eq!((outcome.status, error.code()), (RunStatus::Failed, Code::Timeout));
    assert_eq!(error.message(), "the run took longer than its `timeout`");
    assert_eq!(ledger.entries(), ["a", "b begins", "b is stopped", "undo"]);
    for step in [
        "map: [1, 2, 3], max_parallel: 2, steps: [{ tool: sleep, with: { ms: 60000 } }]",
        "map: [1, 2], failure: continue, steps: [{ tool: sleep, with: { ms: 60000 } }]",
        "loop: { max: 1000 }, steps: [{ tool: sleep, with: { ms: 20 } }]",
        "flow: { steps: [{ tool: sleep, with: { ms: 60000 } }] }",
        "race: [{ tool: sleep, with: { ms: 60000 } }]",
    ] {
        let (outcome, _) = run(&format!("steps:\n  - {{ id: s, timeout: 100ms, {step} }}"));
        let error = outcome.error.unwrap();
        assert_eq!((outcome.status, error.code()), (RunStatus::Failed, Code::Timeout), "{step}: {error}");
        assert_eq!(error.message(), "the steps took longer than their `timeout`", "{step}");
    }
    // A sub-flow has the limit of its plan.
    let (outcome, _) = run("steps: [{ id: s, flow: { timeout: 50ms, steps: [{ wait: 1h }] } }]");
    assert_eq!(outcome.error.unwrap().code(), Code::Timeout);
    // Limits that are not reached change nothing.
    let (outcome, _) = run("timeout: 1h
steps:
  - { id: m, timeout: 1h, map: [1, 2], steps: [{ tool: echo, with: { value: '${{ item }}' } }] }
  - { id: l, timeout: 1h, loop: { max: 3 }, steps: [{ tool: echo, with: { value: '${{ index }}' } }] }
output: ['${{ steps.m.output }}', '${{ steps.l.output }}']");
    assert_eq!(outcome.output, json!([[1, 2], 2]));
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}
