//! Unusual answers of each wire, streamed or not, from a loopback server.

use serde_json::{Value, json};
use toolpost_llm::{
    ErrorKind, HostedModel, ItemView, Model as _, ModelError, ModelEvent, PROVIDERS, Provider, Request,
    Response, StopReason, Wire,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support;

fn model(provider: &'static Provider, server: &LoopbackProvider, retries: u32) -> HostedModel {
    support::hosted(provider, "some-model", server.base_url(), "canary", support::options(retries))
}

async fn whole(provider: &'static Provider, body: &Value) -> Result<Response, ModelError> {
    let server = LoopbackProvider::start(vec![Reply::json(200, body.to_string())]).unwrap();
    model(provider, &server, 0).respond(&Request::new("hi")).await
}

/// The events before the end, and the end.
async fn streamed(
    provider: &'static Provider,
    replies: Vec<Reply>,
    retries: u32,
) -> (Vec<ModelEvent>, Result<Response, ModelError>) {
    let server = LoopbackProvider::start(replies).unwrap();
    support::streamed(&model(provider, &server, retries), &Request::new("hi")).await
}

fn events(events: &[Value]) -> Reply {
    Reply::events(support::sse(events))
}

/// An answer with a call in the format of a wire: as a body, and as the events of a stream, of which the first starts
/// the answer. `arguments` is the text of the call's arguments, `tokens` what the provider counts.
fn call(wire: Wire, arguments: &str, tokens: i64) -> (Value, Vec<Value>) {
    // Wires with JSON arguments send a text as a string.
    let input: Value = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
    match wire {
        Wire::Messages => {
            let usage = json!({"input_tokens": tokens, "output_tokens": tokens});
            let message = |content: Value, stop: Value| {
                json!({"type": "message", "id": "m", "role": "assistant", "model": "some-model", "content": content,
                       "stop_reason": stop, "usage": usage})
            };
            let block =
                |input: Value| json!({"type": "tool_use", "id": "c1", "name": "look", "input": input});
            let events = vec![
                json!({"type": "message_start", "message": message(json!([]), Value::Null)}),
                json!({"type": "content_block_start", "index": 0, "content_block": block(json!({}))}),
                json!({"type": "content_block_delta", "index": 0,
                       "delta": {"type": "input_json_delta", "partial_json": arguments}}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": usage}),
                json!({"type": "message_stop"}),
            ];
            (message(json!([block(input)]), "tool_use".into()), events)
        }
        Wire::GenerateContent => {
            let usage = json!({"promptTokenCount": tokens, "candidatesTokenCount": tokens, "totalTokenCount": tokens});
            let answer = |parts: Value| {
                json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}],
                       "usageMetadata": usage, "modelVersion": "some-model", "responseId": "r"})
            };
            let mut last = answer(json!([{"functionCall": {"id": "c1", "name": "look", "args": input}}]));
            last["candidates"][0]["finishReason"] = "STOP".into();
            (last.clone(), vec![answer(json!([])), last])
        }
        Wire::Responses | Wire::XaiResponses => {
            let response = |status: &str, output: Value| {
                json!({"object": "response", "id": "r", "model": "some-model", "status": status, "output": output,
                       "usage": {"input_tokens": tokens, "output_tokens": tokens, "total_tokens": tokens}})
            };
            let item = |arguments: &str| json!({"type": "function_call", "id": "f1", "call_id": "c1", "name": "look", "arguments": arguments});
            let whole = response("completed", json!([item(arguments)]));
            let events = vec![
                json!({"type": "response.created", "response": response("in_progress", json!([]))}),
                json!({"type": "response.output_item.added", "output_index": 0, "item": item("")}),
                json!({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": arguments}),
                json!({"type": "response.output_item.done", "output_index": 0, "item": item(arguments)}),
                json!({"type": "response.completed", "response": whole}),
            ];
            (whole, events)
        }
        Wire::ChatCompletions => {
            let usage = json!({"prompt_tokens": tokens, "completion_tokens": tokens, "total_tokens": tokens});
            let call =
                json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}});
            let body = json!({"id": "r", "object": "chat.completion", "model": "some-model", "usage": usage,
                "choices": [{"index": 0, "finish_reason": "tool_calls",
                             "message": {"role": "assistant", "content": null, "tool_calls": [call]}}]});
            let chunk = |delta: Value, reason: Value| {
                json!({"id": "r", "object": "chat.completion.chunk", "model": "some-model", "usage": usage,
                       "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
            };
            let mut indexed = call.clone();
            indexed["index"] = 0.into();
            let events = vec![
                chunk(json!({"role": "assistant", "content": null}), Value::Null),
                chunk(json!({"tool_calls": [indexed]}), Value::Null),
                chunk(json!({}), "tool_calls".into()),
            ];
            (body, events)
        }
        other => panic!("a wire without a test: {other:?}"),
    }
}

