//! Conflicts with commits of another process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use toolpost::{Call, Code, DocStore, Inject, OnConflict, Reply, Tool, ToolError, tool};
use toolpost_toolbox::Toolbox;

use super::{Shared, at_once, history_is_whole, versions};

/// Add one, with the defaults.
#[tool]
async fn defaults(#[state(id = "d", path = "/mine")] number: &mut i64, runs: Inject<AtomicU32>) -> i64 {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1;
    *number
}

/// Add one, with few tries.
#[tool(conflict_policy = "retry", max_retries = 2, backoff_initial_ms = 10, backoff_max_ms = 10)]
async fn few(#[state(id = "d", path = "/mine")] number: &mut i64, runs: Inject<AtomicU32>) -> i64 {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1;
    *number
}

/// Add one, with long waits.
#[tool(conflict_policy = "retry", backoff_initial_ms = 1000, backoff_max_ms = 4000)]
async fn patient(#[state(id = "d", path = "/mine")] number: &mut i64, runs: Inject<AtomicU32>) -> i64 {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1;
    *number
}

/// Add one, or fail.
#[tool(conflict_policy = "error")]
async fn strict(#[state(id = "d", path = "/mine")] number: &mut i64, runs: Inject<AtomicU32>) -> i64 {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1;
    *number
}

/// Add the additions of both.
fn sum(before: i64, mine: i64, theirs: i64) -> i64 {
    mine + theirs - before
}

/// Add one, and merge other additions.
#[tool(max_retries = 3, backoff_initial_ms = 1000, backoff_max_ms = 1000, policy(merge = sum))]
async fn merges(#[state(id = "d", path = "/mine")] number: &mut i64, runs: Inject<AtomicU32>) -> i64 {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1;
    *number
}

fn refuse(_: i64, mine: i64, theirs: i64) -> Result<i64, ToolError> {
    Err(ToolError::conflict(format!("{mine} and {theirs}")))
}

/// Add one, and reject other additions.
#[tool(policy(merge = refuse))]
async fn refuses(#[state(id = "d", path = "/mine")] number: &mut i64, runs: Inject<AtomicU32>) -> i64 {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1;
    *number
}

/// Add one, and read another document.
#[tool(conflict_policy = "error")]
async fn looks(
    #[state(id = "d", path = "/mine")] number: &mut i64,
    #[state(id = "d", path = "/seen")] seen: &i64,
    runs: Inject<AtomicU32>,
) -> i64 {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1;
    *number + *seen
}

/// Add the value of another document, and merge other additions.
#[tool(policy(merge = sum))]
async fn adds_seen(
    #[state(id = "d", path = "/mine")] number: &mut i64,
    #[state(id = "d", path = "/seen")] seen: &i64,
    runs: Inject<AtomicU32>,
) {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1 + *seen;
}

/// A variant with swapped documents.
#[tool(policy(merge = sum))]
async fn sees_and_adds(
    #[state(id = "d", path = "/seen")] seen: &i64,
    #[state(id = "d", path = "/mine")] number: &mut i64,
    runs: Inject<AtomicU32>,
) {
    runs.fetch_add(1, Ordering::SeqCst);
    *number += 1 + *seen;
}

struct Ran {
    reply: Reply,
    runs: u32,
    value: Value,
    waited: Duration,
}

/// Runs a tool while another process commits before each of its first commits.
async fn run(tool: impl Tool + 'static, times: u32, pointer: &str) -> Ran {
    run_beside(tool, times, pointer, json!(100)).await
}

/// A variant with the value of the other process.
async fn run_beside(tool: impl Tool + 'static, times: u32, pointer: &str, theirs: Value) -> Ran {
    let store = Shared::with(times, pointer, theirs);
    let runs = Arc::new(AtomicU32::new(0));
    let name = tool.spec().name.clone();
    let toolbox = Toolbox::builder()
        .tool(tool)
        .provide_shared(Arc::clone(&runs))
        .store(store.clone() as Arc<dyn DocStore>)
        .build()
        .unwrap();
    let start = Instant::now();
    let reply = toolbox.call(Call::new(name, json!({}))).await;
    let waited = start.elapsed();
    history_is_whole(&*store, "d").await;
    Ran { reply, runs: runs.load(Ordering::SeqCst), value: store.value("d").await, waited }
}

