//! Agent files: descriptions with `kind = "agent"` as targets of every command.

use serde_json::{Value, json};

use crate::serve::{modern, tools};
use crate::support::{Anthropic, Finished, TestEnv, ask, calls, hesitates, says};

/// An agent that adds, with its own scripted model.
const ADDER: &str = r#"kind = "agent"
v = 1
name = "adder"
description = "Adds numbers."
model = "script:adder.yaml"
tools = ["calculate"]
"#;

const ADDING: &str = r#"
turns:
  - calls: [{ tool: calculate, args: { expression: 2 + 3 } }]
    usage: { input: 100, output: 10 }
  - text: "{{ last.text }}"
    usage: { input: 200, output: 20 }
"#;

/// A description without the common lines.
fn agent(more: &str) -> String {
    format!("kind = \"agent\"\nv = 1\nname = \"helper\"\ndescription = \"Helps.\"\n{more}")
}

/// A world with a trusted description in a directory, to test relative paths.
fn world(description: &str) -> TestEnv {
    let env = TestEnv::new();
    env.write("agents/adder.yaml", ADDING);
    trust(&env, "agents/a.toml", description);
    env
}

fn trust(env: &TestEnv, name: &str, content: &str) {
    env.write(name, content);
    env.run(["trust", name]).ok();
}

const CALL: [&str; 3] = ["call", "agents/a.toml", "prompt=Add 2 and 3."];

fn call(env: &TestEnv, words: &[&str]) -> Finished {
    env.run(CALL.iter().chain(words))
}

#[test]
fn a_call_is_a_stored_run_with_its_usage() {
    let env = world(ADDER);
    let shown = call(&env, &[]).ok();
    assert_eq!(shown.out, "5\n", "{shown}");
    let runs = env.run(["runs", "ls", "--json"]).ok().json();
    let [run] = runs["runs"].as_array().unwrap().as_slice() else { panic!("not one run: {runs}") };
    assert_eq!((&run["success"], &run["tool_calls"]), (&json!(true), &json!(1)), "{run}");
    assert_eq!(run["usage"]["input_tokens"], 300, "{run}");
    // The record of the call has it too.
    let record = call(&env, &["--format", "jsonl"]).ok().record();
    assert_eq!(record["usage"]["output_tokens"], 30, "{record}");
    call(&env, &["--config", "no_save=true"]).ok();
    assert_eq!(env.run(["runs", "ls", "--json"]).ok().json()["runs"].as_array().unwrap().len(), 2);
}

#[test]
fn an_untrusted_file_starts_nothing_and_a_listing_needs_no_model() {
    let env = TestEnv::new();
    env.write("a.toml", agent(""));
    let refused = env.run(["tools", "a.toml"]).exit(5);
    assert!(
        refused.err.contains("is not trusted") && refused.err.contains("toolpost trust a.toml"),
        "{refused}"
    );
    env.run(["trust", "a.toml"]).ok();
    let manifest = env.run(["tools", "a.toml", "--manifest", "helper", "--json"]).ok().json();
    assert_eq!(manifest["input_schema"]["required"], json!(["prompt"]), "{manifest}");
    assert!(env.run(["tools", "a.toml", "--search", "helps"]).ok().out.contains("helper"));
    // Only a call needs a model.
    let asked = env.run(["call", "a.toml", "prompt=x", "--json"]).exit(1).error();
    assert_eq!(asked["code"], "PRECONDITION");
    assert!(asked["message"].as_str().unwrap().contains("no model is named"), "{asked}");
}

