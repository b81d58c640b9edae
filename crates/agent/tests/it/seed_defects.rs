//! The defects of `llm_factory_toolkit` 2.1, by their numbers in the study of it.
//!
//! Elsewhere: 4 (Gemini, nested objects) and 5 (`turns.rs`; thinking, errors and cache tokens on the wire of Anthropic, `json_object`,
//! web search) with the wires and schemas of the crate for models, `schema.rs`, `wire.rs`, `anthropic_tools.rs` and
//! `fidelity.rs`; 6 (core and meta-tools have tokens) with the catalog of the toolbox; 9 (mathematics that runs code,
//! files without a root) with the built-in tools, `reading.rs`; 10 (prices without dates) in `catalog.rs` of the crate
//! for models.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use toolpost::{Event, Output, ParameterType, Schema, ToolSpec, Values, tool, tool_fn};
use toolpost_agent::{Agent, RunStopReason};
use toolpost_llm::ScriptModel;
use toolpost_toolbox::Toolbox;

fn script(text: &str) -> Arc<ScriptModel> {
    Arc::new(ScriptModel::parse("test", text).unwrap())
}

/// Name the caller.
#[tool]
async fn whoami(question: String, #[arg(inject)] user_id: String) -> String {
    format!("{user_id} asks {question}")
}

/// 1. A model's argument takes the place of an injected value: `bob` acts as `alice`.
#[tokio::test]
async fn a_model_cannot_set_an_injected_value() {
    let model = script(
        "turns:
  - calls: [{ tool: whoami, args: { question: why, user_id: bob } }, { tool: whoami, args: { question: why } }]
  - text: '{{ results[0].text }} | {{ results[1].text }}'
",
    );
    let toolbox = Toolbox::builder().tool(whoami).build().unwrap();
    let agent = Agent::builder(model, toolbox).build();
    let mut values = Values::default();
    values.provide_named("user_id", "alice");
    let outcome = agent.run("Go.").with_values(values).finish().await;
    let (forged, honest) = outcome.text().split_once(" | ").unwrap();
    assert!(forged.starts_with("INVALID_INPUT") && !forged.contains("bob asks"), "{forged}");
    assert_eq!(honest, "alice asks why");
    // The schema for the model has no injected parameter.
    let offered = agent_schema(&["whoami"], &Toolbox::builder().tool(whoami).build().unwrap());
    assert!(!offered.contains("user_id"), "{offered}");
}

fn agent_schema(names: &[&str], toolbox: &Toolbox) -> String {
    names.iter().map(|name| toolbox.spec(name).unwrap().input_schema.as_value().to_string()).collect()
}

/// 2. Arguments of the wrong type reach the function; missing ones are errors of its execution.
#[tokio::test]
async fn no_tool_runs_with_invalid_arguments() {
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let spec = ToolSpec::new("count", "Count.").parameter("n", ParameterType::Integer, "A number.");
    let count = tool_fn(spec, move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(Output::text("counted")) }
    });
    let model = script(
        "turns:
  - calls: [{ tool: count, args: { n: many } }, { tool: count, args: {} }, { tool: count, args: { n: 1, x: 2 } }]
  - text: '{{ results[0].text }} | {{ results[1].text }}'
",
    );
    let outcome = Agent::builder(model, Toolbox::builder().tool(count).build().unwrap())
        .build()
        .run("Go.")
        .finish()
        .await;
    assert!(outcome.text().starts_with("INVALID_INPUT: ") && outcome.text().contains("| MISSING_PARAM: "));
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}

