//! Errors of providers and networks, from a loopback server.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::json;
use toolpost_llm::{
    ErrorKind, HostedModel, HttpClient, HttpOptions, Model as _, ModelError, ModelEvent, NetworkStage,
    Provider, ProviderAccess, Request, Response, RetryPolicy, Secret, TimeoutStage,
};
use toolpost_testkit::provider::{LoopbackProvider, Reply};

use crate::support;

const KEY: &str = "sk-ant-canary-1f7b0c";

const BODY: &str = r#"{"type":"message","id":"msg_1","role":"assistant","model":"claude-x-1","content":[{"type":"text","text":"hello you"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":2}}"#;

const STREAM: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"type\":\"message\",\"id\":\"msg_1\",",
    "\"role\":\"assistant\",\"model\":\"claude-x-1\",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,",
    "\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,",
    "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
    "event: ping\ndata: {\"type\":\"ping\"}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hello\"}}\n\n",
    "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" you\"}}\n\n",
    "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n",
    "data: {\"type\":\"message_stop\"}\n\n",
);

fn options() -> HttpOptions {
    support::options(RetryPolicy::default().max_retries)
}

fn once(mut options: HttpOptions) -> HttpOptions {
    options.retry.max_retries = 0;
    options
}

fn model_at(base_url: &str, options: HttpOptions) -> HostedModel {
    support::hosted(Provider::find("anthropic").unwrap(), "claude-x", base_url.to_owned(), KEY, options)
}

fn model(server: &LoopbackProvider, options: HttpOptions) -> HostedModel {
    model_at(&server.base_url(), options)
}

fn error_body(kind: &str, message: &str) -> String {
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_body"})
        .to_string()
}

/// The errors of a request, streamed or not, each from its own server.
async fn both_errors(replies: &[Reply], options: &HttpOptions) -> [ModelError; 2] {
    let server = LoopbackProvider::start(replies.to_vec()).unwrap();
    let whole = model(&server, options.clone()).respond(&Request::new("hi")).await.unwrap_err();
    let server = LoopbackProvider::start(replies.to_vec()).unwrap();
    let streamed = streamed(&model(&server, options.clone())).await.1.unwrap_err();
    for error in [&whole, &streamed] {
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(KEY), "{shown}");
        assert_eq!(error.details.model.as_ref().unwrap().to_string(), "anthropic/claude-x");
        assert!(!error.details.attempts.is_empty(), "{shown}");
    }
    [whole, streamed]
}

async fn streamed(model: &HostedModel) -> (Vec<ModelEvent>, Result<Response, ModelError>) {
    support::streamed(model, &Request::new("hi")).await
}

