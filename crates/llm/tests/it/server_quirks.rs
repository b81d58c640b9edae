//! Deviations of servers, from recorded traffic in its shortest form.

use std::collections::VecDeque;

use serde_json::{Value, json};
use toolpost_llm::{
    Item, ItemView, ModelEvent, ModelId, Request, Response, StopReason, ToolDefinition, Wire,
};

use crate::support;

fn fold(wire: Wire, events: &[&str]) -> Response {
    support::fold(wire, &ModelId::new(wire.as_str(), "some-model"), events).0.unwrap()
}

#[test]
fn routing_members_are_not_part_of_the_message() {
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
fn null_text_means_no_arguments() {
    let body = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"null"}}]},"finish_reason":"tool_calls"}]}"#;
    let response = Wire::ChatCompletions.read_body(&ModelId::new("groq", "llama"), 200, body).unwrap();
    let arguments = response.items.iter().find_map(|item| match item.view() {
        ItemView::ToolCall { arguments, .. } => Some(arguments.as_ref().unwrap().to_value().unwrap()),
        _ => None,
    });
    assert_eq!(arguments, Some(json!({})));
}

#[test]
fn an_end_without_content_keeps_the_deltas() {
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

fn delivered(wire: Wire, events: &[String]) -> (Response, Vec<ModelEvent>) {
    let mut fold = wire.fold(&ModelId::new(wire.as_str(), "some-model"));
    let mut delivered = VecDeque::new();
    for event in events {
        fold.feed(format!("data: {event}\n\n").as_bytes(), &mut delivered).unwrap();
    }
    let response = fold.finish(&mut delivered).unwrap();
    (response, delivered.into())
}

fn items(events: &[ModelEvent]) -> Vec<&Item> {
    let items = events.iter().filter_map(|event| match event {
        ModelEvent::Item(item) => Some(item),
        _ => None,
    });
    items.collect()
}

/// Events of the Responses wire: an item that begins or ends at a place, and the end of the answer.
fn at(kind: &str, index: u64, item: &Value) -> String {
    json!({"type": format!("response.output_item.{kind}"), "output_index": index, "item": item}).to_string()
}

fn completed(output: &[Value]) -> String {
    let response = json!({"object": "response", "status": "completed", "output": output});
    json!({"type": "response.completed", "response": response}).to_string()
}

#[test]
fn items_are_delivered_in_order() {
    let call =
        |name: &str| json!({"type": "function_call", "call_id": name, "name": name, "arguments": "{}"});
    let search = json!({"type": "web_search_call", "id": "ws", "status": "completed"});
    let (first, last) = (call("first"), call("last"));
    let output = [first.clone(), search.clone(), last.clone()];
    for (order, hosted) in [([2, 1, 0], 1), ([1, 2, 0], 1), ([0, 2, 1], 0), ([0, 1, 2], 0)] {
        for begun in [[0, 1, 2], [2, 0, 1]] {
            let mut events: Vec<String> =
                begun.map(|place| at("added", place, &output[place as usize])).to_vec();
            events.extend(order.map(|place| at("done", place, &output[place as usize])));
            events.push(completed(&output));
            let (response, events) = delivered(Wire::Responses, &events);
            assert_eq!(items(&events), response.items.iter().collect::<Vec<_>>(), "{order:?} {begun:?}");
            let raws: Vec<Value> = response.items.iter().map(|item| item.raw().to_value().unwrap()).collect();
            assert_eq!(raws, output, "{order:?} {begun:?}");
            // A search that ends out of order is delivered at once, and again in order.
            let early = events.iter().filter(|event| matches!(event, ModelEvent::Hosted(_))).count();
            assert_eq!(early, hosted, "{order:?} {begun:?}");
        }
    }
}

#[test]
fn items_without_index_or_with_gaps_keep_their_order() {
    let message = |text: &str| json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]});
    let output = [message("a"), message("b"), message("c")];
    for indexes in [[0, 0, 0], [0, 2, 4], [7, 8, 9], [u64::MAX, 1, 3]] {
        let mut events: Vec<String> =
            indexes.iter().zip(&output).map(|(index, item)| at("done", *index, item)).collect();
        events.push(completed(&[]));
        let (response, events) = delivered(Wire::Responses, &events);
        assert_eq!(items(&events), response.items.iter().collect::<Vec<_>>(), "{indexes:?}");
        assert_eq!(response.items.len(), 3, "{indexes:?}");
    }
}

#[test]
fn text_without_deltas_is_shown_at_the_end_of_its_item() {
    let item = json!({"type": "message", "content": [{"type": "output_text", "text": "Got it, thanks"}]});
    let delta = json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Got it"});
    let events = [
        at("added", 0, &json!({"type": "message"})),
        delta.to_string(),
        at("done", 0, &item),
        completed(&[item]),
    ];
    let (_, events) = delivered(Wire::Responses, &events);
    let shown = events.iter().filter_map(|event| match event {
        ModelEvent::TextDelta { text, .. } => Some(text.as_str()),
        _ => None,
    });
    assert_eq!(shown.collect::<Vec<_>>(), ["Got it", ", thanks"]);
}

