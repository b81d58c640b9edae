//! Errors of models.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ModelId;

/// The kind of a [`ModelError`], for the caller's decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The API key is missing, rejected or not allowed to use the model.
    Auth,
    /// The provider has no such model or resource.
    NotFound,
    /// Too many requests or tokens per time.
    RateLimited {
        /// The wait that the provider requests.
        retry_after: Option<Duration>,
    },
    /// The provider is overloaded or has an internal error.
    Overloaded,
    /// The request is invalid.
    InvalidRequest,
    /// The request exceeds the model's context window.
    ContextTooLong,
    /// The provider declined the request because of its content.
    Refused,
    /// The account has no credit left.
    Billing,
    /// Connecting failed, or the connection broke.
    Network(NetworkStage),
    /// Network access is forbidden.
    NetworkForbidden,
    /// A timeout.
    Timeout(TimeoutStage),
    /// The provider's answer is invalid: truncated, malformed, or of another type.
    Protocol,
    /// The model or wire does not support a feature of the request. Nothing was sent.
    Unsupported,
    /// A model's name or configuration is invalid.
    Configuration,
    /// A script or recording is invalid, or cannot be read or written.
    Script,
    /// A script's expectation failed.
    ScriptExpectation,
    /// A script or recording has no more turns.
    ScriptExhausted,
    /// The request differs from the recorded one.
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

    /// Whether the provider may bill a request that failed in this way.
    pub fn may_be_billed(&self) -> bool {
        matches!(
            self,
            Self::Network(NetworkStage::Transfer)
                | Self::Timeout(TimeoutStage::FirstByte | TimeoutStage::BetweenEvents | TimeoutStage::Total)
                | Self::Protocol
        )
    }

    /// A short description.
    fn phrase(&self) -> &'static str {
        match self {
            Self::Auth => "the API key was rejected",
            Self::NotFound => "not found",
            Self::RateLimited { .. } => "rate limited",
            Self::Overloaded => "the provider is overloaded or failed",
            Self::InvalidRequest => "the provider rejected the request",
            Self::ContextTooLong => "the request is too long for the model",
            Self::Refused => "the provider declined the request",
            Self::Billing => "the account has no credit",
            Self::Network(NetworkStage::Dns) => "the host name was not resolved",
            Self::Network(NetworkStage::Tls) => "the TLS connection failed",
            Self::Network(NetworkStage::Connect) => "connecting failed",
            Self::Network(NetworkStage::Transfer) => "the connection broke",
            Self::NetworkForbidden => "network access is forbidden",
            Self::Timeout(TimeoutStage::Connect) => "connecting timed out",
            Self::Timeout(TimeoutStage::FirstByte) => "the answer did not start in time",
            Self::Timeout(TimeoutStage::BetweenEvents) => "the answer stalled",
            Self::Timeout(TimeoutStage::Total) => "the answer timed out",
            Self::Protocol => "the answer is invalid",
            Self::Unsupported => "not supported",
            Self::Configuration => "configuration",
            Self::Script => "script",
            Self::ScriptExpectation => "a script's expectation failed",
            Self::ScriptExhausted => "no turns are left",
            Self::ReplayMismatch => "the request differs from the recorded one",
        }
    }
}

/// The stage of a network error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkStage {
    /// Resolving the host name.
    Dns,
    /// Connecting to an address.
    Connect,
    /// The TLS handshake or the certificate.
    Tls,
    /// Sending the request or reading the answer.
    Transfer,
}

/// The stage of a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TimeoutStage {
    /// Connecting.
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
    /// The reason of the failure.
    pub reason: String,
    /// The HTTP status, if there was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The duration of the attempt.
    pub took: Duration,
    /// The wait after the attempt; zero after the last one.
    pub waited: Duration,
}

/// A setting of a model that an error concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelSetting {
    /// The model's name is invalid.
    Name,
    /// The API key is missing.
    Key,
}

/// Details of an error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorDetails {
    /// The requested model.
    pub model: Option<ModelId>,
    /// The HTTP status, if there was an answer.
    pub status: Option<u16>,
    /// The setting that is missing or invalid, if it is one of these.
    pub setting: Option<ModelSetting>,
    /// The provider's error code, such as `overloaded_error`.
    pub provider_code: Option<String>,
    /// The provider's id of the request, for its support.
    pub request_id: Option<String>,
    /// All attempts; empty if nothing was sent.
    pub attempts: Vec<Attempt>,
}

