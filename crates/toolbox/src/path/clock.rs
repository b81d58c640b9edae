//! The clock of deadlines: the runtime's, so that tests can pause it.

use std::time::Instant;

pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Sleeps until the deadline; forever without one.
pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
