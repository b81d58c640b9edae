//! `serve` with several targets: namespaces, rules per client, search, faults, secrets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::gateway::{PROGRAM, executable, program};
use crate::serve::{free, get, modern, post, tools};
use crate::support::{Finished, Running, TestEnv, eventually};

/// The answers of a stdio client in the order of its requests.
fn asked(env: &TestEnv, words: &[&str], requests: &[(&str, Value)]) -> Vec<Value> {
    let mut lines = vec![modern(0, "server/discover", json!({}))];
    let numbered = requests.iter().zip(1..);
    lines.extend(numbered.map(|((method, params), id)| modern(id, method, params.clone())));
    let finished = env.run_with(lines.join("\n") + "\n", [&["serve"], words].concat()).ok();
    let mut answers = finished.lines();
    answers.sort_by_key(|answer| answer["id"].as_u64());
    assert_eq!(answers.len(), requests.len() + 1, "{finished}");
    answers.split_off(1)
}

/// Serves until the tools are listed.
fn served(env: &TestEnv, words: &[&str]) -> Finished {
    let lines = [modern(0, "server/discover", json!({})), modern(1, "tools/list", json!({}))];
    env.run_with(lines.join("\n") + "\n", [&["serve"], words].concat())
}

fn list() -> (&'static str, Value) {
    ("tools/list", json!({}))
}

fn call(tool: &str, arguments: &Value) -> (&'static str, Value) {
    ("tools/call", json!({ "name": tool, "arguments": arguments }))
}

/// Starts to serve and waits for readiness.
fn begin(env: &TestEnv, words: &[&str]) -> (Running, SocketAddr) {
    let address = free();
    let running = env.start([&["serve", "--http", &address.to_string(), "--json"], words].concat());
    eventually("it answers", || get(address, "/health", "").is_some());
    (running, address)
}

fn status(address: SocketAddr, more: &str) -> Value {
    let answer = get(address, "/status", more).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap_or_else(|_| panic!("{answer}"))
}

#[test]
pub(crate) fn several_targets_have_namespaces() {
    let env = TestEnv::new();
    program(&env, "weather", "Forecast the weather.");
    program(&env, "other", "Forecast something else.");
    for (words, expected) in [
        (&["./weather"][..], &["forecast", "forget"][..]),
        (&["builtin:calculate", "./weather"], &["calculate", "forecast", "forget"]),
        (
            &["./weather", "builtin:calculate", "./other"],
            &["calculate", "weather__forecast", "weather__forget", "other__forecast", "other__forget"],
        ),
        (&["sun=./weather"], &["sun__forecast", "sun__forget"]),
        (&["=./weather", "./other"], &["forecast", "forget", "other__forecast", "other__forget"]),
        (&["./weather,./other", "--deny", "other__*"], &["weather__forecast", "weather__forget"]),
    ] {
        let answers = asked(&env, words, &[list()]);
        assert_eq!(tools(&answers[0]), expected, "{words:?}");
    }
    let both = ["./weather", "./other"];
    let requests = ["weather__forecast", "other__forecast", "forecast"].map(|tool| call(tool, &json!({})));
    let answers = asked(&env, &both, &requests);
    for (answer, expected) in answers.iter().zip(["forecast of weather", "forecast of other"]) {
        assert!(answer["result"].to_string().contains(expected), "{answer}");
    }
    assert!(answers[2]["error"]["message"].as_str().unwrap().contains("weather__forecast"), "{}", answers[2]);
    for (words, expected) in [
        (&["a=./weather", "A=./other"][..], "two upstreams have this name"),
        (&["./weather", "gone=stdio:./no-such-server"], "the upstream `gone` is"),
        (&["./weather", "./gone"], "the target `./gone`"),
    ] {
        let finished = served(&env, words);
        assert!(finished.err.contains(expected), "{finished}");
    }
}