#[tokio::test]
async fn an_answer_is_the_same_streamed_or_not() {
    let server = LoopbackProvider::start(vec![Reply::json(200, BODY), Reply::events(STREAM)]).unwrap();
    let model = model(&server, options());
    let mut request = Request::new("hi");
    request.betas = vec!["beta-a".into(), "beta-b".into(), "beta-a".into()];
    let whole = model.respond(&request).await.unwrap();
    let (events, streamed) = streamed(&model).await;
    let streamed = streamed.unwrap();
    assert_eq!(whole.text(), "hello you");
    assert_eq!(streamed.items, whole.items);
    assert_eq!(streamed.usage.output, whole.usage.output);
    let deltas = events.iter().filter(|event| matches!(event, ModelEvent::TextDelta { .. })).count();
    assert_eq!(deltas, 2);
    let requests = server.requests();
    assert_eq!(requests[0].method, "POST");
    assert_eq!(requests[0].path, "/v1/messages");
    assert_eq!(requests[0].header("x-api-key"), Some(KEY));
    assert_eq!(requests[0].header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(requests[0].header("anthropic-beta"), Some("beta-a,beta-b"));
    assert_eq!(requests[0].header("accept"), Some("application/json"));
    assert_eq!(requests[1].header("accept"), Some("text/event-stream"));
    assert_eq!(requests[1].header("anthropic-beta"), None);
    assert_eq!(requests[0].json()["model"], "claude-x");
    assert_eq!(requests[0].json().get("stream"), None);
    assert_eq!(requests[1].json()["stream"], true);
    assert_eq!(server.connections(), 1, "the second request uses the first one's connection");
    assert!(!format!("{model:?}").contains(KEY));
}

#[tokio::test]
async fn a_connection_is_reused_after_a_stream() {
    let server = LoopbackProvider::start(vec![Reply::events(STREAM), Reply::events(STREAM)]).unwrap();
    let model = model(&server, options());
    for _ in 0..2 {
        streamed(&model).await.1.unwrap();
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn concurrent_requests_open_one_connection_each() {
    let at_once = 8;
    let server = LoopbackProvider::start_with(|_| Reply::events(STREAM)).unwrap();
    let model = model(&server, options());
    let asked = (0..at_once).map(|_| async {
        for _ in 0..20 {
            streamed(&model).await.1.unwrap();
        }
    });
    futures_util::future::join_all(asked).await;
    assert_eq!(server.connections(), at_once);
}

#[tokio::test]
async fn a_stream_of_single_bytes_decodes_the_same() {
    let replies = vec![Reply::events(STREAM).in_pieces(1, Duration::ZERO), Reply::events(STREAM)];
    let server = LoopbackProvider::start(replies).unwrap();
    let model = model(&server, options());
    assert_eq!(streamed(&model).await, streamed(&model).await);
}

#[tokio::test]
async fn a_rejected_request_is_not_retried() {
    for (status, name, kind) in [
        (400, "invalid_request_error", ErrorKind::InvalidRequest),
        (401, "authentication_error", ErrorKind::Auth),
        (403, "permission_error", ErrorKind::Auth),
        (404, "not_found_error", ErrorKind::NotFound),
        (413, "request_too_large", ErrorKind::ContextTooLong),
    ] {
        let reply =
            Reply::json(status, error_body(name, "words of the provider")).header("request-id", "req_7");
        for error in both_errors(&[reply], &options()).await {
            assert_eq!(error.kind, kind);
            assert_eq!(error.message, "words of the provider");
            assert_eq!(error.details.status, Some(status));
            assert_eq!(error.details.provider_code.as_deref(), Some(name));
            assert_eq!(error.details.request_id.as_deref(), Some("req_7"));
            assert_eq!(error.details.attempts.len(), 1);
        }
    }
}

#[tokio::test]
async fn an_api_key_in_an_error_is_masked() {
    let reply = Reply::json(401, error_body("authentication_error", &format!("the key {KEY} is invalid")));
    for error in both_errors(&[reply], &options()).await {
        assert_eq!(error.message, "the key [secret] is invalid");
        assert_eq!(error.details.attempts[0].reason, error.message);
    }
}

#[tokio::test]
async fn a_rate_limit_is_retried_after_the_requested_wait() {
    for (name, value, least) in
        [("retry-after-ms", "150", 150), ("retry-after", "0.3", 300), ("retry-after", "1", 1_000)]
    {
        let busy = Reply::json(429, error_body("rate_limit_error", "slow down")).header(name, value);
        let server = LoopbackProvider::start(vec![busy, Reply::events(STREAM)]).unwrap();
        let start = Instant::now();
        let (events, result) = streamed(&model(&server, options())).await;
        assert!(start.elapsed() >= Duration::from_millis(least), "{name}: {:?}", start.elapsed());
        assert_eq!(result.unwrap().text(), "hello you");
        let ModelEvent::Retrying { attempt: 1, after, reason } = &events[0] else { panic!("{events:?}") };
        assert_eq!((*after, reason.as_str()), (Duration::from_millis(least), "slow down"));
        assert!(!events.contains(&ModelEvent::Lost), "what was refused consumed nothing");
    }
}

#[tokio::test]
async fn a_wait_beyond_the_limit_is_an_error() {
    let busy =
        Reply::json(429, error_body("rate_limit_error", "come back tomorrow")).header("retry-after", "86400");
    for error in both_errors(&[busy], &options()).await {
        assert_eq!(error.kind, ErrorKind::RateLimited { retry_after: Some(Duration::from_hours(24)) });
        assert_eq!(error.details.attempts.len(), 1);
    }
}

#[tokio::test]
async fn an_overloaded_provider_is_retried_and_attempts_are_listed() {
    let server = LoopbackProvider::start(vec![
        Reply::json(529, error_body("overloaded_error", "Overloaded")),
        Reply::json(200, BODY),
    ])
    .unwrap();
    assert_eq!(model(&server, options()).respond(&Request::new("hi")).await.unwrap().text(), "hello you");
    assert_eq!(server.requests().len(), 2);

    let replies = [500, 502, 503, 529]
        .map(|status| Reply::json(status, error_body("api_error", &format!("no. {status}"))));
    for error in both_errors(&replies, &options()).await {
        assert_eq!(error.kind, ErrorKind::Overloaded);
        let statuses: Vec<_> = error.details.attempts.iter().map(|attempt| attempt.status.unwrap()).collect();
        assert_eq!(statuses, [500, 502, 503, 529]);
        assert_eq!(error.details.attempts[1].reason, "no. 502");
        assert!(
            error.details.attempts[0].waited > Duration::ZERO && error.details.attempts[3].waited.is_zero()
        );
        assert!(error.to_string().contains("4 attempts"), "{error}");
    }
}

#[tokio::test]
async fn the_retry_header_of_the_provider_counts() {
    let no = Reply::json(529, error_body("overloaded_error", "no")).header("x-should-retry", "false");
    for error in both_errors(&[no], &options()).await {
        assert_eq!(error.details.attempts.len(), 1);
    }
    let yes = Reply::json(400, error_body("invalid_request_error", "again")).header("x-should-retry", "true");
    let server = LoopbackProvider::start(vec![yes, Reply::json(200, BODY)]).unwrap();
    model(&server, options()).respond(&Request::new("hi")).await.unwrap();
}

#[tokio::test]
async fn a_truncated_stream_is_retried_only_before_the_first_delta() {
    let after = STREAM.find(" you").unwrap();
    let server =
        LoopbackProvider::start(vec![Reply::events(STREAM).cut_after(after), Reply::events(STREAM)]).unwrap();
    let (events, result) = streamed(&model(&server, options())).await;
    assert!(
        matches!(events.last(), Some(ModelEvent::TextDelta { text, .. }) if text == "hello"),
        "{events:?}"
    );
    let error = result.unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::Network(NetworkStage::Transfer) | ErrorKind::Protocol),
        "{error:?}"
    );
    assert_eq!(server.requests().len(), 1);

    let before = STREAM.find("event: content_block_start").unwrap();
    let server =
        LoopbackProvider::start(vec![Reply::events(STREAM).cut_after(before), Reply::events(STREAM)])
            .unwrap();
    let (events, result) = streamed(&model(&server, options())).await;
    // The provider had started: the usage of this attempt is unknown.
    assert!(matches!(events[..2], [ModelEvent::Lost, ModelEvent::Retrying { .. }]), "{events:?}");
    assert_eq!(result.unwrap().text(), "hello you");
}

#[tokio::test]
async fn a_stream_without_an_end_event_is_an_error() {
    // The transfer is complete, the message is not.
    let short = &STREAM[..STREAM.find("data: {\"type\":\"message_delta").unwrap()];
    let server = LoopbackProvider::start(vec![Reply::events(short)]).unwrap();
    let error = streamed(&model(&server, options())).await.1.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Protocol);
    assert!(error.message.contains("ended before the answer"), "{error}");
}

