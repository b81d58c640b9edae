//! `toolpost exec`: each option does what it says.

use serde_json::{Value, json};
use toolpost_sandbox::{Host, Level};

use crate::support::{TestEnv, fits};

/// The outcome of a program.
#[track_caller]
fn outcome(env: &TestEnv, exit: i32, words: &[&str]) -> Value {
    let finished = env.run(["exec", "--json"].iter().chain(words)).exit(exit);
    let outcome = finished.json();
    fits("outcome", &outcome);
    outcome
}

fn said(outcome: &Value) -> &str {
    outcome["stdout"]["text"].as_str().unwrap_or_else(|| panic!("{outcome:#}"))
}

#[test]
pub(crate) fn code() {
    let env = TestEnv::new();
    env.write("sum.py", "print(6 * 7)");
    env.write("sum.sh", "echo $((6 * 7))");
    env.write("sum.js", "console.log(6 * 7)");
    for file in ["sum.py", "sum.sh", "sum.js"] {
        assert_eq!(env.run(["exec", file]).ok().out, "42\n", "{file}");
    }
    assert_eq!(env.run_with("print(6 * 7)", ["exec", "--lang", "python", "-"]).ok().out, "42\n");
}

#[test]
pub(crate) fn command() {
    let env = TestEnv::new();
    assert_eq!(env.run(["exec", "--", "echo", "-n", "--json", "$HOME", "--"]).ok().out, "--json $HOME --");
}

#[test]
pub(crate) fn lang() {
    let env = TestEnv::new();
    env.write("code.txt", "echo $((6 * 7))");
    assert_eq!(env.run(["exec", "--lang", "bash", "code.txt"]).ok().out, "42\n");
    // The option overrides the file name.
    env.write("code.py", "echo $((6 * 7))");
    assert_eq!(env.run(["exec", "--lang", "bash", "code.py"]).ok().out, "42\n");
}

#[test]
fn arguments_after_two_dashes_reach_the_code() {
    let env = TestEnv::new();
    env.write("a.py", "import sys; print(sys.argv[1:])");
    assert_eq!(env.run(["exec", "a.py", "--", "x", "--lang"]).ok().out, "['x', '--lang']\n");
    let piped = env.run_with("echo \"$1,$#\"", ["exec", "--lang", "bash", "-", "--", "x", "y"]);
    assert_eq!(piped.ok().out, "x,2\n");
    for option in ["--lang=python", "--requirement=x"] {
        let refused = env.run(["exec", option, "--", "true"]).exit(2);
        assert!(refused.err.contains(option.split_once('=').unwrap().0), "{refused}");
    }
}

#[test]
fn the_value_is_on_standard_output_after_what_was_printed() {
    let env = TestEnv::new();
    for (code, expected) in [
        ("print('out', end='')\n6 * 7", "out\n42\n"),
        ("'text'", "text\n"),
        ("{'a': [1, None]}", "{\"a\":[1,null]}\n"),
        ("print('out')\nNone", "out\n"),
        ("print('::result [1]')", "::result [1]\n"),
    ] {
        env.write("a.py", code);
        assert_eq!(env.run(["exec", "a.py"]).ok().out, expected, "{code}");
        let quiet = env.run(["exec", "-q", "a.py"]).ok();
        assert_eq!((quiet.out.as_str(), quiet.err.as_str()), (expected, ""), "{code}");
    }
    // From a data frame or an array.
    env.write("a.py", "{'type': 'DataFrame', 'shape': [1, 1], 'text': '   a\\n0  1', 'data': [[1]]}");
    assert_eq!(env.run(["exec", "a.py"]).ok().out, "   a\n0  1\n");
}

#[test]
fn packages_for_a_container_are_rejected_with_the_fix() {
    let env = TestEnv::new();
    env.write("a.py", "1");
    let refused = env.run(["exec", "--backend", "docker", "--requirement", "numpy", "a.py"]).exit(2);
    for words in
        ["is not available with `--backend docker`", "`toolpost image build data --docker`", "`--image NAME`"]
    {
        assert!(refused.err.contains(words), "{words}: {refused}");
    }
}

