//! Tools of executables and descriptions, on the command line.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::support::{TestEnv, ask};

/// A minimal tool program.
const WEATHER: &str = r#"#!/bin/sh
case "$1" in
--discover) echo '{"name":"weather","version":"1.0","tools":[
  {"name":"forecast","summary":"Forecast the weather.","streaming":false,"session_mode":false},
  {"name":"watch","summary":"Watch the sky.","streaming":true,"session_mode":false},
  {"name":"talk","summary":"Talk about it.","streaming":false,"session_mode":true},
  {"name":"poem","summary":"Write a poem.","streaming":false,"session_mode":false}],
  "resources":[{"uri_pattern":"/cities/{name}","summary":"A city.","mime_types":["application/json"],"tags":[]}],
  "prompts":[{"name":"report","summary":"A report.","arguments":{"city":"Where."},"tags":[]}]}'; exit;;
--resource) echo "{\"city\":\"$2\"}"; exit;;
--prompt) case "$3" in *Oslo*) echo '"Report on Oslo"';; esac; exit;;
esac
if [ "$2" = "--manifest" ]; then
  echo "{\"name\":\"$1\",\"summary\":\"$1.\",\"description\":\"$1.\",\"streaming\":false,\"session_mode\":false,
    \"schema\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"],\"additionalProperties\":false}}"
  exit
fi
case "$1" in
forecast) case "$*" in
  *Atlantis*) echo '{"status":"error","error":{"code":"NOT_FOUND","message":"no such city","recoverable":true}}';;
  *) echo '{"status":"success","result":{"text":"sun"}}';; esac;;
watch) echo '{"type":"progress","message":"looking","percent":50}'
  echo '{"type":"result","status":"success","result":{"sky":"blue"}}';;
talk) echo '{"type":"session_start","message":"Which city?","prompt":"> "}'
  read line
  echo '{"type":"session_end","status":"success"}'
  echo "{\"status\":\"success\",\"result\":{\"heard\":$line}}";;
poem) echo '{"type":"sample_request","id":"00000001","prompt":"a poem","max_tokens":10}'
  read line
  echo "{\"status\":\"success\",\"result\":{\"answered\":$line}}";;
esac
"#;

fn world() -> TestEnv {
    let env = TestEnv::new();
    weather(&env);
    env
}

/// Writes the program into a world.
pub(crate) fn weather(env: &TestEnv) {
    let path = env.write("weather", WEATHER);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn an_executable_is_called_like_any_tool() {
    let env = world();
    let answer = env.run(["call", "./weather", "forecast", "city=Oslo", "--json"]).ok().json();
    assert_eq!(answer, json!({ "status": "success", "result": { "text": "sun" } }));
    let error = env.run(["call", "./weather", "forecast", "city=Atlantis", "--json"]).exit(1).error();
    assert_eq!((&error["code"], &error["message"]), (&json!("NOT_FOUND"), &json!("no such city")));
    let missing = env.run(["call", "./weather", "forecast", "--json"]).exit(1).error();
    assert_eq!(missing["code"], "MISSING_PARAM");
    assert!(
        missing["hints"].to_string().contains("toolpost tools ./weather --manifest forecast"),
        "{missing}"
    );
    let which = env.run(["call", "./weather"]).exit(2);
    assert!(which.err.contains("has 4 tools: name one"), "{which}");
    let typo = env.run(["call", "./weather", "forcast", "city=Oslo"]).exit(1);
    assert!(typo.err.contains("`forecast`"), "{typo}");
    let bare = env.run(["call", "weather", "forecast"]).exit(2);
    assert!(bare.err.contains("write `./weather`"), "{bare}");
}

#[test]
fn an_executable_is_listed_and_its_tools_are_for_runs_too() {
    let env = world();
    let listed = env.run(["tools", "./weather", "--json"]).ok().json();
    let names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["forecast", "watch", "talk", "poem"]);
    let one = env.run(["tools", "./weather", "--manifest", "forecast", "--json"]).ok().json();
    assert_eq!(one["input_schema"]["required"], json!(["city"]));
    env.write("ask.yaml", "turns:\n  - calls: [{ tool: forecast, args: { city: Oslo } }]\n  - text: \"It is {{ last.structured.text }}.\"\n");
    let words = ["run", "-p", "x", "--model", "script:ask.yaml", "--tools", "./weather"];
    assert_eq!(env.run(words).ok().out, "It is sun.\n");
}

