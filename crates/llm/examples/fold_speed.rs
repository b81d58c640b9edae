//! The speed at which streams of each wire are parsed and folded. Prints one JSON object.
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
    for (wire, name, text) in [
        (Wire::Messages, "stream", stream()),
        (Wire::GenerateContent, "Gemini stream", gemini_stream()),
        (Wire::Responses, "Responses stream", responses_stream()),
        (Wire::ChatCompletions, "Chat Completions stream", chat_stream()),
    ] {
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

/// Thinking, a text and a call of many small deltas, with everything said again at the end, as the provider does.
fn responses_stream() -> String {
    let mut events = vec![json!({"type": "response.created", "sequence_number": 0,
        "response": {"id": "resp_1", "object": "response", "status": "in_progress", "model": "gpt-x", "output": []}})];
    let mut text = String::new();
    events.push(json!({"type": "response.output_item.added", "output_index": 0, "sequence_number": 1,
        "item": {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}}));
    for number in 0..DELTAS / 2 {
        let delta = format!(" word {number},\n");
        events.push(json!({"type": "response.output_text.delta", "content_index": 0, "delta": delta, "item_id": "msg_1",
            "logprobs": [], "obfuscation": "a1B2c3", "output_index": 0, "sequence_number": number + 2}));
        text.push_str(&delta);
    }
    let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]});
    events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": message}));
    events.push(json!({"type": "response.output_item.added", "output_index": 1,
        "item": {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "add", "arguments": ""}}));
    let mut arguments = String::new();
    for number in 0..DELTAS / 2 {
        let delta = if number == 0 { "{\"n\": [0".to_owned() } else { format!(", {number}") };
        events.push(
            json!({"type": "response.function_call_arguments.delta", "delta": delta, "item_id": "fc_1",
            "obfuscation": "a1B2c3", "output_index": 1, "sequence_number": number + DELTAS}),
        );
        arguments.push_str(&delta);
    }
    let call = json!({"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "add",
        "arguments": format!("{arguments}]}}")});
    events.push(json!({"type": "response.output_item.done", "output_index": 1, "item": call}));
    events.push(json!({"type": "response.completed", "response": {"id": "resp_1", "object": "response",
        "status": "completed", "model": "gpt-x", "output": [message, call],
        "usage": {"input_tokens": 9, "output_tokens": 20_000, "total_tokens": 20_009}}}));
    let lines = events
        .iter()
        .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or("")));
    lines.collect::<Vec<_>>().concat()
}

/// A text and a call of many small chunks.
fn chat_stream() -> String {
    let chunk = |delta: serde_json::Value, reason: Option<&str>| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": "some-model",
            "service_tier": "default", "system_fingerprint": "fp_1",
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]})
    };
    let mut events = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
    events
        .extend((0..DELTAS / 2).map(|number| chunk(json!({"content": format!(" word {number},\n")}), None)));
    events.push(chunk(
        json!({"tool_calls": [{"index": 0, "id": "call_1", "type": "function",
            "function": {"name": "add", "arguments": ""}}]}),
        None,
    ));
    events.extend((0..DELTAS / 2).map(|number| {
        let fragment = if number == 0 { "{\"n\": [0".to_owned() } else { format!(", {number}") };
        chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": fragment}}]}), None)
    }));
    events.push(chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": "]}"}}]}), None));
    events.push(chunk(json!({}), Some("tool_calls")));
    let lines: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    lines.concat() + "data: [DONE]\n\n"
}
