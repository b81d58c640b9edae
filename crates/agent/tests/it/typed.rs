//! Typed answers.

use std::sync::Arc;

use serde_json::{Value, json};
use toolpost::data;
use toolpost_agent::{Agent, RunStopReason};
use toolpost_llm::{ErrorKind, HostedModel, HttpClient, HttpOptions, ModelCatalog, Provider, ProviderAccess};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};
use toolpost_toolbox::Toolbox;

use crate::agent;

/// A city.
#[data]
#[derive(Debug, PartialEq)]
struct City {
    name: String,
    people: u32,
    /// Where it is known.
    mayor: Option<String>,
}

fn oslo() -> City {
    City { name: "Oslo".into(), people: 700_000, mayor: None }
}

#[tokio::test]
async fn a_typed_answer_is_a_value() {
    for text in [
        r#"{"name": "Oslo", "people": 700000}"#,
        r#"{"name": "Oslo", "people": 700000, "mayor": null}"#,
        r#"Here: {"name": "Oslo", "people": 700000} as you asked."#,
    ] {
        let script =
            format!("turns:\n  - calls: [{{ tool: add, args: {{ a: 1, b: 2 }} }}]\n  - text: '{text}'\n");
        let answer = agent(&script).build().run_as::<City>("Which?").await.unwrap();
        assert_eq!((answer.value, answer.output.record.iterations), (oslo(), 2), "{text}");
        assert!(answer.output.record.success);
    }
}

#[tokio::test]
async fn a_mismatch_is_reported_to_the_model_and_corrected() {
    let script = r#"
turns:
  - text: Oslo
  - text: '{"name": "Oslo"}'
  - text: '{"name": "Oslo", "people": 700000}'
"#;
    let answer = agent(script).build().run_as::<City>("Which?").await.unwrap();
    assert_eq!((answer.value, answer.output.record.iterations), (oslo(), 3));
    let reported = serde_json::to_string(&answer.output.turns).unwrap();
    assert!(reported.contains("it is not JSON") && reported.contains("`people` is missing"), "{reported}");
}

#[tokio::test]
async fn an_answer_that_never_matches_ends_the_run() {
    let turns = (0..20).map(|n| format!("  - text: 'no {n}'\n")).collect::<Vec<_>>().concat();
    let script = format!("turns:\n{turns}");
    for (repairs, iterations) in [(2, 3), (0, 1), (5, 6)] {
        let agent = agent(&script).limits(crate::limits(|limits| limits.repairs = repairs)).build();
        let failed = agent.run_as::<City>("Which?").await.unwrap_err();
        let outcome = failed.output();
        assert_eq!((&outcome.stop, outcome.record.iterations), (&RunStopReason::AnswerSchema, iterations));
        assert!(!outcome.record.success && outcome.value.is_none());
        assert_eq!(outcome.record.stop_reason, "answer_schema");
        assert!(failed.to_string().contains("answer_schema"));
    }
}

#[tokio::test]
async fn a_schema_works_without_a_type() {
    let schema =
        json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 5}}});
    let script = "turns:\n  - text: '{\"n\": 4}'\n  - text: '{\"n\": 5}'\n";
    let outcome = agent(script).answer_schema(schema.clone()).build().run("Which?").finish().await;
    assert_eq!((outcome.value, outcome.record.iterations), (Some(json!({"n": 5})), 2));
    let run = agent(script).build().run("Which?").with_answer_schema(schema);
    assert_eq!(run.finish().await.value, Some(json!({"n": 5})));
}

/// A Chat Completions server with these answers in order.
#[tokio::test]
async fn a_check_beside_the_schema_is_corrected_too() {
    let schema = json!({ "type": "integer" });
    let even = |value: &Value| match value.as_i64() {
        Some(number) if number % 2 == 0 => Ok(()),
        _ => Err("it must be even".to_owned()),
    };
    let script = "turns:\n  - text: '7'\n  - text: '8'\n";
    let outcome = agent(script).checked_answer_schema(schema, even).build().run("Which?").finish().await;
    assert_eq!((outcome.value, outcome.record.iterations), (Some(json!(8)), 2));
    assert!(serde_json::to_string(&outcome.turns).unwrap().contains("it must be even"));
}

