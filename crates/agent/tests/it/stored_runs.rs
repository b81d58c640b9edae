//! Stored conversations and runs.

use std::sync::{Arc, Mutex};

use serde_json::json;
use toolpost::{Code, Commit, DocStore, Inject, Patch, ScopeId, Timestamp, Write, tool};
use toolpost_agent::{Agent, Conversations, RunStopReason, Runs};
use toolpost_llm::{ScriptModel, Secret, Turn};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::agent;
use crate::support::{FakeModel, export, toolbox};

const ADDS: &str = r#"
turns:
  - text: Let me add.
    calls: [{ tool: add, args: { a: 2, b: 3 } }]
    usage: { input: 100, output: 10 }
  - text: "It is {{ last.structured }}."
    usage: { input: 200, output: 20 }
  - text: You are welcome.
  - text: Bye.
"#;

fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new())
}

#[tokio::test]
async fn a_conversation_continues_in_another_process() {
    let (store, agent) = (store(), agent(ADDS).build());
    let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
    let conversation = conversations.create_in("/srv/ada");
    assert_eq!(conversations.list(None, 9).await.unwrap(), [], "nothing is stored before the first run");
    let first = conversation.run(&agent, "Add 2 and 3,\n please.").finish().await;
    assert_eq!((first.text(), first.record.notices.as_slice()), ("It is 5.", &[][..]));
    let id = conversation.id();
    drop(conversation);

    // Another process, as it were.
    let conversations = Conversations::new(store as Arc<dyn DocStore>);
    let again = conversations.open(id).await.unwrap();
    assert_eq!(again.turns(), first.turns);
    let outcome = again.run(&agent, "Thank you.").finish().await;
    assert_eq!(outcome.text(), "You are welcome.");
    assert_eq!(again.turns(), outcome.turns);
    let summary = again.summary();
    assert_eq!((summary.title.as_str(), summary.model.as_str()), ("Add 2 and 3, please.", "script/test"));
    assert_eq!((summary.turns, summary.prompts, summary.usage.input_tokens), (6, 2, 300));
    assert_eq!(summary.directory.as_deref(), Some("/srv/ada"));
    assert_eq!(summary.cost_usd, Some(0.0), "a script costs nothing");
    assert_eq!(conversations.list(None, 9).await.unwrap(), [summary]);
    let exchanges = again.exchanges();
    assert_eq!(exchanges.iter().map(|exchange| exchange.first_turn).collect::<Vec<_>>(), [0, 4]);
    assert_eq!(exchanges[0].run, first.record.id);
    assert_eq!(conversations.open(id).await.unwrap().exchanges().len(), 2);
}

#[tokio::test]
async fn a_run_is_stored_with_the_options_of_its_caller_and_every_text() {
    let runs = Runs::new(store());
    let agent = agent(ADDS).system("You add.").build();
    let options = json!({ "tools": ["add"], "key": "hunter2hunter2" });
    let secret = Secret::new("hunter2hunter2");
    let masked = runs.clone().with_secrets(vec![secret]);
    let run = agent.run("Add 2 and 3.").persist_to(&masked).with_stored_options(options).finish().await;
    let id = run.record.id;
    let stored = runs.load(id).await.unwrap();
    let expected = json!({ "tools": ["add"], "key": "[secret]" });
    assert_eq!(stored.options.as_ref(), Some(&expected));
    assert_eq!(runs.options(id).await.unwrap(), Some(expected));
    assert_eq!(
        (stored.system.as_deref(), stored.prompt.as_deref()),
        (Some("You add."), Some("Add 2 and 3."))
    );
    let texts: Vec<_> = stored.texts.iter().map(|one| one.text.as_str()).collect();
    assert_eq!(texts, ["Let me add.", "It is 5."]);
    assert!(stored.texts[0].at <= stored.texts[1].at);
    let without = agent.run("Add 2 and 3.").persist_to(&runs).finish().await;
    assert_eq!(runs.options(without.record.id).await.unwrap(), None);
}

