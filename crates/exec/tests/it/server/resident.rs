//! Many calls over one process.

use serde_json::{Value, json};

use super::program::Running;
use super::table::fits;
use super::tools::toolbox;

fn start() -> Running {
    let mut program = Running::start(toolbox(), &["--resident"]);
    let hello = json!({"v": 1, "id": 0, "type": "hello", "name": "demo", "version": "1.2.3", "protocol": "0.1+toolpost.1"});
    assert_eq!(program.read(), hello);
    program
}

fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    json!({"v": 1, "id": id, "type": "call", "tool": tool, "arguments": arguments})
}

/// Writes a line and reads the answer.
fn turn(program: &mut Running, line: impl std::fmt::Display, expected: &Value) {
    program.write(&line);
    let found = program.read();
    assert!(fits(expected, &found), "{line}\n  expected {expected}\n  found    {found}");
}

#[test]
fn one_process_serves_many_calls() {
    let mut program = start();
    for id in 1..50 {
        let result = json!({"v": 1, "id": id, "type": "result", "ok": {"structured": id + 10}});
        turn(&mut program, call(id, "add", &json!({"a": id})), &result);
    }
    // No arguments are an empty object.
    let order = json!({"v": 1, "id": 60, "type": "call", "tool": "order"});
    turn(
        &mut program,
        order,
        &json!({"v": 1, "id": 60, "type": "result", "ok": {"structured": {"status": "shipped", "id": 7}}}),
    );
    let read = json!({"v": 1, "id": 61, "type": "read", "uri": "notes://ada/3"});
    turn(&mut program, read, &json!({"v": 1, "id": 61, "type": "value", "ok": {"user": "ada", "page": 3}}));
    let render = json!({"v": 1, "id": 62, "type": "render", "prompt": "review", "arguments": {"text": "x"}});
    turn(&mut program, render, &json!({"v": 1, "id": 62, "type": "value", "ok": "kind: x"}));
    let list = json!({"v": 1, "id": 63, "type": "list"});
    program.write(list);
    let listed = program.read();
    assert_eq!(listed["ok"]["tools"].as_array().unwrap().len(), 18, "{listed}");
    assert_eq!(listed["ok"]["tools"][0]["schema"]["required"], json!(["a"]));
    let ended = program.end();
    assert_eq!((ended.output.as_str(), ended.status), ("", 0));
}

