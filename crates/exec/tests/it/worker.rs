//! Worker processes: this test program once more, and what its tools do to it.
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use toolpost::{
    Answer, Artifact, Call, CallId, Cancellation, Code, Ctx, Inject, LogLevel, Question, Reply, RetryAdvice,
    SampleRequest, Scope, ToolError, tool,
};
use toolpost_exec::server::{own_input, own_output};
use toolpost_exec::worker::{MARKER, WorkerSettings, WorkerTools, Workers, serve};
use toolpost_testkit::{MemoryPort, eventually};
use toolpost_toolbox::{Toolbox, ToolboxBuilder};

use crate::host::{has_children, is_running};

/// Add.
#[tool(cpu_bound)]
fn add(a: i64, b: i64) -> i64 {
    println!("a stray print");
    a + b
}

/// The process and the thread of an async tool.
#[tool(cpu_bound)]
async fn process_id() -> u32 {
    tokio::task::yield_now().await;
    std::process::id()
}

/// Start processes that continue whatever happens, and wait for ever.
#[tool(cpu_bound, timeout_s = 0.7)]
fn hang(file: String, mark: String) -> u32 {
    // They leave the session, ignore signals, close everything, and write on for as long as they live.
    let script = format!(
        "trap '' TERM INT HUP; exec </dev/null >/dev/null 2>&1; \
         (setsid sh -c 'trap \"\" TERM INT HUP; while :; do echo x >> {file}; sleep 0.01; done; : {mark}' &) ; \
         while :; do echo x >> {file}; sleep 0.01; done; : {mark}"
    );
    for _ in 0..3 {
        #[expect(clippy::disallowed_methods, reason = "what a tool may do")]
        let mut started = std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap();
        assert!(started.try_wait().unwrap().is_none());
    }
    loop {
        std::thread::park();
    }
}

/// Die.
#[tool(cpu_bound)]
fn die(how: String) -> u64 {
    match how.as_str() {
        "abort" => std::process::abort(),
        #[expect(clippy::disallowed_methods, reason = "what a tool may do")]
        "exit" => std::process::exit(3),
        "overflow" => deeper(0),
        "allocate" => {
            let all: Vec<Vec<u8>> = (0..160).map(|_| vec![1; 64 << 20]).collect();
            all.len() as u64
        }
        _ => panic!("as asked"),
    }
}

#[expect(unconditional_recursion, reason = "what a tool may do")]
fn deeper(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 512]);
    deeper(frame[0] + 1) + frame[1]
}

/// Take a few hundred MiB.
#[tool(cpu_bound, policy(memory_mib = 96))]
fn greedy(mebibytes: usize) -> usize {
    std::hint::black_box(vec![1_u8; mebibytes << 20]).len() >> 20
}

/// Take as much with the usual memory.
#[tool(cpu_bound)]
fn generous(mebibytes: usize) -> usize {
    std::hint::black_box(vec![1_u8; mebibytes << 20]).len() >> 20
}

/// Use everything that a caller can do.
#[tool(cpu_bound)]
fn verbs(ctx: &Ctx, prefix: Inject<String>, #[arg(inject)] tenant: String) -> Value {
    ctx.progress("half", 50.0);
    ctx.log(LogLevel::Info, "a line");
    let file = Artifact::from_bytes("a.txt", "text/plain", b"bytes".to_vec());
    let taken = ctx.wait(ctx.artifact(file)).map_err(|error| error.to_string());
    let asked = ctx.wait(ctx.ask(Question::text("Sure?"))).map_err(|error| error.to_string());
    let sampled = ctx.wait(ctx.sample(SampleRequest::new("Say so."))).map(|sample| sample.content);
    let nested = ctx.wait(ctx.call("add", json!({"a": 2, "b": 3}))).map(|output| output.result_value());
    let unknown = ctx.wait(ctx.call("nothing", json!({}))).map_err(|error| error.code());
    let document = ctx.state("by-hand/{owner}").unwrap();
    ctx.wait(document.replace(&json!({"n": 1}))).unwrap();
    json!({
        "taken": taken.is_ok(), "asked": asked.unwrap(), "sampled": sampled.unwrap(),
        "nested": nested.unwrap(), "unknown": unknown.unwrap_err(),
        "injected": format!("{}{tenant}", *prefix),
        "owner": ctx.scope().map(|scope| scope.owner().to_owned()),
        "front": ctx.caller().front, "id": ctx.id().to_string(), "key": ctx.idempotency_key(),
        "attempt": ctx.attempt(), "left": ctx.remaining().is_some_and(|left| left < Duration::from_secs(61)),
        "directory": ctx.working_dir(), "meta": ctx.metadata(),
    })
}

