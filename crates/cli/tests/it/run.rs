//! `toolpost run`: each option does what it says.

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::support::{
    Anthropic, TestEnv, ask, calls, fits, repository, says, says_too_much, says_with_usage,
};

/// A world with a script of these turns in `script.yaml`.
fn scripted(turns: &Value) -> TestEnv {
    let env = TestEnv::new();
    // YAML includes JSON.
    env.write("script.yaml", json!({ "turns": turns }).to_string());
    env
}

/// A script that calls one tool and prints the result.
fn calling(tool: &str, arguments: &Value) -> TestEnv {
    scripted(&json!([{ "calls": [{ "tool": tool, "args": arguments }] }, { "text": "{{ last.text }}" }]))
}

const RUN: [&str; 5] = ["run", "-p", "go", "--model", "script:script.yaml"];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().chain(words).copied().collect()
}

#[track_caller]
fn record(env: &TestEnv, words: &[&str]) -> Value {
    let record = env.run(with(words).into_iter().chain(["--json"])).ok().json();
    fits("run-record", &record);
    record
}

fn task(body: &Value) -> &Value {
    &body["messages"][0]["content"][0]["text"]
}

#[test]
pub(crate) fn prompt() {
    for option in ["-p", "--prompt"] {
        let model = Anthropic::start(vec![says("ok")]);
        model.env.run(["run", option, "count to three"]).ok();
        assert_eq!(task(&model.bodies()[0]), "count to three");
    }
}

#[test]
pub(crate) fn file() {
    let model = Anthropic::start(vec![says("ok"), says("ok"), says("ok")]);
    model.env.write("task.txt", "from a file\n");
    model.env.run(["run", "-f", "task.txt"]).ok();
    model.env.run(["run", "--file", "task.txt"]).ok();
    model.env.run_with("from a pipe", ["run", "-f", "-"]).ok();
    let bodies = model.bodies();
    assert_eq!(
        bodies.iter().map(task).collect::<Vec<_>>(),
        ["from a file\n", "from a file\n", "from a pipe"]
    );
}

#[test]
fn piped_input_follows_the_task() {
    let model = Anthropic::start(vec![says("ok"), says("ok")]);
    model.env.run_with("a,b\n1,2\n", ["run", "-p", "sum this"]).ok();
    model.env.run_with("", ["run", "-p", "sum this"]).ok();
    let bodies = model.bodies();
    assert_eq!(
        bodies.iter().map(task).collect::<Vec<_>>(),
        ["sum this\n\n<stdin>\na,b\n1,2\n</stdin>", "sum this"]
    );
}

#[test]
pub(crate) fn output() {
    let env = scripted(&json!([{ "text": "The answer." }]));
    for option in ["-o", "--output"] {
        let finished = env.run(with(&[option, "answer.txt"])).ok();
        assert_eq!(
            (finished.out.as_str(), env.read("answer.txt").as_str()),
            ("The answer.\n", "The answer.\n")
        );
        // An existing file stays, and the model gets no request.
        env.write("answer.txt", "mine");
        let refused = env.run(with(&[option, "answer.txt", "--json"])).exit(2);
        assert!(refused.out.is_empty() && refused.err.contains("already exists"), "{refused}");
        assert_eq!(env.read("answer.txt"), "mine");
        std::fs::remove_file(env.path("answer.txt")).unwrap();
    }
    // A run without an answer writes no file.
    let env = calling("calculate", &json!({"expression": "1"}));
    env.run(with(&["--max-iterations", "1", "-o", "answer.txt"])).exit(6);
    assert!(!env.path("answer.txt").exists());
}

