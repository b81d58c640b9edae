//! One request and its answer over HTTP: attempts, waits, limits.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use reqwest::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Url};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::fields::Members;
use crate::http::client::{HttpClient, failure_of, is_refused_here, later};
use crate::http::retry::{Advice, advice_of, retry_after, retry_delay};
use crate::http::sse::{Decoder, Malformed};
use crate::wires::AnyFold;
use crate::wires::codec::{Codec, Fold as _};
use crate::{
    Attempt, ErrorKind, Item, ItemView, ModelError, ModelEvent, ModelId, NetworkStage, Response,
    ResponseStream, Secret, TimeoutStage, surrogates,
};

/// The longest body of an unsuccessful answer that is read, in bytes.
const LONGEST_ERROR_BODY: usize = 64 * 1024;

/// How long to wait for the end of the bytes after the end of the answer, so that the connection can serve again.
const FAREWELL: Duration = Duration::from_millis(100);
/// How many turns the tasks get that give a connection back. Two are enough on one thread; on several they may run on
/// another one.
const TURNS_TO_GIVE_BACK: usize = 4;

/// A request that is ready to be sent.
pub(crate) struct Exchange {
    pub(crate) client: HttpClient,
    pub(crate) codec: Arc<dyn Codec>,
    pub(crate) model: ModelId,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// What must not stand in an error.
    pub(crate) secrets: Vec<Secret>,
    pub(crate) notices: Vec<String>,
}

/// A failed attempt, and whether another may succeed.
#[derive(Debug)]
struct Failure {
    error: ModelError,
    advice: Advice,
}

impl Failure {
    fn last(error: ModelError) -> Self {
        Self { error, advice: Advice::GiveUp }
    }

    fn passing(error: ModelError) -> Self {
        Self { error, advice: Advice::Retry { after: None } }
    }
}

/// The attempts of an exchange so far.
struct Tries {
    exchange: Exchange,
    failed: Vec<Attempt>,
    /// When the attempt at hand began.
    began: Instant,
    /// When everything must be over.
    deadline: Instant,
}

impl Exchange {
    /// The answer as a stream of events. Nothing is sent before it is polled.
    pub(crate) fn stream(self) -> ResponseStream {
        // In a box, because the stream moves it for every event.
        let driver = Box::new(Driver {
            queue: self.notices.iter().cloned().map(ModelEvent::Notice).collect(),
            tries: None,
            exchange: Some(self),
            state: State::Begin,
            delivered: false,
            failure: None,
        });
        futures_util::stream::unfold(driver, |mut driver| async move {
            let event = driver.next().await?;
            Some((event, driver))
        })
        .boxed()
    }

    /// The answer as a whole.
    pub(crate) async fn respond(self) -> Result<Response, ModelError> {
        let mut tries = Tries::new(self);
        loop {
            match tries.respond_once().await {
                Ok(mut response) => {
                    response.notices = tries.exchange.notices;
                    response.notices.extend(told_of(&response));
                    return Ok(response);
                }
                Err(failure) => {
                    let (_, wait) = tries.after(failure)?;
                    tries.pause(wait).await;
                }
            }
        }
    }
}

impl Tries {
    fn new(exchange: Exchange) -> Self {
        let now = Instant::now();
        let deadline = later(now, exchange.client.options().total_timeout);
        Self { exchange, failed: Vec::new(), began: now, deadline }
    }

    async fn pause(&mut self, wait: Duration) {
        sleep(wait).await;
        self.began = Instant::now();
    }

