//! What is kept while the store fails, a run is dropped, or a run waits.

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
    Agent, Compaction, Conversation, Conversations, Decision, Pricing, RunOutput, RunState, RunStopReason,
    Runs,
};
use toolpost_llm::{
    BoxFuture, ErrorKind, FallbackModel, FunctionModel, ItemView, Model, ModelError, ModelEvent, ModelId,
    ModelReply, Request, ResponseStream, Secret, Turn,
};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::waiting::{agent as payer, carried};

/// What goes wrong with one commit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// It fails.
    Fails,
    /// It is stored, and nobody is told.
    IsNotTold,
    /// It never comes to an end.
    Hangs,
    /// It is stored, and never comes to an end.
    HangsStored,
}

/// A store with trouble at a commit, counted from 0, and so many in a row.
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
            if matches!(self.trouble, Trouble::IsNotTold | Trouble::HangsStored) {
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

/// A prompt that is kept in two pieces.
fn long_prompt() -> String {
    "Add 2 and 3. ".repeat(45_000)
}

/// Where the results of calls are missing, or are without their calls.
fn pairs(turns: &[Turn]) -> Result<(), String> {
    let mut open: Vec<String> = Vec::new();
    for turn in turns {
        match turn {
            Turn::Assistant(turn) if open.is_empty() => {
                open.extend(turn.items.iter().filter_map(|item| match item.view() {
                    ItemView::ToolCall { id, .. } => Some(id.clone()),
                    _ => None,
                }));
            }
            Turn::ToolResults(results) => {
                let answered: Vec<String> = results.iter().map(|result| result.call_id.clone()).collect();
                if std::mem::take(&mut open) != answered {
                    return Err(format!("{answered:?}"));
                }
            }
            _ if open.is_empty() => {}
            _ => return Err(format!("{open:?} have no results")),
        }
    }
    Ok(())
}

/// Whose prompts there are, and where.
fn prompts(conversation: &Conversation) -> Vec<(RunId, usize)> {
    conversation.exchanges().iter().map(|exchange| (exchange.run, exchange.first_turn)).collect()
}

fn notices(outcome: &RunOutput) -> &[String] {
    &outcome.record.notices
}

#[tokio::test]
async fn a_store_that_fails_once_loses_nothing_and_doubles_nothing() {
    for trouble in [Trouble::Fails, Trouble::IsNotTold] {
        for at in 0.. {
            let store = Flaky::new(trouble, at);
            let agent = crate::agent(SCRIPT).build();
            let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
            let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>);
            let conversation = conversations.create_in("/srv");
            let first = conversation.run(&agent, long_prompt()).persist_to(&runs).finish().await;
            assert_eq!(first.text(), "It is 5.", "{trouble:?} {at}");
            let had_trouble = store.had_trouble();
            let told: Vec<&String> =
                notices(&first).iter().filter(|notice| notice.contains("the disk is away")).collect();
            assert!(told.len() <= usize::from(had_trouble), "{trouble:?} {at}: {told:?}");
            let lacks_end = told.iter().any(|notice| notice.contains("the end of the run"));
            if !lacks_end {
                assert!(told.iter().all(|notice| notice.contains("retried with")), "{told:?}");
                let kept = conversations.open(conversation.id()).await.unwrap();
                assert_eq!(kept.turns(), first.turns, "{trouble:?} {at}");
                assert_eq!(kept.summary(), conversation.summary());
                let run = runs.load(first.record.id).await.unwrap();
                assert_eq!((run.summary.exchanges, run.summary.success), (2, true), "{trouble:?} {at}");
                assert_eq!(run.record.unwrap()["tool_calls"].as_array().unwrap().len(), 1);
                assert!(!run.summary.is_incomplete);
            }
            // What is missing of the end comes with the next run.
            let second = conversation.run(&agent, "Thanks.").persist_to(&runs).finish().await;
            assert_eq!(second.text(), "You are welcome.");
            let kept = conversations.open(conversation.id()).await.unwrap();
            assert_eq!(kept.turns(), second.turns, "{trouble:?} {at}");
            let summary = kept.summary();
            assert_eq!((summary.turns, summary.prompts, summary.usage.input_tokens), (6, 2, 600));
            assert_eq!(kept.exchanges().iter().map(|one| one.first_turn).collect::<Vec<_>>(), [0, 4]);
            if !had_trouble {
                assert!(at > 6, "{at}");
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_is_away_for_long_is_told_of_once_and_catches_up() {
    for (times, at_end) in [(3, false), (4, false), (usize::MAX, true)] {
        let store = Flaky::often(Trouble::Fails, 1, times);
        let agent = crate::agent(SCRIPT).build();
        let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
        let runs = Runs::new(Arc::clone(&store) as Arc<dyn DocStore>);
        let conversation = conversations.create();
        let outcome = conversation.run(&agent, long_prompt()).persist_to(&runs).finish().await;
        assert_eq!(outcome.text(), "It is 5.");
        let told = |part: &str| notices(&outcome).iter().filter(|notice| notice.contains(part)).count();
        assert_eq!((told("retried with"), told("the end of the run")), (1, usize::from(at_end)), "{times}");
        if !at_end {
            assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), outcome.turns);
            assert_eq!(runs.load(outcome.record.id).await.unwrap().summary.exchanges, 2);
        }
        assert_eq!(conversation.turns(), outcome.turns, "whoever goes on here knows all of it");
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_while_it_is_kept_leaves_a_beginning_that_is_gone_on_with() {
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
            assert_eq!(pairs(&second.turns), Ok(()), "{trouble:?} {at}");
            assert_eq!(second.turns[0], Turn::user(long_prompt()), "what was said is not lost");
            let kept = conversations.open(conversation.id()).await.unwrap();
            assert_eq!(kept.turns(), second.turns, "{trouble:?} {at}");
            assert_eq!((kept.summary().prompts, prompts(&kept)), (2, prompts(&conversation)));
        }
    }
}

#[tokio::test]
async fn what_another_process_sees_of_a_long_entry_that_is_half_written_is_what_was_there_before() {
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
async fn somebody_else_behind_the_beginning_of_an_entry_is_a_conflict_for_ever() {
    let store = Flaky::new(Trouble::Hangs, 3);
    let agent = crate::agent("turns: [{ text: a }, { text: b }, { text: c }, { text: d }]").build();
    let conversations = Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>);
    let conversation = conversations.create();
    conversation.run(&agent, "One.").finish().await;
    let run = conversation.run(&agent, long_prompt()).finish();
    assert!(tokio::time::timeout(Duration::from_millis(50), Box::pin(run)).await.is_err());
    let other = conversations.open(conversation.id()).await.unwrap();
    let kept = other.run(&agent, "Two.").finish().await;
    assert!(notices(&kept).is_empty(), "{:?}", notices(&kept));
    let late = conversation.run(&agent, "Three.").finish().await;
    assert!(
        notices(&late).len() == 1 && notices(&late)[0].contains("no longer stores"),
        "{:?}",
        notices(&late)
    );
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), kept.turns);
}