#[test]
pub(crate) fn output_schema() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    // The first answer does not fit, and the model gets the mismatch.
    let env = scripted(&json!([{ "text": "Oslo" }, { "text": "{\"city\": \"Oslo\"}" }]));
    env.write("schema.json", schema.to_string());
    let record = env.run(with(&["--output-schema", "schema.json", "--json"])).ok().json();
    assert_eq!(
        serde_json::from_str::<Value>(record["response"].as_str().unwrap()).unwrap(),
        json!({"city": "Oslo"})
    );
    assert_eq!(record["iterations"], 2);
    // No answer fits.
    let env = scripted(&json!([{ "text": "Oslo" }, { "text": "7" }, { "text": "{}" }, { "text": "[]" }]));
    env.write("schema.json", schema.to_string());
    let finished = env.run(with(&["--output-schema", "schema.json", "-o", "answer.txt", "--json"])).exit(7);
    assert_eq!(finished.error()["code"], "ANSWER_SCHEMA");
    assert!(!env.path("answer.txt").exists());
    // An invalid schema is found before a request.
    for (text, said) in [("{", "EOF"), ("[]", "expected a JSON object"), ("{\"type\": 7}", "schema")] {
        env.write("schema.json", text);
        let refused = env.run(with(&["--output-schema", "schema.json"])).exit(2);
        assert!(refused.err.contains(said), "{refused}");
    }
    env.run(with(&["--output-schema", "missing.json"])).exit(2);
}

#[test]
pub(crate) fn max_cost() {
    // An answer of the loopback provider costs a little; the next one is over the limit.
    let sum = json!({"expression": "1"});
    let replies = || vec![calls("calculate", &sum), says("Summed up."), says("more")];
    let model = Anthropic::start(replies());
    let words =
        ["run", "-p", "x", "-m", "anthropic/claude-sonnet-5-5", "--json", "--config", "no_wrap_up=true"];
    let finished = model.env.run(words.iter().chain(&["--max-cost", "0.000001"])).exit(6);
    assert_eq!(finished.error()["code"], "MAX_COST");
    assert_eq!(model.bodies().len(), 1);
    let model = Anthropic::start(replies());
    model.env.run(words.iter().chain(&["--config", "max_cost=0.000001"])).exit(6);
    let model = Anthropic::start(replies());
    let record = model.env.run(words.iter().chain(&["--max-cost", "5"])).ok().json();
    assert!(record["cost_usd"].as_f64().unwrap() > 0.0, "{record}");
    // The cost of a script is unknown.
    let env = scripted(&json!([{ "text": "x" }]));
    // A local model costs nothing.
    env.run(with(&["--max-cost", "1"])).ok();
    // The fix works.
    let model = Anthropic::start(vec![says("priced")]);
    let mine = ["run", "-p", "x", "-m", "anthropic/mine", "--max-cost", "1", "--json"];
    let hint = model.env.run(mine).exit(2).error()["hints"][0].as_str().unwrap().to_owned();
    assert!(
        hint.contains("`models.file`") && hint.contains("`toolpost models show anthropic/mine`"),
        "{hint}"
    );
    model.env.write("prices.json", &hint[hint.find('{').unwrap()..=hint.rfind('}').unwrap()]);
    let priced = ["--config", "models.file=prices.json"];
    model.env.run(["models", "show", "anthropic/mine"].iter().chain(&priced)).ok();
    let record = model.env.run(mine.iter().chain(&priced)).ok().json();
    assert!((record["cost_usd"].as_f64().unwrap() - 96e-6).abs() < 1e-9, "{record}");
    // Without usage the cost is unknown, not zero.
    let uncounted = says_with_usage("hi", &json!({"output_tokens": -5}));
    let model = Anthropic::start(vec![uncounted]);
    let finished = model.env.run(words.iter().chain(&["--max-cost", "5"])).ok();
    assert!(finished.json().get("cost_usd").is_none(), "{finished}");
    assert!(finished.out.contains("the cost of the answer is unknown"), "{finished}");
}

