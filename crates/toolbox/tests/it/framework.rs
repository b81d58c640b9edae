//! Nested calls, tools created at run time, and injected parameters.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost::data;
use toolpost_core::{
    Args, BoxFuture, Call, Caller, Cancellation, Code, Ctx, Output, ParameterType, Scope, Status, Tool,
    ToolError, ToolSpec, exclude_parameters, tool_fn, typed_tool_fn, with_mock,
};
use toolpost_toolbox::{Toolbox, ToolboxBuilder};

/// A tool without parameters.
fn plain<F, Answer>(name: &str, run: F) -> Arc<dyn Tool>
where
    F: Fn(Ctx) -> Answer + Send + Sync + 'static,
    Answer: Future<Output = Result<Output, ToolError>> + Send + 'static,
{
    Arc::new(tool_fn(ToolSpec::new(name, "A tool of a test."), move |_, ctx| run(ctx)))
}

/// Counts running and started calls.
#[derive(Default)]
struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
    begun: Mutex<Vec<u64>>,
}

/// A tool that returns its number after a delay, and fails above 100.
fn step(gauge: &Arc<Gauge>, builder: ToolboxBuilder, limit: Option<u32>) -> ToolboxBuilder {
    let gauge = Arc::clone(gauge);
    let mut spec = ToolSpec::new("step", "One step.").parameter("number", ParameterType::Integer, "Which.");
    spec.policy.concurrency = limit;
    builder.tool(tool_fn(spec, move |args, _| {
        let gauge = Arc::clone(&gauge);
        async move {
            let number: u64 = args.decode("number")?;
            gauge.begun.lock().unwrap().push(number);
            gauge.most.fetch_max(gauge.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // The first calls take longest, so that results arrive in another order.
            tokio::time::sleep(Duration::from_millis(20_u64.saturating_sub(number % 100))).await;
            gauge.now.fetch_sub(1, Ordering::SeqCst);
            if number > 100 {
                Err(ToolError::conflict(format!("no {number}")))
            } else {
                Ok(Output::json(json!(number)))
            }
        }
    }))
}

fn steps(numbers: &[u64]) -> Vec<(&'static str, Value)> {
    numbers.iter().map(|number| ("step", json!({ "number": number }))).collect()
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_are_bounded() {
    for (concurrency, limit, most) in
        [(1, None, 1), (0, None, 1), (3, None, 3), (50, None, 8), (8, Some(2), 2)]
    {
        let gauge = Arc::new(Gauge::default());
        let all = plain("all", move |ctx| async move {
            let results = ctx.call_all(steps(&[1, 2, 3, 104, 5, 6, 7, 8]), concurrency).await;
            let shown: Vec<Value> = results
                .into_iter()
                .map(|result| {
                    result.map_or_else(|error| error.message().into(), |output| output.result_value())
                })
                .collect();
            Ok(Output::json(shown.into()))
        });
        let toolbox = step(&gauge, Toolbox::builder().tool(all), limit).build().unwrap();
        let reply = toolbox.call(Call::new("all", json!({}))).await;
        let expected = json!([1, 2, 3, "no 104", 5, 6, 7, 8]);
        assert_eq!(
            reply.result.unwrap().structured,
            Some(expected),
            "{concurrency} at once, limit {limit:?}"
        );
        assert_eq!(gauge.most.load(Ordering::SeqCst), most, "{concurrency} at once, limit {limit:?}");
        assert_eq!(*gauge.begun.lock().unwrap(), [1, 2, 3, 104, 5, 6, 7, 8], "begun in their order");
        assert_eq!(reply.record.children.len(), 8);
        assert!(reply.record.children.iter().all(|child| child.parent == Some(reply.record.id)));
    }
}

/// Calls between tools with one permit each; the result or the error.
async fn through(toolbox: &Toolbox, tool: &str) -> Result<Value, Code> {
    let run = tokio::time::timeout(Duration::from_secs(30), toolbox.run(tool, json!({}))).await.unwrap();
    run.map(|output| output.result_value()).map_err(|error| error.code())
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_wait_without_deadlock() {
    let limited = |name: &str, calls: &'static [&'static str]| {
        let mut spec = ToolSpec::new(name, "A tool with one place.");
        spec.policy.concurrency = Some(1);
        tool_fn(spec, move |_, ctx: Ctx| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let outputs = ctx.try_call_all(calls.iter().map(|name| (*name, json!({}))), 8).await?;
            Ok(Output::json(json!(outputs.len())))
        })
    };
    let fork = plain("fork", |ctx| async move {
        let calls = [("first", json!({})), ("second", json!({}))];
        let results = ctx.call_all(calls, 2).await;
        Ok(Output::json(results.iter().map(Result::is_ok).collect()))
    });
    let toolbox = Toolbox::builder()
        .tool(limited("leaf", &[]))
        .tool(limited("many", &["leaf", "leaf", "leaf"]))
        .tool(limited("itself", &["itself"]))
        .tool(limited("deep", &["again"]))
        .tool(limited("again", &["leaf", "deep"]))
        .tool(limited("first", &["second"]))
        .tool(limited("second", &["first"]))
        .tool(fork)
        .build()
        .unwrap();
    assert_eq!(through(&toolbox, "many").await, Ok(json!(3)));
    assert_eq!(through(&toolbox, "itself").await, Err(Code::Precondition));
    assert_eq!(through(&toolbox, "deep").await, Err(Code::Precondition));
    // Each call holds the permit that the other needs: at least one of them fails.
    let outcome = through(&toolbox, "fork").await.unwrap();
    assert_ne!(outcome, json!([true, true]));
    assert_eq!(through(&toolbox, "leaf").await, Ok(json!(0)), "all places are free again");
}

#[tokio::test(start_paused = true)]
async fn the_first_failure_cancels_the_others() {
    let gauge = Arc::new(Gauge::default());
    let all = plain("all", |ctx| async move {
        let numbers = [1, 119, 2, 3, 4, 5];
        ctx.try_call_all(steps(&numbers), 2).await.map(|outputs| Output::json(json!(outputs.len())))
    });
    let good = plain("good", |ctx| async move {
        let outputs = ctx.try_call_all(steps(&[3, 2, 1]), 3).await?;
        Ok(Output::json(outputs.iter().map(Output::result_value).collect()))
    });
    let toolbox = step(&gauge, Toolbox::builder().tool(all).tool(good), None).build().unwrap();
    let error = toolbox.run("all", json!({})).await.unwrap_err();
    assert_eq!((error.code(), error.message()), (Code::Conflict, "no 119"));
    assert!(gauge.begun.lock().unwrap().len() < 6);
    let given_up = toolbox.records().iter().filter(|record| record.status == Status::Error).count();
    assert!(given_up >= 3, "the failed call, the one beside it, and their parent: {given_up}");
    assert_eq!(toolbox.run("good", json!({})).await.unwrap().structured, Some(json!([3, 2, 1])));
}

#[tokio::test]
async fn answers_of_parallel_calls_are_replayed() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let one = plain("one", move |_| {
        let run = counted.fetch_add(1, Ordering::SeqCst);
        async move { Ok(Output::json(json!(run))) }
    });
    let mut spec = ToolSpec::new("all", "All.");
    spec.annotations.idempotent = true;
    let all = tool_fn(spec, async |_, ctx: Ctx| {
        let outputs = ctx.try_call_all([("one", json!({})), ("one", json!({}))], 2).await?;
        if ctx.attempt() == 1 {
            return Err(ToolError::dependency("once more"));
        }
        Ok(Output::json(outputs.iter().map(Output::result_value).collect()))
    });
    let toolbox = Toolbox::builder().tool(one).tool(all).build().unwrap();
    assert_eq!(toolbox.run("all", json!({})).await.unwrap().structured, Some(json!([0, 1])));
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_nested_call_has_the_context_of_its_parent() {
    struct Tenant(&'static str);
    let inner = plain("inner", |ctx| async move {
        Ok(Output::json(json!({
            "tenant": ctx.inject::<Tenant>()?.0,
            "user": ctx.inject_named::<String>("user")?,
            "metadata": ctx.metadata(),
            "caller": ctx.caller().identity,
            "owner": ctx.scope().map(Scope::owner),
            "working_dir": ctx.working_dir(),
            "level": ctx.level(),
            "verbose": ctx.is_verbose(),
            "key": ctx.idempotency_key(),
            "ends": ctx.remaining().is_some_and(|left| left < Duration::from_secs(50)),
        })))
    });
    let outer = plain("outer", |ctx| async move { ctx.call("inner", json!({})).await });
    let toolbox = Toolbox::builder().tool(inner).tool(outer).build().unwrap();
    let mut call = Call::new("outer", json!({}))
        .provide(Tenant("acme"))
        .provide_named("user", "ada")
        .with_caller(Caller::new("test").with_identity("ada"))
        .with_scope(Scope::new("ada").with_working_dir("/srv"))
        .with_deadline(Instant::now() + Duration::from_secs(40))
        .with_idempotency_key("k");
    call.options.metadata.insert("trace".into(), "t-1".into());
    call.options.level = Some("strict".into());
    call.options.verbose = true;
    let reply = toolbox.call(call).await;
    assert_eq!(
        reply.result.unwrap().structured,
        Some(json!({
            "tenant": "acme", "user": "ada", "metadata": { "trace": "t-1" }, "caller": "ada", "owner": "ada",
            "working_dir": "/srv", "level": "strict", "verbose": true, "key": null, "ends": true,
        }))
    );
    assert_eq!(reply.record.children[0].metadata["trace"], "t-1");
}

#[tokio::test]
async fn cancellation_reaches_nested_calls() {
    let cancellation = Cancellation::new();
    let stop = cancellation.clone();
    let sleeper = plain("sleeper", move |_| {
        stop.cancel();
        async {
            tokio::time::sleep(Duration::from_mins(1)).await;
            Ok(Output::default())
        }
    });
    let outer = plain("outer", |ctx| async move {
        ctx.try_call_all([("sleeper", json!({})), ("sleeper", json!({}))], 2).await.map(|_| Output::default())
    });
    let toolbox = Toolbox::builder().tool(sleeper).tool(outer).build().unwrap();
    let error =
        toolbox.call(Call::new("outer", json!({})).with_cancellation(cancellation)).await.result.unwrap_err();
    assert_eq!(error.code(), Code::Cancelled, "{error}");
}

#[tokio::test]
async fn nested_calls_inherit_mock_mode() {
    let touched = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&touched);
    let inner = plain("inner", move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(Output::text("real")) }
    });
    let outer = plain("outer", |ctx| async move { ctx.call("inner", json!({})).await });
    let outer = with_mock(outer, async |_, ctx: Ctx| {
        let inner = ctx.call("inner", json!({})).await?;
        Ok(Output::text(format!("mocked {}: {}", ctx.is_mock(), inner.to_text())))
    });
    let silent = plain("silent", |ctx| async move { ctx.call("inner", json!({})).await });
    let toolbox = Toolbox::builder().tool(inner).tool(outer).tool(silent).build().unwrap();
    let mocked = |tool: &str| {
        let mut call = Call::new(tool, json!({}));
        call.options.mock = true;
        call
    };
    let reply = toolbox.call(mocked("outer")).await;
    assert_eq!(reply.result.unwrap().to_text(), "mocked true: Mocked execution for tool 'inner'.");
    assert!(reply.record.mock && reply.record.children[0].mock);
    let reply = toolbox.call(mocked("silent")).await;
    assert_eq!(reply.result.unwrap().to_text(), "Mocked execution for tool 'silent'.");
    assert_eq!(touched.load(Ordering::SeqCst), 0);
    assert_eq!(toolbox.run("outer", json!({})).await.unwrap().to_text(), "real");
    let broken =
        with_mock(plain("broken", |_| async { Ok(Output::default()) }), async |_, _| panic!("a broken mock"));
    toolbox.add(broken).unwrap();
    assert_eq!(toolbox.call(mocked("broken")).await.result.unwrap_err().code(), Code::Internal);
}