/// Count, by name.
#[tool(cpu_bound, conflict_policy = "retry", max_retries = 100, backoff_initial_ms = 1, backoff_max_ms = 5)]
fn count(
    #[state(id = "counters", path = "/by_name/{name}")] count: &mut i64,
    name: String,
    by: i64,
) -> Result<i64, ToolError> {
    *count += by;
    let _ = name;
    if by == 0 { Err(ToolError::precondition("by nothing")) } else { Ok(*count) }
}

async fn exists(file: &str) {
    let mut interval = tokio::time::interval(Duration::from_millis(10));
    while !Path::new(file).exists() {
        interval.tick().await;
    }
}

/// Wait for a file; return the process id.
#[tool(cpu_bound, timeout_s = 30)]
async fn wait_for(file: String) -> u32 {
    exists(&file).await;
    std::process::id()
}

/// A variant, with little time.
#[tool(cpu_bound, timeout_s = 0.3)]
async fn wait_a_moment(file: String) -> u32 {
    exists(&file).await;
    std::process::id()
}

/// Make nested calls at once, all of which wait until all but so many have failed. How many did, and how.
#[tool(cpu_bound, timeout_s = 30)]
async fn fan_out(ctx: &Ctx, file: String, calls: usize, places: usize) -> Value {
    let mut all: FuturesUnordered<_> =
        (0..calls).map(|_| ctx.call("wait_for", json!({"file": file}))).collect();
    let mut errors = Vec::new();
    while let Some(result) = all.next().await {
        if let Err(error) = result {
            errors.push(json!(error.code()));
        }
        if errors.len() == calls - places {
            std::fs::write(&file, "").unwrap();
        }
    }
    json!(errors)
}

/// Answer, and crash on a byte from the address.
#[tool(cpu_bound)]
async fn die_later(address: String) -> u32 {
    let mut open = std::net::TcpStream::connect(address).unwrap();
    std::thread::spawn(move || {
        open.read_exact(&mut [0]).unwrap();
        // The test sees the end of the stream when the process has exited.
        std::mem::forget(open);
        std::process::abort();
    });
    std::process::id()
}

fn builder(workers: Workers) -> ToolboxBuilder {
    Toolbox::builder()
        .tool(add)
        .tool(process_id)
        .tool(hang)
        .tool(die)
        .tool(greedy)
        .tool(generous)
        .tool(verbs)
        .tool(count)
        .tool(wait_for)
        .tool(wait_a_moment)
        .tool(fan_out)
        .tool(die_later)
        .provide("of ".to_owned())
        .provide_named("tenant", "everybody")
        .runner(workers)
}

/// This test program, which is a worker when it runs the test [`as_worker`] with the marker in its environment.
fn settings() -> WorkerSettings {
    let mut settings = WorkerSettings::new(std::env::current_exe().unwrap());
    settings.arguments = ["worker::as_worker", "--exact", "--nocapture"].map(Into::into).into();
    settings.environment = vec![("LD_PRELOAD".into(), "/nothing".into()), ("KEPT".into(), "yes".into())];
    settings.start_timeout = Duration::from_mins(1);
    settings.max = 4;
    settings
}

fn toolbox(settings: WorkerSettings) -> (Toolbox, Workers) {
    let workers = Workers::new(settings);
    (builder(workers.clone()).build().unwrap(), workers)
}

#[test]
fn as_worker() {
    #[expect(clippy::disallowed_methods, reason = "how this program was started")]
    if std::env::var_os(MARKER).is_none() {
        return;
    }
    assert_eq!(std::env::vars().filter(|(name, _)| name == "KEPT" || name == "LD_PRELOAD").count(), 1);
    let (input, output) = (own_input().unwrap(), own_output().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let (toolbox, _) = toolbox(settings());
        let values = toolbox.values().clone();
        let work = WorkerTools { tool: Box::new(move |name| toolbox.own_tool(name)), values };
        serve(work, Box::new(input), Box::new(output)).await;
    });
    #[expect(clippy::disallowed_methods, clippy::exit, reason = "a worker has nothing else to do")]
    std::process::exit(0);
}

