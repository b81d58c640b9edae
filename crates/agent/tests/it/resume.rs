//! Paused runs that resume, also in another process, and tool intents.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost::{Approval, Output, Schema, ToolSpec, tool_fn};
use toolpost_agent::{
    Agent, AgentBuilder, Conversations, Decision, Pricing, Run, RunOutput, RunState, RunStopReason, Runs,
};
use toolpost_llm::ScriptModel;
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::agent;
use crate::support::{reread, results, resume};

const SCRIPT: &str = r"
turns:
  - text: I will pay.
    calls: [{ tool: add, args: { a: 1, b: 2 } }, { tool: pay, args: { amount: 7 } }, { tool: pay, args: { amount: 9 } }]
    usage: { input: 60, output: 40 }
  - text: '{{ results[0].text }} | {{ results[1].text }} | {{ results[2].text }}'
    usage: { input: 60, output: 40 }
";

/// An agent that counts its payments.
pub(crate) fn payer(paid: &Arc<AtomicU32>) -> Agent {
    let mut spec = ToolSpec::new("pay", "Pay.");
    spec.input_schema = Arc::new(Schema::new(
        json!({"type": "object", "required": ["amount"], "properties": {"amount": {"type": "integer"}}}),
    ));
    let paid = Arc::clone(paid);
    let pay = tool_fn(spec, move |args, _| {
        paid.fetch_add(1, Ordering::Relaxed);
        let text = format!("paid {}", args.get("amount").unwrap());
        async move { Ok(Output::text(text)) }
    });
    let toolbox =
        Toolbox::builder().tool(crate::add).tool(pay).approval("pay", Approval::Ask).build().unwrap();
    Agent::builder(Arc::new(ScriptModel::parse("test", SCRIPT).unwrap()), toolbox)
        .pause_for_approval(true)
        .build()
}

/// `tests/golden` has one state per format; every release must resume all of them.
///
/// A new format has no file yet: this test makes it, and fails once.
#[tokio::test]
async fn the_state_of_each_format_resumes() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let file = |format: u8| golden.join(format!("run-state-{format}.json"));
    let newest = file(RunState::FORMAT);
    let paid = Arc::new(AtomicU32::new(0));
    if !newest.exists() {
        let first = payer(&paid).run("Pay.").finish().await;
        std::fs::create_dir_all(&golden).unwrap();
        std::fs::write(&newest, serde_json::to_string_pretty(&reread(&first)).unwrap() + "\n").unwrap();
        panic!("made `{}`: commit it", newest.display());
    }
    for format in 1..=RunState::FORMAT {
        let text = std::fs::read_to_string(file(format)).unwrap();
        let state: RunState = serde_json::from_str(&text).unwrap();
        let decisions: Vec<_> = state.pending_calls().map(|call| (call.id, Decision::Approve)).collect();
        let run = payer(&paid).resume(state, decisions).unwrap().finish().await;
        assert_eq!(run.text(), "3 | paid 7 | paid 9", "format {format}");
        assert_eq!((run.record.usage.total_tokens(), run.record.tool_calls.len()), (200, 3));
    }
    let text = std::fs::read_to_string(newest).unwrap().replacen("\"v\": 1", "\"v\": 99", 1);
    let error = payer(&paid).resume(serde_json::from_str(&text).unwrap(), []).unwrap_err().to_string();
    assert!(error.contains("has format 99, but this program supports formats up to 1"), "{error}");
}