fn query() -> Arc<dyn Tool> {
    let mut spec = ToolSpec::new("query", "Query.")
        .parameter("database", ParameterType::String, "Where.")
        .parameter("text", ParameterType::String, "What.")
        .optional_parameter("limit", ParameterType::Integer, "How many.")
        .example(json!({ "database": "d", "text": "t" }), None);
    spec.sensitive = vec!["database".into()];
    Arc::new(tool_fn(spec, async |args, _| Ok(Output::json(args.as_value().clone()))))
}

#[tokio::test]
async fn only_the_application_sets_excluded_parameters() {
    let tool = exclude_parameters(query(), ["database", "limit"]).unwrap();
    let schema = tool.spec().input_schema.as_value().clone();
    assert_eq!(schema["properties"].as_object().unwrap().keys().collect::<Vec<_>>(), ["text"]);
    assert_eq!(schema["required"], json!(["text"]));
    let toolbox = Toolbox::builder().tool(tool).provide_named("database", "sales").build().unwrap();
    let output = toolbox.run("query", json!({ "text": "t" })).await.unwrap();
    assert_eq!(output.structured, Some(json!({ "database": "sales", "text": "t" })));
    let call = Call::new("query", json!({ "text": "t" }))
        .provide_named("database", "other")
        .provide_named("limit", 5);
    let output = toolbox.call(call).await.result.unwrap();
    assert_eq!(output.structured, Some(json!({ "database": "other", "text": "t", "limit": 5 })));
    for arguments in [json!({ "text": "t", "database": "mine" }), json!({ "text": "t", "limit": 1 })] {
        let error = toolbox.run("query", arguments).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidInput, "{error}");
    }
    let call = Call::new("query", json!({ "text": "t" })).provide_named("limit", "many");
    assert_eq!(toolbox.call(call).await.result.unwrap_err().code(), Code::Internal);
    let bare = Toolbox::builder().tool(exclude_parameters(query(), ["database"]).unwrap()).build().unwrap();
    assert_eq!(bare.run("query", json!({ "text": "t" })).await.unwrap_err().code(), Code::Precondition);
    let error = exclude_parameters(query(), ["db"]).err().unwrap();
    assert!(error.message.contains("no parameter `db`"), "{error}");
}

