//! Tools that are loaded on demand.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost::{Event, Output, ParameterType, ToolSpec, tool_fn};
use toolpost_agent::{Agent, AgentBuilder, Dynamic, RunStopReason, Runs};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{
    ErrorKind, ExchangeSink, Feature, HostedTool, Model, ModelError, ModelId, ModelInfo, Request, Response,
    ScriptModel, Turn,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};
use toolpost_toolbox::{MemoryStore, Toolbox};

use crate::support::{FakeModel, bodies, hosted};

/// The schema of a tool in one of the requests.
fn schema(model: &FakeModel, request: usize, tool: &str) -> Value {
    let tools = model.requests()[request].tools.clone();
    tools.iter().find(|known| known.name == tool).unwrap().input_schema.to_value().unwrap()
}

/// A script whose model is known to search tools, known not to, or unknown.
fn searching(script: &str, searches: Option<bool>) -> Arc<FakeModel> {
    let script = ScriptModel::parse("test", script).unwrap();
    let mut info = ModelInfo::unknown(script.id());
    info.features.extend(searches.map(|searches| (Feature::ToolSearch, searches)));
    FakeModel::with_info(Some(info), move |request| script.stream(request))
}

fn toolbox() -> Toolbox {
    let toolbox = Toolbox::builder().build().unwrap();
    for (name, group) in
        [("add_person", "crm"), ("find_person", "crm"), ("send_letter", "mail"), ("boil_water", "kitchen")]
    {
        let mut spec =
            ToolSpec::new(name, "A tool.").optional_parameter("text", ParameterType::String, "The text.");
        spec.group = Some(group.to_owned());
        toolbox.add(tool_fn(spec, async |_, _| Ok(Output::text("done")))).unwrap();
    }
    toolbox
}

fn agent(model: &Arc<FakeModel>) -> AgentBuilder {
    Agent::builder(Arc::clone(model) as Arc<dyn Model>, toolbox())
}

const META: [&str; 5] =
    ["browse_toolkit", "load_tools", "load_tool_group", "unload_tools", "unload_tool_group"];

const BUDGETED: &str = "turns:\n  - calls: [{ tool: load_tools, args: { tool_names: [send_letter, find_person, add_person] } }]\n  - calls: [{ tool: unload_tools, args: { tool_names: [find_person, add_person] } }]\n  - text: done\n";

const LOADS: &str = r"
turns:
  - calls: [{ tool: browse_toolkit, args: { query: letter } }]
  - calls: [{ tool: load_tools, args: { tool_names: [send_letter] } }]
  - calls: [{ tool: send_letter }, { tool: load_tool_group, args: { group: crm } }]
  - calls: [{ tool: unload_tools, args: { tool_names: [add_person] } }]
  - text: done
";

#[tokio::test]
async fn loaded_tools_are_appended_from_the_next_request() {
    let model = FakeModel::script(LOADS);
    let started = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&started);
    let agent = agent(&model)
        .dynamic(true)
        .core_tools(["boil_water"])
        .on_event(Arc::new(move |event: &Event| {
            if let Event::RunStarted { tools, .. } = event {
                sink.lock().unwrap().clone_from(tools);
            }
        }))
        .build();
    let outcome = agent.run("Write to Ada.").finish().await;
    assert_eq!(outcome.text(), "done");
    let own: Vec<&str> = ["boil_water"].into_iter().chain(META).collect();
    let with = |loaded: &[&str]| own.iter().chain(loaded).map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        model.offered(),
        [
            with(&[]),
            with(&[]),
            with(&["send_letter"]),
            with(&["send_letter", "add_person", "find_person"]),
            with(&["send_letter", "find_person"]),
        ]
    );
    assert_eq!(*started.lock().unwrap(), own);
    // What they cost and who was called is known, and each call is in the record.
    let session = outcome.tool_session.clone().unwrap();
    assert_eq!(session.analytics().calls["send_letter"], 1);
    assert_eq!(session.analytics().unloads["add_person"], 1);
    assert_eq!(
        session.analytics().never_called,
        ["add_person", "boil_water", "find_person", "unload_tool_group"]
    );
    assert!(session.budget().tokens_used > 0);
    assert_eq!(outcome.record.tool_calls.len(), 5);
    assert!(outcome.record.tools_used.iter().any(|tool| tool == "browse_toolkit"));
    assert!(outcome.record.success, "{:?}", outcome.record.notices);
}

