//! Code in a sandbox changes no code that trusted programs load.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use toolpost_sandbox::{Host, Level};

use crate::support::{Finished, TestEnv};

/// A server whose tool returns a variable and a word of its helper.
const SERVER: &str = r#"import json, os, sys, helper
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    result = {"content": [{"type": "text", "text": helper.word() + str(os.environ.get("KEY"))}]}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;
const HELPER: &str = "def word(): return 'honest '\n";
const KEY: &str = "secrets = [{ name = \"KEY\", raw = true }]";
const REASON: &str = "a trusted target loads code from its directory";

/// A trusted project with a target and these grants; `None` without private layers.
fn project(target: &str, grants: &str) -> Option<TestEnv> {
    if !Host::probe().availability(Level::Strict).is_some_and(|entry| entry.available) {
        println!("SKIP trusted_code: this host gives no namespaces, and so no private layer");
        return None;
    }
    let env = TestEnv::new().with("KEY", "hunter2hunter2");
    for (name, content) in
        [("server.py", SERVER), ("helper.py", HELPER), ("docs/a.md", "a"), ("data.csv", "1")]
    {
        env.write(name, content);
    }
    env.write("toolpost.toml", format!("[targets.x]\ntarget = \"{target}\"\n[targets.x.grants]\n{grants}\n"));
    env.run(["trust", "."]).ok();
    Some(env)
}

/// Runs a shell script in the working directory.
fn sh(env: &TestEnv, script: &str) -> Finished {
    env.run(["exec", "--workdir", ".", "--", "sh", "-c", script])
}

#[test]
fn a_planted_module_is_denied_and_the_target_stays_usable() {
    for (target, grants) in [
        ("stdio:python3 server.py", KEY),
        ("stdio:python3 server.py", "readable = [\"/etc/hostname\"]"),
        ("stdio:python3 -m server", KEY),
        ("stdio:env python3 server.py", KEY),
    ] {
        let Some(env) = project(target, grants) else { return };
        let call = || env.run(["call", "x", "look", "--yes"]);
        assert!(call().ok().out.contains("honest"), "{target}");
        for (script, named) in [
            ("echo 'def word(): return \"evil \"' > helper.py", "helper.py"),
            ("echo 'print(1)' > json.py", "json.py"),
            (
                "mkdir -p __pycache__; echo x > __pycache__/helper.cpython-313.pyc",
                "__pycache__/helper.cpython-313.pyc",
            ),
            ("mkdir evil; echo > evil/notes.md; ln -s evil helper", "helper"),
            ("rm helper.py", "helper.py"),
        ] {
            let denied = sh(&env, script);
            assert!(
                denied.err.contains(&format!("not applied: {named} (protected: {REASON})")),
                "{target}: {denied}"
            );
            assert!(!denied.err.contains("--allow-protected"), "{denied}");
            let allowed = ["exec", "--workdir", ".", "--allow-protected", ".", "--", "sh", "-c", script];
            assert!(env.run(allowed).err.contains(&format!("not applied: {named}")), "{target}: {named}");
            assert!(call().ok().out.contains("honest"), "{target}: {script}");
        }
        // Other files of the project change.
        sh(&env, "echo b > docs/a.md; echo 2 > data.csv; mkdir web; echo > web/app.js; rm -r evil").ok();
        assert_eq!((env.read("docs/a.md"), env.read("data.csv")), ("b\n".to_owned(), "2\n".to_owned()));
        assert!(env.path("web/app.js").exists() && !env.path("evil").exists());
        // Without trust, nothing is protected but the trusted file itself.
        env.run(["trust", "--remove", "toolpost.toml"]).ok();
        sh(&env, "echo 'def word(): return \"evil \"' > helper.py").ok();
        assert!(env.read("helper.py").contains("evil"), "{target}");
    }
}

#[test]
fn host_edits_of_a_program_revoke_trust() {
    let Some(env) = project("stdio:python3 server.py", KEY) else { return };
    env.run(["call", "x", "look", "--yes"]).ok();
    env.write("server.py", format!("{SERVER}\n"));
    env.run(["call", "x", "look", "--yes"]).exit(2);
    env.run(["trust", "."]).ok();
    env.run(["call", "x", "look", "--yes"]).ok();
}

