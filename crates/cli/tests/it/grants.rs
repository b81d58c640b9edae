//! Grants of targets beyond their sandbox level, by options and files.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::support::{Anthropic, Finished, TestEnv, says};

/// The distinct values of granted variables.
const SENT: &str = "canary-of-a-placeholder-2a7c";
const RAW: &str = "canary-of-a-raw-variable-90fe";

/// The view of a program, as a stable text.
const LOOK: &str = r#"
import sys, json, os, urllib.request
OUTSIDE, ADDRESS = "<OUTSIDE>", "<ADDRESS>"
def attempt(work, *arguments):
    try:
        return work(*arguments)
    except OSError as error:
        return "blocked" if "egress allowlist" in str(error) else type(error).__name__
def read():
    return open(OUTSIDE + "/read.txt").read()
def write():
    with open(OUTSIDE + "/out/made.txt", "w") as file:
        file.write("made")
    return "made"
def fetch(url):
    headers = {"Authorization": "Bearer " + os.environ.get("API_KEY", "")}
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10).read().decode()
def look():
    key = os.environ.get("API_KEY", "none").split("-")[0]
    body, other = attempt(fetch, "http://" + ADDRESS + "/"), attempt(fetch, "http://allowed.example/")
    cwd = "root" if os.getcwd() == "/workspace" else "host"
    facts = [key, len(os.environ.get("RAW_KEY", "")), cwd, os.path.exists("marker"), attempt(read), attempt(write), body, other]
    return " ".join(str(fact) for fact in facts)
"#;
/// Without grants, in a host directory without the marker.
const NOTHING: &str = "none 0 host False FileNotFoundError FileNotFoundError URLError URLError";
/// With all grants.
const ALL: &str = "placeholder 29 root True outside made seen HTTPError";

/// A server whose tool description is what it sees.
const SERVER: &str = r#"
for line in sys.stdin:
    message = json.loads(line)
    method, i = message.get("method"), message.get("id")
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "look", "description": look(), "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        print("stderr has", os.environ.get("RAW_KEY"), file=sys.stderr, flush=True)
        result = {"content": [{"type": "text", "text": look() + " " + os.environ.get("RAW_KEY", "")}]}
    elif i is None:
        continue
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": i, "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": i, "result": result}), flush=True)
"#;

/// A tool program with the same text.
const PROGRAM: &str = r#"
if "--discover" in sys.argv:
    tools = [{"name": name, "summary": name, "streaming": False, "session_mode": False, "schema": {"type": "object"}} for name in ("look", "crash")]
    print(json.dumps({"name": "p", "version": "1", "protocol": "0.1", "tools": tools, "resources": [], "prompts": []}))
elif sys.argv[1] == "crash":
    raise RuntimeError("the key is " + os.environ["RAW_KEY"])
else:
    print("stderr has", os.environ.get("RAW_KEY"), file=sys.stderr)
    print(json.dumps({"type": "log", "level": "info", "message": "log has " + os.environ.get("RAW_KEY", "")}))
    print(json.dumps({"status": "success", "result": look() + " " + os.environ.get("RAW_KEY", "")}))
"#;

/// A program without a protocol.
const PLAIN: &str = "
print('stderr has', os.environ.get('RAW_KEY'), file=sys.stderr)
print(look() + ' ' + os.environ.get('RAW_KEY', ''))
";

/// Whether this host supports grants; if not, the test is skipped.
#[expect(clippy::print_stdout, reason = "a skipped test prints its reason")]
fn has_namespaces(test: &str) -> bool {
    let level = Host::probe().availability(Level::Strict);
    let there = level.is_some_and(|level| level.available);
    if !there {
        println!("SKIP {test}: this host gives no namespaces");
    }
    there
}

/// A local API that checks the key.
fn api() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let is_known = head.iter().any(|line| line.ends_with(&format!("Bearer {SENT}")));
            let body = if is_known { "seen" } else { "unknown" };
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    address
}

/// The files of a test: programs, and granted paths.
struct World {
    options: Vec<String>,
    outside: String,
    address: SocketAddr,
}

