//! Commands that display: tools, schema, completions, doctor.

use serde_json::Value;
use toolpost_core::Schema;

use toolpost_tools::BUILTIN_NAMES as TOOLS;

use crate::support::{TestEnv, fits, repository};

fn names(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[test]
pub(crate) fn targets() {
    let env = TestEnv::new();
    let all = env.run(["tools", "--json"]).ok();
    assert_eq!(names(&all.json()["tools"]), TOOLS);
    let some = env.run(["tools", "builtin:calculate", "read_file", "calculate", "--json"]).ok();
    assert_eq!(names(&some.json()["tools"]), ["calculate", "read_file"]);
    let lines = env.run(["tools", "builtin", "--format", "jsonl"]).ok().lines();
    assert_eq!(lines.len(), TOOLS.len());
    let text = env.run(["tools"]).ok();
    assert_eq!(text.out.lines().map(|line| line.split(' ').next().unwrap()).collect::<Vec<_>>(), TOOLS);
}

#[test]
pub(crate) fn manifest() {
    let env = TestEnv::new();
    for name in TOOLS {
        let page = env.run(["tools", "--manifest", name]).ok();
        assert!(page.out.starts_with(name) && page.out.contains("Parameters"), "{page}");
        let spec = env.run(["tools", "--manifest", name, "--json"]).ok().json();
        assert_eq!(spec["name"], name);
        assert!(page.out.contains(spec["digest"].as_str().unwrap()), "{page}");
        for parameter in spec["input_schema"]["properties"].as_object().unwrap().keys() {
            assert!(page.out.contains(&format!("\n  {parameter} (")), "{parameter}: {page}");
        }
    }
}

#[test]
pub(crate) fn schema() {
    let env = TestEnv::new();
    let list = env.run(["schema"]).ok();
    let names: Vec<_> = list.out.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(
        names,
        [
            "agent",
            "bench",
            "call-record",
            "command",
            "doctor",
            "egress",
            "envelope",
            "error",
            "event",
            "exec-event",
            "files",
            "flow",
            "gateway",
            "outcome",
            "run-record",
            "script",
            "version"
        ]
    );
    for name in names {
        let schema = Schema::new(env.run(["schema", name]).ok().json());
        // The schema compiles and rejects something.
        assert!(!schema.is_valid(&Value::Bool(true)).unwrap(), "{name}");
    }
}

#[test]
fn the_weather_script_fits_the_schema_of_scripts() {
    let env = TestEnv::new();
    let script = std::fs::read_to_string(repository("examples/weather/weather.yaml")).unwrap();
    // The sandbox's Python may lack YAML, so a JSON copy must run alike.
    let good = serde_json::json!({ "turns": [
        { "text": "a", "calls": [{ "tool": "calculate", "args": { "expression": "1" } }] },
        { "expect": { "result_contains": "1" }, "text": "{{ last.text }}" },
    ]});
    fits("script", &good);
    env.write("script.yaml", good.to_string());
    env.run(["run", "-p", "x", "--model", "script:script.yaml"]).ok();
    let schema = Schema::new(env.run(["schema", "script"]).ok().json());
    for bad in [r#"{"turns": [{"txt": "a"}]}"#, r#"{"turns": [{"calls": [{"args": {}}]}]}"#, r"{}"] {
        assert!(!schema.is_valid(&serde_json::from_str(bad).unwrap()).unwrap(), "{bad}");
        env.write("bad.yaml", bad);
        env.run(["run", "-p", "x", "--model", "script:bad.yaml"]).exit(2);
    }
    let keys = script.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").split_once(": "));
    let known = ["text", "calls", "expect", "tool", "args"];
    for (key, _) in keys.filter(|(key, _)| known.contains(key)) {
        assert!(schema.as_value().to_string().contains(key), "{key}");
    }
}

#[test]
pub(crate) fn shell() {
    let env = TestEnv::new();
    for (shell, sign) in [
        ("bash", "complete -F _toolpost"),
        ("zsh", "#compdef toolpost"),
        ("fish", "complete -c toolpost"),
        ("powershell", "Register-ArgumentCompleter"),
        ("elvish", "edit:completion:arg-completer[toolpost]"),
    ] {
        let script = env.run(["completions", shell]).ok().out;
        assert!(script.contains(sign), "{shell}");
        for word in ["run", "exec", "doctor", "max-iterations", "allow-degraded", "dry-run", "manifest"] {
            assert!(script.contains(word), "{word} in {shell}");
        }
    }
}

#[test]
fn the_completions_of_bash_complete() {
    let env = TestEnv::new();
    let script = env.run(["completions", "bash"]).ok().out;
    let ask = "\nCOMP_WORDS=(toolpost run --max-t); COMP_CWORD=2; _toolpost toolpost --max-t run; echo \"${COMPREPLY[*]}\"";
    env.write("complete.sh", script + ask);
    let offered = env.run(["exec", "complete.sh"]).ok();
    for option in ["--max-tool-calls", "--max-tokens", "--max-time"] {
        assert!(offered.out.contains(option), "{offered}");
    }
}

#[test]
fn doctor_reports_the_host() {
    let env = TestEnv::new();
    let told = env.run(["doctor", "--json"]).ok();
    fits("doctor", &told.json());
    assert_eq!(told.json()["keys"]["anthropic"], false);
    let with_key = TestEnv::new().with("ANTHROPIC_API_KEY", "sk-secret-value");
    let json = with_key.run(["doctor", "--json"]).ok();
    assert_eq!(json.json()["keys"]["anthropic"], true);
    let page = with_key.run(["doctor"]).ok();
    for part in ["Sandbox levels", "standard", "strict", "Languages", "python", "ANTHROPIC_API_KEY is set"] {
        assert!(page.out.contains(part), "{part}: {page}");
    }
    assert!(!page.out.contains("sk-secret") && !json.out.contains("sk-secret"));
}

#[test]
fn doctor_reports_each_thing_once() {
    let page = TestEnv::new().with("PATH", "/nonexistent").run(["doctor"]).ok().out;
    let lines: Vec<&str> = page.lines().collect();
    for pair in lines.windows(2) {
        if let Some(fix) = pair[1].trim_start().strip_prefix("fix: ") {
            assert!(!pair[0].contains(fix), "{pair:?}");
        }
    }
    for name in ["ANTHROPIC_API_KEY", "OLLAMA_BASE_URL", "start a daemon", "apt-get install ruby"] {
        assert_eq!(page.matches(name).count(), 1, "{name}: {page}");
    }
}

#[test]
fn doctor_reports_providers() {
    let answering = toolpost_testkit::provider::LoopbackProvider::start(vec![
        toolpost_testkit::provider::Reply::json(200, "{}".to_owned()),
        toolpost_testkit::provider::Reply::json(401, "{}".to_owned()),
    ])
    .unwrap();
    // A silent server, and a missing one.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let gone = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let env = TestEnv::new()
        .with("OPENAI_API_KEY", "sk-canary-41")
        .with("ANTHROPIC_BASE_URL", "https://me:canary-42@proxy.example/v1?key=canary-43")
        .with("OLLAMA_BASE_URL", answering.base_url())
        .with("LLAMACPP_BASE_URL", format!("http://{}", silent.local_addr().unwrap()))
        .with("VLLM_BASE_URL", format!("http://{gone}"));
    let begun = std::time::Instant::now();
    let told = env.run(["doctor", "--json"]).ok();
    let page = env.run(["doctor"]).ok();
    assert!(begun.elapsed() < std::time::Duration::from_mins(1), "{:?}", begun.elapsed());
    assert!(!told.out.contains("canary") && !page.out.contains("canary"), "{page}");
    let told = told.json();
    fits("doctor", &told);
    let of = |name: &str| {
        let all = told["providers"].as_array().unwrap();
        all.iter().find(|provider| provider["name"] == name).unwrap().clone()
    };
    assert_eq!((&of("openai")["has_key"], &of("xai")["has_key"]), (&Value::Bool(true), &Value::Bool(false)));
    assert_eq!(of("anthropic")["base_url"], "https://proxy.example/v1");
    assert_eq!(of("anthropic")["answers"], Value::Null, "nobody far away is asked");
    assert_eq!(of("ollama")["answers"]["reason"], "answers");
    assert_eq!(of("llamacpp")["answers"]["reason"], "no answer within a second");
    assert_eq!(of("vllm")["answers"]["available"], false);
    assert!(told["catalog"]["date"].as_str().unwrap().starts_with("20"), "{}", told["catalog"]);
    for part in [
        "https://proxy.example/v1 (ANTHROPIC_BASE_URL)",
        "answers with status 401",
        "! llamacpp: ",
        "start it, or set VLLM_BASE_URL",
        "as of 20",
    ] {
        assert!(page.out.contains(part), "{part}: {page}");
    }
}

#[test]
fn doctor_has_a_fix_for_each_feature() {
    let env = TestEnv::new().with("DOCKER_HOST", "unix:///no/daemon.sock").with("PATH", "/nonexistent");
    let told = env.run(["doctor", "--json"]).ok().json();
    let page = env.run(["doctor"]).ok().out;
    for (name, reason, fix) in [
        ("profile_data", "python", "`toolpost image build data`"),
        ("pool", "", "starts an interpreter"),
        ("docker", "/no/daemon.sock", "DOCKER_HOST"),
    ] {
        let features = told["features"].as_array().unwrap();
        let feature = features.iter().find(|feature| feature["name"] == name).unwrap();
        assert_eq!(feature["available"], false, "{feature}");
        assert!(feature["reason"].as_str().unwrap().contains(reason), "{feature}");
        assert!(feature["fix"].as_str().unwrap().contains(fix), "{feature}");
        assert!(page.contains(&format!("! {name}: ")) && page.contains(fix), "{page}");
    }
    // With interpreters there are the same rows, with findings.
    let told = TestEnv::new().run(["doctor", "--json"]).ok().json();
    let strict = toolpost_sandbox::Host::probe().best() == Some(toolpost_sandbox::Level::Strict);
    for name in ["pool", "egress"] {
        let features = told["features"].as_array().unwrap();
        let feature = features.iter().find(|feature| feature["name"] == name).unwrap();
        assert!(feature["available"] == true || !strict, "{feature}");
    }
}

#[test]
fn doctor_names_every_language_with_its_version_or_what_to_install() {
    let env = TestEnv::new();
    let told = env.run(["doctor", "--json"]).ok().json();
    let languages = told["languages"].as_array().unwrap();
    assert_eq!(languages.len(), toolpost_sandbox::Language::ALL.len());
    let page = env.run(["doctor"]).ok().out;
    for language in languages {
        let name = language["language"].as_str().unwrap();
        let expected = if language["available"] == true {
            format!("✓ {name}: {}", language["version"].as_str().unwrap())
        } else {
            format!("fix: {}", language["hint"].as_str().unwrap())
        };
        assert!(page.contains(&expected), "{expected}: {page}");
    }
    // A program outside of the search path is missing.
    let bare = TestEnv::new().with("PATH", "/nonexistent").run(["doctor", "--json"]).ok().json();
    assert!(bare["languages"].as_array().unwrap().iter().all(|language| language["available"] == false));
}
