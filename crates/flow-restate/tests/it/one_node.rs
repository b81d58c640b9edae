//! One server: a killed worker, wide runs, the state of tools, errors of clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use toolpost_core::{
    Args, CallError, Code, Commit, Committed, Ctx, DocStore as _, Masks, Output, Patch, RunId, Secret,
    ToolError, ToolSpec, Truncation, Write, tool_fn,
};
use toolpost_flow::{Format, Plan, RunStatus};
use toolpost_flow_restate::{Cluster, ClusterStore, StartOptions, Worker, register};
use toolpost_toolbox::Toolbox;

use crate::server::{self, Servers, free_ports};
use crate::worker::{self, Ledger, Process};

/// A chain of steps that each take some milliseconds.
pub(crate) fn chain(steps: usize, ms: u64) -> Plan {
    let mut text = String::from("steps:\n");
    for step in 0..steps {
        let needs = if step == 0 { String::new() } else { format!(", needs: s{}", step - 1) };
        let line = format!("id: s{step}, tool: effect{needs}, with: {{ ms: {ms}, value: {step} }}");
        text.extend(["  - { ", &line, " }\n"]);
    }
    Plan::parse(&text, Format::Yaml).unwrap()
}

fn plan(text: &str) -> Plan {
    Plan::parse(text, Format::Yaml).unwrap()
}

async fn start(cluster: &Cluster, plan: &Plan) -> RunId {
    cluster.start(plan, Value::Null, StartOptions::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_repeats_only_the_step_in_flight() {
    const STEPS: usize = 20;
    let Some(binary) = server::binary("a_killed_worker_repeats_only_the_step_in_flight") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let file = NamedTempFile::new().unwrap();
    let ledger = Ledger::new(file.path());
    let listen = ([127, 0, 0, 1], free_ports(1)[0]).into();
    let mut first = Process::start(listen, file.path());
    let services = Worker::new(Toolbox::builder().build().unwrap()).services();
    register(&servers.first().admin, &format!("http://{listen}"), &services).await.unwrap();
    let cluster = Cluster::new(&servers.first().ingress).unwrap();
    let run = start(&cluster, &chain(STEPS, 50)).await;
    ledger.wait_for_ends(7).await;
    // In the middle of a step.
    tokio::time::sleep(Duration::from_millis(20)).await;
    first.kill();
    let _second = Process::start(listen, file.path());
    let outcome = cluster.outcome(run).await.unwrap();
    assert_eq!((outcome.status, outcome.succeeded), (RunStatus::Succeeded, STEPS as u64), "{outcome:?}");
    ledger.check_run(&cluster.show(run).await.unwrap());
    let repeats = ledger.repeats();
    assert_eq!(repeats.len(), 1, "{repeats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_steps_at_once_stay_within_the_limit() {
    const STEPS: usize = 1_000;
    let Some(binary) = server::binary("a_thousand_steps_at_once_stay_within_the_limit") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&running), Arc::clone(&most));
    let mut wide = any("echo");
    wide.policy.concurrency = Some(100);
    let echo = tool_fn(wide, move |args: Args, _: Ctx| {
        let (running, most) = counts.clone();
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>(Output::json(args.get("value").cloned().unwrap_or_default()))
        }
    });
    let _worker = worker::local(worker_of(Toolbox::builder().tool(echo)), &servers.first().admin).await;
    let cluster = Cluster::new(&servers.first().ingress).unwrap();
    let plan = plan(&format!(
        "steps: [{{ id: m, map: '${{{{ range({STEPS}) | list }}}}', \
         steps: [{{ id: s, tool: echo, with: {{ value: '${{{{ item }}}}' }} }}] }}]"
    ));
    let begun = Instant::now();
    let outcome = cluster.outcome(start(&cluster, &plan).await).await.unwrap();
    assert_eq!(outcome.output, json!((0..STEPS).collect::<Vec<_>>()), "{:?}", outcome.error);
    let most = most.load(Ordering::SeqCst);
    assert!((2..=64).contains(&most), "{most} at once");
    println!("{STEPS} steps in {:.2} s, {most} at once", begun.elapsed().as_secs_f64());
}