#[test]
fn a_full_standard_output_is_a_failure() {
    let env = TestEnv::new();
    env.write("a.py", "print('out')");
    env.write("b.py", "6 * 7");
    for file in ["a.py", "b.py"] {
        for format in ["text", "json", "jsonl"] {
            let finished = env.run_into("/dev/full", ["exec", "--format", format, file]);
            assert_ne!(finished.status.code(), Some(0), "{format} {finished}");
            assert!(finished.err.contains("standard output: No space left on device"), "{format} {finished}");
        }
    }
    // A broken pipe is not a failure.
    env.run_into_nothing(["exec", "a.py"]).ok();
}

#[test]
fn missing_modules_programs_and_hosts_are_named_with_the_option() {
    let env = TestEnv::new();
    env.write("helper.py", "x = 1");
    let code = [
        (
            "p.py",
            "raise ImportError(\"No module named 'pandas'\")",
            "hint: Add `--requirement pandas`, or use `toolpost image build data` and",
        ),
        ("y.py", "raise ImportError(\"No module named 'yaml'\")", "hint: Add `--requirement PyYAML`."),
        ("h.py", "import helper", "hint: Copy the module into the workspace: `--attach helper.py`."),
        ("l.js", "require('@acme/kit/x')", "hint: Add `--requirement @acme/kit`."),
        ("c.sh", "no-such-command", "for example `apt-get install no-such-command`"),
        (
            "n.py",
            "import urllib.request as r\nr.urlopen('http://name.invalid:8080/')",
            "allow this one with `--allow-host name.invalid:8080`",
        ),
        (
            "n.js",
            "fetch('http://name.invalid/').catch((e) => { console.error(e.cause); process.exitCode = 1 })",
            "allow this one with `--allow-host name.invalid`",
        ),
        ("n.sh", "echo > /dev/tcp/name.invalid/80", "allow this one with `--allow-host name.invalid`"),
        (
            "a.py",
            "import socket\nsocket.create_connection(('127.0.0.1', 8080))",
            "allow this one with `--allow-address 127.0.0.1:8080`",
        ),
    ];
    for (file, code, expected) in code {
        env.write(file, code);
        let finished = env.run(["exec", file]).exit(1);
        assert!(finished.err.contains(expected), "{file}: {finished}");
        let told = env.run(["exec", "--json", file]).exit(1).error()["hints"].to_string();
        assert!(told.contains(expected.trim_start_matches("hint: ")), "{file}: {told}");
    }
    // A command gets no packages: the hint has the line with its code.
    for (command, expected) in [
        (&["python3", "-c", "import nosuch"][..], "nosuch --lang python - <<< 'import nosuch'`."),
        (&["python3", "q.py", "a", "b c"], "nosuch q.py -- a 'b c'`."),
    ] {
        env.write("q.py", "import nosuch");
        let finished = env.run(["exec", "--attach", "q.py", "--"].iter().chain(command)).exit(1);
        let expected = format!("`toolpost exec --requirement {expected}");
        assert!(finished.err.contains(&expected), "{finished}");
    }
    // Code that continues without the module is reported too.
    env.write(
        "c.py",
        "import urllib.request as r\ntry: r.urlopen('http://name.invalid/')\nexcept OSError as e: print(e)",
    );
    let fine = env.run(["exec", "c.py"]).ok();
    assert!(fine.err.contains("hint: The sandbox blocks connections"), "{fine}");
    // With an allowed host, a client that ignores the proxy.
    let words = ["exec", "--allow-host", "example.org", "n.js"];
    let finished = env.run(words);
    if finished.status.code() == Some(5) {
        println!("SKIP n.js with a proxy: {}", finished.err);
        return;
    }
    assert!(finished.err.contains("`--allow-host name.invalid`"), "{finished}");
    assert!(finished.err.contains("must use the proxy of HTTPS_PROXY"), "{finished}");
}

#[test]
pub(crate) fn env() {
    let env = TestEnv::new().with("LEAK", "from outside");
    let finished = env.run([
        "exec",
        "--env",
        "GREETING=good morning",
        "--env",
        "EMPTY=",
        "--",
        "sh",
        "-c",
        "echo $GREETING,$EMPTY,$LEAK",
    ]);
    assert_eq!(finished.ok().out, "good morning,,\n");
}

#[test]
pub(crate) fn stdin() {
    let env = TestEnv::new();
    env.write("input.txt", "three words here");
    assert_eq!(env.run(["exec", "--stdin", "input.txt", "--", "wc", "-w"]).ok().out.trim(), "3");
    assert_eq!(env.run_with("not passed on", ["exec", "--", "wc", "-w"]).ok().out.trim(), "0");
    assert_eq!(env.run_with("passed on", ["exec", "--stdin", "-", "--", "wc", "-w"]).ok().out.trim(), "2");
}

