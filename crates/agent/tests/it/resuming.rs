//! Runs that go on from a state: what they still know, and what a state that somebody has changed does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost::{Approval, ToolSpec};
use toolpost_agent::{
    Agent, AgentBuilder, Conversations, Decision, Pricing, Run, RunState, RunStopReason, Runs,
};
use toolpost_llm::{Recording, ScriptModel};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::waiting::{agent as payer, carried};

/// All calls that wait, approved.
fn approved(state: &RunState) -> Vec<(toolpost::CallId, Decision)> {
    state.pending_calls().map(|call| (call.id, Decision::Approve)).collect()
}

#[tokio::test]
async fn a_run_that_is_kept_goes_on_where_it_is_kept() {
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let paid = Arc::new(AtomicU32::new(0));
    let first = payer(&paid).run("Pay.").persist_to(&runs).finish().await;
    let waiting = runs.load(first.record.id).await.unwrap().summary;
    assert_eq!((waiting.stop_reason.as_deref(), waiting.exchanges), (Some("approval_needed"), 1));
    let state = carried(&first);
    let decisions = approved(&state);
    let second = payer(&paid).resume(state, decisions).unwrap().persist_to(&runs).finish().await;
    assert_eq!((&second.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
    assert!(second.record.notices.is_empty(), "{:?}", second.record.notices);
    let stored = runs.load(first.record.id).await.unwrap();
    let summary = &stored.summary;
    assert_eq!(
        (summary.title.as_str(), summary.stop_reason.as_deref(), summary.success),
        ("Pay.", Some("end_turn"), true)
    );
    assert_eq!((summary.exchanges, summary.iterations, summary.tool_calls), (2, 2, 3));
    assert_eq!((summary.started, summary.usage.total_tokens()), (waiting.started, 200));
    assert_eq!(stored.record, Some(serde_json::to_value(&*second.record).unwrap()));
    assert_eq!(runs.list(None, 9).await.unwrap().len(), 1);
    let recording = Recording::new(std::io::sink(), Vec::new());
    assert_eq!(runs.export(first.record.id, &recording).await.unwrap(), 2);
}

/// An agent that waits for so many milliseconds.
fn sleeper(milliseconds: u64) -> AgentBuilder {
    crate::agent(&format!(
        "turns: [{{ calls: [{{ tool: wait, args: {{ milliseconds: {milliseconds} }} }}] }}, {{ text: Awake. }}]"
    ))
    .wrap_up(false)
}

fn in_milliseconds(milliseconds: u64) -> Instant {
    tokio::time::Instant::now().into_std() + Duration::from_millis(milliseconds)
}

#[tokio::test(start_paused = true)]
async fn a_run_is_over_at_its_deadline_or_its_limit_of_time_whichever_comes_first() {
    for (deadline, limit, expected) in [
        (None, None, RunStopReason::EndTurn),
        (Some(5_000), None, RunStopReason::MaxTime),
        (Some(50_000), None, RunStopReason::EndTurn),
        (Some(5_000), Some(50_000), RunStopReason::MaxTime),
        (Some(50_000), Some(5_000), RunStopReason::MaxTime),
    ] {
        let agent = sleeper(10_000)
            .limits(crate::limits(|limits| limits.time = limit.map(Duration::from_millis)))
            .build();
        let run = agent.run("Sleep.").with_deadline(deadline.map(in_milliseconds));
        assert_eq!(run.finish().await.stop, expected, "{deadline:?} {limit:?}");
    }
}

/// An agent that has somebody asked before it waits for ten seconds.
fn careful(limit: Option<u64>) -> Agent {
    let script = "turns: [{ calls: [{ tool: wait, args: { milliseconds: 10000 } }] }, { text: Awake. }]";
    let toolbox = Toolbox::builder().tool(crate::wait).approval("wait", Approval::Ask).build().unwrap();
    Agent::builder(Arc::new(ScriptModel::parse("test", script).unwrap()), toolbox)
        .limits(crate::limits(|limits| {
            (limits.time, limits.wrap_up) = (limit.map(Duration::from_millis), false);
        }))
        .pause_for_approval(true)
        .build()
}

#[tokio::test(start_paused = true)]
async fn a_run_that_goes_on_keeps_to_its_deadline_too() {
    for (deadline, limit, expected) in [
        (None, None, RunStopReason::EndTurn),
        (None, Some(5_000), RunStopReason::MaxTime),
        (Some(5_000), None, RunStopReason::MaxTime),
        (Some(5_000), Some(50_000), RunStopReason::MaxTime),
        (Some(50_000), Some(5_000), RunStopReason::MaxTime),
        (Some(50_000), Some(50_000), RunStopReason::EndTurn),
    ] {
        let agent = careful(limit);
        let state = carried(&agent.run("Sleep.").finish().await);
        let decisions = approved(&state);
        let run = agent.resume(state, decisions).unwrap();
        let outcome = run.with_deadline(deadline.map(in_milliseconds)).finish().await;
        assert_eq!(outcome.stop, expected, "{deadline:?} {limit:?}");
    }
}

#[tokio::test]
async fn the_runs_that_were_made_from_a_run_before_it_waited_stay_in_its_record() {
    let helper = crate::agent("turns: [{ text: Helped., usage: { input: 7, output: 1 } }]").build();
    let script = r"
turns:
  - calls: [{ tool: helper, args: { prompt: Help. } }, { tool: add, args: { a: 1, b: 2 } }]
    usage: { input: 100, output: 10 }
  - text: Done.
    usage: { input: 200, output: 20 }
";
    let boss = || {
        let toolbox = Toolbox::builder()
            .tool(helper.as_tool(ToolSpec::new("helper", "Helps.")))
            .tool(crate::add)
            .approval("add", Approval::Ask)
            .build()
            .unwrap();
        let model = Arc::new(ScriptModel::parse("test", script).unwrap());
        Agent::builder(model, toolbox).pause_for_approval(true).build()
    };
    let first = boss().run("Go.").finish().await;
    assert_eq!((&first.stop, first.record.children.len()), (&RunStopReason::ApprovalNeeded, 1));
    let state = carried(&first);
    let decisions = approved(&state);
    let second = boss().resume(state, decisions).unwrap().finish().await;
    assert_eq!((&second.stop, second.record.usage.input_tokens), (&RunStopReason::EndTurn, 307));
    let shown = |record: &toolpost::RunRecord| serde_json::to_value(&record.children).unwrap();
    assert_eq!(shown(&second.record), shown(&first.record));
}

/// How a run goes on from a state in which something was put in a place.
async fn resumed(
    place: &str,
    value: Value,
    change: impl Fn(AgentBuilder) -> AgentBuilder,
) -> toolpost_agent::RunOutput {
    let pricing: Pricing = Arc::new(|_, usage| Some(usage.total() as f64 / 100.0));
    let script = r"
turns:
  - calls: [{ tool: add, args: { a: 1, b: 2 } }]
    usage: { input: 60, output: 40 }
  - calls: [{ tool: wait, args: { milliseconds: 1 } }]
    usage: { input: 160, output: 40 }
  - text: Done.
    usage: { input: 60, output: 40 }
";
    let toolbox =
        Toolbox::builder().tool(crate::add).tool(crate::wait).approval("add", Approval::Ask).build().unwrap();
    let builder = Agent::builder(Arc::new(ScriptModel::parse("test", script).unwrap()), toolbox)
        .pricing(pricing)
        .wrap_up(false)
        .pause_for_approval(true);
    let agent = change(builder).build();
    let first = agent.run("Go.").finish().await;
    let mut state = serde_json::to_value(first.state.as_ref().unwrap()).unwrap();
    *state.pointer_mut(place).unwrap() = value;
    let state: RunState = serde_json::from_value(state).unwrap();
    let decisions = approved(&state);
    agent.resume(state, decisions).unwrap().finish().await
}

#[tokio::test]
async fn a_state_that_somebody_has_changed_lifts_no_limit() {
    let forever = || json!({ "secs": u64::MAX, "nanos": 999_999_999 });
    let outcome = resumed("/elapsed", forever(), |builder| builder).await;
    assert_eq!((&outcome.stop, outcome.record.execution_time > 1e19), (&RunStopReason::EndTurn, true));
    let limited = |builder: AgentBuilder| builder.max_time(Duration::from_hours(1));
    assert_eq!(resumed("/elapsed", forever(), limited).await.stop, RunStopReason::MaxTime);
    // More than the machine has been up for.
    let years = json!({ "secs": 3_000_000_000_u64, "nanos": 0 });
    assert_eq!(resumed("/elapsed", years, limited).await.stop, RunStopReason::MaxTime);

    // The second answer costs two dollars and comes to the limit, whatever the first is said to have cost.
    let limited = |builder: AgentBuilder| builder.max_cost_usd(1.5);
    for (cost, stop, total) in [
        (json!(-1_000), RunStopReason::MaxCost, Some(2.0)),
        (json!(-1e300), RunStopReason::MaxCost, Some(2.0)),
        (json!(1e300), RunStopReason::MaxCost, Some(1e300)),
        (json!(null), RunStopReason::UnknownCost, None),
    ] {
        let outcome = resumed("/counted/spent/cost_usd", cost.clone(), limited).await;
        assert_eq!((outcome.stop, outcome.record.cost_usd), (stop, total), "{cost}");
    }
    let outcome = resumed("/counted/iterations", json!(u32::MAX), |builder| builder).await;
    assert_eq!(outcome.stop, RunStopReason::MaxIterations);
}

#[tokio::test]
async fn a_run_that_ends_before_its_calls_are_made_can_be_gone_on_with_again() {
    let store = Arc::new(MemoryStore::new());
    let (runs, conversations) = (Runs::new(store.clone()), Conversations::new(store));
    let paid = Arc::new(AtomicU32::new(0));
    let conversation = conversations.create();
    let first = conversation.run(&payer(&paid), "Pay.").persist_to(&runs).finish().await;
    let resumed = async |state: &RunState, change: &dyn Fn(Run) -> Run| {
        let opened = conversations.open(conversation.id()).await.unwrap();
        let run = payer(&paid).resume(state.clone(), approved(state)).unwrap();
        change(run.persist_to(&runs).with_conversation(&opened)).finish().await
    };
    let cancelled = toolpost::Cancellation::new();
    cancelled.cancel();
    let past = Instant::now().checked_sub(Duration::from_mins(1));
    let late = |run: Run| run.with_deadline(past);
    let stopped = resumed(&carried(&first), &|run| run.with_cancellation(cancelled.clone())).await;
    assert_eq!((&stopped.stop, &stopped.turns), (&RunStopReason::Cancelled, &first.turns));
    assert!(!stopped.record.success);
    let again = resumed(&carried(&stopped), &late).await;
    assert_eq!((&again.stop, again.record.wrapped_up), (&RunStopReason::MaxTime, false));
    assert_eq!(paid.load(Ordering::Relaxed), 0);
    let last = resumed(&carried(&again), &|run| run).await;
    assert_eq!((&last.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
    assert!(last.record.notices.is_empty(), "{:?}", last.record.notices);
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), last.turns);
    // Each state is gone on from once.
    for old in [&first, &stopped, &again] {
        let refused = resumed(&carried(old), &|run| run).await;
        assert!(matches!(&refused.stop, RunStopReason::NotClaimed(_)), "{}", refused.stop);
        assert!(refused.state.is_none());
    }
    assert_eq!(paid.load(Ordering::Relaxed), 2);
}
