//! Guardrails of input, output and calls.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost::{BoxFuture, Event};
use toolpost_agent::{CallVerdict, Decision, Guardrail, RunState, RunStopReason, TextVerdict};
use toolpost_llm::Turn;

use crate::agent;
use crate::support::texts;

/// A guardrail with a verdict for certain words and arguments.
#[derive(Debug)]
struct Strict;

fn verdict(text: &str) -> TextVerdict {
    if text.contains("forbidden") {
        TextVerdict::Block("that word".into())
    } else if text.contains("secret") {
        TextVerdict::Replace(text.replace("secret", "…"))
    } else {
        TextVerdict::Allow
    }
}

impl Guardrail for Strict {
    fn name(&self) -> &'static str {
        "strict"
    }

    fn input<'a>(&'a self, text: &'a str) -> BoxFuture<'a, TextVerdict> {
        Box::pin(async move { verdict(text) })
    }

    fn output<'a>(&'a self, text: &'a str) -> BoxFuture<'a, TextVerdict> {
        Box::pin(async move { verdict(text) })
    }

    fn call<'a>(&'a self, _tool: &'a str, arguments: &'a Value) -> BoxFuture<'a, CallVerdict> {
        Box::pin(async move {
            match arguments["a"].as_i64() {
                Some(1) => CallVerdict::Replace(json!({"a": 100, "b": 1})),
                Some(2) => CallVerdict::Refuse("two is not for you".into()),
                Some(3) => CallVerdict::Block("three is right out".into()),
                _ => CallVerdict::Allow,
            }
        })
    }
}

#[tokio::test]
async fn input_is_replaced_or_blocked_before_the_first_request() {
    let guarded = agent("turns:\n  - text: ok\n").guardrail(Strict).build();
    let outcome = guarded.run("the secret word").finish().await;
    assert_eq!(outcome.turns[0], Turn::user("the … word"));
    let outcome = guarded.run("the forbidden word").finish().await;
    assert_eq!(outcome.stop, RunStopReason::Guardrail("strict: that word".into()));
    assert_eq!((outcome.record.iterations, outcome.record.stop_reason.as_str()), (0, "guardrail"));
    assert_eq!(outcome.record.error.as_ref().unwrap()["message"], "strict: that word");
    assert!(!outcome.record.success && outcome.turns.is_empty());
}

#[tokio::test]
async fn output_is_checked_before_it_is_shown() {
    let said = |script: &str| {
        let shown = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&shown);
        let agent = agent(script).guardrail(Strict).on_event(Arc::new(move |event: &Event| {
            if let Event::TextDelta { text, .. } = event {
                sink.lock().unwrap().push_str(text);
            }
        }));
        async move { (agent.build().run("Go.").finish().await, shown.lock().unwrap().clone()) }
    };
    let (outcome, shown) = said("turns:\n  - text: a secret thing\n").await;
    assert_eq!((outcome.text(), shown.as_str()), ("a … thing", "a … thing"));
    let (outcome, shown) =
        said("turns:\n  - text: a forbidden thing\n    usage: { input: 5, output: 5 }\n").await;
    assert_eq!((&outcome.stop, shown.as_str()), (&RunStopReason::Guardrail("strict: that word".into()), ""));
    // It is in no record and no conversation, but it was paid for.
    assert!(!serde_json::to_string(&(&*outcome.record, &outcome.turns)).unwrap().contains("forbidden thing"));
    assert_eq!(outcome.record.usage.total_tokens(), 10);
}

#[tokio::test]
async fn calls_are_replaced_refused_or_blocked() {
    let call = |a: i64| format!("{{ tool: add, args: {{ a: {a}, b: 1 }} }}");
    let script = format!("turns:\n  - calls: [{}, {}, {}]\n  - text: done\n", call(0), call(1), call(2));
    let outcome = agent(&script).guardrail(Strict).build().run("Go.").finish().await;
    let texts = texts(&outcome.turns, 2);
    assert_eq!((texts[0].as_str(), texts[1].as_str(), outcome.record.tool_calls.len()), ("1", "101", 2));
    assert!(texts[2].contains("PERMISSION: the call did not run: two is not for you"), "{}", texts[2]);
    let script = format!("turns:\n  - calls: [{}, {}]\n  - text: done\n", call(0), call(3));
    let outcome = agent(&script).guardrail(Strict).build().run("Go.").finish().await;
    assert_eq!(outcome.stop, RunStopReason::Guardrail("strict: three is right out".into()));
    assert!(outcome.record.tool_calls.is_empty(), "nothing of such an answer is done");
}

