//! The limits of a server.

use std::time::Duration;

/// The limits of a server: counts, sizes and times.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerLimits {
    /// The most concurrent legacy sessions. Beyond it, a client with its share loses its own least recently
    /// used session; otherwise the client with the most sessions loses one. A session takes about 50 KiB.
    /// Default: 256.
    pub sessions: usize,
    /// The idle timeout of a session. Default: 5 min.
    pub session_idle: Duration,
    /// The most concurrent connections; further ones wait. Default: 1,024.
    pub connections: usize,
    /// The most concurrent calls, parked ones included; further ones fail with `OVERLOADED`. Default: 1,024.
    pub calls: usize,
    /// The most pending requests of one stdio or WebSocket connection; then reading pauses.
    /// Default: 64.
    pub requests_per_stream: usize,
    /// The largest request, in bytes. Default: 4 MiB.
    pub request_bytes: usize,
    /// The timeout for reading a request head. Default: 10 s.
    pub head_time: Duration,
    /// The timeout for reading a request body. Default: 30 s.
    pub body_time: Duration,
    /// The timeout for writing a response. Default: 30 s.
    pub write_time: Duration,
    /// The most parked calls, which wait for answers between requests; beyond it questions fail with
    /// `OVERLOADED`. Default: 256.
    pub parked: usize,
    /// The time that a parked call waits. Default: 10 min.
    pub parked_time: Duration,
    /// The most tasks, finished ones included; beyond it calls stay requests. 0 disables tasks. Default:
    /// 1,000.
    pub tasks: usize,
    /// The total size of all tasks, in bytes; a larger result becomes an error. Default: 64 MiB.
    pub task_bytes: usize,
    /// The time that a call runs before it becomes a task, if the client supports tasks. Default: 10 s.
    pub task_after: Duration,
    /// The lifetime of a task from its start. A result stays for at least 5 min, or this time if shorter. A
    /// task that still runs is stopped. Default: 1 h.
    pub task_ttl: Duration,
    /// The poll interval for clients. Default: 1 s.
    pub task_poll: Duration,
    /// The page size of lists. Default: 1,000.
    pub page: usize,
    /// The poll interval of subscribed resources. Default: 1 s.
    pub watch_interval: Duration,
    /// The most resource subscriptions of one client. Default: 64.
    pub subscriptions: usize,
    /// The time that [`RunningServer::stop`](super::RunningServer::stop) waits for running calls. Default: 10 s.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            sessions: 256,
            session_idle: Duration::from_mins(5),
            connections: 1_024,
            calls: 1_024,
            requests_per_stream: 64,
            request_bytes: 4 << 20,
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(30),
            parked: 256,
            parked_time: Duration::from_mins(10),
            tasks: 1_000,
            task_bytes: 64 << 20,
            task_after: Duration::from_secs(10),
            task_ttl: Duration::from_hours(1),
            task_poll: Duration::from_secs(1),
            page: 1_000,
            watch_interval: Duration::from_secs(1),
            subscriptions: 64,
            drain: Duration::from_secs(10),
        }
    }
}
