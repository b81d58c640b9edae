//! `run --agent claude-code`: the installed program, and errors before its start.

use std::path::PathBuf;

use serde_json::{Value, json};
use toolpost_testkit::messages;
use toolpost_testkit::provider::LoopbackProvider;

use crate::support::{TestEnv, fits, repository};

const TOKEN: &str = "sk-ant-oat-canary-9f31";

struct World {
    env: TestEnv,
    model: LoopbackProvider,
    program: PathBuf,
}

/// A world with the installed program and a model that follows the prompt.
fn world(test: &str) -> Option<World> {
    let program = repository(".dev/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64/claude");
    if !program.exists() {
        println!("SKIP {test}: Claude Code is not installed; `cargo xtask test` installs it below .dev");
        return None;
    }
    let model = LoopbackProvider::start_with(messages::answer).unwrap();
    let env =
        TestEnv::new().with("CLAUDE_CODE_OAUTH_TOKEN", TOKEN).with("ANTHROPIC_BASE_URL", model.base_url());
    Some(World { env, model, program })
}

impl World {
    /// Runs a task with further options; returns the record, and the error of a failed command.
    fn run(&self, task: &str, words: &[&str], exit: i32) -> (Value, String) {
        let program = self.program.to_str().unwrap();
        let words = ["run", "-p", task, "--agent", "claude-code", "--claude", program, "--json"]
            .into_iter()
            .chain(words.iter().copied());
        let finished = self.env.run(words).exit(exit);
        assert!(!finished.out.contains("canary") && !finished.err.contains("canary"), "{finished}");
        let record = finished.json();
        fits("run-record", &record);
        (record, finished.err)
    }
}

#[test]
pub(crate) fn claude_code_uses_the_tools_in_the_sandbox_and_in_a_process() {
    let Some(world) = world("claude_code_uses_the_tools_in_the_sandbox_and_in_a_process") else { return };
    let task = "call mcp__toolpost__calculate {\"expression\": \"6*7\"}\n\
                call mcp__toolpost__write_file {\"path\": \"made.txt\", \"content\": \"x\"}";
    for words in [
        &["--model", "haiku"][..],
        &["--executor", "process", "--model", "anthropic/claude-opus-5-5", "--effort", "low"],
    ] {
        let (record, _) = world.run(task, words, 0);
        assert_eq!((&record["success"], &record["stop_reason"]), (&json!(true), &json!("end_turn")));
        assert!(record["response"].as_str().unwrap().contains("42"), "{record}");
        assert_eq!(record["tool_calls"][0]["caller"]["front"], "cli");
        let made = record["artifacts"][0]["name"].as_str().unwrap();
        assert!(made.ends_with("made.txt"), "{record}");
    }
    let requests = world.model.requests();
    assert!(
        requests.iter().all(|request| request.header("authorization") == Some(&format!("Bearer {TOKEN}")))
    );
    assert!(requests[0].json()["model"].to_string().contains("haiku"));
    assert!(requests.last().unwrap().json()["model"] == "claude-opus-5-5");
    assert_eq!(requests.last().unwrap().json()["output_config"]["effort"], "low");
}

#[test]
pub(crate) fn own_tools_enables_claude_codes_tools() {
    let Some(world) = world("own_tools_enables_claude_codes_tools") else { return };
    for (words, is_there) in
        [(&["--executor", "process"][..], false), (&["--executor", "process", "--own-tools", "Read"], true)]
    {
        let before = world.model.requests().len();
        world.run("say something", words, 0);
        let requests = world.model.requests();
        let told = requests[before..].iter().any(|request| {
            let tools = request.json()["tools"].as_array().cloned().unwrap_or_default();
            tools.iter().any(|tool| tool["name"] == "Read")
        });
        assert_eq!(told, is_there, "{words:?}");
    }
}

#[test]
pub(crate) fn a_permission_mode_skips_prompts() {
    let Some(world) = world("a_permission_mode_skips_prompts") else { return };
    let touch = "call Bash {\"command\": \"touch made\"}";
    let own = ["--own-tools", "Bash", "--no-input"];
    world.run(touch, &own, 5);
    for words in [["--permission-mode", "bypass"], ["--approve", "Bash"]] {
        let (record, _) = world.run(touch, &[&own[..], &words].concat(), 0);
        assert_eq!(record["tools_used"], json!(["Bash"]));
    }
    // Toolpost's tools have one name.
    let calculate = "call mcp__toolpost__calculate {\"expression\": \"6*7\"}";
    let (record, _) = world.run(calculate, &["--ask", "--no-input", "--approve", "calculate"], 0);
    assert_eq!(
        (&record["tools_used"], &record["tool_calls"][0]["tool"]),
        (&json!(["calculate"]), &json!("calculate"))
    );
    assert!(record["response"].as_str().unwrap().contains("42"), "{record}");
    let program = world.program.to_str().unwrap();
    let typo = ["run", "-p", "x", "--agent", "claude-code", "--claude", program, "--approve", "calculat"];
    world.env.run(typo).exit(2);
    // The run is stored like others.
    let id = record["id"].as_str().unwrap();
    let shown = world.env.run(["runs", "show", id, "--json"]).ok().json();
    assert_eq!((&shown["record"]["id"], &shown["summary"]["success"]), (&record["id"], &json!(true)));
}

