//! Documents: versions, conflicts, history and lists.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{CallId, Clock, Code, Commit, Committed, DocStore, Document, Timestamp};
use toolpost_store::Store;

use crate::support::{Lock, increment, put, set, write};

fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("state.db")).unwrap();
    (directory, store)
}

fn missing(id: &str) -> Document {
    Document { id: id.into(), version: 0, value: Arc::new(Value::Null) }
}

#[tokio::test]
async fn a_missing_document_is_version_0_and_null() {
    let (_directory, store) = store();
    assert_eq!(store.load("a").await.unwrap(), missing("a"));
    assert_eq!(store.at("a", 0).await.unwrap(), missing("a"));
    assert_eq!(store.log("a", 0, 10).await.unwrap(), []);
    assert_eq!(store.list("", None, 10).await.unwrap(), []);
    assert_eq!(store.at("a", 1).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(store.commit(Commit::default()).await.unwrap(), Committed::Done(vec![]));
}

#[tokio::test]
async fn values_round_trip_exactly() {
    let (directory, store) = store();
    let values = [
        json!(null),
        json!(0.1 + 0.2),
        json!([f64::MIN_POSITIVE, f64::MAX, 5e-324, -0.0, 1e21, 123_456_789.123_456_79]),
        json!([u64::MAX, i64::MIN, 1, 1.0]),
        json!({"z": 1, "a": {"": [], "\u{0}": "\u{0}\u{1}\u{7f}\u{feff}\u{1F980}"}, "~/": "'\"\\"}),
        json!("x".repeat(100_000)),
        json!(false),
    ];
    for (index, value) in values.iter().enumerate() {
        set(&store, &format!("v/{index}"), value.clone()).await;
        set(&store, "all", json!({"before": {"padding": "makes the patch smaller"}, "it": value})).await;
    }
    drop(store);
    let store = Store::open(directory.path().join("state.db")).unwrap();
    for (index, value) in values.iter().enumerate() {
        let text = |value: &Value| serde_json::to_string(value).unwrap();
        let found = store.load(&format!("v/{index}")).await.unwrap();
        assert_eq!(text(&found.value), text(value));
        let found = store.at("all", index as u64 + 1).await.unwrap();
        assert_eq!(text(&found.value["it"]), text(value));
    }
}

#[tokio::test]
async fn a_stale_base_conflicts_and_gets_the_newest_version() {
    let (_directory, store) = store();
    let old = missing("a");
    assert_eq!(put(&store, &old, json!({"n": 1})).await.unwrap(), Committed::Done(vec![1]));
    let newest = Document { id: "a".into(), version: 1, value: Arc::new(json!({"n": 1})) };
    assert_eq!(put(&store, &old, json!({"n": 2})).await.unwrap(), Committed::Conflict(vec![newest.clone()]));
    // A base from the future conflicts as well.
    let future = Document { version: 7, ..newest.clone() };
    assert_eq!(
        put(&store, &future, json!({"n": 2})).await.unwrap(),
        Committed::Conflict(vec![newest.clone()])
    );
    // Another store reads the newest version from the file.
    let other = Store::open(store.path()).unwrap();
    assert_eq!(put(&other, &old, json!({"n": 2})).await.unwrap(), Committed::Conflict(vec![newest]));
    assert_eq!(store.load("a").await.unwrap().version, 1);
}

#[tokio::test]
async fn a_commit_of_several_documents_is_atomic() {
    let (_directory, store) = store();
    set(&store, "b", json!(1)).await;
    let writes =
        vec![write(&missing("a"), json!(1)), write(&missing("b"), json!(2)), write(&missing("c"), json!(3))];
    let answer = store.commit(Commit { writes, ..Commit::default() }).await.unwrap();
    let newest = Document { id: "b".into(), version: 1, value: Arc::new(json!(1)) };
    assert_eq!(answer, Committed::Conflict(vec![newest.clone()]));
    assert_eq!(store.list("", None, 10).await.unwrap(), [("b".to_owned(), 1)]);
    let writes = vec![write(&missing("a"), json!(1)), write(&newest, json!(2))];
    let answer = store.commit(Commit { writes, ..Commit::default() }).await.unwrap();
    assert_eq!(answer, Committed::Done(vec![1, 2]));
    assert_eq!(store.list("", None, 10).await.unwrap(), [("a".to_owned(), 1), ("b".to_owned(), 2)]);
}

#[derive(Debug)]
struct Fixed;

impl Clock for Fixed {
    fn instant(&self) -> std::time::Instant {
        std::time::Instant::now()
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp::from_micros(1_234_567_890_000_001)
    }
}

#[tokio::test]
async fn a_changed_read_document_is_a_conflict() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path().join("state.db")).unwrap();
    let other = Store::open(store.path()).unwrap();
    set(&store, "seen", json!(1)).await;
    let commit = async |version| {
        let writes = vec![write(&missing("a"), json!(1))];
        let reads = vec![("seen".to_owned(), version)];
        store.commit(Commit { writes, reads, ..Commit::default() }).await.unwrap()
    };
    let newest = set(&other, "seen", json!(2)).await;
    assert_eq!(commit(1).await, Committed::Conflict(vec![newest]));
    assert_eq!(store.load("a").await.unwrap(), missing("a"));
    assert_eq!(commit(2).await, Committed::Done(vec![1]));
}