/// 3. A streamed run has no usage over its rounds, no hook of usage, no payloads and no structured answer.
#[tokio::test]
async fn a_streamed_run_has_usage_payloads_and_a_value() {
    let plot =
        tool_fn(ToolSpec::new("plot", "Plot."), async |_, _| Ok(Output::text("seen").with_payload(7_u8)));
    let model = script(
        "turns:
  - calls: [{ tool: plot }]
    usage: { input: 10, output: 5 }
  - text: '{\"n\": 3}'
    usage: { input: 20, output: 5 }
",
    );
    let (reported, streamed) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(String::new())));
    let (hook, sink) = (Arc::clone(&reported), Arc::clone(&streamed));
    let agent = Agent::builder(model, Toolbox::builder().tool(plot).build().unwrap())
        .answer_schema(json!({"type": "object", "properties": {"n": {"type": "integer"}}}))
        .on_usage(Arc::new(move |event| hook.lock().unwrap().push(event.usage.total_tokens())))
        .on_event(Arc::new(move |event: &Event| {
            if let Event::TextDelta { text, .. } = event {
                sink.lock().unwrap().push_str(text);
            }
        }))
        .build();
    let outcome = agent.run("Go.").finish().await;
    assert_eq!(*streamed.lock().unwrap(), "{\"n\": 3}");
    assert_eq!(
        (reported.lock().unwrap().as_slice(), outcome.record.usage.total_tokens()),
        (&[15, 25][..], 40)
    );
    assert_eq!((outcome.payloads.len(), outcome.value), (1, Some(json!({"n": 3}))));
}

/// 4. Strictness changes the registered schema, and parameters that may be left out must be there.
#[tokio::test]
async fn strict_tools_keep_the_schema_and_optional_parameters() {
    let mut spec = ToolSpec::new("find", "Find.");
    let schema = json!({"type": "object", "required": ["text"], "additionalProperties": false,
        "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}}});
    spec.input_schema = Arc::new(Schema::new(schema.clone()));
    let find = tool_fn(spec, async |args, _| Ok(Output::json(args.as_value().clone())));
    let toolbox = Toolbox::builder().tool(find).build().unwrap();
    let turns = "turns:
  - calls: [{ tool: find, args: { text: x, limit: null } }]
  - text: '{{ last.text }}'
";
    let strict = Agent::builder(script(turns), toolbox.clone()).strict_tools(true).build();
    assert_eq!(
        strict.run("Go.").finish().await.text(),
        "{\"text\":\"x\"}",
        "a `null` for what is not there is not there"
    );
    assert_eq!(toolbox.spec("find").unwrap().input_schema.as_value(), &schema);
    // Who does not ask for strictness has the schema's word.
    let loose = Agent::builder(script(turns), toolbox).build();
    assert!(loose.run("Go.").finish().await.text().starts_with("INVALID_INPUT"));
}

/// 6 and 7. Calls are never counted, and a conversation forgets its loaded tools.
#[tokio::test]
async fn calls_of_loaded_tools_are_counted_and_stay_loaded() {
    let turns = "turns:
  - calls: [{ tool: load_tools, args: { tool_names: [add] } }]
  - calls: [{ tool: add, args: { a: 1, b: 2 } }]
  - text: '{{ last.text }}'
";
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    let agent = Agent::builder(script(turns), toolbox).dynamic(true).build();
    let outcome = agent.run("Add.").finish().await;
    let session = serde_json::to_value(outcome.tool_session.as_ref().unwrap()).unwrap();
    assert_eq!(session["_analytics_calls"]["add"], 1, "{session}");
    assert!(session["active_tools"].as_array().unwrap().contains(&json!("add")), "{session}");
    // Meta-tools have tokens too.
    assert!(session["_token_counts"]["load_tools"].as_u64().unwrap() > 0, "{session}");
}

/// 8. What is registered later is not seen, the order of keys hides a repetition, and runs of one agent mix.
#[tokio::test]
async fn later_tools_are_offered_and_member_order_hides_no_loop() {
    let turn = |args: &str| format!("  - calls: [{{ tool: broken, args: {{ {args} }} }}]\n");
    let turns = [turn("a: 1, b: 2"), turn("b: 2.0, a: 1")].concat().repeat(10);
    let toolbox = Toolbox::builder().build().unwrap();
    let agent = Agent::builder(script(&format!("turns:\n{turns}")), toolbox.clone()).wrap_up(false).build();
    let mut spec = ToolSpec::new("broken", "Fail.");
    spec.input_schema = Arc::new(Schema::new(json!({"type": "object"})));
    toolbox.add(tool_fn(spec, async |_, _| Err(toolpost::ToolError::not_found("nothing there")))).unwrap();
    let (first, second) = tokio::join!(agent.run("Go.").finish(), agent.run("Go.").finish());
    for outcome in [first, second] {
        assert_eq!((&outcome.stop, outcome.record.iterations), (&RunStopReason::RepeatedError, 6));
        assert_eq!(outcome.record.tools_used, ["broken"]);
    }
}
