//! Requests through litellm, a third-party translator: they must reach each upstream, and the answers must decode.
#![expect(clippy::disallowed_methods, reason = "the server is another language's")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_llm::{
    HostedModel, HttpClient, HttpOptions, ItemView, Model as _, ModelEvent, PROVIDERS, Provider,
    ProviderAccess, Request, Response, RetryPolicy, Secret, ToolDefinition, ToolResult, Turn, Wire,
};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

/// The server rejects weak keys.
const KEY: &str = "sk-loopback-0123456789-abcdef";

/// Maximum time for the server to start.
const START: Duration = Duration::from_secs(150);

/// The upstreams by the server's names.
const UPSTREAMS: &[(&str, &str, &str)] = &[
    ("via-chat", "hosted_vllm/x", "/v1"),
    ("via-openai", "openai/x", "/v1"),
    ("via-anthropic", "anthropic/x", ""),
    ("via-gemini", "gemini/x", "/v1beta"),
];

struct Server {
    child: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process has exited, or is killed now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn litellm() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.dev/litellm-env/bin/litellm")
}

fn start(upstream: &LoopbackProvider) -> Server {
    let directory = tempfile::tempdir().expect("a directory");
    let models: Vec<Value> = UPSTREAMS
        .iter()
        .map(|(name, model, path)| {
            let base = format!("{}{path}", upstream.base_url());
            json!({"model_name": name, "litellm_params": {"model": model, "api_base": base, "api_key": "k"}})
        })
        .collect();
    let config = json!({"model_list": models, "litellm_settings": {"num_retries": 0}});
    let path = directory.path().join("config.yaml");
    std::fs::write(&path, config.to_string()).expect("the configuration can be written");
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
    let child = Command::new(litellm())
        .arg("--config")
        .arg(&path)
        .args(["--host", "127.0.0.1", "--port", &port.to_string(), "--telemetry", "False"])
        .envs([("LITELLM_MASTER_KEY", KEY), ("LITELLM_LOCAL_MODEL_COST_MAP", "True")])
        .current_dir(directory.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("litellm can be started");
    Server { child, address: format!("127.0.0.1:{port}"), _directory: directory }
}

/// Waits until the server accepts connections, which it does once it is ready.
fn wait(server: &mut Server) {
    let begun = Instant::now();
    while std::net::TcpStream::connect(&server.address).is_err() {
        assert!(server.child.try_wait().expect("it can be asked").is_none(), "litellm ended");
        assert!(begun.elapsed() < START, "litellm does not start");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Answers as the provider of the path: first with a call, then with a text.
fn upstream(request: &ReceivedRequest) -> Reply {
    let body = request.json();
    let has_result = String::from_utf8_lossy(&request.body).contains("it is sunny");
    let path = request.path.split('?').next().unwrap_or_default();
    let stream = body["stream"] == true || path.ends_with(":streamGenerateContent");
    let events: Vec<Value> = if path.ends_with("/chat/completions") {
        chat(has_result, stream)
    } else if path.ends_with("/responses") {
        responses(has_result, stream)
    } else if path.ends_with("/messages") {
        messages(has_result, stream)
    } else if path.contains("enerateContent") {
        gemini(has_result)
    } else {
        return Reply::json(404, "{}");
    };
    if !stream {
        return Reply::json(200, events.last().cloned().unwrap_or_default().to_string());
    }
    let mut text: String = events
        .iter()
        .map(|event| match event["type"].as_str() {
            Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
            None => format!("data: {event}\n\n"),
        })
        .collect();
    if path.ends_with("/chat/completions") {
        text.push_str("data: [DONE]\n\n");
    }
    Reply::events(text)
}

const ARGUMENTS: &str = "{\"city\":\"Oslo\"}";
const ANSWER: &str = "Sunny in Oslo.";

fn chat(has_result: bool, stream: bool) -> Vec<Value> {
    let usage = json!({"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18});
    let finish = if has_result { "stop" } else { "tool_calls" };
    if !stream {
        let call =
            json!({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}});
        let message = if has_result {
            json!({"role": "assistant", "content": ANSWER})
        } else {
            json!({"role": "assistant", "content": "Looking.", "tool_calls": [call]})
        };
        return vec![
            json!({"id": "c1", "object": "chat.completion", "created": 1, "model": "x", "usage": usage,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}]}),
        ];
    }
    let chunk = |delta: Value, finish: Value| {
        json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "x",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
    };
    let mut chunks = vec![chunk(json!({"role": "assistant", "content": ""}), Value::Null)];
    if has_result {
        chunks.push(chunk(json!({"content": "Sunny "}), Value::Null));
        chunks.push(chunk(json!({"content": "in Oslo."}), Value::Null));
    } else {
        chunks.push(chunk(json!({"content": "Looking."}), Value::Null));
        let start = json!({"index": 0, "id": "call_1", "type": "function",
            "function": {"name": "look", "arguments": ""}});
        chunks.push(chunk(json!({"tool_calls": [start]}), Value::Null));
        for piece in ["{\"city\":", "\"Oslo\"}"] {
            let piece = json!({"index": 0, "function": {"arguments": piece}});
            chunks.push(chunk(json!({"tool_calls": [piece]}), Value::Null));
        }
    }
    chunks.push(chunk(json!({}), finish.into()));
    chunks.push(
        json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "x", "choices": [],
        "usage": usage}),
    );
    chunks
}

