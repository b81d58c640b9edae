//! Loopback providers, in-memory ports and fixed clocks, for tests.
//!
//! # Invariants
//!
//! - For tests alone: never a normal dependency of another crate, never published.
//! - Servers bind 127.0.0.1 and die with their value. Nothing else is connected to.
//! - Recorded traffic is read where it lies beside the checkout; none of it is in the project.
//!
//! Deliberately absent: anything that a test of one crate alone needs; that stays with the crate.
#![forbid(unsafe_code)]

mod clock;
pub mod messages;
pub mod packed;
mod port;
pub mod provider;
pub mod recordings;
pub mod tls;
pub mod tunnel;

pub use self::clock::FixedClock;
pub use self::port::{Heard, MemoryPort};