/// A model of a provider that leaves a container with its first answer, and says in which container each later question
/// goes on.
struct Boxes {
    id: ModelId,
    inner: Arc<dyn Model>,
    asked: AtomicUsize,
    containers: Mutex<Vec<Option<Value>>>,
}

impl std::fmt::Debug for Boxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Boxes")
    }
}

impl Model for Boxes {
    fn id(&self) -> &ModelId {
        &self.id
    }

    fn check(&self, _: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let carried = request.provider_state(&self.id.provider, "container").cloned();
        self.containers.lock().unwrap().push(carried);
        let is_first = self.asked.fetch_add(1, Ordering::SeqCst) == 0;
        let origin = self.id.clone();
        let events = self.inner.stream(request).map(move |event| match event {
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
    }
}

/// An agent whose first model cannot be had at the times at which it is said so, and whose other one has containers.
fn with_fallback(away: &Arc<Mutex<bool>>) -> (Agent, Arc<Boxes>) {
    let away = Arc::clone(away);
    let first = FunctionModel::new("first", move |_: &Request| {
        if *away.lock().unwrap() {
            return Err(ModelError::new(ErrorKind::Overloaded, "away"));
        }
        Ok(ModelReply::text("I am the first.").with_usage(1, 1))
    });
    let boxes = Arc::new(Boxes {
        id: ModelId::new("second", "m"),
        inner: Arc::new(FunctionModel::new("inner", |_: &Request| Ok(ModelReply::text("I am the second.")))),
        asked: AtomicUsize::new(0),
        containers: Mutex::default(),
    });
    let model = FallbackModel::new(Arc::new(first), vec![Arc::clone(&boxes) as Arc<dyn Model>]);
    let agent = Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap())
        .compaction(Compaction::default().keep_turns(2))
        .build();
    (agent, boxes)
}

#[tokio::test]
async fn a_container_of_a_fallback_model_is_its_own_and_outlives_a_summary() {
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
    assert_eq!(*boxes.containers.lock().unwrap(), [None, Some(container["container"].clone())]);
    // A conversation that nobody keeps goes on in it as well, and so does a copy.
    let fork = conversations.fork(again.id(), None).await.unwrap();
    fork.run(&agent, "Six.").finish().await;
    let run = agent.run("Seven.").with_provider_state(outcome.provider_state);
    run.finish().await;
    let containers = boxes.containers.lock().unwrap().clone();
    assert_eq!(containers[2..], vec![Some(container["container"].clone()); 2]);
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
    assert_eq!(*boxes.containers.lock().unwrap(), [None, Some(json!({ "id": "c2" }))]);
}

#[tokio::test]
async fn what_a_summary_costs_counts_for_its_conversation() {
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
    let kept = async || {
        let summary = conversations.open(conversation.id()).await.unwrap().summary();
        assert_eq!(summary, conversation.summary());
        (summary.usage.input_tokens, summary.cost_usd, summary.prompts)
    };
    assert_eq!(kept().await, (10, Some(11.0), 3));
    *says.lock().unwrap() = " ";
    assert_eq!(conversation.compact(&agent).await.unwrap_err().code(), Code::Dependency);
    assert_eq!(kept().await, (60, Some(66.0), 3), "an answer that is no summary is paid for");
    *says.lock().unwrap() = "Sums were made.";
    let compacted = conversation.compact(&agent).await.unwrap().unwrap();
    assert_eq!((compacted.usage.input_tokens, compacted.cost_usd), (50, Some(55.0)));
    assert_eq!(kept().await, (110, Some(121.0), 3));
}

#[tokio::test]
async fn titles_are_kept_without_secrets_and_over_runs() {
    const CANARY: &str = "canary-title-5519";
    let store = Arc::new(MemoryStore::new());
    let conversations =
        Conversations::new(Arc::clone(&store) as Arc<dyn DocStore>).with_secrets(vec![Secret::new(CANARY)]);
    let agent = crate::agent("turns: [{ text: a }, { text: b }]").build();
    // A secret that the length of a title cuts is no less one.
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

/// Resumes a run in its conversation, with everything approved.
async fn resume(agent: &Agent, state: &RunState, conversation: &Conversation) -> RunOutput {
    let decisions: Vec<_> = state.pending_calls().map(|call| (call.id, Decision::Approve)).collect();
    let run = agent.resume(state.clone(), decisions).unwrap();
    run.with_conversation(conversation).finish().await
}

#[tokio::test]
async fn a_run_that_waits_goes_on_in_its_conversation_once_and_is_counted_once() {
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
        let state = carried(&first);
        let second = resume(&agent, &state, &conversation).await;
        assert_eq!((&second.stop, notices(&second)), (&RunStopReason::EndTurn, &[][..]));
        let kept = conversations.open(conversation.id()).await.unwrap();
        assert_eq!(kept.turns(), second.turns);
        let summary = kept.summary();
        assert_eq!((summary.usage.input_tokens, summary.prompts), (120, 1), "each answer counts once");
        // Neither that conversation nor one that was read before lets it go on once more.
        for late in [&conversation, &before] {
            let again = resume(&agent, &state, late).await;
            let RunStopReason::NotClaimed(why) = &again.stop else { panic!("{:?}", again.stop) };
            assert!(why.contains("the conversation continued after the run"), "{why}");
        }
        assert_eq!(paid.load(Ordering::Relaxed), 2);
        assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), second.turns);
    }
}

