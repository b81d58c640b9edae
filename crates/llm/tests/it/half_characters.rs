//! Halves of characters (`\ud83d` alone) in answers: nothing beside them is lost.

use std::collections::VecDeque;

use serde_json::json;
use toolpost_llm::{ItemView, ModelId, Response, Wire};

/// A stream of each wire whose text is `hi `, one half, the other half, ` there`, and which calls a tool with half a
/// character among its arguments.
const STREAMS: [(Wire, &[&str]); 4] = [
    (
        Wire::Messages,
        &[
            r#"{"type":"message_start","message":{"type":"message","content":[],"usage":{"input_tokens":1}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi "}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\ud83d"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\ude00 there"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c","name":"f","input":{}}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\":\"\\ud83d\"}"}}"#,
            r#"{"type":"content_block_stop","index":1}"#,
            r#"{"type":"message_stop"}"#,
        ],
    ),
    (
        Wire::ChatCompletions,
        &[
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"hi "},"finish_reason":null}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"\ud83d"},"finish_reason":null}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"content":"\ude00 there"},"finish_reason":null}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":\"\\ud83d\"}"}}]},"finish_reason":"tool_calls"}]}"#,
        ],
    ),
    (
        Wire::Responses,
        &[
            r#"{"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"hi \ud83d\ud83d\ude00 \ude00there","annotations":[]}]}}"#,
            r#"{"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","id":"f1","call_id":"c","name":"f","arguments":"{\"a\":\"\\ud83d\"}","status":"completed"}}"#,
            r#"{"type":"response.completed","response":{"object":"response","status":"completed","output":[]}}"#,
        ],
    ),
    (
        Wire::GenerateContent,
        &[
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hi \ud83d"}]}}]}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"\ude00 there"}]}}]}"#,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"functionCall":{"name":"f","args":{"a":"\ud83d"}}}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":1}}"#,
        ],
    ),
];

fn check(wire: Wire, response: &Response) {
    let text = response.text();
    assert!(text.starts_with("hi \u{fffd}") && text.ends_with("there"), "{wire:?}: {text}");
    let calls: Vec<_> = response
        .items
        .iter()
        .filter_map(|item| match item.view() {
            ItemView::ToolCall { name, arguments, .. } => {
                Some((name.as_str(), arguments.as_ref().expect("they are JSON").to_value().unwrap()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(calls, [("f", json!({"a": "\u{fffd}"}))], "{wire:?}");
    // What goes back is text for any reader.
    for item in &response.items {
        item.raw().to_value().unwrap();
    }
}

#[test]
fn streams_keep_all_else() {
    for (wire, events) in STREAMS {
        let mut fold = wire.fold(&ModelId::new(wire.as_str(), "some-model"));
        let mut delivered = VecDeque::new();
        for event in events {
            fold.feed(format!("data: {event}\n\n").as_bytes(), &mut delivered).unwrap();
        }
        check(wire, &fold.finish(&mut delivered).unwrap());
    }
}

#[test]
fn bodies_keep_all_else() {
    for (wire, body) in [
        (
            Wire::Messages,
            r#"{"type":"message","id":"m","role":"assistant","model":"x","content":[{"type":"text","text":"hi \ud83d there"},{"type":"tool_use","id":"c","name":"f","input":{"a":"\ud83d"}}],"stop_reason":"tool_use","usage":{"input_tokens":1,"output_tokens":1}}"#,
        ),
        (
            Wire::ChatCompletions,
            r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"hi \ud83d there","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":\"\\ud83d\"}"}}]},"finish_reason":"tool_calls"}]}"#,
        ),
        (
            Wire::Responses,
            r#"{"object":"response","id":"r","status":"completed","output":[{"type":"message","id":"m","role":"assistant","status":"completed","content":[{"type":"output_text","text":"hi \ud83d there","annotations":[]}]},{"type":"function_call","id":"f1","call_id":"c","name":"f","arguments":"{\"a\":\"\\ud83d\"}","status":"completed"}]}"#,
        ),
        (
            Wire::GenerateContent,
            r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hi \ud83d there"},{"functionCall":{"name":"f","args":{"a":"\ud83d"}}}]},"finishReason":"STOP"}]}"#,
        ),
    ] {
        let response = wire.read_body(&ModelId::new(wire.as_str(), "some-model"), 200, body);
        check(wire, &response.unwrap());
    }
}
