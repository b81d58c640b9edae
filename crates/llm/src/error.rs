//! What can go wrong between a request and its answer.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ModelId;

/// The kind of a [`ModelError`]: what the caller decides by.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The key is missing, refused or may not use the model.
    Auth,
    /// The provider has no such model or resource.
    NotFound,
    /// Too many requests or tokens in too short a time.
    RateLimited {
        /// How long the provider wants the caller to wait.
        retry_after: Option<Duration>,
    },
    /// The provider is overloaded or failed inside.
    Overloaded,
    /// The provider refused the request as malformed.
    InvalidRequest,
    /// The request does not fit into the model's context window.
    ContextTooLong,
    /// The provider refused to serve the request because of what it says.
    Refused,
    /// The account has no credit left.
    Billing,
    /// No connection could be made, or it broke.
    Network(NetworkStage),
    /// An outward connection is forbidden here.
    NetworkForbidden,
    /// Something took too long.
    Timeout(TimeoutStage),
    /// The provider's answer is not what its wire promises: cut, malformed, of another type.
    Protocol,
    /// The model or wire lacks a feature that the request needs. Nothing was sent.
    Unsupported,
    /// The name of a model or a model's configuration makes no sense.
    Configuration,
    /// A script or recording cannot be read or written.
    Script,
    /// A script's expectation is untrue.
    ScriptExpectation,
    /// A script or recording has no further turn.
    ScriptExhausted,
    /// The request is not the recorded one.
    ReplayMismatch,
}

impl ErrorKind {
    /// A stable name, for records and JSON output.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::NotFound => "not_found",
            Self::RateLimited { .. } => "rate_limited",
            Self::Overloaded => "overloaded",
            Self::InvalidRequest => "invalid_request",
            Self::ContextTooLong => "context_too_long",
            Self::Refused => "refused",
            Self::Billing => "billing",
            Self::Network(_) => "network",
            Self::NetworkForbidden => "network_forbidden",
            Self::Timeout(_) => "timeout",
            Self::Protocol => "protocol",
            Self::Unsupported => "unsupported",
            Self::Configuration => "configuration",
            Self::Script => "script",
            Self::ScriptExpectation => "script_expectation",
            Self::ScriptExhausted => "script_exhausted",
            Self::ReplayMismatch => "replay_mismatch",
        }
    }

    /// Whether a request that failed so may have been answered, and paid for, though its answer was not heard.
    pub fn may_be_billed(&self) -> bool {
        matches!(
            self,
            Self::Network(NetworkStage::Transfer)
                | Self::Timeout(TimeoutStage::FirstByte | TimeoutStage::BetweenEvents | TimeoutStage::Total)
                | Self::Protocol
        )
    }

    /// What happened, in a few words.
    fn phrase(&self) -> &'static str {
        match self {
            Self::Auth => "the key was not accepted",
            Self::NotFound => "not found",
            Self::RateLimited { .. } => "rate limited",
            Self::Overloaded => "the provider is overloaded or failed",
            Self::InvalidRequest => "the provider refused the request",
            Self::ContextTooLong => "the request is too long for the model",
            Self::Refused => "the provider declined the request",
            Self::Billing => "the account cannot pay",
            Self::Network(NetworkStage::Dns) => "the host's name could not be resolved",
            Self::Network(NetworkStage::Tls) => "no secure connection could be made",
            Self::Network(NetworkStage::Connect) => "no connection could be made",
            Self::Network(NetworkStage::Transfer) => "the connection broke",
            Self::NetworkForbidden => "outward connections are forbidden",
            Self::Timeout(TimeoutStage::Connect) => "connecting took too long",
            Self::Timeout(TimeoutStage::FirstByte) => "the answer did not begin in time",
            Self::Timeout(TimeoutStage::BetweenEvents) => "the answer stalled",
            Self::Timeout(TimeoutStage::Total) => "the answer took too long",
            Self::Protocol => "the answer is not what the wire promises",
            Self::Unsupported => "not supported",
            Self::Configuration => "configuration",
            Self::Script => "script",
            Self::ScriptExpectation => "a script's expectation is untrue",
            Self::ScriptExhausted => "no turn is left",
            Self::ReplayMismatch => "the request is not the recorded one",
        }
    }
}

/// Where a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkStage {
    /// Resolving the host's name.
    Dns,
    /// Connecting to an address.
    Connect,
    /// Agreeing on encryption, or checking the certificate.
    Tls,
    /// Sending the request or reading the answer.
    Transfer,
}

/// What took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeoutStage {
    /// Making the connection.
    Connect,
    /// The first byte of the answer.
    FirstByte,
    /// The next event of the answer.
    BetweenEvents,
    /// The whole answer.
    Total,
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// The attempt's number, from 1.
    pub number: u32,
    /// What failed.
    pub reason: String,
    /// The HTTP status, if an answer came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// How long the attempt lasted.
    pub took: Duration,
    /// How long was waited afterwards; zero after the last.
    pub waited: Duration,
}

/// What is known about the failure besides its kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorDetails {
    /// The model that was asked.
    pub model: Option<ModelId>,
    /// The HTTP status, if an answer came.
    pub status: Option<u16>,
    /// The provider's name for the error, such as `overloaded_error`.
    pub provider_code: Option<String>,
    /// The provider's id of the request, to give to its support.
    pub request_id: Option<String>,
    /// Every attempt, the last one included, if the request was tried at all.
    pub attempts: Vec<Attempt>,
}

