//! Settings: effects, origins, order, and untrusted files.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support::{Anthropic, Finished, TestEnv, ask, says};

const SUM: [&str; 3] = ["call", "calculate", "expression=6*7"];

fn sum(words: &[&'static str]) -> Vec<&'static str> {
    SUM.iter().chain(words).copied().collect()
}

/// Each setting with the test that fails when it is ignored.
fn tests() -> BTreeMap<&'static str, fn()> {
    BTreeMap::from([
        ("model", model as fn()),
        ("system_prompt", settings_of_the_request),
        ("temperature", settings_of_the_request),
        ("effort", settings_of_the_request),
        ("max_output_tokens", settings_of_the_request),
        ("top_p", crate::tuning::sampling),
        ("top_k", crate::tuning::sampling),
        ("seed", crate::tuning::seed),
        ("stop", crate::tuning::stop),
        ("thinking", crate::tuning::thinking),
        ("parallel_tool_calls", crate::tuning::parallel_tool_calls),
        ("prompt_caching", crate::tuning::prompt_caching),
        ("provider_options", crate::tuning::provider_options),
        ("models.file", crate::models::file),
        ("models.fallback", crate::tuning::fallback),
        ("models.retries", crate::tuning::retries),
        ("models.retry_wait", crate::tuning::retries),
        ("models.connect_timeout", crate::tuning::connect_timeout),
        ("models.first_byte_timeout", crate::tuning::timeouts),
        ("models.event_timeout", crate::tuning::timeouts),
        ("models.total_timeout", crate::tuning::timeouts),
        ("models.ca_file", crate::tuning::ca_file),
        ("models.requests_per_minute", crate::tuning::limits),
        ("models.tokens_per_minute", crate::tuning::limits),
        ("models.concurrency", crate::tuning::concurrency),
        ("metadata", crate::tuning::metadata),
        ("betas", crate::tuning::betas),
        ("tags", crate::tuning::tags),
        ("strict_tools", crate::tuning::strict_tools),
        ("tools", tools),
        ("approve", approve),
        ("ask", approve),
        ("level", level),
        ("artifacts", artifacts),
        ("store", store),
        ("max_iterations", limits),
        ("max_tool_calls", limits),
        ("max_tokens", limits),
        ("max_time", limits),
        ("max_cost", crate::run::max_cost),
        ("parallel_tools", crate::loop_limits::parallel_tools),
        ("tool_timeout", crate::loop_limits::tool_timeout),
        ("tool_output_chars", crate::loop_limits::tool_output_chars),
        ("repetition", crate::loop_limits::repetition),
        ("repairs", crate::loop_limits::repairs),
        ("no_wrap_up", crate::run::no_wrap_up),
        ("compaction", crate::loop_limits::compaction),
        ("tool_choice", crate::tuning::tool_choice),
        ("no_network", no_network),
        ("no_save", crate::memory::no_save),
        ("code.place", crate::hosted::code),
        ("code.pool", pool),
        ("code.preload", preload),
        ("code.profile", profile),
        ("http.allow_hosts", allowed_hosts),
        ("egress_policy", egress_policy),
        ("packages.index", crate::packages::index),
        ("packages.registry", crate::packages::registry),
        ("packages.certificate", crate::packages::certificate),
        ("packages.find_links", crate::packages::find_links),
        ("search.searxng", engines),
        ("search.brave", engines),
        ("search.engine", engines),
        ("format", format),
        ("color", color),
        ("log", logs),
        ("log_format", logs),
        ("log_file", logs),
        ("targets.NAME", named_targets),
    ])
}

#[test]
fn every_setting_has_a_test_and_is_set_by_its_variable() {
    let env = TestEnv::new();
    let page = env.run(["help", "settings"]).ok();
    let (rows, _) = page.out.split_once("\nEach source overrides").unwrap();
    let told = rows.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let mut told: Vec<&str> = told.collect();
    told.sort_unstable();
    assert_eq!(told, tests().into_keys().collect::<Vec<_>>());
    for name in told.into_iter().filter(|name| *name != "targets.NAME") {
        let value = sample(name);
        let variable = format!("TOOLPOST_{}", name.replace('.', "_").to_uppercase());
        let shown =
            TestEnv::new().with(&variable, value).run(["config", "get", name, "--format", "text"]).ok();
        assert_eq!(shown.out.trim_end(), value, "{variable}");
    }
}

fn sample(name: &str) -> &'static str {
    match name {
        "ask" | "no_network" | "no_save" | "no_wrap_up" | "parallel_tool_calls" | "strict_tools" => "true",
        "temperature" | "top_p" => "0.5",
        "prompt_caching" => "1h",
        "provider_options" | "metadata" | "tags" => "{\"a\":1}",
        "stop" | "models.fallback" | "betas" => "a,b",
        "models.retry_wait" => "2s",
        name if name.ends_with("_timeout") => "9s",
        name if name.starts_with("models.") && !name.ends_with("file") => "7",
        "top_k" | "seed" | "parallel_tools" | "tool_output_chars" | "repetition" | "repairs" => "7",
        "effort" => "high",
        "tools" | "approve" | "http.allow_hosts" | "code.preload" => "a,b",
        "search.engine" => "brave",
        "level" => "standard",
        "code.place" => "local",
        "compaction" => "auto",
        "code.pool" => "3",
        "max_time" => "90s",
        "format" => "jsonl",
        "color" => "never",
        "log" => "off",
        "log_format" => "json",
        name if name.starts_with("max_") => "7",
        _ => "something",
    }
}

