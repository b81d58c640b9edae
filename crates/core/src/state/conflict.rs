//! Conflicts between writers of a document.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;

/// The reaction to a state conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Retries the tool on the latest version, even if it is not idempotent. Its `#[state]` changes are discarded, and
    /// questions get their recorded answers. Other effects are repeated: [`Ctx::state`](crate::Ctx::state) changes a
    /// document twice, and [`Ctx::mint`](crate::Ctx::mint) creates a second handle.
    #[default]
    Retry,
    /// The call fails with `CONFLICT`.
    Error,
    /// Merges both values with [`Tool::merge_state`](crate::Tool::merge_state).
    Merge,
}

/// The policy for state conflicts: another writer changed the part of a document that the tool read.
///
/// A change elsewhere in the document is not a conflict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StateConflict {
    /// The reaction.
    pub action: OnConflict,
    /// Maximum number of retries or merges per call. Default: 16.
    pub max_retries: u32,
    /// Wait before the first retry; it doubles each time. Default: 5 ms.
    #[serde(with = "duration::text")]
    pub initial: Duration,
    /// Maximum wait. Default: 250 ms.
    #[serde(with = "duration::text")]
    pub maximum: Duration,
}

impl Default for StateConflict {
    fn default() -> Self {
        Self {
            action: OnConflict::Retry,
            max_retries: 16,
            initial: Duration::from_millis(5),
            maximum: Duration::from_millis(250),
        }
    }
}

impl StateConflict {
    /// The wait after this many conflicts, from 1, with jitter between 50 and 100 %.
    pub fn delay(&self, conflicts: u32, random: u64) -> Duration {
        let doublings = conflicts.saturating_sub(1).min(31);
        let whole = self.initial.saturating_mul(1 << doublings).min(self.maximum);
        (whole / 2).saturating_add((whole / 2048).saturating_mul((random % 1025) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_the_maximum_with_jitter() {
        let policy = StateConflict::default();
        let most = |conflicts| policy.delay(conflicts, 1024).as_micros();
        let least = |conflicts| policy.delay(conflicts, 0).as_micros();
        for (conflicts, expected) in
            [(1, 5_000), (2, 10_000), (3, 20_000), (6, 160_000), (7, 250_000), (99, 250_000)]
        {
            assert!(most(conflicts).abs_diff(expected) < 200, "{}", most(conflicts));
            assert_eq!(least(conflicts), expected / 2);
        }
        let policy =
            StateConflict { initial: Duration::from_secs(2), maximum: Duration::from_secs(3), ..policy };
        assert_eq!(policy.delay(1, 0), Duration::from_secs(1));
        assert_eq!(policy.delay(2, 0), Duration::from_millis(1500));
    }

    #[test]
    fn a_conflict_policy_round_trips() {
        let text = r#"{"action":"merge","max_retries":3,"initial":"1ms","maximum":"2s"}"#;
        let policy: StateConflict = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&policy).unwrap(), text);
        assert_eq!(serde_json::from_str::<StateConflict>("{}").unwrap(), StateConflict::default());
    }
}
