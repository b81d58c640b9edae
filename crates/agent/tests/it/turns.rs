//! The exchange between a run, its model and its tools.

use std::sync::{Arc, Mutex};

use serde_json::json;
use toolpost::{Answer, Ctx, Event, Output, SampleRequest, Status, tool, tool_fn};
use toolpost_agent::{Agent, RunStopReason};
use toolpost_llm::{ItemView, ScriptModel, Turn};
use toolpost_testkit::MemoryPort;
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_toolbox::Toolbox;

use crate::agent;
use crate::support::{hosted, results};

#[tokio::test]
async fn a_run_can_use_another_model() {
    let agent = agent("turns: [{ text: usual }]").build();
    let other = Arc::new(ScriptModel::parse("other", "turns: [{ text: special }]").unwrap());
    let outcome = agent.run("hi").with_model(other.clone()).finish().await;
    assert_eq!((outcome.text(), outcome.record.model.as_str()), ("special", "script/other"));
    assert_eq!(agent.run("hi").finish().await.text(), "usual");
    assert_eq!(agent.with_model(other).run("hi").finish().await.text(), "special");
}

#[tokio::test]
async fn tools_run_and_the_model_reads_their_results() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let agent = agent(
        r#"
turns:
  - text: Let me add.
    calls: [{ tool: add, args: { a: 2, b: 3 } }, { tool: add, args: { a: 10, b: 20 } }]
    usage: { input: 100, output: 10 }
  - expect: { result_equals: 30 }
    text: "{{ results[0].structured }} and {{ last.structured }}"
    usage: { input: 200, output: 20 }
"#,
    )
    .system("Be brief.")
    .on_event(Arc::new(move |event: &Event| {
        let value = serde_json::to_value(event).unwrap();
        sink.lock().unwrap().push(value["type"].as_str().unwrap().to_owned());
    }))
    .build();
    let outcome = agent.run("Add.").finish().await;
    assert_eq!((&outcome.stop, outcome.text()), (&RunStopReason::EndTurn, "5 and 30"), "{:?}", outcome.error);
    let record = &outcome.record;
    assert!(record.success && record.error.is_none());
    assert_eq!((record.iterations, record.tools_used.as_slice()), (2, &["add".to_owned()][..]));
    assert_eq!(record.tool_calls.len(), 2);
    assert!(
        record.tool_calls.iter().all(|call| call.status == Status::Success && call.caller.front == "agent")
    );
    assert_eq!((record.usage.input_tokens, record.usage.output_tokens), (300, 30));
    // user, assistant, results, assistant: the conversation only grows at its end.
    assert!(matches!(
        outcome.turns.as_slice(),
        [Turn::User(_), Turn::Assistant(_), Turn::ToolResults(results), Turn::Assistant(_)] if results.len() == 2
    ));
    let events = events.lock().unwrap();
    assert_eq!(events.first().map(String::as_str), Some("run.started"));
    assert_eq!(events.last().map(String::as_str), Some("run.finished"));
    assert_eq!(events.iter().filter(|kind| *kind == "turn.started").count(), 2);
    assert!(events.iter().any(|kind| kind == "text.delta"));
}

#[tokio::test]
async fn an_agent_continues_a_conversation_and_runs_concurrently() {
    let agent = agent("turns:\n  - text: first\n  - text: second\n").build();
    let first = agent.run("Hello.").finish().await;
    let mut turns = first.turns.clone();
    turns.push(Turn::user("And now?"));
    let (second, other) = tokio::join!(agent.run_turns(turns).finish(), agent.run("Hello.").finish());
    assert_eq!((first.text(), second.text(), other.text()), ("first", "second", "first"));
}