#[tokio::test]
async fn a_last_event_without_its_line_break_counts() {
    let server = LoopbackProvider::start(vec![Reply::events(STREAM.trim_end())]).unwrap();
    assert_eq!(streamed(&model(&server, options())).await.1.unwrap().text(), "hello you");
}

#[tokio::test]
async fn data_after_the_answer_is_ignored() {
    // The data arrive in one chunk with the answer.
    let more = [STREAM.as_bytes(), b"data: \xff\xfe\n\ndata: {\n\n"].concat();
    let server = LoopbackProvider::start(vec![Reply::events(more)]).unwrap();
    assert_eq!(streamed(&model(&server, options())).await.1.unwrap().text(), "hello you");
}

#[tokio::test]
async fn an_error_event_inside_the_stream_is_the_providers_error() {
    let error_event = format!("event: error\ndata: {}\n\n", error_body("overloaded_error", "Overloaded"));
    let middle = STREAM.find("data: {\"type\":\"content_block_stop").unwrap();
    let text = format!("{}{error_event}", &STREAM[..middle]);
    let server = LoopbackProvider::start(vec![Reply::events(text), Reply::events(STREAM)]).unwrap();
    let (events, result) = streamed(&model(&server, options())).await;
    assert_eq!(events.len(), 2, "{events:?}");
    let error = result.unwrap_err();
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Overloaded, "Overloaded"));

    // An error as the first event is retried.
    let server = LoopbackProvider::start(vec![Reply::events(error_event), Reply::events(STREAM)]).unwrap();
    assert_eq!(streamed(&model(&server, options())).await.1.unwrap().text(), "hello you");
}

