//! Settings of a request to the model reach the provider.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};

use crate::support::{Anthropic, Finished, TestEnv, ask, calls_all, says, says_whole};

/// A model that accepts every setting.
const OLD: &str = "anthropic/claude-haiku-4-5";

/// A server whose tool sends a sampling request.
const ASKER: &str = r#"
import json, sys

def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

waiting = {}
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        send({"id": id, "result": {"protocolVersion": message["params"]["protocolVersion"],
              "capabilities": {"tools": {}}, "serverInfo": {"name": "asker", "version": "1"}}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": [
            {"name": sys.argv[1], "description": "Thinks.", "inputSchema": {"type": "object"}}]}})
    elif method == "tools/call":
        waiting[f"of-{id}"] = id
        said = {"role": "user", "content": {"type": "text", "text": "Short?"}}
        send({"id": f"of-{id}", "method": "sampling/createMessage",
              "params": {"messages": [said], "maxTokens": 50}})
    elif method is None and id in waiting:
        said = json.dumps(message.get("result", message.get("error")))
        send({"id": waiting.pop(id), "result": {"content": [{"type": "text", "text": said}]}})
    elif method is not None and id is not None:
        send({"id": id, "error": {"code": -32601, "message": "unknown"}})
"#;

/// The request body with a setting; it must differ from the default one.
#[track_caller]
fn body(setting: &str) -> Value {
    let with = |words: &[&str]| ask(&[&["--model", OLD], words].concat());
    let body = with(&["--config", setting]);
    assert_ne!(body, with(&[]), "{setting}");
    body
}

#[test]
pub(crate) fn sampling() {
    assert_eq!(body("top_p=0.25")["top_p"], 0.25);
    assert_eq!(body("top_k=7")["top_k"], 7);
    // A model without either gets neither, and a notice says so.
    let model = Anthropic::start(vec![says("ok")]);
    let finished =
        model.env.run(["run", "-p", "hi", "--config", "top_k=7", "--model", "claude-opus-5-5"]).ok();
    assert_eq!(model.bodies()[0]["top_k"], Value::Null);
    assert!(finished.err.contains("`top_k` was not sent"), "{finished}");
}

#[test]
pub(crate) fn seed() {
    // The wire has none, and a notice says so.
    let model = Anthropic::start(vec![says("ok")]);
    let finished = model.env.run(["run", "-p", "hi", "--config", "seed=7"]).ok();
    assert!(finished.err.contains("`seed` was not sent"), "{finished}");
}

#[test]
pub(crate) fn stop() {
    assert_eq!(body("stop=END,FIN")["stop_sequences"], json!(["END", "FIN"]));
}

#[test]
pub(crate) fn thinking() {
    assert_eq!(body("thinking=2000")["thinking"], json!({"type": "enabled", "budget_tokens": 2000}));
    assert_eq!(body("thinking=off")["thinking"]["type"], "disabled");
    let model = Anthropic::start(Vec::new());
    model.env.run(["run", "-p", "hi", "--json", "--config", "thinking=much"]).exit(2);
}

#[test]
pub(crate) fn parallel_tool_calls() {
    let body = body("parallel_tool_calls=false");
    assert_eq!(body["tool_choice"]["disable_parallel_tool_use"], true);
}

#[test]
pub(crate) fn prompt_caching() {
    assert_eq!(body("prompt_caching=off")["cache_control"], Value::Null);
    assert_eq!(body("prompt_caching=1h")["cache_control"]["ttl"], "1h");
}

