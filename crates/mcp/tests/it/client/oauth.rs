//! Servers that require OAuth, beyond the cases of the conformance suite.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::Url;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use toolpost_core::{Code, Secret, ToolError};
use toolpost_mcp::client::{Client, Endpoint, Identity, OAuth, TokenStore};

use super::support::call;

/// Changes the response of a path.
type Change = Box<dyn Fn(&str, &mut Value) + Send + Sync>;

/// The behavior of the server and the requests that it received.
struct Facts {
    change: Change,
    /// The requests by path: parameters and headers.
    seen: Mutex<Vec<(String, BTreeMap<String, String>)>>,
    state: Mutex<State>,
    url: String,
}

struct State {
    /// The valid access token and refresh token.
    good: String,
    refresh: String,
    number: u32,
    expires_in: Value,
    /// The scope that calls require.
    required_scope: Option<String>,
}

/// A legacy server that requires tokens, and its authorization server.
struct Guarded {
    facts: Arc<Facts>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A received request.
struct Received {
    method: String,
    path: String,
    fields: BTreeMap<String, String>,
    body: Value,
}

async fn receive(stream: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            break;
        }
        lines.push(line.trim_end().to_owned());
    }
    let mut fields: BTreeMap<String, String> = lines
        .iter()
        .skip(1)
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (format!("header {}", name.to_lowercase()), value.to_owned()))
        .collect();
    let length = fields.get("header content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    let mut words = lines.first()?.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let mut url = Url::parse("http://x").unwrap().join(target).ok()?;
    if fields.get("header content-type").is_some_and(|kind| kind.contains("form")) {
        url.set_query(Some(&String::from_utf8_lossy(&body)));
    }
    fields.extend(url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())));
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some(Received { method, path: url.path().to_owned(), fields, body })
}

impl Facts {
    fn token(&self, fields: &BTreeMap<String, String>) -> (u16, Value) {
        let mut state = self.state.lock().unwrap();
        let given = fields.get("refresh_token");
        if given.is_some_and(|given| *given != state.refresh) {
            return (400, json!({ "error": "invalid_grant" }));
        }
        state.number += 1;
        (state.good, state.refresh) = (format!("good-{}", state.number), format!("refresh-{}", state.number));
        let scope = fields.get("scope").cloned().unwrap_or_default();
        (
            200,
            json!({ "access_token": state.good, "token_type": "Bearer", "refresh_token": state.refresh,
                "expires_in": state.expires_in, "scope": scope }),
        )
    }

    fn mcp(&self, request: &Received) -> (u16, Option<String>, Value) {
        let mut state = self.state.lock().unwrap();
        let metadata = format!("resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"", self.url);
        if request.fields.get("header authorization") != Some(&format!("Bearer {}", state.good)) {
            return (401, Some(format!("Bearer {metadata}")), json!({}));
        }
        let method = request.body["method"].as_str().unwrap_or_default();
        if method == "tools/call"
            && let Some(required) = state.required_scope.take()
        {
            if required == "endless" {
                state.required_scope = Some(required.clone());
            }
            let scope = format!("{required}{}", state.number);
            let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\", {metadata}");
            return (403, Some(challenge), json!({}));
        }
        let result = match method {
            "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} },
                "serverInfo": { "name": "guarded", "version": "1" } }),
            "tools/list" => json!({ "tools": [{ "name": "look", "inputSchema": { "type": "object" } }] }),
            "tools/call" => json!({ "content": [{ "type": "text", "text": "seen" }] }),
            _ if request.method == "GET" => return (405, None, json!({})),
            _ if request.body["id"].is_null() => return (202, None, json!({})),
            _ => {
                let error = json!({ "code": -32601, "message": "no" });
                return (200, None, json!({ "jsonrpc": "2.0", "id": request.body["id"], "error": error }));
            }
        };
        (200, None, json!({ "jsonrpc": "2.0", "id": request.body["id"], "result": result }))
    }

    /// The status, a header and the body of a response.
    fn respond(&self, request: &Received) -> (u16, String, Value) {
        let url = &self.url;
        let (status, header, mut document) = match request.path.as_str() {
            "/mcp" => {
                let (status, challenge, document) = self.mcp(request);
                let header = challenge.map_or(String::new(), |text| format!("WWW-Authenticate: {text}\r\n"));
                return (status, header, document);
            }
            "/.well-known/oauth-protected-resource/mcp" => (
                200,
                String::new(),
                json!({ "resource": format!("{url}/mcp"), "authorization_servers": [url], "scopes_supported": ["basic"] }),
            ),
            "/.well-known/oauth-authorization-server" => (
                200,
                String::new(),
                json!({ "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
                    "token_endpoint": format!("{url}/token"), "registration_endpoint": format!("{url}/register"),
                    "revocation_endpoint": format!("{url}/revoke"), "code_challenge_methods_supported": ["S256"],
                    "token_endpoint_auth_methods_supported": ["none", "client_secret_post"] }),
            ),
            "/register" => (201, String::new(), json!({ "client_id": "registered" })),
            "/authorize" => {
                let (back, state) = (&request.fields["redirect_uri"], &request.fields["state"]);
                (302, format!("Location: {back}?code=a-code&state={state}\r\n"), json!({}))
            }
            "/token" => {
                let (status, document) = self.token(&request.fields);
                (status, String::new(), document)
            }
            "/revoke" => (200, String::new(), json!({})),
            _ => (404, String::new(), json!({})),
        };
        (self.change)(&request.path, &mut document);
        if let Some(target) = document.get("redirect").and_then(Value::as_str) {
            return (302, format!("Location: {target}\r\n"), json!({}));
        }
        (status, header, document)
    }
}

