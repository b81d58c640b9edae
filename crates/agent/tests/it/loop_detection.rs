//! Detection of loops, and limits of single tools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::json;
use toolpost::{Output, Schema, ToolError, ToolSpec, tool_fn};
use toolpost_agent::{Agent, RunLimits, RunOutput, RunStopReason};
use toolpost_llm::{ScriptModel, Turn};
use toolpost_toolbox::Toolbox;

use crate::support::results;

/// A tool that answers by a function of how often it was called.
fn tool(
    name: &str,
    is_read_only: bool,
    answer: impl Fn(u32) -> Result<Output, ToolError> + Send + Sync + 'static,
) -> impl toolpost::Tool {
    let mut spec = ToolSpec::new(name, "Do something.");
    spec.input_schema = Arc::new(Schema::new(json!({ "type": "object" })));
    spec.annotations.read_only = is_read_only;
    let calls = AtomicU32::new(0);
    let answer = Arc::new(answer);
    tool_fn(spec, move |_, _| {
        let number = calls.fetch_add(1, Ordering::Relaxed);
        let answer = Arc::clone(&answer);
        async move { answer(number) }
    })
}

/// A script that repeats these turns; `{n}` is the number of the turn.
fn model(turns: &[&str]) -> ScriptModel {
    let turn = |n: usize| format!("  - {}\n", turns[n % turns.len()].replace("{n}", &n.to_string()));
    let turns = (0..60_usize).map(turn).collect::<Vec<_>>().concat();
    ScriptModel::parse("test", &format!("turns:\n{turns}")).unwrap()
}

async fn run(toolbox: Toolbox, turns: &[&str], change: impl FnOnce(&mut RunLimits)) -> RunOutput {
    let agent = Agent::builder(Arc::new(model(turns)), toolbox).limits(crate::limits(|limits| {
        limits.wrap_up = false;
        change(limits);
    }));
    agent.build().run("Go.").finish().await
}

