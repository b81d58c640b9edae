//! Persistence with failing stores, dropped runs and paused runs.

use std::future::pending;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use toolpost::{
    Approval, Change, Code, Commit, Committed, DocStore, Document, Output, RunId, ToolError, ToolSpec,
    tool_fn,
};
use toolpost_agent::{
    Agent, Compaction, Conversation, Conversations, Pricing, RunOutput, RunState, RunStopReason, Runs,
};
use toolpost_llm::{
    BoxFuture, ErrorKind, FallbackModel, FunctionModel, Model, ModelError, ModelEvent, ModelId, ModelInfo,
    ModelReply, Request, Secret, Turn,
};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::resume::payer;
use crate::support::{FakeModel, check_pairs, reread, results, resume};

/// The failure of a commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// It fails.
    Fails,
    /// It succeeds and reports an error.
    Unconfirmed,
    /// It never comes to an end.
    Hangs,
    /// It is stored, and never comes to an end.
    HangsStored,
}

/// A store whose commits fail from number `at` on, so many times.
struct Flaky {
    store: MemoryStore,
    trouble: Trouble,
    at: usize,
    times: usize,
    commits: AtomicUsize,
}

impl Flaky {
    fn new(trouble: Trouble, at: usize) -> Arc<Self> {
        Self::often(trouble, at, 1)
    }

    fn often(trouble: Trouble, at: usize, times: usize) -> Arc<Self> {
        Arc::new(Self { store: MemoryStore::new(), trouble, at, times, commits: AtomicUsize::new(0) })
    }

    fn had_trouble(&self) -> bool {
        self.commits.load(Ordering::SeqCst) > self.at
    }
}

impl DocStore for Flaky {
    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.store.load(id)
    }

    fn commit(&self, commit: Commit) -> BoxFuture<'_, Result<Committed, ToolError>> {
        Box::pin(async move {
            let number = self.commits.fetch_add(1, Ordering::SeqCst);
            if !(self.at..self.at.saturating_add(self.times)).contains(&number) {
                return self.store.commit(commit).await;
            }
            if matches!(self.trouble, Trouble::Unconfirmed | Trouble::HangsStored) {
                self.store.commit(commit).await?;
            }
            if matches!(self.trouble, Trouble::Hangs | Trouble::HangsStored) {
                pending::<()>().await;
            }
            Err(ToolError::dependency("the disk is away"))
        })
    }

    fn at<'a>(&'a self, id: &'a str, version: u64) -> BoxFuture<'a, Result<Document, ToolError>> {
        self.store.at(id, version)
    }

    fn log<'a>(
        &'a self,
        id: &'a str,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<Change>, ToolError>> {
        self.store.log(id, after, limit)
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<(String, u64)>, ToolError>> {
        self.store.list(prefix, after, limit)
    }
}

const SCRIPT: &str = r#"
turns:
  - text: Let me add.
    calls: [{ tool: add, args: { a: 2, b: 3 } }]
    usage: { input: 100, output: 10 }
  - text: "It is {{ last.structured }}."
    usage: { input: 200, output: 20 }
  - text: You are welcome.
    usage: { input: 300, output: 30 }
"#;

/// A prompt that is stored in two pieces.
fn long_prompt() -> String {
    "Add 2 and 3. ".repeat(45_000)
}

/// Whose prompts there are, and where.
fn prompts(conversation: &Conversation) -> Vec<(RunId, usize)> {
    conversation.exchanges().iter().map(|exchange| (exchange.run, exchange.first_turn)).collect()
}

fn notices(outcome: &RunOutput) -> &[String] {
    &outcome.record.notices
}

