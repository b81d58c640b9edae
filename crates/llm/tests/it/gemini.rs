//! Requests, unusual and hostile streams, and errors of the Gemini wire.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_llm::{
    AssistantTurn, CacheLifetime, Citation, Effort, ErrorKind, HostedModel, HostedTool, ItemView, Media,
    MediaSource, Model as _, ModelError, ModelEvent, ModelId, OutputFormat, Part, PromptCaching, Provider,
    RawJson, Request, Response, StopReason, Thinking, ToolChoice, ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support::{self, Case, check_bodies};

fn new_model() -> ModelId {
    ModelId::new("gemini", "gemini-3-x")
}

fn old_model() -> ModelId {
    ModelId::new("gemini", "gemini-2.5-x")
}

fn body(model: &ModelId, request: &Request) -> Value {
    Wire::GenerateContent.write_body(model, request, false).unwrap().to_value().unwrap()
}

fn read(body: &Value) -> Response {
    Wire::GenerateContent.read_body(&new_model(), 200, &body.to_string()).unwrap()
}

/// Folds events.
fn fold(events: &[Value]) -> Result<(Response, Vec<ModelEvent>), ModelError> {
    let (response, delivered) = support::fold(Wire::GenerateContent, &new_model(), events);
    Ok((response?, delivered))
}

