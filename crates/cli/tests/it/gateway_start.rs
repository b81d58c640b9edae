//! Upstreams that start slowly, never, or fail: what each command waits for, prints and returns.

use std::io::{BufRead as _, BufReader, Write as _};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::gateway::executable;
use crate::launchers::with_registry;
use crate::serve::{free, get, post, tools};
use crate::support::{Finished, Running, TestEnv, eventually};

/// A server with one tool: `SERVER.py HOW TOOL`. It appends to `starts-TOOL`.
const SERVER: &str = r#"
import json, sys, time
how, tool = sys.argv[1:3]
if how == "counted":
    with open("starts/" + tool, "a") as starts:
        starts.write("x")
    how = "slow=4"
if how == "crash":
    sys.exit("no index of " + tool)
if how == "silent":
    print("loading the index of " + tool, file=sys.stderr, flush=True)
    time.sleep(600)
if how.startswith("slow="):
    time.sleep(float(how[5:]))
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    if message["method"] == "tools/list" and how == "listless":
        time.sleep(600)
    if message["method"] == "server/discover" and how == "garbage":
        print("Welcome to " + tool, flush=True)
        sys.exit(3)
    answers = {
        "initialize": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}},
        "tools/list": {"tools": [{"name": tool, "description": "Do " + tool + ".", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "done by " + tool}]},
    }
    result = answers.get(message["method"])
    answer = {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"#;

/// A tool program that is slow to list its tool.
const PROGRAM: &str = r#"#!/usr/bin/env python3
import json, sys, time
if "--discover" in sys.argv:
    time.sleep(6)
    tool = {"name": "work", "summary": "Do work.", "streaming": False, "session_mode": False, "schema": {"type": "object"}}
    print(json.dumps({"name": "p", "version": "1", "protocol": "0.1", "tools": [tool], "resources": [], "prompts": []}))
else:
    print(json.dumps({"status": "success", "result": {"text": "done by work"}}))
"#;

/// A trusted gateway of these upstreams: name, `HOW` of the server or a whole target, and further keys.
fn world(upstreams: &[(&str, &str, &str)]) -> TestEnv {
    let env = TestEnv::new().leaving_files();
    env.write("server.py", SERVER);
    if !upstreams.is_empty() {
        write(&env, upstreams);
    }
    env
}

fn write(env: &TestEnv, upstreams: &[(&str, &str, &str)]) {
    let entry = |(name, how, keys): &(&str, &str, &str)| {
        let target = match *how {
            target if target.contains(['/', ':']) => target.to_owned(),
            how => format!("stdio:python3 server.py {how} {name}"),
        };
        format!("[[upstreams]]\nname = \"{name}\"\ntarget = \"{target}\"\n{keys}\n")
    };
    let entries: String = upstreams.iter().map(entry).collect();
    env.write("g.toml", format!("kind = \"gateway\"\n{entries}"));
    env.run(["trust", "g.toml"]).ok();
}

/// The names of the printed tools.
fn names(finished: &Finished) -> Vec<&str> {
    finished.out.lines().filter_map(|line| line.split(' ').next()).collect()
}

/// The limit of upstreams that never answer.
const SHORT: &str = "start_timeout = \"3s\"";

#[test]
fn tools_waits_for_upstreams_that_are_all_slow() {
    let env = world(&[("a", "slow=5", ""), ("b", "slow=4.5", "lazy = true"), ("c", "./program", "")]);
    executable(&env, "program", PROGRAM);
    env.run(["trust", "g.toml"]).ok();
    let listed = env.run(["tools", "g.toml"]).ok();
    assert_eq!(names(&listed), ["a__a", "b__b", "c__work"]);
    assert_eq!(listed.err, "", "{listed}");
    let called = env.run(["call", "g.toml", "b__b", "--quiet"]).ok();
    assert_eq!(called.out, "done by b\n");
}

#[test]
fn tools_prints_the_rest_and_the_words_of_each_missing_upstream() {
    let env = world(&[
        ("fine", "slow=4", ""),
        ("dead", "crash", ""),
        ("silent", "silent", SHORT),
        ("listless", "listless", SHORT),
        ("garbage", "garbage", ""),
        ("gone", "stdio:./no-such-server", ""),
        ("closed", "http://127.0.0.1:9/mcp", ""),
    ]);
    let words = [
        ("dead", "no index of dead"),
        ("silent", "did not answer `initialize` within 3.0 s"),
        ("silent", "loading the index of silent"),
        ("listless", "listing the server `listless` timed out after 3.0 s"),
        ("garbage", "exited with status 3"),
        ("gone", "no-such-server"),
        ("closed", "cannot connect to the server `closed`"),
    ];
    let listed = env.run(["tools", "g.toml"]).exit(4);
    assert_eq!(names(&listed), ["fine__fine"], "{listed}");
    for (name, text) in words {
        assert!(listed.err.contains(text), "{text}: {listed}");
        assert!(listed.err.contains(&format!("the upstream `{name}` is unavailable: ")), "{name}: {listed}");
    }
    assert!(!listed.err.contains("`python3`") && !listed.err.contains("has not answered"), "{listed}");
    let listed = env.run(["tools", "g.toml", "--json"]).exit(4);
    assert_eq!(listed.json()["tools"].as_array().unwrap().len(), 1, "{listed}");
    let error = listed.error();
    assert_eq!((&error["code"], error["causes"].as_array().unwrap().len()), (&json!("DEPENDENCY"), 6));
    write(&env, &[("dead", "crash", "")]);
    let listed = env.run(["tools", "g.toml"]).exit(4);
    assert!(listed.out.is_empty() && listed.err.contains("no index of dead"), "{listed}");
}

#[test]
fn a_call_needs_only_the_upstream_of_its_tool() {
    let own = "namespace = false";
    let env = world(&[
        ("fine", "plain", ""),
        ("own", "slow=1", own),
        ("dead", "crash", ""),
        ("silent", "silent", "namespace = false\nstart_timeout = \"4m\""),
        ("quiet", "silent", "start_timeout = \"4m\""),
    ]);
    let begun = Instant::now();
    for (tool, text) in [("fine__fine", "done by fine"), ("own", "done by own")] {
        let called = env.run(["call", "g.toml", tool, "--quiet"]).ok();
        assert_eq!((called.out.trim(), called.err.as_str()), (text, ""), "{called}");
        let shown = env.run(["tools", "g.toml", "--manifest", tool]).ok();
        assert!(shown.out.contains(tool), "{shown}");
    }
    assert!(begun.elapsed() < Duration::from_mins(2), "no call waits for silent upstreams");
    write(&env, &[("fine", "plain", ""), ("dead", "crash", ""), ("quiet", "silent", SHORT)]);
    for (words, name) in [
        (&["call", "g.toml", "dead__dead"][..], "dead"),
        (&["call", "g.toml", "dead__other", "a=1"], "dead"),
        (&["call", "g.toml", "quiet__quiet"], "quiet"),
        (&["tools", "g.toml", "--manifest", "dead__dead"], "dead"),
    ] {
        let failed = env.run(words).exit(4);
        assert!(failed.err.contains(&format!("the upstream `{name}` is unavailable: ")), "{failed}");
    }
    // The upstreams of these tools are known.
    for tool in ["fine__nothing", "nothing"] {
        let failed = env.run(["call", "g.toml", tool, "--json"]).exit(1).error();
        assert_eq!(failed["code"], "NOT_FOUND", "{tool}");
    }
    // Without a name, the only tool that is left may be another one.
    let failed = env.run(["call", "g.toml", "a=1"]).exit(4);
    assert!(failed.err.contains("`dead`") && failed.err.contains("`quiet`"), "{failed}");
}

#[test]
fn agents_need_their_required_upstreams() {
    let env = world(&[]);
    env.write("say.yaml", "turns:\n  - calls: [{ tool: fine__fine, args: {} }]\n  - text: answered\n");
    let run = ["run", "-p", "x", "--model", "script:say.yaml", "--no-save", "--tools", "g.toml"];
    let chat = ["chat", "--model", "script:say.yaml", "--no-save", "--tools", "g.toml"];
    for (how, text) in [
        ("crash", "no index of other"),
        ("silent", "loading the index of other"),
        ("stdio:./no-such-server", "no-such-server"),
    ] {
        write(&env, &[("fine", "slow=4", ""), ("other", how, SHORT)]);
        for failed in [env.run(run).exit(4), env.run_with("x\n", chat).exit(4)] {
            assert!(!failed.out.contains("answered"), "{failed}");
            for text in [text, "the upstream `other` is unavailable: ", "required = false"] {
                assert!(failed.err.contains(text), "{text}: {failed}");
            }
        }
        write(&env, &[("fine", "slow=4", ""), ("other", how, &format!("{SHORT}\nrequired = false"))]);
        for done in [env.run(run).ok(), env.run_with("x\n", chat).ok()] {
            assert!(done.out.contains("answered") && done.err.contains(text), "{done}");
        }
    }
}

/// A stdio client of `serve`.
struct Client {
    running: Running,
    input: std::io::PipeWriter,
    lines: std::sync::mpsc::Receiver<Value>,
}

impl Client {
    fn start(env: &TestEnv, words: &[&str]) -> Self {
        let (input, output, running) = env.start_piped(words);
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { running, input, lines }
    }

    fn send(&mut self, line: &Value) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next message that fits.
    fn next(&self, fits: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.recv_timeout(Duration::from_mins(1)).unwrap();
            if fits(&line) {
                return line;
            }
        }
    }

    fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        self.next(|line| line["id"] == id)
    }
}

