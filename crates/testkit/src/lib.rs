//! Loopback providers, in-memory ports, fixed clocks and waits, for tests.
//!
//! # Invariants
//!
//! - Other crates use it as a development dependency only; it is never published.
//! - Servers bind 127.0.0.1 and stop when their value is dropped. Nothing connects to another host.
//! - Recorded traffic is read from a directory beside the checkout; the project contains none of it.
//!
//! Deliberately absent: helpers that the tests of one crate alone need.
#![forbid(unsafe_code)]

mod clock;
mod eventually;
pub mod messages;
pub mod packed;
mod port;
pub mod provider;
pub mod recordings;
pub mod tls;
pub mod tunnel;

pub use self::clock::FixedClock;
pub use self::eventually::eventually;
pub use self::port::{Heard, MemoryPort};
