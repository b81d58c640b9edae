//! Defects that an adversarial review of the call path found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use toolpost::{
    Answer, Approval, Artifact, ArtifactData, BoxFuture, Call, Caller, Cancellation, Code, Content, Ctx,
    Evidence, Inject, Output, Question, Reply, Retry, RetryAdvice, Scope, Timeout, ToolError, ToolSource,
    ToolSpec, Usage, tool, tool_fn,
};
use toolpost_testkit::MemoryPort;
use toolpost_toolbox::Toolbox;

/// A toolbox in front of another one.
async fn behind(inner: impl ToolSource + 'static) -> Toolbox {
    let outer = Toolbox::builder().build().unwrap();
    outer.add_source(Arc::new(inner)).await.unwrap();
    outer
}

/// A source that runs nothing. Its list hangs from the second generation on.
struct Listed {
    specs: Vec<Arc<ToolSpec>>,
    generation: AtomicU64,
}

impl Listed {
    fn new(names: impl IntoIterator<Item = String>) -> Arc<Self> {
        let specs = names.into_iter().map(|name| Arc::new(ToolSpec::new(name, "A tool."))).collect();
        Arc::new(Self { specs, generation: AtomicU64::new(0) })
    }
}

impl ToolSource for Listed {
    fn name(&self) -> &'static str {
        "listed"
    }
    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            if self.generation() > 0 {
                std::future::pending::<()>().await;
            }
            Ok(self.specs.clone())
        })
    }
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }
    fn call(&self, _: Call) -> BoxFuture<'_, Reply> {
        unreachable!()
    }
}

/// A tool.
#[tool(policy(placement = "inline"))]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// A tool.
#[tool(policy(placement = "inline"))]
fn login(#[arg(sensitive, min_len = 10)] token: String) -> String {
    token
}

#[tokio::test]
async fn errors_and_records_of_invalid_calls_mask_secrets() {
    let tb = Toolbox::builder().tool(login).build().unwrap();
    for arguments in [json!({"token": "hunter2"}), json!("{\"token\": \"hunter2hunter2\"")] {
        let reply = tb.call(Call::new("login", arguments)).await;
        let record = serde_json::to_string(&*reply.record).unwrap();
        let error = reply.result.unwrap_err().to_string();
        assert!(!error.contains("hunter2") && !record.contains("hunter2"), "{error} {record}");
    }
}

#[tokio::test]
async fn an_outer_toolbox_respects_the_inner_denial() {
    let inner = Toolbox::builder().tool(add).approval("add", Approval::Deny).build().unwrap();
    assert!(inner.run("add", json!({"a":1,"b":2})).await.is_err());
    let outer = behind(inner).await;
    assert!(outer.run("add", json!({"a":1,"b":2})).await.is_err());
}

/// A tool.
#[tool(policy(concurrency = 1))]
async fn leaf() {
    tokio::time::sleep(Duration::from_millis(10)).await;
}

/// A tool.
#[tool(policy(no_timeout))]
async fn relay_leaf(ctx: &Ctx) -> Result<Output, ToolError> {
    tokio::time::sleep(Duration::from_millis(50)).await;
    ctx.call("leaf", json!({})).await
}

#[tokio::test(start_paused = true)]
async fn permits_of_nested_calls_do_not_deadlock() {
    let tb = Toolbox::builder().tool(leaf).tool(relay_leaf).settings(|s| s.concurrency = 1).build().unwrap();
    let t = tb.clone();
    let a = tokio::spawn(async move { t.run("relay_leaf", json!({})).await.map(|_| ()) });
    tokio::time::sleep(Duration::from_millis(10)).await;
    let t = tb.clone();
    let b = tokio::spawn(async move { t.run("leaf", json!({})).await.map(|_| ()) });
    timeout(Duration::from_secs(3), async {
        a.await.unwrap().unwrap();
        b.await.unwrap().unwrap();
    })
    .await
    .expect("deadlock");
}