impl World {
    fn new(env: &TestEnv) -> Self {
        let address = api();
        std::fs::create_dir_all(env.path("../home/outside/out")).unwrap();
        let outside = env.path("../home/outside").canonicalize().unwrap().display().to_string();
        std::fs::write(env.path("../home/outside/read.txt"), "outside").unwrap();
        let look = LOOK.replace("<OUTSIDE>", &outside).replace("<ADDRESS>", &address.to_string());
        for directory in ["", "granted/"] {
            env.write(&format!("{directory}server.py"), format!("{look}{SERVER}"));
            env.write(&format!("{directory}plain.py"), format!("{look}{PLAIN}"));
        }
        env.write("granted/marker", "");
        let program = env.write("program", format!("#!/usr/bin/env python3\n{look}{PROGRAM}"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(program, mode).unwrap();
        env.write("plain.toml", description("", ""));
        let address_text = address.to_string();
        let options = [
            ["--secret", "API_KEY"],
            ["--secret-raw", "RAW_KEY"],
            ["--allow-host", "allowed.example"],
            ["--allow-address", &address_text],
            ["--readable", &format!("{outside}/read.txt")],
            ["--writable", &format!("{outside}/out")],
            ["--target-level", "strict"],
            ["--target-workdir", "granted"],
        ];
        let options = options.iter().flatten().map(|&word| word.to_owned()).collect();
        Self { options, outside, address }
    }

    fn keys(env: TestEnv) -> TestEnv {
        env.with("API_KEY", SENT).with("RAW_KEY", RAW)
    }

    /// A command with the grants.
    fn with<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        words.iter().copied().chain(self.options.iter().map(String::as_str)).collect()
    }

    /// The grants in a file.
    fn json(&self) -> Value {
        json!({
            "secrets": ["API_KEY", { "name": "RAW_KEY", "raw": true }],
            "allow_hosts": ["allowed.example"],
            "allow_addresses": [self.address],
            "readable": [format!("{}/read.txt", self.outside)],
            "writable": [format!("{}/out", self.outside)],
            "level": "strict",
            "workdir": "granted",
        })
    }

    /// A variant in TOML on one line.
    fn toml(&self) -> String {
        let Self { outside, address, .. } = self;
        format!(
            "{{ secrets = [\"API_KEY\", {{ name = \"RAW_KEY\", raw = true }}], allow_hosts = [\"allowed.example\"], \
             allow_addresses = [\"{address}\"], readable = [\"{outside}/read.txt\"], writable = [\"{outside}/out\"], \
             level = \"strict\", workdir = \"granted\" }}"
        )
    }
}

fn description(grants: &str, more: &str) -> String {
    format!(
        "kind = \"command\"\nv = 1\nprogram = \"python3\"\n{grants}\n[[tool]]\nname = \"look\"\ndescription = \"Look.\"\n\
         args = [\"plain.py\"]\n{more}\n[tool.output]\nformat = \"text\"\n"
    )
}

#[track_caller]
fn no_value_in(finished: &Finished) {
    let shown = format!("{finished}");
    assert!(!shown.contains(SENT) && !shown.contains(RAW), "{shown}");
}

const SERVED: &str = "stdio:python3 server.py";

#[test]
pub(crate) fn options_reach_the_target_of_every_command() {
    if !has_namespaces("options_reach_the_target_of_every_command") {
        return;
    }
    let model = Anthropic::start(vec![says("done"), says("done")]);
    let env = World::keys(model.env);
    let world = World::new(&env);
    let nothing = env.run(["tools", SERVED]).ok();
    assert!(nothing.out.contains(NOTHING), "{nothing}");
    let listed = env.run(world.with(&["tools", SERVED])).ok();
    assert!(listed.out.contains(ALL), "{listed}");
    assert_eq!(std::fs::read_to_string(env.path("../home/outside/out/made.txt")).unwrap(), "made");
    let called = env.run(world.with(&["call", SERVED])).ok();
    assert_eq!(called.out.trim(), format!("{ALL} [secret]"), "{called}");
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": { "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {} } } });
    for words in [&["serve", SERVED][..], &["serve", "builtin", "mine=stdio:python3 server.py"]] {
        let served = env.run_with(format!("{list}\n"), world.with(words)).ok();
        assert!(served.out.contains(ALL), "{served}");
        no_value_in(&served);
    }
    let ran = env.run(world.with(&["run", "-p", "go", "--json", "--tools", SERVED])).ok();
    let id = ran.json()["id"].as_str().unwrap().to_owned();
    let same = env.run(world.with(&["runs", "replay", &id, "--json", "--tools", SERVED])).ok();
    assert_eq!(same.json()["same"], true, "{same}");
    let differs = env.run(["runs", "replay", &id, "--json", "--tools", SERVED]).exit(1);
    assert_eq!(differs.json()["same"], false, "{differs}");
    let tools = model.server.requests()[0].json()["tools"].clone();
    assert!(tools.to_string().contains(ALL), "{tools}");
    for finished in [&nothing, &listed, &called, &ran, &same] {
        no_value_in(finished);
    }
}

