//! What a request becomes on the Responses wire, and what odd streams become.

use std::collections::VecDeque;

use serde_json::{Value, json};
use toolpost_llm::{
    Effort, ErrorKind, HostedTool, ModelEvent, ModelId, OutputFormat, Request, Response, StopReason,
    Thinking, ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};

fn model() -> ModelId {
    ModelId::new("openai", "model-of-tomorrow")
}

fn body(request: &Request) -> Value {
    Wire::Responses.write_body(&model(), request, false).unwrap().to_value().unwrap()
}

fn answer(output: &Value) -> Response {
    let body = json!({"object": "response", "status": "completed", "output": output}).to_string();
    Wire::Responses.read_body(&model(), 200, &body).unwrap()
}

#[test]
fn a_plain_request_leaves_nothing_with_the_provider() {
    assert_eq!(
        body(&Request::new("hi")),
        json!({
            "model": "model-of-tomorrow",
            "store": false,
            "include": ["reasoning.encrypted_content"],
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        })
    );
}

/// A change of a request, the place in the body, and what stands there then.
type Case = (fn(&mut Request), &'static str, Value);

#[test]
fn every_setting_reaches_the_body() {
    let plain = body(&Request::new("hi"));
    let cases: [Case; 12] = [
        (|r| r.system = Some("be kind".into()), "/instructions", json!("be kind")),
        (|r| r.settings.max_output_tokens = Some(99), "/max_output_tokens", json!(99)),
        (|r| r.settings.effort = Some(Effort::High), "/reasoning/effort", json!("high")),
        (|r| r.settings.thinking = Some(Thinking::Off), "/reasoning/effort", json!("none")),
        (|r| r.settings.thinking = Some(Thinking::Adaptive), "/reasoning/summary", json!("auto")),
        (|r| r.settings.output = Some(OutputFormat::Json), "/text/format/type", json!("json_object")),
        (|r| r.settings.parallel_tool_calls = Some(false), "/parallel_tool_calls", json!(false)),
        (|r| r.tool_choice = Some(ToolChoice::Any), "/tool_choice", json!("required")),
        (
            |r| r.tools = vec![ToolDefinition::new("t", "T.", &json!({"type": "object"}))].into(),
            "/tools/0/strict",
            json!(false),
        ),
        (
            |r| {
                r.hosted_tools =
                    vec![HostedTool::CodeExecution { version: None, file_ids: vec!["f".into()] }];
            },
            "/tools/0/container",
            json!({"type": "auto", "file_ids": ["f"]}),
        ),
        (
            |r| {
                r.metadata.insert("user_id".into(), "u1".into());
            },
            "/safety_identifier",
            json!("u1"),
        ),
        (
            |r| {
                r.provider_options.insert("service_tier".into(), "flex".into());
            },
            "/service_tier",
            json!("flex"),
        ),
    ];
    for (change, at, expected) in cases {
        let mut request = Request::new("hi");
        change(&mut request);
        let body = body(&request);
        assert_eq!(body.pointer(at).cloned().unwrap_or_default(), expected, "{at}");
        assert_ne!(body, plain, "{at}");
    }
}

#[test]
fn what_the_wire_lacks_is_refused_before_it_is_sent() {
    let mut request = Request::new("hi");
    request.settings.stop = vec!["END".into()];
    let error = Wire::Responses.write_body(&model(), &request, false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
}

#[test]
fn another_providers_history_is_converted() {
    let blocks = json!([
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": "toolu.1", "name": "look", "input": {"city": "Oslo"}},
    ]);
    let claude = ModelId::new("anthropic", "claude-x");
    let said = json!({"type": "message", "content": blocks}).to_string();
    let said = Wire::Messages.read_body(&claude, 200, &said).unwrap();
    let mut request = Request::new("hi");
    request.push_response(&said);
    let mut failed = ToolResult::text("toolu.1", "look", "it is dark");
    failed.is_error = true;
    request.turns.push(Turn::ToolResults(vec![failed]));
    let body = body(&request);
    let input = body["input"].as_array().unwrap();
    assert_eq!(input[1], json!({"type": "message", "role": "assistant", "content": "Looking."}));
    assert_eq!(input[2]["arguments"], "{\"city\":\"Oslo\"}");
    assert_eq!(input[2]["call_id"], input[3]["call_id"]);
    assert!(!input[2]["call_id"].as_str().unwrap().contains('.'));
    assert_eq!(input[3]["output"], "Error: it is dark");
    assert_eq!(input.len(), 4);
}

#[test]
fn thinking_that_the_provider_has_not_kept_is_left_out() {
    let output = json!([
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
    ]);
    let mut request = Request::new("hi");
    request.push_response(&answer(&output));
    let sent = body(&request);
    assert_eq!(sent["input"].as_array().unwrap().len(), 2);
    assert_eq!(sent["input"][1].get("id"), None);
    request.provider_options.insert("store".into(), true.into());
    let sent = body(&request);
    assert_eq!(sent["input"].as_array().unwrap()[1..], output.as_array().unwrap()[..]);
}

#[test]
fn results_look_as_their_calls_demand() {
    let output = json!([
        {"type": "custom_tool_call", "id": "c1", "call_id": "call_1", "name": "sql", "input": "select 1"},
        {"type": "function_call", "id": "f1", "call_id": "call_2", "name": "f", "arguments": "{}",
         "caller": {"type": "program", "caller_id": "p1"}},
    ]);
    let response = answer(&output);
    assert_eq!(response.stop, StopReason::ToolUse);
    let mut request = Request::new("hi");
    request.push_response(&response);
    request.turns.push(Turn::ToolResults(vec![
        ToolResult::text("call_1", "sql", "1"),
        ToolResult::text("call_2", "f", "2"),
    ]));
    let body = body(&request);
    assert_eq!(
        body["input"][3],
        json!({"type": "custom_tool_call_output", "call_id": "call_1", "output": "1"})
    );
    assert_eq!(body["input"][4]["caller"], json!({"type": "program", "caller_id": "p1"}));
}

fn fold(events: &[Value]) -> (Result<Response, ErrorKind>, VecDeque<ModelEvent>) {
    let mut fold = Wire::Responses.fold(&model());
    let mut delivered = VecDeque::new();
    for event in events {
        if let Err(error) = fold.feed(format!("data: {event}\n\n").as_bytes(), &mut delivered) {
            return (Err(error.kind), delivered);
        }
    }
    (fold.finish(&mut delivered).map_err(|error| error.kind), delivered)
}

#[test]
fn a_stream_that_says_nothing_twice_is_built_from_its_deltas() {
    let (response, _) = fold(&[
        json!({"type": "response.output_text.delta", "output_index": 0, "delta": "hel"}),
        json!({"type": "response.output_text.delta", "output_index": 0, "delta": "lo"}),
        json!({"type": "response.completed", "response": {"object": "response", "status": "completed", "output": []}}),
    ]);
    assert_eq!(response.unwrap().text(), "hello");
}

#[test]
fn errors_come_in_both_forms_and_a_cut_stream_is_one() {
    let flat = json!({"type": "error", "code": "rate_limit_exceeded", "message": "slow down"});
    assert_eq!(fold(&[flat]).0.unwrap_err(), ErrorKind::RateLimited { retry_after: None });
    let nested = json!({"type": "error", "error": {"type": "insufficient_quota", "message": "no"}});
    assert_eq!(fold(&[nested]).0.unwrap_err(), ErrorKind::Billing);
    let failed = json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "x"}}});
    assert_eq!(fold(&[failed]).0.unwrap_err(), ErrorKind::Overloaded);
    let cut = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "hel"});
    assert_eq!(fold(&[cut]).0.unwrap_err(), ErrorKind::Protocol);
}

#[test]
fn an_unfinished_answer_says_why() {
    let body = json!({"object": "response", "status": "incomplete", "output": [],
        "incomplete_details": {"reason": "max_output_tokens"}});
    let response = Wire::Responses.read_body(&model(), 200, &body.to_string()).unwrap();
    assert_eq!(response.stop, StopReason::MaxTokens);
    let usage = json!({"object": "response", "output": [], "usage": {"input_tokens": 10, "output_tokens": -5,
        "input_tokens_details": {"cached_tokens": 7}}});
    let response = Wire::Responses.read_body(&model(), 200, &usage.to_string()).unwrap();
    assert_eq!((response.usage.input, response.usage.cache_read, response.usage.output), (3, 7, 0));
}