/// A tool.
#[tool(policy(concurrency = 1, no_timeout))]
async fn aa(ctx: &Ctx, deep: bool) -> Result<(), ToolError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    if deep {
        ctx.call("bb", json!({"deep": false})).await?;
    }
    Ok(())
}

/// A tool.
#[tool(policy(concurrency = 1, no_timeout))]
async fn bb(ctx: &Ctx, deep: bool) -> Result<(), ToolError> {
    tokio::time::sleep(Duration::from_millis(20)).await;
    if deep {
        ctx.call("aa", json!({"deep": false})).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_cycle_of_permits_is_an_error() {
    let tb = Toolbox::builder().tool(aa).tool(bb).build().unwrap();
    timeout(Duration::from_secs(3), async {
        // One of them gets the deadlock error.
        let (one, other) =
            tokio::join!(tb.run("aa", json!({"deep": true})), tb.run("bb", json!({"deep": true})));
        assert!(one.is_ok() != other.is_ok());
    })
    .await
    .expect("deadlock");
}

/// A tool.
#[tool(policy(approval = "ask", placement = "inline"))]
fn risky() -> i64 {
    1
}

/// A tool.
#[tool(timeout_s = 0.1)]
async fn relay_risky(ctx: &Ctx) -> Result<Output, ToolError> {
    ctx.call("risky", json!({})).await
}

/// A tool.
#[tool(timeout_s = 0.1)]
async fn ask_it(ctx: &Ctx) -> Result<String, ToolError> {
    ctx.ask(Question::text("?")).await.map(|a| format!("{a:?}"))
}

/// A tool.
#[tool(timeout_s = 0.1)]
async fn relay_ask(ctx: &Ctx) -> Result<Output, ToolError> {
    ctx.call("ask_it", json!({})).await
}
async fn answered_after(tb: &Toolbox, tool: &str, ms: u64) -> Result<Output, ToolError> {
    let port = MemoryPort::new(10, 10);
    let p = port.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        p.answer(Answer::Given { value: json!(true) });
    });
    tb.call(Call::new(tool, json!({})).with_port(port)).await.result
}

#[tokio::test(start_paused = true)]
async fn a_question_stops_the_clocks_of_all_ancestors() {
    let asks = Toolbox::builder().tool(risky).tool(relay_risky).tool(ask_it).tool(relay_ask).build().unwrap();
    for tool in ["relay_risky", "relay_ask"] {
        answered_after(&asks, tool, 300).await.unwrap();
    }
    answered_after(&behind(asks).await, "ask_it", 1600).await.unwrap();
}

/// A tool.
#[tool]
async fn ask_then_sleep(ctx: &Ctx) -> Result<(), ToolError> {
    ctx.ask(Question::text("?")).await?;
    tokio::time::sleep(Duration::from_millis(150)).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_question_does_not_extend_the_deadline() {
    let tb = Toolbox::builder().tool(ask_then_sleep).build().unwrap();
    let port = MemoryPort::new(10, 10);
    let p = port.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(80)).await;
        p.answer(Answer::Given { value: json!(1) });
    });
    let start = tokio::time::Instant::now();
    let d = (start + Duration::from_millis(100)).into_std();
    let _ = tb.call(Call::new("ask_then_sleep", json!({})).with_port(port).with_deadline(d)).await;
    assert!(start.elapsed() <= Duration::from_millis(105));
}

/// A tool.
#[tool]
async fn hog() {
    tokio::time::sleep(Duration::from_secs(20)).await;
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_the_wait_for_a_permit_after_a_question() {
    let tb =
        Toolbox::builder().tool(ask_then_sleep).tool(hog).settings(|s| s.concurrency = 1).build().unwrap();
    let port = MemoryPort::new(10, 10);
    let p = port.clone();
    let t = tb.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let t2 = t.clone();
        tokio::spawn(async move {
            t2.run("hog", json!({})).await.unwrap();
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        p.answer(Answer::Given { value: json!(1) });
    });
    let start = tokio::time::Instant::now();
    let d = (start + Duration::from_millis(100)).into_std();
    let _ = tb.call(Call::new("ask_then_sleep", json!({})).with_port(port).with_deadline(d)).await;
    assert!(start.elapsed() <= Duration::from_secs(1));
}

struct Probe {
    began: AtomicBool,
    ended: AtomicBool,
}

/// A tool.
#[tool]
async fn nested_slow(p: Inject<Probe>) {
    p.began.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_millis(500)).await;
    p.ended.store(true, Ordering::SeqCst);
}