#[test]
fn calls_run_side_by_side_and_can_be_cancelled() {
    let mut program = start();
    program.write(call(1, "sleep", &json!({"milliseconds": 600_000})));
    program.write(call(2, "sleep", &json!({"milliseconds": 600_000})));
    // A later call ends first.
    turn(&mut program, call(3, "add", &json!({"a": 1})), &json!({"id": 3, "...": 1}));
    let cancelled = json!({"id": 1, "type": "result", "error": {"code": "CANCELLED", "...": 1}, "...": 1});
    turn(&mut program, r#"{"v":1,"id":1,"type":"cancel"}"#, &cancelled);
    // Who is not there cannot be cancelled, and an id is free when its request has ended.
    program.write(r#"{"v":1,"id":77,"type":"cancel"}"#);
    turn(
        &mut program,
        call(1, "add", &json!({"a": 5})),
        &json!({"id": 1, "ok": {"structured": 15}, "...": 1}),
    );
    // The other ends by its own timeout, or with the input: whichever is first.
    let ended = program.end();
    assert_eq!(ended.lines()[0]["error"]["code"], "CANCELLED", "{ended:?}");
    assert_eq!(ended.status, 0);
}

#[test]
fn a_bad_line_costs_one_request() {
    let mut program = start();
    let problem = json!({"v": 1, "id": 0, "type": "problem", "error": {"code": "INVALID_INPUT", "...": 1}});
    let refused =
        |id: u64, code: &str| json!({"v": 1, "id": id, "type": "result", "error": {"code": code, "...": 1}});
    for garbage in
        ["garbage", "[]", "{}", "{\"v\":1}", r#"{"v":1,"id":-1,"type":"list"}"#, &"[".repeat(10_000)]
    {
        turn(&mut program, garbage, &problem);
    }
    turn(&mut program, r#"{"v":1,"id":4,"type":"dance"}"#, &refused(4, "INVALID_INPUT"));
    turn(&mut program, r#"{"v":9,"id":5,"type":"list"}"#, &refused(5, "INVALID_INPUT"));
    turn(&mut program, r#"{"v":1,"id":6,"type":"call"}"#, &refused(6, "INVALID_INPUT"));
    turn(&mut program, call(0, "add", &json!({"a": 1})), &problem);
    turn(&mut program, call(7, "ad", &json!({"a": 1})), &refused(7, "NOT_FOUND"));
    turn(&mut program, call(8, "add", &json!({})), &refused(8, "MISSING_PARAM"));
    turn(&mut program, call(9, "add", &json!([])), &refused(9, "INVALID_INPUT"));
    turn(&mut program, call(10, "explode", &json!({})), &refused(10, "INTERNAL"));
    // An answer to nothing is ignored, and so is an empty line.
    program.write(r#"{"v":1,"id":9,"type":"answer","request":3,"ok":null}"#);
    program.write("");
    // A line that is too long costs the call that it names.
    let long = format!(
        r#"{{"v":1,"id":11,"type":"call","tool":"add","arguments":{{"a":"{}"}}}}"#,
        "x".repeat(33 * 1024 * 1024)
    );
    turn(&mut program, long, &refused(11, "INVALID_INPUT"));
    turn(
        &mut program,
        call(12, "add", &json!({"a": 1})),
        &json!({"id": 12, "ok": {"structured": 11}, "...": 1}),
    );
    assert_eq!(program.end().status, 0);
}

#[test]
fn a_duplicate_request_id_is_rejected() {
    let mut program = start();
    program.write(call(1, "sleep", &json!({"milliseconds": 600_000})));
    let problem = json!({"id": 0, "type": "problem", "...": 1});
    turn(&mut program, call(1, "add", &json!({"a": 1})), &problem);
    turn(&mut program, r#"{"v":1,"id":1,"type":"dance"}"#, &problem);
    program.end();
}

#[test]
fn every_verb_of_the_port_is_a_frame() {
    let mut program = start();
    program.write(json!({"v": 1, "id": 1, "type": "call", "tool": "count", "arguments": {"to": 1}, "serves": ["artifact"]}));
    assert_eq!(
        program.read(),
        json!({"v": 1, "id": 1, "type": "progress", "message": "1", "percent": 100.0, "attempt": 1})
    );
    assert_eq!(
        program.read(),
        json!({"v": 1, "id": 1, "type": "log", "level": "warn", "message": "counted"})
    );
    let artifact = program.read();
    let expected = json!({"v": 1, "id": 1, "type": "artifact", "request": "#",
        "artifact": {"name": "count.txt", "media_type": "text/plain", "size": 1, "data": "MQ==", "...": 1}});
    assert!(fits(&expected, &artifact), "{artifact}");
    let taken = json!({"v": 1, "id": 1, "type": "answer", "request": artifact["request"], "ok": null});
    turn(
        &mut program,
        taken,
        &json!({"id": 1, "type": "result", "ok": {"structured": 1, "...": 1}, "...": 1}),
    );

    program
        .write(json!({"v": 1, "id": 2, "type": "call", "tool": "guess", "arguments": {}, "serves": ["ask"]}));
    let ask = program.read();
    assert_eq!(ask["question"], json!({"message": "Guess.", "kind": "input"}), "{ask}");
    let answer = |request: &Value, value: Value| json!({"v": 1, "id": 2, "type": "answer", "request": request, "ok": value});
    program.write(answer(&ask["request"], json!({"answer": "given", "value": 3})));
    let again = program.read();
    assert_eq!(again["question"]["message"], "More.");
    let declined = answer(&again["request"], json!({"answer": "declined"}));
    turn(&mut program, declined, &json!({"id": 2, "type": "result", "ok": {}, "...": 1}));

    program.write(json!({"v": 1, "id": 3, "type": "call", "tool": "summarize", "arguments": {"text": "x"}, "serves": ["sample"]}));
    let sample = program.read();
    assert_eq!(sample["prompt"]["prompt"], "Short: x", "{sample}");
    let completed =
        json!({"v": 1, "id": 3, "type": "answer", "request": sample["request"], "ok": {"content": "short"}});
    turn(&mut program, completed, &json!({"id": 3, "ok": {"structured": "short"}, "...": 1}));

    // An answer that does not fit, and an error as an answer.
    program.write(json!({"v": 1, "id": 4, "type": "call", "tool": "summarize", "arguments": {"text": "x"}, "serves": ["sample"]}));
    let request = program.read()["request"].clone();
    let wrong = json!({"v": 1, "id": 4, "type": "answer", "request": request, "ok": {"text": 1}});
    turn(&mut program, wrong, &json!({"id": 4, "error": {"code": "DEPENDENCY", "...": 1}, "...": 1}));
    program.write(json!({"v": 1, "id": 5, "type": "call", "tool": "summarize", "arguments": {"text": "x"}, "serves": ["sample"]}));
    let request = program.read()["request"].clone();
    let wrong = json!({"v": 1, "id": 5, "type": "answer", "request": request, "error": {"code": "LIMIT", "message": "no budget"}});
    turn(
        &mut program,
        wrong,
        &json!({"id": 5, "error": {"code": "LIMIT", "message": "no budget", "...": 1}, "...": 1}),
    );

    // What the caller does not serve is refused at once.
    turn(
        &mut program,
        call(6, "summarize", &json!({"text": "x"})),
        &json!({"id": 6, "error": {"code": "PRECONDITION", "...": 1}, "...": 1}),
    );
    turn(
        &mut program,
        call(7, "nested", &json!({"tool": "add", "arguments": {"a": 1}})),
        &json!({"id": 7, "ok": {"structured": 11}, "...": 1}),
    );
    program.end();
}

#[test]
fn options_of_a_call_reach_the_program() {
    let mut program = start();
    let scope = "01m80epppc6g55za8phnhpvn12";
    let facts = json!({"v": 1, "id": 1, "type": "call", "tool": "give", "arguments": {}, "call": scope, "depth": 1,
        "caller": {"front": "agent", "identity": "ada"}, "scope": {"id": scope, "owner": "ada"},
        "idempotency_key": "k", "level": "strict", "metadata": {"a": 1}, "record": true, "priority": "high", "serves": ["artifact"]});
    let result = json!({"v": 1, "id": 1, "type": "result",
        "ok": {"structured": {"front": "agent", "identity": "ada", "metadata": {"a": 1}, "key": "k",
            "level": "strict", "scope": [scope, "ada"]}, "...": 1},
        "record": {"id": scope, "status": "success", "tool": "give", "caller": {"front": "agent", "identity": "ada"},
            "metadata": {"a": 1}, "attempts": 1, "...": 1}});
    program.write(facts);
    let artifact = program.read();
    assert_eq!(artifact["artifact"]["data"], "AP8=", "{artifact}");
    let taken = json!({"v": 1, "id": 1, "type": "answer", "request": artifact["request"], "ok": null});
    turn(&mut program, taken, &result);
    let late = json!({"v": 1, "id": 2, "type": "call", "tool": "sleep", "arguments": {"milliseconds": 60_000}, "deadline_ms": 50});
    turn(&mut program, late, &json!({"id": 2, "error": {"code": "TIMEOUT", "...": 1}, "...": 1}));
    let late = json!({"v": 1, "id": 3, "type": "call", "tool": "sleep", "arguments": {"milliseconds": 60_000}, "timeout_ms": 50});
    turn(&mut program, late, &json!({"id": 3, "error": {"code": "TIMEOUT", "...": 1}, "...": 1}));
    let dry = json!({"v": 1, "id": 4, "type": "call", "tool": "sign_in", "arguments": {"user": "a", "password": "secret"}, "dry_run": true});
    turn(&mut program, dry, &json!({"id": 4, "ok": {"structured": {"dry_run": true, "...": 1}}, "...": 1}));
    let checked = json!({"v": 1, "id": 5, "type": "call", "tool": "find", "arguments": {"name": "a/b"}, "validate": true});
    turn(&mut program, checked, &json!({"id": 5, "error": {"code": "INVALID_INPUT", "...": 1}, "...": 1}));
    let deep = json!({"v": 1, "id": 6, "type": "call", "tool": "add", "arguments": {"a": 1}, "depth": 9});
    turn(&mut program, deep, &json!({"id": 6, "error": {"code": "LIMIT", "...": 1}, "...": 1}));
    program.write(json!({"v": 1, "id": 7, "type": "call", "tool": "find", "arguments": {"name": "x", "working_dir": "/tmp", "timeout": 5}, "verbose": true}));
    assert_eq!(program.read()["type"], "log");
    let found = program.read();
    assert_eq!(found["ok"]["structured"]["directory"], "/tmp", "{found}");
    assert_eq!(found["ok"]["structured"]["verbose"], true);
    assert_eq!(found["ok"]["structured"]["seconds"], 5.0);
    program.end();
}

#[test]
fn a_hundred_calls_at_once_are_all_answered() {
    let mut program = start();
    for id in 1..=100 {
        program.write(call(id, "add", &json!({"a": id, "b": 0})));
    }
    let mut answers: Vec<(u64, u64)> = (0..100)
        .map(|_| {
            let answer = program.read();
            (answer["id"].as_u64().unwrap(), answer["ok"]["structured"].as_u64().unwrap())
        })
        .collect();
    answers.sort_unstable();
    assert_eq!(answers, (1..=100).map(|id| (id, id)).collect::<Vec<_>>());
    program.end();
}

#[test]
fn a_tool_calls_tools_of_its_caller() {
    let mut program = start();
    let nested = json!({"tool": "weather", "arguments": {"city": "Oslo"}});
    program.write(
        json!({"v": 1, "id": 1, "type": "call", "tool": "nested", "arguments": nested, "serves": ["nested"]}),
    );
    let asked = program.read();
    let expected = json!({"v": 1, "id": 1, "type": "nested", "request": "#", "tool": "weather", "arguments": {"city": "Oslo"}});
    assert!(fits(&expected, &asked), "{asked}");
    let answer =
        json!({"v": 1, "id": 1, "type": "answer", "request": asked["request"], "ok": {"structured": "sun"}});
    turn(&mut program, answer, &json!({"id": 1, "ok": {"structured": "sun"}, "...": 1}));
    // What the program has itself it calls itself, and who serves no calls gets none.
    let own = json!({"tool": "add", "arguments": {"a": 1}});
    program.write(
        json!({"v": 1, "id": 2, "type": "call", "tool": "nested", "arguments": own, "serves": ["nested"]}),
    );
    assert_eq!(program.read()["ok"]["structured"], 11);
    turn(
        &mut program,
        call(3, "nested", &nested),
        &json!({"id": 3, "error": {"code": "NOT_FOUND", "...": 1}, "...": 1}),
    );
    program.end();
}

#[test]
fn documents_stay_in_the_store_of_the_caller() {
    let mut program = start();
    // Without that, the program keeps its own.
    turn(
        &mut program,
        call(1, "tally", &json!({"by": 2})),
        &json!({"id": 1, "ok": {"structured": 2}, "...": 1}),
    );
    turn(
        &mut program,
        call(2, "tally", &json!({"by": 2})),
        &json!({"id": 2, "ok": {"structured": 4}, "...": 1}),
    );
    program.write(json!({"v": 1, "id": 3, "type": "call", "tool": "tally", "arguments": {"by": 5}, "serves": ["state"]}));
    let load = program.read();
    assert_eq!(load["state"], json!({"do": "load", "document": "tallies/sum"}), "{load}");
    let answer = |request: &Value, value: Value| json!({"v": 1, "id": 3, "type": "answer", "request": request, "ok": value});
    program.write(answer(&load["request"], json!({"id": "tallies/sum", "version": 7, "value": 100})));
    let commit = program.read();
    let expected = json!({"do": "commit", "...": 1,
        "writes": [{"id": "tallies/sum", "base": 7, "patch": [{"op": "replace", "path": "", "value": 105}], "value": 105}]});
    assert!(fits(&expected, &commit["state"]), "{commit}");
    // After a conflict the tool runs again on the latest version.
    let newer = json!({"conflict": [{"id": "tallies/sum", "version": 8, "value": 200}]});
    program.write(answer(&commit["request"], newer));
    let mut commit = program.read();
    if commit["state"]["do"] == "load" {
        program.write(answer(&commit["request"], json!({"id": "tallies/sum", "version": 8, "value": 200})));
        commit = program.read();
    }
    assert_eq!(commit["state"]["writes"][0]["value"], 205, "{commit}");
    assert_eq!(commit["state"]["writes"][0]["base"], 8, "{commit}");
    turn(
        &mut program,
        answer(&commit["request"], json!({"done": [9]})),
        &json!({"id": 3, "ok": {"structured": 205}, "...": 1}),
    );
    program.end();
}
