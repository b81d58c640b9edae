//! Questions, nesting, back-pressure, dropped futures, blocking tools, and toolboxes behind toolboxes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost::{
    Answer, Artifact, Call, Cancellation, Code, Ctx, Inject, LogLevel, Output, Question, SampleRequest,
    Status, ToolError, tool,
};
use toolpost_testkit::{MemoryPort, eventually};
use toolpost_toolbox::Toolbox;

/// Ask for a colour.
#[tool(timeout_s = 0.05)]
async fn ask_colour(ctx: Ctx) -> Result<String, ToolError> {
    match ctx.ask(Question::text("Which colour?")).await? {
        Answer::Given { value } => Ok(value.as_str().unwrap_or_default().to_owned()),
        Answer::Declined => Err(ToolError::precondition("no colour")),
    }
}

/// Say hello.
#[tool(policy(placement = "inline"))]
fn hello(name: String) -> String {
    format!("hello {name}")
}

/// Say hello through another tool.
#[tool]
async fn relay(ctx: &Ctx, name: String) -> Result<Output, ToolError> {
    ctx.call("hello", json!({ "name": name })).await
}

#[tokio::test]
async fn a_question_pauses_the_call() {
    let toolbox = Toolbox::builder()
        .tool(ask_colour)
        .tool(hello)
        .settings(|settings| settings.concurrency = 1)
        .build()
        .unwrap();
    let port = MemoryPort::new(10, 10);
    let asking = {
        let (toolbox, port) = (toolbox.clone(), Arc::clone(&port));
        tokio::spawn(async move { toolbox.call(Call::new("ask_colour", json!({})).with_port(port)).await })
    };
    eventually("the question", async || port.heard().questions.len() == 1).await;
    // During the question its permit is free and its 50 ms do not run.
    assert_eq!(toolbox.run("hello", json!({"name": "Ada"})).await.unwrap().to_text(), "hello Ada");
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert!(!asking.is_finished());
    port.answer(Answer::Given { value: json!("green") });
    let reply = asking.await.unwrap();
    assert_eq!(reply.result.unwrap().to_text(), "green");
    assert!(reply.record.duration >= Duration::from_millis(120));
}

#[tokio::test]
async fn a_missing_port_is_a_precondition_and_a_missing_answer_a_timeout() {
    let toolbox = Toolbox::builder()
        .tool(ask_colour)
        .settings(|settings| settings.answer_timeout = Duration::from_millis(20))
        .build()
        .unwrap();
    assert_eq!(toolbox.run("ask_colour", json!({})).await.unwrap_err().code(), Code::Precondition);
    let call = Call::new("ask_colour", json!({})).with_port(MemoryPort::new(1, 1));
    assert_eq!(toolbox.call(call).await.result.unwrap_err().code(), Code::Timeout);
}

#[tokio::test]
async fn a_nested_call_uses_the_permit_of_its_root() {
    let toolbox = Toolbox::builder()
        .tool(relay)
        .tool(hello)
        .settings(|settings| settings.concurrency = 1)
        .build()
        .unwrap();
    let reply = toolbox.call(Call::new("relay", json!({"name": "Ada"}))).await;
    assert_eq!(reply.result.unwrap().to_text(), "hello Ada");
    let [child] = reply.record.children.as_slice() else { panic!("{:?}", reply.record) };
    assert_eq!((child.parent, &*child.tool), (Some(reply.record.id), "hello"));
    assert_eq!(toolbox.records().len(), 2);
}

/// Call yourself.
#[tool(policy(concurrency = 1))]
async fn limited(ctx: &Ctx) -> Result<Output, ToolError> {
    ctx.call("limited", json!({})).await
}

/// Call yourself without end.
#[tool]
async fn endless(ctx: &Ctx) -> Result<Output, ToolError> {
    ctx.call("endless", json!({})).await
}

#[tokio::test]
async fn self_deadlock_and_deep_nesting_are_errors() {
    let toolbox = Toolbox::builder().tool(limited).tool(endless).build().unwrap();
    let error = toolbox.run("limited", json!({})).await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);
    assert!(error.message().contains("held by calls that wait for this one"), "{error}");
    let before = toolbox.records().len();
    let error = toolbox.run("endless", json!({})).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    // One root and eight levels below it ran; the next level failed.
    assert_eq!(toolbox.records().len() - before, 10);
}

/// Tell a lot.
#[tool]
async fn chatty(ctx: &Ctx) -> Result<(), ToolError> {
    for step in 0..1000 {
        ctx.progress("step", f64::from(step) / 10.0);
        ctx.log(LogLevel::Info, "a line");
    }
    for index in 0..3 {
        ctx.artifact(Artifact::from_bytes(format!("{index}.txt"), "text/plain", vec![b'x'])).await?;
    }
    Ok(())
}