#[test]
fn options_reach_programs_and_descriptions() {
    if !has_namespaces("options_reach_programs_and_descriptions") {
        return;
    }
    let env = World::keys(TestEnv::new());
    let world = World::new(&env);
    env.run(["trust", "plain.toml"]).ok();
    for target in ["./program", "plain.toml"] {
        let nothing = env.run(["call", target, "look"]).ok();
        assert_eq!(nothing.out.trim(), NOTHING, "{target} {nothing}");
        let shown = env.run(world.with(&["call", target, "look"])).ok();
        assert_eq!(shown.out.trim(), format!("{ALL} [secret]"), "{target} {shown}");
        let all = env.run(world.with(&["call", target, "look", "--format", "jsonl"])).ok();
        let last = all.record();
        let report = &last["sandbox"]["report"];
        assert_eq!(report["raw_variables"], json!(["RAW_KEY"]), "{target} {last:#}");
        assert_eq!(report["effective"], "strict", "{target}");
        no_value_in(&all);
    }
}

#[test]
fn the_level_of_a_target_is_not_that_of_code() {
    if !has_namespaces("the_level_of_a_target_is_not_that_of_code") {
        return;
    }
    let env = TestEnv::new();
    World::new(&env);
    env.write(
        "say.yaml",
        "turns:\n  - calls: [{ tool: run_code, args: { language: python, code: \"import os; print(os.getcwd())\" } }]\n  - text: \"{{ last.text }}\"\n",
    );
    let words =
        ["run", "-p", "x", "--model", "script:say.yaml", "--tools", "run_code", "--mcp-server", SERVED];
    let ran = env.run(words.into_iter().chain(["--target-level", "minimal", "--workdir", "."])).ok();
    assert!(ran.out.contains("/workspace"), "{ran}");
}

#[test]
fn files_grant_what_options_grant_once_they_are_trusted() {
    if !has_namespaces("files_grant_what_options_grant_once_they_are_trusted") {
        return;
    }
    let env = World::keys(TestEnv::new());
    let world = World::new(&env);
    let toml = world.toml();
    env.write("plain.toml", description(&format!("grants = {toml}"), ""));
    env.write(
        "gateway.toml",
        format!("kind = \"gateway\"\n[[upstreams]]\nname = \"up\"\ntarget = \"{SERVED}\"\nnamespace = false\ngrants = {toml}\n"),
    );
    env.write(
        "toolpost.toml",
        format!("[targets.named]\ntarget = \"./program\"\ngrants = {toml}\n[targets.server]\ntarget = \"{SERVED}\"\ngrants = {toml}\n"),
    );
    let entry = json!({ "command": "python3", "args": ["server.py"], "grants": world.json() });
    env.write(".mcp.json", json!({ "mcpServers": { "client": entry } }).to_string());
    for (file, target) in [
        ("plain.toml", "plain.toml"),
        ("gateway.toml", "gateway.toml"),
        ("toolpost.toml", "named"),
        ("toolpost.toml", "server"),
        (".mcp.json", "client"),
    ] {
        let denied = env.run(["call", target, "look"]);
        assert!([2, 5].contains(&denied.status.code().unwrap()), "{target} {denied}");
        let trusted = env.run(["trust", file]).ok();
        for line in [
            "gets the value of `RAW_KEY` (raw)",
            "sends `API_KEY` to allowed.example",
            "reaches allowed.example",
            "/read.txt`",
            "/out`",
            "/granted`",
            "level `strict`",
        ] {
            assert!(trusted.err.contains(line), "{line}: {trusted}");
        }
        let called = env.run(["call", target, "look"]).ok();
        assert_eq!(called.out.trim(), format!("{ALL} [secret]"), "{target} {called}");
        no_value_in(&called);
        // The stored grants are the printed ones.
        let stored = env.run(["trust", "--json"]).ok();
        assert!(stored.out.contains("gets the value of `RAW_KEY` (raw)"), "{stored}");
        let text = env.read(file);
        env.write(file, text.replace("allowed.example", "other.example"));
        let revoked = env.run(["call", target, "look"]);
        assert!(!revoked.status.success(), "{target} {revoked}");
        env.write(file, text);
        env.run(["trust", "--remove", file]).ok();
    }
}

