//! The WebSocket transport: one JSON-RPC message per text message. It is an extension of Toolpost.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::{HeaderValue, StatusCode};
use reqwest::Url;
use rmcp::service::{RoleClient, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use toolpost_core::{Secret, ToolError};

use super::flight::SendFailure;
use super::http as web;
use super::message::{Line, read};
use super::settings::Settings;
use crate::convert::inward::shortened;

/// The WebSocket subprotocol.
const SUBPROTOCOL: &str = "mcp";
/// The interval of pings.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The timeout of sending a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// The most invalid messages in a row.
const MAX_GARBAGE: usize = 1_000;

/// A byte stream, with or without TLS.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

type Stream = WebSocketStream<Box<dyn ByteStream>>;
type Outgoing = Arc<Mutex<SplitSink<Stream, Message>>>;

/// A WebSocket connection. Dropping it closes it.
pub(super) struct Messages {
    incoming: SplitStream<Stream>,
    outgoing: Outgoing,
}

/// Why a message was not sent.
#[derive(Debug)]
pub(super) struct Unsent {
    why: String,
    /// Whether nothing was sent.
    is_undelivered: bool,
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Unsent {}

impl SendFailure for Unsent {
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
    let limit = settings.limits.message_bytes;
    let failed = |why: &dyn fmt::Display| {
        let why = shortened(&why.to_string(), 300);
        ToolError::dependency(format!("cannot connect to the server `{}`: {why}", settings.name))
    };
    let mut request = url.as_str().into_client_request().map_err(|error| failed(&error))?;
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    request.headers_mut().insert(http::header::USER_AGENT, HeaderValue::from_static(web::USER_AGENT));
    request.headers_mut().extend(web::header_map(headers)?);
    let stream = open_stream(&url).await.map_err(|error| failed(&error))?;
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(limit);
    config.max_frame_size = Some(limit);
    let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
    let (stream, _) = opened.map_err(|error| match error {
        Error::Http(answer) => of_status(answer.status(), &settings.name),
        error => failed(&error),
    })?;
    let (outgoing, incoming) = stream.split();
    Ok(Messages { incoming, outgoing: Arc::new(Mutex::new(outgoing)) })
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

async fn send(outgoing: Outgoing, message: Result<Message, serde_json::Error>) -> Result<(), Unsent> {
    let unsent = |why: String| Unsent { why, is_undelivered: true };
    let message = message.map_err(|error| unsent(error.to_string()))?;
    let mut outgoing = outgoing.lock().await;
    match tokio::time::timeout(SEND_TIMEOUT, outgoing.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Error::ConnectionClosed | Error::AlreadyClosed)) => {
            Err(unsent("the server closed the connection".to_owned()))
        }
        Ok(Err(error)) => Err(Unsent { why: error.to_string(), is_undelivered: false }),
        Err(_) => Err(Unsent { why: "sending timed out".to_owned(), is_undelivered: false }),
    }
}

impl Transport<RoleClient> for Messages {
    type Error = Unsent;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), Unsent>> + Send + 'static {
        send(Arc::clone(&self.outgoing), serde_json::to_string(&message).map(Message::text))
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        let (mut is_pinged, mut garbage) = (false, 0);
        while garbage <= MAX_GARBAGE {
            let next = match tokio::time::timeout(PING_INTERVAL, self.incoming.next()).await {
                Ok(next) => next?,
                Err(_) if is_pinged => return None,
                Err(_) => {
                    is_pinged = true;
                    tokio::spawn(send(Arc::clone(&self.outgoing), Ok(Message::Ping(bytes::Bytes::new()))));
                    continue;
                }
            };
            is_pinged = false;
            let text = match next {
                Ok(Message::Text(text)) => text.as_bytes().to_vec(),
                Ok(Message::Binary(bytes)) => bytes.to_vec(),
                Ok(Message::Close(_)) => return None,
                // tungstenite answers pings.
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!("WebSocket error: {error}");
                    return None;
                }
            };
            match read(&Line::Whole(text)) {
                Some(message) => return Some(message),
                None => garbage += 1,
            }
        }
        tracing::warn!("a server sent more than {MAX_GARBAGE} invalid messages in a row");
        None
    }

    async fn close(&mut self) -> Result<(), Unsent> {
        let mut outgoing = self.outgoing.lock().await;
        // The connection may be closed already.
        let _ = tokio::time::timeout(Duration::from_secs(1), outgoing.close()).await;
        Ok(())
    }
}
