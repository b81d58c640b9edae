//! Limits on hostile answers whose small parts would be copied with every event or item.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_llm::{ErrorKind, ItemView, ModelError, ModelEvent, ModelId, Response, Wire};

use crate::support;

/// A length above the maximum of a call id.
const LONG: usize = 17 * 1024;

fn model(wire: Wire) -> ModelId {
    ModelId::new(wire.as_str(), "some-model")
}

fn fold(wire: Wire, events: &[Value]) -> Result<(Response, Vec<ModelEvent>), ModelError> {
    let (response, delivered) = support::fold(wire, &model(wire), events);
    Ok((response?, delivered))
}

/// An answer with one call of this id and name.
fn call(wire: Wire, id: &str, name: &str) -> Vec<Value> {
    match wire {
        Wire::Messages => vec![
            message_start(),
            json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "tool_use", "id": id, "name": name, "input": {}}}),
            json!({"type": "message_stop"}),
        ],
        Wire::ChatCompletions => vec![chunk(
            &json!({"tool_calls": [{"index": 0, "id": id, "function": {"name": name, "arguments": "{}"}}]}),
            "stop",
        )],
        _ => vec![
            json!({"type": "response.output_item.added", "output_index": 0,
                "item": {"type": "function_call", "call_id": id, "name": name, "arguments": ""}}),
            json!({"type": "response.completed", "response": {"object": "response", "output": []}}),
        ],
    }
}

fn message_start() -> Value {
    json!({"type": "message_start", "message": {"type": "message", "content": [], "usage": {"input_tokens": 1}}})
}