#[test]
fn wrong_grants_are_errors_with_the_option_that_helps() {
    let env = TestEnv::new().with("RAW_KEY", RAW);
    World::new(&env);
    env.write("s.yaml", "turns:\n  - text: done\n");
    for (words, exit, said) in [
        (&["tools", SERVED, "--secret-raw", "NO_SUCH_KEY"][..], 3, "`NO_SUCH_KEY`"),
        (&["tools", SERVED, "--secret", "RAW_KEY"], 2, "--allow-host NAME"),
        (&["tools", SERVED, "--secret-raw", "RAW_KEY=x"], 2, "the name of a variable"),
        (&["tools", SERVED, SERVED, "--secret-raw", "RAW_KEY"], 2, "but 2 take them"),
        (
            &["run", "-p", "x", "--model", "script:s.yaml", "--allow-host", "a.example"],
            2,
            "`--config egress_policy=FILE`",
        ),
        (&["call", "calculate", "expression=1", "--readable", "/"], 2, "takes no grants"),
        (&["tools", "http://127.0.0.1:1/mcp", "--secret-raw", "RAW_KEY"], 2, "takes no grants"),
        (&["serve", "builtin", "--secret-raw", "RAW_KEY"], 2, "takes no grants"),
        (&["tools", "docker:none", "--readable", "/etc"], 2, "a container takes only"),
        (&["tools", "stdio:npx --registry=x y"], 2, "not supported"),
    ] {
        let failed = env.run(words).exit(exit);
        assert!(failed.err.contains(said), "{words:?} {failed}");
        no_value_in(&failed);
    }
}

#[test]
fn a_server_that_exits_fails_at_once_with_its_stderr() {
    let env = TestEnv::new().with("RAW_KEY", RAW);
    env.write(
        "server.py",
        "import os, sys\nprint('no config for', os.environ['RAW_KEY'], file=sys.stderr)\nsys.exit(3)\n",
    );
    let begun = std::time::Instant::now();
    let failed = env.run(["tools", SERVED, "--secret-raw", "RAW_KEY"]).exit(1);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    for said in ["no config for [secret]", "--allow-host NAME", "--readable PATH"] {
        assert!(failed.err.contains(said), "{said}: {failed}");
    }
    no_value_in(&failed);
    // Its KeyError names a variable that the caller has.
    let lacking = env.run(["tools", SERVED]).exit(1);
    assert!(
        lacking.err.contains("`--secret-raw RAW_KEY`") && !lacking.err.contains("--readable"),
        "{lacking}"
    );
    no_value_in(&lacking);
}

#[test]
fn no_granted_value_is_in_an_output_a_log_or_a_file() {
    if !has_namespaces("no_granted_value_is_in_an_output_a_log_or_a_file") {
        return;
    }
    let env = World::keys(TestEnv::new());
    let world = World::new(&env);
    env.run(["trust", "plain.toml"]).ok();
    let calls = "[{ tool: look, args: {} }, { tool: crash, args: {} }]";
    env.write("say.yaml", format!("turns:\n  - calls: {calls}\n  - text: \"{{{{ results }}}}\"\n"));
    let address = world.address.to_string();
    let grants = ["--secret", "API_KEY", "--secret-raw", "RAW_KEY", "--allow-address", &address];
    let log = ["--log", "trace", "--log-file", "log.txt", "-vvv"];
    let mut heard = Vec::new();
    for words in [
        &["call", "./program", "look", "--stream"][..],
        &["call", "./program", "crash", "--json"],
        &["call", "plain.toml", "look", "--format", "jsonl"],
        &["call", SERVED, "look", "--format", "jsonl"],
        &["run", "-p", "x", "--model", "script:say.yaml", "--tools", "./program", "--json"],
    ] {
        let finished = env.run(words.iter().chain(&grants).chain(&log));
        no_value_in(&finished);
        heard.push(format!("{finished}"));
    }
    let heard = heard.concat();
    for place in ["log has [secret]", "the key is [secret]", "stderr has [secret]"] {
        assert!(heard.contains(place), "{place}: {heard}");
    }
    assert!(env.read("log.txt").contains("toolpost::call"), "the log says too little to prove anything");
    let mut directories = vec![env.path("..")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                let text = String::from_utf8_lossy(&std::fs::read(entry.path()).unwrap()).into_owned();
                assert!(!text.contains(SENT) && !text.contains(RAW), "{}", entry.path().display());
            }
        }
    }
}

