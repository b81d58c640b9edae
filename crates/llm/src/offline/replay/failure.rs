//! Serializes errors for recordings.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{Attempt, ErrorKind, ModelError, ModelId};

/// The serialized form of a model's error.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failure {
    /// The kind's stable name.
    kind: String,
    /// The stage of a network error or timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stage: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    model: Option<ModelId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    provider_code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attempts: Vec<Attempt>,
}

impl From<&ModelError> for Failure {
    fn from(error: &ModelError) -> Self {
        let stage = match &error.kind {
            ErrorKind::Network(stage) => serde_json::to_value(stage).ok(),
            ErrorKind::Timeout(stage) => serde_json::to_value(stage).ok(),
            _ => None,
        };
        let retry_after_ms = match &error.kind {
            ErrorKind::RateLimited { retry_after: Some(wait) } => {
                Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
            }
            _ => None,
        };
        let details = &error.details;
        Self {
            kind: error.kind.as_str().to_owned(),
            stage,
            retry_after_ms,
            message: error.message.clone(),
            model: details.model.clone(),
            status: details.status,
            provider_code: details.provider_code.clone(),
            request_id: details.request_id.clone(),
            attempts: details.attempts.clone(),
        }
    }
}

impl Failure {
    /// Restores the error. An unknown kind becomes a protocol error.
    fn into_error(self) -> ModelError {
        let mut error = ModelError::new(self.kind(), self.message);
        error.details.model = self.model;
        error.details.status = self.status;
        error.details.provider_code = self.provider_code;
        error.details.request_id = self.request_id;
        error.details.attempts = self.attempts;
        error
    }

    fn kind(&self) -> ErrorKind {
        let stage = self.stage.clone().unwrap_or_default();
        let kind = match self.kind.as_str() {
            "network" => serde_json::from_value(stage).ok().map(ErrorKind::Network),
            "timeout" => serde_json::from_value(stage).ok().map(ErrorKind::Timeout),
            "rate_limited" => {
                let retry_after = self.retry_after_ms.map(Duration::from_millis);
                Some(ErrorKind::RateLimited { retry_after })
            }
            name => KINDS.iter().find(|kind| kind.as_str() == name).cloned(),
        };
        kind.unwrap_or(ErrorKind::Protocol)
    }
}

/// The kinds without data.
const KINDS: [ErrorKind; 14] = [
    ErrorKind::Auth,
    ErrorKind::NotFound,
    ErrorKind::Overloaded,
    ErrorKind::InvalidRequest,
    ErrorKind::ContextTooLong,
    ErrorKind::Refused,
    ErrorKind::Billing,
    ErrorKind::NetworkForbidden,
    ErrorKind::Unsupported,
    ErrorKind::Configuration,
    ErrorKind::Script,
    ErrorKind::ScriptExpectation,
    ErrorKind::ScriptExhausted,
    ErrorKind::ReplayMismatch,
];

/// The format of recordings: `kind` is the stable name of the kind.
impl Serialize for ModelError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Failure::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ModelError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Failure::deserialize(deserializer).map(Failure::into_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NetworkStage, TimeoutStage};

    #[test]
    fn an_error_survives_serialization() {
        let wait = Some(Duration::from_millis(1500));
        for kind in [
            ErrorKind::Auth,
            ErrorKind::RateLimited { retry_after: wait },
            ErrorKind::RateLimited { retry_after: None },
            ErrorKind::Network(NetworkStage::Tls),
            ErrorKind::Timeout(TimeoutStage::BetweenEvents),
            ErrorKind::Timeout(TimeoutStage::Connect),
            ErrorKind::Network(NetworkStage::Connect),
            ErrorKind::Protocol,
            ErrorKind::Billing,
        ] {
            let mut error =
                ModelError::new(kind, "words").with_model(&ModelId::new("a", "b")).with_status(429);
            error.details.request_id = Some("req".into());
            error.details.attempts = vec![Attempt {
                number: 1,
                reason: "busy".into(),
                status: Some(429),
                took: Duration::from_millis(3),
                waited: Duration::ZERO,
            }];
            let text = serde_json::to_string(&error).unwrap();
            assert_eq!(serde_json::from_str::<ModelError>(&text).unwrap(), error);
        }
    }
}
