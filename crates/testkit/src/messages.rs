//! A model behind the Messages API that does what the prompt says, for programs that bring their own tools.

use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::provider::{ReceivedRequest, Reply};

/// Answers a request for a message with a stream of events. The last block that the user sent decides:
///
/// - a line `call NAME {JSON}` is a use of that tool, several are several in one message;
/// - `wait MILLISECONDS` is an answer after that time, `refuse STATUS` an error with that status;
/// - results of tools are answered with a text: `RESULT` and their contents, in the order of the calls;
/// - anything else is answered with `hello`.
///
/// Each message is said to have read 10 tokens and written 5.
pub fn answer(request: &ReceivedRequest) -> Reply {
    if !(request.method == "POST" && request.path.starts_with("/v1/messages")) {
        return Reply::json(404, r#"{"type":"error","error":{"type":"not_found_error","message":"no"}}"#);
    }
    let body = request.json();
    let messages = body["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let last = messages.iter().rfind(|message| message["role"] == "user");
    let content = last.map(|message| blocks(&message["content"])).unwrap_or_default();
    let order = content
        .iter()
        .rev()
        .take_while(|block| block["type"] == "text")
        .filter_map(|block| block["text"].as_str())
        .collect::<Vec<_>>()
        .join("\n");
    let word = |name: &str| {
        order.lines().find_map(|line| line.trim().strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    if let Some(status) = word("refuse ") {
        let kind = if status == 401 { "authentication_error" } else { "api_error" };
        let error = json!({ "type": "error", "error": { "type": kind, "message": "as the prompt says" } });
        return Reply::json(u16::try_from(status).unwrap_or(500), error.to_string());
    }
    let calls: Vec<Value> = order.lines().filter_map(|line| call(line.trim())).collect();
    let results = content.iter().rev().take_while(|block| block["type"] == "tool_result").collect::<Vec<_>>();
    let said = if calls.is_empty() && !results.is_empty() {
        let texts: Vec<String> = results.iter().rev().map(|result| text_of(&result["content"])).collect();
        vec![json!({ "type": "text", "text": format!("RESULT {}", texts.join(" | ")) })]
    } else if calls.is_empty() {
        vec![json!({ "type": "text", "text": "hello" })]
    } else {
        calls
    };
    let reply = Reply::events(stream(&said, &body["model"]));
    match word("wait ") {
        Some(milliseconds) => reply.after(Duration::from_millis(milliseconds)),
        None => reply,
    }
}

fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(blocks) => blocks.clone(),
        _ => Vec::new(),
    }
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// A name that no other message or use of a tool has: clients take what has the same name for the same.
fn fresh(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{prefix}_{:06}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn call(line: &str) -> Option<Value> {
    let (name, input) = line.strip_prefix("call ")?.split_once(' ')?;
    let input: Value = serde_json::from_str(input.trim()).ok()?;
    Some(json!({ "type": "tool_use", "id": fresh("toolu"), "name": name, "input": input }))
}

fn stream(said: &[Value], model: &Value) -> String {
    let mut events = vec![json!({ "type": "message_start", "message": {
        "id": fresh("msg"), "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": { "input_tokens": 10, "output_tokens": 1 },
    } })];
    let mut stop = "end_turn";
    for (index, block) in said.iter().enumerate() {
        let (start, delta) = if block["type"] == "tool_use" {
            stop = "tool_use";
            let mut start = block.clone();
            start["input"] = json!({});
            (start, json!({ "type": "input_json_delta", "partial_json": block["input"].to_string() }))
        } else {
            (json!({ "type": "text", "text": "" }), json!({ "type": "text_delta", "text": block["text"] }))
        };
        events.push(json!({ "type": "content_block_start", "index": index, "content_block": start }));
        events.push(json!({ "type": "content_block_delta", "index": index, "delta": delta }));
        events.push(json!({ "type": "content_block_stop", "index": index }));
    }
    events.push(json!({
        "type": "message_delta",
        "delta": { "stop_reason": stop, "stop_sequence": null },
        "usage": { "output_tokens": 5 },
    }));
    events.push(json!({ "type": "message_stop" }));
    let line =
        |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
    events.iter().map(line).collect()
}
