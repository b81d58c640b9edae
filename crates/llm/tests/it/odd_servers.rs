//! What some servers do in their own way: seen in recorded traffic, here in its shortest form.

use std::collections::VecDeque;

use serde_json::json;
use toolpost_llm::{ItemView, ModelId, Response, Wire};

fn fold(wire: Wire, events: &[&str]) -> Response {
    let mut fold = wire.fold(&ModelId::new(wire.as_str(), "some-model"));
    let mut delivered = VecDeque::new();
    for event in events {
        fold.feed(format!("data: {event}\n\n").as_bytes(), &mut delivered).unwrap();
    }
    fold.finish(&mut delivered).unwrap()
}

#[test]
fn where_a_delta_belongs_is_no_part_of_the_message() {
    let response = fold(
        Wire::ChatCompletions,
        &[
            r#"{"id":"c","choices":[{"index":0,"delta":{"index":0,"role":"assistant","reasoning":"The ","channel":"analysis"}}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"index":0,"reasoning":"word","channel":"analysis"}}]}"#,
            r#"{"id":"c","choices":[{"index":0,"delta":{"index":0,"content":"hi","channel":"final"},"finish_reason":"stop"}]}"#,
        ],
    );
    assert_eq!(response.text(), "hi");
    let message = &response.raw.to_value().unwrap()["choices"][0]["message"];
    assert_eq!(*message, json!({"role": "assistant", "reasoning": "The word", "content": "hi"}));
    let others = response.items.iter().filter(|item| matches!(item.view(), ItemView::Other { .. })).count();
    assert_eq!(others, 0, "{:?}", response.items);
}

#[test]
fn null_as_a_text_is_no_arguments() {
    let body = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"null"}}]},"finish_reason":"tool_calls"}]}"#;
    let response = Wire::ChatCompletions.read_body(&ModelId::new("groq", "llama"), 200, body).unwrap();
    let arguments = response.items.iter().find_map(|item| match item.view() {
        ItemView::ToolCall { arguments, .. } => Some(arguments.as_ref().unwrap().to_value().unwrap()),
        _ => None,
    });
    assert_eq!(arguments, Some(json!({})));
}

#[test]
fn an_end_without_content_does_not_lose_what_was_said() {
    for end in ["", r#","content":null"#] {
        let done = format!(
            r#"{{"type":"response.output_item.done","output_index":0,"item":{{"type":"message","id":"m","role":"assistant"{end}}}}}"#
        );
        let response = fold(
            Wire::Responses,
            &[
                r#"{"type":"response.created","response":{"object":"response","status":"in_progress","output":[]}}"#,
                r#"{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"m","role":"assistant"}}"#,
                r#"{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"Code in "}"#,
                r#"{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"silence"}"#,
                &done,
                r#"{"type":"response.completed","response":{"object":"response","status":"completed","output":[]}}"#,
            ],
        );
        assert_eq!(response.text(), "Code in silence", "{end}");
    }
}
