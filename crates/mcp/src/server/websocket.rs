//! The WebSocket transport: one JSON-RPC message per text message. It is an extension of Toolpost.

use std::sync::Arc;

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
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::http::{Answer, HttpServer, text};
use super::wire::{Read, RequestGate};
use super::{Principal, streams};
use crate::websocket::{SUBPROTOCOL, SendError, Socket, config};

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
        let (upgraded, limits) = (TokioIo::new(upgraded), &shared.limits);
        let config = Some(config(limits.request_bytes));
        let stream = WebSocketStream::from_raw_socket(upgraded, Role::Server, config).await;
        let gate = RequestGate::new(limits.requests_per_stream);
        let messages = Messages { socket: Socket::new(stream, limits.write_time), gate };
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
    socket: Socket<TokioIo<Upgraded>>,
    gate: RequestGate,
}

impl Transport<RoleServer> for Messages {
    type Error = SendError;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        let permit = self.gate.answered(&message);
        let sending = self.socket.send_json(serde_json::to_string(&message));
        async move {
            let _permit = permit;
            sending.await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.gate.read(&self.socket.next().await?) {
                Read::Message(message) => return Some(*message),
                Read::Rejected(answer, permit) => {
                    let answer = String::from_utf8(answer).unwrap_or_default();
                    let sending = self.socket.send(Message::text(answer));
                    tokio::spawn(async move {
                        let _permit = permit;
                        let _ = sending.await;
                    });
                }
                Read::Nothing => {}
            }
        }
    }

    async fn close(&mut self) -> Result<(), SendError> {
        self.socket.close().await;
        Ok(())
    }
}