async fn run(toolbox: &Toolbox, tool: &str, arguments: Value) -> Result<Value, ToolError> {
    Ok(toolbox.run(tool, arguments).await?.result_value())
}

async fn add_works(toolbox: &Toolbox) {
    assert_eq!(run(toolbox, "add", json!({"a": 1, "b": 2})).await.unwrap(), json!(3));
}

#[tokio::test]
async fn a_worker_process_is_reused() {
    let (toolbox, workers) = toolbox(settings());
    assert_eq!(workers.count(), 0);
    add_works(&toolbox).await;
    let first = run(&toolbox, "process_id", json!({})).await.unwrap();
    assert_ne!(first, json!(std::process::id()));
    for _ in 0..20 {
        assert_eq!(run(&toolbox, "process_id", json!({})).await.unwrap(), first);
    }
    assert_eq!(workers.count(), 1);
    // A panic is an error of the call, and the process continues.
    let error = run(&toolbox, "die", json!({"how": "panic"})).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert_eq!(run(&toolbox, "process_id", json!({})).await.unwrap(), first);
}

#[tokio::test]
async fn a_timeout_kills_the_worker_and_its_children() {
    let (toolbox, workers) = toolbox(settings());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("beats");
    let arguments = json!({"file": file, "mark": "toolpost-mark-timeout"});
    // Starting the process is part of the time that the call has: not of the test.
    add_works(&toolbox).await;
    let error = run(&toolbox, "hang", arguments).await.unwrap_err();
    assert_eq!(error.code(), Code::Timeout, "{error}");
    assert!(!is_running("toolpost-mark-timeout"));
    assert!(error.context().get("still_running").is_none(), "{error:#?}");
    assert_eq!(workers.count(), 0);
    add_works(&toolbox).await;
}

#[tokio::test]
async fn cancelled_and_dropped_calls_leave_no_process() {
    let (toolbox, workers) = toolbox(settings());
    let directory = tempfile::tempdir().unwrap();
    let call = |mark: &str, file: &Path| {
        let mut call = Call::new("hang", json!({"file": file, "mark": mark}));
        call.cancellation = Cancellation::new();
        call
    };
    add_works(&toolbox).await;
    let file = directory.path().join("cancelled");
    let cancelled = call("toolpost-mark-cancelled", &file);
    let stop = cancelled.cancellation.clone();
    let (reply, ()) = tokio::join!(toolbox.call(cancelled), async {
        eventually("the tool runs", async || file.exists()).await;
        stop.cancel();
    });
    assert_eq!(reply.result.unwrap_err().code(), Code::Cancelled);
    assert!(!is_running("toolpost-mark-cancelled"));

    let file = directory.path().join("dropped");
    {
        let dropped = toolbox.call(call("toolpost-mark-dropped", &file));
        tokio::pin!(dropped);
        tokio::select! {
            _ = &mut dropped => panic!("it never answers"),
            () = eventually("the tool runs", async || file.exists()) => {}
        }
    }
    eventually("the worker is killed", async || !is_running("toolpost-mark-dropped")).await;
    eventually("workers.count() == 0", async || workers.count() == 0).await;
    add_works(&toolbox).await;
}

#[tokio::test]
async fn a_crash_fails_one_call() {
    let (toolbox, workers) = toolbox(settings());
    add_works(&toolbox).await;
    for (how, codes, words) in [
        ("abort", [Code::Dependency, Code::Dependency], "signal 6"),
        ("overflow", [Code::Dependency, Code::Dependency], "signal 6"),
        ("exit", [Code::Dependency, Code::Dependency], "status 3"),
        ("allocate", [Code::Limit, Code::Dependency], "worker process"),
    ] {
        // Another call at the same time, in another process.
        let (error, other) = tokio::join!(
            run(&toolbox, "die", json!({"how": how})),
            run(&toolbox, "add", json!({"a": 1, "b": 2}))
        );
        let error = error.unwrap_err();
        assert!(codes.contains(&error.code()) && error.message().contains(words), "{how}: {error:#?}");
        assert_eq!(other.unwrap(), json!(3), "{how}");
        add_works(&toolbox).await;
    }
    assert!(workers.count() <= 2);
}

