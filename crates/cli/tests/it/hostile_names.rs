//! Names that nobody chose for a terminal: of directories, files, targets and servers, in every command.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::TestEnv;

/// Characters that a terminal obeys, that hide text, or that forge a line. Each is followed by the same word in a name.
const HOSTILE: [&str; 24] = [
    "\u{1b}]0;",
    "\u{1b}[31m",
    "\u{1b}",
    "\u{7}",
    "\u{8}",
    "\r",
    "\n",
    "\u{7f}",
    "\u{9b}",
    "\u{ad}",
    "\u{34f}",
    "\u{61c}",
    "\u{17b4}",
    "\u{180b}",
    "\u{180e}",
    "\u{200b}",
    "\u{202e}",
    "\u{2066}",
    "\u{2800}",
    "\u{3164}",
    "\u{fe0f}",
    "\u{fff9}",
    "\u{e0041}",
    "\u{e0101}",
];
const WORD: &str = "PWN";

/// A name with every hostile character.
fn name() -> String {
    HOSTILE.iter().flat_map(|one| [*one, WORD]).collect::<String>().replace('/', "")
}

#[track_caller]
fn is_harmless(what: &str, shown: &str) {
    for one in HOSTILE {
        assert!(!shown.contains(&format!("{one}{WORD}")), "{what}: {one:?} in {shown:?}");
    }
}

/// A working directory with a hostile name and a file of each kind.
fn hostile_env() -> TestEnv {
    let env = TestEnv::new().leaving_files().inside(&format!("a{}/w", name())).with("TERM", "xterm-256color");
    env.write("toolpost.toml", "level = \"maximum\"\nask = false\n[targets.own]\ntarget = \"./cmd.toml\"\n");
    env.write(".env", "A=1\n");
    env.write("s.yaml", "turns:\n  - text: hi\n  - text: ho\n");
    env.write("policy.toml", "alow = []\n");
    env.write("bad.py", "raise ValueError\n");
    env.write("code.py", "open('n.txt', 'w').write('x'); open('.bashrc', 'w').write('x')\n");
    env.write("prompt.txt", "hi");
    let steps = json!([{ "id": "a", "tool": "calculate", "with": { "expression": "1+1" } }]);
    let flow = json!({ "kind": "flow", "name": "f", "tools": ["builtin"], "steps": steps });
    env.write("flow.yaml", flow.to_string());
    env.write("bad.yaml", "kind: flow\nname: [\n");
    let tool = "kind = \"command\"\nv = 1\nprogram = \"./p\"\n[[tool]]\nname = \"t\"\ndescription = \"d\"\n";
    env.write("cmd.toml", tool);
    env.write("agent.toml", "kind = \"agent\"\nv = 1\nname = \"ag\"\ndescription = \"d\"\n");
    env.write(".mcp.json", json!({ "mcpServers": { "a": { "command": "./p" } } }).to_string());
    let upstreams = "kind = \"gateway\"\n[[upstreams]]\nname = \"u\"\ntarget = \"stdio:./p\"\n";
    env.write("gw.toml", upstreams);
    let program = env.write("p", "#!/bin/sh\necho hi\n");
    std::fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    env
}

