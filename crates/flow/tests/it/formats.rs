//! Stored runs of format 1, in which the answer to an approval is a signal with the path of its step.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Code, DocStore as _, Hint, RunId};
use toolpost_flow::{FlowEvent, Flows, Plan, RunStatus};
use toolpost_toolbox::MemoryStore;

use crate::resume::runtime;
use crate::tools::{Ledger, append, toolbox};

/// A run that waits for the approval `ok`, as version 0.1 stored it.
const HEAD: &str = r#"{ "v": 1, "id": "ID", "name": "pay", "hash": "h", "status": "running", "started": "2026-01-01T00:00:00Z",
  "updated": "2026-01-01T00:00:01Z", "events": 1, "succeeded": 0, "failed": 0, "waiting": ["ok"] }"#;
const STEPS: &str = r#"[{ "id": "ok", "approve": "Pay?" },
  { "id": "a", "needs": "ok", "tool": "effect", "with": { "value": "${{ steps.ok.output.by }}" } }]"#;

/// Stores the run with these steps.
async fn waiting(store: &MemoryStore, steps: &str) -> RunId {
    let id = RunId::new();
    let head = HEAD.replace("ID", &id.to_string());
    let started = format!(
        r#"[["2026-01-01T00:00:00Z", {{ "event": "run_started", "v": 1, "plan": {{ "steps": {steps} }}, "hash": "h", "input": {{}} }}]]"#
    );
    let event = json!({ "v": 1, "part": 0, "text": started });
    append(store, &format!("flows/{id}"), serde_json::from_str(&head).unwrap(), event).await;
    id
}

/// Sends a signal as version 0.1 does, which nothing checks.
async fn send_as_before(store: &MemoryStore, id: RunId, name: &str, value: Value) {
    let event = json!({ "event": "signal", "name": name, "value": value });
    append(store, &format!("flow-inboxes/{id}"), json!({ "v": 1, "messages": 1 }), event).await;
}

fn stored(store: &Arc<MemoryStore>) -> (Flows, Ledger) {
    let ledger = Ledger::default();
    (Flows::new(toolbox(&ledger)).store(store.clone()), ledger)
}

fn answer(is_approved: bool) -> Value {
    json!({ "approved": is_approved, "by": "ada" })
}

#[test]
fn an_approval_that_waits_stays_answerable() {
    for (is_approved, is_sent_before) in [(true, true), (true, false), (false, true), (false, false)] {
        let store = Arc::new(MemoryStore::new());
        let (flows, ledger) = stored(&store);
        runtime().block_on(async {
            let id = waiting(&store, STEPS).await;
            if is_sent_before {
                send_as_before(&store, id, "ok", answer(is_approved)).await;
                let second = flows.answer(id, None, answer(true)).await.unwrap_err();
                assert_eq!(second.code(), Code::Conflict, "{second}");
            } else {
                assert_eq!(flows.answer(id, None, answer(is_approved)).await.unwrap(), "ok");
                // A process of version 0.1 that still runs it understands the answer.
                let inbox = store.log(&format!("flow-inboxes/{id}"), 0, 9).await.unwrap();
                assert_eq!(inbox[0].event.as_ref().unwrap()["event"], "signal");
            }
            let outcome = flows.resume(id).into_future().await.unwrap();
            let expected = if is_approved { RunStatus::Succeeded } else { RunStatus::Failed };
            assert_eq!(outcome.status, expected, "{:?}", outcome.error);
            assert_eq!(flows.load(id).await.unwrap().summary.status, expected);
        });
        assert_eq!(ledger.entries().len(), usize::from(is_approved));
    }
}

#[test]
fn a_signal_is_no_answer_in_any_format() {
    let store = Arc::new(MemoryStore::new());
    let (flows, ledger) = stored(&store);
    runtime().block_on(async {
        let old = waiting(&store, STEPS).await;
        let steps = json!({ "steps": serde_json::from_str::<Value>(STEPS).unwrap() });
        let run = flows.run(Plan::from_value(&steps).unwrap(), Value::Null);
        let new = run.id();
        let is_waiting = async {
            while flows.summary(new).await.map_or(true, |run| run.waiting.is_empty()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            outcome = run.into_future() => panic!("{outcome:?}"),
            () = is_waiting => {}
        }
        for id in [old, new] {
            let error = flows.signal(id, "ok", answer(true)).await.unwrap_err();
            assert_eq!(error.code(), Code::InvalidInput, "{error}");
            assert!(error.message().contains("the step `ok` is an approval, not a signal"), "{error}");
            assert_eq!(error.hint(), Some(Hint::AnswerApproval { run: id.to_string(), step: "ok".into() }));
        }
        // A message that nothing checked does not answer it either.
        send_as_before(&store, new, "ok", answer(true)).await;
        assert_eq!(flows.answer(new, None, answer(false)).await.unwrap(), "ok");
        let outcome = flows.resume(new).into_future().await.unwrap();
        assert_eq!(outcome.error.unwrap().message(), "it was denied");
        let events = flows.load(new).await.unwrap().events;
        assert!(events.iter().any(|(_, event)| matches!(event, FlowEvent::Answered { .. })), "{events:?}");
    });
    assert!(ledger.entries().is_empty());
}

#[test]
fn a_value_that_would_run_as_code_fails_its_step() {
    let steps = r#"[{ "id": "ok", "approve": "Run?" },
      { "id": "a", "needs": "ok", "code": "${{ steps.ok.output.comment }}" }]"#;
    let store = Arc::new(MemoryStore::new());
    let (flows, _) = stored(&store);
    runtime().block_on(async {
        let id = waiting(&store, steps).await;
        let mut answer = answer(true);
        answer["comment"] = "1".into();
        flows.answer(id, None, answer).await.unwrap();
        let error = flows.resume(id).into_future().await.unwrap().error.unwrap();
        assert_eq!(error.code(), Code::InvalidInput, "{error}");
        assert!(error.message().contains("`code`: a value would run as code"), "{error}");
        assert!(error.suggestion().unwrap().contains("evaluate: true"), "{error}");
    });
}
