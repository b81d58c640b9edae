//! One request to a model and its answer over HTTP.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use reqwest::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Url};
use tokio::time::{Instant, timeout};

use crate::fields::Members;
use crate::http::attempts::{Attempts, Failure, Rejection, text_header};
use crate::http::client::HttpClient;
use crate::http::retry::{Advice, retry_delay};
use crate::http::sse::{Decoder, Malformed};
use crate::wires::AnyFold;
use crate::wires::codec::{Codec, Fold as _};
use crate::{
    ErrorKind, Item, ItemView, ModelError, ModelEvent, ModelId, Response, ResponseStream, Secret,
    TimeoutStage, surrogates,
};

/// Maximum length of a body of an unsuccessful answer that is read, in bytes.
pub(crate) const MAX_ERROR_BODY: usize = 64 * 1024;

/// The wait for the last bytes after the answer, so that the connection can be reused.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// The number of yields so that background tasks return a connection to the pool. One thread needs two, several may need
/// more.
const YIELDS: usize = 4;

/// A request that is ready to send.
pub(crate) struct Exchange {
    pub(crate) client: HttpClient,
    pub(crate) codec: Arc<dyn Codec>,
    pub(crate) model: ModelId,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Secrets that errors must not contain.
    pub(crate) secrets: Vec<Secret>,
    pub(crate) notices: Vec<String>,
}

impl Exchange {
    /// The answer as a stream of events. Sends nothing before the first poll.
    pub(crate) fn stream(self) -> ResponseStream {
        // Boxed, because the stream moves it for every event.
        let driver = Box::new(Driver {
            queue: self.notices.iter().cloned().map(ModelEvent::Notice).collect(),
            attempts: None,
            exchange: self,
            state: ExchangeStage::Open,
            has_delivered: false,
            failure: None,
        });
        futures_util::stream::unfold(driver, |mut driver| async move {
            let event = driver.next().await?;
            Some((event, driver))
        })
        .boxed()
    }

    /// The complete answer.
    pub(crate) async fn respond(self) -> Result<Response, ModelError> {
        let mut attempts = self.attempts();
        loop {
            match self.respond_once(&attempts).await {
                Ok(mut response) => {
                    response.notices = self.notices;
                    response.notices.extend(notices_of(&response));
                    return Ok(response);
                }
                Err(failure) => attempts.retry(failure).await?,
            }
        }
    }

    fn attempts(&self) -> Attempts {
        Attempts::new(&self.client, &self.model, &self.secrets)
    }

    /// Sends the request and waits for the head of a successful answer.
    async fn open(&self, attempts: &Attempts, accept: &'static str) -> Result<reqwest::Response, Failure> {
        let mut request = reqwest::Request::new(Method::POST, self.url.clone());
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        *request.body_mut() = Some(self.body.clone().into());
        let mut response = attempts.send(request, attempts.first_byte_deadline()).await?;
        if !response.status().is_success() {
            return Err(self.rejection(attempts, &mut response).await);
        }
        match content_encoding(response.headers()) {
            Some(encoding) => {
                Err(Failure::protocol(format!("the answer has the unsupported encoding `{encoding}`")))
            }
            None => Ok(response),
        }
    }

    async fn rejection(&self, attempts: &Attempts, response: &mut reqwest::Response) -> Failure {
        let Rejection { status, mut advice, retry_after } = match Rejection::from_response(response) {
            Ok(rejection) => rejection,
            Err(failure) => return failure,
        };
        let id = request_id(response.headers());
        // An unreadable body does not hide the status.
        let text = self.read_text(attempts, response, MAX_ERROR_BODY).await.unwrap_or_default();
        // Some providers put the wait into the body.
        let mut wait = retry_after.or_else(|| retry_delay(&text));
        let mut error = self.codec.read_error(status, &text);
        if let ErrorKind::RateLimited { retry_after } = &mut error.kind {
            wait = wait.or(*retry_after);
            *retry_after = wait;
        }
        if let Advice::Retry { after } = &mut advice {
            *after = wait;
        }
        // An empty account also answers 429, and waiting does not fill it.
        if error.kind == ErrorKind::Billing {
            advice = Advice::GiveUp;
        }
        error.details.request_id = id.or(error.details.request_id);
        Failure { error, advice }
    }

    async fn read_text(
        &self,
        attempts: &Attempts,
        response: &mut reqwest::Response,
        limit: usize,
    ) -> Result<String, Failure> {
        let until = attempts.first_byte_deadline();
        let text = attempts.read_text(response, limit, until, TimeoutStage::FirstByte).await?;
        release_connection().await;
        Ok(text)
    }

    async fn respond_once(&self, attempts: &Attempts) -> Result<Response, Failure> {
        let mut response = self.open(attempts, "application/json").await?;
        self.read_body(attempts, &mut response).await
    }