/// Command lines of every command, in an order in which later ones have what earlier ones made.
const LINES: [&[&str]; 93] = [
    &["config", "list", "--show-origin"],
    &["config", "list", "--json", "--show-origin"],
    &["config", "path"],
    &["config", "path", "--json"],
    &["config", "get", "level"],
    &["config", "set", "--project", "ask", "true"],
    &["config", "unset", "--project", "ask"],
    &["config", "unset", "--project", "ask"],
    &["config", "set", "ask", "nothing"],
    &["doctor"],
    &["doctor", "-v"],
    &["trust", "none.toml"],
    &["trust", "toolpost.toml", "flow.yaml", "cmd.toml", "gw.toml", "agent.toml"],
    &["trust", "."],
    &["trust"],
    &["trust", "--json"],
    &["trust", "--remove", "none.toml"],
    &["config", "list", "--show-origin"],
    &["tools"],
    &["tools", "-v"],
    &["tools", "own", "-vv"],
    &["tools", "cmd.toml"],
    &["tools", "gw.toml"],
    &["tools", "agent.toml"],
    &["tools", "none.toml"],
    &["tools", ".mcp.json"],
    &["call", "cmd.toml", "t", "-vvv"],
    &["call", "none.toml", "t"],
    &["call", "builtin", "read_file", "path=none", "--workdir", "."],
    &["call", "builtin", "list_directory", "--workdir", "."],
    &["call", "builtin", "calculate", "@none.json"],
    &["flow", "plan", "flow.yaml"],
    &["flow", "plan", "bad.yaml"],
    &["flow", "run", "flow.yaml"],
    &["flow", "run", "none.yaml"],
    &["flow", "show", "last"],
    &["flow", "ls"],
    &["flow", "resume", "last"],
    &["flow", "cancel", "last"],
    &["flow", "signal", "last", "x"],
    &["flow", "approve", "last"],
    &["flow", "worker", "--help"],
    &["flow", "rm", "last"],
    &["exec", "bad.py"],
    &["exec", "none.py"],
    &["exec", "code.py", "--workdir", "."],
    &["exec", "code.py", "--workdir", ".", "--review"],
    &["exec", "code.py", "--artifacts", "art"],
    &["exec", "--attach", "s.yaml", "--", "ls"],
    &["exec", "--attach", "none", "--", "ls"],
    &["exec", "--egress-policy", "none.toml", "--", "true"],
    &["exec", "--egress-policy", "policy.toml", "--", "true"],
    &["exec", "--workdir", "none", "--", "true"],
    &["exec", "./none"],
    &["apply"],
    &["apply", "last"],
    &["undo"],
    &["discard", "last"],
    &["run", "-p", "x", "--model", "script:s.yaml", "--workdir", "."],
    &["run", "-f", "prompt.txt", "--model", "script:s.yaml", "--artifacts", "art2", "-o", "out.md"],
    &["run", "-f", "prompt.txt", "--model", "script:s.yaml", "-o", "out.md"],
    &["run", "-p", "x", "--model", "script:none.yaml"],
    &["run", "-p", "x", "--model", "script:prompt.txt"],
    &["run", "-p", "x", "--model", "script:s.yaml", "--output-schema", "none.json"],
    &["run", "-p", "x", "--model", "script:s.yaml", "--record", "record.jsonl"],
    &["run", "-p", "x", "--model", "script:s.yaml", "--record", "record.jsonl"],
    &["chat", "--model", "script:s.yaml", "hi", "--workdir", "."],
    &["runs", "ls", "--all"],
    &["runs", "show", "last"],
    &["runs", "stats"],
    &["runs", "export", "last", "exported.jsonl"],
    &["runs", "replay", "last"],
    &["runs", "rm", "last"],
    &["init", "tool", "--exec", "zz"],
    &["init", "agent", "zy"],
    &["init", "command", "zx"],
    &["init", "gateway", "zw"],
    &["init", "agent", "zy"],
    &["serve", "cmd.toml", "--http", "192.0.2.1:1"],
    &["serve", "none.toml"],
    &["--store", "none/none.db", "state", "show"],
    &["state", "log", "x"],
    &["state", "at", "x", "1"],
    &["--log-file", "x/y/z", "tools"],
    &["--env-file", "none.env", "tools"],
    &["models", "ls", "--config", "models.file=none.json"],
    &["models", "show", "x"],
    &["files", "put", "none.txt"],
    &["image", "ls"],
    &["schema"],
    &["completions", "bash"],
    &["login", "nowhere"],
    &["logout", "http://127.0.0.1:1/mcp"],
];

/// Commands with nothing of a name in what they print, or that need a provider or a peer.
const OTHERS: [&str; 8] =
    ["bench", "help", "files get", "files ls", "files rm", "image build", "image rm", "flow estimate"];

#[test]
fn a_directory_with_a_hostile_name_is_harmless_in_every_command() {
    let env = hostile_env();
    for words in LINES {
        let typed = if words[0] == "chat" { "/exit\n" } else { "n\n" };
        let (screen, running) = env.start_on_terminal(typed, words);
        is_harmless(&words.join(" "), &env.shown(screen, running).out);
        // Colors that are forced, in a pipe.
        if !words.contains(&"--json") && words[0] != "chat" {
            let piped = env.run(words.iter().chain(&["--color", "always"]));
            let stderr = if words[0] == "call" { String::new() } else { piped.err };
            is_harmless(&words.join(" "), &stderr);
        }
    }
}

#[test]
fn the_lines_have_every_command() {
    let env = TestEnv::new();
    let names = |page: &str| -> Vec<String> {
        let lines = page.lines().skip_while(|line| *line != "Commands:").skip(1);
        let lines = lines.take_while(|line| line.starts_with("  "));
        lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    };
    let mut known = BTreeSet::new();
    for command in names(&env.run(["--help"]).ok().out) {
        let inner = names(&env.run([&command, "--help"]).ok().out);
        known.extend(inner.iter().filter(|name| *name != "help").map(|name| format!("{command} {name}")));
        if inner.is_empty() {
            known.insert(command);
        }
    }
    assert!(known.len() > 40, "{known:?}");
    let is_run = |name: &String| {
        let words: Vec<&str> = name.split(' ').collect();
        OTHERS.contains(&name.as_str())
            || LINES.iter().any(|line| line.windows(words.len()).any(|part| part == words.as_slice()))
    };
    let missing: Vec<&String> = known.iter().filter(|name| !is_run(name)).collect();
    assert!(missing.is_empty(), "no line for {missing:?}");
}

