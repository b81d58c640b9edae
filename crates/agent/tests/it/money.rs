//! Cost and usage of runs, and their limits.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use serde_json::json;
use toolpost::{Ctx, Event, SampleRequest, UsageEvent, tool};
use toolpost_agent::{Agent, AgentBuilder, Pricing, RunStopReason};
use toolpost_llm::{ErrorKind, Model, ModelEvent, ScriptModel, TokenUsage, Turn};
use toolpost_toolbox::Toolbox;

use crate::support::FakeModel;

/// Ask the model.
#[tool]
async fn curious(ctx: &Ctx) -> Result<String, toolpost::ToolError> {
    Ok(ctx.sample(SampleRequest::new("Say hi.")).await?.content)
}

/// One dollar for each thousand tokens.
fn pricing() -> Pricing {
    Arc::new(|_, usage| Some(usage.total() as f64 / 1000.0))
}

fn agent(script: &str) -> AgentBuilder {
    let toolbox = Toolbox::builder().tool(crate::add).tool(curious).build().unwrap();
    Agent::builder(Arc::new(ScriptModel::parse("test", script).unwrap()), toolbox).pricing(pricing())
}

/// Calls for ever, a hundred tokens each; sums up in between.
fn endless() -> String {
    let turns = (0..40).map(|n| {
        format!("  - text: step {n}\n    calls: [{{ tool: add, args: {{ a: {n}, b: 2 }} }}]\n    usage: {{ input: 60, output: 40 }}\n")
    });
    format!("turns:\n{}", turns.collect::<String>())
}

#[tokio::test]
async fn a_limit_of_cost_is_exceeded_by_one_answer_and_the_summary() {
    let outcome = agent(&endless()).max_cost_usd(0.25).build().run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.iterations), (&RunStopReason::MaxCost, 3));
    // Three answers, the last of which reached the limit, and the one that sums up.
    assert!((outcome.record.cost_usd.unwrap() - 0.4).abs() < 1e-9, "{:?}", outcome.record.cost_usd);
    assert!(outcome.record.wrapped_up && !outcome.record.success);
    assert_eq!((outcome.text(), outcome.record.tool_calls.len()), ("step 3", 2));
    let off = |limits: &mut toolpost_agent::RunLimits| {
        limits.cost_usd = Some(0.25);
        limits.wrap_up = false;
    };
    let outcome = agent(&endless()).limits(crate::limits(off)).build().run("Go.").finish().await;
    assert!((outcome.record.cost_usd.unwrap() - 0.3).abs() < 1e-9 && !outcome.record.wrapped_up);
}

#[tokio::test]
async fn a_limit_of_cost_needs_a_price() {
    let free: Pricing = Arc::new(|_, _| None);
    let outcome = agent(&endless()).pricing(free.clone()).max_cost_usd(1.0).build().run("Go.").finish().await;
    assert_eq!(
        (&outcome.stop, outcome.record.iterations),
        (&RunStopReason::UnknownCost, 0),
        "nothing was asked"
    );
    assert_eq!(outcome.error.as_ref().unwrap().kind, ErrorKind::Configuration);
    assert!(outcome.error.unwrap().to_string().contains("limit in US dollars"));
    // A model that answers in another's place may have none.
    let fickle: Pricing = Arc::new(|_, usage| (usage.total() == 0).then_some(0.0));
    let outcome = agent(&endless()).pricing(fickle).max_cost_usd(1.0).build().run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.iterations), (&RunStopReason::UnknownCost, 1));
    // Unknown is unknown, never nothing.
    let outcome = agent("turns:\n  - text: hi\n").pricing(free).build().run("Go.").finish().await;
    assert_eq!((outcome.record.cost_usd, outcome.stop), (None, RunStopReason::EndTurn));
    assert!(!serde_json::to_string(&*outcome.record).unwrap().contains("cost_usd"));
}

#[tokio::test]
async fn a_run_at_a_limit_writes_a_summary_without_tools() {
    let outcome = agent(&endless()).max_iterations(2).build().run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.iterations), (&RunStopReason::MaxIterations, 2));
    assert_eq!((outcome.text(), outcome.record.wrapped_up), ("step 2", true));
    // The call that it makes all the same is refused, and the conversation stays whole.
    let [.., Turn::User(_), Turn::Assistant(_), Turn::ToolResults(results)] = outcome.turns.as_slice() else {
        panic!("{:?}", outcome.turns)
    };
    assert!(results[0].is_error && outcome.record.tool_calls.len() == 2);
}

