//! The stages of the call path, with their defaults and options.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use toolpost::{
    Answer, Approval, Call, CallLimit, Caller, Code, Content, Ctx, Event, Inject, Output, Partial, Priority,
    Scope, Status, ToolError, ToolSpec, tool, tool_fn,
};
use toolpost_testkit::{FixedClock, MemoryPort};
use toolpost_toolbox::{Toolbox, ToolboxSettings};

/// Add two numbers.
#[tool(policy(placement = "inline", idempotent))]
fn add(
    /// The first.
    a: i64,
    /// The second.
    b: i64,
) -> i64 {
    a + b
}

/// Count how often it was run.
#[tool(policy(placement = "inline", idempotent, cache = "30ms"))]
fn counted(runs: Inject<AtomicU32>, #[arg(default = "x")] key: String) -> String {
    format!("{key} {}", runs.fetch_add(1, Ordering::SeqCst))
}

#[tokio::test]
async fn unknown_tools_get_suggestions() {
    let toolbox = Toolbox::builder().tool(add).build().unwrap();
    let error = toolbox.run("ad", json!({})).await.unwrap_err();
    assert_eq!((error.code(), error.suggestion()), (Code::NotFound, Some("Did you mean `add`?")));
    assert!(toolbox.run(&"x".repeat(1_000_000), json!({})).await.unwrap_err().message().len() < 200);
    assert!(toolbox.records().iter().all(|record| record.tool.len() <= 64));
}

#[tokio::test]
async fn arguments_are_checked_before_anything_runs() {
    let toolbox =
        Toolbox::builder().tool(add).settings(|settings| settings.arguments_limit = 1000).build().unwrap();
    let code = async |arguments: Value| toolbox.run("add", arguments).await.unwrap_err().code();
    assert_eq!(code(json!({"a": 1})).await, Code::MissingParam);
    assert_eq!(code(json!({"a": 1, "b": "2"})).await, Code::InvalidInput);
    assert_eq!(code(json!({"a": 1, "b": 2, "c": 3})).await, Code::InvalidInput);
    assert_eq!(code(json!([1, 2])).await, Code::InvalidInput);
    assert_eq!(code(json!({"a": "x".repeat(1001)})).await, Code::Limit);
    assert!(toolbox.records().iter().all(|record| record.attempts == 0));
}

/// Delete a note.
#[tool(policy(destructive, approval = "ask", placement = "inline"))]
fn delete_note(#[arg(sensitive)] token: String) -> String {
    token
}

#[tokio::test]
async fn the_operator_overrides_approval() {
    let toolbox = Toolbox::builder().tool(delete_note).build().unwrap();
    let call = || Call::new("delete_note", json!({"token": "hunter2"}));
    let error = toolbox.call(call()).await.result.unwrap_err();
    assert_eq!(error.code(), Code::Permission);
    assert!(error.suggestion().unwrap().contains("can approve `delete_note`"), "{error}");

    let port = MemoryPort::new(1, 1);
    port.answer(Answer::Declined);
    let no = toolbox.call(call().with_port(Arc::clone(&port) as Arc<dyn toolpost::Port>)).await;
    assert_eq!(no.result.unwrap_err().code(), Code::Permission);
    port.answer(Answer::Given { value: json!(true) });
    let yes = toolbox.call(call().with_port(Arc::clone(&port) as Arc<dyn toolpost::Port>)).await;
    assert_eq!(yes.result.unwrap().to_text(), "hunter2");
    // Neither the question nor the record shows the secret.
    assert!(!format!("{:?}", port.heard().questions).contains("hunter2"));
    assert!(!serde_json::to_string(&toolbox.records()).unwrap().contains("hunter2"));

    let allowed =
        Toolbox::builder().tool(delete_note).approval("delete_note", Approval::Allow).build().unwrap();
    assert!(allowed.call(call()).await.result.is_ok());
    let denied = Toolbox::builder().tool(add).default_approval(Approval::Deny).build().unwrap();
    assert_eq!(denied.run("add", json!({"a": 1, "b": 2})).await.unwrap_err().code(), Code::Permission);
}