    /// Reads a successful answer that is not a stream.
    async fn read_body(
        &self,
        attempts: &Attempts,
        response: &mut reqwest::Response,
    ) -> Result<Response, Failure> {
        let kind = media_type(response.headers()).to_ascii_lowercase();
        let status = response.status().as_u16();
        let id = request_id(response.headers());
        let text = self.read_text(attempts, response, self.client.options().max_answer_bytes).await?;
        let with_details = |mut error: ModelError| {
            error.details.status = Some(status);
            error.details.request_id.clone_from(&id);
            error
        };
        if kind != "application/json" {
            let start: String = text.trim().chars().take(200).collect();
            let message = format!("expected `application/json`, found `{kind}`: {start}");
            return Err(Failure::permanent(with_details(ModelError::new(ErrorKind::Protocol, message))));
        }
        self.codec
            .read_body(&surrogates::replaced(&text))
            .map_err(|error| failure_in_answer(with_details(error)))
    }
}

/// Lets background tasks return the connection to the pool. Otherwise the next request opens another connection.
async fn release_connection() {
    for _ in 0..YIELDS {
        tokio::task::yield_now().await;
    }
}

/// The failure of an error inside a successful answer.
fn failure_in_answer(error: ModelError) -> Failure {
    match error.kind {
        ErrorKind::Overloaded | ErrorKind::RateLimited { .. } => Failure::transient(error),
        _ => Failure::permanent(error),
    }
}

/// The media type without its parameters.
fn media_type(headers: &HeaderMap) -> &str {
    let text = text_header(headers, CONTENT_TYPE.as_str()).unwrap_or("no content type");
    text.split(';').next().unwrap_or_default().trim()
}

/// The encoding of a body, if it has one.
fn content_encoding(headers: &HeaderMap) -> Option<String> {
    let encoding = headers.get(CONTENT_ENCODING)?.to_str().unwrap_or("not text").trim();
    let is_plain = encoding.is_empty() || encoding.eq_ignore_ascii_case("identity");
    (!is_plain).then(|| encoding.chars().take(80).collect())
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = text_header(headers, "request-id").or_else(|| text_header(headers, "x-request-id"))?;
    Some(id.chars().take(200).collect())
}

enum ExchangeStage {
    Wait(Duration),
    Open,
    Read(Box<Reading>),
    End,
}

/// An open stream.
struct Reading {
    response: reqwest::Response,
    /// The undecoded rest of the last chunk.
    chunk: Bytes,
    decoder: Decoder,
    fold: AnyFold,
    read: usize,
    until: Instant,
    stage: TimeoutStage,
    request_id: Option<String>,
}

/// The stream's state machine.
struct Driver {
    exchange: Exchange,
    attempts: Option<Attempts>,
    state: ExchangeStage,
    queue: VecDeque<ModelEvent>,
    /// Whether a part of the answer was delivered, which another attempt would repeat.
    has_delivered: bool,
    /// A failure that is handled after the queue is empty.
    failure: Option<Failure>,
}

impl Driver {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                self.has_delivered |=
                    !matches!(event, ModelEvent::Notice(_) | ModelEvent::Retrying { .. } | ModelEvent::Lost);
                return Some(Ok(event));
            }
            let exchange = &self.exchange;
            let attempts = self.attempts.get_or_insert_with(|| exchange.attempts());
            if let Some(mut failure) = self.failure.take() {
                if self.has_delivered {
                    failure.advice = Advice::GiveUp;
                }
                let is_lost = failure.error.kind.may_be_billed();
                match attempts.record(failure) {
                    Ok((reason, after)) => {
                        self.queue.extend(is_lost.then_some(ModelEvent::Lost));
                        let attempt = attempts.failed();
                        self.queue.push_back(ModelEvent::Retrying { attempt, after, reason });
                        self.state = ExchangeStage::Wait(after);
                    }
                    Err(error) => {
                        self.state = ExchangeStage::End;
                        return Some(Err(error));
                    }
                }
                continue;
            }
            match std::mem::replace(&mut self.state, ExchangeStage::End) {
                ExchangeStage::Wait(wait) => {
                    attempts.pause(wait).await;
                    self.state = ExchangeStage::Open;
                }
                ExchangeStage::Open => match exchange.open_stream(attempts, &mut self.queue).await {
                    Ok(Some(reading)) => self.state = ExchangeStage::Read(reading),
                    Ok(None) => {}
                    Err(failure) => self.failure = Some(failure),
                },
                ExchangeStage::Read(mut reading) => {
                    match reading.step(exchange, attempts, &mut self.queue).await {
                        Ok(true) => {}
                        Ok(false) => self.state = ExchangeStage::Read(reading),
                        Err(mut failure) => {
                            failure.error.details.request_id = reading.request_id.take();
                            self.failure = Some(failure);
                        }
                    }
                }
                ExchangeStage::End => return None,
            }
        }
    }
}

