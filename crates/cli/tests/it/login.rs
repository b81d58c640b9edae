//! `toolpost login` and `toolpost logout`, with a server that issues its tokens.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Finished, TestEnv, eventually};

type Fields = BTreeMap<String, String>;

/// A server at a free port, for the whole test process.
struct Guarded {
    url: String,
    seen: Arc<Mutex<Vec<(String, Fields)>>>,
}

/// The fields of a form or a query, with the escapes of these tests.
fn fields(text: &str) -> Fields {
    let plain = |text: &str| {
        let mut plain = text.replace('+', " ");
        for (code, letter) in [("%3A", ":"), ("%2F", "/"), ("%3D", "="), ("%26", "&")] {
            plain = plain.replace(code, letter);
        }
        plain
    };
    text.split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (plain(name), plain(value)))
        .collect()
}

impl Guarded {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<(String, Fields)>>>::default();
        let (theirs, base) = (Arc::clone(&seen), url.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, base) = (Arc::clone(&theirs), base.clone());
                std::thread::spawn(move || while_there(&mut BufReader::new(stream.unwrap()), &base, &seen));
            }
        });
        Self { url, seen }
    }

    fn server(&self) -> String {
        format!("{}/mcp", self.url)
    }

    fn seen(&self, path: &str) -> Vec<Fields> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(known, _)| known == path).map(|(_, fields)| fields.clone()).collect()
    }
}

fn while_there(
    stream: &mut BufReader<TcpStream>,
    base: &str,
    seen: &Mutex<Vec<(String, Fields)>>,
) -> Option<()> {
    loop {
        let (mut first, mut length, mut token) = (String::new(), 0, None);
        stream.read_line(&mut first).ok().filter(|read| *read > 0)?;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            } else if lower.starts_with("authorization:") {
                token = Some(line.trim_end().to_owned());
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        let text = String::from_utf8(body).ok()?;
        let target = first.split(' ').nth(1)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut asked = fields(query);
        asked.extend(fields(&text));
        seen.lock().unwrap().push((path.to_owned(), asked.clone()));
        let message: Value = serde_json::from_str(&text).unwrap_or_default();
        let (status, header, document) = answer(path, &asked, token.as_deref(), &message, base);
        let body = document.to_string();
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{header}Content-Length: {}\r\n\r\n",
            body.len()
        );
        stream.get_mut().write_all(format!("{head}{body}").as_bytes()).ok()?;
    }
}

fn answer(
    path: &str,
    asked: &Fields,
    token: Option<&str>,
    message: &Value,
    base: &str,
) -> (u16, String, Value) {
    let plain = |document| (200, String::new(), document);
    match path {
        "/mcp" if !token.is_some_and(|token| token.ends_with(" Bearer hunter2-token")) => {
            let place = format!("{base}/.well-known/oauth-protected-resource/mcp");
            (401, format!("WWW-Authenticate: Bearer resource_metadata=\"{place}\"\r\n"), json!({}))
        }
        "/mcp" => {
            let result = match message["method"].as_str() {
                Some("initialize") => {
                    json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                    "serverInfo": { "name": "guarded", "version": "1" } })
                }
                Some("tools/list") => {
                    json!({ "tools": [{ "name": "look", "inputSchema": { "type": "object" } }] })
                }
                Some("notifications/initialized") => return (202, String::new(), json!({})),
                Some("server/discover") => return (400, String::new(), json!({})),
                _ => return (405, String::new(), json!({})),
            };
            plain(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
        }
        "/.well-known/oauth-protected-resource/mcp" => {
            plain(json!({ "resource": format!("{base}/mcp"), "authorization_servers": [base] }))
        }
        "/.well-known/oauth-authorization-server" => {
            plain(json!({ "issuer": base, "authorization_endpoint": format!("{base}/authorize"),
            "token_endpoint": format!("{base}/token"), "registration_endpoint": format!("{base}/register"),
            "revocation_endpoint": format!("{base}/revoke"), "code_challenge_methods_supported": ["S256"],
            "client_id_metadata_document_supported": true,
            "token_endpoint_auth_methods_supported": ["none", "client_secret_post"] }))
        }
        "/register" => (201, String::new(), json!({ "client_id": "registered" })),
        "/authorize" => {
            let place = format!("{}?code=a-code&state={}", asked["redirect_uri"], asked["state"]);
            (302, format!("Location: {place}\r\n"), json!({}))
        }
        "/token" => {
            plain(json!({ "access_token": "hunter2-token", "token_type": "Bearer", "expires_in": 600 }))
        }
        "/revoke" => plain(json!({})),
        _ => (404, String::new(), json!({})),
    }
}