#[tokio::test]
async fn a_store_that_fails_once_loses_and_duplicates_nothing() {
    for trouble in [Trouble::Fails, Trouble::Unconfirmed] {
        for at in 0.. {
            let store = Flaky::new(trouble, at);
            let agent = crate::agent(SCRIPT).build();
            let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
            let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>);
            let conversation = conversations.create_in("/srv");
            let first = conversation.run(&agent, long_prompt()).persist_to(&runs).finish().await;
            assert_eq!(first.text(), "It is 5.", "{trouble:?} {at}");
            let had_trouble = store.had_trouble();
            let reported: Vec<&String> =
                notices(&first).iter().filter(|notice| notice.contains("the disk is away")).collect();
            assert!(reported.len() <= usize::from(had_trouble), "{trouble:?} {at}: {reported:?}");
            let lacks_end = reported.iter().any(|notice| notice.contains("the end of the run"));
            if !lacks_end {
                assert!(reported.iter().all(|notice| notice.contains("retried with")), "{reported:?}");
                let stored = conversations.open(conversation.id()).await.unwrap();
                assert_eq!(stored.turns(), first.turns, "{trouble:?} {at}");
                assert_eq!(stored.summary(), conversation.summary());
                let run = runs.load(first.record.id).await.unwrap();
                assert_eq!((run.summary.exchanges, run.summary.success), (2, true), "{trouble:?} {at}");
                assert_eq!(run.record.unwrap()["tool_calls"].as_array().unwrap().len(), 1);
                assert!(!run.summary.is_incomplete);
            }
            // What is missing of the end comes with the next run.
            let second = conversation.run(&agent, "Thanks.").persist_to(&runs).finish().await;
            assert_eq!(second.text(), "You are welcome.");
            let stored = conversations.open(conversation.id()).await.unwrap();
            assert_eq!(stored.turns(), second.turns, "{trouble:?} {at}");
            let summary = stored.summary();
            assert_eq!((summary.turns, summary.prompts, summary.usage.input_tokens), (6, 2, 600));
            assert_eq!(stored.exchanges().iter().map(|one| one.first_turn).collect::<Vec<_>>(), [0, 4]);
            if !had_trouble {
                assert!(at > 6, "{at}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_fails_repeatedly_is_reported_once_and_catches_up() {
    for (times, at_end) in [(3, false), (4, false), (usize::MAX, true)] {
        let store = Flaky::often(Trouble::Fails, 1, times);
        let agent = crate::agent(SCRIPT).build();
        let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
        let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>);
        let conversation = conversations.create();
        let outcome = conversation.run(&agent, long_prompt()).persist_to(&runs).finish().await;
        assert_eq!(outcome.text(), "It is 5.");
        let reported = |part: &str| notices(&outcome).iter().filter(|notice| notice.contains(part)).count();
        assert_eq!(
            (reported("retried with"), reported("the end of the run")),
            (1, usize::from(at_end)),
            "{times}"
        );
        if !at_end {
            assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), outcome.turns);
            assert_eq!(runs.load(outcome.record.id).await.unwrap().summary.exchanges, 2);
        }
        assert_eq!(conversation.turns(), outcome.turns, "the next turn has all of it");
    }
}

#[tokio::test]
async fn a_run_dropped_during_a_write_leaves_a_prefix_that_can_be_continued() {
    for trouble in [Trouble::Hangs, Trouble::HangsStored] {
        for at in 0.. {
            let store = Flaky::new(trouble, at);
            let agent = crate::agent(SCRIPT).build();
            let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
            let conversation = conversations.create();
            let run = conversation.run(&agent, long_prompt()).finish();
            let dropped = tokio::time::timeout(Duration::from_millis(100), Box::pin(run)).await.is_err();
            assert_eq!(dropped, store.had_trouble(), "{trouble:?} {at}");
            if !dropped {
                assert!(at > 4, "{at}");
                break;
            }
            let second = conversation.run(&agent, "Thanks.").finish().await;
            assert_eq!(
                (&second.stop, notices(&second)),
                (&RunStopReason::EndTurn, &[][..]),
                "{trouble:?} {at}"
            );
            check_pairs(&second.turns);
            assert_eq!(second.turns[0], Turn::user(long_prompt()), "what was said is not lost");
            let stored = conversations.open(conversation.id()).await.unwrap();
            assert_eq!(stored.turns(), second.turns, "{trouble:?} {at}");
            assert_eq!((stored.summary().prompts, prompts(&stored)), (2, prompts(&conversation)));
        }
    }
}