#[test]
pub(crate) fn failures_have_exit_codes() {
    let Some(world) = world("failures_have_exit_codes") else { return };
    let calculate = "call mcp__toolpost__calculate {\"expression\": \"6*7\"}";
    let rows: [(&str, &[&str], i32, &str); 5] = [
        ("call Bash {\"command\": \"touch made\"}", &["--own-tools", "Bash", "--no-input"], 5, "DENIED"),
        (calculate, &["--max-iterations", "1"], 6, "LIMIT"),
        (calculate, &["--max-cost", "0.000001"], 6, "LIMIT"),
        ("wait 60000", &["--max-time", "1s"], 6, "LIMIT"),
        ("refuse 401", &[], 3, "CREDENTIAL_REFUSED"),
    ];
    for (task, words, exit, code) in rows {
        let (record, error) = world.run(task, &[words, &["--executor", "process"]].concat(), exit);
        assert_eq!(record["success"], false, "{record}");
        assert!(record["error"]["class"].is_string(), "{record}");
        assert!(error.contains(code), "{error}");
    }
}

/// Too little memory or CPU ends without an answer.
#[test]
pub(crate) fn memory_and_cpu_are_limited() {
    let Some(world) = world("memory_and_cpu_are_limited") else { return };
    for (words, exit) in [(["--memory", "24M"], 6), (["--cpu", "0"], 2)] {
        let program = world.program.to_str().unwrap();
        let words =
            [&["run", "-p", "say hi", "--agent", "claude-code", "--claude", program][..], &words].concat();
        let finished = world.env.run(words).exit(exit);
        assert!(!finished.err.contains("canary"), "{finished}");
    }
    world.run("say hi", &["--memory", "3G", "--cpu", "1.5"], 0);
}

/// Options of `run` for the loop alone, with a value each.
const OF_THE_LOOP: &[&[&str]] = &[
    &["--temperature", "1"],
    &["--fallback", "gpt-6.1-sol"],
    &["--record", "x"],
    &["--code", "auto"],
    &["--enable-file-support"],
    &["--dynamic"],
    &["--core-tool", "calculate"],
    &["--compact-tools"],
    &["--max-tool-calls", "2"],
    &["--max-tokens", "9"],
    &["--output", "x"],
    &["--output-schema", "x"],
    &["--continue"],
    &["--resume", "x"],
    &["--fork", "x"],
    &["--plain"],
    &["--review", "--workdir", "."],
    &["--discard", "--workdir", "."],
    &["--live"],
    &["--allow-protected", "x"],
];

/// Options of `run` for both agents, or with their own conflict.
const OF_BOTH: &str = "--prompt --file --interactive --attach --workdir --system-prompt --artifacts --model --effort \
    --tools --mcp-server --token-env --token-file --approve --ask --yes --no-input --level --max-iterations \
    --max-time --max-cost --agent --executor --image --pull --claude --own-tools --no-save --permission-mode \
    --memory --cpu --help --version --format --json --verbose --quiet --log --log-file --color \
    --config --store --env-file --help-all --secret --secret-raw --allow-host --allow-address --readable --writable \
    --target-level --target-workdir --install-scripts";

#[test]
fn no_option_is_ignored_silently() {
    let page = TestEnv::new().run(["run", "--help-all"]).ok().out;
    let lines = page.lines().map(str::trim_start);
    let options: Vec<&str> = lines
        .filter_map(|line| {
            line.find("--").filter(|at| *at == 0 || (*at == 4 && line.starts_with('-'))).map(|at| &line[at..])
        })
        .map(|line| line.split([' ', '=', '[', '<', '.']).next().unwrap())
        .collect();
    assert!(options.len() > 50, "{options:?}");
    for option in options {
        let is_known = OF_THE_LOOP.iter().any(|words| words[0] == option)
            || OF_BOTH.split_whitespace().any(|other| other == option);
        assert!(is_known, "what does `{option}` mean for Claude Code?");
    }
}

