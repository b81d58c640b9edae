//! WebSocket connections of both halves: pings, timeouts and size limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

/// The WebSocket subprotocol.
pub(crate) const SUBPROTOCOL: &str = "mcp";
/// The interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The timeout of closing a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits messages and frames to a number of bytes.
pub(crate) fn config(limit: usize) -> WebSocketConfig {
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(limit);
    config.max_frame_size = Some(limit);
    config
}

/// A WebSocket connection. Dropping it closes it.
pub(crate) struct Socket<S> {
    incoming: SplitStream<WebSocketStream<S>>,
    outgoing: Arc<Mutex<SplitSink<WebSocketStream<S>, Message>>>,
    send_timeout: Duration,
}

/// The reason why a message was not sent.
#[derive(Debug)]
pub(crate) struct SendError {
    message: String,
    /// Whether nothing was sent.
    pub(crate) is_undelivered: bool,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SendError {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Socket<S> {
    pub(crate) fn new(stream: WebSocketStream<S>, send_timeout: Duration) -> Self {
        let (outgoing, incoming) = stream.split();
        Self { incoming, outgoing: Arc::new(Mutex::new(outgoing)), send_timeout }
    }

    /// Sends a serialized message.
    pub(crate) fn send_json(
        &self,
        message: serde_json::Result<String>,
    ) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let sending = message.map(|text| self.send(Message::text(text)));
        async {
            match sending {
                Ok(sending) => sending.await,
                Err(error) => Err(SendError { message: error.to_string(), is_undelivered: true }),
            }
        }
    }

    pub(crate) fn send(
        &self,
        message: Message,
    ) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let (outgoing, timeout) = (Arc::clone(&self.outgoing), self.send_timeout);
        async move {
            let failed = |message: String, is_undelivered| Err(SendError { message, is_undelivered });
            let mut outgoing = outgoing.lock().await;
            match tokio::time::timeout(timeout, outgoing.send(message)).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(Error::ConnectionClosed | Error::AlreadyClosed)) => {
                    failed("the connection is closed".to_owned(), true)
                }
                Ok(Err(error)) => failed(error.to_string(), false),
                Err(_) => failed("sending timed out".to_owned(), false),
            }
        }
    }

    /// The next message; `None` at the end, or if the peer answers no ping.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let mut is_pinged = false;
        loop {
            match tokio::time::timeout(PING_INTERVAL, self.incoming.next()).await {
                Ok(Some(Ok(Message::Text(text)))) => return Some(text.into()),
                Ok(Some(Ok(Message::Binary(bytes)))) => return Some(bytes),
                Ok(None | Some(Ok(Message::Close(_)))) => return None,
                // tungstenite answers pings.
                Ok(Some(Ok(_))) => is_pinged = false,
                Ok(Some(Err(error))) => {
                    tracing::debug!("WebSocket error: {error}");
                    return None;
                }
                Err(_) if is_pinged => return None,
                Err(_) => {
                    is_pinged = true;
                    tokio::spawn(self.send(Message::Ping(Bytes::new())));
                }
            }
        }
    }

    pub(crate) async fn close(&mut self) {
        let mut outgoing = self.outgoing.lock().await;
        // The connection may be closed already.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, outgoing.close()).await;
    }
}
