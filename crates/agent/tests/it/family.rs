//! Agents as tools of agents, conversations that move, and many runs of one agent.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolpost::{Cancellation, Inject, ToolSpec, Values, tool};
use toolpost_agent::{Agent, Handoff, Run, Runs, StopReason, Team};
use toolpost_llm::{FunctionModel, ItemView, Request, Said, ScriptModel, Turn};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::agent;

fn scripted(script: &str, toolbox: Toolbox) -> toolpost_agent::Builder {
    Agent::builder(Arc::new(ScriptModel::parse("test", script).unwrap()), toolbox)
}

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

fn boss(adder: &Agent) -> toolpost_agent::Builder {
    let toolbox = Toolbox::builder().tool(adder.as_tool(ToolSpec::new("adder", "Adds."))).build().unwrap();
    scripted(BOSS, toolbox)
}

#[tokio::test]
async fn an_agent_is_a_tool_whose_run_is_part_of_its_callers() {
    let adder = agent(ADDER).build();
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let outcome = Run::new(&boss(&adder).build(), "Add.").kept_in(&runs).finish().await;
    assert_eq!(outcome.text(), "The adder says 5.", "{:?}", outcome.record);
    let record = &outcome.record;
    assert_eq!((record.usage.input_tokens, record.usage.output_tokens), (330, 33));
    let [child] = record.children.as_slice() else { panic!("not one child: {record:?}") };
    assert_eq!((child.response.as_str(), child.usage.input_tokens, child.iterations), ("5", 300, 2));
    // The child's call lies in the call that made the child, and so on.
    assert_eq!(record.tool_calls.len(), 1);
    assert_eq!(child.tool_calls[0].parent, Some(record.tool_calls[0].id));
    let kept: Vec<_> = runs.list(None, 9).await.unwrap().iter().map(|run| run.id).collect();
    assert!(kept.len() == 2 && kept.contains(&child.id) && kept.contains(&record.id));
}

#[tokio::test]
async fn what_an_agent_spends_counts_for_who_called_it() {
    let adder = agent(ADDER).build();
    let outcome = boss(&adder).limits(|limits| {
        limits.tokens = Some(115);
        limits.wrap_up = None;
    });
    let outcome = outcome.build().run("Add.").await;
    assert_eq!(outcome.stop, StopReason::MaxTokens);
    let child = &outcome.record.children[0];
    // It was stopped after its first answer, in which it came to its caller's limit.
    assert_eq!((child.stop_reason.as_str(), child.iterations, child.success), ("max_tokens", 1, false));
    assert_eq!(outcome.record.usage.total_tokens(), 121);
    let shown = serde_json::to_string(&outcome.turns).unwrap();
    assert!(shown.contains("the agent stopped (max_tokens)"), "{shown}");
}

