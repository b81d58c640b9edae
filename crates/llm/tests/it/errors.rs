//! Errors that every wire must report in the same way, from a loopback server.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use toolpost_llm::{
    ErrorKind, HostedModel, HttpOptions, Model as _, ModelError, NetworkStage, PROVIDERS, Provider, Request,
    RetryPolicy, TimeoutStage, Wire,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support;

const KEY: &str = "canary-9f2c41d7";

fn model(provider: &'static Provider, address: String, options: HttpOptions) -> HostedModel {
    support::hosted(provider, "some-model", address, KEY, options)
}

/// The errors of every provider, streamed or not.
async fn errors(reply: &Reply, options: &HttpOptions) -> Vec<(String, ModelError)> {
    let mut errors = Vec::new();
    for provider in PROVIDERS {
        for stream in [false, true] {
            let replies = vec![reply.clone(); 5];
            let server = LoopbackProvider::start(replies).unwrap();
            let model = model(provider, server.base_url(), options.clone());
            let begun = Instant::now();
            let error = ask(&model, stream).await;
            let form = format!("{} {}", provider.name, if stream { "streamed" } else { "whole" });
            assert!(begun.elapsed() < Duration::from_secs(10), "{form}: {:?}", begun.elapsed());
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(KEY), "{form}: {shown}");
            assert!(!error.details.attempts.is_empty(), "{form}: {shown}");
            errors.push((form, error));
        }
    }
    errors
}

async fn ask(model: &HostedModel, stream: bool) -> ModelError {
    let request = Request::new("hi");
    if !stream {
        return model.respond(&request).await.expect_err("there was an answer");
    }
    let mut events = model.stream(&request);
    while let Some(event) = events.next().await {
        if let Err(error) = event {
            return error;
        }
    }
    panic!("{}: the stream ended without an error", model.id())
}

/// A gateway's page, and an error body with the members of all providers.
fn refusals(status: u16) -> [Reply; 2] {
    let body = format!(
        r#"{{"type":"error","error":{{"code":{status},"message":"no: {KEY}","type":"","status":""}}}}"#
    );
    [Reply::new(status, "text/html", "<html>no</html>"), Reply::json(status, body)]
}

