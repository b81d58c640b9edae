//! Decodes the errors of `GenerateContent`: a `google.rpc.Status` under `error`.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::fields::Members;
use crate::http::retry::parse_duration;
use crate::wires::failure::{Kinds, error, error_of_page, kind_of_code, kind_of_message, kind_of_status};
use crate::{ErrorKind, ModelError};

/// Decodes the error of an unsuccessful answer.
pub(in crate::wires) fn read_error(status: u16, text: &str) -> ModelError {
    error_in(Some(status), text).unwrap_or_else(|| error_of_page(status, text))
}

/// Decodes an error, alone or first in a list; `None` if the body is not an error.
pub(super) fn error_in(status: Option<u16>, text: &str) -> Option<ModelError> {
    #[derive(Deserialize)]
    struct Body<'a> {
        #[serde(borrow)]
        error: &'a RawValue,
    }
    let body = if text.trim_start().starts_with('[') {
        serde_json::from_str::<Vec<Body<'_>>>(text).ok()?.into_iter().next()?
    } else {
        serde_json::from_str::<Body<'_>>(text).ok()?
    };
    Some(error_of(status, body.error))
}

/// Converts the member `error`, with the status if there is one.
pub(super) fn error_of(status: Option<u16>, raw: &RawValue) -> ModelError {
    // A gateway may send a text instead of an object.
    let text = serde_json::from_str::<String>(raw.get()).ok();
    let body: Members<'_> = serde_json::from_str(raw.get()).unwrap_or_default();
    let code = body.read::<u16>("code");
    let name: String = body.read("status").unwrap_or_default();
    let mut message = text.or_else(|| body.read("message")).unwrap_or_default();
    let details: Vec<Members<'_>> = body.read("details").unwrap_or_default();
    let retry_after = details.iter().find_map(|detail| parse_duration(&detail.read::<String>("retryDelay")?));
    let quota = details
        .iter()
        .flat_map(|detail| detail.read::<Vec<Members<'_>>>("violations").unwrap_or_default())
        .find_map(|violation| violation.read::<String>("quotaId"));
    let reason = details.iter().find_map(|detail| detail.read::<String>("reason"));
    let kind = kind_of_name(&name, reason.as_deref().unwrap_or_default(), &message, retry_after)
        .or_else(|| status.or(code).map(kind_of_status))
        .unwrap_or(ErrorKind::Protocol);
    if message.is_empty() {
        "the provider gave no reason".clone_into(&mut message);
    }
    if let Some(quota) = quota.filter(|quota| !message.contains(quota.as_str())) {
        message = format!("{} (quota `{quota}`)", message.trim_end());
    }
    error(kind, status, &message, &name)
}

/// Invalid arguments of other kinds.
const INVALID_ARGUMENTS: Kinds = &[
    (ErrorKind::Auth, &["api key not valid", "api key expired"]),
    (
        ErrorKind::ContextTooLong,
        &["input token count", "exceeds the maximum number of tokens", "context window"],
    ),
];

/// Errors of the project's account.
const ACCOUNT: Kinds =
    &[(ErrorKind::Billing, &["enable billing", "billing account", "credits are depleted", "prepayment"])];

fn kind_of_name(name: &str, reason: &str, message: &str, retry_after: Option<Duration>) -> Option<ErrorKind> {
    let other = match name {
        "INVALID_ARGUMENT" if reason.starts_with("API_KEY_") => Some(ErrorKind::Auth),
        "INVALID_ARGUMENT" => kind_of_message(message, INVALID_ARGUMENTS),
        "FAILED_PRECONDITION" | "PERMISSION_DENIED" | "RESOURCE_EXHAUSTED" => {
            kind_of_message(message, ACCOUNT)
        }
        _ => None,
    };
    other.or_else(|| match name {
        "INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "OUT_OF_RANGE" | "ALREADY_EXISTS" | "UNIMPLEMENTED" => {
            Some(ErrorKind::InvalidRequest)
        }
        "RESOURCE_EXHAUSTED" => Some(ErrorKind::RateLimited { retry_after }),
        "INTERNAL" | "DEADLINE_EXCEEDED" | "ABORTED" | "CANCELLED" | "UNKNOWN" | "DATA_LOSS" => {
            Some(ErrorKind::Overloaded)
        }
        name => kind_of_code(name),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_come_from_the_name_and_then_from_the_status() {
        let kind = |status: u16, name: &str, message: &str| {
            read_error(
                status,
                &json!({"error": {"code": status, "status": name, "message": message}}).to_string(),
            )
            .kind
        };
        for (status, name, message, expected) in [
            (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", ErrorKind::Auth),
            (
                400,
                "INVALID_ARGUMENT",
                "The input token count (9) exceeds the maximum",
                ErrorKind::ContextTooLong,
            ),
            (400, "INVALID_ARGUMENT", "unknown field", ErrorKind::InvalidRequest),
            (400, "FAILED_PRECONDITION", "Please enable billing on your project", ErrorKind::Billing),
            (403, "PERMISSION_DENIED", "no", ErrorKind::Auth),
            (404, "NOT_FOUND", "no", ErrorKind::NotFound),
            (429, "RESOURCE_EXHAUSTED", "slow down", ErrorKind::RateLimited { retry_after: None }),
            (503, "UNAVAILABLE", "overloaded", ErrorKind::Overloaded),
            (500, "BRAND_NEW", "x", ErrorKind::Overloaded),
            (418, "BRAND_NEW", "x", ErrorKind::InvalidRequest),
        ] {
            assert_eq!(kind(status, name, message), expected, "{name} {message}");
        }
    }

    #[test]
    fn details_name_the_wait_and_the_quota() {
        let status = json!({"error": {"code": 429, "message": "Too many.", "status": "RESOURCE_EXHAUSTED", "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute"}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.4s"},
        ]}});
        for text in [status.to_string(), json!([status]).to_string()] {
            let error = read_error(429, &text);
            assert_eq!(
                error.kind,
                ErrorKind::RateLimited { retry_after: Some(Duration::from_millis(34_400)) }
            );
            assert_eq!(error.message, "Too many. (quota `PerMinute`)");
            assert_eq!(error.details.provider_code.as_deref(), Some("RESOURCE_EXHAUSTED"));
        }
        for nonsense in ["-1s", "NaNs", "1e300s", "34", ""] {
            assert_eq!(parse_duration(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_text_is_an_error_too() {
        assert_eq!(read_error(400, r#"{"error":"no"}"#).message, "no");
    }
}
