//! Sends messages by HTTP POST and finds the answer in whatever the server returns.
//!
//! rmcp accepts only an exact answer with the id of the request: anything else leaves the request pending. Here each
//! response to a POST ends its request, with the status and the words of the server.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use http::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use reqwest::Response;
use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, ErrorCode, ErrorData, JsonRpcMessage, RequestId,
    ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, InsufficientScopeError, SseError, StreamableHttpError, StreamableHttpPostResponse,
};
use serde_json::{Value, json};
use sse_stream::{Sse, SseStream};

use super::failure::{LOST, StatusFailure};
use super::json::{Parsed, parse};
use super::message::bad;
use super::oauth::scope_of;
use super::response::{Pending, error_data, words};
use crate::convert::inward::shortened;

pub(super) type Failed = StreamableHttpError<reqwest::Error>;
pub(super) type Headers = HashMap<HeaderName, HeaderValue>;
/// The events of a response.
pub(super) type Events = BoxStream<'static, Result<Sse, SseError>>;

const EVENTS: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";
/// Headers that the transport sets itself.
const RESERVED: [&str; 3] = ["accept", SESSION, "last-event-id"];
/// The most bytes of the body of a failed request.
const MAX_ERROR_BODY: usize = 64 << 10;
/// The longest `Retry-After`, in bytes.
const MAX_RETRY_AFTER: usize = 128;

/// A message to send.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) uri: Arc<str>,
    pub(super) message: ClientJsonRpcMessage,
    pub(super) session: Option<Arc<str>>,
    pub(super) token: Option<String>,
    pub(super) headers: Headers,
    /// The largest response and the largest event, in bytes.
    pub(super) limit: usize,
}

impl Post {
    /// Sends the message.
    pub(super) async fn send(
        self,
        client: &reqwest::Client,
        pending: &Pending,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let mut request = client
            .post(&*self.uri)
            .header(ACCEPT, "text/event-stream, application/json")
            .header(CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        for (name, value) in &self.headers {
            if RESERVED.contains(&name.as_str()) {
                return Err(StreamableHttpError::ReservedHeaderConflict(name.to_string()));
            }
            request = request.header(name, value);
        }
        if let Some(session) = &self.session {
            request = request.header(SESSION, &**session);
        }
        let body = serde_json::to_vec(&self.message)?;
        pending.register(&self.message);
        let response = request.body(body).send().await?;
        challenge(&response)?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && self.session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        match &self.message {
            JsonRpcMessage::Request(request) => self.answer(&request.id, response, pending).await,
            _ if status.is_success() => Ok(StreamableHttpPostResponse::Accepted),
            _ => Err(failure(response).await.into()),
        }
    }

    /// The answer to a request.
    async fn answer(
        &self,
        id: &RequestId,
        response: Response,
        pending: &Pending,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let session = header(SESSION).map(str::to_owned);
        let has_events =
            header("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with(EVENTS));
        let reply = |message| Ok(StreamableHttpPostResponse::Json(message, session.clone()));
        if !status.is_success() {
            let failure = failure(response).await;
            return match self.rejection(id, &failure) {
                Some(error) => reply(error),
                None => Err(failure.into()),
            };
        }
        if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT {
            // The answer may come over the stream of the session.
            return match &self.session {
                Some(_) => Ok(StreamableHttpPostResponse::Accepted),
                None => reply(unanswered(id, status, "")),
            };
        }
        if has_events {
            let stream = Answers::new(response.bytes_stream(), self.limit, id.clone(), pending.clone());
            return Ok(StreamableHttpPostResponse::Sse(stream.events(), session));
        }
        let Some(body) = body_of(response, self.limit).await? else {
            return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: self.limit });
        };
        let messages = match parse(&body) {
            // A batch, as in the version 2025-03-26.
            Ok(Parsed { value: Value::Array(items), .. }) => {
                items.into_iter().filter_map(|item| pending.message(item.into(), Some(id))).collect()
            }
            Ok(parsed) => Vec::from_iter(pending.message(parsed, Some(id))),
            // Events under another media type.
            Err(_) => {
                let events = events_in(&body).filter_map(|data| parse(data.as_bytes()).ok());
                events.filter_map(|parsed| pending.message(parsed, Some(id))).collect()
            }
        };
        if !messages.iter().any(|message| is_answer(message, id)) {
            return reply(unanswered(id, status, &words(&body)));
        }
        match <[ServerJsonRpcMessage; 1]>::try_from(messages) {
            Ok([message]) => reply(message),
            Err(messages) => {
                let events = messages.into_iter().map(|message| Ok(event_of(&message)));
                Ok(StreamableHttpPostResponse::Sse(stream::iter(events).boxed(), session))
            }
        }
    }