    /// Notes a failure: the reason and the wait before the next attempt, or the error if there is to be none.
    fn after(&mut self, failure: Failure) -> Result<(String, Duration), ModelError> {
        let Failure { mut error, advice } = failure;
        for secret in &self.exchange.secrets {
            error.message = secret.scrub(&error.message);
            for told in
                [&mut error.details.provider_code, &mut error.details.request_id].into_iter().flatten()
            {
                *told = secret.scrub(told);
            }
        }
        let number = self.failed.len() as u32 + 1;
        let wait = self.exchange.client.options().retry.wait(number, &advice);
        // An attempt that could only begin after the end of everything is none.
        let wait = wait.filter(|wait| later(Instant::now(), *wait) < self.deadline);
        let reason = error.message.clone();
        self.failed.push(Attempt {
            number,
            reason: reason.clone(),
            status: error.details.status,
            took: self.began.elapsed(),
            waited: wait.unwrap_or_default(),
        });
        if let Some(wait) = wait {
            return Ok((reason, wait));
        }
        error.details.model = Some(self.exchange.model.clone());
        error.details.attempts = std::mem::take(&mut self.failed);
        Err(error)
    }

    fn late(&self, stage: TimeoutStage) -> ModelError {
        let options = self.exchange.client.options();
        let limit = match stage {
            TimeoutStage::Connect => options.connect_timeout,
            TimeoutStage::FirstByte => options.first_byte_timeout,
            TimeoutStage::BetweenEvents => options.event_timeout,
            TimeoutStage::Total => options.total_timeout,
        };
        ModelError::new(ErrorKind::Timeout(stage), format!("the limit is {limit:?}"))
    }

    /// The failure of having waited until `until`, which was the end of everything or of one stage.
    fn too_late(&self, until: Instant, stage: TimeoutStage) -> Failure {
        if until >= self.deadline {
            return Failure::last(self.late(TimeoutStage::Total));
        }
        Failure::passing(self.late(stage))
    }

    /// Sends the request and waits for the head of a successful answer.
    async fn open(&mut self, accept: &'static str) -> Result<reqwest::Response, Failure> {
        let Exchange { client, url, headers, body, model, .. } = &self.exchange;
        client.permit(url, model).map_err(Failure::last)?;
        let mut request = reqwest::Request::new(Method::POST, url.clone());
        *request.headers_mut() = headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static(accept));
        *request.body_mut() = Some(body.clone().into());
        let until = self.first_byte_deadline();
        let sent = timeout_at(until, client.inner(url).execute(request))
            .await
            .map_err(|_| self.too_late(until, TimeoutStage::FirstByte))?;
        let mut response = sent.map_err(|error| {
            let is_refused = is_refused_here(&error, url);
            let error = failure_of(error);
            match error.kind {
                // The same name, certificate or protocol will be there next time.
                ErrorKind::Network(NetworkStage::Tls) => Failure::last(error),
                _ if is_refused => Failure::last(error),
                _ => Failure::passing(error),
            }
        })?;
        if response.status().is_success() {
            return match encoding(response.headers()) {
                Some(encoding) => {
                    let message = format!("the answer is encoded as `{encoding}`, which was not asked for");
                    Err(Failure::last(ModelError::new(ErrorKind::Protocol, message)))
                }
                None => Ok(response),
            };
        }
        Err(self.refusal(&mut response).await)
    }

    fn first_byte_deadline(&self) -> Instant {
        later(self.began, self.exchange.client.options().first_byte_timeout).min(self.deadline)
    }

    async fn refusal(&self, response: &mut reqwest::Response) -> Failure {
        let status = response.status().as_u16();
        let now = SystemTime::now();
        let mut advice = advice_of(status, response.headers(), now);
        if response.status().is_redirection() {
            let target =
                response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or("nowhere");
            let message = format!("the answer redirects to `{target}`, which is not followed with a key");
            return Failure::last(ModelError::new(ErrorKind::Protocol, message).with_status(status));
        }
        let wait = retry_after(response.headers(), now);
        let id = request_id(response.headers());
        // An error whose text cannot be read is still that error.
        let text = self.read_text(response, LONGEST_ERROR_BODY).await.unwrap_or_default();
        // Some providers say in the body how long to wait.
        let mut wait = wait.or_else(|| retry_delay(&text));
        let mut error = self.exchange.codec.read_error(status, &text);
        if let ErrorKind::RateLimited { retry_after } = &mut error.kind {
            wait = wait.or(*retry_after);
            *retry_after = wait;
        }
        if let Advice::Retry { after } = &mut advice {
            *after = wait;
        }
        // An empty account comes as 429 too, and will not fill while somebody waits.
        if error.kind == ErrorKind::Billing {
            advice = Advice::GiveUp;
        }
        error.details.request_id = id.or(error.details.request_id);
        Failure { error, advice }
    }

    /// Reads a body up to a limit, which is an error.
    async fn read_text(&self, response: &mut reqwest::Response, limit: usize) -> Result<String, Failure> {
        let mut bytes = Vec::new();
        let mut until = self.first_byte_deadline();
        let mut stage = TimeoutStage::FirstByte;
        loop {
            let piece = timeout_at(until, response.chunk()).await.map_err(|_| self.too_late(until, stage))?;
            let Some(piece) = piece.map_err(|error| Failure::passing(failure_of(error)))? else { break };
            if bytes.len() + piece.len() > limit {
                let message = format!("the answer is longer than {limit} bytes");
                return Err(Failure::last(ModelError::new(ErrorKind::Protocol, message)));
            }
            bytes.extend_from_slice(&piece);
            until = self.event_deadline();
            stage = TimeoutStage::BetweenEvents;
        }
        give_back().await;
        String::from_utf8(bytes)
            .map_err(|_| Failure::last(ModelError::new(ErrorKind::Protocol, "the answer is not UTF-8")))
    }

    fn event_deadline(&self) -> Instant {
        later(Instant::now(), self.exchange.client.options().event_timeout).min(self.deadline)
    }

    async fn respond_once(&mut self) -> Result<Response, Failure> {
        let mut response = self.open("application/json").await?;
        self.read_whole(&mut response).await
    }

    /// Reads a successful answer that is no stream.
    async fn read_whole(&self, response: &mut reqwest::Response) -> Result<Response, Failure> {
        let kind = media_type(response.headers()).to_ascii_lowercase();
        let status = response.status().as_u16();
        let id = request_id(response.headers());
        let limit = self.exchange.client.options().max_answer_bytes;
        let text = self.read_text(response, limit).await?;
        let named = |mut error: ModelError| {
            error.details.status = Some(status);
            error.details.request_id.clone_from(&id);
            error
        };
        if kind != "application/json" {
            let start: String = text.trim().chars().take(200).collect();
            let message = format!("expected `application/json`, found `{kind}`: {start}");
            return Err(Failure::last(named(ModelError::new(ErrorKind::Protocol, message))));
        }
        self.exchange.codec.read_body(&surrogates::replaced(&text)).map_err(|error| advise(named(error)))
    }
}

