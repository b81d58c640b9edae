//! The cost of a tool program: `--discover`, one call of one process, and a call of a resident process.
//!
//! The program that is measured is this one, started again. Prints the tenth percentile of the samples, beside that of
//! a process that does nothing; `--json` prints one object for `cargo xtask bench`.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a program for people and for the bench that starts itself"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use serde_json::json;
use toolpost::{Toolbox, data, tool};

#[data]
struct Price {
    total: f64,
    currency: String,
}

/// Price an order.
#[tool]
async fn price(
    /// The ordered item.
    #[arg(min_len = 1)]
    item: String,
    /// The number.
    #[arg(min = 1, max = 1000)]
    count: u32,
    /// The price of one.
    each: f64,
) -> Price {
    let _ = item;
    Price { total: f64::from(count) * each, currency: "EUR".into() }
}

const SAMPLES: usize = 200;
const RESIDENT_SAMPLES: usize = 5000;
const ARGUMENTS: &str = r#"{"item": "lamp", "count": 3, "each": 19.5}"#;

/// The tenth percentile of the times, in milliseconds.
fn p10(samples: usize, mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..samples)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[samples / 10]
}

fn process(words: &[&str]) -> f64 {
    let program = std::env::current_exe().unwrap();
    p10(SAMPLES, || {
        let output = Command::new(&program).args(words).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty());
    })
}

fn resident() -> f64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("--resident")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let mut id = 0;
    let time = p10(RESIDENT_SAMPLES, || {
        id += 1;
        let call = format!(
            "{{\"v\":1,\"id\":{id},\"type\":\"call\",\"tool\":\"price\",\"arguments\":{ARGUMENTS}}}\n"
        );
        input.write_all(call.as_bytes()).unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        assert!(line.contains("\"ok\""), "{line}");
    });
    drop(input);
    child.wait().unwrap();
    time
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is_measuring = matches!(words.iter().map(String::as_str).collect::<Vec<_>>()[..], [] | ["--json"]);
    if !is_measuring {
        return toolpost::main(|| Toolbox::builder().tool(price));
    }
    let bare = p10(SAMPLES, || {
        Command::new("/bin/true").status().unwrap();
    });
    let discover = process(&["--discover"]);
    let call = process(&["price", ARGUMENTS]);
    let resident = resident();
    let rows = json!([
        { "name": "a process that does nothing", "value": bare, "unit": "ms" },
        { "name": "tool program: --discover", "value": discover, "unit": "ms", "promise": "≤ 5 ms", "promise_max": 5.0 },
        { "name": "tool program: one call", "value": call, "unit": "ms", "promise": "≤ 5 ms", "promise_max": 5.0 },
        { "name": "tool program: a call of a resident process", "value": resident * 1e3, "unit": "µs", "promise": "≤ 100 µs", "promise_max": 100.0 },
    ]);
    if words.is_empty() {
        for row in rows.as_array().unwrap() {
            println!(
                "{:45} {:8.3} {}",
                row["name"].as_str().unwrap(),
                row["value"].as_f64().unwrap(),
                row["unit"].as_str().unwrap()
            );
        }
    } else {
        println!("{}", json!({ "rows": rows }));
    }
    ExitCode::SUCCESS
}
