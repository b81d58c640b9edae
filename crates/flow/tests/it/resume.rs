//! Stored runs: killed at every point, resumed, signalled, cancelled, taken over.

use std::future::IntoFuture as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{
    Args, CallError, Code, Ctx, DocStore, Masks, Output, RunId, Secret, ToolError, ToolSpec, tool_fn,
};
use toolpost_flow::{
    Durability, FlowEvent, FlowOutcome, FlowProgress, FlowRun, FlowSummary, Flows, Plan, RunStatus,
};
use toolpost_store::Store;
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::observed::Observed;
use crate::tools::{Ledger, append, plan, toolbox};

/// Set for this program as the process that is killed.
const VICTIM: &str = "TOOLPOST_TEST_HELPER";

/// A plan of 30 steps with a map, a loop, a handler, a sub-flow, a skipped step and a retry, all with effects.
pub(crate) fn long_plan(fails: bool) -> Plan {
    let mut steps = String::from("steps:\n");
    for number in 0..8 {
        let needs = if number < 2 { String::new() } else { format!(", needs: [s{}]", number - 2) };
        let undo = format!("compensate: [{{ id: u, tool: effect, with: {{ value: 'undo s{number}' }} }}]");
        let step = format!("id: s{number}, tool: effect, with: {{ value: s{number} }}{needs}, {undo}");
        steps.extend(["  - { ", &step, " }\n"]);
    }
    steps.push_str(
        "  - id: each
    map: '${{ range(6) | list }}'
    max_parallel: 3
    needs: [s1]
    steps:
      - { id: a, tool: effect, with: { value: 'a${{ item }}' } }
      - { id: b, tool: effect, with: { value: 'b${{ steps.a.output }}' } }
  - id: again
    loop: { until: 'steps.n.output == \"n2\"', max: 5 }
    needs: [s0]
    steps: [{ id: n, tool: effect, with: { value: 'n${{ index }}' } }]
  - id: handled
    tool: broken
    needs: [s2]
    on_error: [{ id: h, tool: effect, with: { value: handler } }]
  - { id: never, tool: effect, when: false, with: { value: never } }
  - id: sub
    needs: [never]
    flow: { steps: [{ id: x, tool: effect, with: { value: x } }, { id: y, tool: effect, with: { value: 'y${{ steps.x.output }}' } }] }
  - { id: w, wait: 1ms, needs: [s3] }
",
    );
    let last = if fails { "broken" } else { "effect" };
    let with = if fails { "{}" } else { "{ value: last }" };
    let step = format!("id: last, tool: {last}, with: {with}, needs: [s6, s7, each, again, handled, sub, w]");
    steps.extend(["  - { ", &step, " }\n"]);
    plan(&steps)
}

