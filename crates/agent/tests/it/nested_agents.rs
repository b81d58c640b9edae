//! Agents as tools, teams, and concurrent runs of one agent.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolpost::{Cancellation, Event, EventSink, Inject, ScopeId, ToolSpec, UsageEvent, Values, tool};
use toolpost_agent::{Agent, Conversations, Handoff, Pricing, RunStopReason, Runs, Team, UsageSink};
use toolpost_llm::{FunctionModel, ItemView, ModelId, ModelReply, Request, ScriptModel, Turn};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::support::{export, scripted};
use crate::{agent, limits};

const ADDER: &str = r#"
turns:
  - text: Adding.
    calls: [{ tool: add, args: { a: 2, b: 3 } }]
    usage: { input: 100, output: 10 }
  - text: "{{ last.text }}"
    usage: { input: 200, output: 20 }
"#;

const BOSS: &str = r#"
turns:
  - calls: [{ tool: adder, args: { prompt: Add 2 and 3. } }]
    usage: { input: 10, output: 1 }
  - text: "The adder says {{ last.text }}."
    usage: { input: 20, output: 2 }
"#;

fn boss(adder: &Agent) -> toolpost_agent::AgentBuilder {
    let toolbox = Toolbox::builder().tool(adder.as_tool(ToolSpec::new("adder", "Adds."))).build().unwrap();
    scripted(BOSS, toolbox)
}

#[tokio::test]
async fn an_agent_tool_runs_as_a_child_of_its_caller() {
    let adder = agent(ADDER).build();
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let outcome = boss(&adder).build().run("Add.").persist_to(&runs).finish().await;
    assert_eq!(outcome.text(), "The adder says 5.", "{:?}", outcome.record);
    let record = &outcome.record;
    assert_eq!((record.usage.input_tokens, record.usage.output_tokens), (330, 33));
    let [child] = record.children.as_slice() else { panic!("not one child: {record:?}") };
    assert_eq!((child.response.as_str(), child.usage.input_tokens, child.iterations), ("5", 300, 2));
    // The child's call lies in the call that made the child, and so on.
    assert_eq!(record.tool_calls.len(), 1);
    assert_eq!(child.tool_calls[0].parent, Some(record.tool_calls[0].id));
    assert_eq!((child.parent, record.parent), (Some(record.id), None));
    assert_eq!(runs.list(None, 9).await.unwrap().iter().map(|run| run.id).collect::<Vec<_>>(), [record.id]);
    assert_eq!(runs.children(record.id).await.unwrap()[0].id, child.id);
    let stored = runs.list_all(9).await.unwrap();
    let of: Vec<_> = stored.iter().map(|run| (run.id, run.parent)).collect();
    assert!(of.len() == 2 && of.contains(&(child.id, Some(record.id))) && of.contains(&(record.id, None)));
    // Its spending is part of that of its caller.
    let stats = runs.stats(toolpost::Timestamp::from_micros(0)).await.unwrap();
    assert_eq!((stats.runs, stats.usage.input_tokens), (1, 330));
}

#[tokio::test]
async fn an_export_includes_child_runs_and_replays() {
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let inner = agent(ADDER).build();
    let script =
        r#"turns: [{ calls: [{ tool: adder, args: { prompt: Add. } }] }, { text: "{{ last.text }}" }]"#;
    let toolbox = Toolbox::builder().tool(inner.as_tool(ToolSpec::new("adder", "Adds."))).build().unwrap();
    let middle = scripted(script, toolbox).build();
    let outcome = boss(&middle).build().run("Add.").persist_to(&runs).finish().await;
    assert_eq!(outcome.text(), "The adder says 5.");
    let (count, model) = export(&runs, outcome.record.id).await.unwrap();
    assert_eq!(count, 6);
    let inner = Agent::builder(Arc::clone(&model), crate::support::toolbox()).build();
    let tool = |agent: &Agent| {
        Toolbox::builder().tool(agent.as_tool(ToolSpec::new("adder", "Adds."))).build().unwrap()
    };
    let middle = Agent::builder(Arc::clone(&model), tool(&inner)).build();
    let again = Agent::builder(Arc::clone(&model), tool(&middle)).build().run("Add.").finish().await;
    assert_eq!(again.text(), "The adder says 5.", "{:?}", again.error);

    // A deleted child run is an error.
    let child = outcome.record.children[0].id;
    assert!(runs.delete(child).await.unwrap());
    let error = export(&runs, outcome.record.id).await.unwrap_err();
    assert_eq!(error.code(), toolpost::Code::Precondition);
    assert!(error.to_string().contains("a child run"), "{error}");
}

