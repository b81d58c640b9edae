use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::wires::Wire;
use crate::{
    AssistantTurn, CacheLifetime, Effort, ErrorKind, HostedTool, ItemView, Media, MediaSource, ModelError,
    ModelEvent, ModelId, OutputFormat, Part, PromptCaching, RawJson, Request, Response, StopReason, Thinking,
    ToolChoice, ToolDefinition, ToolResult, Turn,
};

fn model() -> ModelId {
    ModelId::new("openai-compatible", "some-model")
}

fn read(body: &Value) -> Response {
    Wire::ChatCompletions.read_body(&model(), 200, &body.to_string()).unwrap()
}

fn write(request: &Request) -> Value {
    Wire::ChatCompletions.write_body(&model(), request, false).unwrap().to_value().unwrap()
}

/// The body and its notices.
fn encode(request: &Request) -> (Value, Vec<String>) {
    let info = crate::ModelInfo::find(&model());
    let (body, notices) = super::encode::encode(&info, request, false).unwrap();
    (body.into_raw().unwrap().to_value().unwrap(), notices)
}

fn fold(stream: &str) -> Result<(Response, Vec<ModelEvent>), ModelError> {
    let mut fold = Wire::ChatCompletions.fold(&model());
    let mut events = VecDeque::new();
    fold.feed(stream.as_bytes(), &mut events)?;
    let response = fold.finish(&mut events)?;
    Ok((response, events.into()))
}

/// A stream of deltas, with a reason to stop and `[DONE]`.
fn stream(deltas: &[Value], reason: &str) -> String {
    let chunks = deltas.iter().map(|delta| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m", "choices": [
            {"index": 0, "delta": delta, "finish_reason": null}]})
    });
    let last = json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
    let events: Vec<String> = chunks.chain([last]).map(|chunk| format!("data: {chunk}\n\n")).collect();
    events.concat() + "data: [DONE]\n\n"
}

fn body(message: &Value, reason: &str) -> Value {
    json!({"id": "chatcmpl-1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": reason}]})
}

/// The message of an answer in the next request.
fn sent_back(response: &Response) -> Value {
    let mut request = Request::new("before");
    request.push_response(response);
    write(&request)["messages"][1].clone()
}

