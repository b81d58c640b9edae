//! The HTTP client of rmcp with tokens: adds credentials and answers challenges.

use std::fmt;
use std::sync::Arc;

use futures_util::stream::BoxStream;
use http::Method;
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::Sse;
use toolpost_core::ToolError;

use super::challenge::Challenge;
use super::session::{Session, Tried};
use crate::client::failure::StatusFailure;
use crate::client::post::{Failed, Headers, Post, exact};
use crate::client::response::Pending;

/// The most times that one request is sent: with the stored token, a refreshed one, a new one, one with more
/// scopes, and one with a nonce.
const MAX_SENDS: usize = 5;

/// The largest event, in bytes, where rmcp passes no limit: its own default.
const DEFAULT_MAX_EVENT: usize = 16 << 20;

/// The HTTP client of a connection.
#[derive(Clone)]
pub(in crate::client) struct AuthorizedClient {
    inner: reqwest::Client,
    session: Option<Arc<Session>>,
    pending: Pending,
}

/// The reason why no token could be obtained for a rejected request.
#[derive(Debug)]
pub(in crate::client) struct AuthFailure(pub(in crate::client) ToolError);

impl fmt::Display for AuthFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.message())
    }
}

impl std::error::Error for AuthFailure {}

impl AuthFailure {
    fn wrap(error: ToolError) -> Failed {
        // rmcp carries a foreign error only in this variant.
        StreamableHttpError::Io(std::io::Error::other(Self(error)))
    }

    /// The failure inside an error of rmcp.
    pub(in crate::client) fn within(error: &std::io::Error) -> Option<&ToolError> {
        error.get_ref()?.downcast_ref::<Self>().map(|failure| &failure.0)
    }
}

/// The challenge of a 401 or 403 response.
fn challenge(error: &Failed) -> Option<Challenge> {
    match error {
        StreamableHttpError::AuthRequired(error) => {
            Some(Challenge::read(&error.www_authenticate_header, false))
        }
        StreamableHttpError::InsufficientScope(error) => {
            Some(Challenge::read(&error.www_authenticate_header, true))
        }
        StreamableHttpError::Io(error)
            if StatusFailure::within(error).is_some_and(|failure| failure.status == 401) =>
        {
            Some(Challenge::default())
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

impl AuthorizedClient {
    pub(in crate::client) fn new(inner: reqwest::Client, session: Option<Arc<Session>>) -> Self {
        Self { inner, session, pending: Pending::of_http() }
    }

    /// Sends a request with credentials and answers challenges until the server accepts it.
    async fn authorized<T, F>(
        &self,
        method: Method,
        headers: Headers,
        send: impl Fn(Headers) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let Some(session) = &self.session else { return send(headers).await };
        let mut credentials = session.credentials().await.map_err(AuthFailure::wrap)?;
        let mut tried = Tried::default();
        let mut sends = 1;
        loop {
            let mut headers = headers.clone();
            if let Some(credentials) = &credentials {
                headers.extend(session.headers(&method, credentials).map_err(AuthFailure::wrap)?);
            }
            let error = match send(headers).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let Some(challenge) = challenge(&error) else { return Err(error) };
            if sends == MAX_SENDS {
                return Err(error);
            }
            sends += 1;
            let next = Box::pin(session.challenged(credentials.as_ref(), &challenge, &mut tried)).await;
            credentials = Some(next.map_err(AuthFailure::wrap)?);
        }
    }
}

impl StreamableHttpClient for AuthorizedClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        self.post_message_with_max_sse_event_size(uri, message, session_id, token, headers, DEFAULT_MAX_EVENT)
            .await
    }

    async fn post_message_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        token: Option<String>,
        headers: Headers,
        max_event: usize,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let send = |headers| {
            let (uri, message, session, token) =
                (uri.clone(), message.clone(), session_id.clone(), token.clone());
            Post { uri, message, session, token, headers, limit: max_event }.send(&self.inner, &self.pending)
        };
        self.authorized(Method::POST, headers, send).await
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
        self.authorized(Method::DELETE, headers, send).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        self.get_stream_with_max_sse_event_size(
            uri,
            session_id,
            last_event,
            token,
            headers,
            DEFAULT_MAX_EVENT,
        )
        .await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event: Option<String>,
        token: Option<String>,
        headers: Headers,
        max_event: usize,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        let send = |headers| {
            let (last_event, token) = (last_event.clone(), token.clone());
            self.inner.get_stream_with_max_sse_event_size(
                uri.clone(),
                session_id.clone(),
                last_event,
                token,
                headers,
                max_event,
            )
        };
        let events = self.authorized(Method::GET, headers, send).await?;
        Ok(exact(events, self.pending.clone()))
    }
}