fn any(name: &str) -> ToolSpec {
    ToolSpec::new(name, "A tool of the tests.").input(json!({ "type": "object" }))
}

fn worker_of(builder: toolpost_toolbox::ToolboxBuilder) -> Worker {
    Worker::new(builder.build().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_stops_its_call_and_masks_secrets() {
    let Some(binary) = server::binary("a_cancelled_run_stops_its_call_and_masks_secrets") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let stopped = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&stopped);
    let endless = tool_fn(any("endless"), move |_: Args, ctx: Ctx| {
        let seen = Arc::clone(&seen);
        async move {
            ctx.cancelled().await;
            seen.fetch_add(1, Ordering::SeqCst);
            Err::<Output, _>(ToolError::cancelled("it was stopped"))
        }
    });
    let leak =
        tool_fn(any("leak"), async |_: Args, _: Ctx| Ok(Output::json(json!({ "hunter2": "is hunter2" }))));
    let worker =
        worker_of(Toolbox::builder().tool(endless).tool(leak)).masks(Masks::new([Secret::new("hunter2")]));
    let _worker = worker::local(worker, &servers.first().admin).await;
    let cluster = Cluster::new(&servers.first().ingress).unwrap();
    let run = start(
        &cluster,
        &plan("steps: [{ id: l, tool: leak }, { id: e, needs: l, tool: endless, with: { value: '${{ steps.l.output }}' } }]"),
    )
    .await;
    while !cluster
        .show(run)
        .await
        .is_ok_and(|run| run.events.iter().any(|(_, event)| event.step() == Some("e")))
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let begun = Instant::now();
    cluster.cancel(run, "enough").await.unwrap();
    let outcome = cluster.outcome(run).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Cancelled);
    assert_eq!(stopped.load(Ordering::SeqCst), 1);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let stored = serde_json::to_string(&cluster.show(run).await.unwrap().events).unwrap();
    assert!(!stored.contains("hunter2"), "{stored}");
    // A run that has ended takes no more messages.
    let late = cluster.signal(run, "x", Value::Null).await.unwrap_err();
    assert_eq!(late.code(), Code::Precondition, "{late}");
    assert_eq!(late.message(), "the run has ended (cancelled)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_what_is_wrong() {
    let unreachable = Cluster::new(&format!("http://127.0.0.1:{}", free_ports(1)[0])).unwrap();
    let error = unreachable.show(RunId::new()).await.unwrap_err();
    assert_eq!(error.code(), Code::Dependency);
    assert!(error.message().contains("is unreachable: "), "{error}");
    assert_eq!(Cluster::new("localhost:8080").unwrap_err().code(), Code::InvalidInput);
    let Some(binary) = server::binary("errors_say_what_is_wrong") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let cluster = Cluster::new(&servers.first().ingress).unwrap();
    let plan = plan("steps: [{ id: s, signal: go }]");
    let error = cluster.start(&plan, Value::Null, StartOptions::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition, "{error}");
    assert!(error.message().contains("has no worker"), "{error}");
    let error = register(&servers.first().admin, "http://127.0.0.1:1", &[]).await.unwrap_err();
    assert!(error.to_string().contains("cannot use the worker"), "{error}");
    let _worker = worker::local(worker_of(Toolbox::builder()), &servers.first().admin).await;
    for error in [
        cluster.show(RunId::new()).await.unwrap_err(),
        cluster.signal(RunId::new(), "x", Value::Null).await.unwrap_err(),
        cluster.outcome(RunId::new()).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), Code::NotFound, "{error}");
    }
    let mut options = StartOptions::default();
    options.id = start(&cluster, &plan).await;
    let run = options.id;
    let error = cluster.start(&plan, Value::Null, options).await.unwrap_err();
    assert_eq!(error.code(), Code::Conflict, "{error}");
    // The value counts though it is sent before the step waits.
    let unknown = cluster.signal(run, "other", json!(1)).await.unwrap_err();
    assert!(unknown.to_string().contains("no step waits for a signal `other`"), "{unknown}");
    cluster.signal(run, "go", json!({ "n": 2.5 })).await.unwrap();
    assert_eq!(cluster.outcome(run).await.unwrap().output, json!({ "n": 2.5 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_gets_as_many_values_as_steps_wait_for() {
    let Some(binary) = server::binary("a_signal_gets_as_many_values_as_steps_wait_for") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let cluster = Cluster::new(&servers.first().ingress).unwrap();
    let _worker = worker::local(worker_of(Toolbox::builder()), &servers.first().admin).await;
    let plan = plan(
        "steps: [{ id: h, signal: hold }, { id: a, needs: h, signal: go }, { id: b, needs: a, signal: go }]
output: ['${{ steps.h.output }}', '${{ steps.a.output }}', '${{ steps.b.output }}']",
    );
    let run = start(&cluster, &plan).await;
    // They are on their way together, before any step waits for them.
    let sent = futures_util::future::join_all((0..4).map(|n| cluster.signal(run, "go", json!(n)))).await;
    let rejected: Vec<CallError> = sent.into_iter().filter_map(Result::err).collect();
    assert_eq!(rejected.len(), 2, "{rejected:?}");
    cluster.signal(run, "hold", json!(1)).await.unwrap();
    let again = cluster.signal(run, "hold", json!(2)).await;
    let late = again.unwrap_err();
    let is_ended = late.message().contains("has ended");
    assert!(late.message() == "the signal `hold` was already sent" || is_ended, "{late}");
    for error in rejected {
        assert_eq!(error.code(), Code::Precondition, "{error}");
        assert_eq!(error.message(), "the signal `go` was already sent");
    }
    let outcome = cluster.outcome(run).await.unwrap();
    assert_eq!(outcome.status, RunStatus::Succeeded, "{outcome:?}");
    assert_eq!(outcome.output[0], 1);
    assert_ne!(outcome.output[1], outcome.output[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outputs_of_workers_are_whole_or_an_error() {
    let Some(binary) = server::binary("outputs_of_workers_are_whole_or_an_error") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let cut = tool_fn(any("cut"), async |_: Args, _: Ctx| {
        let output = Output::json(json!({ "stdout": "head … tail", "exit_code": 0 }));
        Ok::<_, ToolError>(output.with_truncated([Truncation::bytes("/stdout", Some(9), 4)]))
    });
    let text = tool_fn(any("text"), async |args: Args, _: Ctx| {
        Ok::<_, ToolError>(Output::text("x".repeat(args.decode("size")?)))
    });
    let _worker =
        worker::local(worker_of(Toolbox::builder().tool(cut).tool(text)), &servers.first().admin).await;
    let cluster = Cluster::new(&servers.first().ingress).unwrap();
    let cut = "`stdout` is truncated: it has 9 bytes, and 4 were returned";
    for (text, expected) in [
        ("steps: [{ id: a, tool: cut }]\noutput: '${{ steps.a.output.stdout }}'", Err(cut)),
        (
            "steps: [{ id: m, map: [1, 2], steps: [{ id: a, tool: cut }] }]\noutput: '${{ steps.m.output }}'",
            Err(cut),
        ),
        ("steps: [{ id: a, tool: cut }]\noutput: '${{ steps.a.output.exit_code }}'", Ok(json!(0))),
        (
            "steps: [{ id: m, map: [1], steps: [{ id: a, tool: text, with: { size: 3000000 } }] }]
output: '${{ steps.m.output[0] | length }}'",
            Ok(json!(3_000_000)),
        ),
        (
            "steps: [{ id: a, tool: text, with: { size: 17000000 } }]",
            Err("the output has more than 16 MiB, the limit of a cluster"),
        ),
    ] {
        let outcome = cluster.outcome(start(&cluster, &plan(text)).await).await.unwrap();
        let found = match &outcome.error {
            None => Ok(outcome.output),
            Some(error) => {
                assert_eq!(error.code(), Code::Limit, "{text} {error}");
                Err(error.message())
            }
        };
        assert_eq!(found, expected, "{text}");
    }
    // Its reader sees the mark, and knows of it.
    let outcome =
        cluster.outcome(start(&cluster, &plan("steps: [{ id: a, tool: cut }]")).await).await.unwrap();
    assert_eq!((outcome.status, outcome.truncated.len()), (RunStatus::Succeeded, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_have_versions_conflicts_and_a_history() {
    let Some(binary) = server::binary("documents_have_versions_conflicts_and_a_history") else { return };
    let servers = Servers::start(&binary, 1, 1).await;
    let _worker = worker::local(worker_of(Toolbox::builder()), &servers.first().admin).await;
    let store = ClusterStore::new(Cluster::new(&servers.first().ingress).unwrap());
    let id = "notes/a b:ü";
    let commit = |id: &str, base: u64, from: Value, to: Value| {
        let patch = Patch::diff(&from, &to).to_value();
        let write = Write { id: id.to_owned(), base, patch, value: to.into() };
        Commit { writes: vec![write], event: Some(json!("why")), ..Commit::default() }
    };
    assert_eq!(store.load(id).await.unwrap().version, 0);
    let values: Vec<Value> = vec![Value::Null, json!({ "n": 1 }), json!({ "n": 2, "t": "x" }), json!([3])];
    for (version, pair) in values.windows(2).enumerate() {
        let version = version as u64;
        let done = store.commit(commit(id, version, pair[0].clone(), pair[1].clone())).await.unwrap();
        assert_eq!(done, Committed::Done(vec![version + 1]));
    }
    let stale = store.commit(commit(id, 1, values[1].clone(), json!(0))).await.unwrap();
    let Committed::Conflict(newer) = stale else { panic!("{stale:?}") };
    assert_eq!((newer[0].version, &*newer[0].value), (3, &values[3]));
    for (version, value) in values.iter().enumerate().skip(1) {
        assert_eq!(*store.at(id, version as u64).await.unwrap().value, *value);
    }
    assert_eq!(store.at(id, 4).await.unwrap_err().code(), Code::NotFound);
    let log = store.log(id, 1, 10).await.unwrap();
    assert_eq!(log.iter().map(|change| change.version).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(log[0].event, Some(json!("why")));
    store.commit(commit("notes/z", 0, Value::Null, json!(1))).await.unwrap();
    assert_eq!(
        store.list("notes/", None, 10).await.unwrap(),
        [(id.to_owned(), 3), ("notes/z".to_owned(), 1)]
    );
    assert_eq!(store.list("notes/", Some(id), 10).await.unwrap(), [("notes/z".to_owned(), 1)]);
    assert!(store.forget(id).await.unwrap());
    assert!(!store.forget(id).await.unwrap());
    assert_eq!(store.load(id).await.unwrap().version, 0);
    let two = Commit {
        writes: [commit("a", 0, Value::Null, json!(1)), commit("b", 0, Value::Null, json!(1))]
            .into_iter()
            .flat_map(|commit| commit.writes)
            .collect(),
        ..Commit::default()
    };
    assert_eq!(store.commit(two).await.unwrap_err().code(), Code::Precondition);
    // Many writers: each increment is there.
    let add = |_| async {
        loop {
            let document = store.load("count").await.unwrap();
            let next = document.value.as_u64().unwrap_or(0) + 1;
            let write = commit("count", document.version, Value::clone(&document.value), json!(next));
            if let Committed::Done(_) = store.commit(write).await.unwrap() {
                break;
            }
        }
    };
    futures_util::future::join_all((0..20).map(add)).await;
    assert_eq!(*store.load("count").await.unwrap().value, json!(20));
}