fn responses(has_result: bool, stream: bool) -> Vec<Value> {
    let text = if has_result { ANSWER } else { "Looking." };
    let part = json!({"type": "output_text", "text": text, "annotations": []});
    let message = json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [part]});
    let call = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look",
        "arguments": ARGUMENTS, "status": "completed"});
    let mut output = vec![message.clone()];
    if !has_result {
        output.push(call.clone());
    }
    let response = json!({"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "x",
        "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "error": null,
        "incomplete_details": null, "instructions": null, "metadata": {}, "temperature": 1.0, "top_p": 1.0,
        "usage": {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18,
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}});
    if !stream {
        return vec![response];
    }
    let mut started = response.clone();
    started["status"] = "in_progress".into();
    started["output"] = json!([]);
    started["usage"] = Value::Null;
    let mut events = vec![
        json!({"type": "response.created", "response": started}),
        json!({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": "msg_1",
            "role": "assistant", "status": "in_progress", "content": []}}),
        json!({"type": "response.content_part.added", "item_id": "msg_1", "output_index": 0, "content_index": 0,
            "part": {"type": "output_text", "text": "", "annotations": []}}),
        json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0,
            "delta": text}),
        json!({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 0, "content_index": 0,
            "text": text}),
        json!({"type": "response.content_part.done", "item_id": "msg_1", "output_index": 0, "content_index": 0,
            "part": part}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": message}),
    ];
    if !has_result {
        let mut begun = call.clone();
        begun["arguments"] = "".into();
        begun["status"] = "in_progress".into();
        events.push(json!({"type": "response.output_item.added", "output_index": 1, "item": begun}));
        events.push(
            json!({"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 1,
            "delta": ARGUMENTS}),
        );
        events.push(
            json!({"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 1,
            "arguments": ARGUMENTS, "name": "look"}),
        );
        events.push(json!({"type": "response.output_item.done", "output_index": 1, "item": call}));
    }
    events.push(json!({"type": "response.completed", "response": response}));
    for (number, event) in (0_u64..).zip(&mut events) {
        event["sequence_number"] = number.into();
    }
    events
}

fn messages(has_result: bool, stream: bool) -> Vec<Value> {
    let stop = if has_result { "end_turn" } else { "tool_use" };
    let text = if has_result { ANSWER } else { "Looking." };
    let mut content = vec![json!({"type": "text", "text": text})];
    if !has_result {
        content.push(json!({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"city": "Oslo"}}));
    }
    let mut message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "x", "content": content,
        "stop_reason": stop, "stop_sequence": null, "usage": {"input_tokens": 11, "output_tokens": 7}});
    if !stream {
        return vec![message];
    }
    message["content"] = json!([]);
    message["stop_reason"] = Value::Null;
    let mut events = vec![json!({"type": "message_start", "message": message})];
    for (index, block) in content.iter().enumerate() {
        let (mut start, delta) = (
            block.clone(),
            match block.get("text") {
                Some(text) => json!({"type": "text_delta", "text": text}),
                None => json!({"type": "input_json_delta", "partial_json": ARGUMENTS}),
            },
        );
        if start["type"] == "text" {
            start["text"] = "".into();
        } else {
            start["input"] = json!({});
        }
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
        "usage": {"output_tokens": 7}}));
    events.push(json!({"type": "message_stop"}));
    events
}