#[tokio::test]
async fn an_export_of_a_killed_run_includes_child_runs() {
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    // One has ended and one has not when the process dies, and the latter has called one as well.
    let sleeps = agent("turns: [{ calls: [{ tool: wait, args: { milliseconds: 600000 } }] }]").build();
    let asks = "turns: [{ calls: [{ tool: sleeper, args: { prompt: Sleep. } }] }]";
    let tool = |agent: &Agent, name: &str| {
        Toolbox::builder().tool(agent.as_tool(ToolSpec::new(name, "Does it."))).build().unwrap()
    };
    let middle = scripted(asks, tool(&sleeps, "sleeper")).build();
    let adder = agent(ADDER).build();
    let toolbox = Toolbox::builder()
        .tool(adder.as_tool(ToolSpec::new("adder", "Adds.")))
        .tool(middle.as_tool(ToolSpec::new("middle", "Asks.")))
        .build()
        .unwrap();
    let both = "turns: [{ calls: [{ tool: adder, args: { prompt: Add. } }, { tool: middle, args: { prompt: Go. } }] }]";
    let run = scripted(both, toolbox).build().run("Go.").persist_to(&runs);
    let id = run.id();
    let ended = tokio::time::timeout(std::time::Duration::from_millis(500), Box::pin(run.finish())).await;
    assert!(ended.is_err() && runs.load(id).await.unwrap().record.is_none());
    assert_eq!((runs.list(None, 9).await.unwrap().len(), runs.list_all(9).await.unwrap().len()), (1, 4));
    assert_eq!(runs.children(id).await.unwrap().len(), 2);
    // One of its own, two of the adder, one of the middle agent, and one of the sleeper.
    assert_eq!(export(&runs, id).await.unwrap().0, 5);
}

#[tokio::test]
async fn a_team_is_stored_as_the_runs_of_its_members() {
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let toolbox = Toolbox::builder().tool(Handoff::to("billing", "Moves.")).build().unwrap();
    let first = scripted("turns: [{ calls: [{ tool: transfer_to_billing, args: {} }] }]", toolbox).build();
    let second = agent("turns: [{ text: x }, { text: It is paid. }]").build();
    let team = Team::new("triage", &first).and("billing", &second);
    let outcome = team.run_with(vec![Turn::user("Paid?")], |run| run.persist_to(&runs)).await.unwrap();
    assert_eq!((outcome.text(), outcome.record.children.len()), ("It is paid.", 1));
    assert_eq!(runs.list(None, 9).await.unwrap().len(), 2);
    assert_eq!(export(&runs, outcome.record.id).await.unwrap().0, 2);
}

#[tokio::test]
async fn a_listener_receives_the_events_of_nested_agents_once() {
    let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
    let used: Arc<Mutex<Vec<(u64, Value)>>> = Arc::default();
    let (events, usage) = (Arc::clone(&heard), Arc::clone(&used));
    let events: EventSink = Arc::new(move |event: &Event| events.lock().unwrap().push(event.clone()));
    let usage: UsageSink = Arc::new(move |event: &UsageEvent| {
        let tags = Value::Object(event.metadata.clone());
        usage.lock().unwrap().push((event.usage.input_tokens, tags));
    });
    // One that has a listener of its own, and one that has the same.
    let adder = agent(ADDER).on_event(Arc::clone(&events)).on_usage(Arc::clone(&usage)).build();
    let deaf = agent(ADDER).build();
    for adder in [adder, deaf] {
        heard.lock().unwrap().clear();
        used.lock().unwrap().clear();
        let boss = boss(&adder).on_event(Arc::clone(&events)).on_usage(Arc::clone(&usage)).build();
        let tags = json!({ "payer": "ada" });
        let run = boss.run("Add.").with_usage_metadata(tags.as_object().unwrap().clone());
        let record = run.finish().await.record;
        let started: Vec<_> = heard
            .lock()
            .unwrap()
            .iter()
            .filter_map(|event| match event {
                Event::RunStarted { run, parent, .. } => Some((*run, *parent)),
                _ => None,
            })
            .collect();
        assert_eq!(started, [(record.id, None), (record.children[0].id, Some(record.id))]);
        let finished =
            heard.lock().unwrap().iter().filter(|event| matches!(event, Event::RunFinished { .. })).count();
        assert_eq!(finished, 2);
        let inputs = [10, 100, 200, 20].map(|input| (input, tags.clone()));
        assert_eq!(*used.lock().unwrap(), inputs);
    }
}

