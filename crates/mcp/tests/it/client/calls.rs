//! Lists, calls, questions, tasks and cancellations, with both protocol generations and both transports.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolpost_core::{Answer, Call, Cancellation, Code, Content, LogLevel, Secret, ToolSource as _};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_sandbox::Level;
use toolpost_testkit::{MemoryPort, eventually};

use super::fixture::Fixture;
use super::support::{HttpServer, call, call_text, call_with, connect, program};

/// A client for each combination; the server must stay alive.
async fn clients() -> Vec<(&'static str, Arc<Client>, Option<HttpServer>)> {
    let mut all = Vec::new();
    for is_legacy in [false, true] {
        let names = if is_legacy { ["2025 program", "2025 http"] } else { ["2026 program", "2026 http"] };
        all.push((names[0], connect(program(is_legacy)).await, None));
        let server = HttpServer::start(Fixture::new(is_legacy)).await;
        all.push((names[1], connect(server.endpoint()).await, Some(server)));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_listed_and_called() {
    for (kind, client, _server) in clients().await {
        let expected = if kind.starts_with("2026") { "2026-07-28" } else { "2025-11-25" };
        assert_eq!(client.protocol().await.as_deref(), Some(expected), "{kind}");
        assert_eq!(client.instructions().await.as_deref(), Some("Use it well."), "{kind}");
        assert_eq!(client.problems(), Vec::<String>::new(), "{kind}");
        let tools = client.list().await.unwrap();
        assert_eq!(tools.len(), 15, "{kind}: both pages");
        let add = tools.iter().find(|spec| spec.name == "add").unwrap();
        assert_eq!(add.summary(), "Add two numbers.");
        assert!(add.annotations.read_only && add.output_schema.is_some());
        let foreign = tools.iter().find(|spec| spec.name.starts_with("files_read_all_")).unwrap();
        assert_eq!(foreign.meta["mcp_name"], "files/read.all");
        for spec in &tools {
            spec.check().unwrap();
        }

        let reply = client.call(Call::new("add", json!({ "a": 20, "b": 22 }))).await;
        assert_eq!(reply.result.unwrap().structured, Some(json!({ "sum": 42 })), "{kind}");
        assert_eq!((&*reply.record.source, reply.record.attempts), ("srv", 1));
        let output = call(&client, &foreign.name, json!({})).await.unwrap();
        let content = output.content.as_slice();
        let [Content::Text { .. }, Content::Image { .. }, Content::Resource { text: None, .. }] = content
        else {
            panic!("{kind}: {output:?}");
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_has_its_code_and_a_dry_run_calls_nothing() {
    for (kind, client, _server) in clients().await {
        for (tool, arguments, code, text) in [
            ("fail", json!({}), Code::Precondition, "no such city"),
            ("ad", json!({}), Code::NotFound, "has no tool `ad`"),
            ("add", json!({ "a": 1 }), Code::MissingParam, "`b` is missing"),
            ("add", json!({ "a": 1, "b": "x" }), Code::InvalidInput, "/b"),
            ("add", json!([1]), Code::InvalidInput, "expected an object"),
            // A caller without a port cannot answer questions.
            ("ask", json!({}), Code::Precondition, "cannot answer questions"),
        ] {
            let error = call(&client, tool, arguments).await.unwrap_err();
            assert!(error.to_string().contains(text), "{kind}: {error}");
            assert!(error.code() == code || tool == "ask", "{kind}: {error}");
        }
        let mut checked = Call::new("add", json!({ "a": 1, "b": 2 }));
        checked.options.validate = true;
        assert_eq!(client.call(checked).await.result.unwrap().structured, Some(json!({ "valid": true })));
        let mut dry = Call::new("count", json!({}));
        dry.options.dry_run = true;
        assert_eq!(client.call(dry).await.result.unwrap().structured.unwrap()["would_call"], "count");
        assert_eq!(call_text(&client, "count", json!({})).await, "0", "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_and_log_lines_reach_the_caller_in_order() {
    for (kind, client, _server) in clients().await {
        let port = MemoryPort::new(100, 0);
        client.call(call_with(&port, "slow", json!({ "ms": 40 }))).await.result.unwrap();
        // Over HTTP of 2025 a line has a stream of its own, and can come after the result, when no call takes it.
        let mut attempts = 0;
        while port.heard().log.is_empty() && attempts < 20 {
            client.call(call_with(&port, "log", json!({}))).await.result.unwrap();
            attempts += 1;
        }
        let heard = port.heard();
        let progress: Vec<_> =
            heard.progress.iter().map(|step| (step.message.as_str(), step.percent)).collect();
        let expected =
            [("step 0", Some(0.0)), ("step 1", Some(25.0)), ("step 2", Some(50.0)), ("step 3", Some(75.0))];
        assert_eq!(progress, expected, "{kind}");
        let lines: Vec<_> = heard.log.iter().map(|line| (line.level, line.message.as_str())).collect();
        assert_eq!(lines, [(LogLevel::Warn, "fixture: careful")], "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_caller_answers_questions_and_sampling() {
    for (kind, client, _server) in clients().await {
        let port = MemoryPort::new(10, 10);
        // The default of the schema replaces a missing field.
        port.answer(Answer::Given { value: json!({ "city": "Oslo" }) });
        let output = client.call(call_with(&port, "ask", json!({}))).await.result.unwrap();
        let answer: Value = serde_json::from_str(&output.to_text()).unwrap();
        let expected = (&json!("accept"), &json!({ "city": "Oslo", "days": 3 }));
        assert_eq!((&answer["action"], &answer["content"]), expected, "{kind}");
        port.answer(Answer::Declined);
        let output = client.call(call_with(&port, "ask", json!({}))).await.result.unwrap();
        assert!(output.to_text().contains("decline"), "{kind}");
        client.call(call_with(&port, "sample", json!({}))).await.result.unwrap();
        let sample = port.heard().samples.remove(0);
        assert_eq!(
            (sample.prompt.as_str(), sample.system.as_deref(), sample.max_tokens),
            ("Say hi.", Some("Be brief."), 7),
            "{kind}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_and_prompts_are_read() {
    for (kind, client, _server) in clients().await {
        let resources = client.resources().await.unwrap();
        let patterns: Vec<_> = resources.iter().map(|spec| spec.uri_pattern.as_str()).collect();
        assert_eq!(patterns, ["test://static", "test://item/{id}"], "{kind}");
        assert_eq!(client.read_resource("test://static").await.unwrap().to_text(), "a text", "{kind}");
        let missing = client.read_resource("test://item/1").await.unwrap_err();
        assert!(missing.message().contains("no test://item/1"), "{kind}: {missing}");
        let prompts = client.prompts().await.unwrap();
        let optional: Vec<_> = prompts[0].arguments.iter().map(|argument| argument.optional).collect();
        assert_eq!(optional, [false, true], "{kind}");
        let arguments = Map::from_iter([("who".to_owned(), json!("Ada"))]);
        let output = client.render_prompt("greet", &arguments).await.unwrap();
        assert_eq!(output.to_text(), "Greet \"Ada\".", "{kind}");
        assert_eq!(output.structured.unwrap()["messages"][0]["role"], "user");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_or_late_call_is_cancelled_at_the_server() {
    for is_legacy in [false, true] {
        let server = HttpServer::start(Fixture::new(is_legacy)).await;
        let facts = Arc::clone(&server.fixture.facts);
        let limit = Duration::from_millis(300);
        let client = connect(server.endpoint()).await;
        let impatient = Client::builder(server.endpoint()).timeout(limit).connect().await.unwrap();
        for (number, cause) in (1..).zip(["cancellation", "timeout", "deadline", "client timeout"]) {
            let mut slow = Call::new("slow", json!({ "ms": 60_000 }));
            let cancellation = Cancellation::new();
            slow.cancellation = cancellation.clone();
            match cause {
                "timeout" => slow.options.timeout = Some(limit),
                "deadline" => slow.deadline = Some(Instant::now() + limit),
                _ => {}
            }
            let client = if cause == "client timeout" { &impatient } else { &client };
            let cancel = async {
                if cause == "cancellation" {
                    eventually("the call starts", async || facts.started.load(Ordering::SeqCst) == 1).await;
                    cancellation.cancel();
                }
            };
            let (reply, ()) = tokio::join!(client.call(slow), cancel);
            let expected = if cause == "cancellation" { Code::Cancelled } else { Code::Timeout };
            assert_eq!(reply.result.unwrap_err().code(), expected, "{cause}");
            eventually(cause, async || facts.cancelled.load(Ordering::SeqCst) == number).await;
        }
        assert_eq!(call_text(&client, "count", json!({})).await, "0", "the connection survives");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_question_does_not_count() {
    let server = HttpServer::start(Fixture::new(false)).await;
    let limit = Duration::from_millis(400);
    let client = Client::builder(server.endpoint()).timeout(limit).connect().await.unwrap();
    let port = MemoryPort::new(10, 0);
    let ask = call_with(&port, "ask", json!({}));
    let mut answered = tokio::spawn(async move { client.call(ask).await.result });
    eventually("the question arrives", async || !port.heard().questions.is_empty()).await;
    assert!(tokio::time::timeout(2 * limit, &mut answered).await.is_err());
    port.answer(Answer::Given { value: json!({ "city": "Oslo" }) });
    assert!(answered.await.unwrap().unwrap().to_text().contains("Oslo"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_list_increments_the_generation() {
    for (kind, client, _server) in clients().await {
        let before = client.generation();
        // Toggles a tool; a modern client may subscribe only after the first change.
        eventually("the client learns of a change", async || {
            call_text(&client, "change", json!({})).await;
            client.generation() > before
        })
        .await;
        eventually("the list is current", async || {
            let names: Vec<_> = client.list().await.unwrap().iter().map(|spec| spec.name.clone()).collect();
            let has_more = names.iter().any(|name| name == "more");
            has_more == (call_text(&client, "has_more", json!({})).await == "true")
        })
        .await;
        assert_eq!(client.problems(), Vec::<String>::new(), "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_polled_until_its_end_and_cancelled_without_a_caller() {
    let server = HttpServer::start(Fixture::new(false)).await;
    for endpoint in [server.endpoint(), program(false)] {
        let client = connect(endpoint).await;
        let port = MemoryPort::new(10, 0);
        port.answer(Answer::Given { value: json!({ "yes": true }) });
        let task = call_with(&port, "task", json!({ "polls": 2, "asks": true }));
        let output = client.call(task).await.result.unwrap();
        assert!(output.to_text().contains("finished") && output.to_text().contains("true"), "{output:?}");
        let progress: Vec<_> = port.heard().progress.iter().map(|step| step.message.clone()).collect();
        assert_eq!(progress, ["1 to go", "0 to go"]);
    }
    let client = connect(server.endpoint()).await;
    let mut task = Call::new("task", json!({ "polls": 100_000, "asks": false }));
    task.options.timeout = Some(Duration::from_millis(300));
    assert_eq!(client.call(task).await.result.unwrap_err().code(), Code::Timeout);
    let cancelled = &server.fixture.facts.cancelled_tasks;
    eventually("the task is cancelled", async || cancelled.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_context_log_level_and_headers_are_sent() {
    let server = HttpServer::start(Fixture::new(false)).await;
    let endpoint = |value: &str| Endpoint::Http {
        url: server.url(),
        headers: vec![("X-Key".to_owned(), Secret::new(value))],
    };
    let client = connect(endpoint("hunter2")).await;
    let mut meta = Call::new("meta", json!({}));
    meta.options.metadata.insert("traceparent".to_owned(), "00-abc-def-01".into());
    meta.options.metadata.insert("private".to_owned(), "mine".into());
    let sent = client.call(meta).await.result.unwrap().to_text().into_owned();
    for expected in ["00-abc-def-01", "\"info\"", "io.modelcontextprotocol/tasks"] {
        assert!(sent.contains(expected) && !sent.contains("mine"), "{expected} in {sent}");
    }
    let mut verbose = Call::new("meta", json!({}));
    verbose.options.verbose = true;
    assert!(client.call(verbose).await.result.unwrap().to_text().contains("\"debug\""));
    let headers = server.fixture.facts.headers.lock().unwrap().clone();
    assert!(headers.len() >= 3 && headers.iter().all(|value| value == "hunter2"), "{headers:?}");
    let error = Client::builder(endpoint("hunter2\u{7}")).connect().await.unwrap_err();
    assert!(error.code() == Code::InvalidInput && !format!("{error:#?}").contains("hunter2"), "{error:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_has_only_the_given_environment() {
    let Endpoint::Program { argv, .. } = program(false) else { unreachable!() };
    let env = vec![("API_KEY".to_owned(), "hunter2".into())];
    let endpoint = Endpoint::Program { argv, env, dir: None, level: Level::Minimal };
    assert!(!format!("{endpoint:?}").contains("hunter2"));
    let client = connect(endpoint).await;
    let variables = call_text(&client, "environment", json!({})).await;
    assert!(variables.contains("API_KEY=hunter2") && !variables.contains("CARGO"), "{variables}");
}

#[tokio::test]
async fn a_url_is_checked_before_the_connection() {
    for (url, no_network, code, text) in [
        ("ftp://a.example/", false, Code::InvalidInput, "`ftp:`"),
        ("nothing", false, Code::InvalidInput, "invalid URL"),
        ("http://me:hunter2@127.0.0.1/", false, Code::InvalidInput, "a user or password"),
        ("http://192.0.2.1/mcp", true, Code::Permission, "TOOLPOST_NO_NETWORK"),
        ("https://a.example/mcp", true, Code::Permission, "TOOLPOST_NO_NETWORK"),
        ("http://127.0.0.1:1/mcp", true, Code::Dependency, "cannot connect"),
    ] {
        let error = Client::builder(Endpoint::http(url)).no_network(no_network).connect().await.unwrap_err();
        assert_eq!(error.code(), code, "{url}: {error}");
        assert!(error.message().contains(text) && !error.message().contains("hunter2"), "{url}: {error}");
    }
}
