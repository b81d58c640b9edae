//! An HTTP/1.1 server on 127.0.0.1 that answers as it is told, well or badly.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// The largest request that is read, in bytes.
const MAX_REQUEST: usize = 64 * 1024 * 1024;

/// A request as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// The method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The headers in their order, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    /// The value of a header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; `null` if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    chunked: bool,
    piece: usize,
    pause: Duration,
    delay: Duration,
    cut_after: Option<usize>,
    silent: bool,
}

impl Reply {
    /// An answer of a status, a content type and a body.
    pub fn new(status: u16, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.into(),
            chunked: false,
            piece: usize::MAX,
            pause: Duration::ZERO,
            delay: Duration::ZERO,
            cut_after: None,
            silent: false,
        }
    }

    /// A JSON answer.
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::new(status, "application/json", body)
    }

    /// A stream of server-sent events, sent with chunked transfer encoding.
    pub fn events(body: impl Into<Vec<u8>>) -> Self {
        Self { chunked: true, ..Self::new(200, "text/event-stream; charset=utf-8", body) }
    }

    /// No answer at all: the connection stays open and silent.
    pub fn never() -> Self {
        Self { silent: true, ..Self::json(200, "") }
    }

    /// A variant, with one more header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A variant, in pieces of at most `size` bytes with a pause between them.
    #[must_use]
    pub fn in_pieces(mut self, size: usize, pause: Duration) -> Self {
        self.piece = size.max(1);
        self.pause = pause;
        self
    }

    /// A variant, after a delay.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// A variant, with the connection closed after this many bytes of the body.
    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.cut_after = Some(bytes);
        self
    }
}

type Handler = dyn Fn(&ReceivedRequest) -> Reply + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    tls: Option<TlsAcceptor>,
    requests: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    /// The number of requests that wait for their answer, and its maximum.
    waiting: AtomicUsize,
    most_at_once: AtomicUsize,
}

/// A server with its own thread, for tests with and without a runtime. It ends when it is dropped.
pub struct LoopbackProvider {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LoopbackProvider {
    /// Starts a server that gives these answers in this order, and a status 500 afterwards.
    pub fn start(replies: Vec<Reply>) -> std::io::Result<Self> {
        Self::start_as(in_order(replies), None)
    }

    /// A variant over TLS, as `localhost`.
    pub fn start_tls(config: Arc<ServerConfig>, replies: Vec<Reply>) -> std::io::Result<Self> {
        Self::start_as(in_order(replies), Some(TlsAcceptor::from(config)))
    }

    /// Starts a server that answers by looking at the request.
    pub fn start_with(
        handler: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Self::start_as(Box::new(handler), None)
    }

    fn start_as(handler: Box<Handler>, tls: Option<TlsAcceptor>) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            handler,
            tls,
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        });
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("loopback-provider".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, served) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The address as a base URL, without a final slash.
    pub fn base_url(&self) -> String {
        match self.shared.tls {
            None => format!("http://{}", self.address),
            Some(_) => format!("https://localhost:{}", self.address.port()),
        }
    }

    /// The address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The bytes received so far.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// The most requests so far that have waited for the end of their answers at the same time.
    pub fn most_at_once(&self) -> usize {
        self.shared.most_at_once.load(Ordering::Relaxed)
    }
}

impl std::fmt::Debug for LoopbackProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoopbackProvider").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for LoopbackProvider {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the server has already been printed.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    while let Ok((stream, _)) = listener.accept().await {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        // An error here is the client's going away, which many tests want.
        tokio::spawn(async move {
            stream.set_nodelay(true)?;
            match shared.tls.clone() {
                None => serve(stream, &shared).await,
                Some(tls) => serve(tls.accept(stream).await?, &shared).await,
            }
        });
    }
}

/// Answers that are given in this order, and a status 500 afterwards.
fn in_order(replies: Vec<Reply>) -> Box<Handler> {
    let replies = Mutex::new(VecDeque::from(replies));
    Box::new(move |_| {
        let next = replies.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        next.unwrap_or_else(|| Reply::new(500, "text/plain", "the loopback provider has no answer left"))
    })
}

/// A connection, encrypted or not.
trait Connection: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection for S {}

async fn serve(stream: impl Connection, shared: &Shared) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = receive(&mut stream).await? {
        let reply = (shared.handler)(&request);
        shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        let waiting = shared.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        shared.most_at_once.fetch_max(waiting, Ordering::Relaxed);
        let sent = send(&mut stream, &reply).await;
        shared.waiting.fetch_sub(1, Ordering::Relaxed);
        if !sent? {
            break;
        }
    }
    Ok(())
}

async fn receive(stream: &mut BufReader<impl Connection>) -> std::io::Result<Option<ReceivedRequest>> {
    let invalid = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, path) = match (words.next(), words.next()) {
        (Some(method), Some(path)) => (method.to_owned(), path.to_owned()),
        _ => return Err(invalid("no request line")),
    };
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("no header"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut request = ReceivedRequest { method, path, headers, body: Vec::new() };
    let length = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0_usize);
    if length > MAX_REQUEST {
        return Err(invalid("the request is too large"));
    }
    request.body.resize(length, 0);
    stream.read_exact(&mut request.body).await?;
    Ok(Some(request))
}

/// Sends a reply. False if the connection is over.
async fn send(stream: &mut BufReader<impl Connection>, reply: &Reply) -> std::io::Result<bool> {
    tokio::time::sleep(reply.delay).await;
    if reply.silent {
        // Until the client goes away.
        let mut byte = [0];
        return stream.read(&mut byte).await.map(|_| false);
    }
    let mut head = vec![format!("HTTP/1.1 {} Told", reply.status)];
    head.extend(reply.headers.iter().map(|(name, value)| format!("{name}: {value}")));
    head.push(if reply.chunked {
        "transfer-encoding: chunked".to_owned()
    } else {
        format!("content-length: {}", reply.body.len())
    });
    let head = format!("{}\r\n\r\n", head.join("\r\n"));
    stream.write_all(head.as_bytes()).await?;
    let body = &reply.body[..reply.cut_after.unwrap_or(usize::MAX).min(reply.body.len())];
    for piece in body.chunks(reply.piece.min(body.len().max(1))) {
        if reply.chunked {
            let framed = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            stream.write_all(&framed).await?;
        } else {
            stream.write_all(piece).await?;
        }
        stream.flush().await?;
        if !reply.pause.is_zero() {
            tokio::time::sleep(reply.pause).await;
        }
    }
    if reply.cut_after.is_some() {
        return Ok(false);
    }
    if reply.chunked {
        stream.write_all(b"0\r\n\r\n").await?;
    }
    stream.flush().await?;
    Ok(true)
}