#[tokio::test]
async fn a_run_pauses_for_approval_and_resumes_in_another_process() {
    let paid = Arc::new(AtomicU32::new(0));
    let first = payer(&paid).run("Pay.").finish().await;
    assert_eq!((&first.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::ApprovalNeeded, 0));
    assert!(!first.record.success && first.record.tool_calls.len() == 1, "the call without approval ran");
    let state = reread(&first);
    let waiting: Vec<_> = state.pending_calls().cloned().collect();
    assert_eq!(waiting.iter().map(|call| call.arguments["amount"].clone()).collect::<Vec<_>>(), [7, 9]);
    assert_eq!(waiting[0].tool, "pay");

    let decisions = [(waiting[0].id, Decision::Approve), (waiting[1].id, Decision::Deny("too much".into()))];
    let second = payer(&paid).resume(state, decisions).unwrap().finish().await;
    assert_eq!(
        (&second.stop, paid.load(Ordering::Relaxed)),
        (&RunStopReason::EndTurn, 1),
        "{:?}",
        second.error
    );
    assert!(second.text().starts_with("3 | paid 7 | PERMISSION: "), "{}", second.text());
    assert!(second.text().contains("denied: too much"));
    // It is one run: its name, its tokens, its calls.
    let record = &second.record;
    assert_eq!((record.id, record.iterations, record.usage.total_tokens()), (first.record.id, 2, 200));
    assert_eq!(
        (record.tool_calls.len(), record.tools_used.as_slice()),
        (2, &["add".to_owned(), "pay".to_owned()][..])
    );
    assert_eq!(record.tool_calls[1].id, waiting[0].id, "the call has the name that was approved");
    assert_eq!(
        serde_json::to_value(&record.tool_calls[0]).unwrap(),
        serde_json::to_value(&first.record.tool_calls[0]).unwrap()
    );
}

#[tokio::test]
async fn undecided_calls_stay_pending_and_finished_calls_do_not_run_again() {
    let paid = Arc::new(AtomicU32::new(0));
    let first = payer(&paid).run("Pay.").finish().await;
    let state = reread(&first);
    let ids: Vec<_> = state.pending_calls().map(|call| call.id).collect();
    let edited = [(ids[1], Decision::Edit(json!({ "amount": 8 })))];
    let second = payer(&paid).resume(state, edited).unwrap().finish().await;
    assert_eq!((&second.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::ApprovalNeeded, 1));
    let state = reread(&second);
    assert_eq!(state.pending_calls().map(|call| call.id).collect::<Vec<_>>(), [ids[0]]);
    let third = payer(&paid).resume(state, [(ids[0], Decision::Approve)]).unwrap().finish().await;
    assert_eq!((third.text(), paid.load(Ordering::Relaxed)), ("3 | paid 7 | paid 8", 2));
    // A decision about something else is a mistake.
    assert!(payer(&paid).resume(reread(&second), [(ids[1], Decision::Approve)]).is_err());
    let mut state = serde_json::to_value(reread(&second)).unwrap();
    state["v"] = json!(99);
    let error = payer(&paid).resume(serde_json::from_value(state).unwrap(), []).unwrap_err();
    assert!(
        error.to_string().contains("has format 99, but this program supports formats up to 1"),
        "{error}"
    );
}

#[tokio::test]
async fn without_a_pause_and_a_port_the_call_is_denied() {
    let pay = tool_fn(ToolSpec::new("pay", "Pay."), |_, _| async { Ok(Output::text("paid")) });
    let toolbox = Toolbox::builder().tool(pay).approval("pay", Approval::Ask).build().unwrap();
    let model =
        ScriptModel::parse("test", "turns: [{ calls: [{ tool: pay }] }, { text: '{{ last.text }}' }]")
            .unwrap();
    let outcome = Agent::builder(Arc::new(model), toolbox).build().run("Pay.").finish().await;
    assert_eq!(outcome.stop, RunStopReason::EndTurn);
    assert!(outcome.text().contains("this caller cannot be asked") && outcome.state.is_none());
}

#[tokio::test]
async fn intents_are_reported_and_the_approved_ones_run() {
    let paid = Arc::new(AtomicU32::new(0));
    let agent = payer(&paid);
    let intent = agent.generate_tool_intent("Pay.").await;
    assert_eq!((&intent.output.stop, intent.text()), (&RunStopReason::ToolIntent, "I will pay."));
    assert!(intent.output.record.tool_calls.is_empty());
    let calls: Vec<_> = intent.tool_calls().cloned().collect();
    assert_eq!(calls.iter().map(|call| call.tool.as_str()).collect::<Vec<_>>(), ["add", "pay", "pay"]);
    assert!(calls.iter().all(|call| call.arguments_error.is_none()));

    let chosen = [(calls[0].id, Decision::Edit(json!({"a": 20, "b": 22}))), (calls[1].id, Decision::Approve)];
    let done = agent.execute_tool_intents(&intent, chosen).await.unwrap();
    assert_eq!((&done.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::ToolsCalled, 1));
    let results = results(&done.turns, 2);
    assert_eq!((results[0].joined_text().as_str(), results[1].joined_text().as_str()), ("42", "paid 7"));
    assert!(results[2].is_error, "what was not chosen is refused, so that the conversation stays whole");
    let next = agent.run_turns(done.turns).finish().await;
    assert!(next.text().starts_with("42 | paid 7 | "), "{}", next.text());
}

