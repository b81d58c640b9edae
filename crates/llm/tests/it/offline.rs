//! Models without network: scripts, recordings, and the recorder.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use serde_json::json;
use toolpost_llm::{
    ErrorKind, FunctionModel, HostedTool, HttpOptions, Item, ItemView, Media, Model, ModelError, ModelEvent,
    ModelReply, ModelSpec, OutputFormat, Part, ProviderAccess, Recorder, ReplayModel, Request, Response,
    Router, ScriptModel, Secret, StopReason, ToolChoice, ToolDefinition, ToolResult, Turn,
};

const SCRIPT: &str = r#"
# What the model says, turn by turn; tools really run.
turns:
  - text: I will look at the file first.
    calls: [{ tool: read_file, args: { path: sales.csv } }]
  - expect: { result_contains: north }
    calls: [{ tool: run_code, args: { language: python, code: "import csv; …", n: 1.0 } }, { tool: clock }]
    usage: { input: 12, output: 7 }
  - text: "North grew fastest, by {{ last.structured.value.growth | round(1) }} %, not {{ results[0].text }}."
    stop: max_tokens
"#;

fn script() -> ScriptModel {
    ScriptModel::parse("sales.yaml", SCRIPT).unwrap()
}

/// The script as values.
fn script_of_turns() -> ScriptModel {
    let turns = json!([
        { "text": "I will look at the file first.", "calls": [{ "tool": "read_file", "args": { "path": "sales.csv" } }] },
        {
            "expect": { "result_contains": "north" },
            "calls": [
                { "tool": "run_code", "args": { "language": "python", "code": "import csv; …", "n": 1.0 } },
                { "tool": "clock" },
            ],
            "usage": { "input": 12, "output": 7 },
        },
        {
            "text": "North grew fastest, by {{ last.structured.value.growth | round(1) }} %, not {{ results[0].text }}.",
            "stop": "max_tokens",
        },
    ]);
    ScriptModel::from_turns("sales.yaml", turns.as_array().unwrap().clone()).unwrap()
}

async fn events(model: &dyn Model, request: &Request) -> Vec<Result<ModelEvent, ModelError>> {
    model.stream(request).collect().await
}

fn say(request: &mut Request, response: &Response, results: Vec<ToolResult>) {
    request.turns.push(Turn::Assistant(response.to_turn()));
    request.turns.push(Turn::ToolResults(results));
}

/// The three turns of the script with their expected results.
async fn play(model: &dyn Model) -> Vec<Response> {
    let mut request = Request::new("Which region grew fastest?");
    let first = model.respond(&request).await.unwrap();
    say(&mut request, &first, vec![ToolResult::text("call_1_1", "read_file", "north,7")]);
    let second = model.respond(&request).await.unwrap();
    let mut last = ToolResult::text("call_2_1", "run_code", "12.345");
    last.structured = Some(json!({"value": {"growth": 12.345}}));
    say(&mut request, &second, vec![last]);
    let third = model.respond(&request).await.unwrap();
    vec![first, second, third]
}

#[tokio::test]
async fn a_script_of_values_equals_a_script_file() {
    assert_eq!(play(&script_of_turns()).await, play(&script()).await);
    let model = ScriptModel::from_turns("hello", ["Hello.".into()]).unwrap();
    assert_eq!(model.respond(&Request::new("Greet me.")).await.unwrap().text(), "Hello.");
    for (turns, expected) in [
        (vec![], "hello: turns: expected at least one"),
        (vec!["a".into(), json!({ "txt": "b" })], "hello: turn 2: unknown field `txt`"),
    ] {
        let error = ScriptModel::from_turns("hello", turns).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Script);
        assert!(error.message.starts_with(expected), "{error}");
    }
}