/// Tools whose effects are lines of a file, with the idempotency key.
pub(crate) fn file_toolbox(ledger: &Path) -> Toolbox {
    let path = ledger.to_owned();
    let spec = ToolSpec::new("effect", "Write a line.")
        .input(json!({ "type": "object", "properties": { "value": {} }, "required": ["value"] }));
    let effect = tool_fn(spec, move |args: Args, ctx: Ctx| {
        let path = path.clone();
        async move {
            let value = args.get("value").cloned().unwrap_or_default();
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
            let key = ctx.idempotency_key().unwrap_or_default().to_owned();
            let step = key.split_once('/').map_or("", |(_, step)| step);
            writeln!(file, "{step}={value}")?;
            Ok::<_, ToolError>(Output::json(value))
        }
    });
    let broken = tool_fn(ToolSpec::new("broken", "Fail."), async |_, _| {
        Err::<Output, _>(ToolError::invalid_input("broken"))
    });
    Toolbox::builder().tool(effect).tool(broken).build().unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The process that is killed: `DIRECTORY POINT before|after fails|ends PARALLEL`.
#[test]
fn helper_victim() {
    #[expect(clippy::disallowed_methods, reason = "the test that starts this one says so")]
    let Ok(words) = std::env::var(VICTIM) else { return };
    let [directory, point, when, how, parallel] = words.split(' ').collect::<Vec<_>>()[..] else { return };
    let (directory, parallel) = (Path::new(directory), parallel.parse().unwrap());
    let inner = Arc::new(Store::open(directory.join("store")).unwrap());
    let (point, after): (u64, bool) = (point.parse().unwrap(), when == "after");
    let store = Observed::new(inner, move |number, is_done| {
        let is_point = (number, is_done) == (point, after);
        if is_point {
            let mut out = std::io::stdout();
            let _ = out.write_all(b"POINT\n").and_then(|()| out.flush());
        }
        is_point
    });
    let flows = Flows::new(file_toolbox(&directory.join("ledger"))).store(store);
    let _ = runtime().block_on(async {
        match flows.find("last").await {
            // One call at a time makes one commit of each event.
            Ok(id) => flows.resume(id).max_parallel(parallel).into_future().await,
            Err(_) => {
                let run = flows.run(long_plan(how == "fails"), Value::Null);
                run.max_parallel(parallel).into_future().await
            }
        }
    });
}

/// Runs the victim until it stops at its point, and kills it. Returns whether it ended before.
fn kill_at(directory: &Path, point: u64, when: &str, how: &str, parallel: usize) -> bool {
    #[expect(clippy::disallowed_methods, reason = "this test program itself, to be killed")]
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let words = format!("{} {point} {when} {how} {parallel}", directory.display());
    let mut victim = command
        .args(["resume::helper_victim", "--exact", "--nocapture"])
        .env(VICTIM, words)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map_while(Result::ok);
    let stopped = lines.any(|line| line.ends_with("POINT"));
    // SIGKILL.
    let _ = victim.kill();
    victim.wait().unwrap();
    !stopped
}

pub(crate) fn finish(directory: &Path) -> FlowOutcome {
    let store: Arc<dyn DocStore> = Arc::new(Store::open(directory.join("store")).unwrap());
    let flows = Flows::new(file_toolbox(&directory.join("ledger"))).store(store);
    runtime().block_on(async {
        let id = flows.find("last").await.unwrap();
        let outcome = flows.resume(id).into_future().await.unwrap();
        let loaded = flows.load(id).await.unwrap();
        assert_eq!(loaded.summary.status, outcome.status);
        outcome
    })
}

/// The steps that were repeated, and all of them without repetitions.
pub(crate) fn effects(directory: &Path) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(directory.join("ledger")).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let all = lines.len();
    lines.sort();
    lines.dedup();
    (all - lines.len(), lines)
}

/// SIGKILL before and after every single commit of a run: after the resumption every step has run, and only the steps in
/// flight ran twice.
#[test]
fn a_run_killed_at_any_point_ends_with_each_step_done() {
    for how in ["ends", "fails"] {
        let whole = tempfile::tempdir().unwrap();
        assert!(kill_at(whole.path(), u64::MAX, "before", how, 1));
        let (repeated, expected) = effects(whole.path());
        assert_eq!(repeated, 0);
        assert!(expected.len() >= 27, "{expected:?}");
        let undone = expected.iter().filter(|line| line.contains("undo")).count();
        assert_eq!(undone, if how == "fails" { 8 } else { 0 });
        let mut points = 0;
        for point in 1.. {
            let mut ended = 0;
            for when in ["before", "after"] {
                let directory = tempfile::tempdir().unwrap();
                if kill_at(directory.path(), point, when, how, 1) {
                    ended += 1;
                    continue;
                }
                points += 1;
                if point == 1 && when == "before" {
                    // Nothing is stored, and nothing was done.
                    assert_eq!(effects(directory.path()), (0, Vec::new()));
                    continue;
                }
                let store = Store::open(directory.path().join("store")).unwrap();
                let is_over = runtime().block_on(async {
                    let flows = Flows::new(toolbox(&Ledger::default())).store(Arc::new(store));
                    let id = flows.find("last").await.unwrap();
                    flows.summary(id).await.unwrap().status != RunStatus::Running
                });
                if !is_over {
                    let outcome = finish(directory.path());
                    let status = if how == "fails" { RunStatus::Failed } else { RunStatus::Succeeded };
                    assert_eq!(outcome.status, status, "{point} {when} {:?}", outcome.error);
                }
                let (repeated, done) = effects(directory.path());
                assert_eq!(done, expected, "{how} {point} {when}");
                // At most the steps in flight: three items, the chains, the loop, the sub-flow.
                assert!(repeated <= 8, "{how} {point} {when}: {repeated} steps were repeated");
            }
            if ended == 2 {
                break;
            }
        }
        assert!(points >= 20, "only {points} points");
    }
}

