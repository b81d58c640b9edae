//! Runs over the wire of each provider.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost::{Approval, Event};
use toolpost_agent::{Agent, AgentBuilder, Conversations, RunStopReason};
use toolpost_llm::{HostedTool, ModelSettings, OutputFormat};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::support::{bodies, hosted};

fn agent_at(server: &LoopbackProvider, provider: &str, model: &str) -> AgentBuilder {
    agent_with(server, provider, model, Approval::Allow)
}

fn agent_with(server: &LoopbackProvider, provider: &str, model: &str, approval: Approval) -> AgentBuilder {
    let toolbox = Toolbox::builder().tool(crate::add).approval("add", approval).build().unwrap();
    Agent::builder(hosted(server, provider, model), toolbox)
}

/// The body of a response of OpenAI or xAI.
fn response(output: &Value) -> Value {
    json!({"id": "resp_1", "object": "response", "status": "completed", "model": "m", "output": [output],
        "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}})
}

fn responses() -> [Value; 2] {
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add",
        "arguments": "{\"a\":1,\"b\":2}", "status": "completed"});
    [response(&call), response(&message_item())]
}

fn message_item() -> Value {
    json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "It is 3.", "annotations": []}]})
}

/// The answers of Anthropic: a call, and words.
fn messages() -> [Value; 2] {
    let message = |content: Value, stop: &str| {
        json!({"type": "message", "id": "m", "role": "assistant", "model": "m", "content": [content],
            "stop_reason": stop, "usage": {"input_tokens": 10, "output_tokens": 2}})
    };
    [
        message(
            json!({"type": "tool_use", "id": "c1", "name": "add", "input": {"a": 1, "b": 2}}),
            "tool_use",
        ),
        message(json!({"type": "text", "text": "It is 3."}), "end_turn"),
    ]
}

#[tokio::test]
async fn a_pending_call_has_a_result_in_the_next_prompt() {
    for (provider, model, replies) in
        [("anthropic", "claude-opus-5-5", messages()), ("openai", "gpt-6.1-sol", responses())]
    {
        let replies = replies.iter().map(|reply| Reply::json(200, reply.to_string())).collect();
        let server = LoopbackProvider::start(replies).unwrap();
        let agent = agent_with(&server, provider, model, Approval::Ask).pause_for_approval(true).build();
        let conversations = Conversations::new(Arc::new(MemoryStore::new()));
        let conversation = conversations.create();
        let first = conversation.run(&agent, "How much is 1 and 2?").finish().await;
        assert_eq!(first.stop, RunStopReason::ApprovalNeeded, "{provider}: {:?}", first.error);
        let again = conversations.open(conversation.id()).await.unwrap();
        let second = again.run(&agent, "Never mind.").finish().await;
        assert_eq!((second.text(), &second.stop), ("It is 3.", &RunStopReason::EndTurn), "{provider}");
        let body = &bodies(&server)[1];
        // Each call has its result right behind it, and the prompt comes after that.
        if provider == "anthropic" {
            let all = body["messages"].as_array().unwrap();
            assert_eq!(
                (all[1]["content"][0]["id"].as_str(), all[2]["role"].as_str()),
                (Some("c1"), Some("user"))
            );
            let result = &all[2]["content"][0];
            assert_eq!((&result["type"], &result["tool_use_id"]), (&json!("tool_result"), &json!("c1")));
            assert_eq!(result["is_error"], true, "{body}");
            assert!(result.to_string().contains("did not run: another"), "{body}");
            assert!(all[2]["content"][1].to_string().contains("Never mind."), "{body}");
            assert_eq!(all.len(), 3, "{body}");
        } else {
            let all = body["input"].as_array().unwrap();
            assert_eq!((&all[1]["type"], &all[1]["call_id"]), (&json!("function_call"), &json!("c1")));
            assert_eq!((&all[2]["type"], &all[2]["call_id"]), (&json!("function_call_output"), &json!("c1")));
            assert!(all[2]["output"].to_string().contains("did not run: another"), "{body}");
            assert!(all.len() == 4 && all[3].to_string().contains("Never mind."), "{body}");
        }
    }
}