#[tokio::test]
async fn loaded_tools_stay_loaded_in_the_next_run() {
    let script = "turns:\n  - calls: [{ tool: load_tools, args: { tool_names: [send_letter] } }]\n  - text: one\n  - text: two\n  - text: three\n";
    // Passed on from run to run.
    let model = FakeModel::script(script);
    let agent_of = |builder: AgentBuilder| builder.dynamic(true).build();
    let first_agent = agent_of(agent(&model));
    let first = first_agent.run("Hello.").finish().await;
    let mut turns = first.turns.clone();
    turns.push(Turn::user("And now?"));
    let second = first_agent.run_turns(turns).with_tool_session(first.tool_session.unwrap()).finish().await;
    assert_eq!(second.text(), "two");
    assert_eq!(model.offered()[2], model.offered()[1]);
    assert_eq!(model.offered()[2].last().map(String::as_str), Some("send_letter"));
    // Without it a run begins anew.
    assert_eq!(
        first_agent.run("Hello.").finish().await.tool_session.unwrap().active_tools().len(),
        META.len() + 1
    );

    // Stored in the agent, and serialized in between.
    let model = FakeModel::script(script);
    let session = ToolSession::new().with_session_id("s");
    agent_of(agent(&model).tool_session(session.clone())).run("Hello.").finish().await;
    assert!(session.is_active("send_letter"));
    let saved = serde_json::to_string(&session).unwrap();
    let read: ToolSession = serde_json::from_str(&saved).unwrap();
    let model = FakeModel::script("turns:\n  - text: two\n");
    agent_of(agent(&model).tool_session(read)).run("Again.").finish().await;
    assert_eq!(model.offered()[0].last().map(String::as_str), Some("send_letter"));
}

#[tokio::test]
async fn another_model_picks_tools_and_its_tokens_count() {
    let model = FakeModel::script(
        "turns:\n  - calls: [{ tool: find_tools, args: { intent: write to my aunt } }]\n    usage: { input: 5, output: 1 }\n  - text: '{{ last.structured.results[0].name }}, {{ last.structured.reasoning }}'\n    usage: { input: 7, output: 1 }\n",
    );
    let picks = FakeModel::script(
        "turns:\n  - text: '{\"tool_names\": [\"send_letter\"], \"reasoning\": \"letters\"}'\n    usage: { input: 1000, output: 30 }\n",
    );
    let outcome = agent(&model).dynamic(Arc::clone(&picks)).build().run("Write.").finish().await;
    assert_eq!(outcome.text(), "send_letter, letters");
    assert_eq!((outcome.record.usage.input_tokens, outcome.record.usage.output_tokens), (1012, 32));
    assert_eq!(
        model.offered()[0],
        ["find_tools", "load_tools", "load_tool_group", "unload_tools", "unload_tool_group"]
    );
    // It sees the catalog and gets no tools.
    let asked = picks.requests();
    assert_eq!((asked.len(), asked[0].tools.len()), (1, 0));
    let prompt = serde_json::to_string(&asked[0].turns).unwrap();
    assert!(prompt.contains("- send_letter: A tool.") && prompt.contains("write to my aunt"), "{prompt}");
}

#[tokio::test]
async fn without_dynamic_loading_all_tools_are_offered() {
    let all = ["add_person", "find_person", "send_letter", "boil_water"];
    let model = FakeModel::script("turns:\n  - text: hi\n");
    let outcome =
        agent(&model).dynamic(false).tool_session(ToolSession::new()).build().run("Hello.").finish().await;
    assert_eq!(model.offered(), [all]);
    assert!(outcome.tool_session.is_none());
}

