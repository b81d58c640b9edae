//! Fallback models and client-side rate limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::json;
use toolpost_core::Timestamp;
use toolpost_llm::{
    BoxFuture, ContextEdit, Cost, ErrorKind, FallbackModel, HostedTool, Model, ModelError, ModelEvent,
    ModelId, NetworkStage, ProviderLimits, RateLimitedModel, RateLimiter, Request, Response, ResponseStream,
    ScriptModel, TimeoutStage, ToolChoice, ToolDefinition,
};

/// A model that fails before or after its first delta.
#[derive(Debug)]
struct Failing {
    id: ModelId,
    kind: ErrorKind,
    says: bool,
}

impl Failing {
    fn boxed(kind: ErrorKind, says: bool) -> Arc<dyn Model> {
        Arc::new(Self { id: ModelId::new("first", "m"), kind, says })
    }
}

impl Model for Failing {
    fn id(&self) -> &ModelId {
        &self.id
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        if request.tool_choice == Some(ToolChoice::Any) {
            return Err(ModelError::new(ErrorKind::Unsupported, "no force"));
        }
        Ok(())
    }

    fn stream(&self, _: &Request) -> ResponseStream {
        let delta = self.says.then(|| Ok(ModelEvent::TextDelta { index: 0, text: "I".into() }));
        let error = Err(ModelError::new(self.kind.clone(), "it failed"));
        futures_util::stream::iter(delta.into_iter().chain([error])).boxed()
    }
}

fn script(text: &str) -> Arc<dyn Model> {
    Arc::new(
        ScriptModel::parse("s.yaml", &format!("turns: [{{ text: {text} }}, {{ text: again }}]")).unwrap(),
    )
}

async fn all(model: &dyn Model, request: &Request) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut stream = model.stream(request);
    let mut events = Vec::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => events.push(event),
            Err(error) => return (events, Some(error)),
        }
    }
    (events, None)
}

#[tokio::test]
async fn only_transient_errors_fall_back() {
    for (kind, moves_on) in [
        (ErrorKind::Overloaded, true),
        (ErrorKind::RateLimited { retry_after: None }, true),
        (ErrorKind::Timeout(TimeoutStage::FirstByte), true),
        (ErrorKind::Network(NetworkStage::Connect), true),
        (ErrorKind::NotFound, true),
        (ErrorKind::Auth, false),
        (ErrorKind::InvalidRequest, false),
        (ErrorKind::Refused, false),
        (ErrorKind::ContextTooLong, false),
        (ErrorKind::Protocol, false),
    ] {
        let model = FallbackModel::new(Failing::boxed(kind.clone(), false), vec![script("second")]);
        let request = Request::new("hi");
        let whole = model.respond(&request).await;
        let model = FallbackModel::new(Failing::boxed(kind.clone(), false), vec![script("second")]);
        let (events, error) = all(&model, &request).await;
        if !moves_on {
            assert_eq!((whole.unwrap_err().kind, error.unwrap().kind), (kind.clone(), kind));
            continue;
        }
        let whole = whole.unwrap();
        assert_eq!((whole.text().as_str(), whole.origin.provider.as_str()), ("second", "script"), "{kind:?}");
        assert!(whole.notices[0].starts_with("first/m failed"), "{:?}", whole.notices);
        // The provider may charge for a model that timed out.
        let lost = usize::from(matches!(kind, ErrorKind::Timeout(_)));
        assert_eq!(events.iter().filter(|event| **event == ModelEvent::Lost).count(), lost, "{kind:?}");
        assert!(
            matches!(&events[lost], ModelEvent::Notice(text) if text.contains("falling back to")),
            "{events:?}"
        );
        let Some(ModelEvent::Done(response)) = events.last() else { panic!("{events:?}") };
        assert_eq!(response.notices, whole.notices);
        assert!(error.is_none());
    }
}

#[tokio::test]
async fn a_started_item_does_not_restart() {
    let model = FallbackModel::new(Failing::boxed(ErrorKind::Overloaded, true), vec![script("second")]);
    let (events, error) = all(&model, &Request::new("hi")).await;
    assert_eq!((events.len(), error.unwrap().kind), (1, ErrorKind::Overloaded));
}