#[tokio::test]
async fn a_function_makes_the_turns_of_a_script() {
    let model = ScriptModel::from_fn("count", |request: &Request| match request.tool_results().count() {
        0 => Ok(json!({ "calls": [{ "tool": "count" }] })),
        1 => Ok(json!({ "expect": { "is_error": false }, "text": "{{ last.text }}" })),
        _ => Ok(json!({})),
    });
    let mut request = Request::new("Count.");
    let first = model.respond(&request).await.unwrap();
    assert_eq!(first.stop, StopReason::ToolUse);
    say(&mut request, &first, vec![ToolResult::text("call_1_1", "count", "42")]);
    let second = model.respond(&request).await.unwrap();
    assert_eq!(second.text(), "42");
    say(&mut request, &second, vec![ToolResult::text("call_2_1", "count", "43")]);
    let error = model.respond(&request).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Script);
    assert!(error.message.contains("turn 3"), "{error}");
}

#[tokio::test]
async fn a_script_is_played_turn_by_turn() {
    let answers = play(&script()).await;
    assert_eq!(answers[0].text(), "I will look at the file first.");
    assert_eq!(answers[0].stop, StopReason::ToolUse);
    assert_eq!(answers[0].model, "script");
    let calls: Vec<_> = answers[1].tool_calls().map(|item| item.view().clone()).collect();
    let ItemView::ToolCall { id, name, arguments: Ok(arguments) } = &calls[0] else { panic!("{calls:?}") };
    assert_eq!((id.as_str(), name.as_str()), ("call_2_1", "run_code"));
    assert_eq!(
        arguments.to_value().unwrap(),
        json!({"language": "python", "code": "import csv; …", "n": 1.0})
    );
    assert!(matches!(&calls[1], ItemView::ToolCall { arguments: Ok(raw), .. } if raw.get() == "{}"));
    assert_eq!((answers[1].usage.input, answers[1].usage.output), (12, 7));
    assert_eq!(answers[2].text(), "North grew fastest, by 12.3 %, not north,7.");
    assert_eq!(answers[2].stop, StopReason::MaxTokens);
}

#[tokio::test]
async fn a_script_streams_word_by_word() {
    let events = events(&script(), &Request::new("go")).await;
    let words: Vec<&str> = events
        .iter()
        .filter_map(|event| match event {
            Ok(ModelEvent::TextDelta { text, .. }) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(words, ["I ", "will ", "look ", "at ", "the ", "file ", "first."]);
    let Some(Ok(ModelEvent::Done(response))) = events.last() else { panic!("{events:?}") };
    let items: Vec<_> = events.iter().filter(|event| matches!(event, Ok(ModelEvent::Item(_)))).collect();
    assert_eq!(items.len(), response.items.len());
}

#[tokio::test]
async fn a_failed_expectation_names_both_values() {
    let check = async |expect: &str, result: Option<ToolResult>| {
        let text = format!("turns:\n  - text: a\n  - expect: {expect}\n    text: b\n");
        let model = ScriptModel::parse("x.yaml", &text).unwrap();
        let mut request = Request::new("go");
        let first = model.respond(&request).await.unwrap();
        say(&mut request, &first, result.into_iter().collect());
        model.respond(&request).await
    };
    let result = || {
        let mut result = ToolResult::text("1", "look", "south only");
        result.structured = Some(json!({"n": 1}));
        Some(result)
    };
    for right in [
        "{ result_contains: south }",
        "{ result_equals: south only }",
        "{ result_equals: {n: 1} }",
        "{ is_error: false }",
    ] {
        assert!(check(right, result()).await.is_ok(), "{right}");
    }
    for (wrong, result, parts) in [
        ("{ result_contains: north }", result(), ["expected \"north\"", "south only"]),
        ("{ result_equals: south }", result(), ["expected \"south\"", "south only"]),
        ("{ result_equals: {n: 1.0} }", result(), ["expected {\"n\":1.0}", "{\"n\":1}"]),
        ("{ is_error: true }", result(), ["expected true", "found false"]),
        ("{ is_error: true }", None, ["no tool was called", "turn 2"]),
    ] {
        let error = check(wrong, result).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ScriptExpectation);
        for part in parts {
            assert!(error.message.contains(part) && error.message.contains("turn 2"), "{wrong}: {error}");
        }
    }
}

#[tokio::test]
async fn an_exhausted_script_is_an_error() {
    let model = ScriptModel::parse("one.yaml", "turns:\n  - text: only\n").unwrap();
    let mut request = Request::new("go");
    let first = model.respond(&request).await.unwrap();
    request.turns.push(Turn::Assistant(first.to_turn()));
    let error = model.respond(&request).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ScriptExhausted);
    assert!(error.to_string().contains("script/one.yaml") && error.message.contains("1 turns"), "{error}");
    // Another conversation starts with the first turn.
    assert_eq!(model.respond(&Request::new("again")).await.unwrap().text(), "only");
}