#[tokio::test]
async fn an_answer_without_calls_has_no_intent() {
    let intent = agent("turns:\n  - text: Hello.\n").build().generate_tool_intent("Hi.").await;
    assert_eq!(
        (&intent.output.stop, intent.text(), intent.tool_calls().count()),
        (&RunStopReason::EndTurn, "Hello.", 0)
    );
}

fn store() -> Runs {
    Runs::new(Arc::new(MemoryStore::new()))
}

#[tokio::test]
async fn a_stored_state_resumes_once() {
    let paid = Arc::new(AtomicU32::new(0));
    let (agent, runs) = (payer(&paid), store());
    let first = agent.run("Pay.").persist_to(&runs).finish().await;
    let state = reread(&first);
    let second = resume(&agent, &state).persist_to(&runs).finish().await;
    assert_eq!((&second.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
    // The store has one run with all exchanges.
    let stored = runs.load(first.record.id).await.unwrap();
    assert_eq!((stored.summary.stop_reason.as_deref(), stored.summary.exchanges), (Some("end_turn"), 2));
    assert_eq!(stored.record.as_ref().unwrap()["tool_calls"].as_array().unwrap().len(), 3);
    assert!(second.record.notices.is_empty() && stored.calls.is_empty(), "{:?}", second.record.notices);

    let third = resume(&agent, &state).persist_to(&runs).finish().await;
    let RunStopReason::NotClaimed(why) = &third.stop else { panic!("{:?}", third.stop) };
    assert!(why.contains("resumed before") && why.contains("allow_second_resume"), "{why}");
    assert_eq!(
        (paid.load(Ordering::Relaxed), third.record.error.as_ref().unwrap()["kind"].clone()),
        (2, json!("not_claimed"))
    );
    assert_eq!(runs.load(first.record.id).await.unwrap().summary, stored.summary);

    let forced = resume(&agent, &state).allow_second_resume().persist_to(&runs).finish().await;
    assert_eq!((&forced.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 4));
    // Without a store, a second resume is not detected.
    let unknown = resume(&agent, &state).finish().await;
    assert_eq!((&unknown.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 6));
}

#[tokio::test]
async fn one_of_two_concurrent_resumes_succeeds() {
    let paid = Arc::new(AtomicU32::new(0));
    let (agent, runs) = (payer(&paid), store());
    let state = reread(&agent.run("Pay.").finish().await);
    let go_on = || resume(&agent, &state).persist_to(&runs).finish();
    let (one, other) = tokio::join!(go_on(), go_on());
    let won = [&one, &other].iter().filter(|outcome| outcome.stop == RunStopReason::EndTurn).count();
    assert_eq!((won, paid.load(Ordering::Relaxed)), (1, 2), "{:?} {:?}", one.stop, other.stop);
}

#[tokio::test]
async fn each_pause_has_its_own_state() {
    let paid = Arc::new(AtomicU32::new(0));
    let (agent, runs) = (payer(&paid), store());
    let first = reread(&agent.run("Pay.").persist_to(&runs).finish().await);
    let one = first.pending_calls().map(|call| call.id).next().unwrap();
    let some = agent.resume(first.clone(), [(one, Decision::Approve)]).unwrap();
    let second = reread(&some.persist_to(&runs).finish().await);
    assert_eq!(paid.load(Ordering::Relaxed), 1);
    let refused = resume(&agent, &first).persist_to(&runs).finish().await;
    assert!(matches!(refused.stop, RunStopReason::NotClaimed(_)), "{:?}", refused.stop);
    let done = resume(&agent, &second).persist_to(&runs).finish().await;
    assert_eq!((&done.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
}

/// An agent whose tool takes so many milliseconds.
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
async fn a_run_ends_at_its_deadline_or_its_time_limit() {
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

/// An agent whose tool takes ten seconds and needs approval.
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
async fn a_resumed_run_ends_at_its_deadline_or_its_time_limit() {
    for (deadline, limit, expected) in [
        (None, None, RunStopReason::EndTurn),
        (None, Some(5_000), RunStopReason::MaxTime),
        (Some(5_000), None, RunStopReason::MaxTime),
        (Some(5_000), Some(50_000), RunStopReason::MaxTime),
        (Some(50_000), Some(5_000), RunStopReason::MaxTime),
        (Some(50_000), Some(50_000), RunStopReason::EndTurn),
    ] {
        let agent = careful(limit);
        let run = resume(&agent, &reread(&agent.run("Sleep.").finish().await));
        let outcome = run.with_deadline(deadline.map(in_milliseconds)).finish().await;
        assert_eq!(outcome.stop, expected, "{deadline:?} {limit:?}");
    }
}

#[tokio::test]
async fn child_runs_before_a_pause_stay_in_the_record() {
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
    let second = resume(&boss(), &reread(&first)).finish().await;
    assert_eq!((&second.stop, second.record.usage.input_tokens), (&RunStopReason::EndTurn, 307));
    let shown = |record: &toolpost::RunRecord| serde_json::to_value(&record.children).unwrap();
    assert_eq!(shown(&second.record), shown(&first.record));
}

/// The output of a run that resumes from a modified state.
async fn resumed(place: &str, value: Value, change: impl Fn(AgentBuilder) -> AgentBuilder) -> RunOutput {
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
    resume(&agent, &state).finish().await
}

#[tokio::test]
async fn a_modified_state_lifts_no_limit() {
    let forever = || json!({ "secs": u64::MAX, "nanos": 999_999_999 });
    let outcome = resumed("/elapsed", forever(), |builder| builder).await;
    assert_eq!((&outcome.stop, outcome.record.execution_time > 1e19), (&RunStopReason::EndTurn, true));
    let limited = |builder: AgentBuilder| builder.max_time(Duration::from_hours(1));
    assert_eq!(resumed("/elapsed", forever(), limited).await.stop, RunStopReason::MaxTime);
    // More than the machine has been up for.
    let years = json!({ "secs": 3_000_000_000_u64, "nanos": 0 });
    assert_eq!(resumed("/elapsed", years, limited).await.stop, RunStopReason::MaxTime);

    // The second answer costs two dollars and reaches the limit, whatever the state has for the first.
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
async fn a_resumed_run_that_ends_before_its_calls_can_resume_again() {
    let store = Arc::new(MemoryStore::new());
    let (runs, conversations) = (Runs::new(store.clone()), Conversations::new(store));
    let paid = Arc::new(AtomicU32::new(0));
    let conversation = conversations.create();
    let first = conversation.run(&payer(&paid), "Pay.").persist_to(&runs).finish().await;
    let resumed = async |state: &RunState, change: &dyn Fn(Run) -> Run| {
        let opened = conversations.open(conversation.id()).await.unwrap();
        let run = resume(&payer(&paid), state);
        change(run.persist_to(&runs).with_conversation(&opened)).finish().await
    };
    let cancelled = toolpost::Cancellation::new();
    cancelled.cancel();
    let past = Instant::now().checked_sub(Duration::from_mins(1));
    let late = |run: Run| run.with_deadline(past);
    let stopped = resumed(&reread(&first), &|run| run.with_cancellation(cancelled.clone())).await;
    assert_eq!((&stopped.stop, &stopped.turns), (&RunStopReason::Cancelled, &first.turns));
    assert!(!stopped.record.success);
    let again = resumed(&reread(&stopped), &late).await;
    assert_eq!((&again.stop, again.record.wrapped_up), (&RunStopReason::MaxTime, false));
    assert_eq!(paid.load(Ordering::Relaxed), 0);
    let last = resumed(&reread(&again), &|run| run).await;
    assert_eq!((&last.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
    assert!(last.record.notices.is_empty(), "{:?}", last.record.notices);
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), last.turns);
    // Each state resumes once.
    for old in [&first, &stopped, &again] {
        let refused = resumed(&reread(old), &|run| run).await;
        assert!(matches!(&refused.stop, RunStopReason::NotClaimed(_)), "{}", refused.stop);
        assert!(refused.state.is_none());
    }
    assert_eq!(paid.load(Ordering::Relaxed), 2);
}
