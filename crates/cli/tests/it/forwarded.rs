//! A gateway forwards everything: generated servers, as a client sees them directly and through `toolpost serve`.

mod generated;
mod oracle;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};

use self::generated::Server;
use self::oracle::{Names, differences};
use crate::serve::modern;
use crate::support::TestEnv;

/// The number of generated servers.
const SERVERS: u64 = 8;

/// Serves a generated server over HTTP, in plain JSON. Returns its URL.
fn serve(server: Arc<Server>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            std::thread::spawn(move || while answer(&stream, &server).is_some() {});
        }
    });
    url
}

/// Answers one request; `None` at the end of the connection.
fn answer(stream: &TcpStream, server: &Server) -> Option<()> {
    let mut input = BufReader::new(stream);
    let (mut length, mut is_post) = (0, false);
    loop {
        let mut line = String::new();
        if input.read_line(&mut line).ok()? == 0 {
            return None;
        }
        is_post |= line.starts_with("POST");
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (status, body) = match (is_post, message.get("id")) {
        (false, _) => ("405 Method Not Allowed", String::new()),
        (true, None) => ("202 Accepted", String::new()),
        (true, Some(id)) => {
            let mut answer = json!({ "jsonrpc": "2.0", "id": id });
            match server.result(message["method"].as_str().unwrap_or_default(), &message["params"]) {
                Some(result) => answer["result"] = result,
                None => answer["error"] = json!({ "code": -32601, "message": "Method not found" }),
            }
            ("200 OK", answer.to_string())
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut output = stream;
    output.write_all(&[head.as_bytes(), body.as_bytes()].concat()).ok()
}

/// The results of requests to `toolpost serve TARGET`, in their order.
fn ask(target: &str, is_legacy: bool, requests: &[(&str, Value)]) -> Vec<Value> {
    let mut lines = Vec::new();
    if is_legacy {
        let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "c", "version": "1" } });
        lines
            .push(json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params }).to_string());
        lines.push(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }).to_string());
    }
    for (id, (method, params)) in (1..).zip(requests) {
        lines.push(if is_legacy {
            json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
        } else {
            modern(id, method, params.clone())
        });
    }
    let env = TestEnv::new();
    let finished = env.run_with(lines.join("\n") + "\n", ["serve", target]);
    let answers = finished.lines();
    let result = |id: usize| {
        let answer =
            answers.iter().find(|answer| answer["id"] == id).unwrap_or_else(|| panic!("{id}: {finished}"));
        assert!(answer["error"].is_null(), "{:?}: {answer}", requests[id - 1]);
        answer["result"].clone()
    };
    (1..=requests.len()).map(result).collect()
}

/// All that a client sees of a server behind a gateway: pairs of what the server sends and what arrives.
fn pairs(server: &Arc<Server>, namespace: &str, is_legacy: bool) -> Vec<(String, Value, Value, Names)> {
    let url = serve(Arc::clone(server));
    let target = format!("{namespace}{url}");
    let lists = [
        ("tools/list", json!({})),
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("prompts/list", json!({})),
    ];
    let listed = ask(&target, is_legacy, &lists);
    let names = Names::of(server, &listed);
    let mut pairs: Vec<_> = lists
        .iter()
        .zip(listed)
        .map(|((method, _), through)| {
            ((*method).to_owned(), server.result(method, &Value::Null).unwrap(), through, names.clone())
        })
        .collect();
    let requests: Vec<(&str, Value, Value)> = server
        .requests()
        .into_iter()
        .map(|(method, direct)| {
            let through = names.request(&direct);
            (method, direct, through)
        })
        .collect();
    let sent: Vec<(&str, Value)> =
        requests.iter().map(|(method, _, through)| (*method, through.clone())).collect();
    for ((method, direct, _), through) in requests.iter().zip(ask(&target, is_legacy, &sent)) {
        let expected = server.result(method, direct).unwrap();
        pairs.push((format!("{method} {direct}"), expected, through, names.clone()));
    }
    pairs
}

#[test]
fn a_gateway_forwards_everything() {
    let mut compared = 0;
    for seed in 0..SERVERS {
        let server = Arc::new(Server::generated(seed));
        let namespace = if seed % 3 == 0 { "" } else { "up=" };
        for (what, direct, through, names) in pairs(&server, namespace, seed % 2 == 0) {
            let lost = differences(&direct, &through, &names);
            assert!(lost.is_empty(), "server {seed}, {what}: {lost:#?}\nsent {direct}\ngot {through}");
            compared += oracle::members(&direct).len();
        }
    }
    println!("compared {compared} members of {SERVERS} generated servers");
    assert!(compared > 5_000, "{compared}");
}

/// Each member that a fault could lose or change is seen by the comparison.
#[test]
fn the_comparison_reports_every_planted_fault() {
    let server = Arc::new(Server::generated(1));
    let (mut planted, mut kinds) = (0, std::collections::BTreeMap::<String, usize>::new());
    for (what, direct, through, names) in pairs(&server, "up=", false) {
        for place in oracle::members(&through) {
            if oracle::is_added(&direct, &through, &place, &names) {
                continue;
            }
            for fault in [oracle::without(&through, &place), oracle::changed(&through, &place)] {
                let lost = differences(&direct, &fault, &names);
                assert!(!lost.is_empty(), "{what}: a fault at {place} is not seen in {fault}");
                planted += 1;
            }
            *kinds.entry(place.rsplit('/').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
    }
    println!("planted {planted} faults, by member: {kinds:?}");
    for kind in
        ["name", "title", "description", "size", "annotations", "_meta", "ui", "blob", "mimeType", "uri"]
    {
        assert!(kinds.contains_key(kind), "no fault in `{kind}`: {kinds:?}");
    }
}