#[tokio::test]
async fn memory_is_what_the_policy_says() {
    let (toolbox, _) = toolbox(settings());
    assert_eq!(run(&toolbox, "greedy", json!({"mebibytes": 16})).await.unwrap(), json!(16));
    let error = run(&toolbox, "greedy", json!({"mebibytes": 300})).await.unwrap_err();
    assert!(matches!(error.code(), Code::Limit | Code::Dependency), "{error}");
    assert_eq!(run(&toolbox, "generous", json!({"mebibytes": 300})).await.unwrap(), json!(300));
    let mut small = settings();
    small.memory = 96 << 20;
    let (toolbox, _) = self::toolbox(small);
    assert!(run(&toolbox, "generous", json!({"mebibytes": 300})).await.is_err());
}

#[tokio::test]
async fn a_worker_has_the_whole_context() {
    let (toolbox, _) = toolbox(settings());
    let port = MemoryPort::new(10, 10);
    port.answer(Answer::Given { value: json!("yes") });
    let mut call =
        Call::new("verbs", json!({})).with_port(Arc::clone(&port) as _).with_scope(Scope::new("ada"));
    call.idempotency_key = Some("key".into());
    call.options.working_dir = Some("/tmp".into());
    call.options.metadata.insert("a".into(), json!(1));
    call.values.provide_named("tenant", "this call");
    let id = call.id.to_string();
    let Reply { result, record } = toolbox.call(call).await;
    let expected = json!({
        "taken": true, "asked": Answer::Given { value: json!("yes") }, "sampled": "echo: Say so.",
        "nested": 5, "unknown": "NOT_FOUND", "injected": "of this call",
        "owner": "ada", "front": "library", "id": id, "key": "key",
        "attempt": 1, "left": true, "directory": "/tmp", "meta": {"a": 1},
    });
    assert_eq!(result.unwrap().result_value(), expected);
    let heard = port.heard();
    assert_eq!((heard.progress[0].message.as_str(), heard.progress[0].percent), ("half", Some(50.0)));
    assert_eq!(heard.log[0].message, "a line");
    assert_eq!((heard.artifacts[0].name.as_str(), heard.artifacts[0].size), ("a.txt", 5));
    assert_eq!(heard.questions[0].message, "Sure?");
    // The nested calls are children of the record.
    let children: Vec<_> = record.children.iter().map(|child| &*child.tool).collect();
    assert_eq!(children, ["add", "nothing"]);
}

#[tokio::test]
async fn state_stays_in_the_calling_process() {
    let (toolbox, _) = toolbox(settings());
    let calls =
        (0..24).map(|n| run(&toolbox, "count", json!({"name": if n % 2 == 0 { "a" } else { "b" }, "by": 1})));
    for result in futures_util::future::join_all(calls).await {
        result.unwrap();
    }
    assert_eq!(run(&toolbox, "count", json!({"name": "a", "by": 5})).await.unwrap(), json!(17));
    // What a failed attempt made of it is thrown away.
    let error = run(&toolbox, "count", json!({"name": "a", "by": 0})).await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);
    assert_eq!(run(&toolbox, "count", json!({"name": "a", "by": 1})).await.unwrap(), json!(18));
    let document = toolbox.state("counters").unwrap().state().await.unwrap();
    assert_eq!(*document, json!({"by_name": {"a": 18, "b": 12}}));
}

#[tokio::test]
async fn a_program_without_a_worker_entry_is_an_error() {
    for (program, arguments, words) in [
        ("/bin/true", vec![], "exited before it was ready"),
        ("/bin/sleep", vec!["1000"], "not ready within 300 ms"),
        ("/bin/sh", vec!["-c", "while :; do echo garbage; done"], "exited before it was ready"),
        ("/bin/nothing", vec![], ""),
    ] {
        let mut settings = WorkerSettings::new(program);
        settings.arguments = arguments.into_iter().map(Into::into).collect();
        settings.start_timeout = Duration::from_millis(300);
        let (toolbox, workers) = toolbox(settings);
        let error = run(&toolbox, "add", json!({"a": 1, "b": 2})).await.unwrap_err();
        assert!(matches!(error.code(), Code::Precondition | Code::Dependency), "{error}");
        assert!(error.message().contains(words), "{error}");
        eventually("workers.count() == 0", async || workers.count() == 0).await;
    }
    let refused = Toolbox::builder().tool(add).build().unwrap_err();
    assert!(refused.message.contains("worker_entry"), "{refused}");
}