#[test]
fn an_answer_is_billed_at_its_service_tier() {
    let cost = |usage: &Value| {
        let model = Anthropic::start(vec![says_with_usage("hi", usage)]);
        let words = ["run", "-p", "x", "-m", "anthropic/claude-opus-5-5", "--json"];
        model.env.run(words).ok().json()["cost_usd"].as_f64()
    };
    let standard = cost(&json!({"output_tokens": 5, "speed": "standard"})).unwrap();
    let fast = cost(&json!({"output_tokens": 5, "speed": "fast"})).unwrap();
    assert!(standard > 0.0 && (fast - 2.0 * standard).abs() < 1e-12, "{standard} {fast}");
    assert_eq!(cost(&json!({"output_tokens": 5, "service_tier": "nobody_knows"})), None);
}

#[test]
pub(crate) fn no_wrap_up() {
    let sum = json!({"expression": "1"});
    let record = |words: &[&str]| {
        let model = Anthropic::start(vec![calls("calculate", &sum), says("Summed up.")]);
        let base = ["run", "-p", "x", "--json", "--max-iterations", "1"];
        let record = model.env.run(base.iter().chain(words)).exit(6).json();
        (record["response"].as_str().unwrap().to_owned(), model.bodies().len())
    };
    assert_eq!(record(&[]), ("Summed up.".to_owned(), 2));
    assert_eq!(record(&["--config", "no_wrap_up=true"]), (String::new(), 1));
    assert_eq!(record(&["--config", "no_wrap_up=true"]), (String::new(), 1));
}

#[test]
fn the_summary_at_a_limit_is_the_result_and_no_answer() {
    let sum = json!({"expression": "1"});
    let replies = || vec![calls("calculate", &sum), says("Summed up.")];
    let limited: &[&str] = &["run", "-p", "x", "--max-iterations", "1"];
    let ended = |replies, words: &[&str]| {
        let model = Anthropic::start(replies);
        let finished = model.env.run(limited.iter().chain(words)).exit(6);
        assert!(!model.env.path("answer.txt").exists(), "{finished}");
        finished
    };
    let finished = ended(replies(), &["-o", "answer.txt"]);
    assert_eq!(finished.out, "Summed up.\n");
    assert!(finished.err.contains("max_iterations") && !finished.err.contains("Summed up."), "{finished}");
    let finished = ended(vec![says_too_much("Cut o")], &["-o", "answer.txt"]);
    assert_eq!(finished.out, "Cut o\n");
    assert!(finished.err.contains("max_output_tokens") && !finished.err.contains("Cut o"), "{finished}");
    // No answer, or none that fits.
    assert_eq!(ended(replies(), &["--config", "no_wrap_up=true"]).out, "");
    let schema = repository("crates/cli/schemas/error.json");
    let finished = ended(replies(), &["--output-schema", schema.to_str().unwrap()]);
    assert_eq!(finished.out, "");
    assert!(finished.err.contains("Summed up."), "{finished}");
}

#[test]
fn a_failed_run_names_the_command_that_shows_it() {
    let env = scripted(&two_calls());
    let finished = env.run(with(&["--max-iterations", "1", "--json"])).exit(6);
    let id = finished.json()["id"].as_str().unwrap().to_owned();
    let hint = format!("`toolpost runs show {id}` shows the run.");
    assert!(finished.error()["hints"].as_array().unwrap().contains(&json!(hint)), "{finished}");
    env.run(["runs", "show", &id]).ok();
    let unkept = env.run(with(&["--max-iterations", "1", "--json", "--no-save"])).exit(6);
    assert!(!unkept.err.contains("runs show"), "{unkept}");
}

#[test]
pub(crate) fn attach() {
    let env = calling("run_command", &json!({"argv": ["find", ".", "-type", "f"]}));
    env.write("data/table.csv", "a,b\n");
    env.write("data/deep/er.txt", "x");
    env.write("one.txt", "1");
    let finished = env.run(with(&["--tools", "run_command", "--attach", "data", "--attach", "one.txt"])).ok();
    for name in ["./one.txt", "./data/table.csv", "./data/deep/er.txt"] {
        assert!(finished.out.contains(name), "{name}: {finished}");
    }
    assert!(!finished.out.contains("script.yaml"), "{finished}");
    // Attachments are copies and no artifacts.
    assert!(!env.path("artifacts").exists());
}