/// The equal answers, streamed or not.
async fn both(provider: &'static Provider, arguments: &str, tokens: i64) -> Response {
    let (body, said) = call(provider.wire, arguments, tokens);
    let whole = whole(provider, &body).await.unwrap();
    let streamed = streamed(provider, vec![events(&said)], 0).await.1.unwrap();
    assert_eq!(
        (&streamed.stop, &streamed.usage.output),
        (&whole.stop, &whole.usage.output),
        "{}",
        provider.name
    );
    for response in [&whole, &streamed] {
        let ItemView::ToolCall { id, name, .. } = response.items[0].view() else {
            panic!("{}: {:?}", provider.name, response.items)
        };
        assert_eq!(
            (id.as_str(), name.as_str(), response.items.len()),
            ("c1", "look", 1),
            "{}",
            provider.name
        );
        assert_eq!(response.stop, StopReason::ToolUse, "{}", provider.name);
    }
    streamed
}

#[tokio::test]
async fn invalid_arguments_are_passed_to_the_caller() {
    for provider in PROVIDERS {
        let fine = both(provider, r#"{"a":1}"#, 7).await;
        let ItemView::ToolCall { arguments, .. } = fine.items[0].view() else { panic!("{fine:?}") };
        assert_eq!(arguments.as_ref().unwrap().get(), r#"{"a":1}"#, "{}", provider.name);
        for broken in [r#"{"a":"#, "oops", "[1", "\u{0}"] {
            let response = both(provider, broken, 7).await;
            let ItemView::ToolCall { arguments, .. } = response.items[0].view() else {
                panic!("{response:?}")
            };
            let is_object = arguments.as_ref().is_ok_and(|raw| raw.get().starts_with('{'));
            assert!(!is_object, "{}: {broken}: {arguments:?}", provider.name);
            // The next request contains the arguments unchanged.
            let mut request = Request::new("hi");
            request.push_response(&response);
            provider.wire.write_body(&response.origin, &request, false).unwrap();
        }
    }
}

#[tokio::test]
async fn negative_counts_do_not_underflow() {
    for provider in PROVIDERS {
        for tokens in [-5, i64::MIN] {
            let response = both(provider, "{}", tokens).await;
            assert_eq!((response.usage.input, response.usage.output), (0, 0), "{}", provider.name);
        }
        let most = both(provider, "{}", i64::MAX).await;
        assert_eq!(most.usage.output, i64::MAX as u64, "{}", provider.name);
    }
}

#[tokio::test]
async fn a_repeated_start_does_not_repeat_the_answer() {
    for provider in PROVIDERS {
        let (_, said) = call(provider.wire, r#"{"a":1}"#, 7);
        let once = streamed(provider, vec![events(&said)], 0).await.1.unwrap();
        let start = said[..1].to_vec();
        let doubled = [start.clone(), said.clone()].concat();
        let twice = streamed(provider, vec![events(&doubled)], 0).await.1.unwrap();
        assert_eq!(twice, once, "{}", provider.name);
    }
}

#[tokio::test]
async fn a_truncated_stream_is_an_error_on_every_wire() {
    for provider in PROVIDERS {
        let (_, said) = call(provider.wire, r#"{"a":1}"#, 7);
        for end in 0..said.len() - 1 {
            let (_, result) = streamed(provider, vec![events(&said[..end])], 0).await;
            assert_eq!(result.unwrap_err().kind, ErrorKind::Protocol, "{} {end}", provider.name);
        }
    }
}

#[tokio::test]
async fn a_gateway_gets_no_provider_extensions() {
    for provider in responses() {
        let (body, _) = call(provider.wire, "{}", 7);
        let server = LoopbackProvider::start(vec![Reply::json(200, body.to_string())]).unwrap();
        model(provider, &server, 0).respond(&Request::new("hi")).await.unwrap();
        assert_eq!(server.requests()[0].json().get("prompt_cache_key"), None, "{}", provider.name);
    }
}

/// Both dialects of the Responses wire.
fn responses() -> impl Iterator<Item = &'static Provider> {
    PROVIDERS.iter().filter(|provider| matches!(provider.wire, Wire::Responses | Wire::XaiResponses))
}

fn delta() -> Value {
    json!({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hel"})
}

fn ended(status: &str, more: &Value) -> Value {
    let mut response =
        json!({"object": "response", "id": "r", "model": "some-model", "status": status, "output": []});
    for (name, value) in more.as_object().unwrap() {
        response[name] = value.clone();
    }
    response
}

#[tokio::test]
async fn a_failed_response_is_an_error_streamed_or_not() {
    for (code, kind) in [
        ("server_error", ErrorKind::Overloaded),
        ("rate_limit_exceeded", ErrorKind::RateLimited { retry_after: None }),
        ("insufficient_quota", ErrorKind::Billing),
        ("context_length_exceeded", ErrorKind::ContextTooLong),
        ("invalid_prompt", ErrorKind::Refused),
        ("never_heard_of", ErrorKind::Protocol),
    ] {
        let failed = ended("failed", &json!({"error": {"code": code, "message": "it broke"}}));
        let event = json!({"type": "response.failed", "response": failed});
        for provider in responses() {
            let place = format!("{} {code}", provider.name);
            let body = whole(provider, &failed).await.unwrap_err();
            let (_, stream) = streamed(provider, vec![events(std::slice::from_ref(&event))], 0).await;
            for error in [body, stream.unwrap_err()] {
                assert_eq!((&error.kind, error.message.as_str()), (&kind, "it broke"), "{place}");
                assert_eq!(error.details.provider_code.as_deref(), Some(code), "{place}");
                assert_eq!(error.details.attempts.len(), 1, "{place}");
            }
        }
    }
}

#[tokio::test]
async fn an_error_in_the_stream_is_retried_only_before_the_first_delta() {
    let flat = json!({"type": "error", "code": "server_error", "message": "busy", "sequence_number": 1});
    let nested = json!({"type": "error", "error": {"type": "server_error", "code": null, "message": "busy"}});
    let failed = json!({"type": "response.failed",
        "response": ended("failed", &json!({"error": {"code": "server_error", "message": "busy"}}))});
    for provider in responses() {
        for error in [&flat, &nested, &failed] {
            let (_, fine) = call(provider.wire, r#"{"a":1}"#, 7);
            let replies = vec![events(&[fine[0].clone(), error.clone()]), events(&fine)];
            let (delivered, result) = streamed(provider, replies.clone(), 1).await;
            assert!(matches!(delivered[0], ModelEvent::Retrying { attempt: 1, .. }), "{delivered:?}");
            assert_eq!(result.unwrap().stop, StopReason::ToolUse, "{}", provider.name);
            let replies = vec![events(&[fine[0].clone(), delta(), error.clone()]), events(&fine)];
            let (delivered, result) = streamed(provider, replies, 1).await;
            assert!(matches!(delivered.last(), Some(ModelEvent::TextDelta { .. })), "{delivered:?}");
            let error = result.unwrap_err();
            assert_eq!(
                (&error.kind, error.message.as_str()),
                (&ErrorKind::Overloaded, "busy"),
                "{}",
                provider.name
            );
            assert_eq!(error.details.attempts.len(), 1);
        }
    }
}

#[tokio::test]
async fn an_incomplete_answer_has_its_reason() {
    for (status, more, stop) in [
        ("incomplete", json!({"incomplete_details": {"reason": "max_output_tokens"}}), StopReason::MaxTokens),
        ("incomplete", json!({"incomplete_details": {"reason": "content_filter"}}), StopReason::Refusal),
        ("incomplete", json!({"incomplete_details": null}), StopReason::Other(String::new())),
        ("cancelled", json!({}), StopReason::Other("cancelled".into())),
    ] {
        let response = ended(status, &more);
        let event = json!({"type": format!("response.{status}"), "response": response});
        for provider in responses() {
            let body = whole(provider, &response).await.unwrap();
            assert_eq!(body.stop, stop, "{} {status}", provider.name);
            let (delivered, streamed) = streamed(provider, vec![events(&[delta(), event.clone()])], 0).await;
            let streamed = streamed.unwrap();
            assert_eq!(
                (&streamed.stop, streamed.text().as_str()),
                (&stop, "hel"),
                "{} {status}",
                provider.name
            );
            assert!(delivered.iter().any(|event| matches!(event, ModelEvent::TextDelta { .. })));
        }
    }
}
