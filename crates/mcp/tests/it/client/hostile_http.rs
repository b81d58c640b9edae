//! Hostile and broken HTTP servers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use toolpost_core::{Code, RetryAdvice, Secret, ToolSource as _};
use toolpost_mcp::client::{Client, Endpoint};

use super::support::call;

/// A legacy server with one tool; a call of it gets fixed bytes.
pub(super) struct Raw {
    pub(super) url: String,
    /// The heads of the received requests.
    heads: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) fn http(status: &str, head: &str, body: &[u8]) -> Vec<u8> {
    let mut response =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{head}\r\n", body.len()).into_bytes();
    response.extend_from_slice(body);
    response
}

/// The response to a request: `ID` in its body stands for the id of the request.
fn with_id(response: &[u8], id: &Value) -> Vec<u8> {
    let Some(split) = response.windows(4).position(|word| word == b"\r\n\r\n") else {
        return response.to_vec();
    };
    let (head, body) = response.split_at(split + 4);
    let Ok(text) = std::str::from_utf8(body) else { return response.to_vec() };
    let body = text.replace("ID", &id.to_string()).into_bytes();
    let head = String::from_utf8_lossy(head).into_owned();
    let lines = head.lines().filter(|line| !line.is_empty() && !line.starts_with("Content-Length:"));
    let head = lines.collect::<Vec<_>>().join("\r\n");
    [format!("{head}\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(), &body].concat()
}

/// Answers one request; `None` at the end of the connection.
async fn respond(
    stream: &mut BufReader<TcpStream>,
    heads: &Mutex<Vec<String>>,
    to_calls: &[u8],
    to_all: Option<&[u8]>,
) -> Option<()> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    heads.lock().unwrap().push(head.clone());
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    let id = message["id"].clone();
    let good = |result: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
        http("200 OK", "Content-Type: application/json\r\n", body.as_bytes())
    };
    let response = match (to_all, message["method"].as_str()) {
        (Some(bytes), _) => bytes.to_vec(),
        (_, Some("initialize")) => {
            good(json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
            "serverInfo": { "name": "raw", "version": "1" } }))
        }
        (_, Some("tools/list")) => {
            good(json!({ "tools": [{ "name": "bad", "inputSchema": { "type": "object" } }] }))
        }
        (_, Some("tools/call")) => with_id(to_calls, &id),
        (_, Some("server/discover")) => {
            let body = json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "no" } })
                .to_string();
            http("200 OK", "Content-Type: application/json\r\n", body.as_bytes())
        }
        (_, None) if head.starts_with("GET") => http("405 Method Not Allowed", "", b""),
        _ => http("202 Accepted", "", b""),
    };
    stream.get_mut().write_all(&response).await.ok()
}

impl Raw {
    pub(super) async fn start(to_calls: Vec<u8>, to_all: Option<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let received = Arc::clone(&heads);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (heads, to_calls, to_all) = (Arc::clone(&received), to_calls.clone(), to_all.clone());
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    while respond(&mut stream, &heads, &to_calls, to_all.as_deref()).await.is_some() {}
                });
            }
        });
        Self { url, heads, task }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_response_fails_its_call() {
    let kind = "Content-Type: application/json\r\n";
    let large = format!("\"{}\"", "x".repeat(17 << 20));
    let event = format!("data: {}\n\n", "x".repeat(17 << 20));
    let long = Some(RetryAdvice::After(Duration::from_secs(7)));
    let max = Some(RetryAdvice::After(Duration::from_mins(5)));
    for (answer, code, retry) in [
        (http("200 OK", kind, large.as_bytes()), Code::Limit, None),
        (http("200 OK", kind, b"<html>"), Code::Dependency, None),
        (http("200 OK", "Content-Type: text/html\r\n", b"<html>"), Code::Dependency, None),
        (http("500 Internal Server Error", "", b"<html>"), Code::Dependency, None),
        (http("503 Service Unavailable", "Retry-After: 7\r\n", b""), Code::Dependency, long),
        (http("429 Too Many Requests", "Retry-After: 7\r\n", b""), Code::Overloaded, long),
        (http("429 Too Many Requests", "Retry-After: 99999\r\n", b""), Code::Overloaded, max),
        (http("403 Forbidden", "", b"no"), Code::Permission, None),
        (http("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", b""), Code::Permission, None),
    ] {
        let shown = String::from_utf8_lossy(&answer[..answer.len().min(120)]).into_owned();
        let server = Raw::start(answer, None).await;
        let client = Client::builder(Endpoint::http(&server.url)).name("raw").connect().await.unwrap();
        let error = call(&client, "bad", json!({})).await.unwrap_err();
        assert_eq!(error.code(), code, "{shown}: {error}");
        if retry.is_some() {
            assert_eq!(error.retry_advice(), retry, "{shown}");
        }
        assert!(error.message().len() < 2_000, "{shown}: {error}");
        assert_eq!(client.list().await.unwrap().len(), 1);
    }
    let server =
        Raw::start(http("200 OK", "Content-Type: text/event-stream\r\n", event.as_bytes()), None).await;
    let client =
        Client::builder(Endpoint::http(&server.url)).timeout(Duration::from_secs(5)).connect().await.unwrap();
    let error = call(&client, "bad", json!({})).await.unwrap_err();
    assert!(matches!(error.code(), Code::Dependency | Code::Limit | Code::Timeout), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let other = Raw::start(Vec::new(), None).await;
    let redirect = http("307 Temporary Redirect", &format!("Location: {}\r\n", other.url), b"");
    let server = Raw::start(Vec::new(), Some(redirect)).await;
    let headers = vec![("Authorization".to_owned(), Secret::new("Bearer hunter2"))];
    let endpoint = Endpoint::Http { url: server.url.clone(), headers };
    let error = Client::builder(endpoint).name("raw").connect().await.unwrap_err();
    assert_eq!(error.code(), Code::Dependency, "{error}");
    assert!(!format!("{error:#?}").contains("hunter2"), "{error:#?}");
    assert!(server.heads.lock().unwrap().iter().any(|head| head.contains("hunter2")));
    assert_eq!(other.heads.lock().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_without_an_mcp_server_is_an_error() {
    for (answer, code) in [
        (http("404 Not Found", "Content-Type: text/html\r\n", b"<html>"), Code::NotFound),
        (http("401 Unauthorized", "", b""), Code::Permission),
        (http("200 OK", "Content-Type: text/html\r\n", b"<html>"), Code::Dependency),
        (b"garbage\r\n\r\n".to_vec(), Code::Dependency),
    ] {
        let shown = String::from_utf8_lossy(&answer).into_owned();
        let server = Raw::start(Vec::new(), Some(answer)).await;
        let error = Client::builder(Endpoint::http(&server.url))
            .connect_timeout(Duration::from_secs(20))
            .connect()
            .await
            .unwrap_err();
        assert_eq!(error.code(), code, "{shown}: {error}");
    }
}
