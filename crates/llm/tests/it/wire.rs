//! Requests, unusual and hostile streams of the Anthropic wire.

use std::collections::VecDeque;

use serde_json::{Value, json};
use toolpost_llm::{
    AssistantTurn, CacheLifetime, Effort, ErrorKind, Item, ItemView, Media, Model as _, ModelId,
    OutputFormat, Part, PromptCaching, RawJson, Request, Response, ScriptModel, StopReason, Thinking,
    ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};

use crate::recorded::fold;
use crate::support::{Case, check_bodies};

fn body(request: &Request) -> Value {
    Wire::Messages
        .write_body(&ModelId::new("anthropic", "claude-x"), request, false)
        .unwrap()
        .to_value()
        .unwrap()
}

fn items(content: &str) -> Vec<Item> {
    let body = format!(r#"{{"type":"message","content":{content}}}"#);
    Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, &body).unwrap().items
}

fn said(content: &str) -> Turn {
    Turn::Assistant(AssistantTurn::new(ModelId::new("anthropic", "claude-x"), items(content)))
}

#[test]
fn a_minimal_request_has_required_members_only() {
    assert_eq!(
        body(&Request::new("hi")),
        json!({
            "model": "claude-x",
            "max_tokens": 4096,
            "cache_control": {"type": "ephemeral"},
            "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        })
    );
}

#[test]
fn every_setting_reaches_the_body() {
    let cases: [Case; 20] = [
        (|r| r.system = Some("be kind".into()), "/system", json!("be kind")),
        (|r| r.settings.max_output_tokens = Some(9), "/max_tokens", json!(9)),
        (|r| r.settings.temperature = Some(0.5), "/temperature", json!(0.5)),
        (|r| r.settings.top_p = Some(0.25), "/top_p", json!(0.25)),
        (|r| r.settings.top_k = Some(4), "/top_k", json!(4)),
        (|r| r.settings.stop = vec!["END".into()], "/stop_sequences", json!(["END"])),
        (|r| r.settings.thinking = Some(Thinking::Off), "/thinking", json!({"type": "disabled"})),
        (|r| r.settings.thinking = Some(Thinking::Adaptive), "/thinking", json!({"type": "adaptive"})),
        (|r| r.settings.thinking = Some(Thinking::Budget(2_000)), "/thinking/budget_tokens", json!(2_000)),
        (|r| r.settings.thinking = Some(Thinking::Budget(2_000)), "/max_tokens", json!(6_096)),
        (|r| r.settings.effort = Some(Effort::Xhigh), "/output_config/effort", json!("xhigh")),
        (|r| r.settings.effort = Some(Effort::Minimal), "/output_config/effort", json!("low")),
        (
            |r| {
                let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
                r.settings.output = Some(OutputFormat::schema(&schema));
            },
            "/output_config/format",
            json!({"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "string"}},
                "additionalProperties": false}}),
        ),
        (|r| r.settings.prompt_caching = PromptCaching::Off, "/cache_control", Value::Null),
        (
            |r| r.settings.prompt_caching = PromptCaching::AutomaticFor(CacheLifetime::OneHour),
            "/cache_control",
            json!({"type": "ephemeral", "ttl": "1h"}),
        ),
        (|r| r.tool_choice = Some(ToolChoice::Any), "/tool_choice", json!({"type": "any"})),
        (
            |r| r.tool_choice = Some(ToolChoice::Tool("t".into())),
            "/tool_choice",
            json!({"type": "tool", "name": "t"}),
        ),
        (
            |r| {
                r.tools = vec![ToolDefinition::new("t", "T.", &json!({}))].into();
                r.settings.parallel_tool_calls = Some(false);
            },
            "/tool_choice",
            json!({"type": "auto", "disable_parallel_tool_use": true}),
        ),
        (
            |r| {
                r.metadata.insert("user_id".into(), "u1".into());
            },
            "/metadata/user_id",
            json!("u1"),
        ),
        (
            |r| {
                r.provider_options.insert("service_tier".into(), "auto".into());
            },
            "/service_tier",
            json!("auto"),
        ),
    ];
    check_bodies(body, &cases);
}

#[test]
fn provider_options_are_merged() {
    let mut request = Request::new("hi");
    request.settings.thinking = Some(Thinking::Adaptive);
    request.tools = vec![ToolDefinition::new("t", "T.", &json!({"type": "object"}))].into();
    request.provider_options = json!({
        "thinking": {"display": "omitted"},
        "tools": [{"type": "web_search_20260209", "name": "web_search"}],
        "max_tokens": 7,
        "container": "c1",
    })
    .as_object()
    .unwrap()
    .clone();
    let body = body(&request);
    assert_eq!(body["thinking"], json!({"type": "adaptive", "display": "omitted"}));
    assert_eq!(body["tools"][0]["name"], "t");
    assert_eq!(body["tools"][1]["name"], "web_search");
    assert_eq!((&body["max_tokens"], &body["container"]), (&json!(7), &json!("c1")));
}

#[test]
fn breakpoints_follow_tools_instructions_and_the_last_turn() {
    let mut request = Request::new("hi");
    request.system = Some("be kind".into());
    request.tools =
        vec![ToolDefinition::new("a", "A.", &json!({})), ToolDefinition::new("b", "B.", &json!({}))].into();
    request.turns.push(said(r#"[{"type":"text","text":"hello"}]"#));
    request.turns.push(Turn::User(vec![Part::text("one"), Part::text("two")]));
    request.settings.prompt_caching = PromptCaching::Breakpoints(CacheLifetime::FiveMinutes);
    let body = body(&request);
    let mark = json!({"type": "ephemeral", "ttl": "5m"});
    assert_eq!(body["system"][0]["cache_control"], mark);
    assert_eq!(body["tools"][1]["cache_control"], mark);
    assert_eq!(body["messages"][2]["content"][1]["cache_control"], mark);
    assert_eq!(body.to_string().matches("cache_control").count(), 3);
}

#[test]
fn an_answer_is_sent_back_byte_for_byte() {
    let block = r#"{"type":"tool_use","id":"t1","name":"t","input":{"z":1.0,"a":1e2,"n":123456789012345678901234567890},"new":[null]}"#;
    let unknown = r#"{"type":"hologram","z":0.10,"a":{}}"#;
    let mut request = Request::new("hi");
    request.turns.push(said(&format!("[{block}, {unknown}]")));
    let written = Wire::Messages.write_body(&ModelId::new("anthropic", "claude-x"), &request, true).unwrap();
    assert!(written.get().contains(&format!("[{block},{unknown}]")), "{written}");
}

#[test]
fn adjacent_parts_of_one_role_are_one_message() {
    let mut request = Request::new("hi");
    request
        .turns
        .push(said(r#"[{"type":"text","text":""},{"type":"tool_use","id":"t1","name":"t","input":{}}]"#));
    let mut result = ToolResult::text("t1", "t", "no");
    result.is_error = true;
    request.turns.push(Turn::ToolResults(vec![result]));
    request.turns.push(Turn::User(vec![Part::text(" "), Part::text("continue")]));
    request.turns.push(said(r#"[{"type":"text","text":"\n"}]"#));
    request.turns.push(Turn::System(vec![Part::text("be short")]));
    let body = body(&request);
    assert_eq!(
        body["messages"].as_array().unwrap()[1..],
        [
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "t", "input": {}}]}),
            json!({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "no"}], "is_error": true},
                {"type": "text", "text": "continue"},
            ]}),
            json!({"role": "system", "content": [{"type": "text", "text": "be short"}]}),
        ]
    );
}

