//! The limits of a run's proxy.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The limits of a run's proxy. None may be zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct EgressLimits {
    /// Concurrent connections of the program to the proxy. Default 64; further ones wait.
    pub connections_at_once: u32,
    /// Total connections of the program to the proxy. Default 10,000; further ones are rejected.
    pub connections: u64,
    /// Total requests: HTTP requests, tunnels and SOCKS connections, denied ones included. Default 10,000.
    pub requests: u64,
    /// Average requests per second; further ones wait. Default none.
    pub requests_per_second: Option<u32>,
    /// Bytes sent, headers included. Default 256 MiB.
    pub bytes_up: u64,
    /// Bytes received, headers included. Default 1 GiB.
    pub bytes_down: u64,
    /// Average bytes per second in both directions; more wait. Default none.
    pub bytes_per_second: Option<u64>,
    /// Milliseconds for resolving a name, and again for connecting. Default 10,000.
    pub connect_timeout_ms: u64,
    /// Milliseconds for a complete request head or TLS hello. Default 10,000.
    pub head_timeout_ms: u64,
    /// Idle milliseconds before a connection is closed. Default 60,000.
    pub idle_timeout_ms: u64,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            connections_at_once: 64,
            connections: 10_000,
            requests: 10_000,
            requests_per_second: None,
            bytes_up: 256 << 20,
            bytes_down: 1 << 30,
            bytes_per_second: None,
            connect_timeout_ms: 10_000,
            head_timeout_ms: 10_000,
            idle_timeout_ms: 60_000,
        }
    }
}

/// The maximum number of threads of a run.
const MAX_CONCURRENT: u64 = 1024;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

impl EgressLimits {
    /// Sets [`EgressLimits::connections_at_once`].
    #[must_use]
    pub fn with_connections_at_once(mut self, connections: u32) -> Self {
        self.connections_at_once = connections;
        self
    }

    /// Sets [`EgressLimits::connections`].
    #[must_use]
    pub fn with_connections(mut self, connections: u64) -> Self {
        self.connections = connections;
        self
    }

    /// Sets [`EgressLimits::requests`].
    #[must_use]
    pub fn with_requests(mut self, requests: u64) -> Self {
        self.requests = requests;
        self
    }

    /// Sets [`EgressLimits::requests_per_second`].
    #[must_use]
    pub fn with_requests_per_second(mut self, requests: u32) -> Self {
        self.requests_per_second = Some(requests);
        self
    }

    /// Sets [`EgressLimits::bytes_up`].
    #[must_use]
    pub fn with_bytes_up(mut self, bytes: u64) -> Self {
        self.bytes_up = bytes;
        self
    }

    /// Sets [`EgressLimits::bytes_down`].
    #[must_use]
    pub fn with_bytes_down(mut self, bytes: u64) -> Self {
        self.bytes_down = bytes;
        self
    }

    /// Sets [`EgressLimits::bytes_per_second`].
    #[must_use]
    pub fn with_bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = Some(bytes);
        self
    }

    /// Sets [`EgressLimits::connect_timeout_ms`].
    #[must_use]
    pub fn with_connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout_ms = millis(time);
        self
    }

    /// Sets [`EgressLimits::head_timeout_ms`].
    #[must_use]
    pub fn with_head_timeout(mut self, time: Duration) -> Self {
        self.head_timeout_ms = millis(time);
        self
    }

    /// Sets [`EgressLimits::idle_timeout_ms`].
    #[must_use]
    pub fn with_idle_timeout(mut self, time: Duration) -> Self {
        self.idle_timeout_ms = millis(time);
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let within = |name: &'static str, value: u64, most: u64| {
            if (1..=most).contains(&value) {
                return Ok(());
            }
            let expected =
                if most == u64::MAX { "at least 1".to_owned() } else { format!("from 1 to {most}") };
            Err(Error::InvalidLimit { name, value: value.to_string(), expected })
        };
        within("egress.connections_at_once", self.connections_at_once.into(), MAX_CONCURRENT)?;
        within("egress.connections", self.connections, u64::MAX)?;
        within("egress.requests", self.requests, u64::MAX)?;
        within("egress.requests_per_second", self.requests_per_second.unwrap_or(1).into(), u64::MAX)?;
        within("egress.bytes_up", self.bytes_up, u64::MAX)?;
        within("egress.bytes_down", self.bytes_down, u64::MAX)?;
        within("egress.bytes_per_second", self.bytes_per_second.unwrap_or(1), u64::MAX)?;
        within("egress.connect_timeout_ms", self.connect_timeout_ms, DAY_MS)?;
        within("egress.head_timeout_ms", self.head_timeout_ms, DAY_MS)?;
        within("egress.idle_timeout_ms", self.idle_timeout_ms, DAY_MS)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_limits_are_rejected_by_name() {
        let none = Duration::ZERO;
        let rows = [
            (EgressLimits::default().with_connections_at_once(0), "connections_at_once"),
            (EgressLimits::default().with_connections_at_once(1025), "connections_at_once"),
            (EgressLimits::default().with_connections(0), "connections"),
            (EgressLimits::default().with_requests(0), "requests"),
            (EgressLimits::default().with_requests_per_second(0), "requests_per_second"),
            (EgressLimits::default().with_bytes_up(0), "bytes_up"),
            (EgressLimits::default().with_bytes_down(0), "bytes_down"),
            (EgressLimits::default().with_bytes_per_second(0), "bytes_per_second"),
            (EgressLimits::default().with_connect_timeout(none), "connect_timeout_ms"),
            (EgressLimits::default().with_head_timeout(none), "head_timeout_ms"),
            (EgressLimits::default().with_idle_timeout(none), "idle_timeout_ms"),
            (EgressLimits::default().with_idle_timeout(Duration::MAX), "idle_timeout_ms"),
        ];
        for (limits, name) in rows {
            let error = limits.check().unwrap_err().to_string();
            assert!(error.contains(&format!("`egress.{name}`")), "{error}");
        }
        EgressLimits::default().check().unwrap();
    }
}
