//! What a tool asks for and an operator allows: time, retries, places, permission.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Code, StateConflict, did_you_mean, duration};

/// How long one attempt may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Timeout {
    /// At most this long.
    After(#[serde(with = "duration::text")] Duration),
    /// As long as it takes: the call's deadline and budgets rule.
    Never,
}

/// Whether and how a failed attempt is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// How many further attempts are made. 0 switches retries off.
    pub attempts: u32,
    /// The wait before the first of them; it doubles each time.
    #[serde(with = "duration::text")]
    pub initial: Duration,
    /// The longest wait.
    #[serde(with = "duration::text")]
    pub maximum: Duration,
    /// The codes that are worth another attempt, when the error itself does not say.
    pub on: Vec<Code>,
}

impl Default for Retry {
    /// What idempotent tools get: 2 more attempts, 100 ms to 2 s, on `DEPENDENCY`, `TIMEOUT` and `OVERLOADED`.
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
    /// No further attempts.
    pub fn none() -> Self {
        Self { attempts: 0, ..Self::default() }
    }
}

/// At most so many calls in any stretch of time of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// How many calls.
    pub calls: u32,
    /// In how long.
    #[serde(with = "duration::text")]
    pub per: Duration,
}

impl FromStr for Rate {
    type Err = String;

    /// Reads `10/s`, `100/m`, `5/30s`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a rate: expected calls and a time, such as 10/s or 100/m");
        let (calls, per) = text.split_once('/').ok_or_else(wrong)?;
        let per =
            if per.starts_with(|c: char| c.is_ascii_digit()) { per.to_owned() } else { format!("1{per}") };
        let per = crate::parse_duration(&per).map_err(|_| wrong())?;
        let calls = calls.trim().parse().map_err(|_| wrong())?;
        if calls == 0 || per.is_zero() { Err(wrong()) } else { Ok(Self { calls, per }) }
    }
}

/// Where a tool's code runs, and with it what a timeout can promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Placement {
    /// On the caller's async task: it stops at its next await, and must not block.
    #[default]
    Inline,
    /// On a thread for blocking work: it is asked to stop and given half a second for it. Until the thread ends its
    /// permit stays held, the caller is told `TIMEOUT` with `still_running`, and whatever the late attempt answers is
    /// thrown away.
    Blocking,
    /// In another process of the same program: when its time is over it is dead, with everything that it started, before
    /// its caller is told, and whatever kills it costs one call. The toolbox needs a [`Runner`](crate::Runner).
    #[serde(alias = "cpu_bound")]
    Worker,
}

/// Whether a call may be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// Yes.
    #[default]
    Allow,
    /// Somebody is asked each time.
    Ask,
    /// No.
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
                "`{text}` is not an approval: expected allow, ask or deny. {}",
                did_you_mean(text, ["allow", "ask", "deny"]).unwrap_or_default()
            )),
        }
    }
}

/// What a tool declares about its calls. `None` means the toolbox's default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Policy {
    /// How long one attempt may run. Default: 60 s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,
    /// Further attempts. Default: none; [`Retry::default`] for tools that are idempotent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// How many calls of this tool run at once. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// How often it may be called. Default: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// How long a success is kept for the same caller and arguments. Default: not at all. Only for idempotent tools.
    #[serde(skip_serializing_if = "Option::is_none", with = "duration::optional_text")]
    pub cache: Option<Duration>,
    /// Where it runs.
    pub placement: Placement,
    /// The memory of its worker process with everything that it starts, in bytes. Default: 1 GiB. Only for the placement
    /// [`Placement::Worker`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Whether it may be called. Default: allow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// How many bytes of text a model gets. Default: 64 KiB, head and tail kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<usize>,
    /// What happens when somebody else has changed the state that it saw. Default: it runs again, up to 16 times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<StateConflict>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_as_people_write_them() {
        assert_eq!("10/s".parse(), Ok(Rate { calls: 10, per: Duration::from_secs(1) }));
        assert_eq!("5/30s".parse(), Ok(Rate { calls: 5, per: Duration::from_secs(30) }));
        for text in ["", "10", "0/s", "x/s", "10/0s", "10/fortnight"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_policy_reads_back_as_written() {
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