fn gemini(has_result: bool) -> Vec<Value> {
    let parts = if has_result {
        json!([{"text": ANSWER}])
    } else {
        json!([{"text": "Looking."}, {"functionCall": {"name": "look", "args": {"city": "Oslo"}},
            "thoughtSignature": "c2lnbmF0dXJl"}])
    };
    vec![
        json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7, "totalTokenCount": 18},
        "modelVersion": "x", "responseId": "r1"}),
    ]
}

async fn ask(model: &HostedModel, request: &Request, stream: bool) -> Result<Response, String> {
    if !stream {
        return model.respond(request).await.map_err(|error| error.to_string());
    }
    let mut events = model.stream(request);
    while let Some(event) = futures_util::StreamExt::next(&mut events).await {
        if let ModelEvent::Done(response) = event.map_err(|error| error.to_string())? {
            return Ok(*response);
        }
    }
    Err("the stream ended without an answer".into())
}

/// Two turns: a call, its result, the answer.
async fn converse(model: &HostedModel, stream: bool) -> Result<(), String> {
    let mut request = Request::new("What is the weather in Oslo?");
    request.settings.max_output_tokens = Some(100);
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    request.tools = vec![ToolDefinition::new("look", "Looks at the weather.", &schema)].into();
    let first = ask(model, &request, stream).await?;
    let calls: Vec<_> = first.tool_calls().collect();
    let [call] = calls.as_slice() else { return Err(format!("one call was expected: {:?}", first.items)) };
    let ItemView::ToolCall { id, name, arguments } = call.view() else { return Err("no call".into()) };
    let arguments = arguments.clone()?.to_value().map_err(|error| error.to_string())?;
    if name != "look" || arguments != json!({"city": "Oslo"}) {
        return Err(format!("another call was expected: {name} {arguments}"));
    }
    let result = ToolResult::text(id, name, "it is sunny");
    request.push_response(&first);
    request.turns.push(Turn::ToolResults(vec![result]));
    let second = ask(model, &request, stream).await?;
    if second.text() == ANSWER {
        Ok(())
    } else {
        Err(format!("another answer was expected: {:?}", second.items))
    }
}

#[tokio::test]
async fn every_wire_reaches_every_upstream_through_a_translator() {
    if !litellm().exists() {
        println!(
            "SKIP every_wire_reaches_every_upstream_through_a_translator: `cargo xtask test` installs litellm"
        );
        return;
    }
    let behind = LoopbackProvider::start_with(upstream).expect("an upstream");
    let mut server = start(&behind);
    wait(&mut server);
    let options = HttpOptions {
        no_network: true,
        retry: RetryPolicy { max_retries: 0, ..RetryPolicy::default() },
        ..HttpOptions::default()
    };
    let client = HttpClient::new(options).expect("a client");
    let mut wires: Vec<(Wire, &'static Provider)> = Vec::new();
    for provider in PROVIDERS {
        if !wires.iter().any(|(wire, _)| *wire == provider.wire) {
            wires.push((provider.wire, provider));
        }
    }
    let (mut good, mut wrong) = (0, Vec::new());
    for (wire, provider) in wires {
        for (upstream, ..) in UPSTREAMS {
            for stream in [false, true] {
                let access = ProviderAccess {
                    base_url: Some(format!("http://{}", server.address)),
                    ..ProviderAccess::new(Secret::new(KEY))
                };
                let model = HostedModel::new(provider, *upstream, access, client.clone()).expect("a model");
                match converse(&model, stream).await {
                    Ok(()) => good += 1,
                    Err(what) => {
                        let last = behind.requests().last().map(|request| {
                            format!("{} {}", request.path, String::from_utf8_lossy(&request.body))
                        });
                        wrong.push(format!(
                            "{} {upstream} stream {stream}: {what}\n  last: {}",
                            wire.as_str(),
                            last.unwrap_or_default()
                        ));
                    }
                }
            }
        }
    }
    println!(
        "{good} pairs of wire and upstream, streamed or not, and {} requests behind",
        behind.requests().len()
    );
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), good + wrong.len(), wrong.join("\n"));
}