#[test]
fn interleaved_blocks_are_delivered_in_order() {
    let start = |index: u64, block: Value| {
        json!({"type": "content_block_start", "index": index, "content_block": block}).to_string()
    };
    let stop = |index: u64| json!({"type": "content_block_stop", "index": index}).to_string();
    let events = [
        json!({"type": "message_start", "message": {"type": "message", "content": []}}).to_string(),
        start(0, json!({"type": "text", "text": "a"})),
        start(1, json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}})),
        start(2, json!({"type": "tool_use", "id": "t", "name": "f", "input": {}})),
        stop(2),
        stop(1),
        stop(0),
        json!({"type": "message_stop"}).to_string(),
        // A router's stop reason.
        "[DONE]".to_owned(),
    ];
    let (response, events) = delivered(Wire::Messages, &events);
    assert_eq!(items(&events), response.items.iter().collect::<Vec<_>>());
    assert_eq!(response.items.len(), 3);
    assert_eq!(events.iter().filter(|event| matches!(event, ModelEvent::Hosted(_))).count(), 1);
}

#[test]
fn a_bedrock_answer_is_a_message() {
    let body = r#"{"id":"msg_bdrk_1","type":"message","role":"assistant","model":"claude-3-haiku","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}"#;
    let model = ModelId::new("anthropic", "us.anthropic.claude-3-haiku-v1:0");
    let response = Wire::Messages.read_body(&model, 200, body).unwrap();
    assert_eq!((response.text(), response.usage.input), ("hi".to_owned(), 3));
}

#[test]
fn a_filtered_answer_may_lack_its_message() {
    let body = r#"{"id":"c","choices":[{"index":0,"finish_reason":"content_filter","content_filter_results":{}}],"usage":{"prompt_tokens":3,"completion_tokens":0}}"#;
    let model = ModelId::new("openai-compatible", "gpt");
    let response = Wire::ChatCompletions.read_body(&model, 200, body).unwrap();
    assert_eq!((response.stop, response.items.len()), (StopReason::Refusal, 0));
    assert!(
        Wire::ChatCompletions.read_body(&model, 200, &body.replace("content_filter\"", "stop\"")).is_err()
    );
}

#[test]
fn the_first_id_of_a_stream_counts() {
    let response = fold(
        Wire::ChatCompletions,
        &[
            r#"{"id":"","choices":[]}"#,
            r#"{"id":"first","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}}]}"#,
            r#"{"id":"second","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
        ],
    );
    assert_eq!(response.id, "first");
    let body = Wire::ChatCompletions.read_body(&response.origin, 200, response.raw.get()).unwrap();
    assert_eq!(body.items, response.items);
}

#[test]
fn finish_reasons_may_be_numbers() {
    let model = ModelId::new("gemini", "model-x");
    for (reason, stop) in
        [("1", StopReason::EndTurn), ("2", StopReason::MaxTokens), ("3", StopReason::Refusal)]
    {
        let event = format!(
            r#"{{"candidates":[{{"content":{{"role":"model","parts":[{{"text":"hi"}}]}},"finishReason":{reason}}}],"usageMetadata":{{"promptTokenCount":1}}}}"#
        );
        let body = Wire::GenerateContent.read_body(&model, 200, &event).unwrap();
        assert_eq!((body.text(), &body.stop), ("hi".to_owned(), &stop));
        let list = Wire::GenerateContent.read_body(&model, 200, &format!("[{event}]")).unwrap();
        assert_eq!((list.text(), &list.stop), ("hi".to_owned(), &stop));
    }
}

#[test]
fn a_router_gets_the_schema_dialect_of_the_vendor() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "object", "nullable": true, "properties": {"b": {"type": "integer", "format": "int32"}}, "required": ["b"]}}, "required": ["a"]});
    let mut request = Request::new("hi");
    let mut tool = ToolDefinition::new("f", "does", &schema);
    tool.strict = true;
    request.tools = vec![tool].into();
    let sent = |name: &str| {
        let model = ModelId::new("openai-compatible", name);
        let body = Wire::ChatCompletions.write_body(&model, &request, false).unwrap().to_value().unwrap();
        body["tools"][0]["function"].clone()
    };
    for name in ["google/gemini-2.5-flash", "gemini-2.5-flash", "models/gemini-3-pro"] {
        assert_eq!((&sent(name)["parameters"], &sent(name)["strict"]), (&schema, &json!(true)), "{name}");
    }
    assert_eq!(sent("openai/gpt-5.6-sol")["parameters"]["additionalProperties"], json!(false));
}
