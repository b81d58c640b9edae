//! The Docker backend against a daemon of its own.

pub(crate) mod daemon;
mod errors;
mod folders;
mod images;
mod live;
mod registry;
mod runs;
#[cfg(feature = "docker-tls")]
mod tls;
mod tunnel;