#[test]
pub(crate) fn level_of_discovery() {
    use toolpost_sandbox::{Host, Level};
    let env = world();
    // Level `strict` hides directories of the host that `standard` shows.
    let script = WEATHER
        .replace("#!/bin/sh\n", "#!/bin/sh\nif [ -e /etc/os-release ]; then S=more; else S=less; fi\n");
    let script = script.replace("\"Forecast the weather.\"", "\"'$S'\"");
    for (level, expected) in [(Level::Standard, "more"), (Level::Strict, "less")] {
        if !Host::probe().availability(level).unwrap().available {
            println!("SKIP level {level}");
            continue;
        }
        let path = env.write(level.name(), &script);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let listed = env.run(["tools", &format!("./{level}"), "--level", level.name(), "--json"]).ok().json();
        assert_eq!(listed["tools"][0]["summary"], expected, "{listed}");
    }
}

#[test]
pub(crate) fn stream() {
    let env = world();
    let lines = env.run(["call", "./weather", "watch", "city=Oslo", "--stream"]).ok().lines();
    assert_eq!(lines.first().unwrap(), &json!({ "type": "progress", "message": "looking", "percent": 50.0 }));
    assert_eq!(
        lines.last().unwrap(),
        &json!({ "type": "result", "status": "success", "result": { "sky": "blue" } })
    );
}

#[test]
fn a_session_is_held_on_the_terminal() {
    let env = world().with("TERM", "dumb");
    let held = env.answering(&["Oslo\r"], ["call", "./weather", "talk", "city=x"]).ok();
    assert!(held.out.contains("Which city?") && held.out.contains("\"input\":\"Oslo\""), "{held}");
    // Without a terminal and a pipe there is no prompt.
    let alone = env.run(["call", "./weather", "talk", "city=x", "--json", "--no-input"]);
    assert_eq!(alone.error()["code"], "PRECONDITION", "{alone}");
}

/// A toolable session in Python: the end of the input is `quit`.
const GUESS: &str = r#"#!/usr/bin/env python3
import json, sys
tool = {"name": "guess", "summary": "Guess.", "description": "Guess.", "streaming": False, "session_mode": True,
        "schema": {"type": "object", "properties": {}}}
def emit(value):
    print(json.dumps(value), flush=True)
def receive():
    line = sys.stdin.readline()
    return json.loads(line.strip()) if line else {"action": "quit"}
def game():
    heard = yield {"type": "session_start", "message": "Guess a number", "prompt": ">> "}
    while heard.get("action") != "quit":
        if heard.get("input") == 7:
            yield {"type": "session_end", "status": "won"}
        heard = yield {"type": "awaiting_input", "prompt": "again> "}
    yield {"type": "session_end", "status": "quit"}
if "--discover" in sys.argv:
    emit({"name": "g", "version": "1", "tools": [tool], "resources": [], "prompts": []})
elif "--manifest" in sys.argv:
    emit(tool)
else:
    events = game()
    event = next(events)
    emit(event)
    while event["type"] != "session_end":
        event = events.send(receive())
        emit(event)
    emit({"status": "success", "result": {"end": event["status"]}})
"#;

#[test]
fn a_session_is_held_through_a_pipe() {
    let env = TestEnv::new();
    crate::gateway::executable(&env, "guess", GUESS);
    let held = |input: &str| {
        let finished = env.run_with(input, ["call", "./guess", "guess"]);
        let lines = finished.out.lines().map(|line| serde_json::from_str(line).unwrap());
        (lines.collect::<Vec<Value>>(), finished)
    };
    let start = json!({ "type": "session_start", "message": "Guess a number", "prompt": "> " });
    let again = json!({ "type": "awaiting_input", "message": "again> ", "prompt": "> " });
    let end = |status| json!({ "type": "result", "status": "success", "result": { "end": status } });
    let (lines, finished) = held("{\"input\": 3}\n{\"input\": 7}\n");
    assert_eq!(lines, [start.clone(), again.clone(), end("won")], "{}", finished.ok());
    // The end of the input ends the session.
    let (lines, finished) = held("{\"input\": 3}\n");
    assert_eq!(lines, [start.clone(), again, end("quit")], "{}", finished.ok());
    let (lines, finished) = held("seven\n");
    assert_eq!(lines[0], start, "{finished}");
    assert_eq!(lines[1]["error"]["message"], "line 1 of standard input is not JSON: `seven`", "{finished}");
    assert!(finished.exit(1).err.contains("Write one JSON value per line"));
}