#[tokio::test(start_paused = true)]
async fn tools_run_in_parallel_up_to_the_limit_and_results_keep_their_order() {
    let script = r"
turns:
  - calls:
      - { tool: wait, args: { milliseconds: 300 } }
      - { tool: wait, args: { milliseconds: 100 } }
      - { tool: wait, args: { milliseconds: 200 } }
  - text: '{{ results[0].structured }} {{ results[1].structured }} {{ results[2].structured }}'
";
    for (parallel, expected) in [(8, 300), (1, 600)] {
        let agent = agent(script).max_parallel_tools(parallel).build();
        let start = tokio::time::Instant::now();
        let outcome = agent.run("Wait.").finish().await;
        assert_eq!(outcome.text(), "300 100 200");
        let took = start.elapsed();
        assert!((expected..expected + 50).contains(&took.as_millis()), "{parallel} at once took {took:?}");
    }
}

#[tokio::test]
async fn the_model_reads_errors_without_internal_details() {
    let script = r"
turns:
  - calls: [{ tool: broken }, { tool: ad, args: { a: 1 } }, { tool: add, args: { a: x } }]
  - text: '{{ results[0].text }} | {{ results[1].text }} | {{ results[2].text }}'
";
    let outcome = agent(script).build().run("Try.").finish().await;
    let text = outcome.text();
    assert!(text.contains("INTERNAL: the tool failed internally") && !text.contains("hunter2"), "{text}");
    assert!(text.contains("NOT_FOUND: unknown tool `ad`. Did you mean `add`?"), "{text}");
    assert!(text.contains("MISSING_PARAM: `b` is missing"), "{text}");
    assert!(outcome.record.tool_calls.iter().all(|call| call.status == Status::Error));
    assert!(results(&outcome.turns, 2).iter().all(|result| result.is_error));
    // The owner's record has the cause.
    assert!(serde_json::to_string(&outcome.record).unwrap().contains("hunter2"));
}

/// Ask the model and the person.
#[tool]
async fn curious(ctx: &Ctx) -> Result<String, toolpost::ToolError> {
    let sample = ctx.sample(SampleRequest::new("Say hi.")).await?;
    match ctx.ask(toolpost::Question::text("Who?")).await? {
        Answer::Given { value } => Ok(format!("{} {value}", sample.content)),
        Answer::Declined => Ok("nobody".into()),
    }
}

#[tokio::test]
async fn a_tool_can_use_the_model_and_ask_the_port() {
    // A scripted model counts its own answers, so that the completion is its first turn too.
    let script = "turns:\n  - calls: [{ tool: curious }]\n    usage: { input: 5, output: 1 }\n  - text: '{{ last.text }}'\n";
    let toolbox = Toolbox::builder().tool(curious).build().unwrap();
    let agent = Agent::builder(Arc::new(ScriptModel::parse("test", script).unwrap()), toolbox).build();
    let port = MemoryPort::new(10, 10);
    port.answer(Answer::Given { value: json!("Ada") });
    let outcome = agent.run("Go.").with_port(Arc::clone(&port) as Arc<dyn toolpost::Port>).finish().await;
    assert_eq!(outcome.text(), " \"Ada\"");
    assert_eq!(port.heard().questions.len(), 1);
    // Two turns of the run and one completion, each of which was counted.
    assert_eq!(outcome.record.usage.input_tokens, 10);
}

#[tokio::test]
async fn images_reach_the_model_and_payloads_do_not() {
    let spec = toolpost::ToolSpec::new("plot", "Plot.");
    let plot = tool_fn(spec, async |_, _| {
        Ok(Output::text("a plot")
            .with_content(toolpost::Content::image("image/png", b"PNG"))
            .with_payload("the secret rows".to_owned()))
    });
    let toolbox = Toolbox::builder().tool(plot).build().unwrap();
    let model = ScriptModel::parse("test", "turns:\n  - calls: [{ tool: plot }]\n  - text: ok\n").unwrap();
    let outcome = Agent::builder(Arc::new(model), toolbox).build().run("Plot.").finish().await;
    assert!(outcome.record.tool_calls[0].payload);
    let sent = serde_json::to_string(&outcome.turns).unwrap();
    assert!(sent.contains("image/png") && sent.contains("UE5H") && !sent.contains("secret rows"));
    let record = serde_json::to_string(&*outcome.record).unwrap();
    let [payload] = outcome.payloads.as_slice() else { panic!("{:?}", outcome.payloads) };
    assert_eq!(payload.payload.get::<String>().as_deref().map(String::as_str), Some("the secret rows"));
    assert_eq!((&*payload.tool, payload.call), ("plot", outcome.record.tool_calls[0].id));
    assert!(!record.contains("secret rows") && !format!("{outcome:?}").contains("secret rows"), "{record}");
}