#[test]
pub(crate) fn workdir() {
    let env = calling("write_file", &json!({"path": "new.txt", "content": "made"}));
    env.write("mine/old.txt", "old");
    let finished = env.run(with(&["--workdir", "mine"])).ok();
    assert_eq!(env.read("mine/new.txt"), "made");
    assert!(!env.path("artifacts").exists(), "{finished}");
}

#[test]
pub(crate) fn artifacts() {
    let file = json!({"path": "out/new.txt", "content": "made", "create_directories": true});
    let env = calling("write_file", &file);
    let made = record(&env, &["--artifacts", "kept"]);
    assert_eq!(env.read("kept/out/new.txt"), "made");
    assert_eq!(made["artifacts"][0]["name"], "kept/out/new.txt");
    assert_eq!(made["artifacts"][0]["size"], 4);
    // Nothing is overwritten.
    let finished = env.run(with(&["--artifacts", "kept"])).ok();
    assert!(finished.err.contains("made kept/out/new-1.txt"), "{finished}");
    // Without the option there is a directory per run, and the last JSON line names it.
    let lines = env.run(with(&["--format", "jsonl"])).ok();
    let told = lines.record();
    fits("run-record", &told);
    let name = told["artifacts"][0]["name"].as_str().unwrap().to_owned();
    assert_eq!(name, format!("artifacts/{}/out/new.txt", told["id"].as_str().unwrap()));
    assert_eq!(env.read(&name), "made");
}

#[test]
fn names_of_artifacts_are_sanitized() {
    let names = [
        ("a\\033[2Jb", "a_[2Jb"),
        ("c\\nerror: d", "c_error: d"),
        ("e\\342\\200\\256txt.exe", "e_txt.exe"),
        ("f\\342\\200\\250g", "f_g"),
        ("h\\302\\255i", "h_i"),
        ("j\\377k", "j\u{fffd}k"),
        ("sub\\033/l", "sub_/l"),
    ];
    let made = names.map(|(name, _)| format!("printf x > \"$(printf '{name}')\""));
    let script = format!("mkdir \"$(printf 'sub\\033')\"; {}", made.join("; "));
    let env = calling("run_command", &json!({"argv": ["sh", "-c", script]}));
    let finished = env.run(with(&["--tools", "run_command", "--artifacts", "kept", "--json"])).ok();
    let record = finished.json();
    fits("run-record", &record);
    let told = record["artifacts"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap());
    let mut told: Vec<&str> = told.collect();
    let mut expected = names.map(|(_, name)| format!("kept/{name}"));
    told.sort_unstable();
    expected.sort_unstable();
    assert_eq!(told, expected);
    for name in &expected {
        assert_eq!(env.read(name), "x");
    }
}

#[test]
fn files_that_cannot_be_stored_stay_and_the_record_is_complete() {
    let env = calling("write_file", &json!({"path": "new.txt", "content": "made"})).leaving_files();
    env.write("taken", "a file where a directory should be");
    let finished = env.run(with(&["--artifacts", "taken", "--json"])).exit(2);
    fits("run-record", &finished.json());
    assert_eq!(finished.json()["success"], true);
    let error = finished.error();
    let hint = error["hints"].as_array().unwrap().iter().filter_map(Value::as_str).next_back().unwrap();
    let directory = hint.split('`').nth(1).unwrap();
    assert_eq!(std::fs::read_to_string(format!("{directory}/new.txt")).unwrap(), "made", "{error}");
}

#[test]
pub(crate) fn system_prompt() {
    assert_eq!(ask(&["--system-prompt", "Be brief."])["system"], "Be brief.");
    assert_eq!(ask(&[])["system"], Value::Null);
}