#[tokio::test]
async fn the_latest_conversation_of_a_directory_is_found() {
    let agent = agent("turns: [{ text: a }, { text: b }]").build();
    let conversations = Conversations::new(store());
    let begin = async |directory: &str| {
        let conversation = conversations.create_in(directory);
        conversation.run(&agent, "x").finish().await;
        conversation.id()
    };
    let (first, second, elsewhere) = (begin("/a").await, begin("/a").await, begin("/b/ü").await);
    let last = async |directory: &str| conversations.latest(directory).await.unwrap().map(|found| found.id());
    assert_eq!(
        (last("/a").await, last("/b/ü").await, last("/c").await),
        (Some(second), Some(elsewhere), None)
    );
    conversations.open(first).await.unwrap().run(&agent, "y").finish().await;
    assert_eq!(last("/a").await, Some(first));
    assert!(conversations.delete(first).await.unwrap());
    assert!(!conversations.delete(first).await.unwrap());
    assert_eq!(last("/a").await, Some(second));
    assert_eq!(conversations.open(first).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(conversations.list(Some("/a"), 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn one_of_two_concurrent_runs_is_stored() {
    let other = agent("turns:\n  - text: Hello.\n").build();
    for first_begins in [true, false] {
        let agent = agent(ADDS).build();
        let conversations = Conversations::new(store());
        let one = conversations.create();
        let (adds, says) = if first_begins {
            let adds = one.run(&agent, "Add.");
            (adds, one.run(&other, "Hi."))
        } else {
            let says = one.run(&other, "Hi.");
            (one.run(&agent, "Add."), says)
        };
        let (adds, says) = tokio::join!(Box::pin(adds.finish()), Box::pin(says.finish()));
        // Both have answered, and one of them is stored.
        assert_eq!((adds.text(), says.text()), ("It is 5.", "Hello."));
        let lost = |notices: &[String]| notices.iter().any(|notice| notice.contains("no longer stores"));
        assert!(lost(&adds.record.notices) != lost(&says.record.notices), "{:?}", says.record.notices);
        let (stored, late) = if lost(&adds.record.notices) { (says, adds) } else { (adds, says) };
        let id = one.id();
        for part in ["another run resumed it", "fork it", &format!("`{id}`")] {
            assert!(late.record.notices[0].contains(part), "{part}: {:?}", late.record.notices);
        }
        assert_eq!(one.turns(), stored.turns);
        assert_eq!(conversations.open(one.id()).await.unwrap().turns(), stored.turns);
    }
}

#[tokio::test]
async fn a_fork_is_independent() {
    let agent = agent(ADDS).build();
    let conversations = Conversations::new(store());
    let original = conversations.create();
    for prompt in ["Add.", "Thanks.", "Bye."] {
        assert_eq!(original.run(&agent, prompt).finish().await.stop, RunStopReason::EndTurn);
    }
    let fork = conversations.fork(original.id(), Some(1)).await.unwrap();
    assert_eq!(fork.turns(), original.turns()[..4]);
    let whole = conversations.fork(original.id(), None).await.unwrap();
    assert_eq!(whole.turns(), original.turns());
    assert_eq!(whole.exchanges().len(), 3);
    for wrong in [0, 4] {
        let error = conversations.fork(original.id(), Some(wrong)).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput);
    }
    conversations.delete(original.id()).await.unwrap();
    let again = conversations.open(fork.id()).await.unwrap();
    assert_eq!(again.run(&agent, "Other thanks.").finish().await.text(), "You are welcome.");
    let summary = again.summary();
    assert_eq!((summary.title.as_str(), summary.prompts, summary.turns), ("Add.", 2, 6));
    assert_eq!(summary.forked_from.map(|forked| forked.prompts), Some(1));
    let name = fork.id().to_string();
    assert_eq!(conversations.find(&name).await.unwrap(), fork.id());
    for (start, code) in
        [("", Code::NotFound), ("0", Code::InvalidInput), ("%", Code::NotFound), ("zz", Code::NotFound)]
    {
        assert_eq!(conversations.find(start).await.unwrap_err().code(), code, "{start}");
    }
}

/// Report whether the request is stored already.
#[tool]
async fn look(seen: Inject<Seen>, stored: Inject<Stored>) -> String {
    let id: ScopeId = stored.1.lock().unwrap().unwrap();
    let turns = stored.0.open(id).await.unwrap().turns();
    *seen.0.lock().unwrap() = turns;
    "seen".to_owned()
}

struct Seen(Arc<Mutex<Vec<Turn>>>);
struct Stored(Conversations, Mutex<Option<ScopeId>>);

#[tokio::test]
async fn a_call_is_stored_before_its_tool_runs() {
    let script = "turns: [{ text: I look., calls: [{ tool: look, args: {} }] }, { text: Done. }]";
    let conversations = Conversations::new(store());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let stored = Stored(conversations.clone(), Mutex::new(None));
    let conversation = conversations.create();
    *stored.1.lock().unwrap() = Some(conversation.id());
    let toolbox =
        Toolbox::builder().tool(look).provide(Seen(Arc::clone(&seen))).provide(stored).build().unwrap();
    let agent = Agent::builder(Arc::new(ScriptModel::parse("x", script).unwrap()), toolbox).build();
    let outcome = conversation.run(&agent, "Look.").finish().await;
    assert_eq!(outcome.text(), "Done.", "{:?}", outcome.record);
    // While the tool runs, another process finds the call and a result of an interrupted run.
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen[..2], outcome.turns[..2]);
    let Turn::ToolResults(results) = &seen[2] else { panic!("no result: {seen:?}") };
    assert!(results[0].is_error && results[0].joined_text().contains("may have run"));
    assert_eq!(seen.len(), 3);
}

#[tokio::test]
async fn long_texts_round_trip_and_secrets_are_masked() {
    const CANARY: &str = "canary-\"55a1";
    let store = store();
    let secrets = vec![Secret::new(CANARY)];
    let conversations =
        Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>).with_secrets(secrets.clone());
    let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>).with_secrets(secrets);
    let agent = agent(&format!(
        "turns: [{{ text: {CANARY:?}, calls: [{{ tool: add, args: {{ a: 1, b: 2, note: {CANARY:?} }} }}] }}, {{ text: done }}]"
    ))
    .system(format!("The key is {CANARY}."))
    .provider_options(json!({"mcp_servers": [{"authorization_token": "another-canary-77"}]}).as_object().unwrap().clone())
    .build();
    let conversation = conversations.create();
    let prompt = format!("{CANARY} {} another-canary-77", "long \u{1F980}\"".repeat(300_000));
    let outcome = conversation.run(&agent, prompt.clone()).persist_to(&runs).finish().await;
    assert_eq!((outcome.text(), outcome.record.notices.len()), ("done", 0), "{:?}", outcome.record.notices);
    let stored = conversations.open(conversation.id()).await.unwrap();
    assert_eq!(stored.turns()[0], Turn::user(prompt.replace(CANARY, "[secret]")));
    let mut looked = 0;
    for (name, _) in store.list("", None, 100).await.unwrap() {
        let document = store.load(&name).await.unwrap();
        let mut texts = vec![document.value.to_string()];
        for change in store.log(&name, 0, 1_000).await.unwrap() {
            texts.push(serde_json::to_string(&change).unwrap());
        }
        for text in texts {
            assert!(!text.contains("canary-\\\\") && !text.contains("55a1"), "{name}");
            assert!(!name.starts_with("runs/") || !text.contains("another-canary-77"), "{name}");
            looked += 1;
        }
    }
    assert!(looked > 8, "{looked}");
}