#[test]
pub(crate) fn attach() {
    let env = TestEnv::new();
    env.write("deep/table.csv", "a,b\n");
    env.write("more.txt", "m");
    let words =
        ["exec", "--attach", "deep/table.csv", "--attach", "more.txt", "--", "cat", "table.csv", "more.txt"];
    assert_eq!(env.run(words).ok().out, "a,b\nm");
}

#[test]
pub(crate) fn workdir() {
    let env = TestEnv::new();
    env.write("mine/old.txt", "old");
    env.run(["exec", "--workdir", "mine", "--", "sh", "-c", "cat old.txt > new.txt"]).ok();
    assert_eq!(env.read("mine/new.txt"), "old");
}

#[test]
pub(crate) fn artifacts() {
    let env = TestEnv::new();
    let make = ["--", "sh", "-c", "mkdir out; echo made > out/new.txt"];
    let finished = env.run(["exec", "--artifacts", "kept"].iter().chain(&make)).ok();
    assert_eq!(env.read("kept/out/new.txt"), "made\n");
    assert!(finished.err.contains("made kept/out/new.txt (5 bytes)"), "{finished}");
    // Without the option they are only listed.
    let listed = env.run(["exec"].iter().chain(&make)).ok();
    assert!(listed.err.contains("made out/new.txt (5 bytes)"), "{listed}");
    assert!(!env.path("out").exists());
}

/// Each row is one run into the same directory: the written files, and the rejected ones.
#[test]
fn artifacts_that_host_programs_obey_are_rejected_and_listed() {
    let env = TestEnv::new();
    let config = format!(
        "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = \"touch {}; false\"\n",
        env.path("canary").display()
    );
    env.write("config.in", &config);
    for (written, rejected) in [
        (
            &[][..],
            &[".git/HEAD", ".git/config", ".git/hooks/post-checkout", ".git/objects/x", ".git/refs/x"][..],
        ),
        (&[], &[".ssh/authorized_keys", ".bashrc", ".claude/settings.json", ".mcp.json", "sub/.git"]),
        (&["good"], &[".vscode/tasks.json"]),
        (&["HEAD", "config", "objects/x"], &["refs/x"]),
        (&[], &["refs/heads/main", "commondir"]),
    ] {
        let script = written.iter().chain(rejected).fold(String::new(), |script, name| {
            let content = match name.rsplit('/').next().unwrap() {
                "HEAD" => "echo ref: refs/heads/main",
                "config" => "cat config.in",
                _ => "echo evil",
            };
            format!("{script}mkdir -p $(dirname {name}); {content} > {name}\n")
        });
        let words = ["exec", "--attach", "config.in", "--artifacts", "out", "--", "sh", "-c", &script];
        let finished = env.run(words);
        let exit = if written.is_empty() { 5 } else { 0 };
        assert_eq!(finished.status.code(), Some(exit), "{finished}");
        assert_eq!(finished.err.contains("all artifacts were rejected"), exit == 5, "{finished}");
        for name in written {
            assert!(finished.err.contains(&format!("made out/{name} ")), "{name}: {finished}");
        }
        for name in rejected {
            let reason = format!("`{name}` was not written: the path is protected");
            assert!(finished.err.contains(&reason), "{name}: {finished}");
            assert!(!env.path("out").join(name).exists(), "{name}");
        }
        // The host's side.
        for word in ["status", "log", "diff"] {
            #[expect(clippy::disallowed_methods, reason = "the host's side of the row")]
            let mut git = std::process::Command::new("git");
            match git.arg(word).current_dir(env.path("out")).output() {
                Ok(_) => assert!(!env.path("canary").exists(), "{word} after {written:?}"),
                Err(error) => println!("SKIP git {word}: {error}"),
            }
        }
    }
}

