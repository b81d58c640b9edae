//! Deviations of each kind at each place of good answers: the text and the calls are used, or an error or a notice names
//! the loss, and nothing panics.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_llm::{ModelError, ModelEvent, ModelId, Response, Wire};

const WIRES: [Wire; 5] =
    [Wire::Messages, Wire::ChatCompletions, Wire::Responses, Wire::XaiResponses, Wire::GenerateContent];
/// Far above the time of any answer.
const AT_ONCE: Duration = Duration::from_secs(2);
/// The texts that a caller must not lose.
const MARKS: [&str; 3] = ["MARKtext", "MARKtool", "MARKargument"];

/// A good answer with a text and a call: as a body, and as the events of a stream.
fn answer(wire: Wire) -> (Value, Vec<Value>) {
    let arguments = r#"{"city":"MARKargument"}"#;
    match wire {
        Wire::Messages => {
            let usage = json!({ "input_tokens": 3, "output_tokens": 4 });
            let message = |content: Value, stop: Value| {
                json!({ "type": "message", "id": "m", "role": "assistant", "model": "some-model", "content": content,
                        "stop_reason": stop, "usage": usage })
            };
            let call =
                |input: Value| json!({ "type": "tool_use", "id": "c1", "name": "MARKtool", "input": input });
            let text = |text: &str| json!({ "type": "text", "text": text });
            let delta = |index: u8, delta: Value| json!({ "type": "content_block_delta", "index": index, "delta": delta });
            let start = |index: u8, block: Value| json!({ "type": "content_block_start", "index": index, "content_block": block });
            let events = vec![
                json!({ "type": "message_start", "message": message(json!([]), Value::Null) }),
                start(0, text("")),
                delta(0, json!({ "type": "text_delta", "text": "MARKtext" })),
                json!({ "type": "content_block_stop", "index": 0 }),
                start(1, call(json!({}))),
                delta(1, json!({ "type": "input_json_delta", "partial_json": arguments })),
                json!({ "type": "content_block_stop", "index": 1 }),
                json!({ "type": "message_delta", "delta": { "stop_reason": "tool_use" }, "usage": usage }),
                json!({ "type": "message_stop" }),
            ];
            let input = json!({ "city": "MARKargument" });
            (message(json!([text("MARKtext"), call(input)]), "tool_use".into()), events)
        }
        Wire::GenerateContent => {
            let answer = |parts: Value| {
                json!({ "candidates": [{ "content": { "role": "model", "parts": parts }, "index": 0 }],
                        "usageMetadata": { "promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 7 },
                        "modelVersion": "some-model", "responseId": "r" })
            };
            let call = json!({ "functionCall": { "id": "c1", "name": "MARKtool", "args": { "city": "MARKargument" } } });
            let mut last = answer(json!([call]));
            last["candidates"][0]["finishReason"] = "STOP".into();
            let mut whole = answer(json!([{ "text": "MARKtext" }, call]));
            whole["candidates"][0]["finishReason"] = "STOP".into();
            (whole, vec![answer(json!([{ "text": "MARKtext" }])), last])
        }
        Wire::Responses | Wire::XaiResponses => {
            let response = |status: &str, output: Value| {
                json!({ "object": "response", "id": "r", "model": "some-model", "status": status, "output": output,
                        "usage": { "input_tokens": 3, "output_tokens": 4, "total_tokens": 7 } })
            };
            let message = |text: &str| {
                json!({ "type": "message", "id": "m1", "role": "assistant", "status": "completed",
                        "content": [{ "type": "output_text", "text": text, "annotations": [] }] })
            };
            let call = |arguments: &str| {
                json!({ "type": "function_call", "id": "f1", "call_id": "c1", "name": "MARKtool", "arguments": arguments,
                        "status": "completed" })
            };
            let whole = response("completed", json!([message("MARKtext"), call(arguments)]));
            let events = vec![
                json!({ "type": "response.created", "response": response("in_progress", json!([])) }),
                json!({ "type": "response.output_item.added", "output_index": 0, "item": message("") }),
                json!({ "type": "response.output_text.delta", "output_index": 0, "content_index": 0, "item_id": "m1", "delta": "MARKtext" }),
                json!({ "type": "response.output_item.done", "output_index": 0, "item": message("MARKtext") }),
                json!({ "type": "response.output_item.added", "output_index": 1, "item": call("") }),
                json!({ "type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "f1", "delta": arguments }),
                json!({ "type": "response.output_item.done", "output_index": 1, "item": call(arguments) }),
                json!({ "type": "response.completed", "response": whole }),
            ];
            (whole, events)
        }
        Wire::ChatCompletions => {
            let usage = json!({ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 });
            let call = json!({ "id": "c1", "type": "function", "function": { "name": "MARKtool", "arguments": arguments } });
            let body = json!({ "id": "r", "object": "chat.completion", "model": "some-model", "usage": usage,
                "choices": [{ "index": 0, "finish_reason": "tool_calls",
                              "message": { "role": "assistant", "content": "MARKtext", "tool_calls": [call] } }] });
            let chunk = |delta: Value, reason: Value| {
                json!({ "id": "r", "object": "chat.completion.chunk", "model": "some-model", "usage": usage,
                        "choices": [{ "index": 0, "delta": delta, "finish_reason": reason }] })
            };
            let mut indexed = call.clone();
            indexed["index"] = 0.into();
            let events = vec![
                chunk(json!({ "role": "assistant", "content": "MARKtext" }), Value::Null),
                chunk(json!({ "tool_calls": [indexed] }), Value::Null),
                chunk(json!({}), "tool_calls".into()),
            ];
            (body, events)
        }
        other => panic!("a wire without a test: {other:?}"),
    }
}

/// The pointers of all members and elements.
fn members(value: &Value) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| (index.to_string(), item)).collect()
        }
        _ => Vec::new(),
    };
    let nested = inner.iter().flat_map(|(key, value)| {
        let places = members(value).into_iter().map(move |place| format!("/{key}{place}"));
        std::iter::once(format!("/{key}")).chain(places)
    });
    nested.collect()
}

