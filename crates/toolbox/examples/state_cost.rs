//! The cost of state: a call with a `#[state]` parameter beside one without, and the commits of many writers.
//!
//! `--json` prints one object for `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people and for the bench")]

extern crate toolpost_core as toolpost;

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use toolpost::{Call, Patch, tool};
use toolpost_toolbox::{MemoryStore, Toolbox};

/// Add to a counter.
#[tool]
async fn add(
    #[state(id = "counters/{counter}", path = "/value")] value: &mut i64,
    counter: String,
    by: i64,
) -> i64 {
    *value += by;
    *value
}

/// Add nothing to anything.
#[tool]
async fn stateless(counter: String, by: i64) -> i64 {
    std::hint::black_box(counter);
    by
}

/// Add to a named counter in one document.
#[tool]
async fn add_named(#[state(id = "counters", path = "/by_name/{name}")] value: &mut i64, name: String) -> i64 {
    *value += 1;
    *value
}

const BATCHES: usize = 200;
const BATCH: u32 = 200;
const WRITERS: u32 = 64;
const PER_WRITER: u32 = 500;

/// The tenth percentile of the time of one round, in microseconds.
fn p10(mut batch: impl FnMut(u32)) -> f64 {
    batch(BATCH);
    let mut times: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = Instant::now();
            batch(BATCH);
            start.elapsed().as_secs_f64() * 1e6 / f64::from(BATCH)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[BATCHES / 10]
}

fn toolbox() -> Toolbox {
    Toolbox::builder()
        .tool(add)
        .tool(add_named)
        .tool(stateless)
        .store(Arc::new(MemoryStore::new()))
        .build()
        .unwrap()
}

/// Calls per second of many writers at once.
fn writers(tool: &'static str, arguments: impl Fn(u32) -> Value) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let toolbox = toolbox();
    let start = Instant::now();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (toolbox, arguments) = (toolbox.clone(), Arc::new(arguments(writer)));
                tokio::spawn(async move {
                    for _ in 0..PER_WRITER {
                        toolbox.call(Call::new(tool, Arc::clone(&arguments))).await.result.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    f64::from(WRITERS * PER_WRITER) / start.elapsed().as_secs_f64()
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let toolbox = toolbox();
    let arguments = Arc::new(json!({"counter": "a", "by": 1}));
    let call = |name: &'static str| {
        p10(|rounds| {
            runtime.block_on(async {
                for _ in 0..rounds {
                    toolbox.call(Call::new(name, Arc::clone(&arguments))).await.result.unwrap();
                }
            });
        })
    };
    let (without, with) = (call("stateless"), call("add"));
    let document = toolbox.state("by_hand").unwrap();
    let by_hand = p10(|rounds| {
        runtime.block_on(async {
            for _ in 0..rounds {
                let add = |value: &mut Value| {
                    *value = json!(value.as_i64().unwrap_or(0) + 1);
                    Ok(())
                };
                document.change(add).await.unwrap();
            }
        });
    });
    let large = |changed: u32| -> Value {
        (0..10_000_u32)
            .map(|index| (format!("k{index}"), json!(if index == 5_000 { changed } else { index })))
            .collect()
    };
    let (from, to) = (large(0), large(1));
    let diff = p10(|rounds| {
        for _ in 0..rounds / 100 {
            std::hint::black_box(Patch::diff(&from, &to));
        }
    }) * 100.0;
    let apart = writers("add", |writer| json!({"counter": writer.to_string(), "by": 1}));
    let together = writers("add_named", |writer| json!({"name": writer.to_string()}));
    let same = writers("add", |_| json!({"counter": "one", "by": 1}));
    let rows = json!({"rows": [
        {"name": "a call that changes state, in memory", "value": with, "unit": "µs"},
        {"name": "the same call without state", "value": without, "unit": "µs"},
        {"name": "a change by hand, in memory", "value": by_hand, "unit": "µs"},
        {"name": "the patch between two documents of 10,000 entries", "value": diff, "unit": "µs"},
        {"name": "64 writers on 64 documents in memory, whole calls", "value": apart, "unit": "calls/s"},
        {"name": "64 writers on 64 parts of one document in memory, whole calls", "value": together, "unit": "calls/s"},
        {"name": "64 writers on one value in memory, whole calls", "value": same, "unit": "calls/s"},
    ]});
    if std::env::args().any(|argument| argument == "--json") {
        println!("{rows}");
        return;
    }
    for row in rows["rows"].as_array().into_iter().flatten() {
        println!(
            "{:>12.3} {}  {}",
            row["value"].as_f64().unwrap(),
            row["unit"].as_str().unwrap(),
            row["name"].as_str().unwrap()
        );
    }
}