/// A tool.
#[tool(timeout_s = 0.05)]
fn blocking_parent(ctx: Ctx) -> Result<Output, ToolError> {
    ctx.wait(ctx.call("nested_slow", json!({})))
}

#[tokio::test]
async fn a_timed_out_blocking_tool_cancels_its_nested_calls() {
    let p = Arc::new(Probe { began: false.into(), ended: false.into() });
    let tb =
        Toolbox::builder().tool(nested_slow).tool(blocking_parent).provide_shared(p.clone()).build().unwrap();
    let e = tb.run("blocking_parent", json!({})).await.unwrap_err();
    assert_eq!(e.code(), Code::Timeout);
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert!(p.began.load(Ordering::SeqCst));
    assert!(!p.ended.load(Ordering::SeqCst), "the nested call continued after the timeout of its caller");
}

#[tokio::test]
async fn a_panic_before_the_future_is_caught() {
    let t = tool_fn(ToolSpec::new("p", "P."), |_a, _c| {
        assert!(std::hint::black_box(false), "boom");
        async { Ok(Output::text("x")) }
    });
    let tb = Toolbox::builder().tool(t).build().unwrap();
    let r = tokio::spawn(async move { tb.run("p", json!({})).await }).await;
    assert!(r.is_ok(), "the panic crossed Toolbox::call");
}

#[tokio::test(start_paused = true)]
async fn huge_retry_delays_do_not_overflow() {
    let t = tool_fn(
        {
            let mut s = ToolSpec::new("p", "P.");
            s.annotations.idempotent = true;
            s
        },
        async |_a, _c| Err(ToolError::dependency("x").retry(RetryAdvice::After(Duration::MAX))),
    );
    let tb = Toolbox::builder().tool(t).build().unwrap();
    let t2 = tb.clone();
    let d = (tokio::time::Instant::now() + Duration::from_secs(5)).into_std();
    let r =
        tokio::spawn(
            async move { t2.call(Call::new("p", json!({})).with_deadline(d)).await.result.map(|_| ()) },
        )
        .await;
    let no = timeout(Duration::from_hours(24), tb.run("p", json!({}))).await;
    assert!(r.is_ok() && no.is_ok());
}

#[tokio::test]
async fn a_huge_retry_policy_of_a_source_is_bounded() {
    let mut s = ToolSpec::new("p", "P.");
    s.policy.retry = Some(Retry { attempts: 4_000_000_000, maximum: Duration::MAX, ..Retry::default() });
    let inner = Toolbox::builder().tool(tool_fn(s, async |_a, _c| Ok(Output::text("x")))).build().unwrap();
    let outer = behind(inner).await;
    let r = tokio::spawn(async move { outer.run("p", json!({})).await.map(|_| ()) }).await;
    assert!(r.is_ok(), "{r:?}");
}

/// A tool.
#[tool]
async fn full() -> Result<(), ToolError> {
    Err(ToolError::overloaded("full").retry(RetryAdvice::NotStarted(Duration::from_millis(1))))
}
/// Charge a card, then call another tool. Not idempotent.
#[tool]
async fn pay(ctx: &Ctx, paid: Inject<AtomicU32>) -> Result<(), ToolError> {
    paid.fetch_add(1, Ordering::SeqCst);
    ctx.call("full", json!({})).await?;
    Ok(())
}