/// An event of these parts.
fn parts(parts: &Value) -> Value {
    json!({"candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0}], "responseId": "r"})
}

fn end(reason: &str) -> Value {
    json!({"candidates": [{"finishReason": reason, "index": 0}], "usageMetadata": {"promptTokenCount": 7}})
}

fn raws(response: &Response) -> Vec<Value> {
    response.items.iter().map(|item| item.raw().to_value().unwrap()).collect()
}

fn tool() -> ToolDefinition {
    ToolDefinition::new("look", "Looks.", &json!({"type": "object"}))
}

#[test]
fn a_minimal_request_has_a_minimal_body() {
    let expected = json!({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]});
    assert_eq!(body(&new_model(), &Request::new("hi")), expected);
}

#[test]
fn every_setting_reaches_the_body() {
    let both = |r: &mut Request| {
        r.tools = [tool()].into();
        r.hosted_tools = vec![HostedTool::CodeExecution { version: None, file_ids: vec![] }];
    };
    let cases: [Case; 30] = [
        (
            |r| r.system = Some("be kind".into()),
            "/systemInstruction",
            json!({"parts": [{"text": "be kind"}]}),
        ),
        (|r| r.settings.max_output_tokens = Some(9), "/generationConfig/maxOutputTokens", json!(9)),
        (|r| r.settings.temperature = Some(0.5), "/generationConfig/temperature", json!(0.5)),
        (|r| r.settings.top_p = Some(0.25), "/generationConfig/topP", json!(0.25)),
        (|r| r.settings.top_k = Some(4), "/generationConfig/topK", json!(4)),
        (|r| r.settings.stop = vec!["END".into()], "/generationConfig/stopSequences", json!(["END"])),
        (|r| r.settings.seed = Some(5), "/generationConfig/seed", json!(5)),
        (
            |r| r.settings.effort = Some(Effort::Low),
            "/generationConfig/thinkingConfig",
            json!({"thinkingLevel": "low"}),
        ),
        (
            |r| r.settings.effort = Some(Effort::Max),
            "/generationConfig/thinkingConfig/thinkingLevel",
            json!("high"),
        ),
        (
            |r| r.settings.thinking = Some(Thinking::Off),
            "/generationConfig/thinkingConfig",
            json!({"thinkingLevel": "minimal"}),
        ),
        (
            |r| r.settings.thinking = Some(Thinking::Adaptive),
            "/generationConfig/thinkingConfig",
            json!({"includeThoughts": true}),
        ),
        (
            |r| r.settings.thinking = Some(Thinking::Budget(99)),
            "/generationConfig/thinkingConfig",
            json!({"thinkingBudget": 99, "includeThoughts": true}),
        ),
        (
            |r| r.settings.output = Some(OutputFormat::Json),
            "/generationConfig",
            json!({"responseMimeType": "application/json"}),
        ),
        (
            |r| r.settings.output = Some(OutputFormat::schema(&json!({"type": "string"}))),
            "/generationConfig",
            json!({"responseMimeType": "application/json", "responseJsonSchema": {"type": "string"}}),
        ),
        (|r| r.tools = [tool()].into(), "/tools/0/functionDeclarations/0/name", json!("look")),
        (|r| r.tools = [tool()].into(), "/tools/0/functionDeclarations/0/description", json!("Looks.")),
        (
            |r| r.tools = [tool()].into(),
            "/tools/0/functionDeclarations/0/parametersJsonSchema/type",
            json!("object"),
        ),
        (
            |r| {
                let mut tool = tool();
                tool.provider_options.insert("behavior".into(), "BLOCKING".into());
                r.tools = [tool].into();
            },
            "/tools/0/functionDeclarations/0/behavior",
            json!("BLOCKING"),
        ),
        (
            |r| r.tools = [ToolDefinition { strict: true, ..tool() }].into(),
            "/toolConfig/functionCallingConfig",
            json!({"mode": "VALIDATED"}),
        ),
        (
            |r| r.tool_choice = Some(ToolChoice::Tool("look".into())),
            "/toolConfig/functionCallingConfig",
            json!({"mode": "ANY", "allowedFunctionNames": ["look"]}),
        ),
        (|r| r.tool_choice = Some(ToolChoice::Any), "/toolConfig/functionCallingConfig/mode", json!("ANY")),
        (|r| r.tool_choice = Some(ToolChoice::None), "/toolConfig/functionCallingConfig/mode", json!("NONE")),
        (|r| r.tool_choice = Some(ToolChoice::Auto), "/toolConfig/functionCallingConfig/mode", json!("AUTO")),
        (
            |r| {
                r.hosted_tools = vec![
                    HostedTool::WebSearch {
                        max_uses: None,
                        allowed_domains: vec![],
                        blocked_domains: vec![],
                    },
                    HostedTool::WebFetch { max_uses: None, allowed_domains: vec![], blocked_domains: vec![] },
                    HostedTool::FileSearch { stores: vec!["s".into()], max_results: Some(3) },
                    HostedTool::CodeExecution { version: None, file_ids: vec![] },
                    HostedTool::Raw(RawJson::parse(r#"{"googleMaps":{}}"#).unwrap()),
                ];
            },
            "/tools",
            json!([
                {"googleSearch": {}}, {"urlContext": {}}, {"fileSearch": {"fileSearchStoreNames": ["s"], "topK": 3}},
                {"codeExecution": {}}, {"googleMaps": {}},
            ]),
        ),
        (both, "/toolConfig", json!({"includeServerSideToolInvocations": true})),
        (both, "/tools/1", json!({"codeExecution": {}})),
        (
            |r| {
                r.provider_options.insert("safetySettings".into(), json!([1]));
            },
            "/safetySettings",
            json!([1]),
        ),
        (
            |r| {
                r.settings.seed = Some(5);
                r.provider_options.insert("generationConfig".into(), json!({"candidateCount": 2}));
            },
            "/generationConfig",
            json!({"seed": 5, "candidateCount": 2}),
        ),
        (
            |r| r.turns.push(Turn::System(vec![Part::text("be brief")])),
            "/contents",
            json!([{"role": "user", "parts": [{"text": "hi"}, {"text": "be brief"}]}]),
        ),
        (
            |r| {
                r.turns = vec![Turn::User(vec![
                    Part::Image(Media::from_bytes("image/png", b"x")),
                    Part::Document(Media::from_url("application/pdf", "https://a.example/b")),
                    Part::Document(Media::from_file_id("text/plain", "files/7")),
                    Part::Document(Media {
                        media_type: "text/plain".into(),
                        source: MediaSource::Text("x".into()),
                        title: Some("t".into()),
                    }),
                    Part::text(" \n"),
                    Part::Raw(RawJson::parse(r#"{"text":"raw"}"#).unwrap()),
                ])];
            },
            "/contents/0/parts",
            json!([
                {"inlineData": {"mimeType": "image/png", "data": "eA=="}},
                {"fileData": {"mimeType": "application/pdf", "fileUri": "https://a.example/b"}},
                {"fileData": {
                    "mimeType": "text/plain",
                    "fileUri": "https://generativelanguage.googleapis.com/v1beta/files/7",
                }},
                {"inlineData": {"mimeType": "text/plain", "data": "eA=="}},
                {"text": "raw"},
            ]),
        ),
    ];
    check_bodies(|request| body(&new_model(), request), &cases);
    let old: [Case; 2] = [
        (
            |r| r.settings.thinking = Some(Thinking::Off),
            "/generationConfig/thinkingConfig",
            json!({"thinkingBudget": 0}),
        ),
        (
            |r| r.settings.thinking = Some(Thinking::Adaptive),
            "/generationConfig/thinkingConfig",
            json!({"thinkingBudget": -1, "includeThoughts": true}),
        ),
    ];
    check_bodies(|request| body(&old_model(), request), &old);
    let mut request = Request::new("hi");
    both(&mut request);
    assert_eq!(body(&old_model(), &request).get("toolConfig"), None);
}

/// A change of a request, and a part of its notice.
type Remark = (fn(&mut Request), &'static str);

#[test]
fn unsupported_requests_are_rejected() {
    let cases: [Remark; 8] = [
        (|r| _ = r.metadata.insert("team".into(), "x".into()), "metadata `team`"),
        (|r| r.betas = vec!["b".into()], "beta `b`"),
        (|r| r.settings.seed = Some(u64::from(u32::MAX)), "`seed`"),
        (
            |r| {
                r.hosted_tools = vec![HostedTool::WebSearch {
                    max_uses: None,
                    allowed_domains: vec!["a.example".into()],
                    blocked_domains: vec![],
                }];
            },
            "`web_search`",
        ),
        (
            |r| r.hosted_tools = vec![HostedTool::FileSearch { stores: vec![], max_results: None }],
            "`file_search`",
        ),
        (
            |r| {
                r.hosted_tools =
                    vec![HostedTool::CodeExecution { version: None, file_ids: vec!["f".into()] }];
            },
            "`code_execution`",
        ),
        (|r| r.turns.push(Turn::User(vec![Part::ContainerFile { file_id: "f".into() }])), "container"),
        (
            |r| {
                r.tools = [tool()].into();
                r.settings.output = Some(OutputFormat::Json);
            },
            "Gemini 3",
        ),
    ];
    for (change, expected) in cases {
        let mut request = Request::new("hi");
        change(&mut request);
        let error = Wire::GenerateContent.write_body(&old_model(), &request, false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.message.contains(expected), "{error}");
    }
    for name in ["", "a b", "a?b", "../a", "a//b", "a#b", "a%2fb"] {
        let model = ModelId::new("gemini", name);
        let error = Wire::GenerateContent.write_body(&model, &Request::new("hi"), false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Configuration, "{name}");
    }
}

#[test]
fn schemas_are_sent_in_the_provider_dialect() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "number", "multipleOf": 2}}});
    let mut request = Request::new("hi");
    request.tools = [ToolDefinition::new("look", "Looks.", &schema)].into();
    request.settings.output = Some(OutputFormat::schema(&schema));
    let body = body(&new_model(), &request);
    for place in
        ["/tools/0/functionDeclarations/0/parametersJsonSchema", "/generationConfig/responseJsonSchema"]
    {
        let parameter = &body.pointer(place).unwrap()["properties"]["a"];
        assert_eq!(parameter.get("multipleOf"), None, "{body}");
        assert!(parameter["description"].as_str().is_some_and(|text| text.contains('2')), "{body}");
    }
}

#[test]
fn results_are_grouped_and_media_nested_if_supported() {
    let image = Part::Image(Media::from_bytes("image/png", b"x"));
    let mut results = vec![ToolResult::text("call-r-0", "look", "a"), ToolResult::text("c2", "look", "b")];
    results[0].content.push(image);
    results[0].content.push(Part::text("more"));
    results[1].is_error = true;
    let mut request = Request::new("hi");
    request.turns.push(Turn::ToolResults(results));
    request.turns.push(Turn::user("next"));
    let inline = json!({"inlineData": {"mimeType": "image/png", "data": "eA=="}});
    let failed = json!({"functionResponse": {"id": "c2", "name": "look", "response": {"error": "b"}}});
    let response = json!({"output": "a\nmore"});
    assert_eq!(
        body(&new_model(), &request)["contents"][0]["parts"],
        json!([
            {"text": "hi"},
            {"functionResponse": {"name": "look", "response": response, "parts": [inline]}},
            failed,
            {"text": "next"},
        ])
    );
    assert_eq!(
        body(&old_model(), &request)["contents"][0]["parts"],
        json!([{"text": "hi"}, {"functionResponse": {"name": "look", "response": response}}, failed, inline, {"text": "next"}])
    );
}

/// An answer of another provider.
fn foreign() -> Turn {
    let content = json!({"type": "message", "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "text", "text": "look"},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"x": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "look", "input": [1]},
    ]});
    let origin = ModelId::new("anthropic", "claude-x");
    let items = Wire::Messages.read_body(&origin, 200, &content.to_string()).unwrap().items;
    Turn::Assistant(AssistantTurn::new(origin, items))
}