/// A writer with a readable buffer.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

#[tokio::test]
async fn a_recording_can_be_replayed() {
    let written = Shared::default();
    let recorder = Recorder::new(Arc::new(script()), written.clone(), Vec::new());
    let answers = play(&recorder).await;
    let recording = written.text();
    assert_eq!(recording.lines().count(), 3);
    for line in recording.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["v"], 2);
        assert_eq!(line["model"], "script/sales.yaml");
    }
    let replay = ReplayModel::parse("sales.jsonl", &recording, Vec::new()).unwrap();
    assert_eq!(play(&replay).await, answers);
    let error = replay.respond(&Request::new("more")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ScriptExhausted);
}

#[tokio::test]
async fn the_recording_of_a_resumed_conversation_replays_without_its_history() {
    let written = Shared::default();
    let model = ScriptModel::parse("x", "turns: [{ text: One. }, { text: Two. }, { text: Three. }]").unwrap();
    let mut history = Request::new("first");
    history.push_response(&model.respond(&history).await.unwrap());
    let recorder = Recorder::new(Arc::new(model), written.clone(), Vec::new());
    let mut whole = history.clone();
    whole.turns.push(Turn::user("second"));
    let second = recorder.respond(&whole).await.unwrap();
    whole.push_response(&second);
    whole.turns.push(Turn::user("third"));
    let third = recorder.respond(&whole).await.unwrap();
    let replayed = async |begin: Request| {
        let replay = ReplayModel::parse("x", &written.text(), Vec::new()).unwrap();
        let mut request = begin;
        request.turns.push(Turn::user("second"));
        assert_eq!(replay.respond(&request).await?, second);
        request.push_response(&second);
        request.turns.push(Turn::user("third"));
        assert_eq!(replay.respond(&request).await?, third);
        Ok::<_, ModelError>(replay.remaining())
    };
    assert_eq!(replayed(history).await.unwrap(), 0);
    assert_eq!(replayed(Request::default()).await.unwrap(), 0);
    assert_eq!(replayed(Request::new("other")).await.unwrap_err().kind, ErrorKind::ReplayMismatch);
}

#[tokio::test]
async fn streams_and_errors_are_recorded() {
    let written = Shared::default();
    let recorder = Recorder::new(Arc::new(script()), written.clone(), Vec::new());
    let streamed = events(&recorder, &Request::new("go")).await;
    assert_eq!(written.text().lines().count(), 1);
    let replay = ReplayModel::parse("x", &written.text(), Vec::new()).unwrap();
    assert_eq!(events(&replay, &Request::new("go")).await, streamed);
    // A dropped stream records nothing; a failed request is recorded with its failure.
    recorder.stream(&Request::new("go")).next().await.unwrap().unwrap();
    let mut request = Request::new("go");
    for _ in 0..3 {
        request.turns.push(Turn::Assistant(toolpost_llm::AssistantTurn::new(
            toolpost_llm::ModelId::new("script", "x"),
            Vec::new(),
        )));
    }
    let error = recorder.respond(&request).await.unwrap_err();
    assert_eq!(written.text().lines().count(), 2);
    let replay = ReplayModel::parse("x", &written.text(), Vec::new()).unwrap();
    assert_eq!(replay.respond(&request).await.unwrap_err(), error);
    // Recordings of an earlier version parse; a line without answer and failure does not.
    let old = written.text().lines().next().unwrap().replacen("\"v\":2", "\"v\":1", 1);
    assert!(ReplayModel::parse("x", &old, Vec::new()).unwrap().respond(&Request::new("go")).await.is_ok());
    for wrong in [old.replacen("\"v\":1", "\"v\":3", 1), old.replacen("\"response\"", "\"answer\"", 1)] {
        assert_eq!(ReplayModel::parse("x", &wrong, Vec::new()).unwrap_err().kind, ErrorKind::Script);
    }
}

