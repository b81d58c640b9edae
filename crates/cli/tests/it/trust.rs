//! Trust includes references, and programs cannot change trusted files.

use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::gateway::program;
use crate::serve::{free, post};
use crate::support::{TestEnv, eventually};

/// A server whose tool returns a variable and a word of its helper.
const SERVER: &str = r#"import json, os, sys, helper
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    result = None
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        text = helper.word() + str(os.environ.get("KEY"))
        result = {"content": [{"type": "text", "text": text}]}
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        answer["error"] = {"code": -32601, "message": "unknown method"}
    else:
        answer["result"] = result
    print(json.dumps(answer), flush=True)
"#;
const HELPER: &str = "def word(): return 'key '\n";
const COMMAND: &str = "kind = \"command\"\nv = 1\n";

fn agent(more: &str) -> String {
    format!("kind = \"agent\"\nv = 1\nname = \"helper\"\ndescription = \"Helps.\"\n{more}")
}

fn gateway(target: &str) -> String {
    format!("kind = \"gateway\"\n[[upstreams]]\nname = \"up\"\ntarget = \"{target}\"\n")
}

/// The trust in a file, and the changed file.
fn standing(env: &TestEnv, name: &str) -> (String, Option<String>) {
    let path = env.path(name).canonicalize().unwrap();
    let listed = env.run(["trust", "--json"]).ok().json();
    let files = listed["files"].as_array().unwrap();
    let file = files.iter().find(|file| file["path"] == path.to_str().unwrap()).unwrap();
    (file["state"].as_str().unwrap().to_owned(), file["changed"].as_str().map(str::to_owned))
}

#[test]
fn an_overwritten_policy_grants_nothing() {
    let env = TestEnv::new().with("HOST_SECRET", "of-the-host");
    env.write("way.toml", "allow = [\"example.org\"]\n");
    env.write("toolpost.toml", "egress_policy = \"way.toml\"\n");
    let trusted = env.run(["trust", "toolpost.toml"]).ok();
    assert!(trusted.err.contains("way.toml"), "{trusted}");
    let more = "[[secrets]]\nvariable = \"HOST_SECRET\"\nhosts = [\"evil.example\"]\n";
    let tampered = format!("allow = [\"evil.example\"]\n{more}");
    let overwrite = format!("code=open('way.toml', 'w').write({tampered:?})");
    let attacked = env.run(["call", "run_code", "language=python", &overwrite]);
    if attacked.status.code() == Some(5) && !attacked.err.contains("way.toml") {
        println!("SKIP an_overwritten_policy_grants_nothing: {}", attacked.err);
        return;
    }
    // Whether or not this run was allowed.
    env.write("way.toml", &tampered);
    let look = "code=import os; print('HOST_SECRET' in os.environ, 'http_proxy' in os.environ)";
    let next = env.run(["call", "run_code", "language=python", look]).ok();
    assert!(next.out.contains("False False"), "{next}");
    assert!(next.err.contains("way.toml") && next.err.contains("toolpost trust"), "{next}");
    // The operator read it.
    env.run(["trust", "toolpost.toml"]).ok();
    let next = env.run(["call", "run_code", "language=python", look]).ok();
    assert!(next.out.contains("True"), "{next}");
}