#[tokio::test]
async fn a_destructive_tool_of_a_source_needs_approval() {
    let spec = ToolSpec::new("wipe", "Wipe a disk.")
        .annotations(toolpost::Annotations { destructive: true, ..Default::default() });
    let wipe = || tool_fn(spec.clone(), async |_, _| Ok(Output::text("gone")));
    let own = Toolbox::builder().tool(wipe()).build().unwrap();
    assert!(own.run("wipe", json!({})).await.is_ok());
    let outer = Toolbox::builder().build().unwrap();
    outer.add_source(Arc::new(own.clone())).await.unwrap();
    assert_eq!(outer.run("wipe", json!({})).await.unwrap_err().code(), Code::Permission);
}

/// Take a while.
#[tool]
async fn slow(#[arg(default = 50)] milliseconds: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    milliseconds
}

#[tokio::test]
async fn a_full_queue_is_overloaded_and_priorities_overtake() {
    let finished = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&finished);
    let toolbox = Toolbox::builder()
        .tool(slow)
        .settings(|settings| (settings.concurrency, settings.queue) = (1, 2))
        .on_record(move |record| seen.lock().unwrap().push((record.metadata.clone(), record.queue_wait)))
        .build()
        .unwrap();
    let spawn = |name: &str, priority| {
        let mut call = Call::new("slow", json!({"milliseconds": 20})).with_priority(priority);
        call.options.metadata.insert("name".into(), name.into());
        let toolbox = toolbox.clone();
        tokio::spawn(async move { toolbox.call(call).await.result })
    };
    let mut tasks = vec![spawn("first", Priority::Normal)];
    tokio::time::sleep(Duration::from_millis(5)).await;
    let low = spawn("low", Priority::Low);
    tasks.push(spawn("normal", Priority::Normal));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let error = spawn("too many", Priority::Low).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Overloaded);
    assert!(matches!(error.retry_advice(), Some(toolpost::RetryAdvice::NotStarted(_))));
    // A more urgent call evicts the least urgent one.
    tasks.push(spawn("critical", Priority::Critical));
    assert_eq!(low.await.unwrap().unwrap_err().code(), Code::Overloaded);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let finished = finished.lock().unwrap();
    let names: Vec<&str> = finished.iter().map(|(metadata, _)| metadata["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["too many", "low", "first", "critical", "normal"]);
    assert!(finished[4].1 > finished[3].1 && finished[2].1.is_zero(), "{finished:?}");
}

/// Be called now and then.
#[tool(policy(rate = "2/60ms", placement = "inline"))]
fn paced() {}

/// Be called one at a time.
#[tool(policy(concurrency = 1))]
async fn alone(ctx: &Ctx, inside: Inject<AtomicU32>) -> bool {
    let _ = ctx;
    let before = inside.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(5)).await;
    inside.fetch_sub(1, Ordering::SeqCst);
    before == 0
}

#[tokio::test(start_paused = true)]
async fn rates_and_concurrency_are_limited() {
    let toolbox = Toolbox::builder().tool(paced).tool(alone).provide(AtomicU32::new(0)).build().unwrap();
    let start = Instant::now();
    for _ in 0..6 {
        toolbox.run("paced", json!({})).await.unwrap();
    }
    assert!(start.elapsed() >= Duration::from_millis(120));
    let hurried =
        Call::new("paced", json!({})).with_deadline((Instant::now() + Duration::from_millis(1)).into_std());
    assert_eq!(toolbox.call(hurried).await.result.unwrap_err().code(), Code::Overloaded);
    let calls = (0..4).map(|_| toolbox.run("alone", json!({})));
    for output in futures_util::future::join_all(calls).await {
        assert_eq!(output.unwrap().structured, Some(json!(true)));
    }
}

/// Work for a moment.
#[tool(policy(placement = "inline"))]
async fn first(inside: Inject<AtomicU32>) -> bool {
    let before = inside.fetch_add(1, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(5)).await;
    inside.fetch_sub(1, Ordering::SeqCst);
    before == 0
}

/// Work for a moment, too; nested calls do not share the limit.
#[tool(policy(placement = "inline"))]
async fn second(ctx: &Ctx) -> Result<bool, ToolError> {
    Ok(ctx.call("first", json!({})).await?.structured == Some(json!(true)))
}

