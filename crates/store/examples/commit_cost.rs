//! The cost of a durable commit beside a raw commit of the same rows, and the commits a second of many writers.
//!
//! The raw commit and ours alternate in batches, so that a busy disk is busy for both. `--json` prints one object for
//! `cargo xtask bench`.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a program for people and for the bench"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rusqlite::Connection;
use serde_json::{Value, json};
use toolpost_core::{Commit, Committed, DocStore, Patch, Write};
use toolpost_store::Store;

const SAMPLES: usize = 2_000;
const BATCH: usize = 20;
const WRITERS: usize = 64;
const ROUNDS: usize = 12;
const COMMITS: u64 = 400;

fn p10(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

fn value(n: u64) -> Value {
    json!({"n": n, "note": "a document of some two hundred bytes, as a tool keeps one", "list": [1, 2, 3, 4, 5, 6, 7, 8]})
}

fn write(id: &str, base: u64) -> Write {
    let (old, new) = (value(base), value(base + 1));
    let patch = if base == 0 { Patch::diff(&Value::Null, &new) } else { Patch::diff(&old, &new) };
    Write { id: id.to_owned(), base, patch: patch.to_value(), value: Arc::new(new) }
}

async fn commit(store: &Store, write: Write) {
    match store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap() {
        Committed::Done(_) => {}
        Committed::Conflict(newer) => panic!("nobody else writes: {newer:?}"),
    }
}

/// A file like a store's, written by hand.
struct Raw {
    connection: Connection,
    previous: i64,
}

impl Raw {
    fn new(path: &Path) -> Self {
        drop(Store::open(path).unwrap());
        let connection = Connection::open(path).unwrap();
        connection
            .execute_batch(
                "PRAGMA synchronous = FULL; INSERT INTO documents (key, id, version, head, tail) VALUES (1, 'a', 0, 0, 0);",
            )
            .unwrap();
        Self { connection, previous: 0 }
    }

    fn commit(&mut self, base: u64, patch: &str, text: &str) {
        let prepare = |sql| self.connection.prepare_cached(sql).unwrap();
        prepare("BEGIN IMMEDIATE").execute([]).unwrap();
        prepare("INSERT INTO changes (document, version, previous, at, call, patch, event, value) VALUES (1, ?1, ?2, 0, NULL, ?3, NULL, ?4)")
            .execute(((base + 1).cast_signed(), self.previous, patch, (base.is_multiple_of(6)).then_some(text)))
            .unwrap();
        let seq = self.connection.last_insert_rowid();
        prepare("UPDATE documents SET version = ?1, head = ?2, tail = ?3 WHERE key = 1 AND version = ?4")
            .execute(((base + 1).cast_signed(), seq, 100, base.cast_signed()))
            .unwrap();
        prepare("COMMIT").execute([]).unwrap();
        self.previous = seq;
    }
}

/// The tenth percentiles of a raw commit and of ours from one writer, in microseconds.
fn one_writer(directory: &Path) -> (f64, f64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut raw = Raw::new(&directory.join("raw.db"));
    let store = Store::open(directory.join("ours.db")).unwrap();
    let (mut raw_times, mut our_times) = (Vec::new(), Vec::new());
    let mut base = 0;
    while our_times.len() < SAMPLES {
        // Both make their texts within the time that is measured.
        for base in base..base + BATCH as u64 {
            let write = write("a", base);
            let start = Instant::now();
            let (patch, text) = (write.patch.to_string(), write.value.to_string());
            raw.commit(base, &patch, &text);
            raw_times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        runtime.block_on(async {
            for base in base..base + BATCH as u64 {
                let write = write("a", base);
                let start = Instant::now();
                commit(&store, write).await;
                our_times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        });
        base += BATCH as u64;
    }
    (p10(&mut raw_times), p10(&mut our_times))
}

/// The commits a second of many writers, each on its document.
fn many_writers(directory: &Path) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let store = Store::open(directory.join("many.db")).unwrap();
    let mut times: Vec<f64> = (0..ROUNDS as u64)
        .map(|round| {
            // Made before, so that the store's cost is what is measured.
            let work: Vec<(Store, Vec<Write>)> = (0..WRITERS)
                .map(|writer| {
                    let id = format!("counters/{writer}");
                    let writes =
                        (round * COMMITS..(round + 1) * COMMITS).map(|base| write(&id, base)).collect();
                    (store.clone(), writes)
                })
                .collect();
            let start = Instant::now();
            runtime.block_on(async {
                let tasks: Vec<_> = work
                    .into_iter()
                    .map(|(store, writes)| {
                        tokio::spawn(async move {
                            for write in writes {
                                commit(&store, write).await;
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
            start.elapsed().as_secs_f64()
        })
        .collect();
    WRITERS as f64 * COMMITS as f64 / p10(&mut times)
}

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let (raw, ours) = one_writer(directory.path());
    let many = many_writers(directory.path());
    let rows = json!({"rows": [
        {"name": "durable commit from one writer", "value": ours, "unit": "µs"},
        {"name": "raw SQLite commit of the same rows", "value": raw, "unit": "µs"},
        {"name": "durable commit from one writer, beside a raw one", "value": ours / raw, "unit": "×", "promise": "≤ 1.3 ×", "promise_max": 1.3},
        {"name": "durable commits from 64 writers on 64 documents", "value": many, "unit": "commits/s", "promise": "≥ 50,000/s", "promise_min": 50_000.0},
    ]});
    if std::env::args().any(|argument| argument == "--json") {
        println!("{rows}");
        return;
    }
    for row in rows["rows"].as_array().into_iter().flatten() {
        let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        println!("{:>12.3} {}  {}", row["value"].as_f64().unwrap(), text("unit"), text("name"));
    }
}