#[test]
fn names_in_trusted_files_are_harmless() {
    let env = TestEnv::new().with("TERM", "xterm-256color");
    let quoted = serde_json::Value::from(name()).to_string();
    env.write("toolpost.toml", format!("[targets.{quoted}]\ntarget = \"./x\"\n"));
    let servers = json!({ "mcpServers": { (name()): { "command": name(), "args": [name()], "env": { (name()): "x" } } } });
    env.write(".mcp.json", servers.to_string());
    env.write("policy.toml", format!("[limits]\n{quoted} = 1\n"));
    let step = json!({ "id": name(), "tool": name(), "with": { (name()): name() } });
    env.write(
        "flow.yaml",
        json!({ "kind": "flow", "name": name(), "tools": ["builtin"], "steps": [step] }).to_string(),
    );
    for words in [
        &["trust", "toolpost.toml", ".mcp.json"][..],
        &["trust"],
        &["config", "list"],
        &["config", "list", "--show-origin"],
        &["config", "get", &format!("targets.{}", name())],
        &["tools"],
        &["tools", "-vv"],
        &["tools", &name()],
        &["tools", ".mcp.json"],
        &["call", &name(), "t"],
        &["exec", "--egress-policy", "policy.toml", "--", "true"],
        &["flow", "plan", "flow.yaml"],
        &["flow", "run", &name()],
        &["trust", &name()],
        &["config", "set", &name(), "x"],
        &["run", "-p", "x", "--model", &name()],
        &[&name()],
        &["exec", &format!("--{}", name())],
        &["exec", "--level", &name(), "x.py"],
    ] {
        is_harmless(&words.join(" ").escape_debug().to_string(), &env.on_terminal("", words).out);
        is_harmless("in a pipe", &env.run(words.iter().chain(&["--color", "always"])).err);
    }
}

#[test]
fn no_url_is_printed_with_user_and_password() {
    const CANARY: &str = "pw-canary";
    let url = format!("http://user:{CANARY}@127.0.0.1:1/mcp");
    let env = TestEnv::new()
        .with("HTTPS_PROXY", format!("http://user:{CANARY}@127.0.0.1:1"))
        .with("DOCKER_HOST", format!("tcp://user:{CANARY}@127.0.0.1:1"))
        .with("OLLAMA_HOST", format!("http://user:{CANARY}@127.0.0.1:1"))
        .with("PIP_INDEX_URL", format!("http://user:{CANARY}@127.0.0.1:1/simple"))
        .with("npm_config_registry", format!("http://user:{CANARY}@127.0.0.1:1/"))
        .with("OPENAI_COMPATIBLE_BASE_URL", format!("http://user:{CANARY}@127.0.0.1:1/v1"));
    env.write("toolpost.toml", format!("[targets.remote]\ntarget = \"{url}\"\n"));
    let servers = json!({ "mcpServers": {
        "a": { "type": "http", "url": url },
        "b": { "command": "git", "args": ["clone", url] },
    } });
    env.write(".mcp.json", servers.to_string());
    env.write("gw.toml", format!("kind = \"gateway\"\n[[upstreams]]\nname = \"u\"\ntarget = \"{url}\"\n"));
    for words in [
        &["trust", "toolpost.toml", ".mcp.json", "gw.toml"][..],
        &["trust"],
        &["trust", "gw.toml", "--tool", "?"],
        &["doctor", "-v"],
        &["config", "list", "--show-origin"],
        &["config", "list"],
        &["tools", "-v"],
        &["tools", "remote", "-vvv"],
        &["tools", ".mcp.json", "-vvv"],
        &["tools", "gw.toml", "-vvv"],
        &["tools", &url],
        &["call", &url, "t"],
        &["login", &url],
        &["logout", &url],
        &["run", "-p", "x", "--model", "openai-compatible/x"],
        &["run", "-p", "x", "--model", "ollama/x"],
        &["serve", &url, "--stdio"],
        &["exec", "--requirement", "numpy", "x.py"],
        &["image", "ls"],
        &["config", "set", "models.file", &url],
        &["models", "ls"],
    ] {
        for more in [&[][..], &["--json"]] {
            let finished = env.run(words.iter().chain(more));
            assert!(!format!("{} {}", finished.out, finished.err).contains(CANARY), "{finished}");
        }
    }
    // Its own value is data: a script reads it.
    assert_eq!(env.run(["config", "get", "targets.remote"]).ok().out, format!("{url}\n"));
}
