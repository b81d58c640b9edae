//! Compaction of long conversations.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost_agent::{Agent, AgentBuilder, Compaction, CompactionBy, Conversations, RunStopReason};
use toolpost_llm::{ErrorKind, FunctionModel, ModelError, ModelReply, PromptCaching, Request, Turn};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::support::{bodies, check_pairs, hosted};

/// Is the request for a summary.
fn is_for_summary(request: &Request) -> bool {
    request.system.as_deref().is_some_and(|system| system.contains("Summarize this part"))
}

/// An agent whose model adds for so many rounds, and uses 100 tokens per turn. It rejects longer conversations.
fn adder(rounds: usize, most_turns: usize) -> (AgentBuilder, Arc<Mutex<Vec<Request>>>) {
    let (requests, rounds_made) = (Arc::new(Mutex::new(Vec::new())), Mutex::new(0));
    let seen = Arc::clone(&requests);
    let model = FunctionModel::new("adder", move |request: &Request| {
        seen.lock().unwrap().push(request.clone());
        if is_for_summary(request) {
            return Ok(ModelReply::text("Sums were made.").with_usage(50, 5));
        }
        check_pairs(&request.turns);
        if request.turns.len() > most_turns {
            return Err(ModelError::new(ErrorKind::ContextTooLong, "too long"));
        }
        let tokens = request.turns.len() as u64 * 100;
        let mut made = rounds_made.lock().unwrap();
        *made += 1;
        Ok(if *made > rounds {
            ModelReply::text("Done.").with_usage(tokens, 10)
        } else {
            ModelReply::text("Adding.").and_call("add", json!({ "a": *made, "b": 1 })).with_usage(tokens, 10)
        })
    });
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    (Agent::builder(Arc::new(model), toolbox).system("Be brief."), requests)
}

#[tokio::test]
async fn a_conversation_near_the_context_window_is_compacted() {
    let (builder, requests) = adder(8, 99);
    let agent = builder.compaction(Compaction::default().window(1_000).keep_turns(2));
    let outcome = agent.build().run("Add much.").finish().await;
    assert_eq!((outcome.text(), &outcome.stop), ("Done.", &RunStopReason::EndTurn), "{:?}", outcome.error);
    assert!(
        outcome.record.notices.iter().any(|notice| notice.contains("a summary replaced")),
        "{:?}",
        outcome.record.notices
    );
    let requests = requests.lock().unwrap();
    let summaries = requests.iter().filter(|request| is_for_summary(request)).count();
    assert!(summaries > 0 && outcome.record.tool_calls.len() == 8, "{summaries}");
    for request in requests.iter().filter(|request| !is_for_summary(request)) {
        // 800 tokens are due at 8 turns: an answer and its results come on top.
        assert!(request.turns.len() <= 9, "{}", request.turns.len());
        assert_eq!(
            (request.turns.first(), request.system.as_deref()),
            (Some(&Turn::user("Add much.")), Some("Be brief."))
        );
    }
    let last = requests.last().unwrap();
    let shown = serde_json::to_string(&last.turns).unwrap();
    assert!(shown.contains("a summary of earlier turns") && shown.contains("Sums were made."), "{shown}");
    let read = requests.iter().find(|request| is_for_summary(request)).unwrap();
    // A summary uses no prompt cache.
    assert_eq!(read.settings.prompt_caching, PromptCaching::Off);
    assert_eq!(last.settings.prompt_caching, PromptCaching::Automatic);
    let read = serde_json::to_string(&read.turns).unwrap();
    assert!(read.contains("Assistant called `add`") && read.contains("`add` returned: 2"), "{read}");
    assert_eq!(read.matches("Add much.").count(), 0, "the first prompt stays and is not summed up");
    // What the summaries consumed is counted.
    let plain: u64 = requests
        .iter()
        .filter(|request| !is_for_summary(request))
        .map(|request| request.turns.len() as u64 * 100)
        .sum();
    assert_eq!(outcome.record.usage.input_tokens, plain + 50 * summaries as u64);
}

