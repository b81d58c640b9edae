//! `#[state]`: reads, changes and commits of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost::{
    Answer, Artifact, Call, Code, Ctx, DocStore, Inject, Output, Placement, Question, Scope, ToolError,
    ToolSpec, data, tool, tool_fn, tools,
};
use toolpost_testkit::MemoryPort;
use toolpost_toolbox::Toolbox;

use super::{Counts, Shared, at_once, by, history_is_whole, versions};

struct Counters {
    most: i64,
}

#[tools(category = "counters")]
impl Counters {
    /// Add to a named counter.
    #[tool(conflict_policy = "retry", max_retries = 16, backoff_initial_ms = 5, backoff_max_ms = 250)]
    fn add(
        &self,
        /// Not for the schema.
        #[state(id = "counters/{owner}", path = "/by_name/{name}")]
        count: &mut i64,
        name: String,
        by: i64,
    ) -> i64 {
        *count = (*count + by).min(self.most);
        *count
    }

    /// Add to a named counter, and wait in between.
    #[tool]
    async fn add_slowly(
        &self,
        #[state(id = "counters/{owner}", path = "/by_name/{name}")] count: &mut i64,
        name: String,
    ) -> Result<i64, ToolError> {
        let seen = *count;
        tokio::task::yield_now().await;
        *count = seen + 1;
        Ok(*count)
    }

    /// All counters.
    #[tool(policy(read_only))]
    async fn all(&self, #[state(id = "counters/{owner}", path = "/by_name")] counts: &Counts) -> Counts {
        counts.clone()
    }

    /// Move from one counter to another.
    #[tool]
    async fn transfer(
        &self,
        #[state(id = "counters/{owner}", path = "/by_name/{from}")] source: &mut i64,
        #[state(id = "counters/{owner}", path = "/by_name/{to}")] target: &mut i64,
        #[state(id = "transfers")] number: &mut u32,
        from: String,
        to: String,
    ) -> Result<u32, ToolError> {
        *source -= 1;
        *target += 1;
        *number += 1;
        if *source < -100 {
            return Err(ToolError::precondition("too poor"));
        }
        Ok(*number)
    }
}

fn toolbox(store: Arc<dyn DocStore>) -> Toolbox {
    Toolbox::builder().tools(Counters { most: 1000 }).store(store).build().unwrap()
}

#[tokio::test]
async fn state_is_no_argument_and_its_spec_names_the_document() {
    let toolbox = toolbox(Shared::new());
    let spec = toolbox.spec("add").unwrap();
    let schema = spec.input_schema.as_value();
    assert_eq!(schema["properties"].as_object().unwrap().keys().collect::<Vec<_>>(), ["name", "by"]);
    assert_eq!(
        serde_json::to_value(&spec.state).unwrap(),
        json!([{"id": "counters/{owner}", "path": "/by_name/{name}", "writes": true, "existing": false}])
    );
    assert_eq!(spec.policy.placement, Placement::Blocking);
    let error = toolbox.run("add", json!({"name": "a", "by": 1, "count": 5})).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidInput);
}