#[test]
fn answers_of_other_providers_are_converted_with_a_signature() {
    let mut request = Request::new("hi");
    request.turns.push(foreign());
    let parts = |model: &ModelId| body(model, &request)["contents"][1]["parts"].clone();
    let second = json!({"functionCall": {"id": "toolu_2", "name": "look", "args": {"INVALID_JSON": "[1]"}}});
    let call = json!({"id": "toolu_1", "name": "look", "args": {"x": 1}});
    let signature = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=";
    assert_eq!(
        parts(&new_model()),
        json!([{"text": "look"}, {"functionCall": call, "thoughtSignature": signature}, second])
    );
    assert_eq!(parts(&old_model()), json!([{"text": "look"}, {"functionCall": call}, second]));
}

#[test]
fn calls_of_older_models_get_a_placeholder_signature() {
    let call = json!({"functionCall": {"name": "look", "args": {}}});
    let said =
        json!({"candidates": [{"content": {"parts": [call, call]}, "finishReason": "STOP"}]}).to_string();
    for (origin, is_marked) in [(old_model(), true), (new_model(), false)] {
        let items = Wire::GenerateContent.read_body(&origin, 200, &said).unwrap().items;
        let mut request = Request::new("hi");
        request.turns.push(Turn::Assistant(AssistantTurn::new(origin, items)));
        let parts = body(&new_model(), &request)["contents"][1]["parts"].clone();
        assert_eq!(parts[0].get("thoughtSignature").is_some(), is_marked);
        assert_eq!(parts[1], call);
    }
}

