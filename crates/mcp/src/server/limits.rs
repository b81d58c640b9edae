//! What bounds a server.

use std::time::Duration;

/// What bounds a server: numbers, bytes and times. Each has a default that suits one machine and its people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Sessions of the older era at once. Beyond, a client that has its share of them ends its own least recently used
    /// one, and another client that of the client with the most. Each takes about 50 KiB of memory. Default 256.
    pub sessions: usize,
    /// How long a session lives without a request. Default 5 min.
    pub session_idle: Duration,
    /// Connections at once; beyond, new ones wait to be accepted. Default 1,024.
    pub connections: usize,
    /// Calls that run at once, waiting ones included; beyond, a call is answered with `OVERLOADED`. Default 1,024.
    pub calls: usize,
    /// Requests of one stream (standard streams, WebSocket, unix socket) that are worked on at once; beyond, no more are
    /// read. Default 64.
    pub requests_per_stream: usize,
    /// The largest request, in bytes, over HTTP, WebSocket or as a line. Default 4 MiB.
    pub request_bytes: usize,
    /// How long a client may take for the head of a request. Default 10 s.
    pub head_time: Duration,
    /// How long a client may take for the body of a request. Default 30 s.
    pub body_time: Duration,
    /// How long a client may leave an answer untaken. Default 30 s.
    pub write_time: Duration,
    /// Calls that wait for answers between two requests at once; beyond, a tool that asks gets `OVERLOADED`. Default 256.
    pub parked: usize,
    /// How long such a call waits. Default 10 min.
    pub parked_time: Duration,
    /// Tasks at once, those included whose result is kept; beyond, a call stays one request. 0 means that there are no
    /// tasks. Default 1,000.
    pub tasks: usize,
    /// How many bytes all tasks together may take where they are kept; a result beyond is an error. Default 64 MiB.
    pub task_bytes: usize,
    /// How long a call may keep its request open before it becomes a task, where the client knows tasks. Default 10 s.
    pub task_after: Duration,
    /// How long a task lives, from its beginning; its result is there for 5 min at least, or this time if it is shorter.
    /// What still runs then is stopped. Default 1 h.
    pub task_ttl: Duration,
    /// How often clients are to ask for a task. Default 1 s.
    pub task_poll: Duration,
    /// The most entries of one page of a list. Default 1,000.
    pub page: usize,
    /// How long clients may keep a list; 0 means that they ask each time. Default 0.
    pub list_ttl: Duration,
    /// How often a resource that a client has subscribed to is read, to tell the client when it has changed. Default 1 s.
    pub watch_interval: Duration,
    /// The most resources that one client subscribes to. Default 64.
    pub subscriptions: usize,
    /// How long [`Running::stop`](super::Running::stop) waits for calls that run. Default 10 s.
    pub drain: Duration,
}

impl Default for Limits {
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
            list_ttl: Duration::ZERO,
            watch_interval: Duration::from_secs(1),
            subscriptions: 64,
            drain: Duration::from_secs(10),
        }
    }
}