#[tokio::test]
async fn usage_events_have_the_cost_and_the_metadata_of_the_caller() {
    let script = "turns:
  - calls: [{ tool: curious }, { tool: add, args: { a: 1, b: 2 } }]
    usage: { input: 60, output: 40 }
  - text: done
    usage: { input: 600, output: 400 }
";
    let (events, hooked) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::<UsageEvent>::new())));
    let (event_sink, hook) = (Arc::clone(&events), Arc::clone(&hooked));
    let agent = agent(script)
        .on_event(Arc::new(move |event: &Event| {
            if let Event::Usage(_) = event {
                event_sink.lock().unwrap().push(serde_json::to_value(event).unwrap());
            }
        }))
        .on_usage(Arc::new(move |event: &UsageEvent| hook.lock().unwrap().push(event.clone())))
        .build();
    let tags = json!({ "team": "blue" }).as_object().unwrap().clone();
    let outcome = agent.run("Go.").with_usage_metadata(tags).finish().await;
    let events = events.lock().unwrap();
    let brief: Vec<_> = events
        .iter()
        .map(|event| (event["iteration"].clone(), event["tool_calls"].clone(), event["cost_usd"].clone()))
        .collect();
    assert_eq!(
        brief,
        [
            (json!(1), json!(2), json!(0.1)),
            // The completion of the tool.
            (json!(1), json!(0), json!(0.1)),
            (json!(2), json!(0), json!(1.0)),
        ]
    );
    assert!(events.iter().all(|event| event["metadata"]["team"] == "blue" && event["type"] == "usage"));
    assert_eq!(hooked.lock().unwrap().len(), 3);
    // The tool's record has its part, the run's the whole.
    let record = &outcome.record;
    assert_eq!((record.tool_calls[0].cost_usd, record.tool_calls[1].cost_usd), (Some(0.1), None));
    assert_eq!(record.tool_calls[0].usage.as_ref().unwrap().total_tokens(), 100);
    assert!((record.cost_usd.unwrap() - 1.2).abs() < 1e-9);
    assert_eq!(record.usage.total_tokens(), 1200);
}

/// A script whose answers report another usage.
fn counted(script: &str, change: fn(&mut TokenUsage)) -> Arc<FakeModel> {
    let script = ScriptModel::parse("test", script).unwrap();
    FakeModel::new(move |request| {
        let count = move |event| match event {
            Ok(ModelEvent::Done(mut response)) => {
                change(&mut response.usage);
                Ok(ModelEvent::Done(response))
            }
            other => other,
        };
        script.stream(request).map(count).boxed()
    })
}

#[tokio::test]
async fn an_incomplete_usage_ends_a_run_with_a_limit_of_cost() {
    let run = |limit: Option<f64>| {
        let model = counted(&endless(), |usage| usage.incomplete = true);
        let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
        let agent = Agent::builder(model, toolbox).pricing(pricing());
        agent.limits(crate::limits(|limits| (limits.cost_usd, limits.iterations) = (limit, 3))).build()
    };
    let outcome = run(Some(100.0)).run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.iterations), (&RunStopReason::UnknownCost, 1));
    let outcome = run(None).run("Go.").finish().await;
    assert_eq!((outcome.stop, outcome.record.cost_usd), (RunStopReason::MaxIterations, None));
}

#[tokio::test]
async fn cached_and_reasoning_tokens_are_counted_separately() {
    let script = "turns:\n  - calls: [{ tool: add, args: { a: 1, b: 2 } }]\n  - text: done\n";
    let count = |usage: &mut TokenUsage| {
        let (cache_read, cache_write, reasoning) = (300, 4000, Some(5));
        *usage =
            TokenUsage { cache_read, cache_write, reasoning, input: 1, output: 20, ..TokenUsage::default() };
    };
    let model = counted(script, count);
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    let outcome = Agent::builder(model, toolbox).build().run("Go.").finish().await;
    let expected = toolpost::Usage {
        input_tokens: 8602,
        output_tokens: 40,
        cache_read_tokens: 600,
        cache_write_tokens: 8000,
        reasoning_tokens: Some(10),
        ..toolpost::Usage::default()
    };
    assert_eq!(outcome.record.usage, expected);
}