#[tokio::test]
async fn a_tool_call_works_on_every_wire() {
    let anthropic = messages();
    let candidate = |part: Value| {
        json!({"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12},
            "responseId": "r", "modelVersion": "m"})
    };
    let gemini = [
        candidate(json!({"functionCall": {"name": "add", "args": {"a": 1, "b": 2}}})),
        candidate(json!({"text": "It is 3."})),
    ];
    let choice = |message: Value, reason: &str| {
        json!({"id": "x", "object": "chat.completion", "model": "m",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}})
    };
    let call = json!({"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\":1,\"b\":2}"}});
    let chat = [
        choice(json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls"),
        choice(json!({"role": "assistant", "content": "It is 3."}), "stop"),
    ];
    // Where the second request has the tool's name in the first one, and the result.
    for (provider, model, replies, tool, result) in [
        ("anthropic", "claude-opus-5-5", anthropic, "/tools/0/name", "/messages/2/content/0"),
        ("openai", "gpt-6.1-sol", responses(), "/tools/0/name", "/input/2"),
        ("xai", "grok-4.7", responses(), "/tools/0/name", "/input/2"),
        ("gemini", "gemini-4-argon", gemini, "/tools/0/functionDeclarations/0/name", "/contents/2/parts/0"),
        ("openai-compatible", "m", chat, "/tools/0/function/name", "/messages/2"),
    ] {
        let replies = replies.iter().map(|reply| Reply::json(200, reply.to_string())).collect();
        let server = LoopbackProvider::start(replies).unwrap();
        let outcome = agent_at(&server, provider, model).build().run("How much is 1 and 2?").finish().await;
        assert_eq!(outcome.stop, RunStopReason::EndTurn, "{provider}: {:?}", outcome.error);
        assert_eq!((outcome.text(), outcome.record.tool_calls.len()), ("It is 3.", 1), "{provider}");
        assert_eq!((outcome.record.usage.input_tokens, outcome.record.usage.output_tokens), (20, 4));
        let bodies = bodies(&server);
        assert_eq!(bodies.len(), 2, "{provider}");
        assert_eq!(bodies[0].pointer(tool), Some(&json!("add")), "{provider}: {}", bodies[0]);
        let result = bodies[1].pointer(result).unwrap_or(&Value::Null).to_string();
        // By the call's id, or where there is none by the tool's name.
        let names_call = result.contains("\"c1\"") || (provider == "gemini" && result.contains("\"add\""));
        assert!(names_call && result.contains('3'), "{provider}: {result} in {}", bodies[1]);
    }
}

#[tokio::test]
async fn hosted_searches_and_json_output_reach_the_provider() {
    let server =
        LoopbackProvider::start(vec![Reply::json(200, response(&message_item()).to_string())]).unwrap();
    let search =
        HostedTool::WebSearch { max_uses: None, allowed_domains: Vec::new(), blocked_domains: Vec::new() };
    let files = HostedTool::FileSearch { stores: vec!["vs_1".into()], max_results: Some(3) };
    let settings = ModelSettings { output: Some(OutputFormat::Json), ..ModelSettings::default() };
    let agent = agent_at(&server, "openai", "gpt-6.1-sol").hosted_tools([search, files]).settings(settings);
    let outcome = agent.build().run("What is new? Say it as JSON.").finish().await;
    assert_eq!(outcome.stop, RunStopReason::EndTurn, "{:?}", outcome.error);
    let body = &bodies(&server)[0];
    let tools: Vec<&Value> = body["tools"].as_array().unwrap().iter().map(|tool| &tool["type"]).collect();
    assert_eq!(tools, ["web_search", "file_search", "function"], "{body}");
    assert_eq!(body["tools"][1]["vector_store_ids"], json!(["vs_1"]));
    assert_eq!(body["text"]["format"], json!({"type": "json_object"}));
}