/// One run killed again and again, at the third commit of each process.
#[test]
fn a_run_that_is_killed_again_and_again_ends() {
    let directory = tempfile::tempdir().unwrap();
    let mut kills = 0;
    while !kill_at(directory.path(), 3, "after", "ends", 8) {
        kills += 1;
        assert!(kills < 200, "it makes no progress");
    }
    let (_, done) = effects(directory.path());
    assert!(kills >= 2 && done.iter().any(|line| line == "last=\"last\""), "{kills} {done:?}");
}

fn stored(store: &Arc<dyn DocStore>) -> (Flows, Ledger) {
    let ledger = Ledger::default();
    (Flows::new(toolbox(&ledger)).store(Arc::clone(store)), ledger)
}

/// Waits until a run is stored and as it should be.
async fn until(flows: &Flows, id: RunId, is_so: impl Fn(&FlowSummary) -> bool) {
    while !flows.summary(id).await.is_ok_and(|run| is_so(&run)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Continues a run that another process may still work on.
async fn take_over(flows: &Flows, id: RunId) -> Result<FlowOutcome, CallError> {
    until(flows, id, |_| true).await;
    flows.resume(id).into_future().await
}

fn memory() -> Arc<dyn DocStore> {
    Arc::new(MemoryStore::new())
}

#[test]
fn a_run_waits_for_signals_and_approvals_of_other_processes() {
    let store = memory();
    let (flows, ledger) = stored(&store);
    let steps = "steps:
      - { id: ok, approve: 'Publish?' }
      - { id: data, signal: figures, needs: ok }
      - { id: a, tool: effect, with: { value: '${{ steps.data.output.n + 1 }}' } }";
    let (others, _) = stored(&store);
    let outcome = runtime().block_on(async {
        let run = flows.run(plan(steps), Value::Null);
        let id = run.id();
        let send = async {
            until(&others, id, |run| run.waiting == ["ok"]).await;
            others.signal(id, "figures", json!({ "n": 41 })).await.unwrap();
            others.answer(id, Some("ok"), json!({ "approved": true })).await.unwrap();
        };
        let (outcome, ()) = tokio::join!(run.into_future(), send);
        assert_eq!(others.signal(id, "ok", Value::Null).await.unwrap_err().code(), Code::Precondition);
        outcome.unwrap()
    });
    assert_eq!((outcome.status, outcome.output), (RunStatus::Succeeded, json!(42)));
    assert_eq!(ledger.entries(), ["42"]);
}

#[test]
fn the_items_of_a_map_are_counted_also_after_a_resumption() {
    let store = memory();
    let (flows, _) = stored(&store);
    let steps = "steps:
      - id: each
        map: [0, 1, 2, 3, 4, 5]
        max_parallel: 2
        steps:
          - { id: wanted, when: '${{ item == 4 }}', signal: go }
          - { id: echo, needs: wanted, tool: echo, with: { value: '${{ item }}' } }";
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let counted = |run: FlowRun| {
        let seen = Arc::clone(&seen);
        run.on_progress(move |progress| match progress {
            FlowProgress::Items { step, ended, count } => {
                seen.lock().unwrap().push(format!("{step} {ended}/{count}"));
            }
            FlowProgress::Ended { step, .. } if &**step == "each" => {
                seen.lock().unwrap().push("end".to_owned());
            }
            _ => {}
        })
    };
    let take = || {
        let mut seen = std::mem::take(&mut *seen.lock().unwrap());
        seen.dedup();
        seen
    };
    runtime().block_on(async {
        let run = counted(flows.run(plan(steps), Value::Null));
        let id = run.id();
        tokio::select! {
            _ = run.into_future() => unreachable!(),
            () = until(&flows, id, |_| seen.lock().unwrap().contains(&"each 5/6".to_owned())) => {}
        }
        assert_eq!(take(), ["each 0/6", "each 1/6", "each 2/6", "each 3/6", "each 4/6", "each 5/6"]);
        flows.signal(id, "go", Value::Null).await.unwrap();
        counted(flows.resume(id)).into_future().await.unwrap();
        assert_eq!(take(), ["each 5/6", "end"]);
    });
}

#[test]
fn a_denied_approval_and_a_late_one_fail_the_step() {
    for (answer, timeout, part) in [
        (
            Some(json!({ "approved": false, "comment": "too early" })),
            "1h",
            "PERMISSION: it was denied: too early",
        ),
        (None, "100ms", "TIMEOUT: no answer in time"),
    ] {
        let store = memory();
        let (flows, _) = stored(&store);
        let steps = format!("steps: [{{ id: ok, approve: 'Go?', timeout: {timeout} }}]");
        let outcome = runtime().block_on(async {
            let run = flows.run(plan(&steps), Value::Null);
            let id = run.id();
            let send = async {
                if let Some(answer) = answer {
                    until(&flows, id, |_| true).await;
                    flows.answer(id, Some("ok"), answer).await.unwrap();
                }
            };
            tokio::join!(run.into_future(), send).0.unwrap()
        });
        assert_eq!(outcome.status, RunStatus::Failed);
        assert!(outcome.error.unwrap().to_string().contains(part));
    }
}

/// Runs until the approval `ok` waits, and ends as a killed process does. The deadline is in half a second.
async fn interrupted(flows: &Flows) -> RunId {
    let steps = "steps:
      - { id: ok, approve: 'Go?', timeout: 500ms }
      - { id: e, tool: effect, needs: ok, with: { value: '${{ steps.ok.output.by }}' } }";
    let run = flows.run(plan(steps), Value::Null);
    let id = run.id();
    tokio::select! {
        _ = run.into_future() => unreachable!(),
        () = until(flows, id, |run| run.waiting == ["ok"]) => {}
    }
    id
}

fn approved(by: &str) -> Value {
    json!({ "approved": true, "by": by })
}

const AFTER_THE_DEADLINE: Duration = Duration::from_millis(600);

#[test]
fn an_answer_from_before_the_deadline_counts_when_the_run_is_resumed_after_it() {
    let store = memory();
    let (flows, ledger) = stored(&store);
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    runtime().block_on(async {
        let id = interrupted(&flows).await;
        flows.answer(id, None, approved("ada")).await.unwrap();
        assert_eq!(flows.load(id).await.unwrap().unread.len(), 1);
        tokio::time::sleep(AFTER_THE_DEADLINE).await;
        let sink = Arc::clone(&seen);
        let run = flows.resume(id).on_progress(move |event| sink.lock().unwrap().push(event.to_string()));
        assert_eq!(run.into_future().await.unwrap().status, RunStatus::Succeeded);
        let stored = flows.load(id).await.unwrap();
        assert_eq!((stored.output, stored.unread.len()), (json!("ada"), 0));
    });
    assert_eq!(ledger.entries(), ["ada"]);
    let seen = seen.lock().unwrap();
    assert!(!seen.iter().any(|line| line.contains("waits for")), "{seen:?}");
}

#[test]
fn an_answer_after_the_deadline_is_rejected_and_does_not_count() {
    let store = memory();
    let (flows, ledger) = stored(&store);
    runtime().block_on(async {
        let id = interrupted(&flows).await;
        tokio::time::sleep(AFTER_THE_DEADLINE).await;
        let error = flows.answer(id, Some("ok"), approved("ada")).await.unwrap_err();
        assert_eq!(error.code(), Code::Precondition);
        assert!(error.message().starts_with("the deadline of the step `ok` was 2"), "{error}");
        // A message that nothing checked has a time, too.
        let message = json!({ "event": "answered", "step": "ok", "answer": approved("ada") });
        append(&*store, &format!("flow-inboxes/{id}"), json!({ "v": 2, "messages": 1 }), message).await;
        let outcome = flows.resume(id).into_future().await.unwrap();
        assert_eq!(outcome.error.unwrap().message(), "no answer in time");
    });
    assert!(ledger.entries().is_empty());
}

#[test]
fn a_step_takes_one_answer() {
    let store = memory();
    let (flows, ledger) = stored(&store);
    runtime().block_on(async {
        let id = interrupted(&flows).await;
        let unknown = flows.answer(id, Some("e"), approved("ada")).await.unwrap_err();
        assert_eq!(unknown.message(), "name one of the steps that wait: ok");
        // Of two at once one is first.
        let (first, second) = tokio::join!(
            flows.answer(id, None, approved("ada")),
            flows.answer(id, Some("ok"), json!({ "approved": false, "by": "bob", "comment": "no" })),
        );
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        let expected = if first.is_ok() { "approved by ada" } else { "denied by bob, no" };
        let expected = format!("the step `ok` already has an answer: {expected}");
        for step in [None, Some("ok")] {
            let error = flows.answer(id, step, approved("eve")).await.unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::Conflict, expected.as_str()));
        }
        let outcome = flows.resume(id).into_future().await.unwrap();
        assert_eq!(outcome.status == RunStatus::Succeeded, first.is_ok());
        let error = flows.answer(id, None, approved("eve")).await.unwrap_err();
        assert_eq!(error.message(), "no step of the run waits for an approval");
        assert!(ledger.entries().len() < 2);
    });
}

