//! Everyday jobs of a new user.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use toolpost_core::Schema;

use crate::gateway::{executable, program};
use crate::support::{TestEnv, eventually, fits};

const SCRIPT: &str = "turns:\n  - text: I calculate.\n    calls: [{ tool: calculate, args: { expression: \"6*7\" } }]\n  - text: It is 42.\n";

fn scripted() -> TestEnv {
    let env = TestEnv::new();
    env.write("s.yaml", SCRIPT);
    env
}

#[test]
fn a_typo_in_a_target_fails_at_once() {
    let env = TestEnv::new();
    program(&env, "weather", "Forecast.");
    program(&env, "calc", "Calculate.");
    for (words, hint) in [
        (&["tools", "./weathr"][..], "Did you mean `./weather`?"),
        (&["call", "./weathr", "forecast"], "Did you mean `./weather`?"),
        (&["tools", "builtin:raed_file"], "Did you mean `builtin:read_file`?"),
        (&["serve", "./weathr", "./calc"], "Did you mean `./weather`?"),
        (&["serve", "./weathr", "--lazy"], "Did you mean `./weather`?"),
        (&["serve", "./calc", "builtin:raed_file"], "Did you mean `builtin:read_file`?"),
        (&["serve", "./calc", "raed_file"], "Did you mean `read_file`?"),
        (&["serve", "a=./calc", "b=wether"], "toolpost help targets"),
        (&["tools", "gatway.toml"], "Check the name"),
    ] {
        let begun = Instant::now();
        let failed = env.run(words).exit(2);
        assert!(failed.err.contains(hint), "{failed}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{words:?}: {:?}", begun.elapsed());
    }
}

#[test]
fn the_value_of_search_follows_an_equals_sign() {
    let env = TestEnv::new();
    program(&env, "calc", "Calculate.");
    let failed = env.run(["serve", "./calc", "--search", "always"]).exit(2);
    assert!(failed.err.contains("`--search=always`"), "{failed}");
}

#[test]
fn the_fix_for_a_quarantined_tool_can_be_pasted() {
    let env = TestEnv::new();
    program(&env, "my tools/weather", "Forecast.");
    env.write(
        "my tools/gw.toml",
        "kind = \"gateway\"\n[[upstreams]]\nname = \"w\"\ntarget = \"./weather\"\npin = \"quarantine\"\n",
    );
    env.run(["trust", "my tools/gw.toml"]).ok();
    let words = ["call", "my tools/gw.toml", "w__forecast", "--json"];
    let error = env.run(words).exit(5).error();
    let hints = error["hints"].to_string();
    let advice = hints.split("toolpost trust ").nth(1).unwrap();
    let advice = advice.split(['"', '`']).next().unwrap();
    // As a shell parses it, in every directory.
    let (path, tool) = advice.strip_prefix('\'').unwrap().split_once("' --tool ").unwrap();
    assert!(path.starts_with('/'), "{advice}");
    env.run(["trust", path, "--tool", tool]).ok();
    env.run(words).ok();
}

#[test]
fn approval_has_one_name() {
    let env = TestEnv::new();
    let words = ["call", "calculate", "expression=1", "--ask", "--no-input"];
    let denied = env.run(words).exit(5);
    // The fix of the error works in every command.
    assert!(denied.err.contains("`--approve calculate`"), "{denied}");
    env.run(words.iter().chain(&["--approve", "calculate"])).ok();
    env.run(words.iter().chain(&["--approve", "calculate"])).ok();
    for command in ["run", "call", "chat", "serve"] {
        let page = env.run([command, "--help-all"]).ok().out;
        for option in ["--ask", "--approve", "--yes", "--no-input"] {
            let Some(at) = page.find(&format!("      {option}")).or_else(|| page.find(option)) else {
                continue;
            };
            let help = &page[at..page.len().min(at + 120)];
            assert!(help.to_lowercase().contains("appro"), "{command} {option}: {help}");
        }
    }
}