#[test]
fn a_tool_with_a_built_in_name_gets_its_namespace() {
    let env = TestEnv::new();
    executable(&env, "calc", &PROGRAM.replace("forecast", "calculate"));
    // The name with the namespace is taken too.
    let both = PROGRAM.replace("forecast", "calculate").replace("forget", "other__calculate");
    executable(&env, "other", &both);
    env.write(
        "gateway.toml",
        "kind = \"gateway\"\n[[upstreams]]\nname = \"calc\"\ntarget = \"./calc\"\nnamespace = false\n",
    );
    env.run(["trust", "gateway.toml"]).ok();
    for (words, upstream, other) in [
        (&["builtin:calculate", "./calc"][..], "calc__calculate", "forget"),
        (&["./calc", "builtin:calculate"], "calc__calculate", "forget"),
        (&["builtin:calculate", "=./calc"], "targets__calculate", "forget"),
        (&["gateway.toml", "builtin:calculate"], "gateway__calculate", "forget"),
        (&["builtin:calculate", "./other"], "other-2__calculate", "other__calculate"),
    ] {
        let sum = json!({ "expression": "6 * 7" });
        let requests = [list(), call("calculate", &sum), call(upstream, &json!({})), call(other, &json!({}))];
        let answers = asked(&env, words, &requests);
        assert_eq!(tools(&answers[0]), ["calculate", upstream, other], "{words:?}");
        for (answer, expected) in answers[1..].iter().zip(["42", "calculate of ", " of "]) {
            assert!(answer["result"]["content"][0]["text"].as_str().unwrap().contains(expected), "{answer}");
        }
        let finished = served(&env, words);
        let warning = format!("is called `{upstream}`: another tool has its name");
        assert!(finished.err.contains(&warning), "{finished}");
    }
}

#[test]
pub(crate) fn lazy_targets_start_on_their_first_call_and_status_reports_each() {
    let env = TestEnv::new();
    program(&env, "weather", "Forecast the weather.");
    let words = ["./weather", "gone=stdio:./no-such-server --key hunter2", "--lazy"];
    // Without a cached manifest the target starts once for its listing.
    asked(&env, &words, &[list()]);
    let (running, address) = begin(&env, &[&words[..], &["--no-token"]].concat());
    let states = |status: &Value| -> Vec<String> {
        let sources = status["sources"].as_array().unwrap().iter();
        sources.map(|source| format!("{} {}", source["name"], source["state"]).replace('"', "")).collect()
    };
    eventually("the other has failed", || states(&status(address, ""))[1] == "gone failed");
    let before = status(address, "");
    assert_eq!(states(&before), ["weather not_started", "gone failed"], "{before}");
    assert_eq!(before["sources"][0]["tools"], 2);
    assert!(!before.to_string().contains("hunter2"), "{before}");
    let answer =
        post(address, "tools/call", json!({ "name": "weather__forecast", "arguments": {} }), "").unwrap();
    assert!(answer.to_string().contains("forecast of weather"), "{answer}");
    assert_eq!(status(address, "")["sources"][0]["state"], "ready");
    running.signal(Signal::TERM);
    let ready = running.finish().exit(0).json();
    assert_eq!(ready["sources"][0]["state"], "not_started", "{ready}");
    let (eager, address) = begin(&env, &["./weather", "builtin:calculate", "again=./weather", "--no-token"]);
    eventually("both start", || states(&status(address, "")) == ["weather ready", "again ready"]);
    eager.signal(Signal::TERM);
    eager.finish().exit(0);
}

#[test]
pub(crate) fn each_client_has_its_own_rules() {
    let env = TestEnv::new();
    env.write("tokens.txt", "first\nsecond\nthird\n");
    let words = [
        "builtin:calculate",
        "builtin:hash_text",
        "builtin:read_file",
        "--token-file",
        "tokens.txt",
        "--allow",
        "calculate",
        "--allow-for",
        "token-2=*",
        "--deny-for",
        "token-2=read_*",
        "--deny-for",
        "token-3=calc*",
    ];
    let (running, address) = begin(&env, &words);
    for (token, expected) in
        [("first", &["calculate"][..]), ("second", &["calculate", "hash_text"]), ("third", &[])]
    {
        let more = format!("Authorization: Bearer {token}\r\n");
        let listed = post(address, "tools/list", json!({}), &more).unwrap();
        assert_eq!(tools(&listed), expected, "{token}");
        let hashed = json!({ "name": "hash_text", "arguments": { "text": "x" } });
        let answer = post(address, "tools/call", hashed, &more).unwrap();
        assert_eq!(
            answer["result"]["isError"] == false || answer["result"]["structuredContent"].is_object(),
            expected.len() == 2,
            "{token}: {answer}"
        );
        let misspelt = post(address, "tools/call", json!({ "name": "hash_txt" }), &more).unwrap().to_string();
        assert_eq!(misspelt.contains("hash_text"), expected.len() == 2, "{token}: {misspelt}");
    }
    running.signal(Signal::TERM);
    running.finish().exit(0);
    for option in ["--allow-for", "--deny-for"] {
        let wrong = env.run(["serve", "builtin", option, "token-1"]).exit(2);
        assert!(wrong.err.contains("expected CLIENT=TOOL"), "{wrong}");
    }
}

