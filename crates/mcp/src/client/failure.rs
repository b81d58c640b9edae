//! Maps failures of rmcp to tool errors.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::ErrorData;
use rmcp::service::ClientInitializeError;
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, StreamableHttpError,
};
use serde_json::json;
use toolpost_core::{RetryAdvice, ToolError};

use super::oauth::AuthFailure;
use crate::convert::inward;

/// The longest `Retry-After` that is honored.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// The error text with which rmcp answers pending requests when a session is renewed.
const SESSION_RENEWED: &str = "streamable HTTP session was re-initialized before the response arrived";

/// The member of the data of an error that marks a request without an answer, which may have run.
pub(super) const LOST: &str = "toolpost/lost";

/// A response with a status of failure.
#[derive(Debug)]
pub(super) struct StatusFailure {
    pub(super) status: u16,
    /// In seconds.
    pub(super) retry_after: Option<u64>,
    /// The words of the server.
    pub(super) words: String,
    /// The JSON-RPC error in the body.
    pub(super) error: Option<ErrorData>,
}

impl fmt::Display for StatusFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HTTP status {}", self.status)
    }
}

impl Error for StatusFailure {}

impl From<StatusFailure> for StreamableHttpError<reqwest::Error> {
    /// rmcp carries a foreign error only in this variant.
    fn from(failure: StatusFailure) -> Self {
        Self::Io(std::io::Error::other(failure))
    }
}

impl StatusFailure {
    /// The failure inside an error of rmcp.
    pub(super) fn within(error: &std::io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    fn to_failure(&self, server: &str) -> Failure {
        let wait = self.retry_after.map(Duration::from_secs).map(|wait| wait.min(MAX_RETRY_AFTER));
        let said = if self.words.is_empty() { String::new() } else { format!(": {}", self.words) };
        let message = format!("the server `{server}` returned HTTP status {}{said}", self.status);
        Failure::Answered(match (self.status, wait) {
            (401 | 403, _) => {
                ToolError::permission(format!("the server `{server}` requires authorization{said}"))
                    .with("unauthorized", true)
                    .with("http_status", self.status)
            }
            (404, _) => {
                ToolError::not_found(format!("no MCP server at the URL of `{server}`: HTTP 404{said}"))
                    .suggest("Check the path of the URL; many servers use `/mcp`.")
            }
            (429, wait) => ToolError::overloaded(message)
                .retry(RetryAdvice::After(wait.unwrap_or(Duration::from_secs(1)))),
            (_, Some(wait)) => ToolError::dependency(message).retry(RetryAdvice::After(wait)),
            (_, None) => ToolError::dependency(message),
        })
    }
}

/// The reason why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server answered with an error.
    Answered(ToolError),
    /// The connection failed before an answer; the request may have run.
    Lost(ToolError),
}

impl Failure {
    pub(super) fn into_error(self) -> ToolError {
        match self {
            Self::Answered(error) | Self::Lost(error) => error,
        }
    }
}

impl From<ToolError> for Failure {
    fn from(error: ToolError) -> Self {
        Self::Answered(error)
    }
}

/// Maps a failed request. `server` is the configured name.
pub(super) fn of_service(error: ServiceError, server: &str) -> Failure {
    match error {
        ServiceError::McpError(error) if error.message == SESSION_RENEWED => {
            Failure::Lost(ToolError::dependency(format!(
                "the session of the server `{server}` expired before it answered; a new session was started"
            )))
        }
        ServiceError::McpError(error) if error.data == Some(json!({ (LOST): true })) => {
            Failure::Lost(ToolError::dependency(format!("the server `{server}`: {}", error.message)))
        }
        ServiceError::McpError(error) => Failure::Answered(inward::error(&error, server)),
        ServiceError::TransportSend(error) => of_transport(&error, server),
        ServiceError::TransportClosed => {
            Failure::Lost(ToolError::dependency(format!("the server `{server}` disconnected")))
        }
        ServiceError::UnexpectedResponse => Failure::Answered(ToolError::dependency(format!(
            "the server `{server}` returned an unexpected result type"
        ))),
        ServiceError::Cancelled { .. } => {
            Failure::Answered(ToolError::cancelled(format!("the server `{server}` cancelled the request")))
        }
        ServiceError::Timeout { .. } => {
            Failure::Answered(ToolError::timeout(format!("the server `{server}` did not answer in time")))
        }
        other => Failure::Answered(ToolError::dependency(format!("the server `{server}`: {other}"))),
    }
}

