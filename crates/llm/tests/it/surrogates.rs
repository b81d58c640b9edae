//! Unpaired surrogates (`\ud83d`) in answers: nothing else is lost.

use std::collections::VecDeque;

use serde_json::json;
use toolpost_llm::{ItemView, ModelEvent, ModelId, Response, Wire};

/// A stream of each wire with the text `hi `, one half, the other half, ` there`, and a call with half a
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
    let has_it = text.starts_with("hi \u{fffd}") || text.starts_with("hi \u{1f600}");
    assert!(has_it && text.ends_with("there"), "{wire:?}: {text}");
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
    // The next request is valid text.
    for item in &response.items {
        item.raw().to_value().unwrap();
    }
}

/// The two middle events of a stream of each wire, whose text is cut within a character.
const CUT: [(Wire, &str, &str, &str, &str); 4] = [
    (
        Wire::Messages,
        "{\"type\":\"message_start\",\"message\":{\"type\":\"message\",\"content\":[],\"usage\":{\"input_tokens\":1}}}\n\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}",
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi \ud83d"}}"#,
        r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\ude00 there"}}"#,
        "{\"type\":\"content_block_stop\",\"index\":0}\n\ndata: {\"type\":\"message_stop\"}",
    ),
    (
        Wire::ChatCompletions,
        r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"hi \ud83d"},"finish_reason":null}]}"#,
        r#"{"id":"c","choices":[{"index":0,"delta":{"content":"\ude00 there"},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ),
    (
        Wire::Responses,
        r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"m","role":"assistant","content":[]}}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"hi \ud83d"}"#,
        r#"{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"\ude00 there"}"#,
        r#"{"type":"response.completed","response":{"object":"response","status":"completed","output":[]}}"#,
    ),
    (
        Wire::GenerateContent,
        r#"{"candidates":[{"content":{"role":"model","parts":[{"text":""}]}}]}"#,
        r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hi \ud83d"}]}}]}"#,
        r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"\ude00 there"}]}}]}"#,
        r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"."}]},"finishReason":"STOP"}]}"#,
    ),
];

/// The delivered text and the text of the answer.
fn shown_and_said(wire: Wire, events: &[&str]) -> (String, String) {
    let mut fold = wire.fold(&ModelId::new(wire.as_str(), "some-model"));
    let mut delivered = VecDeque::new();
    for event in events {
        fold.feed(format!("data: {event}\n\n").as_bytes(), &mut delivered).unwrap();
    }
    let said = fold.finish(&mut delivered).unwrap().text().trim_end_matches('.').to_owned();
    let shown: String = delivered
        .iter()
        .filter_map(|event| match event {
            ModelEvent::TextDelta { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    (shown.trim_end_matches('.').to_owned(), said)
}

#[test]
fn a_surrogate_pair_split_between_events_is_joined() {
    for (wire, begin, first, second, end) in CUT {
        let text = "hi \u{1f600} there".to_owned();
        assert_eq!(shown_and_said(wire, &[begin, first, second, end]), (text.clone(), text), "{wire:?}");
    }
}

#[test]
fn an_unpaired_surrogate_is_replaced() {
    for (wire, begin, first, _, end) in CUT {
        // The second half is missing before another event or the end.
        let ending =
            end.replace("[DONE]", r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#);
        let text = "hi \u{fffd}".to_owned();
        assert_eq!(shown_and_said(wire, &[begin, first, &ending]), (text.clone(), text), "{wire:?}");
    }
    let last = r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"hi \ud83d"}]},"finishReason":"STOP"}]}"#;
    let text = "hi \u{fffd}".to_owned();
    assert_eq!(shown_and_said(Wire::GenerateContent, &[last]), (text.clone(), text));
    let whole = r#"{"type":"response.completed","response":{"object":"response","status":"completed","output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"hi \ud83d"}]}]}}"#;
    let mut fold = Wire::Responses.fold(&ModelId::new("openai", "some-model"));
    let mut delivered = VecDeque::new();
    fold.feed(format!("data: {whole}\n\n").as_bytes(), &mut delivered).unwrap();
    assert!(!delivered.is_empty(), "the last event waits for no other");
}

#[test]
fn streams_keep_other_content() {
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
fn bodies_keep_other_content() {
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
