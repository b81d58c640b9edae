//! The server's own HTTP: connections, paths, and what is let through to the protocol.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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
use toolpost_core::ToolError;

use super::guard::Refusal;
use super::handler::{Handler, Shared, caller_of};
use super::patience::Patient;
use super::sessions::{REQUESTER, SESSION_HEADER, Sessions};
use super::tasks::Wanted;
use super::wire::MAX_VALUES;
use super::{Certificate, Principal, Server, answers, websocket};

/// What every answer is.
pub(super) type Answer = Response<BoxBody<Bytes, Infallible>>;

/// The largest head of a request, in bytes.
const HEAD_BYTES: usize = 64 << 10;
/// Where RFC 9728 looks for what it says of a resource.
const METADATA: &str = "/.well-known/oauth-protected-resource";
/// How long connections may take to end once nothing is left to answer.
const FAREWELL: Duration = Duration::from_secs(2);

/// What all connections of one address share.
pub(super) struct Front {
    pub(super) shared: Arc<Shared>,
    sessions: Arc<Sessions>,
    protocol: StreamableHttpService<Handler, Sessions>,
    local: SocketAddr,
    started: Instant,
    /// The requests that are being answered.
    answering: TaskTracker,
    /// Connections that became a `WebSocket`.
    pub(super) upgraded: TaskTracker,
    /// Ends the streams and sessions of the protocol.
    pub(super) ended: CancellationToken,
}

impl Server {
    /// Serves clients over HTTP: the protocol on `/mcp`, as a WebSocket on `/ws` and `/`, `OK` on `/health`, and what it is doing as JSON on `/status`.
    /// With port 0 the system chooses one. The value is the server: dropping it ends it.
    ///
    /// # Errors
    /// `DEPENDENCY` that names the address if it cannot be listened on, such as one in use; `PERMISSION` if it is
    /// reachable from other machines and the server authenticates nobody or was not told to leave the loopback.
    pub async fn http(&self, address: SocketAddr) -> Result<Running, ToolError> {
        self.0.guard.may_listen(address)?;
        let failed = |error: std::io::Error| {
            ToolError::dependency(format!("cannot listen on `{address}`: {error}"))
                .suggest("Name another port, or 0 for one that is free.")
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
        // Our own guard has looked at Host and Origin, with more rules.
        config.allowed_hosts = Vec::new();
        let protocol = StreamableHttpService::new(
            move || Ok(Handler::of_http(Arc::clone(&shared))),
            Arc::clone(&sessions),
            config,
        );
        let front = Arc::new(Front {
            shared: Arc::clone(&self.0),
            sessions,
            protocol,
            local,
            started: Instant::now(),
            answering: TaskTracker::new(),
            upgraded: TaskTracker::new(),
            ended,
        });
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, Arc::clone(&front), stop.clone()));
        Ok(Running { front, stop, task: Some(task) })
    }
}

/// A server that listens. Dropping it ends it, and with it the calls that run.
pub struct Running {
    front: Arc<Front>,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.front.local
    }

    /// What a client is given to connect.
    pub fn connection_url(&self) -> String {
        format!("{}://{}/mcp", self.scheme("http"), self.front.local)
    }

    /// What a client of WebSocket is given to connect.
    pub fn websocket_url(&self) -> String {
        format!("{}://{}/ws", self.scheme("ws"), self.front.local)
    }

    /// Where it says that it is well: `OK`.
    pub fn health_url(&self) -> String {
        format!("{}://{}/health", self.scheme("http"), self.front.local)
    }

    fn scheme(&self, plain: &str) -> String {
        format!("{plain}{}", if self.front.shared.tls.is_some() { "s" } else { "" })
    }

    /// Stops listening, lets calls that run finish for [`Limits::drain`](super::Limits::drain), and ends.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
        // After `stop` there is nothing left to end.
        if let Some(task) = self.task.take() {
            self.front.ended.cancel();
            task.abort();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("address", &self.front.local).finish_non_exhaustive()
    }
}

async fn accept(listener: TcpListener, front: Arc<Front>, stop: CancellationToken) {
    let limits = &front.shared.limits;
    let places = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let connections = TaskTracker::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Mostly too many open files: those that are open will end.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (front, stop) = (Arc::clone(&front), stop.clone());
        connections.spawn(async move {
            let _place = place;
            // Several small writes make one answer: without this each would wait for the other side's word.
            let _ = stream.set_nodelay(true);
            serve_stream(stream, front, stop).await;
        });
    }
    drop(listener);
    front.shared.parking.clear();
    front.shared.tasks.end(true);
    let drained = async {
        let all = limits.calls.min(Semaphore::MAX_PERMITS) as u32;
        let _ = front.shared.calls.acquire_many(all).await;
        // What was answered is on its way, if it is not a stream.
        front.answering.close();
        front.answering.wait().await;
    };
    let _ = tokio::time::timeout(limits.drain, drained).await;
    front.shared.tasks.end(false);
    front.ended.cancel();
    connections.close();
    front.upgraded.close();
    let ended = async { tokio::join!(connections.wait(), front.upgraded.wait()) };
    let _ = tokio::time::timeout(FAREWELL, ended).await;
}

