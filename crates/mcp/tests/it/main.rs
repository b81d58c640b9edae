//! The Model Context Protocol, from outside.

#[cfg(feature = "server")]
mod server;