#[test]
fn a_name_that_is_not_utf_8_leaves_the_outcome_whole() {
    let env = TestEnv::new();
    let script = "echo said; echo made > new.txt; echo odd > \"$(printf 'a\\377b')\"";
    for format in ["json", "jsonl", "text"] {
        let words = ["exec", "--format", format, "--artifacts", format, "--", "sh", "-c", script];
        let finished = env.run(words).ok();
        assert!(finished.out.contains("said"), "{finished}");
        assert_eq!(env.read(&format!("{format}/new.txt")), "made\n");
        if format == "json" {
            assert_eq!(finished.json()["changes"]["new"], json!(["a\u{fffd}b", "new.txt"]), "{finished}");
            assert!(finished.json()["report"]["notes"].to_string().contains("not valid UTF-8"), "{finished}");
        }
    }
}

#[test]
fn an_outcome_is_printed_if_its_artifacts_cannot_be_stored() {
    let env = TestEnv::new();
    env.write("taken", "a file where a directory should be");
    let words =
        ["exec", "--json", "--artifacts", "taken", "--", "sh", "-c", "echo said; echo made > new.txt"];
    let finished = env.run(words);
    assert_ne!(finished.status.code(), Some(0), "{finished}");
    assert_eq!(said(&finished.json()), "said\n");
    assert!(finished.error()["message"].as_str().unwrap().contains("taken"), "{finished}");
}

#[test]
pub(crate) fn level() {
    let env = TestEnv::new();
    for level in [Level::Standard, Level::Strict] {
        let availability = Host::probe().availability(level).unwrap();
        if !availability.available {
            println!("SKIP level {level}: {:?}", availability.reason);
            continue;
        }
        let report = &outcome(&env, 0, &["--level", level.name(), "--", "true"])["report"];
        assert_eq!(
            (&report["requested"], &report["effective"]),
            (&json!(level.name()), &json!(level.name()))
        );
    }
    let best = Host::probe().best().unwrap();
    let report = &outcome(&env, 0, &["--", "true"])["report"];
    assert_eq!((&report["requested"], &report["effective"]), (&Value::Null, &json!(best.name())));
}

#[test]
pub(crate) fn allow_degraded() {
    // A sandbox has no nested namespaces, so it acts as a host without level `strict`.
    let env = TestEnv::new();
    let inner = env.path("toolpost");
    std::fs::copy(env!("CARGO_BIN_EXE_toolpost"), &inner).unwrap();
    let nested = |words: &[&str]| {
        let outer =
            ["exec", "--json", "--memory", "1G", "--workdir", ".", "--", "./toolpost", "--json", "exec"];
        let finished = env.run(outer.iter().chain(words).chain(&["--", "true"]));
        let outcome = finished.json();
        (outcome["exit_code"].as_i64(), said(&outcome).to_owned(), outcome)
    };
    let (refused, _, whole) = nested(&["--level", "strict"]);
    if refused == Some(0) {
        println!("SKIP allow_degraded: a sandbox within a sandbox is as strict here");
        return;
    }
    assert_eq!(refused, Some(5), "{whole:#}");
    if nested(&["--level", "standard"]).0 != Some(0) {
        println!("SKIP allow_degraded: within a sandbox there is no lower level either");
        return;
    }
    let (lowered, text, whole) = nested(&["--level", "strict", "--allow-degraded"]);
    assert_eq!(lowered, Some(0), "{whole:#}");
    let report = &serde_json::from_str::<Value>(&text).unwrap()["report"];
    assert_eq!((&report["degraded"], &report["effective"]), (&json!(true), &json!("standard")));
}

#[test]
pub(crate) fn timeout() {
    let env = TestEnv::new();
    let finished = env.run(["exec", "--json", "--timeout", "300ms", "--", "sleep", "100"]).exit(4);
    assert_eq!(finished.json()["verdict"]["kind"], "timeout");
    assert!(finished.error()["hints"][0].as_str().unwrap().contains("--timeout"), "{finished}");
}

#[test]
pub(crate) fn memory() {
    let env = TestEnv::new();
    env.write("hungry.py", "x = bytearray(200 << 20); print(len(x))");
    let hungry = ["hungry.py"];
    let outcome_of = |words: &[&str]| {
        let finished = env.run(["exec", "--json"].iter().chain(words).chain(&hungry));
        (finished.status.code(), finished.json())
    };
    let (status, enough) = outcome_of(&["--memory", "512M"]);
    assert_eq!(status, Some(0), "{enough}");
    let (status, little) = outcome_of(&["--memory", "64M"]);
    // Without cgroups, the program's allocation fails.
    let told = little["verdict"]["kind"] == "memory" && status == Some(6);
    let own = little["stderr"].to_string().contains("MemoryError") && status == Some(1);
    assert!(told || own, "{status:?}: {little}");
}