#[tokio::test]
async fn statuses_have_the_same_kind_on_every_wire() {
    for (status, kind) in [
        (401, ErrorKind::Auth),
        (403, ErrorKind::Auth),
        (404, ErrorKind::NotFound),
        (413, ErrorKind::ContextTooLong),
        (429, ErrorKind::RateLimited { retry_after: None }),
        (500, ErrorKind::Overloaded),
        (503, ErrorKind::Overloaded),
        (529, ErrorKind::Overloaded),
    ] {
        for reply in refusals(status) {
            for (form, error) in errors(&reply, &support::options(0)).await {
                assert_eq!((&error.kind, error.details.status), (&kind, Some(status)), "{form}: {error}");
                assert!(error.hint().is_some(), "{form}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_wait_in_the_body_counts() {
    let body = r#"{"error":{"code":429,"message":"quota","status":"RESOURCE_EXHAUSTED","details":[{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"0.05s"}]}}"#;
    let mut options = support::options(0);
    options.retry.max_retries = 2;
    for (form, error) in errors(&Reply::json(429, body), &options).await {
        let waits: Vec<_> = error.details.attempts.iter().map(|attempt| attempt.waited).collect();
        let wait = Duration::from_millis(50);
        assert_eq!(waits, [wait, wait, Duration::ZERO], "{form}: {error}");
        assert_eq!(error.kind, ErrorKind::RateLimited { retry_after: Some(wait) }, "{form}");
    }
    let long = body.replace("0.05s", "7200s");
    for (form, error) in errors(&Reply::json(429, long), &options).await {
        assert_eq!(
            error.details.attempts.len(),
            1,
            "{form}: a wait beyond the limit is the caller's to decide"
        );
    }
}

#[tokio::test]
async fn an_empty_account_is_not_retried() {
    let body = r#"{"error":{"code":"insufficient_quota","type":"insufficient_quota","message":"no credit"}}"#;
    let mut options = support::options(0);
    options.retry.max_retries = 2;
    let mut empty = 0;
    for (form, error) in errors(&Reply::json(429, body), &options).await {
        // A wire without this code reports a rate limit.
        if error.kind == ErrorKind::Billing {
            assert_eq!(error.details.attempts.len(), 1, "{form}: {error}");
            empty += 1;
        }
    }
    assert!(empty >= 6, "OpenAI, xAI and servers like them know an empty account: {empty}");
}

#[tokio::test]
async fn invalid_answers_are_protocol_errors() {
    for (name, reply) in [
        ("half of a body", Reply::json(200, r#"{"id":"x","content":[{"type":"te"#)),
        ("another type", Reply::new(200, "text/html", "<html>welcome</html>")),
        ("nothing", Reply::json(200, "")),
        ("a list", Reply::json(200, "[1,2,3]")),
        ("events that are not JSON", Reply::events("data: {\"type\":\n\ndata: oops\n\n")),
        ("events without an answer", Reply::events(": ping\n\n")),
        ("no UTF-8", Reply::events(b"data: \xff\xfe\n\n".to_vec())),
        ("deep nesting", Reply::json(200, format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)))),
        ("a cut body", Reply::json(200, "x".repeat(4_000)).cut_after(100)),
    ] {
        for (form, error) in errors(&reply, &support::options(0)).await {
            let is_right =
                matches!(error.kind, ErrorKind::Protocol | ErrorKind::Network(NetworkStage::Transfer));
            assert!(is_right, "{name}: {form}: {error:?}");
        }
    }
}

#[tokio::test]
async fn an_error_inside_a_success_is_an_error() {
    let error = r#"{"type":"error","error":{"type":"overloaded_error","code":503,"status":"UNAVAILABLE","message":"busy"}}"#;
    let body = Reply::json(200, error);
    for (reply, is_stream) in [(body, false), (Reply::events(format!("data: {error}\n\n")), true)] {
        for (form, error) in errors(&reply, &support::options(0)).await {
            // Events instead of a body are not read.
            let is_misplaced = is_stream && form.ends_with("whole");
            let kind = if is_misplaced { ErrorKind::Protocol } else { ErrorKind::Overloaded };
            assert_eq!(error.kind, kind, "{form}: {error:?}");
            assert!(error.details.status.is_none_or(|status| status == 200), "{form}: {error:?}");
        }
    }
}

#[tokio::test]
async fn silent_and_dripping_servers_time_out() {
    let quick = HttpOptions {
        first_byte_timeout: Duration::from_millis(200),
        event_timeout: Duration::from_millis(200),
        total_timeout: Duration::from_secs(2),
        ..support::options(0)
    };
    for (form, error) in errors(&Reply::never(), &quick).await {
        assert_eq!(error.kind, ErrorKind::Timeout(TimeoutStage::FirstByte), "{form}: {error}");
    }
    // Single bytes without an event.
    let drip = Reply::events(": still here\n".repeat(100)).in_pieces(1, Duration::from_millis(20));
    for provider in PROVIDERS {
        let server = LoopbackProvider::start(vec![drip.clone()]).unwrap();
        let error = ask(&model(provider, server.base_url(), quick.clone()), true).await;
        assert!(matches!(error.kind, ErrorKind::Timeout(_)), "{}: {error}", provider.name);
    }
}

#[tokio::test]
async fn dripping_and_endless_bodies_time_out() {
    let slow = HttpOptions {
        event_timeout: Duration::from_secs(5),
        total_timeout: Duration::from_millis(400),
        ..support::options(0)
    };
    for provider in PROVIDERS {
        for reply in [Reply::json(200, " ".repeat(1_000)), Reply::events(": still here\n".repeat(100))] {
            let drip = reply.in_pieces(1, Duration::from_millis(20));
            let server = LoopbackProvider::start(vec![drip]).unwrap();
            let error = ask(&model(provider, server.base_url(), slow.clone()), false).await;
            assert_eq!(error.kind, ErrorKind::Timeout(TimeoutStage::Total), "{}: {error}", provider.name);
            assert!(error.message.contains("400ms"), "{error}");
        }
    }
}

#[tokio::test]
async fn overflowing_timeouts_mean_no_limit() {
    let longest = HttpOptions {
        connect_timeout: Duration::MAX,
        first_byte_timeout: Duration::MAX,
        event_timeout: Duration::MAX,
        total_timeout: Duration::MAX,
        retry: RetryPolicy { max_retries: 1, max_wait: Duration::MAX, first_wait: Duration::from_millis(2) },
        ..support::options(0)
    };
    for (form, error) in errors(&Reply::json(503, "{}"), &longest).await {
        assert_eq!(
            (&error.kind, error.details.attempts.len()),
            (&ErrorKind::Overloaded, 2),
            "{form}: {error}"
        );
    }
    // A long requested wait does not overflow.
    let body = r#"{"error":{"code":429,"details":[{"retryDelay":"18000000000000000000s"}]}}"#;
    let server = LoopbackProvider::start(vec![Reply::json(429, body)]).unwrap();
    let model = model(Provider::find("gemini").unwrap(), server.base_url(), longest);
    let error = tokio::time::timeout(Duration::from_secs(5), ask(&model, false)).await.unwrap();
    assert!(matches!(error.kind, ErrorKind::RateLimited { .. }), "{error}");
}

#[test]
fn the_limits_match_the_documentation() {
    let usual = HttpOptions::default();
    let seconds = [usual.connect_timeout, usual.first_byte_timeout, usual.event_timeout, usual.total_timeout]
        .map(|limit| limit.as_secs());
    assert_eq!(seconds, [10, 180, 60, 1_800]);
    assert_eq!((usual.retry.max_retries, usual.retry.first_wait), (3, Duration::from_secs(1)));
    assert_eq!(usual.max_answer_bytes, 64 * 1024 * 1024);
}

#[tokio::test]
async fn answers_are_bounded_in_size_and_count() {
    let small = HttpOptions { max_answer_bytes: 1_000, ..support::options(0) };
    for reply in [Reply::json(200, " ".repeat(2_000)), Reply::events(": ping\n\n".repeat(500))] {
        for (form, error) in errors(&reply, &small).await {
            assert_eq!(error.kind, ErrorKind::Protocol, "{form}: {error}");
            assert!(error.message.contains("longer than 1000 bytes"), "{form}: {error}");
        }
    }
    // Items of a few bytes each.
    let many = |item: &str| vec![item; 30_000].join(",");
    let block = r#"{"type":"content_block_start","index":0,"content_block":{}}"#;
    let item = r#"{"type":"response.output_item.done","output_index":0,"item":{}}"#;
    let part = r#"{"choices":[{"delta":{"content":[{"type":"x"}]}}]}"#;
    let start = r#"{"type":"message_start","message":{"type":"message","content":[]}}"#;
    for (wire, body, first, event) in [
        (Wire::Messages, format!(r#"{{"type":"message","content":[{}]}}"#, many("{}")), start, block),
        (Wire::Responses, format!(r#"{{"object":"response","output":[{}]}}"#, many("{}")), "", item),
        (Wire::XaiResponses, format!(r#"{{"object":"response","output":[{}]}}"#, many("{}")), "", item),
        (
            Wire::GenerateContent,
            format!(r#"{{"candidates":[{{"content":{{"parts":[{}]}}}}]}}"#, many("{}")),
            "",
            r#"{"candidates":[{"content":{"parts":[{"x":1}]}}]}"#,
        ),
        (Wire::ChatCompletions, format!(r#"{{"choices":[{}]}}"#, many("{}")), "", part),
    ] {
        let provider = PROVIDERS.iter().find(|provider| provider.wire == wire).unwrap();
        let server = LoopbackProvider::start(vec![Reply::json(200, body)]).unwrap();
        let error = ask(&model(provider, server.base_url(), support::options(0)), false).await;
        assert_eq!(error.kind, ErrorKind::Protocol, "{wire:?}: {error}");
        let stream = format!("data: {first}\n\n").repeat(usize::from(!first.is_empty()))
            + &format!("data: {event}\n\n").repeat(30_000);
        let server = LoopbackProvider::start(vec![Reply::events(stream)]).unwrap();
        let error = ask(&model(provider, server.base_url(), support::options(0)), true).await;
        assert!(error.message.contains("more than 20000 items"), "{wire:?}: {error}");
    }
}

#[tokio::test]
async fn connection_errors_have_distinct_kinds() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let unused = listener.local_addr().unwrap();
    drop(listener);
    let plain = LoopbackProvider::start(Vec::new()).unwrap();
    for provider in PROVIDERS {
        for stream in [false, true] {
            let refused =
                ask(&model(provider, format!("http://{unused}"), support::options(0)), stream).await;
            assert_eq!(refused.kind, ErrorKind::Network(NetworkStage::Connect), "{}", provider.name);
            let no_tls = plain.base_url().replace("http:", "https:");
            let insecure = ask(&model(provider, no_tls, support::options(0)), stream).await;
            assert_eq!(insecure.kind, ErrorKind::Network(NetworkStage::Tls), "{}: {insecure}", provider.name);
            let reachable = HttpOptions { no_network: false, ..support::options(0) };
            let unknown = "http://nobody.invalid".to_owned();
            let lost = ask(&model(provider, unknown, reachable), stream).await;
            assert_eq!(lost.kind, ErrorKind::Network(NetworkStage::Dns), "{}: {lost}", provider.name);
        }
    }
}
