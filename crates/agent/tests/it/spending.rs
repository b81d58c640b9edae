//! Spending beside the answers of a run, and of failed answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use toolpost::{
    Cancellation, Ctx, Event, Evidence, Output, SampleRequest, ToolSpec, UsageEvent, tool, tool_fn,
};
use toolpost_agent::{Agent, AgentBuilder, Compaction, Pricing, RunLimits, RunOutput, RunStopReason};
use toolpost_llm::{
    ErrorKind, FallbackModel, FunctionModel, Model, ModelError, ModelEvent, ModelReply, NetworkStage,
    Request, TimeoutStage, TokenUsage, Turn,
};
use toolpost_toolbox::Toolbox;

use crate::support::FakeModel;

/// One dollar per thousand tokens; unknown for the model `unpriced`.
fn pricing() -> Pricing {
    Arc::new(|model, usage| (model.name != "unpriced").then(|| usage.total() as f64 / 1000.0))
}

/// Requests completions until one fails. Returns their number and the error.
async fn greed(ctx: &Ctx, tokens: u32) -> String {
    for made in 0..1000 {
        let request = SampleRequest { max_tokens: tokens, ..SampleRequest::new("More.") };
        if let Err(error) = ctx.sample(request).await {
            return format!("{made}: {error}");
        }
    }
    "without end".to_owned()
}

/// Ask one after the other.
#[tool]
async fn greedy(ctx: &Ctx, tokens: u32) -> String {
    greed(ctx, tokens).await
}

/// Ask all at once.
#[tool]
async fn crowd(ctx: &Ctx) -> String {
    let asked = (0..20).map(|_| ctx.sample(SampleRequest::new("More.")));
    let made = join_all(asked).await.into_iter().flatten().count();
    made.to_string()
}

/// Ask, and wait for no answer.
#[tool]
async fn impatient(ctx: &Ctx) -> String {
    let asked = ctx.sample(SampleRequest::new("Slowly."));
    let waited = tokio::time::timeout(Duration::from_millis(20), asked).await;
    waited.is_err().to_string()
}

fn toolbox() -> Toolbox {
    Toolbox::builder().tool(crate::add).tool(greedy).tool(crowd).tool(impatient).build().unwrap()
}

/// Whether a tool asks.
fn is_completion(request: &Request) -> bool {
    request.tools.is_empty()
}

/// A model that calls a tool and answers with its result, and the requests for completions. Each answer has 100 tokens.
fn asker(call: &'static str, arguments: serde_json::Value) -> (AgentBuilder, Arc<Mutex<Vec<Request>>>) {
    let completions = Arc::new(Mutex::new(Vec::new()));
    let stored = Arc::clone(&completions);
    let model = FunctionModel::new("asker", move |request: &Request| {
        if is_completion(request) {
            stored.lock().unwrap().push(request.clone());
            return Ok(ModelReply::text("more").with_usage(60, 40));
        }
        Ok(match request.tool_results().last() {
            Some(result) => ModelReply::text(result.joined_text()),
            None => ModelReply::call(call, arguments.clone()),
        }
        .with_usage(60, 40))
    });
    (Agent::builder(Arc::new(model), toolbox()).pricing(pricing()), completions)
}

/// The usage events of a run.
#[derive(Clone, Default)]
struct UsageEvents(Arc<Mutex<Vec<UsageEvent>>>);

impl UsageEvents {
    fn listen(&self, builder: AgentBuilder) -> AgentBuilder {
        let reported = Arc::clone(&self.0);
        builder.on_usage(Arc::new(move |event| reported.lock().unwrap().push(event.clone())))
    }

    /// Checks that the events add up to the record.
    #[track_caller]
    fn check(&self, outcome: &RunOutput) {
        let events = self.0.lock().unwrap();
        let tokens: u64 = events.iter().map(|event| event.usage.total_tokens()).sum();
        let cost: Option<f64> = events.iter().map(|event| event.cost_usd).sum();
        assert_eq!(tokens, outcome.record.usage.total_tokens(), "{events:?}");
        assert_eq!(
            cost.map(|cost| (cost * 1e6).round()),
            outcome.record.cost_usd.map(|cost| (cost * 1e6).round()),
            "{events:?}"
        );
    }
}