#[tokio::test]
async fn a_started_call_is_not_sent_again() {
    let paid = Arc::new(AtomicU32::new(0));
    let inner = Toolbox::builder().tool(pay).tool(full).provide_shared(paid.clone()).build().unwrap();
    let outer = behind(inner).await;
    let _ = outer.run("pay", json!({})).await;
    assert_eq!(paid.load(Ordering::SeqCst), 1);
}

/// A tool.
#[tool(policy(idempotent))]
async fn optional_file(ctx: &Ctx) -> String {
    match ctx.artifact(Artifact::from_bytes("a", "b", vec![1u8])).await {
        Ok(()) => "file".into(),
        Err(_) => "inline".into(),
    }
}

#[tokio::test]
async fn a_missing_file_receiver_is_an_error_at_once() {
    let tb = Toolbox::builder().tool(optional_file).build().unwrap();
    assert_eq!(tb.run("optional_file", json!({})).await.unwrap().to_text(), "inline");
}

#[tokio::test]
async fn deadline_and_cancellation_end_the_delivery_of_files() {
    let tb = Toolbox::builder().tool(optional_file).build().unwrap();
    let c = Cancellation::new();
    let call = Call::new("optional_file", json!({}))
        .with_port(MemoryPort::new(1, 0))
        .with_cancellation(c.clone())
        .with_deadline(std::time::Instant::now() + Duration::from_millis(50));
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        c.cancel();
    });
    timeout(Duration::from_secs(2), tb.call(call)).await.expect("hangs");
}

