//! The stop reasons of runs.

use std::time::Duration;

use serde_json::json;
use toolpost::{Cancellation, Code, Event, Evidence, Output, ToolError, tool};
use toolpost_agent::{AgentBuilder, RunStopReason};
use toolpost_llm::ErrorKind;
use toolpost_toolbox::Toolbox;

use crate::agent;
use crate::support::{check_pairs, scripted, texts};

/// A script with endless calls.
fn endless() -> String {
    let answer = |n: usize| {
        format!(
            "  - calls: [{{ tool: add, args: {{ a: {n}, b: 2 }} }}, {{ tool: add, args: {{ a: {n}, b: 4 }} }}]\n    usage: {{ input: 60, output: 40 }}\n"
        )
    };
    format!("turns:\n{}", (0..60).map(answer).collect::<String>())
}

/// A change of a builder.
type Change = fn(AgentBuilder) -> AgentBuilder;

#[tokio::test]
async fn limits_end_a_run_and_every_call_has_a_result() {
    let cases: [(Change, RunStopReason, usize, u64); 5] = [
        (|builder| builder, RunStopReason::MaxIterations, 50, 2_500),
        (|builder| builder.max_iterations(3), RunStopReason::MaxIterations, 6, 300),
        (|builder| builder.max_tool_calls(3), RunStopReason::MaxToolCalls, 3, 200),
        (|builder| builder.max_tokens(250), RunStopReason::MaxTokens, 4, 300),
        (|builder| builder.max_tokens(100), RunStopReason::MaxTokens, 0, 100),
    ];
    for (change, stop, calls, tokens) in cases {
        let outcome = change(agent(&endless()).wrap_up(false)).build().run("Go.").finish().await;
        let record = &outcome.record;
        assert_eq!((&outcome.stop, record.tool_calls.len()), (&stop, calls));
        assert_eq!((record.usage.total_tokens(), record.stop_reason.as_str()), (tokens, stop.as_str()));
        assert!(outcome.stop.is_limit() && !record.success);
        check_pairs(&outcome.turns);
        let last = texts(&outcome.turns, outcome.turns.len() - 1);
        assert!(stop == RunStopReason::MaxIterations || last[1].contains(stop.as_str()), "{last:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_ends_a_run_during_a_call() {
    let script = "turns:\n  - calls: [{ tool: wait, args: { milliseconds: 50000 } }]\n  - text: never\n";
    let start = tokio::time::Instant::now();
    let outcome = agent(script).max_time(Duration::from_secs(2)).build().run("Go.").finish().await;
    assert!(start.elapsed() < Duration::from_secs(3));
    assert_eq!(outcome.record.tool_calls[0].error.as_ref().unwrap().code(), Code::Timeout);
    check_pairs(&outcome.turns);
    assert_eq!(outcome.stop, RunStopReason::MaxTime);
}

/// Run a program, which the sandbox ends early.
#[tool]
async fn program(milliseconds: u64, verdict: String) -> Result<Output, ToolError> {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    if verdict == "error" {
        return Err(ToolError::timeout("the program timed out"));
    }
    let sandbox = Some(json!({ "verdict": { "kind": verdict } }));
    Ok(Output::text("half").with_evidence(Evidence { sandbox, ..Evidence::default() }))
}

#[tokio::test(start_paused = true)]
async fn a_program_that_the_time_limit_ends_is_the_end_of_the_run() {
    // Programs end 200 ms before a limit of 2 s, so that their output is not lost.
    for (milliseconds, verdict, expected) in [
        (1_800, "timeout", RunStopReason::MaxTime),
        (1_800, "error", RunStopReason::MaxTime),
        // The program's own limit.
        (1_700, "timeout", RunStopReason::EndTurn),
        // The program was in time.
        (1_800, "ok", RunStopReason::EndTurn),
        (1_800, "exit", RunStopReason::EndTurn),
    ] {
        let script = format!(
            "turns:\n  - calls: [{{ tool: program, args: {{ milliseconds: {milliseconds}, verdict: {verdict} }} }}]\n  - text: The last text.\n"
        );
        let toolbox = Toolbox::builder().tool(program).build().unwrap();
        let agent = scripted(&script, toolbox).max_time(Duration::from_secs(2)).build();
        let outcome = agent.run("Go.").finish().await;
        assert_eq!(outcome.stop, expected, "{milliseconds} {verdict}");
        // At the limit, the model's last text is a summary.
        let is_summary = expected == RunStopReason::MaxTime;
        assert_eq!((outcome.text(), outcome.record.wrapped_up), ("The last text.", is_summary));
        check_pairs(&outcome.turns);
    }
}

#[tokio::test]
async fn the_caller_cancels_a_run() {
    let script = "turns:\n  - calls: [{ tool: wait, args: { milliseconds: 50000 } }]\n  - text: never\n";
    let cancellation = Cancellation::new();
    let mut stream = agent(script).build().run("Go.").with_cancellation(cancellation.clone()).stream();
    while let Some(event) = stream.next().await {
        if matches!(event, Event::CallStarted { .. }) {
            cancellation.cancel();
        }
    }
    let outcome = stream.finish().await.unwrap_err().into_output();
    assert_eq!((outcome.stop, outcome.record.tool_calls.len()), (RunStopReason::Cancelled, 1));
}

#[tokio::test]
async fn a_failed_request_ends_a_run_with_its_calls_recorded() {
    let script = "turns:\n  - calls: [{ tool: add, args: { a: 1, b: 2 } }]\n  - expect: { result_contains: seven }\n    text: x\n";
    let outcome = agent(script).build().run("Go.").finish().await;
    assert_eq!(outcome.stop, RunStopReason::ModelError);
    assert_eq!(outcome.error.as_ref().unwrap().kind, ErrorKind::ScriptExpectation);
    assert_eq!(outcome.record.tool_calls.len(), 1);
    assert_eq!(outcome.record.error.as_ref().unwrap()["kind"], "script_expectation");
    let outcome =
        agent("turns:\n  - calls: [{ tool: add, args: { a: 1, b: 2 } }]\n").build().run("Go.").finish().await;
    assert_eq!(outcome.error.unwrap().kind, ErrorKind::ScriptExhausted);
}

#[tokio::test]
async fn stop_reasons_of_the_model_are_distinguished() {
    for (stop, expected) in [
        ("max_tokens", RunStopReason::OutputTokens),
        ("refusal", RunStopReason::Refusal),
        ("context_window", RunStopReason::ContextWindow),
        ("stop_sequence", RunStopReason::StopSequence),
        ("moon_phase", RunStopReason::Other("moon_phase".into())),
    ] {
        let outcome =
            agent(&format!("turns:\n  - text: a\n    stop: {stop}\n")).build().run("Go.").finish().await;
        assert_eq!(outcome.stop, expected);
        assert_eq!(outcome.record.success, expected == RunStopReason::StopSequence);
    }
}

#[tokio::test]
async fn a_paused_answer_is_continued_and_concatenated() {
    let script = "turns:\n  - text: 'The answer is '\n    stop: pause\n  - text: '4'\n    stop: pause\n  - text: '2.'\n";
    let outcome = agent(script).build().run("Go.").finish().await;
    assert_eq!((outcome.text(), outcome.record.iterations), ("The answer is 42.", 3));
    assert!(outcome.record.success);
    // Text before a tool call is not a part of the answer.
    let script = "turns:\n  - text: 'Let me add. '\n    calls: [{ tool: add, args: { a: 1, b: 2 } }]\n    stop: pause\n  - text: '3.'\n";
    assert_eq!(agent(script).build().run("Go.").finish().await.text(), "3.");
    let script = "turns:\n  - text: 'Let me add. '\n    calls: [{ tool: add, args: { a: 1, b: 2 } }]\n  - text: ''\n    stop: pause\n  - text: '3.'\n";
    assert_eq!(agent(script).build().run("Go.").finish().await.text(), "3.");
}

#[tokio::test]
async fn tokens_end_a_run_that_only_pauses() {
    let script = "  - text: a\n    stop: pause\n    usage: { input: 100, output: 0 }\n".repeat(30);
    let agent = agent(&format!("turns:\n{script}")).max_tokens(150).wrap_up(false).build();
    let outcome = agent.run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.usage.total_tokens()), (&RunStopReason::MaxTokens, 200));
}

#[tokio::test]
async fn tools_of_an_incomplete_answer_do_not_run() {
    for (stop, expected) in [
        ("max_tokens", RunStopReason::OutputTokens),
        ("refusal", RunStopReason::Refusal),
        ("context_window", RunStopReason::ContextWindow),
        ("stop_sequence", RunStopReason::StopSequence),
    ] {
        let script = format!(
            "turns:\n  - calls: [{{ tool: add, args: {{ a: 1, b: 2 }} }}]\n    stop: {stop}\n  - text: done\n"
        );
        let outcome = agent(&script).build().run("Go.").finish().await;
        assert_eq!((&outcome.stop, outcome.record.tool_calls.len()), (&expected, 0));
        check_pairs(&outcome.turns);
        assert!(texts(&outcome.turns, 2)[0].contains(expected.as_str()));
    }
}

#[tokio::test]
async fn a_record_has_the_id_and_the_notices_of_the_caller() {
    let agent = agent("turns:\n  - text: hi\n").build();
    let run = agent.run("Go.").with_notice("scripted");
    let id = run.id();
    let outcome = run.finish().await;
    assert_eq!((outcome.record.id, outcome.record.notices.as_slice()), (id, &["scripted".to_owned()][..]));
}