#[tokio::test]
async fn items_of_a_provider_go_back_unchanged() {
    let block =
        r#"{"type":"tool_use","id":"toolu_1","name":"add","input":{"a":1.0,"b":2},"future_field":[1]}"#;
    let body = |content: &str, stop: &str| {
        format!(
            r#"{{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[{content}],"stop_reason":"{stop}","usage":{{"input_tokens":7,"output_tokens":3,"cache_read_input_tokens":90}}}}"#
        )
    };
    let provider = LoopbackProvider::start(vec![
        Reply::json(200, body(block, "tool_use")),
        Reply::json(200, body(r#"{"type":"text","text":"done"}"#, "end_turn")),
    ])
    .unwrap();
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    let model = hosted(&provider, "anthropic", "claude-x");
    let outcome = Agent::builder(model, toolbox).build().run("Add.").finish().await;
    assert_eq!(outcome.text(), "done", "{:?}", outcome.error);
    // `1.0` is an integer in JSON Schema, and cached tokens are input.
    assert_eq!(outcome.record.usage.input_tokens, 194);
    let sent = String::from_utf8(provider.requests()[1].body.clone()).unwrap();
    assert!(sent.contains(r#""input":{"a":1.0,"b":2},"future_field":[1]"#), "{sent}");
    let Turn::Assistant(turn) = &outcome.turns[1] else { panic!("{:?}", outcome.turns) };
    assert!(matches!(turn.items[0].view(), ItemView::ToolCall { .. }));
}

#[tokio::test]
async fn awaiting_a_run_yields_an_output_or_an_error_with_the_output() {
    async fn answer(agent: &toolpost_agent::Agent) -> Result<String, Box<dyn std::error::Error>> {
        Ok(agent.run("Hello.").await?.text().to_owned())
    }
    assert_eq!(answer(&agent("turns: [{ text: hi }]").build()).await.unwrap(), "hi");
    let script = "turns: [{ calls: [{ tool: add, args: { a: 1, b: 2 } }] }, { text: Three. }]";
    let error = agent(script).max_iterations(1).build().run("Add.").await.unwrap_err();
    assert_eq!(error.stop(), &RunStopReason::MaxIterations);
    assert_eq!(error.output().record.tool_calls.len(), 1);
    assert!(error.to_string().starts_with("the run reached its limit (max_iterations)"), "{error}");
}

#[tokio::test]
async fn a_stream_has_the_events_of_the_run_and_of_its_calls() {
    let kind = |event: &Event| serde_json::to_value(event).unwrap()["type"].as_str().unwrap().to_owned();
    let script = "turns: [{ calls: [{ tool: add, args: { a: 1, b: 2 } }] }, { text: Three. }]";
    let agent = agent(script).build();
    let mut stream = agent.run("Add.").stream();
    let mut kinds = Vec::new();
    while let Some(event) = stream.next().await {
        kinds.push(kind(&event));
    }
    let position = |kind: &str| kinds.iter().position(|found| found == kind).unwrap();
    assert_eq!((kinds[0].as_str(), kinds.last().unwrap().as_str()), ("run.started", "run.finished"));
    assert!(position("call.started") < position("call.finished"), "{kinds:?}");
    assert!(position("call.finished") < position("text.delta"), "{kinds:?}");
    assert_eq!(stream.finish().await.unwrap().text(), "Three.");
    // Without reading the events.
    assert_eq!(agent.run("Add.").stream().finish().await.unwrap().text(), "Three.");
}
