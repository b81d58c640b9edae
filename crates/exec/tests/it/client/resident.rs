//! Programs that keep one process for many calls.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Answer, Call, Code, Scope, ToolSource as _};
use toolpost_exec::client::Executables;

use super::{Programs, call, error, port, source, value};

/// Counts its calls, and acts by the argument `do`.
const PROGRAM: &str = r#"
import base64, json, os, sys, time
if sys.argv[1:] == ["--discover"]:
    tools = [{"name": "t", "summary": "T.", "schema": {"type": "object"}}]
    print(json.dumps({"name": "r", "version": "1", "protocol": "0.1+toolpost.1", "resident": True, "tools": tools}))
    sys.exit()
if sys.argv[1:] != ["--resident"]:
    print(json.dumps({"status": "success", "result": {"one_shot": True}}))
    sys.exit()
def send(id, type, **fields):
    print(json.dumps({"v": 1, "id": id, "type": type, **fields}), flush=True)
if os.environ.get("GREETING"):
    print(os.environ["GREETING"], flush=True)
    time.sleep(60)
send(0, "hello", name="r", version="1", protocol="0.1+toolpost.1")
count = 0
for line in sys.stdin:
    frame = json.loads(line)
    if frame["type"] != "call":
        continue
    id, do, count = frame["id"], frame["arguments"].get("do"), count + 1
    if do == "die":
        print("it hurts", file=sys.stderr, flush=True)
        os._exit(4)
    if do == "hang":
        time.sleep(60)
    if do == "slow":
        time.sleep(1)
    if do == "flood":
        while True:
            send(id, "log", level="info", message="x")
    if do == "values":
        print("[" + "0," * 600000 + "0]", flush=True)
    if do == "ahead":
        for index in range(12):
            print("x" * 3000000, flush=True)
    if do == "usage":
        send(id, "result", ok={"structured": 1, "usage": {"input_tokens": 10**9, "output_tokens": 10**9}})
        continue
    if do == "stray":
        print("a print")
        send(id + 100, "result", ok={"structured": "of another call"})
        send(id, "progress", message="half")
    if do == "fail":
        send(id, "result", error={"code": "NOT_FOUND", "message": "no such thing"})
        continue
    if do in ("ask", "sample", "nested", "state", "artifact"):
        asked = {
            "ask": {"question": {"message": "Sure?", "kind": "input"}},
            "sample": {"prompt": {"prompt": "p", "max_tokens": 1}},
            "nested": {"tool": "x", "arguments": {}},
            "state": {"state": {"do": "load", "document": "d"}},
            "artifact": {"artifact": {"name": "a.txt", "media_type": "text/plain", "size": 2, "data": "aGk="}},
        }[do]
        send(id, do, request=1, **asked)
        answer = json.loads(sys.stdin.readline())
        answered = answer.get("ok", answer.get("error"))
        send(id, "result", ok={"structured": {"answered": answered, "id": answer["id"] == id}})
        continue
    send(id, "result", ok={"structured": {"count": count, "facts": sorted(key for key in frame if key not in ("v", "id", "type", "tool", "arguments"))}})
"#;

async fn program(programs: &Programs, environment: &[(&str, &str)]) -> Executables {
    let path = programs.path().join("r.py");
    std::fs::write(&path, PROGRAM).unwrap();
    let builder = source().path(path).resident(true);
    environment.iter().fold(builder, |builder, (name, value)| builder.env(*name, *value)).discover().await
}

async fn count(tools: &Executables, call: Call) -> Value {
    value(&tools.call(call).await)["count"].clone()
}