#[test]
pub(crate) fn config_option() {
    let env = TestEnv::new();
    env.write("toolpost.toml", "format = \"jsonl\"\n");
    assert_eq!(env.run(SUM).ok().lines().len(), 2);
    assert_eq!(env.run(sum(&["--config", "format=json"])).ok().json()["status"], "success");
    // An option overrides the setting.
    assert_eq!(env.run(sum(&["--config", "format=json", "--format", "text"])).ok().out, "42\n");
    for (pair, said) in
        [("formt=json", "`format`"), ("format=xml", "one of text, json, jsonl"), ("format", "KEY=VALUE")]
    {
        let wrong = env.run(SUM.iter().chain(&["--config", pair])).exit(2);
        assert!(wrong.err.contains(said), "{wrong}");
    }
}

#[test]
fn egress_policy() {
    let server = LoopbackProvider::start(vec![Reply::never()]).unwrap();
    let address = server.base_url().trim_start_matches("http://").to_owned();
    let env = TestEnv::new();
    env.write("way.toml", format!("addresses = [\"{address}\"]\n"));
    let code = format!(
        "code=import socket, urllib.request as r\nsocket.setdefaulttimeout(1)\ntry: r.urlopen('http://{address}/')\nexcept Exception: pass"
    );
    let words = ["call", "run_code", "language=python", &code];
    env.run(words);
    assert_eq!(server.connections(), 0);
    let finished = env.run(words.iter().chain(&["--config", "egress_policy=way.toml"]));
    if finished.status.code() == Some(5) {
        println!("SKIP egress_policy: {}", finished.err);
        return;
    }
    let before = server.connections();
    assert!(before > 0, "{finished}");
    env.write("ask.py", code.trim_start_matches("code="));
    env.run(["exec", "ask.py"]);
    assert_eq!(server.connections(), before);
    let executed = env.run(["exec", "ask.py", "--config", "egress_policy=way.toml"]);
    assert!(server.connections() > before, "{executed}");
    let wrong = env.run(words.iter().chain(&["--config", "egress_policy=other.toml"])).exit(2);
    assert!(wrong.err.contains("`other.toml`"), "{wrong}");
}

#[test]
fn model() {
    let env = TestEnv::new();
    env.write("hello.yaml", "turns:\n  - text: hello\n");
    let words = ["run", "-p", "hi", "--config", "model=script:hello.yaml"];
    assert_eq!(env.run(words).ok().out, "hello\n");
}