#[test]
fn call_prints_a_result_once() {
    let env = TestEnv::new();
    for (words, result) in [
        (&["call", "run_code", "language=python", "code=print(111*3)"][..], "333"),
        (&["call", "command:date", "date", "when=2026-01-31 + 10 days"], "2026-02-10"),
    ] {
        let finished = env.run(words).ok();
        assert_eq!((finished.out.clone() + &finished.err).matches(result).count(), 1, "{finished}");
        // Output during the run is available on request.
        let verbose = env.run(words.iter().chain(&["-v"])).ok();
        assert!(verbose.err.contains(result), "{verbose}");
    }
}

#[test]
fn an_error_has_one_code() {
    let env = TestEnv::new();
    let words = ["call", "run_code", "language=bash", "code=sleep 61.377", "--json"];
    let running = env.start(words);
    eventually("the code runs", || !crate::support::processes("61.377").is_empty());
    running.signal(Signal::INT);
    let finished = running.finish().exit(130);
    assert_eq!(finished.json()["error"]["code"], finished.error()["code"], "{finished}");
    assert_eq!(finished.error()["code"], "CANCELLED");
    fits("envelope", &finished.json());
}

/// Every key of a value, at any depth.
fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                found.push(key.clone());
                keys(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

#[test]
fn durations_are_milliseconds_and_events_have_a_time() {
    let env = scripted();
    let record = env.run(["run", "x", "-m", "script:s.yaml", "--json"]).ok().json();
    fits("run-record", &record);
    let seconds = record["execution_time"].as_f64().unwrap();
    assert!((record["duration_ms"].as_f64().unwrap() - seconds * 1000.0).abs() < 1.0, "{record}");
    let outcome = env.run(["exec", "--json", "--", "true"]).ok().json();
    fits("outcome", &outcome);
    assert!(outcome["usage"]["wall_ms"].as_f64().unwrap() > 0.0, "{outcome}");
    let code = env.run(["call", "run_code", "language=bash", "code=true", "--format", "jsonl"]).ok().record();
    for value in [&record, &outcome, &code] {
        let mut found = Vec::new();
        keys(value, &mut found);
        assert!(!found.iter().any(|key| ["secs", "nanos"].contains(&key.as_str())), "{value}");
    }
    let lines = env.run(["run", "x", "-m", "script:s.yaml", "--format", "jsonl"]).ok().lines();
    let call = env.run(["call", "calculate", "expression=1", "--format", "jsonl"]).ok().lines();
    let exec = env.run(["exec", "--format", "jsonl", "--", "echo", "x"]).ok().lines();
    for line in &exec {
        fits("exec-event", line);
    }
    for line in lines.iter().chain(&call).chain(&exec) {
        assert!(line["timestamp"].as_str().is_some_and(|time| time.starts_with("20")), "{line}");
    }
}

#[test]
pub(crate) fn runs_are_named_short_shown_whole_and_removed() {
    let env = scripted();
    let prompt = format!("What is 6 times 7? {}", "Think. ".repeat(30));
    for task in ["one", prompt.as_str()] {
        env.run(["run", task, "-m", "script:s.yaml"]).ok();
    }
    let listed = env.run(["runs", "ls"]).ok().out;
    let short: Vec<&str> = listed.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(short.len() == 2 && short.iter().all(|id| (8..26).contains(&id.len())), "{listed}");
    let all = env.run(["runs", "ls", "--json"]).ok().json();
    for (index, id) in short.iter().enumerate() {
        assert_eq!(all["runs"][index]["short_id"], *id);
        let shown = env.run(["runs", "show", id, "--json"]).ok().json();
        assert_eq!(shown["summary"]["id"], all["runs"][index]["id"]);
    }
    let last = env.run(["runs", "show", "last"]).ok().out;
    assert!(last.contains(prompt.trim_end()), "{last}");
    let call = last.lines().find(|line| line.contains("✓ calculate")).unwrap();
    assert!(call.contains(", after ") && (call.contains(" ms") || call.contains(" µs")), "{call}");
    assert_eq!(env.run(["runs", "show", "last", "--json"]).ok().json()["prompt"], prompt);
    env.run(["runs", "rm", "nothing"]).exit(1);
    let removed = env.run(["runs", "rm", "last", short[0], "--json"]).ok().json();
    assert_eq!(removed["removed"].as_array().unwrap().len(), 1, "one run by two names: {removed}");
    assert_eq!(env.run(["runs", "ls"]).ok().out.lines().count(), 1);
    env.run(["runs", "export", "last", "one.jsonl"]).ok();
    env.run(["runs", "rm", short[1]]).ok();
    assert_eq!(env.run(["runs", "ls"]).ok().out, "");
}

#[test]
pub(crate) fn config_unset() {
    let env = TestEnv::new();
    env.run(["config", "set", "model", "script:a.yaml"]).ok();
    env.run(["config", "set", "targets.w", "./w"]).ok();
    env.run(["config", "unset", "model"]).ok();
    env.run(["config", "get", "model"]).exit(1);
    env.run(["config", "get", "targets.w"]).ok();
    env.run(["config", "unset", "targets.w"]).ok();
    env.run(["config", "get", "targets.w"]).exit(1);
    let missing = env.run(["config", "unset", "model"]).exit(1);
    assert!(missing.err.contains("has no setting `model`"), "{missing}");
    assert!(env.run(["config", "unset", "modle"]).exit(2).err.contains("`model`"));
    // The project's file keeps its comments.
    env.write("toolpost.toml", "# mine\nmax_iterations = 3\nlevel = \"strict\"\n");
    env.run(["trust", "toolpost.toml"]).ok();
    env.run(["config", "unset", "max_iterations", "--project"]).ok();
    assert_eq!(env.read("toolpost.toml"), "# mine\nlevel = \"strict\"\n".replace("# mine\n", ""));
}

#[test]
pub(crate) fn trust_watch() {
    let env = TestEnv::new();
    let description = |program: &str| {
        format!(
            "kind = \"command\"\nv = 1\nprogram = \"{program}\"\n[[tool]]\nname = \"t\"\ndescription = \"T.\"\nargs = []\n"
        )
    };
    env.write("t.toml", description("true"));
    env.write("other.toml", description("true"));
    let watching = env.start_with_errors_in("watch.log", ["trust", "--watch", "other.toml", "t.toml"]);
    eventually("it is trusted", || env.run(["tools", "t.toml"]).status.success());
    env.write("t.toml", description("date"));
    eventually("the change is trusted", || env.run(["tools", "t.toml"]).status.success());
    // Revoked trust stays revoked.
    env.run(["trust", "--remove", "t.toml"]).ok();
    env.write("t.toml", description("ls"));
    // Each round checks the first file before the second.
    env.write("other.toml", description("date"));
    eventually("the other change is trusted", || env.run(["tools", "other.toml"]).status.success());
    env.run(["tools", "t.toml"]).exit(5);
    watching.signal(Signal::INT);
    watching.finish().ok();
}

#[test]
pub(crate) fn a_task_needs_no_option() {
    let env = scripted();
    assert_eq!(env.run(["run", "What is 6*7?", "-m", "script:s.yaml"]).ok().out, "It is 42.\n");
    let two = env.run(["run", "one", "-p", "two", "-m", "script:s.yaml"]).exit(2);
    assert!(two.err.contains("cannot be used with"), "{two}");
    let talked = env.run(["chat", "What is 6*7?", "-m", "script:s.yaml"]).ok();
    assert!(talked.out.contains("It is 42."), "{talked}");
    let shown = env.run(["runs", "show", "last", "--json"]).ok().json();
    assert_eq!(shown["prompt"], "What is 6*7?");
}

#[test]
fn bare_model_names_imply_their_provider() {
    let env = TestEnv::new();
    let google = env.run(["run", "x", "-m", "google/gemini-3.8-flash"]).exit(3);
    assert!(google.err.contains("GEMINI_API_KEY"), "{google}");
    let gemini = env.run(["models", "ls", "--provider", "google"]).ok();
    assert!(gemini.out.contains("gemini/"), "{gemini}");
    for alias in ["haiku", "sonnet", "opus"] {
        let failed = env.run(["run", "x", "-m", alias]).exit(2);
        let model = format!("`--model anthropic/claude-{alias}-");
        assert!(failed.err.contains("`--agent claude-code`") && failed.err.contains(&model), "{failed}");
    }
}

#[test]
fn a_refused_connection_is_reported_once_within_a_second() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let env = TestEnv::new().with("OLLAMA_BASE_URL", format!("http://{closed}"));
    let url = format!("http://{closed}/mcp");
    for words in [&["run", "x", "-m", "ollama/x"][..], &["tools", &url], &["call", &url, "x"]] {
        let begun = Instant::now();
        let failed = env.run(words).exit(4);
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}: {failed}", begun.elapsed());
        assert_eq!(failed.err.to_lowercase().matches("refused").count(), 1, "{failed}");
    }
}

