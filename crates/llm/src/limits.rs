//! How fast and how often at once a provider is asked, by our own will.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use toolpost_core::Timestamp;

use crate::{
    BoxFuture, Cost, ErrorKind, Model, ModelError, ModelEvent, ModelId, ModelInfo, Request, Response,
    ResponseStream,
};

const MINUTE: Duration = Duration::from_mins(1);

/// How fast a provider may be asked. What is not set has no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderLimits {
    /// Requests in a minute. They are spread evenly, after a tenth of a minute's worth at once. Default: no limit.
    pub requests_per_minute: Option<u32>,
    /// Tokens in a minute, input and output, as the provider counts them. An answer's tokens are known when it is over:
    /// what was too much delays the requests after it. Default: no limit.
    pub tokens_per_minute: Option<u64>,
    /// Requests at once. Default: no limit.
    pub concurrency: Option<usize>,
    /// Requests that may wait. One more is [`ErrorKind::RateLimited`] at once. Default: 1,000.
    pub most_waiting: usize,
}

impl Default for ProviderLimits {
    fn default() -> Self {
        Self { requests_per_minute: None, tokens_per_minute: None, concurrency: None, most_waiting: 1_000 }
    }
}

impl ProviderLimits {
    /// Whether there is nothing to limit.
    pub fn is_unlimited(&self) -> bool {
        self.requests_per_minute.is_none() && self.tokens_per_minute.is_none() && self.concurrency.is_none()
    }
}

/// The state of the limits of one provider. Models that share it share the limits. Whoever waits is served in the order
/// of coming; whoever goes away while waiting takes nothing.
#[derive(Debug)]
pub struct Limiter {
    limits: ProviderLimits,
    places: Option<Arc<Semaphore>>,
    /// The queue of those who wait for their turn: the lock is fair, and its holder sleeps until it may go.
    rates: Mutex<Option<Instant>>,
    tokens: std::sync::Mutex<Bucket>,
    waiting: AtomicUsize,
}

/// Tokens that may be used now; less than nothing if too many were.
#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn fill(&mut self, per_minute: u64, now: Instant) {
        let more = now.saturating_duration_since(self.at).as_secs_f64() / 60.0 * per_minute as f64;
        self.left = (self.left + more).min(per_minute as f64);
        self.at = now;
    }
}

/// One who waits, counted until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Limiter {
    /// Limits at their beginning: everything may be used.
    pub fn new(limits: ProviderLimits) -> Arc<Self> {
        let places =
            limits.concurrency.map(|most| Arc::new(Semaphore::new(most.clamp(1, Semaphore::MAX_PERMITS))));
        let left = limits.tokens_per_minute.unwrap_or_default() as f64;
        Arc::new(Self {
            limits,
            places,
            rates: Mutex::new(None),
            tokens: std::sync::Mutex::new(Bucket { left, at: Instant::now() }),
            waiting: AtomicUsize::new(0),
        })
    }

    /// Waits until a request may be sent, and gives the place that it holds until it is over.
    async fn enter(&self, model: &ModelId) -> Result<Option<OwnedSemaphorePermit>, ModelError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.limits.most_waiting {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let message = format!(
                "{} requests already wait for the limits of `{}` that were set here",
                self.limits.most_waiting, model.provider
            );
            return Err(
                ModelError::new(ErrorKind::RateLimited { retry_after: None }, message).with_model(model)
            );
        }
        let _waiting = Waiting(&self.waiting);
        let place = match &self.places {
            // The semaphore is never closed, so that there always is a place in the end.
            Some(places) => Arc::clone(places).acquire_owned().await.ok(),
            None => None,
        };
        if self.limits.requests_per_minute.is_some() || self.limits.tokens_per_minute.is_some() {
            let mut next = self.rates.lock().await;
            while let Some(until) = self.tokens_at() {
                sleep_until(until).await;
            }
            if let Some(requests) = self.limits.requests_per_minute {
                // The time at which the request is due, no earlier than what may go at once allows.
                let every = MINUTE / requests.max(1);
                let now = Instant::now();
                let earliest = now.checked_sub(MINUTE / 10).unwrap_or(now);
                let due = next.map_or(earliest, |due| due.max(earliest));
                sleep_until(due).await;
                *next = Some(due + every);
            }
        }
        Ok(place)
    }

    /// When tokens may be used again, if not now.
    fn tokens_at(&self) -> Option<Instant> {
        let per_minute = self.limits.tokens_per_minute?.max(1);
        let mut bucket = self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        bucket.fill(per_minute, now);
        (bucket.left <= 0.0).then(|| {
            let minutes = (1.0 - bucket.left) / per_minute as f64;
            now + Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(MINUTE)
        })
    }

    /// Counts what an answer used that came by another way than a [`LimitedModel`].
    pub fn used(&self, tokens: u64) {
        if let Some(per_minute) = self.limits.tokens_per_minute {
            let mut bucket = self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            bucket.fill(per_minute.max(1), Instant::now());
            // One answer delays no more than ten minutes, whatever a provider says that it used.
            bucket.left = (bucket.left - tokens as f64).max(-10.0 * per_minute as f64);
        }
    }
}

/// A model that is asked no faster and no more often at once than its limits allow.
#[derive(Debug)]
pub struct LimitedModel {
    model: Arc<dyn Model>,
    limiter: Arc<Limiter>,
}

impl LimitedModel {
    /// The model within limits, which it may share with others.
    pub fn new(model: Arc<dyn Model>, limiter: Arc<Limiter>) -> Self {
        Self { model, limiter }
    }
}

enum Stage {
    Before,
    Within(ResponseStream, Option<OwnedSemaphorePermit>),
    Over,
}

impl Model for LimitedModel {
    fn id(&self) -> &ModelId {
        self.model.id()
    }

    fn info(&self) -> Option<&ModelInfo> {
        self.model.info()
    }

    fn alternatives(&self) -> &[Arc<dyn Model>] {
        self.model.alternatives()
    }

    fn cost(&self, response: &Response, at: Timestamp) -> Option<Cost> {
        self.model.cost(response, at)
    }

    fn check(&self, request: &Request) -> Result<(), ModelError> {
        self.model.check(request)
    }

    fn stream(&self, request: &Request) -> ResponseStream {
        // The request is written now and sent when its turn has come: a stream sends nothing before it is polled.
        let events = self.model.stream(request);
        let (id, limiter) = (self.id().clone(), Arc::clone(&self.limiter));
        futures_util::stream::unfold((Stage::Before, Some(events)), move |(mut stage, mut events)| {
            let (id, limiter) = (id.clone(), Arc::clone(&limiter));
            async move {
                if matches!(stage, Stage::Before) {
                    match limiter.enter(&id).await {
                        Ok(place) => stage = Stage::Within(events.take()?, place),
                        Err(error) => return Some((Err(error), (Stage::Over, None))),
                    }
                }
                let Stage::Within(mut events, place) = stage else { return None };
                let event = events.next().await?;
                if let Ok(ModelEvent::Done(response)) = &event {
                    limiter.used(response.usage.total());
                }
                Some((event, (Stage::Within(events, place), None)))
            }
        })
        .boxed()
    }

    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move {
            let _place = self.limiter.enter(self.id()).await?;
            let response = self.model.respond(request).await?;
            self.limiter.used(response.usage.total());
            Ok(response)
        })
    }
}