async fn serve_stream(stream: TcpStream, front: Arc<Front>, stop: CancellationToken) {
    let local = stream.local_addr().unwrap_or(front.local);
    let Some(Certificate(config)) = front.shared.tls.clone() else {
        return serve_http(stream, front, stop, local, false).await;
    };
    let greeting = TlsAcceptor::from(config).accept(stream);
    match tokio::time::timeout(front.shared.limits.head_time, greeting).await {
        Ok(Ok(stream)) => serve_http(stream, front, stop, local, true).await,
        Ok(Err(error)) => tracing::debug!("a connection began without TLS: {error}"),
        Err(_) => {}
    }
}

async fn serve_http<Stream>(
    stream: Stream,
    front: Arc<Front>,
    stop: CancellationToken,
    local: SocketAddr,
    is_tls: bool,
) where
    Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = front.shared.limits.clone();
    let ended = front.ended.clone();
    let service = service_fn(move |request| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.answer(request, local, is_tls).await) }
    });
    let stream = TokioIo::new(Patient::new(stream, limits.write_time));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let done = tokio::select! {
        done = connection.as_mut() => done,
        () = stop.cancelled() => {
            // What is being answered is answered; then it ends.
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                done = connection.as_mut() => done,
                () = async { ended.cancelled().await; tokio::time::sleep(FAREWELL).await } => Ok(()),
            }
        }
    };
    if let Err(error) = done {
        tracing::debug!("a connection ended: {error}");
    }
}

impl Front {
    async fn answer(self: Arc<Self>, request: Request<Incoming>, local: SocketAddr, is_tls: bool) -> Answer {
        let (mut head, body) = request.into_parts();
        let guard = &self.shared.guard;
        if let Err(refusal) = guard.admit(&head, local, is_tls) {
            return refused(refusal);
        }
        if head.uri.path() == "/health" {
            return if head.method == Method::GET { text(StatusCode::OK, "OK") } else { wrong_method("GET") };
        }
        if let (Some(rules), Some(rest)) = (&guard.oauth, head.uri.path().strip_prefix(METADATA))
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
            Err(refusal) => return refused(refusal),
        };
        match head.uri.path() {
            "/mcp" => {}
            "/ws" => return websocket::accept(&self, &mut head, principal),
            // An address without a path, such as `ws://127.0.0.1:8080`.
            "/" if websocket::is_asked(&head) => return websocket::accept(&self, &mut head, principal),
            "/status" if head.method == Method::GET => return self.status(&principal),
            "/status" => return wrong_method("GET"),
            _ => return text(StatusCode::NOT_FOUND, "there is nothing here: the protocol is on /mcp"),
        }
        let session = head.headers.get(SESSION_HEADER).map(|id| id.to_str().unwrap_or_default());
        if head.method == Method::DELETE
            && session.is_some_and(|id| !self.sessions.is_open_to(id, &principal))
        {
            return text(StatusCode::NOT_FOUND, "there is no such session");
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
        if let Some(wanted) = Wanted::of(&body) {
            head.extensions.insert(wanted);
        }
        // A token that came in is for nobody behind this line.
        head.headers.remove(http::header::AUTHORIZATION);
        let is_post = head.method == Method::POST;
        let _answering = self.answering.token();
        let mut protocol = self.protocol.clone();
        let request = Request::from_parts(head, Full::new(body));
        let answered = REQUESTER.scope(principal, tower_service::Service::call(&mut protocol, request));
        match answered.await {
            Ok(answer) if is_post => answers::settle(answer, has_session).await,
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }

    /// Reads a body, within the limits on its size and its time.
    async fn collect(&self, head: &http::request::Parts, body: Incoming) -> Result<Bytes, Box<Answer>> {
        let limits = &self.shared.limits;
        let too_large = || {
            let message = format!("the request is larger than {} bytes", limits.request_bytes);
            let mut answer = text(StatusCode::PAYLOAD_TOO_LARGE, &message);
            answer.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("close"));
            Box::new(answer)
        };
        let announced =
            head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: u64| length > limits.request_bytes as u64) {
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
            Ok(Err(_)) => Err(Box::new(text(StatusCode::BAD_REQUEST, "the request broke off"))),
            Err(_) => Err(Box::new(text(StatusCode::REQUEST_TIMEOUT, "the request did not come in time"))),
        }
    }

    fn status(&self, principal: &Principal) -> Answer {
        let shared = &self.shared;
        // What is closed to the one who asks is not told of.
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
                "begun": shared.counted.load(Ordering::Relaxed),
                "running": running,
                "parked": shared.parking.len(),
            },
            "tasks": { "running": running_tasks, "kept": all_tasks - running_tasks },
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

/// An answer of plain text.
pub(super) fn text(status: StatusCode, message: &str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::copy_from_slice(message.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

fn wrong_method(allowed: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "another method is expected here");
    answer.headers_mut().insert(http::header::ALLOW, HeaderValue::from_static(allowed));
    answer
}

fn refused(refusal: Refusal) -> Answer {
    let mut answer = text(refusal.status, &refusal.message);
    if let Some(challenge) = refusal.challenge.and_then(|challenge| challenge.try_into().ok()) {
        answer.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    }
    answer
}
