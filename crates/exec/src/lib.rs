//! Executables as tools: the wire protocol, its server half for tool programs, and its client half.
//!
//! A tool program is any executable that answers `--discover` with a list of its tools and `TOOL {…}` with an
//! [`Envelope`](toolpost_core::Envelope). [`protocol`] defines every line of the wire: *dialect 0.1*, which other
//! implementations speak, and our extension, *resident mode*, in which one process serves many calls.
//!
//! # Invariants
//!
//! - Every line from the other side is untrusted: bounded in length and depth, and an invalid line fails one call.
//! - Dialect 0.1 is written exactly as its first implementation writes it; extensions are new keys only.
//! - A frame carries its version `v`; a frame of an unknown version is rejected.
//! - No process starts here: the client half uses the sandbox crate.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "command")]
pub mod command;
#[cfg(any(feature = "client", feature = "command"))]
mod failure;
pub mod protocol;
#[cfg(feature = "scaffold")]
pub mod scaffold;
pub mod server;
#[cfg(feature = "worker")]
pub mod worker;
