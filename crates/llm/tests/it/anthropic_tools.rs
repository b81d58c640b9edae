//! Anthropic's hosted tools, containers and supported features, in requests and recorded answers.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use toolpost_llm::{
    AssistantTurn, CacheLifetime, ContextEdit, ErrorKind, HostedTool, ItemView, Model as _, ModelError,
    ModelEvent, ModelId, OutputFormat, Part, PromptCaching, Provider, RawJson, Request, Response,
    ToolDefinition, Turn, Wire,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_testkit::recordings::{self, Answer};

use crate::recorded::{fold, recordings};
use crate::support;

fn body_of(model: &str, request: &Request) -> Result<Value, ModelError> {
    let body = Wire::Messages.write_body(&ModelId::new("anthropic", model), request, false)?;
    Ok(body.to_value().unwrap())
}

fn code(version: Option<&str>) -> HostedTool {
    HostedTool::CodeExecution { version: version.map(str::to_owned), file_ids: Vec::new() }
}

fn search() -> HostedTool {
    HostedTool::WebSearch { max_uses: None, allowed_domains: Vec::new(), blocked_domains: Vec::new() }
}

fn fetch() -> HostedTool {
    HostedTool::WebFetch { max_uses: None, allowed_domains: Vec::new(), blocked_domains: Vec::new() }
}

fn with_tools(tools: &[HostedTool]) -> Request {
    Request { hosted_tools: tools.to_vec(), ..Request::new("hi") }
}

#[test]
fn hosted_tools_use_the_newest_supported_version() {
    let none: [&str; 0] = [];
    for (model, tools, types) in [
        ("claude-opus-5-5", vec![code(None)], vec!["code_execution_20260521"]),
        ("claude-opus-4-1-20250805", vec![code(None)], vec!["code_execution_20250825"]),
        ("claude-unheard-of", vec![code(None)], vec!["code_execution_20250825"]),
        ("claude-sonnet-4-5", vec![code(Some("code_execution_20250522"))], vec!["code_execution_20250522"]),
        ("claude-sonnet-5", vec![code(Some("code_execution_20260120"))], vec!["code_execution_20260120"]),
        // Later versions are accepted: the provider checks them.
        ("claude-opus-5-5", vec![code(Some("code_execution_20270101"))], vec!["code_execution_20270101"]),
        ("claude-opus-5-5", vec![search(), fetch()], vec!["web_search_20260318", "web_fetch_20260318"]),
        ("claude-haiku-4-5", vec![search(), fetch()], vec!["web_search_20250305", "web_fetch_20250910"]),
        // The newer web tools need the newer code execution.
        (
            "claude-opus-4-6",
            vec![search(), code(Some("code_execution_20250825")), fetch()],
            vec!["web_search_20250305", "code_execution_20250825", "web_fetch_20250910"],
        ),
        ("claude-opus-5-5", vec![], none.to_vec()),
    ] {
        let body = body_of(model, &with_tools(&tools)).unwrap();
        let found: Vec<&str> = body["tools"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|tool| tool["type"].as_str().unwrap())
            .collect();
        assert_eq!(found, types, "{model}");
        for (tool, written) in tools.iter().zip(body["tools"].as_array().into_iter().flatten()) {
            assert_eq!(written["name"], tool.name());
        }
    }
}

