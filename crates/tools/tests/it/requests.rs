//! `http_request` against servers on this machine.

use std::time::Duration;

use serde_json::{Value, json};
use toolpost_core::{Code, ToolError};
use toolpost_testkit::provider::{LoopbackProvider, ReceivedRequest, Reply};
use toolpost_tools::HttpSettings;

use crate::support::Bench;

/// Settings under which this machine may be asked.
fn local() -> HttpSettings {
    let mut settings = HttpSettings::default();
    settings.allowed_hosts = vec!["127.0.0.1".into()];
    settings
}

fn bench(settings: HttpSettings) -> Bench {
    Bench::with(|builder| builder.provide(settings))
}

/// A server that returns the request.
fn echo() -> LoopbackProvider {
    LoopbackProvider::start_with(|request: &ReceivedRequest| {
        let headers: serde_json::Map<String, Value> =
            request.headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let request = json!({
            "method": request.method, "path": request.path, "headers": headers,
            "body": String::from_utf8_lossy(&request.body),
        });
        Reply::json(200, request.to_string())
    })
    .unwrap()
}

/// The request to the server of [`echo`] by these arguments, `url` being a path.
async fn asked(mut arguments: Value) -> Value {
    let server = echo();
    let path = arguments["url"].as_str().unwrap_or("/").to_owned();
    arguments["url"] = format!("{}{path}", server.base_url()).into();
    let value = bench(local()).value("http_request", arguments).await;
    serde_json::from_str(value["body"].as_str().unwrap()).unwrap()
}

async fn refused(settings: HttpSettings, url: &str) -> ToolError {
    bench(settings).error("http_request", json!({ "url": url, "timeout": 5 })).await
}

#[tokio::test]
async fn a_request_is_a_get_and_its_answer_is_whole() {
    let server = LoopbackProvider::start(vec![
        Reply::new(200, "text/plain", "hello").header("x-one", "1").header("x-one", "2"),
    ])
    .unwrap();
    let url = format!("{}/a?b=c", server.base_url());
    let reply = bench(local()).reply("http_request", json!({ "url": url })).await;
    let output = reply.result.unwrap();
    assert_eq!(output.to_text(), "HTTP 200 OK\ncontent-type: text/plain\n\nhello");
    let mut value = output.structured.unwrap();
    assert!(value["elapsed_ms"].take().is_u64());
    assert_eq!(
        value,
        json!({
            "status": 200, "ok": true, "url": url, "body": "hello", "body_encoding": "text", "bytes": 5,
            "truncated": false, "redirects": [], "elapsed_ms": null,
            "headers": { "content-type": "text/plain", "content-length": "5", "x-one": "1, 2" },
        })
    );
    let request = &server.requests()[0];
    assert_eq!((request.method.as_str(), request.path.as_str()), ("GET", "/a?b=c"));
    assert!(request.header("user-agent").unwrap().starts_with("toolpost/"));
}