#[tokio::test]
async fn definitions_are_compact_on_request_except_core_tools() {
    let described = |schema: &Value| schema["properties"]["text"].get("description").is_some();
    for compact in [false, true] {
        let model = FakeModel::script("turns:\n  - text: hi\n");
        agent(&model).compact_tools(compact).core_tools(["boil_water"]).build().run("Hello.").finish().await;
        assert_eq!(described(&schema(&model, 0, "send_letter")), !compact);
        assert!(described(&schema(&model, 0, "boil_water")));

        let model = FakeModel::script(LOADS);
        agent(&model)
            .dynamic(true)
            .compact_tools(compact)
            .core_tools(["boil_water"])
            .build()
            .run("Hello.")
            .finish()
            .await;
        assert_eq!(described(&schema(&model, 2, "send_letter")), !compact);
        assert!(described(&schema(&model, 2, "boil_water")));
    }
    // And under the pressure of a budget, until there is room again.
    let model = FakeModel::script(BUDGETED);
    let probe = agent(&model).dynamic(true).build().run("Hello.").finish().await.tool_session.unwrap();
    let one = probe.budget().tokens_used;
    let model = FakeModel::script(BUDGETED);
    // Three tools are over three quarters of it, one is not.
    let session = ToolSession::new().with_token_budget((one + 30) * 4 / 3);
    agent(&model).dynamic(true).tool_session(session).build().run("Hello.").finish().await;
    assert_eq!([1, 2].map(|request| described(&schema(&model, request, "send_letter"))), [false, true]);
}

#[tokio::test]
async fn an_unknown_core_tool_is_a_notice_and_an_unknown_call_an_error() {
    let model = FakeModel::script(
        "turns:\n  - calls: [{ tool: find_tools, args: { intent: x } }, { tool: nothing }]\n  - text: '{{ results[0].text }} | {{ results[1].text }}'\n",
    );
    let outcome = agent(&model).dynamic(true).core_tools(["boil_watr"]).build().run("Hello.").finish().await;
    assert!(
        outcome.record.notices.iter().any(|notice| notice.contains("Did you mean `boil_water`?")),
        "{:?}",
        outcome.record.notices
    );
    assert!(outcome.text().matches("NOT_FOUND").count() == 2, "{}", outcome.text());
    assert!(outcome.record.tools_used.is_empty());
}

#[tokio::test]
async fn conversations_of_one_agent_load_independently() {
    let toolbox = toolbox();
    let mut runs = Vec::new();
    for name in ["send_letter", "find_person", "add_person"] {
        let script = format!(
            "turns:\n  - calls: [{{ tool: load_tools, args: {{ tool_names: [{name}] }} }}]\n  - text: done\n"
        );
        let agent = Agent::builder(FakeModel::script(&script), toolbox.clone()).dynamic(true).build();
        runs.push(tokio::spawn(async move { (name, agent.run("Go.").finish().await) }));
    }
    for run in runs {
        let (name, outcome) = run.await.unwrap();
        let active = outcome.tool_session.unwrap().active_tools();
        assert_eq!((active.len(), active.last().map(String::as_str)), (META.len() + 1, Some(name)));
    }
    assert_eq!(toolbox.specs().len(), 4);
}