#[tokio::test]
async fn records_omit_the_bytes_of_artifacts() {
    let t = tool_fn(ToolSpec::new("p", "P."), async |_a, _c| {
        Ok(Output::text("x").with_artifact(Artifact::from_bytes("a", "b", vec![0u8; 1_000_000])))
    });
    let tb = Toolbox::builder().tool(t).build().unwrap();
    for _ in 0..50 {
        tb.run("p", json!({})).await.unwrap();
    }
    let stored: usize = tb
        .records()
        .iter()
        .flat_map(|r| r.artifacts.clone())
        .map(|a| match a.data {
            ArtifactData::Bytes(b) => b.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(stored, 0);
}

#[tokio::test]
async fn outputs_of_many_pieces_are_truncated() {
    let t = tool_fn(ToolSpec::new("p", "P."), async |_a, _c| {
        let mut o = Output::default();
        o.content = vec![Content::text("x".repeat(20)); 100_000];
        Ok(o)
    });
    let tb = Toolbox::builder().tool(t).build().unwrap();
    let r = tb.call(Call::new("p", json!({}))).await;
    assert!(r.result.unwrap().to_text().len() <= 200_000);
}

#[tokio::test]
async fn errors_are_truncated() {
    let t =
        tool_fn(ToolSpec::new("p", "P."), async |_a, _c| Err(ToolError::not_found("x".repeat(10_000_000))));
    let tb = Toolbox::builder().tool(t).tool(add).build().unwrap();
    let e = tb.run("p", json!({})).await.unwrap_err();
    let e2 = tb.run("add", json!({"a":1,"b":2, "z".repeat(5_000_000): 1})).await.unwrap_err();
    assert!(e.message().len() < 100_000 && e2.message().len() < 100_000);
}

#[tokio::test]
async fn a_million_unknown_arguments_give_a_short_error() {
    let tb = Toolbox::builder().tool(add).build().unwrap();
    let m: serde_json::Map<String, Value> = (0..1_000_000).map(|i| (format!("q{i}"), json!(1))).collect();
    let e = tb.run("add", Value::Object(m)).await.unwrap_err();
    assert!(e.message().len() < 100_000);
}

/// A tool.
#[tool(policy(placement = "inline", idempotent, cache = "1h"))]
fn where_am_i(ctx: &Ctx) -> String {
    format!("{:?}", ctx.working_dir())
}

#[tokio::test]
async fn the_cache_depends_on_the_working_directory() {
    let tb = Toolbox::builder().tool(where_am_i).build().unwrap();
    let get = async |d: &str| {
        tb.call(Call::new("where_am_i", json!({})).with_scope(Scope::new("agent").with_working_dir(d)))
            .await
            .result
            .unwrap()
            .to_text()
            .into_owned()
    };
    assert_ne!(get("/tmp/a").await, get("/tmp/b").await);
}

#[tokio::test]
async fn a_replaced_tool_has_an_empty_cache() {
    let mk = |text: &'static str| {
        let mut s = ToolSpec::new("p", "P.");
        s.annotations.idempotent = true;
        s.policy.cache = Some(Duration::from_secs(100));
        tool_fn(s, move |_a, _c| async move { Ok(Output::text(text)) })
    };
    let tb = Toolbox::builder().tool(mk("old")).build().unwrap();
    tb.run("p", json!({})).await.unwrap();
    tb.remove("p");
    tb.add(mk("new")).unwrap();
    assert_eq!(tb.run("p", json!({})).await.unwrap().to_text(), "new");
}

/// A tool.
#[tool(policy(idempotent, cache = "1h"))]
async fn cached_file(ctx: &Ctx) -> Result<String, ToolError> {
    ctx.artifact(Artifact::from_bytes("a", "b", vec![1u8])).await?;
    Ok("see the file".into())
}

#[tokio::test]
async fn results_with_delivered_files_are_not_cached() {
    let tb = Toolbox::builder().tool(cached_file).build().unwrap();
    let port = MemoryPort::new(10, 10);
    for _ in 0..2 {
        tb.call(Call::new("cached_file", json!({})).with_port(port.clone())).await.result.unwrap();
    }
    assert_eq!(port.heard().artifacts.len(), 2);
}

#[tokio::test]
async fn a_cached_result_has_no_usage() {
    let mut s = ToolSpec::new("p", "P.");
    s.annotations.idempotent = true;
    s.policy.cache = Some(Duration::from_secs(100));
    let t = tool_fn(s, async |_a, _c| {
        Ok(Output::text("x").with_evidence(Evidence {
            sandbox: None,
            usage: Some(Usage { input_tokens: 9, ..Usage::default() }),
            cost_usd: None,
        }))
    });
    let tb = Toolbox::builder().tool(t).build().unwrap();
    tb.run("p", json!({})).await.unwrap();
    let r = tb.call(Call::new("p", json!({}))).await.record;
    assert!(r.cached && r.usage.is_none());
}

/// A tool.
#[tool(policy(placement = "inline"))]
fn side(n: i64, runs: Inject<AtomicU32>) -> Result<i64, ToolError> {
    runs.fetch_add(1, Ordering::SeqCst);
    if n < 0 { Err(ToolError::not_found("no")) } else { Ok(n) }
}

/// A tool.
#[tool(backoff_initial_ms = 1, backoff_max_ms = 1, policy(idempotent))]
async fn replays(ctx: &Ctx, first: Inject<AtomicBool>) -> Result<(), ToolError> {
    let _ = ctx.call("side", json!({"n": -1})).await; // may fail
    ctx.call("side", json!({"n": 1})).await?; // must not be made twice
    if !first.swap(true, Ordering::SeqCst) {
        return Err(ToolError::dependency("again"));
    }
    Ok(())
}

#[tokio::test]
async fn a_retry_replays_answers_after_a_failed_one() {
    let runs = Arc::new(AtomicU32::new(0));
    let tb = Toolbox::builder()
        .tool(side)
        .tool(replays)
        .provide(AtomicBool::new(false))
        .provide_shared(runs.clone())
        .build()
        .unwrap();
    tb.run("replays", json!({})).await.unwrap();
    // -1 twice (it failed), 1 once.
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_context_fails_after_the_end_of_its_call() {
    let t = tool_fn(ToolSpec::new("p", "P."), |_a, c: Ctx| async move {
        let c2 = c.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(30)).await;
            c2.progress("late", None);
            let _ = c2.call("add", json!({"a":1,"b":1})).await;
        });
        Ok(Output::text("done"))
    });
    let tb = Toolbox::builder().tool(t).tool(add).build().unwrap();
    let port = MemoryPort::new(10, 10);
    tb.call(Call::new("p", json!({})).with_port(port.clone())).await;
    tokio::time::sleep(Duration::from_millis(80)).await;
    assert!(port.heard().progress.is_empty());
    assert!(tb.records().iter().all(|r| r.error.is_some() || r.parent.is_none()));
}