#[test]
fn hosted_code_without_a_price_costs_nothing() {
    let env = scripted();
    let words = ["run", "x", "-m", "script:s.yaml", "--max-cost", "0.01", "--json"];
    let record = env.run(words).ok().json();
    assert_eq!(record["cost_usd"], 0.0);
    env.run(["run", "x", "-m", "schema:", "--tools", "calculate", "--max-cost", "0.01"]).ok();
    env.run(["run", "x", "-m", "script:s.yaml", "--record", "r.jsonl"]).ok();
    env.run(["run", "x", "-m", "replay:r.jsonl", "--max-cost", "0.01"]).ok();
}

#[test]
pub(crate) fn init_files() {
    let env = scripted();
    for (kind, name, tool) in [
        ("agent", "reviewer", "reviewer"),
        ("command", "clock", "clock"),
        ("gateway", "sums", "sums__calculate"),
    ] {
        let made = env.run(["init", kind, name]).ok();
        let file = format!("{name}.toml");
        assert!(made.out.contains(&format!("toolpost trust {file}")), "{made}");
        let value: toml_edit::DocumentMut = env.read(&file).parse().unwrap();
        let value = toml_json(value.as_item());
        let schema = Schema::new(env.run(["schema", kind]).ok().json());
        assert!(schema.problems(&value).unwrap().is_empty(), "{kind}: {value:#}");
        let mut typo = value.clone();
        typo["kindd"] = json!("x");
        assert!(!schema.is_valid(&typo).unwrap(), "{kind}");
        env.run(["trust", &file]).ok();
        let tools = env.run(["tools", &file]).ok();
        assert!(tools.out.starts_with(tool), "{tools}");
        // Nothing is overwritten.
        env.run(["init", kind, name]).exit(2);
        env.run(["init", kind, "other", &format!("dir-{name}.toml")]).ok();
        env.run(["init", kind, "not a name"]).exit(2);
    }
    let answer = env.run(["call", "reviewer.toml", "prompt=x", "--config", "model=script:s.yaml"]).ok();
    assert!(answer.out.contains("It is 42."), "{answer}");
    assert!(env.run(["call", "clock.toml", "format=%Y"]).ok().out.starts_with("20"));
    assert_eq!(env.run(["call", "sums.toml", "sums__calculate", "expression=6*7"]).ok().out, "42\n");
}