#[tokio::test]
async fn another_prompt_answers_for_the_calls_that_wait_and_their_run_goes_on_no_more() {
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
        assert_eq!(pairs(&second.turns), Ok(()));
        let Turn::ToolResults(results) = &second.turns[2] else { panic!("{:?}", second.turns) };
        assert_eq!((results[0].joined_text(), results[0].is_error), ("3".into(), false), "that was made");
        for result in &results[1..] {
            assert!(result.is_error && result.joined_text().contains("did not run: another"), "{result:?}");
        }
        let kept = conversations.open(conversation.id()).await.unwrap();
        assert_eq!((kept.turns(), prompts(&kept)), (second.turns.clone(), prompts(&conversation)));
        assert_eq!(kept.exchanges()[1].first_turn, 3, "the prompt, and not what mends the one before");

        let state = carried(&first);
        let decisions: Vec<_> = state.pending_calls().map(|call| (call.id, Decision::Approve)).collect();
        for late in [&conversation, &before] {
            let run = agent.resume(state.clone(), decisions.clone()).unwrap();
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
        let alone = agent.resume(state, decisions).unwrap().persist_to(&runs).finish().await;
        assert_eq!((&alone.stop, paid.load(Ordering::Relaxed)), (&RunStopReason::EndTurn, 2));
    }
}

