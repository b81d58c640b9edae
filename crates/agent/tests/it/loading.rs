//! Tools that are loaded while a conversation goes on.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolpost::{Event, Output, ParameterType, ToolSpec, tool_fn};
use toolpost_agent::{Agent, AgentBuilder, Dynamic, RunStopReason, Runs};
use toolpost_gateway::catalog::ToolSession;
use toolpost_llm::{
    ErrorKind, ExchangeSink, Feature, HostedTool, Model, ModelError, ModelId, ModelInfo, Request, Response,
    ResponseStream, ScriptModel, Turn,
};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};
use toolpost_toolbox::{MemoryStore, Toolbox};

/// Plays a script and keeps what it was asked.
#[derive(Debug)]
pub(crate) struct Watched {
    inner: ScriptModel,
    asked: Mutex<Vec<Request>>,
}

impl Watched {
    pub(crate) fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn new(script: &str) -> Arc<Self> {
        Arc::new(Self { inner: ScriptModel::parse("test", script).unwrap(), asked: Mutex::default() })
    }

    /// The names of the tools that each request offered.
    fn offered(&self) -> Vec<Vec<String>> {
        let names = |request: &Request| request.tools.iter().map(|tool| tool.name.clone()).collect();
        self.asked.lock().unwrap().iter().map(names).collect()
    }

    /// The schema of a tool in one of the requests.
    fn schema(&self, request: usize, tool: &str) -> Value {
        let asked = self.asked.lock().unwrap();
        let tool = asked[request].tools.iter().find(|known| known.name == tool).unwrap();
        tool.input_schema.to_value().unwrap()
    }
}