#[tokio::test]
async fn an_unfinished_entry_is_invisible_to_other_processes() {
    let store = Flaky::new(Trouble::Hangs, 1);
    let agent = crate::agent(SCRIPT).build();
    let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
    let conversation = conversations.create();
    let run = conversation.run(&agent, long_prompt()).finish();
    assert!(tokio::time::timeout(Duration::from_millis(50), Box::pin(run)).await.is_err());
    assert_eq!(store.list("conversations/", None, 9).await.unwrap().len(), 1);
    let error = conversations.open(conversation.id()).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{}", error.message());
    assert_eq!(conversations.list(None, 9).await.unwrap(), []);
}

#[tokio::test]
async fn a_change_by_another_process_is_a_permanent_conflict() {
    let store = Flaky::new(Trouble::Hangs, 3);
    let agent = crate::agent("turns: [{ text: a }, { text: b }, { text: c }, { text: d }]").build();
    let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
    let conversation = conversations.create();
    conversation.run(&agent, "One.").finish().await;
    let run = conversation.run(&agent, long_prompt()).finish();
    assert!(tokio::time::timeout(Duration::from_millis(50), Box::pin(run)).await.is_err());
    let other = conversations.open(conversation.id()).await.unwrap();
    let stored = other.run(&agent, "Two.").finish().await;
    assert!(notices(&stored).is_empty(), "{:?}", notices(&stored));
    let late = conversation.run(&agent, "Three.").finish().await;
    assert!(
        notices(&late).len() == 1 && notices(&late)[0].contains("no longer stores"),
        "{:?}",
        notices(&late)
    );
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), stored.turns);
}

/// A model of the provider `second`, whose first answer has a container.
fn container_model() -> Arc<FakeModel> {
    let inner = FunctionModel::new("inner", |_: &Request| Ok(ModelReply::text("I am the second.")));
    let (id, count) = (ModelId::new("second", "m"), AtomicUsize::new(0));
    FakeModel::with_info(Some(ModelInfo::unknown(&id)), move |request| {
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        let origin = id.clone();
        let events = inner.stream(request).map(move |event| match event {
            Ok(ModelEvent::Done(mut response)) => {
                response.origin = origin.clone();
                if is_first {
                    response.provider_state.insert("container".to_owned(), json!({ "id": "c2" }));
                }
                Ok(ModelEvent::Done(response))
            }
            other => other,
        });
        events.boxed()
    })
}

/// The container of each request.
fn containers(model: &FakeModel) -> Vec<Option<Value>> {
    let requests = model.requests();
    requests.iter().map(|request| request.provider_state("second", "container").cloned()).collect()
}

/// An agent whose first model may be unavailable, and whose fallback model has containers.
fn with_fallback(away: &Arc<Mutex<bool>>) -> (Agent, Arc<FakeModel>) {
    let away = Arc::clone(away);
    let first = FunctionModel::new("first", move |_: &Request| {
        if *away.lock().unwrap() {
            return Err(ModelError::new(ErrorKind::Overloaded, "away"));
        }
        Ok(ModelReply::text("I am the first.").with_usage(1, 1))
    });
    let boxes = container_model();
    let model = FallbackModel::new(Arc::new(first), vec![Arc::clone(&boxes) as Arc<dyn Model>]);
    let agent = Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap())
        .compaction(Compaction::default().keep_turns(2))
        .build();
    (agent, boxes)
}

#[tokio::test]
async fn a_container_of_a_fallback_model_outlives_a_summary() {
    let away = Arc::new(Mutex::new(true));
    let (agent, boxes) = with_fallback(&away);
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let conversation = conversations.create();
    assert_eq!(conversation.run(&agent, "One.").finish().await.text(), "I am the second.");
    let container = json!({ "container": { "id": "c2" } });
    assert_eq!(json!(conversation.provider_state()), json!({ "second": container }));
    *away.lock().unwrap() = false;
    for prompt in ["Two.", "Three.", "Four."] {
        assert_eq!(conversation.run(&agent, prompt).finish().await.text(), "I am the first.");
    }
    conversation.compact(&agent).await.unwrap().unwrap();
    let seconds = |turns: &[Turn]| {
        turns
            .iter()
            .filter(|turn| matches!(turn, Turn::Assistant(turn) if turn.origin.provider == "second"))
            .count()
    };
    assert_eq!(seconds(&conversation.turns()), 0, "its answer became a part of the summary");
    *away.lock().unwrap() = true;
    let again = conversations.open(conversation.id()).await.unwrap();
    let outcome = again.run(&agent, "Five.").finish().await;
    assert_eq!(outcome.text(), "I am the second.");
    assert_eq!(json!(outcome.provider_state), json!({ "second": container }));
    assert_eq!(containers(&boxes), [None, Some(container["container"].clone())]);
    // A fork and a conversation without a store continue in the container, too.
    let fork = conversations.fork(again.id(), None).await.unwrap();
    fork.run(&agent, "Six.").finish().await;
    let run = agent.run("Seven.").with_provider_state(outcome.provider_state);
    run.finish().await;
    assert_eq!(containers(&boxes)[2..], vec![Some(container["container"].clone()); 2]);
}