#[tokio::test]
async fn the_number_of_workers_is_bounded() {
    let mut one = settings();
    one.max = 1;
    one.idle_timeout = Duration::from_millis(50);
    let (toolbox, workers) = toolbox(one);
    // They wait for each other, and all of them have their turn.
    let calls = (0..8).map(|_| run(&toolbox, "process_id", json!({})));
    let all: Vec<Value> =
        futures_util::future::join_all(calls).await.into_iter().map(Result::unwrap).collect();
    assert!(all.iter().all(|id| *id == all[0]), "{all:?}");
    // A nested call does not wait for the process that waits for it.
    let port = MemoryPort::new(10, 10);
    port.answer(Answer::Given { value: json!("yes") });
    let call = Call::new("verbs", json!({})).with_port(port).with_scope(Scope::new("ada"));
    assert_eq!(toolbox.call(call).await.result.unwrap().result_value()["nested"], 5);
    eventually("workers.count() == 0", async || workers.count() == 0).await;
}

#[tokio::test]
async fn nested_calls_have_four_times_the_workers() {
    let mut one = settings();
    one.max = 1;
    let (toolbox, workers) = toolbox(one);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("go");
    let errors = run(&toolbox, "fan_out", json!({"file": file, "calls": 10, "places": 3})).await.unwrap();
    assert_eq!(errors, json!(vec!["OVERLOADED"; 7]));
    eventually("workers.count() <= 1", async || workers.count() <= 1).await;
    // Their places are free again.
    std::fs::remove_file(&file).unwrap();
    let errors = run(&toolbox, "fan_out", json!({"file": file, "calls": 5, "places": 3})).await.unwrap();
    assert_eq!(errors, json!(vec!["OVERLOADED"; 2]));
}

#[tokio::test]
async fn a_depth_from_the_wire_does_not_skip_the_queue() {
    let mut one = settings();
    one.max = 1;
    let (toolbox, workers) = toolbox(one);
    let calls = (0..8).map(|_| {
        let mut call = Call::new("process_id", json!({}));
        (call.depth, call.parent) = (1, Some(CallId::new()));
        toolbox.call(call)
    });
    let all: Vec<Value> = futures_util::future::join_all(calls)
        .await
        .into_iter()
        .map(|reply| reply.result.unwrap().result_value())
        .collect();
    assert!(all.iter().all(|id| *id == all[0]), "{all:?}");
    assert_eq!(workers.count(), 1);
}

#[tokio::test]
async fn a_crashed_idle_worker_fails_no_call() {
    let (toolbox, workers) = toolbox(settings());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    run(&toolbox, "die_later", json!({"address": address})).await.unwrap();
    let dead = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&[0]).unwrap();
        std::io::copy(&mut stream, &mut std::io::sink())
    });
    // The connection may end with an error; either way the process exits.
    let _ = dead.await.unwrap();
    eventually("the worker is reaped", async || !has_children()).await;
    add_works(&toolbox).await;
    eventually("workers.count() == 1", async || workers.count() == 1).await;
}

#[tokio::test]
async fn a_call_leaves_no_task_behind() {
    let (toolbox, _workers) = toolbox(settings());
    for _ in 0..40 {
        add_works(&toolbox).await;
    }
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 10, "{tasks}");
}

#[tokio::test]
async fn a_call_without_a_worker_is_overloaded() {
    let mut one = settings();
    one.max = 1;
    let (toolbox, _) = toolbox(one);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("go");
    add_works(&toolbox).await;
    let (busy, ()) = tokio::join!(run(&toolbox, "wait_for", json!({"file": file})), async {
        let error = run(&toolbox, "wait_a_moment", json!({"file": file})).await.unwrap_err();
        assert_eq!(error.code(), Code::Overloaded, "{error}");
        assert!(error.retry_advice().is_some_and(|advice| advice != RetryAdvice::Never), "{error:#?}");
        assert!(error.message().contains("`wait_a_moment`"), "{error}");
        std::fs::write(&file, "").unwrap();
    });
    busy.unwrap();
    // One that begins and is not done in time is another matter.
    std::fs::remove_file(&file).unwrap();
    let error = run(&toolbox, "wait_a_moment", json!({"file": file})).await.unwrap_err();
    assert_eq!(error.code(), Code::Timeout, "{error}");
}