#[tokio::test]
async fn with_a_search_of_the_provider_only_core_tools_are_not_deferred() {
    let script = "turns:\n  - calls: [{ tool: send_letter }]\n  - text: '{{ last.text }}'\n  - text: again\n";
    let model = searching(script, Some(true));
    let agent = Agent::builder(Arc::clone(&model) as Arc<dyn Model>, toolbox())
        .dynamic(true)
        .core_tools(["boil_water"])
        .build();
    let outcome = agent.run("Write.").finish().await;
    assert_eq!((outcome.text(), outcome.record.tool_calls.len()), ("done", 1));
    let session = outcome.tool_session.unwrap();
    assert_eq!(session.analytics().calls["send_letter"], 1);
    // What an earlier run of the conversation has loaded is not hidden again.
    session.load([("find_person", 1)]);
    let mut turns = outcome.turns;
    turns.push(Turn::user("Again."));
    let again = agent.run_turns(turns).with_tool_session(session).with_tools(["find_person", "add_person"]);
    assert_eq!(again.finish().await.text(), "again");
    let asked = model.requests();
    let offered = |request: &Request| -> Vec<(String, bool)> {
        request.tools.iter().map(|tool| (tool.name.clone(), tool.deferred)).collect()
    };
    let tool = |name: &str, deferred: bool| (name.to_owned(), deferred);
    let all = [
        tool("boil_water", false),
        tool("add_person", true),
        tool("find_person", true),
        tool("send_letter", true),
    ];
    assert_eq!(offered(&asked[0]), all);
    assert_eq!(offered(&asked[1]), all);
    assert_eq!(offered(&asked[2]), [tool("find_person", false), tool("add_person", true)]);
    let search = [HostedTool::ToolSearch { version: None }];
    assert!(asked.iter().all(|request| request.hosted_tools == search));
}

#[tokio::test]
async fn the_search_depends_on_the_builder_and_the_model() {
    let native = ["add_person", "find_person", "send_letter", "boil_water"];
    for (dynamic, searches, expected) in [
        (Dynamic::from(true), Some(true), &native[..]),
        (Dynamic::Auto, None, &META[..]),
        (Dynamic::Auto, Some(false), &META[..]),
        (Dynamic::Browse, Some(true), &META[..]),
        (Dynamic::Native, None, &native[..]),
    ] {
        let model = searching("turns: [{ text: hi }]", searches);
        let builder = Agent::builder(Arc::clone(&model) as Arc<dyn Model>, toolbox());
        let outcome = builder.dynamic(dynamic.clone()).build().run("Hello.").finish().await;
        assert_eq!(outcome.text(), "hi");
        assert_eq!(model.offered(), [expected], "{dynamic:?} {searches:?}");
        let asked = model.requests();
        assert_eq!(asked[0].hosted_tools.len(), usize::from(expected.len() == 4), "{dynamic:?}");
    }
    // A search that was chosen stays, and without tools there is nothing to search.
    let patterns = HostedTool::ToolSearch { version: Some("tool_search_tool_regex_20251119".into()) };
    for (toolbox, hosted) in
        [(toolbox(), vec![patterns.clone()]), (Toolbox::builder().build().unwrap(), Vec::new())]
    {
        let model = FakeModel::script("turns: [{ text: hi }]");
        let builder =
            Agent::builder(Arc::clone(&model) as Arc<dyn Model>, toolbox).hosted_tools(hosted.clone());
        builder.dynamic(Dynamic::Native).build().run("Hello.").finish().await;
        assert_eq!(model.requests()[0].hosted_tools, hosted);
    }
}