#[tokio::test]
async fn unsupported_fallbacks_are_skipped() {
    let request = Request {
        provider_options: [("x".to_owned(), json!(1))].into_iter().collect(),
        tool_choice: Some(ToolChoice::Any),
        ..Request::new("hi")
    };
    let lacking = Failing::boxed(ErrorKind::Overloaded, false);
    let first = Failing::boxed(ErrorKind::Overloaded, false);
    let model = FallbackModel::new(first, vec![lacking, script("third")]);
    let response = model.respond(&request).await.unwrap();
    assert_eq!(response.text(), "third");
    let notices = response.notices.join("\n");
    assert!(
        notices.contains("skipped: no force") && notices.contains("options for first were not sent"),
        "{notices}"
    );
    assert_eq!(model.cost(&response, Timestamp::from_micros(0)).map(|cost| cost.usd), Some(0.0));
    assert_eq!(
        model.alternatives().iter().map(|model| model.id().provider.as_str()).collect::<Vec<_>>(),
        ["first", "script"]
    );
    let none = FallbackModel::new(Failing::boxed(ErrorKind::Overloaded, false), Vec::new());
    assert_eq!(none.respond(&request).await.unwrap_err().kind, ErrorKind::Overloaded);
}

/// A model without tool search and context editing.
#[derive(Debug)]
struct Plain(Arc<dyn Model>);

impl Model for Plain {
    fn id(&self) -> &ModelId {
        self.0.id()
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        let asks = !request.hosted_tools.is_empty() || !request.context_edits.is_empty();
        if asks || request.tools.iter().any(|tool| tool.deferred) {
            return Err(ModelError::new(ErrorKind::Unsupported, "too much"));
        }
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        self.0.stream(request)
    }
}

#[tokio::test]
async fn optional_features_are_removed_for_a_fallback() {
    let tool = ToolDefinition::new("look", "Looks.", &json!({"type": "object"}));
    let mut request = Request {
        tools: vec![ToolDefinition { deferred: true, ..tool }].into(),
        hosted_tools: vec![HostedTool::ToolSearch { version: None }],
        context_edits: vec![ContextEdit::Compact { at_tokens: None }],
        ..Request::new("hi")
    };
    let model = || {
        let plain = Arc::new(Plain(script("plain")));
        FallbackModel::new(Failing::boxed(ErrorKind::Overloaded, false), vec![plain, script("other")])
    };
    let response = model().respond(&request).await.unwrap();
    let notices = response.notices.join("\n");
    assert_eq!(response.text(), "plain");
    assert!(notices.contains("without tool search") && notices.contains("and context edits"), "{notices}");
    request.hosted_tools.push(HostedTool::CodeExecution { version: None, file_ids: Vec::new() });
    assert_eq!(model().respond(&request).await.unwrap().text(), "other", "the rest is needed");
}

/// A scripted model with a price.
#[derive(Debug)]
struct Priced(ModelId, f64, Arc<dyn Model>);

impl Priced {
    fn boxed(provider: &str, usd: f64, model: Arc<dyn Model>) -> Arc<dyn Model> {
        Arc::new(Self(ModelId::new(provider, "m"), usd, model))
    }
}

impl Model for Priced {
    fn id(&self) -> &ModelId {
        &self.0
    }

    fn cost(&self, _: &Response, _: Timestamp) -> Option<Cost> {
        Some(Cost { usd: self.1, ..Cost::default() })
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        self.2.check(request)
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let origin = self.0.clone();
        let change = move |event| match event {
            Ok(ModelEvent::Done(mut response)) => {
                response.origin = origin.clone();
                Ok(ModelEvent::Done(response))
            }
            other => other,
        };
        self.2.stream(request).map(change).boxed()
    }
}

#[tokio::test]
async fn the_answering_model_sets_the_cost() {
    let second = || Priced::boxed("second", 2.0, script("hi"));
    let fails = Priced::boxed("first", 1.0, Failing::boxed(ErrorKind::Overloaded, false));
    for (first, usd) in [(fails, 2.0), (Priced::boxed("first", 1.0, script("hi")), 1.0)] {
        let model = FallbackModel::new(first, vec![second()]);
        let response = model.respond(&Request::new("hi")).await.unwrap();
        let cost = model.cost(&response, Timestamp::from_micros(0));
        assert_eq!(cost, Some(Cost { usd, ..Cost::default() }), "{}", response.origin);
    }
}

/// A model with a slow answer.
#[derive(Debug)]
struct Slow(ModelId, Duration);

impl Model for Slow {
    fn id(&self) -> &ModelId {
        &self.0
    }

    fn check(&self, _: &Request) -> Result<(), ModelError> {
        Ok(())
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        let (wait, inner) = (self.1, script("slow").stream(request));
        futures_util::stream::once(async move {
            tokio::time::sleep(wait).await;
            inner
        })
        .flatten()
        .boxed()
    }
}

fn slow(limits: ProviderLimits) -> (Arc<RateLimitedModel>, Arc<RateLimiter>) {
    let limiter = RateLimiter::new(limits);
    let model = Slow(ModelId::new("p", "m"), Duration::from_millis(40));
    (Arc::new(RateLimitedModel::new(Arc::new(model), Arc::clone(&limiter))), limiter)
}