/// Lets a connection whose answer was read go back to the pool, which is done by tasks of its own. Without turns of
/// theirs a request that follows at once would make another connection.
async fn give_back() {
    for _ in 0..TURNS_TO_GIVE_BACK {
        tokio::task::yield_now().await;
    }
}

/// Whether an error that came inside a successful answer may pass.
fn advise(error: ModelError) -> Failure {
    match error.kind {
        ErrorKind::Overloaded | ErrorKind::RateLimited { .. } => Failure::passing(error),
        _ => Failure::last(error),
    }
}

/// The media type without its parameters, in any case.
fn media_type(headers: &HeaderMap) -> &str {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("no content type");
    text.split(';').next().unwrap_or_default().trim()
}

/// How a body is encoded, if it is.
fn encoding(headers: &HeaderMap) -> Option<String> {
    let said = headers.get(CONTENT_ENCODING)?.to_str().unwrap_or("something that is no text").trim();
    (!said.is_empty() && !said.eq_ignore_ascii_case("identity")).then(|| said.chars().take(80).collect())
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("request-id").or_else(|| headers.get("x-request-id"))?;
    value.to_str().ok().map(|id| id.chars().take(200).collect())
}

enum State {
    Begin,
    Wait(Duration),
    Open,
    Read(Box<Reading>),
    End,
}

/// An open stream.
struct Reading {
    response: reqwest::Response,
    /// What of the last piece was not looked at yet.
    piece: Bytes,
    decoder: Decoder,
    fold: AnyFold,
    read: usize,
    until: Instant,
    stage: TimeoutStage,
    request_id: Option<String>,
}

