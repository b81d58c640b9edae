//! Stored runs and what should not happen to them: two resumers, a changed file, a journal of a newer version, a clock that
//! jumps, and signals without a run or a step.

use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_core::{CallError, Clock, Code, DocStore as _, RunId, SystemClock, Timestamp};
use toolpost_flow::{FlowOutcome, FlowProgress, FlowRun, Flows, Plan, RunStatus};
use toolpost_toolbox::MemoryStore;

use crate::resume::runtime;
use crate::tools::{Ledger, append, plan, toolbox};

fn stored(store: &Arc<MemoryStore>) -> (Flows, Ledger) {
    let ledger = Ledger::default();
    (Flows::new(toolbox(&ledger)).store(store.clone()), ledger)
}

/// Runs until a step waits or begins, and drops the run there, as a process that dies.
async fn abandon(run: FlowRun, step: &str) -> RunId {
    let id = run.id();
    let seen = Arc::new(tokio::sync::Notify::new());
    let (shown, step) = (Arc::clone(&seen), step.to_owned());
    let run = run.on_progress(move |event| {
        if matches!(event, FlowProgress::Started { step: own, .. } | FlowProgress::Waiting { step: own, .. } if **own == *step) {
            shown.notify_one();
        }
    });
    tokio::select! {
        outcome = run.into_future() => panic!("{outcome:?}"),
        () = async {
            seen.notified().await;
            // The starts and the waits are stored a little later.
            tokio::time::sleep(Duration::from_millis(80)).await;
        } => id,
    }
}

#[test]
fn of_two_resumers_one_continues_and_the_other_stops() {
    const ROUNDS: usize = 8;
    let steps = "steps:
      - { id: s, signal: go, timeout: 1h }
      - { id: e, tool: effect, needs: s, with: { value: once } }";
    for round in 0..ROUNDS {
        let store = Arc::new(MemoryStore::new());
        let (flows, _) = stored(&store);
        runtime().block_on(async {
            let id = abandon(flows.run(plan(steps), Value::Null), "s").await;
            flows.signal(id, "go", Value::Null).await.unwrap();
            let both = [stored(&store), stored(&store)];
            let start = Arc::new(tokio::sync::Barrier::new(2));
            let resume = |(flows, _): &(Flows, Ledger)| {
                let (run, start) = (flows.resume(id), Arc::clone(&start));
                tokio::spawn(async move {
                    start.wait().await;
                    run.into_future().await
                })
            };
            let tasks = both.each_ref().map(resume);
            let mut outcomes = Vec::new();
            for task in tasks {
                outcomes.push(task.await.unwrap());
            }
            let (ended, failed): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
            assert_eq!((ended.len(), failed.len()), (1, 1), "round {round}");
            for error in failed.into_iter().filter_map(Result::err) {
                assert_eq!(error.code(), Code::Conflict, "{error}");
                assert!(error.message().contains("another process continues this run"), "{error}");
            }
            let effects: Vec<String> = both.iter().flat_map(|(_, ledger)| ledger.entries()).collect();
            assert_eq!(effects, ["once"], "round {round}");
        });
    }
}

#[test]
fn a_changed_file_does_not_change_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("plan.yaml");
    let text = "name: first
steps:
  - { id: s, signal: go, timeout: 1h }
  - { id: sub, needs: s, flow: part.yaml }
";
    let part = |value: &str| format!("steps: [{{ id: e, tool: effect, with: {{ value: {value} }} }}]");
    std::fs::write(&file, text).unwrap();
    std::fs::write(directory.path().join("part.yaml"), part("old")).unwrap();
    let store = Arc::new(MemoryStore::new());
    let (flows, ledger) = stored(&store);
    runtime().block_on(async {
        let begun = Plan::read(&file).unwrap();
        let hash = begun.hash().to_owned();
        let id = abandon(flows.run(begun, Value::Null), "s").await;
        for change in [part("new"), "steps: []".to_owned(), "no plan: [".to_owned()] {
            std::fs::write(directory.path().join("part.yaml"), &change).unwrap();
            std::fs::write(&file, change).unwrap();
            assert!(Plan::read(&file).map_or(true, |changed| changed.hash() != hash));
        }
        flows.signal(id, "go", Value::Null).await.unwrap();
        let outcome = flows.resume(id).into_future().await.unwrap();
        assert_eq!(outcome.output, json!("old"));
        let loaded = flows.load(id).await.unwrap();
        assert_eq!((loaded.summary.hash.as_str(), loaded.plan.hash()), (hash.as_str(), hash.as_str()));
    });
    assert_eq!(ledger.entries(), ["old"]);
}

/// Changes the stored value of a run, or appends an event to it.
async fn write(store: &MemoryStore, id: RunId, change: impl Fn(&mut Value), event: Value) {
    let document = store.load(&format!("flows/{id}")).await.unwrap();
    let mut value = Value::clone(&document.value);
    change(&mut value);
    append(store, &document.id, value, event).await;
}