#[test]
fn signatures_stay_on_their_parts() {
    let events = [
        parts(&json!([{"text": "a", "thought": true}])),
        parts(&json!([{"text": "b", "thought": true}])),
        parts(&json!([{"text": "c"}, {"text": "d"}])),
        parts(&json!([{"text": "e", "thoughtSignature": "s1"}])),
        parts(&json!([{"text": "f"}])),
        parts(&json!([{"functionCall": {"name": "look", "args": {"x": 1}}, "thoughtSignature": "s2"}])),
        parts(&json!([{"brandNew": {"x": 1.0}}])),
        parts(&json!([{"text": "", "thoughtSignature": "s3"}])),
        end("STOP"),
    ];
    let (response, delivered) = fold(&events).unwrap();
    let expected = json!([
        {"text": "ab", "thought": true},
        {"text": "cd"},
        {"text": "e", "thoughtSignature": "s1"},
        {"text": "f"},
        {"functionCall": {"name": "look", "args": {"x": 1}}, "thoughtSignature": "s2"},
        {"brandNew": {"x": 1.0}},
        {"text": "", "thoughtSignature": "s3"},
    ]);
    assert_eq!(Value::from(raws(&response)), expected);
    assert_eq!(response.stop, StopReason::ToolUse);
    assert_eq!(response.text(), "cdef");
    assert_eq!(response.usage.input, 7);
    let mut request = Request::new("hi");
    request.push_response(&response);
    assert_eq!(body(&new_model(), &request)["contents"][1], json!({"role": "model", "parts": expected}));
    let items: Vec<_> = delivered.iter().filter(|event| matches!(event, ModelEvent::Item(_))).collect();
    assert_eq!(items.len(), 7);
}

