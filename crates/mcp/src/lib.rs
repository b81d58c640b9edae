//! The Model Context Protocol (MCP): [`server`] exposes a [`ToolSource`](toolpost_core::ToolSource) to any
//! client, [`client`] turns an MCP server into a `ToolSource`.
//!
//! Both halves speak the stateless version 2026-07-28 and the older versions that begin with `initialize`.
//!
//! # Invariants
//!
//! - No other crate names an MCP method, and no rmcp type appears in the public interface.
//! - Input from the peer is untrusted: bounded in size, number and time. An invalid message fails one
//!   request.
//! - A server listens on loopback unless it authenticates its clients and the operator opts in.
//! - An incoming token is never forwarded.
//! - This crate starts no process: the client half uses the sandbox crate.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
pub mod client;
mod convert;
#[cfg(feature = "server")]
pub mod server;
#[cfg(any(feature = "client", feature = "server"))]
mod websocket;

/// The protocol versions that both halves speak, oldest first.
pub fn protocol_versions() -> impl Iterator<Item = &'static str> {
    rmcp::model::ProtocolVersion::KNOWN_VERSIONS.iter().map(rmcp::model::ProtocolVersion::as_str)
}