#[tokio::test]
async fn a_different_request_is_reported_with_its_differences() {
    let written = Shared::default();
    let recorder = Recorder::new(Arc::new(script()), written.clone(), Vec::new());
    recorder.respond(&Request::new("Which region?")).await.unwrap();
    let replay = ReplayModel::parse("x.jsonl", &written.text(), Vec::new()).unwrap();
    let mut request = Request::new("Which country?");
    request.settings.temperature = Some(0.5);
    let error = replay.respond(&request).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReplayMismatch);
    let text = error.to_string();
    for part in [
        "/turns/0/user/0/text",
        "\"Which region?\"",
        "\"Which country?\"",
        "/settings/temperature",
        "found 0.5",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The matching request still gets the answer.
    assert!(replay.respond(&Request::new("Which region?")).await.is_ok());
}

#[tokio::test]
async fn recorded_requests_may_come_in_another_order() {
    let written = Shared::default();
    let recorder = Recorder::new(Arc::new(script()), written.clone(), Vec::new());
    for prompt in ["a", "b", "c"] {
        recorder.respond(&Request::new(prompt)).await.unwrap();
    }
    let replay = ReplayModel::parse("x.jsonl", &written.text(), Vec::new()).unwrap();
    for prompt in ["c", "a", "b"] {
        replay.respond(&Request::new(prompt)).await.unwrap();
    }
    assert!(replay.respond(&Request::new("a")).await.is_err());
}

#[tokio::test]
async fn secrets_are_not_recorded() {
    let secrets = vec![Secret::new("pa\"ss-canary-77")];
    let written = Shared::default();
    let recorder = Recorder::new(Arc::new(script()), written.clone(), secrets.clone());
    let request = Request::new("use pa\"ss-canary-77 please");
    recorder.respond(&request).await.unwrap();
    assert!(!written.text().contains("canary-77"), "{}", written.text());
    let replay = ReplayModel::parse("x.jsonl", &written.text(), secrets).unwrap();
    replay.respond(&request).await.unwrap();
}