#[test]
pub(crate) fn provider_options() {
    assert_eq!(body(r#"provider_options={"service_tier":"flex"}"#)["service_tier"], "flex");
    let model = Anthropic::start(vec![says("ok")]);
    model.env.write("toolpost.toml", "[provider_options]\nservice_tier = \"auto\"\ninference_geo = \"us\"\n");
    model.env.run(["trust", "toolpost.toml"]).ok();
    model.env.run(["run", "-p", "hi"]).ok();
    let body = model.bodies().remove(0);
    assert_eq!((&body["service_tier"], &body["inference_geo"]), (&json!("auto"), &json!("us")));
}

fn overloaded() -> Reply {
    let body = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    Reply::json(529, body.to_string())
}

#[test]
pub(crate) fn fallback() {
    for words in
        [["--fallback", "anthropic/claude-second"], ["--config", "models.fallback=anthropic/claude-second"]]
    {
        let model = Anthropic::start(vec![overloaded(), says("second")]);
        let words = ["run", "-p", "hi", "--model", "claude-first", "--config", "models.retries=0"]
            .into_iter()
            .chain(words);
        let finished = model.env.run(words).ok();
        assert_eq!(finished.out, "second\n");
        assert!(finished.err.contains("falling back to anthropic/claude-second"), "{finished}");
        let names: Vec<Value> = model.bodies().iter().map(|body| body["model"].clone()).collect();
        assert_eq!(names, ["claude-first", "claude-second"]);
    }
    // Without a fallback, the error is the result.
    let model = Anthropic::start(vec![overloaded()]);
    model.env.run(["run", "-p", "hi", "--config", "models.retries=0", "--json"]).exit(4);
}

#[test]
pub(crate) fn retries() {
    let model = Anthropic::start(vec![overloaded(), overloaded(), says("at last")]);
    let quick = ["run", "-p", "hi", "--config", "models.retries=2", "--config", "models.retry_wait=10ms"];
    let begun = Instant::now();
    assert_eq!(model.env.run(quick).ok().out, "at last\n");
    // The default first wait is one second, the next one two.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let model = Anthropic::start(vec![overloaded(), says("too late")]);
    model.env.run(["run", "-p", "hi", "--config", "models.retries=0"]).exit(4);
    assert_eq!(model.bodies().len(), 1);
}

#[test]
pub(crate) fn timeouts() {
    let stalled = || says("hello").in_pieces(300, Duration::from_secs(20));
    for (name, reply) in [
        ("models.first_byte_timeout", Reply::never()),
        ("models.event_timeout", stalled()),
        ("models.total_timeout", Reply::never()),
    ] {
        let model = Anthropic::start(vec![reply]);
        let begun = Instant::now();
        let setting = format!("{name}=300ms");
        let words = ["run", "-p", "hi", "--json", "--config", &setting, "--config", "models.retries=0"];
        let error = model.env.run(words).exit(4).error();
        assert_eq!(error["code"], "TIMEOUT", "{name}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {:?}", begun.elapsed());
    }
}

#[test]
pub(crate) fn connect_timeout() {
    // A listener with a full queue accepts no connection.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
    let waiting: Vec<_> = std::iter::from_fn(connect).take(5_000).collect();
    assert!(waiting.len() < 5_000, "the queue has no end");
    let env =
        TestEnv::new().with("ANTHROPIC_API_KEY", "k").with("ANTHROPIC_BASE_URL", format!("http://{address}"));
    let begun = Instant::now();
    let settings = ["--config", "models.connect_timeout=200ms", "--config", "models.retries=0"];
    let error = env.run(["run", "-p", "hi", "--json"].iter().chain(&settings)).exit(4).error();
    assert!(error["message"].as_str().unwrap().contains("connecting timed out"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
pub(crate) fn ca_file() {
    let env = TestEnv::new().with("ANTHROPIC_API_KEY", "k");
    env.write("none.pem", "nothing");
    let words = ["run", "-p", "hi", "--json", "--config", "models.ca_file=none.pem"];
    let error = env.run(words).exit(2).error();
    assert!(error["message"].as_str().unwrap().contains("none.pem"), "{error}");
    crate::environment::with_certificate(|env, file| env.with("TOOLPOST_MODELS_CA_FILE", file));
}

#[test]
pub(crate) fn limits() {
    for setting in ["models.requests_per_minute=60", "models.tokens_per_minute=60"] {
        let calls =
            (0..40).map(|n| crate::support::calls("calculate", &json!({"expression": n.to_string()})));
        let model = Anthropic::start(calls.collect());
        let begun = Instant::now();
        let words =
            ["run", "-p", "hi", "--max-iterations", "38", "--max-time", "2s", "--config", setting, "--json"];
        assert_eq!(model.env.run(words).exit(6).json()["stop_reason"], "max_time", "{setting}");
        // A tenth of the rate is available at once.
        assert!(model.bodies().len() <= 12, "{setting}: {}", model.bodies().len());
        // Without the limit all requests would be immediate.
        assert!(begun.elapsed() > Duration::from_secs(1), "{setting}: {:?}", begun.elapsed());
    }
}

#[test]
pub(crate) fn concurrency() {
    // Three concurrent calls with a sampling request each: only the setting limits them.
    let at_once = |settings: &[&str]| {
        let server = LoopbackProvider::start_with(|request| {
            let body = request.json();
            let tools = body["tools"].as_array().into_iter().flatten();
            let thinkers: Vec<&str> = tools
                .filter_map(|tool| tool["name"].as_str())
                .filter(|name| name.contains("think"))
                .collect();
            let is_told = body["messages"].to_string().contains("tool_result");
            match thinkers.len() {
                3 if !is_told => calls_all(&thinkers, &json!({})),
                3 => says("done"),
                _ if body["stream"] == true => says("short").after(Duration::from_millis(500)),
                _ => says_whole("short").after(Duration::from_millis(500)),
            }
        });
        let model = Anthropic::at(server.unwrap());
        let script = model.env.write("asker.py", ASKER);
        // One server each, because a shared server could not attribute requests to calls.
        let servers = ["one", "two", "three"].map(|name| {
            ["--mcp-server".to_owned(), format!("stdio:python3 '{}' think_{name}", script.display())]
        });
        let words = ["run", "-p", "hi", "--model", OLD, "--yes", "--level", "minimal"].map(str::to_owned);
        let settings = settings.iter().map(|word| (*word).to_owned());
        let words: Vec<String> =
            words.into_iter().chain(servers.into_iter().flatten()).chain(settings).collect();
        let finished = model.env.run(&words).ok();
        assert_eq!((finished.out.as_str(), model.bodies().len()), ("done\n", 5), "{finished}");
        model.server.most_at_once()
    };
    assert_eq!(at_once(&[]), 3);
    assert_eq!(at_once(&["--config", "models.concurrency=2"]), 2);
    assert_eq!(at_once(&["--config", "models.concurrency=1"]), 1);
    let wrong = TestEnv::new().run(["run", "-p", "hi", "--config", "models.concurrency=0", "--json"]).exit(2);
    assert!(wrong.err.contains("an integer ≥ 1"), "{wrong}");
}

#[test]
pub(crate) fn tool_choice() {
    for (choice, sent) in [
        ("auto", json!({"type": "auto"})),
        ("none", json!({"type": "none"})),
        ("any", json!({"type": "any"})),
        ("calculate", json!({"type": "tool", "name": "calculate"})),
    ] {
        let body = body(&format!("tool_choice={choice}"));
        assert_eq!(body["tool_choice"], sent);
    }
    // Only the first answer has a forced call.
    let model =
        Anthropic::start(vec![crate::support::calls("calculate", &json!({"expression": "6*7"})), says("42")]);
    let words = ["run", "-p", "hi", "--model", OLD, "--config", "tool_choice=calculate"];
    assert_eq!(model.env.run(words).ok().out, "42\n");
    assert_eq!(model.bodies()[1]["tool_choice"], Value::Null);
    // An unknown tool, and a model without forced calls, are found before a request.
    let model = Anthropic::start(Vec::new());
    let refused = |words: &[&str]| {
        let words = ["run", "-p", "hi", "--json"].iter().chain(words);
        model.env.run(words).exit(2).err.clone()
    };
    assert!(
        refused(&["--model", OLD, "--config", "tool_choice=calculat"]).contains("Did you mean `calculate`?")
    );
    let said = refused(&["--model", "claude-opus-5-5", "--config", "tool_choice=any"]);
    assert!(said.contains("forced_tool_choice"), "{said}");
    let said = refused(&["--model", OLD, "--config", "tool_choice=any", "--config", "thinking=2000"]);
    assert!(said.contains("with a thinking budget"), "{said}");
    assert!(refused(&["--config", "tool_choice="]).contains("expected `auto`"));
}

/// The request to another provider, which rejects it.
fn asked_of(provider: &str, words: &[&str]) -> (Vec<ReceivedRequest>, Finished) {
    let body = r#"{"error":{"message":"enough","type":"invalid_request_error"}}"#;
    let server = LoopbackProvider::start(vec![Reply::json(400, body)]).unwrap();
    let name = provider.to_uppercase();
    let env = TestEnv::new()
        .with(&format!("{name}_API_KEY"), "k")
        .with(&format!("{name}_BASE_URL"), server.base_url());
    let finished = env.run(["run", "-p", "hi", "--json"].iter().chain(words));
    (server.requests(), finished)
}

#[test]
pub(crate) fn metadata() {
    let body = body(r#"metadata={"user_id":"u1"}"#);
    assert_eq!(body["metadata"], json!({"user_id": "u1"}));
    let words = ["--model", "gpt-6.1-sol", "--config", r#"metadata={"team":"red","job":"7"}"#];
    let (requests, _) = asked_of("openai", &words);
    assert_eq!(requests[0].json()["metadata"], json!({"team": "red", "job": "7"}));
    // Unsupported metadata is found before a request.
    let words = ["--model", "gemini-3.8-flash", "--config", r#"metadata={"user_id":"u1"}"#];
    let (requests, finished) = asked_of("gemini", &words);
    assert_eq!((requests.len(), &finished.exit(2).error()["code"]), (0, &json!("UNSUPPORTED")));
}

#[test]
pub(crate) fn betas() {
    let model = Anthropic::start(vec![says("ok")]);
    model.env.run(["run", "-p", "hi", "--config", "betas=one-2026,two-2026"]).ok();
    let requests = model.server.requests();
    let header = requests[0].header("anthropic-beta").unwrap();
    assert!(header.ends_with("one-2026,two-2026"), "{header}");
    let (requests, finished) = asked_of("gemini", &["--model", "gemini-3.8-flash", "--config", "betas=one"]);
    let error = finished.exit(2).error();
    assert_eq!((requests.len(), &error["code"]), (0, &json!("UNSUPPORTED")));
    assert!(error["message"].as_str().unwrap().contains("`one`"), "{error}");
}

#[test]
pub(crate) fn strict_tools() {
    let strict = |body: &Value| -> Vec<bool> {
        body["tools"].as_array().unwrap().iter().map(|tool| tool["strict"] == true).collect()
    };
    // The second schema cannot be strict: its parameters may have any names.
    let tools = ["--tools", "write_file,calculate"];
    assert_eq!(strict(&ask(&tools)), [false, false]);
    let strictly = ["--tools", "write_file,calculate", "--config", "strict_tools=true"];
    assert_eq!(strict(&ask(&strictly)), [true, false]);
}

#[test]
pub(crate) fn tags() {
    let model = Anthropic::start(vec![says("ok"), says("ok")]);
    let words = ["--format", "jsonl", "--config", r#"tags={"customer":"7"}"#];
    let metadata = |lines: &[Value]| {
        let usage: Vec<_> = lines.iter().filter(|line| line["type"] == "usage").collect();
        assert_eq!(usage.len(), 1, "{lines:?}");
        usage[0]["metadata"].clone()
    };
    let finished = model.env.run(["run", "-p", "hi"].iter().chain(&words)).ok();
    assert_eq!(metadata(&finished.lines()), json!({"customer": "7"}));
    let finished = model.env.run_with("hi\n", ["chat"].iter().chain(&words)).ok();
    assert_eq!(metadata(&finished.lines()), json!({"customer": "7"}));
    // No provider gets the tags.
    assert!(model.bodies().iter().all(|body| !body.to_string().contains("customer")));
}