#[tokio::test]
async fn agents_in_agents_are_only_so_deep_and_stop_with_their_callers() {
    // One that would call itself for ever, if it could.
    let mut inner = agent("turns: [{ text: at the bottom }]").build();
    for _ in 0..12 {
        let script =
            r#"turns: [{ calls: [{ tool: deeper, args: { prompt: x } }] }, { text: "{{ last.text }}" }]"#;
        let toolbox =
            Toolbox::builder().tool(inner.as_tool(ToolSpec::new("deeper", "Goes."))).build().unwrap();
        inner = scripted(script, toolbox).build();
    }
    let outcome = inner.run("x").await;
    assert!(outcome.text().contains('8'), "{}", outcome.text());
    assert!(!outcome.text().contains("bottom"));

    let waiting =
        agent("turns: [{ calls: [{ tool: wait, args: { milliseconds: 60000 } }] }, { text: done }]").build();
    let script = "turns: [{ calls: [{ tool: waiter, args: { prompt: Wait. } }] }, { text: over }]";
    let toolbox =
        Toolbox::builder().tool(waiting.as_tool(ToolSpec::new("waiter", "Waits."))).build().unwrap();
    let cancellation = Cancellation::new();
    let run =
        Run::new(&scripted(script, toolbox.clone()).build(), "x").with_cancellation(cancellation.clone());
    let begun = std::time::Instant::now();
    let (outcome, ()) = tokio::join!(run.finish(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancellation.cancel();
    });
    assert_eq!(outcome.stop, StopReason::Cancelled);
    let hurried = scripted(script, toolbox).limits(|limits| {
        limits.time = Some(Duration::from_millis(100));
        limits.wrap_up = None;
    });
    assert_eq!(hurried.build().run("x").await.stop, StopReason::MaxTime);
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Say who asks.
#[tool]
async fn who(name: Inject<String>) -> String {
    name.to_string()
}

#[tokio::test]
async fn what_is_injected_into_an_agent_is_injected_into_those_that_it_calls() {
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
    let outcome = Run::new(&scripted(BOSS, toolbox).build(), "x").with_values(values).finish().await;
    assert_eq!(outcome.text(), "The adder says ada.");
}

#[tokio::test]
async fn a_conversation_moves_and_the_record_says_so() {
    let of = |script: &str, to: &str| {
        let toolbox = Toolbox::builder().tool(Handoff::to(to, "Moves.")).build().unwrap();
        scripted(script, toolbox).system(format!("You hand over to {to}.")).build()
    };
    // Turns of one script: what was said before counts for all members.
    let first = of(
        "turns: [{ text: Moving., calls: [{ tool: transfer_to_billing, args: {} }], usage: { input: 5, output: 1 } }]",
        "billing",
    );
    let second = of("turns: [{ text: x }, { text: It is paid., usage: { input: 7, output: 2 } }]", "triage");
    let team = Team::new("triage", &first).and("billing", &second);
    let outcome = team.run("Is it paid?").await;
    assert_eq!(
        (outcome.text(), &outcome.stop),
        ("It is paid.", &StopReason::EndTurn),
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
                Some(result) if result.is_error => Said::text("I must."),
                _ => Said::call(format!("transfer_to_{to}"), json!({})),
            })
        });
        let toolbox = Toolbox::builder().tool(Handoff::to(to, "Moves.")).build().unwrap();
        Agent::builder(Arc::new(model), toolbox).build()
    };
    let outcome = Team::new("a", &never("b")).and("b", &never("a")).max_handoffs(3).run("x").await;
    assert_eq!((outcome.text(), outcome.record.children.len()), ("I must.", 3));
    // Outside of a team, and to nobody.
    let alone = never("b").run("x").await;
    assert_eq!((alone.text(), &alone.stop), ("I must.", &StopReason::EndTurn));
    let nobody = Team::new("a", &never("zoe")).run("x").await;
    assert_eq!((nobody.text(), nobody.record.children.len()), ("I must.", 0));
    // What all spend together is limited.
    let poor = team.clone().limits(|limits| limits.tokens = Some(6)).run("Is it paid?").await;
    assert_eq!(poor.stop, StopReason::MaxTokens);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_runs_of_one_agent_do_not_mix() {
    let model = FunctionModel::new("sums", |request: &Request| {
        let Some(Turn::User(parts)) = request.turns.first() else { return Ok(Said::text("?")) };
        let number: i64 = match parts.as_slice() {
            [toolpost_llm::Part::Text(text)] => text.parse().unwrap(),
            _ => 0,
        };
        Ok(match request.tool_results().last() {
            Some(result) if request.turns.len() > 10 => Said::text(result.joined_text()).using(1, 1),
            Some(result) => {
                Said::call("add", json!({ "a": result.joined_text().parse::<i64>().unwrap(), "b": number }))
                    .using(1, 1)
            }
            None => Said::call("add", json!({ "a": 0, "b": number })).using(1, 1),
        })
    });
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    let agent = Agent::builder(Arc::new(model), toolbox).build();
    let runs = (1..=100_i64).map(|number| {
        let agent = agent.clone();
        tokio::spawn(async move { (number, agent.run(number.to_string()).await) })
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
