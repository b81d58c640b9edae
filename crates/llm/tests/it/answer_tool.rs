//! Structured output through the answer tool, where a wire has no native structured output.

use std::collections::VecDeque;

use serde_json::{Value, json};
use toolpost_llm::{
    ErrorKind, HostedTool, ItemView, ModelEvent, ModelId, OutputFormat, Request, Response, StopReason,
    Thinking, ToolChoice, ToolDefinition, Wire,
};

const ANTHROPIC: (Wire, &str, &str) = (Wire::Messages, "anthropic", "claude-opus-5");
const GEMINI: (Wire, &str, &str) = (Wire::GenerateContent, "gemini", "gemini-2.5-flash");
const OPENAI: (Wire, &str, &str) = (Wire::Responses, "openai", "gpt-6.1-sol");
const XAI: (Wire, &str, &str) = (Wire::XaiResponses, "xai", "grok-4.7");

fn model(of: (Wire, &str, &str)) -> ModelId {
    ModelId::new(of.1, of.2)
}

fn written(of: (Wire, &str, &str), request: &Request) -> Value {
    of.0.write_body(&model(of), request, false).unwrap().to_value().unwrap()
}

fn asking(schema: &Value) -> Request {
    let mut request = Request::new("Which?");
    request.settings.output = Some(OutputFormat::schema(schema));
    request
}

fn city() -> Value {
    json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
}

/// An object that no strict provider accepts.
fn open() -> Value {
    json!({"type": "object", "additionalProperties": {"type": "integer"}})
}

fn look() -> ToolDefinition {
    ToolDefinition::new("look", "Looks.", &city())
}