#[test]
fn every_member_of_a_hosted_tool_reaches_the_body() {
    let domains = || vec!["a.example".to_owned()];
    let tools = [
        HostedTool::WebSearch { max_uses: Some(3), allowed_domains: domains(), blocked_domains: Vec::new() },
        HostedTool::WebFetch { max_uses: Some(2), allowed_domains: Vec::new(), blocked_domains: domains() },
        HostedTool::Raw(RawJson::parse(r#"{"type":"memory_20250818","name":"memory"}"#).unwrap()),
    ];
    let mut request = with_tools(&tools);
    request.tools = vec![ToolDefinition::new("t", "T.", &json!({}))].into();
    let body = body_of("claude-haiku-4-5", &request).unwrap();
    assert_eq!(
        body["tools"],
        json!([
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3, "allowed_domains": ["a.example"]},
            {"type": "web_fetch_20250910", "name": "web_fetch", "max_uses": 2, "blocked_domains": ["a.example"]},
            {"type": "memory_20250818", "name": "memory"},
            {"name": "t", "description": "T.", "input_schema": {}},
        ])
    );
}

#[test]
fn unsupported_hosted_tools_name_models_that_support_them() {
    let both = HostedTool::WebSearch {
        max_uses: None,
        allowed_domains: vec!["a.example".into()],
        blocked_domains: vec!["b.example".into()],
    };
    let file_search = HostedTool::FileSearch { stores: vec!["s".into()], max_results: None };
    for (model, tool, kind, parts) in [
        (
            "claude-3-opus-20240229",
            code(None),
            ErrorKind::Unsupported,
            ["`code_execution`", "claude-opus-5-5"],
        ),
        (
            "claude-opus-5-5",
            code(Some("code_execution_20250522")),
            ErrorKind::Unsupported,
            ["It supports `code_execution_20260521`", "models that do: claude-"],
        ),
        (
            "claude-opus-4-1",
            code(Some("code_execution_20260120")),
            ErrorKind::Unsupported,
            ["It supports `code_execution_20250825`", "claude-opus-4-8"],
        ),
        (
            "claude-opus-5-5",
            code(Some("20260521")),
            ErrorKind::InvalidRequest,
            ["`20260521`", "code_execution_20260120"],
        ),
        ("claude-opus-5-5", both, ErrorKind::InvalidRequest, ["`web_search`", "not both"]),
        ("claude-opus-5-5", file_search, ErrorKind::Unsupported, ["`file_search`", "documents"]),
    ] {
        let error = body_of(model, &with_tools(&[tool])).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(parts.iter().all(|part| error.message.contains(part)), "{error}");
    }
}

/// The body and the beta header of a sent request, and the notices of its answer.
async fn sent(model: &str, request: &Request) -> (Value, Option<String>, Vec<String>) {
    let answer = json!({"type": "message", "id": "m", "role": "assistant", "model": model, "content": [],
        "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}});
    let server = LoopbackProvider::start(vec![Reply::json(200, answer.to_string())]).unwrap();
    let provider = Provider::find("anthropic").unwrap();
    let model = support::hosted(provider, model, server.base_url(), "key", support::options(0));
    let response = model.respond(request).await.unwrap();
    let received = server.requests().remove(0);
    (received.json(), received.header("anthropic-beta").map(str::to_owned), response.notices)
}

#[tokio::test]
async fn beta_features_set_the_header() {
    let raw = |text: &str| HostedTool::Raw(RawJson::parse(text).unwrap());
    let options =
        |value: Value| Request { provider_options: value.as_object().unwrap().clone(), ..Request::new("hi") };
    let own = |request: Request, betas: &[&str]| Request {
        betas: betas.iter().map(|beta| (*beta).to_owned()).collect(),
        ..request
    };
    for (model, request, expected) in [
        (
            "claude-sonnet-4-5",
            with_tools(&[code(Some("code_execution_20250522"))]),
            Some("code-execution-2025-05-22"),
        ),
        ("claude-sonnet-4-5", with_tools(&[code(Some("code_execution_20250825"))]), None),
        ("claude-opus-5-5", with_tools(&[code(None), search(), fetch()]), None),
        (
            "claude-opus-5-5",
            with_tools(&[raw(r#"{"type":"advisor_20260301","name":"advisor","model":"claude-opus-5-5"}"#)]),
            Some("advisor-tool-2026-03-01"),
        ),
        (
            "claude-opus-5-5",
            options(json!({"tools": [{"type": "mcp_toolset", "mcp_server_name": "s"}], "mcp_servers": []})),
            Some("mcp-client-2026-09-15"),
        ),
        // The caller's version stays.
        (
            "claude-opus-5-5",
            own(options(json!({"mcp_servers": []})), &["mcp-client-2025-11-20"]),
            Some("mcp-client-2025-11-20"),
        ),
        (
            "claude-opus-5-5",
            Request {
                context_edits: vec![
                    ContextEdit::ClearToolResults { at_tokens: None, keep: None },
                    ContextEdit::Compact { at_tokens: None },
                ],
                ..Request::new("hi")
            },
            Some("context-management-2025-06-27,compact-2026-01-12"),
        ),
        (
            "claude-opus-5-5",
            options(json!({"context_management": {"edits": [{"type": "compact_20260112"}]}})),
            Some("context-management-2025-06-27,compact-2026-01-12"),
        ),
        (
            "claude-opus-5-5",
            own(options(json!({"compaction": {}})), &["files-api-2025-04-14"]),
            Some("compact-2026-09-04,files-api-2025-04-14"),
        ),
    ] {
        let (_, beta, _) = sent(model, &request).await;
        assert_eq!(beta.as_deref(), expected, "{request:?}");
    }
}

#[tokio::test]
async fn json_mode_becomes_an_instruction() {
    let mut request = Request::new("hi");
    request.settings.output = Some(OutputFormat::Json);
    let (body, _, notices) = sent("claude-opus-5-5", &request).await;
    assert!(body["system"].as_str().unwrap().contains("one JSON value"), "{body}");
    assert!(notices[0].contains("no JSON mode"), "{notices:?}");
    request.system = Some("be kind".into());
    let (body, _, _) = sent("claude-opus-5-5", &request).await;
    let system = body["system"].as_str().unwrap();
    assert!(system.starts_with("be kind\n\n") && system.contains("one JSON value"), "{system}");
}

#[tokio::test]
async fn an_unsupported_schema_becomes_an_instruction() {
    let mut request = Request::new("hi");
    let open = json!({"type": "object", "additionalProperties": {"type": "integer"}});
    request.settings.output = Some(OutputFormat::schema(&open));
    let (body, _, notices) = sent("claude-opus-5-5", &request).await;
    assert!(body.get("output_config").is_none(), "{body}");
    assert!(body["system"].as_str().unwrap().contains(&open.to_string()), "{body}");
    assert!(notices[0].contains("cannot enforce the answer's schema"), "{notices:?}");
    // A strict tool loses `strict`.
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}});
    let strict = |name: &str, schema: &Value| {
        let mut tool = ToolDefinition::new(name, "T.", schema);
        tool.strict = true;
        tool
    };
    let mut request = Request::new("hi");
    request.tools = vec![strict("closed", &schema), strict("open", &open)].into();
    let (body, _, notices) = sent("claude-opus-5-5", &request).await;
    assert_eq!(body["tools"][0]["strict"], true);
    assert_eq!(body["tools"][0]["input_schema"]["additionalProperties"], false);
    assert!(body["tools"][0]["input_schema"]["properties"]["n"].get("minimum").is_none(), "{body}");
    assert_eq!((body["tools"][1].get("strict"), &body["tools"][1]["input_schema"]), (None, &open));
    assert!(
        notices.iter().any(|notice| notice.contains("`closed`") && notice.contains("minimum")),
        "{notices:?}"
    );
    assert!(notices.iter().any(|notice| notice.contains("`strict` of the tool `open`")), "{notices:?}");
}

fn answered_in(container: &Value) -> Turn {
    let mut turn = AssistantTurn::new(ModelId::new("anthropic", "claude-opus-5-5"), Vec::new());
    turn.provider_state = Map::from_iter([("container".to_owned(), container.clone())]);
    Turn::Assistant(turn)
}

#[tokio::test]
async fn a_conversation_reuses_its_container_until_it_expires() {
    let mut request = with_tools(&[code(None)]);
    request.turns.push(answered_in(&json!({"id": "old", "expires_at": "2099-01-01T00:00:00.5Z"})));
    request.turns.push(answered_in(&json!({"id": "c1", "expires_at": "2099-01-01T00:00:00Z"})));
    request.turns.push(Turn::user("and now?"));
    let saved: Request = serde_json::from_str(&serde_json::to_string(&request).unwrap()).unwrap();
    let (body, _, notices) = sent("claude-opus-5-5", &saved).await;
    assert_eq!((&body["container"], notices.len()), (&json!("c1"), 0));
    // The caller's container options extend or replace the id.
    let mut skilled = request.clone();
    skilled.provider_options.insert("container".into(), json!({"skills": [{"skill_id": "pdf"}]}));
    let (body, _, _) = sent("claude-opus-5-5", &skilled).await;
    assert_eq!(body["container"], json!({"id": "c1", "skills": [{"skill_id": "pdf"}]}));
    skilled.provider_options.insert("container".into(), json!("mine"));
    assert_eq!(sent("claude-opus-5-5", &skilled).await.0["container"], "mine");
    // Without hosted tools no container is sent.
    let mut plain = request.clone();
    plain.hosted_tools.clear();
    assert!(sent("claude-opus-5-5", &plain).await.0.get("container").is_none());
    // An expired container is not sent, with a notice.
    request.turns.push(answered_in(&json!({"id": "c2", "expires_at": "2026-01-01T00:00:00.123456Z"})));
    request.turns.push(Turn::user("and now?"));
    let (body, _, notices) = sent("claude-opus-5-5", &request).await;
    assert!(body.get("container").is_none(), "{body}");
    assert!(notices[0].contains("`c2`") && notices[0].contains("2026-01-01"), "{notices:?}");
    // An invalid expiry is ignored, and so is a container of another provider.
    request.turns.push(answered_in(&json!({"id": "c3", "expires_at": "soon"})));
    assert_eq!(sent("claude-opus-5-5", &request).await.0["container"], "c3");
    let Some(Turn::Assistant(turn)) = request.turns.last_mut() else { panic!("not an assistant's turn") };
    turn.origin = ModelId::new("openai", "gpt-6");
    assert!(sent("claude-opus-5-5", &request).await.0.get("container").is_none());
}

#[test]
fn tool_files_are_uploaded_to_the_container_once() {
    let tool =
        HostedTool::CodeExecution { version: None, file_ids: vec!["f1".into(), "f2".into(), "f1".into()] };
    let mut request = with_tools(&[tool]);
    request.turns.push(answered_in(&json!({"id": "c1"})));
    request.turns.push(Turn::User(vec![Part::text("again"), Part::ContainerFile { file_id: "f2".into() }]));
    let body = body_of("claude-opus-5-5", &request).unwrap();
    // The answer has no items: both turns of the user are one message. The prefix stays the same in later requests.
    assert_eq!(
        body["messages"][0]["content"],
        json!([
            {"type": "text", "text": "hi"},
            {"type": "container_upload", "file_id": "f1"},
            {"type": "text", "text": "again"},
            {"type": "container_upload", "file_id": "f2"},
        ])
    );
    request.turns = vec![Turn::System(vec![Part::text("x")])];
    let error = body_of("claude-opus-5-5", &request).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
}

#[tokio::test]
async fn cache_breakpoints_are_limited_to_four() {
    let marked = |text: &str| {
        let block = json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
        Part::Raw(RawJson::from(&block))
    };
    let request = |own: usize, caching: PromptCaching| {
        let mut request = Request::new("hi");
        request.system = Some("be kind".into());
        // A schema may contain any name.
        let schema = json!({"type": "object", "properties": {"cache_control": {"type": "string"}}});
        request.tools = vec![ToolDefinition::new("t", "T.", &schema)].into();
        request.turns =
            vec![Turn::User((0..own).map(|number| marked(&number.to_string())).collect()), Turn::user("end")];
        request.settings.prompt_caching = caching;
        request
    };
    let marks = |body: &Value| body.to_string().matches(r#""cache_control":{"type":"ephemeral""#).count();
    let lasting = PromptCaching::Breakpoints(CacheLifetime::FiveMinutes);
    for (own, caching, expected, told) in [
        (1, lasting.clone(), 4, false),
        (2, lasting.clone(), 4, true),
        (3, lasting.clone(), 4, true),
        (4, lasting.clone(), 4, true),
        (4, PromptCaching::Automatic, 4, true),
        (3, PromptCaching::Automatic, 4, false),
        (4, PromptCaching::Off, 4, false),
    ] {
        let (body, _, notices) = sent("claude-opus-5-5", &request(own, caching.clone())).await;
        assert_eq!(
            (marks(&body), notices.len()),
            (expected, usize::from(told)),
            "{own} {caching:?} {notices:?}"
        );
    }
    // The breakpoint of the last turn is removed last.
    let (body, _, _) = sent("claude-opus-5-5", &request(3, lasting.clone())).await;
    let last = body["messages"][0]["content"].as_array().unwrap().last().unwrap();
    assert!(last.get("cache_control").is_some() && body["tools"][0].get("cache_control").is_none(), "{body}");
    let error = body_of("claude-opus-5-5", &request(5, PromptCaching::Automatic)).unwrap_err();
    assert!(
        error.kind == ErrorKind::InvalidRequest
            && error.message.contains("has 5 `cache_control` breakpoints"),
        "{error}"
    );
}

#[test]
fn thinking_is_sent_back_in_order() {
    let content = json!([
        {"type": "thinking", "thinking": "", "signature": "s1"},
        {"type": "redacted_thinking", "data": "r"},
        {"type": "text", "text": "first"},
        {"type": "thinking", "thinking": "more", "signature": "s2"},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1.0}, "caller": {"type": "direct"}},
        {"type": "server_tool_use", "id": "s1", "name": "bash_code_execution", "input": {"command": "ls"}},
        {"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content":
            {"type": "bash_code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": []}},
        {"type": "brand_new", "x": [1.0]},
    ]);
    let said = json!({"type": "message", "content": content}).to_string();
    let response =
        Wire::Messages.read_body(&ModelId::new("anthropic", "claude-opus-4-6"), 200, &said).unwrap();
    for model in ["claude-opus-4-6", "claude-fable-5-2", "claude-haiku-4-5"] {
        let mut request = Request::new("hi");
        request.push_response(&response);
        let body = body_of(model, &request).unwrap();
        assert_eq!(body["messages"][1], json!({"role": "assistant", "content": content}), "{model}");
    }
}

/// One result of each kind, and its view.
#[test]
fn every_kind_of_result_is_shown() {
    let shown = |block: Value| {
        let body = json!({"type": "message", "content": [block]}).to_string();
        let response = Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, &body).unwrap();
        match response.items[0].view() {
            ItemView::ServerToolResult { output, .. } => serde_json::to_value(output).unwrap(),
            other => panic!("not a result: {other:?}"),
        }
    };
    let block = |kind: &str, content: Value| json!({"type": kind, "tool_use_id": "1", "content": content});
    for (found, expected) in [
        (
            block(
                "code_execution_tool_result",
                json!({"type": "code_execution_result", "stdout": "o", "stderr": "e",
                "return_code": 1, "content": [{"type": "code_execution_output", "file_id": "f1"}]}),
            ),
            json!({"is_error": false, "text": "o", "stderr": "e", "return_code": 1, "files": [{"id": "f1"}]}),
        ),
        (
            block(
                "code_execution_tool_result",
                json!({"type": "encrypted_code_execution_result",
                "encrypted_stdout": "xyz", "stderr": "e", "return_code": 0,
                "content": [{"type": "code_execution_output", "file_id": "f2"}]}),
            ),
            json!({"is_error": false, "stderr": "e", "return_code": 0, "files": [{"id": "f2"}]}),
        ),
        (
            block(
                "bash_code_execution_tool_result",
                json!({"type": "bash_code_execution_result", "stdout": "o",
                "stderr": "", "return_code": 0, "content": [{"type": "bash_code_execution_output", "file_id": "f3"}]}),
            ),
            json!({"is_error": false, "text": "o", "return_code": 0, "files": [{"id": "f3"}]}),
        ),
        (
            block(
                "bash_code_execution_tool_result",
                json!({"type": "bash_code_execution_tool_result_error",
                "error_code": "execution_time_exceeded"}),
            ),
            json!({"is_error": true, "error_code": "execution_time_exceeded"}),
        ),
        (
            block(
                "text_editor_code_execution_tool_result",
                json!({"type": "text_editor_code_execution_view_result",
                "file_type": "text", "content": "line", "num_lines": 1, "start_line": 1, "total_lines": 1}),
            ),
            json!({"is_error": false, "text": "line"}),
        ),
        (
            block(
                "text_editor_code_execution_tool_result",
                json!({"type": "text_editor_code_execution_create_result",
                "is_file_update": false}),
            ),
            json!({"is_error": false, "text": "The file was created."}),
        ),
        (
            block(
                "text_editor_code_execution_tool_result",
                json!({"type":
                "text_editor_code_execution_str_replace_result", "lines": ["-a", "+b"], "old_start": 1}),
            ),
            json!({"is_error": false, "text": "-a\n+b"}),
        ),
        (
            block(
                "text_editor_code_execution_tool_result",
                json!({"type":
                "text_editor_code_execution_tool_result_error", "error_code": "file_not_found", "error_message": "no"}),
            ),
            json!({"is_error": true, "error_code": "file_not_found", "text": "no"}),
        ),
        (
            block(
                "web_fetch_tool_result",
                json!({"type": "web_fetch_result", "url": "https://a.example",
                "content": {"type": "document", "title": "T", "source": {"type": "text", "data": "d"}}}),
            ),
            json!({"is_error": false, "sources": [{"url": "https://a.example", "title": "T"}]}),
        ),
        (
            block(
                "web_search_tool_result",
                json!([{"type": "web_search_result", "url": "https://b.example", "title": "B"}]),
            ),
            json!({"is_error": false, "sources": [{"url": "https://b.example", "title": "B"}]}),
        ),
        (
            block(
                "tool_search_tool_result",
                json!({"type": "tool_search_tool_search_result",
                "tool_references": [{"type": "tool_reference", "tool_name": "a"}, {"type": "tool_reference", "tool_name": "b"}]}),
            ),
            json!({"is_error": false, "text": "a\nb"}),
        ),
    ] {
        assert_eq!(shown(found.clone()), expected, "{found}");
    }
}

/// The decoded answers of all recordings.
fn answers() -> Option<Vec<(String, Response)>> {
    let recordings = recordings("hosted tools of Anthropic")?;
    let mut answers = Vec::new();
    for recording in recordings {
        for interaction in recording.interactions.iter().filter(|interaction| interaction.status < 400) {
            let answer = match &interaction.answer {
                Answer::Body(text) => {
                    Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, text).ok()
                }
                Answer::Stream(text) => fold([text.as_bytes()]).ok().map(|(response, _)| response),
            };
            answers.extend(answer.map(|answer| (recording.path.clone(), answer)));
        }
    }
    Some(answers)
}