#[tokio::test]
async fn notices_never_block_and_files_wait() {
    let toolbox = Toolbox::builder().tool(chatty).build().unwrap();
    let port = MemoryPort::new(10, 1);
    let call = Call::new("chatty", json!({})).with_port(Arc::clone(&port) as Arc<dyn toolpost::Port>);
    let running = tokio::spawn(async move { toolbox.call(call).await });
    eventually("the first file", async || port.heard().artifacts.len() == 1).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!running.is_finished() && port.heard().artifacts.len() == 1);
    port.take_files(2);
    let reply = running.await.unwrap();
    assert!(reply.result.is_ok());
    assert_eq!((port.heard().progress.len(), port.heard().log.len()), (10, 10));
    assert_eq!(reply.record.dropped_notices, 1980);
    assert_eq!(reply.record.artifacts.len(), 3);
}

/// Ask, sample, call, deliver a file, and fail the first time.
#[tool(backoff_initial_ms = 1, backoff_max_ms = 1, policy(idempotent))]
async fn second_time_lucky(ctx: &Ctx, tries: Inject<AtomicU32>) -> Result<String, ToolError> {
    ctx.artifact(Artifact::from_bytes("a.txt", "text/plain", vec![b'a'])).await?;
    let Answer::Given { value } = ctx.ask(Question::text("Who?")).await? else {
        return Err(ToolError::precondition("nobody"));
    };
    let sample = ctx.sample(SampleRequest::new("hi")).await?;
    let hello = ctx.call("hello", json!({ "name": value })).await?;
    ctx.progress("almost", None);
    if tries.fetch_add(1, Ordering::SeqCst) == 0 {
        return Err(ToolError::dependency("not yet"));
    }
    Ok(format!("{} {}", sample.content, hello.to_text()))
}

#[tokio::test]
async fn a_retry_repeats_no_question() {
    let toolbox =
        Toolbox::builder().tool(second_time_lucky).tool(hello).provide(AtomicU32::new(0)).build().unwrap();
    let port = MemoryPort::new(10, 10);
    port.answer(Answer::Given { value: json!("Ada") });
    let call =
        Call::new("second_time_lucky", json!({})).with_port(Arc::clone(&port) as Arc<dyn toolpost::Port>);
    let reply = toolbox.call(call).await;
    assert_eq!(reply.result.unwrap().to_text(), "echo: hi hello Ada");
    assert_eq!(reply.record.attempts, 2);
    let heard = port.heard();
    assert_eq!((heard.questions.len(), heard.samples.len(), heard.artifacts.len()), (1, 1, 1));
    assert_eq!(reply.record.children.len(), 1);
    let attempts: Vec<u32> = heard.progress.iter().map(|progress| progress.attempt).collect();
    assert_eq!(attempts, [1, 2]);
}