#[test]
fn a_run_of_a_newer_version_is_left_alone() {
    let event = |text: &str| json!({ "v": 1, "part": 0, "text": text });
    let unknown = r#"[["2026-01-01T00:00:00Z", { "event": "step_teleported", "step": "s" }]]"#;
    let rows: [(u8, Value, &str); 4] = [
        (3, event("[]"), "has format 3, but this program supports formats up to 2"),
        (
            1,
            json!({ "v": 3, "part": 0, "text": "[]" }),
            "has format 3, but this program supports formats up to 2",
        ),
        (1, event(unknown), "unknown variant `step_teleported`"),
        (1, event("[["), "EOF"),
    ];
    for (version, event, expected) in rows {
        let store = Arc::new(MemoryStore::new());
        let (flows, ledger) = stored(&store);
        runtime().block_on(async {
            let id =
                abandon(flows.run(plan("steps: [{ id: s, signal: go, timeout: 1h }]"), Value::Null), "s")
                    .await;
            write(&store, id, |head| head["v"] = version.into(), event).await;
            let before = store.load(&format!("flows/{id}")).await.unwrap().version;
            let check = |what: &str, error: CallError| {
                let is_newer = expected.contains("format");
                let code = if is_newer { Code::Precondition } else { Code::Dependency };
                assert_eq!(error.code(), code, "{what}: {error}");
                assert!(error.message().contains(&format!("the stored run `{id}` ")), "{what}: {error}");
                assert!(error.message().contains(expected), "{what}: {error}");
                assert!(
                    error.suggestion().is_some_and(|fix| fix.contains("program that wrote it")),
                    "{error}"
                );
            };
            check("resume", flows.resume(id).into_future().await.unwrap_err());
            check("load", flows.load(id).await.unwrap_err());
            if version > 1 {
                check("summary", flows.summary(id).await.unwrap_err());
                check("signal", flows.signal(id, "go", Value::Null).await.unwrap_err());
                check("cancel", flows.cancel(id, "enough").await.unwrap_err());
                assert_eq!(flows.list_all(10).await.unwrap(), []);
            }
            let after = store.load(&format!("flows/{id}")).await.unwrap().version;
            assert_eq!(before, after, "it was changed");
        });
        assert_eq!(ledger.entries(), [""; 0]);
    }
}

#[test]
fn messages_to_no_run_are_errors() {
    let store = Arc::new(MemoryStore::new());
    let (flows, _) = stored(&store);
    runtime().block_on(async {
        let outcome = flows
            .run(plan("steps: [{ id: a, tool: echo, with: { value: 1 } }]"), Value::Null)
            .into_future()
            .await
            .unwrap();
        let unknown = RunId::new();
        for (id, code, part) in [
            (outcome.id, Code::Precondition, "the run has ended (succeeded)".to_owned()),
            (unknown, Code::NotFound, format!("there is no run `{unknown}`")),
        ] {
            for error in [
                flows.signal(id, "go", Value::Null).await.unwrap_err(),
                flows.cancel(id, "enough").await.unwrap_err(),
                flows.resume(id).into_future().await.map(|outcome| outcome.status).unwrap_err(),
            ] {
                assert_eq!((error.code(), error.message()), (code, part.as_str()));
            }
        }
    });
}

/// A clock whose time of day is changed.
#[derive(Clone, Debug, Default)]
struct Jumping(Arc<AtomicI64>);

const DAY: i64 = 86_400_000_000;

