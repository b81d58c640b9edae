//! Unsupported settings are not sent, and unsupported features are errors.

use serde_json::{Value, json};
use toolpost_llm::{
    ContextEdit, Effort, ErrorKind, HostedModel, HostedTool, HttpClient, HttpOptions, Media, Model as _,
    ModelError, ModelSettings, OutputFormat, Part, Provider, ProviderAccess, Request, Response, Secret,
    Thinking, ToolChoice, ToolDefinition, Turn,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support;

const BODY: &str = r#"{"type":"message","id":"msg_1","role":"assistant","model":"m","content":[{"type":"text","text":"hi"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2}}"#;

fn model(name: &str, server: &LoopbackProvider) -> HostedModel {
    let provider = Provider::find("anthropic").unwrap();
    support::hosted(provider, name, server.base_url(), "k", support::options(0))
}

/// The sent body and the notices.
async fn asked(name: &str, settings: ModelSettings) -> (Value, Response) {
    let server = LoopbackProvider::start(vec![Reply::json(200, BODY)]).unwrap();
    let request = Request { settings, ..Request::new("hi") };
    let response = model(name, &server).respond(&request).await.unwrap();
    (server.requests()[0].json(), response)
}

#[tokio::test]
async fn unsupported_settings_are_dropped_with_a_notice() {
    let sampling = ModelSettings {
        temperature: Some(0.5),
        top_p: Some(0.5),
        top_k: Some(5),
        ..ModelSettings::default()
    };
    let (body, response) = asked("claude-opus-5-5", sampling.clone()).await;
    assert_eq!(
        (&body["temperature"], &body["top_p"], &body["top_k"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!(
        response.notices,
        ["temperature", "top_p", "top_k"]
            .map(|name| format!("`{name}` was not sent: claude-opus-5-5 does not support it"))
    );
    for takes in ["claude-haiku-4-5", "claude-nobody-knows"] {
        let (body, response) = asked(takes, sampling.clone()).await;
        assert_eq!(body["temperature"], json!(0.5), "{takes}");
        assert!(response.notices.is_empty(), "{takes}: {:?}", response.notices);
    }
}

#[tokio::test]
async fn effort_and_thinking_are_adapted_to_the_model() {
    let effort = |effort: Effort| ModelSettings { effort: Some(effort), ..ModelSettings::default() };
    let thinking =
        |thinking: Thinking| ModelSettings { thinking: Some(thinking), ..ModelSettings::default() };
    for (name, settings, path, sent, notice) in [
        ("claude-opus-4-6", effort(Effort::Xhigh), "/output_config/effort", json!("high"), "sent as `high`"),
        ("claude-opus-4-6", effort(Effort::Minimal), "/output_config/effort", json!("low"), "sent as `low`"),
        ("claude-haiku-4-5", effort(Effort::High), "/output_config", Value::Null, "does not support it"),
        ("claude-opus-5-5", thinking(Thinking::Off), "/thinking", Value::Null, "thinking off was not sent"),
        (
            "claude-opus-5-5",
            thinking(Thinking::Budget(2_000)),
            "/thinking",
            json!({"type": "adaptive"}),
            "adaptive thinking only",
        ),
        (
            "claude-haiku-4-5",
            thinking(Thinking::Adaptive),
            "/thinking",
            Value::Null,
            "adaptive thinking was not sent",
        ),
        (
            "claude-haiku-4-5",
            ModelSettings { max_output_tokens: Some(900_000), ..ModelSettings::default() },
            "/max_tokens",
            json!(64_000),
            "64000 instead of 900000",
        ),
    ] {
        let (body, response) = asked(name, settings).await;
        assert_eq!(body.pointer(path).unwrap_or(&Value::Null), &sent, "{name} {notice}");
        assert!(response.notices.iter().any(|text| text.contains(notice)), "{name}: {:?}", response.notices);
    }
}

async fn refused(name: &str, request: Request) -> ModelError {
    let server = LoopbackProvider::start(Vec::new()).unwrap();
    let error = model(name, &server).respond(&request).await.unwrap_err();
    assert!(server.requests().is_empty(), "{name}: something was sent");
    error
}

#[tokio::test]
async fn an_unsupported_feature_names_models_that_support_it() {
    let tool = ToolDefinition::new("look", "Looks.", &json!({"type": "object"}));
    let plain = Request { tools: vec![tool].into(), ..Request::new("hi") };
    let forced = Request { tool_choice: Some(ToolChoice::Any), ..plain.clone() };
    let mut deferred = plain;
    deferred.tools =
        deferred.tools.iter().cloned().map(|tool| ToolDefinition { deferred: true, ..tool }).collect();
    let edited = |edit: ContextEdit| Request { context_edits: vec![edit], ..Request::new("hi") };
    let mut schema = Request::new("hi");
    schema.settings.output = Some(OutputFormat::schema(&json!({"type": "object"})));
    let hosted = |tool: HostedTool| Request { hosted_tools: vec![tool], ..Request::new("hi") };
    let file = Request {
        turns: vec![Turn::User(vec![Part::ContainerFile { file_id: "file_1".into() }])],
        ..Request::default()
    };
    for (name, request, lacks, would_do) in [
        ("claude-opus-5-5", forced, "forced_tool_choice", "claude-haiku-5-5"),
        ("claude-opus-4-1", deferred, "tool_search", "anthropic/claude-opus-5-5"),
        (
            "claude-opus-4-1",
            hosted(HostedTool::ToolSearch { version: None }),
            "tool_search",
            "anthropic/claude-opus-5-5",
        ),
        (
            "claude-opus-4-5",
            edited(ContextEdit::Compact { at_tokens: None }),
            "compaction",
            "anthropic/claude-opus-5-5",
        ),
        (
            "claude-3-haiku",
            edited(ContextEdit::ClearToolResults { at_tokens: None, keep: None }),
            "tool_result_clearing",
            "anthropic/claude-sonnet-5-5",
        ),
        ("claude-2", schema, "structured_output", "anthropic/claude-sonnet-5-5"),
        (
            "claude-opus-5-5",
            hosted(HostedTool::FileSearch { stores: vec!["s".into()], max_results: None }),
            "file_search",
            "gemini/",
        ),
        (
            "claude-3-haiku",
            hosted(HostedTool::CodeExecution { version: None, file_ids: Vec::new() }),
            "code_execution",
            "anthropic/claude-opus-5-5",
        ),
        ("claude-3-haiku", file, "code_execution", "anthropic/claude-opus-5-5"),
    ] {
        let error = refused(name, request).await;
        assert_eq!(error.kind, ErrorKind::Unsupported, "{error}");
        assert!(error.message.contains(&format!("(`{lacks}`)")), "{error}");
        assert!(error.message.contains(would_do), "{error}");
        assert!(!error.message.contains("claude-sonnet-4-0"), "a retired model would not do: {error}");
    }
}

#[tokio::test]
async fn an_unsupported_tool_version_names_the_supported_ones() {
    let tool =
        HostedTool::CodeExecution { version: Some("code_execution_20260521".into()), file_ids: Vec::new() };
    let request = Request { hosted_tools: vec![tool], ..Request::new("hi") };
    let error = refused("claude-opus-4-1", request).await;
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("use one of code_execution_20250522, code_execution_20250825"), "{error}");
}

#[tokio::test]
async fn images_for_a_model_without_vision_are_rejected() {
    let catalog = toolpost_llm::ModelCatalog::built_in()
        .with_file("m.yaml", "models: [{id: anthropic/claude-blind, features: {images: false}}]")
        .unwrap();
    let server = LoopbackProvider::start(Vec::new()).unwrap();
    let client = HttpClient::new(HttpOptions { no_network: true, ..HttpOptions::default() }).unwrap();
    let access =
        ProviderAccess { base_url: Some(server.base_url()), ..ProviderAccess::new(Secret::new("k")) };
    let provider = Provider::find("anthropic").unwrap();
    let model = HostedModel::with_catalog(provider, "claude-blind", access, client, catalog.into()).unwrap();
    let picture = Turn::User(vec![Part::Image(Media::from_bytes("image/png", b"x"))]);
    let request = Request { turns: vec![picture], ..Request::default() };
    let error = model.respond(&request).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unsupported);
    assert!(error.message.contains("does not support images") && server.requests().is_empty(), "{error}");
}