impl Guarded {
    async fn start() -> Self {
        Self::changed(|_, _| {}).await
    }

    async fn changed(change: impl Fn(&str, &mut Value) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let facts = Arc::new(Facts {
            change: Box::new(change),
            seen: Mutex::default(),
            state: Mutex::new(State {
                good: "unissued".to_owned(),
                refresh: String::new(),
                number: 0,
                expires_in: json!(3_600),
                required_scope: None,
            }),
            url: format!("http://{}", listener.local_addr().unwrap()),
        });
        let shared = Arc::clone(&facts);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let facts = Arc::clone(&shared);
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    while let Some(request) = receive(&mut stream).await {
                        facts.seen.lock().unwrap().push((request.path.clone(), request.fields.clone()));
                        let (status, header, document) = facts.respond(&request);
                        let body = document.to_string();
                        let answer = format!(
                            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{header}Content-Length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        if stream.get_mut().write_all(answer.as_bytes()).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Self { facts, task }
    }

    fn url(&self) -> String {
        format!("{}/mcp", self.facts.url)
    }

    /// The requests of a path.
    fn seen(&self, path: &str) -> Vec<BTreeMap<String, String>> {
        let seen = self.facts.seen.lock().unwrap();
        seen.iter().filter(|(known, _)| known == path).map(|(_, fields)| fields.clone()).collect()
    }

    /// Invalidates the access token.
    fn invalidate_token(&self) {
        "unissued".clone_into(&mut self.facts.state.lock().unwrap().good);
    }

    async fn connect(&self, oauth: OAuth) -> Result<Arc<Client>, ToolError> {
        Ok(Client::builder(Endpoint::http(self.url())).name("guarded").oauth(oauth).connect().await?)
    }
}

/// A browser whose user accepts the login.
fn browse(url: &str) {
    let url = Url::parse(url).unwrap();
    tokio::spawn(async move {
        let response = get(&url).await;
        let target = response.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap_or_default();
        if let Ok(target) = Url::parse(target) {
            get(&target).await;
        }
    });
}

async fn get(url: &Url) -> String {
    let mut stream = TcpStream::connect((url.host_str().unwrap(), url.port().unwrap())).await.unwrap();
    let target = format!("{}?{}", url.path(), url.query().unwrap_or_default());
    stream
        .write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = vec![0; 64 << 10];
    let read = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

fn interactive_client(store: &TokenStore) -> OAuth {
    OAuth::new(store.clone()).interactive(browse)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_serves_later_clients_until_the_logout() {
    let directory = tempfile::tempdir().unwrap();
    let store = || TokenStore::file(directory.path().join("tokens.json"));
    let server = Guarded::start().await;
    let error = server.connect(OAuth::new(store())).await.unwrap_err();
    assert_eq!(
        (error.code(), error.context().get("unauthorized")),
        (Code::Permission, Some(&json!(true))),
        "{error}"
    );
    assert!(server.seen("/register").is_empty() && server.seen("/token").is_empty());

    let login = interactive_client(&store()).login(&server.url(), false).await.unwrap();
    assert_eq!(
        (login.issuer.as_str(), login.scopes.join(" ").as_str()),
        (server.facts.url.as_str(), "basic")
    );
    assert!(login.is_refreshable && login.expires_in.unwrap() > Duration::from_mins(50));
    let client = server.connect(OAuth::new(store())).await.unwrap();
    call(&client, "look", json!({})).await.unwrap();
    assert_eq!(server.seen("/authorize").len(), 1);
    let sent = &server.seen("/authorize")[0];
    assert_eq!(
        (sent["resource"].as_str(), sent["scope"].as_str(), sent["client_id"].as_str()),
        (server.url().as_str(), "basic", "registered")
    );
    // A second login reuses the registration.
    let again = interactive_client(&store()).login(&server.url(), false).await.unwrap();
    assert_eq!((again.issuer, server.seen("/register").len()), (login.issuer, 1));

    assert!(OAuth::new(store()).logout(&server.url(), false).await.unwrap());
    let given: Vec<_> = server.seen("/revoke").into_iter().map(|fields| fields["token"].clone()).collect();
    assert_eq!(given, ["refresh-2", "good-2"]);
    assert!(!OAuth::new(store()).logout(&server.url(), false).await.unwrap());
    server.connect(OAuth::new(store())).await.unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_clients_refresh_an_expired_token_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = || TokenStore::file(directory.path().join("tokens.json"));
    let server = Guarded::start().await;
    interactive_client(&store()).login(&server.url(), false).await.unwrap();
    let clients = [
        server.connect(OAuth::new(store())).await.unwrap(),
        server.connect(OAuth::new(store())).await.unwrap(),
    ];
    // Both clients see the rejection at once; a second use of the refresh token would invalidate both.
    server.invalidate_token();
    let calls = clients.iter().flat_map(|client| (0..4).map(|_| call(client, "look", json!({}))));
    for answer in futures_util::future::join_all(calls).await {
        answer.unwrap();
    }
    let refreshed =
        server.seen("/token").iter().filter(|fields| fields["grant_type"] == "refresh_token").count();
    assert_eq!(refreshed, 1);
    // A token that expires soon is refreshed before a rejection.
    server.facts.state.lock().unwrap().expires_in = json!(10);
    interactive_client(&store()).login(&server.url(), false).await.unwrap();
    let rejected =
        || server.seen("/mcp").iter().filter(|fields| !fields.contains_key("header authorization")).count();
    let (before, tokens) = (rejected(), server.seen("/token").len());
    let client = server.connect(OAuth::new(store())).await.unwrap();
    call(&client, "look", json!({})).await.unwrap();
    assert_eq!(rejected(), before);
    assert!(server.seen("/token").len() > tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_refresh_token_is_used_once() {
    let (server, store) = (Guarded::start().await, TokenStore::memory());
    interactive_client(&store).login(&server.url(), false).await.unwrap();
    server.invalidate_token();
    "another".clone_into(&mut server.facts.state.lock().unwrap().refresh);
    for _ in 0..2 {
        let error = server.connect(OAuth::new(store.clone())).await.unwrap_err();
        assert_eq!(error.context().get("unauthorized"), Some(&json!(true)), "{error}");
    }
    assert_eq!(server.seen("/token").len(), 2);
    // An interactive client can log in again.
    server.connect(interactive_client(&store)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn scope_requests_of_a_server_are_bounded() {
    let (server, store) = (Guarded::start().await, TokenStore::memory());
    server.facts.state.lock().unwrap().required_scope = Some("once".to_owned());
    let client = server.connect(interactive_client(&store)).await.unwrap();
    call(&client, "look", json!({})).await.unwrap();
    let scopes: Vec<_> =
        server.seen("/authorize").into_iter().map(|fields| fields["scope"].clone()).collect();
    assert_eq!(scopes, ["basic", "basic once1"]);
    server.facts.state.lock().unwrap().required_scope = Some("endless".to_owned());
    for _ in 0..4 {
        let error = call(&client, "look", json!({})).await.unwrap_err();
        assert_eq!(error.code(), Code::Permission, "{error}");
    }
    assert_eq!(server.seen("/authorize").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_client_settings_are_used() {
    let server = Guarded::start().await;
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let identity = Identity::new("by-hand").secret(Secret::new("hunter2&")).issuer(server.facts.url.clone());
    let oauth = interactive_client(&TokenStore::memory())
        .identity(identity)
        .scope("one")
        .scope("two")
        .callback_port(port);
    server.connect(oauth).await.unwrap();
    let sent = &server.seen("/authorize")[0];
    assert_eq!(
        (sent["client_id"].as_str(), sent["scope"].as_str(), sent["redirect_uri"].clone()),
        ("by-hand", "one two", format!("http://127.0.0.1:{port}/callback"))
    );
    let token = &server.seen("/token")[0];
    assert_eq!((token["client_secret"].as_str(), token["client_id"].as_str()), ("hunter2&", "by-hand"));
    assert!(server.seen("/register").is_empty());

    // Another authorization server does not get the registered client.
    let identity = Identity::new("by-hand").secret(Secret::new("hunter2&")).issuer("https://login.example");
    server.connect(interactive_client(&TokenStore::memory()).identity(identity)).await.unwrap();
    assert_eq!(server.seen("/authorize")[1]["client_id"], "registered");
    assert!(!server.seen("/token")[1].values().any(|value| value.contains("hunter2")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_metadata_document_is_used_where_it_is_supported() {
    for (is_known, expected) in [(true, "https://me.example/client.json"), (false, "registered")] {
        let server = Guarded::changed(move |path, document| {
            if path == "/.well-known/oauth-authorization-server" {
                document["client_id_metadata_document_supported"] = is_known.into();
            }
        })
        .await;
        let oauth =
            interactive_client(&TokenStore::memory()).metadata_document("https://me.example/client.json");
        server.connect(oauth).await.unwrap();
        assert_eq!(server.seen("/authorize")[0]["client_id"], expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_has_a_timeout() {
    let server = Guarded::start().await;
    let oauth =
        OAuth::new(TokenStore::memory()).interactive(|_| {}).login_timeout(Duration::from_millis(300));
    let error = oauth.login(&server.url(), false).await.unwrap_err();
    assert_eq!(error.code(), Code::Timeout, "{error}");
}

/// A URL in the metadata points to a blocked address.
#[tokio::test(flavor = "multi_thread")]
async fn metadata_cannot_name_private_addresses() {
    const OAUTH: &str = "/.well-known/oauth-authorization-server";
    const RESOURCE: &str = "/.well-known/oauth-protected-resource/mcp";
    for (path, field, value, rule) in [
        (RESOURCE, "authorization_servers", json!(["https://169.254.169.254"]), "metadata"),
        (RESOURCE, "authorization_servers", json!(["https://[::ffff:169.254.169.254]/"]), "metadata"),
        (RESOURCE, "authorization_servers", json!(["https://10.0.0.1"]), "private"),
        (RESOURCE, "authorization_servers", json!(["https://192.168.0.1/x"]), "private"),
        (RESOURCE, "authorization_servers", json!(["http://login.example"]), ""),
        (RESOURCE, "authorization_servers", json!(["http://127.0.0.1:9"]), "loopback"),
        (RESOURCE, "redirect", json!("http://localhost:9/"), "loopback"),
        (RESOURCE, "redirect", json!("https://169.254.169.254/latest/meta-data"), "metadata"),
        (RESOURCE, "redirect", json!("http://[fd00:ec2::254]/latest"), ""),
        (OAUTH, "redirect", json!("https://10.0.0.1/x"), "private"),
        (OAUTH, "token_endpoint", json!("https://169.254.169.254/token"), "metadata"),
        (OAUTH, "token_endpoint", json!("https://172.16.0.1/token"), "private"),
        (OAUTH, "authorization_endpoint", json!("https://10.1.1.1/authorize"), "private"),
        (OAUTH, "authorization_endpoint", json!("javascript:alert(1)"), ""),
        (OAUTH, "authorization_endpoint", json!("file:///etc/passwd"), ""),
        (OAUTH, "registration_endpoint", json!("https://10.1.1.1/register"), "private"),
        (OAUTH, "registration_endpoint", json!("http://127.0.0.1:9/register"), "loopback"),
        (OAUTH, "authorization_endpoint", json!("http://localhost:9/authorize"), "loopback"),
        (OAUTH, "token_endpoint", json!("http://[::1]:9/token"), "loopback"),
        ("/token", "redirect", json!("https://login.example/token"), ""),
        ("/register", "redirect", json!("https://login.example/register"), ""),
    ] {
        let changed = value.clone();
        let server = Guarded::changed(move |requested, document| {
            if requested == path {
                document[field] = changed.clone();
            }
        })
        .await;
        let error = interactive_client(&TokenStore::memory()).login(&server.url(), false).await.unwrap_err();
        assert_eq!(error.code(), Code::Permission, "{field} {value}: {error}");
        let found = error.context().get("rule").and_then(Value::as_str).unwrap_or_default();
        assert_eq!(found, rule, "{field} {value}: {error}");
    }
    // A redirect loop, and an oversized document.
    let cyclic = Guarded::changed(|path, document| {
        if path == RESOURCE {
            document["redirect"] = json!(RESOURCE);
        }
    })
    .await;
    let error = interactive_client(&TokenStore::memory()).login(&cyclic.url(), false).await.unwrap_err();
    assert_eq!((error.code(), cyclic.seen(RESOURCE).len()), (Code::Limit, 4), "{error}");
    let large = Guarded::changed(|path, document| {
        if path == OAUTH {
            document["more"] = "x".repeat(300 << 10).into();
        }
    })
    .await;
    let error = interactive_client(&TokenStore::memory()).login(&large.url(), false).await.unwrap_err();
    assert_eq!(error.code(), Code::Limit, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allowed_host_is_contacted_and_no_network_blocks_it() {
    let server = Guarded::changed(|path, document| {
        if path == "/.well-known/oauth-protected-resource/mcp" {
            document["authorization_servers"] = json!(["https://10.255.255.1"]);
        }
    })
    .await;
    let error = interactive_client(&TokenStore::memory()).login(&server.url(), true).await.unwrap_err();
    assert!(error.message().contains("TOOLPOST_NO_NETWORK"), "{error}");
    let error = interactive_client(&TokenStore::memory()).login(&server.url(), false).await.unwrap_err();
    assert!(error.suggestion().unwrap().contains("allow the host `10.255.255.1`"), "{error}");
    // The host is contacted now; nothing listens there.
    let allowed = interactive_client(&TokenStore::memory()).allow_host("10.255.255.1");
    let login = tokio::time::timeout(Duration::from_secs(3), allowed.login(&server.url(), false)).await;
    assert!(login.is_err() || login.unwrap().unwrap_err().code() != Code::Permission);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authorization_header_disables_oauth() {
    let (server, store) = (Guarded::start().await, TokenStore::memory());
    let headers = vec![("authorization".to_owned(), Secret::new("Bearer wrong"))];
    let endpoint = Endpoint::Http { url: server.url(), headers };
    let error = Client::builder(endpoint).oauth(interactive_client(&store)).connect().await.unwrap_err();
    assert_eq!(error.context().get("unauthorized"), Some(&json!(true)), "{error}");
    assert!(server.seen("/authorize").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_no_error_and_no_other_request() {
    let server = Guarded::changed(|path, document| {
        if path == "/token" {
            *document = json!({ "access_token": "hunter2 hunter2", "token_type": "Bearer" });
        }
    })
    .await;
    let identity = Identity::new("by-hand").secret(Secret::new("hunter2-secret"));
    let oauth = interactive_client(&TokenStore::memory()).identity(identity);
    let shown = format!("{oauth:?}");
    let error = oauth.login(&server.url(), false).await.unwrap_err();
    assert!(!format!("{error:#?} {shown}").contains("hunter2"), "{error:#?} {shown}");
    for path in ["/mcp", "/authorize"] {
        assert!(!format!("{:?}", server.seen(path)).contains("hunter2"), "{path}");
    }
}