#[test]
pub(crate) fn search_puts_all_tools_behind_three() {
    let env = TestEnv::new();
    program(&env, "weather", "Forecast the weather of a city.");
    let three = ["search_tools", "describe_tools", "call_tool"];
    let claude = |mut params: Value| {
        params["_meta"]["io.modelcontextprotocol/clientInfo"] =
            json!({ "name": "claude-code", "version": "2" });
        params
    };
    let words = ["builtin", "./weather", "--search", "--core-tool", "calculate"];
    let requests = [
        list(),
        ("tools/list", claude(json!({}))),
        call("search_tools", &json!({ "query": "weather of a city" })),
        call("describe_tools", &json!({ "names": ["forecast"] })),
        call("call_tool", &json!({ "name": "forecast" })),
        call("call_tool", &json!({ "name": "calculate", "arguments": { "expression": "6 * 7" } })),
    ];
    let answers = asked(&env, &words, &requests);
    assert_eq!(tools(&answers[0]), [&three[..], &["calculate"]].concat());
    let whole = tools(&answers[1]);
    assert!(whole.len() > 10 && whole.contains(&"forecast") && !whole.contains(&"call_tool"), "{whole:?}");
    let all = answers[1]["result"]["tools"].as_array().unwrap();
    let of = |name: &str| all.iter().find(|tool| tool["name"] == name).unwrap();
    assert_eq!(of("calculate")["_meta"]["anthropic/alwaysLoad"], true);
    assert!(of("read_file")["_meta"]["anthropic/searchHint"].is_string(), "{}", of("read_file"));
    assert!(answers[2].to_string().contains("forecast"), "{}", answers[2]);
    assert!(answers[3].to_string().contains("input_schema"), "{}", answers[3]);
    assert!(answers[4].to_string().contains("forecast of weather"), "{}", answers[4]);
    assert!(answers[5].to_string().contains("42"), "{}", answers[5]);
    let always = ["builtin", "--search=always"];
    assert_eq!(tools(&asked(&env, &always, &[("tools/list", claude(json!({})))])[0]), three);
    let without = asked(&env, &["builtin:calculate"], &[list()]);
    assert!(without[0]["result"]["tools"][0]["_meta"]["anthropic/alwaysLoad"].is_null());
    env.run(["serve", "builtin", "--core-tool", "calculate"]).exit(2);
}

/// The upstream is a separate process, killed by a signal.
#[test]
fn a_killed_upstream_loses_no_name_and_no_idempotent_call() {
    let env = TestEnv::new().leaving_files();
    let up = free();
    let upstream = || {
        let words = ["serve", "builtin:calculate,builtin:hash_text", "--http", &up.to_string(), "--no-token"];
        let running = env.start(words);
        eventually("the upstream answers", || get(up, "/health", "").is_some());
        running
    };
    let mut life = upstream();
    let target = format!("up=http://{up}/mcp");
    let (front, address) = begin(&env, &[&target, "builtin:read_file", "--no-token"]);
    let (over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..4)
        .map(|number| {
            let (over, answered) = (Arc::clone(&over), Arc::clone(&answered));
            std::thread::spawn(move || {
                for turn in 0_u32.. {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    let sum = json!({ "name": "up__calculate", "arguments": { "expression": format!("{number} + {turn}") } });
                    let answer = post(address, "tools/call", sum, "").unwrap();
                    // Read-only calls are retried until they succeed.
                    let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
                    assert!(text.contains(&(number + turn).to_string()), "{answer}");
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let work = || {
        let from = answered.load(Ordering::SeqCst);
        eventually("calls are answered", || answered.load(Ordering::SeqCst) >= from + 20);
    };
    for _ in 0..3 {
        work();
        life.signal(Signal::KILL);
        drop(life);
        let listed = post(address, "tools/list", json!({}), "").unwrap();
        assert_eq!(tools(&listed), ["read_file", "up__calculate", "up__hash_text"]);
        life = upstream();
    }
    work();
    over.store(true, Ordering::SeqCst);
    for caller in callers {
        caller.join().unwrap();
    }
    println!("{} calls were answered through 3 killed upstreams", answered.load(Ordering::SeqCst));
    life.signal(Signal::KILL);
    drop(life);
    eventually("it is found out", || status(address, "")["sources"][0]["state"] == "reconnecting");
    assert!(status(address, "")["sources"][0]["reason"].is_string());
    front.signal(Signal::TERM);
    front.finish().exit(0);
}

/// A proxy that records what the other side gets.
fn spy(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, seen) = (listener.local_addr().unwrap(), Arc::<Mutex<Vec<u8>>>::default());
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), Ok(mut server)) = (client, TcpStream::connect(to)) else { continue };
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let kept = Arc::clone(&kept);
            std::thread::spawn(move || {
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = client.read(&mut piece) {
                    kept.lock().unwrap().extend_from_slice(&piece[..count]);
                    // The host is the proxy's for senders, and the server's for readers.
                    if server.write_all(&piece[..count]).is_err() {
                        break;
                    }
                }
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back_from, &mut back_to);
            });
        }
    });
    (address, seen)
}

