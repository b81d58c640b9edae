//! What did not work, as errors for callers.

use std::error::Error;
use std::time::Duration;

use rmcp::ServiceError;
use rmcp::model::ErrorData;
use rmcp::service::ClientInitializeError;
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, HttpStatusError, InsufficientScopeError, StreamableHttpError,
};
use toolpost_core::{RetryAdvice, ToolError};

use super::oauth::Refusal;
use crate::convert::inward;

/// The longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(5);

/// What the library below answers in place of a server whose session ended while it had requests under way.
const SESSION_RENEWED: &str = "streamable HTTP session was re-initialized before the response arrived";

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server said so.
    Answered(ToolError),
    /// The connection failed before an answer; the request may have been carried out.
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

/// A request that failed. `server` is how the server is called.
pub(super) fn of_service(error: ServiceError, server: &str) -> Failure {
    match error {
        ServiceError::McpError(error) if error.message == SESSION_RENEWED => {
            Failure::Lost(ToolError::dependency(format!(
                "the session of the server `{server}` ended before it answered; a new one was begun"
            )))
        }
        ServiceError::McpError(error) => Failure::Answered(of_answer(&error, server)),
        ServiceError::TransportSend(error) => of_transport(&error, server),
        ServiceError::TransportClosed => {
            Failure::Lost(ToolError::dependency(format!("the server `{server}` went away")))
        }
        ServiceError::UnexpectedResponse => Failure::Answered(ToolError::dependency(format!(
            "the server `{server}` answered with something else than what was asked for"
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

/// An error that the server answered with.
fn of_answer(error: &ErrorData, server: &str) -> ToolError {
    inward::error(error, server)
}

fn of_transport(error: &DynamicTransportError, server: &str) -> Failure {
    let lost = |error: ToolError| Failure::Lost(error);
    let mut source: Option<&(dyn Error + 'static)> = Some(error.error.as_ref());
    while let Some(current) = source {
        if let Some(error) = current.downcast_ref::<std::io::Error>().and_then(Refusal::within) {
            return Failure::Answered(error.clone());
        }
        if let Some(wanted) = current.downcast_ref::<AuthRequiredError>() {
            return Failure::Answered(unauthorised(server, &wanted.www_authenticate_header));
        }
        if let Some(wanted) = current.downcast_ref::<InsufficientScopeError>() {
            let scope = wanted.required_scope.as_deref().map_or(String::new(), |scope| {
                format!(": it asks for the scope `{}`", inward::shortened(scope, 200))
            });
            return Failure::Answered(ToolError::permission(format!(
                "the server `{server}` does not allow it{scope}"
            )));
        }
        if let Some(error) = current.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
            match error {
                StreamableHttpError::Client(error) => {
                    let why = super::http::cause(error);
                    return lost(ToolError::dependency(format!(
                        "the server `{server}` cannot be reached: {why}"
                    )));
                }
                StreamableHttpError::HttpStatus(status) => return of_status(status, server),
                StreamableHttpError::ResponseBodyTooLarge { max_size } => {
                    return Failure::Answered(ToolError::limit(format!(
                        "the server `{server}` answered with more than {max_size} bytes"
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

/// A status and a body that are none of the protocol.
fn of_response(text: &str, server: &str) -> ToolError {
    let shown = inward::shortened(text, 500);
    match text.get(..8) {
        Some("HTTP 401" | "HTTP 403") => unauthorised(server, ""),
        Some("HTTP 404") => ToolError::not_found(format!("there is no server `{server}`: {shown}"))
            .suggest("Look at the path of its address; many servers are at `/mcp`."),
        _ => ToolError::dependency(format!("the server `{server}` gave no answer of the protocol: {shown}")),
    }
}

fn unauthorised(server: &str, challenge: &str) -> ToolError {
    let error = ToolError::permission(format!("the server `{server}` wants to know who asks"))
        .with("unauthorized", true);
    match challenge {
        "" => error,
        text => error.with("challenge", inward::shortened(text, 1_000)),
    }
}

fn of_status(status: &HttpStatusError, server: &str) -> Failure {
    let after = status.retry_after.as_deref().and_then(|text| text.trim().parse().ok());
    let wait = after.map(Duration::from_secs).map(|wait| wait.min(MAX_RETRY_AFTER));
    let message = format!("the server `{server}` answered with HTTP status {}", status.status);
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

/// A connection that could not be made.
pub(super) fn of_start(error: ClientInitializeError, server: &str) -> ToolError {
    match error {
        ClientInitializeError::TransportError { error, .. } => of_transport(&error, server).into_error(),
        ClientInitializeError::JsonRpcError(error) => {
            let error = of_answer(&error, server);
            ToolError::dependency(format!("the server `{server}` refuses to begin: {}", error.message()))
        }
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => of_start(*fallback, server),
        ClientInitializeError::ConnectionClosed(_) => {
            ToolError::dependency(format!("the server `{server}` ended before it had begun"))
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
            let known: Vec<_> =
                server_supported.iter().take(10).map(|v| inward::shortened(v.as_str(), 40)).collect();
            ToolError::dependency(format!(
                "the server `{server}` speaks no version of the protocol that is known here, but {}",
                known.join(", ")
            ))
        }
        other => ToolError::dependency(format!(
            "the server `{server}` does not speak the protocol: {}",
            inward::shortened(&other.to_string(), 500)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The request may have arrived before the session ended, so only what may run twice is asked for again.
    #[test]
    fn a_session_that_was_renewed_leaves_its_requests_without_an_answer() {
        let renewed = ServiceError::McpError(ErrorData::internal_error(SESSION_RENEWED, None));
        assert!(matches!(of_service(renewed, "calc"), Failure::Lost(_)));
        let own = ServiceError::McpError(ErrorData::internal_error("no such table", None));
        assert!(matches!(of_service(own, "calc"), Failure::Answered(_)));
    }
}