#[test]
fn streamed_arguments_become_a_call() {
    let piece = |call: Value| parts(&json!([{"functionCall": call}]));
    let events = [
        parts(
            &json!([{"functionCall": {"name": "look", "id": "7", "willContinue": true}, "thoughtSignature": "s"}]),
        ),
        piece(
            json!({"partialArgs": [{"jsonPath": "$.x", "stringValue": "a", "willContinue": true}], "willContinue": true}),
        ),
        piece(json!({"partialArgs": [{"jsonPath": "$.x", "stringValue": "b"}], "willContinue": true})),
        piece(json!({"willContinue": true})),
        piece(json!({})),
        // Another call without an end.
        piece(
            json!({"name": "see", "partialArgs": [{"jsonPath": "$.y[0]", "numberValue": 1}], "willContinue": true}),
        ),
        parts(&json!([{"text": ""}])),
        // The end of a call without a start.
        piece(json!({})),
        end("STOP"),
    ];
    let (response, delivered) = fold(&events).unwrap();
    assert_eq!(
        raws(&response),
        [
            json!({"functionCall": {"name": "look", "id": "7", "args": {"x": "ab"}}, "thoughtSignature": "s"}),
            json!({"functionCall": {"name": "see", "args": {"y": [1]}}}),
            json!({"text": ""}),
        ]
    );
    let mut fragments = String::new();
    for event in &delivered {
        if let ModelEvent::ToolCallDelta { id, fragment, index: 0, .. } = event {
            assert_eq!(id, "7");
            fragments.push_str(fragment);
        }
    }
    assert_eq!(fragments, r#"{"x":"ab"}"#);
    assert_eq!(delivered.iter().filter(|event| matches!(event, ModelEvent::Unknown(_))).count(), 1);
    let ItemView::ToolCall { id, .. } = response.items[1].view() else { panic!("not a call") };
    assert_eq!(id, "call-r-0");

    let hostile =
        piece(json!({"name": "x", "partialArgs": [{"jsonPath": "$.a[9999999]", "boolValue": true}]}));
    assert_eq!(fold(&[hostile]).unwrap_err().kind, ErrorKind::Protocol);
}

#[test]
fn a_stream_ends_with_its_bytes_not_with_the_first_finish_reason() {
    let mut stopped = parts(&json!([{"text": "a"}]));
    stopped["candidates"][0]["finishReason"] = "STOP".into();
    let mut cut = parts(&json!([{"text": "b"}]));
    cut["candidates"][0]["finishReason"] = "MAX_TOKENS".into();
    let (response, _) =
        fold(&[stopped.clone(), parts(&json!([{"executableCode": {"code": "1"}}])), cut]).unwrap();
    assert_eq!((response.text().as_str(), response.stop), ("ab", StopReason::MaxTokens));
    assert_eq!(fold(&[parts(&json!([{"text": "a"}]))]).unwrap_err().kind, ErrorKind::Protocol);
    assert_eq!(fold(&[]).unwrap_err().kind, ErrorKind::Protocol);
    let pieces = json!([stopped, end("STOP")]);
    assert_eq!(read(&pieces).text(), "a");
}

#[test]
fn stop_reasons_are_distinguished() {
    let call = json!({"functionCall": {"name": "look"}});
    let of = |reason: &str, message: Option<&str>, part: &Value| {
        let candidate =
            json!({"content": {"parts": [part]}, "finishReason": reason, "finishMessage": message});
        let response = read(&json!({"candidates": [candidate]}));
        (response.stop, response.stop_detail)
    };
    let text = json!({"text": "a"});
    let other = |word: &str| StopReason::Other(word.into());
    let detail = |text: &str| Some(text.to_owned());
    for (reason, message, part, expected) in [
        ("STOP", None, &text, (StopReason::EndTurn, None)),
        ("STOP", Some("called"), &call, (StopReason::ToolUse, None)),
        ("MAX_TOKENS", None, &call, (StopReason::MaxTokens, None)),
        ("SAFETY", None, &text, (StopReason::Refusal, detail("SAFETY"))),
        ("RECITATION", Some("why"), &text, (StopReason::Refusal, detail("RECITATION: why"))),
        ("MALFORMED_FUNCTION_CALL", Some("why"), &text, (other("MALFORMED_FUNCTION_CALL"), detail("why"))),
        ("MISSING_THOUGHT_SIGNATURE", None, &text, (other("MISSING_THOUGHT_SIGNATURE"), None)),
        ("UNEXPECTED_TOOL_CALL", None, &call, (StopReason::ToolUse, detail("UNEXPECTED_TOOL_CALL"))),
        ("BRAND_NEW", None, &text, (other("BRAND_NEW"), None)),
    ] {
        assert_eq!(of(reason, message, part), expected, "{reason}");
    }
}

#[test]
fn usage_is_counted_as_on_every_wire() {
    let response = read(&json!({
        "candidates": [{"finishReason": "STOP", "groundingMetadata": {"webSearchQueries": ["a", "b"]}}],
        "usageMetadata": {
            "promptTokenCount": 100, "cachedContentTokenCount": 30, "toolUsePromptTokenCount": 5,
            "candidatesTokenCount": 7, "thoughtsTokenCount": 11, "totalTokenCount": 123,
        },
        "modelVersion": "m", "responseId": "r",
    }));
    let usage = &response.usage;
    assert_eq!((usage.input, usage.cache_read, usage.output, usage.reasoning), (75, 30, 18, Some(11)));
    assert_eq!(usage.total(), 123);
    assert_eq!(usage.hosted["web_search_requests"], 2);
    assert_eq!((response.id.as_str(), response.model.as_str()), ("r", "m"));
}

#[test]
fn late_sources_belong_to_the_text() {
    let mut last = end("STOP");
    last["candidates"][0]["groundingMetadata"] = json!({
        "groundingChunks": [{"web": {"uri": "u", "title": "t"}}],
        "groundingSupports": [{"segment": {"startIndex": 1, "endIndex": 2}, "groundingChunkIndices": [0]}],
    });
    let first = parts(&json!([{"text": "a"}]));
    let (response, delivered) = fold(&[first, parts(&json!([{"text": "b"}])), last]).unwrap();
    let citation = Citation { url: Some("u".into()), title: Some("t".into()), file: None };
    assert_eq!(*response.items[0].view(), ItemView::Text { text: "ab".into(), citations: vec![citation] });
    assert!(delivered.contains(&ModelEvent::Item(response.items[0].clone())));
    assert_eq!(read(&response.raw.to_value().unwrap()).items, response.items);
}

#[test]
fn log_probabilities_of_all_events_are_joined() {
    let event = |text: &str, result: Value| {
        let mut event = parts(&json!([{ "text": text }]));
        event["candidates"][0]["logprobsResult"] = result;
        event
    };
    let token = |text: &str| json!({"token": text, "logProbability": -0.5});
    let (response, _) = fold(&[
        event("a", json!({"chosenCandidates": [token("a")], "topCandidates": []})),
        event("b", json!({"chosenCandidates": [token("b"), token("c")], "topCandidates": [], "sum": -1.0})),
        event("", json!({"chosenCandidates": [], "sum": -1.5})),
        end("STOP"),
    ])
    .unwrap();
    let body = response.raw.to_value().unwrap();
    assert_eq!(
        body["candidates"][0]["logprobsResult"],
        json!({"chosenCandidates": [token("a"), token("b"), token("c")], "topCandidates": [], "sum": -1.5})
    );
}

#[test]
fn unexpected_input_never_panics() {
    let (response, delivered) = fold(&[
        json!({"brandNew": true}),
        json!({"candidates": [{"index": 1, "content": {"parts": [{"text": "another"}]}}], "responseId": "r"}),
        json!({"candidates": null, "modelVersion": null, "newMember": {"x": 1.0}}),
        json!({"candidates": [{"content": {"parts": null}}]}),
        json!({"candidates": [{"content": {"parts": [7, null, "x", [], {}]}}]}),
        end("STOP"),
    ])
    .unwrap();
    assert_eq!(delivered.iter().filter(|event| matches!(event, ModelEvent::Unknown(_))).count(), 2);
    assert_eq!(raws(&response), [json!(7), json!(null), json!("x"), json!([]), json!({})]);
    assert_eq!(response.raw.to_value().unwrap()["newMember"], json!({"x": 1.0}));
    for text in ["data: {\"candidates\":\n\n", "data: no json\n\n", "data: []\n\n", "data: 7\n\n"] {
        let mut fold = Wire::GenerateContent.fold(&new_model());
        let error = fold.feed(text.as_bytes(), &mut VecDeque::new()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol, "{text}");
    }
    for text in ["", "7", "[]", "{}", r#"{"candidates":[]}"#, r#"{"candidates":7}"#] {
        let error = Wire::GenerateContent.read_body(&new_model(), 200, text).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol, "{text}");
    }
    let many: serde_json::Map<String, Value> =
        (0..900).map(|number| (format!("m{number}"), json!(1))).collect();
    let more: serde_json::Map<String, Value> =
        (0..900).map(|number| (format!("n{number}"), json!(1))).collect();
    let events = [many, more].map(|mut members| {
        members.insert("responseId".into(), "r".into());
        Value::from(members)
    });
    assert!(fold(&events).unwrap_err().message.contains("members"));
}