#[test]
fn recorded_results_of_hosted_tools_are_shown() {
    let Some(answers) = answers() else { return };
    let mut counts: BTreeMap<String, [usize; 5]> = BTreeMap::new();
    for (path, answer) in &answers {
        for item in &answer.items {
            let ItemView::ServerToolResult { kind, output, .. } = item.view() else { continue };
            let raw = item.raw().to_value().unwrap();
            let content = &raw["content"];
            let count = counts.entry(kind.clone()).or_default();
            count[0] += 1;
            count[1] += usize::from(output.is_error);
            count[2] += usize::from(!output.text.is_empty() || !output.stderr.is_empty());
            count[3] += output.files.len();
            count[4] += output.sources.len();
            // The view has the provider's values.
            if let Some(code) = content["error_code"].as_str() {
                assert!(output.is_error && output.error_code.as_deref() == Some(code), "{path}");
            }
            if let Some(stdout) = content["stdout"].as_str() {
                assert_eq!(output.text, stdout, "{path}");
                assert_eq!(output.stderr, content["stderr"].as_str().unwrap_or_default(), "{path}");
                assert_eq!(output.return_code, content["return_code"].as_i64(), "{path}");
                let files = content["content"].as_array().map_or(0, Vec::len);
                assert_eq!(output.files.len(), files, "{path}");
            }
            if let Some(pages) = content.as_array().filter(|_| kind == "web_search_tool_result") {
                assert_eq!(output.sources.len(), pages.len(), "{path}");
            }
            let is_empty = **output == toolpost_llm::HostedOutput::default();
            let may_be = content["type"] == "code_execution_result"
                || content["encrypted_content"].is_string()
                || content.as_array().is_some_and(Vec::is_empty)
                || content["tool_references"].as_array().is_some_and(Vec::is_empty);
            assert!(!is_empty || may_be || !recordings::is_known(), "{path}: nothing is shown of {raw}");
        }
    }
    for (kind, [all, errors, texts, files, sources]) in &counts {
        println!(
            "{kind}: {all}, of them {errors} errors, {texts} with text, {files} files, {sources} sources"
        );
    }
    if !recordings::is_known() {
        return;
    }
    let all = |kind: &str| counts.get(kind).map_or(0, |count| count[0]);
    assert!(all("bash_code_execution_tool_result") >= 10, "{counts:?}");
    assert!(all("text_editor_code_execution_tool_result") >= 5, "{counts:?}");
    assert!(all("code_execution_tool_result") >= 3 && all("web_search_tool_result") >= 10, "{counts:?}");
}

