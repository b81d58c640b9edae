//! Runs that wait for a person, and go on elsewhere; calls that are only intended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;
use toolpost::{Approval, Output, Schema, ToolSpec, tool_fn};
use toolpost_agent::{Agent, Decision, Outcome, Run, RunState, StopReason};
use toolpost_llm::{ScriptModel, Turn};
use toolpost_toolbox::Toolbox;

const SCRIPT: &str = r"
turns:
  - text: I will pay.
    calls: [{ tool: add, args: { a: 1, b: 2 } }, { tool: pay, args: { amount: 7 } }, { tool: pay, args: { amount: 9 } }]
    usage: { input: 60, output: 40 }
  - text: '{{ results[0].text }} | {{ results[1].text }} | {{ results[2].text }}'
    usage: { input: 60, output: 40 }
";

/// An agent as a process has it, and how often it has paid.
fn agent(paid: &Arc<AtomicU32>) -> Agent {
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
fn carried(outcome: &Outcome) -> RunState {
    let text = serde_json::to_string(outcome.state.as_ref().unwrap()).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[tokio::test]
async fn a_run_waits_for_approval_and_goes_on_in_another_process() {
    let paid = Arc::new(AtomicU32::new(0));
    let first = agent(&paid).run("Pay.").await;
    assert_eq!((&first.stop, paid.load(Ordering::Relaxed)), (&StopReason::ApprovalNeeded, 0));
    assert!(!first.record.success && first.record.tool_calls.len() == 1, "what needs nobody was done");
    let state = carried(&first);
    let waiting: Vec<_> = state.waiting().cloned().collect();
    assert_eq!(waiting.iter().map(|call| call.arguments["amount"].clone()).collect::<Vec<_>>(), [7, 9]);
    assert_eq!(waiting[0].tool, "pay");

    let decisions = [(waiting[0].id, Decision::Approve), (waiting[1].id, Decision::Deny("too much".into()))];
    let second = Run::resume(&agent(&paid), state, decisions).unwrap().finish().await;
    assert_eq!((&second.stop, paid.load(Ordering::Relaxed)), (&StopReason::EndTurn, 1), "{:?}", second.error);
    assert!(second.text().starts_with("3 | paid 7 | PERMISSION: "), "{}", second.text());
    assert!(second.text().contains("said no: too much"));
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
    let first = agent(&paid).run("Pay.").await;
    let state = carried(&first);
    let ids: Vec<_> = state.waiting().map(|call| call.id).collect();
    let edited = [(ids[1], Decision::Edit(json!({ "amount": 8 })))];
    let second = Run::resume(&agent(&paid), state, edited).unwrap().finish().await;
    assert_eq!((&second.stop, paid.load(Ordering::Relaxed)), (&StopReason::ApprovalNeeded, 1));
    let state = carried(&second);
    assert_eq!(state.waiting().map(|call| call.id).collect::<Vec<_>>(), [ids[0]]);
    let third = Run::resume(&agent(&paid), state, [(ids[0], Decision::Approve)]).unwrap().finish().await;
    assert_eq!((third.text(), paid.load(Ordering::Relaxed)), ("3 | paid 7 | paid 8", 2));
    // A decision about something else is a mistake.
    assert!(Run::resume(&agent(&paid), carried(&second), [(ids[1], Decision::Approve)]).is_err());
    let mut state = serde_json::to_value(carried(&second)).unwrap();
    state["v"] = json!(99);
    let error = Run::resume(&agent(&paid), serde_json::from_value(state).unwrap(), []).unwrap_err();
    assert!(error.to_string().contains("version 99: expected 1"), "{error}");
}

#[tokio::test]
async fn without_pausing_somebody_is_asked_or_it_is_denied() {
    let paid = Arc::new(AtomicU32::new(0));
    let outcome = Run::new(&agent(&paid), "Pay.").pausing_for_approval(false).finish().await;
    assert_eq!((&outcome.stop, paid.load(Ordering::Relaxed)), (&StopReason::EndTurn, 0));
    assert!(outcome.text().contains("there is nobody to ask") && outcome.state.is_none());
}

#[tokio::test]
async fn intents_are_told_and_the_chosen_ones_are_made() {
    let paid = Arc::new(AtomicU32::new(0));
    let agent = agent(&paid);
    let intent = agent.generate_tool_intent("Pay.").await;
    assert_eq!((&intent.outcome.stop, intent.text()), (&StopReason::ToolIntent, "I will pay."));
    assert!(intent.outcome.record.tool_calls.is_empty());
    let calls: Vec<_> = intent.tool_calls().cloned().collect();
    assert_eq!(calls.iter().map(|call| call.tool.as_str()).collect::<Vec<_>>(), ["add", "pay", "pay"]);
    assert!(calls.iter().all(|call| call.arguments_error.is_none()));

    let chosen = [(calls[0].id, Decision::Edit(json!({"a": 20, "b": 22}))), (calls[1].id, Decision::Approve)];
    let done = agent.execute_tool_intents(&intent, chosen).await.unwrap();
    assert_eq!((&done.stop, paid.load(Ordering::Relaxed)), (&StopReason::ToolsCalled, 1));
    let Some(Turn::ToolResults(results)) = done.turns.last() else { panic!("{:?}", done.turns) };
    assert_eq!((results[0].joined_text().as_str(), results[1].joined_text().as_str()), ("42", "paid 7"));
    assert!(results[2].is_error, "what was not chosen is refused, so that the conversation stays whole");
    // And the conversation goes on from there.
    let next = Run::from_turns(&agent, done.turns).finish().await;
    assert!(next.text().starts_with("42 | paid 7 | "), "{}", next.text());
}

#[tokio::test]
async fn an_answer_without_calls_intends_nothing() {
    let model = ScriptModel::parse("test", "turns:\n  - text: Hello.\n").unwrap();
    let agent = Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap()).build();
    let intent = agent.generate_tool_intent("Hi.").await;
    assert_eq!(
        (&intent.outcome.stop, intent.text(), intent.tool_calls().count()),
        (&StopReason::EndTurn, "Hello.", 0)
    );
}