#[tokio::test]
async fn a_container_outlives_a_summary_within_its_run() {
    let away = Arc::new(Mutex::new(true));
    let (agent, boxes) = with_fallback(&away);
    // The agent's own model writes no summaries here: the window is that of the run.
    let summed =
        Arc::new(FunctionModel::new("summary", |_: &Request| Ok(ModelReply::text("Much was said."))));
    let first = agent.run("One.").finish().await;
    let mut turns = first.turns;
    for prompt in ["Two.", "Three."] {
        turns.push(Turn::user(prompt));
        turns.push(Turn::Assistant(toolpost_llm::AssistantTurn::new(ModelId::new("x", "y"), Vec::new())));
    }
    turns.push(Turn::user("Four."));
    let limited = Arc::new(Mutex::new(false));
    let too_long = Arc::clone(&limited);
    let first_of = FunctionModel::new("first", move |_: &Request| {
        let error = if std::mem::replace(&mut *too_long.lock().unwrap(), true) {
            ErrorKind::Overloaded
        } else {
            ErrorKind::ContextTooLong
        };
        Err(ModelError::new(error, "no"))
    });
    let model = FallbackModel::new(Arc::new(first_of), vec![Arc::clone(&boxes) as Arc<dyn Model>]);
    let agent = Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap())
        .compaction(Compaction::default().keep_turns(1).model(summed))
        .build();
    let outcome = agent.run_turns(turns).finish().await;
    assert_eq!((outcome.text(), outcome.turns.len()), ("I am the second.", 4), "{:?}", outcome.error);
    assert_eq!(containers(&boxes), [None, Some(json!({ "id": "c2" }))]);
}

#[tokio::test]
async fn the_cost_of_a_summary_counts_for_its_conversation() {
    let says = Arc::new(Mutex::new("Sums were made."));
    let said = Arc::clone(&says);
    let writer = FunctionModel::new("writer", move |_: &Request| {
        Ok(ModelReply::text(*said.lock().unwrap()).with_usage(50, 5))
    });
    let pricing: Pricing = Arc::new(|_, usage| Some(usage.total() as f64));
    let agent =
        crate::agent("turns: [{ text: a, usage: { input: 10, output: 1 } }, { text: b }, { text: c }]")
            .pricing(pricing)
            .compaction(Compaction::default().keep_turns(1).model(Arc::new(writer)))
            .build();
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let conversation = conversations.create();
    for prompt in ["x", "y", "z"] {
        conversation.run(&agent, prompt).finish().await;
    }
    let stored = async || {
        let summary = conversations.open(conversation.id()).await.unwrap().summary();
        assert_eq!(summary, conversation.summary());
        (summary.usage.input_tokens, summary.cost_usd, summary.prompts)
    };
    assert_eq!(stored().await, (10, Some(11.0), 3));
    *says.lock().unwrap() = " ";
    assert_eq!(conversation.compact(&agent).await.unwrap_err().code(), Code::Dependency);
    assert_eq!(stored().await, (60, Some(66.0), 3), "an answer that is not a summary is paid for");
    *says.lock().unwrap() = "Sums were made.";
    let compacted = conversation.compact(&agent).await.unwrap().unwrap();
    assert_eq!((compacted.usage.input_tokens, compacted.cost_usd), (50, Some(55.0)));
    assert_eq!(stored().await, (110, Some(121.0), 3));
}

