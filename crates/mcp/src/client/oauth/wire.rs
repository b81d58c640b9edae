//! HTTP with tokens: what the library below sends, with whoever asks in its headers.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use futures_util::stream::BoxStream;
use http::{HeaderName, HeaderValue, Method};
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::Sse;
use toolpost_core::ToolError;

use super::challenge::Challenge;
use super::session::{Session, Tried};

/// How often one request is sent, with another token each time: one that was kept, one that was refreshed, one that was
/// given, one that may do more, and one with the server's number.
const MAX_ROUNDS: usize = 5;

/// The largest event where the library names no limit, in bytes: its own default.
const MAX_EVENT: usize = 16 << 20;

type Failed = StreamableHttpError<reqwest::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// The HTTP of a connection.
#[derive(Clone)]
pub(in crate::client) struct Wire {
    inner: reqwest::Client,
    session: Option<Arc<Session>>,
}

/// Why a request was not sent again.
#[derive(Debug)]
pub(in crate::client) struct Refusal(pub(in crate::client) ToolError);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.message())
    }
}

impl std::error::Error for Refusal {}

impl Refusal {
    fn failed(error: ToolError) -> Failed {
        // The library has no place for an error of ours but this one.
        StreamableHttpError::Io(std::io::Error::other(Self(error)))
    }

    /// The one within an error of the library.
    pub(in crate::client) fn within(error: &std::io::Error) -> Option<&ToolError> {
        error.get_ref()?.downcast_ref::<Self>().map(|refusal| &refusal.0)
    }
}

/// The challenge of an answer, if it is one.
fn challenge(error: &Failed) -> Option<Challenge> {
    match error {
        StreamableHttpError::AuthRequired(wanted) => {
            Some(Challenge::read(&wanted.www_authenticate_header, false))
        }
        StreamableHttpError::InsufficientScope(wanted) => {
            Some(Challenge::read(&wanted.www_authenticate_header, true))
        }
        StreamableHttpError::UnexpectedServerResponse(text) if text.starts_with("HTTP 401") => {
            Some(Challenge::default())
        }
        StreamableHttpError::Client(error) if error.status() == Some(http::StatusCode::UNAUTHORIZED) => {
            Some(Challenge::default())
        }
        _ => None,
    }
}

impl Wire {
    pub(in crate::client) fn new(inner: reqwest::Client, session: Option<Arc<Session>>) -> Self {
        Self { inner, session }
    }

    /// Sends a request until it is taken, or nothing more can be brought.
    async fn known<T, F>(
        &self,
        method: Method,
        headers: Headers,
        send: impl Fn(Headers) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let Some(session) = &self.session else { return send(headers).await };
        let mut credentials = session.credentials().await.map_err(Refusal::failed)?;
        let mut tried = Tried::default();
        let mut rounds = 1;
        loop {
            let mut headers = headers.clone();
            if let Some(credentials) = &credentials {
                headers.extend(session.headers(&method, credentials).map_err(Refusal::failed)?);
            }
            let error = match send(headers).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(challenge) = challenge(&error) else { return Err(error) };
            if rounds == MAX_ROUNDS {
                return Err(error);
            }
            rounds += 1;
            let other = Box::pin(session.challenged(credentials.as_ref(), &challenge, &mut tried)).await;
            credentials = Some(other.map_err(Refusal::failed)?);
        }
    }
}

impl StreamableHttpClient for Wire {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        self.post_message_with_max_sse_event_size(uri, message, session_id, token, headers, MAX_EVENT).await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let send = |headers| {
            let (message, token) = (message.clone(), token.clone());
            self.inner.post_message_with_max_sse_event_size(
                uri.clone(),
                message,
                session_id.clone(),
                token,
                headers,
                most,
            )
        };
        self.known(Method::POST, headers, send).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<(), Failed> {
        let send =
            |headers| self.inner.delete_session(uri.clone(), session_id.clone(), token.clone(), headers);
        self.known(Method::DELETE, headers, send).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        self.get_stream_with_max_sse_event_size(uri, session_id, last_event, token, headers, MAX_EVENT).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
        most: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let send = |headers| {
            let (last_event, token) = (last_event.clone(), token.clone());
            self.inner.get_stream_with_max_sse_event_size(
                uri.clone(),
                session_id.clone(),
                last_event,
                token,
                headers,
                most,
            )
        };
        self.known(Method::GET, headers, send).await
    }
}