#[test]
fn a_missing_credential_or_an_option_of_the_loop_starts_nothing() {
    let env = TestEnv::new();
    let error = |words: &[&str], exit| {
        let words = ["run", "-p", "hi", "--json"].iter().chain(words);
        env.run(words).exit(exit).error()
    };
    let missing = error(&["--agent", "claude-code", "--claude", "/bin/sh"], 3);
    assert_eq!(missing["code"], "AUTH");
    assert!(missing["hints"].to_string().contains("CLAUDE_CODE_OAUTH_TOKEN"), "{missing}");
    for words in OF_THE_LOOP {
        let refused = error(&[&["--agent", "claude-code"], *words].concat(), 2);
        assert!(refused["message"].as_str().unwrap().contains(words[0]), "{refused}");
    }
    for words in [
        &["--executor", "process"][..],
        &["--claude", "x"],
        &["--own-tools", "Read"],
        &["--permission-mode", "plan"],
        &["--memory", "1G"],
        &["--cpu", "1"],
    ] {
        let refused = error(words, 2);
        assert!(refused["message"].as_str().unwrap().contains(words[0]), "{refused}");
    }
}

#[test]
fn errors_are_found_before_the_start() {
    let env = TestEnv::new().with("ANTHROPIC_API_KEY", "sk-ant-canary");
    let failed = |words: &[&str], exit| {
        let words = ["run", "-p", "hi", "--agent", "claude-code"].iter().chain(words);
        let finished = env.run(words).exit(exit);
        assert!(!finished.err.contains("canary"), "{finished}");
        finished.err
    };
    assert!(failed(&["--claude", "/nowhere/claude"], 2).contains("/nowhere/claude"));
    let program = ["--claude", "/bin/sh"];
    assert!(failed(&[&program[..], &["--model", "two words"]].concat(), 2).contains("model"));
    assert!(failed(&[&program[..], &["--max-cost", "0"]].concat(), 2).contains("cost"));
    assert!(failed(&[&program[..], &["--permission-mode", "anything"]].concat(), 2).contains("accept-edits"));
    let bypass = [&program[..], &["--executor", "process", "--permission-mode", "bypass"]].concat();
    assert!(failed(&bypass, 2).contains("a plain process cannot bypass permissions"));
    // The tests' ban on network access covers Claude Code.
    assert!(failed(&program, 5).contains("the network is blocked"));
}

#[test]
pub(crate) fn the_image_that_is_built_is_never_pulled() {
    let env = TestEnv::new().with("CLAUDE_CODE_OAUTH_TOKEN", TOKEN);
    let words = ["run", "-p", "hi", "--agent", "claude-code", "--executor", "docker", "--json", "--pull"];
    for policy in ["missing", "always"] {
        let rejected = env.run([&words[..], &[policy]].concat()).exit(2).error();
        assert_eq!(rejected["message"], "`--pull` needs `--image`", "{rejected}");
        assert!(rejected["hints"].to_string().contains("image build claude-code"), "{rejected}");
    }
}

/// The image and its pull policy; with the built image, also a run.
#[test]
pub(crate) fn a_container_has_the_image_that_is_built_for_it() {
    let name = "a_container_has_the_image_that_is_built_for_it";
    let Some(world) = world(name) else { return };
    let Some(daemon) = crate::daemon::Daemon::get(name) else { return };
    let env = world.env.with("DOCKER_HOST", daemon.host.to_string());
    let run = |words: &[&str]| {
        let fixed = ["run", "-p", "call mcp__toolpost__calculate {\"expression\": \"6*7\"}"];
        env.run(
            fixed.iter().chain(&["--agent", "claude-code", "--executor", "docker", "--json"]).chain(words),
        )
    };
    let missing = run(&[]).exit(2).error();
    assert!(missing["message"].as_str().unwrap().contains("toolpost/claude-code:latest"), "{missing}");
    let other = run(&["--image", "127.0.0.1:1/other"]).exit(2).error();
    assert!(other["message"].as_str().unwrap().contains("127.0.0.1:1/other"), "{other}");
    let fetched = run(&["--image", "127.0.0.1:1/other", "--pull", "missing"]).exit(4).error();
    assert!(fetched["message"].as_str().unwrap().contains("pulling image"), "{fetched}");
    let words = ["run", "-p", "hi", "--agent", "claude-code", "--json", "--image", "a"];
    assert!(env.run(words).exit(2).error()["hints"].to_string().contains("--executor docker"));

    let built = env.run(["image", "build", "claude-code", "--json"]);
    if !built.status.success() {
        println!("SKIP {name}: the image cannot be built here: {built}");
        return;
    }
    assert_eq!(built.json()["image"]["recipe"], "claude-code", "{built}");
    let finished = run(&[]).ok();
    assert!(!finished.out.contains("canary") && !finished.err.contains("canary"), "{finished}");
    let record = finished.json();
    fits("run-record", &record);
    assert_eq!((&record["success"], record["container_id"].as_str().map(str::len)), (&json!(true), Some(64)));
    assert!(record["response"].as_str().unwrap().contains("42"), "{record}");
    crate::support::eventually("the containers are gone", || daemon.containers().is_empty());
}
