//! Models at a loopback provider, and folds of events.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::Value;
use toolpost_llm::{
    HostedModel, HttpClient, HttpOptions, Model as _, ModelError, ModelEvent, ModelId, Provider,
    ProviderAccess, Request, Response, RetryPolicy, Secret, Wire,
};

/// Options that reach this machine only and retry at once, at most `max_retries` times.
pub(crate) fn options(max_retries: u32) -> HttpOptions {
    HttpOptions {
        no_network: true,
        connect_timeout: Duration::from_secs(5),
        first_byte_timeout: Duration::from_secs(5),
        event_timeout: Duration::from_secs(5),
        retry: RetryPolicy { max_retries, first_wait: Duration::from_millis(2), ..RetryPolicy::default() },
        ..HttpOptions::default()
    }
}

/// A model of a provider at an address.
pub(crate) fn hosted(
    provider: &'static Provider,
    name: &str,
    base_url: String,
    api_key: &str,
    options: HttpOptions,
) -> HostedModel {
    let access = ProviderAccess { base_url: Some(base_url), ..ProviderAccess::new(Secret::new(api_key)) };
    HostedModel::new(provider, name, access, HttpClient::new(options).unwrap()).unwrap()
}

/// The events and the end of a stream.
pub(crate) async fn streamed(
    model: &HostedModel,
    request: &Request,
) -> (Vec<ModelEvent>, Result<Response, ModelError>) {
    let mut stream = model.stream(request);
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        let end = match event {
            Ok(ModelEvent::Done(response)) => Ok(*response),
            Err(error) => Err(error),
            Ok(event) => {
                events.push(event);
                continue;
            }
        };
        assert!(stream.next().await.is_none(), "an event came after the end");
        return (events, end);
    }
    panic!("the stream ended without an answer or an error")
}

/// Server-sent events with these data.
pub(crate) fn sse(events: &[impl std::fmt::Display]) -> String {
    let events: Vec<String> = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    events.concat()
}

/// Folds a stream of events with these data. The deltas come back even without an answer.
pub(crate) fn fold(
    wire: Wire,
    model: &ModelId,
    events: &[impl std::fmt::Display],
) -> (Result<Response, ModelError>, Vec<ModelEvent>) {
    let mut fold = wire.fold(model);
    let mut delivered = VecDeque::new();
    let fed = events
        .iter()
        .try_for_each(|event| fold.feed(format!("data: {event}\n\n").as_bytes(), &mut delivered));
    let response = fed.and_then(|()| fold.finish(&mut delivered));
    (response, delivered.into())
}

/// A change of a request, a place in its body, and the expected value.
pub(crate) type Case = (fn(&mut Request), &'static str, Value);

/// Checks that each change has its value in the body, which differs without the change.
pub(crate) fn check_bodies(body: impl Fn(&Request) -> Value, cases: &[Case]) {
    let plain = body(&Request::new("hi"));
    for (change, place, expected) in cases {
        let mut request = Request::new("hi");
        change(&mut request);
        let body = body(&request);
        assert_eq!(body.pointer(place).unwrap_or(&Value::Null), expected, "{place}: {body}");
        assert_ne!(body, plain, "{place}");
    }
}
