//! Misbehaving models, tools and sources.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde_json::json;
use toolpost::{
    BoxFuture, Call, CallId, CallOptions, Cancellation, Code, Ctx, Event, Output, Partial, Reply, ToolError,
    ToolSource, ToolSpec, tool, tool_fn,
};
use toolpost_agent::{Agent, RunOutput, RunStopReason};
use toolpost_llm::ModelEvent;
use toolpost_toolbox::Toolbox;

use crate::support::{FakeModel, results, scripted};
use crate::{agent, limits};

/// A model with endless notices and no answer.
fn endless() -> Arc<FakeModel> {
    FakeModel::new(|_| {
        let notice = |number| Ok(ModelEvent::Notice(format!("{number} {}", "x".repeat(5000))));
        stream::iter(0_u64..).map(notice).boxed()
    })
}

#[tokio::test]
async fn an_endless_stream_ends_by_time_and_by_cancellation() {
    let toolbox = Toolbox::builder().build().unwrap();
    let agent = Agent::builder(endless(), toolbox.clone()).max_time(Duration::from_millis(50)).build();
    let outcome = agent.run("Go.").finish().await;
    assert_eq!(outcome.stop, RunStopReason::MaxTime);
    // The notices are bounded.
    assert_eq!(outcome.record.notices.len(), 64);
    assert!(outcome.record.notices.iter().all(|notice| notice.chars().count() <= 1001));
    assert!(outcome.record.notices[63].contains("further notices"), "{}", outcome.record.notices[63]);

    // The first notice is the event that cancels the run.
    let cancellation = Cancellation::new();
    let stop = cancellation.clone();
    let agent = Agent::builder(endless(), toolbox).on_event(Arc::new(move |event: &Event| {
        if matches!(event, Event::Notice { .. }) {
            stop.cancel();
        }
    }));
    let outcome = agent.build().run("Go.").with_cancellation(cancellation).finish().await;
    assert_eq!(outcome.stop, RunStopReason::Cancelled);
}

#[tokio::test]
async fn a_failed_batch_is_an_error_and_a_partial_one_lists_its_failures() {
    let batch = |succeeded: usize, failed: usize| {
        let spec = ToolSpec::new("batch", "Do many things.");
        tool_fn(spec, move |_, _| async move {
            let mut errors = vec![ToolError::internal("the password is hunter2")];
            errors.extend((1..failed).map(|row| ToolError::not_found(format!("row {row} is not there"))));
            Ok(Output::default().with_partial(Partial { succeeded, errors }))
        })
    };
    let script = "turns:\n  - calls: [{ tool: batch }]\n  - text: ok\n";
    for (succeeded, failed) in [(0, 2), (3, 2), (0, 1000)] {
        let toolbox = Toolbox::builder().tool(batch(succeeded, failed)).build().unwrap();
        let outcome = scripted(script, toolbox).build().run("Go.").finish().await;
        let result = &results(&outcome.turns, 2)[0];
        let text = result.joined_text();
        assert_eq!(result.is_error, succeeded == 0, "{text}");
        assert!(text.starts_with(&format!("{failed} of {} failed:", succeeded + failed)), "{text}");
        assert!(text.contains("row 1 is not there") && !text.contains("hunter2"), "{text}");
        assert_eq!(text.contains("and 984 more"), failed == 1000, "{text}");
    }
}

#[tokio::test]
async fn a_long_error_is_truncated() {
    let spec = ToolSpec::new("big", "Fail at length.");
    let big = tool_fn(spec, async |_, _| Err(ToolError::not_found("é".repeat(1_000_000))));
    let toolbox = Toolbox::builder().tool(big).build().unwrap();
    let outcome = scripted("turns:\n  - calls: [{ tool: big }]\n  - text: ok\n", toolbox)
        .build()
        .run("Go.")
        .finish()
        .await;
    let text = results(&outcome.turns, 2)[0].joined_text();
    assert!((1000..10_000).contains(&text.len()), "{}", text.len());
}

#[tokio::test]
async fn unknown_tools_are_not_listed_as_used() {
    let made_up = "n".repeat(100_000);
    let script = format!(
        "turns:\n  - calls: [{{ tool: {made_up} }}, {{ tool: lookup }}, {{ tool: add, args: {{}} }}]\n  - text: ok\n"
    );
    let lookup =
        tool_fn(ToolSpec::new("lookup", "Look up."), async |_, _| Err(ToolError::not_found("no row")));
    let toolbox = Toolbox::builder().tool(crate::add).tool(lookup).build().unwrap();
    let outcome = scripted(&script, toolbox).build().run("Go.").finish().await;
    // A tool that found nothing was used all the same.
    assert_eq!(outcome.record.tools_used, ["lookup", "add"]);
    assert_eq!(outcome.record.tool_calls.len(), 3);
    assert!(serde_json::to_string(&outcome.record).unwrap().len() < 10_000);
}

/// The names of the tools that a run offers its model, and the run.
async fn offered(toolbox: Toolbox, limit: Option<Duration>) -> (Vec<String>, RunOutput) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let agent = scripted("turns:\n  - text: ok\n", toolbox)
        .limits(limits(|limits| limits.time = limit))
        .on_event(Arc::new(move |event: &Event| {
            if let Event::RunStarted { tools, .. } = event {
                sink.lock().unwrap().clone_from(tools);
            }
        }))
        .build();
    let outcome = agent.run("Go.").finish().await;
    let seen = seen.lock().unwrap().clone();
    (seen, outcome)
}

