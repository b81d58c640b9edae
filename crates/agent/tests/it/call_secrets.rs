//! Secrets in the arguments of tool calls: in no conversation, stored run, export and recording.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost::{Approval, DocStore, Output, Schema, ToolSpec, tool_fn};
use toolpost_agent::{Agent, Conversations, RunStopReason, Runs};
use toolpost_llm::{Recorder, ScriptModel};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::support::{Written, export, reread, resume};

const CANARY: &str = "canary-of-a-call-77f1";

/// A tool that returns its arguments, and a log of what it got.
fn toolbox(sensitive: &[&str], approval: Approval) -> (Toolbox, Arc<Mutex<Vec<Value>>>) {
    let mut spec = ToolSpec::new("send", "Send.");
    let properties: serde_json::Map<String, Value> =
        sensitive.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
    spec.input_schema = Arc::new(Schema::new(json!({ "type": "object", "properties": properties })));
    spec.sensitive = sensitive.iter().map(|name| (*name).to_owned()).collect();
    let got = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&got);
    let send = tool_fn(spec, move |args, _| {
        let arguments = args.as_value().clone();
        log.lock().unwrap().push(arguments.clone());
        async move { Ok(Output::text(format!("sent {arguments}"))) }
    });
    (Toolbox::builder().tool(send).approval("send", approval).build().unwrap(), got)
}

/// Arguments with the secret, and the names of those that the tool declares sensitive.
fn rows() -> Vec<(Value, &'static [&'static str])> {
    vec![
        (json!({ "Authorization": format!("Bearer {CANARY}") }), &[]),
        (json!({ "headers": { "authorization": format!("Basic {CANARY}"), "accept": "text/plain" } }), &[]),
        (json!({ "headers": { "x-functions-key": CANARY } }), &[]),
        (json!({ "headers": [{ "name": "X-Api-Key", "value": CANARY }] }), &[]),
        (
            json!({ "argv": ["curl", "-H", format!("Authorization: Bearer {CANARY}"), "https://h.example"] }),
            &[],
        ),
        (json!({ "deep": [{ "api_key": CANARY }] }), &[]),
        (json!({ "password": CANARY, "user": "ada" }), &[]),
        (json!({ "url": format!("https://user:{CANARY}@h.example/p") }), &[]),
        (json!({ "url": format!("https://h.example/p?access_token={CANARY}&q=1") }), &[]),
        (json!({ "note": CANARY }), &["note"]),
    ]
}

fn script(arguments: &Value) -> String {
    json!({ "turns": [
        { "text": "I send it.", "calls": [{ "tool": "send", "args": arguments }] },
        { "text": format!("I sent {CANARY}.") },
        { "text": "Hello." },
    ] })
    .to_string()
}

/// Everything that a store has, as text.
async fn stored(store: &MemoryStore) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for (name, _) in store.list("", None, 100).await.unwrap() {
        texts.push((name.clone(), store.load(&name).await.unwrap().value.to_string()));
        for change in store.log(&name, 0, 1_000).await.unwrap() {
            texts.push((name.clone(), serde_json::to_string(&change).unwrap()));
        }
    }
    texts
}

#[tokio::test]
async fn a_secret_of_a_call_is_in_no_conversation_run_export_and_recording() {
    for (arguments, sensitive) in rows() {
        let store = Arc::new(MemoryStore::new());
        let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
        let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>);
        let (toolbox, got) = toolbox(sensitive, Approval::Allow);
        let recorded = Written::default();
        let model = ScriptModel::parse("test", &script(&arguments)).unwrap();
        let model = Recorder::new(Arc::new(model), recorded.clone(), Vec::new());
        let agent = Agent::builder(Arc::new(model), toolbox.clone()).build();
        let conversation = conversations.create();
        let outcome = conversation.run(&agent, "Send.").persist_to(&runs).finish().await;
        assert_eq!(
            (outcome.stop.clone(), got.lock().unwrap().as_slice()),
            (RunStopReason::EndTurn, &[arguments.clone()][..])
        );
        // The record masks the same.
        let record = serde_json::to_string(&outcome.record.tool_calls).unwrap();
        assert!(!record.contains(CANARY) && record.contains("[secret]"), "{arguments}: {record}");
        let texts = stored(&store).await;
        assert!(texts.len() > 4, "{texts:?}");
        for (name, text) in texts {
            assert!(!text.contains(CANARY), "{arguments} in {name}: {text}");
        }
        assert!(!recorded.text().contains(CANARY), "{arguments}: {}", recorded.text());
        let reread = conversations.open(conversation.id()).await.unwrap();
        assert_eq!(reread.turns().len(), outcome.turns.len());
        // The export replays, with masked arguments.
        let (count, replay) = export(&runs, outcome.record.id).await.unwrap();
        let again = Agent::builder(replay, toolbox).build().run("Send.").finish().await;
        assert_eq!((count, again.stop), (2, RunStopReason::EndTurn), "{arguments}: {:?}", again.error);
        assert_eq!(again.turns.last(), reread.turns().last());
        assert!(!got.lock().unwrap()[1].to_string().contains(CANARY));
    }
}

#[tokio::test]
async fn a_paused_call_resumes_with_its_secret_in_a_stored_conversation() {
    for (arguments, sensitive) in rows() {
        let store = Arc::new(MemoryStore::new());
        let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
        let (toolbox, got) = toolbox(sensitive, Approval::Ask);
        let model = Arc::new(ScriptModel::parse("test", &script(&arguments)).unwrap());
        let agent = Agent::builder(model, toolbox).pause_for_approval(true).build();
        let conversation = conversations.create();
        let first = conversation.run(&agent, "Send.").finish().await;
        assert_eq!(first.stop, RunStopReason::ApprovalNeeded);
        for (name, text) in stored(&store).await {
            assert!(!text.contains(CANARY), "{arguments} in {name}: {text}");
        }
        let opened = conversations.open(conversation.id()).await.unwrap();
        let second = resume(&agent, &reread(&first)).with_conversation(&opened).finish().await;
        assert_eq!(second.stop, RunStopReason::EndTurn, "{arguments}: {:?}", second.record.notices);
        assert_eq!(
            got.lock().unwrap().as_slice(),
            std::slice::from_ref(&arguments),
            "the tool gets the secret"
        );
        // Another conversation is not resumed.
        let other = conversations.create();
        other.run(&agent, "Hi.").finish().await;
        let refused = resume(&agent, &reread(&first)).with_conversation(&other).finish().await;
        assert!(matches!(refused.stop, RunStopReason::NotClaimed(_)), "{:?}", refused.stop);
    }
}