const KEY: &str = "AIza-test-key";

fn hosted(server: &LoopbackProvider, max_retries: u32) -> HostedModel {
    let provider = Provider::find("gemini").unwrap();
    let base_url = format!("{}/v1beta/", server.base_url());
    support::hosted(provider, "gemini-3-x", base_url, KEY, support::options(max_retries))
}

/// The events and the end of a stream.
fn stream(events: &[Value]) -> Reply {
    Reply::events(events.iter().map(|event| format!("data: {event}\r\n\r\n")).collect::<Vec<_>>().concat())
}

fn error(code: u16, status: &str, details: &Value) -> Value {
    json!({"error": {"code": code, "message": "what happened", "status": status, "details": details}})
}

#[tokio::test]
async fn an_answer_is_the_same_streamed_or_not() {
    let whole =
        json!({"candidates": [{"content": {"parts": [{"text": "hello you"}]}, "finishReason": "STOP"}]});
    let pieces = [parts(&json!([{"text": "hello "}])), parts(&json!([{"text": "you"}])), end("STOP")];
    let server = LoopbackProvider::start(vec![Reply::json(200, whole.to_string()), stream(&pieces)]).unwrap();
    let model = hosted(&server, 3);
    assert_eq!(model.respond(&Request::new("hi")).await.unwrap().text(), "hello you");
    let (events, response) = support::streamed(&model, &Request::new("hi")).await;
    assert_eq!(response.unwrap().text(), "hello you");
    assert_eq!(events.iter().filter(|event| matches!(event, ModelEvent::TextDelta { .. })).count(), 2);
    let requests = server.requests();
    assert_eq!(requests[0].path, "/v1beta/models/gemini-3-x:generateContent");
    assert_eq!(requests[1].path, "/v1beta/models/gemini-3-x:streamGenerateContent?alt=sse");
    for request in &requests {
        assert_eq!(request.header("x-goog-api-key"), Some(KEY));
    }
}