/// Reference section 5 (4): no token passes through.
#[test]
fn tokens_of_clients_and_upstreams_never_mix() {
    let ups = ["upstream-one-secret", "upstream-two-secret"].map(|secret| {
        let env = TestEnv::new().with("TOOLPOST_SERVE_TOKEN", secret);
        let address = free();
        let (place, seen) = spy(address);
        let words =
            ["serve", "builtin:calculate", "--http", &address.to_string(), "--host", &place.to_string()];
        let running = env.start(words);
        eventually("the upstream answers", || get(address, "/health", "").is_some());
        (env, running, place, seen)
    });
    let env = TestEnv::new()
        .with("TOOLPOST_SERVE_TOKEN", "the-client-s-own-secret")
        .with("KEY_ONE", "upstream-one-secret")
        .with("KEY_TWO", "upstream-two-secret");
    let server = |place: SocketAddr, key: &str| json!({ "type": "http", "url": format!("http://{place}/mcp"), "headers": { "Authorization": format!("Bearer ${{{key}}}") } });
    let file = json!({ "mcpServers": {
        "one": server(ups[0].2, "KEY_ONE"), "two": server(ups[1].2, "KEY_TWO"),
        // A rejected key is reported without its value.
        "three": server(ups[1].2, "KEY_ONE"),
    } });
    env.write(".mcp.json", file.to_string());
    env.run(["trust", ".mcp.json"]).ok();
    let (front, address) =
        begin(&env, &["one", "two", "--log", "trace", "--log-file", "log.txt", "--search"]);
    let more = "Authorization: Bearer the-client-s-own-secret\r\n";
    assert!(get(address, "/status", "").unwrap().starts_with("HTTP/1.1 401"));
    for tool in ["one__calculate", "two__calculate"] {
        let sum = json!({ "name": tool, "arguments": { "expression": "6 * 7" } });
        let answer = post(address, "tools/call", sum, more).unwrap();
        assert!(answer.to_string().contains("42"), "{answer}");
    }
    let output = get(address, "/status", more).unwrap();
    assert!(output.contains("\"ready\""), "{output}");
    front.signal(Signal::TERM);
    let finished = front.finish().exit(0).to_string();
    let sent = ups.each_ref().map(|(.., seen)| String::from_utf8_lossy(&seen.lock().unwrap()).into_owned());
    let (refused, place) = begin(&env, &["builtin:calculate", "three=three", "--log", "trace"]);
    let refusal = get(place, "/status", more).unwrap();
    assert!(refusal.contains("\"failed\""), "{refusal}");
    refused.signal(Signal::TERM);
    let output =
        [output, finished, refusal, refused.finish().exit(0).to_string(), env.read("log.txt")].join("\n");
    for secret in ["the-client-s-own-secret", "upstream-one-secret", "upstream-two-secret"] {
        assert!(!output.contains(secret), "{secret} was printed");
    }
    let secrets = ["upstream-one-secret", "upstream-two-secret"];
    for (place, own) in secrets.into_iter().enumerate() {
        assert!(sent[place].contains(own), "its own credentials are sent to it");
        assert!(
            !sent[place].contains("the-client-s-own-secret"),
            "the client's token went to upstream {place}"
        );
        assert!(!sent[place].contains(secrets[1 - place]), "the token of another went to upstream {place}");
    }
    for (_, running, ..) in ups {
        running.signal(Signal::TERM);
        running.finish().exit(0);
    }
}