#[tokio::test]
async fn each_parameter_reaches_the_server() {
    let request = asked(json!({ "url": "/x", "method": "PUT", "data": "plain body" })).await;
    assert_eq!((&request["method"], &request["body"]), (&json!("PUT"), &json!("plain body")));
    let request = asked(json!({ "url": "/x", "method": "POST", "json_data": { "a": [1, null] } })).await;
    assert_eq!(request["body"], r#"{"a":[1,null]}"#);
    assert_eq!(request["headers"]["content-type"], "application/json");
    let request = asked(json!({
        "url": "/x?q=1", "headers": { "X-Trace": "7", "Content-Type": "application/x" }, "json_data": 1,
        "params": { "tag": ["a b", 2, true], "text": "ü&=" },
    }))
    .await;
    assert_eq!(request["path"], "/x?q=1&tag=a+b&tag=2&tag=true&text=%C3%BC%26%3D");
    assert_eq!(
        (&request["headers"]["x-trace"], &request["headers"]["content-type"]),
        (&json!("7"), &json!("application/x"))
    );
}

#[tokio::test]
async fn user_and_password_of_an_address_are_sent_as_a_header() {
    let server = echo();
    let url = format!("http://anna:pa55@{}/", server.address());
    let value = bench(local()).value("http_request", json!({ "url": url })).await;
    assert_eq!(value["url"], format!("{}/", server.base_url()));
    assert_eq!(server.requests()[0].header("authorization"), Some("Basic YW5uYTpwYTU1"));
}

#[tokio::test]
async fn a_status_is_a_result() {
    for status in [204, 404, 429, 500, 503] {
        let server = LoopbackProvider::start(vec![Reply::new(status, "text/plain", "")]).unwrap();
        let value = bench(local()).value("http_request", json!({ "url": server.base_url() })).await;
        assert_eq!((&value["status"], &value["ok"]), (&json!(status), &json!(status == 204)));
        assert_eq!(server.requests().len(), 1, "{status} is not tried again");
    }
}

#[tokio::test]
async fn bodies_are_text_where_they_can_be() {
    for (kind, body, expected, encoding) in [
        ("text/html; charset=iso-8859-1", &b"Gr\xfc\xdfe"[..], "Grüße", "text"),
        ("text/plain", b"a\xffb", "a\u{fffd}b", "text"),
        ("application/problem+json", b"{}", "{}", "text"),
        ("application/octet-stream", b"plain", "plain", "text"),
        ("application/octet-stream", b"a\0b", "YQBi", "base64"),
        ("image/png", b"\x89PNG", "iVBORw==", "base64"),
    ] {
        let server = LoopbackProvider::start(vec![Reply::new(200, kind, body)]).unwrap();
        let value = bench(local()).value("http_request", json!({ "url": server.base_url() })).await;
        assert_eq!((&value["body"], &value["body_encoding"]), (&json!(expected), &json!(encoding)), "{kind}");
    }
}

#[tokio::test]
async fn a_long_body_is_truncated_with_a_note() {
    let mut settings = local();
    settings.max_body_bytes = 5;
    for (body, expected, truncated) in
        [("12345", "12345", false), ("123456789", "12345", true), ("1234ü", "1234", true)]
    {
        // Without a length, as a server that never ends would send it.
        let server = LoopbackProvider::start(vec![Reply::events(body)]).unwrap();
        let output =
            bench(settings.clone()).run("http_request", json!({ "url": server.base_url() })).await.unwrap();
        let text = output.to_text().into_owned();
        let value = output.structured.unwrap();
        assert_eq!(value["truncated"], truncated);
        assert!(value["body"].as_str().unwrap().starts_with(expected), "{value}");
        assert_eq!(text.contains("[truncated to the first 5 bytes"), truncated, "{text}");
    }
}

#[tokio::test]
async fn internal_addresses_are_blocked_by_rule() {
    for (url, rule) in [
        ("http://127.0.0.1:1/", "loopback"),
        ("http://localhost:1/", "loopback"),
        ("http://[::1]:1/", "loopback"),
        ("http://[::ffff:127.0.0.1]:1/", "loopback"),
        ("http://[64:ff9b::7f00:1]:1/", "loopback"),
        ("http://2130706433:1/", "loopback"),
        ("http://0x7f.1:1/", "loopback"),
        ("http://127.1:1/", "loopback"),
        ("http://0.0.0.0:1/", "unspecified"),
        ("http://10.0.0.1:1/", "private"),
        ("http://192.168.0.1:1/", "private"),
        ("http://169.254.169.254/latest/meta-data/", "metadata"),
        ("http://[fd00:ec2::254]/", "metadata"),
        ("http://[fe80::1]/", "link_local"),
        ("http://224.0.0.1/", "multicast"),
        ("http://255.255.255.255/", "broadcast"),
    ] {
        let error = refused(HttpSettings::default(), url).await;
        assert_eq!(
            (error.code(), &error.context()["rule"]),
            (Code::Permission, &json!(rule)),
            "{url}: {error}"
        );
        let hint = error.suggestion().unwrap();
        assert!(hint.contains("the operator can allow the host"), "{error}");
    }
}

#[tokio::test]
async fn a_host_name_is_checked_and_pinned_by_address() {
    let server = echo();
    let port = server.address().port();
    let url = format!("http://service.example:{port}/");
    let mut settings = HttpSettings::default();
    settings.addresses.insert("service.example".into(), vec!["127.0.0.1".parse().unwrap()]);
    let error = refused(settings.clone(), &url).await;
    assert_eq!(error.context()["rule"], "loopback");
    assert!(error.message().contains("`service.example` resolves to 127.0.0.1"), "{error}");
    settings.addresses.get_mut("service.example").unwrap().insert(0, "93.184.216.34".parse().unwrap());
    let error = refused(settings.clone(), &url).await;
    assert_eq!(
        (error.code(), &error.context()["rule"]),
        (Code::Permission, &json!("loopback")),
        "one of several"
    );
    assert_eq!(server.connections(), 0);

    settings.addresses.insert("service.example".into(), vec!["127.0.0.1".parse().unwrap()]);
    settings.allowed_hosts = vec!["service.example:1".into()];
    assert_eq!(refused(settings.clone(), &url).await.code(), Code::Permission, "another port");
    settings.allowed_hosts = vec![format!("Service.example:{port}")];
    let value = bench(settings).value("http_request", json!({ "url": url })).await;
    assert_eq!(value["status"], 200);
    assert_eq!(server.requests()[0].header("host"), Some(format!("service.example:{port}").as_str()));
}

#[tokio::test]
async fn without_network_only_loopback_is_reachable() {
    let server = echo();
    let mut settings = local();
    settings.no_network = true;
    settings.addresses.insert("public.example".into(), vec!["93.184.216.34".parse().unwrap()]);
    settings.allowed_hosts.push("public.example".into());
    for url in ["http://public.example/", "http://93.184.216.34/"] {
        let error = refused(settings.clone(), url).await;
        assert_eq!(
            (error.code(), &error.context()["rule"]),
            (Code::Permission, &json!("no_network")),
            "{error}"
        );
        assert!(error.suggestion().unwrap().contains("TOOLPOST_NO_NETWORK"), "{error}");
    }
    assert_eq!(
        bench(settings).value("http_request", json!({ "url": server.base_url() })).await["status"],
        200
    );
}

/// A server that redirects everything but `/end` to what `target` says.
fn redirecting(status: u16, target: &'static str) -> LoopbackProvider {
    LoopbackProvider::start_with(move |request| {
        if request.path == "/end" {
            Reply::new(200, "text/plain", "there")
        } else {
            Reply::new(status, "text/plain", "moved").header("location", target)
        }
    })
    .unwrap()
}

#[tokio::test]
async fn redirects_are_followed_on_request() {
    let server = redirecting(302, "/end");
    let url = format!("{}/start", server.base_url());
    let value = bench(local()).value("http_request", json!({ "url": url })).await;
    let end = format!("{}/end", server.base_url());
    assert_eq!(
        (&value["body"], &value["url"], &value["redirects"]),
        (&json!("there"), &json!(end), &json!([url]))
    );
    let value = bench(local()).value("http_request", json!({ "url": url, "follow_redirects": false })).await;
    assert_eq!((&value["status"], &value["headers"]["location"]), (&json!(302), &json!("/end")));
}

#[tokio::test]
async fn each_hop_is_checked() {
    for (target, rule) in [
        ("http://169.254.169.254/latest/", "metadata"),
        ("http://localhost:1/", "loopback"),
        ("//10.0.0.1/", "private"),
        ("file:///etc/passwd", "scheme"),
        ("gopher://127.0.0.1/", "scheme"),
    ] {
        let server = redirecting(301, target);
        let error = refused(local(), &server.base_url()).await;
        assert_eq!(
            (error.code(), &error.context()["rule"]),
            (Code::Permission, &json!(rule)),
            "{target}: {error}"
        );
    }
}

#[tokio::test]
async fn endless_redirects_end() {
    let server = redirecting(307, "/again");
    let mut settings = local();
    settings.max_redirects = 3;
    let error = refused(settings, &server.base_url()).await;
    assert_eq!(error.code(), Code::Limit, "{error}");
    assert_eq!(server.requests().len(), 4);
}

#[tokio::test]
async fn a_redirect_changes_the_method_as_browsers_do() {
    for (status, sent, expected, body) in [
        (303, "POST", "GET", ""),
        (302, "POST", "GET", ""),
        (302, "PUT", "PUT", "b"),
        (307, "POST", "POST", "b"),
        (308, "DELETE", "DELETE", "b"),
    ] {
        let server = redirecting(status, "/end");
        let arguments = json!({ "url": server.base_url(), "method": sent, "data": "b", "headers": { "content-type": "x/y" } });
        bench(local()).value("http_request", arguments).await;
        let last = server.requests().pop().unwrap();
        assert_eq!(
            (last.method.as_str(), last.body.as_slice()),
            (expected, body.as_bytes()),
            "{status} {sent}"
        );
        assert_eq!(last.header("content-type").is_some(), !body.is_empty());
    }
}

#[tokio::test]
async fn a_redirect_sends_no_secret_to_another_origin() {
    let other = echo();
    let target: &'static str = Box::leak(format!("{}/end", other.base_url()).into_boxed_str());
    let server = redirecting(307, target);
    let url = server.base_url().replace("http://", "http://anna:pa55@");
    let arguments = json!({ "url": url, "headers": { "X-Api-Key": "k3y", "Cookie": "c=1", "X-Access": "7", "Accept-Language": "no" } });
    bench(local()).value("http_request", arguments).await;
    let first = &server.requests()[0];
    assert!(first.header("authorization").is_some() && first.header("x-api-key").is_some());
    let second = &other.requests()[0];
    let kept = ["authorization", "x-api-key", "cookie", "x-access", "accept-language"]
        .map(|name| second.header(name));
    assert_eq!(kept, [None, None, None, None, Some("no")]);
}

#[tokio::test]
async fn a_silent_or_broken_server_times_out() {
    let server = LoopbackProvider::start(vec![Reply::never()]).unwrap();
    let bench = bench(local());
    let error = bench.error("http_request", json!({ "url": server.base_url(), "timeout": 0.2 })).await;
    assert_eq!(error.code(), Code::Timeout, "{error}");
    let slow = Reply::new(200, "text/plain", "x".repeat(1000)).in_pieces(1, Duration::from_millis(50));
    let server = LoopbackProvider::start(vec![slow]).unwrap();
    let error = bench.error("http_request", json!({ "url": server.base_url(), "timeout": 0.2 })).await;
    assert_eq!(error.code(), Code::Timeout, "{error}");
    let server =
        LoopbackProvider::start(vec![Reply::new(200, "text/plain", "0123456789").cut_after(3)]).unwrap();
    let error = bench.error("http_request", json!({ "url": server.base_url() })).await;
    assert_eq!((error.code(), &error.context()["received_bytes"]), (Code::Dependency, &json!(3)), "{error}");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let free = listener.local_addr().unwrap();
    drop(listener);
    let error = bench.error("http_request", json!({ "url": format!("http://{free}/") })).await;
    assert_eq!(error.code(), Code::Dependency, "{error}");
}

#[tokio::test]
async fn invalid_request_arguments_are_named() {
    let bench = bench(local());
    let url = "http://127.0.0.1:1/";
    for (arguments, pointer) in [
        (json!({}), "/url"),
        (json!({ "url": "ftp://127.0.0.1/" }), "/url"),
        (json!({ "url": "example.com" }), "/url"),
        (json!({ "url": "http://" }), "/url"),
        (json!({ "url": url, "method": "TRACE" }), "/method"),
        (json!({ "url": url, "headers": { "a b": "c" } }), "/headers/a b"),
        (json!({ "url": url, "headers": { "X": "a\r\nY: b" } }), "/headers/X"),
        (json!({ "url": url, "headers": { "Host": "evil.example" } }), "/headers/Host"),
        (json!({ "url": url, "headers": { "Transfer-Encoding": "chunked" } }), "/headers/Transfer-Encoding"),
        (json!({ "url": url, "params": { "a/b": { "c": 1 } } }), "/params/a~1b"),
        (json!({ "url": url, "params": { "a": [null] } }), "/params/a"),
        (json!({ "url": url, "data": "a", "json_data": 1 }), "/json_data"),
        (json!({ "url": url, "timeout": 0 }), "/timeout"),
        (json!({ "url": url, "timeout": 301 }), "/timeout"),
        (json!({ "url": url, "timeout": 1e300 }), "/timeout"),
        (json!({ "url": url, "verify_ssl": false }), "/verify_ssl"),
    ] {
        let error = bench.error("http_request", arguments.clone()).await;
        assert_eq!(error.context()["pointer"], pointer, "{arguments}: {error}");
    }
    let error = bench.error("http_request", json!({ "url": url, "verify_ssl": false })).await;
    assert_eq!(error.code(), Code::Permission);
    let hint = error.suggestion().unwrap();
    assert!(hint.contains("`SSL_CERT_FILE`") && hint.contains("Only an application in code"), "{error}");
    assert!(!hint.contains("extra_authorities"), "{error}");
}

#[tokio::test]
async fn no_secret_of_a_request_is_in_its_record() {
    let server = LoopbackProvider::start_with(|_| Reply::new(200, "text/plain", "ok").cut_after(1)).unwrap();
    let url = format!("http://anna:pa55word@{}/?access_token=t0ken&page=2", server.address());
    let arguments = json!({
        "url": url, "params": { "api_key": "k3y" },
        "headers": { "Authorization": "Bearer h34der", "Cookie": "c00kie", "Accept": "text/plain" },
    });
    let reply = bench(local()).reply("http_request", arguments).await;
    let record = serde_json::to_string(&*reply.record).unwrap();
    let error = reply.result.unwrap_err().to_string();
    for secret in ["pa55word", "t0ken", "k3y", "h34der", "c00kie"] {
        assert!(!record.contains(secret) && !error.contains(secret), "{secret}: {record} {error}");
    }
    assert!(record.contains("page=2") && record.contains("text/plain"), "{record}");
}