#[test]
pub(crate) fn model() {
    let env = world();
    env.write("poet.yaml", "turns:\n  - text: Roses are red.\n");
    let answer = env
        .run(["call", "./weather", "poem", "city=Oslo", "--json", "--model", "script:poet.yaml"])
        .ok()
        .json();
    assert_eq!(answer["result"]["answered"]["content"], "Roses are red.");
    let alone = env.run(["call", "./weather", "poem", "city=Oslo", "--json"]);
    assert_ne!(alone.status.code(), Some(0), "{alone}");
    // The hint names the option of `call`, not that of the program.
    env.run(["init", "tool", "--exec", "asker"]).ok();
    env.write(
        "asker/asker",
        "#!/usr/bin/env python3\nfrom toolpost_author import Ctx, main, tool\n\n\n@tool\n\
         def verse(ctx: Ctx) -> str:\n    \"\"\"Write a verse.\"\"\"\n    return str(ctx.sample_sync(\"A verse.\"))\n\n\n\
         if __name__ == \"__main__\":\n    main()\n",
    );
    let asked = ["call", "./asker/asker", "--json"];
    let hints = env.run(asked).exit(1).error()["hints"].to_string();
    assert!(hints.contains("--model MODEL") && !hints.contains("--sample-via"), "{hints}");
    env.run(asked.iter().chain(&["--model", "script:poet.yaml"])).ok();
}

#[test]
pub(crate) fn validate() {
    let env = TestEnv::new();
    let validate =
        |words: &[&str]| env.run(["call", "calculate", "--validate", "--json"].iter().chain(words));
    assert_eq!(validate(&["expression=1"]).ok().json(), json!({ "valid": true }));
    let wrong = validate(&["expresion=1"]).exit(1).json();
    assert_eq!(wrong["valid"], false);
    assert!(!wrong["errors"].as_array().unwrap().is_empty(), "{wrong}");
    assert_eq!(env.run(["call", "calculate", "--validate", "expression=1/0"]).ok().out, "valid\n");
}

#[test]
pub(crate) fn resource() {
    let env = world();
    let city = env.run(["call", "./weather", "--resource", "/cities/oslo", "--json"]).ok().json();
    assert_eq!(city, json!({ "city": "/cities/oslo" }));
    assert_eq!(
        env.run(["call", "./weather", "--resource", "/nothing", "--json"]).exit(1).error()["code"],
        "NOT_FOUND"
    );
    env.run(["call", "calculate", "--resource", "x"]).exit(2);
}

#[test]
pub(crate) fn prompt() {
    let env = world();
    let text = env.run(["call", "./weather", "--prompt", "report", "city=Oslo"]).ok().out;
    assert!(text.contains("Report on") && text.contains("Oslo"), "{text}");
    env.run(["call", "./weather", "--prompt", "nosuch"]).exit(1);
}

#[test]
fn a_program_without_the_protocol_is_rejected() {
    let env = world();
    let error = env.run(["call", "/bin/true", "x", "--json"]).exit(1).error();
    assert!(error["hints"].to_string().contains("--discover"), "{error}");
    let other = env.run(["tools", "./weather", "/bin/true"]).ok();
    assert!(other.out.contains("forecast") && other.err.contains("warning:"), "{other}");
    env.run(["call", "./nothing", "x"]).exit(2);
}

const WC: &str = r#"kind = "command"
v = 1
program = "wc"

[[tool]]
name = "count_lines"
description = "Count the lines of a file."
read_only = true
args = ["-l", "--", "{path}"]

[tool.parameters.path]
type = "string"
description = "The file."

[tool.output]
format = "text"
"#;

#[test]
fn a_description_starts_nothing_until_it_is_trusted() {
    let env = TestEnv::new();
    env.write("wc.toml", WC);
    env.write("three.txt", "1\n2\n3\n");
    let words = ["call", "wc.toml", "path=three.txt"];
    let refused = env.run(words).exit(5);
    assert!(
        refused.err.contains("is not trusted") && refused.err.contains("toolpost trust wc.toml"),
        "{refused}"
    );
    env.run(["trust", "wc.toml"]).ok();
    assert!(env.run(words).ok().out.starts_with('3'), "{}", env.run(words));
    env.write("wc.toml", WC.replace("-l", "-c"));
    assert!(env.run(words).exit(5).err.contains("has changed"));
    env.write("plan.toml", "kind = \"plan\"\n");
    env.run(["trust", "plan.toml"]).ok();
    assert!(env.run(["call", "plan.toml"]).exit(2).err.contains("`plan`"));
}