#[tokio::test]
async fn titles_have_no_secrets() {
    const CANARY: &str = "canary-title-5519";
    let store = Arc::new(MemoryStore::new());
    let conversations =
        Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>).with_secrets(vec![Secret::new(CANARY)]);
    let agent = crate::agent("turns: [{ text: a }, { text: b }]").build();
    // A secret that the length of a title cuts is a secret all the same.
    let cut = format!("{} {CANARY} and more", "x".repeat(70));
    let conversation = conversations.create();
    conversation.run(&agent, cut.as_str()).finish().await;
    let title = async |id| conversations.open(id).await.unwrap().summary().title;
    assert_eq!(title(conversation.id()).await, format!("{} [secret]…", "x".repeat(70)));
    let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>).with_secrets(vec![Secret::new(CANARY)]);
    agent.run(cut).persist_to(&runs).finish().await;
    assert_eq!(runs.list(None, 9).await.unwrap()[0].title, format!("{} [secret]…", "x".repeat(70)));
    for (name, _) in store.list("", None, 99).await.unwrap() {
        let value = store.load(&name).await.unwrap().value.to_string();
        assert!(!value.contains("canary"), "{name}: {value}");
    }
}

/// Resumes a run in its conversation, with all calls approved.
async fn resume_in(conversation: &Conversation, agent: &Agent, state: &RunState) -> RunOutput {
    resume(agent, state).with_conversation(conversation).finish().await
}

#[tokio::test]
async fn a_paused_run_resumes_in_its_conversation_once_and_counts_once() {
    for reopened in [false, true] {
        let (paid, conversations) = (Arc::default(), Conversations::new(Arc::new(MemoryStore::new())));
        let agent = payer(&paid);
        let mut conversation = conversations.create();
        let first = conversation.run(&agent, "Pay.").finish().await;
        assert_eq!(first.stop, RunStopReason::ApprovalNeeded);
        assert_eq!(conversation.summary().usage.input_tokens, 60);
        let before = conversations.open(conversation.id()).await.unwrap();
        if reopened {
            conversation = conversations.open(conversation.id()).await.unwrap();
        }
        let state = reread(&first);
        let second = resume_in(&conversation, &agent, &state).await;
        assert_eq!((&second.stop, notices(&second)), (&RunStopReason::EndTurn, &[][..]));
        let stored = conversations.open(conversation.id()).await.unwrap();
        assert_eq!(stored.turns(), second.turns);
        let summary = stored.summary();
        assert_eq!((summary.usage.input_tokens, summary.prompts), (120, 1), "each answer counts once");
        // The state does not resume again, also not from an older handle.
        for late in [&conversation, &before] {
            let again = resume_in(late, &agent, &state).await;
            let RunStopReason::NotClaimed(why) = &again.stop else { panic!("{:?}", again.stop) };
            assert!(why.contains("the conversation continued after the run"), "{why}");
        }
        assert_eq!(paid.load(Ordering::Relaxed), 2);
        assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), second.turns);
    }
}

#[tokio::test]
async fn a_newer_prompt_supersedes_a_paused_run() {
    for reopened in [false, true] {
        let paid: Arc<AtomicU32> = Arc::default();
        let conversations = Conversations::new(Arc::new(MemoryStore::new()));
        let runs = Runs::new(Arc::new(MemoryStore::new()));
        let agent = payer(&paid);
        let mut conversation = conversations.create();
        let first = conversation.run(&agent, "Pay.").persist_to(&runs).finish().await;
        let waiting = runs.load(first.record.id).await.unwrap().summary;
        let before = conversations.open(conversation.id()).await.unwrap();
        if reopened {
            conversation = conversations.open(conversation.id()).await.unwrap();
        }
        let second = conversation.run(&agent, "No, thanks.").finish().await;
        check_pairs(&second.turns);
        let results = results(&second.turns, 2);
        assert_eq!((results[0].joined_text(), results[0].is_error), ("3".into(), false), "that was made");
        for result in &results[1..] {
            assert!(result.is_error && result.joined_text().contains("did not run: another"), "{result:?}");
        }
        let stored = conversations.open(conversation.id()).await.unwrap();
        assert_eq!((stored.turns(), prompts(&stored)), (second.turns.clone(), prompts(&conversation)));
        assert_eq!(
            stored.exchanges()[1].first_turn,
            3,
            "the prompt, not the repair of the previous exchange"
        );

        let state = reread(&first);
        for late in [&conversation, &before] {
            let run = resume(&agent, &state);
            let again = run.with_conversation(late).persist_to(&runs).allow_second_resume().finish().await;
            let RunStopReason::NotClaimed(why) = &again.stop else { panic!("{:?}", again.stop) };
            assert!(
                why.contains("the conversation continued after the run") && why.contains("new prompt"),
                "{why}"
            );
        }
        assert_eq!(paid.load(Ordering::Relaxed), 0);
        assert_eq!(runs.load(first.record.id).await.unwrap().summary, waiting, "it waits as before");
        assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), second.turns);
        // On its own it can.
        let alone = resume(&agent, &state).persist_to(&runs).finish().await;
        assert_eq!((&alone.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
    }
}