#[tokio::test(start_paused = true)]
async fn a_change_to_another_part_is_no_conflict() {
    for pointer in ["/other", "/mine2", "/deep/mine"] {
        let ran = run(strict(), 50, pointer).await;
        assert_eq!(ran.reply.result.unwrap().structured, Some(json!(1)), "{pointer}");
        assert_eq!((ran.runs, ran.waited.as_secs()), (1, 0));
        assert_eq!(ran.value["mine"], 1);
        assert_eq!(ran.reply.record.state, versions("d", 50, 51));
    }
    // Only parts that the tool has seen conflict, even if it only read them.
    assert!(run(looks(), 1, "/other").await.reply.result.is_ok());
    let error = run(looks(), 1, "/seen").await.reply.result.unwrap_err();
    assert_eq!(error.code(), Code::Conflict);
}

#[tokio::test(start_paused = true)]
async fn retry_reads_the_newest_version() {
    let ran = run(defaults(), 5, "/mine").await;
    assert_eq!(ran.reply.result.unwrap().structured, Some(json!(501)));
    assert_eq!((ran.runs, ran.reply.record.attempts), (6, 6));
    assert_eq!(ran.value, json!({"mine": 501}));
    assert_eq!(ran.reply.record.state, versions("d", 5, 6));
    // A change of the whole document or of a parent of the part is a conflict too.
    assert_eq!(run(defaults(), 1, "/mine/deeper").await.reply.result.unwrap_err().code(), Code::Internal);
    assert_eq!(run(few(), 1, "").await.reply.result.unwrap_err().code(), Code::Precondition);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_retries_is_applied() {
    // 16 by default.
    assert!(run(defaults(), 16, "/mine").await.reply.result.is_ok());
    let ran = run(defaults(), 17, "/mine").await;
    assert_eq!(ran.runs, 17);
    let error = ran.reply.result.unwrap_err();
    assert_eq!(error.code(), Code::Conflict);
    assert_eq!(error.message(), "another writer changed the document `d`; its version is now 17");
    assert_eq!((&error.context()["document"], &error.context()["max_retries"]), (&json!("d"), &json!(16)));

    assert!(run(few(), 2, "/mine").await.reply.result.is_ok());
    let ran = run(few(), 3, "/mine").await;
    assert_eq!((ran.runs, ran.value), (3, json!({"mine": 300})));
    assert_eq!(ran.reply.result.unwrap_err().code(), Code::Conflict);
}

#[tokio::test(start_paused = true)]
async fn the_retry_delays_are_applied() {
    // From 5 ms, doubling, half to all of it: 15 to 5 + 10 + 20 ms.
    let waited = run(defaults(), 3, "/mine").await.waited;
    assert!((Duration::from_micros(17_500)..Duration::from_millis(45)).contains(&waited), "{waited:?}");
    // At most 250 ms each: the first six are 5 to 160 ms, and ten more.
    let waited = run(defaults(), 16, "/mine").await.waited;
    assert!((Duration::from_millis(1400)..Duration::from_millis(2900)).contains(&waited), "{waited:?}");
    // 1, 2, 4, 4 s.
    let waited = run(patient(), 4, "/mine").await.waited;
    assert!((Duration::from_millis(5500)..Duration::from_millis(11_100)).contains(&waited), "{waited:?}");
    let waited = run(few(), 2, "/mine").await.waited;
    assert!((Duration::from_millis(10)..Duration::from_millis(25)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_error_policy_fails_without_a_retry() {
    let ran = run(strict(), 1, "/mine").await;
    let error = ran.reply.result.unwrap_err();
    assert_eq!((error.code(), error.is_recoverable()), (Code::Conflict, true));
    assert_eq!((ran.runs, ran.value, ran.waited.as_millis()), (1, json!({"mine": 100}), 0));
}

#[tokio::test(start_paused = true)]
async fn merge_combines_both_changes_without_a_retry() {
    assert_eq!(merges().spec().policy.conflict.as_ref().unwrap().action, OnConflict::Merge);
    let ran = run(merges(), 3, "/mine").await;
    assert_eq!(ran.reply.result.unwrap().structured, Some(json!(1)));
    assert_eq!((ran.runs, ran.value), (1, json!({"mine": 301})));
    assert!(
        (Duration::from_millis(1500)..Duration::from_millis(3100)).contains(&ran.waited),
        "{:?}",
        ran.waited
    );
    let ran = run(merges(), 4, "/mine").await;
    assert_eq!((ran.reply.result.unwrap_err().code(), ran.value), (Code::Conflict, json!({"mine": 400})));
    let error = run(refuses(), 1, "/mine").await.reply.result.unwrap_err();
    assert_eq!(error.message(), "1 and 100");
}

#[tokio::test(start_paused = true)]
async fn merge_rejects_changes_based_on_stale_values() {
    let both = json!({"mine": 100, "seen": 7});
    for ran in [
        run_beside(adds_seen(), 1, "", both.clone()).await,
        run_beside(sees_and_adds(), 1, "", both.clone()).await,
    ] {
        ran.reply.result.unwrap();
        assert_eq!((ran.runs, ran.value), (2, json!({"mine": 108, "seen": 7})));
    }
    // Only written parts are merged.
    let ran = run_beside(sees_and_adds(), 1, "/mine", json!(100)).await;
    assert_eq!((ran.runs, ran.value), (1, json!({"mine": 101})));
}

/// Copy another document, which another process changes meanwhile.
#[tool]
async fn keep_seen(
    #[state(id = "seen", path = "/n")] seen: &i64,
    #[state(id = "d")] number: &mut i64,
    others: Inject<Shared>,
    place: String,
) {
    *number = *seen + 1;
    if others.version("seen").await == 0 {
        others.intrude("seen", &place, &json!(7)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_read_dependency_is_a_conflict() {
    for (place, runs, kept) in [("/n", 2, 8), ("/elsewhere", 1, 1)] {
        let store = Shared::new();
        let toolbox = Toolbox::builder()
            .tool(keep_seen)
            .provide_shared(Arc::clone(&store))
            .store(store.clone() as Arc<dyn DocStore>)
            .build()
            .unwrap();
        let reply = toolbox.call(Call::new("keep_seen", json!({ "place": place }))).await;
        reply.result.unwrap();
        assert_eq!((reply.record.attempts, store.value("d").await), (runs, json!(kept)), "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancellation_and_deadline_end_the_retries() {
    let store = Shared::with(9, "/mine", json!(1));
    let toolbox = Toolbox::builder()
        .tool(patient)
        .provide(AtomicU32::new(0))
        .store(store.clone() as Arc<dyn DocStore>)
        .build()
        .unwrap();
    let call =
        Call::new("patient", json!({})).with_deadline((Instant::now() + Duration::from_secs(2)).into_std());
    assert_eq!(toolbox.call(call).await.result.unwrap_err().code(), Code::Timeout);
    let cancellation = toolpost::Cancellation::new();
    let call = Call::new("patient", json!({})).with_cancellation(cancellation.clone());
    let (reply, ()) = tokio::join!(toolbox.call(call), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancellation.cancel();
    });
    assert_eq!(reply.result.unwrap_err().code(), Code::Cancelled);
}

/// Write a line.
#[tool]
async fn write_line(#[state(id = "lines")] lines: &mut Vec<u32>, number: u32) -> usize {
    let place = lines.len();
    tokio::task::yield_now().await;
    lines.push(number);
    place
}

/// Store a value under its own name.
#[tool(conflict_policy = "error")]
async fn keep_own(#[state(id = "own", path = "/{name}")] value: &mut u32, name: u32) {
    tokio::task::yield_now().await;
    *value += name;
}

fn processes(store: &Arc<Shared>) -> Vec<Toolbox> {
    let toolbox = |_| {
        let store = Arc::clone(store) as Arc<dyn DocStore>;
        Toolbox::builder().tool(write_line).tool(keep_own).store(store).build().unwrap()
    };
    (0..4).map(toolbox).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_are_serializable() {
    let store = Shared::new();
    let calls: Vec<Call> =
        (0..64).map(|number| Call::new("write_line", json!({ "number": number }))).collect();
    let replies = at_once(&processes(&store), calls).await;
    let lines = store.value("lines").await;
    assert_eq!(store.version("lines").await, 64);
    for (number, reply) in replies.into_iter().enumerate() {
        let place = reply.result.unwrap().structured.unwrap().as_u64().unwrap() as usize;
        assert_eq!(lines[place], json!(number));
        assert_eq!(reply.record.state, versions("lines", place as u64, place as u64 + 1));
    }
    history_is_whole(&*store, "lines").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_different_parts_never_conflict() {
    let store = Shared::new();
    // `conflict_policy = "error"` would report a conflict.
    let calls: Vec<Call> = (1..=64).map(|name| Call::new("keep_own", json!({ "name": name }))).collect();
    for reply in at_once(&processes(&store), calls).await {
        reply.result.unwrap();
        assert_eq!(reply.record.attempts, 1);
    }
    assert_eq!(store.version("own").await, 64);
    assert_eq!(store.value("own").await.as_object().unwrap().len(), 64);
    history_is_whole(&*store, "own").await;
}