#[test]
fn included_descriptions_need_no_trust() {
    let env = TestEnv::new();
    let listed = env.run(["tools", "command:wc", "--format", "jsonl"]).ok().lines();
    assert!(!listed.is_empty());
    let wrong = env.run(["tools", "command:gti"]).exit(1);
    assert!(wrong.err.contains("git"), "{wrong}");
}

#[test]
fn a_tool_is_called_by_its_aliases() {
    let env = TestEnv::new();
    let answer: Value = env.run(["call", "safe_math_evaluator", "expression=6*7", "--json"]).ok().json();
    assert_eq!(
        answer["result"],
        env.run(["call", "calculate", "expression=6*7", "--json"]).ok().json()["result"]
    );
}

fn offered(words: &[&str]) -> Vec<String> {
    let body = ask(words);
    body["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
pub(crate) fn dynamic() {
    let all = offered(&["--tools", "builtin"]);
    assert!(all.contains(&"calculate".to_owned()) && !all.contains(&"browse_toolkit".to_owned()));
    let browsing = offered(&["--tools", "builtin", "--dynamic=browse"]);
    assert!(
        browsing.contains(&"browse_toolkit".to_owned()) && !browsing.contains(&"calculate".to_owned()),
        "{browsing:?}"
    );
    // The model's provider has its own search.
    let searched = ask(&["--tools", "builtin", "--dynamic=native", "--core-tool", "calculate"]);
    let tools = searched["tools"].as_array().unwrap();
    assert_eq!(tools[0]["name"], "tool_search_tool_bm25", "{searched}");
    let is_deferred =
        |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap()["defer_loading"] == true;
    assert!(is_deferred("read_file") && !is_deferred("calculate"), "{searched}");
    let searched = offered(&["--tools", "builtin", "--dynamic"]);
    assert_eq!((searched.len(), searched[0].as_str()), (all.len() + 1, "tool_search_tool_bm25"));
    let env = TestEnv::new();
    env.write("finder.yaml", "turns:\n  - text: '{}'\n");
    env.write("load.yaml", "turns:\n  - calls: [{ tool: load_tools, args: { tool_names: [calculate] } }]\n  - calls: [{ tool: calculate, args: { expression: '6*7' } }]\n  - text: \"{{ last.text }}\"\n");
    let words = ["run", "-p", "x", "--tools", "builtin", "--model", "script:load.yaml"];
    let finder = env.path("finder.yaml");
    let dynamic = format!("--dynamic=script:{}", finder.display());
    assert_eq!(env.run(words.iter().copied().chain([dynamic.as_str()])).ok().out.trim(), "42");
    // A recording has the exchanges of both models, and replays both.
    env.write(
        "find.yaml",
        "turns:\n  - calls: [{ tool: find_tools, args: { intent: add } }]\n  - text: found\n",
    );
    let asked = ["run", "-p", "x", "--tools", "builtin"];
    let recorded = ["--model", "script:find.yaml", &dynamic, "--record", "said.jsonl"];
    env.run(asked.iter().copied().chain(recorded)).ok();
    assert_eq!(env.read("said.jsonl").lines().count(), 3);
    std::fs::remove_file(env.path("finder.yaml")).unwrap();
    let again = ["--model", "replay:said.jsonl", "--dynamic=replay:said.jsonl"];
    assert_eq!(env.run(asked.iter().copied().chain(again)).ok().out.trim(), "found");
}

#[test]
pub(crate) fn core_tool() {
    let names = offered(&["--tools", "builtin", "--dynamic=browse", "--core-tool", "calculate"]);
    assert_eq!(names.first().map(String::as_str), Some("calculate"));
    assert!(!names.contains(&"read_file".to_owned()), "{names:?}");
}

#[test]
pub(crate) fn compact_tools() {
    let length = |words: &[&str]| ask(words)["tools"].to_string().len();
    assert!(length(&["--tools", "builtin", "--compact-tools"]) < length(&["--tools", "builtin"]));
}

#[test]
pub(crate) fn search() {
    let env = TestEnv::new();
    let found = env.run(["tools", "builtin", "--search", "hash text", "--format", "jsonl"]).ok().lines();
    assert_eq!(found[0]["name"], "hash_text");
    assert!(found.len() < toolpost_tools::BUILTIN_NAMES.len());
    let nothing = env.run(["tools", "--search", "zzzzzz"]).ok();
    assert!(nothing.out.is_empty() && nothing.err.contains("no tool matches"), "{nothing}");
}

#[test]
pub(crate) fn init() {
    let env = TestEnv::new();
    let made = env.run(["init", "tool", "--exec", "greet", "--json"]).ok().json();
    assert_eq!(made["directory"], "greet");
    assert!(
        env.run(["tools", "./greet/greet"]).status.success()
            || env.run(["tools", "./greet/greet.py"]).status.success()
    );
    let again = env.run(["init", "tool", "--exec", "greet", "--json"]).exit(1).error();
    assert_eq!(again["code"], "CONFLICT");
    env.run(["init", "tool", "--rust", "greet", "other", "--toolpost", "."]).ok();
    let manifest = env.read("other/Cargo.toml");
    assert!(manifest.contains("greet") && manifest.contains("path = "), "{manifest}");
    env.run(["init", "tool"]).exit(2);
}

#[test]
fn a_description_defines_success() {
    let env = TestEnv::new();
    env.write("a.txt", "one\n");
    env.write("b.txt", "two\n");
    // `diff` exits with 1 when files differ, which its description maps to a result.
    let differ = env.run(["call", "command:diff", "from=a.txt", "to=b.txt", "--json"]);
    assert_eq!(differ.status.code(), Some(0), "{differ}");
    // A single value needs no list.
    let counted = env.run(["call", "command:wc", "paths=a.txt", "--json"]).ok();
    assert_eq!(counted.json()["status"], "success", "{counted}");
}

#[test]
fn a_programs_texts_are_escaped() {
    let env = world();
    env.write("weather", WEATHER.replace("Forecast the weather.", "\\u001b[2Jgone\\u009b31m"));
    let shown = env.run(["tools", "./weather"]).ok();
    assert!(
        shown.out.contains("gone") && !shown.out.contains('\u{1b}') && !shown.out.contains('\u{9b}'),
        "{shown:?}"
    );
    let page = env.run(["tools", "./weather", "--manifest", "forecast"]).ok();
    assert!(!page.out.contains('\u{1b}'), "{page:?}");
}

#[test]
fn the_reason_of_a_failed_program_is_printed() {
    let env = world();
    env.write("weather", WEATHER.replace("forecast) case", "forecast) echo no umbrella >&2; exit 3; case"));
    let failed = env.run(["call", "./weather", "forecast", "city=Oslo"]);
    assert!(failed.status.code() == Some(1) && failed.err.contains("no umbrella"), "{failed}");
}

#[test]
fn a_tools_question_does_not_look_like_the_commands() {
    let env = world().with("TERM", "dumb");
    let held = env.answering(&["x\r"], ["call", "./weather", "talk", "city=x"]).ok();
    assert!(held.out.contains("a tool asks:"), "{held}");
}

#[test]
fn a_name_before_a_target_is_its_namespace_in_every_command() {
    let env = TestEnv::new();
    let tools = env.run(["tools", "sum=builtin:calculate", "time=command:date"]).ok().out;
    let names: Vec<&str> = tools.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["sum__calculate", "time__date"]);
    let words = ["call", "sum=builtin:calculate", "sum__calculate", "expression=6*7", "--quiet"];
    assert_eq!(env.run(words).ok().out, "42\n");
    env.write(
        "sum.yaml",
        "turns:\n  - calls: [{ tool: sum__calculate, args: { expression: 6*7 } }]\n  - text: '{{ last.text }}'\n",
    );
    let words =
        ["run", "x", "--model", "script:sum.yaml", "--tools", "read_file,sum=builtin:calculate", "-q"];
    assert_eq!(env.run(words).ok().out, "42\n");
    // A file of targets names them in the same way.
    env.write("agent.toml", "kind = \"agent\"\nv = 1\nname = \"a\"\ndescription = \"A.\"\nmodel = \"script:sum.yaml\"\ntools = [\"sum=builtin:calculate\"]\n");
    env.run(["trust", "agent.toml"]).ok();
    let answered = env.run(["call", "./agent.toml", "prompt=x", "--quiet"]).ok().out;
    assert!(answered.contains("42"), "{answered}");
    let wrong = env.run(["tools", "a=./x", "a=./y", "--json"]).exit(2).error();
    assert!(wrong["message"].as_str().unwrap().contains("two upstreams have this name"), "{wrong}");
}