/// A request with the expected form of its structured output.
struct Row {
    name: &'static str,
    of: (Wire, &'static str, &'static str),
    request: Request,
    /// The member of native structured output, and whether it is present.
    form: (&'static str, bool),
    /// The member of the tool choice, and its value.
    choice: (&'static str, Value),
    /// The number of tools.
    tools: usize,
}

#[test]
fn native_structured_output_precedes_the_answer_tool() {
    let with_tool = |mut request: Request| {
        request.tools = vec![look()].into();
        request
    };
    let choosing = |mut request: Request, choice: ToolChoice| {
        request.tool_choice = Some(choice);
        with_tool(request)
    };
    let by = |mut request: Request, way: &str| {
        request.provider_options.insert("structured_output".into(), way.into());
        request
    };
    let thinking = |mut request: Request| {
        request.settings.thinking = Some(Thinking::Budget(2_000));
        request
    };
    let old = (Wire::Messages, "anthropic", "claude-3-haiku");
    // The model rejects a forced call.
    let newest = (Wire::Messages, "anthropic", "claude-opus-5-5");
    let form = "/output_config/format";
    let answer = || json!({"type": "tool", "name": "toolpost_answer"});
    let named = |name: &str| json!({"type": "function", "name": name});
    let allowed = "/toolConfig/functionCallingConfig";
    for Row { name, of, request, form, choice, tools } in [
        Row {
            name: "a form",
            of: ANTHROPIC,
            request: asking(&city()),
            form: (form, true),
            choice: ("/tool_choice", Value::Null),
            tools: 0,
        },
        Row {
            name: "an open object",
            of: ANTHROPIC,
            request: asking(&open()),
            form: (form, false),
            choice: ("/tool_choice", answer()),
            tools: 1,
        },
        Row {
            name: "beside tools",
            of: ANTHROPIC,
            request: with_tool(asking(&open())),
            form: (form, false),
            choice: ("/tool_choice", json!({"type": "any"})),
            tools: 2,
        },
        Row {
            name: "no tool",
            of: ANTHROPIC,
            request: choosing(asking(&open()), ToolChoice::None),
            form: (form, false),
            choice: ("/tool_choice", answer()),
            tools: 2,
        },
        Row {
            name: "another tool first",
            of: ANTHROPIC,
            request: choosing(asking(&open()), ToolChoice::Tool("look".into())),
            form: (form, false),
            choice: ("/tool_choice/name", json!("look")),
            tools: 2,
        },
        Row {
            name: "a model without forms",
            of: old,
            request: asking(&city()),
            form: (form, false),
            choice: ("/tool_choice", answer()),
            tools: 1,
        },
        Row {
            name: "by the tool",
            of: ANTHROPIC,
            request: by(asking(&city()), "tool"),
            form: (form, false),
            choice: ("/tool_choice", answer()),
            tools: 1,
        },
        Row {
            name: "natively",
            of: ANTHROPIC,
            request: by(asking(&open()), "native"),
            form: (form, false),
            choice: ("/tool_choice", Value::Null),
            tools: 0,
        },
        Row {
            name: "a model that cannot be made to",
            of: newest,
            request: asking(&open()),
            form: (form, false),
            choice: ("/tool_choice", Value::Null),
            tools: 0,
        },
        Row {
            name: "a budget of thinking",
            of: ANTHROPIC,
            request: thinking(asking(&open())),
            form: (form, false),
            choice: ("/tool_choice", Value::Null),
            tools: 0,
        },
        Row {
            name: "no tools",
            of: GEMINI,
            request: asking(&city()),
            form: ("/generationConfig/responseJsonSchema", true),
            choice: (allowed, Value::Null),
            tools: 0,
        },
        Row {
            name: "an old model with tools",
            of: GEMINI,
            request: with_tool(asking(&city())),
            form: ("/generationConfig/responseJsonSchema", false),
            choice: (allowed, json!({"mode": "ANY"})),
            tools: 1,
        },
        Row {
            name: "a form",
            of: OPENAI,
            request: asking(&open()),
            form: ("/text/format", true),
            choice: ("/tool_choice", Value::Null),
            tools: 0,
        },
        Row {
            name: "a list",
            of: OPENAI,
            request: asking(&json!({"type": "array", "items": {"type": "string"}})),
            form: ("/text/format", false),
            choice: ("/tool_choice", named("toolpost_answer_value")),
            tools: 1,
        },
        Row {
            name: "a list",
            of: XAI,
            request: asking(&json!({"type": "array"})),
            form: ("/text/format", false),
            choice: ("/tool_choice", named("toolpost_answer_value")),
            tools: 1,
        },
        Row {
            name: "by the tool",
            of: XAI,
            request: by(asking(&city()), "tool"),
            form: ("/text/format", false),
            choice: ("/tool_choice", named("toolpost_answer")),
            tools: 1,
        },
    ] {
        let body = written(of, &request);
        let name = format!("{} {name}: {body}", of.1);
        assert_eq!(body.pointer(form.0).is_some(), form.1, "{name}");
        assert_eq!(body.pointer(choice.0).unwrap_or(&Value::Null), &choice.1, "{name}");
        assert_eq!(body["tools"].as_array().map_or(0, Vec::len), tools, "{name}");
        assert!(body.get("structured_output").is_none(), "{name}");
        // The instructions contain the schema.
        let told = body.to_string().contains("It must match this JSON Schema");
        assert_eq!(told, !form.1 && body.to_string().matches("toolpost_answer").count() == 0, "{name}");
    }
}

#[test]
fn an_answer_that_is_not_an_object_is_wrapped() {
    let schema = json!({
        "type": "array", "items": {"$ref": "#/$defs/City"}, "$defs": {"City": city()},
    });
    let body = written(ANTHROPIC, &asking(&schema));
    let tool = json!({
        "name": "toolpost_answer_value",
        "description": "Gives the final answer. Call it once, with the whole answer.",
        "input_schema": {
            "type": "object",
            "required": ["answer"],
            "additionalProperties": false,
            "$defs": {"City": city()},
            "properties": {"answer": {"type": "array", "items": {"$ref": "#/$defs/City"}}},
        },
    });
    assert_eq!(body["tools"], json!([tool]));
    // A recursive schema cannot be nested: the instructions contain it.
    let itself = json!({"type": "array", "items": {"$ref": "#"}});
    let body = written(ANTHROPIC, &asking(&itself));
    assert_eq!(body.get("tools"), None);
    assert!(body["system"].as_str().unwrap().contains("It must match this JSON Schema"));
}

#[test]
fn an_impossible_forced_call_is_an_error() {
    let refused =
        |of: (Wire, &str, &str), request: &Request| of.0.write_body(&model(of), request, false).unwrap_err();
    let mut request = asking(&city());
    request.settings.thinking = Some(Thinking::Budget(2_000));
    let error = refused((Wire::Messages, "anthropic", "claude-3-haiku"), &request);
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("`claude-3-haiku` has no native structured output"), "{error}");
    for of in [ANTHROPIC, GEMINI, OPENAI, XAI] {
        let mut request = asking(&city());
        request.provider_options.insert("structured_output".into(), "magic".into());
        assert!(refused(of, &request).message.contains("expected `tool` or `native`"));
        let mut request = Request::new("x");
        request.tools = vec![ToolDefinition::new("toolpost_answer", "", &city())].into();
        assert!(refused(of, &request).message.contains("`toolpost_answer`"));
    }
}

/// The answer and the events of a stream, and the answer of a body.
fn answers(of: (Wire, &str, &str), stream: &[Value], body: &Value) -> (Response, Vec<ModelEvent>, Response) {
    let mut fold = of.0.fold(&model(of));
    let mut events = VecDeque::new();
    for event in stream {
        fold.feed(format!("data: {event}\n\n").as_bytes(), &mut events).unwrap();
    }
    let response = fold.finish(&mut events).unwrap();
    (response, events.into(), of.0.read_body(&model(of), 200, &body.to_string()).unwrap())
}

fn text_of(events: &[ModelEvent]) -> String {
    let texts = events.iter().filter_map(|event| match event {
        ModelEvent::TextDelta { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn check_answer(answers: &(Response, Vec<ModelEvent>, Response), expected: &str) {
    let (streamed, events, whole) = answers;
    for response in [streamed, whole] {
        assert_eq!((response.text().as_str(), &response.stop), (expected, &StopReason::EndTurn));
        assert_eq!(response.tool_calls().count(), 0);
    }
    assert_eq!(text_of(events), expected);
    assert!(!events.iter().any(|event| matches!(event, ModelEvent::ToolCallDelta { .. })));
    let items: Vec<_> = events.iter().filter(|event| matches!(event, ModelEvent::Item(_))).collect();
    assert_eq!(items.len(), streamed.items.len());
}

#[test]
fn the_arguments_of_the_answer_tool_are_the_text() {
    let block =
        |name: &str, input: Value| json!({"type": "tool_use", "id": "t1", "name": name, "input": input});
    let message = |block: Value| {
        json!({"id": "m", "type": "message", "role": "assistant", "model": "claude-opus-5", "content": [block],
            "stop_reason": "tool_use", "usage": {"input_tokens": 1, "output_tokens": 1}})
    };
    let stream = |name: &str, pieces: [&str; 2]| {
        let mut start = message(json!(null));
        start["content"] = json!([]);
        let delta = |piece: &str| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": piece}});
        vec![
            json!({"type": "message_start", "message": start}),
            json!({"type": "content_block_start", "index": 0, "content_block": block(name, json!({}))}),
            delta(pieces[0]),
            delta(pieces[1]),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}}),
            json!({"type": "message_stop"}),
        ]
    };
    let object = answers(
        ANTHROPIC,
        &stream("toolpost_answer", ["{\"name\":", "\"Oslo\"}"]),
        &message(block("toolpost_answer", json!({"name": "Oslo"}))),
    );
    check_answer(&object, r#"{"name":"Oslo"}"#);
    let value = answers(
        ANTHROPIC,
        &stream("toolpost_answer_value", ["{\"answer\":[1", ",2]}"]),
        &message(block("toolpost_answer_value", json!({"answer": [1, 2]}))),
    );
    check_answer(&value, "[1,2]");
    // The next request contains the answer as text.
    let mut next = Request::new("x");
    next.push_response(&object.0);
    let said = written(ANTHROPIC, &next)["messages"][1].clone();
    assert_eq!(said["content"], json!([{"type": "text", "text": "{\"name\":\"Oslo\"}"}]));

    let candidate = |name: &str| {
        json!({"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": name, "args": {"name": "Oslo"}}}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}})
    };
    let gemini = answers(GEMINI, &[candidate("toolpost_answer")], &candidate("toolpost_answer"));
    check_answer(&gemini, r#"{"name":"Oslo"}"#);
    let mut next = Request::new("x");
    next.push_response(&gemini.0);
    assert_eq!(written(GEMINI, &next)["contents"][1]["parts"], json!([{"text": "{\"name\":\"Oslo\"}"}]));
}

#[test]
fn openai_answer_calls_are_sent_back_with_a_result() {
    let reasoning = json!({"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e"});
    let call = json!({"type": "function_call", "id": "f", "call_id": "c1", "name": "toolpost_answer_value",
        "arguments": "{\"answer\":[\"Oslo\"]}", "status": "completed"});
    for of in [OPENAI, XAI] {
        let body = json!({"id": "resp", "object": "response", "status": "completed", "model": of.2,
            "output": [reasoning, call], "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}});
        let added = |item: &Value| {
            let mut item = item.clone();
            item["arguments"] = json!("");
            item["status"] = json!("in_progress");
            json!({"type": "response.output_item.added", "output_index": 1, "item": item})
        };
        let events = [
            json!({"type": "response.created", "response": {"id": "resp", "object": "response", "status": "in_progress", "model": of.2, "output": []}}),
            json!({"type": "response.output_item.added", "output_index": 0, "item": reasoning}),
            json!({"type": "response.output_item.done", "output_index": 0, "item": reasoning}),
            added(&call),
            json!({"type": "response.function_call_arguments.delta", "output_index": 1, "item_id": "f", "delta": "{\"answer\":[\"Oslo\"]}"}),
            json!({"type": "response.output_item.done", "output_index": 1, "item": call}),
            json!({"type": "response.completed", "response": body}),
        ];
        let answers = answers(of, &events, &body);
        check_answer(&answers, r#"["Oslo"]"#);
        let mut next = asking(&json!({"type": "array"}));
        next.push_response(&answers.0);
        let input = written(of, &next)["input"].clone();
        let sent: Vec<&Value> = input.as_array().unwrap().iter().rev().take(3).collect();
        assert_eq!(
            (sent[0]["type"].as_str(), sent[0]["call_id"].as_str()),
            (Some("function_call_output"), Some("c1"))
        );
        assert_eq!((sent[1], sent[2]), (&call, &reasoning));
    }
}

#[test]
fn calls_of_other_tools_stay_calls() {
    let block =
        |id: &str, name: &str| json!({"type": "tool_use", "id": id, "name": name, "input": {"name": "Oslo"}});
    let body = json!({"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "content": [block("a", "toolpost_answer"), block("b", "look")], "usage": {"input_tokens": 1, "output_tokens": 1}});
    let response = Wire::Messages.read_body(&model(ANTHROPIC), 200, &body.to_string()).unwrap();
    assert_eq!(response.stop, StopReason::ToolUse);
    let views: Vec<_> =
        response.items.iter().map(|item| matches!(item.view(), ItemView::ToolCall { .. })).collect();
    assert_eq!(views, [false, true]);
    // The tool choice includes hosted tools.
    let mut request = asking(&open());
    request.hosted_tools =
        vec![HostedTool::WebSearch { max_uses: None, allowed_domains: vec![], blocked_domains: vec![] }];
    assert_eq!(written(ANTHROPIC, &request)["tool_choice"], json!({"type": "any"}));
}