#[tokio::test]
async fn a_call_reads_the_state_of_the_previous_one() {
    let toolbox = Toolbox::builder().tools(Counters { most: 1000 }).build().unwrap();
    let call = async |tool: &str, arguments: Value| {
        let reply = toolbox.call(by("alice", tool, arguments)).await;
        (reply.result.unwrap().structured.unwrap(), reply.record.state.clone())
    };
    let document = "counters/@alice";
    assert_eq!(call("add", json!({"name": "a", "by": 2})).await, (json!(2), versions(document, 0, 1)));
    assert_eq!(call("add", json!({"name": "a", "by": 3})).await, (json!(5), versions(document, 1, 2)));
    assert_eq!(call("add", json!({"name": "b/~", "by": 1})).await, (json!(1), versions(document, 2, 3)));
    // An empty change commits nothing.
    assert_eq!(call("add", json!({"name": "b/~", "by": 0})).await, (json!(1), versions(document, 3, 3)));
    assert_eq!(call("all", json!({})).await, (json!({"a": 5, "b/~": 1}), versions(document, 3, 3)));
    let state = toolbox.state(document).unwrap().get_snapshot().await.unwrap();
    assert_eq!((state.version, &*state.value), (3, &json!({"by_name": {"a": 5, "b/~": 1}})));
    // Each identity has its own documents; so do calls without an identity.
    for (caller, expected) in
        [(by("bob", "all", json!({})), json!({})), (Call::new("all", json!({})), json!({}))]
    {
        assert_eq!(toolbox.call(caller).await.result.unwrap().structured, Some(expected));
    }
    let mut in_scope = Call::new("all", json!({}));
    in_scope.scope = Some(Scope::new("alice"));
    assert_eq!(toolbox.call(in_scope).await.result.unwrap().structured, Some(json!({"a": 5, "b/~": 1})));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_writers_lose_no_update() {
    for tool in ["add", "add_slowly"] {
        // One process, and two that share a store.
        for processes in [1, 2] {
            let store = Shared::new();
            let toolboxes: Vec<Toolbox> = (0..processes).map(|_| toolbox(store.clone())).collect();
            let arguments = |number: usize| {
                let name = ["a", "b"][number % 2];
                if tool == "add" { json!({"name": name, "by": 1}) } else { json!({ "name": name }) }
            };
            let calls: Vec<Call> = (0..64).map(|number| by("x", tool, arguments(number))).collect();
            for reply in at_once(&toolboxes, calls).await {
                reply.result.unwrap();
            }
            assert_eq!(store.value("counters/@x").await, json!({"by_name": {"a": 32, "b": 32}}), "{tool}");
            assert_eq!(store.version("counters/@x").await, 64);
            history_is_whole(&*store, "counters/@x").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_documents_change_together() {
    let store = Shared::new();
    let toolboxes = [toolbox(store.clone()), toolbox(store.clone())];
    let pairs = [("a", "b"), ("b", "c"), ("c", "a"), ("b", "a")];
    let calls: Vec<Call> = (0..32)
        .map(|number| {
            let (from, to) = pairs[number % 4];
            by("x", "transfer", json!({"from": from, "to": to}))
        })
        .collect();
    let mut numbers: Vec<i64> = at_once(&toolboxes, calls)
        .await
        .into_iter()
        .map(|reply| reply.result.unwrap().structured.unwrap().as_i64().unwrap())
        .collect();
    numbers.sort_unstable();
    // Each call saw a different state, as in a serial execution.
    assert_eq!(numbers, (1..=32).collect::<Vec<_>>());
    assert_eq!(store.value("transfers").await, json!(32));
    assert_eq!(store.value("counters/@x").await, json!({"by_name": {"a": 8, "b": -8, "c": 0}}));
    assert_eq!((store.version("transfers").await, store.version("counters/@x").await), (32, 32));

    let error =
        toolboxes[0].call(by("x", "transfer", json!({"from": "a", "to": "a"}))).await.result.unwrap_err();
    assert_eq!(error.code(), Code::InvalidInput);
    assert!(error.message().contains("the same part of the document `counters/@x` twice"), "{error}");
}

/// Fail after a change.
#[tool]
async fn fails(#[state(id = "d")] number: &mut i64, how: String) -> Result<Output, ToolError> {
    *number += 1;
    match how.as_str() {
        "panic" => panic!("as asked"),
        "late" => {
            tokio::time::sleep(Duration::from_mins(1)).await;
            Ok(Output::text("late"))
        }
        _ => Err(ToolError::precondition("as asked")),
    }
}

/// Change it, late.
#[tool(timeout_s = 0.02)]
fn late(#[state(id = "d")] number: &mut i64, done: Inject<AtomicU32>) -> &'static str {
    std::thread::sleep(Duration::from_millis(700));
    *number += 1;
    done.fetch_add(1, Ordering::SeqCst);
    "late"
}

#[tokio::test]
async fn failed_calls_commit_nothing() {
    let store = Shared::new();
    let done = Arc::new(AtomicU32::new(0));
    let toolbox = Toolbox::builder()
        .tool(fails)
        .tool(late)
        .provide_shared(Arc::clone(&done))
        .store(store.clone())
        .build()
        .unwrap();
    for (tool, arguments, timeout, code) in [
        ("fails", json!({"how": "error"}), None, Code::Precondition),
        ("fails", json!({"how": "panic"}), None, Code::Internal),
        ("fails", json!({"how": "late"}), Some(Duration::from_millis(10)), Code::Timeout),
        ("late", json!({}), None, Code::Timeout),
    ] {
        let mut call = Call::new(tool, arguments);
        call.options.timeout = timeout;
        assert_eq!(toolbox.call(call).await.result.unwrap_err().code(), code, "{tool}");
    }
    for change in [|call: &mut Call| call.options.dry_run = true, |call: &mut Call| call.options.mock = true]
    {
        let mut call = Call::new("fails", json!({"how": "error"}));
        change(&mut call);
        assert!(toolbox.call(call).await.result.is_ok());
    }
    while done.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The late thread has ended, and its change is not committed.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!((store.version("d").await, store.commits.load(Ordering::SeqCst)), (0, 0));
    // The document is free: the next call does not wait.
    let error = toolbox.run("fails", json!({"how": "error"})).await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);
}

#[data]
#[derive(Default)]
struct Numbers {
    #[serde(default)]
    list: Vec<f64>,
    by_name: std::collections::BTreeMap<String, f64>,
}

/// Divide.
#[tool(policy(placement = "inline"))]
fn divide(#[state(id = "d", path = "/results")] numbers: &mut Numbers, by: f64) -> u8 {
    numbers.by_name.insert("a/b".into(), 1.0 / by);
    1
}

/// Keep text.
#[tool(policy(placement = "inline"))]
fn keep(#[state(id = "texts/{name}")] kept: &mut String, name: String, text: String) {
    *kept = text;
}

#[tokio::test]
async fn invalid_state_is_an_error_with_its_place() {
    let toolbox = Toolbox::builder()
        .tool(divide)
        .tool(keep)
        .settings(|settings| settings.document_limit = 100)
        .build()
        .unwrap();
    let error = toolbox.run("divide", json!({"by": 0})).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert_eq!(error.context()["pointer"], "/results/by_name/a~1b");
    assert!(error.message().contains("expected a finite number, found inf"), "{error}");
    assert_eq!(toolbox.state("d").unwrap().version().await.unwrap(), 0);

    let keep =
        async |length: usize| toolbox.run("keep", json!({"name": "a", "text": "x".repeat(length)})).await;
    keep(98).await.unwrap();
    let error = keep(99).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    assert_eq!(error.message(), "the document `texts/a` would have 101 bytes; the limit is 100 bytes");
    assert_eq!(toolbox.state("texts/a").unwrap().version().await.unwrap(), 1);
    // The stored value has another type.
    toolbox.state("texts/b").unwrap().replace(&[1, 2]).await.unwrap();
    let error = toolbox.run("keep", json!({"name": "b", "text": "x"})).await.unwrap_err();
    assert!(error.message().contains("the document `texts/b`"), "{error}");

    let long = toolbox.run("keep", json!({"name": "n".repeat(300), "text": "x"})).await.unwrap_err();
    assert_eq!(long.code(), Code::InvalidInput);
    assert_eq!(Toolbox::builder().build().unwrap().state("").unwrap_err().code(), Code::InvalidInput);
}

#[test]
fn a_document_may_have_one_mebibyte() {
    assert_eq!(toolpost_toolbox::ToolboxSettings::default().document_limit, 1 << 20);
}

#[test]
fn contradictions_are_rejected_at_registration() {
    let spec = |id: &str, cache: bool| {
        let mut spec = ToolSpec::new("t", "T.").parameter("name", toolpost::ParameterType::String, "N.");
        spec.state = serde_json::from_value(json!([{"id": id, "writes": true}])).unwrap();
        spec.annotations.idempotent = true;
        spec.policy.cache = cache.then_some(Duration::from_secs(1));
        spec
    };
    let mut secret = spec("d/{name}", false);
    secret.sensitive.push("name".into());
    for (spec, expected) in [
        (spec("d", true), "cannot be cached"),
        (spec("d/{nmae}", false), "`{nmae}` in the state `d/{nmae}` is not a parameter"),
        (spec("d//x", false), "a part between `/` is empty"),
        (secret, "`name` is sensitive"),
    ] {
        let tool = tool_fn(spec, async |_, _| Ok(Output::text("x")));
        let error = Toolbox::builder().tool(tool).build().unwrap_err();
        assert!(error.message.contains(expected), "{error}");
    }
}

/// Change the same document as a nested call.
#[tool]
async fn outer(
    #[state(id = "counters/{owner}", path = "/by_name/{name}")] count: &mut i64,
    name: String,
    other: String,
    ctx: &Ctx,
) -> Result<Output, ToolError> {
    *count += 10;
    ctx.call("add_slowly", json!({ "name": other })).await
}

#[tokio::test]
async fn a_nested_call_never_waits_for_its_caller() {
    let store = Shared::new();
    let toolbox =
        Toolbox::builder().tools(Counters { most: 1000 }).tool(outer).store(store.clone()).build().unwrap();
    let call =
        async |other: &str| toolbox.call(by("x", "outer", json!({"name": "a", "other": other}))).await.result;
    let error = call("a").await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);
    assert!(error.message().contains("is locked by a call that waits for this one"), "{error}");
    assert_eq!(store.version("counters/@x").await, 0);
    // Changes to different parts are both committed; the outer change is rebased on the nested one.
    assert_eq!(call("b").await.unwrap().structured, Some(json!(1)));
    assert_eq!(store.value("counters/@x").await, json!({"by_name": {"b": 1, "a": 10}}));
    assert_eq!(store.version("counters/@x").await, 2);
    let record = toolbox.records().into_iter().rev().find(|record| &*record.tool == "outer").unwrap();
    assert_eq!(record.state, versions("counters/@x", 1, 2));
    assert_eq!(record.children[0].state, versions("counters/@x", 0, 1));
}

#[tokio::test]
async fn a_running_commit_is_finished_and_recorded() {
    let store = Shared::gated();
    let toolbox = toolbox(store.clone());
    let caller = toolbox.clone();
    let task = tokio::spawn(async move { caller.run("add_slowly", json!({"name": "a"})).await });
    while store.commits.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(toolbox.records().is_empty());
    store.open();
    while toolbox.records().is_empty() {
        tokio::task::yield_now().await;
    }
    let record = toolbox.records().pop().unwrap();
    assert_eq!(record.error.as_ref().map(ToolError::code), Some(Code::Cancelled));
    assert_eq!(record.state, versions("counters/@", 0, 1));
    assert_eq!(store.value("counters/@").await, json!({"by_name": {"a": 1}}));
    // No document is locked.
    assert_eq!(toolbox.run("add_slowly", json!({"name": "a"})).await.unwrap().structured, Some(json!(2)));
    assert_eq!(toolbox.records().len(), 2);
}

#[tokio::test]
async fn a_cancelled_waiter_leaves_the_queue() {
    let store = Shared::gated();
    let toolbox = toolbox(store.clone());
    let start = |name: &'static str| {
        let toolbox = toolbox.clone();
        tokio::spawn(async move { toolbox.run("add_slowly", json!({"name": name})).await })
    };
    let first = start("a");
    while store.commits.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let second = start("a");
    let third = start("a");
    tokio::task::yield_now().await;
    second.abort();
    store.open();
    assert_eq!(first.await.unwrap().unwrap().structured, Some(json!(1)));
    assert_eq!(third.await.unwrap().unwrap().structured, Some(json!(2)));
}

/// Ask, and store the answer.
#[tool]
async fn asks(
    #[state(id = "asked")] answers: &mut Vec<String>,
    ctx: &Ctx,
    runs: Inject<AtomicU32>,
) -> Result<usize, ToolError> {
    runs.fetch_add(1, Ordering::SeqCst);
    let seen = answers.len();
    ctx.artifact(Artifact::from_bytes(format!("seen-{seen}.txt"), "text/plain", *b"x")).await?;
    let Answer::Given { value } = ctx.ask(Question::text("What?")).await? else { return Ok(0) };
    answers.push(format!("{seen} {value}"));
    Ok(answers.len())
}

#[tokio::test]
async fn a_question_releases_the_document_and_is_not_repeated() {
    let store = Shared::new();
    let runs = Arc::new(AtomicU32::new(0));
    let toolbox =
        Toolbox::builder().tool(asks).provide_shared(Arc::clone(&runs)).store(store.clone()).build().unwrap();
    let ports = [MemoryPort::new(9, 9), MemoryPort::new(9, 9)];
    let start = |port: &Arc<MemoryPort>| {
        let (toolbox, call) = (toolbox.clone(), Call::new("asks", json!({})).with_port(port.clone()));
        tokio::spawn(async move { toolbox.call(call).await })
    };
    let first = start(&ports[0]);
    while ports[0].heard().questions.is_empty() {
        tokio::task::yield_now().await;
    }
    let second = start(&ports[1]);
    while ports[1].heard().questions.is_empty() {
        tokio::task::yield_now().await;
    }
    ports[1].answer(Answer::Given { value: json!("two") });
    assert_eq!(second.await.unwrap().result.unwrap().structured, Some(json!(1)));
    ports[0].answer(Answer::Given { value: json!("one") });
    let reply = first.await.unwrap();
    assert_eq!(reply.result.unwrap().structured, Some(json!(2)));
    assert_eq!(reply.record.attempts, 2);
    assert_eq!(ports[0].heard().questions.len(), 1);
    // Only the files of the committed attempt are delivered.
    let files: Vec<String> = ports[0].heard().artifacts.iter().map(|file| file.name.clone()).collect();
    assert_eq!(files, ["seen-1.txt"]);
    assert_eq!(store.value("asked").await, json!(["0 \"two\"", "1 \"one\""]));
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

/// Report the planned addition.
#[tool(policy(dry_run))]
async fn add_if(#[state(id = "d")] number: &mut i64, by: i64, ctx: &Ctx) -> Result<i64, ToolError> {
    *number += by;
    if ctx.is_dry_run() {
        // A dry run rejects direct changes too.
        assert_eq!(ctx.state("other")?.replace(&1).await.unwrap_err().code(), Code::Precondition);
    }
    Ok(*number)
}

#[tokio::test]
async fn a_dry_run_reads_state_and_changes_none() {
    let store = Shared::new();
    let toolbox = Toolbox::builder().tool(add_if).store(store.clone()).build().unwrap();
    toolbox.run("add_if", json!({"by": 1})).await.unwrap();
    for _ in 0..2 {
        let mut call = Call::new("add_if", json!({"by": 5}));
        call.options.dry_run = true;
        assert_eq!(toolbox.call(call).await.result.unwrap().structured, Some(json!(6)));
    }
    assert_eq!((store.version("d").await, store.version("other").await), (1, 0));
}

/// Hold a document for a given time.
#[tool(policy(no_timeout))]
async fn hold(#[state(id = "d")] number: &mut i64, seconds: u64) -> i64 {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    *number += 1;
    *number
}

/// Add one, soon.
#[tool(timeout_s = 5)]
async fn soon(#[state(id = "d")] number: &mut i64) -> i64 {
    *number += 1;
    *number
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_document_has_a_timeout() {
    let toolbox = Toolbox::builder().tool(hold).tool(soon).build().unwrap();
    let start = |tool: &'static str, arguments: Value| {
        let toolbox = toolbox.clone();
        tokio::spawn(async move { toolbox.run(tool, arguments).await })
    };
    let begun = tokio::time::Instant::now();
    let holder = start("hold", json!({"seconds": 30}));
    tokio::task::yield_now().await;
    let error = start("soon", json!({})).await.unwrap().unwrap_err();
    assert_eq!((error.code(), begun.elapsed().as_secs()), (Code::Overloaded, 5));
    let call = Call::new("soon", json!({})).with_deadline((begun + Duration::from_secs(7)).into_std());
    assert_eq!(toolbox.call(call).await.result.unwrap_err().code(), Code::Timeout);
    assert_eq!(begun.elapsed().as_secs(), 7);
    assert_eq!(holder.await.unwrap().unwrap().structured, Some(json!(1)));
    // A wait within the timeout succeeds.
    let holder = start("hold", json!({"seconds": 4}));
    tokio::task::yield_now().await;
    assert_eq!(toolbox.run("soon", json!({})).await.unwrap().structured, Some(json!(3)));
    holder.await.unwrap().unwrap();
}