#[tokio::test]
async fn completions_for_tools_end_at_the_limits_of_the_run() {
    for (tool, arguments) in [("greedy", json!({ "tokens": 5 })), ("crowd", json!({}))] {
        for limit in [
            |limits: &mut RunLimits| limits.cost_usd = Some(0.35),
            |limits: &mut RunLimits| limits.tokens = Some(350),
        ] {
            let (builder, completions) = asker(tool, arguments.clone());
            let reported = UsageEvents::default();
            let agent = reported.listen(builder).limits(crate::limits(limit)).wrap_up(false).build();
            let outcome = agent.run("Go.").finish().await;
            // The answer, and completions up to the limit, even if all are requested at once.
            assert_eq!((completions.lock().unwrap().len(), outcome.record.iterations), (3, 1), "{tool}");
            assert!(
                matches!(outcome.stop, RunStopReason::MaxCost | RunStopReason::MaxTokens),
                "{}",
                outcome.stop
            );
            assert_eq!(outcome.record.usage.total_tokens(), 400);
            reported.check(&outcome);
            let shown = serde_json::to_string(&outcome.turns).unwrap();
            assert!(tool == "crowd" || shown.contains("3: LIMIT: no completion: the run has"), "{shown}");
        }
    }
}

#[tokio::test]
async fn completions_of_a_call_are_limited_in_number_and_length() {
    for (change, most, tokens) in [
        ((|_| {}) as fn(&mut RunLimits), 32, 4096),
        (|limits| limits.completions = 5, 5, 4096),
        (|limits| limits.completions = 0, 0, 4096),
        (|limits| limits.completion_tokens = 7, 32, 7),
    ] {
        let (builder, completions) = asker("greedy", json!({ "tokens": 1_000_000 }));
        let outcome = builder.limits(crate::limits(change)).build().run("Go.").finish().await;
        let completions = completions.lock().unwrap();
        assert_eq!(completions.len(), most);
        assert!(completions.iter().all(|request| request.settings.max_output_tokens == Some(tokens)));
        assert!(
            outcome.text().starts_with(&format!("{most}: LIMIT: "))
                && outcome.text().contains(&format!("at most {most} completions")),
            "{}",
            outcome.text()
        );
    }
    // A smaller request gets less.
    let (builder, completions) = asker("greedy", json!({ "tokens": 9 }));
    builder.build().run("Go.").finish().await;
    assert_eq!(completions.lock().unwrap()[0].settings.max_output_tokens, Some(9));
}

#[tokio::test]
async fn a_run_at_its_limit_makes_no_request_to_the_finder() {
    let model = FakeModel::script(
        "turns:\n  - calls: [{ tool: greedy, args: { tokens: 5 } }, { tool: find_tools, args: { intent: add } }]\n    usage: { input: 60, output: 40 }\n  - text: more\n    usage: { input: 60, output: 40 }\n  - text: more\n    usage: { input: 60, output: 40 }\n",
    );
    let picks = FakeModel::script("turns:\n  - text: '{\"tool_names\": [\"add\"], \"reasoning\": \"x\"}'\n");
    let agent = Agent::builder(model, toolbox()).dynamic(Arc::clone(&picks)).core_tools(["greedy"]);
    let agent = agent.max_tokens(150).max_parallel_tools(1).wrap_up(false);
    let outcome = agent.build().run("Go.").finish().await;
    assert_eq!((&outcome.stop, outcome.record.tool_calls.len()), (&RunStopReason::MaxTokens, 2));
    assert_eq!(picks.requests().len(), 0);
}

/// The events of an answer.
type Events = Vec<Result<ModelEvent, ModelError>>;

/// A model with these events, which never ends unless the last one is an end.
fn telling(answers: impl Fn(&Request) -> Events + Send + Sync + 'static) -> Arc<FakeModel> {
    FakeModel::new(move |request| {
        let events = answers(request);
        let is_over = matches!(events.last(), Some(Err(_) | Ok(ModelEvent::Done(_))));
        let events = stream::iter(events);
        if is_over { events.boxed() } else { events.chain(stream::pending()).boxed() }
    })
}