#[tokio::test]
async fn calls_of_a_nested_agent_count_for_its_caller() {
    // Two that each would call four times, side by side.
    let adder = |calls: Option<u32>| {
        let model = FunctionModel::new("adder", |request: &Request| {
            let number = request.tool_results().count();
            let is_over = request.tool_results().any(|result| result.is_error) || number == 4;
            Ok(if is_over {
                ModelReply::text("over")
            } else {
                ModelReply::call("add", json!({ "a": number, "b": 1 }))
            })
        });
        let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
        Agent::builder(Arc::new(model), toolbox).limits(limits(|limits| limits.tool_calls = calls)).build()
    };
    let boss = |adder: &Agent, calls: Option<u32>| {
        let script = r"turns: [{ calls: [{ tool: adder, args: { prompt: a } }, { tool: adder, args: { prompt: b } }] }, { text: done }, { text: sum }]";
        let toolbox =
            Toolbox::builder().tool(adder.as_tool(ToolSpec::new("adder", "Adds."))).build().unwrap();
        scripted(script, toolbox).limits(limits(|limits| limits.tool_calls = calls)).build()
    };
    let calls = |record: &toolpost::RunRecord| -> usize {
        record.tool_calls.len() + record.children.iter().map(|child| child.tool_calls.len()).sum::<usize>()
    };
    for (own, callers, expected) in
        [(None, None, 10), (None, Some(7), 7), (Some(1), Some(7), 4), (None, Some(2), 2)]
    {
        let outcome = boss(&adder(own), callers).run("Add.").finish().await;
        assert_eq!(calls(&outcome.record), expected, "{own:?} {callers:?}");
        let stopped =
            outcome.record.children.iter().filter(|child| child.stop_reason == "max_tool_calls").count();
        assert_eq!(stopped > 0, expected < 10, "{own:?} {callers:?}");
    }
}

#[tokio::test]
async fn parallel_agents_share_the_limit_of_cost() {
    let dollar: Pricing =
        Arc::new(|_: &ModelId, usage: &toolpost_llm::TokenUsage| Some(usage.output as f64 * 0.1));
    let spender = |priced: bool| {
        let model = FunctionModel::new("spender", |request: &Request| {
            let number = request.tool_results().count();
            Ok(ModelReply::call("add", json!({ "a": number, "b": 1 })).with_usage(1, 1))
        });
        let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
        let builder = Agent::builder(Arc::new(model), toolbox);
        if priced { builder.pricing(Arc::clone(&dollar)).build() } else { builder.build() }
    };
    let run = async |spender: &Agent| {
        let script = r"turns: [{ calls: [{ tool: s, args: { prompt: a } }, { tool: s, args: { prompt: b } }, { tool: s, args: { prompt: c } }], usage: { input: 1, output: 1 } }, { text: done }]";
        let toolbox =
            Toolbox::builder().tool(spender.as_tool(ToolSpec::new("s", "Spends."))).build().unwrap();
        let boss = scripted(script, toolbox).pricing(Arc::clone(&dollar)).max_cost_usd(1.0).wrap_up(false);
        boss.build().run("Spend.").finish().await
    };
    let outcome = run(&spender(true)).await;
    assert_eq!(outcome.stop, RunStopReason::MaxCost);
    // Beyond it by at most one answer of each of the three.
    let cost = outcome.record.cost_usd.unwrap();
    assert!((1.0..1.31).contains(&cost), "{cost}");
    assert!(outcome.record.children.iter().all(|child| child.stop_reason == "max_cost"));
    // An agent with an unknown price makes no request.
    let outcome = run(&spender(false)).await;
    assert!(
        outcome
            .record
            .children
            .iter()
            .all(|child| child.iterations == 0 && child.stop_reason == "unknown_cost")
    );
    assert_eq!(outcome.record.children.len(), 3);
}

