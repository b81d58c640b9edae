//! A clock that stands still.

use std::time::Instant;

use toolpost_core::{Clock, Timestamp};

/// A clock whose time of day is always the same, so that records can be compared whole.
#[derive(Debug)]
pub struct FixedClock {
    instant: Instant,
    timestamp: Timestamp,
}

impl FixedClock {
    /// Stands at this time.
    pub fn new(timestamp: Timestamp) -> Self {
        Self { instant: Instant::now(), timestamp }
    }
}

impl Clock for FixedClock {
    fn instant(&self) -> Instant {
        self.instant
    }

    fn timestamp(&self) -> Timestamp {
        self.timestamp
    }
}