impl Exchange {
    /// Opens the stream. `None` if the server answered with a body instead, whose events are then in the queue.
    async fn open_stream(
        &self,
        attempts: &Attempts,
        queue: &mut VecDeque<ModelEvent>,
    ) -> Result<Option<Box<Reading>>, Failure> {
        let mut response = self.open(attempts, "text/event-stream").await?;
        if media_type(response.headers()).eq_ignore_ascii_case("text/event-stream") {
            return Ok(Some(Box::new(Reading {
                request_id: request_id(response.headers()),
                response,
                chunk: Bytes::new(),
                decoder: Decoder::default(),
                fold: self.codec.fold(),
                read: 0,
                until: attempts.first_byte_deadline(),
                stage: TimeoutStage::FirstByte,
            })));
        }
        let answer = self.read_body(attempts, &mut response).await?;
        queue.push_back(ModelEvent::Notice("the server answered without streaming".to_owned()));
        queue.extend(answer.items.iter().cloned().map(ModelEvent::Item));
        self.complete(answer, queue);
        Ok(None)
    }

    /// Queues the end of an answer.
    fn complete(&self, mut answer: Response, queue: &mut VecDeque<ModelEvent>) {
        answer.notices.clone_from(&self.notices);
        for notice in notices_of(&answer) {
            answer.notices.push(notice.clone());
            queue.push_back(ModelEvent::Notice(notice));
        }
        queue.push_back(ModelEvent::Done(Box::new(answer)));
    }
}

/// Notices about an answer: unknown usage, and calls that wait for approval.
fn notices_of(answer: &Response) -> Vec<String> {
    let uncounted = answer
        .usage
        .incomplete
        .then(|| "the provider reported no valid token counts: the cost of the answer is unknown".to_owned());
    uncounted.into_iter().chain(answer.items.iter().filter_map(pending_approval)).collect()
}

/// The notice about a call of the provider's MCP client that waits for approval.
fn pending_approval(item: &Item) -> Option<String> {
    let ItemView::Other { kind } = item.view() else { return None };
    if kind != "mcp_approval_request" {
        return None;
    }
    let members = Members::parse(item.raw().get());
    let text = |name: &str| members.read::<String>(name).unwrap_or_default();
    let (tool, server) = (text("name"), text("server_label"));
    Some(format!(
        "the provider's call of `{tool}` on the MCP server `{server}` needs an approval that cannot be given here: \
         set `\"require_approval\": \"never\"` for the server, or connect to the server directly"
    ))
}

/// An error of the fold or of the decoder.
enum StreamError {
    Fold(ModelError),
    Malformed(Malformed),
}

impl From<Malformed> for StreamError {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Fold(error) => failure_in_answer(error),
            StreamError::Malformed(malformed) => Self::protocol(malformed.to_string()),
        }
    }
}

impl Reading {
    /// Reads up to the end of the next event or chunk. True if the answer is complete and in the queue.
    ///
    /// One event at a time: a chunk has many events, and an event may produce much more than its own bytes.
    async fn step(
        &mut self,
        exchange: &Exchange,
        attempts: &Attempts,
        queue: &mut VecDeque<ModelEvent>,
    ) -> Result<bool, Failure> {
        if self.chunk.is_empty() {
            let Some(chunk) = attempts.chunk(&mut self.response, self.until, self.stage).await? else {
                return self.end(exchange, queue);
            };
            self.read += chunk.len();
            let limit = exchange.client.options().max_answer_bytes;
            if self.read > limit {
                return Err(Failure::protocol(format!("the answer is longer than {limit} bytes")));
            }
            self.chunk = chunk;
        }
        let Self { decoder, fold, chunk, .. } = self;
        let mut events = 0_u32;
        let taken = decoder.feed_event(chunk, &mut |data: &str| {
            events += 1;
            fold.take(data, queue).map_err(StreamError::Fold)
        })?;
        chunk.advance(taken);
        if chunk.is_empty() {
            // An empty slice still holds the connection's buffer.
            *chunk = Bytes::new();
        }
        // Only complete events count as progress: a stream that drips bytes must end.
        if events > 0 {
            self.until = attempts.event_deadline();
            self.stage = TimeoutStage::BetweenEvents;
        }
        if !self.fold.is_complete() {
            return Ok(false);
        }
        let answer = self.fold.finish().map_err(Failure::permanent)?;
        // A connection can be reused after its last bytes are read.
        let drain = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        timeout(DRAIN_TIMEOUT, drain).await.unwrap_or_default();
        release_connection().await;
        exchange.complete(answer, queue);
        Ok(true)
    }

    /// Handles the end of the bytes.
    fn end(&mut self, exchange: &Exchange, queue: &mut VecDeque<ModelEvent>) -> Result<bool, Failure> {
        let Self { decoder, fold, .. } = self;
        // The rest may be an event without its final line break, or half of an event.
        let rest = decoder
            .finish(&mut |data: &str| fold.take(data, queue).map_err(StreamError::Fold))
            .and_then(|()| fold.end(queue).map_err(StreamError::Fold));
        if fold.is_complete() {
            exchange.complete(fold.finish().map_err(Failure::permanent)?, queue);
            return Ok(true);
        }
        Err(match rest {
            Err(StreamError::Fold(error)) if error.kind != ErrorKind::Protocol => failure_in_answer(error),
            _ => {
                let message = "the stream ended before the answer was complete";
                Failure::transient(ModelError::new(ErrorKind::Protocol, message))
            }
        })
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("model", &self.model).finish_non_exhaustive()
    }
}
