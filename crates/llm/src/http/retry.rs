//! When to retry a request.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;
use serde::Deserialize;

/// The number of retries of a request, and the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Maximum number of retries after the first attempt. Default: 3.
    pub max_retries: u32,
    /// The wait after the first failure. It doubles with each failure, minus a random part of up to a quarter.
    /// Default: 1 s.
    pub first_wait: Duration,
    /// Maximum wait. A provider that asks for a longer one is not retried. Default: 60 s.
    pub max_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_retries: 3, first_wait: Duration::from_secs(1), max_wait: Duration::from_mins(1) }
    }
}

impl RetryPolicy {
    /// The wait after attempt `number` (from 1); `None` if it was the last.
    pub(crate) fn wait(&self, number: u32, advice: &Advice) -> Option<Duration> {
        if number > self.max_retries {
            return None;
        }
        match advice {
            Advice::GiveUp => None,
            Advice::Retry { after: Some(after) } => (*after <= self.max_wait).then_some(*after),
            Advice::Retry { after: None } => {
                let doubled =
                    self.first_wait.saturating_mul(1_u32.checked_shl(number - 1).unwrap_or(u32::MAX));
                let longest = doubled.min(self.max_wait);
                Some(longest.saturating_sub(longest / 4 * random_percent() / 100))
            }
        }
    }
}

/// A random number from 0 to 99, so that callers do not retry at the same time.
fn random_percent() -> u32 {
    (RandomState::new().build_hasher().finish() % 100) as u32
}

/// Whether to retry after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// A retry would fail again.
    GiveUp,
    /// A retry may succeed.
    Retry {
        /// The wait that the provider requests.
        after: Option<Duration>,
    },
}

/// Maximum wait that is read from a header.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(365 * 24);

/// The advice of an unsuccessful answer's status and headers.
pub(crate) fn advice_of(status: u16, headers: &HeaderMap, now: SystemTime) -> Advice {
    let after = retry_after(headers, now);
    let word = headers.get("x-should-retry").and_then(|value| value.to_str().ok());
    match (word, status) {
        (Some("true"), _) | (_, 408 | 409 | 429 | 500..) if word != Some("false") => Advice::Retry { after },
        _ => Advice::GiveUp,
    }
}