#[test]
fn a_recorded_container_is_used_again() {
    let Some(recordings) = recordings("a_recorded_container_is_used_again") else { return };
    let (mut named, mut ended) = (0, 0);
    for recording in &recordings {
        for pair in recording.interactions.windows(2) {
            let (Answer::Body(answer), Some(body)) =
                (&pair[0].answer, pair[1].request.as_ref().and_then(|request| request.body.as_ref()))
            else {
                continue;
            };
            let Some(expected) = body["container"].as_str() else { continue };
            let read = Wire::Messages.read_body(&ModelId::new("anthropic", "claude-x"), 200, answer);
            // An answer without a container, or from another conversation.
            let Some(mut response) = read.ok().filter(|response| {
                response.provider_state.get("container").is_some_and(|it| it["id"] == expected)
            }) else {
                continue;
            };
            let mut request = with_tools(&[code(None)]);
            request.push_response(&response);
            assert!(body_of("claude-x", &request).unwrap().get("container").is_none(), "it ended long ago");
            ended += 1;
            response.provider_state["container"]["expires_at"] = "2099-12-31T00:00:00Z".into();
            let mut request = with_tools(&[code(None)]);
            request.push_response(&response);
            assert_eq!(body_of("claude-x", &request).unwrap()["container"], expected, "{}", recording.path);
            named += 1;
        }
    }
    println!("containers named again {named}/{named}, ended {ended}");
    assert!(named >= 2 || !recordings::is_known(), "{named}");
}