fn respond(model: &Arc<RateLimitedModel>) -> BoxFuture<'static, Result<Response, ModelError>> {
    let model = Arc::clone(model);
    Box::pin(async move { model.respond(&Request::new("hi")).await })
}

#[tokio::test]
async fn concurrency_is_limited() {
    let (model, _) = slow(ProviderLimits { concurrency: Some(2), ..ProviderLimits::default() });
    let begun = Instant::now();
    let all = futures_util::future::join_all((0..6).map(|_| respond(&model))).await;
    assert!(all.iter().all(Result::is_ok));
    assert!(begun.elapsed() >= Duration::from_millis(115), "{:?}", begun.elapsed());
}

/// Reads a whole stream.
fn read(model: &Arc<RateLimitedModel>) -> BoxFuture<'static, Option<ModelError>> {
    let model = Arc::clone(model);
    Box::pin(async move { all(&*model, &Request::new("hi")).await.1 })
}

#[tokio::test(start_paused = true)]
async fn a_stream_holds_its_permit_until_its_end() {
    let (model, _) = slow(ProviderLimits { concurrency: Some(2), ..ProviderLimits::default() });
    let begun = tokio::time::Instant::now();
    let errors = futures_util::future::join_all((0..6).map(|_| read(&model))).await;
    assert!(errors.iter().all(Option::is_none), "{errors:?}");
    assert_eq!(begun.elapsed().as_millis() / 40, 3, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn usage_counts_streamed_or_not() {
    let used = |streamed: bool| async move {
        let limiter =
            RateLimiter::new(ProviderLimits { tokens_per_minute: Some(600), ..ProviderLimits::default() });
        let turns = "turns: [{ text: a, usage: { input: 1000, output: 200 } }, { text: b }]";
        let scripted = ScriptModel::parse("s.yaml", turns).unwrap();
        let model = Arc::new(RateLimitedModel::new(Arc::new(scripted), limiter));
        let begun = tokio::time::Instant::now();
        for _ in 0..2 {
            let error = if streamed { read(&model).await } else { respond(&model).await.err() };
            assert!(error.is_none(), "{error:?}");
        }
        begun.elapsed()
    };
    // 600 above the limit, at 10 per second.
    for streamed in [true, false] {
        let took = used(streamed).await;
        assert!((Duration::from_secs(59)..Duration::from_secs(63)).contains(&took), "{streamed}: {took:?}");
    }
}

#[tokio::test]
async fn a_cancelled_request_releases_its_permit() {
    let (model, _) = slow(ProviderLimits { concurrency: Some(1), ..ProviderLimits::default() });
    // A running and a queued request are dropped.
    let mut running = model.stream(&Request::new("hi"));
    let mut waiting = respond(&model);
    let poll = async { futures_util::future::join(running.next(), &mut waiting).await };
    assert!(tokio::time::timeout(Duration::from_millis(10), poll).await.is_err());
    drop((running, waiting));
    tokio::time::timeout(Duration::from_secs(2), respond(&model)).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_queue_is_bounded() {
    let limits = ProviderLimits { concurrency: Some(1), max_queued: 2, ..ProviderLimits::default() };
    let (model, _) = slow(limits);
    let all = futures_util::future::join_all((0..5).map(|_| respond(&model))).await;
    let refused: Vec<_> = all.iter().filter_map(|one| one.as_ref().err()).collect();
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert!(refused.iter().all(|error| error.kind == ErrorKind::RateLimited { retry_after: None }));
}

#[tokio::test(start_paused = true)]
async fn requests_are_spread_over_the_minute_in_order() {
    let (model, _) = slow(ProviderLimits { requests_per_minute: Some(20), ..ProviderLimits::default() });
    let begun = tokio::time::Instant::now();
    let mut ends = Vec::new();
    for number in 0..22 {
        respond(&model).await.unwrap();
        ends.push((number, begun.elapsed()));
    }
    // Two at once, then one every three seconds.
    let last = ends.last().unwrap().1;
    assert!((Duration::from_secs(55)..Duration::from_secs(65)).contains(&last), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn excess_tokens_delay_later_requests() {
    let (model, limiter) = slow(ProviderLimits { tokens_per_minute: Some(600), ..ProviderLimits::default() });
    let begun = tokio::time::Instant::now();
    respond(&model).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1));
    limiter.record_tokens(1_200);
    respond(&model).await.unwrap();
    // 600 above the limit, at 10 per second.
    assert!(
        (Duration::from_secs(59)..Duration::from_secs(63)).contains(&begun.elapsed()),
        "{:?}",
        begun.elapsed()
    );
}
