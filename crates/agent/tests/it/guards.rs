//! Guardrails: what goes in, what comes out, what is called.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost::{BoxFuture, Event};
use toolpost_agent::{CallVerdict, Guardrail, StopReason, TextVerdict};
use toolpost_llm::Turn;

use crate::agent;

/// Says of a text or a call what its words ask for.
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
async fn what_the_user_says_is_changed_or_ends_the_run_before_the_model_is_asked() {
    let guarded = agent("turns:\n  - text: ok\n").guardrail(Strict).build();
    let outcome = guarded.run("the secret word").await;
    assert_eq!(outcome.turns[0], Turn::user("the … word"));
    let outcome = guarded.run("the forbidden word").await;
    assert_eq!(outcome.stop, StopReason::Guardrail("strict: that word".into()));
    assert_eq!((outcome.record.iterations, outcome.record.stop_reason.as_str()), (0, "guardrail"));
    assert_eq!(outcome.record.error.as_ref().unwrap()["message"], "strict: that word");
    assert!(!outcome.record.success && outcome.turns.is_empty());
}

#[tokio::test]
async fn what_the_model_says_is_seen_before_it_is_shown() {
    let said = |script: &str| {
        let shown = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&shown);
        let agent = agent(script).guardrail(Strict).on_event(Arc::new(move |event: &Event| {
            if let Event::TextDelta { text, .. } = event {
                sink.lock().unwrap().push_str(text);
            }
        }));
        async move { (agent.build().run("Go.").await, shown.lock().unwrap().clone()) }
    };
    let (outcome, shown) = said("turns:\n  - text: a secret thing\n").await;
    assert_eq!((outcome.text(), shown.as_str()), ("a … thing", "a … thing"));
    let (outcome, shown) =
        said("turns:\n  - text: a forbidden thing\n    usage: { input: 5, output: 5 }\n").await;
    assert_eq!((&outcome.stop, shown.as_str()), (&StopReason::Guardrail("strict: that word".into()), ""));
    // It is in no record and no conversation, but it was paid for.
    assert!(!serde_json::to_string(&(&*outcome.record, &outcome.turns)).unwrap().contains("forbidden thing"));
    assert_eq!(outcome.record.usage.total_tokens(), 10);
}

#[tokio::test]
async fn calls_are_changed_refused_or_end_the_run() {
    let call = |a: i64| format!("{{ tool: add, args: {{ a: {a}, b: 1 }} }}");
    let script = format!("turns:\n  - calls: [{}, {}, {}]\n  - text: done\n", call(0), call(1), call(2));
    let outcome = agent(&script).guardrail(Strict).build().run("Go.").await;
    let Some(Turn::ToolResults(results)) = outcome.turns.get(2) else { panic!("{:?}", outcome.turns) };
    let texts: Vec<_> = results.iter().map(toolpost_llm::ToolResult::joined_text).collect();
    assert_eq!((texts[0].as_str(), texts[1].as_str(), outcome.record.tool_calls.len()), ("1", "101", 2));
    assert!(texts[2].contains("PERMISSION: the call was not made: two is not for you"), "{}", texts[2]);
    let script = format!("turns:\n  - calls: [{}, {}]\n  - text: done\n", call(0), call(3));
    let outcome = agent(&script).guardrail(Strict).build().run("Go.").await;
    assert_eq!(outcome.stop, StopReason::Guardrail("strict: three is right out".into()));
    assert!(outcome.record.tool_calls.is_empty(), "nothing of such an answer is done");
}
