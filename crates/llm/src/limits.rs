//! Client-side rate limits of providers.

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

/// Client-side rate limits of a provider. Unset values have no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderLimits {
    /// The requests per minute, spread evenly after a burst of a tenth of a minute. Default: no limit.
    pub requests_per_minute: Option<u32>,
    /// The input and output tokens per minute, as the provider counts them. Default: no limit.
    ///
    /// An answer's tokens are known at its end. An excess delays the next requests.
    pub tokens_per_minute: Option<u64>,
    /// The concurrent requests. Default: no limit.
    pub concurrency: Option<usize>,
    /// The queued requests. Another request fails with [`ErrorKind::RateLimited`]. Default: 1,000.
    pub max_queued: usize,
}

impl Default for ProviderLimits {
    fn default() -> Self {
        Self { requests_per_minute: None, tokens_per_minute: None, concurrency: None, max_queued: 1_000 }
    }
}

impl ProviderLimits {
    /// Whether no limit is set.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.requests_per_minute.is_none() && self.tokens_per_minute.is_none() && self.concurrency.is_none()
    }
}

/// The rate limiter of one provider, shared by its models. It serves requests in order. A cancelled request uses nothing.
#[derive(Debug)]
pub struct RateLimiter {
    limits: ProviderLimits,
    permits: Option<Arc<Semaphore>>,
    /// The time of the next request. The lock is fair, and its holder sleeps until this time.
    next_request: Mutex<Option<Instant>>,
    tokens: std::sync::Mutex<Bucket>,
    queued: AtomicUsize,
}

/// A token bucket. The balance is negative after an excess.
#[derive(Debug)]
struct Bucket {
    balance: f64,
    at: Instant,
}

impl Bucket {
    fn fill(&mut self, per_minute: u64, now: Instant) {
        let more = now.saturating_duration_since(self.at).as_secs_f64() / 60.0 * per_minute as f64;
        self.balance = (self.balance + more).min(per_minute as f64);
        self.at = now;
    }
}

/// A queued request, counted until it is dropped.
struct Queued<'a>(&'a AtomicUsize);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl RateLimiter {
    /// A limiter with full buckets.
    pub fn new(limits: ProviderLimits) -> Arc<Self> {
        let permits =
            limits.concurrency.map(|max| Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS))));
        let balance = limits.tokens_per_minute.unwrap_or_default() as f64;
        Arc::new(Self {
            limits,
            permits,
            next_request: Mutex::new(None),
            tokens: std::sync::Mutex::new(Bucket { balance, at: Instant::now() }),
            queued: AtomicUsize::new(0),
        })
    }

    /// Waits until a request may be sent. The permit is held until the request ends.
    async fn acquire(&self, model: &ModelId) -> Result<Option<OwnedSemaphorePermit>, ModelError> {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= self.limits.max_queued {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            let message = format!(
                "{} requests are already queued for the rate limits of `{}`",
                self.limits.max_queued, model.provider
            );
            return Err(
                ModelError::new(ErrorKind::RateLimited { retry_after: None }, message).with_model(model)
            );
        }
        let _queued = Queued(&self.queued);
        let permit = match &self.permits {
            // The semaphore is never closed.
            Some(permits) => Arc::clone(permits).acquire_owned().await.ok(),
            None => None,
        };
        if self.limits.requests_per_minute.is_some() || self.limits.tokens_per_minute.is_some() {
            let mut next = self.next_request.lock().await;
            while let Some(until) = self.tokens_available_at() {
                sleep_until(until).await;
            }
            if let Some(requests) = self.limits.requests_per_minute {
                // A burst allows up to a tenth of a minute in advance.
                let interval = MINUTE / requests.max(1);
                let now = Instant::now();
                let earliest = now.checked_sub(MINUTE / 10).unwrap_or(now);
                let due = next.map_or(earliest, |due| due.max(earliest));
                sleep_until(due).await;
                *next = Some(due + interval);
            }
        }
        Ok(permit)
    }

    /// When tokens are available again; `None` if they are available now.
    fn tokens_available_at(&self) -> Option<Instant> {
        let per_minute = self.limits.tokens_per_minute?.max(1);
        let mut bucket = self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        bucket.fill(per_minute, now);
        (bucket.balance <= 0.0).then(|| {
            let minutes = (1.0 - bucket.balance) / per_minute as f64;
            now + Duration::try_from_secs_f64(minutes * 60.0).unwrap_or(MINUTE)
        })
    }

    /// Counts the tokens of an answer.
    pub fn record_tokens(&self, tokens: u64) {
        if let Some(per_minute) = self.limits.tokens_per_minute {
            let mut bucket = self.tokens.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            bucket.fill(per_minute.max(1), Instant::now());
            // One answer delays others by at most ten minutes, whatever the provider reports.
            bucket.balance = (bucket.balance - tokens as f64).max(-10.0 * per_minute as f64);
        }
    }
}

/// A model with client-side rate limits.
#[derive(Debug)]
pub struct RateLimitedModel {
    model: Arc<dyn Model>,
    limiter: Arc<RateLimiter>,
}

impl RateLimitedModel {
    /// A model with a limiter, which other models may share.
    pub fn new(model: Arc<dyn Model>, limiter: Arc<RateLimiter>) -> Self {
        Self { model, limiter }
    }
}

enum Stage {
    Queued,
    Running(ResponseStream, Option<OwnedSemaphorePermit>),
    Ended,
}

impl Model for RateLimitedModel {
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
        // A stream sends nothing before its first poll.
        let events = self.model.stream(request);
        let (id, limiter) = (self.id().clone(), Arc::clone(&self.limiter));
        futures_util::stream::unfold((Stage::Queued, Some(events)), move |(mut stage, mut events)| {
            let (id, limiter) = (id.clone(), Arc::clone(&limiter));
            async move {
                if matches!(stage, Stage::Queued) {
                    match limiter.acquire(&id).await {
                        Ok(permit) => stage = Stage::Running(events.take()?, permit),
                        Err(error) => return Some((Err(error), (Stage::Ended, None))),
                    }
                }
                let Stage::Running(mut events, permit) = stage else { return None };
                let event = events.next().await?;
                if let Ok(ModelEvent::Done(response)) = &event {
                    limiter.record_tokens(response.usage.total());
                }
                Some((event, (Stage::Running(events, permit), None)))
            }
        })
        .boxed()
    }

    fn respond<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Response, ModelError>> {
        Box::pin(async move {
            let _permit = self.limiter.acquire(self.id()).await?;
            let response = self.model.respond(request).await?;
            self.limiter.record_tokens(response.usage.total());
            Ok(response)
        })
    }
}