    /// The JSON-RPC error of a failed request. Rejected credentials and rates stay failures of HTTP.
    fn rejection(&self, id: &RequestId, failure: &StatusFailure) -> Option<ServerJsonRpcMessage> {
        let is_client_error = (400..500).contains(&failure.status);
        if [401, 403, 429].contains(&failure.status) {
            return None;
        }
        if let Some(error) = &failure.error {
            let mut error = error.clone();
            error.message = format!("{} (HTTP status {})", error.message.trim(), failure.status).into();
            return Some(JsonRpcMessage::error(error, Some(id.clone())));
        }
        // An older server rejects an unknown method in its own way.
        let is_discovery = matches!(
            &self.message,
            JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::DiscoverRequest(_))
        );
        (is_discovery && is_client_error && self.session.is_none()).then(|| {
            let message = format!("HTTP status {}: {}", failure.status, failure.words);
            JsonRpcMessage::error(ErrorData::invalid_request(message, None), Some(id.clone()))
        })
    }
}

/// The challenge of a response that requires other credentials.
fn challenge(response: &Response) -> Result<(), Failed> {
    let status = response.status();
    if status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN {
        return Ok(());
    }
    let Some(header) = response.headers().get(WWW_AUTHENTICATE) else { return Ok(()) };
    let header = String::from_utf8_lossy(header.as_bytes()).into_owned();
    Err(if status == StatusCode::UNAUTHORIZED {
        StreamableHttpError::AuthRequired(AuthRequiredError::new(header))
    } else {
        let scope = scope_of(&header);
        StreamableHttpError::InsufficientScope(InsufficientScopeError::new(header, scope))
    })
}

/// Reads a failed response.
async fn failure(response: Response) -> StatusFailure {
    let status = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .filter(|value| value.len() <= MAX_RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let body = match body_of(response, MAX_ERROR_BODY).await {
        Ok(Some(body)) => body,
        // The status alone is known.
        Ok(None) | Err(_) => Vec::new(),
    };
    let event = events_in(&body).next();
    let body = event.as_ref().map_or(body.as_slice(), String::as_bytes);
    let parsed = parse(body).ok().map(|parsed| parsed.value);
    let error = parsed.as_ref().and_then(|body| body.get("error")).filter(|error| error.is_object());
    StatusFailure {
        status,
        retry_after,
        words: words(body),
        error: error.map(|error| error_data(error.clone())),
    }
}

/// The body up to a number of bytes; `None` if it is larger.
async fn body_of(response: Response, limit: usize) -> Result<Option<Vec<u8>>, Failed> {
    if response.content_length().is_some_and(|length| length > limit as u64) {
        return Ok(None);
    }
    let mut body = Vec::new();
    let mut pieces = response.bytes_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(StreamableHttpError::Client)?;
        if piece.len() > limit - body.len() {
            return Ok(None);
        }
        body.extend_from_slice(&piece);
    }
    Ok(Some(body))
}

/// The data of the events in a body.
fn events_in(body: &[u8]) -> impl Iterator<Item = String> {
    let text = String::from_utf8_lossy(body).into_owned();
    let begins = ["data:", "event:", "id:", ":", "retry:"].iter().any(|word| text.starts_with(word));
    let events: Vec<String> = if begins {
        let lines = text.lines().map(|line| line.strip_prefix("data:").map(str::trim));
        lines.flatten().filter(|data| !data.is_empty()).map(str::to_owned).collect()
    } else {
        Vec::new()
    };
    events.into_iter()
}

fn is_answer(message: &ServerJsonRpcMessage, id: &RequestId) -> bool {
    match message {
        JsonRpcMessage::Response(response) => response.id == *id,
        JsonRpcMessage::Error(error) => error.id.as_ref() == Some(id),
        _ => false,
    }
}

/// The error of a request whose response has no answer.
fn unanswered(id: &RequestId, status: StatusCode, words: &str) -> ServerJsonRpcMessage {
    let status = status.as_u16();
    let message = match words {
        "" => format!("an empty response without an answer (HTTP status {status})"),
        words => format!("a response without an answer (HTTP status {status}): {words}"),
    };
    JsonRpcMessage::error(ErrorData::new(ErrorCode::PARSE_ERROR, message, None), Some(id.clone()))
}

fn event_of(message: &ServerJsonRpcMessage) -> Sse {
    Sse { data: serde_json::to_string(message).ok(), ..Sse::default() }
}