fn chat(texts: &'static [&'static str], refuses: fn(&Value) -> bool) -> LoopbackProvider {
    let said = std::sync::atomic::AtomicUsize::new(0);
    LoopbackProvider::start_with(move |request| {
        if refuses(&request.json()) {
            let error = json!({"error": {"message": "unknown parameter", "type": "invalid_request_error"}});
            return Reply::json(400, error.to_string());
        }
        let index = said.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        let message = json!({"role": "assistant", "content": texts[index]});
        let body = json!({"id": "c", "object": "chat.completion", "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}});
        Reply::json(200, body.to_string())
    })
    .unwrap()
}

fn agent_at(server: &LoopbackProvider, catalog: &Arc<ModelCatalog>) -> Agent {
    let access = ProviderAccess { base_url: Some(server.base_url()), ..ProviderAccess::default() };
    let client = HttpClient::new(HttpOptions { no_network: true, ..HttpOptions::default() }).unwrap();
    let provider = Provider::find("openai-compatible").unwrap();
    let model = HostedModel::with_catalog(provider, "small", access, client, Arc::clone(catalog)).unwrap();
    Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap()).system("Be brief.").build()
}

const FITS: &str = r#"{"name": "Oslo", "people": 700000}"#;

#[tokio::test]
async fn a_server_without_schemas_and_tools_gets_the_schema_in_the_system_prompt() {
    let takes_neither = |body: &Value| body.get("response_format").is_some() || body.get("tools").is_some();
    let unknown = Arc::clone(ModelCatalog::built_in());
    let row = r#"{"models": [{"id": "openai-compatible/small", "features": {"structured_output": false, "tools": false}}]}"#;
    let known = Arc::new(unknown.with_file("mine", row).unwrap());
    // An unknown server gets a native schema first, then a forced tool.
    for (catalog, refused) in [(&unknown, 2), (&known, 0)] {
        let server = chat(&["It is Oslo.", FITS], takes_neither);
        let answer = agent_at(&server, catalog).run_as::<City>("Which?").await.unwrap();
        assert_eq!(answer.value, oslo());
        let notices = answer.output.record.notices.join("\n");
        assert!(notices.contains("the system prompt has the schema instead"), "{notices}");
        let bodies: Vec<Value> = server.requests().iter().map(ReceivedRequest::json).collect();
        assert_eq!(bodies.len(), refused + 2, "{bodies:?}");
        let natively = bodies.iter().filter(|body| body.get("response_format").is_some()).count();
        let by_tool = bodies.iter().filter(|body| body.get("tools").is_some()).count();
        assert_eq!((natively, by_tool), (refused / 2, refused / 2));
        for body in &bodies[refused..] {
            let system = body["messages"][0]["content"].as_str().unwrap();
            assert!(system.starts_with("Be brief.") && system.contains("\"people\""), "{system}");
        }
        assert!(bodies.last().unwrap().to_string().contains("it is not JSON"), "what was wrong is said");
    }
    // The repairs have an end, and a request that is refused all the same ends the run.
    let server = chat(&["no"; 9], takes_neither);
    let failed = agent_at(&server, &known).run_as::<City>("Which?").await.unwrap_err();
    assert_eq!((failed.stop(), server.requests().len()), (&RunStopReason::AnswerSchema, 3));
    let server = chat(&[], |_| true);
    let failed = agent_at(&server, &unknown).run_as::<City>("Which?").await.unwrap_err();
    assert_eq!(failed.into_output().error.unwrap().kind, ErrorKind::InvalidRequest);
    assert_eq!(server.requests().len(), 3);
}

#[tokio::test]
async fn a_server_that_rejects_schemas_gets_a_forced_tool() {
    let server = LoopbackProvider::start_with(|request| {
        let body = request.json();
        if body.get("response_format").is_some() {
            let error = json!({"error": {"message": "no response_format here", "type": "invalid_request_error"}});
            return Reply::json(400, error.to_string());
        }
        let call = json!({"id": "c1", "type": "function", "function": {"name": "toolpost_answer", "arguments": FITS}});
        let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
        let body = json!({"id": "c", "object": "chat.completion", "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}});
        Reply::json(200, body.to_string())
    })
    .unwrap();
    let unknown = Arc::clone(ModelCatalog::built_in());
    // Also of a model that has schemas, if the provider's words are about them.
    let row = r#"{"models": [{"id": "openai-compatible/small", "features": {"structured_output": true}}]}"#;
    let known = Arc::new(unknown.with_file("mine", row).unwrap());
    for catalog in [&unknown, &known] {
        let before = server.requests().len();
        let answer = agent_at(&server, catalog).run_as::<City>("Which?").await.unwrap();
        assert_eq!(answer.value, oslo());
        assert_eq!(answer.output.record.iterations, 2, "each question counts");
        let bodies: Vec<Value> = server.requests()[before..].iter().map(ReceivedRequest::json).collect();
        assert_eq!(bodies.len(), 2);
        assert_eq!(bodies[1]["tools"][0]["function"]["name"], "toolpost_answer");
        assert_eq!(bodies[1]["tool_choice"]["function"]["name"], "toolpost_answer");
        let notices = answer.output.record.notices.join("\n");
        assert!(notices.contains("the answer is requested through a tool instead"), "{notices}");
    }
}

#[tokio::test]
async fn a_server_that_ignores_the_schema_gets_it_with_the_first_correction() {
    let server = chat(&["Oslo", "Oslo!", FITS], |_| false);
    let answer = agent_at(&server, ModelCatalog::built_in()).run_as::<City>("Which?").await.unwrap();
    assert_eq!(answer.value, oslo());
    let bodies: Vec<Value> = server.requests().iter().map(ReceivedRequest::json).collect();
    let reported = |body: &Value| body["messages"].to_string().matches("\\\"people\\\"").count();
    assert_eq!(bodies.iter().map(|body| reported(body) > 0).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(reported(&bodies[1]), reported(&bodies[2]), "once is enough");
    assert!(bodies.iter().all(|body| body.get("response_format").is_some()));
}

#[tokio::test]
async fn an_answer_is_complete_even_if_its_last_part_is_empty() {
    let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    let script = "turns:\n  - text: '{\"n\": 4}'\n    stop: pause\n  - text: ''\n  - text: '{\"n\": 5}'\n";
    let outcome = agent(script).answer_schema(schema.clone()).build().run("Which?").finish().await;
    assert_eq!((outcome.value, outcome.record.iterations), (Some(json!({"n": 4})), 2));
    // Text before a call is not an answer.
    let script = "turns:\n  - text: '{\"n\": 4}'\n    calls: [{ tool: add, args: { a: 1, b: 2 } }]\n  - text: ''\n  - text: '{\"n\": 5}'\n";
    let outcome = agent(script).answer_schema(schema).build().run("Which?").finish().await;
    assert_eq!((outcome.value, outcome.record.iterations), (Some(json!({"n": 5})), 3));
}