#[test]
pub(crate) fn cpu() {
    let env = TestEnv::new();
    env.write("busy.py", "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass");
    let busy = ["busy.py"];
    let host = env.run(["doctor", "--json"]).json();
    let groups = host["host"]["capabilities"].as_array().unwrap().iter();
    let group = groups.clone().find(|capability| capability["name"] == "cgroup_cpu").unwrap();
    if group["available"] != true {
        println!("SKIP cpu: this host limits no processor time: {}", group["reason"]);
        return;
    }
    let limited = outcome(&env, 0, &[&["--cpu", "0.2"], &busy[..]].concat());
    let layers = |outcome: &Value| outcome["report"]["layers"].to_string();
    assert!(layers(&limited).contains("cpu_quota"), "{limited}");
    assert!(!layers(&outcome(&env, 0, &["--", "true"])).contains("cpu_quota"));
    let time = |what: &str| limited["usage"][what].as_f64().unwrap();
    assert!(time("user_ms") + time("system_ms") < 0.6 * time("wall_ms"), "{limited}");
}

#[test]
pub(crate) fn pids() {
    let env = TestEnv::new();
    let many = ["--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.3 & done; wait"];
    let few = env.run(["exec", "--json", "--pids", "4"].iter().chain(&many));
    assert_ne!(few.status.code(), Some(0), "{few}");
    env.run(["exec", "--json", "--pids", "40"].iter().chain(&many)).ok();
}

#[test]
pub(crate) fn max_output() {
    let env = TestEnv::new();
    let kept = |words: &[&str], output: &str| {
        let print = "seq 100000; seq 100000 >&2";
        let finished = env.run(["exec", "--json"].iter().chain(words).chain(&["--", "sh", "-c", print]));
        finished.json()[output]["text"].as_str().unwrap().len()
    };
    for output in ["stdout", "stderr"] {
        let (few, all) = (kept(&["--max-output", "2K"], output), kept(&[], output));
        assert!((1_500..3_000).contains(&few) && all > 500_000, "{output}: {few} and {all} bytes");
    }
}

#[test]
pub(crate) fn cpu_time() {
    let env = TestEnv::new();
    let words = ["exec", "--json", "--cpu-time", "300ms", "--", "sh", "-c", "while :; do :; done"];
    let finished = env.run(words).exit(6);
    assert_eq!(finished.json()["verdict"]["kind"], "cpu", "{finished}");
    assert!(finished.error()["hints"][0].as_str().unwrap().contains("--cpu-time"), "{finished}");
}

#[test]
pub(crate) fn idle() {
    let env = TestEnv::new();
    let finished = env.run(["exec", "--json", "--idle", "300ms", "--", "sleep", "100"]).exit(6);
    assert_eq!(finished.json()["verdict"]["kind"], "idle", "{finished}");
    assert!(finished.error()["hints"][0].as_str().unwrap().contains("--idle"), "{finished}");
}

#[test]
pub(crate) fn max_total_output() {
    let env = TestEnv::new();
    let words =
        ["exec", "--json", "--max-total-output", "64K", "--", "sh", "-c", "while :; do echo more; done"];
    let finished = env.run(words).exit(6);
    assert_eq!(finished.json()["verdict"]["kind"], "output", "{finished}");
    assert!(finished.error()["hints"][0].as_str().unwrap().contains("--max-total-output"), "{finished}");
}

#[test]
pub(crate) fn max_file() {
    let env = TestEnv::new();
    let write = ["--", "sh", "-c", "head -c 200000 /dev/zero > big && echo written"];
    let small = env.run(["exec", "--json", "--max-file", "100K"].iter().chain(&write));
    assert!(!said(&small.json()).contains("written"), "{small}");
    assert!(said(&outcome(&env, 0, &[&["--max-file", "300K"], &write[..]].concat())).contains("written"));
}

/// A server that answers each request with the same text; returns its address.
fn server() -> std::net::SocketAddr {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
        }
    });
    address
}

/// A program that sends a request to a local server, and the server's address.
fn asking(env: &TestEnv) -> String {
    let address = server().to_string();
    env.write(
        "ask.py",
        format!(
            "import urllib.request as r\nprint(r.urlopen('http://{address}/', timeout=5).read().decode())"
        ),
    );
    address
}

