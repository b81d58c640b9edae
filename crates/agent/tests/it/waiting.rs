//! Runs that wait for a person, and go on elsewhere; calls that are only intended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use toolpost::{Approval, Output, Schema, ToolSpec, tool_fn};
use toolpost_agent::{Agent, Decision, Run, RunOutput, RunState, RunStopReason, Runs};
use toolpost_llm::{ScriptModel, Turn};
use toolpost_toolbox::{MemoryStore, Toolbox};

const SCRIPT: &str = r"
turns:
  - text: I will pay.
    calls: [{ tool: add, args: { a: 1, b: 2 } }, { tool: pay, args: { amount: 7 } }, { tool: pay, args: { amount: 9 } }]
    usage: { input: 60, output: 40 }
  - text: '{{ results[0].text }} | {{ results[1].text }} | {{ results[2].text }}'
    usage: { input: 60, output: 40 }
";

/// An agent as a process has it, and how often it has paid.
pub(crate) fn agent(paid: &Arc<AtomicU32>) -> Agent {
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

/// The state as another process reads it.
pub(crate) fn carried(outcome: &RunOutput) -> RunState {
    let text = serde_json::to_string(outcome.state.as_ref().unwrap()).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn a_run_waits_for_approval_and_goes_on_in_another_process() {
    let paid = Arc::new(AtomicU32::new(0));
    let first = agent(&paid).run("Pay.").finish().await;
    assert_eq!((&first.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::ApprovalNeeded, 0));
    assert!(!first.record.success && first.record.tool_calls.len() == 1, "what needs nobody was done");
    let state = carried(&first);
    let waiting: Vec<_> = state.pending_calls().cloned().collect();
    assert_eq!(waiting.iter().map(|call| call.arguments["amount"].clone()).collect::<Vec<_>>(), [7, 9]);
    assert_eq!(waiting[0].tool, "pay");

    let decisions = [(waiting[0].id, Decision::Approve), (waiting[1].id, Decision::Deny("too much".into()))];
    let second = agent(&paid).resume(state, decisions).unwrap().finish().await;
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
async fn what_nothing_is_decided_about_waits_on_and_what_is_done_is_not_done_again() {
    let paid = Arc::new(AtomicU32::new(0));
    let first = agent(&paid).run("Pay.").finish().await;
    let state = carried(&first);
    let ids: Vec<_> = state.pending_calls().map(|call| call.id).collect();
    let edited = [(ids[1], Decision::Edit(json!({ "amount": 8 })))];
    let second = agent(&paid).resume(state, edited).unwrap().finish().await;
    assert_eq!((&second.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::ApprovalNeeded, 1));
    let state = carried(&second);
    assert_eq!(state.pending_calls().map(|call| call.id).collect::<Vec<_>>(), [ids[0]]);
    let third = agent(&paid).resume(state, [(ids[0], Decision::Approve)]).unwrap().finish().await;
    assert_eq!((third.text(), paid.load(Ordering::Relaxed)), ("3 | paid 7 | paid 8", 2));
    // A decision about something else is a mistake.
    assert!(agent(&paid).resume(carried(&second), [(ids[1], Decision::Approve)]).is_err());
    let mut state = serde_json::to_value(carried(&second)).unwrap();
    state["v"] = json!(99);
    let error = agent(&paid).resume(serde_json::from_value(state).unwrap(), []).unwrap_err();
    assert!(error.to_string().contains("version 99, expected 1"), "{error}");
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
async fn intents_are_told_and_the_chosen_ones_are_made() {
    let paid = Arc::new(AtomicU32::new(0));
    let agent = agent(&paid);
    let intent = agent.generate_tool_intent("Pay.").await;
    assert_eq!((&intent.output.stop, intent.text()), (&RunStopReason::ToolIntent, "I will pay."));
    assert!(intent.output.record.tool_calls.is_empty());
    let calls: Vec<_> = intent.tool_calls().cloned().collect();
    assert_eq!(calls.iter().map(|call| call.tool.as_str()).collect::<Vec<_>>(), ["add", "pay", "pay"]);
    assert!(calls.iter().all(|call| call.arguments_error.is_none()));

    let chosen = [(calls[0].id, Decision::Edit(json!({"a": 20, "b": 22}))), (calls[1].id, Decision::Approve)];
    let done = agent.execute_tool_intents(&intent, chosen).await.unwrap();
    assert_eq!((&done.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::ToolsCalled, 1));
    let Some(Turn::ToolResults(results)) = done.turns.last() else { panic!("{:?}", done.turns) };
    assert_eq!((results[0].joined_text().as_str(), results[1].joined_text().as_str()), ("42", "paid 7"));
    assert!(results[2].is_error, "what was not chosen is refused, so that the conversation stays whole");
    // And the conversation goes on from there.
    let next = agent.run_turns(done.turns).finish().await;
    assert!(next.text().starts_with("42 | paid 7 | "), "{}", next.text());
}

#[tokio::test]
async fn an_answer_without_calls_intends_nothing() {
    let model = ScriptModel::parse("test", "turns:\n  - text: Hello.\n").unwrap();
    let agent = Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap()).build();
    let intent = agent.generate_tool_intent("Hi.").await;
    assert_eq!(
        (&intent.output.stop, intent.text(), intent.tool_calls().count()),
        (&RunStopReason::EndTurn, "Hello.", 0)
    );
}

/// A run that goes on from a state with everything approved.
fn approved(agent: &Agent, state: &RunState) -> Run {
    let decisions: Vec<_> = state.pending_calls().map(|call| (call.id, Decision::Approve)).collect();
    agent.resume(state.clone(), decisions).unwrap()
}

fn store() -> Runs {
    Runs::new(Arc::new(MemoryStore::new()))
}

#[tokio::test]
async fn a_state_is_gone_on_from_once_where_runs_are_kept() {
    let paid = Arc::new(AtomicU32::new(0));
    let (agent, runs) = (agent(&paid), store());
    let first = agent.run("Pay.").persist_to(&runs).finish().await;
    let state = carried(&first);
    let second = approved(&agent, &state).persist_to(&runs).finish().await;
    assert_eq!((&second.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
    // It is one run in the store too, with all that was asked.
    let kept = runs.load(first.record.id).await.unwrap();
    assert_eq!((kept.summary.stop_reason.as_deref(), kept.summary.exchanges), (Some("end_turn"), 2));
    assert_eq!(kept.record.as_ref().unwrap()["tool_calls"].as_array().unwrap().len(), 3);
    assert!(second.record.notices.is_empty() && kept.calls.is_empty(), "{:?}", second.record.notices);

    let third = approved(&agent, &state).persist_to(&runs).finish().await;
    let RunStopReason::NotClaimed(why) = &third.stop else { panic!("{:?}", third.stop) };
    assert!(why.contains("resumed before") && why.contains("allow_second_resume"), "{why}");
    assert_eq!(
        (paid.load(Ordering::Relaxed), third.record.error.as_ref().unwrap()["kind"].clone()),
        (2, json!("not_claimed"))
    );
    assert_eq!(runs.load(first.record.id).await.unwrap().summary, kept.summary);

    let forced = approved(&agent, &state).allow_second_resume().persist_to(&runs).finish().await;
    assert_eq!((&forced.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 4));
    // Where nothing is kept nobody knows.
    let unknown = approved(&agent, &state).finish().await;
    assert_eq!((&unknown.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 6));
}

#[tokio::test]
async fn of_two_that_go_on_at_once_one_does_and_the_store_need_not_have_seen_the_pause() {
    let paid = Arc::new(AtomicU32::new(0));
    let (agent, runs) = (agent(&paid), store());
    let state = carried(&agent.run("Pay.").finish().await);
    let go_on = || approved(&agent, &state).persist_to(&runs).finish();
    let (one, other) = tokio::join!(go_on(), go_on());
    let won = [&one, &other].iter().filter(|outcome| outcome.stop == RunStopReason::EndTurn).count();
    assert_eq!((won, paid.load(Ordering::Relaxed)), (1, 2), "{:?} {:?}", one.stop, other.stop);
}

#[tokio::test]
async fn each_pause_is_a_state_of_its_own() {
    let paid = Arc::new(AtomicU32::new(0));
    let (agent, runs) = (agent(&paid), store());
    let first = carried(&agent.run("Pay.").persist_to(&runs).finish().await);
    let one = first.pending_calls().map(|call| call.id).next().unwrap();
    let some = agent.resume(first.clone(), [(one, Decision::Approve)]).unwrap();
    let second = carried(&some.persist_to(&runs).finish().await);
    assert_eq!(paid.load(Ordering::Relaxed), 1);
    let refused = approved(&agent, &first).persist_to(&runs).finish().await;
    assert!(matches!(refused.stop, RunStopReason::NotClaimed(_)), "{:?}", refused.stop);
    let done = approved(&agent, &second).persist_to(&runs).finish().await;
    assert_eq!((&done.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
}
