//! Deviations of each kind at each place of a good session: each part is used or named, and nothing hangs.

mod server;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolpost_core::{Call, ToolSource as _};
use toolpost_mcp::client::{Client, Endpoint};
use tracing::field::{Field, Visit};
use tracing::span;

use self::server::{Reply, Server, members, session};

/// Far below the limits of the client.
const AT_ONCE: Duration = Duration::from_secs(8);

/// Collects the log, which names what is lost in lists.
struct Log;

static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        LINES.get_or_init(Mutex::default).lock().unwrap().push(message.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// All that a user of a client sees of a session: what is used, and the sentences about what is not.
#[derive(Debug, Default)]
struct Seen {
    used: String,
    named: Vec<String>,
}

impl Seen {
    fn add(&mut self, used: &impl fmt::Debug) {
        self.used += &[format!("{used:?}"), "\n".to_owned()].concat();
    }

    fn add_output(&mut self, output: Result<toolpost_core::Output, toolpost_core::ToolError>) {
        match output {
            Ok(output) => {
                let notes = output
                    .to_text()
                    .lines()
                    .filter(|line| line.starts_with("[note"))
                    .map(str::to_owned)
                    .collect::<Vec<_>>();
                self.named.extend(notes);
                self.used += &output.to_text();
                self.add(&output.structured.as_ref().map(Value::to_string));
                self.add(&(&output.content, &output.forwarded));
            }
            Err(error) => self.named.push(format!("{error:#?}")),
        }
    }
}

/// Runs a session against a server with one deviating reply.
async fn seen(reply: Reply) -> Seen {
    LINES.get_or_init(Mutex::default).lock().unwrap().clear();
    let method = reply.method.clone();
    let server = Server::start(reply).await;
    let mut seen = Seen::default();
    let client = match Client::builder(Endpoint::http(&server.url)).name("srv").connect().await {
        Ok(client) => client,
        Err(error) => {
            seen.named.push(format!("{error:#?}"));
            return seen;
        }
    };
    seen.add(&client.instructions().await);
    seen.named.extend(client.problems());
    let is_of = |kind: &str| method == "none" || method == "initialize" || method.starts_with(kind);
    let tools = client.list().await.unwrap();
    seen.used += &serde_json::to_string(&tools).unwrap();
    for tool in tools.iter().filter(|_| is_of("tools")).take(1) {
        seen.add_output(client.call(Call::new(tool.name.as_str(), json!({}))).await.result);
    }
    if is_of("prompts") {
        match client.prompts().await {
            Ok(prompts) => {
                seen.used += &serde_json::to_string(&prompts).unwrap();
                for prompt in prompts.iter().take(1) {
                    seen.add_output(client.render_prompt(&prompt.name, &Map::new()).await);
                }
            }
            Err(error) => seen.named.push(error.to_string()),
        }
    }
    if is_of("resources") {
        match client.resources().await {
            Ok(resources) => seen.used += &serde_json::to_string(&resources).unwrap(),
            Err(error) => seen.named.push(error.to_string()),
        }
        seen.add_output(client.read_resource("docs://a").await);
    }
    seen.named.extend(LINES.get_or_init(Mutex::default).lock().unwrap().drain(..));
    seen
}

/// The markers in a reply that are neither used nor named.
fn lost(reply: &Reply, seen: &Seen) -> Vec<String> {
    let sent = String::from_utf8_lossy(&reply.body).into_owned();
    let markers =
        sent.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| word.starts_with("MARK"));
    markers.filter(|mark| !seen.used.contains(*mark)).map(str::to_owned).collect()
}