#[test]
fn the_model_is_of_the_file_else_of_the_caller_else_of_the_settings() {
    let env = world(&agent(""));
    for (name, words) in
        [("one", &["--model", "script:one.yaml"][..]), ("two", &["--config", "model=script:two.yaml"])]
    {
        env.write(&format!("{name}.yaml"), format!("turns: [{{ text: {name} }}]"));
        assert_eq!(call(&env, words).ok().out, format!("{name}\n"));
    }
    // In a run, the model of the run.
    let model = Anthropic::start(vec![
        calls("helper", &json!({ "prompt": "Say it." })),
        says("said"),
        says("It was said."),
    ]);
    trust(&model.env, "a.toml", &agent("system_prompt = \"You are short.\"\n"));
    let run = model.env.run(["run", "-p", "go", "--tools", "a.toml"]).ok();
    assert_eq!(run.out, "It was said.\n", "{run}");
    let bodies = model.bodies();
    assert!(bodies[1]["system"].to_string().contains("You are short."), "{}", bodies[1]);
    assert!(!bodies[0].to_string().contains("You are short.") && bodies[1].to_string().contains("Say it."));
    assert!(bodies[1].get("tools").is_none_or(|tools| tools == &json!([])), "{}", bodies[1]);
}

#[test]
fn a_nested_run_shares_limits_recording_and_storage() {
    let env = world(ADDER);
    env.write(
        "boss.yaml",
        "turns:\n  - calls: [{ tool: adder, args: { prompt: Add. } }]\n  - text: 'It is {{ last.text }}.'\n",
    );
    let run = ["run", "-p", "go", "--model", "script:boss.yaml", "--tools", "agents/a.toml"];
    let with = |words: &[&'static str]| env.run(run.iter().chain(words));
    let done = with(&["--json", "--record", "said.jsonl"]).ok().json();
    assert_eq!(done["response"], "It is 5.");
    assert_eq!(done["usage"]["input_tokens"], 300, "{done}");
    assert_eq!(done["children"][0]["response"], "5", "{done}");
    assert_eq!(env.read("said.jsonl").lines().count(), 4);
    let listed = |words: &[&str]| {
        let listed = env.run(["runs", "ls", "--json"].iter().chain(words)).ok().json();
        listed["runs"].as_array().unwrap().len()
    };
    assert_eq!((listed(&[]), listed(&["--all"])), (1, 2));
    // The run replays without its provider, with the agent's exchanges.
    let id = done["id"].as_str().unwrap();
    std::fs::remove_file(env.path("agents/adder.yaml")).unwrap();
    let again = env.run(["runs", "replay", id, "--tools", "agents/a.toml"]).ok();
    assert!(again.err.contains("the same: 4 exchanges"), "{again}");
    env.write("agents/adder.yaml", ADDING);
    // The agent's calls and usage count for its caller.
    let limited = with(&["--max-tool-calls", "1", "--config", "no_wrap_up=true", "--json"]).ok();
    assert_eq!(limited.json()["children"][0]["stop_reason"], "max_tool_calls", "{limited}");
    let limited = with(&["--max-tokens", "50", "--config", "no_wrap_up=true", "--json"]).exit(6);
    assert_eq!(limited.json()["stop_reason"], "max_tokens", "{limited}");
    assert_eq!(limited.json()["children"][0]["stop_reason"], "max_tokens", "{limited}");
    // The agent's text is not an answer.
    assert_eq!(with(&[]).ok().out, "It is 5.\n");
}

#[test]
fn its_own_limit_is_a_typed_error_that_names_the_run() {
    for (line, stop) in [("max_iterations = 1", "max_iterations"), ("max_tokens = 50", "max_tokens")] {
        let env = world(&format!("{ADDER}{line}\nno_wrap_up = true\n"));
        let ended = call(&env, &["--json"]);
        let error = ended.exit(6).error();
        assert_eq!(error["code"], "LIMIT", "{error}");
        assert!(error["message"].as_str().unwrap().contains(stop), "{error}");
        let hint = error["hints"].as_array().unwrap().iter().find_map(|hint| {
            hint.as_str()?.strip_prefix("`toolpost runs show ")?.split('`').next().map(str::to_owned)
        });
        let shown = env.run(["runs", "show", &hint.unwrap(), "--json"]).ok().json();
        assert_eq!(shown["record"]["stop_reason"], stop, "{shown}");
    }
    // A model with a price.
    let model = Anthropic::start(vec![calls("calculate", &json!({ "expression": "2 + 3" }))]);
    let more = "tools = [\"calculate\"]\nmax_cost = 0.000001\nno_wrap_up = true\n";
    trust(&model.env, "agents/a.toml", &agent(more));
    assert!(call(&model.env, &[]).exit(6).err.contains("max_cost"));
    // Settings apply where the file has no limit; the file overrides them.
    let env = world(&format!("{ADDER}no_wrap_up = true\n"));
    call(&env, &["--config", "max_tokens=50"]).exit(6);
    let env = world(&format!("{ADDER}max_tokens = 1000\n"));
    call(&env, &["--config", "max_tokens=50"]).ok();
    // A summary follows the limit, unless `no_wrap_up` is set.
    for (more, exchanges) in [("", 2), ("no_wrap_up = true\n", 1)] {
        let env = world(&format!("{ADDER}max_iterations = 1\n{more}"));
        call(&env, &[]).exit(6);
        let runs = env.run(["runs", "ls", "--json"]).ok().json();
        assert_eq!(runs["runs"][0]["exchanges"], exchanges, "{runs}");
    }
    // One second for a model that takes minutes.
    let model = Anthropic::start(vec![hesitates("Well")]);
    trust(&model.env, "agents/a.toml", &agent("max_time = \"1s\"\nno_wrap_up = true\n"));
    assert!(call(&model.env, &[]).exit(6).err.contains("max_time"));
}

#[test]
fn settings_of_the_file_reach_the_request() {
    for (line, pointer, expected) in [
        ("model = \"anthropic/claude-unlisted\"\ntemperature = 0.5", "/temperature", json!(0.5)),
        ("model = \"anthropic/claude-unlisted\"\ntop_p = 0.25", "/top_p", json!(0.25)),
        ("model = \"anthropic/claude-unlisted\"\nstop = [\"END\"]", "/stop_sequences", json!(["END"])),
        ("max_output_tokens = 77", "/max_tokens", json!(77)),
        ("effort = \"low\"", "/output_config/effort", json!("low")),
        ("thinking = \"adaptive\"", "/thinking/type", json!("adaptive")),
        ("system_prompt = \"Say less.\"", "/system", json!("Say less.")),
        ("system_prompt_file = \"words.md\"", "/system", json!("Say little.")),
    ] {
        let model = Anthropic::start(vec![says("hello")]);
        trust(&model.env, "agents/words.md", "Say little.\n");
        trust(&model.env, "agents/a.toml", &agent(line));
        // Settings of answers are for `run` alone.
        let words = ["--config", "seed=3", "--config", "system_prompt=Not this."];
        assert_eq!(call(&model.env, &words).ok().out, "hello\n", "{line}");
        let body = model.bodies().remove(0);
        let found = body.pointer(pointer).cloned().unwrap_or_default();
        let found = match &found {
            Value::Array(parts) if pointer == "/system" => parts[0]["text"].as_str().unwrap().trim().into(),
            Value::String(text) => text.trim().into(),
            _ => found,
        };
        assert_eq!(found, expected, "{line}: {body}");
        assert!(!body.to_string().contains("Not this."), "{body}");
    }
    assert!(ask(&[]).get("temperature").is_none());
}

#[test]
fn an_output_schema_makes_the_result_a_value() {
    let schema =
        "[output_schema]\ntype = \"object\"\nrequired = [\"sum\"]\nproperties.sum.type = \"integer\"\n";
    let env = world(&agent(&format!("model = \"script:json.yaml\"\n{schema}")));
    env.write("agents/json.yaml", "turns: [{ text: 'no' }, { text: 'Here: {\"sum\": 5}' }]");
    let answer = call(&env, &["--json"]).ok().json();
    assert_eq!(answer["result"], json!({ "sum": 5 }), "{answer}");
    env.write("agents/json.yaml", "turns: [{ text: a }, { text: b }, { text: c }]");
    let error = call(&env, &["--json"]).exit(4).error();
    assert!(error["message"].as_str().unwrap().contains("answer_schema"), "{error}");
}

#[test]
fn tools_are_relative_to_the_file_and_may_be_agents() {
    let env =
        world(&agent("model = \"script:boss.yaml\"\ntools = [\"deep/adder.yaml,./deep/other.json\"]\n"));
    env.write(
        "agents/boss.yaml",
        "turns:\n  - calls: [{ tool: adder, args: { prompt: Add. } }]\n  - text: 'It is {{ last.text }}.'\n",
    );
    env.write("agents/deep/script.yaml", ADDING);
    let yaml =
        "kind: agent\nv: 1\nname: adder\ndescription: Adds.\nmodel: script:script.yaml\ntools: [calculate]\n";
    trust(&env, "agents/deep/adder.yaml", yaml);
    let other = json!({ "kind": "agent", "v": 1, "name": "other", "description": "Does it." });
    trust(&env, "agents/deep/other.json", &other.to_string());
    // It was trusted before its references existed.
    env.run(["trust", "agents/a.toml"]).ok();
    assert_eq!(call(&env, &[]).ok().out, "It is 5.\n");
    // `--ask` includes the tools of agents, and `--approve` names them.
    call(&env, &["--ask", "--no-input"]).exit(5);
    let allowed = ["--approve", "helper", "--approve", "adder", "--approve", "calculate"];
    assert_eq!(call(&env, &[&["--ask", "--no-input"][..], &allowed].concat()).ok().out, "It is 5.\n");
    let wrong = call(&env, &["--approve", "calculat"]).exit(2);
    assert!(wrong.err.contains("`calculate`"), "{wrong}");
}

#[test]
fn a_cycle_of_files_is_rejected_with_the_path() {
    let env = TestEnv::new();
    trust(&env, "self.toml", &agent("tools = [\"./self.toml\"]\n"));
    let refused = env.run(["tools", "self.toml"]).exit(2);
    assert!(refused.err.contains("self.toml → ./self.toml"), "{refused}");
    env.write("a.toml", agent("tools = [\"b.toml\"]\n"));
    trust(&env, "b.toml", &agent("tools = [\"c\"]\n"));
    env.run(["trust", "a.toml"]).ok();
    let refused = env.run(["tools", "a.toml", "--config", "targets.c=a.toml"]).exit(2);
    assert!(refused.err.contains("is part of a cycle: a.toml → ./b.toml → a.toml"), "{refused}");
    // Through a gateway.
    env.write("g.toml", "kind = \"gateway\"\n[[upstreams]]\nname = \"up\"\ntarget = \"./d.toml\"\n");
    env.write("d.toml", agent("tools = [\"g.toml\"]\n"));
    env.run(["trust", "g.toml"]).ok();
    let away = env.run(["tools", "g.toml"]);
    assert!(away.err.contains("is part of a cycle"), "{away}");
    for number in 0..9 {
        env.write(&format!("{number}.toml"), agent(&format!("tools = [\"{}.toml\"]\n", number + 1)));
    }
    env.run(["trust", "0.toml"]).ok();
    let refused = env.run(["tools", "0.toml"]).exit(2);
    assert!(refused.err.contains("more than 8"), "{refused}");
}

#[test]
fn errors_in_a_file_have_a_line() {
    let rows: &[(&str, &str, &[&str])] = &[
        ("modle = \"x\"", "5", &["modle", "did you mean `model`?", "known keys: description"]),
        ("api_key = \"sk-ant-0123456789\"", "5", &["api_key", "A description has no secrets"]),
        ("max_cost = -1", "5", &["max_cost: expected a number above 0, found -1"]),
        ("max_time = \"soon\"", "5", &["max_time: expected a duration"]),
        ("temperature = 3", "5", &["temperature: expected a number from 0 to 2"]),
        ("effort = \"lots\"", "5", &["effort: expected one of"]),
        ("thinking = \"much\"", "5", &["thinking: expected `off`"]),
        ("tools = \"calculate\"", "5", &["tools: expected a list of strings"]),
        ("model = \"nobody\"", "5", &["model: "]),
        ("output_schema = 5", "5", &["output_schema: expected a table with a JSON Schema, found 5"]),
        ("output_schema.type = 5", "5", &["output_schema: "]),
        ("system_prompt = \"a\"\nsystem_prompt_file = \"b\"", "6", &["conflicts with `system_prompt`"]),
        ("tools = [\"hosted:web_search\"]", "", &["hosted:web_search"]),
        ("tools = [\"calculat\"]", "", &["unknown target `calculat`", "`calculate`"]),
    ];
    let env = TestEnv::new();
    for (more, line, expected) in rows {
        env.write("a.toml", agent(more));
        // Targets are opened, not parsed.
        let wrong = if line.is_empty() {
            env.run(["trust", "a.toml"]).ok();
            env.run(["tools", "a.toml"]).exit(2)
        } else {
            env.run(["trust", "a.toml"]).exit(2)
        };
        let place = if line.is_empty() { String::new() } else { format!("a.toml:{line}: ") };
        assert!(wrong.err.contains(&place), "{more}: {wrong}");
        assert!(expected.iter().all(|part| wrong.err.contains(part)), "{more}: {wrong}");
        assert!(!wrong.err.contains("0123456789"), "{wrong}");
    }
    for (text, expected) in [
        ("kind = \"agent\"\nname = \"a\"\n", "the key `v` is missing"),
        ("kind = \"agent\"\nv = 2\n", "a.toml:2: v: expected 1, found 2"),
        ("kind = \"agent\"\nv = 1\n", "the key `name` is missing"),
        ("kind = \"agent\"\nv = 1\nname = \"a b\"\n", "a.toml:3: name: a tool name starts with a letter"),
        ("kind = \"agent\"\nv = 1\nname = \"a\"\n", "the key `description` is missing"),
        (
            "kind = \"agent\"\nv = 1\nname = \"a\"\ndescription = \" \"\n",
            "expected a string, found an empty one",
        ),
    ] {
        env.write("a.toml", text);
        let wrong = env.run(["trust", "a.toml"]).exit(2);
        assert!(wrong.err.contains(expected), "{text}: {wrong}");
    }
    env.write("a.yaml", "kind: agent\nv: 1\nname: a\ndescription: b\nmodle: x\n");
    assert!(env.run(["trust", "a.yaml"]).exit(2).err.contains("a.yaml:5: modle: "));
    trust(&env, "b.yaml", "kind: command\n");
    assert!(env.run(["tools", "b.yaml"]).exit(2).err.contains("which needs TOML"));
    trust(&env, "c.json", "{\"v\": 1}");
    assert!(env.run(["tools", "c.json"]).exit(2).err.contains("has no `kind`"));
    // Changed instructions are not followed.
    let referring = agent("system_prompt_file = \"words.md\"\n");
    env.write("a.toml", &referring);
    assert!(env.run(["trust", "a.toml"]).exit(2).err.contains("words.md"));
    env.write("words.md", "Be brief.");
    trust(&env, "a.toml", &referring);
    env.write("words.md", "Obey.");
    let refused = env.run(["tools", "a.toml"]).exit(5);
    assert!(refused.err.contains("words.md"), "{refused}");
}

#[test]
fn an_mcp_client_gets_it_as_a_tool() {
    let env = world(ADDER);
    trust(&env, "other.toml", &agent("model = \"script:other.yaml\"\n"));
    env.write("other.yaml", "turns: [{ text: fine }]");
    let call = |id, tool| modern(id, "tools/call", json!({ "name": tool, "arguments": { "prompt": "Go." } }));
    for (targets, names) in [
        (&["agents/a.toml"][..], &["adder"][..]),
        (&["agents/a.toml", "other.toml"], &["a__adder", "other__helper"]),
    ] {
        let mut lines = vec![modern(1, "tools/list", json!({}))];
        lines.extend((2..).zip(names).map(|(id, name)| call(id, name)));
        let finished = env.run_with(lines.join("\n") + "\n", ["serve"].iter().chain(targets)).ok();
        let mut answers = finished.lines();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let mut found = tools(&answers[0]);
        found.sort_unstable();
        assert_eq!(found, names, "{finished}");
        for (answer, said) in answers[1..].iter().zip(["5", "fine"]) {
            assert_eq!(answer["result"]["content"][0]["text"], said, "{finished}");
        }
    }
    let runs = env.run(["runs", "ls", "--json"]).ok().json();
    assert_eq!(runs["runs"].as_array().unwrap().len(), 3, "{runs}");
}
