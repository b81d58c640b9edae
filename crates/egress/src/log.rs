//! The log of the proxy.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// The protocol of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EgressKind {
    /// A plain HTTP request.
    Http,
    /// A `CONNECT` tunnel.
    Connect,
    /// A SOCKS5 connection.
    Socks,
    /// A connection without a valid request.
    Invalid,
}

/// The reason why a request was denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EgressRefusal {
    /// The rule, for example `host_not_allowed`.
    pub rule: String,
    /// A sentence for a person or a model.
    pub message: String,
    /// The fix as text, if there is one, for example ``allow the host `example.org` ``.
    pub option: Option<String>,
    /// The fix as a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<EgressHint>,
}

/// The fix of a denied request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EgressHint {
    /// Allow a host.
    AllowHost {
        /// The host, with a port other than that of HTTPS and HTTP.
        host: String,
    },
    /// Allow an address of this machine or of a private network.
    AllowAddress {
        /// The address with its port.
        address: String,
    },
    /// Raise a limit.
    RaiseLimit {
        /// Its name in [`crate::EgressLimits`].
        limit: String,
    },
    /// Allow connections to other machines.
    AllowNetwork,
    /// Allow a protocol other than HTTP and TLS.
    AllowRaw {
        /// The host and port.
        target: String,
    },
    /// Send the secret with TLS, or allow it in the clear.
    SecureSecret,
}

impl fmt::Display for EgressHint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllowHost { host } => write!(formatter, "allow the host `{host}`"),
            Self::AllowAddress { address } => write!(formatter, "allow the address `{address}`"),
            Self::RaiseLimit { limit } => write!(formatter, "raise the limit `{limit}`"),
            Self::AllowNetwork => formatter.write_str("unset TOOLPOST_NO_NETWORK"),
            Self::AllowRaw { target } => {
                write!(formatter, "set `raw = [\"{target}\"]` in the egress policy")
            }
            Self::SecureSecret => {
                formatter.write_str("use the feature `egress-tls`, or `plain_http` of the secret")
            }
        }
    }
}

/// A request, tunnel or connection, without users, passwords, paths, queries, headers and bodies, also of a denied
/// request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EgressEvent {
    /// Milliseconds from the start of the proxy to the request.
    pub at_ms: u64,
    /// Milliseconds from the request to its end.
    pub duration_ms: u64,
    /// The protocol.
    pub kind: EgressKind,
    /// The requested `host:port`; `-` for a request without a valid one.
    pub target: String,
    /// The method of a valid HTTP request.
    pub method: Option<String>,
    /// The connected address.
    pub address: Option<IpAddr>,
    /// The status of the response, also of the proxy's own.
    pub status: Option<u16>,
    /// Bytes sent.
    pub bytes_up: u64,
    /// Bytes received.
    pub bytes_down: u64,
    /// The variables whose secrets were inserted into the request.
    pub secrets: Vec<String>,
    /// The reason why it was denied, if it was.
    pub refused: Option<EgressRefusal>,
    /// Another failure, for example a server that did not answer.
    pub failure: Option<String>,
}

/// The traffic through a run's proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EgressLog {
    /// Connections of the program to the proxy.
    pub connections: u64,
    /// HTTP requests, tunnels and SOCKS connections, denied ones included.
    pub requests: u64,
    /// The number of denied requests.
    pub refused: u64,
    /// Bytes sent.
    pub bytes_up: u64,
    /// Bytes received.
    pub bytes_down: u64,
    /// The reached limits, by their names in [`crate::EgressLimits`].
    pub limits_reached: Vec<String>,
    /// The first 1,000 events, ordered by their ends.
    pub events: Vec<EgressEvent>,
    /// The number of further events.
    pub events_left_out: u64,
}

impl EgressLog {
    /// The first denial.
    pub fn refusal(&self) -> Option<&EgressRefusal> {
        self.events.iter().find_map(|event| event.refused.as_ref())
    }

    /// The traffic since an earlier state of the same log.
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    #[must_use]
    pub fn since(self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return self };
        let Self { events, limits_reached, .. } = self;
        Self {
            connections: self.connections.saturating_sub(earlier.connections),
            requests: self.requests.saturating_sub(earlier.requests),
            refused: self.refused.saturating_sub(earlier.refused),
            bytes_up: self.bytes_up.saturating_sub(earlier.bytes_up),
            bytes_down: self.bytes_down.saturating_sub(earlier.bytes_down),
            limits_reached,
            events: events.into_iter().skip(earlier.events.len()).collect(),
            events_left_out: self.events_left_out.saturating_sub(earlier.events_left_out),
        }
    }

    /// Notes for a person on denials. At most ten, then a count.
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub fn notes(&self) -> Vec<String> {
        const MAX_NOTES: usize = 10;
        let mut notes: Vec<String> = Vec::new();
        let mut further = 0u64;
        for event in &self.events {
            let Some(refused) = &event.refused else { continue };
            let fix = refused.option.as_ref().map(|fix| format!("; fix: {fix}"));
            let note = format!("network: {} ({}){}", refused.message, refused.rule, fix.unwrap_or_default());
            if notes.contains(&note) {
                continue;
            }
            if notes.len() < MAX_NOTES {
                notes.push(note);
            } else {
                further += 1;
            }
        }
        if further > 0 {
            notes.push(format!("network: {further} more denials are in the log"));
        }
        notes
    }
}