impl Model for Watched {
    fn id(&self) -> &ModelId {
        self.inner.id()
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        self.inner.check(request)
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        self.asked.lock().unwrap().push(request.clone());
        self.inner.stream(request)
    }
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

fn agent(model: &Arc<Watched>) -> AgentBuilder {
    Agent::builder(Arc::clone(model) as Arc<dyn Model>, toolbox())
}

const META: [&str; 5] =
    ["browse_toolkit", "load_tools", "load_tool_group", "unload_tools", "unload_tool_group"];

const LOADS: &str = r"
turns:
  - calls: [{ tool: browse_toolkit, args: { query: letter } }]
  - calls: [{ tool: load_tools, args: { tool_names: [send_letter] } }]
  - calls: [{ tool: send_letter }, { tool: load_tool_group, args: { group: crm } }]
  - calls: [{ tool: unload_tools, args: { tool_names: [add_person] } }]
  - text: done
";

#[tokio::test]
async fn loaded_tools_are_offered_from_the_next_turn_on_at_the_end() {
    let model = Watched::new(LOADS);
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
async fn what_was_loaded_stays_loaded_in_the_next_run_of_the_conversation() {
    let script = "turns:\n  - calls: [{ tool: load_tools, args: { tool_names: [send_letter] } }]\n  - text: one\n  - text: two\n  - text: three\n";
    // Passed on from run to run.
    let model = Watched::new(script);
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

    // Kept by the agent, and saved in between.
    let model = Watched::new(script);
    let session = ToolSession::new().with_session_id("s");
    agent_of(agent(&model).tool_session(session.clone())).run("Hello.").finish().await;
    assert!(session.is_active("send_letter"));
    let saved = serde_json::to_string(&session).unwrap();
    let read: ToolSession = serde_json::from_str(&saved).unwrap();
    let model = Watched::new("turns:\n  - text: two\n");
    agent_of(agent(&model).tool_session(read)).run("Again.").finish().await;
    assert_eq!(model.offered()[0].last().map(String::as_str), Some("send_letter"));
}

#[tokio::test]
async fn a_model_of_its_own_picks_tools_and_its_tokens_count() {
    let model = Watched::new(
        "turns:\n  - calls: [{ tool: find_tools, args: { intent: write to my aunt } }]\n    usage: { input: 5, output: 1 }\n  - text: '{{ last.structured.results[0].name }}, {{ last.structured.reasoning }}'\n    usage: { input: 7, output: 1 }\n",
    );
    let picks = Watched::new(
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
    let asked = picks.asked.lock().unwrap();
    assert_eq!((asked.len(), asked[0].tools.len()), (1, 0));
    let prompt = serde_json::to_string(&asked[0].turns).unwrap();
    assert!(prompt.contains("- send_letter: A tool.") && prompt.contains("write to my aunt"), "{prompt}");
}

#[tokio::test]
async fn without_dynamic_loading_all_tools_are_offered() {
    let all = ["add_person", "find_person", "send_letter", "boil_water"];
    let model = Watched::new("turns:\n  - text: hi\n");
    let outcome =
        agent(&model).dynamic(false).tool_session(ToolSession::new()).build().run("Hello.").finish().await;
    assert_eq!(model.offered(), [all]);
    assert!(outcome.tool_session.is_none());
}

#[tokio::test]
async fn definitions_are_compact_on_request_but_for_core_tools() {
    let described = |schema: &Value| schema["properties"]["text"].get("description").is_some();
    for compact in [false, true] {
        let model = Watched::new("turns:\n  - text: hi\n");
        agent(&model).compact_tools(compact).core_tools(["boil_water"]).build().run("Hello.").finish().await;
        assert_eq!(described(&model.schema(0, "send_letter")), !compact);
        assert!(described(&model.schema(0, "boil_water")));

        let model = Watched::new(LOADS);
        agent(&model)
            .dynamic(true)
            .compact_tools(compact)
            .core_tools(["boil_water"])
            .build()
            .run("Hello.")
            .finish()
            .await;
        assert_eq!(described(&model.schema(2, "send_letter")), !compact);
        assert!(described(&model.schema(2, "boil_water")));
    }
    // And under the pressure of a budget, until there is room again.
    let model = Watched::new(
        "turns:\n  - calls: [{ tool: load_tools, args: { tool_names: [send_letter, find_person, add_person] } }]\n  - calls: [{ tool: unload_tools, args: { tool_names: [find_person, add_person] } }]\n  - text: done\n",
    );
    let probe = agent(&model).dynamic(true).build().run("Hello.").finish().await.tool_session.unwrap();
    let one = probe.budget().tokens_used;
    let model = Watched::new(
        "turns:\n  - calls: [{ tool: load_tools, args: { tool_names: [send_letter, find_person, add_person] } }]\n  - calls: [{ tool: unload_tools, args: { tool_names: [find_person, add_person] } }]\n  - text: done\n",
    );
    // Three tools are over three quarters of it, one is not.
    let session = ToolSession::new().with_token_budget((one + 30) * 4 / 3);
    agent(&model).dynamic(true).tool_session(session).build().run("Hello.").finish().await;
    assert_eq!([1, 2].map(|request| described(&model.schema(request, "send_letter"))), [false, true]);
}

#[tokio::test]
async fn a_core_tool_that_is_none_is_a_notice_and_calls_of_unknown_tools_are_errors() {
    let model = Watched::new(
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
async fn many_conversations_of_one_agent_load_apart() {
    let toolbox = toolbox();
    let mut runs = Vec::new();
    for name in ["send_letter", "find_person", "add_person"] {
        let script = format!(
            "turns:\n  - calls: [{{ tool: load_tools, args: {{ tool_names: [{name}] }} }}]\n  - text: done\n"
        );
        let agent = Agent::builder(Watched::new(&script), toolbox.clone()).dynamic(true).build();
        runs.push(tokio::spawn(async move { (name, agent.run("Go.").finish().await) }));
    }
    for run in runs {
        let (name, outcome) = run.await.unwrap();
        let active = outcome.tool_session.unwrap().active_tools();
        assert_eq!((active.len(), active.last().map(String::as_str)), (META.len() + 1, Some(name)));
    }
    assert_eq!(toolbox.specs().len(), 4);
}

/// Knows of itself what it can do.
#[derive(Debug)]
struct Searching {
    inner: Arc<Watched>,
    info: ModelInfo,
}

impl Searching {
    fn new(script: &str, searches: Option<bool>) -> Arc<Self> {
        let inner = Watched::new(script);
        let mut info = ModelInfo::unknown(inner.id());
        info.features.extend(searches.map(|searches| (Feature::ToolSearch, searches)));
        Arc::new(Self { inner, info })
    }
}

impl Model for Searching {
    fn id(&self) -> &ModelId {
        self.inner.id()
    }

    fn info(&self) -> Option<&ModelInfo> {
        Some(&self.info)
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        self.inner.check(request)
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        self.inner.stream(request)
    }
}

#[tokio::test]
async fn where_the_provider_searches_all_but_the_core_tools_are_deferred() {
    let script = "turns:\n  - calls: [{ tool: send_letter }]\n  - text: '{{ last.text }}'\n  - text: again\n";
    let model = Searching::new(script, Some(true));
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
    let asked = model.inner.asked.lock().unwrap();
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
async fn tools_are_searched_as_the_builder_says_and_the_model_can() {
    let native = ["add_person", "find_person", "send_letter", "boil_water"];
    for (dynamic, searches, expected) in [
        (Dynamic::from(true), Some(true), &native[..]),
        (Dynamic::Auto, None, &META[..]),
        (Dynamic::Auto, Some(false), &META[..]),
        (Dynamic::Browse, Some(true), &META[..]),
        (Dynamic::Native, None, &native[..]),
    ] {
        let model = Searching::new("turns: [{ text: hi }]", searches);
        let builder = Agent::builder(Arc::clone(&model) as Arc<dyn Model>, toolbox());
        let outcome = builder.dynamic(dynamic.clone()).build().run("Hello.").finish().await;
        assert_eq!(outcome.text(), "hi");
        assert_eq!(model.inner.offered(), [expected], "{dynamic:?} {searches:?}");
        let asked = model.inner.asked.lock().unwrap();
        assert_eq!(asked[0].hosted_tools.len(), usize::from(expected.len() == 4), "{dynamic:?}");
    }
    // A search that was chosen stays, and without tools there is nothing to search.
    let patterns = HostedTool::ToolSearch { version: Some("tool_search_tool_regex_20251119".into()) };
    for (toolbox, hosted) in
        [(toolbox(), vec![patterns.clone()]), (Toolbox::builder().build().unwrap(), Vec::new())]
    {
        let model = Watched::new("turns: [{ text: hi }]");
        let builder =
            Agent::builder(Arc::clone(&model) as Arc<dyn Model>, toolbox).hosted_tools(hosted.clone());
        builder.dynamic(Dynamic::Native).build().run("Hello.").finish().await;
        assert_eq!(model.asked.lock().unwrap()[0].hosted_tools, hosted);
    }
}

#[tokio::test]
async fn what_the_provider_has_found_goes_back_as_it_came() {
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
        Agent::builder(crate::caching::model_at(&server, "anthropic", name), toolbox())
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
    let bodies: Vec<Value> = requests.iter().map(ReceivedRequest::json).collect();
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

    // A model without a search is told before anything is sent, and by itself the loop takes ours.
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
        let model = crate::caching::model_at(&server, provider, name);
        let outcome =
            Agent::builder(model, toolbox()).dynamic(Dynamic::Native).build().run("Write.").finish().await;
        assert_eq!(outcome.error.unwrap().kind, ErrorKind::Unsupported, "{provider}");
    }
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn strict_tools_are_asked_for_and_their_nulls_are_nothing() {
    let script = "turns:
  - calls: [{ tool: browse_toolkit, args: { query: letter, group: null, limit: null, offset: null } }]
  - calls: [{ tool: load_tools, args: { tool_names: [send_letter] } }]
  - calls: [{ tool: send_letter, args: { text: null } }]
  - text: '{{ last.text }}'
";
    for strict in [false, true] {
        let model = Watched::new(script);
        let outcome = agent(&model).dynamic(true).strict_tools(strict).build().run("Go.").finish().await;
        let failed: Vec<bool> =
            outcome.record.tool_calls.iter().map(|call| call.status == toolpost::Status::Error).collect();
        assert_eq!(failed, [!strict, false, !strict], "{:?}", outcome.record.tool_calls);
        for request in model.asked() {
            assert!(!request.tools.is_empty() && request.tools.iter().all(|tool| tool.strict == strict));
        }
    }
}

#[tokio::test]
async fn what_the_model_is_asked_that_picks_tools_is_kept() {
    let model =
        Watched::new("turns:\n  - calls: [{ tool: find_tools, args: { intent: write } }]\n  - text: done\n");
    let picks =
        Watched::new("turns:\n  - text: '{\"tool_names\": [\"send_letter\"], \"reasoning\": \"x\"}'\n");
    let runs = Runs::new(Arc::new(MemoryStore::new()));
    let agent = agent(&model).dynamic(Arc::clone(&picks)).build();
    let outcome = agent.run("Write.").persist_to(&runs).finish().await;
    assert_eq!(outcome.text(), "done");
    let kept = Kept::default();
    assert_eq!(runs.export(outcome.record.id, &kept).await.unwrap(), 3);
    let kept = kept.0.lock().unwrap();
    assert_eq!(kept.iter().filter(|request| request.tools.is_empty()).count(), 1);
    assert_eq!(kept[1].turns, picks.asked()[0].turns);
}

/// The requests of exchanges that it is told of.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Request>>);

impl ExchangeSink for Kept {
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