/// A TOML value as JSON.
fn toml_json(item: &toml_edit::Item) -> Value {
    if let Some(table) = item.as_table_like() {
        return table.iter().map(|(key, item)| (key.to_owned(), toml_json(item))).collect();
    }
    if let Some(tables) = item.as_array_of_tables() {
        return tables.iter().map(|table| toml_json(&toml_edit::Item::Table(table.clone()))).collect();
    }
    match item.as_value() {
        Some(toml_edit::Value::String(text)) => text.value().as_str().into(),
        Some(toml_edit::Value::Integer(number)) => (*number.value()).into(),
        Some(toml_edit::Value::Float(number)) => (*number.value()).into(),
        Some(toml_edit::Value::Boolean(flag)) => (*flag.value()).into(),
        Some(toml_edit::Value::Array(items)) => {
            items.iter().map(|item| toml_json(&toml_edit::Item::Value(item.clone()))).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_artifacts_of_a_stream_have_uris() {
    let env = TestEnv::new();
    executable(
        &env,
        "maker",
        "#!/bin/sh\nif [ \"$1\" = --discover ]; then\n  echo '{\"name\":\"m\",\"version\":\"1\",\"tools\":[{\"name\":\"make\",\"summary\":\"Make.\",\"streaming\":true,\"session_mode\":false,\"schema\":{\"type\":\"object\",\"properties\":{}}}],\"resources\":[],\"prompts\":[]}'\n  exit\nfi\necho '{\"type\":\"artifact\",\"name\":\"a.txt\",\"uri\":\"data:text/plain;base64,aGVsbG8=\"}'\necho '{\"type\":\"result\",\"status\":\"success\",\"result\":{}}'\n",
    );
    let lines = env.run(["call", "./maker", "make", "--stream"]).ok().lines();
    let artifact = lines.iter().find(|line| line["type"] == "artifact").unwrap();
    let path = artifact["uri"].as_str().unwrap().strip_prefix("file://").unwrap();
    assert_eq!(std::fs::read_to_string(path).unwrap(), "hello", "{artifact}");
}

#[test]
pub(crate) fn help_all() {
    let env = TestEnv::new();
    let root = env.run(["--help"]).ok().out;
    assert!(root.lines().count() <= 40, "{} lines", root.lines().count());
    let options = |page: &str| {
        page.lines().filter(|line| line.starts_with("      --") || line.starts_with("  -")).count()
    };
    for command in ["run", "chat"] {
        let short = env.run([command, "--help"]).ok().out;
        let whole = env.run([command, "--help-all"]).ok().out;
        assert!((25..=40).contains(&options(&short)), "{command}: {}", options(&short));
        assert!(options(&whole) > options(&short) + 20, "{command}: {}", options(&whole));
        assert!(!short.contains("--fallback") && whole.contains("--fallback"), "{whole}");
        assert!(!short.contains("--log-file") && whole.contains("--log-file"), "{whole}");
    }
    let of_all = env.run(["--help-all"]).ok().out;
    assert!(of_all.contains("--log-file") && !root.contains("--log-file"), "{of_all}");
}

#[test]
fn a_websocket_url_needs_no_path() {
    let env = TestEnv::new();
    let address = crate::serve::free();
    let running = env.start(["serve", "builtin:calculate", "--ws", &address.to_string(), "--no-token"]);
    eventually("it answers", || crate::serve::get(address, "/health", "").is_some());
    for path in ["", "/", "/ws"] {
        let target = format!("ws://{address}{path}");
        assert_eq!(env.run(["call", &target, "calculate", "expression=6*7"]).ok().out, "42\n", "{target}");
    }
    assert!(crate::serve::get(address, "/", "").unwrap().starts_with("HTTP/1.1 404"));
    running.signal(Signal::INT);
    running.finish().ok();
}

#[test]
fn hints_name_options() {
    let env = TestEnv::new();
    executable(
        &env,
        "asker",
        "#!/bin/sh\nif [ \"$1\" = --discover ]; then\n  echo '{\"name\":\"a\",\"version\":\"1\",\"tools\":[{\"name\":\"ask\",\"summary\":\"Ask.\",\"streaming\":false,\"session_mode\":false,\"schema\":{\"type\":\"object\",\"properties\":{}}}],\"resources\":[],\"prompts\":[]}'\n  exit\nfi\necho '{\"type\":\"sample_request\",\"id\":\"00000001\",\"prompt\":\"hi\",\"max_tokens\":1}'\nread -r answer\necho \"{\\\"status\\\":\\\"success\\\",\\\"result\\\":$answer}\"\n",
    );
    let failed = env.run(["call", "./asker", "ask"]).exit(1);
    assert!(!failed.err.contains("::") && failed.err.contains("`--model MODEL`"), "{failed}");
}