#[tokio::test]
async fn a_run_lists_the_current_tools_of_its_sources() {
    let inner = Toolbox::builder().build().unwrap();
    let outer = Toolbox::builder().build().unwrap();
    outer.add_source(Arc::new(inner.clone())).await.unwrap();
    inner.add(crate::add).unwrap();
    assert_eq!(offered(outer, None).await.0, ["add"]);
}

/// A source whose first list succeeds and later ones fail or hang.
struct Unsteady {
    lists: Mutex<u64>,
    has: Vec<Arc<ToolSpec>>,
    hangs: bool,
}

impl ToolSource for Unsteady {
    fn name(&self) -> &'static str {
        "unsteady"
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Arc<ToolSpec>>, ToolError>> {
        Box::pin(async {
            *self.lists.lock().unwrap() += 1;
            let lists = *self.lists.lock().unwrap();
            match (lists, self.hangs) {
                (1, _) => Ok(self.has.clone()),
                (_, true) => std::future::pending().await,
                (_, false) => Err(ToolError::dependency("the source is gone")),
            }
        })
    }

    fn generation(&self) -> u64 {
        *self.lists.lock().unwrap()
    }

    fn call(&self, _call: Call) -> BoxFuture<'_, Reply> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_fails_or_hangs_does_not_end_the_run() {
    let known = vec![Arc::new(ToolSpec::new("steady", "Stay."))];
    for (has, hangs, limit, stop) in [
        (known.clone(), false, None, RunStopReason::EndTurn),
        (known.clone(), true, None, RunStopReason::EndTurn),
        (known, true, Some(Duration::from_secs(2)), RunStopReason::MaxTime),
        (Vec::new(), false, None, RunStopReason::EndTurn),
        (Vec::new(), true, None, RunStopReason::EndTurn),
    ] {
        // A run that is over before it knows its tools offers none.
        let (tools, limited) = (if limit.is_some() { 0 } else { has.len() }, limit.is_some());
        let toolbox = Toolbox::builder().build().unwrap();
        toolbox.add_source(Arc::new(Unsteady { lists: Mutex::new(0), has, hangs })).await.unwrap();
        let (names, outcome) = offered(toolbox, limit).await;
        assert_eq!((names.len(), &outcome.stop), (tools, &stop), "hangs: {hangs}, limited: {limited}");
        // Without known tools, a notice has the reason.
        let notices = &outcome.record.notices;
        let says_so = notices.iter().any(|notice| notice.contains("the list of tools may be outdated"));
        assert!(says_so || limited || tools > 0, "hangs: {hangs}: {notices:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_delays_no_other() {
    let waits = |milliseconds: u64, count: usize| {
        format!("{{ tool: wait, args: {{ milliseconds: {milliseconds} }} }}, ").repeat(count)
    };
    let script = format!("turns:\n  - calls: [{}{}]\n  - text: ok\n", waits(10_000, 1), waits(100, 100));
    let start = tokio::time::Instant::now();
    let outcome = agent(&script).max_parallel_tools(2).build().run("Go.").finish().await;
    let took = start.elapsed();
    // One of the two places is enough for all the short ones while the long one lasts.
    assert!((10_000..10_500).contains(&took.as_millis()), "{took:?}");
    let asked =
        |index: usize| outcome.record.tool_calls[index].arguments.as_ref().unwrap()["milliseconds"].clone();
    assert_eq!(
        (asked(0), asked(1), asked(100)),
        (json!(10_000), json!(100), json!(100)),
        "in the order of the calls"
    );
    let results = results(&outcome.turns, 2);
    assert_eq!((results[0].joined_text().as_str(), results[100].joined_text().as_str()), ("10000", "100"));
}

/// Tell the level.
#[tool]
async fn level(ctx: &Ctx) -> Option<String> {
    ctx.level().map(str::to_owned)
}

#[tokio::test]
async fn calls_have_the_options_and_the_parent_of_their_run() {
    let script = "turns:\n  - calls: [{ tool: level }]\n  - text: '{{ last.text }}'\n";
    let toolbox = Toolbox::builder().tool(level).build().unwrap();
    let agent = scripted(script, toolbox).build();
    let mut options = CallOptions::default();
    options.level = Some("strict".to_owned());
    let parent = CallId::new();
    let run = || agent.run("Go.");
    let outcome = run().with_options(options).with_parent(parent, 3).finish().await;
    assert_eq!(outcome.text(), "strict");
    assert_eq!(outcome.record.tool_calls[0].parent, Some(parent));
    assert_eq!(run().finish().await.record.tool_calls[0].parent, None);
    // An agent that is a tool itself does not begin again at the top.
    let outcome = run().with_parent(parent, 8).finish().await;
    assert_eq!(outcome.record.tool_calls[0].error.as_ref().unwrap().code(), Code::Limit);
    assert!(results(&outcome.turns, 2)[0].is_error, "{}", json!(outcome.text()));
}