#[test]
pub(crate) fn allow_address() {
    let env = TestEnv::new();
    let address = asking(&env);
    let answered = env.run(["exec", "--allow-address", &address, "ask.py"]);
    if answered.status.code() == Some(5) {
        println!("SKIP allow_address: {}", answered.err);
        return;
    }
    assert_eq!(answered.ok().out, "hello\n");
    // Without the option there is no network.
    env.run(["exec", "ask.py"]).exit(1);
}

#[test]
pub(crate) fn allow_host() {
    let env = TestEnv::new();
    let address = asking(&env);
    // This name resolves to this machine: the host rule allows it, the address rule does not.
    let port = address.rsplit(':').next().unwrap();
    let named = |host: &str| {
        let allowed = format!("localhost:{port}");
        let code = format!("import urllib.request as r\nr.urlopen('http://{host}:{port}/', timeout=5)");
        env.write("named.py", code);
        env.run(["exec", "--json", "--allow-host", &allowed, "named.py"]).json()["report"]["egress"].take()
    };
    let allowed = named("localhost");
    if allowed.is_null() {
        println!("SKIP allow_host: this host has no egress for a sandbox");
        return;
    }
    let rule = |log: &Value| log["events"][0]["refused"]["rule"].clone();
    assert_ne!(rule(&allowed), "host_not_allowed", "{allowed:#}");
    assert_eq!(rule(&named("example.org")), "host_not_allowed");
    // A blocked request names the option that allows it.
    let refused = env.run(["exec", "--allow-host", "example.org", "ask.py"]).exit(1);
    assert!(refused.err.contains(&format!("Allow it: `--allow-address {address}`.")), "{refused}");
    let wrong = env.run(["exec", "--json", "--allow-host", "http://a b/", "ask.py"]);
    assert_ne!(wrong.status.code(), Some(0));
    assert!(wrong.error()["message"].as_str().unwrap().contains("host"), "{wrong}");
}