fn other_types(value: &Value) -> Vec<Value> {
    match value {
        Value::String(text) => vec![json!([text]), json!({ "value": text }), json!(5), json!(true)],
        Value::Number(number) => {
            vec![json!(number.to_string()), json!(number.as_f64()), json!([number]), json!(-7), json!(1e300)]
        }
        Value::Bool(flag) => vec![json!(flag.to_string()), json!(u8::from(*flag))],
        Value::Array(items) => [vec![json!(json!(items).to_string()), json!({})], items.clone()].concat(),
        Value::Object(fields) => vec![json!([fields]), json!(json!(fields).to_string()), json!([]), json!(1)],
        Value::Null => vec![json!(""), json!(0), json!([]), json!({})],
    }
}

fn without(value: &Value, place: &str) -> Value {
    let mut value = value.clone();
    let (parent, key) = place.rsplit_once('/').unwrap();
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.shift_remove(key)),
        Some(Value::Array(items)) => drop(items.remove(key.parse().unwrap())),
        _ => {}
    }
    value
}

/// Each deviation of one value, with its kind.
fn deviations(value: &Value) -> Vec<(&'static str, Value)> {
    let mut found = Vec::new();
    for place in members(value) {
        let member = value.pointer(&place).unwrap();
        let with = |other: Value| {
            let mut deviating = value.clone();
            *deviating.pointer_mut(&place).unwrap() = other;
            deviating
        };
        found.extend(other_types(member).into_iter().map(|other| ("types", with(other))));
        found.push(("null", with(Value::Null)));
        found.push(("missing", without(value, &place)));
        match member {
            Value::Array(items) => {
                found.push(("order", with(items.iter().rev().cloned().collect())));
                found.push(("duplicates", with([items.clone(), items.clone()].concat().into())));
            }
            Value::Object(fields) => {
                let reversed = fields.iter().rev().map(|(key, value)| (key.clone(), value.clone())).collect();
                found.push(("order", with(Value::Object(reversed))));
            }
            _ => {}
        }
    }
    found
}

type Answer = Result<Response, ModelError>;

/// Feeds a stream. The deltas count as used.
fn streamed(wire: Wire, bytes: &[u8]) -> (Answer, VecDeque<ModelEvent>) {
    let mut fold = wire.fold(&ModelId::new(wire.as_str(), "some-model"));
    let mut events = VecDeque::new();
    let fed = fold.feed(bytes, &mut events);
    let answer = fed.and_then(|()| fold.finish(&mut events));
    (answer, events)
}

fn stream_of(events: &[Value]) -> Vec<u8> {
    let event = |event: &Value| match event["type"].as_str() {
        Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    };
    events.iter().map(event).collect::<String>().into_bytes()
}

/// The deviations and their outcomes.
#[derive(Default)]
struct Counts {
    kinds: BTreeMap<&'static str, [usize; 3]>,
    silent: Vec<String>,
}

impl Counts {
    /// Judges one answer to `sent`.
    fn judge(
        &mut self,
        kind: &'static str,
        wire: Wire,
        sent: &[u8],
        answer: impl FnOnce() -> (Answer, VecDeque<ModelEvent>),
    ) {
        let begun = Instant::now();
        let (answer, events) = answer();
        let sent = String::from_utf8_lossy(sent).into_owned();
        assert!(begun.elapsed() < AT_ONCE, "{wire:?}: {sent}");
        let count = self.kinds.entry(kind).or_default();
        count[0] += 1;
        let used = match &answer {
            Ok(response) => format!("{:?} {:?} {events:?}", response.items, response.stop_detail),
            Err(_) => {
                count[2] += 1;
                return;
            }
        };
        let lost: Vec<&str> =
            MARKS.into_iter().filter(|mark| sent.contains(mark) && !used.contains(mark)).collect();
        let named = answer.is_ok_and(|response| !response.notices.is_empty());
        match (lost.is_empty(), named) {
            (true, _) => count[1] += 1,
            (false, true) => count[2] += 1,
            (false, false) => self.silent.push(format!("{kind} {wire:?} {lost:?}: {sent}")),
        }
    }