#[test]
fn settings_of_the_request() {
    let body = ask(&[
        "--config",
        "system_prompt=Be brief.",
        "--config",
        "max_output_tokens=77",
        "--config",
        "temperature=0.5",
        "--config",
        "model=anthropic/claude-sonnet-4-20250514",
    ]);
    assert!(body["system"].to_string().contains("Be brief."), "{body}");
    assert_eq!((&body["max_tokens"], &body["temperature"]), (&json!(77), &json!(0.5)));
    let (low, high) = (ask(&["--config", "effort=low"]), ask(&["--config", "effort=high"]));
    assert_ne!(low, high);
    assert_eq!(high, ask(&["--effort", "high"]));
}

#[test]
fn tools() {
    let body = ask(&["--config", "tools=calculate,read_file"]);
    let names: Vec<&str> =
        body["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["calculate", "read_file"]);
}

#[test]
fn approve() {
    let env = TestEnv::new();
    env.run(sum(&["--no-input", "--config", "ask=true"])).exit(5);
    env.run(sum(&["--no-input", "--config", "ask=true", "--config", "approve=calculate,other"])).ok();
}

#[test]
fn former_names_of_settings_are_read_with_a_warning() {
    let env = TestEnv::new();
    let warning = |finished: &Finished, text: &str| assert!(finished.err.contains(text), "{finished}");
    env.write("../home/.config/toolpost/config.toml", "ask = true\nallow = [\"calculate\"]\n");
    warning(&env.run(sum(&["--no-input"])).ok(), "config.toml:2: the setting `allow` is now `approve`");
    env.write("../home/.config/toolpost/config.toml", "ask = true\n");
    env.run(sum(&["--no-input"])).exit(5);
    let env = env.with("TOOLPOST_ALLOW", "calculate");
    warning(&env.run(sum(&["--no-input"])).ok(), "the variable TOOLPOST_ALLOW is now TOOLPOST_APPROVE");
    let wrong = env.run(sum(&["--config", "allow=calculate", "--json"])).exit(2).error();
    assert_eq!(wrong["message"], "the setting `allow` is now `approve`");
}

#[test]
fn level() {
    let env = TestEnv::new();
    let level = |level: &str| {
        let finished = env.run(["exec", "--json", "--config", &format!("level={level}"), "--", "true"]);
        (finished.status.code() == Some(0)).then(|| finished.json()["report"]["requested"].clone())
    };
    for name in ["minimal", "standard", "strict", "maximum"] {
        if let Some(given) = level(name) {
            assert_eq!(given, name);
        }
    }
    assert!(level("standard").is_some() || level("strict").is_some());
}

const WRITES: &str =
    "turns:\n  - calls: [{ tool: write_file, args: { path: made.txt, content: x } }]\n  - text: done\n";

#[test]
fn artifacts() {
    let env = TestEnv::new();
    env.write("writes.yaml", WRITES);
    let words = ["run", "-p", "x", "--model", "script:writes.yaml", "--config", "artifacts=kept"];
    let finished = env.run(words).ok();
    let runs: Vec<_> = std::fs::read_dir(env.path("kept")).unwrap().collect();
    assert_eq!(runs.len(), 1, "{finished}");
    assert!(runs.into_iter().next().unwrap().unwrap().path().join("made.txt").is_file());
}

#[test]
fn limits() {
    let env = TestEnv::new();
    env.write("writes.yaml", WRITES);
    let run = |setting: &str| {
        env.run(["run", "-p", "x", "--model", "script:writes.yaml", "--json", "--config", setting])
            .exit(6)
            .error()
    };
    assert_eq!(run("max_iterations=1")["code"], "MAX_ITERATIONS");
    let two = WRITES.replace(
        "  - text: done",
        "  - calls: [{ tool: calculate, args: { expression: '1' } }]\n  - text: done",
    );
    env.write("writes.yaml", two);
    assert_eq!(run("max_tool_calls=1")["code"], "MAX_TOOL_CALLS");
    let sleeps = "turns:\n".to_owned()
        + &"  - calls: [{ tool: run_command, args: { argv: [sleep, '4'] } }]\n".repeat(8);
    env.write("writes.yaml", sleeps);
    let words = ["run", "-p", "x", "--model", "script:writes.yaml", "--tools", "run_command", "--json"];
    let ended = env.run(words.iter().chain(&["--config", "max_time=700ms"])).exit(6);
    assert_eq!(ended.error()["code"], "MAX_TIME");
    let model =
        Anthropic::start(vec![crate::support::calls("calculate", &json!({"expression": "1"})), says("x")]);
    let words = ["run", "-p", "x", "--json", "--config", "max_tokens=1"];
    assert_eq!(model.env.run(words).exit(6).error()["code"], "MAX_TOKENS");
}

#[test]
fn no_network() {
    let env = TestEnv::new()
        .with("ANTHROPIC_API_KEY", "key")
        .with("ANTHROPIC_BASE_URL", "http://192.0.2.1:9")
        .without("TOOLPOST_NO_NETWORK");
    let words = ["run", "-p", "hi", "--json", "--config", "no_network=true"];
    assert_eq!(env.run(words).exit(5).error()["code"], "NETWORK_FORBIDDEN");
}

/// The backend of each of several runs of the same Python code, and the value of an expression.
///
/// Without the preloaded module a run takes a second, in which a pool gets ready.
fn backends(
    env: &TestEnv,
    count: usize,
    module: &str,
    then: &str,
    settings: &[&str],
) -> Vec<(String, Value)> {
    let code = format!(
        "import json, sys, time\nahead = '{module}' in sys.modules\nif not ahead: time.sleep(1)\n\
         open('log.txt', 'a').write(json.dumps({then}) + '\\n')"
    );
    // All calls differ, because repeated calls end a run.
    let call = |number: usize| {
        let code = format!("{code}\n# {number}");
        json!({ "calls": [{ "tool": "run_code", "args": { "language": "python", "code": code } }] })
    };
    let turns: Vec<Value> = (0..count).map(call).chain([json!({ "text": "done" })]).collect();
    env.write("script.yaml", json!({ "turns": turns }).to_string());
    env.write("mine/log.txt", "");
    let mut words = vec!["run", "-p", "go", "--model", "script:script.yaml", "--level", "strict", "--json"];
    words.extend(["--workdir", "mine"]);
    for setting in settings {
        words.extend(["--config", setting]);
    }
    let record = env.run(words).ok().json();
    let backend = |call: &Value| call["sandbox"]["report"]["backend"].as_str().unwrap().to_owned();
    let backends: Vec<String> = record["tool_calls"].as_array().unwrap().iter().map(backend).collect();
    let log = env.read("mine/log.txt");
    let values: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((backends.len(), values.len()), (count, count), "{record}");
    backends.into_iter().zip(values).collect()
}

/// Whether Python forks on this host at level strict.
#[expect(clippy::print_stdout, reason = "a skipped test prints its reason")]
fn has_pool(test: &str) -> bool {
    let features = TestEnv::new().run(["doctor", "--json"]).json()["features"].clone();
    let pool = features.as_array().unwrap().iter().find(|feature| feature["name"] == "pool").unwrap().clone();
    if pool["available"] != true {
        println!("SKIP {test}: {}", pool["reason"]);
    }
    pool["available"] == true
}

#[test]
fn pool() {
    let env = TestEnv::new();
    let feature = |words: &[&str]| {
        let told = env.run(["doctor", "--json"].iter().chain(words)).json();
        told["features"].as_array().unwrap().iter().find(|row| row["name"] == "pool").unwrap().clone()
    };
    for words in ["code.pool=0", "code.pool=257", "code.pool=many"] {
        let wrong = env.run(SUM.iter().chain(&["--config", words])).exit(2);
        assert!(wrong.err.contains("from 1 to 256"), "{wrong}");
    }
    if !has_pool("pool") {
        return;
    }
    for (words, said) in [
        (&[][..], "keeps 2 prewarmed"),
        (&["--config", "code.pool=5"][..], "keeps 5 prewarmed"),
        (&["--config", "code.pool=false"][..], "`code.pool` is false"),
    ] {
        let feature = feature(words);
        assert!(feature["reason"].as_str().unwrap().contains(said), "{feature}");
    }
    let kept = backends(&env, 20, "colorsys", "1", &["code.preload=colorsys"]);
    assert_eq!(kept[0].0, "process", "the first one does not wait for a pool");
    assert!(kept.iter().any(|(backend, _)| backend == "pool"), "{kept:?}");
    let none = backends(&env, 3, "colorsys", "1", &["code.preload=colorsys", "code.pool=false"]);
    assert!(none.iter().all(|(backend, _)| backend == "process"), "{none:?}");
}

#[test]
fn preload() {
    let env = TestEnv::new();
    env.write("hello.yaml", "turns:\n  - text: hello\n");
    let words = ["run", "-p", "hi", "--model", "script:hello.yaml", "--config", "code.preload=a b"];
    let wrong = env.run(words).exit(2);
    assert!(wrong.err.contains("`a b`"), "{wrong}");
    if !has_pool("preload") {
        return;
    }
    let settings = ["code.preload=colorsys,no_such_module"];
    let kept = backends(&env, 20, "colorsys", "ahead", &settings);
    assert!(kept.iter().any(|(backend, _)| backend == "pool"), "{kept:?}");
    for (backend, value) in kept {
        assert_eq!(value, json!(backend == "pool"));
    }
    let page = env.run(["doctor", "--config", "code.preload=colorsys,no_such_module"]).out;
    assert!(page.contains("not preloaded: `no_such_module`"), "{page}");
}

#[test]
fn profile() {
    let wrong =
        TestEnv::new().run(["call", "run_code", "language=python", "code=1", "--config", "code.profile=dat"]);
    assert!(wrong.exit(1).err.contains("`dat`"));
    let Some(env) = crate::packages::with_wheels("profile") else { return };
    env.write("own.txt", "hello-toolpost hello_toolpost\n");
    env.run(["image", "build", "--profile-file", "own.txt"]).ok();
    let code = "code=import hello_toolpost\nprint(hello_toolpost.VALUE)";
    let words = ["call", "run_code", "language=python", code];
    env.run(words).exit(1);
    assert_eq!(env.run(words.iter().chain(&["--config", "code.profile=own"])).ok().out, "stdout:\n2.0\n");
    if !has_pool("profile") {
        return;
    }
    let settings = ["code.profile=own", "code.preload=hello_toolpost"];
    let then = "[ahead, __import__('hello_toolpost').VALUE]";
    let kept = backends(&env, 20, "hello_toolpost", then, &settings);
    assert!(kept.iter().any(|(backend, _)| backend == "pool"), "{kept:?}");
    for (backend, value) in kept {
        assert_eq!(value, json!([backend == "pool", 2.0]));
    }
}

#[test]
fn allowed_hosts() {
    let server = LoopbackProvider::start(vec![Reply::json(200, "{\"here\":true}")]).unwrap();
    let env = TestEnv::new().without("TOOLPOST_NO_NETWORK");
    let url = format!("url={}/x", server.base_url());
    let refused = env.run(["call", "http_request", &url, "--json"]).exit(5).error();
    assert_eq!(refused["code"], "PERMISSION");
    let allowed =
        env.run(["call", "http_request", &url, "--json", "--config", "http.allow_hosts=127.0.0.1"]).ok();
    assert!(allowed.out.contains("here"), "{allowed}");
}

#[test]
pub(crate) fn engines() {
    let start = |body: Value| LoopbackProvider::start(vec![Reply::json(200, body.to_string()); 2]).unwrap();
    let page = |url: &str| json!({ "title": url, "url": url, "content": "c", "description": "c" });
    let searxng = start(json!({ "results": [page("https://searxng.example/")] }));
    let brave = start(json!({ "web": { "results": [page("https://brave.example/")] } }));
    let env = TestEnv::new().without("TOOLPOST_NO_NETWORK");
    let none = env.run(["call", "web_search", "query=x", "--json"]).exit(1).error();
    assert_eq!(none["code"], "PRECONDITION");
    assert!(none["hints"].to_string().contains("search.searxng"), "{none}");
    let env = env.with("BRAVE_API_KEY", "k");
    let settings = [
        format!("search.searxng={}", searxng.base_url()),
        format!("search.brave={}/res/v1/web/search", brave.base_url()),
    ];
    let found = |further: &[&str]| {
        let words = [
            "call",
            "web_search",
            "query=x",
            "num_results=1",
            "--json",
            "--config",
            &settings[0],
            "--config",
            &settings[1],
        ];
        env.run(words.iter().chain(further)).ok().out
    };
    assert!(found(&[]).contains("searxng.example"));
    assert!(found(&["--config", "search.engine=brave"]).contains("brave.example"));
    assert_eq!(brave.requests()[0].header("x-subscription-token"), Some("k"));
}

#[test]
fn format() {
    let env = TestEnv::new();
    env.write("toolpost.toml", "format = \"json\"\n");
    assert_eq!(env.run(SUM).ok().json()["status"], "success");
}

#[test]
fn color() {
    let env = TestEnv::new();
    assert!(env.run(sum(&["--config", "color=always"])).ok().err.contains('\u{1b}'));
}

#[test]
fn logs() {
    let env = TestEnv::new();
    let words =
        sum(&["-q", "--config", "log=info", "--config", "log_format=json", "--config", "log_file=log.txt"]);
    assert_eq!(env.run(words).ok().err, "");
    let line: Value = serde_json::from_str(env.read("log.txt").lines().next().unwrap()).unwrap();
    assert_eq!(line["target"], "toolpost::call");
}

#[test]
fn named_targets() {
    let env = TestEnv::new();
    let words = ["call", "sums", "expression=6*7", "--config", "targets.sums=builtin:calculate"];
    assert_eq!(env.run(words).ok().out, "42\n");
    let wrong = env.run(["call", "sumss", "x=1", "--config", "targets.sums=builtin:calculate"]).exit(2);
    assert!(wrong.err.contains("`sums`"), "{wrong}");
}

#[test]
fn later_sources_override_and_each_value_has_an_origin() {
    let env = TestEnv::new();
    env.write(
        "../home/.config/toolpost/config.toml",
        "# mine\nmodel = \"user\"\nmax_tokens = 5\nlog = \"off\"\n",
    );
    env.write("toolpost.toml", "model = \"project\"\nmodle = 1\n");
    let origin = |env: &TestEnv, key: &str| {
        let listed = env.run(["config", "list", "--show-origin", "--json"]).ok().json();
        let settings = listed["settings"].as_array().unwrap();
        let entry = settings.iter().find(|entry| entry["key"] == key).unwrap();
        (entry["value"].clone(), entry["origin"].as_str().unwrap().to_owned())
    };
    // An untrusted file does not choose the model.
    assert_eq!(origin(&env, "model").0, "user");
    assert!(origin(&env, "model").1.ends_with("config.toml:2"));
    let warned = env.run(SUM).ok().err;
    assert!(
        warned.contains("is not trusted") && warned.contains("model") && warned.contains("toolpost trust"),
        "{warned}"
    );
    assert!(warned.contains("; ignored: `model`. Read the file"), "{warned}");
    assert!(warned.contains("unknown setting `modle`") && warned.contains("`model`"), "{warned}");
    let trusted = env.run(["trust", "."]).ok().err;
    assert!(!trusted.contains("ignored:"), "{trusted}");
    assert_eq!(origin(&env, "model").0, "project");
    assert!(!env.run(SUM).ok().err.contains("is not trusted"));
    // Changed content is untrusted.
    env.write("toolpost.toml", "model = \"another\"\n");
    assert_eq!(origin(&env, "model").0, "user");
    assert!(env.run(SUM).ok().err.contains("has changed since"));
    env.run(["trust", "toolpost.toml"]).ok();
    let env = env.with("TOOLPOST_MODEL", "environment");
    assert_eq!(origin(&env, "model"), (json!("environment"), "environment: TOOLPOST_MODEL".into()));
    assert_eq!(origin(&env, "max_iterations"), (json!(25), "built in".into()));
    env.run(["trust", "--remove", "toolpost.toml"]).ok();
    assert!(env.run(SUM).ok().err.contains("is not trusted"));
    // Without warnings, the error has the reason.
    env.write("toolpost.toml", "[targets.shop]\ntarget = \"./shop\"\n");
    let unknown = env.run(["call", "shop", "look", "--quiet"]).exit(2).err;
    assert!(unknown.contains("has it but is not trusted") && unknown.contains("toolpost trust"), "{unknown}");
}

#[test]
fn a_parents_file_applies_and_an_invalid_one_names_its_line() {
    let env = TestEnv::new();
    env.write("../toolpost.toml", "format = \"json\"\n");
    assert_eq!(env.run(SUM).ok().json()["status"], "success");
    // An untrusted invalid file stops no command.
    env.write("toolpost.toml", "\nformat = 7\n");
    let ignored = env.run(SUM).ok();
    assert!(ignored.err.contains("toolpost.toml:2") && ignored.err.contains("one of text"), "{ignored}");
    let wrong = env.run(["trust", "toolpost.toml"]).exit(2);
    assert!(wrong.err.contains("toolpost.toml:2"), "{wrong}");
    env.write("toolpost.toml", "x = = 1");
    assert!(env.run(SUM).ok().err.contains("invalid TOML"));
}

#[test]
pub(crate) fn set() {
    let env = TestEnv::new();
    env.write("../home/.config/toolpost/config.toml", "# keep me\nask = true # and me\n");
    env.run(["config", "set", "max_tokens", "9"]).ok();
    env.run(["config", "set", "targets.sums", "builtin:calculate"]).ok();
    env.run(["config", "set", "ask", "false"]).ok();
    let text = env.read("../home/.config/toolpost/config.toml");
    assert!(
        text.contains("# keep me") && text.contains("max_tokens = 9") && text.contains("ask = false"),
        "{text}"
    );
    assert_eq!(env.run(["config", "get", "targets.sums"]).ok().out, "builtin:calculate\n");
    assert!(env.run(["config", "set", "max_tokens", "0"]).exit(2).err.contains("an integer ≥ 1"));
    env.run(["config", "get", "model"]).exit(1);
}

#[test]
pub(crate) fn set_project() {
    let env = TestEnv::new();
    env.run(["config", "set", "--project", "tools", "calculate,read_file"]).ok();
    assert_eq!(env.read("toolpost.toml"), "tools = [\"calculate\", \"read_file\"]\n");
    // `config set` on a trusted file keeps the trust.
    env.run(["trust", "."]).ok();
    env.run(["config", "set", "--project", "max_tokens", "7"]).ok();
    assert_eq!(env.run(["config", "get", "max_tokens"]).ok().out, "7\n");
}

#[test]
pub(crate) fn show_origin() {
    let env = TestEnv::new();
    assert!(
        env.run(["config", "list", "--show-origin"]).ok().out.contains("max_iterations = 25  (built in)")
    );
    assert!(!env.run(["config", "list"]).ok().out.contains("built in"));
    let paths = env.run(["config", "path"]).ok().out;
    assert!(paths.contains("system") && paths.contains("no toolpost.toml"), "{paths}");
}

#[test]
pub(crate) fn trust() {
    let env = TestEnv::new();
    assert!(env.run(["trust"]).ok().err.contains("no trusted files"));
    assert!(env.run(["trust", "."]).exit(2).err.contains("no file to trust"));
    env.run(["trust", "missing.toml"]).exit(2);
    env.write("a.txt", "x");
    let trusted = env.run(["trust", "a.txt", "--json"]).ok().json();
    assert_eq!(
        trusted["files"][0]["sha256"],
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    );
    assert!(env.run(["trust"]).ok().out.contains("a.txt (trusted)"));
    env.write("a.txt", "y");
    assert!(env.run(["trust"]).ok().out.contains("a.txt (changed since)"));
}

#[test]
fn a_file_name_that_is_not_utf_8_cannot_be_trusted() {
    use std::os::unix::ffi::OsStringExt as _;
    let env = TestEnv::new();
    env.write("a.txt", "x");
    env.run(["trust", "a.txt"]).ok();
    let name = std::ffi::OsString::from_vec(b"d\xff".to_vec());
    std::fs::write(env.path("").join(&name), "x").unwrap();
    env.run([std::ffi::OsString::from("trust"), name]).exit(2);
    assert!(env.run(["trust"]).ok().out.contains("a.txt (trusted)"));
}

#[test]
pub(crate) fn remove() {
    let env = TestEnv::new();
    env.write("a.txt", "x");
    env.run(["trust", "a.txt"]).ok();
    env.run(["trust", "--remove", "a.txt"]).ok();
    env.run(["trust", "--remove", "a.txt"]).exit(2);
}

#[test]
pub(crate) fn store() {
    let env = TestEnv::new();
    let shown = env.run(["config", "get", "store", "--store", "mine.db"]).ok();
    assert_eq!(shown.out, "mine.db\n");
}

#[test]
pub(crate) fn env_file() {
    let model = Anthropic::start(vec![says("from the file"), says("again")]);
    let env = model.env.without("ANTHROPIC_API_KEY");
    env.write("keys.env", "# mine\nexport ANTHROPIC_API_KEY='sk-file'\nUSER=ada\n");
    env.run(["run", "-p", "hi"]).exit(3);
    assert_eq!(env.run(["run", "-p", "hi", "--env-file", "keys.env"]).ok().out, "from the file\n");
    assert_eq!(model.server.requests()[0].header("x-api-key"), Some("sk-file"));
    // The environment overrides files.
    let env = env.with("ANTHROPIC_API_KEY", "sk-own");
    env.run(["run", "-p", "hi", "--env-file", "keys.env"]).ok();
    assert_eq!(model.server.requests()[1].header("x-api-key"), Some("sk-own"));
    // No child process gets it.
    let inside = env.run(["exec", "--env-file", "keys.env", "--", "env"]).ok();
    assert!(!inside.out.contains("sk-") && !inside.out.contains("ada"), "{inside}");
    env.write("keys.env", "ANTHROPIC_API_KEY sk-file");
    let wrong = env.run(["run", "-p", "hi", "--env-file", "keys.env"]).exit(2);
    assert!(wrong.err.contains("line 1") && !wrong.err.contains("sk-file"), "{wrong}");
    env.run(["run", "-p", "hi", "--env-file", "missing.env"]).exit(2);
}

#[test]
fn variables_of_an_untrusted_file_are_ignored() {
    let model = Anthropic::start(vec![says("trusted")]);
    let env = model.env.without("ANTHROPIC_API_KEY");
    env.write(".env", "ANTHROPIC_API_KEY=sk-file\n");
    let refused = env.run(["run", "-p", "hi"]).exit(3);
    assert!(refused.err.contains("`.env` is not trusted"), "{refused}");
    env.run(["trust", "."]).ok();
    assert_eq!(env.run(["run", "-p", "hi"]).ok().out, "trusted\n");
}

#[test]
fn an_unreadable_file_of_variables_is_a_warning() {
    let env = TestEnv::new();
    for (content, told) in [
        (b"A=\xff".to_vec(), "valid UTF-8; the file is ignored"),
        (vec![b'#'; (1 << 20) + 1], "larger than 1 MiB"),
    ] {
        env.write(".env", content);
        let finished = env.run(["call", "calculate", "expression=1"]).ok();
        assert!(finished.err.contains("`.env`") && finished.err.contains(told), "{finished}");
    }
}