#[tokio::test]
async fn unsent_settings_have_notices() {
    let whole = json!({"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 1}})
    .to_string();
    let server = LoopbackProvider::start_with(move |_| Reply::json(200, whole.clone())).unwrap();
    let model = hosted(&server, 3);
    let cases: [Remark; 11] = [
        (|r| r.settings.parallel_tool_calls = Some(false), "`parallel_tool_calls` was not sent"),
        (|r| r.settings.effort = Some(Effort::Max), "effort `max` was sent as `high`"),
        (|r| r.settings.thinking = Some(Thinking::Off), "`minimal`"),
        (
            |r| r.settings.prompt_caching = PromptCaching::Breakpoints(CacheLifetime::OneHour),
            "`cachedContent`",
        ),
        (|r| r.tools = [ToolDefinition { deferred: true, ..tool() }].into(), "deferred tools"),
        (
            |r| {
                r.settings.thinking = Some(Thinking::Budget(9));
                r.settings.effort = Some(Effort::Low);
            },
            "the thinking budget was not sent",
        ),
        (
            |r| {
                r.hosted_tools =
                    vec![HostedTool::CodeExecution { version: Some("v".into()), file_ids: vec![] }];
            },
            "version `v`",
        ),
        (
            |r| {
                r.hosted_tools = vec![HostedTool::WebSearch {
                    max_uses: Some(1),
                    allowed_domains: vec![],
                    blocked_domains: vec![],
                }];
            },
            "`max_uses` of `web_search`",
        ),
        (|r| r.turns.push(Turn::System(vec![Part::text("x")])), "system turns"),
        (|r| r.turns.push(foreign()), "have no thought signature"),
        (
            |r| {
                let deep = (0..100).fold(json!({}), |inner, _| json!({"properties": {"a": inner}}));
                r.tools = [ToolDefinition::new("look", "Looks.", &deep)].into();
            },
            "the schema of `look` was sent as an open object",
        ),
    ];
    for (change, expected) in cases {
        let mut request = Request::new("hi");
        change(&mut request);
        let notices = model.respond(&request).await.unwrap().notices;
        assert!(notices.iter().any(|notice| notice.contains(expected)), "{expected}: {notices:?}");
    }
    assert!(model.respond(&Request::new("hi")).await.unwrap().notices.is_empty());
}

#[tokio::test]
async fn the_wait_in_the_body_is_respected() {
    let details = json!([{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "0.2s"}]);
    let busy = Reply::json(429, error(429, "RESOURCE_EXHAUSTED", &details).to_string());
    let pieces = [parts(&json!([{"text": "a"}])), end("STOP")];
    let server = LoopbackProvider::start(vec![busy.clone(), stream(&pieces)]).unwrap();
    let (events, response) = support::streamed(&hosted(&server, 3), &Request::new("hi")).await;
    assert_eq!(response.unwrap().text(), "a");
    let ModelEvent::Retrying { after, .. } = &events[0] else { panic!("{events:?}") };
    assert_eq!(*after, Duration::from_millis(200));

    let server = LoopbackProvider::start(vec![busy]).unwrap();
    let error = hosted(&server, 0).respond(&Request::new("hi")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::RateLimited { retry_after: Some(Duration::from_millis(200)) });
}

#[tokio::test]
async fn errors_within_a_stream_have_a_kind() {
    let first = parts(&json!([{"text": "a"}]));
    let blocked =
        json!({"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "no"}, "responseId": "r"});
    for (events, expected) in [
        (vec![first.clone(), error(503, "UNAVAILABLE", &json!([]))], ErrorKind::Overloaded),
        (
            vec![first.clone(), error(429, "RESOURCE_EXHAUSTED", &json!([]))],
            ErrorKind::RateLimited { retry_after: None },
        ),
        (vec![first.clone(), error(400, "INVALID_ARGUMENT", &json!([]))], ErrorKind::InvalidRequest),
        (vec![blocked.clone()], ErrorKind::Refused),
        (vec![first.clone()], ErrorKind::Protocol),
    ] {
        let server = LoopbackProvider::start(vec![stream(&events)]).unwrap();
        let error = support::streamed(&hosted(&server, 0), &Request::new("hi")).await.1.unwrap_err();
        assert_eq!(error.kind, expected, "{error}");
        assert!(!format!("{error} {error:?}").contains(KEY));
    }
    let error = Wire::GenerateContent.read_body(&new_model(), 200, &blocked.to_string()).unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Refused, "no"));
    assert_eq!(error.details.provider_code.as_deref(), Some("SAFETY"));
}

#[tokio::test]
async fn nothing_is_retried_after_a_delivered_event() {
    let pieces = [parts(&json!([{"text": "a"}])), error(503, "UNAVAILABLE", &json!([]))];
    let server = LoopbackProvider::start(vec![stream(&pieces), stream(&[end("STOP")])]).unwrap();
    let (_, response) = support::streamed(&hosted(&server, 3), &Request::new("hi")).await;
    assert_eq!(response.unwrap_err().kind, ErrorKind::Overloaded);
    assert_eq!(server.requests().len(), 1);
}