#[tokio::test]
async fn an_older_prompt_is_not_mixed_with_a_resumed_run() {
    let paid = Arc::default();
    let agent = payer(&paid);
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let conversation = conversations.create();
    let first = conversation.run(&agent, "Pay.").finish().await;
    let other = conversations.open(conversation.id()).await.unwrap();
    let prompts = [conversation.run(&agent, "No, thanks."), other.run(&agent, "No, thanks.")];
    let resumed = resume_in(&conversation, &agent, &reread(&first)).await;
    assert_eq!(resumed.stop, RunStopReason::EndTurn);
    for prompt in prompts {
        let late = prompt.finish().await;
        assert!(notices(&late)[0].contains("no longer stores"), "{:?}", notices(&late));
    }
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), resumed.turns);
}

#[tokio::test]
async fn an_amended_record_replaces_the_stored_one() {
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let agent = crate::agent("turns: [{ text: a }]").build();
    let outcome = agent.run("x").persist_to(&runs).finish().await;
    let mut record = toolpost::RunRecord::clone(&outcome.record);
    record.notices.push("a file came later".to_owned());
    runs.amend(&record).await.unwrap();
    let stored = runs.load(record.id).await.unwrap();
    assert_eq!(stored.record, Some(serde_json::to_value(&record).unwrap()));
    assert_eq!((stored.summary.exchanges, stored.summary.success), (1, true));
    record.id = RunId::new();
    assert_eq!(runs.amend(&record).await.unwrap_err().code(), Code::NotFound);
    // The record of a running run cannot be replaced.
    let sleeper =
        crate::agent("turns: [{ calls: [{ tool: wait, args: { milliseconds: 600000 } }] }]").build();
    let run = sleeper.run("x").persist_to(&runs);
    record.id = run.id();
    assert!(tokio::time::timeout(Duration::from_millis(200), Box::pin(run.finish())).await.is_err());
    assert_eq!(runs.amend(&record).await.unwrap_err().code(), Code::Conflict);
}

/// An agent that asks for a payment with its first answer, and whose summaries are short.
fn asking(paid: &Arc<AtomicU32>) -> Agent {
    let model = FunctionModel::new("asking", |request: &Request| {
        let sums_up = request.system.as_deref().is_some_and(|system| system.contains("Summarize this part"));
        Ok(match request.turns.last() {
            _ if sums_up => ModelReply::text("Much was said."),
            Some(Turn::ToolResults(_)) => ModelReply::text("Paid."),
            _ => ModelReply::call("pay", json!({})),
        })
    });
    let paid = Arc::clone(paid);
    let pay = tool_fn(ToolSpec::new("pay", "Pay."), move |_, _| {
        paid.fetch_add(1, Ordering::SeqCst);
        async { Ok(Output::text("paid")) }
    });
    let toolbox = Toolbox::builder().tool(pay).approval("pay", Approval::Ask).build().unwrap();
    Agent::builder(Arc::new(model), toolbox)
        .pause_for_approval(true)
        .compaction(Compaction::default().keep_turns(1))
        .build()
}