/// The stream's state machine.
struct Driver {
    exchange: Option<Exchange>,
    tries: Option<Tries>,
    state: State,
    queue: VecDeque<ModelEvent>,
    /// Whether something of the answer was delivered, so that another attempt would repeat it.
    delivered: bool,
    /// A failure that waits until the events before it are delivered.
    failure: Option<Failure>,
}

impl Driver {
    async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                self.delivered |=
                    !matches!(event, ModelEvent::Notice(_) | ModelEvent::Retrying { .. } | ModelEvent::Lost);
                return Some(Ok(event));
            }
            if let Some(exchange) = self.exchange.take() {
                self.tries = Some(Tries::new(exchange));
            }
            let tries = self.tries.as_mut()?;
            if let Some(mut failure) = self.failure.take() {
                if self.delivered {
                    failure.advice = Advice::GiveUp;
                }
                let is_lost = failure.error.kind.may_be_billed();
                match tries.after(failure) {
                    Ok((reason, after)) => {
                        self.queue.extend(is_lost.then_some(ModelEvent::Lost));
                        let attempt = tries.failed.len() as u32;
                        self.queue.push_back(ModelEvent::Retrying { attempt, after, reason });
                        self.state = State::Wait(after);
                    }
                    Err(error) => {
                        self.state = State::End;
                        self.tries = None;
                        return Some(Err(error));
                    }
                }
                continue;
            }
            match std::mem::replace(&mut self.state, State::End) {
                State::Begin => self.state = State::Open,
                State::Wait(wait) => {
                    tries.pause(wait).await;
                    self.state = State::Open;
                }
                State::Open => match open(tries, &mut self.queue).await {
                    Ok(Some(reading)) => self.state = State::Read(reading),
                    Ok(None) => {}
                    Err(failure) => self.failure = Some(failure),
                },
                State::Read(mut reading) => match reading.step(tries, &mut self.queue).await {
                    Ok(true) => {}
                    Ok(false) => self.state = State::Read(reading),
                    Err(mut failure) => {
                        failure.error.details.request_id = reading.request_id.take();
                        self.failure = Some(failure);
                    }
                },
                State::End => return None,
            }
        }
    }
}

/// Opens the stream. `None` if the server answered with a body instead, whose events are then in the queue.
async fn open(tries: &mut Tries, queue: &mut VecDeque<ModelEvent>) -> Result<Option<Box<Reading>>, Failure> {
    let mut response = tries.open("text/event-stream").await?;
    if media_type(response.headers()).eq_ignore_ascii_case("text/event-stream") {
        return Ok(Some(Box::new(Reading {
            request_id: request_id(response.headers()),
            response,
            piece: Bytes::new(),
            decoder: Decoder::default(),
            fold: tries.exchange.codec.fold(),
            read: 0,
            until: tries.first_byte_deadline(),
            stage: TimeoutStage::FirstByte,
        })));
    }
    let answer = tries.read_whole(&mut response).await?;
    queue.push_back(ModelEvent::Notice("the server answered without streaming".to_owned()));
    queue.extend(answer.items.iter().cloned().map(ModelEvent::Item));
    done(tries, answer, queue);
    Ok(None)
}

/// What is to be told of an answer that does not show in it.
fn told_of(answer: &Response) -> Vec<String> {
    let uncounted = answer.usage.incomplete.then(|| {
        "the provider did not say how many tokens the answer took, or not in whole numbers: what it cost is not known"
            .to_owned()
    });
    uncounted.into_iter().chain(answer.items.iter().filter_map(waits_for_approval)).collect()
}

/// What is said of a call that a server of the provider makes only once somebody has approved of it.
fn waits_for_approval(item: &Item) -> Option<String> {
    let ItemView::Other { kind } = item.view() else { return None };
    if kind != "mcp_approval_request" {
        return None;
    }
    let members: Members<'_> = serde_json::from_str(item.raw().get()).ok()?;
    let text = |name: &str| members.read::<String>(name).unwrap_or_default();
    let (tool, server) = (text("name"), text("server_label"));
    Some(format!(
        "the provider calls `{tool}` of the MCP server `{server}` only after an approval, which cannot be given here: \
         say `\"require_approval\": \"never\"` where the server is named, or connect to the server itself"
    ))
}