#[test]
fn another_process_cancels_a_run() {
    let store = memory();
    let (flows, ledger) = stored(&store);
    let (others, _) = stored(&store);
    let outcome = runtime().block_on(async {
        let run =
            flows.run(plan("steps: [{ id: s, tool: sleep, with: { ms: 60000, name: s } }]"), Value::Null);
        let id = run.id();
        let cancel = async {
            while ledger.entries().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            others.cancel(id, "enough").await.unwrap();
        };
        tokio::join!(run.into_future(), cancel).0.unwrap()
    });
    assert_eq!(outcome.status, RunStatus::Cancelled);
    assert_eq!(outcome.error.unwrap().message(), "enough");
    assert_eq!(ledger.entries(), ["s begins", "s is stopped"]);
}

#[test]
fn of_two_processes_that_continue_a_run_one_stops() {
    let store = memory();
    let (flows, _) = stored(&store);
    let (second, _) = stored(&store);
    runtime().block_on(async {
        let steps = "steps:
          - { id: s, tool: sleep, with: { ms: 300, name: s } }
          - { id: e, tool: echo, needs: s, with: { value: 1 } }";
        let run = flows.run(plan(steps), Value::Null);
        let id = run.id();
        let (first, resumed) = tokio::join!(run.into_future(), take_over(&second, id));
        assert_eq!(first.unwrap_err().code(), Code::Conflict);
        assert_eq!(resumed.unwrap().output, json!(1));
        let error = second.resume(id).into_future().await.unwrap_err();
        assert!(error.message().contains("has ended (succeeded)"), "{error}");
    });
}

