//! When to try again, and when not.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;
use serde::Deserialize;

/// How often and how patiently a request is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The most attempts after the first. Default: 3.
    pub max_retries: u32,
    /// The wait after the first failure; each further one doubles it, less up to a quarter by chance. Default: 1 s.
    pub first_wait: Duration,
    /// The longest wait. A provider that wants a longer one gets no further attempt. Default: 60 s.
    pub max_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max_retries: 3, first_wait: Duration::from_secs(1), max_wait: Duration::from_mins(1) }
    }
}

impl RetryPolicy {
    /// How long to wait after attempt `number` (from 1), or `None` if that was the last.
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

/// 0 to 99, different in every process and call, so that many callers do not come back at once.
fn random_percent() -> u32 {
    (RandomState::new().build_hasher().finish() % 100) as u32
}

/// What a failure says about another attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// The same request would fail again.
    GiveUp,
    /// It may succeed later.
    Retry {
        /// The wait that the provider asks for.
        after: Option<Duration>,
    },
}

/// The longest wait that is taken from a header: a year.
const LONGEST: Duration = Duration::from_hours(365 * 24);

/// What an unsuccessful answer's status and headers say.
pub(crate) fn advice_of(status: u16, headers: &HeaderMap, now: SystemTime) -> Advice {
    let after = retry_after(headers, now);
    let word = headers.get("x-should-retry").and_then(|value| value.to_str().ok());
    match (word, status) {
        (Some("true"), _) | (_, 408 | 409 | 429 | 500..) if word != Some("false") => Advice::Retry { after },
        _ => Advice::GiveUp,
    }
}

/// The wait that `retry-after-ms` or `retry-after` (seconds or a date) asks for.
pub(crate) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    // What is longer than any wait is still a wait.
    let wait = |seconds: f64| Duration::try_from_secs_f64(seconds).map_or(LONGEST, |wait| wait.min(LONGEST));
    if let Some(milliseconds) = text("retry-after-ms").and_then(number) {
        return Some(wait(milliseconds / 1_000.0));
    }
    let text = text("retry-after")?;
    if let Some(seconds) = number(text) {
        return Some(wait(seconds));
    }
    let date = SystemTime::UNIX_EPOCH + Duration::from_secs(http_date(text)?);
    Some(date.duration_since(now).unwrap_or_default())
}

/// The wait that a body asks for: Google's `RetryInfo`, which has no header of its own.
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
    // An unsuccessful stream answers with a list of one.
    let body: Body = if body.trim_start().starts_with('[') {
        serde_json::from_str::<Vec<Body>>(body).ok()?.into_iter().next()?
    } else {
        serde_json::from_str(body).ok()?
    };
    seconds(&body.error.details.into_iter().find_map(|detail| detail.retry_delay)?)
}

/// A duration as Google writes it: `34.4s`.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.trim().strip_suffix('s')?.parse().ok()?).ok()
}

/// Seconds since 1970 of a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<u64> {
    let mut words = text.split_once(", ")?.1.split(' ');
    let day: u64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|name| *name == month)? as u64 + 1;
    let year: u64 = words.next()?.parse().ok().filter(|year| (1970..=9999).contains(year))?;
    let mut clock = words.next()?.split(':').map(|part| part.parse::<u64>().ok().filter(|part| *part < 61));
    let (hours, minutes, seconds) = (clock.next()??, clock.next()??, clock.next()??);
    if words.next() != Some("GMT") || !(1..=31).contains(&day) || hours > 23 {
        return None;
    }
    // Days since 1970 by the civil calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hours * 3_600 + minutes * 60 + seconds)
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
    fn dates_count_from_1970() {
        assert_eq!(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(http_date("Thu, 29 Feb 2024 23:59:60 GMT"), Some(1_709_251_200));
        assert_eq!(http_date("Sunday, 06-Nov-94 08:49:37 GMT"), None);
        assert_eq!(http_date("soon"), None);
    }

    #[test]
    fn the_wait_is_what_the_provider_asks_for() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
        let after = |pairs: &[_]| retry_after(&headers(pairs), now);
        assert_eq!(after(&[("retry-after", "2")]), Some(Duration::from_secs(2)));
        assert_eq!(after(&[("retry-after", "0.5")]), Some(Duration::from_millis(500)));
        assert_eq!(after(&[("retry-after", "9"), ("retry-after-ms", "70")]), Some(Duration::from_millis(70)));
        assert_eq!(after(&[("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")]), Some(Duration::from_secs(30)));
        assert_eq!(after(&[("retry-after", "Sun, 06 Nov 1993 08:49:37 GMT")]), Some(Duration::ZERO));
        assert_eq!(after(&[("retry-after", "999999999999999999999")]), Some(LONGEST));
        assert_eq!(after(&[("retry-after-ms", "1e300")]), Some(LONGEST));
        for nonsense in ["-1", "NaN", "tomorrow"] {
            assert_eq!(after(&[("retry-after", nonsense)]), None, "{nonsense}");
        }
    }

    #[test]
    fn a_body_may_say_how_long_to_wait() {
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
    fn the_header_overrules_the_status() {
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
    fn the_policy_decides_how_long_and_how_often() {
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
    fn waits_grow_up_to_a_limit_and_end() {
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
