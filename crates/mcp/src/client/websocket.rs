//! The WebSocket transport: one JSON-RPC message per text message. It is an extension of Toolpost.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderValue, StatusCode};
use reqwest::Url;
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use toolpost_core::{Secret, ToolError};

use super::flight::SendFailure;
use super::http as web;
use super::message::{Line, read};
use super::response::Pending;
use super::settings::{MAX_MESSAGE_BYTES, Settings};
use crate::convert::inward::shortened;
use crate::websocket::{self, SUBPROTOCOL, SendError, Socket};

/// The timeout of sending a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The most invalid messages in a row.
const MAX_GARBAGE: usize = 1_000;

/// A byte stream, with or without TLS.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// The WebSocket connection to a server.
pub(super) struct Messages {
    socket: Socket<Box<dyn ByteStream>>,
    pending: Pending,
}

impl SendFailure for SendError {
    fn is_undelivered(&self) -> bool {
        self.is_undelivered
    }
}

/// Connects to a server.
pub(super) async fn connect(
    settings: &Settings,
    url: &str,
    headers: &[(String, Secret)],
) -> Result<Messages, ToolError> {
    let url = web::address(url, &["ws", "wss"], settings.no_network)?;
    let failed = |why: &dyn fmt::Display| {
        let why = shortened(&why.to_string(), 300);
        ToolError::dependency(format!("cannot connect to the server `{}`: {why}", settings.name))
    };
    let mut request = url.as_str().into_client_request().map_err(|error| failed(&error))?;
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    request.headers_mut().insert(http::header::USER_AGENT, HeaderValue::from_static(web::USER_AGENT));
    request.headers_mut().extend(web::header_map(headers)?);
    let stream = open_stream(&url).await.map_err(|error| failed(&error))?;
    let config = Some(websocket::config(MAX_MESSAGE_BYTES));
    let opened = tokio_tungstenite::client_async_with_config(request, stream, config).await;
    let (stream, _) = opened.map_err(|error| match error {
        Error::Http(answer) => of_status(answer.status(), &settings.name),
        error => failed(&error),
    })?;
    Ok(Messages { socket: Socket::new(stream, SEND_TIMEOUT), pending: Pending::default() })
}

/// Opens a connection, with TLS for `wss`.
async fn open_stream(url: &Url) -> io::Result<Box<dyn ByteStream>> {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, url.port_or_known_default().unwrap_or(443))).await?;
    stream.set_nodelay(true)?;
    if url.scheme() == "ws" {
        return Ok(Box::new(stream));
    }
    let tls = web::tls().map_err(|error| io::Error::other(error.message().to_owned()))?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(tls)).connect(name, stream).await?))
}

/// Maps the response of a server that does not upgrade. Redirects are not followed.
fn of_status(status: StatusCode, server: &str) -> ToolError {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ToolError::permission(format!("the server `{server}` requires authorization"))
                .with("unauthorized", true)
        }
        StatusCode::NOT_FOUND => ToolError::not_found(format!("no MCP server at the URL of `{server}`"))
            .suggest("Check the path of the URL; Toolpost servers use `/ws`."),
        status => ToolError::dependency(format!(
            "the server `{server}` did not upgrade to WebSocket: HTTP status {}",
            status.as_u16()
        )),
    }
}

impl Transport<RoleClient> for Messages {
    type Error = SendError;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), SendError>> + Send + 'static {
        self.pending.register(&message);
        self.socket.send_json(serde_json::to_string(&message))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        for _ in 0..=MAX_GARBAGE {
            let message = self.socket.next().await?;
            if let Some(message) = read(&Line::Whole(message.to_vec()), &self.pending) {
                return Some(message);
            }
        }
        tracing::warn!("a server sent more than {MAX_GARBAGE} invalid messages in a row");
        None
    }

    async fn close(&mut self) -> Result<(), SendError> {
        self.socket.close().await;
        Ok(())
    }
}
