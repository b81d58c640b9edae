//! Options of one run.

use std::sync::{Arc, Mutex};

use serde_json::json;
use toolpost::{Event, tool};
use toolpost_agent::{Agent, Run, merge_turns};
use toolpost_llm::{
    ErrorKind, FunctionModel, Model, ModelReply, ModelSettings, Part, Request, ScriptModel, ToolChoice, Turn,
};
use toolpost_toolbox::Toolbox;

use crate::agent;
use crate::support::{FakeModel, results};

/// The tools that a run offers.
async fn offered(change: impl FnOnce(Run) -> Run) -> (Vec<String>, toolpost_agent::RunOutput) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let script = "turns:\n  - calls: [{ tool: add, args: { a: 1, b: 2 } }]\n  - text: '{{ last.text }}'\n";
    let agent = agent(script).on_event(Arc::new(move |event: &Event| {
        if let Event::RunStarted { tools, .. } = event {
            sink.lock().unwrap().clone_from(tools);
        }
    }));
    let outcome = change(agent.build().run("Go.")).finish().await;
    let seen = seen.lock().unwrap().clone();
    (seen, outcome)
}

#[tokio::test]
async fn a_run_can_have_some_of_the_tools_or_none() {
    let (tools, outcome) = offered(|run| run).await;
    assert_eq!((tools.len(), outcome.text()), (3, "3"));
    let (tools, outcome) = offered(|run| run.with_tools(["add"])).await;
    assert_eq!((tools, outcome.text()), (vec!["add".to_owned()], "3"));
    for names in [vec!["wait"], vec![]] {
        let (tools, outcome) = offered(|run| run.with_tools(names.clone())).await;
        assert_eq!(tools, names);
        // What is not offered is not run either.
        assert!(outcome.text().starts_with("NOT_FOUND: this run has no tool `add`"), "{}", outcome.text());
        assert!(outcome.record.tool_calls.is_empty());
    }
}

/// An irreversible action.
#[tool]
async fn launch() -> String {
    unreachable!("a mock runs nothing")
}

#[tokio::test]
async fn mock_tools_do_not_run() {
    let model = ScriptModel::parse("test", "turns:\n  - calls: [{ tool: launch }]\n  - text: ok\n").unwrap();
    let toolbox = Toolbox::builder().tool(launch).build().unwrap();
    let agent = Agent::builder(Arc::new(model), toolbox).build();
    let outcome = agent.run("Go.").with_mock_tools(true).finish().await;
    assert!(outcome.record.tool_calls[0].mock && outcome.record.success);
}

#[tokio::test]
async fn consecutive_turns_of_one_role_are_merged() {
    let pieces = vec![Turn::user("a"), Turn::user("b")];
    assert_eq!(merge_turns(pieces.clone()), [Turn::User(vec![Part::text("a"), Part::text("b")])]);
    let agent = agent("turns:\n  - text: first\n  - text: second\n").build();
    let once = agent.run_turns(pieces.clone()).finish().await;
    let merged = agent.run_turns(pieces).with_merged_history().finish().await;
    assert_eq!((once.turns.len(), merged.turns.len()), (3, 2));
    // Two answers of one model, too, and nothing is lost.
    let answer = once.turns[2].clone();
    let joined = merge_turns(vec![answer.clone(), answer]);
    let [Turn::Assistant(turn)] = joined.as_slice() else { panic!("{joined:?}") };
    assert_eq!(turn.items.len(), 2);
}

#[tokio::test]
async fn the_record_of_a_call_round_trips() {
    let (_, outcome) = offered(|run| run).await;
    let written = serde_json::to_value(&outcome.record.tool_calls).unwrap();
    let read: Vec<Arc<toolpost::CallRecord>> = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), written);
    assert_eq!(written[0]["arguments"], json!({"a": 1, "b": 2}));
}

/// The tool choices of the requests of a run, and its output. The model calls a tool once, and whenever it is required.
async fn chosen(choice: ToolChoice) -> (Vec<Option<ToolChoice>>, toolpost_agent::RunOutput) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let model = FunctionModel::new("obedient", move |request: &Request| {
        sink.lock().unwrap().push(request.tool_choice.clone());
        let must = matches!(request.tool_choice, Some(ToolChoice::Any | ToolChoice::Tool(_)));
        let has_called = request.turns.iter().any(|turn| matches!(turn, Turn::ToolResults(_)));
        Ok(if must || !has_called {
            ModelReply::call("add", json!({"a": 1, "b": 2}))
        } else {
            ModelReply::text("Done.")
        })
    });
    let toolbox = Toolbox::builder().tool(crate::add).build().unwrap();
    let outcome =
        Agent::builder(Arc::new(model), toolbox).tool_choice(choice).build().run("Go.").finish().await;
    let seen = seen.lock().unwrap().clone();
    (seen, outcome)
}

#[tokio::test]
async fn a_required_call_is_required_once() {
    for choice in [ToolChoice::Any, ToolChoice::Tool("add".into())] {
        let (seen, outcome) = chosen(choice.clone()).await;
        assert_eq!(seen, [Some(choice), None]);
        assert_eq!((outcome.text(), outcome.record.tool_calls.len()), ("Done.", 1));
    }
    let (seen, outcome) = chosen(ToolChoice::Auto).await;
    assert_eq!((seen, outcome.text()), (vec![Some(ToolChoice::Auto); 2], "Done."));
}

#[tokio::test]
async fn a_run_without_calls_rejects_the_calls_of_its_model() {
    let (seen, outcome) = chosen(ToolChoice::None).await;
    assert_eq!(seen, vec![Some(ToolChoice::None); 2]);
    assert!(outcome.record.success && outcome.record.tool_calls.is_empty());
    let results = results(&outcome.turns, 2);
    assert!(results[0].is_error, "{results:?}");
}

#[tokio::test]
async fn a_required_unknown_tool_ends_the_run_before_its_first_request() {
    let (seen, outcome) = chosen(ToolChoice::Tool("ad".into())).await;
    let error = outcome.error.unwrap();
    assert!(seen.is_empty() && error.kind == ErrorKind::InvalidRequest, "{error}");
    assert!(error.message.contains("Did you mean `add`?"), "{error}");
    // With no tools at all there is none to call, and none to choose from.
    let model = || {
        FunctionModel::new("plain", |request: &Request| {
            assert_eq!(request.tool_choice, None);
            Ok(ModelReply::text("Hello."))
        })
    };
    let agent = |choice| {
        let toolbox = Toolbox::builder().build().unwrap();
        Agent::builder(Arc::new(model()), toolbox).tool_choice(choice).build()
    };
    assert!(agent(ToolChoice::Any).run("Go.").finish().await.error.is_some());
    assert_eq!(agent(ToolChoice::None).run("Go.").finish().await.text(), "Hello.");
}

#[tokio::test]
async fn settings_and_options_of_the_provider_reach_the_model() {
    let model = FakeModel::script("turns:\n  - text: hi\n");
    let settings = ModelSettings {
        max_output_tokens: Some(321),
        temperature: Some(0.25),
        stop: vec!["END".into()],
        ..ModelSettings::default()
    };
    let options = json!({ "service_tier": "flex" }).as_object().unwrap().clone();
    let agent = Agent::builder(Arc::clone(&model) as Arc<dyn Model>, Toolbox::builder().build().unwrap());
    agent.settings(settings.clone()).provider_options(options.clone()).build().run("Go.").finish().await;
    let asked = model.requests();
    assert_eq!((&asked[0].settings, &asked[0].provider_options), (&settings, &options));
}