fn chunk(delta: &Value, reason: &str) -> Value {
    json!({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
}

/// Asserts that the events are an error that names the exceeded limit.
fn check_refused(wire: Wire, events: &[Value], what: &str) {
    let error = fold(wire, events).expect_err(what);
    assert_eq!(error.kind, ErrorKind::Protocol, "{wire:?}: {error}");
    assert!(error.message.contains(what), "{wire:?}: {what}: {error}");
    assert!(error.message.len() < 1_000, "{wire:?}: {}", error.message.len());
}

#[test]
fn repeated_parts_of_a_call_are_bounded() {
    for wire in [Wire::Messages, Wire::Responses, Wire::XaiResponses, Wire::ChatCompletions] {
        check_refused(wire, &call(wire, &"i".repeat(LONG), "look"), "the id of a tool call");
        check_refused(wire, &call(wire, "i", &"n".repeat(1025)), "the name of a tool call");
        // Some gateways put a signature into the id.
        let signed = format!("call_1__thought__{}", "s".repeat(10_000));
        let (response, _) = fold(wire, &call(wire, &signed, "look")).unwrap();
        let ItemView::ToolCall { id, .. } = response.items[0].view() else { panic!("{wire:?}") };
        assert_eq!(*id, signed, "{wire:?}");
    }
    // A name in fragments, and the id of an answer whose calls have no id.
    let piece =
        json!({"tool_calls": [{"index": 0, "function": {"name": "n".repeat(600), "arguments": "{}"}}]});
    let other = json!({"tool_calls": [{"index": 0, "function": {"name": "m".repeat(600)}}]});
    let chat = Wire::ChatCompletions;
    check_refused(chat, &[chunk(&piece, ""), chunk(&other, "stop")], "the name of a tool call");
    let mut named = chunk(&piece, "stop");
    named["id"] = "a".repeat(LONG).into();
    check_refused(chat, &[named], "the answer's id");
}

#[test]
fn generated_call_ids_are_short() {
    let parts = json!([
        {"functionCall": {"name": "look", "args": {}}},
        {"executableCode": {"code": "1", "language": "PYTHON", "id": "x".repeat(LONG)}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
    ]);
    let event = json!({"responseId": "r".repeat(LONG), "usageMetadata": {"promptTokenCount": 7},
        "candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]});
    let (response, _) = fold(Wire::GenerateContent, &[event]).unwrap();
    let ids: Vec<&str> = response
        .items
        .iter()
        .map(|item| match item.view() {
            ItemView::ToolCall { id, .. } | ItemView::ServerToolCall { id, .. } => id.as_str(),
            ItemView::ServerToolResult { call_id, .. } => call_id.as_str(),
            _ => panic!("not a call"),
        })
        .collect();
    assert_eq!(ids, ["call-p7-0", "code-p7-0", "code-p7-0"]);
}

#[test]
fn usage_is_short() {
    let with_usage = |name: &str, bytes: usize| {
        let usage = json!({"output_tokens": 1, name: "x".repeat(bytes)});
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage})
    };
    let stop = json!({"type": "message_stop"});
    let whole = [message_start(), with_usage("a", 60_000), stop.clone()];
    assert_eq!(fold(Wire::Messages, &whole).unwrap().0.usage.output, 1);
    // Each part is short; their sum exceeds the limit.
    let grown = [message_start(), with_usage("a", 40_000), with_usage("b", 40_000), stop];
    check_refused(Wire::Messages, &grown, "the usage");
    for name in ["usage", "x_groq"] {
        let mut last = chunk(&json!({"content": "hi"}), "stop");
        last[name] = json!({"usage": {"x": "x".repeat(70_000)}});
        check_refused(Wire::ChatCompletions, &[last], "the usage");
    }
}

#[test]
fn call_fragments_and_list_elements_are_bounded() {
    let chat = Wire::ChatCompletions;
    let pieces = |count: usize| {
        let piece = json!({"index": 0, "id": "i", "function": {"name": "look", "arguments": " "}});
        [chunk(&json!({"tool_calls": vec![piece; count]}), "stop")]
    };
    // The first event also starts the call.
    let deltas = |events: &[ModelEvent]| {
        events.iter().filter(|event| matches!(event, ModelEvent::ToolCallDelta { .. })).count()
    };
    assert_eq!(deltas(&fold(chat, &pieces(1_000)).unwrap().1), 1_001);
    check_refused(chat, &pieces(1_001), "call fragments");

    let ones = |count: usize| json!(vec![1; count]);
    // Parts of a message count as items; log probabilities have a separate limit.
    for members in [["annotations", "annotations"], ["annotations", "reasoning_details"]] {
        let part = |number: usize| {
            let member = (members[number % 2].to_owned(), ones(15_000));
            chunk(&Value::Object([member].into_iter().collect()), "")
        };
        check_refused(chat, &(0..2).map(part).collect::<Vec<_>>(), "20000 items");
    }
    let few = json!({"annotations": ones(15_000)});
    fold(chat, &[chunk(&few, "stop"), json!({"choices": []})]).unwrap();
    let mut probable = chunk(&json!({"content": "hi"}), "stop");
    probable["choices"][0]["logprobs"] = json!({"content": ones(250_001)});
    check_refused(chat, &[probable], "elements");

    // Every event adds members to one part.
    let part = |from: usize| {
        let mut part: serde_json::Map<String, Value> =
            (from..from + 900).map(|number| (format!("k{number}"), json!(0))).collect();
        part.insert("index".to_owned(), json!(0));
        chunk(&json!({"reasoning_details": [part]}), "stop")
    };
    assert!(fold(chat, &[part(0)]).is_ok());
    check_refused(chat, &[part(0), part(900)], "members");
}

#[test]
fn metadata_of_many_events_is_parsed_once() {
    let event = |metadata: Value| json!({"candidates": [{"index": 0, "groundingMetadata": metadata}]});
    let mut events = vec![event(json!({"big": "x".repeat(8 * 1024 * 1024), "number": -1}))];
    events.extend((0..5_000).map(|number| event(json!({"number": number}))));
    events.push(json!({"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}]}));
    let began = Instant::now();
    let (response, _) = fold(Wire::GenerateContent, &events).unwrap();
    // Copying the members with each event would take 40 GB.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let body = response.raw.to_value().unwrap();
    let metadata = &body["candidates"][0]["groundingMetadata"];
    assert_eq!(
        (metadata["number"].as_u64(), metadata["big"].as_str().map(str::len)),
        (Some(4_999), Some(8 << 20))
    );
}

/// The number and the bytes of all sources of the answer's texts.
fn cited(body: &Value) -> (usize, usize) {
    let response = Wire::GenerateContent.read_body(&model(Wire::GenerateContent), 200, &body.to_string());
    let response = response.unwrap();
    let citations = response.items.iter().filter_map(|item| match item.view() {
        ItemView::Text { citations, .. } => Some(citations),
        _ => None,
    });
    let sizes: Vec<usize> =
        citations.flatten().map(|citation| citation.title.as_ref().map_or(0, String::len)).collect();
    (sizes.len(), sizes.iter().sum())
}

#[test]
fn sources_are_distinct_and_bounded() {
    let body = |texts: usize, chunks: &[Value], supports: &[Value]| {
        json!({"candidates": [{
            "content": {"parts": vec![json!({"text": "t"}); texts]},
            "finishReason": "STOP",
            "groundingMetadata": {"groundingChunks": chunks, "groundingSupports": supports},
        }]})
    };
    let web = |number: usize, title: &str| json!({"web": {"uri": format!("u{number}"), "title": title}});
    // A thousand passages with the same thousand sources, with titles of 3 KB.
    let title = "t".repeat(3_000);
    let chunks: Vec<Value> = (0..1_000).map(|number| web(number, &title)).collect();
    let indices: Vec<usize> = (0..1_000).collect();
    let supports = vec![json!({"segment": {"startIndex": 0}, "groundingChunkIndices": indices}); 1_000];
    assert_eq!(cited(&body(1, &chunks, &supports)), (1_000, 3_000_000));
    // One source of 1 MB, in each of a thousand texts.
    let support = |part: usize| json!({"segment": {"partIndex": part}, "groundingChunkIndices": [0]});
    let supports: Vec<Value> = (0..1_000).map(support).collect();
    let (count, bytes) = cited(&body(1_000, &[web(0, &"t".repeat(1_000_000))], &supports));
    assert_eq!((count, bytes), (4, 4_000_000));
    // A dropped item does not cost the next one its slot.
    let chunks = [web(0, &"t".repeat(5_000_000)), web(1, "short")];
    assert_eq!(cited(&body(1, &chunks, &[json!({"groundingChunkIndices": [0, 1]})])), (1, 5));
}