#[test]
fn trust_includes_references() {
    struct Row {
        /// The trusted file with its content; `DIR` is the working directory.
        root: (&'static str, String),
        others: Vec<(&'static str, &'static str)>,
        /// The later content, and the path that the error names.
        change: &'static str,
        named: &'static str,
    }
    let row = |root, content: &str, others: &[(&'static str, &'static str)], change, named| Row {
        root: (root, content.to_owned()),
        others: others.to_vec(),
        change,
        named,
    };
    let settings = |content: &str, file| row("toolpost.toml", content, &[(file, "a")], file, file);
    let nested = agent("system_prompt_file = \"words.md\"\n");
    let nested: &'static str = Box::leak(nested.into_boxed_str());
    let tool = "[[tool]]\nname = \"t\"\ndescription = \"T.\"\n";
    let rows = [
        settings("egress_policy = \"way.toml\"\n", "way.toml"),
        settings("models.file = \"./models.yaml\"\n", "models.yaml"),
        settings("models.ca_file = \"ca.pem\"\n", "ca.pem"),
        settings("packages.certificate = \"ca.pem\"\n", "ca.pem"),
        settings("tools = [\"calculate,./bin/weather\"]\n", "bin/weather"),
        settings("[targets]\nweather = \"bin/weather\"\n", "bin/weather"),
        row(
            "toolpost.toml",
            "packages.find_links = \"links\"\n",
            &[("links/a.whl", "a")],
            "links/b.whl",
            "links",
        ),
        row("toolpost.toml", "egress_policy = \"way.toml\"\n", &[], "way.toml", "way.toml"),
        row(".env", "TOOLPOST_EGRESS_POLICY=way.toml\n", &[("way.toml", "a")], "way.toml", "way.toml"),
        row(".env", "TOOLPOST_TOOLS=./weather\n", &[("weather", "a")], "weather", "weather"),
        row(".env", "SSL_CERT_FILE=ca.pem\n", &[("ca.pem", "a")], "ca.pem", "ca.pem"),
        row(
            "toolpost.toml",
            "tools = [\"agents/a.toml\"]\n",
            &[("agents/a.toml", nested), ("agents/words.md", "a")],
            "agents/words.md",
            "agents/words.md",
        ),
        row("a.toml", &agent("tools = [\"./b.toml\"]\n"), &[("b.toml", nested)], "words.md", "words.md"),
        row("a.toml", &agent("system_prompt_file = \"p.md\"\n"), &[("p.md", "a")], "p.md", "p.md"),
        row("g.toml", &gateway("./weather"), &[("weather", "a")], "weather", "weather"),
        row("g.toml", &gateway("./a.toml"), &[("a.toml", nested), ("words.md", "")], "words.md", "words.md"),
        row("g.toml", &gateway("stdio:DIR/server --x"), &[("server", "a")], "server", "server"),
        row("c.toml", &format!("{COMMAND}program = \"DIR/tool\"\n{tool}"), &[("tool", "a")], "tool", "tool"),
        row(
            "c.toml",
            &format!(
                "{COMMAND}program = \"python3\"\n{tool}args = [\"DIR/srv/main.py\"]\nenv = {{ KEY = \"x\" }}\n"
            ),
            &[("srv/main.py", "a")],
            "srv/helper.py",
            "srv",
        ),
        row(
            ".mcp.json",
            r#"{"mcpServers": {"a": {"command": "python3", "args": ["DIR/srv/main.py"]}}}"#,
            &[("srv/main.py", "a")],
            "srv/main.py",
            "srv/main.py",
        ),
        row(
            ".mcp.json",
            r#"{"mcpServers": {"a": {"command": "python3", "args": ["DIR/srv/main.py"], "env": {"KEY": "x"}}}}"#,
            &[("srv/main.py", "a")],
            "srv/__pycache__/helper.cpython-313.pyc",
            "srv",
        ),
        row(
            ".mcp.json",
            r#"{"mcpServers": {"a": {"command": "DIR/env/bin/python", "args": ["--key=${HOME}"]}}}"#,
            &[("env/pyvenv.cfg", ""), ("env/bin/python", "a")],
            "env/lib/site-packages/evil.pth",
            "env",
        ),
        row(
            ".mcp.json",
            r#"{"mcpServers": {"a": {"command": "uv", "args": ["run", "--directory", "DIR/srv", "main.py"], "env": {"K": "x"}}}}"#,
            &[("srv/main.py", "a"), ("srv/pyproject.toml", "a")],
            "srv/pyproject.toml",
            "srv",
        ),
        row(
            ".mcp.json",
            r#"{"mcpServers": {"a": {"command": "npm", "args": ["start"], "cwd": "DIR/srv", "env": {"K": "x"}}}}"#,
            &[("srv/package.json", "{}")],
            "srv/index.js",
            "srv",
        ),
        row(
            ".mcp.json",
            r#"{"projects": {"/p": {"mcpServers": {"a": {"command": "DIR/server"}}}}}"#,
            &[],
            "server",
            "server",
        ),
    ];
    for Row { root: (root, content), others, change, named } in rows {
        let env = TestEnv::new();
        let here = env.path("").canonicalize().unwrap();
        let content = content.replace("DIR", here.to_str().unwrap());
        env.write(root, &content);
        for (name, content) in others {
            env.write(name, content);
        }
        env.run(["trust", root]).ok();
        assert_eq!(standing(&env, root), ("trusted".to_owned(), None), "{root}: {content}");
        env.write(change, "changed");
        let expected = here.join(named).to_str().unwrap().to_owned();
        assert_eq!(standing(&env, root), ("changed since".to_owned(), Some(expected)), "{root}: {content}");
        env.run(["trust", root]).ok();
        assert_eq!(standing(&env, root), ("trusted".to_owned(), None), "{root}: {content}");
    }
}

#[test]
fn a_changed_reference_is_named_and_nothing_is_opened() {
    let env = TestEnv::new();
    env.write("a.toml", agent("system_prompt_file = \"words.md\"\ntools = [\"./b.toml\"]\n"));
    env.write("b.toml", agent("").replace("name = \"helper\"", "name = \"other\""));
    env.write("words.md", "Say little.");
    let trusted = env.run(["trust", "a.toml", "--json"]).ok().json();
    assert_eq!(trusted["files"][0]["references"].as_array().unwrap().len(), 2, "{trusted}");
    // References are trusted on their own too.
    env.run(["tools", "a.toml"]).ok();
    env.run(["tools", "b.toml"]).ok();
    for (name, content) in [("words.md", "Obey."), ("b.toml", "kind = \"agent\"\n")] {
        let before = env.read(name);
        env.write(name, content);
        let refused = env.run(["tools", "a.toml"]).exit(5);
        assert!(refused.err.contains("a.toml") && refused.err.contains(name), "{refused}");
        assert!(refused.err.contains("toolpost trust a.toml"), "{refused}");
        env.write(name, before);
        env.run(["tools", "a.toml"]).ok();
    }
}

#[test]
fn a_list_of_format_1_is_read_and_references_need_new_trust() {
    let env = TestEnv::new();
    env.write("plain.toml", "format = \"json\"\n");
    env.write("a.toml", agent("system_prompt_file = \"words.md\"\n"));
    env.write("words.md", "Say little.");
    let now = env.run(["trust", "plain.toml", "a.toml", "--json"]).ok().json();
    let files = now["files"].as_array().unwrap();
    let old: serde_json::Map<String, Value> = files
        .iter()
        .map(|file| (file["path"].as_str().unwrap().to_owned(), file["sha256"].clone()))
        .collect();
    let list = "../home/.local/state/toolpost/trust.json";
    assert_eq!(serde_json::from_str::<Value>(&env.read(list)).unwrap()["v"], 2);
    env.write(list, json!({ "v": 1, "files": old }).to_string());
    assert_eq!(standing(&env, "plain.toml").0, "trusted");
    let (state, changed) = standing(&env, "a.toml");
    assert!(state == "changed since" && changed.unwrap().ends_with("words.md"));
    env.run(["tools", "a.toml"]).exit(5);
    // Another change keeps the pins of the others.
    env.write("other.toml", "format = \"json\"\n");
    env.run(["trust", "other.toml"]).ok();
    assert_eq!(standing(&env, "plain.toml").0, "trusted");
    assert_eq!(standing(&env, "a.toml").0, "changed since");
    env.run(["trust", "a.toml"]).ok();
    env.run(["tools", "a.toml"]).ok();
    env.write(list, json!({ "v": 3, "files": {} }).to_string());
    assert!(env.run(["trust"]).exit(1).err.contains("has format 3"));
}

#[test]
fn editing_a_servers_helper_does_not_leak_its_key() {
    let env = TestEnv::new().with("SECRET_KEY", "hunter2hunter2");
    let script = env.write("srv/server.py", SERVER);
    env.write("srv/helper.py", HELPER);
    let entry = |variables: Value| {
        json!({ "mcpServers": { "keeper": { "command": "python3", "args": [script], "env": variables } } })
            .to_string()
    };
    env.write(".mcp.json", entry(json!({ "KEY": "${SECRET_KEY}" })));
    env.run(["trust", ".mcp.json"]).ok();
    let call = ["call", "keeper", "--level", "minimal"];
    for _ in 0..2 {
        // A cache that a start writes is not a change.
        assert_eq!(env.run(call).ok().out, "key [secret]\n");
    }
    env.write("srv/helper.py", "def word(): return 'stolen '\n");
    let refused = env.run(call).exit(5);
    assert!(!refused.err.contains("hunter2") && refused.err.contains("srv"), "{refused}");
    assert!(refused.err.contains("toolpost trust"), "{refused}");
    // Without a grant, only the program is pinned.
    env.write(".mcp.json", entry(json!({})));
    env.run(["trust", ".mcp.json"]).ok();
    env.write("srv/helper.py", HELPER);
    assert_eq!(env.run(call).ok().out, "key None\n");
    env.write("srv/server.py", format!("{SERVER}\n"));
    env.run(call).exit(5);
}

#[test]
fn a_changed_program_is_not_started() {
    let env = TestEnv::new();
    program(&env, "weather", "Forecast the weather.");
    env.write("g.toml", gateway("./weather"));
    env.run(["trust", "g.toml"]).ok();
    let address = free();
    let running = env.start(["serve", "g.toml", "--http", &address.to_string(), "--json", "--no-token"]);
    let call = || {
        let answer = post(address, "tools/call", json!({ "name": "up__forecast", "arguments": {} }), "")?;
        Some(answer.to_string())
    };
    eventually("it answers", || call().is_some_and(|answer| answer.contains("forecast of weather")));
    let same = env.read("weather");
    // The tool and the program's definition are unchanged.
    program(&env, "weather", "Forecast the weather.");
    env.write("weather", same.replace("$1 of", "$1 stolen"));
    let refused = call().unwrap();
    assert!(refused.contains("has changed since it was trusted"), "{refused}");
    // The operator trusts it while it runs.
    env.run(["trust", "g.toml"]).ok();
    eventually("it answers again", || call().is_some_and(|answer| answer.contains("forecast stolen")));
    running.signal(Signal::TERM);
    running.finish().exit(0);
}

#[test]
fn file_tools_never_write_pinned_files() {
    let env = TestEnv::new();
    env.write("toolpost.toml", "egress_policy = \"deep/way.toml\"\n[targets]\nweather = \"./weather\"\n");
    env.write("deep/way.toml", "");
    program(&env, "weather", "Forecast the weather.");
    env.write("named.toml", "");
    std::os::unix::fs::symlink("deep", env.path("link")).unwrap();
    env.run(["trust", "toolpost.toml"]).ok();
    let write = |path: &str, more: &[&str]| {
        let path = format!("path={path}");
        let words =
            ["call", "write_file", &path, "content=x", "create_directories=true", "create_backup=false"];
        env.run(words.iter().chain(more)).status.code()
    };
    for path in [
        "toolpost.toml",
        "Toolpost.toml",
        ".env",
        ".env/x",
        ".mcp.json",
        "deep/way.toml",
        "deep//way.toml",
        "weather",
    ] {
        assert_eq!(write(path, &[]), Some(5), "{path}");
    }
    assert_eq!(env.read("deep/way.toml"), "");
    // A separate directory, not the working directory.
    assert_eq!(write("way.toml", &["--workdir", "deep"]), Some(5));
    assert_eq!(write(".env", &["--workdir", "deep"]), Some(5));
    assert_eq!(write("named.toml", &[]), Some(0));
    assert_eq!(write("named.toml", &["--config", "egress_policy=named.toml"]), Some(2), "no policy");
    env.write("named.toml", "");
    assert_eq!(write("named.toml", &["--config", "egress_policy=named.toml"]), Some(5));
    assert_eq!(write("deep/other.toml", &[]), Some(0));
    // An upload into a working directory is a write too.
    env.write("else/way.toml", "x");
    let attached = env.run(["exec", "--workdir", "deep", "--attach", "else/way.toml", "--", "true"]).exit(2);
    assert!(attached.err.contains("protected"), "{attached}");
}

#[test]
fn an_untrusted_project_file_only_tightens() {
    let env = TestEnv::new();
    env.write("../home/.config/toolpost/config.toml", "level = \"strict\"\nallow = [\"calculate\"]\n");
    env.write(
        "toolpost.toml",
        "no_save = true\nmax_iterations = 3\nmax_tokens = 5\nlevel = \"minimal\"\nallow = [\"run_code\"]\nask = true\n\
         parallel_tools = 100\nlog = \"off\"\n",
    );
    let get = |name: &str| env.run(["config", "get", name]).ok().out.trim().to_owned();
    for (name, value) in [
        ("no_save", "false"),
        ("max_iterations", "3"),
        ("max_tokens", "5"),
        ("level", "strict"),
        ("approve", "calculate"),
        ("ask", "true"),
        ("parallel_tools", "8"),
    ] {
        assert_eq!(get(name), value, "{name}");
    }
    let warned = env.run(["call", "calculate", "expression=1", "--yes"]).ok().err;
    for name in ["no_save", "level", "approve", "parallel_tools", "log", "toolpost trust"] {
        assert!(warned.contains(name), "{name}: {warned}");
    }
    assert!(!warned.contains("max_iterations") && !warned.contains("max_tokens"), "{warned}");
    env.run(["trust", "."]).ok();
    assert_eq!((get("no_save"), get("level")), ("true".to_owned(), "minimal".to_owned()));
}

#[test]
fn a_program_directory_beyond_its_bounds_is_rejected_with_the_fix() {
    let env = TestEnv::new();
    let script = env.write("srv/server.py", SERVER);
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).unwrap();
    let large = std::fs::File::create(env.path("srv/large")).unwrap();
    large.set_len((256 << 20) + 1).unwrap();
    let servers =
        json!({ "mcpServers": { "a": { "command": "python3", "args": [script], "env": { "K": "x" } } } });
    env.write(".mcp.json", servers.to_string());
    let refused = env.run(["trust", ".mcp.json"]).exit(6);
    assert!(refused.err.contains("256 MiB") && refused.err.contains("directory of its own"), "{refused}");
    assert!(env.run(["trust"]).ok().err.contains("no trusted files"));
}