#[test]
pub(crate) fn model() {
    assert_eq!(ask(&[])["model"], "claude-sonnet-5-5");
    assert_eq!(ask(&["--model", "anthropic/claude-other"])["model"], "claude-other");
    assert_eq!(ask(&["-m", "claude-third"])["model"], "claude-third");
}

#[test]
pub(crate) fn temperature() {
    let unlisted = ["-m", "anthropic/claude-unlisted"];
    assert_eq!(ask(&[&unlisted[..], &["--temperature", "0.25"]].concat())["temperature"], 0.25);
    // A model without temperature never gets one.
    assert_eq!(ask(&["--temperature", "0.25"])["temperature"], Value::Null);
    assert_eq!(ask(&[])["temperature"], Value::Null);
}

#[test]
pub(crate) fn effort() {
    for effort in ["low", "medium", "high", "xhigh", "max"] {
        assert_eq!(ask(&["--effort", effort])["output_config"]["effort"], effort);
    }
    assert_eq!(ask(&[])["output_config"], Value::Null);
    // The model lacks it, and a notice says so.
    let model = Anthropic::start(vec![says("ok")]);
    let finished = model.env.run(["run", "-p", "hi", "--effort", "minimal"]).ok();
    assert_eq!(model.bodies()[0]["output_config"]["effort"], "low");
    assert!(finished.err.contains("note: effort `minimal` was sent as `low`"), "{finished}");
}

#[test]
pub(crate) fn record_option() {
    let model = Anthropic::start(vec![calls("calculate", &json!({"expression": "6*7"})), says("It is 42.")]);
    model.env.run(["run", "-p", "How much?", "--record", "said.jsonl"]).ok();
    assert_eq!(model.env.read("said.jsonl").lines().count(), 2);
    // Without a key and without the provider.
    let env = TestEnv::new();
    env.write("said.jsonl", model.env.read("said.jsonl"));
    let again = env.run(["run", "-p", "How much?", "--model", "replay:said.jsonl"]).ok();
    assert_eq!(again.out, "It is 42.\n");
    let other = env.run(["run", "-p", "How many?", "--model", "replay:said.jsonl", "--json"]).exit(1);
    let error = other.error();
    assert_eq!(error["code"], "REPLAY_MISMATCH");
    assert!(error["message"].as_str().unwrap().contains("How many?"), "{error}");
}

