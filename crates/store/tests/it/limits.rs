//! Limits and their errors.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Code, Commit, Committed, DocStore, Document, ToolError, Write};
use toolpost_store::{Options, Store};

use crate::support::{Lock, put, set};

fn store(options: &Options) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = options.open(directory.path().join("state.db")).unwrap();
    (directory, store)
}

fn missing(id: &str) -> Document {
    Document { id: id.into(), version: 0, value: Arc::new(Value::Null) }
}

#[tokio::test]
async fn documents_patches_and_events_are_limited() {
    let (_directory, store) = store(&Store::options().document_limit(100));
    let text = |bytes: usize| json!("x".repeat(bytes - 2));
    set(&store, "a", text(100)).await;
    let document = store.load("a").await.unwrap();
    let error = put(&store, &document, text(101)).await.unwrap_err();
    assert_eq!(
        (error.code(), &error.context()["bytes"], &error.context()["limit"]),
        (Code::Limit, &json!(101), &json!(100))
    );
    assert!(error.message().contains("`a`"), "{error}");
    let patch =
        json!([{"op": "replace", "path": "", "value": text(200)}, {"op": "replace", "path": "", "value": 1}]);
    let write = Write { id: "a".into(), base: 1, patch, value: Arc::new(json!(1)) };
    let error = store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap_err();
    assert_eq!((error.code(), &error.context()["limit"]), (Code::Limit, &json!(200)));
    let event = Some(text(201));
    let writes = vec![crate::support::write(&document, json!(1))];
    let error = store.commit(Commit { writes, event, ..Commit::default() }).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    assert_eq!(store.load("a").await.unwrap(), document);
    // A store with a smaller limit still reads stored documents.
    let smaller = Store::options().document_limit(10).open(store.path()).unwrap();
    assert_eq!(smaller.load("a").await.unwrap(), document);
}

#[tokio::test]
async fn a_document_nested_too_deeply_to_be_read_is_rejected() {
    let nested = |levels: usize| (0..levels).fold(json!(1), |value, _| json!({ "a": [value] }));
    let (_directory, store) = store(&Store::options());
    set(&store, "a", nested(50)).await;
    let document = store.load("a").await.unwrap();
    let error = put(&store, &document, json!([nested(50)])).await.unwrap_err();
    assert_eq!((error.code(), &error.context()["limit"]), (Code::Limit, &json!(100)));
    assert!(error.message().contains("`a`"), "{error}");
    // No operation is deep, but the document is.
    let value = Arc::new(json!([document.value]));
    let patch =
        json!([{"op": "add", "path": "/b", "value": {}}, {"op": "move", "from": "/a", "path": "/b/c"}]);
    let write = Write { id: "a".into(), base: 1, patch, value };
    let error = store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    let writes = vec![crate::support::write(&document, json!(1))];
    let event = Some(json!([nested(50)]));
    let error = store.commit(Commit { writes, event, ..Commit::default() }).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    // Another store reads it from the file.
    let other = Store::open(store.path()).unwrap();
    assert_eq!(other.load("a").await.unwrap(), document);
    assert_eq!(other.log("a", 0, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_default_limit_is_one_mebibyte() {
    let (_directory, store) = store(&Store::options());
    set(&store, "a", json!("x".repeat((1 << 20) - 2))).await;
    let document = store.load("a").await.unwrap();
    let error = put(&store, &document, json!("y".repeat((1 << 20) - 1))).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit);
}

#[tokio::test]
async fn an_invalid_id_or_patch_is_rejected() {
    let (_directory, store) = store(&Store::options());
    let long = "x".repeat(257);
    for id in ["", "a\nb", "\u{7f}", "\u{85}", &long] {
        let errors: [ToolError; 4] = [
            put(&store, &missing(id), json!(1)).await.unwrap_err(),
            store.load(id).await.unwrap_err(),
            store.at(id, 1).await.unwrap_err(),
            store.log(id, 0, 1).await.unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.code() == Code::InvalidInput), "{id:?}: {errors:?}");
    }
    set(&store, &"é".repeat(128), json!(1)).await;
    let twice = vec![crate::support::write(&missing("a"), json!(1)); 2];
    let error = store.commit(Commit { writes: twice, ..Commit::default() }).await.unwrap_err();
    assert!(error.code() == Code::InvalidInput && error.message().contains("`a` twice"), "{error}");
    for patch in [json!(1), json!({}), json!([{"op": "become"}])] {
        let write = Write { id: "a".into(), base: 0, patch, value: Arc::new(json!(1)) };
        let error = store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput, "{error}");
    }
    assert_eq!(store.load("a").await.unwrap(), missing("a"));
}

#[tokio::test]
async fn the_wait_for_a_lock_is_bounded() {
    let (_directory, store) = store(&Store::options().busy_timeout(Duration::from_millis(60)));
    let held = Lock::new(&store);
    let error = put(&store, &missing("a"), json!(1)).await.unwrap_err();
    assert_eq!(error.code(), Code::Dependency);
    assert!(error.message().contains("locked by another process"), "{error}");
    assert_eq!(error.context()["path"], store.path().display().to_string());
    // Reads need no lock.
    assert_eq!(store.load("a").await.unwrap(), missing("a"));
    drop(held);
    assert_eq!(put(&store, &missing("a"), json!(1)).await.unwrap(), Committed::Done(vec![1]));
    // A longer timeout outlasts the lock.
    let patient = Store::options().busy_timeout(Duration::from_mins(1)).open(store.path()).unwrap();
    let held = Lock::new(&store);
    let document = patient.load("a").await.unwrap();
    let (answer, ()) = tokio::join!(put(&patient, &document, json!(2)), async { drop(held) });
    assert_eq!(answer.unwrap(), Committed::Done(vec![2]));
}

#[tokio::test]
async fn the_wait_for_a_full_queue_is_bounded() {
    let options = Store::options().queue_limit(2 << 10).busy_timeout(Duration::from_mins(1));
    let (_directory, store) = store(&options.clone().queue_wait(Duration::from_millis(30)));
    let held = Lock::new(&store);
    let commits: Vec<_> = ["a", "b", "c"]
        .map(|id| {
            let store = store.clone();
            tokio::spawn(async move { put(&store, &missing(id), json!(1)).await })
        })
        .into();
    // Two commits fill the queue; the third waits for space.
    let [first, second, third] = <[_; 3]>::try_from(commits).unwrap();
    let error = third.await.unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Overloaded);
    assert!(error.message().contains("for 30 ms"), "{error}");
    drop(held);
    assert_eq!(first.await.unwrap().unwrap(), Committed::Done(vec![1]));
    assert_eq!(second.await.unwrap().unwrap(), Committed::Done(vec![1]));
    assert_eq!(store.load("c").await.unwrap().version, 0);
    // A commit larger than the whole queue is stored as well.
    set(&store, "c", json!("x".repeat(10_000))).await;
    // With a longer wait all commits are stored.
    let patient = options.queue_wait(Duration::from_mins(1)).open(store.path()).unwrap();
    let held = Lock::new(&store);
    let commits = (0..10).map(|n| {
        let patient = patient.clone();
        async move { put(&patient, &missing(&format!("d/{n}")), json!(1)).await.unwrap() }
    });
    let release = async { drop(held) };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(commits), release);
    assert_eq!(answers, vec![Committed::Done(vec![1]); 10]);
}