struct Flag(AtomicBool);
/// A tool.
#[tool]
fn effect(f: Inject<Flag>) {
    f.0.store(true, Ordering::SeqCst);
}

#[test]
fn a_dropped_blocking_call_never_starts() {
    let rt =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    let f = Arc::new(Flag(false.into()));
    let tb = Toolbox::builder().tool(effect).provide_shared(f.clone()).build().unwrap();
    rt.block_on(async {
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(200)));
        let _ = timeout(Duration::from_millis(30), tb.run("effect", json!({}))).await;
        assert_eq!(tb.records().len(), 1);
        tokio::time::sleep(Duration::from_millis(400)).await;
    });
    assert!(!f.0.load(Ordering::SeqCst), "the tool ran after its record");
}

#[tokio::test]
async fn a_hanging_source_does_not_delay_local_tools() {
    let tb = Toolbox::builder().tool(add).build().unwrap();
    let source = Listed::new([]);
    tb.add_source(source.clone()).await.unwrap();
    source.generation.store(1, Ordering::SeqCst);
    let c = Cancellation::new();
    c.cancel();
    let call =
        Call::new("add", json!({"a":1,"b":2})).with_cancellation(c).with_deadline(std::time::Instant::now());
    timeout(Duration::from_secs(2), tb.call(call))
        .await
        .expect("hangs in spite of deadline and cancellation");
}

/// A tool.
#[tool]
async fn relay_add(ctx: &Ctx) -> Result<Output, ToolError> {
    ctx.call("add", json!({"a":1,"b":2})).await
}

#[tokio::test]
async fn a_quota_counts_nested_calls_of_sources() {
    let inner = Toolbox::builder().tool(add).tool(relay_add).build().unwrap();
    let outer = behind(inner.clone()).await;
    let c = || Call::new("relay_add", json!({})).with_scope(Scope::new("x").with_max_calls(1));
    assert!(inner.call(c()).await.result.is_err());
    assert!(outer.call(c()).await.result.is_err());
}

#[tokio::test]
async fn a_dry_run_checks_the_arguments_of_a_source_s_tool() {
    let inner = Toolbox::builder().tool(add).build().unwrap();
    let outer = behind(inner).await;
    let mut c = Call::new("add", json!({"a": "x"}));
    c.options.dry_run = true;
    assert!(outer.call(c).await.result.is_err());
}

#[tokio::test]
async fn queue_wait_of_rejected_calls() {
    let tb = Toolbox::builder().tool(hog).settings(|s| s.concurrency = 1).build().unwrap();
    let t = tb.clone();
    tokio::spawn(async move { t.run("hog", json!({})).await });
    tokio::time::sleep(Duration::from_millis(5)).await;
    let r = tb
        .call(
            Call::new("hog", json!({})).with_deadline(std::time::Instant::now() + Duration::from_millis(50)),
        )
        .await;
    assert!(r.record.queue_wait >= Duration::from_millis(40));
}

