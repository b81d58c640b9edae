//! Tests of programs that follow the protocol.

use std::time::Duration;

use serde_json::{Map, Value, json};
use toolpost_core::{Answer, Call, Code, Output, Status, ToolSource as _};

use super::{Programs, call, error, only, outcome, port, shell, shown, source, value, with};

#[tokio::test(flavor = "multi_thread")]
async fn envelopes_are_parsed() {
    let programs = Programs::new();
    for (name, line, expected) in [
        ("object", r#"{"status":"success","result":{"a":1}}"#, json!({"a": 1})),
        ("wrapped", r#"{"status":"success","result":{"result":[1,2]}}"#, json!([1, 2])),
        // What the first implementation prints for a result that has a `status` of its own.
        ("shipped", r#"{"status":"shipped","order":7}"#, json!({"status": "shipped", "order": 7})),
        ("domain", r#"{"status":"success","items":[1]}"#, json!({"status": "success", "items": [1]})),
        ("failed", r#"{"status":"error","order":7}"#, json!({"status": "error", "order": 7})),
        ("pretty", "{\n  \"status\": \"success\",\n  \"result\": {\n    \"a\": 2\n  }\n}", json!({"a": 2})),
        (
            "stray",
            "debugging\n{\"x\":1}\n{\"status\":\"success\",\"result\":{\"a\":3}}\nbye",
            json!({"a": 3}),
        ),
        ("no_end", r#"{"status":"success","result":{"a":4}}"#, json!({"a": 4})),
    ] {
        let end = if name == "no_end" { "printf %s" } else { "printf '%s\\n'" };
        let path = programs.tool(name, &json!({}), &format!("{end} '{line}'"));
        let tools = source().path(path).discover().await;
        assert_eq!(outcome(&call(&tools, "t", json!({})).await.result), Ok(expected), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_and_partial_results_keep_their_facts() {
    let (_programs, tools) = only(
        r#"echo '{"status":"error","error":{"code":"INVALID_PATH","message":"no file","recoverable":true,"suggestion":"Look.","context":{"pointer":"/path"}}}'"#,
    )
    .await;
    let reply = call(&tools, "t", json!({})).await;
    let error = error(&reply);
    assert_eq!(
        (error.code(), error.message(), error.suggestion()),
        (Code::InvalidPath, "no file", Some("Look."))
    );
    assert_eq!(error.context()["pointer"], "/path");
    assert_eq!(reply.record.status, Status::Error);
    let (_programs, tools) = only(
        r#"echo '{"status":"partial","result":{"done":[1]},"summary":{"total":2,"succeeded":1,"failed":1,"recoverable_failures":1},"errors":[{"code":"NOT_FOUND","message":"b","recoverable":true}]}'"#,
    )
    .await;
    let reply = call(&tools, "t", json!({})).await;
    let output = reply.result.as_ref().unwrap();
    assert_eq!((output.status(), reply.record.status), (Status::Partial, Status::Partial));
    assert_eq!(output.partial.as_ref().unwrap().errors[0].code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_notifications_reach_the_port() {
    let body = r#"
[ "$3" = --stream ] || exit 9
echo '{"type":"notification","kind":"log","level":"warning","message":"beside"}' >&2
echo '{"type":"progress","message":"half","percent":50}'
echo '{"type":"log","level":"info","message":"going"}'
echo '{"type":"artifact","name":"a.txt","uri":"data:text/plain;base64,aGk="}'
echo '{"type":"artifact","name":"../../evil","uri":"data:,x"}'
echo '{"type":"artifact","name":"shadow","uri":"file:///etc/passwd"}'
echo '{"type":"result","status":"success","result":{"n":1}}'"#;
    let (_programs, tools) = with(&json!({"streaming": true}), body).await;
    let port = port();
    let reply = tools.call(Call::new("t", json!({})).with_port(port.clone())).await;
    assert_eq!(value(&reply), json!({"n": 1}));
    let heard = port.heard();
    assert_eq!((heard.progress[0].message.as_str(), heard.progress[0].percent), ("half", Some(50.0)));
    let log: Vec<&str> = heard.log.iter().map(|line| line.message.as_str()).collect();
    assert!(log.contains(&"beside") && log.contains(&"going"), "{log:?}");
    assert!(log.iter().any(|line| line.contains("`../../evil` was dropped: its name")), "{log:?}");
    assert!(log.iter().any(|line| line.contains("`shadow` was dropped")), "{log:?}");
    assert_eq!(heard.artifacts.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["a.txt"]);
    assert_eq!((heard.artifacts[0].size, reply.record.artifacts.len()), (2, 1));
}

const SESSION: &str = r#"
[ "$3" = --session ] || exit 9
echo '{"type":"session_start","message":"Guess.","prompt":"> "}'
read -r first
echo '{"type":"awaiting_input","prompt":"again> "}'
read -r second
echo '{"type":"session_end","status":"success"}'
echo "{\"status\":\"success\",\"result\":{\"first\":$first,\"second\":$second}}""#;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_ask_the_caller() {
    let (_programs, tools) = with(&json!({"session_mode": true}), SESSION).await;
    let port = port();
    port.answer(Answer::Given { value: json!({"action": "guess", "n": 7}) });
    port.answer(Answer::Given { value: json!("eight") });
    let reply = tools.call(Call::new("t", json!({})).with_port(port.clone())).await;
    assert_eq!(
        value(&reply),
        json!({
            "first": {"action": "guess", "n": 7},
            "second": {"action": "eight", "input": "eight", "value": "eight"},
        })
    );
    let asked: Vec<String> = port.heard().questions.iter().map(|question| question.message.clone()).collect();
    assert_eq!(asked, ["Guess.", "again> "]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_session_gets_quit() {
    let (_programs, tools) = with(&json!({"session_mode": true}), SESSION).await;
    let port = port();
    port.answer(Answer::Declined);
    port.answer(Answer::Declined);
    let reply = tools.call(Call::new("t", json!({})).with_port(port)).await;
    assert_eq!(error(&reply).code(), Code::Cancelled);
    // The port answers no questions.
    assert_eq!(error(&call(&tools, "t", json!({})).await).code(), Code::Precondition);
    // A session has more time than a call, and no more than that.
    let programs = Programs::new();
    let path =
        programs.tool("waits", &json!({"session_mode": true}), "sleep 2; echo '{\"status\":\"success\"}'");
    let tools = source().path(&path).timeout(Duration::from_millis(300)).discover().await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), Value::Null);
    let tools = source().path(path).session_timeout(Duration::from_millis(300)).discover().await;
    assert_eq!(error(&call(&tools, "t", json!({})).await).code(), Code::Timeout);
}

#[tokio::test(flavor = "multi_thread")]
async fn prompts_are_completed_by_the_callers_model() {
    struct Model;
    impl toolpost_core::Port for Model {
        fn sample<'a>(
            &'a self,
            _call: toolpost_core::CallId,
            request: &'a toolpost_core::SampleRequest,
        ) -> toolpost_core::BoxFuture<'a, Result<toolpost_core::Sample, toolpost_core::ToolError>> {
            let content = format!("{}/{}", request.prompt, request.max_tokens);
            Box::pin(async { Ok(toolpost_core::Sample { content, usage: None }) })
        }
    }
    let body = r#"
[ "$3 $4" = "--sample-via stdin" ] || { echo '{"status":"success","result":{"flags":"none"}}'; exit; }
echo '{"type":"sample_request","id":"0a1b2c3d","prompt":"a poem","max_tokens":10}'
read -r line
echo "{\"status\":\"success\",\"result\":$line}""#;
    let (programs, tools) = only(body).await;
    let reply = tools.call(Call::new("t", json!({})).with_port(std::sync::Arc::new(Model))).await;
    assert_eq!(value(&reply), json!({"type": "sample_response", "id": "0a1b2c3d", "content": "a poem/10"}));
    let without = source().path(programs.path().join("program")).sampling(false).discover().await;
    assert_eq!(value(&call(&without, "t", json!({})).await), json!({"flags": "none"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_sampling_a_sampling_program_is_rejected() {
    let programs = Programs::new();
    let body = "echo '{\"type\":\"sample_request\",\"id\":\"1\",\"prompt\":\"p\",\"max_tokens\":1}'; echo '{\"status\":\"success\",\"result\":1}'";
    let tools = source().path(programs.tool("asks", &json!({}), body)).sampling(false).discover().await;
    let reply = tools.call(Call::new("t", json!({})).with_port(port())).await;
    assert_eq!(error(&reply).code(), Code::Precondition, "{reply:?}");
    assert!(error(&reply).message().contains("sampling is disabled"), "{reply:?}");
}

/// Tools of both dialects with a sensitive argument, that print where they got it, and it, in many ways.
async fn leaking(programs: &super::Programs, protocol: &str) -> toolpost_exec::client::Executables {
    let body = r#"
if [ "$2" = - ]; then how=input; text=$(cat); else how=line; text=$2; fi
echo "{\"type\":\"log\",\"level\":\"info\",\"message\":\"heard-canary-7c1f\"}"
echo "{\"type\":\"progress\",\"message\":\"working on canary-7c1f\"}"
echo "stderr $text" >&2
case $text in *fail*) echo "{\"status\":\"error\",\"error\":{\"code\":\"NOT_FOUND\",\"message\":\"not canary-7c1f\",\"details\":{\"in\":[\"canary-7c1f\"]}}}"; exit 3;; esac
echo "{\"status\":\"success\",\"result\":{\"how\":\"$how\"}}""#;
    let entry = json!([{"name": "t", "summary": "T.", "streaming": true, "sensitive": ["pw"], "schema": {
        "type": "object", "properties": {"pw": {"type": "string"}, "do": {"type": "string"}}}}]);
    let program = json!({"name": "e", "version": "1", "protocol": protocol, "tools": entry});
    source().path(programs.write("leaking", &shell(&program, body))).discover().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sensitive_arguments_use_standard_input_where_possible() {
    let programs = super::Programs::new();
    let tools = leaking(&programs, "0.1+toolpost.1").await;
    assert_eq!(tools.list().await.unwrap()[0].sensitive, ["pw"], "{:?}", super::shown(&tools));
    let arguments = json!({"pw": "canary-7c1f"});
    assert_eq!(value(&call(&tools, "t", arguments.clone()).await), json!({"how": "input"}));
    let mut dry = Call::new("t", arguments.clone());
    dry.options.dry_run = true;
    assert_eq!(value(&tools.call(dry).await)["would_execute"], json!({"pw": "[secret]"}));
    let tools = leaking(&programs, "0.1").await;
    assert_eq!(value(&call(&tools, "t", arguments).await), json!({"how": "line"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn sensitive_arguments_are_in_no_record_log_and_event() {
    let programs = super::Programs::new();
    let tools = leaking(&programs, "0.1+toolpost.1").await;
    let events = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = std::sync::Arc::clone(&events);
    let toolbox = toolpost_toolbox::Toolbox::builder()
        .on_event(move |event: &toolpost_core::Event| {
            sink.lock().unwrap().push(serde_json::to_string(event).unwrap());
        })
        .build()
        .unwrap();
    toolbox.add_source(std::sync::Arc::new(tools)).await.unwrap();
    let port = port();
    let arguments = json!({"pw": "canary-7c1f", "do": "fail"});
    let reply = toolbox.call(Call::new("t", arguments).with_port(port.clone())).await;
    let error = format!("{:?}", error(&reply));
    let record = serde_json::to_string(&*reply.record).unwrap();
    let (heard, events) = (format!("{:?}", port.heard()), format!("{:?}", events.lock().unwrap()));
    for (what, text) in [("error", error), ("record", record), ("port", heard), ("events", events)] {
        assert!(!text.contains("canary"), "{what}: {text}");
        assert!(text.contains("[secret]"), "{what}: {text}");
    }
    assert_eq!(reply.record.children.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_sampling_standard_input_is_empty() {
    let programs = Programs::new();
    let path =
        programs.tool("reads", &json!({}), "cat >/dev/null; echo '{\"status\":\"success\",\"result\":1}'");
    let tools = source().path(path).sampling(false).discover().await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), json!(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_checked_before_anything_starts() {
    let schema =
        json!({"schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}});
    let (_programs, tools) = with(&schema, "printf '{\"status\":\"success\",\"result\":%s}\\n' \"$2\"").await;
    assert_eq!(value(&call(&tools, "t", json!({"n": 1})).await), json!({"n": 1}));
    assert_eq!(error(&call(&tools, "t", json!({})).await).code(), Code::MissingParam);
    assert_eq!(error(&call(&tools, "t", json!({"n": "x"})).await).code(), Code::InvalidInput);
    assert_eq!(error(&call(&tools, "t", json!([])).await).code(), Code::InvalidInput);
    let unknown = call(&tools, "tt", json!({})).await;
    assert_eq!(error(&unknown).code(), Code::NotFound);
    assert_eq!(unknown.record.attempts, 1);
    let mut dry = Call::new("t", json!({"n": 1}));
    dry.options.dry_run = true;
    assert_eq!(value(&tools.call(dry).await), json!({"dry_run": true, "would_execute": {"n": 1}}));
    // A tool that declares it has a dry run of its own.
    let schema = json!({"schema": {"type": "object", "properties": {"dry_run": {"type": "boolean"}}}});
    let (_programs, tools) = with(&schema, "printf '{\"status\":\"success\",\"result\":%s}\\n' \"$2\"").await;
    let mut dry = Call::new("t", json!({}));
    dry.options.dry_run = true;
    assert_eq!(value(&tools.call(dry).await), json!({"dry_run": true}));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_arguments_go_over_standard_input_where_the_program_takes_them() {
    let body = r#"
if [ "$2" = - ]; then size=$(wc -c); else size=${#2}; fi
echo "{\"status\":\"success\",\"result\":{\"how\":\"$(printf %.1s "$2")\",\"size\":$size}}""#;
    let large = json!({"x": "y".repeat(3_000_000)});
    let programs = Programs::new();
    let entry = json!([{"name": "t", "summary": "T.", "schema": {"type": "object"}}]);
    let extended = json!({"name": "e", "version": "1", "protocol": "0.1+toolpost.1", "tools": entry});
    let tools = source().path(programs.write("extended", &shell(&extended, body))).discover().await;
    assert_eq!(value(&call(&tools, "t", large.clone()).await), json!({"how": "-", "size": 3_000_008}));
    assert_eq!(value(&call(&tools, "t", json!({"x": 1})).await)["how"], "{");
    let original = json!({"name": "e", "version": "1", "tools": entry});
    let tools = source().path(programs.write("original", &shell(&original, body))).discover().await;
    let reply = call(&tools, "t", large).await;
    assert_eq!(error(&reply).code(), Code::Limit);
    assert!(error(&reply).message().contains("3000008 bytes"), "{:?}", reply.result);
    let near = json!({"x": "y".repeat(110_000)});
    assert_eq!(value(&call(&tools, "t", near).await), json!({"how": "{", "size": 110_008}));
    let tools = source().path(programs.path().join("extended")).discover().await;
    let reply = call(&tools, "t", json!({"x": "y".repeat(17 << 20)})).await;
    assert_eq!(error(&reply).code(), Code::Limit);
}

#[tokio::test(flavor = "multi_thread")]
async fn resources_are_read_and_prompts_rendered() {
    let discovery = json!({
        "name": "n", "version": "1", "tools": [],
        "resources": [
            {"uri_pattern": "notes://{id}", "summary": "A note.", "mime_types": ["text/plain"], "tags": ["x"]},
            {"uri_pattern": "{a}{a}", "summary": "Bad."},
        ],
        "prompts": [{"name": "hello", "summary": "Greets.", "arguments": {"who": "Whom."}, "tags": []}],
    });
    let body = r#"
case "$1 $2" in
"--resource notes://1") echo '{"id":1}';;
"--resource notes://2") echo '"text"';;
"--resource "*) echo '{"status":"error","error":{"code":"NOT_FOUND","message":"no note","recoverable":true}}';;
"--prompt hello") case "$3" in *who*) printf '{"messages":[%s]}\n' "$3";; esac;;
esac"#;
    let programs = Programs::new();
    let tools = source().path(programs.write("notes", &shell(&discovery, body))).discover().await;
    assert_eq!(shown(&tools).len(), 1);
    let resources = tools.resources().await.unwrap();
    assert_eq!((resources.len(), resources[0].uri_pattern.as_str()), (1, "notes://{id}"));
    assert_eq!(tools.prompts().await.unwrap()[0].arguments[0].name, "who");
    let read = |result: Result<Output, _>| outcome(&result);
    assert_eq!(read(tools.read_resource("notes://1").await), Ok(json!({"id": 1})));
    assert_eq!(read(tools.read_resource("notes://2").await), Ok(json!("text")));
    assert_eq!(read(tools.read_resource("notes://3").await), Err((Code::NotFound, "no note".into())));
    let missing = tools.read_resource("other://3").await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let arguments = |value: Value| value.as_object().cloned().unwrap_or_else(Map::new);
    let rendered = tools.render_prompt("hello", &arguments(json!({"who": "Ada"}))).await;
    assert_eq!(read(rendered), Ok(json!({"messages": [{"who": "Ada"}]})));
    let wrong = tools.render_prompt("hello", &arguments(json!({"whom": "Ada"}))).await.unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidInput);
    // The first implementation prints nothing when an argument is missing.
    let silent = tools.render_prompt("hello", &Map::new()).await.unwrap_err();
    assert!(silent.message().contains("printed nothing"), "{silent:?}");
    assert_eq!(tools.render_prompt("nobody", &Map::new()).await.unwrap_err().code(), Code::NotFound);
}

/// The requests of the development line 0.2: one JSON object, or `TOOL --manifest`.
const COMMAND_LINE: &str = r#"
import json, sys
args = sys.argv[1:]
if args == ["--discover"]:
    print(json.dumps({"name": "tool", "version": "0.2.0", "tools": [{"name": "add", "summary": "Adds.", "streaming": False, "session_mode": False}], "resources": [], "prompts": []}, indent=2))
elif len(args) == 2 and args[1] == "--manifest":
    print(json.dumps({"name": args[0], "summary": "Adds.", "description": "", "streaming": False, "session_mode": False, "schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}))
elif args and args[0].startswith("{"):
    asked = json.loads(args[0])
    print(json.dumps({"status": "success", "result": {"command": asked["command"], "sum": sum(asked["params"].values())}}))
else:
    print("Usage: tool [OPTIONS] COMMAND", file=sys.stderr)
    sys.exit(2)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn both_dialects_are_spoken_and_python_files_run_by_the_interpreter() {
    let programs = Programs::new();
    let path = programs.path().join("newer.py");
    std::fs::write(&path, COMMAND_LINE).unwrap();
    let tools = source().path(path).discover().await;
    assert_eq!(shown(&tools), Vec::<String>::new());
    assert_eq!(
        value(&call(&tools, "add", json!({"a": 1, "b": 2})).await),
        json!({"command": "add", "sum": 3})
    );
    assert_eq!(error(&call(&tools, "add", json!({"a": 1})).await).code(), Code::MissingParam);
    // A program of the original grammar may have this very version.
    let discovery =
        json!({"name": "o", "version": "0.2.0", "tools": [{"name": "t", "schema": {"type": "object"}}]});
    let body = r#"case "$1" in --tools) echo '{"tools":[]}';; *) printf '{"status":"success","result":["%s"]}\n' "$1";; esac"#;
    let tools = source().path(programs.write("old", &shell(&discovery, body))).discover().await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), json!(["t"]));
}