#[tokio::test]
async fn the_error_names_a_wrong_content_type() {
    let page = Reply::new(200, "text/html; charset=utf-8", "<html>login to the wifi</html>");
    for error in both_errors(&[page], &options()).await {
        assert_eq!(error.kind, ErrorKind::Protocol);
        assert!(
            error.message.contains("`text/html`") && error.message.contains("login to the wifi"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn an_error_inside_a_success_is_an_error() {
    let reply = Reply::json(200, error_body("invalid_request_error", "inside"));
    for error in both_errors(&[reply], &options()).await {
        assert_eq!((error.kind, error.message.as_str()), (ErrorKind::InvalidRequest, "inside"));
        assert_eq!(error.details.status, Some(200));
    }
    for body in ["", "{\"type\":\"mess", "[]", "{}", "{\"type\":\"message\"}"] {
        for error in both_errors(&[Reply::json(200, body)], &options()).await {
            assert_eq!(error.kind, ErrorKind::Protocol, "{body}: {error}");
        }
    }
}

#[tokio::test]
async fn a_server_without_streaming_is_supported() {
    let server = LoopbackProvider::start(vec![Reply::json(200, BODY)]).unwrap();
    let (events, result) = streamed(&model(&server, options())).await;
    assert_eq!(result.unwrap().text(), "hello you");
    assert!(
        events.contains(&ModelEvent::Notice("the server answered without streaming".into())),
        "{events:?}"
    );
}

#[tokio::test]
async fn malformed_events_are_errors() {
    for text in [
        "data: {\"type\":\n\n",
        "data: not json\n\n",
        "data: []\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n",
        "data: {\"type\":\"content_block_stop\",\"index\":9}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{}}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
        "data: {\"type\":\"message_start\",\"message\":7}\n\n",
        "data: \u{0}\n\n",
    ] {
        let server = LoopbackProvider::start(vec![Reply::events(text)]).unwrap();
        let error = streamed(&model(&server, once(options()))).await.1.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol, "{text}: {error}");
    }
    let server = LoopbackProvider::start(vec![Reply::events(b"data: \xff\xfe\n\n".to_vec())]).unwrap();
    let error = streamed(&model(&server, once(options()))).await.1.unwrap_err();
    assert!(error.message.contains("UTF-8"), "{error}");
}

#[tokio::test]
async fn a_stream_without_events_times_out() {
    let mut options = once(options());
    options.event_timeout = Duration::from_millis(300);
    options.first_byte_timeout = Duration::from_millis(300);
    let drip = Reply::events(": ".to_owned() + &"x".repeat(10_000)).in_pieces(1, Duration::from_millis(20));
    let server = LoopbackProvider::start(vec![drip]).unwrap();
    let start = Instant::now();
    let error = streamed(&model(&server, options.clone())).await.1.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout(TimeoutStage::FirstByte));
    assert!(start.elapsed() < Duration::from_secs(4));

    let text = STREAM.replace("data: {\"type\":\"message_stop\"}\n\n", &format!(": {}", "x".repeat(10_000)));
    let place = text.find(": xxx").unwrap();
    let drip = Reply::events(text).in_pieces(place, Duration::from_millis(600));
    let server = LoopbackProvider::start(vec![drip]).unwrap();
    let (events, result) = streamed(&model(&server, options)).await;
    assert_eq!(result.unwrap_err().kind, ErrorKind::Timeout(TimeoutStage::BetweenEvents));
    assert!(events.iter().any(|event| matches!(event, ModelEvent::TextDelta { .. })));
}

#[tokio::test]
async fn a_silent_server_is_retried() {
    let mut short = options();
    short.first_byte_timeout = Duration::from_millis(500);
    let server = LoopbackProvider::start(vec![Reply::never(), Reply::json(200, BODY)]).unwrap();
    assert_eq!(model(&server, short.clone()).respond(&Request::new("hi")).await.unwrap().text(), "hello you");
    for error in both_errors(&[Reply::never()], &once(short)).await {
        assert_eq!(error.kind, ErrorKind::Timeout(TimeoutStage::FirstByte));
        assert!(error.message.contains("500ms"), "{error}");
    }
}

#[tokio::test]
async fn the_total_timeout_covers_all_attempts() {
    let mut options = options();
    options.total_timeout = Duration::from_millis(400);
    options.retry.max_retries = 1_000;
    let server =
        LoopbackProvider::start_with(|_| Reply::json(529, error_body("overloaded_error", "busy"))).unwrap();
    let start = Instant::now();
    let error = model(&server, options.clone()).respond(&Request::new("hi")).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    assert_eq!(error.kind, ErrorKind::Overloaded);
    assert!(error.details.attempts.len() > 2, "{error:?}");
    let server = LoopbackProvider::start(vec![Reply::never()]).unwrap();
    let error = streamed(&model(&server, options)).await.1.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Timeout(TimeoutStage::Total));
}

#[tokio::test]
async fn the_size_of_an_answer_is_bounded() {
    let mut options = once(options());
    options.max_answer_bytes = 300;
    for reply in [Reply::json(200, BODY.to_owned() + &" ".repeat(300)), Reply::events(STREAM)] {
        let server = LoopbackProvider::start(vec![reply]).unwrap();
        let error = streamed(&model(&server, options.clone())).await.1.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol);
        assert!(error.message.contains("longer than 300 bytes"), "{error}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let reply = Reply::json(307, "").header("location", "http://127.0.0.1:1/elsewhere");
    for error in both_errors(&[reply], &options()).await {
        assert_eq!(error.kind, ErrorKind::Protocol);
        assert!(error.message.contains("/elsewhere"), "{error}");
    }
}

#[tokio::test]
async fn failed_connections_have_distinct_kinds() {
    // A port without a listener.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error =
        model_at(&format!("http://{closed}"), options()).respond(&Request::new("hi")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Network(NetworkStage::Connect), "{error:?}");
    assert_eq!(error.details.attempts.len(), 1, "nothing listens there a second later either");
    assert!(error.message.contains(&format!("`http://{closed}`")), "{error}");

    let open = HttpOptions { no_network: false, ..once(options()) };
    let error = model_at("http://no-such-host.invalid", open).respond(&Request::new("hi")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Network(NetworkStage::Dns), "{error:?}");

    let server = LoopbackProvider::start(vec![Reply::json(200, BODY)]).unwrap();
    let address = server.base_url().replace("http:", "https:");
    let error = model_at(&address, options()).respond(&Request::new("hi")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Network(NetworkStage::Tls), "{error:?}");
    assert_eq!(error.details.attempts.len(), 1);
}

#[tokio::test]
async fn an_unsupported_encoding_is_named_and_not_retried() {
    for encoding in ["gzip", "br"] {
        let replies = vec![Reply::json(200, BODY).header("content-encoding", encoding); 2];
        let server = LoopbackProvider::start(replies).unwrap();
        let error = model(&server, options()).respond(&Request::new("hi")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Protocol, "{error:?}");
        assert!(error.message.contains(&format!("`{encoding}`")), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
    let server = LoopbackProvider::start(vec![Reply::json(200, BODY).header("content-encoding", "identity")]);
    model(&server.unwrap(), options()).respond(&Request::new("hi")).await.unwrap();
}

#[test]
fn provider_options_do_not_replace_reserved_fields() {
    for name in ["model", "messages", "input", "contents", "stream"] {
        let mut request = Request::new("hi");
        request.provider_options.insert(name.to_owned(), json!("claude-opus-5-5"));
        let error = model_at("http://127.0.0.1:1", options()).check(&request).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidRequest, "{error:?}");
        assert!(error.message.contains(&format!("`{name}`")), "{error}");
    }
}

#[tokio::test]
async fn an_unencrypted_api_key_has_a_notice() {
    for (base_url, is_told) in
        [("http://192.0.2.1", true), ("http://10.1.2.3", false), ("https://192.0.2.1", false)]
    {
        // These models connect to nothing.
        let events: Vec<_> = model_at(base_url, once(options())).stream(&Request::new("hi")).collect().await;
        let told = events.iter().any(
            |event| matches!(event, Ok(ModelEvent::Notice(notice)) if notice.contains("without encryption")),
        );
        assert_eq!(told, is_told, "{base_url}: {events:?}");
    }
}

#[tokio::test]
async fn a_retired_model_has_a_notice() {
    for (name, is_retired) in [("claude-2", true), ("claude-opus-5-5", false), ("claude-x", false)] {
        let access = ProviderAccess::new(Secret::new(KEY));
        let access = ProviderAccess { base_url: Some("http://127.0.0.1:1".to_owned()), ..access };
        let client = HttpClient::new(once(options())).unwrap();
        let model = HostedModel::new(Provider::find("anthropic").unwrap(), name, access, client).unwrap();
        let events: Vec<_> = model.stream(&Request::new("hi")).collect().await;
        let notice =
            matches!(&events[0], Ok(ModelEvent::Notice(notice)) if notice.contains("was retired on 20"));
        assert_eq!(notice, is_retired, "{name}: {events:?}");
    }
}

#[tokio::test]
async fn network_access_can_be_forbidden() {
    for base_url in ["https://api.anthropic.com", "http://10.1.2.3", "http://[2001:db8::1]"] {
        let error = model_at(base_url, options()).respond(&Request::new("hi")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::NetworkForbidden);
        let text = error.to_string();
        assert!(text.contains("anthropic/claude-x may not connect to"), "{text}");
        assert!(text.contains("TOOLPOST_NO_NETWORK"), "{text}");
        assert_eq!(error.details.attempts.len(), 1);
    }
}

#[tokio::test]
async fn a_proxy_is_used_for_everything() {
    let proxy = LoopbackProvider::start(vec![Reply::json(200, BODY)]).unwrap();
    let options = HttpOptions { proxy: Some(Secret::new(proxy.base_url())), ..options() };
    let response = model_at("http://provider.example", options).respond(&Request::new("hi")).await.unwrap();
    assert_eq!(response.text(), "hello you");
    assert_eq!(proxy.requests()[0].path, "http://provider.example/v1/messages");
}

#[tokio::test]
async fn a_dropped_stream_closes_its_connection() {
    let slow = Reply::events(STREAM).in_pieces(200, Duration::from_millis(50));
    let server = LoopbackProvider::start(vec![slow, Reply::json(200, BODY)]).unwrap();
    let model = model(&server, options());
    let mut stream = model.stream(&Request::new("hi"));
    stream.next().await.unwrap().unwrap();
    drop(stream);
    model.respond(&Request::new("hi")).await.unwrap();
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn nothing_is_sent_before_the_first_poll() {
    let server = LoopbackProvider::start(vec![Reply::events(STREAM)]).unwrap();
    let model = model(&server, options());
    drop(model.stream(&Request::new("hi")));
    let error = model.respond(&Request::default()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidRequest);
    let mut request = Request::new("hi");
    request.metadata.insert("team".into(), "x".into());
    assert_eq!(model.respond(&request).await.unwrap_err().kind, ErrorKind::Unsupported);
    request.metadata.clear();
    request.settings.max_output_tokens = Some(0);
    assert_eq!(model.check(&request).unwrap_err().kind, ErrorKind::InvalidRequest);
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_model_without_a_valid_api_key_is_an_error() {
    let open = |key: &str| {
        let client = HttpClient::new(options()).unwrap();
        HostedModel::new(
            Provider::find("anthropic").unwrap(),
            "claude-x",
            ProviderAccess::new(Secret::new(key)),
            client,
        )
    };
    assert_eq!(open(" \n").unwrap_err().kind, ErrorKind::Auth);
    let mut stream = open("with\u{7}bell").unwrap().stream(&Request::new("hi"));
    let error = futures_util::FutureExt::now_or_never(stream.next()).unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Configuration);
    assert!(!error.to_string().contains("bell"), "{error}");
}