#[test]
fn serve_is_ready_at_once_and_announces_upstreams_as_they_start() {
    let env = world(&[("fine", "plain", ""), ("slow", "slow=9", ""), ("dead", "crash", "")]);
    let mut client = Client::start(&env, &["serve", "g.toml"]);
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } });
    let info = client.ask(1, "initialize", &hello);
    assert_eq!(info["result"]["capabilities"]["tools"]["listChanged"], true, "{info}");
    client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
    let first = client.ask(2, "tools/list", &json!({}));
    assert_eq!(tools(&first), ["fine__fine"]);
    let early = client.ask(3, "tools/call", &json!({ "name": "slow__slow", "arguments": {} }));
    assert!(early.to_string().contains("`slow` is starting"), "{early}");
    let dead = client.ask(4, "tools/call", &json!({ "name": "dead__dead", "arguments": {} }));
    assert!(dead.to_string().contains("`dead` is unavailable"), "{dead}");
    let mut id = 5;
    let all = loop {
        client.next(|line| line["method"] == "notifications/tools/list_changed");
        let listed = client.ask(id, "tools/list", &json!({}));
        if tools(&listed).len() > 1 {
            break listed;
        }
        id += 1;
    };
    assert_eq!(tools(&all), ["fine__fine", "slow__slow"]);
    let called = client.ask(100, "tools/call", &json!({ "name": "slow__slow", "arguments": {} }));
    assert_eq!(called["result"]["content"][0]["text"], "done by slow", "{called}");
    drop(client.input);
    let done = client.running.finish().exit(0);
    assert!(done.err.contains("the upstream `dead` is unavailable: "), "{done}");
    assert!(done.err.contains("no index of dead") && !done.err.contains("`slow`"), "{done}");
}

