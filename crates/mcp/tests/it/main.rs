//! The Model Context Protocol, from outside.

#[cfg(all(feature = "client", feature = "server", target_os = "linux"))]
mod client;
#[cfg(feature = "server")]
mod server;