#[tokio::test]
async fn a_prompt_that_was_begun_before_a_waiting_run_went_on_is_not_mixed_with_it() {
    let paid = Arc::default();
    let agent = payer(&paid);
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let conversation = conversations.create();
    let first = conversation.run(&agent, "Pay.").finish().await;
    let other = conversations.open(conversation.id()).await.unwrap();
    let prompts = [conversation.run(&agent, "No, thanks."), other.run(&agent, "No, thanks.")];
    let resumed = resume(&agent, &carried(&first), &conversation).await;
    assert_eq!(resumed.stop, RunStopReason::EndTurn);
    for prompt in prompts {
        let late = prompt.finish().await;
        assert!(notices(&late)[0].contains("no longer stores"), "{:?}", notices(&late));
    }
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), resumed.turns);
}

#[tokio::test]
async fn a_record_that_is_amended_is_the_one_that_is_kept() {
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
    // Of a run that goes on nothing is put in place.
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
async fn a_conversation_that_was_made_shorter_is_not_gone_on_with_by_a_run_that_waited() {
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
        let state = carried(&first);
        let decisions: Vec<_> = state.pending_calls().map(|call| (call.id, Decision::Approve)).collect();
        let run = asking(&paid).resume(state, decisions).unwrap().with_conversation(&conversation);
        let second = run.finish().await;
        assert!(matches!(&second.stop, RunStopReason::NotClaimed(_)), "{}", second.stop);
    }
    assert_eq!(paid.load(Ordering::SeqCst), 0);
    assert_eq!(conversations.open(conversation.id()).await.unwrap().turns(), shorter);
    // On its own it goes on.
    let state = carried(&first);
    let decisions: Vec<_> = state.pending_calls().map(|call| (call.id, Decision::Approve)).collect();
    assert_eq!(asking(&paid).resume(state, decisions).unwrap().finish().await.text(), "Paid.");
}

#[tokio::test]
async fn a_summary_that_nobody_waits_for_has_an_unknown_cost() {
    let pricing: Pricing = Arc::new(|_, usage| Some(usage.total() as f64));
    let agent = crate::agent("turns: [{ text: a }, { text: b }]")
        .pricing(pricing)
        .compaction(Compaction::default().keep_turns(1).model(Arc::new(Silent(ModelId::new("x", "silent")))))
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

/// A model that never says anything.
#[derive(Debug)]
struct Silent(ModelId);

impl Model for Silent {
    fn id(&self) -> &ModelId {
        &self.0
    }

    fn check(&self, _: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, _: &Request) -> ResponseStream {
        futures_util::stream::once(pending()).boxed()
    }
}

#[test]
fn a_run_goes_on_from_the_turns_that_it_was_given_whatever_comes_meanwhile() {
    let agent = || {
        let model = FunctionModel::new("echo", |_: &Request| Ok(ModelReply::text("Hm.")));
        Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap()).build()
    };
    let talk = |conversation: &Conversation, prompt: &str| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for _ in 0..40 {
            let outcome = runtime.block_on(conversation.run(&agent(), prompt).finish());
            let is_kept = outcome.record.notices.is_empty();
            let kept = conversation.turns();
            let is_there = kept.get(..outcome.turns.len()) == Some(&outcome.turns[..]);
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
async fn what_is_spent_counts_once_also_if_nobody_is_told_that_it_is_kept() {
    for at in 0..12 {
        let writer = FunctionModel::new("writer", |_: &Request| Ok(ModelReply::text(" ").with_usage(50, 5)));
        let agent = crate::agent("turns: [{ text: a }, { text: b }]")
            .compaction(Compaction::default().keep_turns(1).model(Arc::new(writer)))
            .build();
        let conversations = Conversations::new(Flaky::new(Trouble::IsNotTold, at) as Arc<dyn DocStore>);
        let conversation = conversations.create();
        for prompt in ["One.", "Two."] {
            conversation.run(&agent, prompt).finish().await;
        }
        assert!(conversation.compact(&agent).await.is_err());
        conversation.flush().await.unwrap();
        let kept = conversations.open(conversation.id()).await.unwrap().summary();
        assert_eq!((kept.usage.input_tokens, kept.turns), (50, 4), "{at}");
    }
}