fn used(input: u64, output: u64) -> ModelEvent {
    ModelEvent::Usage(TokenUsage { input, output, ..TokenUsage::default() })
}

fn text(text: &str) -> ModelEvent {
    ModelEvent::TextDelta { index: 0, text: text.to_owned() }
}

/// An answer that is not whole, and the error that ends it, if it ends.
fn part(events: impl IntoIterator<Item = ModelEvent>, error: Option<ErrorKind>) -> Events {
    let error = error.map(|kind| Err(ModelError::new(kind, "it failed")));
    events.into_iter().map(Ok).chain(error).collect()
}

/// The events of a whole answer.
async fn whole(said: ModelReply) -> Events {
    let model = FunctionModel::new("whole", move |_: &Request| Ok(said.clone()));
    model.stream(&Request::new("x")).collect().await
}

#[tokio::test]
async fn a_failed_answer_counts_its_reported_usage() {
    let (broken, late) =
        (|| ErrorKind::Network(NetworkStage::Transfer), || ErrorKind::Timeout(TimeoutStage::FirstByte));
    let done = whole(ModelReply::text("hi").with_usage(60, 40)).await;
    let lost = [vec![Ok(ModelEvent::Lost)], done.clone()].concat();
    for (what, events, tokens, cost) in [
        ("half", part([used(30, 0), text("a"), used(30, 5)], Some(broken())), 35, None),
        ("words", part([text("a")], Some(ErrorKind::Overloaded)), 0, None),
        ("nothing heard", part([], Some(late())), 0, None),
        ("no connection", part([], Some(ErrorKind::Network(NetworkStage::Connect))), 0, Some(0.0)),
        ("refused", part([], Some(ErrorKind::Overloaded)), 0, Some(0.0)),
        ("an attempt before", lost, 100, None),
        ("whole", done, 100, Some(0.1)),
    ] {
        let model = telling(move |_| events.clone());
        let reported = UsageEvents::default();
        let agent = reported.listen(Agent::builder(model, toolbox()).pricing(pricing())).build();
        let outcome = agent.run("Go.").finish().await;
        assert_eq!((outcome.record.usage.total_tokens(), outcome.record.cost_usd), (tokens, cost), "{what}");
        reported.check(&outcome);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_answer_counts_its_reported_usage() {
    let slow = || telling(|_| part([used(30, 5), text("Half an ")], None));
    let cancellation = Cancellation::new();
    let stop = cancellation.clone();
    let agent =
        Agent::builder(slow(), toolbox()).pricing(pricing()).on_event(Arc::new(move |event: &Event| {
            if matches!(event, Event::TextDelta { .. }) {
                stop.cancel();
            }
        }));
    let agent = agent.build();
    let outcome = agent.run("Go.").with_cancellation(cancellation.clone()).finish().await;
    assert_eq!((&outcome.stop, outcome.record.usage.total_tokens()), (&RunStopReason::Cancelled, 35));
    assert_eq!(outcome.record.cost_usd, None);
    // A run without a request costs nothing.
    let outcome = agent.run("Go.").with_cancellation(cancellation).finish().await;
    assert_eq!((outcome.record.usage.total_tokens(), outcome.record.cost_usd), (0, Some(0.0)));

    // A run with a limit of cost writes no summary after an unknown cost.
    for (limit, asked) in [(None, 3), (Some(9.0), 2)] {
        let call = whole(ModelReply::call("add", json!({ "a": 1, "b": 2 })).with_usage(60, 40)).await;
        let model = telling(move |request: &Request| {
            if request.tool_choice.is_some() {
                part([], Some(ErrorKind::Overloaded))
            } else if request.tool_results().last().is_some() {
                part([used(30, 5), text("Half an ")], None)
            } else {
                call.clone()
            }
        });
        let agent = Agent::builder(Arc::clone(&model) as Arc<dyn Model>, toolbox()).pricing(pricing());
        let agent = agent.limits(crate::limits(|limits| {
            limits.time = Some(Duration::from_secs(1));
            limits.cost_usd = limit;
        }));
        let outcome = agent.build().run("Go.").finish().await;
        assert_eq!((&outcome.stop, outcome.record.usage.total_tokens()), (&RunStopReason::MaxTime, 135));
        assert_eq!(model.requests().len(), asked, "{limit:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_completion_counts() {
    let asked = |limit: Option<f64>| async move {
        let call = whole(ModelReply::call("impatient", json!({})).with_usage(60, 40)).await;
        let done = whole(ModelReply::text("done").with_usage(60, 40)).await;
        let model = telling(move |request: &Request| {
            if is_completion(request) {
                return part([used(50, 0), text("Well ")], None);
            }
            if request.tool_results().last().is_some() { done.clone() } else { call.clone() }
        });
        let reported = UsageEvents::default();
        let agent = reported.listen(Agent::builder(model, toolbox()).pricing(pricing()));
        let agent = agent.limits(crate::limits(|limits| {
            limits.cost_usd = limit;
            limits.wrap_up = false;
        }));
        let outcome = agent.build().run("Go.").finish().await;
        reported.check(&outcome);
        outcome
    };
    let outcome = asked(None).await;
    assert_eq!((outcome.text(), outcome.record.usage.total_tokens()), ("done", 250));
    assert_eq!(outcome.record.cost_usd, None);
    let call = &outcome.record.tool_calls[0];
    assert_eq!((call.usage.as_ref().unwrap().total_tokens(), call.cost_usd), (50, None));
    let outcome = asked(Some(9.0)).await;
    assert_eq!((&outcome.stop, outcome.record.iterations), (&RunStopReason::UnknownCost, 1));
}

#[tokio::test]
async fn no_model_with_an_unknown_price_gets_a_request() {
    let asked = Arc::new(AtomicUsize::new(0));
    let of = |name: &str| -> Arc<dyn Model> {
        let asked = Arc::clone(&asked);
        Arc::new(FunctionModel::new(name, move |_: &Request| {
            asked.fetch_add(1, Ordering::Relaxed);
            Ok(ModelReply::text("hi").with_usage(1, 1))
        }))
    };
    let agent = |model: Arc<dyn Model>| {
        let builder = Agent::builder(model, toolbox()).pricing(pricing());
        builder.max_cost_usd(1.0)
    };
    let fallback = |first: &str, then: &str| -> Arc<dyn Model> {
        Arc::new(FallbackModel::new(of(first), vec![of("other"), of(then)]))
    };
    for (what, builder) in [
        ("model", agent(of("unpriced"))),
        ("fallback", agent(fallback("priced", "unpriced"))),
        ("summaries", agent(of("priced")).compaction(Compaction::default().model(of("unpriced")))),
        ("finder", agent(of("priced")).dynamic(of("unpriced"))),
        ("finder's fallback", agent(of("priced")).dynamic(fallback("priced", "unpriced"))),
    ] {
        let outcome = builder.build().run("Go.").finish().await;
        assert_eq!(outcome.stop, RunStopReason::UnknownCost, "{what}");
        let error = outcome.error.unwrap().to_string();
        assert!(error.contains("the price of function/unpriced is unknown"), "{error}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    let all = agent(fallback("a", "b")).compaction(Compaction::default().model(of("c"))).dynamic(of("d"));
    assert_eq!(all.build().run("Go.").finish().await.stop, RunStopReason::EndTurn);

    // An agent that is a tool is within the limits of who calls it.
    asked.store(0, Ordering::Relaxed);
    let inner = Agent::builder(of("unpriced"), toolbox()).pricing(pricing()).build();
    let boss = FunctionModel::new("boss", |request: &Request| {
        Ok(match request.tool_results().last() {
            Some(result) => ModelReply::text(result.joined_text()),
            None => ModelReply::call("inner", json!({ "prompt": "x" })),
        })
    });
    let tools = Toolbox::builder().tool(inner.as_tool(ToolSpec::new("inner", "Answers."))).build().unwrap();
    let boss = Agent::builder(Arc::new(boss), tools).pricing(pricing());
    let outcome = boss.max_cost_usd(1.0).build().run("Go.").finish().await;
    assert_eq!(outcome.record.children[0].stop_reason, "unknown_cost");
    assert_eq!((asked.load(Ordering::Relaxed), outcome.record.cost_usd), (0, Some(0.0)));
}

/// A script with endless calls.
fn restless() -> Arc<FakeModel> {
    let turns = (0..9)
        .map(|n| format!("  - text: step {n}\n    calls: [{{ tool: add, args: {{ a: {n}, b: 2 }} }}]\n"));
    FakeModel::script(&format!("turns:\n{}", turns.collect::<String>()))
}

#[tokio::test]
async fn a_summary_at_a_limit_has_a_limit_of_tokens() {
    for (own, expected) in [(None, 1024), (Some(30), 30)] {
        let model = restless();
        let agent = Agent::builder(Arc::clone(&model) as Arc<dyn Model>, toolbox()).max_iterations(1);
        let settings =
            toolpost_llm::ModelSettings { max_output_tokens: own, ..toolpost_llm::ModelSettings::default() };
        let outcome = agent.settings(settings).build().run("Go.").finish().await;
        assert!(outcome.record.wrapped_up);
        let limits =
            model.requests().iter().map(|request| request.settings.max_output_tokens).collect::<Vec<_>>();
        assert_eq!(limits, [own, Some(expected)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_summary_at_a_limit_has_a_time_limit_and_counts() {
    for limit in [None, Some(Duration::from_mins(10))] {
        let call = whole(ModelReply::call("add", json!({ "a": 1, "b": 2 })).with_usage(60, 40)).await;
        let model = telling(move |request: &Request| {
            if request.tool_choice.is_some() {
                part([used(70, 1), text("I was ")], None)
            } else {
                call.clone()
            }
        });
        let reported = UsageEvents::default();
        let agent = reported.listen(Agent::builder(model, toolbox()).pricing(pricing()).max_iterations(1));
        let agent = agent.limits(crate::limits(|limits| (limits.iterations, limits.time) = (1, limit)));
        let begun = tokio::time::Instant::now();
        let outcome = agent.build().run("Go.").finish().await;
        assert_eq!((begun.elapsed().as_secs(), outcome.record.wrapped_up), (30, false));
        assert!(outcome.record.notices.iter().any(|notice| notice.contains("request for a summary failed")));
        assert_eq!((outcome.record.usage.total_tokens(), outcome.record.cost_usd), (171, None));
        reported.check(&outcome);
    }
}

#[tokio::test]
async fn usage_reported_by_a_nested_call_counts() {
    let inner = tool_fn(ToolSpec::new("inner", "Ask a model of its own."), |_, _| async {
        let usage = toolpost::Usage { input_tokens: 500, ..toolpost::Usage::default() };
        let evidence = Evidence { usage: Some(usage), cost_usd: Some(5.0), ..Evidence::default() };
        Ok(Output::text("asked").with_evidence(evidence))
    });
    let outer = tool_fn(ToolSpec::new("outer", "Call, and have a prompt completed."), |_, ctx| async move {
        ctx.call("inner", json!({})).await?;
        ctx.sample(SampleRequest::new("More.")).await?;
        ctx.call("inner", json!({})).await
    });
    let spends = |request: &Request| {
        Ok(match request.turns.last() {
            _ if is_completion(request) => ModelReply::text("more").with_usage(40, 10),
            Some(Turn::ToolResults(_)) => ModelReply::text("done").with_usage(60, 40),
            _ => ModelReply::call("outer", json!({})).with_usage(60, 40),
        })
    };
    let toolbox = Toolbox::builder().tool(inner).tool(outer).build().unwrap();
    let agent = |limit: Option<f64>| {
        let reported = UsageEvents::default();
        let model = Arc::new(FunctionModel::new("m", spends));
        let agent = reported.listen(Agent::builder(model, toolbox.clone()).pricing(pricing()));
        (
            reported,
            agent.limits(crate::limits(|limits| (limits.cost_usd, limits.wrap_up) = (limit, false))).build(),
        )
    };
    let (reported, free) = agent(None);
    let outcome = free.run("Go.").finish().await;
    reported.check(&outcome);
    let cost = outcome.record.cost_usd.unwrap();
    assert_eq!((outcome.text(), outcome.record.usage.total_tokens()), ("done", 1_250));
    assert!((cost - 10.25).abs() < 1e-9, "{cost}");
    assert_eq!(agent(Some(10.0)).1.run("Go.").finish().await.stop, RunStopReason::MaxCost);
}