#[tokio::test]
async fn a_stored_run_can_be_listed_and_replayed() {
    let store = store();
    let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>);
    let conversations = Conversations::new(store);
    let conversation = conversations.create();
    let scripted = agent(ADDS).system("Be brief.").build();
    // Runs of one millisecond have no order.
    let id = |last: char| format!("{}{last}", "0".repeat(25)).parse().unwrap();
    let outcome = conversation.run(&scripted, "Add.").with_id(id('1')).persist_to(&runs).finish().await;
    let second = conversation.run(&scripted, "Thanks.").with_id(id('2')).persist_to(&runs).finish().await;

    let listed = runs.list(None, 9).await.unwrap();
    assert_eq!(listed.iter().map(|run| run.id).collect::<Vec<_>>(), [second.record.id, outcome.record.id]);
    let summary = &listed[1];
    assert_eq!((summary.title.as_str(), summary.stop_reason.as_deref()), ("Add.", Some("end_turn")));
    assert_eq!((summary.success, summary.iterations, summary.tool_calls, summary.exchanges), (true, 2, 1, 2));
    assert_eq!(summary.conversation, Some(conversation.id()));
    assert!(runs.list(Some(ScopeId::new()), 9).await.unwrap().is_empty());
    let stored = runs.load(outcome.record.id).await.unwrap();
    assert_eq!(stored.record, Some(serde_json::to_value(&*outcome.record).unwrap()));
    let stats = runs.stats(Timestamp::from_micros(0)).await.unwrap();
    assert_eq!((stats.runs, stats.succeeded, stats.unknown_costs, stats.usage.input_tokens), (2, 2, 0, 300));
    assert_eq!(stats.models["script/test"].tool_calls, 1);
    assert_eq!(runs.stats(Timestamp::from_micros(u64::MAX)).await.unwrap().runs, 0);

    let replay = async |system: &str| {
        let (count, model) = export(&runs, outcome.record.id).await.unwrap();
        assert_eq!(count, 2);
        Agent::builder(model, toolbox()).system(system).build().run("Add.").finish().await
    };
    let again = replay("Be brief.").await;
    assert_eq!((again.text(), &again.turns), ("It is 5.", &outcome.turns), "{:?}", again.error);
    assert!(replay("Be long.").await.error.unwrap().message.contains("Be brief."));

    assert!(runs.delete(outcome.record.id).await.unwrap());
    assert_eq!(runs.load(outcome.record.id).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_failed_run_is_stored_and_fails_again_in_a_replay() {
    let runs = Runs::new(store());
    let script = "turns: [{ text: I add., calls: [{ tool: add, args: { a: 1, b: 1 } }] }]";
    let outcome = agent(script).build().run("Add.").persist_to(&runs).finish().await;
    assert_eq!(outcome.stop, RunStopReason::ModelError);
    let summary = runs.list(None, 1).await.unwrap().remove(0);
    assert_eq!((summary.success, summary.exchanges, summary.iterations), (false, 2, 2));
    let (_, model) = export(&runs, outcome.record.id).await.unwrap();
    let again = Agent::builder(model, toolbox()).build().run("Add.").finish().await;
    assert_eq!((again.stop, again.error, again.turns), (outcome.stop, outcome.error, outcome.turns));
}

#[tokio::test]
async fn a_run_of_another_agent_is_stored_without_exchanges() {
    let runs = Runs::new(store());
    let record = agent("turns: [{ text: a }]").build().run("x").finish().await.record;
    runs.add(&record, "x of another agent", None).await.unwrap();
    let stored = runs.load(record.id).await.unwrap();
    assert_eq!((stored.summary.title.as_str(), stored.summary.exchanges), ("x of another agent", 0));
    let error = export(&runs, record.id).await.unwrap_err();
    assert_eq!(error.code(), Code::Precondition);
}

#[tokio::test]
async fn a_killed_run_is_stored_up_to_its_last_write() {
    let runs = Runs::new(Arc::new(MemoryStore::new())).with_process("process 7");
    let script = "turns:\n  - calls: [{ tool: add, args: { a: 1, b: 2 } }]\n  - calls: [{ tool: wait, args: { milliseconds: 600000 } }]\n  - text: never\n";
    let agent = crate::agent(script).build();
    let run = agent.run("Go.").persist_to(&runs);
    let id = run.id();
    assert!(tokio::time::timeout(std::time::Duration::from_millis(300), run.finish()).await.is_err());
    let stored = runs.load(id).await.unwrap();
    let summary = &stored.summary;
    assert_eq!((summary.process.as_deref(), summary.stop_reason.as_deref()), (Some("process 7"), None));
    assert_eq!((summary.iterations, summary.tool_calls, summary.exchanges), (2, 1, 2));
    assert_eq!(
        (stored.record, stored.calls.len(), &stored.calls[0]["tool"]),
        (None, 1, &serde_json::json!("add"))
    );
    // A run that ended has no process.
    let agent = crate::agent("turns:\n  - text: done\n").build();
    let run = agent.run("Go.").persist_to(&runs);
    let id = run.id();
    run.finish().await;
    assert_eq!(runs.load(id).await.unwrap().summary.process, None);
}

#[tokio::test]
async fn a_run_is_stored_before_its_first_answer() {
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let agent = Agent::builder(FakeModel::silent(), toolbox()).build();
    let run = agent.run("Are you there?").persist_to(&runs);
    let id = run.id();
    assert!(tokio::time::timeout(std::time::Duration::from_millis(50), run.finish()).await.is_err());
    let summary = runs.load(id).await.unwrap().summary;
    assert_eq!((summary.title.as_str(), summary.exchanges, summary.stop_reason), ("Are you there?", 0, None));
}

#[tokio::test]
async fn the_oldest_runs_are_deleted_beyond_the_maximum() {
    let store = store();
    for number in 0..1_010 {
        let value = json!({});
        let patch = Patch::diff(&json!(null), &value).to_value();
        let write = Write { id: format!("runs/{number:026}"), base: 0, patch, value: Arc::new(value) };
        store.commit(Commit { writes: vec![write], ..Commit::default() }).await.unwrap();
    }
    let record = agent("turns: [{ text: a }]").build().run("x").finish().await.record;
    Runs::new(store.clone()).add(&record, "x", None).await.unwrap();
    let stored = store.list("runs/", None, 2_000).await.unwrap();
    assert_eq!((stored.len(), stored[0].0.as_str()), (1_000, format!("runs/{:026}", 11).as_str()));
    assert_eq!(stored[999].0, format!("runs/{}", record.id));
}
