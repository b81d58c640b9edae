//! The server and the client of Toolpost together lose nothing.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolpost_core::{
    Annotations, Answer, Code, Content, LogLevel, Output, ParameterType, Question, RetryAdvice, Secret,
    ToolError, ToolSource as _, ToolSpec, tool_fn,
};
use toolpost_mcp::client::{Client, Endpoint};
use toolpost_mcp::server::Server;
use toolpost_testkit::MemoryPort;
use toolpost_toolbox::Toolbox;

use super::support::{call, call_with};

fn toolbox() -> Toolbox {
    let add = ToolSpec::new("add", "Add two numbers.")
        .parameter("a", ParameterType::Integer, "The first number.")
        .parameter("b", ParameterType::Integer, "The second number.")
        .output(json!({ "type": "integer" }))
        .annotations(Annotations { idempotent: true, ..Annotations::default() });
    let add = tool_fn(add, async |args, _| {
        Ok(Output::json((args.decode::<i64>("a")? + args.decode::<i64>("b")?).into()))
    });
    let fail = tool_fn(ToolSpec::new("fail", "Fail."), async |_, _| {
        Err(ToolError::conflict("taken")
            .suggest("Wait.")
            .with("by", "ada")
            .retry(RetryAdvice::After(Duration::from_secs(3))))
    });
    let show = tool_fn(ToolSpec::new("show", "Show."), async |_, ctx| {
        ctx.progress("half", 50.0);
        ctx.log(LogLevel::Info, "looked");
        Ok(Output::text("seen")
            .with_content(Content::image("image/png", &[1, 2, 3]))
            .with_structured(json!({ "n": [1] })))
    });
    let ask = tool_fn(ToolSpec::new("ask", "Ask."), async |_, ctx| {
        let question = Question::with_schema(
            "Which?",
            json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] }),
        );
        match ctx.ask(question).await? {
            Answer::Given { value } => Ok(Output::json(value)),
            Answer::Declined => Ok(Output::text("declined")),
        }
    });
    Toolbox::builder().tool(add).tool(fail).tool(show).tool(ask).build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_errors_progress_and_questions_arrive_unchanged() {
    let toolbox = toolbox();
    let server = Server::builder(Arc::new(toolbox.clone()))
        .name("own")
        .bearer(Secret::new("hunter2hunter2"))
        .build()
        .unwrap();
    let running = server.http("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = running.connection_url();
    let error = Client::builder(Endpoint::http(&url)).name("own").connect().await.unwrap_err();
    assert_eq!(error.code(), Code::Permission, "{error}");
    assert_eq!(error.context()["unauthorized"], true);
    let headers = vec![("Authorization".to_owned(), Secret::new("Bearer hunter2hunter2"))];
    let client = Client::builder(Endpoint::Http { url, headers }).name("own").connect().await.unwrap();
    assert_eq!(client.protocol().await.as_deref(), Some("2026-07-28"));

    let listed = client.list().await.unwrap();
    for spec in &toolbox.specs() {
        let found = listed.iter().find(|found| found.name == spec.name).unwrap();
        assert_eq!(found.description, spec.description);
        assert_eq!(found.input_schema.as_value(), spec.input_schema.as_value());
        // The default of the protocol for a hint that the author did not declare.
        assert_eq!(found.annotations, Annotations { open_world: true, ..spec.annotations });
        assert_eq!(
            found.output_schema.as_ref().map(|schema| schema.as_value()),
            spec.output_schema.as_ref().map(|schema| schema.as_value())
        );
    }
    assert_eq!(call(&client, "add", json!({ "a": 1, "b": 2 })).await.unwrap().structured, Some(json!(3)));
    let error = call(&client, "fail", json!({})).await.unwrap_err();
    assert_eq!((error.code(), error.message(), error.suggestion()), (Code::Conflict, "taken", Some("Wait.")));
    assert_eq!(error.context()["by"], "ada");
    assert_eq!(error.retry_advice(), Some(RetryAdvice::After(Duration::from_secs(3))));

    let port = MemoryPort::new(10, 0);
    let output = client.call(call_with(&port, "show", json!({}))).await.result.unwrap();
    assert_eq!(output.structured, Some(json!({ "n": [1] })));
    assert!(matches!(output.content.as_slice(), [Content::Text { .. }, Content::Image { .. }]), "{output:?}");
    let heard = port.heard();
    assert_eq!(heard.progress.iter().map(|step| step.message.as_str()).collect::<Vec<_>>(), ["half"]);
    assert_eq!(heard.log.iter().filter(|line| line.message.contains("looked")).count(), 1);

    port.answer(Answer::Given { value: json!({ "city": "Oslo" }) });
    let output = client.call(call_with(&port, "ask", json!({}))).await.result.unwrap();
    assert_eq!(output.structured, Some(json!({ "city": "Oslo" })));
    running.stop().await;
}
