//! The HTTP server: connections, routes, admission.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolpost_core::{CallError, ToolError};

use super::guard::Rejection;
use super::handler::{Handler, Shared, caller_of};
use super::sessions::{REQUESTER, SESSION_HEADER, Sessions};
use super::tasks::TaskFilter;
use super::wire::MAX_VALUES;
use super::write_timeout::WriteTimeout;
use super::{Certificate, Principal, Server, single_json, websocket};

/// The type of every response.
pub(super) type Answer = Response<BoxBody<Bytes, Infallible>>;

/// The largest head of a request, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The well-known path of resource metadata (RFC 9728).
const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
/// The time that connections may take to close after the last response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state that all connections of one listener share.
pub(super) struct HttpServer {
    pub(super) shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    protocol: StreamableHttpService<Handler, Sessions>,
    local: SocketAddr,
    started: Instant,
    /// Pending HTTP requests.
    pending: TaskTracker,
    /// Connections that were upgraded to WebSocket.
    pub(super) upgraded: TaskTracker,
    /// Cancels MCP streams and sessions.
    pub(super) ended: CancellationToken,
}

impl Server {
    /// Serves MCP over HTTP: streamable HTTP on `/mcp`, WebSocket on `/ws` and `/`, `OK` on `/health`, and
    /// the server state as JSON on `/status`. Port 0 picks a free port. Dropping the returned value stops the
    /// server.
    ///
    /// # Errors
    /// `DEPENDENCY` if the address is unavailable, for example in use; `PERMISSION` if it is beyond loopback
    /// and the server does not authenticate clients or did not opt in.
    pub async fn http(&self, address: SocketAddr) -> Result<RunningServer, CallError> {
        self.0.guard.may_listen(address)?;
        let failed = |error: io::Error| {
            ToolError::dependency(format!("cannot listen on `{address}`: {error}"))
                .suggest("Use another port, or 0 for a free one.")
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let local = listener.local_addr().map_err(failed)?;
        self.0.prepare().await?;
        let ended = CancellationToken::new();
        let sessions = Arc::new(Sessions::new(&self.0.limits));
        let shared = Arc::clone(&self.0);
        let mut config = StreamableHttpServerConfig::default();
        config.json_response = true;
        config.cancellation_token = ended.clone();
        config.max_request_body_bytes = self.0.limits.request_bytes;
        // `Guard` has already checked `Host` and `Origin`.
        config.allowed_hosts = Vec::new();
        let protocol = StreamableHttpService::new(
            move || Ok(Handler::of_http(Arc::clone(&shared))),
            Arc::clone(&sessions),
            config,
        );
        let server = Arc::new(HttpServer {
            shared: Arc::clone(&self.0),
            sessions,
            protocol,
            local,
            started: Instant::now(),
            pending: TaskTracker::new(),
            upgraded: TaskTracker::new(),
            ended,
        });
        let stop = CancellationToken::new();
        let listener = Arc::new(Mutex::new(Some(listener)));
        let task = tokio::spawn(accept(Arc::clone(&listener), Arc::clone(&server), stop.clone()));
        Ok(RunningServer { server, listener, stop, task: Some(task) })
    }
}

/// The listening socket, until the server stops.
type Listener = Arc<Mutex<Option<TcpListener>>>;

/// A listening server. Dropping it closes the listener, stops the server and cancels running calls.
pub struct RunningServer {
    server: Arc<HttpServer>,
    listener: Listener,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl RunningServer {
    /// The local address.
    pub fn address(&self) -> SocketAddr {
        self.server.local
    }

    /// The URL for streamable HTTP clients.
    pub fn connection_url(&self) -> String {
        format!("{}://{}/mcp", self.scheme("http"), self.server.local)
    }

    /// The URL for WebSocket clients.
    pub fn websocket_url(&self) -> String {
        format!("{}://{}/ws", self.scheme("ws"), self.server.local)
    }

    /// The URL of the health check, which answers `OK`.
    pub fn health_url(&self) -> String {
        format!("{}://{}/health", self.scheme("http"), self.server.local)
    }

    fn scheme(&self, plain: &str) -> String {
        format!("{plain}{}", if self.server.shared.tls.is_some() { "s" } else { "" })
    }

    /// Stops listening and waits for running calls, at most
    /// [`ServerLimits::drain`](super::ServerLimits::drain).
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }

