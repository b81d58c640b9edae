//! The cost of one call through the whole path, and of registering a tool.
//!
//! Prints the tenth percentile of batches, beside the cost of the bare function and of what the call cannot do
//! without: checking the arguments, and the checked result. `--json` prints one object for `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people and for the bench")]

extern crate toolpost_core as toolpost;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use toolpost::{Call, Schema, Tool, ToolSpec, data, tool, tool_fn};
use toolpost_toolbox::Toolbox;

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
    black_box(&item);
    Price { total: f64::from(count) * each, currency: "EUR".into() }
}

const BATCHES: usize = 400;
const BATCH: u32 = 500;

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

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let toolbox = Toolbox::builder().tool(price).build().unwrap();
    let arguments = Arc::new(json!({"item": "lamp", "count": 3, "each": 19.5}));
    let call = p10(|rounds| {
        runtime.block_on(async {
            for _ in 0..rounds {
                let reply = toolbox.call(Call::new("price", Arc::clone(&arguments))).await;
                assert!(black_box(reply).result.is_ok());
            }
        });
    });
    let spec = price().spec();
    let check = p10(|rounds| {
        for _ in 0..rounds {
            assert!(spec.input_schema.is_valid(black_box(&arguments)).unwrap());
        }
    });
    let bare = p10(|rounds| {
        runtime.block_on(async {
            for _ in 0..rounds {
                black_box(price::run(black_box("lamp".into()), 3, 19.5).await);
            }
        });
    });
    let specs: Vec<ToolSpec> = (0..BATCH).map(|index| spec_of(index, &spec.input_schema)).collect();
    let registration = p10(|rounds| {
        let toolbox = Toolbox::builder().build().unwrap();
        for spec in specs.iter().take(rounds as usize) {
            let tool = tool_fn(spec.clone(), async |_, _| Ok(toolpost::Output::default()));
            toolbox.add(tool).unwrap();
        }
    });
    let rows = json!({"rows": [
        {"name": "in-process call, three arguments, checked in and out, recorded", "value": call, "unit": "µs", "promise": "≤ 2 µs", "promise_max": 2.0},
        {"name": "of that, checking the arguments", "value": check, "unit": "µs"},
        {"name": "the bare function", "value": bare, "unit": "µs"},
        {"name": "registration of a tool", "value": registration, "unit": "µs", "promise": "≤ 10 µs", "promise_max": 10.0},
    ]});
    if std::env::args().any(|argument| argument == "--json") {
        println!("{rows}");
        return;
    }
    for row in rows["rows"].as_array().into_iter().flatten() {
        println!(
            "{:>10.3} {}  {}",
            row["value"].as_f64().unwrap(),
            row["unit"].as_str().unwrap(),
            text(&row["name"])
        );
    }
}

fn spec_of(index: u32, schema: &Schema) -> ToolSpec {
    ToolSpec::new(format!("tool_{index}"), "Price an order.").input(schema.as_value().clone())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