#[tokio::test]
async fn recordings_contain_no_secret() {
    const KEY: &str = "sk-canary-77/x+y";
    let options = |value: serde_json::Value| value.as_object().unwrap().clone();
    let mut request = Request::new(format!("use {KEY}, {}", STANDARD.encode(format!("user:{KEY}"))));
    request.system = Some(format!("The key is {KEY}."));
    request.turns.push(Turn::User(vec![Part::Document(Media::from_bytes("text/plain", KEY.as_bytes()))]));
    request.turns.push(Turn::ToolResults(vec![ToolResult {
        structured: Some(
            serde_json::json!({ "key": KEY, "json": serde_json::json!({ "in": KEY }).to_string() }),
        ),
        ..ToolResult::text("1", "look", KEY)
    }]));
    let mut tool = ToolDefinition::new("look", KEY, &serde_json::json!({ "default": KEY }));
    tool.provider_options = options(serde_json::json!({ "headers": { "X-Auth": "named-canary-1" } }));
    request.tools = vec![tool].into();
    request.hosted_tools = vec![HostedTool::Raw(
        (&serde_json::json!({ "type": "mcp", "authorization": "named-canary-2" })).into(),
    )];
    request.provider_options = options(serde_json::json!({
        "mcp_servers": [{ "url": format!("https://x/?key={KEY}"), "authorization_token": "named-canary-3" }],
        "note": "the token is named-canary-3",
    }));
    request.betas = vec![KEY.to_owned()];
    request.metadata = options(serde_json::json!({ "user_id": KEY }));
    request.settings.stop = vec![KEY.to_owned()];
    let script = format!(
        "turns: [{{ text: {KEY:?}, calls: [{{ tool: look, args: {{ key: {KEY:?}, again: named-canary-2 }} }}] }}]"
    );
    let model = ScriptModel::parse("s.yaml", &script).unwrap();
    let written = Shared::default();
    let secrets = vec![Secret::new(KEY)];
    let recorder = Recorder::new(Arc::new(model), written.clone(), secrets.clone());
    recorder.respond(&request).await.unwrap();
    // A failed request whose error contains the secret.
    let expecting = format!("turns: [{{ expect: {{ result_contains: {:?} }}, text: x }}]", format!("{KEY}!"));
    let failing = ScriptModel::parse("t.yaml", &expecting).unwrap();
    let recorder = Recorder::new(Arc::new(failing), written.clone(), secrets.clone());
    assert!(recorder.respond(&request).await.is_err());
    let text = written.text();
    assert_eq!(text.lines().count(), 2);
    for canary in ["canary", "Y2FuYXJ5", "NhbmFye", "jYW5hcn"] {
        assert!(!text.contains(canary), "{canary}: {text}");
    }
    let replay = ReplayModel::parse("x.jsonl", &text, secrets).unwrap();
    replay.respond(&request).await.unwrap();
}

#[tokio::test]
async fn an_unwritable_recording_is_an_error() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let recorder = Recorder::new(Arc::new(script()), Full, Vec::new());
    let error = recorder.respond(&Request::new("go")).await.unwrap_err();
    assert!(error.message.contains("cannot write the recording"), "{error}");
    let last = events(&recorder, &Request::new("go")).await.pop().unwrap();
    assert_eq!(last.unwrap_err().kind, ErrorKind::Script);
}

#[test]
fn the_error_of_an_invalid_recording_names_the_line() {
    for (text, part) in [
        ("", "empty"),
        ("{}\n", "line 1"),
        ("\n{\"v\":2,\"model\":\"a/b\",\"request\":{},\"response\":7}\n", "line 2"),
        ("not json", "line 1"),
    ] {
        let error = ReplayModel::parse("x.jsonl", text, Vec::new()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Script);
        assert!(error.message.contains("x.jsonl") && error.message.contains(part), "{error}");
    }
}

#[test]
fn the_router_opens_files_and_providers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a script.yaml");
    std::fs::write(&path, SCRIPT).unwrap();
    let access = ProviderAccess { key: Some(Secret::new("sk-canary")), ..ProviderAccess::default() };
    let access = BTreeMap::from([("anthropic".to_owned(), access)]);
    let router = Router::new(HttpOptions { no_network: true, ..HttpOptions::default() }, access);
    let open = |text: &str| router.open(&ModelSpec::parse(text).unwrap());
    let model = open(&format!("script:{}", path.display())).unwrap();
    assert_eq!(model.id().provider, "script");
    let error = open(&format!("script:{}", directory.path().join("missing.yaml").display())).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Script);
    assert!(
        error.message.contains("missing.yaml") && error.message.contains("cannot open the file"),
        "{error}"
    );
    let error = open(&format!("replay:{}", path.display())).unwrap_err();
    assert!(error.message.contains("line 2"), "{error}");
    assert_eq!(open("claude-x").unwrap().id().to_string(), "anthropic/claude-x");
    assert!(!format!("{router:?}").contains("canary"));
}