    /// Cancels running calls, and returns once the port is free.
    pub async fn close(mut self) {
        self.stop.cancel();
        self.server.ended.cancel();
        if let Some(task) = self.task.take() {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // The address is free when this returns, not only when the aborted task ends.
        close(&self.listener);
        self.stop.cancel();
        // `stop` and `close` have taken the task.
        if let Some(task) = self.task.take() {
            self.server.ended.cancel();
            task.abort();
        }
    }
}

impl fmt::Debug for RunningServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningServer").field("address", &self.server.local).finish_non_exhaustive()
    }
}

fn close(listener: &Listener) {
    listener.lock().unwrap_or_else(PoisonError::into_inner).take();
}

/// The next connection; pending once the listener is closed.
async fn next_connection(listener: &Listener) -> io::Result<TcpStream> {
    let connection = poll_fn(|context| match &*listener.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(listener) => listener.poll_accept(context),
        None => Poll::Pending,
    });
    Ok(connection.await?.0)
}

async fn accept(listener: Listener, server: Arc<HttpServer>, stop: CancellationToken) {
    let limits = &server.shared.limits;
    let permits = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let connections = TaskTracker::new();
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, next_connection(&listener).await)
        };
        let (permit, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        let Ok(stream) = accepted else {
            // Usually too many open files; wait for some to close.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (server, stop) = (Arc::clone(&server), stop.clone());
        connections.spawn(async move {
            let _permit = permit;
            // A response consists of several small writes, which Nagle's algorithm would delay.
            let _ = stream.set_nodelay(true);
            serve_stream(stream, server, stop).await;
        });
    }
    close(&listener);
    server.shared.parking.clear();
    server.shared.tasks.end(true);
    let drained = async {
        let all = limits.calls.min(Semaphore::MAX_PERMITS) as u32;
        let _ = server.shared.calls.acquire_many(all).await;
        // Responses that are not streams are sent by now.
        server.pending.close();
        server.pending.wait().await;
    };
    let _ = tokio::time::timeout(limits.drain, drained).await;
    server.shared.tasks.end(false);
    server.ended.cancel();
    connections.close();
    server.upgraded.close();
    let ended = async { tokio::join!(connections.wait(), server.upgraded.wait()) };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended).await;
}

async fn serve_stream(stream: TcpStream, server: Arc<HttpServer>, stop: CancellationToken) {
    let local = stream.local_addr().unwrap_or(server.local);
    let Some(Certificate(config)) = server.shared.tls.clone() else {
        return serve_http(stream, server, stop, local, false).await;
    };
    let handshake = TlsAcceptor::from(config).accept(stream);
    match tokio::time::timeout(server.shared.limits.head_time, handshake).await {
        Ok(Ok(stream)) => serve_http(stream, server, stop, local, true).await,
        Ok(Err(error)) => tracing::debug!("TLS handshake failed: {error}"),
        Err(_) => {}
    }
}

async fn serve_http<Stream>(
    stream: Stream,
    server: Arc<HttpServer>,
    stop: CancellationToken,
    local: SocketAddr,
    is_tls: bool,
) where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = server.shared.limits.clone();
    let ended = server.ended.clone();
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(request, local, is_tls).await) }
    });
    let stream = TokioIo::new(WriteTimeout::new(stream, limits.write_time));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(stream, service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = stop.cancelled() => {
            // Pending responses are completed first.
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                done = connection.as_mut() => done,
                () = async { ended.cancelled().await; tokio::time::sleep(CLOSE_TIMEOUT).await } => Ok(()),
            }
        }
    };
    if let Err(error) = done {
        tracing::debug!("connection error: {error}");
    }
}