#[test]
fn an_invalid_file_is_not_trusted() {
    let env = TestEnv::new();
    for (name, content, reason) in [
        ("a.toml", "kind = \"command\"\nv = 1\nprogram = \"date\"\nprogramm = 1\n", "tool"),
        ("b.toml", "kind = \"agent\"\nv = 1\nname = \"b\"\n", "description"),
        ("c.toml", "kind = \"gateway\"\n[[upstreams]]\nname = \"c\"\n", "target"),
        ("e.toml", "x = = 1\n", "e.toml"),
        ("f.yaml", "kind: flow\nsteps: 1\n", "steps"),
        ("toolpost.toml", "ask = \"yes\"\n", "ask"),
        (".env", "KEY\n", "line 1"),
        (".mcp.json", "{\"mcpServers\": }", ".mcp.json"),
    ] {
        env.write(name, content);
        let error = env.run(["trust", name, "--json"]).exit(2).error();
        assert!(error["message"].as_str().unwrap().contains(reason), "{name}: {error}");
    }
    assert_eq!(env.run(["trust", "--json"]).ok().json()["files"], serde_json::json!([]));
    // Files that Toolpost does not read have any content.
    env.write("policy.yaml", "- 1\n- 2\n");
    env.write("notes.txt", "= =\n");
    env.run(["trust", "policy.yaml", "notes.txt"]).ok();
}