#[tokio::test]
async fn spending_of_a_nested_agent_counts_for_its_caller() {
    let adder = agent(ADDER).build();
    let outcome = boss(&adder).max_tokens(115).wrap_up(false);
    let outcome = outcome.build().run("Add.").finish().await;
    assert_eq!(outcome.stop, RunStopReason::MaxTokens);
    let child = &outcome.record.children[0];
    // It was stopped after its first answer, in which it came to its caller's limit.
    assert_eq!((child.stop_reason.as_str(), child.iterations, child.success), ("max_tokens", 1, false));
    assert_eq!(outcome.record.usage.total_tokens(), 121);
    let shown = serde_json::to_string(&outcome.turns).unwrap();
    assert!(shown.contains("the agent stopped (max_tokens)"), "{shown}");
}

#[tokio::test]
async fn nesting_of_agents_is_limited_and_cancelled_with_the_caller() {
    // One that would call itself for ever, if it could.
    let mut inner = agent("turns: [{ text: at the bottom }]").build();
    for _ in 0..12 {
        let script =
            r#"turns: [{ calls: [{ tool: deeper, args: { prompt: x } }] }, { text: "{{ last.text }}" }]"#;
        let toolbox =
            Toolbox::builder().tool(inner.as_tool(ToolSpec::new("deeper", "Goes."))).build().unwrap();
        inner = scripted(script, toolbox).build();
    }
    let outcome = inner.run("x").finish().await;
    assert!(outcome.text().contains('8'), "{}", outcome.text());
    assert!(!outcome.text().contains("bottom"));

    let waiting =
        agent("turns: [{ calls: [{ tool: wait, args: { milliseconds: 60000 } }] }, { text: done }]").build();
    let script = "turns: [{ calls: [{ tool: waiter, args: { prompt: Wait. } }] }, { text: over }]";
    let toolbox =
        Toolbox::builder().tool(waiting.as_tool(ToolSpec::new("waiter", "Waits."))).build().unwrap();
    let cancellation = Cancellation::new();
    let stop = cancellation.clone();
    // The second run is the nested one.
    let started = AtomicU32::new(0);
    let cancelling = scripted(script, toolbox.clone()).on_event(Arc::new(move |event: &Event| {
        if matches!(event, Event::RunStarted { .. }) && started.fetch_add(1, Ordering::Relaxed) == 1 {
            stop.cancel();
        }
    }));
    let outcome = cancelling.build().run("x").with_cancellation(cancellation).finish().await;
    assert_eq!(outcome.stop, RunStopReason::Cancelled);
    let hurried = scripted(script, toolbox).max_time(Duration::from_millis(100)).wrap_up(false);
    assert_eq!(hurried.build().run("x").finish().await.stop, RunStopReason::MaxTime);
}

/// Name the caller.
#[tool]
async fn who(name: Inject<String>) -> String {
    name.to_string()
}