#[tokio::test(start_paused = true)]
async fn calls_of_several_tools_share_a_limit() {
    let toolbox = Toolbox::builder().tool(first).tool(second).provide(AtomicU32::new(0)).build().unwrap();
    let limit = |concurrency, rate: Option<&str>| {
        let rate = rate.map(|rate| rate.parse().unwrap());
        Arc::new(CallLimit { key: "shared".into(), concurrency, rate })
    };
    let call = |tool: &str, limit| toolbox.call(Call::new(tool, json!({})).with_limit(limit));
    let one = limit(Some(1), None);
    let calls = ["first", "second", "first", "second"].map(|tool| call(tool, Arc::clone(&one)));
    for reply in futures_util::future::join_all(calls).await {
        assert_eq!(reply.result.unwrap().structured, Some(json!(true)));
    }
    // Without the limit they overlap.
    let calls = ["first", "first"].map(|tool| toolbox.run(tool, json!({})));
    let outputs = futures_util::future::join_all(calls).await;
    assert!(outputs.into_iter().any(|output| output.unwrap().structured == Some(json!(false))));
    let start = Instant::now();
    for _ in 0..3 {
        for tool in ["first", "second"] {
            call(tool, limit(None, Some("2/1s"))).await.result.unwrap();
        }
    }
    assert!(start.elapsed() >= Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn the_cache_depends_on_caller_and_arguments_and_expires() {
    let toolbox = Toolbox::builder().tool(counted).provide(AtomicU32::new(0)).build().unwrap();
    let text = async |call: Call| toolbox.call(call).await.result.unwrap().to_text().into_owned();
    let call = || Call::new("counted", json!({}));
    assert_eq!(text(call()).await, "x 0");
    assert_eq!(text(call()).await, "x 0");
    assert!(toolbox.records().last().unwrap().cached);
    assert_eq!(text(Call::new("counted", json!({"key": "y"}))).await, "y 1");
    assert_eq!(text(call().with_caller(Caller::new("test").with_identity("eve"))).await, "x 2");
    assert_eq!(text(call().with_scope(Scope::new("bob"))).await, "x 3");
    let mut fresh = call();
    fresh.options.no_cache = true;
    assert_eq!(text(fresh).await, "x 4");
    assert_eq!(
        text(call().provide(AtomicU32::new(70))).await,
        "x 70",
        "injected values of a call are not cached"
    );
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert_eq!(text(call()).await, "x 5");
}

/// Fail with the given code.
#[tool(backoff_initial_ms = 1, backoff_max_ms = 2, policy(idempotent))]
async fn fail(code: Value, tries: Inject<AtomicU32>) -> Result<(), ToolError> {
    tries.fetch_add(1, Ordering::SeqCst);
    let code: Code = serde_json::from_value(code)?;
    Err(ToolError::new(code, "as requested"))
}

#[tokio::test]
async fn only_retryable_errors_are_retried() {
    let tries = Arc::new(AtomicU32::new(0));
    let toolbox = Toolbox::builder().tool(fail).provide_shared(Arc::clone(&tries)).build().unwrap();
    let attempts = async |code: &str, retries: Option<u32>| {
        tries.store(0, Ordering::SeqCst);
        let mut call = Call::new("fail", json!({ "code": code }));
        call.options.retries = retries;
        assert_eq!(toolbox.call(call).await.result.unwrap_err().code().as_str(), code);
        tries.load(Ordering::SeqCst)
    };
    assert_eq!(attempts("DEPENDENCY", None).await, 3);
    assert_eq!(attempts("TIMEOUT", None).await, 3);
    assert_eq!(attempts("OVERLOADED", None).await, 3);
    assert_eq!(attempts("INVALID_INPUT", None).await, 1);
    assert_eq!(attempts("INTERNAL", None).await, 1);
    // A call can only tighten.
    assert_eq!(attempts("DEPENDENCY", Some(0)).await, 1);
    assert_eq!(attempts("DEPENDENCY", Some(100)).await, 3);
    assert_eq!(toolbox.usage()[0].retries, 8);
}

/// Fail as a program that exits with status 2.
#[tool(policy(idempotent))]
async fn exits(tries: Inject<AtomicU32>) -> Result<(), ToolError> {
    tries.fetch_add(1, Ordering::SeqCst);
    Err(ToolError::dependency("exit status 2").with("exit_code", 2))
}

/// A variant with declared retries.
#[tool(backoff_initial_ms = 1, policy(idempotent))]
async fn exits_again(tries: Inject<AtomicU32>) -> Result<(), ToolError> {
    tries.fetch_add(1, Ordering::SeqCst);
    Err(ToolError::dependency("exit status 2").with("exit_code", 2))
}

#[tokio::test]
async fn a_failed_program_is_repeated_only_as_declared() {
    for (tool, attempts) in [("exits", 1), ("exits_again", 3)] {
        let tries = Arc::new(AtomicU32::new(0));
        let toolbox = Toolbox::builder().tool(exits).tool(exits_again).provide_shared(Arc::clone(&tries));
        toolbox.build().unwrap().run(tool, json!({})).await.unwrap_err();
        assert_eq!(tries.load(Ordering::SeqCst), attempts, "{tool}");
    }
}

/// Panic.
#[tool(policy(placement = "inline"))]
fn panics(#[arg(default = false)] answer: bool) -> String {
    assert!(answer, "the secret is hunter2");
    String::new()
}

/// Panic on a thread.
#[tool]
fn panics_blocking() -> String {
    panic!("the secret is hunter2")
}

#[tokio::test]
async fn a_panic_fails_one_call() {
    let toolbox = Toolbox::builder().tool(panics).tool(panics_blocking).tool(add).build().unwrap();
    for name in ["panics", "panics_blocking"] {
        let reply = toolbox.call(Call::new(name, json!({}))).await;
        let error = reply.result.unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("hunter2"));
        assert!(!error.public(reply.record.id).message().contains("hunter2"));
    }
    assert!(toolbox.run("add", json!({"a": 1, "b": 2})).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_default_timeout_is_a_minute_and_a_call_can_tighten_it() {
    let toolbox = Toolbox::builder().tool(slow).build().unwrap();
    let timed_out = async |milliseconds: u64, timeout: Option<Duration>| {
        let mut call = Call::new("slow", json!({ "milliseconds": milliseconds }));
        call.options.timeout = timeout;
        toolbox.call(call).await.result.is_err_and(|error| error.code() == Code::Timeout)
    };
    assert!(!timed_out(59_000, None).await);
    assert!(timed_out(61_000, None).await);
    assert!(timed_out(2000, Some(Duration::from_secs(1))).await);
    assert!(timed_out(61_000, Some(Duration::from_secs(1000))).await);
}

/// Print a lot.
#[tool(policy(placement = "inline", output_limit = 1000))]
fn flood(#[arg(default = 100_000)] size: usize) -> Output {
    Output::text("x".repeat(size)).with_payload(size).with_structured(json!({"size": size}))
}

#[tokio::test]
async fn only_the_text_for_the_model_is_limited() {
    let spec = ToolSpec::new("default_limit", "Print a lot.");
    let default_limit = tool_fn(spec, async |_, _| Ok(Output::text("y".repeat(100_000))));
    let toolbox = Toolbox::builder().tool(flood).tool(default_limit).build().unwrap();
    let reply = toolbox.call(Call::new("flood", json!({}))).await;
    let output = reply.result.unwrap();
    assert!(output.to_text().len() <= 1000 && output.to_text().contains("bytes omitted"));
    assert_eq!(*output.payload.unwrap().get::<usize>().unwrap(), 100_000);
    assert_eq!(output.structured, Some(json!({"size": 100_000})));
    assert!(reply.record.payload && reply.record.content_bytes <= 1000);
    let output = toolbox.run("default_limit", json!({})).await.unwrap();
    assert!(output.to_text().len() <= 64 * 1024 && output.to_text().len() > 60 * 1024);
}

#[tokio::test]
async fn a_result_that_violates_its_schema_is_an_internal_error() {
    let spec = ToolSpec::new("liar", "Promise a number.").output(json!({"type": "integer"}));
    let liar = tool_fn(spec.clone(), async |_, _| Ok(Output::json(json!("seven"))));
    let toolbox = Toolbox::builder().tool(liar).build().unwrap();
    let error = toolbox.run("liar", json!({})).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.message().contains("expected integer"), "{error}");
}

#[tokio::test]
async fn dry_run_and_mock_run_nothing() {
    let spec =
        ToolSpec::new("example", "Have an example.").example(json!({}), Some(json!({"from": "example"})));
    let example = tool_fn(spec, async |_, _| Ok(Output::text("real")));
    let runs = Arc::new(AtomicU32::new(0));
    let toolbox = Toolbox::builder()
        .tool(counted)
        .tool(add)
        .tool(example)
        .provide_shared(Arc::clone(&runs))
        .build()
        .unwrap();
    let mut call = Call::new("counted", json!({"key": "k"}));
    call.options.dry_run = true;
    let output = toolbox.call(call).await.result.unwrap().structured.unwrap();
    assert_eq!(
        output,
        json!({"dry_run": true, "would_execute": {"tool": "counted", "arguments": {"key": "k"}}})
    );
    let mock = async |tool: &str, arguments: Value| {
        let mut call = Call::new(tool, arguments);
        call.options.mock = true;
        let reply = toolbox.call(call).await;
        assert!(reply.record.mock);
        reply.result
    };
    assert!(mock("add", json!({"a": 1, "b": 2})).await.unwrap().structured.unwrap().is_i64());
    assert_eq!(mock("example", json!({})).await.unwrap().structured, Some(json!({"from": "example"})));
    assert_eq!(mock("add", json!({"a": 1})).await.unwrap_err().code(), Code::MissingParam);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn events_and_records_are_complete() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let toolbox = Toolbox::builder()
        .tool(add)
        .clock(FixedClock::new(toolpost::Timestamp::from_micros(0)))
        .on_event(move |event: &Event| sink.lock().unwrap().push(serde_json::to_value(event).unwrap()))
        .build()
        .unwrap();
    let reply = toolbox.call(Call::new("add", json!({"a": 1, "b": 2}))).await;
    let record = serde_json::to_value(&*reply.record).unwrap();
    assert_eq!(
        record,
        json!({
            "v": 1, "id": reply.record.id.to_string(), "tool": "add", "source": "local",
            "caller": {"front": "library"}, "arguments": {"a": 1, "b": 2}, "status": "success",
            "content_bytes": 1, "started": "1970-01-01T00:00:00.000000Z", "duration_ms": 0.0,
            "queue_wait_ms": 0.0, "attempts": 1
        })
    );
    let events = events.lock().unwrap();
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["call.started", "call.finished"]);
    assert_eq!(toolbox.usage()[0].calls, 1);
}

#[tokio::test]
async fn usage_has_rates_and_averages() {
    let toolbox = Toolbox::builder().tool(add).build().unwrap();
    let unused = toolbox.usage().remove(0);
    assert_eq!((unused.calls, unused.success_rate, unused.average_ms), (0, None, None));
    for b in [json!(1), json!(2), json!(3), json!("x")] {
        let _ = toolbox.run("add", json!({"a": 1, "b": b})).await;
    }
    let used = toolbox.usage().remove(0);
    assert_eq!((used.calls, used.errors, used.success_rate), (4, 1, Some(0.75)));
    assert_eq!(used.average_ms, Some(used.total_ms / 4.0));
}

#[tokio::test]
async fn records_are_bounded_and_omit_large_arguments() {
    let toolbox = Toolbox::builder().tool(counted).provide(AtomicU32::new(0));
    let toolbox = toolbox.settings(|settings| settings.records = 3).build().unwrap();
    for _ in 0..6 {
        toolbox.run("counted", json!({"key": "k".repeat(70_000)})).await.unwrap();
    }
    let records = toolbox.records();
    assert_eq!(records.len(), 3);
    assert!(records.iter().all(|record| record.arguments.is_none()));
}

#[tokio::test]
async fn a_scope_limits_its_calls() {
    let toolbox = Toolbox::builder().tool(add).build().unwrap();
    let scope = Scope::new("ada").with_max_calls(2);
    for allowed in [true, true, false] {
        let call = Call::new("add", json!({"a": 1, "b": 2})).with_scope(scope.clone());
        assert_eq!(toolbox.call(call).await.result.is_ok(), allowed);
    }
}

#[tokio::test]
async fn partial_results_are_marked() {
    let spec = ToolSpec::new("some", "Do some of it.");
    let some = tool_fn(spec, async |_, _| {
        Ok(Output::json(json!({"rows": [1]}))
            .with_partial(Partial { succeeded: 1, errors: vec![ToolError::not_found("row 2")] })
            .with_content(Content::text("one of two rows")))
    });
    let toolbox = Toolbox::builder().tool(some).build().unwrap();
    assert_eq!(toolbox.call(Call::new("some", json!({}))).await.record.status, Status::Partial);
}

#[test]
fn defaults_match_the_documentation() {
    let settings = ToolboxSettings::default();
    assert_eq!(settings.timeout, Duration::from_mins(1));
    assert_eq!(settings.answer_timeout, Duration::from_mins(10));
    assert_eq!((settings.concurrency, settings.queue, settings.depth), (64, 1024, 8));
    assert_eq!(settings.output_limit, 64 * 1024);
}
