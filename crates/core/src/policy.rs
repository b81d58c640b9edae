//! Policies of tools: timeouts, retries, placement, approval.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Code, StateConflict, did_you_mean, duration};

/// Timeout of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timeout {
    /// At most this duration.
    After(#[serde(with = "duration::text")] Duration),
    /// No timeout: only the call's deadline and budgets apply.
    Never,
}

/// Retries of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Number of retries. 0 disables retries.
    pub attempts: u32,
    /// Wait before the first retry; it doubles each time.
    #[serde(with = "duration::text")]
    pub initial: Duration,
    /// Maximum wait.
    #[serde(with = "duration::text")]
    pub maximum: Duration,
    /// Codes to retry, if the error has no retry advice of its own.
    pub on: Vec<Code>,
}

impl Default for Retry {
    /// The default for idempotent tools: 2 retries, 100 ms to 2 s, on `DEPENDENCY`, `TIMEOUT` and `OVERLOADED`.
    fn default() -> Self {
        Self {
            attempts: 2,
            initial: Duration::from_millis(100),
            maximum: Duration::from_secs(2),
            on: vec![Code::Dependency, Code::Timeout, Code::Overloaded],
        }
    }
}

impl Retry {
    /// No retries.
    pub fn none() -> Self {
        Self { attempts: 0, ..Self::default() }
    }
}

/// A rate limit: at most `calls` in any period of length `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Number of calls.
    pub calls: u32,
    /// Length of the period.
    #[serde(with = "duration::text")]
    pub per: Duration,
}

impl FromStr for Rate {
    type Err = String;

    /// Parses `10/s`, `100/m`, `5/30s`.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("`{text}` is not a rate; write calls and a period, such as 10/s or 100/m");
        let (calls, per) = text.split_once('/').ok_or_else(invalid)?;
        let per =
            if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
        let per = crate::parse_duration(&per).map_err(|_| invalid())?;
        let calls = calls.trim().parse().map_err(|_| invalid())?;
        if calls == 0 || per.is_zero() { Err(invalid()) } else { Ok(Self { calls, per }) }
    }
}

/// Where a tool's code runs, which determines what a timeout can stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Placement {
    /// On the caller's async task. A timeout stops the tool at its next await. The tool must not block.
    #[default]
    Inline,
    /// On a thread for blocking work. After a timeout the thread gets half a second to stop, then the caller gets
    /// `TIMEOUT` with `still_running`. The thread holds its permit until it ends, and its result is discarded.
    Blocking,
    /// In another process of the same program. A timeout kills the process and its children before the caller gets the
    /// error, and a crash costs one call. The toolbox needs a [`Runner`](crate::Runner).
    #[serde(alias = "cpu_bound")]
    Worker,
}

/// Whether a call needs approval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Allowed.
    #[default]
    Allow,
    /// Each call needs approval.
    Ask,
    /// Denied.
    Deny,
}

impl FromStr for Approval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "allow" => Ok(Self::Allow),
            "ask" => Ok(Self::Ask),
            "deny" => Ok(Self::Deny),
            _ => Err(format!(
                "`{text}` is not an approval; expected allow, ask or deny. {}",
                did_you_mean(text, ["allow", "ask", "deny"]).unwrap_or_default()
            )),
        }
    }
}

/// The policy that a tool declares. `None` means the toolbox's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Policy {
    /// Timeout of one attempt. Default: 60 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
    /// Retries. Default: none; [`Retry::default`] for idempotent tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Maximum number of concurrent calls. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Rate limit. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Lifetime of a cached success for the same caller and arguments. Default: no cache. Only for idempotent tools.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::optional_text")]
    pub cache: Option<Duration>,
    /// Where the tool runs.
    pub placement: Placement,
    /// Memory of the worker process and its children, in bytes. Default: 1 GiB. Only for [`Placement::Worker`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Approval. Default: allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// Maximum bytes of text for a model. Default: 64 KiB, with the middle truncated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<usize>,
    /// The policy for state conflicts. Default: up to 16 retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<StateConflict>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_parse() {
        assert_eq!("10/s".parse(), Ok(Rate { calls: 10, per: Duration::from_secs(1) }));
        assert_eq!("5/30s".parse(), Ok(Rate { calls: 5, per: Duration::from_secs(30) }));
        for text in ["", "10", "0/s", "x/s", "10/0s", "10/fortnight"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_policy_round_trips() {
        let policy = Policy {
            timeout: Some(Timeout::After(Duration::from_millis(1500))),
            retry: Some(Retry::default()),
            cache: Some(Duration::from_mins(5)),
            ..Policy::default()
        };
        let text = serde_json::to_string(&policy).unwrap();
        assert!(text.contains(r#""cache":"300s""#) && text.contains(r#""1500ms""#), "{text}");
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), policy);
    }
}