#[tokio::test]
async fn a_request_that_is_too_long_is_compacted_and_retried_once() {
    let (builder, _) = adder(6, 7);
    let outcome = builder.build().run("Add.").finish().await;
    assert_eq!(outcome.stop, RunStopReason::ContextWindow, "summaries were not requested");
    let (builder, requests) = adder(6, 7);
    let outcome = builder.compaction(Compaction::default().keep_turns(2)).build().run("Add.").finish().await;
    assert_eq!((outcome.text(), outcome.record.tool_calls.len()), ("Done.", 6), "{:?}", outcome.error);
    assert!(requests.lock().unwrap().iter().filter(|request| is_for_summary(request)).count() >= 1);
    // Where nothing can go, the error stays.
    let (builder, _) = adder(6, 2);
    let outcome = builder.compaction(Compaction::default().keep_turns(2)).build().run("Add.").finish().await;
    assert_eq!(
        (&outcome.stop, outcome.error.unwrap().kind),
        (&RunStopReason::ContextWindow, ErrorKind::ContextTooLong)
    );
}

#[tokio::test]
async fn a_failed_summary_is_reported_and_an_expensive_one_ends_the_run() {
    let failing =
        || Arc::new(FunctionModel::new("none", |_: &Request| Ok(ModelReply::text(" ").with_usage(1, 1))));
    let (builder, _) = adder(5, 99);
    let outcome = builder
        .compaction(Compaction::default().window(500).keep_turns(2).model(failing()))
        .build()
        .run("Add.")
        .finish()
        .await;
    assert_eq!(outcome.text(), "Done.");
    assert!(
        outcome.record.notices.iter().any(|notice| notice.contains("empty summary")),
        "{:?}",
        outcome.record.notices
    );
    let (builder, _) = adder(50, 99);
    let outcome = builder
        .max_tokens(1_900)
        .wrap_up(false)
        .compaction(
            Compaction::default()
                .window(600)
                .keep_turns(2)
                .model(Arc::new(FunctionModel::new("expensive", |_: &Request| {
                    Ok(ModelReply::text("short").with_usage(1_000, 1))
                }))),
        )
        .build()
        .run("Add.")
        .finish()
        .await;
    assert_eq!((&outcome.stop, outcome.record.usage.input_tokens), (&RunStopReason::MaxTokens, 1_900));
    check_pairs(&outcome.turns);
}

#[tokio::test]
async fn a_stored_conversation_has_the_summary_and_the_original() {
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let conversation = conversations.create();
    let (builder, _) = adder(3, 99);
    let first = conversation.run(&builder.build(), "Add.").finish().await;
    let (builder, requests) = adder(4, 99);
    let agent = builder.compaction(Compaction::default().window(1_200).keep_turns(2));
    let agent = agent.build();
    let second = conversation.run(&agent, "Add more.").finish().await;
    assert_eq!(second.text(), "Done.");
    assert!(requests.lock().unwrap().iter().any(is_for_summary));
    let again = conversations.open(conversation.id()).await.unwrap();
    assert_eq!((again.turns(), conversation.turns()), (second.turns.clone(), second.turns.clone()));
    assert!(second.turns.len() < first.turns.len() + 10, "{}", second.turns.len());
    assert_eq!(again.summary().turns, second.turns.len());
    // Before the second prompt nothing was left out.
    let fork = conversations.fork(conversation.id(), Some(1)).await.unwrap();
    assert_eq!(fork.turns(), first.turns);

    let compacted = fork.compact(&agent).await.unwrap().unwrap();
    let (turns, usage) = (compacted.turns, compacted.usage);
    assert_eq!((turns, usage.input_tokens), (4, 50));
    assert_eq!(fork.turns().len(), 5);
    check_pairs(&fork.turns());
    assert_eq!(fork.compact(&agent).await.unwrap(), None);
    assert_eq!(conversations.open(fork.id()).await.unwrap().turns(), fork.turns());
    assert_eq!(fork.run(&agent, "And now?").finish().await.stop, RunStopReason::EndTurn);
}