#[test]
pub(crate) fn egress_policy() {
    let env = TestEnv::new();
    let address = asking(&env);
    env.write("policy.toml", format!("addresses = [\"{address}\"]\n"));
    let answered = env.run(["exec", "--egress-policy", "policy.toml", "ask.py"]);
    if answered.status.code() == Some(5) {
        println!("SKIP egress_policy: {}", answered.err);
        return;
    }
    assert_eq!(answered.ok().out, "hello\n");
    // Its limits apply, and options add to it.
    let code = format!(
        "import urllib.request as r\nfor _ in range(2): print(r.urlopen('http://{address}/', timeout=5).status)"
    );
    env.write("twice.py", code);
    env.write("policy.json", r#"{"limits": {"requests": 1}}"#);
    let words = ["exec", "--egress-policy", "policy.json", "--allow-address", &address, "twice.py"];
    let once = env.run(words).exit(1);
    assert!(once.out == "200\n" && once.err.contains("429"), "{once}");
    // Only the environment has the value of a secret.
    env.write("secret.toml", "[[secrets]]\nvariable = \"API_TOKEN\"\nhosts = [\"api.example.org\"]\n");
    let secret = ["exec", "--egress-policy", "secret.toml", "--", "sh", "-c", "echo $API_TOKEN"];
    let missing = env.run(secret).exit(2);
    assert!(missing.err.contains("`API_TOKEN`"), "{missing}");
    let shown = TestEnv::new().with("API_TOKEN", "a-secret-value");
    shown.write("secret.toml", "[[secrets]]\nvariable = \"API_TOKEN\"\nhosts = [\"api.example.org\"]\n");
    let shown = shown.run(secret).ok();
    assert!(shown.out.len() > 8 && !shown.out.contains("a-secret-value"), "{shown}");
}

#[test]
fn an_invalid_policy_names_its_file_key_and_fix() {
    let env = TestEnv::new();
    for (name, content, said) in [
        ("a.toml", "alow = [\"x.org\"]\n", &["`a.toml`", "`alow`", "unknown field", "`allow`"][..]),
        ("b.json", r#"{"limits": {"requests": "x"}}"#, &["`b.json`", "`limits.requests`", "\"x\""]),
        ("c.toml", "allow = [\n", &["`c.toml`", "invalid TOML"]),
        ("d.json", "{", &["`d.json`", "invalid JSON"]),
        ("e.yaml", "", &["`e.yaml`", "`.toml` or `.json`"]),
        ("f.toml", "[limits]\nrequests = 0\n", &["egress.requests"]),
    ] {
        env.write(name, content);
        let wrong = env.run(["exec", "--egress-policy", name, "--", "true"]).exit(2);
        assert!(said.iter().all(|part| wrong.err.contains(part)), "{name}: {wrong}");
    }
    let wrong = env.run(["exec", "--egress-policy", "nothing.toml", "--", "true"]).exit(2);
    assert!(wrong.err.contains("`nothing.toml`"), "{wrong}");
}

#[test]
fn compiled_programs_are_cached() {
    let env = TestEnv::new();
    env.write("sum.c", "#include <stdio.h>\nint main(void) { puts(\"42\"); return 0; }");
    let first = env.run(["exec", "sum.c"]);
    if first.status.code() != Some(0) {
        println!("SKIP builds: {}", first.err);
        return;
    }
    assert_eq!(first.out, "42\n");
    let kept = std::fs::read_dir(env.path("../home/.cache/toolpost/builds")).unwrap().count();
    let second = env.run(["exec", "sum.c"]).ok();
    assert_eq!((second.out.as_str(), kept > 0), ("42\n", true));
    assert!(second.err.contains("from the cache"), "{second}");
}

#[test]
fn output_is_streamed_by_lines() {
    let env = TestEnv::new();
    let script =
        "echo one; printf '\\303'; sleep 0.2; printf '\\251\\n'; echo oops >&2; echo kept > new.txt; exit 3";
    let words = ["exec", "--format", "jsonl", "--artifacts", "out", "--", "sh", "-c", script];
    let finished = env.run(words).exit(1);
    let lines = finished.lines();
    for line in &lines {
        fits("exec-event", line);
    }
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 2], kinds[kinds.len() - 1]), ("start", "artifact", "end"));
    assert_eq!(lines[0]["command"][0], "sh");
    let text = |kind: &str| -> String {
        lines.iter().filter(|line| line["type"] == kind).filter_map(|line| line["text"].as_str()).collect()
    };
    // A character in two pieces is printed once.
    assert_eq!((text("stdout"), text("stderr")), ("one\né\n".to_owned(), "oops\n".to_owned()));
    let artifact = &lines[lines.len() - 2];
    assert_eq!((&artifact["path"], &artifact["file"]), (&json!("new.txt"), &json!("out/new.txt")));
    let outcome = &lines[lines.len() - 1]["outcome"];
    fits("outcome", outcome);
    assert_eq!(outcome["exit_code"], 3);
}

#[test]
fn a_line_is_printed_before_the_program_ends() {
    use std::io::BufRead as _;
    let env = TestEnv::new();
    let (reader, running) =
        env.start_unread(["exec", "--format", "jsonl", "--", "sh", "-c", "echo early; sleep 100"]);
    let mut lines = std::io::BufReader::new(reader).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains(r#""text":"early"#)));
    // The program is stopped; it would not end in time.
    running.signal(rustix::process::Signal::INT);
    assert!(lines.any(|line| line.contains("cancelled")));
    running.finish().exit(130);
}

#[test]
fn a_failed_program_is_exit_code_1_with_its_status_in_the_json() {
    let env = TestEnv::new();
    assert_eq!(outcome(&env, 1, &["--", "sh", "-c", "exit 9"])["exit_code"], 9);
    let finished = env.run(["exec", "--", "sh", "-c", "echo out; echo err >&2; exit 9"]).exit(1);
    assert_eq!(finished.out, "out\n");
    assert!(finished.err.contains("err\n") && finished.err.contains("failed level "), "{finished}");
    assert!(finished.err.ends_with("error: the program ended with exit status 9\n"), "{finished}");
    let told = env.run(["exec", "--json", "--", "sh", "-c", "exit 9"]).exit(1);
    assert_eq!(told.error()["code"], "EXIT");
}

#[test]
fn the_summary_has_the_attested_layers() {
    let env = TestEnv::new();
    let finished = env.run(["exec", "--", "true"]).ok();
    assert!(finished.err.contains("ok level ") && finished.err.contains(" layers"), "{finished}");
    assert_eq!(env.run(["exec", "-q", "--", "true"]).ok().err, "");
}
