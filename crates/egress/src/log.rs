//! What went through the proxy, and what did not.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// How a program asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EgressKind {
    /// A plain HTTP request.
    Http,
    /// A tunnel by `CONNECT`.
    Connect,
    /// A connection by SOCKS5.
    Socks,
    /// A connection on which nothing valid was asked.
    Invalid,
}

/// Why something was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EgressRefusal {
    /// The rule, for example `host_not_allowed`.
    pub rule: String,
    /// A sentence for a person or a model.
    pub message: String,
    /// The option that would allow it, if there is one, for example `--allow-host example.org`.
    pub option: Option<String>,
}

/// One request, tunnel or connection. Paths, headers and bodies are not in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EgressEvent {
    /// Milliseconds from the start of the proxy to the request.
    pub at_ms: u64,
    /// Milliseconds from the request to its end.
    pub duration_ms: u64,
    /// How the program asked.
    pub kind: EgressKind,
    /// What it asked for: `host:port`; what is no valid host is escaped and shortened.
    pub target: String,
    /// The method of an HTTP request.
    pub method: Option<String>,
    /// The address that was connected to.
    pub address: Option<IpAddr>,
    /// The status of the response, also of one that the proxy made.
    pub status: Option<u16>,
    /// Bytes that were sent.
    pub bytes_up: u64,
    /// Bytes that were received.
    pub bytes_down: u64,
    /// The variables whose secrets were put into the request.
    pub secrets: Vec<String>,
    /// Why it was refused, if it was.
    pub refused: Option<EgressRefusal>,
    /// What went wrong otherwise, for example that the server did not answer.
    pub failure: Option<String>,
}

/// What went through the proxy of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EgressLog {
    /// Connections of the program to the proxy.
    pub connections: u64,
    /// HTTP requests, tunnels and SOCKS connections, refused ones included.
    pub requests: u64,
    /// Those of them that were refused.
    pub refused: u64,
    /// Bytes that were sent.
    pub bytes_up: u64,
    /// Bytes that were received.
    pub bytes_down: u64,
    /// The limits that were reached, by their names in [`crate::EgressLimits`].
    pub limits_reached: Vec<String>,
    /// The first 1,000 events, in the order of their ends.
    pub events: Vec<EgressEvent>,
    /// How many further events there were.
    pub events_left_out: u64,
}

impl EgressLog {
    /// The first thing that was refused.
    pub fn refusal(&self) -> Option<&EgressRefusal> {
        self.events.iter().find_map(|event| event.refused.as_ref())
    }

    /// What came after an earlier state of the same log.
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

    /// Sentences for a person: what was refused, and what would allow it. At most ten, then a count.
    #[cfg(all(target_os = "linux", not(toolpost_simulate_other_host)))]
    pub fn notes(&self) -> Vec<String> {
        const MOST: usize = 10;
        let mut notes: Vec<String> = Vec::new();
        let mut further = 0u64;
        for event in &self.events {
            let Some(refused) = &event.refused else { continue };
            let option = refused.option.as_ref().map(|option| format!("; `{option}` would allow it"));
            let note =
                format!("network: {} ({}){}", refused.message, refused.rule, option.unwrap_or_default());
            if notes.contains(&note) {
                continue;
            }
            if notes.len() < MOST {
                notes.push(note);
            } else {
                further += 1;
            }
        }
        if further > 0 {
            notes.push(format!("network: {further} further refusals are in the log"));
        }
        notes
    }
}
