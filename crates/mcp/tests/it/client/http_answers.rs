//! Answers to a POST in every form: each ends its request at once.

use std::time::{Duration, Instant};

use serde_json::json;
use toolpost_core::Code;
use toolpost_mcp::client::{Client, Endpoint};

use super::hostile_http::{Raw, http};
use super::support::call;

const JSON: &str = "Content-Type: application/json\r\n";
const EVENTS: &str = "Content-Type: text/event-stream\r\n";
/// Far below the limit of a call.
const AT_ONCE: Duration = Duration::from_secs(5);

/// The result of a tool call for a response: its text, or the code and the message of its error.
async fn called(status: &str, head: &str, body: impl AsRef<[u8]>) -> Result<String, (Code, String)> {
    let server = Raw::start(http(status, head, body.as_ref()), None).await;
    let client = Client::builder(Endpoint::http(&server.url)).name("raw").connect().await.unwrap();
    let begun = Instant::now();
    let result = call(&client, "bad", json!({})).await;
    let shown = format!("{status} {}", String::from_utf8_lossy(body.as_ref()));
    assert!(begun.elapsed() < AT_ONCE, "{shown} took {:?}", begun.elapsed());
    result
        .map(|output| output.to_text().into_owned())
        .map_err(|error| (error.code(), error.message().to_owned()))
}

fn error(id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32000,"message":"the reason is XYZ"}}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_request_ends_with_the_status_and_the_words_of_the_server() {
    let plain = "Content-Type: text/plain\r\n";
    let event = |data: &str| format!("event: message\ndata: {data}\n\n");
    for (status, head, body, code) in [
        ("400 Bad Request", JSON, error("null"), Code::Dependency),
        ("400 Bad Request", JSON, error("\"server-error\""), Code::Dependency),
        ("400 Bad Request", JSON, error("99"), Code::Dependency),
        ("400 Bad Request", JSON, error("ID"), Code::Dependency),
        ("400 Bad Request", JSON, r#"{"error":"the reason is XYZ"}"#.to_owned(), Code::Dependency),
        ("400 Bad Request", JSON, r#"{"detail":["the reason is XYZ"]}"#.to_owned(), Code::Dependency),
        ("400 Bad Request", JSON, "{\"error\": the reason is XYZ".to_owned(), Code::Dependency),
        ("400 Bad Request", plain, "the reason is XYZ".to_owned(), Code::Dependency),
        ("400 Bad Request", EVENTS, event(&error("null")), Code::Dependency),
        ("403 Forbidden", JSON, error("null"), Code::Permission),
        ("406 Not Acceptable", "", error("\"server-error\""), Code::Dependency),
        ("413 Payload Too Large", JSON, error("null"), Code::Dependency),
        (
            "415 Unsupported Media Type",
            "Content-Type: text/html\r\n",
            "the reason is XYZ".to_owned(),
            Code::Dependency,
        ),
        ("429 Too Many Requests", "Retry-After: 1\r\n", error("null"), Code::Overloaded),
        ("500 Internal Server Error", JSON, error("null"), Code::Dependency),
        ("503 Service Unavailable", plain, "the reason is XYZ".to_owned(), Code::Dependency),
    ] {
        let shown = format!("{status} {body}");
        let (found, message) = called(status, head, &body).await.unwrap_err();
        assert_eq!(found, code, "{shown}: {message}");
        assert!(message.contains("the reason is XYZ"), "{shown}: {message}");
        let number = status.split(' ').next().unwrap();
        assert!(message.contains(number) || code == Code::Permission, "{shown}: {message}");
    }
    let (_, message) = called("502 Bad Gateway", "", "").await.unwrap_err();
    assert!(message.contains("502"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_without_an_answer_ends_its_request() {
    let event = |data: &str| format!("event: message\ndata: {data}\n\n");
    for (head, body, expected) in [
        (JSON, error("null"), "the reason is XYZ"),
        (JSON, error("\"x\""), "the reason is XYZ"),
        (JSON, r#"{"error":"the reason is XYZ"}"#.to_owned(), "the reason is XYZ"),
        (JSON, r#"{"message":"the reason is XYZ"}"#.to_owned(), "the reason is XYZ"),
        (
            JSON,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#
                .to_owned(),
            "without an answer",
        ),
        (
            JSON,
            r#"{"jsonrpc":"2.0","id":99,"result":{"content":"of another request"}}"#.to_owned(),
            "of another request",
        ),
        (JSON, String::new(), "empty response"),
        (JSON, "[]".to_owned(), "without an answer"),
        ("Content-Type: text/html\r\n", "<p>the reason is XYZ".to_owned(), "the reason is XYZ"),
        (EVENTS, event(&error("null")), "the reason is XYZ"),
        (EVENTS, event(r#"{"error":"the reason is XYZ"}"#), "the reason is XYZ"),
        (EVENTS, "event: error\ndata: the reason is XYZ\n\n".to_owned(), "the reason is XYZ"),
        (EVENTS, event("the reason is XYZ"), "the reason is XYZ"),
        (EVENTS, ": ping\n\n".to_owned(), "before an answer"),
        (EVENTS, String::new(), "before an answer"),
    ] {
        let result = called("200 OK", head, &body).await;
        let Err((_, message)) = result else { panic!("{body}: {result:?}") };
        assert!(message.contains(expected), "{body}: {message}");
    }
    let (_, message) = called("202 Accepted", "", "").await.unwrap_err();
    assert!(message.contains("202"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_another_form_is_used() {
    let result = |id: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":"the data"}}]}}}}"#
        )
    };
    let notice = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}"#;
    let event = |data: &str| format!("data: {data}\n\n");
    for (head, body) in [
        (JSON, result("ID")),
        (JSON, result("\"ID\"")),
        (JSON, result("ID.0")),
        (JSON, result("null")),
        (JSON, r#"{"result":{"content":"the data"}}"#.to_owned()),
        (JSON, r#"{"id":ID,"result":{"content":["the data"]},"error":null}"#.to_owned()),
        (JSON, format!("\u{feff}{}", result("ID"))),
        (JSON, format!("[{}]", result("ID"))),
        (JSON, format!("[{notice},{}]", result("ID"))),
        ("", result("ID")),
        ("Content-Type: text/plain\r\n", result("ID")),
        ("Content-Type: text/plain\r\n", format!("event: message\n{}", event(&result("ID")))),
        (EVENTS, event(&result("ID"))),
        (EVENTS, event(&result("null"))),
        (EVENTS, format!("event: response\n{}", event(&result("ID")))),
        (EVENTS, format!("{}{}", event(notice), event(&result("ID")))),
        (EVENTS, format!("event: ping\ndata: {{}}\n\nid: 5\ndata:\n\n{}", event(&result("ID")))),
        ("Content-Type: Text/Event-Stream; charset=utf-8\r\n", event(&result("ID"))),
    ] {
        assert_eq!(called("200 OK", head, &body).await.as_deref(), Ok("the data"), "{head}{body}");
    }
    let latin = b"{\"id\":null,\"result\":{\"content\":\"caf\xe9\"}}";
    let text = called("200 OK", JSON, latin).await.unwrap();
    assert_eq!(text, "caf\u{fffd}\n[note: bytes that are not UTF-8 were replaced by U+FFFD]");
}