#[test]
fn media_become_blocks() {
    let request = Request {
        turns: vec![Turn::User(vec![
            Part::Image(Media::from_bytes("image/png", b"\x89PNG")),
            Part::Document(Media::from_url("application/pdf", "https://example.com/a.pdf")),
            Part::Document(Media {
                title: Some("B".into()),
                ..Media::from_file_id("application/pdf", "file_1")
            }),
            Part::ContainerFile { file_id: "file_2".into() },
            Part::Raw(RawJson::parse(r#"{"type":"search_result","n":1.0}"#).unwrap()),
        ])],
        ..Request::default()
    };
    assert_eq!(
        body(&request)["messages"][0]["content"],
        json!([
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
            {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}},
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}, "title": "B"},
            {"type": "container_upload", "file_id": "file_2"},
            {"type": "search_result", "n": 1.0},
        ])
    );
}

#[tokio::test]
async fn answers_of_other_providers_are_converted() {
    let model =
        ScriptModel::parse("x", "turns:\n  - text: hello\n    calls: [{tool: t, args: {n: 1.0}}]\n").unwrap();
    let mut turn = model.respond(&Request::new("hi")).await.unwrap().to_turn();
    turn.origin = ModelId::new("other", "model/1");
    let thinking = items(r#"[{"type":"thinking","thinking":"hm","signature":"s"}]"#);
    turn.items.splice(0..0, thinking);
    let mut request = Request::new("hi");
    request.turns.push(Turn::Assistant(turn));
    request.turns.push(Turn::ToolResults(vec![ToolResult::text("call.1/1", "t", "done")]));
    let body = body(&request);
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            {"type": "text", "text": "hello"},
            {"type": "tool_use", "id": "call_1_1", "name": "t", "input": {"n": 1.0}},
        ])
    );
    assert_eq!(body["messages"][2]["content"][0]["tool_use_id"], "call_1_1");
}