/// The events of the response to one request.
struct Answers {
    events: Events,
    id: RequestId,
    pending: Pending,
    is_answered: bool,
    /// Whether the client can continue the stream by the id of its last event.
    is_resumable: bool,
    /// The words of the last event that is not a message.
    words: String,
    is_ended: bool,
}

impl Answers {
    fn new(
        pieces: impl futures_util::Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
        limit: usize,
        id: RequestId,
        pending: Pending,
    ) -> Self {
        let events = SseStream::from_bytes_stream(bounded(pieces, limit)).boxed();
        Self {
            events,
            id,
            pending,
            is_answered: false,
            is_resumable: false,
            words: String::new(),
            is_ended: false,
        }
    }

    /// The events with exact messages. An end without an answer is an error for the request.
    fn events(self) -> Events {
        stream::unfold(self, |mut answers| async { Some((answers.next().await?, answers)) }).boxed()
    }

    async fn next(&mut self) -> Option<Result<Sse, SseError>> {
        if self.is_ended {
            return None;
        }
        match self.events.next().await {
            Some(Ok(event)) => Some(Ok(self.read(event))),
            // rmcp reconnects.
            Some(Err(error)) if self.is_answered || self.is_resumable => Some(Err(error)),
            None if self.is_answered || self.is_resumable => None,
            Some(Err(error)) => {
                self.is_ended = true;
                let is_limit = error.to_string().contains(TOO_LARGE);
                Some(Ok(event_of(&if is_limit {
                    bad(self.id.clone(), &error.to_string(), true)
                } else {
                    self.lost(&format!("the stream broke ({})", shortened(&error.to_string(), 200)))
                })))
            }
            None => {
                self.is_ended = true;
                Some(Ok(event_of(&self.lost("the stream ended"))))
            }
        }
    }

    /// The error of a request whose stream ended; it may have run.
    fn lost(&self, why: &str) -> ServerJsonRpcMessage {
        let message = match self.words.as_str() {
            "" => format!("{why} before an answer"),
            words => format!("{why} before an answer, after: {words}"),
        };
        let data = self.words.is_empty().then(|| json!({ (LOST): true }));
        JsonRpcMessage::error(ErrorData::internal_error(message, data), Some(self.id.clone()))
    }

    /// The event with an exact message, or without data.
    fn read(&mut self, mut event: Sse) -> Sse {
        self.is_resumable |= event.id.as_ref().is_some_and(|id| !id.is_empty());
        let Some(data) = event.data.take().filter(|data| !data.trim().is_empty()) else { return event };
        let message = parse(data.as_bytes()).ok();
        let message = message.and_then(|parsed| self.pending.message(parsed, Some(&self.id)));
        match message {
            Some(message) => {
                self.is_answered |= is_answer(&message, &self.id);
                // rmcp ignores events of other names.
                event.event = None;
                event.data = serde_json::to_string(&message).ok();
            }
            None => self.words = words(data.as_bytes()),
        }
        event
    }
}

/// The events of a stream that belongs to no single request, with exact messages.
pub(super) fn exact(events: Events, pending: Pending) -> Events {
    let exact = move |mut event: Sse| {
        let parsed = event.data.as_deref().and_then(|data| parse(data.as_bytes()).ok());
        if let Some(message) = parsed.and_then(|parsed| pending.message(parsed, None)) {
            event.data = serde_json::to_string(&message).ok();
        }
        event
    };
    events.map(move |event| event.map(&exact)).boxed()
}

const TOO_LARGE: &str = "an event is larger than";

/// The reason why the bytes of a stream end.
#[derive(Debug)]
struct StreamEnd(String);

impl fmt::Display for StreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StreamEnd {}

/// Ends a stream at an event that is larger than a number of bytes.
fn bounded(
    pieces: impl futures_util::Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
    limit: usize,
) -> BoxStream<'static, Result<Bytes, StreamEnd>> {
    let (mut size, mut line_is_empty) = (0, true);
    let mut check = move |piece: &Bytes| {
        for byte in piece {
            size += 1;
            match byte {
                b'\n' if line_is_empty => size = 0,
                b'\n' => line_is_empty = true,
                b'\r' => {}
                _ => line_is_empty = false,
            }
            if size > limit {
                return Err(StreamEnd(format!("{TOO_LARGE} {limit} bytes")));
            }
        }
        Ok(())
    };
    let checked = pieces.map(move |piece| {
        let piece = piece.map_err(|error| StreamEnd(super::http::cause(&error)))?;
        check(&piece).map(|()| piece)
    });
    checked.boxed()
}