#[test]
fn serve_over_http_is_ready_while_all_upstreams_start() {
    let env = world(&[("a", "slow=8", ""), ("b", "slow=8", "lazy = true"), ("c", "silent", "")]);
    let address = free();
    let words = ["serve", "g.toml", "calculate", "--http", &address.to_string(), "--no-token", "--json"];
    let running = env.start(words);
    eventually("it answers", || get(address, "/health", "").is_some());
    let status = || get(address, "/status", "").unwrap();
    assert!(status().contains(r#""name":"a","state":"starting""#), "{}", status());
    let listed = || post(address, "tools/list", json!({}), "").unwrap();
    assert_eq!(tools(&listed()), ["calculate"]);
    eventually("both are served", || tools(&listed()).len() == 3);
    assert_eq!(tools(&listed()), ["calculate", "a__a", "b__b"]);
    running.signal(Signal::TERM);
    let ready = running.finish().exit(0).json();
    assert_eq!(ready["sources"][0]["state"], "starting", "{ready}");
}

#[test]
fn a_lazy_upstream_without_a_manifest_starts_once() {
    let grants = "lazy = true\ngrants = { writable = [\"starts\"] }";
    let env = world(&[]);
    std::fs::create_dir(env.path("starts")).unwrap();
    write(&env, &[("a", "counted", grants), ("b", "counted", grants), ("c", "counted", grants)]);
    let counts = || {
        ["a", "b", "c"]
            .map(|name| std::fs::read(env.path(&format!("starts/{name}"))).map_or(0, |text| text.len()))
    };
    assert_eq!(names(&env.run(["tools", "g.toml"]).ok()), ["a__a", "b__b", "c__c"]);
    assert_eq!(counts(), [1, 1, 1], "without a manifest it is started once");
    assert_eq!(names(&env.run(["tools", "g.toml"]).ok()), ["a__a", "b__b", "c__c"]);
    assert_eq!(counts(), [1, 1, 1], "its manifest lists it");
    env.run(["call", "g.toml", "b__b"]).ok();
    assert_eq!(counts(), [1, 2, 1], "a call starts only its own");
    env.write("say.yaml", "turns:\n  - calls: [{ tool: c__c, args: {} }]\n  - text: done\n");
    env.run(["run", "-p", "x", "--model", "script:say.yaml", "--no-save", "--tools", "g.toml"]).ok();
    assert_eq!(counts(), [1, 2, 2]);
}

#[test]
fn an_installation_is_announced_and_has_its_own_limit() {
    let test = "an_installation_is_announced_and_has_its_own_limit";
    let Some((env, asked)) = with_registry(test, Duration::from_secs(5)) else { return };
    let env = env.leaving_files();
    env.write("server.py", SERVER);
    let package = "@toolpost-test/server@1";
    // Each has its own installation, which is slower than the start may be.
    let named = format!("stdio:npx -p {package} -p {package}.2 other-name");
    let launched = format!("stdio:npx -y {package}");
    write(
        &env,
        &[
            ("fine", "plain", ""),
            ("named", &named, "start_timeout = \"4s\""),
            ("launched", &launched, "start_timeout = \"4s\""),
        ],
    );
    let running = env.start_with_errors_in("errors", ["tools", "g.toml"]);
    let is_told = |name: &str| env.read("errors").contains(&format!("{name}: installing {package}"));
    eventually("both are announced", || is_told("named") && is_told("launched"));
    let told = Instant::now();
    let listed = running.finish().ok();
    assert!(told.elapsed() > Duration::from_secs(3), "it is announced before the download ends");
    assert_eq!(names(&listed), ["fine__fine", "named__look", "launched__look"]);
    let errors = env.read("errors");
    assert!(errors.contains(" ...\n") && !errors.contains("initialize"), "{errors}");
    asked.lock().unwrap().clear();
    let again = env.run(["tools", "g.toml"]).ok();
    assert_eq!((again.err.as_str(), asked.lock().unwrap().len()), ("", 0), "it is installed");
    let single = format!("stdio:npx -p {package}.2.3 other-name");
    assert!(env.run(["tools", &single]).ok().err.contains("installing @toolpost-test/server@1.2.3 ..."));
}