/// Sends a GET request; returns the head and the beginning of the body.
fn get(url: &str) -> String {
    let (host, target) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.write_all(format!("GET /{target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    let mut answer = vec![0; 16 << 10];
    let read = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// Logs in with a browser that opens the printed URL and agrees.
fn log_in(env: &TestEnv, words: &[&str]) -> (Finished, String) {
    let running = env.start_with_errors_in("told", [&["login"], words].concat());
    let shown = || {
        let told = env.read("told");
        told.lines()
            .find_map(|line| line.strip_prefix("  http").map(|rest| format!("http{rest}")))
            .filter(|_| told.ends_with("\n\n"))
    };
    eventually("the address is shown", || shown().is_some());
    let url = shown().unwrap();
    let answer = get(&url);
    let place = answer.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap().trim();
    assert!(get(place).contains("You are logged in."));
    (running.finish(), url)
}

#[test]
pub(crate) fn url() {
    let (env, server) = (TestEnv::new(), Guarded::start());
    let target = server.server();
    let refused = env.run(["tools", &target, "--json"]).exit(3);
    assert!(refused.error()["hints"].to_string().contains(&format!("toolpost login {target}")), "{refused}");
    let (login, _) = log_in(&env, &[&target, "--json", "--quiet"]);
    let login = login.ok().json();
    assert_eq!((&login["issuer"], &login["renewable"]), (&json!(server.url), &json!(false)));
    let listed = env.run(["tools", &target]).ok();
    assert!(listed.out.contains("look"), "{listed}");
    let file = env.path("../home/.local/state/toolpost/tokens.json");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.contains("hunter2-token"));
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions()) & 0o777,
        0o600
    );
    assert!(!format!("{listed} {login} {}", env.read("told")).contains("hunter2"));
    env.run(["logout", &target]).ok();
    assert_eq!(server.seen("/revoke")[0]["token"], "hunter2-token");
    assert!(!std::fs::read_to_string(&file).unwrap().contains("hunter2"));
    env.run(["tools", &target]).exit(3);
    env.run(["logout", &target]).exit(2);
    // An unreachable server, and one without a login.
    env.run(["login", "http://127.0.0.1:1/mcp"]).exit(4);
    env.run(["login", "nonsense"]).exit(1);
}

#[test]
pub(crate) fn scope() {
    let (env, server) = (TestEnv::new(), Guarded::start());
    let (login, _) = log_in(&env, &[&server.server(), "--scope", "one", "--scope", "two"]);
    login.ok();
    assert_eq!(server.seen("/authorize")[0]["scope"], "one two");
}

#[test]
pub(crate) fn client_id() {
    let (env, server) = (TestEnv::new().with("CLIENT_SECRET", "hunter2"), Guarded::start());
    let target = server.server();
    let words = [&target, "--client-id", "by-hand", "--client-secret-env", "CLIENT_SECRET", "--issuer"];
    let (login, url) = log_in(&env, &[&words[..], &[&server.url]].concat());
    login.ok();
    assert!(url.contains("client_id=by-hand"), "{url}");
    assert_eq!(server.seen("/token")[0]["client_secret"], "hunter2");
    // A client of another authorization server is not sent to this one.
    let (login, url) = log_in(&env, &[&words[..], &["https://login.example"]].concat());
    login.ok();
    assert!(url.contains("client_id=registered"), "{url}");
    let words = ["login", &target, "--client-id", "x", "--client-secret-env", "NO_SUCH_SECRET"];
    env.run(words).exit(3);
}

#[test]
pub(crate) fn client_document() {
    let (env, server) = (TestEnv::new(), Guarded::start());
    let (login, _) = log_in(&env, &[&server.server(), "--client-document", "https://me.example/client.json"]);
    login.ok();
    assert_eq!(server.seen("/authorize")[0]["client_id"], "https://me.example/client.json");
    assert!(server.seen("/register").is_empty());
}

#[test]
pub(crate) fn callback_port() {
    let (env, server) = (TestEnv::new(), Guarded::start());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let (login, _) = log_in(&env, &[&server.server(), "--callback-port", &port]);
    login.ok();
    assert_eq!(server.seen("/authorize")[0]["redirect_uri"], format!("http://127.0.0.1:{port}/callback"));
}

#[test]
pub(crate) fn timeout() {
    let (env, server) = (TestEnv::new(), Guarded::start());
    let begun = Instant::now();
    let ended = env.run(["login", &server.server(), "--timeout", "300ms"]).exit(4);
    assert!(ended.err.contains("the login was not completed"), "{ended}");
    assert!(begun.elapsed().as_secs() < 60);
}