#[tokio::test]
async fn the_history_has_time_call_patch_and_event() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::options().clock(Arc::new(Fixed)).open(directory.path().join("state.db")).unwrap();
    let call = CallId::new();
    let change = write(&missing("a"), json!({"n": 1}));
    let event = json!({"reason": ["test"]});
    let commit = Commit {
        writes: vec![change.clone()],
        call: Some(call),
        event: Some(event.clone()),
        ..Commit::default()
    };
    store.commit(commit).await.unwrap();
    let log = store.log("a", 0, 10).await.unwrap();
    let expected = toolpost_core::Change {
        version: 1,
        at: Fixed.timestamp(),
        call: Some(call),
        patch: change.patch,
        event: Some(event),
    };
    assert_eq!(log, [expected]);
    set(&store, "a", json!({"n": 2})).await;
    let log = store.log("a", 1, 10).await.unwrap();
    assert_eq!((log[0].call, &log[0].event), (None, &None));
    assert_eq!(log[0].patch, json!([{"op": "replace", "path": "/n", "value": 2}]));
}

/// The history has several milestones, and a document larger than its patches.
#[tokio::test]
async fn every_version_of_a_long_history_is_readable() {
    let (directory, store) = store();
    let padding = "x".repeat(3_000);
    let value = |n: u64| json!({"n": n, "padding": padding, "list": vec![n; (n % 7) as usize]});
    let mut document = missing("a");
    for n in 1..=300 {
        // Changes of two documents alternate in the file.
        set(&store, "b", json!(n)).await;
        assert_eq!(put(&store, &document, value(n)).await.unwrap(), Committed::Done(vec![n]));
        document = Document { version: n, value: Arc::new(value(n)), ..document };
    }
    drop(store);
    let store = Store::open(directory.path().join("state.db")).unwrap();
    assert_eq!(store.load("a").await.unwrap(), document);
    for n in 1..=300 {
        assert_eq!(*store.at("a", n).await.unwrap().value, value(n), "{n}");
    }
    assert_eq!(store.at("a", 301).await.unwrap_err().context()["newest"], 300);
    for (after, limit, first, last) in [
        (0, 5, 1, 5),
        (0, 300, 1, 300),
        (0, usize::MAX, 1, 300),
        (61, 70, 62, 131),
        (255, 1, 256, 256),
        (290, 50, 291, 300),
    ] {
        let versions: Vec<u64> =
            store.log("a", after, limit).await.unwrap().iter().map(|change| change.version).collect();
        assert_eq!(versions, (first..=last).collect::<Vec<_>>(), "after {after}, at most {limit}");
    }
    for (after, limit) in [(300, 10), (u64::MAX, 10), (0, 0)] {
        assert_eq!(store.log("a", after, limit).await.unwrap(), [], "after {after}, at most {limit}");
    }
    // Most versions are stored as patches.
    let bytes = std::fs::metadata(store.path()).unwrap().len();
    assert!(bytes < 200_000, "{bytes}");
}

