//! Executables as tools: the protocol, what a tool program speaks, and how such programs are called.
//!
//! A tool program is any executable that answers `--discover` with the list of its tools and `TOOL {…}` with an
//! [`Envelope`](toolpost_core::Envelope). [`protocol`] has every line that goes over the wire, as types: the *dialect
//! 0.1* that other implementations speak, and our extension of it, the *resident mode*, in which one process serves
//! many calls.
//!
//! # Invariants
//!
//! - Every line from the other side is hostile: of bounded length and depth, and a bad one costs one call.
//! - What dialect 0.1 defines is written exactly as its first implementation writes it; additions are new keys only.
//! - A frame carries its version `v`; a frame of a version that is not known is refused, never guessed at.
//! - Nothing here starts a process: the client half asks the sandbox crate to.
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "command")]
pub mod command;
pub mod protocol;
#[cfg(feature = "scaffold")]
pub mod scaffold;
pub mod server;
#[cfg(feature = "worker")]
pub mod worker;