fn does(what: &str) -> Call {
    Call::new("t", json!({ "do": what }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resident_process_is_reused_and_replaced_after_a_crash() {
    let programs = Programs::new();
    let tools = program(&programs, &[]).await;
    for expected in 1..4 {
        assert_eq!(count(&tools, does("count")).await, json!(expected));
    }
    let died = tools.call(does("die")).await;
    assert_eq!(error(&died).code(), Code::Dependency);
    assert!(error(&died).message().contains("status 4"), "{died:?}");
    assert_eq!(error(&died).context()["stderr"], "it hurts");
    assert_eq!(count(&tools, does("count")).await, json!(1));
    // Reported model usage of a program is ignored.
    let boasts = tools.call(does("usage")).await;
    assert_eq!(value(&boasts), json!(1));
    assert!(
        boasts.record.usage.is_none()
            && boasts.result.unwrap().evidence.is_none_or(|facts| facts.usage.is_none())
    );
    // A failure is not the end.
    let failed = tools.call(does("fail")).await;
    assert_eq!((error(&failed).code(), error(&failed).message()), (Code::NotFound, "no such thing"));
    assert_eq!(count(&tools, does("stray")).await, json!(4));
    // One owner's process is not another's.
    let other = does("count").with_scope(Scope::new("eve"));
    assert_eq!(count(&tools, other).await, json!(1));
    // Two calls at the same time do not wait for each other.
    let (one, two) = tokio::join!(count(&tools, does("slow")), count(&tools, does("count")));
    assert_eq!((one, two), (json!(5), json!(1)));
    // Without the option each call is a process.
    let plain = source().path(programs.path().join("r.py")).discover().await;
    assert_eq!(value(&call(&plain, "t", json!({})).await), json!({"one_shot": true}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_or_flooding_process_fails_one_call() {
    let programs = Programs::new();
    let tools = program(&programs, &[]).await;
    assert_eq!(count(&tools, does("count")).await, json!(1));
    let mut hangs = does("hang");
    hangs.options.timeout = Some(Duration::from_millis(300));
    assert_eq!(error(&tools.call(hangs).await).code(), Code::Timeout);
    assert_eq!(count(&tools, does("count")).await, json!(1), "it was replaced");
    assert_eq!(error(&tools.call(does("flood")).await).code(), Code::Limit);
    assert_eq!(count(&tools, does("count")).await, json!(1), "it was replaced");
    for greeting in ["hello", "{\"v\":2,\"id\":0,\"type\":\"hello\"}"] {
        let tools = program(&programs, &[("GREETING", greeting)]).await;
        let reply = tools.call(does("count")).await;
        assert_eq!(error(&reply).code(), Code::Dependency, "{reply:?}");
        assert!(error(&reply).message().contains("not a `hello` frame; found"), "{reply:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resident_process_is_bounded_in_values_and_lines() {
    let programs = Programs::new();
    let tools = program(&programs, &[]).await;
    let reply = tools.call(does("values")).await;
    assert_eq!(error(&reply).code(), Code::Limit, "{reply:?}");
    assert!(error(&reply).message().contains("500000 values"), "{reply:?}");
    // Long lines that wait for each other all arrive.
    assert_eq!(count(&tools, does("ahead")).await, json!(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_sampling_a_resident_process_is_rejected() {
    let programs = Programs::new();
    let path = programs.write("again.py", PROGRAM);
    let tools = source().path(path).resident(true).sampling(false).discover().await;
    let reply = tools.call(does("sample").with_port(port())).await;
    assert_eq!(value(&reply)["answered"]["code"], "PRECONDITION");
    let reply = tools.call(does("count")).await;
    assert!(!value(&reply).to_string().contains("one_shot"), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resident_process_reaches_the_port() {
    let programs = Programs::new();
    let tools = program(&programs, &[]).await;
    let port = port();
    port.answer(Answer::Given { value: json!("yes") });
    let answered = async |what: &str| {
        let reply = tools.call(does(what).with_port(port.clone())).await;
        let value = value(&reply);
        assert_eq!(value["id"], true, "{what}");
        (value["answered"].clone(), reply)
    };
    assert_eq!(answered("ask").await.0, json!({"answer": "given", "value": "yes"}));
    assert_eq!(answered("sample").await.0["content"], "echo: p");
    // The settings name no tools that the program may call.
    assert_eq!(answered("nested").await.0["code"], "PERMISSION");
    assert_eq!(answered("state").await.0["code"], "PRECONDITION");
    let (taken, reply) = answered("artifact").await;
    assert_eq!(taken, Value::Null);
    assert_eq!((port.heard().artifacts.len(), reply.record.artifacts.len()), (1, 1));
    let scope = Scope::new("ada");
    let reply = tools.call(does("count").with_scope(scope).with_idempotency_key("k")).await;
    assert_eq!(
        value(&reply)["facts"],
        json!(["call", "caller", "deadline_ms", "idempotency_key", "scope", "serves"])
    );
}

/// Tools of the Python library, which keep the count in a variable.
const LIBRARY: &str = r#"#!/usr/bin/env python3
from toolpost_author import Ctx, main, tool

calls = 0


@tool
def count(by: int = 1) -> int:
    "Count calls."
    global calls
    print("a stray print")
    calls += by
    return calls


@tool
async def ask(ctx: Ctx) -> str:
    "Ask and deliver a file."
    ctx.progress("asking", 50)
    await ctx.artifact("a.txt", b"hi")
    return f"{await ctx.ask('Sure?')!r}"


@tool
def fail() -> None:
    "Fail."
    raise ValueError("outer")


main()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_program_of_the_python_library_is_resident() {
    let programs = Programs::new();
    let path = programs.write("counter", LIBRARY);
    let library = include_str!(concat!(env!("OUT_DIR"), "/toolpost_author.py"));
    std::fs::write(programs.path().join("toolpost_author.py"), library).unwrap();
    let tools = source().path(path).resident(true).discover().await;
    assert!(tools.diagnostics().is_empty(), "{:?}", tools.diagnostics());
    for expected in 1..4 {
        assert_eq!(value(&tools.call(Call::new("count", json!({}))).await), json!(expected));
    }
    let wrong = tools.call(Call::new("count", json!({"by": "x"}))).await;
    assert_eq!(error(&wrong).code(), Code::InvalidInput);
    let port = port();
    port.answer(Answer::Given { value: json!("yes") });
    let asked = tools.call(Call::new("ask", json!({})).with_port(port.clone())).await;
    assert_eq!(value(&asked), json!("'yes'"));
    assert_eq!(port.heard().artifacts.len(), 1);
    let failed = tools.call(Call::new("fail", json!({}))).await;
    assert_eq!(error(&failed).code(), Code::Internal);
    assert!(error(&failed).message().contains("ValueError: outer"), "{failed:?}");
    assert_eq!(value(&tools.call(Call::new("count", json!({}))).await), json!(4));
}
