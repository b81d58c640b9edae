//! The Model Context Protocol, both halves: [`server`] gives a [`ToolSource`](toolpost_core::ToolSource) to any client,
//! [`client`] makes a server a `ToolSource`.
//!
//! Both eras are spoken: the stateless one of 2026-07-28, and the one that begins with `initialize`.
//!
//! # Invariants
//!
//! - No other crate names a method of the protocol, and no type of the library below appears in the public interface.
//! - What the other side sends is hostile: bounded in size, number and time, and a bad message costs one request.
//! - A server listens on a loopback address unless it authenticates its clients and was told otherwise.
//! - A token that came in never goes out.
//! - Nothing here starts a process: the client half asks the sandbox crate to.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
mod convert;
#[cfg(feature = "server")]
pub mod server;