#[tokio::test(start_paused = true)]
async fn one_caller_cannot_fill_the_queue() {
    let tb = Toolbox::builder().tool(hog).tool(leaf).settings(|s| s.queue = 10).build().unwrap();
    // one slow tool with concurrency 1 takes all waiting places of the toolbox
    let t = {
        let mut s = ToolSpec::new("slow1", "S.");
        s.policy.concurrency = Some(1);
        tool_fn(s, async |_a, _c| {
            tokio::time::sleep(Duration::from_secs(5)).await;
            Ok(Output::text(""))
        })
    };
    tb.add(t).unwrap();
    for _ in 0..11 {
        let t = tb.clone();
        tokio::spawn(async move {
            t.call(Call::new("slow1", json!({})).with_caller(Caller::new("x").with_identity("mallory"))).await
        });
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let (_, b) = tokio::join!(
        tb.call(Call::new("leaf", json!({})).with_caller(Caller::new("x").with_identity("alice"))),
        tb.call(Call::new("leaf", json!({})).with_caller(Caller::new("x").with_identity("alice")))
    );
    assert!(b.result.is_ok());
}

/// A tool.
#[tool(policy(rate = "1/s", placement = "inline"))]
fn paced_once() {}

#[tokio::test(start_paused = true)]
async fn dropped_waiters_do_not_count_against_the_rate() {
    let tb = Toolbox::builder().tool(paced_once).build().unwrap();
    tb.run("paced_once", json!({})).await.unwrap();
    for _ in 0..100 {
        let _ = timeout(Duration::from_millis(1), tb.run("paced_once", json!({}))).await;
    }
    let s = Instant::now();
    tb.run("paced_once", json!({})).await.unwrap();
    assert!(s.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn the_output_limit_overrides_a_source_s_policy() {
    let mut s = ToolSpec::new("p", "P.");
    s.policy.timeout = Some(Timeout::Never);
    s.policy.output_limit = Some(usize::MAX);
    let inner = Toolbox::builder()
        .tool(tool_fn(s, async |_a, _c| Ok(Output::text("x".repeat(5_000_000)))))
        .build()
        .unwrap();
    let outer = behind(inner).await;
    let n = outer.run("p", json!({})).await.unwrap().to_text().len();
    assert!(n < 100_000);
}

#[tokio::test]
async fn duplicate_names_in_one_list_are_rejected() {
    let tb = Toolbox::builder().build().unwrap();
    assert!(tb.add_source(Listed::new(["a".into(), "a".into()])).await.is_err());
}

#[tokio::test]
async fn a_long_list_is_registered_quickly() {
    let tb = Toolbox::builder().build().unwrap();
    let source = Listed::new((0..10_000).map(|index| format!("tool_number_{index}")));
    for _ in 0..2 {
        tb.add_source(source.clone()).await.unwrap();
    }
}

#[tokio::test]
async fn answers_are_not_stored_without_retries() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    static MAX: AtomicUsize = AtomicUsize::new(0);
    struct P;
    impl Drop for P {
        fn drop(&mut self) {
            LIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let leaf = tool_fn(ToolSpec::new("leaf", "L."), async |_a, _c| {
        let n = LIVE.fetch_add(1, Ordering::SeqCst) + 1;
        MAX.fetch_max(n, Ordering::SeqCst);
        Ok(Output::text("").with_payload(P))
    });
    let root = tool_fn(ToolSpec::new("root", "L."), |_a, c: Ctx| async move {
        for _ in 0..5000 {
            let _ = c.call("leaf", json!({})).await;
        }
        Ok(Output::text(""))
    });
    let tb = Toolbox::builder().tool(leaf).tool(root).build().unwrap();
    tb.run("root", json!({})).await.unwrap();
    assert!(MAX.load(Ordering::SeqCst) < 2000);
}

#[tokio::test]
async fn artifacts_are_limited_and_their_names_checked() {
    let t = tool_fn(ToolSpec::new("p", "P."), async |_a, _c| {
        let mut o = Output::text("x");
        o.artifacts = (0..1000).map(|_| Artifact::from_bytes("../../etc/passwd", "b", vec![0u8])).collect();
        Ok(o)
    });
    let tb = Toolbox::builder().tool(t).settings(|s| s.artifacts = 2).build().unwrap();
    assert!(tb.run("p", json!({})).await.is_err());
}

#[tokio::test]
async fn a_panicking_sink_does_not_fail_the_call() {
    let t = tool_fn(ToolSpec::new("p", "P."), async |_a, _c| Ok(Output::text("x")));
    let tb = Toolbox::builder().tool(t).on_record(|_| panic!("sink")).build().unwrap();
    assert!(tokio::spawn(async move { tb.run("p", json!({})).await }).await.is_ok());
}