/// The bodies of two questions to a model, the first of which is answered with these items and a call.
async fn asked_with(
    (provider, name): (&str, &str),
    first: Value,
    second: Value,
    compaction: Compaction,
) -> Vec<Value> {
    let server = LoopbackProvider::start(
        [first, second].iter().map(|body| Reply::json(200, body.to_string())).collect(),
    )
    .unwrap();
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    let agent = Agent::builder(hosted(&server, provider, name), toolbox);
    let outcome = agent.compaction(compaction).build().run("Add.").finish().await;
    assert_eq!((outcome.text(), &outcome.stop), ("Done.", &RunStopReason::EndTurn), "{:?}", outcome.error);
    bodies(&server)
}

#[tokio::test]
async fn compaction_by_the_provider_goes_back_unchanged() {
    let message = |content: Value, stop: &str| {
        json!({"type": "message", "id": "m", "role": "assistant", "model": "claude-opus-5-5", "content": content,
            "stop_reason": stop, "usage": {"input_tokens": 10, "output_tokens": 1}})
    };
    let items = json!([
        {"type": "compaction", "content": "The short of it.", "encrypted_content": "x"},
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}},
    ]);
    let done = || message(json!([{"type": "text", "text": "Done."}]), "end_turn");
    for by in [CompactionBy::Provider, CompactionBy::Auto] {
        let bodies = asked_with(
            ("anthropic", "claude-opus-5-5"),
            message(items.clone(), "tool_use"),
            done(),
            Compaction::default().by(by).window(200_000).keep_results(4),
        )
        .await;
        for body in &bodies {
            let trigger = json!({"type": "input_tokens", "value": 160_000});
            assert_eq!(
                body["context_management"]["edits"],
                json!([
                    {"type": "clear_tool_uses_20250919", "trigger": trigger, "keep": {"type": "tool_uses", "value": 4}},
                    {"type": "compact_20260112", "trigger": trigger},
                ])
            );
        }
        assert_eq!(bodies[1]["messages"][1]["content"], items);
        assert_eq!(bodies[1]["messages"][0], bodies[0]["messages"][0], "what was said before stays");
    }

    let response = |output: Value| {
        json!({"id": "r", "object": "response", "status": "completed", "model": "gpt-5.4", "output": output,
            "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}})
    };
    let items = json!([
        {"type": "compaction", "id": "cmp_1", "encrypted_content": "secret"},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add", "arguments": "{\"a\":1,\"b\":2}", "status": "completed"},
    ]);
    let text = json!([{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}]}]);
    let bodies = asked_with(
        ("openai", "gpt-5.4"),
        response(items.clone()),
        response(text),
        Compaction::default().by(CompactionBy::Provider).window(1_000),
    )
    .await;
    for body in &bodies {
        assert_eq!(body["context_management"], json!([{"type": "compaction", "compact_threshold": 800}]));
    }
    assert_eq!(bodies[1]["input"].as_array().unwrap()[1..3], *items.as_array().unwrap());

    // Ours, where a model is not known to have it.
    let bodies = asked_with(
        ("anthropic", "claude-sonnet-4-5"),
        message(
            json!([{"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1, "b": 2}}]),
            "tool_use",
        ),
        done(),
        Compaction::default().by(CompactionBy::Auto),
    )
    .await;
    assert!(bodies.iter().all(|body| body.get("context_management").is_none()), "{bodies:?}");
}

#[tokio::test]
async fn a_provider_without_compaction_ends_the_run_before_its_first_request() {
    let server = LoopbackProvider::start(Vec::new()).unwrap();
    for (provider, name, results, would_do) in [
        ("anthropic", "claude-sonnet-4-5", None, "claude-opus-5-5"),
        ("openai", "gpt-5.4", Some(3), "claude-opus-5-5"),
        ("gemini", "gemini-of-tomorrow", None, "use Anthropic"),
        ("xai", "grok-4.3", None, "openai/gpt-6"),
        ("openai-compatible", "m", None, "use Anthropic"),
    ] {
        let toolbox = Toolbox::builder().build().unwrap();
        let agent = Agent::builder(hosted(&server, provider, name), toolbox);
        let mut compaction = Compaction::default().by(CompactionBy::Provider);
        compaction.keep_results = results;
        let agent = agent.compaction(compaction);
        let outcome = agent.build().run("Add.").finish().await;
        let error = outcome.error.unwrap();
        assert_eq!(
            (&outcome.stop, &error.kind),
            (&RunStopReason::ModelError, &ErrorKind::Unsupported),
            "{error}"
        );
        assert!(error.to_string().contains(would_do), "{provider}: {error}");
    }
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_failed_summary_is_not_retried_and_counts() {
    for says_nothing in [true, false] {
        let asked = Arc::new(Mutex::new(0));
        let count = Arc::clone(&asked);
        let failing = FunctionModel::new("none", move |_: &Request| {
            *count.lock().unwrap() += 1;
            if says_nothing {
                Ok(ModelReply::text(" ").with_usage(7, 1))
            } else {
                Err(ModelError::new(ErrorKind::Protocol, "it is cut off"))
            }
        });
        let (builder, requests) = adder(8, 99);
        let agent = builder
            .pricing(Arc::new(|_, usage| Some(usage.total() as f64)))
            .compaction(Compaction::default().window(500).keep_turns(2).model(Arc::new(failing)))
            .build();
        let outcome = agent.run("Add.").finish().await;
        assert_eq!((outcome.text(), *asked.lock().unwrap()), ("Done.", 1));
        let answers: u64 =
            requests.lock().unwrap().iter().map(|request| request.turns.len() as u64 * 100).sum();
        let record = &outcome.record;
        if says_nothing {
            assert_eq!(record.usage.input_tokens, answers + 7);
            assert_eq!(record.cost_usd, Some(record.usage.total_tokens() as f64));
        } else {
            assert_eq!((record.usage.input_tokens, record.cost_usd), (answers, None));
        }
        let notices = record.notices.iter().filter(|notice| notice.contains("is off for this run"));
        assert_eq!(notices.count(), 1, "{:?}", record.notices);
    }
}

#[tokio::test]
async fn a_summary_comes_at_four_fifths_of_the_window() {
    let (builder, requests) = adder(8, 99);
    builder
        .compaction(Compaction::default().window(1_000).keep_turns(1))
        .build()
        .run("Add much.")
        .finish()
        .await;
    let requests = requests.lock().unwrap();
    let first = requests.iter().position(is_for_summary).unwrap();
    assert_eq!(requests[first - 1].turns.len(), 9);
    assert_eq!(requests[first].settings.max_output_tokens, Some(2048));
}

#[tokio::test]
async fn the_next_summary_reads_the_whole_last_one() {
    let read = Arc::new(Mutex::new(String::new()));
    let seen = Arc::clone(&read);
    let writer = FunctionModel::new("writer", move |request: &Request| {
        *seen.lock().unwrap() = format!("{:?}", request.turns);
        Ok(ModelReply::text(format!("{}the middle of it{}", "x".repeat(5_000), "y".repeat(5_000))))
    });
    let agent = crate::agent("turns: [{ text: a }, { text: b }, { text: c }, { text: d }]")
        .compaction(Compaction::default().keep_turns(1).model(Arc::new(writer)))
        .build();
    let conversation = Conversations::new(Arc::new(MemoryStore::new())).create();
    for prompt in ["One.", "Two.", "Three.", "Four."] {
        conversation.run(&agent, prompt).finish().await;
        if prompt == "Two." {
            conversation.compact(&agent).await.unwrap().unwrap();
        }
    }
    conversation.compact(&agent).await.unwrap().unwrap();
    let read = read.lock().unwrap();
    assert!(read.contains("the middle of it") && read.contains("Three."), "{}", read.len());
}