#[tokio::test]
async fn a_function_model_answers_with_its_result() {
    let model = FunctionModel::new("sums", |request: &Request| {
        Ok(match request.tool_results().last() {
            None => ModelReply::text("I add.")
                .and_call("add", json!({ "a": 1 }))
                .and_call("add", json!({}))
                .with_usage(7, 3),
            Some(result) if result.is_error => {
                return Err(ModelError::new(ErrorKind::Overloaded, "too much"));
            }
            Some(result) => ModelReply::text(result.joined_text()).with_stop(StopReason::MaxTokens),
        })
    });
    let mut request = Request::new("go");
    let response = model.respond(&request).await.unwrap();
    let ids: Vec<String> = response
        .tool_calls()
        .filter_map(|item| match item.view() {
            ItemView::ToolCall { id, .. } => Some(id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ids, ["call_1_1", "call_1_2"]);
    assert_eq!(
        (response.text().as_str(), &response.stop, response.usage.total()),
        ("I add.", &StopReason::ToolUse, 10)
    );
    request.push_response(&response);
    request.turns.push(Turn::ToolResults(vec![ToolResult::text("call_1_1", "add", "1")]));
    let response = model.respond(&request).await.unwrap();
    assert_eq!((response.text().as_str(), &response.stop), ("1", &StopReason::MaxTokens));
    let failed = ToolResult { is_error: true, ..ToolResult::text("call_1_1", "add", "no") };
    request.turns.push(Turn::ToolResults(vec![failed]));
    let error = model.respond(&request).await.unwrap_err();
    assert_eq!(
        (error.kind, error.details.model.unwrap().to_string()),
        (ErrorKind::Overloaded, "function/sums".into())
    );
}

#[tokio::test]
async fn the_schema_model_calls_every_tool_once() {
    let schema = json!({
        "type": "object", "required": ["n"],
        "properties": { "n": { "type": "integer", "minimum": 5 }, "why": { "type": "string" } },
    });
    let tools = vec![
        ToolDefinition::new("one", "", &schema),
        ToolDefinition::new("two", "", &json!({"type": "object"})),
    ];
    let request = Request { tools: tools.into(), ..Request::new("go") };
    let arguments = |response: &Response| -> Vec<String> {
        let items = response.tool_calls().map(Item::view);
        items
            .filter_map(|view| match view {
                ItemView::ToolCall { name, arguments, .. } => {
                    Some(format!("{name} {}", arguments.as_ref().unwrap()))
                }
                _ => None,
            })
            .collect()
    };
    let router = Router::default();
    let all = router.open(&ModelSpec::parse("schema:").unwrap()).unwrap();
    let response = all.respond(&request).await.unwrap();
    assert_eq!(arguments(&response), [r#"one {"n":5,"why":"text"}"#, "two {}"]);
    let required = router.open(&ModelSpec::parse("schema:required").unwrap()).unwrap();
    assert_eq!(arguments(&required.respond(&request).await.unwrap()), [r#"one {"n":5}"#, "two {}"]);

    let mut only = request.clone();
    only.tool_choice = Some(ToolChoice::Tool("two".into()));
    assert_eq!(arguments(&all.respond(&only).await.unwrap()), ["two {}"]);
    only.tool_choice = Some(ToolChoice::None);
    assert_eq!(all.respond(&only).await.unwrap().text(), "There was no tool to call.");

    let mut told = request.clone();
    told.push_response(&response);
    let failed = ToolResult { is_error: true, ..ToolResult::text("call_1_2", "two", "") };
    told.turns.push(Turn::ToolResults(vec![ToolResult::text("call_1_1", "one", ""), failed]));
    assert_eq!(all.respond(&told).await.unwrap().text(), "Called one (ok), two (failed).");
    told.settings.output = Some(OutputFormat::schema(&schema));
    assert_eq!(all.respond(&told).await.unwrap().text(), r#"{"n":5,"why":"text"}"#);
    told.settings.output = Some(OutputFormat::Json);
    assert_eq!(all.respond(&told).await.unwrap().text(), "{}");
}