#[tokio::test]
async fn a_paused_run_does_not_resume_in_a_compacted_conversation() {
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let conversation = conversations.create();
    let talker = crate::agent("turns: [{ text: a }, { text: b }]").build();
    for prompt in ["One.", "Two."] {
        conversation.run(&talker, prompt).finish().await;
    }
    let paid = Arc::new(AtomicU32::new(0));
    let first = conversation.run(&asking(&paid), "Pay.").finish().await;
    assert_eq!(first.stop, RunStopReason::ApprovalNeeded);
    let elsewhere = conversations.open(conversation.id()).await.unwrap();
    elsewhere.compact(&asking(&paid)).await.unwrap().unwrap();
    let shorter = elsewhere.turns();
    // Of another process too.
    for conversation in [elsewhere, conversations.open(conversation.id()).await.unwrap()] {
        let second = resume_in(&conversation, &asking(&paid), &reread(&first)).await;
        assert!(matches!(&second.stop, RunStopReason::NotClaimed(_)), "{}", second.stop);
    }
    assert_eq!(paid.load(Ordering::SeqCst), 0);
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), shorter);
    // Without the conversation it resumes.
    assert_eq!(resume(&asking(&paid), &reread(&first)).finish().await.text(), "Paid.");
}

#[tokio::test]
async fn a_dropped_summary_has_an_unknown_cost() {
    let pricing: Pricing = Arc::new(|_, usage| Some(usage.total() as f64));
    let agent = crate::agent("turns: [{ text: a }, { text: b }]")
        .pricing(pricing)
        .compaction(Compaction::default().keep_turns(1).model(FakeModel::silent()))
        .build();
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let conversation = conversations.create();
    for prompt in ["One.", "Two."] {
        conversation.run(&agent, prompt).finish().await;
    }
    let cost = async || conversations.open(conversation.id()).await.unwrap().summary().cost_usd;
    assert_eq!(cost().await, Some(0.0));
    let compacted = tokio::time::timeout(Duration::from_millis(20), conversation.compact(&agent)).await;
    assert!(compacted.is_err());
    assert_eq!(conversation.summary().cost_usd, None);
    conversation.flush().await.unwrap();
    assert_eq!(cost().await, None);
}

#[test]
fn concurrent_runs_persist_their_own_turns_or_report_a_conflict() {
    let agent = || {
        let model = FunctionModel::new("echo", |_: &Request| Ok(ModelReply::text("Hm.")));
        Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap()).build()
    };
    let talk = |conversation: &Conversation, prompt: &str| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..40 {
            let outcome = runtime.block_on(conversation.run(&agent(), prompt).finish());
            let is_kept = outcome.record.notices.is_empty();
            let stored = conversation.turns();
            let is_there = stored.get(..outcome.turns.len()) == Some(&outcome.turns[..]);
            assert_eq!(is_kept, is_there, "{:?}", outcome.record.notices);
        }
    };
    for _ in 0..40 {
        let conversations = Conversations::new(Arc::new(MemoryStore::new()));
        let conversation = conversations.create();
        std::thread::scope(|scope| {
            scope.spawn(|| talk(&conversation, "One."));
            scope.spawn(|| talk(&conversation, "Two."));
        });
    }
}

#[tokio::test]
async fn spending_counts_once_after_an_unconfirmed_commit() {
    for at in 0..12 {
        let writer = FunctionModel::new("writer", |_: &Request| Ok(ModelReply::text(" ").with_usage(50, 5)));
        let agent = crate::agent("turns: [{ text: a }, { text: b }]")
            .compaction(Compaction::default().keep_turns(1).model(Arc::new(writer)))
            .build();
        let conversations = Conversations::new(Flaky::new(Trouble::Unconfirmed, at) as Arc<dyn DocStore>);
        let conversation = conversations.create();
        for prompt in ["One.", "Two."] {
            conversation.run(&agent, prompt).finish().await;
        }
        assert!(conversation.compact(&agent).await.is_err());
        conversation.flush().await.unwrap();
        let stored = conversations.open(conversation.id()).await.unwrap().summary();
        assert_eq!((stored.usage.input_tokens, stored.turns), (50, 4), "{at}");
    }
}