/// The value to add.
#[data]
struct Sum {
    /// The first number.
    left: i64,
    /// The second number.
    #[serde(default)]
    right: i64,
}

#[tokio::test]
async fn a_closure_over_a_struct_has_the_schema_of_the_struct() {
    let tool = typed_tool_fn(ToolSpec::new("sum", "Add."), async |sum: Sum, _| Ok(sum.left + sum.right));
    let spec = tool.spec();
    assert_eq!(spec.input_schema.as_value()["required"], json!(["left"]));
    assert_eq!(spec.input_schema.as_value()["properties"]["left"]["description"], "The first number.");
    assert_eq!(spec.output_schema.as_ref().unwrap().as_value()["type"], "integer");
    let toolbox = Toolbox::builder().tool(tool).build().unwrap();
    assert_eq!(
        toolbox.run("sum", json!({ "left": 2, "right": 3 })).await.unwrap().structured,
        Some(json!(5))
    );
    assert_eq!(toolbox.run("sum", json!({ "left": 2 })).await.unwrap().structured, Some(json!(2)));
    for (arguments, code) in [
        (json!({}), Code::MissingParam),
        (json!({ "left": "2" }), Code::InvalidInput),
        (json!({ "left": 2, "middle": 1 }), Code::InvalidInput),
    ] {
        assert_eq!(toolbox.run("sum", arguments).await.unwrap_err().code(), code);
    }
}