fn done(tries: &Tries, mut answer: Response, queue: &mut VecDeque<ModelEvent>) {
    answer.notices.clone_from(&tries.exchange.notices);
    for notice in told_of(&answer) {
        answer.notices.push(notice.clone());
        queue.push_back(ModelEvent::Notice(notice));
    }
    queue.push_back(ModelEvent::Done(Box::new(answer)));
}

/// An error of the fold, or of the bytes.
enum Broken {
    Fold(ModelError),
    Bytes(Malformed),
}

impl From<Malformed> for Broken {
    fn from(malformed: Malformed) -> Self {
        Self::Bytes(malformed)
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Fold(error) => advise(error),
            Broken::Bytes(malformed) => {
                Self::last(ModelError::new(ErrorKind::Protocol, malformed.to_string()))
            }
        }
    }
}

impl Reading {
    /// Reads up to the end of the next event, or of the next piece. True if the answer is complete and in the queue.
    ///
    /// One event at a time: what an event means may be much more than its bytes, and a piece has many.
    async fn step(&mut self, tries: &Tries, queue: &mut VecDeque<ModelEvent>) -> Result<bool, Failure> {
        if self.piece.is_empty() {
            let piece = timeout_at(self.until, self.response.chunk())
                .await
                .map_err(|_| tries.too_late(self.until, self.stage))?
                .map_err(|error| Failure::passing(failure_of(error)))?;
            let Some(piece) = piece else { return self.end(tries, queue) };
            self.read += piece.len();
            let limit = tries.exchange.client.options().max_answer_bytes;
            if self.read > limit {
                let message = format!("the answer is longer than {limit} bytes");
                return Err(Failure::last(ModelError::new(ErrorKind::Protocol, message)));
            }
            self.piece = piece;
        }
        let Self { decoder, fold, piece, .. } = self;
        let mut events = 0_u32;
        let taken = decoder.feed_event(piece, &mut |data: &str| {
            events += 1;
            fold.take(data, queue).map_err(Broken::Fold)
        })?;
        piece.advance(taken);
        if piece.is_empty() {
            // An empty piece still holds the connection's buffer, which would need another for what comes next.
            *piece = Bytes::new();
        }
        // Bytes alone do not count as progress: a drip that never completes an event must end.
        if events > 0 {
            self.until = tries.event_deadline();
            self.stage = TimeoutStage::BetweenEvents;
        }
        if !self.fold.is_complete() {
            return Ok(false);
        }
        let answer = self.fold.finish().map_err(Failure::last)?;
        // A connection whose last bytes were read can be used again.
        let farewell = async { while let Ok(Some(_)) = self.response.chunk().await {} };
        timeout(FAREWELL, farewell).await.unwrap_or_default();
        give_back().await;
        done(tries, answer, queue);
        Ok(true)
    }

    /// The bytes have ended.
    fn end(&mut self, tries: &Tries, queue: &mut VecDeque<ModelEvent>) -> Result<bool, Failure> {
        let Self { decoder, fold, .. } = self;
        // What is left over may be an event without its final line break, or half of one.
        let rest = decoder
            .finish(&mut |data: &str| fold.take(data, queue).map_err(Broken::Fold))
            .and_then(|()| fold.end(queue).map_err(Broken::Fold));
        if fold.is_complete() {
            done(tries, fold.finish().map_err(Failure::last)?, queue);
            return Ok(true);
        }
        Err(match rest {
            Err(Broken::Fold(error)) if error.kind != ErrorKind::Protocol => advise(error),
            _ => {
                let message = "the stream was cut before the end of the answer";
                Failure::passing(ModelError::new(ErrorKind::Protocol, message))
            }
        })
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").field("model", &self.model).finish_non_exhaustive()
    }
}
