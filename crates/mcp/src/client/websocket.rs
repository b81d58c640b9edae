//! Servers over WebSocket: a message of the protocol in each message of text. It is an extension of ours; the protocol
//! has none.

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

use super::flight::Arrival;
use super::http as web;
use super::message::{Line, read};
use super::settings::Settings;
use crate::convert::inward::shortened;

/// The name of the protocol within WebSocket.
const PROTOCOL: &str = "mcp";
/// How often a server is asked whether it is there.
const HEARTBEAT: Duration = Duration::from_secs(30);
/// How long a message may take to be taken.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many messages in a row may be none of the protocol.
const MAX_GARBAGE: usize = 1_000;

/// What messages travel through.
trait Way: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Way for T {}

type Stream = WebSocketStream<Box<dyn Way>>;
type Outgoing = Arc<Mutex<SplitSink<Stream, Message>>>;

/// Messages to and from a server. Dropped, the connection ends.
pub(super) struct Messages {
    incoming: SplitStream<Stream>,
    outgoing: Outgoing,
}

/// Why a message was not sent.
#[derive(Debug)]
pub(super) struct Unsent {
    why: String,
    /// Whether nothing of it has left.
    is_whole: bool,
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Unsent {}

impl Arrival for Unsent {
    fn surely_did_not_arrive(&self) -> bool {
        self.is_whole
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
        ToolError::dependency(format!("the server `{}` cannot be reached: {why}", settings.name))
    };
    let mut request = url.as_str().into_client_request().map_err(|error| failed(&error))?;
    request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(PROTOCOL));
    request.headers_mut().insert(http::header::USER_AGENT, HeaderValue::from_static(web::AGENT));
    request.headers_mut().extend(web::header_map(headers)?);
    let way = way(&url).await.map_err(|error| failed(&error))?;
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(limit);
    config.max_frame_size = Some(limit);
    let begun = tokio_tungstenite::client_async_with_config(request, way, Some(config)).await;
    let (stream, _) = begun.map_err(|error| match error {
        Error::Http(answer) => of_status(answer.status(), &settings.name),
        error => failed(&error),
    })?;
    let (outgoing, incoming) = stream.split();
    Ok(Messages { incoming, outgoing: Arc::new(Mutex::new(outgoing)) })
}

/// A connection, with TLS for `wss`.
async fn way(url: &Url) -> io::Result<Box<dyn Way>> {
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

/// A server that gives no WebSocket. Nobody is followed to another address.
fn of_status(status: StatusCode, server: &str) -> ToolError {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            ToolError::permission(format!("the server `{server}` wants to know who asks"))
                .with("unauthorized", true)
        }
        StatusCode::NOT_FOUND => ToolError::not_found(format!("there is no server `{server}`"))
            .suggest("Look at the path of its address; those of this project are at `/ws`."),
        status => ToolError::dependency(format!(
            "the server `{server}` gives no WebSocket: it answered with HTTP status {}",
            status.as_u16()
        )),
    }
}

async fn send(outgoing: Outgoing, message: Result<Message, serde_json::Error>) -> Result<(), Unsent> {
    let whole = |why: String| Unsent { why, is_whole: true };
    let message = message.map_err(|error| whole(error.to_string()))?;
    let mut outgoing = outgoing.lock().await;
    match tokio::time::timeout(PATIENCE, outgoing.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Error::ConnectionClosed | Error::AlreadyClosed)) => {
            Err(whole("the server has ended".to_owned()))
        }
        Ok(Err(error)) => Err(Unsent { why: error.to_string(), is_whole: false }),
        Err(_) => Err(Unsent { why: "the server takes nothing".to_owned(), is_whole: false }),
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
        let (mut was_asked, mut garbage) = (false, 0);
        while garbage <= MAX_GARBAGE {
            let next = match tokio::time::timeout(HEARTBEAT, self.incoming.next()).await {
                Ok(next) => next?,
                Err(_) if was_asked => return None,
                Err(_) => {
                    was_asked = true;
                    tokio::spawn(send(Arc::clone(&self.outgoing), Ok(Message::Ping(bytes::Bytes::new()))));
                    continue;
                }
            };
            was_asked = false;
            let text = match next {
                Ok(Message::Text(text)) => text.as_bytes().to_vec(),
                Ok(Message::Binary(bytes)) => bytes.to_vec(),
                Ok(Message::Close(_)) => return None,
                // A ping is answered below this.
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!("a WebSocket broke: {error}");
                    return None;
                }
            };
            match read(&Line::Whole(text)) {
                Some(message) => return Some(message),
                None => garbage += 1,
            }
        }
        tracing::warn!("a server sent more than {MAX_GARBAGE} messages that are none of the protocol");
        None
    }

    async fn close(&mut self) -> Result<(), Unsent> {
        let mut outgoing = self.outgoing.lock().await;
        // It may be closed already.
        let _ = tokio::time::timeout(Duration::from_secs(1), outgoing.close()).await;
        Ok(())
    }
}