/// A stream of one message with these events between its start and its end.
fn stream(events: &[Value], stop: &str) -> String {
    let start = json!({"type": "message_start", "message": {"type": "message", "id": "m", "role": "assistant",
        "model": "claude-x", "content": [], "stop_reason": null, "usage": {"input_tokens": 1, "output_tokens": 1}}});
    let end = json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 2}});
    let all = [&[start], events, &[end, json!({"type": "message_stop"})]].concat();
    all.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat()
}

fn call(fragments: &[&str]) -> Vec<Value> {
    let mut events = vec![json!({"type": "content_block_start", "index": 0,
        "content_block": {"type": "tool_use", "id": "t1", "name": "t", "input": {}}})];
    events.extend(fragments.iter().map(|fragment| {
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "input_json_delta", "partial_json": fragment}})
    }));
    events.push(json!({"type": "content_block_stop", "index": 0}));
    events
}

fn folded(events: &[Value], stop: &str) -> Response {
    fold([stream(events, stop).as_bytes()]).unwrap().0
}

#[test]
fn streamed_arguments_keep_every_digit() {
    let response =
        folded(&call(&["{\"a\": 1", ".0, \"b\": 12345678901234", "5678901234567890}"]), "tool_use");
    let ItemView::ToolCall { arguments: Ok(arguments), .. } = response.items[0].view() else { panic!() };
    assert_eq!(arguments.get(), "{\"a\": 1.0, \"b\": 123456789012345678901234567890}");
}

#[test]
fn arguments_that_are_not_an_object_keep_their_text() {
    for text in ["{\"path\": \"a.tx", "[1, 2]", "7", "{} {}", "\"x\""] {
        let response = folded(&call(&[text]), "max_tokens");
        assert_eq!(response.stop, StopReason::MaxTokens);
        let ItemView::ToolCall { arguments, .. } = response.items[0].view() else { panic!() };
        assert_eq!(*arguments, Err(text.to_owned()));
        let mut request = Request::new("hi");
        request.turns.push(Turn::Assistant(response.to_turn()));
        assert_eq!(body(&request)["messages"][1]["content"][0]["input"], json!({"INVALID_JSON": text}));
        let saved: Response = serde_json::from_str(&serde_json::to_string(&response).unwrap()).unwrap();
        assert_eq!(saved, response);
    }
    let empty = folded(&call(&["", ""]), "tool_use");
    let ItemView::ToolCall { arguments: Ok(arguments), .. } = empty.items[0].view() else { panic!() };
    assert_eq!(arguments.get(), "{}");
}

fn text_start(index: u64) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": "<"}})
}

fn text_delta(index: u64, text: &str) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}})
}