#[test]
fn a_process_that_lost_its_run_does_no_more_steps() {
    let store = memory();
    let (flows, ledger) = stored(&store);
    let (second, _) = stored(&store);
    runtime().block_on(async {
        let steps = "steps:
          - { id: s, tool: sleep, with: { ms: 300, name: s } }
          - { id: t, tool: sleep, needs: s, with: { ms: 100, name: t } }
          - { id: u, tool: effect, needs: t, with: { value: late } }";
        let run = flows.run(plan(steps), Value::Null).durability(Durability::Normal);
        let id = run.id();
        let (first, resumed) = tokio::join!(run.into_future(), take_over(&second, id));
        assert_eq!(first.unwrap_err().code(), Code::Conflict);
        assert_eq!(resumed.unwrap().status, RunStatus::Succeeded);
    });
    assert!(!ledger.entries().contains(&"late".to_owned()), "{:?}", ledger.entries());
}

/// The last signals do not fit. The run continues, and can be read, as it could when they came.
#[test]
fn events_that_do_not_fit_spoil_no_stored_run() {
    let store = memory();
    let (flows, _) = stored(&store);
    let (others, _) = stored(&store);
    runtime().block_on(async {
        let steps = "steps:
          - { id: s, signal: go }
          - id: each
            needs: s
            when: '${{ false }}'
            map: [1]
            steps: [{ id: t, signal: unread }]
output: '${{ steps.s.output }}'";
        let run = flows.run(plan(steps), Value::Null);
        let id = run.id();
        let send = async {
            until(&others, id, |run| run.waiting == ["go"]).await;
            for number in 0..1_005 {
                others.signal(id, "unread", json!(number)).await.unwrap();
            }
            others.signal(id, "go", json!("end")).await.unwrap();
        };
        let (outcome, ()) = tokio::join!(run.into_future(), send);
        assert_eq!(outcome.unwrap().output, json!("end"));
        assert_eq!(others.load(id).await.unwrap().output, json!("end"));
    });
}

