//! Tests of the MCP server and client through their public interfaces.

#[cfg(all(feature = "client", feature = "server", target_os = "linux"))]
mod client;
#[cfg(feature = "server")]
mod server;