#[test]
fn blocks_may_interleave_and_stay_open() {
    let events = [text_start(0), text_start(1), text_delta(1, "b"), text_delta(0, "a"), text_delta(1, "c")];
    assert_eq!(folded(&events, "end_turn").text(), "<a<bc");
}

#[test]
fn blocks_may_share_an_index() {
    let stop = json!({"type": "content_block_stop", "index": 0});
    let events = [
        text_start(0),
        text_delta(0, "a"),
        stop,
        text_start(0),
        text_delta(0, "b"),
        text_start(0),
        text_delta(0, "c"),
    ];
    assert_eq!(folded(&events, "end_turn").text(), "<a<b<c");
}

#[test]
fn a_message_may_start_with_its_content() {
    let call = json!({"type": "tool_use", "id": "t1", "name": "roll", "input": {"n": 1},
        "caller": {"type": "code_execution_20250825", "tool_id": "s1"}});
    let start = json!({"type": "message_start", "message": {"type": "message", "id": "m", "role": "assistant",
        "model": "claude-x", "content": [call], "stop_reason": "tool_use", "usage": {"input_tokens": 0}}});
    let text = format!("data: {start}\n\ndata: {}\n\n", json!({"type": "message_stop"}));
    let (response, events) = fold([text.as_bytes()]).unwrap();
    assert_eq!(response.stop, StopReason::ToolUse);
    assert_eq!(response.items[0].raw().to_value().unwrap(), call);
    assert_eq!(events.len(), 3, "{events:?}");
}

#[test]
fn pauses_containers_and_compactions_are_decoded() {
    let compaction = [
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "compaction", "content": null}}),
        json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "compaction_delta", "content": "the short of it", "encrypted_content": "x"}}),
        json!({"type": "content_block_stop", "index": 0}),
    ];
    let response = folded(&compaction, "pause_turn");
    assert_eq!(response.stop, StopReason::Pause);
    assert_eq!(
        response.items[0].raw().to_value().unwrap(),
        json!({"type": "compaction", "content": "the short of it", "encrypted_content": "x"})
    );
    let container = json!({"type": "message_delta", "delta": {"container": {"id": "c1", "expires_at": "later", "skills": null}}});
    let response = folded(&[container], "end_turn");
    assert_eq!(
        response.provider_state,
        *json!({"container": {"id": "c1", "expires_at": "later"}}).as_object().unwrap()
    );
}

#[test]
fn hostile_streams_end_early_with_errors() {
    // Every event adds members to the message, beyond the limit.
    let members = |from: u64| {
        let members = (from..from + 900).map(|number| (format!("k{number}"), json!(0)));
        let mut event: serde_json::Map<String, Value> = members.collect();
        event.insert("type".into(), "message_delta".into());
        Value::Object(event)
    };
    let error = fold([stream(&[members(0), members(900)], "end_turn").as_bytes()]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    // Every delta adds members to one block.
    let start = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "compaction"}});
    let delta = |from: u64| {
        let mut delta = members(from);
        delta["type"] = "compaction_delta".into();
        json!({"type": "content_block_delta", "index": 0, "delta": delta})
    };
    assert!(fold([stream(&[start.clone(), delta(0)], "end_turn").as_bytes()]).is_ok());
    let error = fold([stream(&[start, delta(0), delta(900)], "end_turn").as_bytes()]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    // Deep nesting does not overflow the stack: the JSON text stays, and only parsing it is an error.
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    let block =
        format!(r#"{{"type":"content_block_start","index":0,"content_block":{{"type":"x","deep":{deep}}}}}"#);
    let start = stream(&[], "end_turn");
    let mut fold = Wire::Messages.fold(&ModelId::new("anthropic", "claude-x"));
    let mut events = VecDeque::new();
    let (first, rest) = start.split_once("\n\n").unwrap();
    for part in [format!("{first}\n\n"), format!("data: {block}\n\n"), rest.to_owned()] {
        fold.feed(part.as_bytes(), &mut events).unwrap();
    }
    let response = fold.finish(&mut events).unwrap();
    assert_eq!(*response.items[0].view(), ItemView::Other { kind: "x".into() });
    assert!(response.items[0].raw().get().contains(&deep));
}