#[tokio::test]
async fn search_results_of_the_provider_go_back_unchanged() {
    let found = json!([
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "letter", "limit": 5}},
        {"type": "tool_search_tool_result", "tool_use_id": "srvtoolu_1", "content": {"type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "send_letter"}]}},
        {"type": "tool_use", "id": "toolu_1", "name": "send_letter", "input": {"text": "Dear Ada"}, "caller": {"type": "direct"}},
    ]);
    let message = |content: &Value, stop: &str| {
        let body = json!({"type": "message", "id": "m", "role": "assistant", "model": "claude-opus-5-5",
            "content": content, "stop_reason": stop, "usage": {"input_tokens": 1, "output_tokens": 1}});
        Reply::json(200, body.to_string())
    };
    let answers =
        vec![message(&found, "tool_use"), message(&json!([{"type": "text", "text": "Sent."}]), "end_turn")];
    let server = LoopbackProvider::start(answers).unwrap();
    let agent = |name: &str| {
        Agent::builder(hosted(&server, "anthropic", name), toolbox())
            .dynamic(Dynamic::Native)
            .core_tools(["boil_water"])
            .build()
    };
    let outcome = agent("claude-opus-5-5").run("Write.").finish().await;
    assert_eq!(
        (outcome.text(), outcome.record.tools_used.as_slice()),
        ("Sent.", &["send_letter".to_owned()][..])
    );
    let requests = server.requests();
    assert!(requests.iter().all(|request| request.header("anthropic-beta").is_none()), "it needs no header");
    let bodies = bodies(&server);
    assert_eq!(bodies[1]["messages"][1]["content"], found);
    for body in &bodies {
        let tools: Vec<_> = body["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tool| (&tool["name"], &tool["defer_loading"]))
            .collect();
        let (no, yes) = (Value::Null, Value::Bool(true));
        let names = ["tool_search_tool_bm25", "boil_water", "add_person", "find_person", "send_letter"]
            .map(Value::from);
        assert_eq!(
            tools,
            [(&names[0], &no), (&names[1], &no), (&names[2], &yes), (&names[3], &yes), (&names[4], &yes)]
        );
    }
    assert_eq!(bodies[0]["tools"][0]["type"], "tool_search_tool_bm25_20251119");

    // A model without a search ends the run before its first request.
    let refused = agent("claude-opus-4-1").run("Write.").finish().await;
    let error = refused.error.unwrap();
    assert_eq!((refused.stop, error.kind.clone()), (RunStopReason::ModelError, ErrorKind::Unsupported));
    assert!(
        error.message.contains("(`tool_search`)") && error.message.contains("claude-opus-5-5"),
        "{error}"
    );
    for (provider, name) in
        [("gemini", "gemini-of-tomorrow"), ("xai", "grok-4.3"), ("openai-compatible", "m")]
    {
        let model = hosted(&server, provider, name);
        let outcome =
            Agent::builder(model, toolbox()).dynamic(Dynamic::Native).build().run("Write.").finish().await;
        assert_eq!(outcome.error.unwrap().kind, ErrorKind::Unsupported, "{provider}");
    }
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn strict_tools_may_have_null_for_absent_arguments() {
    let script = "turns:
  - calls: [{ tool: browse_toolkit, args: { query: letter, group: null, limit: null, offset: null } }]
  - calls: [{ tool: load_tools, args: { tool_names: [send_letter] } }]
  - calls: [{ tool: send_letter, args: { text: null } }]
  - text: '{{ last.text }}'
";
    for strict in [false, true] {
        let model = FakeModel::script(script);
        let outcome = agent(&model).dynamic(true).strict_tools(strict).build().run("Go.").finish().await;
        let failed: Vec<bool> =
            outcome.record.tool_calls.iter().map(|call| call.status == toolpost::Status::Error).collect();
        assert_eq!(failed, [!strict, false, !strict], "{:?}", outcome.record.tool_calls);
        for request in model.requests() {
            assert!(!request.tools.is_empty() && request.tools.iter().all(|tool| tool.strict == strict));
        }
    }
}

#[tokio::test]
async fn exchanges_with_the_finder_are_stored() {
    let model = FakeModel::script(
        "turns:\n  - calls: [{ tool: find_tools, args: { intent: write } }]\n  - text: done\n",
    );
    let picks =
        FakeModel::script("turns:\n  - text: '{\"tool_names\": [\"send_letter\"], \"reasoning\": \"x\"}'\n");
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let agent = agent(&model).dynamic(Arc::clone(&picks)).build();
    let outcome = agent.run("Write.").persist_to(&runs).finish().await;
    assert_eq!(outcome.text(), "done");
    let stored = Requests::default();
    assert_eq!(runs.export(outcome.record.id, &stored).await.unwrap(), 3);
    let stored = stored.0.lock().unwrap();
    assert_eq!(stored.iter().filter(|request| request.tools.is_empty()).count(), 1);
    assert_eq!(stored[1].turns, picks.requests()[0].turns);
}

/// Stores the requests of exchanges.
#[derive(Debug, Default)]
struct Requests(Mutex<Vec<Request>>);

impl ExchangeSink for Requests {
    fn exchange(
        &self,
        _model: &ModelId,
        request: &Request,
        _answer: Result<&Response, &ModelError>,
    ) -> Result<(), ModelError> {
        self.0.lock().unwrap().push(request.clone());
        Ok(())
    }
}
