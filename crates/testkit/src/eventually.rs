//! Waiting for a condition that nothing signals.

use std::time::Duration;

/// The time that a condition may take, also on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(30);
/// The interval of checks.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a condition holds. `what` describes the condition.
///
/// # Panics
/// After 30 s without success.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !condition().await {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    let holds = tokio::time::timeout(DEADLINE, waiting).await.is_ok();
    assert!(holds, "never true: {what}");
}
