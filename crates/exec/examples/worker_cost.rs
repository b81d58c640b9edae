//! The cost of a call that runs in a worker process: warm, and with the start of the process.
//!
//! `--json` prints one object for `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people and for the bench")]

extern crate toolpost_core as toolpost;

use std::time::Instant;

use serde_json::json;
use toolpost::tool;
use toolpost_exec::server::{own_input, own_output};
use toolpost_exec::worker::{MARKER, WorkerSettings, WorkerTools, Workers, serve};
use toolpost_toolbox::Toolbox;

/// Add.
#[tool(cpu_bound)]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// Add, on a thread of this process.
#[tool(policy(placement = "blocking"))]
fn add_here(a: i64, b: i64) -> i64 {
    a + b
}

const WARM: usize = 2_000;
const COLD: usize = 200;

fn toolbox() -> Toolbox {
    let workers = Workers::new(WorkerSettings::new(std::env::current_exe().unwrap()));
    Toolbox::builder().tool(add).tool(add_here).runner(workers).build().unwrap()
}

/// The tenth percentile, in microseconds.
async fn p10(samples: usize, mut call: impl AsyncFnMut()) -> f64 {
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        let start = Instant::now();
        call().await;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    times[samples / 10]
}

async fn add_up(toolbox: &Toolbox, tool: &str) {
    let output = toolbox.run(tool, json!({"a": 1, "b": 2})).await.unwrap();
    assert_eq!(output.result_value(), json!(3));
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    #[expect(clippy::disallowed_methods, reason = "how this program was started")]
    if std::env::var_os(MARKER).is_some() {
        let (input, output) = (own_input().unwrap(), own_output().unwrap());
        return runtime.block_on(async {
            let toolbox = toolbox();
            let values = toolbox.values().clone();
            let work = WorkerTools { tool: Box::new(move |name| toolbox.own_tool(name)), values };
            serve(work, Box::new(input), Box::new(output)).await;
        });
    }
    let (warm, here, cold) = runtime.block_on(async {
        let warm = toolbox();
        add_up(&warm, "add").await;
        let times = (
            p10(WARM, async || add_up(&warm, "add").await).await,
            p10(WARM, async || add_up(&warm, "add_here").await).await,
        );
        let cold = p10(COLD, async || add_up(&toolbox(), "add").await).await;
        (times.0, times.1, cold)
    });
    let rows = json!({"rows": [
        {"name": "worker call, warm", "value": warm, "unit": "µs", "promise": "≤ 1 ms", "promise_max": 1_000.0},
        {"name": "the same call on a thread of this process", "value": here, "unit": "µs"},
        {"name": "worker call with the start of the process", "value": cold, "unit": "µs"},
    ]});
    if std::env::args().any(|argument| argument == "--json") {
        println!("{rows}");
        return;
    }
    for row in rows["rows"].as_array().into_iter().flatten() {
        let text = |field: &str| row[field].as_str().unwrap_or_default().to_owned();
        println!("{:>10.1} {}  {}", row["value"].as_f64().unwrap(), text("unit"), text("name"));
    }
}