/// The deviations of all kinds of one good reply.
fn deviations(method: &str) -> Vec<(&'static str, Reply)> {
    let good = json!({ "jsonrpc": "2.0", "id": "ID", "result": session(method) });
    let mut found = Vec::new();
    let mut push =
        |kind, body: Vec<u8>| found.push((kind, Reply::new(method, "200 OK", "application/json", body)));
    let text = |value: &Value| value.to_string().replace("\"ID\"", "ID").into_bytes();
    for place in members(&good) {
        let member = good.pointer(&place).unwrap();
        let with = |value: Value| {
            let mut deviating = good.clone();
            *deviating.pointer_mut(&place).unwrap() = value;
            text(&deviating)
        };
        for other in server::other_types(member) {
            push("types", with(other));
        }
        push("null", with(Value::Null));
        push("missing", text(&server::without(&good, &place)));
        if let Value::Array(items) = member {
            let twice = [items.clone(), items.clone()].concat();
            push("duplicates", with(twice.into()));
            push("order", with(items.iter().rev().cloned().collect()));
        }
        if let Value::Object(fields) = member {
            push(
                "order",
                with(Value::Object(
                    fields.iter().rev().map(|(key, value)| (key.clone(), value.clone())).collect(),
                )),
            );
            // A member that occurs twice, in the text.
            if let Some((key, _)) = fields.iter().next() {
                let mark = json!("TWICE");
                let whole = String::from_utf8(with(mark)).unwrap();
                let object = json!(fields).to_string();
                let twice = format!("{{\"{key}\":\"MARKTWICE\",{}", &object[1..]);
                push("duplicates", whole.replace("\"TWICE\"", &twice).replace("\"ID\"", "ID").into_bytes());
            }
        }
    }
    let whole = text(&good);
    let replaced = |from: &str, to: &[u8]| {
        let text = String::from_utf8(whole.clone()).unwrap();
        let (before, after) = text.split_once(from).unwrap();
        [before.as_bytes(), to, after.as_bytes()].concat()
    };
    push("encodings", [b"\xef\xbb\xbf", whole.as_slice()].concat());
    for bytes in [&b"caf\xe9 MARK"[..], b"\\ud83d MARK", b"\\x41 MARK", b"a\tb MARK", b"\\u0000 MARK"] {
        push("encodings", replaced("MARK", bytes));
    }
    push("encodings", replaced("\"result\":", b"\"n\":NaN,\"result\":"));
    push("encodings", [whole.as_slice(), b"\r\n"].concat());
    push(
        "encodings",
        String::from_utf8(whole.clone()).unwrap().encode_utf16().flat_map(u16::to_le_bytes).collect(),
    );
    for status in [
        "201 Created",
        "202 Accepted",
        "204 No Content",
        "400 Bad Request",
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "405 Method Not Allowed",
        "418 Teapot",
        "429 Too Many Requests",
        "500 Internal Server Error",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "307 Temporary Redirect",
    ] {
        let body = if status.starts_with("204") { Vec::new() } else { whole.clone() };
        found.push(("status", Reply::new(method, status, "application/json", body)));
        found.push(("status", Reply::new(method, status, "text/html", b"<p>MARK no".to_vec())));
    }
    let event = [b"data: ", whole.as_slice(), b"\n\n"].concat();
    for media in ["text/event-stream", "text/plain", "", "application/octet-stream"] {
        found.push(("status", Reply::new(method, "200 OK", media, event.clone())));
        found.push(("status", Reply::new(method, "200 OK", media, whole.clone())));
        found.push(("status", Reply::new(method, "200 OK", media, whole[..whole.len() / 2].to_vec())));
    }
    found
}

/// The log is that of the process.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Checks the deviations of the replies to some methods, and prints the counts per kind.
async fn check(methods: &[&str]) {
    let _alone = ALONE.lock().await;
    // Another test of the process may have set it.
    let _ = tracing::subscriber::set_global_default(Log);
    let good = seen(Reply::new("none", "200 OK", "application/json", Vec::new())).await;
    assert!(good.named.is_empty(), "{:?}", good.named);
    let mut counts = BTreeMap::<&str, [usize; 3]>::new();
    let mut silent = Vec::new();
    for method in methods {
        let reply =
            Reply::new("none", "200 OK", "application/json", session(method).to_string().into_bytes());
        assert_eq!(lost(&reply, &good), Vec::<String>::new(), "the good session loses a part of `{method}`");
        for (kind, reply) in deviations(method) {
            let begun = Instant::now();
            let body = String::from_utf8_lossy(&reply.body);
            let shown = format!("{kind} in {method}: HTTP {} {} {body}", reply.status, reply.media);
            let copy = reply.clone();
            let seen = tokio::time::timeout(AT_ONCE, tokio::spawn(seen(reply))).await;
            let Ok(Ok(seen)) = seen else { panic!("{seen:?}: {shown}") };
            assert!(begun.elapsed() < AT_ONCE, "{shown}");
            let count = counts.entry(kind).or_default();
            count[0] += 1;
            let lost = lost(&copy, &seen);
            if lost.is_empty() {
                count[1] += 1;
            } else if !seen.named.is_empty() {
                count[2] += 1;
            } else {
                silent.push(format!("{lost:?} of {shown}"));
            }
        }
    }
    for (kind, [all, used, named]) in &counts {
        println!("{kind:10} {all:5} deviations: {used} used whole, {named} named");
    }
    assert!(silent.is_empty(), "{} silent losses:\n{}", silent.len(), silent.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_deviation_of_initialize_is_used_or_named() {
    check(&["initialize"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_deviation_of_tools_is_used_or_named() {
    check(&["tools/list", "tools/call"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_deviation_of_prompts_is_used_or_named() {
    check(&["prompts/list", "prompts/get"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_deviation_of_resources_is_used_or_named() {
    check(&["resources/list", "resources/templates/list", "resources/read"]).await;
}