impl HttpServer {
    async fn answer(self: Arc<Self>, request: Request<Incoming>, local: SocketAddr, is_tls: bool) -> Answer {
        let (mut head, body) = request.into_parts();
        let guard = &self.shared.guard;
        if let Err(rejection) = guard.admit(&head, local, is_tls) {
            return reject(rejection);
        }
        if head.uri.path() == "/health" {
            return if head.method == Method::GET { text(StatusCode::OK, "OK") } else { wrong_method("GET") };
        }
        if let (Some(rules), Some(rest)) = (&guard.oauth, head.uri.path().strip_prefix(METADATA_PATH))
            && (rest.is_empty() || rest.starts_with('/'))
        {
            return if head.method == Method::GET {
                json_answer(&rules.metadata())
            } else {
                wrong_method("GET")
            };
        }
        let principal = match guard.authenticate(&head.headers) {
            Ok(principal) => principal,
            Err(rejection) => return reject(rejection),
        };
        match head.uri.path() {
            "/mcp" => {}
            "/ws" => return websocket::accept(&self, &mut head, principal),
            // A URL without a path, such as `ws://127.0.0.1:8080`.
            "/" if websocket::is_upgrade(&head) => return websocket::accept(&self, &mut head, principal),
            "/status" if head.method == Method::GET => return self.status(&principal),
            "/status" => return wrong_method("GET"),
            _ => return text(StatusCode::NOT_FOUND, "not found: MCP is on /mcp"),
        }
        let session = head.headers.get(SESSION_HEADER).map(|id| id.to_str().unwrap_or_default());
        if head.method == Method::DELETE
            && session.is_some_and(|id| !self.sessions.is_open_to(id, &principal))
        {
            return text(StatusCode::NOT_FOUND, "unknown session");
        }
        let has_session = session.is_some();
        let body = if head.method == Method::POST {
            match self.collect(&head, body).await {
                Ok(body) => body,
                Err(answer) => return *answer,
            }
        } else {
            Bytes::new()
        };
        head.extensions.insert(principal.clone());
        if let Some(filter) = TaskFilter::from_message(&body) {
            head.extensions.insert(filter);
        }
        // Incoming tokens are never forwarded.
        head.headers.remove(http::header::AUTHORIZATION);
        let (is_post, is_delete) = (head.method == Method::POST, head.method == Method::DELETE);
        let _pending = self.pending.token();
        let mut protocol = self.protocol.clone();
        let request = Request::from_parts(head, Full::new(body));
        let answered = REQUESTER.scope(principal, tower_service::Service::call(&mut protocol, request));
        match answered.await {
            Ok(answer) if is_post => single_json::flatten(answer, has_session).await,
            // The official clients warn of 202 at the end of a session.
            Ok(mut answer) if is_delete && answer.status() == StatusCode::ACCEPTED => {
                *answer.status_mut() = StatusCode::OK;
                answer
            }
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }

    /// Reads a body within the size and time limits.
    async fn collect(&self, head: &http::request::Parts, body: Incoming) -> Result<Bytes, Box<Answer>> {
        let limits = &self.shared.limits;
        let too_large = || {
            let message = format!("the request is larger than {} bytes", limits.request_bytes);
            let mut answer = text(StatusCode::PAYLOAD_TOO_LARGE, &message);
            answer.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
            Box::new(answer)
        };
        let content_length =
            head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if content_length.is_some_and(|length: u64| length > limits.request_bytes as u64) {
            return Err(too_large());
        }
        let collected = Limited::new(body, limits.request_bytes).collect();
        match tokio::time::timeout(limits.body_time, collected).await {
            Ok(Ok(body)) => {
                let body = body.to_bytes();
                if toolpost_core::has_more_values_than(&body, MAX_VALUES) {
                    let message = format!("the request has more than {MAX_VALUES} values");
                    return Err(Box::new(text(StatusCode::PAYLOAD_TOO_LARGE, &message)));
                }
                Ok(body)
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(Box::new(text(StatusCode::BAD_REQUEST, "the request body is incomplete"))),
            Err(_) => Err(Box::new(text(StatusCode::REQUEST_TIMEOUT, "reading the request timed out"))),
        }
    }

    fn status(&self, principal: &Principal) -> Answer {
        let shared = &self.shared;
        // Callers see only the sources that are open to them.
        let view = shared.source.seen_by(&caller_of(principal));
        let sources = view.as_ref().unwrap_or(&shared.source).status();
        let (running_tasks, all_tasks) = shared.tasks.count();
        let running = shared.limits.calls.saturating_sub(shared.calls.available_permits());
        let status = json!({
            "status": "ok",
            "name": shared.name,
            "version": shared.version,
            "uptime_seconds": self.started.elapsed().as_secs(),
            "tools": shared.listings.latest().tools(false).len(),
            "sessions": self.sessions.len(),
            "calls": {
                "started": shared.started_calls.load(Ordering::Relaxed),
                "running": running,
                "parked": shared.parking.len(),
            },
            "tasks": { "running": running_tasks, "stored": all_tasks - running_tasks },
            "sources": sources,
        });
        json_answer(&status)
    }
}

fn json_answer(value: &serde_json::Value) -> Answer {
    let mut answer = text(StatusCode::OK, &value.to_string());
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// A plain text response.
pub(super) fn text(status: StatusCode, message: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(message.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

fn wrong_method(allowed: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
    answer.headers_mut().insert(http::header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn reject(rejection: Rejection) -> Answer {
    let mut answer = text(rejection.status, &rejection.message);
    if let Some(challenge) = rejection.challenge.and_then(|challenge| challenge.try_into().ok()) {
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    answer
}
