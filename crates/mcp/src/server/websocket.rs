//! The WebSocket transport: one JSON-RPC message per text message. It is an extension of Toolpost.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use rmcp::RoleServer;
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::http::{Answer, HttpServer, text};
use super::wire::{Read, RequestGate};
use super::{Principal, ServerLimits, streams};

/// The WebSocket subprotocol, for clients that request one.
const SUBPROTOCOL: &str = "mcp";
/// The interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);

type Stream = WebSocketStream<TokioIo<Upgraded>>;

/// Upgrades a request to WebSocket and serves it until it ends.
pub(super) fn accept(server: &Arc<HttpServer>, head: &mut Parts, principal: Principal) -> Answer {
    let Some(accepted) = accept_key(head) else {
        let mut answer = text(StatusCode::UPGRADE_REQUIRED, "expected a WebSocket upgrade, version 13");
        answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        answer.headers_mut().insert("sec-websocket-version", HeaderValue::from_static("13"));
        return answer;
    };
    let Some(upgrade) = head.extensions.remove::<OnUpgrade>() else {
        return text(StatusCode::BAD_REQUEST, "this connection cannot be upgraded");
    };
    let mut answer = text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = answer.headers_mut();
    headers.clear();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    if has_token(&head.headers, &SEC_WEBSOCKET_PROTOCOL, SUBPROTOCOL) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    }
    let (shared, ended) = (Arc::clone(&server.shared), server.ended.clone());
    server.upgraded.spawn(async move {
        let upgraded = tokio::time::timeout(shared.limits.head_time, upgrade).await;
        let Ok(Ok(upgraded)) = upgraded else { return };
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(shared.limits.request_bytes);
        config.max_frame_size = Some(shared.limits.request_bytes);
        let stream =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
        let messages = Messages::new(stream, &shared.limits);
        if let Err(error) = streams::serve(&shared, principal, messages, ended).await {
            tracing::debug!("WebSocket client: {error}");
        }
    });
    answer
}

/// The `Sec-WebSocket-Accept` value of a valid upgrade request.
fn accept_key(head: &Parts) -> Option<HeaderValue> {
    let is_version = || head.headers.get("sec-websocket-version").is_some_and(|version| version == "13");
    let key = head.headers.get(SEC_WEBSOCKET_KEY).filter(|_| is_upgrade(head) && is_version())?;
    derive_accept_key(key.as_bytes()).try_into().ok()
}

/// Whether a request is a WebSocket upgrade.
pub(super) fn is_upgrade(head: &Parts) -> bool {
    head.method == Method::GET
        && has_token(&head.headers, &CONNECTION, "upgrade")
        && has_token(&head.headers, &UPGRADE, "websocket")
}

/// Whether a comma-separated header has a token, ignoring case.
fn has_token(headers: &HeaderMap, name: &http::HeaderName, token: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|found| found.trim().eq_ignore_ascii_case(token))
}

/// A WebSocket as an rmcp transport.
struct Messages {
    incoming: SplitStream<Stream>,
    outgoing: Arc<Mutex<SplitSink<Stream, Message>>>,
    gate: RequestGate,
    timeout: Duration,
}

impl Messages {
    fn new(stream: Stream, limits: &ServerLimits) -> Self {
        let (outgoing, incoming) = stream.split();
        Self {
            incoming,
            outgoing: Arc::new(Mutex::new(outgoing)),
            gate: RequestGate::new(limits.requests_per_stream),
            timeout: limits.write_time,
        }
    }

    /// Sends a message in the background.
    fn send_in_background(&self, message: Message, permit: Option<OwnedSemaphorePermit>) {
        let (outgoing, timeout) = (Arc::clone(&self.outgoing), self.timeout);
        tokio::spawn(async move {
            let _permit = permit;
            let _ = send(&outgoing, message, timeout).await;
        });
    }
}

async fn send(
    outgoing: &Mutex<SplitSink<Stream, Message>>,
    message: Message,
    timeout: Duration,
) -> io::Result<()> {
    let mut outgoing = outgoing.lock().await;
    match tokio::time::timeout(timeout, outgoing.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Error::Io(error))) => Err(error),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "writing to the client timed out")),
    }
}

impl Transport<RoleServer> for Messages {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let permit = self.gate.answered(&message);
        let (outgoing, timeout) = (Arc::clone(&self.outgoing), self.timeout);
        async move {
            let _permit = permit;
            send(&outgoing, Message::text(serde_json::to_string(&message)?), timeout).await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let mut is_pinged = false;
        loop {
            let next = match tokio::time::timeout(PING_INTERVAL, self.incoming.next()).await {
                Ok(next) => next?,
                Err(_) if is_pinged => return None,
                Err(_) => {
                    is_pinged = true;
                    self.send_in_background(Message::Ping(bytes::Bytes::new()), None);
                    continue;
                }
            };
            is_pinged = false;
            let read = match next {
                Ok(Message::Text(text)) => self.gate.read(text.as_bytes()),
                Ok(Message::Binary(bytes)) => self.gate.read(&bytes),
                Ok(Message::Close(_)) => return None,
                // tungstenite answers pings.
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!("WebSocket error: {error}");
                    return None;
                }
            };
            match read {
                Read::Message(message) => return Some(*message),
                Read::Rejected(answer, permit) => {
                    let answer = String::from_utf8(answer).unwrap_or_default();
                    self.send_in_background(Message::text(answer), Some(permit));
                }
                Read::Nothing => {}
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        let mut outgoing = self.outgoing.lock().await;
        // The connection may be closed already.
        let _ = tokio::time::timeout(Duration::from_secs(1), outgoing.close()).await;
        Ok(())
    }
}