#[test]
fn each_program_protects_what_it_loads() {
    struct Row {
        /// The target, or a described program.
        target: &'static str,
        files: &'static [(&'static str, &'static str)],
        denied: &'static [&'static str],
        applied: &'static [&'static str],
    }
    let row = |target, files, denied, applied| Row { target, files, denied, applied };
    let rows = [
        row(
            "stdio:python3 src/main.py",
            &[("src/main.py", "")],
            &["src/a.py", "src/a/b.so"],
            &["a.py", "src/a.js"],
        ),
        row(
            "stdio:.venv/bin/python src/main.py",
            &[("src/main.py", ""), (".venv/pyvenv.cfg", ""), (".venv/bin/python", "\x7fELF")],
            &["src/a.py", ".venv/x", ".venv/lib/python3.12/site-packages/a.pth"],
            &["a.py", "venv/x"],
        ),
        row(
            "stdio:.venv/bin/tool",
            &[
                (".venv/pyvenv.cfg", ""),
                (".venv/bin/tool", "#!/usr/bin/python3\n"),
                (".venv/lib/python3.12/site-packages/own.pth", "../../../../editable\n"),
                ("editable/one/__init__.py", ""),
            ],
            &["editable/one/a.py"],
            &["other/a.py"],
        ),
        row(
            "stdio:env PYTHONPATH=pkgs python3 src/main.py",
            &[("src/main.py", ""), ("pkgs/one.py", "")],
            &["src/a.py", "pkgs/a.py"],
            &["a.py", "pkgs/a.md"],
        ),
        row(
            "stdio:node app/dist/main.js",
            &[("app/dist/main.js", ""), ("app/package.json", "{}")],
            &[
                "app/dist/a.js",
                "app/lib/a",
                "app/package.json",
                "app/node_modules/a/x.md",
                "node_modules/a/index.js",
            ],
            &["a.js", "app/notes.md", "app/a.py"],
        ),
        row("stdio:ruby bin/main.rb", &[("bin/main.rb", "")], &["bin/a.rb", "lib/a.rb", "a.rb"], &["a.py"]),
        row("stdio:perl bin/main.pl", &[("bin/main.pl", "")], &["bin/A.pm", "lib/A.pm", "A.pmc"], &["a.py"]),
        row("stdio:php srv/main.php", &[("srv/main.php", "")], &["srv/a.php", "a.inc"], &["a.py"]),
        row(
            "stdio:java -cp classes Main",
            &[("classes/Main.class", "")],
            &["classes/A.class", "x/B.jar"],
            &["a.py"],
        ),
        row("stdio:bash srv/run.sh", &[("srv/run.sh", "")], &["srv/lib.sh", "a.py", "a"], &["a.md", "a.csv"]),
        row(
            "stdio:bin/server",
            &[("bin/server", "\x7fELF")],
            &["bin/liba.so.1", "lib/liba.so"],
            &["a.so", "bin/a.md"],
        ),
        row("./run", &[("run", "#!/usr/bin/env python3\n")], &["run", "a.py"], &["a.js"]),
        row(
            "./t.toml",
            &[("t.toml", DESCRIPTION), ("srv/run", "#!/bin/false\n")],
            &["srv/run", "srv/a"],
            &["a.py"],
        ),
        row(
            "./agent.toml",
            &[("agent.toml", AGENT), ("tools/tool.py", "")],
            &["tools/a.py", "tools/tool.py"],
            &["a.py", "tools/a.js"],
        ),
        row("stdio:npm start", &[("package.json", "{}")], &["a.js", "a.py"], &["a.md"]),
        row("stdio:uv run main.py", &[("main.py", "")], &["a.py", ".venv/pyvenv.cfg"], &["a.js"]),
        row("stdio:npx -y server .", &[], &[], &["a.js", "a.py", "node_modules/x.js"]),
        row(
            "stdio:python3 current/main.py",
            &[("releases/1/main.py", ""), ("releases/1/shared.py", "")],
            &["releases/1/a.py"],
            &["releases/2/a.py"],
        ),
    ];
    for Row { target, files, denied, applied } in rows {
        let Some(env) = project("stdio:true", "") else { return };
        for (name, content) in files {
            env.write(name, content);
            std::fs::set_permissions(env.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        std::fs::create_dir_all(env.path("releases")).unwrap();
        std::os::unix::fs::symlink("releases/1", env.path("current")).unwrap();
        let settings = if Path::new(target).extension().is_some_and(|kind| kind == "toml") {
            format!("tools = [\"{target}\"]\n")
        } else {
            format!("[targets.x]\ntarget = \"{target}\"\ngrants = {{ allow_hosts = [\"a.example\"] }}\n")
        };
        env.write("toolpost.toml", settings);
        env.run(["trust", ".", "toolpost.toml"]).ok();
        let script: Vec<String> = denied
            .iter()
            .chain(applied)
            .map(|path| format!("mkdir -p $(dirname {path}); rm -f {path}; echo changed > {path}\n"))
            .collect();
        let ran = sh(&env, &script.concat());
        for path in denied {
            assert!(!env.path(path).exists() || env.read(path) != "changed\n", "{target}: {path}: {ran}");
        }
        for path in applied {
            assert!(env.path(path).exists() && env.read(path) == "changed\n", "{target}: {path}: {ran}");
        }
        if target.contains("current") {
            sh(&env, "mkdir -p evil; rm current; ln -s evil current");
            assert_eq!(std::fs::read_link(env.path("current")).unwrap(), Path::new("releases/1"));
        }
    }
}

const DESCRIPTION: &str = "kind = \"command\"\nv = 1\nprogram = \"srv/run\"\ngrants = { readable = [\"/etc\"] }\n\
                           [[tool]]\nname = \"t\"\ndescription = \"T.\"\n";
const AGENT: &str =
    "kind = \"agent\"\nv = 1\nname = \"a\"\ndescription = \"A.\"\ntools = [\"./tools/tool.py\"]\n";

#[test]
fn programs_without_grants_protect_their_modules_alone() {
    for (target, denied, applied) in [
        ("stdio:python3 src/main.py", vec!["src/a.py", "src/main.py"], vec!["a.py", "src/a.sh"]),
        ("stdio:python3 -m main", vec![], vec!["a.py"]),
        ("stdio:bash src/run.sh", vec!["src/run.sh"], vec!["src/a.py", "a.sh"]),
        ("stdio:npm test", vec![], vec!["a.js", "package.json"]),
    ] {
        let Some(env) = project(target, "") else { return };
        env.write("src/main.py", "");
        env.write("src/run.sh", "");
        env.run(["trust", "."]).ok();
        for (path, is_denied) in
            denied.iter().map(|path| (path, true)).chain(applied.iter().map(|path| (path, false)))
        {
            let ran = sh(&env, &format!("echo changed > {path}"));
            let is_changed = env.path(path).exists() && env.read(path) == "changed\n";
            assert_eq!(is_changed, !is_denied, "{target}: {path}: {ran}");
        }
    }
}

#[test]
fn file_tools_deny_code_of_trusted_programs() {
    let Some(env) = project("stdio:python3 server.py", KEY) else { return };
    std::fs::hard_link(env.path("helper.py"), env.path("notes.txt")).unwrap();
    let write = |path: &str, more: &[&str]| {
        let path = format!("path={path}");
        let words =
            ["call", "write_file", &path, "content=x", "create_directories=true", "create_backup=false"];
        env.run(words.iter().chain(more))
    };
    for path in ["helper.py", "HELPER.py", "json.py", "docs/x.py", "a/__pycache__/b.pyc"] {
        for more in [&[][..], &["--allow-protected", "."]] {
            let denied = write(path, more).exit(5);
            assert!(denied.err.contains(&format!("`{path}` cannot be written: {REASON}")), "{denied}");
            assert!(denied.err.contains("trust the target again"), "{denied}");
        }
    }
    // Another name of the module is replaced, not the module.
    write("notes.txt", &[]).ok();
    assert_eq!(env.read("helper.py"), HELPER);
    // From a directory beneath.
    write("x.py", &["--workdir", "docs"]).exit(5);
    for path in ["docs/a.md", "data.csv", "web/app.js", "other.txt"] {
        write(path, &[]).ok();
    }
    env.run(["trust", "--remove", "toolpost.toml"]).ok();
    write("helper.py", &[]).ok();
}

#[test]
fn a_live_directory_with_code_of_a_trusted_program_is_rejected() {
    let Some(env) = project("stdio:python3 server.py", KEY) else { return };
    std::fs::create_dir(env.path("out")).unwrap();
    env.write("pkg/__init__.py", "");
    let live = |directory: &str| env.run(["exec", "--workdir", directory, "--live", "--", "true"]);
    for (directory, reason) in
        [(".", "server.py` in it decides what may run"), ("pkg", "a trusted target loads code from")]
    {
        let rejected = live(directory).exit(2);
        assert!(rejected.err.contains(reason), "{directory}: {rejected}");
    }
    live("out").ok();
    env.run(["trust", "--remove", "toolpost.toml"]).ok();
    live("pkg").ok();
}