fn toolbox() -> Toolbox {
    Toolbox::builder()
        .tool(tool("good", false, |_| Ok(Output::text("done"))))
        .tool(tool("bad", false, |_| Err(ToolError::not_found("it is not there"))))
        .tool(tool("search", true, |_| Ok(Output::text("no matches"))))
        .tool(tool("status", true, |n| Ok(Output::text(format!("{n} seconds")))))
        .tool(crate::wait)
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_loop_has_its_stop_reason_and_a_bounded_length() {
    let cases: &[(&str, &[&str], RunStopReason, u32)] = &[
        ("the same error", &["{ calls: [{ tool: bad, args: { a: 1 } }] }"], RunStopReason::RepeatedError, 6),
        (
            "the same success",
            &["{ calls: [{ tool: good, args: { a: 1 } }] }"],
            RunStopReason::RepeatedCall,
            9,
        ),
        (
            "written differently",
            &[
                "{ calls: [{ tool: bad, args: { a: 1, b: 2 } }] }",
                "{ calls: [{ tool: bad, args: { b: 2.0, a: 1.0 } }] }",
            ],
            RunStopReason::RepeatedError,
            6,
        ),
        (
            "an alternating pair",
            &["{ calls: [{ tool: good, args: { a: 1 } }] }", "{ calls: [{ tool: good, args: { a: 2 } }] }"],
            RunStopReason::NoProgress,
            11,
        ),
        (
            "a cycle of three",
            &[
                "{ calls: [{ tool: good, args: { a: 1 } }] }",
                "{ calls: [{ tool: search, args: { a: 2 } }] }",
                "{ calls: [{ tool: bad, args: { a: 3 } }] }",
            ],
            RunStopReason::NoProgress,
            12,
        ),
        (
            "other arguments, the same nothing",
            &["{ calls: [{ tool: search, args: { a: {n} } }] }"],
            RunStopReason::NoProgress,
            10,
        ),
        ("endless waiting", &["{ calls: [{ tool: status }] }"], RunStopReason::RepeatedCall, 17),
        ("the same text", &["{ text: I will now begin., stop: pause }"], RunStopReason::NoProgress, 10),
        (
            "unknown tools",
            &["{ calls: [{ tool: ghost{n}, args: { a: {n} } }] }"],
            RunStopReason::NoProgress,
            9,
        ),
        (
            "a tool that always takes too long",
            &["{ calls: [{ tool: wait, args: { milliseconds: 9{n}000 } }] }"],
            RunStopReason::NoProgress,
            10,
        ),
    ];
    for (name, turns, stop, iterations) in cases {
        let outcome =
            run(toolbox(), turns, |limits| limits.tool_timeout = Some(Duration::from_secs(2))).await;
        assert_eq!((&outcome.stop, outcome.record.iterations), (stop, *iterations), "{name}");
        assert_eq!(outcome.record.stop_reason, stop.as_str());
        assert!(outcome.stop.is_limit() && outcome.stop.is_repetition() && !outcome.record.success, "{name}");
        // The model was warned before.
        let reported = |turn: &&Turn| matches!(turn, Turn::User(parts) if format!("{parts:?}").contains("[This is from the program"));
        let warnings = outcome.turns.iter().filter(reported).count();
        let pauses = turns[0].contains("pause");
        assert!(pauses || (1..=2).contains(&warnings), "{name}: {warnings}");
        let noted = |notice: &String| notice.starts_with("detected loop: ");
        assert!(outcome.record.notices.iter().any(noted), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_threshold_is_configurable_and_0_turns_detection_off() {
    let turns = ["{ calls: [{ tool: bad, args: { a: 1 } }] }"];
    for (repetition, stop, iterations) in [
        (1, RunStopReason::RepeatedError, 2),
        (5, RunStopReason::RepeatedError, 10),
        (0, RunStopReason::MaxIterations, 25),
    ] {
        let outcome = run(toolbox(), &turns, |limits| limits.repetition = repetition).await;
        assert_eq!((outcome.stop, outcome.record.iterations), (stop, iterations));
    }
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_the_run_only_shortens_that_of_a_tool() {
    let start = tokio::time::Instant::now();
    let turns = ["{ calls: [{ tool: wait, args: { milliseconds: 30000 } }] }", "{ text: done }"];
    let outcome = run(toolbox(), &turns, |limits| limits.tool_timeout = Some(Duration::from_secs(2))).await;
    assert_eq!(outcome.stop, RunStopReason::EndTurn);
    assert!(outcome.record.tool_calls[0].error.is_some() && start.elapsed() < Duration::from_secs(3));
    // The tool's own of a minute holds where the run's is longer.
    let turns = ["{ calls: [{ tool: wait, args: { milliseconds: 90000 } }] }", "{ text: done }"];
    let outcome = run(toolbox(), &turns, |limits| limits.tool_timeout = Some(Duration::from_mins(10))).await;
    assert!(outcome.record.tool_calls[0].error.is_some() && start.elapsed() < Duration::from_secs(70));
}

#[tokio::test]
async fn a_long_result_is_truncated_for_the_model_only() {
    let text = format!("begin {} end", "é".repeat(5_000_000));
    let expected = text.chars().count();
    let big = tool("big", true, move |_| Ok(Output::text(text.clone()).with_payload(text.clone())));
    let toolbox = Toolbox::builder().tool(big).build().unwrap();
    let turns = ["{ calls: [{ tool: big }] }", "{ text: done }"];
    for (limit, at_most) in [(None, 65_536), (Some(1000), 1000), (Some(10), 10)] {
        let outcome = run(toolbox.clone(), &turns, |limits| limits.tool_output_chars = limit).await;
        let results = results(&outcome.turns, 2);
        let read = results[0].joined_text();
        assert!(read.chars().count() <= at_most && !read.is_empty(), "{limit:?}: {}", read.len());
        let ends_stay = read.starts_with("begin") && read.ends_with("end");
        assert!(at_most < 100 || (ends_stay && read.contains("omitted")), "{limit:?}");
        // The application has all of it.
        let payload = outcome.payloads[0].payload.get::<String>().unwrap();
        assert_eq!(payload.chars().count(), expected);
        assert!(serde_json::to_string(&outcome.turns).unwrap().len() < 200_000);
    }
}
