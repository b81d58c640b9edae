//! Programs that do not keep to the protocol: each costs its own call, in bounded time and memory.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::{Call, Cancellation, Code, ToolSource as _};
use toolpost_sandbox::Limits;
use toolpost_testkit::eventually;

use super::{Programs, call, error, names, only, outcome, port, shell, shown, source, value, with};
use crate::host::is_running;

/// The body of a tool, and the code and a part of the message that its call ends with.
const ROWS: &[(&str, &str, Code, &str)] = &[
    ("nothing", "exit 0", Code::Dependency, "printed nothing"),
    ("garbage", "echo hello; echo world", Code::Dependency, "printed no envelope: expected value"),
    ("binary", "head -c 4000 /dev/urandom", Code::Dependency, "printed no envelope"),
    (
        "no UTF-8",
        "printf '{\"status\":\"success\",\"result\":\"\\377\"}\\n'",
        Code::Dependency,
        "invalid unicode",
    ),
    (
        "NUL",
        "printf '{\"status\":\"success\",\"result\":\"\\000\"}\\n'",
        Code::Dependency,
        "control character",
    ),
    ("a list", "echo '[1]'", Code::Dependency, "not an object"),
    ("no envelope", "echo '{\"a\":1}'", Code::Dependency, "an object with `status`, found {\"a\":1}"),
    (
        "exit 0 with an error",
        "echo '{\"status\":\"error\",\"error\":{\"code\":\"NOT_FOUND\",\"message\":\"no such note\",\"recoverable\":true}}'",
        Code::NotFound,
        "no such note",
    ),
    (
        "an unknown code",
        "echo '{\"status\":\"error\",\"error\":{\"code\":\"E42\",\"message\":\"odd\"}}'; exit 7",
        Code::Dependency,
        "odd",
    ),
    (
        "a success with a bad status",
        "echo '{\"status\":\"success\",\"result\":{\"a\":1}}'; exit 3",
        Code::Dependency,
        "exited with status 3, after it had reported success",
    ),
    (
        "a success and a signal",
        "echo '{\"status\":\"success\",\"result\":{\"a\":1}}'; kill -SEGV $$",
        Code::Dependency,
        "killed by signal 11, after",
    ),
    ("a bad status", "echo oh no >&2; exit 3", Code::Dependency, "exited with status 3"),
    ("a signal", "kill -KILL $$", Code::Dependency, "signal 9"),
    ("half a line", "printf '{\"status\":\"succ'", Code::Dependency, "EOF while parsing"),
    (
        "deep JSON",
        "printf '{\"status\":\"success\",\"result\":'; head -c 100000 /dev/zero | tr '\\0' '['; echo",
        Code::Dependency,
        "recursion limit",
    ),
    ("one endless line", "exec tr '\\0' x < /dev/zero", Code::Limit, "a line above 4 MiB or 500000 values"),
    (
        "many values",
        "printf '{\"status\":\"success\",\"result\":[0'; head -c 1200000 /dev/zero | tr '\\0' , | sed 's/,/,{}/g'; echo ']}'",
        Code::Limit,
        "500000 values",
    ),
    (
        "a gigabyte of lines",
        "exec yes '{\"type\":\"log\",\"message\":\"x\"}'",
        Code::Limit,
        "printed more than 100000 lines",
    ),
    (
        "a gigabyte of long lines",
        "exec yes \"$(head -c 100000 /dev/zero | tr '\\0' x)\"",
        Code::Limit,
        "printed more than 64 MiB",
    ),
    ("a gigabyte of errors", "exec yes >&2", Code::Limit, "printed more than 16 MiB"),
    (
        "notifications without end",
        "exec yes '{\"type\":\"notification\",\"kind\":\"log\",\"level\":\"info\",\"message\":\"xxxxxxxxxxxxxxxxxxx\"}' >&2",
        Code::Limit,
        "printed more than 100000 lines",
    ),
    (
        "prompts without end",
        "exec yes '{\"type\":\"sample_request\",\"id\":\"1\",\"prompt\":\"p\",\"max_tokens\":1}'",
        Code::Precondition,
        "cannot sample from a model",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_bad_program_is_a_clear_error() {
    let programs = Programs::new();
    for (name, body, code, part) in ROWS {
        let path = programs.tool(&name.replace(' ', "_"), &json!({}), body);
        let tools = source().path(path).discover().await;
        assert_eq!(shown(&tools), Vec::<String>::new(), "{name}");
        let reply = call(&tools, "t", json!({})).await;
        let (found, message) = outcome(&reply.result).unwrap_err();
        assert_eq!(found, *code, "{name}: {message}");
        assert!(message.contains(part), "{name}: {message}");
        assert!(message.len() < 2_000 && !message.contains('\0'), "{name}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stderr_is_part_of_the_error() {
    let (_programs, tools) =
        only("seq 100000 >&2; printf 'Trace\\033[31m: no module `x`\\n' >&2; exit 1").await;
    let reply = call(&tools, "t", json!({})).await;
    let stderr = error(&reply).context()["stderr"].as_str().unwrap();
    assert!(stderr.len() < 3_000 && stderr.ends_with("\\u{1b}[31m: no module `x`"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_program_is_killed_at_the_timeout() {
    let programs = Programs::new();
    for (name, body) in [
        ("sleeps", "sleep 91001"),
        ("deaf", "trap '' TERM INT HUP; while :; do sleep 91001; done"),
        ("reads", "cat >/dev/null"),
        ("streams", "echo '{\"type\":\"progress\",\"message\":\"half\"}'; sleep 91001"),
    ] {
        let path = programs.tool(name, &json!({}), body);
        let tools = source().path(path).timeout(Duration::from_millis(400)).discover().await;
        let begun = Instant::now();
        let reply = call(&tools, "t", json!({})).await;
        let (code, message) = outcome(&reply.result).unwrap_err();
        assert_eq!(code, Code::Timeout, "{name}: {message}");
        assert!(message.contains("timed out after 400 ms"), "{name}: {message}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{name}");
    }
    assert!(!is_running("sleep\091001"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_returned_before_the_program_exits() {
    let body = "echo '{\"status\":\"success\",\"result\":{\"a\":1}}'; sleep 91002";
    let (_programs, tools) = only(body).await;
    let port = port();
    let reply = tools.call(Call::new("t", json!({})).with_port(port.clone())).await;
    assert_eq!(value(&reply), json!({"a": 1}));
    assert!(port.heard().log[0].message.contains("did not exit"));
    // A child that keeps the output open dies with its parent.
    let (_programs, tools) =
        only("(setsid sleep 91002 &); echo '{\"status\":\"success\",\"result\":2}'").await;
    assert_eq!(value(&call(&tools, "t", json!({})).await), json!(2));
    assert!(!is_running("sleep\091002"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancellation_and_drop_kill_the_program() {
    let (_programs, tools) = only("sleep 91003").await;
    let cancellation = Cancellation::new();
    let stop = cancellation.clone();
    let begun = Instant::now();
    let (reply, ()) =
        tokio::join!(tools.call(Call::new("t", json!({})).with_cancellation(cancellation)), async move {
            eventually("the program runs", async || is_running("sleep\091003")).await;
            stop.cancel();
        });
    assert_eq!(error(&reply).code(), Code::Cancelled);
    assert!(begun.elapsed() < Duration::from_secs(4));
    // A future that is dropped ends it too.
    tokio::select! {
        reply = call(&tools, "t", json!({})) => panic!("{reply:?}"),
        () = eventually("the program runs", async || is_running("sleep\091003")) => {}
    }
    eventually("the program is killed", async || !is_running("sleep\091003")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_stream_is_an_error() {
    let (_programs, tools) =
        with(&json!({"streaming": true}), "echo '{\"type\":\"progress\",\"message\":\"a\"}'; exit 0").await;
    let reply = call(&tools, "t", json!({})).await;
    assert_eq!(outcome(&reply.result), Err((Code::Dependency, "`t` ended before its result".to_owned())));
    let (_programs, tools) =
        with(&json!({"streaming": true}), "echo '{\"type\":\"progress\",\"message\":\"a\"}'; kill -9 $$")
            .await;
    assert!(error(&call(&tools, "t", json!({})).await).message().contains("signal 9"));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_named() {
    let programs = Programs::new();
    let path = programs.tool("eater", &json!({}), "x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo $x");
    let limits = Limits::default().with_memory(64 << 20);
    let tools = source().path(path).limits(limits).discover().await;
    let reply = call(&tools, "t", json!({})).await;
    assert!(matches!(error(&reply).code(), Code::Limit | Code::Dependency), "{:?}", reply.result);
    assert!(reply.record.sandbox.as_ref().unwrap()["verdict"]["kind"].is_string());
    let path = programs.tool("printer", &json!({}), "exec yes '{\"type\":\"log\",\"message\":\"x\"}'");
    let limits = Limits::default().with_output_total(1 << 20);
    let tools = source().path(path).limits(limits).discover().await;
    assert!(error(&call(&tools, "t", json!({})).await).message().contains("more than 1 MiB"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_discovery_entry_fails_alone() {
    let programs = Programs::new();
    let good = json!({"name": "good", "summary": "Fine.", "schema": {"type": "object"}});
    let many: Vec<_> = (0..100_000).map(|index| json!({"name": format!("t{index}"), "schema": {}})).collect();
    for (name, tools, expected, part) in [
        ("number", json!([good, 7]), vec!["good"], "tool 2 is invalid"),
        ("nameless", json!([good, {"summary": "x"}]), vec!["good"], "tool 2 has no name"),
        ("wrong_type", json!([good, {"name": 3}]), vec!["good"], "tool 2 is invalid"),
        ("twice", json!([good, good]), vec!["good"], "two tools with this name"),
        ("schema_number", json!([good, {"name": "x", "schema": 42}]), vec!["good"], "not a JSON Schema"),
        (
            "schema_broken",
            json!([good, {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "dance"}}}}]),
            vec!["good"],
            "x",
        ),
        (
            "schema_array",
            json!([good, {"name": "x", "schema": {"type": "array"}}]),
            vec!["good"],
            "must have",
        ),
        (
            "schema_huge",
            json!([good, {"name": "x", "schema": {"type": "object", "description": "x".repeat(300_000)}}]),
            vec!["good"],
            "the maximum is 256 KiB",
        ),
        (
            "bad_example",
            json!([good, {"name": "x", "summary": "X.", "examples": [{"a": "no"}],
                "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]),
            vec!["good", "x"],
            "examples and its cache policy are ignored",
        ),
        (
            "weak_policy",
            json!([{"name": "x", "summary": "X.", "schema": {"type": "object"}, "policy": {"approval": "allow"}}]),
            vec!["x"],
            "",
        ),
        ("no_summary", json!([{"name": "x", "schema": {"type": "object"}}]), vec!["x"], ""),
        ("many", json!(many), vec![], "it reports 100000 tools; the first 1000 are used"),
    ] {
        let discovery = json!({"name": name, "version": "1", "tools": tools});
        let script = format!("#!/bin/sh\ncat <<'END'\n{discovery}\nEND\n");
        let path = programs.write(name, &script);
        let found = source().path(path).discover().await;
        if expected.is_empty() {
            assert_eq!(names(&found).await.len(), 1000, "{name}");
        } else {
            assert_eq!(names(&found).await, expected, "{name}");
        }
        let diagnostics = shown(&found);
        assert_eq!(diagnostics.len(), usize::from(!part.is_empty()), "{name}: {diagnostics:?}");
        assert!(diagnostics.iter().all(|text| text.contains(part) && text.contains(name)), "{diagnostics:?}");
        for spec in found.list().await.unwrap() {
            assert!(!spec.description.is_empty() && spec.policy.approval.is_none(), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_discovery_fails_alone() {
    let programs = Programs::new();
    let rows: &[(&str, &str, Code, &str)] = &[
        ("silent", "#!/bin/sh\nexit 0\n", Code::Dependency, "printed nothing"),
        ("failing", "#!/bin/sh\necho broken >&2\nexit 1\n", Code::Dependency, "exited with status 1"),
        ("garbage", "#!/bin/sh\necho no json\n", Code::Dependency, "printed invalid JSON"),
        ("list", "#!/bin/sh\necho '[]'\n", Code::Dependency, "expected an object"),
        ("empty", "#!/bin/sh\necho '{}'\n", Code::Dependency, "expected an array `tools`"),
        ("slow", "#!/bin/sh\nsleep 91004\n", Code::Timeout, "timed out after 2"),
        ("flood", "#!/bin/sh\nexec yes\n", Code::Limit, "printed more than 8 MiB"),
        ("deep", "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' '['\n", Code::Dependency, "recursion limit"),
        (
            "no_utf8",
            "#!/bin/sh\nprintf '{\"tools\":[],\"name\":\"\\377\"}'\n",
            Code::Dependency,
            "printed invalid JSON",
        ),
        ("no_interpreter", "#!/no/such/interpreter\n", Code::Dependency, "did not start"),
        ("no_program", "\u{0}\u{1}\u{2}", Code::Dependency, "did not start"),
        ("open", "#!/bin/sh\n(setsid sleep 91004 &)\nsleep 91004\n", Code::Timeout, "timed out after"),
    ];
    let mut builder = source().discovery_timeout(Duration::from_secs(2));
    for (name, text, ..) in rows {
        builder = builder.path(programs.write(name, text));
    }
    let begun = Instant::now();
    let good =
        json!({"name": "g", "version": "1", "tools": [{"name": "good", "schema": {"type": "object"}}]});
    let tools = builder
        .path(programs.write("good", &shell(&good, "echo '{\"status\":\"success\",\"result\":1}'")))
        .path(programs.path().join("missing"))
        .path(programs.path())
        .discover()
        .await;
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(names(&tools).await, ["good"]);
    let diagnostics = tools.diagnostics();
    for (name, _, code, part) in rows {
        let found = diagnostics.iter().find(|found| found.path.ends_with(name)).unwrap();
        assert_eq!(found.error.code(), *code, "{found}");
        assert!(found.error.message().contains(part), "{found}");
    }
    assert_eq!(diagnostics.len(), rows.len() + 2, "{diagnostics:?}");
    assert_eq!(value(&call(&tools, "good", json!({})).await), json!(1));
    eventually("the program is killed", async || !is_running("sleep\091004")).await;
}