fn of_transport(error: &DynamicTransportError, server: &str) -> Failure {
    let lost = |error: ToolError| Failure::Lost(error);
    let mut source: Option<&(dyn Error + 'static)> = Some(error.error.as_ref());
    while let Some(current) = source {
        if let Some(error) = current.downcast_ref::<std::io::Error>().and_then(AuthFailure::within) {
            return Failure::Answered(error.clone());
        }
        if let Some(failure) = current.downcast_ref::<std::io::Error>().and_then(StatusFailure::within) {
            return failure.to_failure(server);
        }
        if let Some(error) = current.downcast_ref::<AuthRequiredError>() {
            return Failure::Answered(unauthorized(server, &error.www_authenticate_header));
        }
        if let Some(error) = current.downcast_ref::<InsufficientScopeError>() {
            let scope = error.required_scope.as_deref().map_or(String::new(), |scope| {
                format!(": it requires the scope `{}`", inward::shortened(scope, 200))
            });
            return Failure::Answered(ToolError::permission(format!(
                "the server `{server}` denied the request{scope}"
            )));
        }
        if let Some(error) = current.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            match error {
                StreamableHttpError::Client(error) => {
                    let why = super::http::cause(error);
                    return lost(ToolError::dependency(format!(
                        "cannot connect to the server `{server}`: {why}"
                    )));
                }
                StreamableHttpError::HttpStatus(status) => return of_status(status, server),
                StreamableHttpError::ResponseBodyTooLarge { max_size } => {
                    return Failure::Answered(ToolError::limit(format!(
                        "the response of the server `{server}` is larger than {max_size} bytes"
                    )));
                }
                StreamableHttpError::UnexpectedServerResponse(text) => {
                    return Failure::Answered(of_response(text, server));
                }
                _ => {}
            }
        }
        source = current.source();
    }
    lost(ToolError::dependency(format!(
        "the connection to the server `{server}` failed: {}",
        inward::shortened(&error.error.to_string(), 500)
    )))
}

/// Maps an HTTP response that is not MCP.
fn of_response(text: &str, server: &str) -> ToolError {
    let shown = inward::shortened(text, 500);
    match text.get(..8) {
        Some("HTTP 401" | "HTTP 403") => unauthorized(server, ""),
        Some("HTTP 404") => ToolError::not_found(format!("no MCP server at the URL of `{server}`: {shown}"))
            .suggest("Check the path of the URL; many servers use `/mcp`."),
        _ => ToolError::dependency(format!("the server `{server}` sent an invalid MCP response: {shown}")),
    }
}

fn unauthorized(server: &str, challenge: &str) -> ToolError {
    let error = ToolError::permission(format!("the server `{server}` requires authorization"))
        .with("unauthorized", true);
    match challenge {
        "" => error,
        text => error.with("challenge", inward::shortened(text, 1_000)),
    }
}

fn of_status(status: &HttpStatusError, server: &str) -> Failure {
    let after = status.retry_after.as_deref().and_then(|text| text.trim().parse().ok());
    let wait = after.map(Duration::from_secs).map(|wait| wait.min(MAX_RETRY_AFTER));
    let message = format!("the server `{server}` returned HTTP status {}", status.status);
    Failure::Answered(match status.status {
        429 => {
            ToolError::overloaded(message).retry(RetryAdvice::After(wait.unwrap_or(Duration::from_secs(1))))
        }
        _ => {
            let error = ToolError::dependency(message);
            match wait {
                Some(wait) => error.retry(RetryAdvice::After(wait)),
                None => error,
            }
        }
    })
}

/// Maps a failed initialization.
pub(super) fn of_start(error: ClientInitializeError, server: &str) -> ToolError {
    match error {
        ClientInitializeError::TransportError { error, .. } => of_transport(&error, server).into_error(),
        ClientInitializeError::JsonRpcError(error) => {
            let error = inward::error(&error, server);
            ToolError::dependency(format!("the server `{server}` rejected `initialize`: {}", error.message()))
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => of_start(*fallback, server),
        ClientInitializeError::ConnectionClosed(_) => {
            ToolError::dependency(format!("the server `{server}` disconnected during initialization"))
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let known: Vec<_> =
                server_supported.iter().take(10).map(|v| inward::shortened(v.as_str(), 40)).collect();
            ToolError::dependency(format!(
                "the server `{server}` supports no known protocol version, only {}",
                known.join(", ")
            ))
        }
        other => ToolError::dependency(format!(
            "initializing the server `{server}` failed: {}",
            inward::shortened(&other.to_string(), 500)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request may have run before the session expired, so only idempotent calls are repeated.
    #[test]
    fn a_renewed_session_loses_its_pending_requests() {
        let renewed = ServiceError::McpError(ErrorData::internal_error(SESSION_RENEWED, None));
        assert!(matches!(of_service(renewed, "calc"), Failure::Lost(_)));
        let own = ServiceError::McpError(ErrorData::internal_error("no such table", None));
        assert!(matches!(of_service(own, "calc"), Failure::Answered(_)));
    }
}
