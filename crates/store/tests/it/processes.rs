//! Several processes on one file, killed ones included.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use toolpost_core::{DocStore, Document};
use toolpost_store::Store;

use crate::support::{block_on, child, increment, role, set};

/// The writers of each process.
const WRITERS: usize = 16;

/// The documents that all writers share.
const DOCUMENTS: usize = 8;

/// The increments of all writers together. `TOOLPOST_STORE_INCREMENTS` overrides the number.
fn increments() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a longer run by hand")]
    let value = std::env::var("TOOLPOST_STORE_INCREMENTS").ok();
    value.map_or(8_000, |text| text.parse().unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn document(index: usize) -> Document {
    Document { id: format!("counter/{index}"), version: 0, value: Arc::new(Value::Null) }
}

/// Runs all writers of one process, each with its share of the increments.
async fn write(path: &Path, share: u64) {
    let store = Store::open(path).unwrap();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut document = document(writer % DOCUMENTS);
                for _ in 0..share {
                    increment(&store, &mut document).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[test]
fn writers_of_4_processes_lose_no_increment() {
    const TEST: &str = "processes::writers_of_4_processes_lose_no_increment";
    if let Some((share, path)) = role() {
        return runtime().block_on(write(&path, share.parse().unwrap()));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    // All processes create the file at the same time.
    let share = increments() / (4 * WRITERS as u64);
    let children: Vec<Child> = (0..4)
        .map(|_| child(&[], TEST, &share.to_string(), &path).stdout(Stdio::piped()).spawn().unwrap())
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let store = Store::open(&path).unwrap();
    runtime().block_on(async {
        let each = share * 4 * WRITERS as u64 / DOCUMENTS as u64;
        for index in 0..DOCUMENTS {
            let newest = store.load(&document(index).id).await.unwrap();
            assert_eq!((newest.version, &*newest.value), (each, &json!({"n": each})));
            let middle = store.at(&newest.id, each / 2).await.unwrap();
            assert_eq!(*middle.value, json!({"n": each / 2}));
        }
    });
}

#[test]
fn a_second_store_of_a_process_keeps_the_locks_of_the_first() {
    const TEST: &str = "processes::a_second_store_of_a_process_keeps_the_locks_of_the_first";
    if let Some((expected, path)) = role() {
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let store = Store::open(&path).unwrap();
        assert_eq!(*block_on(store.load("a")).unwrap().value, expected);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let expect = |value: Value| {
        let process = child(&[], TEST, &value.to_string(), &path).stdout(Stdio::piped()).spawn().unwrap();
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    };
    let first = Store::open(&path).unwrap();
    block_on(set(&first, "a", json!(1)));
    let second = Store::open(&path).unwrap();
    // Another process closes the file. It would remove the log if it saw no locks.
    expect(json!(1));
    block_on(set(&first, "a", json!(2)));
    expect(json!(2));
    block_on(set(&second, "a", json!(3)));
    expect(json!(3));
    drop((first, second));
    expect(json!(3));
}

/// Writes until it is killed, and prints each acknowledged version.
async fn acknowledge(path: &Path) {
    let store = Store::open(path).unwrap();
    let writers = (0..WRITERS).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut document = document(writer);
            loop {
                let version = increment(&store, &mut document).await.unwrap();
                // One system call per line: a kill never leaves a partial line.
                println!("ack {writer} {version}");
            }
        })
    });
    futures_util::future::join_all(writers).await;
}

#[test]
fn a_killed_writer_loses_no_acknowledged_commit() {
    const TEST: &str = "processes::a_killed_writer_loses_no_acknowledged_commit";
    if let Some((_, path)) = role() {
        return runtime().block_on(acknowledge(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    let mut acknowledged = [0_u64; WRITERS];
    for round in 0..20_u64 {
        let mut child = child(&[], TEST, "", &path).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).split(b'\n');
        // The kill comes after another number of answers in each round.
        let mut left = 1 + round * 7919 % 1500;
        while let Some(Ok(line)) = lines.next() {
            let line = String::from_utf8_lossy(&line).into_owned();
            if let Some((writer, version)) = line.strip_prefix("ack ").and_then(|rest| rest.split_once(' ')) {
                acknowledged[writer.parse::<usize>().unwrap()] = version.parse().unwrap();
                left = left.saturating_sub(1);
                if left == 0 {
                    // The lines before the kill are still read.
                    child.kill().unwrap();
                    left = u64::MAX;
                }
            }
        }
        child.wait().unwrap();
        let store = Store::open(&path).unwrap();
        runtime().block_on(async {
            for (writer, acknowledged) in acknowledged.iter_mut().enumerate() {
                let newest = store.load(&document(writer).id).await.unwrap();
                assert!(
                    newest.version >= *acknowledged,
                    "round {round}: {} < {acknowledged}",
                    newest.version
                );
                if newest.version > 0 {
                    assert_eq!(*newest.value, json!({"n": newest.version}), "round {round}");
                    assert_eq!(store.log(&newest.id, newest.version - 1, 9).await.unwrap().len(), 1);
                }
                *acknowledged = newest.version;
            }
        });
    }
    let connection = rusqlite::Connection::open(&path).unwrap();
    let check: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
    assert!(acknowledged.iter().sum::<u64>() > 1_000, "{acknowledged:?}");
}