/// An error of a model. It never contains API keys.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The message of the provider or of this crate, one paragraph.
    pub message: String,
    /// The details.
    pub details: Box<ErrorDetails>,
}

impl ModelError {
    /// An error with a kind and a message.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: Box::default() }
    }

    /// Sets the model.
    #[must_use]
    pub fn with_model(mut self, model: &ModelId) -> Self {
        self.details.model = Some(model.clone());
        self
    }

    /// An error of a model's name.
    pub(crate) fn invalid_name(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Configuration, message).with_setting(ModelSetting::Name)
    }

    /// Sets the setting that the error concerns.
    #[must_use]
    pub(crate) fn with_setting(mut self, setting: ModelSetting) -> Self {
        self.details.setting = Some(setting);
        self
    }

    /// Sets the HTTP status.
    #[must_use]
    pub(crate) fn with_status(mut self, status: u16) -> Self {
        self.details.status = Some(status);
        self
    }

    /// A short description.
    fn phrase(&self) -> &'static str {
        let details = &self.details;
        let was_sent =
            details.status.is_some() || details.provider_code.is_some() || !details.attempts.is_empty();
        match self.kind {
            ErrorKind::InvalidRequest if !was_sent => "the request is invalid",
            ErrorKind::Auth if details.setting == Some(ModelSetting::Key) => "no API key",
            _ => self.kind.phrase(),
        }
    }

    /// The error as text, without its hint.
    pub fn summary(&self) -> String {
        Summary(self).to_string()
    }

    /// The next action, if known.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match &self.kind {
            // The message names the variable.
            ErrorKind::Auth if self.details.setting == Some(ModelSetting::Key) => return None,
            ErrorKind::Auth => "Check that the API key is valid and allowed to use this model.",
            ErrorKind::NotFound => {
                "Check the model's name and the base URL. The provider may have retired the model."
            }
            ErrorKind::RateLimited { .. } => "Wait, lower the concurrency, or name a fallback model.",
            ErrorKind::Overloaded => "Try again later, or name a fallback model.",
            ErrorKind::ContextTooLong => "Shorten the conversation, or use a model with a larger window.",
            ErrorKind::Billing => "Check the account's balance and limits.",
            ErrorKind::Network(NetworkStage::Dns) => "Check the host of the base URL and DNS.",
            ErrorKind::Network(NetworkStage::Connect) => "Check the base URL, the proxy and the firewall.",
            ErrorKind::Network(NetworkStage::Tls) => {
                "Check the base URL's scheme. For a private certificate authority, set `models.ca_file` or SSL_CERT_FILE."
            }
            ErrorKind::Network(NetworkStage::Transfer) => "Try again, or check the proxies in between.",
            ErrorKind::NetworkForbidden => {
                "Unset TOOLPOST_NO_NETWORK, or use `script:FILE` or `replay:FILE`."
            }
            ErrorKind::Timeout(TimeoutStage::Connect) => "Try again, or raise `models.connect_timeout`.",
            ErrorKind::Timeout(TimeoutStage::FirstByte) => "Try again, or raise `models.first_byte_timeout`.",
            ErrorKind::Timeout(TimeoutStage::BetweenEvents) => "Try again, or raise `models.event_timeout`.",
            ErrorKind::Timeout(TimeoutStage::Total) => "Try again, or raise `models.total_timeout`.",
            ErrorKind::Protocol => "Check the base URL, and that no proxy changes answers.",
            ErrorKind::ScriptExpectation => "Compare the tool's result with `expect` in the script.",
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

/// A model's error without its hint.
struct Summary<'a>(&'a ModelError);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelError { kind, message, details } = self.0;
        match &details.model {
            // The message names the file.
            Some(model) if *kind == ErrorKind::Script => f.write_str(&model.provider)?,
            Some(model) => write!(f, "{model}: {}", self.0.phrase())?,
            None => f.write_str(self.0.phrase())?,
        }
        let mut facts = Vec::new();
        if let Some(status) = details.status {
            facts.push(format!("HTTP {status}"));
        }
        if let Some(code) = &details.provider_code {
            facts.push(code.clone());
        }
        if let Some(id) = &details.request_id {
            facts.push(format!("request {id}"));
        }
        if details.attempts.len() > 1 {
            facts.push(format!("{} attempts", details.attempts.len()));
        }
        if !facts.is_empty() {
            write!(f, " ({})", facts.join(", "))?;
        }
        write!(f, ": {message}")
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Summary(self).fmt(f)?;
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
    fn an_error_names_the_model_the_cause_and_the_fix() {
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