#[tokio::test]
async fn intents_are_guarded_and_limited_to_the_tools_of_the_run() {
    let call = |a: i64| format!("{{ tool: add, args: {{ a: {a}, b: 1 }} }}");
    let script = format!(
        "turns:\n  - calls: [{}, {}, {}, {{ tool: wait, args: {{ milliseconds: 1 }} }}]\n  - text: done\n",
        call(0),
        call(1),
        call(2)
    );
    let guarded = agent(&script).guardrail(Strict).build();
    let intent = guarded.run("Go.").with_tools(["add"]).generate_tool_intent().await;
    assert_eq!(intent.output.stop, RunStopReason::ToolIntent);
    let intended: Vec<_> = intent.tool_calls().map(|call| call.arguments.clone()).collect();
    assert_eq!(intended, [json!({"a": 0, "b": 1}), json!({"a": 100, "b": 1})]);
    let approved = intent.tool_calls().map(|call| (call.id, Decision::Approve)).collect::<Vec<_>>();
    let done = guarded.execute_tool_intents(&intent, approved).await.unwrap();
    let texts = texts(&done.turns, 2);
    assert_eq!((texts[0].as_str(), texts[1].as_str()), ("1", "101"));
    assert!(
        texts[2].contains("two is not for you") && texts[3].contains("this run has no tool `wait`"),
        "{texts:?}"
    );
    assert_eq!(done.record.tool_calls.len(), 2);

    // Rejected intents end the run after one request, too.
    let alone =
        agent(&format!("turns:\n  - calls: [{}]\n  - text: done\n", call(2))).guardrail(Strict).build();
    let intent = alone.generate_tool_intent("Go.").await;
    assert_eq!((&intent.output.stop, intent.tool_calls().count()), (&RunStopReason::ToolIntent, 0));
    assert_eq!(intent.output.record.iterations, 1);
    let blocked = agent(&format!("turns:\n  - calls: [{}]\n", call(3))).guardrail(Strict).build();
    let intent = blocked.generate_tool_intent("Go.").await;
    assert_eq!(intent.output.stop, RunStopReason::Guardrail("strict: three is right out".into()));
}

#[tokio::test]
async fn an_approved_call_is_guarded_with_its_final_arguments() {
    let script = "turns:
  - calls: [{ tool: add, args: { a: 0, b: 1 } }, { tool: add, args: { a: 5, b: 1 } }]
  - calls: [{ tool: wait, args: { milliseconds: 1 } }]
  - text: '{{ last.text }}'
";
    let guarded = || agent(script).guardrail(Strict).build();
    let intent = guarded().run("Go.").with_tools(["add"]).generate_tool_intent().await;
    // As another process reads it.
    let written = serde_json::to_string(&intent.output.state).unwrap();
    let state = || serde_json::from_str::<Option<RunState>>(&written).unwrap().unwrap();
    let ids: Vec<_> = intent.tool_calls().map(|call| call.id).collect();
    let resumed = |arguments: Value| {
        let decisions = [(ids[0], Decision::Edit(arguments)), (ids[1], Decision::Approve)];
        guarded().resume(state(), decisions).unwrap().finish()
    };
    for (a, expected) in [(7, "8"), (1, "101"), (2, "PERMISSION: the call did not run: two is not for you")] {
        let outcome = resumed(json!({"a": a, "b": 1})).await;
        let texts = texts(&outcome.turns, 2);
        assert!(texts[0].starts_with(expected) && texts[1] == "6", "{texts:?}");
        // The tools of the run are those that it began with.
        assert!(outcome.text().contains("this run has no tool `wait`"), "{}", outcome.text());
    }
    let outcome = resumed(json!({"a": 3, "b": 1})).await;
    assert_eq!(outcome.stop, RunStopReason::Guardrail("strict: three is right out".into()));
    assert!(outcome.record.tool_calls.is_empty() && texts(&outcome.turns, 2).len() == 2);
    // A state that was tampered with names no other tool.
    let mut state = serde_json::to_value(state()).unwrap();
    state["calls"][0]["tool"] = json!("wait");
    let state = serde_json::from_value(state).unwrap();
    let outcome = guarded().resume(state, [(ids[0], Decision::Approve)]).unwrap();
    let outcome = outcome.execute_tool_intents().await;
    assert!(
        texts(&outcome.turns, 2)[0].contains("this run has no tool `wait`")
            && outcome.record.tool_calls.is_empty()
    );
}