impl Jumping {
    fn jump(&self, micros: i64) {
        self.0.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for Jumping {
    fn instant(&self) -> Instant {
        SystemClock.instant()
    }

    fn timestamp(&self) -> Timestamp {
        let now = SystemClock.timestamp().as_micros();
        Timestamp::from_micros(now.saturating_add_signed(self.0.load(Ordering::SeqCst)))
    }
}

/// Steps that wait for a time, each with its own clock arithmetic: a wait, a delay of a retry, a limit of a block and of the
/// run, and a signal with a limit.
const WAITS: &str = "timeout: 1h
steps:
  - { id: begun, tool: sleep, with: { ms: 150, name: begun } }
  - { id: w, wait: 200ms }
  - { id: r, tool: fail, with: { times: 1, name: r }, retry: { max: 1, initial: 200ms } }
  - { id: b, timeout: 30m, sequential: [{ id: c, wait: 200ms }] }
  - { id: s, signal: go, timeout: 30m }
  - { id: late, signal: never, timeout: 300ms, on_error: continue }
  - { id: e, tool: effect, needs: [begun, w, r, b, s, late], with: { value: '${{ steps.late.error.code }}' } }";

/// Runs it to its end, for 20 s at most.
async fn limited(run: FlowRun) -> Result<FlowOutcome, CallError> {
    const LIMIT: Duration = Duration::from_secs(20);
    tokio::time::timeout(LIMIT, run.into_future()).await.unwrap()
}

fn check(outcome: Result<FlowOutcome, CallError>, took: Duration, context: &str) {
    let outcome = outcome.unwrap();
    assert_eq!(
        (outcome.status, outcome.output),
        (RunStatus::Succeeded, json!("TIMEOUT")),
        "{context}: {:?}",
        outcome.error
    );
    assert!(took > Duration::from_millis(140), "{context}: {took:?}");
}

#[test]
fn a_clock_that_jumps_during_a_run_changes_no_wait() {
    for jumps in [[DAY, -DAY], [-DAY, DAY], [-DAY, -DAY], [DAY, DAY]] {
        let store = Arc::new(MemoryStore::new());
        let (flows, _) = stored(&store);
        let clock = Jumping::default();
        let flows = flows.clock(Arc::new(clock.clone()));
        runtime().block_on(async {
            let begun = Instant::now();
            let run = flows.run(plan(WAITS), Value::Null);
            let id = run.id();
            let outside = async {
                for jump in jumps {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    clock.jump(jump);
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                flows.signal(id, "go", Value::Null).await.unwrap();
            };
            let (outcome, ()) = tokio::join!(limited(run), outside);
            check(outcome, begun.elapsed(), &format!("{jumps:?}"));
            let times: Vec<Timestamp> =
                flows.load(id).await.unwrap().events.iter().map(|(at, _)| *at).collect();
            assert!(times.is_sorted(), "{times:?}");
        });
    }
}

/// While no process has the run, the time of day goes back: no wait becomes longer than it was.
#[test]
fn a_clock_that_goes_back_before_a_resumption_delays_no_wait() {
    let store = Arc::new(MemoryStore::new());
    let (flows, _) = stored(&store);
    let clock = Jumping::default();
    let flows = flows.clock(Arc::new(clock.clone()));
    runtime().block_on(async {
        let id = abandon(flows.run(plan(WAITS), Value::Null), "s").await;
        clock.jump(-DAY);
        flows.signal(id, "go", Value::Null).await.unwrap();
        let begun = Instant::now();
        let outcome = limited(flows.resume(id)).await;
        check(outcome, begun.elapsed(), "back");
        let loaded = flows.load(id).await.unwrap();
        assert!(loaded.summary.started <= loaded.summary.updated);
    });
}

/// A wait that is over when the run is resumed ends at once.
#[test]
fn a_clock_that_goes_forward_before_a_resumption_ends_waits() {
    let store = Arc::new(MemoryStore::new());
    let (flows, _) = stored(&store);
    let clock = Jumping::default();
    let flows = flows.clock(Arc::new(clock.clone()));
    let shown = Arc::new(Mutex::new(Vec::new()));
    runtime().block_on(async {
        let steps = "steps: [{ id: w, wait: 23h }, { id: e, tool: effect, needs: w, with: { value: 1 } }, { id: s, signal: go, timeout: 48h }]";
        let id = abandon(flows.run(plan(steps), Value::Null), "s").await;
        clock.jump(DAY);
        let sink = Arc::clone(&shown);
        let run = flows.resume(id).on_progress(move |event| sink.lock().unwrap().push(event.to_string()));
        let signal = async {
            while !shown.lock().unwrap().contains(&"e succeeded".to_owned()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            flows.signal(id, "go", json!(2)).await.unwrap();
        };
        let (outcome, ()) = tokio::join!(limited(run), signal);
        assert_eq!(outcome.unwrap().output, json!(2));
    });
}

/// The plan is known: a signal that no step takes is rejected.
#[test]
fn unknown_and_second_signals_are_rejected() {
    let steps = "steps:
      - { id: s, signal: go, timeout: 1h }
      - { id: again, needs: s, signal: go, timeout: 1h }
      - { id: each, needs: again, map: [1, 2], steps: [{ id: t, signal: item, timeout: 1h }] }
      - { id: named, needs: each, signal: 'done-${{ steps.s.output }}', timeout: 1h }";
    let store = Arc::new(MemoryStore::new());
    let (flows, _) = stored(&store);
    runtime().block_on(async {
        let id = abandon(flows.run(plan(steps), Value::Null), "s").await;
        for (name, is_accepted) in [
            ("goo", false),
            ("s", false),
            ("go", true),
            // The second step takes it.
            ("go", true),
            ("go", false),
            ("item", true),
            ("item", true),
            ("item", true),
            ("done-1", true),
            ("done-1", false),
            ("don", false),
        ] {
            let sent = flows.signal(id, name, json!(1)).await;
            assert_eq!(sent.is_ok(), is_accepted, "{name}: {sent:?}");
            if let Err(error) = sent {
                assert_eq!(error.code(), Code::Precondition, "{error}");
            }
        }
        let outcome = flows.resume(id).into_future().await.unwrap();
        assert_eq!(outcome.status, RunStatus::Succeeded);
    });
}