#[test]
fn curl_reaches_the_hosts_that_are_allowed() {
    let test = "curl_reaches_the_hosts_that_are_allowed";
    let env = TestEnv::new();
    let probe = env.run(["exec", "--level", "strict", "--", "curl", "--version"]);
    if !has_namespaces(test) || !probe.status.success() {
        return;
    }
    let address = api().to_string();
    let url = format!("url=http://{address}/");
    let sent = format!("authorization=Bearer {SENT}");
    let called =
        env.run(["call", "command:curl", &url, &sent, "header=Accept: */*", "--allow-address", &address]);
    assert_eq!(called.ok().out.trim(), "seen");
    let none = env.run(["call", "command:curl", &url]).exit(5);
    assert!(none.err.contains("no host is allowed") && none.err.contains("--allow-host NAME"), "{none}");
    let other = env.run(["call", "command:curl", &url, "--allow-host", "other.example"]).exit(5);
    assert!(other.err.contains(&format!("`--allow-address {address}`")), "{other}");
}

#[test]
fn servers_start_by_a_relative_path_in_the_callers_directory() {
    let test = "servers_start_by_a_relative_path_in_the_callers_directory";
    if !has_namespaces(test) {
        return;
    }
    let env = TestEnv::new();
    World::new(&env);
    let script = format!("#!/usr/bin/env python3\n{}", env.read("server.py"));
    let path = env.write("bin/server", script);
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for target in ["stdio:./bin/server", "stdio:bin/server", &format!("stdio:{}", path.display())] {
        let listed = env.run(["tools", target]).ok();
        assert!(listed.out.contains(NOTHING), "{target} {listed}");
    }
}

#[test]
fn the_former_key_of_secrets_is_read_with_a_warning() {
    if !has_namespaces("the_former_key_of_secrets_is_read_with_a_warning") {
        return;
    }
    let warned = |env: &TestEnv, words: &[&str]| {
        let finished = env.run(words).ok();
        assert!(finished.err.contains("`grants.env` is now `grants.secrets`"), "{finished}");
        finished.out
    };
    let env = TestEnv::new().with("RAW_KEY", RAW);
    let grants = "env = [{ name = \"RAW_KEY\", raw = true }]";
    let described = |grants: &str| {
        format!(
            "kind = \"command\"\nv = 1\nprogram = \"sh\"\n[grants]\n{grants}\n[[tool]]\nname = \"length\"\n\
             description = \"The length.\"\nargs = [\"-c\", \"printf ${{{{#RAW_KEY}}}}\"]\n[tool.output]\nformat = \"text\"\n"
        )
    };
    let length = RAW.len().to_string();
    env.write("old.toml", described(grants));
    env.run(["trust", "old.toml"]).ok();
    assert_eq!(warned(&env, &["call", "./old.toml"]).trim(), length);
    env.write("new.toml", described(&grants.replace("env", "secrets")));
    env.run(["trust", "new.toml"]).ok();
    let new = env.run(["call", "./new.toml"]).ok();
    assert!(new.out.trim() == length && !new.err.contains("is now"), "{new}");
    // A target of the settings.
    env.write("plain.toml", described(""));
    env.run(["trust", "plain.toml"]).ok();
    let settings = format!("[targets.t]\ntarget = \"./plain.toml\"\ngrants = {{ {grants} }}\n");
    env.write("toolpost.toml", settings);
    env.run(["trust", "toolpost.toml"]).ok();
    assert_eq!(warned(&env, &["call", "t"]).trim(), length);
}
