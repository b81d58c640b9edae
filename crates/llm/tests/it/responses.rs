//! Requests and unusual streams of the Responses wire.

use serde_json::{Value, json};
use toolpost_llm::{
    Effort, ErrorKind, HostedOutput, HostedTool, ItemView, Media, Model as _, ModelEvent, ModelId,
    OutputFormat, Part, PromptCaching, Provider, Request, Response, StopReason, Thinking, ToolChoice,
    ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support::{self, Case, check_bodies};

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
fn a_minimal_request_stores_nothing_at_the_provider() {
    let mut body = body(&Request::new("hi"));
    assert!(body.as_object_mut().unwrap().shift_remove("prompt_cache_key").is_some());
    assert_eq!(
        body,
        json!({
            "model": "model-of-tomorrow",
            "store": false,
            "include": ["reasoning.encrypted_content"],
            "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        })
    );
}

#[test]
fn instructions_need_input_and_stored_prompts_do_not() {
    let mut request = Request { system: Some("Write a haiku.".into()), ..Request::default() };
    let sent = body(&request);
    assert_eq!(sent["instructions"], "Write a haiku.");
    let empty = json!([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": ""}]}]);
    assert_eq!(sent["input"], empty);
    request.turns = vec![Turn::user(" ")];
    assert_eq!(body(&request)["input"], empty);
    let mut request = Request::default();
    request.provider_options.insert("prompt".into(), json!({"id": "pmpt_1"}));
    assert_eq!(body(&request).get("input"), None);
}

#[test]
fn uncounted_hosted_tools_are_counted_by_type() {
    let list = json!({"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []});
    let call = json!({"type": "mcp_call", "id": "c", "name": "f", "server_label": "s", "arguments": "{}"});
    let counted = answer(&json!([list, list, call])).usage.hosted;
    let expected = [("mcp_calls".to_owned(), 1), ("mcp_list_tools".to_owned(), 2)];
    assert_eq!(counted.into_iter().collect::<Vec<_>>(), expected);
}

/// The cache key of a prompt: one per conversation, from its first request on.
#[test]
fn a_conversation_keeps_its_cache_key() {
    let xai = ModelId::new("xai", "grok-x");
    let keys = |request: &Request| {
        let xai = Wire::XaiResponses.write_body(&xai, request, false).unwrap().to_value().unwrap();
        let openai = body(request);
        assert_eq!(openai["prompt_cache_key"], xai["prompt_cache_key"]);
        openai["prompt_cache_key"].clone()
    };
    let mut request = Request::new("hi");
    request.system = Some("é".repeat(5_000));
    let first = keys(&request);
    request.push_response(&answer(&json!([{"type": "message", "role": "assistant", "content": "hello"}])));
    request.turns.push(Turn::user("and now?"));
    assert_eq!(keys(&request), first);
    let others: [fn(&mut Request); 4] = [
        |r| r.system = None,
        |r| r.turns = vec![Turn::user("ho")],
        |r| r.turns = vec![Turn::User(vec![Part::Image(Media::from_url("image/png", "http://a/b.png"))])],
        |r| r.tools = vec![ToolDefinition::new("t", "T.", &json!({"type": "object"}))].into(),
    ];
    for change in others {
        let mut other = request.clone();
        change(&mut other);
        assert_ne!(keys(&other), first);
    }
    request.provider_options.insert("prompt_cache_key".into(), "mine".into());
    assert_eq!(keys(&request), "mine");
    request.provider_options.clear();
    request.settings.prompt_caching = PromptCaching::Off;
    assert_eq!(keys(&request), Value::Null);
}

fn x_search() -> HostedTool {
    HostedTool::XSearch {
        allowed_handles: vec!["xai".into()],
        blocked_handles: Vec::new(),
        from_date: Some("2026-11-01".parse().unwrap()),
        to_date: Some("2026-11-21".parse().unwrap()),
        images: true,
        videos: false,
    }
}

#[test]
fn only_xai_searches_posts_and_collections() {
    let xai = ModelId::new("xai", "grok-x");
    let mut request = Request::new("hi");
    request.hosted_tools = vec![
        x_search(),
        HostedTool::XSearch {
            allowed_handles: Vec::new(),
            blocked_handles: vec!["spam".into()],
            from_date: None,
            to_date: None,
            images: false,
            videos: true,
        },
        HostedTool::FileSearch { stores: vec!["collection_1".into()], max_results: Some(5) },
    ];
    let body = Wire::XaiResponses.write_body(&xai, &request, false).unwrap().to_value().unwrap();
    assert_eq!(
        body["tools"],
        json!([
            {"type": "x_search", "allowed_x_handles": ["xai"], "from_date": "2026-11-01", "to_date": "2026-11-21",
             "enable_image_understanding": true},
            {"type": "x_search", "excluded_x_handles": ["spam"], "enable_video_understanding": true},
            {"type": "file_search", "vector_store_ids": ["collection_1"], "max_num_results": 5},
        ])
    );
    let saved: Request = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
    assert_eq!(saved, request);
    request.hosted_tools = vec![x_search()];
    for wire in Wire::ALL.iter().filter(|wire| **wire != Wire::XaiResponses) {
        let model = ModelId::new("some", "claude-sonnet-5-5");
        let error = wire.write_body(&model, &request, false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported, "{wire:?}");
        assert!(error.message.contains("`x_search`"), "{error}");
    }
}

#[test]
fn an_invalid_x_search_is_rejected() {
    let xai = ModelId::new("xai", "grok-x");
    let handles = |count: usize| (0..count).map(|number| format!("a{number}")).collect::<Vec<_>>();
    let search = |allowed: usize, blocked: usize, from: &str, to: &str| HostedTool::XSearch {
        allowed_handles: handles(allowed),
        blocked_handles: handles(blocked),
        from_date: Some(from.parse().unwrap()),
        to_date: Some(to.parse().unwrap()),
        images: false,
        videos: false,
    };
    for (tool, says) in [
        (search(1, 1, "2026-01-01", "2026-01-01"), "not both"),
        (search(11, 0, "2026-01-01", "2026-01-01"), "at most 10 handles, found 11"),
        (search(0, 11, "2026-01-01", "2026-01-01"), "at most 10 handles, found 11"),
        (search(10, 0, "2026-01-02", "2026-01-01"), "2026-01-02 is after `to_date` 2026-01-01"),
    ] {
        let mut request = Request::new("hi");
        request.hosted_tools = vec![tool];
        let error = Wire::XaiResponses.write_body(&xai, &request, false).unwrap_err();
        assert!(error.message.contains(says), "{error}");
    }
}

#[test]
fn xai_searches_have_their_results() {
    let output = json!([
        {"type": "x_search_call", "id": "x1", "call_id": "", "name": "x_semantic_search", "status": "completed",
         "arguments": "{\"query\":\"rust\"}"},
        {"type": "file_search_call", "id": "f1", "queries": ["rust"], "status": "completed",
         "results": [{"file_id": "file_1", "filename": "a.md", "text": "Rust is a language.", "score": 0.9}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Found.",
         "annotations": [{"type": "url_citation", "url": "https://x.com/i/status/1"}]}]},
    ]);
    let xai = ModelId::new("xai", "grok-x");
    let text = json!({"object": "response", "status": "completed", "output": output}).to_string();
    let response = Wire::XaiResponses.read_body(&xai, 200, &text).unwrap();
    let ItemView::ServerToolCall { id, name, input, output: None } = response.items[0].view() else {
        panic!("{:?}", response.items[0])
    };
    assert_eq!((id.as_str(), name.as_str()), ("x1", "x_semantic_search"));
    assert_eq!(input.as_ref().unwrap().get(), r#"{"query":"rust"}"#);
    let ItemView::ServerToolCall { name, output: Some(found), .. } = response.items[1].view() else {
        panic!("{:?}", response.items[1])
    };
    assert_eq!((name.as_str(), found.text.as_str()), ("file_search", "Rust is a language."));
    assert_eq!(found.sources[0].title.as_deref(), Some("a.md"));
    let ItemView::Text { citations, .. } = response.items[2].view() else { panic!("no text") };
    assert_eq!(citations[0].url.as_deref(), Some("https://x.com/i/status/1"));
    assert_eq!(response.usage.hosted.get("x_search_calls"), Some(&1));
}

#[test]
fn every_setting_reaches_the_body() {
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
    check_bodies(body, &cases);
}

#[test]
fn unsupported_requests_are_rejected_before_sending() {
    let mut request = Request::new("hi");
    let (allowed_domains, blocked_domains) = (Vec::new(), Vec::new());
    request.hosted_tools = vec![HostedTool::WebFetch { max_uses: None, allowed_domains, blocked_domains }];
    let error = Wire::Responses.write_body(&model(), &request, false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
}

#[test]
fn models_without_reasoning_get_sampling_settings() {
    let mut request = Request::new("hi");
    (request.settings.temperature, request.settings.top_p) = (Some(0.5), Some(0.25));
    let sent = |wire: Wire, provider: &str, name: &str, request: &Request| {
        let body =
            wire.write_body(&ModelId::new(provider, name), request, false).unwrap().to_value().unwrap();
        (body.get("temperature").cloned(), body.get("top_p").cloned())
    };
    let both = (Some(json!(0.5)), Some(json!(0.25)));
    assert_eq!(sent(Wire::Responses, "openai", "gpt-4.1", &request), both);
    assert_eq!(sent(Wire::XaiResponses, "xai", "grok-x", &request), both);
    assert_eq!(sent(Wire::Responses, "openai", "gpt-5.6-sol", &request), (None, None));
    request.settings.thinking = Some(Thinking::Off);
    assert_eq!(sent(Wire::Responses, "openai", "gpt-5.6-sol", &request), both);
}

#[tokio::test]
async fn settings_the_wire_lacks_are_dropped_with_a_notice() {
    let answer = json!({"object": "response", "status": "completed", "output": [],
        "usage": {"input_tokens": 1, "output_tokens": 1}});
    for provider in ["openai", "xai"] {
        let server = LoopbackProvider::start(vec![Reply::json(200, answer.to_string())]).unwrap();
        let found = Provider::find(provider).unwrap();
        let model = support::hosted(found, "some-model", server.base_url(), "key", support::options(0));
        let mut request = Request::new("hi");
        request.settings.stop = vec!["END".into()];
        request.settings.seed = Some(7);
        request.settings.top_k = Some(3);
        let notices = model.respond(&request).await.unwrap().notices;
        for name in ["stop", "seed", "top_k"] {
            let has_notice =
                notices.iter().any(|notice| notice.starts_with(&format!("`{name}` was not sent")));
            assert!(has_notice, "{provider} {name}: {notices:?}");
        }
        let body = server.requests()[0].json();
        assert_eq!((body.get("stop"), body.get("seed"), body.get("top_k")), (None, None, None), "{body}");
    }
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
fn thinking_that_the_provider_did_not_store_is_dropped() {
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
fn results_have_the_form_of_their_calls() {
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

#[test]
fn tool_searches_and_programs_are_sent_back_unchanged() {
    let tools =
        json!([{"type": "function", "name": "weather"}, {"type": "namespace", "name": "crm", "tools": []}]);
    let raw = [
        json!({"type": "tool_search_call", "id": "tsc", "call_id": null, "execution": "server", "status": "completed", "arguments": {"paths": ["weather"]}}),
        json!({"type": "tool_search_output", "id": "tso", "call_id": null, "execution": "server", "status": "completed", "tools": tools}),
        json!({"type": "program", "id": "cm", "call_id": "c1", "code": "text(1)", "fingerprint": "f"}),
        json!({"type": "program_output", "id": "cmo", "call_id": "c1", "status": "incomplete", "result": "1"}),
        json!({"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": tools, "error": "slow"}),
        json!({"type": "tool_search_call", "id": "tsc", "call_id": "c2", "execution": "client", "status": "completed", "arguments": {"goal": "x"}}),
        json!({"type": "program", "id": "cm"}),
    ];
    let call = |id: &str, name: &str, input: Value, output: Option<HostedOutput>| ItemView::ServerToolCall {
        id: id.to_owned(),
        name: name.to_owned(),
        input: Some((&input).into()),
        output: output.map(Box::new),
    };
    let result = |id: &str, kind: &str, output: HostedOutput| ItemView::ServerToolResult {
        call_id: id.to_owned(),
        kind: kind.to_owned(),
        output: Box::new(output),
    };
    let other = |kind: &str| ItemView::Other { kind: kind.to_owned() };
    let said = |text: &str| HostedOutput { text: text.to_owned(), ..HostedOutput::default() };
    let failed = HostedOutput { is_error: true, stderr: "slow".to_owned(), ..said("weather\ncrm") };
    let expected = [
        call("tsc", "tool_search", json!({"paths": ["weather"]}), None),
        result("", "tool_search_output", said("weather\ncrm")),
        call("c1", "program", json!({"code": "text(1)"}), None),
        result("c1", "program_output", HostedOutput { is_error: true, ..said("1") }),
        call("m", "mcp_list_tools", json!({"server_label": "s"}), Some(failed)),
        // A search by the caller, and an incomplete one.
        other("tool_search_call"),
        other("program"),
    ];
    let response = answer(&json!(raw));
    assert_eq!(response.items.iter().map(|item| item.view().clone()).collect::<Vec<_>>(), expected);
    let mut next = Request::new("x");
    next.push_response(&response);
    assert_eq!(body(&next)["input"].as_array().unwrap()[1..], raw);
}

fn fold(events: &[Value]) -> (Result<Response, ErrorKind>, Vec<ModelEvent>) {
    let (response, delivered) = support::fold(Wire::Responses, &model(), events);
    (response.map_err(|error| error.kind), delivered)
}

#[test]
fn a_stream_without_repeats_is_built_from_its_deltas() {
    let (response, _) = fold(&[
        json!({"type": "response.output_text.delta", "output_index": 0, "delta": "hel"}),
        json!({"type": "response.output_text.delta", "output_index": 0, "delta": "lo"}),
        json!({"type": "response.completed", "response": {"object": "response", "status": "completed", "output": []}}),
    ]);
    assert_eq!(response.unwrap().text(), "hello");
}

#[test]
fn errors_are_the_same_streamed_or_not() {
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
fn an_unfinished_answer_has_its_reason() {
    let body = json!({"object": "response", "status": "incomplete", "output": [],
        "incomplete_details": {"reason": "max_output_tokens"}});
    let response = Wire::Responses.read_body(&model(), 200, &body.to_string()).unwrap();
    assert_eq!(response.stop, StopReason::MaxTokens);
}