/// Never end.
#[tool]
async fn forever() {
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_dropped_future_is_still_recorded() {
    let toolbox =
        Toolbox::builder().tool(forever).settings(|settings| settings.concurrency = 1).build().unwrap();
    let dropped = tokio::time::timeout(Duration::from_millis(10), toolbox.run("forever", json!({}))).await;
    assert!(dropped.is_err());
    let records = toolbox.records();
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(record.status, Status::Error);
    assert_eq!(record.error.as_ref().unwrap().code(), Code::Cancelled);
    assert_eq!(record.attempts, 1);
    // Its permit is free again.
    let again = tokio::time::timeout(Duration::from_millis(10), toolbox.run("forever", json!({}))).await;
    assert!(again.is_err());
    assert_eq!(toolbox.records().len(), 2);
}

#[derive(Default)]
struct Stubborn {
    entered: AtomicBool,
    may_end: AtomicBool,
    saw_the_request: AtomicBool,
}

/// Block until the test says so.
#[tool(timeout_s = 0.02, policy(concurrency = 1, idempotent))]
fn stubborn(ctx: Ctx, state: Inject<Stubborn>) -> Result<String, ToolError> {
    state.entered.store(true, Ordering::SeqCst);
    while !state.may_end.load(Ordering::SeqCst) {
        state.saw_the_request.fetch_or(ctx.is_cancelled(), Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
    }
    // After the call nothing is delivered and no call starts.
    ctx.progress("done", None);
    let hello = ctx.wait(ctx.call("hello", json!({"name": "late"})));
    assert_eq!(hello.is_err_and(|error| error.code() == Code::Cancelled), ctx.is_cancelled());
    Ok("done".into())
}

#[tokio::test]
async fn a_timed_out_blocking_tool_holds_its_permit_until_it_ends() {
    let toolbox = Toolbox::builder().tool(stubborn).tool(hello).build().unwrap();
    let state = Arc::new(Stubborn::default());
    let port = MemoryPort::new(10, 10);
    let call = || {
        let mut call =
            Call::new("stubborn", json!({})).with_port(Arc::clone(&port) as Arc<dyn toolpost::Port>);
        call.values = toolpost::Values::default();
        call.values.provide_shared(Arc::clone(&state));
        call
    };
    let reply = toolbox.call(call()).await;
    let error = reply.result.unwrap_err();
    assert_eq!(error.code(), Code::Timeout);
    assert_eq!(error.context()["still_running"], true);
    assert!(reply.record.still_running);
    assert_eq!(reply.record.attempts, 1, "an attempt that still runs is not joined by another");
    eventually("the request to stop", async || state.saw_the_request.load(Ordering::SeqCst)).await;
    // The permit is held: the next call waits for it.
    let deadline = Instant::now() + Duration::from_millis(40);
    let waiting = toolbox.call(call().with_deadline(deadline)).await;
    assert_eq!(waiting.result.unwrap_err().code(), Code::Timeout);
    assert_eq!(waiting.record.attempts, 0);
    state.may_end.store(true, Ordering::SeqCst);
    let after = toolbox.call(call()).await;
    assert_eq!(after.result.unwrap().to_text(), "done");
    // Only the call in time reported progress.
    assert_eq!(port.heard().progress.len(), 1);
}

/// Fail with `DEPENDENCY`.
#[tool(max_retries = 2, backoff_initial_ms = 1, backoff_max_ms = 1, policy(idempotent))]
async fn flaky(ctx: &Ctx, tries: Inject<AtomicU32>) -> Result<String, ToolError> {
    tries.fetch_add(1, Ordering::SeqCst);
    Err(ToolError::dependency(format!("key {:?}", ctx.idempotency_key())))
}

/// Hold the only permit for a while.
#[tool]
async fn busy() {
    tokio::time::sleep(Duration::from_millis(150)).await;
}

/// Report the context.
#[tool(policy(placement = "inline"))]
fn arrived(ctx: &Ctx) -> Value {
    json!({
        "call": ctx.id().to_string(),
        "key": ctx.idempotency_key(),
        "owner": ctx.scope().map(|scope| scope.owner().to_owned()),
        "in_time": ctx.remaining().is_some_and(|left| left < Duration::from_secs(30)),
    })
}

#[tokio::test]
async fn a_second_toolbox_behind_the_first() {
    let tries = Arc::new(AtomicU32::new(0));
    let inner = Toolbox::builder().name("inner").tool(flaky).tool(arrived).tool(busy);
    let inner = inner.settings(|settings| (settings.concurrency, settings.queue) = (1, 0));
    let inner = inner.provide_shared(Arc::clone(&tries)).build().unwrap();
    let outer = Toolbox::builder().name("outer").build().unwrap();
    outer.add_source(Arc::new(inner.clone())).await.unwrap();

    // Ids, deadline, scope and idempotency key travel.
    let call = Call::new("arrived", json!({}))
        .with_idempotency_key("once")
        .with_scope(toolpost::Scope::new("ada"))
        .with_deadline(Instant::now() + Duration::from_secs(20));
    let id = call.id;
    let reply = outer.call(call).await;
    let seen = reply.result.unwrap().structured.unwrap();
    assert_eq!(seen, json!({"call": id.to_string(), "key": "once", "owner": "ada", "in_time": true}));
    let [inside] = reply.record.children.as_slice() else { panic!("{:?}", reply.record) };
    assert_eq!((inside.id, &*inside.source, &*reply.record.source), (id, "inner", "inner"));

    // Retries do not multiply: three attempts inside, one outside.
    let reply = outer.call(Call::new("flaky", json!({}))).await;
    assert_eq!(reply.result.unwrap_err().code(), Code::Dependency);
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    assert_eq!((reply.record.attempts, reply.record.children[0].attempts), (1, 3));

    // A call that did not start is sent again, even if the tool is not idempotent.
    let running = tokio::spawn({
        let inner = inner.clone();
        async move { inner.run("busy", json!({})).await }
    });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let reply = outer.call(Call::new("busy", json!({}))).await;
    assert!(reply.result.is_ok(), "{:?}", reply.result);
    assert!(reply.record.attempts > 1 && reply.record.children[0].attempts == 0);
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_source_that_changes_is_read_again() {
    let inner = Toolbox::builder().name("inner").tool(hello).build().unwrap();
    let outer = Toolbox::builder().build().unwrap();
    outer.add_source(Arc::new(inner.clone())).await.unwrap();
    inner.add(arrived).unwrap();
    assert!(outer.run("arrived", json!({})).await.is_ok());
    inner.remove("hello");
    assert_eq!(outer.run("hello", json!({"name": "x"})).await.unwrap_err().code(), Code::NotFound);
    // A name collision is an error.
    let rival = Toolbox::builder().name("rival").tool(arrived).build().unwrap();
    let error = outer.add_source(Arc::new(rival)).await.unwrap_err();
    assert!(error.message().contains("`rival` and `inner` both have a tool"), "{error}");
}

#[tokio::test]
async fn cancelling_stops_inline_tools_and_what_they_called() {
    let toolbox = Toolbox::builder().tool(forever).build().unwrap();
    let cancellation = Cancellation::new();
    let call = Call::new("forever", json!({})).with_cancellation(cancellation.clone());
    let running = {
        let toolbox = toolbox.clone();
        tokio::spawn(async move { toolbox.call(call).await })
    };
    tokio::time::sleep(Duration::from_millis(5)).await;
    cancellation.cancel();
    let reply = running.await.unwrap();
    assert_eq!(reply.result.unwrap_err().code(), Code::Cancelled);
}
