//! Every way in which a run ends.

use std::time::Duration;

use toolpost::{Cancellation, Code};
use toolpost_agent::{Agent, RunStopReason};
use toolpost_llm::{ErrorKind, Turn};

use crate::agent;

/// A model that calls a tool for ever.
fn endless() -> String {
    let answer = |n: usize| {
        format!(
            "  - calls: [{{ tool: add, args: {{ a: {n}, b: 2 }} }}, {{ tool: add, args: {{ a: {n}, b: 4 }} }}]\n    usage: {{ input: 60, output: 40 }}\n"
        )
    };
    format!("turns:\n{}", (0..60).map(answer).collect::<String>())
}

/// In every conversation, each tool call has its result.
fn is_whole(turns: &[Turn]) -> bool {
    turns.windows(2).all(|pair| match pair {
        [Turn::Assistant(turn), Turn::ToolResults(results)] => {
            let calls = turn
                .items
                .iter()
                .filter(|item| matches!(item.view(), toolpost_llm::ItemView::ToolCall { .. }));
            calls.count() == results.len()
        }
        _ => true,
    }) && !matches!(turns.last(), Some(Turn::Assistant(turn)) if turn.items.iter().any(|item| matches!(item.view(), toolpost_llm::ItemView::ToolCall { .. })))
}

#[tokio::test]
async fn iterations_end_a_run() {
    let outcome = agent(&endless()).build().run("Go.").finish().await;
    assert_eq!(
        (&outcome.stop, outcome.record.iterations),
        (&RunStopReason::MaxIterations, 25),
        "the default"
    );
    let outcome = agent(&endless()).max_iterations(3).build().run("Go.").finish().await;
    assert_eq!((outcome.record.iterations, outcome.record.tool_calls.len()), (3, 6));
    assert!(outcome.stop.is_limit() && !outcome.record.success && is_whole(&outcome.turns));
    assert_eq!(outcome.record.stop_reason, "max_iterations");
}

#[tokio::test]
async fn tool_calls_end_a_run_and_the_conversation_stays_whole() {
    let outcome = agent(&endless()).max_tool_calls(3).wrap_up(false).build().run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.tool_calls.len()), (&RunStopReason::MaxToolCalls, 3));
    assert!(is_whole(&outcome.turns));
    let Some(Turn::ToolResults(results)) = outcome.turns.last() else { panic!("{:?}", outcome.turns) };
    assert!(results[1].is_error && results[1].joined_text().contains("max_tool_calls"));
}

#[tokio::test]
async fn tokens_end_a_run() {
    let outcome = agent(&endless()).max_tokens(250).wrap_up(false).build().run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.usage.total_tokens()), (&RunStopReason::MaxTokens, 300));
    assert!(is_whole(&outcome.turns));
}

#[tokio::test(start_paused = true)]
async fn time_ends_a_run_in_the_middle_of_a_tool() {
    let script = "turns:\n  - calls: [{ tool: wait, args: { milliseconds: 50000 } }]\n  - text: never\n";
    let start = tokio::time::Instant::now();
    let outcome = agent(script).max_time(Duration::from_secs(2)).build().run("Go.").finish().await;
    assert!(start.elapsed() < Duration::from_secs(3));
    assert_eq!(outcome.record.tool_calls[0].error.as_ref().unwrap().code(), Code::Timeout);
    assert!(is_whole(&outcome.turns));
    assert_eq!(outcome.stop, RunStopReason::MaxTime);
}

#[tokio::test]
async fn the_caller_ends_a_run() {
    let script = "turns:\n  - calls: [{ tool: wait, args: { milliseconds: 50000 } }]\n  - text: never\n";
    let agent: Agent = agent(script).build();
    let cancellation = Cancellation::new();
    let running = tokio::spawn(agent.run("Go.").with_cancellation(cancellation.clone()).finish());
    tokio::time::sleep(Duration::from_millis(20)).await;
    cancellation.cancel();
    let outcome = running.await.unwrap();
    assert_eq!(outcome.stop, RunStopReason::Cancelled);
    assert_eq!(outcome.record.tool_calls.len(), 1, "what was running is in the record");
}

#[tokio::test]
async fn a_model_that_fails_ends_a_run_with_all_that_was_done() {
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
async fn the_models_own_reasons_are_told_apart() {
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
async fn a_provider_that_pauses_is_asked_again_and_the_answer_is_all_that_it_said() {
    let script = "turns:\n  - text: 'The answer is '\n    stop: pause\n  - text: '4'\n    stop: pause\n  - text: '2.'\n";
    let outcome = agent(script).build().run("Go.").finish().await;
    assert_eq!((outcome.text(), outcome.record.iterations), ("The answer is 42.", 3));
    assert!(outcome.record.success);
    // What was said before a tool call is no part of the answer.
    let script = "turns:\n  - text: 'Let me add. '\n    calls: [{ tool: add, args: { a: 1, b: 2 } }]\n    stop: pause\n  - text: '3.'\n";
    assert_eq!(agent(script).build().run("Go.").finish().await.text(), "3.");
    let script = "turns:\n  - text: 'Let me add. '\n    calls: [{ tool: add, args: { a: 1, b: 2 } }]\n  - text: ''\n    stop: pause\n  - text: '3.'\n";
    assert_eq!(agent(script).build().run("Go.").finish().await.text(), "3.");
}

#[tokio::test]
async fn tokens_end_a_run_that_only_pauses() {
    let script = format!(
        "turns:\n{}",
        "  - text: a\n    stop: pause\n    usage: { input: 100, output: 0 }\n".repeat(30)
    );
    let outcome = agent(&script).max_tokens(150).wrap_up(false).build().run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.usage.total_tokens()), (&RunStopReason::MaxTokens, 200));
}

#[tokio::test]
async fn tools_of_an_answer_that_is_not_whole_are_not_run() {
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
        assert!(is_whole(&outcome.turns));
        let Some(Turn::ToolResults(results)) = outcome.turns.last() else { panic!("{:?}", outcome.turns) };
        assert!(results[0].is_error && results[0].joined_text().contains(expected.as_str()));
    }
}

#[tokio::test]
async fn records_know_what_the_caller_wants_them_to_say() {
    let agent = agent("turns:\n  - text: hi\n").build();
    let run = agent.run("Go.").with_notice("scripted");
    let id = run.id();
    let outcome = run.finish().await;
    assert_eq!((outcome.record.id, outcome.record.notices.as_slice()), (id, &["scripted".to_owned()][..]));
}