/// Why there is no answer. Keys never appear in it.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelError {
    /// What the caller decides by.
    pub kind: ErrorKind,
    /// The provider's words, or ours: one paragraph.
    pub message: String,
    /// What else is known.
    pub details: Box<ErrorDetails>,
}

impl ModelError {
    /// An error of a kind and a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: Box::default() }
    }

    /// The same error, naming the model.
    #[must_use]
    pub fn with_model(mut self, model: &ModelId) -> Self {
        self.details.model = Some(model.clone());
        self
    }

    /// The same error, with the HTTP status.
    #[must_use]
    pub(crate) fn with_status(mut self, status: u16) -> Self {
        self.details.status = Some(status);
        self
    }

    /// What happened, in a few words.
    fn phrase(&self) -> &'static str {
        let details = &self.details;
        let was_sent =
            details.status.is_some() || details.provider_code.is_some() || !details.attempts.is_empty();
        match self.kind {
            ErrorKind::InvalidRequest if !was_sent => "the request cannot be sent",
            _ => self.kind.phrase(),
        }
    }

    /// What to do next, if something can be said.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match &self.kind {
            ErrorKind::Auth => {
                "Check that the provider's key is set, current, and allowed to use this model."
            }
            ErrorKind::NotFound => {
                "Check the model's name, which the provider may have retired, and the base URL, if one is set."
            }
            ErrorKind::RateLimited { .. } => "Wait, lower the concurrency, or name a fallback model.",
            ErrorKind::Overloaded => "Try again later, or name a fallback model.",
            ErrorKind::ContextTooLong => "Shorten the conversation, or use a model with a larger window.",
            ErrorKind::Billing => "Check the account's balance and limits.",
            ErrorKind::Network(NetworkStage::Dns) => {
                "Check the base URL's host and this machine's name resolution."
            }
            ErrorKind::Network(NetworkStage::Connect) => "Check the base URL, the proxy and the firewall.",
            ErrorKind::Network(NetworkStage::Tls) => {
                "Check the base URL's scheme. If a company's own authority signs here, name its certificates: `models.ca_file` or SSL_CERT_FILE."
            }
            ErrorKind::Network(NetworkStage::Transfer) => "Try again; if it stays, check proxies in between.",
            ErrorKind::NetworkForbidden => {
                "Unset TOOLPOST_NO_NETWORK, or use `script:FILE` or `replay:FILE`."
            }
            ErrorKind::Timeout(TimeoutStage::Connect) => "Try again, or raise `models.connect_timeout`.",
            ErrorKind::Timeout(TimeoutStage::FirstByte) => "Try again, or raise `models.first_byte_timeout`.",
            ErrorKind::Timeout(TimeoutStage::BetweenEvents) => "Try again, or raise `models.event_timeout`.",
            ErrorKind::Timeout(TimeoutStage::Total) => "Try again, or raise `models.total_timeout`.",
            ErrorKind::Protocol => {
                "Check that the base URL is the provider's and that no proxy changes answers."
            }
            ErrorKind::ScriptExpectation => "Compare the tool's result with the script's `expect`.",
            ErrorKind::ScriptExhausted => "Add a turn to the file, or end the conversation earlier.",
            ErrorKind::ReplayMismatch => "Record again if the change is intended.",
            ErrorKind::InvalidRequest
            | ErrorKind::Refused
            | ErrorKind::Unsupported
            | ErrorKind::Configuration
            | ErrorKind::Script => return None,
        })
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.details.model {
            // The message names the file.
            Some(model) if self.kind == ErrorKind::Script => f.write_str(&model.provider)?,
            Some(model) => write!(f, "{model}: {}", self.phrase())?,
            None => f.write_str(self.phrase())?,
        }
        let mut facts = Vec::new();
        if let Some(status) = self.details.status {
            facts.push(format!("HTTP {status}"));
        }
        if let Some(code) = &self.details.provider_code {
            facts.push(code.clone());
        }
        if let Some(id) = &self.details.request_id {
            facts.push(format!("request {id}"));
        }
        if self.details.attempts.len() > 1 {
            facts.push(format!("{} attempts", self.details.attempts.len()));
        }
        if !facts.is_empty() {
            write!(f, " ({})", facts.join(", "))?;
        }
        write!(f, ": {}", self.message)?;
        match self.hint() {
            Some(hint) if self.message.ends_with(['.', '!', '?']) => write!(f, " {hint}"),
            Some(hint) => write!(f, ". {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ModelError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_who_what_and_what_next() {
        let mut error = ModelError::new(ErrorKind::Overloaded, "Overloaded")
            .with_model(&ModelId::new("anthropic", "claude-x"))
            .with_status(529);
        error.details.provider_code = Some("overloaded_error".into());
        error.details.request_id = Some("req_1".into());
        assert_eq!(
            error.to_string(),
            "anthropic/claude-x: the provider is overloaded or failed (HTTP 529, overloaded_error, request req_1): \
             Overloaded. Try again later, or name a fallback model."
        );
    }

    #[test]
    fn an_error_is_small_enough_to_return() {
        assert!(size_of::<ModelError>() <= 64, "{}", size_of::<ModelError>());
    }
}
