//! The provider that all of them talk to: instant, in a process of its own, on loopback.
//!
//! It speaks Messages, Responses and Chat Completions, as bodies and as streams. How far a conversation has come it reads
//! from the request: as long as there are fewer results than calls it asks for another call, each with other arguments.

use serde_json::{Value, json};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

/// Calls of one conversation; the request after the last one is answered with a text.
pub(crate) const CALLS: usize = 10;

/// Serves until standard input ends; prints the address first.
#[expect(clippy::print_stdout, reason = "the address is for the process that started this one")]
pub(crate) fn serve() {
    let provider = LoopbackProvider::start_with(answer).unwrap();
    println!("{}", provider.base_url());
    let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
}

fn answer(request: &ReceivedRequest) -> Reply {
    let text = String::from_utf8_lossy(&request.body);
    let stream = text.contains("\"stream\":true") || text.contains("\"stream\": true");
    let events = if request.path.contains("/messages") {
        let results = text.matches("\"tool_result\"").count();
        messages(results, stream)
    } else if request.path.contains("/responses") {
        let results = text.matches("\"function_call_output\"").count();
        responses(results, stream)
    } else {
        let results = text.matches("\"tool_call_id\"").count();
        chat(results, stream)
    };
    if !stream {
        return Reply::json(200, events.last().cloned().unwrap_or_default().to_string());
    }
    let mut body = String::new();
    for event in events {
        if let Some(kind) = event["type"].as_str() {
            body.extend(["event: ", kind, "\n"]);
        }
        body.extend(["data: ", &event.to_string(), "\n\n"]);
    }
    if request.path.contains("/chat/") {
        body.push_str("data: [DONE]\n\n");
    }
    Reply::events(body)
}

/// The arguments of a call: never the same twice in a conversation.
fn arguments(results: usize) -> Value {
    json!({ "a": results, "b": 3 })
}

fn messages(results: usize, stream: bool) -> Vec<Value> {
    let (block, stop) = if results < CALLS {
        let id = format!("toolu_{results}");
        (json!({"type": "tool_use", "id": id, "name": "add", "input": arguments(results)}), "tool_use")
    } else {
        (json!({"type": "text", "text": "done"}), "end_turn")
    };
    let usage = json!({"input_tokens": 10, "output_tokens": 9});
    let message = |content: Value, stop: Value| {
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": content,
            "stop_reason": stop, "stop_sequence": null, "usage": usage})
    };
    if !stream {
        return vec![message(json!([block]), stop.into())];
    }
    let (mut begun, delta) = if results < CALLS {
        let mut begun = block;
        begun["input"] = json!({});
        (begun, json!({"type": "input_json_delta", "partial_json": arguments(results).to_string()}))
    } else {
        (block, json!({"type": "text_delta", "text": "done"}))
    };
    if begun["type"] == "text" {
        begun["text"] = "".into();
    }
    vec![
        json!({"type": "message_start", "message": message(json!([]), Value::Null)}),
        json!({"type": "content_block_start", "index": 0, "content_block": begun}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null}, "usage": usage}),
        json!({"type": "message_stop"}),
    ]
}

fn responses(results: usize, stream: bool) -> Vec<Value> {
    let item = if results < CALLS {
        json!({"type": "function_call", "id": format!("fc_{results}"), "call_id": format!("call_{results}"),
            "name": "add", "arguments": arguments(results).to_string(), "status": "completed"})
    } else {
        json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "done", "annotations": [], "logprobs": []}]})
    };
    let response = json!({"id": "resp_1", "object": "response", "created_at": 1, "status": "completed",
        "model": "gpt-x", "output": [item], "parallel_tool_calls": true, "tool_choice": "auto", "tools": [],
        "error": null, "incomplete_details": null, "instructions": null, "metadata": {}, "temperature": 1.0,
        "top_p": 1.0, "usage": {"input_tokens": 10, "output_tokens": 9, "total_tokens": 19,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0}}});
    if !stream {
        return vec![response];
    }
    let mut events = vec![
        json!({"type": "response.output_item.added", "sequence_number": 0, "output_index": 0, "item": item}),
        json!({"type": "response.output_item.done", "sequence_number": 1, "output_index": 0, "item": item}),
    ];
    events.push(json!({"type": "response.completed", "sequence_number": 2, "response": response}));
    events
}

fn chat(results: usize, stream: bool) -> Vec<Value> {
    let finish = if results < CALLS { "tool_calls" } else { "stop" };
    let call = json!({"index": 0, "id": format!("call_{results}"), "type": "function",
        "function": {"name": "add", "arguments": arguments(results).to_string()}});
    let message = if results < CALLS {
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    } else {
        json!({"role": "assistant", "content": "done"})
    };
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 9, "total_tokens": 19});
    let (object, member) =
        if stream { ("chat.completion.chunk", "delta") } else { ("chat.completion", "message") };
    vec![json!({"id": "c1", "object": object, "created": 1, "model": "x", "usage": usage,
        "choices": [{"index": 0, member: message, "finish_reason": finish}]})]
}
