//! What servers of both eras, over each transport, come to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolpost_core::{
    Answer, BoxFuture, Call, CallId, Cancellation, Code, Content, LogLevel, Port, Question, Sample,
    SampleRequest, Secret, ToolError, ToolSource as _,
};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_sandbox::Level;
use toolpost_testkit::MemoryPort;

use super::fixture::Fixture;
use super::support::{HttpServer, call, connect, program, said};

/// Every way to reach the fixture, with the server that must stay.
async fn everywhere() -> Vec<(&'static str, Arc<Client>, Option<HttpServer>)> {
    let mut all = Vec::new();
    for is_legacy in [false, true] {
        let names = if is_legacy { ["2025 program", "2025 http"] } else { ["2026 program", "2026 http"] };
        all.push((names[0], connect(program(is_legacy)).await, None));
        let server = HttpServer::start(Fixture::new(is_legacy)).await;
        all.push((names[1], connect(server.endpoint()).await, Some(server)));
    }
    all
}

/// Answers completions; everything else as the port in memory does.
struct Model(Arc<MemoryPort>);

impl Port for Model {
    fn ask<'a>(&'a self, call: CallId, question: &'a Question) -> BoxFuture<'a, Result<Answer, ToolError>> {
        self.0.ask(call, question)
    }

    fn sample<'a>(
        &'a self,
        _: CallId,
        request: &'a SampleRequest,
    ) -> BoxFuture<'a, Result<Sample, ToolError>> {
        Box::pin(async move {
            let system = request.system.as_deref().unwrap_or("none");
            let content = format!("{} / {system} / {}", request.prompt, request.max_tokens);
            Ok(Sample { content, usage: None })
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_listed_with_their_schemas_and_called() {
    for (way, client, _server) in everywhere().await {
        let expected = if way.starts_with("2026") { "2026-07-28" } else { "2025-11-25" };
        assert_eq!(client.protocol().await.as_deref(), Some(expected), "{way}");
        assert_eq!(client.instructions().await.as_deref(), Some("Use it well."), "{way}");
        assert_eq!(client.problems(), Vec::<String>::new(), "{way}");
        let tools = client.list().await.unwrap();
        assert_eq!(tools.len(), 14, "{way}: both pages");
        let add = tools.iter().find(|spec| spec.name == "add").unwrap();
        assert_eq!(add.summary(), "Add two numbers.");
        assert!(add.annotations.read_only && add.output_schema.is_some());
        let foreign = tools.iter().find(|spec| spec.name.starts_with("files_read_all_")).unwrap();
        assert_eq!(foreign.meta["mcp_name"], "files/read.all");
        for spec in &tools {
            spec.check().unwrap();
        }

        let reply = client.call(Call::new("add", json!({ "a": 20, "b": 22 }))).await;
        assert_eq!(reply.result.unwrap().structured, Some(json!({ "sum": 42 })), "{way}");
        assert_eq!((&*reply.record.source, reply.record.attempts), ("srv", 1));
        let output = call(&client, &foreign.name, json!({})).await.unwrap();
        assert!(
            matches!(
                output.content.as_slice(),
                [Content::Text { .. }, Content::Image { .. }, Content::Resource { text: None, .. }]
            ),
            "{way}: {output:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_is_an_error_of_its_kind() {
    for (way, client, _server) in everywhere().await {
        for (tool, arguments, code, text) in [
            ("fail", json!({}), Code::Precondition, "no such city"),
            ("ad", json!({}), Code::NotFound, "has no tool `ad`"),
            ("add", json!({ "a": 1 }), Code::MissingParam, "`b` is missing"),
            ("add", json!({ "a": 1, "b": "x" }), Code::InvalidInput, "/b"),
            ("add", json!([1]), Code::InvalidInput, "expected an object"),
        ] {
            let error = call(&client, tool, arguments).await.unwrap_err();
            assert_eq!(error.code(), code, "{way}: {error}");
            assert!(error.message().contains(text), "{way}: {error}");
        }
        let mut checked = Call::new("add", json!({ "a": 1, "b": 2 }));
        checked.options.validate = true;
        assert_eq!(client.call(checked).await.result.unwrap().structured, Some(json!({ "valid": true })));
        let mut dry = Call::new("count", json!({}));
        dry.options.dry_run = true;
        assert_eq!(client.call(dry).await.result.unwrap().structured.unwrap()["would_call"], "count");
        assert_eq!(said(&client, "count", json!({})).await, "0", "{way}: a dry run calls nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_and_log_reach_the_caller_in_their_order() {
    for (way, client, _server) in everywhere().await {
        let port = MemoryPort::new(100, 0);
        let mut slow = Call::new("slow", json!({ "ms": 40 }));
        slow.port = Arc::clone(&port) as Arc<dyn Port>;
        client.call(slow).await.result.unwrap();
        let mut log = Call::new("log", json!({}));
        log.port = Arc::clone(&port) as Arc<dyn Port>;
        client.call(log).await.result.unwrap();
        let heard = port.heard();
        let told: Vec<_> = heard.progress.iter().map(|told| (told.message.as_str(), told.percent)).collect();
        let expected =
            [("step 0", Some(0.0)), ("step 1", Some(25.0)), ("step 2", Some(50.0)), ("step 3", Some(75.0))];
        assert_eq!(told, expected, "{way}");
        let lines: Vec<_> = heard.log.iter().map(|line| (line.level, line.message.as_str())).collect();
        assert_eq!(lines, [(LogLevel::Warn, "it: careful")], "{way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_and_completions_are_answered_by_the_caller() {
    for (way, client, _server) in everywhere().await {
        let memory = MemoryPort::new(10, 0);
        let port: Arc<dyn Port> = Arc::new(Model(Arc::clone(&memory)));
        let with_port = |tool: &str| {
            let mut call = Call::new(tool, json!({}));
            call.port = Arc::clone(&port);
            call
        };
        // The default of the schema stands in for what was left out, and one value answers for its field.
        memory.answer(Answer::Given { value: json!({ "city": "Oslo" }) });
        let output = client.call(with_port("ask")).await.result.unwrap();
        let told: Value = serde_json::from_str(&output.to_text()).unwrap();
        assert_eq!(
            (&told["action"], &told["content"]),
            (&json!("accept"), &json!({ "city": "Oslo", "days": 3 })),
            "{way}"
        );
        memory.answer(Answer::Declined);
        let output = client.call(with_port("ask")).await.result.unwrap();
        assert!(output.to_text().contains("decline"), "{way}");
        let output = client.call(with_port("sample")).await.result.unwrap();
        assert_eq!(output.to_text(), "Say hi. / Be brief. / 7", "{way}");
        // A caller that cannot answer is never silent.
        let error = call(&client, "ask", json!({})).await.unwrap_err();
        assert!(error.to_string().contains("cannot answer questions"), "{way}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_and_prompts_are_read() {
    for (way, client, _server) in everywhere().await {
        let resources = client.resources().await.unwrap();
        let patterns: Vec<_> = resources.iter().map(|spec| spec.uri_pattern.as_str()).collect();
        assert_eq!(patterns, ["test://static", "test://item/{id}"], "{way}");
        assert_eq!(client.read_resource("test://static").await.unwrap().to_text(), "a text", "{way}");
        assert!(
            client.read_resource("test://item/1").await.unwrap_err().message().contains("no test://item/1")
        );
        let prompts = client.prompts().await.unwrap();
        assert_eq!(
            prompts[0].arguments.iter().map(|a| a.optional).collect::<Vec<_>>(),
            [false, true],
            "{way}"
        );
        let arguments = Map::from_iter([("who".to_owned(), json!("Ada"))]);
        let output = client.render_prompt("greet", &arguments).await.unwrap();
        assert_eq!(output.to_text(), "Greet \"Ada\".", "{way}");
        assert_eq!(output.structured.unwrap()["messages"][0]["role"], "user");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_or_late_call_is_cancelled_at_the_server() {
    for is_legacy in [false, true] {
        let server = HttpServer::start(Fixture::new(is_legacy)).await;
        let client = connect(server.endpoint()).await;
        let cancelled = || server.fixture.facts.cancelled.load(Ordering::SeqCst);

        let cancellation = Cancellation::new();
        let mut slow = Call::new("slow", json!({ "ms": 60_000 }));
        slow.cancellation = cancellation.clone();
        let running = tokio::spawn({
            let client = Arc::clone(&client);
            async move { client.call(slow).await.result }
        });
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancellation.cancel();
        assert_eq!(running.await.unwrap().unwrap_err().code(), Code::Cancelled);
        settles(|| cancelled() == 1).await;

        let mut slow = Call::new("slow", json!({ "ms": 60_000 }));
        slow.options.timeout = Some(Duration::from_millis(300));
        assert_eq!(client.call(slow).await.result.unwrap_err().code(), Code::Timeout);
        settles(|| cancelled() == 2).await;

        let mut slow = Call::new("slow", json!({ "ms": 60_000 }));
        slow.deadline = Some(Instant::now() + Duration::from_millis(300));
        assert_eq!(client.call(slow).await.result.unwrap_err().code(), Code::Timeout);
        settles(|| cancelled() == 3).await;

        let hasty =
            Client::builder(server.endpoint()).timeout(Duration::from_millis(300)).connect().await.unwrap();
        assert_eq!(call(&hasty, "slow", json!({ "ms": 60_000 })).await.unwrap_err().code(), Code::Timeout);
        settles(|| cancelled() == 4).await;
        assert_eq!(said(&client, "count", json!({})).await, "0", "the connection goes on");
    }
}

/// Waits until something is so.
async fn settles(is_so: impl Fn() -> bool) {
    for _ in 0..200 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came to be");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_in_which_somebody_is_asked_does_not_count() {
    let server = HttpServer::start(Fixture::new(false)).await;
    let client =
        Client::builder(server.endpoint()).timeout(Duration::from_millis(400)).connect().await.unwrap();
    let port = MemoryPort::new(10, 0);
    let mut ask = Call::new("ask", json!({}));
    ask.port = Arc::clone(&port) as Arc<dyn Port>;
    let answered = tokio::spawn(async move { client.call(ask).await.result });
    tokio::time::sleep(Duration::from_secs(1)).await;
    port.answer(Answer::Given { value: json!({ "city": "Oslo" }) });
    assert!(answered.await.unwrap().unwrap().to_text().contains("Oslo"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_list_raises_the_generation_and_is_listed_anew() {
    for (way, client, _server) in everywhere().await {
        let before = client.generation();
        // In the newer era the stream of notices may not be open yet.
        tokio::time::sleep(Duration::from_millis(200)).await;
        said(&client, "change", json!({})).await;
        for _ in 0..200 {
            if client.generation() > before {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(client.generation() > before, "{way}");
        let tools = client.list().await.unwrap();
        assert!(tools.iter().any(|spec| spec.name == "more"), "{way}");
        assert_eq!(said(&client, "more", json!({})).await, "more", "{way}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_asked_for_until_it_is_done_and_cancelled_when_nobody_waits() {
    let server = HttpServer::start(Fixture::new(false)).await;
    for endpoint in [server.endpoint(), program(false)] {
        let client = connect(endpoint).await;
        let port = MemoryPort::new(10, 0);
        port.answer(Answer::Given { value: json!({ "yes": true }) });
        let mut task = Call::new("task", json!({ "polls": 2, "asks": true }));
        task.port = Arc::clone(&port) as Arc<dyn Port>;
        let output = client.call(task).await.result.unwrap();
        assert!(output.to_text().contains("finished") && output.to_text().contains("true"), "{output:?}");
        let told: Vec<_> = port.heard().progress.iter().map(|told| told.message.clone()).collect();
        assert_eq!(told, ["1 to go", "0 to go"]);
    }
    let client = connect(server.endpoint()).await;
    let mut task = Call::new("task", json!({ "polls": 100_000, "asks": false }));
    task.options.timeout = Some(Duration::from_millis(300));
    assert_eq!(client.call(task).await.result.unwrap_err().code(), Code::Timeout);
    settles(|| server.fixture.facts.cancelled_tasks.load(Ordering::SeqCst) == 1).await;
    let plain = Client::builder(server.endpoint()).tasks(false).connect().await.unwrap();
    let told = said(&plain, "meta", json!({})).await;
    assert!(!told.contains("io.modelcontextprotocol/tasks"), "{told}");
    assert!(said(&client, "meta", json!({})).await.contains("io.modelcontextprotocol/tasks"));
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_log_levels_and_headers_travel_with_the_call() {
    let server = HttpServer::start(Fixture::new(false)).await;
    let headers = vec![("X-Key".to_owned(), Secret::new("hunter2"))];
    let endpoint = Endpoint::Http { url: server.url(), headers };
    let client = Client::builder(endpoint).log_level(LogLevel::Warn).connect().await.unwrap();
    let mut asked = Call::new("meta", json!({}));
    asked.options.metadata.insert("traceparent".to_owned(), "00-abc-def-01".into());
    asked.options.metadata.insert("private".to_owned(), "mine".into());
    let told = client.call(asked).await.result.unwrap().to_text().into_owned();
    assert!(
        told.contains("00-abc-def-01") && told.contains("\"warning\"") && !told.contains("mine"),
        "{told}"
    );
    let mut verbose = Call::new("meta", json!({}));
    verbose.options.verbose = true;
    assert!(client.call(verbose).await.result.unwrap().to_text().contains("\"debug\""));
    let sent = server.fixture.facts.headers.lock().unwrap().clone();
    assert!(sent.len() >= 3 && sent.iter().all(|value| value == "hunter2"), "{sent:?}");
    let bad =
        Endpoint::Http { url: server.url(), headers: vec![("X-Key".into(), Secret::new("hunter2\u{7}"))] };
    let error = Client::builder(bad).connect().await.unwrap_err();
    assert!(error.code() == Code::InvalidInput && !format!("{error:#?}").contains("hunter2"), "{error:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_has_a_clean_environment_and_what_it_was_given() {
    let Endpoint::Program { argv, .. } = program(false) else { unreachable!() };
    let folder = tempfile::tempdir().unwrap();
    let env = vec![("API_KEY".to_owned(), "hunter2".into())];
    let endpoint =
        Endpoint::Program { argv, env, dir: Some(folder.path().to_owned()), level: Level::Minimal };
    assert!(!format!("{endpoint:?}").contains("hunter2"));
    let client = connect(endpoint).await;
    let told = said(&client, "environment", json!({})).await;
    assert!(told.contains("API_KEY=hunter2"), "{told}");
    assert!(!told.contains("CARGO"), "{told}");
    let marker = folder.path().join("marker");
    std::fs::write(&marker, "").unwrap();
    // Writes of the program in its working directory persist.
    let told = said(&client, "crash_once", json!({ "file": marker })).await;
    assert_eq!(told, "survived");
}

#[tokio::test]
async fn urls_are_checked_before_a_connection() {
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
