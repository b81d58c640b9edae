//! The cost of one iteration of the loop: a request, a streamed answer with a tool call, the checked and recorded call.
//!
//! The provider is an instant one on loopback, on a thread of its own; only the processor time of the loop's thread
//! is counted.
//! `--json` prints one object for `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a program for people and for the bench")]

extern crate toolpost_core as toolpost;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use toolpost::tool;
use toolpost_agent::{Agent, RunStopReason};
use toolpost_llm::{HostedModel, HttpClient, HttpOptions, Provider, ProviderAccess, Secret};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_toolbox::Toolbox;

/// Add two numbers.
#[tool]
async fn add(
    /// The first.
    a: i64,
    /// The second.
    b: i64,
) -> i64 {
    a + b
}

/// Iterations of one run, the answer included.
const ITERATIONS: usize = 20;
const RUNS: usize = 200;

fn event(kind: &str, mut data: serde_json::Value) -> String {
    data["type"] = kind.into();
    format!("event: {kind}\ndata: {data}\n\n")
}

fn answer(block: &serde_json::Value, delta: &serde_json::Value, stop: &str) -> String {
    let start = json!({"message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x",
        "content": [], "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 10, "output_tokens": 1}}});
    [
        event("message_start", start),
        event("content_block_start", json!({"index": 0, "content_block": block})),
        event("content_block_delta", json!({"index": 0, "delta": delta})),
        event("content_block_stop", json!({"index": 0})),
        event(
            "message_delta",
            json!({"delta": {"stop_reason": stop, "stop_sequence": null}, "usage": {"output_tokens": 9}}),
        ),
        event("message_stop", json!({})),
    ]
    .concat()
}

/// Processor time of this thread, in microseconds.
fn processor_time() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1000.0
}

fn p10(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 10]
}

fn main() {
    // Another call each time: the same again and again would end the run.
    let call = |number: usize| {
        answer(
            &json!({"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}),
            &json!({"type": "input_json_delta", "partial_json": format!("{{\"a\": {number}, \"b\": 3}}")}),
            "tool_use",
        )
    };
    let done =
        answer(&json!({"type": "text", "text": ""}), &json!({"type": "text_delta", "text": "5"}), "end_turn");
    let asked = AtomicUsize::new(0);
    let provider = LoopbackProvider::start_with(move |_| {
        let number = asked.fetch_add(1, Ordering::Relaxed) + 1;
        Reply::events(if number.is_multiple_of(ITERATIONS) { done.clone() } else { call(number) })
    })
    .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let samples: Vec<f64> = runtime.block_on(async {
        let mut options = ProviderAccess::new(Secret::new("key"));
        options.base_url = Some(provider.base_url());
        let client = HttpClient::new(HttpOptions::default()).unwrap();
        let model = Arc::new(
            HostedModel::new(Provider::find("anthropic").unwrap(), "claude-x", options, client).unwrap(),
        );
        let agent = Agent::builder(model, Toolbox::builder().tool(add).build().unwrap()).build();
        let mut samples = Vec::new();
        for run in 0..RUNS + 10 {
            let before = processor_time();
            let outcome = agent.run("What is 2 + 3?").finish().await;
            assert_eq!(
                (&outcome.stop, outcome.text()),
                (&RunStopReason::EndTurn, "5"),
                "{:?}",
                outcome.error
            );
            if run >= 10 {
                samples.push((processor_time() - before) / ITERATIONS as f64);
            }
        }
        samples
    });
    let value = p10(samples) / 1000.0;
    let rows = json!({"rows": [
        {"name": "agent loop, processor time of one iteration, 20 to a run", "value": value, "unit": "ms", "promise": "≤ 0.15 ms", "promise_max": 0.15},
    ]});
    if std::env::args().any(|argument| argument == "--json") {
        println!("{rows}");
    } else {
        println!("{value:.4} ms of processor time for one iteration");
    }
}