#[tokio::test]
async fn usage_metadata_is_not_sent_to_the_provider() {
    let event = |kind: &str, mut fields: Value| {
        fields["type"] = json!(kind);
        format!("event: {kind}\ndata: {fields}\n\n")
    };
    let stream = event(
        "response.created",
        json!({"sequence_number": 0, "response": {"id": "resp_1", "status": "in_progress", "output": []}}),
    ) + &event(
        "response.output_item.done",
        json!({"sequence_number": 1, "output_index": 0, "item": message_item()}),
    ) + &event(
        "response.completed",
        json!({"sequence_number": 2, "response": response(&message_item())}),
    );
    let server = LoopbackProvider::start(vec![Reply::events(stream)]).unwrap();
    let reported = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&reported);
    let agent = agent_at(&server, "openai", "gpt-6.1-sol")
        .on_usage(Arc::new(move |event| sink.lock().unwrap().push(event.metadata.clone())))
        .build();
    let tags = json!({ "tenant": "tenant-seven" }).as_object().unwrap().clone();
    let outcome = agent.run("Hi.").with_usage_metadata(tags.clone()).finish().await;
    assert_eq!(outcome.text(), "It is 3.", "{:?}", outcome.error);
    assert_eq!(*reported.lock().unwrap(), [tags]);
    let request = &server.requests()[0];
    assert_eq!(request.json()["stream"], true);
    let sent = String::from_utf8_lossy(&request.body).into_owned() + &format!("{:?}", request.headers);
    assert!(!sent.contains("tenant") && request.json().get("metadata").is_none(), "{sent}");
}

#[tokio::test]
async fn a_notice_of_an_answer_is_emitted_once() {
    let body = json!({"id": "resp_1", "object": "response", "status": "completed", "model": "m",
        "output": [{"type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}]}]});
    let server = LoopbackProvider::start(vec![Reply::json(200, body.to_string())]).unwrap();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&reported);
    let agent = agent_at(&server, "openai", "gpt-x")
        .on_event(Arc::new(move |event: &Event| {
            if let Event::Notice { message } = event {
                heard.lock().unwrap().push(message.clone());
            }
        }))
        .build();
    let outcome = agent.run("hi").finish().await;
    assert_eq!(outcome.stop, RunStopReason::EndTurn, "{:?}", outcome.error);
    let reported = reported.lock().unwrap();
    let of_tokens = reported.iter().filter(|notice| notice.contains("token counts")).count();
    assert_eq!(of_tokens, 1, "{reported:?}");
}

#[tokio::test]
async fn an_approval_request_of_the_provider_is_a_notice() {
    let body = json!({"id": "resp_1", "object": "response", "status": "completed", "model": "m",
        "output": [{"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "tickets", "name": "close",
            "arguments": "{}"}],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}});
    let server = LoopbackProvider::start(vec![Reply::json(200, body.to_string())]).unwrap();
    let outcome = agent_at(&server, "openai", "gpt-x").build().run("hi").finish().await;
    assert!(!outcome.record.success, "{:?}", outcome.stop);
    let reported = &outcome.record.notices;
    let has = |part: &str| reported.iter().any(|notice| notice.contains(part));
    assert!(has("`close` on the MCP server `tickets`") && has("require_approval"), "{reported:?}");
}

#[tokio::test]
async fn deeply_nested_arguments_are_reported_to_the_model() {
    let arguments = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
    let call = json!({"id": "resp_1", "object": "response", "status": "completed", "model": "m",
        "output": [{"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "status": "completed",
            "arguments": arguments}],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}});
    let server = LoopbackProvider::start(vec![
        Reply::json(200, call.to_string()),
        Reply::json(400, r#"{"error":{"message":"enough"}}"#),
    ])
    .unwrap();
    agent_at(&server, "openai", "gpt-x").build().run("hi").finish().await;
    let asked = server.requests();
    let last = String::from_utf8_lossy(&asked.last().unwrap().body).into_owned();
    assert_eq!(asked.len(), 2);
    assert!(last.contains("nested deeper than 127 levels"), "{last}");
}