#[tokio::test]
async fn lists_are_sorted_filtered_and_paged() {
    let (_directory, store) = store();
    for id in ["a", "a/1", "a/2", "a/%", "a/_", "b", "é", "A", "a\u{10FFFF}"] {
        set(&store, id, json!(1)).await;
    }
    set(&store, "a/2", json!(2)).await;
    let rows: [(&str, Option<&str>, usize, &[&str]); 9] = [
        ("", None, 100, &["A", "a", "a/%", "a/1", "a/2", "a/_", "a\u{10FFFF}", "b", "é"]),
        ("a/", None, 100, &["a/%", "a/1", "a/2", "a/_"]),
        ("a/%", None, 100, &["a/%"]),
        ("a/", None, 2, &["a/%", "a/1"]),
        ("a/", Some("a/1"), 2, &["a/2", "a/_"]),
        ("a/", Some("a/_"), 2, &[]),
        ("a/", Some("A"), 1, &["a/%"]),
        ("c", None, 100, &[]),
        ("", None, 0, &[]),
    ];
    for (prefix, after, limit, expected) in rows {
        let found = store.list(prefix, after, limit).await.unwrap();
        let names: Vec<&str> = found.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(names, expected, "{prefix} after {after:?}");
        assert!(found.iter().all(|(id, version)| *version == if id == "a/2" { 2 } else { 1 }));
    }
}

/// The writer takes the whole queue as one transaction; each commit is its own compare-and-set.
#[tokio::test]
async fn commits_of_one_document_in_one_batch_see_each_other() {
    let (_directory, store) = store();
    let lock = Lock::new(&store);
    let commits = (0..20).map(|n| {
        // Ten consecutive commits, then ten from the same base; the first of these wins.
        let base = if n < 10 { n } else { 10 };
        let from = Document { version: base, value: Arc::new(json!({"n": base})), ..missing("a") };
        let value = json!({"n": base + 1, "by": n});
        let store = store.clone();
        async move { put(&store, &from, value).await.unwrap() }
    });
    let all = futures_util::future::join_all(commits);
    // The commits are queued when they are polled first.
    let (answers, ()) = tokio::join!(all, async { drop(lock) });
    let newest = Document { version: 11, value: Arc::new(json!({"n": 11, "by": 10})), ..missing("a") };
    let expected: Vec<Committed> = (1..=11)
        .map(|version| Committed::Done(vec![version]))
        .chain((0..9).map(|_| Committed::Conflict(vec![newest.clone()])))
        .collect();
    assert_eq!(answers, expected);
    assert_eq!(store.log("a", 0, 100).await.unwrap().len(), 11);
}

#[tokio::test]
async fn two_stores_on_one_file_see_each_other() {
    let (_directory, first) = store();
    let second = Store::open(first.path()).unwrap();
    let (mut here, mut there) = (missing("a"), missing("a"));
    for round in 0..100 {
        assert_eq!(increment(&first, &mut here).await.unwrap(), 2 * round + 1);
        assert_eq!(increment(&second, &mut there).await.unwrap(), 2 * round + 2);
    }
    assert_eq!(first.load("a").await.unwrap(), second.load("a").await.unwrap());
    assert_eq!(first.load("a").await.unwrap().value["n"], 200);
}

#[tokio::test]
async fn a_dropped_commit_is_stored_before_the_store_is_dropped() {
    let (directory, store) = store();
    {
        let document = missing("a");
        let commit = put(&store, &document, json!(1));
        tokio::pin!(commit);
        // Polled once, which queues it.
        tokio::select! {
            biased;
            _ = &mut commit => panic!("answered at once"),
            () = std::future::ready(()) => {}
        }
    }
    drop(store);
    let store = Store::open(directory.path().join("state.db")).unwrap();
    assert_eq!(*store.load("a").await.unwrap().value, json!(1));
}

#[test]
fn a_store_needs_no_runtime() {
    let (_directory, store) = store();
    futures_util::FutureExt::now_or_never(store.load("a")).unwrap().unwrap();
}

#[tokio::test]
async fn a_forgotten_document_is_erased_from_the_file_and_starts_again() {
    const CANARY: &str = "canary-7f3a91";
    let (directory, store) = store();
    let other = set(&store, "other", json!({"n": 1})).await;
    for step in 0..200 {
        set(&store, "gone", json!({"secret": CANARY, "step": step, "padding": "x".repeat(300)})).await;
        set(&store, "other", json!({"n": step})).await;
    }
    // The writer must drop its cached version.
    assert!(store.forget("gone").await.unwrap());
    assert!(!store.forget("gone").await.unwrap());
    assert_eq!(store.load("gone").await.unwrap(), missing("gone"));
    assert_eq!(store.log("gone", 0, 10).await.unwrap(), []);
    assert_eq!(store.at("gone", 1).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(put(&store, &missing("gone"), json!(1)).await.unwrap(), Committed::Done(vec![1]));
    let other = store.at("other", other.version + 100).await.unwrap();
    assert_eq!(other.value["n"], 99);
    assert_eq!(store.log("other", 0, 1_000).await.unwrap().len(), 201);
    drop(store);
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()));
    }
}