#[test]
fn a_hosted_result_is_shown_while_streaming() {
    let Some(recordings) = recordings("a_hosted_result_is_shown_while_streaming") else { return };
    let mut shown = 0;
    for recording in &recordings {
        for interaction in &recording.interactions {
            let Answer::Stream(text) = &interaction.answer else { continue };
            let Ok((response, events)) = fold([text.as_bytes()]) else { continue };
            let results =
                response.items.iter().filter(|item| matches!(item.view(), ItemView::ServerToolResult { .. }));
            for result in results {
                let at =
                    events.iter().position(|event| matches!(event, ModelEvent::Item(item) if item == result));
                assert!(at.is_some(), "{}", recording.path);
                shown += 1;
            }
        }
    }
    assert!(shown > 10 || !recordings::is_known(), "{shown}");
}

#[tokio::test]
async fn deferred_tools_use_the_requested_search() {
    let tool = |name: &str, deferred: bool| {
        let definition = ToolDefinition::new(name, "Looks.", &json!({"type": "object"}));
        ToolDefinition { deferred, ..definition }
    };
    let request = |version: Option<&str>| Request {
        tools: vec![tool("look", false), tool("find", true)].into(),
        hosted_tools: vec![HostedTool::ToolSearch { version: version.map(str::to_owned) }],
        ..Request::new("hi")
    };
    for (version, kind, name) in [
        (None, "tool_search_tool_bm25_20251119", "tool_search_tool_bm25"),
        (
            Some("tool_search_tool_regex_20251119"),
            "tool_search_tool_regex_20251119",
            "tool_search_tool_regex",
        ),
        (Some("tool_search_tool_regex"), "tool_search_tool_regex", "tool_search_tool_regex"),
    ] {
        let body = body_of("claude-opus-5-5", &request(version)).unwrap();
        assert_eq!(body["tools"][0], json!({"type": kind, "name": name}));
        assert_eq!(body["tools"][2]["defer_loading"], true);
    }
    let error = body_of("claude-opus-5-5", &request(Some("regex"))).unwrap_err();
    assert!(
        error.kind == ErrorKind::InvalidRequest && error.message.contains("tool_search_tool_bm25"),
        "{error}"
    );
    let (body, beta, notices) = sent("claude-opus-5-5", &request(None)).await;
    assert_eq!((body["tools"].as_array().unwrap().len(), beta, notices), (3, None, vec![]));
}

#[tokio::test]
async fn compaction_has_a_minimum_trigger_and_is_billed() {
    let mut request = Request::new("hi");
    request.context_edits = vec![ContextEdit::Compact { at_tokens: Some(7) }];
    let (body, _, notices) = sent("claude-opus-5-5", &request).await;
    assert_eq!(
        body["context_management"],
        json!({"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}]})
    );
    assert!(notices[0].contains("50000"), "{notices:?}");
    // The provider's totals exclude compactions.
    let body = json!({"type": "message", "id": "m", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "content": [{"type": "compaction", "content": "short"}, {"type": "text", "text": "Hello!"}],
    "usage": {"input_tokens": 181, "output_tokens": 8, "cache_read_input_tokens": 1, "iterations": [
        {"type": "compaction", "input_tokens": 100, "output_tokens": 83, "cache_read_input_tokens": 55_096},
        {"type": "message", "input_tokens": 181, "output_tokens": 8, "cache_read_input_tokens": 1},
    ]}});
    let model = ModelId::new("anthropic", "claude-x");
    let usage = Wire::Messages.read_body(&model, 200, &body.to_string()).unwrap().usage;
    assert_eq!((usage.input, usage.output, usage.cache_read), (281, 91, 55_097));
}