    fn body(&mut self, kind: &'static str, wire: Wire, status: u16, body: &[u8]) {
        let text = String::from_utf8_lossy(body).into_owned();
        let model = ModelId::new(wire.as_str(), "some-model");
        self.judge(kind, wire, body, || (wire.read_body(&model, status, &text), VecDeque::new()));
    }

    fn stream(&mut self, kind: &'static str, wire: Wire, bytes: &[u8]) {
        self.judge(kind, wire, bytes, || streamed(wire, bytes));
    }
}

#[test]
fn each_deviation_is_used_or_named() {
    let mut counts = Counts::default();
    for wire in WIRES {
        let (body, events) = answer(wire);
        let mut good = Counts::default();
        good.body("good", wire, 200, body.to_string().as_bytes());
        good.stream("good", wire, &stream_of(&events));
        assert_eq!(good.kinds["good"], [2, 2, 0], "{wire:?}: {:?}", good.silent);
        for (kind, deviating) in deviations(&body) {
            counts.body(kind, wire, 200, deviating.to_string().as_bytes());
        }
        for (index, event) in events.iter().enumerate() {
            let with = |replaced: &[Value]| {
                let (before, after) = (&events[..index], &events[index + 1..]);
                stream_of(&[before, replaced, after].concat())
            };
            for (kind, deviating) in deviations(event) {
                counts.stream(kind, wire, &with(&[deviating]));
            }
            counts.stream("missing", wire, &with(&[]));
            counts.stream("null", wire, &with(&[Value::Null]));
            counts.stream("duplicates", wire, &with(&[event.clone(), event.clone()]));
            if index > 0 {
                let mut swapped = events.clone();
                swapped.swap(index - 1, index);
                counts.stream("order", wire, &stream_of(&swapped));
            }
        }
        let (whole, stream) = (body.to_string().into_bytes(), stream_of(&events));
        for bytes in [
            &b"caf\xe9 MARKtext"[..],
            b"\\ud83d MARKtext",
            b"\\u0000 MARKtext",
            b"a\tb MARKtext",
            b"\\x41 MARKtext",
        ] {
            for (sent, is_stream) in [(&whole, false), (&stream, true)] {
                let at = sent.windows(8).position(|word| word == b"MARKtext").unwrap();
                let sent = [&sent[..at], bytes, &sent[at + 8..]].concat();
                if is_stream {
                    counts.stream("encodings", wire, &sent);
                } else {
                    counts.body("encodings", wire, 200, &sent);
                }
            }
        }
        let lines = String::from_utf8(stream.clone()).unwrap();
        for text in [
            format!("\u{feff}{lines}"),
            lines.replace('\n', "\r\n"),
            lines.replace("data: ", "data:"),
            lines.trim_end().to_owned(),
        ] {
            counts.stream("encodings", wire, text.as_bytes());
        }
        counts.body("encodings", wire, 200, &[b"\xef\xbb\xbf", whole.as_slice()].concat());
        for half in [whole.len() / 2, whole.len() - 1] {
            counts.body("encodings", wire, 200, &whole[..half]);
        }
        for cut in 1..40 {
            counts.stream("missing", wire, &stream[..stream.len() * cut / 40]);
        }
        for status in [
            201, 202, 204, 301, 400, 401, 403, 404, 408, 409, 413, 418, 422, 429, 500, 502, 503, 504, 529,
            999,
        ] {
            counts.body("status", wire, status, &whole);
            counts.body("status", wire, status, b"<p>MARKtext");
            counts.body("status", wire, status, br#"{"error":{"message":"MARKtext"}}"#);
            counts.body("status", wire, status, b"");
        }
    }
    for (kind, [all, used, named]) in &counts.kinds {
        println!("{kind:10} {all:5} deviations: {used} used whole, {named} named");
    }
    let mut silent = BTreeMap::<String, Vec<&String>>::new();
    for loss in &counts.silent {
        silent.entry(loss.split(':').next().unwrap_or_default().to_owned()).or_default().push(loss);
    }
    let shown: Vec<String> = silent
        .iter()
        .map(|(what, losses)| {
            format!(
                "{} × {what}, such as\n  {}",
                losses.len(),
                losses.iter().take(6).map(|loss| loss.as_str()).collect::<Vec<_>>().join("\n  ")
            )
        })
        .collect();
    assert!(shown.is_empty(), "{} silent losses:\n{}", counts.silent.len(), shown.join("\n"));
}