/// A tool as a type.
struct Counter(AtomicUsize);

impl Tool for Counter {
    fn spec(&self) -> Arc<ToolSpec> {
        Arc::new(ToolSpec::new("count", "Count.").parameter("by", ParameterType::Integer, "By how much."))
    }

    fn call<'a>(&'a self, args: &'a Args, _: &'a Ctx) -> BoxFuture<'a, Result<Output, ToolError>> {
        Box::pin(async {
            let by: usize = args.decode("by")?;
            Ok(Output::json(json!(self.0.fetch_add(by, Ordering::SeqCst) + by)))
        })
    }
}

#[tokio::test]
async fn a_type_can_be_a_tool_with_its_own_state() {
    let toolbox = Toolbox::builder().tool(Counter(AtomicUsize::new(40))).build().unwrap();
    assert_eq!(toolbox.run("count", json!({ "by": 2 })).await.unwrap().structured, Some(json!(42)));
    assert_eq!(toolbox.run("count", json!({ "by": 1 })).await.unwrap().structured, Some(json!(43)));
    assert_eq!(toolbox.run("count", json!({ "by": "x" })).await.unwrap_err().code(), Code::InvalidInput);
}

#[tokio::test]
async fn a_payload_reaches_only_the_caller() {
    let events = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&events);
    let inner = plain("inner", |_| async { Ok(Output::text("seen").with_payload("hidden rows".to_owned())) });
    let outer = plain("outer", |ctx| async move {
        let output = ctx.call("inner", json!({})).await?;
        let rows =
            output.payload.as_ref().and_then(toolpost_core::Payload::get::<String>).unwrap_or_default();
        // The payload of a nested call reaches only the nested caller.
        Ok(Output::text(format!("{} letters", rows.len())))
    });
    let toolbox = Toolbox::builder()
        .tool(inner)
        .tool(outer)
        .on_event(move |event| heard.lock().unwrap().push_str(&serde_json::to_string(event).unwrap()))
        .build()
        .unwrap();
    let reply = toolbox.call(Call::new("inner", json!({}))).await;
    let output = reply.result.unwrap();
    assert_eq!((output.to_text().as_ref(), output.result_value()), ("seen", json!("seen")));
    assert_eq!(output.payload.unwrap().get::<String>().unwrap().as_str(), "hidden rows");
    assert!(reply.record.payload);
    let reply = toolbox.call(Call::new("outer", json!({}))).await;
    let output = reply.result.unwrap();
    assert_eq!((output.to_text().as_ref(), output.payload.is_some()), ("11 letters", false));
    assert!(!reply.record.payload && reply.record.children[0].payload);
    let records = serde_json::to_string(&toolbox.records()).unwrap();
    let events = events.lock().unwrap();
    assert!(
        !records.contains("hidden") && !events.contains("hidden") && events.contains("call.finished"),
        "{events}"
    );
}