#[test]
fn a_recording_is_private_and_has_no_secret_of_the_environment() {
    use std::os::unix::fs::PermissionsExt as _;
    let secrets = [
        ("BRAVE_API_KEY", "canary-brave-41f0"),
        ("CLAUDE_CODE_OAUTH_TOKEN", "canary-claude-52a1"),
        ("TOOLPOST_SERVE_TOKEN", "canary-serve-63b2"),
    ];
    let prompt = secrets.map(|(_, secret)| secret).join(" and ");
    let model = Anthropic::start(vec![says("hi")]);
    let env = secrets.into_iter().fold(model.env, |env, (name, secret)| env.with(name, secret));
    env.run(["run", "-p", &prompt, "--record", "said.jsonl"]).ok();
    let recording = env.read("said.jsonl");
    for (name, secret) in secrets {
        assert!(!recording.contains(secret), "{name}");
    }
    let mode = std::fs::metadata(env.path("said.jsonl")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The replay masks the same secrets.
    let again = env.run(["run", "-p", &prompt, "--model", "replay:said.jsonl"]).ok();
    assert_eq!(again.out, "hi\n");
}

#[test]
pub(crate) fn tools() {
    let names = |body: &Value| -> Vec<String> {
        let tools = body["tools"].as_array().cloned().unwrap_or_default();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let some = ask(&["--tools", "calculate,builtin:read_file", "--tools", "write_file"]);
    assert_eq!(names(&some), ["calculate", "read_file", "write_file"]);
    assert_eq!(names(&ask(&[])), ["read_file", "list_directory", "calculate", "write_file", "run_code"]);
    assert_eq!(names(&ask(&["--tools", "builtin"])), toolpost_tools::BUILTIN_NAMES);
}

/// The result of the only call of a run that calculates.
#[track_caller]
fn calculated(words: &[&str]) -> String {
    let env = calling("calculate", &json!({"expression": "6*7"}));
    let record = record(&env, words);
    record["tool_calls"][0]["status"].as_str().unwrap().to_owned()
}

#[test]
pub(crate) fn ask_option() {
    assert_eq!(calculated(&["--no-input"]), "success");
    assert_eq!(calculated(&["--no-input", "--ask"]), "error");
}

#[test]
pub(crate) fn approve() {
    assert_eq!(calculated(&["--no-input", "--ask", "--approve", "calculate"]), "success");
    assert_eq!(calculated(&["--no-input", "--ask", "--approve", "read_file"]), "error");
}

#[test]
pub(crate) fn yes() {
    assert_eq!(calculated(&["--ask", "--yes"]), "success");
    assert_eq!(calculated(&["--ask", "--yes", "--no-input"]), "success");
}

#[test]
pub(crate) fn no_input() {
    let words = with(&["--ask"]);
    let env = || calling("calculate", &json!({"expression": "6*7"}));
    let asked = env().answering(&["yes\n"], &words).ok();
    assert!(asked.out.contains("yes / session / no?") && asked.out.contains("42"), "{asked}");
    let declined = env().answering(&["no\n"], &words).ok();
    assert!(declined.out.contains("PERMISSION"), "{declined}");
    let silent = env().on_terminal("yes\n", words.iter().chain(&["--no-input"])).ok();
    assert!(!silent.out.contains("yes / session / no?") && silent.out.contains("PERMISSION"), "{silent}");
}

#[test]
fn input_before_a_prompt_is_discarded() {
    let env = calling("calculate", &json!({"expression": "6*7"}));
    let (screen, running) = env.start_on_terminal("yes\nyes\ny", with(&["--ask"]));
    screen.wait_for("yes / session / no?", 1);
    screen.press("no\n");
    running.finish().exit(0);
    let shown = screen.text();
    assert!(shown.contains("PERMISSION") && !shown.contains("✓ calculate"), "{shown}");
}

#[test]
fn long_arguments_can_be_shown_before_approval() {
    let text = format!("{}the end", "one line\n".repeat(100));
    let env = calling("write_file", &json!({ "content": text, "path": "a.txt" }));
    let words = with(&["--ask", "--tools", "write_file"]);
    let shown = env.answering(&["no\n"], &words).ok();
    assert!(shown.out.contains("path: a.txt") && shown.out.contains("characters more"), "{shown}");
    assert!(!shown.out.contains("│ the end"), "{shown}");
    let shown = env.answering(&["show\n", "no\n"], &words).ok();
    assert!(shown.out.contains("│ the end") && shown.out.contains("PERMISSION"), "{shown}");
}

#[test]
fn a_session_approval_is_remembered() {
    let call = json!({ "tool": "calculate", "args": { "expression": "6*7" } });
    let env = scripted(&json!([{ "calls": [call] }, { "calls": [call] }, { "text": "done" }]));
    let shown = env.answering(&["s\n"], with(&["--ask"])).ok();
    assert_eq!(shown.out.matches("yes / session / no?").count(), 1, "{shown}");
    assert!(!shown.out.contains("PERMISSION"), "{shown}");
}

#[test]
pub(crate) fn level() {
    for level in [Level::Standard, Level::Strict] {
        let availability = Host::probe().availability(level).unwrap();
        if !availability.available {
            println!("SKIP level {level}: {:?}", availability.reason);
            continue;
        }
        let env = calling("run_code", &json!({"language": "bash", "code": "true"}));
        let record = record(&env, &["--level", level.name()]);
        let report = &record["tool_calls"][0]["sandbox"]["report"];
        assert_eq!(
            (&report["requested"], &report["effective"]),
            (&json!(level.name()), &json!(level.name()))
        );
    }
}

/// The record and the error of a run at a limit.
#[track_caller]
fn limited(env: &TestEnv, words: &[&str]) -> (Value, Value) {
    let finished = env.run(with(words).into_iter().chain(["--json"])).exit(6);
    let record = finished.json();
    fits("run-record", &record);
    let error = finished.error();
    assert!(error["hints"][0].as_str().unwrap().contains(words[0]), "{error}");
    (record, error)
}

fn two_calls() -> Value {
    let call = json!({ "tool": "calculate", "args": { "expression": "1" } });
    json!([{ "calls": [call, call], "usage": { "input": 60, "output": 50 } }, { "text": "done" }])
}

#[test]
pub(crate) fn max_iterations() {
    let (record, error) = limited(&scripted(&two_calls()), &["--max-iterations", "1"]);
    assert_eq!((&record["iterations"], &error["code"]), (&json!(1), &json!("MAX_ITERATIONS")));
    scripted(&two_calls()).run(with(&["--max-iterations", "2"])).ok();
}

#[test]
pub(crate) fn max_tool_calls() {
    let (record, error) = limited(&scripted(&two_calls()), &["--max-tool-calls", "1"]);
    assert_eq!(record["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(error["code"], "MAX_TOOL_CALLS");
    scripted(&two_calls()).run(with(&["--max-tool-calls", "2"])).ok();
}

#[test]
pub(crate) fn max_tokens() {
    let (record, error) = limited(&scripted(&two_calls()), &["--max-tokens", "100"]);
    assert_eq!((&record["usage"]["input_tokens"], &error["code"]), (&json!(60), &json!("MAX_TOKENS")));
    scripted(&two_calls()).run(with(&["--max-tokens", "1000"])).ok();
}

#[test]
pub(crate) fn max_time() {
    // A program ends a little before the run's time limit; later calls have no time left.
    let turn = json!({ "calls": [{ "tool": "run_command", "args": { "argv": ["sleep", "4"] } }] });
    let env = scripted(&json!(vec![turn; 8]));
    let (record, error) = limited(&env, &["--max-time", "700ms", "--tools", "run_command"]);
    assert!(record["execution_time"].as_f64().unwrap() < 60.0);
    assert_eq!(error["code"], "MAX_TIME");
}

#[test]
fn a_false_expectation_is_a_failure() {
    let env = scripted(&json!([
        { "calls": [{ "tool": "calculate", "args": { "expression": "6*7" } }] },
        { "expect": { "result_contains": "43" }, "text": "43" },
    ]));
    let finished = env.run(with(&["--json"])).exit(1);
    assert_eq!(finished.error()["code"], "SCRIPT_EXPECTATION");
    fits("run-record", &finished.json());
}

#[test]
fn every_event_fits_its_schema() {
    let env = scripted(&json!([
        { "text": "first", "calls": [{ "tool": "run_code", "args": { "language": "bash", "code": "echo hi > made.txt; echo said" } },
                                     { "tool": "nosuch", "args": {} }] },
        { "text": "last" },
    ]));
    let lines = env.run(with(&["--format", "jsonl"])).ok().lines();
    let schema = toolpost_core::Schema::new(env.run(["schema", "event"]).ok().json());
    for line in &lines {
        let problems = schema.problems(line).unwrap();
        assert!(problems.is_empty(), "{problems:?}\n{line:#}");
    }
    let kinds: std::collections::BTreeSet<_> =
        lines.iter().filter_map(|line| line["type"].as_str()).collect();
    for kind in [
        "run.started",
        "turn.started",
        "text.delta",
        "turn.finished",
        "call.started",
        "call.log",
        "call.artifact",
        "call.finished",
        "run.finished",
    ] {
        assert!(kinds.contains(kind), "{kind} is not in {kinds:?}");
    }
    for line in lines.iter().filter(|line| line["type"] == "call.finished") {
        fits("call-record", &line["record"]);
    }
}

#[test]
fn text_beside_calls_goes_to_stderr() {
    let env = scripted(&json!([
        { "text": "I will calculate.", "calls": [{ "tool": "calculate", "args": { "expression": "6*7" } }] },
        { "text": "It is {{ last.text }}." },
    ]));
    let finished = env.run(with(&[])).ok();
    assert_eq!(finished.out, "It is 42.\n");
    for part in ["the answers are scripted", "I will calculate.", "→ calculate expression=6*7", "✓ calculate"]
    {
        assert!(finished.err.contains(part), "{part}: {finished}");
    }
}

#[test]
fn a_silent_pipe_is_reported() {
    let env = scripted(&json!([{ "text": "x" }]));
    let (reader, writer) = std::io::pipe().unwrap();
    let running = env.start_from(reader, with(&[]));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(writer);
    let finished = running.finish().ok();
    assert!(finished.err.contains("reading standard input to its end"), "{finished}");
    assert!(!env.run_with("x", with(&[])).ok().err.contains("standard input"));
}

#[test]
fn a_run_without_a_home_directory_works() {
    let env = scripted(&json!([{ "text": "The answer." }])).without("HOME");
    assert_eq!(env.run(with(&["--no-save"])).ok().out, "The answer.\n");
}

#[test]
fn outputs_and_tools_are_checked_before_a_request() {
    let env = scripted(&json!([{ "text": "x" }]));
    let refused = env.run(with(&["-o", "no/such/answer.txt", "--json"])).exit(2);
    assert!(refused.out.is_empty() && refused.err.contains("no/such/answer.txt"), "{refused}");
    let refused = env.run(with(&["--core-tool", "calculate"])).exit(2);
    assert!(refused.err.contains("--dynamic"), "{refused}");
}

#[test]
fn a_tiny_cost_is_not_printed_as_zero() {
    let model = Anthropic::start(vec![says("ok")]);
    let finished = model.env.run(["run", "-p", "x", "-m", "anthropic/claude-sonnet-5-5"]).ok();
    assert!(finished.err.contains(" USD") && !finished.err.contains(" 0.0000 USD"), "{finished}");
    let listed = model.env.run(["runs", "ls"]).ok();
    let time = listed.out.trim_end().rsplit(' ').next().unwrap_or_default();
    assert!(time.len() <= "2026-11-21T12:00:00Z".len() + 4 && !time.contains('.'), "{listed}");
}

#[test]
fn the_first_example_is_reproducible() {
    let model = Anthropic::start(vec![calls("list_directory", &json!({})), says("ok")]);
    model.env.write("sales.csv", "a,b\n");
    let record = model.env.run(["run", "--attach", "sales.csv", "-p", "x", "--json"]).ok().json();
    let id = record["id"].as_str().unwrap();
    let told = model.env.run(["runs", "replay", id, "--attach", "sales.csv", "--json"]).ok().json();
    assert_eq!(told["same"], true, "{told}");
    model.env.run(["runs", "export", id, "said.jsonl"]).ok();
    model.env.run(["run", "--attach", "sales.csv", "-p", "x", "-m", "replay:said.jsonl"]).ok();
}

#[test]
fn an_invalid_store_is_found_before_a_request() {
    let model = Anthropic::start(vec![says("ok"), says("ok")]);
    model.env.write("store.db", "this is not a database, and nothing is kept in it".repeat(100));
    let listed = model.env.run(["runs", "ls", "--store", "store.db"]);
    let refused = model.env.run(["run", "-p", "x", "--store", "store.db"]);
    assert_eq!(refused.status.code(), listed.status.code(), "{refused}{listed}");
    assert!(!refused.status.success() && model.bodies().is_empty(), "{refused}");
    model.env.run(["run", "-p", "x", "--store", "store.db", "--no-save"]).ok();
}
