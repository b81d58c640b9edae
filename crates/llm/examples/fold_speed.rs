//! How fast streams of the Messages API and of Gemini are parsed and folded. Prints one JSON object.
//!
//! Run with `cargo run --release -p toolpost-llm --example fold_speed`.

use std::collections::VecDeque;
use std::error::Error;
use std::io::Write as _;
use std::time::Instant;

use serde_json::json;
use toolpost_llm::{ModelId, Wire};

/// Deltas in the stream.
const DELTAS: usize = 20_000;

/// Repetitions of each measurement.
const ROUNDS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let mut rows = Vec::new();
    for (wire, name, text) in
        [(Wire::Messages, "stream", stream()), (Wire::GenerateContent, "Gemini stream", gemini_stream())]
    {
        let events = text.matches("\n\n").count();
        for chunk in [256, 16 * 1024] {
            let mut seconds: Vec<f64> =
                (0..ROUNDS).map(|_| round(wire, &text, chunk)).collect::<Result<_, _>>()?;
            seconds.sort_by(f64::total_cmp);
            // The tenth percentile of the times.
            let rate = (events as f64 / seconds[ROUNDS / 10]).round();
            rows.push(json!({
                "name": format!("{name} parsed and folded, pieces of {chunk} bytes"),
                "value": rate,
                "unit": "events/s",
                "promise": "≥ 500,000 events/s",
                "promise_min": 500_000,
            }));
        }
    }
    writeln!(std::io::stdout(), "{}", json!({ "rows": rows }))?;
    Ok(())
}

fn round(wire: Wire, text: &str, chunk: usize) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut fold = wire.fold(&ModelId::new("anthropic", "claude-x"));
    let mut events = VecDeque::new();
    let mut delivered = 0;
    for piece in text.as_bytes().chunks(chunk) {
        fold.feed(piece, &mut events)?;
        delivered += events.drain(..).count();
    }
    let response = fold.finish(&mut events)?;
    if delivered < DELTAS || response.items.len() != 2 {
        return Err("the stream did not fold".into());
    }
    Ok(start.elapsed().as_secs_f64())
}

/// A text and a tool call of many small deltas, with the `event:` lines that the provider sends.
fn stream() -> String {
    let mut events = vec![
        json!({"type": "message_start", "message": {"type": "message", "id": "msg_1", "role": "assistant",
            "model": "claude-x", "content": [], "stop_reason": null, "usage": {"input_tokens": 9, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    ];
    events.extend((0..DELTAS / 2).map(|number| {
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": format!(" word {number},\n")}})
    }));
    events.push(json!({"type": "content_block_stop", "index": 0}));
    events.push(json!({"type": "content_block_start", "index": 1,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {}}}));
    events.extend((0..DELTAS / 2).map(|number| {
        let fragment = if number == 0 { "{\"n\": [0".to_owned() } else { format!(", {number}") };
        json!({"type": "content_block_delta", "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": fragment}})
    }));
    events.extend([
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "]}"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 20_000}}),
        json!({"type": "message_stop"}),
    ]);
    let lines = events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or("")));
    lines.collect::<Vec<_>>().concat()
}

/// Thinking and a text of many small events, each with the counts that the provider sends.
fn gemini_stream() -> String {
    let event = |number: usize, part: serde_json::Value| {
        let usage = json!({"promptTokenCount": 9, "candidatesTokenCount": number, "totalTokenCount": number + 9,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}]});
        json!({"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0}],
            "usageMetadata": usage, "modelVersion": "gemini-x", "responseId": "r1"})
    };
    let mut events: Vec<_> = (0..DELTAS)
        .map(|number| {
            let text = format!(" word {number},\n");
            let is_thought = number < DELTAS / 2;
            event(
                number,
                if is_thought { json!({"text": text, "thought": true}) } else { json!({"text": text}) },
            )
        })
        .collect();
    if let Some(last) = events.last_mut() {
        last["candidates"][0]["finishReason"] = "STOP".into();
    }
    events.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat()
}