#[test]
fn secrets_are_masked_in_values_and_nowhere_else() {
    let store = memory();
    let (flows, _) = stored(&store);
    let masks = Masks::new(["hunter2", "12"].map(Secret::new));
    let flows = flows.masks(masks);
    runtime().block_on(async {
        let steps = "steps: [{ id: id, tool: echo, with: { value: { hunter2: [hunter2, 1234] } } }]";
        let run = flows.run(plan(steps), json!({ "word": "a hunter2" }));
        let id = run.id();
        run.into_future().await.unwrap();
        let read = flows.load(id).await.unwrap();
        let text = format!("{:?} {} {}", &read.events[1..], read.input, read.output);
        assert!(!text.contains("hunter2"), "{text}");
        assert_eq!(read.output, json!({ "[secret]": ["[secret]", 1234] }));
        let steps = read
            .events
            .iter()
            .filter(|(_, event)| matches!(event, FlowEvent::StepSucceeded { step, .. } if step == "id"));
        assert_eq!(steps.count(), 1, "{text}");
    });
}

#[test]
fn a_run_keeps_the_plan_that_it_began_with_and_is_listed() {
    let store = memory();
    let (flows, _) = stored(&store);
    runtime().block_on(async {
        let begun = plan("name: first\nsteps: [{ id: a, tool: echo, with: { value: 1 } }]");
        let hash = begun.hash().to_owned();
        for durability in [Durability::Full, Durability::Normal, Durability::None] {
            let outcome = flows
                .run(Plan::from_value(begun.source()).unwrap(), Value::Null)
                .durability(durability)
                .into_future()
                .await
                .unwrap();
            assert_eq!(outcome.output, json!(1));
        }
        let listed = flows.list_all(10).await.unwrap();
        assert_eq!(listed.len(), 2, "a run without durability is not stored");
        assert!(
            listed
                .iter()
                .all(|run| run.hash == hash && run.status == RunStatus::Succeeded && run.succeeded == 1)
        );
        let loaded = flows.load(listed[0].id).await.unwrap();
        assert_eq!((loaded.plan.name(), loaded.output), ("first", json!(1)));
        assert!(matches!(loaded.events[0].1, FlowEvent::RunStarted { .. }));
        assert!(flows.delete(listed[0].id).await.unwrap());
        assert_eq!(flows.list_all(10).await.unwrap().len(), 1);
        assert_eq!(flows.find("zzz").await.unwrap_err().code(), Code::NotFound);
    });
}

#[test]
fn a_large_output_is_stored_in_pieces_and_read_back() {
    let store = memory();
    let (flows, _) = stored(&store);
    runtime().block_on(async {
        let steps = "input: { text: { type: string } }
steps: [{ id: a, tool: echo, with: { value: '${{ input.text }}' } }]";
        let text = "ä\"".repeat(700_000);
        let outcome = flows.run(plan(steps), json!({ "text": text })).into_future().await.unwrap();
        let loaded = flows.load(outcome.id).await.unwrap();
        assert!(loaded.output == json!(text));
    });
}