#[test]
fn a_message_survives_splitting_and_joining() {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": "{\"a\": 1.0}"}, "extra": [1]});
    for (message, kinds) in [
        (json!({"role": "assistant", "content": "Hi", "refusal": null, "annotations": []}), "text"),
        (
            json!({"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")], "x": {"y": 12_345_678_901_234_567_890_u64}}),
            "x call call",
        ),
        (
            json!({"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [call("a")]}),
            "thinking text call",
        ),
        (
            json!({"role": "assistant", "content": "So.", "reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "signature": "s"}]}),
            "thinking text",
        ),
        (
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "So."}]}),
            "thinking text",
        ),
        (json!({"role": "assistant", "content": null, "refusal": "No."}), "refusal"),
        (
            json!({"role": "assistant", "content": "See.", "annotations": [{"type": "url_citation", "url_citation": {"url": "u", "title": "t"}}]}),
            "text",
        ),
        (json!({"role": "assistant", "content": "", "audio": {"id": "audio_1"}}), "audio"),
        (
            json!({"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "n", "input": "i"}}]}),
            "text custom",
        ),
    ] {
        let response = read(&body(&message, "stop"));
        let found: Vec<&str> = response
            .items
            .iter()
            .map(|item| match item.view() {
                ItemView::Text { .. } => "text",
                ItemView::Thinking { text, .. } => {
                    assert_eq!(text, "Hm.");
                    "thinking"
                }
                ItemView::ToolCall { name, arguments, .. } => {
                    assert_eq!((name.as_str(), arguments.as_ref().unwrap().get()), ("look", "{\"a\": 1.0}"));
                    "call"
                }
                ItemView::Other { kind } => kind,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(found.join(" "), kinds, "{message}");
        let mut expected = message.clone();
        if expected["content"].is_null() && expected.get("tool_calls").is_none() {
            expected["content"] = "".into();
        }
        assert_eq!(sent_back(&response), expected);
    }
    let cited = read(&body(
        &json!({"content": "See.", "annotations": [{"url_citation": {"url": "u", "title": "t"}}]}),
        "stop",
    ));
    let ItemView::Text { citations, .. } = cited.items[0].view() else { panic!("no text") };
    assert_eq!(citations[0].url.as_deref(), Some("u"));
}

#[test]
fn calls_without_ids_get_stable_ids() {
    let message = json!({"content": "", "tool_calls": [
        {"type": "function", "function": {"name": "a", "arguments": {"x": 1}}},
        {"id": "", "function": {"name": "b", "arguments": ""}}]});
    let response = read(&body(&message, "stop"));
    assert_eq!(response.stop, StopReason::ToolUse, "pending calls, whatever the server reports");
    let ids: Vec<String> = response
        .tool_calls()
        .map(|item| match item.view() {
            ItemView::ToolCall { id, arguments, .. } => {
                assert!(arguments.is_ok());
                id.clone()
            }
            _ => String::new(),
        })
        .collect();
    assert_eq!(ids, ["call_chatcmpl1_0", "call_chatcmpl1_1"]);
    let back = sent_back(&response);
    assert_eq!([&back["tool_calls"][0]["id"], &back["tool_calls"][1]["id"]], [&ids[0], &ids[1]]);
    assert_eq!(back["tool_calls"][0]["function"]["arguments"], json!({"x": 1}));
}

#[test]
fn call_fragments_are_assigned_to_their_call() {
    let call = |fragment: Value| json!({"tool_calls": [fragment]});
    let whole = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
    for (deltas, expected) in [
        // By index, as the wire says.
        (
            vec![
                call(
                    json!({"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}),
                ),
                call(
                    json!({"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "[1"}}),
                ),
                call(json!({"index": 0, "function": {"arguments": "{\"x\""}})),
                call(json!({"index": 1, "function": {"arguments": "]"}})),
                call(json!({"index": 0, "function": {"arguments": ":1}"}})),
            ],
            vec![whole("f", "{\"x\":1}"), whole("g", "[1]")],
        ),
        // Without indices.
        (
            vec![
                call(json!({"id": "a", "function": {"name": "f", "arguments": "{"}})),
                call(json!({"function": {"arguments": "}"}})),
                call(json!({"id": "b", "function": {"name": "g", "arguments": "{}"}})),
            ],
            vec![whole("f", "{}"), whole("g", "{}")],
        ),
        // Without anything but names.
        (
            vec![
                call(json!({"function": {"name": "f", "arguments": "{}"}})),
                call(json!({"function": {"name": "f", "arguments": {"x": 1}}})),
            ],
            vec![whole("f", "{}"), whole("f", "{\"x\":1}")],
        ),
        // Every call with the same index.
        (
            vec![
                call(json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}})),
                call(json!({"index": 0, "id": "b", "function": {"name": "g", "arguments": "{"}})),
                call(json!({"index": 0, "function": {"arguments": "}"}})),
            ],
            vec![whole("f", "{}"), whole("g", "{}")],
        ),
        // Id and name again with every fragment, and a null.
        (
            vec![
                call(json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": null}})),
                call(json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}})),
            ],
            vec![whole("f", "{}")],
        ),
    ] {
        let (response, events) = fold(&stream(&deltas, "tool_calls")).unwrap();
        let found: Vec<(String, String)> = response
            .tool_calls()
            .map(|item| match item.view() {
                ItemView::ToolCall { id, name, arguments } => {
                    let shown: String = events
                        .iter()
                        .filter_map(|event| match event {
                            ModelEvent::ToolCallDelta { id: of, fragment, .. } if of == id => {
                                Some(fragment.as_str())
                            }
                            _ => None,
                        })
                        .collect();
                    let arguments = arguments.as_ref().unwrap().get();
                    assert_eq!(shown, arguments);
                    (name.clone(), arguments.to_owned())
                }
                _ => (String::new(), String::new()),
            })
            .collect();
        assert_eq!(found, expected);
        assert_eq!(response.stop, StopReason::ToolUse);
        let twin = Wire::ChatCompletions.read_body(&model(), 200, response.raw.get()).unwrap();
        assert_eq!(twin, response);
    }
}

#[test]
fn a_stream_folds_to_its_body() {
    let deltas = [
        json!({"role": "assistant", "content": "", "refusal": null}),
        json!({"reasoning": "H", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "H"}]}),
        json!({"reasoning": "m", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "m", "signature": "s"}]}),
        json!({"content": "Hel"}),
        json!({"content": "lo", "brand_new": 1.50}),
    ];
    let text = stream(&deltas, "stop").replace(
        "data: [DONE]",
        "data: {\"id\":\"chatcmpl-1\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,\
         \"prompt_tokens_details\":{\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\n\
         data: [DONE]",
    );
    let (response, events) = fold(&text).unwrap();
    assert_eq!(
        response.raw.to_value().unwrap()["choices"][0]["message"],
        json!({
            "role": "assistant", "content": "Hello", "refusal": null, "reasoning": "Hm",
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "Hm", "signature": "s"}],
            "brand_new": 1.50
        })
    );
    assert_eq!(response.text(), "Hello");
    assert!(
        matches!(response.items[0].view(), ItemView::Thinking { text, has_signature: true } if text == "Hm")
    );
    let usage = &response.usage;
    assert_eq!((usage.input, usage.cache_read, usage.output, usage.reasoning), (6, 4, 5, Some(2)));
    assert!(events.iter().any(|event| matches!(event, ModelEvent::Usage(usage) if usage.output == 5)));
    let thought: String = events
        .iter()
        .filter_map(|event| match event {
            ModelEvent::ThinkingDelta { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(thought, "Hm", "each text once, although two members have it");
    // A server that omits `[DONE]`.
    let (unterminated, _) = fold(&text.replace("data: [DONE]\n\n", "")).unwrap();
    assert_eq!(unterminated, response);
}

#[test]
fn content_in_parts_is_appended() {
    let part = |text: &str| json!({"content": [{"type": "text", "text": text}]});
    let thought =
        |text: &str| json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": text}]}]});
    let (response, _) = fold(&stream(
        &[json!({"content": ""}), thought("H"), thought("m"), part("a"), part("b"), json!({"content": "c"})],
        "stop",
    ))
    .unwrap();
    assert_eq!(response.text(), "abc");
    assert_eq!(response.items.len(), 2);
    let whole = json!([
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
        {"type": "text", "text": "abc"},
    ]);
    let choices = response.raw.to_value().unwrap()["choices"].take();
    assert_eq!(choices[0]["message"]["content"], whole, "equivalent to the body");
    // Parts with other content stay unchanged.
    let cited =
        json!({"content": [{"type": "thinking", "thinking": [{"type": "reference", "reference_ids": [1]}]}]});
    let (other, _) = fold(&stream(&[thought("a"), cited.clone(), thought("b")], "stop")).unwrap();
    let choices = other.raw.to_value().unwrap()["choices"].take();
    assert_eq!(choices[0]["message"]["content"][1], cited["content"][0]);
    let (mixed, events) = fold(&stream(&[json!({"content": "x"}), part("y")], "stop")).unwrap();
    assert_eq!(mixed.text(), "xy");
    let shown = events.iter().filter(|event| matches!(event, ModelEvent::TextDelta { .. })).count();
    assert_eq!(shown, 2);
}

#[test]
fn the_choice_with_index_0_is_the_answer() {
    let choice = |index: u64, text: &str| json!({"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"});
    let usage =
        json!({"prompt_tokens": 50, "cached_tokens": 40, "completion_tokens": 9, "reasoning_tokens": 7});
    let body = json!({"id": "c", "choices": [choice(1, "other"), choice(0, "this")], "usage": usage});
    let response = super::body::read_completion(&ModelId::new("x", "y"), &body.to_string()).unwrap();
    assert_eq!(response.text(), "this");
    let usage = &response.usage;
    assert_eq!((usage.input, usage.cache_read, usage.output, usage.reasoning), (10, 40, 9, Some(7)));
    let body = json!({"id": "c", "choices": [choice(3, "alone")], "usage": null});
    assert_eq!(
        super::body::read_completion(&ModelId::new("x", "y"), &body.to_string()).unwrap().text(),
        "alone"
    );
}

#[test]
fn invalid_answers_are_errors() {
    let chunk = |text: &str| format!("data: {text}\n\n");
    for (text, kind) in [
        (String::new(), ErrorKind::Protocol),
        (chunk("[DONE]"), ErrorKind::Protocol),
        (chunk("{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}"), ErrorKind::Protocol),
        (chunk("{"), ErrorKind::Protocol),
        (chunk("{\"choices\":7}"), ErrorKind::Protocol),
        (chunk("{\"choices\":[{\"delta\":{\"tool_calls\":7}}]}"), ErrorKind::Protocol),
        (chunk("{\"error\":{\"message\":\"busy\",\"code\":503}}"), ErrorKind::Overloaded),
        (
            chunk(
                "{\"error\":{\"message\":\"slow\",\"code\":429},\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}",
            ),
            ErrorKind::RateLimited { retry_after: None },
        ),
    ] {
        assert_eq!(fold(&text).unwrap_err().kind, kind, "{text}");
    }
    for (body, kind) in [
        ("", ErrorKind::Protocol),
        ("[]", ErrorKind::Protocol),
        ("{}", ErrorKind::Protocol),
        ("{\"choices\":[]}", ErrorKind::Protocol),
        ("{\"choices\":[{}]}", ErrorKind::Protocol),
        ("{\"choices\":[{\"message\":7}]}", ErrorKind::Protocol),
        ("{\"error\":{\"message\":\"no\",\"code\":\"model_not_found\"}}", ErrorKind::NotFound),
        ("{\"object\":\"error\",\"message\":\"no\",\"code\":401}", ErrorKind::Auth),
    ] {
        assert_eq!(Wire::ChatCompletions.read_body(&model(), 200, body).unwrap_err().kind, kind, "{body}");
    }
    let many: Vec<Value> = (0..1_001)
        .map(|number| json!({"tool_calls": [{"index": number, "id": number.to_string(), "function": {"name": "f"}}]}))
        .collect();
    assert!(fold(&stream(&many, "stop")).unwrap_err().message.contains("more than 1000 calls"));
    // Unknown events and further choices change nothing.
    let odd = chunk("{\"object\":\"brand.new\"}")
        + &chunk("{\"choices\":[{\"index\":1,\"delta\":{\"content\":\"z\"}}]}");
    let (response, events) = fold(&(odd + &stream(&[json!({"content": "x"})], "stop"))).unwrap();
    assert_eq!(response.text(), "x");
    assert_eq!(events.iter().filter(|event| matches!(event, ModelEvent::Unknown(_))).count(), 2);
}

#[test]
fn stop_reasons_are_mapped() {
    for (reason, message, expected) in [
        ("stop", json!({"content": "x"}), StopReason::EndTurn),
        ("length", json!({"content": "x"}), StopReason::MaxTokens),
        ("content_filter", json!({"content": ""}), StopReason::Refusal),
        ("stop", json!({"content": null, "refusal": "No."}), StopReason::Refusal),
        (
            "insufficient_system_resource",
            json!({"content": "x"}),
            StopReason::Other("insufficient_system_resource".into()),
        ),
    ] {
        let response = read(&body(&message, reason));
        assert_eq!(response.stop, expected);
        assert_eq!(response.stop_detail.as_deref(), message["refusal"].as_str());
    }
}

#[test]
fn every_setting_reaches_the_body() {
    let mut request = Request::new("Hi");
    request.system = Some("Be kind.".into());
    request.settings.max_output_tokens = Some(7);
    request.settings.temperature = Some(0.5);
    request.settings.top_p = Some(0.25);
    request.settings.top_k = Some(3);
    request.settings.stop = vec!["END".into()];
    request.settings.seed = Some(9);
    request.settings.effort = Some(Effort::Low);
    request.settings.parallel_tool_calls = Some(false);
    request.settings.output = Some(OutputFormat::Schema {
        name: "my answer".into(),
        schema: (&json!({"type": "object", "properties": {"a": {"type": "string"}}})).into(),
    });
    request.tool_choice = Some(ToolChoice::Tool("look".into()));
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let mut strict = ToolDefinition::new("strict", "", &schema);
    strict.strict = true;
    let mut open = ToolDefinition::new(
        "open",
        "",
        &json!({"type": "object", "additionalProperties": {"type": "string"}}),
    );
    open.strict = true;
    open.deferred = true;
    request.tools = vec![ToolDefinition::new("look", "Looks.", &schema), strict, open].into();
    request.hosted_tools = vec![HostedTool::Raw((&json!({"type": "web"})).into())];
    request.metadata.insert("user_id".into(), "u".into());
    request.metadata.insert("team".into(), "t".into());
    request.provider_options.insert("logit_bias".into(), json!({"1": 2}));
    request.betas = vec!["b".into()];
    let (body, notices) = encode(&request);
    let closed = json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"], "additionalProperties": false});
    let open = json!({"type": "object", "additionalProperties": {"type": "string"}});
    assert_eq!(
        body,
        json!({
            "model": "some-model",
            "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
            "tools": [
                {"type": "web"},
                {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": schema}},
                {"type": "function", "function": {"name": "strict", "parameters": closed, "strict": true}},
                {"type": "function", "function": {"name": "open", "parameters": open}}
            ],
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "parallel_tool_calls": false,
            "response_format": {"type": "json_schema", "json_schema": {"name": "my_answer", "schema": closed, "strict": true}},
            "max_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_k": 3, "stop": ["END"], "seed": 9,
            "reasoning_effort": "low", "user": "u", "metadata": {"team": "t"}, "logit_bias": {"1": 2}
        })
    );
    for expected in
        ["`open` was sent without `strict`: properties of any name", "`open` was sent directly", "`betas`"]
    {
        assert!(notices.iter().any(|notice| notice.contains(expected)), "{expected}: {notices:?}");
    }
    assert_eq!(notices.len(), 3);
    for (choice, word) in
        [(ToolChoice::Auto, "auto"), (ToolChoice::Any, "required"), (ToolChoice::None, "none")]
    {
        request.tool_choice = Some(choice);
        assert_eq!(write(&request)["tool_choice"], word);
    }
    let streamed =
        Wire::ChatCompletions.write_body(&model(), &Request::new("x"), true).unwrap().to_value().unwrap();
    assert_eq!(
        (&streamed["stream"], &streamed["stream_options"]),
        (&json!(true), &json!({"include_usage": true}))
    );
    let newer = ModelId::new("openai-compatible", "openai/gpt-5-mini");
    let body = Wire::ChatCompletions.write_body(&newer, &request, false).unwrap().to_value().unwrap();
    assert_eq!((&body["max_completion_tokens"], body.get("max_tokens")), (&json!(7), None));
}

#[test]
fn unsent_settings_have_a_notice() {
    let notice = |change: fn(&mut Request)| {
        let mut request = Request::new("x");
        change(&mut request);
        encode(&request)
    };
    let (body, notices) = notice(|request| request.settings.thinking = Some(Thinking::Off));
    assert_eq!((&body["reasoning_effort"], notices.len()), (&json!("none"), 0));
    let (_, notices) = notice(|request| request.settings.thinking = Some(Thinking::Budget(9)));
    assert!(notices[0].contains("thinking budget"));
    let (_, notices) = notice(|request| {
        request.settings.prompt_caching = PromptCaching::Breakpoints(CacheLifetime::OneHour);
    });
    assert!(notices[0].contains("cache lifetime"));
    let (body, notices) = notice(|request| {
        let schema = json!({"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}});
        request.settings.output = Some(OutputFormat::schema(&schema));
    });
    assert_eq!(body["response_format"]["json_schema"]["strict"], true);
    assert!(notices[0].contains("`minLength` at `/properties/a`"), "{notices:?}");
    let (body, _) = notice(|request| request.settings.output = Some(OutputFormat::Json));
    assert_eq!(body["response_format"], json!({"type": "json_object"}));
    let thinking = crate::Item::new(
        ItemView::Thinking { text: "Hm.".into(), has_signature: true },
        RawJson::parse("{\"type\":\"thinking\"}").unwrap(),
    );
    let mut request = Request::new("x");
    let origin = ModelId::new("anthropic", "claude-x");
    request.turns.push(Turn::Assistant(AssistantTurn {
        origin,
        items: vec![thinking],
        provider_state: serde_json::Map::new(),
    }));
    let (body, notices) = encode(&request);
    assert_eq!(body["messages"].as_array().unwrap().len(), 1, "an empty message is omitted");
    assert!(notices[0].contains("anthropic/claude-x"));
}

#[test]
fn unsupported_features_are_errors() {
    let error_of = |change: &dyn Fn(&mut Request)| {
        let mut request = Request::new("x");
        change(&mut request);
        let error = Wire::ChatCompletions.write_body(&model(), &request, false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        error.message
    };
    let web = HostedTool::WebSearch { max_uses: None, allowed_domains: vec![], blocked_domains: vec![] };
    assert!(error_of(&|request| request.hosted_tools = vec![web.clone()]).contains("`web_search`"));
    let with_part = |part: Part| error_of(&|request| request.turns.push(Turn::User(vec![part.clone()])));
    assert!(with_part(Part::ContainerFile { file_id: "f".into() }).contains("the file `f`"));
    assert!(with_part(Part::Image(Media::from_file_id("image/png", "f"))).contains("images by file id"));
    assert!(with_part(Part::Document(Media::from_url("application/pdf", "u"))).contains("documents by URL"));
    let option = |value: &str| {
        let value = value.to_owned();
        error_of(&move |request| {
            request.provider_options.insert("structured_output".into(), value.clone().into());
        })
    };
    assert!(option("magic").contains("expected `tool` or `native`"));
    let tool = ToolDefinition::new("toolpost_answer", "", &json!({}));
    assert!(error_of(&|request| request.tools = vec![tool.clone()].into()).contains("`toolpost_answer`"));
}

#[test]
fn parts_and_results_are_encoded() {
    let mut request = Request::new("x");
    request.turns = vec![
        Turn::User(vec![
            Part::text("See"),
            Part::Image(Media::from_bytes("image/png", b"abc")),
            Part::Image(Media::from_url("image/png", "https://e/x.png")),
            Part::Document(Media::from_bytes("application/pdf", b"abc")),
            Part::Document(Media::from_file_id("application/pdf", "file-1")),
            Part::Document(Media {
                media_type: "text/plain".into(),
                source: MediaSource::Text("t".into()),
                title: Some("T".into()),
            }),
            Part::Raw((&json!({"type": "input_audio"})).into()),
        ]),
        Turn::ToolResults(vec![
            ToolResult::text("a", "f", "fine"),
            ToolResult { is_error: true, ..ToolResult::text("b", "f", "broken") },
            ToolResult { is_error: true, ..ToolResult::text("c", "f", "an error: broken") },
            ToolResult {
                content: vec![Part::text("see"), Part::Image(Media::from_bytes("image/png", b"abc"))],
                ..ToolResult::text("d", "f", "")
            },
            ToolResult {
                content: vec![Part::Document(Media::from_bytes("application/pdf", b"abc"))],
                ..ToolResult::text("e", "f", "")
            },
            ToolResult { content: vec![], ..ToolResult::text("g", "f", "") },
            ToolResult {
                content: vec![Part::Document(Media::from_url("application/pdf", "u"))],
                ..ToolResult::text("h", "f", "")
            },
        ]),
        Turn::System(vec![Part::text("Hurry.")]),
    ];
    let (body, notices) = encode(&request);
    let image = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,YWJj"}});
    let tool = |id: &str, content: Value| json!({"role": "tool", "tool_call_id": id, "content": content});
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": [
                {"type": "text", "text": "See"},
                image,
                {"type": "image_url", "image_url": {"url": "https://e/x.png"}},
                {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,YWJj"}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "text", "text": "T\n\nt"},
                {"type": "input_audio"}
            ]},
            tool("a", "fine".into()),
            tool("b", "Error: broken".into()),
            tool("c", "an error: broken".into()),
            tool("d", "see\n(image/png: in the next message)".into()),
            tool("e", "(application/pdf: in the next message)".into()),
            tool("g", "".into()),
            tool("h", "(a part was omitted)".into()),
            {"role": "user", "content": [
                {"type": "text", "text": "From the tool `f`, call `d`:"},
                image,
                {"type": "text", "text": "From the tool `f`, call `e`:"},
                {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,YWJj"}}
            ]},
            {"role": "system", "content": "Hurry."}
        ])
    );
    assert_eq!(notices.len(), 1);
    assert!(notices[0].contains(
        "of the result of `f` was not sent: the Chat Completions wire does not support documents by URL"
    ));
}

#[test]
fn a_call_of_the_answer_tool_becomes_text() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let mut request = Request::new("x");
    request.settings.output = Some(OutputFormat::schema(&schema));
    request.provider_options.insert("structured_output".into(), "tool".into());
    let body = write(&request);
    assert_eq!((body.get("response_format"), body.get("structured_output")), (None, None));
    assert_eq!(body["tools"][0]["function"]["name"], "toolpost_answer");
    assert_eq!(body["tools"][0]["function"]["parameters"], schema);
    assert_eq!(body["tool_choice"]["function"]["name"], "toolpost_answer");
    // With other tools the model may call them first.
    request.tools = vec![ToolDefinition::new("look", "", &schema)].into();
    assert_eq!(write(&request)["tool_choice"], "required");
    request.provider_options.insert("structured_output".into(), "native".into());
    assert!(write(&request)["response_format"].is_object());

    let call = json!({"index": 0, "id": "c1", "type": "function", "function": {"name": "toolpost_answer", "arguments": "{\"a\":"}});
    let more = json!({"index": 0, "function": {"arguments": "1}"}});
    let (response, events) =
        fold(&stream(&[json!({"tool_calls": [call]}), json!({"tool_calls": [more]})], "tool_calls")).unwrap();
    assert_eq!((response.text().as_str(), response.stop.clone()), ("{\"a\":1}", StopReason::EndTurn));
    assert_eq!(response.tool_calls().count(), 0);
    assert_eq!(events.iter().filter(|event| matches!(event, ModelEvent::TextDelta { .. })).count(), 2);
    // The call goes back with a result, without which servers refuse it.
    let mut next = Request::new("x");
    next.push_response(&response);
    let messages = write(&next)["messages"].clone();
    assert_eq!(messages[1]["tool_calls"][0]["id"], "c1");
    assert_eq!(
        messages[2],
        json!({"role": "tool", "tool_call_id": "c1", "content": "The answer was received."})
    );
}

#[test]
fn long_streams_take_linear_time() {
    let long = |part: fn(usize) -> Value| {
        let deltas: Vec<Value> = (0..4_000).map(part).collect();
        let began = std::time::Instant::now();
        fold(&stream(&deltas, "stop")).unwrap();
        assert!(began.elapsed().as_secs() < 15, "{:?}", began.elapsed());
    };
    long(|_| json!({"content": [{"type": "text", "text": "some more words"}]}));
    long(
        |_| json!({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "some more words"}]}),
    );
    long(|number| json!({"reasoning_details": [{"type": "reasoning.text", "index": number, "text": "x"}]}));
    long(
        |_| json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "more words"}}]}),
    );
}