#[tokio::test]
async fn nested_agents_inherit_injected_values() {
    let toolbox = Toolbox::builder().tool(who).build().unwrap();
    let asker =
        scripted(r#"turns: [{ calls: [{ tool: who, args: {} }] }, { text: "{{ last.text }}" }]"#, toolbox)
            .build();
    let mut values = Values::default();
    values.provide("ada".to_owned());
    let spec = ToolSpec::new("adder", "Asks.").input(json!({
        "type": "object", "properties": { "question": { "type": "string" }, "prompt": { "type": "string" } },
    }));
    let toolbox = Toolbox::builder().tool(asker.as_tool(spec)).build().unwrap();
    let outcome = scripted(BOSS, toolbox).build().run("x").with_values(values).finish().await;
    assert_eq!(outcome.text(), "The adder says ada.");
}

#[tokio::test]
async fn a_handoff_moves_the_conversation_and_is_recorded() {
    let of = |script: &str, to: &str| {
        let toolbox = Toolbox::builder().tool(Handoff::to(to, "Moves.")).build().unwrap();
        scripted(script, toolbox).system(format!("You hand over to {to}.")).build()
    };
    // A script counts the answers of all members.
    let first = of(
        "turns: [{ text: Moving., calls: [{ tool: transfer_to_billing, args: {} }], usage: { input: 5, output: 1 } }]",
        "billing",
    );
    let second = of("turns: [{ text: x }, { text: It is paid., usage: { input: 7, output: 2 } }]", "triage");
    let team = Team::new("triage", &first).and("billing", &second);
    let outcome = team.run("Is it paid?").await.unwrap();
    assert_eq!(
        (outcome.text(), &outcome.stop),
        ("It is paid.", &RunStopReason::EndTurn),
        "{:?}",
        outcome.record
    );
    assert_eq!(outcome.record.notices, ["the conversation moved from `triage` to `billing`"]);
    assert_eq!((outcome.record.usage.input_tokens, outcome.record.usage.output_tokens), (12, 3));
    assert_eq!(outcome.record.children[0].stop_reason, "handoff");
    assert!(matches!(
        outcome.turns.as_slice(),
        [Turn::User(_), Turn::Assistant(_), Turn::ToolResults(_), Turn::Assistant(_)]
    ));

    // Two that only ever give it to each other.
    let never = |to: &'static str| {
        let model = FunctionModel::new(to, move |request: &Request| {
            Ok(match request.tool_results().last() {
                Some(result) if result.is_error => ModelReply::text("I must."),
                _ => ModelReply::call(format!("transfer_to_{to}"), json!({})),
            })
        });
        let toolbox = Toolbox::builder().tool(Handoff::to(to, "Moves.")).build().unwrap();
        Agent::builder(Arc::new(model), toolbox).build()
    };
    let outcome = Team::new("a", &never("b")).and("b", &never("a")).max_handoffs(3).run("x").await.unwrap();
    assert_eq!((outcome.text(), outcome.record.children.len()), ("I must.", 3));
    // Outside of a team, to no agent.
    let alone = never("b").run("x").finish().await;
    assert_eq!((alone.text(), &alone.stop), ("I must.", &RunStopReason::EndTurn));
    let declined = Team::new("a", &never("zoe")).run("x").await.unwrap();
    assert_eq!((declined.text(), declined.record.children.len()), ("I must.", 0));
    // What all spend together is limited.
    let poor = team.clone().max_tokens(6).run("Is it paid?").await.unwrap_err();
    assert_eq!(*poor.stop(), RunStopReason::MaxTokens);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_runs_of_one_agent_do_not_mix() {
    let model = FunctionModel::new("sums", |request: &Request| {
        let Some(Turn::User(parts)) = request.turns.first() else { return Ok(ModelReply::text("?")) };
        let number: i64 = match parts.as_slice() {
            [toolpost_llm::Part::Text(text)] => text.parse().unwrap(),
            _ => 0,
        };
        Ok(match request.tool_results().last() {
            Some(result) if request.turns.len() > 10 => {
                ModelReply::text(result.joined_text()).with_usage(1, 1)
            }
            Some(result) => ModelReply::call(
                "add",
                json!({ "a": result.joined_text().parse::<i64>().unwrap(), "b": number }),
            )
            .with_usage(1, 1),
            None => ModelReply::call("add", json!({ "a": 0, "b": number })).with_usage(1, 1),
        })
    });
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    let agent = Agent::builder(Arc::new(model), toolbox).build();
    let runs = (1..=100_i64).map(|number| {
        let agent = agent.clone();
        tokio::spawn(async move { (number, agent.run(number.to_string()).finish().await) })
    });
    for run in runs.collect::<Vec<_>>() {
        let (number, outcome) = run.await.unwrap();
        assert_eq!(outcome.text(), (number * 5).to_string());
        assert_eq!((outcome.record.usage.input_tokens, outcome.record.tool_calls.len()), (6, 5));
        let calls = outcome.turns.iter().flat_map(|turn| match turn {
            Turn::Assistant(turn) => turn.items.as_slice(),
            _ => &[],
        });
        assert_eq!(calls.filter(|item| matches!(item.view(), ItemView::ToolCall { .. })).count(), 5);
    }
}

#[tokio::test]
async fn a_call_outside_of_runs_is_stored_as_a_run_with_its_usage() {
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let tool = |agent: &Agent, runs: &Runs| {
        let tool = agent.as_tool(ToolSpec::new("adder", "Adds.")).persist_to(runs);
        Toolbox::builder().tool(tool).build().unwrap()
    };
    let call = || toolpost::Call::new("adder", json!({ "prompt": "Add." }));
    let reply = tool(&agent(ADDER).build(), &runs).call(call()).await;
    assert_eq!(reply.result.unwrap().to_text(), "5");
    assert_eq!(reply.record.usage.as_ref().map(|usage| usage.input_tokens), Some(300));
    assert_eq!(runs.list(None, 9).await.unwrap()[0].usage.input_tokens, 300);
    // What went wrong names the run.
    let limited = agent(ADDER).max_iterations(1).wrap_up(false).build();
    let error = tool(&limited, &runs).call(call()).await.result.unwrap_err();
    assert_eq!(error.code(), toolpost::Code::Limit);
    let id = runs.find(error.context()["run"].as_str().unwrap()).await.unwrap();
    assert_eq!(runs.load(id).await.unwrap().summary.stop_reason.as_deref(), Some("max_iterations"));
    // A nested run is stored with its caller and counts once.
    let outer = Runs::new(Arc::new(MemoryStore::new()));
    let boss = scripted(BOSS, tool(&agent(ADDER).build(), &runs)).build();
    let outcome = boss.run("Add.").persist_to(&outer).finish().await;
    assert_eq!(outcome.record.usage.input_tokens, 330);
    assert_eq!((runs.list_all(9).await.unwrap().len(), outer.list_all(9).await.unwrap().len()), (2, 2));
}

/// Hang.
#[tool]
async fn hang() {
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_second_call_with_its_idempotency_key_takes_up_an_interrupted_agent() {
    let conversations = Conversations::new(Arc::new(MemoryStore::new()));
    let toolbox = || {
        let script = "turns: [{ calls: [{ tool: hang, args: {} }] }, { text: done }]";
        let inner = scripted(script, Toolbox::builder().tool(hang).build().unwrap()).build();
        let tool = inner.as_tool(ToolSpec::new("worker", "Works.")).conversations(&conversations);
        Toolbox::builder().tool(tool).build().unwrap()
    };
    let hangs = async |key: &str| {
        let call = toolpost::Call::new("worker", json!({ "prompt": "Work." })).with_idempotency_key(key);
        tokio::time::timeout(Duration::from_millis(500), toolbox().call(call)).await
    };
    assert!(hangs("run/step").await.is_err());
    assert_eq!(hangs("run/step").await.unwrap().result.unwrap().to_text(), "done");
    let kept = conversations.open(ScopeId::of_key("worker/run/step")).await.unwrap();
    let turns = kept.turns();
    assert!(
        matches!(turns.as_slice(), [_, Turn::Assistant(_), Turn::ToolResults(results), Turn::Assistant(_)]
            if format!("{results:?}").contains("the tool may have run")),
        "{turns:?}"
    );
    // Another key begins anew.
    assert!(hangs("run/other").await.is_err());
    assert_eq!(conversations.list(None, 9).await.unwrap().len(), 2);
}

#[tokio::test]
async fn an_agent_with_an_answer_schema_returns_the_value() {
    let model = ScriptModel::parse("test", "turns: [{ text: 'Here: {\"sum\": 5}' }]").unwrap();
    let schema = json!({ "type": "object", "required": ["sum"] });
    let adder =
        Agent::builder(Arc::new(model), Toolbox::builder().build().unwrap()).answer_schema(schema).build();
    let toolbox = Toolbox::builder().tool(adder.as_tool(ToolSpec::new("adder", "Adds."))).build().unwrap();
    let reply = toolbox.call(toolpost::Call::new("adder", json!({ "prompt": "Add." }))).await;
    assert_eq!(reply.result.unwrap().structured, Some(json!({ "sum": 5 })));
}