/// The wait in `retry-after-ms` or `retry-after` (seconds or a date).
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let wait = |seconds: f64| {
        Duration::try_from_secs_f64(seconds).map_or(MAX_RETRY_AFTER, |wait| wait.min(MAX_RETRY_AFTER))
    };
    if let Some(milliseconds) = text("retry-after-ms").and_then(number) {
        return Some(wait(milliseconds / 1_000.0));
    }
    let text = text("retry-after")?;
    if let Some(seconds) = number(text) {
        return Some(wait(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The wait in a body: Google's `RetryInfo`, which has no header.
pub(crate) fn retry_delay(body: &str) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Body {
        error: Details,
    }
    #[derive(Deserialize)]
    struct Details {
        #[serde(default)]
        details: Vec<Detail>,
    }
    #[derive(Deserialize)]
    struct Detail {
        #[serde(default, rename = "retryDelay")]
        retry_delay: Option<String>,
    }
    // A failed stream answers with a list of one error.
    let body: Body = if body.trim_start().starts_with('[') {
        serde_json::from_str::<Vec<Body>>(body).ok()?.into_iter().next()?
    } else {
        serde_json::from_str(body).ok()?
    };
    parse_duration(&body.error.details.into_iter().find_map(|detail| detail.retry_delay)?)
}

/// Parses Google's format of a duration: `34.4s`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().strip_suffix('s')?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn headers_set_the_wait() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
        let after = |pairs: &[_]| retry_after(&headers(pairs), now);
        assert_eq!(after(&[("retry-after", "2")]), Some(Duration::from_secs(2)));
        assert_eq!(after(&[("retry-after", "0.5")]), Some(Duration::from_millis(500)));
        assert_eq!(after(&[("retry-after", "9"), ("retry-after-ms", "70")]), Some(Duration::from_millis(70)));
        assert_eq!(after(&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]), Some(Duration::from_secs(30)));
        assert_eq!(after(&[("retry-after", "Sat, 06 Nov 1993 08:49:37 GMT")]), Some(Duration::ZERO));
        assert_eq!(after(&[("retry-after", "999999999999999999999")]), Some(MAX_RETRY_AFTER));
        assert_eq!(after(&[("retry-after-ms", "1e300")]), Some(MAX_RETRY_AFTER));
        for nonsense in ["-1", "NaN", "tomorrow"] {
            assert_eq!(after(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn a_body_may_set_the_wait() {
        let body = |delay: &str| {
            format!(
                r#"{{"error":{{"code":429,"details":[{{"@type":"type.googleapis.com/google.rpc.Help"}},
                {{"@type":"type.googleapis.com/google.rpc.RetryInfo","retryDelay":"{delay}"}}]}}}}"#
            )
        };
        assert_eq!(retry_delay(&body("36s")), Some(Duration::from_secs(36)));
        assert_eq!(retry_delay(&format!("[{}]", body("0.25s"))), Some(Duration::from_millis(250)));
        for nonsense in ["", "36", "-1s", "NaNs", "1e300s", "soon"] {
            assert_eq!(retry_delay(&body(nonsense)), None, "{nonsense}");
        }
        for other in ["", "{}", "[]", r#"{"error":"x"}"#, r#"{"error":{"details":{}}}"#] {
            assert_eq!(retry_delay(other), None, "{other}");
        }
    }

    #[test]
    fn the_header_overrides_the_status() {
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!(advice_of(529, &headers(&[]), now), Advice::Retry { after: None });
        assert_eq!(advice_of(400, &headers(&[]), now), Advice::GiveUp);
        assert_eq!(
            advice_of(400, &headers(&[("x-should-retry", "true")]), now),
            Advice::Retry { after: None }
        );
        assert_eq!(advice_of(529, &headers(&[("x-should-retry", "false")]), now), Advice::GiveUp);
    }

    #[test]
    fn the_policy_limits_waits_and_retries() {
        let none = Advice::Retry { after: None };
        let asked = |seconds: u64| Advice::Retry { after: Some(Duration::from_secs(seconds)) };
        let policy = RetryPolicy {
            max_retries: 5,
            first_wait: Duration::from_millis(300),
            max_wait: Duration::from_secs(2),
        };
        for (number, longest) in [(1, 300), (2, 600), (3, 1_200), (4, 2_000), (5, 2_000)] {
            let wait = policy.wait(number, &none).unwrap().as_millis();
            assert!((longest * 3 / 4..=longest).contains(&wait), "{number}: {wait}");
        }
        assert_eq!(policy.wait(6, &none), None);
        assert_eq!(policy.wait(1, &asked(2)), Some(Duration::from_secs(2)));
        assert_eq!(policy.wait(1, &asked(3)), None);
        let patient = RetryPolicy { max_wait: Duration::from_mins(2), ..policy };
        assert_eq!(patient.wait(1, &asked(90)), Some(Duration::from_secs(90)));
    }

    #[test]
    fn waits_double_up_to_the_maximum() {
        let policy = RetryPolicy { max_retries: 40, ..RetryPolicy::default() };
        let none = Advice::Retry { after: None };
        for (number, longest) in [(1, 1_000), (2, 2_000), (3, 4_000), (9, 60_000), (40, 60_000)] {
            let wait = policy.wait(number, &none).unwrap().as_millis();
            assert!((longest * 3 / 4..=longest).contains(&wait), "{number}: {wait}");
        }
        assert_eq!(policy.wait(41, &none), None);
        assert_eq!(policy.wait(1, &Advice::Retry { after: Some(Duration::from_secs(61)) }), None);
        assert_eq!(policy.wait(1, &Advice::GiveUp), None);
    }
}
