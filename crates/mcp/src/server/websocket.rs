//! WebSocket: a message of the protocol in each message of text. It is an extension of ours; the protocol has none.

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

use super::http::{Answer, Front, text};
use super::wire::{Gate, Read};
use super::{Limits, Principal, streams};

/// The name of the protocol within WebSocket, for clients that ask for one.
const PROTOCOL: &str = "mcp";
/// How often a client is asked whether it is there.
const HEARTBEAT: Duration = Duration::from_secs(30);

type Stream = WebSocketStream<TokioIo<Upgraded>>;

/// Turns a request into a WebSocket and serves it until it ends.
pub(super) fn accept(front: &Arc<Front>, head: &mut Parts, principal: Principal) -> Answer {
    let Some(accepted) = accept_key(head) else {
        let mut answer = text(StatusCode::UPGRADE_REQUIRED, "a WebSocket of version 13 is expected here");
        answer.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
        answer.headers_mut().insert("sec-websocket-version", HeaderValue::from_static("13"));
        return answer;
    };
    let Some(upgrade) = head.extensions.remove::<OnUpgrade>() else {
        return text(StatusCode::BAD_REQUEST, "this connection cannot become a WebSocket");
    };
    let mut answer = text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = answer.headers_mut();
    headers.clear();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accepted);
    if has_word(&head.headers, &SEC_WEBSOCKET_PROTOCOL, PROTOCOL) {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    }
    let (shared, ended) = (Arc::clone(&front.shared), front.ended.clone());
    front.upgraded.spawn(async move {
        let upgraded = tokio::time::timeout(shared.limits.head_time, upgrade).await;
        let Ok(Ok(upgraded)) = upgraded else { return };
        let mut config = WebSocketConfig::default();
        config.max_message_size = Some(shared.limits.request_bytes);
        config.max_frame_size = Some(shared.limits.request_bytes);
        let stream =
            WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
        let messages = Messages::new(stream, &shared.limits);
        if let Err(error) = streams::serve(&shared, principal, messages, ended).await {
            tracing::debug!("a WebSocket: {error}");
        }
    });
    answer
}

/// The key that accepts a WebSocket, if a request asks for one.
fn accept_key(head: &Parts) -> Option<HeaderValue> {
    let is_version = || head.headers.get("sec-websocket-version").is_some_and(|version| version == "13");
    let key = head.headers.get(SEC_WEBSOCKET_KEY).filter(|_| is_asked(head) && is_version())?;
    derive_accept_key(key.as_bytes()).try_into().ok()
}

/// Whether a request asks for a WebSocket.
pub(super) fn is_asked(head: &Parts) -> bool {
    head.method == Method::GET
        && has_word(&head.headers, &CONNECTION, "upgrade")
        && has_word(&head.headers, &UPGRADE, "websocket")
}

/// Whether a list of words has one, in any case.
fn has_word(headers: &HeaderMap, name: &http::HeaderName, word: &str) -> bool {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|found| found.trim().eq_ignore_ascii_case(word))
}

/// Messages as messages of a WebSocket.
struct Messages {
    incoming: SplitStream<Stream>,
    outgoing: Arc<Mutex<SplitSink<Stream, Message>>>,
    gate: Gate,
    patience: Duration,
}

impl Messages {
    fn new(stream: Stream, limits: &Limits) -> Self {
        let (outgoing, incoming) = stream.split();
        Self {
            incoming,
            outgoing: Arc::new(Mutex::new(outgoing)),
            gate: Gate::new(limits.requests_per_stream),
            patience: limits.write_time,
        }
    }

    /// Sends something without keeping the reader waiting.
    fn send_aside(&self, message: Message, permit: Option<OwnedSemaphorePermit>) {
        let (outgoing, patience) = (Arc::clone(&self.outgoing), self.patience);
        tokio::spawn(async move {
            let _permit = permit;
            let _ = send(&outgoing, message, patience).await;
        });
    }
}

async fn send(
    outgoing: &Mutex<SplitSink<Stream, Message>>,
    message: Message,
    patience: Duration,
) -> io::Result<()> {
    let mut outgoing = outgoing.lock().await;
    match tokio::time::timeout(patience, outgoing.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Error::Io(error))) => Err(error),
        Ok(Err(error)) => Err(io::Error::other(error)),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")),
    }
}

impl Transport<RoleServer> for Messages {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let permit = self.gate.answered(&message);
        let (outgoing, patience) = (Arc::clone(&self.outgoing), self.patience);
        async move {
            let _permit = permit;
            send(&outgoing, Message::text(serde_json::to_string(&message)?), patience).await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let mut was_asked = false;
        loop {
            let next = match tokio::time::timeout(HEARTBEAT, self.incoming.next()).await {
                Ok(next) => next?,
                Err(_) if was_asked => return None,
                Err(_) => {
                    was_asked = true;
                    self.send_aside(Message::Ping(bytes::Bytes::new()), None);
                    continue;
                }
            };
            was_asked = false;
            let read = match next {
                Ok(Message::Text(text)) => self.gate.read(text.as_bytes()),
                Ok(Message::Binary(bytes)) => self.gate.read(&bytes),
                Ok(Message::Close(_)) => return None,
                // A ping is answered below this.
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!("a WebSocket broke: {error}");
                    return None;
                }
            };
            match read {
                Read::Message(message) => return Some(*message),
                Read::Refused(answer, permit) => {
                    let answer = String::from_utf8(answer).unwrap_or_default();
                    self.send_aside(Message::text(answer), Some(permit));
                }
                Read::Nothing => {}
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        let mut outgoing = self.outgoing.lock().await;
        // It may be closed already.
        let _ = tokio::time::timeout(Duration::from_secs(1), outgoing.close()).await;
        Ok(())
    }
}
